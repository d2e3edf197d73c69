// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 is the API of ImmortalContainer: one precious pod that always comes back and that nobody but its
// controller can delete.
//
// +kubebuilder:object:generate=true
// +kubebuilder:ac:generate=true
// +kubebuilder:ac:output:package=applyconfiguration
// +groupName=immortalcontainer.flugel.it
package v1alpha1
