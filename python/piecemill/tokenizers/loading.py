"""Loading a tokenizer: which kind of file is it, and which model reads it.

A setting that would change ids and that no engine carries out is an error, never ignored.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from piecemill.errors import TokenizerError
from piecemill.tokenizers import hub
from piecemill.tokenizers.byte_bpe_json import NotPlain, byte_bpe
from piecemill.tokenizers.config import files_beside, read_json
from piecemill.tokenizers.engine import AnyPath, Model
from piecemill.tokenizers.hf_model import HFModel
from piecemill.tokenizers.sentencepiece_model import SentencePieceModel
from piecemill.tokenizers.splits import NAMES
from piecemill.tokenizers.tiktoken_ranks import PUBLISHED, TiktokenRanks, known_split
from piecemill.tokenizers.tokenizer import Tokenizer

_EXPECTED = "expected a folder saved with Tokenizer.save, a tokenizer.json, a .model, a .tiktoken file or a hub id."


def load_tokenizer(
    spec: AnyPath,
    *,
    engine: str | None = None,
    split: str | None = None,
    special_tokens: Mapping[str, int] | None = None,
) -> Tokenizer:
    """The tokenizer at `spec`: a folder, a tokenizer.json, a .model, a .tiktoken file, or a Hugging Face hub id.

    Of a folder with several, tokenizer.json is taken before a .model, and that before a .tiktoken file. `engine` forces
    "gigatoken", "tokenizers", "sentencepiece" or "tiktoken"; without it the fastest that can is taken. `split`
    and `special_tokens` (text and id) are for .tiktoken files, which have neither; OpenAI's are known by their hash.
    """
    file = _file_of(spec)
    if file.suffix == ".tiktoken":
        model: Model = _tiktoken(file, split, special_tokens)
    else:
        if split is not None or special_tokens is not None:
            raise TokenizerError(
                f"{file}: it has its own split and special tokens; split= and special_tokens= are for .tiktoken files."
            )
        model = _sentencepiece(file) if file.suffix == ".model" else _tokenizer_json(file, folder=file != Path(spec))
    return Tokenizer(model, engine=engine)


def _file_of(spec: AnyPath) -> Path:
    given = Path(spec)
    if given.is_dir():
        return _vocabulary_in(given)
    if not given.exists() and isinstance(spec, str) and hub.looks_like_hub_id(spec):
        return hub.fetch(spec)
    if not given.exists():
        raise TokenizerError(f"{given}: no such file; {_EXPECTED}")
    if given.suffix not in (".json", ".model", ".tiktoken"):
        raise TokenizerError(f"{given}: ends in {given.suffix or 'nothing'!r}; {_EXPECTED}")
    return given


def _vocabulary_in(folder: Path) -> Path:
    for pattern in ("tokenizer.json", "tokenizer.model", "*.model", "*.tiktoken"):
        found = sorted(folder.glob(pattern))
        if len(found) > 1:
            names = ", ".join(file.name for file in found)
            raise TokenizerError(f"{folder}: holds {names}; name the file that is meant.")
        if found:
            return found[0]
    raise TokenizerError(f"{folder}: holds no tokenizer.json, .model or .tiktoken file; {_EXPECTED}")


def _tokenizer_json(file: Path, *, folder: bool) -> Model:
    data = read_json(file)
    beside = files_beside(file)
    record = file.parent / "training.json"
    training = read_json(record) if folder and record.exists() else {}
    try:
        return byte_bpe(data, file, training=training, beside=beside)
    except NotPlain:
        return HFModel(file.read_bytes(), file, beside)


def _sentencepiece(file: Path) -> Model:
    return SentencePieceModel(_content(file), file, files_beside(file))


def _tiktoken(file: Path, split: str | None, special_tokens: Mapping[str, int] | None) -> Model:
    content = _content(file)
    known = PUBLISHED.get(hashlib.sha256(content).hexdigest())
    said: dict[str, Any] = {}
    if (file.parent / "encoding.json").exists():  # a folder saved by us
        said = read_json(file.parent / "encoding.json")
    elif known is not None:
        said = known._asdict()
    if split is None and "split" not in said:
        raise TokenizerError(
            f"{file}: a .tiktoken file does not say how texts are split, and this one is not one OpenAI published. "
            f"Pass split= one of {NAMES}, or a regex (--tokenizer-split); a wrong one gives wrong ids."
        )
    special = said.get("special_tokens", {}) if special_tokens is None else special_tokens
    return TiktokenRanks(content, file, known_split(split or said["split"]), dict(special))


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise TokenizerError(f"{file}: could not be read ({error}).") from error
