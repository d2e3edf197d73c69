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
	"unicode"

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
	pollProcess    = 10 * time.Millisecond
	killDelay      = 5 * time.Second
	// answerTimeout is for an API server that is there and slow; one that is gone refuses the connection at once.
	answerTimeout = 30 * time.Second
	clusterName   = "blackadder"
	// clusterRecord is the file in a cluster's folder by which another process finds it.
	clusterRecord = "cluster.json"
	// kwokctlPID is the file with the process of a kwokctl that is at work.
	kwokctlPID = "kwokctl.pid"
)

// ErrNoCluster says that a folder holds no cluster.
var ErrNoCluster = errors.New("no cluster was started here")

// errUnfinished says that whoever started a cluster was ended before it was ready.
var errUnfinished = errors.New("its start was not finished")

// ClusterOptions choose what StartCluster starts.
type ClusterOptions struct {
	// Dir is the folder for everything that the cluster keeps. It is made if there is none, is empty otherwise, and goes
	// when the cluster stops. Its absolute path has only letters, digits and /._-+@=~ in it, because kwokctl and KUBECONFIG
	// take others for separators.
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
	// Dir is the absolute path of the folder in which the cluster was started.
	Dir string `json:"dir"`
	// Name is the cluster's name among kwokctl's.
	Name string `json:"name"`
	// Nodes is how many simulated nodes it was started with.
	Nodes int `json:"nodes"`
	// Kubeconfig is the absolute path of a kubeconfig of an administrator.
	Kubeconfig string `json:"kubeconfig"`
	// Kubectl is the absolute path of a kubectl of the cluster's version.
	Kubectl string `json:"kubectl"`
	// Kwokctl is the absolute path of the program that started the cluster.
	Kwokctl string `json:"kwokctl"`
	// AuditLog is the absolute path of the audit log, which exists only if there is an audit policy.
	AuditLog string `json:"auditLog"`
	// Finished tells that StartCluster came to its end; without it, only Stop makes sense.
	Finished bool `json:"finished"`

	// folder is where the cluster's files are now: another path than Dir if somebody moved them since.
	folder string
}

// StartCluster starts an embedded cluster through kwokctl and waits until pods can run in it: the nodes are ready, and the
// controller manager, which makes the default ServiceAccount, works. It refuses a folder that is not empty, whatever is in it.
// The error of a start in which a program ended has that program's last words. After an error nothing is left running.
func StartCluster(ctx context.Context, options ClusterOptions) (*Cluster, error) {
	dir, err := filepath.Abs(options.Dir)
	if err != nil {
		return nil, fmt.Errorf("finding the cluster's folder: %w", err)
	}
	if err := checkClusterDir(dir); err != nil {
		return nil, err
	}
	paths, err := Binaries(ctx, options.Root,
		"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kwokctl", "kwok")
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("making the cluster's folder: %w", err)
	}
	cluster := &Cluster{
		Dir: dir, Name: clusterName, Nodes: options.Nodes, Kubeconfig: filepath.Join(dir, "kubeconfig"),
		Kubectl: paths["kubectl"], Kwokctl: paths["kwokctl"],
		AuditLog: filepath.Join(dir, "clusters", clusterName, "logs", "audit.log"), folder: dir,
	}
	// The record comes first, so that a start that is killed half-way can still be cleaned up.
	if err := cluster.record(); err != nil {
		return nil, err
	}
	err = cluster.start(ctx, options, paths)
	if err == nil {
		cluster.Finished = true
		err = cluster.record()
	}
	if err != nil {
		// The context of the start may be over by now.
		return nil, errors.Join(err, cluster.Stop(context.WithoutCancel(ctx)))
	}
	return cluster, nil
}

// checkClusterDir refuses a folder whose path kwokctl misreads, or that has something in it: stopping a cluster removes it.
func checkClusterDir(dir string) error {
	for _, r := range dir {
		if !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("/._-+@=~", r) {
			return fmt.Errorf("the path of the cluster's folder, %s, has a %q in it: choose a path of letters, digits and /._-+@=~ only", dir, r)
		}
	}
	entries, err := os.ReadDir(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("looking into the cluster's folder: %w", err)
	case len(entries) > 0:
		return fmt.Errorf("%s is not empty, and would be removed with the cluster: choose a new folder", dir)
	}
	return nil
}

// OpenCluster finds the cluster that was started in dir, perhaps by another process, and perhaps not to the end: Answers
// tells. It returns an ErrNoCluster if there is none.
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
	cluster := &Cluster{Dir: dir, Name: clusterName, folder: dir}
	if err := json.Unmarshal(text, cluster); err != nil {
		return nil, fmt.Errorf("reading the cluster's record %s: %w", filepath.Join(dir, clusterRecord), err)
	}
	// Stop knows the cluster's programs by its folder, and an empty one would make all programs its own.
	if !filepath.IsAbs(cluster.Dir) || filepath.Dir(cluster.Dir) == cluster.Dir {
		return nil, fmt.Errorf("the cluster's record %s names no folder, but %q", filepath.Join(dir, clusterRecord), cluster.Dir)
	}
	return cluster, nil
}

func (c *Cluster) record() error {
	text, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return fmt.Errorf("writing the cluster's record: %w", err)
	}
	return replaceFile(filepath.Join(c.folder, clusterRecord), text)
}

