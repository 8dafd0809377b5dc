"""Small things that stop a new user: each of these was met by one."""

import ast
import importlib
import json
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

import command
import models
import piecemill
import piecemill.actions
from command import environment
from corpora import write_jsonl
from piecemill.actions.shards import write_action_shards
from piecemill.errors import LoadError, PiecemillError, PlanError, SourceError, TokenizerError
from piecemill.files import LocalPlace, locked
from piecemill.sources import open_source
from pretraining import SMALL, small_shards

TEXT = "the cat sat on the mat, and the other cat sat on the other mat.\n" * 40


def run(*words, given=None, cwd=None):
    """The command, with something on standard input."""
    return command.piecemill(*words, given=given, cwd=cwd)


@pytest.fixture(scope="module")
def tok(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer") / "tok"
    piecemill.train_bpe([TEXT], vocab_size=280).save(folder)
    return folder


# The command line


def test_the_version_has_a_short_flag():
    assert run("-V").stdout == run("--version").stdout == f"{piecemill.__version__}\n"


def test_help_of_a_command_that_is_none_is_an_error():
    done = run("encoed", "--help")
    assert done.returncode != 0
    assert "encoed" in done.stdout + done.stderr


def test_help_is_a_command_too():
    assert run("help").stdout == run("--help").stdout
    assert run("help", "train").stdout == run("train", "--help").stdout


def test_a_shell_completes_commands_and_flags(tmp_path):
    def completed(*words):
        script = f"""eval "$({command.PIECEMILL} completion bash)"
            COMP_WORDS=({" ".join(words)}); COMP_CWORD={len(words) - 1}; _piecemill; echo "${{COMPREPLY[@]}}\""""
        done = subprocess.run(["bash", "-c", script], env=environment(), capture_output=True, text=True, check=True)
        return done.stdout.split()

    assert set(completed("piecemill", "pre")) == {"prepare", "pretrain"}
    assert completed("piecemill", "train", "--vocab-s") == ["--vocab-size"]
    assert "completion" in run("--help").stdout
    environ = {"HOME": str(tmp_path), "SHELL": "/bin/bash"}
    done = command.piecemill("completion", "bash", "--install", **environ)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.partition(": ")[0]).is_relative_to(tmp_path)
    assert "piecemill" in (tmp_path / ".bashrc").read_text()


def test_a_flag_takes_several_values(tmp_path):
    (tmp_path / "a.txt").write_text(TEXT)
    words = ("--special-token", "<a>", "<b>", "--vocab-size", 300, "--out", tmp_path / "tok")
    done = run("train", tmp_path / "a.txt", *words)
    assert done.returncode == 0, done.stderr
    tokenizer = piecemill.load_tokenizer(tmp_path / "tok")
    assert tokenizer.special_tokens == {"<|endoftext|>": 0, "<a>": 1, "<b>": 2}


def test_a_dash_is_standard_input(tmp_path, tok):
    done = run("train", "-", "--vocab-size", 280, "--out", tmp_path / "tok", "--quiet", given=TEXT)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "tok/tokenizer.json").read_bytes() == (tok / "tokenizer.json").read_bytes()
    words = ("prepare", "-", "--tokenizer", tok, "--out", tmp_path / "shards", "--json", "--quiet")
    done = run(*words, "--separator", r"\x3b\u003b", given="one;;two;;;three")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["documents"] == 3
    done = run("train", "-", "--vocab-size", 280, "--out", tmp_path / "json", "--quiet", given='{"text": "a"}\n')
    assert "note: standard input is read as one text, and it begins like JSON lines" in done.stderr
    done = run("train", "-", tmp_path, "--out", tmp_path / "none")
    assert done.returncode == 2
    assert "standard input is the only source" in done.stderr
    done = run("compare", tok, "--on", "-", "--json", given=TEXT)
    assert done.returncode == 0, done.stderr
    assert run("verify", tok, "--on", "-", given=TEXT).returncode == 0
    done = run("prune", tok, "--counts", tmp_path / "shards", "--vocab-size", 270, "--on", "-", "--out", tmp_path / "p")
    assert (done.returncode, "standard input cannot be read here" in done.stderr) == (2, True)


