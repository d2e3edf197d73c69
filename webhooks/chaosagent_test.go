// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package webhooks_test

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"blackadder.io/blackadder/api/blackadder/v1alpha1"
	"blackadder.io/blackadder/api/blackadder/v1beta1"
	"blackadder.io/blackadder/internal/testenv"
)

const agentInvalid = `admission webhook "validate.chaosagent.blackadder.io" denied the request: ChaosAgent.blackadder.io "edmund" is invalid: `

// warner keeps the warnings of the API server.
type warner struct{ texts []string }

func (w *warner) HandleWarningHeader(_ int, _, text string) { w.texts = append(w.texts, text) }

func (w *warner) HandleWarningHeaderWithContext(_ context.Context, code int, agent, text string) {
	w.HandleWarningHeader(code, agent, text)
}

// asAlice is a client of alice whose warnings are kept.
func asAlice() (client.Client, *warner) {
	kept := &warner{}
	config := rest.CopyConfig(env.AliceConfig)
	config.WarningHandlerWithContext = kept
	return env.Client(config), kept
}

var _ = Describe("Admission of ChaosAgents", func() {
	// Each spec has a namespace of its own, and agents that reach no other: the rest of the cluster is the other specs'.
	var namespace string
	var agent *v1beta1.ChaosAgent
	BeforeEach(func(ctx SpecContext) {
		namespace = newNamespace(ctx, nil)
		agent = testenv.MakeChaosAgent("edmund").Modes(true, false, false).Only(namespace).Exclude("blackadder-system", "kube-system").Obj()
	})
	AfterEach(func(ctx SpecContext) {
		Expect(admin.DeleteAllOf(ctx, &v1beta1.ChaosAgent{})).To(Succeed())
		Eventually(func(g Gomega) {
			var list v1beta1.ChaosAgentList
			g.Expect(admin.List(ctx, &list)).To(Succeed())
			g.Expect(list.Items).To(BeEmpty())
		}).Should(Succeed())
	})
	pods := func(ctx context.Context, n int) {
		GinkgoHelper()
		for i := range n {
			Expect(alice.Create(ctx, testenv.MakePod(namespace, fmt.Sprintf("pod-%d", i)).Label("app", "web").Obj())).To(Succeed())
		}
	}

	Describe("defaults", func() {
		It("excludes the protected namespaces when exclusions are left out, and rewrites nothing", func(ctx SpecContext) {
			written := &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "blackadder.io/v1beta1", "kind": "ChaosAgent", "metadata": map[string]any{"name": "edmund"},
				"spec": map[string]any{"minimumAge": "90m", "tantrumMode": true},
			}}
			Expect(alice.Create(ctx, written)).To(Succeed())
			Expect(written.Object["spec"]).To(Equal(map[string]any{
				"minimumAge": "90m", "tantrumMode": true, "cancerMode": false, "ipsumMode": false, "podTolerance": int64(0), "eagerness": int64(20),
				"pauseDuration": int64(30), "excludedNamespaces": []any{"blackadder-system", "kube-system"},
			}))
		})

		It("needs no spec", func(ctx SpecContext) {
			bare := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "blackadder.io/v1beta1", "kind": "ChaosAgent", "metadata": map[string]any{"name": "edmund"}}}
			Expect(alice.Create(ctx, bare)).To(Succeed())
			excluded, _, _ := unstructured.NestedStringSlice(bare.Object, "spec", "excludedNamespaces")
			Expect(excluded).To(Equal([]string{"blackadder-system", "kube-system"}))
		})
	})

	Describe("refusals", func() {
		DescribeTable("name field, value and way out",
			func(ctx SpecContext, change func(*v1beta1.ChaosAgent), message string) {
				change(agent)
				err := alice.Create(ctx, agent)
				Expect(apierrors.IsInvalid(err)).To(BeTrue(), "%v", err)
				Expect(err.Error()).To(Equal(agentInvalid + message))
				Expect(apierrors.IsInvalid(alice.Create(ctx, agent, client.DryRunAll))).To(BeTrue(), "a dry run must give the same answer")
			},
			Entry("a protected namespace that is not excluded", func(a *v1beta1.ChaosAgent) {
				a.Spec.NamespaceSelector, a.Spec.ExcludedNamespaces = nil, []string{"kube-system", "shop"}
			}, `spec.excludedNamespaces: Invalid value: ["kube-system","shop"]: the agent would reach the protected namespace "blackadder-system": exclude it too, `+
				`with excludedNamespaces: ["blackadder-system","kube-system","shop"], or keep away by spec.namespaceSelector`),
			Entry("the empty list, which excludes nothing", func(a *v1beta1.ChaosAgent) {
				a.Spec.NamespaceSelector, a.Spec.ExcludedNamespaces = nil, []string{}
			}, `spec.excludedNamespaces: Invalid value: []: the agent would reach the protected namespaces "blackadder-system", "kube-system" (the empty list excludes nothing; `+
				`left out, it is the protected namespaces): exclude them too, with excludedNamespaces: ["blackadder-system","kube-system"], or keep away by spec.namespaceSelector`),
			Entry("a protected namespace that the selector matches", func(a *v1beta1.ChaosAgent) {
				a.Spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: "kube-system"}}
				a.Spec.ExcludedNamespaces = []string{}
			}, `spec.excludedNamespaces: Invalid value: []: the agent would reach the protected namespace "kube-system" (the empty list excludes nothing; `+
				`left out, it is the protected namespaces): exclude it too, with excludedNamespaces: ["kube-system"], or keep away by spec.namespaceSelector`),
			Entry("a time zone that is none", func(a *v1beta1.ChaosAgent) {
				a.Spec.Schedule = &v1beta1.Schedule{TimeZone: "Mars/Olympus", Windows: []v1beta1.Window{{From: "09:00", To: "17:00"}}}
			}, `spec.schedule.timeZone: Invalid value: "Mars/Olympus": must be the name of an IANA time zone, such as "Europe/Berlin"`),
			Entry("the zone of the operator's machine", func(a *v1beta1.ChaosAgent) {
				a.Spec.Schedule = &v1beta1.Schedule{TimeZone: "Local", Windows: []v1beta1.Window{{From: "09:00", To: "17:00"}}}
			}, `spec.schedule.timeZone: Invalid value: "Local": must be the name of an IANA time zone, such as "Europe/Berlin"`),
			Entry("a bad namespaceSelector", func(a *v1beta1.ChaosAgent) {
				a.Spec.NamespaceSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: "Near"}}}
			}, `spec.namespaceSelector.matchExpressions[0].operator: Invalid value: "Near": not a valid selector operator`),
			Entry("every fault at once", func(a *v1beta1.ChaosAgent) {
				a.Spec.NamespaceSelector, a.Spec.ExcludedNamespaces = nil, []string{"kube-system"}
				a.Spec.PodSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: "In"}}}
				a.Spec.Schedule = &v1beta1.Schedule{TimeZone: "Nowhere", Windows: []v1beta1.Window{{From: "09:00", To: "17:00"}}}
			}, `[spec.schedule.timeZone: Invalid value: "Nowhere": must be the name of an IANA time zone, such as "Europe/Berlin", `+
				"spec.podSelector.matchExpressions[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn', "+
				`spec.excludedNamespaces: Invalid value: ["kube-system"]: the agent would reach the protected namespace "blackadder-system": exclude it too, `+
				`with excludedNamespaces: ["blackadder-system","kube-system"], or keep away by spec.namespaceSelector]`),
		)

		DescribeTable("by the schema",
			func(ctx SpecContext, spec map[string]any, message string) {
				written := &unstructured.Unstructured{Object: map[string]any{
					"apiVersion": "blackadder.io/v1beta1", "kind": "ChaosAgent", "metadata": map[string]any{"name": "edmund"}, "spec": spec,
				}}
				err := alice.Create(ctx, written)
				Expect(apierrors.IsInvalid(err)).To(BeTrue(), "%v", err)
				// Where a value is not even one of the enumeration, the API server adds that it left the CEL rules out.
				Expect(strings.TrimPrefix(err.Error(), `ChaosAgent.blackadder.io "edmund" is invalid: `)).To(Or(Equal(message), Equal("["+message+
					`, <nil>: Invalid value: null: some validation rules were not checked because the object was invalid; correct the existing errors to complete validation]`)))
			},
			Entry("the seed's", map[string]any{"eagerness": int64(200)}, `spec.eagerness: Invalid value: 200: spec.eagerness in body should be less than or equal to 100`),
			Entry("no chance at all", map[string]any{"eagerness": int64(0)}, `spec.eagerness: Invalid value: 0: spec.eagerness in body should be greater than or equal to 1`),
			Entry("a negative tolerance", map[string]any{"podTolerance": int64(-1)}, `spec.podTolerance: Invalid value: -1: spec.podTolerance in body should be greater than or equal to 0`),
			Entry("no pause", map[string]any{"pauseDuration": int64(0)}, `spec.pauseDuration: Invalid value: 0: spec.pauseDuration in body should be greater than or equal to 1`),
			Entry("an exclusion twice", map[string]any{"excludedNamespaces": []any{"shop", "shop"}}, `spec.excludedNamespaces[1]: Duplicate value: "shop"`),
			Entry("an impossible exclusion", map[string]any{"excludedNamespaces": []any{"A_b"}}, `spec.excludedNamespaces[0]: Invalid value: "A_b": spec.excludedNamespaces[0] in body should match '^[a-z0-9]([-a-z0-9]*[a-z0-9])?$'`),
			Entry("too many replicas", map[string]any{"maxReplicas": int64(129)}, `spec.maxReplicas: Invalid value: 129: spec.maxReplicas in body should be less than or equal to 128`),
			Entry("expiring at once", map[string]any{"expiresAfter": "0s"}, `spec.expiresAfter: Invalid value: "0s": must be longer than 0s`),
			Entry("a window without length", map[string]any{"schedule": map[string]any{"windows": []any{map[string]any{"from": "10:00", "to": "10:00"}}}},
				`spec.schedule.windows[0]: Invalid value: from and to must differ; for a whole day write from "00:00" to "24:00"`),
			Entry("a schedule without windows", map[string]any{"schedule": map[string]any{"windows": []any{}}},
				`spec.schedule.windows: Invalid value: 0: spec.schedule.windows in body should have at least 1 items`),
			Entry("an unknown day", map[string]any{"schedule": map[string]any{"windows": []any{map[string]any{"days": []any{"Freitag"}, "from": "10:00", "to": "11:00"}}}},
				`spec.schedule.windows[0].days[0]: Unsupported value: "Freitag": supported values: "Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"`),
			Entry("a kill method that is none", map[string]any{"podKillMethod": "Burn"}, `spec.podKillMethod: Unsupported value: "Burn": supported values: "Delete", "Evict"`),
			Entry("more than all", map[string]any{"haltWhen": map[string]any{"unavailablePercent": int64(101)}},
				`spec.haltWhen.unavailablePercent: Invalid value: 101: spec.haltWhen.unavailablePercent in body should be less than or equal to 100`),
		)

		It("is decided by meaning: what the selector keeps out over the live labels need not be excluded", func(ctx SpecContext) {
			agent.Spec.ExcludedNamespaces = []string{}
			Expect(alice.Create(ctx, agent)).To(Succeed())
			Expect(agent.Spec.ExcludedNamespaces).To(BeEmpty(), "the empty list is what the user wrote")
			// A label that comes later is no reason to refuse the operator or a change of metadata, and keeps nobody from stopping it.
			Expect(alice.Patch(ctx, agent, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":{"a":"b"}}}`)))).To(Succeed())
		})
	})

	Describe("the caller's rights", func() {
		grant := func(ctx context.Context, user, in string, rules ...rbacv1.PolicyRule) client.Client {
			GinkgoHelper()
			create := rbacv1.PolicyRule{APIGroups: []string{"blackadder.io"}, Resources: []string{"chaosagents"}, Verbs: []string{"*"}}
			role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{GenerateName: "agents-"}, Rules: []rbacv1.PolicyRule{create}}
			Expect(admin.Create(ctx, role)).To(Succeed())
			Expect(admin.Create(ctx, &rbacv1.ClusterRoleBinding{
				ObjectMeta: metav1.ObjectMeta{GenerateName: "agents-"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
				Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}},
			})).To(Succeed())
			for _, rule := range rules {
				local := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: in, GenerateName: "chaos-"}, Rules: []rbacv1.PolicyRule{rule}}
				Expect(admin.Create(ctx, local)).To(Succeed())
				Expect(admin.Create(ctx, &rbacv1.RoleBinding{
					ObjectMeta: metav1.ObjectMeta{Namespace: in, GenerateName: "chaos-"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: local.Name},
					Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}},
				})).To(Succeed())
			}
			return env.Client(env.As(user))
		}
		deletePods := rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"delete"}}
		const denied = `admission webhook "validate.chaosagent.blackadder.io" denied the request: chaosagents.blackadder.io "edmund" is forbidden: user %q may not %s, ` +
			`and so not have a ChaosAgent do it: ask for these rights, or narrow spec.namespaceSelector to namespaces (by their label kubernetes.io/metadata.name) where they are given`
		// settles waits for the authorizer to have read the roles, and returns the answer that follows.
		settles := func(ctx context.Context, as client.Client, want string) {
			GinkgoHelper()
			Eventually(func() string {
				err := as.Create(ctx, agent.DeepCopy(), client.DryRunAll)
				if err == nil {
					return ""
				}
				return err.Error()
			}).Should(Equal(want))
		}

		It("are enough in every targeted namespace", func(ctx SpecContext) {
			settles(ctx, grant(ctx, "bob", namespace, deletePods), "")
		})

		It("are asked for each mode that is on", func(ctx SpecContext) {
			bob := grant(ctx, "bobby", namespace, deletePods)
			other := newNamespace(ctx, nil)
			agent = testenv.MakeChaosAgent("edmund").Modes(true, true, true).Only(namespace, other).Exclude("kube-system").Obj()
			settles(ctx, bob, fmt.Sprintf(denied, "bobby", fmt.Sprintf("delete pods in namespace %q; nor update deployments in namespaces %s; nor update configmaps in namespaces %[2]s",
				other, quotedAndSorted(namespace, other))))
		})

		It("have to cover the whole cluster for an agent that reaches namespaces to come", func(ctx SpecContext) {
			agent.Spec.NamespaceSelector = nil
			settles(ctx, grant(ctx, "bert", namespace, deletePods), fmt.Sprintf(denied, "bert", "delete pods in every namespace, which the agent could come to reach"))
			Expect(alice.Create(ctx, agent)).To(Succeed(), "alice may in every namespace")
		})

		It("are not asked of whoever stops an agent, and are of whoever starts it again", func(ctx SpecContext) {
			Expect(alice.Create(ctx, agent)).To(Succeed())
			carl := grant(ctx, "carl", namespace)
			Eventually(func() error {
				return carl.Patch(ctx, agent, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"suspend":true}}`)))
			}).Should(Succeed())
			err := carl.Patch(ctx, agent, client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"suspend":false}}`)))
			Expect(err).To(MatchError(fmt.Sprintf(denied, "carl", fmt.Sprintf("delete pods in namespace %q", namespace))))
		})
	})

	Describe("warnings", func() {
		warnings := func(ctx context.Context) []string {
			GinkgoHelper()
			as, kept := asAlice()
			Expect(as.Create(ctx, agent)).To(Succeed())
			return kept.texts
		}

		It("tell that no mode is on", func(ctx SpecContext) {
			agent.Spec.TantrumMode = false
			Expect(warnings(ctx)).To(Equal([]string{"no mode is on, so nothing will happen: set spec.tantrumMode, spec.cancerMode or spec.ipsumMode"}))
		})

		It("tell of an excluded namespace that does not exist, with the one that was probably meant", func(ctx SpecContext) {
			agent.Spec.ExcludedNamespaces = []string{"kube-sistem", "gluehwein"}
			Expect(warnings(ctx)).To(Equal([]string{
				`spec.excludedNamespaces[0]: namespace "kube-sistem" does not exist; did you mean "kube-system"?`,
				`spec.excludedNamespaces[1]: namespace "gluehwein" does not exist`,
				`matches 0 pods in 1 namespace; about 0 deleted each cycle`,
			}))
		})

		It("tell of another agent with the same targets", func(ctx SpecContext) {
			other := testenv.MakeChaosAgent("percy").Modes(false, false, true).Only(namespace).Obj()
			Expect(alice.Create(ctx, other)).To(Succeed())
			agent.Name = "edmund"
			as, kept := asAlice()
			Eventually(func() []string {
				kept.texts = nil
				Expect(as.Create(ctx, agent.DeepCopy(), client.DryRunAll)).To(Succeed())
				return kept.texts
			}).Should(ContainElement(fmt.Sprintf("ChaosAgent %q already targets namespace %q", "percy", namespace)))
		})

		It("preview with what is really there, candidates only", func(ctx SpecContext) {
			pods(ctx, 10)
			immortal := testenv.MakeImmortalContainer(namespace, "db").Image("nginx:1.29").Obj()
			Expect(alice.Create(ctx, immortal)).To(Succeed())
			Expect(operator.Create(ctx, testenv.MakePod(namespace, "db-immortalpod").Immortal(immortal).Obj())).To(Succeed())
			Expect(alice.Create(ctx, testenv.MakePod(namespace, "opted-out").Annotation("blackadder.io/chaos", "disabled").Obj())).To(Succeed())
			deployment := &appsv1.Deployment{
				ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "web"},
				Spec: appsv1.DeploymentSpec{
					Replicas: ptr.To(int32(3)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
					Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}},
				},
			}
			Expect(alice.Create(ctx, deployment)).To(Succeed())
			for _, configMap := range []*corev1.ConfigMap{
				{ObjectMeta: metav1.ObjectMeta{Name: "one"}, Data: map[string]string{"a": "b"}},
				{ObjectMeta: metav1.ObjectMeta{Name: "two"}, Data: map[string]string{"a": "b"}},
				{ObjectMeta: metav1.ObjectMeta{Name: "immutable"}, Data: map[string]string{"a": "b"}, Immutable: ptr.To(true)},
				{ObjectMeta: metav1.ObjectMeta{Name: "empty"}},
				{ObjectMeta: metav1.ObjectMeta{Name: "kube-root-ca.crt"}, Data: map[string]string{"a": "b"}},
			} {
				configMap.Namespace = namespace
				Expect(client.IgnoreAlreadyExists(alice.Create(ctx, configMap))).To(Succeed())
			}
			agent.Spec.CancerMode, agent.Spec.IpsumMode, agent.Spec.Eagerness = true, true, 50
			as, kept := asAlice()
			Eventually(func() []string {
				kept.texts = nil
				Expect(as.Create(ctx, agent.DeepCopy(), client.DryRunAll)).To(Succeed())
				return kept.texts
			}).Should(Equal([]string{
				"matches 10 pods in 1 namespace; about 5 deleted each cycle",
				"matches 1 Deployment in 1 namespace; about 1 scaled up each cycle",
				"matches 2 ConfigMaps in 1 namespace; about 1 overwritten each cycle",
			}))
			agent.Spec.PodTolerance, agent.Spec.CancerMode, agent.Spec.IpsumMode = 11, false, false
			Expect(warnings(ctx)).To(Equal([]string{"matches 10 pods in 1 namespace; none deleted while there are fewer than spec.podTolerance (11)"}))
		})

		It("tell that podSelector does not narrow ConfigMaps", func(ctx SpecContext) {
			agent.Spec.TantrumMode, agent.Spec.IpsumMode = false, true
			agent.Spec.PodSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
			Expect(warnings(ctx)).To(ContainElement("spec.podSelector does not narrow ConfigMaps, which have no pods: use spec.namespaceSelector for them"))
		})
	})

	Describe("both versions", func() {
		sample := func(name string) string { return filepath.Join(env.Root, "config", "samples", name) }
		kubectl := func(args ...string) string {
			GinkgoHelper()
			stdout, stderr, err := env.KubectlAs(testenv.Alice, []string{testenv.Testers}, args...)
			Expect(err).NotTo(HaveOccurred(), "%s", stderr)
			return stdout
		}
		columns := func(resource string) []string {
			GinkgoHelper()
			var lines []string
			for line := range strings.Lines(kubectl("get", resource)) {
				lines = append(lines, strings.Join(strings.Fields(line), " "))
			}
			return lines
		}

		It("take the seed's manifests and show its columns", func(ctx SpecContext) {
			Expect(kubectl("apply", "-f", sample("blackadder_v1alpha1_chaosagent.yaml"))).To(Equal("chaosagent.blackadder.io/princeedmund created\n"))
			Expect(columns("chaosagents.v1alpha1.blackadder.io")).To(Equal([]string{"NAME TANTRUM TOLERANCE", "princeedmund true 10"}))
			Expect(columns("ca")).To(Equal([]string{
				"NAME TANTRUM TOLERANCE CANCER IPSUM EAGERNESS PAUSE EXCLUDED",
				`princeedmund true 10 ` + strings.Repeat("false ", 2) + `20 30 ["blackadder-system","kube-system"]`,
			}))
			Expect(kubectl("patch", "chaosagents.blackadder.io", "princeedmund", "--type", "merge",
				`--patch={"spec": {"excludedNamespaces": ["kube-system", "blackadder-system", "chaos-operator"]}}`)).To(Equal("chaosagent.blackadder.io/princeedmund patched\n"))
		})

		It("lose nothing to a client that reads one and writes it back", func(ctx SpecContext) {
			manifest := sample("blackadder_v1alpha1_chaosagent.yaml")
			kubectl("apply", "-f", manifest)
			kubectl("patch", "chaosagents.v1beta1.blackadder.io", "princeedmund", "--type", "merge",
				`--patch={"spec": {"eagerness": 55, "seed": 6501328488902918059, "excludedNamespaces": ["shop", "blackadder-system", "kube-system"], "schedule": {"timeZone": "Europe/Berlin", "windows": [{"days": ["Mon"], "from": "09:00", "to": "17:00"}]}}}`)
			var status v1beta1.ChaosAgent
			Expect(admin.Get(ctx, client.ObjectKey{Name: "princeedmund"}, &status)).To(Succeed())
			status.Status.LastCycle = &v1beta1.Cycle{Number: 7, Seed: 6501328488902918061, StartTime: metav1.NewMicroTime(now)}
			status.Status.Totals.Cycles, status.Status.NextCycleTime = 7, ptr.To(metav1.NewMicroTime(now.Add(time.Hour)))
			Expect(admin.Status().Update(ctx, &status)).To(Succeed())
			var before v1beta1.ChaosAgent
			Expect(admin.Get(ctx, client.ObjectKey{Name: "princeedmund"}, &before)).To(Succeed())
			Expect(before.Annotations).NotTo(HaveKey(v1alpha1.HubAnnotation), "it never stands on a stored object")

			By("a client that reads, changes and writes")
			var old v1alpha1.ChaosAgent
			Expect(alice.Get(ctx, client.ObjectKey{Name: "princeedmund"}, &old)).To(Succeed())
			old.Spec.PodTolerance = 11
			Expect(alice.Update(ctx, &old)).To(Succeed())
			expectUnchanged(ctx, before, 11)

			By("one that drops every annotation")
			Expect(alice.Get(ctx, client.ObjectKey{Name: "princeedmund"}, &old)).To(Succeed())
			old.Annotations, old.Spec.PodTolerance = nil, 12
			Expect(alice.Update(ctx, &old)).To(Succeed())
			expectUnchanged(ctx, before, 12)

			By("kubectl apply, client-side and twice server-side")
			kubectl("apply", "-f", manifest)
			expectUnchanged(ctx, before, 10)
			for range 2 {
				kubectl("apply", "--server-side", "--force-conflicts", "--field-manager=gitops", "-f", manifest)
				expectUnchanged(ctx, before, 10)
			}

			By("kubectl replace, which knows nothing of what there was")
			kubectl("replace", "-f", manifest)
			expectUnchanged(ctx, before, 10)
		})

		It("bound what is smuggled in by the annotation of a conversion", func(ctx SpecContext) {
			smuggler := &v1alpha1.ChaosAgent{ObjectMeta: metav1.ObjectMeta{Name: "edmund", Annotations: map[string]string{
				v1alpha1.HubAnnotation: `{"spec":{"eagerness":5000,"podKillMethod":"Burn","excludedNamespaces":[]}}`,
			}}, Spec: v1alpha1.ChaosAgentSpec{TantrumMode: true}}
			Expect(alice.Create(ctx, smuggler)).To(MatchError(agentInvalid + `[spec.eagerness: Invalid value: 5000: must be at most 100, ` +
				`spec.podKillMethod: Unsupported value: "Burn": supported values: "Delete", "Evict", ` +
				`spec.excludedNamespaces: Invalid value: []: the agent would reach the protected namespaces "blackadder-system", "kube-system" (the empty list excludes nothing; ` +
				`left out, it is the protected namespaces): exclude them too, with excludedNamespaces: ["blackadder-system","kube-system"], or keep away by spec.namespaceSelector]`))
			smuggler.Annotations[v1alpha1.HubAnnotation] = "junk"
			Expect(alice.Create(ctx, smuggler)).To(MatchError(agentInvalid + `metadata.annotations[blackadder.io/v1beta1]: Invalid value: "junk": ` +
				`is not what the conversion between versions wrote (invalid character 'j' looking for beginning of value): remove it`))
		})
	})

	It("stands in nobody's way once an agent is being deleted", func(ctx SpecContext) {
		agent.Finalizers = []string{"example.com/wait"}
		Expect(alice.Create(ctx, agent)).To(Succeed())
		Expect(alice.Delete(ctx, agent)).To(Succeed())
		stopWebhooks()
		DeferCleanup(startWebhooks)
		Expect(alice.Patch(ctx, agent, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`)))).To(Succeed())
	})

	It("lets the operator write its agents while the webhooks are down", func(ctx SpecContext) {
		Expect(alice.Create(ctx, agent)).To(Succeed())
		stopWebhooks()
		DeferCleanup(startWebhooks)
		finalizer := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":["blackadder.io/restore"]}}`))
		Expect(env.Client(env.ManagerConfig).Patch(ctx, agent.DeepCopy(), finalizer)).To(Succeed())
		err := alice.Patch(ctx, agent.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"eagerness":100}}`)))
		Expect(apierrors.IsInternalError(err)).To(BeTrue(), "%v", err)
		Expect(admin.Patch(ctx, agent.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`)))).NotTo(Succeed())
		Expect(env.Client(env.ManagerConfig).Patch(ctx, agent.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`)))).To(Succeed())
	})
})

func expectUnchanged(ctx context.Context, before v1beta1.ChaosAgent, tolerance int32) {
	GinkgoHelper()
	var after v1beta1.ChaosAgent
	Expect(admin.Get(ctx, client.ObjectKey{Name: before.Name}, &after)).To(Succeed())
	before.Spec.PodTolerance = tolerance
	Expect(after.Spec).To(Equal(before.Spec))
	Expect(after.Status).To(Equal(before.Status))
	Expect(after.Annotations).NotTo(HaveKey(v1alpha1.HubAnnotation))
}

func quotedAndSorted(names ...string) string {
	slices.Sort(names)
	texts := make([]string, 0, len(names))
	for _, name := range names {
		texts = append(texts, fmt.Sprintf("%q", name))
	}
	return strings.Join(texts, ", ")
}
