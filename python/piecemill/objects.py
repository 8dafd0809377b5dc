"""Object stores: one folder under an s3://, gs://, az:// or memory:// URL, through obstore.

`ObjectPlace` has the same methods as a local folder (`files.Place`): read, write, create, publish, list, delete. An
object is written atomically. Throttling (429, 503) and cut connections are retried with backoff; if a response was
lost, the next attempt reads the object to find out whether the write succeeded. Credentials and endpoint come from the
environment (`AWS_*`, `GOOGLE_*`, `AZURE_*`) and from `options`, which have obstore's names.

This is the only file that imports obstore, and only when a URL is opened. Start with `ObjectPlace`.
"""

import errno
import os
import re
import shutil
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from piecemill.cancelling import sleep
from piecemill.errors import PlanError, StoreError

if TYPE_CHECKING:
    from obstore.store import MemoryStore

SCHEMES = ("s3", "gs", "az", "memory")

# Files up to this size are one request. Larger ones are sent in parts of at least this size, four at a time, so an
# upload holds 32 MiB. S3 takes at most 10,000 parts.
_PART_BYTES = 8 << 20
_MOST_PARTS = 9_000
_PARTS_AT_ONCE = 4
_READ_BYTES = 4 << 20
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 15.0
# A store that has never answered is more likely a wrong endpoint than a busy one.
_FIRST_CONTACT_SECONDS = 15.0

_RETRIED_STATUS = {408, 429, 500, 502, 503, 504}
_RETRIED_CODES = {"RequestTimeout", "SlowDown", "ConditionalRequestConflict", "OperationAborted"}

# Without credentials, obstore queries the metadata service of a cloud machine; elsewhere that request fails.
_METADATA_PATHS = ("/latest/api/token", "/latest/meta-data", "/computeMetadata/", "/metadata/identity")
_KINDS = {
    "Connect": "no connection",
    "Timeout": "timeout",
    "cut": "the connection was cut",
    "no credentials": "no credentials were found",
}

_memory: dict[str, "MemoryStore"] = {}
# obstore's threads do not exist in a forked child: a request there would hang.
_used_in: int | None = None

Result = TypeVar("Result")


def is_object_url(where: str) -> bool:
    """Whether a path is the URL of an object store.

    >>> is_object_url("s3://bucket/run"), is_object_url("file:///tmp/run"), is_object_url("run/s3")
    (True, False, False)
    """
    return where.partition("://")[0].lower() in SCHEMES and "://" in where


