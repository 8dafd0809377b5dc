"""Retries: transient I/O errors are retried with backoff, and never treated as a bad document.

A file that is missing or not readable (ENOENT, EACCES) is a bad document, and the policy for those applies. Every other
error of a system or server (EIO, ESTALE, EMFILE, a timeout, a 503) is retried with growing pauses; if it persists, the
run stops, whatever the policy. Finished pieces are complete, and the same command resumes the run.

Start with `patiently` and `PatientFile`.
"""

import errno
import io
import time
from collections.abc import Callable
from typing import Any, TypeVar

from piecemill.errors import SourceError
from piecemill.plans import another_out

PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"Seconds before each further attempt."
FIRST_PAUSES = PAUSES[:2]
"The same for the first request to a server: a misspelled name is reported soon."

Result = TypeVar("Result")

_OF_THE_FILE = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
_NEVER_PASS = frozenset({errno.ENOMEM, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL, errno.ENXIO, errno.ENODEV})


def about_the_file(error: OSError) -> bool:
    """Whether the file itself is the cause of the error: it is missing, a folder, or access is denied."""
    return isinstance(error, _OF_THE_FILE)


def patiently(attempt: Callable[[], Result], pauses: tuple[float, ...] | None = None) -> Result:
    """Call `attempt()`, and retry transient errors after each pause; the last error is raised."""
    left = list(PAUSES if pauses is None else pauses)
    while True:
        try:
            return attempt()
        except OSError as error:
            # An OSError without errno is not a system error: pyarrow raises it for broken content.
            if about_the_file(error) or error.errno is None or error.errno in _NEVER_PASS or not left:
                raise
            time.sleep(left.pop(0))


def stopped_by(name: str, error: OSError) -> SourceError:
    """The error that stops a run, whatever the policy, where a file could not be read for another reason."""
    return SourceError(
        f"{name}: cannot be read: {error.strerror or error}. That says nothing about what is in it, so it is not "
        "skipped. Fix the cause and run the same command again, which goes on."
    )


def source_changed(path: str, how: str) -> SourceError:
    """The error for a source file that is no longer what was found."""
    return SourceError(
        f"{path}: changed under the run: {how}. The shards no longer match this file: "
        f"restore it (with its time), {another_out()}"
    )


class PatientFile(io.RawIOBase):
    """A file opened for reading bytes: a read that fails is repeated at the same place of the file, opened again.

    `size` is what was found; to end before it is an error. 0 stands for unknown.
    """

    def __init__(self, path: str, size: int = 0) -> None:
        super().__init__()
        self._path, self._expected, self._position = path, size, 0
        self._file: Any = patiently(self._open)
        self._lost = False

    def _open(self) -> Any:
        return open(self._path, "rb", buffering=0)

    def _read(self, size: int) -> bytes:
        return bytes(self._file.read(size))

    def read(self, size: int = -1) -> bytes:
        data = patiently(lambda: self._again(lambda: self._read(size)))
        self._position += len(data)
        if not data and size and self._position < self._expected:
            raise source_changed(
                self._path, f"it ended after {self._position:,} bytes, and had {self._expected:,} when it was found"
            )
        return data

    def _again(self, act: Callable[[], Result]) -> Result:
        if self._lost:
            self._file.close()
            self._file = self._open()
            self._file.seek(self._position)
            self._lost = False
        try:
            return act()
        except OSError:
            self._lost = True
            raise

    def seek(self, offset: int, whence: int = 0) -> int:
        self._position = patiently(lambda: self._again(lambda: int(self._file.seek(offset, whence))))
        return self._position

    def tell(self) -> int:
        return self._position

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return bool(self._file.seekable())

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()
