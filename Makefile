# Targets for people and CI; `make help` lists them. Tools come from the Go modules under hack/, pinned there.
SHELL := /usr/bin/env bash
.DEFAULT_GOAL := help

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
IMG ?= blackadder:dev
CONTAINER_TOOL ?= docker
FUZZTIME ?= 30s
# Where a manager that runs on this machine is called by the API server; another address than loopback for a cluster in
# containers, such as kind.
WEBHOOK_ADDRESS ?= 127.0.0.1:9443
METRICS_ADDRESS ?= 127.0.0.1:8443
HEALTH_ADDRESS ?= 127.0.0.1:8081
# Arguments for the test command, such as TEST_ARGS="-run TestJudge".
TEST_ARGS ?=

GO ?= go
# One set of build flags for binaries, tools and tests: with two, Go would compile every dependency twice. The user's own flags
# stay; the race detector needs CGO_ENABLED=1.
export CGO_ENABLED ?= 0
export GOFLAGS := $(shell $(GO) env GOFLAGS) -trimpath
TOOL = $(GO) tool -modfile=hack/$(1)/go.mod $(2)
CONTROLLER_GEN = $(call TOOL,controller-gen,controller-gen)
KUSTOMIZE = $(call TOOL,kustomize,kustomize)
GINKGO = $(call TOOL,ginkgo,ginkgo)
GOLANGCI_LINT = $(call TOOL,golangci-lint,golangci-lint)
BUILD = CGO_ENABLED=0 $(GO) build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=$(VERSION)"

# Only what a checkout has: a folder without a package is no error of controller-gen's.
CODE = paths=./api/... paths=./webhooks/... paths=./controllers/... paths=./cmd/...

##@ General

.PHONY: help
help: ## List the targets.
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z][a-z-]*:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: clean
clean: ## Remove what was built here (not the cached control plane).
	rm -rf bin dist .dev/certs .dev/ca .dev/manager.kubeconfig

##@ Try

.PHONY: demo
demo: build control-plane ## Tell the main story on an embedded cluster; DEMO_EXIT=1 stops by itself.
	@hack/demo.sh

.PHONY: run
run: build ## Run the manager on this machine against the current kubeconfig.
	$(GO) run ./hack/dev --webhook-address $(WEBHOOK_ADDRESS)
	bin/manager --kubeconfig=.dev/manager.kubeconfig --webhook-cert-dir=.dev/certs --webhook-address=$(WEBHOOK_ADDRESS) \
		--metrics-address=$(METRICS_ADDRESS) --health-address=$(HEALTH_ADDRESS) --leader-elect=false --log-format=console

.PHONY: cluster-up
cluster-up: control-plane ## Start an embedded cluster with three simulated nodes and print its KUBECONFIG line.
	@$(GO) run ./hack/cluster up

.PHONY: cluster-down
cluster-down: ## Stop the embedded cluster and remove its state.
	@$(GO) run ./hack/cluster down

.PHONY: install
install: ## Apply the CRDs to the current kubeconfig's cluster.
	$(GO) run ./hack/dev --only-crds

.PHONY: uninstall
uninstall: ## Delete everything that install or run applied, with all objects of our kinds.
	$(GO) run ./hack/dev --uninstall

##@ Test

.PHONY: test
test: control-plane ## Run all suites: pure, on an API server, on an embedded cluster.
	@echo "running the suites; the ones on an API server take about a minute each"
	$(GINKGO) run -r --no-color --keep-going --poll-progress-after=120s --timeout=30m --label-filter='!large' $(TEST_ARGS)

.PHONY: test-large
test-large: control-plane ## Run the large runs, on thousands of simulated pods: about seven minutes.
	@echo "running the large runs; the next line comes when they are over"
	$(GINKGO) run --no-color --poll-progress-after=400s --timeout=30m --label-filter=large $(TEST_ARGS) ./test/embedded

.PHONY: test-unit
test-unit: ## Run the tests that need no API server.
	$(GO) test ./internal/chaos/... ./internal/immortal/... ./internal/namespaces/... ./webhooks/conversion/... ./webhooks/fielderrors/... ./certs/... ./cmd/...

.PHONY: fuzz
fuzz: ## Run every fuzz target for FUZZTIME each (default 30s).
	@set -euo pipefail; grep -rlE '^func Fuzz' --include='*_test.go' . | xargs -n 1 dirname | sort -u | while read -r folder; do \
		for target in $$(grep -hoE '^func Fuzz[A-Za-z0-9_]+' "$$folder"/*_test.go | awk '{print $$2}'); do \
			echo "== $$folder $$target"; $(GO) test "$$folder" -run='^$$' -fuzz="^$$target\$$" -fuzztime=$(FUZZTIME); \
		done; done

.PHONY: control-plane
control-plane: ## Build the control plane that tests and demo run on, once, into the user's cache.
	@hack/controlplane.sh build

##@ Develop

.PHONY: generate
generate: ## Generate deep copies and apply configurations from api/.
	$(CONTROLLER_GEN) object:headerFile=hack/boilerplate.go.txt applyconfiguration:headerFile=hack/boilerplate.go.txt paths=./api/...

.PHONY: manifests
manifests: ## Generate CRDs, RBAC and webhook configurations from the markers.
	$(CONTROLLER_GEN) crd:headerFile=hack/boilerplate.yaml.txt paths=./api/... output:crd:dir=config/crd/bases
	$(CONTROLLER_GEN) rbac:roleName=blackadder-manager,headerFile=hack/boilerplate.yaml.txt webhook:headerFile=hack/boilerplate.yaml.txt $(CODE) \
		output:rbac:dir=config/rbac output:webhook:dir=config/webhook

.PHONY: fmt
fmt: ## Format the code.
	$(GOLANGCI_LINT) fmt

.PHONY: lint
lint: ## Check the code, and who imports whom.
	$(GOLANGCI_LINT) run --timeout=20m --allow-serial-runners

.PHONY: verify
verify: ## Check that everything generated is up to date, formatted and tidy.
	@hack/verify.sh

.PHONY: build
build: ## Build the static binaries into bin/.
	@for command in manager mirror-agent; do if [ -d cmd/$$command ]; then echo "building bin/$$command $(VERSION)"; $(BUILD) -o bin/$$command ./cmd/$$command || exit 1; fi; done

.PHONY: image
image: ## Build the container image IMG with CONTAINER_TOOL.
	$(CONTAINER_TOOL) build --build-arg VERSION=$(VERSION) -t $(IMG) .
