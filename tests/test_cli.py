"""The command line as a user meets it: help, results, progress, exit codes."""

import json
import os
import pty
import re
import subprocess
import sys
from dataclasses import fields
from itertools import groupby, pairwise

import pytest

from command import PIECEMILL, environment, installed, piecemill, start
from piecemill.preparing import PreparePlan
from piecemill.sources.options import SourceOptions
from piecemill.training.plan import TrainPlan

TEXT = "the cat sat on the mat, and the other cat sat on the other mat.\n" * 40


@pytest.fixture
def corpus(tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "one.txt").write_text(TEXT)
    (folder / "two.txt").write_text(TEXT.upper())
    return folder


def train(corpus, out, *more, **changes):
    return piecemill("train", corpus, "--vocab-size", 280, "--out", out, *more, **changes)


def vocabulary(out):
    return json.loads((out / "tokenizer.json").read_text())["model"]["vocab"]


# Help


def flat(text):
    """Help as running text, whatever box it was drawn in."""
    return " ".join(re.sub("[│╭╮╰╯─]", " ", text).split())


def test_help_lists_the_commands():
    shown = piecemill("--help")
    assert (shown.returncode, shown.stderr) == (0, "")
    said = flat(shown.stdout)
    for line in (  # of commands in the command line's own module, and of those that are imported when they are named
        "demo Train, prepare, check and load this interpreter",
        "train Learn a BPE vocabulary from SOURCES",
        "actions Vocabularies and tokens",
        "edit Give TOKENIZER more special tokens",
        "encode Print the ids of TEXTS",
        "decode Print the text of IDS",
        "export Write prepared FOLDER as rows",
        "pretrain Train a small model",
    ):
        assert line in said


def test_a_command_imports_what_it_needs_and_nothing_heavier(tmp_path, corpus):
    assert train(corpus, tmp_path / "tok").returncode == 0
    command = ["prepare", str(corpus), "--tokenizer", str(tmp_path / "tok"), "--out", str(tmp_path / "out"), "--quiet"]
    code = (
        "import sys, piecemill.cli\n"
        "heavy = 'pyarrow obstore fsspec rich tokenizers ray ssl multiprocessing tomllib email tempfile'.split()\n"
        "heavy += [f'piecemill.{room}' for room in ('training', 'actions', 'pretraining', 'loading')]\n"
        "print([name for name in heavy if name in sys.modules])\n"
        f"sys.argv[1:] = {command}\n"
        "try:\n    piecemill.cli.run()\n"
        "except SystemExit as end:\n    assert not end.code\n"
        "print([name for name in heavy if name in sys.modules])\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, *_, last = ran.stdout.splitlines()
    # The two by importlib.metadata, which gives the version of a library at the end.
    assert (first, last) == ("[]", "['email', 'tempfile']")


@pytest.mark.parametrize(
    ("command", "plan", "flags"), [("train", TrainPlan, ["--force"]), ("prepare", PreparePlan, ["--tokenizer"])]
)
def test_help_lists_every_field_of_the_plan_with_its_help(command, plan, flags):
    import ast
    import inspect

    shown = flat(piecemill(command, "--help").stdout)
    helps = {
        field.target.id: text.value.value
        for part in (plan, SourceOptions)
        for field, text in pairwise(ast.parse(inspect.getsource(part)).body[0].body)
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr)
    }
    assert set(helps) == {field.name for field in fields(plan)}
    for name, text in helps.items():
        assert f"--{name.replace('_', '-')}" in shown
        assert " ".join(text.split()) in shown
    for own in (*flags, "--out", "--quiet", "--json", "--config"):
        assert own in shown


def test_the_version_is_the_package_s():
    from piecemill import __version__

    assert piecemill("--version").stdout.strip() == __version__


# Results


