"""Vocabularies of integers: trained and encoded as the definition says, from arrays to batches."""

import json
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from command import piecemill as run
from corpora import content, split_documents
from piecemill import check, open_shards, prepare, prune, reference
from piecemill.errors import PiecemillError, PlanError, SourceError, TokenizerError
from piecemill.loading.text import batches
from piecemill.sources import open_source
from piecemill.tokenizers import load_tokenizer
from piecemill.training import train_bpe

DOCUMENTS = st.lists(
    st.lists(st.sampled_from([-(2**63), -7, 0, 1, 5, 1000, 2**63 - 1]), max_size=20), min_size=1, max_size=8
).filter(any)


def definition(documents, n_merges):
    """Merges by recounting at every step; END is id 0, then the integers in ascending order."""
    values = sorted({value for document in documents for value in document})
    words = Counter(tuple(1 + values.index(value) for value in document) for document in documents)
    merges, next_id = [], 1 + len(values)
    for _ in range(n_merges):
        pairs = reference.bpe.count_pairs(words)
        if not pairs:
            break
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merged = Counter()
        for word, count in words.items():
            merged[reference.bpe.merge_word(word, best, next_id)] += count
        words = merged
        merges.append(best)
        next_id += 1
    return values, merges


def by_definition(document, tok, merges):
    values = tok.integers.tolist()
    word = tuple(1 + values.index(value) for value in document)
    for rank, pair in enumerate(merges):
        word = reference.bpe.merge_word(word, pair, 1 + len(values) + rank)
    return list(word)


def sequences(count, seed=1, most=64):
    """Codes with structure: phrases that repeat."""
    rng = np.random.default_rng(seed)
    phrases = [rng.integers(0, most, size=n) * 3 - 30 for n in rng.integers(2, 9, size=20)]
    return [np.concatenate([phrases[i] for i in rng.integers(0, 20, size=n)]) for n in rng.integers(1, 40, size=count)]


@settings(max_examples=150, deadline=None)
@given(DOCUMENTS, DOCUMENTS, st.integers(0, 10))
def test_training_and_encoding_are_as_defined(documents, others, n_merges):
    values, merges = definition(documents, n_merges)
    tok = train_bpe(documents, integers=True, vocab_size=1 + len(values) + n_merges)
    assert tok.integers.tolist() == values
    assert [tuple(pair) for pair in tok.model.merges.tolist()] == merges
    for document in documents + [[value for value in other if value in values] for other in others]:
        ids = tok.encode(document)
        assert ids.tolist() == by_definition(document, tok, merges)
        assert tok.decode_integers(ids).tolist() == document


def test_many_long_documents_on_several_threads_are_encoded_as_one_by_one():
    documents = [*sequences(300), np.concatenate(sequences(3_000, 1))]
    tok = train_bpe(documents, integers=True, vocab_size=400)
    _, merges = definition(documents[:0] or [d.tolist() for d in documents], 0)
    ids, ends = tok.encode_batch(documents, threads=4)
    assert ids.tolist() == [i for document in documents for i in tok.encode(document).tolist()]
    assert merges == []
    assert by_definition(documents[5].tolist(), tok, [tuple(pair) for pair in tok.model.merges.tolist()]) == (
        ids[ends[4] : ends[5]].tolist()
    )
    assert tok.decode_integers(ids).tolist() == np.concatenate(documents).tolist()
    assert ids.size < 0.4 * sum(map(len, documents))


def test_every_way_to_give_integers_gives_the_same(tmp_path):
    documents = sequences(60)
    tok = train_bpe(documents, integers=True, vocab_size=120)
    lists = [document.tolist() for document in documents]
    for kind in (pa.list_(pa.int64()), pa.large_list(pa.int32()), pa.list_(pa.int16())):
        table = pa.table({"codes": pa.array(lists, kind)})
        assert train_bpe(table, integers=True, field="codes", vocab_size=120).identity == tok.identity
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=7)
    (tmp_path / "lines.txt").write_text("\n".join(" ".join(map(str, one)) for one in lists) + "\n")
    with open(tmp_path / "in.jsonl", "w") as file:
        file.writelines(json.dumps({"codes": one, "digits": ", ".join(map(str, one))}) + "\n" for one in lists)
    for name, options in (("in.parquet", {"field": "codes"}), ("lines.txt", {"separator": "\n"}),
                          ("in.jsonl", {"field": "codes"}), ("in.jsonl", {"field": "digits"})):  # fmt: skip
        assert train_bpe(tmp_path / name, integers=True, vocab_size=120, **options).identity == tok.identity
    for given_as in (
        lists,
        [tuple(one) for one in lists],
        [one.astype(np.int16) for one in documents],
        iter(documents),
    ):
        assert train_bpe(given_as, integers=True, vocab_size=120).identity == tok.identity
    assert tok.encode(lists[0]).tolist() == tok.encode(" ".join(map(str, lists[0]))).tolist()
    assert tok.encode(np.array(lists[0], np.int16)).tolist() == tok.encode(str(lists[0])[1:-1].encode()).tolist()


