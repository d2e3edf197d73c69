// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package immortal

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"blackadder.io/blackadder/api/immortalcontainer/v1alpha1"
)

func at(offset time.Duration) *metav1.Time { return ptr.To(metav1.NewTime(now.Add(offset))) }

func withStatus(status v1alpha1.ImmortalContainerStatus) *v1alpha1.ImmortalContainer {
	return container(func(c *v1alpha1.ImmortalContainer) { c.Status = status })
}

func ready(pod *corev1.Pod) {
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
}

func TestNextStep(t *testing.T) {
	backingOffStatus := v1alpha1.ImmortalContainerStatus{
		RestartBackoffUntil: at(3 * time.Second), ConsecutiveExits: 2,
		LastExit: &v1alpha1.ExitStatus{Start: 1, Reason: "Evicted"},
	}
	backoffOver := *backingOffStatus.DeepCopy()
	backoffOver.RestartBackoffUntil = at(0)
	hanging := func(pod *corev1.Pod) { pod.DeletionTimestamp = at(-time.Minute) }

	for name, c := range map[string]struct {
		in   Observation
		want Step
	}{
		"no pod": {
			Observation{Container: container()},
			Step{Action: ActionCreate, Reason: "PodNotReady", Message: `pod "db-immortalpod" is being created`},
		},
		"no pod, in backoff": {
			Observation{Container: withStatus(backingOffStatus)},
			Step{Action: ActionNone, Reason: "BackingOff", RequeueAfter: 3 * time.Second, Message: `the last pod ended (Evicted), 2 in a row: the next one is created after 2026-11-21T12:00:03Z`},
		},
		"no pod, backoff over": {
			Observation{Container: withStatus(backoffOver)},
			Step{Action: ActionCreate, Reason: "PodNotReady", Message: `pod "db-immortalpod" is being created`},
		},
		"ready": {
			Observation{Container: container(), Pod: livePod(ready)},
			Step{Action: ActionNone, Reason: "PodReady", Message: `pod "db-immortalpod" is ready`},
		},
		"running, not ready": {
			Observation{Container: container(), Pod: livePod()},
			Step{Action: ActionNone, Reason: "PodNotReady", Message: `pod "db-immortalpod" is Running and not ready yet`},
		},
		"image cannot be pulled": {
			Observation{Container: container(), Pod: livePod(func(p *corev1.Pod) {
				p.Status.Phase = corev1.PodPending
				p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}}}}
			})},
			Step{Action: ActionNone, Reason: "PodNotReady", Message: `pod "db-immortalpod" is Pending: its container waits (ImagePullBackOff)`},
		},
		"unschedulable": {
			Observation{Container: container(), Pod: livePod(unscheduled, func(p *corev1.Pod) {
				p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/3 nodes are available"}}
			})},
			Step{Action: ActionNone, Reason: "PodUnschedulable", Message: `pod "db-immortalpod" is not scheduled: 0/3 nodes are available`},
		},
		"spec changed": {
			Observation{Container: container(func(c *v1alpha1.ImmortalContainer) { c.Spec.Image = "nginx:2" }), Pod: livePod(ready)},
			Step{Action: ActionDelete, UID: "pod-1", Reason: "Replacing", Message: `the spec changed: pod "db-immortalpod" is terminated, and a new one is created when it is gone`},
		},
		"terminating": {
			Observation{Container: container(), Pod: livePod(func(p *corev1.Pod) { p.DeletionTimestamp = at(30 * time.Second) })},
			Step{Action: ActionNone, Reason: "PodTerminating", RequeueAfter: 35 * time.Second, Message: `pod "db-immortalpod" is terminating: a new one is created when it is gone`},
		},
		"terminating, and of an old spec": {
			Observation{Container: container(func(c *v1alpha1.ImmortalContainer) { c.Spec.Image = "nginx:2" }), Pod: livePod(terminating)},
			Step{Action: ActionNone, Reason: "PodTerminating", RequeueAfter: 5 * time.Second, Message: `pod "db-immortalpod" is terminating: a new one is created when it is gone`},
		},
		"hanging on a lost node": {
			Observation{Container: container(), Pod: livePod(hanging), Node: &NodeFacts{Name: "n1", Exists: true}},
			Step{Action: ActionNone, Reason: "NodeLost", RequeueAfter: 30 * time.Second, Message: `pod "db-immortalpod" cannot finish terminating: its node "n1" does not answer, and the container may still run there. ` +
				`It comes back when the node does, when the Node object is deleted, or when the node carries the taint node.kubernetes.io/out-of-service:NoExecute`},
		},
		"hanging on a ready node": {
			Observation{Container: container(), Pod: livePod(hanging, func(p *corev1.Pod) { p.Finalizers = []string{"a/b"} }), Node: &NodeFacts{Name: "n1", Exists: true, Ready: true}},
			Step{Action: ActionNone, Reason: "PodTerminating", RequeueAfter: 30 * time.Second, Message: `pod "db-immortalpod" should have terminated by 2026-11-21T11:59:00Z, but its node "n1" has not confirmed it yet (finalizers ["a/b"] hold it): a new one is created when it is gone`},
		},
		"ended, not in the status yet: no removal before the status": {
			Observation{Container: container(), Pod: livePod(failed)},
			Step{Action: ActionNone, Reason: "BackingOff", RequeueAfter: time.Second, Message: `the last pod ended (Failed), 1 in a row: the next one is created after 2026-11-21T12:00:01Z`},
		},
		"ended, in backoff": {
			Observation{Container: withStatus(backingOffStatus), Pod: livePod(failed)},
			Step{Action: ActionNone, Reason: "BackingOff", RequeueAfter: 3 * time.Second, Message: `the last pod ended (Evicted), 2 in a row: the next one is created after 2026-11-21T12:00:03Z`},
		},
		"no pod, in backoff, but the spec changed": {
			Observation{Container: container(func(c *v1alpha1.ImmortalContainer) {
				c.Status, c.Generation = *backingOffStatus.DeepCopy(), 2
				c.Status.ObservedGeneration = 1
			})},
			Step{Action: ActionCreate, Reason: "PodNotReady", Message: `pod "db-immortalpod" is being created`},
		},
		"terminating without a node, held by a finalizer": {
			Observation{Container: container(), Pod: livePod(hanging, unscheduled, func(p *corev1.Pod) { p.Finalizers = []string{"a/b"} })},
			Step{Action: ActionNone, Reason: "PodTerminating", RequeueAfter: 30 * time.Second, Message: `pod "db-immortalpod" is terminating (finalizers ["a/b"] hold it): a new one is created when it is gone`},
		},
		"refused, with a pod of the old spec": {
			Observation{Container: container(), Pod: livePod(ready), Refusal: &Refusal{Reason: "PodSecurityViolation", Message: "no"}},
			Step{Action: ActionNone, Reason: "PodSecurityViolation", RequeueAfter: 15 * time.Second, Message: `the changed pod would be refused, and pod "db-immortalpod" of the old spec is kept: no`},
		},
		"ended, backoff over": {
			Observation{Container: withStatus(backoffOver), Pod: livePod(failed)},
			Step{Action: ActionDelete, UID: "pod-1", Reason: "BackingOff", Message: `pod "db-immortalpod" ended (Evicted): it is removed and created again`},
		},
		"pod of an earlier container of the name": {
			Observation{Container: container(func(c *v1alpha1.ImmortalContainer) { c.UID = "owner-2" }), Pod: livePod()},
			Step{Action: ActionNone, Reason: "PodTerminating", RequeueAfter: 15 * time.Second, Message: `pod "db-immortalpod" belongs to an earlier ImmortalContainer of this name: the garbage collector removes it, then a new one is created`},
		},
		"foreign pod": {
			Observation{Container: container(), Pod: livePod(plain)},
			Step{Action: ActionNone, Reason: "NameConflict", RequeueAfter: 15 * time.Second, Message: `a pod named "db-immortalpod" that does not belong to this ImmortalContainer (it has no controller) holds its pod's name: remove or rename that pod, or use another name here`},
		},
		"foreign pod with an owner": {
			Observation{Container: container(), Pod: livePod(func(p *corev1.Pod) {
				p.OwnerReferences[0].Kind, p.OwnerReferences[0].Name, p.OwnerReferences[0].UID = "Job", "x", "job-1"
			})},
			Step{Action: ActionNone, Reason: "NameConflict", RequeueAfter: 15 * time.Second, Message: `a pod named "db-immortalpod" that does not belong to this ImmortalContainer (it belongs to Job "x") holds its pod's name: remove or rename that pod, or use another name here`},
		},
		"labels lost": {
			Observation{Container: container(), Pod: livePod(func(p *corev1.Pod) { p.Labels = nil })},
			Step{Action: ActionRelabel, UID: "pod-1", Reason: "PodNotReady", Message: `pod "db-immortalpod" gets its protecting labels back`},
		},
		"refused": {
			Observation{Container: container(), Refusal: &Refusal{Reason: "QuotaExceeded", Message: "no room"}},
			Step{Action: ActionNone, Reason: "QuotaExceeded", Message: "no room", RequeueAfter: 15 * time.Second},
		},
		"refused for good": {
			Observation{Container: container(), Refusal: &Refusal{Reason: "NamespaceTerminating", Message: "going", Final: true}},
			Step{Action: ActionNone, Reason: "NamespaceTerminating", Message: "going"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			c.in.Now = now
			before := c.in.Container.DeepCopy()
			if diff := cmp.Diff(c.want, NextStep(c.in)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if diff := cmp.Diff(before, c.in.Container); diff != "" {
				t.Errorf("NextStep changed what it was given:\n%s", diff)
			}
		})
	}
}

