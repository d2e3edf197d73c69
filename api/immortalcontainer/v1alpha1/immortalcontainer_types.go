// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Names that ImmortalContainer puts on its pods, or reads from its objects. They are API: other programs select by them.
const (
	// PodNameSuffix follows the ImmortalContainer's name in the name of its pod. The webhook configuration picks
	// evictions by it, because an Eviction carries no labels.
	PodNameSuffix = "-immortalpod"
	// ContainerName is the name of the one container of the pod.
	ContainerName = "acontainer"

	// ControllerLabel holds the ImmortalContainer's name on its pod.
	ControllerLabel = "controller"
	// ProtectedLabel, with the value ProtectedValue, marks a pod that the protection webhook looks at.
	ProtectedLabel = "immortalcontainer.flugel.it/protected"
	// ProtectedValue is the only value of ProtectedLabel.
	ProtectedValue = "true"
	// GuardedLabel, with the value "true" on a Namespace, refuses the Namespace's deletion while immortal containers
	// live in it.
	GuardedLabel = "immortalcontainer.flugel.it/guarded"

	// StartAnnotation holds, on the pod, which start of the ImmortalContainer it is, counted from 1. It is written with
	// the pod, so that a crash before the status write can neither lose nor double the count.
	StartAnnotation = "immortalcontainer.flugel.it/start"
	// SpecHashAnnotation holds, on the pod, the hash of the spec that it was made from.
	SpecHashAnnotation = "immortalcontainer.flugel.it/spec-hash"
	// UnprotectedUntilAnnotation, on an ImmortalContainer, lifts the protection of its pod until the given time
	// (RFC 3339, at most one hour ahead).
	UnprotectedUntilAnnotation = "immortalcontainer.flugel.it/unprotected-until"
)

// Condition types of an ImmortalContainer.
const (
	// ConditionReady is true while the container's current pod is ready.
	ConditionReady = "Ready"
	// ConditionProtected is true while the pod's protection is in force, and false while it is lifted.
	ConditionProtected = "Protected"
)

// Reasons of ConditionReady.
const (
	// ReasonPodReady: the current pod is ready.
	ReasonPodReady = "PodReady"
	// ReasonPodNotReady: the current pod exists but is not ready yet, or not any more.
	ReasonPodNotReady = "PodNotReady"
	// ReasonPodUnschedulable: the scheduler finds no node for the current pod.
	ReasonPodUnschedulable = "PodUnschedulable"
	// ReasonPodTerminating: the old pod has to be gone before the next one, which takes its name, can be made.
	ReasonPodTerminating = "PodTerminating"
	// ReasonNodeLost: the old pod cannot go because its node does not answer.
	ReasonNodeLost = "NodeLost"
	// ReasonBackingOff: pods keep ending, and the next one is made after a delay.
	ReasonBackingOff = "BackingOff"
	// ReasonReplacing: the spec changed and the pod of the old spec is being replaced.
	ReasonReplacing = "Replacing"
	// ReasonNameConflict: a pod that belongs to somebody else holds the name.
	ReasonNameConflict = "NameConflict"
	// ReasonQuotaExceeded: a ResourceQuota refuses the pod.
	ReasonQuotaExceeded = "QuotaExceeded"
	// ReasonPodSecurityViolation: the namespace's Pod Security level refuses the pod.
	ReasonPodSecurityViolation = "PodSecurityViolation"
	// ReasonNamespaceTerminating: the namespace is being deleted; no pod will be made in it any more.
	ReasonNamespaceTerminating = "NamespaceTerminating"
	// ReasonPodInvalid: the API server finds the pod invalid.
	ReasonPodInvalid = "PodInvalid"
	// ReasonPodRefused: the API server refuses the pod for a reason that has no name of its own here.
	ReasonPodRefused = "PodRefused"
)

// Reasons of ConditionProtected.
const (
	// ReasonEnforced: only the controller may remove the pod.
	ReasonEnforced = "Enforced"
	// ReasonBreakGlass: UnprotectedUntilAnnotation lifts the protection.
	ReasonBreakGlass = "BreakGlass"
)