def test_the_result_goes_to_stdout_and_progress_to_stderr(corpus, tmp_path):
    done = train(corpus, tmp_path / "tok")
    assert done.returncode == 0
    assert re.fullmatch(
        r"280 tokens \(23 merges\) from 2 documents, 5\.1 kB, in [\d.]+ s with [\d.]+ GiB: .*tok\n", done.stdout
    )
    # The last line of each stage: a stage that takes seconds has more of them.
    stages = {stage: list(lines) for stage, lines in groupby(done.stderr.splitlines(), lambda line: line.split()[0])}
    assert list(stages) == ["count", "merge"]
    assert "2 documents" in stages["count"][-1]
    assert "23/23 merges" in stages["merge"][-1]
    assert sorted(path.name for path in (tmp_path / "tok").iterdir()) == [
        "ranks.tiktoken",
        "tokenizer.json",
        "tokenizer_config.json",
        "training.json",
    ]


def test_json_holds_plan_corpus_and_stages(corpus, tmp_path):
    done = train(corpus, tmp_path / "tok", "--json", "--min-frequency", 2, "--max-token-bytes", 6)
    result = json.loads(done.stdout)
    assert done.stdout.count("\n") == 1
    assert result["out"] == str(tmp_path / "tok")
    assert result["plan"]["vocab_size"] == 280
    assert (result["plan"]["min_frequency"], result["plan"]["max_token_bytes"]) == (2, 6)
    assert (result["corpus"]["documents"], result["corpus"]["bytes"]) == (2, 2 * len(TEXT))
    assert [stage["stage"] for stage in result["stages"]] == ["count", "merge"]
    assert all(stage["seconds"] >= 0 and stage["peak_memory_bytes"] > 0 for stage in result["stages"])
    stored = json.loads((tmp_path / "tok" / "training.json").read_text())
    assert {key: stored[key] for key in ("plan", "corpus", "stages")} == {
        key: result[key] for key in ("plan", "corpus", "stages")
    }


def test_quiet_silences_stderr(corpus, tmp_path):
    done = train(corpus, tmp_path / "tok", "--quiet")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_running_out_of_pairs_is_said_and_what_there_is_is_saved(corpus, tmp_path):
    done = piecemill("train", corpus, "--vocab-size", 5_000, "--out", tmp_path / "tok")
    assert done.returncode == 0
    assert "note: 5,000 tokens were requested, but no pair is left" in done.stdout
    assert 280 < len(vocabulary(tmp_path / "tok")) < 5_000


# Options


def test_special_tokens_are_repeated_or_none(corpus, tmp_path):
    train(corpus, tmp_path / "two", "--special-token", "<a>", "--special-token", "😀 ")
    assert [vocabulary(tmp_path / "two")[token] for token in ("<|endoftext|>", "<a>", "😀 ")] == [0, 1, 2]
    train(corpus, tmp_path / "none", "--no-special-tokens")
    assert vocabulary(tmp_path / "none")["!"] == 0


def test_include_and_exclude_choose_files(corpus, tmp_path):
    (corpus / "three.md").write_text("# nothing")
    chosen = train(corpus, tmp_path / "a", "--json", "--include", "*.txt", "--exclude", "two*")
    result = json.loads(chosen.stdout)["corpus"]
    assert result["documents"] == 1
    assert result["left_out"] == {"excluded": 1, "not_included": 1}


@pytest.mark.parametrize(
    ("typed", "documents"), [(r"\n", 2), ("\n", 2), (r"\t\r\0", 2), (r"x\\n", 2), (r"\\n", 2), (r"\d", 2), ("Z", 1)]
)
def test_the_separator_takes_the_escapes_that_a_shell_leaves(tmp_path, typed, documents):
    cut = {r"\n": "\n", r"\t\r\0": "\t\r\0", r"x\\n": r"x\n", r"\\n": r"\n"}.get(typed, typed)
    (tmp_path / "a.txt").write_bytes(b"." * 9000 + (cut if documents == 2 else "").encode() + b"more")
    done = train(tmp_path / "a.txt", tmp_path / "tok", "--separator", typed, "--json")
    result = json.loads(done.stdout)
    assert (result["plan"]["separator"], result["corpus"]["documents"]) == (cut, documents)


