"""Interactions become histories by stated rules, whatever file they come in; nothing goes without being counted."""

import gzip
import json
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from piecemill.actions.histories import Histories, k_core, leave_out, max_items, show_report
from piecemill.actions.interactions import read_interactions
from piecemill.actions.items import Items
from piecemill.errors import PlanError, SourceError

ROWS = [("ann", "0007", 30), ("bob", "0009", 10), ("ann", "0005", 10), ("ann", "0009", 20), ("bob", "0005", 5)]
HISTORIES = {"ann": ["0005", "0009", "0007"], "bob": ["0005", "0009"]}


def table(rows=ROWS, names=("user", "item", "time")):
    return pa.table(list(map(list, zip(*rows, strict=True))), names=list(names))


def told(histories):
    return dict(zip(histories.users.to_pylist(), histories.lists(), strict=True))


def write(path, rows=ROWS):
    """The same rows in the format that the name asks for."""
    name, kind = path.name, path.name.removesuffix(".gz").rpartition(".")[2]
    if kind == "parquet":
        pq.write_table(table(rows), path)
        return path
    lines = {
        "csv": ["user,item,time", *(f'"{u}",{i},{t}' for u, i, t in rows)],
        "tsv": ["user_id\titem_id\ttimestamp", *(f"{u}\t{i}\t{t}" for u, i, t in rows)],
        "jsonl": [json.dumps({"user": u, "item": i, "time": t}) for u, i, t in rows],
        "inter": ["user_id:token\titem_id:token\ttimestamp:float", *(f"{u}\t{i}\t{t}.0" for u, i, t in rows)],
        "txt": [f"{user} {' '.join(items)}" for user, items in HISTORIES.items()],
    }[kind]
    text = "\n".join(lines) + "\n"
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


@pytest.mark.parametrize("ending", ["parquet", "csv", "csv.gz", "tsv", "jsonl", "jsonl.gz", "inter", "txt", "txt.gz"])
def test_every_format_tells_the_same_histories_and_keys_keep_their_zeros(tmp_path, ending):
    histories = read_interactions(write(tmp_path / f"log.{ending}"))
    assert told(histories) == HISTORIES
    assert histories.counts == {"users": 2, "items": 3, "actions": 5}
    assert histories.report["read"]["rows"] == (2 if "txt" in ending else 5)


@pytest.mark.parametrize(
    "times",
    [
        [30, 10, 10, 20, 5],
        [0.3, 0.1, 0.1, 0.2, 0.05],
        ["2024-03-01", "2024-01-01", "2024-01-01", "2024-02-01", "2023-12-01"],
        [
            "2024-03-01T00:00:00Z",
            "2024-01-01T00:00:00Z",
            "2024-01-01T00:00:00Z",
            "2024-02-01T00:00:00Z",
            "2023-12-01T00:00:00Z",
        ],
        ["30", "10", "10", "20", "5"],
    ],
)
def test_times_are_numbers_dates_or_text_of_either(times):
    rows = [(user, item, time) for (user, item, _), time in zip(ROWS, times, strict=True)]
    assert told(read_interactions(table(rows))) == HISTORIES


def test_pandas_and_columns_in_a_dict_are_tables_too():
    pandas = pytest.importorskip("pandas")
    assert told(read_interactions(table().to_pandas())) == HISTORIES
    assert told(read_interactions(pandas.DataFrame(table().to_pydict()))) == HISTORIES
    assert told(Histories.of(table().to_pydict())) == HISTORIES


def test_a_mapping_of_users_is_histories_in_memory_and_as_json(tmp_path):
    assert told(Histories.of(HISTORIES)) == HISTORIES
    (tmp_path / "h.json").write_text(json.dumps({**HISTORIES, "eve": []}))
    histories = read_interactions(tmp_path / "h.json")
    assert (told(histories), histories.report["read"]["empty_histories"]) == (HISTORIES, 1)


def test_a_folder_of_parquet_parts_is_one_table_and_other_columns_are_passed_over(tmp_path):
    rows = table().append_column("text", pa.array(["long"] * 5))
    for number in range(2):
        pq.write_table(rows.slice(number * 3, 3), tmp_path / f"part-{number}.parquet")
    assert told(read_interactions(tmp_path)) == HISTORIES
    wide = [f'{user},{item},{time},"a\nb"' for user, item, time in ROWS]
    (tmp_path / "wide.csv").write_text("\n".join(["user,item,time,text", *wide]))
    assert told(read_interactions(tmp_path / "wide.csv")) == HISTORIES


