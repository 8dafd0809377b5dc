"""Balanced merges, each for the group that is compressed worst: the core, the definition and HF's `ParityBpeTrainer`;
and weights, by which the words of files count."""

import json
import random
import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tokenizers

from command import piecemill as run
from corpora import write_jsonl
from piecemill import reference
from piecemill._core import FlatCorpus, Progress, WordCounter, split_text
from piecemill.errors import PlanError, SourceError
from piecemill.sources import open_source
from piecemill.tokenizers.models.byte_level import BYTE_ORDER
from piecemill.training import train_bpe
from vocabularies import SCRIPTS

BYTE_IDS = [0] * 256
for rank, byte in enumerate(BYTE_ORDER):
    BYTE_IDS[byte] = rank


def counted(words):
    counter = WordCounter("none", 2**30, "/tmp")
    data = np.frombuffer(b"".join(words), np.uint8)
    ends = np.cumsum([len(word) for word in words], dtype=np.int64)
    counter.add_counts(data, ends, np.array(list(words.values()), np.uint64))
    return counter.finish()


def balanced(groups, n_merges, *, measure_on=(), after=0, window=0, min_frequency=0, threads=1):
    corpus = FlatCorpus(256 + n_merges, min_frequency, None, (), threads)
    for number, words in enumerate([*groups, *measure_on]):
        corpus.add_words(counted(words), number)
    return corpus.train(Progress(), (bool(measure_on), after, window))


def plainly(words, *limits):
    corpus = FlatCorpus(*limits)
    corpus.add_words(counted(words), 0)
    return corpus.train(Progress())


def pairs(learned):
    return [tuple(pair) for pair in learned.merges.tolist()]


def random_groups(rng, count):
    """Words of letters that the groups share in part, with any weights."""
    groups = []
    for group in range(count):
        letters = "abcdefgh"[group : group + 4]
        words = ["".join(rng.choices(letters, k=rng.randint(1, 9))) for _ in range(rng.randint(3, 30))]
        groups.append({word.encode(): rng.randint(1, 1000) for word in words})
    return groups


def test_the_group_that_is_compressed_worst_goes_first_by_hand():
    # Both have 1 byte per token, so the first begins: "aa" (18). It has 36/27 then, the other 1: "cd" (1).
    groups = [{b"aabb": 9}, {b"cdcd": 1, b"e": 2}]
    assert reference.bpe.train_balanced(groups, 2)[0] == [(97, 97), (99, 100)]
    assert pairs(balanced(groups, 2)) == [(BYTE_IDS[97],) * 2, (BYTE_IDS[99], BYTE_IDS[100])]


@pytest.mark.parametrize("seed", range(40))
def test_random_groups_merge_as_the_definition_says(seed):
    rng = random.Random(seed)
    count = rng.randint(1, 5)
    groups = random_groups(rng, count)
    options = {"min_frequency": rng.choice([0, 0, 500]), "after": rng.choice([0, 0, 7]), "window": rng.choice([0, 9])}
    options["measure_on"] = rng.choice([(), random_groups(rng, count)])
    learned = balanced(groups, 60, **options, threads=rng.randint(1, 3))
    options["measure_on"] = options["measure_on"] or None
    merges, tokens = reference.bpe.train_balanced(groups, 60, byte_ids=BYTE_IDS, **options)
    assert pairs(learned) == merges
    assert [tokens for _, tokens in learned.groups][:count] == tokens
    assert [size for size, _ in learned.groups][:count] == [
        sum(len(word) * weight for word, weight in words.items()) for words in groups
    ]


def test_one_group_and_merges_over_all_groups_are_plain_training():
    rng = random.Random(3)
    groups = random_groups(rng, 4)
    together = sum(map(Counter, groups), Counter())
    plain = pairs(plainly(together, 256 + 80, 0, None, ()))
    assert pairs(balanced([together], 80)) == plain
    assert pairs(balanced(groups, 80, after=80)) == plain
    assert pairs(balanced(groups, 80)) != plain