def test_the_separator_of_a_config_file_is_as_toml_has_it(corpus, tmp_path):
    for toml, want in ((r'"\n"', "\n"), (r"'\n'", r"\n")):
        (tmp_path / "plan.toml").write_text(f"separator = {toml}\n")
        done = piecemill("--config", tmp_path / "plan.toml", "train", corpus, "--out", tmp_path / toml, "--json")
        assert json.loads(done.stdout)["plan"]["separator"] == want


def test_a_separator_that_occurs_nowhere_is_said(corpus, tmp_path):
    (corpus / "empty").touch()
    (corpus / "binary").write_bytes(b"\0")
    note = "note: the separator 'ZZ' occurs in no file; each is one document"
    for arguments in (["--out", tmp_path / "tok"], ["--save-counts", tmp_path / "c"]):
        run = ["train", corpus, "--vocab-size", 280, *arguments, "--force"]
        assert note in piecemill(*run, "--separator", "ZZ").stdout.splitlines()
        assert "note" not in piecemill(*run).stdout
        (corpus / "one.txt").write_text(TEXT + "ZZ")  # once, at the end of one file
        assert "note" not in piecemill(*run, "--separator", "ZZ").stdout
        (corpus / "one.txt").write_text(TEXT)


def test_files_that_are_too_large_are_left_out_with_the_way_to_read_them(corpus, tmp_path):
    (corpus / "large.txt").write_text(TEXT * 2)
    size = ("--max-file-bytes", len(TEXT))
    way_out = "1 oversized (a larger --max-file-bytes reads the oversized)"
    assert f"\nleft out: {way_out}\n" in train(corpus, tmp_path / "tok", *size).stdout
    prepared = piecemill("prepare", corpus, "--tokenizer", tmp_path / "tok", "--out", tmp_path / "shards", *size)
    assert f"\nnote: left out {way_out}\n" in prepared.stdout


def test_counts_are_saved_in_parts_and_trained_from(corpus, tmp_path):
    for name in ("one", "two"):
        counted = piecemill("train", corpus / f"{name}.txt", "--save-counts", tmp_path / f"{name}.parquet")
        assert counted.returncode == 0
        assert re.fullmatch(
            rf"\d+ distinct words in {tmp_path / name}\.parquet, from 1 document, 2\.6 kB\n", counted.stdout
        )
    parts = [tmp_path / "one.parquet", tmp_path / "two.parquet"]
    from_counts = piecemill("train", "--from-counts", *parts, "--vocab-size", 280, "--out", tmp_path / "parts")
    assert from_counts.returncode == 0
    assert "from 2 documents, 5.1 kB" in from_counts.stdout
    train(corpus, tmp_path / "whole")
    assert vocabulary(tmp_path / "parts") == vocabulary(tmp_path / "whole")


def test_only_counting_can_be_asked_for_in_json(corpus, tmp_path):
    done = piecemill("train", corpus, "--save-counts", tmp_path / "c.parquet", "--json")
    result = json.loads(done.stdout)
    assert result["counts"] == str(tmp_path / "c.parquet")
    assert result["distinct_words"] > 10
    assert (result["documents"], result["bytes"]) == (2, 2 * len(TEXT))
    assert (result["left_out"], result["skipped"], result["skipped_documents"]) == ({}, 0, [])


def test_what_was_not_counted_is_said_kept_and_added_up(corpus, tmp_path):
    (corpus / ".hidden").write_text(TEXT)
    (corpus / "bad.txt").write_bytes(b"caf\xe9")
    parts = [tmp_path / "0.parquet", tmp_path / "1.parquet"]
    for part, left_out in zip(parts, ("1 hidden", "1 empty, 1 hidden"), strict=True):
        done = piecemill("train", corpus, "--on-bad-document", "skip", "--save-counts", part)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[1:] == [
            f"left out: {left_out}",
            f"skipped 1 bad document, listed in the metadata of {part}:",
            f"  {corpus / 'bad.txt'}: invalid UTF-8 at byte 3 (found 0xe9)",
        ]
        (corpus / "empty").touch()
    told = json.loads(train(corpus, tmp_path / "whole", "--on-bad-document", "skip", "--json").stdout)["corpus"]
    from_counts = ["train", "--from-counts", *parts, "--vocab-size", 280, "--out", tmp_path / "tok", "--json"]
    added = json.loads(piecemill(*from_counts).stdout)["corpus"]
    assert added["left_out"] == {"empty": 1, "hidden": 2}
    assert (added["skipped"], added["skipped_documents"]) == (2, told["skipped_documents"] * 2)


