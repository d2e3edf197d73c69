// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"blackadder.io/blackadder/api/blackadder/v1beta1"
	"blackadder.io/blackadder/internal/namespaces"
)

var now = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func at(offset time.Duration) *metav1.MicroTime { return ptr.To(metav1.NewMicroTime(now.Add(offset))) }

// anAgent is an agent with tantrumMode on, an hour old.
func anAgent(change ...func(*v1beta1.ChaosAgent)) *v1beta1.ChaosAgent {
	agent := &v1beta1.ChaosAgent{
		ObjectMeta: metav1.ObjectMeta{Name: "storm", UID: "agent-1", Generation: 1, CreationTimestamp: metav1.NewTime(now.Add(-time.Hour))},
		Spec:       v1beta1.ChaosAgentSpec{TantrumMode: true, Eagerness: 20, PauseDuration: 30},
	}
	for _, f := range change {
		f(agent)
	}
	return agent
}

func withSpec(change func(*v1beta1.ChaosAgentSpec)) *v1beta1.ChaosAgent {
	return anAgent(func(agent *v1beta1.ChaosAgent) { change(&agent.Spec) })
}

func everything(spec *v1beta1.ChaosAgentSpec) {
	spec.TantrumMode, spec.CancerMode, spec.IpsumMode, spec.Eagerness = true, true, true, 100
}

func teamOnly() namespaces.Scope { return namespaces.Scope{"team": namespaces.Targeted} }

// anObject is one in namespace team, a day old.
func anObject(mode Mode, name string, change ...func(*Object)) Object {
	object := Object{Mode: mode, Meta: metav1.ObjectMeta{
		Namespace: "team", Name: name, CreationTimestamp: metav1.NewTime(now.Add(-24 * time.Hour)),
	}}
	object.Meta.UID = types.UID("uid-" + name)
	switch mode {
	case Cancer:
		object.Deployment = &DeploymentFacts{Replicas: 2, Available: true}
	case Ipsum:
		object.ConfigMap = &ConfigMapFacts{HasData: true}
	case Tantrum:
	}
	for _, f := range change {
		f(&object)
	}
	return object
}

func aPod(name string, change ...func(*Object)) Object { return anObject(Tantrum, name, change...) }
func aDeployment(name string, change ...func(*Object)) Object {
	return anObject(Cancer, name, change...)
}

func aConfigMap(name string, change ...func(*Object)) Object { return anObject(Ipsum, name, change...) }

func in(namespace string) func(*Object) { return func(o *Object) { o.Meta.Namespace = namespace } }

func labelled(key, value string) func(*Object) {
	return func(o *Object) { o.Meta.Labels = map[string]string{key: value} }
}

func annotated(key, value string) func(*Object) {
	return func(o *Object) { o.Meta.Annotations = map[string]string{key: value} }
}

func owned(apiVersion, kind string) func(*Object) {
	return func(o *Object) {
		o.Meta.OwnerReferences = append(o.Meta.OwnerReferences, metav1.OwnerReference{APIVersion: apiVersion, Kind: kind, Name: "owner"})
	}
}

func created(offset time.Duration) func(*Object) {
	return func(o *Object) { o.Meta.CreationTimestamp = metav1.NewTime(now.Add(offset)) }
}

func deleted(o *Object) { o.Meta.DeletionTimestamp = ptr.To(metav1.NewTime(now)) }

func unavailable(o *Object) { o.Deployment.Available = false }

func scaled(replicas int32) func(*Object) {
	return func(o *Object) { o.Deployment.Replicas = replicas }
}

