// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"blackadder.io/blackadder/api/blackadder/v1beta1"
)

func TestObserve(t *testing.T) {
	for name, c := range map[string]struct {
		down, available bool
		// after is the time since the hit.
		after     time.Duration
		next      bool
		recovered bool
		took      time.Duration
	}{
		"not down yet":                 {false, true, time.Second, false, false, 0},
		"not down for almost too long": {false, true, 30*time.Second - 1, false, false, 0},
		"never was down":               {false, true, 30 * time.Second, false, true, 0},
		"never was down, seen late":    {false, true, time.Hour, false, true, 0},
		"goes down":                    {false, false, time.Second, true, false, 0},
		"goes down late":               {false, false, time.Hour, true, false, 0},
		"is still down":                {true, false, time.Minute, true, false, 0},
		"is back":                      {true, true, 7 * time.Second, true, true, 7 * time.Second},
		"is back late":                 {true, true, 90 * time.Minute, true, true, 90 * time.Minute},
		"is back at once":              {true, true, 0, true, true, 0},
		"clocks went back":             {true, true, -time.Second, true, true, 0},
		"clocks went back, not down":   {false, true, -time.Hour, false, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			next, recovered, took := Hit{Since: now, Down: c.down}.Observe(c.available, now.Add(c.after))
			if next != (Hit{Since: now, Down: c.next}) || recovered != c.recovered || took != c.took {
				t.Errorf("got %+v, %t after %s", next, recovered, took)
			}
		})
	}
}

var (
	web = Workload{"Deployment", "team", "web"}
	db  = Workload{"StatefulSet", "team", "db"}
)

