// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	chaosv1alpha1 "blackadder.io/blackadder/api/blackadder/v1alpha1"
	chaosv1beta1 "blackadder.io/blackadder/api/blackadder/v1beta1"
	immortalcontainerv1alpha1 "blackadder.io/blackadder/api/immortalcontainer/v1alpha1"
	"blackadder.io/blackadder/certs"
	"blackadder.io/blackadder/internal/development"
)

// The ordinary cluster-admin of the tests: bound to the ClusterRole cluster-admin and, unlike system:masters, subject to
// everything else that an ordinary user is.
const (
	// Alice is the name of the user.
	Alice = "alice"
	// Testers is the group that is bound to cluster-admin.
	Testers = "testers"
)

const (
	groupAuthenticated = "system:authenticated"
	groupNodes         = "system:nodes"
	nodePrefix         = "system:node:"

	// stepTimeout bounds each step of starting and stopping, on a machine that does much else at the same time.
	stepTimeout = 2 * time.Minute
	pollEvery   = 50 * time.Millisecond

	servingLifetime = 24 * time.Hour
)

// TB is what Start needs of a test: *testing.T, *testing.B, GinkgoT() and GinkgoTB() all have it.
type TB interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Cleanup(func())
}

// Options choose what is installed in a cluster. The zero value installs everything.
type Options struct {
	// Root is the repository whose manifests and binaries are used. Left out, it is found from the working directory.
	Root string
	// WithoutWebhooks leaves the webhook configurations out, for tests that start no webhook server.
	WithoutWebhooks bool
	// WebhookHost is the address of this machine that the webhook server listens on and the API server calls. Left out, it
	// is 127.0.0.1, to which the API server may speak HTTP/2; to any other address it speaks HTTP/1.1, as it does to a Service.
	WebhookHost string
	// APIServerFlags are further flags of the API server, without the leading dashes.
	APIServerFlags map[string]string
}

// WebhookServer says where the installed webhook configurations expect the webhook server, and where its certificate is.
type WebhookServer struct {
	// Host is the address to listen on.
	Host string
	// Port is the port to listen on. Nobody listens there yet.
	Port int
	// CertDir is the folder with tls.crt and tls.key.
	CertDir string
}

// Options are the settings for controller-runtime's webhook.NewServer.
func (w WebhookServer) Options() webhook.Options {
	return webhook.Options{Host: w.Host, Port: w.Port, CertDir: w.CertDir}
}

// Address is Host and Port as one string.
func (w WebhookServer) Address() string { return net.JoinHostPort(w.Host, strconv.Itoa(w.Port)) }

// Env is a running cluster with the manifests installed. Its methods may be called from several goroutines.
type Env struct {
	// AdminConfig has all rights: a member of system:masters, whom authorization never refuses.
	AdminConfig *rest.Config
	// ManagerConfig acts as the manager's ServiceAccount, with exactly the rights of its manifests.
	ManagerConfig *rest.Config
	// AliceConfig acts as Alice, an ordinary cluster-admin.
	AliceConfig *rest.Config
	// Scheme has Kubernetes' own kinds, CustomResourceDefinition and the kinds of this module.
	Scheme *runtime.Scheme
	// Webhook says where the webhook server is expected. It is filled in also when the configurations are left out.
	Webhook WebhookServer
	// CA signed the webhook server's certificate and signs those of proxies.
	CA *certs.CA
	// Objects are the manifests that were applied.
	Objects []*unstructured.Unstructured
	// Kubeconfig is the path of a kubeconfig with AdminConfig's rights.
	Kubeconfig string
	// Dir is a folder for the test's own files. It goes when the cluster stops.
	Dir string
	// Root is the repository.
	Root string
	// Embedded tells whether a controller manager, a scheduler and simulated nodes run.
	Embedded bool

	kubectl  string
	audit    *auditLog
	shutdown func() error
	stopOnce sync.Once
	stopErr  error
}

// Start starts etcd and an API server and installs the manifests. The cluster stops when the test ends; anything that goes
// wrong fails the test at once.
func Start(tb TB, options Options) *Env {
	tb.Helper()
	env, err := Open(context.Background(), options)
	if err != nil {
		tb.Fatalf("starting a control plane: %v", err)
		return nil
	}
	stopAtEnd(tb, env)
	return env
}

