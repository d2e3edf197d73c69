// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"blackadder.io/blackadder/api/blackadder/v1beta1"
)

func TestClaim(t *testing.T) {
	status := v1beta1.ChaosAgentStatus{
		ObservedGeneration: 2, NextCycleTime: at(0), LastCycle: &v1beta1.Cycle{Number: 7, CompletionTime: at(-time.Minute)},
		Totals: v1beta1.Totals{Cycles: 7, Victims: 30, Pods: 30}, Recovery: &v1beta1.Recovery{Count: 3},
		Conditions: []metav1.Condition{{Type: "Ready"}},
	}
	before := *status.DeepCopy()
	plan := &Plan{Cycle: v1beta1.Cycle{Number: 8, Generation: 2, StartTime: *at(0), Seed: 5, Ranks: []string{"9"}, Pods: &v1beta1.ModeReport{Candidates: 3, Victims: 2}}}
	got := Claim(status, plan)
	want := *status.DeepCopy()
	want.NextCycleTime, want.Totals.Cycles, want.LastCycle = nil, 8, plan.Cycle.DeepCopy()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	got.LastCycle.Pods.Victims, got.Conditions[0].Type = 99, "x"
	if diff := cmp.Diff(before, status); diff != "" || plan.Cycle.Pods.Victims != 2 {
		t.Errorf("claiming shares memory with the plan or the old status\n%s", diff)
	}
}

func TestComplete(t *testing.T) {
	claimed := func(change ...func(*v1beta1.ChaosAgentStatus)) v1beta1.ChaosAgentStatus {
		status := v1beta1.ChaosAgentStatus{
			LastCycle: &v1beta1.Cycle{
				Number: 8, Reason: "Acted", Message: "as planned", StartTime: *at(-time.Minute),
				Pods: &v1beta1.ModeReport{Candidates: 9, Victims: 5}, Deployments: &v1beta1.ModeReport{Candidates: 4, Victims: 3},
				ConfigMaps: &v1beta1.ModeReport{Candidates: 2, Victims: 2},
			},
			Totals: v1beta1.Totals{Cycles: 8, Victims: 100, Pods: 60, Deployments: 30, ConfigMaps: 10, Refused: 7, Failed: 1},
		}
		for _, f := range change {
			f(&status)
		}
		return status
	}
	all := map[Mode]int{Tantrum: 5, Cancer: 3, Ipsum: 2}
	mixed := map[Mode]Tally{
		Tantrum: {Done: 2, Refused: 1, Spared: 1, Failed: 1, LastError: "no pods today"},
		Cancer:  {Done: 3},
		Ipsum:   {Spared: 1, Failed: 1, LastError: "too large"},
	}
	clean := map[Mode]Tally{Tantrum: {Done: 5}, Cancer: {Done: 3}, Ipsum: {Done: 2}}
	dry := func(status *v1beta1.ChaosAgentStatus) {
		status.LastCycle.DryRun, status.LastCycle.Reason = true, "DryRun"
	}
	for name, c := range map[string]struct {
		status  v1beta1.ChaosAgentStatus
		found   map[Mode]int
		tallies map[Mode]Tally
		stopped string
		// want changes the claimed status, but for the times.
		want func(*v1beta1.ChaosAgentStatus)
	}{
		"all hit": {claimed(), all, clean, "", func(status *v1beta1.ChaosAgentStatus) {
			status.LastCycle.Pods.Done, status.LastCycle.Deployments.Done, status.LastCycle.ConfigMaps.Done = 5, 3, 2
			status.Totals = v1beta1.Totals{Cycles: 8, Victims: 110, Pods: 65, Deployments: 33, ConfigMaps: 12, Refused: 7, Failed: 1}
		}},
		"mixed": {claimed(), all, mixed, "", func(status *v1beta1.ChaosAgentStatus) {
			status.LastCycle.Pods = &v1beta1.ModeReport{Candidates: 9, Victims: 5, Done: 2, Refused: 1, Spared: 1, Failed: 1, LastError: "no pods today"}
			status.LastCycle.Deployments.Done = 3
			status.LastCycle.ConfigMaps = &v1beta1.ModeReport{Candidates: 2, Victims: 2, Spared: 1, Failed: 1, LastError: "too large"}
			status.Totals = v1beta1.Totals{Cycles: 8, Victims: 105, Pods: 62, Deployments: 33, ConfigMaps: 10, Refused: 8, Failed: 3}
		}},
		"stopped": {claimed(), all, map[Mode]Tally{Tantrum: {Done: 1, Spared: 4}, Cancer: {Spared: 3}, Ipsum: {Spared: 2}}, "the spec was changed while the cycle ran", func(status *v1beta1.ChaosAgentStatus) {
			status.LastCycle.Pods.Done, status.LastCycle.Pods.Spared = 1, 4
			status.LastCycle.Deployments.Spared, status.LastCycle.ConfigMaps.Spared = 3, 2
			status.LastCycle.Reason, status.LastCycle.Message = "Stopped", "the spec was changed while the cycle ran"
			status.Totals.Victims, status.Totals.Pods = 101, 61
		}},
		"dry run":              {claimed(dry), all, nil, "", func(*v1beta1.ChaosAgentStatus) {}},
		"dry run with tallies": {claimed(dry), nil, clean, "", func(*v1beta1.ChaosAgentStatus) {}},
		"resumed, some missing": {claimed(), map[Mode]int{Tantrum: 1, Cancer: 3}, map[Mode]Tally{Tantrum: {Done: 1}, Cancer: {Done: 2, Spared: 1}}, "", func(status *v1beta1.ChaosAgentStatus) {
			status.LastCycle.Pods.Done = 5
			status.LastCycle.Deployments.Done, status.LastCycle.Deployments.Spared = 2, 1
			status.LastCycle.ConfigMaps.Done = 2
			status.Totals = v1beta1.Totals{Cycles: 8, Victims: 109, Pods: 65, Deployments: 32, ConfigMaps: 12, Refused: 7, Failed: 1}
		}},
		"resumed, all missing": {claimed(), nil, nil, "", func(status *v1beta1.ChaosAgentStatus) {
			status.LastCycle.Pods.Done, status.LastCycle.Deployments.Done, status.LastCycle.ConfigMaps.Done = 5, 3, 2
			status.Totals = v1beta1.Totals{Cycles: 8, Victims: 110, Pods: 65, Deployments: 33, ConfigMaps: 12, Refused: 7, Failed: 1}
		}},
		"modes that were off": {
			claimed(func(status *v1beta1.ChaosAgentStatus) {
				status.LastCycle.Pods, status.LastCycle.ConfigMaps = nil, nil
			}), all, clean, "", func(status *v1beta1.ChaosAgentStatus) {
				status.LastCycle.Deployments.Done = 3
				status.Totals.Victims, status.Totals.Deployments = 103, 33
			},
		},
		"no victims": {
			claimed(func(status *v1beta1.ChaosAgentStatus) {
				status.LastCycle.Pods, status.LastCycle.Deployments, status.LastCycle.ConfigMaps = &v1beta1.ModeReport{Candidates: 4}, nil, nil
			}), nil, nil, "", func(*v1beta1.ChaosAgentStatus) {},
		},
	} {
		t.Run(name, func(t *testing.T) {
			before := *c.status.DeepCopy()
			want := *c.status.DeepCopy()
			want.LastCycle.CompletionTime, want.NextCycleTime = at(0), at(90*time.Second)
			c.want(&want)
			got := Complete(c.status, c.found, c.tallies, c.stopped, now, 90*time.Second)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if diff := cmp.Diff(before, c.status); diff != "" {
				t.Errorf("the claimed status changed\n%s", diff)
			}
		})
	}
}

