"""Piecemill: the command line is what is timed; this script only reads the merges it saved."""

from protocol import merges_of_tokenizer_json, peer


def train(args):
    raise SystemExit("run_piecemill.py: timed through the `piecemill train` command, see tools.py")


peer(train, lambda out: merges_of_tokenizer_json(out / "tokenizer.json"))
