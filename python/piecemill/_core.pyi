"""Types of the compiled core; `make lint` compares this file with the module itself."""

from typing import final

import numpy as np
import numpy.typing as npt

__all__ = ["Progress", "__version__", "split_pattern", "split_text", "split_text_reference"]

__version__: str

def split_text(text: str, split: str) -> npt.NDArray[np.int64]:
    """Where each pretoken of `text` ends, in bytes of its UTF-8; the last end is the length of the text.

    `split` is "gpt2", "cl100k", "o200k", "none" (the text is one pretoken) or a regex in fancy-regex syntax: what it
    matches are pretokens, and so is the text between two matches; an empty match only cuts. A regex that does not
    compile, or that gives up on this text, is a SplitError. Lets go of the interpreter.
    """

def split_text_reference(text: str, split: str) -> npt.NDArray[np.int64]:
    """As `split_text`, by the regex that defines the split: the slow twin that `split_text` must equal."""

def split_pattern(split: str) -> str | None:
    """The regex of `split`, for the named ones in a form that HF tokenizers reads the same way; None for "none"."""

@final
class Progress:
    """Counters of a running loop; `stop()` ends it soon after with KeyboardInterrupt."""

    def __new__(cls) -> Progress: ...
    def stop(self) -> None:
        """Ask the loop to end."""
    @property
    def stopped(self) -> bool: ...
    @property
    def merges(self) -> int: ...
    @property
    def occurrences(self) -> int: ...
    @property
    def pair_count(self) -> int: ...
    @property
    def pair(self) -> tuple[int, int]: ...
    @property
    def live_pairs(self) -> int: ...
    @property
    def queue_len(self) -> int: ...
