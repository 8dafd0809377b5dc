"""The benchmark's own arithmetic: no network, no timing, nothing measured but that measuring works."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks" / "peers"))

import protocol

import corpus
import measure
import tables
import train


def run(seconds, peak=100e6, outcome="ok"):
    return {"seconds": seconds, "cpu_seconds": seconds, "peak_bytes": peak, "outcome": outcome, "message": ""}


def line(tool, *seconds, session="2026-01-01T00:00:00", question="words", corpus="python-127mb", **changes):
    return {
        "session": session,
        "complete": True,
        "machine": {"processor": "a processor", "cores": 2, "memory_gb": 8.0},
        "question": question,
        "corpus": corpus,
        "input": "0123456789abcdef" * 4,
        "split": "gpt2",
        "vocab": 50_257,
        "threads": 2,
        "tool": tool,
        "version": "1.0",
        "reason": "",
        "agreement": "same",
        "merges": 50_001,
        "merges_sha256": "aa",
        "runs": [run(value) for value in seconds],
        **changes,
    }


def test_a_process_is_measured_and_its_output_kept_for_the_day_it_fails(tmp_path):
    good = measure.measure([sys.executable, "-c", "print(1)"], threads=1, log=tmp_path / "log")
    assert (good.outcome, good.message) == ("ok", "")
    assert good.seconds > 0
    assert good.peak_bytes > 1e6
    bad = measure.measure([sys.executable, "-c", "raise SystemExit('no words')"], threads=1, log=tmp_path / "log")
    assert (bad.outcome, bad.message) == ("failed", "exit status 1: no words")


def test_a_process_over_its_limits_is_stopped_and_says_which(tmp_path):
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    assert measure.measure(sleep, threads=1, log=tmp_path / "log", time_limit=0.1).outcome == "over time"
    assert measure.measure(sleep, threads=1, log=tmp_path / "log", memory_limit=1000).outcome == "over memory"


def test_the_memory_of_the_benchmark_is_not_taken_for_that_of_the_tool(tmp_path):
    held = bytearray(200_000_000)
    found = measure.measure([sys.executable, "-c", ""], threads=1, log=tmp_path / "log")
    assert found.peak_bytes < len(held) / 2


def test_a_command_that_is_not_there_is_an_error_and_not_a_run(tmp_path, capfd):
    with pytest.raises(SystemExit):
        measure.measure(["/no/such/tool"], threads=1, log=tmp_path / "log")
    assert "/no/such/tool: not there" in capfd.readouterr().err


def test_records_are_appended_and_read_back(tmp_path):
    path = tmp_path / "results.jsonl"
    kept = measure.record([measure.Run(1.0, 2.0, 3, "ok")], tool="é")
    measure.append(path, kept)
    measure.append(path, kept)
    assert measure.read(path) == [kept, kept]


def test_the_median_is_shown_with_all_of_its_spread():
    assert tables.spread([run(3.0), run(1.0), run(2.5)], "seconds") == "2.50 (1.00-3.00)"
    assert tables.spread([run(1, 1_234e6)], "peak_bytes", 1e6) == "1,234 (1,234-1,234)"


def test_only_the_last_complete_session_of_a_question_counts():
    old, new = line("piecemill", 9.0), line("piecemill", 1.0, session="2026-01-02T00:00:00")
    partial = line("piecemill", 0.1, session="2026-01-03T00:00:00", complete=False)
    assert list(tables.latest([old, new, partial]).values()) == [[new]]


def test_the_bars_compare_with_the_fastest_peer_that_finished():
    stopped = line("quickbpe", 0.1, runs=[run(600.0, outcome="over time")])
    groups = tables.latest([line("piecemill", 1.0), line("tokenizers", 20.0), line("rustbpe", 2.0), stopped])
    passed = {bar.promise: bar.passed for bar in tables.bars(groups)}
    assert passed["words 127 MB: at most 0.5x the time of the fastest peer"] is True
    assert passed["words 127 MB: at most 1/12 of the time of HF tokenizers"] is True
    assert passed["words 127 MB: merges equal to HF tokenizers'"] is True
    assert passed["no split 127 MB, whole files: at most 15 s"] is None


def test_a_bar_that_is_missed_says_so_in_the_table():
    text = tables.render([line("piecemill", 3.0), line("tokenizers", 20.0, merges_sha256="bb")])
    assert "| 3.00 s, tokenizers 20.00 s: 0.150x | pass |" in text
    assert "0.150x | **FAIL** |" in text
    assert "| 50,001 merges | **FAIL** |" in text


def test_growth_is_measured_against_our_own_smaller_cut():
    group = tables.latest(
        [
            line("piecemill", 2.0, question="none", corpus="python-20mb"),
            line("piecemill", 20.0, question="none", corpus="python-127mb"),
        ]
    )
    (growth,) = [bar for bar in tables.bars(group) if "grows" in bar.promise]
    assert (growth.measured, growth.passed) == ("20.00 s, 20 MB 2.00 s: 10.000x", False)


def test_a_tool_that_did_not_finish_is_in_the_table_with_the_reason():
    stopped = line("tokenizers", runs=[run(600.2, outcome="over time")])
    absent = line("youtokentome", reason="does not build", runs=[])
    text = tables.table([line("piecemill", 1.0), stopped, absent])
    assert "| tokenizers 1.0 | > 600 |" in text
    assert "| youtokentome 1.0 | does not build |" in text


def test_the_page_keeps_the_words_around_the_markers(tmp_path):
    path = tmp_path / "page.md"
    path.write_text("before\n<!-- train: begin -->\nold\n<!-- train: end -->\nafter\n")
    tables.page([line("piecemill", 1.0)], path)
    text = path.read_text()
    assert text.startswith("before\n<!-- train: begin -->\n")
    assert text.endswith("<!-- train: end -->\nafter\n")
    assert "old" not in text
    tables.page([line("piecemill", 1.0)], path)
    assert path.read_text() == text


def test_merges_are_compared_in_order_and_by_tokens_where_only_tokens_are_known():
    base = [["61", "62"], ["6162", "63"], ["78", "79"]]
    assert train.difference(base, base) == ""
    assert train.difference([["6162"], ["616263"], ["7879"]], base) == ""
    assert train.difference([base[0], base[2], base[1]], base) == "first difference at merge 2; 3 of 3 tokens shared"
    assert train.difference(base[:2], base) == "first difference at merge 3; 2 of 3 tokens shared"


def test_a_difference_of_ours_ends_the_benchmark():
    question = train.Question("words", "python-5mb", "gpt2", 300, 1)
    done = [measure.Run(1.0, 1.0, 1, "ok")]
    ours = train.Entry(train.TOOLS["piecemill"], runs=done, merges=[["61", "62"]])
    theirs = train.Entry(train.TOOLS["tokenizers"], runs=done, merges=[["61", "63"]])
    with pytest.raises(SystemExit, match="No time is reported"):
        train.compare(question, [ours, theirs])


def test_a_file_is_cut_into_functions_without_losing_a_byte():
    text = "import a\n\n@b\ndef f(\n):\n    return 1\n\nx = 2\nclass C:\n    pass\n"
    assert corpus.pieces(text) == [
        "@b\ndef f(\n):\n    return 1\n\n",
        "class C:\n    pass\n",
        "import a\n\nx = 2\n",
    ]


def test_a_cut_is_a_sample_and_contained_in_the_larger_one():
    documents = [(f"{number}.py", "x" * 10) for number in range(100)]
    small, large = corpus.cut(documents, 105), corpus.cut(documents, 505)
    assert (len(small), len(large)) == (10, 50)
    assert set(small) < set(large)
    with pytest.raises(SystemExit, match="pin another package"):
        corpus.cut(documents, 2000)


def test_of_a_po_file_only_the_translations_are_kept():
    po = 'msgid ""\nmsgstr "Language: fr\\n"\n\nmsgid "a"\nmsgstr ""\n"b \\"c\\""\n" d"\n\nmsgid "e"\nmsgstr ""\n'
    assert corpus.translations(po) == 'b "c" d\n'


def test_the_stand_in_letters_cover_every_byte():
    letters = protocol.byte_of_letter()
    assert sorted(letters.values()) == list(range(256))
    assert letters["Ġ"] == ord(" ")
