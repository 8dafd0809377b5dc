"""Pruning: which tokens go, and that what is left encodes every text by the merges that are left."""

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import models
import piecemill as pm
from command import piecemill as run
from hf import HF
from piecemill._core import split_text
from piecemill.errors import PlanError, ShardError
from piecemill.reference import encode as reference
from piecemill.tokenizers import Tokenizer, load_tokenizer, verify
from piecemill.tokenizers.models.byte_level import CHARACTERS, bytes_of, characters_of
from piecemill.tokenizers.models.writing import added_token, pre_tokenizer
from piecemill.tokenizers.pretokenizers import pattern_of
from vocabularies import END, NASTY, SCRIPTS, library_texts

TEXTS = ["abcabca ba cab", "aabbcc abc cba", "bacabac", "aaaaaaaa", "\u00e9 abc\n", ""]


def data_of(tok):
    """The tokenizer.json of a tokenizer, parsed."""
    return json.loads(tok.model.tokenizer_json(tok.special_tokens))


def merged(word, places, skip=None):
    """The tokens of a word, by the definition; `skip` is a token that is not made."""
    rank = lambda left, right: None if left + right == skip else places.get((left, right))  # noqa: E731
    return reference.merge([bytes([byte]) for byte in word], rank)


def in_bytes(data):
    vocab = {bytes_of(text): i for text, i in data["model"]["vocab"].items() if bytes_of(text)}
    places = {tuple(map(bytes_of, pair)): at for at, pair in enumerate(data["model"]["merges"])}
    return vocab, places


def definition(data, counts, vocab_size):
    """The bytes of the removed tokens: every step looks at all tokens anew."""
    vocab, places = in_bytes(data)
    added = {one["content"] for one in data["added_tokens"]}
    left = {token: i for token, i in vocab.items() if characters_of(token) not in added}
    counts = {token: int(counts[i]) for token, i in vocab.items()}
    parts = {token: merged(token, places, token) for token in vocab}
    dead = {token for token in vocab if merged(token, places) != [token]}
    gone, total = [], len({*data["model"]["vocab"].values(), *(one["id"] for one in data["added_tokens"])})

    def standing(token):
        return [token] if token not in gone else [piece for part in parts[token] for piece in standing(part)]

    while total - len(gone) > vocab_size:
        needed = {part for token in vocab if token not in gone and token not in dead for part in parts[token]}
        free = [token for token in left if len(token) > 1 and token not in gone and token not in needed]
        if not free:
            return None
        place = {token: places[tuple(parts[token])] for token in free if token not in dead}
        best = min(free, key=lambda token: (counts[token], -place.get(token, len(places)), -left[token]))
        gone.append(best)
        for piece in [piece for part in parts[best] for piece in standing(part)]:
            counts[piece] += counts[best]
    return set(gone)


def check_laws(old, new, pruned, texts=TEXTS):
    """Whatever was removed: the rest is a tokenizer, its ids are those of the definition and of `tokenizers`."""
    data = data_of(new)
    vocab, places = in_bytes(data)
    whole = data["model"].get("ignore_merges", False)
    hf = HF(json.dumps(data))
    for text in texts:
        ids = new.encode(text).tolist()
        assert new.decode(ids) == text
        assert ids == hf.ids([text], plain=True)[0]
        assert not {new.special_tokens[one] for one in new.special_tokens if one.startswith("<|reserved")} & set(ids)
    for i, ids in pruned.mapping.items():
        if i not in old.special_tokens.values():
            assert b"".join(map(new.bytes_of, ids)) == old.bytes_of(i)
        token = old.bytes_of(i)
        if len(ids) > 1:
            assert ids == [vocab[part] for part in merged(token, places)]
    old_vocab, old_places = in_bytes(data_of(old))
    for token in set(old_vocab) & set(vocab):
        if merged(token, old_places) == [token]:
            assert merged(token, places) == [token]
    verify(new, list(texts))
    return vocab, places, whole


def words(text, pretokenizer):
    data = text.encode()
    return [data[start:end] for start, end in pairwise([0, *split_text(text, pretokenizer).tolist()])]


