// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package certs

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

func TestServingCertificateIsTrustedForItsHostsWhileItIsValid(t *testing.T) {
	ca, err := NewCA()
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := NewCA()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	hosts := []string{"127.0.0.1", "::1", "localhost", "blackadder-webhook.blackadder-system.svc"}
	if err := ca.WriteServing(dir, hosts, time.Hour); err != nil {
		t.Fatal(err)
	}
	leaf := load(t, dir).Leaf
	now := time.Now()

	for name, test := range map[string]struct {
		host    string
		at      time.Time
		roots   []byte
		message string
	}{
		"an IPv4 address":                {host: "127.0.0.1", at: now, roots: ca.Bundle()},
		"an IPv6 address":                {host: "::1", at: now, roots: ca.Bundle()},
		"a short DNS name":               {host: "localhost", at: now, roots: ca.Bundle()},
		"a Service's DNS name":           {host: "blackadder-webhook.blackadder-system.svc", at: now, roots: ca.Bundle()},
		"a clock that lags a little":     {host: "localhost", at: now.Add(-4 * time.Minute), roots: ca.Bundle()},
		"just before the end":            {host: "localhost", at: now.Add(59 * time.Minute), roots: ca.Bundle()},
		"another address":                {host: "127.0.0.2", at: now, roots: ca.Bundle(), message: "x509: certificate is valid for 127.0.0.1, ::1, not 127.0.0.2"},
		"another DNS name":               {host: "example.com", at: now, roots: ca.Bundle(), message: "x509: certificate is valid for localhost, blackadder-webhook.blackadder-system.svc, not example.com"},
		"after the end":                  {host: "localhost", at: now.Add(61 * time.Minute), roots: ca.Bundle(), message: "certificate has expired or is not yet valid"},
		"an authority that did not sign": {host: "localhost", at: now, roots: stranger.Bundle(), message: "x509: certificate signed by unknown authority"},
	} {
		t.Run(name, func(t *testing.T) {
			pool := x509.NewCertPool()
			pool.AppendCertsFromPEM(test.roots)
			_, err := leaf.Verify(x509.VerifyOptions{DNSName: test.host, CurrentTime: test.at, Roots: pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
			if test.message == "" && err != nil {
				t.Errorf("verifying: %v", err)
			}
			if test.message != "" && (err == nil || !strings.Contains(err.Error(), test.message)) {
				t.Errorf("verifying: got %v, want %q", err, test.message)
			}
		})
	}

	if key, ok := leaf.PublicKey.(*ecdsa.PublicKey); !ok || key.Curve != elliptic.P256() {
		t.Errorf("the leaf's key is %T, want ECDSA P-256", leaf.PublicKey)
	}
	if end := time.Until(ca.certificate.NotAfter); end < 9*365*24*time.Hour {
		t.Errorf("the authority ends in %s, want about ten years", end)
	}
}

func TestRotationKeepsTheBundleAndChangesTheKey(t *testing.T) {
	caDir, dir := filepath.Join(t.TempDir(), "ca"), t.TempDir()
	first, err := OpenCA(caDir)
	if err != nil {
		t.Fatal(err)
	}
	if err := first.WriteServing(dir, []string{"localhost"}, time.Hour); err != nil {
		t.Fatal(err)
	}
	before := load(t, dir)

	again, err := OpenCA(caDir)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first.Bundle(), again.Bundle()) {
		t.Error("opening the same folder again changed the bundle")
	}
	if err := again.WriteServing(dir, []string{"localhost"}, time.Hour); err != nil {
		t.Fatal(err)
	}
	after := load(t, dir)
	if before.Leaf.SerialNumber.Cmp(after.Leaf.SerialNumber) == 0 {
		t.Error("the rotated certificate has the serial number of the old one")
	}
	if before.PrivateKey.(*ecdsa.PrivateKey).Equal(after.PrivateKey) {
		t.Error("the rotated certificate has the key of the old one")
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(first.Bundle())
	for name, leaf := range map[string]*x509.Certificate{"old": before.Leaf, "new": after.Leaf} {
		if _, err := leaf.Verify(x509.VerifyOptions{DNSName: "localhost", Roots: pool}); err != nil {
			t.Errorf("the %s leaf against the first bundle: %v", name, err)
		}
	}
}

func TestFilesAreWholeAndPrivate(t *testing.T) {
	ca, err := NewCA()
	if err != nil {
		t.Fatal(err)
	}
	caDir, dir := t.TempDir(), t.TempDir()
	if err := ca.Save(caDir); err != nil {
		t.Fatal(err)
	}
	if err := ca.WriteServing(dir, []string{"localhost"}, time.Hour); err != nil {
		t.Fatal(err)
	}

	// One goroutine rotates while this one reads: each file parses by itself at every moment.
	done := make(chan struct{})
	var rotation sync.WaitGroup
	rotation.Go(func() {
		defer close(done)
		for range 50 {
			if err := ca.WriteServing(dir, []string{"localhost"}, time.Hour); err != nil {
				t.Error(err)
			}
		}
	})
	for reading := true; reading; {
		select {
		case <-done:
			reading = false
		default:
		}
		certificate, key := read(t, dir, CertificateFile), read(t, dir, KeyFile)
		if !bytes.HasSuffix(certificate, []byte("-----END CERTIFICATE-----\n")) {
			t.Fatalf("half a certificate: %q", certificate)
		}
		if !bytes.HasSuffix(key, []byte("-----END EC PRIVATE KEY-----\n")) {
			t.Fatalf("half a key: %q", key)
		}
	}
	rotation.Wait()

	for path, want := range map[string]os.FileMode{
		filepath.Join(dir, KeyFile):             0o600,
		filepath.Join(dir, CertificateFile):     0o644,
		filepath.Join(caDir, CAKeyFile):         0o600,
		filepath.Join(caDir, CACertificateFile): 0o644,
	} {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != want {
			t.Errorf("%s has mode %s, want %s", path, info.Mode().Perm(), want)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 2 {
		t.Errorf("temporary files were left behind: %v", entries)
	}
}

func TestErrorsSayWhatToDo(t *testing.T) {
	ca, err := NewCA()
	if err != nil {
		t.Fatal(err)
	}
	other, err := NewCA()
	if err != nil {
		t.Fatal(err)
	}
	half := t.TempDir()
	if err := ca.Save(half); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(half, CAKeyFile)); err != nil {
		t.Fatal(err)
	}
	mixed := t.TempDir()
	if err := ca.Save(mixed); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(mixed, CACertificateFile), other.Bundle(), 0o600); err != nil {
		t.Fatal(err)
	}
	leaf := t.TempDir()
	certificate, key, err := ca.Issue([]string{"localhost"}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if err := writePair(leaf, CAKeyFile, key, CACertificateFile, certificate); err != nil {
		t.Fatal(err)
	}

	for name, test := range map[string]struct {
		do   func() error
		want string
	}{
		"half an authority": {
			func() error { _, err := OpenCA(half); return err },
			half + " holds half an authority, ca.crt alone (delete it to have a new one made): ",
		},
		"two authorities mixed": {
			func() error { _, err := OpenCA(mixed); return err },
			"are no certificate authority (delete both to have a new one made): tls: private key does not match public key",
		},
		"a leaf instead of an authority": {
			func() error { _, err := OpenCA(leaf); return err },
			"ca.crt is not the certificate of an authority (delete it and ",
		},
		"no hosts": {
			func() error { return ca.WriteServing(t.TempDir(), nil, time.Hour) },
			"a serving certificate needs at least one DNS name or IP address",
		},
		"no validity": {
			func() error { return ca.WriteServing(t.TempDir(), []string{"localhost"}, 0) },
			"a serving certificate cannot be valid for 0s",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if err := test.do(); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

func load(t *testing.T, dir string) tls.Certificate {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, CertificateFile), filepath.Join(dir, KeyFile))
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

func read(t *testing.T, dir, name string) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return content
}
