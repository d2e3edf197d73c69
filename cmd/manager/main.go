// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

// Command manager is the operator: it serves the admission webhooks, and reconciles when it leads.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime/debug"

	"github.com/go-logr/logr"
	"go.uber.org/zap/zapcore"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
)

// version is stamped at build time; a build without it takes what Go knows of the module.
var version = ""

func main() {
	o, err := parseOptions(os.Args[1:], os.LookupEnv)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return
	case o.version:
		fmt.Println(buildVersion())
		return
	case err != nil:
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	if err := run(ctrl.SetupSignalHandler(), o); err != nil {
		fmt.Fprintln(os.Stderr, "manager:", err)
		os.Exit(1)
	}
}

// run is the operator from start to end: it returns nil after an orderly stop by the context.
func run(ctx context.Context, o options) error {
	ctrl.SetLogger(newLogger(o))
	log := ctrl.Log.WithName("setup")
	config, err := restConfig(o)
	if err != nil {
		return err
	}
	identity, err := whoAmI(ctx, config)
	if err != nil {
		return err
	}
	if o.Namespace == "" {
		o.Namespace = identity.namespace
	}
	mgr, err := newManager(config, o, identity)
	if err != nil {
		return err
	}
	log.Info("starting", "version", buildVersion(), "user", identity.user, "namespace", o.Namespace)
	if err := mgr.Start(ctx); err != nil {
		return fmt.Errorf("running: %w", err)
	}
	return nil
}

func newLogger(o options) logr.Logger {
	level := map[string]zapcore.Level{"debug": zapcore.DebugLevel, "info": zapcore.InfoLevel, "error": zapcore.ErrorLevel}[o.LogLevel]
	encoder := zap.JSONEncoder()
	if o.LogFormat == "console" {
		encoder = zap.ConsoleEncoder()
	}
	return zap.New(encoder, zap.Level(level), zap.StacktraceLevel(zapcore.PanicLevel))
}

func buildVersion() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}
