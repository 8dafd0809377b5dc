"""Continued training: what was learned before stays, and what follows is what the definition says."""

import json
import random
from binascii import a2b_base64, b2a_base64
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from command import piecemill as run
from models import tokenizer_json
from piecemill import reference
from piecemill._core import FlatCorpus, Progress, split_text
from piecemill.errors import PlanError, TrainingError
from piecemill.tokenizers import Tokenizer, load_tokenizer
from piecemill.tokenizers.models.byte_level import BYTE_ORDER, characters_of
from piecemill.tokenizers.models.writing import added_token
from piecemill.tokenizers.pretokenizers import pattern_of
from piecemill.training import train_bpe
from vocabularies import END, NASTY, SCRIPTS, library_texts

TEXTS = st.lists(st.text("ab c\u00e9\n", max_size=12), min_size=1, max_size=8).filter(any)
BYTES = [bytes([i]) for i in range(256)]
RUSSIAN = " температурах, температуру самостоятельность повреждения"
SPLITS = ("gpt2", "none", r"[^\n]+\n?")


def words_of(texts, pretokenizer):
    counted = Counter()
    for text in texts:
        data, start = text.encode(), 0
        for end in split_text(text, pretokenizer).tolist():
            counted[data[start:end]] += 1
            start = end
    return counted


def definition(texts, pretokenizer, start, vocab_size):
    """The merges that follow those of `start`, by the definition; `start` is numbered as we number."""
    n_special = len(start.special_tokens)
    byte_ids = [0] * 256
    for rank, byte in enumerate(BYTE_ORDER):
        byte_ids[byte] = n_special + rank
    return reference.bpe.train(
        words_of(texts, pretokenizer),
        vocab_size - start.vocab_size,
        byte_ids=byte_ids,
        special_tokens=[text.encode() for text in start.special_tokens],
        start=[tuple(pair) for pair in start.merges.tolist()],
    )


def segmented(word, tok):
    """`word` as training ends with it: every merge of `tok` in turn."""
    ids = tok.vocabulary.ids
    tokens = tok.vocabulary.tokens
    symbols = [ids[bytes([byte])] for byte in word]
    for left, right in tok.merges.tolist():
        symbols = reference.bpe.merge_word(symbols, (left, right), ids[tokens[left] + tokens[right]])
    return list(symbols)


@settings(deadline=None, max_examples=60)
@given(TEXTS, TEXTS, st.sampled_from(SPLITS), st.sampled_from([None, *SPLITS]), st.integers(0, 12), st.integers(0, 12))
def test_every_merge_is_that_of_the_definition(old, new, pretokenizer, other, k, n):
    start = train_bpe(old, vocab_size=257 + k, pretokenizer=pretokenizer)
    grown = train_bpe(new, start=start, pretokenizer=other, vocab_size=start.vocab_size + n)
    want = definition(new, other or pretokenizer, start, start.vocab_size + n)
    assert [tuple(pair) for pair in grown.merges[len(start.merges) :].tolist()] == want
    assert grown.merges[: len(start.merges)].tolist() == start.merges.tolist()
    assert grown.vocabulary.tokens[: start.vocab_size] == start.vocabulary.tokens
    assert grown.pretokenizer == (other or pretokenizer)


@settings(deadline=None, max_examples=60)
@given(
    TEXTS, st.sampled_from(SPLITS), st.integers(0, 10), st.integers(0, 10), st.sampled_from([(END,), ("ab", "bb a")])
)
def test_continuing_is_training_in_one_go(texts, pretokenizer, k, n, special_tokens):
    options = {"pretokenizer": pretokenizer, "special_tokens": special_tokens}
    first = 256 + len(special_tokens)
    whole = train_bpe(texts, vocab_size=first + k + n, **options)
    start = train_bpe(texts, vocab_size=first + k, **options)
    grown = train_bpe(texts, start=start, vocab_size=max(first + k + n, start.vocab_size))
    assert grown.merges.tolist() == whole.merges.tolist()
    assert grown.identity == whole.identity


@settings(deadline=None, max_examples=60)
@given(TEXTS, TEXTS, st.sampled_from(SPLITS), st.sampled_from(SPLITS), st.integers(0, 12), st.integers(1, 12))
def test_the_finished_tokenizer_encodes_as_training_ended_in_one_stage_or_two(old, new, pretokenizer, other, k, n):
    start = train_bpe(old, vocab_size=257 + k, pretokenizer=pretokenizer)
    grown = train_bpe(new, start=start, pretokenizer=other, vocab_size=start.vocab_size + n)
    for text in new:
        data, at, want = text.encode(), 0, []
        for end in split_text(text, other).tolist():
            want += segmented(data[at:end], grown)
            at = end
        assert grown.encode(text).tolist() == want
        if pretokenizer == other:
            assert len(want) <= len(start.encode(text))
    for text in old:
        assert grown.decode(grown.encode(text)) == text
        if pretokenizer == other:
            assert len(grown.encode(text)) <= len(start.encode(text))
    for i in range(start.vocab_size, grown.vocab_size):
        assert segmented(grown.bytes_of(i), grown) == [i]


