// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package immortal

import (
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"blackadder.io/blackadder/api/immortalcontainer/v1alpha1"
)

// Refusal tells why the API server does not take the pod.
type Refusal struct {
	// Reason is one of the reasons of the Ready condition.
	Reason string
	// Message is the API server's own.
	Message string
	// Final is set when trying again cannot help: the namespace is going, and the ImmortalContainer with it.
	Final bool
}

// Lasting tells whether the refusal is about the pod itself, so that the removal of another pod would not help it. The
// phrase is what the API server says when a webhook of somebody else's cannot be asked in a dry run.
func (r Refusal) Lasting() bool {
	return r.Reason != v1alpha1.ReasonQuotaExceeded && !strings.Contains(r.Message, "does not support dry run")
}

// RefusalOf reads the error of a pod's creation. It returns false for an error that says nothing about the pod (the
// API server is away, or busy): that one is retried like any other error.
//
// Quota and Pod Security have no cause of their own in the API's Status: their admission plugins are known by the
// phrase that each writes (k8s.io/apiserver's quota plugin, k8s.io/pod-security-admission).
func RefusalOf(err error) (Refusal, bool) {
	if err == nil {
		return Refusal{}, false
	}
	message := err.Error()
	switch {
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return Refusal{Reason: v1alpha1.ReasonNamespaceTerminating, Message: message, Final: true}, true
	case apierrors.IsNotFound(err) && isAboutNamespace(err):
		return Refusal{Reason: v1alpha1.ReasonNamespaceTerminating, Message: message, Final: true}, true
	case apierrors.IsForbidden(err) && isQuotaMessage(message):
		return Refusal{Reason: v1alpha1.ReasonQuotaExceeded, Message: message}, true
	case apierrors.IsForbidden(err) && strings.Contains(message, "violates PodSecurity"):
		return Refusal{Reason: v1alpha1.ReasonPodSecurityViolation, Message: message}, true
	case apierrors.IsInvalid(err):
		return Refusal{Reason: v1alpha1.ReasonPodInvalid, Message: message}, true
	case apierrors.IsForbidden(err), apierrors.IsBadRequest(err), apierrors.IsNotFound(err):
		return Refusal{Reason: v1alpha1.ReasonPodRefused, Message: message}, true
	}
	return Refusal{}, false
}

// isAboutNamespace tells a missing namespace from other things that may be missing: an admission webhook can answer 404 too.
func isAboutNamespace(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && status.Status().Details != nil && status.Status().Details.Kind == "namespaces"
}

func isQuotaMessage(message string) bool {
	return strings.Contains(message, "exceeded quota") || strings.Contains(message, "failed quota") ||
		strings.Contains(message, "status unknown for quota")
}

// conflictMessage tells whose pod holds the name.
func conflictMessage(container *v1alpha1.ImmortalContainer, pod *corev1.Pod) string {
	return fmt.Sprintf("a pod named %q that does not belong to this ImmortalContainer (%s) holds its pod's name: remove or rename that pod, or use another name here",
		PodName(container.Name), ownerPhrase(pod))
}
