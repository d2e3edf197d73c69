// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

// Package survey takes stock of the cluster for internal/chaos: the facts that admission previews with and that the
// controller plans from, gathered in one way.
//
// Namespaces, Deployments, HorizontalPodAutoscalers and ConfigMaps are watched, stripped of all that nobody asks for, from the
// first moment that a ChaosAgent needs them. Pods are too many and change too often for that: their metadata is listed, page by
// page, when it is needed.
package survey

import (
	"context"
	"fmt"
	"maps"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"blackadder.io/blackadder/api/blackadder/v1beta1"
	"blackadder.io/blackadder/internal/chaos"
	"blackadder.io/blackadder/internal/namespaces"
)

const (
	// pageSize is how many pods are listed at once.
	pageSize = 500
	// fewNamespaces are listed one by one; more of them by listing the whole cluster.
	fewNamespaces = 8
	// listAttempts is how often a list is begun anew when the API server has forgotten where it was.
	listAttempts = 3
)

// Survey takes stock. Make it by New.
type Survey struct {
	cache      cache.Cache
	live       client.Reader
	protection namespaces.Protection
}

// New makes a Survey that watches through the cache, which has to be made with CacheByObject, and lists through live.
func New(watches cache.Cache, live client.Reader, protection namespaces.Protection) *Survey {
	return &Survey{cache: watches, live: live, protection: protection}
}

// CacheByObject says what of the watched kinds is kept.
func CacheByObject() map[client.Object]cache.ByObject {
	return map[client.Object]cache.ByObject{
		NamespaceMetadata():                      {Transform: stripped(func(client.Object) {})},
		&appsv1.Deployment{}:                     {Transform: stripped(stripDeployment)},
		&corev1.ConfigMap{}:                      {Transform: stripped(stripConfigMap)},
		&autoscalingv2.HorizontalPodAutoscaler{}: {Transform: stripped(stripAutoscaler)},
	}
}

// NamespaceMetadata is what Namespaces are watched as.
func NamespaceMetadata() *metav1.PartialObjectMetadata {
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	return object
}

func stripped(strip func(client.Object)) func(any) (any, error) {
	return func(in any) (any, error) {
		if object, is := in.(client.Object); is {
			stripMetadata(object)
			strip(object)
		}
		return in, nil
	}
}

// stripMetadata leaves of the annotations, which hold whole manifests, those that the planner asks for.
func stripMetadata(object client.Object) {
	object.SetManagedFields(nil)
	annotations := object.GetAnnotations()
	maps.DeleteFunc(annotations, func(key, _ string) bool {
		return key != v1beta1.OptOutKey && key != corev1.MirrorPodAnnotationKey
	})
	if len(annotations) == 0 {
		annotations = nil
	}
	object.SetAnnotations(annotations)
}

func stripDeployment(object client.Object) {
	deployment, is := object.(*appsv1.Deployment)
	if !is {
		return
	}
	deployment.Spec = appsv1.DeploymentSpec{
		Replicas: deployment.Spec.Replicas,
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: deployment.Spec.Template.Labels}},
	}
	for i := range deployment.Status.Conditions {
		deployment.Status.Conditions[i].Message = ""
	}
}

func stripConfigMap(object client.Object) {
	configMap, is := object.(*corev1.ConfigMap)
	if !is {
		return
	}
	configMap.BinaryData = nil
	if len(configMap.Data) > 0 {
		// What it is does not matter, only that there is something.
		configMap.Data = map[string]string{"": ""}
	}
}

func stripAutoscaler(object client.Object) {
	if autoscaler, is := object.(*autoscalingv2.HorizontalPodAutoscaler); is {
		autoscaler.Spec = autoscalingv2.HorizontalPodAutoscalerSpec{ScaleTargetRef: autoscaler.Spec.ScaleTargetRef}
		autoscaler.Status = autoscalingv2.HorizontalPodAutoscalerStatus{}
	}
}

// watch begins to watch a kind if nobody does yet, and waits until it is known.
func (s *Survey) watch(ctx context.Context, kind string, object client.Object) error {
	if _, err := s.cache.GetInformer(ctx, object); err != nil {
		return fmt.Errorf("watching %s: %w", kind, err)
	}
	return nil
}

// Target is what a spec means to reach. The error is that of a selector that cannot be parsed.
func Target(spec *v1beta1.ChaosAgentSpec) (namespaces.Target, error) {
	target := namespaces.Target{Excluded: spec.ExcludedNamespaces, OptOut: v1beta1.OptOutKey, OptOutValue: v1beta1.OptOutValue}
	if spec.NamespaceSelector != nil {
		selector, err := metav1.LabelSelectorAsSelector(spec.NamespaceSelector)
		if err != nil {
			return target, fmt.Errorf("spec.namespaceSelector: %w", err)
		}
		target.Selector = selector
	}
	return target, nil
}

