# A fresh machine needs Python 3.11 or later and make; everything else is installed here, into .venv.

PYTHON ?= python3
VENV ?= .venv
PRESET ?= quick
OUT ?= results
SITE ?= site
TABLE ?= leaderboard/README.md
PIP := $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: run test lint verify page image-test clean

run: $(VENV)/installed  ## the quick suite on this machine, then its table
	$(VENV)/bin/bench run --preset $(PRESET) --out $(OUT)

test: lint  ## everything that must hold
	$(VENV)/bin/pytest -n auto

verify: $(VENV)/installed  ## train a sample of the published quick runs again: do their records hold?
	$(VENV)/bin/bench verify $$(grep -rl --include='*.json' '"preset": "quick"' leaderboard/runs) --rerun --sample 1

page: $(VENV)/installed  ## the published records as a site to look at
	$(VENV)/bin/bench board --runs leaderboard/runs --out $(TABLE) --figures --html $(SITE)

lint: $(VENV)/installed-dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/hadolint Dockerfile
	$(VENV)/bin/zizmor --quiet --offline .github/workflows
	$(VENV)/bin/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml

image-test:  ## build the image and run it, by buildah and as root; without them it fails, with the reason
	tests/image.sh

$(VENV)/installed: pyproject.toml constraints.txt
	@echo "Installing into $(VENV): a minute or two, some gigabytes where torch brings CUDA."
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "tunnel-bench needs Python 3.11 or later")'
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e .
	touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(PIP) -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV)