@pytest.mark.parametrize("pretokenizer", ["cl100k", "none"])
def test_the_standard_library_obeys_the_laws(pretokenizer):
    texts = list(library_texts())
    old, size = texts[:12], 1500
    whole = train_bpe(texts, vocab_size=size, pretokenizer=pretokenizer)
    assert (
        train_bpe(texts, start=train_bpe(texts, vocab_size=900, pretokenizer=pretokenizer), vocab_size=size).identity
        == whole.identity
    )
    start = train_bpe(old, vocab_size=900, pretokenizer=pretokenizer)
    assert train_bpe(texts, start=start, vocab_size=start.vocab_size).identity == start.identity
    grown = train_bpe(texts, start=start, vocab_size=size)
    sizes = [(len(grown.encode(text)), len(start.encode(text))) for text in (*texts, *NASTY)]
    assert all(now <= before for now, before in sizes)
    assert sum(now for now, _ in sizes) < 0.9 * sum(before for _, before in sizes)
    whole_word = Tokenizer.from_merges(grown.merges, pretokenizer="none", special_tokens=[END])
    new = range(start.vocab_size, size)
    tokens = [grown.bytes_of(i) for i in new]
    assert [whole_word.encode(token).tolist() for token in tokens] == [[i] for i in new]
    for word in random.Random(1).sample(sorted(words_of(texts, "cl100k")), 200):
        assert whole_word.encode(word).tolist() == segmented(word, grown)


def test_special_tokens_keep_their_ids_wherever_they_stand(tmp_path):
    # As GPT-2 has it: the special token last, so new tokens follow after it.
    plain = train_bpe(list(library_texts(6)), vocab_size=600, pretokenizer="gpt2", special_tokens=[])
    data = json.loads(plain.model.tokenizer_json(()))
    data["added_tokens"] = [{"id": 600, "content": END, "special": True, "normalized": True}]
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    start = load_tokenizer(tmp_path)
    grown = train_bpe(list(library_texts(6)), start=start, vocab_size=700, pad_to=64)
    assert grown.special_tokens == {END: 600, **{f"<|reserved_{i}|>": i for i in range(700, 704)}}
    whole = train_bpe(list(library_texts(6)), vocab_size=699, pretokenizer="gpt2", special_tokens=[])
    assert [grown.bytes_of(i) for i in range(601, 700)] == [whole.bytes_of(i) for i in range(600, 699)]
    assert len(grown) == 704


def grown_by_command(tmp_path, start, *words, vocab_size):
    (tmp_path / "scripts.txt").write_text(SCRIPTS * 5)
    out = tmp_path / "grown"
    done = run(
        "train", tmp_path / "scripts.txt", "--start", start, "--vocab-size", vocab_size, "--quiet", "--out", out, *words
    )
    assert done.returncode == 0, done.stderr
    return load_tokenizer(out), out, done.stdout


def check_in_transformers(out, grown, texts):
    loaded = pytest.importorskip("transformers").AutoTokenizer.from_pretrained(out)
    for text in texts:
        assert loaded.encode(text, add_special_tokens=False) == grown.encode(text, special="parse").tolist(), text
    return loaded


def check_ranks(out, grown, pretokenizer, texts, ids=None):
    """The saved ranks give the ids of `grown`, in tiktoken and here; `ids` has the id of each rank, if not itself."""
    tiktoken = pytest.importorskip("tiktoken")
    lines = (out / "ranks.tiktoken").read_bytes().splitlines()
    ranks = {a2b_base64(token): int(rank) for token, rank in map(bytes.split, lines)}
    theirs = tiktoken.Encoding("grown", pat_str=pattern_of(pretokenizer), mergeable_ranks=ranks, special_tokens={})
    ours = load_tokenizer(out / "ranks.tiktoken", pretokenizer=pretokenizer)
    rng = random.Random(3)
    joined = "".join(texts)
    made = ["".join(rng.choices(joined, k=rng.randrange(60))) for _ in range(200)]
    made += [joined[at : at + 500] for at in rng.choices(range(len(joined)), k=100)]
    for text in (*texts, *made):
        want = grown.encode(text).tolist()
        for found in (theirs.encode_ordinary(text), ours.encode(text).tolist()):
            assert (found if ids is None else [ids[rank] for rank in found]) == want, text


