"""Remote files: URLs, through fsspec.

A string with a scheme (`s3://`, `gs://`, `hf://`, `https://`, `memory://`, also chained as in
`zip://*.txt::s3://bucket/a.zip`) names remote files. A task refers to a file by its URL only, so it
can be sent to any machine: the worker opens the file system again, and fsspec caches it for the next task. fsspec
manages caches and credentials; its exceptions are translated to `OSError`, without the secrets of the URL.

This is the only file that imports fsspec, and only where a URL is met. Start with `open_bytes`, `find`.
"""

import errno
import hashlib
import io
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, BinaryIO, NamedTuple, cast

from piecemill._core import walk_listing
from piecemill.errors import SourceError
from piecemill.plans import option
from piecemill.sources.patience import FIRST_PAUSES, PatientFile, Result, about_the_file, patiently, source_changed
from piecemill.sources.secrets import full_url, options_of, scrubbed

# Two letters at least: `c://` is a drive. Chains may start with schemes that take the path of the next one.
_URL = re.compile(r"((?:[A-Za-z][A-Za-z0-9+.-]+::)*[A-Za-z][A-Za-z0-9+.-]+://)(.*?)((?:::.*)?)", re.DOTALL)
_PASSED_BYTES = 1024 * 1024
_GITIGNORE_BYTES = 1024 * 1024  # as in walk.rs
_ASKED_AT_ONCE = 16
_VERSIONS = (
    "ETag",
    "etag",
    "generation",
    "VersionId",
    "versionId",
    "Content-MD5",
    "md5Hash",
    "content_md5",
    "Digest",
    "blob_id",
    "CRC",
    "Last-Modified",
    "LastModified",
    "last_modified",
    "updated",
    "modified",
    "mtime",
    "timeModified",
    "date_time",
    "created",
)
"Keys of fsspec listings that change with the content, the most reliable first."
_BRACES = re.compile(r"\{([^{}]*,[^{}]*)\}")
_WILDCARDS = frozenset("*?[{")

Storage = Mapping[str, Any]
"""Options for the file systems, as fsspec takes them: `{"anon": True}`, or `{"s3": {...}}` for a chained URL."""


class UrlParts(NamedTuple):
    """`head + path + tail` is the URL; two URLs with equal head and tail are of one file system."""

    head: str
    path: str
    tail: str


class State(NamedTuple):
    """Metadata of a file: size in bytes (0 if the server does not report it), and a hash of its version.

    The version is the ETag, generation or time of change, whichever there is; -1 without one.
    """

    size: int
    version: int


class Found(NamedTuple):
    """What a URL stands for: files in order, what was left out, and whether it was one file.

    `inside` are their paths from the folder that was listed; the name, if it was one file.
    """

    urls: list[str]
    inside: list[str]
    states: list[State]
    left_out: dict[str, int]
    is_file: bool
    excluded_by: tuple[int, ...] = ()
    "Numbers of the exclude patterns that matched."


