"""`piecemill edit` and `Tokenizer.edit`: more special tokens, roles and a chat template for any tokenizer."""

import json

import pytest

import models
import piecemill
from command import piecemill as run
from piecemill.errors import PlanError, TokenizerError
from pretraining import SMALL

TEXT = "the cat sat on the mat, and the other cat sat on the other mat.\n" * 40
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}"
EDIT = {"add_special": ["<|im_start|>"], "roles": {"eos": "<|im_end|>", "pad": "<|pad|>"}, "chat_template": TEMPLATE}
NEW = ["<|im_start|>", "<|im_end|>", "<|pad|>"]
MIXED = "the cat<|im_end|><|im_start|> sat  on <|pad|>1234 mats\n"


def load(kind, folder):
    """A tokenizer of each kind, loaded from files, before the edit."""
    folder.mkdir()
    trained = piecemill.train_bpe([TEXT], vocab_size=270)
    if kind == "ranks":
        trained.save(folder / "tok")
        ranks = folder / "x.tiktoken"
        ranks.write_bytes((folder / "tok/ranks.tiktoken").read_bytes())
        return piecemill.load_tokenizer(
            ranks, pretokenizer="cl100k", special_tokens={"<|end|>": 310}
        )  # a gap before it
    if kind == "byte_bpe":
        trained.save(folder / "tok")
        return piecemill.load_tokenizer(folder / "tok")
    data = json.loads(models.tokenizer_json(kind if kind in ("word_piece", "unigram") else "bpe_with_digits"))
    if kind in ("nfc", "gaps"):
        data["normalizer"] = {"type": "NFC"}
    if kind == "gaps":
        vocab = data["model"]["vocab"]
        data["model"]["vocab"] = {text: i if i < 1400 else i + 50 for text, i in vocab.items()}
    (folder / "tokenizer.json").write_text(json.dumps(data))
    return piecemill.load_tokenizer(folder / "tokenizer.json")


@pytest.mark.parametrize("kind", ["byte_bpe", "ranks", "word_piece", "unigram", "digits", "nfc", "gaps"])
def test_new_special_tokens_follow_the_last_id_in_every_library(tmp_path, kind):
    transformers = pytest.importorskip("transformers")
    old = load(kind, tmp_path / "in")
    old.edit(**EDIT).save(tmp_path / "new")
    new = piecemill.load_tokenizer(tmp_path / "new")
    assert {**old.special_tokens, **dict(zip(NEW, range(old.vocab_size, old.vocab_size + 3), strict=True))} == (
        new.special_tokens
    )
    assert new.vocab_size == old.vocab_size + 3
    assert new.identity != old.identity
    for text in ("the cat sat\n", MIXED, "Ünïcode 12345 <s>"):
        assert new.encode(text).tolist() == old.encode(text).tolist()  # as text, special tokens are text
        assert new.decode(new.encode(text)) == old.decode(old.encode(text))
    parsed = new.encode(MIXED, special="parse").tolist()
    assert {new.special_tokens[text] for text in NEW} <= set(parsed)
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path / "new")
    assert loaded(MIXED, add_special_tokens=False)["input_ids"] == parsed
    assert (loaded.eos_token, loaded.pad_token, loaded.chat_template) == ("<|im_end|>", "<|pad|>", TEMPLATE)
    assert set(NEW) <= set(loaded.all_special_tokens)
    assert (new.roles["eos"], new.roles["pad"]) == ("<|im_end|>", "<|pad|>")


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
def test_a_sentencepiece_model_gets_control_pieces(tmp_path, model_type):
    import sentencepiece

    (tmp_path / "tokenizer.model").write_bytes(models.sentencepiece_model(model_type, **models.AS_IT_IS))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "LlamaTokenizer"}))
    old = piecemill.load_tokenizer(tmp_path)
    old.edit(**EDIT).save(tmp_path / "new")
    new = piecemill.load_tokenizer(tmp_path / "new")
    home = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "new/tokenizer.model"))
    assert (new.engine.name, new.roles) == (old.engine.name, {"eos": "<|im_end|>", "bos": "<s>", "pad": "<|pad|>"})
    for number, text in enumerate(NEW):
        assert new.special_tokens[text] == home.piece_to_id(text) == old.vocab_size + number
        assert home.is_control(old.vocab_size + number)
    assert new.encode(MIXED).tolist() == old.encode(MIXED).tolist() == home.encode(MIXED)
    if model_type == "bpe":
        loaded = pytest.importorskip("transformers").AutoTokenizer.from_pretrained(tmp_path / "new")
        assert loaded.convert_tokens_to_ids(NEW) == [new.special_tokens[text] for text in NEW]
        assert (loaded.eos_token, loaded.pad_token, loaded.chat_template) == ("<|im_end|>", "<|pad|>", TEMPLATE)
    with pytest.raises(TokenizerError, match=r"'<unk>' is a piece already, and no control piece \(id 0\)"):
        old.edit(roles={"unk": "<unk>"})


