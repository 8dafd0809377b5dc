"""Action shards and batches: what is stored, which examples come when, and what a state goes on with."""

import json
import shutil

import numpy as np
import pytest

import piecemill as pm
from action_cases import random_items, random_vocabulary
from loadable import write_rows
from piecemill.actions import ActionTokenizer, ActionVocabulary, Histories, Items
from piecemill.actions.batches import Examples, action_batches
from piecemill.actions.shards import open_action_shards, write_action_shards
from piecemill.errors import LoadError, PlanError, ShardError, SourceError, TokenizerError
from piecemill.files import hash_file
from piecemill.loading import Blocks, mix
from piecemill.reference import segments
from piecemill.reporting.describing import kind_of
from piecemill.shards.check import check_shards
from piecemill.shards.export import ExportPlan, export

ITEMS = 30
LENGTHS = (3, 1, 9, 2, 30, 5)


def made(folder, lengths=LENGTHS, seed=0):
    rng = np.random.default_rng(seed)
    vocabulary = random_vocabulary(rng, 3, values=5, merges=40)
    codes = vocabulary.initial[random_items(rng, vocabulary, ITEMS) - 1, 1]
    items = Items.of({f"i{n}": row for n, row in enumerate(codes.tolist())})
    histories = [[f"i{n}" for n in rng.integers(0, ITEMS, length)] for length in lengths]
    return write_action_shards(histories, ActionTokenizer(vocabulary, items), out=folder), histories


@pytest.fixture
def shards(tmp_path):
    return made(tmp_path / "shards")[0]


def prefixes(shards, history, only_last=False):
    """Every example in order, as (items that go in, item to predict): the definition."""
    found = []
    for part in np.split(np.asarray(shards.items), shards.ends[:-1]):
        items = part.tolist()
        for i in range(len(items) - 1):
            window = items[max(i + 1 - history, 0) : i + 2]
            if not only_last or i == len(items) - 2:
                found.append((window[:-1], window[-1]))
    return found


def listed(batches):
    return [{name: array.tolist() for name, array in batch.items()} for batch in batches]


def test_examples_are_the_prefixes_of_each_history(shards):
    for history in (1, 4, 20):
        for kind in ("prefixes", "last"):
            examples = Examples(shards, kind, history)
            starts, labels = examples.spans(np.arange(len(examples)))
            got = [
                (shards.items[start:label].tolist(), int(shards.items[label]))
                for start, label in zip(starts.tolist(), labels.tolist(), strict=True)
            ]
            assert got == prefixes(shards, history, kind == "last")
    assert len(Examples(shards, "prefixes", 20)) == sum(LENGTHS) - len(LENGTHS)
    assert len(Examples(shards, "last", 20)) == len(LENGTHS) - 1  # one history has a single item


def test_a_row_is_the_segmentation_of_its_example_between_bos_and_eos(shards):
    tokenizer = shards.tokenizer
    rules = segments.rules(tokenizer.vocabulary.merges.tolist(), tokenizer.vocabulary.n_init_feats)
    table, examples = shards.table.tolist(), prefixes(shards, 4)
    batches = action_batches(shards, batch_size=7, history=4, seed=3, epochs=2, order="sequential")
    rows = [row for batch in listed(batches) for row in zip(*batch.values(), strict=True)]
    assert len(rows) == 2 * len(examples)
    for number, (ids, mask, labels, target) in enumerate(rows):
        epoch, example = divmod(number, len(examples))
        items, label = examples[example]
        tokens = segments.spr([table[item] for item in items], rules, 3, epoch, example)
        width = len(tokens) + 2
        assert ids == [tokenizer.bos, *tokens, tokenizer.eos, *[0] * (len(ids) - width)]
        assert mask == [1] * width + [0] * (len(ids) - width)
        assert labels == tokenizer.label_table[label].tolist()
        assert target == label


def test_without_chance_every_epoch_has_the_same_rows(shards):
    batches = action_batches(
        shards, batch_size=5, segmentation="weighed", examples="last", epochs=2, order="sequential"
    )
    rows = [row for batch in listed(batches) for row in batch["input_ids"]]
    first, second = rows[:5], rows[5:]
    assert first == second
    items = prefixes(shards, 20, only_last=True)[0][0]
    tokens = shards.tokenizer.encode(shards.table[items]).tolist()
    assert first[0][: len(tokens) + 2] == [shards.tokenizer.bos, *tokens, shards.tokenizer.eos]


