// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package testenv_test

import (
	"context"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"blackadder.io/blackadder/internal/development"
	"blackadder.io/blackadder/internal/testenv"
)

const patience = 30 * time.Second

func TestControlPlane(t *testing.T) {
	env := testenv.Start(t, testenv.Options{WithoutWebhooks: true})
	testCommon(t, env)

	t.Run("Delete says which finalizers hold a definition, and takes everything away when they are gone", func(t *testing.T) {
		g := NewWithT(t)
		ctx := t.Context()
		admin := env.Client(env.AdminConfig)
		held := testenv.MakeImmortalContainer("default", "held").Finalizer("example.com/hold").Obj()
		g.Expect(admin.Create(ctx, held)).To(Succeed())

		err := development.Delete(ctx, env.AdminConfig, env.Objects, time.Second)
		g.Expect(err).To(MatchError("CustomResourceDefinition immortalcontainers.immortalcontainer.flugel.it was not gone after 1s; " +
			"these hold it: default/held (finalizers example.com/hold). " +
			"Start the manager so that it finishes them, or remove the finalizers by hand"))

		g.Expect(admin.Get(ctx, client.ObjectKeyFromObject(held), held)).To(Succeed())
		held.Finalizers = nil
		g.Expect(admin.Update(ctx, held)).To(Succeed())
		g.Expect(development.Delete(ctx, env.AdminConfig, env.Objects, patience)).To(Succeed())
		g.Expect(development.Delete(ctx, env.AdminConfig, env.Objects, patience)).To(Succeed(), "what is not there is passed over")
		_, _, err = env.Kubectl("get", "clusterrolebinding", "blackadder-manager")
		g.Expect(err).To(MatchError(ContainSubstring(`clusterrolebindings.rbac.authorization.k8s.io "blackadder-manager" not found`)))
	})
}

func TestWebhooksAreCalledWhereTheyAreExpected(t *testing.T) {
	env := testenv.Start(t, testenv.Options{})
	g := NewWithT(t)
	var called sync.Map
	server := webhook.NewServer(env.Webhook.Options())
	for _, path := range webhookPaths(g, env.Objects) {
		server.Register(path, &webhook.Admission{Handler: admission.HandlerFunc(func(context.Context, admission.Request) admission.Response {
			called.Store(path, true)
			return admission.Denied("this is the server at " + path)
		})})
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- server.Start(ctx) }()
	defer func() {
		stop()
		g.Eventually(served).WithTimeout(patience).Should(Receive(Succeed()))
	}()
	g.Eventually(func() error { return server.StartedChecker()(nil) }).WithTimeout(patience).Should(Succeed())

	err := env.Client(env.AliceConfig).Create(ctx, testenv.MakeImmortalContainer("default", "refused").Obj())
	g.Expect(err).To(MatchError(MatchRegexp(`^admission webhook ".*" denied the request: this is the server at /`)))
	count := 0
	called.Range(func(any, any) bool { count++; return true })
	g.Expect(count).To(Equal(1))
}

func webhookPaths(g Gomega, objects []*unstructured.Unstructured) []string {
	var paths []string
	for _, object := range objects {
		if !development.IsWebhookConfiguration(object) {
			continue
		}
		webhooks, _, err := unstructured.NestedSlice(object.Object, "webhooks")
		g.Expect(err).NotTo(HaveOccurred())
		for _, entry := range webhooks {
			text, _, err := unstructured.NestedString(entry.(map[string]any), "clientConfig", "url")
			g.Expect(err).NotTo(HaveOccurred())
			parsed, err := url.Parse(text)
			g.Expect(err).NotTo(HaveOccurred())
			if !slices.Contains(paths, parsed.Path) {
				paths = append(paths, parsed.Path)
			}
		}
	}
	g.Expect(paths).NotTo(BeEmpty())
	return paths
}

