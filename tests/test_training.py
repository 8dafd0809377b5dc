"""Training from documents to a tokenizer: equal to HF, the same however it is run, and honest about its limits."""

import json
import os
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

import piecemill as pm
from piecemill import _core
from piecemill.errors import PiecemillError, PlanError, PretokenizerError, SourceError
from piecemill.tokenizers.listing import show_token


def hf_merges(texts, pretokenizer, vocab_size, *, min_frequency=0, special_tokens=()):
    """Merges and ids of HF's byte-level BpeTrainer on the same question."""
    tokenizer = Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    cuts = [pre_tokenizers.Split(Regex(regex), behavior="isolated") for regex in _core.resolve_split(pretokenizer)[1]]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*cuts, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=list(special_tokens),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return [(model["vocab"][left], model["vocab"][right]) for left, right in model["merges"]], model["vocab"]


def merges_of(tokenizer):
    return [tuple(pair) for pair in tokenizer.merges.tolist()]


@pytest.mark.parametrize("pretokenizer", ["gpt2", "cl100k"])
@pytest.mark.parametrize("vocab_size", [2_000, 8_000])
@pytest.mark.parametrize("min_frequency", [0, 2])
@pytest.mark.parametrize("special_tokens", [(), ("<|endoftext|>", "<pad>")])
def test_merges_equal_hf_tokenizers(stdlib_texts, pretokenizer, vocab_size, min_frequency, special_tokens):
    options = {"vocab_size": vocab_size, "min_frequency": min_frequency, "special_tokens": special_tokens}
    texts = stdlib_texts[::4]
    ours = pm.train_bpe(iter(texts), pretokenizer=pretokenizer, **options)
    theirs, vocab = hf_merges(texts, pretokenizer, **options)
    assert merges_of(ours) == theirs
    assert ours.vocab_size == len(vocab) == vocab_size
    assert ours.training["merging"]["queue_per_mille"] <= 2000


@pytest.mark.parametrize("pretokenizer", ["gpt2", "none"])
@pytest.mark.parametrize("special", ["café", "中", "a b", "Ġthe", "the", "Ã©t"])
def test_special_tokens_that_the_text_spells_equal_hf(special, pretokenizer):
    # Only "the", "Ġthe" and "Ã©t" are written as bytes are, and become the learned token too.
    texts = ["le café de l'été", "the café in the 中国, 中国 a b a b", "xyzw xyzw"] * 5
    options = {"vocab_size": 320, "special_tokens": ("<|endoftext|>", special)}
    ours = pm.train_bpe(iter(texts), pretokenizer=pretokenizer, **options)
    theirs, vocab = hf_merges(texts, pretokenizer, **options)
    assert merges_of(ours) == theirs
    assert ours.vocab_size == len(vocab) == ours.training["vocab_size"]
    assert json.loads(ours.model.files()["tokenizer.json"])["model"]["vocab"] == vocab


def test_running_out_of_words_equals_hf_and_says_so(stdlib_texts):
    # High vocabulary, little text: every pair down to the last one, where nearly all are ties.
    texts = stdlib_texts[:3]
    ours = pm.train_bpe(iter(texts), vocab_size=60_000, pretokenizer="gpt2", special_tokens=())
    theirs, _ = hf_merges(texts, "gpt2", 60_000)
    assert merges_of(ours) == theirs
    assert ours.training["ended"] == "no pair left"
    assert ours.vocab_size < 60_000


def test_whole_documents_equal_hf(stdlib_texts):
    texts = [text[:3000] for text in stdlib_texts[:150]]
    ours = pm.train_bpe(iter(texts), vocab_size=3_000, pretokenizer="none", special_tokens=())
    theirs, _ = hf_merges(texts, "none", 3_000)
    assert merges_of(ours) == theirs


