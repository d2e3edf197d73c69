// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package chaosagent_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"blackadder.io/blackadder/api/blackadder/v1beta1"
	"blackadder.io/blackadder/controllers/chaosagent"
	"blackadder.io/blackadder/internal/chaos"
	"blackadder.io/blackadder/internal/development"
	"blackadder.io/blackadder/internal/namespaces"
	"blackadder.io/blackadder/internal/survey"
	"blackadder.io/blackadder/internal/testenv"
)

var (
	env     *testenv.Env
	proxy   *testenv.Proxy
	token   string
	metrics *prometheus.Registry
	admin   client.Client
	// stopController ends the controller in mid-work, as a crash does: nothing is finished first.
	stopController func()
)

func TestController(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "ChaosAgent controller on an API server")
}

var _ = BeforeSuite(func(ctx SpecContext) {
	ctrl.SetLogger(zap.New(zap.WriteTo(GinkgoWriter), zap.UseDevMode(true)))
	SetDefaultEventuallyTimeout(30 * time.Second)
	SetDefaultEventuallyPollingInterval(50 * time.Millisecond)
	// Without webhooks: the controller has to cope with whatever they would have kept away.
	env = testenv.Start(GinkgoTB(), testenv.Options{WithoutWebhooks: true})
	admin = env.Client(env.AdminConfig)
	proxy = env.StartProxy(GinkgoTB(), testenv.Hooks{})
	var err error
	token, _, err = development.ManagerToken(ctx, env.AdminConfig, time.Hour)
	Expect(err).NotTo(HaveOccurred())
	startController(nil)
})

var _ = AfterSuite(func() { stopController() })

// startController runs the controller through the proxy as the operator's ServiceAccount, with the cache that cmd/manager gives it
// and a clock; nil stands for the real one.
func startController(passive clock.PassiveClock) {
	GinkgoHelper()
	metrics = prometheus.NewRegistry()
	objects := survey.CacheByObject()
	for object, options := range chaosagent.CacheByObject(development.Namespace) {
		objects[object] = options
	}
	mgr, err := ctrl.NewManager(rest.CopyConfig(proxy.Config(token)), ctrl.Options{
		Scheme:                 env.Scheme,
		Cache:                  cache.Options{ReaderFailOnMissingInformer: true, ByObject: objects},
		Metrics:                metricsserver.Options{BindAddress: "0"},
		HealthProbeBindAddress: "0",
		// A name may be used once in a process; here each controller follows one that has ended.
		Controller: config.Controller{SkipNameValidation: ptr.To(true)},
	})
	Expect(err).NotTo(HaveOccurred())
	Expect(chaosagent.SetupWithManager(mgr, chaosagent.Options{
		Namespace: development.Namespace, Protection: namespaces.Protect(development.Namespace, "kube-system"), Clock: passive, Metrics: metrics,
	})).To(Succeed())
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

// restartController ends the controller and starts another one, which knows nothing but what is in the cluster.
func restartController(passive clock.PassiveClock) {
	GinkgoHelper()
	stopController()
	proxy.SetHooks(testenv.Hooks{})
	startController(passive)
}

// crash is a controller that loses its connection for good after a number of writes.
type crash struct {
	writes atomic.Int64
	dead   atomic.Bool
}

func isWrite(r *http.Request) bool {
	return r.Method != http.MethodGet && !strings.Contains(r.URL.Path, "/events.k8s.io/") && !strings.HasSuffix(r.URL.Path, "/events")
}

// crashAfter lets n writes through, of which the controller does not learn the answer of the last, and nothing after that.
func crashAfter(n int64) *crash {
	c := &crash{}
	proxy.SetHooks(testenv.Hooks{
		Before: func(r *http.Request) testenv.Decision {
			switch {
			case !isWrite(r):
				return testenv.Pass
			case c.dead.Load():
				return testenv.Block
			case c.writes.Add(1) > n:
				c.dead.Store(true)
				return testenv.Block
			}
			return testenv.Pass
		},
		After: func(response *http.Response) testenv.Decision {
			if isWrite(response.Request) && c.writes.Load() >= n {
				c.dead.Store(true)
				return testenv.Block
			}
			return testenv.Pass
		},
	})
	return c
}

func newNamespace(ctx context.Context, labels map[string]string) string {
	GinkgoHelper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "spec-", Labels: labels}}
	Expect(admin.Create(ctx, namespace)).To(Succeed())
	return namespace.Name
}

