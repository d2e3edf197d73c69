// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package conversion_test

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/randfill"

	"blackadder.io/blackadder/api/blackadder/v1alpha1"
	"blackadder.io/blackadder/api/blackadder/v1beta1"
	"blackadder.io/blackadder/webhooks/conversion"
)

// filler fills objects with what the API can hold: times as exact as their JSON, and no empty lists where JSON has none.
func filler(data []byte) *randfill.Filler {
	return randfill.NewFromGoFuzz(data).NilChance(0.3).NumElements(1, 3).Funcs(
		func(at *metav1.Time, c randfill.Continue) { at.Time = time.Unix(c.Int63n(1<<32), 0).UTC() },
		func(at *metav1.MicroTime, c randfill.Continue) { at.Time = time.UnixMicro(c.Int63n(1 << 50)).UTC() },
		func(raw *metav1.FieldsV1, _ randfill.Continue) { *raw = *metav1.NewFieldsV1("{}") },
		func(*metav1.TypeMeta, randfill.Continue) {},
		func(meta *metav1.ObjectMeta, c randfill.Continue) {
			c.FillNoCustom(meta)
			delete(meta.Annotations, v1alpha1.HubAnnotation)
		},
	)
}

func toHub(t *testing.T, spoke *v1alpha1.ChaosAgent) *v1beta1.ChaosAgent {
	t.Helper()
	hub := &v1beta1.ChaosAgent{}
	if err := conversion.ChaosAgentFromV1alpha1(t.Context(), throughJSON(t, spoke), hub); err != nil {
		t.Fatal(err)
	}
	return throughJSON(t, hub)
}

func toSpoke(t *testing.T, hub *v1beta1.ChaosAgent) *v1alpha1.ChaosAgent {
	t.Helper()
	spoke := &v1alpha1.ChaosAgent{}
	if err := conversion.ChaosAgentToV1alpha1(t.Context(), throughJSON(t, hub), spoke); err != nil {
		t.Fatal(err)
	}
	return throughJSON(t, spoke)
}

// throughJSON is the object as the API server hands it on.
func throughJSON[T any](t *testing.T, object *T) *T {
	t.Helper()
	text, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	read := new(T)
	if err := json.Unmarshal(text, read); err != nil {
		t.Fatal(err)
	}
	return read
}

func check(t *testing.T, want, got any) {
	t.Helper()
	if !equality.Semantic.DeepEqual(want, got) {
		before, _ := json.MarshalIndent(want, "", " ")
		after, _ := json.MarshalIndent(got, "", " ")
		t.Fatalf("the round trip changed\n%s\ninto\n%s", before, after)
	}
}

func FuzzStoredVersionSurvivesV1alpha1(f *testing.F) {
	f.Add([]byte("edmund"))
	f.Fuzz(func(t *testing.T, data []byte) {
		hub := &v1beta1.ChaosAgent{}
		filler(data).Fill(hub)
		hub = throughJSON(t, hub)
		back := toHub(t, toSpoke(t, hub))
		check(t, hub, back)
		if (hub.Spec.ExcludedNamespaces == nil) != (back.Spec.ExcludedNamespaces == nil) {
			t.Fatalf("the empty list and none are different things: %#v became %#v", hub.Spec.ExcludedNamespaces, back.Spec.ExcludedNamespaces)
		}
	})
}

func FuzzV1alpha1SurvivesStoredVersion(f *testing.F) {
	f.Add([]byte("baldrick"), "")
	f.Add([]byte("percy"), `{"spec":{"eagerness":5}}`)
	f.Add([]byte("melchett"), `{"spec":{"eagerness":"five"}}`)
	f.Fuzz(func(t *testing.T, data []byte, annotation string) {
		spoke := &v1alpha1.ChaosAgent{}
		filler(data).Fill(spoke)
		spoke = throughJSON(t, spoke)
		check(t, spoke, toSpoke(t, toHub(t, spoke)))
		// Whatever stands in the annotation, a conversion neither panics nor touches what v1alpha1 knows.
		spoke.Annotations = map[string]string{v1alpha1.HubAnnotation: annotation}
		hub := toHub(t, spoke)
		if hub.Spec.TantrumMode != spoke.Spec.TantrumMode || hub.Spec.PodTolerance != spoke.Spec.PodTolerance {
			t.Fatalf("%+v became %+v", spoke.Spec, hub.Spec)
		}
		if _, kept := hub.Annotations[v1alpha1.HubAnnotation]; kept != (conversion.AnnotationFault(spoke.Annotations) != nil) {
			t.Fatalf("only an annotation that no conversion wrote may stay: %q", annotation)
		}
	})
}

