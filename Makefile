PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
RUN := $(VENV)/.ready-run
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help setup house demo test test-slow test-fuzz test-browser test-flwr test-gpu check docs dist bench bench-peers bench-gpu clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

IMPORTED = lightning matplotlib pandas scipy torchmetrics

setup: $(READY) ## install everything into .venv, the tests' tools too

# torch and torchvision come from one index in one resolution: mixed builds do not import. Bytecode of what is imported most
# is compiled on all cores, where pip would compile four times as much on one, and of torch while pip looks for the rest;
# what does not compile is for other Pythons.
PIP_INSTALL = $(BIN)/pip install --no-compile --disable-pip-version-check
COMPILE = cd $(VENV)/lib/python*/site-packages && $(abspath $(BIN))/python -m compileall -qq -j 0 -x '/(tests|_internal)/'

define install
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13) and "fedgen needs Python 3.11 to 3.13, this is " + sys.version.split()[0] + "; try: make PYTHON=python3.11 " )'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing $(2) into $(VENV): minutes, and some 6 GB where pip takes torch's GPU build (README: the CPU build)"
	$(PIP_INSTALL) torch torchvision
	@trap wait EXIT; ($(COMPILE) numpy sympy torch torchvision) & $(PIP_INSTALL) --editable '$(1)'
	@($(COMPILE) $(IMPORTED)) || true
	@$(BIN)/python -W ignore -c 'import torchvision' 2>/dev/null || \
	{ echo "torchvision does not load with the torch in $(VENV); mend it by: $(BIN)/pip install --force-reinstall torch torchvision" >&2; exit 1; }
endef

$(RUN): pyproject.toml
	$(call install,.,what running needs)
	@touch $@

$(READY): pyproject.toml
	$(call install,.[dev],what running and testing need)
	@touch $(RUN) $@

demo: $(RUN) ## a toy that makes the point, then twenty clients of digits: train, score, select (four minutes)
	@echo "1 of 2: two Gaussian clients, 21 generators, scored in both aggregates (half a minute; checkpoints/gaussian-toy)"
	$(BIN)/fedgen reproduce gaussian-toy
	@echo "2 of 2: a GAN over twenty clients of 72 digits each (two minutes; checkpoints/demo)"
	$(BIN)/fedgen fit demo

# Whatever the environment says of bytecode: each process that a test starts would compile the package anew. A worker that
# dies fails its test once: others in its place would die of it too, or wait for ever.
PYTEST = OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --quiet --numprocesses 2 --max-worker-restart 0

test: $(READY) ## the quick tests, some of everything (three minutes on two cores)
	$(PYTEST) --dist worksteal --durations 10 -m 'not slow and not fuzz and not browser and not gpu'

# A file's tests stay in one process, where they share what they train; in the order of tests/conftest.py. Three
# processes: many of these tests wait for processes that they start.
test-slow: $(READY) ## all others: whole trainings, real federations, kills, a hundred damaged files (twelve minutes)
	$(PYTEST) --numprocesses 3 --dist loadfile --no-loadscope-reorder --durations 20 -m 'slow and not fuzz and not browser and not gpu'

# After a change of what reads files of strangers
test-fuzz: $(READY) ## a thousand damaged copies of every file that is read (minutes)
	$(PYTEST) --durations 10 -m fuzz

# chromium and its driver are Debian's; where they are missing the tests fail, and say so
test-browser: $(READY) ## reports and the search of the site in a real browser, which it installs on Debian as root (a minute)
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null || \
	{ [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && apt-get update -qq && apt-get install -y -qq chromium chromium-driver fonts-dejavu-core; } || \
	{ echo "make test-browser needs chromium and chromedriver; on Debian: apt-get install chromium chromium-driver" >&2; exit 1; }
	$(PYTEST) --dist loadfile -m browser

# The usual environment has the newest Flower that pyproject.toml allows. Its tests start commands that lie beside their
# Python, so another release has an environment of its own, which finds all other packages in the usual one.
FLWR ?= 1.41
test-flwr: private BIN := $(VENV)/flwr-$(FLWR)/bin
test-flwr: $(VENV)/flwr-$(FLWR)/.ready ## deployments with the oldest Flower that is allowed, or FLWR=1.42 (fifteen minutes)
	$(PYTEST) --numprocesses 3 --dist loadfile --no-loadscope-reorder --durations 20 tests/flower

# Flower by itself first: it is installed also where the usual environment has the same release
$(VENV)/flwr-$(FLWR)/.ready: $(READY)
	$(BIN)/python -m venv --clear --without-pip $(@D)
	cd $(@D)/lib/python*/site-packages && $(abspath $(BIN))/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' > usual.pth
	$(BIN)/pip --python $(@D)/bin/python install --quiet --disable-pip-version-check --force-reinstall --no-deps 'flwr==$(FLWR).*'
	$(BIN)/pip --python $(@D)/bin/python install --quiet --disable-pip-version-check 'flwr==$(FLWR).*'
	@touch $@

# cuBLAS repeats itself to the bit only with a workspace that is set before it starts
test-gpu: $(READY) ## what a GPU computes beside the CPU, and NCCL where there are two (minutes); fails where there is none
	@$(BIN)/python -m benchmarks.device
	CUBLAS_WORKSPACE_CONFIG=:4096:8 $(PYTEST) --dist loadfile --durations 10 -m gpu

check: $(READY) ## lint, formatting, types, rules of the source, budgets
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m benchmarks.house.rules
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.house

docs: $(VENV)/.docs ## the documentation site, with tutorials that run, in build/docs/index.html (three minutes)
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx --jobs 2 --fail-on-warning --keep-going --quiet -b html docs build/docs

$(VENV)/.docs: $(READY)
	$(PIP_INSTALL) --quiet --editable '.[docs]'
	@touch $@

dist: $(VENV)/.dist ## the package for others in dist: a source archive, and the wheel of it, both checked
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*

$(VENV)/.dist: $(RUN)
	$(BIN)/pip install --quiet --disable-pip-version-check build twine
	@touch $@

bench: $(READY) ## speed and memory, one JSON line a figure (forty minutes on a machine that does nothing else)
	@OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks

house: $(READY) ## calls, files, lines and circles of the package beside their budgets (half a minute)
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.house

bench-peers: $(READY) ## rounds beside pfl-research and Flower, simulated and deployed, which it installs (twenty minutes)
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.peers
	OMP_NUM_THREADS=1 $(BIN)/python -W ignore -m benchmarks.deployed

bench-gpu: $(READY) ## speed on a GPU and on several, beside the same peers, JSON lines (ten minutes); fails where there is none
	@$(BIN)/python -W ignore -m benchmarks.gpu

clean: ## remove the environment and caches, not runs
	rm -rf $(VENV) benchmarks/peers/.venv .pytest_cache .mypy_cache .ruff_cache
