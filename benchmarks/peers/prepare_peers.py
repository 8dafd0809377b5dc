"""The pipelines that `prepare.py` compares.

`prepare` is the process that is timed: from a file of documents (JSONL, or Parquet with a column `text`) to tokens
on disk in the tool's own format, as a user's script would. Every document gets its ids and then the id of
<|endoftext|>. `digest` is not timed: it reads what was written, with the tool's own reader where it has one, and counts
documents and tokens and hashes them, so that answers can be compared.

What several pipelines and `strategy_peers.py` need is in `documents.py`. Workers of the libraries unpickle functions of
this file, so what runs must not run in them.
"""

import json
import multiprocessing
import os
import time
from functools import partial
from types import SimpleNamespace

from documents import EOS, Digest, Encoder, batches, one_thread_each, read_share, shares
from worker import worker


class Pipeline:
    def digest(self, args):
        digest = Digest()
        for ids in self.tokens(args.out):
            digest.add(ids)
        return digest.summary()


class Reference:
    """The answer all are compared with: HF `tokenizers`, document by document, each with its end."""

    def digest(self, args):
        from tokenizers import Tokenizer

        loaded = Tokenizer.from_file(str(args.tokenizer))
        eos, digest = loaded.token_to_id(EOS), Digest()
        for texts in batches(read_share(shares(args.input[0], 1)[0])):
            # Without places in the text, which nobody asks for here: 2 GB would take most of an hour with them. On the
            # 127 MB both calls gave the same digest.
            for encoding in loaded.encode_batch_fast(texts, add_special_tokens=False):
                digest.add([*encoding.ids, eos])
        return digest.summary()


class Piecemill(Pipeline):
    """Shards read by numpy alone: they are real .npy files, and that is part of the claim. Timed is the command."""

    def tokens(self, out):
        import numpy as np

        for path in sorted((out / "all").glob("*.tokens.npy")):
            ids, start = np.load(path, mmap_mode="r"), 0
            for end in np.load(path.with_name(path.name.replace(".tokens.", ".ends."))).tolist():
                yield ids[start:end]
                start = end


class Gigatoken(Pipeline):
    """In memory, the yardstick: how fast its own `encode_batch` is on text that is already there.

    Reading and saving do not count: it gives the seconds of the call alone. It adds no <|endoftext|>, so `tokens` puts
    it at the end of each document before anything is compared.
    """

    def prepare(self, args):
        import gigatoken
        import numpy as np

        texts = [text.encode() for text in read_share(shares(args.input[0], 1)[0])]
        tokenizer = gigatoken.Tokenizer.from_json(args.tokenizer.read_text(encoding="utf-8"))
        # Its first call imports and sets up for 0.3 s; a yardstick shall not be shorter for that.
        tokenizer.encode_batch(texts[:1])
        start = time.perf_counter()
        layout = tokenizer.encode_batch(texts).layout
        seconds = time.perf_counter() - start
        np.save(args.out / "offsets.npy", np.asarray(layout.offsets.data))
        np.save(args.out / "ids.npy", np.asarray(layout.content.data))
        eos = json.loads(args.tokenizer.read_text(encoding="utf-8"))["model"]["vocab"][EOS]
        (args.out / "eos.json").write_text(json.dumps(eos))
        return {"seconds": seconds}

    def tokens(self, out):
        import numpy as np

        eos = np.uint32(json.loads((out / "eos.json").read_text()))
        ids, offsets = np.load(out / "ids.npy", mmap_mode="r"), np.load(out / "offsets.npy")
        for start, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
            yield np.append(ids[start:end], eos)


class Datasets(Pipeline):
    """Hugging Face `datasets`: load_dataset, then map in batches, in as many processes as there are workers."""

    def prepare(self, args):
        one_thread_each()
        os.environ |= {"HF_HOME": str(args.out / "hf"), "HF_HUB_OFFLINE": "1", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}
        from datasets import Features, List, Value, load_dataset

        kind = "parquet" if args.input[0].suffix == ".parquet" else "json"
        rows = load_dataset(kind, data_files=str(args.input[0]), split="train", cache_dir=str(args.out / "cache"))
        encode = Encoder(args.tokenizer, args.library)
        rows.map(
            lambda texts: {"ids": encode(texts)},
            input_columns=["text"],
            batched=True,
            num_proc=args.workers,
            remove_columns=rows.column_names,
            # Told, it need not guess; and two bytes a token instead of eight.
            features=Features({"ids": List(Value("uint16"))}),
            cache_file_name=str(args.out / "tokens.arrow"),
        )

    def tokens(self, out):
        import pyarrow as pa

        for path in sorted(out.glob("tokens*.arrow")):
            with pa.memory_map(str(path)) as memory:
                for batch in pa.ipc.open_stream(memory):
                    for ids in batch.column("ids"):
                        yield ids.values.to_numpy()


class InPlaceOfTokenizer:
    """What datatrove's step asks of a tokenizer: batches, and how many entries there are."""

    def __init__(self, path, library):
        self._encode = Encoder(path, library)

    def get_vocab_size(self):
        return 2**16  # two bytes for an id

    def encode_batch(self, texts):
        return [SimpleNamespace(ids=ids.tolist()) for ids in self._encode(texts)]


