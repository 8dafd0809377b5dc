"""The documentation: the site builds, links and names in it are true, lines are short."""

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from command import environment

HOUSE = Path(__file__).resolve().parents[1]
DOCS = HOUSE / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
WRAPPED = [page for page in PAGES if page.name != "benchmarks.md"] + [HOUSE / "README.md", HOUSE / "CONTRIBUTING.md"]


def test_the_site_builds_without_a_warning(tmp_path):
    for module in ("zensical", "mkdocstrings_handlers.python"):
        try:
            found = importlib.util.find_spec(module)
        except ModuleNotFoundError:
            found = None
        if found is None:
            pytest.skip(f"needs {module}: pip install --group tools")
    shutil.copy(HOUSE / "mkdocs.yml", tmp_path)
    for folder in ("docs", "python"):
        shutil.copytree(HOUSE / folder, tmp_path / folder, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    words = [sys.executable, "-m", "zensical", "build", "--strict"]
    done = subprocess.run(words, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    shown = (tmp_path / "site" / "api" / "piecemill.html").read_text(encoding="utf-8")
    assert "Encode <code>source</code> into token shards" in shown


def test_every_page_is_in_the_navigation():
    listed = re.findall(r"^ +- (\S+\.md)$", (HOUSE / "mkdocs.yml").read_text(encoding="utf-8"), re.M)
    assert sorted(listed) == sorted(page.relative_to(DOCS).as_posix() for page in PAGES)


@pytest.mark.parametrize("page", WRAPPED, ids=lambda page: page.stem)
def test_prose_wraps_at_100_columns(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    lines = [line for line in text.splitlines() if not line.startswith("|") and "](" not in line]
    assert [line for line in lines if len(line) > 100] == []


def test_names_on_the_architecture_page_exist():
    """Names in backticks: `folder/file.py`, and `folder/file.py: name, other` where the file defines them."""
    page = (DOCS / "architecture.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:[\w.]+/)*[\w]+\.(?:py|rs|pyi|md|yaml|sh))(?:: ([\w., ]+))?`", page)
    assert len(named) > 40
    for path, names in named:
        found = [root / path for root in (HOUSE, HOUSE / "python" / "piecemill", DOCS) if (root / path).is_file()]
        assert found, path
        text = found[0].read_text(encoding="utf-8")
        for name in filter(None, names.split(", ")):
            last = name.rpartition(".")[2]
            assert re.search(rf"\b(def|class|fn|struct|trait|enum|const) {last}\b|^{last}\b", text, re.M), (path, name)