// condition is one of a status, as "status reason: message".
func condition(t *testing.T, status v1beta1.ChaosAgentStatus, kind string) string {
	t.Helper()
	for _, one := range status.Conditions {
		if one.Type == kind {
			return string(one.Status) + " " + one.Reason + ": " + one.Message
		}
	}
	t.Errorf("no condition %s", kind)
	return ""
}

func TestConditions(t *testing.T) {
	never := func(spec *v1beta1.ChaosAgentSpec) { spec.RestorePolicy = v1beta1.RestorePolicyNever }
	running := Step{Action: Run, Ready: true, Reason: "Active", Message: "cycles run 30 s apart", Next: now}
	stopping := Step{Action: Stop, Reason: "Suspended", Message: "suspended by spec.suspend"}
	const (
		active    = "True Active: cycles run 30 s apart"
		suspended = "False Suspended: suspended by spec.suspend"
		nothing   = "True NothingToRestore: nothing waits to be put back"
	)
	for name, c := range map[string]struct {
		spec            func(*v1beta1.ChaosAgentSpec)
		step            Step
		restoration     Restoration
		ready, restored string
	}{
		"nothing changed":                 {nil, running, Restoration{}, active, nothing},
		"nothing changed, stopping":       {nil, stopping, Restoration{}, suspended, nothing},
		"nothing changed, never restored": {never, running, Restoration{}, active, nothing},
		"changes in force":                {nil, running, Restoration{Held: 2}, active, "False ChangesInForce: changes of 2 objects are in force, and are put back when the agent is deleted, suspended or expired"},
		"changes in force, waiting": {
			nil,
			Step{Action: Wait, Reason: "NoMode", Message: "m"},
			Restoration{Held: 3},
			"False NoMode: m",
			"False ChangesInForce: changes of 3 objects are in force, and are put back when the agent is deleted, suspended or expired",
		},
		"being put back": {nil, stopping, Restoration{Held: 2}, suspended, "False Restoring: changes of 2 objects are in force, and are being put back"},
		"failing": {
			nil, stopping,
			Restoration{Held: 2, Failing: "Deployment team/web: no"},
			suspended,
			"False RestoreFailing: changes of 2 objects are in force, and are tried to be put back again: Deployment team/web: no",
		},
		"never put back":           {never, running, Restoration{Held: 2}, active, "False RestorePolicyNever: changes of 2 objects are in force, and stay (spec.restorePolicy)"},
		"never put back, stopping": {never, stopping, Restoration{Held: 2}, suspended, "False RestorePolicyNever: changes of 2 objects are in force, and stay (spec.restorePolicy)"},
	} {
		t.Run(name, func(t *testing.T) {
			agent := anAgent(func(agent *v1beta1.ChaosAgent) {
				agent.Generation = 6
				if c.spec != nil {
					c.spec(&agent.Spec)
				}
			})
			before := agent.DeepCopy()
			status := NextStatus(agent, c.step, c.restoration, now)
			if got := condition(t, status, "Ready"); got != c.ready {
				t.Errorf("got  %s\nwant %s", got, c.ready)
			}
			if got := condition(t, status, "Restored"); got != c.restored {
				t.Errorf("got  %s\nwant %s", got, c.restored)
			}
			for _, one := range status.Conditions {
				if one.ObservedGeneration != 6 || !one.LastTransitionTime.Time.Equal(now) {
					t.Errorf("%s is of generation %d, at %s", one.Type, one.ObservedGeneration, one.LastTransitionTime)
				}
			}
			if status.ObservedGeneration != 6 || len(status.Conditions) != 2 {
				t.Errorf("generation %d, conditions %+v", status.ObservedGeneration, status.Conditions)
			}
			if diff := cmp.Diff(before, agent); diff != "" {
				t.Errorf("the agent changed\n%s", diff)
			}
		})
	}
}

