// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"io"
	"path/filepath"
	"strings"
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

func TestUpIsIdempotentAndDownRemovesEverything(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cluster")
	verb := func(verb string) (string, string, error) {
		t.Helper()
		var out, progress bytes.Buffer
		err := run(t.Context(), options{verb: verb, dir: dir, nodes: 1}, &out, &progress)
		return out.String(), progress.String(), err
	}
	if _, _, err := verb("down"); !errors.Is(err, development.ErrNoCluster) {
		t.Fatalf("down without a cluster: %v", err)
	}
	t.Cleanup(func() {
		if _, _, err := verb("down"); err != nil && !errors.Is(err, development.ErrNoCluster) {
			t.Errorf("cleaning up: %v", err)
		}
	})
	first, _, err := verb("up")
	if err != nil || !strings.HasPrefix(first, `export KUBECONFIG="`+dir) {
		t.Fatalf("up: %q, %v", first, err)
	}
	again, progress, err := verb("up")
	if err != nil || again != first || progress != "the cluster runs already\n" {
		t.Errorf("up again: %q, %q, %v", again, progress, err)
	}
	if environment, _, err := verb("env"); err != nil || environment != first {
		t.Errorf("env: %q, %v", environment, err)
	}
	if _, _, err := verb("down"); err != nil {
		t.Fatalf("down: %v", err)
	}
	if _, _, err := verb("env"); !errors.Is(err, development.ErrNoCluster) {
		t.Errorf("after down: %v", err)
	}
}
