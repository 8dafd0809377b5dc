"""Loading any tokenizer: the ids are those of the library it comes from, whichever engine encodes."""

import gzip
import hashlib
import json
import os
import pickle
import subprocess
import sys
from functools import cache

import numpy as np
import pyarrow as pa
import pytest
import sentencepiece
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st
from tiktoken.load import load_tiktoken_bpe

import command
import models
from hf import HF
from models import AS_IT_IS, TEXTS
from piecemill.errors import PlanError, TokenizerError
from piecemill.tokenizers import Tokenizer, load_tokenizer, resolve_bos, resolve_eos, verify
from piecemill.tokenizers.engines import engines
from piecemill.tokenizers.models.ranks import PUBLISHED
from piecemill.tokenizers.models.sentencepiece import read
from piecemill.tokenizers.pretokenizers import PATTERNS
from vocabularies import END, rows, tokenizer

SENTENCEPIECE = {
    "bpe": AS_IT_IS,
    "bpe-spaces": AS_IT_IS | {"remove_extra_whitespaces": True},
    "bpe-symbols": AS_IT_IS | {"user_defined_symbols": "<sep>,===", "control_symbols": "<ctl>"},
    "bpe-symbols-bare": AS_IT_IS
    | {"user_defined_symbols": "<sep>,===,==", "control_symbols": "<ctl>", "add_dummy_prefix": False},
    "bpe-unknown": AS_IT_IS | {"byte_fallback": False},
    "bpe-nfkc": {},
    "unigram": {},
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A file for every kind."""
    folder = tmp_path_factory.mktemp("made")
    for name, options in SENTENCEPIECE.items():
        (folder / f"{name}.model").write_bytes(models.sentencepiece_model(name.partition("-")[0], **options))
    for name in ("word_piece", "unigram", "bpe_with_digits"):
        (folder / name).mkdir()
        (folder / name / "tokenizer.json").write_text(models.tokenizer_json(name), encoding="utf-8")
    tokenizer("cl100k").save(folder / "trained")
    ranks = (folder / "trained" / "ranks.tiktoken").read_bytes()
    (folder / "small.tiktoken").write_bytes(ranks)
    return folder


def load(folder, name, **options):
    if name == "small.tiktoken":
        options = {"pretokenizer": "cl100k", "special_tokens": {END: 5000}} | options
    return load_tokenizer(folder / name, **options)


KINDS = {
    "bpe.model": ("SentencePiece BPE model", "piecemill"),
    "bpe-spaces.model": ("SentencePiece BPE model", "sentencepiece"),
    "bpe-symbols.model": ("SentencePiece BPE model", "sentencepiece"),
    "bpe-symbols-bare.model": ("SentencePiece BPE model", "piecemill"),
    "bpe-unknown.model": ("SentencePiece BPE model", "piecemill"),
    "bpe-nfkc.model": ("SentencePiece BPE model", "sentencepiece"),
    "unigram.model": ("SentencePiece Unigram model", "sentencepiece"),
    "word_piece": ("tokenizer.json (WordPiece)", "piecemill"),
    "unigram": ("tokenizer.json (Unigram)", "tokenizers"),
    "bpe_with_digits": ("byte-level BPE", "piecemill"),
    "trained": ("byte-level BPE", "piecemill"),
    "small.tiktoken": ("tiktoken file", "piecemill"),
}
SPECIAL = ("<s>", "</s>", "<unk>")
# HF's Unigram finds these in any text by itself, so there is nobody to compare with; see the tests of special tokens.
PLAIN = [text for text in TEXTS if not any(token in text for token in SPECIAL)] + ["<pad> <mask>"]
EXACT = ("trained", "small.tiktoken", "bpe_with_digits")


def upstream(folder, name):
    """Plain ids of PLAIN from the library that owns the format, asked directly."""
    if name.endswith(".model"):
        theirs = sentencepiece.SentencePieceProcessor(model_file=str(folder / name))
        return theirs.encode(PLAIN, out_type=int)
    if name.endswith(".tiktoken"):
        ranks = load_tiktoken_bpe(str(folder / name))
        encoding = tiktoken.Encoding("x", pat_str=PATTERNS["cl100k"], mergeable_ranks=ranks, special_tokens={})
        return [encoding.encode_ordinary(text) for text in PLAIN]
    return HF((folder / name / "tokenizer.json").read_text(encoding="utf-8")).ids(PLAIN, plain=True)


def names_of(tok):
    """The engines that can encode it."""
    # The GPU has tests of its own, in test_cuda.py and test_cuda_gpu.py.
    return [engine.name for engine in engines() if isinstance(tok.model, engine.reads) and engine.name != "cuda"]


# Every kind, every engine


@pytest.mark.parametrize("name", KINDS)
def test_the_ids_are_upstreams_in_every_form_of_asking(made, name):
    tok, want = load(made, name), upstream(made, name)
    assert (tok.kind, tok.engine.name) == KINDS[name]
    assert rows(tok.encode_batch(PLAIN)) == want
    assert rows(tok.encode_batch(pa.array(PLAIN), threads=1)) == want
    assert [tok.encode(text).tolist() for text in PLAIN] == want
    data = np.frombuffer("".join(PLAIN).encode(), np.uint8)
    ends = np.cumsum([len(text.encode()) for text in PLAIN])
    ids, id_ends = tok.encode_flat(data, ends, threads=3)
    assert (ids.dtype, id_ends.dtype) == (np.uint32, np.int64)
    assert rows((ids, id_ends)) == want
    assert max(map(max, filter(None, want))) < tok.vocab_size


@pytest.mark.parametrize("name", KINDS)
def test_every_engine_that_can_be_asked_for_gives_the_same_ids(made, name):
    want = upstream(made, name)
    for engine in names_of(load(made, name)):
        if KINDS[name][1] != "piecemill" and engine == "piecemill":
            with pytest.raises(TokenizerError, match=r"engine='piecemill': .* Engines of a "):
                load(made, name, engine=engine)
            continue
        tok = load(made, name, engine=engine)
        assert (tok.engine.name, tok.engine.why) == (engine, "requested")
        for threads in (None, 1, 2):
            assert rows(tok.encode_batch(PLAIN, threads=threads)) == want
            final, ends = tok.encode_batch(PLAIN, bos=3, eos=4, dtype="uint16", threads=threads)
            assert final.dtype == np.uint16
            assert rows((final, ends)) == [[3, *ids, 4] for ids in want]


@pytest.mark.parametrize("name", KINDS)
def test_saved_loaded_and_pickled_it_is_the_same_tokenizer(made, name, tmp_path):
    tok = load(made, name)
    tok.save(tmp_path / "tok")
    for again in (load_tokenizer(tmp_path / "tok"), pickle.loads(pickle.dumps(tok))):
        assert (again.identity, again.vocab_size, again.special_tokens, again.kind) == (
            tok.identity,
            tok.vocab_size,
            tok.special_tokens,
            tok.kind,
        )
        assert (again.engine.name, again.engine.why) == (tok.engine.name, tok.engine.why)
        assert rows(again.encode_batch(PLAIN)) == rows(tok.encode_batch(PLAIN))
    tok.save(tmp_path / "tok", force=True)


@pytest.mark.parametrize("name", KINDS)
def test_decoding_is_exact_or_as_upstream_does_it(made, name):
    tok = load(made, name)
    if name in EXACT:
        for text in PLAIN:
            assert tok.decode_bytes(tok.encode(text)) == text.encode()
            assert tok.decode(tok.encode(text)) == text
    elif name.endswith(".model"):
        theirs = sentencepiece.SentencePieceProcessor(model_file=str(made / name))
        for text in PLAIN:
            ids = tok.encode(text)
            assert tok.decode(ids) == theirs.decode(ids.tolist())
    else:
        hf = HF((made / name / "tokenizer.json").read_text(encoding="utf-8"))
        for text in PLAIN:
            ids = tok.encode(text)
            assert tok.decode(ids) == hf.decode(ids.tolist())
            assert tok.decode_bytes(ids).decode() == tok.decode(ids)
    ids, ends = tok.encode_batch(PLAIN)
    assert tok.decode_batch(ids, ends) == [tok.decode(tok.encode(text)) for text in PLAIN]


@pytest.mark.parametrize("name", ["bpe-spaces", "unigram"])
def test_spaces_at_the_start_are_decoded_as_sentencepiece_does(made, name):
    tok = load(made, f"{name}.model")
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(made / f"{name}.model"))
    space, word = theirs.piece_to_id("▁"), theirs.encode("the")
    rows = [[space, *word], [space, space, *word, space, *word], [theirs.eos_id(), space, *word], [space], []]
    assert [tok.decode(ids) for ids in rows] == [theirs.decode(ids) for ids in rows]
    ends = np.cumsum([len(ids) for ids in rows])
    assert tok.decode_batch([i for ids in rows for i in ids], ends) == [theirs.decode(ids) for ids in rows]
    assert tok.bytes_of(space) == b" "
    with pytest.raises(TokenizerError, match=r"decode_bytes: a token of .* use decode"):
        tok.decode_bytes(rows[0])


def test_a_user_defined_piece_with_a_space_is_found_no_more_than_by_sentencepiece(tmp_path):
    options = {"user_defined_symbols": "of the", "add_dummy_prefix": False}
    (tmp_path / "tok.model").write_bytes(models.sentencepiece_model("bpe", **models.AS_IT_IS, **options))
    tok = load_tokenizer(tmp_path / "tok.model")
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "tok.model"))
    assert tok.encode("end of the line").tolist() == theirs.encode("end of the line")


@pytest.mark.parametrize("name", ["bpe.model", "bpe-symbols-bare.model"])
def test_bytes_that_are_not_text_are_decoded_as_sentencepiece_does(made, name):
    tok = load(made, name)
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(made / name))
    byte = {i: tok.id_of(f"<0x{i:02X}>") for i in range(256)}
    word = int(tok.encode("import")[0])
    rng = np.random.default_rng(3)
    for row in ([0xE6, 0x97, -1, 0xA5], [0xE6, 0x97, 0xA5, 0xC3], [0xFF, 0x80], [0xF0, 0x9F], [0xED, 0xA0, 0x80]):
        ids = [word if one < 0 else byte[one] for one in row]
        assert tok.decode(ids) == theirs.decode(ids)
    for _ in range(300):
        ids = rng.integers(0, 300, rng.integers(0, 12)).tolist()
        assert tok.decode(ids) == theirs.decode(ids)


def test_identities_differ_where_ids_would(made):
    assert len({load(made, name).identity for name in KINDS}) == len(KINDS)
    other = load(made, "small.tiktoken", pretokenizer="gpt2")
    assert other.identity != load(made, "small.tiktoken").identity
    assert load(made, "small.tiktoken", pretokenizer=PATTERNS["gpt2"]).identity == other.identity


@settings(max_examples=150, deadline=None)
@given(text=st.text(alphabet="aeét =-_\n▁<s>/x0A漢", max_size=40))
def test_sentencepiece_and_piecemill_agree_on_ties_and_runs(made, text):
    assert loaded(made, "piecemill").encode(text).tolist() == loaded(made, "sentencepiece").encode(text).tolist()


@cache
def loaded(folder, engine):
    return load(folder, "bpe.model", engine=engine)


# Real vocabularies


def real(shared, name, **options):
    return load_tokenizer(shared / "vocabs" / name, **options)


def test_cl100k_and_o200k_have_tiktokens_ids(shared, stdlib_texts):
    texts = [*TEXTS, *stdlib_texts[:25]]
    for name, pattern in (("cl100k_base", models.TIKTOKEN_CL100K), ("o200k_base", PATTERNS["o200k"])):
        tok = real(shared, f"{name}.tiktoken")
        ranks = load_tiktoken_bpe(str(shared / "vocabs" / f"{name}.tiktoken"))
        encoding = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
        assert tok.engine.name == "piecemill"
        assert rows(tok.encode_batch(texts)) == encoding.encode_ordinary_batch(texts)
        assert tok.id_of(END) == resolve_eos(tok) == {"cl100k_base": 100257, "o200k_base": 199999}[name]
        assert tok.encode(END, special="parse").tolist() == [tok.id_of(END)]


def test_gpt2_has_hfs_ids_and_no_config_is_needed_for_its_eos(shared, stdlib_texts):
    tok = real(shared, "gpt2")
    hf = HF((shared / "vocabs" / "gpt2" / "tokenizer.json").read_text(encoding="utf-8"))
    texts = [*TEXTS, *stdlib_texts[:25]]
    assert rows(tok.encode_batch(texts)) == hf.ids(texts, plain=True)
    assert (resolve_eos(tok), resolve_bos(tok), tok.vocab_size) == (50256, None, 50257)


def test_mistral_has_sentencepieces_ids_also_where_a_text_says_s(shared, stdlib_texts):
    tok = real(shared, "mistral_v1.model")
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(shared / "vocabs" / "mistral_v1.model"))
    texts = [*TEXTS, *stdlib_texts[:10], *(" " * n + "x" for n in range(80))]
    assert tok.engine.name == "piecemill"
    assert rows(tok.encode_batch(texts)) == theirs.encode(texts, out_type=int)
    assert (resolve_eos(tok), resolve_eos(tok, "<s>"), resolve_bos(tok)) == (2, 1, None)
    assert verify(tok, texts).documents == len(texts)


@pytest.mark.parametrize(
    ("name", "pretokenizer", "special"),
    [
        ("llama3.tiktoken.gz", "llama3", {"<|begin_of_text|>": 128_000}),
        ("qwen.tiktoken.gz", "qwen2", {END: 151_643}),
        ("qwen3_6.tiktoken.gz", "qwen3.5", {END: 248_044}),
        ("tekken.tiktoken.gz", "tekken", None),
    ],
)
def test_the_ranks_of_todays_models_have_tiktokens_ids(shared, stdlib_texts, name, pretokenizer, special):
    tok = real(shared, name, pretokenizer=pretokenizer, special_tokens=special)
    assert tok.engine.name == "piecemill"
    assert verify(tok, [*TEXTS, *stdlib_texts[:10]]).home == "tiktoken"


def test_deepseek_has_hfs_ids(shared, stdlib_texts):
    tok = real(shared, "deepseek_v3.tokenizer.json.gz")
    assert tok.engine.name == "piecemill", tok.engine.why
    texts = [*TEXTS, *stdlib_texts[:5]]
    assert verify(tok, texts).documents == len(texts)
    hf = HF(gzip.decompress((shared / "vocabs" / "deepseek_v3.tokenizer.json.gz").read_bytes()).decode())
    marked = ["".join(list(tok.special_tokens)[:40]), "a<｜User｜>b <｜Assistant｜>"]
    assert rows(tok.encode_batch(marked, special="parse")) == hf.ids(marked)


# Special tokens


@pytest.mark.parametrize("name", KINDS)
def test_stop_names_the_document_and_the_token(made, name):
    tok = load(made, name)
    token = next(iter(tok.special_tokens))
    texts = ["fine", "é", f"a {token} b"]
    with pytest.raises(TokenizerError, match=r"texts\[2\]: byte 2 begins .* special='stop'"):
        tok.encode_batch(texts, special="stop")
    with pytest.raises(TokenizerError, match="text: byte 0 begins"):
        tok.encode(token, special="stop")
    # across a border it is in neither text
    assert rows(tok.encode_batch([token[:2], token[2:]], special="stop")) == rows(
        tok.encode_batch([token[:2], token[2:]])
    )


@pytest.mark.parametrize("name", KINDS)
def test_parse_makes_the_token_or_says_why_not(made, name):
    tok = load(made, name)
    token, i = next(iter(tok.special_tokens.items()))
    assert i not in tok.encode(f"a{token}b")
    if name.endswith(".model"):
        with pytest.raises(TokenizerError, match="sentencepiece has no way to find control tokens"):
            tok.encode(token, special="parse")
        return
    for engine in names_of(tok):
        if engine == "piecemill" != KINDS[name][1]:
            continue
        again = load(made, name, engine=engine)
        assert again.encode(f"a{token}b", special={token}).tolist().count(i) == 1
        assert again.encode(f"a{token}b", special="parse").tolist().count(i) == 1
        assert rows(again.encode_batch([f"a{token}b"], special="parse"))[0].count(i) == 1


def test_a_model_file_is_read_as_the_library_reads_it(made):
    content = (made / "bpe-symbols.model").read_bytes()
    found = read(content)
    assert (found.eos, found.model_type, found.byte_fallback) == ("</s>", "BPE", True)
    theirs = sentencepiece.SentencePieceProcessor(model_proto=content)
    assert [piece.text for piece in found.pieces] == [theirs.id_to_piece(i) for i in range(theirs.vocab_size())]
    tok = load(made, "bpe-symbols.model")
    assert (tok.id_of("<ctl>"), tok.id_of(b"<ctl>")) == (theirs.piece_to_id("<ctl>"),) * 2


# The start and the end of a document


def with_config(folder, made, name, **config):
    load(made, name).save(folder)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return load_tokenizer(folder)


def test_the_declared_end_is_taken_and_survives_saving(made, tmp_path):
    tok = with_config(tmp_path / "a", made, "word_piece", eos_token={"content": "[SEP]"}, bos_token="[CLS]")
    # the template of this tokenizer.json begins with [CLS]
    assert (resolve_eos(tok), resolve_bos(tok)) == (tok.id_of("[SEP]"), tok.id_of("[CLS]"))
    tok.save(tmp_path / "b")
    again = load_tokenizer(tmp_path / "b")
    assert (resolve_eos(again), resolve_bos(again)) == (resolve_eos(tok), resolve_bos(tok))


def test_bos_is_added_only_where_the_tokenizer_itself_would(made, tmp_path):
    never = with_config(tmp_path / "a", made, "word_piece", bos_token="[CLS]", add_bos_token=False)
    assert resolve_bos(never) is None
    assert resolve_bos(never, "[CLS]") == never.id_of("[CLS]")
    always = with_config(tmp_path / "b", made, "trained", bos_token=END, add_bos_token=True)
    assert resolve_bos(always) == resolve_eos(always) == 0
    assert resolve_bos(always, "none") is None
    model = with_config(tmp_path / "c", made, "bpe.model", add_bos_token=True, bos_token="<s>")
    assert (resolve_bos(model), resolve_eos(model)) == (1, 2)
    always.save(tmp_path / "d")
    assert resolve_bos(load_tokenizer(tmp_path / "d")) == 0


def test_no_end_is_an_error_that_names_the_choices(made):
    with pytest.raises(PlanError, match=r"eos='auto': .* does not declare.*'none'.*'\[PAD\]', '\[UNK\]', '\[CLS\]'"):
        resolve_eos(load(made, "word_piece"))
    with pytest.raises(PlanError, match=r"eos='\[EOS\]': not a special token"):
        resolve_eos(load(made, "word_piece"), "[EOS]")
    bare = Tokenizer.from_merges(np.empty((0, 2)), pretokenizer="gpt2")
    with pytest.raises(PlanError, match="it has none"):
        resolve_eos(bare)
    assert resolve_eos(bare, "none") is None


# What texts may come as


class Capsule:
    """Something of another library, with nothing but the Arrow interface."""

    def __init__(self, array):
        self.array = array

    def __arrow_c_stream__(self, requested_schema=None):
        return pa.chunked_array(self.array).__arrow_c_stream__(requested_schema)


class OneChunk:
    def __init__(self, array):
        self.array = array

    def __arrow_c_array__(self, requested_schema=None):
        return self.array.__arrow_c_array__(requested_schema)


def test_arrow_of_every_width_and_cut_gives_the_ids_of_the_list():
    tok = tokenizer("cl100k")
    want = rows(tok.encode_batch(TEXTS))
    array = pa.array(TEXTS)
    given = [
        array,
        array.cast(pa.large_string()),
        array.cast(pa.large_binary()),
        array.cast(pa.string_view()),
        array.dictionary_encode(),
        pa.chunked_array([array[:5], array[5:5], array[5:]]),
        pa.array(["cut off", *TEXTS, "too"])[1:-1],
        Capsule([array[:7], array[7:]]),
        OneChunk(array),
        (text for text in TEXTS),
    ]
    for one in given:
        assert rows(tok.encode_batch(one)) == want
    assert rows(tok.encode_batch(pa.array([], pa.string()))) == rows(tok.encode_batch([])) == []
    assert rows(tok.encode_batch(pa.array(["", ""]))) == [[], []]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda t: t.encode_batch(pa.array(["a", None])), r"texts\[1\] is null"),
        (lambda t: t.encode_batch(pa.array([1, 2])), "Arrow array of int64; expected text"),
        (lambda t: t.encode_batch(pa.array([b"ok", b"\xff"])), r"texts\[1\]: byte 0 is (b'\\xff'|0xff)"),
        (lambda t: t.encode_batch(pa.table({"text": ["a"]})), "pass the column"),
        (lambda t: t.encode_batch(7), "got int; expected a list of texts"),
        (lambda t: t.encode_flat(np.zeros(3, np.uint8), np.array([2])), "ends at 2, the data at 3"),
        (lambda t: t.encode_flat(np.zeros(3, np.uint8), np.array([2, 1, 3])), r"ends\[1\] is 1, before the end"),
        (lambda t: t.encode_flat(np.zeros(3), np.array([3])), "data of type float64"),
        (lambda t: t.encode_flat(np.frombuffer("é".encode(), np.uint8), np.array([1, 2])), r"texts\[0\]: byte 0"),
    ],
)
def test_texts_that_are_none_are_named(call, message):
    with pytest.raises(TokenizerError, match=message):
        call(tokenizer("cl100k"))


def test_whole_documents_survive_the_flat_form():
    tok = tokenizer("none")
    data = np.frombuffer("".join(TEXTS).encode(), np.uint8)
    ends = np.cumsum([len(text.encode()) for text in TEXTS])
    assert rows(tok.encode_flat(data, ends)) == [tok.encode(text).tolist() for text in TEXTS]


# What cannot be loaded


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("unigram.model", {"engine": "piecemill"}, "no encoder for Unigram models.*Engines of a .*sentencepiece"),
        ("unigram", {"engine": "piecemill"}, "Piecemill has no encoder for Unigram models"),
        (
            "trained",
            {"engine": "sentencepiece"},
            "sentencepiece does not encode a byte-level BPE.*piecemill, tokenizers",
        ),
        ("trained", {"engine": "gigatoken"}, "gigatoken does not encode a byte-level BPE"),
        ("trained", {"pretokenizer": "gpt2"}, "it has its own pretokenizer"),
        (
            "small.tiktoken",
            {"pretokenizer": None},
            "has no pretokenizer.*Pass pretokenizer, one of gpt2.* or a regex",
        ),
        ("small.tiktoken", {"special_tokens": {END: 7}}, "special token '<.endoftext.>' with id 7.*2,499 and up"),
        ("nothing.model", {}, "nothing.model: no such file; expected a folder saved"),
    ],
)
def test_what_cannot_be_is_said(made, name, options, message):
    with pytest.raises(TokenizerError, match=message):
        load(made, name, **options)


def test_broken_files_are_named(tmp_path):
    (tmp_path / "a.model").write_bytes(b"\x0a\xff not a model")
    with pytest.raises(TokenizerError, match=r"a.model: not a SentencePiece model"):
        load_tokenizer(tmp_path / "a.model")
    (tmp_path / "a.tiktoken").write_bytes(b"IQ== 0\n*** 1\n")
    with pytest.raises(TokenizerError, match=r"a.tiktoken: line 2 is b'\*\*\* 1'; expected a token in base64"):
        load_tokenizer(tmp_path / "a.tiktoken", pretokenizer="gpt2")
    (tmp_path / "b.model").write_bytes(b"")
    with pytest.raises(TokenizerError, match=r"holds a\.model, b\.model; name the file that is meant"):
        load_tokenizer(tmp_path)
    (tmp_path / "text.txt").write_text("x")
    with pytest.raises(TokenizerError, match=r"ends in '\.txt'; expected"):
        load_tokenizer(tmp_path / "text.txt")
    (tmp_path / "empty").mkdir()
    with pytest.raises(TokenizerError, match=r"holds no tokenizer\.json"):
        load_tokenizer(tmp_path / "empty")


# The hub


def in_cache(home, name, files, commit="0" * 40):
    """A cache as huggingface_hub lays it out: blobs by hash, snapshots that link to them, refs."""
    repo = home / "hub" / f"models--{name.replace('/', '--')}"
    snapshot = repo / "snapshots" / commit
    for folder in (repo / "blobs", repo / "refs", snapshot):
        folder.mkdir(parents=True)
    (repo / "refs" / "main").write_text(commit)
    for file, content in files.items():
        blob = repo / "blobs" / hashlib.sha256(content).hexdigest()
        blob.write_bytes(content)
        (snapshot / file).symlink_to(os.path.relpath(blob, snapshot))


def offline(home, code):
    env = os.environ | {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_hub_id_comes_from_the_cache_without_network(made, tmp_path):
    files = tokenizer("cl100k").model.files()
    in_cache(tmp_path, "some-org/some.model-7b", {name: files[name] for name in ("tokenizer.json",)})
    in_cache(tmp_path, "bare", {"tokenizer.model": (made / "bpe.model").read_bytes()})
    data = json.loads(files["tokenizer.json"])["model"]
    merges = "\n".join(["#version: 0.2", *(" ".join(pair) for pair in data["merges"])])
    in_cache(tmp_path, "old", {"vocab.json": json.dumps(data["vocab"]).encode(), "merges.txt": merges.encode()})
    code = """
from piecemill.tokenizers import load_tokenizer
for name in ("some-org/some.model-7b", "some-org/some.model-7b@main", "bare"):
    print(load_tokenizer(name).identity)
print(load_tokenizer("old").special_tokens)
"""
    trained, model = tokenizer("cl100k").identity, load(made, "bpe.model").identity
    assert offline(tmp_path, code).splitlines() == [trained, trained, model, str({END: 0})]


def test_offline_and_absent_says_both_and_the_way_out(tmp_path):
    code = """
from piecemill.errors import TokenizerError
from piecemill.tokenizers import load_tokenizer
try:
    load_tokenizer("some-org/absent")
except TokenizerError as error:
    print(error)
"""
    said = offline(tmp_path, code)
    assert said.startswith("some-org/absent: no such file or folder here, and as a Hugging Face hub id it could not be")
    assert "not in the cache" in said
    assert "hf download some-org/absent tokenizer.json" in said


def test_openais_files_by_name_come_from_the_cache_of_tiktoken(made, tmp_path, monkeypatch):
    ranks = (made / "small.tiktoken").read_bytes()
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    cached = tmp_path / "fb374d419588a4632f3f557e76b4b70aebbca790"
    cached.write_bytes(ranks)
    with pytest.raises(
        TokenizerError, match=r"o200k: no such file.*o200k_base is not in the cache.*o200k_base.tiktoken"
    ):
        load_tokenizer("o200k")  # the file there has another hash
    published = next(one for one in PUBLISHED.values() if one.name == "o200k_base")
    monkeypatch.setitem(PUBLISHED, hashlib.sha256(ranks).hexdigest(), published._replace(special_tokens={END: 9999}))
    monkeypatch.delitem(PUBLISHED, next(key for key, one in PUBLISHED.items() if one is published))
    for name in ("o200k", "o200k_base"):
        tok = load_tokenizer(name)
        assert (tok.special_tokens, tok.model.pretokenizer) == ({END: 9999}, "o200k")
        assert (
            tok.encode("some words").tolist()
            == load(made, "small.tiktoken", pretokenizer="o200k").encode("some words").tolist()
        )


def test_importing_the_room_imports_no_library():
    code = """
import sys
import piecemill.tokenizers
heavy = ("tokenizers", "transformers", "tiktoken", "pyarrow", "sentencepiece", "huggingface_hub")
print([m for m in heavy if m in sys.modules])
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_show_says_which_engine_and_why(made):
    def show(*arguments):
        return command.piecemill("show", *arguments)

    said = show(made / "unigram.model").stdout
    assert said.splitlines()[0].endswith("a tokenizer of 1,500 tokens, SentencePiece Unigram model")
    assert "Piecemill has no encoder for Unigram models (ids are those of sentencepiece)" in said
    assert "begin with nothing, end with </s>" in said
    record = json.loads(show(made / "trained", "--engine", "tokenizers", "--json").stdout)
    assert (record["engine"], record["why"], record["eos"]) == ("tokenizers", "requested", END)
    refused = show(made / "unigram.model", "--engine", "piecemill")
    assert (refused.returncode, refused.stderr.startswith("piecemill: --engine piecemill: ")) == (1, True)
