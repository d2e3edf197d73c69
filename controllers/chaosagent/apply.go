// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package chaosagent

import (
	"context"
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"blackadder.io/blackadder/api/blackadder/v1beta1"
	"blackadder.io/blackadder/internal/chaos"
	"blackadder.io/blackadder/internal/survey"
)

// attempts bounds how often an object that keeps changing is read and tried again.
const attempts = 5

// verdict is what became of a victim.
type verdict string

const (
	done    verdict = "done"
	refused verdict = "refused"
	spared  verdict = "spared"
	failed  verdict = "failed"
)

// result is a verdict with its reason; a done one may say what was done.
type result struct {
	verdict verdict
	reason  string
}

func sparedBecause(reason string) result { return result{verdict: spared, reason: reason} }

func failedWith(err error) result { return result{verdict: failed, reason: err.Error()} }

const (
	reasonGone         = "Gone"
	reasonKeptChanging = "it kept changing, and was left alone"
	// reasonUnknownScaling spares a Deployment of an interrupted cycle without a journal: whether it was scaled before the
	// interruption, nobody knows.
	reasonUnknownScaling = "ScalingUnknown"
	reasonTooManyKeys    = "TooManyKeys"
)

// blow strikes the victims of one cycle; it is the only writer of targets, but for what puts them back.
type blow struct {
	reconciler *Reconciler
	agent      *v1beta1.ChaosAgent
	filter     *chaos.Filter
	cycle      int64
	seed       int64
	// resumed tells that the cycle was begun before, so that a victim may have been hit already.
	resumed bool
}

// strike hits one victim, if it is a candidate still.
func (b *blow) strike(ctx context.Context, victim *chaos.Victim) result {
	// A resumed cycle looks at the Deployment itself: it may be what the cycle made of it.
	if reason := b.filter.Exclude(&victim.Object); reason != "" && (!b.resumed || victim.Mode != chaos.Cancer) {
		return sparedBecause(reason)
	}
	if victim.Mode == chaos.Ipsum {
		return b.overwrite(ctx, victim)
	}
	// Before the blow, so that its first consequence is seen.
	missed := b.reconciler.recoveries.hit(b.agent.Name, &victim.Object)
	blow := b.kill
	if victim.Mode == chaos.Cancer {
		blow = b.scaleUp
	}
	result := blow(ctx, victim)
	if result.verdict != done {
		missed()
	}
	return result
}

// kill deletes or evicts the very pod that was judged, as it was when it was judged: one that has changed since is judged again.
func (b *blow) kill(ctx context.Context, victim *chaos.Victim) result {
	judged := victim.Meta
	for range attempts {
		err := b.remove(ctx, &judged)
		switch {
		case err == nil:
			return result{verdict: done}
		case apierrors.IsNotFound(err):
			return sparedBecause(reasonGone)
		case apierrors.HasStatusCause(err, policyv1.DisruptionBudgetCause):
			return result{verdict: refused, reason: err.Error()}
		case !apierrors.IsConflict(err):
			return failedWith(err)
		}
		pod := &metav1.PartialObjectMetadata{}
		pod.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
		if err := b.reconciler.live.Get(ctx, client.ObjectKey{Namespace: judged.Namespace, Name: judged.Name}, pod); err != nil {
			return unreadable(err)
		}
		object := survey.PodObject(pod)
		if reason := b.again(&object, victim); reason != "" {
			return sparedBecause(reason)
		}
		judged = object.Meta
	}
	return failedWith(errors.New(reasonKeptChanging))
}

// again is the reason to spare a victim that was read anew; "" if there is none.
func (b *blow) again(object *chaos.Object, victim *chaos.Victim) string {
	if object.Meta.UID != victim.Meta.UID {
		return reasonGone
	}
	return b.filter.Exclude(object)
}

func unreadable(err error) result {
	if apierrors.IsNotFound(err) {
		return sparedBecause(reasonGone)
	}
	return failedWith(err)
}

func (b *blow) remove(ctx context.Context, judged *metav1.ObjectMeta) error {
	spec := &b.agent.Spec
	preconditions := metav1.Preconditions{UID: &judged.UID, ResourceVersion: &judged.ResourceVersion}
	if spec.PodKillMethod != v1beta1.PodKillMethodEvict {
		options := &client.DeleteOptions{Preconditions: &preconditions, GracePeriodSeconds: spec.GracePeriodSeconds}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: judged.Namespace, Name: judged.Name}}
		return b.reconciler.client.Delete(ctx, pod, options)
	}
	eviction := &policyv1.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Namespace: judged.Namespace, Name: judged.Name},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: &preconditions, GracePeriodSeconds: spec.GracePeriodSeconds},
	}
	return b.reconciler.evictions.Post().Namespace(judged.Namespace).Resource("pods").Name(judged.Name).SubResource("eviction").
		MaxRetries(0).Body(eviction).Do(ctx).Error()
}

