// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"blackadder.io/blackadder/api/blackadder/v1beta1"
	"blackadder.io/blackadder/internal/namespaces"
)

// names are the victims in their order.
func names(victims []Victim) []string {
	var all []string
	for i := range victims {
		all = append(all, victims[i].Key().String())
	}
	return all
}

func planned(t *testing.T, in Input) *Plan {
	t.Helper()
	plan, err := NewPlan(in)
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

// cluster is a scope of every kind of namespace, and the names of all of them; team-a and team-b are targeted.
func cluster() (namespaces.Scope, []string) {
	yes := labels.Set{"chaos": "yes"}
	scope := namespaces.Protect("blackadder-system", "kube-system").Scope(namespaces.Target{
		Excluded: []string{"excluded"}, Selector: labels.SelectorFromSet(yes), OptOut: v1beta1.OptOutKey, OptOutValue: v1beta1.OptOutValue,
	}, []namespaces.Live{
		{Name: "team-a", Labels: yes},
		{Name: "team-b", Labels: yes},
		{Name: "kube-system", Labels: yes},
		{Name: "blackadder-system", Labels: yes},
		{Name: "excluded", Labels: yes},
		{Name: "unselected", Labels: labels.Set{"chaos": "no"}},
		{Name: "opted-out", Labels: labels.Set{"chaos": "yes", v1beta1.OptOutKey: v1beta1.OptOutValue}},
		{Name: "terminating", Labels: yes, Terminating: true},
	})
	return scope, []string{"team-a", "team-b", "kube-system", "blackadder-system", "excluded", "unselected", "opted-out", "terminating", "unknown"}
}

// somewhere is a random object in a random namespace, two thirds of which are targeted.
func somewhere(random *rand.Rand, all []string, name string) Object {
	namespace := all[random.IntN(2)]
	if random.IntN(3) == 0 {
		namespace = all[random.IntN(len(all))]
	}
	object := anObject(Modes()[random.IntN(3)], name, in(namespace), created(-time.Duration(1+random.IntN(7200))*time.Second))
	object.Meta.UID = types.UID(fmt.Sprintf("uid-%d", random.Uint64()))
	if object.Deployment != nil {
		object.Deployment.Replicas = int32(random.IntN(140))
		object.Deployment.Autoscaled = random.IntN(5) == 0
		object.Deployment.TemplateLabels = map[string]string{"app": []string{"web", "db"}[random.IntN(2)]}
	}
	if object.ConfigMap != nil {
		object.ConfigMap = &ConfigMapFacts{Immutable: random.IntN(5) == 0, HasData: random.IntN(5) > 0}
	}
	object.Meta.Labels = map[string]string{"app": []string{"web", "db"}[random.IntN(2)]}
	switch random.IntN(12) {
	case 0:
		deleted(&object)
	case 1:
		annotated(v1beta1.OptOutKey, v1beta1.OptOutValue)(&object)
	case 2:
		owned("immortalcontainer.flugel.it/v1alpha1", "ImmortalContainer")(&object)
	case 3:
		created(0)(&object)
	}
	return object
}

// population are random objects with names of their own; some are held by another agent.
func population(random *rand.Rand, all []string, n int) ([]Object, map[Key]string) {
	objects := make([]Object, n)
	held := map[Key]string{}
	for i := range objects {
		objects[i] = somewhere(random, all, fmt.Sprintf("o-%d", i))
		if random.IntN(10) == 0 {
			held[objects[i].Key()] = "gale"
		}
	}
	return objects, held
}

func randomSpec(random *rand.Rand) v1beta1.ChaosAgentSpec {
	spec := v1beta1.ChaosAgentSpec{
		TantrumMode: random.IntN(4) > 0, CancerMode: random.IntN(4) > 0, IpsumMode: random.IntN(4) > 0,
		Eagerness: []int32{0, 1, 20, 50, 80, 100}[random.IntN(6)], DryRun: random.IntN(5) == 0,
	}
	if random.IntN(2) == 0 {
		spec.MaxVictimsPerCycle = ptr.To(int32(1 + random.IntN(12)))
	}
	if random.IntN(3) == 0 {
		spec.PodTolerance = int32(random.IntN(20))
	}
	if random.IntN(3) == 0 {
		spec.MinimumAge = &metav1.Duration{Duration: time.Duration(random.IntN(3600)) * time.Second}
	}
	if random.IntN(3) == 0 {
		spec.PodSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	}
	if random.IntN(3) == 0 {
		spec.MaxReplicas = ptr.To(int32(1 + random.IntN(128)))
	}
	return spec
}

func TestNoVictimIsOutOfReachOrBeyondTheBound(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	scope, all := cluster()
	reasons := map[string]bool{}
	for round := range 1500 {
		objects, held := population(random, all, random.IntN(80))
		agent := anAgent(func(agent *v1beta1.ChaosAgent) { agent.Spec = randomSpec(random) })
		spec := &agent.Spec
		before := slices.Clone(objects)
		plan := planned(t, Input{Agent: agent, Scope: scope, Namespaces: 2, Objects: objects, Held: held, Now: now, Seed: random.Int64()})

		seen, victims := map[Key]bool{}, map[Mode]int32{}
		for i := range plan.Victims {
			victim := &plan.Victims[i]
			key := victim.Key()
			switch {
			case key.Namespace != "team-a" && key.Namespace != "team-b":
				t.Fatalf("round %d: %s is a victim", round, key)
			case !On(spec, key.Mode):
				t.Fatalf("round %d: %s is a victim of a mode that is off", round, key)
			case held[key] != "" || victim.Meta.DeletionTimestamp != nil || len(victim.Meta.OwnerReferences) > 0 || len(victim.Meta.Annotations) > 0:
				t.Fatalf("round %d: %+v is a victim", round, victim)
			case !victim.Meta.CreationTimestamp.Time.Before(now):
				t.Fatalf("round %d: %s is a victim, created at %s", round, key, victim.Meta.CreationTimestamp)
			case spec.MinimumAge != nil && now.Sub(victim.Meta.CreationTimestamp.Time) < spec.MinimumAge.Duration:
				t.Fatalf("round %d: %s is a victim, %s old", round, key, now.Sub(victim.Meta.CreationTimestamp.Time))
			case seen[key]:
				t.Fatalf("round %d: %s is a victim twice", round, key)
			case i > 0 && byRank(plan.Victims[i-1], *victim) >= 0:
				t.Fatalf("round %d: %s is out of order", round, key)
			}
			seen[key] = true
			victims[key.Mode]++
		}
		if spec.MaxVictimsPerCycle != nil && len(plan.Victims) > int(*spec.MaxVictimsPerCycle) {
			t.Fatalf("round %d: %d victims, of at most %d", round, len(plan.Victims), *spec.MaxVictimsPerCycle)
		}

		filter, err := NewFilter(spec, scope, now, held)
		if err != nil {
			t.Fatal(err)
		}
		for _, mode := range Modes() {
			report := ReportOf(&plan.Cycle, mode)
			if (report != nil) != On(spec, mode) {
				t.Fatalf("round %d: the report of %s is %+v", round, mode, report)
			}
			if report == nil {
				continue
			}
			want := v1beta1.ModeReport{Victims: victims[mode]}
			counts := map[string]int32{}
			for i := range objects {
				if objects[i].Mode != mode {
					continue
				}
				if reason := filter.Exclude(&objects[i]); reason != "" {
					counts[reason]++
					reasons[reason] = true
				} else {
					want.Candidates++
				}
			}
			got := map[string]int32{}
			for _, count := range report.Excluded {
				got[count.Reason] = count.Count
			}
			if !slices.IsSortedFunc(report.Excluded, func(a, b v1beta1.ExclusionCount) int { return strings.Compare(a.Reason, b.Reason) }) {
				t.Fatalf("round %d: exclusions in no order: %+v", round, report.Excluded)
			}
			if diff := cmp.Diff(counts, got); diff != "" || report.Candidates != want.Candidates || report.Victims != want.Victims || report.Done != 0 {
				t.Fatalf("round %d: %s: got %+v, want %+v\n%s", round, mode, report, want, diff)
			}
			enough := mode != Tantrum || report.Candidates >= spec.PodTolerance
			if !enough && report.Victims > 0 {
				t.Fatalf("round %d: pods are killed although there are %d, fewer than %d", round, report.Candidates, spec.PodTolerance)
			}
			if spec.Eagerness == 100 && spec.MaxVictimsPerCycle == nil && enough && report.Victims != report.Candidates {
				t.Fatalf("round %d: eagerness 100 took %d of %d", round, report.Victims, report.Candidates)
			}
		}
		if !reflect.DeepEqual(before, objects) {
			t.Fatalf("round %d: the plan changed the objects\n%s", round, cmp.Diff(before, objects))
		}
	}
	for _, reason := range []string{
		ExcludedTerminating, ExcludedOptedOut, ExcludedImmortal, ExcludedOwnObject, ExcludedNotSelected, ExcludedTooYoung, ExcludedSinceStart,
		ExcludedScaledToZero, ExcludedAtMaxReplicas, ExcludedAutoscaled, ExcludedImmutable, ExcludedNoData, ExcludedByAnotherAgent,
		"ProtectedNamespace", "ExcludedNamespace", "NamespaceNotSelected", "NamespaceOptedOut", "NamespaceTerminating", "NamespaceUnknown",
	} {
		if !reasons[reason] {
			t.Errorf("the rounds never met the reason %s", reason)
		}
	}
}

func TestPlanDoesNotDependOnTheOrderOfObjects(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 8))
	scope, all := cluster()
	for round := range 300 {
		objects, held := population(random, all, 60)
		in := Input{Agent: anAgent(func(agent *v1beta1.ChaosAgent) { agent.Spec = randomSpec(random) }), Scope: scope, Objects: objects, Held: held, Now: now, Seed: random.Int64()}
		want := planned(t, in)
		again := planned(t, in)
		in.Objects = slices.Clone(objects)
		random.Shuffle(len(objects), func(i, j int) { in.Objects[i], in.Objects[j] = in.Objects[j], in.Objects[i] })
		shuffled := planned(t, in)
		for _, got := range []*Plan{again, shuffled} {
			if diff := cmp.Diff(want, got, cmp.AllowUnexported(Victim{})); diff != "" {
				t.Fatalf("round %d: (-want +got)\n%s", round, diff)
			}
		}
	}
}

