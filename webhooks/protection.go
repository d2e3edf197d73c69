// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package webhooks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"blackadder.io/blackadder/api/immortalcontainer/v1alpha1"
	"blackadder.io/blackadder/internal/immortal"
)

// Paths that the protection is served at.
const (
	protectPodsPath       = "/protect-immortal-pods"
	protectNamespacesPath = "/protect-guarded-namespaces"
)

// eventProtectionHeld is the reason of the event that a denial leaves on the ImmortalContainer.
const eventProtectionHeld = "ProtectionHeld"

// +kubebuilder:webhook:mutating=false,name=pods.immortalcontainer.flugel.it,path=/protect-immortal-pods,groups="",resources=pods;pods/status,verbs=create;update;delete,versions=v1,failurePolicy=fail,sideEffects=NoneOnDryRun,timeoutSeconds=5,matchPolicy=Equivalent,admissionReviewVersions=v1,serviceName=blackadder-webhook,serviceNamespace=blackadder-system
// +kubebuilder:webhook:mutating=false,name=forgeries.immortalcontainer.flugel.it,path=/protect-immortal-pods,groups="",resources=pods,verbs=create;update,versions=v1,failurePolicy=fail,sideEffects=NoneOnDryRun,timeoutSeconds=5,matchPolicy=Equivalent,admissionReviewVersions=v1,serviceName=blackadder-webhook,serviceNamespace=blackadder-system
// +kubebuilder:webhook:mutating=false,name=evictions.immortalcontainer.flugel.it,path=/protect-immortal-pods,groups="",resources=pods/eviction,verbs=create,versions=v1,failurePolicy=fail,sideEffects=NoneOnDryRun,timeoutSeconds=5,matchPolicy=Equivalent,admissionReviewVersions=v1,serviceName=blackadder-webhook,serviceNamespace=blackadder-system
// +kubebuilder:webhook:mutating=false,name=bindings.immortalcontainer.flugel.it,path=/protect-immortal-pods,groups="",resources=pods/binding;bindings,verbs=create,versions=v1,failurePolicy=fail,sideEffects=NoneOnDryRun,timeoutSeconds=5,matchPolicy=Equivalent,admissionReviewVersions=v1,serviceName=blackadder-webhook,serviceNamespace=blackadder-system
// +kubebuilder:webhook:mutating=false,name=namespaces.immortalcontainer.flugel.it,path=/protect-guarded-namespaces,groups="",resources=namespaces,verbs=delete,versions=v1,failurePolicy=fail,sideEffects=NoneOnDryRun,timeoutSeconds=5,matchPolicy=Equivalent,admissionReviewVersions=v1,serviceName=blackadder-webhook,serviceNamespace=blackadder-system
// +kubebuilder:rbac:groups="",resources=pods;namespaces;nodes,verbs=get
// +kubebuilder:rbac:groups=immortalcontainer.flugel.it,resources=immortalcontainers,verbs=get;list
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// protection keeps immortal pods from everybody but their controller. It reads the objects around the pod from the API
// server itself and never from a cache: a verdict on stale facts would refuse the garbage collector, or a user who has
// just broken the glass.
//
// The objectSelectors and matchConditions that keep every other request away stand in config/webhook, because the
// markers have no words for them.
type protection struct {
	controllerUser string
	clock          clock.PassiveClock
	reader         client.Reader
	recorder       events.EventRecorder
	denials        *prometheus.CounterVec
}

func setupProtection(mgr ctrl.Manager, options Options) error {
	if options.ControllerUser == "" {
		return errors.New("the operator's own user name is unknown: without it, the protection would refuse the operator itself")
	}
	p := &protection{
		controllerUser: options.ControllerUser,
		clock:          options.Clock,
		reader:         mgr.GetAPIReader(),
		recorder:       mgr.GetEventRecorder("blackadder-protection"),
		denials: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "blackadder_immortal_protection_denials_total",
			Help: "Requests that the protection of immortal pods and guarded namespaces refused, by reason; dry runs are not counted.",
		}, []string{"reason"}),
	}
	if err := options.Metrics.Register(p.denials); err != nil {
		return fmt.Errorf("registering its metrics: %w", err)
	}
	server := mgr.GetWebhookServer()
	server.Register(protectPodsPath, &webhook.Admission{Handler: admission.HandlerFunc(p.handlePod)})
	server.Register(protectNamespacesPath, &webhook.Admission{Handler: admission.HandlerFunc(p.handleNamespace)})
	return nil
}

