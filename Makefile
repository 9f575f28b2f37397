# `make` or `make help` lists what there is. The first target that needs it creates .venv.

VENV := .venv
OLDEST := .venv-oldest
INTEROP := .venv-interop
COMPILER := .venv-compiler
MESH_BERT := .venv-mesh-bert
CORPUS := .venv-corpus
RUN := $(VENV)/bin/python
# Where a test ends its worker process, the run ends and names it: pytest-xdist 3.8 would wait
# for ever for the rest of that file.
PYTEST_ARGS := -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart=0
# Compiled modules are kept, whatever the environment says: without them each worker
# rewrites all tests anew in every run, and each command that a test starts the package.
test test-oldest: export PYTHONDONTWRITEBYTECODE =

# The newest of these that the machine has; PYTHON=/path/to/python names another one. Where
# it has none, uv provides the first.
CREATE := ./make_environment.sh
SUPPORTED := 3.13 3.12 3.11 3.10
# The last with wheels of TensorFlow 2.15, the oldest that the package supports.
OLDER := 3.11 3.10
# Of other software. Python 3.11 comes first: the published comparisons were measured with it,
# and each pinned release has a wheel for it.
PEERS := $(OLDER) 3.12 3.13

# More arguments of pip where the comparison environment is made. PyTorch's own package
# index has builds without CUDA, which are smaller:
# make test-interop TORCH_ARGS='--extra-index-url https://download.pytorch.org/whl/cpu'
TORCH_ARGS ?=

# More arguments: make reproduce REPRODUCE_ARGS='--data_dir=DIR --size=4'
REPRODUCE_ARGS ?=

# More arguments of every suite: make bench BENCH_ARGS=--dtypes=float32
BENCH_ARGS ?=
SUITES := pretraining finetuning_runs inference retrieval corpus
COMPARED := $(VENV)/.installed $(INTEROP)/.installed $(MESH_BERT)/.installed \
	$(CORPUS)/.installed

.DEFAULT_GOAL := help
.PHONY: help install demo reproduce study test test-oldest test-in-background test-slow test-interop bench bench-quick lint clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

install: $(VENV)/.installed  ## create .venv with the package and everything it needs

demo: $(VENV)/.installed  ## the main job on real text: data, training, results, export
	$(RUN) -m decoupled demo --work_dir=demo_run

reproduce: $(VENV)/.installed  ## claim 3 of the paper at a small scale, 1.3 to 2.5 hours
	$(RUN) -m decoupled reproduce --work_dir=reproduction $(REPRODUCE_ARGS)

# Each part goes on where it was stopped (docs/reproduction/design.md).
STUDY := $(RUN) -m decoupled reproduce --size=4 $(REPRODUCE_ARGS)
PAGES := docs/reproduction
study: $(VENV)/.installed  ## all parts of the study, some 20 hours in any number of sittings
	$(STUDY) --work_dir=study/a --document=$(PAGES)/part_a.md
	$(STUDY) --work_dir=study/b --document=$(PAGES)/part_b.md \
		--gin_file=sweeps/reproduce_fold.gin
	$(STUDY) --work_dir=study/c --document=$(PAGES)/part_c.md \
		--gin_file=sweeps/reproduce_reinvest.gin --languages=en,de,es,fr,it,ru,ar,hi,ko,vi
	$(STUDY) --size=8 --work_dir=study/d_mixed --document=$(PAGES)/part_d.md \
		--gin_file=sweeps/reproduce_words.gin --languages=en

test: $(VENV)/.installed  ## the tests, about five minutes on 2 cores
	$(RUN) -m pytest $(PYTEST_ARGS)

test-oldest: $(OLDEST)/.installed  ## the same with TensorFlow 2.15, on Python 3.11 or 3.10
	$(OLDEST)/bin/python -m pytest $(PYTEST_ARGS)

# A process of the background ignores Ctrl-C, and so do its children.
test-in-background: $(VENV)/.installed  ## the tests that send Ctrl-C, where it is ignored
	trap '' INT HUP; $(RUN) -m pytest $(PYTEST_ARGS) \
		$$(grep -rlE --include='test_*.py' 'SIGINT|SIGHUP' tests)

# With what `make test-interop` and `make test-oldest` have installed; without it, the longer
# tests that need it are left out.
test-slow: $(VENV)/.installed  ## the longer tests
	DECOUPLED_COMPILER_PYTHON=$(wildcard $(CURDIR)/$(COMPILER)/bin/python) \
		DECOUPLED_OTHER_PYTHON=$(wildcard $(CURDIR)/$(OLDEST)/bin/python) \
		$(RUN) -m pytest -m slow

test-interop: $(VENV)/.installed $(INTEROP)/.installed $(COMPILER)/.installed  ## the same numbers as PyTorch and JAX?
	DECOUPLED_INTEROP_PYTHON=$(CURDIR)/$(INTEROP)/bin/python \
		DECOUPLED_COMPILER_PYTHON=$(CURDIR)/$(COMPILER)/bin/python \
		$(RUN) -m pytest $(PYTEST_ARGS) -m 'interop and not slow' tests/interop tests/benchmarks \
		tests/training/xla

bench: $(COMPARED)  ## speed and memory beside the peers', several hours
	$(call run_suites,$(BENCH_ARGS))
	$(RUN) -m benchmarks report

bench-quick: $(COMPARED)  ## do the benchmarks run? tiny sizes
	$(call run_suites,--quick $(BENCH_ARGS))

lint: $(VENV)/.installed  ## ruff: rules and format; shellcheck
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(VENV)/bin/shellcheck *.sh .ci/run tpu_scripts/*.sh

clean:  ## remove all environments, caches and build leftovers; keeps demo_run
	rm -rf $(VENV) .venv-uv $(OLDEST) $(INTEROP) $(COMPILER) $(MESH_BERT) $(CORPUS) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.installed: requirements.txt setup.py pyproject.toml
	$(CREATE) $(VENV) $(SUPPORTED)
	$(RUN) -m pip install --requirement requirements.txt --editable .
	touch $@

$(OLDEST)/.installed: requirements.txt setup.py pyproject.toml
	$(CREATE) $(OLDEST) $(OLDER)
	$(OLDEST)/bin/python -m pip install 'tensorflow<2.16' --requirement requirements.txt --editable .
	touch $@

$(INTEROP)/.installed: tests/interop/requirements.txt
	$(CREATE) $(INTEROP) $(PEERS)
	$(INTEROP)/bin/python -m pip install $(TORCH_ARGS) -r $<
	touch $@

$(COMPILER)/.installed: tests/interop/compiler-requirements.txt
	$(CREATE) $(COMPILER) 3.13 3.12 3.11
	$(COMPILER)/bin/python -m pip install -r $<
	touch $@

$(MESH_BERT)/.installed: benchmarks/peers-mesh-bert.txt
	$(CREATE) $(MESH_BERT) $(OLDER)
	$(MESH_BERT)/bin/python -m pip install -r $<
	touch $@

$(CORPUS)/.installed: benchmarks/peers-corpus.txt
	$(CREATE) $(CORPUS) $(PEERS)
	$(CORPUS)/bin/python -m pip install -r $<
	touch $@

# $(1): arguments of every suite.
define run_suites
@for suite in $(SUITES); do $(RUN) -m benchmarks $$suite $(1) || exit 1; done
endef
