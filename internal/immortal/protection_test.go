// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package immortal

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"blackadder.io/blackadder/api/immortalcontainer/v1alpha1"
)

func annotatedUntil(value string) *v1alpha1.ImmortalContainer {
	return container(func(c *v1alpha1.ImmortalContainer) {
		c.Annotations = map[string]string{v1alpha1.UnprotectedUntilAnnotation: value}
	})
}

func TestValidate(t *testing.T) {
	const path = "metadata.annotations[immortalcontainer.flugel.it/unprotected-until]: "
	for name, c := range map[string]struct {
		container, old *v1alpha1.ImmortalContainer
		fault, warning string
	}{
		"plain":             {container: container()},
		"glass in time":     {container: annotatedUntil("2026-11-21T13:00:00Z")},
		"glass too far":     {container: annotatedUntil("2026-11-21T13:00:01Z"), fault: path + `Invalid value: "2026-11-21T13:00:01Z": must lie at most 1 hour ahead (it is 2026-11-21T12:00:00Z now), such as "2026-11-21T12:10:00Z"`},
		"glass unreadable":  {container: annotatedUntil("tomorrow"), fault: path + `Invalid value: "tomorrow": must be a time in RFC 3339, such as "2026-11-21T12:10:00Z"`},
		"glass in the past": {container: annotatedUntil("2026-11-21T12:00:00Z"), warning: path + `2026-11-21T12:00:00Z has passed (it is 2026-11-21T12:00:00Z now): the pod stays protected`},
		"glass as before":   {container: annotatedUntil("tomorrow"), old: annotatedUntil("tomorrow")},
		"orphan finalizer":  {container: container(func(c *v1alpha1.ImmortalContainer) { c.Finalizers = []string{"a/b", "orphan"} }), fault: `metadata.finalizers[1]: Forbidden: "orphan" would leave the pod behind without an owner: an ImmortalContainer ends together with its pod`},
		"another finalizer": {container: container(func(c *v1alpha1.ImmortalContainer) { c.Finalizers = []string{"foregroundDeletion"} })},
		"orphan, terminating": {container: container(func(c *v1alpha1.ImmortalContainer) {
			c.Finalizers, c.DeletionTimestamp = []string{"orphan"}, at(0)
		})},
	} {
		t.Run(name, func(t *testing.T) {
			faults, warnings := Validate(c.container, c.old, now)
			got := ""
			if len(faults) > 0 {
				got = faults[0].Error()
			}
			if got != c.fault || len(faults) > 1 {
				t.Errorf("faults %v\nwant   %s", faults, c.fault)
			}
			if (c.warning == "") != (len(warnings) == 0) || (c.warning != "" && warnings[0] != c.warning) {
				t.Errorf("warnings %q\nwant     %q", warnings, c.warning)
			}
		})
	}
}

func TestImageWarnings(t *testing.T) {
	for image, want := range map[string]string{
		"nginx:1.29":       "",
		"nginx:latest":     `spec.image: "nginx:latest" has the tag "latest", so that the pod that comes back may run another image: name a version, or better a digest`,
		"nginx":            `spec.image: "nginx" has no tag, so that the pod that comes back may run another image: name a version, or better a digest`,
		"host:5000/a/b:v1": "",
		"Not A Reference":  "",
		"nginx:latest@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef": "",
	} {
		got := ImageWarnings(image)
		if (want == "") != (len(got) == 0) || (want != "" && got[0] != want) {
			t.Errorf("%s: got %q, want %q", image, got, want)
		}
	}
}

