"""Vocabularies and tables of actions that were changed: they load as they were, or an error names the file."""

import copy
import json
import random
import shutil
import subprocess
import sys
from collections import Counter

import pyarrow.parquet as pq
import pytest

from piecemill.actions import ActionTokenizer, ActionVocabulary, Items, make_items, read_interactions
from piecemill.actions.training import train_actions
from piecemill.errors import PiecemillError, SourceError, TokenizerError

VALUES = [None, True, 0, 1, -1, 2**31, 2**63, 10**400, 1.5, float("nan"), "", "x", [], {}, [1], {"a": 1}, "\ud800"]
VOCABULARY, BESIDE = "actionpiece.json", "actionpiece.piecemill.json"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    rng = random.Random(1)
    features = {f"i{k}": [f"a{k % 5}", f"b{k % 7}", f"c{k % 3}"] for k in range(40)}
    histories = [rng.choices(sorted(features), k=rng.randint(2, 8)) for _ in range(200)]
    folder = tmp_path_factory.mktemp("hostile")
    train_actions(histories, features, vocab_size=60).save(folder / "whole")
    return folder / "whole", histories[:10]


def nodes(data, path=()):
    if path:
        yield path
    for key in data if isinstance(data, dict) else range(len(data)) if isinstance(data, list) else ():
        yield from nodes(data[key], (*path, key))


def mutated(content, rng):
    data = json.loads(content)
    for _ in range(rng.choice([1, 1, 2])):
        paths = list(nodes(data))
        path, how, parent = rng.choice(paths), rng.random(), data
        for key in path[:-1]:
            parent = parent[key]
        if how < 0.7:
            parent[path[-1]] = copy.deepcopy(rng.choice(VALUES))
        elif isinstance(parent, dict) or how < 0.85:
            del parent[path[-1]]
        else:
            parent.insert(0, parent[path[-1]])
    return data


@pytest.mark.parametrize("sealed", [True, False])
def test_a_changed_vocabulary_gives_the_same_tokens_or_an_error_that_names_a_file(whole, tmp_path, sealed):
    source, histories = whole
    rng, outcomes = random.Random(2), Counter()
    want = [ActionTokenizer.load(source).encode(history).tolist() for history in histories]
    for _ in range(150):
        folder = tmp_path / "changed"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(source, folder)
        name = rng.choice([VOCABULARY, BESIDE, BESIDE])
        data = mutated((folder / name).read_bytes(), rng)
        if not sealed:  # as earlier versions wrote it
            beside = data if name == BESIDE else json.loads((folder / BESIDE).read_bytes())
            beside.pop("seal", None)
            (folder / BESIDE).write_text(json.dumps(beside))
        (folder / name).write_text(json.dumps(data))
        try:
            found = ActionTokenizer.load(folder)
            tokens = [found.encode(history).tolist() for history in histories]
            found.label_table  # noqa: B018 - made when first used
            outcomes["loaded"] += 1
            assert tokens == want or not sealed
        except PiecemillError as error:
            said = str(error)
            outcomes["refused" if str(folder) in said else said] += 1
    assert set(outcomes) == {"loaded", "refused"}, outcomes


def test_a_label_that_was_changed_is_noticed(whole, tmp_path):
    shutil.copytree(whole[0], tmp_path / "tok")
    beside = tmp_path / "tok" / BESIDE
    data = json.loads(beside.read_bytes())
    data["labels"][0][:2] = data["labels"][0][1::-1]  # valid, and every item would have other tokens
    beside.write_text(json.dumps(data))
    with pytest.raises(TokenizerError, match=r"actionpiece\.piecemill\.json: .* changed after it was written"):
        ActionTokenizer.load(tmp_path / "tok")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (VOCABULARY, "[" * 100_000, "not JSON"),
        (BESIDE, "[" * 100_000, "does not describe a vocabulary"),
        (VOCABULARY, {"n_categories": 2**40}, r"categories \[0, 1, 2\]; expected each of 0 to 1099511627775"),
        (VOCABULARY, {"priority": 10**400}, "the priority of token 0 is 1000"),
    ],
)
def test_what_would_take_all_memory_or_end_in_a_raw_error_is_refused(whole, tmp_path, name, content, message):
    shutil.copytree(whole[0], tmp_path / "tok")
    path = tmp_path / "tok" / name
    if isinstance(content, dict):
        data = json.loads(path.read_bytes())
        for key, value in content.items():
            data[key] = [value, *data[key][1:]] if isinstance(data[key], list) else value
        content = json.dumps(data)
    path.write_text(content)
    (tmp_path / "tok" / BESIDE).unlink() if name == VOCABULARY else None
    with pytest.raises(TokenizerError, match=message):
        ActionVocabulary.load(tmp_path / "tok")


def test_a_feature_without_values_is_refused(whole, tmp_path):
    shutil.copytree(whole[0], tmp_path / "tok")
    beside = tmp_path / "tok" / BESIDE
    data = json.loads(beside.read_bytes())
    del data["seal"]  # as earlier versions wrote it
    data["labels"][0] = []
    beside.write_text(json.dumps(data))
    with pytest.raises(TokenizerError, match=r"actionpiece\.piecemill\.json: .*labels are not lists of values"):
        ActionTokenizer.load(tmp_path / "tok")


