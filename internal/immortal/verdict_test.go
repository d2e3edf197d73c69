// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package immortal

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"blackadder.io/blackadder/api/immortalcontainer/v1alpha1"
)

const operator = "system:serviceaccount:blackadder-system:blackadder-manager"

var now = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func container(change ...func(*v1alpha1.ImmortalContainer)) *v1alpha1.ImmortalContainer {
	c := &v1alpha1.ImmortalContainer{
		ObjectMeta: metav1.ObjectMeta{Name: "db", Namespace: "team", UID: "owner-1", Generation: 1},
		Spec:       v1alpha1.ImmortalContainerSpec{Image: "nginx:1.29"},
	}
	for _, f := range change {
		f(c)
	}
	return c
}

// livePod is the container's pod, running on node n1.
func livePod(change ...func(*corev1.Pod)) *corev1.Pod {
	pod := Pod(container(), 1)
	pod.UID = "pod-1"
	pod.CreationTimestamp = metav1.NewTime(now.Add(-time.Hour))
	pod.Spec.NodeName = "n1"
	pod.Status.Phase = corev1.PodRunning
	for _, f := range change {
		f(pod)
	}
	return pod
}

func terminating(pod *corev1.Pod) { pod.DeletionTimestamp = ptr.To(metav1.NewTime(now)) }
func failed(pod *corev1.Pod)      { pod.Status.Phase = corev1.PodFailed }
func unscheduled(pod *corev1.Pod) { pod.Spec.NodeName = "" }
func tolerant(pod *corev1.Pod)    { pod.Spec.Tolerations = []corev1.Toleration{{Key: "a"}} }
func plain(pod *corev1.Pod)       { pod.Labels, pod.OwnerReferences = nil, nil }

func user(name string, groups ...string) authenticationv1.UserInfo {
	return authenticationv1.UserInfo{Username: name, Groups: append(groups, "system:authenticated")}
}

func remove(by authenticationv1.UserInfo, pod *corev1.Pod) Request {
	return Request{Operation: admissionv1.Delete, User: by, OldPod: pod}
}

func evict(by authenticationv1.UserInfo, pod *corev1.Pod) Request {
	return Request{Operation: admissionv1.Create, Subresource: SubresourceEviction, User: by, OldPod: pod}
}

func update(by authenticationv1.UserInfo, subresource string, change func(*corev1.Pod)) Request {
	return Request{Operation: admissionv1.Update, Subresource: subresource, User: by, OldPod: livePod(), NewPod: livePod(change)}
}

func create(by authenticationv1.UserInfo, pod *corev1.Pod) Request {
	return Request{Operation: admissionv1.Create, User: by, NewPod: pod}
}

