"""Engines: what encodes.

An engine is a module with `name`, the models it `reads`, `can_encode(model)` (a reason why not, or None),
`exact(model)` (whether its ids need no comparison with the home library) and `load(model)`. To add one, write the
module and name it in `_NAMES`. Choosing is one loop over the engines in order of preference; an engine that is neither
the home library nor exact is compared with the home library on the nasty strings, and a difference refuses it with the
reason.

Start with `choose`.
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Literal, Protocol, TypedDict, Unpack, cast

import numpy as np
from numpy.typing import NDArray

from piecemill.errors import PiecemillError, TokenizerError
from piecemill.plans import option
from piecemill.tokenizers.models import Model
from piecemill.tokenizers.nasty import NASTY
from piecemill.tokenizers.texts import check_flat, finish, first_difference, flatten, texts_of

Ids = NDArray[np.uint32] | NDArray[np.uint16]
Encoded = tuple[Ids, NDArray[np.int64]]
"All ids one after another, and where each text ends."

Parse = Literal["plain", "parse"] | Sequence[str]
"Which special tokens are found in texts: none, all, or those named."

_NAMES = ("piecemill", "sentencepiece", "tiktoken", "tokenizers", "cuda")
"In order of preference; the GPU is only used if requested. Modules are imported when one is chosen."

_ADDED = 500
"Added tokens that the comparison at load looks at."


class EncodeOptions(TypedDict):
    """Keywords of `encode_flat`."""

    bos: int | None
    "The id before each text."
    eos: int | None
    "The id after each text."
    narrow: bool
    "Give uint16 instead of uint32."
    special: Parse
    threads: int
    "0 for all cores."


class Engine(Protocol):
    """One tokenizer, loaded. `piecemill._core.Encoder` has the same two methods."""

    name: str
    why: str

    @property
    def version(self) -> str: ...

    def encode(self, text: str, special: Parse) -> NDArray[np.uint32]: ...

    def encode_flat(
        self, data: NDArray[np.uint8], ends: NDArray[np.int64], **options: Unpack[EncodeOptions]
    ) -> Encoded:
        """The ids of every text, `bos` and `eos` in place."""


class LibraryEngine(ABC):
    """A tokenizer in another library, which encodes lists of texts: `rows` gives the ids of each."""

    name: str
    why = ""

    @property
    def version(self) -> str:
        from importlib.metadata import version  # here, as it imports much

        return version(self.name)

    def encode(self, text: str, special: Parse) -> NDArray[np.uint32]:
        (row,) = self.rows([text], special, 1)
        return np.array(row, np.uint32)

    def encode_flat(
        self, data: NDArray[np.uint8], ends: NDArray[np.int64], **options: Unpack[EncodeOptions]
    ) -> Encoded:
        rows = self.rows(texts_of(*check_flat(data, ends)), options["special"], options["threads"])
        return finish(rows, bos=options["bos"], eos=options["eos"], narrow=options["narrow"])

    @abstractmethod
    def rows(self, texts: list[str], special: Parse, threads: int) -> Iterable[Any]:
        """The ids of each text."""


class EngineModule(Protocol):
    """What an engine's module offers."""

    name: str
    reads: tuple[type, ...]

    def can_encode(self, model: Any) -> str | None: ...

    def exact(self, model: Any) -> bool: ...

    def load(self, model: Any) -> Engine: ...


def engines() -> Iterator[EngineModule]:
    """The modules, in order of preference."""
    for name in _NAMES:
        yield cast(EngineModule, import_module(f"{__name__}.{name}"))


def choose(model: Model, asked: str | None) -> Engine:
    """The requested engine, else the first that can encode `model`; an error gives the reasons if none can."""
    reasons: dict[str, str] = {}
    for engine in engines():
        if asked not in (None, engine.name) or not isinstance(model, engine.reads):
            continue
        try:
            reason = engine.can_encode(model)
            loaded = engine.load(model) if reason is None else None
        except PiecemillError as error:
            if engine.name == model.home:
                raise
            reason, loaded = f"{engine.name} cannot load it: {error}", None
        if loaded is not None:
            reason, note = (None, "") if engine.exact(model) else difference(loaded, model)
            if reason is None:
                loaded.why = ("requested" if asked else _why(model, loaded, reasons)) + note
                return loaded
        reasons[engine.name] = reason or ""
    if asked is None:
        raise TokenizerError(f"no engine can encode this: {'; '.join(reasons.values())}.")
    if asked == "cuda" and asked in reasons:  # a machine without a GPU does the same, more slowly
        loaded = choose(model, None)
        loaded.why = f"cuda was requested, but {reasons[asked]}"
        warnings.warn(
            f"{option('engine', asked)}: {reasons[asked]}. {loaded.name} encodes instead, with equal ids.", stacklevel=2
        )
        return loaded
    known = [engine.name for engine in engines() if isinstance(model, engine.reads)]
    reason = reasons.get(asked, f"{asked} does not encode a {model.kind}")
    raise TokenizerError(f"{option('engine', asked)}: {reason}. Engines of a {model.kind}: {', '.join(known)}.")


