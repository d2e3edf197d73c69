// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"blackadder.io/blackadder/internal/development"
)

// EmbeddedOptions choose what StartEmbedded starts.
type EmbeddedOptions struct {
	Options
	// Nodes is how many simulated nodes there are: node-000000, node-000001 and so on. They are ready when StartEmbedded
	// returns.
	Nodes int
	// ControllerManagerFlags are further flags of kube-controller-manager, without the leading dashes.
	ControllerManagerFlags map[string]string
}

// StartEmbedded starts a cluster of real control plane programs and simulated nodes, through kwokctl, and installs the
// manifests. The controllers, the garbage collector and the scheduler act under the names that they have in a real cluster
// (system:serviceaccount:kube-system:..., system:kube-scheduler). The simulated kubelets do not: one process plays them all,
// as the user kwok-admin of system:masters.
//
// The cluster goes when the test ends; anything that goes wrong fails the test at once.
func StartEmbedded(tb TB, options EmbeddedOptions) *Env {
	tb.Helper()
	env, err := OpenEmbedded(context.Background(), options)
	if err != nil {
		tb.Fatalf("starting an embedded cluster: %v", err)
		return nil
	}
	stopAtEnd(tb, env)
	return env
}

// OpenEmbedded does what StartEmbedded does where there is no test at hand, as in TestMain. The caller has to call Stop.
func OpenEmbedded(ctx context.Context, options EmbeddedOptions) (*Env, error) {
	env, err := prepare(options.Options)
	if err != nil {
		return nil, err
	}
	env.Embedded = true
	if err := env.openEmbedded(ctx, options); err != nil {
		return nil, errors.Join(err, env.Stop())
	}
	if err := env.install(ctx, options.Options); err != nil {
		return nil, errors.Join(err, env.Stop())
	}
	if err := env.waitForNodes(ctx, options.Nodes); err != nil {
		return nil, errors.Join(err, env.Stop())
	}
	return env, nil
}

// kwokctl runs kwokctl on one cluster, in a home of its own, so that no cluster of the user's is seen or touched.
type kwokctl struct {
	path, home, cluster, kubectl string
}

func (k kwokctl) run(ctx context.Context, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*stepTimeout)
	defer cancel()
	command := exec.CommandContext(ctx, k.path, append([]string{"--name", k.cluster}, args...)...)
	command.Env = environment(
		"HOME="+k.home, "KWOK_WORKDIR="+k.home,
		// kwokctl waits with a kubectl, and would download one if there is none in PATH.
		"PATH="+filepath.Dir(k.kubectl)+string(os.PathListSeparator)+os.Getenv("PATH"),
	)
	var output bytes.Buffer
	command.Stdout, command.Stderr = &output, &output
	if err := command.Run(); err != nil {
		return fmt.Errorf("kwokctl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(output.String()))
	}
	return nil
}

// identity names a program of the control plane as a real cluster does.
func (k kwokctl) identity(user string, port int) (path string, err error) {
	pki := filepath.Join(k.home, "clusters", k.cluster, "pki")
	cluster := clientcmdapi.NewCluster()
	cluster.Server = "https://" + hostPort("127.0.0.1", port)
	cluster.CertificateAuthority = filepath.Join(pki, "ca.crt")
	// kwokctl gives its one certificate, of a member of system:masters, to every program; these act as the user that they
	// should be instead. The files do not exist yet, but do by the time the program starts.
	auth := clientcmdapi.NewAuthInfo()
	auth.ClientCertificate, auth.ClientKey = filepath.Join(pki, "admin.crt"), filepath.Join(pki, "admin.key")
	auth.Impersonate = user
	kubeContext := clientcmdapi.NewContext()
	kubeContext.Cluster, kubeContext.AuthInfo = k.cluster, user
	kubeconfig := clientcmdapi.NewConfig()
	kubeconfig.Clusters[k.cluster], kubeconfig.AuthInfos[user], kubeconfig.Contexts[user] = cluster, auth, kubeContext
	kubeconfig.CurrentContext = user
	path = filepath.Join(k.home, strings.TrimPrefix(user, "system:")+".kubeconfig")
	if err := clientcmd.WriteToFile(*kubeconfig, path); err != nil {
		return "", fmt.Errorf("writing the kubeconfig of %s: %w", user, err)
	}
	return path, nil
}

