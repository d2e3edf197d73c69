// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package webhooks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"gomodules.xyz/jsonpatch/v2"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"blackadder.io/blackadder/api/immortalcontainer/v1alpha1"
	"blackadder.io/blackadder/internal/immortal"
	"blackadder.io/blackadder/webhooks/fielderrors"
)

// +kubebuilder:webhookconfiguration:mutating=true,name=blackadder
// +kubebuilder:webhookconfiguration:mutating=false,name=blackadder
// +kubebuilder:webhook:mutating=true,name=default.immortalcontainer.flugel.it,path=/mutate-immortalcontainer-flugel-it-v1alpha1-immortalcontainer,groups=immortalcontainer.flugel.it,resources=immortalcontainers,verbs=create;update,versions=v1alpha1,failurePolicy=fail,sideEffects=None,timeoutSeconds=5,matchPolicy=Equivalent,admissionReviewVersions=v1,serviceName=blackadder-webhook,serviceNamespace=blackadder-system
// +kubebuilder:webhook:mutating=false,name=validate.immortalcontainer.flugel.it,path=/validate-immortalcontainer-flugel-it-v1alpha1-immortalcontainer,groups=immortalcontainer.flugel.it,resources=immortalcontainers,verbs=create;update;delete,versions=v1alpha1,failurePolicy=fail,sideEffects=NoneOnDryRun,timeoutSeconds=5,matchPolicy=Equivalent,admissionReviewVersions=v1,serviceName=blackadder-webhook,serviceNamespace=blackadder-system
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create
// +kubebuilder:rbac:groups="",resources=pods,verbs=get;create

// immortalContainerWebhook defaults and validates ImmortalContainers.
type immortalContainerWebhook struct {
	defaultImage string
	clock        clock.PassiveClock
	client       client.Client
	reader       client.Reader
	recorder     events.EventRecorder
	fields       *fielderrors.Validator
}

var _ admission.Validator[*v1alpha1.ImmortalContainer] = &immortalContainerWebhook{}

const (
	defaultPath = "/mutate-immortalcontainer-flugel-it-v1alpha1-immortalcontainer"
	// tryTimeout bounds the dry run of the pod, well within the webhook's own time: webhooks of others may be asked in it.
	tryTimeout = 2 * time.Second
	// eventGlassBroken is the reason of the event that names who lifted the protection.
	eventGlassBroken = "GlassBroken"
)

func (w *immortalContainerWebhook) setup(mgr ctrl.Manager) error {
	mgr.GetWebhookServer().Register(defaultPath, &webhook.Admission{Handler: admission.HandlerFunc(w.handleDefault)})
	return ctrl.NewWebhookManagedBy(mgr, &v1alpha1.ImmortalContainer{}).WithValidator(w).Complete()
}

