# make demo [RIVALS=1]   compile two models on the CPU and print a table (RIVALS=1: torch.compile beside it)
# make test              lint, types, tests, and the code blocks of README and docs
# make bench [RIVALS=1]  the benchmark table, as JSON and Markdown
# make setup             .venv with the package, in place, and what development needs; the others do it first
#
# PYTHON=python3.12 picks the interpreter that .venv is made with.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
BUILT := $(VENV)/.built

.PHONY: setup test lint types pytest demo bench clean

setup: $(INSTALLED) $(BUILT)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(INSTALLED): $(BIN)/python pyproject.toml setup.py constraints-dev.txt
	$(BIN)/python -m pip install -q -c constraints-dev.txt -e '.[dev]'
	touch $(INSTALLED)

# The install has built the native extension; later changes of its C sources rebuild it alone.
$(BUILT): $(INSTALLED) $(wildcard src/tilewright/native/*.[ch])
	$(BIN)/python setup.py -q build_ext --inplace
	touch $(BUILT)

test: lint types pytest

lint: setup
	$(BIN)/ruff check .

types: setup
	$(BIN)/mypy

pytest: setup
	$(BIN)/python -m pytest -q

demo: setup
	$(BIN)/python -m examples.demo $(if $(RIVALS),--rivals)

bench: setup
	$(BIN)/python -m bench.models $(if $(RIVALS),--rivals)

clean:
	rm -rf build .mypy_cache .pytest_cache .ruff_cache .hypothesis src/tilewright/*.so