class Url(os.PathLike[str]):
    """A string marked as a URL: like a `Path` in a list of sources, it means that all items are paths, not texts."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __fspath__(self) -> str:
        return self._url


def is_url(path: str) -> bool:
    """Whether a path is a URL: it has a scheme and `://`."""
    return _URL.match(path) is not None


def is_web(url: str) -> bool:
    """Whether a URL is a web address, in which a space is written as %20."""
    return url_parts(url).head.rpartition("::")[2].lower() in ("http://", "https://")


def url_parts(url: str) -> UrlParts:
    """The path of a URL, and what stands before and after it."""
    found = _URL.fullmatch(url)
    if found is None:
        raise ValueError(f"{url!r} is no URL")
    return UrlParts(*found.groups())


def file_name(path: str) -> str:
    """What an ending is looked for in: a local path as it is; of a URL its path, of a web address without the query."""
    if not is_url(path):
        return path
    inside = url_parts(path).path
    return inside.partition("?")[0] if is_web(path) else inside


def is_glob(path: str) -> bool:
    """Whether a path has a wildcard in it."""
    return not _WILDCARDS.isdisjoint(path)


def cut_glob(glob: str) -> tuple[str, str]:
    """The folder before the first wildcard, and the pattern from there."""
    parts = glob.split("/")
    first = next(number for number, part in enumerate(parts) if is_glob(part))
    folder = "/".join(parts[:first])
    return ("/" if first and not folder else folder), "/".join(parts[first:])


def open_bytes(path: str, storage: Storage, size: int = 0) -> BinaryIO:
    """A local file or a URL, opened for reading bytes; to end before `size` bytes is an error."""
    return cast(BinaryIO, RemoteFile(path, storage, size) if is_url(path) else PatientFile(path, size))


def read_up_to(file: BinaryIO, size: int) -> bytes:
    """The next `size` bytes, or all to the end: a stream of the web gives fewer at once, and Linux at most 2 GiB."""
    parts = []
    while size and (part := file.read(size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


class RemoteFile(PatientFile):
    """A file behind a URL. Reads are fsspec's: ranged, a few MiB ahead. Every error is an `OSError`."""

    def __init__(self, url: str, storage: Storage, size: int = 0) -> None:
        # Kept, because the file system of an archive closes the archive when it is deleted.
        self._fs, self._place = file_system(url, storage)
        self._may_stream = is_web(url)
        super().__init__(url, size)

    def _open(self) -> Any:
        with _translated():
            file = self._fs.open(self._place, "rb")
        # fsspec's memory file system gives everybody the same object, with one position for all.
        return io.BytesIO(file.getvalue()) if isinstance(file, io.BytesIO) else file

    def _read(self, size: int) -> bytes:
        with _translated():
            try:
                return bytes(self._file.read(size))
            except ValueError:
                # A web server that does not answer with ranges.
                if not self._may_stream:
                    raise
            self._stream()
            return bytes(self._file.read(size))

    def _stream(self) -> None:
        """Switch to one request from the start of the file: correct, but slow for a large offset."""
        self._may_stream, left = False, self.tell()
        self._file.close()
        self._file = self._fs.open(self._place, "rb", block_size=0)
        while left and (passed := self._file.read(min(left, _PASSED_BYTES))):
            left -= len(passed)

    def seek(self, offset: int, whence: int = 0) -> int:
        with _translated():
            return super().seek(offset, whence)


def fetch(urls: Sequence[str], sizes: Sequence[int], storage: Storage) -> list[bytes | OSError]:
    """The content of small files of one file system, at the same time where it can.

    A file that is not there, or may not be read, has its error in its place. Any other error is raised, after retries;
    so is a file whose content has not the size that was found.
    """
    fs, _ = file_system(urls[0], storage)
    paths = [_path_in(full_url(url, storage)) for url in urls]
    # `cat` takes a wildcard in a name for a pattern, so such names are requested one by one.
    plain = [path for path in paths if not is_glob(path)]
    answers = _patiently_asked(lambda: dict(fs.cat(plain, on_error="return")), None) if plain else {}
    found: list[bytes | OSError] = []
    for url, path, size in zip(urls, paths, sizes, strict=True):
        content = answers.get(path)
        try:
            if content is None or isinstance(content, Exception):
                content = _patiently_asked(partial(fs.cat_file, path), None)
        except OSError as error:
            if not about_the_file(error):
                raise OSError(error.errno, error.strerror or str(error), url) from None
            found.append(error)
            continue
        if size and len(content) != size:
            raise source_changed(url, f"it had {size:,} bytes when it was found, and {len(content):,} came")
        found.append(bytes(content))
    return found


def _path_in(url: str) -> str:
    from fsspec.core import strip_protocol

    # The last scheme before the path has it; those before take the path of the next.
    head, path, _ = url_parts(url)
    return str(strip_protocol(head.rpartition("::")[2] + path))


def states(urls: Sequence[str], storage: Storage) -> list[State | None]:
    """Current metadata of files of one file system; None for a file that no longer exists."""
    fs, _ = file_system(urls[0], storage)
    fs.invalidate_cache()

    def ask(url: str) -> State | None:
        info = _patiently_asked(lambda: _info(fs, file_system(url, storage)[1]), None)
        return None if info is None else _state(fs, info)

    with ThreadPoolExecutor(_ASKED_AT_ONCE) as pool:
        return list(pool.map(ask, urls))


def _patiently_asked(ask: Callable[[], Result], pauses: tuple[float, ...] | None) -> Result:
    def attempt() -> Result:
        with _translated():
            return ask()

    return patiently(attempt, pauses)