// Namespaces are all that exist.
func (s *Survey) Namespaces(ctx context.Context) ([]namespaces.Live, error) {
	if err := s.watch(ctx, "Namespaces", NamespaceMetadata()); err != nil {
		return nil, err
	}
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NamespaceList"))
	if err := s.cache.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing namespaces: %w", err)
	}
	live := make([]namespaces.Live, 0, len(list.Items))
	for i := range list.Items {
		live = append(live, liveNamespace(&list.Items[i]))
	}
	return live, nil
}

func liveNamespace(namespace *metav1.PartialObjectMetadata) namespaces.Live {
	return namespaces.Live{Name: namespace.Name, Labels: namespace.Labels, Terminating: namespace.DeletionTimestamp != nil}
}

// Agents are all ChaosAgents.
func (s *Survey) Agents(ctx context.Context) ([]v1beta1.ChaosAgent, error) {
	if err := s.watch(ctx, "ChaosAgents", &v1beta1.ChaosAgent{}); err != nil {
		return nil, err
	}
	var list v1beta1.ChaosAgentList
	if err := s.cache.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing ChaosAgents: %w", err)
	}
	return list.Items, nil
}

// Protection is what no survey's scope reaches.
func (s *Survey) Protection() namespaces.Protection { return s.protection }

// Scope of a spec over the namespaces that exist.
func (s *Survey) Scope(ctx context.Context, spec *v1beta1.ChaosAgentSpec) (namespaces.Scope, error) {
	target, err := Target(spec)
	if err != nil {
		return nil, err
	}
	live, err := s.Namespaces(ctx)
	if err != nil {
		return nil, err
	}
	return s.protection.Scope(target, live), nil
}

// Reach is the scope of a spec as it is whenever it is asked, for what is checked again at the moment of acting.
type Reach struct {
	//nolint:containedctx // It lives as long as the cycle that asks.
	ctx    context.Context
	survey *Survey
	target namespaces.Target
}

// Reach of a spec, after a Scope was taken of it.
func (s *Survey) Reach(ctx context.Context, spec *v1beta1.ChaosAgentSpec) (Reach, error) {
	target, err := Target(spec)
	return Reach{ctx: ctx, survey: s, target: target}, err
}

// Excludes implements chaos.Scope. What cannot be told is out of reach.
func (r Reach) Excludes(name string) string {
	namespace := NamespaceMetadata()
	if err := r.survey.cache.Get(r.ctx, client.ObjectKey{Name: name}, namespace, client.UnsafeDisableDeepCopy); err != nil {
		return string(namespaces.Unknown)
	}
	return r.survey.protection.Scope(r.target, []namespaces.Live{liveNamespace(namespace)}).Excludes(name)
}

// Findings are what a survey found.
type Findings struct {
	Scope    namespaces.Scope
	Targeted []string
	Objects  []chaos.Object
}

// Take finds what a spec could hit.
func (s *Survey) Take(ctx context.Context, spec *v1beta1.ChaosAgentSpec) (*Findings, error) {
	scope, err := s.Scope(ctx, spec)
	if err != nil {
		return nil, err
	}
	found := &Findings{Scope: scope, Targeted: scope.Targeted()}
	if spec.TantrumMode {
		if found.Objects, err = s.pods(ctx, spec, found); err != nil {
			return nil, err
		}
	}
	if spec.CancerMode || spec.HaltWhen != nil {
		deployments, err := s.Deployments(ctx)
		if err != nil {
			return nil, err
		}
		found.Objects = append(found.Objects, deployments...)
	}
	if spec.IpsumMode {
		configMaps, err := s.configMaps(ctx)
		if err != nil {
			return nil, err
		}
		found.Objects = append(found.Objects, configMaps...)
	}
	return found, nil
}

func (s *Survey) pods(ctx context.Context, spec *v1beta1.ChaosAgentSpec, found *Findings) ([]chaos.Object, error) {
	options := []client.ListOption{
		// What has ended cannot be killed.
		client.MatchingFieldsSelector{Selector: fields.AndSelectors(
			fields.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)), fields.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed)))},
	}
	if spec.PodSelector != nil {
		selector, err := metav1.LabelSelectorAsSelector(spec.PodSelector)
		if err != nil {
			return nil, fmt.Errorf("spec.podSelector: %w", err)
		}
		options = append(options, client.MatchingLabelsSelector{Selector: selector})
	}
	if len(found.Targeted) > fewNamespaces {
		return s.listPods(ctx, options...)
	}
	var objects []chaos.Object
	for _, namespace := range found.Targeted {
		some, err := s.listPods(ctx, append(options, client.InNamespace(namespace))...)
		if err != nil {
			return nil, err
		}
		objects = append(objects, some...)
	}
	return objects, nil
}