func stopAtEnd(tb TB, env *Env) {
	tb.Cleanup(func() {
		if err := env.Stop(); err != nil {
			tb.Errorf("stopping the cluster: %v", err)
		}
	})
}

// Open does what Start does where there is no test at hand, as in TestMain. The caller has to call Stop.
func Open(ctx context.Context, options Options) (*Env, error) {
	env, err := prepare(options)
	if err != nil {
		return nil, err
	}
	if err := env.openControlPlane(ctx, options); err != nil {
		return nil, errors.Join(err, env.Stop())
	}
	if err := env.install(ctx, options); err != nil {
		return nil, errors.Join(err, env.Stop())
	}
	return env, nil
}

// prepare makes everything that comes before a cluster: the folder, the scheme, the certificate and the audit policy.
func prepare(options Options) (*Env, error) {
	root := options.Root
	if root == "" {
		var err error
		if root, err = development.Root(); err != nil {
			return nil, err
		}
	}
	env := &Env{Root: root, Scheme: runtime.NewScheme(), shutdown: func() error { return nil }}
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, apiextensionsv1.AddToScheme, immortalcontainerv1alpha1.AddToScheme, chaosv1alpha1.AddToScheme, chaosv1beta1.AddToScheme,
	} {
		if err := add(env.Scheme); err != nil {
			return nil, fmt.Errorf("building the scheme: %w", err)
		}
	}
	var err error
	if env.Dir, err = os.MkdirTemp("", "blackadder-testenv-"); err != nil {
		return nil, fmt.Errorf("making a folder for the cluster: %w", err)
	}
	if err := env.prepareFiles(options); err != nil {
		return nil, errors.Join(err, os.RemoveAll(env.Dir))
	}
	return env, nil
}

func (env *Env) prepareFiles(options Options) error {
	host := options.WebhookHost
	if host == "" {
		host = "127.0.0.1"
	}
	ports, err := development.FreePorts(host, 1)
	if err != nil {
		return err
	}
	env.Webhook = WebhookServer{Host: host, Port: ports[0], CertDir: filepath.Join(env.Dir, "webhook-certs")}
	if env.CA, err = certs.NewCA(); err != nil {
		return err
	}
	if err := env.CA.WriteServing(env.Webhook.CertDir, []string{host}, servingLifetime); err != nil {
		return err
	}
	env.Kubeconfig = filepath.Join(env.Dir, "kubeconfig")
	return os.WriteFile(env.auditPolicy(), []byte(auditPolicy), 0o600)
}

func (env *Env) auditPolicy() string { return filepath.Join(env.Dir, "audit-policy.yaml") }

func (env *Env) openControlPlane(ctx context.Context, options Options) error {
	paths, err := development.Binaries(ctx, env.Root, "etcd", "kube-apiserver", "kubectl")
	if err != nil {
		return err
	}
	env.kubectl = paths["kubectl"]
	env.audit = &auditLog{path: filepath.Join(env.Dir, "audit.log")}

	existing := false
	control := &envtest.Environment{
		UseExistingCluster:       &existing,
		ControlPlaneStartTimeout: stepTimeout,
		ControlPlaneStopTimeout:  stepTimeout,
	}
	control.ControlPlane.Etcd = &envtest.Etcd{Path: paths["etcd"]}
	server := control.ControlPlane.GetAPIServer()
	server.Path = paths["kube-apiserver"]
	server.Configure().
		Set("audit-policy-file", env.auditPolicy()).
		Set("audit-log-path", env.audit.path).
		// A rotated log would lose what Writes has not read yet.
		Set("audit-log-maxsize", "10000")
	for name, value := range options.APIServerFlags {
		server.Configure().Set(name, value)
	}
	env.shutdown = control.Stop
	if env.AdminConfig, err = control.Start(); err != nil {
		return fmt.Errorf("starting etcd and kube-apiserver: %w", err)
	}
	return development.WriteKubeconfig(env.AdminConfig, "default", env.Kubeconfig)
}