// Without a bound, who else is a candidate makes no difference to anybody.
func TestVictimsDoNotDependOnOtherCandidates(t *testing.T) {
	random := rand.New(rand.NewPCG(9, 10))
	scope, all := cluster()
	for round := range 300 {
		objects, held := population(random, all, 80)
		in := Input{Scope: scope, Objects: objects, Held: held, Now: now, Seed: random.Int64()}
		in.Agent = anAgent(func(agent *v1beta1.ChaosAgent) {
			agent.Spec = randomSpec(random)
			agent.Spec.MaxVictimsPerCycle, agent.Spec.PodTolerance = nil, 0
		})
		here := map[Key]bool{}
		in.Objects = slices.DeleteFunc(slices.Clone(objects), func(object Object) bool {
			here[object.Key()] = random.IntN(2) == 0
			return !here[object.Key()]
		})
		some := planned(t, in)
		in.Objects = objects
		whole := planned(t, in)
		want := slices.DeleteFunc(slices.Clone(whole.Victims), func(victim Victim) bool { return !here[victim.Key()] })
		if !slices.Equal(names(want), names(some.Victims)) {
			t.Fatalf("round %d: %q became %q among fewer", round, names(want), names(some.Victims))
		}
	}
}

// A bound keeps the first of those that would be victims without it.
func TestBoundKeepsTheLowestRanks(t *testing.T) {
	objects := manyPods(40)
	agent := withSpec(func(spec *v1beta1.ChaosAgentSpec) { spec.Eagerness = 50 })
	in := Input{Agent: agent, Scope: teamOnly(), Objects: objects, Now: now, Seed: 11}
	unbound := planned(t, in)
	if len(unbound.Cycle.Ranks) > 0 {
		t.Errorf("without a bound the ranks are %q", unbound.Cycle.Ranks)
	}
	drawn := int32(len(unbound.Victims))
	for most := int32(1); most <= drawn+1; most++ {
		agent.Spec.MaxVictimsPerCycle = ptr.To(most)
		plan := planned(t, in)
		if want := unbound.Victims[:min(most, drawn)]; !slices.Equal(names(want), names(plan.Victims)) {
			t.Errorf("at most %d: got %q, want %q", most, names(plan.Victims), names(want))
		}
		var ranks []string
		for i := range plan.Victims {
			ranks = append(ranks, formatRank(plan.Victims[i].rank))
		}
		if !slices.Equal(plan.Cycle.Ranks, ranks) || plan.Cycle.Pods.Victims != min(most, drawn) {
			t.Errorf("at most %d: ranks %q, want %q; %d reported", most, plan.Cycle.Ranks, ranks, plan.Cycle.Pods.Victims)
		}
	}
}

