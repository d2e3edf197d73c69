// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

// Package v1beta1 is the API of ChaosAgent: chaos that is refused when unsafe, bounded when it runs, and undone when it
// stops. It is the stored version, and the hub through which the others are converted.
//
// +kubebuilder:object:generate=true
// +kubebuilder:ac:generate=true
// +kubebuilder:ac:output:package=applyconfiguration
// +groupName=blackadder.io
package v1beta1
