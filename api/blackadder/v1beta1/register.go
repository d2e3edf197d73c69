// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of the kinds in this package.
var GroupVersion = schema.GroupVersion{Group: "blackadder.io", Version: "v1beta1"}

// SchemeGroupVersion is GroupVersion under the name that generated apply configurations use.
var SchemeGroupVersion = GroupVersion

// Kind is the kind of a ChaosAgent, as it stands in manifests.
const Kind = "ChaosAgent"

// SchemeBuilder collects the functions that add this package's kinds to a scheme.
var SchemeBuilder = runtime.NewSchemeBuilder(addKnownTypes)

// AddToScheme adds this package's kinds to a scheme.
var AddToScheme = SchemeBuilder.AddToScheme

func addKnownTypes(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &ChaosAgent{}, &ChaosAgentList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
