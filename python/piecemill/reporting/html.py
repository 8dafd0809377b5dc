"""The page: sections of facts -> one self-contained HTML file.

Everything that comes from outside passes through `escape`. The style and the script are files in `assets/`; nothing is
loaded from elsewhere. Start with `page`.
"""

import html
import json
import math
import re
from base64 import b64encode
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from piecemill.reporting.tokenizers import pretokenizer_of
from piecemill.reporting.vocabulary import Merges
from piecemill.tokenizers import Tokenizer
from piecemill.tokenizers.pretokenizers import NAMED

_WIDTH, _HEIGHT = 720, 280
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 16, 14, 44
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufeff\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"What does not show, and what would turn the text around it."
_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def page(facts: Mapping[str, Any], tokenizer: Tokenizer | None, merges: Merges | None, limit: int) -> bytes:
    """The page as bytes. The vocabulary is in it, for typing text, if it can be and the page stays within `limit`."""
    bpe, missing = typing_data(tokenizer, merges)
    whole = _page(facts, bpe, missing)
    if bpe is not None and len(whole) > limit:
        whole = _page(facts, None, f"the page would have more than {limit / 1e6:.0f} MB with the vocabulary in it")
    return whole


def _page(facts: Mapping[str, Any], bpe: Mapping[str, Any] | None, missing: str) -> bytes:
    sections = facts["sections"]
    links = "".join(f'<a href="#{escape(one["id"])}-{n}">{escape(one["title"])}</a>' for n, one in enumerate(sections))
    body = "".join(_section(one, number, bpe, missing) for number, one in enumerate(sections))
    data = "" if bpe is None else f'<script type="application/json" id="bpe">{_json(bpe)}</script>'
    assets = files("piecemill.reporting") / "assets"
    style, script = ((assets / name).read_text(encoding="utf-8") for name in ("report.css", "report.js"))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">'
        f"<title>Piecemill report</title><style>{style}</style></head><body>"
        f"<header><h1>Piecemill report</h1><nav>{links}</nav></header><main>{body}</main>"
        f"{data}<script>{script}</script></body></html>\n"
    ).encode("utf-8", "backslashreplace")


def escape(value: object) -> str:
    """Text for HTML: markup escaped, and control characters as one would write them.

    >>> escape('<b>\\n')
    '&lt;b&gt;\\\\n'
    """
    text = _CONTROL.sub(lambda found: _NAMED.get(found[0], f"\\u{ord(found[0]):04x}"), str(value))
    return html.escape(text, quote=True)


def show(key: str, value: object) -> str:
    """A figure as the page shows it; the name says whether it is a share.

    >>> show("tokens", 1234567), show("tokens_share", 0.125), show("bytes_per_token", 3.14159), show("x", None)
    ('1,234,567', '12.50%', '3.142', '–')
    """
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return str(value) if key in ("id", "token") else f"{value:,}"
    if isinstance(value, float):
        if "share" in key.split("_"):
            return f"{value:.2%}"
        return f"{value:,.3f}" if abs(value) < 1000 else f"{value:,.0f}"
    return str(value)


