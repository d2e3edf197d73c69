// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package chaosagent

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"blackadder.io/blackadder/api/blackadder/v1beta1"
	"blackadder.io/blackadder/internal/chaos"
)

// Reasons of the events on a ChaosAgent. Beside them, a Ready condition that turns to one of troubles or of rest makes an event
// with the condition's own reason.
const (
	eventCycle            = "Cycle"
	eventDryRun           = "DryRunCycle"
	eventNothingDone      = "NothingDone"
	eventRestored         = "Restored"
	eventRestoreFailing   = "RestoreFailing"
	eventRestoreAbandoned = "RestoreAbandoned"
)

// Reasons of the events on victims.
const (
	eventKilled      = "KilledByChaos"
	eventScaled      = "ScaledByChaos"
	eventOverwritten = "OverwrittenByChaos"
	eventRefused     = "SparedByBudget"
	eventPutBack     = "RestoredAfterChaos"
)

// Actions of the events: what the controller was doing.
const (
	actionCycle   = "RunCycle"
	actionRestore = "Restore"
	actionWait    = "Wait"
)

const (
	// mostVictimEvents bounds the events on victims of one mode in one cycle: thousands of them would cost as much as the
	// chaos itself. The status and the metrics count them all.
	mostVictimEvents = 50
	// longestNote is what the API takes as an event's note, in bytes; it refuses a longer one whole.
	longestNote = 1024
)

func (r *Reconciler) tell(regarding, related runtime.Object, kind, reason, action, note string, values ...any) {
	r.recorder.Eventf(regarding, related, kind, reason, action, "%s", chaos.Truncate(fmt.Sprintf(note, values...), longestNote))
}

// tellCycle tells what a cycle did; of one that did nothing only when the one before did something, or nothing for another
// reason.
func (r *Reconciler) tellCycle(before *v1beta1.Cycle, agent *v1beta1.ChaosAgent, plan *chaos.Plan) {
	cycle := agent.Status.LastCycle
	switch {
	case cycle.DryRun && len(plan.Victims) > 0:
		r.tell(agent, nil, corev1.EventTypeNormal, eventDryRun, actionCycle, "cycle %d would hit: %s (seed %d)", cycle.Number, listed(plan.Victims), cycle.Seed)
	case len(plan.Victims) > 0:
		r.tell(agent, nil, corev1.EventTypeNormal, eventCycle, actionCycle, "cycle %d: %s", cycle.Number, deeds(cycle))
	case before == nil || before.Reason != cycle.Reason:
		r.tell(agent, nil, corev1.EventTypeNormal, eventNothingDone, actionCycle, "cycle %d: %s", cycle.Number, cycle.Message)
	}
}

func deeds(cycle *v1beta1.Cycle) string {
	var parts []string
	for _, mode := range chaos.Modes() {
		report := chaos.ReportOf(cycle, mode)
		if report == nil || report.Victims == 0 {
			continue
		}
		verb := map[chaos.Mode]string{chaos.Tantrum: "killed", chaos.Cancer: "scaled", chaos.Ipsum: "overwrote"}[mode]
		texts := []string{fmt.Sprintf("%s %d of %d candidate %ss", verb, report.Done, report.Candidates, mode.Kind())}
		for _, other := range []struct {
			n    int32
			what string
		}{{report.Refused, "refused by budgets"}, {report.Spared, "spared"}, {report.Failed, "failed"}} {
			if other.n > 0 {
				texts = append(texts, fmt.Sprintf("%d %s", other.n, other.what))
			}
		}
		parts = append(parts, strings.Join(texts, ", "))
	}
	text := strings.Join(parts, "; ")
	if cycle.Reason == v1beta1.CycleStopped {
		text += "; " + cycle.Message
	}
	return text
}

// mostListed bounds the names in a dry run's event.
const mostListed = 12

