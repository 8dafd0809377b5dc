"""Megatron's own reader on our export: `python benchmarks/megatron.py`, about a minute once its environment is there.

5 MB of Python files are prepared and exported with `--to megatron`; megatron-core's `IndexedDataset` reads every
document back, in an environment without Piecemill, and what it read is compared with what HF `tokenizers` makes of
the same files. A difference is an error; nothing is timed.
"""

import shutil
import subprocess

from corpus import RECORDED
from pipelines import PIPELINES, YARDSTICK, install, make_inputs, prepare_command, produced, reference
from protocol import CACHE, OURS, PIECEMILL

CORPUS = "python-5mb"
READER = PIPELINES["megatron-core"]


def main() -> None:
    failed = install([READER.name, YARDSTICK])
    if READER.name in failed:
        raise SystemExit(f"{READER.name} {READER.version} does not install: {failed[READER.name]}")
    make_inputs([CORPUS])
    scratch = CACHE / "runs-megatron"
    shutil.rmtree(scratch, ignore_errors=True)
    shards, rows = scratch / "shards", scratch / "rows"
    subprocess.run(prepare_command(PIPELINES[OURS], [RECORDED[CORPUS].jsonl], out=shards), check=True)
    subprocess.run([PIECEMILL, "export", str(shards), "--to", "megatron", "--out", str(rows), "--quiet"], check=True)
    for suffix in (".bin", ".idx"):
        (rows / f"all{suffix}").rename(rows / f"tokens{suffix}")  # the name that the reader looks for
    found, wanted = produced(READER, rows), reference(CORPUS)
    if found != wanted:
        raise SystemExit(f"{READER.name} {READER.version} reads {found} from our export; expected {wanted}")
    shutil.rmtree(scratch)
    print(
        f"{READER.name} {READER.version} reads the export: {found['documents']:,} documents, "
        f"{found['tokens']:,} tokens, all as HF tokenizers makes them"
    )


if __name__ == "__main__":
    main()