def test_one_group_is_plain_training_also_with_limits_and_special_tokens():
    words = random_groups(random.Random(8), 1)[0]
    plain = plainly(words, 330, 50, 4, [b"ab", b"<end>"])
    corpus = FlatCorpus(330, 50, 4, [b"ab", b"<end>"])
    corpus.add_words(counted(words), 0)
    learned = corpus.train(Progress(), (False, 0, 0))
    assert pairs(learned) == pairs(plain)
    assert learned.vocab_size == plain.vocab_size
    assert learned.full == plain.full


def test_a_group_that_cannot_be_compressed_takes_no_more_than_its_share_of_a_window():
    rng = random.Random(2)
    noise = {bytes(rng.choices(b"0123456789", k=12)): 1 for _ in range(300)}
    words = {"".join(rng.choices("abcd", k=6)).encode(): rng.randint(1, 99) for _ in range(300)}
    others = [words, {word[::-1] + b"x": count for word, count in words.items()}]
    alone, limited = (balanced([noise, *others], 300, window=window) for window in (0, 30))

    def of_noise(learned):
        return sum((left + right).isdigit() for left, right in as_strings(pairs(learned)))

    assert of_noise(alone) > 240
    assert 190 <= of_noise(limited) <= 210  # two thirds: twice the share of one group in three


def test_a_corpus_of_groups_takes_them_in_order():
    corpus = FlatCorpus(300, 0, None, ())
    with pytest.raises(Exception, match="group 1: expected 0, the next one"):
        corpus.add_words(counted({b"ab": 1}), 1)


# HF tokenizers