func TestTransitionTimeIsThatOfTheStatus(t *testing.T) {
	agent := anAgent()
	agent.Status = NextStatus(agent, Step{Ready: true, Reason: "Active", Message: "a"}, Restoration{}, now)
	agent.Generation = 2
	agent.Status = NextStatus(agent, Step{Ready: true, Reason: "DryRun", Message: "b"}, Restoration{Held: 2}, now.Add(time.Minute))
	for _, one := range agent.Status.Conditions {
		want := now
		if one.Type == "Restored" {
			want = now.Add(time.Minute)
		}
		if !one.LastTransitionTime.Time.Equal(want) || one.ObservedGeneration != 2 {
			t.Errorf("%+v, want it from %s", one, want)
		}
	}
	if got := condition(t, agent.Status, "Ready"); got != "True DryRun: b" {
		t.Errorf("got %s", got)
	}
}

func TestConditionMessagesAreBounded(t *testing.T) {
	long := strings.Repeat("ä", 5000)
	status := NextStatus(anAgent(), Step{Action: Stop, Reason: "InvalidSpec", Message: long}, Restoration{Held: 2, Failing: long}, now)
	for _, one := range status.Conditions {
		if len(one.Message) > 1024 || !utf8.ValidString(one.Message) || !strings.HasSuffix(one.Message, "ä…") {
			t.Errorf("%s: %d bytes, %q", one.Type, len(one.Message), one.Message)
		}
	}
}

func TestNextCycleTimeOfAStatus(t *testing.T) {
	agent := anAgent(func(agent *v1beta1.ChaosAgent) { agent.Status.NextCycleTime = at(time.Hour) })
	if got := NextStatus(agent, Step{Action: Stop, Reason: "Suspended"}, Restoration{}, now).NextCycleTime; got != nil {
		t.Errorf("stopped, the next cycle is due at %s", got)
	}
	if got := NextStatus(agent, Step{Reason: "Active", Next: now.Add(time.Minute)}, Restoration{}, now).NextCycleTime; !got.Equal(at(time.Minute)) {
		t.Errorf("the next cycle is due at %s", got)
	}
}