def test_saved_counts_replace_a_file_only_with_force(corpus, tmp_path):
    counts = tmp_path / "c.parquet"
    counts.write_text("mine")
    for out in ([], ["--out", tmp_path / "tok"]):
        refused = piecemill("train", corpus, "--vocab-size", 280, "--save-counts", counts, *out)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert refused.stderr == (
            f"piecemill: --save-counts {counts}: exists. Choose another name, or replace it with --force.\n"
        )
    assert counts.read_text() == "mine"
    assert piecemill("train", corpus, "--save-counts", counts, "--force").returncode == 0
    assert counts.read_bytes().startswith(b"PAR1")
    inside = train(corpus, tmp_path / "tok", "--save-counts", tmp_path / "tok" / "c.parquet")
    assert (inside.returncode, "is in --out, which holds the tokenizer only" in inside.stderr) == (2, True)
    assert not (tmp_path / "tok").exists()


# A plan in a file


def test_flag_beats_file_beats_default(corpus, tmp_path):
    plan = tmp_path / "plan.toml"
    plan.write_text('vocab_size = 270\nspecial_tokens = ["<x>", "<y>"]\nexclude = ["two*"]\ngitignore = false\n')
    from_file = piecemill("train", corpus, "--config", plan, "--out", tmp_path / "a", "--json")
    stored = json.loads(from_file.stdout)["plan"]
    assert (stored["vocab_size"], stored["gitignore"], stored["exclude"]) == (270, False, ["two*"])
    assert (stored["special_tokens"], stored["pretokenizer"]) == (["<|endoftext|>", "<x>", "<y>"], "cl100k")
    flags = ("--vocab-size", 275, "--special-token", "<z>")
    mixed = piecemill("train", corpus, "--config", plan, "--out", tmp_path / "b", "--json", *flags)
    stored = json.loads(mixed.stdout)["plan"]
    assert (stored["vocab_size"], stored["gitignore"]) == (275, False)
    assert stored["special_tokens"] == ["<|endoftext|>", "<z>"]


def test_the_stored_plan_is_a_config_file_in_all_but_spelling(corpus, tmp_path):
    plan = json.loads(train(corpus, tmp_path / "a", "--json", "--pretokenizer", "gpt2").stdout)["plan"]
    lines = [f"{key} = {json.dumps(value)}" for key, value in plan.items() if value is not None]
    (tmp_path / "again.toml").write_text("\n".join(lines))
    again = piecemill("train", corpus, "--config", tmp_path / "again.toml", "--out", tmp_path / "b", "--json")
    assert json.loads(again.stdout)["plan"] == plan
    assert (tmp_path / "a/tokenizer.json").read_bytes() == (tmp_path / "b/tokenizer.json").read_bytes()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("vocab_sise = 300", r'Unknown option: "\[vocab_sise\]" from .*plan\.toml\. Did you mean --vocab-size\?'),
        ('vocab_size = "many"', r"vocab_size.*plan\.toml.*many"),
        ("vocab_size = 300.5", r'vocab_size.*plan\.toml: unable to convert "300\.5" into int'),
        ("vocab_size = 3", "--vocab-size 3: the 256 bytes"),
        ("vocab_size = \n", r"plan\.toml: not TOML: .*line 1"),
        ("[trian]\nvocab_size = 300", r"plan\.toml: \[trian\] is no command\. Did you mean \[train\]\?"),
        ("[train]\nvocab_sise = 300", r'Unknown option: "\[vocab_sise\]"'),
        ("sources = 3", r"plan\.toml: sources is 3; expected a list of paths"),
        (None, r"plan\.toml: cannot be read: No such file"),
    ],
)
def test_a_wrong_config_file_is_wrong_use(corpus, tmp_path, content, message):
    plan = tmp_path / "plan.toml"
    if content is not None:
        plan.write_text(content)
    done = piecemill("train", corpus, "--config", plan, "--out", tmp_path / "tok")
    assert (done.returncode, done.stdout) == (2, "")
    assert re.search(message, flat(done.stderr))
    assert not (tmp_path / "tok").exists()


