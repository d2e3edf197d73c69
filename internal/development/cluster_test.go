// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package development

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

func TestStartClusterRefusesAFolderThatItCannotUse(t *testing.T) {
	full := filepath.Join(t.TempDir(), "full")
	write(t, filepath.Join(full, "thesis.txt"), "")
	file := filepath.Join(full, "thesis.txt")
	for dir, want := range map[string]string{
		"/tmp/a b": `the path of the cluster's folder, /tmp/a b, has a ' ' in it: choose a path of letters, digits and /._-+@=~ only`,
		"/tmp/a,b": `the path of the cluster's folder, /tmp/a,b, has a ',' in it: choose a path of letters, digits and /._-+@=~ only`,
		"/tmp/a:b": `the path of the cluster's folder, /tmp/a:b, has a ':' in it: choose a path of letters, digits and /._-+@=~ only`,
		full:       full + " is not empty, and would be removed with the cluster: choose a new folder",
		file:       "looking into the cluster's folder: open " + file + ": not a directory",
	} {
		_, err := StartCluster(t.Context(), ClusterOptions{Dir: dir})
		// What the system says about a file that is no folder differs between systems in the call's name alone.
		if err == nil || strings.Replace(err.Error(), "fdopendir", "open", 1) != want {
			t.Errorf("%s: got %v, want %s", dir, err, want)
		}
	}
	if _, err := os.Stat(file); err != nil {
		t.Errorf("the refused folder is not as it was: %v", err)
	}
}

func TestOpenClusterReadsTheRecord(t *testing.T) {
	dir := t.TempDir()
	if _, err := OpenCluster(dir); !errors.Is(err, ErrNoCluster) || err.Error() != dir+": no cluster was started here" {
		t.Errorf("without a record: %v", err)
	}
	record := filepath.Join(dir, clusterRecord)
	for content, want := range map[string]string{
		"":             "reading the cluster's record " + record + ": unexpected end of JSON input",
		`{"dir": ""}`:  "the cluster's record " + record + ` names no folder, but ""`,
		`{"dir": "/"}`: "the cluster's record " + record + ` names no folder, but "/"`,
	} {
		write(t, record, content)
		if _, err := OpenCluster(dir); err == nil || err.Error() != want {
			t.Errorf("record %q: got %v, want %s", content, err, want)
		}
	}
	write(t, record, `{"dir": "/was/here", "nodes": 2}`)
	cluster, err := OpenCluster(dir)
	if err != nil || cluster.Dir != "/was/here" || cluster.Nodes != 2 {
		t.Fatalf("got %+v, %v", cluster, err)
	}
	if err := cluster.Answers(t.Context()); !errors.Is(err, errUnfinished) {
		t.Errorf("an unfinished start: %v", err)
	}
}

func TestStopEndsTheClustersProgramsAndNobodyElses(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cluster")
	cluster := &Cluster{Dir: dir, Name: clusterName, folder: dir}
	pids := filepath.Join(dir, "clusters", clusterName, "pids")
	starter, program, stranger := run(t, dir+"/settings.yaml"), run(t, dir+"/bin/etcd"), run(t, dir+"2/bin/etcd")
	gone := run(t, dir+"/bin/kwok")
	gone.kill()
	write(t, filepath.Join(dir, kwokctlPID), strconv.Itoa(starter.pid))
	write(t, filepath.Join(pids, "etcd.pid"), strconv.Itoa(program.pid))
	write(t, filepath.Join(pids, "kube-scheduler.pid"), strconv.Itoa(stranger.pid))
	write(t, filepath.Join(pids, "kwok-controller.pid"), strconv.Itoa(gone.pid))
	write(t, filepath.Join(pids, "kube-apiserver.pid"), "")
	write(t, filepath.Join(pids, "kube-controller-manager.pid"), "-1")

	if err := cluster.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the folder is still there: %v", err)
	}
	if !starter.ended() || !program.ended() {
		t.Error("Stop returned before the cluster's programs were gone")
	}
	if stranger.ended() {
		t.Error("Stop ended somebody else's program")
	}
	stranger.kill()
	if err := cluster.Stop(t.Context()); err != nil {
		t.Errorf("again: %v", err)
	}
}

func TestAProgramThatEndedIsNamedWithItsLastWords(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cluster")
	cluster := &Cluster{Dir: dir, Name: clusterName, folder: dir}
	if err := cluster.complete(t.Context()); err != nil {
		t.Errorf("before any program was started: %v", err)
	}
	program := run(t, dir+"/bin/kwok-controller")
	write(t, filepath.Join(dir, "clusters", clusterName, "pids", "kwok-controller.pid"), strconv.Itoa(program.pid))
	write(t, filepath.Join(dir, "clusters", clusterName, "logs", "kwok-controller.log"), "starting\nconflicting flags\n")
	if err := cluster.complete(t.Context()); err != nil {
		t.Errorf("while it runs: %v", err)
	}
	program.kill()
	want := "kwok-controller ended, and said last: conflicting flags"
	if err := cluster.complete(t.Context()); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

type running struct {
	pid   int
	kill  func()
	ended func() bool
}

// run starts a program with an argument, which does nothing until the test ends.
func run(t *testing.T, argument string) running {
	t.Helper()
	command := exec.CommandContext(t.Context(), "sh", "-c", "read line; exit", argument)
	// Without an end of the input the shell waits for ever.
	input, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		_ = command.Wait()
	}()
	kill := func() {
		_ = command.Process.Kill()
		<-over
		input.Close()
	}
	t.Cleanup(kill)
	return running{command.Process.Pid, kill, func() bool {
		// A program that was killed stays in the list of processes, but without its arguments, until the test hears of its end.
		named := &Cluster{Dir: filepath.Dir(argument)}
		return !named.owns(t.Context(), command.Process.Pid)
	}}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}
