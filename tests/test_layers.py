"""Rooms: which may import which, where files are written, and constants that Python and Rust both have."""

import ast
import re
from pathlib import Path

import pytest

import piecemill

PACKAGE = Path(piecemill.__file__).parent
RUST = Path(__file__).resolve().parents[1] / "src"

GROUND = {"_core", "errors"}
SHELF = {*GROUND, "cancelling", "files", "integers", "machine", "objects", "plans", "sizes"}
# From the ground up: a room may import those named, all of which stand above it in this table.
ALLOWED = {
    "_core": set(),
    "errors": set(),
    "integers": GROUND,
    "plans": GROUND,
    "sizes": {*GROUND, "plans"},
    "machine": GROUND,
    "progress": GROUND,
    "cancelling": GROUND,
    "objects": {*GROUND, "cancelling"},
    "files": {*GROUND, "objects", "sizes"},
    "reference": GROUND,
    "sources": SHELF,
    "command": {*SHELF, "sources"},
    "executors": SHELF,
    "tokenizers": {*SHELF, "command"},
    "shards": {*SHELF, "command", "tokenizers"},
    "training": {*SHELF, "command", "progress", "sources", "executors", "tokenizers", "shards"},
    "preparing": {*SHELF, "sources", "executors", "tokenizers", "shards"},
    "loading": {*SHELF, "shards", "sources", "tokenizers"},
    "pretraining": {*SHELF, "command", "progress", "shards", "loading", "tokenizers"},
    "actions": {*SHELF, "command", "progress", "sources", "training", "shards", "loading"},
    "reporting": {
        *SHELF,
        "command",
        "sources",
        "tokenizers",
        "training",
        "shards",
        "loading",
        "actions",
        "pretraining",
    },
}
# The surface calls every room, and no room calls it.
SURFACE = {"__init__", "__main__", "cli", "demo"}


def imports(path):
    """The rooms that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            package, _, rest = name.partition(".")
            if package == "piecemill":
                room = rest.partition(".")[0]
                yield "__init__" if room.startswith("__") else room


def test_the_table_has_no_circle():
    below = set()
    for room, allowed in ALLOWED.items():
        assert allowed <= below | {room}, f"{room} may import {allowed - below}, which stand at its height or above"
        below.add(room)


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_room_imports_only_rooms_below_it(path):
    name = path.relative_to(PACKAGE).as_posix()
    room = name.partition("/")[0].removesuffix(".py")
    if room in SURFACE:
        return
    found = set(imports(path)) - {room}
    if path.name in ("__init__.py", "version.py") or "__init__" in found:
        found -= {"__init__"}  # the package itself: its version
    assert found <= ALLOWED[room], f"{name} imports {sorted(found - ALLOWED[room])}, which {room} may not"


# Files that are written without `files.py` giving them their name, and how they get it.
WRITERS = {
    "pretraining/checkpoint.py": "in a `new_folder`",
    "pretraining/folder.py": "appends lines, which are cut to the whole ones when the run goes on",
    "shards/folder.py": "in a temporary folder",
    "shards/manifest.py": "in the scratch folder, then `publish`",
    "shards/remote.py": "a cache, which is compared with checksums",
    "shards/sections.py": "in the scratch folder, then `publish`",
    "shards/writer.py": "in the scratch folder, then `publish`",
    "tokenizers/engines/tokenizers.py": "a temporary file",
    "tokenizers/saving.py": "in a `new_folder`",
}
WRITES = {"write_text", "write_bytes", "rename", "mkstemp", "NamedTemporaryFile", "flock"}


def writes(path):
    """Whether a file calls something that writes, renames or locks files."""
    for call in ast.walk(ast.parse(path.read_bytes())):
        if not isinstance(call, ast.Call):
            continue
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        modes = [one.value for one in given if isinstance(one, ast.Constant) and isinstance(one.value, str)]
        opens = name == "open" and any(re.fullmatch(r"[rwxabt+]*[wxa+][rwxabt+]*", mode) for mode in modes)
        if opens or name in WRITES or ast.unparse(call.func) == "os.replace":
            yield name


def test_files_are_written_in_files_py_or_get_their_name_there():
    found = {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py") if list(writes(path))}
    assert found == {"files.py", *WRITERS}


# What Python and Rust both have, and must stay equal: in Rust, in Python (file, pattern, how often).
TWINS = {
    "gather.rs: IGNORED: i64": [
        ("shards/windows.py", r"^IGNORED = (.*)$"),
        ("reference/windows.py", r"^IGNORED = (.*)$"),
    ],
    "actions/encode.rs: STEP: u64": [
        ("loading/order.py", r"\+ (0x\w+) & _MASK"),
        ("reference/order.py", r"\+ (0x\w+) & _MASK"),
        ("reference/segments.py", r"step = (0x\w+)"),
    ],
    "actions/published.rs: TOLERANCE: f64": [("reference/actions.py", r"0 if exact else (\S+)\)")],
    "sources/files.rs: BINARY_WINDOW: usize": [("sources/text.py", r"^_BINARY_WINDOW = (.*)$")],
    "sources/files.rs: BOM: &[u8]": [("sources/streams.py", r"^BOM = (.*)$")],
    "sources/jsonl.rs: MOST_NAMES: usize": [("sources/columns.py", r"^_MOST_NAMES = (.*)$")],
    "sources/mod.rs: LISTED: usize": [("sources/documents.py", r"^LISTED_SKIPS = (.*)$")],
    "sources/walk.rs: GITIGNORE_BYTES: u64": [("sources/remote.py", r"^_GITIGNORE_BYTES = (.*?)(?:  #.*)?$")],
}


@pytest.mark.parametrize("twin", TWINS)
def test_a_constant_of_rust_is_the_same_in_python(twin):
    if not RUST.is_dir():
        pytest.skip("needs the sources of the core, which are not beside these tests")
    file, _, name = twin.partition(": ")
    (rust,) = re.findall(rf"\bconst {re.escape(name)} = (.*?);", (RUST / file).read_text())
    for place, pattern in TWINS[twin]:
        found = re.findall(pattern, (PACKAGE / place).read_text(), re.M)
        assert found, f"{place} has none"
        assert {eval(value, {}) for value in found} == {eval(rust, {})}, place  # products and shifts of numbers
