# make demo    train a small 1-bit net and its float twin on real images (1 to 3 minutes)
# make test    all tests but the slow ones
# make help    the rest
PYTHON ?= python3
VENV   := .venv
READY  := $(VENV)/.ready
BIN    := $(VENV)/bin
NATIVE := $(wildcard native/*.cpp native/*/*.[ch])
PIP    := $(BIN)/python -m pip --disable-pip-version-check --quiet

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-sanitized mutants lint format bench clean

demo: $(READY)  ## train a small 1-bit net and its float twin on real images, side by side
	$(BIN)/onebit demo

# One process a core, at most four: most of the time goes into the starts of the processes that are tested.
test: $(READY)  ## all tests but the slow ones
	$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal

test-slow: $(READY)  ## the slow tests
	$(BIN)/python -m pytest -m slow

# The engine with the sanitizers of GCC or clang: for threads, then for addresses and undefined behaviour, with the tests
# that call it.
SANITIZED := build/sanitized
test-sanitized: $(READY)  ## the tests of the engine, built with sanitizers
	cmake -S . -B $(SANITIZED)/threads -DONEBIT_SANITIZE=thread -DONEBIT_BINDING=OFF
	cmake --build $(SANITIZED)/threads --parallel 2 --target agreement teams
	$(SANITIZED)/threads/teams 500
	$(SANITIZED)/threads/agreement 1 300
	cmake -S . -B $(SANITIZED) -DONEBIT_SANITIZE=address,undefined -DPython_EXECUTABLE=$(abspath $(BIN)/python)
	cmake --build $(SANITIZED) --parallel 2 --target _native agreement guard_pages guard_levels
	$(SANITIZED)/agreement 1 700
	$(SANITIZED)/guard_pages 1 4000
	$(SANITIZED)/guard_levels 1 2000
	LD_PRELOAD="$$($(CC) -print-file-name=libasan.so) $$($(CC) -print-file-name=libstdc++.so)" ASAN_OPTIONS=detect_leaks=0 \
	  ONEBIT_TEST_NATIVE=$$(ls $(abspath $(SANITIZED))/_native*.so) \
	  $(BIN)/python -m pytest --noconftest -n auto \
	  tests/test_engine.py tests/test_levels.py tests/test_native.py tests/test_passed_rows.py tests/test_threads.py \
	  tests/test_winograd.py

mutants: $(READY)  ## how many of some six hundred bugs made by hand the tests see
	$(BIN)/python -m tools.mutants --jobs 2

lint: $(READY)  ## ruff, mypy and clang-format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run -Werror $(NATIVE)

format: $(READY)  ## let ruff format and mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(NATIVE)

bench: $(READY)  ## what the projection, the other methods and the data cost in training; what a file costs
	$(BIN)/python benchmarks/training_step.py
	$(BIN)/python benchmarks/rivals.py
	$(BIN)/python benchmarks/input_pipeline.py
	$(BIN)/python benchmarks/packed.py

clean:  ## remove the environment and caches
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

help:
	@grep -E '^[a-z-]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | expand -t 16

# torch first, and its CPU build: PyPI's default build for Linux brings gigabytes of CUDA packages along. Looked
# for where pip is set up to look, then at PyTorch's own index. On macOS the default build is the CPU build.
TORCH      := torch==2.13.0$(if $(filter Darwin,$(shell uname)),,+cpu)
CPU_WHEELS := https://download.pytorch.org/whl/cpu
$(READY): pyproject.toml constraints.txt CMakeLists.txt $(NATIVE)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "onebit needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 ..." >&2; exit 2; }
	@echo "making $(VENV) (the first time takes 1 to 5 minutes: packages are fetched, the engine is compiled) ..."
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -c constraints.txt "$(TORCH)" 2>/dev/null \
	  || $(PIP) install -c constraints.txt --extra-index-url $(CPU_WHEELS) "$(TORCH)"
	$(PIP) install -c constraints.txt -e ".[train,cli,tensorboard,dev]"
	@touch $(READY)
