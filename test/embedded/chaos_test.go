// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package embedded_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"blackadder.io/blackadder/api/blackadder/v1beta1"
	"blackadder.io/blackadder/internal/chaos"
	"blackadder.io/blackadder/internal/development"
	"blackadder.io/blackadder/internal/testenv"
)

// The size of the large runs.
const (
	targetNamespaces = 20
	perNamespace     = 10 // Deployments, and ConfigMaps.
	fewReplicas      = 4
	manyReplicas     = 16 // Half of the Deployments have the one, half the other: 2,000 pods.
	largeCycles      = 20
	kills            = 20
)

var _ = Describe("A large run of a ChaosAgent", Label("large"), Serial, Ordered, func() {
	var targets, bystanders []string
	group := fmt.Sprintf("run-%d", GinkgoRandomSeed())

	// fill makes a namespace's Deployments and ConfigMaps.
	fill := func(ctx context.Context, namespace string) {
		GinkgoHelper()
		for i := range perNamespace {
			replicas := int32(fewReplicas)
			if i%2 == 1 {
				replicas = manyReplicas
			}
			labels := map[string]string{"app": fmt.Sprintf("web-%d", i)}
			deployment := &appsv1.Deployment{
				ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("web-%d", i)},
				Spec: appsv1.DeploymentSpec{
					Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
					Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
						Containers: []corev1.Container{{Name: "c", Image: testenv.DefaultImage}}, TerminationGracePeriodSeconds: ptr.To(int64(0)),
					}},
				},
			}
			// A simulated kubelet for each pod would be the slowest part by far; those of one Deployment of ten are enough to see
			// workloads recover.
			if i != 0 {
				deployment.Spec.Template.Spec.SchedulerName = "nobody"
			}
			Expect(admin.Create(ctx, deployment)).To(Succeed())
			Expect(admin.Create(ctx, &corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("settings-%d", i)},
				Data:       map[string]string{"name": namespace, "number": strconv.Itoa(i), "text": strings.Repeat("line\n", i)},
			})).To(Succeed())
		}
	}
	// snapshot is what has to be as before in the end.
	snapshot := func(ctx context.Context) map[string]any {
		GinkgoHelper()
		taken := map[string]any{}
		for _, namespace := range append(targets, bystanders...) {
			var deployments appsv1.DeploymentList
			Expect(admin.List(ctx, &deployments, client.InNamespace(namespace))).To(Succeed())
			for i := range deployments.Items {
				taken["Deployment "+namespace+"/"+deployments.Items[i].Name] = deployments.Items[i].Spec
			}
			var configMaps corev1.ConfigMapList
			Expect(admin.List(ctx, &configMaps, client.InNamespace(namespace))).To(Succeed())
			for i := range configMaps.Items {
				taken["ConfigMap "+namespace+"/"+configMaps.Items[i].Name] = configMaps.Items[i].Data
			}
		}
		return taken
	}
	pods := func(ctx context.Context) int {
		var list metav1.PartialObjectMetadataList
		list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PodList"))
		n := 0
		for _, namespace := range targets {
			Expect(admin.List(ctx, &list, client.InNamespace(namespace))).To(Succeed())
			n += len(list.Items)
		}
		return n
	}

	BeforeAll(func(ctx SpecContext) {
		for range targetNamespaces {
			targets = append(targets, newNamespace(ctx, map[string]string{"chaos": group}))
		}
		bystanders = []string{newNamespace(ctx, nil), newNamespace(ctx, map[string]string{"chaos": group, "blackadder.io/chaos": "disabled"})}
		all := append(targets, bystanders...)
		workqueue.ParallelizeUntil(ctx, 8, len(all), func(i int) {
			defer GinkgoRecover()
			fill(ctx, all[i])
		})
		Eventually(func() int { return pods(ctx) }, 3*time.Minute, time.Second).Should(Equal(targetNamespaces * perNamespace * (fewReplicas + manyReplicas) / 2))
	})
	AfterAll(func(ctx SpecContext) {
		for _, namespace := range append(targets, bystanders...) {
			Expect(client.IgnoreNotFound(admin.Delete(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}))).To(Succeed())
		}
	})

	// run lets an agent run its cycles and returns them.
	run := func(ctx context.Context, name string, meanwhile func(ctx context.Context)) map[int64]v1beta1.Cycle {
		GinkgoHelper()
		agent := testenv.MakeChaosAgent(name).Modes(true, true, true).Eagerness(50).Pause(1).With(func(s *v1beta1.ChaosAgentSpec) {
			s.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"chaos": group}}
			s.MaxReplicas = ptr.To(int32(manyReplicas))
		}).Obj()
		Expect(env.Client(env.AliceConfig).Create(ctx, agent)).To(Succeed())
		working, done := context.WithCancel(ctx)
		var busy sync.WaitGroup
		busy.Go(func() {
			defer GinkgoRecover()
			meanwhile(working)
		})
		cycles := map[int64]v1beta1.Cycle{}
		Eventually(func() int {
			var now v1beta1.ChaosAgent
			Expect(admin.Get(ctx, client.ObjectKeyFromObject(agent), &now)).To(Succeed())
			if cycle := now.Status.LastCycle; cycle != nil && cycle.CompletionTime != nil {
				cycles[cycle.Number] = *cycle
			}
			return len(cycles)
		}, 10*time.Minute, 50*time.Millisecond).Should(BeNumerically(">=", largeCycles))
		done()
		busy.Wait()
		Eventually(it.ready).Should(BeTrue())
		Expect(env.Client(env.AliceConfig).Delete(ctx, agent)).To(Succeed())
		Eventually(func() bool {
			return apierrors.IsNotFound(admin.Get(ctx, client.ObjectKeyFromObject(agent), &v1beta1.ChaosAgent{}))
		}).Should(BeTrue())
		return cycles
	}
	check := func(cycles map[int64]v1beta1.Cycle) {
		GinkgoHelper()
		for number, cycle := range cycles {
			for _, mode := range chaos.Modes() {
				report := chaos.ReportOf(&cycle, mode)
				Expect(report.Done+report.Refused+report.Spared+report.Failed).To(Equal(report.Victims), "cycle %d, %s: %+v", number, mode, report)
				// Five standard deviations of a fair draw: less than one run in a million is outside.
				mean, deviation := float64(report.Candidates)/2, math.Sqrt(float64(report.Candidates))/2
				Expect(float64(report.Victims)).To(BeNumerically("~", mean, 5*deviation), "cycle %d, %s of %d candidates", number, mode, report.Candidates)
			}
		}
	}
	// strays are writes of the operator outside of the targets, but for its own agents, journal, events and leases.
	strays := func() []string {
		GinkgoHelper()
		events, err := env.Writes(development.ManagerUser, testenv.OnEvents, testenv.OnLeases)
		Expect(err).NotTo(HaveOccurred())
		allowed := map[string]bool{}
		for _, namespace := range targets {
			allowed[namespace] = true
		}
		var texts []string
		for _, event := range events {
			switch {
			case event.Resource == "chaosagents" || strings.HasPrefix(event.Resource, "immortal"):
			case event.Namespace == development.Namespace && event.Resource == "secrets":
			case strings.HasSuffix(event.Name, "-immortalpod"):
			case !allowed[event.Namespace]:
				texts = append(texts, event.String())
			}
		}
		return texts
	}
	journal := func(ctx context.Context) int {
		GinkgoHelper()
		var list corev1.SecretList
		Expect(admin.List(ctx, &list, client.InNamespace(development.Namespace), client.HasLabels{chaos.JournalLabel})).To(Succeed())
		return len(list.Items)
	}

	It("touches its targets alone, draws fairly, and leaves everything as it was", func(ctx SpecContext) {
		before := snapshot(ctx)
		cycles := run(ctx, "large", func(context.Context) {})
		check(cycles)
		Expect(snapshot(ctx)).To(Equal(before))
		Expect(journal(ctx)).To(BeZero())
		Expect(strays()).To(BeEmpty())
	})

	It("does so, too, when its operator is killed again and again", func(ctx SpecContext) {
		before := snapshot(ctx)
		cycles := run(ctx, "killed", func(ctx context.Context) {
			chance := rand.New(rand.NewPCG(uint64(GinkgoRandomSeed()), 0))
			for n := range kills {
				wait := time.NewTimer(time.Duration(500+chance.IntN(2500)) * time.Millisecond)
				select {
				case <-ctx.Done():
				case <-wait.C:
				}
				it.kill()
				it.begin()
				GinkgoWriter.Printf("killed %d times\n", n+1)
			}
		})
		check(cycles)
		Expect(snapshot(ctx)).To(Equal(before))
		Expect(journal(ctx)).To(BeZero())
		Expect(strays()).To(BeEmpty())
	})
})
