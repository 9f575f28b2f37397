# `make` or `make help` lists what there is. The first target that needs it creates .venv.

VENV := .venv
INTEROP := .venv-interop
MESH_BERT := .venv-mesh-bert
CORPUS := .venv-corpus
RECORDS := .venv-records
RUN := $(VENV)/bin/python

# The first of these that is Python 3.10 or 3.11 and can create environments. Asking the
# program itself also passes over launchers on PATH that have nothing to launch.
CANDIDATES := python3.11 python3.10 python3 python
SUPPORTED := import ensurepip, sys; sys.exit(not (3, 10) <= sys.version_info < (3, 12))
PYTHON ?= $(shell for candidate in $(CANDIDATES); do \
	if $$candidate -c '$(SUPPORTED)' >/dev/null 2>&1; then echo $$candidate; break; fi; \
	done)

# More arguments of pip where the comparison environment is made. PyTorch's own package
# index has builds without CUDA, which are smaller:
# make test-interop TORCH_ARGS='--extra-index-url https://download.pytorch.org/whl/cpu'
TORCH_ARGS ?=

# More arguments: make reproduce REPRODUCE_ARGS='--data_dir=DIR --size=2'
REPRODUCE_ARGS ?=

# More arguments of every suite: make bench BENCH_ARGS=--resume
BENCH_ARGS ?=
SUITES := pretraining finetuning inference input_pipeline corpus records tagging \
	question_features retrieval processes scaling
COMPARED := $(VENV)/.installed $(INTEROP)/.installed $(MESH_BERT)/.installed \
	$(CORPUS)/.installed $(RECORDS)/.installed

.DEFAULT_GOAL := help
.PHONY: help install demo cluster-demo reproduce test test-slow test-interop bench bench-quick lint clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

install: $(VENV)/.installed  ## create .venv with the package and everything it needs

demo: $(VENV)/.installed  ## the main job on real text: data, training, results, export
	$(RUN) -m decoupled demo --work_dir=demo_run

cluster-demo: $(VENV)/.installed  ## the same losses on 1, 2 and 4 processes
	$(RUN) -m decoupled demo --work_dir=demo_run --data_only
	$(RUN) -m decoupled cluster_demo --work_dir=demo_run

reproduce: $(VENV)/.installed  ## the paper's tables and figures at a small scale, 1 to 2 hours
	$(RUN) -m decoupled reproduce --work_dir=reproduction --jobs=2 $(REPRODUCE_ARGS)

test: $(VENV)/.installed  ## the tests, at most 10 minutes on 2 cores
	$(RUN) -m pytest -n 2 --dist loadfile --no-loadscope-reorder

test-slow: $(VENV)/.installed  ## the longer tests
	$(RUN) -m pytest -m slow

test-interop: $(VENV)/.installed $(INTEROP)/.installed  ## the same numbers as PyTorch?
	DECOUPLED_INTEROP_PYTHON=$(CURDIR)/$(INTEROP)/bin/python \
		$(RUN) -m pytest -m interop tests/interop tests/benchmarks

bench: $(COMPARED)  ## speed and memory beside the peers', about an hour
	$(call run_suites,$(BENCH_ARGS))
	$(RUN) -m benchmarks.report

bench-quick: $(COMPARED)  ## do the benchmarks run? tiny sizes
	$(call run_suites,--quick $(BENCH_ARGS))

lint: $(VENV)/.installed  ## ruff: rules and format; shellcheck
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(VENV)/bin/shellcheck tpu_scripts/*.sh

clean:  ## remove all environments, caches and build leftovers; keeps demo_run
	rm -rf $(VENV) $(INTEROP) $(MESH_BERT) $(CORPUS) $(RECORDS) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.installed: requirements.txt setup.py pyproject.toml
	$(call make_environment,$(VENV))
	$(RUN) -m pip install --requirement requirements.txt --editable .
	touch $@

$(INTEROP)/.installed: tests/interop/requirements.txt
	$(call make_environment,$(INTEROP))
	$(INTEROP)/bin/python -m pip install $(TORCH_ARGS) -r $<
	touch $@

$(MESH_BERT)/.installed: benchmarks/peers-mesh-bert.txt
	$(call make_environment,$(MESH_BERT))
	$(MESH_BERT)/bin/python -m pip install -r $<
	touch $@

$(CORPUS)/.installed: benchmarks/peers-corpus.txt
	$(call make_environment,$(CORPUS))
	$(CORPUS)/bin/python -m pip install -r $<
	touch $@

$(RECORDS)/.installed: benchmarks/peers-records.txt
	$(call make_environment,$(RECORDS))
	$(RECORDS)/bin/python -m pip install -r $<
	touch $@

# $(1): arguments of every suite.
define run_suites
@for suite in $(SUITES); do $(RUN) -m benchmarks.$$suite $(1) || exit 1; done
endef

# $(1): the folder. One that already works is kept, so that an interrupted install goes
# on where it stopped.
define make_environment
@if ! $(1)/bin/python -c '$(SUPPORTED)' >/dev/null 2>&1; then \
	if ! "$(PYTHON)" -c '$(SUPPORTED)' >/dev/null 2>&1; then \
		echo "make: no Python 3.10 or 3.11 with its venv module ('$(PYTHON)' of $(CANDIDATES))." >&2; \
		echo "make: install one (apt install python3.11-venv) or name it: make install PYTHON=/path/to/python3.11" >&2; \
		exit 1; \
	fi; \
	echo "creating $(1) with $$("$(PYTHON)" --version)"; \
	"$(PYTHON)" -m venv --clear $(1); \
fi
endef
