"""Wrong arguments in Python: the error is one of ours, names the argument, and nothing was created."""

import dataclasses
import functools
import importlib
import inspect
import pkgutil

import numpy as np
import pytest

import piecemill as pm
import piecemill.plans as plans_module
from command import piecemill
from piecemill.actions import Histories, Items, k_core, leave_out, make_items, max_items, open_action_shards
from piecemill.actions.interactions import read_interactions
from piecemill.errors import LoadError, PiecemillError, PlanError, ShardError, TokenizerError
from piecemill.loading import Blocks, Local, Windows, batches, mix
from piecemill.plans import ANY
from piecemill.sources import open_source
from piecemill.tokenizers.verify import verify

TEXT = "the cat sat on the mat, and the other cat sat on the other mat.\n" * 20
WRONG = [None, 5, -1, 1.5, "nonsense", [], ["x"], [None], {"a": 1}, b"\xff", object(), np.array([1.5, 2.0]), "", 10**30]
WRONG += ["a\0b", "\ud800", [5], ()]
FEATURES = {f"i{n}": ["red" if n % 2 else "blue", n % 3] for n in range(6)}
HISTORIES = [[f"i{(n + k) % 6}" for k in range(4)] for n in range(6)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("wrong")


@pytest.fixture(scope="module")
def tok():
    return pm.train_bpe([TEXT], vocab_size=280)


@pytest.fixture(scope="module")
def shards(tok, folder):
    pm.prepare([TEXT] * 4, tok, out=folder / "shards")
    return pm.open_shards(folder / "shards")


@pytest.fixture(scope="module")
def actions():
    return pm.train_actions(HISTORIES, FEATURES, vocab_size=12)


def refuses(function, /, *given, **named):
    """Either it is carried out, or the error is one of ours; the error, if there was one."""
    try:
        function(*given, **named)
    except PiecemillError as error:
        return str(error)
    return None


def with_wrong(function, wrongs=WRONG, /, **right):
    """Call it with every wrong value in place of every argument, the others right."""
    names = [
        name
        for name, each in inspect.signature(function).parameters.items()
        if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL) and name != "self"
    ]
    assert {*right} <= {*names}
    for name in names:
        for wrong in wrongs:
            refuses(function, **{**right, name: wrong})


def plans():
    """Every class of options in the package."""
    found = []
    for module in pkgutil.walk_packages(pm.__path__, "piecemill."):
        if "torch" in module.name or "__main__" in module.name or ".demo" in module.name or "cuda" in module.name:
            continue
        names = vars(importlib.import_module(module.name)).items()
        found += [
            value
            for name, value in names
            if dataclasses.is_dataclass(value) and name.endswith("Plan") and value.__module__ == module.name
        ]
    return found


@pytest.mark.parametrize("plan", plans(), ids=lambda plan: plan.__name__)
def test_a_plan_names_the_nearest_option_and_the_type_that_it_expects(plan):
    field = dataclasses.fields(plan)[0].name
    with pytest.raises(PlanError, match=f"unknown option '{field}_'; did you mean '{field}'"):
        plan(**{f"{field}_": 1})
    for each in dataclasses.fields(plan):
        if not each.metadata.get(ANY):
            with pytest.raises(PlanError, match=each.name):
                plan(**{each.name: object()})
        for wrong in WRONG:
            refuses(plan, **{each.name: wrong})


def test_a_secret_of_a_wrong_type_is_not_shown():
    with pytest.raises(PlanError) as caught:
        pm.PreparePlan(storage_option=(b"key=hunter2",))
    assert "hunter2" not in str(caught.value)


def test_a_field_for_any_object_takes_a_tokenizer(tok):
    assert pm.TrainPlan(start=tok).start is tok
    assert pm.train_bpe([TEXT], start=tok, vocab_size=290).merges[: len(tok.merges)].tolist() == tok.merges.tolist()
    assert "tokenizer: found builtins.int" in refuses(pm.train_bpe, [TEXT], start=5, vocab_size=290)


@pytest.mark.parametrize("plan", [5, [], {}, "", pm.TrainPlan()])
def test_a_plan_of_another_kind_is_named(tok, tmp_path, plan):
    with pytest.raises(PlanError, match=r"plan: found \w+, expected PreparePlan"):
        pm.prepare([TEXT], tok, out=tmp_path / "out", plan=plan)


@pytest.mark.parametrize("verb", [pm.prepare, pm.pretrain, pm.train_actions, pm.train_bpe])
def test_progress_goes_to_a_function(verb):
    wanted = [name for name, each in inspect.signature(verb).parameters.items() if each.default is each.empty]
    required = {name: "x" for name in wanted if name != "unknown"}
    for wrong in (5, [], "x"):
        with pytest.raises(PlanError, match=r"on_progress: found \w+, expected a function"):
            verb(**required, on_progress=wrong)


