// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/utils/ptr"

	"blackadder.io/blackadder/api/blackadder/v1beta1"
)

// Input is what a cycle is planned from.
type Input struct {
	// Agent whose cycle it is.
	Agent *v1beta1.ChaosAgent
	// Scope of the agent.
	Scope Scope
	// Namespaces is how many of them are targeted.
	Namespaces int
	// Objects that were found; Deployments also when cancerMode is off, for their availability.
	Objects []Object
	// Held are the objects on which a change of another agent is in force, with that agent's name.
	Held map[Key]string
	// Now is when the cycle starts.
	Now time.Time
	// Seed of the draw, unless the agent has one.
	Seed int64
	// Resume is the cycle to go on with; nil for a new one.
	Resume *v1beta1.Cycle
	// Preview counts what a cycle would find, whenever it came: what was made this very second is spared only by a real one.
	Preview bool
}

// Victim is an object that a cycle hits, and why.
type Victim struct {
	Object
	// Reason says how the draw went.
	Reason string
	rank   uint64
}

// Plan is what a cycle is going to do.
type Plan struct {
	// Cycle as it is reported.
	Cycle v1beta1.Cycle
	// Victims in the order in which they are hit.
	Victims []Victim
	// Halt says why the cycle must not act at all; "" if it may.
	Halt string
}

// NewPlan plans a cycle. The error is that of a selector that cannot be parsed.
func NewPlan(in Input) (*Plan, error) {
	spec := &in.Agent.Spec
	plan := &Plan{Cycle: v1beta1.Cycle{
		Number: in.Agent.Status.Totals.Cycles + 1, Generation: in.Agent.Generation, StartTime: micro(in.Now),
		Seed: ptr.Deref(spec.Seed, in.Seed), DryRun: spec.DryRun, Namespaces: int32(min(in.Namespaces, 1<<30)), //nolint:gosec // Bounded.
	}}
	if in.Resume != nil {
		plan.Cycle = *in.Resume.DeepCopy()
	}
	filter, err := NewFilter(spec, in.Scope, plan.Cycle.StartTime.Time, in.Held)
	if err != nil {
		return nil, err
	}
	filter.preview = in.Preview
	plan.Halt = filter.Halt(in.Objects)

	reports := map[Mode]*v1beta1.ModeReport{}
	var drawn []Victim
	for _, mode := range Modes() {
		if !On(spec, mode) {
			continue
		}
		report, victims := planMode(spec, filter, plan.Cycle.Seed, mode, in.Objects)
		// Whether there were enough pods was decided when the cycle began.
		if mode == Tantrum && in.Resume == nil && report.Candidates < spec.PodTolerance {
			victims = nil
		}
		if in.Resume != nil && ptr.Deref(ReportOf(in.Resume, mode), v1beta1.ModeReport{}).Victims == 0 {
			victims = nil
		}
		reports[mode], drawn = report, append(drawn, victims...)
	}
	if in.Resume != nil {
		plan.Victims = remaining(drawn, in.Resume)
		return plan, nil
	}
	plan.Victims = plan.bound(drawn, spec.MaxVictimsPerCycle)
	for _, victim := range plan.Victims {
		reports[victim.Mode].Victims++
	}
	plan.Cycle.Pods, plan.Cycle.Deployments, plan.Cycle.ConfigMaps = reports[Tantrum], reports[Cancer], reports[Ipsum]
	plan.explain(spec)
	return plan, nil
}

// ReportOf is a cycle's report of one mode; nil if the mode was off.
func ReportOf(cycle *v1beta1.Cycle, mode Mode) *v1beta1.ModeReport {
	switch mode {
	case Tantrum:
		return cycle.Pods
	case Cancer:
		return cycle.Deployments
	case Ipsum:
		return cycle.ConfigMaps
	}
	return nil
}

func planMode(spec *v1beta1.ChaosAgentSpec, filter *Filter, seed int64, mode Mode, objects []Object) (*v1beta1.ModeReport, []Victim) {
	report := &v1beta1.ModeReport{}
	excluded := map[string]int32{}
	var victims []Victim
	eagerness := cmp.Or(spec.Eagerness, v1beta1.DefaultEagerness)
	for i := range objects {
		object := &objects[i]
		if object.Mode != mode {
			continue
		}
		if reason := filter.Exclude(object); reason != "" {
			excluded[reason]++
			continue
		}
		report.Candidates++
		if lot := draw(seed, object.Key()); lot.percent < eagerness {
			victims = append(victims, Victim{Object: *object, rank: lot.rank, Reason: fmt.Sprintf("drawn with %d of 100, below the eagerness %d", lot.percent, eagerness)})
		}
	}
	for _, reason := range slices.Sorted(maps.Keys(excluded)) {
		report.Excluded = append(report.Excluded, v1beta1.ExclusionCount{Reason: reason, Count: excluded[reason]})
	}
	return report, victims
}

