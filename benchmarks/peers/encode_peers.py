"""The libraries that `encode.py` compares: one encodes one corpus (`bulk`), or many short strings (`short`).

Options: `vocabulary` is a folder of `encode_vocabularies.py`; `text` is TEXT.bin, all documents one after another, and
TEXT.npy, where each ends, or a JSON file of strings; `ids` is the file for eight bytes of hash for each document's ids.
`bulk` first encodes eleven bytes, so that imports and the start of threads do not count. Then everything is encoded
three times, and nothing but the calls is timed:

    first   by a new tokenizer in a new process: all memory that it takes is new to the process as well
    cold    by another new tokenizer: it has seen no text, but the process has the memory that the first one gave back
    warm    by that one again, unless `once` is set

A first pass of more than 15 seconds is not repeated: there it is the cold one too. Memory is the highest resident set
during a call of the first pass beyond what was resident before it, less four bytes for each token of the largest result
so far, whose buffer a library may keep to use it again.
"""

import ctypes
import hashlib
import json
import time
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np
from worker import Cannot, worker

WARM_UP = "hello world"
LONG = 15
"Seconds of a first pass that is not repeated."


class Peer:
    """One library; `encode` is what is timed."""

    def __init__(self, folder, about, threads):
        self.folder, self.about, self.threads = folder, about, threads
        self.load()

    def file(self, *names):
        """The first of these forms that the vocabulary has."""
        for name in names:
            if (self.folder / name).exists():
                return self.folder / name
        raise Cannot(f"reads no such vocabulary, only {' or '.join(names)}")

    def prepare(self, data, ends):
        """A block as the library wants it. Not timed."""
        return texts(data, ends)

    def one(self, text):
        return self.tokenizer.encode(text)

    def decode(self, ids):
        return self.tokenizer.decode(ids)

    def documents(self, result):
        """The ids of each document. Not timed."""
        return (np.asarray(ids, np.uint32) for ids in result)


class Flat(Peer):
    """Results are one array of ids and where each document ends."""

    def documents(self, result):
        ids, ends = result
        return (ids[start:end] for start, end in pairwise([0, *ends.tolist()]))


class Piecemill(Flat):
    def load(self):
        import piecemill

        if self.about["kind"] == "ranks":
            file = self.file("ranks.tiktoken")
            self.tokenizer = piecemill.load_tokenizer(file, pretokenizer=self.about["split"], special_tokens={})
        else:
            self.tokenizer = piecemill.load_tokenizer(self.file("tokenizer.model", "tokenizer.json"))
        self.engine = self.tokenizer.engine.name

    def prepare(self, data, ends):
        return np.array(data), ends

    def encode(self, block):
        return self.tokenizer.encode_flat(*block, threads=self.threads)


class Gigatoken(Flat):
    def load(self):
        import gigatoken

        if self.about["gigatoken"]:
            file = self.file("ranks.tiktoken")
            self.tokenizer = gigatoken.Tokenizer.from_tiktoken(file, self.about["gigatoken"], {})
        elif (self.folder / "tokenizer.model").exists():
            self.tokenizer = gigatoken.Tokenizer.from_sentencepiece(self.file("tokenizer.model"))
        else:
            self.tokenizer = gigatoken.Tokenizer.from_json(self.file("tokenizer.json").read_bytes())

    def prepare(self, data, ends):
        import awkward

        offsets = awkward.index.Index64(np.concatenate([np.zeros(1, np.int64), ends]))
        content = awkward.contents.NumpyArray(np.array(data), parameters={"__array__": "byte"})
        return awkward.Array(awkward.contents.ListOffsetArray(offsets, content, parameters={"__array__": "bytestring"}))

    def encode(self, block):
        return self.tokenizer.encode_batch(block, parallel=self.threads > 1)

    def documents(self, result):
        offsets = np.asarray(result.layout.offsets.data)
        return super().documents((np.asarray(result.layout.content.data)[offsets[0] :], offsets[1:] - offsets[0]))

    def decode(self, ids):
        return self.tokenizer.decode(ids).decode()