@pytest.mark.parametrize(
    "options",
    [
        {"source": None},
        {"source": 5},
        {"source": "missing/path"},
        {"tokenizer": None},
        {"tokenizer": "missing/tokenizer"},
        {"eos": "no such token"},
        {"splits": "nonsense"},
        {"special_in_text": "nonsense"},
        {"threads": 1.5},
        {"executor": "nonsense"},
        {"part": "9/3"},
        {"part": "1/3"},
        {"weight": ["*.txt=2"]},
        {"on_progress": 5},
        {"spltis": "train=1"},
    ],
    ids=str,
)
def test_prepare_creates_nothing_for_wrong_arguments(tok, tmp_path, options):
    right = {"source": ["a text"], "tokenizer": tok, "out": tmp_path / "new" / "out"}
    with pytest.raises(PiecemillError):
        pm.prepare(**{**right, **options})
    assert list(tmp_path.iterdir()) == []


def test_a_tokenizer_without_an_end_of_text_says_which_flag_to_pass(tmp_path):
    (tmp_path / "a.txt").write_text(TEXT)
    done = piecemill("train-wordpiece", tmp_path / "a.txt", "--vocab-size", 60, "--out", tmp_path / "tok", "--quiet")
    assert done.returncode == 0, done.stderr
    done = piecemill("prepare", tmp_path / "a.txt", "--tokenizer", tmp_path / "tok", "--out", tmp_path / "out")
    assert "--eos auto: the tokenizer does not declare an end of text. Pass --eos none for none, or" in done.stderr
    assert not (tmp_path / "out").exists()


