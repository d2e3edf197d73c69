// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package webhooks_test

import (
	"context"
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"blackadder.io/blackadder/api/immortalcontainer/v1alpha1"
	"blackadder.io/blackadder/internal/testenv"
)

const (
	podsWebhook      = `admission webhook "pods.immortalcontainer.flugel.it" denied the request: `
	forgeriesWebhook = `admission webhook "forgeries.immortalcontainer.flugel.it" denied the request: `
	evictionsWebhook = `admission webhook "evictions.immortalcontainer.flugel.it" denied the request: `
	namespaceWebhook = `admission webhook "namespaces.immortalcontainer.flugel.it" denied the request: `
)

// waysOut is the end of every refusal: how to end the pod, and how to break the glass.
func waysOut(namespace string) string {
	return fmt.Sprintf("To end it for good: kubectl delete immortalcontainer db -n %[1]s. To lift its protection for 10 minutes: "+
		"kubectl annotate immortalcontainer db -n %[1]s --overwrite immortalcontainer.flugel.it/unprotected-until=%[2]s", namespace, now.Add(10*time.Minute).Format(time.RFC3339))
}

const kept = `pod "db-immortalpod" is kept alive by ImmortalContainer "db"`

// change alters a pod by a patch of what differs, to the pod itself or to its status.
func change(ctx context.Context, c client.Client, pod *corev1.Pod, status bool, f func(*corev1.Pod)) error {
	changed := pod.DeepCopy()
	f(changed)
	patch := client.MergeFrom(pod)
	if status {
		return c.Status().Patch(ctx, changed, patch)
	}
	return c.Patch(ctx, changed, patch)
}

func evict(ctx context.Context, c client.Client, pod *corev1.Pod) error {
	return c.SubResource("eviction").Create(ctx, pod.DeepCopy(), &policyv1.Eviction{})
}

func fail(pod *corev1.Pod) { pod.Status.Phase = corev1.PodFailed }

