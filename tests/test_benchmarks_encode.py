"""The encoding benchmark's own arithmetic: no network, no timing; a library made up here stands in for the peers."""

import hashlib
import json
import lzma
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks" / "peers"))

import carry
import corpus
import encode
import encode_page
import encode_peers
import encode_vocabularies as vocabularies
import measure
import protocol
import worker


class Bytes(encode_peers.Encoder):
    """Every byte is its own token."""

    def load(self):
        return self.file("ranks.tiktoken", "tokenizer.json")

    def encode(self, block):
        return [list(text.encode()) for text in block]

    def one(self, text):
        return list(text.encode())

    def decode(self, ids):
        return bytes(ids).decode()


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "vocabulary"
    made.mkdir()
    (made / "ranks.tiktoken").write_text("")
    (made / "about.json").write_text(json.dumps({"kind": "ranks", "name": "bytes", "gigatoken": ""}))
    return made


def documents(path, *texts):
    encoded = [text.encode() for text in texts]
    path.with_suffix(".bin").write_bytes(b"".join(encoded))
    np.save(path.with_suffix(".npy"), np.cumsum([len(text) for text in encoded], dtype=np.int64))
    return str(path)


def asked(verb, folder, text, **options):
    """What the worker tells, and its file of hashes."""
    args = {"vocabulary": folder, "text": text, "threads": 1, "form": "whole", "block": 4, "once": False}
    told = getattr(Bytes(), verb)(SimpleNamespace(**args | options, out=folder.parent))
    return told, (folder.parent / "ids").read_bytes()


def test_blocks_are_whole_documents_and_together_everything():
    data, ends = np.arange(20, dtype=np.uint8), np.array([3, 3, 12, 14, 20])
    cut = list(encode_peers.blocks(data, ends, 5))
    assert [(block.tolist(), ends.tolist()) for block, ends in cut] == [
        ([0, 1, 2], [3, 3]),
        (list(range(3, 12)), [9]),  # longer than a block, so alone
        ([12, 13], [2]),
        (list(range(14, 20)), [6]),
    ]
    assert [len(block) for block, _ in encode_peers.blocks(data, ends, 0)] == [20]
    assert [ends.tolist() for _, ends in encode_peers.blocks(data[:0], np.array([0, 0]), 5)] == [[0, 0]]


def test_a_run_tells_its_figures_and_a_hash_for_each_document(tmp_path, folder):
    source = documents(tmp_path / "text", "one", "", "zwei é", "one")
    whole, ids = asked("bulk", folder, source)
    found, same = asked("bulk", folder, source, form="blocks")
    assert (whole["blocks"], found["blocks"], found["first"]["tokens"]) == (1, 3, 3 + 7 + 3)
    assert found["warm"]["seconds"] > 0
    assert ids == same
    assert len(ids) == 4 * encode.DIGEST
    assert ids[:8] == ids[24:] != ids[16:24]
    assert asked("bulk", folder, source, once=True)[0]["warm"] == {}


def test_strings_are_timed_one_by_one_and_must_come_back(tmp_path, folder):
    (tmp_path / "strings").write_text(json.dumps({"warm up": ["x"], "asked": ["one", "é"]}))
    found, ids = asked("short", folder, tmp_path / "strings")
    assert found["texts"] == hashlib.sha256("one\0é".encode()).hexdigest()
    assert found["encode_microseconds"] > 0
    assert len(ids) == 2 * encode.DIGEST


def test_a_library_that_cannot_load_a_vocabulary_says_why(tmp_path, folder):
    (folder / "ranks.tiktoken").unlink()
    source = documents(tmp_path / "text", "one")
    with pytest.raises(worker.Cannot, match=r"reads no such vocabulary, only ranks.tiktoken or tokenizer.json"):
        asked("bulk", folder, source)


