"""docs/actions.md as a new user runs it: every command and every line of Python, in order, in an empty folder."""

import json
import re
import shutil
import subprocess
import sys

import pytest

from command import environment, piecemill, search_path, server
from pages import HOUSE, blocks

pytest.importorskip("faiss", reason="the page makes codes of embeddings, which needs faiss-cpu")


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """A folder with the examples in it, and the shop that the script makes."""
    folder = tmp_path_factory.mktemp("user")
    shutil.copytree(HOUSE / "examples", folder / "examples")
    run("python examples/make_interactions.py --out data/", folder)
    return folder


def run(text, folder, shell="bash"):
    """Runs lines of a shell or of Python with this environment's commands first in the path."""
    path = search_path(server())
    words = ["bash", "-euc", text] if shell == "bash" else [sys.executable, "-W", "error", "-c", text]
    done = subprocess.run(words, cwd=folder, env=environment(PATH=path), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_every_line_of_the_page_runs(shop):
    found = [(kind, text) for _, kind, text in blocks("docs/actions.md") if kind in ("sh", "python")]
    assert [kind for kind, _ in found] == ["sh", "python", "python", "sh", "sh", "sh", "sh"]
    told = [run(text, shop, "bash" if kind == "sh" else "python") for kind, text in found]
    assert "train.parquet, val.parquet, test.parquet in shop/parts" in told[0]
    assert "k_core     k=5, item_k=5" in told[2]
    assert "pq_0 32, pq_1 32, category 8" in told[3]
    assert re.search(r"^shop/train: [\d,]+ histories, \S+ items; complete$", told[5], re.M)
    assert re.search(r"^shop/train is sound: .* 1,000 documents decoded and compared$", told[5], re.M)
    report = json.loads((shop / "shop" / "parts" / "report.json").read_text())
    assert report["plan"]["k_core"] == 5
    assert report["counts"]["read"]["duplicates"] > 0
    assert report["counts"]["read"]["ties"] > 0
    assert report["counts"]["leave_out"]["train_users"] > 1000


def test_the_same_again_is_refused_and_with_force_makes_the_same_files(shop):
    split = ("actions", "split", "data/interactions.csv", "--out", "again")
    assert piecemill(*split, cwd=shop).returncode == 0
    done = piecemill(*split, cwd=shop)
    assert (done.returncode, "again/report.json is there already" in done.stderr) == (2, True)
    before = {path.name: path.read_bytes() for path in (shop / "again").iterdir()}
    done = piecemill(*split, "--force", "--json", cwd=shop)
    assert json.loads(done.stdout)["counts"]["leave_out"]["left_out"] == 2
    assert {path.name: path.read_bytes() for path in (shop / "again").iterdir()} == before
    one = piecemill(*split, "--force", "--leave-out", 1, cwd=shop)
    assert (one.returncode, sorted(path.name for path in (shop / "again").iterdir())) == (
        0,
        ["report.json", "test.parquet", "train.parquet"],
    )


def test_features_print_what_they_made_and_say_what_is_wrong(shop):
    words = ("actions", "features", "data/items.csv", "--missing", "?", "--bins", "price=4", "--out", "items.parquet")
    told = json.loads(piecemill(*words, "--json", cwd=shop).stdout)
    assert (told["items"], told["columns"]) == (500, ["category", "brand", "price", "hash"])
    assert told["hash"]["buckets"] >= told["hash"]["largest_collision"] > 1
    assert told["plan"]["bins"] == ["price=4"]
    done = piecemill(*words, cwd=shop)
    assert (done.returncode, "items.parquet is there already" in done.stderr) == (2, True)
    done = piecemill(*words[:3], "--out", "other.parquet", cwd=shop)
    assert (done.returncode, "has no 'brand'" in done.stderr) == (1, True)
    done = piecemill(*words, "--force", "--hash-buckets", 1, cwd=shop)
    assert (done.returncode, "are equal in all other features" in done.stderr) == (2, True)


def test_split_keeps_to_the_items_that_have_features(shop):
    (shop / "few.csv").write_text("\n".join((shop / "data" / "items.csv").read_text().splitlines()[:200]))
    words = ("actions", "split", "data/interactions.csv", "--items", "few.csv", "--out", "few")
    done = piecemill(*words, cwd=shop)
    assert (done.returncode, "which is not among the 199 items" in done.stderr) == (1, True)
    told = json.loads(piecemill(*words, "--unknown", "drop", "--json", cwd=shop).stdout)["counts"]
    assert told["items"]["unknown_items"] == told["read"]["items"] - told["items"]["items"] > 0
