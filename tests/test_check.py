"""`check` finds whatever happened to a folder, and says where; `show` says what a folder is."""

import json
import os
import shutil
from itertools import combinations

import numpy as np
import pytest

from piecemill.errors import ShardError
from piecemill.files import LocalPlace, locked
from piecemill.reporting.describing import describe
from piecemill.reporting.shards import length_percentiles
from piecemill.shards import token_dtype
from piecemill.shards.check import check_shards
from piecemill.shards.folder import listed, render_stats
from piecemill.shards.manifest import newest_entries
from piecemill.shards.reader import open_shards
from piecemill.tokenizers import Tokenizer
from prepared import SplitWriter, block, prepare_folder, reseal
from vocabularies import NASTY, tokenizer

TEXTS = [text for text in NASTY if text]


@pytest.fixture(scope="module")
def small():
    """A tokenizer whose files are small enough to flip many of their bytes."""
    return Tokenizer.from_merges(np.array([[65, 66], [257, 67]]), pretokenizer="gpt2", special_tokens=["<|endoftext|>"])


@pytest.fixture(scope="module")
def sound(tmp_path_factory, small):
    folder = tmp_path_factory.mktemp("check") / "shards"
    texts = ["abc", "de", "the first of May", "abcabc", "öäü", "x" * 40]
    return prepare_folder(folder, {"train": texts, "val": ["abc"]}, small, shard_tokens=20, block_documents=2)


@pytest.fixture
def copy(sound, tmp_path):
    return shutil.copytree(sound, tmp_path / "copy")


def files_of(found):
    return {problem.file for problem in found.problems}


def test_a_sound_folder_is_sound(sound):
    found = check_shards(sound)
    assert found.problems == []
    assert (found.documents, found.decoded) == (7, 7)
    assert str(found).startswith(f"{sound} is sound")
    (sound / ".lock").touch()  # which prepare leaves
    assert check_shards(sound).sound
    (sound / ".lock").unlink()


@pytest.mark.parametrize(("bos", "eos"), [(None, None), (0, None), (None, 0), (0, 0)])
def test_a_folder_with_real_texts_is_sound_whatever_stands_around_documents(tmp_path, bos, eos):
    folder = prepare_folder(tmp_path / "a", {"train": TEXTS, "none": []}, tokenizer("gpt2"), bos=bos, eos=eos)
    found = check_shards(folder)
    assert found.problems == []
    assert found.decoded == len(TEXTS)


WHOLLY = (
    *(f"val/000001-0000.{kind}.npy" for kind in ("tokens", "ends", "documents")),
    *("entries/000001-0000.json", "val/manifest.jsonl", "plan.json", "files.jsonl", "stats.json"),
)
"One file of each kind, of which every byte is flipped, header and all; of others the first, the last and some between."


def test_any_flipped_byte_is_found_in_its_file(copy):
    rng = np.random.default_rng(7)
    names = sorted(listed(copy))
    assert set(WHOLLY) < set(names)
    for name in names:
        path = copy / name
        data = path.read_bytes()
        places = {0, len(data) - 1, *rng.integers(0, len(data), 12).tolist()}
        for at in range(len(data)) if name in WHOLLY else sorted(places):
            changed = bytearray(data)
            changed[at] ^= 1 << int(rng.integers(0, 8))
            path.write_bytes(changed)
            assert name in files_of(check_shards(copy, sample=0)), f"byte {at} of {name}"
        path.write_bytes(data)
    assert check_shards(copy).sound


def test_every_bit_of_a_byte_counts(copy):
    for name in sorted(listed(copy)):
        path = copy / name
        data = path.read_bytes()
        for value in {byte for byte in range(256) if bin(byte ^ data[-1]).count("1") <= 2} - {data[-1]}:
            path.write_bytes(data[:-1] + bytes([value]))
            assert name in files_of(check_shards(copy, sample=0)), f"{name} ends in {value}"
        path.write_bytes(data)


def test_a_changed_token_is_found_with_its_document(copy):
    path = copy / "train" / "000000-0000.tokens.npy"
    data = bytearray(path.read_bytes())
    data[128 + 2 * 3] ^= 1  # token 3
    path.write_bytes(data)
    ends = np.load(copy / "train" / "000000-0000.ends.npy").tolist()
    document = next(i for i, end in enumerate(ends) if end > 3)
    start = ends[document - 1] if document else 0
    what = [problem.what for problem in check_shards(copy, sample=0).problems]
    assert any(text.startswith("was changed: xxh3") for text in what)
    assert any(text.startswith(f"document {document} (tokens {start} to {ends[document]})") for text in what)
    assert len(what) == 2


