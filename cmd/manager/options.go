// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"blackadder.io/blackadder/webhooks/fielderrors"
)

// environmentPrefix begins the name of the environment variable behind each flag: BLACKADDER_DEFAULT_IMAGE for
// --default-image.
const environmentPrefix = "BLACKADDER_"

// options are the operator's settings. Each is a flag with the name in its json tag and an environment variable.
type options struct {
	Kubeconfig          string     `json:"kubeconfig" validate:"omitempty,file"`
	Namespace           string     `json:"namespace" validate:"omitempty,namespace_name"`
	DefaultImage        string     `json:"default-image" validate:"required,image_reference"`
	ProtectedNamespaces stringList `json:"protected-namespaces" validate:"dive,namespace_name"`
	WebhookAddress      string     `json:"webhook-address" validate:"required,listen_address,ne=0"`
	WebhookCertDir      string     `json:"webhook-cert-dir" validate:"required,dir"`
	MetricsAddress      string     `json:"metrics-address" validate:"required,listen_address"`
	HealthAddress       string     `json:"health-address" validate:"required,listen_address"`
	LeaderElect         bool       `json:"leader-elect"`
	LogFormat           string     `json:"log-format" validate:"oneof=json console"`
	LogLevel            string     `json:"log-level" validate:"oneof=debug info error"`

	version bool
}

// stringList is a flag of comma-separated values.
type stringList []string

// String implements flag.Value.
func (l *stringList) String() string { return strings.Join(*l, ",") }

// Set implements flag.Value. The empty string is the empty list.
func (l *stringList) Set(value string) error {
	*l = stringList{}
	for name := range strings.SplitSeq(value, ",") {
		if name = strings.TrimSpace(name); name != "" {
			*l = append(*l, name)
		}
	}
	return nil
}

// parseOptions reads the settings from the command line, and from the environment what the command line leaves out. It
// returns flag.ErrHelp after printing the help, and otherwise an error with one line for each fault.
func parseOptions(arguments []string, lookup func(string) (string, bool)) (options, error) {
	var o options
	flags := flag.NewFlagSet("manager", flag.ContinueOnError)
	flags.SetOutput(os.Stderr)
	flags.StringVar(&o.Kubeconfig, "kubeconfig", "", "kubeconfig `file` to use outside a cluster; it must hold credentials of the operator's own ServiceAccount")
	flags.StringVar(&o.Namespace, "namespace", "", "the operator's own `namespace`; left out, that of its ServiceAccount")
	flags.StringVar(&o.DefaultImage, "default-image", "nginx:latest", "`image` of an ImmortalContainer that names none")
	o.ProtectedNamespaces = stringList{"kube-system"}
	flags.Var(&o.ProtectedNamespaces, "protected-namespaces", "comma-separated `namespaces` that no ChaosAgent may reach; the operator's own is always one of them")
	flags.StringVar(&o.WebhookAddress, "webhook-address", ":9443", "`host:port` that the admission webhooks are served at")
	flags.StringVar(&o.WebhookCertDir, "webhook-cert-dir", "/etc/blackadder/certs", "`folder` with tls.crt and tls.key for the webhooks and the metrics; read again when they change")
	flags.StringVar(&o.MetricsAddress, "metrics-address", ":8443", "`host:port` that the metrics are served at, over TLS and to authorized clients; 0 for none")
	flags.StringVar(&o.HealthAddress, "health-address", ":8081", "`host:port` of /healthz and /readyz; 0 for none")
	flags.BoolVar(&o.LeaderElect, "leader-elect", true, "let one replica at a time reconcile; webhooks are served by all")
	flags.StringVar(&o.LogFormat, "log-format", "json", "`format` of the log: json or console")
	flags.StringVar(&o.LogLevel, "log-level", "info", "`level` of the log: debug, info or error")
	flags.BoolVar(&o.version, "version", false, "print the version and exit")

	if err := flags.Parse(arguments); err != nil {
		return o, err
	}
	if rest := flags.Args(); len(rest) > 0 {
		return o, fmt.Errorf("unexpected arguments %q: every setting is a flag", rest)
	}
	faults := fromEnvironment(flags, lookup)
	for _, fault := range fielderrors.New().Struct(&o, nil) {
		faults = append(faults, optionFault(fault))
	}
	return o, errors.Join(faults...)
}

// fromEnvironment sets the flags that the command line leaves out from their environment variables.
func fromEnvironment(flags *flag.FlagSet, lookup func(string) (string, bool)) []error {
	given := map[string]bool{}
	flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
	var faults []error
	flags.VisitAll(func(f *flag.Flag) {
		name := environmentPrefix + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		value, set := lookup(name)
		if !set || given[f.Name] || f.Name == "version" {
			return
		}
		if err := flags.Set(f.Name, value); err != nil {
			faults = append(faults, fmt.Errorf("--%s: Invalid value: %q from %s: %w", f.Name, value, name, err))
		}
	})
	return faults
}

func optionFault(fault *field.Error) error {
	return fmt.Errorf("--%s: %s", fault.Field, fault.ErrorBody())
}
