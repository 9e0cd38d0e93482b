PYTHON ?= python3
BIN := .venv/bin
BASE := .venv/.installed-base
DEV := .venv/.installed-dev
TRAIN := .venv/.installed-train
SAMPLES := .venv/.installed-samples
DOCS := .venv/.installed-docs
PROGRESS := $(BIN)/python tests/support/progress.py
QUIETLY := --no-print-directory

.PHONY: help demo check test test-all docs chaos fuzz defects coverage records engines static integration slow clean

help:
	@echo 'make demo      train on 2 emulated nodes x 2 processes, from nothing'
	@echo 'make check     3 minutes on 2 cores: format, lint, types, layers, unit tests'
	@echo 'make test      half an hour on 2 cores: make check, then each backend and store, with real servers and training'
	@echo 'make test-all  over an hour: make test, many more shapes of training, faults, fuzzing, scale, timing, 15 kills'
	@echo 'make chaos     half an hour: kill a random process of a training, 100 times'
	@echo 'make fuzz      half an hour: thousands of random, malformed job files, values, logs and manifests'
	@echo 'make defects   half an hour: put fixed defects back one by one, and report which tests notice'
	@echo 'make docs      build the documentation; a broken link or a page that is nowhere listed fails'
	@echo 'make coverage  the lines and branches that make test runs'
	@echo 'make engines   what make test runs jobs on; built once (Debian-like, root)'

demo: $(TRAIN)
	$(BIN)/jobsubmit create templates/jobs/torchrun.yaml --follow

check: $(DEV)
	$(MAKE) $(QUIETLY) static
	$(BIN)/pytest -n 2

# What make check does needs nothing of what is installed and built meanwhile.
test: $(DEV)
	JOBSUBMIT_PROGRESS=log $(MAKE) $(QUIETLY) -j2 check engines
	$(MAKE) $(QUIETLY) integration

test-all: $(DEV)
	JOBSUBMIT_PROGRESS=log $(MAKE) $(QUIETLY) -j2 check engines
	$(MAKE) $(QUIETLY) $(SAMPLES)
	$(MAKE) $(QUIETLY) slow

static: $(DEV)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Without Debian and root there are no engines: then their tests are skipped, unless JOBSUBMIT_REQUIRE names them.
engines: $(DEV) $(TRAIN)
	@$(MAKE) $(QUIETLY) $(DOCS)
	@$(PROGRESS) 'MinIO' $(BIN)/python tests/support/minio_server.py
	-@$(PROGRESS) 'Slurm' $(BIN)/python tests/engines/slurm.py
	-@$(PROGRESS) 'Chromium' $(BIN)/python tests/engines/browser.py
	-@$(PROGRESS) 'network namespaces' $(BIN)/python tests/engines/namespaces.py
	-@$(PROGRESS) 'SSH hosts' $(BIN)/python tests/engines/ssh_hosts.py
	-@$(PROGRESS) 'Kubernetes and Volcano' $(BIN)/python tests/engines/kubernetes_cluster.py

integration slow coverage defects: export JOBSUBMIT_REQUIRE ?= minio,torch

integration:
	$(BIN)/pytest -n 4 -m 'integration and not slow'

slow:
	$(BIN)/pytest -n 3 -m integration

chaos: $(DEV) $(TRAIN)
	$(BIN)/python tests/support/chaos.py --kills 100

fuzz: $(DEV)
	JOBSUBMIT_FUZZ=long $(BIN)/pytest -n 2 -m '' tests/slow/test_fuzz.py tests/unit/jobs/test_damaged_records.py

defects: $(DEV) engines
	$(BIN)/python tests/bench/defects.py

# Nodes start Python without site-packages (-I -S), where nothing is measured: jobsubmit/agent counts by its unit tests.
coverage: $(DEV) engines
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -n 2 -m 'not slow'
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

docs: $(DEV) $(DOCS)
	$(BIN)/python tests/support/reference_pages.py
	$(BIN)/sphinx-build -W --keep-going -q -b html docs build/docs
	@echo 'open build/docs/index.html'

records: $(DEV) engines
	$(BIN)/python tests/support/write_records.py

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "jobsubmit needs Python 3.10 or newer: make PYTHON=python3.12 ...")'
	@$(PYTHON) -m venv .venv

$(BASE): .venv/bin/python pyproject.toml
	@$(PROGRESS) 'installing jobsubmit' $(BIN)/python -m pip install --editable .
	@$(BIN)/python -m compileall -q jobsubmit
	@touch $@

$(TRAIN): $(BASE)
	@$(PROGRESS) 'installing torch' $(BIN)/python -m pip install $$($(BIN)/python tests/support/extras.py train)
	@touch $@

$(DEV): $(BASE)
	@$(PROGRESS) 'installing what the tests need' $(BIN)/python -m pip install $$($(BIN)/python tests/support/extras.py dev)
	@touch $@

$(SAMPLES): $(BASE)
	@$(PROGRESS) 'installing what the samples need' $(BIN)/python -m pip install $$($(BIN)/python tests/support/extras.py samples)
	@touch $@

$(DOCS): $(BASE)
	@$(PROGRESS) 'installing what the documentation needs' $(BIN)/python -m pip install $$($(BIN)/python tests/support/extras.py docs)
	@touch $@

clean:
	rm -rf .venv dist .coverage* .mypy_cache .ruff_cache .pytest_cache