func TestJudge(t *testing.T) {
	var (
		admin      = user("alice", "system:masters")
		kubelet    = user("system:node:n1", "system:nodes")
		sa         = func(name string) authenticationv1.UserInfo { return user("system:serviceaccount:kube-system:" + name) }
		gc         = sa("generic-garbage-collector")
		namespaces = sa("namespace-controller")
		podGC      = sa("pod-garbage-collector")
		nodes      = sa("node-controller")
		devices    = sa("device-taint-eviction-controller")
		kcm        = user("system:kube-controller-manager")
		scheduler  = user("system:kube-scheduler")
	)
	calm := Surroundings{ControllerUser: operator, Container: container(), Node: &NodeFacts{Name: "n1", Exists: true, Ready: true}, Now: now}
	with := func(change func(*Surroundings)) Surroundings {
		s := calm
		change(&s)
		return s
	}
	annotated := func(until time.Time) Surroundings {
		return with(func(s *Surroundings) {
			s.Container = container(func(c *v1alpha1.ImmortalContainer) {
				c.Annotations = map[string]string{v1alpha1.UnprotectedUntilAnnotation: until.Format(time.RFC3339)}
			})
		})
	}
	ownerGone := with(func(s *Surroundings) { s.Container = nil })
	ownerEnding := with(func(s *Surroundings) {
		s.Container = container(func(c *v1alpha1.ImmortalContainer) { c.DeletionTimestamp = ptr.To(metav1.NewTime(now)) })
	})
	namespaceEnding := with(func(s *Surroundings) { s.NamespaceTerminating = true })
	cordoned := with(func(s *Surroundings) { s.Node = &NodeFacts{Name: "n1", Exists: true, Ready: true, Cordoned: true} })
	tainted := with(func(s *Surroundings) { s.Node = &NodeFacts{Name: "n1", Exists: true, TaintedNoExecute: true} })
	nodeGone := with(func(s *Surroundings) { s.Node = &NodeFacts{Name: "n1"} })

	for name, c := range map[string]struct {
		request Request
		in      Surroundings
		want    Reason
		code    int32 // 0 for allowed
	}{
		// The table «must be refused», by its numbers.
		"1 delete by an admin":                         {remove(admin, livePod()), calm, DeniedDelete, 403},
		"1 delete of an unscheduled pod":               {remove(admin, livePod(unscheduled)), with(func(s *Surroundings) { s.Node = nil }), DeniedDelete, 403},
		"1 delete from a cordoned node is no eviction": {remove(admin, livePod()), cordoned, DeniedDelete, 403},
		"3 eviction":                                    {evict(admin, livePod()), calm, DeniedEviction, 429},
		"4 protecting label removed":                    {update(admin, "", func(p *corev1.Pod) { delete(p.Labels, v1alpha1.ProtectedLabel) }), calm, DeniedTampering, 403},
		"4 protecting label changed":                    {update(admin, "", func(p *corev1.Pod) { p.Labels[v1alpha1.ProtectedLabel] = "false" }), calm, DeniedTampering, 403},
		"4 controller label changed":                    {update(admin, "", func(p *corev1.Pod) { p.Labels[v1alpha1.ControllerLabel] = "x" }), calm, DeniedTampering, 403},
		"4 protecting label removed through the status": {update(admin, "status", func(p *corev1.Pod) { delete(p.Labels, v1alpha1.ProtectedLabel) }), calm, DeniedTampering, 403},
		"5 owner removed":                               {update(admin, "", func(p *corev1.Pod) { p.OwnerReferences = nil }), calm, DeniedTampering, 403},
		"5 owner replaced by an absent one":             {update(admin, "", func(p *corev1.Pod) { p.OwnerReferences[0].UID = "absent" }), calm, DeniedForged, 403},
		"5 absent owner added": {update(admin, "", func(p *corev1.Pod) {
			p.OwnerReferences = append(p.OwnerReferences, metav1.OwnerReference{Kind: "ReplicaSet", UID: "absent"})
		}), calm, DeniedTampering, 403},
		"6 finalizer added":                            {update(admin, "", func(p *corev1.Pod) { p.Finalizers = []string{"a/b"} }), calm, DeniedTampering, 403},
		"7 deadline set":                               {update(admin, "", func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = ptr.To[int64](1) }), calm, DeniedTampering, 403},
		"8 image changed":                              {update(admin, "", func(p *corev1.Pod) { p.Spec.Containers[0].Image = "evil" }), calm, DeniedTampering, 403},
		"9 phase set to Failed":                        {update(admin, "status", failed), calm, DeniedTampering, 403},
		"9 phase set to Succeeded":                     {update(admin, "status", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }), calm, DeniedTampering, 403},
		"9 phase set by another node's kubelet":        {update(user("system:node:n2", "system:nodes"), "status", failed), calm, DeniedTampering, 403},
		"9 phase set by a user named like the kubelet": {update(user("system:node:n1"), "status", failed), calm, DeniedTampering, 403},
		"10 controller: false on the owner":            {update(admin, "", func(p *corev1.Pod) { p.OwnerReferences[0].Controller = ptr.To(false) }), calm, DeniedTampering, 403},
		"10 second ImmortalContainer as owner": {update(admin, "", func(p *corev1.Pod) {
			p.OwnerReferences = append(p.OwnerReferences, metav1.OwnerReference{APIVersion: "immortalcontainer.flugel.it/v1", Kind: "ImmortalContainer", UID: "other"})
		}), calm, DeniedForged, 403},
		"12 another ServiceAccount":          {remove(user("system:serviceaccount:blackadder-system:other"), livePod()), calm, DeniedDelete, 403},
		"13 forged by label":                 {create(admin, livePod(func(p *corev1.Pod) { p.OwnerReferences = nil })), calm, DeniedForged, 403},
		"13 forged by owner":                 {create(admin, livePod(func(p *corev1.Pod) { p.Labels = nil })), calm, DeniedForged, 403},
		"13 forged by the garbage collector": {create(gc, livePod()), calm, DeniedForged, 403},
		"13 an existing pod made immortal": {
			Request{Operation: admissionv1.Update, User: admin, OldPod: livePod(plain), NewPod: livePod()},
			calm, DeniedForged, 403,
		},
		"13 a forgery in a terminating namespace": {create(admin, livePod()), namespaceEnding, DeniedForged, 403},
		"an ended pod's start tampered with": {
			Request{Operation: admissionv1.Update, User: admin, OldPod: livePod(failed), NewPod: livePod(failed, func(p *corev1.Pod) { p.Annotations[v1alpha1.StartAnnotation] = "9" })},
			calm, DeniedTampering, 403,
		},
		"a toleration made shorter": {
			Request{Operation: admissionv1.Update, User: admin, OldPod: livePod(tolerant), NewPod: livePod(tolerant, func(p *corev1.Pod) { p.Spec.Tolerations[0].TolerationSeconds = ptr.To[int64](0) })},
			calm, DeniedTampering, 403,
		},
		"start tampered with":                       {update(admin, "", func(p *corev1.Pod) { p.Annotations[v1alpha1.StartAnnotation] = "9" }), calm, DeniedTampering, 403},
		"spec hash tampered with":                   {update(admin, "", func(p *corev1.Pod) { p.Annotations[v1alpha1.SpecHashAnnotation] = "9" }), calm, DeniedTampering, 403},
		"glass broken too far ahead":                {remove(admin, livePod()), annotated(now.Add(2 * time.Hour)), DeniedDelete, 403},
		"glass broken in the past":                  {remove(admin, livePod()), annotated(now), DeniedDelete, 403},
		"garbage collector while the owner lives":   {remove(gc, livePod()), calm, DeniedDelete, 403},
		"taint eviction from an untainted node":     {remove(nodes, livePod()), calm, DeniedDelete, 403},
		"a user on a tainted node":                  {remove(admin, livePod()), tainted, DeniedDelete, 403},
		"a user named like a controller elsewhere":  {remove(user("system:serviceaccount:default:node-controller"), livePod()), tainted, DeniedDelete, 403},
		"cluster controller's status takes a label": {update(podGC, "status", func(p *corev1.Pod) { failed(p); delete(p.Labels, v1alpha1.ProtectedLabel) }), calm, DeniedTampering, 403},
		"an operation that nobody knows":            {Request{Operation: admissionv1.Connect, User: admin, OldPod: livePod()}, calm, DeniedUnknown, 403},
		"an eviction of an unscheduled pod":         {evict(admin, livePod(unscheduled)), with(func(s *Surroundings) { s.Node = nil }), DeniedEviction, 429},
		"an empty user is not an unknown operator":  {remove(user(""), livePod()), with(func(s *Surroundings) { s.ControllerUser = "" }), DeniedDelete, 403},

		// The table «must stay allowed».
		"controller deletes":                          {remove(user(operator), livePod()), calm, AllowedController, 0},
		"controller creates":                          {create(user(operator), livePod()), calm, AllowedController, 0},
		"controller updates":                          {update(user(operator), "", failed), calm, AllowedController, 0},
		"anybody, a terminating pod":                  {remove(admin, livePod(terminating)), calm, AllowedTerminating, 0},
		"anybody, an ended pod":                       {remove(admin, livePod(failed)), calm, AllowedEnded, 0},
		"anybody, the owner gone":                     {remove(admin, livePod()), ownerGone, AllowedOwnerEnding, 0},
		"anybody, the owner terminating":              {remove(admin, livePod()), ownerEnding, AllowedOwnerEnding, 0},
		"anybody, the namespace terminating":          {remove(admin, livePod()), namespaceEnding, AllowedNamespaceEnding, 0},
		"eviction, the owner gone":                    {evict(admin, livePod()), ownerGone, AllowedOwnerEnding, 0},
		"kubelet deletes its pod":                     {remove(kubelet, livePod()), calm, AllowedKubelet, 0},
		"kubelet ends its pod":                        {update(kubelet, "status", failed), calm, AllowedKubelet, 0},
		"garbage collector, owner gone":               {remove(gc, livePod()), ownerGone, AllowedOwnerEnding, 0},
		"namespace controller":                        {remove(namespaces, livePod()), namespaceEnding, AllowedNamespaceEnding, 0},
		"pod GC marks failed":                         {update(podGC, "status", failed), calm, AllowedClusterController, 0},
		"pod GC, node gone":                           {remove(podGC, livePod()), nodeGone, AllowedNodeGone, 0},
		"shared identity, node gone":                  {remove(kcm, livePod()), nodeGone, AllowedNodeGone, 0},
		"shared identity marks failed":                {update(kcm, "status", failed), calm, AllowedClusterController, 0},
		"taint eviction":                              {remove(nodes, livePod()), tainted, AllowedTaintEviction, 0},
		"device taint eviction":                       {remove(devices, livePod()), tainted, AllowedTaintEviction, 0},
		"device taint eviction of a claimed device":   {remove(devices, livePod(func(p *corev1.Pod) { p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu"}} })), calm, AllowedTaintEviction, 0},
		"a further toleration":                        {update(admin, "", tolerant), calm, AllowedRemovesNothing, 0},
		"shared identity, taint eviction":             {remove(kcm, livePod()), tainted, AllowedTaintEviction, 0},
		"taint eviction, node gone":                   {remove(nodes, livePod()), nodeGone, AllowedNodeGone, 0},
		"preemption":                                  {remove(scheduler, livePod()), calm, AllowedPreemption, 0},
		"drain of a cordoned node":                    {evict(admin, livePod()), cordoned, AllowedDrain, 0},
		"break-glass, delete":                         {remove(admin, livePod()), annotated(now.Add(time.Hour)), AllowedBreakGlass, 0},
		"break-glass, eviction":                       {evict(admin, livePod()), annotated(now.Add(time.Minute)), AllowedBreakGlass, 0},
		"ephemeral containers":                        {update(admin, "ephemeralcontainers", func(*corev1.Pod) {}), calm, AllowedRemovesNothing, 0},
		"resize":                                      {update(admin, "resize", func(*corev1.Pod) {}), calm, AllowedRemovesNothing, 0},
		"another label":                               {update(admin, "", func(p *corev1.Pod) { p.Labels["team"] = "a" }), calm, AllowedRemovesNothing, 0},
		"a condition in the status":                   {update(scheduler, "status", func(p *corev1.Pod) { p.Status.Message = "x" }), calm, AllowedRemovesNothing, 0},
		"a pod of nobody's":                           {remove(admin, livePod(plain)), calm, AllowedNotImmortal, 0},
		"an eviction of a pod that is gone":           {evict(admin, nil), calm, AllowedNotImmortal, 0},
		"a forged pod from before, that nobody keeps": {remove(admin, livePod(func(p *corev1.Pod) { p.OwnerReferences = nil })), ownerGone, AllowedOwnerEnding, 0},
	} {
		t.Run(name, func(t *testing.T) {
			got := Judge(c.request, c.in)
			if got.Reason != c.want || got.Allowed != (c.code == 0) || (c.code != 0 && got.Code != c.code) {
				t.Errorf("got %+v, want reason %s and code %d", got, c.want, c.code)
			}
			if !got.Allowed && got.Message == "" {
				t.Error("a denial without a message")
			}
			// What the request alone decides must not depend on the surroundings.
			if alone, decided := JudgeRequest(c.request, c.in.ControllerUser); decided && alone != got {
				t.Errorf("JudgeRequest says %+v, Judge says %+v", alone, got)
			}
		})
	}
}

func TestDenialTellsTheWayOut(t *testing.T) {
	s := Surroundings{ControllerUser: operator, Container: container(), Node: &NodeFacts{Name: "n1", Exists: true}, Now: now}
	const out = "To end it for good: kubectl delete immortalcontainer db -n team. To lift its protection for 10 minutes: " +
		"kubectl annotate immortalcontainer db -n team --overwrite immortalcontainer.flugel.it/unprotected-until=2026-11-21T12:10:00Z"
	for name, c := range map[string]struct {
		request Request
		want    string
	}{
		"delete": {
			remove(user("alice"), livePod()),
			`pod "db-immortalpod" is kept alive by ImmortalContainer "db" and is not deleted. ` + out,
		},
		"eviction": {
			evict(user("alice"), livePod()),
			`pod "db-immortalpod" is kept alive by ImmortalContainer "db" and is evicted only from a cordoned node: cordon its node first (kubectl cordon n1; kubectl drain does so itself). ` + out,
		},
		"every protected change": {
			update(user("alice"), "", func(p *corev1.Pod) {
				p.Labels, p.OwnerReferences, p.Finalizers = nil, nil, []string{"a/b"}
				p.Annotations = nil
				p.Spec.ActiveDeadlineSeconds = ptr.To[int64](1)
				p.Spec.Containers[0].Image = "evil"
			}),
			`pod "db-immortalpod" is kept alive by ImmortalContainer "db", which alone may change metadata.labels[controller], metadata.labels[immortalcontainer.flugel.it/protected], ` +
				`metadata.annotations[immortalcontainer.flugel.it/start], metadata.annotations[immortalcontainer.flugel.it/spec-hash], metadata.ownerReferences, metadata.finalizers, ` +
				`spec.activeDeadlineSeconds, spec.containers[acontainer].image. To change the pod, edit the ImmortalContainer. ` + out,
		},
		"forgery": {
			create(user("alice"), livePod()),
			`only the operator makes immortal pods: leave out the label immortalcontainer.flugel.it/protected and owner references to an ImmortalContainer, or create an ImmortalContainer`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Judge(c.request, s).Message; got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

func TestJudgeNamespace(t *testing.T) {
	guarded := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team", Labels: map[string]string{v1alpha1.GuardedLabel: "true"}}}
	for name, c := range map[string]struct {
		namespace *corev1.Namespace
		living    []string
		want      string
	}{
		"unguarded":           {&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team"}}, []string{"a"}, ""},
		"guarded and empty":   {guarded, nil, ""},
		"guarded, one living": {guarded, []string{"a"}, `namespace "team" is guarded while ImmortalContainers live in it (a): delete them first (kubectl delete immortalcontainers --all -n team), or remove the guard: kubectl label namespace team immortalcontainer.flugel.it/guarded-`},
		"guarded, many living": {
			guarded,
			[]string{"a", "b", "c", "d", "e", "f", "g"},
			`namespace "team" is guarded while ImmortalContainers live in it (a, b, c, d, e and 2 more): delete them first (kubectl delete immortalcontainers --all -n team), or remove the guard: kubectl label namespace team immortalcontainer.flugel.it/guarded-`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := JudgeNamespace(c.namespace, c.living)
			if got.Message != c.want || got.Allowed != (c.want == "") {
				t.Errorf("got %+v", got)
			}
		})
	}
}

// FuzzJudge: a verdict for every input, the same from the same facts, and none that lets a stranger delete a living
// pod of a living owner in calm surroundings.
func FuzzJudge(f *testing.F) {
	seed, err := json.Marshal(livePod())
	if err != nil {
		f.Fatal(err)
	}
	f.Add("DELETE", "", "alice", "system:nodes", seed, []byte(nil), "2026-11-21T12:30:00Z")
	f.Add("UPDATE", "status", "system:node:n1", "system:nodes", seed, seed, "")
	f.Add("CREATE", "eviction", operator, "", seed, []byte("{}"), "never")
	f.Fuzz(func(t *testing.T, operation, subresource, name, group string, oldText, newText []byte, until string) {
		request := Request{Operation: admissionv1.Operation(operation), Subresource: subresource, User: user(name, group), OldPod: podFrom(oldText), NewPod: podFrom(newText)}
		owner := container(func(c *v1alpha1.ImmortalContainer) {
			c.Annotations = map[string]string{v1alpha1.UnprotectedUntilAnnotation: until}
		})
		s := Surroundings{ControllerUser: operator, Container: owner, Node: &NodeFacts{Name: "n1", Exists: true, Ready: true}, Now: now}
		got := Judge(request, s)
		if got.Reason == "" || (!got.Allowed && (got.Message == "" || got.Code < http.StatusBadRequest)) {
			t.Errorf("no full verdict: %+v", got)
		}
		if Judge(request, s) != got {
			t.Error("two verdicts on the same facts")
		}
		s.NamespaceTerminating = true
		if got.Allowed && !Judge(request, s).Allowed {
			t.Error("a terminating namespace forbids what was allowed")
		}
		if pod := request.OldPod; got.Allowed && operation == "DELETE" && Owner(pod) != nil && !strings.HasPrefix(name, "system:") {
			if _, lifted := UnprotectedUntil(owner, now); !lifted && pod.DeletionTimestamp == nil && !Ended(pod) {
				t.Errorf("user %q may delete a living pod: %+v", name, got)
			}
		}
	})
}

func podFrom(text []byte) *corev1.Pod {
	if len(text) == 0 {
		return nil
	}
	pod := &corev1.Pod{}
	if json.Unmarshal(text, pod) != nil {
		return nil
	}
	return pod
}
