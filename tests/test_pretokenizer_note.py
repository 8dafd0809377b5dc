"""A regex of one's own is read by fancy-regex in training, by Oniguruma afterwards: where they differ, it is said."""

import json

import pytest
import tokenizers

import piecemill as pm
from command import piecemill
from hf import needs_own_regex
from piecemill._core import split_text
from piecemill.errors import PretokenizerError
from piecemill.tokenizers import Tokenizer
from piecemill.tokenizers.engines.tokenizers import cuts_otherwise
from vocabularies import CUSTOM, SPLITS

pytestmark = needs_own_regex

NOT_COMPILED = r"(?s:.){1,8}"
# cl100k as tiktoken publishes it now. To Oniguruma `{1,3}+` is no possessive quantifier but one more repetition.
POSSESSIVE = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)
ALIKE = r"[\p{L}\p{M}\p{N}_]+|[^\p{L}\p{M}\p{N}_]{1,3}|[\s\S]"
TEXT = "in 1234567 words, and 7654321 more\n" * 30


@pytest.mark.parametrize("pretokenizer", [*SPLITS, CUSTOM, ALIKE])
def test_what_is_cut_alike_gets_no_note(pretokenizer):
    assert cuts_otherwise(pretokenizer) is None


def test_a_regex_that_oniguruma_cannot_compile_is_told_with_what_follows():
    note = cuts_otherwise(NOT_COMPILED)
    assert note.startswith(f"pretokenizer {NOT_COMPILED!r}: HF tokenizers cannot compile it (Oniguruma error: ")
    assert "tokenizer.json cannot be used by tokenizers or transformers" in note
    assert "ranks.tiktoken can" in note
    assert r"[\s\S] for any character" in note


def test_a_regex_that_is_cut_elsewhere_is_told_with_both_cuts():
    note = cuts_otherwise(POSSESSIVE)
    assert "training cuts a text as '123' '456' '789' ..., HF tokenizers as '123456...' ' ' '1' ..." in note
    assert "no possessive quantifiers, no $" in note
    cutter = tokenizers.pre_tokenizers.Split(tokenizers.Regex(POSSESSIVE), "isolated")
    assert [piece for piece, _ in cutter.pre_tokenize_str("123456")] == ["123456"]
    assert split_text("123456", POSSESSIVE).tolist() == [3, 6]


def test_a_regex_on_which_oniguruma_gives_up_is_told():
    assert "HF tokenizers not at all: it gives up" in cuts_otherwise(r"(a+)+c|[\s\S]")


def test_a_regex_that_training_gives_up_on_is_left_to_training():
    # Whether a document is like the nasty string on which fancy-regex gives up is not known before.
    with pytest.raises(PretokenizerError):
        split_text("ab" * 400, r"(a|b|ab)*\1c|a+")
    assert cuts_otherwise(r"(a|b|ab)*\1c|a+") is None
    with pytest.raises(PretokenizerError, match="does not compile"):
        cuts_otherwise("(unclosed")


@pytest.mark.parametrize(("pretokenizer", "noted"), [(NOT_COMPILED, True), (POSSESSIVE, True), (CUSTOM, False)])
def test_the_command_says_so_before_and_after_and_training_json_keeps_it(tmp_path, pretokenizer, noted):
    (tmp_path / "a.txt").write_text(TEXT)
    arguments = ["train", tmp_path / "a.txt", "--vocab-size", 280, "--pretokenizer", pretokenizer]
    done = piecemill(*arguments, "--out", tmp_path / "tok")
    assert done.returncode == 0, done.stderr
    line = f"note: {cuts_otherwise(pretokenizer)}"
    assert (done.stderr.splitlines()[0] == line) == noted  # the first line: before the work
    assert (line in done.stdout.splitlines()) == noted
    stored = json.loads((tmp_path / "tok" / "training.json").read_text(encoding="utf-8"))
    assert stored["pretokenizer_note"] == cuts_otherwise(pretokenizer)
    assert piecemill(*arguments, "--out", tmp_path / "quiet", "--quiet").stderr == ""


def test_what_cannot_be_compiled_can_still_be_trained_and_the_ranks_saved(tmp_path):
    tok = pm.train_bpe([TEXT], vocab_size=400, pretokenizer=NOT_COMPILED)
    tok.save(tmp_path / "tok")
    assert (tmp_path / "tok" / "ranks.tiktoken").stat().st_size > 0
    assert tok.decode(tok.encode(TEXT)) == TEXT
    with pytest.raises(PretokenizerError, match="HF tokenizers cannot compile it"):
        Tokenizer(tok.model, engine="tokenizers").encode("text")
