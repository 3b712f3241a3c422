# Two commands matter: `make demo` runs the main job, `make test` passes the tests. Both set up what they need.
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

# Each process of the tests reads what the first has compiled, also where the shell tells Python to write none of it.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test test-long check style site recording dist figures image cluster cluster-down test-cluster goldens lock stubs clean

help:            ## what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

setup: $(STAMP)  ## the virtual environment with the locked dependencies

$(STAMP): requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: $(STAMP)   ## a simulated p4d.24xlarge: 56 jobs on whole GPUs, then in slices
	$(BIN)/tranche demo

# Not $(MAKE) itself in the recipe, or `make -n test` would run it.
AGAIN := $(MAKE) --no-print-directory

# Getting a cluster's programs takes minutes the first time, so that runs beside the checks and the tests that need none. The
# tests of a cluster wait for it; where no cluster can run, the last lines of the tests say so. In a new checkout one process
# compiles the tests first; else each process would. The checks use one core, so they run beside the tests, and end
# them when something is wrong. Only then are their lines shown.
test: $(STAMP) style  ## every check, and the tests, each kind once
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
test-long: test  ## the same, each test at its full length; before a release
	TRANCHE_OLDER_KUBERNETES=1 $(BIN)/python -m pytest -n 0 tests/cluster/test_shares_by_gates.py tests/cluster/test_guides.py -k "gates or without_claims"

# A new checkout begins with what mypy found in the last one: mypy compares the contents of the files.
check: $(STAMP) style $(DEPLOY) $(SITE)  ## format, lint, types, layers, prose; chart, rules, examples; links
	@[ -d .mypy_cache ] || tar xf $(CACHE)/mypy.tar 2>/dev/null || true
	$(BIN)/mypy
	@mkdir -p $(CACHE) && tar cf $(CACHE)/mypy.tar.$$$$ .mypy_cache && mv $(CACHE)/mypy.tar.$$$$ $(CACHE)/mypy.tar
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -n 0 -q tests/test_prose.py

style: $(STAMP)  ## format and lint alone, in a second
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

# What is deployed is checked again when something of it, or of the checks, has changed.
$(DEPLOY): $(STAMP) $(shell find deploy release docs/runbooks src/tranche/boot src/tranche/metrics -type f -not -name '*.pyc')
	$(BIN)/python -m release check
	@mkdir -p $(@D) && touch $@

site: $(SITE)    ## the documents as a site that can be searched, in build/site/

$(SITE): $(STAMP) $(wildcard *.md) requirements-docs.lock release/site.py $(shell find docs -type f)
	$(BIN)/python -m release site

recording: $(STAMP) ## run the session of the README's terminal on a simulated machine, and draw it
	$(BIN)/python -m release recording

dist: $(STAMP)   ## wheels, sources, the self-contained archive, bill of materials and checksums, in dist/
	$(BIN)/python -m release dist

figures: $(STAMP) ## run the benchmarks and rewrite their page; BENCH="cutting decisions" for some of them
	$(BIN)/python -m bench --write $(BENCH)

image: $(STAMP)  ## the agent's image as an OCI archive, also where there is no registry
	$(BIN)/python -m release image

cluster: $(STAMP) ## a Kubernetes cluster with simulated GPUs; NODES="p4d=p4d.24xlarge p5=p5.48xlarge" for more nodes
	$(BIN)/python -m cluster up $(NODES)

cluster-down: $(STAMP) ## remove that cluster and put the machine back as it was
	$(BIN)/python -m cluster down

test-cluster: $(STAMP) ## the tests that need a cluster; it is made and removed
	$(BIN)/python -m pytest -n 0 -m cluster tests/cluster

goldens: $(STAMP) ## rewrite the golden files from what the code prints now
	$(BIN)/python -m pytest -n 2 --update-goldens -m "not cluster"

RESOLVE := uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url

lock: $(STAMP)   ## resolve the dependencies anew (needs uv): all of them; the image's; its build's; a release's tools; the site's; a browser's; a hub's
	$(RESOLVE) --group dev --extra kubernetes --extra dashboard pyproject.toml -o requirements.lock
	$(RESOLVE) --constraints requirements.lock --extra kubernetes --extra dashboard pyproject.toml -o requirements-image.lock
	$(RESOLVE) --constraints requirements.lock --group build -o requirements-build.lock
	$(RESOLVE) --group dist -o requirements-dist.lock
	$(RESOLVE) --group oldest -o requirements-oldest.lock
	$(RESOLVE) --group infrastructure -o requirements-infrastructure.lock
	$(RESOLVE) --group docs -o requirements-docs.lock
	$(RESOLVE) --group browser -o requirements-browser.lock
	$(RESOLVE) --group hub -o requirements-hub.lock

stubs: $(STAMP)  ## make the Python of the kubelet's protocols anew
	$(BIN)/python -m grpc_tools.protoc -I $(PROTO) --python_out=$(PROTO) --pyi_out=$(PROTO) $(PROTO)/*.proto

clean:           ## remove what was made in the checkout
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