var _ = Describe("The protection of immortal pods", func() {
	var (
		namespace string
		container *v1alpha1.ImmortalContainer
		pod       *corev1.Pod
	)
	BeforeEach(func(ctx SpecContext) {
		namespace = newNamespace(ctx, nil)
		container, pod = newImmortal(ctx, namespace, "db", "n1")
	})
	stillThere := func(ctx context.Context) {
		GinkgoHelper()
		var found corev1.Pod
		Expect(admin.Get(ctx, client.ObjectKeyFromObject(pod), &found)).To(Succeed())
		Expect(found.UID).To(Equal(pod.UID))
		Expect(found.DeletionTimestamp).To(BeNil())
	}
	gone := func(ctx context.Context) {
		GinkgoHelper()
		var found corev1.Pod
		err := admin.Get(ctx, client.ObjectKeyFromObject(pod), &found)
		if err == nil {
			// A kubelet would have to confirm: there is none here.
			Expect(found.DeletionTimestamp).NotTo(BeNil())
			return
		}
		Expect(apierrors.IsNotFound(err)).To(BeTrue(), "%v", err)
	}

	Describe("refuses", func() {
		DescribeTable("what would remove or unmask the pod, with the way out",
			func(ctx SpecContext, act func(context.Context) error, message string) {
				err := act(ctx)
				Expect(err).To(HaveOccurred())
				Expect(apierrors.IsForbidden(err)).To(BeTrue(), "%v", err)
				Expect(err.Error()).To(Equal(strings.ReplaceAll(podsWebhook+message, "WAYS OUT", waysOut(namespace))))
				stillThere(ctx)
			},
			Entry("1: DELETE", func(ctx context.Context) error { return alice.Delete(ctx, pod) }, kept+` and is not deleted. WAYS OUT`),
			Entry("1: DELETE with grace period 0", func(ctx context.Context) error { return alice.Delete(ctx, pod, client.GracePeriodSeconds(0)) }, kept+` and is not deleted. WAYS OUT`),
			Entry("1: DELETE as system:masters", func(ctx context.Context) error { return admin.Delete(ctx, pod) }, kept+` and is not deleted. WAYS OUT`),
			Entry("2: deletecollection", func(ctx context.Context) error {
				return alice.DeleteAllOf(ctx, &corev1.Pod{}, client.InNamespace(namespace))
			}, kept+` and is not deleted. WAYS OUT`),
			Entry("2: deletecollection by selector", func(ctx context.Context) error {
				return alice.DeleteAllOf(ctx, &corev1.Pod{}, client.InNamespace(namespace), client.MatchingLabels{"controller": "db"})
			}, kept+` and is not deleted. WAYS OUT`),
			Entry("4: the protecting label removed", func(ctx context.Context) error {
				return change(ctx, alice, pod, false, func(p *corev1.Pod) { delete(p.Labels, v1alpha1.ProtectedLabel) })
			}, kept+`, which alone may change metadata.labels[immortalcontainer.flugel.it/protected]. To change the pod, edit the ImmortalContainer. WAYS OUT`),
			Entry("4: the protecting label removed through the status", func(ctx context.Context) error {
				return change(ctx, alice, pod, true, func(p *corev1.Pod) { delete(p.Labels, v1alpha1.ProtectedLabel) })
			}, kept+`, which alone may change metadata.labels[immortalcontainer.flugel.it/protected]. To change the pod, edit the ImmortalContainer. WAYS OUT`),
			Entry("4: the controller label changed", func(ctx context.Context) error {
				return change(ctx, alice, pod, false, func(p *corev1.Pod) { p.Labels["controller"] = "x" })
			}, kept+`, which alone may change metadata.labels[controller]. To change the pod, edit the ImmortalContainer. WAYS OUT`),
			Entry("5: the owner removed", func(ctx context.Context) error {
				return change(ctx, alice, pod, false, func(p *corev1.Pod) { p.OwnerReferences = nil })
			}, kept+`, which alone may change metadata.ownerReferences. To change the pod, edit the ImmortalContainer. WAYS OUT`),
			Entry("5: an absent owner instead", func(ctx context.Context) error {
				return change(ctx, alice, pod, false, func(p *corev1.Pod) {
					p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "absent", UID: "absent"}}
				})
			}, kept+`, which alone may change metadata.ownerReferences. To change the pod, edit the ImmortalContainer. WAYS OUT`),
			Entry("5: an absent ImmortalContainer instead", func(ctx context.Context) error {
				return change(ctx, alice, pod, false, func(p *corev1.Pod) { p.OwnerReferences[0].UID = "absent" })
			}, `only the operator makes immortal pods: leave out the label immortalcontainer.flugel.it/protected and owner references to an ImmortalContainer, or create an ImmortalContainer`),
			Entry("6: a finalizer added", func(ctx context.Context) error {
				return change(ctx, alice, pod, false, func(p *corev1.Pod) { p.Finalizers = []string{"example.com/mine"} })
			}, kept+`, which alone may change metadata.finalizers. To change the pod, edit the ImmortalContainer. WAYS OUT`),
			Entry("6: a finalizer added through the status", func(ctx context.Context) error {
				return change(ctx, alice, pod, true, func(p *corev1.Pod) { p.Finalizers = []string{"example.com/mine"} })
			}, kept+`, which alone may change metadata.finalizers. To change the pod, edit the ImmortalContainer. WAYS OUT`),
			Entry("7: activeDeadlineSeconds", func(ctx context.Context) error {
				return change(ctx, alice, pod, false, func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = ptr.To[int64](1) })
			}, kept+`, which alone may change spec.activeDeadlineSeconds. To change the pod, edit the ImmortalContainer. WAYS OUT`),
			Entry("8: another image", func(ctx context.Context) error {
				return change(ctx, alice, pod, false, func(p *corev1.Pod) { p.Spec.Containers[0].Image = "evil:1" })
			}, kept+`, which alone may change spec.containers[acontainer].image. To change the pod, edit the ImmortalContainer. WAYS OUT`),
			Entry("9: phase Failed", func(ctx context.Context) error { return change(ctx, alice, pod, true, fail) },
				kept+`, which alone may change status.phase to Failed. To change the pod, edit the ImmortalContainer. WAYS OUT`),
			Entry("9: phase Succeeded", func(ctx context.Context) error {
				return change(ctx, alice, pod, true, func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })
			}, kept+`, which alone may change status.phase to Succeeded. To change the pod, edit the ImmortalContainer. WAYS OUT`),
			Entry("9: phase Failed by another node's kubelet", func(ctx context.Context) error {
				return change(ctx, env.Client(env.AsNode("n2")), pod, true, fail)
			}, kept+`, which alone may change status.phase to Failed. To change the pod, edit the ImmortalContainer. WAYS OUT`),
			Entry("10: controller: false", func(ctx context.Context) error {
				return change(ctx, alice, pod, false, func(p *corev1.Pod) { p.OwnerReferences[0].Controller = ptr.To(false) })
			}, kept+`, which alone may change metadata.ownerReferences. To change the pod, edit the ImmortalContainer. WAYS OUT`),
			Entry("10: a second owner", func(ctx context.Context) error {
				return change(ctx, alice, pod, false, func(p *corev1.Pod) {
					p.OwnerReferences = append(p.OwnerReferences, metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "x", UID: "x"})
				})
			}, kept+`, which alone may change metadata.ownerReferences. To change the pod, edit the ImmortalContainer. WAYS OUT`),
			Entry("12: an impersonated user in the operator's namespace", func(ctx context.Context) error {
				// The rights come from a group; the name is what must not pass.
				return env.Client(env.As("system:serviceaccount:blackadder-system:other", testenv.Testers)).Delete(ctx, pod)
			}, kept+` and is not deleted. WAYS OUT`),
			Entry("a shorter toleration", func(ctx context.Context) error {
				return change(ctx, alice, pod, false, func(p *corev1.Pod) { p.Spec.Tolerations[0].TolerationSeconds = ptr.To[int64](0) })
			}, kept+`, which alone may change spec.tolerations. To change the pod, edit the ImmortalContainer. WAYS OUT`),
			Entry("the start that the count rests on", func(ctx context.Context) error {
				return change(ctx, alice, pod, false, func(p *corev1.Pod) { p.Annotations[v1alpha1.StartAnnotation] = "99" })
			}, kept+`, which alone may change metadata.annotations[immortalcontainer.flugel.it/start]. To change the pod, edit the ImmortalContainer. WAYS OUT`),
			Entry("several at once, by name", func(ctx context.Context) error {
				return change(ctx, alice, pod, false, func(p *corev1.Pod) {
					p.Labels, p.OwnerReferences = nil, nil
					p.Spec.Containers[0].Image = "evil:1"
				})
			}, kept+`, which alone may change metadata.labels[controller], metadata.labels[immortalcontainer.flugel.it/protected], metadata.ownerReferences, spec.containers[acontainer].image. `+
				`To change the pod, edit the ImmortalContainer. WAYS OUT`),
		)

		It("3: an eviction, so that drains try again", func(ctx SpecContext) {
			err := evict(ctx, alice, pod)
			Expect(apierrors.IsTooManyRequests(err)).To(BeTrue(), "%v", err)
			Expect(err.Error()).To(Equal(evictionsWebhook + kept +
				` and is evicted only from a cordoned node: cordon its node first (kubectl cordon n1; kubectl drain does so itself). ` + waysOut(namespace)))
			stillThere(ctx)
		})

		It("3: an eviction by policy/v1beta1", func(ctx SpecContext) {
			err := evictByVersion(ctx, env.AliceConfig, pod, "policy/v1beta1")
			Expect(apierrors.IsTooManyRequests(err)).To(BeTrue(), "%v", err)
			stillThere(ctx)
		})

		DescribeTable("a binding that carries what the protection rests on",
			func(ctx SpecContext, carry func(*metav1.ObjectMeta), changed string) {
				_, unbound := newImmortal(ctx, namespace, "unbound", "")
				binding := &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: "n1"}}
				carry(&binding.ObjectMeta)
				err := alice.SubResource("binding").Create(ctx, unbound, binding)
				Expect(apierrors.IsForbidden(err)).To(BeTrue(), "%v", err)
				Expect(err.Error()).To(HavePrefix(`admission webhook "bindings.immortalcontainer.flugel.it" denied the request: ` +
					`pod "unbound-immortalpod" is kept alive by ImmortalContainer "unbound", which alone may change ` + changed + ". "))
				binding = &corev1.Binding{Target: binding.Target}
				Expect(alice.SubResource("binding").Create(ctx, unbound, binding)).To(Succeed(), "a plain binding must pass")
			},
			Entry("the spec's hash", func(m *metav1.ObjectMeta) { m.Annotations = map[string]string{v1alpha1.SpecHashAnnotation: "x"} }, "metadata.annotations[immortalcontainer.flugel.it/spec-hash]"),
			Entry("the label", func(m *metav1.ObjectMeta) { m.Labels = map[string]string{v1alpha1.ProtectedLabel: "false"} }, "metadata.labels[immortalcontainer.flugel.it/protected]"),
		)

		It("11: the deletion of the ImmortalContainer that orphans the pod", func(ctx SpecContext) {
			err := alice.Delete(ctx, container, client.PropagationPolicy(metav1.DeletePropagationOrphan))
			Expect(apierrors.IsForbidden(err)).To(BeTrue(), "%v", err)
			Expect(err.Error()).To(Equal(`admission webhook "validate.immortalcontainer.flugel.it" denied the request: immortalcontainers.immortalcontainer.flugel.it "db" is forbidden: ` +
				`it cannot be deleted with propagationPolicy Orphan (kubectl delete --cascade=orphan), which would leave its pod behind without an owner: use Background or Foreground`))
			err = alice.DeleteAllOf(ctx, &v1alpha1.ImmortalContainer{}, client.InNamespace(namespace), client.PropagationPolicy(metav1.DeletePropagationOrphan))
			Expect(apierrors.IsForbidden(err)).To(BeTrue(), "%v", err)
			Expect(admin.Get(ctx, client.ObjectKeyFromObject(container), container)).To(Succeed())
			Expect(container.DeletionTimestamp).To(BeNil())

			// A second deletion of one that is terminating already can still orphan: it must not either.
			held := container.DeepCopy()
			held.Finalizers = []string{"example.com/held"}
			Expect(admin.Patch(ctx, held, client.MergeFrom(container))).To(Succeed())
			Expect(alice.Delete(ctx, container)).To(Succeed())
			Expect(apierrors.IsForbidden(alice.Delete(ctx, container, client.PropagationPolicy(metav1.DeletePropagationOrphan)))).To(BeTrue())
		})

		DescribeTable("13: a forged immortal pod",
			func(ctx SpecContext, webhook string, forge func(*testenv.PodBuilder) *testenv.PodBuilder) {
				forged := forge(testenv.MakePod(namespace, "forged").Image("nginx:1.29")).Obj()
				err := alice.Create(ctx, forged)
				Expect(apierrors.IsForbidden(err)).To(BeTrue(), "%v", err)
				Expect(err.Error()).To(Equal(webhook + `only the operator makes immortal pods: leave out the label immortalcontainer.flugel.it/protected ` +
					`and owner references to an ImmortalContainer, or create an ImmortalContainer`))
			},
			Entry("by its label", podsWebhook, func(b *testenv.PodBuilder) *testenv.PodBuilder { return b.Label(v1alpha1.ProtectedLabel, "true") }),
			Entry("by its owner", forgeriesWebhook, func(b *testenv.PodBuilder) *testenv.PodBuilder { return b.OwnedBy(container) }),
			Entry("by both", podsWebhook, func(b *testenv.PodBuilder) *testenv.PodBuilder { return b.Immortal(container) }),
		)

		DescribeTable("13: an existing pod that is made immortal",
			func(ctx SpecContext, webhook string, forge func(*corev1.Pod)) {
				other := testenv.MakePod(namespace, "other").Image("nginx:1.29").Obj()
				Expect(alice.Create(ctx, other)).To(Succeed())
				err := change(ctx, alice, other, false, forge)
				Expect(apierrors.IsForbidden(err)).To(BeTrue(), "%v", err)
				Expect(err.Error()).To(HavePrefix(webhook + `only the operator makes immortal pods: `))
			},
			Entry("by its label", podsWebhook, func(p *corev1.Pod) { p.Labels = map[string]string{v1alpha1.ProtectedLabel: "true"} }),
			Entry("by its owner", forgeriesWebhook, func(p *corev1.Pod) { p.OwnerReferences = pod.OwnerReferences }),
		)

		It("14: the deletion of a guarded namespace, until nothing lives in it", func(ctx SpecContext) {
			guarded := newNamespace(ctx, map[string]string{v1alpha1.GuardedLabel: "true"})
			living, _ := newImmortal(ctx, guarded, "db", "n1")
			namespaceObject := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: guarded}}
			err := alice.Delete(ctx, namespaceObject)
			Expect(apierrors.IsForbidden(err)).To(BeTrue(), "%v", err)
			Expect(err.Error()).To(Equal(namespaceWebhook + fmt.Sprintf(`namespace %[1]q is guarded while ImmortalContainers live in it (db): `+
				`delete them first (kubectl delete immortalcontainers --all -n %[1]s), or remove the guard: kubectl label namespace %[1]s immortalcontainer.flugel.it/guarded-`, guarded)))
			Expect(alice.Delete(ctx, living)).To(Succeed())
			Expect(alice.Delete(ctx, namespaceObject)).To(Succeed())
		})
	})

	Describe("allows", func() {
		DescribeTable("the cluster's own housekeeping",
			func(ctx SpecContext, prepare func(context.Context), act func(context.Context) error) {
				if prepare != nil {
					prepare(ctx)
				}
				Expect(act(ctx)).To(Succeed())
				gone(ctx)
			},
			Entry("the controller", nil, func(ctx context.Context) error { return operator.Delete(ctx, pod, client.GracePeriodSeconds(0)) }),
			Entry("anybody, a terminating pod",
				func(ctx context.Context) { Expect(operator.Delete(ctx, pod)).To(Succeed()) },
				func(ctx context.Context) error { return alice.Delete(ctx, pod, client.GracePeriodSeconds(0)) }),
			Entry("anybody, an ended pod",
				func(ctx context.Context) {
					Expect(change(ctx, env.Client(env.AsNode("n1")), pod, true, fail)).To(Succeed())
				},
				func(ctx context.Context) error { return alice.Delete(ctx, pod) }),
			Entry("anybody, when the ImmortalContainer is gone",
				func(ctx context.Context) { Expect(alice.Delete(ctx, container)).To(Succeed()) },
				func(ctx context.Context) error { return alice.Delete(ctx, pod) }),
			Entry("anybody, when the ImmortalContainer is terminating",
				func(ctx context.Context) {
					Expect(alice.Delete(ctx, container, client.PropagationPolicy(metav1.DeletePropagationForeground))).To(Succeed())
				},
				func(ctx context.Context) error { return alice.Delete(ctx, pod) }),
			Entry("anybody, when an ImmortalContainer of the same name and another UID lives",
				func(ctx context.Context) {
					Expect(alice.Delete(ctx, container)).To(Succeed())
					Expect(alice.Create(ctx, testenv.MakeImmortalContainer(namespace, "db").Image("nginx:1.29").Obj())).To(Succeed())
				},
				func(ctx context.Context) error { return alice.Delete(ctx, pod) }),
			Entry("anybody, when the namespace is terminating",
				func(ctx context.Context) {
					Expect(alice.Delete(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})).To(Succeed())
				},
				func(ctx context.Context) error { return alice.Delete(ctx, pod) }),
			Entry("the kubelet of the pod's node", nil, func(ctx context.Context) error {
				return env.Client(env.AsNode("n1")).Delete(ctx, pod, client.GracePeriodSeconds(0))
			}),
			Entry("the garbage collector, the owner gone",
				func(ctx context.Context) { Expect(alice.Delete(ctx, container)).To(Succeed()) },
				func(ctx context.Context) error { return as("generic-garbage-collector").Delete(ctx, pod) }),
			Entry("the namespace controller, by collection",
				func(ctx context.Context) {
					Expect(alice.Delete(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})).To(Succeed())
				},
				func(ctx context.Context) error {
					return as("namespace-controller").DeleteAllOf(ctx, &corev1.Pod{}, client.InNamespace(namespace))
				}),
			Entry("pod garbage collection, the node gone", nil, func(ctx context.Context) error {
				return as("pod-garbage-collector").Delete(ctx, pod, client.GracePeriodSeconds(0))
			}),
			Entry("controllers that share one identity, the node gone", nil, func(ctx context.Context) error {
				return env.Client(env.As("system:kube-controller-manager", testenv.Testers)).Delete(ctx, pod)
			}),
			Entry("the scheduler, for preemption", nil, func(ctx context.Context) error {
				return env.Client(env.As("system:kube-scheduler")).Delete(ctx, pod)
			}),
		)

		DescribeTable("taint eviction", func(ctx SpecContext, controller string) {
			node := testenv.MakeNode(namespace+"-tainted").Taint("example.com/out", corev1.TaintEffectNoExecute).Obj()
			Expect(admin.Create(ctx, node)).To(Succeed())
			_, evicted := newImmortal(ctx, namespace, "tainted", node.Name)
			Expect(apierrors.IsForbidden(alice.Delete(ctx, evicted))).To(BeTrue())
			Expect(as(controller, testenv.Testers).Delete(ctx, evicted)).To(Succeed())
		},
			Entry("by the node controller", "node-controller"),
			Entry("by the device taint eviction controller", "device-taint-eviction-controller"),
		)

		It("a drain of a cordoned node", func(ctx SpecContext) {
			node := testenv.MakeNode(namespace + "-cordoned").Obj()
			Expect(admin.Create(ctx, node)).To(Succeed())
			_, drained := newImmortal(ctx, namespace, "drained", node.Name)
			Expect(apierrors.IsTooManyRequests(evict(ctx, alice, drained))).To(BeTrue())
			node.Spec.Unschedulable = true
			Expect(admin.Update(ctx, node)).To(Succeed())
			Expect(evict(ctx, alice, drained)).To(Succeed())
		})

		It("a drain by an autoscaler that taints its node", func(ctx SpecContext) {
			node := testenv.MakeNode(namespace+"-scaled-down").Taint("ToBeDeletedByClusterAutoscaler", corev1.TaintEffectNoSchedule).Obj()
			Expect(admin.Create(ctx, node)).To(Succeed())
			_, drained := newImmortal(ctx, namespace, "drained", node.Name)
			Expect(evict(ctx, alice, drained)).To(Succeed())
		})

		It("the cluster's own controllers to mark the pod Failed", func(ctx SpecContext) {
			Expect(change(ctx, as("pod-garbage-collector"), pod, true, fail)).To(Succeed())
		})

		It("its kubelet to report on the pod", func(ctx SpecContext) {
			Expect(change(ctx, env.Client(env.AsNode("n1")), pod, true, func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning })).To(Succeed())
			stillThere(ctx)
		})

		It("labels, annotations and conditions that protect nothing", func(ctx SpecContext) {
			Expect(change(ctx, alice, pod, false, func(p *corev1.Pod) {
				p.Labels["team"], p.Annotations["note"] = "a", "b"
			})).To(Succeed())
			Expect(change(ctx, alice, pod, true, func(p *corev1.Pod) {
				p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: "example.com/Checked", Status: corev1.ConditionTrue})
			})).To(Succeed())
			stillThere(ctx)
		})

		It("ephemeral containers and resizing", func(ctx SpecContext) {
			clients, err := kubernetes.NewForConfig(env.AliceConfig)
			Expect(err).NotTo(HaveOccurred())
			debugged := pod.DeepCopy()
			debugged.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug", Image: "busybox:1"}}}
			_, err = clients.CoreV1().Pods(namespace).UpdateEphemeralContainers(ctx, pod.Name, debugged, metav1.UpdateOptions{})
			Expect(err).NotTo(HaveOccurred())
			_, err = clients.CoreV1().Pods(namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType,
				[]byte(`{"spec":{"containers":[{"name":"acontainer","resources":{}}]}}`), metav1.PatchOptions{}, "resize")
			Expect(err).NotTo(HaveOccurred())
			stillThere(ctx)
		})

		It("anybody while the glass is broken", func(ctx SpecContext) {
			Expect(annotate(ctx, container, now.Add(time.Hour))).To(Succeed())
			Eventually(func(g Gomega) {
				var events eventsv1.EventList
				g.Expect(admin.List(ctx, &events, client.InNamespace(namespace))).To(Succeed())
				g.Expect(events.Items).To(HaveLen(1))
				g.Expect(events.Items[0].Reason).To(Equal("GlassBroken"))
				g.Expect(events.Items[0].Note).To(Equal(`user "alice" lifts the protection of the pod until ` + now.Add(time.Hour).Format(time.RFC3339)))
			}).Should(Succeed())
			Expect(alice.Delete(ctx, pod)).To(Succeed())
			gone(ctx)
		})

		It("an eviction while the glass is broken", func(ctx SpecContext) {
			Expect(annotate(ctx, container, now.Add(time.Minute))).To(Succeed())
			Expect(evict(ctx, alice, pod)).To(Succeed())
		})

		It("everything to pods of nobody's, even if they are named alike", func(ctx SpecContext) {
			other := testenv.MakePod(namespace, "plain-immortalpod").Image("nginx:1.29").Obj()
			Expect(alice.Create(ctx, other)).To(Succeed())
			Expect(evict(ctx, alice, other)).To(Succeed())
			Expect(apierrors.IsNotFound(evict(ctx, alice, testenv.MakePod(namespace, "absent-immortalpod").Obj()))).To(BeTrue())
		})

		It("the deletion of any namespace that is not guarded", func(ctx SpecContext) {
			Expect(alice.Delete(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})).To(Succeed())
		})
	})

	It("counts a denial by reason and leaves an event, but not for a dry run", func(ctx SpecContext) {
		before := denials("Delete")
		Expect(apierrors.IsForbidden(alice.Delete(ctx, pod, client.DryRunAll))).To(BeTrue())
		Expect(denials("Delete")).To(Equal(before))
		Expect(apierrors.IsForbidden(alice.Delete(ctx, pod))).To(BeTrue())
		Expect(denials("Delete")).To(Equal(before + 1))
		Eventually(func(g Gomega) {
			var events eventsv1.EventList
			g.Expect(admin.List(ctx, &events, client.InNamespace(namespace))).To(Succeed())
			g.Expect(events.Items).To(HaveLen(1))
			event := events.Items[0]
			g.Expect(event.Regarding.Name).To(Equal("db"))
			g.Expect(event.Reason).To(Equal("ProtectionHeld"))
			g.Expect(event.Note).To(Equal(`refused: Delete of pod db-immortalpod by user "alice" (Delete)`))
		}).Should(Succeed())
	})
})