def test_each_epoch_has_every_example_once_in_a_new_order(shards):
    count = len(prefixes(shards, 20))
    batches = action_batches(shards, batch_size=count, epochs=3, seed=4)
    orders = [tuple(batch["targets"].tolist()) for batch in batches]
    want = sorted(target for _, target in prefixes(shards, 20))
    assert [sorted(order) for order in orders] == [want] * 3
    assert len(set(orders)) == 3


def test_a_state_goes_on_exactly_where_it_was_taken(shards):
    options = {"batch_size": 8, "seed": 5, "epochs": 3}
    whole = listed(action_batches(shards, **options))
    for given in range(len(whole) + 1):
        with action_batches(shards, **options) as first:
            for _ in range(given):
                next(first)
            state = json.loads(json.dumps(first.state_dict()))
        with action_batches(shards, threads=0, **options) as second:
            second.load_state_dict(state)
            assert listed(second) == whole[given:]


def test_ranks_share_each_step_and_a_state_goes_on_with_another_number_of_them(shards):
    alone = action_batches(shards, batch_size=12, seed=6, epochs=2)
    steps = listed(alone)
    for world_size in (2, 3, 4):
        size = 12 // world_size
        ranks = [
            listed(action_batches(shards, batch_size=size, seed=6, epochs=2, rank=rank, world_size=world_size))
            for rank in range(world_size)
        ]
        assert len({len(rank) for rank in ranks}) == 1
        for step, parts in zip(steps, zip(*ranks, strict=True), strict=True):
            assert [target for part in parts for target in part["targets"] if target >= 0] == step["targets"]
    state = {**action_batches(shards, batch_size=12, seed=6, epochs=2).state_dict(), "samples": 24}
    second = action_batches(shards, batch_size=4, seed=6, epochs=2, rank=1, world_size=3)
    second.load_state_dict(state)
    assert next(second)["targets"].tolist() == steps[2]["targets"][4:8]


def test_a_rank_with_nothing_left_steps_along_with_padding(tmp_path):
    shards, _ = made(tmp_path / "small", lengths=(2, 2, 2))
    last = listed(action_batches(shards, batch_size=2, epochs=1, rank=1, world_size=2))[-1]
    assert last["targets"] == [listed(action_batches(shards, batch_size=4, epochs=1))[0]["targets"][2]]
    ranks = [listed(action_batches(shards, batch_size=1, epochs=1, rank=rank, world_size=2)) for rank in range(2)]
    assert [len(rank) for rank in ranks] == [2, 2]
    empty = ranks[1][1]
    assert empty["targets"] == [-1]
    assert empty["labels"] == [[-100] * 4]
    assert set(empty["attention_mask"][0]) == {0}
    dropped = action_batches(shards, batch_size=1, epochs=1, rank=1, world_size=2, drop_last=True)
    assert len(dropped) == len(listed(dropped)) == 1


def test_the_number_of_threads_does_not_show(shards):
    one, *others = (listed(action_batches(shards, batch_size=4, seed=7, epochs=2, threads=n)) for n in (0, 1, 3))
    assert others == [one, one]


def test_an_ensemble_is_rows_that_follow_each_other(shards):
    options = {"batch_size": 5, "examples": "last", "epochs": 1, "order": "sequential", "seed": 2}
    (batch,) = listed(action_batches(shards, ensemble=3, **options))
    assert len(batch["targets"]) == 15
    examples = prefixes(shards, 20, only_last=True)
    assert batch["targets"] == [label for _, label in examples for _ in range(3)]
    for number, (items, _) in enumerate(examples):
        keys = [shards.tokenizer.items.keys[item] for item in items]
        members = shards.tokenizer.ensemble(keys, 3, seed=2, row=number)
        for row, member in zip(batch["input_ids"][3 * number :], members, strict=False):
            assert row[1 : len(member) + 1] == member.tolist()
            assert row[len(member) + 1] == shards.tokenizer.eos


def test_a_width_can_be_fixed_and_must_be_enough(shards):
    batch = next(action_batches(shards, batch_size=4, pad_to=20 * 3 + 2))
    assert batch["input_ids"].shape == batch["attention_mask"].shape == (4, 62)
    with pytest.raises(PlanError, match="pad_to=61: a row of history=20 items can have 62 tokens"):
        action_batches(shards, batch_size=40, pad_to=61)


