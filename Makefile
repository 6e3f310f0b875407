# A fresh machine needs Python 3.11 or later and make; everything else is installed here, into .venv.

PYTHON ?= python3
VENV ?= .venv
PRESET ?= quick
OUT ?= results
SITE ?= site
TABLE ?= leaderboard/README.md
# by the environment, because pip then uses the versions for building too
PIP := PIP_CONSTRAINT=constraints.txt $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check

.PHONY: run test lint gpu verify page pins cuda-wheel cuda-test image-test clean

run: $(VENV)/installed  ## the quick suite on this machine, then its table
	$(VENV)/bin/bench run --preset $(PRESET) --out $(OUT)

test: lint  ## everything that must hold
	$(VENV)/bin/pytest -n auto

# GPU=--rehearse tries it on a CPU, GPU='--hours 8' limits it
gpu: $(VENV)/installed  ## check the GPU, train the headline rows at the preset paper, pack the results into one archive
	$(VENV)/bin/bench gpu $(GPU)

verify: $(VENV)/installed  ## score the published weights again, and train a published quick run again: do their records hold?
	$(VENV)/bin/bench verify leaderboard/runs
	$(VENV)/bin/bench verify $$(grep -rl --include='*.json' '"preset": "quick"' leaderboard/runs) --rerun --sample 1

page: $(VENV)/installed  ## the published records as a site to look at
	$(VENV)/bin/bench board --runs leaderboard/runs --out $(TABLE) --figures --html $(SITE)
	$(VENV)/bin/python leaderboard/summary.py

# Published records name torch and Triton, so another version of them is a decision of its own: edit its line first.
pins:  ## the newest versions of everything else, installed into a fresh environment and written to constraints.txt
	$(PYTHON) -m venv --clear $(VENV)-pins
	grep -E '^(torch|triton)==' constraints.txt > $(VENV)-pins/kept.txt
	$(VENV)-pins/bin/python -m pip install --quiet --disable-pip-version-check -c $(VENV)-pins/kept.txt -e '.[dev]'
	$(VENV)-pins/bin/python -m tests.pins
	rm -rf $(VENV)-pins

lint: $(VENV)/installed-dev
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-logo --config pyproject.toml
	$(VENV)/bin/hadolint Dockerfile
	$(VENV)/bin/zizmor --quiet --offline .github/workflows
	$(VENV)/bin/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml

cuda-wheel: $(VENV)/installed-dev  ## torch's CUDA build, 0.5 GB to download, into .cuda
	$(VENV)/bin/python tests/nullgpu/build.py --wheel

cuda-test: cuda-wheel  ## the command line on torch's CUDA build, on a GPU that computes nothing
	$(VENV)/bin/python tests/nullgpu/build.py
	$(VENV)/bin/pytest -n 2 tests/nullgpu

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
