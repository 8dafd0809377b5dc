"""The benchmark's own arithmetic: no network, no timing, nothing measured but that measuring works."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest
import zstandard

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks" / "peers"))

import corpus
import documents
import measure
import prepare
import prepare_peers
import protocol
import strategies
import tables
import train
import worker
from piecemill import Tokenizer

TRAIN, PREPARE, STRATEGIES = train.Train(), prepare.Prepare(), strategies.Strategies()


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
    sleep = [sys.executable, "-c", "import signal; signal.pause()"]
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


def test_the_median_is_shown_with_all_of_its_spread():
    assert tables.column("seconds")({"runs": [run(3.0), run(1.0), run(2.5)]}, ()) == "2.50 (1.00-3.00)"
    assert tables.column("peak_bytes", 1e6)({"runs": [run(1, 1_234e6)]}, ()) == "1,234 (1,234-1,234)"


def test_only_the_last_session_with_every_repeat_counts():
    old, new = line("piecemill", 9.0), line("piecemill", 1.0, session="2026-01-02T00:00:00")
    partial = line("piecemill", 0.1, session="2026-01-03T00:00:00", complete=False)
    ((shown,),) = TRAIN.groups(TRAIN.shown([old, new, partial])).values()
    assert shown["session"] == new["session"]


def test_a_peer_from_another_session_stays_in_the_table_and_says_so():
    theirs = line("tokenizers", 20.0, session="2026-01-01T10:30:00")
    ours, both = (
        line("piecemill", 1.0, session="2026-01-02T00:00:00"),
        line("ffbpe", 4.0, session="2026-01-02T00:00:00"),
    )
    records = [line("piecemill", 9.0), theirs, ours, both]
    (text,) = TRAIN.tables(records)
    places = [text.index(f"{name} 1.0") for name in ("**piecemill**", "ffbpe", "tokenizers")]
    assert places == sorted(places)
    assert "tokenizers 1.0 (session of 2026-01-01 10:30)" in text
    assert text.count("session of") == 1


def test_the_bars_compare_with_the_fastest_peer_that_finished():
    stopped = line("quickbpe", 0.1, runs=[run(600.0, outcome="over time")])
    records = [line("piecemill", 1.0), line("tokenizers", 20.0), line("rustbpe", 2.0), stopped]
    passed = {bar.promise: bar.passed for bar in TRAIN.bars(records)}
    assert passed["words 127 MB: at most 0.5x the time of the fastest peer"] is True
    assert passed["words 127 MB: at most 1/12 of the time of HF tokenizers"] is True
    assert passed["words 127 MB: merges equal to HF tokenizers'"] is True
    assert passed["no pretokenizer 127 MB, whole files: at most 15 s"] is None


def test_a_bar_that_is_missed_says_so_in_the_table():
    text = TRAIN.render([line("piecemill", 3.0), line("tokenizers", 20.0, merges_sha256="bb")])
    assert "| 3.00 s, tokenizers 20.00 s: 0.150x | pass |" in text
    assert "0.150x | **FAIL** |" in text
    assert "| 50,001 merges | **FAIL** |" in text


def test_growth_is_measured_against_our_own_smaller_cut():
    records = [
        line("piecemill", 2.0, question="none", corpus="python-20mb"),
        line("piecemill", 20.0, question="none", corpus="python-127mb"),
    ]
    (growth,) = [bar for bar in TRAIN.bars(records) if "grows" in bar.promise]
    assert (growth.measured, growth.passed) == ("20.00 s, 20 MB 2.00 s: 10.000x", False)


def test_a_tool_that_did_not_finish_is_in_the_table_with_the_reason():
    stopped = line("tokenizers", runs=[run(600.2, outcome="over time")])
    absent = line("youtokentome", reason="does not build", runs=[])
    (text,) = TRAIN.tables([line("piecemill", 1.0), stopped, absent])
    assert "| tokenizers 1.0 | > 600 |" in text
    assert "| youtokentome 1.0 | does not build |" in text


def test_the_page_keeps_the_words_around_the_markers(tmp_path):
    path = tmp_path / "page.md"
    path.write_text("before\n<!-- train: begin -->\nold\n<!-- train: end -->\nafter\n")
    tables.rewrite(path, "train", TRAIN.render([line("piecemill", 1.0)]))
    text = path.read_text()
    assert text.startswith("before\n<!-- train: begin -->\n")
    assert text.endswith("<!-- train: end -->\nafter\n")
    assert "old" not in text
    tables.rewrite(path, "train", TRAIN.render([line("piecemill", 1.0)]))
    assert path.read_text() == text


def test_merges_are_compared_in_order_and_by_tokens_where_only_tokens_are_known():
    base = [["61", "62"], ["6162", "63"], ["78", "79"]]
    assert train.difference(base, base) == ""
    assert train.difference([["6162"], ["616263"], ["7879"]], base) == ""
    assert train.difference([base[0], base[2], base[1]], base) == "first difference at merge 2; 3 of 3 tokens shared"
    assert train.difference(base[:2], base) == "first difference at merge 3; 2 of 3 tokens shared"


def test_a_difference_of_ours_ends_the_benchmark():
    question = train.new_question("words", "python-5mb", "gpt2", 300, 1)
    done = [measure.Run(1.0, 1.0, 1, "ok")]
    ours = protocol.Entry("piecemill", runs=done, result=[["61", "62"]])
    theirs = protocol.Entry("tokenizers", runs=done, result=[["61", "63"]])
    with pytest.raises(SystemExit, match="No time is reported"):
        TRAIN.compare(question, [ours, theirs])


def test_without_a_pretokenizer_who_would_be_over_the_cap_is_not_run():
    some = train.Train()
    some.start(["--cap", "100"])
    small, large = (train.new_question("none", f"python-{size}mb", "none", 300) for size in (5, 127))
    some.seconds = {("none", "rustbpe"): (4.1, "python-5mb"), ("none", "bpeasy"): (3.0, "python-5mb")}
    assert some.too_slow(large, "rustbpe") == "not run: 4 s for python-5mb, so over 100 s here at the same pace"
    assert not any((some.too_slow(large, "bpeasy"), some.too_slow(large, "piecemill"), some.too_slow(small, "rustbpe")))


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


# Preparing


def test_the_memory_of_all_processes_is_added_up_in_a_tree_alone(tmp_path):
    hold = "held = bytearray(60_000_000); print(flush=True); input()"
    both = (
        f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {hold!r}], stdin=-1, stdout=-1); "
        "held = bytearray(60_000_000); p.stdout.readline(); p.communicate(b'end')"
    )
    assert measure.measure([sys.executable, "-c", both], threads=1, log=tmp_path / "log").peak_bytes < 100e6
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    held = [subprocess.Popen([sys.executable, "-c", hold], **pipes) for _ in range(2)]
    for process in held:
        process.stdout.readline()
    peaks = []
    for tree in (False, True):
        looks = iter([False, True])  # the process has not ended when it is looked at, and then it has
        ended, seen = (
            SimpleNamespace(wait=lambda _, looks=looks: next(looks)),
            {"peak": 0, "stopped for": "", "signal": 0},
        )
        measure._watch(held[0].pid, ended, seen, float("inf"), 10**15, tree)
        peaks.append(seen["peak"])
    for process in held:
        process.communicate(b"end")
    assert 60e6 < peaks[0] < 100e6 < 120e6 < peaks[1]


def test_what_a_tool_leaves_behind_counts_and_is_ended(tmp_path):
    # A worker in a session of its own, which nobody waits for: its time counts, and it does not outlive the run.
    spin = (
        "import os, time\nwhile time.process_time() < 0.2: pass\n"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); print(flush=True); sum(range(10**12))"
    )
    code = (
        f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {spin!r}], stdout=-1, "
        "start_new_session=True); p.stdout.readline()"
    )
    left = measure.measure([sys.executable, "-c", code], threads=1, log=tmp_path / "log", tree=True)
    assert left.outcome == "ok"
    assert left.cpu_seconds > 0.1
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text()}").exists()


def test_a_measurement_that_is_ended_from_outside_takes_the_tool_with_it(tmp_path):
    os.mkfifo(tmp_path / "pid")
    tool = f"import os, signal; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); signal.pause()"
    asked = json.dumps([[sys.executable, "-c", tool], 1, str(tmp_path / "log"), 600, 10**10, False])
    measuring = subprocess.Popen([sys.executable, "-I", measure.__file__, asked], stdout=subprocess.DEVNULL)
    tool = os.pidfd_open(int((tmp_path / "pid").read_text()))  # readable once the process has ended
    measuring.terminate()
    assert measuring.wait(300) == 128 + signal.SIGTERM
    assert select.select([tool], [], [], 300)[0]
    os.close(tool)


def test_a_tree_of_processes_over_its_memory_is_stopped(tmp_path):
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'x = bytearray(80_000_000); input()'])"
    code = code.replace("input()", "import signal; signal.pause()")
    run = measure.measure(
        [sys.executable, "-c", code], threads=1, log=tmp_path / "log", memory_limit=70_000_000, tree=True
    )
    assert run.outcome == "over memory"


def test_a_repetition_has_other_words_and_every_document_differs():
    documents = ["def first_word(value): return None", "été 12", ""]
    again = [list(corpus.respelled(documents, repetition)) for repetition in range(3)]
    assert again[0] == documents
    assert len({text for texts in again for text in texts}) == 9
    assert again[1] == list(corpus.respelled(documents, 1))
    words = [f"word{'abcdefghij'[n % 10]}{'abcdefghij'[n // 10 % 10]}{'abcdefghij'[n // 100]}" for n in range(1000)]
    (other,) = corpus.respelled([" ".join(words)], 3)
    changed = [(a, b) for a, b in zip(words, other.split(), strict=False) if a != b]
    assert 80 < len(changed) < 170  # about one in eight
    assert all(len(a) == len(b) and ord(b[0]) == ord("w") + 3 for a, b in changed)


def test_documents_that_are_the_same_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "CACHE", tmp_path)
    made = corpus.write("mixed-1mb", [("", "one"), ("", "zwei é\r\n")])
    assert (made.documents, made.bytes) == (2, 12)
    assert (
        list(corpus.texts(made.jsonl))
        == pq.read_table(made.file("parquet")).column("text").to_pylist()
        == ["one", "zwei é\r\n"]
    )
    with pytest.raises(SystemExit, match="1 documents are the same"):
        corpus.write("mixed-1mb", [("", "one"), ("", "one")])


def test_shares_cover_every_document_once_and_in_order(tmp_path):
    texts = [f"{number} " + "é" * (number % 40) for number in range(100)]
    lines = tmp_path / "a.jsonl"
    lines.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    for count in (1, 2, 3, 8):
        shares = [list(documents.lines_of(share)) for share in documents.shares(lines, count)]
        assert all(shares)
        assert [json.loads(line)["text"] for share in shares for line in share] == texts


def digest(*rows):
    return worker.digest(rows)


def test_a_digest_tells_other_tokens_from_another_order_and_borders_count():
    one = digest([1, 2], [3])
    assert (one["documents"], one["tokens"]) == (2, 3)
    assert one == digest(np.array([1, 2], np.uint16), np.array([3], np.int64))
    other_order, other_border = digest([3], [1, 2]), digest([1], [2, 3])
    assert one["ordered"] != other_order["ordered"]
    assert one["unordered"] == other_order["unordered"] != other_border["unordered"]


def test_other_tokens_have_no_time_and_ours_end_the_benchmark():
    done = [measure.Run(1.0, 1.0, 1, "ok")]
    wanted = digest([1, 2], [3])
    for found, finished, words in (
        (digest([1, 2], [3]), True, "same tokens"),
        (digest([3], [1, 2]), True, "same tokens, documents in another order"),
        (digest([1, 2]), False, "other tokens: 1 documents, 2 tokens; expected 2, 3"),
    ):
        entry = protocol.Entry("datasets", runs=done, facts={"digest": found})
        prepare.judge(entry, wanted)
        assert (entry.finished, entry.agreement) == (finished, words)
    for found in (digest([3], [1, 2]), digest([1])):  # ours keeps the order
        with pytest.raises(SystemExit, match="No time is reported"):
            prepare.judge(protocol.Entry("piecemill", runs=done, facts={"digest": found}), wanted)


def test_our_shards_are_read_by_numpy_alone(tmp_path):
    (tmp_path / "all").mkdir()
    for shard, (ids, ends) in enumerate([([5, 6, 7], [2, 3]), ([8], [1])]):
        np.save(tmp_path / "all" / f"{shard:05}.tokens.npy", np.array(ids, np.uint16))
        np.save(tmp_path / "all" / f"{shard:05}.ends.npy", np.array(ends, np.int64))
    assert [ids.tolist() for ids in prepare_peers.Piecemill().tokens(tmp_path)] == [[5, 6], [7], [8]]


def prepared(tool, *seconds, corpus="python-127mb", kind="jsonl", memory="2GiB", peak=100e6, inside=(), **changes):
    return {
        "benchmark": "prepare",
        "question": "127mb" if corpus == "python-127mb" else "2gb",
        "session": "2026-01-01T00:00:00",
        "complete": True,
        "machine": {"processor": "a processor", "cores": 2, "memory_gb": 8.0},
        "corpus": corpus,
        "input": "0123456789abcdef" * 4,
        "text_bytes": 2_000_000_000,
        "format": kind,
        "workers": 2,
        "memory": memory,
        "tool": tool,
        "version": "1.0",
        "reason": "",
        "agreement": "same tokens",
        "output_bytes": 5_000_000,
        "inside_seconds": list(inside),
        "runs": [run(value, peak) for value in seconds],
        **changes,
    }


def bars_of_preparing(*records):
    found = PREPARE.bars(records)
    return {bar.promise: (bar.measured, bar.passed) for bar in found}


def test_the_bars_of_preparing_127_mb():
    bars = bars_of_preparing(
        prepared("piecemill", 2.0),
        prepared("piecemill-before", 2.5),
        prepared("datasets", 40.0),
        prepared("datasets+tokenizers-1.0", 6.0),
        prepared("datasets+gigatoken", 6.5),
        prepared("litdata", 29.0),
        prepared("datatrove", 1.0, reason="other tokens"),
        prepared("gigatoken", 1.5, inside=[0.5]),  # is no pipeline
    )
    before = bars["127 MB JSONL: at most 0.75x the time of the version before"]
    assert before == ("2.00 s, piecemill-before 2.50 s: 0.80x", False)
    default = bars["127 MB JSONL: at least 15x as fast as each other pipeline with its default library"]
    assert default == ("2.00 s, litdata 29.00 s: 14.5x", False)
    fastest = bars["127 MB JSONL: at least 3x as fast as each with the fastest library it accepts"]
    assert fastest == ("2.00 s, datasets+tokenizers-1.0 6.00 s: 3.0x", True)


def test_the_bars_of_preparing_2_gb():
    large = {"corpus": "mixed-2000mb"}
    bars = bars_of_preparing(
        prepared("piecemill", 10.0, **large, peak=1.5 * 2**30),
        prepared("gigatoken", 60.0, **large, inside=[12.5, 10.0, 13.0]),
        prepared("piecemill", 12.0, **large, memory="1GiB", peak=1.5 * 2**30),
        prepared("piecemill", 11.0, **large, kind="jsonl.zst"),
        prepared("gigatoken", 60.0, **large, kind="jsonl.zst", inside=[10.0]),
        # Each compares with the run of its own question.
        prepared("piecemill", 8.0, **large, question="dedup"),
        prepared("piecemill+dedup", 10.0, **large, question="dedup"),
        prepared("piecemill", 10.0, **large, question="ray"),
        prepared("piecemill+ray-1-node", 12.0, **large, question="ray"),
        prepared("piecemill+ray-4-nodes", 5.0, **large, question="ray"),
    )
    yardstick = "at least 1.0x the bytes a second of gigatoken's encode_batch in memory"
    assert bars[f"2 GB jsonl: {yardstick}"] == ("200.0 MB/s, 160.0 MB/s: 1.25x", True)
    assert bars[f"2 GB jsonl.zst: {yardstick}"] == ("181.8 MB/s, 200.0 MB/s: 0.91x", False)
    assert bars[f"2 GB parquet: {yardstick}"] == ("", None)
    assert bars["2 GB jsonl with --memory 2GiB: all processes together at most 2 GiB"][1] is True
    assert bars["2 GB jsonl with --memory 1GiB: all processes together at most 1 GiB"][1] is False
    dedup = bars["2 GB jsonl, dedup of no duplicates: at most 1.25x the time of none"]
    assert dedup == ("10.00 s, piecemill 8.00 s: 1.25x", True)
    ray = bars["2 GB jsonl, Ray on one machine: at most 1.15x the time of threads"]
    assert ray == ("12.00 s, piecemill 10.00 s: 1.20x", False)


def test_each_question_asks_its_own_pipelines():
    PREPARE.start(["--peers", "datasets"])
    asked = PREPARE.questions()
    names = {
        (one["question"], one["format"], one["memory"]): [entry.tool for entry in PREPARE.entries(one)] for one in asked
    }
    assert names.pop(("127mb", "jsonl", "2GiB")) == ["piecemill", "piecemill-before", "gigatoken", "datasets"]
    assert names.pop(("dedup", "jsonl", "2GiB")) == ["piecemill", "piecemill+dedup"]
    assert len(names.pop(("ray", "jsonl", "2GiB"))) == 5
    assert names == {
        ("2gb", kind, memory): ["piecemill", *["gigatoken"] * (memory == "2GiB")]
        for kind in ("jsonl", "parquet", "jsonl.zst")
        for memory in ("2GiB", "1GiB")
    }
    assert {one["corpus"] for one in asked if one["question"] != "127mb"} == {"mixed-2000mb"}


def command_of(name, address=""):
    return prepare.prepare_command(prepare.PIPELINES[name], [Path("in.jsonl")], Path("out"), "2GiB", address)


def test_variants_of_ours_are_the_same_command_with_other_options():
    plain = command_of("piecemill")
    assert plain[0].endswith("piecemill")
    assert plain[1:3] == ["prepare", "in.jsonl"]
    assert command_of("piecemill+dedup") == [*plain, "--dedup", "exact"]
    on_ray = ["--executor", "ray", "--ray-address", "1.2.3.4:5"]
    assert command_of("piecemill+ray-2-nodes", "1.2.3.4:5") == [*plain, *on_ray]
    before = command_of("piecemill-before")
    assert before[1] == f"PYTHONPATH={prepare.BUILT}"
    assert before[2:] == ["--workers" if word == "--threads" else word for word in plain]  # its name then


def test_a_cluster_has_its_nodes_and_is_gone_afterwards():
    pytest.importorskip("ray")
    script = "import ray, sys; ray.init(sys.argv[1]); print([node['Resources']['CPU'] for node in ray.nodes()])"
    with prepare.cluster(prepare.PIPELINES["piecemill+ray-2-nodes"], 2) as address:
        host, _, port = address.rpartition(":")
        found = subprocess.run([sys.executable, "-c", script, address], capture_output=True, text=True, check=True)
        assert found.stdout.strip() == "[1.0, 1.0]"
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((host, int(port)), timeout=10)
    with prepare.cluster(prepare.PIPELINES["piecemill"], 2) as address:
        assert address == ""


def test_a_faster_library_has_an_environment_of_its_own_and_the_script_of_the_pipeline():
    default, faster = prepare.PIPELINES["datasets"], prepare.PIPELINES["datasets+gigatoken"]
    assert "tokenizers==0.23.3" in default.packages
    assert "tokenizers==1.0.0rc3" in faster.packages
    assert default.environment != faster.environment
    asked = {name: command_of(name) for name in ("datasets", "datasets+gigatoken", "datasets+tokenizers-1.0")}
    assert {name: json.loads(command[4])["library"] for name, command in asked.items()} == {
        "datasets": "tokenizers",
        "datasets+gigatoken": "gigatoken",
        "datasets+tokenizers-1.0": "tokenizers",
    }
    assert {command[2] for command in asked.values()} == {"datasets"}


def test_both_libraries_of_the_pipelines_give_the_ids_and_the_end(tmp_path):
    tokenizer = Tokenizer.from_merges([], pretokenizer="gpt2", special_tokens=["<|endoftext|>"])
    tokenizer.save(tmp_path)
    model = tmp_path / "tokenizer.json"
    texts = ["ab", "", "a b é"]
    made = [documents.Encoder(model, library)(texts) for library in ("tokenizers", "gigatoken")]
    for found in made:
        assert [ids.tolist() for ids in found] == [ids.tolist() for ids in made[0]]
        assert all(ids.dtype == np.uint16 and ids[-1] == made[0][1][0] for ids in found)
    assert [len(ids) for ids in made[0]] == [3, 1, 7]


def test_the_compressed_corpus_is_one_frame_of_the_same_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "CACHE", tmp_path)
    made = corpus.write("some", [("a", "one"), ("b", "zwei é")])
    corpus.compress(made)
    assert zstandard.ZstdDecompressor().decompress(made.file("jsonl.zst").read_bytes()) == made.jsonl.read_bytes()


def test_the_tables_of_the_benchmarks_do_not_mix(tmp_path):
    path = tmp_path / "page.md"
    names = ("train", "prepare", "strategies")
    path.write_text("".join(f"<!-- {name}: begin -->\n<!-- {name}: end -->\n" for name in names))
    asked = {"benchmark": "strategies", "library": "tokenizers", "documents": 100, "corpus": "python-20mb"}
    one = {**prepared("tokenizers"), **asked, "strategy": "one by one", "runs": [run(9)], "inside_seconds": [2.0]}
    batches = {**one, "strategy": "batches", "inside_seconds": [0.5]}
    records = [line("piecemill", 1.0), prepared("piecemill", 2.0), prepared("datasets", 40.0), one, batches]
    for name, benchmark in zip(names, (TRAIN, PREPARE, STRATEGIES), strict=True):
        tables.rewrite(path, name, benchmark.render(records))
    first, second, third = path.read_text().split("end -->\n")[:3]
    assert "| **piecemill** 1.0 | 1.00 (1.00-1.00) |" in first
    assert "| datasets 1.0 | 40.0 (40.0-40.0) | 20.00 | 50.0 |" in second
    assert "| tokenizers 1.0 | batches | 200 (200-200) | 4.00 | 100 (100-100) | 1 |" in third


def test_all_ways_of_asking_must_give_the_same_ids():
    done = [measure.Run(1.0, 1.0, 1, "ok")]

    def entry(library, strategy, *rows):
        return protocol.Entry(library, strategy, runs=done, facts={"digest": digest(*rows)})

    entries = [
        entry("tokenizers", "one by one", [1, 2], [3]),
        entry("gigatoken", "batches", [1, 2], [3]),
        entry("tokenizers", strategies.JOINED, [1, 4]),
        entry("sentencepiece", "one by one", [7]),
    ]
    strategies.compare(entries, None)
    assert [one.agreement for one in entries] == [
        "same ids",
        "same ids",
        "documents run together: -1 tokens",
        "same ids",
    ]
    with pytest.raises(SystemExit, match="sentencepiece, threads: other ids"):
        strategies.compare([*entries, entry("sentencepiece", "threads", [8])], None)