// scaleUp doubles a Deployment's replicas, after the journal knows of it.
func (b *blow) scaleUp(ctx context.Context, victim *chaos.Victim) result {
	if b.resumed && !chaos.RestoreWanted(&b.agent.Spec) {
		return sparedBecause(reasonUnknownScaling)
	}
	object := victim.Object
	for attempt := range attempts {
		if attempt > 0 || b.resumed {
			var deployment appsv1.Deployment
			if err := b.reconciler.live.Get(ctx, client.ObjectKey{Namespace: victim.Meta.Namespace, Name: victim.Meta.Name}, &deployment); err != nil {
				return unreadable(err)
			}
			var err error
			if object, err = b.reconciler.survey.DeploymentObject(ctx, &deployment); err != nil {
				return failedWith(err)
			}
			if b.resumed {
				if hit, err := b.scaledBefore(ctx, &object); err != nil || hit {
					return resultOf(err)
				}
			}
			if reason := b.again(&object, victim); reason != "" {
				return sparedBecause(reason)
			}
		}
		replicas := object.Deployment.Replicas
		to := chaos.Doubled(&b.agent.Spec, replicas)
		err := b.note(ctx, &object, func(entry chaos.Entry, previous *record) (chaos.Entry, map[string]string) {
			if previous == nil {
				return entry.WithScaling(nil, replicas, to), nil
			}
			return entry.WithScaling(&previous.Entry, replicas, to), nil
		})
		if err != nil {
			return noteFailed(err)
		}
		err = b.reconciler.scale(ctx, &object.Meta, to)
		if err == nil {
			return result{verdict: done, reason: fmt.Sprintf("from %d to %d replicas", replicas, to)}
		}
		if !apierrors.IsConflict(err) {
			return unreadable(err)
		}
	}
	return failedWith(errors.New(reasonKeptChanging))
}

func resultOf(err error) result {
	if err != nil {
		return failedWith(err)
	}
	return result{verdict: done, reason: "before the cycle was interrupted"}
}

// scaledBefore tells whether this very cycle has scaled the Deployment already.
func (b *blow) scaledBefore(ctx context.Context, object *chaos.Object) (bool, error) {
	known, err := b.known(ctx, object)
	return known != nil && known.Scaled(object.Deployment.Replicas), err
}

// known is the journal's entry of an object, if it is of this very cycle.
func (b *blow) known(ctx context.Context, object *chaos.Object) (*record, error) {
	known, err := b.reconciler.journal.read(ctx, object.Key())
	if err != nil || known == nil || known.AgentUID != b.agent.UID || known.UID != object.Meta.UID || known.Cycle != b.cycle {
		return nil, err
	}
	return known, nil
}

// note writes to the journal what is about to be done, unless nothing is going to be put back.
func (b *blow) note(ctx context.Context, object *chaos.Object, next func(chaos.Entry, *record) (chaos.Entry, map[string]string)) error {
	if !chaos.RestoreWanted(&b.agent.Spec) {
		return nil
	}
	entry := chaos.Entry{
		Agent: b.agent.Name, AgentUID: b.agent.UID, Mode: object.Mode,
		Namespace: object.Meta.Namespace, Name: object.Meta.Name, UID: object.Meta.UID, Cycle: b.cycle,
	}
	return b.reconciler.journal.note(ctx, object.Key(), b.agent.UID, func(previous *record) (chaos.Entry, map[string]string) {
		return next(entry, previous)
	})
}

func noteFailed(err error) result {
	if errors.Is(err, errHeldByAnother) {
		return sparedBecause(chaos.ExcludedByAnotherAgent)
	}
	return failedWith(err)
}

// scale sets the replicas of the very Deployment that was judged, as it was then.
func (r *Reconciler) scale(ctx context.Context, judged *metav1.ObjectMeta, replicas int32) error {
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: judged.Namespace, Name: judged.Name}}
	scale := &autoscalingv1.Scale{
		ObjectMeta: metav1.ObjectMeta{Namespace: judged.Namespace, Name: judged.Name, UID: judged.UID, ResourceVersion: judged.ResourceVersion},
		Spec:       autoscalingv1.ScaleSpec{Replicas: replicas},
	}
	return r.client.SubResource("scale").Update(ctx, deployment, client.WithSubResourceBody(scale), client.FieldOwner(Name))
}

// overwrite overwrites a ConfigMap's values, after the journal has the original ones.
func (b *blow) overwrite(ctx context.Context, victim *chaos.Victim) result {
	for range attempts {
		var configMap corev1.ConfigMap
		if err := b.reconciler.live.Get(ctx, client.ObjectKey{Namespace: victim.Meta.Namespace, Name: victim.Meta.Name}, &configMap); err != nil {
			return unreadable(err)
		}
		object := survey.ConfigMapObject(&configMap)
		if b.resumed {
			if known, err := b.known(ctx, &object); err != nil || (known != nil && known.Overwritten(configMap.Data)) {
				return resultOf(err)
			}
		}
		if reason := b.again(&object, victim); reason != "" {
			return sparedBecause(reason)
		}
		text := chaos.Lorem(b.seed, b.cycle, object.Key(), configMap.Data, configMap.BinaryData)
		if text == "" {
			return sparedBecause(reasonTooManyKeys)
		}
		err := b.note(ctx, &object, func(entry chaos.Entry, previous *record) (chaos.Entry, map[string]string) {
			if previous == nil {
				return entry.WithText(nil, nil, configMap.Data, text)
			}
			return entry.WithText(&previous.Entry, previous.originals, configMap.Data, text)
		})
		if err != nil {
			return noteFailed(err)
		}
		for name := range configMap.Data {
			configMap.Data[name] = text
		}
		err = b.reconciler.client.Update(ctx, &configMap, client.FieldOwner(Name))
		if err == nil {
			return result{verdict: done, reason: fmt.Sprintf("%d values", len(configMap.Data))}
		}
		if !apierrors.IsConflict(err) {
			return unreadable(err)
		}
	}
	return failedWith(errors.New(reasonKeptChanging))
}
