// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package embedded_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"blackadder.io/blackadder/api/immortalcontainer/v1alpha1"
	"blackadder.io/blackadder/internal/development"
	"blackadder.io/blackadder/internal/testenv"
)

const way = `admission webhook "pods.immortalcontainer.flugel.it" denied the request: pod "example-immortal-container-immortalpod" is kept alive by ImmortalContainer "example-immortal-container" and is not deleted. ` +
	`To end it for good: kubectl delete immortalcontainer example-immortal-container -n %[1]s. To lift its protection for 10 minutes: ` +
	`kubectl annotate immortalcontainer example-immortal-container -n %[1]s --overwrite immortalcontainer.flugel.it/unprotected-until=`

var _ = Describe("The operator", func() {
	var namespace string
	var container *v1alpha1.ImmortalContainer
	BeforeEach(func(ctx SpecContext) {
		namespace = newNamespace(ctx, nil)
		container = testenv.MakeImmortalContainer(namespace, "db").Image("nginx:1.29").GracePeriod(1).Obj()
	})
	key := func() types.NamespacedName { return types.NamespacedName{Namespace: namespace, Name: "db-immortalpod"} }
	create := func(ctx context.Context) {
		GinkgoHelper()
		Expect(env.Client(env.AliceConfig).Create(ctx, container)).To(Succeed())
	}
	status := func(ctx context.Context) v1alpha1.ImmortalContainerStatus {
		GinkgoHelper()
		found := &v1alpha1.ImmortalContainer{}
		Expect(admin.Get(ctx, client.ObjectKeyFromObject(container), found)).To(Succeed())
		return found.Status
	}
	// settled waits until the container is ready after exactly n starts, and returns its pod.
	settled := func(ctx context.Context, n int64) *corev1.Pod {
		GinkgoHelper()
		pod := &corev1.Pod{}
		Eventually(func(g Gomega) {
			now := status(ctx)
			g.Expect(now.StartTimes).To(Equal(n))
			g.Expect(meta.IsStatusConditionTrue(now.Conditions, v1alpha1.ConditionReady)).To(BeTrue(), "%+v", now.Conditions)
			g.Expect(admin.Get(ctx, key(), pod)).To(Succeed())
			g.Expect(pod.Annotations[v1alpha1.StartAnnotation]).To(Equal(strconv.FormatInt(n, 10)))
		}).Should(Succeed())
		return pod
	}
	// writes are what the operator wrote successfully to pods of this spec's namespace.
	writes := func(verb string) int {
		GinkgoHelper()
		events, err := env.Writes(development.ManagerUser, testenv.OnEvents, testenv.Refused)
		Expect(err).NotTo(HaveOccurred())
		n := 0
		for _, event := range events {
			if event.Namespace == namespace && event.Resource == "pods" && event.Verb == verb {
				n++
			}
		}
		return n
	}
	gone := func(ctx context.Context) {
		GinkgoHelper()
		Eventually(func() bool { return apierrors.IsNotFound(admin.Get(ctx, key(), &corev1.Pod{})) }).Should(BeTrue())
	}

	It("tells the seed's story", func(ctx SpecContext) {
		manifest := filepath.Join(env.Root, "config", "samples", "immortalcontainer_v1alpha1_immortalcontainer.yaml")
		const ic, pod = "immortalcontainer/example-immortal-container", "example-immortal-container-immortalpod"
		Expect(kubectl("apply", "-n", namespace, "-f", manifest)).To(Equal("immortalcontainer.immortalcontainer.flugel.it/example-immortal-container created\n"))
		kubectl("wait", "-n", namespace, "--for=condition=Ready", ic, "--timeout=90s")
		Expect(kubectl("get", "pods", "-n", namespace, "--no-headers")).To(MatchRegexp(`^example-immortal-container-immortalpod +1/1 +Running +0 `))
		first := kubectl("get", "pod", pod, "-n", namespace, "-o", "jsonpath={.metadata.uid}")

		refusal := refused("delete", "pod", pod, "-n", namespace)
		want := "Error from server (Forbidden): " + fmt.Sprintf(way, namespace)
		Expect(refusal).To(HavePrefix(want))
		// The rest of the message is a time, and the command that it ends with works as it stands.
		_, err := time.Parse(time.RFC3339, strings.TrimPrefix(refusal, want))
		Expect(err).NotTo(HaveOccurred())
		_, command, _ := strings.Cut(refusal, "for 10 minutes: kubectl ")
		kubectl(strings.Fields(command)...)
		kubectl("delete", "pod", pod, "-n", namespace)
		kubectl("wait", "-n", namespace, "--for=jsonpath={.status.startTimes}=2", ic, "--timeout=90s")
		kubectl("wait", "-n", namespace, "--for=condition=Ready", ic, "--timeout=90s")
		Expect(kubectl("get", "pod", pod, "-n", namespace, "-o", "jsonpath={.metadata.uid}")).NotTo(Equal(first))
		Expect(kubectl("get", ic, "-n", namespace, "-o", "jsonpath={.status.currentPod} {.status.startTimes}")).To(Equal(pod + " 2"))
		Eventually(func() string { return kubectl("events", "-n", namespace, "--for", ic) }).Should(And(
			ContainSubstring("PodCreated"), ContainSubstring("ProtectionHeld"), ContainSubstring("ProtectionLifted")))
	})

	It("lets a namespace be deleted with everything in it", func(ctx SpecContext) {
		create(ctx)
		settled(ctx, 1)
		Expect(env.Client(env.AliceConfig).Delete(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})).To(Succeed())
		Eventually(func() bool {
			return apierrors.IsNotFound(admin.Get(ctx, client.ObjectKey{Name: namespace}, &corev1.Namespace{}))
		}).Should(BeTrue())
	})

	It("keeps a guarded namespace until nothing lives in it", func(ctx SpecContext) {
		kubectl("label", "namespace", namespace, "immortalcontainer.flugel.it/guarded=true")
		create(ctx)
		settled(ctx, 1)
		Expect(refused("delete", "namespace", namespace)).To(ContainSubstring(`namespace "` + namespace + `" is guarded while ImmortalContainers live in it (db)`))
		kubectl("delete", "immortalcontainers", "--all", "-n", namespace)
		kubectl("delete", "namespace", namespace, "--timeout=90s")
	})

	It("lets a drain empty the node, and brings the pod back elsewhere", Serial, func(ctx SpecContext) {
		create(ctx)
		node := settled(ctx, 1).Spec.NodeName
		DeferCleanup(func() { kubectl("uncordon", node) })
		kubectl("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=90s")
		Expect(settled(ctx, 2).Spec.NodeName).NotTo(Equal(node))
	})

	It("is taken along by the garbage collector", func(ctx SpecContext) {
		for n, policy := range []metav1.DeletionPropagation{metav1.DeletePropagationBackground, metav1.DeletePropagationForeground} {
			By(fmt.Sprintf("%d: %s", n, policy))
			container.ResourceVersion, container.UID = "", ""
			create(ctx)
			settled(ctx, 1)
			Expect(env.Client(env.AliceConfig).Delete(ctx, container, client.PropagationPolicy(policy))).To(Succeed())
			gone(ctx)
			Eventually(func() bool {
				return apierrors.IsNotFound(admin.Get(ctx, client.ObjectKeyFromObject(container), &v1alpha1.ImmortalContainer{}))
			}).Should(BeTrue())
		}
		container.ResourceVersion, container.UID = "", ""
		create(ctx)
		settled(ctx, 1)
		Expect(refused("delete", "immortalcontainer", "db", "-n", namespace, "--cascade=orphan")).To(ContainSubstring("would leave its pod behind without an owner"))
	})

	It("waits for a pod on a lost node, says so, and never forces it", func(ctx SpecContext) {
		// The simulated kubelets answer for every node that names kwok; nobody answers for this one.
		node := testenv.MakeNode(namespace + "-lost").Obj()
		node.Labels = map[string]string{"lost": namespace}
		Expect(admin.Create(ctx, node)).To(Succeed())
		DeferCleanup(func(ctx SpecContext) { _ = admin.Delete(ctx, node) })
		nodeReady := func(is corev1.ConditionStatus) {
			GinkgoHelper()
			Eventually(func() error {
				if err := admin.Get(ctx, client.ObjectKeyFromObject(node), node); err != nil {
					return err
				}
				node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: is, LastHeartbeatTime: metav1.Now()}}
				node.Status.Allocatable = corev1.ResourceList{corev1.ResourcePods: resource.MustParse("10"), corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("4Gi")}
				node.Status.Capacity = node.Status.Allocatable
				return admin.Status().Update(ctx, node)
			}).Should(Succeed())
		}
		nodeReady(corev1.ConditionTrue)
		container.Spec.NodeSelector = map[string]string{"lost": namespace}
		container.Spec.Tolerations = []corev1.Toleration{
			{Key: "node.kubernetes.io/not-ready", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
			{Key: "example.com/lost", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: ptr.To[int64](0)},
		}
		create(ctx)
		pod := &corev1.Pod{}
		Eventually(func(g Gomega) {
			g.Expect(admin.Get(ctx, key(), pod)).To(Succeed())
			g.Expect(pod.Spec.NodeName).To(Equal(node.Name))
		}).Should(Succeed())

		nodeReady(corev1.ConditionUnknown)
		Eventually(func() error {
			if err := admin.Get(ctx, client.ObjectKeyFromObject(node), node); err != nil {
				return err
			}
			node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: "example.com/lost", Effect: corev1.TaintEffectNoExecute})
			return admin.Update(ctx, node)
		}).Should(Succeed())
		Eventually(func(g Gomega) {
			ready := meta.FindStatusCondition(status(ctx).Conditions, v1alpha1.ConditionReady)
			g.Expect(ready.Reason).To(Equal(v1alpha1.ReasonNodeLost), ready.Message)
			g.Expect(ready.Message).To(HavePrefix(fmt.Sprintf(`pod "db-immortalpod" cannot finish terminating: its node %q does not answer`, node.Name)))
		}).Should(Succeed())
		found := &corev1.Pod{}
		Expect(admin.Get(ctx, key(), found)).To(Succeed())
		Expect(found.UID).To(Equal(pod.UID))
		Expect(writes("delete")).To(BeZero())

		// The Node object's deletion is a person's word that nothing runs there any more: pod garbage collection follows.
		patch := client.MergeFrom(container.DeepCopy())
		Expect(admin.Get(ctx, client.ObjectKeyFromObject(container), container)).To(Succeed())
		container.Spec.NodeSelector = nil
		Expect(admin.Patch(ctx, container, patch)).To(Succeed())
		Expect(admin.Delete(ctx, node)).To(Succeed())
		Eventually(func() types.UID {
			_ = admin.Get(ctx, key(), found)
			return found.UID
		}, "3m").ShouldNot(Equal(pod.UID))
		settled(ctx, 2)
	})

	It("delays a pod that keeps ending, and counts on", func(ctx SpecContext) {
		create(ctx)
		pod := settled(ctx, 1)
		for n := int32(1); n <= 3; n++ {
			Eventually(func() error {
				if err := admin.Get(ctx, key(), pod); err != nil {
					return err
				}
				pod.Status.Phase, pod.Status.Reason = corev1.PodFailed, "Evicted"
				return env.Client(env.AsNode(pod.Spec.NodeName)).Status().Update(ctx, pod)
			}).Should(Succeed())
			Eventually(func() int32 { return status(ctx).ConsecutiveExits }).Should(Equal(n))
			pod = settled(ctx, int64(n)+1)
		}
		exit := status(ctx).LastExit
		Expect(exit.Start).To(BeEquivalentTo(3))
		Expect(exit.Reason).To(Equal("Evicted"))
		Expect(writes("create")).To(Equal(4))
	})

	It("replaces the pod of an old spec, one after the other", func(ctx SpecContext) {
		create(ctx)
		first := settled(ctx, 1)
		patch := client.MergeFrom(container.DeepCopy())
		container.Spec.Image = "nginx:1.30"
		Expect(env.Client(env.AliceConfig).Patch(ctx, container, patch)).To(Succeed())
		second := settled(ctx, 2)
		Expect(second.UID).NotTo(Equal(first.UID))
		Expect(second.Spec.Containers[0].Image).To(Equal("nginx:1.30"))
	})

	Describe("killed", Serial, func() {
		AfterEach(func() {
			proxy.SetHooks(testenv.Hooks{})
			if !it.ready() {
				it.kill()
				it.start()
			}
		})
		isPodCreate := func(r *http.Request) bool {
			return r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/namespaces/"+namespace+"/pods") && !r.URL.Query().Has("dryRun")
		}
		isStatusWrite := func(r *http.Request) bool {
			return r.Method == http.MethodPatch && strings.HasSuffix(r.URL.Path, "/namespaces/"+namespace+"/immortalcontainers/db/status")
		}
		// killOn ends the operator at the first request that matches, before or after the API server sees it.
		killOn := func(matches func(*http.Request) bool, after bool) chan struct{} {
			died := make(chan struct{})
			once := make(chan struct{}, 1)
			strike := func(r *http.Request) testenv.Decision {
				if !matches(r) {
					return testenv.Pass
				}
				select {
				case once <- struct{}{}:
					it.kill()
					close(died)
					return testenv.Drop
				default:
					return testenv.Pass
				}
			}
			if after {
				proxy.SetHooks(testenv.Hooks{After: func(r *http.Response) testenv.Decision { return strike(r.Request) }})
			} else {
				proxy.SetHooks(testenv.Hooks{Before: strike})
			}
			return died
		}
		restart := func(died chan struct{}) {
			GinkgoHelper()
			Eventually(died).Should(BeClosed())
			proxy.SetHooks(testenv.Hooks{})
			it.start()
		}
		breakGlassAndDelete := func(ctx context.Context, pod *corev1.Pod) {
			GinkgoHelper()
			kubectl("annotate", "immortalcontainer", "db", "-n", namespace, "--overwrite",
				v1alpha1.UnprotectedUntilAnnotation+"="+time.Now().Add(10*time.Minute).UTC().Format(time.RFC3339))
			// The API server may ask the webhook twice about one deletion, and the operator, which is quick to make the next
			// pod, may be killed while it answers for the second time.
			Expect(env.Client(env.AliceConfig).Delete(ctx, pod, client.GracePeriodSeconds(0))).To(Or(Succeed(), MatchError(ContainSubstring("failed calling webhook"))))
		}

		It("between creation and status write, again and again, counts each start once", func(ctx SpecContext) {
			create(ctx)
			pod := settled(ctx, 1)
			for n := int64(2); n <= 5; n++ {
				// The condition Protected is written when the glass breaks, before the pod is created: only what comes
				// after the creation counts.
				created := make(chan struct{})
				died := killOn(func(r *http.Request) bool {
					if isPodCreate(r) {
						close(created)
						return false
					}
					select {
					case <-created:
						return isStatusWrite(r)
					default:
						return false
					}
				}, false)
				breakGlassAndDelete(ctx, pod)
				Eventually(died).Should(BeClosed())
				Expect(status(ctx).StartTimes).To(Equal(n - 1))
				restart(died)
				pod = settled(ctx, n)
			}
			Expect(writes("create")).To(Equal(5))
		})

		It("just before the creation, creates once", func(ctx SpecContext) {
			died := killOn(isPodCreate, false)
			create(ctx)
			restart(died)
			settled(ctx, 1)
			Expect(writes("create")).To(Equal(1))
		})

		It("just after the creation, before it knows, creates once", func(ctx SpecContext) {
			died := killOn(isPodCreate, true)
			create(ctx)
			restart(died)
			settled(ctx, 1)
			Expect(writes("create")).To(Equal(1))
		})

		It("fails closed for immortal pods and lets all others be", func(ctx SpecContext) {
			create(ctx)
			pod := settled(ctx, 1)
			it.kill()
			Expect(env.Client(env.AliceConfig).Delete(ctx, pod)).To(MatchError(ContainSubstring(`failed calling webhook "pods.immortalcontainer.flugel.it"`)))
			other := testenv.MakePod(namespace, "other").Image("nginx:1.29").Obj()
			Expect(env.Client(env.AliceConfig).Create(ctx, other)).To(Succeed())
			Expect(env.Client(env.AliceConfig).Delete(ctx, other)).To(Succeed())
			it.start()
			settled(ctx, 1)
		})
	})

	It("serves with a new certificate without a restart", Serial, func() {
		before, err := servedSerial()
		Expect(err).NotTo(HaveOccurred())
		Expect(env.CA.WriteServing(env.Webhook.CertDir, []string{env.Webhook.Host}, time.Hour)).To(Succeed())
		Eventually(servedSerial).ShouldNot(Equal(before))
		kubectl("apply", "--dry-run=server", "-n", namespace, "-f", filepath.Join(env.Root, "config", "samples", "immortalcontainer_v1alpha1_immortalcontainer.yaml"))
	})

	It("shows its metrics to those who may read them, and to nobody else", func(ctx SpecContext) {
		create(ctx)
		settled(ctx, 1)
		address := "https://" + it.metrics + "/metrics"
		code, _ := get(address, "")
		Expect(code).To(Equal(http.StatusUnauthorized))
		token := func(name string) string {
			GinkgoHelper()
			account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
			Expect(admin.Create(ctx, account)).To(Succeed())
			request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To[int64](600)}}
			Expect(admin.SubResource("token").Create(ctx, account, request)).To(Succeed())
			return request.Status.Token
		}
		code, _ = get(address, token("stranger"))
		Expect(code).To(Equal(http.StatusForbidden))

		role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: namespace}, Rules: []rbacv1.PolicyRule{{NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}}}}
		Expect(admin.Create(ctx, role)).To(Succeed())
		Expect(admin.Create(ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: namespace}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: namespace},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: "reader"}},
		})).To(Succeed())
		reader := token("reader")
		Eventually(func() string {
			_, body := get(address, reader)
			return body
		}).Should(And(ContainSubstring(`blackadder_immortal_containers{reason="PodReady"}`), ContainSubstring("blackadder_immortal_pods_created_total"),
			ContainSubstring("controller_runtime_webhook_requests_total")))
	})

	It("ends in order on a signal", Serial, func() {
		it.signal(os.Interrupt)
		Expect(it.process.ProcessState.ExitCode()).To(BeZero())
		it.start()
	})
})

var _ = Describe("Whatever happened before,", Serial, func() {
	It("no request of the operator was refused for want of a permission", func() {
		log, err := os.ReadFile(it.log)
		Expect(err).NotTo(HaveOccurred())
		Expect(string(log)).NotTo(ContainSubstring("cannot "), "RBAC refuses with «user cannot verb resource»")
	})
})
