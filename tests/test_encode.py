"""The encoder against the libraries whose ids it gives, and against the plain definition.

Vocabularies of today's models come from the data folder beside the checkout; everything else is made here.
"""

import base64
import ctypes
import gzip
import json
import mmap
import random
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st

from piecemill import _core
from piecemill.errors import TokenizerError
from piecemill.reference import encode as reference
from piecemill.tokenizers.nasty import NASTY
from vocabularies import library_texts

SHARED = Path(__file__).parents[2] / "shared" / "vocabs"
needs_shared = pytest.mark.skipif(not SHARED.exists(), reason="the data folder beside the checkout is not here")
SPLITS = {row["name"]: row for row in _core.splits()}
RANKED = {
    "cl100k_base.tiktoken": "cl100k",
    "o200k_base.tiktoken": "o200k",
    "qwen.tiktoken.gz": "qwen2",
    "qwen3_6.tiktoken.gz": "qwen3.5",
    "llama3.tiktoken.gz": "cl100k",
    "tekken.tiktoken.gz": "tekken",
}


def flat(texts):
    encoded = [text.encode() if isinstance(text, str) else text for text in texts]
    return np.frombuffer(b"".join(encoded), np.uint8), np.cumsum([len(one) for one in encoded], dtype=np.int64)


PLAIN = {"bos": None, "eos": None, "narrow": False, "special": "plain", "threads": 1}


def encode(encoder, texts, **options):
    ids, ends = encoder.encode_flat(*flat(texts), **PLAIN | options)
    return [row.tolist() for row in np.split(ids, ends[:-1])] if len(ends) else []


def from_ranks(ranks, pretokenizer, **options):
    tokens = sorted(ranks, key=ranks.__getitem__)
    ids = np.array([ranks[token] for token in tokens], np.uint32)
    return _core.Encoder.bpe(*flat(tokens), ids, None, split=[pretokenizer], whole_words=True, **options)


@cache
def ranks_of(name):
    content = (SHARED / name).read_bytes()
    lines = (gzip.decompress(content) if name.endswith(".gz") else content).splitlines()
    return {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines)}


@cache
def small_ranks():
    """256 bytes and some hundred tokens of the interpreter's library, numbered as tiktoken would."""
    from piecemill.training import train_bpe

    scripts = (Path(__file__).parent / "scripts.txt").read_text()
    vocabulary = train_bpe(
        [*library_texts(8), scripts * 20], vocab_size=1500, pretokenizer="cl100k", special_tokens=[]
    ).vocabulary
    return {vocabulary.tokens[i]: rank for rank, i in enumerate(vocabulary.ranked)}


def in_tiktoken(name, pretokenizer):
    """Gives the ids of texts as arrays."""
    ranks = small_ranks() if name is None else ranks_of(name)
    home = tiktoken.Encoding(
        "ranks", pat_str=SPLITS[pretokenizer]["patterns"][0], mergeable_ranks=ranks, special_tokens={}
    )
    return lambda texts: [home.encode_to_numpy(text, disallowed_special=()) for text in texts]


@cache
def texts():
    """Real text in many languages, code, nasty strings, and what random generators make."""
    rng = random.Random(7)
    ranges = [(0x20, 0x7F), (0x20, 0x7F), (0x80, 0x250), (0x370, 0x600), (0x900, 0x1100), (0x3040, 0x30FF)]
    ranges += [(0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0x1F300, 0x1F650), (0x0, 0x20), (0x2000, 0x2070)]
    scripts = (Path(__file__).parent / "scripts.txt").read_text()
    made = [*NASTY, *library_texts(12), scripts, *scripts.splitlines()]
    for _ in range(600):
        some = rng.sample(ranges, 3)
        made.append("".join(chr(rng.randrange(*rng.choice(some))) for _ in range(rng.choice([1, 5, 20, 100, 700]))))
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    made += ["".join(rng.choices(letters, k=20_000)), "".join(rng.choices("abc", k=5_000)), "漢字" * 3_000]
    return made


