// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package webhooks_test

import (
	"context"
	"errors"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"blackadder.io/blackadder/api/immortalcontainer/v1alpha1"
	"blackadder.io/blackadder/internal/testenv"
)

const (
	validateWebhook = `admission webhook "validate.immortalcontainer.flugel.it" denied the request: `
	invalidPrefix   = validateWebhook + `ImmortalContainer.immortalcontainer.flugel.it "db" is invalid: `
)

var _ = Describe("Admission of ImmortalContainers", func() {
	var namespace string
	BeforeEach(func(ctx SpecContext) { namespace = newNamespace(ctx, nil) })

	It("fills in the operator's default image, and nothing else", func(ctx SpecContext) {
		container := testenv.MakeImmortalContainer(namespace, "db").Image("").Obj()
		Expect(alice.Create(ctx, container)).To(Succeed())
		Expect(container.Spec).To(Equal(v1alpha1.ImmortalContainerSpec{Image: defaultImage}))

		// As the user spelt them: another spelling would be fought over by whoever applies the manifest again and again.
		spelt := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "immortalcontainer.flugel.it/v1alpha1", "kind": "ImmortalContainer", "metadata": map[string]any{"namespace": namespace, "name": "spelt"},
			"spec": map[string]any{"resources": map[string]any{"requests": map[string]any{"cpu": "1000m", "memory": "1024Mi"}}},
		}}
		Expect(alice.Create(ctx, spelt)).To(Succeed())
		Expect(spelt.Object["spec"]).To(Equal(map[string]any{
			"image": defaultImage, "resources": map[string]any{"requests": map[string]any{"cpu": "1000m", "memory": "1024Mi"}},
		}))
		bare := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "immortalcontainer.flugel.it/v1alpha1", "kind": "ImmortalContainer", "metadata": map[string]any{"namespace": namespace, "name": "bare"},
		}}
		Expect(alice.Create(ctx, bare)).To(Succeed())
		Expect(bare.Object["spec"]).To(Equal(map[string]any{"image": defaultImage}))

		given := testenv.MakeImmortalContainer(namespace, "given").Image("nginx").Obj()
		Expect(alice.Create(ctx, given)).To(Succeed())
		Expect(given.Spec.Image).To(Equal("nginx"), "what the user wrote is never rewritten")
	})

	DescribeTable("refuses as Invalid, with field, value and way out",
		func(ctx SpecContext, change func(*v1alpha1.ImmortalContainer), message string) {
			container := testenv.MakeImmortalContainer(namespace, "db").Image("nginx:1.29").Obj()
			change(container)
			err := alice.Create(ctx, container)
			Expect(apierrors.IsInvalid(err)).To(BeTrue(), "%v", err)
			Expect(err.Error()).To(Equal(message))
			Expect(apierrors.IsInvalid(alice.Create(ctx, container, client.DryRunAll))).To(BeTrue(), "a dry run must give the same answer")
		},
		Entry("an image that is no reference", func(c *v1alpha1.ImmortalContainer) { c.Spec.Image = "Not A Reference" },
			invalidPrefix+`spec.image: Invalid value: "Not A Reference": must be an image reference such as "nginx:1.29" or "registry.example.com/team/app@sha256:…": `+
				`invalid reference format: repository name (library/Not A Reference) must be lowercase`),
		Entry("a port that cannot be", func(c *v1alpha1.ImmortalContainer) {
			c.Spec.Ports = []corev1.ContainerPort{{ContainerPort: 70000, Protocol: "TCP"}}
		}, invalidPrefix+`spec.ports[0].containerPort: Invalid value: 70000: must be between 1 and 65535, inclusive`),
		Entry("a mount without its volume", func(c *v1alpha1.ImmortalContainer) {
			c.Spec.VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
		}, invalidPrefix+`spec.volumeMounts[0].name: Not found: "data"`),
		Entry("more requested than the limit", func(c *v1alpha1.ImmortalContainer) {
			c.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")}
			c.Spec.Resources.Limits = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
		}, invalidPrefix+`spec.resources.requests: Invalid value: "2": must be less than or equal to cpu limit of 1`),
		Entry("every fault at once", func(c *v1alpha1.ImmortalContainer) {
			c.Spec.Image = "Not A Reference"
			c.Spec.Ports = []corev1.ContainerPort{{ContainerPort: 70000, Protocol: "TCP"}}
			c.Spec.VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
			c.Annotations = map[string]string{v1alpha1.UnprotectedUntilAnnotation: "tomorrow"}
		}, invalidPrefix+`[metadata.annotations[immortalcontainer.flugel.it/unprotected-until]: Invalid value: "tomorrow": must be a time in RFC 3339, such as "`+
			now.Add(10*time.Minute).Format(time.RFC3339)+`", spec.image: Invalid value: "Not A Reference": must be an image reference such as "nginx:1.29" or "registry.example.com/team/app@sha256:…": `+
			`invalid reference format: repository name (library/Not A Reference) must be lowercase, `+
			`spec.ports[0].containerPort: Invalid value: 70000: must be between 1 and 65535, inclusive, spec.volumeMounts[0].name: Not found: "data"]`),
		Entry("the glass broken for too long", func(c *v1alpha1.ImmortalContainer) {
			c.Annotations = map[string]string{v1alpha1.UnprotectedUntilAnnotation: now.Add(61 * time.Minute).Format(time.RFC3339)}
		}, invalidPrefix+`metadata.annotations[immortalcontainer.flugel.it/unprotected-until]: Invalid value: "`+now.Add(61*time.Minute).Format(time.RFC3339)+
			`": must lie at most 1 hour ahead (it is `+now.Format(time.RFC3339)+` now), such as "`+now.Add(10*time.Minute).Format(time.RFC3339)+`"`),
		Entry("a finalizer that orphans the pod", func(c *v1alpha1.ImmortalContainer) { c.Finalizers = []string{"orphan"} },
			invalidPrefix+`metadata.finalizers[0]: Forbidden: "orphan" would leave the pod behind without an owner: an ImmortalContainer ends together with its pod`),
	)

	DescribeTable("refuses by the schema",
		func(ctx SpecContext, change func(*v1alpha1.ImmortalContainer), message string) {
			container := testenv.MakeImmortalContainer(namespace, "db").Image("nginx:1.29").Obj()
			change(container)
			err := alice.Create(ctx, container)
			Expect(apierrors.IsInvalid(err)).To(BeTrue(), "%v", err)
			Expect(err.Error()).To(Equal(`ImmortalContainer.immortalcontainer.flugel.it "` + container.Name + `" is invalid: ` + message))
		},
		Entry("a name longer than the pod's label takes", func(c *v1alpha1.ImmortalContainer) { c.Name = strings.Repeat("a", 64) },
			`<nil>: Invalid value: metadata.name must have at most 63 characters: it becomes the value of the pod's label "controller"`),
		Entry("a label of the controller's own", func(c *v1alpha1.ImmortalContainer) { c.Spec.PodLabels = map[string]string{"controller": "x"} },
			`spec.podLabels: Invalid value: podLabels may not set "controller" or a label of immortalcontainer.flugel.it/: the controller sets them, and the pod's protection rests on them`),
		Entry("an annotation of the controller's own", func(c *v1alpha1.ImmortalContainer) {
			c.Spec.PodAnnotations = map[string]string{v1alpha1.StartAnnotation: "7"}
		}, `spec.podAnnotations: Invalid value: podAnnotations may not set an annotation of immortalcontainer.flugel.it/: the controller sets them`),
		Entry("a pull policy that does not exist", func(c *v1alpha1.ImmortalContainer) { c.Spec.ImagePullPolicy = "Sometimes" },
			`[spec.imagePullPolicy: Unsupported value: "Sometimes": supported values: "Always", "IfNotPresent", "Never", <nil>: Invalid value: null: some validation rules were not checked because the object was invalid; correct the existing errors to complete validation]`),
		Entry("a negative grace period", func(c *v1alpha1.ImmortalContainer) {
			seconds := int64(-1)
			c.Spec.TerminationGracePeriodSeconds = &seconds
		}, `spec.terminationGracePeriodSeconds: Invalid value: -1: spec.terminationGracePeriodSeconds in body should be greater than or equal to 0`),
	)

	It("takes the longest name that a pod's label takes", func(ctx SpecContext) {
		container, pod := newImmortal(ctx, namespace, strings.Repeat("a", 63), "")
		Expect(pod.Labels).To(HaveKeyWithValue("controller", container.Name))
	})

	It("refuses a name whose pod's name somebody else's pod holds", func(ctx SpecContext) {
		Expect(alice.Create(ctx, testenv.MakePod(namespace, "db-immortalpod").Image("nginx:1.29").Obj())).To(Succeed())
		err := alice.Create(ctx, testenv.MakeImmortalContainer(namespace, "db").Image("nginx:1.29").Obj())
		Expect(apierrors.IsInvalid(err)).To(BeTrue(), "%v", err)
		Expect(err.Error()).To(Equal(invalidPrefix + `metadata.name: Invalid value: "db": a pod named "db-immortalpod" that does not belong to this ImmortalContainer (it has no controller) ` +
			`holds its pod's name: remove or rename that pod, or use another name here`))
	})

	It("names faults of a change too, and lets an unrelated change pass", func(ctx SpecContext) {
		container, _ := newImmortal(ctx, namespace, "db", "")
		container.Spec.Image = "Not A Reference"
		Expect(apierrors.IsInvalid(alice.Update(ctx, container))).To(BeTrue())
		Expect(admin.Get(ctx, client.ObjectKeyFromObject(container), container)).To(Succeed())
		container.Labels = map[string]string{"a": "b"}
		Expect(alice.Update(ctx, container)).To(Succeed())
	})

	Describe("of a caller who may not create pods", func() {
		var bob *rest.Config
		BeforeEach(func(ctx SpecContext) {
			bob = env.As("bob", "developers")
			grant(ctx, namespace, "bob", rbacv1.PolicyRule{APIGroups: []string{"immortalcontainer.flugel.it"}, Resources: []string{"immortalcontainers"}, Verbs: []string{"*"}})
		})
		It("refuses a new one, and says what to ask for", func(ctx SpecContext) {
			want := validateWebhook + `immortalcontainers.immortalcontainer.flugel.it "db" is forbidden: user "bob" may not create pods in namespace "` + namespace +
				`", and so not have an ImmortalContainer create one: ask for a Role that allows the verb create on pods there`
			var err error
			// The authorizer learns of the grant a moment later; until then, bob may not create ImmortalContainers either.
			Eventually(func() string {
				err = env.Client(bob).Create(ctx, testenv.MakeImmortalContainer(namespace, "db").Image("nginx:1.29").Obj())
				return err.Error()
			}).Should(Equal(want))
			Expect(apierrors.IsForbidden(err)).To(BeTrue())
		})
		It("refuses another pod, but not a label", func(ctx SpecContext) {
			container, _ := newImmortal(ctx, namespace, "db", "")
			labelled := container.DeepCopy()
			labelled.Labels = map[string]string{"a": "b"}
			Eventually(func() error { return env.Client(bob).Patch(ctx, labelled.DeepCopy(), client.MergeFrom(container)) }).Should(Succeed())
			other := container.DeepCopy()
			other.Spec.Args = []string{"evil"}
			Expect(apierrors.IsForbidden(env.Client(bob).Patch(ctx, other, client.MergeFrom(container)))).To(BeTrue())
		})
	})

	Describe("warns, as kubectl prints it,", func() {
		apply := func(manifest string, flags ...string) (string, string) {
			GinkgoHelper()
			command := env.KubectlCommand(context.Background(), append([]string{"apply", "-n", namespace, "-f", "-"}, flags...)...)
			command.Stdin = strings.NewReader(manifest)
			var stderr strings.Builder
			command.Stderr = &stderr
			stdout, err := command.Output()
			Expect(err).NotTo(HaveOccurred(), "%s", stderr.String())
			return string(stdout), stderr.String()
		}
		const seed = "apiVersion: immortalcontainer.flugel.it/v1alpha1\nkind: ImmortalContainer\nmetadata:\n name: example-immortal-container\nspec:\n image: nginx:latest\n"

		It("of an image tag that may move", func() {
			stdout, stderr := apply(seed)
			Expect(stdout).To(Equal("immortalcontainer.immortalcontainer.flugel.it/example-immortal-container created\n"))
			Expect(stderr).To(Equal("Warning: spec.image: \"nginx:latest\" has the tag \"latest\", so that the pod that comes back may run another image: name a version, or better a digest\n"))
		})
		It("of a pod that Pod Security would refuse now", func(ctx SpecContext) {
			restricted := &corev1.Namespace{}
			Expect(admin.Get(ctx, client.ObjectKey{Name: namespace}, restricted)).To(Succeed())
			restricted.Labels["pod-security.kubernetes.io/enforce"] = "restricted"
			Expect(admin.Update(ctx, restricted)).To(Succeed())
			_, stderr := apply(strings.Replace(seed, "latest", "1.29", 1))
			Expect(stderr).To(HavePrefix(`Warning: its pod would be refused now, and is tried again until it is not: pods "example-immortal-container-immortalpod" is forbidden: violates PodSecurity "restricted:latest": `))
		})
		It("of a quota that has no room now", func(ctx SpecContext) {
			Expect(admin.Create(ctx, &corev1.ResourceQuota{
				ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "none"},
				Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("0")}},
			})).To(Succeed())
			quota := &corev1.ResourceQuota{}
			Expect(admin.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "none"}, quota)).To(Succeed())
			// What the quota controller would write.
			quota.Status.Hard = quota.Spec.Hard
			quota.Status.Used = corev1.ResourceList{corev1.ResourcePods: resource.MustParse("0")}
			Expect(admin.Status().Update(ctx, quota)).To(Succeed())
			Eventually(func() string {
				_, stderr := apply(strings.Replace(seed, "latest", "1.29", 1), "--dry-run=server")
				return stderr
			}).Should(Equal("Warning: its pod would be refused now, and is tried again until it is not: pods \"example-immortal-container-immortalpod\" is forbidden: exceeded quota: none, requested: pods=1, used: pods=0, limited: pods=0\n"))
		})
		It("of a glass that was broken in the past", func() {
			_, stderr := apply(strings.Replace(strings.Replace(seed, "latest", "1.29", 1), "metadata:\n", "metadata:\n annotations: {immortalcontainer.flugel.it/unprotected-until: \"2020-01-01T00:00:00Z\"}\n", 1))
			Expect(stderr).To(Equal("Warning: metadata.annotations[immortalcontainer.flugel.it/unprotected-until]: 2020-01-01T00:00:00Z has passed (it is " +
				now.Format(time.RFC3339) + " now): the pod stays protected\n"))
		})
		It("in a dry run that leaves no trace", func(ctx SpecContext) {
			stdout, stderr := apply(seed, "--dry-run=server")
			Expect(stdout).To(Equal("immortalcontainer.immortalcontainer.flugel.it/example-immortal-container created (server dry run)\n"))
			Expect(stderr).To(ContainSubstring("may run another image"))
			var containers v1alpha1.ImmortalContainerList
			Expect(admin.List(ctx, &containers, client.InNamespace(namespace))).To(Succeed())
			Expect(containers.Items).To(BeEmpty())
			var pods corev1.PodList
			Expect(admin.List(ctx, &pods, client.InNamespace(namespace))).To(Succeed())
			Expect(pods.Items).To(BeEmpty())
		})
	})

	It("explains each field", func() {
		stdout, _, err := env.Kubectl("explain", "immortalcontainer.spec", "--recursive=false")
		Expect(err).NotTo(HaveOccurred())
		Expect(stdout).To(ContainSubstring("Image that the container runs"))
		Expect(stdout).NotTo(ContainSubstring("<no description>"))
	})

	It("refuses a body that is no ImmortalContainer, and not with a 500", func(ctx SpecContext) {
		err := admin.Create(ctx, testenv.MakeImmortalContainer(namespace, "Upper").Image("a:1").Obj())
		var status apierrors.APIStatus
		Expect(errors.As(err, &status)).To(BeTrue())
		Expect(status.Status().Code).To(BeEquivalentTo(422))
	})
})

// grant gives a user a right in a namespace.
func grant(ctx context.Context, namespace, user string, rule rbacv1.PolicyRule) {
	GinkgoHelper()
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: user}, Rules: []rbacv1.PolicyRule{rule}}
	Expect(admin.Create(ctx, role)).To(Succeed())
	Expect(admin.Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: user},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: user},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	})).To(Succeed())
}
