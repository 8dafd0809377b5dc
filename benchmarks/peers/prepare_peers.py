"""The pipelines that `prepare.py` compares.

`prepare` is the process that is timed: from a file of documents (JSONL) to tokens on disk in the tool's own format, as
a user's script would. Every document gets its ids and then the id of <|endoftext|>.
`digest` is not timed: it reads what was written, with the tool's own reader where it has one. Workers of the libraries
unpickle functions of this file, so what runs must not run in them.
"""

import json
import multiprocessing
import os
import time
from functools import partial
from types import SimpleNamespace

import numpy as np

from documents import EOS, Encoder, batches, lines_of, one_thread_each, shares
from worker import Peer, cut, digest, texts, worker

# One release of torch for all who need it; torchvision is pinned with it, or pip takes a newer torch for its sake.
TORCH, SENTENCEPIECE = ("torch==2.13.0", "torchvision==0.28.0"), "0.2.2"


class PipelinePeer(Peer):
    tokenizers = "0.23.3"  # HF's, in its environment
    needs = ()  # what else is installed there, beside numpy and pyarrow
    faster = ()  # libraries with which it is measured too, in a second environment
    reads_whole_files = False  # whether a worker takes whole files, so that the corpus must be given in as many

    def digest(self, args):
        return digest(self.tokens(args.out))


class Reference(PipelinePeer):
    """The answer all are compared with: HF `tokenizers`, document by document, each with its end."""

    name = "reference"

    def digest(self, args):
        encode = Encoder(args.tokenizer)
        return digest(ids for some in batches(texts(args.input[0])) for ids in encode(some))


class Piecemill(PipelinePeer):
    """Shards read by numpy alone: they are real .npy files, and that is part of the claim. Timed is the command."""

    name = "piecemill"

    def tokens(self, out):
        for path in sorted((out / "all").glob("*.tokens.npy")):
            ends = path.with_name(path.name.replace(".tokens.", ".ends."))
            yield from cut(np.load(path, mmap_mode="r"), np.load(ends))


class Gigatoken(PipelinePeer):
    """In memory, the yardstick: how fast its own `encode_batch` is on text that is already there.

    Reading and saving do not count: it gives the seconds of the call alone. It adds no <|endoftext|>, so `tokens` puts
    it at the end of each document before anything is compared.
    """

    name, version, needs = "gigatoken", "0.10.0", (f"sentencepiece=={SENTENCEPIECE}",)

    def prepare(self, args):
        import gigatoken

        given, model = [text.encode() for text in texts(args.input[0])], args.tokenizer.read_text(encoding="utf-8")
        tokenizer = gigatoken.Tokenizer.from_json(model)
        # Its first call imports and sets up for 0.3 s; a yardstick shall not be shorter for that.
        tokenizer.encode_batch(given[:1])
        start = time.perf_counter()
        layout = tokenizer.encode_batch(given).layout
        seconds = time.perf_counter() - start
        np.save(args.out / "ends.npy", np.asarray(layout.offsets.data)[1:])
        np.save(args.out / "ids.npy", np.asarray(layout.content.data))
        (args.out / "eos.json").write_text(json.dumps(json.loads(model)["model"]["vocab"][EOS]))
        return {"seconds": seconds}

    def tokens(self, out):
        eos = np.uint32(json.loads((out / "eos.json").read_text()))
        return (np.append(ids, eos) for ids in cut(np.load(out / "ids.npy", mmap_mode="r"), np.load(out / "ends.npy")))


class Datasets(PipelinePeer):
    """Hugging Face `datasets`: load_dataset, then map in batches, in as many processes as there are workers."""

    name, version, faster = "datasets", "5.2.0", ("tokenizers-1.0", "gigatoken")

    def prepare(self, args):
        one_thread_each()
        os.environ |= {"HF_HOME": str(args.out / "hf"), "HF_HUB_OFFLINE": "1", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}
        from datasets import Features, List, Value, load_dataset

        rows = load_dataset("json", data_files=str(args.input[0]), split="train", cache_dir=str(args.out / "cache"))
        encode = Encoder(args.tokenizer, args.library)
        # Told the features, it need not guess; and two bytes a token instead of eight.
        told = {"features": Features({"ids": List(Value("uint16"))}), "remove_columns": rows.column_names}
        how = {"batched": True, "num_proc": args.workers, "cache_file_name": str(args.out / "tokens.arrow")}
        rows.map(lambda given: {"ids": encode(given)}, input_columns=["text"], **how, **told)

    def tokens(self, out):
        import pyarrow as pa

        for path in sorted(out.glob("tokens*.arrow")):
            with pa.memory_map(str(path)) as memory:
                for batch in pa.ipc.open_stream(memory):
                    yield from (ids.values.to_numpy() for ids in batch.column("ids"))


class InPlaceOfTokenizer:
    """What datatrove's step asks of a tokenizer: batches, and how many entries there are."""

    def __init__(self, path, library):
        self._encode = Encoder(path, library)

    def get_vocab_size(self):
        return 2**16  # two bytes for an id

    def encode_batch(self, given):
        return [SimpleNamespace(ids=ids.tolist()) for ids in self._encode(given)]


