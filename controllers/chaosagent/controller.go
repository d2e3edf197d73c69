// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

// Package chaosagent reconciles ChaosAgents: it runs the cycles that internal/chaos plans, writes down each change before it
// is made, puts changes back when an agent stops, and measures how long workloads need to recover.
package chaosagent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"blackadder.io/blackadder/api/blackadder/v1beta1"
	"blackadder.io/blackadder/internal/chaos"
	"blackadder.io/blackadder/internal/namespaces"
	"blackadder.io/blackadder/internal/survey"
)

const (
	// Name of the controller, in logs, events and metrics, and of the field owner of what it writes.
	Name = "chaosagent"
	// agents is how many ChaosAgents are reconciled at once. A cycle is one reconciliation, so that an agent's cycles never
	// overlap.
	agents = 8
	// firstRetry and longestRetry bound the backoff after an unexpected error.
	firstRetry   = 100 * time.Millisecond
	longestRetry = 30 * time.Second
	// restoreRetry is when changes that could not be put back are tried again.
	restoreRetry = 10 * time.Second
	// recoveryDelay is how long recoveries are gathered before the status tells of them.
	recoveryDelay = time.Second
	// restoreDeadline is how long a deleted agent is kept for changes that cannot be put back: its end must not hang on them.
	restoreDeadline = 10 * time.Minute
)

// CacheByObject is what the controller needs in the manager's cache, beside what internal/survey declares: ChaosAgents, the
// metadata of its own journal, and of the workloads that it hits as much as tells whether they are available.
func CacheByObject(namespace string) map[client.Object]cache.ByObject {
	exists, _ := labels.NewRequirement(chaos.JournalLabel, selection.Exists, nil)
	return map[client.Object]cache.ByObject{
		&v1beta1.ChaosAgent{}: {Transform: cache.TransformStripManagedFields()},
		journalMetadata(): {
			Namespaces: map[string]cache.Config{namespace: {}},
			Label:      labels.NewSelector().Add(*exists),
			Transform:  cache.TransformStripManagedFields(),
		},
		&appsv1.StatefulSet{}: {Transform: stripWorkload},
		&appsv1.DaemonSet{}:   {Transform: stripWorkload},
	}
}

// +kubebuilder:rbac:groups=blackadder.io,resources=chaosagents,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=blackadder.io,resources=chaosagents/status,verbs=patch
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=pods,verbs=get;list;delete
// +kubebuilder:rbac:groups="",resources=pods/eviction,verbs=create
// +kubebuilder:rbac:groups="",resources=configmaps,verbs=get;list;watch;update
// +kubebuilder:rbac:groups=apps,resources=deployments;statefulsets;daemonsets,verbs=get;list;watch
// +kubebuilder:rbac:groups=apps,resources=deployments/scale,verbs=get;update
// +kubebuilder:rbac:groups=autoscaling,resources=horizontalpodautoscalers,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get;list;watch;create;update;delete,namespace=blackadder-system
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Reconciler runs ChaosAgents. Fill its fields by SetupWithManager.
type Reconciler struct {
	client     client.Client
	live       client.Reader
	evictions  rest.Interface
	survey     *survey.Survey
	journal    *journal
	recoveries *tracker
	recorder   events.EventRecorder
	clock      clock.PassiveClock
	metrics    *metrics
}

// Options are the settings of the controller.
type Options struct {
	// Namespace is the operator's own, in which the journal is kept.
	Namespace string
	// Protection is what no agent reaches. It has to include Namespace.
	Protection namespaces.Protection
	// Clock tells the time; nil stands for the real one.
	Clock clock.PassiveClock
	// Metrics takes the controller's metrics; nil keeps them to themselves.
	Metrics prometheus.Registerer
}

// SetupWithManager makes the Reconciler and registers it with the manager.
func SetupWithManager(mgr ctrl.Manager, options Options) error {
	if !options.Protection.Has(options.Namespace) {
		return fmt.Errorf("setting up the %s controller: its own namespace %q is not protected", Name, options.Namespace)
	}
	r := &Reconciler{
		client:   mgr.GetClient(),
		live:     mgr.GetAPIReader(),
		survey:   survey.New(mgr.GetCache(), mgr.GetAPIReader(), options.Protection),
		journal:  &journal{client: mgr.GetClient(), live: mgr.GetAPIReader(), namespace: options.Namespace},
		recorder: mgr.GetEventRecorder("blackadder-" + Name),
		clock:    options.Clock,
	}
	if r.clock == nil {
		r.clock = clock.RealClock{}
	}
	r.recoveries = newTracker(mgr.GetCache(), r.clock)
	// Evictions need a request that is not repeated on 429: that is how a budget refuses, and not for lack of time.
	clientset, err := kubernetes.NewForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return fmt.Errorf("making the %s controller's client for evictions: %w", Name, err)
	}
	r.evictions = clientset.CoreV1().RESTClient()
	if r.metrics, err = newMetrics(options.Metrics, mgr.GetCache()); err != nil {
		return fmt.Errorf("registering the metrics of the %s controller: %w", Name, err)
	}
	r.recoveries.onRecovered = r.metrics.recovered
	err = ctrl.NewControllerManagedBy(mgr).
		Named(Name).
		For(&v1beta1.ChaosAgent{}).
		WatchesMetadata(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(agentOfJournal)).
		WatchesRawSource(source.Channel(r.recoveries.recovered, handler.Funcs{GenericFunc: soon})).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: agents,
			EnableWarmup:            ptr.To(true),
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstRetry, longestRetry),
		}).
		Complete(r)
	if err != nil {
		return fmt.Errorf("setting up the %s controller: %w", Name, err)
	}
	return nil
}