@pytest.mark.parametrize("words", [(), ("--pretokenizer", "o200k")])
def test_the_saved_folder_opens_everywhere_and_says_what_new_tokens_consist_of(tmp_path, words):
    start = train_bpe(list(library_texts(6)), vocab_size=600, pretokenizer="gpt2")
    start.save(tmp_path / "start")
    grown, out, printed = grown_by_command(tmp_path, tmp_path / "start", "--pad-to", 128, *words, vocab_size=650)
    assert (grown.vocab_size, grown.pretokenizer) == (768, words[1] if words else "gpt2")
    mapping = json.loads((out / "mapping.json").read_text())
    assert list(map(int, mapping)) == list(range(600, 768))
    for i in range(600, 650):
        assert b"".join(map(start.bytes_of, mapping[str(i)])) == grown.bytes_of(i)
        assert max(mapping[str(i)]) < 600
        assert len(mapping[str(i)]) > 1
    assert [mapping[str(i)] for i in range(650, 768)] == [[]] * 118
    loaded = check_in_transformers(out, grown, [SCRIPTS, *NASTY, *library_texts(2)])
    check_ranks(out, grown, grown.pretokenizer, [SCRIPTS, *NASTY, *library_texts(2)], ids=grown.vocabulary.ranked)
    assert len(loaded) == 768
    assert loaded.eos_token == END
    record = json.loads((out / "training.json").read_text())
    assert record["plan"]["start"] == {"identity": start.identity, "vocab_size": 600}
    assert (record["merges"], record["vocab_size"], record["reserved"]) == (50, 768, 118)
    assert printed.startswith("768 tokens (50 merges)")
    grown.save(tmp_path / "again")
    assert (tmp_path / "again/mapping.json").read_bytes() == (out / "mapping.json").read_bytes()


def llama_like(tmp_path):
    """A tokenizer.json with whole words looked up first, and special tokens that the vocabulary does not have."""
    plain = train_bpe(list(library_texts(6)), vocab_size=500, pretokenizer="cl100k", special_tokens=[])
    data = json.loads(plain.model.tokenizer_json(()))
    data["model"]["ignore_merges"] = True
    data["model"]["vocab"][characters_of(b"zyzzyva")] = 500  # no merge makes it
    data["added_tokens"] = [added_token("<|begin|>", 501), added_token("<|eot|>", 502)]
    tmp_path.mkdir(exist_ok=True)
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    return tmp_path


def test_a_tokenizer_json_that_looks_whole_words_up_is_continued(tmp_path):
    start = load_tokenizer(llama_like(tmp_path / "start"))
    assert start.kind == "tokenizer.json (BPE)"
    texts = ["zyzzyva zyzzyvas, (zyzzyva)<|eot|> " * 9, *library_texts(3)]
    grown = train_bpe(texts, start=start, vocab_size=560, pad_to=8)
    assert grown.vocab_size == 560
    assert grown.special_tokens == start.special_tokens
    grown.save(tmp_path / "grown")
    check_in_transformers(tmp_path / "grown", grown, [*texts, *NASTY])
    assert grown.encode("zyzzyva").tolist() == [500]
    for text in texts:
        assert len(grown.encode(text)) < len(start.encode(text))
        assert grown.decode(grown.encode(text)) == text
    # Without that word, the merges are those of the same vocabulary that looks no words up.
    data = json.loads(start.model.content)
    data["model"]["ignore_merges"] = False
    del data["model"]["vocab"]["zyzzyva"]
    data["added_tokens"].insert(0, added_token("<|zyzzyva|>", 500))
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    plain = load_tokenizer(tmp_path / "tokenizer.json")
    assert plain.kind == "byte-level BPE"
    same = [text.replace("zyzzyva", "gnu") for text in texts]
    by_words = train_bpe(same, start=start, vocab_size=560).model.data["model"]["merges"]
    assert (
        by_words == json.loads(train_bpe(same, start=plain, vocab_size=560).model.tokenizer_json(()))["model"]["merges"]
    )
    again = load_tokenizer(tmp_path / "grown")
    assert again.training["merges"] == 57
    assert train_bpe(texts, start=again, vocab_size=560).identity == again.identity


