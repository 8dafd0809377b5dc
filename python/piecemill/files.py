"""Atomic file writes, locks, JSON, checksums, and places.

A `Place` is one folder of files, on a file system (`LocalPlace`, here) or in an object store (`piecemill.objects`).
Its writes are atomic (a name appears with all of its content or not at all), so writers need no lock for correctness.

Start with `open_place`, `replace_file` and `new_file`.
"""

import ctypes
import errno
import fcntl
import io
import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO, Protocol
from urllib.parse import unquote, urlsplit

import numpy as np
from numpy.typing import NDArray

from piecemill._core import Xxh3
from piecemill.errors import PiecemillError, PlanError, ShardError
from piecemill.objects import ObjectPlace, is_object_url
from piecemill.sizes import show_bytes

LOCK = ".lock"
SCRATCH = ".scratch"
"Folder of a local place for unfinished files. Files that a killed process leaves there are never read."

_CHUNK = 1 << 22
_START_WRITEBACK = 2
"SYNC_FILE_RANGE_WRITE of Linux."
_DROP_BYTES = 16 << 20
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)


# Places


class Place(Protocol):
    """One folder of files. Can be pickled: workers on other machines open the same one."""

    @property
    def url(self) -> str:
        """The URL or path, as a user would write it."""

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """The content of a file, or its bytes from `start` to before `stop`; FileNotFoundError if there is none."""

    def write(self, name: str, content: bytes) -> None:
        """Write a file atomically and durably; replaces an existing one."""

    def create(self, name: str, content: bytes) -> bool:
        """As `write`, but if the file exists, change nothing and return False."""

    def scratch(self) -> Path:
        """A local folder for files that are being written. Names in it must be unique: use `unique`."""

    def publish(self, path: Path, name: str) -> None:
        """Move a finished file from `scratch()` to `name`, atomically and durably; replaces an existing one.

        The file in `scratch()` no longer exists afterwards.
        """

    def sizes(self, folder: str = "") -> dict[str, int]:
        """Names and sizes of the files directly in `folder`; none if there is no such folder."""

    def delete(self, name: str) -> None:
        """Delete a file; no error if there is none."""

    def local(self) -> Path | None:
        """The folder on this machine; None for an object store."""


@dataclass(frozen=True, slots=True)
class LocalPlace:
    """A folder of a file system."""

    path: Path

    @property
    def url(self) -> str:
        return str(self.path)

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        with open(regular(self.path / name), "rb") as file:
            file.seek(start)
            if stop is None:
                return file.read()
            # No buffer for more than there is: a damaged file may give any size.
            return file.read(max(0, min(stop, os.fstat(file.fileno()).st_size) - start))

    def write(self, name: str, content: bytes) -> None:
        self.publish(self._written(name, content), name)

    def create(self, name: str, content: bytes) -> bool:
        target = self._target(name)
        part = self._written(name, content)
        try:
            sync_file(part)
            os.link(part, target)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            # Without hard links there is no atomic create: two writers at the same instant can both succeed.
            if target.exists():
                return False
            os.replace(part, target)
        finally:
            part.unlink(missing_ok=True)
        sync_file(target.parent)
        return True

    def scratch(self) -> Path:
        folder = self.path / SCRATCH
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def publish(self, path: Path, name: str) -> None:
        target = self._target(name)
        sync_file(path)
        os.replace(path, target)
        sync_file(target.parent)

    def sizes(self, folder: str = "") -> dict[str, int]:
        try:
            with os.scandir(self.path / folder) as found:
                return {entry.name: entry.stat().st_size for entry in found if entry.is_file()}
        except (FileNotFoundError, NotADirectoryError):
            return {}

    def delete(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)

    def local(self) -> Path | None:
        return self.path

    def _target(self, name: str) -> Path:
        target = self.path / name
        if not target.parent.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            sync_file(target.parent.parent)
        return target

    def _written(self, name: str, content: bytes) -> Path:
        part = self.scratch() / unique(Path(name).name)
        try:
            part.write_bytes(content)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        return part


def open_place(where: str | PathLike[str] | Place) -> Place:
    """The place at a path or URL: `file://` and paths are local; `s3://`, `gs://`, `az://`, `memory://` are not."""
    if isinstance(where, LocalPlace | ObjectPlace):
        return where
    text = as_path(where)
    scheme = urlsplit(text).scheme if isinstance(where, str) and "://" in text else ""
    if not scheme:
        return LocalPlace(Path(text))
    if scheme == "file":
        return LocalPlace(Path(unquote(urlsplit(text).path)))
    return ObjectPlace(text)


