"""WordPiece vocabularies: the trainer against its definition and against HF's, and what is saved."""

import json
import unicodedata
from collections import Counter

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

import piecemill as pm
from command import piecemill as run
from hf import HF, needs_trainers
from models import SCRIPTS
from piecemill import _core
from piecemill.errors import PlanError
from piecemill.reference import wordpiece as reference
from piecemill.tokenizers import load_tokenizer, verify
from piecemill.tokenizers.texts import flatten
from piecemill.training import wordpiece
from vocabularies import NASTY, library_texts

SPECIAL = list(wordpiece.ROLES.values())
TEXTS = st.lists(st.text("abAÀé ,#中ẞ\n\u0301", max_size=12), min_size=1, max_size=8).filter(any)
LIBRARY = [*library_texts(12), *SCRIPTS]


def vocabulary(tok):
    return sorted(tok.model.vocab, key=tok.model.vocab.__getitem__)


def definition(texts, vocab_size, *, lowercase=True, strip_accents=None, **options):
    counts = Counter()
    for text in texts:
        counts.update(reference.words(text, lowercase=lowercase, strip_accents=strip_accents))
    return reference.train(counts, vocab_size, **options)


def hf_vocabulary(texts, vocab_size, *, lowercase=True, strip_accents=None, **options):
    from tokenizers import models, normalizers, pre_tokenizers, trainers

    made = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=strip_accents)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.train_from_iterator(texts, trainers.WordPieceTrainer(vocab_size=vocab_size, show_progress=False, **options))
    vocab = made.get_vocab()
    return sorted(vocab, key=vocab.__getitem__)


def inside_of(vocabulary):
    """The symbols that continue words, in the order in which HF happened to meet them."""
    return [text[2:] for text in vocabulary if text.startswith("##") and len(text) == 3]


def learned(texts, order, **options):
    """What our trainer learns, with the symbols that continue words in another order."""
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in options.items()}
    plan = wordpiece.WordPiecePlan(**given)
    counter = _core.WordCounter(wordpiece.RAW_WORDS, 1 << 30, "")
    counter.add(*flatten(texts))
    words = wordpiece.spelled(*counter.finish().arrays(), plan, 1)
    initial = wordpiece.Initial.of(words, plan, order.index)
    merges = initial.corpus(words, plan, 1).train(_core.Progress()).merges
    return initial.vocabulary(merges.tolist())


@settings(deadline=None, max_examples=120)
@given(
    TEXTS,
    st.integers(0, 25),
    st.booleans(),
    st.sampled_from([None, True, False]),
    st.integers(0, 3),
    st.sampled_from([None, 1, 2, 4]),
    st.sampled_from([[], ["ab"], ["##ab", "aba"], ["中"]]),
)
def test_every_entry_is_that_of_the_definition(texts, more, lowercase, strip_accents, least, limit, special):
    options = {
        "lowercase": lowercase,
        "strip_accents": strip_accents,
        "min_frequency": least,
        "limit_alphabet": limit,
        "special_tokens": [*SPECIAL, *special],
    }
    first = len(definition(texts, 0, **options))
    if more == 0 and first > len(options["special_tokens"]):
        with pytest.raises(PlanError, match=f"need {first}"):
            pm.train_wordpiece(texts, vocab_size=first - 1, **options)
    tok = pm.train_wordpiece(texts, vocab_size=first + more, **options)
    assert vocabulary(tok) == definition(texts, first + more, **options)


@needs_trainers
@settings(deadline=None, max_examples=60)
@given(TEXTS, st.integers(0, 20), st.booleans(), st.sampled_from([None, True, False]), st.integers(0, 3))
def test_every_entry_is_that_of_tokenizers(texts, more, lowercase, strip_accents, least):
    options = {"lowercase": lowercase, "strip_accents": strip_accents, "min_frequency": least}
    first = len(definition(texts, 0, special_tokens=SPECIAL, **options))
    wanted = hf_vocabulary(texts, first + more, special_tokens=SPECIAL, **options)
    inside = inside_of(wanted[:first])
    assert definition(texts, first + more, special_tokens=SPECIAL, inside=inside, **options) == wanted
    assert learned(texts, inside, vocab_size=first + more, **options) == wanted


@needs_trainers
@pytest.mark.parametrize(
    "options",
    [
        {"vocab_size": 4000, "special_tokens": SPECIAL},
        {"vocab_size": 4000, "special_tokens": SPECIAL, "lowercase": False},
        {
            "vocab_size": 30000,
            "special_tokens": [*SPECIAL, "self", "##ing"],
            "min_frequency": 3,
            "strip_accents": False,
        },
    ],
)
def test_a_vocabulary_of_the_library_is_that_of_tokenizers(options):
    wanted = hf_vocabulary(LIBRARY, **options)
    inside = inside_of(wanted)
    assert learned(LIBRARY, inside, **options) == wanted
    # With ties by code point: the same symbols, and all but a few of the same merges.
    ours = vocabulary(pm.train_wordpiece(LIBRARY, **options))
    first = ours.index("##" + max(inside)) + 1
    assert sorted(ours[:first]) == sorted(wanted[:first])
    assert ours[: first - len(inside)] == wanted[: first - len(inside)]
    assert len(set(ours) ^ set(wanted)) < 0.01 * len(wanted)


@needs_trainers
def test_the_alphabet_is_limited_as_in_tokenizers():
    seen = Counter(c for text in LIBRARY for word in reference.words(text) for c in word)
    ranked = sorted(seen.values(), reverse=True)
    limit = next(at for at in range(60, 200) if ranked[at] < ranked[at - 1])  # no tie, of which HF takes any
    options = {"vocab_size": 1500, "special_tokens": SPECIAL, "limit_alphabet": limit}
    wanted = hf_vocabulary(LIBRARY, **options)
    assert learned(LIBRARY, inside_of(wanted), **options) == wanted


