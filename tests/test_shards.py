"""Shards: what is written is read back, and a run that stops anywhere goes on to the same bytes."""

import itertools
import json
import os
import pickle
import shutil
import subprocess
import sys

import numpy as np
import pytest

import piecemill as pm
from piecemill._core import Xxh3
from piecemill.errors import ShardError
from piecemill.shards import RECORD, ShardWriter, manifest, token_dtype
from piecemill.shards.format import HEADER_BYTES, KINDS, file_name, header, part_name
from piecemill.shards.reader import open_shards
from piecemill.shards.writer import _Part
from prepared import block, prepare_folder
from vocabularies import NASTY, library_texts, tokenizer

U2 = np.dtype("uint16")
TEXTS = [text for text in (*NASTY, "one", "two", "three", "four", "five", "six") if text]


def made_up_block(number, documents=3):
    """A small block whose every byte depends on its number."""
    rng = np.random.default_rng(number)
    lengths = rng.integers(0, 9, documents)
    records = np.zeros(documents, RECORD)
    records["hash_low"] = rng.integers(0, 1 << 60, documents)
    records["bytes"] = lengths * 3
    return rng.integers(0, 999, lengths.sum()).astype(U2), np.cumsum(lengths), records


def options(**more):
    return {"dtype": U2, "shard_tokens": 25, **more}