@cache
def code_points():
    """Every code point with a space, and each of the planes with assigned characters between letters, digits, spaces
    and newlines; some thousand to a text. The Rust tests compare the classes of all planes.
    """
    assigned, rows = [(0, 0x20000), (0x2FF00, 0x31500), (0xE0000, 0xE0200), (0x10FFFF, 0x110000)], []
    for start in range(0, 0x110000, 0x800):
        characters = [chr(c) for c in range(start, start + 0x800) if not 0xD800 <= c <= 0xDFFF]
        rows.append("".join(f"{c} " for c in characters))
        near = [c for c in characters if any(first <= ord(c) < end for first, end in assigned)]
        for form in ("a{0}b", "1{0}2", " {0} x", "\n{0}\n", "A{0}{0}'s") if near else ():
            rows.append("".join(form.format(c) for c in near))
    return rows


def agree(encoder, texts, wanted, **options):
    """`wanted` gives the ids of some texts: all of them at once would take gigabytes as Python's integers."""
    for start in range(0, len(texts), 200):
        some = texts[start : start + 200]
        ids, ends = encoder.encode_flat(*flat(some), **PLAIN | options)
        rows = zip(np.split(ids, ends[:-1]), wanted(some), strict=True)
        wrong = [i for i, (ours, theirs) in enumerate(rows) if not np.array_equal(ours, theirs)]
        assert not wrong, f"{len(wrong)} of {len(some)} texts differ, the first is {some[wrong[0]][:80]!r}"


@needs_shared
@pytest.mark.parametrize("name", RANKED)
def test_todays_vocabularies_give_tiktokens_ids(name):
    pretokenizer = RANKED[name]
    agree(from_ranks(ranks_of(name), pretokenizer), texts(), in_tiktoken(name, pretokenizer), threads=2)


@needs_shared
def test_the_size_of_the_cache_and_the_processor_do_not_matter():
    found = dict(zip(texts(), in_tiktoken("cl100k_base.tiktoken", "cl100k")(texts()), strict=True))
    for options in (
        {"cache_bytes": 1},
        {"cache_bytes": 10_000},
        {"cache_bytes": 1 << 20},
        {"instructions": "portable"},
        {"instructions": "avx2"},
    ):
        encoder = from_ranks(ranks_of("cl100k_base.tiktoken"), "cl100k", **options)
        for threads in (1, 3):
            agree(encoder, texts(), lambda some: map(found.__getitem__, some), threads=threads)


@pytest.mark.parametrize("pretokenizer", [name for name, row in SPLITS.items() if len(row["patterns"]) == 1])
def test_every_code_point_gives_tiktokens_ids(pretokenizer):
    agree(from_ranks(small_ranks(), pretokenizer), code_points(), in_tiktoken(None, pretokenizer), threads=2)


def hf_tokenizer(path):
    content = path.read_bytes()
    text = gzip.decompress(content).decode() if path.suffix == ".gz" else content.decode()
    return text, json.loads(text)


@needs_shared
@pytest.mark.parametrize(
    ("file", "pretokenizer"), [("gpt2/tokenizer.json", "gpt2"), ("deepseek_v3.tokenizer.json.gz", "deepseek-v3")]
)
def test_lists_of_merges_give_the_ids_of_tokenizers(file, pretokenizer):
    tokenizers = pytest.importorskip("tokenizers")
    from piecemill.tokenizers.models.byte_level import bytes_of

    text, data = hf_tokenizer(SHARED / file)
    known = {name: bytes_of(name) for name in data["model"]["vocab"]}
    names = [name for name, token in known.items() if token is not None]
    place = {name: i for i, name in enumerate(names)}
    pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in data["model"]["merges"]]
    merges = np.array([[place[left], place[right]] for left, right in pairs], np.uint32)
    ids = np.array([data["model"]["vocab"][name] for name in names], np.uint32)
    encoder = _core.Encoder.bpe(
        *flat([known[name] for name in names]), ids, merges, split=[pretokenizer], whole_words=False
    )
    home = tokenizers.Tokenizer.from_str(text)
    home.encode_special_tokens = True
    rows = [*texts(), *code_points()[::7]]
    agree(encoder, rows, lambda some: [one.ids for one in home.encode_batch(some, add_special_tokens=False)], threads=2)


@cache
def mistral():
    model = sentencepiece.SentencePieceProcessor(model_file=str(SHARED / "mistral_v1.model"))
    size = model.get_piece_size()
    plain = [i for i in range(size) if not (model.is_control(i) or model.is_unknown(i) or model.is_byte(i))]
    plain.sort(key=lambda i: -model.get_score(i))
    byte_ids = [model.piece_to_id(f"<0x{byte:02X}>") for byte in range(256)]
    return model, plain, byte_ids


