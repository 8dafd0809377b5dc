"""On a GPU: the same batches, without a single wait in the steady state. Skipped where there is none."""

import gc

import numpy as np
import pytest

from loadable import write_rows
from piecemill.loading import batches as plain

torch = pytest.importorskip("torch", reason="needs torch: pip install 'piecemill[torch]'")
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

from piecemill.loading.torch import batches  # noqa: E402

WINDOW = 1024
pytestmark = pytest.mark.filterwarnings("default")  # torch's own, of the mode that finds waits


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    ids = np.random.default_rng(0).integers(0, 50_000, 4_000_000)
    documents = np.split(ids, np.arange(700, len(ids), 700))
    return write_rows(tmp_path_factory.mktemp("rows") / "a", documents, vocab_size=50_000, shard_tokens=10**6, eos=0)


@pytest.fixture
def no_waiting():
    """Any operation that makes the processor wait for the device is an error."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    yield
    torch.cuda.set_sync_debug_mode("default")


def work(batch, weight):
    """Something to keep the device busy, that depends on every id."""
    embedded = torch.nn.functional.embedding(batch["input_ids"], weight)
    return (embedded @ embedded.transpose(1, 2)).sum() + batch["labels"].sum()


@pytest.mark.parametrize("boundaries", [False, True])
@pytest.mark.parametrize("threads", [0, 1, 2])
def test_batches_on_the_device_are_those_of_numpy(rows, boundaries, threads):
    options = {"window": WINDOW, "batch_size": 8, "epochs": 1, "boundaries": boundaries}
    for here, there in zip(
        plain(rows, **options), batches(rows, device="cuda", threads=threads, **options), strict=True
    ):
        assert here.keys() == there.keys()
        for name, array in here.items():
            if name == "max_seqlen":
                assert there[name] == array
            else:
                assert there[name].device.type == "cuda"
                assert np.array_equal(there[name].cpu().numpy(), array), name


def test_a_steady_loop_never_waits_for_the_device(rows, no_waiting):
    weight = torch.randn(50_000, 256, device="cuda")
    total = torch.zeros((), device="cuda")
    with batches(rows, window=WINDOW, batch_size=16, device="cuda", boundaries=True) as fed:
        for _ in range(200):
            batch = next(fed)
            total += work(batch, weight)
    torch.cuda.set_sync_debug_mode("default")
    assert torch.isfinite(total).item()


def test_tensors_kept_and_freed_under_load_are_never_overwritten(rows):
    """Slots and device memory go round while old batches are in use; sums computed late must be right."""
    options = {"window": WINDOW, "batch_size": 4, "epochs": None, "seed": 2}
    heavy = torch.randn(2048, 2048, device="cuda")
    sums, kept = [], []
    with batches(rows, device="cuda", **options) as fed:
        for _ in range(300):
            batch = next(fed)
            for _ in range(4):
                heavy = heavy @ heavy / heavy.norm()  # the device falls behind the loop
            sums.append(batch["input_ids"].sum() * 3 + batch["labels"].sum())
            kept = [*kept[-5:], batch]
    with plain(rows, **options) as want:
        expected = [
            int(batch["input_ids"].sum() * 3 + batch["labels"].sum())
            for batch, _ in zip(want, range(300), strict=False)
        ]
    assert [int(value) for value in sums] == expected


def test_breaking_off_leaves_no_thread_and_no_pinned_buffer(rows, feeders):
    for _ in batches(rows, window=WINDOW, device="cuda", threads=2):
        break
    gc.collect()
    assert feeders() == []
    pinned = [o for o in gc.get_objects() if type(o) is torch.Tensor and o.device.type == "cpu" and o.is_pinned()]
    assert pinned == []


def test_a_state_taken_on_the_device_goes_on_there(rows):
    options = {"window": WINDOW, "batch_size": 8, "device": "cuda"}
    with batches(rows, **options) as fed:
        for _ in range(20):
            next(fed)
        state = fed.state_dict()
        want = next(fed)["input_ids"].cpu()
    with batches(rows, threads=2, **options) as again:
        again.load_state_dict(state)
        assert torch.equal(next(again)["input_ids"].cpu(), want)
