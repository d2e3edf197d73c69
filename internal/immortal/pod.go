// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

// Package immortal decides what has to happen for an ImmortalContainer: which pod it wants, what the next step towards
// it is, how long to wait after a pod that ended, and whether a request may touch that pod. Every function is pure: the
// webhooks and the controller gather facts, ask here, and act.
package immortal

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"blackadder.io/blackadder/api/immortalcontainer/v1alpha1"
)

// PodName is the name of the pod of the ImmortalContainer with this name.
func PodName(container string) string {
	return container + v1alpha1.PodNameSuffix
}

// SpecHash identifies the pod that a spec describes. It is made of the spec, and not of the pod that the operator renders
// from it, so that an upgrade of the operator replaces no pod.
func SpecHash(spec v1alpha1.ImmortalContainerSpec) string {
	// Maps are sorted in JSON, and every type of the spec can be marshalled.
	text, err := json.Marshal(spec)
	if err != nil {
		panic(fmt.Sprintf("an ImmortalContainerSpec cannot be marshalled: %v", err))
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

// Start reads which start of its ImmortalContainer a pod is, counted from 1; 0 if the pod does not say.
func Start(pod *corev1.Pod) int64 {
	start, err := strconv.ParseInt(pod.Annotations[v1alpha1.StartAnnotation], 10, 64)
	if err != nil || start < 0 {
		return 0
	}
	return start
}

// Pod is the pod for an ImmortalContainer's given start, ready to be created. The start stands on the pod itself, so
// that the creation and its count are one write.
func Pod(container *v1alpha1.ImmortalContainer, start int64) *corev1.Pod {
	spec := container.Spec.DeepCopy()
	annotations := map[string]string{}
	maps.Copy(annotations, spec.PodAnnotations)
	annotations[v1alpha1.StartAnnotation] = strconv.FormatInt(start, 10)
	annotations[v1alpha1.SpecHashAnnotation] = SpecHash(*spec)
	labels := map[string]string{}
	maps.Copy(labels, spec.PodLabels)
	maps.Copy(labels, ProtectingLabels(container.Name))

	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name:            PodName(container.Name),
			Namespace:       container.Namespace,
			Labels:          labels,
			Annotations:     annotations,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(container, v1alpha1.GroupVersion.WithKind(v1alpha1.Kind))},
		},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{
				Name:            v1alpha1.ContainerName,
				Image:           spec.Image,
				Command:         spec.Command,
				Args:            spec.Args,
				Env:             spec.Env,
				EnvFrom:         spec.EnvFrom,
				Ports:           spec.Ports,
				Resources:       spec.Resources,
				LivenessProbe:   spec.LivenessProbe,
				ReadinessProbe:  spec.ReadinessProbe,
				StartupProbe:    spec.StartupProbe,
				SecurityContext: spec.SecurityContext,
				VolumeMounts:    spec.VolumeMounts,
				ImagePullPolicy: spec.ImagePullPolicy,
			}},
			// A container that merely exits is restarted inside its pod by the kubelet: cheaper, and the pod keeps its
			// node, address and volumes. The pod as a whole ends by eviction, preemption, node shutdown or deletion.
			RestartPolicy:                 corev1.RestartPolicyAlways,
			SecurityContext:               spec.PodSecurityContext,
			Volumes:                       spec.Volumes,
			ImagePullSecrets:              spec.ImagePullSecrets,
			ServiceAccountName:            spec.ServiceAccountName,
			NodeSelector:                  spec.NodeSelector,
			Tolerations:                   spec.Tolerations,
			PriorityClassName:             spec.PriorityClassName,
			TerminationGracePeriodSeconds: spec.TerminationGracePeriodSeconds,
		},
	}
}

// ProtectingLabels are the labels that a pod of the ImmortalContainer with this name must carry.
func ProtectingLabels(container string) map[string]string {
	return map[string]string{
		v1alpha1.ControllerLabel: container,
		v1alpha1.ProtectedLabel:  v1alpha1.ProtectedValue,
	}
}
