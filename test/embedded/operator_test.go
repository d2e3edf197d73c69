// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package embedded_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"blackadder.io/blackadder/internal/development"
)

// tokenLifetime is longer than any run.
const tokenLifetime = time.Hour

func binary() string     { return filepath.Join(env.Dir, "manager") }
func kubeconfig() string { return filepath.Join(env.Dir, "manager.kubeconfig") }

// build makes the operator's binary, and the credentials of its own ServiceAccount for it.
func build(ctx context.Context) {
	GinkgoHelper()
	command := exec.CommandContext(ctx, "go", "build", "-o", binary(), "./cmd/manager")
	command.Dir = env.Root
	command.Env = append(os.Environ(), "CGO_ENABLED=0")
	output, err := command.CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), "%s", output)
	token, _, err := development.ManagerToken(ctx, env.AdminConfig, tokenLifetime)
	Expect(err).NotTo(HaveOccurred())
	Expect(proxy.Kubeconfig(kubeconfig(), token)).To(Succeed())
}

// operator is the operator's process, which specs end and start again.
type operator struct {
	webhook, metrics, health string

	log   string
	flags []string

	mutex   sync.Mutex
	process *exec.Cmd
	ended   chan struct{}
}

// newOperator prepares an operator that serves its webhooks at the given address.
func newOperator(name, webhook string, flags ...string) *operator {
	GinkgoHelper()
	ports, err := development.FreePorts("127.0.0.1", 2)
	Expect(err).NotTo(HaveOccurred())
	o := &operator{
		webhook: webhook,
		metrics: fmt.Sprintf("127.0.0.1:%d", ports[0]),
		health:  fmt.Sprintf("127.0.0.1:%d", ports[1]),
		log:     filepath.Join(env.Dir, name+".log"),
	}
	o.flags = append([]string{
		"--kubeconfig=" + kubeconfig(), "--webhook-cert-dir=" + env.Webhook.CertDir, "--webhook-address=" + o.webhook,
		"--metrics-address=" + o.metrics, "--health-address=" + o.health, "--log-format=console",
	}, flags...)
	return o
}

// begin starts the process and does not wait for it to be ready.
func (o *operator) begin() {
	GinkgoHelper()
	log, err := os.OpenFile(o.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	Expect(err).NotTo(HaveOccurred())
	defer log.Close()
	command := exec.Command(binary(), o.flags...)
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

// start starts the process and waits until it is ready.
func (o *operator) start() {
	GinkgoHelper()
	o.begin()
	o.awaitReady()
}

func (o *operator) awaitReady() {
	GinkgoHelper()
	Eventually(o.ready).Should(BeTrue(), o.tail)
	// Being ready is a promise: whoever asks now is answered.
	_, err := servedSerial(o.webhook)
	Expect(err).NotTo(HaveOccurred(), "the operator says that it is ready, and its webhooks do not answer")
}

func (o *operator) ready() bool {
	code, _, err := o.probe("/readyz")
	return err == nil && code == http.StatusOK
}

func (o *operator) probe(path string) (code int, body string, err error) {
	response, err := (&http.Client{Timeout: 10 * time.Second}).Get("http://" + o.health + path)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return response.StatusCode, string(text), err
}

// kill ends the process as the loss of its machine would, and returns when it is gone. A hook of the proxy may call it.
func (o *operator) kill() { o.signal(syscall.SIGKILL) }

// signal sends a signal that ends the process, and returns how it ended.
func (o *operator) signal(signal os.Signal) *os.ProcessState {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	_ = o.process.Process.Signal(signal)
	<-o.ended
	return o.process.ProcessState
}

// tail is the end of the log, for the message of a failure.
func (o *operator) tail() string {
	log, err := os.ReadFile(o.log)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(string(log), "\n")
	return strings.Join(lines[max(0, len(lines)-60):], "\n")
}

// scrape reads the metrics with the given token; none for "".
func (o *operator) scrape(token string) (code int, body string) {
	GinkgoHelper()
	request, err := http.NewRequest(http.MethodGet, "https://"+o.metrics+"/metrics", http.NoBody)
	Expect(err).NotTo(HaveOccurred())
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}
	response, err := (&http.Client{Transport: transport, Timeout: 30 * time.Second}).Do(request)
	Expect(err).NotTo(HaveOccurred())
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	Expect(err).NotTo(HaveOccurred())
	return response.StatusCode, string(text)
}

// servedSerial is the serial number of the certificate that is served at an address now.
func servedSerial(address string) (string, error) {
	connection, err := tls.DialWithDialer(&net.Dialer{Timeout: 10 * time.Second}, "tcp", address, &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		return "", err
	}
	defer connection.Close()
	return connection.ConnectionState().PeerCertificates[0].SerialNumber.String(), nil
}

// refusals are the requests of the operator that the API server answered with 401 or 403, reads among them.
type refusals struct {
	mutex sync.Mutex
	all   []string
}

func (r *refusals) note(response *http.Response) {
	if response.StatusCode != http.StatusForbidden && response.StatusCode != http.StatusUnauthorized {
		return
	}
	body, err := io.ReadAll(response.Body)
	response.Body = io.NopCloser(bytes.NewReader(body))
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.all = append(r.all, fmt.Sprintf("%s %s: %d %s (%v)", response.Request.Method, response.Request.URL.Path, response.StatusCode, body, err))
}

// matching returns those whose text has the phrase in it.
func (r *refusals) matching(phrase string) []string {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	var found []string
	for _, refusal := range r.all {
		if strings.Contains(refusal, phrase) {
			found = append(found, refusal)
		}
	}
	return found
}

// unexpected returns, once, those that a missing permission would explain.
func (r *refusals) unexpected() []string {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	var found []string
	for _, refusal := range r.all {
		if !slices.ContainsFunc([]string{"exceeded quota", "violates PodSecurity", "because it is being terminated"}, func(phrase string) bool {
			return strings.Contains(refusal, phrase)
		}) {
			found = append(found, refusal)
		}
	}
	r.all = nil
	return found
}
