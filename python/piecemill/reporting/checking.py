"""`check`: is everything that Piecemill wrote under a path as it was written?"""

import json
import os
from os import PathLike
from pathlib import Path

from piecemill.errors import PiecemillError, PlanError, PretrainError
from piecemill.files import as_path, regular
from piecemill.objects import is_object_url
from piecemill.plans import did_you_mean, option
from piecemill.reporting.describing import KINDS, describe, kind_of
from piecemill.shards.check import SAMPLE, Findings, check_shards


@did_you_mean
def check(path: str | PathLike[str], *, sample: int = SAMPLE) -> Findings:
    """Compare what is at `path` with what was written: shards (also in an object store), a tokenizer, actions, a run.

    `sample` is for shards: the documents of each split to decode and compare with the hash of their text. The result's
    `sound` says whether all is well; its `problems` say what is not, and where.
    """
    if not isinstance(sample, int) or sample < 0:
        raise PlanError(f"{option('sample', sample)}: expected a number of documents, or 0 for none.")
    where = as_path(path)
    kind = "shards" if is_object_url(where) else kind_of(where)
    if kind == "shards":
        return check_shards(where, sample=sample)
    found = Findings(where, kind=KINDS[kind or "tokenizer"])  # a file, or an error: `describe` says what was expected
    try:
        if kind == "action_shards":
            from piecemill.actions.shards import open_action_shards

            for problem in open_action_shards(Path(where)).check():
                found.add("", f"{where}/{problem}")
        elif kind == "tokenizer":
            from piecemill.tokenizers import load_tokenizer

            load_tokenizer(where).encode("")  # loads the engine
        else:
            describe(where)
            if kind == "run":
                _check_checkpoints(Path(where), found)
    except (PiecemillError, OSError, ValueError) as error:
        found.add("", str(error))
    return found


def _check_checkpoints(path: Path, found: Findings) -> None:
    from piecemill.pretraining.folder import OLDER, check_tensors, checkpoints

    for folder in checkpoints(path):
        name = folder.relative_to(path).as_posix()
        try:
            json.loads(regular(folder / "state.json").read_bytes())
            json.loads(regular(folder / "config.json").read_bytes())
            for file in ("model.safetensors", "optimizer.safetensors"):
                # 8 bytes: the length of a JSON header; then the tensors.
                with open(regular(folder / file), "rb") as opened:
                    header = json.loads(opened.read(int.from_bytes(opened.read(8), "little")))
                    ends = [each["data_offsets"][1] for key, each in header.items() if key != "__metadata__"]
                    if opened.tell() + max(ends, default=0) != os.path.getsize(folder / file):
                        found.add(f"{name}/{file}", f"cut short. {OLDER}")
                        continue
                check_tensors(folder, file)
        except PretrainError as error:
            found.add("", str(error))
        except (OSError, ValueError) as error:
            found.add(name, f"cannot be read ({error}). {OLDER}")
