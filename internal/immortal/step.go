// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package immortal

import (
	"cmp"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"blackadder.io/blackadder/api/immortalcontainer/v1alpha1"
)

const (
	// retryRefused is how long to wait before a refused pod is tried again: nothing tells when a quota has room.
	retryRefused = 15 * time.Second
	// nodeSuspectAfter is how long past its deadline a terminating pod may stay before its node is looked at.
	nodeSuspectAfter = 5 * time.Second
	// longestMessage is what the API takes as a condition's message, in bytes.
	longestMessage = 32768
	// Taints by which autoscalers announce that they empty a node; neither of them cordons it.
	clusterAutoscalerTaint = "ToBeDeletedByClusterAutoscaler"
	karpenterTaint         = "karpenter.sh/disrupted"
	// recheckNode is how often a node that holds a terminating pod is looked at again.
	recheckNode = 30 * time.Second
)

// Action is what to do with the cluster next.
type Action string

const (
	// ActionNone is nothing to do but keep the status.
	ActionNone Action = "None"
	// ActionCreate is to create the pod.
	ActionCreate Action = "Create"
	// ActionDelete is to delete the pod, because it has ended or is of an old spec.
	ActionDelete Action = "Delete"
	// ActionRelabel is to give the pod back the labels that its protection rests on.
	ActionRelabel Action = "Relabel"
)

// Step is the next step towards the pod that an ImmortalContainer wants.
type Step struct {
	// Action is what to do.
	Action Action
	// UID is the pod that ActionDelete was decided for.
	UID types.UID
	// Reason and Message explain the step; Reason is one of the reasons of the Ready condition.
	Reason  string
	Message string
	// RequeueAfter is when to look again although nothing may have happened; 0 for never.
	RequeueAfter time.Duration
}

// Observation holds the facts that the next step and the status follow from.
type Observation struct {
	// Container is the ImmortalContainer, never nil.
	Container *v1alpha1.ImmortalContainer
	// Pod is the pod that has the name of its pod, or nil if there is none.
	Pod *corev1.Pod
	// Node is the pod's node; needed only when NeedsNode says so.
	Node *NodeFacts
	// Refusal is why the API server did not take the pod just now, if it did not.
	Refusal *Refusal
	// Now is the time to decide for.
	Now time.Time
}

// NodeFacts is what counts about a pod's node.
type NodeFacts struct {
	// Name of the node.
	Name string
	// Exists is false when the cluster has no such node any more.
	Exists bool
	// Ready is the node's Ready condition.
	Ready bool
	// Cordoned is set when the node takes no new pods because it is being emptied: by kubectl cordon, or by an autoscaler
	// that marks it with a taint of its own.
	Cordoned bool
	// TaintedNoExecute is set when the node carries a taint with the effect NoExecute.
	TaintedNoExecute bool
}

// NodeFactsOf reads the facts off a node; nil stands for a node that does not exist.
func NodeFactsOf(name string, node *corev1.Node) NodeFacts {
	facts := NodeFacts{Name: name, Exists: node != nil}
	if node == nil {
		return facts
	}
	facts.Cordoned = node.Spec.Unschedulable
	for _, taint := range node.Spec.Taints {
		facts.TaintedNoExecute = facts.TaintedNoExecute || taint.Effect == corev1.TaintEffectNoExecute
		facts.Cordoned = facts.Cordoned || taint.Key == clusterAutoscalerTaint || taint.Key == karpenterTaint
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			facts.Ready = condition.Status == corev1.ConditionTrue
		}
	}
	return facts
}

// NeedsNode tells whether the next step depends on the state of the pod's node: the pod should have been gone.
func NeedsNode(pod *corev1.Pod, now time.Time) bool {
	return pod != nil && pod.DeletionTimestamp != nil && pod.Spec.NodeName != "" &&
		now.Sub(pod.DeletionTimestamp.Time) >= nodeSuspectAfter
}

// NextStep is what to do now. It never asks for a second pod while the first may still run, and never for the removal
// of a pod that a node may still be running: a terminating pod is waited for.
func NextStep(o Observation) Step {
	pod := o.Pod
	switch {
	case o.Refusal != nil:
		return refused(o)
	case pod == nil:
		return nextWithoutPod(o)
	case !metav1.IsControlledBy(pod, o.Container):
		return nextToForeignPod(o)
	case pod.DeletionTimestamp != nil:
		return waitForRemoval(o)
	case pod.Annotations[v1alpha1.SpecHashAnnotation] != SpecHash(o.Container.Spec):
		return Step{
			Action: ActionDelete, UID: pod.UID, Reason: v1alpha1.ReasonReplacing,
			Message: fmt.Sprintf("the spec changed: pod %q is terminated, and a new one is created when it is gone", pod.Name),
		}
	case Ended(pod):
		return nextAfterEnd(o)
	}
	if lacksProtectingLabels(pod, o.Container.Name) {
		// Somebody changed them while the protection was lifted or not installed.
		return Step{Action: ActionRelabel, UID: pod.UID, Reason: v1alpha1.ReasonPodNotReady, Message: fmt.Sprintf("pod %q gets its protecting labels back", pod.Name)}
	}
	reason, message := podState(pod)
	return Step{Action: ActionNone, Reason: reason, Message: message}
}