@pytest.mark.parametrize("pretokenizer", [row["name"] for row in _core.splits() if row["patterns"]])
def test_text_in_many_scripts_equals_hf_with_every_named_split(pretokenizer):
    from pathlib import Path

    texts = Path(__file__).with_name("scripts.txt").read_text(encoding="utf-8").splitlines() * 2
    ours = pm.train_bpe(iter(texts), vocab_size=1_500, pretokenizer=pretokenizer, special_tokens=())
    theirs, _ = hf_merges(texts, pretokenizer, 1_500)
    assert merges_of(ours) == theirs
    assert ours.pretokenizer == pretokenizer


def test_training_with_an_alias_is_training_with_the_split(tmp_path):
    texts = ["some words 123", "more words 4567"]
    pm.count_words(iter(texts), pretokenizer="starcoder", save_counts=tmp_path / "counts.parquet")
    counted = pm.train_bpe(vocab_size=270, pretokenizer="digits-then-gpt2", from_counts=[tmp_path / "counts.parquet"])
    direct = pm.train_bpe(iter(texts), vocab_size=270, pretokenizer="smollm")
    assert direct.pretokenizer == counted.pretokenizer == "digits-then-gpt2"
    assert direct.identity == counted.identity


@pytest.mark.parametrize("pretokenizer", ["qwen9", "hello", ""])
def test_a_split_that_no_one_knows_is_an_error(pretokenizer):
    with pytest.raises(
        PretokenizerError, match=f"pretokenizer `{pretokenizer}`: none has this name. Choose gpt2, cl100k"
    ):
        pm.train_bpe(iter(["text"]), vocab_size=300, pretokenizer=pretokenizer)


@pytest.mark.parametrize("pretokenizer", ["cl100k", "none", r"\w+|\s+"])
def test_the_result_is_the_same_for_any_threads_order_and_memory(stdlib_texts, pretokenizer):
    texts = stdlib_texts[:80]
    shuffled = texts[:]
    random.Random(1).shuffle(shuffled)
    options = {"vocab_size": 1_500, "pretokenizer": pretokenizer}
    once = pm.train_bpe(iter(texts), threads=1, **options)
    for run in (
        pm.train_bpe(iter(texts), threads=1, **options),
        pm.train_bpe(iter(shuffled), threads=2, **options),
        pm.train_bpe(iter(texts), threads=4, memory="64MiB", **options),
    ):
        assert merges_of(run) == merges_of(once)
        assert run.training["corpus"] == once.training["corpus"]


def test_counts_saved_in_parts_train_as_the_whole_does(stdlib_texts, tmp_path):
    texts = stdlib_texts[:60]
    whole = pm.train_bpe(iter(texts), vocab_size=2_000, pretokenizer="gpt2")
    for part in range(3):
        pm.count_words(iter(texts[part::3]), pretokenizer="gpt2", save_counts=tmp_path / f"{part}.parquet")
    parts = pm.train_bpe(vocab_size=2_000, pretokenizer="gpt2", from_counts=sorted(tmp_path.glob("*.parquet")))
    assert merges_of(parts) == merges_of(whole)
    assert parts.training["corpus"]["fingerprint"] == whole.training["corpus"]["fingerprint"]
    assert parts.training["corpus"]["documents"] == len(texts)


def test_a_saved_count_file_is_a_function_of_the_text(stdlib_texts, tmp_path):
    texts = stdlib_texts[:40]
    pm.count_words(iter(texts), pretokenizer="gpt2", save_counts=tmp_path / "a.parquet", threads=1)
    pm.count_words(iter(texts[::-1]), pretokenizer="gpt2", save_counts=tmp_path / "b.parquet", threads=3)
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()


def test_counting_says_what_was_counted(tmp_path):
    counted = pm.count_words(iter(["one two one", "", "\ud800"]), on_bad_document="skip", save_counts=tmp_path / "c")
    assert (counted.distinct_words, counted.documents, counted.bytes) == (3, 1, 11)
    assert (counted.left_out, counted.skipped) == ({"empty": 1}, 1)
    assert counted.counts == tmp_path / "c"