def rewrite(folder, split, change):
    """Write a split anew with other data and right checksums: only the meaning is wrong."""
    shards = open_shards(folder, split)
    mapped = [shards.shard(number) for number in range(len(shards.entries))]
    blocks = [[np.array(each) for each in (shard.tokens, shard.ends, shard.documents)] for shard in mapped]
    shutil.rmtree(folder / split)
    for entry in list(newest_entries(LocalPlace(folder))):
        if split in entry.shards:
            (folder / entry.name).unlink()
    writer = SplitWriter(folder / split, dtype=shards.dtype, shard_tokens=1)
    for each in blocks:
        change(*each)
        writer.append(*each)
    writer.finish()
    reseal(folder)


def test_ids_beyond_the_vocabulary_are_found_where_they_are(copy):
    rewrite(copy, "val", lambda tokens, ends, records: tokens.__setitem__(0, 300))
    (first, *_) = check_shards(copy).problems
    assert str(first) == "val/000001-0000.tokens.npy: token 0 is 300; the vocabulary has 259 tokens."


def test_a_wrong_text_is_found_though_every_checksum_is_right(copy):
    rewrite(copy, "val", lambda tokens, ends, records: records["hash_high"].__setitem__(0, 1))
    (problem,) = check_shards(copy).problems
    assert "document 0 (tokens 0 to 2) does not decode to the text" in problem.what
    assert check_shards(copy, sample=0).sound  # by checksums alone it is


def test_a_missing_eos_is_found(copy):
    rewrite(copy, "val", lambda tokens, ends, records: tokens.__setitem__(-1, 98))
    (problem,) = check_shards(copy).problems
    assert "it ends with 98, not with eos, 0" in problem.what


def test_a_file_number_beyond_the_list_is_found(copy):
    rewrite(copy, "val", lambda tokens, ends, records: records["file"].__setitem__(0, 1))
    (problem,) = check_shards(copy).problems
    assert problem.what == "document 0 is from file 1; files.jsonl lists 1 files."


def test_ends_that_fall_are_found_where_they_do(copy):
    path = copy / "train" / "000000-0000.ends.npy"
    ends = np.load(path)
    ends[0] = ends[-1] + 1
    path.write_bytes(path.read_bytes()[:128] + ends.tobytes())
    what = [problem.what for problem in check_shards(copy).problems]
    assert f"end 1 is {ends[1]}, less than the one before; expected rising ends." in what


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:-1],
        lambda data: data[:-50],
        lambda data: data[: len(data) // 2],
        lambda data: b"",
        lambda data: data + b"\0",
        lambda data: data + data[-8:],
        lambda data: bytes(len(data)),
        lambda data: None,
    ],
    ids=["a byte", "50 bytes", "half", "all", "a byte more", "the end twice", "zeros", "missing"],
)
def test_files_that_were_cut_grown_emptied_or_lost_are_found(copy, change):
    for name in sorted(listed(copy)):
        path = copy / name
        data = path.read_bytes()
        path.unlink()
        if (changed := change(data)) is not None:
            path.write_bytes(changed)
        assert name in files_of(check_shards(copy)), name
        path.write_bytes(data)


@pytest.mark.parametrize(
    "name",
    [
        *["a", "train/b.npy", "train/.000003-0000.tokens.npy.part", "tokenizer/c", "d/e", ".scratch/x"],
        *[
            "train/000099-0000.tokens.npy",
            "train/000000-0000.tokens.npy.bak",
            "val/.hidden",
            "train/inner/000000-0000.tokens.npy",
        ],
    ],
)
def test_extra_files_are_found(copy, name):
    (copy / name).parent.mkdir(exist_ok=True)
    (copy / name).write_bytes(b"")
    assert files_of(check_shards(copy)) == {name}


INDEXES = ("stats.json", "plan.json", "files.jsonl", "train/manifest.jsonl", "val/manifest.jsonl")


def test_any_two_files_that_were_swapped_are_found(copy):
    names = sorted(listed(copy))
    for one, other in combinations(names, 2):
        content = (copy / one).read_bytes(), (copy / other).read_bytes()
        if content[0] == content[1]:
            continue
        (copy / one).write_bytes(content[1])
        (copy / other).write_bytes(content[0])
        # Without the files that say what there should be, nothing can be said of the others: those come first.
        want = next(({name} for name in INDEXES if name in (one, other)), {one, other})
        assert want <= files_of(check_shards(copy, sample=0)), (one, other)
        (copy / one).write_bytes(content[0])
        (copy / other).write_bytes(content[1])
    assert check_shards(copy).sound


def test_swapped_splits_are_found(copy):
    shutil.move(copy / "val", copy / "aside")
    shutil.move(copy / "train", copy / "val")
    shutil.move(copy / "aside", copy / "train")
    assert {"train/manifest.jsonl", "val/manifest.jsonl"} <= files_of(check_shards(copy))


