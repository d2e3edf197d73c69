// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package chaosagent

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"blackadder.io/blackadder/api/blackadder/v1beta1"
	"blackadder.io/blackadder/internal/chaos"
)

// journal keeps the entries of internal/chaos as Secrets. They have no owner: the garbage collector would throw away what is
// needed to put an agent's changes back. The agent's finalizer sees to them, and the controller to those of agents that are
// gone.
type journal struct {
	client    client.Client
	live      client.Reader
	namespace string
}

// record is an entry that is kept.
type record struct {
	chaos.Entry
	// secret is its Secret's metadata.
	secret metav1.ObjectMeta
	// originals are a ConfigMap's values; only read has them.
	originals map[string]string
}

var errHeldByAnother = errors.New("a change of another ChaosAgent is in force on it")

func journalMetadata() *metav1.PartialObjectMetadata {
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
	return object
}

// list reads entries from the cache, without originals. Secrets that hold no entry are passed over.
func (j *journal) list(ctx context.Context, selector labels.Selector) ([]record, error) {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("SecretList"))
	err := j.client.List(ctx, list, client.InNamespace(j.namespace), client.MatchingLabelsSelector{Selector: selector})
	if err != nil {
		return nil, fmt.Errorf("listing the journal: %w", err)
	}
	records := make([]record, 0, len(list.Items))
	for i := range list.Items {
		if entry, err := chaos.DecodeEntry(list.Items[i].Annotations); err == nil {
			records = append(records, record{Entry: *entry, secret: list.Items[i].ObjectMeta})
		}
	}
	return records, nil
}

// held are an agent's own entries, from the cache.
func (j *journal) held(ctx context.Context, agent *v1beta1.ChaosAgent) ([]record, error) {
	return j.list(ctx, labels.SelectorFromSet(labels.Set{chaos.JournalLabel: string(agent.UID)}))
}

// heldByOthers are the objects that changes of other agents are in force on, from the cache.
func (j *journal) heldByOthers(ctx context.Context, agent *v1beta1.ChaosAgent) (map[chaos.Key]string, error) {
	all, err := j.list(ctx, labels.Everything())
	if err != nil {
		return nil, err
	}
	held := map[chaos.Key]string{}
	for _, one := range all {
		if one.AgentUID != agent.UID || one.secret.Labels[chaos.JournalLabel] == chaos.JournalAbandoned {
			held[one.Key()] = one.Agent
		}
	}
	return held, nil
}

// ofAgent are the entries of an agent as they are in the API server, without originals. They decide whether an agent may go,
// so a cache that lags behind will not do.
func (j *journal) ofAgent(ctx context.Context, uid types.UID) ([]record, error) {
	var records []record
	for next := ""; ; {
		page := &metav1.PartialObjectMetadataList{}
		page.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("SecretList"))
		err := j.live.List(ctx, page, client.InNamespace(j.namespace), client.MatchingLabels{chaos.JournalLabel: string(uid)}, client.Limit(500), client.Continue(next))
		if err != nil {
			return nil, fmt.Errorf("listing the journal: %w", err)
		}
		for i := range page.Items {
			entry, err := chaos.DecodeEntry(page.Items[i].Annotations)
			if err != nil {
				return nil, fmt.Errorf("reading journal entry %s: %w", page.Items[i].Name, err)
			}
			records = append(records, record{Entry: *entry, secret: page.Items[i].ObjectMeta})
		}
		if next = page.Continue; next == "" {
			return records, nil
		}
	}
}

// read reads the entry of an object from the API server; nil if there is none.
func (j *journal) read(ctx context.Context, key chaos.Key) (*record, error) {
	var secret corev1.Secret
	err := j.live.Get(ctx, types.NamespacedName{Namespace: j.namespace, Name: chaos.JournalName(key)}, &secret)
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // As documented.
	}
	if err != nil {
		return nil, fmt.Errorf("reading the journal: %w", err)
	}
	entry, err := chaos.DecodeEntry(secret.Annotations)
	if err != nil {
		return nil, fmt.Errorf("reading journal entry %s: %w", secret.Name, err)
	}
	originals := make(map[string]string, len(secret.Data))
	for name, value := range secret.Data {
		originals[name] = string(value)
	}
	return &record{Entry: *entry, secret: secret.ObjectMeta, originals: originals}, nil
}

