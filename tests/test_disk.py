"""A disk that is full or read-only: said before the work where it can be, and else with what is kept."""

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import command
import piecemill
from piecemill import files
from piecemill.errors import PiecemillError
from piecemill.shards import writer
from pretraining import SMALL, small_shards

TEXT = "the cat sat on the mat, and the other cat sat on the other mat.\n" * 40


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """A corpus, a tokenizer, shards, interactions and items."""
    folder = tmp_path_factory.mktemp("given")
    (folder / "a.txt").write_text(TEXT)
    tok = piecemill.train_bpe([TEXT], vocab_size=280)
    tok.save(folder / "tok")
    piecemill.prepare([TEXT] * 9, tok, out=folder / "shards")
    rows = [f"u{user},i{(user * step) % 7},{step}" for user in range(9) for step in range(1, 8)]
    (folder / "h.csv").write_text("\n".join(["user,item,time", *rows]))
    (folder / "items.csv").write_text("\n".join(["item,kind", *(f"i{n},{n % 3}" for n in range(7))]))
    return folder


@pytest.mark.parametrize(
    ("step", "error"), [("pwrite", OSError(errno.ENOSPC, "full")), ("unlink", KeyboardInterrupt())]
)
def test_a_lock_is_free_again_after_an_error_or_an_interrupt(tmp_path, monkeypatch, step, error):
    place = files.LocalPlace(tmp_path / "out")

    def fail(*_, **__):
        raise error

    def lock():
        with files.locked(place):
            pass

    with monkeypatch.context() as patch:
        patch.setattr(os, step, fail)
        with pytest.raises(type(error)):
            lock()
    lock()


