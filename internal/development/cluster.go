// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package development

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

const (
	// clusterTimeout bounds each step of starting and stopping a cluster, on a machine that does much else.
	clusterTimeout = 2 * time.Minute
	pollNodes      = 100 * time.Millisecond
	// clusterRecord is the file in a cluster's folder by which another process finds it.
	clusterRecord = "cluster.json"
)

// ErrNoCluster says that a folder holds no cluster.
var ErrNoCluster = errors.New("no cluster was started here")

// ClusterOptions choose what StartCluster starts.
type ClusterOptions struct {
	// Dir is the folder for everything that the cluster keeps. It is made if there is none, and goes when the cluster stops.
	Dir string
	// Root is the repository whose control plane is used.
	Root string
	// Nodes is how many simulated nodes there are: node-000000, node-000001 and so on.
	Nodes int
	// AuditPolicy is the path of an audit policy; left out, nothing is logged.
	AuditPolicy string
	// APIServerFlags and ControllerManagerFlags are further flags of these programs, without the leading dashes.
	APIServerFlags, ControllerManagerFlags map[string]string
}

// Cluster is an embedded cluster: real control-plane programs and simulated nodes. Its programs go on when the process that
// started them ends. The controllers, the garbage collector and the scheduler act under the names that they have in a real
// cluster (system:serviceaccount:kube-system:..., system:kube-scheduler). The simulated kubelets do not: one process plays
// them all, as the user kwok-admin of system:masters.
type Cluster struct {
	// Dir is the cluster's folder.
	Dir string `json:"-"`
	// Name is the cluster's name among kwokctl's.
	Name string `json:"name"`
	// Kubeconfig is the path of a kubeconfig of an administrator.
	Kubeconfig string `json:"kubeconfig"`
	// Kubectl is the path of a kubectl of the cluster's version.
	Kubectl string `json:"kubectl"`
	// Kwokctl is the path of the program that started the cluster and stops it.
	Kwokctl string `json:"kwokctl"`
	// AuditLog is the path of the audit log, which exists only if there is an audit policy.
	AuditLog string `json:"auditLog"`
}

// StartCluster starts an embedded cluster through kwokctl and waits until pods can run in it: the nodes are ready, and the
// controller manager, which makes the default ServiceAccount, works. After an error nothing is left running.
func StartCluster(ctx context.Context, options ClusterOptions) (*Cluster, error) {
	dir, err := filepath.Abs(options.Dir)
	if err != nil {
		return nil, fmt.Errorf("finding the cluster's folder: %w", err)
	}
	paths, err := Binaries(ctx, options.Root,
		"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kwokctl", "kwok")
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("making the cluster's folder: %w", err)
	}
	name := "blackadder"
	cluster := &Cluster{
		Dir: dir, Name: name, Kubeconfig: filepath.Join(dir, "kubeconfig"), Kubectl: paths["kubectl"], Kwokctl: paths["kwokctl"],
		AuditLog: filepath.Join(dir, "clusters", name, "logs", "audit.log"),
	}
	// The record comes first, so that a start that is killed half-way can still be cleaned up.
	if err := cluster.record(); err != nil {
		return nil, err
	}
	if err := cluster.start(ctx, options, paths); err != nil {
		// The context of the start may be over by now.
		return nil, errors.Join(err, cluster.Stop(context.WithoutCancel(ctx)))
	}
	return cluster, nil
}

// OpenCluster finds the cluster that was started in dir, perhaps by another process. It returns ErrNoCluster if there is none.
func OpenCluster(dir string) (*Cluster, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("finding the cluster's folder: %w", err)
	}
	text, err := os.ReadFile(filepath.Join(dir, clusterRecord))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", dir, ErrNoCluster)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the cluster's record: %w", err)
	}
	cluster := &Cluster{Dir: dir}
	if err := json.Unmarshal(text, cluster); err != nil {
		return nil, fmt.Errorf("reading the cluster's record: %w", err)
	}
	return cluster, nil
}

func (c *Cluster) record() error {
	text, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return fmt.Errorf("writing the cluster's record: %w", err)
	}
	return replaceFile(filepath.Join(c.Dir, clusterRecord), text)
}

// Stop ends the cluster's programs and removes its folder.
func (c *Cluster) Stop(ctx context.Context) error {
	if err := c.kwokctl(ctx, "delete", "cluster", "--kubeconfig="+c.Kubeconfig); err != nil {
		return err
	}
	if err := os.RemoveAll(c.Dir); err != nil {
		return fmt.Errorf("removing the cluster's folder: %w", err)
	}
	return nil
}

// Config is the configuration of the cluster's administrator.
func (c *Cluster) Config() (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("reading the cluster's kubeconfig: %w", err)
	}
	return config, nil
}

// Answers tells whether the cluster's API server is ready; the error says what is wrong.
func (c *Cluster) Answers(ctx context.Context) error {
	config, err := c.Config()
	if err != nil {
		return err
	}
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	if err := clients.Discovery().RESTClient().Get().AbsPath("/readyz").Timeout(5 * time.Second).Do(ctx).Error(); err != nil {
		return fmt.Errorf("asking the API server whether it is ready: %w", err)
	}
	return nil
}

