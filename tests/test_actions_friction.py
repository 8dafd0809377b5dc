"""What a recommender engineer meets first: the files as they lie there, messages in the language of the caller."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import piecemill as pm
from command import piecemill
from piecemill.actions.features import make_items
from piecemill.actions.interactions import read_interactions
from piecemill.actions.items import Items, keys_alone
from piecemill.errors import PlanError, SourceError, TokenizerError

ROWS = [("1", "10", 5, 30), ("2", "11", 3, 10), ("1", "12", 4, 10), ("2", "10", 4, 20)]
HISTORIES = {"1": ["12", "10"], "2": ["11", "10"]}


def told(histories):
    return dict(zip(histories.users.to_pylist(), histories.lists(), strict=True))


@pytest.mark.parametrize(("name", "between"), [("u.data", "\t"), ("ratings.dat", "::")])
def test_the_files_of_movielens_are_read_as_they_are(tmp_path, name, between):
    path = tmp_path / name
    path.write_text("".join(between.join(map(str, row)) + "\n" for row in ROWS))
    assert told(read_interactions(path)) == HISTORIES
    assert read_interactions(path, min_rating=4).report["read"]["rated_lower"] == 1
    path.write_text(path.read_text() + between.join(("3", "", "4", "7")) + "\n")
    with pytest.raises(SourceError, match="line 5: no 'item'"):
        read_interactions(path)
    path.write_text(f"1{between}2\n")
    with pytest.raises(SourceError, match=r"line 1: expected 4 cells .* header='user,item,...' names the columns"):
        read_interactions(path)


FLAGS = {"Animation": 3, "Children's": 4, "Comedy": 5, "Drama": 8}
MOVIES = [
    ("1", "Toy Story (1995)", ["Animation", "Children's", "Comedy"]),
    ("73", "Misérables, Les (1995)", ["Drama"]),
    ("4", '"Quoted" Title (1996)', ["Comedy", "Drama"]),
]


def movie_line(name, key, title, genres):
    if name == "movies.dat":
        return f"{key}::{title}::{'|'.join(genres)}\n"
    flags = ["1" if number in map(FLAGS.get, genres) else "0" for number in range(19)]
    return "|".join((key, title, "01-Jan-1995", "", "http://example.org", *flags)) + "\n"


@pytest.mark.parametrize("encoding", ["latin-1", "utf-8"])
@pytest.mark.parametrize("name", ["movies.dat", "u.item"])
def test_the_items_of_movielens_are_read_as_they_are(tmp_path, name, encoding):
    path = tmp_path / name
    path.write_text("".join(movie_line(name, *movie) for movie in MOVIES), encoding=encoding)
    items = make_items(path, columns=["title"], many=["genres=3"])
    assert list(items.keys) == [key for key, *_ in MOVIES]
    values = [[labels[code] for labels, code in zip(items.labels, row, strict=True)] for row in items.codes.tolist()]
    assert [row[0] for row in values] == [title for _, title, _ in MOVIES]
    assert [{*row[1:]} - {"(none)"} for row in values] == [{*genres} for *_, genres in MOVIES]
    done = piecemill("actions", "features", path, "--columns", "title", "--many", "genres=3", "--out", tmp_path / "i")
    assert "3 items with 4 features" in done.stdout, done.stderr
    assert keys_alone(path).keys == ["1", "73", "4"]
    with pytest.raises(SourceError, match="which column is the user"):
        read_interactions(path)
    path.write_text(path.read_text(encoding) + movie_line(name, "9", "", ["Drama"]), encoding=encoding)
    with pytest.raises(SourceError, match="line 4: the item '9' has no 'title'"):
        make_items(path, columns=["title"])


def test_a_column_without_a_single_value_is_missing_in_all_rows(tmp_path):
    items = pa.table({"item": ["a", "b"], "seen": pa.array([None, None], pa.int64()), "kind": ["x", "y"]})
    assert make_items(items, missing="none").table().column("seen").to_pylist() == ["none", "none"]


def test_a_dat_file_may_have_a_line_of_names(tmp_path):
    (tmp_path / "movies.dat").write_text("MovieID::Title::Year\n7::One::1999\n8::Two::2001\n")
    items = make_items(tmp_path / "movies.dat")
    assert (list(items.keys), items.columns) == (["7", "8"], ("Title", "Year"))


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("user;item;time\n{}", {"delimiter": ";"}),
        ("user;item;time\n{}", {}),
        ("{}", {"delimiter": ";", "header": "user,item,time"}),
        ("{}", {"header": ["user", "item", "time"]}),
    ],
)
def test_delimiters_and_files_without_a_header(tmp_path, text, options):
    (tmp_path / "log.csv").write_text(text.format("".join(f"{u};{i};{t}\n" for u, i, _, t in ROWS)))
    assert told(read_interactions(tmp_path / "log.csv", **options)) == HISTORIES


def test_split_replaces_no_file_unasked(tmp_path):
    """Data often come as a train.parquet: to split it in its own folder must not overwrite it."""
    rows = {"user": ["u"] * 4, "item": list("abcd"), "time": [1, 2, 3, 4]}
    pq.write_table(pa.table(rows), tmp_path / "train.parquet")
    done = piecemill("actions", "split", "train.parquet", "--out", ".", cwd=tmp_path)
    assert (done.returncode, "train.parquet is there already: choose another --out" in done.stderr) == (2, True)
    assert pq.read_table(tmp_path / "train.parquet").to_pydict() == rows


def test_the_flag_for_names_of_columns_takes_them_as_words_too(tmp_path):
    (tmp_path / "log.csv").write_text("".join(f"{u},{i},{t}\n" for u, i, _, t in ROWS))
    for number, names in enumerate((("user", "item", "time"), ("user,item,time",))):
        done = piecemill(
            "actions", "split", "log.csv", "--header", *names, "--out", str(number), "--leave-out", 1, cwd=tmp_path
        )
        assert (done.returncode, "2 train users" in done.stdout) == (0, True), done.stderr


def test_a_first_line_that_is_a_row_is_not_taken_for_names_without_a_word(tmp_path):
    (tmp_path / "log.csv").write_text("".join(f"{u},{i},{t}\n" for u, i, _, t in ROWS))
    with pytest.raises(SourceError, match=r"which column is the user\? .* If its first line .*header='user,item,...'"):
        read_interactions(tmp_path / "log.csv")
    (tmp_path / "items.csv").write_text("7,red\n8,blue\n")
    with pytest.raises(SourceError, match=r"which column is the key\? .* put a line of names in front\.$"):
        Items.load(tmp_path / "items.csv")
    (tmp_path / "log.csv").write_text("7,7,3\n")
    with pytest.raises(SourceError, match=r"name stands twice in '7', '7', '3'\. If it is a row"):
        read_interactions(tmp_path / "log.csv", user="7", item="7", time="3")


def test_spaces_behind_the_commas_belong_to_no_name_and_no_key(tmp_path):
    (tmp_path / "log.csv").write_text("user, item, time\n" + "".join(f"{u}, {i}, {t}\n" for u, i, _, t in ROWS))
    assert told(read_interactions(tmp_path / "log.csv")) == HISTORIES
    with pytest.raises(PlanError, match=r"header='user,item': 2 names, but the first line of .* has 3 cells"):
        read_interactions(tmp_path / "log.csv", header="user,item")


def test_dates_in_another_form(tmp_path):
    table = pa.table({"user": ["u", "u"], "item": ["a", "b"], "time": ["02/01/2024", "01/02/2024"]})
    assert read_interactions(table, time_format="%d/%m/%Y").lists() == [["a", "b"]]
    assert read_interactions(table, time_format="%m/%d/%Y").lists() == [["b", "a"]]
    with pytest.raises(SourceError, match=r"'02/01/2024', expected a number, .*\(2 of 2 rows .*time_format='%d/%m/%Y'"):
        read_interactions(table)
    mixed = pa.table({"user": ["u"] * 3, "item": ["a", "b", "c"], "time": ["02/01/2024", "x", "01/02/2024"]})
    with pytest.raises(SourceError, match=r"row 1: 'time' is 'x', .* form '%d/%m/%Y' \(1 of 3 .*on_bad_row='skip'"):
        read_interactions(mixed, time_format="%d/%m/%Y")
    assert read_interactions(mixed, time_format="%d/%m/%Y", on_bad_row="skip").lists() == [["a", "c"]]


@pytest.fixture
def small(tmp_path):
    """Histories, items and a vocabulary in a folder."""
    features = {f"i{n}": ["red" if n % 2 else "blue", n % 3] for n in range(6)}
    histories = {f"u{n}": [f"i{(n + k) % 6}" for k in range(4)] for n in range(6)}
    (tmp_path / "h.json").write_text(json.dumps(histories))
    Items.of(features, columns=["colour", "size"]).save(tmp_path / "items.parquet")
    tok = pm.train_actions(list(histories.values()), Items.load(tmp_path / "items.parquet"), vocab_size=12)
    tok.save(tmp_path / "voc")
    return tmp_path


def test_messages_of_the_command_line_speak_of_flags(small):
    pq.write_table(pa.table({"who": ["u"], "item": ["i0"], "day": [3]}), small / "a.parquet")
    pq.write_table(pa.table({"user": ["u", None], "item": ["i0", "i1"], "time": [3, 4]}), small / "b.parquet")
    pq.write_table(pa.table({"user": ["u"] * 4, "item": list("abcd"), "time": [1, 2, 3, 4]}), small / "c.parquet")
    for words, wanted in (
        (("split", "a.parquet"), "Say `piecemill actions split --user ...`."),
        (("split", "a.parquet", "--user", "who"), "Say `piecemill actions split --time ...`, or --time none if"),
        (("split", "b.parquet"), "--on-bad-row skip"),
        (("split", "c.parquet", "--items", "items.parquet"), "--unknown drop"),
        (("train", "c.parquet", "--items", "items.parquet"), "`actions split --items ... --unknown drop`"),
        (("encode", "c.parquet", "--tokenizer", "voc"), "--unknown drop"),
        (("encode", "h.json", "--tokenizer", "voc", "--epoch", "2"), "--epoch 2: epochs differ"),
        (("train", "nosuch.parquet", "--items", "items.parquet"), "nosuch.parquet: no such file."),
        (("train", "h.json", "--items", "nosuch.parquet"), "nosuch.parquet: no such file."),
        (("split", "nosuch.csv"), "nosuch.csv: no such file."),
        (("features", "nosuch.csv"), "nosuch.csv: no such file."),
    ):
        done = piecemill("actions", *words, "--out", "out", cwd=small)
        assert done.returncode in (1, 2)
        assert wanted in done.stderr, (words, done.stderr)
        assert "='" not in done.stderr


def test_a_text_is_no_sequence_and_what_was_said_has_names(small):
    tok = pm.ActionTokenizer.load(small / "voc", items=str(small / "items.parquet"))
    assert tok.vocab_size == tok.vocabulary.size == tok.model_size - 2
    with pytest.raises(TokenizerError, match="found the text 'i0', expected a list of item keys"):
        tok.encode("i0")
    assert tok.names(tok.decode(tok.labels("i1"))) == {"colour": "red", "size": "1"}
    assert tok.names(tok.decode([0])) is None


def test_encode_replaces_what_is_there_only_with_force(small):
    for to, name in (("jsonl", "a.jsonl"), ("npy", "arrays"), ("shards", "shards")):
        words = ("actions", "encode", "h.json", "--tokenizer", "voc", "--to", to, "--out", name)
        assert piecemill(*words, cwd=small).returncode == 0
        done = piecemill(*words, cwd=small)
        assert (done.returncode, "--force" in done.stderr) == (2, True), done.stderr
        done = piecemill(*words, "--force", cwd=small)
        assert done.returncode == 0, done.stderr
    (small / "mine").mkdir()
    (small / "mine" / "notes.txt").write_text("dear")
    done = piecemill(
        "actions", "encode", "h.json", "--tokenizer", "voc", "--to", "npy", "--out", "mine", "--force", cwd=small
    )
    assert done.returncode == 2
    assert (small / "mine" / "notes.txt").read_text() == "dear"


def test_show_prints_of_the_plan_what_a_line_holds(small):
    shown = piecemill("actions", "show", "voc", cwd=small)
    (line,) = [line for line in shown.stdout.splitlines() if line.startswith("plan")]
    assert (
        line
        == "plan     vocab_size=12   counts=published   arithmetic=exact   min_pair_weight=0.0   ended=vocabulary full"
    )


def test_histories_without_any_known_item_are_an_error_that_shows_both_kinds_of_keys(tmp_path):
    """A file of keys without leading zeros, beside items with them, left nothing and said so nowhere."""
    tok = pm.train_actions([["01", "02"], ["02", "03"]], {"01": ["x"], "02": ["y"], "03": ["x"]}, vocab_size=5)
    tok.save(tmp_path / "voc")
    (tmp_path / "h.txt").write_text("u 1 2 3\nv 2\n")
    for form in ("jsonl", "npy", "shards"):
        words = ("--tokenizer", tmp_path / "voc", "--to", form, "--unknown", "drop", "--out", tmp_path / "out")
        done = piecemill("actions", "encode", tmp_path / "h.txt", *words)
        assert (done.returncode, (tmp_path / "out").exists()) == (1, False)
        assert "none of their 3 items is among the 3 items. Expected keys such as '01', found '1'." in done.stderr
    (tmp_path / "h.txt").write_text("u 1 02 3\nv 2\n")
    done = piecemill("actions", "encode", tmp_path / "h.txt", *words)
    assert "note: 3 actions of 3 unknown items left out; users without any other: 1" in done.stdout


def test_what_a_command_says_to_do_is_an_option_of_the_command_that_it_names(tmp_path):
    """`actions train` and `actions encode` read the same files, and have no --user and no --key."""
    (tmp_path / "h.csv").write_text("who,item,time\nu,a,1\nu,b,2\n")
    (tmp_path / "i.csv").write_text("sku,x\na,1\nb,2\n")
    pm.train_actions([["a", "b"]], {"a": ["x"], "b": ["y"]}, vocab_size=4).save(tmp_path / "voc")
    done = piecemill("actions", "encode", tmp_path / "h.csv", "--tokenizer", tmp_path / "voc", "--out", tmp_path / "o")
    assert "which column is the user? Its columns are 'who', 'item', 'time'. Say `piecemill actions split --user" in (
        done.stderr
    )
    done = piecemill(
        "actions", "split", tmp_path / "h.csv", "--user", "who", "--items", tmp_path / "i.csv", "--out", "o"
    )
    assert (
        "which column is the key? Its columns are 'sku', 'x'. Say `piecemill actions features --key ...`" in done.stderr
    )


def test_items_are_written_to_a_file_that_is_named_as_what_it_is(tmp_path):
    """A Parquet file named .csv was read as CSV, which ended in a Python error."""
    (tmp_path / "i.csv").write_text("item,x\na,1\nb,2\n")
    done = piecemill("actions", "features", tmp_path / "i.csv", "--out", tmp_path / "o.csv")
    assert (done.returncode, (tmp_path / "o.csv").exists()) == (2, False)
    assert "Name the file" in done.stderr
    assert "o.parquet" in done.stderr


def test_lines_may_end_as_on_an_old_mac(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"user,item,time\ru,a,1\ru,b,2\r")
    assert read_interactions(tmp_path / "a.csv").lists() == [["a", "b"]]
    (tmp_path / "a.csv").write_bytes(b"user,item,time\ru,a,1\ru,b,x\r")
    with pytest.raises(SourceError, match=r"a\.csv, line 3: 'time' is 'x'"):
        read_interactions(tmp_path / "a.csv")
    (tmp_path / "a.csv").write_bytes("user,item,time\nu,a,1\nu,é,2\n".encode("latin-1"))
    with pytest.raises(SourceError, match=r"a\.csv: line 3: not UTF-8\. Convert the file"):
        read_interactions(tmp_path / "a.csv")


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.inter", "a.txt"])
def test_a_file_in_utf_16_is_named(tmp_path, name):
    (tmp_path / name).write_text("user,item,time\nu,a,1\n", encoding="utf-16")
    with pytest.raises(SourceError, match=r"is text in UTF-16, expected UTF-8\. Convert it: iconv"):
        read_interactions(tmp_path / name)


def test_times_of_many_digits_are_in_order(tmp_path):
    for times in (("1700000000.000000003", "1700000000", "1700000000.000000002"), ("9" * 20, "1.5", "9" * 19 + "8")):
        rows = "".join(f"u,{item},{time}\n" for item, time in zip("abc", times, strict=True))
        (tmp_path / "a.csv").write_text(f"user,item,time\n{rows}")
        found = read_interactions(tmp_path / "a.csv")
        assert (found.lists(), found.report["read"]["ties"]) == ([["b", "c", "a"]], 0)


def test_truth_values_are_the_same_however_they_are_written(tmp_path):
    (tmp_path / "a.csv").write_text("item,new\na,True\nb,False\n")
    make_items(tmp_path / "a.csv").save(tmp_path / "items.parquet")
    (tmp_path / "a.jsonl").write_text('{"item": "a", "new": true}\n{"item": "b", "new": false}\n')
    (tmp_path / "b.csv").write_text("item,new\na,TRUE\nb,FALSE\n")
    pq.write_table(pa.table({"item": ["a", "b"], "new": [True, False]}), tmp_path / "a.parquet")
    for name in ("a.csv", "a.jsonl", "b.csv", "a.parquet"):
        assert make_items(tmp_path / name, like=tmp_path / "items.parquet").codes.tolist() == [[1], [0]]


def test_text_of_json_lines_that_looks_like_a_date_is_text(tmp_path):
    rows = [("2020-01-02", "2024-03-01T00:00:00Z"), ("2020-01-01", "2024-02-01 10:00:00.123456789Z")]
    lines = [json.dumps({"user": 1, "item": item, "time": time}) + "\n" for item, time in rows]
    (tmp_path / "h.jsonl").write_text("".join(lines))
    assert read_interactions(tmp_path / "h.jsonl").lists() == [["2020-01-01", "2020-01-02"]]
    (tmp_path / "i.jsonl").write_text('{"released": "1995-01-01", "item": 1, "x": "y"}\n')
    items = Items.of(tmp_path / "i.jsonl")
    assert (items.columns, items.labels) == (("released", "x"), (["1995-01-01"], ["y"]))


def test_products_of_amazon_have_one_key_in_reviews_and_catalogue():
    """Reviews of 2023 name a product and its parent; histories took the parent, items the product."""
    table = pa.table({"user_id": ["u"] * 2, "asin": ["a1", "a2"], "parent_asin": ["p1", "p2"], "timestamp": [1, 2]})
    histories = read_interactions(table)
    assert histories.keys.to_pylist() == Items.of(table, columns=["user_id"]).keys == ["p1", "p2"]


def test_what_has_no_order_is_no_history_and_no_row_of_features():
    """A set has another order in every process, and so had histories and codes; a mapping may hold times."""
    tok = pm.train_actions([["a", "b"]], {"a": ["x"], "b": ["y"]}, vocab_size=4)
    for strange in ({"a", "b"}, {"b": 2, "a": 1}):
        with pytest.raises(SourceError, match=r"user 'u' has \{.*expected a list of items in order of time"):
            read_interactions({"u": strange})
        with pytest.raises(SourceError, match=r"histories\[1\]: found (set|dict), expected a list"):
            pm.train_actions([["a"], strange], {"a": ["x"], "b": ["y"]})
        with pytest.raises(TokenizerError, match=r"sequence: found (set|dict), expected a list"):
            tok.encode(strange)
    with pytest.raises(SourceError, match=r"item 'a' has \{"):
        Items.of({"a": {"x", "y"}})
    with pytest.raises(SourceError, match=r"item 'a' has None, expected 1 values"):
        Items.of({"a": None})


def test_a_data_frame_that_makes_no_table_is_an_error_that_says_why():
    pandas = pytest.importorskip("pandas")
    mixed = pandas.DataFrame({"user": ["u", "u"], "item": ["x", 5], "time": [1, 2]})
    for frame in (mixed, pandas.concat([mixed[["user", "time"]], mixed[["time"]]], axis=1)):
        with pytest.raises(SourceError, match=r"interactions: columns that make no table: "):
            read_interactions(frame)