// handlePod answers for everything that is done to a pod.
func (p *protection) handlePod(ctx context.Context, request admission.Request) admission.Response {
	asked, err := decodePodRequest(request.AdmissionRequest)
	if err != nil {
		return admission.Errored(http.StatusBadRequest, err)
	}
	switch asked.Subresource {
	case immortal.SubresourceEviction:
		// An Eviction names its pod, and carries nothing of it.
		asked.OldPod, err = p.pod(ctx, request.Namespace, request.Name)
	case immortal.SubresourceBinding:
		asked, err = p.bindingAsUpdate(ctx, request, asked)
	}
	if err != nil {
		return admission.Errored(http.StatusInternalServerError, err)
	}
	verdict, decided := immortal.JudgeRequest(asked, p.controllerUser)
	if decided {
		return p.respond(request, asked.OldPod, nil, verdict)
	}
	surroundings, err := p.surroundings(ctx, request.Namespace, asked.OldPod)
	if err != nil {
		return admission.Errored(http.StatusInternalServerError, err)
	}
	return p.respond(request, asked.OldPod, surroundings.Container, immortal.Judge(asked, surroundings))
}

// bindingAsUpdate turns a Binding into the update of the pod that it also is: the API server merges the Binding's labels
// and annotations into the pod.
func (p *protection) bindingAsUpdate(ctx context.Context, request admission.Request, asked immortal.Request) (immortal.Request, error) {
	var binding corev1.Binding
	if err := json.Unmarshal(request.Object.Raw, &binding); err != nil {
		return asked, fmt.Errorf("reading the binding: %w", err)
	}
	pod, err := p.pod(ctx, request.Namespace, binding.Name)
	if err != nil || pod == nil {
		return asked, err
	}
	bound := pod.DeepCopy()
	for label, value := range binding.Labels {
		metav1.SetMetaDataLabel(&bound.ObjectMeta, label, value)
	}
	for annotation, value := range binding.Annotations {
		metav1.SetMetaDataAnnotation(&bound.ObjectMeta, annotation, value)
	}
	asked.Operation, asked.OldPod, asked.NewPod = admissionv1.Update, pod, bound
	return asked, nil
}

// decodePodRequest reads what is asked. A deletion carries only the old object, and one of a collection no name either.
func decodePodRequest(request admissionv1.AdmissionRequest) (immortal.Request, error) {
	asked := immortal.Request{Operation: request.Operation, Subresource: request.SubResource, User: request.UserInfo}
	if request.Resource.Resource == "bindings" {
		// The older way to bind: the Binding is the resource itself.
		asked.Subresource = immortal.SubresourceBinding
	}
	if asked.Subresource == immortal.SubresourceEviction || asked.Subresource == immortal.SubresourceBinding {
		if request.Operation != admissionv1.Create {
			return asked, fmt.Errorf("the %s of a pod is a CREATE, not a %s", asked.Subresource, request.Operation)
		}
		return asked, nil
	}
	var err error
	if asked.OldPod, err = decodePod(request.OldObject.Raw); err != nil {
		return asked, fmt.Errorf("reading the old pod: %w", err)
	}
	if asked.NewPod, err = decodePod(request.Object.Raw); err != nil {
		return asked, fmt.Errorf("reading the new pod: %w", err)
	}
	switch {
	case request.Operation == admissionv1.Create && asked.NewPod == nil,
		request.Operation == admissionv1.Delete && asked.OldPod == nil,
		request.Operation == admissionv1.Update && (asked.OldPod == nil || asked.NewPod == nil):
		return asked, fmt.Errorf("the %s of a pod came without the pod", request.Operation)
	}
	return asked, nil
}

func decodePod(raw []byte) (*corev1.Pod, error) {
	if len(raw) == 0 {
		return nil, nil //nolint:nilnil // No object, and no fault either.
	}
	var pod *corev1.Pod
	if err := json.Unmarshal(raw, &pod); err != nil {
		return nil, err
	}
	return pod, nil
}

// pod reads a pod; nil if there is none, which the API server itself then says.
func (p *protection) pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	var pod corev1.Pod
	err := p.reader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &pod)
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // As documented.
	}
	if err != nil {
		return nil, fmt.Errorf("reading pod %q, which is to be evicted: %w", name, err)
	}
	return &pod, nil
}