def snapshot(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


# The format


def test_the_hash_is_xxh3_64_in_pieces_or_at_once():
    # The published xxh3-64 of nothing, with seed 0.
    assert Xxh3().hexdigest() == "2d06800538d394c2"
    data = np.arange(100_000, dtype=np.uint32).view(np.uint8)
    whole, pieces = Xxh3(), Xxh3()
    whole.update(data)
    for piece in np.array_split(data, 77):
        pieces.update(piece)
    assert whole.hexdigest() == pieces.hexdigest() != Xxh3().hexdigest()


@pytest.mark.parametrize(("kind", "dtype"), [("tokens", U2), ("tokens", "u4"), ("ends", "i8"), ("documents", RECORD)])
@pytest.mark.parametrize("count", [0, 1, 10**12])
def test_headers_have_one_length_and_numpy_reads_them(tmp_path, kind, dtype, count):
    head = header(kind, np.dtype(dtype), count)
    assert len(head) == HEADER_BYTES[kind]
    (tmp_path / "a.npy").write_bytes(head)
    with open(tmp_path / "a.npy", "rb") as file:
        assert np.lib.format.read_magic(file) == (1, 0)
        assert np.lib.format.read_array_header_1_0(file) == ((count,), False, np.dtype(dtype))
        assert file.tell() == len(head)


def test_ids_are_narrow_where_the_vocabulary_fits():
    assert [token_dtype(n).name for n in (300, 65_536, 65_537)] == ["uint16", "uint16", "uint32"]


# Writing


def test_numpy_reads_what_was_appended(tmp_path):
    writer = ShardWriter(tmp_path, **options(shard_tokens=10**6))
    blocks = [made_up_block(i) for i in range(4)]
    for each in blocks:
        writer.append(*each)
    writer.finish()
    tokens, ends, documents = (np.load(tmp_path / file_name(0, kind)) for kind in KINDS)
    assert tokens.tolist() == np.concatenate([ids for ids, _, _ in blocks]).tolist()
    assert np.diff(ends, prepend=0).tolist() == [n for _, e, _ in blocks for n in np.diff(e, prepend=0)]
    assert documents.tobytes() == b"".join(records.tobytes() for _, _, records in blocks)
    assert sorted(os.listdir(tmp_path)) == [*sorted(file_name(0, kind) for kind in KINDS), "manifest.jsonl"]
    (entry,) = manifest.read_manifest(tmp_path)
    assert (entry.documents, entry.tokens, entry.text_bytes) == (12, len(tokens), documents["bytes"].sum())


def test_a_shard_ends_after_the_block_that_fills_it(tmp_path):
    for name, limits in {
        "tokens": {"shard_tokens": 5},
        "documents": {"shard_tokens": 10**6, "shard_documents": 4},
    }.items():
        writer = ShardWriter(tmp_path / name, dtype=U2, **limits)
        for _ in range(5):
            writer.append(np.zeros(4, U2), np.array([1, 4]), np.zeros(2, RECORD))
        writer.finish()
        assert [entry.tokens for entry in manifest.read_manifest(tmp_path / name)] == [8, 8, 4]


def test_the_files_do_not_depend_on_who_calls_rotate(tmp_path):
    for name in ("asked", "unasked"):
        writer = ShardWriter(tmp_path / name, **options())
        for i in range(12):
            writer.append(*made_up_block(i))
            if name == "asked":
                writer.rotate_if_full()
        writer.finish()
        writer.finish()  # nothing is left, so nothing happens
    assert snapshot(tmp_path / "asked") == snapshot(tmp_path / "unasked")
    assert len(manifest.read_manifest(tmp_path / "asked")) > 2


def test_blocks_without_documents_and_documents_without_tokens(tmp_path):
    writer = ShardWriter(tmp_path, **options())
    nothing = (np.zeros(0, U2), np.zeros(0, np.int64), np.zeros(0, RECORD))
    writer.append(*nothing)
    writer.finish()
    assert os.listdir(tmp_path) == []
    writer.append(np.zeros(0, U2), np.zeros(2, np.int64), np.zeros(2, RECORD))
    writer.append(*nothing)
    writer.finish()
    assert np.load(tmp_path / file_name(0, "ends")).tolist() == [0, 0]


@pytest.mark.parametrize(
    ("ids", "ends", "records", "says"),
    [
        (np.zeros(3, "u4"), [3], 1, "uint32"),
        (np.zeros(3, U2), [2], 1, "the last is 2"),
        (np.zeros(3, U2), [4, 3], 2, "must rise"),
        (np.zeros(3, U2), [-1, 3], 2, "must rise"),
        (np.zeros(3, U2), [1, 3], 1, "2 ends and 1 records"),
        (np.zeros(3, U2), [], 0, "the last is 0"),
    ],
)
def test_a_block_that_does_not_fit_together_is_refused(tmp_path, ids, ends, records, says):
    writer = ShardWriter(tmp_path, **options())
    before = writer.state()
    with pytest.raises(ShardError, match=says):
        writer.append(ids, np.array(ends, np.int64), np.zeros(records, RECORD))
    assert writer.state() == before


def test_a_new_writer_refuses_a_folder_with_shards(tmp_path):
    writer = ShardWriter(tmp_path, **options())
    writer.append(*made_up_block(0))
    with pytest.raises(ShardError, match=r"already holds \.00000"):
        ShardWriter(tmp_path, **options())
    writer.finish()
    with pytest.raises(ShardError, match=r"already holds 00000"):
        ShardWriter(tmp_path, **options())


def test_a_write_that_fails_leaves_the_state_as_it_was(tmp_path, monkeypatch):
    plain, failing = ShardWriter(tmp_path / "plain", **options()), ShardWriter(tmp_path / "failing", **options())
    for i in range(2):
        plain.append(*made_up_block(i))
    failing.append(*made_up_block(0))
    before = failing.state()
    # The third file fails after the first two have taken the block.
    monkeypatch.setattr(failing._parts["documents"], "write", lambda data: (_ for _ in ()).throw(OSError(28, "full")))
    with pytest.raises(OSError, match="full"):
        failing.append(*made_up_block(7, documents=6))
    assert failing.state() == before
    monkeypatch.undo()
    failing.append(*made_up_block(1))
    plain.finish()
    failing.finish()
    assert snapshot(tmp_path / "plain") == snapshot(tmp_path / "failing")


# Stopping and going on


class Killed(BaseException):
    """The process ends here."""


def run(folder, blocks, journal, **limits):
    """As `prepare` does: append, note the state, rotate; go on from the last state that the files hold."""
    for at in range(len(journal), -1, -1):
        if at == 0:
            start = {**ShardWriter(folder.parent / f"{folder.name}-blank", **limits).state()}
            writer = ShardWriter.resume(folder, start, **limits)
            break
        try:
            writer = ShardWriter.resume(folder, json.loads(journal[at - 1]), **limits)
            break
        except ShardError:
            continue
    del journal[at:]
    try:
        for each in blocks[at:]:
            writer.append(*each)
            journal.append(json.dumps(writer.state()))
            writer.rotate_if_full()
        writer.finish()
    finally:
        writer.close()


def kill_at(monkeypatch, step, *, after):
    """Let the process end before or after its step-th change to the disk."""
    seen = [0]
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # a step, but a slow one to do for real
    steps = [(os, name) for name in ("rename", "replace", "fsync", "unlink")]
    for owner, name in [*steps, (_Part, "write"), (_Part, "close")]:
        real = getattr(owner, name)

        def stepping(*arguments, real=real):
            seen[0] += 1
            this = seen[0] == step  # asked now: a step may be made of others
            if this and not after:
                raise Killed
            real(*arguments)
            if this:
                raise Killed

        monkeypatch.setattr(owner, name, stepping)


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    folder = tmp_path_factory.mktemp("straight")
    blocks = [made_up_block(i) for i in range(9)]
    run(folder, blocks, [], **options())
    assert len(manifest.read_manifest(folder)) >= 3
    return blocks, snapshot(folder)


# A process that ends closes its files; one that only pretends to leaves them to the collector.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_stop_at_any_step_goes_on_to_the_same_bytes(tmp_path, monkeypatch, straight, after):
    blocks, want = straight
    step = 0
    while True:
        step += 1
        folder, journal = tmp_path / f"{step}", []
        with monkeypatch.context() as patch:
            kill_at(patch, step, after=after)
            try:
                run(folder, blocks, journal, **options())
            except Killed:
                pass
            else:
                break
        # and again and again, each time a little later, until a run comes through
        for second in itertools.count(1):
            with monkeypatch.context() as patch:
                kill_at(patch, second, after=after)
                try:
                    run(folder, blocks, journal, **options())
                    break
                except Killed:
                    continue
        assert snapshot(folder) == want, f"stopped at step {step}"
    assert step > 30


def test_every_state_of_a_finished_run_can_be_gone_back_to(tmp_path, straight):
    blocks, want = straight
    folder, journal = tmp_path / "a", []
    run(folder, blocks, journal, **options())
    for at in range(len(journal), 0, -1):  # backwards, so each goes back from a finished run
        kept = journal[:at]
        state = json.loads(kept[-1])
        writer = ShardWriter.resume(folder, state, **options())
        assert writer.state() == state
        assert len(manifest.read_manifest(folder)) == state["shard"]
        writer.close()
        run(folder, blocks, kept, **options())
        assert snapshot(folder) == want


def test_going_back_leaves_nothing_of_what_came_later(tmp_path, straight):
    blocks, _ = straight
    writer, states = ShardWriter(tmp_path / "all", **options()), []
    for at, each in enumerate(blocks, 1):
        writer.append(*each)
        states.append((at, writer.state()))
        if writer.rotate_if_full():
            states.append((at, writer.state()))  # of a shard with nothing in it yet
    writer.finish()
    for number, (at, state) in enumerate(states):
        folder = shutil.copytree(tmp_path / "all", tmp_path / f"back-{number}")
        ShardWriter.resume(folder, state, **options()).finish()
        run(tmp_path / f"straight-{number}", blocks[:at], [], **options())
        assert snapshot(folder) == snapshot(tmp_path / f"straight-{number}"), state
    assert any(state["documents"] == 0 for _, state in states)


def test_a_manifest_line_cut_by_a_power_loss_is_written_again(tmp_path, straight):
    blocks, want = straight
    for cut in (1, 40, 200):
        folder, journal = tmp_path / f"{cut}", []
        run(folder, blocks, journal, **options())
        content = (folder / "manifest.jsonl").read_bytes()
        (folder / "manifest.jsonl").write_bytes(content[:-cut])
        run(folder, blocks, journal, **options())
        assert snapshot(folder) == want


@pytest.mark.parametrize("damage", ["cut", "zeros", "gone"])
@pytest.mark.parametrize("kind", KINDS)
def test_pages_lost_after_the_journal_line_send_the_run_back_to_an_earlier_state(tmp_path, straight, damage, kind):
    blocks, _ = straight
    limits = options(shard_tokens=10**6)
    folder, journal = tmp_path / "a", []
    writer = ShardWriter(folder, **limits)
    for each in blocks[:6]:
        writer.append(*each)
        journal.append(json.dumps(writer.state()))
    writer.close()
    part = folder / part_name(0, kind)
    data = part.read_bytes()
    third = json.loads(journal[2])["files"][kind]["bytes"]
    if damage == "cut":
        part.write_bytes(data[: third + 1])
    elif damage == "zeros":
        part.write_bytes(data[: third + 1] + bytes(len(data) - third - 1))
    else:
        part.unlink()
    before = snapshot(folder)
    with pytest.raises(ShardError):
        ShardWriter.resume(folder, json.loads(journal[-1]), **limits)
    assert snapshot(folder) == before  # refused, and nothing changed
    run(folder, blocks, journal, **limits)
    straightforward = tmp_path / "b"
    run(straightforward, blocks, [], **limits)
    assert snapshot(folder) == snapshot(straightforward)


def test_resume_refuses_where_an_earlier_shard_is_missing_or_cut(tmp_path, straight):
    blocks, _ = straight
    folder, journal = tmp_path / "a", []
    run(folder, blocks, journal, **options())
    path = folder / file_name(0, "ends")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ShardError, match=r"00000\.ends\.npy has .* bytes; the manifest says"):
        ShardWriter.resume(folder, json.loads(journal[-1]), **options())
    path.unlink()
    with pytest.raises(ShardError, match=r"00000\.ends\.npy is missing"):
        ShardWriter.resume(folder, json.loads(journal[-1]), **options())


