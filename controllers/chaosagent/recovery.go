// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package chaosagent

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"blackadder.io/blackadder/api/blackadder/v1beta1"
	"blackadder.io/blackadder/internal/chaos"
)

// tracker watches the workloads that agents hit until they are available again. What it knows is lost with the process, but for
// what stands in the agents' status.
type tracker struct {
	cache cache.Cache
	clock clock.PassiveClock
	// recovered wakes the reconciliation of an agent that has something to tell.
	recovered chan event.GenericEvent
	// onRecovered is told of each recovery.
	onRecovered func(chaos.Recovered)

	watching sync.Mutex
	watched  bool

	mutex  sync.Mutex
	agents map[string]*tracked
}

// tracked is what is known of one agent's hits.
type tracked struct {
	uid      types.UID
	pending  map[chaos.Workload]chaos.Hit
	measured []chaos.Recovered
	// woken tells that a wake-up is on its way.
	woken bool
}

// wakeUps bounds the wake-ups on their way; there is at most one for each agent.
const wakeUps = 1024

func newTracker(watches cache.Cache, passive clock.PassiveClock) *tracker {
	return &tracker{
		cache: watches, clock: passive, recovered: make(chan event.GenericEvent, wakeUps),
		onRecovered: func(chaos.Recovered) {}, agents: map[string]*tracked{},
	}
}

// stripWorkload leaves of a StatefulSet or DaemonSet what tells whether it is available.
func stripWorkload(in any) (any, error) {
	switch workload := in.(type) {
	case *appsv1.StatefulSet:
		workload.ManagedFields, workload.Annotations = nil, nil
		workload.Spec = appsv1.StatefulSetSpec{Replicas: workload.Spec.Replicas}
	case *appsv1.DaemonSet:
		workload.ManagedFields, workload.Annotations = nil, nil
		workload.Spec = appsv1.DaemonSetSpec{}
	}
	return in, nil
}

// watch begins to watch workloads, once, when the first of them is going to be hit.
func (t *tracker) watch(ctx context.Context) error {
	t.watching.Lock()
	defer t.watching.Unlock()
	if t.watched {
		return nil
	}
	for _, kind := range []client.Object{&appsv1.Deployment{}, &appsv1.StatefulSet{}, &appsv1.DaemonSet{}} {
		informer, err := t.cache.GetInformer(ctx, kind)
		if err != nil {
			return fmt.Errorf("watching %T: %w", kind, err)
		}
		_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc:    t.see,
			UpdateFunc: func(_, object any) { t.see(object) },
			DeleteFunc: t.lose,
		})
		if err != nil {
			return fmt.Errorf("watching %T: %w", kind, err)
		}
	}
	t.watched = true
	return nil
}

// availability tells which workload an object is, and whether all that it wants is available.
func availability(object any) (workload chaos.Workload, available, is bool) {
	switch o := object.(type) {
	case *appsv1.Deployment:
		return named("Deployment", o), o.Status.ObservedGeneration >= o.Generation && o.Status.AvailableReplicas >= ptr.Deref(o.Spec.Replicas, 1), true
	case *appsv1.StatefulSet:
		return named("StatefulSet", o), o.Status.ObservedGeneration >= o.Generation && o.Status.AvailableReplicas >= ptr.Deref(o.Spec.Replicas, 1), true
	case *appsv1.DaemonSet:
		return named("DaemonSet", o), o.Status.ObservedGeneration >= o.Generation && o.Status.NumberAvailable >= o.Status.DesiredNumberScheduled, true
	}
	return chaos.Workload{}, false, false
}

func named(kind string, object metav1.Object) chaos.Workload {
	return chaos.Workload{Kind: kind, Namespace: object.GetNamespace(), Name: object.GetName()}
}

// workloadOf finds the workload that a pod belongs to, or that a Deployment is. A pod of a Deployment belongs to a ReplicaSet,
// whose name is that of the Deployment and the hash of the pod's template.
func workloadOf(object *chaos.Object) (workload chaos.Workload, is bool) {
	if object.Mode == chaos.Cancer {
		return named("Deployment", &object.Meta), true
	}
	owner := metav1.GetControllerOf(&object.Meta)
	if owner == nil || owner.APIVersion != appsv1.SchemeGroupVersion.String() {
		return workload, false
	}
	workload = chaos.Workload{Kind: owner.Kind, Namespace: object.Meta.Namespace, Name: owner.Name}
	switch owner.Kind {
	case "StatefulSet", "DaemonSet":
		return workload, true
	case "ReplicaSet":
		hash := object.Meta.Labels[appsv1.DefaultDeploymentUniqueLabelKey]
		name, found := strings.CutSuffix(owner.Name, "-"+hash)
		workload.Kind, workload.Name = "Deployment", name
		return workload, found && hash != ""
	}
	return workload, false
}

// hit begins to measure, unless the object belongs to no workload or its workload is on its way back from an earlier hit. If the
// hit turns out to have missed, the returned function takes it back.
func (t *tracker) hit(agent string, object *chaos.Object) (missed func()) {
	workload, is := workloadOf(object)
	if !is {
		return func() {}
	}
	t.mutex.Lock()
	defer t.mutex.Unlock()
	tracked := t.of(agent)
	if _, already := tracked.pending[workload]; already {
		return func() {}
	}
	hit := chaos.Hit{Since: t.clock.Now()}
	tracked.pending[workload] = hit
	return func() {
		t.mutex.Lock()
		defer t.mutex.Unlock()
		// Another victim of the same workload may have been hit meanwhile, but nothing was seen of it yet.
		if tracked.pending[workload] == hit {
			delete(tracked.pending, workload)
		}
	}
}

