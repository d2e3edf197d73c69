// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package immortal

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"blackadder.io/blackadder/api/immortalcontainer/v1alpha1"
)

// Users and groups of the cluster's own components.
const (
	nodeGroup             = "system:nodes"
	nodeUserPrefix        = "system:node:"
	schedulerUser         = "system:kube-scheduler"
	controllerManagerUser = "system:kube-controller-manager"
	clusterServiceAccount = "system:serviceaccount:kube-system:"
)

// Subresources of pods that the verdict knows.
const (
	SubresourceEviction            = "eviction"
	SubresourceStatus              = "status"
	SubresourceEphemeralContainers = "ephemeralcontainers"
	SubresourceResize              = "resize"
	SubresourceBinding             = "binding"
)

// Reason says in one word why a request is allowed or denied. Denials are counted by it.
type Reason string

// Reasons of a verdict that allows.
const (
	AllowedController         Reason = "Controller"
	AllowedNotImmortal        Reason = "NotImmortal"
	AllowedRemovesNothing     Reason = "RemovesNothing"
	AllowedTerminating        Reason = "Terminating"
	AllowedEnded              Reason = "Ended"
	AllowedKubelet            Reason = "Kubelet"
	AllowedPreemption         Reason = "Preemption"
	AllowedClusterController  Reason = "ClusterController"
	AllowedNamespaceEnding    Reason = "NamespaceTerminating"
	AllowedOwnerEnding        Reason = "OwnerGone"
	AllowedBreakGlass         Reason = "BreakGlass"
	AllowedNodeGone           Reason = "NodeGone"
	AllowedTaintEviction      Reason = "TaintEviction"
	AllowedDrain              Reason = "Drain"
	AllowedNamespaceUnguarded Reason = "NamespaceUnguarded"
)

// Reasons of a verdict that denies.
const (
	DeniedDelete    Reason = "Delete"
	DeniedEviction  Reason = "Eviction"
	DeniedForged    Reason = "Forged"
	DeniedTampering Reason = "Tampering"
	DeniedGuarded   Reason = "NamespaceGuarded"
	DeniedUnknown   Reason = "UnknownOperation"
)

// Request is what somebody wants to do to a pod.
type Request struct {
	// Operation and Subresource as the API server names them. An eviction is a Create on the subresource eviction.
	Operation   admissionv1.Operation
	Subresource string
	// User is the effective user: under impersonation, the one who is impersonated.
	User authenticationv1.UserInfo
	// OldPod is the pod as it stands; nil for the creation of a pod.
	OldPod *corev1.Pod
	// NewPod is the pod as it would be; nil for deletions and evictions.
	NewPod *corev1.Pod
}

// Surroundings is what counts about the objects around the pod.
type Surroundings struct {
	// ControllerUser is the user name of the operator itself.
	ControllerUser string
	// Container is the ImmortalContainer that the pod's owner reference names, by UID; nil if there is none any more.
	Container *v1alpha1.ImmortalContainer
	// NamespaceTerminating is set when the pod's namespace is being deleted.
	NamespaceTerminating bool
	// Node is the pod's node; nil for a pod that has none.
	Node *NodeFacts
	// Now is the time to decide for.
	Now time.Time
}

// Verdict is the answer to a request.
type Verdict struct {
	// Allowed is the answer.
	Allowed bool
	// Reason is why.
	Reason Reason
	// Message is for the user who is denied: what is refused, why, and the way out.
	Message string
	// Code is the HTTP status of a denial.
	Code int32
}

// rule is one link of the chain: it answers, or returns nil to leave the answer to the next one.
type rule func(Request, Surroundings) *Verdict

// rulesOfRequest need nothing of Surroundings but the controller's name.
func rulesOfRequest() []rule {
	return []rule{
		allowController,
		allowNotImmortal,
		allowWhatRemovesNothing,
		denyForged,
		allowTerminating,
		allowEnded,
		allowKubelet,
		allowPreemption,
		allowClusterControllerStatus,
		allowHarmlessUpdate,
	}
}

// rulesOfSurroundings are asked when no rule of the request answers.
func rulesOfSurroundings() []rule {
	return []rule{
		allowInTerminatingNamespace,
		allowWithoutOwner,
		allowBreakGlass,
		allowNodeGone,
		allowTaintEviction,
		allowDrain,
		denyByOperation,
	}
}

// JudgeRequest answers what the request alone decides, and returns false when the surroundings must be known: most
// requests that touch a pod are harmless and need not wait for them.
func JudgeRequest(request Request, controllerUser string) (Verdict, bool) {
	return firstAnswer(rulesOfRequest(), request, Surroundings{ControllerUser: controllerUser})
}

