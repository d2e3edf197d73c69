// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package webhooks

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"gomodules.xyz/jsonpatch/v2"
	admissionv1 "k8s.io/api/admission/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"blackadder.io/blackadder/api/blackadder/v1alpha1"
	"blackadder.io/blackadder/api/blackadder/v1beta1"
	"blackadder.io/blackadder/internal/chaos"
	"blackadder.io/blackadder/internal/namespaces"
	"blackadder.io/blackadder/internal/survey"
	"blackadder.io/blackadder/webhooks/conversion"
	"blackadder.io/blackadder/webhooks/fielderrors"
)

// +kubebuilder:webhook:mutating=true,name=default.chaosagent.blackadder.io,path=/mutate-blackadder-io-v1beta1-chaosagent,groups=blackadder.io,resources=chaosagents,verbs=create;update,versions=v1beta1,failurePolicy=fail,sideEffects=None,timeoutSeconds=5,matchPolicy=Equivalent,admissionReviewVersions=v1,serviceName=blackadder-webhook,serviceNamespace=blackadder-system
// +kubebuilder:webhook:mutating=false,name=validate.chaosagent.blackadder.io,path=/validate-blackadder-io-v1beta1-chaosagent,groups=blackadder.io,resources=chaosagents,verbs=create;update,versions=v1beta1,failurePolicy=fail,sideEffects=None,timeoutSeconds=5,matchPolicy=Equivalent,admissionReviewVersions=v1,serviceName=blackadder-webhook,serviceNamespace=blackadder-system
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create
// +kubebuilder:rbac:groups=blackadder.io,resources=chaosagents,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=namespaces;configmaps,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=pods,verbs=list
// +kubebuilder:rbac:groups=apps,resources=deployments,verbs=get;list;watch
// +kubebuilder:rbac:groups=autoscaling,resources=horizontalpodautoscalers,verbs=get;list;watch

const (
	chaosAgentDefaultPath = "/mutate-blackadder-io-v1beta1-chaosagent"
	// authorizeTimeout and previewTimeout bound the two parts that grow with the cluster, well within the webhook's own time.
	authorizeTimeout = 2 * time.Second
	previewTimeout   = 1500 * time.Millisecond
	// askAtOnce is how many access reviews are asked at the same time.
	askAtOnce = 16
	// mostOverlaps and mostHints bound the warnings of one kind.
	mostOverlaps, mostHints = 5, 10
)

// chaosAgentWebhook defaults, validates and previews ChaosAgents.
type chaosAgentWebhook struct {
	clock  clock.PassiveClock
	client client.Client
	survey *survey.Survey
	fields *fielderrors.Validator
}

var _ admission.Validator[*v1beta1.ChaosAgent] = &chaosAgentWebhook{}

func (w *chaosAgentWebhook) setup(mgr ctrl.Manager) error {
	mgr.GetWebhookServer().Register(chaosAgentDefaultPath, &webhook.Admission{Handler: admission.HandlerFunc(w.handleDefault)})
	return ctrl.NewWebhookManagedBy(mgr, &v1beta1.ChaosAgent{}).WithValidator(w).WithConverter(conversion.ChaosAgent).Complete()
}

// rawAgent is as much of a ChaosAgent as defaulting touches, as the user wrote it.
type rawAgent struct {
	Spec   map[string]any `json:"spec"`
	Status map[string]any `json:"status"`
}

// handleDefault fills in the excluded namespaces that the user left out. Of an update through v1alpha1 it keeps all that v1alpha1
// does not know as it was, also when the client dropped the annotation that carries it: a replaced manifest must not take back
// somebody's exclusions.
func (w *chaosAgentWebhook) handleDefault(_ context.Context, request admission.Request) admission.Response {
	var agent, old rawAgent
	if err := unmarshalExactly(request.Object.Raw, &agent); err != nil {
		// What it is that is wrong, the schema says better than this webhook can.
		return admission.Allowed("")
	}
	var patches []jsonpatch.JsonPatchOperation
	spec := maps.Clone(agent.Spec)
	if spec == nil {
		spec = map[string]any{}
	}
	viaV1alpha1 := request.RequestKind != nil && request.RequestKind.Version == v1alpha1.GroupVersion.Version
	if request.Operation == admissionv1.Update && viaV1alpha1 && unmarshalExactly(request.OldObject.Raw, &old) == nil {
		kept := maps.Clone(old.Spec)
		for _, known := range []string{"tantrumMode", "podTolerance"} {
			delete(kept, known)
			if value, set := spec[known]; set {
				kept[known] = value
			}
		}
		spec = kept
		if old.Status != nil && !equality.Semantic.DeepEqual(old.Status, agent.Status) {
			patches = append(patches, jsonpatch.NewOperation("add", "/status", old.Status))
		}
	}
	if spec["excludedNamespaces"] == nil {
		spec["excludedNamespaces"] = w.survey.Protection().Names()
	}
	switch {
	case agent.Spec == nil || viaV1alpha1 && !equality.Semantic.DeepEqual(spec, agent.Spec):
		patches = append(patches, jsonpatch.NewOperation("add", "/spec", spec))
	case agent.Spec["excludedNamespaces"] == nil:
		patches = append(patches, jsonpatch.NewOperation("add", "/spec/excludedNamespaces", spec["excludedNamespaces"]))
	}
	if len(patches) == 0 {
		return admission.Allowed("")
	}
	return admission.Patched("", patches...)
}

