// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	chaosv1beta1 "blackadder.io/blackadder/api/blackadder/v1beta1"
	immortalcontainerv1alpha1 "blackadder.io/blackadder/api/immortalcontainer/v1alpha1"
)

// DefaultImage is the image of what the builders make. Nothing pulls it.
const DefaultImage = "registry.example.com/app:1"

func setKey(m *map[string]string, key, value string) {
	if *m == nil {
		*m = map[string]string{}
	}
	(*m)[key] = value
}

// ImmortalContainerBuilder builds an ImmortalContainer for a test.
type ImmortalContainerBuilder struct {
	object immortalcontainerv1alpha1.ImmortalContainer
}

// MakeImmortalContainer begins an ImmortalContainer with DefaultImage.
func MakeImmortalContainer(namespace, name string) *ImmortalContainerBuilder {
	b := &ImmortalContainerBuilder{}
	b.object.Namespace, b.object.Name = namespace, name
	b.object.Spec.Image = DefaultImage
	return b
}

// Image sets the image; the empty string leaves it to the operator's default.
func (b *ImmortalContainerBuilder) Image(image string) *ImmortalContainerBuilder {
	b.object.Spec.Image = image
	return b
}

// Command sets the entrypoint.
func (b *ImmortalContainerBuilder) Command(command ...string) *ImmortalContainerBuilder {
	b.object.Spec.Command = command
	return b
}

// Label sets a label of the ImmortalContainer itself.
func (b *ImmortalContainerBuilder) Label(key, value string) *ImmortalContainerBuilder {
	setKey(&b.object.Labels, key, value)
	return b
}

// Annotation sets an annotation of the ImmortalContainer itself.
func (b *ImmortalContainerBuilder) Annotation(key, value string) *ImmortalContainerBuilder {
	setKey(&b.object.Annotations, key, value)
	return b
}

// Finalizer adds a finalizer.
func (b *ImmortalContainerBuilder) Finalizer(finalizer string) *ImmortalContainerBuilder {
	b.object.Finalizers = append(b.object.Finalizers, finalizer)
	return b
}

// PodLabel adds a label for the pod.
func (b *ImmortalContainerBuilder) PodLabel(key, value string) *ImmortalContainerBuilder {
	setKey(&b.object.Spec.PodLabels, key, value)
	return b
}

// PodAnnotation adds an annotation for the pod.
func (b *ImmortalContainerBuilder) PodAnnotation(key, value string) *ImmortalContainerBuilder {
	setKey(&b.object.Spec.PodAnnotations, key, value)
	return b
}

// NodeSelector adds a label that the pod's node must have.
func (b *ImmortalContainerBuilder) NodeSelector(key, value string) *ImmortalContainerBuilder {
	setKey(&b.object.Spec.NodeSelector, key, value)
	return b
}

// GracePeriod sets the pod's termination grace period, in seconds.
func (b *ImmortalContainerBuilder) GracePeriod(seconds int64) *ImmortalContainerBuilder {
	b.object.Spec.TerminationGracePeriodSeconds = &seconds
	return b
}

// Obj returns what was built; the builder may go on.
func (b *ImmortalContainerBuilder) Obj() *immortalcontainerv1alpha1.ImmortalContainer {
	return b.object.DeepCopy()
}

// ChaosAgentBuilder builds a ChaosAgent for a test.
type ChaosAgentBuilder struct {
	object chaosv1beta1.ChaosAgent
}

// MakeChaosAgent begins a ChaosAgent without any mode.
func MakeChaosAgent(name string) *ChaosAgentBuilder {
	b := &ChaosAgentBuilder{}
	b.object.Name = name
	return b
}

// Modes switches modes on.
func (b *ChaosAgentBuilder) Modes(tantrum, cancer, ipsum bool) *ChaosAgentBuilder {
	b.object.Spec.TantrumMode, b.object.Spec.CancerMode, b.object.Spec.IpsumMode = tantrum, cancer, ipsum
	return b
}

// Eagerness sets the chance, in percent.
func (b *ChaosAgentBuilder) Eagerness(percent int32) *ChaosAgentBuilder {
	b.object.Spec.Eagerness = percent
	return b
}

// Pause sets the time between cycles, in seconds.
func (b *ChaosAgentBuilder) Pause(seconds int64) *ChaosAgentBuilder {
	b.object.Spec.PauseDuration = seconds
	return b
}

// Only narrows the targets to the given namespaces.
func (b *ChaosAgentBuilder) Only(namespaces ...string) *ChaosAgentBuilder {
	b.object.Spec.NamespaceSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
		{Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpIn, Values: namespaces},
	}}
	return b
}

// Exclude sets the excluded namespaces; none at all is the empty list.
func (b *ChaosAgentBuilder) Exclude(namespaces ...string) *ChaosAgentBuilder {
	b.object.Spec.ExcludedNamespaces = append([]string{}, namespaces...)
	return b
}

// With changes the spec in any other way.
func (b *ChaosAgentBuilder) With(change func(*chaosv1beta1.ChaosAgentSpec)) *ChaosAgentBuilder {
	change(&b.object.Spec)
	return b
}

