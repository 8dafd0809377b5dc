"""Loading a tokenizer: which kind of file is it, and which model reads it.

A setting that would change ids and that no engine supports is an error, never ignored.
"""

import difflib
import gzip
import hashlib
import json
import os
import zlib
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from piecemill.errors import TokenizerError
from piecemill.plans import by_place, did_you_mean, new_names, option
from piecemill.tokenizers import hub
from piecemill.tokenizers.malformed import BROKEN, check_ids, malformed
from piecemill.tokenizers.models import Model
from piecemill.tokenizers.models.byte_bpe import NotPlain, byte_bpe
from piecemill.tokenizers.models.byte_level import CHARACTERS
from piecemill.tokenizers.models.config import files_beside, read_json, read_whole
from piecemill.tokenizers.models.integers import FILE as INTEGERS
from piecemill.tokenizers.models.integers import read_integers_json
from piecemill.tokenizers.models.ranks import PUBLISHED, Ranks, published_file
from piecemill.tokenizers.models.sentencepiece import SentencePiece
from piecemill.tokenizers.models.tokenizer_json import TokenizerJson, added_ids
from piecemill.tokenizers.models.writing import added_token, pre_tokenizer
from piecemill.tokenizers.pretokenizers import NAMES, PATTERNS, name_of, pattern_of
from piecemill.tokenizers.tokenizer import Tokenizer

_EXPECTED = (
    "expected a folder saved with Tokenizer.save, a tokenizer.json, a .model, a .tiktoken file, vocab.json with "
    "merges.txt, a hub id, r50k, cl100k or o200k."
)
_ENDINGS = (".json", ".model", ".tiktoken", ".txt")
_VOCAB, _MERGES = "vocab.json", "merges.txt"


@did_you_mean
def load_tokenizer(
    spec: str | PathLike[str],
    *,
    engine: str | None = None,
    pretokenizer: str | None = None,
    special_tokens: Mapping[str, int] | None = None,
) -> Tokenizer:
    """The tokenizer at `spec`: a folder, a tokenizer file, or a Hugging Face hub id.

    Files are a tokenizer.json, a .model, a .tiktoken file, or vocab.json with merges.txt beside it; each may be
    gzipped (.gz). In a folder with several, the first of these is used. "r50k", "cl100k" and "o200k" are OpenAI's files
    in the cache of tiktoken. `engine` forces "piecemill", "tokenizers", "sentencepiece" or "tiktoken"; by default it is
    the fastest that gives the home library's ids. "cuda" encodes on an NVIDIA GPU if it can, else warns and takes the
    default. `pretokenizer` and `special_tokens` (text and id) are for files that have neither: .tiktoken (OpenAI's are
    known by their hash) and vocab.json with merges.txt (gpt2, and the entries that no merge makes, unless given).
    """
    if not isinstance(special_tokens or {}, Mapping) or not all(isinstance(text, str) for text in special_tokens or ()):
        raise TokenizerError(
            f"special_tokens={special_tokens!r:.60}: expected the id of each text, such as {{'<s>': 128000}}."
        )
    file = _file_of(spec)
    with malformed(file):
        model = _model_of(file, spec, pretokenizer, special_tokens)
        check_ids(file, model.special_tokens, model.vocab_size)
        _ = model.declared, model.parse_refused()  # read now: nothing of a file is found to be broken later
        return Tokenizer(model, engine=engine)


def _model_of(
    file: Path, spec: str | PathLike[str], pretokenizer: str | None, special_tokens: Mapping[str, int] | None
) -> Model:
    ending = Path(file.name.removesuffix(".gz")).suffix
    if ending == ".tiktoken" or file.name in {known.cached for known in PUBLISHED.values()}:
        return _ranks(file, pretokenizer, special_tokens)
    if file.name in (_VOCAB, _MERGES):
        return _vocab_and_merges(file.parent, pretokenizer, special_tokens)
    if pretokenizer is not None or special_tokens is not None:
        given = by_place("pretokenizer= and special_tokens= are", f"{option('pretokenizer')} is")
        raise TokenizerError(
            f"{file}: it has its own pretokenizer and special tokens; {given} for .tiktoken files and for vocab.json "
            "with merges.txt."
        )
    if file.name == INTEGERS:
        return read_integers_json(read_json(file), file, _training(file), files_beside(file))
    if ending == ".model":
        return SentencePiece(_content(file), file, files_beside(file))
    return _json_model(_content(file), file, _training(file) if file != Path(spec) else {})


def _file_of(spec: str | PathLike[str]) -> Path:
    if not isinstance(spec, str | PathLike):
        raise TokenizerError(
            f"tokenizer: found {type(spec).__module__}.{type(spec).__name__}; {_EXPECTED} One of `tokenizers` or "
            "`transformers` can be saved as a folder (save_pretrained, or save('tok/tokenizer.json')) and loaded."
        )
    given = Path(spec)
    if given.is_dir():
        return _vocabulary_in(given)
    if not given.exists() and isinstance(spec, str) and hub.looks_like_hub_id(spec):
        if (published := published_file(spec)) is not None:
            return published
        if (near := _similar_here(given)) is not None and not hub.is_cached(spec):
            raise TokenizerError(
                f"{given}: no such file or folder; did you mean {near}? If it is a Hugging Face hub id, rename "
                f"{near}, or fetch it first: hf download {spec} tokenizer.json tokenizer_config.json"
            )
        known = [name for each in PUBLISHED.values() for name in (each.name.removesuffix("_base"), each.name)]
        alike = difflib.get_close_matches(spec, [name for name in known if name[0] == spec[0]], 1, 0.8)
        if alike and not hub.is_cached(spec):
            raise TokenizerError(f"{spec}: no such file or folder here; did you mean {alike[0]}?")
        return hub.fetch(spec)
    if not given.exists():
        raise TokenizerError(f"{given}: no such file; {_EXPECTED}")
    ending = Path(given.name.removesuffix(".gz")).suffix
    if ending not in _ENDINGS or (ending == ".txt" and given.name != _MERGES):
        raise TokenizerError(f"{given}: ends in {given.suffix or 'nothing'!r}; {_EXPECTED}")
    return given


