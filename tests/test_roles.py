"""Roles of special tokens and chat templates: declared when training, kept by all that comes after."""

import json

import pytest

import piecemill
from command import piecemill as run
from piecemill.errors import PlanError
from piecemill.tokenizers import resolve_eos
from pretraining import SMALL

TEXT = "the cat sat on the mat, and the other cat sat on the other mat.\n" * 40
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}"


def test_roles_given_when_training_are_what_transformers_finds(tmp_path):
    transformers = pytest.importorskip("transformers")
    (tmp_path / "a.txt").write_text(TEXT)
    (tmp_path / "chat.jinja").write_text(TEMPLATE)
    words = ("--special-token", "<|im_start|>", "--role", "eos=<|im_end|>", "pad=<|pad|>", "--vocab-size", 300)
    done = run("train", tmp_path / "a.txt", *words, "--chat-template", tmp_path / "chat.jinja", "--out", tmp_path / "t")
    assert done.returncode == 0, done.stderr
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path / "t")
    assert (loaded.eos_token, loaded.pad_token, loaded.bos_token) == ("<|im_end|>", "<|pad|>", None)
    assert sorted(loaded.all_special_tokens) == ["<|endoftext|>", "<|im_end|>", "<|im_start|>", "<|pad|>"]
    padded = loaded(["a", "bbb"], padding=True)["input_ids"]
    assert padded[0][1:] == [loaded.pad_token_id] * (len(padded[1]) - 1)
    chat = loaded.apply_chat_template([{"role": "user", "content": "the cat"}], tokenize=False)
    assert chat == "<|im_start|>user\nthe cat<|im_end|>"
    ours = piecemill.load_tokenizer(tmp_path / "t")
    assert ours.roles == {"eos": "<|im_end|>", "pad": "<|pad|>"}
    assert ours.special_tokens == {"<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 2, "<|pad|>": 3}
    assert resolve_eos(ours) == 2
    assert "roles eos <|im_end|>, pad <|pad|>" in " ".join(run("show", tmp_path / "t").stdout.split())


def test_roles_change_no_id_and_are_used_by_prepare(tmp_path):
    plain = piecemill.train_bpe([TEXT], vocab_size=300, special_tokens=["<e>", "<p>"])
    tok = plain.edit(roles={"eos": "<e>", "pad": "<p>"}, chat_template=TEMPLATE)
    assert tok.identity == plain.identity
    assert tok.encode("the mat").tolist() == plain.encode("the mat").tolist()
    piecemill.prepare([TEXT] * 20, tok, out=tmp_path / "shards")
    assert piecemill.open_shards(tmp_path / "shards", "all").eos == 0
    assert (tmp_path / "shards/tokenizer/chat_template.jinja").read_text() == TEMPLATE


def test_a_flag_adds_to_the_default_special_token(tmp_path):
    (tmp_path / "a.txt").write_text(TEXT)

    def special(*words):
        done = run("train", tmp_path / "a.txt", *words, "--vocab-size", 300, "--force", "--out", tmp_path / "t")
        assert done.returncode == 0, done.stderr
        return list(piecemill.load_tokenizer(tmp_path / "t").special_tokens)

    assert special("--special-token", "<a>", "<b>") == ["<|endoftext|>", "<a>", "<b>"]
    assert special("--special-token", "<a>", "--no-special-tokens") == ["<a>"]
    assert special("--no-special-tokens") == []
    assert special("--role", "pad=<p>", "--no-special-tokens") == ["<p>"]


def test_a_role_of_a_loaded_tokenizer_can_be_declared(tmp_path):
    import models

    (tmp_path / "tok").mkdir()
    (tmp_path / "tok/tokenizer.json").write_text(models.tokenizer_json("word_piece"))
    (tmp_path / "tok/tokenizer_config.json").write_text(json.dumps({"do_lower_case": True, "extra_special_tokens": []}))
    tok = piecemill.load_tokenizer(tmp_path / "tok")
    token = next(iter(tok.special_tokens))
    tok.edit(roles=[f"cls={token}"]).save(tmp_path / "new")
    config = json.loads((tmp_path / "new/tokenizer_config.json").read_text())
    assert config == {"do_lower_case": True, "extra_special_tokens": [], "cls_token": token}
    assert piecemill.load_tokenizer(tmp_path / "new").roles["cls"] == token


def test_a_wrong_role_is_an_error_before_the_work(tmp_path):
    for roles, match in (
        (["eso=<e>"], r"role 'eso=<e>': expected one of eos, bos, pad"),
        (["eos="], r"role 'eos=': expected one of"),
        (["eos=<a>", "eos=<b>"], "role 'eos': given twice, as '<a>' and as '<b>'"),
        ("eos=<a>", r"roles='eos=<a>': expected a list, such as \['eos=<a>'\]"),
    ):
        with pytest.raises(PlanError, match=match):
            piecemill.TrainPlan(roles=roles if isinstance(roles, str) else tuple(roles))
    with pytest.raises(PlanError, match=r"chat_template='.*none': cannot be read: No such file"):
        piecemill.train_bpe([TEXT], chat_template=tmp_path / "none")
    tok = piecemill.train_bpe([TEXT], vocab_size=300, roles={"eos": "<e>"})
    assert tok.roles == {"eos": "<e>"}
    with pytest.raises(PlanError, match="role 'eso=<e>': expected one of eos"):
        tok.edit(roles={"eso": "<e>"})


def test_a_checkpoint_of_pretrain_opens_with_the_roles_and_the_chat_template(tmp_path):
    auto = pytest.importorskip("transformers").AutoTokenizer
    tok = piecemill.train_bpe([TEXT], vocab_size=300).edit(roles={"pad": "<p>"}, chat_template=TEMPLATE)
    documents = [f"{number} {TEXT}" for number in range(100)]  # equal ones would be on one side
    piecemill.prepare(documents, tok, out=tmp_path / "shards", splits="train=80,val=20")
    piecemill.pretrain(tmp_path / "shards", out=tmp_path / "run", steps=2, **SMALL)
    checkpoint = max((tmp_path / "run/checkpoints").iterdir())
    loaded = auto.from_pretrained(checkpoint)
    assert (loaded.eos_token, loaded.pad_token, loaded.chat_template) == ("<|endoftext|>", "<p>", TEMPLATE)
    assert loaded("the mat")["input_ids"] == tok.encode("the mat").tolist()