def test_counts_that_do_not_tell_what_was_not_read_still_load(tmp_path):
    pm.count_words(iter(["some words"]), save_counts=tmp_path / "new.parquet")
    table = pq.read_table(tmp_path / "new.parquet")
    about = json.loads(table.schema.metadata[b"piecemill.counts"])
    del about["not_read"]
    pq.write_table(table.replace_schema_metadata({b"piecemill.counts": json.dumps(about)}), tmp_path / "old.parquet")
    corpus = pm.train_bpe(vocab_size=300, from_counts=[tmp_path / "old.parquet"]).training["corpus"]
    assert (corpus["documents"], corpus["left_out"], corpus["skipped"]) == (1, {}, 0)


def test_whole_documents_can_be_counted_too(stdlib_texts, tmp_path):
    texts = [text[:2000] for text in stdlib_texts[:40]] * 2
    whole = pm.train_bpe(iter(texts), vocab_size=600, pretokenizer="none")
    pm.count_words(iter(texts), pretokenizer="none", save_counts=tmp_path / "documents.parquet")
    counted = pm.train_bpe(vocab_size=600, pretokenizer="none", from_counts=[tmp_path / "documents.parquet"])
    assert merges_of(counted) == merges_of(whole)


def test_counts_of_another_split_are_refused(tmp_path):
    pm.count_words(iter(["some words"]), pretokenizer="gpt2", save_counts=tmp_path / "gpt2.parquet")
    with pytest.raises(SourceError, match=r"gpt2\.parquet: counted with pretokenizer='gpt2', requested 'cl100k'"):
        pm.train_bpe(vocab_size=300, pretokenizer="cl100k", from_counts=[tmp_path / "gpt2.parquet"])


def test_counts_are_never_written_over_what_they_are_made_from(tmp_path):
    source, counts = tmp_path / "a.txt", tmp_path / "a.parquet"
    source.write_text("some words")
    (tmp_path / "link.txt").symlink_to(source)
    for given in (source, tmp_path, tmp_path / "link.txt", f"file://{source}"):
        with pytest.raises(PlanError, match=r"a\.txt'?: is .*\.txt of the source, and is never replaced"):
            pm.count_words(given, save_counts=source, force=True)
    assert source.read_text() == "some words"
    pm.count_words(source, save_counts=counts)
    with pytest.raises(PlanError, match=r"a\.parquet': exists\. Choose another name, or replace it with force=True"):
        pm.count_words(source, save_counts=counts)
    with pytest.raises(PlanError, match=r"a\.parquet': is one of from_counts, and is never replaced"):
        pm.train_bpe(vocab_size=300, from_counts=[counts], save_counts=tmp_path / "." / "a.parquet", force=True)
    assert pm.count_words(source, save_counts=counts, force=True).documents == 1


def test_a_place_where_counts_cannot_be_written_is_refused_before_the_work(tmp_path):
    (tmp_path / "file").write_text("text")

    def never():
        raise AssertionError("read before the check")
        yield

    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(PlanError, match=r"pipe': is a pipe or a device"):
        pm.count_words(never(), save_counts=tmp_path / "pipe", force=True)
    with pytest.raises(PiecemillError, match=r"file is a file, expected a folder"):
        pm.count_words(never(), save_counts=tmp_path / "file" / "c.parquet")


def test_a_file_that_is_not_counts_is_refused(tmp_path):
    (tmp_path / "x.parquet").write_bytes(b"nothing")
    with pytest.raises(SourceError, match=r"x\.parquet: cannot be read as Parquet"):
        pm.train_bpe(vocab_size=300, from_counts=[tmp_path / "x.parquet"])


def test_a_pipe_or_a_folder_is_no_counts_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(SourceError, match=f"{path}: no regular file"):
            pm.train_bpe(from_counts=[path], vocab_size=300)


