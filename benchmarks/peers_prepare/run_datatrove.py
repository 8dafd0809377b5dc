"""datatrove: its reader, its tokenizer step and its local executor, a task for each worker.

A task reads whole files, so it is given the corpus in as many files as there are workers; cutting it is not timed.
Another library than HF `tokenizers` takes the place of the tokenizer in its step.
"""

from pathlib import Path
from types import SimpleNamespace

from pipeline import EOS, Encoder, one_thread_each, peer


class InPlaceOfTokenizer:
    """What its step asks of a tokenizer: batches, and how many entries there are."""

    def __init__(self, path, library):
        self._encode = Encoder(path, library)

    def get_vocab_size(self):
        return 2**16  # two bytes for an id

    def encode_batch(self, texts):
        return [SimpleNamespace(ids=ids.tolist()) for ids in self._encode(texts)]


def prepare(args):
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
    folder = args.input[0].parent
    files = args.out / "files.txt"
    files.write_text("".join(f"{path.name}\n" for path in args.input))
    LocalPipelineExecutor(
        pipeline=[
            reader(str(folder), paths_file=str(files), text_key="text", doc_progress=False),
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


def tokens(out: Path):
    import numpy as np

    for path in sorted((out / "tokens").glob("*.ds")):
        ids = np.memmap(path, np.uint16, "r")
        start = 0
        for end in np.fromfile(path.with_name(f"{path.name}.index"), np.uint64).tolist():
            yield ids[start:end]
            start = end


if __name__ == "__main__":
    peer(prepare, tokens)