// kwokctl runs kwokctl on this cluster, in a home of its own, so that no other cluster is seen or touched.
func (c *Cluster) kwokctl(ctx context.Context, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*clusterTimeout)
	defer cancel()
	command := exec.CommandContext(ctx, c.Kwokctl, append([]string{"--name", c.Name}, args...)...)
	command.Env = environment(
		"HOME="+c.Dir, "KWOK_WORKDIR="+c.Dir,
		// kwokctl waits with a kubectl, and would download one if there is none in PATH.
		"PATH="+filepath.Dir(c.Kubectl)+string(os.PathListSeparator)+os.Getenv("PATH"),
	)
	var output bytes.Buffer
	command.Stdout, command.Stderr = &output, &output
	if err := command.Run(); err != nil {
		return fmt.Errorf("kwokctl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(output.String()))
	}
	return nil
}

// identity names a program of the control plane as a real cluster does.
func (c *Cluster) identity(user string, port int) (path string, err error) {
	pki := filepath.Join(c.Dir, "clusters", c.Name, "pki")
	cluster := clientcmdapi.NewCluster()
	cluster.Server = "https://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	cluster.CertificateAuthority = filepath.Join(pki, "ca.crt")
	// kwokctl gives its one certificate, of a member of system:masters, to every program; these act as the user that they
	// should be instead. The files do not exist yet, but do by the time the program starts.
	auth := clientcmdapi.NewAuthInfo()
	auth.ClientCertificate, auth.ClientKey = filepath.Join(pki, "admin.crt"), filepath.Join(pki, "admin.key")
	auth.Impersonate = user
	kubeContext := clientcmdapi.NewContext()
	kubeContext.Cluster, kubeContext.AuthInfo = c.Name, user
	kubeconfig := clientcmdapi.NewConfig()
	kubeconfig.Clusters[c.Name], kubeconfig.AuthInfos[user], kubeconfig.Contexts[user] = cluster, auth, kubeContext
	kubeconfig.CurrentContext = user
	path = filepath.Join(c.Dir, strings.TrimPrefix(user, "system:")+".kubeconfig")
	if err := clientcmd.WriteToFile(*kubeconfig, path); err != nil {
		return "", fmt.Errorf("writing the kubeconfig of %s: %w", user, err)
	}
	return path, nil
}

func (c *Cluster) start(ctx context.Context, options ClusterOptions, paths map[string]string) error {
	// kwokctl counts ports down from a fixed one and knows only its own clusters, so two at once would fight for them.
	ports, err := FreePorts("127.0.0.1", 6)
	if err != nil {
		return err
	}
	managerIdentity, err := c.identity("system:kube-controller-manager", ports[1])
	if err != nil {
		return err
	}
	schedulerIdentity, err := c.identity("system:kube-scheduler", ports[1])
	if err != nil {
		return err
	}
	// The port between etcd's members is the one that has no flag.
	settings := filepath.Join(c.Dir, "settings.yaml")
	content := "apiVersion: config.kwok.x-k8s.io/v1alpha1\nkind: KwokctlConfiguration\noptions:\n  etcdPeerPort: " + strconv.Itoa(ports[5]) + "\n"
	if err := os.WriteFile(settings, []byte(content), 0o600); err != nil {
		return fmt.Errorf("writing kwokctl's settings: %w", err)
	}
	args := []string{
		"create", "cluster", "--config=" + settings, "--runtime=binary", "--kubeconfig=" + c.Kubeconfig, "--disable-qps-limits",
		"--wait=" + clusterTimeout.String(),
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
		// Only the nodes that kwok made itself, so that a test can have one on which nobody answers.
		"--extra-args=kwok-controller=manage-all-nodes=false",
		"--extra-args=kube-controller-manager=use-service-account-credentials=true",
		"--extra-args=kwok-controller=manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
	}
	if options.AuditPolicy != "" {
		args = append(args, "--kube-audit-policy="+options.AuditPolicy)
	}
	for name, value := range options.APIServerFlags {
		args = append(args, "--extra-args=kube-apiserver="+name+"="+value)
	}
	for name, value := range options.ControllerManagerFlags {
		args = append(args, "--extra-args=kube-controller-manager="+name+"="+value)
	}
	if err := c.kwokctl(ctx, args...); err != nil {
		return err
	}
	if options.Nodes > 0 {
		if err := c.kwokctl(ctx, "scale", "node", "--replicas", strconv.Itoa(options.Nodes)); err != nil {
			return err
		}
	}
	return c.waitForNodes(ctx, options.Nodes)
}

func (c *Cluster) waitForNodes(ctx context.Context, want int) error {
	config, err := c.Config()
	if err != nil {
		return err
	}
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, clusterTimeout)
	defer cancel()
	ready := 0
	err = wait.PollUntilContextCancel(ctx, pollNodes, true, func(ctx context.Context) (bool, error) {
		nodes, err := clients.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		ready = 0
		for _, node := range nodes.Items {
			if isReady(&node) {
				ready++
			}
		}
		_, err = clients.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return ready >= want, err
	})
	if err != nil {
		return fmt.Errorf("waiting for the default ServiceAccount and %d ready nodes (%d are): %w", want, ready, err)
	}
	return nil
}

func isReady(node *corev1.Node) bool {
	for _, condition := range node.Status.Conditions {
		if condition.Type == corev1.NodeReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}