func TestSeedOfTheSpecWins(t *testing.T) {
	objects := manyPods(100)
	agent := anAgent()
	in := Input{Agent: agent, Scope: teamOnly(), Objects: objects, Now: now, Seed: 7}
	own := planned(t, in)
	in.Seed = 8
	other := planned(t, in)
	if own.Cycle.Seed != 7 || other.Cycle.Seed != 8 || slices.Equal(names(own.Victims), names(other.Victims)) {
		t.Errorf("seeds %d and %d drew %q and %q", own.Cycle.Seed, other.Cycle.Seed, names(own.Victims), names(other.Victims))
	}
	agent.Spec.Seed = ptr.To[int64](7)
	if forced := planned(t, in); forced.Cycle.Seed != 7 || !slices.Equal(names(own.Victims), names(forced.Victims)) {
		t.Errorf("spec.seed 7 drew %q with seed %d, want %q", names(forced.Victims), forced.Cycle.Seed, names(own.Victims))
	}
	agent.Spec.Seed = ptr.To[int64](0)
	if forced := planned(t, in); forced.Cycle.Seed != 0 {
		t.Errorf("spec.seed 0 counts as none: %d", forced.Cycle.Seed)
	}
}

func TestReasonOfAVictim(t *testing.T) {
	agent := withSpec(func(spec *v1beta1.ChaosAgentSpec) { spec.Eagerness = 60 })
	for seed := range int64(50) {
		plan := planned(t, Input{Agent: agent, Scope: teamOnly(), Objects: manyPods(1), Now: now, Seed: seed})
		percent := draw(seed, Key{Tantrum, "team", "web-0"}).percent
		switch {
		case (percent < 60) != (len(plan.Victims) == 1):
			t.Errorf("seed %d: %d of 100, and %d victims", seed, percent, len(plan.Victims))
		case percent < 60 && plan.Victims[0].Reason != fmt.Sprintf("drawn with %d of 100, below the eagerness 60", percent):
			t.Errorf("seed %d: %s", seed, plan.Victims[0].Reason)
		}
	}
}