def test_an_error_of_the_system_names_the_file_and_no_number(tmp_path, tok):
    (tmp_path / "afile").write_text("")
    write_jsonl(tmp_path / "a.jsonl", ["one two"] * 9)
    assert run("prepare", tmp_path / "a.jsonl", "--tokenizer", tok, "--out", tmp_path / "shards").returncode == 0
    for words in (
        ("prepare", tmp_path / "a.jsonl", "--tokenizer", tok, "--out", tmp_path / "afile"),
        ("export", tmp_path / "shards", "--window", 2, "--out", tmp_path / "afile"),
        (
            "pretrain",
            tmp_path / "shards",
            "--out",
            tmp_path / "afile",
            *["--split", "all", "--val-split", "all", "--window", "4"],
        ),
    ):
        done = run(*words)
        assert done.returncode in (1, 2)
        assert "afile" in done.stderr.splitlines()[-1]
        assert "Errno" not in done.stderr
        assert "Traceback" not in done.stderr


def spoken(file):
    """Every string in a module that is no documentation, without what stands between backquotes."""
    tree = ast.parse(file.read_text())
    documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        parts = node.values if isinstance(node, ast.JoinedStr) else [node]
        text = "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in parts)
        if id(node) not in documentation and not isinstance(node, ast.Expr | ast.FormattedValue):
            yield re.sub("`[^`]*`", "", text)


def test_no_message_of_a_verb_names_a_flag():
    package = Path(piecemill.__file__).parent
    commands = {"cli.py", "demo.py", "html.py", *(file.name for file in package.rglob("command*.py"))}
    files = [file for file in package.rglob("*.py") if file.name not in commands]
    found = [(file.name, text) for file in files for text in spoken(file) if re.search(r"(?<![\w-])--[a-z]", text)]
    assert len(files) > 100
    assert found == []


def test_a_message_names_options_as_its_reader_writes_them(tok, tmp_path):
    words = ("prepare", tmp_path / "a.jsonl", "--tokenizer", tok, "--out", tmp_path / "out", "--quiet")
    (tmp_path / "a.jsonl").write_text('{"text": "a", "body": "b"}')
    assert run(*words).returncode == 0
    done = run(*words, "--field", "body")
    ways = "use the same --field, choose another --out, or pass --force to replace what is there.\n"
    assert done.stderr.endswith(f"made with field='text', requested field='body'. Going on needs the same plan: {ways}")
    with pytest.raises(PlanError) as refused:
        piecemill.prepare(tmp_path / "a.jsonl", tok, out=tmp_path / "out", field="body")
    ways = "use the same field, choose another out, or pass force=True to replace what is there."
    assert str(refused.value).endswith(f"requested field='body'. Going on needs the same plan: {ways}")
    done = run(*words, "--splits", "train=0", "--weight", "x")
    assert done.stderr.startswith("piecemill: --splits train=0: 'train=0' is not a name and a number above 0")
    assert "piecemill: --weight '*x': expected" in run(*words, "--weight", "*x").stderr


# The Python surface


def test_the_package_lists_its_verbs():
    code = "import piecemill, piecemill.actions; print(*dir(piecemill), '|', *dir(piecemill.actions))"
    listed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert listed == [*sorted(piecemill.__all__), "|", *sorted(piecemill.actions.__all__)]


