"""`prepare`: what ends up where, whatever the workers, and what is refused."""

import inspect
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from os import PathLike
from pathlib import Path
from typing import Never

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import piecemill.actions
from corpora import (
    change_keeping_time,
    content,
    entries,
    failing_after,
    small_tokenizer,
    split_documents,
    split_texts,
    texts,
    write_jsonl,
)
from piecemill import (
    ExportPlan,
    PretrainPlan,
    compare,
    count_words,
    export,
    prepare,
    pretrain,
    train_actions,
    train_bpe,
    train_wordpiece,
)
from piecemill._core import gather_tokens
from piecemill.actions import ActionsPlan, FeaturesPlan, make_items
from piecemill.actions.encoding import encode_histories
from piecemill.errors import PlanError, ShardError, SourceError, Stopped
from piecemill.executors import open_executor
from piecemill.machine import memory_now
from piecemill.plans import FROM_PLAN
from piecemill.preparing import PreparePlan
from piecemill.preparing.selection import Splits
from piecemill.reporting.plan import ComparePlan
from piecemill.tokenizers import Tokenizer
from piecemill.training.plan import TrainPlan
from piecemill.training.wordpiece import WordPiecePlan

SMALL = {"block_bytes": "4KiB", "piece_bytes": "8KiB"}


@pytest.fixture(scope="module")
def tok() -> Tokenizer:
    return small_tokenizer()


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    for number in range(6):
        write_jsonl(folder / f"part{number}.jsonl", texts(60, seed=number))
    return folder


def test_every_document_comes_back_in_order_and_ends_with_the_end_of_text(tok, corpus, tmp_path):
    summary = prepare(corpus, tok, out=tmp_path / "out", **SMALL)
    want = [text for number in range(6) for text in texts(60, seed=number)]
    assert split_texts(tmp_path / "out", "all", tok) == want
    assert summary.documents == len(want)
    assert summary.tokens == sum(len(tok.encode(text)) + 1 for text in want)
    assert summary.shards > 3


def test_a_record_says_where_its_document_came_from(tok, corpus, tmp_path):
    out = tmp_path / "out"
    prepare(corpus, tok, out=out, **SMALL)
    files = [json.loads(line)["path"] for line in (out / "files.jsonl").read_text().splitlines()]
    _, records = split_documents(out, "all")
    for record, text in zip(records[::17], split_texts(out, "all", tok)[::17], strict=True):
        line = Path(files[record["file"]]).read_bytes()[record["place"] :].split(b"\n")[0]
        assert json.loads(line)["text"] == text
        assert record["bytes"] == len(text.encode())


# Memory beyond what this process, with all the tests in it, holds already; 512 MiB are the least there can be.
@pytest.mark.parametrize(("workers", "more"), [(2, 2**31), (4, 2**31), (3, 300 * 2**20)])
def test_the_folder_is_the_same_for_any_workers_and_memory(tok, corpus, tmp_path, workers, more):
    memory = str(max(memory_now() + more, 540 * 2**20))
    options = {**SMALL, "splits": "train=80,val=20", "dedup": "exact"}
    prepare(corpus, tok, out=tmp_path / "one", threads=1, **options)
    prepare(corpus, tok, out=tmp_path / "many", threads=workers, memory=memory, **options)
    assert content(tmp_path / "one") == content(tmp_path / "many")


def test_nothing_but_the_result_is_left_in_the_folder(tok, corpus, tmp_path):
    prepare(corpus, tok, out=tmp_path / "out", dedup="exact", **SMALL)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        ".sources.npy", "all", "entries", "files.jsonl", "plan.json", "stats.json", "timing.json", "tokenizer",
    ]  # fmt: skip