def test_counts_that_are_damaged_are_named_wherever_the_damage_is(stdlib_texts, tmp_path):
    pm.count_words(iter(stdlib_texts[:20]), save_counts=tmp_path / "whole.parquet")
    whole = (tmp_path / "whole.parquet").read_bytes()
    damaged = tmp_path / "damaged.parquet"
    for at in range(100, len(whole) // 2, len(whole) // 40):  # rows lie before the footer; one byte is enough
        damaged.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(SourceError, match=r"damaged\.parquet: cannot be read as Parquet: .*copy it again"):
            pm.train_bpe(vocab_size=300, from_counts=[damaged])


RECORDS = [b"", b"[", b"[]", b'{"version": 2}', b"\xff", lambda record: record.replace(b'"corpus"', b'"corqus"')]


@pytest.mark.parametrize("record", [*RECORDS, lambda record: record.replace(b"not_read", b"not_reae") + b"}"])
def test_a_counts_file_whose_record_was_changed_is_named(tmp_path, record):
    pm.train_bpe(["some words and other words"], vocab_size=260, save_counts=tmp_path / "counts.parquet")
    table = pq.read_table(tmp_path / "counts.parquet")
    ((key, was),) = table.schema.metadata.items()
    changed = {key: record(was) if callable(record) else record}
    pq.write_table(table.replace_schema_metadata(changed), tmp_path / "changed.parquet")
    with pytest.raises(SourceError, match=r"changed\.parquet: not a counts file"):
        pm.train_bpe(from_counts=[tmp_path / "changed.parquet"], vocab_size=260)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda table: table.slice(0, 2), "holds 2 words; 3 were counted. The file was changed"),
        (lambda table: table.slice(0, 0), "holds 0 words; 3 were counted"),
        (
            lambda table: table.set_column(1, table.schema.field(1), pa.array([9, 9, 9], pa.uint64())),
            "holds 27 occurrences; 4 were counted",
        ),
        (lambda table: table.select(["word"]), "cannot be read as Parquet"),
    ],
)
def test_a_counts_file_with_other_counts_than_were_written_is_refused(tmp_path, change, says):
    pm.train_bpe(["some words some words"], vocab_size=260, save_counts=tmp_path / "counts.parquet")
    pq.write_table(change(pq.read_table(tmp_path / "counts.parquet")), tmp_path / "changed.parquet")
    with pytest.raises(SourceError, match=rf"changed\.parquet: {says}"):
        pm.train_bpe(from_counts=[tmp_path / "changed.parquet"], vocab_size=260)


def test_the_same_counts_twice_are_refused(tmp_path):
    pm.count_words(iter(["some words"]), save_counts=tmp_path / "a.parquet")
    (tmp_path / "b.parquet").symlink_to(tmp_path / "a.parquet")
    for again in (tmp_path / "a.parquet", tmp_path / "b.parquet"):
        with pytest.raises(PlanError, match=r"is .*a\.parquet once more; its words would be counted twice"):
            pm.train_bpe(vocab_size=300, from_counts=[tmp_path / "a.parquet", again])


def test_a_vocabulary_too_small_for_the_bytes_is_refused():
    with pytest.raises(PlanError, match="vocab_size=256: the 256 bytes and 1 special token alone need 257"):
        pm.train_bpe(iter(["text"]), vocab_size=256)


def test_an_unknown_option_names_the_nearest():
    with pytest.raises(PlanError, match="did you mean 'vocab_size'"):
        pm.train_bpe(iter(["text"]), vocabsize=300)


def test_a_broken_regex_says_what_is_wrong():
    with pytest.raises(PretokenizerError, match="does not compile"):
        pm.train_bpe(iter(["text"]), vocab_size=300, pretokenizer="(unclosed")