// soon lets recoveries that follow each other closely be written in one status.
func soon(_ context.Context, recovered event.GenericEvent, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	queue.AddAfter(reconcile.Request{NamespacedName: types.NamespacedName{Name: recovered.Object.GetName()}}, recoveryDelay)
}

// agentOfJournal finds the agent whose change a journal entry is about, also when it is gone: its changes are put back then.
func agentOfJournal(_ context.Context, secret client.Object) []reconcile.Request {
	entry, err := chaos.DecodeEntry(secret.GetAnnotations())
	if err != nil {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: entry.Agent}}}
}

// Reconcile takes the next step of one agent: a whole cycle, the way back, or nothing until the time comes.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	agent, err := r.agent(ctx, request.Name)
	if err != nil {
		return ctrl.Result{}, err
	}
	left, err := r.restoreLeftovers(ctx, request.Name, agent)
	if err != nil {
		return ctrl.Result{}, err
	}
	if agent == nil {
		r.recoveries.forget(request.Name)
		return ctrl.Result{RequeueAfter: left}, nil
	}
	if err := r.lookAtRecoveries(ctx, agent); err != nil {
		return ctrl.Result{}, err
	}
	step := chaos.NextStep(agent, r.clock.Now())
	if step.Action == chaos.Run || step.Action == chaos.Resume {
		// The cache may not know yet that the cycle is over, or that the agent is to stop.
		if agent, err = r.current(ctx, agent); err != nil || agent == nil {
			return ctrl.Result{}, err
		}
		step = chaos.NextStep(agent, r.clock.Now())
	}
	done, err := r.act(ctx, agent, step)
	if done == nil {
		return ctrl.Result{}, err
	}
	// Also after a failure: what is known so far is worth telling.
	err = errors.Join(err, r.finish(ctx, *done))
	if err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{RequeueAfter: r.nextLook(*done, left)}, nil
}

// lookAtRecoveries looks at workloads of which no event will tell.
func (r *Reconciler) lookAtRecoveries(ctx context.Context, agent *v1beta1.ChaosAgent) error {
	if err := r.recoveries.adopt(ctx, agent); err != nil {
		return err
	}
	if r.recoveries.due(agent.Name) {
		return r.recoveries.lookAgain(ctx, agent.Name)
	}
	return nil
}

// agent reads an agent from the cache; nil if it is gone.
func (r *Reconciler) agent(ctx context.Context, name string) (*v1beta1.ChaosAgent, error) {
	var agent v1beta1.ChaosAgent
	err := r.client.Get(ctx, types.NamespacedName{Name: name}, &agent)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil //nolint:nilnil // As documented.
	case err != nil:
		return nil, fmt.Errorf("reading the ChaosAgent: %w", err)
	}
	return &agent, nil
}

// current reads an agent from the API server; nil if it is gone, or another one of the same name.
func (r *Reconciler) current(ctx context.Context, agent *v1beta1.ChaosAgent) (*v1beta1.ChaosAgent, error) {
	var live v1beta1.ChaosAgent
	err := r.live.Get(ctx, client.ObjectKeyFromObject(agent), &live)
	switch {
	case apierrors.IsNotFound(err) || (err == nil && live.UID != agent.UID):
		return nil, nil //nolint:nilnil // As documented.
	case err != nil:
		return nil, fmt.Errorf("reading the ChaosAgent before its cycle: %w", err)
	}
	return &live, nil
}

// outcome is what became of a step: the agent as it was when it was written last, with the status of the cycle in it.
type outcome struct {
	written     v1beta1.ChaosAgentStatus
	agent       *v1beta1.ChaosAgent
	step        chaos.Step
	restoration chaos.Restoration
}

// act takes the step. It returns nil when the agent turns out to be another than the one that the step was decided for.
func (r *Reconciler) act(ctx context.Context, agent *v1beta1.ChaosAgent, step chaos.Step) (*outcome, error) {
	done := &outcome{written: *agent.Status.DeepCopy(), agent: agent, step: step}
	var err error
	switch step.Action {
	case chaos.Run, chaos.Resume:
		if err = r.cycle(ctx, done); errors.Is(err, errOvertaken) {
			return nil, nil //nolint:nilnil // As documented.
		}
	case chaos.Stop:
		done.restoration, err = r.stop(ctx, agent)
		return done, err
	case chaos.Wait:
	}
	held, countErr := r.journal.held(ctx, agent)
	done.restoration.Held = len(held)
	return done, errors.Join(err, countErr)
}

// finish writes the status, and lets go of the agent when nothing is left to put back.
func (r *Reconciler) finish(ctx context.Context, done outcome) error {
	if done.step.Action == chaos.Stop && done.restoration.Held == 0 {
		if gone, err := r.release(ctx, done.agent); err != nil || gone {
			return err
		}
	}
	return r.writeStatus(ctx, done)
}

// nextLook is when the agent has to be looked at again by itself; zero if only a change can bring something new.
func (r *Reconciler) nextLook(done outcome, left time.Duration) time.Duration {
	now := r.clock.Now()
	soonest := left
	sooner := func(wait time.Duration) {
		if wait = max(wait, time.Millisecond); soonest == 0 || wait < soonest {
			soonest = wait
		}
	}
	if done.step.Action != chaos.Stop {
		for _, at := range []time.Time{done.step.Next, done.step.Expires} {
			if !at.IsZero() {
				sooner(at.Sub(now))
			}
		}
	} else if done.restoration.Held > 0 {
		sooner(restoreRetry)
	}
	if at := r.recoveries.nextLook(done.agent.Name); !at.IsZero() {
		sooner(at.Sub(now))
	}
	return soonest
}
