"""The curve of a run: losses over tokens, with chance and unigram entropy as lines.

python -m piecemill.pretraining.curve RUN      draws curve.png and curve.svg again, from metrics.jsonl alone
"""

import sys
from pathlib import Path
from statistics import fmean

from piecemill.errors import PlanError
from piecemill.files import new_file
from piecemill.plans import option
from piecemill.pretraining.folder import PLAN, read_metrics, read_record

PNG, SVG = "curve.png", "curve.svg"
_SMOOTH = 50


def require_matplotlib() -> None:
    """Raise an error if matplotlib is missing: before the training, not after it."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise PlanError(
            f"curve: matplotlib is not installed. pip install 'piecemill[pretrain]', or pass {option('curve', False)}; "
            "the curve can be drawn later with python -m piecemill.pretraining.curve RUN."
        ) from error


def draw(run: Path) -> tuple[Path, Path]:
    """Draw what `run` has recorded so far."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    plan = read_record(run, PLAN)
    records = list(read_metrics(run))
    train = [record for record in records if record["kind"] == "train" and isinstance(record["loss"], float)]
    validation = [record for record in records if record["kind"] == "val" and isinstance(record["loss"], float)]
    most = max((record["tokens"] for record in train), default=1)
    scale, unit = (1e6, "million") if most >= 2e6 else (1e3, "thousand")

    # Names in the SVG depend on the content alone, and text stays text.
    with rc_context({"svg.hashsalt": "piecemill", "svg.fonttype": "none"}):
        figure = Figure(figsize=(8, 4.5), layout="constrained")
        axes = figure.add_subplot()
        tokens = [record["tokens"] / scale for record in train]
        losses = [record["loss"] for record in train]
        axes.plot(tokens, losses, color="#9db8d6", linewidth=0.8, label="training, each step")
        if len(losses) > 2 * _SMOOTH:
            means = [fmean(losses[at : at + _SMOOTH]) for at in range(len(losses) - _SMOOTH + 1)]
            axes.plot(tokens[_SMOOTH - 1 :], means, color="#1f5fa8", label=f"mean of {_SMOOTH} steps")
        if validation:
            axes.plot(
                [record["tokens"] / scale for record in validation],
                [record["loss"] for record in validation],
                color="#c2410c",
                marker="o",
                markersize=4,
                label=f"validation, last {validation[-1]['loss']:.3f}",
            )
        chance, unigram = plan["chance"], plan["unigram_entropy"]
        axes.axhline(chance, color="#444444", linestyle="--", linewidth=1, label=f"chance, ln(V) = {chance:.2f}")
        axes.axhline(unigram, color="#444444", linestyle=":", linewidth=1, label=f"entropy of unigrams = {unigram:.2f}")
        axes.set_xlabel(f"{unit} tokens")
        axes.set_ylabel("loss, nats per token")
        axes.set_ylim(0, max(chance, *losses[:1], 1.0) * 1.05)
        axes.set_xlim(left=0)
        size, vocabulary = plan["model"]["parameters"] / 1e6, plan["data"]["vocab_size"]
        axes.set_title(f"{size:,.1f}M parameters, vocabulary {vocabulary:,}")
        axes.grid(alpha=0.2)
        axes.legend(loc="upper right", fontsize=8)
        with new_file(run / PNG) as file:
            figure.savefig(file, format="png", dpi=150, metadata={"Software": None})
        with new_file(run / SVG) as file:
            figure.savefig(file, format="svg", metadata={"Date": None})
    return run / PNG, run / SVG


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    require_matplotlib()
    sys.stdout.write("\n".join(map(str, draw(Path(sys.argv[1])))) + "\n")
