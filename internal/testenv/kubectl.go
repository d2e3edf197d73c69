// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Kubectl runs the real kubectl with AdminConfig's rights and returns what it printed. The error, if any, repeats the standard
// error. It gives up after two minutes.
func (env *Env) Kubectl(args ...string) (stdout, stderr string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), stepTimeout)
	defer cancel()
	command := env.KubectlCommand(ctx, args...)
	var out, errs bytes.Buffer
	command.Stdout, command.Stderr = &out, &errs
	if err := command.Run(); err != nil {
		return out.String(), errs.String(), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(errs.String()))
	}
	return out.String(), errs.String(), nil
}

// KubectlAs runs kubectl as Kubectl does, acting as the given user in the given groups.
func (env *Env) KubectlAs(user string, groups []string, args ...string) (stdout, stderr string, err error) {
	identity := []string{"--as=" + user}
	for _, group := range groups {
		identity = append(identity, "--as-group="+group)
	}
	return env.Kubectl(append(identity, args...)...)
}

// KubectlCommand prepares a kubectl with AdminConfig's rights that the caller starts, for tests that feed it or end it.
func (env *Env) KubectlCommand(ctx context.Context, args ...string) *exec.Cmd {
	command := exec.CommandContext(ctx, env.kubectl, args...)
	// Nothing of the user's own home is read or written: neither a kubeconfig nor kubectl's settings and cache.
	command.Env = append(os.Environ(), "KUBECONFIG="+env.Kubeconfig, "HOME="+env.Dir, "KUBECACHEDIR="+filepath.Join(env.Dir, "kubectl-cache"))
	command.Dir = env.Dir
	return command
}
