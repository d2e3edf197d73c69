// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"context"
	"errors"
	"path/filepath"

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

// StartEmbedded starts a development.Cluster and installs the manifests in it. The cluster goes when the test ends; anything
// that goes wrong fails the test at once.
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
	return env, nil
}

func (env *Env) openEmbedded(ctx context.Context, options EmbeddedOptions) error {
	cluster, err := development.StartCluster(ctx, development.ClusterOptions{
		Dir: filepath.Join(env.Dir, "cluster"), Root: env.Root, Nodes: options.Nodes, AuditPolicy: env.auditPolicy(),
		APIServerFlags: options.APIServerFlags, ControllerManagerFlags: options.ControllerManagerFlags,
	})
	if err != nil {
		return err
	}
	env.shutdown = func() error { return cluster.Stop(context.WithoutCancel(ctx)) }
	env.kubectl = cluster.Kubectl
	env.audit = &auditLog{path: cluster.AuditLog}
	if env.AdminConfig, err = cluster.Config(); err != nil {
		return err
	}
	return development.WriteKubeconfig(env.AdminConfig, "default", env.Kubeconfig)
}
