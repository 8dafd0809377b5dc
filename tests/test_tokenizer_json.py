"""Every setting of a tokenizer.json is carried out exactly as HF does it, or left to HF with the reason."""

import copy
import json
import random
from functools import cache

import numpy as np
import pytest

import models
from hf import HF, TRAINERS, needs_trainers
from models import TEXTS
from piecemill.errors import TokenizerError
from piecemill.tokenizers import load_tokenizer
from piecemill.tokenizers.models.byte_level import CHARACTERS
from piecemill.tokenizers.models.sentencepiece import PieceType, read
from piecemill.tokenizers.pretokenizers import PATTERNS
from vocabularies import END, rows, trained_by_hf

SPACE = "▁"
STRETCHES = [
    "", "a", "the", "The THE", " ", "  ", "\n", "\t", "é", "e\u0301", "ﬁ", "Å", "漢字", "1234", "x7", "_", "'s", "!?",
    ".", SPACE, "▁the", "\u00a0", "\u3000", "🙂", "İ", "ß", "ǅ", "self.", "import os", "    return", "\u200d", "٣", "ẛ̣",
]  # fmt: skip


def byte_level(use_regex=True, add_prefix_space=False):
    return {"type": "ByteLevel", "add_prefix_space": add_prefix_space, "trim_offsets": True, "use_regex": use_regex}


def split(pattern, behavior="Isolated", invert=False):
    kind = "Regex" if pattern not in ("self", " ") else "String"
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def sequence(*steps, of="pretokenizers"):
    return {"type": "Sequence", of: list(steps)}


def replace(old, new, kind="String"):
    return {"type": "Replace", "pattern": {kind: old}, "content": new}


def added(content, i, **flags):
    off = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    return {"id": i, "content": content, **off, **flags}


@cache
def _bytes():
    """Byte-level BPE, as HF trained it."""
    return trained_by_hf("gpt2").text


@cache
def _llama():
    """A SentencePiece model as the tokenizer.json that `transformers` would write for it."""
    found = read(models.sentencepiece_model("bpe", **models.AS_IT_IS))
    vocab = {piece.text: i for i, piece in enumerate(found.pieces)}
    normal = {piece.text for piece in found.pieces if piece.type is PieceType.NORMAL}
    merges = []
    for piece in sorted(found.pieces, key=lambda piece: -piece.score):
        halves = [(piece.text[:cut], piece.text[cut:]) for cut in range(1, len(piece.text))]
        if piece.text in normal:
            merges += [[left, right] for left, right in halves if left in normal and right in normal]
    decoders = [replace(SPACE, " "), {"type": "ByteFallback"}, {"type": "Fuse"}]
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    return json.dumps(
        {
            "version": "1.0",
            "added_tokens": [added(text, i, special=True) for i, text in enumerate(("<unk>", "<s>", "</s>"))],
            "normalizer": sequence({"type": "Prepend", "prepend": SPACE}, replace(" ", SPACE), of="normalizers"),
            "pre_tokenizer": None,
            "decoder": sequence(*decoders, strip, of="decoders"),
            "model": {
                "type": "BPE",
                "unk_token": "<unk>",
                "fuse_unk": True,
                "byte_fallback": True,
                "vocab": vocab,
                "merges": merges,
            },
        }
    )


def base(kind):
    text = {"bytes": _bytes, "llama": _llama, "words": lambda: models.tokenizer_json("word_piece")}[kind]()
    return json.loads(text)


def changed(kind, **changes):
    data = base(kind)
    data["model"] |= changes.pop("model", {})
    return data | changes


def load(data, tmp_path, **options):
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(data), encoding="utf-8")
    return load_tokenizer(file, **options)


def placed(data, seed, count=150):
    """Random texts in which every added token stands in all kinds of places."""
    rng = random.Random(seed)
    tokens = [one["content"] for one in data["added_tokens"]]
    stretches = STRETCHES + tokens * 4 + [token[:-1] for token in tokens] + [token.upper() for token in tokens]
    return ["".join(rng.choices(stretches, k=rng.randint(0, 8))) for _ in range(count)]


def compare(tok, data, tmp_path):
    """Plain ids are those of a file without special tokens, parsed ones those of the file itself."""
    texts = [*TEXTS, *placed(data, 1)]
    assert rows(tok.encode_batch(texts, special="parse")) == HF(json.dumps(data)).ids(texts)
    home = load(data, tmp_path, engine="tokenizers")
    assert rows(tok.encode_batch(texts)) == rows(home.encode_batch(texts))
    some = set(list(tok.special_tokens)[::2])
    assert rows(tok.encode_batch(texts[:60], special=some)) == rows(home.encode_batch(texts[:60], special=some))
    assert [tok.encode(text).tolist() for text in texts[:40]] == rows(home.encode_batch(texts[:40]))


