#!/usr/bin/env bash
# The main story, on an embedded cluster: real commands, real output, each checked. `make demo` runs it and then waits, so
# that one can look around; with DEMO_EXIT=1 it stops by itself, with exit 0 only if each step did what it says.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
# The Makefile's build flags, so that nothing is compiled twice.
export CGO_ENABLED=${CGO_ENABLED:-0} GOFLAGS=${GOFLAGS:--trimpath}

dir=$root/.dev/demo
log=$dir/manager.log
manager=
told=
step=starting
if [ -t 1 ]; then bold=$'\033[1m' plain=$'\033[0m'; else bold='' plain=''; fi

tell() { printf '\n%s%s%s\n' "$bold" "$*" "$plain"; }

finish() {
  local code=$?
  trap - EXIT
  # A second Ctrl-C must not leave the cluster behind.
  trap '' INT TERM
  if [ "$code" -eq 130 ]; then
    printf '\nThe demo was stopped while %s.\n' "$step" >&2
  elif [ "$code" -ne 0 ]; then
    printf '\nThe demo failed while %s.\n' "$step" >&2
    if [ -s "$log" ]; then printf 'The last lines of the manager'\''s log (%s):\n' "$log" >&2; tail -n 15 "$log" >&2; fi
  fi
  if [ -n "$manager" ]; then kill "$manager" 2>/dev/null || true; wait "$manager" 2>/dev/null || true; fi
  if [ -e "$dir/cluster" ]; then
    bin/cluster down --dir "$dir/cluster" >/dev/null || printf 'The cluster in %s is not wholly gone.\n' "$dir/cluster" >&2
  fi
  exit "$code"
}
# Once the story is told, Ctrl-C is the way out and no fault.
stopped() { if [ -n "$told" ]; then printf '\nStopping.\n'; exit 0; fi; exit 130; }
trap finish EXIT
trap stopped INT TERM

fail() { printf '%s\n' "$*" >&2; exit 1; }

# show COMMAND...: print it as a user would type it, run it, show what it prints and keep that in $output.
show() {
  printf '$ %s\n' "$*"
  code=0
  output=$("$@" 2>&1) || code=$?
  if [ -n "$output" ]; then printf '%s\n' "$output"; fi
}
works() { show "$@"; [ "$code" -eq 0 ] || fail "expected success, got exit code $code"; }
refused() { show "$@"; [ "$code" -ne 0 ] || fail "expected a refusal, and it was accepted"; }
says() { case $output in *"$1"*) ;; *) fail "expected the output to say: $1" ;; esac; }

# A port of 127.0.0.1 on which nobody answers and that was not given out before, in $port. Bash alone, because a fresh machine
# may have nothing else to ask with.
taken=' '
free_port() {
  while :; do
    port=$((20000 + RANDOM % 10000))
    case $taken in *" $port "*) continue ;; esac
    if ! { (exec 3<>"/dev/tcp/127.0.0.1/$port"); } 2>/dev/null; then taken="$taken$port "; return; fi
  done
}

# ready PORT: whether /readyz there answers 200.
ready() {
  local answer
  answer=$({ exec 3<>"/dev/tcp/127.0.0.1/$1" && printf 'GET /readyz HTTP/1.0\r\n\r\n' >&3 && head -n 1 <&3; } 2>/dev/null) || return 1
  [[ $answer == *" 200 "* ]]
}

mkdir -p "$dir" bin
step="building"
printf 'building the tools that start a cluster and install into it\n'
go build -o bin/ ./hack/cluster ./hack/dev

tell "A cluster of real control-plane programs and three simulated nodes"
step="starting the cluster"
bin/cluster down --dir "$dir/cluster" >/dev/null 2>&1 || true
bin/cluster up --dir "$dir/cluster" --nodes 3
environment=$(bin/cluster env --dir "$dir/cluster")
eval "$environment"
# What kubectl keeps about a cluster goes with this one, too.
export KUBECACHEDIR=$dir/cluster/kubectl
works kubectl get nodes

tell "The manager, outside the cluster but as its own ServiceAccount, with the rights of its manifests and no others"
step="starting the manager"
free_port; webhook=127.0.0.1:$port
free_port; metrics=127.0.0.1:$port
free_port; health=127.0.0.1:$port health_port=$port
bin/dev --kubeconfig "$KUBECONFIG" --dir "$dir" --webhook-address "$webhook"
bin/manager --kubeconfig="$dir/manager.kubeconfig" --webhook-cert-dir="$dir/certs" --webhook-address="$webhook" \
  --metrics-address="$metrics" --health-address="$health" --leader-elect=false --log-format=console >"$log" 2>&1 &
manager=$!
# The API server and the manager are both local: a minute is for a machine that does much else.
deadline=$((SECONDS + 60))
until ready "$health_port"; do
  kill -0 "$manager" 2>/dev/null || fail "the manager ended"
  [ "$SECONDS" -lt "$deadline" ] || fail "the manager did not become ready within a minute"
  sleep 0.2
done
printf 'http://%s/readyz says ok: the webhooks are served and the caches are filled.\n' "$health"

tell "1. An ImmortalContainer, word for word from the article that asks for it"
step="applying the sample"
works cat config/samples/immortalcontainer_v1alpha1_immortalcontainer.yaml
works kubectl apply -f config/samples/immortalcontainer_v1alpha1_immortalcontainer.yaml
says "example-immortal-container created"
works kubectl wait --for=condition=Ready immortalcontainer/example-immortal-container --timeout=60s
works kubectl get pods
says "example-immortal-container-immortalpod"
works kubectl get immortalcontainers
first=$(kubectl get pod example-immortal-container-immortalpod -o jsonpath='{.metadata.uid}')

