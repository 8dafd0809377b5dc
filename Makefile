# `make demo` and `make test` need only python3 (>= 3.11) and cargo; everything else they set up in .venv.
PYTHON ?= python3
BIN := .venv/bin
SOURCES := Cargo.toml Cargo.lock pyproject.toml $(shell find src python -name '*.rs' -o -name '*.py' -o -name '*.pyi')

.PHONY: build demo test soak lint bench clean

build: .venv/.installed

.venv/.tools: pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --quiet --group dev
	@touch $@

# `maturin develop` installs the package (editable) with its dependencies and the release build of the core.
.venv/.installed: .venv/.tools $(filter %.rs %.toml %.lock,$(SOURCES))
	VIRTUAL_ENV=$(CURDIR)/.venv $(BIN)/maturin develop --release --quiet
	@touch $@

lint: build
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/stubtest piecemill._core
	cargo fmt --check
	cargo clippy --all-targets --quiet -- -D warnings
	cargo test --no-default-features --quiet

test: lint
	$(BIN)/pytest

# Kills `prepare` at 500 random places, some twice; one to three minutes for each round. Less: make soak ROUNDS=1 POINTS=60
soak: build
	PIECEMILL_SOAK=$(or $(ROUNDS),4) PIECEMILL_SOAK_POINTS=$(POINTS) $(BIN)/pytest tests/test_prepare_faults.py -k soak

demo: build
	$(BIN)/piecemill demo

bench: build
	$(BIN)/python benchmarks/train.py

clean:
	rm -rf .venv target