var _ = Describe("While the webhooks are down", Serial, Ordered, func() {
	var namespace string
	var pod *corev1.Pod
	var other, again *v1alpha1.ImmortalContainer
	BeforeAll(func(ctx SpecContext) {
		namespace = newNamespace(ctx, nil)
		_, pod = newImmortal(ctx, namespace, "db", "n1")
		other, _ = newImmortal(ctx, namespace, "other", "n1")
		again, _ = newImmortal(ctx, namespace, "again", "n1")
		stopWebhooks()
		DeferCleanup(startWebhooks)
	})

	It("the protection fails closed for immortal pods", func(ctx SpecContext) {
		err := alice.Delete(ctx, pod)
		Expect(err).To(MatchError(ContainSubstring(`failed calling webhook "pods.immortalcontainer.flugel.it"`)))
		Expect(evict(ctx, alice, pod)).To(MatchError(ContainSubstring(`failed calling webhook "evictions.immortalcontainer.flugel.it"`)))
	})

	It("no other pod notices", func(ctx SpecContext) {
		other := testenv.MakePod(namespace, "other").Image("nginx:1.29").Obj()
		Expect(alice.Create(ctx, other)).To(Succeed())
		Expect(change(ctx, alice, other, false, func(p *corev1.Pod) { p.Labels = map[string]string{"a": "b"} })).To(Succeed())
		Expect(evict(ctx, alice, other)).To(Succeed())
		Expect(alice.Delete(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: newNamespace(ctx, nil)}})).To(Succeed())
	})

	It("a report on the pod's status passes, also by others than its kubelet", func(ctx SpecContext) {
		Expect(change(ctx, alice, pod, true, func(p *corev1.Pod) {
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: "example.com/Checked", Status: corev1.ConditionTrue})
		})).To(Succeed())
	})

	It("an ImmortalContainer can be deleted", func(ctx SpecContext) {
		Expect(alice.Delete(ctx, other)).To(Succeed())
		Expect(alice.Delete(ctx, again, client.PropagationPolicy(metav1.DeletePropagationOrphan))).To(MatchError(ContainSubstring("failed calling webhook")))
	})

	It("the kubelet of the pod's node and the controller pass", func(ctx SpecContext) {
		Expect(change(ctx, env.Client(env.AsNode("n1")), pod, true, func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning })).To(Succeed())
		Expect(operator.Delete(ctx, pod)).To(Succeed())
		Expect(env.Client(env.AsNode("n1")).Delete(ctx, pod, client.GracePeriodSeconds(0))).To(Succeed())
		Expect(operator.Create(ctx, func() *corev1.Pod { again := pod.DeepCopy(); again.ResourceVersion, again.UID = "", ""; return again }())).To(Succeed())
	})
})