func refused(o Observation) Step {
	step := Step{Action: ActionNone, Reason: o.Refusal.Reason, Message: o.Refusal.Message, RequeueAfter: retryRefused}
	if o.Pod != nil {
		step.Message = fmt.Sprintf("the changed pod would be refused, and pod %q of the old spec is kept: %s", o.Pod.Name, o.Refusal.Message)
	}
	if o.Refusal.Final {
		step.RequeueAfter = 0
	}
	return step
}

func nextWithoutPod(o Observation) Step {
	status := o.Container.Status
	if wait := backoffLeft(status, o.Now); wait > 0 && !specChangedSince(o.Container) {
		return backingOff(status, wait)
	}
	return Step{
		Action: ActionCreate, Reason: v1alpha1.ReasonPodNotReady,
		Message: fmt.Sprintf("pod %q is being created", PodName(o.Container.Name)),
	}
}

func nextToForeignPod(o Observation) Step {
	if owner := metav1.GetControllerOf(o.Pod); isImmortalContainer(owner) && owner.Name == o.Container.Name {
		return Step{
			Action: ActionNone, Reason: v1alpha1.ReasonPodTerminating, RequeueAfter: retryRefused,
			Message: fmt.Sprintf("pod %q belongs to an earlier ImmortalContainer of this name: the garbage collector removes it, then a new one is created", o.Pod.Name),
		}
	}
	return Step{
		Action: ActionNone, Reason: v1alpha1.ReasonNameConflict, RequeueAfter: retryRefused,
		Message: conflictMessage(o.Container, o.Pod),
	}
}

func waitForRemoval(o Observation) Step {
	deadline := o.Pod.DeletionTimestamp.Time
	if o.Pod.Spec.NodeName == "" {
		return Step{
			Action: ActionNone, Reason: v1alpha1.ReasonPodTerminating, RequeueAfter: recheckNode,
			Message: fmt.Sprintf("pod %q is terminating%s: a new one is created when it is gone", o.Pod.Name, finalizersPhrase(o.Pod)),
		}
	}
	if !NeedsNode(o.Pod, o.Now) || o.Node == nil {
		return Step{
			Action: ActionNone, Reason: v1alpha1.ReasonPodTerminating,
			Message:      fmt.Sprintf("pod %q is terminating: a new one is created when it is gone", o.Pod.Name),
			RequeueAfter: max(deadline.Add(nodeSuspectAfter).Sub(o.Now), time.Second),
		}
	}
	if o.Node.Exists && o.Node.Ready {
		return Step{
			Action: ActionNone, Reason: v1alpha1.ReasonPodTerminating, RequeueAfter: recheckNode,
			Message: fmt.Sprintf("pod %q should have terminated by %s, but its node %q has not confirmed it yet%s: a new one is created when it is gone",
				o.Pod.Name, deadline.UTC().Format(time.RFC3339), o.Node.Name, finalizersPhrase(o.Pod)),
		}
	}
	state := "does not answer"
	if !o.Node.Exists {
		state = "is gone"
	}
	return Step{
		Action: ActionNone, Reason: v1alpha1.ReasonNodeLost, RequeueAfter: recheckNode,
		Message: fmt.Sprintf("pod %q cannot finish terminating: its node %q %s, and the container may still run there. It comes back when the node does, "+
			"when the Node object is deleted, or when the node carries the taint node.kubernetes.io/out-of-service:NoExecute", o.Pod.Name, o.Node.Name, state),
	}
}

func nextAfterEnd(o Observation) Step {
	status := o.Container.Status
	if !exitRecorded(status, o.Pod) {
		// The exit has to be in the status before the pod, its only other witness, is removed.
		recordExit(&status, o.Pod, o.Now)
		return backingOff(status, max(backoffLeft(status, o.Now), time.Nanosecond))
	}
	if wait := backoffLeft(status, o.Now); wait > 0 {
		return backingOff(status, wait)
	}
	return Step{
		Action: ActionDelete, UID: o.Pod.UID, Reason: v1alpha1.ReasonBackingOff,
		Message: fmt.Sprintf("pod %q ended (%s): it is removed and created again", o.Pod.Name, status.LastExit.Reason),
	}
}

func backoffLeft(status v1alpha1.ImmortalContainerStatus, now time.Time) time.Duration {
	if status.RestartBackoffUntil == nil {
		return 0
	}
	return max(status.RestartBackoffUntil.Sub(now), 0)
}