def test_bos_and_eos_stand_around_each_document_or_not_at_all(tmp_path):
    tok = Tokenizer.from_merges(
        np.empty((0, 2), np.uint32), pretokenizer="gpt2", special_tokens=["<|endoftext|>", "<s>"]
    )
    prepare(["a", "b"], tok, out=tmp_path / "both", bos="<s>")
    assert split_documents(tmp_path / "both", "all")[0] == [[1, tok.id_of(b"a"), 0], [1, tok.id_of(b"b"), 0]]
    prepare(["a", "b"], tok, out=tmp_path / "none", eos="none")
    assert split_documents(tmp_path / "none", "all")[0] == [[tok.id_of(b"a")], [tok.id_of(b"b")]]
    with pytest.raises(PlanError, match=r"eos='</s>': not a special token of this tokenizer.*<s>"):
        prepare(["a"], tok, out=tmp_path / "wrong", eos="</s>")


def test_a_special_token_in_a_document_is_text_unless_parsed(tok, tmp_path):
    prepare(["a<|endoftext|>"], tok, out=tmp_path / "plain")
    assert split_documents(tmp_path / "plain", "all")[0][0].count(0) == 1
    prepare(["a<|endoftext|>"], tok, out=tmp_path / "parsed", special_in_text="parse")
    assert split_documents(tmp_path / "parsed", "all")[0][0].count(0) == 2


def test_ids_are_as_wide_as_the_vocabulary_asks_for(tok, tmp_path):
    prepare(["a"], tok, out=tmp_path / "out")
    assert np.load(tmp_path / "out/all/000000-0000.tokens.npy").dtype == np.uint16
    ids, ends = np.array([70_000], np.uint32), np.array([1])
    wide, _ = gather_tokens(ids, ends, np.array([0]), bos=None, eos=None, narrow=False)
    assert wide.dtype == np.uint32
    assert wide.tolist() == [70_000]
    with pytest.raises(ValueError, match="id 70000 does not fit in 16 bits"):
        gather_tokens(ids, ends, np.array([0]), bos=None, eos=None, narrow=True)


# Splits


def test_copies_land_on_one_side_and_shares_come_near(tok, tmp_path):
    write_jsonl(tmp_path / "a.jsonl", texts(4_000, copies=0.3))
    summary = prepare(tmp_path / "a.jsonl", tok, out=tmp_path / "out", splits="train=85,val=10,test=5")
    sides = {name: set(split_texts(tmp_path / "out", name, tok)) for name in ("train", "val", "test")}
    assert not sides["train"] & sides["val"]
    assert not sides["train"] & sides["test"]
    assert not sides["val"] & sides["test"]
    # 2,800 different texts: three standard deviations of the binomial are 2 percent.
    assert summary.splits["train"]["documents_share"] == pytest.approx(0.85, abs=0.03)
    assert summary.splits["val"]["documents_share"] == pytest.approx(0.10, abs=0.03)
    assert sum(split["tokens"] for split in summary.splits.values()) == summary.tokens


def test_a_document_stays_on_its_side_when_others_come_and_moves_with_the_seed(tok, tmp_path):
    some = texts(300, copies=0)
    prepare(iter(some), tok, out=tmp_path / "some", splits="a=1,b=1")
    prepare(iter([*texts(200, seed=9, copies=0), *some]), tok, out=tmp_path / "more", splits="a=1,b=1")
    prepare(iter(some), tok, out=tmp_path / "seed", splits="a=1,b=1", seed=1)
    first = set(split_texts(tmp_path / "some", "a", tok))
    assert first <= set(split_texts(tmp_path / "more", "a", tok))
    other = set(split_texts(tmp_path / "seed", "a", tok))
    assert 90 < len(first) < 210
    assert 40 < len(first - other) < 120  # about half of its documents moved


