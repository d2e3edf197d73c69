// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	chaosv1alpha1 "blackadder.io/blackadder/api/blackadder/v1alpha1"
	chaosv1beta1 "blackadder.io/blackadder/api/blackadder/v1beta1"
	immortalcontainerv1alpha1 "blackadder.io/blackadder/api/immortalcontainer/v1alpha1"
	"blackadder.io/blackadder/controllers/chaosagent"
	"blackadder.io/blackadder/controllers/immortalcontainer"
	"blackadder.io/blackadder/internal/namespaces"
	"blackadder.io/blackadder/internal/survey"
	"blackadder.io/blackadder/webhooks"
)

const (
	// leaderElectionID names the Lease by which replicas agree on who reconciles.
	leaderElectionID = "blackadder.io"
	// identityTimeout bounds the one request that the operator cannot start without.
	identityTimeout = 30 * time.Second
	// readinessTimeout bounds how long a probe waits for the caches.
	readinessTimeout = 100 * time.Millisecond
)

// newScheme knows the kinds that the operator reads and writes.
func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(immortalcontainerv1alpha1.AddToScheme(scheme))
	utilruntime.Must(chaosv1alpha1.AddToScheme(scheme))
	utilruntime.Must(chaosv1beta1.AddToScheme(scheme))
	return scheme
}

// restConfig is how to reach the API server: by the kubeconfig that is named, else as a pod of the cluster. It never
// takes the kubeconfig of the user who starts the operator.
func restConfig(o options) (*rest.Config, error) {
	config, err := clusterConfig(o)
	if err != nil {
		return nil, err
	}
	// Left alone, the client would hold itself back to 5 requests a second. The API server's own priority and fairness knows
	// better what it can take.
	config.QPS = -1
	return config, nil
}

func clusterConfig(o options) (*rest.Config, error) {
	if o.Kubeconfig != "" {
		config, err := clientcmd.BuildConfigFromFlags("", o.Kubeconfig)
		if err != nil {
			return nil, fmt.Errorf("reading --kubeconfig: %w", err)
		}
		return config, nil
	}
	config, err := rest.InClusterConfig()
	if err != nil {
		return nil, fmt.Errorf("no --kubeconfig is given, and this is no pod of a cluster: %w", err)
	}
	return config, nil
}

// identity is whom the API server takes the operator for.
type identity struct {
	user      string
	namespace string
}

// whoAmI asks the API server for the operator's own user name, which the protection tells from all others. It must be a
// ServiceAccount: run as the administrator, the operator would let the administrator through, and would never notice a
// permission that its own role lacks.
func whoAmI(ctx context.Context, config *rest.Config) (identity, error) {
	ctx, cancel := context.WithTimeout(ctx, identityTimeout)
	defer cancel()
	api, err := client.New(config, client.Options{Scheme: newScheme()})
	if err != nil {
		return identity{}, fmt.Errorf("making a client: %w", err)
	}
	review := &authenticationv1.SelfSubjectReview{}
	if err := api.Create(ctx, review); err != nil {
		return identity{}, fmt.Errorf("asking the API server at %s who the operator is: %w", config.Host, err)
	}
	return identityOf(review.Status.UserInfo.Username)
}

func identityOf(user string) (identity, error) {
	rest, is := strings.CutPrefix(user, "system:serviceaccount:")
	namespace, name, found := strings.Cut(rest, ":")
	if !is || !found || namespace == "" || name == "" {
		return identity{}, fmt.Errorf("the operator runs as %q, which is no ServiceAccount: it could not tell its own requests from that user's. "+
			"Use credentials of its own ServiceAccount (make run obtains them)", user)
	}
	return identity{user: user, namespace: namespace}, nil
}

// Leader election writes its Lease and events in the operator's own namespace (config/rbac/leader_election.yaml); the metrics
// endpoint asks the API server who reads it and whether they may.
//
// +kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create

// newManager puts the operator together: cache, webhooks, controllers, probes, metrics.
func newManager(config *rest.Config, o options, self identity) (ctrl.Manager, error) {
	host, port, err := splitAddress(o.WebhookAddress)
	if err != nil {
		return nil, fmt.Errorf("reading --webhook-address: %w", err)
	}
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme: newScheme(),
		Cache: cache.Options{
			// A read of a kind that is not declared here fails, instead of silently caching all of its objects.
			ReaderFailOnMissingInformer: true,
			ByObject:                    cacheByObject(o.Namespace),
		},
		WebhookServer: webhook.NewServer(webhook.Options{Host: host, Port: port, CertDir: o.WebhookCertDir}),
		Metrics: metricsserver.Options{
			BindAddress:    o.MetricsAddress,
			SecureServing:  true,
			CertDir:        o.WebhookCertDir,
			FilterProvider: filters.WithAuthenticationAndAuthorization,
		},
		HealthProbeBindAddress:        o.HealthAddress,
		LeaderElection:                o.LeaderElect,
		LeaderElectionID:              leaderElectionID,
		LeaderElectionNamespace:       o.Namespace,
		LeaderElectionReleaseOnCancel: true,
	})
	if err != nil {
		return nil, fmt.Errorf("making the manager: %w", err)
	}
	protection := namespaces.Protect(o.Namespace, o.ProtectedNamespaces...)
	if err := webhooks.Setup(mgr, webhooks.Options{
		DefaultImage: o.DefaultImage, Protection: protection, ControllerUser: self.user, Metrics: ctrlmetrics.Registry,
	}); err != nil {
		return nil, err
	}
	if err := chaosagent.SetupWithManager(mgr, chaosagent.Options{
		Namespace: o.Namespace, Protection: protection, Metrics: ctrlmetrics.Registry,
	}); err != nil {
		return nil, err
	}
	if err := immortalcontainer.SetupWithManager(mgr, immortalcontainer.Options{Metrics: ctrlmetrics.Registry}); err != nil {
		return nil, err
	}
	return mgr, addProbes(mgr)
}

// cacheByObject is what each part of the operator declares that it keeps.
func cacheByObject(namespace string) map[client.Object]cache.ByObject {
	all := immortalcontainer.CacheByObject()
	maps.Copy(all, survey.CacheByObject())
	maps.Copy(all, chaosagent.CacheByObject(namespace))
	return all
}

// addProbes makes readiness mean that a request would be answered: the webhooks are served, the caches are filled.
func addProbes(mgr ctrl.Manager) error {
	return errors.Join(
		mgr.AddHealthzCheck("ping", healthz.Ping),
		mgr.AddReadyzCheck("webhooks", mgr.GetWebhookServer().StartedChecker()),
		mgr.AddReadyzCheck("caches", func(request *http.Request) error {
			ctx, cancel := context.WithTimeout(request.Context(), readinessTimeout)
			defer cancel()
			if !mgr.GetCache().WaitForCacheSync(ctx) {
				return errors.New("the caches are not filled yet")
			}
			return nil
		}),
	)
}

func splitAddress(address string) (host string, port int, err error) {
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return "", 0, err
	}
	port, err = strconv.Atoi(text)
	return host, port, err
}
