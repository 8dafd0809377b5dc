"""The files of one vocabulary, in every form that can be made of it: `encode_vocabularies.py` runs this.

    python peers/make_vocabulary.py SOURCE FOLDER ABOUT

ABOUT is JSON: name, kind, split, pattern (see `encode_vocabularies.Vocabulary`). It is written into FOLDER last, with
the hash of the files that were made, so that a folder that has it is complete.
"""

import base64
import gzip
import hashlib
import json
import sys
from pathlib import Path

from worker import byte_letters

BERT_SIZE = 30_522


def main(source, folder, about):
    source, folder, about = Path(source), Path(folder), json.loads(about)
    {"ranks": from_ranks, "json": from_json, "regex": from_regex, "sentencepiece": from_model, "trained": train}[
        about["kind"]
    ](source, folder, about)
    content = b"".join(path.read_bytes() for path in sorted(folder.iterdir()) if path.name != "about.json")
    about["sha256"] = hashlib.sha256(content).hexdigest()
    (folder / "about.json").write_text(json.dumps(about, indent=1))


def from_ranks(source, folder, about):
    content = opened(source)
    (folder / "ranks.tiktoken").write_bytes(content)
    ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in content.splitlines())}
    spelled = {token: "".join(BYTE_LEVEL[byte] for byte in token) for token in ranks}
    merges = []
    for token in sorted((token for token in ranks if len(token) > 1), key=ranks.get):
        parts = merged(token, ranks)
        # A token that merging does not reach has no merge; `ignore_merges` finds it as a whole word, as tiktoken does.
        if len(parts) == 2:
            merges.append([spelled[part] for part in parts])
    write_json(
        folder,
        {
            **EMPTY,
            "pre_tokenizer": split_then_bytes(about["plain"]),
            "decoder": BYTES,
            "model": {
                **BPE,
                "ignore_merges": True,
                "vocab": {spelled[token]: rank for token, rank in ranks.items()},
                "merges": merges,
            },
        },
    )


def from_json(source, folder, about):
    data = json.loads(opened(source))
    data["added_tokens"] = []  # tokens of a text alone; without the special ones the ids of the others would have gaps
    write_json(folder, data)
    if about["pattern"]:
        byte_of = {character: byte for byte, character in BYTE_LEVEL.items()}
        with (folder / "ranks.tiktoken").open("wb") as lines:
            for token, rank in sorted(data["model"]["vocab"].items(), key=lambda item: item[1]):
                if token != "<|endoftext|>":
                    lines.write(base64.b64encode(bytes(byte_of[character] for character in token)))
                    lines.write(b" %d\n" % rank)


def from_regex(source, folder, about):
    data = json.loads(opened(source))
    data |= {"added_tokens": [], "pre_tokenizer": split_then_bytes(about["split"])}
    write_json(folder, data)


def from_model(source, folder, about):
    """As transformers converts a Llama-style model: of all pairs that make one piece, the longest left part first.

    sentencepiece takes the leftmost of them instead, so long runs of spaces come out differently.
    """
    import sentencepiece

    (folder / "tokenizer.model").write_bytes(source.read_bytes())
    model = sentencepiece.SentencePieceProcessor(model_file=str(source))
    pieces = [model.id_to_piece(i) for i in range(len(model))]
    scores = {piece: model.get_score(i) for i, piece in enumerate(pieces)}
    vocab = {piece: i for i, piece in enumerate(pieces)}
    plain = {
        piece
        for i, piece in enumerate(pieces)
        if not (model.is_control(i) or model.is_unknown(i) or model.is_byte(i) or model.is_unused(i))
    }
    merges = []
    for piece in plain:
        pairs = [(piece[:i], piece[i:]) for i in range(1, len(piece))]
        pairs = [(left, right) for left, right in pairs if left in plain and right in plain]
        merges += [(-scores[piece], -len(left), vocab[left], left, right) for left, right in pairs]
    unknown = next(piece for i, piece in enumerate(pieces) if model.is_unknown(i))
    write_json(
        folder,
        {
            **EMPTY,
            "normalizer": {
                "type": "Sequence",
                "normalizers": [
                    {"type": "Prepend", "prepend": "\u2581"},
                    {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
                ],
            },
            "decoder": {
                "type": "Sequence",
                "decoders": [
                    {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
                    {"type": "ByteFallback"},
                    {"type": "Fuse"},
                    {"type": "Strip", "content": " ", "start": 1, "stop": 0},
                ],
            },
            "model": {
                **BPE,
                "unk_token": unknown,
                "fuse_unk": True,
                "byte_fallback": True,
                "ignore_merges": False,
                "vocab": vocab,
                "merges": [[left, right] for *_, left, right in sorted(merges)],
            },
        },
    )


def train(source, folder, about):
    """BERT's pipeline, uncased."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=BERT_SIZE, special_tokens=special, show_progress=False)
    with source.open("rb") as lines:
        tokenizer.train_from_iterator((json.loads(line)["text"] for line in lines), trainer)
    data = json.loads(tokenizer.to_str())
    data["added_tokens"] = []
    write_json(folder, data)


def opened(path):
    content = path.read_bytes()
    return gzip.decompress(content) if path.suffix == ".gz" else content


def merged(token, ranks):
    """The parts of a token before its last merge."""
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 2:
        candidates = [(ranks.get(parts[i] + parts[i + 1], len(ranks)), i) for i in range(len(parts) - 1)]
        rank, i = min(candidates)
        if rank == len(ranks):
            break
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return parts


BYTE_LEVEL = byte_letters()
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
EMPTY = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [],
    "normalizer": None,
    "pre_tokenizer": None,
    "post_processor": None,
}
BPE = {
    "type": "BPE",
    "dropout": None,
    "unk_token": None,
    "continuing_subword_prefix": None,
    "end_of_word_suffix": None,
    "fuse_unk": False,
    "byte_fallback": False,
}


def split_then_bytes(pattern):
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [split, BYTES]}


def write_json(folder, data):
    (folder / "tokenizer.json").write_text(json.dumps(data, ensure_ascii=False), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
