"""Windows as a Hugging Face `datasets.Dataset`: a view, which gathers what is asked for and copies nothing ahead."""

from collections.abc import Mapping
from typing import Any

import datasets
import numpy as np

from piecemill.loading.windows import Windows, gather


def as_dataset(windows: Windows) -> "datasets.Dataset":
    """A dataset with a row for each window: `input_ids`, `labels` (shifted already), with boundaries also the others.

    `dataset[7]`, `dataset[3:9]`, `shuffle`, `select` and torch's DataLoader work as with any dataset. It holds the
    number of each window, 8 bytes, and that is all that `map` and `save_to_disk` see of it.
    """

    def rows(asked: Mapping[str, Any]) -> dict[str, Any]:
        numbers = np.asarray(asked["window"], np.int64)
        return dict(gather([windows], np.zeros(len(numbers), np.int64), numbers).columns())

    return datasets.Dataset.from_dict({"window": np.arange(len(windows))}).with_transform(rows)
