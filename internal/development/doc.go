// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

// Package development puts the generated manifests into a cluster for a manager that runs outside of it: on a developer's
// machine, or in a test. It renders config/development, points the webhook configurations at the manager's address, applies
// everything, and makes the kubeconfig that the manager runs with, so that it has exactly the rights that its manifests give.
// Where no cluster is at hand, StartCluster makes one of real control-plane programs and simulated nodes.
package development
