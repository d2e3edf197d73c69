// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"math"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"blackadder.io/blackadder/api/blackadder/v1beta1"
)

const (
	// mostSamples and mostUnrecovered are the schema's bounds.
	mostSamples     = 100
	mostUnrecovered = 50
	// NeverDown is how long a workload that was hit may stay available before it counts as one that never was unavailable. Its
	// controller has noticed the loss of a pod long before.
	NeverDown = 30 * time.Second
)

// Workload names a Deployment, StatefulSet or DaemonSet.
type Workload struct{ Kind, Namespace, Name string }

// String names the workload for people.
func (w Workload) String() string { return w.Kind + " " + w.Namespace + "/" + w.Name }

// Hit is a workload on its way back from a hit.
type Hit struct {
	// Since is when it was hit, for the first time since it was available last.
	Since time.Time
	// Down tells that it was seen unavailable since: its status before that may be from before the hit.
	Down bool
}

// Observe is what follows from a look at the workload: the hit as it is now, and whether it is over, after how long.
func (h Hit) Observe(available bool, now time.Time) (next Hit, recovered bool, took time.Duration) {
	switch {
	case !available:
		h.Down = true
		return h, false, 0
	case h.Down:
		return h, true, max(0, now.Sub(h.Since))
	case now.Sub(h.Since) >= NeverDown:
		return h, true, 0
	}
	return h, false, 0
}

// Recovered is a measured recovery.
type Recovered struct {
	Workload Workload
	Took     time.Duration
}

// WithRecoveries adds measured recoveries, and states what is still pending, the oldest first. It returns nil if there is
// nothing to tell at all.
func WithRecoveries(recovery *v1beta1.Recovery, recovered []Recovered, pending map[Workload]Hit) *v1beta1.Recovery {
	next := &v1beta1.Recovery{}
	if recovery != nil {
		next = recovery.DeepCopy()
	}
	for _, one := range recovered {
		next.Count++
		next.Samples = append(next.Samples, one.Took.Milliseconds())
		if next.Worst == nil || one.Took.Milliseconds() > next.Worst.Milliseconds() {
			next.Worst, next.WorstWorkload = inMilliseconds(one.Took.Milliseconds()), one.Workload.String()
		}
	}
	next.Samples = slices.Clone(next.Samples[max(0, len(next.Samples)-mostSamples):])
	if len(next.Samples) > 0 {
		next.Median, next.P95 = inMilliseconds(quantile(next.Samples, 0.5)), inMilliseconds(quantile(next.Samples, 0.95))
	}
	next.Pending = int32(min(len(pending), 1<<30))
	next.Unrecovered = nil
	for workload, hit := range pending {
		next.Unrecovered = append(next.Unrecovered, v1beta1.Unrecovered{
			Kind: workload.Kind, Namespace: workload.Namespace, Name: workload.Name, Since: micro(hit.Since),
		})
	}
	slices.SortFunc(next.Unrecovered, func(a, b v1beta1.Unrecovered) int {
		if order := a.Since.Compare(b.Since.Time); order != 0 {
			return order
		}
		return slices.Compare([]string{a.Kind, a.Namespace, a.Name}, []string{b.Kind, b.Namespace, b.Name})
	})
	next.Unrecovered = next.Unrecovered[:min(len(next.Unrecovered), mostUnrecovered)]
	if next.Count == 0 && next.Pending == 0 {
		return nil
	}
	return next
}

func inMilliseconds(n int64) *metav1.Duration {
	return &metav1.Duration{Duration: time.Duration(n) * time.Millisecond}
}

// quantile is the smallest sample that at least the given share of the samples does not exceed (the nearest rank).
func quantile(samples []int64, share float64) int64 {
	sorted := slices.Sorted(slices.Values(samples))
	return sorted[max(0, int(math.Ceil(share*float64(len(sorted))))-1)]
}
