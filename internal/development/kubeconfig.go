// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package development

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// MinTokenLifetime is the shortest lifetime of a token that an API server grants.
const MinTokenLifetime = 10 * time.Minute

// ManagerToken asks the API server for a token of the manager's ServiceAccount, valid for validFor (at least
// MinTokenLifetime), and tells when it expires; a server may grant less than was asked. The ServiceAccount has to exist:
// Apply makes it.
func ManagerToken(ctx context.Context, admin *rest.Config, validFor time.Duration) (token string, expires time.Time, err error) {
	if validFor < MinTokenLifetime {
		return "", time.Time{}, fmt.Errorf("a token cannot be valid for %s: the API server grants %s at least", validFor, MinTokenLifetime)
	}
	clientset, err := kubernetes.NewForConfig(admin)
	if err != nil {
		return "", time.Time{}, fmt.Errorf("connecting to %s: %w", admin.Host, err)
	}
	seconds := int64(validFor / time.Second)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}
	response, err := clientset.CoreV1().ServiceAccounts(Namespace).CreateToken(ctx, ServiceAccount, request, metav1.CreateOptions{})
	if apierrors.IsNotFound(err) {
		return "", time.Time{}, fmt.Errorf("requesting a token for ServiceAccount %s/%s (apply the manifests first): %w", Namespace, ServiceAccount, err)
	}
	if err != nil {
		return "", time.Time{}, fmt.Errorf("requesting a token for ServiceAccount %s/%s: %w", Namespace, ServiceAccount, err)
	}
	return response.Status.Token, response.Status.ExpirationTimestamp.Time, nil
}

// WriteManagerKubeconfig writes a kubeconfig with which a manager outside the cluster has exactly the rights of the one
// inside: a token of its ServiceAccount (see ManagerToken), and the server and authority of admin. The file stands by itself
// and is readable by its owner alone. It returns when the token expires.
func WriteManagerKubeconfig(ctx context.Context, admin *rest.Config, path string, validFor time.Duration) (expires time.Time, err error) {
	token, expires, err := ManagerToken(ctx, admin, validFor)
	if err != nil {
		return time.Time{}, err
	}
	// Only the server is taken over from admin; its credentials must not reach the manager.
	config := rest.AnonymousClientConfig(admin)
	config.BearerToken = token
	if err := WriteKubeconfig(config, Namespace, path); err != nil {
		return time.Time{}, err
	}
	return expires, nil
}

// WriteKubeconfig writes a kubeconfig with the server, authority, credentials and impersonation of config and the given
// default namespace. Files that config names are copied into it, so that it stands by itself. It is readable by its owner
// alone, and a reader never sees half of it.
func WriteKubeconfig(config *rest.Config, namespace, path string) error {
	complete := rest.CopyConfig(config)
	if err := rest.LoadTLSFiles(complete); err != nil {
		return fmt.Errorf("reading the certificates for the kubeconfig %s: %w", path, err)
	}
	if complete.BearerToken == "" && complete.BearerTokenFile != "" {
		token, err := os.ReadFile(complete.BearerTokenFile)
		if err != nil {
			return fmt.Errorf("reading the token for the kubeconfig %s: %w", path, err)
		}
		complete.BearerToken = string(token)
	}
	server, _, err := rest.DefaultServerUrlFor(complete)
	if err != nil {
		return fmt.Errorf("finding the server for the kubeconfig %s: %w", path, err)
	}
	const name = "blackadder"
	cluster := clientcmdapi.NewCluster()
	cluster.Server = (&url.URL{Scheme: server.Scheme, Host: server.Host, Path: server.Path}).String()
	cluster.CertificateAuthorityData = complete.CAData
	cluster.InsecureSkipTLSVerify = complete.Insecure
	cluster.TLSServerName = complete.ServerName
	user := clientcmdapi.NewAuthInfo()
	user.Token = complete.BearerToken
	user.Username = complete.Username
	user.Password = complete.Password
	user.ClientCertificateData = complete.CertData
	user.ClientKeyData = complete.KeyData
	user.Impersonate = complete.Impersonate.UserName
	user.ImpersonateUID = complete.Impersonate.UID
	user.ImpersonateGroups = complete.Impersonate.Groups
	user.ImpersonateUserExtra = complete.Impersonate.Extra
	kubeContext := clientcmdapi.NewContext()
	kubeContext.Cluster, kubeContext.AuthInfo, kubeContext.Namespace = name, name, namespace
	kubeconfig := clientcmdapi.NewConfig()
	kubeconfig.Clusters[name], kubeconfig.AuthInfos[name], kubeconfig.Contexts[name] = cluster, user, kubeContext
	kubeconfig.CurrentContext = name
	content, err := clientcmd.Write(*kubeconfig)
	if err != nil {
		return fmt.Errorf("encoding the kubeconfig %s: %w", path, err)
	}
	if err := replaceFile(path, content); err != nil {
		return fmt.Errorf("writing the kubeconfig %s: %w", path, err)
	}
	return nil
}

// replaceFile writes a file that only its owner can read. CreateTemp makes it with mode 0600.
func replaceFile(path string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	temporary, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".")
	if err != nil {
		return err
	}
	defer os.Remove(temporary.Name())
	_, err = temporary.Write(content)
	if err := errors.Join(err, temporary.Close()); err != nil {
		return err
	}
	return os.Rename(temporary.Name(), path)
}
