"""Labels by name: a model of transformers has the right loss on what it is given, and nothing is shifted twice."""

from collections import Counter

import numpy as np
import pytest

from loadable import some_documents, write_rows
from piecemill.errors import PlanError
from piecemill.loading import Windows, batches

WINDOW = 16


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    return write_rows(
        tmp_path_factory.mktemp("labels") / "rows", some_documents(40, vocab_size=64), vocab_size=64, eos=0
    )


def tiny_model():
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=64, **shape)).eval()


def loss_by_hand(model, input_ids, shifted):
    """Over the places that a model which shifts labels itself can train: all but the last of a row."""
    import torch

    logits = model(input_ids=input_ids).logits[:, :-1].reshape(-1, 64)
    return torch.nn.functional.cross_entropy(logits, shifted[:, :-1].reshape(-1)).item()


@pytest.mark.parametrize("options", [{}, {"pack": False}, {"boundaries": True}, {"overlap": 4}])
def test_the_loss_of_a_model_that_shifts_is_right_on_a_dataset(rows, options):
    pytest.importorskip("datasets")
    from piecemill.loading.datasets import as_dataset

    model = tiny_model()
    import torch

    windows = Windows(rows, window=WINDOW, **options)
    given, shifted = as_dataset(windows)[0:8], windows.with_labels("shifted").__getitems__(range(8))
    input_ids, labels = (torch.from_numpy(np.stack(list(given[name]))) for name in ("input_ids", "labels"))
    with torch.no_grad():
        loss = model(input_ids=input_ids, labels=labels).loss.item()
        overlap = options.get("overlap", 0)
        wanted = torch.from_numpy(np.stack([row["labels"] for row in shifted]))
        if overlap:  # the last of the overlap had no label in the window before
            wanted[1:, overlap - 1] = input_ids[1:, overlap]
        assert loss == pytest.approx(loss_by_hand(model, input_ids, wanted), rel=1e-5)
        twice = model(input_ids=input_ids, labels=torch.from_numpy(np.stack([row["labels"] for row in shifted]))).loss
    assert abs(twice.item() - loss) > 1e-4


def test_shifted_labels_of_a_dataset_have_a_name_that_no_model_takes(rows):
    pytest.importorskip("datasets")
    from piecemill.loading.datasets import as_dataset

    windows = Windows(rows, window=WINDOW)
    found = as_dataset(windows, labels="shifted")[3]
    assert set(found) == {"input_ids", "shifted_labels"}
    assert np.array_equal(found["shifted_labels"], windows[3]["labels"])
    assert np.array_equal(as_dataset(windows)[3]["labels"][1:], found["input_ids"][1:])


def test_unshifted_labels_are_the_tokens_themselves_where_they_are_trained_on(rows):
    for options in ({}, {"pack": False}, {"boundaries": True}):
        view = Windows(rows, window=WINDOW, labels="unshifted", **options)
        other = view.with_labels("shifted")
        for number in range(len(view)):
            ids, labels = view[number]["input_ids"], view[number]["labels"]
            assert labels[0] == -100
            kept = labels != -100
            assert np.array_equal(labels[kept], ids[kept])
            assert np.array_equal(labels[1:], other[number]["labels"][:-1])


def test_with_an_overlap_of_one_every_token_but_the_first_is_a_label_once(tmp_path):
    rows = write_rows(tmp_path / "rows", [list(range(100))], vocab_size=100)
    view = Windows(rows, window=8, overlap=1, labels="unshifted")
    counted = Counter(label for n in range(len(view)) for label in view[n]["labels"].tolist() if label != -100)
    assert counted == Counter(range(1, 100))


def test_batches_have_the_option_too(rows):
    options = {"window": WINDOW, "batch_size": 4, "epochs": 1, "threads": 0}
    with batches(rows, labels="unshifted", **options) as one, batches(rows, **options) as other:
        for unshifted, shifted in zip(one, other, strict=True):
            assert np.array_equal(unshifted["input_ids"], shifted["input_ids"])
            assert np.array_equal(unshifted["labels"][:, 1:], shifted["labels"][:, :-1])
    with pytest.raises(PlanError, match="expected shifted or unshifted"):
        batches(rows, labels="hf", **options)
