"""The guard: ends a run whose loss diverged, relative to chance.

A model that knows nothing has a loss of ln(V), V being the size of the vocabulary: 10.82 with 50,257 tokens. A fixed
limit below that ends healthy runs at their first step; so every limit here is measured from ln(V) or from what the run
itself has shown. Three things end a run:

- a loss or a gradient that is not a number, or infinite;
- a validation loss above ln(V) + 0.5 after the warm-up: worse than knowing nothing;
- a rise: `PATIENCE` losses in a row above the best level so far by more than the noise of the recent losses explains.

The level is the median of the last `WINDOW` losses, which start at chance. Up to nine bad batches in a row pass; a new
level does not. This module only handles numbers: no torch, no files.
"""

import math
import statistics
from collections import deque
from typing import Any

from piecemill.errors import Diverged
from piecemill.plans import option

WINDOW = 64
PATIENCE = 10
LEAST_RISE = 1.0
"Nats; below it, a rise can be data of another kind."
NOISE = 6.0
"A rise must also be this multiple of the spread of the recent losses."
VALIDATION_MARGIN = 0.5


class Guard:
    """Receives every loss in order, and raises `Diverged` with the reason when a run should end."""

    def __init__(self, vocab_size: int, *, warmup: int) -> None:
        self.chance = math.log(vocab_size)
        self.warmup = warmup
        self.best = self.chance
        self.above = 0
        self._recent: deque[float] = deque([self.chance] * WINDOW, maxlen=WINDOW)

    def train(self, step: int, loss: float, norm: float) -> None:
        """One step's loss and gradient norm; steps count from 1."""
        if not (math.isfinite(loss) and math.isfinite(norm)):
            what = f"loss {loss}" if not math.isfinite(loss) else f"a gradient of norm {norm}"
            raise Diverged(f"step {step:,}: {what}. {self._way_out()}")
        limit = self.limit()
        if loss > limit:
            self.above += 1
            if self.above >= PATIENCE:
                raise Diverged(
                    f"step {step:,}: {PATIENCE} losses in a row above {limit:.2f}, the last {loss:.2f}; the best level "
                    f"so far was {self.best:.2f}, and chance is ln(V) = {self.chance:.2f}. {self._way_out()}"
                )
            return  # not a part of the level: it would pull up what it is compared with
        self.above = 0
        self._recent.append(loss)
        self.best = min(self.best, statistics.median(self._recent))

    def validation(self, step: int, loss: float) -> None:
        """A validation after `step` steps."""
        if not math.isfinite(loss):
            raise Diverged(f"step {step:,}: validation loss {loss}. {self._way_out()}")
        if step >= self.warmup and loss > self.chance + VALIDATION_MARGIN:
            raise Diverged(
                f"step {step:,}: validation loss {loss:.2f}, worse than knowing nothing, ln(V) + {VALIDATION_MARGIN} = "
                f"{self.chance + VALIDATION_MARGIN:.2f}, after {self.warmup:,} steps of warm-up. {self._way_out()}"
            )

    def limit(self) -> float:
        """A loss above this is not explained by the best level and the noise around the recent one."""
        level = statistics.median(self._recent)
        spread = 1.4826 * statistics.median(abs(loss - level) for loss in self._recent)
        return self.best + max(LEAST_RISE, NOISE * spread)

    def state_dict(self) -> dict[str, Any]:
        """State that a resumed run needs to make the same decisions."""
        return {"best": self.best, "above": self.above, "recent": list(self._recent)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from `state`."""
        self.best, self.above = state["best"], state["above"]
        self._recent = deque(state["recent"], maxlen=WINDOW)

    def _way_out(self) -> str:
        lower, longer, out = option("lr"), option("warmup"), option("out")
        return f"The run has diverged: lower {lower} or raise {longer}, and start in another {out}."