# Reading


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    tok = tokenizer("gpt2")
    splits = {"train": TEXTS, "val": list(library_texts(3)), "test": []}
    return prepare_folder(tmp_path_factory.mktemp("prepared") / "shards", splits, tok)


def test_documents_come_back_as_they_were_encoded(folder):
    tok = tokenizer("gpt2")
    train = pm.open_shards(folder, "train")
    want = [[*tok.encode(text).tolist(), 0] for text in TEXTS]
    assert len(train.entries) > 2
    assert [row.tolist() for row in train] == want
    assert [train.document(i).tolist() for i in range(len(train))] == want
    assert (len(train), train.tokens) == (len(TEXTS), sum(map(len, want)))
    assert train.text_bytes == sum(len(text.encode()) for text in TEXTS)
    assert (train.splits, train.vocab_size, train.dtype) == (("train", "val", "test"), tok.vocab_size, U2)
    assert train.tokenizer().decode(train.document(1)[:-1]) == TEXTS[1]
    assert len(open_shards(folder, "test")) == open_shards(folder, "test").tokens == 0
    assert list(open_shards(folder, "test")) == []
    assert [row.tolist() for row in pickle.loads(pickle.dumps(train))] == want


def test_documents_are_read_only_views_of_the_file(folder):
    document = open_shards(folder, "val").document(0)
    assert not document.flags.owndata
    with pytest.raises(ValueError, match="read-only"):
        document[0] = 1