// Judge answers any request: whether it may touch the pod. It denies what no rule allows.
func Judge(request Request, surroundings Surroundings) Verdict {
	if verdict, decided := firstAnswer(rulesOfRequest(), request, surroundings); decided {
		return verdict
	}
	if verdict, decided := firstAnswer(rulesOfSurroundings(), request, surroundings); decided {
		return verdict
	}
	return Verdict{Reason: DeniedUnknown, Code: http.StatusForbidden, Message: fmt.Sprintf(
		"the operation %q on an immortal pod is not known to its protection, and is refused", request.Operation)}
}

func firstAnswer(rules []rule, request Request, surroundings Surroundings) (Verdict, bool) {
	for _, answer := range rules {
		if verdict := answer(request, surroundings); verdict != nil {
			return *verdict, true
		}
	}
	return Verdict{}, false
}

func allow(reason Reason) *Verdict {
	return &Verdict{Allowed: true, Reason: reason, Code: http.StatusOK}
}

func allowIf(is bool, reason Reason) *Verdict {
	if is {
		return allow(reason)
	}
	return nil
}

func allowController(r Request, s Surroundings) *Verdict {
	return allowIf(s.ControllerUser != "" && r.User.Username == s.ControllerUser, AllowedController)
}

func allowNotImmortal(r Request, _ Surroundings) *Verdict {
	return allowIf(!claimsImmortality(r.OldPod) && !claimsImmortality(r.NewPod), AllowedNotImmortal)
}

// allowWhatRemovesNothing: the API server drops every other change from requests to these subresources.
func allowWhatRemovesNothing(r Request, _ Surroundings) *Verdict {
	return allowIf(r.Operation == admissionv1.Update &&
		(r.Subresource == SubresourceEphemeralContainers || r.Subresource == SubresourceResize), AllowedRemovesNothing)
}

// denyForged refuses a pod that becomes immortal by anybody's hand but the controller's: a new one, or an existing one
// that is given the protecting labels or an ImmortalContainer as owner. It stands before every other allowance,
// because a forged owner reference makes the garbage collector and the verdict itself work for the forger.
func denyForged(r Request, _ Surroundings) *Verdict {
	if r.NewPod == nil || !claimsImmortality(r.NewPod) {
		return nil
	}
	forged := r.OldPod == nil || !claimsImmortality(r.OldPod) || addsImmortalOwner(r.OldPod, r.NewPod)
	if !forged {
		return nil
	}
	return &Verdict{Reason: DeniedForged, Code: http.StatusForbidden, Message: fmt.Sprintf(
		"only the operator makes immortal pods: leave out the label %s and owner references to an ImmortalContainer, or create an ImmortalContainer",
		v1alpha1.ProtectedLabel)}
}

func addsImmortalOwner(oldPod, newPod *corev1.Pod) bool {
	for _, owner := range newPod.OwnerReferences {
		if isImmortalContainer(&owner) && !slices.ContainsFunc(oldPod.OwnerReferences, func(old metav1.OwnerReference) bool { return old.UID == owner.UID && isImmortalContainer(&old) }) {
			return true
		}
	}
	return false
}

func allowTerminating(r Request, _ Surroundings) *Verdict {
	return allowIf(r.OldPod != nil && r.OldPod.DeletionTimestamp != nil, AllowedTerminating)
}

// allowEnded lets anybody remove what has ended. Changing it is another matter: with another owner, a finalizer or a
// forged start, the pod would never be created again, or be miscounted.
func allowEnded(r Request, _ Surroundings) *Verdict {
	removes := r.Operation == admissionv1.Delete || r.Subresource == SubresourceEviction
	return allowIf(removes && r.OldPod != nil && Ended(r.OldPod), AllowedEnded)
}

func allowKubelet(r Request, _ Surroundings) *Verdict {
	return allowIf(r.OldPod != nil && r.OldPod.Spec.NodeName != "" &&
		r.User.Username == nodeUserPrefix+r.OldPod.Spec.NodeName && slices.Contains(r.User.Groups, nodeGroup), AllowedKubelet)
}

func allowPreemption(r Request, _ Surroundings) *Verdict {
	return allowIf(r.Operation == admissionv1.Delete && r.User.Username == schedulerUser, AllowedPreemption)
}

// allowClusterControllerStatus: pod garbage collection and node lifecycle mark pods Failed before they remove them.
func allowClusterControllerStatus(r Request, _ Surroundings) *Verdict {
	return allowIf(r.Operation == admissionv1.Update && r.Subresource == SubresourceStatus && isClusterController(r.User.Username) &&
		len(metadataChanges(r.OldPod, r.NewPod)) == 0, AllowedClusterController)
}

