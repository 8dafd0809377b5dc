"""Plans: what the records of options of all commands share."""

import difflib
import shlex
from collections import abc
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import wraps
from inspect import Parameter, Signature, signature
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from types import UnionType
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from piecemill.errors import PlanError

P = TypeVar("P")
R = TypeVar("R")
A = ParamSpec("A")

_SHOWN = 60
ANY = "any"
"In the metadata of a field that takes objects in Python which the command line has no words for: see `checked`."


class _FromPlan:
    def __repr__(self) -> str:
        return "from the plan"


FROM_PLAN: Any = _FromPlan()
"The default of a keyword that stands for a field of a plan: not given, so the plan's own value counts."


def with_keywords(plan: P | None, kind: type[P], arguments: Mapping[str, Any], unknown: dict[str, Any]) -> P:
    """`plan`, or the defaults of `kind`, with the keywords of a verb that were given; `arguments` is its `locals()`."""
    plan = kind() if plan is None else plan
    if not isinstance(plan, kind):
        raise PlanError(f"plan: found {type(plan).__name__}, expected {kind.__name__}, or its fields as keywords.")
    for name in ("on_progress", "on_part"):
        told = arguments.get(name)
        if told is not None and not callable(told):
            raise PlanError(f"{name}: found {type(told).__name__}, expected a function that is called with each event.")
    known = [field.name for field in fields(plan)]  # type: ignore[arg-type] # a dataclass
    check_names(unknown, known)
    given = {name: arguments[name] for name in known if arguments[name] is not FROM_PLAN}
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    return replace(plan, **given)  # type: ignore[type-var]


RENAMED = {
    "split": "pretokenizer",
    "tokenizer_split": "pretokenizer",
    "superword_split": "superword_pretokenizer",
    "split_note": "pretokenizer_note",
}
"Earlier names of options: named in an error, and still in files on disk."


def new_names(record: dict[str, Any]) -> dict[str, Any]:
    """A record on disk with the names of today, also if an earlier version wrote it."""
    if "pretokenizer" in record:
        return record
    renamed = {RENAMED.get(name, name): value for name, value in record.items()}
    plan = renamed.get("plan")
    return {**renamed, "plan": new_names(plan)} if isinstance(plan, dict) else renamed


def check_names(given: Iterable[str], known: Sequence[str]) -> None:
    """PlanError for the first name that is not known, with the nearest one that is."""
    for name in given:
        if name not in known:
            near = [new for old, new in RENAMED.items() if old == name and new in known]
            near = near or difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {list(known)}."
            raise PlanError(f"unknown option {name!r}; {hint}")


def did_you_mean(function: Callable[A, R]) -> Callable[A, R]:
    """`function`, where an unknown keyword is a PlanError that names the nearest; also a value of another type.

    Types other than bool are compared only once Python raised an error: a call that works does not pay for it.
    """
    spelled = signature(function)
    names = [name for name in spelled.parameters if name not in ("self", "cls")]
    switches = {name for name, each in spelled.parameters.items() if each.annotation is bool}
    takes_more = any(each.kind is Parameter.VAR_KEYWORD for each in spelled.parameters.values())

    @wraps(function)
    def checked(*given: A.args, **named: A.kwargs) -> R:
        if not takes_more:  # else the function itself says what else it takes
            check_names(named, names)
        for name in switches & named.keys() if switches else ():  # any other value would be taken for True or False
            if named[name] is not FROM_PLAN and not _fits(named[name], bool):
                raise _wrong_type(name, named[name], bool, secret=False)
        try:
            return function(*given, **named)
        except _RAW as error:
            _check_arguments(spelled, given, named, error)
            raise

    return checked


_RAW = (TypeError, AttributeError, ValueError, OverflowError)
"What Python and libraries raise for arguments of other types."


def _check_arguments(spelled: Signature, given: Sequence[Any], named: Mapping[str, Any], error: Exception) -> None:
    """PlanError for the first argument whose value its annotation does not allow."""
    try:
        values = spelled.bind(*given, **named).arguments
    except TypeError:
        return  # one is missing, or one too many: Python's own message says which
    for name, value in values.items():
        kind = spelled.parameters[name].annotation
        if value is not FROM_PLAN and not _allows(kind, value):
            raise _wrong_type(name, value, kind, secret="storage" in name)
    _check_characters(values, error)