tell "2. Nobody deletes its pod, not even an administrator"
step="deleting the protected pod"
refused kubectl delete pod example-immortal-container-immortalpod
says 'is kept alive by ImmortalContainer "example-immortal-container" and is not deleted'
says "immortalcontainer.flugel.it/unprotected-until="

tell "3. Break the glass, as the message says; the pod goes, and comes back"
step="breaking the glass"
# The last word of the refusal is the annotation, with a time ten minutes ahead.
annotation=${output##* }
works kubectl annotate immortalcontainer example-immortal-container --overwrite "$annotation"
works kubectl delete pod example-immortal-container-immortalpod
step="waiting for the pod to come back"
works kubectl wait --for=jsonpath='{.status.startTimes}'=2 immortalcontainer/example-immortal-container --timeout=60s
works kubectl wait --for=condition=Ready immortalcontainer/example-immortal-container --timeout=60s
works kubectl get pods
second=$(kubectl get pod example-immortal-container-immortalpod -o jsonpath='{.metadata.uid}')
[ "$first" != "$second" ] || fail "the pod is the old one"

tell "4. The status counts its starts, and says that the glass is still broken"
step="reading the status"
works kubectl get immortalcontainer example-immortal-container -o jsonpath='startTimes: {.status.startTimes}{"\n"}'
says "startTimes: 2"
works kubectl get immortalcontainers -o wide
works kubectl events --for immortalcontainer/example-immortal-container
says "ProtectionLifted"
works kubectl annotate immortalcontainer example-immortal-container immortalcontainer.flugel.it/unprotected-until-
refused kubectl delete pod example-immortal-container-immortalpod

tell "5. A bad manifest is refused with every fault named"
step="applying a bad manifest"
works cat hack/demo/bad.yaml
refused kubectl apply -f hack/demo/bad.yaml
says "spec.image: Invalid value"
says "spec.ports[0].containerPort: Invalid value: 70000"
says 'spec.volumeMounts[0].name: Not found: "data"'

tell "6. A drain empties the node all the same, and the pod comes back on another"
step="draining the pod's node"
node=$(kubectl get pod example-immortal-container-immortalpod -o jsonpath='{.spec.nodeName}')
works kubectl drain "$node" --ignore-daemonsets --force --timeout=60s
works kubectl wait --for=jsonpath='{.status.startTimes}'=3 immortalcontainer/example-immortal-container --timeout=60s
works kubectl wait --for=condition=Ready immortalcontainer/example-immortal-container --timeout=60s
works kubectl get pods -o wide
works kubectl uncordon "$node"

tell "7. The ImmortalContainer's own deletion takes its pod along"
step="deleting the ImmortalContainer"
works kubectl delete immortalcontainer example-immortal-container
works kubectl wait --for=delete pod/example-immortal-container-immortalpod --timeout=60s

tell "8. A ChaosAgent that would reach the operator's own namespace is refused"
step="refusing an unsafe ChaosAgent"
works kubectl apply -f hack/demo/shop.yaml
works kubectl wait --for=condition=Available deployment --all -n shop --timeout=60s
replicas_before=$(kubectl get deployments -n shop -o jsonpath='{range .items[*]}{.metadata.name}={.spec.replicas} {end}')
settings_before=$(kubectl get configmap settings -n shop -o jsonpath='{.data}')
works cat hack/demo/unsafe.yaml
refused kubectl apply -f hack/demo/unsafe.yaml
says 'the agent would reach the protected namespace "blackadder-system": exclude it too, with excludedNamespaces: ["blackadder-system","kube-system"]'

tell "9. Corrected, it is accepted, with a preview of what each cycle will hit"
step="applying the ChaosAgent"
works kubectl apply -f hack/demo/safe.yaml
says "pods in"
says "deleted each cycle"
works kubectl get chaosagents
step="waiting for four cycles"
deadline=$((SECONDS + 60))
until [ "$(kubectl get chaosagent edmund -o jsonpath='{.status.totals.cycles}')" -ge 4 ] 2>/dev/null; do
  [ "$SECONDS" -lt "$deadline" ] || fail "there were no four cycles within a minute"
  sleep 0.2
done
works kubectl get deployments,pods,configmaps -n shop
works kubectl get configmap settings -n shop -o jsonpath='{.data}{"\n"}'
works kubectl events --for chaosagent/edmund
says "cycle 1:"
works kubectl get chaosagents -o wide

tell "10. Deleted, it puts back every replica and every byte"
step="deleting the ChaosAgent"
works kubectl delete chaosagent edmund --timeout=60s
works kubectl get deployments -n shop
replicas_after=$(kubectl get deployments -n shop -o jsonpath='{range .items[*]}{.metadata.name}={.spec.replicas} {end}')
settings_after=$(kubectl get configmap settings -n shop -o jsonpath='{.data}')
printf 'replicas: %s\nsettings: %s\n' "$replicas_after" "$settings_after"
[ "$replicas_before" = "$replicas_after" ] || fail "the replicas were $replicas_before"
[ "$settings_before" = "$settings_after" ] || fail "the settings were $settings_before"

step="ending"
kill -0 "$manager" 2>/dev/null || fail "the manager ended before the demo did"
if [ "${DEMO_EXIT:-}" = 1 ]; then
  tell "Each step did what it says."
  exit 0
fi
tell "Look around in another terminal:"
printf '  %s\n  kubectl explain immortalcontainer.spec\n  kubectl explain chaosagent.spec\n  kubectl apply -f %s\n  tail -f %s\n' "$environment" \
  "$root/config/samples/immortalcontainer_v1alpha1_immortalcontainer.yaml" "$log"
printf 'Stop with Ctrl-C: the manager and the cluster go away.\n'
step="waiting for Ctrl-C"
told=1
wait "$manager" || true
fail "the manager ended"