def _json(value: object) -> str:
    """JSON inside a script element: `</script>` and `<!--` cannot occur in it."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def _section(one: Mapping[str, Any], number: int, bpe: Mapping[str, Any] | None, missing: str) -> str:
    parts = [f"<h2>{escape(one['title'])}</h2>", f'<p class="rule">{escape(one["rule"])}</p>']
    if figures := one.get("figures"):
        rows = "".join(
            f"<div><dt>{escape(_label(key).removesuffix(' share'))}</dt><dd>{escape(show(key, value))}</dd></div>"
            for key, value in figures.items()
        )
        parts.append(f"<dl>{rows}</dl>")
    parts += [_curve(curve) for curve in one.get("curves", ())]
    if one.get("typing"):
        parts.append(_typing_box(bpe, missing))
    parts += [_sample(sample) for sample in one.get("samples", ())]
    parts += [_table(table) for table in one.get("tables", ()) if table["rows"]]
    return f'<section id="{escape(one["id"])}-{number}">{"".join(parts)}</section>'


def _label(key: str) -> str:
    return key.replace("_", " ")


def _table(table: Mapping[str, Any]) -> str:
    rows = table["rows"]
    keys = list(rows[0])
    numeric = {key for key in keys if any(isinstance(row.get(key), int | float) for row in rows)}
    most = max((row[table["bar"]] or 0 for row in rows), default=0) if table.get("bar") else 0
    names = table.get("names", ())  # columns whose heads are names from outside
    heads = [key if key in names else _label(key) for key in keys]
    head = "".join(f"<th{_class(key in numeric)}>{escape(text)}</th>" for key, text in zip(keys, heads, strict=True))
    lines = []
    for row in rows:
        cells = []
        for key in keys:
            text = escape(show(key, row.get(key)))
            if key == table.get("bar") and most > 0:
                width = max(0.0, (row[key] or 0) / most)
                text = f'<span class="bar" style="--w:{width:.3f}">{text}</span>'
            elif key not in numeric and key in ("token", "tokens", "cut", "text", "features"):
                text = f"<code>{text}</code>"
            cells.append(f"<td{_class(key in numeric)}>{text}</td>")
        lines.append(f"<tr>{''.join(cells)}</tr>")
    note = f'<p class="note">{escape(table["note"])}</p>' if table.get("note") else ""
    drawn = (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>{note}'
    )
    if table.get("folded") or len(rows) > 24:
        return f"<details><summary>{escape(table['title'])} ({len(rows):,})</summary>{drawn}</details>"
    return f"<h3>{escape(table['title'])}</h3>{drawn}"


def _class(numeric: bool) -> str:
    return ' class="n"' if numeric else ""


def _sample(sample: Mapping[str, Any]) -> str:
    spans = []
    for at, (token, text, raw, count) in enumerate(sample["tokens"]):
        often = "" if count is None else f" · {count:,} times in the corpus"
        title = f"id {token} · {raw or 'not bytes'}{often}"
        spans.append(f'<span class="t{at % 6}" tabindex="0" title="{escape(title)}">{_token_text(text)}</span>')
    name = f" · {escape(sample['name'])}" if sample["name"] else ""
    return f'<h3>{escape(sample["group"])}<small>{name}</small></h3><p class="tokens">{"".join(spans)}</p>'


def _token_text(text: str) -> str:
    """A token in running text: line ends are shown and kept."""
    return "\n".join(escape(part) + "⏎" for part in text.split("\n")[:-1]) + (
        ("\n" if "\n" in text else "") + escape(text.split("\n")[-1])
    )


def _typing_box(bpe: Mapping[str, Any] | None, missing: str) -> str:
    if bpe is None:
        return f'<p class="note">Text cannot be typed here: {escape(missing)}.</p>' if missing else ""
    return (
        '<label for="typed">Your own text</label>'
        '<textarea id="typed" rows="3" spellcheck="false">The quick brown fox: 12,345 lines of code.</textarea>'
        '<p class="note" id="typed-count"></p><p class="tokens" id="typed-tokens"></p>'
        '<p class="note">ids: <output id="typed-ids" for="typed"></output></p>'
    )


# The curve, as SVG


def _curve(curve: Mapping[str, Any]) -> str:
    points = [point for series in curve["series"] for point in series["points"]]
    xs, ys = [float(point[0]) for point in points], [float(point[1]) for point in points]
    log = bool(curve.get("log")) and min(xs) > 0
    low, high = min(ys), max(ys)
    low, high = (low - 0.5, high + 0.5) if low == high else (low, high)
    left, right = (math.log(min(xs)), math.log(max(xs))) if log else (min(xs), max(xs))

    def x_of(value: float) -> float:
        part = ((math.log(value) if log else value) - left) / ((right - left) or 1)
        return _LEFT + part * (_WIDTH - _LEFT - _RIGHT)

    def y_of(value: float) -> float:
        return _HEIGHT - _BOTTOM - float((value - low) / (high - low)) * (_HEIGHT - _TOP - _BOTTOM)

    parts = []
    for value in _ticks(low, high):
        y = y_of(value)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_tick(value)}</text>')
    for value in _log_ticks(min(xs), max(xs)) if log else _ticks(min(xs), max(xs)):
        place = f'x="{x_of(value):.1f}" y="{_HEIGHT - _BOTTOM + 18}"'
        parts.append(f'<text class="tick" {place} text-anchor="middle">{_tick(value)}</text>')
    radius = 3 if len(xs) < 100 else 1.5
    for number, series in enumerate(curve["series"]):
        line = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in series["points"])
        dots = "".join(
            f'<circle r="{radius}" cx="{x_of(x):.1f}" cy="{y_of(y):.1f}"><title>{escape(series["name"])}, '
            f"{escape(show('x', x))}: {escape(show('y', y))}</title></circle>"
            for x, y in series["points"]
        )
        parts.append(f'<g class="s{number % 4}"><polyline points="{line}"/>{dots}</g>')
    names = [series["name"] for series in curve["series"]]
    legend = "".join(f'<span class="s{at % 4}">{escape(name)}</span>' for at, name in enumerate(names))
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(f'<text class="axis" x="{middle}" y="{_HEIGHT - 6}" text-anchor="middle">{escape(curve["x"])}</text>')
    return (
        f"<h3>{escape(curve['title'])} <small>{escape(curve['y'])}</small></h3>"
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(curve["title"])}">{"".join(parts)}</svg>'
        + (f'<p class="legend">{legend}</p>' if len(names) > 1 else "")
    )


def _tick(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:g}"


def _ticks(low: float, high: float) -> list[float]:
    step = 10 ** math.floor(math.log10((high - low) / 4 or 1))
    step *= next(times for times in (1, 2, 5, 10) if (high - low) / (step * times) <= 6)
    return [round(at * step, 10) for at in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    return [10.0**power for power in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)]


# Encoding in the browser

_WHITE = r"\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
"Unicode's White_Space, which is `\\s` in Rust; in JavaScript `\\s` has U+FEFF and lacks U+0085."
_INSENSITIVE = {letter: f"[{letter}{letter.upper()}]" for letter in "trevmld"} | {"s": "[sS\u017f]"}


def to_javascript(pattern: str) -> str:
    """A regex of a named pretokenizer for JavaScript, with the flag `u`."""
    out = re.sub(
        r"\(\?i:([^)]*)\)", lambda found: "(?:" + "".join(_INSENSITIVE.get(c, c) for c in found[1]) + ")", pattern
    )
    out = out.replace(r"[\s\S]", "[^]")  # any character
    # Inside a class the characters stand as they are; outside they need one.
    made, inside, at = [], False, 0
    while at < len(out):
        two = out[at : at + 2]
        if two in ("\\s", "\\S"):
            made.append(_WHITE if inside else f"[{'^' * (two[1] == 'S')}{_WHITE}]")
            at += 2
        elif out[at] == "\\":
            made.append(two)
            at += 2
        else:
            inside = out[at] == "[" if not inside else out[at] != "]"
            made.append(out[at])
            at += 1
    return "".join(made)


def typing_data(tokenizer: Tokenizer | None, merges: Merges | None) -> tuple[dict[str, Any] | None, str]:
    """What `report.js` needs to encode; None and the reason where it cannot."""
    if tokenizer is None:
        return None, ""
    pretokenizer = pretokenizer_of(tokenizer)
    if merges is None or pretokenizer not in NAMED or len(merges.byte_ids) < 256:
        return None, "only byte-level BPE with a named pretokenizer and all 256 bytes can be encoded by this page"
    width = 2 if tokenizer.vocab_size <= 1 << 16 else 3
    # Ids mostly rise by one: where they do not, a run begins.
    starts = np.flatnonzero(np.diff(merges.made, prepend=-2) != 1)
    return {
        "bytes": merges.byte_ids,
        "width": width,
        "merges": _packed(merges.pairs.reshape(-1), width),
        "runs": [[int(at), int(merges.made[at])] for at in starts],
        "whole": [[token.hex(), i] for token, i in merges.whole.items()],
        "patterns": [to_javascript(pattern) for pattern in NAMED[pretokenizer]["patterns"]],
    }, ""


def _packed(ids: NDArray[np.int64], width: int) -> str:
    """Ids in base64, `width` bytes each, the lowest first."""
    flat = np.ascontiguousarray(ids, "<u4").view(np.uint8).reshape(-1, 4)[:, :width]
    return b64encode(np.ascontiguousarray(flat).tobytes()).decode()