def as_path(where: object) -> str:
    """The path or URL that a caller gave, as text; an error if it is neither."""
    if not isinstance(where, str | PathLike):
        raise PiecemillError(f"found {type(where).__name__}, {where!r}; expected the path of a folder, or its URL.")
    if not os.fspath(where):
        raise PiecemillError("the path is empty; expected one. The folder you are in is '.'.")
    return str(os.fspath(where))


def regular(path: Path) -> Path:
    """`path`; an OSError if it is a pipe or a device, which may have no end. Use it to open a file for reading.

    >>> regular(Path("/dev/null"))
    Traceback (most recent call last):
    OSError: [Errno 22] expected a regular file: '/dev/null'
    """
    if not path.is_file() and path.exists() and not path.is_dir():
        raise OSError(errno.EINVAL, "expected a regular file", str(path))
    return path


def local_folder(where: object, reader: str) -> Path:
    """The folder at a path that a caller gave; an error for the URL of an object store, which `reader` cannot read."""
    text = as_path(where)
    if is_object_url(text):
        raise PlanError(f"{text}: {reader} reads local folders. Copy the prepared folder to a local disk first.")
    return Path(text)


def unique(name: str) -> str:
    """`name` with an ending that no other process, here or on another machine, uses."""
    return f"{name}.{os.getpid()}-{os.urandom(6).hex()}"


# Files

_FULL = (errno.ENOSPC, errno.EDQUOT)
_PROBE = 1 << 15


def check_writable(target: Path, error: type[PiecemillError] = PiecemillError) -> None:
    """Refuse, before any work, a target on a full or read-only disk, or one without the right to write there.

    Writes 32 KiB to an unnamed file in the folder that is or will hold `target`.
    """
    folder = next(path for path in (target.absolute(), *target.absolute().parents) if os.path.lexists(path))
    if not folder.is_dir():
        if folder != target.absolute():
            raise error(f"{target}: {folder} is a file, expected a folder. Nothing was done. Choose another place.")
        folder = folder.parent  # the caller replaces or refuses a file at `target`
    probe = folder / unique(".probe")
    try:
        with open(_open_part(probe), "wb") as file:
            probe.unlink(missing_ok=True)
            file.write(bytes(_PROBE))
    except OSError as problem:
        free = f", {show_bytes(shutil.disk_usage(folder).free)} free" if problem.errno in _FULL else ""
        todo = "Free some space" if problem.errno in _FULL else "Get the right to write there"
        todo = "Remount it for writing" if problem.errno == errno.EROFS else todo
        raise error(
            f"{target}: cannot be written: {problem.strerror} ({folder}{free}). Nothing was done. {todo}, "
            "or choose another place."
        ) from None


def can_write(place: Place) -> bool:
    """Whether this process has the right to write to a place, as far as is known without trying."""
    return (folder := place.local()) is None or os.access(folder, os.W_OK)


def _open_part(part: Path) -> int:
    """Open a new file for writing; returns its descriptor.

    Where the system can, the file has no name (O_TMPFILE) until `new_file` links it as `part`, so a killed process
    leaves nothing behind. Elsewhere it is created as `part`.
    """
    flags = os.O_WRONLY | os.O_CLOEXEC
    if hasattr(os, "O_TMPFILE") and os.path.isdir("/proc/self/fd"):
        with suppress(OSError):  # as of a file system without such files: the way below says what is wrong
            return os.open(part.parent, flags | os.O_TMPFILE, 0o666)
    return os.open(part, flags | os.O_CREAT | os.O_EXCL, 0o666)


