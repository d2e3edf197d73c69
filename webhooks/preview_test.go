// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package webhooks

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"blackadder.io/blackadder/api/blackadder/v1beta1"
	"blackadder.io/blackadder/internal/namespaces"
	"blackadder.io/blackadder/internal/survey"
)

// slowCache is a cache that does not get to know anything in time, or fails.
type slowCache struct {
	cache.Cache
	err error
}

func (c slowCache) GetInformer(ctx context.Context, _ client.Object, _ ...cache.InformerGetOption) (cache.Informer, error) {
	if c.err != nil {
		return nil, c.err
	}
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestPreviewOfWhatCannotBeCounted(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"in time": {want: "the targets are too many to be counted in time: how many are hit each cycle is not known beforehand; spec.dryRun would tell"},
		"at all":  {err: errors.New("no such luck"), want: "what the agent would hit could not be counted: watching Namespaces: no such luck"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		w := &chaosAgentWebhook{clock: clock.RealClock{}, survey: survey.New(slowCache{err: c.err}, nil, namespaces.Protect("ops"))}
		agent := &v1beta1.ChaosAgent{Spec: v1beta1.ChaosAgentSpec{TantrumMode: true}}
		if got := w.preview(ctx, agent); !slices.Equal(got, []string{c.want}) {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
		cancel()
	}
}
