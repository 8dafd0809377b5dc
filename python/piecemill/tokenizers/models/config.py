"""The configuration files beside a vocabulary: which tokens start and end a text."""

import json
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from piecemill.errors import PlanError, TokenizerError
from piecemill.plans import option
from piecemill.tokenizers.models import Declared

END_OF_TEXT = "<|endoftext|>"
"The one special token whose name alone says what it is for."

ROLES = ("eos", "bos", "pad", "unk", "sep", "cls", "mask")
"What a special token can be for: `transformers` finds each as ROLE_token in tokenizer_config.json."

TOKENIZER_CONFIG = "tokenizer_config.json"
BESIDE = (TOKENIZER_CONFIG, "special_tokens_map.json")

CHAT_TEMPLATE = "chat_template.jinja"
TEMPLATES = "additional_chat_templates"
"A folder of further templates, as `transformers` writes them."

_CARRIED = (
    CHAT_TEMPLATE,
    "chat_template.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "*.model",
    "tokenization_*.py",
    f"{TEMPLATES}/*.jinja",
)


def is_carried(name: str) -> bool:
    """Whether a file belongs to a tokenizer, though no id depends on it: it is saved with the tokenizer as it was."""
    return any(fnmatchcase(name, pattern) for pattern in (*BESIDE, *_CARRIED))


def read_json(file: Path, content: bytes | None = None) -> dict[str, Any]:
    """A JSON object from `file`, or from its `content`, where that was read before."""
    try:
        data = json.loads(file.read_bytes() if content is None else content)
    except FileNotFoundError:
        raise TokenizerError(
            f"{file}: no such file; expected a folder saved with Tokenizer.save, or a tokenizer.json."
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise TokenizerError(f"{file}: could not be read as JSON ({error}).") from error
    if not isinstance(data, dict):
        raise TokenizerError(f"{file}: holds a JSON {type(data).__name__}; expected an object.")
    return data


def files_beside(vocabulary: Path) -> dict[str, bytes]:
    """The content of the files beside `vocabulary` that `transformers` would read; not of a model's weights."""
    found = {name: vocabulary.parent / name for name in BESIDE}
    for file in found.values():
        if file.exists():
            read_json(file)  # so that a broken one is an error here, where its path is known
    for pattern in _CARRIED:
        others = (file for file in sorted(vocabulary.parent.glob(pattern)) if file.is_file() and file != vocabulary)
        found |= {file.relative_to(vocabulary.parent).as_posix(): file for file in others}
    return {name: file.read_bytes() for name, file in found.items() if file.exists()}


def roles_of(beside: Mapping[str, bytes]) -> dict[str, str]:
    """The special token of each role that the files beside a vocabulary declare."""
    config = _config(beside)
    found = {role: _token(config.get(f"{role}_token")) for role in ROLES}
    return {role: text for role, text in found.items() if text is not None}


def _config(beside: Mapping[str, bytes]) -> dict[str, Any]:
    config: dict[str, Any] = {}
    for name in reversed(BESIDE):  # tokenizer_config.json overrides, as in `transformers`
        config |= json.loads(beside[name]) if name in beside else {}
    return config


def parse_roles(given: Mapping[str, str] | Sequence[str]) -> dict[str, str]:
    """Roles as a dict; each may be written as on the command line.

    >>> parse_roles(["eos=<|im_end|>", "pad=<|pad|>"])
    {'eos': '<|im_end|>', 'pad': '<|pad|>'}
    """
    pairs = given.items() if isinstance(given, Mapping) else [tuple(text.partition("=")[::2]) for text in given]
    roles: dict[str, str] = {}
    for role, text in pairs:
        if role not in ROLES or not text:
            expected = f"one of {', '.join(ROLES)}, and a special token, such as {option('role', 'eos=<|im_end|>')}"
            raise PlanError(f"role {f'{role}={text}'!r}: expected {expected}.")
        if roles.setdefault(role, text) != text:
            raise PlanError(f"role {role!r}: given twice, as {roles[role]!r} and as {text!r}. Give one of them.")
    return roles


def with_roles(config: bytes, roles: Mapping[str, str], special_tokens: Mapping[str, int]) -> bytes:
    """A tokenizer_config.json in which `roles` are declared besides those that it has."""
    unknown = next((text for text in roles.values() if text not in special_tokens), None)
    if unknown is not None:
        raise TokenizerError(f"{unknown!r} has a role, and is not one of the {len(special_tokens)} special tokens.")
    changed = json.loads(config) | {f"{role}_token": text for role, text in roles.items()}
    taken = {_token(changed.get(f"{role}_token")) for role in ROLES}
    if "extra_special_tokens" not in changed:  # where transformers 5 writes them; both versions read this key
        changed.pop("additional_special_tokens", None)
        if others := [text for text in special_tokens if text not in taken]:
            changed["additional_special_tokens"] = others
    return (json.dumps(changed, indent=2, ensure_ascii=False) + "\n").encode()


def declared(beside: Mapping[str, bytes], special_tokens: Mapping[str, int], post_processor: Any = None) -> Declared:
    """Start and end as the files declare them; without an end, `<|endoftext|>` if there is such a token."""
    config = _config(beside)
    eos, bos = _token(config.get("eos_token")), _token(config.get("bos_token"))
    if eos is None and END_OF_TEXT in special_tokens:
        eos = END_OF_TEXT
    adds = config.get("add_bos_token")
    if adds is None:
        adds = bos is not None and bos == _first_of_template(post_processor)
    return Declared(eos, bos, bool(adds) and bos is not None)


def _token(given: Any) -> str | None:
    """A token as a config writes it: its text, or an object with it."""
    content = given.get("content") if isinstance(given, dict) else given
    return content if isinstance(content, str) and content else None


def _first_of_template(post_processor: Any) -> str | None:
    """The special token that a tokenizer.json puts before a single text."""
    if not isinstance(post_processor, dict):
        return None
    for step in post_processor.get("processors") or [post_processor]:
        if step.get("type") == "TemplateProcessing" and step.get("single"):
            first = step["single"][0].get("SpecialToken") or {}
            return _token(first.get("id"))
    return None
