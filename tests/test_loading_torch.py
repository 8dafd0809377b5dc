"""Batches as tensors: the same as in numpy, also through the steps of a device, a DataLoader and its workers."""

import inspect
import pickle

import numpy as np
import pytest

from loadable import write_rows
from piecemill.errors import LoadError, PlanError
from piecemill.loading import Windows
from piecemill.loading import batches as plain

torch = pytest.importorskip("torch", reason="needs torch: pip install 'piecemill[torch]'")

from torch.utils.data import DataLoader, Subset  # noqa: E402

from piecemill.loading.device import DeviceDestination, Lane  # noqa: E402
from piecemill.loading.text import windows_to  # noqa: E402
from piecemill.loading.torch import BatchDataset, batches  # noqa: E402
from piecemill.shards.windows import Packed  # noqa: E402

OPTIONS = {"window": 8, "batch_size": 3, "seed": 5, "epochs": 1}


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    documents = np.split(np.arange(811), np.arange(13, 811, 13))
    return write_rows(tmp_path_factory.mktemp("rows") / "a", documents, shard_tokens=150, eos=0)


def listed(batch):
    return {name: value.tolist() if hasattr(value, "tolist") else value for name, value in batch.items()}


def through_slots(rows, threads=1, **options):
    """As on a device, with copies in main memory."""
    place = DeviceDestination(torch.device("cpu"), slots=threads + 1)
    return windows_to(place, rows, {**options, "threads": threads})


@pytest.mark.parametrize("boundaries", [False, True])
@pytest.mark.parametrize("make", [batches, through_slots])
def test_tensors_are_the_arrays(rows, make, boundaries):
    want = [listed(batch) for batch in plain(rows, boundaries=boundaries, **OPTIONS)]
    found = list(make(rows, boundaries=boundaries, **OPTIONS))
    assert [listed(batch) for batch in found] == want
    assert {value.dtype for name, value in found[0].items() if name.endswith("ids")} == {torch.int64}
    assert found[0]["labels"].is_contiguous()
    if boundaries:
        assert found[0]["cu_seqlens"].dtype == torch.int32
        assert isinstance(found[0]["max_seqlen"], int)


@pytest.mark.parametrize("threads", [0, 1, 4])
def test_slots_are_few_and_go_round(rows, monkeypatch, threads):
    made, waited = [], []
    slot = Lane.slot

    class Event:
        pass

    monkeypatch.setattr(Lane, "slot", lambda self, items, dtype: made.append(items) or slot(self, items, dtype))
    monkeypatch.setattr(Lane, "copies", lambda self, tensors: ([t.clone() for t in tensors], Event()))
    monkeypatch.setattr(Lane, "wait", lambda self, event: waited.append(event))
    want = [listed(batch) for batch in plain(rows, **OPTIONS)]
    with through_slots(rows, threads=threads, **OPTIONS) as fed:
        found = [listed(batch) for batch in fed]
    assert found == want
    slots = len(made) // 3  # ids, bounds and parts
    assert slots <= threads + 1
    # Whoever gathers into a slot again has waited for the copy out of it.
    assert len(waited) == len(want) - slots
    assert all(isinstance(event, Event) for event in waited)


def test_a_state_of_one_kind_serves_another(rows):
    fed = plain(rows, **OPTIONS)
    for _ in range(7):
        next(fed)
    for make in (batches, through_slots):
        other = make(rows, **OPTIONS)
        other.load_state_dict(fed.state_dict())
        assert listed(next(other)) == listed(list(plain(rows, **OPTIONS))[7])
        other.close()
    fed.close()


def test_a_device_that_is_none_is_refused(rows):
    with pytest.raises(PlanError, match="device='meta': expected cpu or cuda"):
        batches(rows, device="meta", **OPTIONS)


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_a_failure_on_the_way_to_a_device_can_be_gone_on_from(rows, monkeypatch, threads):
    want = [listed(batch) for batch in plain(rows, **OPTIONS)]
    real = Packed.ranges

    def broken(self, numbers):
        raise OSError(5, "the disk is gone")

    fed = through_slots(rows, threads=threads, **OPTIONS)
    assert listed(next(fed)) == want[0]
    for _ in range(5):
        state = fed.state_dict()
        monkeypatch.setattr(Packed, "ranges", broken)
        with pytest.raises(OSError, match="the disk is gone"):
            list(fed)
        monkeypatch.setattr(Packed, "ranges", real)
        given = state["samples"] // 3
        fed.load_state_dict(state)
        assert listed(next(fed)) == want[given]
    fed.close()