func TestExclude(t *testing.T) {
	selecting := func(spec *v1beta1.ChaosAgentSpec) {
		spec.PodSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	}
	tenMinutes := func(spec *v1beta1.ChaosAgentSpec) { spec.MinimumAge = &metav1.Duration{Duration: 10 * time.Minute} }
	to8 := func(spec *v1beta1.ChaosAgentSpec) { spec.MaxReplicas = ptr.To[int32](8) }
	templated := func(value string) func(*Object) {
		return func(o *Object) { o.Deployment.TemplateLabels = map[string]string{"app": value} }
	}
	whole := func(facts ConfigMapFacts) func(*Object) { return func(o *Object) { o.ConfigMap = &facts } }
	unread := func(o *Object) { o.ConfigMap = nil }

	for name, c := range map[string]struct {
		spec   func(*v1beta1.ChaosAgentSpec)
		object Object
		want   string
	}{
		"pod":        {object: aPod("web")},
		"deployment": {object: aDeployment("web")},
		"configmap":  {object: aConfigMap("web")},

		"in a namespace that is protected":    {object: aPod("web", in("kube-system")), want: "ProtectedNamespace"},
		"in a namespace that is excluded":     {object: aDeployment("web", in("excluded")), want: "ExcludedNamespace"},
		"in a namespace that is not selected": {object: aConfigMap("web", in("unselected")), want: "NamespaceNotSelected"},
		"in a namespace that opted out":       {object: aPod("web", in("opted-out")), want: "NamespaceOptedOut"},
		"in a namespace that is terminating":  {object: aPod("web", in("terminating")), want: "NamespaceTerminating"},
		"in a namespace that is not known":    {object: aPod("web", in("new")), want: "NamespaceUnknown"},
		"the namespace comes first":           {object: aPod("web", in("kube-system"), deleted), want: "ProtectedNamespace"},

		"terminating pod":                      {object: aPod("web", deleted), want: "Terminating"},
		"terminating deployment":               {object: aDeployment("web", deleted), want: "Terminating"},
		"terminating configmap":                {object: aConfigMap("web", deleted), want: "Terminating"},
		"terminating, and opted out":           {object: aPod("web", deleted, annotated("blackadder.io/chaos", "disabled")), want: "Terminating"},
		"opted out pod":                        {object: aPod("web", annotated("blackadder.io/chaos", "disabled")), want: "OptedOut"},
		"opted out deployment":                 {object: aDeployment("web", annotated("blackadder.io/chaos", "disabled")), want: "OptedOut"},
		"opted out configmap":                  {object: aConfigMap("web", annotated("blackadder.io/chaos", "disabled")), want: "OptedOut"},
		"another value does not opt out":       {object: aPod("web", annotated("blackadder.io/chaos", "enabled"))},
		"a label does not opt an object out":   {object: aPod("web", labelled("blackadder.io/chaos", "disabled"))},
		"opted out, and too young":             {spec: tenMinutes, object: aPod("web", annotated("blackadder.io/chaos", "disabled"), created(-time.Minute)), want: "OptedOut"},
		"immortal by label":                    {object: aPod("web", labelled("immortalcontainer.flugel.it/protected", "true")), want: "ImmortalPod"},
		"immortal by owner":                    {object: aPod("web", owned("immortalcontainer.flugel.it/v1alpha1", "ImmortalContainer")), want: "ImmortalPod"},
		"immortal by owner of another version": {object: aPod("web", owned("immortalcontainer.flugel.it/v9", "ImmortalContainer")), want: "ImmortalPod"},
		"immortal, and opted out":              {object: aPod("web", labelled("immortalcontainer.flugel.it/protected", "true"), annotated("blackadder.io/chaos", "disabled")), want: "ImmortalPod"},
		"not protected":                        {object: aPod("web", labelled("immortalcontainer.flugel.it/protected", "false"))},
		"only pods are immortal":               {object: aDeployment("web", labelled("immortalcontainer.flugel.it/protected", "true"))},

		"the operator's own":              {object: aDeployment("web", labelled("app.kubernetes.io/managed-by", "blackadder")), want: "OwnObject"},
		"somebody else's":                 {object: aDeployment("web", labelled("app.kubernetes.io/managed-by", "Helm"))},
		"of an immortal container":        {object: aConfigMap("web", owned("immortalcontainer.flugel.it/v1alpha1", "ImmortalContainer")), want: "OwnObject"},
		"of a chaos agent":                {object: aConfigMap("web", owned("blackadder.io/v1beta1", "ChaosAgent")), want: "OwnObject"},
		"of a second owner":               {object: aPod("web", owned("apps/v1", "ReplicaSet"), owned("k8s.osp.tech/v1", "Mirror")), want: "OwnObject"},
		"of another group of ours":        {object: aPod("web", owned("operators.brennerm.github.io/v1", "RateLimit")), want: "OwnObject"},
		"of a ReplicaSet":                 {object: aPod("web", owned("apps/v1", "ReplicaSet"))},
		"of a group like ours":            {object: aPod("web", owned("not.k8s.osp.tech/v1", "Mirror"))},
		"of an owner that makes no sense": {object: aPod("web", owned("a/b/c", "Mirror"))},

		"mirror pod":                     {object: aPod("web", annotated("kubernetes.io/config.mirror", "0123")), want: "MirrorPod"},
		"mirror pod without a hash":      {object: aPod("web", annotated("kubernetes.io/config.mirror", "")), want: "MirrorPod"},
		"of a node":                      {object: aPod("web", owned("v1", "Node")), want: "MirrorPod"},
		"of another kind of node":        {object: aPod("web", owned("example.com/v1", "Node"))},
		"deployment of a node":           {object: aDeployment("web", owned("v1", "Node"))},
		"pod that is not selected":       {spec: selecting, object: aPod("web", labelled("app", "db")), want: "NotSelected"},
		"pod without labels":             {spec: selecting, object: aPod("web"), want: "NotSelected"},
		"pod that is selected":           {spec: selecting, object: aPod("web", labelled("app", "web"))},
		"template that is not selected":  {spec: selecting, object: aDeployment("web", labelled("app", "web"), templated("db")), want: "NotSelected"},
		"template that is selected":      {spec: selecting, object: aDeployment("web", templated("web"))},
		"configmaps are not selected by": {spec: selecting, object: aConfigMap("web", labelled("app", "db"))},
		"not selected, and too young": {
			spec:   func(spec *v1beta1.ChaosAgentSpec) { selecting(spec); tenMinutes(spec) },
			object: aPod("web", created(-time.Minute)), want: "NotSelected",
		},
		"the empty selector takes all": {spec: func(spec *v1beta1.ChaosAgentSpec) { spec.PodSelector = &metav1.LabelSelector{} }, object: aPod("web")},

		"too young":                        {spec: tenMinutes, object: aPod("web", created(-10*time.Minute+time.Second)), want: "TooYoung"},
		"just old enough":                  {spec: tenMinutes, object: aPod("web", created(-10*time.Minute))},
		"too young deployment":             {spec: tenMinutes, object: aDeployment("web", created(-time.Minute)), want: "TooYoung"},
		"too young configmap":              {spec: tenMinutes, object: aConfigMap("web", created(-time.Minute)), want: "TooYoung"},
		"created since, with a minimum":    {spec: tenMinutes, object: aPod("web", created(time.Minute)), want: "TooYoung"},
		"created since the start":          {object: aPod("web", created(time.Second)), want: "CreatedSinceStart"},
		"created in the start's second":    {object: aPod("web", created(0)), want: "CreatedSinceStart"},
		"created in the second before":     {object: aPod("web", created(-time.Second))},
		"created since, of a deployment":   {object: aDeployment("web", created(time.Hour)), want: "CreatedSinceStart"},
		"created since, of a configmap":    {object: aConfigMap("web", created(time.Hour)), want: "CreatedSinceStart"},
		"nobody knows when it was created": {spec: tenMinutes, object: aPod("web", func(o *Object) { o.Meta.CreationTimestamp = metav1.Time{} })},

		"autoscaled":              {object: aDeployment("web", func(o *Object) { o.Deployment.Autoscaled = true }), want: "Autoscaled"},
		"autoscaled, and at zero": {object: aDeployment("web", scaled(0), func(o *Object) { o.Deployment.Autoscaled = true }), want: "Autoscaled"},
		"scaled to zero":          {object: aDeployment("web", scaled(0)), want: "ScaledToZero"},
		"at 127":                  {object: aDeployment("web", scaled(127))},
		"at 128":                  {object: aDeployment("web", scaled(128)), want: "AtMaxReplicas"},
		"beyond 128":              {object: aDeployment("web", scaled(500)), want: "AtMaxReplicas"},
		"below its maximum":       {spec: to8, object: aDeployment("web", scaled(7))},
		"at its maximum":          {spec: to8, object: aDeployment("web", scaled(8)), want: "AtMaxReplicas"},
		"not available":           {object: aDeployment("web", unavailable)},

		"root certificates":                {object: aConfigMap("kube-root-ca.crt"), want: "RootCA"},
		"root certificates, not read":      {object: aConfigMap("kube-root-ca.crt", unread), want: "RootCA"},
		"a pod of that name":               {object: aPod("kube-root-ca.crt")},
		"immutable":                        {object: aConfigMap("web", whole(ConfigMapFacts{Immutable: true, HasData: true})), want: "Immutable"},
		"immutable without data":           {object: aConfigMap("web", whole(ConfigMapFacts{Immutable: true})), want: "Immutable"},
		"without data":                     {object: aConfigMap("web", whole(ConfigMapFacts{})), want: "NoData"},
		"not read in whole":                {object: aConfigMap("web", unread)},
		"changed by another agent":         {object: aDeployment("held"), want: "ChangedByAnotherAgent"},
		"changed by another agent, at max": {object: aDeployment("held", scaled(128)), want: "AtMaxReplicas"},
		"text changed by another agent":    {object: aConfigMap("held"), want: "ChangedByAnotherAgent"},
		"same name, another kind":          {object: aPod("held")},
		"same name, another namespace":     {object: aDeployment("held", in("apps"))},
	} {
		t.Run(name, func(t *testing.T) {
			spec := &v1beta1.ChaosAgentSpec{}
			if c.spec != nil {
				c.spec(spec)
			}
			scope := namespaces.Scope{
				"team": namespaces.Targeted, "apps": namespaces.Targeted, "kube-system": namespaces.Protected, "excluded": namespaces.Excluded,
				"unselected": namespaces.NotSelected, "opted-out": namespaces.OptedOut, "terminating": namespaces.Terminating,
			}
			held := map[Key]string{{Cancer, "team", "held"}: "gale", {Ipsum, "team", "held"}: ""}
			filter, err := NewFilter(spec, scope, now, held)
			if err != nil {
				t.Fatal(err)
			}
			if got := filter.Exclude(&c.object); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func TestWhatCameInTheStartsOwnSecondIsSpared(t *testing.T) {
	filter, err := NewFilter(&v1beta1.ChaosAgentSpec{}, teamOnly(), now.Add(999*time.Millisecond), nil)
	if err != nil {
		t.Fatal(err)
	}
	for offset, want := range map[time.Duration]string{-time.Second: "", 0: ExcludedSinceStart, time.Second: ExcludedSinceStart} {
		object := aPod("web", created(offset))
		if got := filter.Exclude(&object); got != want {
			t.Errorf("%s: got %q, want %q", offset, got, want)
		}
	}
}

func TestInReach(t *testing.T) {
	spec := &v1beta1.ChaosAgentSpec{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}}
	filter, err := NewFilter(spec, teamOnly(), now, nil)
	if err != nil {
		t.Fatal(err)
	}
	web := func(o *Object) { o.Deployment.TemplateLabels = map[string]string{"app": "web"} }
	for name, c := range map[string]struct {
		object Object
		want   bool
	}{
		"selected":                   {aDeployment("web", web), true},
		"whatever else speaks there": {aDeployment("web", web, scaled(128), deleted, created(time.Hour), annotated("blackadder.io/chaos", "disabled")), true},
		"not selected":               {aDeployment("web"), false},
		"elsewhere":                  {aDeployment("web", web, in("other")), false},
	} {
		if got := filter.InReach(&c.object); got != c.want {
			t.Errorf("%s: got %t, want %t", name, got, c.want)
		}
	}
}

func TestSelectorThatCannotBeParsed(t *testing.T) {
	spec := &v1beta1.ChaosAgentSpec{TantrumMode: true, PodSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: "Like"}}}}
	want := `"Like" is not a valid label selector operator`
	if _, err := NewFilter(spec, teamOnly(), now, nil); err == nil || err.Error() != want {
		t.Errorf("filter: got %v, want %s", err, want)
	}
	if plan, err := NewPlan(Input{Agent: &v1beta1.ChaosAgent{Spec: *spec}, Scope: teamOnly(), Now: now}); err == nil || err.Error() != want || plan != nil {
		t.Errorf("plan: got %v and %v, want %s", plan, err, want)
	}
}