// of is what is tracked for an agent. The mutex is held.
func (t *tracker) of(agent string) *tracked {
	if t.agents[agent] == nil {
		t.agents[agent] = &tracked{pending: map[chaos.Workload]chaos.Hit{}}
	}
	return t.agents[agent]
}

func (t *tracker) see(object any) {
	workload, available, is := availability(object)
	if !is {
		return
	}
	now := t.clock.Now()
	t.mutex.Lock()
	defer t.mutex.Unlock()
	for name, tracked := range t.agents {
		t.observe(name, tracked, workload, available, now)
	}
}

// observe takes a look at a workload into account. The mutex is held.
func (t *tracker) observe(agent string, tracked *tracked, workload chaos.Workload, available bool, now time.Time) {
	hit, is := tracked.pending[workload]
	if !is {
		return
	}
	next, recovered, took := hit.Observe(available, now)
	if !recovered {
		tracked.pending[workload] = next
		return
	}
	delete(tracked.pending, workload)
	one := chaos.Recovered{Workload: workload, Took: took}
	tracked.measured = append(tracked.measured, one)
	t.onRecovered(one)
	if tracked.woken {
		return
	}
	select {
	case t.recovered <- event.GenericEvent{Object: &v1beta1.ChaosAgent{ObjectMeta: metav1.ObjectMeta{Name: agent}}}:
		tracked.woken = true
	default:
		// The agent's next look comes by itself.
	}
}

// lose forgets a workload that was deleted: it will not be available again.
func (t *tracker) lose(object any) {
	if unknown, is := object.(toolscache.DeletedFinalStateUnknown); is {
		object = unknown.Obj
	}
	workload, _, is := availability(object)
	if !is {
		return
	}
	t.mutex.Lock()
	defer t.mutex.Unlock()
	for _, tracked := range t.agents {
		delete(tracked.pending, workload)
	}
}

// adopt takes up the measurements of an earlier process from the status of an agent that is seen for the first time. What
// recovered while nobody watched is measured until it is seen.
func (t *tracker) adopt(ctx context.Context, agent *v1beta1.ChaosAgent) error {
	t.mutex.Lock()
	tracked := t.of(agent.Name)
	fresh := tracked.uid != agent.UID
	if fresh {
		*tracked = *newTracked(agent)
	}
	adopted := len(tracked.pending)
	t.mutex.Unlock()
	if !fresh || adopted == 0 {
		return nil
	}
	if err := t.watch(ctx); err != nil {
		return err
	}
	return t.lookAgain(ctx, agent.Name)
}

func newTracked(agent *v1beta1.ChaosAgent) *tracked {
	fresh := &tracked{uid: agent.UID, pending: map[chaos.Workload]chaos.Hit{}}
	if agent.Status.Recovery != nil {
		for _, one := range agent.Status.Recovery.Unrecovered {
			fresh.pending[chaos.Workload{Kind: one.Kind, Namespace: one.Namespace, Name: one.Name}] = chaos.Hit{Since: one.Since.Time, Down: true}
		}
	}
	return fresh
}

// lookAgain looks at all pending workloads of an agent, for those of which no event tells: they were never seen unavailable, or
// are gone.
func (t *tracker) lookAgain(ctx context.Context, agent string) error {
	t.mutex.Lock()
	var workloads []chaos.Workload
	for workload := range t.of(agent).pending {
		workloads = append(workloads, workload)
	}
	t.mutex.Unlock()
	for _, workload := range workloads {
		object := map[string]client.Object{"Deployment": &appsv1.Deployment{}, "StatefulSet": &appsv1.StatefulSet{}, "DaemonSet": &appsv1.DaemonSet{}}[workload.Kind]
		if object == nil {
			continue
		}
		err := t.cache.Get(ctx, client.ObjectKey{Namespace: workload.Namespace, Name: workload.Name}, object)
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("looking at %s: %w", workload, err)
		}
		_, available, _ := availability(object)
		t.mutex.Lock()
		if err != nil {
			delete(t.of(agent).pending, workload)
		} else {
			t.observe(agent, t.of(agent), workload, available, t.clock.Now())
		}
		t.mutex.Unlock()
	}
	return nil
}

// due tells whether the agent has workloads that have been available for so long after their hit that they count as never
// unavailable.
func (t *tracker) due(agent string) bool {
	at := t.nextLook(agent)
	return !at.IsZero() && !t.clock.Now().Before(at)
}

// nextLook is when to look at the agent's workloads again, if no event makes it earlier; zero for never.
func (t *tracker) nextLook(agent string) time.Time {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	var soonest time.Time
	for _, hit := range t.of(agent).pending {
		if at := hit.Since.Add(chaos.NeverDown); !hit.Down && (soonest.IsZero() || at.Before(soonest)) {
			soonest = at
		}
	}
	return soonest
}

// report takes what was measured since the last report, and a copy of what is pending.
func (t *tracker) report(agent string) (measured []chaos.Recovered, pending map[chaos.Workload]chaos.Hit) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	tracked := t.of(agent)
	measured, tracked.measured, tracked.woken = tracked.measured, nil, false
	pending = make(map[chaos.Workload]chaos.Hit, len(tracked.pending))
	for workload, hit := range tracked.pending {
		pending[workload] = hit
	}
	return measured, pending
}

// unreport gives back what could not be told.
func (t *tracker) unreport(agent string, measured []chaos.Recovered) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	tracked := t.of(agent)
	tracked.measured = append(measured, tracked.measured...)
}

// forget drops an agent that is gone.
func (t *tracker) forget(agent string) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	delete(t.agents, agent)
}
