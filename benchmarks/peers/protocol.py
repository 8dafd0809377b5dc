"""What every peer script has in common: how it is called, how it reads the corpus, how it shows its merges.

    python peers/run_X.py train  --corpus FOLDER_OR_JSONL --split gpt2|none --vocab N --threads N --out FOLDER
    python peers/run_X.py merges --out FOLDER

`train` is the process that is timed: it reads the corpus, trains, saves in the tool's own format, and ends, as
a user's script would. `merges` is not timed: it turns what was saved into `merges.json`, a list of
[left, right] in hex, or of [token] where the tool does not say which parts made it, so that answers can be
compared.

Start with `peer`; a script gives it a function for each.
"""

import argparse
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
# A pattern that takes any document whole, for the tools that must have one.
WHOLE = r"(?s).+"

Merges = list[tuple[bytes, ...]]


def peer(train: Callable[[argparse.Namespace], None], merges: Callable[[Path], Merges]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("do", choices=["train", "merges"])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--split", choices=["gpt2", "none"])
    parser.add_argument("--vocab", type=int)
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()
    if args.do == "train":
        args.out.mkdir(parents=True, exist_ok=True)
        train(args)
    else:
        pairs = [[part.hex() for part in merge] for merge in merges(args.out)]
        (args.out / "merges.json").write_text(json.dumps(pairs))


def files(corpus: Path) -> list[Path]:
    return sorted(path for path in corpus.rglob("*") if path.is_file())


def documents(corpus: Path) -> Iterator[str]:
    """One string per document. Read as bytes: text mode would turn \\r\\n into \\n."""
    if corpus.is_dir():
        for path in files(corpus):
            yield path.read_bytes().decode()
    else:
        with corpus.open("rb") as lines:
            for line in lines:
                yield json.loads(line)["text"]


def unspaced(text: str) -> str:
    """The text with other characters for white space, one for one: a single word to tools that always cut there."""
    return text.translate(_UNSPACED)


_UNSPACED = {number: 0xE000 + at for at, number in enumerate(n for n in range(0x3001) if chr(n).isspace())}


def save_tokens(tokens: Iterable[bytes], path: Path) -> None:
    """Tokens in order, in hex: for tools that leave saving to the user."""
    path.write_text("\n".join(token.hex() for token in tokens))


def learned_tokens(path: Path) -> Merges:
    """The learned tokens of `save_tokens`, in order.

    Which two parts made a token is not known of a tool that keeps ranks only. Working it out from the earlier
    tokens was tried and dropped: fast-bpe-rs learns tokens that its own earlier tokens do not build.
    """
    tokens = [bytes.fromhex(line) for line in path.read_text().split("\n")]
    return [(token,) for token in tokens if len(token) > 1]


def byte_of_letter() -> dict[str, int]:
    """GPT-2's printable stand-ins for bytes, as they appear in `tokenizer.json` and `merges.txt`."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


def merges_of_tokenizer_json(path: Path) -> Merges:
    letters = byte_of_letter()
    pairs = json.loads(path.read_text(encoding="utf-8"))["model"]["merges"]
    # Written as ["a", "b"] today and as "a b" by older versions; the stand-in letters contain no space.
    pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in pairs]
    return [(bytes(letters[c] for c in left), bytes(letters[c] for c in right)) for left, right in pairs]