func allowHarmlessUpdate(r Request, _ Surroundings) *Verdict {
	return allowIf(r.Operation == admissionv1.Update && r.OldPod != nil && r.NewPod != nil && len(protectedChanges(r)) == 0, AllowedRemovesNothing)
}

func allowInTerminatingNamespace(_ Request, s Surroundings) *Verdict {
	return allowIf(s.NamespaceTerminating, AllowedNamespaceEnding)
}

func allowWithoutOwner(_ Request, s Surroundings) *Verdict {
	return allowIf(s.Container == nil || s.Container.DeletionTimestamp != nil, AllowedOwnerEnding)
}

func allowBreakGlass(_ Request, s Surroundings) *Verdict {
	if s.Container == nil {
		return nil
	}
	_, lifted := UnprotectedUntil(s.Container, s.Now)
	return allowIf(lifted, AllowedBreakGlass)
}

// allowNodeGone: a pod whose node left the cluster runs nowhere; pod garbage collection and taint eviction remove it.
func allowNodeGone(r Request, s Surroundings) *Verdict {
	return allowIf(s.Node != nil && !s.Node.Exists && isClusterController(r.User.Username), AllowedNodeGone)
}

// allowTaintEviction: a node's taint stands on the node; a device's taint, on a device that the pod claims.
func allowTaintEviction(r Request, s Surroundings) *Verdict {
	if r.Operation != admissionv1.Delete || r.OldPod == nil || !evictsByTaint(r.User.Username) {
		return nil
	}
	return allowIf((s.Node != nil && s.Node.TaintedNoExecute) || len(r.OldPod.Spec.ResourceClaims) > 0, AllowedTaintEviction)
}

func allowDrain(r Request, s Surroundings) *Verdict {
	return allowIf(r.Subresource == SubresourceEviction && s.Node != nil && s.Node.Cordoned, AllowedDrain)
}

func denyByOperation(r Request, s Surroundings) *Verdict {
	if r.OldPod == nil || s.Container == nil {
		return nil
	}
	keeper := fmt.Sprintf("pod %q is kept alive by ImmortalContainer %q", r.OldPod.Name, s.Container.Name)
	switch {
	case r.Subresource == SubresourceEviction:
		// 429 is what a PodDisruptionBudget answers, and the only answer that drains wait and try again for.
		return &Verdict{Reason: DeniedEviction, Code: http.StatusTooManyRequests, Message: fmt.Sprintf(
			"%s and is evicted only from a cordoned node%s. %s", keeper, cordonPhrase(r.OldPod), waysOut(s))}
	case r.Operation == admissionv1.Delete:
		return &Verdict{Reason: DeniedDelete, Code: http.StatusForbidden, Message: fmt.Sprintf("%s and is not deleted. %s", keeper, waysOut(s))}
	case r.Operation == admissionv1.Update && r.NewPod != nil:
		return &Verdict{Reason: DeniedTampering, Code: http.StatusForbidden, Message: fmt.Sprintf(
			"%s, which alone may change %s. To change the pod, edit the ImmortalContainer. %s", keeper, strings.Join(protectedChanges(r), ", "), waysOut(s))}
	}
	return nil
}

// waysOut tells how to really end the pod, and how to break the glass, in commands that can be copied.
func waysOut(s Surroundings) string {
	name, namespace := s.Container.Name, s.Container.Namespace
	until := s.Now.Add(10 * time.Minute).UTC().Format(time.RFC3339)
	return fmt.Sprintf("To end it for good: kubectl delete immortalcontainer %s -n %s. To lift its protection for 10 minutes: "+
		"kubectl annotate immortalcontainer %s -n %s --overwrite %s=%s", name, namespace, name, namespace, v1alpha1.UnprotectedUntilAnnotation, until)
}

func cordonPhrase(pod *corev1.Pod) string {
	if pod.Spec.NodeName == "" {
		return ", and has no node yet"
	}
	return fmt.Sprintf(": cordon its node first (kubectl cordon %s; kubectl drain does so itself)", pod.Spec.NodeName)
}