// TestRoundTripOfManyObjects is the fuzz targets' work in every test run.
func TestRoundTripOfManyObjects(t *testing.T) {
	for seed := range int64(500) {
		fill := randfill.NewWithSeed(seed)
		data := make([]byte, 4096)
		for i := range data {
			fill.Fill(&data[i])
		}
		hub := &v1beta1.ChaosAgent{}
		filler(data).Fill(hub)
		hub = throughJSON(t, hub)
		check(t, hub, toHub(t, toSpoke(t, hub)))
		spoke := &v1alpha1.ChaosAgent{}
		filler(data).Fill(spoke)
		spoke = throughJSON(t, spoke)
		check(t, spoke, toSpoke(t, toHub(t, spoke)))
	}
}

func TestTheEmptyListOfExclusionsStaysEmpty(t *testing.T) {
	for name, list := range map[string][]string{"left out": nil, "empty": {}, "some": {"kube-system"}} {
		hub := &v1beta1.ChaosAgent{Spec: v1beta1.ChaosAgentSpec{ExcludedNamespaces: list, Seed: ptr.To(int64(1))}}
		back := toHub(t, toSpoke(t, hub))
		if (back.Spec.ExcludedNamespaces == nil) != (list == nil) || !slices.Equal(back.Spec.ExcludedNamespaces, list) {
			t.Errorf("%s: %#v became %#v", name, list, back.Spec.ExcludedNamespaces)
		}
	}
}

func TestAV1alpha1ClientChangesWhatItKnowsAndKeepsTheRest(t *testing.T) {
	hub := &v1beta1.ChaosAgent{
		ObjectMeta: metav1.ObjectMeta{Name: "edmund", Annotations: map[string]string{"mine": "kept"}},
		Spec:       v1beta1.ChaosAgentSpec{TantrumMode: true, PodTolerance: 10, Eagerness: 55, ExcludedNamespaces: []string{"kube-system"}},
		Status:     v1beta1.ChaosAgentStatus{ObservedGeneration: 3, Totals: v1beta1.Totals{Cycles: 7}},
	}
	spoke := toSpoke(t, hub)
	spoke.Spec.PodTolerance = 11
	want := hub.DeepCopy()
	want.Spec.PodTolerance = 11
	check(t, want, toHub(t, spoke))
}

func TestAnObjectThatNeedsNoAnnotationHasNone(t *testing.T) {
	spoke := toSpoke(t, &v1beta1.ChaosAgent{Spec: v1beta1.ChaosAgentSpec{TantrumMode: true, PodTolerance: 3}})
	if len(spoke.Annotations) != 0 {
		t.Errorf("annotations %v", spoke.Annotations)
	}
}

func TestAnnotationFaults(t *testing.T) {
	for name, c := range map[string]struct{ annotation, fault string }{
		"what conversion writes": {`{"spec":{"eagerness":5}}`, ""},
		"not JSON":               {`junk`, "invalid character 'j' looking for beginning of value"},
		"an unknown field":       {`{"spec":{"eagernes":5}}`, `json: unknown field "eagernes"`},
		"more than one object":   {`{} {}`, "there is more after its end"},
	} {
		err := conversion.AnnotationFault(map[string]string{v1alpha1.HubAnnotation: c.annotation})
		if got := errorText(err); got != c.fault {
			t.Errorf("%s: fault %q, want %q", name, got, c.fault)
		}
	}
	if err := conversion.AnnotationFault(nil); err != nil {
		t.Errorf("without annotations: %v", err)
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestTheConverterKnowsBothVersions(t *testing.T) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, v1beta1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := conversion.ChaosAgent(scheme); err != nil {
		t.Fatal(err)
	}
}