@pytest.mark.parametrize("dtype", ["int64", "uint16", ">i4", "uint64"])
def test_a_row_of_an_npy_file_is_a_document(tmp_path, dtype):
    rows = np.random.default_rng(1).integers(0, 100, size=(57, 9)).astype(dtype)
    np.save(tmp_path / "a.npy", rows)
    np.save(tmp_path / "b.npy", rows[0])
    np.save(tmp_path / "c.npy", rows[:0])
    source = open_source(tmp_path, integers=True, block_bytes=100)
    found = [[int(n) for n in block.text(i).split()] for block in source.blocks() for i in range(len(block))]
    assert found == [*rows.tolist(), rows[0].tolist()]
    assert [block.name(0) for block in source.blocks() if len(block)][-1] == f"{tmp_path / 'b.npy'}[0]"
    assert open_source([rows], integers=True) is not None
    in_memory = open_source(rows, integers=True)
    assert [block.text(i) for block in in_memory.blocks() for i in range(len(block))] == [
        " ".join(map(str, row)) + " " for row in rows.tolist()
    ]


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (np.zeros((2, 2)), r"bad.npy\[0\]: holds float64 in the shape \(2, 2\); expected integers in one row"),
        (np.zeros((2, 2, 2), np.int32), r"holds int32 in the shape \(2, 2, 2\)"),
        (np.asfortranarray(np.ones((2, 3), np.int32)), r"in Fortran order; expected integers"),
        (np.array([2**63], np.uint64), r"9223372036854775808 is too large; expected integers of 64 bits"),
        (np.array([{}], object), r"holds object"),
    ],
)
def test_an_npy_file_of_something_else_is_an_error_that_says_what(tmp_path, array, reason):
    np.save(tmp_path / "bad.npy", array)
    with pytest.raises(SourceError, match=reason):
        list(open_source(tmp_path, integers=True).blocks())


def test_a_truncated_npy_file_is_an_error_at_its_row(tmp_path):
    np.save(tmp_path / "bad.npy", np.ones((10, 4), np.int32))
    whole = (tmp_path / "bad.npy").read_bytes()
    (tmp_path / "bad.npy").write_bytes(whole[:-20])
    with pytest.raises(SourceError, match=r"bad\.npy\[8\]: the file ends before its last row"):
        list(open_source(tmp_path, integers=True, block_bytes=32).blocks())


def test_npy_files_are_no_text(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros(100, np.int64))
    (tmp_path / "b.txt").write_text("text")
    source = open_source(tmp_path)
    assert [block.text(i) for block in source.blocks() for i in range(len(block))] == ["text"]
    assert sum(block.tally.left_out.get("binary", 0) for block in source.blocks()) == 1


def test_bad_documents_are_named_or_skipped():
    tok = train_bpe([[1, 2, 3]], integers=True, vocab_size=4)
    documents = [[1, 2], "1 2 x3", [1, 77], [], "3", "99999999999999999999"]
    with pytest.raises(SourceError, match=r"<list>\[1\]: 'x3' at byte 4, expected integers of 64 bits"):
        train_bpe(documents, integers=True)
    found = open_source(documents, integers=True, known=tok.integers, on_bad_document="skip")
    (block,) = found.blocks()
    assert [block.text(i) for i in range(len(block))] == ["1 2 ", "3 "]
    assert [one.name for one in block.tally.skipped] == ["<list>[1]", "<list>[2]", "<list>[5]"]
    assert block.tally.skipped[1].reason == "77 is not one of the 3 integers of the vocabulary"
    assert block.tally.left_out == {"empty": 1}
    for strange in ([1.5], [[1]], {"a": 1}, 3, [2**63]):
        with pytest.raises(SourceError, match=r"expected a list or array of integers"):
            list(open_source([strange], integers=True).blocks())
    nulls = pa.table({"text": pa.array([[1], None, [2, 3]])})
    with pytest.raises(SourceError, match=r"<Table>\[1\]: null"):
        list(open_source(nulls, integers=True).blocks())
    (block,) = open_source(nulls, integers=True, on_bad_document="skip").blocks()
    assert [block.text(i) for i in range(len(block))] == ["1 ", "2 3 "]
    with pytest.raises(SourceError, match=r"<Table>\[0\]: null, or has a null or a number of more than 64 bits"):
        list(open_source(pa.table({"text": [[1, None]]}), integers=True).blocks())
    with pytest.raises(SourceError, match="expected lists of integers, or their digits"):
        list(open_source(pa.table({"text": [[1.5]]}), integers=True).blocks())