def test_other_ids_are_counted_and_have_no_time():
    same = protocol.Entry("tiktoken", "whole", runs=[measure.Run(1, 1, 1, "ok")], told=[{}])
    encode.judge(same, b"8 bytes.and more", {"ids": b"8 bytes.and more", "texts": None})
    assert same.finished
    for found, count in ((b"8 bytes.AND MORE", 1), (b"8 bytes.", 1), (b"", 2)):
        other = protocol.Entry("tiktoken", "whole", runs=same.runs, told=[{}])
        encode.judge(other, found, {"ids": b"8 bytes.and more", "texts": None})
        assert (other.finished, other.reason) == (False, f"other ids in {count} of 2")
    text = protocol.Entry("tiktoken", "", runs=same.runs, told=[{"texts": "aa"}])
    encode.judge(text, b"", {"ids": b"", "texts": "bb"})
    assert text.reason == "other text after decoding"


def test_the_faster_form_is_repeated():
    def entry(tool, form, seconds):
        cold = {"seconds": 9 - seconds, "cpu_seconds": seconds}
        return protocol.Entry(tool, form, runs=[measure.Run(1, 1, 1, "ok")], told=[{"cold": cold}])

    entries = [entry("a", "whole", 2), entry("a", "blocks", 1), entry("b", "whole", 3), protocol.Entry("c", "whole")]
    one, two = ({"question": "bulk", "threads": threads} for threads in (1, 2))
    assert encode.faster_form(entries, "a", one) is entries[1]
    assert encode.faster_form(entries, "a", two) is entries[0]  # by wall time
    assert encode.faster_form(entries, "b", one) is entries[2]
    assert encode.faster_form(entries, "c", one) is None


def test_questions_cover_every_vocabulary_and_corpus():
    benchmark = encode.Encode()
    benchmark.start([])
    names = [benchmark.asked.format_map(question) for question in benchmark.questions()]
    assert len([name for name in names if name.startswith("bulk")]) == 7 * 6 * 2
    assert "regex regex-digits english-4mb threads=1" in names
    assert not [name for name in names if name.startswith(("short regex", "bulk regex", "scaling"))]
    assert encode_page.VOCABULARIES == vocabularies.NAMED
    assert set(encode.CORPORA + encode.REGEX_CORPORA) <= set(corpus.RECORDED)


def test_ranks_become_merges_in_their_order(tmp_path):
    import base64

    tokens = [bytes([byte]) for byte in range(256)] + [b"ab", b"abc", b"zzz"]  # nothing merges to zzz
    lines = b"".join(b"%s %d\n" % (base64.b64encode(token), rank) for rank, token in enumerate(tokens))
    (tmp_path / "source").write_bytes(lines)
    vocabularies.make(vocabularies.Vocabulary("x", "ranks", "", split=r"\w+"), tmp_path / "source", tmp_path)
    data = json.loads((tmp_path / "tokenizer.json").read_text())
    assert data["model"]["merges"] == [["a", "b"], ["ab", "c"]]
    assert (data["model"]["vocab"]["abc"], data["model"]["vocab"]["zzz"]) == (257, 258)
    assert data["pre_tokenizer"]["pretokenizers"][0]["pattern"] == {"Regex": r"\w+"}


def test_a_vocabulary_that_is_not_there_is_a_reason_and_not_an_error(tmp_path):
    found = vocabularies.vocabulary("cl100k", tmp_path)
    assert found == "cl100k_base.tiktoken is not in the folder of vocabularies"


def test_descriptions_lose_their_markup_and_come_once():
    long = "Describes &lt;one&gt; thing. " * 5
    model = {"a": {"documentation": f"<p>{long}</p>"}, "b": [{"documentation": long}, {"documentation": "Short."}]}
    assert corpus.descriptions(json.dumps(model)) == "Describes <one> thing. " * 4 + "Describes <one> thing.\n"


def test_random_text_has_no_newline_and_is_the_same_every_time():
    made = corpus.random_base64(200_000)
    assert [(name, len(text)) for name, text in made] == [("00000", 100_000), ("00001", 100_000)]
    assert made == corpus.random_base64(200_000)
    assert "\n" not in made[0][1]