def test_at_one_time_the_order_of_the_file_decides_and_is_counted():
    histories = read_interactions(table([("u", "b", 1), ("u", "a", 1), ("u", "c", 0), ("u", "d", 1)]))
    assert told(histories) == {"u": ["c", "b", "a", "d"]}
    assert histories.report["read"]["ties"] == 2


def test_the_same_user_item_and_time_is_one_event_unless_asked_otherwise():
    rows = [("u", "a", 1), ("u", "b", 1), ("u", "a", 1), ("u", "a", 2), ("v", "a", 1)]
    histories = read_interactions(table(rows))
    assert told(histories) == {"u": ["a", "b", "a"], "v": ["a"]}
    assert {key: histories.report["read"][key] for key in ("duplicates", "ties", "repeated_items")} == {
        "duplicates": 1,
        "ties": 1,
        "repeated_items": 1,
    }
    assert told(read_interactions(table(rows), duplicates="keep")) == {"u": ["a", "b", "a", "a"], "v": ["a"]}
    assert told(read_interactions(table(rows), repeats="first")) == {"u": ["a", "b"], "v": ["a"]}
    with pytest.raises(SourceError, match=r"interactions, row 2: this user, item and time stood before \(1 such"):
        read_interactions(table(rows), duplicates="stop")
    # Without times the rows are all that is known, and coming back is no mistake.
    assert told(read_interactions(table(rows), time="none"))["u"] == ["a", "b", "a", "a"]


def test_times_keep_their_last_digit_beside_rows_without_one():
    first, second = 1_700_000_000_000_000_001, 1_700_000_000_000_000_002  # equal as float64
    rows = [("u", "b", second), ("u", "a", first), ("u", "x", None)]
    assert read_interactions(table(rows), on_bad_row="skip").lists() == [["a", "b"]]


def test_ratings_below_the_least_are_left_out_and_counted():
    rows = [("u", "a", 1, 5.0), ("u", "b", 2, 3.0), ("u", "c", 3, None), ("u", "d", 4, 4.0)]
    histories = read_interactions(table(rows, ("user", "item", "time", "rating")), min_rating=4)
    assert (histories.lists(), histories.report["read"]["rated_lower"]) == ([["a", "d"]], 2)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=30))
def test_reading_equals_the_plain_definition(rows):
    seen, plain = set(), {}
    for user, item, time in rows:
        plain.setdefault(user, [])
        if (user, item, time) not in seen:
            seen.add((user, item, time))
            plain[user].append((time, item))
    want = {user: [item for _, item in sorted(events, key=lambda event: event[0])] for user, events in plain.items()}
    found = read_interactions(table(rows))
    assert told(found) == want
    assert found.users.to_pylist() == list(dict.fromkeys(user for user, _, _ in rows))
    assert found.report["read"]["duplicates"] == len(rows) - len(seen)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=6), min_size=1, max_size=12), st.integers(1, 3))
def test_the_core_equals_dropping_one_at_a_time(sequences, k):
    left = {user: list(items) for user, items in enumerate(sequences)}
    while True:
        counts = Counter(item for items in left.values() for item in items)
        poor_user = next((user for user, items in left.items() if len(items) < k), None)
        poor_item = next((item for item, count in counts.items() if count < k), None)
        if poor_user is not None:
            del left[poor_user]
        elif poor_item is not None:
            left = {user: [item for item in items if item != poor_item] for user, items in left.items()}
        else:
            break
    if not left:
        with pytest.raises(SourceError, match=f"nothing is left .* k_core={k}"):
            k_core(Histories.of(sequences), k)
        return
    core = k_core(Histories.of(sequences), k)
    assert told(core) == left
    assert core.report["k_core"]["actions"] == sum(map(len, left.values()))


def test_leave_two_out_holds_back_the_last_two_and_counts_who_is_too_short():
    split = leave_out(Histories.of([list("abcde"), list("ab"), list("abx")]), 2)
    assert split.train.lists() == [["a", "b", "c"], ["a"]]
    assert split.val.lists() == [["a", "b", "c", "d"], ["a", "b"]]
    assert split.test.lists() == [list("abcde"), ["a", "b", "x"]]
    assert split.train.users.to_pylist() == split.test.users.to_pylist() == [0, 2]
    counts = split.report["leave_out"]
    assert (counts["users_too_short"], counts["train_actions"], counts["val_targets_unseen_in_train"]) == (1, 4, 1)
    assert counts["test_targets_unseen_in_train"] == 2


