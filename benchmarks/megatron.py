"""Megatron's own reader on our export: `python benchmarks/megatron.py`, about a minute once its environment is there.

5 MB of Python files are prepared and exported with `--to megatron`; megatron-core's `IndexedDataset` reads every
document back, in an environment without Piecemill, and what it read is compared with what HF `tokenizers` makes of
the same files. A difference is an error; nothing is timed.
"""

import shutil
import subprocess
import sys
from pathlib import Path

from corpus import CACHE
from pipelines import OURS, PIPELINES, install, prepare_command, produced
from prepare import HERE, TOKENIZER, WORKERS, Question, reference, train_tokenizer

READER = PIPELINES["megatron-core"]
SCRATCH = CACHE / "runs-megatron"


def exported(question: Question) -> Path:
    """The corpus as Megatron's two files, under the name that the reader's script looks for."""
    shutil.rmtree(SCRATCH, ignore_errors=True)
    shards, rows = SCRATCH / "shards", SCRATCH / "rows"
    how = {"tokenizer": TOKENIZER, "workers": WORKERS, "memory": question.memory, "out": shards}
    command = prepare_command(PIPELINES[OURS], inputs=[question.input], **how)
    subprocess.run(command, check=True)
    piecemill = command[0]
    subprocess.run([piecemill, "export", str(shards), "--to", "megatron", "--out", str(rows), "--quiet"], check=True)
    for suffix in (".bin", ".idx"):
        (rows / f"all{suffix}").rename(rows / f"tokens{suffix}")
    return rows


def main() -> None:
    failed = install([READER.name, "gigatoken"])
    if READER.name in failed:
        raise SystemExit(f"{READER.name} {READER.version} does not install: {failed[READER.name]}")
    question = Question("megatron", "python-5mb", "jsonl", "2GiB")
    for name in ("python-127mb", question.corpus):
        subprocess.run([sys.executable, str(HERE / "corpus.py"), name], check=True)
    train_tokenizer()
    found, wanted = produced(READER, exported(question)), reference(question)
    if found != wanted:
        raise SystemExit(f"{READER.name} {READER.version} reads {found} from our export; expected {wanted}")
    shutil.rmtree(SCRATCH)
    print(
        f"{READER.name} {READER.version} reads the export: {found['documents']:,} documents, "
        f"{found['tokens']:,} tokens, all as HF tokenizers makes them"
    )


if __name__ == "__main__":
    main()
