"""The worker's half of the protocol: `protocol.py` starts a process and reads its answer.

    python peers/X_peers.py TOOL VERB OPTIONS ANSWER

TOOL is the name of a class below `Peer`, VERB a method of it. It gets OPTIONS, a JSON object, as attributes; what it
returns is written to ANSWER as JSON. Exit status 3 means that the tool cannot do the task; the reason is the last line
of the output. The scripts run in the environments of the peers, so nothing here and at the top of a script may import
more than the standard library and numpy.
"""

import gzip
import hashlib
import json
import lzma
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any


class Cannot(Exception):
    """The tool cannot do this task."""


class Peer:
    """One tool. A class directly below this one is a family: `tools` are the classes below it that have a name."""

    name = ""
    version = ""
    "The one that is installed: what is pinned."
    tools: dict[str, type["Peer"]]

    def __init_subclass__(cls) -> None:
        if Peer in cls.__bases__:
            cls.tools = {}
        if "name" in vars(cls):
            cls.tools[cls.name] = cls


def worker(tools: Mapping[str, Any]) -> None:
    """Do what the command line asks."""
    tool, verb, options, answer = sys.argv[1:]
    args = SimpleNamespace(
        **json.loads(options, object_hook=lambda made: Path(made["path"]) if "path" in made else made)
    )
    sys.path[:0] = [str(before)] if (before := getattr(args, "site", "")) else []
    sys.path += [str(behind)] if (behind := getattr(args, "site_behind", "")) else []
    if hasattr(args, "out"):
        args.out.mkdir(parents=True, exist_ok=True)
    try:
        one = tools[tool]
        told = getattr(one() if isinstance(one, type) else one, verb)(args)
    except Cannot as error:
        print(error)
        raise SystemExit(3) from None
    Path(answer).write_text(json.dumps(told))


def texts(path: Path) -> Iterator[str]:
    """The documents of a folder or a JSONL file, packed or not. Read as bytes: text mode would turn \\r\\n into \\n."""
    if path.is_dir():
        yield from (file.read_bytes().decode() for file in files(path))
    else:
        with {".xz": lzma.open, ".gz": gzip.open}.get(path.suffix, open)(path, "rb") as lines:
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

    as_it_is = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False, "character_coverage": 1.0}
    made = {"model_prefix": prefix, "model_type": "bpe", "vocab_size": vocab, "byte_fallback": True, "minloglevel": 2}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), **made, **as_it_is, **more)


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
