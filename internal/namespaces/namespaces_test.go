// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package namespaces

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/labels"
)

const (
	optOut      = "blackadder.io/chaos"
	optOutValue = "disabled"
)

func selector(t *testing.T, text string) labels.Selector {
	t.Helper()
	parsed, err := labels.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

func TestProtect(t *testing.T) {
	for name, c := range map[string]struct {
		own    string
		others []string
		want   []string
	}{
		"own and others, sorted": {"blackadder-system", []string{"kube-system", "argo"}, []string{"argo", "blackadder-system", "kube-system"}},
		"each once":              {"kube-system", []string{"kube-system", "a", "a"}, []string{"a", "kube-system"}},
		"empty names are none":   {"", []string{"", "kube-system", ""}, []string{"kube-system"}},
		"nothing at all":         {"", nil, []string{}},
	} {
		t.Run(name, func(t *testing.T) {
			before := slices.Clone(c.others)
			protection := Protect(c.own, c.others...)
			if got := protection.Names(); !slices.Equal(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
			if !slices.Equal(before, c.others) {
				t.Errorf("the caller's list became %q", c.others)
			}
			for _, name := range c.want {
				if !protection.Has(name) {
					t.Errorf("does not have %q", name)
				}
			}
			if protection.Has("") || protection.Has("team") || protection.Has("kube-systems") {
				t.Error("has what nobody protected")
			}
		})
	}
}

func TestNamesBelongToTheCaller(t *testing.T) {
	protection := Protect("own", "kube-system")
	protection.Names()[0] = "mine"
	if got := protection.Names(); !slices.Equal(got, []string{"kube-system", "own"}) {
		t.Errorf("the protection became %q", got)
	}
}

func TestEndless(t *testing.T) {
	for name, c := range map[string]struct {
		target Target
		want   bool
	}{
		"no selector":                         {Target{}, true},
		"no selector, with exclusions":        {Target{Excluded: []string{"a"}}, true},
		"empty selector":                      {Target{Selector: labels.Everything()}, true},
		"selector of nothing":                 {Target{Selector: labels.Nothing()}, false},
		"a label":                             {Target{Selector: selector(t, "chaos=yes")}, false},
		"a label that must be there":          {Target{Selector: selector(t, "chaos")}, false},
		"a label that must not be there":      {Target{Selector: selector(t, "!calm")}, true},
		"a label that must not have a value":  {Target{Selector: selector(t, "stage!=production")}, true},
		"a label that must not be one of two": {Target{Selector: selector(t, "stage notin (production,staging)")}, true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := c.target.Endless(); got != c.want {
				t.Errorf("got %t, want %t", got, c.want)
			}
		})
	}
}

func TestUnguarded(t *testing.T) {
	protection := Protect("blackadder-system", "kube-system")
	live := map[string]labels.Set{
		"blackadder-system": {"kubernetes.io/metadata.name": "blackadder-system", "stage": "production"},
		"kube-system":       {"kubernetes.io/metadata.name": "kube-system", optOut: optOutValue},
		"team":              {"kubernetes.io/metadata.name": "team"},
	}
	both := []string{"blackadder-system", "kube-system"}
	for name, c := range map[string]struct {
		target Target
		live   map[string]labels.Set
		want   []string
	}{
		"everything":                           {Target{}, live, both},
		"everything by the empty selector":     {Target{Selector: labels.Everything()}, live, both},
		"both excluded":                        {Target{Excluded: []string{"kube-system", "team", "blackadder-system"}}, live, nil},
		"one excluded":                         {Target{Excluded: []string{"kube-system"}}, live, []string{"blackadder-system"}},
		"one kept out by the selector":         {Target{Selector: selector(t, "stage!=production")}, live, []string{"kube-system"}},
		"one excluded, the other kept out":     {Target{Excluded: []string{"kube-system"}, Selector: selector(t, "stage!=production")}, live, nil},
		"neither selected":                     {Target{Selector: selector(t, "chaos=yes")}, live, nil},
		"selected by name":                     {Target{Selector: selector(t, "kubernetes.io/metadata.name in (team,kube-system)")}, live, []string{"kube-system"}},
		"a label that opts out is not a guard": {Target{OptOut: optOut, OptOutValue: optOutValue}, live, both},
		"not there, and no selector":           {Target{}, nil, both},
		"not there, selected by another label": {Target{Selector: selector(t, "chaos=yes")}, nil, nil},
		"not there, selected by name":          {Target{Selector: selector(t, "kubernetes.io/metadata.name=kube-system")}, nil, []string{"kube-system"}},
		"not there, kept out by name":          {Target{Selector: selector(t, "kubernetes.io/metadata.name notin (kube-system,blackadder-system)")}, nil, nil},
		"there without any label":              {Target{Selector: selector(t, "kubernetes.io/metadata.name")}, map[string]labels.Set{"kube-system": nil}, []string{"blackadder-system"}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := protection.Unguarded(c.target, c.live); !slices.Equal(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestScope(t *testing.T) {
	target := Target{
		Excluded: []string{"excluded", "kube-system", "excluded-and-unselected"}, Selector: selector(t, "chaos=yes"),
		OptOut: optOut, OptOutValue: optOutValue,
	}
	selected := labels.Set{"chaos": "yes"}
	out := labels.Set{"chaos": "yes", optOut: optOutValue}
	scope := Protect("own", "kube-system").Scope(target, []Live{
		{Name: "team", Labels: selected},
		{Name: "apps", Labels: labels.Set{"chaos": "yes", optOut: "enabled"}},
		{Name: "own", Labels: selected},
		{Name: "kube-system", Labels: out, Terminating: true},
		{Name: "excluded", Labels: out, Terminating: true},
		{Name: "excluded-and-unselected"},
		{Name: "unselected", Labels: labels.Set{optOut: optOutValue}, Terminating: true},
		{Name: "unlabelled"},
		{Name: "opted-out", Labels: out, Terminating: true},
		{Name: "terminating", Labels: selected, Terminating: true},
	})
	want := map[string]string{
		"team": "", "apps": "",
		"own": "ProtectedNamespace", "kube-system": "ProtectedNamespace",
		"excluded": "ExcludedNamespace", "excluded-and-unselected": "ExcludedNamespace",
		"unselected": "NamespaceNotSelected", "unlabelled": "NamespaceNotSelected",
		"opted-out": "NamespaceOptedOut", "terminating": "NamespaceTerminating",
		"made-since": "NamespaceUnknown", "": "NamespaceUnknown",
	}
	got := map[string]string{}
	for name := range want {
		got[name] = scope.Excludes(name)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if targeted := scope.Targeted(); !slices.Equal(targeted, []string{"apps", "team"}) {
		t.Errorf("targeted are %q", targeted)
	}
}

func TestScopeWithoutASelectorOrLabelToOptOutBy(t *testing.T) {
	scope := Protect("own").Scope(Target{}, []Live{{Name: "own"}, {Name: "team"}, {Name: "labelled", Labels: labels.Set{"": "", optOut: optOutValue}}})
	if diff := cmp.Diff(Scope{"own": Protected, "team": Targeted, "labelled": Targeted}, scope); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	var none Scope
	if got := none.Excludes("team"); got != "NamespaceUnknown" || len(none.Targeted()) != 0 {
		t.Errorf("the empty scope says %q, and targets %q", got, none.Targeted())
	}
}

// Whatever is targeted: what is protected never is, and admission has pointed out each protected namespace that nothing but
// the protection keeps away.
func TestProtectionHoldsForAnyTarget(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	names := []string{"a", "b", "c", "d", "kube-system", "own"}
	selectors := []string{"", "chaos=yes", "chaos!=yes", "!chaos", "chaos", "kubernetes.io/metadata.name in (a,own)"}
	some := func(share float64) []string {
		return slices.DeleteFunc(slices.Clone(names), func(string) bool { return random.Float64() > share })
	}
	for range 2000 {
		protection := Protect("own", some(0.3)...)
		target := Target{Excluded: some(0.3), OptOut: optOut, OptOutValue: optOutValue}
		if text := selectors[random.IntN(len(selectors))]; text != "" {
			target.Selector = selector(t, text)
		}
		var live []Live
		sets := map[string]labels.Set{}
		for _, name := range some(0.8) {
			set := labels.Set{"kubernetes.io/metadata.name": name}
			if random.IntN(2) == 0 {
				set["chaos"] = []string{"yes", "no"}[random.IntN(2)]
			}
			if random.IntN(4) == 0 {
				set[optOut] = optOutValue
			}
			sets[name] = set
			live = append(live, Live{Name: name, Labels: set, Terminating: random.IntN(5) == 0})
		}
		scope := protection.Scope(target, live)
		unprotected := Protection{}.Scope(target, live)
		unguarded := protection.Unguarded(target, sets)
		for _, name := range names {
			reason, targeted := scope.Excludes(name), slices.Contains(scope.Targeted(), name)
			_, exists := sets[name]
			switch {
			case targeted != (reason == ""):
				t.Fatalf("%s: targeted %t, but %q", name, targeted, reason)
			case targeted && (protection.Has(name) || slices.Contains(target.Excluded, name) || !exists):
				t.Fatalf("%s is targeted: protected %q, %+v, live %+v", name, protection.Names(), target, live)
			case protection.Has(name) && exists && reason != string(Protected):
				t.Fatalf("protected %s is out of reach because of %q", name, reason)
			case protection.Has(name) && unprotected.Excludes(name) == "" && !slices.Contains(unguarded, name):
				t.Fatalf("nothing but its protection keeps %s away, and it does not count as unguarded: %+v, live %+v", name, target, live)
			case slices.Contains(unguarded, name) && (!protection.Has(name) || slices.Contains(target.Excluded, name)):
				t.Fatalf("%s counts as unguarded", name)
			}
		}
	}
}

func TestNearest(t *testing.T) {
	existing := []string{"production", "staging", "kube-system", "team-b", "team-a", "team-c"}
	for name, want := range map[string]string{
		"prodution":     "production",
		"prodctin":      "production",
		"kubesystem":    "kube-system",
		"kube_system":   "kube-system",
		"stagingg":      "staging",
		"team-x":        "team-a", // The first of those that are equally near.
		"production":    "",       // It exists, and nothing else is near.
		"team-a":        "team-b",
		"monitoring":    "",
		"":              "",
		"x":             "",
		"stag":          "", // Three of seven letters.
		"stagi":         "staging",
		"kube-system-x": "kube-system",
	} {
		if got := Nearest(name, existing); got != want {
			t.Errorf("%q: got %q, want %q", name, got, want)
		}
	}
	if got := Nearest("team", nil); got != "" {
		t.Errorf("of none: %q", got)
	}
	if got := Nearest("team-x", []string{"team-xx", "team-b", "team-xy"}); got != "team-b" {
		t.Errorf("of three equally near: %q", got)
	}
	if !slices.Equal(existing, []string{"production", "staging", "kube-system", "team-b", "team-a", "team-c"}) {
		t.Error("the caller's list was sorted")
	}
}
