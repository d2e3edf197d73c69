// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package immortalcontainer

import (
	"context"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"blackadder.io/blackadder/api/immortalcontainer/v1alpha1"
	applyv1alpha1 "blackadder.io/blackadder/api/immortalcontainer/v1alpha1/applyconfiguration/immortalcontainer/v1alpha1"
	"blackadder.io/blackadder/internal/immortal"
)

// writeStatus applies the status that follows from the outcome, if it is not there already, and then tells in events
// what it says anew.
func (r *Reconciler) writeStatus(ctx context.Context, done outcome) error {
	container := done.observed.Container
	status := immortal.NextStatus(done.observed, done.step)
	if equality.Semantic.DeepEqual(status, container.Status) {
		return nil
	}
	configuration, err := statusConfiguration(status)
	if err != nil {
		return err
	}
	// With the version that the status was computed from: a status from stale facts must not overwrite a newer one.
	apply := applyv1alpha1.ImmortalContainer(container.Name, container.Namespace).
		WithResourceVersion(container.ResourceVersion).
		WithStatus(configuration)
	err = r.client.Status().Apply(ctx, apply, client.FieldOwner(Name), client.ForceOwnership)
	if apierrors.IsConflict(err) {
		// A newer version exists; its arrival in the cache reconciles again.
		return nil
	}
	if err != nil {
		return client.IgnoreNotFound(fmt.Errorf("writing the status: %w", err))
	}
	r.tellStatus(container, status)
	return nil
}

// statusConfiguration is the status as something to apply. Both have the same JSON, so that no field can be forgotten.
func statusConfiguration(status v1alpha1.ImmortalContainerStatus) (*applyv1alpha1.ImmortalContainerStatusApplyConfiguration, error) {
	text, err := json.Marshal(status)
	if err != nil {
		return nil, fmt.Errorf("marshalling the status: %w", err)
	}
	configuration := applyv1alpha1.ImmortalContainerStatus()
	if err := json.Unmarshal(text, configuration); err != nil {
		return nil, fmt.Errorf("reading the status as something to apply: %w", err)
	}
	return configuration, nil
}