// byRank is the order in which victims are hit. Chance alone would leave ties open.
func byRank(a, b Victim) int {
	return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.Mode, b.Mode),
		cmp.Compare(a.Meta.Namespace, b.Meta.Namespace), cmp.Compare(a.Meta.Name, b.Meta.Name))
}

// bound keeps as many victims as the bound allows, and notes who they are.
func (p *Plan) bound(drawn []Victim, most *int32) []Victim {
	slices.SortFunc(drawn, byRank)
	if most == nil {
		return drawn
	}
	kept := drawn[:min(len(drawn), max(0, int(*most)))]
	for i := range kept {
		p.Cycle.Ranks = append(p.Cycle.Ranks, formatRank(kept[i].rank))
	}
	return kept
}

// remaining are the victims of an interrupted cycle that are still there. What was no candidate when it began, and is one now, could
// be drawn too: a bounded cycle knows its victims by their ranks, any other keeps at least to their number in each mode.
func remaining(drawn []Victim, cycle *v1beta1.Cycle) []Victim {
	slices.SortFunc(drawn, byRank)
	if len(cycle.Ranks) > 0 {
		return slices.DeleteFunc(drawn, func(victim Victim) bool { return !slices.Contains(cycle.Ranks, formatRank(victim.rank)) })
	}
	kept := map[Mode]int32{}
	return slices.DeleteFunc(drawn, func(victim Victim) bool {
		kept[victim.Mode]++
		return kept[victim.Mode] > ReportOf(cycle, victim.Mode).Victims
	})
}

// Halt says why too many of the targeted Deployments are not available to act at all; "" if they are not too many.
func (f *Filter) Halt(objects []Object) string {
	if f.spec.HaltWhen == nil {
		return ""
	}
	var all, unavailable int64
	for i := range objects {
		object := &objects[i]
		// One that wants no pods cannot lack any.
		if object.Deployment == nil || object.Deployment.Replicas == 0 || !f.InReach(object) {
			continue
		}
		all++
		if !object.Deployment.Available {
			unavailable++
		}
	}
	if 100*unavailable <= int64(f.spec.HaltWhen.UnavailablePercent)*all {
		return ""
	}
	return fmt.Sprintf("%d of %d targeted Deployments are not available, more than the %d percent of spec.haltWhen", unavailable, all, f.spec.HaltWhen.UnavailablePercent)
}

// explain says why there are no victims, or fewer than there might be.
func (p *Plan) explain(spec *v1beta1.ChaosAgentSpec) {
	var parts []string
	reasons := map[string]bool{}
	for _, mode := range Modes() {
		report := ReportOf(&p.Cycle, mode)
		if report == nil {
			continue
		}
		reason, part := explainMode(spec, mode, report)
		reasons[reason] = true
		parts = append(parts, part)
	}
	p.Cycle.Message = strings.Join(parts, "; ")
	for _, reason := range []string{v1beta1.CycleActed, v1beta1.CycleNoneDrawn, v1beta1.CycleBelowTolerance, v1beta1.CycleNoCandidates} {
		if reasons[reason] {
			p.Cycle.Reason = reason
			break
		}
	}
	if p.Cycle.Reason == v1beta1.CycleActed && p.Cycle.DryRun {
		p.Cycle.Reason = v1beta1.CycleDryRun
	}
}

func explainMode(spec *v1beta1.ChaosAgentSpec, mode Mode, report *v1beta1.ModeReport) (reason, message string) {
	kinds := mode.Kind() + "s"
	excluded := int32(0)
	for _, count := range report.Excluded {
		excluded += count.Count
	}
	switch {
	case report.Victims > 0:
		return v1beta1.CycleActed, fmt.Sprintf("%d of %d candidate %s drawn", report.Victims, report.Candidates, kinds)
	case report.Candidates == 0:
		return v1beta1.CycleNoCandidates, fmt.Sprintf("no candidate %s (%d excluded)", kinds, excluded)
	case mode == Tantrum && report.Candidates < spec.PodTolerance:
		return v1beta1.CycleBelowTolerance, fmt.Sprintf("%d candidate %s are fewer than the podTolerance of %d", report.Candidates, kinds, spec.PodTolerance)
	}
	return v1beta1.CycleNoneDrawn, fmt.Sprintf("none of %d candidate %s drawn", report.Candidates, kinds)
}
