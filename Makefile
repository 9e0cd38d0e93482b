PYTHON ?= python3
BIN := .venv/bin
TRAIN := .venv/.installed-train
DEV := .venv/.installed-dev
SAMPLES := .venv/.installed-samples

.PHONY: help demo test engines check chaos clean

help:
	@echo 'make demo    train on 2 emulated nodes x 2 processes, from nothing'
	@echo 'make test    everything: lint, types, layers, unit tests, real MinIO, Slurm, Kubernetes + Volcano, training'
	@echo 'make engines what make test runs jobs on; built once (Debian-like, root)'
	@echo 'make chaos   100 kills of whatever a training consists of; half an hour'
	@echo 'make check   the fast half: format, lint, types, layers, unit tests'

demo: $(TRAIN)
	$(BIN)/jobsubmit create templates/jobs/torchrun.yaml --follow

test: $(DEV) $(TRAIN) $(SAMPLES)
	$(MAKE) --no-print-directory static
	$(MAKE) --no-print-directory engines
	JOBSUBMIT_REQUIRE="$${JOBSUBMIT_REQUIRE-minio,torch}" $(BIN)/pytest -n 2

# Without Debian and root there are no engines: then their tests are skipped, unless JOBSUBMIT_REQUIRE names them.
engines: $(DEV)
	$(BIN)/python tests/minio_server.py
	-$(BIN)/python tests/engines/slurm.py
	-$(BIN)/python tests/engines/kubernetes_cluster.py
	-$(BIN)/python tests/engines/browser.py

chaos: $(DEV) $(TRAIN)
	$(BIN)/python tests/chaos.py --kills 100

check: $(DEV)
	$(MAKE) --no-print-directory static
	$(BIN)/pytest tests/unit tests/golden

.PHONY: static
static:
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "jobsubmit needs Python 3.10 or newer: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv .venv

$(TRAIN): .venv/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[train]'
	$(BIN)/python -m compileall -q jobsubmit
	@touch $@

$(DEV): .venv/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	$(BIN)/python -m compileall -q jobsubmit
	@touch $@

$(SAMPLES): .venv/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[samples]'
	@touch $@

clean:
	rm -rf .venv dist .mypy_cache .ruff_cache .pytest_cache