def parity(training, n_merges, *, dev=None, after=0, window=0):
    """The merges of `ParityBpeTrainer`, as pairs of strings in the characters of GPT-2."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    ratio = None if dev else [1.0] * len(training)
    how = {"variant": "window", "window_size": window, "alpha": 2.0} if window else {}
    trainer = tokenizers.trainers.ParityBpeTrainer(num_merges=n_merges, global_merges=after, show_progress=False, **how)
    trainer.train_from_iterator(
        made, [iter(texts) for texts in training], dev and [iter(texts) for texts in dev], ratio
    )
    return [tuple(pair) for pair in json.loads(made.to_str())["model"]["merges"]]


def words_of(texts):
    words = Counter()
    for text in texts:
        data, ends = text.encode(), split_text(text, "gpt2").tolist()
        words.update(data[start:end] for start, end in zip([0, *ends], ends, strict=False))
    return words


def as_strings(merges):
    """Pairs of ids as pairs of strings in the characters of GPT-2, in whose order the ids are."""
    alphabet = [chr(code) for code in range(0x21, 0x7F)] + [chr(code) for code in range(0xA1, 0x100) if code != 0xAD]
    strings = alphabet + [chr(code) for code in range(0x100, 0x144)]
    shown = []
    for left, right in merges:
        shown.append((strings[left], strings[right]))
        strings.append(strings[left] + strings[right])
    return shown


def languages(rng, count=3):
    """Texts of several scripts, in groups of unequal size that share some of their words."""
    words = SCRIPTS.split()
    shares = [rng.sample(words, rng.randint(5, 15)) for _ in range(count)]
    return [[" ".join(rng.choices(share, k=30)) for _ in range(rng.randint(1, 6))] for share in shares]


@pytest.mark.parametrize("seed", range(12))
def test_the_definition_with_their_rule_for_ties_is_theirs_to_the_last_merge(seed):
    rng = random.Random(seed)
    training, after, window = languages(rng), rng.choice([0, 0, 25]), [0, 0, 10, 40][seed % 4]
    dev = languages(rng) if seed % 2 else None
    groups, measure_on = [words_of(texts) for texts in training], dev and [words_of(texts) for texts in dev]
    options = {"after": after, "window": window, "byte_ids": BYTE_IDS, "ties": "larger strings"}
    count = 60 if window else 120  # with a window, theirs counts the choice of a group that has no pair left
    found = as_strings(reference.bpe.train_balanced(groups, count, measure_on=measure_on, **options)[0])
    assert found == parity(training, count, dev=dev, after=after, window=window)


@pytest.mark.parametrize("measured", [False, True])
def test_merges_are_those_of_hugging_face_where_no_pairs_tie(measured, tmp_path, stdlib_texts):
    training = [stdlib_texts[:10], stdlib_texts[10:40], stdlib_texts[40:60]]
    dev = [stdlib_texts[number : number + 2] for number in (3, 25, 50)]
    for name, groups in (("training", training), ("dev", dev)):
        documents = [text for group in groups for text in group]
        labels = [f"{number}" for number, group in enumerate(groups) for _ in group]
        write_jsonl(tmp_path / f"{name}.jsonl", documents, group=labels)
    count = 25
    options = {"vocab_size": 256 + count, "pretokenizer": "gpt2", "special_tokens": []}
    more = {"balance_on": tmp_path / "dev.jsonl"} if measured else {}
    tok = train_bpe(tmp_path / "training.jsonl", balance="group", **more, **options)
    measure_on = [words_of(texts) for texts in dev] if measured else None
    rules = {"measure_on": measure_on, "byte_ids": BYTE_IDS}
    groups = [words_of(texts) for texts in training]
    ours = reference.bpe.train_balanced(groups, count, **rules)[0]
    theirs = reference.bpe.train_balanced(groups, count, ties="larger strings", **rules)[0]
    same = next((at for at in range(count) if ours[at] != theirs[at]), count)  # the first tie is after it
    assert same > 20
    found = as_strings(tok.merges.tolist())
    assert found[:same] == parity(training, count, dev=dev if measured else None)[:same]
    plain = train_bpe(tmp_path / "training.jsonl", **options)
    assert found[:same] != as_strings(plain.merges.tolist())[:same]


# Documents


@pytest.fixture(scope="module")
def folder(tmp_path_factory, stdlib_texts):
    """The same documents by folder, in JSON lines and in Parquet."""
    root = tmp_path_factory.mktemp("groups")
    texts, labels = stdlib_texts[:60], [("one", "two", "three")[number % 3] for number in range(60)]
    for number, (text, label) in enumerate(zip(texts, labels, strict=True)):
        (root / "folders" / label).mkdir(parents=True, exist_ok=True)
        (root / "folders" / label / f"{number}.txt").write_text(text, encoding="utf-8")
    write_jsonl(root / "all.jsonl", texts, lang=labels)
    pq.write_table(pa.table({"text": texts, "lang": labels}), root / "all.parquet", row_group_size=7)
    return root


def groups_of(tokenizer):
    return {
        group["group"]: (group["documents"], group["bytes"], group["tokens"]) for group in tokenizer.training["groups"]
    }


def test_folders_fields_columns_executors_and_threads_give_one_vocabulary(folder):
    wanted = train_bpe(folder / "folders", vocab_size=500, balance="directory", threads=1)
    assert sorted(groups_of(wanted)) == ["one", "three", "two"]
    for source, by in (("all.jsonl", "lang"), ("all.parquet", "lang")):
        found = train_bpe(folder / source, vocab_size=500, balance=by, threads=3)
        assert found.identity == wanted.identity
        assert groups_of(found) == groups_of(wanted)
    table = pq.read_table(folder / "all.parquet")
    assert train_bpe(table, vocab_size=500, balance="lang").identity == wanted.identity
    with ThreadPoolExecutor(3) as executor:
        several = open_source(folder / "all.parquet", group="lang", group_bytes=1)
        found = train_bpe(several, vocab_size=500, balance="lang", executor=executor)
        assert found.identity == wanted.identity
        assert groups_of(found) == groups_of(wanted)
        found = train_bpe(folder / "folders", vocab_size=500, balance="directory", executor=executor)
        assert found.identity == wanted.identity
        assert groups_of(found) == groups_of(wanted)
    assert train_bpe(folder / "all.jsonl", vocab_size=500).identity != wanted.identity


def test_the_record_has_the_tokens_that_the_tokenizer_makes(folder):
    tok = train_bpe(folder / "folders", vocab_size=600, balance="directory")
    for group in tok.training["groups"]:
        texts = [path.read_text(encoding="utf-8") for path in (folder / "folders" / group["group"]).iterdir()]
        assert group["documents"] == len(texts)
        assert group["bytes"] == sum(len(text.encode()) for text in texts)
        assert group["tokens"] == sum(len(tok.encode(text)) for text in texts)
        assert group["bytes_per_token"] == round(group["bytes"] / group["tokens"], 4)
    rates = [group["bytes_per_token"] for group in tok.training["groups"]]
    assert rates == sorted(rates)
    assert rates[-1] / rates[0] < 1.02


def test_continuing_a_balanced_vocabulary_gives_the_one_that_is_trained_in_one_go(folder):
    options = {"pretokenizer": "gpt2", "balance": "directory", "balance_on": folder / "folders"}
    at_once = train_bpe(folder / "folders", vocab_size=600, **options)
    first = train_bpe(folder / "folders", vocab_size=430, **options)
    went_on = train_bpe(folder / "folders", vocab_size=600, start=first, **options)
    assert went_on.merges.tolist() == at_once.merges.tolist()
    assert groups_of(went_on) == groups_of(at_once)


def test_a_group_is_named_by_its_field_folders_or_file(tmp_path):
    table = pa.table({"text": ["ab ab", "cd cd"], "number": [0.5, 7.0]})
    assert sorted(groups_of(train_bpe(table, vocab_size=258, balance="number"))) == ["0.5", "7"]
    for name in ("en.txt", "de.jsonl", "sub/a/x.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text('{"text": "ab ab"}\n')
    assert sorted(groups_of(train_bpe(tmp_path, vocab_size=258, balance="directory:2"))) == ["de", "en", "sub/a"]


def test_what_cannot_be_balanced_is_refused(folder, tmp_path):
    source = folder / "all.jsonl"
    for options, message in [
        ({"balance": ""}, "balance='': expected directory, directory:2, or the name of a field"),
        ({"balance": "directory:x"}, "expected a number of folders"),
        ({"balance": "directory:\N{SUPERSCRIPT TWO}"}, "expected a number of folders"),
        ({"balance_on": "dev"}, "balance_on without balance"),
        ({"balance_after": 5}, "balance_after without balance"),
        ({"balance_window": 5}, "balance_window without balance"),
        ({"balance": "lang", "save_counts": tmp_path / "c"}, "a counts file does not record which documents"),
        ({"weight": ["x=1"], "from_counts": ["c"]}, "a counts file does not record which documents"),
        ({"weight": ["nothing/**=2"]}, "it matches none of the 1 files"),
        ({"weight": ["all.jsonl=0.1234567891234"]}, "too large or too fine"),
    ]:
        with pytest.raises(PlanError, match=re.escape(message)):
            train_bpe(source, **options)
    with pytest.raises(PlanError, match="every document has weight 0"):
        train_bpe(source, weight=["*.jsonl=0"])
    with pytest.raises(SourceError, match='no field "language" to group by'):
        train_bpe(source, balance="language")
    with pytest.raises(PlanError, match="go by the paths of files, and this source has none"):
        train_bpe(["one two"], balance="directory")
    with pytest.raises(SourceError, match="strings have no field 'lang'"):
        train_bpe(["one two"], balance="lang")
    many = pa.table({"text": ["ab"] * 1001, "lang": [str(number) for number in range(1001)]})
    with pytest.raises(PlanError, match="balance='lang': more than 1,000 groups, such as '0', '1', '10'"):
        train_bpe(many, balance="lang")


def test_a_development_set_has_the_same_groups_and_texts(folder, tmp_path):
    for labels, message in [
        (["one", "two"], "has no documents of the group 'three'"),
        (["one", "two", "three", "four"], "has the group 'four'"),
        (["one", "two", "three", "one"], "1 documents of 'three' but 2 of 'one'. Expected the same texts"),
    ]:
        dev = write_jsonl(tmp_path / "dev.jsonl", ["a text"] * len(labels), lang=labels)
        with pytest.raises(PlanError, match=re.escape(message)):
            train_bpe(folder / "all.jsonl", vocab_size=300, balance="lang", balance_on=dev)


def test_the_command_balances_and_tells_the_groups(folder, tmp_path):
    dev = write_jsonl(tmp_path / "dev.jsonl", ["a text", "a longer text", "import os"], lang=["one", "two", "three"])
    ended = run(
        *("train", folder / "all.jsonl", "--vocab-size", "400", "--out", tmp_path / "tok", "--quiet"),
        *("--balance", "lang", "--balance-on", dev, "--balance-after", "20", "--balance-window", "50"),
    )
    assert "balanced over 3 groups:" in ended.stdout
    assert re.search(
        r"  three +\d\.\d+ bytes per token: [\d.]+ [kM]?B in [\d,]+ tokens +\d+ tokens of --balance-on", ended.stdout
    )
    record = json.loads((tmp_path / "tok" / "training.json").read_text())
    assert [group["group"] for group in record["groups"]] != []
    assert record["plan"]["balance_on"] == str(dev)
    assert record["plan"]["balance_after"] == 20


# Weights


def test_a_word_in_a_file_of_weight_two_counts_twice(folder):
    options = {"vocab_size": 500, "pretokenizer": "gpt2", "min_frequency": 20}
    files = sorted((folder / "folders").glob("*/*.txt"))
    texts = [(path.parent.name, path.read_text(encoding="utf-8")) for path in files]
    for weights in ({"one": 2}, {"one": 0, "two": 3}, {"one": 1.5, "three": 0.5}):
        flags = [f"{name}/**={weight}" for name, weight in weights.items()]
        found = train_bpe(folder / "folders", weight=flags, **options)
        double = [text for name, text in texts for _ in range(int(2 * weights.get(name, 1)))]
        wanted = train_bpe(iter(double), **{**options, "min_frequency": 40})
        assert found.merges.tolist() == wanted.merges.tolist(), weights
    assert found.training["groups"] == []
    assert list(found.training["plan"]["weight"]) == flags
    even = train_bpe(folder / "folders", **options)
    assert even.merges.tolist() != found.merges.tolist()
    assert train_bpe(folder / "folders", weight=["**=7"], **options).merges.tolist() == even.merges.tolist()


def test_a_word_counts_as_often_as_the_weight_of_its_group_says(folder):
    options = {"vocab_size": 500, "pretokenizer": "gpt2", "min_frequency": 20}
    files = sorted((folder / "folders").glob("*/*.txt"))
    texts = [(path.parent.name, path.read_text(encoding="utf-8")) for path in files]
    table = pq.read_table(folder / "all.parquet")
    for weights in ({"one": 2}, {"one": 0, "two": 3}, {"one": 1.5, "three": 0.5}):
        flags = [f"{name}={weight}" for name, weight in weights.items()]
        double = [text for name, text in texts for _ in range(int(2 * weights.get(name, 1)))]
        wanted = train_bpe(iter(double), **{**options, "min_frequency": 40}).merges.tolist()
        for source, by in ((folder / "all.jsonl", "lang"), (table, "lang"), (folder / "folders", "directory")):
            assert train_bpe(source, weight=flags, weight_by=by, **options).merges.tolist() == wanted, (weights, by)
        with ThreadPoolExecutor(2) as executor:
            several = open_source(folder / "all.parquet", group="lang", group_bytes=1)
            found = train_bpe(several, weight=flags, weight_by="lang", executor=executor, **options)
            assert found.merges.tolist() == wanted
    assert found.training["groups"] == []
    balanced_too = {"weight": ["one=2", "two=2", "three=2"], "weight_by": "lang", "balance": "lang"}
    found = train_bpe(folder / "all.jsonl", vocab_size=400, **balanced_too)
    assert found.merges.tolist() == train_bpe(folder / "all.jsonl", vocab_size=400, balance="lang").merges.tolist()


def test_a_group_may_be_a_number_and_one_of_thousands():
    # More values than names are kept of.
    numbers = pa.table({"text": ["ab ab ab"] * 3000 + ["xy"], "id": [i / 2 for i in range(3001)]})
    found = train_bpe(numbers, vocab_size=258, weight=["1500=100000"], weight_by="id")
    assert found.bytes_of(257) == b"xy"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weight": ["four=2"], "weight_by": "lang"}, "weight='four': no document has this value of weight_by"),
        ({"weight": ["four=2"], "weight_by": "directory"}, "weight='four': no file is in this group of weight_by"),
        ({"weight_by": "lang"}, "weight_by without weight: say what the groups weigh"),
        ({"weight": ["a=1"], "weight_by": "lang", "balance": "text"}, "two fields"),
    ],
)
def test_weights_of_groups_that_are_not_there_are_refused(folder, options, message):
    with pytest.raises(PlanError, match=re.escape(message)):
        train_bpe(folder / "all.jsonl", **options)


def test_weights_and_groups_are_independent(folder):
    # Within a folder some files count twice: the same as those files once more, in the same folder.
    weighted = train_bpe(folder / "folders", vocab_size=450, balance="directory", weight=["**/1*.txt=2"])
    texts, labels = [], []
    for path in sorted((folder / "folders").glob("*/*.txt")):
        times = 2 if path.name.startswith("1") else 1
        texts += [path.read_text(encoding="utf-8")] * times
        labels += [path.parent.name] * times
    twice = train_bpe(pa.table({"text": texts, "lang": labels}), vocab_size=450, balance="lang")
    assert weighted.merges.tolist() == twice.merges.tolist()
    assert [group["tokens"] for group in weighted.training["groups"]] == [
        group["tokens"] for group in twice.training["groups"]
    ]


def test_continuing_counts_weights_too(folder):
    first = train_bpe(folder / "folders", vocab_size=300, pretokenizer="gpt2", weight=["one/**=3"])
    at_once = train_bpe(folder / "folders", vocab_size=450, pretokenizer="gpt2", weight=["one/**=3"])
    went_on = train_bpe(folder / "folders", vocab_size=450, start=first, weight=["one/**=3"])
    assert went_on.merges.tolist() == at_once.merges.tolist()


def test_long_and_short_words_of_groups_are_counted_apart_also_over_disk():
    rng = random.Random(5)
    documents = ["".join(rng.choices("ab", k=rng.randint(1, 18))) for _ in range(4000)]
    tags = np.array([rng.randrange(300) for _ in documents], np.uint16)
    data = np.frombuffer("".join(documents).encode(), np.uint8)
    ends = np.cumsum([len(document) for document in documents], dtype=np.int64)
    wanted = [Counter() for _ in range(300)]
    for document, tag in zip(documents, tags.tolist(), strict=True):
        wanted[tag][document.encode()] += 2
    for memory in (2**30, 1):  # with one byte of memory, everything is spilled
        counter = WordCounter("none", memory, "/tmp")
        counter.add(data, ends, tags)
        counter.add(data, ends, tags)
        groups = counter.finish().by_group([(tag, 1) for tag in range(300)], 300)
        for group, words in zip(groups, wanted, strict=True):
            bytes_, stops, counts = (array.tolist() for array in group.arrays())
            found = [bytes(bytes_[start:stop]) for start, stop in zip([0, *stops], stops, strict=False)]
            assert dict(zip(found, counts, strict=True)) == words
    with pytest.raises(SourceError, match="expected a tag for each"):
        counter.add(data, ends, tags[1:])