// unmarshalExactly keeps numbers as they are written: a seed has more digits than a float.
func unmarshalExactly(raw []byte, into any) error {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	return decoder.Decode(into)
}

// ValidateCreate validates a new ChaosAgent.
func (w *chaosAgentWebhook) ValidateCreate(ctx context.Context, agent *v1beta1.ChaosAgent) (admission.Warnings, error) {
	return w.validate(ctx, agent, nil)
}

// ValidateUpdate validates a changed ChaosAgent.
func (w *chaosAgentWebhook) ValidateUpdate(ctx context.Context, old, agent *v1beta1.ChaosAgent) (admission.Warnings, error) {
	return w.validate(ctx, agent, old)
}

// ValidateDelete is never asked: whoever may delete an agent may stop it.
func (w *chaosAgentWebhook) ValidateDelete(context.Context, *v1beta1.ChaosAgent) (admission.Warnings, error) {
	return nil, nil
}

// validate answers with every fault of the object at once, then with what the caller may not do, and else with warnings, of which
// the preview is the last.
func (w *chaosAgentWebhook) validate(ctx context.Context, agent, old *v1beta1.ChaosAgent) (admission.Warnings, error) {
	if agent.DeletionTimestamp != nil {
		// Whoever removes the last finalizers of a terminating object must not be stopped by what stands in it.
		return nil, nil
	}
	if err := conversion.AnnotationFault(agent.Annotations); err != nil {
		// The spec that it stands for is unknown, so that more faults would only mislead.
		return nil, invalidAgent(agent.Name, field.ErrorList{field.Invalid(field.NewPath("metadata", "annotations").Key(v1alpha1.HubAnnotation),
			chaos.Truncate(agent.Annotations[v1alpha1.HubAnnotation], 64), fmt.Sprintf("is not what the conversion between versions wrote (%v): remove it", err))})
	}
	if !chaos.SpecChanged(agent, old, equality.Semantic.DeepEqual) {
		return nil, nil
	}
	faults := append(w.fields.Struct(&agent.Spec, field.NewPath("spec")), chaos.Validate(&agent.Spec)...)
	target, err := survey.Target(&agent.Spec)
	if err != nil {
		// It is one of the faults already.
		return nil, invalidAgent(agent.Name, faults)
	}
	live, err := w.survey.Namespaces(ctx)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	protection := w.survey.Protection()
	if fault := chaos.ProtectedFault(&agent.Spec, protection.Unguarded(target, labelsOf(live))); fault != nil {
		faults = append(faults, fault)
	}
	if err := invalidAgent(agent.Name, faults); err != nil {
		return nil, err
	}
	targeted := protection.Scope(target, live).Targeted()
	if err := w.authorize(ctx, agent, targeted, target.Endless()); err != nil {
		return nil, err
	}
	warnings := chaos.Warnings(&agent.Spec)
	warnings = append(warnings, hints(&agent.Spec, live)...)
	warnings = append(warnings, w.overlaps(ctx, agent, targeted, live)...)
	return append(warnings, w.preview(ctx, agent)...), nil
}

func labelsOf(live []namespaces.Live) map[string]labels.Set {
	sets := make(map[string]labels.Set, len(live))
	for _, namespace := range live {
		sets[namespace.Name] = namespace.Labels
	}
	return sets
}

// hints are the warnings of excluded namespaces that do not exist.
func hints(spec *v1beta1.ChaosAgentSpec, live []namespaces.Live) []string {
	existing := make([]string, 0, len(live))
	for _, namespace := range live {
		existing = append(existing, namespace.Name)
	}
	var warnings []string
	for i, name := range spec.ExcludedNamespaces {
		if !slices.Contains(existing, name) && len(warnings) < mostHints {
			warnings = append(warnings, chaos.Hint(i, name, namespaces.Nearest(name, existing)))
		}
	}
	return warnings
}

// overlaps are the warnings of other agents that reach the same namespaces.
func (w *chaosAgentWebhook) overlaps(ctx context.Context, agent *v1beta1.ChaosAgent, targeted []string, live []namespaces.Live) []string {
	others, err := w.survey.Agents(ctx)
	if err != nil {
		return []string{fmt.Sprintf("other ChaosAgents could not be looked at: %v", err)}
	}
	var warnings []string
	for i := range others {
		other := &others[i]
		if other.Name == agent.Name || other.DeletionTimestamp != nil || other.Spec.Suspend || !chaos.AnyMode(&other.Spec) || len(warnings) == mostOverlaps {
			continue
		}
		target, err := survey.Target(&other.Spec)
		if err != nil {
			continue
		}
		scope := w.survey.Protection().Scope(target, live)
		common := slices.DeleteFunc(slices.Clone(targeted), func(name string) bool { return scope.Excludes(name) != "" })
		if len(common) > 0 {
			warnings = append(warnings, chaos.Overlap(other.Name, common))
		}
	}
	return warnings
}

