// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"blackadder.io/blackadder/internal/development"
)

func TestParse(t *testing.T) {
	for name, c := range map[string]struct {
		args  []string
		want  options
		fault string
	}{
		"up":        {[]string{"up"}, options{"up", filepath.Join(".dev", "cluster"), 3}, ""},
		"up, all":   {[]string{"up", "--dir", "d", "--nodes", "0"}, options{"up", "d", 0}, ""},
		"nothing":   {nil, options{}, usage},
		"unknown":   {[]string{"sideways"}, options{}, `unknown verb "sideways": ` + usage},
		"too much":  {[]string{"up", "x"}, options{}, `unexpected argument "x": ` + usage},
		"too few":   {[]string{"up", "--nodes=-1"}, options{}, "--nodes must not be negative, and is -1"},
		"down, env": {[]string{"env", "--dir=d"}, options{"env", "d", 3}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parse(c.args, io.Discard)
			if c.fault != "" {
				if err == nil || err.Error() != c.fault {
					t.Errorf("got %v, want %s", err, c.fault)
				}
			} else if err != nil || got != c.want {
				t.Errorf("got %+v, %v", got, err)
			}
		})
	}
}

func TestEnvironmentIsOneLineThatAShellReads(t *testing.T) {
	for name, c := range map[string]struct{ kubeconfig, kubectl, want string }{
		"plain":  {"/home/é/.dev/cluster/kubeconfig", "/cache/v1.36/kubectl", "export KUBECONFIG=/home/é/.dev/cluster/kubeconfig PATH=/cache/v1.36:$PATH\n"},
		"quoted": {"/home/~/kubeconfig", "/it's $HOME/kubectl", `export KUBECONFIG='/home/~/kubeconfig' PATH='/it'\''s $HOME':$PATH` + "\n"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			if err := printEnvironment(&out, &development.Cluster{Kubeconfig: c.kubeconfig, Kubectl: c.kubectl}); err != nil || out.String() != c.want {
				t.Fatalf("got %q, %v, want %q", out.String(), err, c.want)
			}
			shell := exec.CommandContext(t.Context(), "sh", "-c", out.String()+`printf '%s\n' "$KUBECONFIG" "${PATH%%:*}"`)
			if read, err := shell.Output(); err != nil || string(read) != c.kubeconfig+"\n"+filepath.Dir(c.kubectl)+"\n" {
				t.Errorf("the shell reads %q, %v", read, err)
			}
		})
	}
}

func TestUpReplacesAClusterThatDoesNotAnswer(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cluster")
	o := options{verb: "up", dir: dir}
	t.Cleanup(func() { stop(t, dir) })
	if err := run(t.Context(), o, io.Discard, io.Discard); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "clusters", "blackadder", "pids", "kube-apiserver.pid"))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(string(text))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	var progress bytes.Buffer
	if err := run(t.Context(), o, io.Discard, &progress); err != nil {
		t.Fatal(err)
	}
	if want := "the cluster is replaced, because it does not work: "; !strings.HasPrefix(progress.String(), want) {
		t.Errorf("got %q, want %q and why", progress.String(), want)
	}
	cluster, err := development.OpenCluster(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := cluster.Answers(t.Context()); err != nil {
		t.Error(err)
	}
}

func stop(t *testing.T, dir string) {
	t.Helper()
	cluster, err := development.OpenCluster(dir)
	if errors.Is(err, development.ErrNoCluster) {
		return
	}
	// The test's own context is over by now.
	if err == nil {
		err = cluster.Stop(context.Background())
	}
	if err != nil {
		t.Errorf("cleaning up: %v", err)
	}
}

func TestUpIsIdempotentAndDownRemovesEverything(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cluster")
	verb := func(verb string) (out, progress string, err error) {
		t.Helper()
		var outBuffer, progressBuffer bytes.Buffer
		err = run(t.Context(), options{verb: verb, dir: dir, nodes: 1}, &outBuffer, &progressBuffer)
		return outBuffer.String(), progressBuffer.String(), err
	}
	none := dir + ": no cluster was started here"
	for _, name := range []string{"down", "env"} {
		if out, _, err := verb(name); !errors.Is(err, development.ErrNoCluster) || err.Error() != none || out != "" {
			t.Fatalf("%s without a cluster: %q, %v", name, out, err)
		}
	}
	t.Cleanup(func() { stop(t, dir) })
	for round := 1; round <= 2; round++ {
		first, _, err := verb("up")
		if err != nil || !strings.HasPrefix(first, "export KUBECONFIG="+dir+"/kubeconfig PATH=") || strings.Count(first, "\n") != 1 {
			t.Fatalf("round %d, up: %q, %v", round, first, err)
		}
		again, progress, err := verb("up")
		if err != nil || again != first || progress != "the cluster runs already; it was started with 1 simulated nodes\n" {
			t.Errorf("round %d, up again: %q, %q, %v", round, again, progress, err)
		}
		if environment, progress, err := verb("env"); err != nil || environment != first || progress != "" {
			t.Errorf("round %d, env: %q, %q, %v", round, environment, progress, err)
		}
		cluster, err := development.OpenCluster(dir)
		if err != nil {
			t.Fatal(err)
		}
		if _, progress, err := verb("down"); err != nil || progress != "the cluster is gone\n" {
			t.Fatalf("round %d, down: %q, %v", round, progress, err)
		}
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("round %d: down left the folder: %v", round, err)
		}
		if _, _, err := verb("env"); err == nil || err.Error() != none {
			t.Errorf("round %d, env after down: %v", round, err)
		}
		if cluster.Nodes != 1 || !cluster.Finished {
			t.Errorf("round %d, the record: %+v", round, cluster)
		}
	}
}