@settings(deadline=None, max_examples=80)
@given(
    st.lists(st.text("abc ", min_size=1, max_size=12), min_size=1, max_size=8),
    st.integers(0, 20),
    st.integers(0, 20),
    st.integers(0, 2**32),
    st.sampled_from(["dense", "stable"]),
    st.sampled_from([(END,), (), ("ab", "abc a")]),
)
def test_trained_vocabularies_obey_the_laws(texts, merges, fewer, seed, ids, special_tokens):
    first = 256 + len(special_tokens)
    old = pm.train_bpe([*texts, "x"], vocab_size=first + merges, pretokenizer="gpt2", special_tokens=special_tokens)
    size = max(old.vocab_size - fewer, 0)
    used = np.random.default_rng(seed).integers(0, 6, old.vocab_size)
    gone = definition(data_of(old), used, size)
    if gone is None:
        with pytest.raises(PlanError, match="must stay"):
            pm.prune(old, counts=used, vocab_size=size, ids=ids)
        return
    pruned = pm.prune(old, counts=used, vocab_size=size, ids=ids)
    new = pruned.tokenizer
    assert {old.bytes_of(i) for i, found in pruned.mapping.items() if len(found) > 1} == gone
    assert new.kind == "byte-level BPE"
    vocab, places, _ = check_laws(old, new, pruned)
    for text in (*texts, *TEXTS):
        want = [vocab[part] for word in words(text, "gpt2") for part in merged(word, places)]
        assert new.encode(text).tolist() == want
    if ids == "dense":
        assert new.vocab_size == size
        order = [found[0] for found in pruned.mapping.values() if len(found) == 1]
        assert order == list(range(size))
    else:
        assert all(found == [i] for i, found in pruned.mapping.items() if len(found) == 1)
        assert new.vocab_size <= old.vocab_size
        assert len(new.special_tokens) == len(special_tokens) + new.vocab_size - size
        assert pruned.reserved == new.vocab_size - size
        assert (f"{size} tokens and {pruned.reserved} reserved id" in str(pruned)) == (pruned.reserved > 0)
    if not gone:
        assert new.identity == old.identity


@st.composite
def listed_vocabularies(draw):
    """A tokenizer.json with merges in any order, several of which may make one token, and some that never apply."""
    strings = list("abc")
    merges = []
    for _ in range(draw(st.integers(0, 14))):
        pair = draw(st.tuples(st.sampled_from(strings), st.sampled_from(strings)))
        if len("".join(pair)) < 7 and list(pair) not in merges:
            merges.append(list(pair))
            if "".join(pair) not in strings:
                strings.append("".join(pair))
    merges = draw(st.permutations(merges))
    whole = draw(st.booleans())
    extra = ["cabcab", "bbb"][: draw(st.integers(0, 2))]
    vocab = {text: i for i, text in enumerate(dict.fromkeys([*CHARACTERS, *strings, *extra]))}
    added = [added_token("<s>", len(vocab)), added_token("ab", vocab.get("ab", len(vocab) + 1)) | {"special": False}]
    return {
        "version": "1.0",
        "added_tokens": added[: draw(st.integers(0, 2))],
        "pre_tokenizer": pre_tokenizer(pattern_of("gpt2")),
        "post_processor": None,
        "decoder": pre_tokenizer(pattern_of("gpt2")),
        "model": {"type": "BPE", "ignore_merges": whole, "vocab": vocab, "merges": merges},
    }