@pytest.mark.parametrize(("levels", "by"), [(1, "directory"), (2, "directory:2")])
def test_a_folder_stays_together(tok, tmp_path, levels, by):
    for number, text in enumerate(texts(400, copies=0)):
        path = tmp_path / f"src/repo{number % 20}/part{number % 3}/{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    prepare(tmp_path / "src", tok, out=tmp_path / "out", splits="a=1,b=1", split_by=by)
    files = [json.loads(line)["path"] for line in (tmp_path / "out/files.jsonl").read_text().splitlines()]
    sides: dict[tuple[str, ...], set[str]] = {}
    for split in ("a", "b"):
        for record in split_documents(tmp_path / "out", split)[1]:
            group = Path(files[record["file"]]).relative_to(tmp_path / "src").parts[:levels]
            sides.setdefault(group, set()).add(split)
    assert len(sides) == (20 if levels == 1 else 60)
    assert all(len(side) == 1 for side in sides.values())
    assert {"a", "b"} == set.union(*sides.values())


def test_a_field_keeps_its_documents_together_the_same_way_in_jsonl_and_parquet(tok, tmp_path):
    documents = texts(300, copies=0)
    groups = [number % 15 for number in range(300)]
    write_jsonl(tmp_path / "a.jsonl", documents, user=groups)
    pq.write_table(pa.table({"user": pa.array(groups, pa.int32()), "text": documents}), tmp_path / "a.parquet")
    for kind in ("jsonl", "parquet"):
        prepare(tmp_path / f"a.{kind}", tok, out=tmp_path / kind, splits="a=1,b=1", split_by="user")
    number = {text: n for n, text in enumerate(documents)}
    one, other = ({number[t] % 15 for t in split_texts(tmp_path / "jsonl", split, tok)} for split in "ab")
    assert one
    assert other
    assert not one & other
    assert split_texts(tmp_path / "jsonl", "a", tok) == split_texts(tmp_path / "parquet", "a", tok)