func TestCycleOfAPlan(t *testing.T) {
	agent := anAgent(func(agent *v1beta1.ChaosAgent) {
		agent.Generation, agent.Status.Totals.Cycles = 3, 41
		everything(&agent.Spec)
		agent.Spec.IpsumMode = false
	})
	started := now.Add(123456789 * time.Nanosecond)
	plan := planned(t, Input{
		Agent: agent, Scope: teamOnly(), Namespaces: 5, Now: started, Seed: -9,
		Objects: []Object{aPod("a"), aPod("b", deleted), aPod("c", in("x")), aPod("d", deleted), aDeployment("e", scaled(0)), aConfigMap("f")},
	})
	want := v1beta1.Cycle{
		Number: 42, Generation: 3, StartTime: metav1.NewMicroTime(started.Truncate(time.Microsecond)), Seed: -9, Namespaces: 5,
		Pods: &v1beta1.ModeReport{Candidates: 1, Victims: 1, Excluded: []v1beta1.ExclusionCount{
			{Reason: "NamespaceUnknown", Count: 1}, {Reason: "Terminating", Count: 2},
		}},
		Deployments: &v1beta1.ModeReport{Excluded: []v1beta1.ExclusionCount{{Reason: "ScaledToZero", Count: 1}}},
		Reason:      "Acted", Message: "1 of 1 candidate Pods drawn; no candidate Deployments (1 excluded)",
	}
	if diff := cmp.Diff(want, plan.Cycle); diff != "" || plan.Halt != "" || !slices.Equal(names(plan.Victims), []string{"Pod team/a"}) {
		t.Errorf("victims %q, halt %q, cycle (-want +got)\n%s", names(plan.Victims), plan.Halt, diff)
	}
}

