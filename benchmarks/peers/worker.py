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
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace


class Cannot(Exception):
    """The tool cannot do this task."""


class Peer:
    """One tool. A class directly below this one is a family: `tools` are the classes below it that have a name."""

    name = version = ""  # the version is the one that is installed: what is pinned

    def __init_subclass__(cls):
        if Peer in cls.__bases__:
            cls.tools = {}
        if "name" in vars(cls):
            cls.tools[cls.name] = cls


def worker(tools):
    """Do what the command line asks of one of the tools, by name: classes, or modules with the verbs as functions."""
    tool, verb, options, answer = sys.argv[1:]
    asked = json.loads(options, object_hook=lambda made: Path(made["path"]) if "path" in made else made)
    args = SimpleNamespace(**{"site": "", "site_behind": "", **asked})
    sys.path[:0] = [str(args.site)] if args.site else []
    sys.path += [str(args.site_behind)] if args.site_behind else []
    args.out.mkdir(parents=True, exist_ok=True)
    try:
        one = tools[tool]
        told = getattr(one() if isinstance(one, type) else one, verb)(args)
    except Cannot as error:
        print(error)
        raise SystemExit(3) from None
    Path(answer).write_text(json.dumps(told))


def texts(path):
    """The documents of a folder, a Parquet file or a JSONL file, packed or not.

    Read as bytes: text mode would turn \\r\\n into \\n.
    """
    if path.is_dir():
        yield from (file.read_bytes().decode() for file in files(path))
    elif path.suffix == ".parquet":
        import pyarrow.parquet as pq

        for batch in pq.ParquetFile(path).iter_batches(1000, columns=["text"]):
            yield from batch.column("text").to_pylist()
    else:
        with {".xz": lzma.open, ".gz": gzip.open}.get(path.suffix, open)(path, "rb") as lines:
            for line in lines:
                yield json.loads(line)["text"]


def files(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


def cut(flat, ends):
    """The items of a flat array, where it is known where each ends."""
    return (flat[start:end] for start, end in pairwise([0, *ends.tolist()]))


def digest(documents):
    """Counts, and two hashes: of the documents (their ids) in order, and of the same documents sorted."""
    import numpy as np

    hashes, tokens = [], 0
    for ids in documents:
        array = np.ascontiguousarray(ids, "<u4")
        hashes.append(hashlib.blake2b(array.tobytes(), digest_size=16).digest())
        tokens += len(array)
    ordered, unordered = (hashlib.sha256(b"".join(each)).hexdigest() for each in (hashes, sorted(hashes)))
    return {"documents": len(hashes), "tokens": tokens, "ordered": ordered, "unordered": unordered}