def test_a_state_of_something_else_is_refused(shards, tmp_path):
    batches = action_batches(shards, batch_size=4, epochs=2)
    state = batches.state_dict()
    other = made(tmp_path / "other", seed=1)[0]
    wrong = [
        (action_batches(other, batch_size=4, epochs=2), state, "taken over the data"),
        (action_batches(shards, batch_size=5, epochs=2), state, r"batch_size=5 \* world_size=1 = 5. Choose batch_size"),
        (action_batches(shards, batch_size=4, epochs=2, seed=1), state, "seed=0"),
        (action_batches(shards, batch_size=4, epochs=2, history=5), state, "history=20"),
        (batches, {**state, "format": 9}, "format 9"),
        (batches, {**state, "samples": 3}, "a multiple of 4"),
        (batches, {**state, "samples": 4000}, "Pass more epochs"),
        (batches, {**state, "samples": "x"}, "samples='x'"),
    ]
    for loader, given, message in wrong:
        with pytest.raises(LoadError, match=message):
            loader.load_state_dict(given)


def test_a_plan_that_cannot_work_is_refused(shards, tmp_path):
    for options, message in (
        ({"batch_size": 0}, "batch_size=0"),
        ({"history": 0}, "history=0"),
        ({"rank": 2, "world_size": 2}, "rank=2"),
        ({"epochs": 0}, "epochs=0"),
        ({"examples": "all"}, "examples='all'"),
        ({"ensemble": 2, "segmentation": "weighed"}, "ensemble=2"),
        ({"seed": -1}, "seed=-1"),
    ):
        with pytest.raises(PlanError, match=message):
            action_batches(shards, **options)
    with pytest.raises(LoadError, match="no example in it"):
        action_batches(made(tmp_path / "single", lengths=(1, 1))[0])
    with pytest.raises(TypeError, match="no length"):
        len(action_batches(shards))


def test_what_the_loader_of_text_can_do_actions_can_too(shards, monkeypatch):
    options = {"seed": 3, "epochs": 2, "order": Blocks(4, 2)}
    straight = [
        target for batch in listed(action_batches(shards, batch_size=1, **options)) for target in batch["targets"]
    ]
    assert len(straight) == 2 * len(prefixes(shards, 20))
    with action_batches(shards, batch_size=6, **options) as first:
        given = [target for _ in range(3) for target in next(first)["targets"].tolist()]
        assert (first.stats.batches, first.epoch, first.stats.waited > 0) == (3, 0, True)
        state = first.state_dict()
    second = action_batches(shards, batch_size=4, **options)
    second.load_state_dict(state, change_batch=True)
    assert given + [target for batch in listed(second) for target in batch["targets"]] == straight
    monkeypatch.setattr(Examples, "spans", None)
    with pytest.raises(TypeError) as raised:
        next(action_batches(shards))
    assert raised.value.__notes__[0].startswith("While making batch 0 of rank 0, for ActionShards(")


# --- The folder.


def test_a_folder_opens_with_what_was_written(tmp_path):
    shards, histories = made(tmp_path / "shards")
    again = open_action_shards(tmp_path / "shards")
    keys = again.tokenizer.items.keys
    assert [[keys[n] for n in part] for part in np.split(np.asarray(again.items), again.ends[:-1])] == histories
    assert again.identity == shards.identity == made(tmp_path / "twin")[0].identity
    assert again.check() == []
    assert again.items.dtype == np.uint16
    assert (again.manifest["histories"], again.manifest["actions"]) == (len(LENGTHS), sum(LENGTHS))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["shards", "twin"]


def test_a_folder_is_a_prepared_one(tmp_path):
    _, histories = made(tmp_path / "shards")
    rows = pm.open_shards(tmp_path / "shards")
    assert [rows.tokenizer().decode(history) for history in rows] == [" ".join(keys) for keys in histories]
    found = check_shards(tmp_path / "shards")
    assert (found.sound, found.documents, found.decoded) == (True, len(LENGTHS), len(LENGTHS))
    done = export(tmp_path / "shards", out=tmp_path / "rows", plan=ExportPlan(to="jsonl", pack=False, window=50))
    lines = (tmp_path / "rows/all/00000.jsonl").read_text().splitlines()
    assert done.windows == len(lines) == sum(length > 1 for length in LENGTHS)
    assert json.loads(lines[0])["input_ids"] == rows[0].tolist()
    with pytest.raises(LoadError, match="the same id is another token"):
        mix([(rows, 1), (pm.open_shards(made(tmp_path / "other", seed=1)[0].folder), 1)])
    text = write_rows(tmp_path / "text", [[1, 2]])
    with pytest.raises(ShardError, match=r"shards of text. Expected a folder written by `piecemill actions encode"):
        open_action_shards(text.folder)


