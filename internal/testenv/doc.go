// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

// Package testenv is the one test harness: it starts a real API server, installs the manifests as they were generated, and
// gives tests clients that act as a chosen user. It is for tests alone.
//
// There are two kinds of cluster behind the same Env. Start gives the control plane of controller-runtime's envtest, etcd and
// an API server: nothing else moves, so a test plays the kubelet, the scheduler and the garbage collector itself. StartEmbedded
// adds the real controller manager and scheduler, and nodes simulated by kwok on which pods turn Running.
//
// The API server keeps an audit log, from which Env.Writes tells what a user wrote. Env.NewProxy puts a proxy before the API
// server that cuts a chosen request off, for tests that kill a process at a chosen moment.
//
// The binaries come from KUBEBUILDER_ASSETS, or are built once by hack/controlplane.sh.
package testenv