def _allows(kind: Any, value: Any) -> bool:
    """Whether an annotation allows a value; True where only a type checker could say it."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return any(_allows(one, value) for one in inner)
    if origin in (abc.Sequence, abc.Iterable):
        many = isinstance(value, Iterable) and not isinstance(value, str | bytes)
        return many and all(_allows(inner[0], one) for one in value)
    if origin is abc.Callable:
        return callable(value)
    if origin is Literal or kind in (bool, int, float):
        return _fits(value, kind)
    if kind in (Any, Parameter.empty):
        return True
    kind = type(None) if kind is None else origin if origin is PathLike else kind
    if isinstance(kind, type) and get_origin(kind) is None and not getattr(kind, "_is_protocol", False):
        return isinstance(value, kind)
    return True


def _check_characters(values: Mapping[str, Any], error: Exception) -> None:
    """PlanError for text that can be no path, no name and no pattern.

    A separator and a regex may have a NUL character: it counts only if `error` is about one.
    """
    for name, value in values.items():
        if isinstance(value, str) and (("\0" in value and "null" in str(error)) or not is_unicode(value)):
            raise PlanError(f"{option(name, value)}: has a character that no path or pattern can have.")


def is_unicode(text: str) -> bool:
    """Whether all of a text can be written as UTF-8; a lone surrogate cannot.

    >>> is_unicode("é"), is_unicode(chr(0xD800))
    (True, False)
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def arguments_of(model: Callable[A, Any]) -> Callable[[Callable[..., R]], Callable[A, R]]:
    """For a verb with the arguments of `model`, spelled out only there: it gets all of them by name, with defaults."""
    spelled = signature(model)

    def decorate(function: Callable[..., R]) -> Callable[A, R]:
        @wraps(function)
        def verb(*given: A.args, **named: A.kwargs) -> R:
            bound = spelled.bind(*given, **named)
            bound.apply_defaults()
            return function(**bound.arguments)

        returns = signature(function).return_annotation
        verb.__signature__ = spelled.replace(return_annotation=returns)  # type: ignore[attr-defined]
        return verb

    return decorate


def checked(plan: type[P]) -> type[P]:
    """A class of options whose constructor refuses unknown keywords, naming the nearest, and values of other types.

    To stand above `dataclass`. The class's own checks come first, as they know more.
    """
    construct: Callable[..., None] = plan.__init__
    known = [field.name for field in fields(plan)]  # type: ignore[arg-type] # a dataclass

    @wraps(construct)
    def checking(self: P, *given: Any, **named: Any) -> None:
        check_names(named, known)
        try:
            construct(self, *given, **named)
        except _RAW as error:
            values = {**dict(zip(known, given, strict=False)), **named}
            _check_types(plan, values)
            _check_characters(values, error)
            raise
        _check_types(plan, {name: getattr(self, name) for name in known})

    setattr(plan, "__init__", checking)  # noqa: B010 # mypy refuses the assignment
    return plan


def _check_types(plan: type, values: dict[str, Any]) -> None:
    kinds = get_type_hints(plan)
    for each in fields(plan):
        if each.name not in values or each.metadata.get(ANY):
            continue
        if not _fits(value := values[each.name], kinds[each.name]):
            raise _wrong_type(each.name, value, kinds[each.name], secret=not each.repr)


