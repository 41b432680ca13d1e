# Tiergate: the commands of a working day. `make` alone lists them.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
POLICY ?= policies/default.yaml
STAMP  := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help setup run test check format lint types coverage bench train clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit("Tiergate needs Python 3.11 or newer; this is %d.%d. Try: make PYTHON=python3.12" % sys.version_info[:2] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "venv is missing; on Debian and Ubuntu: apt-get install python3-venv"; exit 1; }

$(VENV)/.run: $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[local]' --constraint constraints.txt
	@touch $@

$(STAMP): $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[local,providers,train,dev]' --constraint constraints.txt
	@touch $@ $(VENV)/.run

setup: $(STAMP) ## virtual environment with everything for development
	@$(BIN)/tiergate pull smollm2 >/dev/null

run: $(VENV)/.run ## set up what is needed and start the gateway on port 4000
	@$(BIN)/tiergate pull smollm2 >/dev/null
	@exec $(BIN)/tiergate serve --policy $(POLICY) $(ARGS)

test: setup ## the whole test suite
	$(BIN)/python -m pytest $(ARGS)

check: setup format lint types coverage ## format, lint, types, tests with the coverage gate: what CI runs

format: $(STAMP)
	$(BIN)/ruff format --check .

lint: $(STAMP)
	$(BIN)/ruff check .

types: $(STAMP)
	$(BIN)/mypy

coverage: setup
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest $(ARGS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --skip-covered --show-missing

bench: setup ## the gateway beside nginx and LiteLLM, in one run (about 6 minutes)
	measure/proxy/run.sh $(ARGS)

train: setup ## train the difficulty classifier anew
	$(BIN)/python -m router.training $(ARGS)

clean: ## remove the virtual environment and everything built
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .coverage .coverage.* htmlcov