def test_a_regex_that_gives_up_names_the_document(tmp_path):
    (tmp_path / "a.txt").write_text("short")
    (tmp_path / "b.txt").write_text("a" * 40)
    with pytest.raises(
        PretokenizerError, match=r"b\.txt: pretokenizer .*the regex failed after byte 0 of the document"
    ):
        pm.train_bpe(tmp_path, vocab_size=300, pretokenizer=r"(?:a|aa)+(?=b)(?<!x)\b")


@pytest.mark.parametrize("pretokenizer", ["regex:-", "regex:_", "[。]", "(?:ATG)"])
def test_a_regex_may_be_short(pretokenizer):
    once = pm.train_bpe(iter([f"one{pretokenizer}two", "ATG" * 9]), vocab_size=300, pretokenizer=pretokenizer)
    assert once.training["plan"]["pretokenizer"] == pretokenizer


def test_a_word_is_taken_for_a_misspelt_name():
    with pytest.raises(
        PretokenizerError, match=r"pretokenizer `ATG`: .* or a regex\. If it is a regex, write `regex:ATG`"
    ):
        pm.train_bpe(iter(["text"]), vocab_size=300, pretokenizer="ATG")
    with pytest.raises(PlanError, match="pretokenizer=5: expected the name"):
        pm.train_bpe(iter(["text"]), vocab_size=300, pretokenizer=5)


def test_counts_of_long_documents_are_read_back_a_part_at_a_time(tmp_path):
    texts = [f"{number} " + "x" * 30_000_000 for number in range(4)]
    pm.count_words(iter(texts), pretokenizer="none", save_counts=tmp_path / "a.parquet")
    with pq.ParquetFile(tmp_path / "a.parquet") as file:
        assert [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)] == [2, 2]
    assert pm.train_bpe(vocab_size=258, pretokenizer="none", from_counts=[tmp_path / "a.parquet"]).vocab_size == 258


def test_no_source_and_no_counts_is_refused():
    with pytest.raises(PlanError, match="no source"):
        pm.train_bpe(vocab_size=300)


def test_source_and_counts_together_are_refused(tmp_path):
    pm.count_words(iter(["some words"]), save_counts=tmp_path / "a.parquet")
    with pytest.raises(PlanError, match="both given"):
        pm.train_bpe(iter(["text"]), vocab_size=300, from_counts=[tmp_path / "a.parquet"])


def test_skipped_documents_are_counted_and_listed(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "one two"}\n{"no": 1}\n{"text": "three"}\nbroken\n')
    tokenizer = pm.train_bpe(tmp_path / "a.jsonl", vocab_size=300, on_bad_document="skip")
    corpus = tokenizer.training["corpus"]
    assert (corpus["documents"], corpus["skipped"]) == (2, 2)
    assert "a.jsonl:2" in corpus["skipped_documents"][0][0]
    with pytest.raises(SourceError, match=r"a\.jsonl:2"):
        pm.train_bpe(tmp_path / "a.jsonl", vocab_size=300)


def test_progress_comes_in_order_and_ends_complete(stdlib_texts):
    seen = []
    pm.train_bpe(iter(stdlib_texts), vocab_size=6_000, pretokenizer="gpt2", on_progress=seen.append)
    stages = [moment.stage for moment in seen]
    assert stages == sorted(stages, key=["count", "merge"].index)
    merges = [moment.merges for moment in seen if moment.stage == "merge"]
    assert merges == sorted(merges)
    assert seen[-1].documents == len(stdlib_texts)
    assert all(moment.columns() for moment in seen)


def test_tokens_are_shown_readably():
    assert show_token(b" return") == "' return'"
    assert show_token(b"\n") == r"'\n'"
    assert show_token(b"\xe2\x82") == r"b'\xe2\x82'"
    assert len(show_token(b"x" * 100)) <= 24


def test_importing_the_package_imports_nothing_heavy():
    import subprocess
    import sys

    code = (
        "import sys, piecemill, piecemill.training, piecemill.tokenizers, piecemill.sources\n"
        "heavy = {'pyarrow', 'tokenizers', 'transformers', 'torch', 'rich.progress'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