func listed(victims []chaos.Victim) string {
	var names []string
	for i := range victims[:min(len(victims), mostListed)] {
		names = append(names, victims[i].Key().String())
	}
	text := strings.Join(names, ", ")
	if more := len(victims) - mostListed; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

func (r *Reconciler) tellVictim(agent *v1beta1.ChaosAgent, victim *chaos.Victim, result result) {
	target := reference(victim.Mode, victim.Meta.Namespace, victim.Meta.Name, victim.Meta.UID)
	switch {
	case result.verdict == refused:
		r.tell(target, agent, corev1.EventTypeNormal, eventRefused, actionCycle, "a disruption budget keeps it from ChaosAgent %q", agent.Name)
	case result.verdict != done:
	case victim.Mode == chaos.Tantrum:
		r.tell(target, agent, corev1.EventTypeWarning, eventKilled, actionCycle, "killed by ChaosAgent %q (%s)", agent.Name, victim.Reason)
	case victim.Mode == chaos.Cancer:
		r.tell(target, agent, corev1.EventTypeWarning, eventScaled, actionCycle, "scaled %s by ChaosAgent %q (%s)", result.reason, agent.Name, victim.Reason)
	default:
		r.tell(target, agent, corev1.EventTypeWarning, eventOverwritten, actionCycle, "%s overwritten by ChaosAgent %q (%s)", result.reason, agent.Name, victim.Reason)
	}
}

func reference(mode chaos.Mode, namespace, name string, uid types.UID) *corev1.ObjectReference {
	version := "v1"
	if mode == chaos.Cancer {
		version = "apps/v1"
	}
	return &corev1.ObjectReference{APIVersion: version, Kind: mode.Kind(), Namespace: namespace, Name: name, UID: uid}
}

func (r *Reconciler) tellPutBack(one record) {
	r.tell(reference(one.Mode, one.Namespace, one.Name, one.UID), nil, corev1.EventTypeNormal, eventPutBack, actionRestore,
		"put back to what it was before ChaosAgent %q", one.Agent)
}

// tellRestored tells what became of changes; of those that cannot be put back, once for each reason.
func (r *Reconciler) tellRestored(agent *v1beta1.ChaosAgent, fates map[fate]int, failing string) {
	told := meta.FindStatusCondition(agent.Status.Conditions, v1beta1.ConditionRestored)
	if failing != "" && (told == nil || told.Reason != v1beta1.ReasonRestoreFailing || !strings.Contains(told.Message, failing)) {
		r.tell(agent, nil, corev1.EventTypeWarning, eventRestoreFailing, actionRestore, "%d changes could not be put back yet: %s", fates[pending], failing)
	}
	if fates[restored]+fates[left]+fates[gone] > 0 {
		r.tell(agent, nil, corev1.EventTypeNormal, eventRestored, actionRestore,
			"put back %d objects; left %d alone that somebody else has changed since; %d are gone", fates[restored], fates[left], fates[gone])
	}
}

func (r *Reconciler) tellAbandoned(agent *v1beta1.ChaosAgent, one record) {
	r.tell(agent, reference(one.Mode, one.Namespace, one.Name, one.UID), corev1.EventTypeWarning, eventRestoreAbandoned, actionRestore,
		"%s could not be put back within %s; what it was before is kept in Secret %s/%s", &one.Entry, restoreDeadline, one.secret.Namespace, one.secret.Name)
}

// tellStatus tells of a Ready condition whose reason is new.
func (r *Reconciler) tellStatus(agent *v1beta1.ChaosAgent, before, after v1beta1.ChaosAgentStatus) {
	ready := meta.FindStatusCondition(after.Conditions, v1beta1.ConditionReady)
	if ready == nil || reasonOf(before, v1beta1.ConditionReady) == ready.Reason {
		return
	}
	switch ready.Reason {
	case v1beta1.ReasonHalted, v1beta1.ReasonInvalidSpec, v1beta1.ReasonCycleFailed:
		r.tell(agent, nil, corev1.EventTypeWarning, ready.Reason, actionWait, "%s", ready.Message)
	case v1beta1.ReasonSuspended, v1beta1.ReasonExpired, v1beta1.ReasonOutsideWindow, v1beta1.ReasonNoMode:
		r.tell(agent, nil, corev1.EventTypeNormal, ready.Reason, actionWait, "%s", ready.Message)
	}
}

func reasonOf(status v1beta1.ChaosAgentStatus, condition string) string {
	if found := meta.FindStatusCondition(status.Conditions, condition); found != nil {
		return found.Reason
	}
	return ""
}