@pytest.mark.parametrize("dictionary", [True, False])
def test_short_lists_in_parquet_are_read_however_they_were_written(tmp_path, dictionary):
    rows = [[1, 2], [], [3] * 40, [4, 5]]
    pq.write_table(pa.table({"text": rows, "at": [{"ids": row} for row in rows]}), tmp_path / "a.parquet",
                   use_dictionary=dictionary)  # fmt: skip
    for field in ("text", "at.ids"):
        (block,) = open_source(tmp_path / "a.parquet", field=field, integers=True).blocks()
        assert [block.text(i) for i in range(len(block))] == ["1 2 ", "3 " * 40, "4 5 "]


def test_lists_in_parquet_may_have_the_inner_names_of_other_writers(tmp_path):
    table = pa.table({"text": [[1, 2], [3]]})
    pq.write_table(table, tmp_path / "a.parquet", store_schema=False)
    written = (tmp_path / "a.parquet").read_bytes()
    assert written.count(b"list") == 2
    (tmp_path / "a.parquet").write_bytes(written.replace(b"list", b"bags"))
    (block,) = open_source(tmp_path / "a.parquet", integers=True).blocks()
    assert [block.text(i) for i in range(len(block))] == ["1 2 ", "3 "]


def test_a_row_of_npy_with_a_number_that_is_too_large_is_one_bad_document(tmp_path):
    np.save(tmp_path / "a.npy", np.array([[1, 2], [3, 2**63], [4, 5]], np.uint64))
    (block,) = open_source(tmp_path, integers=True, on_bad_document="skip").blocks()
    assert [block.text(i) for i in range(len(block))] == ["1 2 ", "4 5 "]
    assert [block.name(i)[-3:] for i in range(len(block))] == ["[0]", "[2]"]
    assert [one.name[-3:] for one in block.tally.skipped] == ["[1]"]


def test_what_the_vocabulary_does_not_have_is_an_error():
    tok = train_bpe([[1, 2, 3]], integers=True, vocab_size=4)
    with pytest.raises(TokenizerError, match=r"texts\[1\]: 7 is not one of the 3 integers of this vocabulary"):
        tok.encode_batch([[1], [2, 7]])
    with pytest.raises(TokenizerError, match=r"texts\[0\]: byte 2 begins no integer"):
        tok.encode("1 two")
    with pytest.raises(TokenizerError, match=r"texts\[0\] is float; expected integers"):
        tok.encode(1.5)
    with pytest.raises(TokenizerError, match="its documents are integers"):
        tok.encode([1], special="parse")


def test_options_that_are_about_text_are_refused():
    for options in (
        {"superwords": 9},
        {"balance": "a"},
        {"pretokenizer": "gpt2"},
        {"alphabet": "auto"},
        {"start": "tok"},
        {"save_counts": "a.parquet"},
    ):
        with pytest.raises(PlanError, match=f"integers and {next(iter(options))}="):
            train_bpe([[1]], integers=True, **options)
    with pytest.raises(PlanError, match="bytes and integers"):
        train_bpe([[1]], integers=True, bytes=True)
    with pytest.raises(PlanError, match=r"the 3 different integers of the corpus and 1 special token alone need 4"):
        train_bpe([[1, 2, 3]], integers=True, vocab_size=3)
    text, numbers = train_bpe(["a"], vocab_size=257), train_bpe([[1]], integers=True, vocab_size=2)
    with pytest.raises(PlanError, match="the tokenizer is a byte-level BPE, expected one that was trained on integers"):
        prepare([[1]], text, out="nowhere", integers=True)
    with pytest.raises(PlanError, match="a BPE over integers: say that documents are integers"):
        prepare(["1"], numbers, out="nowhere")
    with pytest.raises(PiecemillError, match="a BPE over integers cannot be pruned"):
        prune(numbers, counts=np.zeros(2, np.int64), vocab_size=1)
    with pytest.raises(PlanError, match="a BPE over integers cannot be continued"):
        train_bpe(["a"], start=numbers)