func (s *Survey) listPods(ctx context.Context, options ...client.ListOption) ([]chaos.Object, error) {
	var err error
	for range listAttempts {
		var objects []chaos.Object
		if objects, err = s.listPodPages(ctx, options...); err == nil {
			return objects, nil
		}
		if !apierrors.IsResourceExpired(err) {
			break
		}
	}
	return nil, fmt.Errorf("listing pods: %w", err)
}

func (s *Survey) listPodPages(ctx context.Context, options ...client.ListOption) ([]chaos.Object, error) {
	var objects []chaos.Object
	for next := ""; ; {
		page := &metav1.PartialObjectMetadataList{}
		page.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PodList"))
		if err := s.live.List(ctx, page, append(options, client.Limit(pageSize), client.Continue(next))...); err != nil {
			return nil, err
		}
		for i := range page.Items {
			objects = append(objects, PodObject(&page.Items[i]))
		}
		if next = page.Continue; next == "" {
			return objects, nil
		}
	}
}

// PodObject is a pod as the planner sees it. The metadata is stripped.
func PodObject(pod *metav1.PartialObjectMetadata) chaos.Object {
	stripMetadata(pod)
	return chaos.Object{Mode: chaos.Tantrum, Meta: pod.ObjectMeta}
}

// Deployments are all that exist, for their availability.
func (s *Survey) Deployments(ctx context.Context) ([]chaos.Object, error) {
	if err := s.watch(ctx, "Deployments", &appsv1.Deployment{}); err != nil {
		return nil, err
	}
	autoscaled, err := s.autoscaled(ctx)
	if err != nil {
		return nil, err
	}
	var list appsv1.DeploymentList
	if err := s.cache.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing Deployments: %w", err)
	}
	objects := make([]chaos.Object, 0, len(list.Items))
	for i := range list.Items {
		objects = append(objects, deploymentObject(&list.Items[i], autoscaled[client.ObjectKeyFromObject(&list.Items[i])]))
	}
	return objects, nil
}

// DeploymentObject is a Deployment as the planner sees it.
func (s *Survey) DeploymentObject(ctx context.Context, deployment *appsv1.Deployment) (chaos.Object, error) {
	autoscaled, err := s.autoscaled(ctx, client.InNamespace(deployment.Namespace))
	if err != nil {
		return chaos.Object{}, err
	}
	return deploymentObject(deployment, autoscaled[client.ObjectKeyFromObject(deployment)]), nil
}

func deploymentObject(deployment *appsv1.Deployment, autoscaled bool) chaos.Object {
	facts := &chaos.DeploymentFacts{Replicas: 1, TemplateLabels: deployment.Spec.Template.Labels, Autoscaled: autoscaled}
	if deployment.Spec.Replicas != nil {
		facts.Replicas = *deployment.Spec.Replicas
	}
	for _, condition := range deployment.Status.Conditions {
		if condition.Type == appsv1.DeploymentAvailable {
			facts.Available = condition.Status == corev1.ConditionTrue
		}
	}
	return chaos.Object{Mode: chaos.Cancer, Meta: deployment.ObjectMeta, Deployment: facts}
}

// autoscaled are the Deployments that a HorizontalPodAutoscaler scales.
func (s *Survey) autoscaled(ctx context.Context, options ...client.ListOption) (map[client.ObjectKey]bool, error) {
	if err := s.watch(ctx, "HorizontalPodAutoscalers", &autoscalingv2.HorizontalPodAutoscaler{}); err != nil {
		return nil, err
	}
	var list autoscalingv2.HorizontalPodAutoscalerList
	if err := s.cache.List(ctx, &list, append(options, client.UnsafeDisableDeepCopy)...); err != nil {
		return nil, fmt.Errorf("listing HorizontalPodAutoscalers: %w", err)
	}
	scaled := make(map[client.ObjectKey]bool, len(list.Items))
	for i := range list.Items {
		if target := list.Items[i].Spec.ScaleTargetRef; target.Kind == "Deployment" {
			scaled[client.ObjectKey{Namespace: list.Items[i].Namespace, Name: target.Name}] = true
		}
	}
	return scaled, nil
}

func (s *Survey) configMaps(ctx context.Context) ([]chaos.Object, error) {
	if err := s.watch(ctx, "ConfigMaps", &corev1.ConfigMap{}); err != nil {
		return nil, err
	}
	var list corev1.ConfigMapList
	if err := s.cache.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("listing ConfigMaps: %w", err)
	}
	objects := make([]chaos.Object, 0, len(list.Items))
	for i := range list.Items {
		objects = append(objects, ConfigMapObject(&list.Items[i]))
	}
	return objects, nil
}

// ConfigMapObject is a ConfigMap as the planner sees it.
func ConfigMapObject(configMap *corev1.ConfigMap) chaos.Object {
	return chaos.Object{Mode: chaos.Ipsum, Meta: configMap.ObjectMeta, ConfigMap: &chaos.ConfigMapFacts{
		Immutable: configMap.Immutable != nil && *configMap.Immutable, HasData: len(configMap.Data) > 0,
	}}
}