// surroundings gathers the facts around an immortal pod.
func (p *protection) surroundings(ctx context.Context, namespaceName string, pod *corev1.Pod) (immortal.Surroundings, error) {
	found := immortal.Surroundings{ControllerUser: p.controllerUser, Now: p.clock.Now()}
	var namespace corev1.Namespace
	if err := p.reader.Get(ctx, client.ObjectKey{Name: namespaceName}, &namespace); client.IgnoreNotFound(err) != nil {
		return found, fmt.Errorf("reading namespace %q: %w", namespaceName, err)
	}
	found.NamespaceTerminating = namespace.UID == "" || namespace.DeletionTimestamp != nil
	if found.NamespaceTerminating {
		return found, nil
	}
	var err error
	if found.Container, err = p.owner(ctx, namespaceName, pod); err != nil {
		return found, err
	}
	if pod != nil && pod.Spec.NodeName != "" {
		var node corev1.Node
		err := p.reader.Get(ctx, client.ObjectKey{Name: pod.Spec.NodeName}, &node)
		if client.IgnoreNotFound(err) != nil {
			return found, fmt.Errorf("reading node %q: %w", pod.Spec.NodeName, err)
		}
		facts := immortal.NodeFactsOf(pod.Spec.NodeName, nil)
		if err == nil {
			facts = immortal.NodeFactsOf(node.Name, &node)
		}
		found.Node = &facts
	}
	return found, nil
}

// owner reads the ImmortalContainer that controls the pod. One of the same name and another UID is not it.
func (p *protection) owner(ctx context.Context, namespace string, pod *corev1.Pod) (*v1alpha1.ImmortalContainer, error) {
	reference := immortal.Owner(pod)
	if reference == nil {
		return nil, nil //nolint:nilnil // No owner, and no fault either.
	}
	var container v1alpha1.ImmortalContainer
	err := p.reader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: reference.Name}, &container)
	if apierrors.IsNotFound(err) || (err == nil && container.UID != reference.UID) {
		return nil, nil //nolint:nilnil // As above.
	}
	if err != nil {
		return nil, fmt.Errorf("reading ImmortalContainer %q: %w", reference.Name, err)
	}
	return &container, nil
}

// handleNamespace answers for the deletion of a guarded namespace.
func (p *protection) handleNamespace(ctx context.Context, request admission.Request) admission.Response {
	var namespace corev1.Namespace
	if err := json.Unmarshal(request.OldObject.Raw, &namespace); err != nil {
		return admission.Errored(http.StatusBadRequest, fmt.Errorf("reading the namespace: %w", err))
	}
	var containers v1alpha1.ImmortalContainerList
	if err := p.reader.List(ctx, &containers, client.InNamespace(namespace.Name)); err != nil {
		return admission.Errored(http.StatusInternalServerError, fmt.Errorf("listing the ImmortalContainers of namespace %q: %w", namespace.Name, err))
	}
	var living []string
	for _, container := range containers.Items {
		if container.DeletionTimestamp == nil {
			living = append(living, container.Name)
		}
	}
	slices.Sort(living)
	verdict := immortal.JudgeNamespace(&namespace, living)
	if !verdict.Allowed && !isDryRun(request) {
		for i := range containers.Items {
			p.recorder.Eventf(&containers.Items[i], nil, corev1.EventTypeWarning, eventProtectionHeld, action(request),
				"refused: deletion of guarded namespace %s by user %q", namespace.Name, request.UserInfo.Username)
		}
	}
	return p.respond(request, nil, nil, verdict)
}

func isDryRun(request admission.Request) bool { return request.DryRun != nil && *request.DryRun }

// respond turns a verdict into the API server's terms, counts a denial, and leaves an event on the ImmortalContainer.
func (p *protection) respond(request admission.Request, pod *corev1.Pod, container *v1alpha1.ImmortalContainer, verdict immortal.Verdict) admission.Response {
	if verdict.Allowed {
		return admission.Allowed(string(verdict.Reason))
	}
	if !isDryRun(request) {
		p.denials.WithLabelValues(string(verdict.Reason)).Inc()
		if container != nil && pod != nil {
			p.recorder.Eventf(container, pod.DeepCopy(), corev1.EventTypeWarning, eventProtectionHeld, action(request),
				"refused: %s of pod %s by user %q (%s)", action(request), pod.Name, request.UserInfo.Username, verdict.Reason)
		}
	}
	reason := metav1.StatusReasonForbidden
	if verdict.Code == http.StatusTooManyRequests {
		reason = metav1.StatusReasonTooManyRequests
	}
	return admission.Response{AdmissionResponse: admissionv1.AdmissionResponse{
		UID: request.UID,
		Result: &metav1.Status{
			Status: metav1.StatusFailure, Code: verdict.Code, Reason: reason, Message: verdict.Message,
		},
	}}
}

// action names what was tried in one word, as events want it.
func action(request admission.Request) string {
	switch {
	case request.SubResource == immortal.SubresourceEviction:
		return "Evict"
	case request.Operation == admissionv1.Delete:
		return "Delete"
	case request.Operation == admissionv1.Update:
		return "Update"
	}
	return "Create"
}