// protectedChanges names what an update changes that only the controller may change.
func protectedChanges(r Request) []string {
	if r.OldPod == nil || r.NewPod == nil {
		return nil
	}
	changes := metadataChanges(r.OldPod, r.NewPod)
	if !equality.Semantic.DeepEqual(r.OldPod.Spec.ActiveDeadlineSeconds, r.NewPod.Spec.ActiveDeadlineSeconds) {
		changes = append(changes, "spec.activeDeadlineSeconds")
	}
	if changesToleration(r.OldPod.Spec.Tolerations, r.NewPod.Spec.Tolerations) {
		changes = append(changes, "spec.tolerations")
	}
	changes = append(changes, imageChanges("spec.containers", r.OldPod.Spec.Containers, r.NewPod.Spec.Containers)...)
	changes = append(changes, imageChanges("spec.initContainers", r.OldPod.Spec.InitContainers, r.NewPod.Spec.InitContainers)...)
	if !Ended(r.OldPod) && Ended(r.NewPod) {
		changes = append(changes, "status.phase to "+string(r.NewPod.Status.Phase))
	}
	return changes
}

// metadataChanges cover what the protection, the garbage collector and the controller know the pod by. They are looked
// for in requests to every subresource: the one for the status takes labels and finalizers too.
func metadataChanges(oldPod, newPod *corev1.Pod) []string {
	if oldPod == nil || newPod == nil {
		return nil
	}
	var changes []string
	for _, label := range []string{v1alpha1.ControllerLabel, v1alpha1.ProtectedLabel} {
		if oldPod.Labels[label] != newPod.Labels[label] {
			changes = append(changes, fmt.Sprintf("metadata.labels[%s]", label))
		}
	}
	// With a changed start or hash the controller itself would miscount, or replace the pod.
	for _, annotation := range []string{v1alpha1.StartAnnotation, v1alpha1.SpecHashAnnotation} {
		if oldPod.Annotations[annotation] != newPod.Annotations[annotation] {
			changes = append(changes, fmt.Sprintf("metadata.annotations[%s]", annotation))
		}
	}
	if !equality.Semantic.DeepEqual(oldPod.OwnerReferences, newPod.OwnerReferences) {
		changes = append(changes, "metadata.ownerReferences")
	}
	if !equality.Semantic.DeepEqual(oldPod.Finalizers, newPod.Finalizers) {
		changes = append(changes, "metadata.finalizers")
	}
	return changes
}

// changesToleration tells whether a toleration that the pod has becomes another one: a shorter tolerationSeconds lets taint
// eviction end the pod. Further tolerations do no harm.
func changesToleration(oldTolerations, newTolerations []corev1.Toleration) bool {
	return slices.ContainsFunc(oldTolerations, func(old corev1.Toleration) bool {
		return !slices.ContainsFunc(newTolerations, func(n corev1.Toleration) bool { return equality.Semantic.DeepEqual(old, n) })
	})
}

func imageChanges(path string, oldContainers, newContainers []corev1.Container) []string {
	images := make(map[string]string, len(oldContainers))
	for _, container := range oldContainers {
		images[container.Name] = container.Image
	}
	var changes []string
	for _, container := range newContainers {
		if image, known := images[container.Name]; !known || image != container.Image {
			changes = append(changes, fmt.Sprintf("%s[%s].image", path, container.Name))
		}
	}
	return changes
}

// isClusterController knows the ServiceAccounts in kube-system under which kube-controller-manager removes pods, or ends
// them, as part of the cluster's own housekeeping; and its own name, where all its controllers share that.
func isClusterController(user string) bool {
	switch user {
	case clusterServiceAccount + "generic-garbage-collector",
		clusterServiceAccount + "namespace-controller",
		clusterServiceAccount + "pod-garbage-collector":
		return true
	}
	return evictsByTaint(user)
}

func evictsByTaint(user string) bool {
	switch user {
	case controllerManagerUser, clusterServiceAccount + "node-controller", clusterServiceAccount + "device-taint-eviction-controller":
		return true
	}
	return false
}

// JudgeNamespace answers whether a Namespace may be deleted while these ImmortalContainers, none of them terminating,
// live in it. Only a Namespace that carries GuardedLabel is refused.
func JudgeNamespace(namespace *corev1.Namespace, living []string) Verdict {
	if namespace.Labels[v1alpha1.GuardedLabel] != "true" || len(living) == 0 || namespace.DeletionTimestamp != nil {
		return *allow(AllowedNamespaceUnguarded)
	}
	const most = 5
	shown := living
	more := ""
	if len(living) > most {
		shown, more = living[:most], fmt.Sprintf(" and %d more", len(living)-most)
	}
	return Verdict{Reason: DeniedGuarded, Code: http.StatusForbidden, Message: fmt.Sprintf(
		"namespace %q is guarded while ImmortalContainers live in it (%s%s): delete them first (kubectl delete immortalcontainers --all -n %s), or remove the guard: kubectl label namespace %s %s-",
		namespace.Name, strings.Join(shown, ", "), more, namespace.Name, namespace.Name, v1alpha1.GuardedLabel)}
}
