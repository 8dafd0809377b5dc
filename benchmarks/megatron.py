"""Megatron's own reader on our export: `python benchmarks/megatron.py`, about a minute once its environment is there.

5 MB of Python files are prepared and exported with `--to megatron`; megatron-core's `IndexedDataset` reads every
document back, in an environment without Piecemill. A difference from HF `tokenizers` is an error; nothing is timed.
"""

import subprocess

from corpus import RECORDED
from prepare import PIPELINES, prepare_command, produced, reference, set_up
from protocol import OURS, PIECEMILL, scratch

CORPUS, READER = "python-5mb", PIPELINES["megatron-core"]


def main() -> None:
    reader = f"{READER.name} {READER.version}"
    if failed := set_up([READER.name], [CORPUS]):
        raise SystemExit(f"does not install: {failed}")
    with scratch("megatron-shards") as shards, scratch("megatron-rows") as rows:
        subprocess.run(prepare_command(PIPELINES[OURS], [RECORDED[CORPUS].jsonl], shards), check=True)
        export = ["export", str(shards), "--to", "megatron", "--out", str(rows), "--quiet"]
        subprocess.run([PIECEMILL, *export], check=True)
        for suffix in (".bin", ".idx"):
            (rows / f"all{suffix}").rename(rows / f"tokens{suffix}")  # the name that the reader looks for
        found, wanted = produced(READER, rows), reference(CORPUS)
    if found != wanted:
        raise SystemExit(f"{reader} reads {found} from our export; expected {wanted}")
    counts = f"{found['documents']:,} documents, {found['tokens']:,} tokens"
    print(f"{reader} reads the export: {counts}, all as HF tokenizers makes them")


if __name__ == "__main__":
    main()