func TestReasonAndMessage(t *testing.T) {
	spec := func(change func(*v1beta1.ChaosAgentSpec)) v1beta1.ChaosAgentSpec {
		s := v1beta1.ChaosAgentSpec{TantrumMode: true, Eagerness: 100}
		change(&s)
		return s
	}
	// By seed 1, none of the three is drawn with an eagerness of 1.
	never := func(s *v1beta1.ChaosAgentSpec) { s.Eagerness, s.Seed = 1, ptr.To[int64](1) }
	all := []Object{aPod("a"), aPod("b"), aDeployment("a"), aConfigMap("a"), aConfigMap("b", deleted)}
	for name, c := range map[string]struct {
		spec            v1beta1.ChaosAgentSpec
		objects         []Object
		reason, message string
	}{
		"nothing there": {spec(func(*v1beta1.ChaosAgentSpec) {}), nil, "NoCandidates", "no candidate Pods (0 excluded)"},
		"all excluded": {
			spec(everything),
			[]Object{aPod("a", deleted), aPod("b", in("x")), aDeployment("a", scaled(0))},
			"NoCandidates", "no candidate Pods (2 excluded); no candidate Deployments (1 excluded); no candidate ConfigMaps (0 excluded)",
		},
		"none drawn": {spec(never), all, "NoneDrawn", "none of 2 candidate Pods drawn"},
		"acted":      {spec(everything), all, "Acted", "2 of 2 candidate Pods drawn; 1 of 1 candidate Deployments drawn; 1 of 1 candidate ConfigMaps drawn"},
		"dry run":    {spec(func(s *v1beta1.ChaosAgentSpec) { s.DryRun = true }), all, "DryRun", "2 of 2 candidate Pods drawn"},
		"dry run that drew none": {
			spec(func(s *v1beta1.ChaosAgentSpec) { never(s); s.DryRun = true }), all, "NoneDrawn", "none of 2 candidate Pods drawn",
		},
		"just enough pods":     {spec(func(s *v1beta1.ChaosAgentSpec) { s.PodTolerance = 2 }), all, "Acted", "2 of 2 candidate Pods drawn"},
		"fewer than tolerated": {spec(func(s *v1beta1.ChaosAgentSpec) { s.PodTolerance = 3 }), all, "BelowTolerance", "2 candidate Pods are fewer than the podTolerance of 3"},
		"fewer than tolerated, none there": {
			spec(func(s *v1beta1.ChaosAgentSpec) { s.PodTolerance = 3 }), nil, "NoCandidates", "no candidate Pods (0 excluded)",
		},
		"tolerance is about pods alone": {
			spec(func(s *v1beta1.ChaosAgentSpec) { everything(s); s.PodTolerance = 3 }), all,
			"Acted", "2 candidate Pods are fewer than the podTolerance of 3; 1 of 1 candidate Deployments drawn; 1 of 1 candidate ConfigMaps drawn",
		},
		"none drawn says more than too few": {
			spec(func(s *v1beta1.ChaosAgentSpec) { everything(s); never(s); s.PodTolerance = 3 }), all,
			"NoneDrawn", "2 candidate Pods are fewer than the podTolerance of 3; none of 1 candidate Deployments drawn; none of 1 candidate ConfigMaps drawn",
		},
		"too few says more than none there": {
			spec(func(s *v1beta1.ChaosAgentSpec) { everything(s); s.PodTolerance = 3 }), all[:2],
			"BelowTolerance", "2 candidate Pods are fewer than the podTolerance of 3; no candidate Deployments (0 excluded); no candidate ConfigMaps (0 excluded)",
		},
		"one mode only": {
			spec(func(s *v1beta1.ChaosAgentSpec) { s.TantrumMode, s.IpsumMode = false, true }), all,
			"Acted", "1 of 1 candidate ConfigMaps drawn",
		},
		"no mode": {spec(func(s *v1beta1.ChaosAgentSpec) { s.TantrumMode = false }), all, "", ""},
		"bound": {
			spec(func(s *v1beta1.ChaosAgentSpec) { s.MaxVictimsPerCycle = ptr.To[int32](1) }), all, "Acted", "1 of 2 candidate Pods drawn",
		},
	} {
		t.Run(name, func(t *testing.T) {
			plan := planned(t, Input{Agent: anAgent(func(agent *v1beta1.ChaosAgent) { agent.Spec = c.spec }), Scope: teamOnly(), Objects: c.objects, Now: now})
			if plan.Cycle.Reason != c.reason || plan.Cycle.Message != c.message {
				t.Errorf("got  %s: %s\nwant %s: %s", plan.Cycle.Reason, plan.Cycle.Message, c.reason, c.message)
			}
		})
	}
}

