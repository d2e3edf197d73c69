// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package immortalcontainer_test

import (
	"context"
	"fmt"
	"strconv"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"blackadder.io/blackadder/api/immortalcontainer/v1alpha1"
	"blackadder.io/blackadder/internal/development"
	"blackadder.io/blackadder/internal/immortal"
	"blackadder.io/blackadder/internal/testenv"
)

var _ = Describe("The ImmortalContainer controller", func() {
	var namespace string
	var container *v1alpha1.ImmortalContainer
	BeforeEach(func(ctx SpecContext) {
		namespace = newNamespace(ctx, nil)
		container = testenv.MakeImmortalContainer(namespace, "db").Image("nginx:1.29").Obj()
	})

	podKey := func() types.NamespacedName {
		return types.NamespacedName{Namespace: namespace, Name: "db-immortalpod"}
	}
	// pod waits for a pod of the container that is not the given one.
	pod := func(ctx context.Context, not types.UID) *corev1.Pod {
		GinkgoHelper()
		found := &corev1.Pod{}
		Eventually(func(g Gomega) {
			g.Expect(admin.Get(ctx, podKey(), found)).To(Succeed())
			g.Expect(found.UID).NotTo(Equal(not))
		}).Should(Succeed())
		return found
	}
	status := func(ctx context.Context) v1alpha1.ImmortalContainerStatus {
		GinkgoHelper()
		found := &v1alpha1.ImmortalContainer{}
		Expect(admin.Get(ctx, client.ObjectKeyFromObject(container), found)).To(Succeed())
		return found.Status
	}
	condition := func(ctx context.Context, kind string) func(Gomega) metav1.Condition {
		return func(g Gomega) metav1.Condition {
			found := meta.FindStatusCondition(status(ctx).Conditions, kind)
			g.Expect(found).NotTo(BeNil())
			return *found
		}
	}
	ready := func(ctx context.Context, reason string) metav1.Condition {
		GinkgoHelper()
		var found metav1.Condition
		Eventually(func(g Gomega) {
			found = condition(ctx, v1alpha1.ConditionReady)(g)
			g.Expect(found.Reason).To(Equal(reason), found.Message)
		}).Should(Succeed())
		return found
	}
	starts := func(ctx context.Context, n int) {
		GinkgoHelper()
		Eventually(func() int64 { return status(ctx).StartTimes }).Should(BeEquivalentTo(n))
	}
	// run does what scheduler and kubelet would: bind the pod, and report it ready.
	run := func(ctx context.Context, p *corev1.Pod, node string) {
		GinkgoHelper()
		Expect(admin.SubResource("binding").Create(ctx, p, &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: node}})).To(Succeed())
		Expect(admin.Get(ctx, client.ObjectKeyFromObject(p), p)).To(Succeed())
		p.Status.Phase = corev1.PodRunning
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}}
		Expect(admin.Status().Update(ctx, p)).To(Succeed())
	}
	end := func(ctx context.Context, p *corev1.Pod) {
		GinkgoHelper()
		Expect(admin.Get(ctx, client.ObjectKeyFromObject(p), p)).To(Succeed())
		p.Status.Phase, p.Status.Reason, p.Status.Message = corev1.PodFailed, "Evicted", "The node was low on resource: memory."
		Expect(admin.Status().Update(ctx, p)).To(Succeed())
	}
	eventNotes := func(ctx context.Context, reason string) func() []string {
		return func() []string {
			var list eventsv1.EventList
			Expect(admin.List(ctx, &list, client.InNamespace(namespace))).To(Succeed())
			var notes []string
			for _, event := range list.Items {
				if event.Reason == reason && event.Regarding.Name == "db" {
					notes = append(notes, event.Note)
				}
			}
			return notes
		}
	}
	writes := func(resource string) []testenv.AuditEvent {
		GinkgoHelper()
		events, err := env.Writes(development.ManagerUser, testenv.OnEvents)
		Expect(err).NotTo(HaveOccurred())
		var ours []testenv.AuditEvent
		for _, event := range events {
			if event.Namespace == namespace && event.Resource == resource {
				ours = append(ours, event)
			}
		}
		return ours
	}

	It("makes the pod that the seed describes, and tells of it", func(ctx SpecContext) {
		Expect(admin.Create(ctx, container)).To(Succeed())
		p := pod(ctx, "")
		Expect(p.Labels).To(Equal(map[string]string{"controller": "db", "immortalcontainer.flugel.it/protected": "true"}))
		Expect(p.Spec.Containers).To(HaveLen(1))
		Expect(p.Spec.Containers[0].Name).To(Equal("acontainer"))
		Expect(p.Spec.Containers[0].Image).To(Equal("nginx:1.29"))
		Expect(metav1.IsControlledBy(p, container)).To(BeTrue())
		starts(ctx, 1)
		Expect(ready(ctx, v1alpha1.ReasonPodNotReady).Message).To(Equal(`pod "db-immortalpod" is Pending and not ready yet`))

		run(ctx, p, "n1")
		Expect(ready(ctx, v1alpha1.ReasonPodReady).Message).To(Equal(`pod "db-immortalpod" is ready`))
		got := status(ctx)
		Expect(got.CurrentPod).To(Equal("db-immortalpod"))
		Expect(got.LastStartTime.Time).To(Equal(p.CreationTimestamp.Time))
		Expect(got.ObservedGeneration).To(BeEquivalentTo(1))
		Expect(meta.IsStatusConditionTrue(got.Conditions, v1alpha1.ConditionProtected)).To(BeTrue())
		Eventually(eventNotes(ctx, "PodCreated")).Should(Equal([]string{"created pod db-immortalpod (start 1)"}))
	})

	It("makes it again whenever it is deleted, without delay", func(ctx SpecContext) {
		Expect(admin.Create(ctx, container)).To(Succeed())
		var last types.UID
		for n := 1; n <= 3; n++ {
			p := pod(ctx, last)
			starts(ctx, n)
			last = p.UID
			Expect(admin.Delete(ctx, p)).To(Succeed())
		}
		pod(ctx, last)
		starts(ctx, 4)
		Expect(status(ctx).RestartBackoffUntil).To(BeNil())
	})

	It("waits for the old pod to be gone", func(ctx SpecContext) {
		Expect(admin.Create(ctx, container)).To(Succeed())
		p := pod(ctx, "")
		run(ctx, p, "n1")
		Expect(admin.Delete(ctx, p)).To(Succeed())
		Expect(ready(ctx, v1alpha1.ReasonPodTerminating).Message).To(Equal(`pod "db-immortalpod" is terminating: a new one is created when it is gone`))
		Expect(status(ctx).StartTimes).To(BeEquivalentTo(1))
		Expect(env.Client(env.AsNode("n1")).Delete(ctx, p, client.GracePeriodSeconds(0))).To(Succeed())
		pod(ctx, p.UID)
		starts(ctx, 2)
	})

	It("makes an ended pod again after a growing delay, and says how it ended", func(ctx SpecContext) {
		Expect(admin.Create(ctx, container)).To(Succeed())
		p := pod(ctx, "")
		for n := 1; n <= 3; n++ {
			starts(ctx, n)
			ended := time.Now()
			end(ctx, p)
			Eventually(func() int32 { return status(ctx).ConsecutiveExits }).Should(BeEquivalentTo(n))
			p = pod(ctx, p.UID)
			delay := time.Second << (n - 1)
			Expect(p.CreationTimestamp.Sub(ended.Truncate(time.Second))).To(BeNumerically(">=", delay))
		}
		starts(ctx, 4)
		exit := status(ctx).LastExit
		Expect(exit.Start).To(BeEquivalentTo(3))
		Expect(exit.Phase).To(Equal(corev1.PodFailed))
		Expect(exit.Reason).To(Equal("Evicted"))
		Expect(exit.Message).To(Equal("The node was low on resource: memory."))
		Eventually(eventNotes(ctx, "PodEnded")).Should(ContainElement("the pod of start 3 ended (Evicted), 3 in a row"))
	})

	It("replaces the pod when the spec's pod changes, and only then", func(ctx SpecContext) {
		Expect(admin.Create(ctx, container)).To(Succeed())
		p := pod(ctx, "")
		starts(ctx, 1)
		patch := client.MergeFrom(container.DeepCopy())
		container.Labels = map[string]string{"a": "b"}
		Expect(admin.Patch(ctx, container, patch)).To(Succeed())
		patch = client.MergeFrom(container.DeepCopy())
		container.Spec.Image = "nginx:1.30"
		Expect(admin.Patch(ctx, container, patch)).To(Succeed())
		next := pod(ctx, p.UID)
		Expect(next.Spec.Containers[0].Image).To(Equal("nginx:1.30"))
		starts(ctx, 2)
		Eventually(func() int64 { return status(ctx).ObservedGeneration }).Should(BeEquivalentTo(2))
		Eventually(eventNotes(ctx, "PodRemoved")).Should(Equal([]string{`the spec changed: pod "db-immortalpod" is terminated, and a new one is created when it is gone`}))
	})

	It("counts each start once, also when it ended before it could write the status", Serial, func(ctx SpecContext) {
		Expect(admin.Create(ctx, container)).To(Succeed())
		p := pod(ctx, "")
		starts(ctx, 1)
		stopController()
		// The status is as if the controller had died between the creation and the status write.
		found := &v1alpha1.ImmortalContainer{}
		Expect(admin.Get(ctx, client.ObjectKeyFromObject(container), found)).To(Succeed())
		found.Status = v1alpha1.ImmortalContainerStatus{}
		Expect(admin.Status().Update(ctx, found)).To(Succeed())
		startController()
		starts(ctx, 1)
		Expect(admin.Delete(ctx, p)).To(Succeed())
		pod(ctx, p.UID)
		starts(ctx, 2)
	})

	It("leaves a foreign pod of the name alone, and says so", func(ctx SpecContext) {
		foreign := testenv.MakePod(namespace, "db-immortalpod").Image("busybox:1").Obj()
		Expect(admin.Create(ctx, foreign)).To(Succeed())
		Expect(admin.Create(ctx, container)).To(Succeed())
		message := `a pod named "db-immortalpod" that does not belong to this ImmortalContainer (it has no controller) holds its pod's name: remove or rename that pod, or use another name here`
		Expect(ready(ctx, v1alpha1.ReasonNameConflict).Message).To(Equal(message))
		Expect(status(ctx).CurrentPod).To(BeEmpty())
		Eventually(eventNotes(ctx, "NameConflict")).Should(Equal([]string{message}))
		found := &corev1.Pod{}
		Expect(admin.Get(ctx, podKey(), found)).To(Succeed())
		Expect(found.UID).To(Equal(foreign.UID))
		Expect(found.Labels).To(BeEmpty())

		Expect(admin.Delete(ctx, foreign)).To(Succeed())
		pod(ctx, foreign.UID)
		starts(ctx, 1)
	})

	It("waits for the pod of an earlier ImmortalContainer of the name", func(ctx SpecContext) {
		Expect(admin.Create(ctx, container)).To(Succeed())
		p := pod(ctx, "")
		starts(ctx, 1)
		Expect(admin.Delete(ctx, container)).To(Succeed())
		// No garbage collector runs here: the pod stays.
		container = testenv.MakeImmortalContainer(namespace, "db").Image("nginx:1.29").Obj()
		Expect(admin.Create(ctx, container)).To(Succeed())
		Expect(ready(ctx, v1alpha1.ReasonPodTerminating).Message).To(
			Equal(`pod "db-immortalpod" belongs to an earlier ImmortalContainer of this name: the garbage collector removes it, then a new one is created`))
		Expect(admin.Delete(ctx, p)).To(Succeed())
		next := pod(ctx, p.UID)
		Expect(metav1.IsControlledBy(next, container)).To(BeTrue())
		starts(ctx, 1)
	})

	It("gives a pod its protecting labels back", func(ctx SpecContext) {
		Expect(admin.Create(ctx, container)).To(Succeed())
		p := pod(ctx, "")
		starts(ctx, 1)
		changed := p.DeepCopy()
		changed.Labels = map[string]string{"kept": "yes"}
		Expect(admin.Patch(ctx, changed, client.MergeFrom(p))).To(Succeed())
		Eventually(func(g Gomega) {
			found := &corev1.Pod{}
			g.Expect(admin.Get(ctx, podKey(), found)).To(Succeed())
			g.Expect(found.UID).To(Equal(p.UID))
			g.Expect(found.Labels).To(Equal(map[string]string{"kept": "yes", "controller": "db", "immortalcontainer.flugel.it/protected": "true"}))
		}).Should(Succeed())
		Expect(status(ctx).StartTimes).To(BeEquivalentTo(1))
		Eventually(eventNotes(ctx, "LabelsRestored")).Should(HaveLen(1))
	})

	Describe("when the API server refuses the pod", func() {
		It("says which quota, and tries again", func(ctx SpecContext) {
			quota := &corev1.ResourceQuota{
				ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "none"},
				Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("0")}},
			}
			Expect(admin.Create(ctx, quota)).To(Succeed())
			quota.Status.Hard, quota.Status.Used = quota.Spec.Hard, quota.Spec.Hard
			Expect(admin.Status().Update(ctx, quota)).To(Succeed())
			before := metric(metrics, "blackadder_immortal_pod_refusals_total", v1alpha1.ReasonQuotaExceeded)
			Expect(admin.Create(ctx, container)).To(Succeed())
			Expect(ready(ctx, v1alpha1.ReasonQuotaExceeded).Message).To(HavePrefix(`pods "db-immortalpod" is forbidden: `))
			Expect(status(ctx).StartTimes).To(BeZero())
			Expect(metric(metrics, "blackadder_immortal_pod_refusals_total", v1alpha1.ReasonQuotaExceeded)).To(BeNumerically(">", before))
			Eventually(eventNotes(ctx, v1alpha1.ReasonQuotaExceeded)).ShouldNot(BeEmpty())
			Expect(admin.Delete(ctx, quota)).To(Succeed())
			pod(ctx, "")
			starts(ctx, 1)
		})
		It("says what Pod Security lacks", func(ctx SpecContext) {
			namespace = newNamespace(ctx, map[string]string{"pod-security.kubernetes.io/enforce": "restricted"})
			container.Namespace = namespace
			Expect(admin.Create(ctx, container)).To(Succeed())
			Expect(ready(ctx, v1alpha1.ReasonPodSecurityViolation).Message).To(HavePrefix(`pods "db-immortalpod" is forbidden: violates PodSecurity "restricted:latest": allowPrivilegeEscalation != false`))
		})
		It("says what is invalid", func(ctx SpecContext) {
			container.Spec.Ports = []corev1.ContainerPort{{ContainerPort: 70000, Protocol: "TCP"}}
			Expect(admin.Create(ctx, container)).To(Succeed())
			Expect(ready(ctx, v1alpha1.ReasonPodInvalid).Message).To(Equal(
				`Pod "db-immortalpod" is invalid: spec.containers[0].ports[0].containerPort: Invalid value: 70000: must be between 1 and 65535, inclusive`))
			patch := client.MergeFrom(container.DeepCopy())
			container.Spec.Ports[0].ContainerPort = 7000
			Expect(admin.Patch(ctx, container, patch)).To(Succeed())
			pod(ctx, "")
		})
		It("stops in a terminating namespace", func(ctx SpecContext) {
			Expect(admin.Create(ctx, container)).To(Succeed())
			p := pod(ctx, "")
			starts(ctx, 1)
			Expect(admin.Delete(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})).To(Succeed())
			Expect(admin.Delete(ctx, p)).To(Succeed())
			Expect(ready(ctx, v1alpha1.ReasonNamespaceTerminating).Message).To(ContainSubstring("because it is being terminated"))
			refused := func() int {
				n := 0
				for _, event := range writes("pods") {
					if testenv.Refused(event) {
						n++
					}
				}
				return n
			}
			tries := refused()
			// Another object of the namespace is still served in the meantime: what is awaited is that the controller goes on.
			other := testenv.MakeImmortalContainer(newNamespace(ctx, nil), "other").Image("nginx:1.29").Obj()
			Expect(admin.Create(ctx, other)).To(Succeed())
			Eventually(func() error {
				return admin.Get(ctx, types.NamespacedName{Namespace: other.Namespace, Name: immortal.PodName("other")}, &corev1.Pod{})
			}).Should(Succeed())
			Consistently(refused, "2s").Should(Equal(tries))
		})
	})

	It("says that a lost node keeps the pod, and never forces it", func(ctx SpecContext) {
		node := testenv.MakeNode(namespace + "-lost").Obj()
		Expect(admin.Create(ctx, node)).To(Succeed())
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}
		Expect(admin.Status().Update(ctx, node)).To(Succeed())
		container.Spec.TerminationGracePeriodSeconds = new(int64)
		*container.Spec.TerminationGracePeriodSeconds = 1
		Expect(admin.Create(ctx, container)).To(Succeed())
		p := pod(ctx, "")
		starts(ctx, 1)
		run(ctx, p, node.Name)
		Expect(admin.Delete(ctx, p)).To(Succeed())
		message := fmt.Sprintf(`pod "db-immortalpod" cannot finish terminating: its node %q does not answer, and the container may still run there. It comes back when the node does, `+
			`when the Node object is deleted, or when the node carries the taint node.kubernetes.io/out-of-service:NoExecute`, node.Name)
		Expect(ready(ctx, v1alpha1.ReasonNodeLost).Message).To(Equal(message))
		Eventually(eventNotes(ctx, v1alpha1.ReasonNodeLost)).Should(Equal([]string{message}))
		for _, event := range writes("pods") {
			Expect(event.Verb).NotTo(Equal("delete"))
		}
		// What pod garbage collection does when the Node object is deleted.
		Expect(admin.Delete(ctx, p, client.GracePeriodSeconds(0))).To(Succeed())
		pod(ctx, p.UID)
		starts(ctx, 2)
	})

	It("tells when the protection is lifted and when it is back", func(ctx SpecContext) {
		Expect(admin.Create(ctx, container)).To(Succeed())
		pod(ctx, "")
		starts(ctx, 1)
		until := time.Now().Add(3 * time.Second).UTC().Format(time.RFC3339)
		patch := client.MergeFrom(container.DeepCopy())
		container.Annotations = map[string]string{v1alpha1.UnprotectedUntilAnnotation: until}
		Expect(admin.Patch(ctx, container, patch)).To(Succeed())
		message := "anybody may delete the pod until " + until + ", by the annotation immortalcontainer.flugel.it/unprotected-until"
		Eventually(eventNotes(ctx, "ProtectionLifted")).Should(Equal([]string{message}))
		Eventually(func(g Gomega) {
			g.Expect(condition(ctx, v1alpha1.ConditionProtected)(g).Status).To(Equal(metav1.ConditionTrue))
		}).Should(Succeed())
		Eventually(eventNotes(ctx, "ProtectionRestored")).Should(Equal([]string{"only the controller may remove the pod again"}))
	})

	It("writes nothing when nothing changed", Serial, func(ctx SpecContext) {
		Expect(admin.Create(ctx, container)).To(Succeed())
		p := pod(ctx, "")
		run(ctx, p, "n1")
		ready(ctx, v1alpha1.ReasonPodReady)
		settled := func() int {
			n := 0
			for _, event := range append(writes("pods"), writes("immortalcontainers")...) {
				// A status computed from a cache that lags behind is refused, and writes nothing.
				if !testenv.Refused(event) {
					n++
				}
			}
			return n
		}
		// A creation is two writes, the pod and the status; being ready is one more.
		Eventually(settled).Should(Equal(3))
		looked := reconciles()
		for n := range 60 {
			touched := p.DeepCopy()
			touched.Annotations["touched"] = strconv.Itoa(n)
			Expect(admin.Patch(ctx, touched, client.MergeFrom(p))).To(Succeed())
			Eventually(reconciles).Should(BeNumerically(">", looked+float64(n)))
			p = touched
		}
		Expect(settled()).To(Equal(3))
	})

	It("leaves the pod of a deleted ImmortalContainer to the garbage collector", func(ctx SpecContext) {
		Expect(admin.Create(ctx, container)).To(Succeed())
		p := pod(ctx, "")
		starts(ctx, 1)
		Expect(admin.Delete(ctx, container)).To(Succeed())
		Expect(admin.Delete(ctx, p)).To(Succeed())
		Consistently(func() bool { return apierrors.IsNotFound(admin.Get(ctx, podKey(), p)) }, "2s").Should(BeTrue())
	})

	It("shows its numbers", func(ctx SpecContext) {
		created := metric(metrics, "blackadder_immortal_pods_created_total", "")
		Expect(admin.Create(ctx, container)).To(Succeed())
		run(ctx, pod(ctx, ""), "n1")
		ready(ctx, v1alpha1.ReasonPodReady)
		Expect(metric(metrics, "blackadder_immortal_pods_created_total", "")).To(BeNumerically(">", created))
		Eventually(func() float64 { return metric(metrics, "blackadder_immortal_containers", v1alpha1.ReasonPodReady) }).Should(BeNumerically(">=", 1))
	})
})