func TestEmbeddedCluster(t *testing.T) {
	if testing.Short() {
		t.Skip("starts seven processes")
	}
	env := testenv.StartEmbedded(t, testenv.EmbeddedOptions{Options: testenv.Options{WithoutWebhooks: true}, Nodes: 2})
	testCommon(t, env)

	t.Run("pods are scheduled, run, and are collected with their owner", func(t *testing.T) {
		g := NewWithT(t)
		ctx := t.Context()
		admin := env.Client(env.AdminConfig)
		owner := testenv.MakeImmortalContainer("default", "owner").Obj()
		g.Expect(admin.Create(ctx, owner)).To(Succeed())
		pod := testenv.MakePod("default", "owned").Immortal(owner).Obj()
		g.Expect(admin.Create(ctx, pod)).To(Succeed())
		g.Eventually(func() (corev1.PodPhase, error) {
			err := admin.Get(ctx, client.ObjectKeyFromObject(pod), pod)
			return pod.Status.Phase, err
		}).WithTimeout(patience).Should(Equal(corev1.PodRunning))
		g.Expect(pod.Spec.NodeName).NotTo(BeEmpty())

		g.Expect(admin.Delete(ctx, owner)).To(Succeed())
		g.Eventually(func() bool {
			return apierrors.IsNotFound(admin.Get(ctx, client.ObjectKeyFromObject(pod), pod))
		}).WithTimeout(2*patience).Should(BeTrue(), "the garbage collector takes the pod away")

		// The cluster's own programs have the identities that they have in a real one.
		ofPod := func(e testenv.AuditEvent) bool { return e.Resource != "pods" || e.Name != "owned" }
		g.Eventually(func() ([]testenv.AuditEvent, error) { return env.Writes("system:kube-scheduler", ofPod) }).
			WithTimeout(patience).Should(ConsistOf(HaveField("Subresource", "binding")))
		g.Eventually(func() ([]testenv.AuditEvent, error) {
			return env.Writes("system:serviceaccount:kube-system:generic-garbage-collector", ofPod)
		}).WithTimeout(patience).Should(ContainElement(HaveField("Verb", "delete")))
	})
}