func TestModes(t *testing.T) {
	if !slices.Equal(Modes(), []Mode{"tantrum", "cancer", "ipsum"}) {
		t.Errorf("modes are %q", Modes())
	}
	for mode, c := range map[Mode]struct {
		kind string
		spec v1beta1.ChaosAgentSpec
	}{
		Tantrum:   {"Pod", v1beta1.ChaosAgentSpec{TantrumMode: true}},
		Cancer:    {"Deployment", v1beta1.ChaosAgentSpec{CancerMode: true}},
		Ipsum:     {"ConfigMap", v1beta1.ChaosAgentSpec{IpsumMode: true}},
		"unknown": {"", v1beta1.ChaosAgentSpec{}},
	} {
		if mode.Kind() != c.kind {
			t.Errorf("%s: kind %q", mode, mode.Kind())
		}
		for _, other := range append(Modes(), "unknown") {
			if got, want := On(&c.spec, other), other == mode && c.kind != ""; got != want {
				t.Errorf("%s in a spec of %s: got %t, want %t", other, mode, got, want)
			}
		}
		if AnyMode(&c.spec) != (c.kind != "") {
			t.Errorf("%s: any mode is %t", mode, AnyMode(&c.spec))
		}
	}
}

func TestDoubled(t *testing.T) {
	for _, c := range []struct {
		most           *int32
		replicas, want int32
	}{
		{nil, 0, 0},
		{nil, 1, 2},
		{nil, 63, 126},
		{nil, 64, 128},
		{nil, 65, 128},
		{nil, 127, 128},
		{nil, 128, 128},
		{nil, 500, 500},
		{nil, 1<<31 - 1, 1<<31 - 1},
		{ptr.To[int32](1), 0, 0},
		{ptr.To[int32](1), 1, 1},
		{ptr.To[int32](5), 1, 2},
		{ptr.To[int32](5), 2, 4},
		{ptr.To[int32](5), 3, 5},
		{ptr.To[int32](5), 5, 5},
		{ptr.To[int32](5), 500, 500},
		{ptr.To[int32](128), 127, 128},
		{ptr.To[int32](1000), 64, 128},
		{ptr.To[int32](1000), 200, 200},
	} {
		if got := Doubled(&v1beta1.ChaosAgentSpec{MaxReplicas: c.most}, c.replicas); got != c.want {
			t.Errorf("%d, at most %d: got %d, want %d", c.replicas, ptr.Deref(c.most, 128), got, c.want)
		}
	}
}