// Obj returns what was built; the builder may go on.
func (b *ChaosAgentBuilder) Obj() *chaosv1beta1.ChaosAgent { return b.object.DeepCopy() }

// PodBuilder builds a Pod for a test.
type PodBuilder struct {
	object corev1.Pod
}

// MakePod begins a Pod with one container of the name that an immortal pod's has, and DefaultImage.
func MakePod(namespace, name string) *PodBuilder {
	b := &PodBuilder{}
	b.object.Namespace, b.object.Name = namespace, name
	b.object.Spec.Containers = []corev1.Container{{Name: immortalcontainerv1alpha1.ContainerName, Image: DefaultImage}}
	return b
}

// Image sets the image of the container.
func (b *PodBuilder) Image(image string) *PodBuilder {
	b.object.Spec.Containers[0].Image = image
	return b
}

// Label sets a label.
func (b *PodBuilder) Label(key, value string) *PodBuilder {
	setKey(&b.object.Labels, key, value)
	return b
}

// Annotation sets an annotation.
func (b *PodBuilder) Annotation(key, value string) *PodBuilder {
	setKey(&b.object.Annotations, key, value)
	return b
}

// Finalizer adds a finalizer.
func (b *PodBuilder) Finalizer(finalizer string) *PodBuilder {
	b.object.Finalizers = append(b.object.Finalizers, finalizer)
	return b
}

// Node binds the pod to a node.
func (b *PodBuilder) Node(name string) *PodBuilder {
	b.object.Spec.NodeName = name
	return b
}

// GracePeriod sets the termination grace period, in seconds.
func (b *PodBuilder) GracePeriod(seconds int64) *PodBuilder {
	b.object.Spec.TerminationGracePeriodSeconds = &seconds
	return b
}

// Phase sets the status' phase. An API server ignores it on create: write the status afterwards, as a kubelet would.
func (b *PodBuilder) Phase(phase corev1.PodPhase) *PodBuilder {
	b.object.Status.Phase = phase
	return b
}

// OwnedBy adds an owner reference to the ImmortalContainer, as its controller, that blocks its deletion.
func (b *PodBuilder) OwnedBy(owner *immortalcontainerv1alpha1.ImmortalContainer) *PodBuilder {
	b.object.OwnerReferences = append(b.object.OwnerReferences, metav1.OwnerReference{
		APIVersion:         immortalcontainerv1alpha1.GroupVersion.String(),
		Kind:               immortalcontainerv1alpha1.Kind,
		Name:               owner.Name,
		UID:                owner.UID,
		Controller:         ptr.To(true),
		BlockOwnerDeletion: ptr.To(true),
	})
	return b
}

// Immortal makes the pod look like the owner's immortal pod: owner reference and protecting labels.
func (b *PodBuilder) Immortal(owner *immortalcontainerv1alpha1.ImmortalContainer) *PodBuilder {
	return b.OwnedBy(owner).
		Label(immortalcontainerv1alpha1.ControllerLabel, owner.Name).
		Label(immortalcontainerv1alpha1.ProtectedLabel, immortalcontainerv1alpha1.ProtectedValue)
}

// Obj returns what was built; the builder may go on.
func (b *PodBuilder) Obj() *corev1.Pod { return b.object.DeepCopy() }

// NamespaceBuilder builds a Namespace for a test.
type NamespaceBuilder struct {
	object corev1.Namespace
}

// MakeNamespace begins a Namespace. A name that ends in "-" is a prefix, to which the API server adds a random end.
func MakeNamespace(name string) *NamespaceBuilder {
	b := &NamespaceBuilder{}
	if len(name) > 0 && name[len(name)-1] == '-' {
		b.object.GenerateName = name
	} else {
		b.object.Name = name
	}
	return b
}

// Label sets a label.
func (b *NamespaceBuilder) Label(key, value string) *NamespaceBuilder {
	setKey(&b.object.Labels, key, value)
	return b
}

// Guarded refuses the Namespace's deletion while immortal containers live in it.
func (b *NamespaceBuilder) Guarded() *NamespaceBuilder {
	return b.Label(immortalcontainerv1alpha1.GuardedLabel, "true")
}

// Obj returns what was built; the builder may go on.
func (b *NamespaceBuilder) Obj() *corev1.Namespace { return b.object.DeepCopy() }

// NodeBuilder builds a Node for a test.
type NodeBuilder struct {
	object corev1.Node
}

// MakeNode begins a Node.
func MakeNode(name string) *NodeBuilder {
	b := &NodeBuilder{}
	b.object.Name = name
	return b
}

// Cordoned marks the node unschedulable, as kubectl drain does first.
func (b *NodeBuilder) Cordoned() *NodeBuilder {
	b.object.Spec.Unschedulable = true
	return b
}

// Taint adds a taint.
func (b *NodeBuilder) Taint(key string, effect corev1.TaintEffect) *NodeBuilder {
	b.object.Spec.Taints = append(b.object.Spec.Taints, corev1.Taint{Key: key, Effect: effect})
	return b
}

// Obj returns what was built; the builder may go on.
func (b *NodeBuilder) Obj() *corev1.Node { return b.object.DeepCopy() }
