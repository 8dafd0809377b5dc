"""The libraries that encode, with the same three calls: one document, a batch, and the id of a token."""

import json
from itertools import pairwise
from pathlib import Path


class Tokenizers:
    """Hugging Face `tokenizers`, the release or the candidate of 1.0."""

    def __init__(self, model):
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(model)
        # Without offsets, which nobody asks for here; 1.0 has one call, which makes none.
        self._batch = getattr(self._tokenizer, "encode_batch_fast", self._tokenizer.encode_batch)

    def id_of(self, token):
        return self.one(token)[0]

    def one(self, text):
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def batch(self, texts, threads):
        return [encoding.ids for encoding in self._batch(texts, add_special_tokens=False)]


class Gigatoken:
    """gigatoken; a batch comes back as one buffer, which is cut into views of it."""

    def __init__(self, model):
        import gigatoken

        self._json = Path(model).read_text(encoding="utf-8")
        self._tokenizer = gigatoken.Tokenizer.from_json(self._json)

    def id_of(self, token):
        return json.loads(self._json)["model"]["vocab"][token]

    def one(self, text):
        return self._tokenizer.encode(text)

    def batch(self, texts, threads):
        import numpy as np

        if len(texts) == 1:  # the array of a batch takes 0.2 ms to make
            return [self._tokenizer.encode(texts[0])]
        layout = self._tokenizer.encode_batch(texts).layout
        offsets, ids = np.asarray(layout.offsets.data), np.asarray(layout.content.data)
        return [ids[start:end] for start, end in pairwise(offsets.tolist())]


class SentencePiece:
    """SentencePiece, with a model of its own: its ids are compared with its own only."""

    def __init__(self, model):
        import sentencepiece

        self._tokenizer = sentencepiece.SentencePieceProcessor(model_file=model)

    def one(self, text):
        return self._tokenizer.encode(text)

    def batch(self, texts, threads):
        return self._tokenizer.encode(texts, num_threads=threads)


LIBRARIES = {"tokenizers": Tokenizers, "gigatoken": Gigatoken, "sentencepiece": SentencePiece}
