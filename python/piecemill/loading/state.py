"""What a state must agree in before a loader goes on from it."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from piecemill.errors import LoadError

FORMAT = 1


class Steps(Protocol):
    """How samples are dealt out over steps and ranks."""

    @property
    def batch_size(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    @property
    def global_batch(self) -> int: ...
    @property
    def epochs(self) -> int | None: ...


def samples_of(
    state: Mapping[str, Any],
    identity: Mapping[str, Any],
    plan: Steps,
    last: int | None,
    other: Mapping[str, Callable[[Any, Any], str]],
    *,
    change_batch: bool = False,
) -> int:
    """How many samples had been given out when `state` was taken; LoadError if it does not fit.

    `identity` is what must be the same, `last` the number of samples in all epochs, and `other` what to say of the
    state's value and ours where a field that no option sets is not the same.
    """
    if not isinstance(state, Mapping):
        raise LoadError(
            f"state: found {type(state).__name__}, expected the dict that `state_dict()` of a loader gives."
        )
    if state.get("format") != FORMAT:
        raise LoadError(f"state: format {state.get('format')!r}; expected {FORMAT}, from `state_dict()` of a loader.")
    for name, mine in identity.items():
        theirs = state.get(name)
        if theirs == mine or (change_batch and name == "global_batch"):
            continue
        if name in other:
            raise LoadError(f"state: {other[name](theirs, mine)}")
        if name == "global_batch":
            raise LoadError(
                f"state: taken with {theirs} samples a step over all ranks, asked for batch_size={plan.batch_size} * "
                f"world_size={plan.world_size} = {mine}. Choose batch_size so that it is {theirs} again; "
                "to go on with another one, load_state_dict(state, change_batch=True)."
            )
        raise LoadError(f"state: taken with {name}={theirs!r}, asked for {mine!r}. Pass {name}={theirs!r}.")
    samples, offset = state.get("samples"), state.get("offset", 0)
    if type(samples) is not int or type(offset) is not int or not 0 <= offset <= samples < 1 << 62:
        raise LoadError(f"state: samples={samples!r}, offset={offset!r}; expected numbers from `state_dict()`.")
    if not change_batch and (samples - offset) % plan.global_batch and samples != last:
        raise LoadError(f"state: samples={samples!r}; expected a multiple of {plan.global_batch}.")
    if last is not None and samples > last:
        raise LoadError(
            f"state: {samples:,} samples were given out, and epochs={plan.epochs} has {last:,}. Pass more epochs."
        )
    return samples