def test_a_config_file_holds_sources_and_a_table_for_each_command(corpus, tmp_path):
    (tmp_path / "all.toml").write_text(
        f"""
        sources = ["{corpus}"]
        [train]
        vocab_size = 300
        out = "tok"
        [prepare]
        tokenizer = "tok"
        out = "shards"
        [actions.split]
        k_core = 7
        """
    )
    done = piecemill("train", "--config", "all.toml", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["plan"]["vocab_size"] == 300
    files = json.loads(done.stdout)["corpus"]["files"]
    assert piecemill("--config", "all.toml", "prepare", cwd=tmp_path).returncode == 0
    assert json.loads((tmp_path / "shards/plan.json").read_text())["source"]["files"] == files
    one = next(path for path in corpus.rglob("*") if path.is_file())
    done = piecemill("train", one, "--config", "all.toml", "--out", "other", "--json", cwd=tmp_path)
    assert json.loads(done.stdout)["corpus"]["files"] == 1  # what is typed beats the file


# Exit codes


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--vocabsize", "300"], "Did you mean --vocab-size?"),
        (["--vocab-size", "many"], 'unable to convert "many" into int'),
        (["--vocab-size", "300.5"], 'unable to convert "300.5" into int'),
        (["--vocab-size", "100"], "--vocab-size 100: the 256 bytes"),
        (["--on-bad-document", "ignore"], "ignore"),
        (["--memory", "lots"], "--memory lots: expected a size"),
        (["--threads", "0"], "--threads 0: expected a whole number from 1"),
        (["--pretokenizer", "(unclosed"], "does not compile"),
        (["--pretokenizer", ""], "pretokenizer ``: none has this name. Choose gpt2, cl100k, o200k,"),
        (["--pretokenizer", "GPT-2"], "Did you mean `gpt2`?"),
        (["--special-token", "a"], "special token 'a': this is how tokenizer.json writes"),
        (["--special-token", "<a>", "--special-token", "<a>"], "special token '<a>' is given twice"),
        (["--vocab-size", "1099511627776"], "--vocab-size 1099511627776: expected a whole number"),
        (["--save-counts", "."], "--save-counts .: is a folder"),
        (["--separator", ""], "--separator '': expected at least one character"),
        (["--field", ""], "--field '': expected the name"),
    ],
)
def test_wrong_use_is_2(corpus, tmp_path, arguments, message):
    done = piecemill("train", corpus, "--out", tmp_path / "tok", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in flat(done.stderr)
    assert not (tmp_path / "tok").exists()


def test_a_missing_out_or_source_is_wrong_use(corpus, tmp_path):
    no_out = piecemill("train", corpus)
    assert (no_out.returncode, no_out.stderr.count("\n")) == (2, 1)
    assert "--out is missing" in no_out.stderr
    no_source = piecemill("train", "--out", tmp_path / "tok")
    assert no_source.returncode == 2
    assert "no source was given" in no_source.stderr


def test_a_source_that_is_not_there_is_1(tmp_path):
    done = piecemill("train", tmp_path / "nothing", "--out", tmp_path / "tok")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1].startswith(f"piecemill: {tmp_path / 'nothing'}: no file matched")


