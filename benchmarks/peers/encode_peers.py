"""The libraries that `encode.py` compares: one encodes one corpus (`bulk`), or many short strings (`short`).

Options: `vocabulary` is a folder of `encode_vocabularies.py`; `text` is TEXT.bin, all documents one after another, and
TEXT.npy, where each ends, or a JSON file of strings. OUT/ids gets eight bytes of hash for each document's ids. Nothing
but the calls is timed; the page says what the passes `first`, `cold` and `warm` are, and what counts as memory.
"""

import ctypes
import hashlib
import json
import time
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from statistics import median

import numpy as np

from worker import Cannot, Peer, cut, worker

LONG = 15  # seconds of a first pass that is not repeated


class Encoder(Peer):
    """One library, called in the fastest way it offers; `encode` is what is timed.

    Making what it is given, and taking the ids of each document from what it gives back, are not timed.
    """

    loads, reads = "", "tokenizer.json"  # the callable that loads a tokenizer, and the form of vocabulary it takes
    call, threads_are = "", ""  # its method that encodes a block, and how the number of threads is called there
    options = {}  # what else that method gets
    engine = ""
    package = ""  # its name on the package index, if that is another
    environment = "peers"
    forms = ("whole", "blocks")  # the corpus in one call, or in calls of 8 MiB; of slow ones it makes no difference

    def file(self, *names):
        """The first of these forms that the vocabulary has."""
        for name in names:
            if (self.folder / name).exists():
                return self.folder / name
        raise Cannot(f"reads no such vocabulary, only {' or '.join(names)}")

    def load(self):
        module, _, name = self.loads.partition(":")
        return attrgetter(name)(import_module(module))(str(self.file(self.reads)))

    def encode(self, block):
        return getattr(self.tokenizer, self.call)(block, **self.how)

    def prepare(self, data, ends):
        return [bytes(text).decode() for text in cut(data, ends)]

    def one(self, text):
        return self.tokenizer.encode(text)

    def decode(self, ids):
        return self.tokenizer.decode(ids)

    def documents(self, result):
        return (np.asarray(ids, np.uint32) for ids in result)

    def loaded(self, args):
        """A new one with the vocabulary."""
        new = type(self)()
        new.folder, new.threads = args.vocabulary, args.threads
        new.how = self.options | ({self.threads_are: args.threads} if self.threads_are else {})
        new.about = json.loads((args.vocabulary / "about.json").read_text())
        try:
            new.tokenizer = new.load()
        except BaseException as error:  # noqa: BLE001
            # Whatever the library says against it is what the table shows; a panic in Rust is no Exception.
            raise Cannot((str(error).strip().splitlines() or [type(error).__name__])[0][:200]) from None
        return new

    def bulk(self, args):
        """Passes of a new tokenizer in a new process, of another new one, and of that one again, unless `once`."""
        data, ends = np.fromfile(f"{args.text}.bin", np.uint8), np.load(f"{args.text}.npy")
        peer = self.loaded(args)
        # Imports and the start of threads do not count.
        small = np.frombuffer(b"hello world", np.uint8)
        peer.encode(peer.prepare(small, np.array([len(small)])))
        prepared = [peer.prepare(*block) for block in blocks(data, ends, args.block if args.form == "blocks" else 0)]
        del data, peer
        ctypes.CDLL(None).malloc_trim(0)  # what the C library keeps of freed memory would hide what is taken next
        peer, digests, warm = self.loaded(args), [], {}
        first = cold = one_pass(peer, prepared, digests)
        (args.out / "ids").write_bytes(b"".join(digests))
        if first["seconds"] <= LONG:
            del peer
            peer = self.loaded(args)
            cold = one_pass(peer, prepared)
            warm = {} if args.once else one_pass(peer, prepared)
        return {"blocks": len(prepared), "first": first, "cold": cold, "warm": warm, "engine": peer.engine}

    def short(self, args):
        """Microseconds of one call, the median over strings that are all different."""
        strings = json.loads(args.text.read_text())
        peer = self.loaded(args)
        for text in strings["warm up"]:
            peer.decode(peer.one(text))
        times, decoded, digests = [], [], []
        for text in strings["asked"]:
            before = time.perf_counter_ns()
            ids = peer.one(text)
            between = time.perf_counter_ns()
            back = peer.decode(ids)
            times.append((between - before, time.perf_counter_ns() - between))
            decoded.append(back)
            digests.append(digest(ids))
        (args.out / "ids").write_bytes(b"".join(digests))
        encoding, decoding = (median(each) / 1000 for each in zip(*times, strict=True))
        digested = hashlib.sha256("\0".join(decoded).encode()).hexdigest()
        found = {"encode_microseconds": encoding, "decode_microseconds": decoding, "texts": digested}
        return {"engine": peer.engine, **found}


class FlatBytes(Encoder):
    """Ids as 4 bytes each and offsets as 8 bytes each, the first of them 0."""

    call = "encode_batch_flat"

    def documents(self, result):
        return cut(np.frombuffer(result[0], np.uint32), np.frombuffer(result[1], np.uint64)[1:])