class Datatrove(Pipeline):
    """Its reader, its tokenizer step and its local executor, a task for each worker.

    A task reads whole files, so it is given the corpus in as many files as there are workers; cutting it is not timed.
    Another library than HF `tokenizers` takes the place of the tokenizer in its step.
    """

    def prepare(self, args):
        one_thread_each()
        from datatrove.executor import LocalPipelineExecutor
        from datatrove.pipeline.readers import JsonlReader, ParquetReader
        from datatrove.pipeline.tokens import DocumentTokenizer

        class OtherTokenizer(DocumentTokenizer):
            # No `cached_property`, as theirs is: the lock of one in a class that is pickled by value hangs the workers.
            tokenizer = property(lambda self: other)

        other = InPlaceOfTokenizer(args.tokenizer, args.library)
        step = DocumentTokenizer if args.library == "tokenizers" else OtherTokenizer
        reader = ParquetReader if args.input[0].suffix == ".parquet" else JsonlReader
        files = args.out / "files.txt"
        files.write_text("".join(f"{path.name}\n" for path in args.input))
        LocalPipelineExecutor(
            pipeline=[
                reader(str(args.input[0].parent), paths_file=str(files), text_key="text", doc_progress=False),
                step(
                    str(args.out / "tokens"),
                    local_working_dir=None,
                    tokenizer_name_or_path=str(args.tokenizer),
                    eos_token=EOS,
                    shuffle_documents=False,
                    batch_size=1000,
                    save_final_metadata=False,
                ),
            ],
            tasks=len(args.input),
            workers=args.workers,
            logging_dir=str(args.out / "logs"),
        ).run()

    def tokens(self, out):
        import numpy as np

        for path in sorted((out / "tokens").glob("*.ds")):
            ids, start = np.memmap(path, np.uint16, "r"), 0
            for end in np.fromfile(path.with_name(f"{path.name}.index"), np.uint64).tolist():
                yield ids[start:end]
                start = end


_encode = None


def _start(tokenizer, library):
    global _encode
    _encode = Encoder(tokenizer, library)


def _line(line):
    return _encode([json.loads(line)["text"]])[0]


def _text(text):
    return _encode([text])[0]


class MegatronCore(Pipeline):
    """The steps of its `tools/preprocess_data.py` with megatron-core's own builder.

    The script itself is not in the package. What it does: a pool of workers is fed lines 32 at a time, each encodes
    one document and appends the end, and the parent adds the documents to the .bin and .idx in order.
    """

    def prepare(self, args):
        one_thread_each()
        import numpy as np
        from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

        path = args.input[0]
        builder = IndexedDatasetBuilder(str(args.out / "tokens.bin"), dtype=np.uint16)
        with multiprocessing.Pool(args.workers, _start, (args.tokenizer, args.library)) as pool:
            if path.suffix == ".parquet":  # the script knows JSON lines only
                documents = pool.imap(_text, read_share(shares(path, 1)[0]), 32)
            else:
                documents = pool.imap(_line, path.open("rb"), 32)
            for ids in documents:
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
    for texts in batches(read_share(share)):
        yield from _encode(texts)


class Litdata(Pipeline):
    """`optimize` over parts of the file, a process for each worker; an item is the ids of a document."""

    def prepare(self, args):
        one_thread_each()
        from litdata import optimize

        optimize(
            partial(_documents, tokenizer=args.tokenizer),
            # More parts than workers, so that none waits long for the other; in order all the same.
            shares(args.input[0], 4 * args.workers),
            output_dir=str(args.out / "tokens"),
            num_workers=args.workers,
            chunk_bytes="64MB",
            verbose=False,
        )

    def tokens(self, out):
        from litdata import StreamingDataset

        dataset = StreamingDataset(str(out / "tokens"))
        return (dataset[number] for number in range(len(dataset)))


def _write(folder, share, tokenizer):
    from streaming import MDSWriter

    with MDSWriter(out=folder, columns={"ids": "ndarray:uint16"}) as writer:
        for ids in _documents(share, tokenizer):
            writer.write({"ids": ids})


class MosaicmlStreaming(Pipeline):
    """An MDSWriter in each of the worker processes over its share, then one merged index."""

    def prepare(self, args):
        one_thread_each()
        from streaming.base.util import merge_index

        out, parts = args.out / "tokens", shares(args.input[0], args.workers)
        work = [(str(out / f"{number:02}"), share, args.tokenizer) for number, share in enumerate(parts)]
        processes = [multiprocessing.Process(target=_write, args=one) for one in work]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        if any(process.exitcode for process in processes):
            raise SystemExit("a worker failed")
        merge_index(str(out))

    def tokens(self, out):
        from streaming import LocalDataset

        dataset = LocalDataset(str(out / "tokens"))
        return (dataset[number]["ids"] for number in range(len(dataset)))


TOOLS = {
    "reference": Reference(),
    "piecemill": Piecemill(),
    "gigatoken": Gigatoken(),
    "datasets": Datasets(),
    "datatrove": Datatrove(),
    "megatron-core": MegatronCore(),
    "litdata": Litdata(),
    "mosaicml-streaming": MosaicmlStreaming(),
}

if __name__ == "__main__":
    worker(TOOLS)