def test_a_folder_that_is_not_complete_is_not_sound(copy):
    (copy / "stats.json").unlink()
    (problem,) = check_shards(copy).problems
    assert "Run the same `piecemill prepare` again" in problem.what
    with locked(LocalPlace(copy)):
        assert f"Process {os.getpid()} is at work on it." in check_shards(copy).problems[0].what


def test_stats_have_one_form_and_vouch_for_themselves():
    rendered = render_stats({"b": 1.5, "a": "ä", "checksums": {}})
    assert render_stats(json.loads(rendered)) == rendered
    assert render_stats({**json.loads(rendered), "b": 1.25}) != rendered


def test_many_problems_are_counted_not_listed(tmp_path, small):
    folder = prepare_folder(tmp_path / "a", {"all": ["abc"] * 300}, small, shard_tokens=10**6)
    rewrite(folder, "all", lambda tokens, ends, records: records["hash_low"].__setitem__(slice(None), 1))
    found = check_shards(folder)
    (problem,) = found.problems  # one cause
    assert (problem.more, found.to_dict()["problems"][0]["more_documents"]) == (299, 299)
    assert str(found).endswith("The same is wrong with 299 other documents of the sample.")
    for number in range(150):
        (folder / f"{number}.txt").write_text("not ours")
    found = check_shards(folder)
    assert (len(found.problems), found.more, found.to_dict()["more_problems"]) == (100, 51, 51)
    assert str(found).endswith("and 51 more")


# show


def test_show_gives_the_figures_of_a_folder(sound, small):
    description = describe(sound)
    found = description.to_dict()
    train = found["splits"]["train"]
    assert (found["documents"], found["complete"], found["kind"]) == (7, True, "shards")
    assert (train["documents"], train["text_bytes"]) == (6, 3 + 2 + 16 + 6 + 6 + 40)
    assert train["bytes_per_token"] == pytest.approx(73 / train["tokens"])
    assert train["share_of_documents"] == pytest.approx(6 / 7)
    # "abc" is in train and in val
    assert (found["duplicates"], found["texts_in_several_splits"]) == (1, 1)
    assert train["rows"][0] == "abc<|endoftext|>"
    text = str(description)
    assert "85.71%" in text
    assert "'the first of May<|endoftext|>'" in text
    assert json.loads(json.dumps(found)) == found


def test_duplicates_are_the_same_however_many_passes_it_takes(tmp_path, small, monkeypatch):
    texts = ["a", "b", "a", "c", "a", "b"]
    folder = prepare_folder(tmp_path / "a", {"x": texts, "y": ["b", "b", "d"], "z": ["b"]}, small, shard_tokens=3)
    for at_once in (100, 4, 1):
        monkeypatch.setattr("piecemill.reporting.shards._HASHES_AT_ONCE", at_once)
        found = describe(folder).facts
        assert (found["duplicates"], found["texts_in_several_splits"]) == (6, 1)


def test_percentiles_equal_those_of_the_sorted_lengths(tmp_path, small):
    lengths = np.random.default_rng(1).integers(1, 60, 137)
    folder = prepare_folder(tmp_path / "a", {"all": ["ö" * int(n) for n in lengths]}, small, eos=None, shard_tokens=500)
    tokens = np.sort(lengths * 2)
    found = length_percentiles(open_shards(folder))
    for p in (1, 5, 25, 50, 75, 95, 99):
        assert found[f"p{p}"] == np.percentile(tokens, p, method="inverted_cdf"), p
    assert found["max"] == tokens[-1]


def test_show_of_an_unfinished_or_empty_folder(tmp_path, small):
    folder = prepare_folder(tmp_path / "a", {"train": ["abc"], "test": []}, small)
    (folder / "stats.json").unlink()
    found = describe(folder)
    assert not found.facts["complete"]
    assert found.facts["splits"]["test"]["lengths"] == {}
    assert "not complete" in str(found)


def test_show_of_a_tokenizer_and_of_nothing(tmp_path, small):
    small.save(tmp_path / "tok")
    description = describe(tmp_path / "tok")
    found = description.facts
    assert (found["vocab_size"], found["pretokenizer"], found["special_tokens"]) == (259, "gpt2", {"<|endoftext|>": 0})
    assert found["engine"] == small.engine.name
    assert found["sample"]["258"] == "abc"
    assert "engine   " in str(description)
    with pytest.raises(ShardError, match=r"neither prepared \(it has no plan\.json\) nor a tokenizer"):
        describe(tmp_path)


def test_blocks_are_what_the_folder_holds(sound, small):
    ids, _, _ = block(["abc"], small, eos=0)
    assert open_shards(sound, "val").document(0).tolist() == ids.tolist()
    assert ids.dtype == token_dtype(small.vocab_size)
