"""The demo: vocabulary, shards and batches from the interpreter's own standard library, which every machine has.

Where torch and transformers are installed, a small model learns from the shards too.
"""

import importlib.util
import os
import shutil
import sys
import sysconfig
import time
import zlib
from pathlib import Path

from piecemill.errors import PlanError
from piecemill.files import check_writable
from piecemill.loading import batches
from piecemill.preparing import PreparePlan, prepare
from piecemill.progress import Display
from piecemill.reporting.checking import check
from piecemill.reporting.reports import report
from piecemill.shards import open_shards
from piecemill.sizes import show_bytes, show_seconds
from piecemill.sources import open_source
from piecemill.tokenizers import Tokenizer
from piecemill.tokenizers.listing import show_token
from piecemill.training import TrainPlan, train_bpe

# One file in twenty is held out, by a hash of its name: the same files on every machine with this Python.
_HELD_OUT = 20
_PRETRAIN_NEEDS = ("torch", "transformers", "safetensors", "matplotlib")


def run(out: Path, *, vocab_size: int, pretrain: bool = True) -> None:
    """Run all steps on the standard library, save under `out`, and print what each step made."""
    _claim(out)
    library = Path(sysconfig.get_path("stdlib"))
    held_out: list[Path] = []
    training: list[Path] = []
    for path in sorted(library.rglob("*.py")):
        name = path.relative_to(library).as_posix()
        if not name.startswith("site-packages/"):
            (held_out if zlib.crc32(name.encode()) % _HELD_OUT == 0 else training).append(path)
    _say(
        f"The standard library of Python {sys.version.split()[0]}: {len(training):,} files to learn from, "
        f"{len(held_out):,} held out. Empty and broken files are skipped.\n"
    )
    tokenizer = _train(training, held_out, out / "tokenizer", vocab_size)
    _prepare(training + held_out, tokenizer, out / "shards")
    _load(out / "shards")
    _report(out / "shards", out / "report.html")
    if pretrain:
        _pretrain(out / "shards", out / "run")
    _say(
        "\nNext, with your own files:\n"
        "  piecemill train YOUR_FOLDER --out tok && piecemill prepare YOUR_FOLDER --tokenizer tok --out shards\n"
    )


def _claim(out: Path) -> None:
    """Mark `out` as the demo's own: what it made may be replaced by the next one, and nothing else."""
    mark = out / ".piecemill-demo"
    if os.path.lexists(out) and not mark.exists() and (not out.is_dir() or any(out.iterdir())):
        raise PlanError(f"{out}: was not made by the demo, which would replace it. Delete it, or choose another --out.")
    check_writable(out)
    out.mkdir(parents=True, exist_ok=True)
    mark.touch()


def _step(title: str, command: str) -> None:
    _say(f"\n== {title}\n$ {command}\n")


def _train(training: list[Path], held_out: list[Path], out: Path, vocab_size: int) -> Tokenizer:
    """A vocabulary; how well it compresses files that it has not seen; and a sample."""
    _step("Train a vocabulary", f"piecemill train LIBRARY --vocab-size {vocab_size} --out {out}")
    plan = TrainPlan(vocab_size=vocab_size, on_bad_document="skip")
    with Display() as display:
        tokenizer = train_bpe(training, plan=plan, on_progress=display)
        tokenizer.save(out, force=True)
    record = tokenizer.training
    seconds = sum(stage["seconds"] for stage in record["stages"])
    _say(
        f"{tokenizer.vocab_size:,} tokens from {show_bytes(record['corpus']['bytes'])} in {show_seconds(seconds)}. "
        "tokenizers, transformers and tiktoken read the folder too.\n"
    )
    source = open_source(held_out, on_bad_document="skip")
    texts = [block.text(i) for block in source.blocks() for i in range(len(block))]
    size = sum(len(text.encode()) for text in texts)
    by_gpt2 = train_bpe(training, plan=plan, pretokenizer="gpt2")
    _say(f"Bytes per token on {len(texts):,} held-out files, {show_bytes(size)}; more means shorter sequences:\n")
    for name, tokens in (
        ("this vocabulary, pretokenizer cl100k", len(tokenizer.encode_batch(texts)[0])),
        ("as many tokens, pretokenizer gpt2", len(by_gpt2.encode_batch(texts)[0])),
        ("plain bytes", size),
    ):
        _say(f"  {size / tokens:5.2f}  {name}\n")
    text = "def __init__(self, name: str) -> None:\n        self.name = name\n"
    cut = [tokenizer.bytes_of(token) for token in tokenizer.encode(text).tolist()]
    _say("Two lines as tokens: " + " ".join(show_token(token) for token in cut) + "\n")
    return tokenizer


def _prepare(files: list[Path], tokenizer: Tokenizer, out: Path) -> None:
    """Token shards of all files, in three splits, checked."""
    _step(
        "Prepare token shards, in three splits that share no document",
        f"piecemill prepare LIBRARY --tokenizer {out.parent / 'tokenizer'} --out {out} "
        "--splits train=85,val=10,test=5 --dedup exact",
    )
    if out.exists():
        shutil.rmtree(out)
    plan = PreparePlan(splits="train=85,val=10,test=5", dedup="exact", on_bad_document="skip")
    with Display() as display:
        summary = prepare(sorted(files), tokenizer, out=out, plan=plan, on_progress=display)
    _say(f"{summary}\n")
    _step("Check every byte of them", f"piecemill check {out}")
    _say(f"{check(out)}\n")


def _load(shards: Path) -> None:
    """One epoch of shuffled batches as numpy arrays."""
    _step("Load one epoch of shuffled batches", f"batches(open_shards({str(shards)!r}, split='train'), ...)")
    rows = open_shards(shards, split="train")
    with batches(rows, window=512, batch_size=8, seed=1, epochs=1) as fed:
        started = time.perf_counter()
        count = sum(1 for _ in fed)
        seconds = time.perf_counter() - started
    _say(f"{count:,} batches of 8 x 512 input_ids and labels, {rows.tokens:,} tokens, in {1000 * seconds:.0f} ms\n")


def _report(shards: Path, out: Path) -> None:
    """A page about the vocabulary and the corpus."""
    _step("Report on the vocabulary and the corpus; open it in a browser", f"piecemill report {shards} --out {out}")
    _say(f"{report(shards, out=out)}\n")


def _pretrain(shards: Path, out: Path) -> None:
    """A small model on the shards: proven once it is better than knowing how frequent each token is."""
    command = f"piecemill pretrain {shards} --size tiny --out {out}"
    missing = [name for name in _PRETRAIN_NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        _say(
            f"\n== Not run: training a small model, which needs {', '.join(missing)}\n"
            f"$ {sys.executable} -m pip install {' '.join(missing)}\n$ {command}\n"
        )
        return
    from piecemill.pretraining import PretrainPlan, pretrain

    _step("Train a small model on them, about a minute on two cores", command)
    if out.exists():
        shutil.rmtree(out)
    plan = PretrainPlan(size="tiny", device="cpu")
    with Display() as display:
        summary = pretrain(shards, out=out, plan=plan, on_progress=display)
    last = summary.validation[-1][1]
    better = "below" if last < summary.unigram_entropy else "NOT below"
    _say(
        f"{summary}\n"
        f"Validation ended at {last:.2f} nats per token, {better} the {summary.unigram_entropy:.2f} of the best model "
        f"that sees no context. The curve: {out / 'curve.png'}\n"
    )


def _say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