def test_a_document_without_the_field_to_split_by_is_a_bad_document(tok, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text":"a","repo":"x"}\n{"text":"b"}\n{"text":"c","repo":null}\n')
    options = {"splits": "a=1,b=1", "split_by": "repo"}
    with pytest.raises(SourceError, match=r'a\.jsonl:2: no field "repo" to group by'):
        prepare(tmp_path / "a.jsonl", tok, out=tmp_path / "stop", **options)
    summary = prepare(tmp_path / "a.jsonl", tok, out=tmp_path / "skip", on_bad_document="skip", **options)
    assert (summary.documents, summary.skipped) == (1, 2)
    (tmp_path / "b.txt").write_text("text")
    with pytest.raises(SourceError, match=r"b\.txt: a text file has no field 'repo'"):
        prepare(tmp_path / "b.txt", tok, out=tmp_path / "text", **options)


@pytest.mark.parametrize("wrong", ["train", "train=0", "a=1,a=2", "tokenizer=1", "../x=1", "a=x", ""])
def test_splits_that_make_no_sense_are_refused(wrong):
    with pytest.raises(PlanError, match="splits="):
        Splits.parse(wrong)


# What is dropped, and weights


def test_documents_are_dropped_by_size_and_counted(tok, tmp_path):
    summary = prepare(["a", "bb", "ccc", "dddd"], tok, out=tmp_path / "out", min_bytes="2", max_bytes="3")
    assert split_texts(tmp_path / "out", "all", tok) == ["bb", "ccc"]
    assert summary.dropped == {
        "too_long": {"documents": 1, "bytes": 4},
        "too_short": {"documents": 1, "bytes": 1},
    }


def test_include_and_exclude_choose_files_and_count_the_rest(tok, tmp_path):
    for name in ("a.py", "b.md", "c.py"):
        (tmp_path / "src").mkdir(exist_ok=True)
        (tmp_path / "src" / name).write_text(name)
    summary = prepare(tmp_path / "src", tok, out=tmp_path / "out", include=["*.py"], exclude=["c.*"])
    assert split_texts(tmp_path / "out", "all", tok) == ["a.py"]
    assert summary.left_out == {"excluded": 1, "not_included": 1}


def test_weights_are_stored_per_group_and_copy_nothing(tok, tmp_path):
    for name in ("src/a.py", "docs/b.md", "other.txt", "src/deep/c.py"):
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    prepare(tmp_path / "in", tok, out=tmp_path / "out", weight=["src/**=2", "docs/**=0.5", "*.py=9"])
    plan = json.loads((tmp_path / "out/plan.json").read_text())
    assert [(group["pattern"], group["weight"]) for group in plan["groups"]] == [
        (None, 1.0), ("src/**", 2.0), ("docs/**", 0.5), ("*.py", 9.0),
    ]  # fmt: skip
    names = split_texts(tmp_path / "out", "all", tok)
    groups = split_documents(tmp_path / "out", "all")[1]["group"].tolist()
    assert dict(zip(names, groups, strict=True)) == {"src/a.py": 1, "src/deep/c.py": 1, "docs/b.md": 2, "other.txt": 0}
    with pytest.raises(PlanError, match=r"weight='src=-1'"):
        PreparePlan(weight=("src=-1",))


# Going on, and refusing to


def test_a_complete_folder_says_so_and_stays_as_it_is(tok, corpus, tmp_path):
    prepare(corpus, tok, out=tmp_path / "out", **SMALL)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*") if path.is_file()}
    again = prepare(corpus, tok, out=tmp_path / "out", threads=2, memory=str(memory_now() + 2**30), **SMALL)
    assert again.complete_before
    assert again.documents == 360
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*") if path.is_file()}


@pytest.fixture
def stopped(tok, corpus, tmp_path) -> Path:
    """A folder in which a run was stopped in the middle, by Ctrl-C."""
    return stop_halfway(corpus, tok, tmp_path / "out", **SMALL)


def stop_halfway(source, tok, out: Path, pieces: int = 5, **options) -> Path:
    with (
        failing_after(pieces, KeyboardInterrupt()),
        pytest.raises(Stopped, match="run the same command again to go on"),
    ):
        prepare(source, tok, out=out, **{"threads": 1, **options})
    assert len(entries(out)) == pieces
    assert not (out / "stats.json").exists()
    return out


def test_a_stopped_run_goes_on_and_the_result_is_the_same(tok, corpus, stopped, tmp_path):
    summary = prepare(corpus, tok, out=stopped, threads=2, **SMALL)
    assert summary.resumed
    prepare(corpus, tok, out=tmp_path / "whole", **SMALL)
    assert content(stopped) == content(tmp_path / "whole")


def test_finished_tasks_are_not_read_again_and_finished_pieces_not_encoded(tok, corpus, stopped, monkeypatch):
    from piecemill.preparing import task

    done = entries(stopped)
    ended = [entry["task"] for entry in done if entry["last"]]
    assert ended == [0, 1]
    assert [(entry["task"], entry["piece"]) for entry in done[-1:]] == [(2, 0)]
    read, real = [], task.read_task
    monkeypatch.setattr(task, "read_task", lambda one, *rest: (read.append(one.index), real(one, *rest))[1])
    files = [file["name"] for entry in done for file in entry["shards"]["all"]["files"].values()]
    times = {path: path.stat().st_mtime_ns for name in files if (path := stopped / "all" / name).exists()}
    assert len(times) == 15
    prepare(corpus, tok, out=stopped, **SMALL)
    assert sorted(read) == [2, 3, 4, 5]
    assert times == {path: path.stat().st_mtime_ns for path in times}


def test_a_task_is_a_function_that_can_be_sent_elsewhere_and_done_twice(tok, corpus, tmp_path):
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    options = {**SMALL, "splits": "a=3,b=1", "split_by": "directory", "weight": ["*3*=2"]}
    prepare(corpus, tok, out=tmp_path / "here", **options)
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        prepare(corpus, tok, out=tmp_path / "there", executor=pool, **options)
    assert content(tmp_path / "here") == content(tmp_path / "there")
    times = {path: path.read_bytes() for path in (tmp_path / "here" / "a").iterdir()}
    (tmp_path / "here/stats.json").unlink()
    for path in (tmp_path / "here/entries").iterdir():
        path.unlink()
    prepare(corpus, tok, out=tmp_path / "here", **options)
    assert times == {path: path.read_bytes() for path in times}
    assert content(tmp_path / "here") == content(tmp_path / "there")


def test_parts_make_the_same_folder_when_they_are_joined(tok, corpus, tmp_path):
    options = {**SMALL, "splits": "a=3,b=1"}
    prepare(corpus, tok, out=tmp_path / "whole", **options)
    for number in (3, 1, 2):
        with pytest.raises(ShardError, match="tasks are not done"):
            prepare(corpus, tok, out=tmp_path / "parts", join=True, **options)
        assert prepare(corpus, tok, out=tmp_path / "parts", part=f"{number}/3", **options).part == f"{number}/3"
        assert not (tmp_path / "parts/stats.json").exists()
    assert prepare(corpus, tok, out=tmp_path / "parts", join=True, **options).documents == 360
    assert content(tmp_path / "parts") == content(tmp_path / "whole")


def test_a_source_in_memory_stays_in_its_process(tok, tmp_path):
    for elsewhere in ({"part": "1/2"}, {"executor": "ray"}):
        with pytest.raises(PlanError, match="a source in memory"):
            prepare(["a"], tok, out=tmp_path / "out", **elsewhere)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"piece_bytes": "9KiB"},
            r"piece_bytes=8192, requested piece_bytes=9216.*the same piece_bytes, .* force=True",
        ),
        ({"dedup": "exact"}, r"dedup='none', requested dedup='exact'"),
        ({"eos": "none"}, r"eos='auto', requested eos='none'"),
        ({"splits": "a=1,b=1"}, r"splits=None, requested splits='a=1,b=1'"),
    ],
)
def test_another_plan_is_refused_with_what_differs(tok, corpus, stopped, change, message):
    with pytest.raises(PlanError, match=message):
        prepare(corpus, tok, out=stopped, **{**SMALL, **change})