// as is a client with the identity of one of kube-controller-manager's controllers.
func as(controller string, groups ...string) client.Client {
	return env.Client(env.As("system:serviceaccount:kube-system:"+controller, append(groups, "system:serviceaccounts", "system:serviceaccounts:kube-system")...))
}

// annotate breaks the glass until the given time.
func annotate(ctx context.Context, container *v1alpha1.ImmortalContainer, until time.Time) error {
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, v1alpha1.UnprotectedUntilAnnotation, until.Format(time.RFC3339))
	return alice.Patch(ctx, container.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(patch)))
}

// evictByVersion evicts with an Eviction of an API version that the typed clients have no more.
func evictByVersion(ctx context.Context, config *rest.Config, pod *corev1.Pod, apiVersion string) error {
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	body := fmt.Sprintf(`{"apiVersion":%q,"kind":"Eviction","metadata":{"name":%q,"namespace":%q}}`, apiVersion, pod.Name, pod.Namespace)
	return clients.CoreV1().RESTClient().Post().Namespace(pod.Namespace).Resource("pods").Name(pod.Name).SubResource("eviction").
		SetHeader("Content-Type", "application/json").Body([]byte(body)).MaxRetries(0).Do(ctx).Error()
}

// denials reads the counter of one reason.
func denials(reason string) float64 {
	GinkgoHelper()
	families, err := metrics.Gather()
	Expect(err).NotTo(HaveOccurred())
	for _, family := range families {
		if family.GetName() != "blackadder_immortal_protection_denials_total" {
			continue
		}
		for _, metric := range family.GetMetric() {
			if metric.GetLabel()[0].GetValue() == reason {
				return metric.GetCounter().GetValue()
			}
		}
	}
	return 0
}
