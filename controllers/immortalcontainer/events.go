// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package immortalcontainer

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"blackadder.io/blackadder/api/immortalcontainer/v1alpha1"
	"blackadder.io/blackadder/internal/immortal"
)

// Reasons of the events on an ImmortalContainer. Beside them, a Ready condition that turns to one of troubles makes an
// event with the condition's own reason.
const (
	eventPodCreated         = "PodCreated"
	eventPodEnded           = "PodEnded"
	eventPodRemoved         = "PodRemoved"
	eventLabelsRestored     = "LabelsRestored"
	eventProtectionLifted   = "ProtectionLifted"
	eventProtectionRestored = "ProtectionRestored"
)

// Actions of the events: what the controller was doing.
const (
	actionCreate  = "CreatePod"
	actionRemove  = "RemovePod"
	actionObserve = "ObservePod"
	actionProtect = "ProtectPod"
)

// isTrouble picks the reasons of the Ready condition that a person has to know of.
func isTrouble(reason string) bool {
	switch reason {
	case v1alpha1.ReasonNameConflict, v1alpha1.ReasonQuotaExceeded, v1alpha1.ReasonPodSecurityViolation,
		v1alpha1.ReasonNamespaceTerminating, v1alpha1.ReasonPodInvalid, v1alpha1.ReasonPodRefused, v1alpha1.ReasonNodeLost:
		return true
	}
	return false
}

// longestNote is what the API takes as an event's note, in bytes; it refuses a longer one whole.
const longestNote = 1024

func (r *Reconciler) tell(regarding, related runtime.Object, kind, reason, action, note string, values ...any) {
	r.recorder.Eventf(regarding, related, kind, reason, action, "%s", immortal.Truncate(fmt.Sprintf(note, values...), longestNote))
}

func (r *Reconciler) tellCreated(observed immortal.Observation) {
	r.tell(observed.Container, observed.Pod, corev1.EventTypeNormal, eventPodCreated, actionCreate,
		"created pod %s (start %d)", observed.Pod.Name, immortal.Start(observed.Pod))
}

func (r *Reconciler) tellRemoved(done outcome) {
	r.tell(done.observed.Container, done.observed.Pod, corev1.EventTypeNormal, eventPodRemoved, actionRemove, "%s", done.step.Message)
}

func (r *Reconciler) tellRelabelled(done outcome) {
	r.tell(done.observed.Container, done.observed.Pod, corev1.EventTypeWarning, eventLabelsRestored, actionProtect,
		"pod %s had lost labels that its protection rests on", done.observed.Pod.Name)
}

// tellStatus tells what is new in the status that was just written.
func (r *Reconciler) tellStatus(container *v1alpha1.ImmortalContainer, status v1alpha1.ImmortalContainerStatus) {
	old := container.Status
	if exit := status.LastExit; exit != nil && (old.LastExit == nil || old.LastExit.Start != exit.Start) {
		r.metrics.exits.WithLabelValues(string(exit.Phase)).Inc()
		r.tell(container, nil, corev1.EventTypeWarning, eventPodEnded, actionObserve,
			"the pod of start %d ended (%s%s), %d in a row", exit.Start, exit.Reason, exitCode(exit), status.ConsecutiveExits)
	}
	ready := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionReady)
	if ready.Status != metav1.ConditionTrue && reasonOf(old, v1alpha1.ConditionReady) != ready.Reason && isTrouble(ready.Reason) {
		r.tell(container, nil, corev1.EventTypeWarning, ready.Reason, actionCreate, "%s", ready.Message)
	}
	protected := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionProtected)
	before := reasonOf(old, v1alpha1.ConditionProtected)
	switch {
	case protected.Reason == v1alpha1.ReasonBreakGlass && before != v1alpha1.ReasonBreakGlass:
		r.tell(container, nil, corev1.EventTypeWarning, eventProtectionLifted, actionProtect, "%s", protected.Message)
	case protected.Reason != v1alpha1.ReasonBreakGlass && before == v1alpha1.ReasonBreakGlass:
		r.tell(container, nil, corev1.EventTypeNormal, eventProtectionRestored, actionProtect, "%s again", protected.Message)
	}
}

func exitCode(exit *v1alpha1.ExitStatus) string {
	if exit.ExitCode == nil {
		return ""
	}
	return fmt.Sprintf(", exit code %d", *exit.ExitCode)
}

func reasonOf(status v1alpha1.ImmortalContainerStatus, condition string) string {
	if found := meta.FindStatusCondition(status.Conditions, condition); found != nil {
		return found.Reason
	}
	return ""
}