def find(url: str, storage: Storage, **rules: Any) -> Found | None:
    """The files a URL stands for, or None if there is nothing; a file system that fails is a `SourceError`.

    `rules` are those of `walk_folder`: a listing goes through the same ones as a folder on disk.
    """
    fs, path = file_system(url, storage)
    try:
        info = _patiently_asked(lambda: _info(fs, path), FIRST_PAUSES)
        if info is not None and not _is_folder(url, info):
            return Found([url], [file_name(url).rpartition("/")[2]], [_state(fs, info)], {}, is_file=True)
        if info is not None:
            return _chosen(url, fs, path, None, rules)
        head, inside, tail = url_parts(url)
        if not is_glob(inside):
            return None
        folder, pattern = cut_glob(inside)
        above = f"{head}{folder}{tail}"
        return _chosen(above, *file_system(above, storage), pattern, rules)
    except SourceError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever fsspec raises
        raise SourceError(f"{url}: cannot be read: {os_error(error).strerror or os_error(error)}.") from None


def canonical(url: str, storage: Storage) -> str:
    """One spelling for all URLs of a file, to detect whether it was reached before."""
    fs, _ = file_system(url, storage)
    return f"{fs.unstrip_protocol(_path_in(url))}{url_parts(url).tail}"


def file_system(url: str, storage: Storage) -> tuple[Any, str]:
    """The file system of a URL and the path in it; a missing package is an error that names it."""
    try:
        import fsspec.core
    except ImportError:
        raise SourceError(
            f"{url}: reading a URL needs fsspec, which is not installed. Install it: pip install 'piecemill[cloud]'."
        ) from None
    try:
        fs, path = fsspec.core.url_to_fs(full_url(url, storage), **options_of(storage))
    except ImportError as error:
        raise SourceError(f"{url}: a package for this kind of URL is missing: {error}.") from None
    except ValueError as error:
        # An unknown scheme, or options that do not fit it.
        raise SourceError(
            f"{url}: {scrubbed(str(error))}. Expected a scheme that fsspec knows, such as s3, gs, hf or https."
        ) from None
    except Exception as error:  # noqa: BLE001 - whatever fsspec raises
        raise SourceError(f"{url}: cannot be read: {os_error(error).strerror or os_error(error)}.") from None
    return fs, str(path)


def os_error(error: Exception) -> OSError:
    """An exception of a file system as an OSError that has a message, without secrets."""
    cause = error.__cause__
    # fsspec's HTTP file system raises FileNotFoundError for every failed response, with the response as the cause.
    answered = isinstance(cause, OSError) or getattr(cause, "status", 404) not in (404, 410)
    if isinstance(error, FileNotFoundError) and isinstance(cause, Exception) and answered:
        return os_error(cause)
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    if isinstance(error, OSError) and error.strerror:
        return OSError(error.errno, scrubbed(str(error.strerror)))  # of the class that fits the number
    words = scrubbed((str(error).splitlines() or [""])[0].rstrip("."))
    said = f"{type(error).__name__}: {words}" if words else type(error).__name__
    refused = isinstance(error, PermissionError) or getattr(error, "status", 0) in (401, 403)
    return PermissionError(errno.EACCES, said) if refused else OSError(errno.EIO, said)


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise os_error(error) from error


def _info(fs: Any, path: str) -> dict[str, Any] | None:
    try:
        return cast(dict[str, Any], fs.info(path))
    except FileNotFoundError as error:
        if isinstance(os_error(error), FileNotFoundError):
            return None
        raise


def _is_folder(url: str, info: Mapping[str, Any]) -> bool:
    if is_web(url):
        # On the web everything is a file; a folder is what has a slash at the end, if only after a redirection.
        return str(info.get("url") or url).partition("?")[0].endswith("/")
    return info.get("type") == "directory"


