// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package chaosagent

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"blackadder.io/blackadder/api/blackadder/v1beta1"
	"blackadder.io/blackadder/internal/chaos"
)

const (
	// workers is how many victims of a cycle are hit at once: enough to keep the API server busy, and few enough for its
	// priority and fairness to queue them.
	workers = 64
	// haltEvery is how often a running cycle looks anew at whether it has to halt.
	haltEvery = time.Second
)

// errOvertaken ends a cycle that must not go on from here: the agent has changed, or another replica leads.
var errOvertaken = errors.New("the ChaosAgent has changed meanwhile")

// cycle plans a cycle and carries it out; what became of it stands in the outcome.
func (r *Reconciler) cycle(ctx context.Context, done *outcome) error {
	agent, started := done.agent, r.clock.Now()
	plan, held, err := r.plan(ctx, agent, done.step)
	if err != nil {
		done.step.Ready, done.step.Reason = false, v1beta1.ReasonCycleFailed
		done.step.Message = fmt.Sprintf("the cycle could not be planned, and is tried again: %v", err)
		return err
	}
	resumed := done.step.Action == chaos.Resume
	var tallies map[chaos.Mode]chaos.Tally
	stopped := plan.Halt
	switch {
	case plan.Halt != "" && !resumed:
		r.halt(done, plan.Halt)
		return nil
	case plan.Halt != "":
		tallies = sparedAll(plan)
	case plan.Cycle.DryRun || (len(plan.Victims) == 0 && !resumed):
		agent.Status = chaos.Claim(agent.Status, plan)
	default:
		if err := r.claim(ctx, done, plan, resumed); err != nil {
			return err
		}
		if tallies, stopped, err = r.hit(ctx, agent, plan, held, resumed); err != nil {
			return err
		}
	}
	found := map[chaos.Mode]int{}
	for i := range plan.Victims {
		found[plan.Victims[i].Mode]++
	}
	now := r.clock.Now()
	agent.Status = chaos.Complete(agent.Status, found, tallies, stopped, now, chaos.Pause(&agent.Spec))
	done.step = chaos.NextStep(agent, now)
	if plan.Halt != "" {
		r.halt(done, plan.Halt)
	}
	r.metrics.cycle(agent.Status.LastCycle, plan, now.Sub(started))
	r.tellCycle(done.written.LastCycle, agent, plan)
	return nil
}

// sparedAll is the tally of victims that nobody touched.
func sparedAll(plan *chaos.Plan) map[chaos.Mode]chaos.Tally {
	tallies := map[chaos.Mode]chaos.Tally{}
	for i := range plan.Victims {
		tally := tallies[plan.Victims[i].Mode]
		tally.Spared++
		tallies[plan.Victims[i].Mode] = tally
	}
	return tallies
}

// halt lets the agent wait for a pause, and says why.
func (r *Reconciler) halt(done *outcome, why string) {
	next := r.clock.Now().Add(chaos.Pause(&done.agent.Spec))
	done.step.Action, done.step.Next = chaos.Wait, next
	done.step.Ready, done.step.Reason, done.step.Message = false, v1beta1.ReasonHalted, why
}

func (r *Reconciler) plan(ctx context.Context, agent *v1beta1.ChaosAgent, step chaos.Step) (*chaos.Plan, map[chaos.Key]string, error) {
	now := r.clock.Now()
	found, err := r.survey.Take(ctx, &agent.Spec)
	if err != nil {
		return nil, nil, err
	}
	held, err := r.journal.heldByOthers(ctx, agent)
	if err != nil {
		return nil, nil, err
	}
	in := chaos.Input{
		Agent: agent, Scope: found.Scope, Namespaces: len(found.Targeted), Objects: found.Objects, Held: held, Now: now,
		Seed: rand.Int64(), //nolint:gosec // Chance has to be repeatable here, not secret.
	}
	if step.Action == chaos.Resume {
		in.Resume = agent.Status.LastCycle
	}
	plan, err := chaos.NewPlan(in)
	return plan, held, err
}

// claim writes down that the cycle begins, with all that is needed to go on with it, and before that sees to it that the agent
// cannot go away from what is to be put back.
func (r *Reconciler) claim(ctx context.Context, done *outcome, plan *chaos.Plan, resumed bool) error {
	changes := slices.ContainsFunc(plan.Victims, func(victim chaos.Victim) bool { return victim.Mode != chaos.Tantrum })
	if changes && chaos.RestoreWanted(&done.agent.Spec) {
		if err := r.keep(ctx, done.agent); err != nil {
			return err
		}
	}
	if resumed {
		return nil
	}
	status := chaos.Claim(done.agent.Status, plan)
	version, err := r.applyStatus(ctx, done.agent, status)
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return errOvertaken
	}
	if err != nil {
		return fmt.Errorf("claiming cycle %d: %w", plan.Cycle.Number, err)
	}
	done.agent.Status, done.agent.ResourceVersion, done.written = status, version, status
	return nil
}

