"""Windows as a Hugging Face `datasets.Dataset`: a view that gathers windows on access and stores none."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import datasets
import numpy as np
from datasets.formatting import TensorFormatter, get_formatter

from piecemill.errors import PlanError
from piecemill.plans import did_you_mean
from piecemill.shards.windows import Windows, gather

Rows = Callable[[Mapping[str, Any]], dict[str, Any]]


@did_you_mean
def as_dataset(windows: Windows, labels: Literal["shifted", "unshifted"] = "unshifted") -> "WindowDataset":
    """A dataset with a row for each window: `input_ids`, `labels`, with boundaries also the others.

    Labels are as models of `transformers` want them: the label of a place is its own token, and the model shifts. With
    labels="shifted", the label of a place is the token after it; the column is `shifted_labels` then, which such a
    model does not take, so that nothing is shifted twice.

    `dataset[7]`, `dataset[3:9]`, `shuffle`, `select`, `map`, `filter`, `with_format("torch")` and torch's DataLoader
    work as with any dataset. It holds the number of each window, 8 bytes, and what `map` adds: save the shards instead,
    and join two with `piecemill.loading.mix`. `map(..., remove_columns="window")` gives an ordinary dataset of the rows
    that its function returns.
    """
    chosen = windows.with_labels(labels)
    rows = partial(_gathered, chosen, labels)
    return _of(datasets.Dataset.from_dict({"window": np.arange(len(chosen))}).with_transform(rows), rows)


class WindowDataset(datasets.Dataset):  # type: ignore[misc] # datasets has no types
    """A dataset of window numbers, of which users see the windows, in the format that they ask for."""

    rows: Rows

    def set_format(
        self,
        type: str | None = None,
        columns: str | Sequence[str] | None = None,
        output_all_columns: bool = False,
        **options: Any,
    ) -> None:
        """As `datasets` has it, of the windows: "torch", "numpy" and other formats of tensors; None for the default."""
        transform = options.get("transform")
        if transform is not None and getattr(transform, "func", None) not in _OURS:
            options["transform"] = partial(_transformed, self.rows, transform)
        elif type not in ("custom", "arrow"):  # a transform of ours; or the stored numbers, which `map` reads
            options = {"transform": _formatted(self.rows, type, columns, options)}
            type, columns, output_all_columns = "custom", None, False
        super().set_format(type, columns, output_all_columns, **options)

    # All that choose rows go through the first two, which make a plain Dataset.

    def _new_dataset_with_indices(self, *given: Any, **named: Any) -> "WindowDataset":
        return _of(super()._new_dataset_with_indices(*given, **named), self.rows)

    def _select_contiguous(self, *given: Any, **named: Any) -> "WindowDataset":
        return _of(super()._select_contiguous(*given, **named), self.rows)

    def remove_columns(self, column_names: str | list[str], *given: Any) -> "WindowDataset":
        """As `datasets` has it, but for the numbers of the windows: a Trainer removes what its model does not take."""
        names = [column_names] if isinstance(column_names, str) else column_names
        return super().remove_columns([name for name in names if name != "window"], *given)  # type: ignore[no-any-return]

    def map(self, *given: Any, **named: Any) -> "WindowDataset":
        """As `datasets` has it; the function gets windows, and columns that it adds come with them."""
        mapped = super().map(*given, **named)
        if "window" in mapped.column_names:
            return _of(mapped, self.rows)
        mapped.__class__ = datasets.Dataset
        mapped.reset_format()
        return mapped  # type: ignore[no-any-return]


def _refused(name: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise PlanError(
            f"{name}: this dataset holds the numbers of windows alone. Write rows with `piecemill export`, or take the "
            'ordinary dataset that dataset.map(dict, remove_columns="window") gives.'
        )

    return refuse


for _name in ("csv", "dict", "json", "list", "pandas", "parquet", "polars", "sql"):
    setattr(WindowDataset, f"to_{_name}", _refused(f"to_{_name}"))
for _name in ("save_to_disk", "push_to_hub"):
    setattr(WindowDataset, _name, _refused(_name))


def _of(dataset: "datasets.Dataset", rows: Rows) -> WindowDataset:
    dataset.__class__ = WindowDataset
    dataset.rows = rows
    return dataset  # type: ignore[no-any-return]


def _formatted(rows: Rows, type: str | None, columns: str | Sequence[str] | None, options: dict[str, Any]) -> Rows:
    """`rows` of some columns, as tensors of a library."""
    formatter = None if type is None else get_formatter(type, **options)
    if not isinstance(formatter, TensorFormatter | None):
        raise PlanError(f"format {type!r}: windows can be had as 'numpy', 'torch' and other tensors, not as this.")
    wanted = [columns] if isinstance(columns, str) else columns
    return partial(_some, rows, formatter, None if wanted is None else tuple(wanted))


def _gathered(windows: Windows, labels: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    """The windows of some numbers, and the other columns that were requested."""
    numbers = np.asarray(asked["window"], np.int64)
    columns, _ = gather([windows], np.zeros(len(numbers), np.int64), numbers)
    if labels == "shifted":
        columns["shifted_labels"] = columns.pop("labels")
    return columns | {name: added for name, added in asked.items() if name != "window"}


def _transformed(rows: Rows, transform: Rows, asked: Mapping[str, Any]) -> dict[str, Any]:
    """What a transform of the user makes of windows."""
    return transform(rows(asked))


def _some(rows: Rows, formatter: Any, columns: tuple[str, ...] | None, asked: Mapping[str, Any]) -> dict[str, Any]:
    found = rows(asked)
    if unknown := [name for name in columns or () if name not in found]:
        raise PlanError(f"column {unknown[0]!r}: windows have {', '.join(found)}.")
    some = {name: found[name] for name in columns or found}
    return some if formatter is None else formatter.recursive_tensorize(some)


_OURS = (_gathered, _transformed, _some)
"What transforms of a `WindowDataset` begin with: they get the numbers of windows."