def test_a_wrong_argument_is_an_error_of_ours(rows, tok, tmp_path):
    from tokenizers import Tokenizer
    from tokenizers.models import BPE

    from piecemill.loading import Windows, batches, mix
    from piecemill.loading.torch import BatchDataset
    from piecemill.loading.torch import batches as tensors

    with pytest.raises(PlanError, match=r"'shards/': a path; expected rows, such as piecemill.open_shards\('shards/'"):
        batches("shards/")
    with pytest.raises(PlanError, match="rows: found NoneType; expected rows"):
        tensors(None)
    with pytest.raises(PlanError, match="unknown option 'batch_sise'; did you mean 'batch_size'"):
        next(iter(BatchDataset(rows, batch_sise=16)))
    with pytest.raises(PlanError, match="unknown option 'overlaps'; did you mean 'overlap'"):
        Windows(rows, overlaps=16)
    with pytest.raises(PlanError, match="mix: found dict; expected pairs of rows and a share"):
        mix({"a": rows})
    with pytest.raises(PlanError, match=r"mix: found .* among the parts; expected pairs"):
        mix([rows, rows])
    with pytest.raises(TokenizerError, match=r"found tokenizers\.Tokenizer; expected a folder"):
        piecemill.prepare(["a"], Tokenizer(BPE()), out=tmp_path / "x")
    for verb in (batches, tensors):
        with pytest.raises(PlanError, match="unknown option 'batch_sise'; did you mean 'batch_size'"):
            verb(rows, batch_sise=16)
    with pytest.raises(PlanError, match="unknown option 'splt'; did you mean 'split'"):
        piecemill.open_shards("shards", splt="all")
    with pytest.raises(PlanError, match="unknown option 'enigne'; did you mean 'engine'"):
        piecemill.load_tokenizer(tok, enigne="tiktoken")
    with pytest.raises(PlanError, match="window='8': expected a whole number"):
        batches(rows, window="8")
    with pytest.raises(PlanError, match=r"batch_size=2\.5: expected a whole number of 1 or more"):
        batches(rows, batch_size=2.5)
    for verb in (
        lambda: piecemill.open_shards(5),
        lambda: piecemill.prepare(["a"], tok, out=5),
        lambda: piecemill.describe(5),
        lambda: piecemill.check(5),
        lambda: piecemill.report(5, out=tmp_path / "x.html"),
        lambda: piecemill.pretrain(5, out=tmp_path / "x"),
        lambda: piecemill.load_tokenizer(tok).save(5),
    ):
        with pytest.raises(PiecemillError, match="found int, 5; expected the path of a folder, or its URL"):
            verb()
    for weight in ("web/**=2", {"web/**": 2}, 5):
        with pytest.raises(PlanError, match=r"weight=.*: expected a list, such as \['src/\*\*=2'\]"):
            piecemill.prepare(["a"], tok, out=tmp_path / "x", weight=weight)
    with pytest.raises(PlanError, match=r"splits=90: expected something like 'train=85"):
        piecemill.prepare(["a"], tok, out=tmp_path / "x", splits=90)


def test_a_mistyped_keyword_is_answered_with_the_nearest(rows, tok):
    from piecemill.actions import ActionTokenizer, action_batches, code_like, k_core, leave_out, read_interactions
    from piecemill.loading import batches
    from piecemill.tokenizers import verify

    tokenizer = piecemill.load_tokenizer(tok)
    for verb, given, near in (
        (partial(piecemill.check, tok), "samples", "sample"),
        (partial(piecemill.report, tok, out="x"), "agains", "against"),
        (partial(piecemill.prune, tok), "vocabsize", "vocab_size"),
        (partial(verify, tokenizer), "mosts", "most"),
        (partial(open_source, "x"), "exclud", "exclude"),
        (tokenizer.edit, "add_specials", "add_special"),
        (partial(batches(rows, window=8).load_state_dict, {}), "change_batches", "change_batch"),
        (partial(ActionTokenizer.load, tok), "item", "items"),
        (partial(read_interactions, tok), "users", "user"),
        (partial(code_like, tok, tok), "unknown_values", "unknown_value"),
        (partial(action_batches, tok), "batchsize", "batch_size"),
        (partial(write_action_shards, tok, tok, out="x"), "unknow", "unknown"),
        (partial(k_core, tok, 5), "item_ks", "item_k"),
        (partial(leave_out, tok), "max_histories", "max_history"),
    ):
        with pytest.raises(PlanError, match=f"unknown option '{given}'; did you mean '{near}'"):
            verb(**{given: 1})


def test_splits_may_be_a_dict(tok, tmp_path):
    texts = [f"text number {n}" for n in range(50)]
    piecemill.prepare(texts, tok, out=tmp_path / "x", splits={"train": 90, "val": 10})
    again = piecemill.prepare(texts, tok, out=tmp_path / "x", splits="train=90,val=10")
    assert again.complete_before


# Loading


@pytest.fixture(scope="module")
def rows(tok, tmp_path_factory):
    out = tmp_path_factory.mktemp("rows") / "shards"
    piecemill.prepare([f"text number {n}, and another one" for n in range(200)], tok, out=out)
    return piecemill.open_shards(out, "all")


