// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package embedded_test

import (
	"context"
	"strconv"
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"blackadder.io/blackadder/api/immortalcontainer/v1alpha1"
	"blackadder.io/blackadder/internal/development"
	"blackadder.io/blackadder/internal/testenv"
)

// room is a spec's own namespace, and an ImmortalContainer for it.
type room struct {
	namespace string
	container *v1alpha1.ImmortalContainer
}

// newRoom makes the namespace, in which nothing lives any more when the spec is over. The ImmortalContainer is not
// created yet.
func newRoom(ctx context.Context, labels map[string]string) *room {
	GinkgoHelper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "spec-", Labels: labels}}
	Expect(admin.Create(ctx, namespace)).To(Succeed())
	r := &room{namespace: namespace.Name}
	r.container = r.make("db")
	// Pods need it, and the controller manager makes it a moment later.
	Eventually(admin.Get).WithArguments(ctx, client.ObjectKey{Namespace: r.namespace, Name: "default"}, &corev1.ServiceAccount{}).Should(Succeed())
	DeferCleanup(func(ctx SpecContext) {
		Expect(client.IgnoreNotFound(admin.DeleteAllOf(ctx, &v1alpha1.ImmortalContainer{}, client.InNamespace(r.namespace)))).To(Succeed())
		Eventually(func(g Gomega) {
			containers, pods := &v1alpha1.ImmortalContainerList{}, &corev1.PodList{}
			g.Expect(admin.List(ctx, containers, client.InNamespace(r.namespace))).To(Succeed())
			g.Expect(containers.Items).To(BeEmpty())
			g.Expect(admin.List(ctx, pods, client.InNamespace(r.namespace))).To(Succeed())
			g.Expect(pods.Items).To(BeEmpty())
		}).Should(Succeed())
		Expect(client.IgnoreNotFound(admin.Delete(ctx, namespace))).To(Succeed())
	})
	return r
}

// make prepares an ImmortalContainer for this room whose pod ends quickly.
func (r *room) make(name string) *v1alpha1.ImmortalContainer {
	return testenv.MakeImmortalContainer(r.namespace, name).Image("nginx:1.29").GracePeriod(1).Obj()
}

// create creates the ImmortalContainer, or creates it again, as alice.
func (r *room) create(ctx context.Context) {
	GinkgoHelper()
	r.container.ResourceVersion, r.container.UID = "", ""
	Expect(alice.Create(ctx, r.container)).To(Succeed())
}

func (r *room) podKey() client.ObjectKey {
	return client.ObjectKey{Namespace: r.namespace, Name: r.container.Name + v1alpha1.PodNameSuffix}
}

func (r *room) status(ctx context.Context) v1alpha1.ImmortalContainerStatus {
	GinkgoHelper()
	found := &v1alpha1.ImmortalContainer{}
	Expect(admin.Get(ctx, client.ObjectKeyFromObject(r.container), found)).To(Succeed())
	return found.Status
}

// settled waits until the ImmortalContainer is ready after exactly this many starts, and returns its pod.
func (r *room) settled(ctx context.Context, starts int64) *corev1.Pod {
	GinkgoHelper()
	pod := &corev1.Pod{}
	Eventually(func(g Gomega) {
		status := r.status(ctx)
		g.Expect(status.StartTimes).To(Equal(starts))
		g.Expect(meta.IsStatusConditionTrue(status.Conditions, v1alpha1.ConditionReady)).To(BeTrue(), "%+v", status.Conditions)
		g.Expect(admin.Get(ctx, r.podKey(), pod)).To(Succeed())
		g.Expect(pod.DeletionTimestamp).To(BeNil())
		g.Expect(pod.Annotations).To(HaveKeyWithValue(v1alpha1.StartAnnotation, strconv.FormatInt(starts, 10)))
	}).Should(Succeed())
	return pod
}

// notReady waits until the ImmortalContainer is not ready for the given reason, and returns what it says about it.
func (r *room) notReady(ctx context.Context, reason string) string {
	GinkgoHelper()
	var message string
	Eventually(func(g Gomega) {
		ready := meta.FindStatusCondition(r.status(ctx).Conditions, v1alpha1.ConditionReady)
		g.Expect(ready).NotTo(BeNil())
		g.Expect(ready.Reason).To(Equal(reason), ready.Message)
		g.Expect(ready.Status).To(Equal(metav1.ConditionFalse))
		message = ready.Message
	}).Should(Succeed())
	return message
}

// gone waits until there is no pod.
func (r *room) gone(ctx context.Context) {
	GinkgoHelper()
	Eventually(func() bool { return apierrors.IsNotFound(admin.Get(ctx, r.podKey(), &corev1.Pod{})) }).Should(BeTrue())
}

// loseByKubelet removes the pod as its kubelet may at any time, which no webhook has a say in.
func (r *room) loseByKubelet(ctx context.Context, pod *corev1.Pod) {
	GinkgoHelper()
	Expect(env.Client(env.AsNode(pod.Spec.NodeName)).Delete(ctx, pod, client.GracePeriodSeconds(0), client.Preconditions{UID: &pod.UID})).To(Succeed())
}

// podWrites are the verbs of what the operator wrote successfully to the pods of this room, in order.
func (r *room) podWrites() []string {
	GinkgoHelper()
	verbs := []string{}
	for _, event := range writesOf(development.ManagerUser) {
		if event.Namespace == r.namespace && event.Resource == "pods" {
			verbs = append(verbs, event.Verb)
		}
	}
	return verbs
}

// podCreations counts the pods that the operator created in this room.
func (r *room) podCreations() int64 {
	GinkgoHelper()
	var n int64
	for _, verb := range r.podWrites() {
		if verb == "create" {
			n++
		}
	}
	return n
}

// writesOf are a user's successful writes in the whole run, Leases and Events left out.
func writesOf(user string) []testenv.AuditEvent {
	GinkgoHelper()
	events, err := env.Writes(user, testenv.OnLeases, testenv.OnEvents, testenv.Refused)
	Expect(err).NotTo(HaveOccurred())
	return events
}

// history is every version of the objects of one kind in a namespace, in order, none left out.
type history struct {
	mutex  sync.Mutex
	events []watch.Event
}

// follow begins a history.
func follow(ctx context.Context, list client.ObjectList, namespace string) *history {
	GinkgoHelper()
	watcher, err := admin.Watch(ctx, list, client.InNamespace(namespace))
	Expect(err).NotTo(HaveOccurred())
	DeferCleanup(watcher.Stop)
	h := &history{}
	go func() {
		for event := range watcher.ResultChan() {
			h.mutex.Lock()
			h.events = append(h.events, event)
			h.mutex.Unlock()
		}
	}()
	return h
}

func (h *history) all() []watch.Event {
	h.mutex.Lock()
	defer h.mutex.Unlock()
	return append([]watch.Event(nil), h.events...)
}