@pytest.mark.parametrize("options", [{}, {"lowercase": False}, {"lowercase": False, "strip_accents": True}])
def test_the_saved_folder_opens_everywhere(tmp_path, options):
    transformers = pytest.importorskip("transformers")
    tok = pm.train_wordpiece(LIBRARY, vocab_size=3000, **options)
    assert tok.engine.name == "piecemill"
    tok.save(tmp_path / "tok")
    again = load_tokenizer(tmp_path / "tok")
    assert again.identity == tok.identity
    assert again.roles == wordpiece.ROLES
    assert (tmp_path / "tok/vocab.txt").read_text(encoding="utf-8").split("\n") == [*vocabulary(tok), ""]
    verify(again, [*NASTY, *LIBRARY])
    hf = HF((tmp_path / "tok/tokenizer.json").read_text(encoding="utf-8"))
    for loaded in (
        transformers.AutoTokenizer.from_pretrained(tmp_path / "tok"),
        transformers.BertTokenizerFast.from_pretrained(tmp_path / "tok"),
    ):
        for text in (*NASTY, *SCRIPTS, "Fünf [MASK] naïve Ärzte"):
            ids = again.encode(text, special="parse").tolist()
            assert ids == hf.ids([text])[0]
            assert loaded(text, add_special_tokens=False)["input_ids"] == ids
        found = loaded("def main", "return")
        around = [tok.id_of("[CLS]"), *tok.encode("def main"), 3, *tok.encode("return"), 3]
        assert (found["input_ids"], found["token_type_ids"][-2:]) == (around, [1, 1])
        assert loaded.mask_token == "[MASK]"
    # Every word of the corpus is known, and of words that occur often, most are one token.
    ids = tok.encode_batch(LIBRARY)[0]
    assert not (ids == tok.id_of("[UNK]")).any()


def test_characters_that_python_does_not_know_how_to_make_small_are_found():
    # Were Python's tables those of the core, this would be nothing special; the letter is taken out of Python's reach.
    texts = ["ẞ xb", "ÀÀ"]
    want = vocabulary(pm.train_wordpiece(texts, vocab_size=40))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unicodedata, "normalize", lambda form, text: "")
        assert vocabulary(pm.train_wordpiece(texts, vocab_size=40)) == want


def test_the_result_does_not_depend_on_threads_or_on_where_words_were_counted(tmp_path):
    want = pm.train_wordpiece(LIBRARY, vocab_size=1500).identity
    assert pm.train_wordpiece(LIBRARY[::-1], vocab_size=1500, threads=1, memory="64MiB").identity == want
    file = tmp_path / "counts.parquet"
    pm.train_wordpiece(LIBRARY, vocab_size=1400, save_counts=file)
    assert pm.train_wordpiece(from_counts=[file], vocab_size=1500).identity == want


def test_the_command(tmp_path):
    (tmp_path / "corpus").mkdir()
    for number, text in enumerate(LIBRARY):
        (tmp_path / f"corpus/{number}.txt").write_text(text, encoding="utf-8")
    words = ("train-wordpiece", tmp_path / "corpus", "--vocab-size", 2000, "--out", tmp_path / "tok", "--quiet")
    done = run(*words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("2,000 tokens (")
    assert (
        load_tokenizer(tmp_path / "tok").identity == pm.train_wordpiece(tmp_path / "corpus", vocab_size=2000).identity
    )
    record = json.loads((tmp_path / "tok/training.json").read_text())
    assert (record["plan"]["model"], record["plan"]["vocab_size"], record["vocab_size"]) == ("wordpiece", 2000, 2000)
    again = run(*words)
    assert (again.returncode, "already holds a tokenizer" in again.stderr) == (2, True)
    small = run(*words[:3], 20, *words[4:], "--force")
    assert (small.returncode, "--limit-alphabet 4" in small.stderr) == (2, True)
    cased = run(*words, "--no-lowercase", "--special-token", "[UNK]", "<x>", "--force", "--json")
    assert json.loads(cased.stdout)["plan"]["special_tokens"] == [*SPECIAL, "<x>"]
    new = load_tokenizer(tmp_path / "tok")
    assert np.unique(new.encode("Import")).tolist() != np.unique(new.encode("import")).tolist()
    shards = ("prepare", tmp_path / "corpus", "--tokenizer", tmp_path / "tok", "--out", tmp_path / "shards", "--quiet")
    done = run(*shards, "--eos", "none")
    assert done.returncode == 0, done.stderr


def test_what_cannot_be_learned_is_refused():
    for options, message in (
        ({"special_tokens": ["[PAD]"]}, r"\[UNK\] is missing"),
        ({"vocab_size": 0}, "vocab_size=0: expected a whole number"),
        ({"limit_alphabet": -1}, "limit_alphabet=-1: expected a whole number"),
        ({"vocabsize": 1}, "did you mean 'vocab_size'"),
        ({"threads": 0}, "threads=0"),
    ):
        with pytest.raises(PlanError, match=message):
            pm.train_wordpiece(["a"], **options)


@pytest.mark.parametrize("kind", ["bytes", "integers"])
def test_only_text_is_taken(kind):
    with pytest.raises(PlanError, match=f"{kind}.*text only"):
        pm.train_wordpiece(["some text"], vocab_size=100, **{kind: True})


def test_zero_and_one_are_no_and_yes():
    made = [pm.train_wordpiece(["Each É each é"], vocab_size=30, lowercase=value) for value in (False, 0, True, 1)]
    assert made[0].identity == made[1].identity != made[2].identity == made[3].identity
