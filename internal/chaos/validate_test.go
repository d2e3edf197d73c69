// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"blackadder.io/blackadder/api/blackadder/v1beta1"
)

func TestValidate(t *testing.T) {
	expression := func(key string, operator metav1.LabelSelectorOperator, values ...string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: key, Operator: operator, Values: values}}}
	}
	for name, c := range map[string]struct {
		spec v1beta1.ChaosAgentSpec
		want []string
	}{
		"empty": {v1beta1.ChaosAgentSpec{}, nil},
		"fine": {v1beta1.ChaosAgentSpec{
			TantrumMode: true, Schedule: windows("Europe/Berlin", between("22:00", "06:00", "Fri")),
			NamespaceSelector: expression("stage", "NotIn", "production"), PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
		}, nil},
		"selectors": {v1beta1.ChaosAgentSpec{NamespaceSelector: expression("stage", "Like", "x"), PodSelector: expression("app", "Exists", "y")}, []string{
			`spec.namespaceSelector.matchExpressions[0].operator: Invalid value: "Like": not a valid selector operator`,
			`spec.podSelector.matchExpressions[0].values: Forbidden: may not be specified when ` + "`operator`" + ` is 'Exists' or 'DoesNotExist'`,
		}},
		"schedule and selector": {v1beta1.ChaosAgentSpec{Schedule: windows("", between("10:00", "10:00")), PodSelector: expression("app", "In")}, []string{
			`spec.schedule.windows[0]: Invalid value: "10:00-10:00": from and to must differ; for a whole day write from "00:00" to "24:00"`,
			`spec.podSelector.matchExpressions[0].values: Required value: must be specified when ` + "`operator`" + ` is 'In' or 'NotIn'`,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, fault := range Validate(&c.spec) {
				got = append(got, fault.Error())
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
		})
	}
}

func TestProtectedFault(t *testing.T) {
	for name, c := range map[string]struct {
		excluded, unguarded []string
		want                string
	}{
		"none":                {[]string{"team"}, nil, ""},
		"none, all left out":  {nil, nil, ""},
		"none, none excluded": {[]string{}, []string{}, ""},
		"one": {
			[]string{"team", "apps"},
			[]string{"kube-system"},
			`spec.excludedNamespaces: Invalid value: ["team","apps"]: the agent would reach the protected namespace "kube-system": exclude it too, with excludedNamespaces: ["apps","kube-system","team"], or keep away by spec.namespaceSelector`,
		},
		"two": {
			[]string{"team"},
			[]string{"blackadder-system", "kube-system"},
			`spec.excludedNamespaces: Invalid value: ["team"]: the agent would reach the protected namespaces "blackadder-system", "kube-system": exclude them too, with excludedNamespaces: ["blackadder-system","kube-system","team"], or keep away by spec.namespaceSelector`,
		},
		"left out": {
			nil,
			[]string{"kube-system"},
			`spec.excludedNamespaces: Invalid value: null: the agent would reach the protected namespace "kube-system": exclude it too, with excludedNamespaces: ["kube-system"], or keep away by spec.namespaceSelector`,
		},
		"the empty list": {
			[]string{},
			[]string{"blackadder-system", "kube-system"},
			`spec.excludedNamespaces: Invalid value: []: the agent would reach the protected namespaces "blackadder-system", "kube-system" (the empty list excludes nothing; left out, it is the protected namespaces): exclude them too, with excludedNamespaces: ["blackadder-system","kube-system"], or keep away by spec.namespaceSelector`,
		},
		"more than are named": {
			[]string{"x", "x"},
			[]string{"a", "b", "c", "d", "e", "f", "g"},
			`spec.excludedNamespaces: Invalid value: ["x","x"]: the agent would reach the protected namespaces "a", "b", "c", "d", "e" and 2 more: exclude them too, with excludedNamespaces: ["a","b","c","d","e","f","g","x"], or keep away by spec.namespaceSelector`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			before := slices.Clone(c.excluded)
			got := ""
			if fault := ProtectedFault(&v1beta1.ChaosAgentSpec{ExcludedNamespaces: c.excluded}, c.unguarded); fault != nil {
				got = fault.Error()
			}
			if got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
			if !slices.Equal(before, c.excluded) {
				t.Errorf("the spec's list became %q", c.excluded)
			}
		})
	}
}

