"""Workers and sessions of the benchmarks: answers, the order in which tools are asked, records and the page."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks" / "peers"))

import actions
import balance
import encode
import encode_gpu
import load
import measure
import prepare
import pretrain
import protocol
import session
import strategies
import train
import wordpiece
import worker
from pages import HOUSE, block


class Speaker(worker.Peer):
    pass


class Echo(Speaker):
    name = "echo"

    def say(self, args):
        if args.word == "nothing":
            raise worker.Cannot("has nothing to say")
        return {"word": args.word, "path": args.out.name}


def test_a_worker_answers_in_json_and_a_refusal_is_a_reason(tmp_path, monkeypatch, capsys):
    for word, answer in (("yes", {"word": "yes", "path": "out"}), ("nothing", None)):
        command = protocol.worker("python", "x.py", "echo", "say", tmp_path / "out", word=word)
        monkeypatch.setattr(sys, "argv", command[1:])
        if answer is None:
            with pytest.raises(SystemExit, match="3"):
                worker.worker(Speaker.tools)
            assert capsys.readouterr().out == "has nothing to say\n"
        else:
            worker.worker(Speaker.tools)
            assert json.loads((tmp_path / "out.json").read_text()) == answer


def test_a_class_with_a_name_is_a_tool_of_its_family_and_of_no_other():
    assert Speaker.tools == {"echo": Echo}
    assert "echo" not in train.TOOLS
    assert list(train.TOOLS)[:2] == ["piecemill", "tokenizers"]
    assert all(tool.version for name, tool in train.TOOLS.items() if name != "piecemill")


def test_what_a_worker_refuses_is_its_reason_and_no_run(tmp_path, monkeypatch):
    monkeypatch.setattr(protocol, "CACHE", tmp_path)
    answer = tmp_path / "answer.json"
    code = "import pathlib, sys; print('first'); print(sys.argv[1]); pathlib.Path(sys.argv[2]).write_text('{}'); "
    entry = protocol.Entry("some", "way")
    command = [sys.executable, "-c", code, "cannot load it", str(answer)]
    assert not entry.run("test", [*command[:2], f"{code}sys.exit(3)", *command[3:]], threads=1, cap=60)
    assert (entry.reason, entry.runs, entry.finished) == ("cannot load it", [], False)
    entry = protocol.Entry("some", "way")
    assert entry.run("test", command, threads=1, cap=60)
    assert (entry.told, entry.finished, len(entry.runs)) == ([{}], True, 1)


def test_nothing_is_repeated_before_answers_were_compared_and_tools_take_turns():
    done: list[str] = []

    def once(entry):
        done.append(entry.tool)
        entry.runs.append(measure.Run({"a": 1, "b": 30, "c": 90}[entry.tool], 1, 1, "ok"))

    entries = [protocol.Entry("a"), protocol.Entry("b"), protocol.Entry("c"), protocol.Entry("d", reason="no")]
    protocol.ask(entries, once, compare=lambda: done.append("compared"))
    assert done == [*"abc", "compared", *"ba", *"ab", *"a", *"a"]  # 5 runs, 3 above 20 s, 1 above 60 s


class Two(session.Benchmark):
    """Two tools of its own; `b` gives no answer."""

    name, peers = "some", ("b",)

    def questions(self):
        return [{"corpus": "one question"}]

    def once(self, question, entry):
        entry.runs.append(measure.Run(1.0, 2.0, 3, "ok" if entry.ours else "failed"))

    def facts(self, question, entry):
        return {"version": "é"}


def test_every_run_is_kept_and_what_is_not_whole_is_not_complete(tmp_path, monkeypatch, capsys):
    some, path = Two(), tmp_path / "results.jsonl"
    monkeypatch.setattr(Two, "results", path)
    monkeypatch.setattr(sys, "argv", ["some", "--repeats", "3", "--cap", "1"])
    monkeypatch.setattr(some, "set_up", lambda asked: None)
    some.main()
    ours, other = session.read(path)
    assert session.read(path) == some.kept
    assert (len(ours["runs"]), len(other["runs"]), ours["runs"][0]["peak_bytes"], ours["version"]) == (3, 1, 3, "é")
    assert not ours["complete"]
    assert "one question" in capsys.readouterr().out
    for partly in (["--quick"], ["--repeats", "9"], ["--cap", "1"], ["--results", "x"], ["--peers", "b"]):
        some.start(partly)
        assert some.session["complete"] is (partly[0] == "--peers")
    monkeypatch.setattr(Two, "must_be_default", ("peers",))
    some.start(["--peers", ""])
    assert not some.session["complete"]


@pytest.mark.parametrize(
    "benchmark",
    [
        *(
            train.Train(),
            prepare.Prepare(),
            strategies.Strategies(),
            wordpiece.WordPiece(),
            balance.Balance(),
            pretrain.Pretrain(),
        ),
        *(encode.Encode(), encode_gpu.EncodeGpu(), actions.Actions(), load.Load()),
    ],
    ids=lambda benchmark: benchmark.name,
)
def test_the_records_that_are_kept_still_make_the_page(benchmark):
    page = (protocol.HERE.parent / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    begin, end = (page.index(f"<!-- {benchmark.name}: {which} -->") for which in ("begin", "end"))
    assert page[begin:end].partition("-->\n")[2] == benchmark.render(session.read(benchmark.results))
    assert benchmark.render([]) == "\nNot measured yet.\n"


def without_tables(page):
    return re.sub(r"(<!-- ([\w-]+): begin -->\n).*?(<!-- \2: end -->)", r"\1\3", page, flags=re.DOTALL)


@pytest.fixture
def run(tmp_path):
    """Runs a line in a copy of the benchmarks, which has no environments, corpora or vocabularies."""
    shutil.copytree(HOUSE / "benchmarks", tmp_path / "benchmarks", ignore=shutil.ignore_patterns("cache"))
    (tmp_path / "docs").mkdir()
    page = (HOUSE / "docs/benchmarks.md").read_text()
    (tmp_path / "docs/benchmarks.md").write_text(without_tables(page))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

    def run(line):
        environment = {**os.environ, "PATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(["bash", "-c", line], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{line}\n{done.stderr}"
        assert not (tmp_path / "benchmarks/cache").exists()
        return done.stdout.splitlines()

    return run


def test_the_commands_of_the_page_say_what_they_would_measure_and_rewrite_their_tables(run, tmp_path):
    blocks = (
        block("docs/benchmarks.md", "python benchmarks/train.py"),
        block("docs/benchmarks.md", "python benchmarks/prepare.py"),
        block("docs/benchmarks.md", "python benchmarks/encode.py"),
    )
    printed = {}
    for command in (line.partition("#")[0].strip() for code in blocks for line in code.splitlines()):
        printed[command] = run(command if command.endswith("--table") else f"{command} --dry-run")
    assert all(printed.values())
    page = (tmp_path / "docs/benchmarks.md").read_text()
    for name in ("train", "prepare", "encode"):
        assert f"<!-- {name}: begin -->\n\n## Bars" in page
    assert without_tables(page) == without_tables((HOUSE / "docs/benchmarks.md").read_text())
    assert printed["python benchmarks/train.py --only words --peers tokenizers,gigatoken --repeats 3"] == [
        f"words python-127mb pretokenizer=gpt2 vocab=50,257 threads={threads}: "
        "piecemill, tokenizers, gigatoken; 3 runs each"
        for threads in (1, 2)
    ]
    assert printed["python benchmarks/prepare.py --setup"][0].endswith("; set up, not measured")


@pytest.mark.parametrize("name", ["actions", "balance", "load", "strategies", "wordpiece"])
def test_the_other_benchmarks_say_what_they_would_measure(run, name):
    assert all(line.endswith("; 1 run each") for line in run(f"python benchmarks/{name}.py --quick --dry-run"))
    assert "piecemill" in run(f"python benchmarks/{name}.py --dry-run")[0]