def replace_file(path: Path, content: bytes) -> None:
    """Write `content` to `path` atomically and durably."""
    with new_file(path) as file:
        file.write(content)


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file for writing that gets the name `path` when it is complete and synced; discarded after an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{unique(path.name)}.part")
    try:
        with open(_open_part(part), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
            if not part.exists():
                os.link(f"/proc/self/fd/{file.fileno()}", part, src_dir_fd=file.fileno())  # which follows the link
        os.replace(part, path)
        sync_file(path.parent)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def file_for_user(path: str | PathLike[str]) -> Iterator[BinaryIO]:
    """As `new_file`, at a path that a caller gave: what the system refuses is an error that names it."""
    try:
        with new_file(Path(as_path(path))) as file:
            yield file
    except OSError as error:
        raise PiecemillError(
            f"{path}: cannot be written: {error.strerror or error}. Free some space or fix the cause, or choose "
            "another place."
        ) from None


@contextmanager
def new_folder(target: Path, *, replace: bool = False) -> Iterator[Path]:
    """Make a folder that gets the name `target` when it is complete and synced; discarded after an error.

    `target` must not exist, or be an empty folder. With `replace`, the old folder is swapped with the new one
    atomically where the system supports it (Linux). Elsewhere the old folder is renamed first: for an instant `target`
    does not exist, and both folders are complete beside it. A killed process can leave a hidden folder `.NAME.*.part`.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{unique(target.name)}.part")
    try:
        part.mkdir()
        yield part
        for path in part.rglob("*"):
            sync_file(path)  # folders too: fsync needs only a descriptor opened for reading
        sync_file(part)
        if replace:
            _replace(target, part)
        else:
            os.rename(part, target)
        sync_file(target.parent)
    finally:
        _delete(part)


@contextmanager
def replaced(target: Path) -> Iterator[Path]:
    """A name at which to write the file or folder that takes the place of `target` when it is complete.

    What has the name `target` is replaced as by `new_folder`, be it a file or a folder.
    """
    part = target.with_name(f".{unique(target.name)}.part")
    try:
        yield part
        _replace(target, part)
        sync_file(target.parent)
    finally:
        _delete(part)


@contextmanager
def files_together(targets: Sequence[Path]) -> Iterator[Path]:
    """A folder in which to write files that replace those of one folder, `targets`, once all are complete.

    What was at `targets` goes first, so that old and new are never mixed; the first of `targets` comes last. A killed
    process can leave the hidden folder.
    """
    part = targets[0].with_name(f".{unique(targets[0].name)}.part")

    def move() -> None:
        for target in targets:
            if target not in made or (part / target.name).exists():
                target.unlink(missing_ok=True)
        for target in reversed(made):
            if (part / target.name).exists():
                os.replace(part / target.name, target)

    try:
        part.mkdir()
        yield part
        made = [target for target in targets if (part / target.name).exists()]
        try:
            move()
        finally:
            move()  # again, because Ctrl-C can interrupt the first one
        sync_file(part.parent)
    finally:
        _delete(part)


def _delete(path: Path) -> None:
    """Delete a file or folder, if there is one."""

    def attempt() -> None:
        shutil.rmtree(path, ignore_errors=True)
        with suppress(OSError):
            path.unlink()

    try:
        attempt()
    finally:
        attempt()  # again, because Ctrl-C can interrupt the first one


def _replace(target: Path, new: Path) -> None:
    """Rename `new` to `target`; what had that name is deleted here or by the caller."""
    if _exchange(new, target):
        return  # the old one now has the name `new`, which the caller deletes
    aside = new.with_suffix(".old.part")
    try:
        os.rename(target, aside)
        os.rename(new, target)
    finally:
        # An interrupt can come between any two lines, so check the disk instead of a variable.
        if not target.exists():
            os.rename(aside, target)
        _delete(aside)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two names atomically; False if the system or the file system does not support it."""
    if sys.platform != "linux":
        return False
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    if renameat2(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code), str(other))


def write_behind(file: BinaryIO, offset: int, length: int) -> None:
    """Start to write these bytes of a file to the disk without waiting, so that a later fsync is short; and drop what
    is already there from the page cache, from time to time: a long run writes more than the cache should hold.

    Only hints: they do nothing where the system cannot, and an error shows at the fsync.
    """
    if (sync_file_range := getattr(ctypes.CDLL(None), "sync_file_range", None)) is not None:
        sync_file_range(file.fileno(), ctypes.c_int64(offset), ctypes.c_int64(length), _START_WRITEBACK)
    if offset // _DROP_BYTES < (offset + length) // _DROP_BYTES and hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file.fileno(), 0, offset, os.POSIX_FADV_DONTNEED)


