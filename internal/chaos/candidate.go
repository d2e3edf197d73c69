// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

// Package chaos decides what a ChaosAgent does: who is a candidate, who becomes a victim, when a cycle runs, what is written
// down before a change is made, and how it is put back. It knows no client and no clock; admission previews with the same
// functions that the controller acts on.
package chaos

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"blackadder.io/blackadder/api/blackadder/v1beta1"
)

// Mode is a kind of chaos.
type Mode string

// The modes of a ChaosAgent.
const (
	// Tantrum kills pods.
	Tantrum Mode = "tantrum"
	// Cancer scales Deployments up.
	Cancer Mode = "cancer"
	// Ipsum overwrites ConfigMaps.
	Ipsum Mode = "ipsum"
)

// Modes are all modes, in the order in which they act.
func Modes() []Mode { return []Mode{Tantrum, Cancer, Ipsum} }

// Kind is the kind of objects that a mode hits.
func (m Mode) Kind() string {
	switch m {
	case Tantrum:
		return "Pod"
	case Cancer:
		return "Deployment"
	case Ipsum:
		return "ConfigMap"
	}
	return ""
}

// On tells whether a spec switches a mode on.
func On(spec *v1beta1.ChaosAgentSpec, mode Mode) bool {
	switch mode {
	case Tantrum:
		return spec.TantrumMode
	case Cancer:
		return spec.CancerMode
	case Ipsum:
		return spec.IpsumMode
	}
	return false
}

// AnyMode tells whether a spec switches any mode on.
func AnyMode(spec *v1beta1.ChaosAgentSpec) bool {
	return slices.ContainsFunc(Modes(), func(mode Mode) bool { return On(spec, mode) })
}

// Object is what is known of a Pod, Deployment or ConfigMap.
type Object struct {
	// Mode that the object is a target of; it implies the kind.
	Mode Mode
	// Meta is its metadata.
	Meta metav1.ObjectMeta
	// Deployment is set for Deployments.
	Deployment *DeploymentFacts
	// ConfigMap is set for ConfigMaps that are known in whole.
	ConfigMap *ConfigMapFacts
}

// DeploymentFacts are what the planner needs of a Deployment.
type DeploymentFacts struct {
	// Replicas that are wanted.
	Replicas int32
	// TemplateLabels are the labels of its pods.
	TemplateLabels map[string]string
	// Autoscaled tells that a HorizontalPodAutoscaler scales it.
	Autoscaled bool
	// Available is its condition of that name.
	Available bool
}

// ConfigMapFacts are what the planner needs of a ConfigMap.
type ConfigMapFacts struct {
	// Immutable ConfigMaps cannot be changed.
	Immutable bool
	// HasData tells that there is something to overwrite.
	HasData bool
}

// Key names an object among those of all modes.
type Key struct {
	Mode            Mode
	Namespace, Name string
}

// Key of the object.
func (o *Object) Key() Key { return Key{Mode: o.Mode, Namespace: o.Meta.Namespace, Name: o.Meta.Name} }

// Reasons why an object is no candidate. Those of its namespace come from the Scope.
const (
	ExcludedTerminating    = "Terminating"
	ExcludedOptedOut       = "OptedOut"
	ExcludedImmortal       = "ImmortalPod"
	ExcludedOwnObject      = "OwnObject"
	ExcludedMirrorPod      = "MirrorPod"
	ExcludedNotSelected    = "NotSelected"
	ExcludedTooYoung       = "TooYoung"
	ExcludedSinceStart     = "CreatedSinceStart"
	ExcludedScaledToZero   = "ScaledToZero"
	ExcludedAtMaxReplicas  = "AtMaxReplicas"
	ExcludedAutoscaled     = "Autoscaled"
	ExcludedRootCA         = "RootCA"
	ExcludedImmutable      = "Immutable"
	ExcludedNoData         = "NoData"
	ExcludedByAnotherAgent = "ChangedByAnotherAgent"
)

// Scope says which namespaces are reached.
type Scope interface {
	// Excludes is the reason why a namespace is out of reach; "" if it is not.
	Excludes(namespace string) string
}

// Filter excludes what must not become a victim.
type Filter struct {
	spec        *v1beta1.ChaosAgentSpec
	scope       Scope
	podSelector labels.Selector
	start       time.Time
	held        map[Key]string
	preview     bool
}

// NewFilter makes the filter of a cycle that starts at the given time. held are the objects that a change of another agent is
// in force on, with that agent's name. The error is that of a podSelector that cannot be parsed.
func NewFilter(spec *v1beta1.ChaosAgentSpec, scope Scope, start time.Time, held map[Key]string) (*Filter, error) {
	filter := &Filter{spec: spec, scope: scope, start: start, held: held}
	if spec.PodSelector != nil {
		var err error
		if filter.podSelector, err = metav1.LabelSelectorAsSelector(spec.PodSelector); err != nil {
			return nil, err
		}
	}
	return filter, nil
}

// rule is the reason why an object is no candidate; "" if the rule has nothing against it.
type rule func(*Filter, *Object) string

// rules are asked in this order; the first that answers wins.
func rules() []rule {
	return []rule{
		outOfScope, terminating, immortal, ownObject, mirrorPod, optedOut, notSelected, tooYoung, sinceStart,
		scale, configMap, heldByAnother,
	}
}