@settings(deadline=None, max_examples=150)
@given(listed_vocabularies(), st.integers(0, 12), st.integers(0, 2**32), st.booleans())
def test_any_byte_level_tokenizer_json_obeys_the_laws(tmp_path_factory, data, fewer, seed, dense):
    file = tmp_path_factory.mktemp("given") / "tokenizer.json"
    file.write_text(json.dumps(data))
    old = load_tokenizer(file)
    # With the added tokens in the vocabulary, as `definition` reads it.
    model = {
        **data["model"],
        "vocab": data["model"]["vocab"] | {one["content"]: one["id"] for one in data["added_tokens"]},
    }
    entries = len(set(model["vocab"].values()))
    used = np.random.default_rng(seed).integers(0, 6, old.vocab_size)
    gone = definition({**data, "model": model}, used, entries - fewer)
    ids = "dense" if dense else "stable"
    if gone is None:
        with pytest.raises(PlanError, match="must stay"):
            pm.prune(old, counts=used, vocab_size=entries - fewer, ids=ids)
        return
    pruned = pm.prune(old, counts=used, vocab_size=entries - fewer, ids=ids)
    kept = {old.bytes_of(i) for i, found in pruned.mapping.items() if len(found) == 1}
    assert {old.bytes_of(i) for i in pruned.mapping} - kept == gone
    check_laws(old, pruned.tokenizer, pruned)
    pruned.tokenizer.save(file.parent / "new")
    assert load_tokenizer(file.parent / "new").identity == pruned.tokenizer.identity


def test_counts_fall_to_the_parts_so_that_they_are_not_removed_next():
    # Merges: a b, ab c, d e. "abc" is in every text, "ab" never alone; "de" is rarer than "abc".
    tok = Tokenizer.from_merges(np.array([[64, 65], [256, 66], [67, 68]]), pretokenizer="gpt2")
    counts = np.zeros(259, int)
    counts[[257, 258]] = 3, 5
    gone = lambda size: [i for i, ids in pm.prune(tok, counts=counts, vocab_size=size).mapping.items() if len(ids) > 1]  # noqa: E731
    assert gone(258) == [257]  # 256 has no count, but 257 needs it
    assert gone(257) == [256, 257]  # now 256 has the 3 of 257: fewer than 258
    counts[257] = 5
    assert gone(258) == [258]  # a tie: the later merge goes
    pruned = pm.prune(tok, counts=counts, vocab_size=256)
    assert pruned.mapping[257] == [64, 65, 66]
    assert pruned.bytes_per_token == (2.5, 1.0)
    assert (pruned.tokens, pruned.removed_tokens, pruned.removed) == (10, 10, 3)