def test_damage_is_found(tmp_path):
    shards, _ = made(tmp_path / "shards")
    path = tmp_path / "shards/all/000000-0000.tokens.npy"
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content)
    found = shards.check()
    assert "000000-0000.tokens.npy: was changed" in found[0]
    assert "document 5 (tokens 45 to 50) does not decode to the text" in found[1]
    path.write_bytes(content[:-1])
    with pytest.raises(ShardError, match=r"tokens\.npy has .* bytes; the manifest says"):
        open_action_shards(tmp_path / "shards")
    path.unlink()
    with pytest.raises(ShardError, match=r"tokens\.npy is missing"):
        open_action_shards(tmp_path / "shards")
    shutil.rmtree(tmp_path / "shards")
    with pytest.raises(ShardError, match=r"plan\.json is missing. Expected a folder written by `piecemill actions"):
        open_action_shards(tmp_path / "shards")


def test_a_folder_of_the_format_before_opens_and_is_checked(tmp_path):
    shards, _ = made(tmp_path / "shards")
    old = tmp_path / "old"
    shards.tokenizer.save(old / "tokenizer" / "actionpiece.json")
    for name, array in (("items", shards.items.astype(np.uint8)), ("ends", shards.ends), ("table", shards.table)):
        np.save(old / f"{name}.npy", array)
    names = [path for path in old.rglob("*") if path.is_file()]
    files = {
        path.relative_to(old).as_posix(): {"bytes": path.stat().st_size, "xxh3": hash_file(path)} for path in names
    }
    manifest = {"format": 1, "kind": "actions", "histories": 6, "actions": 50, "items": 30, "vocab_size": 56}
    (old / "manifest.json").write_text(json.dumps({**manifest, "report": {}, "files": files}))
    opened = open_action_shards(old)
    assert listed(action_batches(opened, epochs=1)) == listed(action_batches(shards, epochs=1))
    assert (opened.check(), kind_of(old), kind_of(shards.folder)) == ([], "action_shards", "shards")
    state = action_batches(opened).state_dict()
    with pytest.raises(LoadError, match="taken over the data"):
        action_batches(shards).load_state_dict(state)
    (old / "items.npy").write_bytes((old / "items.npy").read_bytes()[:-1])
    with pytest.raises(ShardError, match=r"items\.npy was changed.*encode it again"):
        open_action_shards(old)


def test_what_is_there_is_never_overwritten_and_failing_leaves_nothing(tmp_path):
    shards, _ = made(tmp_path / "shards")
    with pytest.raises(ShardError, match="something is there already"):
        write_action_shards([["i0"]], shards.tokenizer, out=tmp_path / "shards")
    with pytest.raises(SourceError, match="nobody"):
        write_action_shards([["i0", "nobody"]], shards.tokenizer, out=tmp_path / "new")
    with pytest.raises(TokenizerError, match="no items"):
        write_action_shards([["i0"]], ActionTokenizer(shards.tokenizer.vocabulary), out=tmp_path / "new")
    with pytest.raises(SourceError, match="none of their 1 item is among"):
        write_action_shards([["nobody"]], shards.tokenizer, out=tmp_path / "empty", unknown="drop")
    assert [path.name for path in tmp_path.iterdir()] == ["shards"]
    dropped = write_action_shards([["i0", "nobody", "i1"]], shards.tokenizer, out=tmp_path / "new", unknown="drop")
    assert dropped.items.tolist() == [0, 1]
    assert dropped.manifest["report"]["items"]["actions_dropped"] == 1


def test_histories_may_come_as_a_split_has_them(tmp_path):
    items = Items.of({"a": [0, 0], "b": [1, 0]})
    vocabulary = ActionVocabulary(2, np.array([[0, 0], [0, 1], [1, 0]]), np.array([[1, 3]]), [0] * 4 + [1.0])
    histories = Histories.of([["b", "a"], ["a"]])
    shards = write_action_shards(histories, ActionTokenizer(vocabulary, items), out=tmp_path / "s")
    assert shards.items.tolist() == [1, 0, 0]
    assert next(action_batches(shards, batch_size=1))["labels"].tolist() == [[4, 6, -100]]