def test_a_bad_document_is_1_and_named_by_line(tmp_path):
    lines = tmp_path / "lines.jsonl"
    lines.write_text('{"text": "good"}\n{"text": "good"}\n{"text": 3}\n')
    done = piecemill("train", lines, "--vocab-size", 260, "--out", tmp_path / "tok")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"piecemill: {lines}:3: " in done.stderr
    assert "--on-bad-document skip" in done.stderr
    skipping = piecemill("train", lines, "--vocab-size", 260, "--out", tmp_path / "tok", "--on-bad-document", "skip")
    assert skipping.returncode == 0
    assert f"{lines}:3: " in skipping.stdout


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_a_skipped_file_whose_name_is_not_unicode_is_listed(corpus, tmp_path, flags):
    (corpus / os.fsdecode(b"caf\xe9.txt")).write_bytes(b"caf\xe9")
    done = train(corpus, tmp_path / "tok", "--on-bad-document", "skip", *flags)
    assert done.returncode == 0, done.stderr
    assert "caf\\udce9.txt" in done.stdout
    stored = json.loads((tmp_path / "tok" / "training.json").read_text(encoding="utf-8"))
    ((name, reason),) = stored["corpus"]["skipped_documents"]
    assert os.fsencode(name) == os.fsencode(corpus) + b"/caf\xe9.txt"
    assert reason.startswith("invalid UTF-8 at byte 3")


def test_an_existing_tokenizer_is_replaced_only_with_force(corpus, tmp_path):
    out = tmp_path / "tok"
    assert train(corpus, out).returncode == 0
    refused = piecemill("train", corpus, "--vocab-size", 270, "--out", out)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "--force" in refused.stderr
    assert "count" not in refused.stderr  # before the work, not after it
    assert len(vocabulary(out)) == 280
    assert piecemill("train", corpus, "--vocab-size", 270, "--out", out, "--force").returncode == 0
    assert len(vocabulary(out)) == 270


# Progress


def test_lines_elsewhere_come_while_it_runs_with_fixed_columns(tmp_path):
    # Merging without a pretokenizer, on text that has enough to merge for several lines. After the second it waits, so
    # a line read here was flushed when it was written.
    (tmp_path / "big.txt").write_bytes(os.urandom(500_000).hex().encode())
    os.mkfifo(tmp_path / "go on")
    waiting = f"""
from piecemill import progress
from piecemill.__main__ import main

progress._LINE_SECONDS, merging = 0.0, 0

class Display(progress.Display):
    def _line(self, event, **options):
        global merging
        super()._line(event, **options)
        merging += event.stage == "merge" and event.columns()[0][0] != "0"
        if merging == 2:
            open({str(tmp_path / "go on")!r}).close()

progress.Display = Display
main()
"""
    arguments = ["train", tmp_path / "big.txt", "--pretokenizer", "none", "--vocab-size", 2_000_000]
    with start(sys.executable, "-c", waiting, *arguments, "--out", tmp_path / "tok") as running:
        lines = []
        while sum(re.match("merge +[1-9]", line) is not None for line in lines) < 2:
            lines.append(running.stderr.readline())
            assert lines[-1], "it ended, and did not wait"
        running.kill()
    merging = [line for line in lines if line.startswith("merge")]
    assert all(
        re.fullmatch(
            r"merge +[\d,]+/[\d,]+ merges +[\d.,]+/s +[\d.,]+( [MG])? x .+ +[\d.]+ GiB( +[\d.]+ .*left)?\n", line
        )
        for line in merging
    )
    for column in (" merges", "/s ", " x ", " GiB"):
        assert len({line.index(column) for line in merging}) == 1