def test_saved_loaded_and_edited_it_is_the_same(tmp_path):
    tok = train_bpe(sequences(50), integers=True, vocab_size=100, roles={"pad": "<pad>"}, pad_to=64)
    assert tok.vocab_size == 128
    tok.save(tmp_path / "tok")
    loaded = load_tokenizer(tmp_path / "tok")
    assert (loaded.identity, loaded.special_tokens, loaded.roles) == (tok.identity, tok.special_tokens, tok.roles)
    assert loaded.tokens == tok.tokens
    assert loaded.training["merges"] == tok.training["merges"]
    edited = loaded.edit(add_special=["<mask>"])
    edited.save(tmp_path / "tok", force=True)
    again = load_tokenizer(tmp_path / "tok")
    assert again.special_tokens["<mask>"] == 128
    document = sequences(1)[0]
    assert again.encode(document).tolist() == tok.encode(document).tolist()
    assert again.id_of(f"{tok.integers[0]}") == 2
    assert again.bytes_of(2) == b"%d " % tok.integers[0]


def test_a_broken_file_is_an_error_that_names_it(tmp_path):
    tok = train_bpe([[1, 2, 1, 2]], integers=True, vocab_size=4)
    good = json.loads(tok.model.files()["integers.json"])
    for change, reason in (({"format": "x"}, "in format 'x'"), ({"integers": [2, 1]}, "ascending order"),
                           ({"merges": [[0, 1]]}, r"merges\[0\]"), ({"merges": [[1, 9]]}, r"merges\[0\]"),
                           ({"integers": "a"}, "malformed")):  # fmt: skip
        (tmp_path / "integers.json").write_text(json.dumps({**good, **change}))
        with pytest.raises(TokenizerError, match=reason):
            load_tokenizer(tmp_path)


def test_from_arrays_to_batches(tmp_path):
    lists = [one.tolist() for one in sequences(400)]
    pq.write_table(pa.table({"codes": lists}), tmp_path / "in.parquet", row_group_size=50)
    flags = ["--integers", "--field", "codes"]
    done = run("train", tmp_path / "in.parquet", *flags, "--vocab-size", 200, "--out", tmp_path / "tok")
    assert done.returncode == 0, done.stderr
    for threads in (1, 2):
        done = run("prepare", tmp_path / "in.parquet", *flags, "--tokenizer", tmp_path / "tok", "--splits",
                   "train=90,val=10", "--out", tmp_path / str(threads), "--threads", threads,
                   "--piece-bytes", 20_000, "--block-bytes", 5_000)  # fmt: skip
        assert done.returncode == 0, done.stderr
    assert content(tmp_path / "1") == content(tmp_path / "2")
    tok = load_tokenizer(tmp_path / "tok")
    found = [tok.decode_integers(ids).tolist() for split in ("train", "val")
             for ids in split_documents(tmp_path / "1", split)[0]]  # fmt: skip
    assert sorted(found) == sorted(lists)
    assert not check(tmp_path / "1").problems
    assert check(tmp_path / "1").decoded > 0
    rows = open_shards(tmp_path / "1", split="train")
    assert next(iter(batches(rows, window=16, batch_size=2, seed=1)))["input_ids"].max() < 200
    for command in (["show", tmp_path / "1"], ["show", tmp_path / "tok"], ["check", tmp_path / "tok"],
                    ["vocab", tmp_path / "tok", "--merges"],
                    ["compare", tmp_path / "tok", "--on", tmp_path / "in.parquet", *flags],
                    ["report", tmp_path / "tok", tmp_path / "1", "--out", tmp_path / "report.html"]):  # fmt: skip
        done = run(*command)
        assert done.returncode == 0, (command, done.stderr)
    digits = " ".join(map(str, lists[0]))
    ids = run("encode", tmp_path / "tok", digits).stdout
    assert run("decode", tmp_path / "tok", *ids.split()).stdout.split() == digits.split()


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.int64()), pa.large_list(pa.uint64()), pa.list_(pa.uint64(), 2)], ids=["list", "large", "fixed"]
)
def test_a_list_that_is_not_all_integers_costs_no_other_document(kind, tmp_path):
    """It was taken for a broken file: of 1 skipped document told, the rest of the file was left out."""
    lists = [[1, 2], [3, None], None, [5, 6], [None, None], [7, 8]]
    if pa.types.is_uint64(kind.value_type):
        lists[1] = [3, 2**63]
    table = pa.table({"text": pa.array(lists, kind)})
    pq.write_table(table, tmp_path / "in.parquet")
    for source in (table, tmp_path / "in.parquet"):
        (block,) = open_source(source, integers=True, on_bad_document="skip").blocks()
        assert [block.text(i) for i in range(len(block))] == ["1 2 ", "5 6 ", "7 8 "]
        assert [one.name.rpartition("[")[2] for one in block.tally.skipped] == ["1]", "2]", "4]"]
    (block,) = open_source(table.slice(1), integers=True, on_bad_document="skip").blocks()
    assert [block.text(i) for i in range(len(block))] == ["5 6 ", "7 8 "]
