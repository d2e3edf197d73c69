// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package development

import (
	"bufio"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// Module is the path of the module whose go.mod marks the root of the repository.
const Module = "blackadder.io/blackadder"

// Identity of the manager in the manifests.
const (
	// Namespace is the operator's own namespace.
	Namespace = "blackadder-system"
	// ServiceAccount is the name of the manager's ServiceAccount in Namespace.
	ServiceAccount = "blackadder-manager"
	// ManagerUser is the user name that the API server gives to ServiceAccount.
	ManagerUser = "system:serviceaccount:" + Namespace + ":" + ServiceAccount
)

// Root finds the repository by walking up from the working directory to the go.mod of Module. The error names the folder that
// the walk started from.
func Root() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("finding the repository: %w", err)
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		module, err := moduleOf(filepath.Join(dir, "go.mod"))
		if err != nil {
			return "", fmt.Errorf("finding the repository: %w", err)
		}
		// The tools under hack/ have a go.mod of their own, so any go.mod will not do.
		if module == Module {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("no go.mod of %s in %s or above it: run this inside the repository", Module, start)
		}
	}
}

// moduleOf reads the module path from a go.mod; it is empty if there is no such file.
func moduleOf(path string) (string, error) {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if module, found := strings.CutPrefix(lines.Text(), "module "); found {
			return strings.TrimSpace(module), nil
		}
	}
	return "", nil
}

// Render builds config/development of the repository at root: all objects that a manager running outside the cluster needs
// from it, in the order of Apply.
func Render(root string) ([]*unstructured.Unstructured, error) {
	return RenderFolders(root, "config/development")
}

// RenderFolders builds each of the given kustomizations, named relative to root, and returns their objects together, in the
// order of Apply.
func RenderFolders(root string, folders ...string) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	for _, folder := range folders {
		resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), filepath.Join(root, filepath.FromSlash(folder)))
		if err != nil {
			return nil, fmt.Errorf("building the kustomization %s: %w", folder, err)
		}
		for _, resource := range resources.Resources() {
			encoded, err := resource.MarshalJSON()
			if err != nil {
				return nil, fmt.Errorf("encoding %s of %s: %w", resource.CurId(), folder, err)
			}
			object := &unstructured.Unstructured{}
			if err := object.UnmarshalJSON(encoded); err != nil {
				return nil, fmt.Errorf("decoding %s of %s: %w", resource.CurId(), folder, err)
			}
			objects = append(objects, object)
		}
	}
	slices.SortStableFunc(objects, func(a, b *unstructured.Unstructured) int { return rank(a) - rank(b) })
	return objects, nil
}

// IsWebhookConfiguration tells whether object is a ValidatingWebhookConfiguration or a MutatingWebhookConfiguration.
func IsWebhookConfiguration(object *unstructured.Unstructured) bool {
	kind := object.GroupVersionKind().GroupKind()
	return kind.Group == "admissionregistration.k8s.io" &&
		(kind.Kind == "ValidatingWebhookConfiguration" || kind.Kind == "MutatingWebhookConfiguration")
}

// IsCRD tells whether object is a CustomResourceDefinition.
func IsCRD(object *unstructured.Unstructured) bool {
	return object.GroupVersionKind().GroupKind() == schema.GroupKind{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition"}
}

func isNamespace(object *unstructured.Unstructured) bool {
	return object.GroupVersionKind().GroupKind() == schema.GroupKind{Kind: "Namespace"}
}

// rank orders objects by what has to be there before them: a namespace before what lives in it, a definition before its
// objects, and admission last, because it may refuse what has yet to be applied.
func rank(object *unstructured.Unstructured) int {
	switch {
	case isNamespace(object):
		return 0
	case IsCRD(object):
		return 1
	case IsWebhookConfiguration(object):
		return 3
	default:
		return 2
	}
}

// PointWebhooks rewrites, in place, every client configuration that names a Service, in webhook configurations and in the
// conversion of CustomResourceDefinitions, to the URL https://address/path with the given bundle of authorities (PEM).
// The address is "host:port"; the API server must reach it, and the certificate served there must name the host.
func PointWebhooks(objects []*unstructured.Unstructured, address string, caBundle []byte) error {
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" || port == "" {
		return fmt.Errorf("the webhook address %q is not of the form host:port", address)
	}
	for _, object := range objects {
		switch {
		case IsWebhookConfiguration(object):
			webhooks, _, err := unstructured.NestedSlice(object.Object, "webhooks")
			if err != nil {
				return fmt.Errorf("reading the webhooks of %s %s: %w", object.GetKind(), object.GetName(), err)
			}
			for i := range webhooks {
				webhook, ok := webhooks[i].(map[string]any)
				if !ok {
					return fmt.Errorf("webhook %d of %s %s is not an object", i, object.GetKind(), object.GetName())
				}
				if err := point(webhook, address, caBundle, "clientConfig"); err != nil {
					return fmt.Errorf("pointing webhook %d of %s %s at %s: %w", i, object.GetKind(), object.GetName(), address, err)
				}
			}
			if len(webhooks) > 0 {
				if err := unstructured.SetNestedSlice(object.Object, webhooks, "webhooks"); err != nil {
					return fmt.Errorf("writing the webhooks of %s %s: %w", object.GetKind(), object.GetName(), err)
				}
			}
		case IsCRD(object):
			if err := point(object.Object, address, caBundle, "spec", "conversion", "webhook", "clientConfig"); err != nil {
				return fmt.Errorf("pointing the conversion of %s at %s: %w", object.GetName(), address, err)
			}
		}
	}
	return nil
}

// point replaces the client configuration at fields, if it names a Service.
func point(object map[string]any, address string, caBundle []byte, fields ...string) error {
	service, found, err := unstructured.NestedMap(object, append(slices.Clone(fields), "service")...)
	if err != nil || !found {
		return err
	}
	path, _, err := unstructured.NestedString(service, "path")
	if err != nil {
		return err
	}
	target := url.URL{Scheme: "https", Host: address, Path: "/" + strings.TrimPrefix(path, "/")}
	return unstructured.SetNestedMap(object, map[string]any{
		"url":      target.String(),
		"caBundle": base64.StdEncoding.EncodeToString(caBundle),
	}, fields...)
}