func TestNextStatusCountsEachStartOnce(t *testing.T) {
	pod := livePod()
	o := Observation{Container: container(), Pod: pod, Now: now}
	created := NextStatus(o, NextStep(o))
	if created.StartTimes != 1 || created.CurrentPod != "db-immortalpod" || created.LastStartTime == nil {
		t.Fatalf("after the first creation: %+v", created)
	}
	// A crash before that status was written: the next operator finds the pod and no status.
	afterCrash := Observation{Container: container(), Pod: pod, Now: now}
	if diff := cmp.Diff(created.StartTimes, NextStatus(afterCrash, NextStep(afterCrash)).StartTimes); diff != "" {
		t.Errorf("after a crash: %s", diff)
	}
	// A crash after it: the pod is counted already.
	counted := Observation{Container: withStatus(created), Pod: pod, Now: now}
	if diff := cmp.Diff(created, NextStatus(counted, NextStep(counted)), ignoreConditions); diff != "" {
		t.Errorf("counted again: %s", diff)
	}
	if next := Pod(withStatus(created), created.StartTimes+1); Start(next) != 2 {
		t.Errorf("the second pod says start %d", Start(next))
	}
}

var ignoreConditions = cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() == ".Conditions" }, cmp.Ignore())

func TestNextStatusRecordsAnExitOnce(t *testing.T) {
	pod := livePod(failed, func(p *corev1.Pod) {
		p.CreationTimestamp = *at(-time.Minute)
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{
			Name:  v1alpha1.ContainerName,
			State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled", Message: "too much", FinishedAt: *at(-2 * time.Second)}},
		}}
	})
	o := Observation{Container: container(), Pod: pod, Now: now}
	first := NextStatus(o, NextStep(o))
	want := &v1alpha1.ExitStatus{Start: 1, Phase: corev1.PodFailed, Reason: "OOMKilled", ExitCode: ptr.To[int32](137), Message: "too much", FinishedAt: at(-2 * time.Second)}
	if diff := cmp.Diff(want, first.LastExit); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if first.ConsecutiveExits != 1 || !first.RestartBackoffUntil.Equal(at(time.Second)) {
		t.Errorf("after the first exit: %d in a row, until %v", first.ConsecutiveExits, first.RestartBackoffUntil)
	}
	again := Observation{Container: withStatus(first), Pod: pod, Now: now.Add(time.Second / 2)}
	if diff := cmp.Diff(first, NextStatus(again, NextStep(again))); diff != "" {
		t.Errorf("the same exit changed the status again:\n%s", diff)
	}
}