def _state(fs: Any, info: Mapping[str, Any]) -> State:
    """The state from a listing; missing fields are requested. An unknown size is 0 and adds nothing to a total."""
    if info.get("size") is None:
        asked: Mapping[str, Any] | None = _patiently_asked(partial(_info, fs, str(info["name"])), None)
        info = asked or info
    size = info.get("size")
    key = next((key for key in _VERSIONS if info.get(key)), None)
    if key is None:
        return State(int(size or 0), -1)
    value = info[key].timestamp() if hasattr(info[key], "timestamp") else info[key]  # a listing may have the number
    said = hashlib.blake2b(f"{key}={value}".encode(), digest_size=8).digest()
    return State(int(size or 0), int.from_bytes(said, "little") >> 1)


def spelled_out(pattern: str) -> list[str]:
    """A pattern without braces for each alternative, since fsspec does not know braces."""
    found = _BRACES.search(pattern)
    if found is None:
        return [pattern]
    before, after = pattern[: found.start()], pattern[found.end() :]
    return [one for word in found[1].split(",") for one in spelled_out(f"{before}{word}{after}")]


def _chosen(folder: str, fs: Any, root: str, pattern: str | None, rules: Mapping[str, Any]) -> Found | None:
    """List what lies under `folder`, and let the rules of a walk choose and order it."""
    root = root.rstrip("/")
    whole = is_web(folder) and (pattern is None or "**" in pattern)
    listed = _patiently_asked(lambda: _web_files(fs, root) if whole else _listing(fs, root, pattern), None)
    if not listed:
        return None
    inside = {path.removeprefix(root).lstrip("/"): info for path, info in listed.items()}
    names = list(inside)
    ignores: list[tuple[str, bytes]] = []
    if rules["gitignore"]:
        wanted = [name for name in names if name.rpartition("/")[2] == ".gitignore"]
        for name in wanted:
            if (size := _state(fs, inside[name]).size) > _GITIGNORE_BYTES:
                raise SourceError(
                    f"{folder.rstrip('/')}/{name}: cannot be read: larger than {_GITIGNORE_BYTES} bytes ({size:,}), "
                    f"expected a list of patterns. Correct it, or pass {option('gitignore', False)}."
                )
            ignores.append((name.rpartition("/")[0], _patiently_asked(partial(fs.cat_file, f"{root}/{name}"), None)))
    known = [int(info.get("size") or 0) for info in inside.values()]
    above, out = folder.rstrip("/") + "/", rules["out"] or ""
    rules = {**rules, "out": out.rstrip("/").removeprefix(above) if out.startswith(above) else None}
    paths, _, left_out, _, excluded_by = walk_listing(names, known, ignores, only=pattern, **rules)
    head, start, tail = url_parts(folder)
    start = start.rstrip("/")
    urls = [f"{head}{start}{'/' if start else ''}{path}{tail}" for path in paths]
    # Only now, and only of files that are wanted: on the web a size is a request.
    found = [_state(fs, inside[path]) for path in paths]
    return Found(urls, [*paths], found, left_out, is_file=False, excluded_by=tuple(excluded_by))


def _listing(fs: Any, root: str, pattern: str | None) -> dict[str, dict[str, Any]]:
    if pattern is None:
        return _files(fs.find(root, detail=True))
    found: dict[str, dict[str, Any]] = {}
    for one in spelled_out(pattern):
        matched = fs.glob(f"{root}/{one}", detail=True)
        found |= _files(matched)
        for path, info in matched.items():
            # A folder that matches is read whole, as if a shell had passed it.
            if info["type"] == "directory":
                found |= _files(fs.find(path, detail=True))
    return found


def _web_files(fs: Any, root: str) -> dict[str, dict[str, Any]]:
    """The files under a folder of the web; fsspec leaves out folders that a server knows only with their slash."""
    found: dict[str, dict[str, Any]] = {}
    folders, seen = [f"{root}/"], {f"{root}/"}
    while folders:
        folder = folders.pop()
        try:
            listed = fs.ls(folder, detail=True)
        except FileNotFoundError:  # no such folder, or a link that leads nowhere
            listed = []
        for info in listed:
            if not (name := str(info["name"])).startswith(folder) or name in seen:
                continue  # a link to elsewhere
            seen.add(name)
            if name.endswith("/"):
                folders.append(name)
            else:
                found[name] = info
    return found


def _files(listed: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    # Buckets mark empty folders with a key that ends in a slash; on the web such names are folders.
    return {path: info for path, info in listed.items() if info["type"] == "file" and not path.endswith("/")}
