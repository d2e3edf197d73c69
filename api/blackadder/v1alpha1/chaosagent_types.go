// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// HubAnnotation carries what the stored version of a ChaosAgent knows and this one does not, as JSON, so that a client that
// reads this version and writes it back loses nothing. It never stands on a stored object.
const HubAnnotation = "blackadder.io/v1beta1"

// ChaosAgent deletes random pods. Its newer version v1beta1 can do more; everything that is set there is kept when this
// version is read and written back.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=ca
// +kubebuilder:printcolumn:name="Tantrum",type=boolean,JSONPath=`.spec.tantrumMode`,description="Kills pods randomly."
// +kubebuilder:printcolumn:name="Tolerance",type=integer,JSONPath=`.spec.podTolerance`,description="Pods are killed only while at least this many candidates exist."
type ChaosAgent struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`
	// spec says what chaos is wanted.
	// +optional
	Spec ChaosAgentSpec `json:"spec,omitzero"`
	// status says what the operator made of it.
	// +optional
	Status ChaosAgentStatus `json:"status,omitzero"`
}

// ChaosAgentSpec says what chaos is wanted.
type ChaosAgentSpec struct {
	// tantrumMode deletes random pods.
	// +kubebuilder:default=false
	// +optional
	TantrumMode bool `json:"tantrumMode"`

	// podTolerance is the number of candidates below which no pod is killed: pods are killed only while at least this many
	// candidates exist.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:default=0
	// +optional
	PodTolerance int32 `json:"podTolerance"`
}

// ChaosAgentStatus says what the operator made of the spec.
type ChaosAgentStatus struct {
	// observedGeneration is the generation of the spec that this status follows from.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions are the same as those of v1beta1.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ChaosAgentList is a list of ChaosAgents.
//
// +kubebuilder:object:root=true
type ChaosAgentList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the list's metadata.
	metav1.ListMeta `json:"metadata,omitempty"`
	// items are the ChaosAgents.
	Items []ChaosAgent `json:"items"`
}