// handleDefault fills in the image that the user left out, and nothing else. The library's defaulter would write the whole
// object anew, and with it every quantity in another spelling than the user's.
func (w *immortalContainerWebhook) handleDefault(_ context.Context, request admission.Request) admission.Response {
	var object struct {
		Spec *struct {
			Image string `json:"image"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(request.Object.Raw, &object); err != nil {
		// What it is that is wrong, the schema says better than this webhook can.
		return admission.Allowed("")
	}
	switch {
	case object.Spec == nil:
		return admission.Patched("", jsonpatch.NewOperation("add", "/spec", map[string]any{"image": w.defaultImage}))
	case object.Spec.Image == "":
		return admission.Patched("", jsonpatch.NewOperation("add", "/spec/image", w.defaultImage))
	}
	return admission.Allowed("")
}

// ValidateCreate validates a new ImmortalContainer.
func (w *immortalContainerWebhook) ValidateCreate(ctx context.Context, container *v1alpha1.ImmortalContainer) (admission.Warnings, error) {
	return w.validate(ctx, container, nil)
}

// ValidateUpdate validates a changed ImmortalContainer.
func (w *immortalContainerWebhook) ValidateUpdate(ctx context.Context, old, container *v1alpha1.ImmortalContainer) (admission.Warnings, error) {
	return w.validate(ctx, container, old)
}

// ValidateDelete refuses a deletion that would leave the pod behind.
func (w *immortalContainerWebhook) ValidateDelete(ctx context.Context, container *v1alpha1.ImmortalContainer) (admission.Warnings, error) {
	request, err := admission.RequestFromContext(ctx)
	if err != nil {
		return nil, err
	}
	orphans, err := orphansDependents(request)
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("reading the options of the deletion: %v", err))
	}
	// Also of one that is terminating: a second deletion may still change what becomes of the pod.
	if orphans {
		return nil, forbidden(container.Name, errors.New("it cannot be deleted with propagationPolicy Orphan (kubectl delete --cascade=orphan), "+
			"which would leave its pod behind without an owner: use Background or Foreground"))
	}
	return nil, nil
}

func orphansDependents(request admission.Request) (bool, error) {
	if len(request.Options.Raw) == 0 {
		return false, nil
	}
	var options metav1.DeleteOptions
	if err := json.Unmarshal(request.Options.Raw, &options); err != nil {
		return false, err
	}
	byPolicy := options.PropagationPolicy != nil && *options.PropagationPolicy == metav1.DeletePropagationOrphan
	byOldField := options.OrphanDependents != nil && *options.OrphanDependents //nolint:staticcheck // Old clients still send it.
	return byPolicy || byOldField, nil
}

// validate answers for a new or changed ImmortalContainer: first whether the caller may do this at all, then every
// fault at once.
func (w *immortalContainerWebhook) validate(ctx context.Context, container, old *v1alpha1.ImmortalContainer) (admission.Warnings, error) {
	if container.DeletionTimestamp != nil {
		// Whoever removes the last finalizers of a terminating object must not be stopped by what stands in it.
		return nil, nil
	}
	now := w.clock.Now()
	faults, warnings := immortal.Validate(container, old, now)

	var podFaults []metav1.StatusCause
	if immortal.PodSpecChanged(container, old) {
		if err := w.authorize(ctx, container); err != nil {
			return nil, err
		}
		// A fault that stands in the cluster already, from before a rule, must not block unrelated changes.
		faults = append(faults, w.fields.Struct(&container.Spec, field.NewPath("spec"))...)
		warnings = append(warnings, immortal.ImageWarnings(container.Spec.Image)...)

		var podWarnings []string
		var err error
		if podFaults, podWarnings, err = w.tryPod(ctx, container, old); err != nil {
			return nil, err
		}
		warnings = append(warnings, podWarnings...)
	}
	if _, lifted := immortal.UnprotectedUntil(container, now); lifted && (old == nil || old.Annotations[v1alpha1.UnprotectedUntilAnnotation] != container.Annotations[v1alpha1.UnprotectedUntilAnnotation]) {
		w.tellGlassBroken(ctx, container)
	}
	return warnings, invalid(container.Name, faults, podFaults)
}

// tellGlassBroken leaves an event that names the user, whom the controller, which tells of the lifted protection itself,
// cannot know.
func (w *immortalContainerWebhook) tellGlassBroken(ctx context.Context, container *v1alpha1.ImmortalContainer) {
	request, err := admission.RequestFromContext(ctx)
	if err != nil || container.UID == "" || (request.DryRun != nil && *request.DryRun) {
		return
	}
	w.recorder.Eventf(container.DeepCopy(), nil, corev1.EventTypeWarning, eventGlassBroken, "Annotate", "user %q lifts the protection of the pod until %s",
		request.UserInfo.Username, container.Annotations[v1alpha1.UnprotectedUntilAnnotation])
}

// authorize refuses a caller who may not create the pod by hand: an ImmortalContainer must not be a way around RBAC.
func (w *immortalContainerWebhook) authorize(ctx context.Context, container *v1alpha1.ImmortalContainer) error {
	request, err := admission.RequestFromContext(ctx)
	if err != nil {
		return err
	}
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: request.UserInfo.Username, UID: request.UserInfo.UID, Groups: request.UserInfo.Groups, Extra: reviewExtra(request.UserInfo),
		ResourceAttributes: &authorizationv1.ResourceAttributes{Namespace: container.Namespace, Verb: "create", Version: "v1", Resource: "pods"},
	}}
	if err := w.client.Create(ctx, review); err != nil {
		return apierrors.NewInternalError(fmt.Errorf("checking whether user %q may create pods: %w", request.UserInfo.Username, err))
	}
	if !review.Status.Allowed {
		return forbidden(container.Name, fmt.Errorf("user %q may not create pods in namespace %q, and so not have an ImmortalContainer create one: "+
			"ask for a Role that allows the verb create on pods there", request.UserInfo.Username, container.Namespace))
	}
	return nil
}

func reviewExtra(user authenticationv1.UserInfo) map[string]authorizationv1.ExtraValue {
	extra := make(map[string]authorizationv1.ExtraValue, len(user.Extra))
	for key, value := range user.Extra {
		extra[key] = authorizationv1.ExtraValue(value)
	}
	return extra
}

// tryPod lets the API server itself judge the pod, by a dry run of its creation: its verdict covers every rule of the
// pod API, of Pod Security and of quotas, and stays right when those change. Faults of the pod are faults of the
// ImmortalContainer; what may pass by itself is a warning.
func (w *immortalContainerWebhook) tryPod(ctx context.Context, container, old *v1alpha1.ImmortalContainer) ([]metav1.StatusCause, []string, error) {
	pod := immortal.Pod(container, 1)
	// A new object has its UID only after admission, and an owner reference needs one: the pod is tried without it.
	pod.OwnerReferences = nil
	tryCtx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	err := w.client.Create(tryCtx, pod, client.DryRunAll)
	if err == nil {
		return nil, nil, nil
	}
	if apierrors.IsAlreadyExists(err) {
		return w.foreignPod(ctx, container, old)
	}
	var status apierrors.APIStatus
	if apierrors.IsInvalid(err) && errors.As(err, &status) && status.Status().Details != nil && len(status.Status().Details.Causes) > 0 {
		return immortal.FaultsInSpec(status.Status().Details.Causes), nil, nil
	}
	refusal, isRefusal := immortal.RefusalOf(err)
	if !isRefusal || (!refusal.Lasting() && refusal.Reason != v1alpha1.ReasonQuotaExceeded) {
		// Somebody else's webhook is away, or cannot be asked in a dry run: no fault of this object.
		return nil, []string{fmt.Sprintf("its pod could not be tried beforehand: %v", err)}, nil
	}
	if old != nil && refusal.Reason == v1alpha1.ReasonQuotaExceeded {
		// The old pod, whose place the new one takes, is still counted.
		return nil, nil, nil
	}
	return nil, []string{"its pod would be refused now, and is tried again until it is not: " + refusal.Message}, nil
}

// foreignPod refuses an ImmortalContainer whose pod's name is held by a pod of somebody else.
func (w *immortalContainerWebhook) foreignPod(ctx context.Context, container, old *v1alpha1.ImmortalContainer) ([]metav1.StatusCause, []string, error) {
	var pod corev1.Pod
	err := w.reader.Get(ctx, client.ObjectKey{Namespace: container.Namespace, Name: immortal.PodName(container.Name)}, &pod)
	if apierrors.IsNotFound(err) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, apierrors.NewInternalError(fmt.Errorf("reading the pod that holds the name of ImmortalContainer %q's pod: %w", container.Name, err))
	}
	// On an update the conflict, if there is one, is a condition already and no fault of the change.
	if message := immortal.NameConflict(container, &pod); message != "" && old == nil {
		fault := field.Invalid(field.NewPath("metadata", "name"), container.Name, message)
		return causes(field.ErrorList{fault}), nil, nil
	}
	return nil, nil, nil
}

func forbidden(name string, why error) error {
	return apierrors.NewForbidden(v1alpha1.GroupVersion.WithResource("immortalcontainers").GroupResource(), name, why)
}

// invalid is the refusal for all the faults together, or nil for none. It is what apierrors.NewInvalid makes, which
// takes no causes that the API server has found already.
func invalid(name string, faults field.ErrorList, further []metav1.StatusCause) error {
	all := append(causes(faults), further...)
	if len(all) == 0 {
		return nil
	}
	refusal := apierrors.NewInvalid(v1alpha1.GroupVersion.WithKind(v1alpha1.Kind).GroupKind(), name, nil)
	refusal.ErrStatus.Details.Causes = all
	texts := make([]string, 0, len(all))
	for _, cause := range all {
		texts = append(texts, cause.Field+": "+cause.Message)
	}
	text := texts[0]
	if len(texts) > 1 {
		text = "[" + strings.Join(texts, ", ") + "]"
	}
	refusal.ErrStatus.Message = fmt.Sprintf("%s %q is invalid: %s", v1alpha1.GroupVersion.WithKind(v1alpha1.Kind).GroupKind(), name, text)
	return refusal
}

func causes(faults field.ErrorList) []metav1.StatusCause {
	list := make([]metav1.StatusCause, 0, len(faults))
	for _, fault := range faults {
		list = append(list, metav1.StatusCause{Type: metav1.CauseType(fault.Type), Message: fault.ErrorBody(), Field: fault.Field})
	}
	return list
}
