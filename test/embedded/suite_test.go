// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

// Package embedded_test drives the whole operator, the real binary with its generated manifests, on a cluster with
// kube-controller-manager, scheduler and simulated nodes.
package embedded_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"blackadder.io/blackadder/internal/testenv"
)

var (
	env *testenv.Env
	// proxy is what the operator takes for the API server: there a spec can end it at a chosen request.
	proxy *testenv.Proxy
	// refused has what the API server refused the operator for want of a right.
	refused refusals
	// it is the operator itself.
	it           *operator
	admin, alice client.WithWatch
)

func TestEmbedded(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "The operator on an embedded cluster")
}

var _ = BeforeSuite(func(ctx SpecContext) {
	SetDefaultEventuallyTimeout(90 * time.Second)
	SetDefaultEventuallyPollingInterval(50 * time.Millisecond)
	env = testenv.StartEmbedded(GinkgoTB(), testenv.EmbeddedOptions{
		Nodes: 3,
		// A lost node is noticed, and tainted, at the first look after its condition says so.
		ControllerManagerFlags: map[string]string{"node-monitor-period": "1s"},
	})
	admin, alice = env.Client(env.AdminConfig), env.Client(env.AliceConfig)
	proxy = env.StartProxy(GinkgoTB(), testenv.Hooks{})
	setHooks(testenv.Hooks{})
	build(ctx)
	it = newOperator("operator", env.Webhook.Address(), "--leader-elect=false")
	it.start()
})

var _ = AfterSuite(func() {
	if it != nil {
		it.kill()
	}
})

var _ = AfterEach(func() {
	if CurrentSpecReport().Failed() {
		AddReportEntry("the end of the operator's log", it.tail())
	}
	setHooks(testenv.Hooks{})
	// A spec that failed with the operator down must not take the others along.
	if !it.ready() {
		it.kill()
		it.start()
	}
	// A rule that is missing in config/rbac shows here, in the spec that needs it. Nothing else that the operator does is
	// refused, but pods that a quota, Pod Security or the end of their namespace forbids.
	Expect(refused.unexpected()).To(BeEmpty(), "the API server refused the operator")
})

// setHooks lets a spec decide about the operator's requests; refusals are noted all the same.
func setHooks(hooks testenv.Hooks) {
	proxy.SetHooks(testenv.Hooks{Before: hooks.Before, After: func(response *http.Response) testenv.Decision {
		refused.note(response)
		if hooks.After == nil {
			return testenv.Pass
		}
		return hooks.After(response)
	}})
}

// kubectl runs the real one as alice, an ordinary cluster-admin, and wants success.
func kubectl(args ...string) string {
	GinkgoHelper()
	stdout, stderr, err := env.KubectlAs(testenv.Alice, []string{testenv.Testers}, args...)
	Expect(err).NotTo(HaveOccurred(), "%s", stderr)
	return stdout
}

// kubectlRefused runs kubectl as alice, wants a refusal, and returns its text.
func kubectlRefused(args ...string) string {
	GinkgoHelper()
	stdout, stderr, err := env.KubectlAs(testenv.Alice, []string{testenv.Testers}, args...)
	Expect(err).To(HaveOccurred(), "%s", stdout)
	return strings.TrimSpace(stderr)
}
