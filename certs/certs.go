// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package certs

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// Names of the files that this package writes.
const (
	// CertificateFile holds a serving certificate and the authority that signed it, as PEM.
	CertificateFile = "tls.crt"
	// KeyFile holds the private key of the certificate in CertificateFile, as PEM.
	KeyFile = "tls.key"
	// CACertificateFile holds the certificate of a CA, as PEM.
	CACertificateFile = "ca.crt"
	// CAKeyFile holds the private key of a CA, as PEM.
	CAKeyFile = "ca.key"
)

// backdate is how long before now a certificate becomes valid, because the clock of the machine that checks it may lag.
const backdate = 5 * time.Minute

// CA is a certificate authority for development and tests. It is safe for concurrent use.
type CA struct {
	certificate *x509.Certificate
	key         crypto.Signer
	bundle      []byte
}

// NewCA makes a certificate authority with a new ECDSA P-256 key, valid for ten years from now.
func NewCA() (*CA, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making the key of a development CA: %w", err)
	}
	certificate, err := cert.NewSelfSignedCACert(cert.Config{
		CommonName: "blackadder-development-ca",
		NotBefore:  time.Now().Add(-backdate),
	}, key)
	if err != nil {
		return nil, fmt.Errorf("making the certificate of a development CA: %w", err)
	}
	return newCA(certificate, key)
}

func newCA(certificate *x509.Certificate, key crypto.Signer) (*CA, error) {
	bundle, err := cert.EncodeCertificates(certificate)
	if err != nil {
		return nil, fmt.Errorf("encoding the certificate of a development CA: %w", err)
	}
	return &CA{certificate: certificate, key: key, bundle: bundle}, nil
}

// LoadCA loads the authority that Save wrote into dir. The error wraps fs.ErrNotExist if there is none, and says what to do
// if the files do not belong together or the authority has expired.
func LoadCA(dir string) (*CA, error) {
	certificatePath, keyPath := filepath.Join(dir, CACertificateFile), filepath.Join(dir, CAKeyFile)
	certificatePEM, err := os.ReadFile(certificatePath)
	if err != nil {
		return nil, fmt.Errorf("loading a development CA: %w", err)
	}
	keyPEM, err := os.ReadFile(keyPath)
	if err != nil {
		return nil, fmt.Errorf("loading a development CA: %w", err)
	}
	pair, err := tls.X509KeyPair(certificatePEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("%s and %s are no certificate authority (delete both to have a new one made): %w", certificatePath, keyPath, err)
	}
	signer, ok := pair.PrivateKey.(crypto.Signer)
	if !ok || !pair.Leaf.IsCA {
		return nil, fmt.Errorf("%s is not the certificate of an authority (delete it and %s to have a new one made)", certificatePath, keyPath)
	}
	if time.Now().After(pair.Leaf.NotAfter) {
		return nil, fmt.Errorf("the authority in %s expired on %s (delete it and %s to have a new one made)",
			certificatePath, pair.Leaf.NotAfter.Format(time.DateOnly), keyPath)
	}
	return newCA(pair.Leaf, signer)
}

// OpenCA loads the authority in dir, or makes one and saves it there if neither of its files exists. A folder that holds only
// one of the two is an error: replacing an authority that somebody trusts is not for this function to decide.
func OpenCA(dir string) (*CA, error) {
	ca, err := LoadCA(dir)
	if !errors.Is(err, fs.ErrNotExist) {
		return ca, err
	}
	for _, name := range []string{CACertificateFile, CAKeyFile} {
		if _, statErr := os.Stat(filepath.Join(dir, name)); statErr == nil {
			return nil, fmt.Errorf("%s holds half an authority, %s alone (delete it to have a new one made): %w", dir, name, err)
		}
	}
	if ca, err = NewCA(); err != nil {
		return nil, err
	}
	return ca, ca.Save(dir)
}

// Save writes the authority into dir, which it makes if need be, so that LoadCA finds it. The key is readable by its owner
// alone.
func (ca *CA) Save(dir string) error {
	key, err := keyutil.MarshalPrivateKeyToPEM(ca.key)
	if err != nil {
		return fmt.Errorf("encoding the key of a development CA: %w", err)
	}
	return writePair(dir, CAKeyFile, key, CACertificateFile, ca.bundle)
}

