"""Secrets of URLs: user info and signatures, which are used and stored nowhere.

The public URL is stored, shown and compared. The full URL is kept in the storage options, which are never written to a
file or a message. So any worker can read a task, and a URL with a renewed signature is the same file.

Start with `hide`.
"""

import re
from collections.abc import Mapping, Sequence
from os import PathLike, fspath
from typing import Any

SECRETS = "piecemill.secrets"
"The key of the storage options under which the full URLs are, by public URL; user info is by scheme and host."

# Elsewhere an @ means something else: abfs://CONTAINER@ACCOUNT, github://ORG:REPO@BRANCH.
_WITH_USER = re.compile(r"((?:https?|ftps?|sftp|ssh|smb|webhdfs|webdavs?|davs?)://)([^/?#@]*(?:@[^/?#@]*)*)@", re.I)
_QUERY = re.compile(r"(https?://[^?#\s]*)\?([^#]*)", re.I)
_SIGNED = re.compile(
    r"(x-(amz|goog|oss|cos|ms|tos|obs)-.*|sig(nature)?|signed?|token|access_?token|auth(orization)?|jwt|hmac|password|"
    r"secret|api_?key|awsaccesskeyid|googleaccessid|ossaccesskeyid|key-pair-id|policy|expires|securitytoken)",
    re.I,
)
# Parameters that accompany a shared access signature of Azure.
_SAS = re.compile(r"s[tepvrsi]|spr|sip|sdd|sk(oid|tid|t|e|s|v)|saoid|suoid|scid", re.I)
_IN_TEXT = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://[^\s'\"<>]+")


def public(url: str) -> str:
    """A URL without user info and without the parameters of a signature; others are as they are.

    >>> public("https://me:pw@host/a.jsonl?id=5&X-Amz-Signature=ab12&X-Amz-Date=20260101")
    'https://host/a.jsonl?id=5'
    """
    return _QUERY.sub(_public_query, _WITH_USER.sub(r"\1", url))


def _public_query(found: re.Match[str]) -> str:
    parts = found[2].split("&")
    names = [part.partition("=")[0] for part in parts]
    shared = any(name.lower() == "sig" for name in names)
    kept = [
        part
        for part, name in zip(parts, names, strict=True)
        if not _SIGNED.fullmatch(name) and not (shared and _SAS.fullmatch(name))
    ]
    return f"{found[1]}?{'&'.join(kept)}" if kept else found[1]


def scrubbed(text: str) -> str:
    """`text` with every URL in it as `public` has it, because messages of libraries may contain the full URL."""
    return _IN_TEXT.sub(lambda found: public(found[0]), text)


def hide(
    sources: Sequence[str | PathLike[str]], storage: Mapping[str, Any]
) -> tuple[list[str | PathLike[str]], dict[str, Any]]:
    """The sources with public URLs, and the storage options with the secrets added."""
    shown: list[str | PathLike[str]] = []
    secrets: dict[str, str] = {}
    for source in sources:
        full = fspath(source)
        plain = public(full) if "://" in full else full
        shown.append(source if plain == full else type(source)(plain))  # type: ignore[call-arg]
        if plain != full:
            secrets[plain] = full
            # Files that are found in a folder need its user info too.
            for user in _WITH_USER.finditer(full):
                host = re.match(r"[^/?#]*", full[user.end() :])
                secrets[f"{user[1]}{host[0] if host else ''}"] = user[0] + (host[0] if host else "")
    return shown, {**storage, SECRETS: secrets} if secrets else dict(storage)


def full_url(url: str, storage: Mapping[str, Any]) -> str:
    """The URL to open for a public one."""
    secrets: Mapping[str, str] = storage.get(SECRETS, {})
    if not secrets or url in secrets:
        return secrets.get(url, url)
    for host, with_user in secrets.items():
        at = url.find(host)
        if "@" in with_user and at >= 0 and url[at + len(host) : at + len(host) + 1] in ("", "/", "?", "#"):
            return url[:at] + with_user + url[at + len(host) :]
    return url


def options_of(storage: Mapping[str, Any]) -> dict[str, Any]:
    """The storage options for fsspec."""
    return {key: value for key, value in storage.items() if key != SECRETS}
