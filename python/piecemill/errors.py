"""Every error a user can meet. A message says where, what, what was expected and what to do."""


class PiecemillError(Exception):
    """Anything that Piecemill refuses to do, with the reason."""


class SourceError(PiecemillError):
    """A file, line, row or document that could not be read."""


class PretokenizerError(PiecemillError):
    """A pretokenizer pattern that cannot be compiled or applied."""


class PlanError(PiecemillError):
    """An option, or a combination of options, that cannot work."""


class TrainingError(PiecemillError):
    """Training that could not go on."""


class TokenizerError(PiecemillError):
    """A tokenizer that could not be loaded, saved or used."""


class ShardError(PiecemillError):
    """A prepared folder, or a file in it, that is not what it should be."""


class StoreError(PiecemillError):
    """An object store that refused a request, or could not be reached."""


class LoadError(PiecemillError):
    """Batches that cannot be made: of this data, with this plan, or from this state."""


class PretrainError(PiecemillError):
    """A pretraining run that cannot begin or go on."""


class Diverged(PretrainError):
    """A pretraining run whose loss diverged; says at which step and how that was detected."""


class ExecutorError(PiecemillError):
    """Tasks that could not be run: no cluster, or workers that were lost again and again."""


class Stopped(KeyboardInterrupt):
    """Ctrl-C during work that can be taken up again; says how."""
