// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package webhooks

import (
	"encoding/json"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"blackadder.io/blackadder/api/immortalcontainer/v1alpha1"
	"blackadder.io/blackadder/internal/immortal"
)

func TestDecodePodRequest(t *testing.T) {
	pod := runtime.RawExtension{Raw: []byte(`{"metadata":{"name":"x-immortalpod"}}`)}
	for name, c := range map[string]struct {
		request  admissionv1.AdmissionRequest
		old, new bool
		fault    string
	}{
		"create":                     {request: admissionv1.AdmissionRequest{Operation: "CREATE", Object: pod}, new: true},
		"create without pod":         {request: admissionv1.AdmissionRequest{Operation: "CREATE"}, fault: "the CREATE of a pod came without the pod"},
		"update":                     {request: admissionv1.AdmissionRequest{Operation: "UPDATE", Object: pod, OldObject: pod}, old: true, new: true},
		"update without old pod":     {request: admissionv1.AdmissionRequest{Operation: "UPDATE", Object: pod}, new: true, fault: "the UPDATE of a pod came without the pod"},
		"delete":                     {request: admissionv1.AdmissionRequest{Operation: "DELETE", OldObject: pod}, old: true},
		"delete of a collection":     {request: admissionv1.AdmissionRequest{Operation: "DELETE", Name: "", OldObject: pod}, old: true},
		"delete without pod":         {request: admissionv1.AdmissionRequest{Operation: "DELETE"}, fault: "the DELETE of a pod came without the pod"},
		"delete of null":             {request: admissionv1.AdmissionRequest{Operation: "DELETE", OldObject: runtime.RawExtension{Raw: []byte("null")}}, fault: "the DELETE of a pod came without the pod"},
		"eviction":                   {request: admissionv1.AdmissionRequest{Operation: "CREATE", SubResource: "eviction", Object: pod}},
		"eviction that is no create": {request: admissionv1.AdmissionRequest{Operation: "UPDATE", SubResource: "eviction"}, fault: "the eviction of a pod is a CREATE, not a UPDATE"},
		"not JSON":                   {request: admissionv1.AdmissionRequest{Operation: "DELETE", OldObject: runtime.RawExtension{Raw: []byte("{")}}, fault: "reading the old pod: unexpected end of JSON input"},
		"not a pod":                  {request: admissionv1.AdmissionRequest{Operation: "CREATE", Object: runtime.RawExtension{Raw: []byte("3")}}, fault: "reading the new pod: json: cannot unmarshal number into Go value of type v1.Pod"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := decodePodRequest(c.request)
			fault := ""
			if err != nil {
				fault = err.Error()
			}
			if fault != c.fault {
				t.Errorf("got fault %q, want %q", fault, c.fault)
			}
			if (got.OldPod != nil) != c.old || (got.NewPod != nil) != c.new {
				t.Errorf("old %v, new %v", got.OldPod, got.NewPod)
			}
		})
	}
}

func TestOrphansDependents(t *testing.T) {
	for options, want := range map[string]bool{
		``:                                   false,
		`{}`:                                 false,
		`{"propagationPolicy":"Background"}`: false,
		`{"propagationPolicy":"Orphan"}`:     true,
		`{"orphanDependents":true}`:          true,
		`{"orphanDependents":false}`:         false,
	} {
		got, err := orphansDependents(admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{Options: runtime.RawExtension{Raw: []byte(options)}}})
		if err != nil || got != want {
			t.Errorf("%s: got %t, %v", options, got, err)
		}
	}
	if _, err := orphansDependents(admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{Options: runtime.RawExtension{Raw: []byte("{")}}}); err == nil {
		t.Error("options that are not JSON must be a fault, not a consent")
	}
}

// FuzzDecodePodRequest: whatever the body holds, decoding and the verdict neither panic nor stay silent.
func FuzzDecodePodRequest(f *testing.F) {
	pod, err := json.Marshal(immortal.Pod(&v1alpha1.ImmortalContainer{ObjectMeta: metav1.ObjectMeta{Name: "x", UID: "u"}}, 1))
	if err != nil {
		f.Fatal(err)
	}
	f.Add("DELETE", "", []byte(nil), pod)
	f.Add("CREATE", "eviction", []byte(`{"kind":"Eviction"}`), []byte(nil))
	f.Add("UPDATE", "status", pod, pod)
	f.Fuzz(func(t *testing.T, operation, subresource string, object, oldObject []byte) {
		request, err := decodePodRequest(admissionv1.AdmissionRequest{
			Operation: admissionv1.Operation(operation), SubResource: subresource, UserInfo: authenticationv1.UserInfo{Username: "alice"},
			Object: runtime.RawExtension{Raw: object}, OldObject: runtime.RawExtension{Raw: oldObject},
		})
		if err != nil {
			return
		}
		verdict := immortal.Judge(request, immortal.Surroundings{Now: time.Unix(0, 0)})
		if verdict.Reason == "" {
			t.Errorf("no verdict on %+v", request)
		}
	})
}
