// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package development

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

func TestRootIsTheModuleAndNotATool(t *testing.T) {
	root, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	if want, _ := filepath.Abs("../.."); root != want {
		t.Errorf("the root is %s, want %s", root, want)
	}
	t.Chdir(filepath.Join(root, "hack", "kustomize"))
	if fromTool, err := Root(); err != nil || fromTool != root {
		t.Errorf("from a tool's module the root is %q, %v, want %s", fromTool, err, root)
	}
	outside := t.TempDir()
	t.Chdir(outside)
	want := "no go.mod of blackadder.io/blackadder in " + outside + " or above it: run this inside the repository"
	if _, err := Root(); err == nil || err.Error() != want {
		t.Errorf("outside the repository: got %v, want %q", err, want)
	}
}

func TestRenderedObjectsComeInTheOrderInWhichTheyCanBeApplied(t *testing.T) {
	root := t.TempDir()
	for name, content := range map[string]string{
		"first/kustomization.yaml":  "resources: [webhook.yaml, account.yaml]",
		"first/webhook.yaml":        "apiVersion: admissionregistration.k8s.io/v1\nkind: ValidatingWebhookConfiguration\nmetadata: {name: w}",
		"first/account.yaml":        "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: a, namespace: n}",
		"second/kustomization.yaml": "resources: [crd.yaml, namespace.yaml]",
		"second/crd.yaml":           "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: c}",
		"second/namespace.yaml":     "apiVersion: v1\nkind: Namespace\nmetadata: {name: n}",
	} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	objects, err := RenderFolders(root, "first", "second")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, object := range objects {
		got = append(got, describe(object))
	}
	want := []string{"Namespace n", "CustomResourceDefinition c", "ServiceAccount n/a", "ValidatingWebhookConfiguration w"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("objects (-want +got):\n%s", diff)
	}
}

func TestPointWebhooksReplacesServicesAndNothingElse(t *testing.T) {
	bundle := base64.StdEncoding.EncodeToString([]byte("bundle"))
	for name, test := range map[string]struct{ before, after string }{
		"a validating and a URL webhook": {
			before: `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: v}
webhooks:
- name: a
  clientConfig: {service: {name: s, namespace: n, path: /validate-pod}}
  failurePolicy: Fail
- name: b
  clientConfig: {url: "https://elsewhere/x"}`,
			after: `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: v}
webhooks:
- name: a
  clientConfig: {url: "https://127.0.0.1:9443/validate-pod", caBundle: ` + bundle + `}
  failurePolicy: Fail
- name: b
  clientConfig: {url: "https://elsewhere/x"}`,
		},
		"a mutating webhook without a path": {
			before: `
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: m}
webhooks: [{name: a, clientConfig: {service: {name: s, namespace: n}}}]`,
			after: `
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingWebhookConfiguration
metadata: {name: m}
webhooks: [{name: a, clientConfig: {url: "https://127.0.0.1:9443/", caBundle: ` + bundle + `}}]`,
		},
		"a conversion": {
			before: `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: c}
spec: {conversion: {strategy: Webhook, webhook: {conversionReviewVersions: [v1], clientConfig: {service: {name: s, namespace: n, path: /convert}}}}}`,
			after: `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: c}
spec: {conversion: {strategy: Webhook, webhook: {conversionReviewVersions: [v1], clientConfig: {url: "https://127.0.0.1:9443/convert", caBundle: ` + bundle + `}}}}`,
		},
		"a definition without conversion": {
			before: "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: c}\nspec: {group: g}",
			after:  "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: c}\nspec: {group: g}",
		},
		"a configuration without webhooks": {
			before: "apiVersion: admissionregistration.k8s.io/v1\nkind: MutatingWebhookConfiguration\nmetadata: {name: m}",
			after:  "apiVersion: admissionregistration.k8s.io/v1\nkind: MutatingWebhookConfiguration\nmetadata: {name: m}",
		},
	} {
		t.Run(name, func(t *testing.T) {
			object := parse(t, test.before)
			if err := PointWebhooks([]*unstructured.Unstructured{object}, "127.0.0.1:9443", []byte("bundle")); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(parse(t, test.after), object); diff != "" {
				t.Errorf("object (-want +got):\n%s", diff)
			}
		})
	}

	for _, address := range []string{"", "127.0.0.1", ":9443", "localhost:"} {
		want := `the webhook address "` + address + `" is not of the form host:port`
		if err := PointWebhooks(nil, address, nil); err == nil || err.Error() != want {
			t.Errorf("address %q: got %v, want %q", address, err, want)
		}
	}
}

func parse(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	object := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &object.Object); err != nil {
		t.Fatal(err)
	}
	return object
}
