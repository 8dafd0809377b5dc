"""Types of the compiled core; `make lint` compares this file with the module itself."""

from typing import final

__all__ = ["Progress", "__version__"]

__version__: str

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