// reread is a cycle as the API server gives it back.
func reread(t *testing.T, cycle *v1beta1.Cycle) *v1beta1.Cycle {
	t.Helper()
	text, err := json.Marshal(cycle)
	if err != nil {
		t.Fatal(err)
	}
	var read v1beta1.Cycle
	if err := json.Unmarshal(text, &read); err != nil {
		t.Fatal(err)
	}
	return &read
}

// A cycle that was interrupted goes on with those of its victims that are left, whatever has come since.
func TestResumedCycleDrawsTheRemainingVictims(t *testing.T) {
	random := rand.New(rand.NewPCG(12, 13))
	scope, all := cluster()
	bound, drew := 0, 0
	for round := range 1500 {
		objects, held := population(random, all, random.IntN(80))
		agent := anAgent(func(agent *v1beta1.ChaosAgent) { agent.Spec = randomSpec(random) })
		started := now.Add(time.Duration(random.Int64N(int64(time.Second))))
		first := planned(t, Input{Agent: agent, Scope: scope, Namespaces: 2, Objects: objects, Held: held, Now: started, Seed: random.Int64()})
		if len(first.Cycle.Ranks) > 0 {
			bound++
		}
		drew += len(first.Victims)

		gone := map[types.UID]bool{}
		victim := map[Key]types.UID{}
		for i := range first.Victims {
			victim[first.Victims[i].Key()] = first.Victims[i].Meta.UID
		}
		share := random.Float64()
		left := slices.DeleteFunc(slices.Clone(objects), func(object Object) bool {
			// Victims that were hit already, and whatever else has gone meanwhile.
			if random.Float64() < share {
				gone[object.Meta.UID] = true
			}
			return gone[object.Meta.UID]
		})
		for i := range 40 {
			// What has come since, here and there in the place and by the name of what is gone.
			name := fmt.Sprintf("new-%d", i)
			if i < len(objects) && gone[objects[i].Meta.UID] {
				name = objects[i].Meta.Name
			}
			object := somewhere(random, all, name)
			if name == objectName(objects, i) {
				object.Meta.Namespace, object.Mode = objects[i].Meta.Namespace, objects[i].Mode
				object.Deployment, object.ConfigMap = objects[i].Deployment, objects[i].ConfigMap
			}
			created(time.Duration(random.IntN(600)) * time.Second)(&object)
			left = append(left, object)
		}
		random.Shuffle(len(left), func(i, j int) { left[i], left[j] = left[j], left[i] })

		resume := reread(t, &first.Cycle)
		before := resume.DeepCopy()
		// Neither the time nor the seed of the new start matters, nor how many cycles are counted.
		agent.Status.Totals.Cycles = first.Cycle.Number
		second := planned(t, Input{
			Agent: agent, Scope: scope, Namespaces: 3, Objects: left, Held: held, Now: now.Add(time.Hour), Seed: random.Int64(), Resume: resume,
		})
		var want, got []types.UID
		for i := range first.Victims {
			if uid := first.Victims[i].Meta.UID; !gone[uid] {
				want = append(want, uid)
			}
		}
		for i := range second.Victims {
			got = append(got, second.Victims[i].Meta.UID)
		}
		if !slices.Equal(want, got) {
			t.Fatalf("round %d, ranks %q: drew %q first and %q then", round, first.Cycle.Ranks, names(first.Victims), names(second.Victims))
		}
		if diff := cmp.Diff(*before, second.Cycle) + cmp.Diff(before, resume); diff != "" {
			t.Fatalf("round %d: the cycle changed (-want +got)\n%s", round, diff)
		}
	}
	if bound < 100 || drew < 3000 {
		t.Errorf("only %d rounds met the bound, with %d victims in all", bound, drew)
	}
}

