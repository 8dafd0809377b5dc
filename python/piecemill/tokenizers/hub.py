"""A Hugging Face hub id as a folder: the files of its tokenizer in the standard HF cache, fetched once.

Cached files are not downloaded again, so a name keeps its meaning on this machine; `NAME@REVISION` pins it
everywhere. huggingface_hub's HF_HUB_OFFLINE, HF_HOME and token are respected.
"""

import re
from pathlib import Path
from typing import Any

from piecemill.errors import TokenizerError
from piecemill.tokenizers.models.config import BESIDE, CHAT_TEMPLATE

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?(@[\w./-]+)?")

# Only tokenizer.model numbers its ids as the model does; spiece.model and sentencepiece.bpe.model are shifted.
_VOCABULARIES = (("tokenizer.json",), ("tokenizer.model",), ("vocab.json", "merges.txt"))


def looks_like_hub_id(spec: str) -> bool:
    """Whether `spec` can only be NAME or ORGANISATION/NAME, perhaps with @REVISION."""
    return bool(_HUB_ID.fullmatch(spec)) and not spec.endswith((".json", ".model", ".tiktoken", ".txt", ".gz"))


def is_cached(spec: str) -> bool:
    """Whether the cache holds a vocabulary of `spec`; makes no request."""
    import huggingface_hub as hub

    name, _, revision = spec.partition("@")
    try:
        found = [hub.try_to_load_from_cache(name, files[0], revision=revision or None) for files in _VOCABULARIES]
    except ValueError:  # no hub id
        return False
    return any(isinstance(path, str) for path in found)


def fetch(spec: str) -> Path:
    """The vocabulary file of hub id `spec`, in the folder of the cache that also holds the files beside it."""
    name, _, revision = spec.partition("@")
    errors: list[str] = []
    for files in () if not is_cached(spec) and _unreachable(errors) else _VOCABULARIES:
        found = [_file(name, file, revision or None, errors) for file in files]
        if found[0] is not None and None not in found:
            for beside in (*BESIDE, CHAT_TEMPLATE):
                _file(name, beside, revision or None, [])
            return found[0]
    if errors:
        raise TokenizerError(
            f"{spec}: no such file or folder here, and as a Hugging Face hub id it could not be fetched: {errors[0]} "
            "Check the name; offline (HF_HUB_OFFLINE=1), fetch it once on a machine with network "
            f"(hf download {name} tokenizer.json tokenizer_config.json) and bring the cache, or give a local path."
        )
    raise TokenizerError(
        f"{spec}: the hub has no tokenizer.json, tokenizer.model or vocab.json with merges.txt for it. Save one with "
        f"transformers (AutoTokenizer.from_pretrained({name!r}).save_pretrained('tok')) and load that folder."
    )


def _unreachable(errors: list[str]) -> bool:
    """Whether the hub does not answer: one request, where a download would retry for a minute."""
    import huggingface_hub as hub

    if hub.constants.HF_HUB_OFFLINE:
        return False  # which says it at once
    try:
        session = hub.utils.get_session()  # type: ignore[attr-defined] # it is, by all versions
        session.head(hub.constants.ENDPOINT, timeout=10)
    except Exception as error:  # noqa: BLE001 - of requests or httpx, by the version of huggingface_hub
        errors.append(f"it is not in the cache, and {hub.constants.ENDPOINT} cannot be reached ({_first_line(error)}).")
    return bool(errors)


def _file(name: str, file: str, revision: str | None, errors: list[str]) -> Path | None:
    import huggingface_hub as hub
    from huggingface_hub import errors as hub_errors

    cached: Any = hub.try_to_load_from_cache(name, file, revision=revision)
    if isinstance(cached, str):
        return Path(cached)
    if cached is not None:
        return None  # the cache remembers that there is no such file
    try:
        return Path(hub.hf_hub_download(name, file, revision=revision))
    except (hub_errors.LocalEntryNotFoundError, hub_errors.OfflineModeIsEnabled) as error:
        errors.append(f"it is not in the cache, and the hub cannot be reached ({_first_line(error)}).")
    except hub_errors.EntryNotFoundError:
        pass
    except (OSError, ValueError) as error:
        errors.append(f"{_first_line(error)}.")
    return None


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0].rstrip(".")