def test_another_tokenizer_is_refused(corpus, stopped):
    other = Tokenizer.from_merges(np.array([[66, 67]]), pretokenizer="gpt2", special_tokens=["<|endoftext|>"])
    with pytest.raises(
        ShardError, match=r"made with another tokenizer \(identity was .*use .*tokenizer, choose another out"
    ):
        prepare(corpus, other, out=stopped, **SMALL)


def test_the_tokenizer_beside_the_shards_is_that_of_the_run_whatever_was_there(tok, corpus, stopped, tmp_path):
    (stopped / "tokenizer/tokenizer.json").write_text("{}")
    prepare(corpus, tok, out=stopped, **SMALL)
    prepare(corpus, tok, out=tmp_path / "whole", **SMALL)
    assert content(stopped) == content(tmp_path / "whole")


def test_files_that_an_earlier_version_listed_by_their_urls_are_the_same_files(tok, corpus, stopped):
    listed = stopped / "files.jsonl"
    listed.write_text(listed.read_text().replace(f'"{corpus}/', f'"file://{corpus}/'))
    assert f"file://{corpus}/" in listed.read_text()
    prepare(f"file://{corpus}", tok, out=stopped, **SMALL)


def test_a_changed_source_is_refused_by_name(tok, corpus, stopped, tmp_path):
    path = corpus / "part3.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])
    with pytest.raises(
        SourceError, match=r"part3\.jsonl: changed under the run: it had [\d,]+ bytes and has [\d,]+ now"
    ):
        prepare(corpus, tok, out=stopped, **SMALL)
    path.write_bytes(whole)
    path = corpus / "part0.jsonl"  # of which shards were written
    path.write_bytes(path.read_bytes().replace(b"the", b"THE"))
    with pytest.raises(SourceError, match=r"part0\.jsonl: changed under the run: it was written to"):
        prepare(corpus, tok, out=stopped, **SMALL)


