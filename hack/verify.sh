#!/usr/bin/env bash
# Checks that what is generated, formatted and pinned is what the sources say. Generation happens in a copy of the tree, so
# that nothing that is being worked on is touched.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
faults=0
fault() { printf 'verify: %s\n' "$*" >&2; faults=$((faults + 1)); }

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
# Tracked files and new ones, as they stand in the working tree.
git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' file; do
  if [ -e "$file" ]; then printf '%s\0' "$file"; fi
done | tar --null -T - -cf - | tar -xf - -C "$copy"
rm -rf "$copy"/api/*/*/applyconfiguration "$copy"/config/crd/bases "$copy"/config/rbac/role.yaml "$copy"/config/webhook/manifests.yaml
find "$copy/api" -name 'zz_generated.*' -delete

echo "verify: generating code and manifests anew"
make -s -C "$copy" generate manifests
for generated in api config; do
  diff -r -u "$generated" "$copy/$generated" || fault "$generated is not what its sources generate: run 'make generate manifests' and commit the result"
done

echo "verify: rendering the manifests"
for folder in config/development config/samples certs; do
  go tool -modfile=hack/kustomize/go.mod kustomize build "$folder" >/dev/null || fault "$folder cannot be built"
done

echo "verify: modules"
go mod tidy -diff || fault "go.mod is not tidy: run 'go mod tidy'"
go mod verify >/dev/null || fault "a module in the cache is not what go.sum says"

echo "verify: formatting"
unformatted=$(git ls-files '*.go' | grep -v -e zz_generated -e /applyconfiguration/ | while read -r file; do if [ -e "$file" ]; then echo "$file"; fi; done | xargs gofmt -l)
[ -z "$unformatted" ] || fault "not formatted (run 'make fmt'): $unformatted"

if [ "$faults" -gt 0 ]; then echo "verify: $faults faults" >&2; exit 1; fi
echo "verify: everything is up to date"
