# A fresh machine needs Python 3.11 or later and make; everything else is installed here, into .venv.

PYTHON ?= python3
BIN := .venv/bin

.PHONY: run test lint clean

run: .venv/installed  ## the quick suite on this machine, then its table
	$(BIN)/bench run --preset quick

test: .venv/installed-dev lint  ## everything that must hold
	$(BIN)/pytest

lint: .venv/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

.venv/installed-dev: .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf .venv
