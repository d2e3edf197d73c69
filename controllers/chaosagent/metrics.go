// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package chaosagent

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"blackadder.io/blackadder/api/blackadder/v1beta1"
	"blackadder.io/blackadder/internal/chaos"
)

// scrapeTimeout bounds how long a scrape may wait for a cache that has not synced yet.
const scrapeTimeout = time.Second

// metrics are the controller's own. None carries an object's name, but for namespaces, by which platform teams bill.
type metrics struct {
	cycles      *prometheus.CounterVec
	duration    prometheus.Histogram
	victims     *prometheus.CounterVec
	restoration *prometheus.CounterVec
	recovery    *prometheus.HistogramVec
}

func newMetrics(registerer prometheus.Registerer, agents client.Reader) (*metrics, error) {
	m := &metrics{
		cycles: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "blackadder_chaos_cycles_total",
			Help: "Cycles of ChaosAgents, by the reason that they report (Acted, DryRun, NoCandidates, ...).",
		}, []string{"reason"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "blackadder_chaos_cycle_duration_seconds", Help: "How long cycles of ChaosAgents took.",
			Buckets: prometheus.ExponentialBuckets(0.05, 2, 12),
		}),
		victims: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "blackadder_chaos_victims_total",
			Help: "Victims of ChaosAgents, by mode (tantrum, cancer, ipsum), namespace, and result (done, refused, spared, failed, dry_run).",
		}, []string{"mode", "namespace", "result"}),
		restoration: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "blackadder_chaos_restorations_total",
			Help: "Changes of ChaosAgents that were to be put back, by mode and by what became of them (restored, left, gone, pending, abandoned).",
		}, []string{"mode", "result"}),
		recovery: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "blackadder_chaos_recovery_seconds", Help: "How long workloads needed to be available again after a ChaosAgent hit them, by kind.",
			Buckets: prometheus.ExponentialBuckets(0.25, 2, 14),
		}, []string{"kind"}),
	}
	if registerer == nil {
		return m, nil
	}
	for _, collector := range []prometheus.Collector{m.cycles, m.duration, m.victims, m.restoration, m.recovery, newStateCollector(agents)} {
		if err := registerer.Register(collector); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *metrics) cycle(cycle *v1beta1.Cycle, plan *chaos.Plan, took time.Duration) {
	m.cycles.WithLabelValues(cycle.Reason).Inc()
	m.duration.Observe(took.Seconds())
	if cycle.DryRun {
		for i := range plan.Victims {
			m.victim(&plan.Victims[i], "dry_run")
		}
	}
}

func (m *metrics) victim(victim *chaos.Victim, result verdict) {
	m.victims.WithLabelValues(string(victim.Mode), victim.Meta.Namespace, string(result)).Inc()
}

func (m *metrics) restored(mode chaos.Mode, became fate) {
	m.restoration.WithLabelValues(string(mode), string(became)).Inc()
}

func (m *metrics) recovered(one chaos.Recovered) {
	m.recovery.WithLabelValues(one.Workload.Kind).Observe(one.Took.Seconds())
}

// stateCollector counts the ChaosAgents by the reason of their Ready condition, and those with changes in force, when it is asked.
type stateCollector struct {
	agents client.Reader
	state  *prometheus.Desc
}

func newStateCollector(agents client.Reader) *stateCollector {
	return &stateCollector{
		agents: agents,
		state: prometheus.NewDesc("blackadder_chaos_agents",
			"ChaosAgents, by the reasons of their conditions Ready (Active, Suspended, Halted, ...) and Restored (NothingToRestore, ChangesInForce, ...).",
			[]string{"reason", "restored"}, nil),
	}
}

// Describe implements prometheus.Collector.
func (c *stateCollector) Describe(descriptions chan<- *prometheus.Desc) { descriptions <- c.state }

// Collect implements prometheus.Collector.
func (c *stateCollector) Collect(samples chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	var list v1beta1.ChaosAgentList
	if err := c.agents.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		samples <- prometheus.NewInvalidMetric(c.state, err)
		return
	}
	type reasons struct{ ready, restored string }
	counts := map[reasons]int{}
	for i := range list.Items {
		status := list.Items[i].Status
		counts[reasons{orUnknown(reasonOf(status, v1beta1.ConditionReady)), orUnknown(reasonOf(status, v1beta1.ConditionRestored))}]++
	}
	for of, count := range counts {
		samples <- prometheus.MustNewConstMetric(c.state, prometheus.GaugeValue, float64(count), of.ready, of.restored)
	}
}

func orUnknown(reason string) string {
	if reason == "" {
		return "Unknown"
	}
	return reason
}