// knows tells from the cache whether there is an entry for an object.
func (j *journal) knows(ctx context.Context, key chaos.Key) bool {
	return j.client.Get(ctx, types.NamespacedName{Namespace: j.namespace, Name: chaos.JournalName(key)}, journalMetadata()) == nil
}

// write keeps an entry in the place of the previous one, which is nil if there was none. It fails with AlreadyExists or
// Conflict if that is no longer so.
func (j *journal) write(ctx context.Context, entry chaos.Entry, originals map[string]string, previous *record) error {
	text, err := entry.Encode()
	if err != nil {
		return err
	}
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: j.namespace, Name: chaos.JournalName(entry.Key()),
			Labels:      map[string]string{chaos.JournalLabel: string(entry.AgentUID), "app.kubernetes.io/managed-by": "blackadder"},
			Annotations: map[string]string{chaos.JournalAnnotation: text},
		},
		Type: chaos.JournalSecretType,
		Data: make(map[string][]byte, len(originals)),
	}
	for name, value := range originals {
		secret.Data[name] = []byte(value)
	}
	if previous == nil {
		err = j.client.Create(ctx, secret, client.FieldOwner(Name))
	} else {
		secret.UID, secret.ResourceVersion = previous.secret.UID, previous.secret.ResourceVersion
		err = j.client.Update(ctx, secret, client.FieldOwner(Name))
	}
	if err != nil {
		return fmt.Errorf("writing the journal entry of %s: %w", &entry, err)
	}
	return nil
}

// note keeps the entry that next makes of the previous one. It fails with errHeldByAnother if that is another agent's.
func (j *journal) note(ctx context.Context, key chaos.Key, uid types.UID, next func(previous *record) (chaos.Entry, map[string]string)) error {
	// Most objects are hit for the first time; that is worth a try without a look.
	look := j.knows(ctx, key)
	for attempt := 1; ; attempt++ {
		var previous *record
		if look {
			var err error
			if previous, err = j.read(ctx, key); err != nil {
				return err
			}
			if previous != nil && (previous.AgentUID != uid || previous.secret.Labels[chaos.JournalLabel] == chaos.JournalAbandoned) {
				return errHeldByAnother
			}
		}
		entry, originals := next(previous)
		err := j.write(ctx, entry, originals, previous)
		overtaken := apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) || apierrors.IsNotFound(err)
		if !overtaken || attempt == attempts {
			return err
		}
		look = true
	}
}

// drop removes an entry, if it is still the one that was read.
func (j *journal) drop(ctx context.Context, one record) error {
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: j.namespace, Name: one.secret.Name}}
	err := j.client.Delete(ctx, secret, client.Preconditions{UID: &one.secret.UID, ResourceVersion: &one.secret.ResourceVersion})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("removing the journal entry of %s: %w", &one.Entry, err)
	}
	return nil
}

// abandon keeps an entry for a person to look at, without an agent to see to it.
func (j *journal) abandon(ctx context.Context, one record) error {
	var secret corev1.Secret
	if err := j.live.Get(ctx, types.NamespacedName{Namespace: j.namespace, Name: one.secret.Name}, &secret); err != nil {
		return client.IgnoreNotFound(err)
	}
	secret.Labels[chaos.JournalLabel] = chaos.JournalAbandoned
	if err := j.client.Update(ctx, &secret, client.FieldOwner(Name)); err != nil {
		return fmt.Errorf("abandoning the journal entry of %s: %w", &one.Entry, err)
	}
	return nil
}