def mistral_encoder(**options):
    model, plain, byte_ids = mistral()
    tokens = flat([model.id_to_piece(i) for i in plain])
    return _core.Encoder.characters(
        *tokens,
        np.array(plain, np.uint32),
        None,
        byte_ids=byte_ids,
        unk=None,
        fuse_unk=False,
        prefix="first",
        **options,
    )


@needs_shared
@pytest.mark.parametrize("options", [{}, {"cache_bytes": 1}, {"instructions": "portable"}, {"instructions": "avx2"}])
def test_sentencepiece_bpe_gives_sentencepieces_ids(options):
    spaces = ["▁▁ a▁ ▁b", "  x", " ", "▁", *(" " * n + "The" + " " * n for n in range(1, 70))]
    rows = [*texts(), *spaces, *code_points()[:: 3 if not options else 31]]
    agree(mistral_encoder(**options), rows, lambda some: mistral()[0].encode(some, num_threads=2), threads=2)


@needs_shared
@settings(max_examples=300, deadline=None)
@given(st.text(max_size=40))
def test_any_text_has_the_ids_of_the_definition(text):
    # Of the pieces only those that occur can be merged; the definition goes through all that it is given.
    spelled, order = f"▁{text}".replace(" ", "▁"), mistral_order()
    parts = {spelled[start:end] for end in range(len(spelled) + 1) for start in range(end)}
    occur = {piece: order[piece][1] for piece in sorted(parts & order.keys(), key=order.__getitem__)}
    assert encode(cached_mistral(), [text]) == [reference.encode_characters(text, occur, mistral()[2], prefix=True)]
    ends = _core.split_text_reference(text, "cl100k").tolist()
    data = text.encode()
    ranks = small_ranks()
    wanted = [id for start, end in pairwise([0, *ends]) for id in reference.encode_bytes(data[start:end], ranks, None)]
    assert encode(cached_small(), [text]) == [wanted]


@cache
def mistral_order():
    """The place of each piece in the order of merging, and its id."""
    model, plain, _ = mistral()
    return {model.id_to_piece(i): (place, i) for place, i in enumerate(plain)}


@cache
def cached_mistral():
    return mistral_encoder(cache_bytes=4096)


@cache
def cached_small():
    return from_ranks(small_ranks(), "cl100k", cache_bytes=4096)