// testCommon is what both kinds of cluster have to give.
func testCommon(t *testing.T, env *testenv.Env) {
	t.Helper()

	t.Run("the manifests are installed and applying them again changes nothing", func(t *testing.T) {
		g := NewWithT(t)
		crd, _, err := env.Kubectl("get", "crd", "immortalcontainers.immortalcontainer.flugel.it", "--output=jsonpath={.metadata.resourceVersion}")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(development.Apply(t.Context(), env.AdminConfig, env.Objects)).To(Succeed())
		again, _, err := env.Kubectl("get", "crd", "immortalcontainers.immortalcontainer.flugel.it", "--output=jsonpath={.metadata.resourceVersion}")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(again).To(Equal(crd))
	})

	t.Run("As is really that user", func(t *testing.T) {
		for name, test := range map[string]struct {
			config *rest.Config
			user   string
			groups []string
		}{
			"alice":       {env.AliceConfig, "alice", []string{"testers", "system:authenticated"}},
			"the manager": {env.ManagerConfig, "system:serviceaccount:blackadder-system:blackadder-manager", []string{"system:serviceaccounts", "system:serviceaccounts:blackadder-system", "system:authenticated"}},
			"a kubelet":   {env.AsNode("n1"), "system:node:n1", []string{"system:nodes", "system:authenticated"}},
			"bob":         {env.As("bob"), "bob", []string{"system:authenticated"}},
		} {
			t.Run(name, func(t *testing.T) {
				g := NewWithT(t)
				review := &authenticationv1.SelfSubjectReview{}
				g.Expect(env.Client(test.config).Create(t.Context(), review)).To(Succeed())
				g.Expect(review.Status.UserInfo.Username).To(Equal(test.user))
				g.Expect(review.Status.UserInfo.Groups).To(ConsistOf(test.groups))
			})
		}
		g := NewWithT(t)
		err := env.Client(env.As("bob")).Create(t.Context(), testenv.MakePod("default", "bobs").Obj())
		g.Expect(err).To(MatchError(`pods is forbidden: User "bob" cannot create resource "pods" in API group "" in the namespace "default"`))
	})

	t.Run("Writes sees what a user wrote and nothing else", func(t *testing.T) {
		g := NewWithT(t)
		ctx := t.Context()
		user := env.As("writer", testenv.Testers)
		c := env.Client(user)
		ic := testenv.MakeImmortalContainer("default", "written").Obj()
		g.Expect(client.NewDryRunClient(c).Create(ctx, ic.DeepCopy())).To(Succeed())
		g.Expect(c.Create(ctx, ic)).To(Succeed())
		g.Expect(c.Get(ctx, client.ObjectKeyFromObject(ic), ic)).To(Succeed())
		g.Expect(apierrors.IsAlreadyExists(c.Create(ctx, testenv.MakeImmortalContainer("default", "written").Obj()))).To(BeTrue())
		g.Expect(c.Delete(ctx, ic)).To(Succeed())

		g.Eventually(func() ([]string, error) { return lines(env.Writes("writer")) }).WithTimeout(patience).Should(Equal([]string{
			"writer create immortalcontainers.immortalcontainer.flugel.it default/written: 201",
			"writer create immortalcontainers.immortalcontainer.flugel.it default/written: 409",
			"writer delete immortalcontainers.immortalcontainer.flugel.it default/written: 200",
		}))
		g.Expect(lines(env.Writes("writer", testenv.Refused))).To(HaveLen(2))
		g.Expect(env.Writes("nobody")).To(BeEmpty())
	})

	t.Run("kubectl works, as whom one likes", func(t *testing.T) {
		g := NewWithT(t)
		stdout, _, err := env.KubectlAs(testenv.Alice, []string{testenv.Testers}, "auth", "whoami", "--output=jsonpath={.status.userInfo.username}")
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(stdout).To(Equal("alice"))
		_, stderr, err := env.KubectlAs("bob", nil, "get", "pods")
		g.Expect(err).To(MatchError(ContainSubstring("kubectl --as=bob get pods: exit status 1: Error from server (Forbidden)")))
		g.Expect(stderr).To(HavePrefix(`Error from server (Forbidden): pods is forbidden: User "bob" cannot list resource "pods"`))
	})

	t.Run("the manager's kubeconfig is the manager's, by its token alone", func(t *testing.T) {
		g := NewWithT(t)
		path := filepath.Join(t.TempDir(), "manager.kubeconfig")
		expires, err := development.WriteManagerKubeconfig(t.Context(), env.AdminConfig, path, time.Hour)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(expires).To(BeTemporally("~", time.Now().Add(time.Hour), time.Minute))
		info, err := os.Stat(path)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(info.Mode().Perm()).To(Equal(os.FileMode(0o600)))
		config, err := clientcmd.BuildConfigFromFlags("", path)
		g.Expect(err).NotTo(HaveOccurred())
		review := &authenticationv1.SelfSubjectReview{}
		g.Expect(env.Client(config).Create(t.Context(), review)).To(Succeed())
		g.Expect(review.Status.UserInfo.Username).To(Equal(development.ManagerUser))
		_, err = development.WriteManagerKubeconfig(t.Context(), env.AdminConfig, path, time.Minute)
		g.Expect(err).To(MatchError("a token cannot be valid for 1m0s: the API server grants 10m0s at least"))
	})

	t.Run("the proxy", func(t *testing.T) { testProxy(t, env) })
}

