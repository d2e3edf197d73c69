// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

// Command dev prepares a cluster for a manager that runs on this machine, outside of it, and takes that away again.
//
//	go run ./hack/dev --kubeconfig FILE --webhook-address 127.0.0.1:9443
//	go run ./hack/dev --kubeconfig FILE --only-crds
//	go run ./hack/dev --kubeconfig FILE --uninstall
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"blackadder.io/blackadder/certs"
	"blackadder.io/blackadder/internal/development"
)

// uninstallLimit is how long an uninstall waits for definitions to go: a manager that is still running gets the time to
// finish its objects.
const uninstallLimit = time.Minute

type options struct {
	kubeconfig          string
	dir                 string
	webhookAddress      string
	certificateLifetime time.Duration
	tokenLifetime       time.Duration
	onlyCRDs            bool
	uninstall           bool
	uninstallLimit      time.Duration
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
		err = run(ctx, o, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		return 1
	}
	return 0
}

func parse(args []string, usage io.Writer) (options, error) {
	var o options
	flags := flag.NewFlagSet("dev", flag.ContinueOnError)
	flags.SetOutput(usage)
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig of an administrator of the cluster (default: KUBECONFIG, then ~/.kube/config)")
	flags.StringVar(&o.dir, "dir", ".dev", "folder for the certificate authority, the serving certificate and the manager's kubeconfig")
	flags.StringVar(&o.webhookAddress, "webhook-address", "127.0.0.1:9443", "host:port at which the API server reaches the manager's webhooks")
	flags.DurationVar(&o.certificateLifetime, "certificate-lifetime", 30*24*time.Hour, "how long the serving certificate is valid")
	flags.DurationVar(&o.tokenLifetime, "token-lifetime", 24*time.Hour, "how long the manager's kubeconfig is valid")
	flags.BoolVar(&o.onlyCRDs, "only-crds", false, "apply the CustomResourceDefinitions and nothing else")
	flags.BoolVar(&o.uninstall, "uninstall", false, "delete everything from the cluster, with all objects of our kinds")
	flags.DurationVar(&o.uninstallLimit, "uninstall-limit", uninstallLimit, "how long an uninstall waits for the CustomResourceDefinitions to go")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if o.onlyCRDs && o.uninstall {
		return o, errors.New("--only-crds and --uninstall exclude each other")
	}
	return o, nil
}

func run(ctx context.Context, o options, out io.Writer) error {
	config, err := connect(o.kubeconfig)
	if err != nil {
		return err
	}
	root, err := development.Root()
	if err != nil {
		return err
	}
	switch {
	case o.uninstall:
		return uninstall(ctx, o, config, root, out)
	case o.onlyCRDs:
		return applyCRDs(ctx, config, root, out)
	default:
		return install(ctx, o, config, root, out)
	}
}

func connect(kubeconfig string) (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig: %w", err)
	}
	return config, nil
}

func install(ctx context.Context, o options, config *rest.Config, root string, out io.Writer) error {
	host, _, err := net.SplitHostPort(o.webhookAddress)
	if err != nil {
		return fmt.Errorf("--webhook-address is not of the form host:port: %w", err)
	}
	objects, err := development.Render(root)
	if err != nil {
		return err
	}
	ca, err := certs.OpenCA(filepath.Join(o.dir, "ca"))
	if err != nil {
		return err
	}
	certificates := filepath.Join(o.dir, "certs")
	// The certificate names the loopback addresses, too, so that a person can look at the endpoints with curl.
	hosts := []string{host}
	for _, loopback := range []string{"localhost", "127.0.0.1"} {
		if !slices.Contains(hosts, loopback) {
			hosts = append(hosts, loopback)
		}
	}
	if err := ca.WriteServing(certificates, hosts, o.certificateLifetime); err != nil {
		return err
	}
	if err := development.PointWebhooks(objects, o.webhookAddress, ca.Bundle()); err != nil {
		return err
	}
	if err := development.Apply(ctx, config, objects); err != nil {
		return err
	}
	manager := filepath.Join(o.dir, "manager.kubeconfig")
	expires, err := development.WriteManagerKubeconfig(ctx, config, manager, o.tokenLifetime)
	if err != nil {
		return err
	}
	say := lines{out: out}
	say.printf("Applied %d objects to %s.", len(objects), config.Host)
	say.printf("Its webhooks are called at https://%s.", o.webhookAddress)
	say.printf("Serving certificate: %s (valid until %s, signed by %s)", certificates,
		time.Now().Add(o.certificateLifetime).Format(time.DateTime), filepath.Join(o.dir, "ca"))
	say.printf("The manager's kubeconfig: %s (valid until %s)", manager, expires.Local().Format(time.DateTime))
	return say.err
}

func applyCRDs(ctx context.Context, config *rest.Config, root string, out io.Writer) error {
	objects, err := development.RenderFolders(root, "config/crd")
	if err != nil {
		return err
	}
	if err := development.Apply(ctx, config, objects); err != nil {
		return err
	}
	say := lines{out: out}
	say.printf("Applied to %s:", config.Host)
	say.names(objects)
	return say.err
}

func uninstall(ctx context.Context, o options, config *rest.Config, root string, out io.Writer) error {
	objects, err := development.Render(root)
	if err != nil {
		return err
	}
	if err := development.Delete(ctx, config, objects, o.uninstallLimit); err != nil {
		return err
	}
	say := lines{out: out}
	slices.Reverse(objects)
	say.printf("Deleted from %s:", config.Host)
	say.names(objects)
	say.printf("%s keeps its files.", o.dir)
	return say.err
}

// lines prints lines and keeps the first error, so that the caller checks once.
type lines struct {
	out io.Writer
	err error
}

func (l *lines) printf(format string, args ...any) {
	if l.err == nil {
		_, l.err = fmt.Fprintf(l.out, format+"\n", args...)
	}
}

func (l *lines) names(objects []*unstructured.Unstructured) {
	for _, object := range objects {
		l.printf("  %s %s", object.GetKind(), object.GetName())
	}
}
