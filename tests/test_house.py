"""The house as the README draws it, and a few rules of it."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

HOUSE = Path(__file__).resolve().parents[1]
ROOMS = ("src", "python/piecemill")


def tracked():
    try:
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=HOUSE, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs a git checkout")
    return [HOUSE / name for name in listed.stdout.split("\0") if name and (HOUSE / name).is_file()]


def drawn():
    """What the README's map names in each room: the fenced block with a line `src/`, one or more names a line.

    Names come first on a line, then two spaces and a description; a name ends in `/`, `.rs` or `.py`.
    """
    blocks = re.findall(r"^```\w*\n(.*?)^```", (HOUSE / "README.md").read_text(encoding="utf-8"), re.M | re.S)
    maps = [block for block in blocks if re.search(r"^src/", block, re.M)]
    assert maps, "the README has no map"
    rooms, room = {name: set() for name in ROOMS}, None
    for line in maps[0].splitlines():
        if not line.startswith(" "):
            first = line.split()[0].rstrip("/") if line.split() else None
            room = first if first in ROOMS else None
        elif room and re.match(r" {1,4}\S", line):
            names = re.split(r"\s{3,}", line.strip())[0] if "   " in line.strip() else line.strip()
            rooms[room] |= {name.rstrip("/,") for name in names.split() if re.search(r"(/|\.rs|\.pyi?),?$", name)}
    return rooms


def built(room):
    """The folders and modules that are there, less what every package has."""
    folder = HOUSE / room
    inside = {path.relative_to(folder).parts[0] for path in tracked() if path.is_relative_to(folder)}
    return {name for name in inside if name not in ("py.typed", "_core.pyi", "__main__.py")}


@pytest.mark.parametrize("room", ROOMS)
def test_the_map_in_the_readme_is_true(room):
    named = drawn()[room] - {"_core.pyi", "__main__.py"}
    assert named - built(room) == set(), "named in the README, but not there"
    assert built(room) - named == set(), "there, but not named in the README"


def test_training_of_actions_is_in_their_room_and_training_knows_nothing_of_it():
    rooms = HOUSE / "python" / "piecemill"
    assert (rooms / "actions" / "training.py").exists()
    knows = [path.name for path in (rooms / "training").glob("*.py") if "piecemill.actions" in path.read_text()]
    assert not knows


def test_no_file_is_over_600_lines():
    sources = [path for path in tracked() if path.suffix in (".py", ".pyi", ".rs")]
    long = {str(path): count for path in sources if (count := path.read_bytes().count(b"\n")) > 600}
    assert sources
    assert long == {}


def test_no_folder_has_a_name_that_says_nothing():
    empty = {"utils", "util", "core", "base", "common", "helpers"}
    assert [path for path in tracked() if empty & set(path.relative_to(HOUSE).parts[:-1])] == []


def test_no_tracked_file_names_a_path_of_somebodys_machine():
    # Written so that this file does not hold what it looks for.
    private = re.compile(rb"(?<![\w.~])/(?:ho" + rb"me|Us" + rb"ers|ro" + rb"ot|wo" + rb"rk)/[\w.-]+")
    found = {}
    for path in tracked():
        # Not /tmp and its like, which everybody has.
        folders = [folder for folder in (HOUSE, HOUSE.parent) if len(folder.parts) > 2]
        places = [folder.as_posix() for folder in folders] if path.suffix != ".lock" else []
        content = path.read_bytes()
        hits = private.findall(content)
        hits += [place for place in places if re.search(rb"(?<![\w.])%s(?!\w)" % re.escape(place.encode()), content)]
        if hits:
            found[str(path.relative_to(HOUSE))] = hits[:3]
    assert found == {}


def test_the_changelog_knows_this_version_or_what_is_to_come():
    version = re.search(r'^version = "(.*)"', (HOUSE / "Cargo.toml").read_text(), re.M)[1]
    changelog = (HOUSE / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## \[?(Unreleased|{re.escape(version)})\b", changelog, re.M | re.I)


def test_a_name_is_given_to_one_class_only():
    found: dict[str, list[str]] = {}
    for path in sorted((HOUSE / "python").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name.lstrip("_"), []).append(f"{path.relative_to(HOUSE)}:{node.lineno}")
    assert [places for places in found.values() if len(places) > 1] == []