func testProxy(t *testing.T, env *testenv.Env) {
	t.Helper()
	ctx := t.Context()
	setup := NewWithT(t)
	admin := env.Client(env.AdminConfig)
	setup.Expect(admin.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "proxied"}})).To(Succeed())
	setup.Expect(admin.Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "proxied"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "default", Name: "proxied"}},
	})).To(Succeed())
	response, err := kubernetes.NewForConfigOrDie(env.AdminConfig).CoreV1().ServiceAccounts("default").
		CreateToken(ctx, "proxied", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	setup.Expect(err).NotTo(HaveOccurred())

	proxy := env.StartProxy(t, testenv.Hooks{})
	path := filepath.Join(t.TempDir(), "proxied.kubeconfig")
	setup.Expect(proxy.Kubeconfig(path, response.Status.Token)).To(Succeed())
	config, err := clientcmd.BuildConfigFromFlags("", path)
	setup.Expect(err).NotTo(HaveOccurred())
	proxied := env.Client(config)

	t.Run("passes the caller's credentials through", func(t *testing.T) {
		g := NewWithT(t)
		review := &authenticationv1.SelfSubjectReview{}
		g.Expect(proxied.Create(ctx, review)).To(Succeed())
		g.Expect(review.Status.UserInfo.Username).To(Equal("system:serviceaccount:default:proxied"))
	})

	t.Run("streams a watch", func(t *testing.T) {
		g := NewWithT(t)
		watched, err := proxied.Watch(ctx, &corev1.ConfigMapList{}, client.InNamespace("default"), client.MatchingFields{"metadata.name": "streamed"})
		g.Expect(err).NotTo(HaveOccurred())
		defer watched.Stop()
		g.Expect(admin.Create(ctx, configMap("streamed"))).To(Succeed())
		g.Eventually(watched.ResultChan()).WithTimeout(patience).Should(Receive(HaveField("Type", watch.Added)))
		g.Expect(admin.Delete(ctx, configMap("streamed"))).To(Succeed())
		g.Eventually(watched.ResultChan()).WithTimeout(patience).Should(Receive(HaveField("Type", watch.Deleted)))
	})

	writes := func(r *http.Request, name string) bool {
		return r.Method == http.MethodPost && strings.HasPrefix(r.URL.Path, "/api/v1/namespaces/default/configmaps") && r.Header.Get("Chosen") == name
	}
	chosen := func(g Gomega, name string) client.Client {
		marked := rest.CopyConfig(config)
		marked.Wrap(func(next http.RoundTripper) http.RoundTripper { return header{next, name} })
		return env.Client(marked)
	}
	exists := func(name string) func() (bool, error) {
		return func() (bool, error) {
			err := admin.Get(ctx, client.ObjectKey{Namespace: "default", Name: name}, &corev1.ConfigMap{})
			return err == nil, client.IgnoreNotFound(err)
		}
	}

	t.Run("drops a chosen write before the API server sees it", func(t *testing.T) {
		g := NewWithT(t)
		var seen atomic.Int32
		proxy.SetHooks(testenv.Hooks{Before: func(r *http.Request) testenv.Decision {
			if writes(r, "before") {
				seen.Add(1)
				return testenv.Drop
			}
			return testenv.Pass
		}})
		err := chosen(g, "before").Create(ctx, configMap("before"))
		g.Expect(err).To(HaveOccurred())
		g.Expect(apierrors.ReasonForError(err)).To(Equal(metav1.StatusReasonUnknown), "there was an answer: %v", err)
		g.Expect(seen.Load()).To(BeNumerically(">", 0))
		g.Expect(proxied.Create(ctx, configMap("other"))).To(Succeed(), "any other write passes")
		g.Expect(exists("before")()).To(BeFalse())
	})

	t.Run("drops the answer to a chosen write", func(t *testing.T) {
		g := NewWithT(t)
		proxy.SetHooks(testenv.Hooks{After: func(r *http.Response) testenv.Decision {
			if writes(r.Request, "after") && r.StatusCode == http.StatusCreated {
				return testenv.Drop
			}
			return testenv.Pass
		}})
		err := chosen(g, "after").Create(ctx, configMap("after"))
		g.Expect(err).To(HaveOccurred())
		g.Expect(exists("after")()).To(BeTrue())
	})

	t.Run("blocks a chosen write until its caller goes away", func(t *testing.T) {
		g := NewWithT(t)
		reached := make(chan struct{})
		proxy.SetHooks(testenv.Hooks{Before: func(r *http.Request) testenv.Decision {
			if writes(r, "blocked") {
				close(reached)
				return testenv.Block
			}
			return testenv.Pass
		}})
		gone, goAway := context.WithCancel(ctx)
		result := make(chan error, 1)
		go func() { result <- chosen(g, "blocked").Create(gone, configMap("blocked")) }()
		g.Eventually(reached).WithTimeout(patience).Should(BeClosed())
		g.Expect(result).NotTo(Receive())
		goAway()
		g.Eventually(result).WithTimeout(patience).Should(Receive(MatchError(context.Canceled)))
		g.Expect(exists("blocked")()).To(BeFalse())
	})
}

// header marks the requests of one client, for a hook to choose by.
type header struct {
	next  http.RoundTripper
	value string
}

func (h header) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Chosen", h.value)
	return h.next.RoundTrip(r)
}

func configMap(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
}

// lines are the events without their times.
func lines(events []testenv.AuditEvent, err error) ([]string, error) {
	var text []string
	for _, event := range events {
		_, rest, _ := strings.Cut(event.String(), " ")
		text = append(text, rest)
	}
	return slices.Clip(text), err
}