func TestWarnings(t *testing.T) {
	const (
		noMode     = "no mode is on, so nothing will happen: set spec.tantrumMode, spec.cancerMode or spec.ipsumMode"
		noNarrower = "spec.podSelector does not narrow ConfigMaps, which have no pods: use spec.namespaceSelector for them"
	)
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	for name, c := range map[string]struct {
		spec v1beta1.ChaosAgentSpec
		want []string
	}{
		"a mode":                      {v1beta1.ChaosAgentSpec{CancerMode: true}, nil},
		"no mode":                     {v1beta1.ChaosAgentSpec{}, []string{noMode}},
		"no mode, and a selector":     {v1beta1.ChaosAgentSpec{PodSelector: selector}, []string{noMode}},
		"ConfigMaps":                  {v1beta1.ChaosAgentSpec{IpsumMode: true}, nil},
		"ConfigMaps, and a selector":  {v1beta1.ChaosAgentSpec{IpsumMode: true, PodSelector: selector}, []string{noNarrower}},
		"all modes, and a selector":   {v1beta1.ChaosAgentSpec{TantrumMode: true, CancerMode: true, IpsumMode: true, PodSelector: selector}, []string{noNarrower}},
		"other modes, and a selector": {v1beta1.ChaosAgentSpec{TantrumMode: true, CancerMode: true, PodSelector: selector}, nil},
	} {
		if got := Warnings(&c.spec); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
}

func TestHint(t *testing.T) {
	if got, want := Hint(2, "prodution", "production"), `spec.excludedNamespaces[2]: namespace "prodution" does not exist; did you mean "production"?`; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got, want := Hint(0, "nowhere", ""), `spec.excludedNamespaces[0]: namespace "nowhere" does not exist`; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestOverlap(t *testing.T) {
	for want, names := range map[string][]string{
		`ChaosAgent "gale" already targets namespace "a"`:                                  {"a"},
		`ChaosAgent "gale" already targets namespaces "a", "b"`:                            {"a", "b"},
		`ChaosAgent "gale" already targets namespaces "a", "b", "c", "d", "e"`:             {"a", "b", "c", "d", "e"},
		`ChaosAgent "gale" already targets namespaces "a", "b", "c", "d", "e" and 1 more`:  {"a", "b", "c", "d", "e", "f"},
		`ChaosAgent "gale" already targets namespaces "a", "b", "c", "d", "e" and 15 more`: {"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p", "q", "r", "s", "t"},
	} {
		if got := Overlap("gale", names); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

func TestPreview(t *testing.T) {
	several := func(mode Mode, n int) (objects []Object) {
		for i := range n {
			objects = append(objects, anObject(mode, fmt.Sprintf("o-%d", i)))
		}
		return objects
	}
	all := slices.Concat(several(Tantrum, 40), several(Cancer, 20), several(Ipsum, 10))
	for name, c := range map[string]struct {
		spec       v1beta1.ChaosAgentSpec
		objects    []Object
		namespaces int
		want       []string
	}{
		"no mode": {v1beta1.ChaosAgentSpec{Eagerness: 20}, all, 2, nil},
		"one of each": {
			v1beta1.ChaosAgentSpec{TantrumMode: true, CancerMode: true, IpsumMode: true, Eagerness: 100},
			slices.Concat(several(Tantrum, 1), several(Cancer, 1), several(Ipsum, 1)), 1,
			[]string{
				"matches 1 pod in 1 namespace; about 1 deleted each cycle", "matches 1 Deployment in 1 namespace; about 1 scaled up each cycle",
				"matches 1 ConfigMap in 1 namespace; about 1 overwritten each cycle",
			},
		},
		"several of each": {
			v1beta1.ChaosAgentSpec{TantrumMode: true, CancerMode: true, IpsumMode: true, Eagerness: 20},
			all, 2,
			[]string{
				"matches 40 pods in 2 namespaces; about 8 deleted each cycle", "matches 20 Deployments in 2 namespaces; about 4 scaled up each cycle",
				"matches 10 ConfigMaps in 2 namespaces; about 2 overwritten each cycle",
			},
		},
		"nothing there": {
			v1beta1.ChaosAgentSpec{TantrumMode: true, IpsumMode: true, Eagerness: 20},
			nil, 0,
			[]string{"matches 0 pods in 0 namespaces; about 0 deleted each cycle", "matches 0 ConfigMaps in 0 namespaces; about 0 overwritten each cycle"},
		},
		"modes that are off": {v1beta1.ChaosAgentSpec{CancerMode: true, Eagerness: 20}, all, 2, []string{"matches 20 Deployments in 2 namespaces; about 4 scaled up each cycle"}},
		"eagerness left out": {v1beta1.ChaosAgentSpec{TantrumMode: true}, all, 2, []string{"matches 40 pods in 2 namespaces; about 8 deleted each cycle"}},
		"rounded up":         {v1beta1.ChaosAgentSpec{TantrumMode: true, Eagerness: 50}, several(Tantrum, 5), 2, []string{"matches 5 pods in 2 namespaces; about 3 deleted each cycle"}},
		"rounded down":       {v1beta1.ChaosAgentSpec{TantrumMode: true, Eagerness: 49}, several(Tantrum, 5), 2, []string{"matches 5 pods in 2 namespaces; about 2 deleted each cycle"}},
		"fewer than tolerated": {
			v1beta1.ChaosAgentSpec{TantrumMode: true, CancerMode: true, Eagerness: 20, PodTolerance: 41},
			all, 1,
			[]string{"matches 40 pods in 1 namespace; none deleted while there are fewer than spec.podTolerance (41)", "matches 20 Deployments in 1 namespace; about 4 scaled up each cycle"},
		},
		"just enough": {
			v1beta1.ChaosAgentSpec{TantrumMode: true, Eagerness: 20, PodTolerance: 40}, all, 1, []string{"matches 40 pods in 1 namespace; about 8 deleted each cycle"},
		},
		"tolerance of a single pod": {
			v1beta1.ChaosAgentSpec{TantrumMode: true, Eagerness: 20, PodTolerance: 2},
			several(Tantrum, 1), 1,
			[]string{"matches 1 pod in 1 namespace; none deleted while there are fewer than spec.podTolerance (2)"},
		},
		"a bound that modes share": {
			v1beta1.ChaosAgentSpec{TantrumMode: true, CancerMode: true, IpsumMode: true, Eagerness: 100, MaxVictimsPerCycle: ptr.To[int32](7)},
			all, 2,
			[]string{
				"matches 40 pods in 2 namespaces; about 4 deleted each cycle", "matches 20 Deployments in 2 namespaces; about 2 scaled up each cycle",
				"matches 10 ConfigMaps in 2 namespaces; about 1 overwritten each cycle",
			},
		},
		"a bound that does not divide": {
			v1beta1.ChaosAgentSpec{TantrumMode: true, CancerMode: true, IpsumMode: true, Eagerness: 100, MaxVictimsPerCycle: ptr.To[int32](6)},
			all, 2,
			[]string{
				"matches 40 pods in 2 namespaces; about 3 deleted each cycle", "matches 20 Deployments in 2 namespaces; about 2 scaled up each cycle",
				"matches 10 ConfigMaps in 2 namespaces; about 1 overwritten each cycle",
			},
		},
		"a bound of a single mode": {
			v1beta1.ChaosAgentSpec{TantrumMode: true, Eagerness: 100, MaxVictimsPerCycle: ptr.To[int32](7)}, all, 2, []string{"matches 40 pods in 2 namespaces; about 7 deleted each cycle"},
		},
		"a bound that is not met": {
			v1beta1.ChaosAgentSpec{TantrumMode: true, Eagerness: 20, MaxVictimsPerCycle: ptr.To[int32](8)}, all, 2, []string{"matches 40 pods in 2 namespaces; about 8 deleted each cycle"},
		},
		"dry run": {
			v1beta1.ChaosAgentSpec{TantrumMode: true, CancerMode: true, Eagerness: 20, PodTolerance: 50, DryRun: true},
			all, 2,
			[]string{
				"matches 40 pods in 2 namespaces; none deleted while there are fewer than spec.podTolerance (50) (dry run: only reported)",
				"matches 20 Deployments in 2 namespaces; about 4 scaled up each cycle (dry run: only reported)",
			},
		},
		"candidates alone": {
			v1beta1.ChaosAgentSpec{TantrumMode: true, CancerMode: true, Eagerness: 100},
			[]Object{aPod("a"), aPod("b", deleted), aPod("c", in("kube-system")), aDeployment("d", scaled(0))},
			1,
			[]string{"matches 1 pod in 1 namespace; about 1 deleted each cycle", "matches 0 Deployments in 1 namespace; about 0 scaled up each cycle"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			agent := anAgent(func(agent *v1beta1.ChaosAgent) { agent.Spec = c.spec })
			plan := planned(t, Input{Agent: agent, Scope: teamOnly(), Namespaces: c.namespaces, Objects: c.objects, Now: now})
			if got := Preview(&agent.Spec, plan); !slices.Equal(got, c.want) {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
		})
	}
}

func TestSpecChanged(t *testing.T) {
	suspended := func(spec *v1beta1.ChaosAgentSpec) { spec.Suspend = true }
	dry := func(spec *v1beta1.ChaosAgentSpec) { spec.DryRun = true }
	eager := func(spec *v1beta1.ChaosAgentSpec) { spec.Eagerness = 100 }
	same := func(*v1beta1.ChaosAgentSpec) {}
	both := func(spec *v1beta1.ChaosAgentSpec) { suspended(spec); dry(spec) }
	for name, c := range map[string]struct {
		before, after func(*v1beta1.ChaosAgentSpec)
		want          bool
	}{
		"nothing":                          {same, same, false},
		"suspended":                        {same, suspended, false},
		"made a dry run":                   {same, dry, false},
		"both":                             {same, both, false},
		"suspended in a dry run":           {dry, both, false},
		"stays suspended":                  {suspended, suspended, false},
		"goes on":                          {suspended, same, true},
		"is a dry run no more":             {dry, same, true},
		"suspended, but a dry run no more": {dry, suspended, true},
		"a dry run, but suspended no more": {suspended, dry, true},
		"changed":                          {same, eager, true},
		"suspended, and changed":           {same, func(spec *v1beta1.ChaosAgentSpec) { suspended(spec); eager(spec) }, true},
		"another minimum age": {
			func(spec *v1beta1.ChaosAgentSpec) { spec.MinimumAge = lasting(time.Minute) }, func(spec *v1beta1.ChaosAgentSpec) { spec.MinimumAge = lasting(time.Second) }, true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			equal := equality.Semantic.DeepEqual
			before, after := withSpec(c.before), withSpec(c.after)
			after.Labels = map[string]string{"touched": "yes"}
			if got := SpecChanged(after, before, equal); got != c.want {
				t.Errorf("got %t, want %t", got, c.want)
			}
			if !equal(&before.Spec, &withSpec(c.before).Spec) || !equal(&after.Spec, &withSpec(c.after).Spec) {
				t.Error("the agents changed")
			}
		})
	}
	if !SpecChanged(anAgent(), nil, func(_, _ any) bool { t.Error("a new agent is compared with nothing"); return true }) {
		t.Error("a new agent must count as changed")
	}
}

func TestEnumerate(t *testing.T) {
	for want, names := range map[string][]string{
		`Secret "a"`:          {"a"},
		`Secrets "a", "b\"c"`: {"a", `b"c`},
		`Secrets "a", "b", "c", "d", "e" and 1 more`: {"a", "b", "c", "d", "e", "f"},
	} {
		if got := Enumerate("Secret", names); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