def test_leave_one_out_has_no_validation_and_a_maximum_never_cuts_the_training_part():
    split = leave_out(Histories.of([list("abcdef"), list("ab")]), 1, max_history=2)
    assert split.val is None
    assert split.train.lists() == [list("abcde"), ["a"]]
    assert split.test.lists() == [list("def"), ["a", "b"]]
    assert split.report["leave_out"]["test_histories_cut"] == 1
    short = max_items(split.train, 2)
    assert (short.lists(), short.report["max_items"]["actions_dropped"]) == ([["d", "e"], ["a"]], 3)


def test_an_unknown_item_stops_or_is_dropped_and_counted():
    histories = Histories.of([["a", "x", "b"], ["x"], ["b"]])
    items = Items.of({"b": [1], "a": [2]})
    with pytest.raises(SourceError, match=r"user 0 has the item 'x', .* 2 items \(2 of 5 actions, 1 of 3 items\)"):
        histories.map_to_items(items)
    known = histories.map_to_items(items, unknown="drop")
    assert (known.items.tolist(), known.ends.tolist(), known.users.to_pylist()) == ([1, 0, 0], [2, 3], [0, 2])
    assert known.lists() == [["a", "b"], ["b"]]
    assert known.report["items"] == {
        "unknown_items": 1,
        "actions_dropped": 2,
        "users_dropped": 1,
        "users": 2,
        "items": 2,
        "actions": 3,
    }


def test_empty_histories_are_left_out_and_counted(tmp_path):
    (tmp_path / "log.txt").write_text("u a b\n\nv\nw c\n")
    histories = read_interactions(tmp_path / "log.txt")
    assert (told(histories), histories.report["read"]["empty_histories"]) == ({"u": ["a", "b"], "w": ["c"]}, 1)
    with pytest.raises(SourceError, match="that of user 0 is empty"):
        Histories(pa.array([0, 1]), np.zeros(1, np.int64), np.array([0, 1]), pa.array(["a"]))


def test_saved_histories_are_read_back_with_their_users(tmp_path):
    split = leave_out(read_interactions(table()), 1)
    split.train.save(tmp_path / "train.parquet")
    again = read_interactions(tmp_path / "train.parquet")
    assert told(again) == told(split.train)
    assert pq.read_table(tmp_path / "train.parquet").column_names == ["user", "items"]
    assert told(Histories.of(tmp_path / "train.parquet")) == told(split.train)


def test_a_report_names_only_what_happened():
    report = read_interactions(table()).report
    assert show_report(report) == "read       5 rows, 2 users, 3 items, 5 actions"


@pytest.mark.parametrize(
    ("name", "text", "error"),
    [
        ("a.csv", "user,item,time\nu,a,1\n\nu,,2\n", r"a\.csv, line 4: no 'item' \(1 such row\)"),
        ("a.csv", "user,item,time\nu,a,1\nu,b\n", r"a\.csv: line 3: found 2 cells, expected 3 as in the first"),
        ("a.csv", "user,item,time\nu,a,1\nu,b,soon\n", r"a\.csv, line 3: 'time' is 'soon', expected a number"),
        ("a.csv", "who,item,time\nu,a,1\n", r"a\.csv: which column is the user\? Its columns are 'who', 'item'"),
        ("a.csv", "user,item\nu,a\n", r"which column is the time\? .* time='none'"),
        ("a.csv", "user,user,item\n", r"line 1: a column name stands twice"),
        ("a.csv", "", r"a\.csv: the file is empty"),
        ("a.csv", "user,item,time\n", r"a\.csv: no interaction is left of 0 rows"),
        ("a.jsonl", '{"user": 1, "item": 2, "time": 3}\n{"user": 1,\n', r"a\.jsonl, line 2: not JSON"),
        (
            "a.jsonl",
            '{"user": 1, "item": 2, "time": 3}\n{"user": "x", "item": 2, "time": 3}\n',
            r"a\.jsonl, line 2: 'user' is 'x', but it was a number in line 1",
        ),
        ("a.inter", "user_id\titem_id:token\n", r"a\.inter, line 1: the column 'user_id' says no type"),
        ("a.txt", "u a\nv b\nu c\n", r"a\.txt, line 3: user 'u' had a history in .*a\.txt, line 1"),
        ("a.txt", "u\n", r"a\.txt: no interaction in it"),
        ("a.xyz", "", r"a\.xyz: cannot detect the format from the name"),
        ("a.json", "{}", r"a\.json: no interaction in it"),
        ("a.json", '{"u": "ab"}', r"a\.json: user 'u' has 'ab', expected a list of items"),
        (
            "a.csv",
            "user,item,note\nu,a,x\n",
            r"which column is the time\? Its columns are 'user', 'item', 'note'\. Say",
        ),
        (
            "a.inter",
            "user_id:token\titem_id_list:token_seq\titem_id:token\nu\ta b\tc\n",
            "'item_id_list' holds training prefixes",
        ),
    ],
)
def test_an_error_says_where_and_what(tmp_path, name, text, error):
    (tmp_path / name).write_text(text)
    with pytest.raises(SourceError, match=error):
        read_interactions(tmp_path / name)


