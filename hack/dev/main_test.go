// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"io"
	"path/filepath"
	"testing"

	. "github.com/onsi/gomega"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/client-go/tools/clientcmd"

	"blackadder.io/blackadder/certs"
	"blackadder.io/blackadder/internal/development"
	"blackadder.io/blackadder/internal/testenv"
)

func TestInstallMayBeRepeatedAndUninstallTakesEverythingAway(t *testing.T) {
	env := testenv.Start(t, testenv.Options{WithoutWebhooks: true})
	g := NewWithT(t)
	dir := filepath.Join(t.TempDir(), "dev")
	dev := func(args ...string) string {
		t.Helper()
		o, err := parse(append([]string{"--kubeconfig=" + env.Kubeconfig, "--dir=" + dir}, args...), io.Discard)
		g.Expect(err).NotTo(HaveOccurred())
		var out bytes.Buffer
		g.Expect(run(t.Context(), o, &out)).To(Succeed())
		return out.String()
	}
	webhookConfigurations := func() string {
		stdout, _, err := env.Kubectl("get", "validatingwebhookconfigurations,mutatingwebhookconfigurations",
			"--output=jsonpath={.items[*].webhooks[*].clientConfig.url}")
		g.Expect(err).NotTo(HaveOccurred())
		return stdout
	}

	g.Expect(dev("--only-crds")).To(ContainSubstring("  CustomResourceDefinition immortalcontainers.immortalcontainer.flugel.it\n"))
	g.Expect(webhookConfigurations()).To(BeEmpty())

	g.Expect(dev("--webhook-address=127.0.0.1:9443")).To(ContainSubstring("Its webhooks are called at https://127.0.0.1:9443."))
	g.Expect(webhookConfigurations()).To(HavePrefix("https://127.0.0.1:9443/"))
	before, err := certs.LoadCA(filepath.Join(dir, "ca"))
	g.Expect(err).NotTo(HaveOccurred())
	dev("--webhook-address=localhost:9444")
	g.Expect(webhookConfigurations()).To(HavePrefix("https://localhost:9444/"))
	after, err := certs.LoadCA(filepath.Join(dir, "ca"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(after.Bundle()).To(Equal(before.Bundle()))

	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dir, "manager.kubeconfig"))
	g.Expect(err).NotTo(HaveOccurred())
	review := &authenticationv1.SelfSubjectReview{}
	g.Expect(env.Client(config).Create(t.Context(), review)).To(Succeed())
	g.Expect(review.Status.UserInfo.Username).To(Equal(development.ManagerUser))

	g.Expect(dev("--uninstall")).To(ContainSubstring("  Namespace blackadder-system\n"))
	g.Expect(webhookConfigurations()).To(BeEmpty())
	_, _, err = env.Kubectl("get", "crd", "immortalcontainers.immortalcontainer.flugel.it")
	g.Expect(err).To(MatchError(ContainSubstring(`"immortalcontainers.immortalcontainer.flugel.it" not found`)))
}

func TestFlagErrors(t *testing.T) {
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"both verbs":         {[]string{"--only-crds", "--uninstall"}, "--only-crds and --uninstall exclude each other"},
		"an argument":        {[]string{"install"}, `unexpected argument "install"`},
		"an unknown flag":    {[]string{"--nonsense"}, "flag provided but not defined: -nonsense"},
		"a bad duration":     {[]string{"--token-lifetime=1"}, `invalid value "1" for flag -token-lifetime: parse error`},
		"a missing argument": {[]string{"--kubeconfig"}, "flag needs an argument: -kubeconfig"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parse(test.args, io.Discard)
			NewWithT(t).Expect(err).To(MatchError(test.want))
		})
	}
}
