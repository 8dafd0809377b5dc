"""Words counted on any executor, and merged: the vocabulary is that of one machine."""

from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import piecemill as pm
from command import piecemill
from corpora import write_jsonl
from piecemill.errors import PlanError, SourceError
from piecemill.sources import open_source


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, stdlib_texts):
    """Text files, JSON lines and Parquet, with a document that cannot be used."""
    folder = tmp_path_factory.mktemp("corpus")
    for number, text in enumerate(stdlib_texts[:30]):
        (folder / f"{number:02}.txt").write_text(text, encoding="utf-8")
    pq.write_table(pa.table({"text": stdlib_texts[30:60]}), folder / "rows.parquet", row_group_size=5)
    for number in range(60, 90, 5):
        write_jsonl(folder / f"{number}.jsonl", stdlib_texts[number : number + 5])
    with open(folder / "85.jsonl", "a") as lines:
        lines.write("{bad\n")
    return folder


def several_tasks(folder):
    source = open_source(folder, block_bytes=50_000, on_bad_document="skip", group_bytes=1)
    assert len(source.tasks) > 5
    return source


@pytest.fixture(scope="module")
def alone(corpus):
    """Trained with threads that share one counter."""
    return pm.train_bpe(several_tasks(corpus), vocab_size=600)


def assert_equal(found, wanted):
    assert found.identity == wanted.identity
    for name in ("corpus", "distinct_words", "merges", "merging", "ended"):
        assert found.training[name] == wanted.training[name], name


def processes():
    return ProcessPoolExecutor(2, mp_context=get_context("spawn"))


@pytest.mark.parametrize("pool", [lambda: ThreadPoolExecutor(3), processes], ids=["threads", "processes"])
def test_the_vocabulary_is_the_same_on_any_futures_executor(corpus, alone, pool):
    with pool() as executor:
        assert_equal(pm.train_bpe(several_tasks(corpus), vocab_size=600, executor=executor), alone)


def test_the_vocabulary_is_the_same_on_ray(corpus, alone, ray_cluster):
    assert_equal(pm.train_bpe(several_tasks(corpus), vocab_size=600, executor="ray"), alone)


def test_whole_documents_give_the_same_vocabulary(corpus):
    options = {"vocab_size": 300, "pretokenizer": "none", "include": ["0*.txt"]}
    with ThreadPoolExecutor(2) as executor:
        elsewhere = pm.train_bpe(corpus, executor=executor, **options)
    assert elsewhere.identity == pm.train_bpe(corpus, **options).identity


def test_counts_that_are_saved_are_those_of_one_machine(corpus, tmp_path):
    with ThreadPoolExecutor(2) as executor:
        elsewhere = pm.count_words(several_tasks(corpus), save_counts=tmp_path / "a.parquet", executor=executor)
    alone = pm.count_words(several_tasks(corpus), save_counts=tmp_path / "b.parquet")
    assert (elsewhere.documents, elsewhere.fingerprint) == (alone.documents, alone.fingerprint)
    assert (tmp_path / "a.parquet").read_bytes() == (tmp_path / "b.parquet").read_bytes()


def test_progress_ends_at_everything(corpus):
    seen = []
    source = several_tasks(corpus)
    with ThreadPoolExecutor(2) as executor:
        pm.train_bpe(source, vocab_size=300, executor=executor, on_progress=seen.append)
    read = [event.bytes_read for event in seen if event.stage == "count"]
    assert read == sorted(read)
    assert read[-1] == source.total_bytes


def test_an_error_of_a_task_is_raised_as_it_is(corpus):
    with ThreadPoolExecutor(2) as executor, pytest.raises(SourceError, match=r"85\.jsonl:6: broken JSON"):
        pm.train_bpe(corpus, vocab_size=300, executor=executor)


def test_a_source_in_memory_stays_here():
    with ThreadPoolExecutor(2) as executor, pytest.raises(PlanError, match=r"<list> is in the memory.*Pass files"):
        pm.train_bpe(["some text"], vocab_size=300, executor=executor)


def test_the_command_counts_on_a_cluster(corpus, tmp_path, ray_cluster):
    command = ["train", corpus, "--vocab-size", "600", "--on-bad-document", "skip", "--out"]
    ray = piecemill(*command, tmp_path / "ray", "--executor", "ray", "--ray-address", ray_cluster.address)
    assert (ray.returncode, ray.stderr.count("Traceback")) == (0, 0), ray.stderr
    assert piecemill(*command, tmp_path / "local").returncode == 0
    assert (tmp_path / "ray/tokenizer.json").read_bytes() == (tmp_path / "local/tokenizer.json").read_bytes()


def test_an_unknown_executor_is_wrong_use(tmp_path):
    run = piecemill("train", tmp_path, "--out", tmp_path / "tok", "--executor", "spark")
    assert run.returncode == 2
    assert "expected local, ray" in run.stderr