class ObjectPlace:
    """A folder in an object store. Safe to use from several threads; pickles as its URL and options.

    >>> place = ObjectPlace("memory://example/run")
    >>> place.create("plan.json", b"{}"), place.create("plan.json", b"[]"), place.read("plan.json")
    (True, False, b'{}')
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None = None, *, patience: float = 180.0) -> None:
        """`options` go to obstore (`endpoint`, `region`, `access_key_id`, `client_options`, ...).

        patience: seconds of retrying before a request that is throttled or cut becomes an error.
        """
        parts = urlsplit(url)
        scheme = parts.scheme.lower()
        if scheme not in SCHEMES:
            raise PlanError(f"{url}: expected a URL that begins with {', '.join(f'{name}://' for name in SCHEMES)}.")
        if not parts.netloc:
            raise PlanError(f"{url}: no bucket; expected {scheme}://BUCKET/FOLDER.")
        if "?" in url or "#" in url:
            raise PlanError(f"{url}: a bucket and a folder are expected, without ? and #. Rename the folder.")
        self._prefix = parts.path.strip("/")
        if any(part in ("", ".", "..") for part in self._prefix.split("/") if self._prefix):
            raise PlanError(f"{url}: an empty part, `.` or `..` in the path. Object stores take names as they are.")
        self._root = f"{scheme}://{parts.netloc}"
        self.url = f"{self._root}/{self._prefix}".rstrip("/")
        self.options, self.patience = dict(options or {}), patience
        self._clients: dict[bool, Any] = {}
        self._lock = threading.Lock()
        self._scratch: Path | None = None
        self._answered = False
        self._client(retries=False)  # a missing package or an unknown option is an error here, not in a worker

    def read(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        key = self._key(name)

        def attempt(client: Any) -> bytes:
            if start == 0 and stop is None:
                return bytes(client.get(key).bytes())
            # A store rejects a range that is empty or past the end; a local file returns no bytes.
            size = client.head(key)["size"]
            end = size if stop is None else min(stop, size)
            return bytes(client.get_range(key, start=start, end=end)) if start < end else b""

        return self._repeat("read", name, attempt)

    def write(self, name: str, content: bytes) -> None:
        self._repeat("write", name, lambda client: client.put(self._key(name), content, use_multipart=False))

    def create(self, name: str, content: bytes) -> bool:
        """Store an object if none has this name; False if one exists.

        An attempt may have succeeded although its response was lost. If a retry then finds an object with exactly this
        content, this call has written it, and the result is True.
        """
        from obstore.exceptions import AlreadyExistsError

        attempts = 0

        def attempt(client: Any) -> bool:
            nonlocal attempts
            attempts += 1
            try:
                client.put(self._key(name), content, mode="create", use_multipart=False)
            except AlreadyExistsError as error:
                if _Failure.of(error).transient:
                    raise
                return attempts > 1 and self.read(name) == content
            except NotImplementedError:
                # conditional_put=disabled, for stores that have no conditional requests: check and put are two steps.
                if self.exists(name):
                    return False
                self.write(name, content)
            return True

        return self._repeat("create", name, attempt)

    def exists(self, name: str) -> bool:
        """Whether there is an object of this name."""
        try:
            self._repeat("look up", name, lambda client: client.head(self._key(name)))
        except FileNotFoundError:
            return False
        return True

    def scratch(self) -> Path:
        """A folder under TMPDIR for files being written; deleted when this `ObjectPlace` is."""
        with self._lock:
            if self._scratch is None:
                import tempfile

                self._scratch = Path(tempfile.mkdtemp(prefix="piecemill-"))
                weakref.finalize(self, shutil.rmtree, self._scratch, ignore_errors=True)
            return self._scratch

    def publish(self, path: Path, name: str) -> None:
        """Upload a finished local file to `name` atomically, and delete the local file."""
        size = path.stat().st_size
        if size <= _PART_BYTES:
            self.write(name, path.read_bytes())
        else:
            # obstore retries each part. If that is not enough, the whole upload is retried, also when the last request
            # succeeded but its response was lost: the upload id no longer exists then (404).
            parts = {"chunk_size": max(_PART_BYTES, -(-size // _MOST_PARTS)), "max_concurrency": _PARTS_AT_ONCE}
            key = self._key(name)
            self._repeat(
                "upload", name, lambda client: client.put(key, path, use_multipart=True, **parts), retries=True
            )
        path.unlink()

    def fetch(self, name: str, path: Path) -> None:
        """Download an object to a local file, which is overwritten; FileNotFoundError if there is no such object."""

        def attempt(client: Any) -> None:
            # r+b: a file that was preallocated with its final size keeps its reserved space.
            with open(path, "r+b" if path.exists() else "wb") as file:
                for chunk in client.get(self._key(name)).stream(min_chunk_size=_READ_BYTES):
                    file.write(chunk)
                file.truncate()

        self._repeat("download", name, attempt, retries=True)

    def sizes(self, folder: str = "") -> dict[str, int]:
        prefix = "/".join(part for part in (self._prefix, folder.strip("/")) if part)
        listed = self._repeat("list", folder, lambda client: client.list_with_delimiter(prefix or None))
        return {entry["path"].rpartition("/")[2]: entry["size"] for entry in listed["objects"]}

    def delete(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._repeat("delete", name, lambda client: client.delete(self._key(name)))

    def local(self) -> None:
        return None

    def __repr__(self) -> str:
        return f"ObjectPlace({self.url!r})"  # options may hold credentials

    def __getstate__(self) -> dict[str, Any]:
        pid = os.getpid() if self._root.startswith("memory://") else None
        return {"url": self.url, "options": self.options, "patience": self.patience, "pid": pid}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if state["pid"] not in (None, os.getpid()):
            raise StoreError(f"{state['url']}: memory:// exists inside one process only. Use a folder or a bucket.")
        self.__init__(state["url"], state["options"], patience=state["patience"])  # type: ignore[misc]

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}" if self._prefix else name

    def _client(self, *, retries: bool) -> Any:
        """The obstore client, with obstore's own retries or without.

        A client with retries would repeat a conditional put by itself, and report the object that its own first
        attempt wrote as a conflict.
        """
        global _used_in
        with self._lock:
            if retries not in self._clients:
                self._clients[retries] = self._connect(retries)
                _used_in = _used_in or os.getpid()
            if _used_in != os.getpid():
                raise StoreError(
                    f"{self.url}: this process was forked from one that had opened an object store, which cannot work. "
                    "Start worker processes with spawn or forkserver (DataLoader: multiprocessing_context='spawn')."
                )
            return self._clients[retries]

    def _connect(self, retries: bool) -> Any:
        try:
            from obstore.exceptions import BaseError
            from obstore.store import MemoryStore, from_url
        except ImportError:
            raise StoreError(
                f"{self.url}: object stores need obstore, which is not installed. Install it: "
                "pip install 'piecemill[cloud]'."
            ) from None
        if self._root.startswith("memory://"):
            return _memory.setdefault(self._root, MemoryStore())
        # Ctrl-C is not handled inside obstore, so its own retries last only seconds; `_repeat` does the rest.
        options = {"retry_config": {"max_retries": 6}, **self.options}
        if not retries:
            options["retry_config"] = {"max_retries": 0}
        try:
            return from_url(self._root, **options)
        except (BaseError, ValueError, TypeError) as error:
            raise StoreError(
                f"{self.url}: {_first_words(str(error)).rstrip('.')}. Options have the names that obstore gives them, "
                "such as endpoint, region, access_key_id; or set them in the environment (docs/objects.md)."
            ) from None

    def _repeat(self, verb: str, name: str, attempt: Callable[[Any], Result], *, retries: bool = False) -> Result:
        """Call `attempt(client)`; retry transient failures with jittered exponential backoff for `patience` seconds.

        `retries` are those of the client itself, see `_client`.
        """
        import random

        client = self._client(retries=retries)
        started, pause = time.monotonic(), _FIRST_PAUSE
        while True:
            try:
                result = attempt(client)
            except (StoreError, KeyboardInterrupt):
                raise
            except Exception as error:  # noqa: BLE001 - obstore raises many kinds; each is repeated or translated
                failure = _Failure.of(error)
                self._answered = self._answered or failure.status is not None
                patience = self.patience if self._answered else min(self.patience, _FIRST_CONTACT_SECONDS)
                if failure.transient and time.monotonic() - started + pause <= patience:
                    sleep(random.uniform(pause / 2, pause))
                    pause = min(2 * pause, _LONGEST_PAUSE)
                    continue
                raise self._final(verb, name, error, failure, time.monotonic() - started) from None
            self._answered = True
            return result

    def _final(self, verb: str, name: str, error: Exception, failure: "_Failure", seconds: float) -> Exception:
        where = f"{self.url}/{name}".rstrip("/")
        if isinstance(error, FileNotFoundError) and failure.code not in ("NoSuchBucket", "NoSuchUpload"):
            return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), where)
        if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
            return error  # the local disk
        tried = f" after {seconds:.0f} s of retries" if failure.transient else ""
        return StoreError(f"{where}: cannot {verb}{tried}: {failure.words}. {failure.way_out(self._root)}")


@dataclass(frozen=True, slots=True)
class _Failure:
    """An exception of obstore, parsed from its text, because obstore has no fields for it."""

    status: int | None
    code: str
    words: str
    transient: bool
    kind: str

    @classmethod
    def of(cls, error: Exception) -> "_Failure":
        text, _, debug = str(error).partition("\n\nDebug source:")
        found = re.search(r"status code: (\d{3})", text)
        status = int(found[1]) if found else None
        code = _tag(text, "Code")
        kind = ""
        if status is None and "HTTP error" in text:
            kind = next((word for word in ("BadScheme", "Connect", "Timeout") if word in debug), "cut")
        if any(path in text for path in _METADATA_PATHS):
            status, kind = None, "no credentials"
        transient = status in _RETRIED_STATUS or code in _RETRIED_CODES or code == "NoSuchUpload"
        transient = transient or kind in ("Connect", "Timeout", "cut")
        said = _tag(text, "Message")
        words = _KINDS.get(kind, "")
        if status is not None:
            words = f"the store answered {status}" + (f" {code}" if code else "") + (f" ({said})" if said else "")
        return cls(status, code, (words or _first_words(text)).rstrip("."), transient, kind)

    def way_out(self, root: str) -> str:
        """What to do about it."""
        if self.kind == "no credentials":
            return (
                "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or GOOGLE_*, AZURE_*), or "
                "skip_signature=true for a public bucket."
            )
        if self.code == "NoSuchBucket":
            return f"Create the bucket, or correct its name: {root}."
        if self.status in (401, 403):
            return "Check the credentials, and that they may read, write, list and delete in this bucket."
        if self.kind == "BadScheme":
            return "The endpoint is http://, not https://: set AWS_ALLOW_HTTP=true if that is meant."
        if self.kind == "Connect":
            return "Check the endpoint (AWS_ENDPOINT_URL) and the network."
        if self.status == 501:
            return (
                "The store has no conditional put. Set AWS_CONDITIONAL_PUT=disabled to go on without it; then start "
                "only one run on a folder at a time."
            )
        if self.status in (429, 503):
            return "The store is throttling: use fewer workers, or run the same command again later, which resumes."
        return "Run the same command again, which resumes; if it fails again, look for the cause in the store's logs."


def _tag(text: str, name: str) -> str:
    found = re.search(rf"<{name}>(.*?)</{name}>", text, re.DOTALL)
    return found[1].strip() if found else ""


def _first_words(text: str) -> str:
    """The first paragraph of obstore's message: the rest repeats it in Rust's debug format."""
    return " ".join(text.partition("\n\n")[0].split())[:300]
