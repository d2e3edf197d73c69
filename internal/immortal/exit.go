// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package immortal

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"blackadder.io/blackadder/api/immortalcontainer/v1alpha1"
)

const (
	// firstBackoff is the delay after the first pod that ended too soon.
	firstBackoff = time.Second
	// longestBackoff is the delay that doubling never exceeds.
	longestBackoff = 5 * time.Minute
	// settledAfter is the age at which a pod counts as having lived: its end starts the backoff anew.
	settledAfter = 10 * time.Minute
	// longestExitMessage bounds what of a container's own message is copied into the status, in bytes.
	longestExitMessage = 1024
)

// Backoff is the delay before the next pod after this many exits in a row: 1 s, doubling, at most 5 min.
func Backoff(consecutiveExits int32) time.Duration {
	if consecutiveExits <= 0 {
		return 0
	}
	delay := firstBackoff
	for n := int32(1); n < consecutiveExits; n++ {
		delay *= 2
		if delay >= longestBackoff {
			return longestBackoff
		}
	}
	return delay
}

// Ended tells whether a pod has ended by itself: its phase is Failed or Succeeded. A pod that the kubelet evicts ends
// this way, without any delete.
func Ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded
}

// Exit describes how an ended pod ended. now stands in where the pod does not say when.
func Exit(pod *corev1.Pod, now time.Time) v1alpha1.ExitStatus {
	exit := v1alpha1.ExitStatus{
		Start:   Start(pod),
		Phase:   pod.Status.Phase,
		Reason:  pod.Status.Reason,
		Message: pod.Status.Message,
	}
	finished := metav1.NewTime(now.Truncate(time.Second))
	for _, container := range pod.Status.ContainerStatuses {
		terminated := container.State.Terminated
		if container.Name != v1alpha1.ContainerName || terminated == nil {
			continue
		}
		exit.ExitCode = &terminated.ExitCode
		if exit.Reason == "" {
			exit.Reason = terminated.Reason
		}
		if exit.Message == "" {
			exit.Message = terminated.Message
		}
		if !terminated.FinishedAt.IsZero() {
			finished = terminated.FinishedAt
		}
	}
	if exit.Reason == "" {
		exit.Reason = string(pod.Status.Phase)
	}
	exit.Message = Truncate(exit.Message, longestExitMessage)
	exit.FinishedAt = &finished
	return exit
}

// recordExit is the status after an ended pod was seen: how it ended, and when the next one may come. The exit's start
// tells whether it is in the status already, so that a restart of the operator cannot count it twice.
func recordExit(status *v1alpha1.ImmortalContainerStatus, pod *corev1.Pod, now time.Time) {
	if exitRecorded(*status, pod) {
		return
	}
	exit := Exit(pod, now)
	born := pod.CreationTimestamp.Time
	if pod.Status.StartTime != nil {
		born = pod.Status.StartTime.Time
	}
	if exit.FinishedAt.Sub(born) >= settledAfter {
		status.ConsecutiveExits = 0
	}
	status.ConsecutiveExits++
	// Times in the API have whole seconds: round up, so that the delay is never shorter than it says.
	until := metav1.NewTime(now.Add(Backoff(status.ConsecutiveExits) + time.Second - time.Nanosecond).Truncate(time.Second))
	status.LastExit = &exit
	status.RestartBackoffUntil = &until
}

func exitRecorded(status v1alpha1.ImmortalContainerStatus, pod *corev1.Pod) bool {
	return status.LastExit != nil && status.LastExit.Start == Start(pod)
}

// Truncate cuts a text to at most so many bytes, between characters, and marks the cut.
func Truncate(text string, most int) string {
	if len(text) <= most {
		return text
	}
	const mark = "…"
	cut := most - len(mark)
	// Never cut inside a character: the API refuses text that is not UTF-8.
	for cut > 0 && text[cut]&0xC0 == 0x80 {
		cut--
	}
	return text[:cut] + mark
}
