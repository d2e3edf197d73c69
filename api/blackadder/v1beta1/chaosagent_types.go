// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package v1beta1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

const (
	// OptOutKey with OptOutValue, as a label of a Namespace or an annotation of a Pod, Deployment or ConfigMap, keeps every
	// ChaosAgent away from it.
	OptOutKey = "blackadder.io/chaos"
	// OptOutValue is the value of OptOutKey that opts out.
	OptOutValue = "disabled"
	// RestoreFinalizer keeps a ChaosAgent until what it changed is put back. It is there only while there is something to
	// put back.
	RestoreFinalizer = "blackadder.io/restore"
)

// Defaults of the spec, as they stand in the schema.
const (
	// DefaultEagerness is in percent.
	DefaultEagerness = 20
	// DefaultPauseDuration is in seconds.
	DefaultPauseDuration = 30
	// MaxReplicas is the most that a Deployment is ever scaled to.
	MaxReplicas = 128
)

// Condition types of a ChaosAgent.
const (
	// ConditionReady is true while the agent does what its spec asks for.
	ConditionReady = "Ready"
	// ConditionRestored is true while nothing that the agent changed waits to be put back.
	ConditionRestored = "Restored"
)

// Reasons of ConditionReady.
const (
	// ReasonActive: cycles run.
	ReasonActive = "Active"
	// ReasonDryRun: cycles are planned and reported, and touch nothing.
	ReasonDryRun = "DryRun"
	// ReasonOutsideWindow: the schedule's next window has not opened yet.
	ReasonOutsideWindow = "OutsideWindow"
	// ReasonNoMode: no mode is on.
	ReasonNoMode = "NoMode"
	// ReasonSuspended: spec.suspend is set.
	ReasonSuspended = "Suspended"
	// ReasonExpired: spec.expiresAfter has passed since the creation.
	ReasonExpired = "Expired"
	// ReasonHalted: too many of the targeted Deployments are not available.
	ReasonHalted = "Halted"
	// ReasonInvalidSpec: the spec cannot be carried out, although it was accepted.
	ReasonInvalidSpec = "InvalidSpec"
	// ReasonCycleFailed: the last cycle ended early because of an error, and is tried again.
	ReasonCycleFailed = "CycleFailed"
	// ReasonDeleting: the agent is being deleted.
	ReasonDeleting = "Deleting"
)

// Reasons of ConditionRestored.
const (
	// ReasonNothingToRestore: the agent has changed nothing that would have to be put back.
	ReasonNothingToRestore = "NothingToRestore"
	// ReasonChangesInForce: changes are in force, and are put back when the agent stops.
	ReasonChangesInForce = "ChangesInForce"
	// ReasonRestoring: changes are being put back.
	ReasonRestoring = "Restoring"
	// ReasonRestoreFailing: some changes could not be put back yet; they are tried again.
	ReasonRestoreFailing = "RestoreFailing"
	// ReasonRestorePolicyNever: changes are not put back, because spec.restorePolicy is Never.
	ReasonRestorePolicyNever = "RestorePolicyNever"
)

// Reasons of a cycle that did nothing, or stopped early, in status.lastCycle.reason.
const (
	// CycleNoCandidates: nothing matched, or everything that matched is excluded.
	CycleNoCandidates = "NoCandidates"
	// CycleBelowTolerance: fewer pods than spec.podTolerance are candidates.
	CycleBelowTolerance = "BelowTolerance"
	// CycleNoneDrawn: there were candidates, and the draw took none.
	CycleNoneDrawn = "NoneDrawn"
	// CycleHalted: too many of the targeted Deployments were not available.
	CycleHalted = "Halted"
	// CycleStopped: the agent was changed, suspended or deleted while the cycle ran.
	CycleStopped = "Stopped"
	// CycleDryRun: the victims are those that would have been hit.
	CycleDryRun = "DryRun"
	// CycleActed: there were victims.
	CycleActed = "Acted"
)

