// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package chaosagent_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"blackadder.io/blackadder/api/blackadder/v1beta1"
	"blackadder.io/blackadder/internal/chaos"
	"blackadder.io/blackadder/internal/development"
	"blackadder.io/blackadder/internal/testenv"
)

// once is a pause after which no spec still runs.
const once = 86400

var _ = Describe("The controller of ChaosAgents", func() {
	var namespace string
	var name string
	counter := 0
	BeforeEach(func(ctx SpecContext) {
		namespace = newNamespace(ctx, nil)
		counter++
		name = fmt.Sprintf("edmund-%d", counter)
	})
	AfterEach(func(ctx SpecContext) {
		Expect(admin.DeleteAllOf(ctx, &v1beta1.ChaosAgent{})).To(Succeed())
		Eventually(func(g Gomega) {
			var list v1beta1.ChaosAgentList
			g.Expect(admin.List(ctx, &list)).To(Succeed())
			g.Expect(list.Items).To(BeEmpty())
			g.Expect(journal(ctx)).To(BeEmpty())
		}).Should(Succeed())
	})

	agent := func() *testenv.ChaosAgentBuilder {
		return testenv.MakeChaosAgent(name).Only(namespace).Exclude("kube-system", development.Namespace).Eagerness(100).Pause(once)
	}
	create := func(ctx context.Context, builder *testenv.ChaosAgentBuilder) {
		GinkgoHelper()
		old()
		Expect(admin.Create(ctx, builder.Obj())).To(Succeed())
	}
	// cycled waits until a number of cycles are over.
	cycled := func(ctx context.Context, n int64) *v1beta1.ChaosAgent {
		GinkgoHelper()
		Eventually(func(g Gomega) {
			status := read(ctx, name).Status
			g.Expect(status.Totals.Cycles).To(Equal(n))
			g.Expect(status.LastCycle).NotTo(BeNil())
			g.Expect(status.LastCycle.CompletionTime).NotTo(BeNil())
		}).Should(Succeed())
		return read(ctx, name)
	}
	condition := func(ctx context.Context, kind string) string {
		GinkgoHelper()
		found := meta.FindStatusCondition(read(ctx, name).Status.Conditions, kind)
		if found == nil {
			return ""
		}
		return fmt.Sprintf("%s %s: %s", found.Status, found.Reason, found.Message)
	}
	update := func(ctx context.Context, change func(*v1beta1.ChaosAgentSpec)) {
		GinkgoHelper()
		Eventually(func() error {
			now := read(ctx, name)
			change(&now.Spec)
			return admin.Update(ctx, now)
		}).Should(Succeed())
	}
	remove := func(ctx context.Context) {
		GinkgoHelper()
		Expect(client.IgnoreNotFound(admin.Delete(ctx, testenv.MakeChaosAgent(name).Obj()))).To(Succeed())
		Eventually(func() bool {
			return apierrors.IsNotFound(admin.Get(ctx, client.ObjectKey{Name: name}, &v1beta1.ChaosAgent{}))
		}).Should(BeTrue())
	}
	// told are the notes of the events with a reason about an object.
	told := func(ctx context.Context, reason, about string) []string {
		GinkgoHelper()
		var list eventsv1.EventList
		Expect(admin.List(ctx, &list)).To(Succeed())
		var notes []string
		for i := range list.Items {
			if list.Items[i].Reason == reason && list.Items[i].Regarding.Name == about {
				notes = append(notes, list.Items[i].Note)
			}
		}
		return notes
	}

	It("kills, scales and overwrites, says so, and puts everything back in the end", func(ctx SpecContext) {
		newPods(ctx, namespace, 3)
		newDeployment(ctx, namespace, "web", 3)
		newConfigMap(ctx, namespace, "settings", map[string]string{"a": "1", "b": "two\nlines"})
		create(ctx, agent().Modes(true, true, true))
		status := cycled(ctx, 1).Status
		Expect(podNames(ctx, namespace)).To(BeEmpty())
		Expect(replicas(ctx, namespace, "web")).To(Equal(int32(6)))
		scrambled := data(ctx, namespace, "settings")
		Expect(scrambled).To(HaveLen(2))
		Expect(scrambled["a"]).To(And(ContainSubstring(" "), Equal(scrambled["b"]), HaveSuffix(".")))

		Expect(status.LastCycle.Reason).To(Equal(v1beta1.CycleActed))
		Expect(status.LastCycle.Message).To(Equal("3 of 3 candidate Pods drawn; 1 of 1 candidate Deployments drawn; 1 of 1 candidate ConfigMaps drawn"))
		Expect(*status.LastCycle.Pods).To(And(HaveField("Candidates", int32(3)), HaveField("Victims", int32(3)), HaveField("Done", int32(3))))
		Expect(status.Totals).To(Equal(v1beta1.Totals{Cycles: 1, Victims: 5, Pods: 3, Deployments: 1, ConfigMaps: 1}))
		Expect(status.NextCycleTime.Sub(status.LastCycle.CompletionTime.Time)).To(Equal(once * time.Second))
		Expect(condition(ctx, v1beta1.ConditionReady)).To(Equal("True Active: cycles run 86400 s apart"))
		Expect(condition(ctx, v1beta1.ConditionRestored)).To(Equal("False ChangesInForce: changes of 2 objects are in force, and are put back when the agent is deleted, suspended or expired"))
		Expect(read(ctx, name).Finalizers).To(Equal([]string{v1beta1.RestoreFinalizer}))
		Eventually(func() []string { return told(ctx, "Cycle", name) }).Should(Equal([]string{
			"cycle 1: killed 3 of 3 candidate Pods; scaled 1 of 1 candidate Deployments; overwrote 1 of 1 candidate ConfigMaps",
		}))
		Eventually(func() []string { return told(ctx, "KilledByChaos", "pod-0") }).Should(ContainElement(HavePrefix(fmt.Sprintf("killed by ChaosAgent %q (drawn with ", name))))
		Eventually(func() []string { return told(ctx, "ScaledByChaos", "web") }).Should(ContainElement(HavePrefix(fmt.Sprintf("scaled from 3 to 6 replicas by ChaosAgent %q (drawn with ", name))))
		Eventually(func() []string { return told(ctx, "OverwrittenByChaos", "settings") }).Should(ContainElement(HavePrefix(fmt.Sprintf("2 values overwritten by ChaosAgent %q (drawn with ", name))))
		Expect(metric("blackadder_chaos_victims_total", "tantrum", namespace, "done")).To(Equal(3.0))
		Expect(metric("blackadder_chaos_victims_total", "cancer", namespace, "done")).To(Equal(1.0))
		Expect(metric("blackadder_chaos_victims_total", "ipsum", namespace, "done")).To(Equal(1.0))

		remove(ctx)
		Expect(replicas(ctx, namespace, "web")).To(Equal(int32(3)))
		Expect(data(ctx, namespace, "settings")).To(Equal(map[string]string{"a": "1", "b": "two\nlines"}))
		Expect(journal(ctx)).To(BeEmpty())
		Eventually(func() []string { return told(ctx, "Restored", name) }).Should(Equal([]string{"put back 2 objects; left 0 alone that somebody else has changed since; 0 are gone"}))
	})

	It("touches candidates alone, and says why of the others", func(ctx SpecContext) {
		immortal := testenv.MakeImmortalContainer(namespace, "db").Image("nginx:1.29").Obj()
		Expect(admin.Create(ctx, immortal)).To(Succeed())
		for _, pod := range []*corev1.Pod{
			testenv.MakePod(namespace, "victim").Obj(),
			testenv.MakePod(namespace, "opted-out").Annotation("blackadder.io/chaos", "disabled").Obj(),
			testenv.MakePod(namespace, "db-immortalpod").Immortal(immortal).Obj(),
			testenv.MakePod(namespace, "adopted").OwnedBy(immortal).Obj(),
			testenv.MakePod(namespace, "ours").Label("app.kubernetes.io/managed-by", "blackadder").Obj(),
			testenv.MakePod(namespace, "terminating").Finalizer("example.com/wait").Obj(),
		} {
			Expect(admin.Create(ctx, pod)).To(Succeed())
		}
		terminating := testenv.MakePod(namespace, "terminating").Obj()
		Expect(admin.Delete(ctx, terminating)).To(Succeed())
		DeferCleanup(func(ctx SpecContext) {
			Expect(admin.Patch(ctx, terminating, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))).To(Succeed())
		})
		for deployment, n := range map[string]int32{"zero": 0, "one": 1, "large": 100, "most": 128, "more": 200, "autoscaled": 2} {
			newDeployment(ctx, namespace, deployment, n)
		}
		Expect(admin.Create(ctx, &autoscalingv2.HorizontalPodAutoscaler{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "hpa"},
			Spec:       autoscalingv2.HorizontalPodAutoscalerSpec{MaxReplicas: 9, ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "autoscaled"}},
		})).To(Succeed())
		newConfigMap(ctx, namespace, "settings", map[string]string{"a": "1"})
		newConfigMap(ctx, namespace, "kube-root-ca.crt", map[string]string{"a": "1"})
		newConfigMap(ctx, namespace, "empty", nil)
		immutable := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "immutable"}, Data: map[string]string{"a": "1"}, Immutable: ptr.To(true)}
		Expect(admin.Create(ctx, immutable)).To(Succeed())
		optedOut := newNamespace(ctx, map[string]string{"blackadder.io/chaos": "disabled"})
		newPods(ctx, optedOut, 1)
		elsewhere := newNamespace(ctx, nil)
		newPods(ctx, elsewhere, 1)

		create(ctx, agent().Modes(true, true, true).Only(namespace, optedOut, "kube-system", development.Namespace).Exclude())
		status := cycled(ctx, 1).Status
		Expect(podNames(ctx, namespace)).To(ConsistOf("opted-out", "db-immortalpod", "adopted", "ours", "terminating"))
		Expect(status.LastCycle.Pods.Excluded).To(ConsistOf(
			v1beta1.ExclusionCount{Reason: chaos.ExcludedOptedOut, Count: 1}, v1beta1.ExclusionCount{Reason: chaos.ExcludedImmortal, Count: 2},
			v1beta1.ExclusionCount{Reason: chaos.ExcludedOwnObject, Count: 1}, v1beta1.ExclusionCount{Reason: chaos.ExcludedTerminating, Count: 1}))
		for deployment, n := range map[string]int32{"zero": 0, "one": 2, "large": 128, "most": 128, "more": 200, "autoscaled": 2} {
			Expect(replicas(ctx, namespace, deployment)).To(Equal(n), deployment)
		}
		Expect(data(ctx, namespace, "settings")["a"]).NotTo(Equal("1"))
		Expect(data(ctx, namespace, "kube-root-ca.crt")["a"]).To(Equal("1"))
		Expect(data(ctx, namespace, "immutable")["a"]).To(Equal("1"))
		Expect(writes(optedOut)).To(BeEmpty())
		Expect(writes(elsewhere)).To(BeEmpty())
		Expect(writes("kube-system")).To(BeEmpty())
		Expect(writes(namespace)).To(ConsistOf("delete pods victim", "update deployments/scale one", "update deployments/scale large", "update configmaps settings"))
	})

	It("looks again at the moment of acting", func(ctx SpecContext) {
		newPods(ctx, namespace, 2)
		newDeployment(ctx, namespace, "web", 2)
		newConfigMap(ctx, namespace, "settings", map[string]string{"a": "1"})
		old()
		// Just before the operator acts, somebody opts a pod out, scales the Deployment, and makes the ConfigMap immutable.
		var podDone, scaleDone, configMapDone atomic.Bool
		proxy.SetHooks(testenv.Hooks{Before: func(r *http.Request) testenv.Decision {
			defer GinkgoRecover()
			switch {
			case r.Method == http.MethodDelete && strings.HasSuffix(r.URL.Path, "/pods/pod-0") && podDone.CompareAndSwap(false, true):
				pod := testenv.MakePod(namespace, "pod-0").Obj()
				Expect(admin.Patch(context.Background(), pod, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"blackadder.io/chaos":"disabled"}}}`)))).To(Succeed())
			case r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "/deployments/web/scale") && scaleDone.CompareAndSwap(false, true):
				deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web"}}
				Expect(admin.Patch(context.Background(), deployment, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"replicas":5}}`)))).To(Succeed())
			case r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "/configmaps/settings") && configMapDone.CompareAndSwap(false, true):
				configMap := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "settings"}}
				Expect(admin.Patch(context.Background(), configMap, client.RawPatch(types.MergePatchType, []byte(`{"immutable":true}`)))).To(Succeed())
			}
			return testenv.Pass
		}})
		DeferCleanup(func() { proxy.SetHooks(testenv.Hooks{}) })
		create(ctx, agent().Modes(true, true, true))
		status := cycled(ctx, 1).Status
		Expect(podNames(ctx, namespace)).To(Equal([]string{"pod-0"}))
		Expect(replicas(ctx, namespace, "web")).To(Equal(int32(10)))
		Expect(data(ctx, namespace, "settings")).To(Equal(map[string]string{"a": "1"}))
		Expect(status.LastCycle.Pods).To(And(HaveField("Done", int32(1)), HaveField("Spared", int32(1))))
		Expect(status.LastCycle.ConfigMaps).To(And(HaveField("Done", int32(0)), HaveField("Spared", int32(1))))
		remove(ctx)
		Expect(replicas(ctx, namespace, "web")).To(Equal(int32(5)), "what somebody else set is what is put back")
	})

	It("gives up on what keeps changing after a bounded number of tries", func(ctx SpecContext) {
		newDeployment(ctx, namespace, "web", 2)
		var tries atomic.Int64
		proxy.SetHooks(testenv.Hooks{Before: func(r *http.Request) testenv.Decision {
			defer GinkgoRecover()
			if r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "/deployments/web/scale") {
				deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web"}}
				patch := fmt.Sprintf(`{"metadata":{"annotations":{"try":"%d"}}}`, tries.Add(1))
				Expect(admin.Patch(context.Background(), deployment, client.RawPatch(types.MergePatchType, []byte(patch)))).To(Succeed())
			}
			return testenv.Pass
		}})
		DeferCleanup(func() { proxy.SetHooks(testenv.Hooks{}) })
		create(ctx, agent().Modes(false, true, false))
		report := cycled(ctx, 1).Status.LastCycle.Deployments
		Expect(report).To(And(HaveField("Done", int32(0)), HaveField("Failed", int32(1)), HaveField("LastError", "it kept changing, and was left alone")))
		Expect(tries.Load()).To(Equal(int64(5)))
		proxy.SetHooks(testenv.Hooks{})
	})

	It("counts what a disruption budget refuses, and asks it once", func(ctx SpecContext) {
		Expect(admin.Create(ctx, testenv.MakePod(namespace, "guarded").Label("app", "db").Obj())).To(Succeed())
		Expect(admin.Create(ctx, testenv.MakePod(namespace, "free").Obj())).To(Succeed())
		budget := &policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "db"},
			Spec:       policyv1.PodDisruptionBudgetSpec{MinAvailable: ptr.To(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}},
		}
		Expect(admin.Create(ctx, budget)).To(Succeed())
		budget.Status = policyv1.PodDisruptionBudgetStatus{ObservedGeneration: budget.Generation, DesiredHealthy: 1, ExpectedPods: 1}
		Expect(admin.Status().Update(ctx, budget)).To(Succeed())
		var asked atomic.Int64
		proxy.SetHooks(testenv.Hooks{Before: func(r *http.Request) testenv.Decision {
			if strings.HasSuffix(r.URL.Path, "/pods/guarded/eviction") {
				asked.Add(1)
			}
			return testenv.Pass
		}})
		DeferCleanup(func() { proxy.SetHooks(testenv.Hooks{}) })
		running := func(ctx context.Context, pod string) {
			found := &corev1.Pod{}
			Expect(admin.Get(ctx, client.ObjectKey{Namespace: namespace, Name: pod}, found)).To(Succeed())
			found.Status.Phase = corev1.PodRunning
			found.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
			Expect(admin.Status().Update(ctx, found)).To(Succeed())
		}
		running(ctx, "guarded")
		running(ctx, "free")
		create(ctx, agent().Modes(true, false, false).With(func(s *v1beta1.ChaosAgentSpec) { s.PodKillMethod = v1beta1.PodKillMethodEvict }))
		status := cycled(ctx, 1).Status
		Expect(status.LastCycle.Pods).To(And(HaveField("Done", int32(1)), HaveField("Refused", int32(1)), HaveField("Failed", int32(0))))
		Expect(status.Totals.Refused).To(Equal(int64(1)))
		Expect(podNames(ctx, namespace)).To(Equal([]string{"guarded"}))
		Expect(asked.Load()).To(Equal(int64(1)))
		Expect(metric("blackadder_chaos_victims_total", namespace, "refused")).To(Equal(1.0))
		Eventually(func() []string { return told(ctx, "SparedByBudget", "guarded") }).Should(Equal([]string{fmt.Sprintf("a disruption budget keeps it from ChaosAgent %q", name)}))
	})

	Describe("puts back", func() {
		It("exact bytes of a ConfigMap as large as it can be", func(ctx SpecContext) {
			large := map[string]string{"large": strings.Repeat("0123456789abcdef", 1<<16-1), "rest": strings.Repeat("é", 8)}
			Expect(len(large["large"]) + len(large["rest"])).To(Equal(1 << 20))
			newConfigMap(ctx, namespace, "large", large)
			create(ctx, agent().Modes(false, false, true))
			cycled(ctx, 1)
			Expect(data(ctx, namespace, "large")).NotTo(Equal(large))
			remove(ctx)
			Expect(data(ctx, namespace, "large")).To(Equal(large))
		})

		It("nothing that somebody else has changed since", func(ctx SpecContext) {
			newDeployment(ctx, namespace, "web", 2)
			newDeployment(ctx, namespace, "gone", 2)
			newDeployment(ctx, namespace, "again", 2)
			newConfigMap(ctx, namespace, "settings", map[string]string{"a": "1", "b": "2", "c": "3"})
			newConfigMap(ctx, namespace, "gone", map[string]string{"a": "1"})
			create(ctx, agent().Modes(false, true, true))
			cycled(ctx, 1)
			Expect(admin.Patch(ctx, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web"}}, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"replicas":7}}`)))).To(Succeed())
			Expect(admin.Patch(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "settings"}}, client.RawPatch(types.MergePatchType, []byte(`{"data":{"a":"mine","b":null,"d":"new"}}`)))).To(Succeed())
			for _, object := range []client.Object{
				&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "gone"}}, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "again"}},
				&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "gone"}},
			} {
				Expect(admin.Delete(ctx, object)).To(Succeed())
			}
			// Another one of the same name, which by chance wants what the agent had made of the old one.
			newDeployment(ctx, namespace, "again", 4)
			remove(ctx)
			Expect(replicas(ctx, namespace, "web")).To(Equal(int32(7)))
			Expect(replicas(ctx, namespace, "again")).To(Equal(int32(4)))
			Expect(data(ctx, namespace, "settings")).To(Equal(map[string]string{"a": "mine", "c": "3", "d": "new"}))
			Eventually(func() []string { return told(ctx, "Restored", name) }).Should(Equal([]string{"put back 1 objects; left 1 alone that somebody else has changed since; 3 are gone"}))
		})

		It("the original after many cycles", func(ctx SpecContext) {
			newDeployment(ctx, namespace, "web", 3)
			newConfigMap(ctx, namespace, "settings", map[string]string{"a": "1"})
			create(ctx, agent().Modes(false, true, true).Pause(1))
			Eventually(func() int32 { return replicas(ctx, namespace, "web") }).Should(Equal(int32(24)))
			remove(ctx)
			Expect(replicas(ctx, namespace, "web")).To(Equal(int32(3)))
			Expect(data(ctx, namespace, "settings")).To(Equal(map[string]string{"a": "1"}))
		})

		It("on suspension, without a trace, and goes on afterwards", func(ctx SpecContext) {
			newDeployment(ctx, namespace, "web", 3)
			create(ctx, agent().Modes(false, true, false))
			cycled(ctx, 1)
			update(ctx, func(s *v1beta1.ChaosAgentSpec) { s.Suspend = true })
			Eventually(func() string { return condition(ctx, v1beta1.ConditionReady) }).Should(Equal("False Suspended: suspended by spec.suspend"))
			Eventually(func() string { return condition(ctx, v1beta1.ConditionRestored) }).Should(Equal("True NothingToRestore: nothing waits to be put back"))
			Expect(replicas(ctx, namespace, "web")).To(Equal(int32(3)))
			Eventually(func() []string { return read(ctx, name).Finalizers }).Should(BeEmpty())
			Expect(read(ctx, name).Status.NextCycleTime).To(BeNil())

			settled := writes("")
			Expect(admin.Patch(ctx, read(ctx, name), client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"touched":"true"}}}`)))).To(Succeed())
			restartController(nil)
			Consistently(func() []string { return writes("") }, time.Second).Should(Equal(settled), "a settled agent is not written")

			update(ctx, func(s *v1beta1.ChaosAgentSpec) { s.Suspend = false })
			cycled(ctx, 2)
			Expect(replicas(ctx, namespace, "web")).To(Equal(int32(6)))
		})

		It("on expiry, for good", func(ctx SpecContext) {
			newDeployment(ctx, namespace, "web", 3)
			create(ctx, agent().Modes(false, true, false).With(func(s *v1beta1.ChaosAgentSpec) { s.ExpiresAfter = &metav1.Duration{Duration: 3 * time.Second} }))
			cycled(ctx, 1)
			created := read(ctx, name).CreationTimestamp
			Eventually(func() string { return condition(ctx, v1beta1.ConditionReady) }).Should(Equal("False Expired: expired at " +
				created.Add(3*time.Second).UTC().Format(time.RFC3339) + ", 3s after its creation; nothing starts it again but a later spec.expiresAfter"))
			Eventually(func() int32 { return replicas(ctx, namespace, "web") }).Should(Equal(int32(3)))
			Expect(read(ctx, name).Status.NextCycleTime).To(BeNil())
		})

		It("nothing if that is not wanted, and holds nothing either", func(ctx SpecContext) {
			newDeployment(ctx, namespace, "web", 3)
			create(ctx, agent().Modes(false, true, false).With(func(s *v1beta1.ChaosAgentSpec) { s.RestorePolicy = v1beta1.RestorePolicyNever }))
			cycled(ctx, 1)
			Expect(journal(ctx)).To(BeEmpty())
			Expect(read(ctx, name).Finalizers).To(BeEmpty())
			remove(ctx)
			Expect(replicas(ctx, namespace, "web")).To(Equal(int32(6)))
		})

		It("what an agent left behind whose finalizer was removed by hand", func(ctx SpecContext) {
			newDeployment(ctx, namespace, "web", 3)
			create(ctx, agent().Modes(false, true, false))
			cycled(ctx, 1)
			stopController()
			Expect(admin.Delete(ctx, testenv.MakeChaosAgent(name).Obj())).To(Succeed())
			Expect(admin.Patch(ctx, testenv.MakeChaosAgent(name).Obj(), client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))).To(Succeed())
			Expect(journal(ctx)).To(HaveLen(1))
			startController(nil)
			Eventually(func() []corev1.Secret { return journal(ctx) }).Should(BeEmpty())
			Expect(replicas(ctx, namespace, "web")).To(Equal(int32(3)))
		})

		It("as long as it is possible, and then lets the agent go without losing anything", func(ctx SpecContext) {
			newConfigMap(ctx, namespace, "settings", map[string]string{"a": "1"})
			create(ctx, agent().Modes(false, false, true))
			cycled(ctx, 1)
			Expect(admin.Patch(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "settings"}}, client.RawPatch(types.MergePatchType, []byte(`{"immutable":true}`)))).To(Succeed())
			Expect(admin.Delete(ctx, testenv.MakeChaosAgent(name).Obj())).To(Succeed())
			Eventually(func() string { return condition(ctx, v1beta1.ConditionRestored) }).Should(HavePrefix(
				"False RestoreFailing: changes of 1 object are in force, and are tried to be put back again: ConfigMap " + namespace + `/settings: ConfigMap "settings" is invalid: data: Forbidden: field is immutable when ` + "`immutable` is set"))
			// Time goes by.
			restartController(clocktesting.NewFakePassiveClock(time.Now().Add(11 * time.Minute)))
			DeferCleanup(func() { restartController(nil) })
			Eventually(func() bool {
				return apierrors.IsNotFound(admin.Get(ctx, client.ObjectKey{Name: name}, &v1beta1.ChaosAgent{}))
			}).Should(BeTrue())
			kept := journal(ctx)
			Expect(kept).To(HaveLen(1))
			Expect(kept[0].Labels[chaos.JournalLabel]).To(Equal(chaos.JournalAbandoned))
			Expect(kept[0].Data).To(Equal(map[string][]byte{"a": []byte("1")}))
			Eventually(func() []string { return told(ctx, "RestoreAbandoned", name) }).Should(Equal([]string{
				"ConfigMap " + namespace + "/settings could not be put back within 10m0s; what it was before is kept in Secret " + kept[0].Namespace + "/" + kept[0].Name,
			}))
			Expect(admin.Delete(ctx, &kept[0])).To(Succeed())
		})
	})

	It("leaves alone what another agent has changed", func(ctx SpecContext) {
		newDeployment(ctx, namespace, "web", 3)
		create(ctx, agent().Modes(false, true, false))
		cycled(ctx, 1)
		first := name
		name = first + "-second"
		create(ctx, agent().Modes(false, true, false))
		report := cycled(ctx, 1).Status.LastCycle.Deployments
		Expect(report.Excluded).To(ContainElement(v1beta1.ExclusionCount{Reason: chaos.ExcludedByAnotherAgent, Count: 1}))
		Expect(replicas(ctx, namespace, "web")).To(Equal(int32(6)))
		remove(ctx)
		Expect(replicas(ctx, namespace, "web")).To(Equal(int32(6)), "it is not the second agent's to put back")
		name = first
		remove(ctx)
		Expect(replicas(ctx, namespace, "web")).To(Equal(int32(3)))
	})

	It("touches nothing in a dry run, and tells what it would hit", func(ctx SpecContext) {
		newPods(ctx, namespace, 1)
		newDeployment(ctx, namespace, "web", 3)
		newConfigMap(ctx, namespace, "settings", map[string]string{"a": "1"})
		create(ctx, agent().Modes(true, true, true).With(func(s *v1beta1.ChaosAgentSpec) { s.DryRun, s.Seed = true, ptr.To(int64(5)) }))
		status := cycled(ctx, 1).Status
		Expect(status.LastCycle.Reason).To(Equal(v1beta1.CycleDryRun))
		Expect(status.LastCycle.Pods).To(And(HaveField("Victims", int32(1)), HaveField("Done", int32(0))))
		Expect(status.Totals).To(Equal(v1beta1.Totals{Cycles: 1}))
		Expect(condition(ctx, v1beta1.ConditionReady)).To(Equal("True DryRun: cycles are planned and reported, and touch nothing (spec.dryRun)"))
		Eventually(func() []string { return told(ctx, "DryRunCycle", name) }).Should(ConsistOf(And(HavePrefix("cycle 1 would hit: "), ContainSubstring("Pod "+namespace+"/pod-0"),
			ContainSubstring("Deployment "+namespace+"/web"), ContainSubstring("ConfigMap "+namespace+"/settings"), HaveSuffix(" (seed 5)"))))
		Expect(metric("blackadder_chaos_victims_total", namespace, "dry_run")).To(Equal(3.0))
		Expect(writes(namespace)).To(BeEmpty())
	})

	It("waits for its window", func(ctx SpecContext) {
		newPods(ctx, namespace, 1)
		// The day after tomorrow, whatever the zone.
		day := time.Now().UTC().Add(48 * time.Hour)
		create(ctx, agent().Modes(true, false, false).With(func(s *v1beta1.ChaosAgentSpec) {
			s.Schedule = &v1beta1.Schedule{Windows: []v1beta1.Window{{Days: []v1beta1.Weekday{v1beta1.Weekday(day.Format("Mon"))}, From: "10:00", To: "11:00"}}}
		}))
		opens := time.Date(day.Year(), day.Month(), day.Day(), 10, 0, 0, 0, time.UTC)
		Eventually(func() string { return condition(ctx, v1beta1.ConditionReady) }).Should(Equal("True OutsideWindow: the next window opens at " + opens.Format(time.RFC3339)))
		Expect(read(ctx, name).Status.NextCycleTime.Time).To(BeTemporally("==", opens))
		Expect(podNames(ctx, namespace)).To(HaveLen(1))
	})

	It("halts while too much is broken", func(ctx SpecContext) {
		newPods(ctx, namespace, 1)
		deployment := newDeployment(ctx, namespace, "web", 3)
		available := func(value corev1.ConditionStatus) {
			deployment.Status.Conditions = []appsv1.DeploymentCondition{{Type: appsv1.DeploymentAvailable, Status: value}}
			Expect(admin.Status().Update(ctx, deployment)).To(Succeed())
		}
		available(corev1.ConditionFalse)
		create(ctx, agent().Modes(true, false, false).Pause(1).With(func(s *v1beta1.ChaosAgentSpec) { s.HaltWhen = &v1beta1.HaltWhen{UnavailablePercent: 50} }))
		Eventually(func() string { return condition(ctx, v1beta1.ConditionReady) }).Should(Equal("False Halted: 1 of 1 targeted Deployments are not available, more than the 50 percent of spec.haltWhen"))
		Expect(podNames(ctx, namespace)).To(HaveLen(1))
		Eventually(func() []string { return told(ctx, "Halted", name) }).Should(HaveLen(1))
		available(corev1.ConditionTrue)
		Eventually(func() []string { return podNames(ctx, namespace) }).Should(BeEmpty())
		Eventually(func() string { return condition(ctx, v1beta1.ConditionReady) }).Should(HavePrefix("True Active: "))
	})

	It("measures how long a workload needs to be available again", func(ctx SpecContext) {
		web := newDeployment(ctx, namespace, "web", 1)
		report := func(available int32) {
			web.Status = appsv1.DeploymentStatus{ObservedGeneration: web.Generation, Replicas: 1, ReadyReplicas: available, AvailableReplicas: available}
			Expect(admin.Status().Update(ctx, web)).To(Succeed())
		}
		report(1)
		pod := testenv.MakePod(namespace, "web-abc-1").Label("pod-template-hash", "abc").Obj()
		pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-abc", UID: "1", Controller: ptr.To(true)}}
		Expect(admin.Create(ctx, pod)).To(Succeed())
		create(ctx, agent().Modes(true, false, false))
		cycled(ctx, 1)
		Eventually(func() *v1beta1.Recovery { return read(ctx, name).Status.Recovery }).Should(HaveValue(And(HaveField("Count", int64(0)), HaveField("Pending", int32(1)))))
		Expect(read(ctx, name).Status.Recovery.Unrecovered).To(ConsistOf(And(HaveField("Kind", "Deployment"), HaveField("Name", "web"), HaveField("Namespace", namespace))))
		report(0)
		// What is not over yet is known to the next process, too.
		restartController(nil)
		report(1)
		Eventually(func() *v1beta1.Recovery { return read(ctx, name).Status.Recovery }).Should(HaveValue(And(
			HaveField("Count", int64(1)), HaveField("Pending", int32(0)), HaveField("Samples", HaveLen(1)), HaveField("Unrecovered", BeEmpty()),
			HaveField("WorstWorkload", "Deployment "+namespace+"/web"), HaveField("Median", Not(BeNil())), HaveField("P95", Not(BeNil())))))
		Expect(metric("blackadder_chaos_recovery_seconds", "Deployment")).To(Equal(1.0))
	})

	It("neither skips nor doubles a cycle over a restart", func(ctx SpecContext) {
		newPods(ctx, namespace, 1)
		create(ctx, agent().Modes(true, false, false).Pause(5))
		first := cycled(ctx, 1).Status
		restartController(nil)
		newPods(ctx, namespace, 1)
		second := cycled(ctx, 2).Status
		Expect(second.LastCycle.StartTime.Time).To(And(BeTemporally(">=", first.NextCycleTime.Time), BeTemporally("<", first.NextCycleTime.Add(4*time.Second))))
	})

	It("stops in mid-cycle when its agent is suspended", func(ctx SpecContext) {
		newPods(ctx, namespace, 200)
		old()
		var deleted atomic.Int64
		proxy.SetHooks(testenv.Hooks{Before: func(r *http.Request) testenv.Decision {
			defer GinkgoRecover()
			if r.Method == http.MethodDelete && strings.Contains(r.URL.Path, "/pods/") && deleted.Add(1) == 1 {
				update(context.Background(), func(s *v1beta1.ChaosAgentSpec) { s.Suspend = true })
			}
			return testenv.Pass
		}})
		DeferCleanup(func() { proxy.SetHooks(testenv.Hooks{}) })
		create(ctx, agent().Modes(true, false, false))
		status := cycled(ctx, 1).Status
		Eventually(func() string { return condition(ctx, v1beta1.ConditionReady) }).Should(HavePrefix("False Suspended"))
		Expect(status.LastCycle.Pods.Done + status.LastCycle.Pods.Spared).To(Equal(int32(200)))
		if status.LastCycle.Pods.Spared > 0 {
			Expect(status.LastCycle.Reason).To(Equal(v1beta1.CycleStopped))
		}
		Expect(podNames(ctx, namespace)).To(HaveLen(int(status.LastCycle.Pods.Spared)))
	})

	Describe("killed after any of its writes", func() {
		const nPods, nDeployments, nConfigMaps = 3, 2, 2
		build := func(ctx context.Context) {
			namespace = newNamespace(ctx, nil)
			newPods(ctx, namespace, nPods)
			for i := range nDeployments {
				newDeployment(ctx, namespace, fmt.Sprintf("web-%d", i), 2)
			}
			for i := range nConfigMaps {
				newConfigMap(ctx, namespace, fmt.Sprintf("settings-%d", i), map[string]string{"a": "1", "b": "2"})
			}
		}
		// hits are how many of the objects a cycle has hit, none of them twice.
		hits := func(ctx context.Context) int {
			GinkgoHelper()
			var pods corev1.PodList
			Expect(admin.List(ctx, &pods, client.InNamespace(namespace))).To(Succeed())
			n := nPods
			for i := range pods.Items {
				// The API server marks a pod and then removes it, in two writes. A caller that is gone in between leaves it
				// marked, for the pod garbage collector, which does not run here.
				if pods.Items[i].DeletionTimestamp == nil {
					n--
				}
			}
			for i := range nDeployments {
				now := replicas(ctx, namespace, fmt.Sprintf("web-%d", i))
				Expect(now).To(Or(Equal(int32(2)), Equal(int32(4))))
				if now == 4 {
					n++
				}
			}
			for i := range nConfigMaps {
				if !slices.Equal([]string{data(ctx, namespace, fmt.Sprintf("settings-%d", i))["a"]}, []string{"1"}) {
					n++
				}
			}
			return n
		}
		pristine := func(ctx context.Context) {
			GinkgoHelper()
			for i := range nDeployments {
				Expect(replicas(ctx, namespace, fmt.Sprintf("web-%d", i))).To(Equal(int32(2)))
			}
			for i := range nConfigMaps {
				Expect(data(ctx, namespace, fmt.Sprintf("settings-%d", i))).To(Equal(map[string]string{"a": "1", "b": "2"}))
			}
			Expect(journal(ctx)).To(BeEmpty())
		}

		DescribeTable("of a cycle goes on with exactly its victims", func(ctx SpecContext, bound int32, victims int) {
			for n := int64(1); ; n++ {
				By(fmt.Sprintf("write %d", n))
				build(ctx)
				name = fmt.Sprintf("killed-%d-%d", bound, n)
				old()
				crash := crashAfter(n)
				builder := agent().Modes(true, true, true)
				if bound > 0 {
					builder.With(func(s *v1beta1.ChaosAgentSpec) { s.MaxVictimsPerCycle = ptr.To(bound) })
				}
				Expect(admin.Create(ctx, builder.Obj())).To(Succeed())
				Eventually(func() bool {
					status := read(ctx, name).Status
					return crash.dead.Load() || (status.LastCycle != nil && status.LastCycle.CompletionTime != nil)
				}).Should(BeTrue())
				finished := !crash.dead.Load()
				restartController(nil)
				status := cycled(ctx, 1).Status
				Expect(hits(ctx)).To(Equal(victims))
				Expect(status.Totals.Victims).To(Equal(int64(victims)), "%+v", status.LastCycle)
				remove(ctx)
				pristine(ctx)
				if finished {
					Expect(n).To(BeNumerically(">", victims), "the writes of a whole cycle have been gone through")
					return
				}
			}
		},
			Entry("all of them", int32(0), nPods+nDeployments+nConfigMaps),
			Entry("within its bound", int32(4), 4),
		)

		It("of a restore finishes it", func(ctx SpecContext) {
			for n := int64(1); ; n++ {
				By(fmt.Sprintf("write %d", n))
				build(ctx)
				name = fmt.Sprintf("restored-%d", n)
				old()
				Expect(admin.Create(ctx, agent().Modes(false, true, true).Obj())).To(Succeed())
				cycled(ctx, 1)
				Expect(hits(ctx)).To(Equal(nDeployments + nConfigMaps))
				crash := crashAfter(n)
				Expect(admin.Delete(ctx, testenv.MakeChaosAgent(name).Obj())).To(Succeed())
				Eventually(func() bool {
					return crash.dead.Load() || apierrors.IsNotFound(admin.Get(ctx, client.ObjectKey{Name: name}, &v1beta1.ChaosAgent{}))
				}).Should(BeTrue())
				finished := !crash.dead.Load()
				restartController(nil)
				remove(ctx)
				pristine(ctx)
				if finished {
					Expect(n).To(BeNumerically(">", 2*(nDeployments+nConfigMaps)), "the writes of a whole restore have been gone through")
					return
				}
			}
		})
	})
})