def on_a_terminal(*arguments):
    """Runs the command with stderr on a pseudo-terminal; gives exit code, stdout and what the terminal got."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [PIECEMILL, *map(str, arguments)],
        env=environment(COLUMNS="80"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=theirs,
    ) as running:
        os.close(theirs)
        shown = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # how Linux says that the other end is closed
                break
            if not part:
                break
            shown += part
        stdout = running.stdout.read().decode()
    os.close(ours)
    return running.returncode, stdout, shown.decode()


def test_a_terminal_gets_a_bar_and_is_left_clean(corpus, tmp_path):
    code, stdout, shown = on_a_terminal("train", corpus, "--vocab-size", 280, "--out", tmp_path / "tok")
    assert code == 0
    assert stdout.startswith("280 tokens")
    assert "\x1b" not in stdout
    assert "━" in shown
    plain = re.sub("\x1b\\[[0-9;?]*[a-zA-Z]", "", shown)
    assert all(len(line) <= 80 for line in re.split("[\r\n]+", plain))
    assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") > 0  # the cursor that was hidden is shown again
    last = shown.rstrip("\r\n").splitlines()[-1]
    assert "23/23 merges" in last
    assert shown.endswith("\r\n")
    assert not re.search("\x1b", shown[shown.rindex("23/23 merges") :])


def test_a_quiet_terminal_gets_nothing(corpus, tmp_path):
    code, _, shown = on_a_terminal("train", corpus, "--vocab-size", 280, "--out", tmp_path / "tok", "--quiet")
    assert (code, shown) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "given"),
    [
        (["--version"], ""),
        (["train", "--help"], ""),
        (["train", "-", "--vocab-size", "260", "--out", "tok", "--quiet"], TEXT),
        (["train", "-", "--vocab-size", "many", "--out", "tok"], TEXT),
        (["encode", "nowhere", "text"], ""),
        (["vocab"], ""),
    ],
)
def test_the_command_that_other_tests_run_is_the_installed_one(tmp_path, arguments, given):
    found = []
    for name, run in (("served", piecemill), ("installed", installed)):
        (tmp_path / name).mkdir()
        done = run(*arguments, cwd=tmp_path / name, given=given)
        said = re.sub(r"in [\d.]+ s with [\d.]+ GiB", "", done.stdout)
        made = sorted(path.relative_to(tmp_path / name) for path in (tmp_path / name).rglob("*"))
        found.append((done.returncode, said, done.stderr, made))
    assert found[0] == found[1]


def test_messages_name_the_flag_and_the_file(tmp_path):
    tok = tmp_path / "tok"
    assert piecemill("train", "-", "--vocab-size", 280, "--out", tok, given=TEXT).returncode == 0
    assert piecemill("prepare", "-", "--tokenizer", tok, "--out", tmp_path / "shards", given=TEXT).returncode == 0
    (tmp_path / "special.txt").write_text("one<|endoftext|>")
    words = ("prepare", tmp_path / "special.txt", "--tokenizer", tok, "--out", tmp_path / "special")
    done = piecemill(*words, "--special-in-text", "stop")
    assert f"{tmp_path}/special.txt: byte 3 begins '<|endoftext|>'" in done.stderr
    assert "--special-in-text stop forbids it. --special-in-text plain encodes it as text" in done.stderr
    done = piecemill("pretrain", tmp_path / "shards", "--split", "trian", "--out", tmp_path / "run")
    assert "--split trian: this folder has all. Name one of them: --split all." in done.stderr
    done = piecemill("encode", tok, "a", "--out", "/proc/nowhere/ids.txt")
    assert done.stderr.startswith("piecemill: /proc/nowhere/ids.txt: cannot be written")
    done = piecemill("train", "--from-counts", tmp_path / "none.parquet", "--out", tmp_path / "new")
    assert f"{tmp_path}/none.parquet: no such file" in done.stderr


def test_messages_about_nothing_about_one_thing_and_about_standard_input(corpus, tmp_path):
    assert train(corpus, tmp_path / "tok").returncode == 0
    (tmp_path / "a.jsonl").write_text('{"body": "b"}\n')
    for number, (words, message) in enumerate(
        (
            (
                ("prepare", tmp_path / "a.jsonl", "--tokenizer", tmp_path / "tok"),
                'no field "text" (option --field names',
            ),
            (
                ("train", "--special-token", "<|x|>", tmp_path / "a.jsonl"),
                "name folders, files or globs before the flags",
            ),
            (("train", "--from-counts", "c", "c"), "--from-counts: c is c once more"),
            (("train", "-"), "<StandardInput>: empty corpus"),
        )
    ):
        assert message in piecemill(*words, "--out", tmp_path / f"out-{number}").stderr
    (corpus / "link").symlink_to(tmp_path)
    (tmp_path / "tok").rename(corpus / "mine")
    assert "left out: 1 linked as a folder, 1 written by Piecemill\n" in train(corpus, tmp_path / "more").stdout
    compared = piecemill("compare", corpus / "mine", "--on", "-", given="a text").stdout
    assert compared.startswith("1 document, ")
