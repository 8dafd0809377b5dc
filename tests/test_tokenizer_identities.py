"""Ids of different tokenizers never meet: mixtures, states and checkpoints compare tokenizers, and name both."""

import json

import pytest

import piecemill as pm
from corpora import WORDS
from piecemill.errors import LoadError
from piecemill.loading import batches, mix


def tokenizer_of(words):
    """Of 270 tokens with eos 0, whatever the words: only the identity tells two of them apart."""
    return pm.train_bpe([" ".join(words) * 9], vocab_size=270, pretokenizer="gpt2")


@pytest.fixture(scope="module")
def tokenizers():
    pair = tokenizer_of(WORDS), tokenizer_of([word[::-1] for word in WORDS])
    assert pair[0].vocab_size == pair[1].vocab_size == 270
    assert pair[0].identity != pair[1].identity
    return pair


@pytest.fixture(scope="module")
def rows(tokenizers, tmp_path_factory):
    """Shards of two tokenizers, and more of the first."""
    folder = tmp_path_factory.mktemp("identities")
    made = []
    for number, tokenizer in enumerate((*tokenizers, tokenizers[0])):
        pm.prepare([" ".join(WORDS) * 20] * (number + 1), tokenizer, out=folder / str(number))
        made.append(pm.open_shards(folder / str(number)))
    return made


def test_shards_of_different_tokenizers_are_not_mixed(rows, tokenizers):
    with pytest.raises(LoadError) as refused:
        mix([(rows[0], 1), (rows[1], 1)])
    assert all(tokenizer.identity in str(refused.value) for tokenizer in tokenizers)
    assert mix([(rows[0], 1), (rows[2], 1)]).tokenizer_identity == tokenizers[0].identity


def test_a_mixture_in_a_mixture_and_one_that_begins_with_unknown_rows_are_compared_too(rows, tmp_path):
    from piecemill.loading.parquet import open_parquet
    from piecemill.shards.export import ExportPlan, export

    export(rows[0].folder, out=tmp_path / "rows", plan=ExportPlan(to="parquet"))
    unknown = open_parquet(tmp_path / "rows/all", vocab_size=270, eos=0)
    told = open_parquet(tmp_path / "rows/all", vocab_size=270, eos=0, tokenizer=rows[0].tokenizer_identity)
    mix([(unknown, 1), (rows[1], 1)])
    with pytest.raises(LoadError, match="was made with the tokenizer"):
        mix([(unknown, 1), (told, 1), (rows[1], 1)])


def test_a_state_of_shards_of_another_tokenizer_is_refused_with_both(rows, tokenizers):
    options = {"window": 16, "batch_size": 2, "threads": 0}
    with batches(rows[0], **options) as fed:
        state = fed.state_dict()
    with batches(rows[1], **options) as other, pytest.raises(LoadError) as refused:
        other.load_state_dict(state)
    assert all(tokenizer.identity in str(refused.value) for tokenizer in tokenizers)
    older = {name: value for name, value in state.items() if name != "tokenizer"}
    with batches(rows[0], **options) as fed:
        fed.load_state_dict(older)
    with batches(rows[1], **options) as other, pytest.raises(LoadError, match="state: "):
        other.load_state_dict(older)


def test_a_run_records_its_tokenizer_and_starts_no_run_on_shards_of_another(rows, tokenizers, tmp_path):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from piecemill.errors import PretrainError
    from piecemill.pretraining import pretrain

    small = {"window": 16, "batch_size": 2, "steps": 1, "val_split": "none", "split": "all", "device": "cpu"}
    small |= {"curve": False, "sample_tokens": 0}
    pretrain(rows[0].folder, out=tmp_path / "run", size="tiny", **small)
    assert json.loads((tmp_path / "run/plan.json").read_text())["data"]["tokenizer"] == tokenizers[0].identity
    tune = {"mode": "finetune", "init": tmp_path / "run", **small}
    with pytest.raises(PretrainError) as refused:
        pretrain(rows[1].folder, out=tmp_path / "tuned", **tune)
    assert all(tokenizer.identity in str(refused.value) for tokenizer in tokenizers)
    with pytest.raises(PretrainError, match="begun on shards with tokenizer"):
        pretrain(rows[1].folder, out=tmp_path / "run", size="tiny", **small)
    pretrain(rows[2].folder, out=tmp_path / "tuned", **tune)

    # weights of elsewhere are known by the tokenizer beside them, in whatever spelling
    checkpoint = max((tmp_path / "run/checkpoints").iterdir())
    (checkpoint / "state.json").unlink()
    tokenizers[1].save(tmp_path / "other")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (checkpoint / name).write_bytes((tmp_path / "other" / name).read_bytes())
    with pytest.raises(PretrainError, match="was trained with the tokenizer"):
        pretrain(rows[0].folder, out=tmp_path / "again", **tune)
    pretrain(rows[1].folder, out=tmp_path / "again", **tune)
