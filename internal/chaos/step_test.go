// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"blackadder.io/blackadder/api/blackadder/v1beta1"
)

func lasting(duration time.Duration) *metav1.Duration { return &metav1.Duration{Duration: duration} }

func TestNextStep(t *testing.T) {
	type change = func(*v1beta1.ChaosAgent)
	specified := func(f func(*v1beta1.ChaosAgentSpec)) change {
		return func(agent *v1beta1.ChaosAgent) { f(&agent.Spec) }
	}
	deleting := func(agent *v1beta1.ChaosAgent) { agent.DeletionTimestamp = ptr.To(metav1.NewTime(now)) }
	expiring := func(after time.Duration) change {
		return specified(func(spec *v1beta1.ChaosAgentSpec) { spec.ExpiresAfter = lasting(after) })
	}
	suspended := specified(func(spec *v1beta1.ChaosAgentSpec) { spec.Suspend = true })
	invalid := specified(func(spec *v1beta1.ChaosAgentSpec) { spec.Schedule = windows("Nowhere", between("09:00", "10:00")) })
	modeless := specified(func(spec *v1beta1.ChaosAgentSpec) { spec.TantrumMode = false })
	open := func(from, to string) change {
		return specified(func(spec *v1beta1.ChaosAgentSpec) { spec.Schedule = windows("", between(from, to)) })
	}
	interrupted := func(generation int64) change {
		return func(agent *v1beta1.ChaosAgent) {
			agent.Status.LastCycle = &v1beta1.Cycle{Number: 4, Generation: generation, StartTime: *at(-time.Minute)}
		}
	}
	completed := func(agent *v1beta1.ChaosAgent) {
		agent.Status.LastCycle = &v1beta1.Cycle{Number: 4, Generation: 1, StartTime: *at(-time.Minute), CompletionTime: at(-time.Minute)}
	}
	due := func(offset time.Duration) change {
		return func(agent *v1beta1.ChaosAgent) { agent.Status.NextCycleTime = at(offset) }
	}
	dry := specified(func(spec *v1beta1.ChaosAgentSpec) { spec.DryRun = true })
	const (
		active    = "cycles run 30 s apart"
		expired   = "expired at 2026-11-21T11:30:00Z, 30m0s after its creation; nothing starts it again but a later spec.expiresAfter"
		noZone    = `spec.schedule.timeZone: Invalid value: "Nowhere": must be the name of an IANA time zone, such as "Europe/Berlin"`
		noMode    = "no mode is on: set spec.tantrumMode, spec.cancerMode or spec.ipsumMode"
		opensAt13 = "the next window opens at 2026-11-21T13:00:00Z"
		halfHour  = 30 * time.Minute
	)
	gone := now.Add(-halfHour)

	for name, c := range map[string]struct {
		changes []change
		want    Step
	}{
		"new": {nil, Step{Action: Run, Ready: true, Reason: "Active", Message: active, Next: now}},
		"due": {[]change{completed, due(0)}, Step{Action: Run, Ready: true, Reason: "Active", Message: active, Next: now}},
		"overdue": {
			[]change{completed, due(-time.Hour)}, Step{Action: Run, Ready: true, Reason: "Active", Message: active, Next: now.Add(-time.Hour)},
		},
		"not due yet": {
			[]change{completed, due(time.Nanosecond * 1000)}, Step{Action: Wait, Ready: true, Reason: "Active", Message: active, Next: now.Add(time.Microsecond)},
		},
		"another pause": {
			[]change{completed, due(time.Hour), specified(func(spec *v1beta1.ChaosAgentSpec) { spec.PauseDuration = 3600 })},
			Step{Action: Wait, Ready: true, Reason: "Active", Message: "cycles run 3600 s apart", Next: now.Add(time.Hour)},
		},
		"a pause that was made shorter": {[]change{completed, due(time.Hour)}, Step{Action: Wait, Ready: true, Reason: "Active", Message: active, Next: now.Add(30 * time.Second)}},
		"halted, and not due": {
			[]change{completed, due(time.Second), halted(1)}, Step{Action: Wait, Reason: "Halted", Message: "too much is broken", Next: now.Add(time.Second)},
		},
		"halted, and due":                {[]change{completed, due(0), halted(1)}, Step{Action: Run, Ready: true, Reason: "Active", Message: active, Next: now}},
		"halted before the spec changed": {[]change{completed, due(time.Second), halted(0)}, Step{Action: Wait, Ready: true, Reason: "Active", Message: active, Next: now.Add(time.Second)}},
		"the longest pause": {
			[]change{specified(func(spec *v1beta1.ChaosAgentSpec) { spec.PauseDuration = 31536000 })},
			Step{Action: Run, Ready: true, Reason: "Active", Message: "cycles run 31536000 s apart", Next: now},
		},
		"no pause given": {
			[]change{specified(func(spec *v1beta1.ChaosAgentSpec) { spec.PauseDuration = 0 })},
			Step{Action: Run, Ready: true, Reason: "Active", Message: active, Next: now},
		},
		"dry run":          {[]change{dry}, Step{Action: Run, Ready: true, Reason: "DryRun", Message: "cycles are planned and reported, and touch nothing (spec.dryRun)", Next: now}},
		"dry run, waiting": {[]change{dry, due(time.Second)}, Step{Action: Wait, Ready: true, Reason: "DryRun", Message: "cycles are planned and reported, and touch nothing (spec.dryRun)", Next: now.Add(time.Second)}},

		"deleted":               {[]change{deleting}, Step{Action: Stop, Reason: "Deleting", Message: "the agent is being deleted"}},
		"deleted, and the rest": {[]change{deleting, expiring(halfHour), suspended, invalid, modeless}, Step{Action: Stop, Reason: "Deleting", Message: "the agent is being deleted", Expires: gone}},
		"deleted, interrupted":  {[]change{deleting, interrupted(1)}, Step{Action: Stop, Reason: "Deleting", Message: "the agent is being deleted"}},

		"expired":                {[]change{expiring(halfHour)}, Step{Action: Stop, Reason: "Expired", Message: expired, Expires: gone}},
		"expired, and suspended": {[]change{expiring(halfHour), suspended, invalid, modeless}, Step{Action: Stop, Reason: "Expired", Message: expired, Expires: gone}},
		"expired, interrupted":   {[]change{expiring(halfHour), interrupted(1)}, Step{Action: Stop, Reason: "Expired", Message: expired, Expires: gone}},
		"expires right now": {
			[]change{expiring(time.Hour)},
			Step{Action: Stop, Reason: "Expired", Message: "expired at 2026-11-21T12:00:00Z, 1h0m0s after its creation; nothing starts it again but a later spec.expiresAfter", Expires: now},
		},
		"expires soon": {
			[]change{expiring(time.Hour + time.Second)},
			Step{Action: Run, Ready: true, Reason: "Active", Message: active, Next: now, Expires: now.Add(time.Second)},
		},

		"suspended":              {[]change{suspended}, Step{Action: Stop, Reason: "Suspended", Message: "suspended by spec.suspend"}},
		"suspended, and invalid": {[]change{suspended, invalid, modeless, due(0)}, Step{Action: Stop, Reason: "Suspended", Message: "suspended by spec.suspend"}},
		"suspended, expires soon": {
			[]change{suspended, expiring(2 * time.Hour)}, Step{Action: Stop, Reason: "Suspended", Message: "suspended by spec.suspend", Expires: now.Add(time.Hour)},
		},
		"suspended, interrupted": {[]change{suspended, interrupted(1)}, Step{Action: Stop, Reason: "Suspended", Message: "suspended by spec.suspend"}},

		"invalid":              {[]change{invalid}, Step{Action: Wait, Reason: "InvalidSpec", Message: noZone}},
		"invalid, and no mode": {[]change{invalid, modeless, interrupted(1)}, Step{Action: Wait, Reason: "InvalidSpec", Message: noZone}},
		"invalid in two ways": {
			[]change{invalid, specified(func(spec *v1beta1.ChaosAgentSpec) {
				spec.NamespaceSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "stage", Operator: "In"}}}
			})},
			Step{Action: Wait, Reason: "InvalidSpec", Message: "[" + noZone + `, spec.namespaceSelector.matchExpressions[0].values: Required value: must be specified when ` + "`operator`" + ` is 'In' or 'NotIn']`},
		},
		"invalid podSelector": {
			[]change{specified(func(spec *v1beta1.ChaosAgentSpec) {
				spec.PodSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "stage", Operator: "Like"}}}
			})},
			Step{Action: Wait, Reason: "InvalidSpec", Message: `spec.podSelector.matchExpressions[0].operator: Invalid value: "Like": not a valid selector operator`},
		},

		"no mode":                     {[]change{modeless}, Step{Action: Wait, Reason: "NoMode", Message: noMode}},
		"no mode, and outside":        {[]change{modeless, open("13:00", "14:00"), due(0)}, Step{Action: Wait, Reason: "NoMode", Message: noMode}},
		"no mode, interrupted":        {[]change{modeless, interrupted(1)}, Step{Action: Wait, Reason: "NoMode", Message: noMode}},
		"no mode, expires soon":       {[]change{modeless, expiring(2 * time.Hour)}, Step{Action: Wait, Reason: "NoMode", Message: noMode, Expires: now.Add(time.Hour)}},
		"outside the window":          {[]change{open("13:00", "14:00")}, Step{Action: Wait, Ready: true, Reason: "OutsideWindow", Message: opensAt13, Next: now.Add(time.Hour)}},
		"outside, dry":                {[]change{open("13:00", "14:00"), dry}, Step{Action: Wait, Ready: true, Reason: "OutsideWindow", Message: opensAt13, Next: now.Add(time.Hour)}},
		"outside, interrupted":        {[]change{open("13:00", "14:00"), interrupted(1), due(0)}, Step{Action: Wait, Ready: true, Reason: "OutsideWindow", Message: opensAt13, Next: now.Add(time.Hour)}},
		"outside, just closed":        {[]change{open("11:00", "12:00")}, Step{Action: Wait, Ready: true, Reason: "OutsideWindow", Message: "the next window opens at 2026-11-22T11:00:00Z", Next: now.Add(23 * time.Hour)}},
		"outside, expires before":     {[]change{open("13:00", "14:00"), expiring(90 * time.Minute)}, Step{Action: Wait, Ready: true, Reason: "OutsideWindow", Message: opensAt13, Next: now.Add(time.Hour), Expires: now.Add(halfHour)}},
		"in the window":               {[]change{open("12:00", "14:00")}, Step{Action: Run, Ready: true, Reason: "Active", Message: active, Next: now}},
		"in the window, later in it":  {[]change{open("12:00", "14:00"), due(20 * time.Second)}, Step{Action: Wait, Ready: true, Reason: "Active", Message: active, Next: now.Add(20 * time.Second)}},
		"in the window, due after it": {[]change{open("12:00", "14:00"), due(2 * time.Hour)}, Step{Action: Wait, Ready: true, Reason: "Active", Message: active, Next: now.Add(24 * time.Hour)}},
		"in the window, due in another": {
			[]change{specified(func(spec *v1beta1.ChaosAgentSpec) {
				spec.Schedule = windows("", between("11:00", "13:00"), between("14:30", "15:00"))
			}), due(2 * time.Hour)},
			Step{Action: Wait, Ready: true, Reason: "Active", Message: active, Next: now.Add(150 * time.Minute)},
		},

		"interrupted":              {[]change{interrupted(1)}, Step{Action: Resume, Ready: true, Reason: "Active", Message: active, Next: now}},
		"interrupted, and due":     {[]change{interrupted(1), due(-time.Second)}, Step{Action: Resume, Ready: true, Reason: "Active", Message: active, Next: now.Add(-time.Second)}},
		"interrupted, and not due": {[]change{interrupted(1), due(time.Second)}, Step{Action: Resume, Ready: true, Reason: "Active", Message: active, Next: now.Add(time.Second)}},
		"interrupted in a window":  {[]change{interrupted(1), open("12:00", "14:00")}, Step{Action: Resume, Ready: true, Reason: "Active", Message: active, Next: now}},
		"interrupted by a change":  {[]change{interrupted(0)}, Step{Action: Run, Ready: true, Reason: "Active", Message: active, Next: now}},
		"interrupted by a change, not due": {
			[]change{interrupted(0), due(time.Second)}, Step{Action: Wait, Ready: true, Reason: "Active", Message: active, Next: now.Add(time.Second)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			agent := anAgent(c.changes...)
			before := agent.DeepCopy()
			if diff := cmp.Diff(c.want, NextStep(agent, now)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if diff := cmp.Diff(before, agent); diff != "" {
				t.Errorf("the agent changed\n%s", diff)
			}
		})
	}
}

