// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package testenv

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"

	"blackadder.io/blackadder/internal/development"
)

// Decision is what becomes of a request in a Proxy.
type Decision int

const (
	// Pass lets the request, or its answer, through.
	Pass Decision = iota
	// Drop cuts the caller off without an answer: it cannot tell whether the request was carried out.
	Drop
	// Block keeps the caller waiting until it goes away or the proxy closes. The request, or its answer, never gets through.
	Block
)

// Hooks decide about the requests that pass a Proxy. Both are called from several goroutines at once, and may take their time:
// the request waits for them, so a hook can kill the calling process before it decides. A nil hook passes everything.
type Hooks struct {
	// Before is asked before the API server sees a request: on Drop and Block, nothing is written. It may read the body.
	Before func(*http.Request) Decision
	// After is asked when the API server has answered and the caller does not know it yet: on Drop and Block, the write has
	// happened and the caller never learns of it. Response.Request is the request, without its body.
	After func(*http.Response) Decision
}

// Proxy stands between callers and the API server and cuts chosen requests off. The caller's token and impersonation pass
// through; its client certificate cannot, because TLS ends here.
type Proxy struct {
	// Address is "host:port", on 127.0.0.1.
	Address string

	bundle []byte
	hooks  atomic.Pointer[Hooks]
	server *http.Server
	stop   context.CancelFunc
	ctx    context.Context
}

// NewProxy starts a proxy in front of the API server. The caller has to call Close.
func (env *Env) NewProxy(hooks Hooks) (*Proxy, error) {
	target, _, err := rest.DefaultServerUrlFor(env.AdminConfig)
	if err != nil {
		return nil, fmt.Errorf("finding the API server for a proxy: %w", err)
	}
	upstream, err := rest.TLSConfigFor(rest.AnonymousClientConfig(env.AdminConfig))
	if err != nil {
		return nil, fmt.Errorf("trusting the API server from a proxy: %w", err)
	}
	certificatePEM, keyPEM, err := env.CA.Issue([]string{"127.0.0.1", "localhost"}, servingLifetime)
	if err != nil {
		return nil, err
	}
	certificate, err := tls.X509KeyPair(certificatePEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("loading the certificate of a proxy: %w", err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("starting a proxy: %w", err)
	}

	transport := &http.Transport{TLSClientConfig: upstream, ForceAttemptHTTP2: true}
	p := &Proxy{Address: listener.Addr().String(), bundle: env.CA.Bundle()}
	p.ctx, p.stop = context.WithCancel(context.Background())
	p.SetHooks(hooks)
	forward := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Host = target.Host
		},
		Transport:      transport,
		FlushInterval:  -1,
		ModifyResponse: p.after,
		// Whatever went wrong upstream, the caller sees a broken connection, as it would without a proxy.
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
		ErrorLog:     log.New(io.Discard, "", 0),
	}
	p.server = &http.Server{
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { p.serve(w, r, forward) }),
		TLSConfig:         &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12},
		ReadHeaderTimeout: 10 * time.Second,
		ErrorLog:          log.New(io.Discard, "", 0),
	}
	go func() {
		// It returns http.ErrServerClosed after Close, and nobody is left to hear of anything else.
		_ = p.server.ServeTLS(listener, "", "")
		transport.CloseIdleConnections()
	}()
	return p, nil
}

// StartProxy is NewProxy for a test: the proxy closes when the test ends, and failing to start it fails the test.
func (env *Env) StartProxy(tb TB, hooks Hooks) *Proxy {
	tb.Helper()
	p, err := env.NewProxy(hooks)
	if err != nil {
		tb.Fatalf("%v", err)
		return nil
	}
	tb.Cleanup(func() {
		if err := p.Close(); err != nil {
			tb.Errorf("closing a proxy: %v", err)
		}
	})
	return p
}

// SetHooks replaces the hooks, for requests that arrive from now on.
func (p *Proxy) SetHooks(hooks Hooks) { p.hooks.Store(&hooks) }

// Close cuts every caller off and stops listening.
func (p *Proxy) Close() error {
	p.stop()
	if err := p.server.Close(); err != nil {
		return fmt.Errorf("closing the proxy on %s: %w", p.Address, err)
	}
	return nil
}

// Config returns a configuration that reaches the API server through the proxy with the given token.
func (p *Proxy) Config(token string) *rest.Config {
	return &rest.Config{
		Host: "https://" + p.Address, BearerToken: token, QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{CAData: append([]byte(nil), p.bundle...)},
	}
}

// Kubeconfig writes a kubeconfig that reaches the API server through the proxy with the given token, for a process to run with.
func (p *Proxy) Kubeconfig(path, token string) error {
	return development.WriteKubeconfig(p.Config(token), development.Namespace, path)
}

func (p *Proxy) serve(w http.ResponseWriter, r *http.Request, forward http.Handler) {
	if before := p.hooks.Load().Before; before != nil {
		// The body is read to its end first, so that the hook may look at it, and because only then does the server notice
		// over HTTP/1.1 that the caller is gone.
		body, err := io.ReadAll(r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		decision := before(r)
		r.Body = io.NopCloser(bytes.NewReader(body))
		if p.settle(r.Context(), decision) != nil {
			panic(http.ErrAbortHandler)
		}
	}
	forward.ServeHTTP(w, r)
}

func (p *Proxy) after(response *http.Response) error {
	after := p.hooks.Load().After
	if after == nil {
		return nil
	}
	return p.settle(response.Request.Context(), after(response))
}

var errCutOff = errors.New("cut off by a hook")

// settle carries a decision out; an error means that the caller gets no answer.
func (p *Proxy) settle(caller context.Context, decision Decision) error {
	switch decision {
	case Pass:
		return nil
	case Drop:
	case Block:
		select {
		case <-caller.Done():
		case <-p.ctx.Done():
		}
	}
	return errCutOff
}