func TestInterruptedCycleIsClosedWhenItIsNotGoneOnWith(t *testing.T) {
	running := func(agent *v1beta1.ChaosAgent) {
		agent.Status.LastCycle = &v1beta1.Cycle{Number: 3, Generation: 1, Reason: "Acted", Message: "as planned", Pods: &v1beta1.ModeReport{Victims: 2}}
		agent.Status.Totals = v1beta1.Totals{Cycles: 3, Victims: 5}
	}
	done := func(agent *v1beta1.ChaosAgent) {
		running(agent)
		agent.Status.LastCycle.CompletionTime = at(-time.Hour)
	}
	for name, c := range map[string]struct {
		change func(*v1beta1.ChaosAgent)
		action Action
		closed bool
	}{
		"gone on with":         {running, Resume, false},
		"stopped":              {running, Stop, true},
		"waiting":              {running, Wait, true},
		"a new one is due":     {running, Run, true},
		"done, stopped":        {done, Stop, false},
		"done, a new one runs": {done, Run, false},
	} {
		t.Run(name, func(t *testing.T) {
			agent := anAgent(c.change)
			want := agent.Status.LastCycle.DeepCopy()
			if c.closed {
				want.CompletionTime, want.Reason, want.Message = at(0), "Stopped", "interrupted, and not gone on with: the reason"
			}
			got := NextStatus(agent, Step{Action: c.action, Reason: "R", Message: "the reason"}, Restoration{}, now)
			if diff := cmp.Diff(want, got.LastCycle); diff != "" || got.Totals != (v1beta1.Totals{Cycles: 3, Victims: 5}) {
				t.Errorf("totals %+v, cycle (-want +got)\n%s", got.Totals, diff)
			}
			if diff := cmp.Diff(anAgent(c.change), agent); diff != "" {
				t.Errorf("the agent changed\n%s", diff)
			}
		})
	}
	if got := NextStatus(anAgent(), Step{Action: Stop}, Restoration{}, now); got.LastCycle != nil {
		t.Errorf("without a cycle there is %+v", got.LastCycle)
	}
}

// A cycle from its plan to its end, through the API server, with an interruption.
func TestTotalsOfAnInterruptedCycle(t *testing.T) {
	agent := withSpec(func(spec *v1beta1.ChaosAgentSpec) { spec.Eagerness, spec.MaxVictimsPerCycle = 100, ptr.To[int32](6) })
	agent.Status.Totals = v1beta1.Totals{Cycles: 2, Victims: 10, Pods: 10}
	in := Input{Agent: agent, Scope: teamOnly(), Objects: manyPods(10), Now: now, Seed: 1}
	plan := planned(t, in)
	agent.Status = Claim(agent.Status, plan)
	agent.Status.LastCycle = reread(t, agent.Status.LastCycle)
	if step := NextStep(agent, now.Add(time.Minute)); step.Action != Resume {
		t.Fatalf("the next step is %+v", step)
	}
	// Two were hit.
	gone := map[Key]bool{plan.Victims[0].Key(): true, plan.Victims[5].Key(): true}
	in.Resume, in.Objects = agent.Status.LastCycle, nil
	for _, pod := range manyPods(10) {
		if !gone[pod.Key()] {
			in.Objects = append(in.Objects, pod)
		}
	}
	rest := planned(t, in)
	status := Complete(agent.Status, map[Mode]int{Tantrum: len(rest.Victims)}, map[Mode]Tally{Tantrum: {Done: int32(len(rest.Victims))}}, "", now.Add(time.Minute), time.Second)
	if len(rest.Victims) != 4 || status.LastCycle.Pods.Done != 6 || status.Totals != (v1beta1.Totals{Cycles: 3, Victims: 16, Pods: 16}) {
		t.Errorf("%d were left, %d done, totals %+v", len(rest.Victims), status.LastCycle.Pods.Done, status.Totals)
	}
}

func TestTruncate(t *testing.T) {
	for _, c := range []struct {
		text string
		most int
		want string
	}{
		{"", 0, ""},
		{"short", 5, "short"},
		{"short", 1024, "short"},
		{"longer", 5, "lo…"},
		{"longer", 3, "…"},
		{"äöü", 6, "äöü"},
		{"äöüß", 7, "äö…"},
		{"äöüß", 6, "ä…"},
		{"a€€€", 9, "a€…"},
		{"a€€€", 8, "a€…"},
		{"a€€€", 7, "a€…"},
		{"a€€€", 6, "a…"},
		{"😀😀", 7, "😀…"},
		{"😀😀", 6, "…"},
		{"……", 6, "……"},
	} {
		got := Truncate(c.text, c.most)
		if got != c.want || len(got) > c.most || !utf8.ValidString(got) {
			t.Errorf("%q to %d: got %q, want %q", c.text, c.most, got, c.want)
		}
	}
}
