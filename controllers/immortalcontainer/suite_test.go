// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package immortalcontainer_test

import (
	"context"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"blackadder.io/blackadder/controllers/immortalcontainer"
	"blackadder.io/blackadder/internal/testenv"
)

var (
	env     *testenv.Env
	metrics *prometheus.Registry
	admin   client.Client
	// stopController ends the controller in mid-work, as a crash does: nothing is finished first.
	stopController func()
)

func TestController(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "ImmortalContainer controller on an API server")
}

var _ = BeforeSuite(func() {
	ctrl.SetLogger(zap.New(zap.WriteTo(GinkgoWriter), zap.UseDevMode(true)))
	SetDefaultEventuallyTimeout(30 * time.Second)
	SetDefaultEventuallyPollingInterval(50 * time.Millisecond)
	// Without webhooks: the controller has to cope with whatever they would have kept away.
	env = testenv.Start(GinkgoTB(), testenv.Options{WithoutWebhooks: true})
	admin = env.Client(env.AdminConfig)
	startController()
})

var _ = AfterSuite(func() { stopController() })

// startController runs the controller as the operator's ServiceAccount with the cache that cmd/manager gives it.
func startController() {
	GinkgoHelper()
	metrics = prometheus.NewRegistry()
	mgr, err := ctrl.NewManager(env.ManagerConfig, ctrl.Options{
		Scheme:                 env.Scheme,
		Cache:                  cache.Options{ReaderFailOnMissingInformer: true, ByObject: immortalcontainer.CacheByObject()},
		Metrics:                metricsserver.Options{BindAddress: "0"},
		HealthProbeBindAddress: "0",
		// A name may be used once in a process; here each controller follows one that has ended.
		Controller: config.Controller{SkipNameValidation: ptr.To(true)},
	})
	Expect(err).NotTo(HaveOccurred())
	Expect(immortalcontainer.SetupWithManager(mgr, immortalcontainer.Options{Metrics: metrics})).To(Succeed())
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	stopController = func() {
		cancel()
		Eventually(ended).Should(Receive(Succeed()))
		stopController = func() {}
	}
	Expect(mgr.GetCache().WaitForCacheSync(ctx)).To(BeTrue())
}

func newNamespace(ctx context.Context, labels map[string]string) string {
	GinkgoHelper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "spec-", Labels: labels}}
	Expect(admin.Create(ctx, namespace)).To(Succeed())
	return namespace.Name
}

// metric reads one of the controller's metrics; the label, if any, has the given value.
func metric(gatherer prometheus.Gatherer, name, value string) float64 {
	GinkgoHelper()
	families, err := gatherer.Gather()
	Expect(err).NotTo(HaveOccurred())
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, sample := range family.GetMetric() {
			if value == "" || hasValue(sample, value) {
				return sample.GetCounter().GetValue() + sample.GetGauge().GetValue()
			}
		}
	}
	return 0
}

func hasValue(sample *dto.Metric, value string) bool {
	for _, label := range sample.GetLabel() {
		if label.GetValue() == value {
			return true
		}
	}
	return false
}

// reconciles is how many times the controller has looked at an object, with whatever result.
func reconciles() float64 {
	GinkgoHelper()
	families, err := ctrlmetrics.Registry.Gather()
	Expect(err).NotTo(HaveOccurred())
	sum := 0.0
	for _, family := range families {
		if family.GetName() == "controller_runtime_reconcile_total" {
			for _, sample := range family.GetMetric() {
				if hasValue(sample, immortalcontainer.Name) {
					sum += sample.GetCounter().GetValue()
				}
			}
		}
	}
	return sum
}