// Bundle is the authority's certificate as PEM: what a webhook configuration's caBundle takes.
func (ca *CA) Bundle() []byte { return append([]byte(nil), ca.bundle...) }

// Issue signs a serving certificate for the given DNS names and IP addresses, with a key of its own, valid for validFor from
// now. It returns the certificate, followed by the authority's, and the key, as PEM.
func (ca *CA) Issue(hosts []string, validFor time.Duration) (certificatePEM, keyPEM []byte, err error) {
	if len(hosts) == 0 {
		return nil, nil, errors.New("a serving certificate needs at least one DNS name or IP address")
	}
	if validFor <= 0 {
		return nil, nil, fmt.Errorf("a serving certificate cannot be valid for %s", validFor)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("making the key of a serving certificate: %w", err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, nil, fmt.Errorf("drawing the serial number of a serving certificate: %w", err)
	}
	now := time.Now().UTC()
	template := &x509.Certificate{
		SerialNumber: serial.Add(serial, big.NewInt(1)),
		Subject:      pkix.Name{CommonName: "blackadder-webhook"},
		NotBefore:    now.Add(-backdate),
		NotAfter:     now.Add(validFor),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.certificate, key.Public(), ca.key)
	if err != nil {
		return nil, nil, fmt.Errorf("signing a serving certificate for %q: %w", hosts, err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, nil, fmt.Errorf("reading back the serving certificate for %q: %w", hosts, err)
	}
	if certificatePEM, err = cert.EncodeCertificates(leaf, ca.certificate); err != nil {
		return nil, nil, fmt.Errorf("encoding the serving certificate for %q: %w", hosts, err)
	}
	if keyPEM, err = keyutil.MarshalPrivateKeyToPEM(key); err != nil {
		return nil, nil, fmt.Errorf("encoding the key of the serving certificate for %q: %w", hosts, err)
	}
	return certificatePEM, keyPEM, nil
}

// WriteServing signs a serving certificate as Issue does and writes it to CertificateFile and KeyFile in dir, which it makes
// if need be. No reader sees half a file. Between the two renames, for microseconds, one that reads both files finds the new
// key beside the old certificate: loading that pair fails, so such a reader keeps what it had and finds the right pair when
// the second rename wakes it.
func (ca *CA) WriteServing(dir string, hosts []string, validFor time.Duration) error {
	certificate, key, err := ca.Issue(hosts, validFor)
	if err != nil {
		return err
	}
	return writePair(dir, KeyFile, key, CertificateFile, certificate)
}

// writePair puts a key and then its certificate in place. The certificate comes last because its arrival is what readers
// wait for: a folder with a certificate is complete.
func writePair(dir, keyName string, key []byte, certificateName string, certificate []byte) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("making the folder for a certificate: %w", err)
	}
	// Both are written out before either is renamed, so that a full disk cannot part them.
	keyTemporary, err := writeTemporary(dir, keyName, key, 0o600)
	if err != nil {
		return err
	}
	defer os.Remove(keyTemporary)
	certificateTemporary, err := writeTemporary(dir, certificateName, certificate, 0o644)
	if err != nil {
		return err
	}
	defer os.Remove(certificateTemporary)
	if err := os.Rename(keyTemporary, filepath.Join(dir, keyName)); err != nil {
		return fmt.Errorf("putting a key in place: %w", err)
	}
	if err := os.Rename(certificateTemporary, filepath.Join(dir, certificateName)); err != nil {
		return fmt.Errorf("putting a certificate in place: %w", err)
	}
	return nil
}

func writeTemporary(dir, name string, content []byte, mode fs.FileMode) (path string, err error) {
	file, err := os.CreateTemp(dir, "."+name+".")
	if err != nil {
		return "", fmt.Errorf("writing %s: %w", name, err)
	}
	defer func() {
		if err != nil {
			_ = os.Remove(file.Name())
		}
	}()
	_, err = file.Write(content)
	if err = errors.Join(err, file.Chmod(mode), file.Close()); err != nil {
		return "", fmt.Errorf("writing %s: %w", name, err)
	}
	return file.Name(), nil
}