@pytest.mark.skipif(sys.platform != "linux", reason="pages are protected through Linux's libc")
def test_nothing_is_read_beyond_the_end_of_a_text_at_the_end_of_a_page():
    page = mmap.PAGESIZE
    memory = mmap.mmap(-1, 2 * page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(address + page), page, 0) == 0  # reading there ends the process
    whole = np.frombuffer(memory, np.uint8, count=page)
    rng = random.Random(3)
    tokens = {rank: token for token, rank in small_ranks().items()}
    try:
        for length in range(71):
            for alphabet in ("ab ", "é漢 ", "a", " \n", "1x!"):
                text = "".join(rng.choices(alphabet, k=length)).encode()[:length].decode(errors="ignore").encode()
                whole[page - len(text) :] = np.frombuffer(text, np.uint8)
                data = whole[page - len(text) :]
                ends = np.array([len(text) // 2, len(text)], np.int64) if text.isascii() else np.array([len(text)])
                for encoder in (cached_small(), forced_small("avx2"), forced_small("portable")):
                    ids, _ = encoder.encode_flat(
                        data, ends, bos=None, eos=None, narrow=False, special="plain", threads=1
                    )
                    assert b"".join(tokens[i] for i in ids.tolist()) == text
    finally:
        assert libc.mprotect(ctypes.c_void_p(address + page), page, 3) == 0


@cache
def forced_small(instructions):
    return from_ranks(small_ranks(), "cl100k", instructions=instructions)


def test_marks_widths_and_threads():
    rows = ["one two", "", "three"] * 2000
    plain = encode(cached_small(), rows)
    for threads in (1, 2, 0):
        marked = encode(cached_small(), rows, bos=1, eos=2, threads=threads)
        assert marked == [[1, *row, 2] for row in plain]
        assert encode(cached_small(), rows, eos=2, narrow=True, threads=threads) == [[*row, 2] for row in plain]
    ids, ends = cached_small().encode_flat(*flat([]), bos=1, eos=2, narrow=True, special="plain", threads=2)
    assert (ids.dtype, len(ids), len(ends)) == (np.uint16, 0, 0)
    with pytest.raises(TokenizerError, match="ids go up to 70000, which 16 bits cannot hold"):
        encode(cached_small(), rows, eos=70000, narrow=True)


def test_arrays_stay_as_they_are_while_buffers_are_used_again():
    rows = [["some words here"], ["other words there"], ["and more"]]
    kept = [
        cached_small().encode_flat(*flat(row), bos=None, eos=None, narrow=False, special="plain", threads=1)[0]
        for row in rows
    ]
    before = [ids.tolist() for ids in kept]
    for _ in range(50):
        encode(cached_small(), ["quite another text altogether"])
    assert [ids.tolist() for ids in kept] == before


def test_texts_that_are_not_utf8_are_named():
    with pytest.raises(TokenizerError, match=r"texts\[1\]: byte 2 is 0xff, which is not valid UTF-8"):
        encode(cached_small(), [b"fine", b"ab\xffc"])
    with pytest.raises(TokenizerError, match=r"texts\[0\]: byte 1 is 0xc3"):
        encode(cached_small(), ["aé".encode()[:2], "é".encode()[1:]])
    with pytest.raises(ValueError, match="rising ends"):
        cached_small().encode_flat(
            np.zeros(3, np.uint8), np.array([2, 1]), bos=None, eos=None, narrow=False, special="plain", threads=1
        )


def test_memory_does_not_grow_with_new_words():
    import psutil

    encoder = from_ranks(small_ranks(), "cl100k")
    rng = random.Random(5)
    data, ends = flat(["".join(rng.choices("abcdefghijklmnopqrstuvwxyz ", k=1 << 16)) for _ in range(64)])

    def run():
        encoder.encode_flat(data, ends, bos=None, eos=None, narrow=True, special="plain", threads=1)

    run()
    before = psutil.Process().memory_info().rss
    for turn in range(12):
        shifted = ((data - 97) % 26 + 97).astype(np.uint8) if turn == 0 else data
        data = np.where(shifted >= 97, (shifted - 97 + turn) % 26 + 97, shifted).astype(np.uint8)
        run()
    # Fifty megabytes of words that were never seen before, with a cache of at most 24 MiB that is partly filled by now.
    assert psutil.Process().memory_info().rss - before < 40 << 20


@pytest.mark.parametrize("special", ["plain", "parse", ["<a>"]])
def test_special_tokens_as_tiktoken_has_them(special):
    added = {"<a>": 5000, "<b>": 5001}
    encoder = from_ranks(small_ranks(), "cl100k", added=[(text, i, 1) for text, i in added.items()])
    home = tiktoken.Encoding(
        "ranks", pat_str=SPLITS["cl100k"]["patterns"][0], mergeable_ranks=small_ranks(), special_tokens=added
    )
    rows = ["x<a>y <b>", "<a><b><a>", "<a", "<<a>>  <b>  ", ""]
    allowed = {"plain": set(), "parse": set(added)}.get(str(special), {"<a>"})
    wanted = [home.encode(row, allowed_special=allowed, disallowed_special=()) for row in rows]
    assert encode(encoder, rows, special=special) == wanted
    assert [encoder.encode(row, special).tolist() for row in rows] == wanted


def test_decoding_goes_by_the_table():
    tokens = [b"a", "é".encode()[:1], "é".encode()[1:], b"", b" x", b""]
    decoder = _core.Decoder(*flat(tokens), missing=[5])
    assert decoder.decode([0, 1, 2, 3]) == "aé".encode()
    assert decoder.decode_text(np.array([1, 0], np.uint16)) == "\ufffda"
    data, ends = decoder.decode_flat(np.array([0, 4, 4, 0], np.uint32), np.array([2, 2, 4]))
    assert (data.tobytes(), ends.tolist()) == (b"a x xa", [3, 3, 6])
    with pytest.raises(TokenizerError, match=r"ids\[1\] is 6; expected 0 to 5"):
        decoder.decode([0, 6])
    with pytest.raises(TokenizerError, match=r"ids\[0\] is 5, which has no token"):
        decoder.decode([5])
    with pytest.raises(TokenizerError, match=r"row 1: decode: ids\[0\] is -1"):
        decoder.decode_flat(np.array([0, -1]), np.array([1, 2]))
    first = flat([b"a", b"", b"", b"", b"x", b""])
    assert _core.Decoder(*flat(tokens), first=first).decode([3, 4, 4]) == b"x x"
