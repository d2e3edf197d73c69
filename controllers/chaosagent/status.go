// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package chaosagent

import (
	"context"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"blackadder.io/blackadder/api/blackadder/v1beta1"
	applyv1beta1 "blackadder.io/blackadder/api/blackadder/v1beta1/applyconfiguration/blackadder/v1beta1"
	"blackadder.io/blackadder/internal/chaos"
)

// writeStatus applies the status that follows from the outcome, if it is not there already.
func (r *Reconciler) writeStatus(ctx context.Context, done outcome) error {
	agent := done.agent
	status := chaos.NextStatus(agent, done.step, done.restoration, r.clock.Now())
	measured, pending := r.recoveries.report(agent.Name)
	status.Recovery = chaos.WithRecoveries(status.Recovery, measured, pending)
	if equality.Semantic.DeepEqual(status, done.written) {
		return nil
	}
	err := r.applyAnyway(ctx, agent, status, done.written)
	if err == nil {
		r.tellStatus(agent, done.written, status)
		return nil
	}
	r.recoveries.unreport(agent.Name, measured)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		// A newer version exists; its arrival in the cache reconciles again.
		return nil
	}
	return fmt.Errorf("writing the status: %w", err)
}

// applyAnyway applies a status. If the agent has changed meanwhile, and the status tells of a cycle that was run, that is told all
// the same as long as the cycle is still this one: nobody else could tell it later.
func (r *Reconciler) applyAnyway(ctx context.Context, agent *v1beta1.ChaosAgent, status, written v1beta1.ChaosAgentStatus) error {
	_, err := r.applyStatus(ctx, agent, status)
	for attempt := 1; attempt < attempts && apierrors.IsConflict(err) && ran(status, written); attempt++ {
		var live v1beta1.ChaosAgent
		if err := r.live.Get(ctx, client.ObjectKeyFromObject(agent), &live); err != nil {
			return err
		}
		if live.UID != agent.UID || !equality.Semantic.DeepEqual(live.Status.LastCycle, written.LastCycle) {
			return err
		}
		agent.ResourceVersion = live.ResourceVersion
		_, err = r.applyStatus(ctx, agent, status)
	}
	return err
}

// ran tells whether a status tells of the end of a cycle.
func ran(status, written v1beta1.ChaosAgentStatus) bool {
	return status.LastCycle != nil && !equality.Semantic.DeepEqual(status.LastCycle, written.LastCycle)
}

// applyStatus applies a status with the version that it was computed from, so that one from stale facts, or from a replica that
// leads no more, never overwrites a newer one. It returns the version that it made.
func (r *Reconciler) applyStatus(ctx context.Context, agent *v1beta1.ChaosAgent, status v1beta1.ChaosAgentStatus) (string, error) {
	text, err := json.Marshal(status)
	if err != nil {
		return "", fmt.Errorf("marshalling the status: %w", err)
	}
	// Both have the same JSON, so that no field can be forgotten.
	configuration := applyv1beta1.ChaosAgentStatus()
	if err := json.Unmarshal(text, configuration); err != nil {
		return "", fmt.Errorf("reading the status as something to apply: %w", err)
	}
	apply := applyv1beta1.ChaosAgent(agent.Name).WithUID(agent.UID).WithResourceVersion(agent.ResourceVersion).WithStatus(configuration)
	if err := r.client.Status().Apply(ctx, apply, client.FieldOwner(Name), client.ForceOwnership); err != nil {
		return "", err
	}
	return *apply.ResourceVersion, nil
}