func (env *Env) openEmbedded(ctx context.Context, options EmbeddedOptions) error {
	paths, err := binaries(ctx, env.Root,
		"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kwokctl", "kwok")
	if err != nil {
		return err
	}
	env.kubectl = paths["kubectl"]
	// kwokctl counts ports down from a fixed one and knows only its own clusters, so two at once would fight for them.
	ports, err := freePorts("127.0.0.1", 6)
	if err != nil {
		return err
	}
	home := filepath.Join(env.Dir, "kwok")
	if err := os.MkdirAll(home, 0o700); err != nil {
		return fmt.Errorf("making a folder for kwokctl: %w", err)
	}
	k := kwokctl{path: paths["kwokctl"], home: home, cluster: filepath.Base(env.Dir), kubectl: paths["kubectl"]}
	env.audit = &auditLog{path: filepath.Join(home, "clusters", k.cluster, "logs", "audit.log")}

	kubeconfig := filepath.Join(home, "kubeconfig")
	managerIdentity, err := k.identity("system:kube-controller-manager", ports[1])
	if err != nil {
		return err
	}
	schedulerIdentity, err := k.identity("system:kube-scheduler", ports[1])
	if err != nil {
		return err
	}
	// The port between etcd's members is the one that has no flag.
	settings := filepath.Join(home, "settings.yaml")
	content := "apiVersion: config.kwok.x-k8s.io/v1alpha1\nkind: KwokctlConfiguration\noptions:\n  etcdPeerPort: " + strconv.Itoa(ports[5]) + "\n"
	if err := os.WriteFile(settings, []byte(content), 0o600); err != nil {
		return fmt.Errorf("writing kwokctl's settings: %w", err)
	}

	args := []string{
		"create", "cluster", "--config=" + settings, "--runtime=binary", "--kubeconfig=" + kubeconfig, "--disable-qps-limits",
		"--wait=" + stepTimeout.String(), "--kube-audit-policy=" + env.auditPolicy(),
		"--etcd-binary=" + paths["etcd"], "--etcd-port=" + strconv.Itoa(ports[0]),
		"--kube-apiserver-binary=" + paths["kube-apiserver"], "--kube-apiserver-port=" + strconv.Itoa(ports[1]),
		"--kube-controller-manager-binary=" + paths["kube-controller-manager"], "--kube-controller-manager-port=" + strconv.Itoa(ports[2]),
		"--kube-scheduler-binary=" + paths["kube-scheduler"], "--kube-scheduler-port=" + strconv.Itoa(ports[3]),
		"--kwok-controller-binary=" + paths["kwok"], "--controller-port=" + strconv.Itoa(ports[4]),
		// kwokctl 0.8.0 panics if a program's second flag comes after the first ones of fewer programs than it counts, so
		// the first flags of all come before any second.
		"--extra-args=kube-apiserver=audit-log-maxsize=10000",
		"--extra-args=kube-controller-manager=kubeconfig=" + managerIdentity,
		"--extra-args=kube-scheduler=kubeconfig=" + schedulerIdentity,
		"--extra-args=kube-controller-manager=use-service-account-credentials=true",
	}
	for name, value := range options.APIServerFlags {
		args = append(args, "--extra-args=kube-apiserver="+name+"="+value)
	}
	for name, value := range options.ControllerManagerFlags {
		args = append(args, "--extra-args=kube-controller-manager="+name+"="+value)
	}
	env.shutdown = func() error {
		// A cluster that only half came up goes as well; the context of the start may be over by now.
		return k.run(context.WithoutCancel(ctx), "delete", "cluster", "--kubeconfig="+kubeconfig)
	}
	if err := k.run(ctx, args...); err != nil {
		return err
	}
	if env.AdminConfig, err = clientcmd.BuildConfigFromFlags("", kubeconfig); err != nil {
		return fmt.Errorf("reading kwokctl's kubeconfig: %w", err)
	}
	if err := development.WriteKubeconfig(env.AdminConfig, "default", env.Kubeconfig); err != nil {
		return err
	}
	if options.Nodes > 0 {
		return k.run(ctx, "scale", "node", "--replicas", strconv.Itoa(options.Nodes))
	}
	return nil
}

// waitForNodes waits until pods can be made and run: the nodes are ready, and the controller manager, which makes the default
// ServiceAccount, works.
func (env *Env) waitForNodes(ctx context.Context, want int) error {
	admin := env.Client(env.AdminConfig)
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	ready := 0
	err := wait.PollUntilContextCancel(ctx, 2*pollEvery, true, func(ctx context.Context) (bool, error) {
		nodes := &corev1.NodeList{}
		if err := admin.List(ctx, nodes); err != nil {
			return false, err
		}
		ready = 0
		for _, node := range nodes.Items {
			for _, condition := range node.Status.Conditions {
				if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue {
					ready++
				}
			}
		}
		err := admin.Get(ctx, client.ObjectKey{Namespace: "default", Name: "default"}, &corev1.ServiceAccount{})
		return ready >= want && err == nil, client.IgnoreNotFound(err)
	})
	if err != nil {
		return fmt.Errorf("waiting for the default ServiceAccount and %d ready nodes (%d are): %w", want, ready, err)
	}
	return nil
}
