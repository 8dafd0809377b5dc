"""Remote files: URLs, through fsspec.

A string with a scheme (`s3://`, `gs://`, `hf://`, `https://`, `memory://`, also chained as in
`zip://*.txt::s3://bucket/a.zip`) names files that lie elsewhere. A file is known by its URL and nothing else, so a
task can be sent anywhere: the file system is made again where it is read, and fsspec keeps it for the next task.
Retries, caches and credentials are fsspec's business; whatever it raises is translated to an `OSError`.

This is the only file that imports fsspec, and only where a URL is met. Start with `open_bytes`, `find`.
"""

import errno
import io
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO, NamedTuple, cast

from piecemill._core import walk_listing
from piecemill.errors import SourceError

# Two letters at least: `c://` is a drive. Chains may start with schemes that take the path of the next one.
_URL = re.compile(r"((?:[A-Za-z][A-Za-z0-9+.-]+::)*[A-Za-z][A-Za-z0-9+.-]+://)(.*?)((?:::.*)?)", re.DOTALL)
_PASSED_BYTES = 1024 * 1024
_BRACES = re.compile(r"\{([^{}]*,[^{}]*)\}")
_WILDCARDS = frozenset("*?[{")

Storage = Mapping[str, Any]
"""Options for the file systems, as fsspec takes them: `{"anon": True}`, or `{"s3": {...}}` for a chained URL."""


class UrlParts(NamedTuple):
    """`head + path + tail` is the URL; two URLs with equal head and tail are of one file system."""

    head: str
    path: str
    tail: str


class Found(NamedTuple):
    """What a URL stands for: paths and sizes of files in order, what was left out, and whether it was one file."""

    urls: list[str]
    sizes: list[int]
    left_out: dict[str, int]
    is_file: bool
    excluded_by: tuple[int, ...] = ()
    "Numbers of the exclude patterns that matched."


class Url(os.PathLike[str]):
    """A URL that says so: as a `Path` in a list of sources does, it settles that none of them is a text."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __fspath__(self) -> str:
        return self._url


def is_url(path: str) -> bool:
    """Whether a path is a URL: it has a scheme and `://`."""
    return _URL.match(path) is not None


def is_web(url: str) -> bool:
    """Whether a URL is a web address, in which a space is written as %20."""
    return _is_web(url_parts(url).head)


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
    head, inside, _ = url_parts(path)
    return inside.partition("?")[0] if _is_web(head) else inside


def is_glob(path: str) -> bool:
    """Whether a path has a wildcard in it."""
    return not _WILDCARDS.isdisjoint(path)


def cut_glob(glob: str) -> tuple[str, str]:
    """The folder before the first wildcard, and the pattern from there."""
    parts = glob.split("/")
    first = next(number for number, part in enumerate(parts) if is_glob(part))
    folder = "/".join(parts[:first])
    return ("/" if first and not folder else folder), "/".join(parts[first:])


def open_bytes(path: str, storage: Storage) -> BinaryIO:
    """A local file or a URL, opened for reading bytes."""
    return cast(BinaryIO, RemoteFile(path, storage)) if is_url(path) else open(path, "rb")


class RemoteFile(io.RawIOBase):
    """A file behind a URL. Reads are fsspec's: ranged, a few MiB ahead. Every error is an `OSError`."""

    def __init__(self, url: str, storage: Storage) -> None:
        super().__init__()
        # Kept, because the file system of an archive closes the archive when it goes.
        self._fs, self._path = file_system(url, storage)
        self._may_stream = _is_web(url_parts(url).head)
        with _translated():
            file = self._fs.open(self._path, "rb")
        # fsspec's memory file system gives everybody the same object, with one position for all.
        self._file = io.BytesIO(file.getvalue()) if isinstance(file, io.BytesIO) else file

    def read(self, size: int = -1) -> bytes:
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
        """From here on in one answer from the start: slow for a range far behind, but the bytes are right."""
        self._may_stream, left = False, self.tell()
        self._file.close()
        self._file = self._fs.open(self._path, "rb", block_size=0)
        while left and (passed := self._file.read(min(left, _PASSED_BYTES))):
            left -= len(passed)

    def seek(self, offset: int, whence: int = 0) -> int:
        with _translated():
            return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return bool(self._file.seekable())

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def fetch(urls: Sequence[str], storage: Storage) -> list[bytes | OSError]:
    """The content of small files of one file system, at the same time where it can."""
    from fsspec.core import strip_protocol

    fs, _ = file_system(urls[0], storage)
    # The last scheme before the path has it; those before take the path of the next.
    paths = [str(strip_protocol(head.rpartition("::")[2] + path)) for head, path, _ in map(url_parts, urls)]
    # `cat` takes a wildcard in a name for a pattern, so such names are asked for one by one.
    plain = [path for path in paths if not is_glob(path)]
    with _translated():
        contents = dict(fs.cat(plain, on_error="return")) if plain else {}
    for path in paths:
        if path not in contents:
            try:
                contents[path] = fs.cat_file(path)
            except Exception as error:  # noqa: BLE001 - reported with the name of its file
                contents[path] = error
    return [os_error(found) if isinstance(found := contents[path], Exception) else bytes(found) for path in paths]


