// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package immortalcontainer

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"blackadder.io/blackadder/api/immortalcontainer/v1alpha1"
	"blackadder.io/blackadder/internal/immortal"
)

// outcome is what became of a step: what is known after it.
type outcome struct {
	observed immortal.Observation
	step     immortal.Step
}

// act takes the step; it is the only writer of pods. It returns nil when the ImmortalContainer turns out to be gone.
func (r *Reconciler) act(ctx context.Context, observed immortal.Observation, step immortal.Step) (*outcome, error) {
	done := &outcome{observed: observed, step: step}
	switch step.Action {
	case immortal.ActionCreate:
		return r.create(ctx, observed)
	case immortal.ActionDelete:
		return r.remove(ctx, observed)
	case immortal.ActionRelabel:
		return done, r.relabel(ctx, *done)
	case immortal.ActionNone:
	}
	return done, nil
}

// create makes the pod. What the cache says of the ImmortalContainer may be older than the last pod: the count of
// starts, the backoff and the spec are read from the API server first.
func (r *Reconciler) create(ctx context.Context, observed immortal.Observation) (*outcome, error) {
	live, err := r.live(ctx, observed.Container)
	if live == nil {
		return nil, err
	}
	observed.Container = live
	step := immortal.NextStep(observed)
	if step.Action != immortal.ActionCreate {
		return r.act(ctx, observed, step)
	}

	pod := immortal.Pod(live, live.Status.StartTimes+1)
	// A create and not an apply: an apply would take over a pod of somebody else that has the name.
	err = r.client.Create(ctx, pod, client.FieldOwner(Name))
	if err == nil {
		r.metrics.created.Inc()
		observed.Pod = pod
		r.tellCreated(observed)
		return &outcome{observed: observed, step: immortal.NextStep(observed)}, nil
	}
	if apierrors.IsAlreadyExists(err) {
		return r.meetExisting(ctx, observed)
	}
	if refusal, is := immortal.RefusalOf(err); is {
		r.metrics.refused.WithLabelValues(refusal.Reason).Inc()
		observed.Refusal = &refusal
		return &outcome{observed: observed, step: immortal.NextStep(observed)}, nil
	}
	err = fmt.Errorf("creating the pod: %w", err)
	step.Reason, step.Message = v1alpha1.ReasonPodRefused, err.Error()+" (it is tried again)"
	return &outcome{observed: observed, step: step}, err
}

// live reads the ImmortalContainer from the API server; nil if it is gone, terminating, or another one of the same name.
func (r *Reconciler) live(ctx context.Context, container *v1alpha1.ImmortalContainer) (*v1alpha1.ImmortalContainer, error) {
	var live v1alpha1.ImmortalContainer
	if err := r.reader.Get(ctx, client.ObjectKeyFromObject(container), &live); err != nil {
		return nil, wrapUnlessNotFound(err, "reading the ImmortalContainer before touching its pod")
	}
	if live.UID != container.UID || live.DeletionTimestamp != nil {
		return nil, nil //nolint:nilnil // As documented.
	}
	return &live, nil
}

// meetExisting goes on with the pod that holds the name but not (yet) a place in the cache: the one that was just made,
// one without the protecting label, or somebody else's.
func (r *Reconciler) meetExisting(ctx context.Context, observed immortal.Observation) (*outcome, error) {
	var pod corev1.Pod
	key := types.NamespacedName{Namespace: observed.Container.Namespace, Name: immortal.PodName(observed.Container.Name)}
	if err := r.reader.Get(ctx, key, &pod); err != nil {
		// Also when it is gone again: the next try finds the name free.
		return &outcome{observed: observed, step: immortal.NextStep(observed)}, fmt.Errorf("reading the pod that holds the name: %w", err)
	}
	observed.Pod = &pod
	return r.act(ctx, observed, immortal.NextStep(observed))
}

// remove deletes the very pod that was judged, never a successor of the same name. The cache's ImmortalContainer may be
// older than the pod, and its spec not the one that the pod was made from: the decision is made again on the live one.
func (r *Reconciler) remove(ctx context.Context, observed immortal.Observation) (*outcome, error) {
	live, err := r.live(ctx, observed.Container)
	if live == nil {
		return nil, err
	}
	observed.Container = live
	step := immortal.NextStep(observed)
	if step.Action != immortal.ActionDelete {
		return r.act(ctx, observed, step)
	}
	if step.Reason == v1alpha1.ReasonReplacing && !immortal.Ended(observed.Pod) {
		if refusal := r.tryReplacement(ctx, live); refusal != nil {
			observed.Refusal = refusal
			return &outcome{observed: observed, step: immortal.NextStep(observed)}, nil
		}
	}
	done := &outcome{observed: observed, step: step}
	err = r.client.Delete(ctx, observed.Pod, client.Preconditions{UID: &step.UID})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return done, nil
	}
	if err != nil {
		return done, fmt.Errorf("deleting pod %q: %w", observed.Pod.Name, err)
	}
	r.tellRemoved(*done)
	return done, nil
}

// tryReplacement lets the API server judge the new pod in a dry run before the old one, which serves, is given up for it. A
// full quota is no reason to keep the old pod: it is what fills it. nil if nothing is known to speak against the new one.
func (r *Reconciler) tryReplacement(ctx context.Context, container *v1alpha1.ImmortalContainer) *immortal.Refusal {
	err := r.client.Create(ctx, immortal.Pod(container, container.Status.StartTimes+1), client.DryRunAll)
	refusal, is := immortal.RefusalOf(err)
	if !is || !refusal.Lasting() {
		return nil
	}
	return &refusal
}

func (r *Reconciler) relabel(ctx context.Context, done outcome) error {
	pod := done.observed.Pod.DeepCopy()
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	for label, value := range immortal.ProtectingLabels(done.observed.Container.Name) {
		pod.Labels[label] = value
	}
	patch := client.MergeFromWithOptions(done.observed.Pod, client.MergeFromWithOptimisticLock{})
	if err := r.client.Patch(ctx, pod, patch, client.FieldOwner(Name)); err != nil {
		return fmt.Errorf("giving pod %q its labels back: %w", pod.Name, err)
	}
	r.tellRelabelled(done)
	return nil
}