def test_a_change_that_hides_its_time_is_seen_in_the_task_that_goes_on(tok, corpus, stopped):
    last = entries(stopped)[-1]
    assert not last["last"], "the run must have stopped inside a task"
    path = corpus / f"part{last['task']}.jsonl"
    change_keeping_time(path, path.read_bytes().replace(b"the", b"THE"))
    with pytest.raises(SourceError, match="the source is not what it was when it was prepared"):
        prepare(corpus, tok, out=stopped, **SMALL)


def test_files_that_come_or_go_are_refused(tok, corpus, stopped):
    write_jsonl(corpus / "part0b.jsonl", ["new"])
    with pytest.raises(SourceError, match=r"its source file 2 was .*part1\.jsonl, and is .*part0b\.jsonl now"):
        prepare(corpus, tok, out=stopped, **SMALL)


def test_a_list_in_memory_can_be_resumed_if_it_is_the_same(tok, tmp_path):
    documents = [text for n in range(12) for text in texts(100, seed=n)]
    stop_halfway(documents, tok, tmp_path / "out", **SMALL)
    with pytest.raises(SourceError, match="is not what it was"):
        prepare(["other", *documents[1:]], tok, out=tmp_path / "out", **SMALL)
    prepare(documents, tok, out=tmp_path / "out", **SMALL)
    assert split_texts(tmp_path / "out", "all", tok) == documents


def test_a_second_run_is_refused_while_the_first_lives_and_a_dead_lock_holds_nobody(tok, corpus, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / ".lock").write_text("999999\n")  # of a process that is gone
    inside = []

    def in_the_middle(_):
        if not inside:
            inside.append(True)
            assert (out / ".lock").exists()
            with pytest.raises(ShardError, match=rf"another run is writing to it \(process {os.getpid()}\)"):
                prepare(corpus, tok, out=out, **SMALL)

    prepare(corpus, tok, out=out, on_progress=in_the_middle, **SMALL)
    assert inside
    assert not (out / ".lock").exists()