def test_closing_lets_go_of_the_slots_and_the_threads(rows, feeders):
    fed = through_slots(rows, threads=2, **OPTIONS)
    next(fed)
    place = fed._place
    fed.close()
    assert place._free.empty()
    assert place._made == 0
    assert feeders() == []


# torch's DataLoader


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:This DataLoader will create . worker")
@pytest.mark.parametrize("workers", [0, 2, 3])
def test_a_data_loader_gives_the_same_batches_with_any_workers(rows, workers):
    want = [listed(batch) for batch in plain(rows, **OPTIONS)]
    dataset = BatchDataset(rows, **OPTIONS)
    assert [listed(batch) for batch in DataLoader(dataset, batch_size=None, num_workers=workers)] == want
    # a state of the whole goes on with any number of them
    fed = plain(rows, **OPTIONS)
    for _ in range(10):
        next(fed)
    dataset.load_state_dict(fed.state_dict())
    fed.close()
    assert [listed(batch) for batch in DataLoader(dataset, batch_size=None, num_workers=workers)] == want[10:]


def test_the_states_of_workers_go_on_where_each_was(rows, monkeypatch):
    """What StatefulDataLoader does: a dataset in each worker, its state kept with each batch, and given back to it."""
    want = [listed(batch) for batch in plain(rows, **OPTIONS)]

    class Worker:
        def __init__(self, number, state=None):
            self.id, self.num_workers = number, 3
            self.dataset = pickle.loads(pickle.dumps(BatchDataset(rows, **OPTIONS)))
            self.inside(lambda: state is not None and self.dataset.load_state_dict(state))
            self.batches = self.inside(lambda: iter(self.dataset))

        def inside(self, do):
            monkeypatch.setattr("piecemill.loading.torch.get_worker_info", lambda: self)
            return do()

        def next(self):
            return listed(self.inside(lambda: next(self.batches))), self.inside(self.dataset.state_dict)

    workers, states = [Worker(n) for n in range(3)], [None] * 3
    for step in range(10):
        batch, states[step % 3] = workers[step % 3].next()
        assert batch == want[step]
    again = [Worker(n, state) for n, state in enumerate(states)]
    for step in range(10, len(want)):
        assert again[step % 3].next()[0] == want[step]
    fewer = Worker(0, states[0])
    fewer.num_workers = 2
    fewer.inside(lambda: fewer.dataset.load_state_dict(states[0]))
    with pytest.raises(PlanError, match="num_workers=2: the state was taken with 3"):
        fewer.inside(lambda: iter(fewer.dataset))


def test_a_data_loader_without_workers_keeps_its_state_in_the_dataset(rows):
    dataset = BatchDataset(rows, **OPTIONS)
    loop = iter(DataLoader(dataset, batch_size=None))
    for _ in range(4):
        next(loop)
    other = BatchDataset(rows, **OPTIONS)
    other.load_state_dict(dataset.state_dict())
    assert listed(next(iter(other))) == listed(next(loop))


def test_windows_are_a_map_style_dataset(rows):
    view = Windows(rows, window=8)
    loader = DataLoader(view, batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(0))
    firsts = torch.cat([batch["input_ids"][:, 0] for batch in loader])
    assert sorted(firsts.tolist()) == list(range(0, 8 * len(view), 8))


def test_windows_are_asked_for_with_tensors_too(rows):
    view = Windows(rows, window=8)
    some = Subset(view, torch.tensor([3, 1]))  # asks for single windows with tensors
    assert [some[at]["input_ids"].tolist() for at in range(2)] == [view[at]["input_ids"].tolist() for at in (3, 1)]
    with pytest.raises(LoadError, match=r"window tensor\(1\.5\d*\): found Tensor, expected its number"):
        view[torch.tensor(1.5)]


def test_every_option_of_the_numpy_loader_is_one_of_tensors(rows):
    keywords = [set(inspect.signature(verb).parameters) for verb in (plain, batches)]
    assert keywords[1] - keywords[0] == {"device"}
    assert keywords[0] <= keywords[1]
    unshifted = next(batches(rows, **OPTIONS, labels="unshifted"))
    assert torch.equal(unshifted["labels"][:, 1:], unshifted["input_ids"][:, 1:])