def test_bad_bytes_and_broken_packing_are_found(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"u a\nv \xff\n")
    with pytest.raises(SourceError, match=r"a\.txt, line 2: invalid UTF-8 at byte 6"):
        read_interactions(tmp_path / "a.txt")
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"u a\n" * 1000)[:-9])
    with pytest.raises(SourceError, match=r"b\.txt\.gz: truncated gzip"):
        read_interactions(tmp_path / "b.txt.gz")


def test_bad_rows_are_skipped_and_counted_where_asked(tmp_path):
    (tmp_path / "a.csv").write_text("user,item,time\nu,a,1\n,b,2\nu,c,soon\nu,d,\nu,e,0\n")
    histories = read_interactions(tmp_path / "a.csv", on_bad_row="skip")
    assert (told(histories), histories.report["read"]["bad_rows"]) == ({"u": ["e", "a"]}, 3)


@pytest.mark.parametrize(
    ("work", "error"),
    [
        (lambda: k_core(Histories.of([["a"]]), 0), "k_core=0"),
        (lambda: leave_out(Histories.of([["a"]]), 3), "leave_out=3"),
        (lambda: leave_out(Histories.of([["a", "b"]]), 1, max_history=0), "max_history=0"),
        (lambda: max_items(Histories.of([["a"]]), 0), "max_items=0"),
    ],
)
def test_numbers_that_cannot_work_are_refused(work, error):
    with pytest.raises(PlanError, match=error):
        work()


@pytest.mark.parametrize(
    ("source", "error"),
    [
        (["ab", "cd"], r"histories\[0\]: found str, expected a list"),
        ([[1, "a"]], "not all text or all whole numbers"),
        ([[1.5]], "keys are double"),
        ({"user": [1, 2], "item": [1]}, "columns that make no table"),
        ({"u": 7}, "user 'u' has 7, expected a list of items"),
        (7, "found int, expected lists"),
    ],
)
def test_histories_of_other_things_are_refused(source, error):
    with pytest.raises(SourceError, match=error):
        Histories.of(source)


def test_the_published_sizes_come_out_of_the_real_data(shared):
    data = shared / "actionpiece" / "data"
    beauty = read_interactions(data / "beauty.seq.txt.gz")
    assert beauty.counts == {"users": 22_363, "items": 12_101, "actions": 198_502}
    assert k_core(beauty, 5).report["k_core"]["rounds"] == 0  # it is a 5-core as it stands
    split = leave_out(beauty, 2, max_history=20)
    assert split.report["leave_out"]["train_actions"] == 153_776
    assert int(split.test.lengths.max()) == 21
    items = Items.of(data / "beauty.feat.json.gz")
    assert items.codes.shape == (12_101, 5)
    train = split.train.map_to_items(items)
    assert [items.keys[row] for row in train.items[:3]] == split.train.lists()[0]


def test_whole_keys_that_pandas_made_floats_are_numbers_again(tmp_path):
    """One row without an item makes floats of a whole column; float keys were refused, and no row could be skipped."""
    table = pa.table({"user": [1.0, 1.0, 1.0], "item": [7.0, float("nan"), 8.0], "time": [1, 2, 3]})
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(SourceError, match=r"row 1: no 'item'"):
        read_interactions(tmp_path / "a.parquet")
    histories = read_interactions(tmp_path / "a.parquet", on_bad_row="skip")
    assert (histories.lists(), histories.users.to_pylist()) == ([[7, 8]], [1])
    assert Items.of(pa.table({"item": [7.0, 8.0], "x": ["a", "b"]})).keys == [7, 8]
    halves = pa.array(np.array([7, 8], np.float16))
    items = Items.of(pa.table({"item": halves, "x": halves}))
    assert (items.keys, items.codes.tolist()) == ([7, 8], [[7], [8]])
    for lost in (0.5, 2.0**53 + 2):  # several ids have the same float beyond 2**53
        with pytest.raises(SourceError, match="'item': keys are double"):
            read_interactions(pa.table({"user": [1, 1], "item": [7.0, lost], "time": [1, 2]}))
