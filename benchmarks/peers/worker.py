"""The worker's half of the protocol: `protocol.py` starts a process and reads its answer.

    python peers/X_peers.py TOOL VERB OPTIONS ANSWER

OPTIONS is a JSON object. TOOL is looked up in the script's table, VERB is a method of it. It gets the options as
attributes and returns what the script writes to ANSWER as JSON. Exit status 3 means that the tool cannot do the
task; the reason is the last line of the output. Scripts run in the environments of the peers, so nothing here and at
the top of a script may import more than the standard library and numpy.
"""

import hashlib
import json
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

PATHS = ("out", "corpus", "tokens", "tokenizer", "input", "vocabulary", "text", "data", "published", "shards", "jsonl")


class Cannot(Exception):
    """The tool cannot do this task."""


def worker(tools: Mapping[str, Any]) -> None:
    """Do what the command line asks."""
    tool, verb, options, answer = sys.argv[1:]
    args = SimpleNamespace(**{name: _path(name, value) for name, value in json.loads(options).items()})
    if before := getattr(args, "site", ""):
        sys.path.insert(0, before)
    if behind := getattr(args, "site_behind", ""):
        sys.path.append(behind)
    if hasattr(args, "out"):
        args.out.mkdir(parents=True, exist_ok=True)
    try:
        told = getattr(tools[tool], verb)(args)
    except Cannot as error:
        print(error)
        raise SystemExit(3) from None
    Path(answer).write_text(json.dumps(told))


def _path(name: str, value: Any) -> Any:
    if name not in PATHS:
        return value
    return [Path(one) for one in value] if isinstance(value, list) else Path(value)


def documents(corpus: Path) -> Iterator[str]:
    """One string per document of a folder or a JSONL file. Read as bytes: text mode would turn \\r\\n into \\n."""
    if corpus.is_dir():
        for path in files(corpus):
            yield path.read_bytes().decode()
    else:
        with corpus.open("rb") as lines:
            for line in lines:
                yield json.loads(line)["text"]


def files(corpus: Path) -> list[Path]:
    return sorted(path for path in corpus.rglob("*") if path.is_file())


def byte_letters() -> dict[int, str]:
    """GPT-2's printable stand-in for each byte, as in `tokenizer.json` and `merges.txt`."""
    shown = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {byte: chr(byte) for byte in shown} | {byte: chr(256 + i) for i, byte in enumerate(hidden)}


def train_sentencepiece(lines: Iterable[str], prefix: str, vocab: int, **more: Any) -> None:
    """BPE with every character and line as it is, however long."""
    import sentencepiece

    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=lines,
        model_prefix=prefix,
        model_type="bpe",
        vocab_size=vocab,
        byte_fallback=True,
        character_coverage=1.0,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
        **more,
    )


def digest_rows(batches: Iterable[Any], sample: int = 20) -> dict[str, Any]:
    """How many rows there were, a hash of all of them in whatever order, and some of the rows themselves."""
    import numpy as np

    found, some = [], []
    for batch in batches:
        for row in np.asarray(batch):
            found.append(hashlib.blake2b(np.ascontiguousarray(row, "<u4").tobytes(), digest_size=16).digest())
            if len(some) < sample:
                some.append(row.tolist())
    return {"rows": len(found), "sha256": hashlib.sha256(b"".join(sorted(found))).hexdigest(), "some": some}


def watched(work: Callable[[], Any], look: Callable[[float], Any]) -> tuple[list[Any], Any]:
    """What is seen every two milliseconds while `work` goes on, and what it returns."""
    done, trace, ended = [], [], False
    thread = threading.Thread(target=lambda: done.append(work()))
    began = time.perf_counter()
    thread.start()
    while not ended:
        thread.join(0.002)
        ended = not thread.is_alive()  # checked before the last sample, so that it sees all
        trace.append(look(time.perf_counter() - began))
    return trace, done[0]


def thinned(trace: list[Any], moments: int = 150) -> list[Any]:
    """Even in time, as somebody who polls would see them."""
    import numpy as np

    chosen = np.searchsorted([seen.seconds for seen in trace], np.linspace(0, trace[-1].seconds, moments)).tolist()
    return [trace[min(at, len(trace) - 1)] for at in sorted(set(chosen))]
