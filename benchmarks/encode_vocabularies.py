"""The vocabularies of `encode.py`, and the forms in which each library wants them. Start with `vocabulary`.

`cache/vocabs/NAME` has ranks.tiktoken (tokens in base64 and their ranks), tokenizer.json (Hugging Face and compatible
readers) or tokenizer.model (SentencePiece), and about.json. Real vocabularies are not part of the project: they come
from a folder beside the checkout (`SHARED`), and one that is not there is skipped with that reason. The BERT one
is trained here (uncased). Special tokens are left out of the files: not every library can ignore them.
"""

import base64
import gzip
import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace

from corpus import CACHE, corpus
from protocol import SHARED
from train_peers import Tokenizers

FOLDER = CACHE / "vocabs"
BERT_SIZE, SPECIAL = 30_522, ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """One vocabulary, where it comes from, and who says what is right."""

    name: str
    kind: str  # ranks, json, sentencepiece, trained or regex
    home: str  # the library whose ids are the right ones
    source: str = ""  # file in the folder of vocabularies
    split: str = ""  # what Piecemill calls its pretokenizer; of a regex the regex
    pattern: str = ""  # of tiktoken, possessive as its own where that is faster for it; empty: that of Piecemill
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
            r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s+(?!\S)|\s+",
            gigatoken="gpt2",
        ),
        Vocabulary(
            *("cl100k", "ranks", "tiktoken", "cl100k_base.tiktoken", "cl100k"),
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s*[\r\n]+"
            r"|\s+(?!\S)|\s+",
            gigatoken="cl100k",
        ),
        Vocabulary("o200k", "ranks", "tiktoken", "o200k_base.tiktoken", "o200k", gigatoken="o200k"),
        Vocabulary("qwen3.5", "ranks", "tiktoken", "qwen3_6.tiktoken.gz", "qwen3.5"),
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


def vocabulary(name: str, source: Path = SHARED / "vocabs") -> str:
    """Make the files of one vocabulary if they are not there; returns the reason if that is impossible."""
    from piecemill.tokenizers.pretokenizers import PATTERNS

    wanted = VOCABULARIES[name]
    file = source / wanted.source if wanted.source else corpus("english-40mb").jsonl
    if not file.exists():
        return f"{wanted.source} is not in the folder of vocabularies"
    made_from = hashlib.sha256(file.read_bytes() + repr(wanted).encode()).hexdigest()
    if (wanted.folder / "about.json").exists() and wanted.about["made_from"] == made_from:
        return ""
    print(f"vocab   making {name}")
    wanted.folder.mkdir(parents=True, exist_ok=True)
    make(wanted, file, wanted.folder)
    content = b"".join(path.read_bytes() for path in sorted(wanted.folder.iterdir()) if path.name != "about.json")
    about = asdict(wanted) | {"pattern": wanted.pattern or PATTERNS.get(wanted.split, "")}
    about |= {"made_from": made_from, "sha256": hashlib.sha256(content).hexdigest()}
    (wanted.folder / "about.json").write_text(json.dumps(about, indent=1))  # last: a folder that has it is complete
    return ""


def make(wanted: Vocabulary, source: Path, folder: Path) -> None:
    """Every form that can be made of it."""
    from piecemill.tokenizers.models.byte_level import bytes_of
    from piecemill.tokenizers.models.writing import pre_tokenizer

    content = gzip.decompress(source.read_bytes()) if source.suffix == ".gz" else source.read_bytes()
    if wanted.kind == "ranks":
        (folder / "ranks.tiktoken").write_bytes(content)
        data = from_ranks(folder / "ranks.tiktoken", wanted.split)
    elif wanted.kind == "sentencepiece":
        (folder / "tokenizer.model").write_bytes(content)
        data = json.loads(from_model(source).to_str())
    elif wanted.kind == "trained":
        Tokenizers().train_wordpiece(SimpleNamespace(corpus=source, vocab=BERT_SIZE, special=SPECIAL, out=folder))
        data = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    else:
        data = json.loads(content)
    data["added_tokens"] = []  # tokens of a text alone; without the special ones the ids of the others would have gaps
    if wanted.kind == "regex":
        data["pre_tokenizer"] = pre_tokenizer(wanted.split)
    if wanted.kind == "json" and wanted.pattern:
        ranks = sorted((rank, token) for token, rank in data["model"]["vocab"].items() if token != "<|endoftext|>")
        lines = [(base64.b64encode(bytes_of(token)), rank) for rank, token in ranks]
        (folder / "ranks.tiktoken").write_bytes(b"".join(b"%s %d\n" % line for line in lines))
    (folder / "tokenizer.json").write_text(json.dumps(data, ensure_ascii=False), encoding="utf-8")


def from_ranks(path, split):
    """As Piecemill reads them, spelled as HF does; every run compares the ids with tiktoken's."""
    from tokenizers import Tokenizer

    from piecemill import load_tokenizer

    model = load_tokenizer(path, pretokenizer=split, special_tokens={}).model.with_special([])
    data = json.loads(Tokenizer.from_str(json.dumps(model.data)).to_str())
    return data | {"decoder": data["pre_tokenizer"]["pretokenizers"][1]}


def from_model(source):
    """As transformers converts a Llama-style model: of all pairs that make one piece, the longest left part first.

    sentencepiece takes the leftmost of them instead, so long runs of spaces come out differently.
    """
    import sentencepiece
    from tokenizers import Tokenizer, decoders, models, normalizers

    model = sentencepiece.SentencePieceProcessor(model_file=str(source))
    vocab = {model.id_to_piece(i): i for i in range(len(model))}
    no_text = (model.is_control, model.is_unknown, model.is_byte, model.is_unused)
    plain = {piece: model.get_score(i) for piece, i in vocab.items() if not any(test(i) for test in no_text)}
    merges = []
    for piece, score in plain.items():
        pairs = [(piece[:i], piece[i:]) for i in range(1, len(piece))]
        pairs = [(left, right) for left, right in pairs if left in plain and right in plain]
        merges += [(-score, -len(left), vocab[left], left, right) for left, right in pairs]
    pairs = [(left, right) for *_, left, right in sorted(merges)]
    unknown = next(piece for piece, i in vocab.items() if model.is_unknown(i))
    tokenizer = Tokenizer(models.BPE(vocab, pairs, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    space = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(space)
    return tokenizer
