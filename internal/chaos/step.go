// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"cmp"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"blackadder.io/blackadder/api/blackadder/v1beta1"
)

// Action is what there is to do for an agent now.
type Action int

// Actions.
const (
	// Wait until the step's time, or a change.
	Wait Action = iota
	// Run a new cycle.
	Run
	// Resume the cycle that was interrupted.
	Resume
	// Stop for good, or until the spec changes: put back what was changed.
	Stop
)

// Step is what comes next for an agent, and how its Ready condition tells of it.
type Step struct {
	Action Action
	// Ready, Reason and Message are the condition.
	Ready           bool
	Reason, Message string
	// Next is when the next cycle is due; zero if none is in sight.
	Next time.Time
	// Expires is when the agent expires; zero if never.
	Expires time.Time
}

// NextStep decides what there is to do for an agent.
func NextStep(agent *v1beta1.ChaosAgent, now time.Time) Step {
	spec := &agent.Spec
	step := Step{Action: Stop}
	if spec.ExpiresAfter != nil {
		step.Expires = agent.CreationTimestamp.Add(spec.ExpiresAfter.Duration)
	}
	switch {
	case agent.DeletionTimestamp != nil:
		return step.because(v1beta1.ReasonDeleting, "the agent is being deleted")
	case !step.Expires.IsZero() && !now.Before(step.Expires):
		return step.because(v1beta1.ReasonExpired, "expired at %s, %s after its creation; nothing starts it again but a later spec.expiresAfter", step.Expires.UTC().Format(time.RFC3339), spec.ExpiresAfter.Duration)
	case spec.Suspend:
		return step.because(v1beta1.ReasonSuspended, "suspended by spec.suspend")
	}
	step.Action = Wait
	schedule, faults := ParseSchedule(spec.Schedule, field.NewPath("spec", "schedule"))
	if faults = append(faults, selectorFaults(spec)...); len(faults) > 0 {
		return step.because(v1beta1.ReasonInvalidSpec, "%s", faults.ToAggregate())
	}
	if !AnyMode(spec) {
		return step.because(v1beta1.ReasonNoMode, "no mode is on: set spec.tantrumMode, spec.cancerMode or spec.ipsumMode")
	}
	if !schedule.Open(now) {
		step.Next, step.Ready = schedule.NextOpening(now), true
		return step.because(v1beta1.ReasonOutsideWindow, "the next window opens at %s", step.Next.UTC().Format(time.RFC3339))
	}
	return step.inWindow(agent, schedule, now)
}

func (s Step) because(reason, message string, values ...any) Step {
	s.Reason, s.Message = reason, fmt.Sprintf(message, values...)
	return s
}

func (s Step) inWindow(agent *v1beta1.ChaosAgent, schedule *Schedule, now time.Time) Step {
	s.Ready, s.Next = true, now
	if agent.Status.NextCycleTime != nil {
		s.Next = agent.Status.NextCycleTime.Time
	}
	// A pause that was made shorter counts at once.
	if soonest := now.Add(Pause(&agent.Spec)); s.Next.After(soonest) && schedule.Open(s.Next) {
		s.Next = soonest
	}
	switch {
	// A cycle follows the spec that it began with: a changed one makes a new cycle.
	case Interrupted(agent) && agent.Status.LastCycle.Generation == agent.Generation:
		s.Action = Resume
	case !now.Before(s.Next):
		s.Action = Run
	case !schedule.Open(s.Next):
		s.Next = schedule.NextOpening(s.Next)
	}
	ready := meta.FindStatusCondition(agent.Status.Conditions, v1beta1.ConditionReady)
	if s.Action == Wait && ready != nil && ready.Reason == v1beta1.ReasonHalted && ready.ObservedGeneration == agent.Generation {
		// Whether it still has to halt, the next cycle finds out.
		s.Ready = false
		return s.because(ready.Reason, "%s", ready.Message)
	}
	if agent.Spec.DryRun {
		return s.because(v1beta1.ReasonDryRun, "cycles are planned and reported, and touch nothing (spec.dryRun)")
	}
	return s.because(v1beta1.ReasonActive, "cycles run %d s apart", Pause(&agent.Spec)/time.Second)
}

// Interrupted tells whether the agent's last cycle began and did not end.
func Interrupted(agent *v1beta1.ChaosAgent) bool {
	return agent.Status.LastCycle != nil && agent.Status.LastCycle.CompletionTime == nil
}

// Pause between two cycles.
func Pause(spec *v1beta1.ChaosAgentSpec) time.Duration {
	return time.Duration(cmp.Or(spec.PauseDuration, v1beta1.DefaultPauseDuration)) * time.Second
}

// RestoreWanted tells whether an agent's changes are put back when it stops.
func RestoreWanted(spec *v1beta1.ChaosAgentSpec) bool {
	return spec.RestorePolicy != v1beta1.RestorePolicyNever
}
