# The main commands are `make demo` and `make test`. Both set up what they need.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.ready
PROTO  := src/tranche/kubernetes/kubelet/proto
DEPLOY := build/.deploy-checked
SITE   := build/site/index.html
CHECKED := build/checks.log
CACHE  := $(or $(TRANCHE_CACHE_DIR),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/tranche)

NODES ?= p4d=p4d.24xlarge

# Lets the test processes share compiled modules, even if the shell tells Python not to write any.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test test-long check style site recording dist figures image cluster cluster-down test-cluster goldens lock stubs clean

help:            ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

setup: $(STAMP)  ## create the virtual environment with the locked dependencies

$(STAMP): requirements.lock pyproject.toml
	@echo "installing the locked dependencies into $(VENV) (a minute or two)" >&2
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: $(STAMP)   ## run 56 jobs on a simulated p4d.24xlarge, on whole GPUs and then in slices
	$(BIN)/tranche demo

# The recipe does not use $(MAKE) itself, because `make -n test` would then run it.
AGAIN := $(MAKE) --no-print-directory

# The first download of a cluster's programs takes minutes, so it runs in parallel with the checks and the other tests. Tests that
# need a cluster wait for it. If this machine cannot run a cluster, the tests' last lines say so. In a new checkout, one process
# compiles the tests first, so that not every process does. The checks use one core, so they run in parallel with the tests. If a
# check fails, it ends the tests, and only then is its output shown.
test: $(STAMP) style  ## run all checks, and each kind of test once
	@mkdir -p $(dir $(CHECKED)); stopped=; tests=; \
	$(BIN)/python -m cluster prepare >/dev/null & prepared=$$!; \
	$(AGAIN) check >$(CHECKED) 2>&1 & checks=$$!; \
	trap 'stopped=1; kill $$prepared $$checks 2>/dev/null' INT; \
	trap 'stopped=1; kill $$prepared $$checks 2>/dev/null; kill -INT $$tests' TERM; \
	[ -d tests/__pycache__ ] || $(BIN)/python -m pytest --collect-only -qq >/dev/null; \
	$(BIN)/python -m pytest -n 6 --durations=40 --durations-min=5 & tests=$$!; \
	wait $$checks; wrong=$$?; [ $$wrong = 0 ] || [ $$stopped ] || kill -INT $$tests; \
	wait $$tests; code=$$?; [ -z "$$stopped" ] || wait $$tests; \
	kill $$prepared 2>/dev/null; \
	if [ $$wrong != 0 ] && [ -z "$$stopped" ]; then cat $(CHECKED); code=$$wrong; fi; exit $$code

test-long: export TRANCHE_LONG := 1
test-long: test  ## the same, with every test at full length; run it before a release
	TRANCHE_OLDER_KUBERNETES=1 $(BIN)/python -m pytest -n 0 tests/cluster/test_shares_by_gates.py tests/cluster/test_guides.py -k "gates or without_claims"

# A new checkout starts with the previous checkout's mypy cache, because mypy compares file contents.
check: $(STAMP) style $(DEPLOY) $(SITE)  ## check format, lint, types, layers, prose, chart, rules, examples and links
	@[ -d .mypy_cache ] || tar xf $(CACHE)/mypy.tar 2>/dev/null || true
	$(BIN)/mypy
	@mkdir -p $(CACHE) && tar cf $(CACHE)/mypy.tar.$$$$ .mypy_cache && mv $(CACHE)/mypy.tar.$$$$ $(CACHE)/mypy.tar
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -n 0 -q tests/test_prose.py

style: $(STAMP)  ## check only format and lint, in a second
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

# Checks deploy/ again only if its files or the checks have changed.
$(DEPLOY): $(STAMP) $(shell find deploy release docs/runbooks src/tranche/boot src/tranche/metrics -type f -not -name '*.pyc')
	$(BIN)/python -m release check
	@mkdir -p $(@D) && touch $@

site: $(SITE)    ## build the documentation as a searchable site, in build/site/

$(SITE): $(STAMP) $(wildcard *.md) requirements-docs.lock release/site.py $(shell find docs -type f)
	$(BIN)/python -m release site

recording: $(STAMP) ## record the README's terminal session on a simulated machine
	$(BIN)/python -m release recording

dist: $(STAMP)   ## create wheels, sources, the self-contained archive, bill of materials and checksums, in dist/
	$(BIN)/python -m release dist

figures: $(STAMP) ## run the benchmarks and rewrite their page; BENCH="cutting decisions" runs only these
	$(BIN)/python -m bench --write $(BENCH)

image: $(STAMP)  ## build the agent's image as an OCI archive, even without a registry
	$(BIN)/python -m release image

cluster: $(STAMP) ## start a Kubernetes cluster with simulated GPUs; NODES="p4d=p4d.24xlarge p5=p5.48xlarge" adds nodes
	$(BIN)/python -m cluster up $(NODES)

cluster-down: $(STAMP) ## remove that cluster and restore the machine
	$(BIN)/python -m cluster down

test-cluster: $(STAMP) ## run the tests that need a cluster, which is created and removed
	$(BIN)/python -m pytest -n 0 -m cluster tests/cluster

goldens: $(STAMP) ## update the golden files from the code's current output
	$(BIN)/python -m pytest -n 2 --update-goldens -m "not cluster"

RESOLVE := uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url

lock: $(STAMP)   ## update all lock files (needs uv)
	$(RESOLVE) --group dev --extra kubernetes --extra dashboard pyproject.toml -o requirements.lock
	$(RESOLVE) --constraints requirements.lock --extra kubernetes --extra dashboard pyproject.toml -o requirements-image.lock
	$(RESOLVE) --constraints requirements.lock --group build -o requirements-build.lock
	$(RESOLVE) --group dist -o requirements-dist.lock
	$(RESOLVE) --group oldest -o requirements-oldest.lock
	$(RESOLVE) --group infrastructure -o requirements-infrastructure.lock
	$(RESOLVE) --group docs -o requirements-docs.lock
	$(RESOLVE) --group browser -o requirements-browser.lock
	$(RESOLVE) --group hub -o requirements-hub.lock

stubs: $(STAMP)  ## regenerate the Python code of the kubelet's protocols
	$(BIN)/python -m grpc_tools.protoc -I $(PROTO) --python_out=$(PROTO) --pyi_out=$(PROTO) $(PROTO)/*.proto

clean:           ## remove what was built in the checkout
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
