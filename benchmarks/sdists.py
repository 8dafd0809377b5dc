"""Source distributions: pinned archives, fetched by name from whatever package index pip is set up to use.

`pip download` itself is no help here: it runs each package's build backend just to read its metadata, which for scipy
means a compiler. So this asks pip's own finder for the link and pip's own session for the bytes: index, mirror, proxy
and certificates are the ones of this machine, and nothing of the package is run. Start with `fetch` and `members`.
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

    def is_in(self, folder: Path) -> bool:
        path = self.path(folder)
        return path.exists() and hashlib.sha256(path.read_bytes()).hexdigest() == self.sha256


def fetch(sdists: Iterable[Sdist], folder: Path) -> None:
    """Bring every archive into `folder`; what is already there with the right hash is left alone."""
    missing = [sdist for sdist in sdists if not sdist.is_in(folder)]
    if not missing:
        return
    folder.mkdir(parents=True, exist_ok=True)
    from pip._internal.commands.download import DownloadCommand
    from pip._vendor.requests import RequestException

    command = DownloadCommand("download", "fetch one archive")
    with command.main_context():
        # A pin may ask for a newer Python than this one; its text is what is wanted, so that does not matter.
        options, _ = command.parse_args(["--no-deps", "--no-binary", ":all:", "--ignore-requires-python", "-qq", "any"])
        session = command.get_default_session(options)
        finder = command._build_package_finder(options, session, ignore_requires_python=True)
        for sdist in missing:
            pin = f"{sdist.name}=={sdist.version}"
            found = [one for one in finder.find_all_candidates(sdist.name) if str(one.version) == sdist.version]
            links = [one.link for one in found if one.link.filename.endswith(".tar.gz")]
            if not links:
                raise SystemExit(
                    f"{pin}: pip finds no source distribution. "
                    f"Is the package index reachable? Try: python -m pip index versions {sdist.name}"
                )
            print(f"corpus  fetching {sdist.name} {sdist.version}")
            try:
                response = session.get(links[0].url_without_fragment, headers={"Accept-Encoding": "identity"})
                response.raise_for_status()
            except RequestException as error:
                raise SystemExit(f"{pin}: could not be fetched: {error}") from None
            if (found := hashlib.sha256(response.content).hexdigest()) != sdist.sha256:
                raise SystemExit(
                    f"{pin}: sha256 is {found}, recorded is {sdist.sha256}. "
                    f"The benchmark corpus is not what the results were made with; nothing was kept."
                )
            temporary = sdist.path(folder).with_suffix(".part")
            temporary.write_bytes(response.content)
            temporary.rename(sdist.path(folder))


def members(archive: Path) -> Iterator[tuple[str, bytes]]:
    """Every plain file of an archive as (path below its top folder, content), in the order of the archive."""
    with tarfile.open(archive) as tar:
        for member in tar:
            _, _, path = member.name.partition("/")
            handle = tar.extractfile(member) if member.isreg() and path else None
            if handle is not None:
                yield path, handle.read()
