// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package chaosagent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"blackadder.io/blackadder/api/blackadder/v1beta1"
	"blackadder.io/blackadder/internal/chaos"
)

// fate is what became of a change that was to be put back.
type fate string

const (
	// restored: it is as it was.
	restored fate = "restored"
	// left: somebody else has changed it since.
	left fate = "left"
	// gone: the object is not there any more.
	gone fate = "gone"
	// pending: it could not be put back yet.
	pending fate = "pending"
	// abandoned: it could not be put back in time.
	abandoned fate = "abandoned"
)

// stop puts back what an agent has changed, as far as it is wanted and possible.
func (r *Reconciler) stop(ctx context.Context, agent *v1beta1.ChaosAgent) (chaos.Restoration, error) {
	records, err := r.journal.ofAgent(ctx, agent.UID)
	if err != nil || len(records) == 0 {
		return chaos.Restoration{}, err
	}
	if !chaos.RestoreWanted(&agent.Spec) {
		// What is wanted to stay needs no entry any more.
		for _, one := range records {
			err = errors.Join(err, r.journal.drop(ctx, one))
		}
		return chaos.Restoration{}, err
	}
	fates, failing := r.putBackAll(ctx, records)
	if ctx.Err() != nil {
		return chaos.Restoration{}, ctx.Err()
	}
	if agent.DeletionTimestamp != nil && r.clock.Since(agent.DeletionTimestamp.Time) > restoreDeadline {
		failing, err = r.giveUp(ctx, agent, fates, failing)
	}
	r.tellRestored(agent, fates, failing)
	return chaos.Restoration{Held: fates[pending], Failing: failing}, err
}

// putBackAll puts back what the entries are about. It counts the fates, and returns the errors of those that are pending.
func (r *Reconciler) putBackAll(ctx context.Context, records []record) (map[fate]int, string) {
	var mutex sync.Mutex
	fates := map[fate]int{}
	var faults []string
	workqueue.ParallelizeUntil(ctx, workers, len(records), func(i int) {
		became, err := r.putBack(ctx, records[i])
		mutex.Lock()
		defer mutex.Unlock()
		fates[became]++
		r.metrics.restored(records[i].Mode, became)
		if err != nil {
			faults = append(faults, fmt.Sprintf("%s: %v", &records[i].Entry, err))
		}
	})
	if len(faults) == 0 {
		return fates, ""
	}
	// The same faults have to make the same message.
	slices.Sort(faults)
	return fates, faults[0]
}

// putBack puts back what one entry is about, and then removes the entry. A crash in between finds the object as it was, and
// goes on from there.
func (r *Reconciler) putBack(ctx context.Context, one record) (fate, error) {
	restore := r.restoreReplicas
	if one.Mode == chaos.Ipsum {
		restore = r.restoreData
	}
	became, err := restore(ctx, one)
	if err != nil {
		return pending, err
	}
	if err := r.journal.drop(ctx, one); err != nil {
		return pending, err
	}
	if became == restored {
		r.tellPutBack(one)
	}
	return became, nil
}

func (r *Reconciler) restoreReplicas(ctx context.Context, one record) (fate, error) {
	var err error
	for range attempts {
		var scale autoscalingv1.Scale
		deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: one.Namespace, Name: one.Name}}
		if err := r.client.SubResource("scale").Get(ctx, deployment, &scale); err != nil {
			return goneUnless(err)
		}
		if scale.UID != one.UID {
			return gone, nil
		}
		to, restore := one.RestoredReplicas(scale.Spec.Replicas)
		if !restore {
			return untouched(scale.Spec.Replicas == one.Replicas), nil
		}
		if err = r.scale(ctx, &scale.ObjectMeta, to); err == nil {
			return restored, nil
		}
		if !apierrors.IsConflict(err) {
			return goneUnless(err)
		}
	}
	return pending, err
}

func (r *Reconciler) restoreData(ctx context.Context, one record) (fate, error) {
	kept, err := r.journal.read(ctx, one.Key())
	if err != nil {
		return pending, err
	}
	if kept == nil || kept.secret.UID != one.secret.UID {
		return gone, nil
	}
	for range attempts {
		var configMap corev1.ConfigMap
		if err := r.live.Get(ctx, client.ObjectKey{Namespace: one.Namespace, Name: one.Name}, &configMap); err != nil {
			return goneUnless(err)
		}
		if configMap.UID != one.UID {
			return gone, nil
		}
		data, restore := kept.RestoredData(kept.originals, configMap.Data)
		if !restore {
			return untouched(maps.Equal(configMap.Data, kept.originals)), nil
		}
		configMap.Data = data
		if err = r.client.Update(ctx, &configMap, client.FieldOwner(Name)); err == nil {
			return restored, nil
		}
		if !apierrors.IsConflict(err) {
			return goneUnless(err)
		}
	}
	return pending, err
}

func untouched(asItWas bool) fate {
	if asItWas {
		return restored
	}
	return left
}

func goneUnless(err error) (fate, error) {
	if apierrors.IsNotFound(err) {
		return gone, nil
	}
	return pending, err
}

// giveUp lets a deleted agent go in the end. The entries stay, so that nothing is lost that a person could still put back.
func (r *Reconciler) giveUp(ctx context.Context, agent *v1beta1.ChaosAgent, fates map[fate]int, failing string) (string, error) {
	if fates[pending] == 0 {
		return failing, nil
	}
	remaining, err := r.journal.ofAgent(ctx, agent.UID)
	if err != nil {
		return failing, err
	}
	for _, one := range remaining {
		if err := r.journal.abandon(ctx, one); err != nil {
			return failing, err
		}
		r.metrics.restored(one.Mode, abandoned)
		r.tellAbandoned(agent, one)
	}
	delete(fates, pending)
	return failing, nil
}

// restoreLeftovers puts back what agents of this name left behind that are gone, because somebody removed their finalizer. It
// returns when to try again, zero if that is not needed.
func (r *Reconciler) restoreLeftovers(ctx context.Context, name string, agent *v1beta1.ChaosAgent) (time.Duration, error) {
	all, err := r.journal.list(ctx, labels.Everything())
	if err != nil {
		return 0, err
	}
	var leftovers []record
	for _, one := range all {
		if one.Agent == name && one.secret.Labels[chaos.JournalLabel] != chaos.JournalAbandoned && (agent == nil || one.AgentUID != agent.UID) {
			leftovers = append(leftovers, one)
		}
	}
	if len(leftovers) == 0 {
		return 0, nil
	}
	// The cache may know an entry before it knows its agent.
	var live v1beta1.ChaosAgent
	if err := r.live.Get(ctx, client.ObjectKey{Name: name}, &live); client.IgnoreNotFound(err) != nil {
		return 0, fmt.Errorf("reading the ChaosAgent: %w", err)
	}
	leftovers = slices.DeleteFunc(leftovers, func(one record) bool { return one.AgentUID == live.UID })
	fates, _ := r.putBackAll(ctx, leftovers)
	if fates[pending] > 0 {
		return restoreRetry, nil
	}
	return 0, nil
}