@pytest.mark.parametrize("index", [-1, len(TEXTS), 10**12])
def test_a_document_that_is_not_there_is_an_index_error(folder, index):
    with pytest.raises(IndexError, match=f"document {index} "):
        open_shards(folder, "train").document(index)


def test_many_shards_are_read_through_few_maps(folder, monkeypatch):
    monkeypatch.setattr("piecemill.shards.reader._OPEN_MAPS", 2)
    train = open_shards(folder, "train")
    first = train.document(0)
    kept = first.tolist()
    rows = [train.document(i).tolist() for i in range(len(train))]
    assert len(train._open) == 2
    assert rows[0] == kept == first.tolist()  # the view outlives its place in the cache


def test_opening_says_what_is_wrong_with_the_folder(folder, tmp_path):
    with pytest.raises(ShardError, match="this folder has train, val, test"):
        open_shards(folder)
    with pytest.raises(ShardError, match="split='valid'; this folder has train, val, test"):
        open_shards(folder, "valid")
    with pytest.raises(ShardError, match=r"plan\.json is missing"):
        open_shards(tmp_path)
    copy = prepare_folder(tmp_path / "copy", {"all": TEXTS}, tokenizer("gpt2"))
    assert len(open_shards(copy)) == len(TEXTS)
    (copy / "stats.json").unlink()
    with pytest.raises(ShardError, match="not complete"):
        open_shards(copy)
    assert len(open_shards(copy, unfinished=True)) == len(TEXTS)
    plan = json.loads((copy / "plan.json").read_text())
    (copy / "plan.json").write_text(json.dumps({**plan, "format": 2}))
    with pytest.raises(ShardError, match="format 2; this version of Piecemill reads format 1"):
        open_shards(copy, unfinished=True)


def test_a_shard_that_changed_is_refused_when_it_is_first_used(tmp_path):
    copy = prepare_folder(tmp_path / "copy", {"all": TEXTS}, tokenizer("gpt2"))
    path = copy / "all" / file_name(1, "tokens")
    data = path.read_bytes()
    path.write_bytes(data + b"\0")
    shards = open_shards(copy)
    shards.document(0)
    last = len(shards) - 1
    with pytest.raises(ShardError, match=r"00001\.tokens\.npy has .* the manifest says .*piecemill check"):
        shards.document(int(shards.document_ends[0]))
    path.write_bytes(data.replace(b"<u2", b"<i2"))
    with pytest.raises(ShardError, match="int16; expected"):
        shards.document(int(shards.document_ends[0]))
    path.write_bytes(b"x" + data[1:])
    with pytest.raises(ShardError, match="header is damaged"):
        shards.document(int(shards.document_ends[0]))
    path.unlink()
    with pytest.raises(ShardError, match="is missing, but the manifest lists it"):
        shards.document(int(shards.document_ends[0]))
    assert shards.document(last) is not None


def test_reading_imports_numpy_and_nothing_heavier(folder):
    code = (
        "import sys, piecemill as pm\n"
        f"shards = pm.open_shards({str(folder)!r}, 'train'); shards.document(0)\n"
        "print([name for name in ('pyarrow', 'tokenizers', 'cyclopts', 'rich', 'torch', 'zstandard')"
        " if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


def test_blocks_of_a_prepared_folder_hold_bos_and_eos():
    tok = tokenizer("gpt2")
    ids, ends, records = block(["a", "bc"], tok, bos=0, eos=0)
    assert ids.tolist() == [0, *tok.encode("a"), 0, 0, *tok.encode("bc"), 0]
    assert ends[-1] == len(ids)
    assert records["bytes"].tolist() == [1, 2]