class Datatrove(PipelinePeer):
    """Its reader, its tokenizer step and its local executor, a task for each worker.

    A task reads whole files, so it is given the corpus in as many files as there are workers; cutting it is not timed.
    Another library than HF `tokenizers` takes the place of the tokenizer in its step. It cannot run with 1.0: it
    imports `tokenizers.processors`, which that does not have.
    """

    name, version, needs, faster, reads_whole_files = "datatrove", "0.10.1", ("orjson",), ("gigatoken",), True

    def prepare(self, args):
        one_thread_each()
        from datatrove.executor import LocalPipelineExecutor
        from datatrove.pipeline.readers import JsonlReader
        from datatrove.pipeline.tokens import DocumentTokenizer

        class OtherTokenizer(DocumentTokenizer):
            # No `cached_property`, as theirs is: the lock of one in a class that is pickled by value hangs the workers.
            tokenizer = property(lambda self: other)

        other = InPlaceOfTokenizer(args.tokenizer, args.library)
        step = DocumentTokenizer if args.library == "tokenizers" else OtherTokenizer
        files, tokenizer = args.out / "files.txt", {"tokenizer_name_or_path": str(args.tokenizer), "eos_token": EOS}
        files.write_text("".join(f"{path.name}\n" for path in args.input))
        plain = {"local_working_dir": None, "shuffle_documents": False, "save_final_metadata": False}
        steps = [
            JsonlReader(str(args.input[0].parent), paths_file=str(files), text_key="text", doc_progress=False),
            step(str(args.out / "tokens"), **tokenizer, batch_size=1000, **plain),
        ]
        how = {"tasks": len(args.input), "workers": args.workers, "logging_dir": str(args.out / "logs")}
        LocalPipelineExecutor(pipeline=steps, **how).run()

    def tokens(self, out):
        for path in sorted((out / "tokens").glob("*.ds")):
            yield from cut(
                np.memmap(path, np.uint16, "r"), np.fromfile(path.with_name(f"{path.name}.index"), np.uint64)
            )


_encode = None


def _start(tokenizer, library):
    global _encode
    _encode = Encoder(tokenizer, library)


def _line(line):
    return _encode([json.loads(line)["text"]])[0]


class MegatronCore(PipelinePeer):
    """The steps of its `tools/preprocess_data.py` with megatron-core's own builder.

    The script itself is not in the package. What it does: a pool of workers is fed lines 32 at a time, each encodes
    one document and appends the end, and the parent adds the documents to the .bin and .idx in order.
    """

    name, version, faster = "megatron-core", "0.16.1", ("tokenizers-1.0", "gigatoken")
    needs = TORCH[:1]

    def prepare(self, args):
        one_thread_each()
        from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

        builder = IndexedDatasetBuilder(str(args.out / "tokens.bin"), dtype=np.uint16)
        pool = multiprocessing.Pool(args.workers, _start, (args.tokenizer, args.library))
        with pool, args.input[0].open("rb") as lines:
            for ids in pool.imap(_line, lines, 32):
                builder.add_document(ids, [len(ids)])
        builder.finalize(str(args.out / "tokens.idx"))

    def tokens(self, out):
        from megatron.core.datasets.indexed_dataset import IndexedDataset

        dataset = IndexedDataset(str(out / "tokens"))
        return (dataset[number] for number in range(len(dataset)))


def _documents(share, tokenizer):
    # One for each process, kept from part to part: it takes a while to load.
    if _encode is None:
        _start(tokenizer, "tokenizers")
    for lines in batches(lines_of(share)):
        yield from _encode([json.loads(line)["text"] for line in lines])


class Litdata(PipelinePeer):
    """`optimize` over parts of the file, a process for each worker; an item is the ids of a document."""

    name, version, needs = "litdata", "0.2.76", TORCH

    def prepare(self, args):
        one_thread_each()
        from litdata import optimize

        # More parts than workers, so that none waits long for the other; in order all the same.
        parts = shares(args.input[0], 4 * args.workers)
        how = {"num_workers": args.workers, "chunk_bytes": "64MB", "verbose": False}
        optimize(partial(_documents, tokenizer=args.tokenizer), parts, output_dir=str(args.out / "tokens"), **how)

    def tokens(self, out):
        from litdata import StreamingDataset

        dataset = StreamingDataset(str(out / "tokens"))
        return (dataset[number] for number in range(len(dataset)))


def _write(folder, share, tokenizer):
    from streaming import MDSWriter

    with MDSWriter(out=folder, columns={"ids": "ndarray:uint16"}) as writer:
        for ids in _documents(share, tokenizer):
            writer.write({"ids": ids})


class MosaicmlStreaming(PipelinePeer):
    """An MDSWriter in each of the worker processes over its share, then one merged index."""

    name, version, needs = "mosaicml-streaming", "0.13.0", TORCH
    tokenizers = "0.22.2"  # it needs a transformers before 5

    def prepare(self, args):
        one_thread_each()
        from streaming.base.util import merge_index

        parts = enumerate(shares(args.input[0], args.workers))
        work = [(str(args.out / "tokens" / f"{number:02}"), share, args.tokenizer) for number, share in parts]
        with multiprocessing.Pool(args.workers) as pool:
            pool.starmap(_write, work, 1)
        merge_index(str(args.out / "tokens"))

    def tokens(self, out):
        from streaming import LocalDataset

        dataset = LocalDataset(str(out / "tokens"))
        return (dataset[number]["ids"] for number in range(len(dataset)))


if __name__ == "__main__":
    worker(PipelinePeer.tools)