func TestInterrupted(t *testing.T) {
	for name, c := range map[string]struct {
		last *v1beta1.Cycle
		want bool
	}{
		"no cycle yet": {nil, false},
		"runs":         {&v1beta1.Cycle{}, true},
		"done":         {&v1beta1.Cycle{CompletionTime: at(0)}, false},
	} {
		if got := Interrupted(anAgent(func(agent *v1beta1.ChaosAgent) { agent.Status.LastCycle = c.last })); got != c.want {
			t.Errorf("%s: got %t, want %t", name, got, c.want)
		}
	}
}

func TestPause(t *testing.T) {
	for seconds, want := range map[int64]time.Duration{0: 30 * time.Second, 1: time.Second, 31536000: 365 * 24 * time.Hour} {
		if got := Pause(&v1beta1.ChaosAgentSpec{PauseDuration: seconds}); got != want {
			t.Errorf("%d: got %s, want %s", seconds, got, want)
		}
	}
}

func TestRestoreWanted(t *testing.T) {
	for policy, want := range map[v1beta1.RestorePolicy]bool{"": true, v1beta1.RestorePolicyOnStop: true, v1beta1.RestorePolicyNever: false} {
		if got := RestoreWanted(&v1beta1.ChaosAgentSpec{RestorePolicy: policy}); got != want {
			t.Errorf("%q: got %t, want %t", policy, got, want)
		}
	}
}

// halted is an agent whose Ready condition says so of a generation.
func halted(generation int64) func(*v1beta1.ChaosAgent) {
	return func(agent *v1beta1.ChaosAgent) {
		agent.Status.Conditions = append(agent.Status.Conditions, metav1.Condition{
			Type: "Ready", Status: "False", Reason: "Halted", Message: "too much is broken", ObservedGeneration: generation,
		})
	}
}