func newDeployment(ctx context.Context, namespace, name string, replicas int32) *appsv1.Deployment {
	GinkgoHelper()
	labels := map[string]string{"app": name}
	deployment := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: testenv.DefaultImage}}}},
		},
	}
	Expect(admin.Create(ctx, deployment)).To(Succeed())
	return deployment
}

func newConfigMap(ctx context.Context, namespace, name string, data map[string]string) *corev1.ConfigMap {
	GinkgoHelper()
	configMap := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Data: data}
	Expect(admin.Create(ctx, configMap)).To(Succeed())
	return configMap
}

func newPods(ctx context.Context, namespace string, n int) {
	GinkgoHelper()
	for i := range n {
		Expect(admin.Create(ctx, testenv.MakePod(namespace, fmt.Sprintf("pod-%d", i)).Obj())).To(Succeed())
	}
}

// old waits until everything that was made so far is older than the second that a cycle starts in, which a cycle spares.
func old() {
	GinkgoHelper()
	made := time.Now()
	Eventually(func() bool { return time.Now().Truncate(time.Second).After(made) }).Should(BeTrue())
}

func replicas(ctx context.Context, namespace, name string) int32 {
	GinkgoHelper()
	var deployment appsv1.Deployment
	Expect(admin.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &deployment)).To(Succeed())
	return *deployment.Spec.Replicas
}

func data(ctx context.Context, namespace, name string) map[string]string {
	GinkgoHelper()
	var configMap corev1.ConfigMap
	Expect(admin.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &configMap)).To(Succeed())
	return configMap.Data
}

func podNames(ctx context.Context, namespace string) []string {
	GinkgoHelper()
	var list corev1.PodList
	Expect(admin.List(ctx, &list, client.InNamespace(namespace))).To(Succeed())
	names := []string{}
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names
}

func journal(ctx context.Context) []corev1.Secret {
	GinkgoHelper()
	var list corev1.SecretList
	Expect(admin.List(ctx, &list, client.InNamespace(development.Namespace), client.HasLabels{chaos.JournalLabel})).To(Succeed())
	return list.Items
}

func read(ctx context.Context, name string) *v1beta1.ChaosAgent {
	GinkgoHelper()
	var agent v1beta1.ChaosAgent
	Expect(admin.Get(ctx, client.ObjectKey{Name: name}, &agent)).To(Succeed())
	return &agent
}

// writes are what the operator wrote successfully in a namespace, in short.
func writes(namespace string) []string {
	GinkgoHelper()
	events, err := env.Writes(development.ManagerUser, testenv.OnEvents, testenv.Refused)
	Expect(err).NotTo(HaveOccurred())
	var texts []string
	for _, event := range events {
		if event.Namespace == namespace {
			resource := event.Resource
			if event.Subresource != "" {
				resource += "/" + event.Subresource
			}
			texts = append(texts, event.Verb+" "+resource+" "+event.Name)
		}
	}
	return texts
}

// metric sums one of the controller's counters over the series that have all the given label values.
func metric(name string, values ...string) float64 {
	GinkgoHelper()
	families, err := metrics.Gather()
	Expect(err).NotTo(HaveOccurred())
	sum := 0.0
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
	samples:
		for _, sample := range family.GetMetric() {
			for _, value := range values {
				has := false
				for _, label := range sample.GetLabel() {
					has = has || label.GetValue() == value
				}
				if !has {
					continue samples
				}
			}
			sum += sample.GetCounter().GetValue() + sample.GetGauge().GetValue() + float64(sample.GetHistogram().GetSampleCount())
		}
	}
	return sum
}