// preview says what cycles would do, if that can be counted in time.
func (w *chaosAgentWebhook) preview(ctx context.Context, agent *v1beta1.ChaosAgent) []string {
	if !chaos.AnyMode(&agent.Spec) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, previewTimeout)
	defer cancel()
	found, err := w.survey.Take(ctx, &agent.Spec)
	if ctx.Err() != nil {
		return []string{chaos.TooLargeToCount}
	}
	if err != nil {
		return []string{fmt.Sprintf("what the agent would hit could not be counted: %v", err)}
	}
	plan, err := chaos.NewPlan(chaos.Input{
		Agent: agent, Scope: found.Scope, Namespaces: len(found.Targeted), Objects: found.Objects, Now: w.clock.Now(), Preview: true,
	})
	if err != nil {
		return []string{fmt.Sprintf("what the agent would hit could not be counted: %v", err)}
	}
	return chaos.Preview(&agent.Spec, plan)
}

// right is what a mode would do by hand.
type right struct {
	verb, group, resource string
}

func rightFor(mode chaos.Mode) right {
	switch mode {
	case chaos.Cancer:
		return right{"update", "apps", "deployments"}
	case chaos.Ipsum:
		return right{"update", "", "configmaps"}
	case chaos.Tantrum:
	}
	return right{"delete", "", "pods"}
}

// authorize refuses a caller who may not do by hand what the agent would do. An agent that would reach namespaces which do not
// exist yet, without anybody labelling them for it, takes rights in the whole cluster, and so does one that reaches none now.
func (w *chaosAgentWebhook) authorize(ctx context.Context, agent *v1beta1.ChaosAgent, targeted []string, endless bool) error {
	request, err := admission.RequestFromContext(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, authorizeTimeout)
	defer cancel()
	var denials []string
	for _, mode := range chaos.Modes() {
		if !chaos.On(&agent.Spec, mode) {
			continue
		}
		right := rightFor(mode)
		everywhere, err := w.allowed(ctx, request, right, []string{""})
		if err != nil {
			return apierrors.NewInternalError(err)
		}
		if everywhere[0] {
			continue
		}
		what := fmt.Sprintf("%s %s", right.verb, right.resource)
		if endless || len(targeted) == 0 {
			denials = append(denials, what+" in every namespace, which the agent could come to reach")
			continue
		}
		somewhere, err := w.allowed(ctx, request, right, targeted)
		if err != nil {
			return apierrors.NewInternalError(err)
		}
		var missing []string
		for i, name := range targeted {
			if !somewhere[i] {
				missing = append(missing, name)
			}
		}
		if len(missing) > 0 {
			denials = append(denials, what+" in "+chaos.Enumerate("namespace", missing))
		}
	}
	if len(denials) == 0 {
		return nil
	}
	return apierrors.NewForbidden(v1beta1.GroupVersion.WithResource("chaosagents").GroupResource(), agent.Name, fmt.Errorf(
		"user %q may not %s, and so not have a ChaosAgent do it: ask for these rights, or narrow spec.namespaceSelector to namespaces (by their label kubernetes.io/metadata.name) where they are given",
		request.UserInfo.Username, strings.Join(denials, "; nor ")))
}

// allowed asks for each namespace, or with "" for all at once, whether the caller has a right.
func (w *chaosAgentWebhook) allowed(ctx context.Context, request admission.Request, right right, names []string) ([]bool, error) {
	answers := make([]bool, len(names))
	var mutex sync.Mutex
	var failed error
	workqueue.ParallelizeUntil(ctx, askAtOnce, len(names), func(i int) {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: request.UserInfo.Username, UID: request.UserInfo.UID, Groups: request.UserInfo.Groups, Extra: reviewExtra(request.UserInfo),
			ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: names[i], Verb: right.verb, Group: right.group, Version: "v1", Resource: right.resource},
		}}
		err := w.client.Create(ctx, review)
		answers[i] = review.Status.Allowed
		if err != nil {
			mutex.Lock()
			failed = err
			mutex.Unlock()
		}
	})
	if err := errors.Join(failed, ctx.Err()); err != nil {
		return nil, fmt.Errorf("checking whether user %q may %s %s: %w", request.UserInfo.Username, right.verb, right.resource, err)
	}
	return answers, nil
}

func invalidAgent(name string, faults field.ErrorList) error {
	if len(faults) == 0 {
		return nil
	}
	return apierrors.NewInvalid(v1beta1.GroupVersion.WithKind(v1beta1.Kind).GroupKind(), name, faults)
}