// ImmortalContainer keeps one pod alive: the pod is created again whenever it is deleted or has ended, and while the
// ImmortalContainer lives, nobody but its controller can delete the pod. Drains of cordoned nodes, garbage collection
// and the deletion of namespaces keep working.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Namespaced,shortName=ic
// +kubebuilder:printcolumn:name="Image",type=string,JSONPath=`.spec.image`,description="The image that the container runs."
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`,description="Whether the current pod is ready."
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`,description="Why it is, or is not, ready."
// +kubebuilder:printcolumn:name="Pod",type=string,JSONPath=`.status.currentPod`,description="The current pod."
// +kubebuilder:printcolumn:name="Starts",type=integer,JSONPath=`.status.startTimes`,description="How many times a pod was created."
// +kubebuilder:printcolumn:name="Last Start",type=date,JSONPath=`.status.lastStartTime`,description="When the current pod was created."
// +kubebuilder:printcolumn:name="Protected",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Protected")].status`,description="Whether the pod's protection is in force."
// +kubebuilder:printcolumn:name="Last Exit",type=string,priority=1,JSONPath=`.status.lastExit.reason`,description="Why the last pod that ended by itself did so."
// +kubebuilder:printcolumn:name="Backoff Until",type=string,priority=1,JSONPath=`.status.restartBackoffUntil`,description="When the next pod may be created."
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",message="metadata.name must have at most 63 characters: it becomes the value of the pod's label \"controller\""
type ImmortalContainer struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// The pod to keep alive. A change of anything in it replaces the pod: the old one is terminated, and the new one is
	// created when the old one is gone, because both have the same name.
	// +optional
	Spec ImmortalContainerSpec `json:"spec,omitzero"`
	// What the controller observed last. Written by the controller alone.
	// +optional
	Status ImmortalContainerStatus `json:"status,omitzero"`
}

