// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

// Package webhooks holds the admission webhooks: each gathers the facts of a request, asks the kind's domain package
// under internal/ for the answer, and hands it to the API server.
package webhooks

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"

	"blackadder.io/blackadder/internal/namespaces"
	"blackadder.io/blackadder/internal/survey"
	"blackadder.io/blackadder/webhooks/fielderrors"
)

// Options are the settings that the webhooks follow.
type Options struct {
	// DefaultImage is the image of an ImmortalContainer that names none.
	DefaultImage string
	// Protection is what no ChaosAgent reaches.
	Protection namespaces.Protection
	// ControllerUser is the user name of the operator itself, which may touch the pods that it protects from others.
	ControllerUser string
	// Clock tells the time; nil stands for the real one.
	Clock clock.PassiveClock
	// Metrics takes the webhooks' metrics; nil keeps them to themselves.
	Metrics prometheus.Registerer
}

// Setup registers every webhook with the manager's webhook server. They serve on every replica, leader or not.
func Setup(mgr ctrl.Manager, options Options) error {
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	if options.Metrics == nil {
		options.Metrics = prometheus.NewRegistry()
	}
	immortalContainer := &immortalContainerWebhook{
		defaultImage: options.DefaultImage,
		clock:        options.Clock,
		client:       mgr.GetClient(),
		reader:       mgr.GetAPIReader(),
		recorder:     mgr.GetEventRecorder("blackadder-admission"),
		fields:       fielderrors.New(),
	}
	if err := immortalContainer.setup(mgr); err != nil {
		return fmt.Errorf("setting up the webhooks of ImmortalContainer: %w", err)
	}
	chaosAgent := &chaosAgentWebhook{
		clock:  options.Clock,
		client: mgr.GetClient(),
		survey: survey.New(mgr.GetCache(), mgr.GetAPIReader(), options.Protection),
		fields: fielderrors.New(),
	}
	if err := chaosAgent.setup(mgr); err != nil {
		return fmt.Errorf("setting up the webhooks of ChaosAgent: %w", err)
	}
	if err := setupProtection(mgr, options); err != nil {
		return fmt.Errorf("setting up the protection of immortal pods: %w", err)
	}
	return nil
}
