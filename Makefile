# make demo   estimate a GPT-2-large training step on three GPUs (makes .venv on first use)
# make test   the whole suite
# make lint   ruff, mypy, import rules
#
# PYTHON=python3.12 picks the interpreter; PIP_FLAGS adds pip options, such as an index that
# serves a smaller CPU-only torch.

PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
PIP_FLAGS ?=
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_FLAGS)
NEEDS := pyproject.toml setup.py constraints.txt

DEMO_DEVICES := nvidia-a100-pcie-80gb nvidia-l40s nvidia-h100-sxm-80gb
DEMO := gpt2-large --train --optimizer adamw --batch 4 --seq 1024 --dtype fp32

.PHONY: demo test lint lint-format lint-code lint-types lint-layers format clean

demo: $(VENV)/.installed
	$(BIN)/predictor estimate $(DEMO) $(addprefix --device ,$(DEMO_DEVICES))

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest

lint: lint-format lint-code lint-types lint-layers

lint-format: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .

lint-code: $(VENV)/.installed-dev
	$(BIN)/ruff check .

lint-types: $(VENV)/.installed-dev
	$(BIN)/mypy

lint-layers: $(VENV)/.installed-dev
	$(BIN)/lint-imports

format: $(VENV)/.installed-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build dist *.egg-info

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed; set PYTHON=..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: $(NEEDS) | $(BIN)/python
	@echo "installing into $(VENV) (first run only)"
	$(PIP) -c constraints.txt -e .
	@touch $@

$(VENV)/.installed-dev: $(NEEDS) | $(BIN)/python
	@echo "installing into $(VENV) with the tools for development (first run only)"
	$(PIP) -c constraints.txt -e '.[train,dev]'
	@touch $@ $(VENV)/.installed