// ChaosAgent deletes random pods, scales random Deployments up and overwrites random ConfigMaps, within bounds, and puts back
// what it changed when it stops.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:storageversion
// +kubebuilder:resource:scope=Cluster,shortName=ca
// +kubebuilder:printcolumn:name="Tantrum",type=boolean,JSONPath=`.spec.tantrumMode`,description="Kills pods randomly."
// +kubebuilder:printcolumn:name="Tolerance",type=integer,JSONPath=`.spec.podTolerance`,description="Pods are killed only while at least this many candidates exist."
// +kubebuilder:printcolumn:name="Cancer",type=boolean,JSONPath=`.spec.cancerMode`,description="Scales Deployments up randomly."
// +kubebuilder:printcolumn:name="Ipsum",type=boolean,JSONPath=`.spec.ipsumMode`,description="Overwrites ConfigMaps randomly."
// +kubebuilder:printcolumn:name="Eagerness",type=integer,JSONPath=`.spec.eagerness`,description="Chance in percent, for each candidate."
// +kubebuilder:printcolumn:name="Pause",type=integer,JSONPath=`.spec.pauseDuration`,description="Seconds between cycles."
// +kubebuilder:printcolumn:name="Excluded",type=string,JSONPath=`.spec.excludedNamespaces`,description="Namespaces that are never touched."
// +kubebuilder:printcolumn:name="Ready",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].status`,description="Whether the agent does what its spec asks for."
// +kubebuilder:printcolumn:name="Reason",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`,description="Why it does, or does not."
// +kubebuilder:printcolumn:name="Restored",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Restored")].status`,description="Whether nothing waits to be put back."
// +kubebuilder:printcolumn:name="Cycles",type=integer,priority=1,JSONPath=`.status.totals.cycles`,description="How many cycles there were."
// +kubebuilder:printcolumn:name="Victims",type=integer,priority=1,JSONPath=`.status.totals.victims`,description="How many victims there were, of all modes."
// +kubebuilder:printcolumn:name="Next Cycle",type=string,priority=1,JSONPath=`.status.nextCycleTime`,description="When the next cycle is due."
// +kubebuilder:printcolumn:name="Age",type=date,priority=1,JSONPath=`.metadata.creationTimestamp`
type ChaosAgent struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the object's metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`
	// spec says what chaos is wanted.
	// +optional
	Spec ChaosAgentSpec `json:"spec,omitzero"`
	// status says what was done, and what comes next.
	// +optional
	Status ChaosAgentStatus `json:"status,omitzero"`
}

// PodKillMethod is how a pod is killed.
// +kubebuilder:validation:Enum=Delete;Evict
type PodKillMethod string

const (
	// PodKillMethodDelete deletes the pod.
	PodKillMethodDelete PodKillMethod = "Delete"
	// PodKillMethodEvict evicts the pod, so that PodDisruptionBudgets are honoured.
	PodKillMethodEvict PodKillMethod = "Evict"
)

// RestorePolicy says whether changes are put back.
// +kubebuilder:validation:Enum=OnStop;Never
type RestorePolicy string

const (
	// RestorePolicyOnStop puts changes back when the agent is deleted, suspended or expired.
	RestorePolicyOnStop RestorePolicy = "OnStop"
	// RestorePolicyNever leaves changes in force.
	RestorePolicyNever RestorePolicy = "Never"
)

