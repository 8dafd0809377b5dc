"""An export that is stopped at any write, run twice at once, or made from a folder somebody changed."""

import json
import os
from pathlib import Path

import pytest

from corpora import small_tokenizer, texts
from piecemill.errors import ShardError
from piecemill.files import LocalPlace, hash_bytes, locked
from piecemill.preparing import prepare
from piecemill.shards.check import check_shards
from piecemill.shards.export import ExportPlan, export
from piecemill.shards.folder import render_stats
from piecemill.tokenizers import Tokenizer
from prepared import prepare_folder

FORMATS = ["parquet", "jsonl", "megatron"]


@pytest.fixture
def shards(tmp_path):
    documents = texts(60)
    return prepare_folder(tmp_path / "shards", {"train": documents[:40], "val": documents[40:]}, small_tokenizer())


def plan_of(to: str) -> ExportPlan:
    return ExportPlan(to=to) if to == "megatron" else ExportPlan(to=to, window=64)


def content(folder) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class Killed(BaseException):
    """As if the process had gone: nothing is cleaned up."""


def chosen(unlink, gone):
    return lambda path, **more: (unlink if path.name == ".lock" else gone)(path, **more)


@pytest.mark.parametrize("to", FORMATS)
def test_an_export_that_was_killed_at_any_step_goes_on_to_the_same_files(shards, tmp_path, monkeypatch, to):
    whole = tmp_path / "whole"
    export(shards, out=whole, plan=plan_of(to))
    assert not list(whole.rglob(".*"))
    for step in range(200):
        out, calls = tmp_path / f"out{step}", 0

        def counted(real, step=step):
            def call(*args, **options):
                nonlocal calls
                calls += 1
                if calls > step:
                    raise Killed
                return real(*args, **options)

            return call

        with monkeypatch.context() as patch:
            # A killed process unlinks nothing: every call fails from the chosen one on.
            patch.setattr(os, "fsync", counted(os.fsync))
            patch.setattr(os, "replace", counted(os.replace))
            unlink, gone = Path.unlink, counted(Path.unlink)
            # The system frees the lock of a process that is gone.
            patch.setattr(Path, "unlink", chosen(unlink, gone))
            try:
                export(shards, out=out, plan=plan_of(to))
                finished = True
            except Killed:
                finished = False
        export(shards, out=out, plan=plan_of(to))
        assert content(out) == content(whole), step
        if finished:
            assert step > 10
            return
    raise AssertionError("more steps than expected")


def test_a_second_export_into_the_same_folder_is_refused(shards, tmp_path):
    with locked(LocalPlace(tmp_path / "out")), pytest.raises(ShardError, match="another run is writing to it"):
        export(shards, out=tmp_path / "out", plan=plan_of("jsonl"))
    export(shards, out=tmp_path / "out", plan=plan_of("jsonl"))


def test_a_stop_while_the_claim_is_written_does_not_block(shards, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / ".export.json.1-abc.part").write_text("{")
    (out / ".lock").write_text("1")
    export(shards, out=out, plan=plan_of("jsonl"))
    assert not list(out.rglob(".*"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").write_text("x")
    with pytest.raises(ShardError, match="is not empty"):
        export(shards, out=tmp_path / "other", plan=plan_of("jsonl"))
    assert os.listdir(tmp_path / "other") == ["mine.txt"]


@pytest.mark.parametrize("name", ["../evil", "/tmp/evil", "a/b", "", ".", "..", "tokenizer", "-x"])
def test_a_split_name_that_leads_elsewhere_is_refused_wherever_the_plan_is_read(shards, tmp_path, name):
    plan = json.loads((shards / "plan.json").read_text())
    changed = json.dumps({**plan, "splits": {name: 1.0}}).encode()
    (shards / "plan.json").write_bytes(changed)
    stats = json.loads((shards / "stats.json").read_text())
    stats["checksums"]["plan.json"] = hash_bytes(changed)
    (shards / "stats.json").write_bytes(render_stats(stats))
    for to in FORMATS:
        with pytest.raises(ShardError, match=r"plan\.json: .* cannot be the name of a split"):
            export(shards, out=tmp_path / "home" / "out", plan=plan_of(to))
    assert not (tmp_path / "home").exists()
    assert not check_shards(shards).sound


@pytest.mark.parametrize("to", FORMATS)
def test_shards_that_are_prepared_again_during_an_export_are_not_mixed_with_those_before(tmp_path, to):
    tok = Tokenizer.from_merges([], pretokenizer="gpt2", special_tokens=["<|endoftext|>"])
    options = {"out": tmp_path / "shards", "piece_bytes": "1KiB", "block_bytes": "1KiB"}
    options |= {"splits": "train=50,val=50", "split_by": "id"}
    for word in ("old", "new"):
        lines = [json.dumps({"text": f"document {n:03} {word}", "id": n}) for n in range(120)]
        (tmp_path / f"{word}.jsonl").write_text("\n".join(lines))

    def again(part, done, of):
        if done == 1:
            prepare(tmp_path / "new.jsonl", tok, force=True, **options)

    prepare(tmp_path / "old.jsonl", tok, **options)
    with pytest.raises(ShardError, match=r"shards: was prepared again while it was exported.*export again"):
        export(tmp_path / "shards", out=tmp_path / "out", plan=plan_of(to), on_part=again)
    parts = json.loads((tmp_path / "out/export.json").read_text())["parts"]
    assert [name for name in sorted(parts) if (tmp_path / "out" / name).exists()] == sorted(parts)[:1]
    assert len(parts) > 1