func TestWithRecoveries(t *testing.T) {
	second := func(n int) Recovered { return Recovered{web, time.Duration(n) * time.Second} }
	for name, c := range map[string]struct {
		before    *v1beta1.Recovery
		recovered []Recovered
		pending   map[Workload]Hit
		want      *v1beta1.Recovery
	}{
		"nothing to tell":                {nil, nil, nil, nil},
		"nothing to tell, with no words": {&v1beta1.Recovery{}, []Recovered{}, map[Workload]Hit{}, nil},
		"no longer pending": {
			&v1beta1.Recovery{Pending: 1, Unrecovered: []v1beta1.Unrecovered{{Kind: "Deployment", Namespace: "team", Name: "web", Since: *at(0)}}}, nil, nil, nil,
		},
		"pending alone": {
			nil, nil,
			map[Workload]Hit{web: {Since: now.Add(1999 * time.Nanosecond)}},
			&v1beta1.Recovery{Pending: 1, Unrecovered: []v1beta1.Unrecovered{{Kind: "Deployment", Namespace: "team", Name: "web", Since: *at(time.Microsecond)}}},
		},
		"the first": {
			nil,
			[]Recovered{{db, 1500*time.Millisecond + 999*time.Microsecond}},
			nil,
			&v1beta1.Recovery{
				Count: 1, Samples: []int64{1500}, Worst: lasting(1500 * time.Millisecond), WorstWorkload: "StatefulSet team/db",
				Median: lasting(1500 * time.Millisecond), P95: lasting(1500 * time.Millisecond),
			},
		},
		"at once": {
			nil,
			[]Recovered{{db, 0}},
			nil,
			&v1beta1.Recovery{Count: 1, Samples: []int64{0}, Worst: lasting(0), WorstWorkload: "StatefulSet team/db", Median: lasting(0), P95: lasting(0)},
		},
		"several, and one before": {
			&v1beta1.Recovery{Count: 8, Samples: []int64{9000}, Worst: lasting(time.Hour), WorstWorkload: "Deployment a/b", Median: lasting(9 * time.Second), P95: lasting(9 * time.Second)},
			[]Recovered{second(3), second(1), second(2)},
			nil,
			&v1beta1.Recovery{
				Count: 11, Samples: []int64{9000, 3000, 1000, 2000}, Worst: lasting(time.Hour), WorstWorkload: "Deployment a/b",
				Median: lasting(2 * time.Second), P95: lasting(9 * time.Second),
			},
		},
		"a new worst": {
			&v1beta1.Recovery{Count: 1, Samples: []int64{5000}, Worst: lasting(5 * time.Second), WorstWorkload: "Deployment a/b"},
			[]Recovered{{web, 5 * time.Second}, {db, 6 * time.Second}, {web, 6 * time.Second}},
			nil,
			&v1beta1.Recovery{
				Count: 4, Samples: []int64{5000, 5000, 6000, 6000}, Worst: lasting(6 * time.Second), WorstWorkload: "StatefulSet team/db",
				Median: lasting(5 * time.Second), P95: lasting(6 * time.Second),
			},
		},
		"only what is pending changes": {
			&v1beta1.Recovery{Count: 2, Samples: []int64{1000, 3000}, Worst: lasting(3 * time.Second), WorstWorkload: "Deployment a/b", Pending: 7},
			nil,
			map[Workload]Hit{db: {Since: now, Down: true}},
			&v1beta1.Recovery{
				Count: 2, Samples: []int64{1000, 3000}, Worst: lasting(3 * time.Second), WorstWorkload: "Deployment a/b", Median: lasting(time.Second), P95: lasting(3 * time.Second),
				Pending: 1, Unrecovered: []v1beta1.Unrecovered{{Kind: "StatefulSet", Namespace: "team", Name: "db", Since: *at(0)}},
			},
		},
		"the oldest first, then by name": {
			nil, nil,
			map[Workload]Hit{
				{"StatefulSet", "a", "a"}: {Since: now}, {"Deployment", "b", "a"}: {Since: now}, {"Deployment", "a", "b"}: {Since: now},
				{"Deployment", "a", "a"}: {Since: now}, {"DaemonSet", "z", "z"}: {Since: now.Add(-time.Second)}, {"DaemonSet", "a", "a"}: {Since: now.Add(time.Second)},
			},
			&v1beta1.Recovery{Pending: 6, Unrecovered: []v1beta1.Unrecovered{
				{Kind: "DaemonSet", Namespace: "z", Name: "z", Since: *at(-time.Second)},
				{Kind: "Deployment", Namespace: "a", Name: "a", Since: *at(0)},
				{Kind: "Deployment", Namespace: "a", Name: "b", Since: *at(0)},
				{Kind: "Deployment", Namespace: "b", Name: "a", Since: *at(0)},
				{Kind: "StatefulSet", Namespace: "a", Name: "a", Since: *at(0)},
				{Kind: "DaemonSet", Namespace: "a", Name: "a", Since: *at(time.Second)},
			}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			before := c.before.DeepCopy()
			if diff := cmp.Diff(c.want, WithRecoveries(c.before, c.recovered, c.pending)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if diff := cmp.Diff(before, c.before); diff != "" {
				t.Errorf("what was known before changed\n%s", diff)
			}
		})
	}
}

// The quantiles are those of the nearest rank: of n samples, the median is number ⌈n/2⌉ and the 95th percentile ⌈0.95 n⌉.
func TestQuantilesOfAnyNumberOfSamples(t *testing.T) {
	random := rand.New(rand.NewPCG(24, 25))
	for n := 1; n <= 100; n++ {
		var recovered []Recovered
		for _, i := range random.Perm(n) {
			recovered = append(recovered, Recovered{web, time.Duration(i+1) * time.Second})
		}
		got := WithRecoveries(nil, recovered, nil)
		median, p95 := time.Duration((n+1)/2)*time.Second, time.Duration((95*n+99)/100)*time.Second
		if got.Median.Duration != median || got.P95.Duration != p95 || got.Worst.Duration != time.Duration(n)*time.Second {
			t.Errorf("%d samples: median %s, p95 %s, worst %s; want %s, %s", n, got.Median.Duration, got.P95.Duration, got.Worst.Duration, median, p95)
		}
	}
}

func TestSamplesAreBounded(t *testing.T) {
	var recovery *v1beta1.Recovery
	for i := 1; i <= 250; i++ {
		took := time.Duration(i) * time.Second
		if i == 7 {
			took = time.Hour
		}
		recovery = WithRecoveries(recovery, []Recovered{{web, took}}, nil)
	}
	var want []int64
	for i := int64(151); i <= 250; i++ {
		want = append(want, 1000*i)
	}
	if !slices.Equal(recovery.Samples, want) || recovery.Count != 250 || recovery.Worst.Duration != time.Hour {
		t.Errorf("count %d, worst %s, samples %v", recovery.Count, recovery.Worst.Duration, recovery.Samples)
	}
	if recovery.Median.Duration != 200*time.Second || recovery.P95.Duration != 245*time.Second {
		t.Errorf("median %s, p95 %s", recovery.Median.Duration, recovery.P95.Duration)
	}
	// More at once than fit.
	many := make([]Recovered, 130)
	for i := range many {
		many[i] = Recovered{db, time.Duration(i) * time.Millisecond}
	}
	if got := WithRecoveries(recovery, many, nil); len(got.Samples) != 100 || got.Samples[0] != 30 || got.Count != 380 {
		t.Errorf("count %d, %d samples from %d on", got.Count, len(got.Samples), got.Samples[0])
	}
}

func TestUnrecoveredAreBounded(t *testing.T) {
	pending := map[Workload]Hit{}
	for i := range 120 {
		pending[Workload{"Deployment", "team", fmt.Sprintf("web-%03d", i)}] = Hit{Since: now.Add(-time.Duration(i) * time.Second)}
	}
	got := WithRecoveries(nil, nil, pending)
	if got.Pending != 120 || len(got.Unrecovered) != 50 || got.Unrecovered[0].Name != "web-119" || got.Unrecovered[49].Name != "web-070" {
		t.Errorf("%d pending, named %v", got.Pending, got.Unrecovered)
	}
	if got.Median != nil || got.P95 != nil || got.Worst != nil || got.WorstWorkload != "" || got.Samples != nil {
		t.Errorf("without a recovery there are times: %+v", got)
	}
}

func TestWorkloadIsNamedForPeople(t *testing.T) {
	if got := web.String(); got != "Deployment team/web" {
		t.Errorf("got %s", got)
	}
}
