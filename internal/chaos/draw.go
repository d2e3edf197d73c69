// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"crypto/sha256"
	"encoding/binary"
	"math/rand/v2"
	"strconv"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// lot is what chance has in store for one candidate.
type lot struct {
	// percent is uniform over 0..99: the candidate is drawn if it is less than the eagerness.
	percent int32
	// rank decides who is spared when more are drawn than the bound allows: the highest.
	rank uint64
}

// draw draws the lot of one candidate, of which nobody else's candidacy or lot can change anything. That makes a cycle
// repeatable by its seed, and lets one that was interrupted go on with the same victims.
func draw(seed int64, key Key) lot {
	hash := sha256.New()
	var number [8]byte
	binary.BigEndian.PutUint64(number[:], uint64(seed)) //nolint:gosec // The bits are wanted, not the number.
	hash.Write(number[:])
	// None of the three can contain a slash.
	hash.Write([]byte(string(key.Mode) + "/" + key.Namespace + "/" + key.Name))
	source := rand.New(rand.NewChaCha8([32]byte(hash.Sum(nil)))) //nolint:gosec // Chance has to be repeatable here, not secret.
	// Int32N rejects the few values that would favour some percents over others.
	return lot{percent: source.Int32N(100), rank: source.Uint64()}
}

func formatRank(rank uint64) string { return strconv.FormatUint(rank, 10) }

func groupOf(apiVersion string) string {
	version, err := schema.ParseGroupVersion(apiVersion)
	if err != nil {
		return ""
	}
	return version.Group
}