def test_a_folder_in_place_of_the_record_is_named(whole, tmp_path):
    shutil.copytree(whole[0], tmp_path / "tok")
    (tmp_path / "tok" / BESIDE).unlink()
    (tmp_path / "tok" / BESIDE).mkdir()
    with pytest.raises(TokenizerError, match=r"actionpiece\.piecemill\.json: does not describe a vocabulary"):
        ActionTokenizer.load(tmp_path / "tok")


FUZZ = r"""
import gzip, io, json, random, resource, sys
from pathlib import Path
import pyarrow as pa, pyarrow.csv, pyarrow.parquet as pq
from piecemill.actions import Items, read_interactions
from piecemill.errors import PiecemillError

folder, seed, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
rng = random.Random(seed)
rows = range(300)
table = pa.table({"user": [f"u{n % 30}" for n in rows], "item": [f"i{n % 17}" for n in rows], "time": list(rows)})
bases = {}
for name, column in {"plain": table["item"], "view": table["item"].cast(pa.string_view()),
                     "dictionary": table["item"].dictionary_encode()}.items():
    for new in (pa.ipc.new_file, pa.ipc.new_stream):
        out = pa.BufferOutputStream()
        changed = table.set_column(1, "item", column)
        with new(out, changed.schema) as writer:
            writer.write_table(changed, max_chunksize=100)
        bases[f"{name}{new.__name__}.arrow"] = out.getvalue().to_pybytes()
out = io.BytesIO()
pq.write_table(table, out, row_group_size=100)
bases["a.parquet"] = out.getvalue()
bases["a.jsonl"] = "".join(json.dumps(row) + "\n" for row in table.to_pylist()).encode()
bases["a.json"] = json.dumps({f"u{n}": [f"i{n * m % 17}" for m in range(9)] for n in range(20)}).encode()
out = io.BytesIO()
pa.csv.write_csv(table, out)
bases["a.csv"], bases["a.csv.gz"] = out.getvalue(), gzip.compress(out.getvalue())
Items.of({f"i{n}": [f"a{n % 3}", n % 5] for n in range(17)}).save(folder / "items.parquet")
bases["items.parquet"] = (folder / "items.parquet").read_bytes()

def mutated(data):
    data = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 5])):
        at = rng.randrange(len(data)) if rng.random() < 0.5 else rng.randrange(max(0, len(data) - 600), len(data))
        how = rng.random()
        if how < 0.4: data[at] = rng.randrange(256)
        elif how < 0.6: data[at] ^= 1 << rng.randrange(8)
        elif how < 0.7: data[at : at + 4] = rng.choice([b"\xff\xff\xff\x7f", b"\xff\xff\xff\xff", bytes(4)])
        elif how < 0.8: data[at:at] = rng.choice([b"\0", b'"', b"[", b"9" * 40, b"NaN", b"\\ud800", b"\xed\xa0\x80"])
        elif how < 0.9: del data[at : at + rng.choice([1, 4, 50])]
        else: del data[at:]
        data = data or bytearray(b"x")
    return bytes(data)

resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
for number in range(count):
    name = rng.choice(sorted(bases))
    path = folder / name
    path.write_bytes(mutated(bases[name]))
    (folder / "last").write_text(f"{seed} {number} {name}")
    try:
        if name == "items.parquet": Items.load(path)
        else: read_interactions(path).lists()
    except PiecemillError as error:
        assert name in str(error), (number, name, str(error))
print("done")
"""


@pytest.mark.parametrize("seed", [1, 2])
def test_mutated_tables_of_interactions_and_items_end_in_an_error_that_names_them(tmp_path, seed):
    made = subprocess.run(
        [sys.executable, "-c", FUZZ, str(tmp_path), str(seed), "400"], capture_output=True, text=True, timeout=300
    )
    assert (made.returncode, made.stdout) == (0, "done\n"), (tmp_path / "last").read_text() + made.stderr[-2000:]


def test_saved_items_of_which_any_bit_flipped_are_the_same_or_an_error(tmp_path):
    (tmp_path / "items.csv").write_text("item,kind,size\n" + "".join(f"i{n},k{n % 3},{n % 5}\n" for n in range(37)))
    items = make_items(tmp_path / "items.csv", hash_buckets=8)
    path = tmp_path / "items.parquet"
    items.save(path)
    content, rng = path.read_bytes(), random.Random(1)
    for bit in rng.sample(range(8 * len(content)), 500):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        try:
            found = Items.load(path)
        except SourceError:
            continue
        assert (found.keys, found.labels) == (items.keys, items.labels)
        # Where the name of the record flipped, it is a table like any other.
        assert "source" in found.made or (found.made, found.coding) == (items.made, items.coding)
        assert found.codes.tolist() == items.codes.tolist(), bit


def test_a_folder_in_place_of_a_table_is_named(tmp_path):
    (tmp_path / "a.csv").mkdir()
    for read in (read_interactions, make_items, Items.load):
        with pytest.raises(SourceError, match=r"a\.csv: cannot be read: Is a directory"):
            read(tmp_path / "a.csv")


def test_items_of_an_earlier_version_have_no_seal_and_load(tmp_path):
    items = Items.of({"a": ["red", 3], "b": ["blue", 0]})
    items.save(tmp_path / "items.parquet")
    table = pq.read_table(tmp_path / "items.parquet")
    (key,), (record,) = table.schema.metadata.keys(), table.schema.metadata.values()
    pq.write_table(table.replace_schema_metadata({key: record.partition(b"\n")[0]}), tmp_path / "old.parquet")
    assert Items.load(tmp_path / "old.parquet").codes.tolist() == items.codes.tolist()