def test_a_string_that_the_vocabulary_has_but_never_makes_is_not_made(tmp_path):
    # "zyzzyva" is in the vocabulary and no merge makes it: its pieces stay apart, and no id is given twice.
    start = load_tokenizer(llama_like(tmp_path / "start"))
    grown = train_bpe(["xzyzzyva"] * 50, start=start, vocab_size=600)
    vocab = grown.model.data["model"]["vocab"]
    assert len(set(vocab.values())) == len(vocab)
    assert vocab[characters_of(b"zyzzyva")] == 500
    assert grown.encode("xzyzzyva").tolist() == [vocab["xzyzzyva"]]


def test_ranks_are_continued_as_a_tokenizer_json_and_as_ranks(tmp_path):
    plain = train_bpe(list(library_texts(6)), vocab_size=600, pretokenizer="cl100k", special_tokens=[])
    plain.save(tmp_path / "plain")
    special = {END: 610, "<|fim|>": 612}  # with ids that no token has before and between them
    start = load_tokenizer(tmp_path / "plain/ranks.tiktoken", pretokenizer="cl100k", special_tokens=special)
    grown = train_bpe([SCRIPTS] * 5, start=start, vocab_size=660)
    assert grown.kind == "tokenizer.json (BPE)"
    assert grown.special_tokens == special
    for text in (*NASTY, *library_texts(2)):
        assert len(grown.encode(text)) <= len(start.encode(text))
    unchanged = train_bpe([SCRIPTS], start=start, vocab_size=613)
    for text in (*NASTY, *library_texts(2)):
        assert unchanged.encode(text).tolist() == start.encode(text).tolist()
    same = train_bpe([SCRIPTS] * 5, start=plain, vocab_size=647)
    assert [grown.bytes_of(i) for i in range(613, 660)] == [same.bytes_of(i) for i in range(600, 647)]
    grown.save(tmp_path / "grown")
    check_in_transformers(tmp_path / "grown", grown, [SCRIPTS, *NASTY])
    check_ranks(tmp_path / "grown", grown, start.model.pretokenizer, [SCRIPTS, *NASTY, *library_texts(2)])
    unchanged.save(tmp_path / "unchanged")
    assert (tmp_path / "unchanged/ranks.tiktoken").read_bytes() == (tmp_path / "plain/ranks.tiktoken").read_bytes()
    padded = train_bpe([SCRIPTS] * 5, start=start, vocab_size=660, pad_to=128)
    assert padded.model.files()["ranks.tiktoken"] == (tmp_path / "grown/ranks.tiktoken").read_bytes()


def ranks_file(path, *tokens):
    lines = [b"%b %d" % (b2a_base64(token, newline=False), i) for i, token in enumerate((*BYTES, *tokens))]
    path.write_bytes(b"\n".join(lines))
    return path


def test_ranks_are_written_only_where_they_say_the_same_as_the_merges(tmp_path):
    # Ranks would join any two tokens that spell "zyzzyva", once new merges leave two; "<a>" is special and learned.
    file = ranks_file(tmp_path / "a.tiktoken", b"zyzzyva")
    start = load_tokenizer(file, pretokenizer="none", special_tokens={"<a>": 257})
    for texts, said in ((["abc", "abd"], True), (["zyzz", "yva"], False), (["<a>", "<ab"], False)):
        grown = train_bpe(texts * 5, start=start, vocab_size=275)
        assert ("ranks.tiktoken" in grown.model.files()) is said, texts


@pytest.mark.parametrize("text", ["xabcdx", "abcd", "abcdabcab", "bcdabcd"])
def test_a_token_may_be_made_of_one_with_a_larger_rank(tmp_path, text):
    # "abcd" is made of "ab" and "cd", which has a larger rank: 107 tokens of Llama 3 are like that.
    file = ranks_file(tmp_path / "a.tiktoken", b"ab", b"abcd", b"cd")
    start = load_tokenizer(file, pretokenizer="none")
    wanted = start.encode(text).tolist()
    ranks = pytest.importorskip("tiktoken").Encoding(
        "a", pat_str=r"[\s\S]+", mergeable_ranks=start.model.ranks, special_tokens={}
    )
    assert ranks.encode_ordinary(text) == wanted
    assert start.edit(add_special=["<new>"]).encode(text).tolist() == wanted
    assert train_bpe(["a"], start=start, vocab_size=259).encode(text).tolist() == wanted