func TestFaultsInSpecNameTheUsersFields(t *testing.T) {
	var in, got []metav1.StatusCause
	want := []string{
		"spec.ports[0].containerPort", "spec.volumeMounts[0].name", "spec.securityContext.runAsUser", "spec.podSecurityContext.fsGroup",
		"spec.podLabels", "spec.podAnnotations[x]", "spec.volumes[0].name", "spec.tolerations", "spec.securityContextual", "spec",
	}
	for _, field := range []string{
		"spec.containers[0].ports[0].containerPort", "spec.containers[0].volumeMounts[0].name", "spec.containers[0].securityContext.runAsUser", "spec.securityContext.fsGroup",
		"metadata.labels", "metadata.annotations[x]", "spec.volumes[0].name", "spec.tolerations", "spec.securityContextual", "spec.containers[0]",
	} {
		in = append(in, metav1.StatusCause{Field: field, Message: "m"})
	}
	got = FaultsInSpec(in)
	for i := range got {
		if got[i].Field != want[i] || got[i].Message != "m" {
			t.Errorf("%s became %+v, want %s", in[i].Field, got[i], want[i])
		}
	}
}

func TestNameConflict(t *testing.T) {
	if got := NameConflict(container(), livePod()); got != "" {
		t.Errorf("its own pod: %s", got)
	}
	if got := NameConflict(container(func(c *v1alpha1.ImmortalContainer) { c.UID = "" }), livePod()); got != "" {
		t.Errorf("a pod of an earlier container of the name: %s", got)
	}
	if got := NameConflict(container(), livePod(plain)); got == "" {
		t.Error("a foreign pod is no conflict")
	}
}

func TestPodSpecChanged(t *testing.T) {
	if !PodSpecChanged(container(), nil) || PodSpecChanged(container(), container()) {
		t.Error("new must count as changed, the same as unchanged")
	}
	if !PodSpecChanged(container(func(c *v1alpha1.ImmortalContainer) { c.Spec.Args = []string{"x"} }), container()) {
		t.Error("other arguments must count as changed")
	}
}

func TestNodeFactsOf(t *testing.T) {
	node := &corev1.Node{
		Spec: corev1.NodeSpec{Unschedulable: true, Taints: []corev1.Taint{{Effect: corev1.TaintEffectNoSchedule}, {Effect: corev1.TaintEffectNoExecute}}},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeDiskPressure, Status: corev1.ConditionTrue}, {Type: corev1.NodeReady, Status: corev1.ConditionUnknown},
		}},
	}
	if diff := cmp.Diff(NodeFacts{Name: "n", Exists: true, Cordoned: true, TaintedNoExecute: true}, NodeFactsOf("n", node)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	for _, taint := range []string{"ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted"} {
		emptied := &corev1.Node{Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: taint, Effect: corev1.TaintEffectNoSchedule}}}}
		if !NodeFactsOf("n", emptied).Cordoned {
			t.Errorf("a node with taint %s is being emptied", taint)
		}
	}
	if diff := cmp.Diff(NodeFacts{Name: "n"}, NodeFactsOf("n", nil)); diff != "" {
		t.Errorf("no node (-want +got)\n%s", diff)
	}
}

// FuzzUnprotectedUntil: whatever admission accepts in time lifts the protection, what it refuses does not, and nothing
// lifts it for longer than an hour.
func FuzzUnprotectedUntil(f *testing.F) {
	for _, value := range []string{"2026-11-21T12:30:00Z", "2026-11-21T13:00:00.000000001Z", "2026-11-21T14:30:00+02:00", "", "tomorrow", "9999-12-31T23:59:59Z"} {
		f.Add(value)
	}
	f.Fuzz(func(t *testing.T, value string) {
		c := annotatedUntil(value)
		faults, warnings := Validate(c, nil, now)
		until, lifted := UnprotectedUntil(c, now)
		if lifted != (len(faults) == 0 && len(warnings) == 0) {
			t.Errorf("%q: lifted %t, faults %v, warnings %v", value, lifted, faults, warnings)
		}
		if lifted && until.Sub(now) > time.Hour {
			t.Errorf("%q lifts for %s", value, until.Sub(now))
		}
	})
}

// FuzzImageWarnings: no panic, and a digest never warns.
func FuzzImageWarnings(f *testing.F) {
	f.Add("nginx:latest")
	f.Add("a@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef")
	f.Fuzz(func(t *testing.T, image string) {
		if warnings := ImageWarnings(image); strings.Contains(image, "@") && len(warnings) > 0 {
			t.Errorf("%q names a digest: %q", image, warnings)
		}
	})
}
