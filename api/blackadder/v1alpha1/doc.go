// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 is the first API of ChaosAgent, which knows pods alone. What the stored version knows beyond it travels
// in an annotation.
//
// +kubebuilder:object:generate=true
// +groupName=blackadder.io
package v1alpha1
