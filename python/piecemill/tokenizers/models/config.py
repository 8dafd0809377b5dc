"""The configuration files beside a vocabulary: which tokens start and end a text."""

import json
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from piecemill.errors import PlanError, TokenizerError
from piecemill.files import regular
from piecemill.plans import option
from piecemill.tokenizers.models import Declared

END_OF_TEXT = "<|endoftext|>"
"The one special token whose name alone says what it is for."

ROLES = ("eos", "bos", "pad", "unk", "sep", "cls", "mask")
"What a special token can be for: `transformers` finds each as ROLE_token in tokenizer_config.json."

TOKENIZER_CONFIG = "tokenizer_config.json"
BESIDE = (TOKENIZER_CONFIG, "special_tokens_map.json")

ALPHABET = "piecemill_alphabet"
"""Key of tokenizer_config.json for a vocabulary with tokens for these bytes only: any other byte is an error. (HF
`tokenizers` leaves such bytes out of a text without a word, and we do as it does for vocabularies of others.)"""

DEFAULT_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "clean_up_tokenization_spaces": False,
    # How transformers writes "no limit": a tokenizer does not know the model's.
    "model_max_length": int(1e30),
}
"tokenizer_config.json of a tokenizer.json that has none."

CHAT_TEMPLATE = "chat_template.jinja"
MAPPING = "mapping.json"
"Of a tokenizer that was continued: the old ids that each new token consists of; of a pruned one, the new of each old."
TEMPLATES = "additional_chat_templates"
"A folder of further templates, as `transformers` writes them."

_CARRIED = (
    CHAT_TEMPLATE,
    MAPPING,
    "chat_template.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.model",
    "sentencepiece.bpe.model",
    "spm.model",
    "tokenization_*.py",
    f"{TEMPLATES}/*.jinja",
)


def is_carried(name: str) -> bool:
    """Whether a file belongs to a tokenizer, though no id depends on it: it is saved with the tokenizer as it was."""
    return any(fnmatchcase(name, pattern) for pattern in (*BESIDE, *_CARRIED))


def read_whole(file: Path) -> bytes:
    """The content of a file; an OSError if it is a device or a pipe."""
    return regular(file).read_bytes()


def read_json(file: Path, content: bytes | None = None) -> dict[str, Any]:
    """A JSON object from `file`, or from its `content`, where that was read before."""
    try:
        data = json.loads(read_whole(file) if content is None else content)
    except FileNotFoundError:
        raise TokenizerError(
            f"{file}: no such file; expected a folder saved with Tokenizer.save, or a tokenizer.json."
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise TokenizerError(f"{file}: could not be read as JSON ({error}).") from error
    if not isinstance(data, dict):
        raise TokenizerError(f"{file}: holds a JSON {type(data).__name__}; expected an object.")
    return data


def training_json(record: Mapping[str, Any]) -> bytes:
    """The record of the training as a file."""
    try:
        text = json.dumps(record, ensure_ascii=False, indent=2, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise TokenizerError(
            f"training record: {error}; expected only what JSON can hold (text, numbers, lists, objects)."
        ) from error
    # A file name that is not Unicode has lone surrogates: UTF-8 cannot hold them, JSON's escapes can.
    return f"{text}\n".encode("utf-8", "backslashreplace")


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


def has_alphabet(beside: Mapping[str, bytes]) -> bool:
    """Whether the vocabulary has tokens for some bytes only, on purpose."""
    return ALPHABET in _config(beside)


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
    if not isinstance(given, Mapping) and (
        not isinstance(given, Sequence) or isinstance(given, str) or not all(isinstance(one, str) for one in given)
    ):
        raise PlanError(f"roles={given!r}: expected a dict, such as {{'eos': '<|im_end|>'}}, or ['eos=<|im_end|>'].")
    pairs = given.items() if isinstance(given, Mapping) else [tuple(text.partition("=")[::2]) for text in given]
    roles: dict[str, str] = {}
    for role, text in pairs:
        if role not in ROLES or not text:
            expected = f"one of {', '.join(ROLES)}, and a special token, such as {option('role', 'eos=<|im_end|>')}"
            raise PlanError(f"role {f'{role}={text}'!r}: expected {expected}.")
        if roles.setdefault(role, text) != text:
            raise PlanError(f"role {role!r}: given twice, as {roles[role]!r} and as {text!r}. Give one of them.")
    return roles


def with_roles(
    config: Mapping[str, Any], roles: Mapping[str, str], special_tokens: Mapping[str, int], new: Sequence[str] = ()
) -> bytes:
    """A tokenizer_config.json in which `roles` are declared, and the `new` special tokens, besides those it has."""
    changed = {**config, **{f"{role}_token": text for role, text in roles.items()}}
    taken = {_token(changed.get(f"{role}_token")) for role in ROLES}
    if isinstance(extra := changed.get("extra_special_tokens"), list):
        changed["extra_special_tokens"] = [*extra, *(text for text in new if text not in taken)]
    if "extra_special_tokens" not in changed:  # where transformers 5 writes them; both versions read this key
        changed.pop("additional_special_tokens", None)
        if others := [text for text in special_tokens if text not in taken]:
            changed["additional_special_tokens"] = others
    if new and (known := changed.get("added_tokens_decoder")):
        flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
        added = {str(special_tokens[text]): {"content": text, **flags} for text in new}
        changed["added_tokens_decoder"] = {**known, **added}
    # A lone surrogate in a text of the config stays the escape that it was in the file.
    return (json.dumps(changed, indent=2, ensure_ascii=False) + "\n").encode("utf-8", "backslashreplace")


def edited(
    beside: Mapping[str, bytes],
    roles: Mapping[str, str],
    special_tokens: Mapping[str, int],
    new: Sequence[str],
    chat_template: str | None,
) -> dict[str, bytes]:
    """The files beside a vocabulary with `roles`, `new` special tokens and a template declared.

    All is in tokenizer_config.json then: `transformers` 4 would believe special_tokens_map.json before it.
    """
    config = _config(beside)
    files = {name: content for name, content in beside.items() if name not in BESIDE}
    if chat_template is not None:
        config.pop("chat_template", None)
        files[CHAT_TEMPLATE] = chat_template.encode()
    return {**files, TOKENIZER_CONFIG: with_roles(config, roles, special_tokens, new)}


def read_template(file: Path) -> str:
    """The chat template in a file."""
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError(
            f"{option('chat_template', str(file))}: cannot be read: {getattr(error, 'strerror', None) or error}. "
            "Expected a text file with a Jinja template."
        ) from None


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