def test_what_transformers_has_written_beside_it_stays_true(tmp_path):
    transformers = pytest.importorskip("transformers")
    load("word_piece", tmp_path / "in")
    plain = transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "in/tokenizer.json"), pad_token="[PAD]")
    plain.add_special_tokens({"additional_special_tokens": ["[X]"]})
    plain.save_pretrained(tmp_path / "hf")
    config = json.loads((tmp_path / "hf/tokenizer_config.json").read_text())
    decoder = {"0": {"content": "[PAD]", "special": True}}  # as transformers 4 wrote it, with a map beside it
    (tmp_path / "hf/tokenizer_config.json").write_text(
        json.dumps(config | {"added_tokens_decoder": decoder, "chat_template": "old"})
    )
    (tmp_path / "hf/special_tokens_map.json").write_text(json.dumps({"pad_token": "[PAD]", "sep_token": "[SEP]"}))
    old = piecemill.load_tokenizer(tmp_path / "hf")
    new = old.edit(add_special=["[X]", "<new>"], roles={"pad": "<pad>"}, chat_template=TEMPLATE)
    new.save(tmp_path / "new")
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path / "new")
    assert loaded.convert_tokens_to_ids(["[X]", "<new>", "<pad>"]) == [
        old.vocab_size - 1,
        *range(old.vocab_size, old.vocab_size + 2),
    ]
    assert (loaded.pad_token, loaded.sep_token, loaded.chat_template) == ("<pad>", "[SEP]", TEMPLATE)
    assert {"[X]", "<new>", "<pad>"} <= set(loaded.all_special_tokens)
    written = json.loads((tmp_path / "new/tokenizer_config.json").read_text())
    assert written["added_tokens_decoder"][str(old.vocab_size)]["content"] == "<new>"
    assert not (tmp_path / "new/special_tokens_map.json").exists()


def test_a_token_that_is_there_becomes_special_with_its_id(tmp_path):
    tok = piecemill.train_bpe([TEXT], vocab_size=270)
    whole = next(token for token in tok.tokens if token.merge is not None and token.token.isalpha())
    new = tok.edit(add_special=[whole.token.decode(), "<|endoftext|>"])
    assert new.special_tokens == {"<|endoftext|>": 0, whole.token.decode(): whole.id}
    assert new.vocab_size == tok.vocab_size
    word_piece = load("word_piece", tmp_path / "in")
    text = next(text for text in word_piece.model.vocab if len(text) > 1 and text not in word_piece.special_tokens)
    assert word_piece.edit(add_special=[text]).special_tokens[text] == word_piece.model.vocab[text]


def test_an_edited_tokenizer_goes_through_prepare_and_pretrain(tmp_path):
    transformers = pytest.importorskip("transformers")
    tok = load("nfc", tmp_path / "in").edit(**EDIT)
    piecemill.prepare([TEXT] * 20, tok, out=tmp_path / "shards")
    assert piecemill.open_shards(tmp_path / "shards", "all").eos == tok.special_tokens["<|im_end|>"]
    options = {key: value for key, value in SMALL.items() if "pretokenizer" not in key}
    piecemill.pretrain(tmp_path / "shards", out=tmp_path / "run", steps=2, **options)
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path / "run/checkpoints/step-00000002")
    assert (loaded.eos_token, loaded.pad_token, loaded.chat_template) == ("<|im_end|>", "<|pad|>", TEMPLATE)
    assert loaded(MIXED)["input_ids"] == tok.encode(MIXED, special="parse").tolist()


def test_the_command_says_what_it_changed(tmp_path):
    piecemill.train_bpe([TEXT], vocab_size=270).save(tmp_path / "tok")
    (tmp_path / "chat.jinja").write_text(TEMPLATE)
    words = ("edit", tmp_path / "tok", "--add-special", "<|im_start|>", "--role", "eos=<|im_end|>", "pad=<|endoftext|>")
    words = (*words, "--chat-template", tmp_path / "chat.jinja", "--out", tmp_path / "new")
    done = run(*words)
    assert (done.returncode, done.stderr) == (0, "")
    assert "272 tokens, 2 added: <|im_start|> 270, <|im_end|> 271" in done.stdout
    assert "roles eos <|im_end|>, pad <|endoftext|>" in done.stdout
    assert json.loads((tmp_path / "new/training.json").read_text())["vocab_size"] == 272
    assert run("check", tmp_path / "new").returncode == 0
    again = run(*words)
    assert again.returncode == 2
    assert "already holds a tokenizer" in again.stderr
    found = json.loads(run(*words, "--force", "--json").stdout)
    assert found["added"] == {"<|im_start|>": 270, "<|im_end|>": 271}
    assert found["identity"] == piecemill.load_tokenizer(tmp_path / "new").identity
    nothing = run("edit", tmp_path / "tok", "--out", tmp_path / "x")
    assert nothing.returncode == 2
    assert "nothing to change" in nothing.stderr


def test_half_a_surrogate_pair_in_a_config_stays_as_it_was(tmp_path):
    piecemill.train_bpe([TEXT], vocab_size=270).save(tmp_path / "tok")
    config = tmp_path / "tok" / "tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"name": "\ud800"}))
    piecemill.load_tokenizer(tmp_path / "tok").edit(add_special=["<a>"]).save(tmp_path / "edited")
    assert json.loads((tmp_path / "edited" / "tokenizer_config.json").read_text())["name"] == "\ud800"


def test_a_wrong_edit_is_an_error():
    tok = piecemill.train_bpe([TEXT], vocab_size=270)
    with pytest.raises(TokenizerError, match=r"add_special='<a>': expected a list, such as \['<a>'\]"):
        tok.edit(add_special="<a>")
    with pytest.raises(TokenizerError, match=r"special token 'a': this is how tokenizer\.json writes byte 0x61"):
        tok.edit(add_special=["a"])
    with pytest.raises(PlanError, match="role 'end=<a>'"):
        tok.edit(roles=["end=<a>"])
