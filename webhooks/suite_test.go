// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package webhooks_test

import (
	"context"
	"crypto/tls"
	"net"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	"blackadder.io/blackadder/api/immortalcontainer/v1alpha1"
	"blackadder.io/blackadder/internal/development"
	"blackadder.io/blackadder/internal/immortal"
	"blackadder.io/blackadder/internal/namespaces"
	"blackadder.io/blackadder/internal/survey"
	"blackadder.io/blackadder/internal/testenv"
	"blackadder.io/blackadder/webhooks"
)

const defaultImage = "nginx:latest"

var (
	env *testenv.Env
	// now stands still, so that the messages that name it can be compared whole.
	now     = time.Now().UTC().Truncate(time.Second)
	metrics *prometheus.Registry
	// stopWebhooks ends the webhook server and returns when nobody answers any more.
	stopWebhooks func()

	admin, alice, operator client.Client
)

func TestWebhooks(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "Webhooks on an API server")
}

var _ = BeforeSuite(func() {
	ctrl.SetLogger(zap.New(zap.WriteTo(GinkgoWriter), zap.UseDevMode(true)))
	SetDefaultEventuallyTimeout(30 * time.Second)
	SetDefaultEventuallyPollingInterval(50 * time.Millisecond)
	env = testenv.Start(GinkgoTB(), testenv.Options{})
	admin, alice, operator = env.Client(env.AdminConfig), env.Client(env.AliceConfig), env.Client(env.ManagerConfig)
	startWebhooks()
})

var _ = AfterSuite(func() { stopWebhooks() })

// startWebhooks serves the webhooks as the operator's ServiceAccount, as cmd/manager does.
func startWebhooks() {
	GinkgoHelper()
	metrics = prometheus.NewRegistry()
	mgr, err := ctrl.NewManager(env.ManagerConfig, ctrl.Options{
		Scheme:                 env.Scheme,
		WebhookServer:          webhook.NewServer(env.Webhook.Options()),
		Metrics:                metricsserver.Options{BindAddress: "0"},
		HealthProbeBindAddress: "0",
		Cache:                  cache.Options{ReaderFailOnMissingInformer: true, ByObject: survey.CacheByObject()},
	})
	Expect(err).NotTo(HaveOccurred())
	Expect(webhooks.Setup(mgr, webhooks.Options{
		DefaultImage: defaultImage, Protection: namespaces.Protect(development.Namespace, "kube-system"), ControllerUser: development.ManagerUser, Clock: clocktesting.NewFakePassiveClock(now), Metrics: metrics,
	})).To(Succeed())
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	stopWebhooks = func() {
		cancel()
		Eventually(ended).Should(Receive(Succeed()))
		stopWebhooks = func() {}
	}
	Eventually(func() error {
		connection, err := tls.DialWithDialer(&net.Dialer{Timeout: time.Second}, "tcp", env.Webhook.Address(), &tls.Config{InsecureSkipVerify: true}) // Only whether somebody listens.
		if err != nil {
			return err
		}
		return connection.Close()
	}).Should(Succeed())
}

// newNamespace makes a namespace for one spec. It is not removed: nothing removes namespaces without a controller manager.
func newNamespace(ctx context.Context, labels map[string]string) string {
	GinkgoHelper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "spec-", Labels: labels}}
	Expect(admin.Create(ctx, namespace)).To(Succeed())
	return namespace.Name
}

// newImmortal makes an ImmortalContainer as a user would, and its pod as the controller would, on the given node.
func newImmortal(ctx context.Context, namespace, name, node string) (*v1alpha1.ImmortalContainer, *corev1.Pod) {
	GinkgoHelper()
	container := testenv.MakeImmortalContainer(namespace, name).Image("nginx:1.29").Obj()
	Expect(alice.Create(ctx, container)).To(Succeed())
	pod := immortal.Pod(container, 1)
	pod.Spec.NodeName = node
	Expect(operator.Create(ctx, pod)).To(Succeed())
	return container, pod
}
