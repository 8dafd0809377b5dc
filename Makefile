# `make demo` and `make test` need only python3 (>= 3.11) and cargo; everything else they set up in .venv.
PYTHON ?= python3
BIN := .venv/bin
SOURCES := Cargo.toml Cargo.lock pyproject.toml $(shell find src python -name '*.rs' -o -name '*.py' -o -name '*.pyi')

.PHONY: browser build demo docs test test-random test-tokenizers-next soak fuzz lint bench clean

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

test: lint browser
	$(BIN)/pytest -p no:randomly

# In random order, in two processes. The first lines have the seed; `pytest --randomly-seed=N` repeats it.
test-random: build
	$(BIN)/pytest -n 2

# Reports are tested in a browser; where it cannot be installed, those tests are skipped and say why.
browser:
	@command -v chromium > /dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null && \
	  { apt-get update -qq; apt-get install -y -qq --no-install-recommends chromium; } > /dev/null 2>&1; } || true

# The tests of tokenizers with the next HF `tokenizers` (1.0, its candidates included) in an environment of its own. It
# cannot train: what the trainers of 0.2x make is saved by a run in .venv first.
NEXT := .venv-next
TOKENIZER_TESTS := $(addprefix tests/test_,engines.py tokenizers.py tokenizer_json.py verify.py saving.py split_note.py)
test-tokenizers-next: build
	@test -x $(NEXT)/bin/python || $(PYTHON) -m venv $(NEXT)
	$(NEXT)/bin/python -m pip install --quiet --pre --upgrade 'tokenizers>=1.0.0rc1,<2'
	$(NEXT)/bin/python -m pip install --quiet pytest hypothesis tiktoken sentencepiece
	VIRTUAL_ENV=$(CURDIR)/$(NEXT) $(BIN)/maturin develop --release --quiet
	PIECEMILL_TRAINED=$(CURDIR)/$(NEXT)/trained $(BIN)/pytest --quiet $(TOKENIZER_TESTS)
	PIECEMILL_TRAINED=$(CURDIR)/$(NEXT)/trained $(NEXT)/bin/pytest $(TOKENIZER_TESTS)

# Kills `prepare` at 500 random places, some twice; one to three minutes for each round. Less: make soak ROUNDS=1 POINTS=60
soak: build
	PIECEMILL_SOAK=$(or $(ROUNDS),4) PIECEMILL_SOAK_POINTS=$(POINTS) $(BIN)/pytest tests/test_prepare_faults.py -k soak

# Each target of fuzz/ for so many seconds, without a sanitizer (which stable Rust does not have); needs `cargo install cargo-fuzz`
# and a C++ compiler. What it finds is a file under fuzz/artifacts/; keep it in fuzz/seeds/. Longer: make fuzz SECONDS=3600
fuzz:
	@cargo fuzz --version > /dev/null || { echo 'make fuzz needs cargo-fuzz: cargo install cargo-fuzz'; exit 1; }
	for target in encode pretoken; do \
	  mkdir -p fuzz/corpus/$$target && \
	  cargo fuzz run -s none $$target fuzz/corpus/$$target fuzz/seeds/$$target -- \
	    -max_total_time=$(or $(SECONDS),120) -max_len=600 -len_control=0 -timeout=20 || exit 1; \
	done

# The documentation as a static site, in site/; it reads docstrings without importing the package.
docs: .venv/.tools
	$(BIN)/zensical build --strict

demo: build
	$(BIN)/piecemill demo

bench: build
	$(BIN)/python benchmarks/train.py

clean:
	rm -rf .venv .venv-next target site .cache