func TestExitsInARow(t *testing.T) {
	exit := func(status v1alpha1.ImmortalContainerStatus, lived time.Duration) v1alpha1.ImmortalContainerStatus {
		c := withStatus(status)
		pod := Pod(c, status.StartTimes+1)
		pod.CreationTimestamp = *at(-lived)
		failed(pod)
		o := Observation{Container: c, Pod: pod, Now: now}
		return NextStatus(o, NextStep(o))
	}
	status := v1alpha1.ImmortalContainerStatus{}
	for n := int32(1); n <= 3; n++ {
		if status = exit(status, time.Minute); status.ConsecutiveExits != n {
			t.Fatalf("after exit %d: %d in a row", n, status.ConsecutiveExits)
		}
	}
	if status = exit(status, 10*time.Minute); status.ConsecutiveExits != 1 {
		t.Errorf("a pod that lived 10 minutes: %d in a row", status.ConsecutiveExits)
	}
}

func TestReplacingStartsTheBackoffAnew(t *testing.T) {
	status := v1alpha1.ImmortalContainerStatus{StartTimes: 1, ConsecutiveExits: 7, RestartBackoffUntil: at(time.Minute), LastExit: &v1alpha1.ExitStatus{Start: 1}}
	status.ObservedGeneration = 1
	c := withStatus(status)
	c.Spec.Image, c.Generation = "nginx:fixed", 2
	o := Observation{Container: c, Pod: livePod(failed), Now: now}
	step := NextStep(o)
	if step.Action != ActionDelete {
		t.Fatalf("got %+v", step)
	}
	if got := NextStatus(o, step); got.ConsecutiveExits != 0 || got.RestartBackoffUntil != nil {
		t.Errorf("got %d in a row until %v", got.ConsecutiveExits, got.RestartBackoffUntil)
	}
}