// Stop ends the cluster's programs, waits until they are gone, and removes its folder. It goes by the process numbers that
// were recorded, and only by those that are still the cluster's: after a crash they may be somebody else's. It needs no other
// program, so that it works for a cluster that was started half-way or whose binaries are gone. An error says which program
// goes on, or what cannot be removed; Stop may then be repeated.
func (c *Cluster) Stop(ctx context.Context) error {
	// A kwokctl that outlived its caller would start more, and goes first.
	if err := c.end(ctx, filepath.Join(c.folder, kwokctlPID)); err != nil {
		return err
	}
	records, err := c.records()
	if err != nil {
		return err
	}
	if err := c.end(ctx, records...); err != nil {
		return err
	}
	if err := os.RemoveAll(c.folder); err != nil {
		return fmt.Errorf("removing the cluster's folder: %w", err)
	}
	return nil
}

// records are the files in which kwokctl keeps the process numbers of the cluster's programs.
func (c *Cluster) records() ([]string, error) {
	var paths []string
	folder := filepath.Join(c.folder, "clusters", c.Name, "pids")
	entries, err := os.ReadDir(folder)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("finding the cluster's programs: %w", err)
	}
	for _, entry := range entries {
		if filepath.Ext(entry.Name()) == ".pid" {
			paths = append(paths, filepath.Join(folder, entry.Name()))
		}
	}
	return paths, nil
}

// process is the number in a record if that process runs and is the cluster's, and 0 otherwise.
func (c *Cluster) process(ctx context.Context, record string) (int, error) {
	text, err := os.ReadFile(record)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("finding the cluster's programs: %w", err)
	}
	// A file that was being written when the machine stopped may be empty; what it would name stopped, too.
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || pid <= 0 || !c.owns(ctx, pid) {
		return 0, nil //nolint:nilerr // As said, an unreadable number is that of no process.
	}
	return pid, nil
}

// end kills the cluster's programs whose numbers are in the given files, and waits until they are gone.
func (c *Cluster) end(ctx context.Context, records ...string) error {
	names := map[int]string{}
	for _, record := range records {
		pid, err := c.process(ctx, record)
		if err != nil {
			return err
		}
		if pid == 0 {
			continue
		}
		names[pid] = strings.TrimSuffix(filepath.Base(record), ".pid")
		process, err := os.FindProcess(pid)
		if err == nil {
			err = process.Kill()
		}
		if err != nil && !errors.Is(err, os.ErrProcessDone) {
			return fmt.Errorf("ending %s (process %d): %w", names[pid], pid, err)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, clusterTimeout)
	defer cancel()
	for pid, name := range names {
		err := wait.PollUntilContextCancel(ctx, pollProcess, true, func(ctx context.Context) (bool, error) { return !c.owns(ctx, pid), nil })
		if err != nil {
			return fmt.Errorf("waiting until %s (process %d) is gone: %w", name, pid, err)
		}
	}
	return nil
}

// complete returns an error with the last words of a program that was started and is gone.
func (c *Cluster) complete(ctx context.Context) error {
	records, err := c.records()
	if err != nil {
		return err
	}
	for _, record := range records {
		pid, err := c.process(ctx, record)
		if err != nil {
			return err
		}
		if pid == 0 && ctx.Err() == nil {
			name := strings.TrimSuffix(filepath.Base(record), ".pid")
			log, err := os.ReadFile(filepath.Join(c.folder, "clusters", c.Name, "logs", name+".log"))
			lines := strings.Split(strings.TrimSpace(string(log)), "\n")
			return errors.Join(fmt.Errorf("%s ended, and said last: %s", name, lines[len(lines)-1]), err)
		}
	}
	return nil
}

// owns tells whether a process runs that names the cluster's folder in its command line, as all its programs do.
func (c *Cluster) owns(ctx context.Context, pid int) bool {
	line, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	if err != nil {
		// Elsewhere than on Linux there is no /proc; on Linux the process is gone, or ps will say so.
		if line, err = exec.CommandContext(ctx, "ps", "-ww", "-o", "args=", "-p", strconv.Itoa(pid)).Output(); err != nil {
			return false
		}
	}
	return bytes.Contains(line, []byte(c.Dir+string(filepath.Separator)))
}

// Config is the configuration of the cluster's administrator, with the content of the certificates. It fails if they or the
// kubeconfig cannot be read.
func (c *Cluster) Config() (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig)
	if err == nil {
		err = rest.LoadTLSFiles(config)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the cluster's kubeconfig: %w", err)
	}
	// By their names client-go would take this cluster's authority for that of an earlier one in the same folder.
	config.CAFile, config.CertFile, config.KeyFile = "", "", ""
	return config, nil
}

// Answers tells whether the cluster was started to the end and its API server is ready; the error says what is wrong. An API
// server that does not refuse the connection gets half a minute.
func (c *Cluster) Answers(ctx context.Context) error {
	if !c.Finished {
		return errUnfinished
	}
	config, err := c.Config()
	if err != nil {
		return err
	}
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	if err := clients.Discovery().RESTClient().Get().AbsPath("/readyz").Timeout(answerTimeout).Do(ctx).Error(); err != nil {
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
	// A kubectl that kwokctl started holds the output open when kwokctl is killed.
	command.WaitDelay = killDelay
	err := command.Start()
	if err == nil {
		record := filepath.Join(c.folder, kwokctlPID)
		written := replaceFile(record, []byte(strconv.Itoa(command.Process.Pid)))
		err = errors.Join(command.Wait(), written)
		os.Remove(record)
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(ctx.Err(), context.Canceled):
		// What kwokctl said until it was interrupted is no explanation.
		return fmt.Errorf("kwokctl %s %s: %w", args[0], args[1], ctx.Err())
	default:
		return fmt.Errorf("kwokctl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(output.String()))
	}
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
		// Of the nodes only those that kwokctl made itself, so that a test can have one on which nobody answers. kwokctl gives
		// kwok --manage-all-nodes=true, which a configuration file does not take back; the flag's second mention does.
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
		if err := c.complete(ctx); err != nil {
			return false, err
		}
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
