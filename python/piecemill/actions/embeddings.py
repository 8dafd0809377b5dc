"""Embeddings -> a few codes per item: PCA whitening, then a rotated product quantizer (OPQ) of faiss.

faiss runs on one thread: with two it adds up in another order, and on 12,000 random vectors 0.3% of the codes were the
same as with one. With one they are the same every time, for a quarter of the processor time.

Start with `whiten` and `quantize`; `Codebooks` gives other vectors the codes they would have had.
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from piecemill.actions.plan import FAISS_SEED
from piecemill.errors import PlanError, SourceError
from piecemill.files import read_npy
from piecemill.plans import option

_BLOCK = 65536
"Rows that are held in double precision at once."


def read_embeddings(path: str) -> NDArray[Any]:
    """The array of a .npy file, not yet in memory."""
    try:
        array = read_npy(path)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise SourceError(f"{path}: not a .npy file of numbers: {error}.") from None
    if array.ndim != 2 or array.dtype.kind not in "fiu":
        found = f"{array.dtype} of shape {array.shape}"
        raise SourceError(f"{path}: found {found}, expected numbers of shape (items, dimensions).")
    return array


def check_finite(vectors: NDArray[Any], name: str) -> None:
    """An error with the row of the first number that is none."""
    for start in range(0, len(vectors), _BLOCK):
        fine = np.isfinite(vectors[start : start + _BLOCK]).all(axis=1)
        if not fine.all():
            raise SourceError(f"{name}, row {start + int(np.argmin(fine)):,}: not all numbers are finite.")


@dataclass(frozen=True, eq=False)
class Codebooks:
    """What was learned from embeddings: the components (none where they are taken as they are) and the codebooks."""

    mean: NDArray[np.float64] | None
    weights: NDArray[np.float64] | None
    rotation: NDArray[np.float32]
    centre: NDArray[np.float32]
    centroids: NDArray[np.float32]
    "[codebook, code, part of the rotated vector]"

    @property
    def dimensions(self) -> int:
        """Numbers in an embedding."""
        return self.rotation.shape[1] if self.mean is None else len(self.mean)

    def codes(self, vectors: NDArray[Any], known: Sequence[Sequence[int]]) -> NDArray[np.int64]:
        """A code per codebook for every vector: the nearest one of those that are `known`. faiss is not needed."""
        books, _, width = self.centroids.shape
        found = np.empty((len(vectors), books), np.int64)
        for start in range(0, len(vectors), _BLOCK):
            block = np.asarray(vectors[start : start + _BLOCK])
            if self.mean is not None and self.weights is not None:
                block = ((block.astype(np.float64) - self.mean) @ self.weights).astype(np.float32)
            turned = block.astype(np.float64) @ self.rotation.T.astype(np.float64) - self.centre
            for book in range(books):
                codes = np.asarray(known[book], np.int64)
                places = self.centroids[book][codes].astype(np.float64)
                part = turned[:, book * width : (book + 1) * width]
                nearest = np.argmin((places**2).sum(axis=1) - 2 * (part @ places.T), axis=1)
                found[start : start + _BLOCK, book] = codes[nearest]
        return found

    def to_json(self) -> dict[str, Any]:
        """As JSON holds it, bit for bit."""
        return {
            name: None
            if array is None
            else {
                "type": array.dtype.str,
                "shape": list(array.shape),
                "base64": base64.b64encode(array.tobytes()).decode(),
            }
            for name, array in vars(self).items()
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> "Codebooks":
        try:
            arrays: dict[str, Any] = {
                name: None
                if one is None
                else np.frombuffer(base64.b64decode(one["base64"]), np.dtype(one["type"])).reshape(one["shape"])
                for name, one in record.items()
            }
            return cls(**arrays)
        except (ValueError, KeyError, TypeError) as error:
            raise SourceError(f"items: their codebooks cannot be read ({error}). Make the items again.") from None


def whiten(
    vectors: NDArray[Any], components: int | None, multiple: int = 1
) -> tuple[NDArray[np.float32], float, tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """The principal components, each with variance 1, the share of the variance that they hold, and what made them:
    the mean of the vectors, and weights.

    `components=None` takes 128, or fewer where the vectors span fewer, rounded down to a `multiple`. The sign of a
    component is that of its largest weight, so that the result is a function of the vectors alone.
    """
    rows, width = vectors.shape
    mean = np.zeros(width)
    for start in range(0, rows, _BLOCK):
        mean += vectors[start : start + _BLOCK].sum(axis=0, dtype=np.float64)
    mean /= rows
    covariance = np.zeros((width, width))
    for start in range(0, rows, _BLOCK):
        block = vectors[start : start + _BLOCK].astype(np.float64) - mean
        covariance += block.T @ block
    variances, axes = np.linalg.eigh(covariance / max(rows - 1, 1))
    variances, axes = variances[::-1], axes[:, ::-1]
    spanned = int((variances > max(variances[0], 0) * width * np.finfo(np.float32).eps).sum())
    wanted = min(128, spanned) // multiple * multiple if components is None else components
    if not 0 < wanted <= spanned:
        raise PlanError(
            f"{option('pca', components)}: the {rows:,} embeddings of {width} dimensions span {spanned}; expected "
            f"{multiple} to {spanned}, or leave it out."
        )
    weights = axes[:, :wanted]
    largest = np.take_along_axis(weights, np.abs(weights).argmax(axis=0)[None], axis=0)[0]
    weights = weights * np.sign(largest) / np.sqrt(variances[:wanted])
    white = np.empty((rows, wanted), np.float32)
    for start in range(0, rows, _BLOCK):
        white[start : start + _BLOCK] = (vectors[start : start + _BLOCK].astype(np.float64) - mean) @ weights
    return white, float(variances[:wanted].sum() / variances.sum()), (mean, weights)


def quantize(
    vectors: NDArray[np.float32],
    learn_from: NDArray[np.int64],
    *,
    codebooks: int = 4,
    bits: int = 8,
    seed: int = FAISS_SEED,
) -> tuple[NDArray[np.int64], Codebooks]:
    """`codebooks` codes of `bits` bits for every vector, by faiss's `OPQ4,IVF1,PQ4x8` for inner products.

    The quantizer is learned from the rows `learn_from`, and comes with the codes; with the seed of faiss, they are
    those of faiss itself.
    """
    faiss = _faiss()
    rows, width = vectors.shape
    if width % codebooks:
        raise PlanError(
            f"{option('codebooks', codebooks)}: {width} dimensions cannot be shared out; choose pca as a multiple."
        )
    if len(learn_from) < 1 << bits:
        raise PlanError(
            f"{option('bits', bits)}: a codebook of {1 << bits} needs as many items, found {len(learn_from):,}. Choose "
            f"{option('bits', max(len(learn_from).bit_length() - 1, 1))} or fewer."
        )
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        index = faiss.index_factory(width, f"OPQ{codebooks},IVF1,PQ{codebooks}x{bits}", faiss.METRIC_INNER_PRODUCT)
        inside = faiss.downcast_index(faiss.extract_index_ivf(index))
        rotation = faiss.downcast_VectorTransform(index.chain.at(0))
        quantizer = faiss.ProductQuantizer(width, codebooks, bits)  # must outlive the training
        rotation.pq = quantizer
        for clustering in (inside.cp, inside.pq.cp, quantizer.cp):
            clustering.seed = seed
            clustering.min_points_per_centroid = 1  # few points are for us to judge, not for faiss to print about
        index.train(np.ascontiguousarray(vectors[learn_from]))
        books = Codebooks(
            mean=None,
            weights=None,
            rotation=faiss.vector_to_array(rotation.A).reshape(width, width),
            centre=faiss.downcast_index(inside.quantizer).reconstruct(0) * np.float32(inside.by_residual),
            centroids=faiss.vector_to_array(inside.pq.centroids).reshape(codebooks, 1 << bits, width // codebooks),
        )
        index.add(vectors)
        lists = inside.invlists
        packed = faiss.rev_swig_ptr(lists.get_codes(0), rows * inside.code_size).reshape(rows, -1).copy()
        places = faiss.rev_swig_ptr(lists.get_ids(0), rows).copy()
    finally:
        faiss.omp_set_num_threads(threads)
    codes = np.empty((rows, codebooks), np.int64)
    single = np.unpackbits(packed, axis=1, bitorder="little")[:, : codebooks * bits].reshape(rows, codebooks, bits)
    codes[places] = single.astype(np.int64) @ (1 << np.arange(bits, dtype=np.int64))
    return codes, books


def _faiss() -> Any:
    try:
        import faiss
    except ImportError:
        raise PlanError("embeddings need faiss, which is not installed: pip install 'piecemill[faiss]'.") from None
    return faiss