def test_a_folder_of_others_is_left_alone(tok, tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home/thesis.txt").write_text("years of work")
    with pytest.raises(ShardError, match=r"holds 'thesis.txt' and was not made by"):
        prepare(["a"], tok, out=tmp_path / "home")
    assert (tmp_path / "home/thesis.txt").read_text() == "years of work"


def test_an_unknown_option_names_the_nearest(tok, tmp_path):
    with pytest.raises(PlanError, match="did you mean 'splits'"):
        prepare(["a"], tok, out=tmp_path / "out", split="a=1")


def test_no_document_is_longer_than_0_bytes(tok, tmp_path):
    assert prepare(["a", "bb"], tok, out=tmp_path / "out", max_bytes=0).dropped["too_long"]["documents"] == 2


VERBS = [(prepare, PreparePlan), (train_bpe, TrainPlan), (train_wordpiece, WordPiecePlan), (compare, ComparePlan)]
VERBS += [(count_words, TrainPlan), (train_actions, ActionsPlan), (make_items, FeaturesPlan), (export, ExportPlan)]
VERBS += [(pretrain, PretrainPlan)]


@pytest.mark.parametrize(("verb", "plan"), VERBS)
def test_a_verb_spells_out_every_option_of_its_plan_with_a_type(verb, plan):
    keywords = {name: one for name, one in inspect.signature(verb).parameters.items() if one.default is FROM_PLAN}
    assert list(keywords) == [field.name for field in fields(plan)]
    wider = {tuple[str, ...]: Sequence[str], str: int | str, str | None: int | str | None}
    wider |= {Path | None: str | PathLike[str] | None, tuple[Path, ...]: Sequence[str | PathLike[str]]}
    own = {"roles": Mapping[str, str] | Sequence[str], "start": Tokenizer | str | PathLike[str] | None}
    own |= {"balance_on": str | PathLike[str] | None, "splits": str | dict[str, float] | None}
    own |= dict.fromkeys(("missing", "unknown_value"), str | int | Sequence[str])
    for field in fields(plan):
        wanted = (field.type, own.get(field.name, wider.get(field.type)))
        assert keywords[field.name].annotation in wanted, field.name


def test_out_is_a_keyword_and_threads_are_called_threads():
    public = [getattr(room, name) for room in (piecemill, piecemill.actions) for name in room.__all__]
    verbs = [verb for verb in public if inspect.isfunction(verb)] + [encode_histories, open_executor]
    for verb in verbs:
        parameters = inspect.signature(verb).parameters
        assert "out" not in parameters or parameters["out"].kind is inspect.Parameter.KEYWORD_ONLY, verb
        assert "workers" not in parameters, verb
        assert not any(one.kind is one.VAR_KEYWORD and one.annotation is not Never for one in parameters.values()), verb


def test_a_keyword_counts_before_the_plan_also_where_it_is_the_default(tok, tmp_path):
    plan = PreparePlan(min_bytes="2", seed=3)
    assert prepare(["a", "bb"], tok, out=tmp_path / "plan", plan=plan).documents == 1
    assert prepare(["a", "bb"], tok, out=tmp_path / "both", plan=plan, min_bytes="0").documents == 2


def test_preparing_in_a_notebook_loads_no_command_line():
    code = "import sys, piecemill.preparing.run; print([n for n in ('cyclopts', 'rich', 'ray') if n in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_many_small_files_become_few_shards(tok, corpus, tmp_path):
    summary = prepare(corpus, tok, out=tmp_path / "out")
    assert (summary.documents, summary.shards) == (360, 1)
    assert split_texts(tmp_path / "out", "all", tok) == [text for seed in range(6) for text in texts(60, seed=seed)]
    assert prepare(corpus, tok, out=tmp_path / "small", piece_bytes="1KiB").shards == 6


def test_tiny_documents_and_one_large_one_pass(tok, tmp_path):
    documents = ["x"] * 5_000 + ["the data " * 20_000] + ["y"] * 5_000
    summary = prepare(iter(documents), tok, out=tmp_path / "out", block_bytes="1KiB", threads=3)
    assert summary.documents == 10_001
    assert split_texts(tmp_path / "out", "all", tok) == documents


def test_progress_has_files_bytes_documents_and_tokens(tok, corpus, tmp_path):
    moments = []
    prepare(corpus, tok, out=tmp_path / "out", on_progress=moments.append, **SMALL)
    last = moments[-1]
    assert (last.files, last.files_total, last.documents) == (6, 6, 360)
    assert last.bytes_read == last.bytes_total
    assert "6/6 files" in last.columns()


# The command


def run(*args: object) -> subprocess.CompletedProcess[str]:
    code = "import sys; from piecemill.__main__ import main; sys.argv = ['piecemill', *sys.argv[1:]]; main()"
    command = [sys.executable, "-c", code, *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


def test_the_command_prepares_resumes_and_refuses(tok, corpus, tmp_path):
    tok.save(tmp_path / "tok")
    command = ("prepare", corpus, "--tokenizer", tmp_path / "tok", "--out", tmp_path / "out")
    first = run(*command, "--splits", "train=9,val=1", "--json")
    assert first.returncode == 0, first.stderr
    assert json.loads(first.stdout)["documents"] == 360
    again = run(*command, "--splits", "train=9,val=1")
    assert again.returncode == 0
    assert "is complete" in again.stdout
    other = run(*command, "--splits", "train=8,val=2")
    assert other.returncode == 2
    assert "splits='train=9,val=1'" in other.stderr
    shutil.rmtree(tmp_path / "tok")
    assert run(*command, "--splits", "train=9,val=1").returncode == 1


def test_what_prepare_writes_passes_its_own_check(tmp_path):
    from piecemill.shards.check import check_shards

    texts = [f"document number {number} " * (number % 7 + 1) for number in range(300)]
    tok = Tokenizer.from_merges([], pretokenizer="gpt2", special_tokens=["<|endoftext|>"])
    prepare(texts, tok, out=tmp_path / "out", splits="train=9,val=1")
    assert check_shards(tmp_path / "out").sound