def _wrong_type(name: str, value: Any, kind: Any, *, secret: bool) -> PlanError:
    shown = option(name, ... if secret or len(repr(value)) > _SHOWN else value)
    found = "more than 64 bits" if isinstance(value, int) and abs(value) >= 1 << 64 else type(value).__name__
    return PlanError(f"{shown}: found {found}, expected {_in_words(kind)}.")


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value can stand for an option that is declared so; sizes and ids, declared as text, may be numbers."""
    inner = get_args(kind)
    if get_origin(kind) is Literal:
        return any(type(value) is type(one) and value == one for one in inner)
    if get_origin(kind) is tuple:
        of_text = inner[0] is str
        return isinstance(value, list | tuple) and all(
            isinstance(one, str) if of_text else _fits(one, inner[0]) for one in value
        )
    if inner:
        return any(_fits(value, one) for one in inner)
    if kind is bool:
        return isinstance(value, Hashable) and value in (True, False)
    if kind in (int, float):
        number = isinstance(value, Integral if kind is int else Real) and not isinstance(value, bool)
        return number and abs(value) < 1 << 64
    return isinstance(value, {str: str | int | PathLike, Path: str | PathLike}.get(kind, kind))


def _in_words(kind: Any) -> str:
    inner, origin = get_args(kind), get_origin(kind)
    if origin in (tuple, abc.Sequence, abc.Iterable):
        return f"a list, each of it {_in_words(inner[0])}"
    if origin is abc.Callable:
        return "a function"
    if origin is PathLike:
        return "a path"
    if origin in (Literal, Union, UnionType):
        words = list(dict.fromkeys(repr(one) if origin is Literal else _in_words(one) for one in inner))
        return f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else words[0]
    named = {int: "a whole number", float: "a number", str: "text", bool: "True or False", Path: "a path"}
    return named.get(kind, "None" if kind in (None, type(None)) else getattr(kind, "__name__", str(kind)))


_flags = False
"Whether options are flags of a command in this process, in all of its threads, and not arguments of Python."


@contextmanager
def speaking_flags() -> Iterator[None]:
    """Inside, messages name options as the command line does."""
    global _flags
    before, _flags = _flags, True
    try:
        yield
    finally:
        _flags = before


def option(name: str, value: Any = None) -> str:
    """An option as one would write it where the reader is: as an argument, or as a flag; `...` for any value.

    >>> option("on_bad_row", "skip"), option("time", ...), option("items"), option("force", True)
    ("on_bad_row='skip'", 'time=...', 'items', 'force=True')
    """
    if _flags:
        shown = "" if isinstance(value, bool | None) else " ..." if value is ... else f" {shlex.quote(str(value))}"
        return f"--{'no-' if value is False else ''}{name.replace('_', '-')}{shown}"
    return name + ("" if value is None else "=..." if value is ... else f"={value!r}")


def option_of(command: str, name: str, value: Any) -> str:
    """An option of one command, for a message that other commands show too: `piecemill actions split --user ...`."""
    return by_place(option(name, value), f"`piecemill {command} {option(name, value)}`")


def by_place(in_python: str, in_shell: str) -> str:
    """What to do, said to whom reads it: someone who writes Python, or who runs commands."""
    return in_shell if _flags else in_python


def another_out() -> str:
    """The two ways on where the output holds something else."""
    return f"choose another {option('out')}, or pass {option('force', True)} to replace what is there."


def prepared_again() -> str:
    """The two ways on from a prepared folder that was damaged."""
    return f"Restore it from a copy, or prepare the folder again with {option('force', True)}."


def unreadable(error: OSError) -> str:
    """That a file of a prepared folder cannot be read, why, and what to do."""
    way_out = "Get the right to read it." if isinstance(error, PermissionError) else prepared_again()
    return f"cannot be read: {error.strerror or error}. {way_out}"


def check_same(where: object, name: str, old: Any, new: Any, *, force: bool = False) -> None:
    """PlanError if a field of the plan that something was begun with is another now; says what differs in it.

    `force` says that the verb has an option to replace the output.
    """
    if old == new:
        return
    if isinstance(old, dict) and isinstance(new, dict):
        inner = next(key for key in sorted({*old, *new}) if old.get(key) != new.get(key))
        full = inner if name == "options" else f"{name}.{inner}"
        return check_same(where, full, old.get(inner), new.get(inner), force=force)
    ways = another_out() if force else f"or choose another {option('out')}."
    raise PlanError(
        f"{where}: made with {name}={_short(old)}, requested {name}={_short(new)}. "
        f"Going on needs the same plan: use the same {option(name.partition('.')[0])}, {ways}"
    )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
