"""Windows, one token at a time: the definition that `piecemill.loading` must equal.

A stream is all documents laid end to end, or one document. A window begins every `window - overlap` tokens until every
token but the first has been a label. What it holds at column c is the token at `begin + c`; the label is the one after.
"""

from collections.abc import Sequence

IGNORED = -100


def windows(
    documents: Sequence[Sequence[int]],
    window: int,
    *,
    overlap: int = 0,
    pack: bool = True,
    boundaries: bool = False,
    overlap_labels: bool = False,
    pad: int = 0,
) -> list[dict[str, list[int]]]:
    """Every window of `documents`, in order.

    >>> windows([[1, 2, 3], [4, 5]], 3)[1]
    {'input_ids': [4, 5, 0], 'labels': [5, -100, -100]}
    """
    tokens = [[(token, number) for token in document] for number, document in enumerate(documents)]
    streams = [[pair for document in tokens for pair in document]] if pack else tokens
    rows = []
    for stream in streams:
        begin, labelled = 0, 1
        while labelled < len(stream):
            row: dict[str, list[int]] = {"input_ids": [], "labels": [], "position_ids": [], "document_ids": []}
            for place in range(begin, begin + window):
                here = stream[place] if place < len(stream) else None
                after = stream[place + 1] if place + 1 < len(stream) else None
                again = place + 1 < labelled and not overlap_labels
                crosses = boundaries and here is not None and after is not None and here[1] != after[1]
                row["input_ids"].append(here[0] if here else pad)
                row["labels"].append(after[0] if after and not again and not crosses else IGNORED)
                number = here[1] if here else -1
                same = bool(row["document_ids"]) and row["document_ids"][-1] == number
                row["position_ids"].append(row["position_ids"][-1] + 1 if same else 0)
                row["document_ids"].append(number)
            if not boundaries:
                del row["position_ids"], row["document_ids"]
            rows.append(row)
            labelled = begin + window + 1
            begin += window - overlap
    return rows