def sync_file(path: Path) -> None:
    """fsync a file; or a folder, so that new, renamed and deleted names survive a power loss."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_json(place: Place, name: str, hint: str, kind: type[PiecemillError] = ShardError) -> dict[str, Any]:
    """The JSON object in a file; if there is none, an error of class `kind` whose message ends in `hint`."""
    where = f"{place.url}/{name}"
    try:
        content = place.read(name)
    except FileNotFoundError:
        raise kind(f"{where} is missing. {hint}") from None
    except OSError as error:
        raise kind(f"{where}: cannot be read: {error.strerror or error}. {hint}") from None
    return parse_json(content, where, hint, kind)


def parse_json(content: bytes, where: str, hint: str, kind: type[PiecemillError] = ShardError) -> dict[str, Any]:
    """Parse `content` as a JSON object; if it is none, an error of class `kind` whose message begins with `where`."""
    try:
        record = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise kind(f"{where}: not JSON ({error}). {hint}") from None
    if not isinstance(record, dict):
        raise kind(f"{where}: expected a JSON object, found {type(record).__name__}. {hint}")
    return record


# Checksums


def read_npy(file: str | PathLike[str] | bytes) -> NDArray[Any]:
    """The array of an .npy file: a memory map of the file at a path, or the array in `bytes`.

    ValueError if it is not one. numpy evaluates a header as Python, so a damaged one raises whatever that can; errors
    of the disk come as they are.
    """
    try:
        if isinstance(file, bytes):
            found: Any = np.load(io.BytesIO(file), allow_pickle=False)
        else:
            found = np.load(regular(Path(file)), mmap_mode="r", allow_pickle=False)
    except OSError:
        raise
    except Exception as error:  # noqa: BLE001
        raise ValueError(f"{' '.join(str(error).split()) or type(error).__name__:.200}") from None
    if not isinstance(found, np.ndarray):
        raise ValueError("it is an archive of arrays")
    return found


def hash_file(path: Path, skip: int = 0) -> str:
    """The xxh3-64 of a file after its first `skip` bytes, as 16 hexadecimal digits."""
    hash = Xxh3()
    with open(regular(path), "rb", buffering=0) as file:
        file.seek(skip)
        while chunk := file.read(_CHUNK):
            hash.update(np.frombuffer(chunk, np.uint8))
    return hash.hexdigest()


def hash_bytes(data: bytes) -> str:
    """The xxh3-64 of `data`, as 16 hexadecimal digits."""
    hash = Xxh3()
    hash.update(np.frombuffer(data, np.uint8))
    return hash.hexdigest()


# Locks


class FolderLock:
    """An flock on `.lock` in a folder, which the system releases when the process ends, however it ends.

    The folder is made if needed, once it is clear that it can be written to. `shared` locks exclude an exclusive one,
    but not each other. Where the file system has no locks, nothing is locked.
    """

    def __init__(self, folder: Path, *, shared: bool = False, error: type[PiecemillError] = ShardError) -> None:
        if folder.exists() and not folder.is_dir():
            raise error(f"{folder} is a file; expected a folder, new or an earlier one. Choose another place.")
        check_writable(folder, error)
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / LOCK
        self._descriptor = -1
        while self._descriptor < 0:
            self._descriptor = self._try(fcntl.LOCK_SH if shared else fcntl.LOCK_EX, error)

    def _try(self, how: int, refused: type[PiecemillError]) -> int:
        with ExitStack() as stack:  # until the lock is held, whatever happens closes the descriptor
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            stack.callback(os.close, descriptor)
            try:
                fcntl.flock(descriptor, how | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno in _NO_LOCKS:
                    stack.pop_all()
                    return descriptor
                owner = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip() or "unknown"
                if error.errno not in (errno.EACCES, errno.EAGAIN):
                    raise
                raise refused(
                    f"{self._path.parent}: another run is writing to it (process {owner}). "
                    "Wait for it or stop it; the lock of a run that died is free."
                ) from None
            # A run that ends deletes the lock file, perhaps after it was opened here: then this lock excludes nobody.
            try:
                same = os.path.samestat(os.fstat(descriptor), os.stat(self._path))
            except FileNotFoundError:
                same = False
            if not same:
                return -1
            os.truncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
            stack.pop_all()
            return descriptor

    def release(self) -> None:
        """Release the lock. The lock file is deleted first, unless other processes share the lock."""
        if self._descriptor >= 0:
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._path.unlink(missing_ok=True)
            except OSError:
                pass
            finally:  # an interrupt too: the lock would be held until the process ends
                os.close(self._descriptor)
                self._descriptor = -1


def lock_owner(folder: Path) -> int | None:
    """The process of this machine that holds the lock of `folder`; None if none is known to."""
    try:
        process = int((folder / LOCK).read_text())
        os.kill(process, 0)
    except PermissionError:  # alive, and another user's
        return process
    except (OSError, ValueError, OverflowError):
        return None
    return process


@contextmanager
def locked(place: Place, *, shared: bool = False, complete: str | None = None) -> Iterator[None]:
    """Hold the lock of a local place, and create its folder if needed; an object store has no lock.

    Nothing is locked either where a file `complete` exists and nobody can write: such a folder is only read.
    """
    folder = place.local()
    if folder is None or (complete is not None and (folder / complete).exists() and not can_write(place)):
        yield
        return
    lock = FolderLock(folder, shared=shared)
    try:
        yield
    finally:
        lock.release()


def clear_scratch(place: Place) -> None:
    """Delete the files of killed processes in a local place's scratch folder. No other process may be writing there."""
    if (folder := place.local()) is not None:
        shutil.rmtree(folder / SCRATCH, ignore_errors=True)