func objectName(objects []Object, i int) string {
	if i < len(objects) {
		return objects[i].Meta.Name
	}
	return ""
}

func TestResumedCycleHitsNoModeThatHadNoVictims(t *testing.T) {
	agent := withSpec(func(spec *v1beta1.ChaosAgentSpec) { everything(spec); spec.PodTolerance = 3 })
	in := Input{Agent: agent, Scope: teamOnly(), Objects: []Object{aPod("a"), aPod("b"), aDeployment("a")}, Now: now}
	first := planned(t, in)
	if !slices.Equal(names(first.Victims), []string{"Deployment team/a"}) {
		t.Fatalf("victims are %q", names(first.Victims))
	}
	in.Resume = reread(t, &first.Cycle)
	// A pod and a ConfigMap that were no candidates are so now; together there are enough pods.
	in.Objects = append(in.Objects, aPod("c"), aConfigMap("a"))
	if again := planned(t, in); !slices.Equal(names(again.Victims), []string{"Deployment team/a"}) {
		t.Errorf("victims became %q", names(again.Victims))
	}
	// A mode without a report was off.
	in.Resume.Deployments = nil
	if again := planned(t, in); len(again.Victims) != 0 {
		t.Errorf("victims became %q", names(again.Victims))
	}
}

func TestResumedCycleGoesOnWithFewerPodsThanTolerated(t *testing.T) {
	agent := withSpec(func(spec *v1beta1.ChaosAgentSpec) { spec.Eagerness, spec.PodTolerance = 100, 3 })
	in := Input{Agent: agent, Scope: teamOnly(), Objects: []Object{aPod("a"), aPod("b"), aPod("c")}, Now: now}
	first := planned(t, in)
	in.Resume, in.Objects = reread(t, &first.Cycle), []Object{aPod("b")}
	if again := planned(t, in); !slices.Equal(names(again.Victims), []string{"Pod team/b"}) || again.Cycle.Pods.Victims != 3 {
		t.Errorf("victims became %q of %d", names(again.Victims), again.Cycle.Pods.Victims)
	}
}

