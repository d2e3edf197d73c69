// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"crypto/sha256"
	"fmt"
	"math/rand/v2"

	"github.com/brianvoe/gofakeit/v7"
)

const (
	// mostData is what the API server takes as the sum of a ConfigMap's values, in bytes (k8s.io/api/core/v1, MaxSecretSize).
	mostData = 1 << 20
	// modestData is what any ConfigMap may grow to, in bytes. Beyond it none grows: the text must not be a bomb.
	modestData = 64 << 10
)

// Lorem is the paragraph that a cycle overwrites a ConfigMap's values with: the same for the same seed, cycle and object. It is
// cut so that the values together fit into what a ConfigMap may hold beside its binary data, and do not outgrow the larger of
// what they were and 64 KiB. It is empty if not a single letter fits.
func Lorem(seed, cycle int64, key Key, data map[string]string, binaryData map[string][]byte) string {
	size, binary := 0, 0
	for _, value := range data {
		size += len(value)
	}
	for _, value := range binaryData {
		binary += len(value)
	}
	each := min(mostData-binary, max(size, modestData)) / max(len(data), 1)
	sum := sha256.Sum256(fmt.Appendf(nil, "%d/%d/%s", seed, cycle, key))
	paragraph := gofakeit.NewFaker(rand.NewChaCha8(sum), false).LoremIpsumParagraph(1, 5, 9, "\n")
	return paragraph[:max(0, min(len(paragraph), each))]
}
