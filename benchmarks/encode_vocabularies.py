"""The vocabularies of `encode.py`, and the forms in which each library wants them. Start with `vocabulary`.

`cache/vocabularies/NAME` has ranks.tiktoken (tokens in base64 and their ranks), tokenizer.json (Hugging Face and
compatible readers) or tokenizer.model (SentencePiece), and about.json. Real vocabularies are not part of the project:
they come from a folder beside the checkout (`--vocabs-from`), and one that is not there is skipped with that reason.
The BERT one is trained here. Special tokens are left out of the files: not every library can ignore them.
"""

import hashlib
import json
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path

from corpus import CACHE, HERE, corpus

FOLDER = CACHE / "vocabularies"
SHARED = HERE.parent.parent / "shared" / "vocabs"
MAKER = HERE / "peers" / "make_vocabulary.py"

# Possessive where that is faster for tiktoken, as in its own patterns; the words are those of the published ones. Only
# `\s++$` of tiktoken's newer patterns is left out: it means another thing to Oniguruma.
_CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_END = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTION}?|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTION}?"
    rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*{_END}"
)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """One vocabulary, where it comes from, and who says what is right."""

    name: str
    kind: str  # ranks, json, sentencepiece, trained or regex
    home: str  # the library whose ids are the right ones
    source: str = ""  # file in the folder of vocabularies
    split: str = ""  # what Piecemill calls its pretokenizer; of a regex the regex
    pattern: str = ""  # the pretokenizer as tiktoken spells it
    plain: str = ""  # the same without possessive quantifiers, as tokenizer.json has it; empty if it is the same
    gigatoken: str = ""  # what gigatoken calls it; empty: it loads tokenizer.json (it panics on Qwen's ranks)

    @property
    def folder(self) -> Path:
        return FOLDER / self.name

    @property
    def about(self) -> dict:
        return json.loads((self.folder / "about.json").read_text())


_GPT2 = "gpt2/tokenizer.json"
VOCABULARIES = {
    made.name: made
    for made in [
        Vocabulary(
            *("gpt2", "json", "tokenizers", _GPT2, "gpt2"),
            pattern=r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s+(?!\S)|\s+",
            plain=r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
            gigatoken="gpt2",
        ),
        Vocabulary(
            *("cl100k", "ranks", "tiktoken", "cl100k_base.tiktoken", "cl100k", _CL100K),
            plain=rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*{_END}",
            gigatoken="cl100k",
        ),
        Vocabulary("o200k", "ranks", "tiktoken", "o200k_base.tiktoken", "o200k", _O200K, gigatoken="o200k"),
        Vocabulary(
            *("qwen3.5", "ranks", "tiktoken", "qwen3_6.tiktoken.gz", "qwen3.5"),
            pattern=rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
            rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*{_END}",
        ),
        Vocabulary("deepseek-v3", "json", "tokenizers", "deepseek_v3.tokenizer.json.gz"),
        Vocabulary("mistral-v1", "sentencepiece", "sentencepiece", "mistral_v1.model"),
        Vocabulary("bert", "trained", "tokenizers"),
        # A regex of one's own over GPT-2's merges: digits in threes from the right and nothing else, as in the second
        # stage of SuperBPE, so that words are as long as the text between two numbers; and a plain one.
        Vocabulary("regex-superbpe", "regex", "tokenizers", _GPT2, r"(?=(\d{3})+(?!\d))"),
        Vocabulary("regex-digits", "regex", "tokenizers", _GPT2, r"\d{1,3}| ?\w+| ?[^\w\s]+|\s+"),
    ]
}
NAMED = [name for name, made in VOCABULARIES.items() if made.kind != "regex"]


def vocabulary(name: str, python: Path, source: Path = SHARED) -> str:
    """Make the files of one vocabulary if they are not there; returns the reason if that is impossible."""
    wanted = VOCABULARIES[name]
    file = source / wanted.source if wanted.source else corpus("english-40mb").jsonl
    if not file.exists():
        return f"{wanted.source} is not in the folder of vocabularies"
    made_from = hashlib.sha256(file.read_bytes() + MAKER.read_bytes() + repr(wanted).encode()).hexdigest()
    if (wanted.folder / "about.json").exists() and wanted.about["made_from"] == made_from:
        return ""
    print(f"vocab   making {name}")
    wanted.folder.mkdir(parents=True, exist_ok=True)
    about = asdict(wanted) | {"made_from": made_from, "plain": wanted.plain or wanted.pattern}
    command = [str(python), str(MAKER), str(file), str(wanted.folder), json.dumps(about)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stderr.strip()[-300:] if done.returncode else ""