// ImmortalContainerSpec describes the pod to keep alive.
//
// +kubebuilder:validation:XValidation:rule="!has(self.podLabels) || !self.podLabels.exists(k, k == 'controller' || k.startsWith('immortalcontainer.flugel.it/'))",message="podLabels may not set \"controller\" or a label of immortalcontainer.flugel.it/: the controller sets them, and the pod's protection rests on them",fieldPath=".podLabels"
// +kubebuilder:validation:XValidation:rule="!has(self.podAnnotations) || !self.podAnnotations.exists(k, k.startsWith('immortalcontainer.flugel.it/'))",message="podAnnotations may not set an annotation of immortalcontainer.flugel.it/: the controller sets them",fieldPath=".podAnnotations"
type ImmortalContainerSpec struct {
	// Image that the container runs, for example "nginx:1.29" or "registry.example.com/team/app@sha256:...". Left out, it
	// becomes the operator's default image. A tag that may move ("latest", or none) is accepted with a warning, because
	// the pod that comes back may then run something else.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	Image string `json:"image,omitempty" validate:"omitempty,image_reference"`

	// Entrypoint of the container, not run within a shell. Left out, the image's ENTRYPOINT is used. References $(NAME)
	// are expanded from the container's environment.
	// +optional
	// +listType=atomic
	Command []string `json:"command,omitempty"`
	// Arguments to the entrypoint. Left out, the image's CMD is used. References $(NAME) are expanded from the
	// container's environment.
	// +optional
	// +listType=atomic
	Args []string `json:"args,omitempty"`
	// Environment variables of the container.
	// +optional
	// +listType=map
	// +listMapKey=name
	Env []corev1.EnvVar `json:"env,omitempty"`
	// Sources (ConfigMaps, Secrets) whose keys all become environment variables of the container. Values in env win.
	// +optional
	// +listType=atomic
	EnvFrom []corev1.EnvFromSource `json:"envFrom,omitempty"`
	// Ports that the container exposes.
	// +optional
	// +listType=map
	// +listMapKey=containerPort
	// +listMapKey=protocol
	Ports []corev1.ContainerPort `json:"ports,omitempty"`
	// Compute resources of the container: requests and limits.
	// +optional
	Resources corev1.ResourceRequirements `json:"resources,omitzero"`

	// Probe that restarts the container inside its pod when it fails.
	// +optional
	LivenessProbe *corev1.Probe `json:"livenessProbe,omitempty"`
	// Probe that decides whether the pod, and so the ImmortalContainer, is ready.
	// +optional
	ReadinessProbe *corev1.Probe `json:"readinessProbe,omitempty"`
	// Probe that holds the other probes back until it succeeds once.
	// +optional
	StartupProbe *corev1.Probe `json:"startupProbe,omitempty"`

	// Security settings of the container. A namespace that enforces the Pod Security level "restricted" needs
	// runAsNonRoot, allowPrivilegeEscalation: false, seccompProfile and dropped capabilities here.
	// +optional
	SecurityContext *corev1.SecurityContext `json:"securityContext,omitempty"`
	// Security settings of the pod, such as fsGroup.
	// +optional
	PodSecurityContext *corev1.PodSecurityContext `json:"podSecurityContext,omitempty"`

	// Where the volumes are mounted in the container.
	// +optional
	// +listType=map
	// +listMapKey=mountPath
	VolumeMounts []corev1.VolumeMount `json:"volumeMounts,omitempty"`
	// Volumes of the pod. What has to survive the pod belongs in a PersistentVolumeClaim.
	// +optional
	// +listType=map
	// +listMapKey=name
	Volumes []corev1.Volume `json:"volumes,omitempty"`

	// When the image is pulled: Always, IfNotPresent or Never. Left out, Always for the tag "latest", else IfNotPresent.
	// +optional
	// +kubebuilder:validation:Enum=Always;IfNotPresent;Never
	ImagePullPolicy corev1.PullPolicy `json:"imagePullPolicy,omitempty"`
	// Secrets in the same namespace with credentials for pulling the image.
	// +optional
	// +listType=map
	// +listMapKey=name
	ImagePullSecrets []corev1.LocalObjectReference `json:"imagePullSecrets,omitempty"`
	// ServiceAccount that the pod runs as. Left out, the namespace's "default".
	// +optional
	// +kubebuilder:validation:MaxLength=253
	ServiceAccountName string `json:"serviceAccountName,omitempty"`

	// Labels that a node must have for the pod to run there.
	// +optional
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	// Taints that the pod tolerates.
	// +optional
	// +listType=atomic
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`
	// PriorityClass of the pod. A precious pod that must not be preempted needs a high one.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	PriorityClassName string `json:"priorityClassName,omitempty"`
	// Seconds that the container gets between the termination signal and being killed. Left out, 30.
	// +optional
	// +kubebuilder:validation:Minimum=0
	TerminationGracePeriodSeconds *int64 `json:"terminationGracePeriodSeconds,omitempty"`

	// Further labels of the pod. "controller" and labels of immortalcontainer.flugel.it/ are the controller's own.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	PodLabels map[string]string `json:"podLabels,omitempty"`
	// Further annotations of the pod. Annotations of immortalcontainer.flugel.it/ are the controller's own.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	PodAnnotations map[string]string `json:"podAnnotations,omitempty"`
}

// ImmortalContainerStatus is what the controller observed last.
type ImmortalContainerStatus struct {
	// The metadata.generation that this status was computed from. A smaller value than metadata.generation means that
	// the controller has not seen the last change yet.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Ready summarises whether the pod serves, with the reason when it does not. Protected tells whether the pod's
	// protection is in force.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// Name of the current pod, in the same namespace. Empty while there is none.
	// +optional
	CurrentPod string `json:"currentPod,omitempty"`
	// How many times a pod was created for this ImmortalContainer.
	// +optional
	StartTimes int64 `json:"startTimes,omitempty"`
	// When the last of them was created.
	// +optional
	LastStartTime *metav1.Time `json:"lastStartTime,omitempty"`
	// No pod is created before this time, because the last ones ended too soon: 1 second after the first, doubling with
	// each further one up to 5 minutes. A pod that lives for 10 minutes starts the count anew.
	// +optional
	RestartBackoffUntil *metav1.Time `json:"restartBackoffUntil,omitempty"`
	// How many pods in a row ended by themselves before they were 10 minutes old.
	// +optional
	ConsecutiveExits int32 `json:"consecutiveExits,omitempty"`
	// How the last pod that ended by itself (was not deleted) ended.
	// +optional
	LastExit *ExitStatus `json:"lastExit,omitempty"`
}

// ExitStatus tells how a pod ended.
type ExitStatus struct {
	// Which start of the ImmortalContainer the pod was, counted from 1.
	// +optional
	Start int64 `json:"start,omitempty"`
	// Failed or Succeeded.
	// +optional
	Phase corev1.PodPhase `json:"phase,omitempty"`
	// Why, in one word: the pod's own reason, such as Evicted, else the container's, such as OOMKilled or Error.
	// +optional
	Reason string `json:"reason,omitempty"`
	// The container's exit code, where the container ran.
	// +optional
	ExitCode *int32 `json:"exitCode,omitempty"`
	// Details, at most 1,024 characters of them.
	// +optional
	Message string `json:"message,omitempty"`
	// When the pod ended.
	// +optional
	FinishedAt *metav1.Time `json:"finishedAt,omitempty"`
}

// ImmortalContainerList is a list of ImmortalContainers.
//
// +kubebuilder:object:root=true
type ImmortalContainerList struct {
	metav1.TypeMeta `json:",inline"`
	// Standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// The ImmortalContainers.
	Items []ImmortalContainer `json:"items"`
}