func TestSettledStatusStaysTheSame(t *testing.T) {
	o := Observation{Container: container(), Pod: livePod(ready), Now: now}
	status := NextStatus(o, NextStep(o))
	later := Observation{Container: withStatus(status), Pod: o.Pod, Now: now.Add(time.Hour)}
	if diff := cmp.Diff(status, NextStatus(later, NextStep(later))); diff != "" {
		t.Errorf("an hour later:\n%s", diff)
	}
	if next := NextLook(later, NextStep(later)); next != 0 {
		t.Errorf("looks again after %s", next)
	}
}

func TestProtectedConditionFollowsTheGlass(t *testing.T) {
	c := container(func(c *v1alpha1.ImmortalContainer) {
		c.Annotations = map[string]string{v1alpha1.UnprotectedUntilAnnotation: "2026-11-21T12:10:00Z"}
	})
	o := Observation{Container: c, Pod: livePod(ready), Now: now}
	lifted := meta.FindStatusCondition(NextStatus(o, NextStep(o)).Conditions, v1alpha1.ConditionProtected)
	if lifted.Status != metav1.ConditionFalse || lifted.Reason != v1alpha1.ReasonBreakGlass ||
		lifted.Message != "anybody may delete the pod until 2026-11-21T12:10:00Z, by the annotation immortalcontainer.flugel.it/unprotected-until" {
		t.Errorf("got %+v", lifted)
	}
	if next := NextLook(o, NextStep(o)); next != 10*time.Minute {
		t.Errorf("looks again after %s, want when the protection returns", next)
	}
	o.Now = now.Add(10 * time.Minute)
	if back := meta.FindStatusCondition(NextStatus(o, NextStep(o)).Conditions, v1alpha1.ConditionProtected); back.Status != metav1.ConditionTrue {
		t.Errorf("after its time: %+v", back)
	}
}

func TestBackoff(t *testing.T) {
	for exits, want := range map[int32]time.Duration{
		-1: 0, 0: 0, 1: time.Second, 2: 2 * time.Second, 3: 4 * time.Second, 9: 256 * time.Second, 10: 5 * time.Minute, 1000: 5 * time.Minute, math.MaxInt32: 5 * time.Minute,
	} {
		if got := Backoff(exits); got != want {
			t.Errorf("after %d exits: %s, want %s", exits, got, want)
		}
	}
}

func TestExitMessageStaysValidAndShort(t *testing.T) {
	pod := livePod(failed, func(p *corev1.Pod) { p.Status.Message = strings.Repeat("é", 2000) })
	message := Exit(pod, now).Message
	if len(message) > 1024 || !utf8.ValidString(message) {
		t.Errorf("%d bytes, valid: %t", len(message), utf8.ValidString(message))
	}
}

