// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// auditPolicy logs every request once, when it is answered, without its content.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
  - level: Metadata
`

// AuditEvent is one answered request that writes, from the API server's audit log.
type AuditEvent struct {
	// Time is when the request was answered.
	Time time.Time
	// User is the effective user: the impersonated one, if there was impersonation.
	User string
	// Verb is create, update, patch, delete or deletecollection.
	Verb string
	// Group, Resource and Subresource say what was written, for example "", "pods" and "eviction".
	Group, Resource, Subresource string
	// Namespace and Name say which object. Name is empty for deletecollection.
	Namespace, Name string
	// Code is the HTTP status of the answer; from 400 on, nothing was written.
	Code int
	// URI is the request as it came in, with its query.
	URI string
	// UserAgent is what the client calls itself.
	UserAgent string
}

// String is the event in one line, for the messages of failed tests.
func (e AuditEvent) String() string {
	resource := e.Resource
	if e.Subresource != "" {
		resource += "/" + e.Subresource
	}
	if e.Group != "" {
		resource += "." + e.Group
	}
	return fmt.Sprintf("%s %s %s %s %s/%s: %d", e.Time.Format("15:04:05.000"), e.User, e.Verb, resource, e.Namespace, e.Name, e.Code)
}

// OnLeases picks writes of Leases, with which a manager says every few seconds that it leads.
func OnLeases(e AuditEvent) bool { return e.Group == "coordination.k8s.io" && e.Resource == "leases" }

// OnEvents picks writes of Events, in the core group and in events.k8s.io.
func OnEvents(e AuditEvent) bool {
	return e.Resource == "events" && (e.Group == "" || e.Group == "events.k8s.io")
}

// Refused picks requests that were answered with an error, and so wrote nothing.
func Refused(e AuditEvent) bool { return e.Code >= 400 }

// Writes returns what a user asked the API server to write, oldest first: create, update, patch, delete and deletecollection,
// answered with success or not. Dry runs are left out, and so are reviews (authentication.k8s.io, authorization.k8s.io), which
// are created but stored nowhere; ignore leaves out more, for example OnLeases, OnEvents and Refused.
//
// The server writes a request down just after it has answered it, so a test that expects a write has to wait for it with
// Eventually.
func (env *Env) Writes(user string, ignore ...func(AuditEvent) bool) ([]AuditEvent, error) {
	all, err := env.audit.read()
	if err != nil {
		return nil, err
	}
	var events []AuditEvent
	for _, event := range all {
		if event.User == user && !slices.ContainsFunc(ignore, func(leaveOut func(AuditEvent) bool) bool { return leaveOut(event) }) {
			events = append(events, event)
		}
	}
	return events, nil
}

// auditLog reads the log file onwards from where it stopped, so that polling it stays cheap.
type auditLog struct {
	path string

	mutex  sync.Mutex
	offset int64
	events []AuditEvent
}

// line is as much of an audit.k8s.io/v1 Event as is needed here.
type line struct {
	Stage            string    `json:"stage"`
	StageTimestamp   time.Time `json:"stageTimestamp"`
	RequestURI       string    `json:"requestURI"`
	Verb             string    `json:"verb"`
	UserAgent        string    `json:"userAgent"`
	User             identity  `json:"user"`
	ImpersonatedUser *identity `json:"impersonatedUser"`
	ObjectRef        struct {
		APIGroup    string `json:"apiGroup"`
		Resource    string `json:"resource"`
		Subresource string `json:"subresource"`
		Namespace   string `json:"namespace"`
		Name        string `json:"name"`
	} `json:"objectRef"`
	ResponseStatus struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
}

type identity struct {
	Username string `json:"username"`
}

func (l *auditLog) read() ([]AuditEvent, error) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	file, err := os.Open(l.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the audit log: %w", err)
	}
	defer file.Close()
	if _, err := file.Seek(l.offset, io.SeekStart); err != nil {
		return nil, fmt.Errorf("reading the audit log: %w", err)
	}
	for reader := bufio.NewReader(file); ; {
		text, err := reader.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			// A last line without its end is still being written, and is read next time.
			return slices.Clone(l.events), nil
		}
		if err != nil {
			return nil, fmt.Errorf("reading the audit log: %w", err)
		}
		l.offset += int64(len(text))
		var entry line
		if err := json.Unmarshal(text, &entry); err != nil {
			return nil, fmt.Errorf("reading the audit log: %w in %q", err, strings.TrimSpace(string(text)))
		}
		if event, writes := entry.event(); writes {
			l.events = append(l.events, event)
		}
	}
}

func isWriting(verb string) bool {
	switch verb {
	case "create", "update", "patch", "delete", "deletecollection":
		return true
	}
	return false
}

func (e *line) event() (event AuditEvent, writes bool) {
	if e.Stage != "ResponseComplete" && e.Stage != "Panic" || !isWriting(e.Verb) {
		return event, false
	}
	if group := e.ObjectRef.APIGroup; group == "authentication.k8s.io" || group == "authorization.k8s.io" {
		return event, false
	}
	if uri, err := url.Parse(e.RequestURI); err == nil && slices.Contains(uri.Query()["dryRun"], "All") {
		return event, false
	}
	user := e.User.Username
	if e.ImpersonatedUser != nil {
		user = e.ImpersonatedUser.Username
	}
	return AuditEvent{
		Time: e.StageTimestamp, User: user, Verb: e.Verb,
		Group: e.ObjectRef.APIGroup, Resource: e.ObjectRef.Resource, Subresource: e.ObjectRef.Subresource,
		Namespace: e.ObjectRef.Namespace, Name: e.ObjectRef.Name,
		Code: e.ResponseStatus.Code, URI: e.RequestURI, UserAgent: e.UserAgent,
	}, true
}