def _similar_here(given: Path) -> Path | None:
    """A tokenizer beside where `given` would be whose name is nearly the same."""
    try:
        names = [entry.name for entry in os.scandir(given.parent)]
    except OSError:
        return None
    for name in difflib.get_close_matches(given.name, names, 3, 0.75):
        path = given.with_name(name)
        if path.is_file() and path.name.endswith(_ENDINGS):
            return path
        if path.is_dir() and any((path / file).exists() for file in ("tokenizer.json", "tokenizer.model", _VOCAB)):
            return path
    return None


def _vocabulary_in(folder: Path) -> Path:
    for pattern in ("tokenizer.json", INTEGERS, "tokenizer.model", "*.model", "*.tiktoken", _VOCAB):
        found = sorted(folder.glob(pattern)) or sorted(folder.glob(f"{pattern}.gz"))
        if len(found) > 1:
            names = ", ".join(file.name for file in found)
            raise TokenizerError(f"{folder}: holds {names}; name the file that is meant.")
        if found and (pattern != _VOCAB or (folder / _MERGES).exists()):
            return found[0]
    raise TokenizerError(
        f"{folder}: holds no tokenizer.json, .model or .tiktoken file, nor vocab.json with merges.txt; {_EXPECTED}"
    )


def _training(file: Path) -> dict[str, Any]:
    """The record of the training beside a file; empty if there is none."""
    record = file.with_name("training.json")
    return new_names(read_json(record)) if record.exists() else {}


def _json_model(content: bytes, file: Path, training: Mapping[str, Any]) -> Model:
    beside = files_beside(file)
    try:
        return byte_bpe(content, file, training=training, beside=beside)
    except (NotPlain, *BROKEN):  # whether it is broken is for HF to say
        read_json(file, content)
        return TokenizerJson(content, file, beside, training)


def _vocab_and_merges(folder: Path, pretokenizer: str | None, special_tokens: Mapping[str, int] | None) -> Model:
    """vocab.json with merges.txt, the files of GPT-2 and RoBERTa, as the tokenizer.json that says the same."""
    for name in (_VOCAB, _MERGES):
        if not (folder / name).exists():
            raise TokenizerError(f"{folder}: holds no {name}; vocab.json and merges.txt belong together.")
    vocab = read_json(folder / _VOCAB)
    lines = _content(folder / _MERGES).decode("utf-8", "replace").split("\n")
    merges = [line.rstrip("\r").split(" ") for line in lines if line.rstrip("\r") and not line.startswith("#version")]
    wrong = next((merge for merge in merges if len(merge) != 2), None)
    if wrong is not None:
        raise TokenizerError(
            f"{folder / _MERGES}: {' '.join(wrong)[:40]!r} is not a merge; expected two tokens a line."
        )
    made = {left + right for left, right in merges}
    unmade = [text for text in vocab if text not in made and text not in CHARACTERS]
    special = dict.fromkeys(unmade if special_tokens is None else special_tokens)
    numbered = added_ids(vocab, special)
    for text, i in (special_tokens or {}).items():
        if numbered.get(text) != i:
            raise TokenizerError(
                f"{folder}: special token {text!r} with id {i}: expected {numbered.get(text)}, its id in vocab.json "
                "or the next free one."
            )
    config = read_json(folder / "tokenizer_config.json") if (folder / "tokenizer_config.json").exists() else {}
    step = pre_tokenizer(pattern_of(pretokenizer or "gpt2"))
    if step["type"] == "ByteLevel":
        step["add_prefix_space"] = bool(config.get("add_prefix_space", False))
    data = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [added_token(text, i) for text, i in numbered.items()],
        "normalizer": None,
        "pre_tokenizer": step,
        "post_processor": None,
        "decoder": pre_tokenizer(PATTERNS["gpt2"]),
        "model": {"type": "BPE", "vocab": vocab, "merges": merges},
    }
    return _json_model(json.dumps(data, ensure_ascii=False).encode(), folder / _VOCAB, {})


def _ranks(file: Path, pretokenizer: str | None, special_tokens: Mapping[str, int] | None) -> Model:
    content = _content(file)
    known = PUBLISHED.get(hashlib.sha256(content).hexdigest())
    stored: dict[str, Any] = {}
    if (file.parent / "encoding.json").exists():  # a folder saved by us
        stored = new_names(read_json(file.parent / "encoding.json"))
    elif known is not None:
        stored = known._asdict()
    if pretokenizer is None and "pretokenizer" not in stored:
        raise TokenizerError(
            f"{file}: a .tiktoken file has no pretokenizer, and this one is not one OpenAI published. "
            f"Pass {option('pretokenizer')}, one of {NAMES} or a regex; a wrong one gives wrong ids."
        )
    special = stored.get("special_tokens", {}) if special_tokens is None else special_tokens
    return Ranks(content, file, name_of(pattern_of(pretokenizer or stored["pretokenizer"])), dict(special))


def _content(file: Path) -> bytes:
    try:
        content = read_whole(file)
        return gzip.decompress(content) if file.suffix == ".gz" else content
    except (OSError, EOFError, zlib.error) as error:
        raise TokenizerError(f"{file}: could not be read ({error}).") from error
