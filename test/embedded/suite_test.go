// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

// Package embedded_test drives the whole operator, the real binary with its generated manifests, on a cluster with
// kube-controller-manager, scheduler and simulated nodes.
package embedded_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"blackadder.io/blackadder/internal/development"
	"blackadder.io/blackadder/internal/testenv"
)

var (
	env   *testenv.Env
	proxy *testenv.Proxy
	admin client.Client
	it    *operator
)

func TestEmbedded(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "The operator on an embedded cluster")
}

var _ = BeforeSuite(func(ctx SpecContext) {
	SetDefaultEventuallyTimeout(90 * time.Second)
	SetDefaultEventuallyPollingInterval(100 * time.Millisecond)
	env = testenv.StartEmbedded(GinkgoTB(), testenv.EmbeddedOptions{Nodes: 3})
	admin = env.Client(env.AdminConfig)
	// The manager reaches the API server through the proxy, where a spec can end it at a chosen write.
	proxy = env.StartProxy(GinkgoTB(), testenv.Hooks{})
	it = newOperator(ctx)
	it.start()
})

var _ = AfterSuite(func() {
	if it != nil {
		it.kill()
	}
})

var _ = ReportAfterEach(func(report SpecReport) {
	if report.Failed() && it != nil {
		log, _ := os.ReadFile(it.log)
		lines := strings.Split(string(log), "\n")
		fmt.Fprintln(GinkgoWriter, strings.Join(lines[max(0, len(lines)-60):], "\n"))
	}
})

// operator is the manager's process, which specs end and start again.
type operator struct {
	binary, kubeconfig, log string
	metrics, health         string

	mutex   sync.Mutex
	process *exec.Cmd
	ended   chan struct{}
}

func newOperator(ctx context.Context) *operator {
	GinkgoHelper()
	ports, err := development.FreePorts("127.0.0.1", 2)
	Expect(err).NotTo(HaveOccurred())
	o := &operator{
		binary: filepath.Join(env.Dir, "manager"), kubeconfig: filepath.Join(env.Dir, "manager.kubeconfig"), log: filepath.Join(env.Dir, "manager.log"),
		metrics: fmt.Sprintf("127.0.0.1:%d", ports[0]), health: fmt.Sprintf("127.0.0.1:%d", ports[1]),
	}
	build := exec.CommandContext(ctx, "go", "build", "-o", o.binary, "./cmd/manager")
	build.Dir = env.Root
	output, err := build.CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), "%s", output)
	token, _, err := development.ManagerToken(ctx, env.AdminConfig, time.Hour)
	Expect(err).NotTo(HaveOccurred())
	Expect(proxy.Kubeconfig(o.kubeconfig, token)).To(Succeed())
	return o
}

// begin starts the process and does not wait for it to be ready.
func (o *operator) begin() {
	GinkgoHelper()
	log, err := os.OpenFile(o.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	Expect(err).NotTo(HaveOccurred())
	defer log.Close()
	command := exec.Command(o.binary, "--kubeconfig="+o.kubeconfig, "--webhook-cert-dir="+env.Webhook.CertDir, "--webhook-address="+env.Webhook.Address(),
		"--metrics-address="+o.metrics, "--health-address="+o.health, "--leader-elect=false", "--log-format=console")
	command.Stdout, command.Stderr = log, log
	Expect(command.Start()).To(Succeed())
	ended := make(chan struct{})
	go func() {
		_ = command.Wait()
		close(ended)
	}()
	o.mutex.Lock()
	defer o.mutex.Unlock()
	o.process, o.ended = command, ended
}

func (o *operator) start() {
	GinkgoHelper()
	o.begin()
	Eventually(o.ready).Should(BeTrue(), "the manager did not become ready")
}

func (o *operator) ready() bool {
	response, err := http.Get("http://" + o.health + "/readyz")
	if err != nil {
		return false
	}
	defer response.Body.Close()
	return response.StatusCode == http.StatusOK
}

// kill ends the process as a lost machine would, and returns when it is gone. It may be called by a hook of the proxy.
func (o *operator) kill() { o.signal(syscall.SIGKILL) }

func (o *operator) signal(signal os.Signal) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	_ = o.process.Process.Signal(signal)
	<-o.ended
}

func newNamespace(ctx context.Context, labels map[string]string) string {
	GinkgoHelper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "spec-", Labels: labels}}
	Expect(admin.Create(ctx, namespace)).To(Succeed())
	// Pods need it, and the controller manager makes it a moment later.
	Eventually(func() error {
		return admin.Get(ctx, client.ObjectKey{Namespace: namespace.Name, Name: "default"}, &corev1.ServiceAccount{})
	}).Should(Succeed())
	return namespace.Name
}

// kubectl runs the real one as alice, an ordinary cluster-admin, and wants success.
func kubectl(args ...string) string {
	GinkgoHelper()
	stdout, stderr, err := env.KubectlAs(testenv.Alice, []string{testenv.Testers}, args...)
	Expect(err).NotTo(HaveOccurred(), "%s", stderr)
	return stdout
}

// refused runs kubectl as kubectl does, and wants a refusal, whose text it returns.
func refused(args ...string) string {
	GinkgoHelper()
	stdout, stderr, err := env.KubectlAs(testenv.Alice, []string{testenv.Testers}, args...)
	Expect(err).To(HaveOccurred(), "%s", stdout)
	return strings.TrimSpace(stderr)
}

func get(address, token string) (int, string) {
	GinkgoHelper()
	request, err := http.NewRequest(http.MethodGet, address, http.NoBody)
	Expect(err).NotTo(HaveOccurred())
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}
	response, err := (&http.Client{Transport: transport, Timeout: 20 * time.Second}).Do(request)
	Expect(err).NotTo(HaveOccurred())
	defer response.Body.Close()
	var body bytes.Buffer
	_, err = body.ReadFrom(response.Body)
	Expect(err).NotTo(HaveOccurred())
	return response.StatusCode, body.String()
}

// servedSerial is the serial number of the certificate that the webhooks are served with now.
func servedSerial() (string, error) {
	connection, err := tls.DialWithDialer(&net.Dialer{Timeout: time.Second}, "tcp", env.Webhook.Address(), &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		return "", err
	}
	defer connection.Close()
	return connection.ConnectionState().PeerCertificates[0].SerialNumber.String(), nil
}
