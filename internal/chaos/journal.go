// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/types"
)

// The journal is one Secret for each object that a change is in force on, in the operator's own namespace, which no agent
// reaches. It is named after the object, so that two agents can never hold the same one. A Secret takes as much data as a
// ConfigMap, and is read by fewer people.
const (
	// JournalLabel is on every entry; its value is the UID of the agent that holds the object, or JournalAbandoned.
	JournalLabel = "blackadder.io/chaos-journal"
	// JournalAbandoned is the label's value on an entry that could not be restored before its agent had to go.
	JournalAbandoned = "abandoned"
	// JournalAnnotation holds the Entry as JSON.
	JournalAnnotation = "blackadder.io/chaos-journal-entry"
	// JournalSecretType is the type of the Secrets.
	JournalSecretType = "blackadder.io/chaos-journal" //nolint:gosec // No credential.
)

// Entry is what has to be known to put one object back. The original values of a ConfigMap are the data of the Secret.
type Entry struct {
	// Agent and AgentUID are whose change it is.
	Agent    string    `json:"agent"`
	AgentUID types.UID `json:"agentUID"`
	// Mode, Namespace, Name and UID are the object.
	Mode      Mode      `json:"mode"`
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
	// Cycle that changed it last.
	Cycle int64 `json:"cycle"`
	// Replicas that a Deployment had.
	Replicas int32 `json:"replicas,omitempty"`
	// Wrote is what the agent made of it: replicas, or hashes of texts. The last one may not have been written yet, when the
	// operator ended between the journal and the change, and so the one before it may still stand.
	Wrote []string `json:"wrote"`
}

// Key of the object.
func (e *Entry) Key() Key { return Key{Mode: e.Mode, Namespace: e.Namespace, Name: e.Name} }

// String names the object for people.
func (e *Entry) String() string { return e.Key().String() }

// String names the object for people.
func (k Key) String() string { return k.Mode.Kind() + " " + k.Namespace + "/" + k.Name }

// JournalName is the name of the entry of an object.
func JournalName(key Key) string {
	sum := sha256.Sum256([]byte(string(key.Mode) + "/" + key.Namespace + "/" + key.Name))
	return "chaos-" + hex.EncodeToString(sum[:20])
}

// Encode is the entry as the text of JournalAnnotation.
func (e *Entry) Encode() (string, error) {
	text, err := json.Marshal(e)
	if err != nil {
		return "", fmt.Errorf("encoding the journal entry of %s: %w", e, err)
	}
	return string(text), nil
}

// DecodeEntry reads the annotations of a Secret. The error says what is wrong with them.
func DecodeEntry(annotations map[string]string) (*Entry, error) {
	text, there := annotations[JournalAnnotation]
	if !there {
		return nil, errors.New("it has no annotation " + JournalAnnotation)
	}
	var entry Entry
	if err := json.Unmarshal([]byte(text), &entry); err != nil {
		return nil, fmt.Errorf("its annotation %s: %w", JournalAnnotation, err)
	}
	if entry.Mode.Kind() == "" || entry.Namespace == "" || entry.Name == "" {
		return nil, fmt.Errorf("its annotation %s names no object", JournalAnnotation)
	}
	return &entry, nil
}

// WithScaling is the entry to write before a Deployment with the given replicas is scaled. previous is the one that is there,
// or nil.
func (e Entry) WithScaling(previous *Entry, replicas, to int32) Entry {
	live := strconv.Itoa(int(replicas))
	e.Replicas, e.Wrote = replicas, []string{strconv.Itoa(int(to))}
	// What somebody else has set since is the new original.
	if previous.describes(e) && slices.Contains(previous.Wrote, live) {
		e.Replicas, e.Wrote = previous.Replicas, append([]string{live}, e.Wrote...)
	}
	return e
}

func (e *Entry) describes(other Entry) bool {
	return e != nil && e.AgentUID == other.AgentUID && e.UID == other.UID && e.Mode == other.Mode
}

// Scaled tells whether a Deployment with the given replicas is what the entry's cycle made of it.
func (e *Entry) Scaled(replicas int32) bool {
	return len(e.Wrote) > 0 && e.Wrote[len(e.Wrote)-1] == strconv.Itoa(int(replicas))
}

// RestoredReplicas is what to scale a Deployment back to. It is false if that is none of the agent's business: it has those
// replicas already, or somebody else has set others since.
func (e *Entry) RestoredReplicas(replicas int32) (to int32, restore bool) {
	if replicas == e.Replicas || !slices.Contains(e.Wrote, strconv.Itoa(int(replicas))) {
		return replicas, false
	}
	return e.Replicas, true
}

// WithText is the entry to write before all values of a ConfigMap are overwritten with a text, and the original values that go
// with it. previous and its originals are what is there, or nil.
func (e Entry) WithText(previous *Entry, originals, live map[string]string, text string) (Entry, map[string]string) {
	e.Wrote = []string{hashOf(text)}
	kept := maps.Clone(live)
	if !previous.describes(e) {
		return e, kept
	}
	standing := ""
	for key, value := range live {
		hash := hashOf(value)
		original, known := originals[key]
		// What somebody else has set since is the new original.
		if known && slices.Contains(previous.Wrote, hash) {
			kept[key], standing = original, hash
		}
	}
	if standing != "" && standing != e.Wrote[0] {
		e.Wrote = append([]string{standing}, e.Wrote...)
	}
	return e, kept
}

// Overwritten tells whether all values are what the entry's cycle made of them.
func (e *Entry) Overwritten(live map[string]string) bool {
	if len(e.Wrote) == 0 {
		return false
	}
	for _, value := range live {
		if hashOf(value) != e.Wrote[len(e.Wrote)-1] {
			return false
		}
	}
	return true
}

// RestoredData are a ConfigMap's values with those put back that are still the agent's. It is false if there are none: they
// are back already, or somebody else has set all of them since.
func (e *Entry) RestoredData(originals, live map[string]string) (data map[string]string, restore bool) {
	data = maps.Clone(live)
	for key, value := range live {
		if original, known := originals[key]; known && value != original && slices.Contains(e.Wrote, hashOf(value)) {
			data[key], restore = original, true
		}
	}
	return data, restore
}

func hashOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}