// install applies the manifests and binds the users of the tests.
func (env *Env) install(ctx context.Context, options Options) error {
	// Tests talk to a server of their own: they need no client-side limit, and one would only slow them.
	env.AdminConfig.QPS = -1
	env.ManagerConfig = env.As(development.ManagerUser, "system:serviceaccounts", "system:serviceaccounts:"+development.Namespace)
	env.AliceConfig = env.As(Alice, Testers)

	folders := []string{"config/development"}
	if options.WithoutWebhooks {
		folders = []string{"config/namespace", "config/crd", "config/rbac"}
	}
	var err error
	if env.Objects, err = development.RenderFolders(env.Root, folders...); err != nil {
		return err
	}
	if err := development.PointWebhooks(env.Objects, env.Webhook.Address(), env.CA.Bundle()); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	if err := development.Apply(ctx, env.AdminConfig, env.Objects); err != nil {
		return err
	}
	return env.bindUsers(ctx)
}

// bindUsers gives the users of the tests their rights and waits until the authorizer has seen those, because a test that
// starts in between would be refused.
func (env *Env) bindUsers(ctx context.Context) error {
	admin := env.Client(env.AdminConfig)
	for group, role := range map[string]string{
		Testers: "cluster-admin",
		// Where there is no Node authorizer, nothing else gives kubelets their rights.
		groupNodes: "system:node",
	} {
		binding := &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "testenv:" + group},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: group}},
		}
		if err := admin.Create(ctx, binding); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("binding the group %s to %s: %w", group, role, err)
		}
	}
	for _, check := range []struct {
		config *rest.Config
		may    authorizationv1.ResourceAttributes
	}{
		{env.AliceConfig, authorizationv1.ResourceAttributes{Verb: "delete", Resource: "pods", Namespace: "default"}},
		{env.AsNode("node"), authorizationv1.ResourceAttributes{Verb: "get", Resource: "nodes", Name: "node"}},
		{env.ManagerConfig, authorizationv1.ResourceAttributes{Verb: "create", Group: "coordination.k8s.io", Resource: "leases", Namespace: development.Namespace}},
	} {
		user := env.Client(check.config)
		err := wait.PollUntilContextCancel(ctx, pollEvery, true, func(ctx context.Context) (bool, error) {
			review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &check.may}}
			err := user.Create(ctx, review)
			// Even the right to ask comes from a binding, one of the server's own, that its authorizer may not have read yet.
			if apierrors.IsForbidden(err) {
				return false, nil
			}
			return review.Status.Allowed, err
		})
		if err != nil {
			return fmt.Errorf("waiting until %s may %s %s: %w", check.config.Impersonate.UserName, check.may.Verb, check.may.Resource, err)
		}
	}
	return nil
}

// Stop stops the cluster and removes its files. It may be called more than once; each call returns what the first did.
func (env *Env) Stop() error {
	env.stopOnce.Do(func() {
		env.stopErr = errors.Join(env.shutdown(), os.RemoveAll(env.Dir))
	})
	return env.stopErr
}

// As returns a configuration that acts as the given user in the given groups, and in system:authenticated. Authorization and
// admission see that user alone; the audit log knows, too, that it was impersonated.
func (env *Env) As(user string, groups ...string) *rest.Config {
	config := rest.CopyConfig(env.AdminConfig)
	groups = slices.Clone(groups)
	if !slices.Contains(groups, groupAuthenticated) {
		groups = append(groups, groupAuthenticated)
	}
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: groups}
	return config
}

// AsNode returns a configuration that acts as the kubelet of the given node.
func (env *Env) AsNode(node string) *rest.Config { return env.As(nodePrefix+node, groupNodes) }

// AsServiceAccount returns a configuration that acts as the given ServiceAccount.
func (env *Env) AsServiceAccount(namespace, name string) *rest.Config {
	return env.As("system:serviceaccount:"+namespace+":"+name, "system:serviceaccounts", "system:serviceaccounts:"+namespace)
}

// Client returns an uncached client with Scheme. It panics if config itself is unusable, which no configuration of an Env is.
func (env *Env) Client(config *rest.Config) client.WithWatch {
	c, err := client.NewWithWatch(config, client.Options{Scheme: env.Scheme})
	if err != nil {
		panic(fmt.Sprintf("making a client for %s: %v", config.Host, err))
	}
	return c
}