def test_a_batch_of_a_mixture_says_which_part_each_row_is_from(rows, tok, tmp_path):
    from piecemill.loading import batches, mix

    piecemill.prepare(["zzzzzzzzz"] * 50, tok, out=tmp_path / "z")
    other = piecemill.open_shards(tmp_path / "z", "all")
    z = piecemill.load_tokenizer(tok).encode("z")[0]
    seen = []
    for batch in batches(mix([(rows, 1), (other, 1)]), window=4, batch_size=5, epochs=1, seed=3):
        assert batch["part"].shape == (len(batch["input_ids"]),)
        for part, row in zip(batch["part"].tolist(), batch["input_ids"], strict=True):
            assert (z in row) == (part == 1)
            seen.append(part)
    assert set(seen) == {0, 1}
    assert "part" not in next(batches(rows, window=4))
    # On a device, here in main memory.
    import torch

    from piecemill.loading.device import DeviceDestination
    from piecemill.loading.text import windows_to

    options = {"window": 4, "batch_size": 5, "epochs": 1, "seed": 3, "boundaries": True}
    source = mix([(rows, 1), (other, 1)])
    for sent, here in zip(
        windows_to(DeviceDestination(torch.device("cpu"), slots=2), source, options),
        batches(source, **options),
        strict=True,
    ):
        assert set(sent) == set(here)
        assert sent["part"].tolist() == here["part"].tolist()
        assert sent["cu_seqlens"].tolist() == here["cu_seqlens"].tolist()


def test_the_global_batch_may_change_when_asked_for(rows):
    from piecemill.loading import batches

    def sample(batch):
        return [tuple(row) for row in batch["input_ids"].tolist()]

    options = {"window": 4, "seed": 1, "epochs": 2}
    straight = [row for batch in batches(rows, batch_size=1, **options) for row in sample(batch)]
    first = batches(rows, batch_size=6, **options)
    found = [row for _ in range(3) for row in sample(next(first))]
    second = batches(rows, batch_size=4, **options)
    with pytest.raises(LoadError, match=r"taken with 6 samples a step.*change_batch=True"):
        second.load_state_dict(first.state_dict())
    second.load_state_dict(first.state_dict(), change_batch=True)
    found += [row for _ in range(3) for row in sample(next(second))]
    # A state of a changed loader is one like any other.
    third = batches(rows, batch_size=4, **options)
    third.load_state_dict(second.state_dict())
    assert third.samples == 30
    found += [row for batch in third for row in sample(batch)]
    assert found == straight


# Tokenizers


def test_a_mistyped_name_is_answered_here_before_a_hub_is_asked(tok, monkeypatch):
    monkeypatch.chdir(tok.parent)
    monkeypatch.setattr("piecemill.tokenizers.hub.fetch", lambda spec: pytest.fail("asked the hub"))
    with pytest.raises(TokenizerError, match=r"^tokk: no such file or folder; did you mean tok\?"):
        piecemill.load_tokenizer("tokk")