def renumbered(seed=5):
    """The same vocabulary with other ids."""
    data = base("bytes")
    ids = list(range(3, 3 + len(data["model"]["vocab"])))
    random.Random(seed).shuffle(ids)
    data["model"]["vocab"] = dict(zip(data["model"]["vocab"], ids, strict=True))
    data["added_tokens"] = [added(END, data["model"]["vocab"][END], special=True)]
    return data


def without_bytes(*missing):
    data = base("bytes")
    for byte in missing:
        del data["model"]["vocab"][CHARACTERS[byte]]
    return data


LLAMA = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "first", "split": False}
CARRIED_OUT = {
    "NFC": lambda: changed("bytes", normalizer={"type": "NFC"}),
    "NFKC, Lowercase": lambda: changed(
        "bytes", normalizer=sequence({"type": "NFKC"}, {"type": "Lowercase"}, of="normalizers")
    ),
    "NFD, StripAccents": lambda: changed(
        "bytes", normalizer=sequence({"type": "NFD"}, {"type": "StripAccents"}, of="normalizers")
    ),
    "NFKD": lambda: changed("bytes", normalizer={"type": "NFKD"}),
    "Prepend": lambda: changed("bytes", normalizer={"type": "Prepend", "prepend": "_"}),
    "Replace": lambda: changed("bytes", normalizer=replace("e", "aa")),
    "ignore_merges": lambda: changed("bytes", model={"ignore_merges": True}),
    "add_prefix_space": lambda: changed("bytes", pre_tokenizer=byte_level(add_prefix_space=True)),
    "a sequence of splits": lambda: changed(
        "bytes", pre_tokenizer=sequence(split(r"\p{N}{1,2}"), split("[a-f]+"), byte_level(use_regex=False))
    ),
    "Digits and a regex": lambda: changed(
        "bytes", pre_tokenizer=sequence({"type": "Digits", "individual_digits": False}, byte_level())
    ),
    "a split at a string": lambda: changed("bytes", pre_tokenizer=sequence(split("self"), byte_level())),
    "gaps removed where there are none": lambda: changed(
        "bytes", pre_tokenizer=sequence(split(PATTERNS["cl100k"], "Removed", True), byte_level(use_regex=False))
    ),
    "ids that are not ranks": renumbered,
    "bytes that UTF-8 never has": lambda: without_bytes(0xC0, 0xF5, 0xFF),
    "unk_token": lambda: changed("bytes", model={"unk_token": END, "fuse_unk": True}),
    "the same merge twice": lambda: changed(
        "bytes", model={"merges": base("bytes")["model"]["merges"] + base("bytes")["model"]["merges"][5:9]}
    ),
    "Llama": lambda: base("llama"),
    "Llama, always": lambda: changed("llama", normalizer=None, pre_tokenizer=LLAMA | {"prepend_scheme": "always"}),
    "Llama, first": lambda: changed("llama", normalizer=None, pre_tokenizer=LLAMA),
    "Llama, never": lambda: changed("llama", normalizer=None, pre_tokenizer=LLAMA | {"prepend_scheme": "never"}),
    "Gemma": lambda: changed("llama", normalizer=replace(" ", SPACE), pre_tokenizer=split(" ", "MergedWithPrevious")),
    "NFC and Llama": lambda: changed(
        "llama",
        normalizer=sequence(
            {"type": "NFC"}, {"type": "Prepend", "prepend": SPACE}, replace(" ", SPACE), of="normalizers"
        ),
    ),
    "Llama without byte fallback": lambda: changed("llama", model={"byte_fallback": False}),
    "Llama without byte fallback, unknown one by one": lambda: changed(
        "llama", model={"byte_fallback": False, "fuse_unk": False}
    ),
    "BERT": lambda: base("words"),
    "BERT, cased": lambda: changed(
        "words",
        normalizer={
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": False,
            "strip_accents": None,
            "lowercase": False,
        },
    ),
    "BERT, short words": lambda: changed("words", model={"max_input_chars_per_word": 5}),
}
WITH_FLAGS = {
    "bytes": [
        added(END, 0, special=True),
        added("<|a|>", 2500, special=True, lstrip=True),
        added("<|a|>b", 2501, rstrip=True),
        added("the", 2502, single_word=True),
        added("self", 2503, single_word=True, lstrip=True, rstrip=True, special=True),
        added("é", 2504, normalized=True),
        added("The", 2505, normalized=True, lstrip=True),
        added("return", 2506, normalized=True, special=True, rstrip=True),
    ],
}
WITH_FLAGS["llama"] = [
    *(added(text, i, special=True) for i, text in enumerate(("<unk>", "<s>", "</s>"))),
    *({**one, "normalized": False} for one in WITH_FLAGS["bytes"][1:]),
]
WITH_FLAGS["words"] = [
    *(added(text, i, special=True) for i, text in enumerate(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"))),
    added("<a>", 1200, special=True, lstrip=True),
    added("<a>b", 1201, rstrip=True),
    added("<c>", 1202, single_word=True, lstrip=True, rstrip=True),
]


def numbered(kind):
    """The base with added tokens of every flag, numbered from where the vocabulary ends."""
    data = base(kind)
    vocab = data["model"]["vocab"]
    data["added_tokens"], following = copy.deepcopy(WITH_FLAGS[kind]), len(vocab)
    for one in data["added_tokens"]:
        one["id"] = vocab.get(one["content"], following)
        following += one["content"] not in vocab
    return data


CARRIED_OUT |= {
    "added tokens": lambda: numbered("bytes"),
    "added tokens and NFKC": lambda: numbered("bytes") | {"normalizer": {"type": "NFKC"}},
    "added tokens and a space before": lambda: numbered("bytes") | {"pre_tokenizer": byte_level(add_prefix_space=True)},
    "added tokens and Llama": lambda: numbered("llama"),
    "added tokens and Llama, first": lambda: numbered("llama") | {"normalizer": None, "pre_tokenizer": LLAMA},
    "added tokens and BERT": lambda: numbered("words"),
}


@pytest.mark.parametrize("name", CARRIED_OUT)
def test_a_setting_is_carried_out_as_hf_does(name, tmp_path):
    data = CARRIED_OUT[name]()
    if not TRAINERS and name in ONLY_OLD:
        pytest.skip(f"tokenizers 1.0 {ONLY_OLD[name]}")
    tok = load(data, tmp_path)
    assert tok.engine.name == "piecemill", tok.engine.why
    compare(tok, data, tmp_path)


ONLY_OLD = {
    "add_prefix_space": "refuses it",
    "added tokens and a space before": "refuses add_prefix_space",
    "a sequence of splits": "carries out no regex but the named ones",
    "added tokens and Llama": "finds single words otherwise after stripped space",
    "added tokens and Llama, first": "finds single words otherwise after stripped space",
    "added tokens and BERT": "finds single words otherwise after stripped space",
}
"What 1.0.0rc3 refuses, or does otherwise than 0.2x."

LEFT = {
    "Piecemill has no encoder for WordLevel models": lambda: changed(
        "words", model={"type": "WordLevel", "unk_token": "[UNK]"}
    ),
    "model.end_of_word_suffix is '</w>'": lambda: changed("bytes", model={"end_of_word_suffix": "</w>"}),
    "model.continuing_subword_prefix is '##'": lambda: changed(
        "bytes", model={"continuing_subword_prefix": "##", "merges": []}
    ),
    "ByteLevel puts a space before every piece": lambda: changed(
        "bytes", pre_tokenizer=sequence(split("[0-9]"), byte_level(add_prefix_space=True))
    ),
    "does not carry out the pre-tokenizer Punctuation": lambda: changed(
        "bytes", pre_tokenizer=sequence({"type": "Punctuation", "behavior": "Isolated"}, byte_level())
    ),
    "a Split with behavior 'MergedWithNext'": lambda: changed(
        "bytes", pre_tokenizer=sequence(split("[0-9]", "MergedWithNext"), byte_level())
    ),
    "a Split with behavior 'Removed' and invert": lambda: changed(
        "bytes", pre_tokenizer=sequence(split(r"\p{L}+| ", "Removed", True), byte_level())
    ),
    "there is no token for byte 0x41": lambda: (
        without_bytes(0x41) | {"model": without_bytes(0x41)["model"] | {"merges": []}}
    ),
    "does not carry out the normalizer Nmt": lambda: changed("bytes", normalizer={"type": "Nmt"}),
    "a normalizer that replaces a regex": lambda: changed("bytes", normalizer=replace("[0-9]", "0", "Regex")),
    "Metaspace cuts texts at spaces": lambda: changed("llama", normalizer=None, pre_tokenizer=LLAMA | {"split": True}),
    "Metaspace writes spaces as '_'": lambda: changed(
        "llama", normalizer=None, pre_tokenizer=LLAMA | {"replacement": "_"}
    ),
    "spaces are not written as U": lambda: changed("llama", normalizer=None),
    "the pre-tokenizer Whitespace without ByteLevel": lambda: changed("llama", pre_tokenizer={"type": "Whitespace"}),
    "the added token '<s>' is matched after normalization, with a space": lambda: changed(
        "llama", added_tokens=[one | {"normalized": True} for one in base("llama")["added_tokens"][1:]]
    ),
    "model.ignore_merges is true for BPE over characters": lambda: changed("llama", model={"ignore_merges": True}),
    "neither byte fallback nor an unk_token": lambda: changed(
        "llama", model={"byte_fallback": False, "unk_token": None}
    ),
    "WordPiece with the normalizer None": lambda: changed("words", normalizer=None),
    "WordPiece with the pre-tokenizer Whitespace": lambda: changed("words", pre_tokenizer={"type": "Whitespace"}),
    "the added token '<x>' is matched after normalization": lambda: changed(
        "words", added_tokens=[*base("words")["added_tokens"], added("<x>", 1200, normalized=True)]
    ),
    "the added token 'word' could be a part of a word": lambda: changed(
        "words", added_tokens=[*base("words")["added_tokens"], added("word", 1200)]
    ),
    "gives the added token '<x>' another id than the file": lambda: changed(
        "bytes", added_tokens=[added(END, 0, special=True), added("<x>", 7000, special=True)]
    ),
}


@needs_trainers
@pytest.mark.parametrize("reason", LEFT)
def test_any_other_setting_is_left_to_hf_with_the_reason(reason, tmp_path):
    data = LEFT[reason]()
    tok = load(data, tmp_path)
    assert tok.engine.name == "tokenizers"
    assert reason in tok.engine.why
    assert rows(tok.encode_batch(TEXTS[:30], special="parse")) == HF(json.dumps(data)).ids(TEXTS[:30])
    with pytest.raises(TokenizerError, match=r"engine='piecemill': "):
        load(data, tmp_path, engine="piecemill")


def test_special_tokens_that_are_hidden_do_not_renumber_the_others(tmp_path):
    data = changed(
        "bytes", added_tokens=[added(END, 0, special=True), added("<s>", 2500, special=True), added("<x>", 2501)]
    )
    for engine in (None, "tokenizers"):
        tok = load(data, tmp_path, engine=engine)
        assert tok.encode("<x>").tolist() == [2501]
        assert 2500 not in tok.encode("<s>")
        assert (tok.vocab_size, tok.id_of("<x>"), tok.id_of(b"<s>")) == (2502, 2501, 2500)


def added_id(data, token):
    """The id that HF gives an added token."""
    vocab = data["model"]["vocab"]
    new = [one["content"] for one in data["added_tokens"] if one["content"] not in vocab]
    return vocab[token["content"]] if token["content"] in vocab else len(vocab) + new.index(token["content"])


DECODERS = {
    "ByteLevel": ("bytes", byte_level()),
    "none": ("words", None),
    "WordPiece": ("words", {"type": "WordPiece", "prefix": "##", "cleanup": True}),
    "WordPiece, as it is": ("words", {"type": "WordPiece", "prefix": "##", "cleanup": False}),
    "Metaspace": ("llama", LLAMA),
    "Metaspace, never": ("llama", LLAMA | {"prepend_scheme": "never"}),
    "Llama": ("llama", None),
    "Gemma": ("llama", sequence(replace(SPACE, " "), {"type": "ByteFallback"}, {"type": "Fuse"}, of="decoders")),
    "by HF": ("words", {"type": "BPEDecoder", "suffix": "</w>"}),
}


@pytest.mark.parametrize("name", DECODERS)
def test_any_ids_are_decoded_as_hf_does(name, tmp_path):
    kind, decoder = DECODERS[name]
    data = numbered(kind)
    if name != "Llama":
        data["decoder"] = decoder
    if TRAINERS:  # which reads an added token as bytes if it can
        data["added_tokens"] = [one for one in data["added_tokens"] if one["content"] != "é"]
        data["added_tokens"] = [{**one, "id": added_id(data, one)} for one in data["added_tokens"]]
    tok, hf = load(data, tmp_path), HF(json.dumps(data))
    rng = np.random.default_rng(1)
    ids = [rng.integers(0, tok.vocab_size, rng.integers(0, 9)).tolist() for _ in range(400)]
    ids += [rng.integers(0, min(300, tok.vocab_size), 6).tolist() for _ in range(200)]
    want = [hf.decode(row) for row in ids]
    assert [tok.decode(row) for row in ids] == want
    ends = np.cumsum([len(row) for row in ids])
    assert tok.decode_batch([i for row in ids for i in row], ends) == want
    if name == "by HF":
        with pytest.raises(TokenizerError, match=r"decode_bytes: a token of .* has no bytes; use decode"):
            tok.decode_bytes([1])
    with pytest.raises(TokenizerError, match=r"ids\[1\] is 99999"):
        tok.decode([0, 99999])


NORMALIZED = {
    "lowercase": ("bytes", {"type": "Lowercase"}),
    "several": ("bytes", sequence({"type": "NFC"}, replace("Two", "One"), {"type": "StripAccents"}, of="normalizers")),
    "Llama": ("llama", sequence({"type": "Prepend", "prepend": SPACE}, replace(" ", SPACE), of="normalizers")),
    "BERT, by HF": ("words", None),  # its own
}


@pytest.mark.parametrize("name", NORMALIZED)
def test_normalized_added_tokens_are_decoded_as_hf_does(name, tmp_path):
    kind, normalizer = NORMALIZED[name]
    data = base(kind) if normalizer is None else changed(kind, normalizer=normalizer)
    vocab = data["model"]["vocab"]
    texts = [text for text in ("<Two Words>", "<Kept>") if text not in vocab]
    data["added_tokens"] += [
        added(text, len(vocab) + i, normalized=text != "<Kept>", special=True) for i, text in enumerate(texts)
    ]
    tok, hf = load(data, tmp_path), HF(json.dumps(data))
    first, last = tok.vocab_size - 2, tok.vocab_size - 1
    for ids in ([first], [last], [first, last, 300, first, 301, last]):
        assert tok.decode(ids) == hf.decode(ids)


# vocab.json and merges.txt


def test_vocab_json_and_merges_txt_are_gpt2(shared, stdlib_texts):
    whole = load_tokenizer(shared / "vocabs" / "gpt2")
    texts = [*TEXTS, *stdlib_texts[:5]]
    for name in ("vocab.json", "merges.txt"):
        tok = load_tokenizer(shared / "vocabs" / "gpt2" / name)
        assert (tok.kind, tok.engine.name, tok.special_tokens) == ("byte-level BPE", "piecemill", {END: 50256})
        assert tok.identity == whole.identity
        assert rows(tok.encode_batch(texts, special="parse")) == rows(whole.encode_batch(texts, special="parse"))


def test_roberta_is_gpt2_with_other_ids_and_a_space_before(shared, tmp_path):
    for source, name in (("roberta", "vocab.json"), ("gpt2", "merges.txt")):
        (tmp_path / name).write_bytes((shared / "vocabs" / source / name).read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"add_prefix_space": True, "eos_token": "</s>"}))
    tok, gpt2 = load_tokenizer(tmp_path), load_tokenizer(shared / "vocabs" / "gpt2")
    assert tok.engine.name == "piecemill", tok.engine.why
    assert set(tok.special_tokens) == {"<s>", "<pad>", "</s>", "<unk>", "<mask>", END}
    spelled = json.loads((shared / "vocabs" / "roberta" / "vocab.json").read_text(encoding="utf-8"))
    names = {i: text for text, i in json.loads((shared / "vocabs/gpt2/vocab.json").read_text()).items()}
    for text in TEXTS[:40]:
        before = "" if text.startswith(" ") or not text else " "
        want = [spelled[names[i]] for i in gpt2.encode(before + text).tolist()]
        assert tok.encode(text).tolist() == want
    tok.save(tmp_path / "saved")
    assert load_tokenizer(tmp_path / "saved").identity == tok.identity
    if not TRAINERS:
        pytest.skip("tokenizers 1.0 refuses add_prefix_space")
    home = load_tokenizer(tmp_path, engine="tokenizers")
    texts = ["<s>a</s> b<mask>", *TEXTS]
    assert rows(tok.encode_batch(texts, special="parse")) == rows(home.encode_batch(texts, special="parse"))


def test_one_of_the_two_files_is_an_error_that_names_the_other(tmp_path):
    (tmp_path / "vocab.json").write_text("{}")
    with pytest.raises(TokenizerError, match=r"holds no tokenizer\.json.*nor vocab\.json with merges\.txt"):
        load_tokenizer(tmp_path)
    with pytest.raises(TokenizerError, match=r"holds no merges\.txt; vocab\.json and merges\.txt belong together"):
        load_tokenizer(tmp_path / "vocab.json")
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b c\n")
    with pytest.raises(TokenizerError, match=r"merges\.txt: 'a b c' is not a merge"):
        load_tokenizer(tmp_path)
