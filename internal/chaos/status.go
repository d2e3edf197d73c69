// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"blackadder.io/blackadder/api/blackadder/v1beta1"
)

// Tally is what became of the victims of one mode.
type Tally struct {
	Done, Refused, Spared, Failed int32
	LastError                     string
}

// Restoration is what is known of an agent's changes.
type Restoration struct {
	// Held is how many objects a change of the agent is in force on.
	Held int
	// Failing says why changes could not be put back; "" if none was tried in vain.
	Failing string
}

// Claim is the status to write before the first victim of a planned cycle is touched: whoever reads it later knows that the
// cycle began, and which victims it drew.
func Claim(status v1beta1.ChaosAgentStatus, plan *Plan) v1beta1.ChaosAgentStatus {
	next := *status.DeepCopy()
	next.LastCycle = plan.Cycle.DeepCopy()
	next.Totals.Cycles = plan.Cycle.Number
	next.NextCycleTime = nil
	return next
}

// Complete is the status after a claimed cycle. found is how many victims of each mode were there to be hit: after an
// interruption, those that are missing were hit before it. A cycle that had to stop gives the reason why. The next one is due
// after the pause.
func Complete(status v1beta1.ChaosAgentStatus, found map[Mode]int, tallies map[Mode]Tally, stopped string, now time.Time, pause time.Duration) v1beta1.ChaosAgentStatus {
	next := *status.DeepCopy()
	cycle := next.LastCycle
	cycle.CompletionTime = ptr.To(micro(now))
	cycle.Ranks = nil
	next.NextCycleTime = ptr.To(micro(now.Add(pause)))
	for _, mode := range Modes() {
		report := ReportOf(cycle, mode)
		if report == nil {
			continue
		}
		tally := tallies[mode]
		report.Done = tally.Done + max(0, report.Victims-int32(min(found[mode], 1<<30))) //nolint:gosec // Bounded.
		report.Refused, report.Spared, report.Failed, report.LastError = tally.Refused, tally.Spared, tally.Failed, tally.LastError
		if cycle.DryRun {
			report.Done = 0
			continue
		}
		next.Totals.Victims += int64(report.Done)
		next.Totals.Refused += int64(report.Refused)
		next.Totals.Failed += int64(report.Failed)
		*totalOf(&next.Totals, mode) += int64(report.Done)
	}
	if ready := meta.FindStatusCondition(next.Conditions, v1beta1.ConditionReady); ready != nil && ready.Reason == v1beta1.ReasonHalted {
		// A cycle ran: what halted the agent is over.
		ready.Reason = v1beta1.ReasonActive
	}
	if stopped != "" {
		cycle.Reason, cycle.Message = v1beta1.CycleStopped, stopped
	}
	return next
}

func totalOf(totals *v1beta1.Totals, mode Mode) *int64 {
	switch mode {
	case Cancer:
		return &totals.Deployments
	case Ipsum:
		return &totals.ConfigMaps
	case Tantrum:
	}
	return &totals.Pods
}

// NextStatus is the status that follows from a step, apart from what a cycle reports itself.
func NextStatus(agent *v1beta1.ChaosAgent, step Step, restoration Restoration, now time.Time) v1beta1.ChaosAgentStatus {
	status := *agent.Status.DeepCopy()
	status.ObservedGeneration = agent.Generation
	status.NextCycleTime = nil
	if !step.Next.IsZero() {
		status.NextCycleTime = ptr.To(micro(step.Next))
	}
	if Interrupted(agent) && step.Action != Resume {
		status.LastCycle.CompletionTime, status.LastCycle.Ranks = ptr.To(micro(now)), nil
		status.LastCycle.Reason, status.LastCycle.Message = v1beta1.CycleStopped, "interrupted, and not gone on with: "+step.Message
	}
	set(&status, agent.Generation, now, v1beta1.ConditionReady, step.Ready, step.Reason, step.Message)
	restored, reason, message := restoredCondition(&agent.Spec, step, restoration)
	set(&status, agent.Generation, now, v1beta1.ConditionRestored, restored, reason, message)
	return status
}

func restoredCondition(spec *v1beta1.ChaosAgentSpec, step Step, restoration Restoration) (restored bool, reason, message string) {
	changes := fmt.Sprintf("changes of %s are in force", count(restoration.Held, "object"))
	switch {
	case restoration.Held == 0:
		return true, v1beta1.ReasonNothingToRestore, "nothing waits to be put back"
	case restoration.Failing != "":
		return false, v1beta1.ReasonRestoreFailing, changes + ", and are tried to be put back again: " + restoration.Failing
	case !RestoreWanted(spec):
		return false, v1beta1.ReasonRestorePolicyNever, changes + ", and stay (spec.restorePolicy)"
	case step.Action == Stop:
		return false, v1beta1.ReasonRestoring, changes + ", and are being put back"
	}
	return false, v1beta1.ReasonChangesInForce, changes + ", and are put back when the agent is deleted, suspended or expired"
}

func set(status *v1beta1.ChaosAgentStatus, generation int64, now time.Time, kind string, is bool, reason, message string) {
	value := metav1.ConditionFalse
	if is {
		value = metav1.ConditionTrue
	}
	meta.SetStatusCondition(&status.Conditions, metav1.Condition{
		Type: kind, Status: value, ObservedGeneration: generation, Reason: reason, Message: Truncate(message, longestMessage), LastTransitionTime: metav1.NewTime(now),
	})
}

// longestMessage keeps a condition readable; the API would take 32 KiB.
const longestMessage = 1024

// Truncate cuts a text to a number of bytes, of which the last three say so, at a rune's border.
func Truncate(text string, most int) string {
	if len(text) <= most {
		return text
	}
	cut := max(0, most-len("…"))
	for cut > 0 && text[cut]&0xC0 == 0x80 {
		cut--
	}
	return text[:cut] + "…"
}

// micro is a time as exact as the API keeps it, so that what was written and what is read back are equal.
func micro(at time.Time) metav1.MicroTime {
	return metav1.NewMicroTime(at.UTC().Truncate(time.Microsecond))
}
