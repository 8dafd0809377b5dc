"""`--storage-option`: reaches the file system of a URL, and nothing that is written or printed."""

import json

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from command import piecemill
from corpora import small_tokenizer, texts, write_jsonl
from piecemill import prepare, train_bpe
from piecemill.errors import PlanError
from piecemill.preparing import PreparePlan
from piecemill.training.plan import TrainPlan

SECRET = "s3cr3t-ke1"


class Vault(MemoryFileSystem):
    """A file system that opens with the right key only."""

    protocol = "vault"
    cachable = False

    def __init__(self, key=None, **options):
        super().__init__(**options)
        if key != SECRET:
            raise PermissionError(13, "wrong key")

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.replace("vault://", "memory://"))


@pytest.fixture
def vault():
    fsspec.register_implementation("vault", Vault, clobber=True)
    with Vault(key=SECRET).open("/corpus/a.jsonl", "w") as file:
        file.writelines(json.dumps({"text": text}) + "\n" for text in texts(40))
    yield "vault://corpus/"
    Vault(key=SECRET).rm("/corpus", recursive=True)


def test_the_option_opens_the_source_and_is_in_no_file(vault, tmp_path, capfd):
    with pytest.raises(Exception, match="wrong key"):
        prepare([vault], small_tokenizer(), out=tmp_path / "closed")
    options = {"storage_option": (f"key={SECRET}",)}
    summary = prepare([vault], small_tokenizer(), out=tmp_path / "out", **options)
    assert summary.documents == 40
    tok = train_bpe([vault], vocab_size=300, **options)
    tok.save(tmp_path / "tok")
    for path in (*(tmp_path / "out").rglob("*"), *(tmp_path / "tok").rglob("*")):
        if path.is_file():
            assert SECRET.encode() not in path.read_bytes(), path
    assert "storage" not in (tmp_path / "out" / "plan.json").read_text()
    assert SECRET not in repr(PreparePlan(**options)) + repr(summary) + json.dumps(summary.to_dict())
    # Another key, with the same files behind it, is no other plan.
    assert prepare([vault], small_tokenizer(), out=tmp_path / "out", **options).complete_before
    assert SECRET not in "".join(capfd.readouterr())


def test_what_is_left_of_a_run_that_failed_has_no_key_in_it_either(vault, tmp_path):
    with Vault(key=SECRET).open("/corpus/b.jsonl", "w") as file:
        file.write("no json\n")
    with pytest.raises(Exception, match=r"b\.jsonl:1: broken JSON") as raised:
        prepare([vault], small_tokenizer(), out=tmp_path / "out", storage_option=(f"key={SECRET}",))
    assert SECRET not in str(raised.value)
    assert not any(SECRET.encode() in path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file())


def test_a_value_that_is_json_is_what_it_says_and_any_other_is_text():
    given = ("anon=true", "key=abc=d", "retries=3", 'pin="0042"', 'client_kwargs={"region_name": "x"}', "empty=")
    want = {
        "anon": True,
        "key": "abc=d",
        "retries": 3,
        "pin": "0042",
        "client_kwargs": {"region_name": "x"},
        "empty": "",
    }
    assert PreparePlan(storage_option=given).storage == TrainPlan(storage_option=given).storage == want


@pytest.mark.parametrize("given", [SECRET, f"={SECRET}"])
def test_an_option_that_is_none_is_refused_without_showing_it(given, tmp_path):
    with pytest.raises(PlanError, match="expected key=value") as raised:
        PreparePlan(storage_option=(given,))
    assert SECRET not in str(raised.value)
    with pytest.raises(PlanError, match="storage_option: expected a list") as raised:
        PreparePlan(storage_option=SECRET)
    assert SECRET not in str(raised.value)


def test_the_command_has_it_as_a_flag_and_in_its_config(tmp_path):
    write_jsonl(tmp_path / "a.jsonl", texts(5))
    small_tokenizer().save(tmp_path / "tok")
    (tmp_path / "more.toml").write_text(f'storage_option = ["token={SECRET}"]\n')
    words = ["prepare", f"file://{tmp_path}/a.jsonl", "--tokenizer", tmp_path / "tok", "--out"]
    flags = [*words, tmp_path / "flag", "--storage-option", f"token={SECRET}", "--storage-option", "auto_mkdir=false"]
    for run in (flags, ["--config", tmp_path / "more.toml", *words, tmp_path / "config"]):
        done = piecemill(*run)
        assert done.returncode == 0, done.stderr
        assert SECRET not in done.stdout + done.stderr
    for path in (*(tmp_path / "flag").rglob("*"), *(tmp_path / "config").rglob("*")):
        assert path.is_dir() or SECRET.encode() not in path.read_bytes(), path