def test_a_hub_that_cannot_be_reached_is_asked_once(tmp_path, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")
    constants, utils = (importlib.import_module(f"huggingface_hub.{name}") for name in ("constants", "utils"))
    asked = []

    class Session:
        def head(self, url, timeout):
            asked.append(url)
            raise ConnectionError("Name or service not known")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(utils, "get_session", Session)
    monkeypatch.setattr(hub, "hf_hub_download", lambda *_, **__: pytest.fail("began to download"))
    with pytest.raises(TokenizerError, match=r"some-org/absent: no such file .* cannot be reached \(Name or service"):
        piecemill.load_tokenizer("some-org/absent")
    assert len(asked) == 1


# Sources


def test_a_pipe_that_is_no_file_is_told_the_way(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    done = run("train", tmp_path / "pipe", "--out", tmp_path / "x")
    assert "or pipe it to standard input, and name - as the source" in done.stderr
    with pytest.raises(SourceError, match="or pass an iterable"):
        open_source(tmp_path / "pipe")


@pytest.fixture
def corpus(tmp_path):
    for name in ("a", "b"):
        write_jsonl(tmp_path / f"corpus/{name}.jsonl", [f"text {number} of {name}" for number in range(30)])
    return tmp_path / "corpus"


def test_a_file_is_read_once_whatever_links_lead_to_it(corpus, tmp_path):
    (tmp_path / "link").symlink_to(corpus)
    (corpus / "c.jsonl").symlink_to(corpus / "a.jsonl")
    source = open_source([corpus, tmp_path / "link"])
    assert [Path(file.path).name for file in source.files] == ["a.jsonl", "b.jsonl"]
    assert source.left_out["repeated"] == 4


@pytest.mark.parametrize("complete", [True, False])
def test_the_same_files_by_another_path_are_the_same_source(corpus, tok, tmp_path, monkeypatch, complete):
    monkeypatch.chdir(tmp_path)
    piecemill.prepare(Path("corpus"), tok, out=tmp_path / "out")
    if not complete:
        (tmp_path / "out/stats.json").unlink()
    for path in (corpus, Path("../") / tmp_path.name / "corpus"):
        assert piecemill.prepare(path, tok, out=tmp_path / "out").documents == 60
    other = tmp_path / "other"
    write_jsonl(other / "a.jsonl", ["x"] * 30)
    write_jsonl(other / "b.jsonl", ["x"] * 30)
    with pytest.raises(SourceError, match=r"its source file 1 was corpus/a.jsonl, and is .*other/a.jsonl now"):
        piecemill.prepare(other, tok, out=tmp_path / "out")


@pytest.mark.parametrize("complete", [True, False])
@pytest.mark.parametrize("pieces", ["1KiB", "256MiB"])
def test_another_time_is_no_change_and_other_content_of_the_same_size_is(corpus, tok, tmp_path, complete, pieces):
    options = {"out": tmp_path / "out", "piece_bytes": pieces, "block_bytes": "1KiB"}
    piecemill.prepare(corpus, tok, **options)
    if not complete:
        (tmp_path / "out/stats.json").unlink()
    os.utime(corpus / "b.jsonl", (1, 1))
    assert piecemill.prepare(corpus, tok, **options).documents == 60
    assert piecemill.prepare(corpus, tok, **options).documents == 60
    content = (corpus / "b.jsonl").read_bytes()
    (corpus / "b.jsonl").write_bytes(content.replace(b"text 29", b"texT 29"))
    os.utime(corpus / "b.jsonl", (2, 2))
    with pytest.raises(SourceError, match=r"b\.jsonl: changed under the run: .* its content is another"):
        piecemill.prepare(corpus, tok, **options)


def test_a_folder_in_which_nothing_was_finished_does_not_block(corpus, tok, tmp_path):
    with pytest.raises(SourceError, match="txt"):
        piecemill.prepare(corpus, tok, out=tmp_path / "out", field="txt")
    assert (tmp_path / "out/plan.json").exists()
    assert piecemill.prepare(corpus, tok, out=tmp_path / "out").documents == 60
    with pytest.raises(PlanError, match="field"):
        piecemill.prepare(corpus, tok, out=tmp_path / "out", field="txt")


def test_a_folder_in_a_store_is_not_begun_anew_as_another_run_may_be_alive_in_it(corpus, tok):
    out = "memory://bucket/not-finished"
    with pytest.raises(SourceError, match="txt"):
        piecemill.prepare(corpus, tok, out=out, field="txt")
    with pytest.raises(PlanError, match="made with field='txt'"):
        piecemill.prepare(corpus, tok, out=out)


def test_a_damaged_entry_is_made_again_also_where_a_file_has_another_time(corpus, tok, tmp_path):
    options = {"out": tmp_path / "out", "piece_bytes": "256", "block_bytes": "256"}
    tokens = piecemill.prepare(corpus, tok, **options).tokens
    (tmp_path / "out/stats.json").unlink()
    sorted((tmp_path / "out/entries").glob("*.json"))[0].write_bytes(b"{")
    for name in ("a", "b"):
        os.utime(corpus / f"{name}.jsonl", (1, 1))
    assert piecemill.prepare(corpus, tok, **options).tokens == tokens


# Show and check


def shown(*words, capsys):
    """`show` or `check` in this process: exit code and output."""
    from piecemill import cli

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["piecemill", *map(str, words)])
        try:
            cli.run()
        except SystemExit as end:
            return end.code or 0, capsys.readouterr().out
    return 0, capsys.readouterr().out


@pytest.mark.parametrize("name", ["word_piece", "unigram", "sentencepiece", "vocab.json"])
def test_every_kind_of_tokenizer_can_be_shown_and_checked(name, tok, tmp_path, capsys):
    folder = tmp_path / "tok"
    folder.mkdir()
    if name == "sentencepiece":
        (folder / "tokenizer.model").write_bytes(models.sentencepiece_model())
    elif name == "vocab.json":
        model = json.loads((tok / "tokenizer.json").read_text())["model"]
        (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
        (folder / "merges.txt").write_text("\n".join(" ".join(merge) for merge in model["merges"]))
    else:
        (folder / "tokenizer.json").write_text(models.tokenizer_json(name))
    code, out = shown("show", folder, capsys=capsys)
    assert (code, out.startswith(f"{folder}: a tokenizer of ")) == (0, True)
    assert shown("show", folder, "--json", capsys=capsys)[0] == 0
    assert shown("check", folder, capsys=capsys) == (0, f"{folder} is sound: a tokenizer\n")


def test_a_check_of_something_else_says_what_was_expected(tok, tmp_path):
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus/a.txt").write_text(TEXT)
    for name, says in (
        ("corpus", "neither prepared (it has no plan.json) nor a tokenizer"),
        ("corpus/a.txt", "expected a folder saved with Tokenizer.save"),
        ("nowhere/", "no such file"),
    ):
        found = piecemill.check(f"{tmp_path}/{name}")
        assert not found.sound
        assert says in str(found)
        assert "stats.json" not in str(found)
    assert piecemill.check(tok / "tokenizer.json").sound


def test_actions_can_be_shown_and_checked(tmp_path, capsys):
    items = {str(item): [item % 3, item % 5] for item in range(30)}
    histories = [[str((start * step) % 30) for step in range(1, 9)] for start in range(40)]
    tokenizer = piecemill.train_actions(histories, items, vocab_size=40)
    tokenizer.save(tmp_path / "voc")
    write_action_shards(histories, tokenizer, out=tmp_path / "shards")
    assert shown("show", tmp_path / "voc", capsys=capsys)[0] == 0
    assert json.loads(shown("show", tmp_path / "voc", "--json", capsys=capsys)[1])["kind"] == "action_vocabulary"
    sound = f"{tmp_path / 'voc'} is sound: a vocabulary of actions\n"
    assert shown("check", tmp_path / "voc", capsys=capsys) == (0, sound)
    code, page = shown("show", tmp_path / "shards", capsys=capsys)
    assert (code, page.splitlines()[0]) == (0, f"{tmp_path / 'shards'}: 40 histories, 320 items; complete")
    assert "\nall     '1 2 3 4 5 6 7 8'\n" in page
    found = json.loads(shown("show", tmp_path / "shards", "--json", capsys=capsys)[1])
    assert (found["plan"]["kind"], found["duplicates"], found["stats"]["report"]["read"]["users"]) == (
        "actions",
        10,
        40,
    )
    code, out = shown("check", tmp_path / "shards", capsys=capsys)
    assert (code, "40 documents, 320 tokens; 40 documents decoded and compared" in out) == (0, True)
    file = tmp_path / "shards/all/000000-0000.tokens.npy"
    content = bytearray(file.read_bytes())
    content[-2] ^= 1
    file.write_bytes(content)
    code, out = shown("check", tmp_path / "shards", capsys=capsys)
    assert (code, "tokens.npy: was changed" in out, "document 39 (tokens 312 to 320) does not decode" in out) == (
        1,
        True,
        True,
    )


def test_a_run_can_be_shown_and_checked(tmp_path, capsys):
    pytest.importorskip("torch")
    out = tmp_path / "run"
    piecemill.pretrain(small_shards(tmp_path / "shards"), out=out, steps=4, checkpoint_every=2, **SMALL)
    code, text = shown("show", out, capsys=capsys)
    assert (code, "a pretraining run after 4 steps; validation loss" in text, "complete" in text) == (0, True, True)
    assert shown("check", out, capsys=capsys) == (0, f"{out} is sound: a pretraining run\n")
    (out / "checkpoints/step-00000004/model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}" + b"more")
    code, text = shown("check", out, capsys=capsys)
    assert (code, "step-00000004/model.safetensors: cut short" in text) == (1, True)


def test_an_unfinished_folder_says_what_is_finished(corpus, tok, tmp_path, capsys):
    piecemill.prepare(corpus, tok, out=tmp_path / "out", part="1/2", piece_bytes="1KiB")  # two tasks
    code, text = shown("show", tmp_path / "out", capsys=capsys)
    assert (code, "30 documents" in text.splitlines()[0], "not complete" in text) == (0, True, True)
    assert "run the same prepare to its end" in text
    assert shown("check", tmp_path / "out", capsys=capsys)[0] == 1
    with locked(LocalPlace(tmp_path / "out")):
        text = shown("show", tmp_path / "out", capsys=capsys)[1]
        assert f"not complete: process {os.getpid()} is at work on it" in text.splitlines()[0]
    (tmp_path / "out/.lock").write_text("999999999\n")  # of a process that was killed
    assert "run the same prepare to its end" in shown("show", tmp_path / "out", capsys=capsys)[1]


def test_show_prints_the_whole_plan_as_one_would_type_it(tok, tmp_path, capsys):
    assert "tokens of 1 document, 8 B" in (said := str(piecemill.prepare(["one text"], tok, out=tmp_path / "out")))
    assert "1 shard in" in said
    lines = shown("show", tmp_path / "out", capsys=capsys)[1].splitlines()
    assert lines[0].startswith(f"{tmp_path / 'out'}: 1 document, ")
    plan = lines[lines.index("plan") :]
    identity = piecemill.load_tokenizer(tok).identity
    assert f"    identity          {identity}" in plan
    assert {"  bos                 none", "    gitignore         yes", "    include           none"} < set(plan)
    assert not any("{" in line or "'" in line for line in plan)


def test_one_cause_is_one_problem(tok, tmp_path, capsys):
    piecemill.prepare([f"{letter} text" for letter in "abcdefgh"], tok, out=tmp_path / "out")
    plan = tmp_path / "out/plan.json"
    plan.write_text(plan.read_text().replace('"bos": null', '"bos": 5'))
    code, text = shown("check", tmp_path / "out", capsys=capsys)
    changed, documents = text.splitlines()
    assert (code, "plan.json: was changed" in changed) == (1, True)
    assert documents.endswith("not with bos, 5. The same is wrong with 7 other documents of the sample.")


# Training


def test_counts_are_trained_with_the_split_that_they_were_made_with(tmp_path):
    counts = [tmp_path / "1.parquet", tmp_path / "2.parquet"]
    for path in counts:
        piecemill.count_words([TEXT], pretokenizer="gpt2", save_counts=path)
    done = run("train", "--from-counts", *counts, "--vocab-size", 280, "--out", tmp_path / "tok")
    assert done.returncode == 0, done.stderr
    assert piecemill.load_tokenizer(tmp_path / "tok").pretokenizer == "gpt2"
    assert json.loads((tmp_path / "tok/training.json").read_text())["plan"]["pretokenizer"] == "gpt2"
    with pytest.raises(SourceError, match=r"1.parquet: counted with pretokenizer='gpt2', requested 'o200k'"):
        piecemill.train_bpe(from_counts=counts, pretokenizer="o200k")
    assert piecemill.train_bpe([TEXT], vocab_size=280).pretokenizer == "cl100k"
    (tmp_path / "1.parquet").write_bytes(b"no")
    with pytest.raises(SourceError, match=r"1.parquet: cannot be read as Parquet"):
        piecemill.train_bpe(from_counts=counts)


def test_the_record_of_a_training_names_its_sources(corpus):
    read = piecemill.train_bpe(corpus, vocab_size=270).training["corpus"]
    assert read["files"] == 2
    assert read["sources"] == [f"{corpus}/a.jsonl", f"{corpus}/b.jsonl"]
    assert piecemill.train_bpe(["some text"], vocab_size=258).training["corpus"]["sources"] == ["<list>"]


def test_the_note_of_a_small_vocabulary_names_the_limits_that_were_set():
    from piecemill.training.result import Trained

    def note(**limits):
        text = str(Trained(piecemill.train_bpe(["low lower lowest"] * 9, vocab_size=400, **limits), Path("tok")))
        return next(line for line in text.splitlines() if line.startswith("note:"))

    assert note().endswith("; give more text")
    assert note(max_token_bytes=2).endswith("give more text, or a higher max_token_bytes than 2")
    assert note(min_frequency=20).endswith("give more text, or a lower min_frequency than 20")
