// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

// Package certs makes the certificates that a webhook server needs when it runs on a developer's machine or in a test.
//
// A development certificate is made in two steps, the same two that production takes. OpenCA creates a certificate
// authority (ECDSA P-256, ten years) in a folder, or loads the one that is there. CA.WriteServing then signs a
// short-lived leaf for the addresses that the API server calls and writes it as tls.crt and tls.key, the names that a
// mounted kubernetes.io/tls Secret has. What goes into a webhook's caBundle is the authority, CA.Bundle, so that a
// renewed leaf needs no new bundle and no call fails while it is being replaced.
//
// Production uses cert-manager instead: issuers.yaml and certificates.yaml beside this file describe the same chain.
package certs