@pytest.mark.parametrize(
    "name", ["gpt2", "cl100k_base.tiktoken", "llama3.tiktoken.gz", "deepseek_v3.tokenizer.json.gz"]
)
def test_published_vocabularies_are_continued(tmp_path, shared, name):
    path = shared / "vocabs" / name
    given = {"pretokenizer": "llama3", "special_tokens": {"<|begin_of_text|>": 128000}} if "llama3" in name else {}
    start = load_tokenizer(path, **given)
    grown = train_bpe([SCRIPTS] * 5, start=start, vocab_size=start.vocab_size + 100)
    assert grown.vocab_size == start.vocab_size + 100
    assert grown.special_tokens == start.special_tokens
    assert len(grown.encode(SCRIPTS)) < len(start.encode(SCRIPTS))
    for text in (*NASTY, *library_texts(4)):
        assert len(grown.encode(text)) <= len(start.encode(text))
    grown.save(tmp_path / "grown")
    check_in_transformers(tmp_path / "grown", grown, [SCRIPTS, *NASTY])
    if "tiktoken" in name:
        check_ranks(tmp_path / "grown", grown, start.model.pretokenizer, [SCRIPTS, RUSSIAN, *NASTY, *library_texts(2)])


def test_added_tokens_that_are_not_special_are_kept_and_noted(tmp_path):
    data = json.loads(
        train_bpe(list(library_texts(2)), vocab_size=300, pretokenizer="gpt2").model.tokenizer_json((END,))
    )
    data["added_tokens"].append(added_token("<think>", 300) | {"special": False})
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    grown, out, printed = grown_by_command(tmp_path, tmp_path / "tokenizer.json", vocab_size=320)
    assert "note: 1 added tokens that are not special, such as '<think>', are cut out of every text" in printed
    assert grown.encode("a<think>b").tolist()[1] == 300
    check_in_transformers(out, grown, ["a<think>b", SCRIPTS])
    done = run("train", out, "--start", out, "--no-special-tokens", "--out", tmp_path / "no")
    assert (done.returncode, "special tokens of --start are kept" in done.stderr) == (2, True)


def test_counts_continue_as_documents_do(tmp_path):
    texts = list(library_texts(6))
    start = train_bpe(texts[:2], vocab_size=400, pretokenizer="cl100k")
    want = train_bpe(texts, start=start, vocab_size=500).identity
    train_bpe(texts, vocab_size=300, pretokenizer="cl100k", save_counts=tmp_path / "c.parquet")
    assert train_bpe(from_counts=[tmp_path / "c.parquet"], start=start, vocab_size=500).identity == want
    assert train_bpe(texts, start=start, vocab_size=500, threads=1, memory="64MiB").identity == want


@pytest.mark.parametrize("name", ["word_piece", "unigram"])
def test_what_is_not_byte_level_bpe_is_refused(tmp_path, name):
    (tmp_path / "tokenizer.json").write_text(tokenizer_json(name))
    with pytest.raises(
        PlanError, match=r"start: a tokenizer.json \(\w+\) cannot be continued: it is not byte-level BPE"
    ):
        train_bpe(["a"], start=tmp_path, vocab_size=10**6)


def test_what_cannot_be_asked_of_a_start_is_refused_before_the_work(tmp_path):
    start = train_bpe(["some text"], vocab_size=260, pretokenizer="gpt2")
    for options, message in (
        ({"vocab_size": 259}, "vocab_size=259: start has 260 tokens already"),
        ({"vocab_size": 300, "special_tokens": ["<new>"]}, "special token '<new>': start has none of that name"),
        ({"vocab_size": 300, "pad_to": 0}, "pad_to=0: expected a whole number from 1 to"),
    ):
        with pytest.raises(PlanError, match=message):
            train_bpe(["some text"], start=start, **options)
    data = json.loads(start.model.tokenizer_json((END,)))
    (tmp_path / "tokenizer.json").write_text(json.dumps(data | {"normalizer": {"type": "NFC"}}))
    with pytest.raises(PlanError, match="it normalizes texts"):
        train_bpe(["some text"], start=tmp_path, vocab_size=300)
    corpus = FlatCorpus(300, 0, None, [], 1, start=(BYTES, [], []))
    one = np.array([1], np.int64)
    with pytest.raises(TrainingError, match="256 does not exist; expected 0 to 255"):
        corpus.add_ids(np.array([256], np.uint32), one)
    with pytest.raises(TrainingError, match="add_ids takes its ids"):
        corpus.add(np.array([65], np.uint8), one)
    corpus.add_ids(np.array([65, 65], np.uint32), one * 2, np.array([7], np.uint64))
    assert corpus.train(Progress()).merges.tolist() == [[65, 65]]


def test_padding_is_for_plain_training_too():
    tok = train_bpe(list(library_texts(2)), vocab_size=300, pretokenizer="gpt2", pad_to=128)
    assert list(tok.special_tokens) == [END, *(f"<|reserved_{i}|>" for i in range(300, 384))]
    assert "mapping.json" not in tok.model.files()