// Exclude is the reason why an object is no candidate; "" if it is one.
func (f *Filter) Exclude(object *Object) string {
	for _, excludes := range rules() {
		if reason := excludes(f, object); reason != "" {
			return reason
		}
	}
	return ""
}

// InReach tells whether an object is in a targeted namespace and selected, whatever else speaks against it: those are the
// Deployments whose availability counts.
func (f *Filter) InReach(object *Object) bool {
	return outOfScope(f, object) == "" && notSelected(f, object) == ""
}

func outOfScope(f *Filter, object *Object) string { return f.scope.Excludes(object.Meta.Namespace) }

func terminating(_ *Filter, object *Object) string {
	if object.Meta.DeletionTimestamp != nil {
		return ExcludedTerminating
	}
	return ""
}

func optedOut(_ *Filter, object *Object) string {
	if object.Meta.Annotations[v1beta1.OptOutKey] == v1beta1.OptOutValue {
		return ExcludedOptedOut
	}
	return ""
}

const (
	immortalGroup = "immortalcontainer.flugel.it"
	immortalLabel = immortalGroup + "/protected"
	managedBy     = "app.kubernetes.io/managed-by"
	operator      = "blackadder"
	rootCA        = "kube-root-ca.crt"
)

// ownGroups are the API groups whose objects this operator reconciles.
func ownGroups() []string {
	return []string{immortalGroup, v1beta1.GroupVersion.Group, "operators.brennerm.github.io", "k8s.osp.tech"}
}

// immortal pods are protected from everybody but this operator, so that nothing else would stop it from killing them.
func immortal(_ *Filter, object *Object) string {
	if object.Mode != Tantrum {
		return ""
	}
	if object.Meta.Labels[immortalLabel] == "true" || ownedBy(object, immortalGroup) {
		return ExcludedImmortal
	}
	return ""
}

func ownObject(_ *Filter, object *Object) string {
	if object.Meta.Labels[managedBy] == operator || ownedBy(object, ownGroups()...) {
		return ExcludedOwnObject
	}
	return ""
}

func ownedBy(object *Object, groups ...string) bool {
	return slices.ContainsFunc(object.Meta.OwnerReferences, func(owner metav1.OwnerReference) bool {
		return slices.Contains(groups, groupOf(owner.APIVersion))
	})
}

func mirrorPod(_ *Filter, object *Object) string {
	_, mirrors := object.Meta.Annotations[corev1.MirrorPodAnnotationKey]
	ofNode := slices.ContainsFunc(object.Meta.OwnerReferences, func(owner metav1.OwnerReference) bool {
		return owner.APIVersion == "v1" && owner.Kind == "Node"
	})
	if object.Mode == Tantrum && (mirrors || ofNode) {
		return ExcludedMirrorPod
	}
	return ""
}

func notSelected(f *Filter, object *Object) string {
	if f.podSelector == nil {
		return ""
	}
	var set labels.Set
	switch {
	case object.Mode == Tantrum:
		set = object.Meta.Labels
	case object.Deployment != nil:
		set = object.Deployment.TemplateLabels
	default:
		return ""
	}
	if !f.podSelector.Matches(set) {
		return ExcludedNotSelected
	}
	return ""
}

func tooYoung(f *Filter, object *Object) string {
	if f.spec.MinimumAge != nil && object.Meta.CreationTimestamp.Add(f.spec.MinimumAge.Duration).After(f.start) {
		return ExcludedTooYoung
	}
	return ""
}

// sinceStart keeps a cycle that goes on after an interruption from what has come in the place of its earlier victims. The API
// server cuts times to seconds, so whatever came in the start's own second is spared, too.
func sinceStart(f *Filter, object *Object) string {
	if !f.preview && !object.Meta.CreationTimestamp.IsZero() && !object.Meta.CreationTimestamp.Time.Before(f.start.Truncate(time.Second)) {
		return ExcludedSinceStart
	}
	return ""
}

func scale(f *Filter, object *Object) string {
	if object.Deployment == nil {
		return ""
	}
	switch {
	case object.Deployment.Autoscaled:
		return ExcludedAutoscaled
	case object.Deployment.Replicas == 0:
		return ExcludedScaledToZero
	case object.Deployment.Replicas >= mostReplicas(f.spec):
		return ExcludedAtMaxReplicas
	}
	return ""
}

func configMap(_ *Filter, object *Object) string {
	switch {
	case object.Mode != Ipsum:
		return ""
	case object.Meta.Name == rootCA:
		return ExcludedRootCA
	case object.ConfigMap == nil:
		return ""
	case object.ConfigMap.Immutable:
		return ExcludedImmutable
	case !object.ConfigMap.HasData:
		return ExcludedNoData
	}
	return ""
}

func heldByAnother(f *Filter, object *Object) string {
	if _, held := f.held[object.Key()]; held {
		return ExcludedByAnotherAgent
	}
	return ""
}

func mostReplicas(spec *v1beta1.ChaosAgentSpec) int32 {
	if spec.MaxReplicas != nil {
		return min(*spec.MaxReplicas, v1beta1.MaxReplicas)
	}
	return v1beta1.MaxReplicas
}

// Doubled is what a Deployment with the given replicas is scaled to.
func Doubled(spec *v1beta1.ChaosAgentSpec, replicas int32) int32 {
	most := mostReplicas(spec)
	if replicas >= most {
		return replicas
	}
	return min(2*replicas, most)
}