def test_a_gigabyte_is_made_of_little_and_no_document_twice(tmp_path, monkeypatch):
    for module in (carry, corpus):
        monkeypatch.setattr(module, "FLAT", tmp_path)
    monkeypatch.setattr(vocabularies, "FOLDER", tmp_path / "vocabs")
    (tmp_path / carry.VOCABULARY).mkdir()
    base = ["some words that are spelled otherwise " * 3, "é other words 12"]
    with lzma.open(tmp_path / "text.jsonl.xz", "wt") as lines:
        lines.writelines(json.dumps({"text": text}) + "\n" for text in base)
    carry.unpack(tmp_path, 1000)
    made = corpus.Corpus(**json.loads((tmp_path / f"{encode.CARRIED}.json").read_text()))
    ends = np.load(tmp_path / f"{encode.CARRIED}.npy")
    data = (tmp_path / f"{encode.CARRIED}.bin").read_bytes()
    assert len(data) == made.bytes == ends[-1] <= 1000
    cut = [data[start:end].decode() for start, end in zip([0, *ends], ends, strict=False)]
    assert cut[:2] == base
    assert len(set(cut)) == made.documents == len(ends) > 4


def line(tool, *seconds, vocabulary="cl100k", corpus="python-127mb", threads=1, question="bulk", **changes):
    return {
        "benchmark": "encode",
        "session": "2026-01-01T00:00:00",
        "complete": True,
        "commit": "abc",
        "machine": {"processor": "a processor", "cores": 2, "memory_gb": 8.0},
        "load": 0.1,
        "question": question,
        "vocabulary": vocabulary,
        "corpus": corpus,
        "text_bytes": 100_000_000,
        "documents": 1000,
        "threads": threads,
        "tool": tool,
        "version": "1.0",
        "form": "whole",
        "chosen": True,
        "reason": "",
        "differing": 0,
        "runs": [pass_of(value) for value in seconds],
        **changes,
    }


def pass_of(seconds, growth=30e6):
    cold = {"seconds": seconds, "cpu_seconds": seconds, "growth_bytes": growth}
    warm = {"seconds": seconds / 2, "cpu_seconds": seconds / 2}
    return {"seconds": seconds + 1, "outcome": "ok", "cold": cold, "warm": warm}


def string(encode, decode):
    return {"seconds": 1, "outcome": "ok", "encode_microseconds": encode, "decode_microseconds": decode}


def bars(records):
    return {bar.promise: (bar.measured, bar.passed) for bar in encode_page.bars(records)}


def test_bars_are_ratios_of_medians_in_one_session():
    found = bars(
        [
            line("piecemill", 0.5, 0.4, 9.0),
            line("gigatoken", 0.8, 0.7, 0.6),
            line("piecemill", 0.5, corpus="english-40mb"),
            line("gigatoken", 0.6, corpus="english-40mb", session="2025-01-01T00:00:00"),
        ]
    )
    python, english = (
        f"cl100k, one thread, cold, {name}: at least 1.4x gigatoken" for name in ("python-127mb", "english-40mb")
    )
    assert found[python] == ("200 and 143 MB/s: 1.40x", True)
    assert found[english] == ("", None)


def test_a_bar_over_many_questions_shows_the_worst_and_needs_all():
    records = []
    for name in encode_page.CORPORA:
        ours = 0.1 if name != "cjk-8mb" else 0.2
        records += [line("piecemill", ours, vocabulary="bert", corpus=name)]
        records += [line("splintr-rs", 0.6, vocabulary="bert", corpus=name)]
        records += [line("tokenizers", 0.1, vocabulary="bert", corpus=name, reason="other ids in 1 of 2", differing=1)]
    promise = "bert, every corpus, cold: at least 5x the fastest library with the same ids"
    worst = "500 and 167 MB/s: 3.00x splintr-rs (bert, cjk-8mb); 5 of 6 reach it"
    assert bars(records)[promise] == (worst, False)
    few = [record for record in records if record["corpus"] == "python-127mb"]
    assert bars(few)[promise][1] is None


