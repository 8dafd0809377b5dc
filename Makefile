# `make demo` and `make test` need only python3 (>= 3.11) and cargo; everything else they set up in .venv, in two layers:
# the package with its dependencies (350 MB, all that the demo needs), and the tools and peers of the tests (6 GB).
PYTHON ?= python3
BIN := .venv/bin
# Runs a command and shows its output only if it fails.
QUIETLY := sh -c 'log=$$("$$@" 2>&1) || { printf "%s\n" "$$log"; exit 1; }' quietly

.PHONY: browser build tools wheel demo docs test test-random test-tokenizers-next soak fuzz lint bench clean

build: .venv/.installed
tools: build .venv/.tools

# `maturin develop` installs the package (editable) with its dependencies and the core, built with the profile $(1). The
# core is built while the dependencies are installed: each uses one processor for long.
define install
	@command -v cargo > /dev/null || { echo 'The core is written in Rust and needs cargo: install Rust'; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed, and $(PYTHON) is older: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@echo 'Setting up .venv and building the core: one to two minutes'
	@test -x $(BIN)/pip || $(QUIETLY) $(PYTHON) -m venv .venv
	@$(QUIETLY) $(BIN)/python -m pip install 'maturin>=1.9,<2'
	@$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"], \
	  sep="\n")' > .venv/dependencies.txt
	@export VIRTUAL_ENV=$(CURDIR)/.venv; $(QUIETLY) $(BIN)/maturin develop --profile $(1) --skip-install & \
	  $(QUIETLY) $(BIN)/python -m pip install --no-compile -r .venv/dependencies.txt; installed=$$?; \
	  wait $$! && [ $$installed = 0 ] && $(QUIETLY) $(BIN)/maturin develop --profile $(1)
	@touch $@
endef
SOURCES := pyproject.toml Cargo.toml Cargo.lock $(shell find src -name '*.rs')

.venv/.installed: $(SOURCES)
	$(call install,release)

.venv/.demo: $(SOURCES)
	$(call install,demo)

.venv/.tools: pyproject.toml | .venv/.installed
	@echo 'Installing the tools and peers of the tests, torch among them: some gigabytes'
	@$(QUIETLY) $(BIN)/python -m pip install --upgrade 'pip>=25.1'
	@$(QUIETLY) $(BIN)/python -m pip install --group tools
	@touch $@

# One wheel for all Pythons from 3.11 on; where it is installed, cargo is not needed.
wheel: build
	@$(QUIETLY) $(BIN)/maturin build --release --out dist
	@ls dist/*.whl

lint: tools
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/stubtest piecemill._core
	cargo fmt --check
	cargo clippy --all-targets --quiet -- -D warnings
	cargo test --no-default-features --quiet

test: lint browser
	$(BIN)/pytest -n 2 -p no:randomly

# In random order. The first lines have the seed; `pytest --randomly-seed=N` repeats it.
test-random: tools
	$(BIN)/pytest -n 2

# Reports are tested in a browser; where it cannot be installed, those tests are skipped and say why.
browser:
	@command -v chromium > /dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null && \
	  { apt-get update -qq; apt-get install -y -qq --no-install-recommends chromium; } > /dev/null 2>&1; } || true

# The tests of tokenizers with the next HF `tokenizers` (1.0, its candidates included) in a separate environment. It
# cannot train: what the trainers of 0.2x make is saved by a run in .venv first.
NEXT := .venv-next
TOKENIZER_TESTS := $(addprefix tests/test_,engines.py tokenizers.py tokenizer_json.py verify.py saving.py pretokenizer_note.py)
test-tokenizers-next: tools
	@test -x $(NEXT)/bin/pip || $(QUIETLY) $(PYTHON) -m venv $(NEXT)
	@$(QUIETLY) $(NEXT)/bin/python -m pip install --pre --upgrade 'tokenizers>=1.0.0rc1,<2'
	@$(QUIETLY) $(NEXT)/bin/python -m pip install pytest hypothesis tiktoken sentencepiece
	@VIRTUAL_ENV=$(CURDIR)/$(NEXT) $(QUIETLY) $(BIN)/maturin develop --release
	PIECEMILL_TRAINED=$(CURDIR)/$(NEXT)/trained $(BIN)/pytest --quiet $(TOKENIZER_TESTS)
	PIECEMILL_TRAINED=$(CURDIR)/$(NEXT)/trained $(NEXT)/bin/pytest $(TOKENIZER_TESTS)

# Kills `prepare` at 500 random places, some twice; one to three minutes for each round. Less: make soak ROUNDS=1 POINTS=60
soak: tools
	PIECEMILL_SOAK=$(or $(ROUNDS),4) PIECEMILL_SOAK_POINTS=$(POINTS) $(BIN)/pytest tests/test_prepare_faults.py -k soak

# Each target of fuzz/ for two minutes, without a sanitizer (which stable Rust does not have); needs `cargo install cargo-fuzz`
# and a C++ compiler. What it finds is a file under fuzz/artifacts/; keep it in fuzz/seeds/. Longer: make fuzz SECONDS=3600
fuzz:
	@cargo fuzz --version > /dev/null || { echo 'make fuzz needs cargo-fuzz: cargo install cargo-fuzz'; exit 1; }
	for target in encode pretoken; do \
	  mkdir -p fuzz/corpus/$$target && \
	  cargo fuzz run -s none $$target fuzz/corpus/$$target fuzz/seeds/$$target -- \
	    -max_total_time=$(or $(SECONDS),120) -max_len=600 -len_control=0 -timeout=20 || exit 1; \
	done

# The documentation as a static site, in site/; it reads docstrings without importing the package.
docs: tools
	$(BIN)/zensical build --strict

# Without a release build, one that compiles on all cores: `prepare` and `train` were within 4% of the release build.
demo: $(if $(wildcard .venv/.installed),build,.venv/.demo)
	$(BIN)/piecemill demo

bench: tools
	$(BIN)/python benchmarks/train.py

clean:
	rm -rf .venv .venv-next dist target site .cache