func TestPod(t *testing.T) {
	c := container(func(c *v1alpha1.ImmortalContainer) {
		c.Spec = v1alpha1.ImmortalContainerSpec{
			Image: "nginx:1.29", Command: []string{"a"}, Args: []string{"b"},
			Env: []corev1.EnvVar{{Name: "A", Value: "1"}}, EnvFrom: []corev1.EnvFromSource{{Prefix: "P"}},
			Ports:         []corev1.ContainerPort{{ContainerPort: 80}},
			Resources:     corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}},
			LivenessProbe: &corev1.Probe{PeriodSeconds: 1}, ReadinessProbe: &corev1.Probe{PeriodSeconds: 2}, StartupProbe: &corev1.Probe{PeriodSeconds: 3},
			SecurityContext: &corev1.SecurityContext{RunAsNonRoot: ptr.To(true)}, PodSecurityContext: &corev1.PodSecurityContext{FSGroup: ptr.To[int64](7)},
			VolumeMounts: []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}, Volumes: []corev1.Volume{{Name: "v"}},
			ImagePullPolicy: corev1.PullAlways, ImagePullSecrets: []corev1.LocalObjectReference{{Name: "s"}},
			ServiceAccountName: "sa", NodeSelector: map[string]string{"n": "1"}, Tolerations: []corev1.Toleration{{Key: "t"}},
			PriorityClassName: "high", TerminationGracePeriodSeconds: ptr.To[int64](5),
			PodLabels: map[string]string{"team": "a"}, PodAnnotations: map[string]string{"note": "b"},
		}
	})
	want := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "db-immortalpod", Namespace: "team",
			Labels:      map[string]string{"team": "a", "controller": "db", "immortalcontainer.flugel.it/protected": "true"},
			Annotations: map[string]string{"note": "b", "immortalcontainer.flugel.it/start": "3", "immortalcontainer.flugel.it/spec-hash": SpecHash(c.Spec)},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "immortalcontainer.flugel.it/v1alpha1", Kind: "ImmortalContainer", Name: "db", UID: "owner-1",
				Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true),
			}},
		},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{
				Name: "acontainer", Image: "nginx:1.29", Command: []string{"a"}, Args: []string{"b"}, Env: c.Spec.Env, EnvFrom: c.Spec.EnvFrom, Ports: c.Spec.Ports,
				Resources: c.Spec.Resources, LivenessProbe: c.Spec.LivenessProbe, ReadinessProbe: c.Spec.ReadinessProbe, StartupProbe: c.Spec.StartupProbe,
				SecurityContext: c.Spec.SecurityContext, VolumeMounts: c.Spec.VolumeMounts, ImagePullPolicy: corev1.PullAlways,
			}},
			RestartPolicy: corev1.RestartPolicyAlways, SecurityContext: c.Spec.PodSecurityContext, Volumes: c.Spec.Volumes, ImagePullSecrets: c.Spec.ImagePullSecrets,
			ServiceAccountName: "sa", NodeSelector: c.Spec.NodeSelector, Tolerations: c.Spec.Tolerations, PriorityClassName: "high", TerminationGracePeriodSeconds: ptr.To[int64](5),
		},
	}
	if diff := cmp.Diff(want, Pod(c, 3)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestSpecHash(t *testing.T) {
	spec := func(cpu string) v1alpha1.ImmortalContainerSpec {
		return v1alpha1.ImmortalContainerSpec{Image: "a", Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}}}
	}
	if SpecHash(spec("1")) != SpecHash(spec("1000m")) {
		t.Error("the same quantity, written in two ways, has two hashes")
	}
	if SpecHash(spec("1")) == SpecHash(spec("2")) {
		t.Error("two specs have one hash")
	}
	// A hash that changes with the operator's version would replace every pod at its upgrade.
	if got, want := SpecHash(v1alpha1.ImmortalContainerSpec{Image: "nginx:latest"}), "6f6b2e4b52f87e8d"; got != want {
		t.Errorf("the hash of the plainest spec became %s, was %s", got, want)
	}
}

func TestRefusalOf(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	forbid := func(text string) error { return apierrors.NewForbidden(pods, "db-immortalpod", errors.New(text)) }
	ending := apierrors.NewForbidden(pods, "db-immortalpod", errors.New("namespace team is being terminated"))
	ending.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	for name, c := range map[string]struct {
		err   error
		want  string
		final bool
	}{
		"created":               {nil, "", false},
		"quota":                 {forbid("exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1"), "QuotaExceeded", false},
		"quota without request": {forbid("failed quota: q: must specify limits.cpu"), "QuotaExceeded", false},
		"quota just made":       {forbid("status unknown for quota: q, resources: pods"), "QuotaExceeded", false},
		"pod security":          {forbid(`violates PodSecurity "restricted:latest": allowPrivilegeEscalation != false`), "PodSecurityViolation", false},
		"terminating namespace": {ending, "NamespaceTerminating", true},
		"no namespace":          {apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "team"), "NamespaceTerminating", true},
		"another 404":           {apierrors.NewNotFound(schema.GroupResource{Resource: "policies"}, "x"), "PodRefused", false},
		"invalid":               {apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "db-immortalpod", nil), "PodInvalid", false},
		"another webhook":       {forbid("no pods on Fridays"), "PodRefused", false},
		"bad request":           {apierrors.NewBadRequest("no"), "PodRefused", false},
		"server away":           {errors.New("connection refused"), "", false},
		"server busy":           {apierrors.NewTooManyRequestsError("later"), "", false},
		"server broken":         {apierrors.NewInternalError(errors.New("x")), "", false},
	} {
		t.Run(name, func(t *testing.T) {
			got, is := RefusalOf(c.err)
			if is != (c.want != "") || got.Reason != c.want || got.Final != c.final || (is && got.Message != c.err.Error()) {
				t.Errorf("got %+v, %t", got, is)
			}
		})
	}
}
