"""Hugging Face `datasets`: load_dataset, then map in batches, in as many processes as there are workers."""

import os

from pipeline import Encoder, one_thread_each, peer


def prepare(args):
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


def tokens(out):
    import pyarrow as pa

    for path in sorted(out.glob("tokens*.arrow")):
        with pa.memory_map(str(path)) as memory:
            for batch in pa.ipc.open_stream(memory):
                for ids in batch.column("ids"):
                    yield ids.values.to_numpy()


# Its workers unpickle functions of this file, so what runs must not run in them.
if __name__ == "__main__":
    peer(prepare, tokens)
