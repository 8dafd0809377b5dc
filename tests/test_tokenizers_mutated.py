"""Tokenizer files that were changed and stay valid: the ids of the home library given the same file, or an error."""

import json
import random

import numpy as np
import pytest
import sentencepiece
import tiktoken
from sentencepiece import sentencepiece_model_pb2

from corpora import small_tokenizer
from hf import HF, needs_own_regex, needs_trainers
from models import AS_IT_IS, sentencepiece_model
from piecemill.errors import TokenizerError
from piecemill.tokenizers import load_tokenizer
from piecemill.tokenizers.pretokenizers import PATTERNS
from test_tokenizer_json import added, base, byte_level, changed, load, replace, sequence, split

TEXTS = [
    "",
    "a",
    "hello world's 1234  \n\t x",
    "naïve 日本 😀 e\u0301",
    "<|endoftext|> <s> <unk> [UNK] <0x41> ▁▁",
    "\x00\x7f\x85",
]
TEXTS += ["aa" * 40, " " * 50, "the the of data self import  the   é", "[CLS]the [SEP] İI ﬁ ½ ß", "don't DON'T 1,000.5"]
CONTENTS = ["the", "he", "a", " ", "  ", "é", "e\u0301", "<new>", "ﬁ", "Hello", "\n", "▁the", "Ġthe", "<s>", "[MASK]"]
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bases")
    small_tokenizer().save(folder / "saved")
    small = json.loads((folder / "saved" / "tokenizer.json").read_text())
    digits = small | {"pre_tokenizer": sequence({"type": "Digits", "individual_digits": True}, byte_level())}
    nfc, whole = small | {"normalizer": {"type": "NFC"}}, small | {"model": small["model"] | {"ignore_merges": True}}
    return {
        "small": small,
        "digits": digits,
        "nfc": nfc,
        "whole": whole,
        "llama": base("llama"),
        "words": base("words"),
    }


def change(data, rng):
    """One change that leaves the file valid, or nearly so, and may change ids."""
    model, known = data["model"], data["added_tokens"]
    vocab, merges = model["vocab"], model.get("merges", [])
    how = rng.randrange(14 if merges else 8)
    one, two = rng.sample(list(vocab), 2)
    if how == 0:
        vocab[one], vocab[two] = vocab[two], vocab[one]
    elif how == 1:
        vocab[one] = vocab[two]
    elif how == 2:
        del vocab[one]
    elif how == 3:
        vocab[rng.choice(["zz", "Ġzz", "é", "<new>", " ", "##zz", "▁zz"])] = len(vocab) + rng.choice([0, 1, 5])
    elif how == 4:
        content = rng.choice([*CONTENTS, one])
        number = rng.choice([max(vocab.values()) + 1, len(vocab), vocab.get(content, 0)])
        flags = {flag: rng.random() < 0.3 for flag in FLAGS}
        known.insert(rng.randrange(len(known) + 1), added(content, number, **flags))
    elif how == 5 and known:
        token, flag = rng.choice(known), rng.choice(FLAGS)
        token[flag] = not token[flag]
    elif how == 6:
        step = rng.choice(
            [{"type": "NFD"}, {"type": "Lowercase"}, replace("he", ""), {"type": "Prepend", "prepend": "x"}]
        )
        old = data["normalizer"]
        steps = [] if not old else old["normalizers"] if old["type"] == "Sequence" else [old]
        at = rng.randrange(len(steps) + 1)
        data["normalizer"] = sequence(*steps[:at], step, *steps[at:], of="normalizers")
    elif how == 7:
        step = rng.choice(
            [
                byte_level(rng.random() < 0.5),
                {"type": "Digits", "individual_digits": False},
                {"type": "Whitespace"},
                split(rng.choice([r"\s+", r"\p{N}{1,3}", "self", "(?i)the"]), rng.choice(["Isolated", "Removed"])),
            ]
        )
        old = data["pre_tokenizer"]
        steps = [] if not old else old["pretokenizers"] if old["type"] == "Sequence" else [old]
        at = rng.randrange(len(steps) + 1)
        data["pre_tokenizer"] = sequence(*steps[:at], step, *steps[at:])
    elif how == 8:
        del merges[rng.randrange(len(merges))]
    elif how == 9:
        merges.insert(rng.randrange(len(merges) + 1), rng.choice(merges))
    elif how == 10:
        rng.shuffle(merges)
    elif how == 11:  # another way to spell a token
        token = rng.choice([text for text in vocab if len(text) > 1])
        at = rng.randrange(1, len(token))
        merges.insert(rng.randrange(len(merges) + 1), [token[:at], token[at:]])
    elif how == 12:
        vocab.setdefault(one + two, max(vocab.values()) + 1)
        merges.insert(rng.randrange(len(merges) + 1), [one, two])
    else:
        model[rng.choice(["ignore_merges", "fuse_unk", "byte_fallback"])] = rng.random() < 0.7


