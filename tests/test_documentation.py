"""Examples run: the Python and shell blocks of README and docs, and the examples in docstrings (`--doctest-modules`).

The blocks of a page run in order, in one folder and, if Python, in one namespace. A page that does not make `corpus`,
`tok`, `gpt2`, `shards`, `proteins.txt`, or `web` and `flores.jsonl`, which have a language for each document, finds
them there. `piecemill` in a shell is that of `served.py`: pages with `piecemill pretrain` import torch once together.
With Ray, commands use the cluster of the tests, and Python starts one.

A block that needs another environment is run by the test in `ELSEWHERE`, which reads it from the page with
`pages.block`. Output and drawings are `text`.
"""

import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import piecemill as pm
from command import WITH_TORCH, environment, search_path, server
from corpora import write_jsonl
from pages import HOUSE, block, blocks, claims
from pretraining import ONE_THREAD

ELSEWHERE = {
    ("README.md", "pip install"): ["test_wheel.py"],
    ("README.md", "make demo"): ["test_demo.py"],
    ("docs/benchmarks.md", "python benchmarks/encode.py"): ["test_benchmarks_protocol.py"],
    ("docs/benchmarks.md", "python benchmarks/prepare.py"): ["test_benchmarks_protocol.py"],
    ("docs/benchmarks.md", "python benchmarks/train.py"): ["test_benchmarks_protocol.py"],
    ("docs/gpu.md", "import numpy"): ["test_cuda.py", "test_cuda_gpu.py"],
    ("docs/howto/cluster.md", "piecemill prepare s3://"): ["test_executors_ray.py"],
    ("docs/pretraining.md", "piecemill pretrain shards/ --size 370m"): ["test_pretraining.py"],
}


WHOLE_PAGES = {"docs/actions.md": "test_actions_data_example.py"}
"Pages of which another test runs all blocks."


def run_here(page):
    """The blocks that no other test runs."""
    if page in WHOLE_PAGES:
        return []
    others = {block(*claim) for claim in ELSEWHERE if claim[0] == page}
    return [one for one in blocks(page) if one[1] in ("python", "sh") and one[2] not in others]


PAGES = [str(path.relative_to(HOUSE)) for path in (HOUSE / "README.md", *sorted(HOUSE.glob("docs/**/*.md")))]


@pytest.fixture(scope="session")
def small_data(tmp_path_factory):
    """2 MB of the standard library, tokenizers and shards of it, and lines without spaces."""
    folder = tmp_path_factory.mktemp("data")
    for name in ("asyncio", "email", "http", "json", "unittest", "xml"):
        library = Path(sysconfig.get_path("stdlib"))
        shutil.copytree(library / name, folder / "corpus" / name, ignore=shutil.ignore_patterns("__pycache__"))
    pm.train_bpe(folder / "corpus", vocab_size=4096).save(folder / "tok")
    pm.train_bpe(folder / "corpus", vocab_size=1024, pretokenizer="gpt2").save(folder / "gpt2")
    pm.prepare(folder / "corpus", folder / "tok", out=folder / "shards", splits="train=85,val=10,test=5")
    (folder / "proteins.txt").write_text("MKTAYIAKQRQISFVKSHFSRQLEERLGLIEVQ\nMADEEKLPPGWEKRMSRSSGRVYYFNHITNASQ\n" * 20)
    texts = {"de": "Das Haus steht am Rand der Stadt.", "en": "The house is at the edge of the town."}
    write_jsonl(folder / "flores.jsonl", texts.values(), language=list(texts))
    (folder / "web").mkdir()
    pages = [{"text": text, "language": name} for name, text in texts.items() for _ in range(20)]
    pq.write_table(pa.Table.from_pylist(pages), folder / "web/1.parquet")
    return folder


@pytest.mark.filterwarnings("ignore:engine='cuda'")
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.long] * ("piecemill pretrain" in (HOUSE / page).read_text("utf-8")))
        for page in PAGES
        if run_here(page)
    ],
)
def test_the_examples_of_a_page_run(page, small_data, tmp_path, monkeypatch, request):
    code = "".join(code for _, _, code in blocks(page))
    for path in small_data.iterdir():
        if not re.search(rf"""(out[ =]"?|mkdir .*){path.name}\b""", code):
            (shutil.copytree if path.is_dir() else shutil.copy)(path, tmp_path / path.name)
    (tmp_path / "examples").symlink_to(HOUSE / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_ADDRESS", "local")  # not the cluster of other tests
    request.addfinalizer(lambda: sys.modules["ray"].shutdown() if "ray" in sys.modules else None)
    namespace = {"__name__": "example"}
    served = server(WITH_TORCH) if any("piecemill pretrain" in code for _, _, code in run_here(page)) else server()
    variables = environment(**ONE_THREAD, PATH=search_path(served))
    if "--executor ray" in code:
        variables["RAY_ADDRESS"] = request.getfixturevalue("started_cluster").address
    for line, language, code in run_here(page):
        if language == "python":
            exec(compile("\n" * line + code, page, "exec"), namespace)
        else:
            bash = ["bash", "-euo", "pipefail", "-c", code]
            done = subprocess.run(bash, env=variables, capture_output=True, text=True)
            assert done.returncode == 0, f"{page}:{line}\n{code}{done.stdout}{done.stderr}"


def test_a_block_that_is_not_run_here_is_read_and_run_by_the_test_that_is_named():
    assert claims() == ELSEWHERE
    for page, test in WHOLE_PAGES.items():
        assert f'in blocks("{page}")' in Path(__file__).with_name(test).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_no_block_hides_commands(page):
    languages = {language for _, language, _ in blocks(page)}
    assert languages <= {"python", "sh", "text", "toml", "json"}, "label code python or sh, and everything else text"
    commands = re.compile(r"^(piecemill|python|pip|make) [^\d]", re.MULTILINE)
    hidden = [f"{page}:{line}" for line, language, code in blocks(page) if language == "text" and commands.search(code)]
    assert hidden == [], "label commands sh; if they need another environment, name the test in ELSEWHERE"


def test_no_example_in_a_docstring_is_skipped():
    package = [
        path for path in (HOUSE / "python").rglob("*.py") if "doctest: +SKIP" in path.read_text(encoding="utf-8")
    ]
    assert package == []
