"""Windows as a Hugging Face `datasets.Dataset`: a view, which gathers what is asked for and copies nothing ahead."""

from collections.abc import Mapping
from typing import Any, Literal

import datasets
import numpy as np

from piecemill.shards.windows import Windows, gather


def as_dataset(windows: Windows, labels: Literal["shifted", "unshifted"] = "unshifted") -> "datasets.Dataset":
    """A dataset with a row for each window: `input_ids`, `labels`, with boundaries also the others.

    Labels are as models of `transformers` want them: the label of a place is its own token, and the model shifts. With
    labels="shifted", the label of a place is the token after it; the column is `shifted_labels` then, which such a
    model does not take, so that nothing is shifted twice.

    `dataset[7]`, `dataset[3:9]`, `shuffle`, `select` and torch's DataLoader work as with any dataset. It holds the
    number of each window, 8 bytes, and that is all that `map` and `save_to_disk` see of it.
    """

    chosen = windows.with_labels(labels)

    def rows(asked: Mapping[str, Any]) -> dict[str, Any]:
        numbers = np.asarray(asked["window"], np.int64)
        columns = gather([chosen], np.zeros(len(numbers), np.int64), numbers).columns()
        return {"shifted_labels" if (name, labels) == ("labels", "shifted") else name: a for name, a in columns.items()}

    return datasets.Dataset.from_dict({"window": np.arange(len(chosen))}).with_transform(rows)