def texts_of(tokenizer, rng):
    """Texts of any tokens, so that those that were changed occur."""
    for _ in range(12):
        ids = rng.choices(range(tokenizer.vocab_size), k=rng.choice([1, 2, 5, 30]))
        try:
            yield tokenizer.decode(ids).replace("\ufffd", "é")
        except TokenizerError:  # an id without a token
            yield ""


def rows(encoded):
    ids, ends = encoded
    return [row.tolist() for row in np.split(ids, ends[:-1])]


def home_ids(call):
    """What the home library gives; None if it refuses the file or panics."""
    try:
        return [list(row) for row in call()]
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException:  # noqa: BLE001 - a panic is no Exception
        return None


@needs_trainers
@needs_own_regex
@pytest.mark.parametrize("name", ["small", "digits", "nfc", "whole", "llama", "words"])
def test_a_changed_tokenizer_json_gives_the_ids_of_hf_or_an_error(bases, tmp_path, name):
    rng, own, same = random.Random(name), 0, 0
    for _ in range(50):
        data = json.loads(json.dumps(bases[name]))
        for _ in range(rng.choice([1, 1, 2, 3])):
            change(data, rng)
        try:
            tokenizer = load(data, tmp_path)
            texts = [*TEXTS, *texts_of(tokenizer, rng)]
            found, plain = (rows(tokenizer.encode_batch(texts, special=kind)) for kind in ("parse", "plain"))
        except TokenizerError:
            continue
        own += tokenizer.engine.name == "piecemill"
        want = home_ids(lambda data=data, texts=texts: HF(json.dumps(data)).ids(texts))
        if want is None:
            continue
        assert found == want, (data["added_tokens"], data["pre_tokenizer"], data["normalizer"])
        home = load(data, tmp_path, engine="tokenizers")
        assert plain == rows(home.encode_batch(texts))
        if tokenizer.exact:
            assert tokenizer.decode_batch(*tokenizer.encode_batch(texts)) == texts
        same += 1
    assert min(own, same) > 10, (own, same)  # or nothing was compared


@pytest.mark.parametrize("options", [{}, {"add_dummy_prefix": False, "user_defined_symbols": "<sep>,hello"}])
def test_a_changed_sentencepiece_model_gives_the_ids_of_the_library_or_an_error(tmp_path, options):
    rng, own, same = random.Random(3), 0, 0
    content = sentencepiece_model("bpe", **AS_IT_IS, **options)
    for _ in range(60):
        model = sentencepiece_model_pb2.ModelProto.FromString(content)
        for _ in range(rng.choice([1, 1, 2])):
            change_model(model, rng)
        file = tmp_path / "m.model"
        file.write_bytes(model.SerializeToString())
        try:
            tokenizer = load_tokenizer(file)
            texts = [*TEXTS, *texts_of(tokenizer, rng)]
            found = rows(tokenizer.encode_batch(texts))
        except TokenizerError:
            continue
        own += tokenizer.engine.name == "piecemill"

        def by_library(file=file, texts=texts):
            return sentencepiece.SentencePieceProcessor(model_proto=file.read_bytes()).encode(texts, out_type=int)

        want = home_ids(by_library)
        assert want is None or found == want
        same += want is not None
    assert min(own, same) > 10, (own, same)


def change_model(model, rng):
    pieces = model.pieces
    one, two = rng.choice(pieces), rng.choice(pieces)
    how = rng.randrange(8)
    if how == 0:
        one.score, two.score = two.score, one.score
    elif how == 1:
        one.score = rng.choice([two.score, 0.0, 5.0, -1e30, float("inf")])
    elif how == 2:
        one.type = rng.choice([1, 2, 3, 4, 5, 6])
    elif how == 3:
        one.piece = rng.choice(["", two.piece, "zz", "▁the", "a b", "<0x41>", "▁", "\n", "é"])
    elif how == 4:
        del pieces[rng.randrange(len(pieces))]
    elif how == 5:
        pieces.add(piece=one.piece + two.piece, score=rng.choice([one.score, -1e5, 1.0]), type=1)
    elif how == 6:
        field = rng.choice(["add_dummy_prefix", "remove_extra_whitespaces", "escape_whitespaces"])
        setattr(model.normalizer_spec, field, not getattr(model.normalizer_spec, field))
    else:
        field = rng.choice(["byte_fallback", "treat_whitespace_as_suffix"])
        setattr(model.trainer_spec, field, not getattr(model.trainer_spec, field))