def test_what_a_peer_refuses_is_not_held_against_the_bar():
    records = []
    for name in encode_page.VOCABULARIES:
        for corpus_name in encode_page.CORPORA:
            records.append(line("piecemill", 0.1, vocabulary=name, corpus=corpus_name))
            no = {"reason": "needs a backend", "runs": []} if name == "qwen3.5" else {}
            records.append(line("tokenizers-1.0rc", 0.4, vocabulary=name, corpus=corpus_name, **no))
    promise = "every corpus and vocabulary, one thread, cold: at least 2x `tokenizers` 1.0"
    measured, passed = bars(records)[promise]
    assert passed
    assert measured.endswith("36 of 36 reach it; tokenizers-1.0rc refuses 6 more")
    assert bars(records[4:])[promise][1] is None


def test_a_peer_with_other_ids_has_no_time_in_the_table_but_is_still_compared():
    records = []
    for name in encode_page.CORPORA:
        records.append(line("piecemill", 0.1, vocabulary="mistral-v1", corpus=name))
        other = {"reason": "other ids in 15 of 8,011", "differing": 15}
        records.append(line("gigatoken", 0.5, vocabulary="mistral-v1", corpus=name, **other))
    measured, passed = bars(records)["mistral-v1, every corpus, cold: at least 3x gigatoken"]
    assert passed
    assert measured.endswith("gigatoken gives other ids in 6 of these")
    page = encode.Encode().render(records)
    assert "| gigatoken 1.0 | other ids in 15 of 8,011 |" in page
    assert "| **piecemill** 1.0 | 1,000 (1,000-1,000) / 2,000 |" in page


def test_other_ids_of_ours_fail_and_memory_is_the_worst_of_all():
    records = [
        line("piecemill", 0.1),
        line("piecemill", corpus="cjk-8mb", threads=2, runs=[pass_of(1, growth=90e6)]),
        line("piecemill", 0.1, corpus="base64-20mb", reason="other ids in 2 of 1,000", differing=2),
    ]
    found = bars(records)
    assert found["documents with other ids than the home library: 0"] == ("2 of 3,000 in 3 comparisons", False)
    memory = found["memory beyond the caller's buffers: at most 40 MB for each thread, whatever the text"]
    assert memory == ("45.0 MB (cl100k, cjk-8mb, 2 threads)", False)


def test_short_strings_are_compared_with_tiktoken_or_with_its_cl100k():
    records = [line("tiktoken", question="short", corpus=encode_page.STRINGS, runs=[string(5.0, 2.0)])]
    for name in encode_page.VOCABULARIES:
        runs = [string(4.0, 3.0 if name == "bert" else 1.0)]
        records.append(line("piecemill", question="short", vocabulary=name, corpus=encode_page.STRINGS, runs=runs))
    no = {"reason": "reads no such vocabulary", "runs": []}
    records.append(line("tiktoken", question="short", vocabulary="bert", corpus=encode_page.STRINGS, **no))
    for record in records:
        record["session"] = "2026-01-01T00:00:00"
    found = bars(records)
    promise = "one string of 50 characters, {}, every vocabulary: no slower than tiktoken"
    assert found[promise.format("encode")][1] is True
    assert found[promise.format("decode")] == ("slowest of 7: bert 3.00 and 2.00 us, 1.50x", False)
    assert "| **piecemill** 1.0 | 4.00 (4.00-4.00) / 1.00 |" in encode.Encode().render(records)


def test_scaling_is_against_one_thread_and_against_gigatoken():
    records = []
    for threads, ours, other in ((1, 2.0, 4.0), (16, 0.19, 0.3)):
        records.append(line("piecemill", ours, question="scaling", threads=threads))
        records.append(line("gigatoken", other, question="scaling", threads=threads))
    found = bars(records)
    assert found["16 threads on a gigabyte, cold: at least 10x one thread"] == ("526 and 50.0 MB/s: 10.53x", True)
    assert found["16 threads on a gigabyte, cold: at least 1.5x gigatoken with 16 threads"][1] is True
    assert "526 (526-526) / 1,053, 10.5x |" in encode.Encode().render(records)
