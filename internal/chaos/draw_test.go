// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"k8s.io/utils/ptr"

	"blackadder.io/blackadder/api/blackadder/v1beta1"
)

// within fails if k of n is further from the share than chance explains (5 sigma). The seeds are fixed, so it never does by
// bad luck.
func within(t *testing.T, what string, k, n int, share float64) {
	t.Helper()
	mean, sigma := float64(n)*share, math.Sqrt(float64(n)*share*(1-share))
	if math.Abs(float64(k)-mean) > 5*sigma {
		t.Errorf("%s: %d of %d, expected %.0f ± %.0f", what, k, n, mean, 5*sigma)
	}
}

func manyPods(n int) []Object {
	pods := make([]Object, n)
	for i := range pods {
		pods[i] = aPod(fmt.Sprintf("web-%d", i))
	}
	return pods
}

func TestShareOfVictimsIsTheEagerness(t *testing.T) {
	const n = 20000
	pods := manyPods(n)
	for _, eagerness := range []int32{1, 5, 20, 50, 80, 99, 100} {
		agent := withSpec(func(spec *v1beta1.ChaosAgentSpec) { spec.Eagerness = eagerness })
		plan, err := NewPlan(Input{Agent: agent, Scope: teamOnly(), Objects: pods, Now: now, Seed: 4711})
		if err != nil {
			t.Fatal(err)
		}
		within(t, fmt.Sprintf("eagerness %d", eagerness), len(plan.Victims), n, float64(eagerness)/100)
	}
}

func TestEagernessThatIsLeftOutIsTheDefault(t *testing.T) {
	pods := manyPods(1000)
	var plans []*Plan
	for _, eagerness := range []int32{0, v1beta1.DefaultEagerness} {
		agent := withSpec(func(spec *v1beta1.ChaosAgentSpec) { spec.Eagerness = eagerness })
		plan, err := NewPlan(Input{Agent: agent, Scope: teamOnly(), Objects: pods, Now: now, Seed: 1})
		if err != nil {
			t.Fatal(err)
		}
		plans = append(plans, plan)
	}
	if !slices.Equal(names(plans[0].Victims), names(plans[1].Victims)) || len(plans[0].Victims) == 0 {
		t.Errorf("left out: %d victims, default: %d", len(plans[0].Victims), len(plans[1].Victims))
	}
}

// Over many cycles each candidate has its share, whatever its name.
func TestShareOverSeedsIsTheEagernessForEachObject(t *testing.T) {
	const n = 10000
	random := rand.New(rand.NewPCG(3, 4))
	for _, key := range []Key{{Tantrum, "team", "web-0"}, {Tantrum, "team", "web-1"}, {Cancer, "team", "web-0"}, {Ipsum, "a", "b"}} {
		drawn := 0
		for range n {
			if draw(random.Int64(), key).percent < 20 {
				drawn++
			}
		}
		within(t, key.String(), drawn, n, 0.2)
	}
	// Seeds that follow on each other are as good as any.
	drawn := 0
	for seed := range int64(n) {
		if draw(seed, Key{Tantrum, "team", "web-0"}).percent < 20 {
			drawn++
		}
	}
	within(t, "seeds in a row", drawn, n, 0.2)
}

func TestPercentIsUniform(t *testing.T) {
	const n = 100000
	var counts [100]int
	for seed := range int64(n) {
		counts[draw(seed, Key{Cancer, "team", "web"}).percent]++
	}
	for percent, k := range counts {
		within(t, fmt.Sprintf("percent %d", percent), k, n, 0.01)
	}
}

// Of the modes and objects that are drawn for the same seed, none follows another.
func TestLotsAreIndependent(t *testing.T) {
	const n = 20000
	both := 0
	for seed := range int64(n) {
		if draw(seed, Key{Tantrum, "team", "web"}).percent < 30 && draw(seed, Key{Cancer, "team", "web"}).percent < 30 {
			both++
		}
	}
	within(t, "pod and deployment of a name", both, n, 0.09)
	both = 0
	for seed := range int64(n) {
		if draw(seed, Key{Tantrum, "team", "web"}).percent < 30 && draw(seed+1, Key{Tantrum, "team", "web"}).percent < 30 {
			both++
		}
	}
	within(t, "one seed and the next", both, n, 0.09)
}

// Whoever is spared by the bound is so by chance alone: whatever was drawn has the same chance to stay, in whatever mode.
func TestBoundSparesByChance(t *testing.T) {
	const n = 4000
	agent := withSpec(func(spec *v1beta1.ChaosAgentSpec) { everything(spec); spec.MaxVictimsPerCycle = ptr.To[int32](3) })
	objects := append(manyPods(4), aDeployment("web-0"), aDeployment("web-1"), aConfigMap("web-0"), aConfigMap("a"), aConfigMap("b"), aConfigMap("c"))
	hits, first := map[Key]int{}, map[Key]int{}
	for seed := range int64(n) {
		plan, err := NewPlan(Input{Agent: agent, Scope: teamOnly(), Objects: objects, Now: now, Seed: seed})
		if err != nil {
			t.Fatal(err)
		}
		first[plan.Victims[0].Key()]++
		for i := range plan.Victims {
			hits[plan.Victims[i].Key()]++
		}
	}
	for i := range objects {
		within(t, objects[i].Key().String(), hits[objects[i].Key()], n, 0.3)
		within(t, "first "+objects[i].Key().String(), first[objects[i].Key()], n, 0.1)
	}
}

func TestLotStaysTheSame(t *testing.T) {
	// Changed draws would let a cycle that began before an update of the operator go on with other victims.
	for _, c := range []struct {
		seed int64
		key  Key
		want lot
	}{
		{0, Key{Tantrum, "team", "web"}, lot{percent: 20, rank: 0x50dee79419a59df4}},
		{-1, Key{Cancer, "team", "web"}, lot{percent: 20, rank: 0x1353078be13ca3fb}},
		{math.MaxInt64, Key{Ipsum, "a", "b"}, lot{percent: 18, rank: 0x7fa4e2d947ce88e3}},
	} {
		if got := draw(c.seed, c.key); got != c.want || draw(c.seed, c.key) != got {
			t.Errorf("%s with seed %d: got %+v, want %+v", c.key, c.seed, got, c.want)
		}
	}
}

func TestGroupOf(t *testing.T) {
	for version, want := range map[string]string{"v1": "", "apps/v1": "apps", "k8s.osp.tech/v1": "k8s.osp.tech", "": "", "a/b/c": "", "apps": ""} {
		if got := groupOf(version); got != want {
			t.Errorf("%q: got %q, want %q", version, got, want)
		}
	}
}