func backingOff(status v1alpha1.ImmortalContainerStatus, wait time.Duration) Step {
	reason := "unknown"
	if status.LastExit != nil {
		reason = status.LastExit.Reason
	}
	return Step{
		Action: ActionNone, Reason: v1alpha1.ReasonBackingOff, RequeueAfter: wait,
		Message: fmt.Sprintf("the last pod ended (%s), %d in a row: the next one is created after %s",
			reason, status.ConsecutiveExits, status.RestartBackoffUntil.UTC().Format(time.RFC3339)),
	}
}

func lacksProtectingLabels(pod *corev1.Pod, container string) bool {
	for label, value := range ProtectingLabels(container) {
		if pod.Labels[label] != value {
			return true
		}
	}
	return false
}

// podState is the Ready condition's reason and message for a pod that lives.
func podState(pod *corev1.Pod) (reason, message string) {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue {
			return v1alpha1.ReasonPodReady, fmt.Sprintf("pod %q is ready", pod.Name)
		}
		if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse {
			return v1alpha1.ReasonPodUnschedulable, fmt.Sprintf("pod %q is not scheduled: %s", pod.Name, condition.Message)
		}
	}
	phase := cmp.Or(pod.Status.Phase, corev1.PodPending)
	for _, container := range pod.Status.ContainerStatuses {
		if waiting := container.State.Waiting; waiting != nil && waiting.Reason != "" {
			return v1alpha1.ReasonPodNotReady, fmt.Sprintf("pod %q is %s: its container waits (%s)", pod.Name, phase, waiting.Reason)
		}
	}
	return v1alpha1.ReasonPodNotReady, fmt.Sprintf("pod %q is %s and not ready yet", pod.Name, phase)
}

// NextStatus is the status that the observation and the step decided on it lead to.
func NextStatus(o Observation, step Step) v1alpha1.ImmortalContainerStatus {
	status := *o.Container.Status.DeepCopy()
	if specChangedSince(o.Container) {
		// A changed spec deserves a fresh chance.
		status.ConsecutiveExits = 0
		status.RestartBackoffUntil = nil
	}
	status.ObservedGeneration = o.Container.Generation

	status.CurrentPod = ""
	if pod := o.Pod; pod != nil && metav1.IsControlledBy(pod, o.Container) {
		status.CurrentPod = pod.Name
		if start := Start(pod); start > status.StartTimes {
			status.StartTimes = start
			status.LastStartTime = pod.CreationTimestamp.DeepCopy()
			status.RestartBackoffUntil = nil
		}
		if Ended(pod) && pod.DeletionTimestamp == nil && step.Reason != v1alpha1.ReasonReplacing {
			recordExit(&status, pod, o.Now)
		}
	}

	setCondition(&status, o, metav1.Condition{
		Type: v1alpha1.ConditionReady, Status: conditionStatus(step.Reason == v1alpha1.ReasonPodReady),
		Reason: step.Reason, Message: step.Message,
	})
	setCondition(&status, o, protectedCondition(o))
	return status
}

// specChangedSince tells whether the spec is another one than the status was computed from.
func specChangedSince(container *v1alpha1.ImmortalContainer) bool {
	return container.Status.ObservedGeneration > 0 && container.Status.ObservedGeneration < container.Generation
}

func protectedCondition(o Observation) metav1.Condition {
	until, lifted := UnprotectedUntil(o.Container, o.Now)
	if lifted {
		return metav1.Condition{
			Type: v1alpha1.ConditionProtected, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonBreakGlass,
			Message: fmt.Sprintf("anybody may delete the pod until %s, by the annotation %s",
				until.UTC().Format(time.RFC3339), v1alpha1.UnprotectedUntilAnnotation),
		}
	}
	return metav1.Condition{
		Type: v1alpha1.ConditionProtected, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonEnforced,
		Message: "only the controller may remove the pod",
	}
}

// NextLook is when to reconcile again although nothing may have happened, from the step and from the end of a lifted
// protection; 0 for never.
func NextLook(o Observation, step Step) time.Duration {
	next := step.RequeueAfter
	if until, lifted := UnprotectedUntil(o.Container, o.Now); lifted {
		left := max(until.Sub(o.Now), time.Nanosecond)
		if next == 0 || left < next {
			next = left
		}
	}
	return next
}

func setCondition(status *v1alpha1.ImmortalContainerStatus, o Observation, condition metav1.Condition) {
	condition.ObservedGeneration = o.Container.Generation
	condition.Message = Truncate(condition.Message, longestMessage)
	condition.LastTransitionTime = metav1.NewTime(o.Now.Truncate(time.Second))
	meta.SetStatusCondition(&status.Conditions, condition)
}

func conditionStatus(is bool) metav1.ConditionStatus {
	if is {
		return metav1.ConditionTrue
	}
	return metav1.ConditionFalse
}

func finalizersPhrase(pod *corev1.Pod) string {
	if len(pod.Finalizers) == 0 {
		return ""
	}
	return fmt.Sprintf(" (finalizers %q hold it)", pod.Finalizers)
}
