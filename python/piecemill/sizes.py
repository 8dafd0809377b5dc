"""Sizes as people write and read them."""

import re

from piecemill.errors import PlanError
from piecemill.plans import option

_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_UNITS |= {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def parse_size(text: str | int, name: str) -> int:
    """The bytes in a size such as `2GiB`, `500MB`, `64k` or `1048576`; `name` is the option, for the error.

    >>> parse_size("2GiB", "memory")
    2147483648
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", str(text))
    if match is None or match[2].lower() not in _UNITS:
        raise PlanError(f"{option(name, text)}: expected a size such as 2GiB, 500MB or 1048576.")
    return int(float(match[1]) * _UNITS[match[2].lower()])


def plural(count: int, what: str) -> str:
    """A number of things, with its noun.

    >>> plural(1, "shard"), plural(2_000, "shard")
    ('1 shard', '2,000 shards')
    """
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def show_bytes(count: float) -> str:
    """A number of bytes in the unit people would choose.

    >>> show_bytes(94_600_000_000)
    '94.6 GB'
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def show_count(count: float) -> str:
    """A large number, shortened; a small one as it is.

    >>> show_count(22_870_000_000), show_count(8_011)
    ('22.87 G', '8,011')
    """
    for unit, size in (("T", 10**12), ("G", 10**9), ("M", 10**6)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count:,.0f}"


def show_seconds(seconds: float) -> str:
    """A time as people say it, never more precise than it is.

    >>> show_seconds(4.2), show_seconds(95), show_seconds(7300)
    ('4.2 s', '1 min 35 s', '2 h 01 min')
    """
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    return f"{minutes // 60} h {minutes % 60:02} min"
