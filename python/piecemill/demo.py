"""The demo: vocabulary, shards and model from the interpreter's own standard library, which every machine has."""

import os
import shutil
import sys
import sysconfig
import zlib
from pathlib import Path

from piecemill.errors import PlanError
from piecemill.files import check_writable
from piecemill.preparing import PreparePlan, prepare
from piecemill.progress import Display
from piecemill.reporting.checking import check
from piecemill.reporting.describing import describe
from piecemill.sizes import show_bytes, show_seconds
from piecemill.sources import open_source
from piecemill.tokenizers import Tokenizer
from piecemill.tokenizers.listing import show_token
from piecemill.training import TrainPlan, train_bpe

# One file in twenty is held out, by a hash of its name: the same files on every machine with this Python.
_HELD_OUT = 20


def run(out: Path, *, vocab_size: int, pretrain: bool = True) -> None:
    """Train on the standard library, save under `out`, and print what was learned."""
    _claim(out)
    library = Path(sysconfig.get_path("stdlib"))
    held_out: list[Path] = []
    training: list[Path] = []
    for path in sorted(library.rglob("*.py")):
        name = path.relative_to(library).as_posix()
        if not name.startswith("site-packages/"):
            (held_out if zlib.crc32(name.encode()) % _HELD_OUT == 0 else training).append(path)
    python = sys.version.split()[0]
    _say(
        f"The standard library of Python {python}: {len(training):,} files to learn from, {len(held_out):,} held out "
        "to try it on. (Some are empty or broken on purpose; those are skipped.)\n"
    )
    plan = TrainPlan(vocab_size=vocab_size, on_bad_document="skip")
    with Display() as display:
        tokenizer = train_bpe(training, plan=plan, on_progress=display)
        tokenizer.save(out / "tokenizer", force=True)
    gpt2_like = train_bpe(training, plan=plan, split="gpt2")
    _tell(tokenizer, gpt2_like, held_out, out)
    _prepare(training + held_out, tokenizer, out / "shards")
    if pretrain:
        _pretrain(out / "shards", out / "run")
    _say(
        f"\nNext: piecemill train YOUR_FOLDER --out tok; piecemill prepare YOUR_FOLDER --tokenizer tok --out shards\n"
        f"transformers, tokenizers and tiktoken read {out / 'tokenizer'} as it is.\n"
    )


def _claim(out: Path) -> None:
    """Mark `out` as the demo's own: what it made may be replaced by the next one, and nothing else."""
    mark = out / ".piecemill-demo"
    if os.path.lexists(out) and not mark.exists() and (not out.is_dir() or any(out.iterdir())):
        raise PlanError(f"{out}: was not made by the demo, which would replace it. Delete it, or choose another --out.")
    check_writable(out)
    out.mkdir(parents=True, exist_ok=True)
    mark.touch()


def _prepare(files: list[Path], tokenizer: Tokenizer, out: Path) -> None:
    """Shards of all files, in three splits; what is in them; and whether they are whole."""
    _say("\nThe whole library as token shards, in three splits that share no document:\n")
    if out.exists():
        shutil.rmtree(out)
    plan = PreparePlan(splits="train=85,val=10,test=5", dedup="exact", on_bad_document="skip")
    with Display() as display:
        summary = prepare(sorted(files), tokenizer, out=out, plan=plan, on_progress=display)
    _say(f"{summary}\n\n$ piecemill show {out}\n{describe(out)}\n\n$ piecemill check {out}\n{check(out)}\n")


def _pretrain(shards: Path, out: Path) -> None:
    """A small model on the shards: proven once it is better than knowing how frequent each token is."""
    from piecemill.pretraining import PretrainPlan, pretrain

    _say(
        "\nA small model learns from them, for about a minute on two cores:\n\n"
        f"$ piecemill pretrain {shards} --size tiny --out {out}\n"
    )
    if out.exists():
        shutil.rmtree(out)
    plan = PretrainPlan(size="tiny", device="cpu")
    with Display() as display:
        summary = pretrain(shards, out=out, plan=plan, on_progress=display)
    _say(f"{summary}\n\n")
    last = summary.validation[-1][1]
    better = "below" if last < summary.unigram_entropy else "NOT below"
    _say(
        f"Validation ended at {last:.2f} nats per token, {better} the {summary.unigram_entropy:.2f} of the best model "
        f"that sees no context. The curve: {out / 'curve.png'}\n"
    )


def _tell(tokenizer: Tokenizer, gpt2_like: Tokenizer, held_out: list[Path], out: Path) -> None:
    record = tokenizer.training
    seconds = sum(stage["seconds"] for stage in record["stages"])
    _say(
        f"\n{tokenizer.vocab_size:,} tokens from {show_bytes(record['corpus']['bytes'])} of Python "
        f"in {show_seconds(seconds)}, saved in {out / 'tokenizer'}\n"
    )
    source = open_source(held_out, on_bad_document="skip")
    texts = [block.text(i) for block in source.blocks() for i in range(len(block))]
    size = sum(len(text.encode()) for text in texts)
    _say(f"{len(texts):,} held-out files, {show_bytes(size)}. Bytes per token; more means shorter sequences:\n")
    for name, tokens in (
        ("this vocabulary, cl100k split", len(tokenizer.encode_batch(texts)[0])),
        ("as many tokens, GPT-2's split", len(gpt2_like.encode_batch(texts)[0])),
        ("plain bytes", size),
    ):
        _say(f"  {size / tokens:5.2f}  {name}\n")
    text = "def __init__(self, name: str) -> None:\n        self.name = name\n"
    cut = [tokenizer.bytes_of(token) for token in tokenizer.encode(text).tolist()]
    _say("\nTwo lines, cut into tokens: " + " ".join(show_token(token) for token in cut) + "\n")
    _say("\nTen tokens with the most different letters, and their ids:\n")
    interesting = sorted(
        (
            i
            for i in range(len(tokenizer.special_tokens), tokenizer.vocab_size)
            if any(byte > 32 for byte in tokenizer.bytes_of(i))
        ),
        key=lambda i: (-len(set(tokenizer.bytes_of(i))), i),
    )
    for i in interesting[:10]:
        _say(f"  {i:>6}  {show_token(tokenizer.bytes_of(i), 60)}\n")


def _say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
