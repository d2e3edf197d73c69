#!/usr/bin/env bash
# Builds the control plane that the tests and the demo run on, once, into a user cache folder keyed by its versions.
#
#   hack/controlplane.sh build [NAME ...]   build what is missing (all, or the named binaries); progress goes to stderr
#   hack/controlplane.sh path               print the folder that holds the binaries
#
# KUBEBUILDER_ASSETS, if set, is taken as that folder and nothing is built for the binaries it has.
# Versions are those of hack/{kubernetes,etcd,kwok}/go.mod.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"

version() { sed -nE "s#^(require )?[[:space:]]*$2 (v[^ ]+).*#\2#p" "hack/$1/go.mod" | head -n 1; }
kubernetes=$(version kubernetes k8s.io/kubernetes)
etcd=$(version etcd go.etcd.io/etcd/server/v3)
kwok=$(version kwok sigs.k8s.io/kwok)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/blackadder/controlplane-$kubernetes-etcd-$etcd-kwok-$kwok-$(go env GOOS)-$(go env GOARCH)
assets=${KUBEBUILDER_ASSETS:-}

say() { printf '%s  %s\n' "$(date +%T)" "$*" >&2; }

# The binaries, cheapest-to-share first: family, package, usual time on two cores with nothing cached.
all=(etcd kube-apiserver kubectl kube-scheduler kube-controller-manager kwokctl kwok)
family() { case $1 in etcd) echo etcd ;; kwok*) echo kwok ;; *) echo kubernetes ;; esac; }
package() {
  case $1 in
    etcd) echo go.etcd.io/etcd/server/v3 ;;
    kwok*) echo "sigs.k8s.io/kwok/cmd/$1" ;;
    *) echo "k8s.io/kubernetes/cmd/$1" ;;
  esac
}
usual() {
  case $1 in
    kube-apiserver) echo "6 minutes" ;;
    kwokctl) echo "3 minutes" ;;
    etcd | kube-controller-manager | kwok) echo "1 minute" ;;
    *) echo "40 seconds" ;;
  esac
}
# Clients read the version from these variables; an unstamped API server is misread as v0.0.0.
ldflags() {
  local v=k8s.io/component-base/version minor=${kubernetes#v1.}
  case $(family "$1") in
    kubernetes) echo "-s -w -X $v.gitVersion=$kubernetes -X $v.gitMajor=1 -X $v.gitMinor=${minor%%.*}" ;;
    kwok) echo "-s -w -X sigs.k8s.io/kwok/pkg/consts.Version=${kwok#v}" ;;
    *) echo "-s -w" ;;
  esac
}

# progress makes a line of every hundred packages that go build -v names, and lets everything else through. The shell reads
# the lines itself: Debian's awk holds a pipe's lines back until it has 4096 bytes or the end.
progress() {
  local line n=0
  while IFS= read -r line; do
    case $line in
      *[!A-Za-z0-9_./~-]* | '') printf '%s\n' "$line" ;;
      *) n=$((n + 1)); [ $((n % 100)) -ne 0 ] || printf '          %d packages compiled\n' "$n" ;;
    esac
  done >&2
}

build_one() {
  local name=$1 temporary started=$SECONDS
  say "building $name $(version "$(family "$name")" "$(package "$name" | sed -E 's#/cmd/.*##')") (about $(usual "$name") on 2 cores when nothing is cached)"
  # A build lands under its own temporary name and is renamed into place: nobody ever sees half a binary.
  temporary=$(mktemp "$cache/.$name.XXXXXX")
  trap 'rm -f "$temporary"' EXIT
  CGO_ENABLED=0 GOFLAGS='' go build -v -modfile="hack/$(family "$name")/go.mod" -mod=readonly -trimpath -buildvcs=false \
    -ldflags "$(ldflags "$name")" -o "$temporary" "$(package "$name")" 2>&1 | progress
  chmod 0755 "$temporary"
  mv -f "$temporary" "$cache/$name"
  trap - EXIT
  say "built $name in $((SECONDS - started)) s"
}

build() {
  local name missing=()
  mkdir -p "$cache"
  for name in "$@"; do
    [ -n "$assets" ] && [ -x "$assets/$name" ] && continue
    [ -x "$cache/$name" ] || missing+=("$name")
  done
  [ ${#missing[@]} -eq 0 ] && return 0
  # The second of two builds at once waits for the first one's result instead of doing the work again.
  if command -v flock >/dev/null; then
    exec 9>"$cache/.lock"
    flock -n 9 || { say "waiting for another build of the control plane"; flock 9; }
    # What a killed build left behind; with the lock held, nobody is writing here.
    rm -f "$cache"/.*.??????
  fi
  for name in "${missing[@]}"; do [ -x "$cache/$name" ] || build_one "$name"; done
}

# With KUBEBUILDER_ASSETS set, both folders count: a folder for envtest has no kwok, and the cache adds it.
path() {
  if [ -n "$assets" ]; then
    for name in etcd kube-apiserver kubectl; do [ -x "$assets/$name" ] || { echo "$cache"; return; }; done
    echo "$assets"
  else
    echo "$cache"
  fi
}

case ${1:-} in
  build) shift; if [ $# -gt 0 ]; then build "$@"; else build "${all[@]}"; fi ;;
  path) path ;;
  *) sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
