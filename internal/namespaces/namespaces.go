// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

// Package namespaces holds the rule about protected namespaces that admission and controllers share: which namespaces a
// ChaosAgent reaches, and which it must never reach.
package namespaces

import (
	"maps"
	"slices"

	"github.com/agnivade/levenshtein"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Reason says why a namespace is out of reach; Targeted, the empty reason, that it is not.
type Reason string

// Reasons why a namespace is out of reach.
const (
	Targeted    Reason = ""
	Protected   Reason = "ProtectedNamespace"
	Excluded    Reason = "ExcludedNamespace"
	NotSelected Reason = "NamespaceNotSelected"
	OptedOut    Reason = "NamespaceOptedOut"
	Terminating Reason = "NamespaceTerminating"
	// Unknown is a namespace that was not there, or not seen yet, when the scope was made.
	Unknown Reason = "NamespaceUnknown"
)

// Protection is the set of namespaces that nobody's chaos reaches.
type Protection struct {
	names []string
}

// Protect protects the operator's own namespace and the others that it is configured to protect.
func Protect(own string, others ...string) Protection {
	names := append(slices.Clone(others), own)
	names = slices.DeleteFunc(names, func(name string) bool { return name == "" })
	slices.Sort(names)
	return Protection{names: slices.Compact(names)}
}

// Names are the protected namespaces, sorted. The caller may keep them.
func (p Protection) Names() []string { return slices.Clone(p.names) }

// Has tells whether a namespace is protected.
func (p Protection) Has(name string) bool { return slices.Contains(p.names, name) }

// Target is what somebody means to reach.
type Target struct {
	// Excluded names are never reached.
	Excluded []string
	// Selector narrows the reach by the labels of Namespaces; nil stands for all.
	Selector labels.Selector
	// OptOut is the label, and OptOutValue its value, by which a Namespace keeps everybody away.
	OptOut, OptOutValue string
}

// Endless tells whether namespaces that do not exist yet would be reached, too, without anybody labelling them so.
func (t Target) Endless() bool { return t.Selector == nil || t.Selector.Matches(labels.Set{}) }

// Unguarded are the protected namespaces that the target would reach if nothing but its own words kept it away: neither
// excluded, nor kept out by the selector over the labels that they have now. One that does not exist is judged by the one
// label that it would have at least.
func (p Protection) Unguarded(target Target, live map[string]labels.Set) []string {
	var unguarded []string
	for _, name := range p.names {
		set, exists := live[name]
		if !exists {
			set = labels.Set{corev1.LabelMetadataName: name}
		}
		if slices.Contains(target.Excluded, name) || (target.Selector != nil && !target.Selector.Matches(set)) {
			continue
		}
		unguarded = append(unguarded, name)
	}
	return unguarded
}

// Live is a Namespace that exists.
type Live struct {
	Name        string
	Labels      labels.Set
	Terminating bool
}

// Scope says of each namespace whether it is reached.
type Scope map[string]Reason

// Scope judges each of the namespaces that exist.
func (p Protection) Scope(target Target, live []Live) Scope {
	scope := make(Scope, len(live))
	for _, namespace := range live {
		scope[namespace.Name] = p.judge(target, namespace)
	}
	return scope
}

func (p Protection) judge(target Target, namespace Live) Reason {
	switch {
	case p.Has(namespace.Name):
		return Protected
	case slices.Contains(target.Excluded, namespace.Name):
		return Excluded
	case target.Selector != nil && !target.Selector.Matches(namespace.Labels):
		return NotSelected
	case target.OptOut != "" && namespace.Labels[target.OptOut] == target.OptOutValue:
		return OptedOut
	case namespace.Terminating:
		return Terminating
	}
	return Targeted
}

// Excludes says why a namespace is out of reach, or "" if it is not. One that is not in the scope is.
func (s Scope) Excludes(name string) string {
	reason, known := s[name]
	if !known {
		return string(Unknown)
	}
	return string(reason)
}

// Targeted are the namespaces that are reached, sorted.
func (s Scope) Targeted() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(s)), func(name string) bool { return s[name] != Targeted })
}

// Nearest is the existing name that a name was probably meant to be; "" if none is near. Ties go to the first in the order of
// names.
func Nearest(name string, existing []string) string {
	best, bestDistance := "", 0
	for _, candidate := range slices.Sorted(slices.Values(existing)) {
		distance := levenshtein.ComputeDistance(name, candidate)
		// More than a third of the letters wrong is another word.
		if distance == 0 || 3*distance > max(len(name), len(candidate)) {
			continue
		}
		if best == "" || distance < bestDistance {
			best, bestDistance = candidate, distance
		}
	}
	return best
}
