// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package development

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

const assetsVariable = "KUBEBUILDER_ASSETS"

// Binaries finds the named programs of the control plane, each in KUBEBUILDER_ASSETS or else in the cache of
// hack/controlplane.sh, which builds those that are missing. It returns their absolute paths by name.
func Binaries(ctx context.Context, root string, names ...string) (map[string]string, error) {
	assets := os.Getenv(assetsVariable)
	if assets != "" {
		var err error
		if assets, err = filepath.Abs(assets); err != nil {
			return nil, fmt.Errorf("finding the folder %s: %w", assetsVariable, err)
		}
	}
	paths := map[string]string{}
	var wanted []string
	for _, name := range names {
		if path := filepath.Join(assets, name); assets != "" && isExecutable(path) {
			paths[name] = path
		} else {
			wanted = append(wanted, name)
		}
	}
	if len(wanted) == 0 {
		return paths, nil
	}
	output, err := controlplane(ctx, root, "path")
	if err != nil {
		return nil, err
	}
	cache := strings.TrimSpace(output)
	var missing []string
	for _, name := range wanted {
		paths[name] = filepath.Join(cache, name)
		if !isExecutable(paths[name]) {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		if _, err := controlplane(ctx, root, append([]string{"build"}, missing...)...); err != nil {
			return nil, err
		}
	}
	return paths, nil
}

// controlplane runs hack/controlplane.sh on its cache alone, without KUBEBUILDER_ASSETS, and returns what it prints. Its
// progress goes to the standard error, because a first build takes minutes.
func controlplane(ctx context.Context, root string, args ...string) (string, error) {
	command := exec.CommandContext(ctx, filepath.Join(root, "hack", "controlplane.sh"), args...)
	command.Env = environment(assetsVariable + "=")
	command.Stderr = os.Stderr
	output, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("running hack/controlplane.sh %s: %w", strings.Join(args, " "), err)
	}
	return string(output), nil
}

// environment is the environment of this process with some variables set.
func environment(set ...string) []string { return append(os.Environ(), set...) }

func isExecutable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0
}

// FreePorts finds n different ports on host that nobody listens on now. Somebody else may take one before it is used; the
// ports are held together until all are found, so that they at least differ from each other.
func FreePorts(host string, n int) (ports []int, err error) {
	var held []net.Listener
	defer func() {
		for _, listener := range held {
			err = errors.Join(err, listener.Close())
		}
	}()
	for range n {
		listener, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
		if err != nil {
			return nil, fmt.Errorf("finding a free port on %s: %w", host, err)
		}
		held = append(held, listener)
		ports = append(ports, listener.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}