def test_changed_ranks_give_the_ids_of_tiktoken_or_an_error(tmp_path):
    small_tokenizer().save(tmp_path / "saved")
    lines = (tmp_path / "saved" / "ranks.tiktoken").read_bytes().splitlines()
    rng, same = random.Random(4), 0
    for _ in range(60):
        mine = list(lines)
        for _ in range(rng.choice([1, 2, 3])):
            at, other = rng.randrange(len(mine) - 20, len(mine)), rng.randrange(len(mine))
            how = rng.randrange(4)
            if how == 0:
                del mine[at]
            elif how == 1:
                mine[at] = mine[other]
            elif how == 2:
                mine[at], mine[other] = (
                    mine[a].split()[0] + b" " + mine[b].split()[1] for a, b in ((at, other), (other, at))
                )
            else:
                mine[at] = rng.choice([b"IGFh", b"aGVsbG8=", b"aGU=", b"IA=="]) + b" %d" % rng.choice(
                    [5, 300, 400, 9999]
                )
        file = tmp_path / "r.tiktoken"
        file.write_bytes(b"\n".join(mine))
        try:
            tokenizer = load_tokenizer(file, pretokenizer="gpt2")
            texts = [*TEXTS, *texts_of(tokenizer, rng)]
        except TokenizerError:
            continue
        assert tokenizer.engine.name == "piecemill"
        home = tiktoken.Encoding(
            "r", pat_str=PATTERNS["gpt2"], mergeable_ranks=tokenizer.model.ranks, special_tokens={}
        )
        assert rows(tokenizer.encode_batch(texts)) == [home.encode_ordinary(text) for text in texts]
        same += 1
    assert same > 20


@needs_trainers
@pytest.mark.parametrize(
    "steps",
    [
        [byte_level(use_regex=False), byte_level(use_regex=False)],  # bytes are spelled twice
        [byte_level(use_regex=False), split(r"\p{N}{1,3}"), byte_level(use_regex=False)],
        [byte_level(), {"type": "Digits", "individual_digits": True}],
    ],
)
def test_steps_behind_a_byte_level_step_are_left_to_hf(tmp_path, steps):
    data = changed("bytes", pre_tokenizer=sequence(*steps))
    tokenizer = load(data, tmp_path)
    assert tokenizer.engine.name == "tokenizers"
    assert not tokenizer.exact
    assert rows(tokenizer.encode_batch(TEXTS, special="parse")) == HF(json.dumps(data)).ids(TEXTS)


def test_byte_tokens_that_are_special_still_spell_bytes_in_plain_text(tmp_path):
    data = base("llama")
    number = data["model"]["vocab"]["<0x07>"]
    data["added_tokens"].insert(1, added("<0x07>", number, special=True))
    for engine in ("piecemill", "tokenizers"):
        tokenizer = load(data, tmp_path, engine=engine)
        assert number in tokenizer.encode("a\x07b")
        assert number not in tokenizer.encode("a<0x07>b")
        assert number in tokenizer.encode("a<0x07>b", special="parse")


def test_two_tokens_of_one_id_are_not_exact(tmp_path):
    vocab = base("bytes")["model"]["vocab"]
    data = changed("bytes", model={"vocab": {**vocab, "x": vocab["y"]}})
    tokenizer = load(data, tmp_path)
    assert tokenizer.decode(tokenizer.encode("xy")) != "xy"
    assert not tokenizer.exact


@pytest.mark.parametrize(("content", "text"), [("é", "釘"), ("Ġt", " t")])
def test_an_added_token_spelled_as_other_bytes_is_not_exact(tmp_path, content, text):
    data = base("bytes")
    vocab = data["model"]["vocab"]
    data["added_tokens"].append(added(content, vocab.setdefault(content, len(vocab))))
    data["model"]["merges"] = [["Ġ", "t"]] if content == "Ġt" else data["model"]["merges"]
    tokenizer = load(data, tmp_path)
    assert tokenizer.decode(tokenizer.encode(text)) != text
    assert not tokenizer.exact


@needs_trainers
def test_a_regex_that_only_hf_compiles_is_left_to_hf_and_one_that_nobody_compiles_names_the_file(tmp_path):
    steps = [split(r"\y."), byte_level(use_regex=False)]  # a border of a text segment, which only Oniguruma knows
    data = changed("bytes", pre_tokenizer=sequence(*steps))
    tokenizer = load(data, tmp_path)
    assert tokenizer.engine.name == "tokenizers"
    assert rows(tokenizer.encode_batch(TEXTS, special="parse")) == HF(json.dumps(data)).ids(TEXTS)
    data["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {"Regex": "("}
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: HF tokenizers .* refused it"):
        load(data, tmp_path).encode("a")


def test_one_id_far_beyond_the_others_is_refused_before_tables_have_a_place_for_all_below_it(tmp_path):
    small_tokenizer().save(tmp_path / "saved")
    data = json.loads((tmp_path / "saved" / "tokenizer.json").read_text())
    data["model"]["vocab"]["the"] = (1 << 24) - 1
    with pytest.raises(TokenizerError, match=r"tokenizer\.json: the id of 'the' is 16777215; expected .* 1,048,575"):
        load(data, tmp_path)
    ranks = tmp_path / "saved" / "ranks.tiktoken"
    with pytest.raises(TokenizerError, match=r"the id of '<x>' is 2000000; expected .* 1,048,575"):
        load_tokenizer(ranks, pretokenizer="gpt2", special_tokens={"<x>": 2_000_000})
    data["model"]["vocab"]["the"] = 1_000_000  # some tokenizers have gaps
    assert load(data, tmp_path).vocab_size == 1_000_001