def load_engine(model: Model, name: str, why: str) -> Engine:
    """Engine `name`, without choosing: for a tokenizer that came from another process, or the home library."""
    loaded = next(engine for engine in engines() if engine.name == name).load(model)
    loaded.why = why
    return loaded


def text_buffers(engine: str, size: int) -> Callable[[], NDArray[np.uint8]] | None:
    """A source of buffers of `size` bytes that `engine` reads text from fastest; None where all memory is alike."""
    if engine != "cuda" or find_spec("cupy") is None:
        return None
    from piecemill.tokenizers.engines.cuda.device import missing, pinned

    return partial(pinned, size) if missing() is None else None


def home_missing(model: Model) -> str | None:
    """Why the home library of `model` cannot be used here; None if it can."""
    return next(engine for engine in engines() if engine.name == model.home).can_encode(model)


def difference(engine: Engine, model: Model) -> tuple[str | None, str]:
    """Where `engine` and the home library give other ids for the nasty strings, in words; None if nowhere.

    None too, with a note, if the home library is not installed or refuses the tokenizer: HF `tokenizers` 1.0 cannot
    load all that 0.2x can.
    """
    if engine.name == model.home:
        return None, ""
    if (missing := home_missing(model)) is not None:
        return None, f"; not compared, as {missing}"
    home = load_engine(model, model.home, "compared with")
    special, texts = _probes(model)
    data, ends = flatten(texts)
    try:
        wanted = encode_all(home, data, ends, special)
    except PiecemillError as error:
        return None, f"; not compared, as {str(error).rstrip('.')}"
    try:
        at = first_difference(encode_all(engine, data, ends, special), wanted)
    except PiecemillError as error:
        return f"{engine.name} cannot encode all texts: {error}", ""
    if at is None:
        return None, ""
    return f"{engine.name} gives other ids than {model.home}, for example for {texts[at][:40]!r}", ""


def encode_all(engine: Engine, data: NDArray[np.uint8], ends: NDArray[np.int64], special: Parse = "plain") -> Encoded:
    """The bare ids of every text, as verification compares them."""
    return engine.encode_flat(data, ends, bos=None, eos=None, narrow=False, special=special, threads=1)


def _probes(model: Model) -> tuple[Parse, list[str]]:
    """Texts to compare on: the nasty strings, and every added token in all kinds of places.

    Special tokens are parsed where they can be. As plain text, only the tokens that are looked for are fewer, and the
    home library would have to load a second copy of the tokenizer.
    """
    added = [one["content"] for one in getattr(model, "added_tokens", ())] or list(model.special_tokens)
    placed = [f"{text} {text}\n{text}s x{text}y  {text}  .{text}." for text in added[:_ADDED] if text]
    if alphabet_of(model):
        return "plain", nasty(model)
    return "plain" if model.parse_refused() else "parse", [*NASTY, *placed]


def alphabet_of(model: Model) -> bytes | None:
    """The only bytes that can be encoded; None if there is no such limit."""
    alphabet: bytes = getattr(getattr(model, "vocabulary", None), "alphabet", b"")
    return alphabet if 0 < len(alphabet) < 256 else None


def nasty(model: Model) -> list[str]:
    """The nasty strings; of a vocabulary with an alphabet, what of them is in it, and pairs of its characters."""
    if (alphabet := alphabet_of(model)) is None:
        return list(NASTY)
    within = [bytes(byte for byte in text.encode() if byte in alphabet).decode("utf-8", "ignore") for text in NASTY]
    characters = alphabet.decode("utf-8", "ignore")[:64]
    return [*filter(None, within), *(f"{one}{two}{one}{one}" for one in characters for two in characters)]


def _why(model: Model, engine: Engine, reasons: dict[str, str]) -> str:
    if reasons:
        return "; ".join(reasons.values())
    return "the home library" if engine.name == model.home else "the fastest that can encode it"
