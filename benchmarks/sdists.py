"""Source distributions: pinned archives, fetched by name from whatever package index pip is set up to use.

`pip download` itself is no help here: it runs each package's build backend just to read its metadata, which
for scipy means a compiler. So this asks pip's own finder for the link and pip's own session for the bytes;
index, mirror, proxy and certificates are then the ones of this machine, and nothing of the package is run.

Nothing here knows what the archives are for. Start with `fetch` and `members`.
"""

import hashlib
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Sdist:
    """One archive: the exact bytes that were recorded, or an error."""

    name: str
    version: str
    sha256: str

    def path(self, folder: Path) -> Path:
        return folder / f"{self.name}-{self.version}.tar.gz"


def fetch(sdists: Iterable[Sdist], folder: Path) -> None:
    """Bring every archive into `folder`; what is already there with the right hash is left alone."""
    missing = [sdist for sdist in sdists if not _is_whole(sdist, sdist.path(folder))]
    if not missing:
        return
    folder.mkdir(parents=True, exist_ok=True)
    from pip._internal.commands.download import DownloadCommand

    command = DownloadCommand("download", "fetch one archive")
    with command.main_context():
        # A pin may ask for a newer Python than this one; its text is what is wanted, so that does not matter.
        options, _ = command.parse_args(["--no-deps", "--no-binary", ":all:", "--ignore-requires-python", "-qq", "any"])
        session = command.get_default_session(options)
        finder = command._build_package_finder(options, session, ignore_requires_python=True)
        for sdist in missing:
            links = [
                candidate.link
                for candidate in finder.find_all_candidates(sdist.name)
                if str(candidate.version) == sdist.version and candidate.link.filename.endswith(".tar.gz")
            ]
            if not links:
                raise SystemExit(
                    f"{sdist.name}=={sdist.version}: pip finds no source distribution. "
                    f"Is the package index reachable? Try: python -m pip index versions {sdist.name}"
                )
            print(f"corpus  fetching {sdist.name} {sdist.version}")
            _download(session, links[0].url_without_fragment, sdist, sdist.path(folder))


def members(archive: Path) -> Iterator[tuple[str, bytes]]:
    """Every plain file of an archive as (path below its top folder, content), in the order of the archive."""
    with tarfile.open(archive) as tar:
        for member in tar:
            _, _, path = member.name.partition("/")
            handle = tar.extractfile(member) if member.isreg() and path else None
            if handle is not None:
                yield path, handle.read()


def _download(session, url: str, sdist: Sdist, path: Path) -> None:
    from pip._vendor.requests import RequestException

    try:
        response = session.get(url, headers={"Accept-Encoding": "identity"})
    except RequestException as error:
        raise SystemExit(f"{sdist.name}=={sdist.version}: could not be fetched: {error}") from None
    if response.status_code != 200:
        raise SystemExit(f"{sdist.name}=={sdist.version}: the package index answered {response.status_code}")
    found = hashlib.sha256(response.content).hexdigest()
    if found != sdist.sha256:
        raise SystemExit(
            f"{sdist.name}=={sdist.version}: sha256 is {found}, recorded is {sdist.sha256}. "
            f"The benchmark corpus is not what the results were made with; nothing was kept."
        )
    temporary = path.with_suffix(".part")
    temporary.write_bytes(response.content)
    temporary.rename(path)


def _is_whole(sdist: Sdist, path: Path) -> bool:
    return path.exists() and hashlib.sha256(path.read_bytes()).hexdigest() == sdist.sha256
