// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"blackadder.io/blackadder/api/blackadder/v1beta1"
)

// Validate finds what the schema cannot, in a spec by itself.
func Validate(spec *v1beta1.ChaosAgentSpec) field.ErrorList {
	path := field.NewPath("spec")
	_, faults := ParseSchedule(spec.Schedule, path.Child("schedule"))
	return append(faults, selectorFaults(spec)...)
}

func selectorFaults(spec *v1beta1.ChaosAgentSpec) field.ErrorList {
	path := field.NewPath("spec")
	options := metav1validation.LabelSelectorValidationOptions{}
	return append(metav1validation.ValidateLabelSelector(spec.NamespaceSelector, options, path.Child("namespaceSelector")),
		metav1validation.ValidateLabelSelector(spec.PodSelector, options, path.Child("podSelector"))...)
}

// ProtectedFault is the fault of a spec that would reach protected namespaces, of which unguarded are those that nothing in the
// spec keeps it away from.
func ProtectedFault(spec *v1beta1.ChaosAgentSpec, unguarded []string) *field.Error {
	path := field.NewPath("spec", "excludedNamespaces")
	if len(unguarded) == 0 {
		return nil
	}
	list := append(slices.Clone(spec.ExcludedNamespaces), unguarded...)
	slices.Sort(list)
	hint := ""
	if spec.ExcludedNamespaces != nil && len(spec.ExcludedNamespaces) == 0 {
		hint = " (the empty list excludes nothing; left out, it is the protected namespaces)"
	}
	return field.Invalid(path, spec.ExcludedNamespaces, fmt.Sprintf(
		"the agent would reach the protected %s%s: exclude %s too, with excludedNamespaces: %s, or keep away by spec.namespaceSelector",
		Enumerate("namespace", unguarded), hint, them(len(unguarded)), quoted(slices.Compact(list))))
}

// SpecChanged tells whether what an agent may do is to be judged anew: on creation, and when its spec changed in more than
// being stopped. Whoever stops an agent, or touches only its metadata, must not be held up by what stands in it.
func SpecChanged(agent, old *v1beta1.ChaosAgent, equal func(a, b any) bool) bool {
	if old == nil {
		return true
	}
	calmed := old.Spec.DeepCopy()
	if agent.Spec.Suspend {
		calmed.Suspend = true
	}
	if agent.Spec.DryRun {
		calmed.DryRun = true
	}
	return !equal(&agent.Spec, calmed)
}

// Warnings are what is legal and doubtful in a spec by itself.
func Warnings(spec *v1beta1.ChaosAgentSpec) []string {
	var warnings []string
	if !AnyMode(spec) {
		warnings = append(warnings, "no mode is on, so nothing will happen: set spec.tantrumMode, spec.cancerMode or spec.ipsumMode")
	}
	if spec.IpsumMode && spec.PodSelector != nil {
		warnings = append(warnings, "spec.podSelector does not narrow ConfigMaps, which have no pods: use spec.namespaceSelector for them")
	}
	return warnings
}

// Hint warns of an excluded namespace that does not exist, and names the one that was probably meant, if any.
func Hint(index int, name, nearest string) string {
	warning := fmt.Sprintf("spec.excludedNamespaces[%d]: namespace %q does not exist", index, name)
	if nearest != "" {
		warning += fmt.Sprintf("; did you mean %q?", nearest)
	}
	return warning
}

// Overlap warns of another agent whose targets are partly the same.
func Overlap(other string, namespaces []string) string {
	return fmt.Sprintf("ChaosAgent %q already targets %s", other, Enumerate("namespace", namespaces))
}

// Preview says what cycles would do, one line for each mode that is on, from a plan that was made of what is there now.
func Preview(spec *v1beta1.ChaosAgentSpec, plan *Plan) []string {
	var lines []string
	expected := int64(0)
	for _, mode := range Modes() {
		if report := ReportOf(&plan.Cycle, mode); report != nil && !tooFew(spec, mode, report) {
			expected += expectedVictims(spec, int64(report.Candidates))
		}
	}
	for _, mode := range Modes() {
		report := ReportOf(&plan.Cycle, mode)
		if report == nil {
			continue
		}
		about := expectedVictims(spec, int64(report.Candidates))
		// Under the common bound each mode gets its share.
		if spec.MaxVictimsPerCycle != nil && expected > int64(*spec.MaxVictimsPerCycle) {
			about = (about*int64(*spec.MaxVictimsPerCycle) + expected/2) / expected
		}
		line := fmt.Sprintf("matches %s in %s; about %d %s each cycle", count(int(report.Candidates), mode.Kind()), count(int(plan.Cycle.Namespaces), "namespace"), about, done(mode))
		if tooFew(spec, mode, report) {
			line = fmt.Sprintf("matches %s in %s; none deleted while there are fewer than spec.podTolerance (%d)", count(int(report.Candidates), mode.Kind()), count(int(plan.Cycle.Namespaces), "namespace"), spec.PodTolerance)
		}
		if spec.DryRun {
			line += " (dry run: only reported)"
		}
		lines = append(lines, line)
	}
	return lines
}

// tooFew tells whether there are fewer pods than are tolerated.
func tooFew(spec *v1beta1.ChaosAgentSpec, mode Mode, report *v1beta1.ModeReport) bool {
	return mode == Tantrum && report.Candidates < spec.PodTolerance
}

// TooLargeToCount is the preview when counting took too long.
const TooLargeToCount = "the targets are too many to be counted in time: how many are hit each cycle is not known beforehand; spec.dryRun would tell"

func expectedVictims(spec *v1beta1.ChaosAgentSpec, candidates int64) int64 {
	eagerness := int64(spec.Eagerness)
	if eagerness == 0 {
		eagerness = v1beta1.DefaultEagerness
	}
	return (candidates*eagerness + 50) / 100
}

func done(mode Mode) string {
	switch mode {
	case Cancer:
		return "scaled up"
	case Ipsum:
		return "overwritten"
	case Tantrum:
	}
	return "deleted"
}

func count(n int, noun string) string {
	if noun == Tantrum.Kind() {
		noun = "pod"
	}
	return strconv.Itoa(n) + " " + plural(n, noun)
}

func plural(n int, noun string) string {
	if n == 1 {
		return noun
	}
	return noun + "s"
}

func them(n int) string {
	if n == 1 {
		return "it"
	}
	return "them"
}

// Enumerate names things for people: the noun in singular or plural, and the first few names.
func Enumerate(noun string, names []string) string {
	return plural(len(names), noun) + " " + enumerate(names)
}

// mostNamed bounds the names in a message.
const mostNamed = 5

func enumerate(names []string) string {
	texts := make([]string, 0, mostNamed)
	for _, name := range names[:min(len(names), mostNamed)] {
		texts = append(texts, strconv.Quote(name))
	}
	text := strings.Join(texts, ", ")
	if more := len(names) - mostNamed; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// quoted is a list as it would be written in a manifest.
func quoted(names []string) string {
	texts := make([]string, 0, len(names))
	for _, name := range names {
		texts = append(texts, strconv.Quote(name))
	}
	return "[" + strings.Join(texts, ",") + "]"
}
