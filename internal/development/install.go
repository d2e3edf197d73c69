// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package development

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// FieldOwner is the field manager of Apply.
const FieldOwner = "blackadder-install"

const (
	pollInterval = 100 * time.Millisecond
	// establishTimeout is generous: an API server on a loaded machine takes seconds for what usually takes a tenth of one.
	establishTimeout = 60 * time.Second
)

// Apply puts the objects into the cluster by server-side apply as FieldOwner, taking over fields that somebody else owns:
// Namespaces and CustomResourceDefinitions first, the rest once the definitions are established, webhook configurations last.
// It may be repeated at any time. The first error ends it and names the object.
func Apply(ctx context.Context, config *rest.Config, objects []*unstructured.Unstructured) error {
	cluster, err := newClient(config)
	if err != nil {
		return err
	}
	ordered := slices.Clone(objects)
	slices.SortStableFunc(ordered, func(a, b *unstructured.Unstructured) int { return rank(a) - rank(b) })

	established := false
	for _, object := range ordered {
		if !established && rank(object) > 1 {
			if err := waitEstablished(ctx, cluster, ordered); err != nil {
				return err
			}
			established = true
		}
		// The server's answer is read into a copy, so that the caller's objects stay as they were rendered.
		configuration := client.ApplyConfigurationFromUnstructured(object.DeepCopy())
		if err := cluster.Apply(ctx, configuration, client.FieldOwner(FieldOwner), client.ForceOwnership); err != nil {
			return fmt.Errorf("applying %s: %w", describe(object), err)
		}
	}
	if !established {
		return waitEstablished(ctx, cluster, ordered)
	}
	return nil
}

func waitEstablished(ctx context.Context, cluster client.Client, objects []*unstructured.Unstructured) error {
	for _, object := range objects {
		if !IsCRD(object) {
			continue
		}
		last := "it has no conditions yet"
		err := wait.PollUntilContextTimeout(ctx, pollInterval, establishTimeout, true, func(ctx context.Context) (bool, error) {
			definition := &apiextensionsv1.CustomResourceDefinition{}
			if err := cluster.Get(ctx, client.ObjectKeyFromObject(object), definition); err != nil {
				return false, err
			}
			for _, condition := range definition.Status.Conditions {
				switch {
				case condition.Type == apiextensionsv1.Established && condition.Status == apiextensionsv1.ConditionTrue:
					return true, nil
				case condition.Status == apiextensionsv1.ConditionFalse:
					last = fmt.Sprintf("%s is false: %s", condition.Type, condition.Message)
				}
			}
			return false, nil
		})
		if err != nil {
			return fmt.Errorf("waiting for %s to be established (%s): %w", describe(object), last, err)
		}
	}
	return nil
}

// Delete removes the objects from the cluster in the opposite order of Apply: webhook configurations first, so that nothing
// refuses the rest; then CustomResourceDefinitions, with all their objects, waiting up to limit until they are gone; then
// everything else, Namespaces last and without waiting for them. What is not there is passed over. If a definition does not
// go in time, the error names the objects that hold it and their finalizers, and nothing after it is deleted: the manager
// that has to remove those finalizers still needs its rights.
func Delete(ctx context.Context, config *rest.Config, objects []*unstructured.Unstructured, limit time.Duration) error {
	cluster, err := newClient(config)
	if err != nil {
		return err
	}
	stages := []func(*unstructured.Unstructured) bool{
		IsWebhookConfiguration,
		IsCRD,
		func(object *unstructured.Unstructured) bool { return rank(object) == 2 },
		isNamespace,
	}
	for stage, belongs := range stages {
		var members []*unstructured.Unstructured
		for _, object := range objects {
			if belongs(object) {
				members = append(members, object)
			}
		}
		for _, object := range members {
			err := cluster.Delete(ctx, object.DeepCopy())
			if err != nil && !apierrors.IsNotFound(err) && !meta.IsNoMatchError(err) {
				return fmt.Errorf("deleting %s: %w", describe(object), err)
			}
		}
		if stage == 1 {
			if err := waitGone(ctx, cluster, members, limit); err != nil {
				return err
			}
		}
	}
	return nil
}

func waitGone(ctx context.Context, cluster client.Client, definitions []*unstructured.Unstructured, limit time.Duration) error {
	for _, definition := range definitions {
		var current *apiextensionsv1.CustomResourceDefinition
		err := wait.PollUntilContextTimeout(ctx, pollInterval, limit, true, func(ctx context.Context) (bool, error) {
			found := &apiextensionsv1.CustomResourceDefinition{}
			err := cluster.Get(ctx, client.ObjectKeyFromObject(definition), found)
			// The last read may be cut off by the limit; what the one before found is what there is to report.
			if err == nil {
				current = found
			}
			return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
		})
		switch {
		case err == nil:
		case wait.Interrupted(err) && ctx.Err() == nil:
			return fmt.Errorf("%s was not gone after %s; %s", describe(definition), limit, holders(ctx, cluster, current))
		default:
			return fmt.Errorf("waiting until %s is gone: %w", describe(definition), err)
		}
	}
	return nil
}

// holders says what keeps a definition that is being deleted: its objects with finalizers.
func holders(ctx context.Context, cluster client.Client, definition *apiextensionsv1.CustomResourceDefinition) string {
	if definition == nil {
		return "it could not be read in that time"
	}
	versions := definition.Status.StoredVersions
	if len(versions) == 0 {
		return fmt.Sprintf("its own finalizers are %v", definition.Finalizers)
	}
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(schema.GroupVersionKind{
		Group: definition.Spec.Group, Version: versions[len(versions)-1], Kind: definition.Spec.Names.ListKind,
	})
	if err := cluster.List(ctx, list); err != nil {
		return fmt.Sprintf("its own finalizers are %v, and its objects cannot be listed: %v", definition.Finalizers, err)
	}
	var held []string
	for _, object := range list.Items {
		if len(object.GetFinalizers()) > 0 {
			held = append(held, fmt.Sprintf("%s (finalizers %s)", client.ObjectKeyFromObject(&object), strings.Join(object.GetFinalizers(), ", ")))
		}
	}
	if len(held) == 0 {
		return fmt.Sprintf("none of its %d remaining objects has a finalizer; its own are %v", len(list.Items), definition.Finalizers)
	}
	return fmt.Sprintf("these hold it: %s. Start the manager so that it finishes them, or remove the finalizers by hand", strings.Join(held, "; "))
}

func newClient(config *rest.Config) (client.Client, error) {
	if config == nil {
		return nil, errors.New("no connection to a cluster was given")
	}
	// What is applied is unstructured; only definitions are also read back.
	scheme := runtime.NewScheme()
	if err := apiextensionsv1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("building the scheme: %w", err)
	}
	cluster, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("connecting to %s: %w", config.Host, err)
	}
	return cluster, nil
}

func describe(object *unstructured.Unstructured) string {
	if object.GetNamespace() == "" {
		return object.GetKind() + " " + object.GetName()
	}
	return object.GetKind() + " " + object.GetNamespace() + "/" + object.GetName()
}
