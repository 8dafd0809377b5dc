"""Prepared folders that somebody changed: reading, showing and exporting end in words, and check misses none."""

import json
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from corpora import content, failing_after, small_tokenizer, texts, write_jsonl
from piecemill import describe, open_shards, prepare, report
from piecemill.errors import LoadError, PiecemillError, PlanError, ShardError, SourceError
from piecemill.files import LocalPlace
from piecemill.loading import batches
from piecemill.preparing.selection import Splits
from piecemill.shards import write_stats
from piecemill.shards.check import check_shards
from piecemill.shards.manifest import ENTRIES, Entry
from piecemill.shards.windows import Windows
from prepared import TALLY, prepare_folder

FUZZ = r"""
import copy, json, os, random, resource, shutil, sys
from pathlib import Path
import numpy as np
import piecemill as pm
from piecemill.errors import PiecemillError
from piecemill.loading import batches
from piecemill.shards.check import check_shards
from piecemill.shards.export import ExportPlan, export

base, seed, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
rng = random.Random(seed)
VALUES = [None, True, 0, -1, 2**31, 2**62, 2**63, 10**30, 1.5, float("nan"), "", "x", "../../etc", "/etc/passwd",
          "\x00", "\ud800", [], {}, [1], {"a": 1}, "0" * 16]

def nodes(data, path=()):
    if path:
        yield path
    keys = data if isinstance(data, dict) else range(len(data)) if isinstance(data, list) else ()
    for key in keys:
        yield from nodes(data[key], (*path, key))

def at(data, path):
    for key in path:
        data = data[key]
    return data

def changed(data):
    path = rng.choice(list(nodes(data)))
    parent, how = at(data, path[:-1]), rng.random()
    if how < 0.7: parent[path[-1]] = copy.deepcopy(rng.choice(VALUES))
    elif how < 0.85: del parent[path[-1]]
    else: parent[path[-1]] = copy.deepcopy(at(data, rng.choice(list(nodes(data)))))
    return json.dumps(data)

def mutate(folder):
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    how = rng.random()
    if how < 0.45:
        texts = [path for path in files if path.suffix in (".json", ".jsonl") and path.parent.name != "tokenizer"]
        path = rng.choice(texts)
        lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        number = rng.randrange(len(lines))
        lines[number] = changed(json.loads(lines[number])) if rng.random() < 0.85 else "[" * 50_000
        path.write_text("\n".join(lines) + "\n")
    elif how < 0.8:
        path = rng.choice([path for path in files if path.suffix == ".npy"])
        data, how = bytearray(path.read_bytes()), rng.random()
        if how < 0.4: data[rng.randrange(min(256, len(data)))] ^= 1 << rng.randrange(8)
        elif how < 0.6: data[rng.randrange(len(data))] = rng.randrange(256)
        elif how < 0.7: del data[rng.randrange(len(data)) :]
        elif how < 0.8: data += bytes(rng.randrange(1, 40))
        elif "ends" in path.name:
            ends = np.frombuffer(bytes(data[128:]), np.int64).copy()
            ends[rng.randrange(len(ends))] = rng.choice([-1, 0, 2**62, 2**63 - 1, -(2**63)])
            data = data[:128] + ends.tobytes()
        else: data[128:132] = b"\xff" * 4
        path.write_bytes(bytes(data))
    else:
        path = rng.choice(files)
        path.unlink()
        if how > 0.85: path.mkdir()
        elif how > 0.9: path.symlink_to("/etc/passwd")
    return str(path.relative_to(folder))

def fed(folder):
    with batches(pm.open_shards(folder, "train"), window=32, batch_size=4, epochs=1, seed=1, threads=0) as feed:
        for _ in feed:
            pass

ACTS = {
    "read": lambda folder: [[row.tolist() for row in pm.open_shards(folder, split)] for split in ("train", "val")],
    "batches": fed,
    "show": lambda folder: str(pm.describe(folder)),
    "parquet": lambda folder: export(folder, out=base / "out", plan=ExportPlan(to="parquet", window=16)),
    "jsonl": lambda folder: export(folder, out=base / "out", plan=ExportPlan(to="jsonl", window=16)),
    "megatron": lambda folder: export(folder, out=base / "out", plan=ExportPlan(to="megatron")),
}
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
for number in range(count):
    folder = base / "changed"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(base / "whole", folder)
    what = mutate(folder)
    for name in ("read", "batches", rng.choice(["show", "parquet", "jsonl", "megatron"])):
        (base / "last").write_text(f"{seed} {number} {what} {name}")
        shutil.rmtree(base / "out", ignore_errors=True)
        try:
            ACTS[name](folder)
        except PiecemillError:
            pass
    (base / "last").write_text(f"{seed} {number} {what} check")
    same = {p.name: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == {
        p.name: p.read_bytes() for p in (base / "whole").rglob("*") if p.is_file()}
    assert same or not check_shards(folder, sample=20).sound, "check missed it"
print("done")
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    documents = texts(60)
    prepare_folder(folder / "whole", {"train": documents[:40], "val": documents[40:]}, small_tokenizer())
    return folder


@pytest.mark.parametrize("seed", [1, 2])
def test_a_folder_that_was_changed_anywhere_ends_in_words_and_check_misses_none(whole, seed):
    made = subprocess.run(
        [sys.executable, "-c", FUZZ, str(whole), str(seed), "80"], capture_output=True, text=True, timeout=300
    )
    assert (made.returncode, made.stdout) == (0, "done\n"), (whole / "last").read_text() + made.stderr[-3000:]


def test_every_bit_of_a_header_that_flips_is_a_shard_error(whole, tmp_path):
    shards = open_shards(whole / "whole", "train")
    for kind in ("tokens", "ends", "documents"):
        path = shards.path(shards.entries[0], kind)
        content = path.read_bytes()
        try:
            for bit in range(0, (256 if kind == "documents" else 128) * 8, 3):
                changed = bytearray(content)
                changed[bit // 8] ^= 1 << bit % 8
                path.write_bytes(bytes(changed))
                with pytest.raises(PiecemillError, match=str(path)):
                    open_shards(whole / "whole", "train").array(0, kind)
        finally:
            path.write_bytes(content)


@pytest.mark.parametrize("state", [None, [], "x", 5, {}])
def test_a_state_that_is_none_is_refused(whole, state):
    with batches(open_shards(whole / "whole", "train"), window=16, batch_size=8, seed=1) as feed:
        with pytest.raises(LoadError, match="state: "):
            feed.load_state_dict(state)
        good = feed.state_dict()
        for samples in (10**30 * 8, -8, 2**62, "8", None, True, 8.0, float("nan")):
            with pytest.raises(LoadError, match="state: samples="):
                feed.load_state_dict({**good, "samples": samples})


@pytest.mark.parametrize("share", ["1e99999999", "1e-99999999", "inf", "nan", "1/0"])
def test_a_share_without_end_is_refused_at_once(share):
    with pytest.raises(PlanError, match="is not a name and a number above 0"):
        Splits.parse(f"train={share},val=1")


def test_counts_beyond_64_bits_are_no_traceback(whole, tmp_path):
    for name, line in (("brackets", "[" * 50_000), ("count", None)):
        folder = tmp_path / name
        shutil.copytree(whole / "whole", folder)
        path = folder / "train" / "manifest.jsonl"
        lines = path.read_text().splitlines()
        lines[0] = line or json.dumps({**json.loads(lines[0]), "documents": 10**30, "tokens": 2**63 - 1})
        path.write_text("\n".join(lines) + "\n")
        assert not check_shards(folder).sound
        with pytest.raises(PiecemillError, match=r"manifest\.jsonl: was changed or cut"):
            open_shards(folder, "train")
        write_stats(LocalPlace(folder), {})
        with pytest.raises(PiecemillError, match=r"manifest\.jsonl, line 1"):
            open_shards(folder, "train")


READERS = {
    "check": lambda folder: check_shards(folder),
    "describe": lambda folder: describe(folder),
    "batches": lambda folder: next(batches(open_shards(folder, "train"), window=8)),
}
DEVICES = [(name, "check") for name in ("files.jsonl", "stats.json", "tokenizer/tokenizer.json")]
DEVICES += [("plan.json", reader) for reader in READERS] + [("train/manifest.jsonl", reader) for reader in READERS]
DEVICES += [("train/000000-0000.tokens.npy", reader) for reader in READERS]
DEVICES += [("entries/000000-0000.json", "check"), ("train/000000-0000.ends.npy", "describe")]


@pytest.mark.parametrize(("name", "reader"), DEVICES)
def test_a_device_in_place_of_a_file_is_named_and_never_read(whole, tmp_path, name, reader):
    # As is a pipe, which nobody may write to: to open one would wait for ever.
    folder = tmp_path / "folder"
    shutil.copytree(whole / "whole", folder)
    (folder / name).unlink()
    (folder / name).symlink_to("/dev/null")
    try:
        told = str(READERS[reader](folder))
    except PiecemillError as error:
        told = str(error)
    assert re.search(rf"{name}.*expected a regular file", told)


PLANS = [
    ("groups", [1], r"1 is no group of files"),
    ("groups", [{"pattern": None, "weight": "\ud800"}], ".* is no group of files"),
    ("groups", [{"pattern": None, "weight": 10**400}], ".* is no group of files"),
    ("groups", [{"pattern": 7, "weight": 1}], ".* is no group of files"),
    ("groups", {}, "groups is {}; expected list"),
    ("tokenizer", [1], r"tokenizer is \[1\]; expected dict"),
    ("vocab_size", True, "vocab_size is True; expected int"),
]


@pytest.mark.parametrize(("key", "value", "message"), PLANS)
def test_a_plan_of_other_types_is_named_by_whatever_reads_it(whole, tmp_path, key, value, message):
    shutil.copytree(whole / "whole", tmp_path / "out")
    path = tmp_path / "out" / "plan.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    for read in (lambda: open_shards(tmp_path / "out", "train"), lambda: describe(tmp_path / "out")):
        with pytest.raises(ShardError, match=rf"plan\.json: {message}"):
            read()
    assert not check_shards(tmp_path / "out").sound


@pytest.mark.parametrize("group", [2, 2**31 - 1, -1])
def test_a_document_of_a_group_that_the_plan_does_not_have_is_said(whole, tmp_path, group):
    shutil.copytree(whole / "whole", tmp_path / "out")
    path = tmp_path / "out" / "plan.json"
    groups = [{"pattern": None, "weight": 1}, {"pattern": "a", "weight": 2}]
    path.write_text(json.dumps(json.loads(path.read_text()) | {"groups": groups}))
    write_stats(LocalPlace(tmp_path / "out"), {})
    shards = open_shards(tmp_path / "out", "train")
    file = shards.path(shards.entries[0], "documents")
    records = np.load(file)
    records["group"][2] = group
    np.save(file, records)
    with pytest.raises(ShardError, match=rf"plan\.json: 2 groups, and a document is of group {group}"):
        describe(tmp_path / "out")


@pytest.mark.parametrize("file", [2**31 - 1, -1])
def test_a_document_of_a_file_that_there_is_not_is_said_by_the_report(whole, tmp_path, file):
    shutil.copytree(whole / "whole", tmp_path / "out")
    shards = open_shards(tmp_path / "out", "train")
    path = shards.path(shards.entries[0], "documents")
    records = np.load(path)
    records["file"][2] = file
    np.save(path, records)
    with pytest.raises(ShardError, match=rf"documents\.npy: document 2 is of file {file}, and files\.jsonl has"):
        report([tmp_path / "out"], out=tmp_path / "report.html")


def test_ends_that_do_not_rise_are_noticed_by_everything_that_reads_them(whole, tmp_path):
    shutil.copytree(whole / "whole", tmp_path / "out")
    shards = open_shards(tmp_path / "out", "train")
    file = shards.path(shards.entries[0], "ends")
    ends = np.load(file)
    for wrong in (2**62, -(2**63), int(ends[0]) - 1):
        np.save(file, np.concatenate([ends[:1], [wrong], ends[2:]]))
        changed = open_shards(tmp_path / "out", "train")
        readers = [
            lambda changed=changed: list(changed),
            lambda changed=changed: changed[1],
            lambda changed=changed: Windows(changed, window=16, pack=False),
            lambda changed=changed: Windows(changed, window=16, group=0),
        ]
        for read in readers:
            with pytest.raises(ShardError, match=r"ends\.npy: its ends do not rise to"):
                read()


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def cut_lines(path: Path) -> None:
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))


def replaced_by(path: Path) -> Path:
    """The entry whose shards were written again without the copies of earlier documents."""
    return path.with_name(path.name.replace(".unique", ""))


DAMAGE = {
    "a manifest without its last shard": ("train/manifest.jsonl", cut_lines),
    "an empty manifest": ("train/manifest.jsonl", lambda path: cut(path, 0)),
    "no manifest": ("train/manifest.jsonl", Path.unlink),
    "another eos": ("plan.json", lambda path: path.write_text(path.read_text().replace('"eos": 0', '"eos": 5'))),
    "empty statistics": ("stats.json", lambda path: cut(path, 0)),
    "a shard that was cut": ("train/*.tokens.npy", lambda path: cut(path, 200)),
    "a lost shard": ("train/*.ends.npy", Path.unlink),
    "an entry that was cut": ("entries/*-0001*.json", lambda path: cut(path, 100)),
    "an entry of a copy that was cut": ("entries/*.unique.json", lambda path: cut(path, 100)),
    "an entry that was replaced, cut": ("entries/*.unique.json", lambda path: cut(replaced_by(path), 100)),
    "a lost entry": ("entries/*-0001*.json", Path.unlink),
    "an older tokenizer": ("tokenizer/tokenizer.json", lambda path: cut(path, 100)),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_complete_folder_that_was_damaged_is_never_read_as_a_smaller_one_and_can_be_made_again(tmp_path, damage):
    write_jsonl(tmp_path / "a.jsonl", [*texts(40), *texts(3)])
    options = {"out": tmp_path / "out", "splits": "train=80,val=20", "dedup": "exact", **SMALL}
    again = partial(prepare, tmp_path / "a.jsonl", small_tokenizer(), **options)
    again()
    whole = content(tmp_path / "out")
    name, break_it = DAMAGE[damage]
    break_it(next((tmp_path / "out").glob(name)))
    assert not check_shards(tmp_path / "out").sound
    beside = name.startswith(("tokenizer", "entries"))  # what the batches do not need
    reads = [] if beside else [lambda: list(open_shards(tmp_path / "out", "train"))]
    for read in (*reads, again):
        with pytest.raises(PiecemillError, match=r"force=True|same eos"):
            read()
    again(force=True)
    assert content(tmp_path / "out") == whole


@pytest.mark.parametrize("stats", ["[]", "{}", '{"groups": []}', "[" * 50_000, '{"xxh3": NaN}'])
def test_stats_that_were_changed_are_no_summary(tmp_path, stats):
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n')
    prepare(tmp_path / "a.jsonl", small_tokenizer(), out=tmp_path / "out")
    (tmp_path / "out" / "stats.json").write_text(stats)
    for read in (
        lambda: prepare(tmp_path / "a.jsonl", small_tokenizer(), out=tmp_path / "out"),
        lambda: describe(tmp_path / "out"),
    ):
        with pytest.raises(ShardError, match=r"stats\.json: "):
            read()


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"path": 5, "bytes": 1}', '{"path": "a"}', "[" * 50_000, None])
def test_a_list_of_source_files_that_was_changed_is_named_by_the_report(whole, tmp_path, content):
    shutil.copytree(whole / "whole", tmp_path / "out")
    files = tmp_path / "out" / "files.jsonl"
    files.unlink() if content is None else files.write_text(content)
    with pytest.raises(ShardError, match=r"files\.jsonl: not the list of source files that was written"):
        report([tmp_path / "out"], out=tmp_path / "report.html")


@pytest.mark.parametrize("changed", ["\\ud800", "/../../x", "", "0123456789ABCDEF"])
def test_a_checksum_of_other_characters_is_a_damaged_manifest(whole, tmp_path, changed):
    shutil.copytree(whole / "whole", tmp_path / "out")
    manifest = tmp_path / "out" / "train" / "manifest.jsonl"
    xxh3 = json.loads(manifest.read_text().splitlines()[0])["files"]["ends"]["xxh3"]
    manifest.write_text(manifest.read_text().replace(xxh3, changed))
    with pytest.raises(ShardError, match=r"manifest\.jsonl"):
        _ = open_shards(tmp_path / "out", "train").identity


@pytest.mark.parametrize("content", ["{}", '{"stages": 5}', '{"stages": {"read": "x"}, "seconds": 1}', "[]"])
def test_a_timing_that_was_changed_is_named_by_the_report(whole, tmp_path, content):
    shutil.copytree(whole / "whole", tmp_path / "out")
    (tmp_path / "out" / "timing.json").write_text(content)
    with pytest.raises(ShardError, match=r"timing\.json: .* Delete it: it is not needed"):
        report([tmp_path / "out"], out=tmp_path / "report.html")


SMALL = {"block_bytes": "1KiB", "piece_bytes": "2KiB", "threads": 1}

FILES = [
    ("[1]", r"line 1 of its list of source files is b'\[1\]'; expected a path and bytes"),
    ('{"path": null, "bytes": 1}', "line 1 of its list of source files"),
    ('{"path": "a.jsonl", "bytes": null}', "line 1 of its list of source files"),
    ("[" * 50_000, "line 1 of its list of source files"),
]


@pytest.mark.parametrize(("line", "message"), FILES)
def test_a_list_of_source_files_that_was_changed_is_named_when_a_run_goes_on(begun, line, message):
    (begun / "out" / "files.jsonl").write_text(f"{line}\n")
    with pytest.raises(SourceError, match=message):
        prepare(begun / "a.jsonl", small_tokenizer(), out=begun / "out", **SMALL)


@pytest.mark.parametrize("shape", [b"((((", b"(7,)"])
def test_times_that_were_changed_are_named_when_a_run_goes_on(begun, shape):
    path = begun / "out" / ".sources.npy"
    content = path.read_bytes()
    path.write_bytes(content.replace(b"(1,)", shape))
    with pytest.raises(ShardError, match=r"\.sources\.npy: cannot be read"):
        prepare(begun / "a.jsonl", small_tokenizer(), out=begun / "out", **SMALL)


def test_an_entry_that_was_changed_is_named_with_its_folder(begun):
    (entry,) = (begun / "out" / "entries").glob("*.json")
    entry.write_text("{}")
    with pytest.raises(ShardError, match=f"{entry}: was changed or cut"):
        describe(begun / "out")


@pytest.fixture
def begun(tmp_path) -> Path:
    """A run that was stopped after its first piece."""
    write_jsonl(tmp_path / "a.jsonl", texts(40))
    with failing_after(1, OSError(5, "stop")), pytest.raises(PiecemillError):
        prepare(tmp_path / "a.jsonl", small_tokenizer(), out=tmp_path / "out", **SMALL)
    return tmp_path


def test_reading_the_entries_of_a_run_to_resume_it_holds_a_few_of_them(tmp_path):
    # Each lists some kilobytes of skipped documents: held whole, they would be more than 20 MB.
    (tmp_path / ENTRIES).mkdir()
    tally = {**TALLY, "skipped": [[f"corpus/{n}.txt", "invalid UTF-8"] for n in range(50)]}
    for task in range(3_000):
        entry = Entry(task, 0, True, "0" * 16, "byte", tally, {}, {})
        (tmp_path / entry.name).write_bytes(entry.to_json())
    # In a process of its own: threads of other tests would count too.
    code = f"""
import tracemalloc
from pathlib import Path
from piecemill.files import LocalPlace
from piecemill.shards.manifest import whole_entries
tracemalloc.start()
print(sum(1 for _ in whole_entries(LocalPlace(Path({str(tmp_path)!r})), [])), tracemalloc.get_traced_memory()[1])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    count, peak = map(int, done.stdout.split())
    assert count == 3_000
    assert peak < 8_000_000
