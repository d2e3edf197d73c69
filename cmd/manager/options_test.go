// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func noEnvironment(string) (string, bool) { return "", false }

func TestParseOptions(t *testing.T) {
	folder := t.TempDir()
	file := filepath.Join(folder, "kubeconfig")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	certs := "--webhook-cert-dir=" + folder
	for name, c := range map[string]struct {
		arguments   []string
		environment map[string]string
		faults      []string
	}{
		"defaults":                           {arguments: []string{certs}},
		"everything":                         {arguments: []string{certs, "--kubeconfig=" + file, "--namespace=ops", "--default-image=a:1", "--webhook-address=127.0.0.1:1", "--metrics-address=0", "--health-address=0", "--leader-elect=false", "--log-format=console", "--log-level=debug"}},
		"no protected namespace but its own": {arguments: []string{certs, "--protected-namespaces="}},
		"a namespace that cannot be":         {arguments: []string{certs, "--protected-namespaces=kube-system,Ops"}, faults: []string{`--protected-namespaces[1]: Invalid value: "Ops": a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')`}},
		"environment":                        {environment: map[string]string{"BLACKADDER_WEBHOOK_CERT_DIR": folder, "BLACKADDER_LEADER_ELECT": "false"}},
		"flag before variable":               {arguments: []string{certs}, environment: map[string]string{"BLACKADDER_WEBHOOK_CERT_DIR": "/does/not/exist"}},
		"faulty variable":                    {arguments: []string{certs}, environment: map[string]string{"BLACKADDER_LEADER_ELECT": "perhaps"}, faults: []string{`--leader-elect: Invalid value: "perhaps" from BLACKADDER_LEADER_ELECT: parse error`}},
		"no such folder":                     {arguments: []string{"--webhook-cert-dir=/does/not/exist"}, faults: []string{`--webhook-cert-dir: Invalid value: "/does/not/exist": must be an existing folder`}},
		"webhooks not served":                {arguments: []string{certs, "--webhook-address=0"}, faults: []string{`--webhook-address: Invalid value: "0": must not be 0`}},
		"a stray argument":                   {arguments: []string{certs, "stray"}, faults: []string{`unexpected arguments ["stray"]: every setting is a flag`}},
		"a line for each fault": {
			arguments: []string{certs, "--default-image=A B", "--namespace=Ops", "--log-format=xml"},
			faults: []string{
				`--namespace: Invalid value: "Ops": a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')`,
				`--default-image: Invalid value: "A B": must be an image reference such as "nginx:1.29" or "registry.example.com/team/app@sha256:…": invalid reference format: repository name (library/A B) must be lowercase`,
				`--log-format: Unsupported value: "xml": supported values: "json", "console"`,
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parseOptions(c.arguments, func(name string) (string, bool) {
				value, set := c.environment[name]
				return value, set
			})
			got := ""
			if err != nil {
				got = err.Error()
			}
			if want := strings.Join(c.faults, "\n"); got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		})
	}
	if _, err := parseOptions([]string{"-h"}, noEnvironment); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("-h: got %v", err)
	}
}

func TestIdentityMustBeAServiceAccount(t *testing.T) {
	got, err := identityOf("system:serviceaccount:blackadder-system:blackadder-manager")
	if err != nil || got.namespace != "blackadder-system" || got.user != "system:serviceaccount:blackadder-system:blackadder-manager" {
		t.Errorf("got %+v, %v", got, err)
	}
	for _, user := range []string{"kubernetes-admin", "", "system:serviceaccount:", "system:serviceaccount:ns", "system:serviceaccount:ns:", "system:serviceaccount::name"} {
		if _, err := identityOf(user); err == nil || !strings.Contains(err.Error(), "which is no ServiceAccount") {
			t.Errorf("%q: got %v", user, err)
		}
	}
}

func TestTheClientIsNotHeldBack(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubeconfig")
	content := "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}]\ncontexts: [{name: c, context: {cluster: c}}]\ncurrent-context: c\n"
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	config, err := restConfig(options{Kubeconfig: file})
	if err != nil {
		t.Fatal(err)
	}
	// Zero would be client-go's default, five requests a second.
	if config.QPS >= 0 {
		t.Errorf("QPS is %v", config.QPS)
	}
}
