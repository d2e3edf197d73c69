// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package immortal

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/distribution/reference"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"blackadder.io/blackadder/api/immortalcontainer/v1alpha1"
)

// LongestUnprotected is how far ahead UnprotectedUntilAnnotation may lie.
const LongestUnprotected = time.Hour

// UnprotectedUntil reads until when an ImmortalContainer's pod is unprotected, and whether it is so now. A value that
// is unreadable or too far ahead, which admission refuses, lifts nothing.
func UnprotectedUntil(container *v1alpha1.ImmortalContainer, now time.Time) (until time.Time, lifted bool) {
	value, set := container.Annotations[v1alpha1.UnprotectedUntilAnnotation]
	if !set {
		return time.Time{}, false
	}
	until, err := time.Parse(time.RFC3339, value)
	if err != nil {
		return time.Time{}, false
	}
	return until, now.Before(until) && !until.After(now.Add(LongestUnprotected))
}

// Validate finds the faults of an ImmortalContainer that its schema cannot express and that need no other object; old
// is nil for a new one. The warnings are for what is legal but doubtful.
func Validate(container, old *v1alpha1.ImmortalContainer, now time.Time) (field.ErrorList, []string) {
	faults, warnings := validateUnprotectedUntil(container, old, now)
	faults = append(faults, validateFinalizers(container)...)
	return faults, warnings
}

func validateUnprotectedUntil(container, old *v1alpha1.ImmortalContainer, now time.Time) (field.ErrorList, []string) {
	value, set := container.Annotations[v1alpha1.UnprotectedUntilAnnotation]
	if !set || (old != nil && old.Annotations[v1alpha1.UnprotectedUntilAnnotation] == value) {
		return nil, nil
	}
	path := field.NewPath("metadata", "annotations").Key(v1alpha1.UnprotectedUntilAnnotation)
	example := now.Add(10 * time.Minute).UTC().Format(time.RFC3339)
	until, err := time.Parse(time.RFC3339, value)
	switch {
	case err != nil:
		return field.ErrorList{field.Invalid(path, value, fmt.Sprintf("must be a time in RFC 3339, such as %q", example))}, nil
	case until.After(now.Add(LongestUnprotected)):
		return field.ErrorList{field.Invalid(path, value, fmt.Sprintf("must lie at most 1 hour ahead (it is %s now), such as %q",
			now.UTC().Format(time.RFC3339), example))}, nil
	case !now.Before(until):
		return nil, []string{fmt.Sprintf("%s: %s has passed (it is %s now): the pod stays protected", path, value, now.UTC().Format(time.RFC3339))}
	}
	return nil, nil
}

// validateFinalizers refuses the finalizer behind propagationPolicy Orphan: it would leave a pod without owner.
func validateFinalizers(container *v1alpha1.ImmortalContainer) field.ErrorList {
	for i, finalizer := range container.Finalizers {
		if finalizer == metav1.FinalizerOrphanDependents && container.DeletionTimestamp == nil {
			return field.ErrorList{field.Forbidden(field.NewPath("metadata", "finalizers").Index(i),
				`"orphan" would leave the pod behind without an owner: an ImmortalContainer ends together with its pod`)}
		}
	}
	return nil
}

// PodSpecChanged tells whether the pod that an ImmortalContainer describes differs from that of its old self.
func PodSpecChanged(container, old *v1alpha1.ImmortalContainer) bool {
	return old == nil || SpecHash(container.Spec) != SpecHash(old.Spec)
}

// FaultsInSpec translates the faults that the API server found in the pod of an ImmortalContainer into faults of the
// ImmortalContainer itself, so that a user reads the names of the fields that they wrote.
func FaultsInSpec(causes []metav1.StatusCause) []metav1.StatusCause {
	translated := make([]metav1.StatusCause, 0, len(causes))
	for _, cause := range causes {
		cause.Field = fieldInSpec(cause.Field)
		translated = append(translated, cause)
	}
	return translated
}

func fieldInSpec(podField string) string {
	for _, rename := range []struct{ pod, container string }{
		{"spec.containers[0]", "spec"},
		{"spec.securityContext", "spec.podSecurityContext"},
		{"metadata.labels", "spec.podLabels"},
		{"metadata.annotations", "spec.podAnnotations"},
	} {
		if rest, found := strings.CutPrefix(podField, rename.pod); found && (rest == "" || strings.ContainsAny(rest[:1], ".[")) {
			return rename.container + rest
		}
	}
	return podField
}

// claimsImmortality tells whether a pod presents itself as one of an ImmortalContainer, rightly or not.
func claimsImmortality(pod *corev1.Pod) bool {
	if pod == nil {
		return false
	}
	return pod.Labels[v1alpha1.ProtectedLabel] == v1alpha1.ProtectedValue ||
		slices.ContainsFunc(pod.OwnerReferences, func(r metav1.OwnerReference) bool { return isImmortalContainer(&r) })
}

// isImmortalContainer tells whether an owner reference points to an ImmortalContainer of any version.
func isImmortalContainer(owner *metav1.OwnerReference) bool {
	return owner != nil && owner.Kind == v1alpha1.Kind &&
		strings.HasPrefix(owner.APIVersion, v1alpha1.GroupVersion.Group+"/")
}

// Owner is the ImmortalContainer that controls a pod, or nil if none does.
func Owner(pod *corev1.Pod) *metav1.OwnerReference {
	if pod == nil {
		return nil
	}
	if owner := metav1.GetControllerOf(pod); isImmortalContainer(owner) {
		return owner
	}
	return nil
}

func ownerPhrase(pod *corev1.Pod) string {
	if owner := metav1.GetControllerOf(pod); owner != nil {
		return fmt.Sprintf("it belongs to %s %q", owner.Kind, owner.Name)
	}
	return "it has no controller"
}

// NameConflict says why a pod that holds the name of an ImmortalContainer's pod is in its way; "" if it is not, because
// it is the ImmortalContainer's own, or an earlier one's of the same name, which is about to go.
func NameConflict(container *v1alpha1.ImmortalContainer, pod *corev1.Pod) string {
	if owner := Owner(pod); owner != nil && owner.Name == container.Name {
		return ""
	}
	return conflictMessage(container, pod)
}

// ImageWarnings are for an image whose tag may move: the pod that comes back may run something else.
func ImageWarnings(image string) []string {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return nil
	}
	if _, fixed := named.(reference.Digested); fixed {
		return nil
	}
	tag := "no tag"
	if tagged, is := named.(reference.Tagged); is {
		if tagged.Tag() != "latest" {
			return nil
		}
		tag = `the tag "latest"`
	}
	return []string{fmt.Sprintf("spec.image: %q has %s, so that the pod that comes back may run another image: name a version, or better a digest", image, tag)}
}
