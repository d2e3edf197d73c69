// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

// Command cluster starts and stops an embedded cluster for people: real control-plane programs and simulated nodes.
//
//	go run ./hack/cluster up [--dir .dev/cluster] [--nodes 3]
//	go run ./hack/cluster env
//	go run ./hack/cluster down
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
	"unicode"

	"blackadder.io/blackadder/internal/development"
)

const usage = "usage: cluster up|env|down [--dir FOLDER] [--nodes N]"

type options struct {
	verb  string
	dir   string
	nodes int
}

func main() { os.Exit(command()) }

// command returns the exit code, so that what is deferred here is done before the process ends.
func command() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	o, err := parse(os.Args[1:], os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err == nil {
		err = run(ctx, o, os.Stdout, os.Stderr)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		return 1
	}
	return 0
}

func parse(args []string, output io.Writer) (options, error) {
	if len(args) == 0 {
		return options{}, errors.New(usage)
	}
	o := options{verb: args[0]}
	flags := flag.NewFlagSet("cluster", flag.ContinueOnError)
	flags.SetOutput(output)
	flags.StringVar(&o.dir, "dir", filepath.Join(".dev", "cluster"), "`folder` for everything that the cluster keeps; it goes with the cluster")
	flags.IntVar(&o.nodes, "nodes", 3, "`number` of simulated nodes")
	if err := flags.Parse(args[1:]); err != nil {
		return o, err
	}
	switch o.verb {
	case "up", "env", "down":
	default:
		return o, fmt.Errorf("unknown verb %q: %s", o.verb, usage)
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q: %s", flags.Arg(0), usage)
	}
	if o.nodes < 0 {
		return o, fmt.Errorf("--nodes must not be negative, and is %d", o.nodes)
	}
	return o, nil
}

func run(ctx context.Context, o options, out, progress io.Writer) error {
	switch o.verb {
	case "up":
		return up(ctx, o, out, progress)
	case "down":
		return down(ctx, o, progress)
	}
	cluster, err := development.OpenCluster(o.dir)
	if err != nil {
		return err
	}
	return printEnvironment(out, cluster)
}

func up(ctx context.Context, o options, out, progress io.Writer) error {
	cluster, err := development.OpenCluster(o.dir)
	if err == nil {
		wrong := cluster.Answers(ctx)
		if wrong == nil {
			fmt.Fprintf(progress, "the cluster runs already; it was started with %d simulated nodes\n", cluster.Nodes)
			return printEnvironment(out, cluster)
		}
		fmt.Fprintf(progress, "the cluster is replaced, because it does not work: %v\n", wrong)
		if err := cluster.Stop(ctx); err != nil {
			return err
		}
	} else if !errors.Is(err, development.ErrNoCluster) {
		return err
	}
	root, err := development.Root()
	if err != nil {
		return err
	}
	started := time.Now()
	fmt.Fprintln(progress, "starting etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kwok")
	cluster, err = development.StartCluster(ctx, development.ClusterOptions{Dir: o.dir, Root: root, Nodes: o.nodes})
	if err != nil {
		return err
	}
	fmt.Fprintf(progress, "the cluster and its %d nodes are ready after %s\n", o.nodes, time.Since(started).Round(time.Second))
	return printEnvironment(out, cluster)
}

func down(ctx context.Context, o options, progress io.Writer) error {
	cluster, err := development.OpenCluster(o.dir)
	if err != nil {
		return err
	}
	if err := cluster.Stop(ctx); err != nil {
		return err
	}
	fmt.Fprintln(progress, "the cluster is gone")
	return nil
}

// printEnvironment prints the line that makes a shell use the cluster.
func printEnvironment(out io.Writer, cluster *development.Cluster) error {
	_, err := fmt.Fprintf(out, "export KUBECONFIG=%s PATH=%s:$PATH\n", quote(cluster.Kubeconfig), quote(filepath.Dir(cluster.Kubectl)))
	return err
}

// quote makes one word of a shell's of a path, which looks like the path itself where that is possible.
func quote(path string) string {
	plain := strings.IndexFunc(path, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("/._-+@", r)
	}) < 0
	if plain {
		return path
	}
	return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'"
}
