// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

// Package immortalcontainer reconciles ImmortalContainers: it creates, replaces and removes their pods as
// internal/immortal decides, and tells in status, events and metrics what happened.
package immortalcontainer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"blackadder.io/blackadder/api/immortalcontainer/v1alpha1"
	"blackadder.io/blackadder/internal/immortal"
)

const (
	// Name of the controller, in logs, events and metrics, and of the field owner of what it applies.
	Name = "immortalcontainer"
	// workers is how many ImmortalContainers are reconciled at once: each waits on the API server most of the time.
	workers = 16
	// firstRetry and longestRetry bound the backoff after an unexpected error. The library's own bound, a quarter of an
	// hour, would leave pods dead for long after an outage of the API server.
	firstRetry   = 5 * time.Millisecond
	longestRetry = 30 * time.Second
)

// CacheByObject is what the controller needs in the manager's cache: ImmortalContainers, and of all pods only those
// with the protecting label.
func CacheByObject() map[client.Object]cache.ByObject {
	return map[client.Object]cache.ByObject{
		&v1alpha1.ImmortalContainer{}: {Transform: cache.TransformStripManagedFields()},
		&corev1.Pod{}: {
			Label:     labels.SelectorFromSet(labels.Set{v1alpha1.ProtectedLabel: v1alpha1.ProtectedValue}),
			Transform: cache.TransformStripManagedFields(),
		},
	}
}

// +kubebuilder:rbac:groups=immortalcontainer.flugel.it,resources=immortalcontainers,verbs=get;list;watch
// +kubebuilder:rbac:groups=immortalcontainer.flugel.it,resources=immortalcontainers/status,verbs=patch
// +kubebuilder:rbac:groups=immortalcontainer.flugel.it,resources=immortalcontainers/finalizers,verbs=update
// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;watch;create;delete;patch
// +kubebuilder:rbac:groups="",resources=nodes,verbs=get
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Reconciler drives each ImmortalContainer towards its pod. Fill its fields by SetupWithManager.
type Reconciler struct {
	client   client.Client
	reader   client.Reader
	recorder events.EventRecorder
	clock    clock.PassiveClock
	metrics  *metrics
}

// Options are the settings of the controller.
type Options struct {
	// Clock tells the time; nil stands for the real one.
	Clock clock.PassiveClock
	// Metrics takes the controller's metrics; nil keeps them to themselves.
	Metrics prometheus.Registerer
}

// SetupWithManager makes the Reconciler and registers it with the manager.
func SetupWithManager(mgr ctrl.Manager, options Options) error {
	r := &Reconciler{
		client:   mgr.GetClient(),
		reader:   mgr.GetAPIReader(),
		recorder: mgr.GetEventRecorder("blackadder-" + Name),
		clock:    options.Clock,
	}
	if r.clock == nil {
		r.clock = clock.RealClock{}
	}
	var err error
	if r.metrics, err = newMetrics(options.Metrics, mgr.GetCache()); err != nil {
		return fmt.Errorf("registering the metrics of the %s controller: %w", Name, err)
	}
	err = ctrl.NewControllerManagedBy(mgr).
		Named(Name).
		For(&v1alpha1.ImmortalContainer{}).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(containerOfPod)).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: workers,
			// Also on replicas that do not lead: their caches are filled when they take over, readiness means something, and
			// their metrics can be read.
			EnableWarmup: ptr.To(true),
			RateLimiter:  workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstRetry, longestRetry),
		}).
		Complete(r)
	if err != nil {
		return fmt.Errorf("setting up the %s controller: %w", Name, err)
	}
	return nil
}

// containerOfPod finds the ImmortalContainer by the pod's name, which is fixed, and not by its owner reference: a pod
// that lost the reference, or never had it, is in the way of the one with this name all the same.
func containerOfPod(_ context.Context, pod client.Object) []reconcile.Request {
	name, found := strings.CutSuffix(pod.GetName(), v1alpha1.PodNameSuffix)
	if !found || name == "" {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: pod.GetNamespace(), Name: name}}}
}

// Reconcile takes the next step towards the pod of one ImmortalContainer.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	observed, err := r.observe(ctx, request.NamespacedName)
	if err != nil || observed == nil {
		return ctrl.Result{}, err
	}
	done, err := r.act(ctx, *observed, immortal.NextStep(*observed))
	if done == nil {
		return ctrl.Result{}, err
	}
	// Also after a failure: what is known so far is worth telling.
	statusErr := r.writeStatus(ctx, *done)
	if err != nil || statusErr != nil {
		return ctrl.Result{}, errors.Join(err, statusErr)
	}
	return ctrl.Result{RequeueAfter: immortal.NextLook(done.observed, done.step)}, nil
}

// observe gathers the facts from the cache; nil if there is nothing to do for the ImmortalContainer any more.
func (r *Reconciler) observe(ctx context.Context, key types.NamespacedName) (*immortal.Observation, error) {
	var container v1alpha1.ImmortalContainer
	if err := r.client.Get(ctx, key, &container); err != nil {
		return nil, wrapUnlessNotFound(err, "reading the ImmortalContainer")
	}
	if container.DeletionTimestamp != nil {
		// The garbage collector ends the pod.
		return nil, nil //nolint:nilnil // As documented.
	}
	observed := &immortal.Observation{Container: &container, Now: r.clock.Now()}
	var pod corev1.Pod
	err := r.client.Get(ctx, types.NamespacedName{Namespace: key.Namespace, Name: immortal.PodName(key.Name)}, &pod)
	switch {
	case apierrors.IsNotFound(err):
		return observed, nil
	case err != nil:
		return nil, fmt.Errorf("reading the pod: %w", err)
	}
	observed.Pod = &pod
	if immortal.NeedsNode(&pod, observed.Now) {
		if observed.Node, err = r.node(ctx, pod.Spec.NodeName); err != nil {
			return nil, err
		}
	}
	return observed, nil
}

// node reads a node past the cache: it is needed only while a pod hangs on it, which is rare, and nodes change all the
// time.
func (r *Reconciler) node(ctx context.Context, name string) (*immortal.NodeFacts, error) {
	var node corev1.Node
	err := r.reader.Get(ctx, types.NamespacedName{Name: name}, &node)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("reading node %q: %w", name, err)
	}
	facts := immortal.NodeFactsOf(name, nil)
	if err == nil {
		facts = immortal.NodeFactsOf(name, &node)
	}
	return &facts, nil
}

func wrapUnlessNotFound(err error, doing string) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("%s: %w", doing, err)
}