def find(url: str, storage: Storage, **rules: Any) -> Found | None:
    """The files a URL stands for, or None if there is nothing; a file system that fails is a `SourceError`.

    `rules` are those of `walk_folder`: a listing goes through the same ones as a folder on disk.
    """
    fs, path = file_system(url, storage)
    try:
        info = _info(fs, path)
        if info is not None and not _is_folder(url, info):
            return Found([url], [_size(fs, info)], {}, is_file=True)
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
    except Exception as error:
        raise SourceError(f"{url}: cannot be read: {os_error(error).strerror or os_error(error)}.") from error


def canonical(url: str, storage: Storage) -> str:
    """One spelling for all URLs of a file, to tell whether it was reached before."""
    fs, path = file_system(url, storage)
    return f"{fs.unstrip_protocol(path)}{url_parts(url).tail}"


def file_system(url: str, storage: Storage) -> tuple[Any, str]:
    """The file system of a URL and the path in it; a missing package is an error that names it."""
    try:
        import fsspec.core
    except ImportError:
        raise SourceError(
            f"{url}: reading a URL needs fsspec, which is not installed. Install it: pip install 'piecemill[cloud]'."
        ) from None
    try:
        fs, path = fsspec.core.url_to_fs(url, **storage)
    except ImportError as error:
        raise SourceError(f"{url}: a package for this kind of URL is missing: {error}.") from None
    except ValueError as error:
        # An unknown scheme, or options that do not fit it.
        raise SourceError(
            f"{url}: {error}. Expected a scheme that fsspec knows, such as s3, gs, hf or https."
        ) from None
    except Exception as error:
        raise SourceError(f"{url}: cannot be read: {os_error(error).strerror or os_error(error)}.") from error
    return fs, str(path)


def os_error(error: Exception) -> OSError:
    """Whatever a file system raised, as an error with words in it."""
    cause = error.__cause__
    # fsspec's web file system says "not found" of every answer it did not like, and keeps the answer as the cause.
    answered = isinstance(cause, OSError) or getattr(cause, "status", 404) not in (404, 410)
    if isinstance(error, FileNotFoundError) and isinstance(cause, Exception) and answered:
        return os_error(cause)
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    if isinstance(error, OSError) and error.strerror:
        return error
    words = (str(error).splitlines() or [""])[0].rstrip(".")
    return OSError(f"{type(error).__name__}: {words}" if words else type(error).__name__)


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
    if _is_web(url_parts(url).head):
        # On the web everything is a file; a folder is what has a slash at the end, if only after a redirection.
        return str(info.get("url") or url).partition("?")[0].endswith("/")
    return info.get("type") == "directory"


def _is_web(head: str) -> bool:
    return head.rpartition("::")[2].lower() in ("http://", "https://")


def _size(fs: Any, info: Mapping[str, Any]) -> int:
    """Bytes; 0 where a server does not tell, and then the file is one task that counts for nothing in a total."""
    size = info.get("size")
    if size is None:
        size = (_info(fs, str(info["name"])) or {}).get("size")
    return int(size or 0)


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
    listed = _listing(fs, root, pattern)
    if not listed:
        return None
    inside = {path.removeprefix(root).lstrip("/"): info for path, info in listed.items()}
    names = list(inside)
    ignores: list[tuple[str, bytes]] = []
    if rules["gitignore"]:
        wanted = [name for name in names if name.rpartition("/")[2] == ".gitignore"]
        ignores = [(name.rpartition("/")[0], fs.cat_file(f"{root}/{name}")) for name in wanted]
    known = [int(info.get("size") or 0) for info in inside.values()]
    above, out = folder.rstrip("/") + "/", rules["out"] or ""
    rules = {**rules, "out": out.rstrip("/").removeprefix(above) if out.startswith(above) else None}
    paths, sizes, left_out, _, excluded_by = walk_listing(names, known, ignores, only=pattern, **rules)
    head, start, tail = url_parts(folder)
    start = start.rstrip("/")
    urls = [f"{head}{start}{'/' if start else ''}{path}{tail}" for path in paths]
    # Only now, and only of files that are wanted: on the web a size is a request.
    sizes = [size or _size(fs, inside[path]) for path, size in zip(paths, sizes, strict=True)]
    return Found(urls, sizes, left_out, is_file=False, excluded_by=tuple(excluded_by))


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


def _files(listed: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    # Buckets mark empty folders with a key that ends in a slash; on the web such names are folders.
    return {path: info for path, info in listed.items() if info["type"] == "file" and not path.endswith("/")}