class Piecemill(Encoder):
    name, call, threads_are = "piecemill", "encode_flat", "threads"

    def load(self):
        import piecemill

        ranks = {"pretokenizer": self.about["split"], "special_tokens": {}} if self.about["kind"] == "ranks" else {}
        file = self.file("ranks.tiktoken") if ranks else self.file("tokenizer.model", "tokenizer.json")
        tokenizer = piecemill.load_tokenizer(file, **ranks)
        self.engine = tokenizer.engine.name
        return tokenizer

    def prepare(self, data, ends):
        return np.array(data), ends

    def encode(self, block):
        return self.tokenizer.encode_flat(*block, **self.how)

    def documents(self, result):
        return cut(*result)


class Gigatoken(Encoder):
    name, version, call = "gigatoken", "0.10.0", "encode_batch over an awkward array"

    def load(self):
        from gigatoken import Tokenizer

        if self.about["gigatoken"]:
            return Tokenizer.from_tiktoken(self.file("ranks.tiktoken"), self.about["gigatoken"], {})
        if (self.folder / "tokenizer.model").exists():
            return Tokenizer.from_sentencepiece(self.file("tokenizer.model"))
        return Tokenizer.from_json(self.file("tokenizer.json").read_bytes())

    def prepare(self, data, ends):
        import awkward

        offsets = awkward.index.Index64(np.concatenate([np.zeros(1, np.int64), ends]))
        content = awkward.contents.NumpyArray(np.array(data), parameters={"__array__": "byte"})
        return awkward.Array(awkward.contents.ListOffsetArray(offsets, content, parameters={"__array__": "bytestring"}))

    def encode(self, block):
        return self.tokenizer.encode_batch(block, parallel=self.threads > 1)

    def documents(self, result):
        offsets = np.asarray(result.layout.offsets.data)
        return cut(np.asarray(result.layout.content.data)[offsets[0] :], offsets[1:] - offsets[0])

    def decode(self, ids):
        return self.tokenizer.decode(ids).decode()


class TokenizersCandidate(Encoder):
    """The candidate of 1.0 has one batch call; its encodings keep the ids in Rust until they are requested."""

    name, version, loads, call = "tokenizers-1.0rc", "1.0.0rc3", "tokenizers:Tokenizer.from_file", "encode_batch"
    package, environment, options = "tokenizers", "tokenizers-candidate", {"add_special_tokens": False}

    def documents(self, result):
        return (encoding.ids_array for encoding in result)

    def one(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids


class Splintr(FlatBytes):
    name, version, loads = "splintr-rs", "0.22.0", "splintr:from_json"

    def one(self, text):
        return self.tokenizer.encode_ordinary(text)


class Fastokens(FlatBytes):
    name, version, loads = "fastokens", "0.3.5", "fastokens:Tokenizer.from_file"

    def one(self, text):
        return self.tokenizer.encode_ordinary(text).ids


class Tiktoken(Encoder):
    name, version, call, forms = "tiktoken", "0.14.0", "encode_ordinary_batch", ("whole",)
    threads_are = "num_threads"

    def load(self):
        import tiktoken
        import tiktoken.load

        ranks = tiktoken.load.load_tiktoken_bpe(str(self.file("ranks.tiktoken")))
        about = {"pat_str": self.about["pattern"], "mergeable_ranks": ranks, "special_tokens": {}}
        return tiktoken.Encoding(self.about["name"], **about)

    def one(self, text):
        return self.tokenizer.encode_ordinary(text)


class Tokenizers(TokenizersCandidate):
    name, version, call, forms = "tokenizers", "0.23.3", "encode_batch_fast", ("whole",)
    environment = Encoder.environment

    def documents(self, result):
        return (np.array(encoding.ids, np.uint32) for encoding in result)


class SentencePiece(Encoder):
    name, version, loads, forms = "sentencepiece", "0.2.2", "sentencepiece:SentencePieceProcessor", ("whole",)
    reads, call, threads_are = "tokenizer.model", "encode", "num_threads"


def digest(ids):
    return hashlib.blake2b(np.ascontiguousarray(ids, "<u4"), digest_size=8).digest()


def blocks(data, ends, size):
    """Whole documents up to `size` bytes in each (data, ends); a longer document is alone. 0: everything in one."""
    first = 0
    while first < len(ends):
        start = ends[first - 1] if first else 0
        last = max(first + 1, int(np.searchsorted(ends, start + size, "right"))) if size else len(ends)
        yield data[start : ends[last - 1]], ends[first:last] - start
        first = last


def memory(field):
    """Bytes this process holds now (VmRSS), or held at most since peaks were last forgotten (VmHWM). Linux."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def one_pass(peer, prepared, digests=None):
    """Encode every block; returns the time of the calls, and memory beyond `base` and the result."""
    wall = cpu = 0.0
    base, growth, tokens, largest = memory("VmRSS"), 0, 0, 0
    for block in prepared:
        Path("/proc/self/clear_refs").write_text("5")  # forgets the peak
        cpu_before, before = time.process_time(), time.perf_counter()
        result = peer.encode(block)
        wall += time.perf_counter() - before
        cpu += time.process_time() - cpu_before
        peak = memory("VmHWM")
        if digests is not None:
            count = 0
            for ids in peer.documents(result):
                count += len(ids)
                digests.append(digest(ids))
            largest = max(largest, count)  # a library may keep the buffer of its largest result
            growth = max(growth, peak - base - 4 * largest)
            tokens += count
            ids = None
        result = None  # and no view of it is left, so that a library that reuses its buffers has them back
    return {"seconds": round(wall, 6), "cpu_seconds": round(cpu, 6), "growth_bytes": growth, "tokens": tokens}


if __name__ == "__main__":
    worker(Encoder.tools)