def llama_like(folder):
    """Whole words first, every pretokenizer of a token as a merge, and a post-processor and a config that name ids."""
    plain = pm.train_bpe(list(library_texts(6)), vocab_size=600, pretokenizer="cl100k", special_tokens=[])
    data = data_of(plain)
    vocab = data["model"]["vocab"]
    pairs = [(vocab[text], [text[:at], text[at:]]) for text in vocab for at in range(1, len(text))]
    data["model"]["merges"] = [pair for _, pair in sorted(pairs) if set(pair) <= vocab.keys()]
    assert len(data["model"]["merges"]) > 400
    data["model"]["ignore_merges"] = True
    vocab["zyzzyva"] = 600
    data["added_tokens"] = [added_token("<|begin|>", 601), added_token("<think>", 602) | {"special": False}]
    template = [{"SpecialToken": {"id": "<|begin|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    special = {"<|begin|>": {"id": "<|begin|>", "ids": [601], "tokens": ["<|begin|>"]}}
    byte_level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}
    processor = {"type": "TemplateProcessing", "single": template, "pair": template, "special_tokens": special}
    data["post_processor"] = {"type": "Sequence", "processors": [byte_level, processor]}
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    decoder = {"601": {"content": "<|begin|>", "special": True, **flags}}
    decoder["602"] = {"content": "<think>", "special": False, **flags}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|begin|>", "added_tokens_decoder": decoder}
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps(data))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return load_tokenizer(folder)


def token_counts(tok, texts):
    return np.bincount(tok.encode_batch(texts)[0], minlength=tok.vocab_size)


@pytest.mark.parametrize("ids", ["dense", "stable"])
def test_every_id_that_the_files_name_is_the_new_one(tmp_path, ids):
    transformers = pytest.importorskip("transformers")
    old = llama_like(tmp_path / "old")
    texts = list(library_texts(6))
    pruned = pm.prune(old, counts=token_counts(old, texts), vocab_size=400, ids=ids, on=texts)
    new = pruned.tokenizer
    assert new.special_tokens["<|begin|>"] == (398 if ids == "dense" else 601)
    check_laws(old, new, pruned, [*NASTY, *texts[:2], "zyzzyva <think>x"])
    new.save(tmp_path / "new")
    loaded = transformers.AutoTokenizer.from_pretrained(tmp_path / "new")
    assert len(loaded) == new.vocab_size == (400 if ids == "dense" else 603)
    text = "def main(): <think> zyzzyva"
    want = [new.special_tokens["<|begin|>"], *new.encode(text, special="parse").tolist()]
    assert loaded(text)["input_ids"] == want
    assert loaded.convert_ids_to_tokens(want[:1]) == ["<|begin|>"]
    assert json.loads((tmp_path / "new/mapping.json").read_text()) == {
        str(i): list(found) for i, found in pruned.mapping.items()
    }
    size, before, after = pruned.measured
    assert size == sum(len(text.encode()) for text in texts)
    assert (before, after) == tuple(len(tok.encode_batch(texts)[0]) for tok in (old, new))
    assert pruned.bytes_per_token[0] == pytest.approx(size / before, rel=0.001)  # <think> is in no count
    assert pruned.bytes_per_token[1] == pytest.approx(size / after, rel=0.02)


@pytest.mark.parametrize("ids", ["dense", "stable"])
def test_ranks_become_a_tokenizer_json_in_the_order_of_the_ranks(tmp_path, ids):
    plain = pm.train_bpe(list(library_texts(6)), vocab_size=600, pretokenizer="cl100k", special_tokens=[])
    plain.save(tmp_path / "plain")
    old = load_tokenizer(
        tmp_path / "plain/ranks.tiktoken", pretokenizer="cl100k", special_tokens={END: 610, "<|fim|>": 612}
    )
    texts = list(library_texts(3))
    counts = token_counts(old, texts)
    pruned = pm.prune(old, counts=counts, vocab_size=402, ids=ids)
    same = pm.prune(plain, counts=counts[:600], vocab_size=400, ids=ids)
    ranked = lambda tok: [tok.bytes_of(i) for i in range(tok.vocab_size) if not tok.bytes_of(i).startswith(b"<|")]  # noqa: E731
    if ids == "dense":
        assert ranked(pruned.tokenizer) == ranked(same.tokenizer)
        assert pruned.tokenizer.special_tokens == {END: 400, "<|fim|>": 401}
    else:
        assert {END: 610, "<|fim|>": 612}.items() <= pruned.tokenizer.special_tokens.items()
    for text in (*NASTY, *texts):
        spelled = [[tok.bytes_of(i) for i in tok.encode(text)] for tok in (pruned.tokenizer, same.tokenizer)]
        assert spelled[0] == spelled[1]
    verify(pruned.tokenizer, texts)
    assert pm.prune(old, counts=counts, vocab_size=602, ids="stable").tokenizer.vocab_size == 613


@pytest.mark.parametrize(
    ("name", "ids"),
    [
        ("gpt2", "dense"),
        ("gpt2", "stable"),
        ("cl100k_base.tiktoken", "dense"),
        ("deepseek_v3.tokenizer.json.gz", "dense"),
    ],
)
def test_published_vocabularies_are_pruned(tmp_path, shared, name, ids):
    old = load_tokenizer(shared / "vocabs" / name)
    texts = [*library_texts(8), SCRIPTS]
    counts = token_counts(old, texts)
    size = old.vocab_size // 2
    pruned = pm.prune(old, counts=counts, vocab_size=size, ids=ids, on=texts)
    new = pruned.tokenizer
    assert new.vocab_size == size or ids == "stable"
    for text in (*NASTY, *texts):
        assert new.decode(new.encode(text)) == text
        assert len(new.encode(text)) >= 0.98 * len(old.encode(text))
    verify(new, texts)
    assert pruned.removed_tokens < 0.01 * pruned.tokens
    used = np.flatnonzero(counts)
    assert sum(len(pruned.mapping[i]) == 1 for i in used.tolist()) > 0.97 * len(used)
    new.save(tmp_path / "new")
    loaded = pytest.importorskip("transformers").AutoTokenizer.from_pretrained(tmp_path / "new")
    for text in texts:
        assert loaded.encode(text, add_special_tokens=False) == new.encode(text, special="parse").tolist()


def test_the_command_reads_counts_of_shards_and_says_what_it_cost(tmp_path):
    (tmp_path / "corpus.txt").write_text("the cat sat on the mat, and the other cat sat there.\n" * 40)
    assert run("train", tmp_path / "corpus.txt", "--vocab-size", 276, "--out", tmp_path / "tok").returncode == 0
    for name in ("one", "two"):
        shards = run("prepare", tmp_path / "corpus.txt", "--tokenizer", tmp_path / "tok", "--out", tmp_path / name)
        assert shards.returncode == 0, shards.stderr
    words = ("prune", tmp_path / "tok", "--counts", tmp_path / "one", tmp_path / "two", "--out", tmp_path / "new")
    done = run(*words, "--vocab-size", 270, "--on", tmp_path / "corpus.txt")
    assert done.returncode == 0, done.stderr
    assert "270 tokens; 6 tokens removed" in done.stdout
    assert "bytes per token by the counts: " in done.stdout
    assert "bytes per token measured on 2.1 kB: " in done.stdout
    again = run(*words, "--vocab-size", 270)
    assert (again.returncode, "already holds a tokenizer" in again.stderr) == (2, True)
    done = run(*words, "--vocab-size", 266, "--ids", "stable", "--force", "--json")
    found = json.loads(done.stdout)
    assert found["removed"] == 10
    new = load_tokenizer(tmp_path / "new")
    assert (new.vocab_size, new.identity) == (found["vocab_size"], found["identity"])
    assert new.training["pruned"]["vocab_size"] == 276
    assert run("verify", tmp_path / "new", "--on", tmp_path / "corpus.txt").returncode == 0
    assert (
        run("prepare", tmp_path / "corpus.txt", "--tokenizer", tmp_path / "new", "--out", tmp_path / "s").returncode
        == 0
    )


def test_what_cannot_be_pruned_is_refused(tmp_path):
    (tmp_path / "tokenizer.json").write_text(models.tokenizer_json("word_piece"))
    other = load_tokenizer(tmp_path)
    with pytest.raises(PlanError, match=r"tokenizer.json \(WordPiece\) cannot be pruned.*Expected byte-level BPE"):
        pm.prune(other, counts=np.zeros(other.vocab_size), vocab_size=1000)
    tok = Tokenizer.from_merges(np.array([[64, 65]]), pretokenizer="gpt2")
    for counts in (np.zeros(256), [-1] * 257, []):
        with pytest.raises(PlanError, match="expected folders of shards, or a number of 0 or more for each of the 257"):
            pm.prune(tok, counts=counts, vocab_size=256)
    with pytest.raises(ShardError, match="none"):
        pm.prune(tok, counts=tmp_path / "none", vocab_size=256)
    for options in ({"vocab_size": 258}, {"vocab_size": "256"}, {"vocab_size": 256, "ids": "same"}):
        with pytest.raises(PlanError):
            pm.prune(tok, counts=np.zeros(257), **options)


def test_merges_and_ids_that_do_not_fit_together_cannot_be_pruned(tmp_path):
    data = data_of(pm.train_bpe(TEXTS, vocab_size=262, pretokenizer="gpt2"))

    def refused(match):
        (tmp_path / "tokenizer.json").write_text(json.dumps(data))
        tok = load_tokenizer(tmp_path)
        assert tok.encode("abc").size
        with pytest.raises(PlanError, match=match):
            pm.prune(tok, counts=np.zeros(tok.vocab_size), vocab_size=258)

    merges, vocab = data["model"]["merges"], data["model"]["vocab"]
    used = next("".join(pair) for pair in merges if any("".join(pair) in other for other in merges))
    at = next(at for at, pair in enumerate(merges) if "".join(pair) == used)
    gone = merges.pop(at)
    refused(f"tokenizer.json: a merge needs '{used}', which no merge makes")
    merges.insert(at, gone)
    vocab[next(text for text, i in vocab.items() if i == 260)] = 259
    refused(r"tokenizer\.json: two tokens have the same id; expected an id of its own")