def commands(given, out):
    """Every command that writes, as words."""
    yield "train", given / "a.txt", "--vocab-size", 280, "--out", out
    yield "train", given / "a.txt", "--save-counts", out
    yield "prepare", given / "a.txt", "--tokenizer", given / "tok", "--out", out
    yield "export", given / "shards", "--window", 8, "--out", out
    yield "pretrain", given / "shards", "--steps", 1, "--window", 8, "--out", out
    yield "demo", "--out", out
    yield "actions", "split", given / "h.csv", "--out", out
    yield "actions", "features", given / "items.csv", "--columns", "kind", "--out", out
    yield "actions", "train", given / "h.csv", "--items", given / "items.csv", "--vocab-size", 20, "--out", out


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (errno.ENOSPC, "No space left on device (FOLDER, SIZE free). Nothing was done. Free some space, or"),
        (errno.EROFS, "Read-only file system (FOLDER). Nothing was done. Remount it for writing, or"),
        (errno.EACCES, "Permission denied (FOLDER). Nothing was done. Get the right to write there, or"),
    ],
)
def test_a_place_that_cannot_be_written_is_refused_before_the_work(given, tmp_path, monkeypatch, capsys, number, says):
    from piecemill import cli

    def refuse(_):
        raise OSError(number, os.strerror(number))

    pytest.importorskip("torch")
    monkeypatch.setattr(files, "_open_part", refuse)
    monkeypatch.setattr(files.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10**9, 10**9, 0))
    says = says.replace("FOLDER", str(tmp_path)).replace("SIZE", "0 B")
    for words in commands(given, tmp_path / "new/out"):
        monkeypatch.setattr(sys, "argv", ["piecemill", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            cli.run()
        told = capsys.readouterr().err.splitlines()[-1]
        assert end.value.code == 1, words
        assert told.startswith(f"piecemill: {tmp_path / 'new/out'}"), words
        assert told.endswith(f"cannot be written: {says} choose another place."), words
        assert not (tmp_path / "new").exists(), words


@pytest.mark.parametrize("unnamed", [True, False])
def test_nothing_is_left_where_it_was_tried(tmp_path, monkeypatch, unnamed):
    if not unnamed:
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    files.check_writable(tmp_path / "a/b/c")
    files.check_writable(tmp_path)
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").write_text("")
    files.check_writable(tmp_path / "file")  # which a caller may replace
    with pytest.raises(PiecemillError, match=r"file/x: .*file is a file, expected a folder"):
        files.check_writable(tmp_path / "file/x")


KILLED = """
import os, signal, sys
from pathlib import Path
from piecemill.files import new_file
with new_file(Path(sys.argv[1])) as file:
    file.write(bytes(1 << 20))
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_process_that_is_killed_while_it_writes_a_file_leaves_nothing(tmp_path):
    try:
        os.close(os.open(tmp_path, os.O_TMPFILE | os.O_WRONLY))
    except (AttributeError, OSError):
        pytest.skip("this system has no files without a name")
    (tmp_path / "old").write_text("old")
    for name in ("new", "old"):
        done = subprocess.run([sys.executable, "-c", KILLED, tmp_path / name])
        assert done.returncode == -9
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
    assert (tmp_path / "old").read_text() == "old"


@pytest.mark.parametrize("unnamed", [True, False])
def test_a_new_file_is_there_when_it_is_complete_and_gone_after_an_error(tmp_path, monkeypatch, unnamed):
    if not unnamed:
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    (tmp_path / "plain").write_text("")
    for content in (b"one", b"other"):
        files.replace_file(tmp_path / "file", content)
        assert (tmp_path / "file").read_bytes() == content
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "plain").stat().st_mode
    with pytest.raises(TypeError), files.new_file(tmp_path / "file") as file:
        file.write("text")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "plain"]
    assert (tmp_path / "file").read_bytes() == b"other"


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize(
    ("old", "new"), [("file", "file"), ("folder", "folder"), ("file", "folder"), ("folder", "file")]
)
def test_a_file_or_folder_is_replaced_by_a_complete_one_or_not_at_all(tmp_path, monkeypatch, at_once, old, new):
    def make(path, kind):
        path = path if kind == "file" else path / "inside"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{kind} {path == target or path.parent == target}")
        return path

    if at_once and sys.platform != "linux":
        pytest.skip("only Linux swaps two names in one step")
    target = tmp_path / "target"
    made = make(target, old)
    with pytest.raises(ZeroDivisionError), files.replaced(target) as part:
        raise ZeroDivisionError(make(part, new))
    assert made.read_text() == f"{old} True"
    if at_once:
        monkeypatch.setattr(os, "rename", None)  # for an instant there would be nothing
    else:
        monkeypatch.setattr(files, "_exchange", lambda one, other: False)
    with files.replaced(target) as part:
        make(part, new)
    assert (target if new == "file" else target / "inside").read_text() == f"{new} False"
    assert list(tmp_path.iterdir()) == [target]


def test_an_interrupt_while_the_old_file_is_deleted_leaves_nothing_beside_the_new_one(tmp_path, monkeypatch):
    target, unlink, calls = tmp_path / "target", Path.unlink, []

    def interrupted(path, **more):
        calls.append(path)
        if len(calls) == 1:
            raise KeyboardInterrupt
        unlink(path, **more)

    target.write_text("old")
    monkeypatch.setattr(Path, "unlink", interrupted)
    with pytest.raises(KeyboardInterrupt), files.replaced(target) as part:
        part.write_text("new")
    assert target.read_text() == "new"
    assert list(tmp_path.iterdir()) == [target]


def on_a_disk_of_its_own(folder, *lines):
    """The result of these shell commands, with a small file system mounted at `folder`; they see it, nobody else."""
    mounted = ["unshare", "-rm", "sh", "-ec", f"mount -t tmpfs none {folder}; mount -o remount,size=1m {folder}"]
    if shutil.which("unshare") is None or subprocess.run(mounted, capture_output=True).returncode:
        pytest.skip("no right to mount a small file system here")
    line = "\n".join([f"mount -t tmpfs none {folder}", *lines])
    return subprocess.run(
        ["unshare", "-rm", "sh", "-ec", line], env=command.environment(), capture_output=True, text=True
    )


def prepare_command(given, out, *more):
    return " ".join(
        map(str, (command.PIECEMILL, "prepare", given / "a.txt", "--tokenizer", given / "tok", "--out", out, *more))
    )


@pytest.mark.parametrize("options", ["ro", "size=64k"])
def test_a_real_disk_without_room_or_rights(given, tmp_path, options):
    fill = f"cat /dev/zero > {tmp_path}/fill 2> /dev/null || true" if "size" in options else ""
    remount = f"mount -o remount,{options} {tmp_path}"
    done = on_a_disk_of_its_own(tmp_path, remount, fill, prepare_command(given, tmp_path / "out"))
    assert done.returncode == 1
    what = "Read-only file system" if options == "ro" else "No space left on device"
    assert f"{tmp_path / 'out'}: cannot be written: {what} ({tmp_path}" in done.stderr


def test_a_complete_folder_on_a_read_only_disk_is_complete(given, tmp_path):
    prepare = prepare_command(given, tmp_path / "out", "--dedup", "exact", "--quiet")
    touch, read_only = f"touch {given / 'a.txt'}", f"mount -o remount,ro {tmp_path}"
    done = on_a_disk_of_its_own(tmp_path, prepare, read_only, prepare, touch, prepare, f"{prepare} --force")
    assert done.stdout.count("is complete: ") == 2, done.stderr
    assert done.returncode == 1, "there is nothing to replace it with"
    assert f"{tmp_path / 'out'}: cannot be written: Read-only file system" in done.stderr


def test_a_run_whose_disk_fills_up_says_which_checkpoint_is_whole(tmp_path, monkeypatch):
    pytest.importorskip("torch")
    from safetensors import SafetensorError

    from piecemill.pretraining import checkpoint

    shards = small_shards(tmp_path / "shards")
    options = {**SMALL, "out": tmp_path / "run", "steps": 4, "checkpoint_every": 2}
    save_file = checkpoint.save_file

    def full(tensors, path, *metadata):
        if "step-00000004" in str(path):
            raise SafetensorError("I/O error: No space left on device (os error 28)")
        save_file(tensors, path, *metadata)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save_file", full)
        with pytest.raises(PiecemillError, match=r"No space left.*step-00000002 is whole: free some space"):
            piecemill.pretrain(shards, **options)
    assert [folder.name for folder in Path(tmp_path / "run/checkpoints").iterdir()] == ["step-00000002"]
    assert piecemill.pretrain(shards, **options).resumed


def test_what_is_on_the_disk_is_dropped_from_the_page_cache_in_steps(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_DROP_BYTES", 1_000)
    dropped = []
    monkeypatch.setattr(files.os, "posix_fadvise", lambda descriptor, *rest: dropped.append(rest))
    with open(tmp_path / "file", "wb", buffering=0) as file:
        for offset in range(0, 3_000, 300):
            file.write(b"x" * 300)
            files.write_behind(file, offset, 300)
    assert dropped == [(0, offset, os.POSIX_FADV_DONTNEED) for offset in (900, 1_800, 2_700)]


def test_a_system_that_cannot_start_writing_early_writes_the_same(tmp_path, monkeypatch):
    class Nothing:
        def __init__(self, *_, **__): ...

    monkeypatch.setattr(files.ctypes, "CDLL", Nothing)
    monkeypatch.delattr(files.os, "posix_fadvise")
    monkeypatch.setattr(files, "_DROP_BYTES", 1)
    with open(tmp_path / "file", "wb") as file:
        file.write(b"text")
        files.write_behind(file, 0, 4)
    assert (tmp_path / "file").read_bytes() == b"text"


def test_only_shards_that_stay_on_this_disk_are_written_behind(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(writer, "write_behind", lambda *_: asked.append(1))
    tokenizer = piecemill.train_bpe([TEXT], vocab_size=280)
    piecemill.prepare([TEXT], tokenizer, out=tmp_path / "here")
    assert asked
    asked.clear()
    piecemill.prepare([TEXT], tokenizer, out="memory://written-behind")
    assert not asked
