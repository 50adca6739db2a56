# Two commands from a bare Python >= 3.11: `make demo` and `make test`. Each sets itself up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: setup demo test test-browser lint bench clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(STAMP)

demo: setup
	$(BIN)/mdtim demo

lint: setup
	$(BIN)/ruff check src tests
	$(BIN)/ruff format --check src tests
	$(BIN)/mypy

# A process for each core; what a module sets up is set up once, so its tests stay together.
test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile --cov --cov-report=term --cov-fail-under=90

# Debian's Chromium, or Playwright's own elsewhere; `make test` skips these tests without one.
test-browser: setup
	command -v chromium || command -v chromium-browser || \
		{ apt-get update && apt-get install --yes chromium; } || $(BIN)/playwright install chromium
	$(BIN)/python -m pytest -m browser

bench: setup
	$(BIN)/mdtim bench table --json

clean:
	rm -rf $(VENV) demo .coverage .mypy_cache .pytest_cache .ruff_cache
