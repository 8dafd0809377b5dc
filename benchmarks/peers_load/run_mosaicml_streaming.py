"""mosaicml-streaming: rows in MDS shards, its streaming dataset with shuffling, torch's DataLoader."""

from loop import SEED, loader, torch_loader, whole_rows


def write(args):
    import numpy as np
    from streaming import MDSWriter

    with MDSWriter(out=str(args.out / str(args.window)), columns={"ids": "ndarray:uint16"}) as writer:
        for row in whole_rows(args):
            writer.write({"ids": np.array(row)})


def batches(args, folder, batch, window):
    import streaming

    streaming.base.util.clean_stale_shared_memory()
    dataset = streaming.StreamingDataset(
        local=str(folder / str(window)), shuffle=True, shuffle_seed=SEED, batch_size=batch, num_canonical_nodes=1
    )
    return torch_loader(dataset, batch, args.workers)


if __name__ == "__main__":
    loader(write, batches, lambda batch: batch["ids"])