def test_verbs_with_wrong_arguments(tok, shards, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tok.save(tmp_path / "tok")
    with_wrong(pm.check, path=shards.folder)
    with_wrong(pm.open_shards, folder=shards.folder)
    with_wrong(pm.describe, path=shards.folder)
    some = [5, [5], np.array([1.5, 2.0]), "a\0b", "\ud800"]
    with_wrong(pm.train_bpe, some, source=[TEXT], vocab_size=262)
    with_wrong(pm.prepare, some, source=[TEXT], tokenizer=tok, out="prepared")
    with_wrong(pm.prune, tokenizer=tok, counts=np.ones(280), vocab_size=279)
    with_wrong(open_source, source=[TEXT])
    for wrong in WRONG:
        refuses(pm.compare, wrong, on=[TEXT])
        refuses(pm.export, wrong, out="exported")
        refuses(pm.export, shards.folder, out=wrong, window=8)
        refuses(pm.report, tmp_path / "tok", out=wrong)
        refuses(pm.report, tmp_path / "tok", out=tmp_path / "report.html", against=wrong)
        refuses(pm.train_actions, wrong, FEATURES, vocab_size=12)
        refuses(open_source, wrong)


def test_a_tokenizer_with_wrong_arguments(tok, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ids, ends = tok.encode_batch(["the cat", "sat"])
    data, text_ends = np.frombuffer(b"the cat", np.uint8), np.array([7])
    with_wrong(tok.encode, text="the cat")
    with_wrong(tok.encode_batch, texts=["the cat"])
    with_wrong(tok.encode_flat, data=data, ends=text_ends)
    with_wrong(tok.decode, ids=ids)
    with_wrong(tok.decode_bytes, ids=ids)
    with_wrong(tok.decode_batch, ids=ids, ends=ends)
    with_wrong(tok.decode_flat, ids=ids, ends=ends)
    with_wrong(tok.id_of, token="a")
    with_wrong(tok.bytes_of, token_id=1)
    with_wrong(tok.edit)
    with_wrong(tok.save, path="saved")
    with_wrong(pm.Tokenizer.from_merges, merges=np.array([[64, 65]]), pretokenizer="gpt2")
    with_wrong(verify, tokenizer=tok)
    assert "load_tokenizer" in refuses(pm.Tokenizer, "tok/")
    for wrong in (5, None):
        assert "expected str or bytes" in refuses(tok.encode, wrong)
        assert "expected" in refuses(tok.save, wrong)
    assert "did you mean 'special'" in refuses(tok.encode, "a", specials="parse")
    assert "known are ['ids']" in refuses(tok.decode, [1], errors="replace")
    assert "did you mean 'threads'" in refuses(tok.encode_batch, ["a"], thread=1)
    assert "did you mean 'special'" in refuses(tok.encode_flat, data, text_ends, specials="parse")
    assert "unknown option 'skip_special_tokens'" in refuses(tok.decode_batch, ids, ends, skip_special_tokens=True)
    with pytest.raises(TokenizerError, match="ends"):
        tok.decode_batch(ids, [1])
    with pytest.raises(TokenizerError, match=r"bos='x': expected the id"):
        tok.encode_batch(["a"], bos="x")


def test_a_value_of_another_type_is_named_with_the_types_that_are_expected(tok, shards, tmp_path):
    with pytest.raises(PlanError, match="include=5: found int, expected a list, each of it text"):
        open_source(tmp_path, include=5)
    with pytest.raises(PlanError, match=r"weight=\(5,\): found tuple, expected a list, each of it text"):
        pm.prepare([TEXT], tok, out=tmp_path / "out", weight=[5])
    with pytest.raises(PlanError, match="on_part: found int, expected a function"):
        pm.export(shards.folder, out=tmp_path / "rows", window=8, on_part=5)
    (tmp_path / "a.jsonl").write_text('{"text": "a text"}\n')
    with pytest.raises(PlanError, match=r"field=5: found int, expected text"):
        pm.compare([tok], on=tmp_path, field=5)
    with pytest.raises(PlanError, match=r"out='a\\x00b': has a character that no path"):
        pm.prepare([TEXT], tok, out="a\0b")
    with pytest.raises(PlanError, match=r"seed=\d+: found more than 64 bits, expected a whole number"):
        batches(shards, window=8, seed=1 << 70)
    with pytest.raises(LoadError, match="window 'x': found str, expected its number"):
        Windows(shards, window=8)["x"]
    with pytest.raises(PlanError, match=r"rows: found list; expected rows, such as piecemill.open_shards\('shards/'"):
        batches([shards])


def switches():
    """Every function that checks its arguments, with each of its keywords that is True or False."""
    for module in pkgutil.walk_packages(pm.__path__, "piecemill."):
        if "torch" in module.name or "__main__" in module.name or ".demo" in module.name or "cuda" in module.name:
            continue
        found = [*vars(importlib.import_module(module.name)).values()]
        found += [each for one in found if inspect.isclass(one) for each in vars(one).values()]
        for verb in {*filter(inspect.isfunction, found)}:
            if verb.__code__.co_filename == plans_module.__file__ and verb.__code__.co_name == "checked":
                parameters = inspect.signature(verb).parameters.items()
                yield from ((verb, name) for name, each in parameters if each.annotation is bool)


def test_true_or_false_is_nothing_else(tok, tmp_path):
    found = {*switches()}
    named = {(verb.__name__, name) for verb, name in found}
    some = {("prepare", "force"), ("prepare", "join"), ("prepare", "hidden"), ("train_bpe", "force"), ("save", "force")}
    some |= {("report", "speed"), ("open_shards", "unfinished"), ("encode_histories", "force"), ("batches", "pack")}
    assert named >= some | {("load_state_dict", "change_batch"), ("open_source", "raw")}
    for verb, name in found:
        with pytest.raises(PlanError, match=f"^{name}='no': found str, expected True or False"):
            verb(**{name: "no"})
    pm.prepare([TEXT], tok, out=tmp_path / "out")
    with pytest.raises(PlanError, match="force: found NoneType"):
        pm.prepare([TEXT] * 2, tok, out=tmp_path / "out", force=None)
    assert pm.prepare([TEXT] * 2, tok, out=tmp_path / "out", force=np.True_).documents == 2


def test_an_error_of_a_callback_is_left_as_it_is(tok, tmp_path):
    def told(event):
        raise ValueError("from the callback")

    with pytest.raises(ValueError, match="from the callback"):
        pm.prepare([TEXT], tok, out=tmp_path / "out", on_progress=told)
    with pytest.raises(ValueError, match="from the callback"):
        pm.prepare([TEXT], tok, out=tmp_path / "other", on_progress=told, separator="\0")


def test_an_error_of_an_iterable_is_left_as_it_is(tok, tmp_path):
    def documents():
        yield TEXT
        raise TypeError("from the iterable")

    for verb in (
        functools.partial(pm.prepare, tokenizer=tok, out=tmp_path / "out", splits={"train": 9, "val": 1}),
        functools.partial(pm.train_bpe, vocab_size=280, pretokenizer="regex:\0|[^\0]+"),
    ):
        with pytest.raises(TypeError, match="from the iterable"):
            verb(documents())


def test_tensors_and_datasets_with_wrong_arguments(shards, tok):
    pytest.importorskip("torch")
    pytest.importorskip("datasets")
    from piecemill.loading import torch
    from piecemill.loading.datasets import as_dataset

    for wrong in ("cuba", "cuda:99", 5, None, [], object()):
        assert "device=" in refuses(torch.batches, shards, window=8, device=wrong)
    assert "windows=" in refuses(as_dataset, shards)
    for wrong in (-1, tok.vocab_size):
        said = refuses(torch.text_batches, [TEXT], tok, window=8, pad_id=wrong)
        assert said == f"pad_id={wrong}: the vocabulary has {tok.vocab_size} ids."
    assert "did you mean 'window'" in refuses(torch.BatchDataset, shards, windw=8)
    assert "expected rows, such as" in refuses(torch.BatchDataset, "shards/", window=8)
    for name in ("eos", "bos", "dtype", "window", "device"):
        for wrong in WRONG:
            refuses(torch.text_batches, [TEXT], tok, **{"window": 8, name: wrong})


def test_special_tokens_for_ranks(tok, tmp_path):
    tok.save(tmp_path / "tok")
    ranks, free = tmp_path / "tok" / "ranks.tiktoken", tok.vocab_size
    load = functools.partial(pm.load_tokenizer, ranks, pretokenizer="gpt2")
    assert load(special_tokens={"<a>": free, "<b>": free + 1}).encode("<b>", special="parse").tolist() == [free + 1]
    with pytest.raises(TokenizerError, match=rf"special token '<b>' with id {free}: .* no other special token has"):
        load(special_tokens={"<a>": free, "<b>": free})
    for wrong in (["<a>"], "<a>", {5: free}):
        with pytest.raises(TokenizerError, match=r"^special_tokens=.*: expected the id of each text"):
            load(special_tokens=wrong)
    done = piecemill("encode", tmp_path / "tok", "x", "--pretokenizer", "gpt2")
    assert "; --pretokenizer is for .tiktoken files" in done.stderr


def test_a_tokenizer_of_integers_with_wrong_arguments():
    tok = pm.train_bpe([[1, 2, 3, 1, 2, 3] * 20], integers=True, vocab_size=8)
    with_wrong(tok.encode, text=[1, 2])
    with_wrong(tok.encode_batch, texts=[[1, 2]])
    with_wrong(tok.decode_integers, ids=[1, 2])
    with_wrong(tok.id_of, token="1")


def test_shards_and_batches_with_wrong_arguments(shards):
    for wrong in WRONG:
        refuses(shards.array, wrong, "tokens")
        refuses(shards.array, 0, wrong)
        refuses(shards.shard, wrong)
        refuses(Local, wrong)
        refuses(Blocks, wrong, wrong)
        refuses(mix, wrong)
        for name in ("window", "batch_size", "seed", "pack", "pad_id", "weights", "epochs", "rank", "order", "labels"):
            refuses(batches, shards, **{"window": 8, "batch_size": 2, name: wrong})
    for wrong in (None, "x", 1.5):
        with pytest.raises(ShardError, match="expected its number"):
            shards[wrong]
    with pytest.raises(IndexError, match="document 99 of"):
        shards[99]
    assert len(list(shards)) == len([shards[number] for number in range(len(shards))]) == 4
    assert "open_shards" in refuses(pm.Shards, "shards/", "all", {}, None)
    assert "did you mean 'shards'" in refuses(Local, shard=4)


def test_actions_with_wrong_arguments(actions, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    actions.save(tmp_path / "voc")
    items, histories = Items.of(FEATURES), Histories.of(HISTORIES)
    with_wrong(actions.encode, sequence=["i0"])
    with_wrong(actions.encode_batch, items=[0, 1], ends=[2], seed=1)
    with_wrong(actions.labels, item="i0")
    with_wrong(actions.labels_of, ids=actions.table)
    with_wrong(actions.decode, ids=[1, 2])
    with_wrong(actions.decode_batch, ids=[[1, 2]])
    with_wrong(actions.names, features=(0, 1))
    with_wrong(actions.items_of, features=(0, 1))
    with_wrong(actions.save, path="saved")
    with_wrong(pm.ActionTokenizer.load, path=tmp_path / "voc")
    with_wrong(items.index, keys=["i0"])
    with_wrong(items.save, path="i.parquet")
    with_wrong(items.value, column=0, code=0)
    with_wrong(Items.of, source=FEATURES)
    with_wrong(histories.map_to_items, items=items)
    with_wrong(histories.keep_actions, keep=np.ones(len(histories.items), bool))
    with_wrong(histories.slice_actions, starts=histories.starts, ends=histories.ends)
    with_wrong(histories.save, path="h.parquet")
    with_wrong(k_core, histories=histories, k=1)
    with_wrong(leave_out, histories=histories, n=1)
    with_wrong(max_items, histories=histories, most=2)
    with_wrong(read_interactions, source={"u": ["a", "b"]})
    with_wrong(make_items, source=FEATURES)
    for wrong in WRONG:
        refuses(open_action_shards, wrong)
        refuses(actions.ensemble_batch, [0, 1], [2], 2, rows=wrong)
    assert "expected a list of item keys" in refuses(actions.encode, 5)
    assert "ActionTokenizer.load" in refuses(pm.ActionTokenizer, "voc/")
    assert "did you mean 'rng'" in refuses(actions.encode, ["i0"], rgn=1)
    assert make_items(FEATURES, hash_buckets=4).codes.tolist() == make_items(FEATURES, hash_buckets="4").codes.tolist()
