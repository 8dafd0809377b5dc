"""Nothing of a tokenizer is dropped: chat templates and the other files beside it travel with it."""

import pytest

import models
import piecemill as pm
from corpora import small_tokenizer, texts
from piecemill.errors import TokenizerError

TEMPLATE = "{% for message in messages %}{{ message['content'] }}<|endoftext|>{% endfor %}"
EXTRA = {
    "chat_template.jinja": TEMPLATE,
    "additional_chat_templates/tools.jinja": "tools",
    "added_tokens.json": "{}",
    "special_tokens_map.json": '{"eos_token": "<|endoftext|>"}',
}


@pytest.fixture
def folder(tmp_path):
    """A tokenizer as transformers saves one, beside a model."""
    small_tokenizer().save(tmp_path / "hf")
    for name, text in EXTRA.items():
        (tmp_path / "hf" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "hf" / name).write_text(text)
    (tmp_path / "hf/model.safetensors").write_bytes(b"weights")
    (tmp_path / "hf/config.json").write_text("{}")
    return tmp_path / "hf"


def assert_kept(folder):
    for name, text in EXTRA.items():
        assert (folder / name).read_text() == text, name
    assert not (folder / "model.safetensors").exists() or (folder / "state.json").exists()


def test_saving_keeps_the_files_that_came_with_a_tokenizer(folder, tmp_path):
    tok = pm.load_tokenizer(folder)
    tok.save(tmp_path / "saved")
    assert_kept(tmp_path / "saved")
    again = pm.load_tokenizer(tmp_path / "saved")
    assert again.identity == tok.identity
    again.save(tmp_path / "saved", force=True)  # they do not stand in the way of replacing it
    assert_kept(tmp_path / "saved")
    (tmp_path / "saved/additional_chat_templates/mine.txt").write_text("mine")
    with pytest.raises(TokenizerError, match=r"additional_chat_templates/mine.txt"):
        again.save(tmp_path / "saved", force=True)


def test_other_kinds_keep_theirs_too(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    (tmp_path / "hf").mkdir()
    words = {"[UNK]": 0, "a": 1, "b": 2}
    tokenizers.Tokenizer(tokenizers.models.WordPiece(words, unk_token="[UNK]")).save(
        str(tmp_path / "hf/tokenizer.json")
    )
    (tmp_path / "hf/chat_template.jinja").write_text(TEMPLATE)
    (tmp_path / "hf/vocab.txt").write_text("[UNK]\na\nb\n")
    pm.load_tokenizer(tmp_path / "hf").save(tmp_path / "saved")
    assert (tmp_path / "saved/chat_template.jinja").read_text() == TEMPLATE
    assert (tmp_path / "saved/vocab.txt").exists()


def test_a_mistyped_name_of_openai_is_answered_before_a_hub_is_asked(monkeypatch):
    monkeypatch.setattr("piecemill.tokenizers.hub.fetch", lambda spec: pytest.fail("asked the hub"))
    for name, meant in (("cl100", "cl100k"), ("o200", "o200k"), ("cl100k-base", "cl100k_base")):
        with pytest.raises(TokenizerError, match=rf"^{name}: no such file or folder here; did you mean {meant}\?"):
            pm.load_tokenizer(name)


def test_other_models_in_the_folder_are_no_part_of_a_tokenizer(tmp_path):
    for name in ("mine.model", "spiece.model", "other.model"):
        (tmp_path / name).write_bytes(models.sentencepiece_model())
    pm.load_tokenizer(tmp_path / "mine.model").save(tmp_path / "saved")
    assert {file.name for file in (tmp_path / "saved").iterdir()} == {"tokenizer.model", "spiece.model"}


def test_prepared_folders_keep_them_and_are_sound(folder, tmp_path):
    from piecemill.shards.check import check_shards

    pm.prepare(["a text"], folder, out=tmp_path / "out")
    assert_kept(tmp_path / "out/tokenizer")
    assert check_shards(tmp_path / "out").problems == []
    assert pm.prepare(["a text"], folder, out=tmp_path / "out").complete_before
    (tmp_path / "out/tokenizer/chat_template.jinja").write_text("changed")
    assert not check_shards(tmp_path / "out").sound
    pm.prepare(["another"], folder, out=tmp_path / "out", force=True)
    assert_kept(tmp_path / "out/tokenizer")


def test_a_chat_template_reaches_the_checkpoints_of_a_run(folder, tmp_path):
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from piecemill.pretraining import pretrain

    pm.prepare(texts(30), folder, out=tmp_path / "out")
    small = {"window": 16, "batch_size": 2, "steps": 1, "val_split": "none", "split": "all", "device": "cpu"}
    pretrain(tmp_path / "out", out=tmp_path / "run", size="tiny", curve=False, sample_tokens=0, **small)
    checkpoint = max((tmp_path / "run/checkpoints").iterdir())
    assert_kept(checkpoint)
    for where in (checkpoint, tmp_path / "out/tokenizer"):
        template = transformers.AutoTokenizer.from_pretrained(where).chat_template
        assert TEMPLATE in (template.values() if isinstance(template, dict) else [template])