func TestHalt(t *testing.T) {
	up := func(n int) (objects []Object) {
		for i := range n {
			objects = append(objects, aDeployment(fmt.Sprintf("up-%d", i)))
		}
		return objects
	}
	down := func(n int, change ...func(*Object)) (objects []Object) {
		for i := range n {
			objects = append(objects, aDeployment(fmt.Sprintf("down-%d", i), append([]func(*Object){unavailable}, change...)...))
		}
		return objects
	}
	selecting := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	for name, c := range map[string]struct {
		percent  *int32
		selector *metav1.LabelSelector
		objects  []Object
		want     string
	}{
		"not asked for":               {nil, nil, down(3), ""},
		"nothing there":               {ptr.To[int32](0), nil, nil, ""},
		"all available":               {ptr.To[int32](0), nil, up(3), ""},
		"one too many":                {ptr.To[int32](0), nil, append(up(99), down(1)...), "1 of 100 targeted Deployments are not available, more than the 0 percent of spec.haltWhen"},
		"just as many":                {ptr.To[int32](25), nil, append(up(3), down(1)...), ""},
		"more":                        {ptr.To[int32](25), nil, append(up(3), down(2)...), "2 of 5 targeted Deployments are not available, more than the 25 percent of spec.haltWhen"},
		"a third is more than 33":     {ptr.To[int32](33), nil, append(up(2), down(1)...), "1 of 3 targeted Deployments are not available, more than the 33 percent of spec.haltWhen"},
		"a third is not more than 34": {ptr.To[int32](34), nil, append(up(2), down(1)...), ""},
		"all, at most all":            {ptr.To[int32](100), nil, down(3), ""},
		"all":                         {ptr.To[int32](99), nil, down(3), "3 of 3 targeted Deployments are not available, more than the 99 percent of spec.haltWhen"},
		"those that want no pods":     {ptr.To[int32](0), nil, down(3, scaled(0)), ""},
		"those elsewhere":             {ptr.To[int32](0), nil, down(3, in("kube-system")), ""},
		"those that are not selected": {ptr.To[int32](0), selecting, down(3), ""},
		"those that cannot be candidates": {
			ptr.To[int32](0), nil, down(2, scaled(500), created(time.Hour), annotated("blackadder.io/chaos", "disabled")),
			"2 of 2 targeted Deployments are not available, more than the 0 percent of spec.haltWhen",
		},
		"pods and ConfigMaps do not count": {
			ptr.To[int32](50), nil, append(down(1), aPod("a"), aPod("b"), aConfigMap("c")),
			"1 of 1 targeted Deployments are not available, more than the 50 percent of spec.haltWhen",
		},
	} {
		t.Run(name, func(t *testing.T) {
			agent := withSpec(func(spec *v1beta1.ChaosAgentSpec) {
				spec.Eagerness, spec.PodSelector = 100, c.selector
				if c.percent != nil {
					spec.HaltWhen = &v1beta1.HaltWhen{UnavailablePercent: *c.percent}
				}
			})
			in := Input{Agent: agent, Scope: teamOnly(), Objects: c.objects, Now: now}
			plan := planned(t, in)
			if plan.Halt != c.want {
				t.Errorf("got  %s\nwant %s", plan.Halt, c.want)
			}
			in.Resume = reread(t, &plan.Cycle)
			if resumed := planned(t, in); resumed.Halt != c.want {
				t.Errorf("resumed: %s", resumed.Halt)
			}
		})
	}
}

func TestReportOf(t *testing.T) {
	cycle := &v1beta1.Cycle{Pods: &v1beta1.ModeReport{Victims: 1}, Deployments: &v1beta1.ModeReport{Victims: 2}, ConfigMaps: &v1beta1.ModeReport{Victims: 3}}
	for i, mode := range Modes() {
		if got := ReportOf(cycle, mode); got == nil || int(got.Victims) != i+1 {
			t.Errorf("%s: %+v", mode, got)
		}
		if got := ReportOf(&v1beta1.Cycle{}, mode); got != nil {
			t.Errorf("%s of nothing: %+v", mode, got)
		}
	}
	if got := ReportOf(cycle, "unknown"); got != nil {
		t.Errorf("unknown: %+v", got)
	}
}

// What was no candidate at the start may be one later. It must not be hit beyond the bound.
func TestResumedCycleKeepsItsBoundWhoeverBecomesACandidate(t *testing.T) {
	optedOut := func(object *Object) { object.Meta.Annotations = map[string]string{"blackadder.io/chaos": "disabled"} }
	for name, most := range map[string]*int32{"bounded": ptr.To(int32(1)), "not bounded": nil} {
		agent := withSpec(func(spec *v1beta1.ChaosAgentSpec) { spec.MaxVictimsPerCycle = most })
		for other := range 20 {
			later := fmt.Sprintf("later-%d", other)
			in := Input{Agent: agent, Scope: teamOnly(), Objects: []Object{aPod("a"), aPod(later, optedOut)}, Now: now}
			first := planned(t, in)
			in.Resume, in.Objects = reread(t, &first.Cycle), []Object{aPod("a"), aPod(later)}
			if second := planned(t, in); len(second.Victims) > 1 {
				t.Errorf("%s: %q first and %q then", name, names(first.Victims), names(second.Victims))
			}
			in.Objects = []Object{aPod(later)}
			if second := planned(t, in); most != nil && len(second.Victims) > 0 {
				t.Errorf("%s: %q first, which is gone, and %q then", name, names(first.Victims), names(second.Victims))
			}
		}
	}
}