// keep sets the finalizer.
func (r *Reconciler) keep(ctx context.Context, agent *v1beta1.ChaosAgent) error {
	return r.patchFinalizer(ctx, agent, controllerutil.AddFinalizer)
}

// release removes the finalizer, if it is there. It tells whether the agent is gone by that.
func (r *Reconciler) release(ctx context.Context, agent *v1beta1.ChaosAgent) (gone bool, err error) {
	err = r.patchFinalizer(ctx, agent, controllerutil.RemoveFinalizer)
	if errors.Is(err, errOvertaken) {
		// Its new version comes by and by.
		return true, nil
	}
	return agent.DeletionTimestamp != nil && len(agent.Finalizers) == 0, err
}

func (r *Reconciler) patchFinalizer(ctx context.Context, agent *v1beta1.ChaosAgent, change func(client.Object, string) bool) error {
	status := agent.Status
	before := agent.DeepCopy()
	if !change(agent, v1beta1.RestoreFinalizer) {
		return nil
	}
	err := r.client.Patch(ctx, agent, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}), client.FieldOwner(Name))
	agent.Status = status
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return errOvertaken
	}
	if err != nil {
		return fmt.Errorf("changing the finalizer: %w", err)
	}
	return nil
}

// hit hits the victims of a plan. It returns why it stopped before the last one, if it did. An error means that nobody may
// write what became of the cycle: it is gone on with later, here or on another replica.
func (r *Reconciler) hit(ctx context.Context, agent *v1beta1.ChaosAgent, plan *chaos.Plan, held map[chaos.Key]string, resumed bool) (map[chaos.Mode]chaos.Tally, string, error) {
	reach, err := r.survey.Reach(ctx, &agent.Spec)
	if err != nil {
		return nil, "", err
	}
	filter, err := chaos.NewFilter(&agent.Spec, reach, plan.Cycle.StartTime.Time, held)
	if err != nil {
		return nil, "", err
	}
	if err := r.recoveries.watch(ctx); err != nil {
		return nil, "", err
	}
	guard := &guard{reconciler: r, agent: agent, filter: filter, halted: r.clock.Now()}
	blow := &blow{reconciler: r, agent: agent, filter: filter, cycle: plan.Cycle.Number, seed: plan.Cycle.Seed, resumed: resumed}
	counts := &counts{tallies: map[chaos.Mode]chaos.Tally{}}
	workqueue.ParallelizeUntil(ctx, workers, len(plan.Victims), func(i int) {
		victim := &plan.Victims[i]
		if guard.stopped(ctx) != "" {
			counts.add(victim.Mode, result{verdict: spared})
			return
		}
		result := blow.strike(ctx, victim)
		r.metrics.victim(victim, result.verdict)
		if n := counts.add(victim.Mode, result); n <= mostVictimEvents {
			r.tellVictim(agent, victim, result)
		}
	})
	if ctx.Err() != nil {
		return nil, "", errOvertaken
	}
	return counts.tallies, guard.reason, nil
}

// counts adds results up.
type counts struct {
	mutex   sync.Mutex
	tallies map[chaos.Mode]chaos.Tally
}

// add returns how many victims of the mode there have been by now.
func (c *counts) add(mode chaos.Mode, result result) int32 {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	tally := c.tallies[mode]
	switch result.verdict {
	case done:
		tally.Done++
	case refused:
		tally.Refused++
	case spared:
		tally.Spared++
	case failed:
		tally.Failed++
		tally.LastError = chaos.Truncate(result.reason, longestError)
	}
	c.tallies[mode] = tally
	return tally.Done + tally.Refused + tally.Spared + tally.Failed
}

// longestError bounds an error in the status.
const longestError = 512

// guard stops a running cycle when its agent is changed or stopped, its window closes, or too much is broken.
type guard struct {
	reconciler *Reconciler
	agent      *v1beta1.ChaosAgent
	filter     *chaos.Filter

	mutex  sync.Mutex
	reason string
	halted time.Time
}

// stopped is the reason to stop; once there is one, it stays.
func (g *guard) stopped(ctx context.Context) string {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	if g.reason == "" {
		g.reason = g.look(ctx)
	}
	return g.reason
}

func (g *guard) look(ctx context.Context) string {
	now := g.reconciler.clock.Now()
	current, err := g.reconciler.agent(ctx, g.agent.Name)
	switch {
	case err != nil:
		return err.Error()
	case current == nil || current.UID != g.agent.UID:
		return "the agent was deleted while the cycle ran"
	case current.Generation != g.agent.Generation && current.DeletionTimestamp == nil:
		return "the spec was changed while the cycle ran"
	}
	if step := chaos.NextStep(current, now); step.Action == chaos.Stop || step.Reason == v1beta1.ReasonOutsideWindow {
		return "stopped while the cycle ran: " + step.Message
	}
	if g.agent.Spec.HaltWhen == nil || now.Sub(g.halted) < haltEvery {
		return ""
	}
	g.halted = now
	deployments, err := g.reconciler.survey.Deployments(ctx)
	if err != nil {
		return err.Error()
	}
	return g.filter.Halt(deployments)
}
