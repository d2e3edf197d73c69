// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package immortalcontainer

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"blackadder.io/blackadder/api/immortalcontainer/v1alpha1"
)

// scrapeTimeout bounds how long a scrape may wait for a cache that has not synced yet.
const scrapeTimeout = time.Second

// metrics are the controller's own. None carries an object's name: ten thousand ImmortalContainers must not make ten
// thousand series.
type metrics struct {
	created prometheus.Counter
	exits   *prometheus.CounterVec
	refused *prometheus.CounterVec
}

func newMetrics(registerer prometheus.Registerer, containers client.Reader) (*metrics, error) {
	m := &metrics{
		created: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "blackadder_immortal_pods_created_total",
			Help: "Pods created for ImmortalContainers.",
		}),
		exits: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "blackadder_immortal_pod_exits_total",
			Help: "Pods of ImmortalContainers that ended by themselves, by phase (Failed, Succeeded).",
		}, []string{"phase"}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "blackadder_immortal_pod_refusals_total",
			Help: "Pods of ImmortalContainers that the API server refused to create, by reason of the Ready condition.",
		}, []string{"reason"}),
	}
	if registerer == nil {
		return m, nil
	}
	for _, collector := range []prometheus.Collector{m.created, m.exits, m.refused, newStateCollector(containers)} {
		if err := registerer.Register(collector); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// stateCollector counts the ImmortalContainers by the reason of their Ready condition when it is asked, so that the
// numbers cannot drift from the objects.
type stateCollector struct {
	containers client.Reader
	state      *prometheus.Desc
}

func newStateCollector(containers client.Reader) *stateCollector {
	return &stateCollector{
		containers: containers,
		state: prometheus.NewDesc("blackadder_immortal_containers",
			"ImmortalContainers, by reason of the Ready condition (PodReady, BackingOff, NameConflict, ...).", []string{"reason"}, nil),
	}
}

// Describe implements prometheus.Collector.
func (c *stateCollector) Describe(descriptions chan<- *prometheus.Desc) { descriptions <- c.state }

// Collect implements prometheus.Collector.
func (c *stateCollector) Collect(samples chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
	defer cancel()
	var list v1alpha1.ImmortalContainerList
	if err := c.containers.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		samples <- prometheus.NewInvalidMetric(c.state, err)
		return
	}
	counts := map[string]int{}
	for i := range list.Items {
		reason := reasonOf(list.Items[i].Status, v1alpha1.ConditionReady)
		if reason == "" {
			reason = "Unknown"
		}
		counts[reason]++
	}
	for reason, count := range counts {
		samples <- prometheus.MustNewConstMetric(c.state, prometheus.GaugeValue, float64(count), reason)
	}
}