// ChaosAgentSpec says what chaos is wanted. The validate tags repeat the schema's bounds for objects that are written in
// another version, whose schema does not know these fields.
type ChaosAgentSpec struct {
	// tantrumMode deletes random pods.
	// +kubebuilder:default=false
	// +optional
	TantrumMode bool `json:"tantrumMode"`

	// cancerMode scales random Deployments up: the replicas are doubled, to at most 128 (see maxReplicas). A Deployment with 0
	// replicas, with 128 or more, or with a HorizontalPodAutoscaler is left alone.
	// +kubebuilder:default=false
	// +optional
	CancerMode bool `json:"cancerMode"`

	// ipsumMode overwrites the values of random ConfigMaps with a paragraph of lorem ipsum. Immutable ConfigMaps, those without
	// data, and kube-root-ca.crt are left alone, and so is binaryData.
	// +kubebuilder:default=false
	// +optional
	IpsumMode bool `json:"ipsumMode"`

	// podTolerance is the number of candidates below which no pod is killed: pods are killed only while at least this many
	// candidates exist.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:default=0
	// +optional
	PodTolerance int32 `json:"podTolerance" validate:"gte=0"`

	// eagerness is the chance in percent with which each candidate becomes a victim, drawn for each on its own; 100 means
	// always.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	// +kubebuilder:default=20
	// +optional
	Eagerness int32 `json:"eagerness,omitempty" validate:"omitempty,gte=1,lte=100"`

	// pauseDuration is the time in seconds from the end of one cycle to the start of the next.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=31536000
	// +kubebuilder:default=30
	// +optional
	PauseDuration int64 `json:"pauseDuration,omitempty" validate:"omitempty,gte=1,lte=31536000"`

	// excludedNamespaces are never touched. They have to cover the operator's protected namespaces (kube-system and its own,
	// unless it is configured otherwise), as far as namespaceSelector does not keep away from those. Left out, they are the
	// protected namespaces; the empty list excludes nothing, and is refused where that would target a protected one.
	// +listType=set
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	// +optional
	ExcludedNamespaces []string `json:"excludedNamespaces,omitzero" validate:"max=1000,unique,dive,namespace_name"`

	// namespaceSelector narrows the targets to namespaces with matching labels. Left out, it matches every namespace.
	// +optional
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`

	// podSelector narrows the targets to pods with matching labels, and to Deployments whose pod template has them. It does
	// not narrow ConfigMaps, which have no pods. Left out, it matches everything.
	// +optional
	PodSelector *metav1.LabelSelector `json:"podSelector,omitempty"`

	// suspend stops the agent; with restorePolicy OnStop its changes are put back.
	// +optional
	Suspend bool `json:"suspend,omitempty"`

	// dryRun lets cycles only report what would happen, in status, events and metrics. No target is written to. What was
	// changed before dryRun was set stays until the agent stops.
	// +optional
	DryRun bool `json:"dryRun,omitempty"`

	// maxVictimsPerCycle bounds the victims of one cycle, of all modes together. If more are drawn, chance decides which of
	// them are spared. It is at most 1000. Left out, there is no bound.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	// +optional
	MaxVictimsPerCycle *int32 `json:"maxVictimsPerCycle,omitempty" validate:"omitempty,gte=1,lte=1000"`

	// maxReplicas is what cancerMode scales a Deployment to at most. Left out, it is 128.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=128
	// +optional
	MaxReplicas *int32 `json:"maxReplicas,omitempty" validate:"omitempty,gte=1,lte=128"`

	// minimumAge spares pods, Deployments and ConfigMaps that were created less than this long ago, such as "10m" or "1h30m".
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]{1,6}(\.[0-9]{1,6})?(ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="must be a duration such as \"10m\""
	// +optional
	MinimumAge *metav1.Duration `json:"minimumAge,omitempty"`

	// podKillMethod is how pods are killed. Evict honours PodDisruptionBudgets; a refusal by a budget is counted and not tried
	// again in the same cycle. Left out, it is Delete.
	// +optional
	PodKillMethod PodKillMethod `json:"podKillMethod,omitempty" validate:"omitempty,oneof=Delete Evict"`

	// gracePeriodSeconds replaces the pods' own termination grace period; 0 kills at once. Left out, it is the pod's own.
	// +kubebuilder:validation:Minimum=0
	// +optional
	GracePeriodSeconds *int64 `json:"gracePeriodSeconds,omitempty" validate:"omitempty,gte=0"`

	// schedule restricts cycles to windows of time. Left out, cycles run at any time.
	// +optional
	Schedule *Schedule `json:"schedule,omitempty"`

	// expiresAfter stops the agent for good this long after its creation, such as "8h".
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]{1,6}(\.[0-9]{1,6})?(ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) > duration('0s')",message="must be longer than 0s"
	// +optional
	ExpiresAfter *metav1.Duration `json:"expiresAfter,omitempty"`

	// seed makes the draw repeatable: the same seed over the same candidates, told apart by mode, namespace and name, draws
	// the same victims, in every cycle. Left out, each cycle draws anew and reports its seed in status.lastCycle.
	// +optional
	Seed *int64 `json:"seed,omitempty"`

	// restorePolicy says whether scaled Deployments and overwritten ConfigMaps are put back when the agent stops. Left out, it
	// is OnStop.
	// +optional
	RestorePolicy RestorePolicy `json:"restorePolicy,omitempty" validate:"omitempty,oneof=OnStop Never"`

	// haltWhen stops the agent from acting while the targets are in a bad state already.
	// +optional
	HaltWhen *HaltWhen `json:"haltWhen,omitempty"`
}

// Schedule is when cycles may run.
type Schedule struct {
	// timeZone is the IANA name of the zone that the windows are in, such as "Europe/Berlin". Left out, it is UTC.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	TimeZone string `json:"timeZone,omitempty" validate:"max=64"`

	// windows are the times at which cycles may start; one of them suffices.
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +required
	Windows []Window `json:"windows" validate:"required,min=1,max=64,dive"`
}

// Weekday is a day of the week.
// +kubebuilder:validation:Enum=Mon;Tue;Wed;Thu;Fri;Sat;Sun
type Weekday string

// Window is a span of time on some days of the week.
//
// +kubebuilder:validation:XValidation:rule="self.from != self.to",message="from and to must differ; for a whole day write from \"00:00\" to \"24:00\""
type Window struct {
	// days are those on which the window opens. Left out, it opens every day.
	// +listType=set
	// +kubebuilder:validation:MaxItems=7
	// +optional
	Days []Weekday `json:"days,omitempty" validate:"max=7,unique,dive,oneof=Mon Tue Wed Thu Fri Sat Sun"`

	// from is the time of day at which the window opens, as "15:04".
	// +kubebuilder:validation:Pattern=`^([01][0-9]|2[0-3]):[0-5][0-9]$`
	// +kubebuilder:validation:MaxLength=5
	// +required
	From string `json:"from" validate:"required"`

	// to is the time of day at which it closes, as "15:04", or "24:00". If it is earlier than from, the window closes on the
	// following day.
	// +kubebuilder:validation:Pattern=`^(([01][0-9]|2[0-3]):[0-5][0-9]|24:00)$`
	// +kubebuilder:validation:MaxLength=5
	// +required
	To string `json:"to" validate:"required"`
}

// HaltWhen is when an agent stops acting by itself.
type HaltWhen struct {
	// unavailablePercent is the share of the targeted Deployments, in percent, above which the agent stops acting while they are
	// not available (condition Available).
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	// +required
	UnavailablePercent int32 `json:"unavailablePercent" validate:"gte=0,lte=100"`
}

// ChaosAgentStatus says what was done, and what comes next.
type ChaosAgentStatus struct {
	// observedGeneration is the generation of the spec that this status follows from.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions are Ready and Restored.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// nextCycleTime is when the next cycle is due; absent while none will come.
	// +optional
	NextCycleTime *metav1.MicroTime `json:"nextCycleTime,omitempty"`

	// lastCycle is the cycle that runs now, or ran last.
	// +optional
	LastCycle *Cycle `json:"lastCycle,omitempty"`

	// totals are over all cycles that were no dry runs.
	// +optional
	Totals Totals `json:"totals,omitzero"`

	// recovery is how long the workloads that were hit needed until they were available again.
	// +optional
	Recovery *Recovery `json:"recovery,omitempty"`
}

// Cycle is what one cycle considered and did.
type Cycle struct {
	// number counts the agent's cycles from 1.
	Number int64 `json:"number"`

	// generation of the spec that the cycle follows.
	Generation int64 `json:"generation"`

	// startTime is when its victims were drawn. Nothing that is younger is touched.
	StartTime metav1.MicroTime `json:"startTime"`

	// completionTime is when it was done; absent while it runs.
	// +optional
	CompletionTime *metav1.MicroTime `json:"completionTime,omitempty"`

	// seed that the draw was made with: spec.seed, or one of the cycle's own.
	Seed int64 `json:"seed"`

	// ranks tell the victims of a cycle that is bounded by maxVictimsPerCycle, as long as it runs: a cycle that was interrupted
	// goes on with these and no others, so that it cannot exceed its bound.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1000
	// +optional
	Ranks []string `json:"ranks,omitempty"`

	// dryRun tells that nothing was touched.
	// +optional
	DryRun bool `json:"dryRun,omitempty"`

	// namespaces is how many namespaces were targeted.
	// +optional
	Namespaces int32 `json:"namespaces,omitempty"`

	// pods is what became of pods (tantrumMode).
	// +optional
	Pods *ModeReport `json:"pods,omitempty"`

	// deployments is what became of Deployments (cancerMode).
	// +optional
	Deployments *ModeReport `json:"deployments,omitempty"`

	// configMaps is what became of ConfigMaps (ipsumMode).
	// +optional
	ConfigMaps *ModeReport `json:"configMaps,omitempty"`

	// reason says in a word why nothing, or not everything, was done: Acted, DryRun, NoCandidates, BelowTolerance, NoneDrawn,
	// Halted, Stopped.
	// +optional
	Reason string `json:"reason,omitempty"`

	// message says it in a sentence.
	// +optional
	Message string `json:"message,omitempty"`
}

// ModeReport is what one mode considered and did in a cycle.
type ModeReport struct {
	// candidates is how many could become victims.
	Candidates int32 `json:"candidates"`

	// victims is how many of them were drawn.
	Victims int32 `json:"victims"`

	// done is how many of the victims were hit: killed, scaled, overwritten. In a dry run it is 0.
	Done int32 `json:"done"`

	// refused is how many evictions a PodDisruptionBudget refused.
	// +optional
	Refused int32 `json:"refused,omitempty"`

	// spared is how many victims were left alone at the moment of acting, because they had changed, were gone, or the agent
	// was stopped.
	// +optional
	Spared int32 `json:"spared,omitempty"`

	// failed is how many victims the API server refused for another reason; lastError tells the last of them.
	// +optional
	Failed int32 `json:"failed,omitempty"`

	// lastError is the API server's last refusal.
	// +optional
	LastError string `json:"lastError,omitempty"`

	// excluded says how many objects were no candidates, by reason.
	// +listType=map
	// +listMapKey=reason
	// +optional
	Excluded []ExclusionCount `json:"excluded,omitempty"`
}

// ExclusionCount is how many objects were excluded for one reason.
type ExclusionCount struct {
	// reason of the exclusion, such as ExcludedNamespace, Terminating, Immutable.
	Reason string `json:"reason"`
	// count of objects.
	Count int32 `json:"count"`
}

// Totals are sums over all cycles that were no dry runs.
type Totals struct {
	// cycles, dry runs included.
	// +optional
	Cycles int64 `json:"cycles,omitempty"`
	// victims is the sum of the three that follow.
	// +optional
	Victims int64 `json:"victims,omitempty"`
	// pods that were killed.
	// +optional
	Pods int64 `json:"pods,omitempty"`
	// deployments is how many times a Deployment was scaled.
	// +optional
	Deployments int64 `json:"deployments,omitempty"`
	// configMaps is how many times a ConfigMap was overwritten.
	// +optional
	ConfigMaps int64 `json:"configMaps,omitempty"`
	// refused is how many evictions budgets refused.
	// +optional
	Refused int64 `json:"refused,omitempty"`
	// failed is how many victims the API server refused for another reason.
	// +optional
	Failed int64 `json:"failed,omitempty"`
}

// Recovery is how long workloads needed to be available again after they were hit. A workload is a Deployment, StatefulSet or
// DaemonSet.
type Recovery struct {
	// count of recoveries that were measured.
	Count int64 `json:"count"`

	// median time until a workload was available again, of the samples.
	// +optional
	Median *metav1.Duration `json:"median,omitempty"`

	// p95 is the time within which 95 percent of the samples were available again.
	// +optional
	P95 *metav1.Duration `json:"p95,omitempty"`

	// worst time of all that were measured.
	// +optional
	Worst *metav1.Duration `json:"worst,omitempty"`

	// worstWorkload is the workload that needed it.
	// +optional
	WorstWorkload string `json:"worstWorkload,omitempty"`

	// samples are the last recoveries (at most 100), oldest first, in milliseconds. The median and p95 are of these.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	// +optional
	Samples []int64 `json:"samples,omitempty"`

	// pending is how many workloads that were hit are not available again yet.
	// +optional
	Pending int32 `json:"pending,omitempty"`

	// unrecovered names those that wait longest (at most 50), the oldest first.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=50
	// +optional
	Unrecovered []Unrecovered `json:"unrecovered,omitempty"`
}

// Unrecovered is a workload that was hit and is not available again yet.
type Unrecovered struct {
	// kind of the workload: Deployment, StatefulSet or DaemonSet.
	Kind string `json:"kind"`
	// namespace of the workload.
	Namespace string `json:"namespace"`
	// name of the workload.
	Name string `json:"name"`
	// since is when it was hit.
	Since metav1.MicroTime `json:"since"`
}

// ChaosAgentList is a list of ChaosAgents.
//
// +kubebuilder:object:root=true
type ChaosAgentList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the list's metadata.
	metav1.ListMeta `json:"metadata,omitempty"`
	// items are the ChaosAgents.
	Items []ChaosAgent `json:"items"`
}