class Tokenizers(Peer):
    def load(self):
        from tokenizers import Tokenizer

        self.tokenizer = Tokenizer.from_file(str(self.file("tokenizer.json")))

    def encode(self, block):
        return self.tokenizer.encode_batch_fast(block, add_special_tokens=False)

    def documents(self, result):
        return (np.array(encoding.ids, np.uint32) for encoding in result)

    def one(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids


class Tokenizers1(Tokenizers):
    """The candidate of 1.0 has one batch call; its encodings keep the ids in Rust until they are requested."""

    def encode(self, block):
        return self.tokenizer.encode_batch(block, add_special_tokens=False)

    def documents(self, result):
        return (encoding.ids_array for encoding in result)


class Tiktoken(Peer):
    def load(self):
        import tiktoken
        import tiktoken.load

        ranks = tiktoken.load.load_tiktoken_bpe(str(self.file("ranks.tiktoken")))
        self.tokenizer = tiktoken.Encoding(
            self.about["name"], pat_str=self.about["pattern"], mergeable_ranks=ranks, special_tokens={}
        )

    def encode(self, block):
        return self.tokenizer.encode_ordinary_batch(block, num_threads=self.threads)

    def one(self, text):
        return self.tokenizer.encode_ordinary(text)


class Splintr(Flat):
    def load(self):
        import splintr

        self.tokenizer = splintr.from_json(str(self.file("tokenizer.json")))

    def encode(self, block):
        return self.tokenizer.encode_batch_flat(block)

    def documents(self, result):
        return super().documents(from_bytes(result))

    def one(self, text):
        return self.tokenizer.encode_ordinary(text)


class Fastokens(Flat):
    def load(self):
        import fastokens

        self.tokenizer = fastokens.Tokenizer.from_file(str(self.file("tokenizer.json")))

    def encode(self, block):
        return self.tokenizer.encode_batch_flat(block)

    def documents(self, result):
        return super().documents(from_bytes(result))

    def one(self, text):
        return self.tokenizer.encode_ordinary(text).ids


class SentencePiece(Peer):
    def load(self):
        import sentencepiece

        self.tokenizer = sentencepiece.SentencePieceProcessor(model_file=str(self.file("tokenizer.model")))

    def encode(self, block):
        return self.tokenizer.encode(block, num_threads=self.threads)


TOOLS = {
    "piecemill": Piecemill,
    "gigatoken": Gigatoken,
    "tokenizers": Tokenizers,
    "tokenizers-1.0rc": Tokenizers1,
    "tiktoken": Tiktoken,
    "splintr-rs": Splintr,
    "fastokens": Fastokens,
    "sentencepiece": SentencePiece,
}


def texts(data, ends):
    return [bytes(data[start:end]).decode() for start, end in pairwise([0, *ends.tolist()])]


def from_bytes(result):
    """Ids as 4 bytes each and offsets as 8 bytes each, the first of them 0."""
    ids, offsets = result
    return np.frombuffer(ids, np.uint32), np.frombuffer(offsets, np.uint64)[1:].astype(np.int64)


def blocks(data, ends, size):
    """Whole documents up to `size` bytes in each (data, ends); a longer document is alone. 0: everything in one."""
    first = 0
    while first < len(ends):
        start = ends[first - 1] if first else 0
        last = max(first + 1, int(np.searchsorted(ends, start + size, "right"))) if size else len(ends)
        yield data[start : ends[last - 1]], ends[first:last] - start
        first = last


def memory(field):
    """Bytes this process holds now (VmRSS), or held at most since `forget_peak` (VmHWM). Linux."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def forget_peak():
    """Count peaks from now on."""
    Path("/proc/self/clear_refs").write_text("5")


def give_memory_back():
    """What the C library keeps of freed memory would hide what is taken next."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def one_pass(peer, prepared, digest=None):
    """Encode every block; returns the time of the calls, and memory beyond `base` and the result."""
    wall = cpu = 0.0
    base, growth, tokens, largest = memory("VmRSS"), 0, 0, 0
    for block in prepared:
        forget_peak()
        cpu_before, before = time.process_time(), time.perf_counter()
        result = peer.encode(block)
        wall += time.perf_counter() - before
        cpu += time.process_time() - cpu_before
        peak = memory("VmHWM")
        if digest is not None:
            count = 0
            for ids in peer.documents(result):
                count += len(ids)
                digest.append(hashlib.blake2b(np.ascontiguousarray(ids, "<u4"), digest_size=8).digest())
            largest = max(largest, count)
            growth = max(growth, peak - base - 4 * largest)
            tokens += count
            ids = None
        result = None  # and no view of it is left, so that a library that reuses its buffers has them back
    return {"seconds": round(wall, 6), "cpu_seconds": round(cpu, 6), "growth_bytes": growth, "tokens": tokens}


class Runner:
    """Runs one library; `bulk` and `short` are what the command line names."""

    def __init__(self, peer):
        self.peer = peer

    def load(self, args):
        about = json.loads((args.vocabulary / "about.json").read_text())
        before = time.perf_counter()
        try:
            peer = self.peer(args.vocabulary, about, args.threads)
        except BaseException as error:  # noqa: BLE001
            # Whatever the library says against it is what the table shows; a panic in Rust is no Exception.
            raise Cannot((str(error).strip().splitlines() or [type(error).__name__])[0][:200]) from None
        return peer, time.perf_counter() - before

    def bulk(self, args):
        data = np.fromfile(f"{args.text}.bin", np.uint8)
        ends = np.load(f"{args.text}.npy")
        peer, _ = self.load(args)
        small = np.frombuffer(WARM_UP.encode(), np.uint8)
        peer.encode(peer.prepare(small, np.array([len(small)])))
        prepared = [peer.prepare(*block) for block in blocks(data, ends, args.block if args.form == "blocks" else 0)]
        del data, peer
        give_memory_back()
        empty = memory("VmRSS")
        peer, loading = self.load(args)
        held = memory("VmRSS") - empty
        digests = []
        first = cold = one_pass(peer, prepared, digests)
        Path(args.ids).write_bytes(b"".join(digests))
        warm = {}
        if first["seconds"] <= LONG:
            del peer
            peer, _ = self.load(args)
            cold = one_pass(peer, prepared)
            warm = {} if args.once else one_pass(peer, prepared)
        return {
            "load_seconds": round(loading, 4),
            "load_bytes": held,
            "blocks": len(prepared),
            "first": first,
            "cold": cold,
            "warm": warm,
            "engine": getattr(peer, "engine", ""),
        }

    def short(self, args):
        """Microseconds of one call, the median over strings that are all different."""
        strings = json.loads(args.text.read_text())
        peer, loading = self.load(args)
        for text in strings["warm up"]:
            peer.decode(peer.one(text))
        encode_times, decode_times, decoded, digests = [], [], [], []
        for text in strings["asked"]:
            before = time.perf_counter_ns()
            ids = peer.one(text)
            between = time.perf_counter_ns()
            back = peer.decode(ids)
            after = time.perf_counter_ns()
            encode_times.append(between - before)
            decode_times.append(after - between)
            decoded.append(back)
            digests.append(hashlib.blake2b(np.asarray(ids, "<u4").tobytes(), digest_size=8).digest())
        Path(args.ids).write_bytes(b"".join(digests))
        return {
            "load_seconds": round(loading, 4),
            "encode_microseconds": median(encode_times) / 1000,
            "decode_microseconds": median(decode_times) / 1000,
            "texts": hashlib.sha256("\0".join(decoded).encode()).hexdigest(),
            "same_text": sum(text == back for text, back in zip(strings["asked"], decoded, strict=True)),
            "engine": getattr(peer, "engine", ""),
        }


if __name__ == "__main__":
    worker({name: Runner(peer) for name, peer in TOOLS.items()})
