// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

// Package conversion converts between the versions of our kinds, through the stored one. What the other version cannot hold
// travels in an annotation.
package conversion

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook/conversion"

	"blackadder.io/blackadder/api/blackadder/v1alpha1"
	"blackadder.io/blackadder/api/blackadder/v1beta1"
)

// ChaosAgent makes the converter of ChaosAgents.
func ChaosAgent(scheme *runtime.Scheme) (conversion.Converter, error) {
	return conversion.NewHubSpokeConverter(&v1beta1.ChaosAgent{},
		conversion.NewSpokeConverter(&v1alpha1.ChaosAgent{}, ChaosAgentToV1alpha1, ChaosAgentFromV1alpha1))(scheme)
}

// rest is what v1alpha1 cannot hold. The fields that it can hold are left empty.
type rest struct {
	Spec   v1beta1.ChaosAgentSpec   `json:"spec,omitzero"`
	Status v1beta1.ChaosAgentStatus `json:"status,omitzero"`
}

// ChaosAgentToV1alpha1 converts from the stored version.
func ChaosAgentToV1alpha1(_ context.Context, hub *v1beta1.ChaosAgent, spoke *v1alpha1.ChaosAgent) error {
	hub = hub.DeepCopy()
	spoke.ObjectMeta = hub.ObjectMeta
	spoke.Spec.TantrumMode, spoke.Spec.PodTolerance = hub.Spec.TantrumMode, hub.Spec.PodTolerance
	spoke.Status.ObservedGeneration, spoke.Status.Conditions = hub.Status.ObservedGeneration, hub.Status.Conditions

	if AnnotationFault(hub.Annotations) == nil {
		return annotate(spoke, hub)
	}
	// On its way to admission, which refuses it; overwriting it here would hide it from there.
	return nil
}

// annotate writes what v1alpha1 cannot hold, if there is anything.
func annotate(spoke *v1alpha1.ChaosAgent, hub *v1beta1.ChaosAgent) error {
	left := rest{Spec: hub.Spec, Status: hub.Status}
	left.Spec.TantrumMode, left.Spec.PodTolerance = false, 0
	left.Status.ObservedGeneration, left.Status.Conditions = 0, nil
	if equality.Semantic.DeepEqual(left, rest{}) {
		return nil
	}
	text, err := json.Marshal(left)
	if err != nil {
		return fmt.Errorf("writing the annotation %s: %w", v1alpha1.HubAnnotation, err)
	}
	if spoke.Annotations == nil {
		spoke.Annotations = map[string]string{}
	}
	spoke.Annotations[v1alpha1.HubAnnotation] = string(text)
	return nil
}

// ChaosAgentFromV1alpha1 converts to the stored version. An annotation that no conversion wrote stays where it is, for admission
// to refuse it with a clear message: an error here would be one of the server to the user.
func ChaosAgentFromV1alpha1(_ context.Context, spoke *v1alpha1.ChaosAgent, hub *v1beta1.ChaosAgent) error {
	spoke = spoke.DeepCopy()
	hub.ObjectMeta = spoke.ObjectMeta
	if left, err := read(spoke.Annotations); err == nil {
		hub.Spec, hub.Status = left.Spec, left.Status
		maps.DeleteFunc(hub.Annotations, func(key, _ string) bool { return key == v1alpha1.HubAnnotation })
		if len(hub.Annotations) == 0 {
			hub.Annotations = nil
		}
	}
	hub.Spec.TantrumMode, hub.Spec.PodTolerance = spoke.Spec.TantrumMode, spoke.Spec.PodTolerance
	hub.Status.ObservedGeneration, hub.Status.Conditions = spoke.Status.ObservedGeneration, spoke.Status.Conditions
	return nil
}

func read(annotations map[string]string) (rest, error) {
	var left rest
	text, there := annotations[v1alpha1.HubAnnotation]
	if !there {
		return left, nil
	}
	decoder := json.NewDecoder(bytes.NewReader([]byte(text)))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&left); err != nil {
		return rest{}, err
	}
	if decoder.More() {
		return rest{}, errors.New("there is more after its end")
	}
	return left, nil
}

// AnnotationFault says what is wrong with the annotation that conversion writes; nil if nothing is, or it is not there. On a
// stored object it is only ever there when something is.
func AnnotationFault(annotations map[string]string) error {
	_, err := read(annotations)
	return err
}
