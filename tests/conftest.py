"""Real text for the tests: the interpreter's own standard library, and `../shared` where it is present."""

import os
import signal
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import command

# Shells start background jobs with SIGINT ignored, and children inherit that; tests interrupt children.
signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes depends on the machine and on what else it does.
settings.register_profile("any speed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any speed")

# Tests start hundreds of processes. Without bytecode each compiles all that it imports: half a second for the command.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Else the first cluster that `ray.init` starts turns tokens on for all later ones of this process, and nodes that are
# added to a cluster from before are refused there, without an end. Tests also write no token into the user's folder.
os.environ["RAY_AUTH_MODE"] = "disabled"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """With `-n`, neighbours stay in one process, so that what a module or the session shares is made once; a process
    that has nothing left to do takes from the end of another.
    """
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log) if config.getvalue("dist") == "load" else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """Tests that take more than ten seconds come first: one of them at the end would be waited for alone."""
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


SHARED = Path(__file__).resolve().parents[2] / "shared"


@contextmanager
def environment_restored() -> Iterator[None]:
    """Removes the variables that were set meanwhile; Ray and torch set some of their own."""
    before = dict(os.environ)
    try:
        yield
    finally:
        for name in {name for name, _ in before.items() ^ os.environ.items()} - {"PYTEST_CURRENT_TEST"}:
            if name in before:
                os.environ[name] = before[name]
            else:
                del os.environ[name]


@pytest.fixture(autouse=True)
def _environment_is_restored():
    """`command.piecemill` starts an interpreter for each call in another environment than that of its server."""
    with environment_restored():
        yield


@pytest.fixture(autouse=True)
def _nothing_stays_running():
    """A test that fails leaves no process and no open pipe to the next one."""
    yield
    while command.STARTED:
        running = command.STARTED.pop()
        if running.poll() is None:
            running.kill()
        running.communicate()


@pytest.fixture(autouse=True, scope="session")
def _servers_end():
    """Those of `command.py`."""
    yield
    while command.SERVERS:
        command.SERVERS.pop().end()


@pytest.fixture(scope="session")
def stdlib_texts() -> list[str]:
    """A few hundred real Python files, about 5 MB, in a fixed order."""
    library = Path(sysconfig.get_path("stdlib"))
    texts = []
    for folder in (".", "asyncio", "email", "encodings", "idlelib", "lib2to3", "test"):
        for path in sorted((library / folder).glob("*.py")):
            try:
                texts.append(path.read_text(encoding="utf-8"))
            except UnicodeDecodeError:
                continue
            if sum(map(len, texts)) > 5_000_000:
                return [text for text in texts if text]
    return [text for text in texts if text]


@pytest.fixture(scope="session")
def shared() -> Path:
    """The data folder beside the checkout; tests that need it skip where it is absent."""
    if not SHARED.is_dir():
        pytest.skip("needs ../shared, which is not beside this checkout")
    return SHARED


@pytest.fixture(scope="session")
def started_cluster():
    """A Ray cluster of one node with two CPUs. Started once: it takes some seconds."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    with environment_restored():
        prepare_for_nodes()
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    yield cluster
    cluster.shutdown()


def prepare_for_nodes() -> None:
    """Sets what nodes inherit that this process starts. Their workers import the functions of the tests."""
    folders = [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, folders))
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"


@pytest.fixture(scope="module")
def ray_cluster(started_cluster):
    """The Ray cluster, to which this process is connected; tests may add nodes. Disconnected for tests that fork."""
    import ray

    with environment_restored():
        prepare_for_nodes()
        ray.init(started_cluster.address, log_to_driver=False, logging_level="error")
        yield started_cluster
        ray.shutdown()


@pytest.fixture(scope="session")
def s3():
    """moto's S3 server on loopback."""
    pytest.importorskip("moto")
    from stores import Server

    server = Server()
    yield server
    server.stop()


@pytest.fixture(autouse=True)
def _torch_has_one_thread():
    """Small products are slower on more, and wait for each other where cores are busy."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="module")
def _memory_is_given_back():
    """Arrow keeps what large tables took; neighbours and their children need it."""
    yield
    if arrow := sys.modules.get("pyarrow"):
        arrow.default_memory_pool().release_unused()


@pytest.fixture(autouse=True)
def _memory_stores_are_emptied():
    """What a test writes to `memory://`, of obstore or of fsspec, no other test finds."""
    yield
    if objects := sys.modules.get("piecemill.objects"):
        objects._memory.clear()
    if fsspec := sys.modules.get("fsspec.implementations.memory"):
        fsspec.MemoryFileSystem.store.clear()
        fsspec.MemoryFileSystem.pseudo_dirs[:] = [""]


@pytest.fixture
def feeders() -> Callable[[], list[str]]:
    """The names of the feeder threads that run and that this test has started."""
    others = set(threading.enumerate())

    def names() -> list[str]:
        mine = [thread.name for thread in threading.enumerate() if thread not in others]
        return [name for name in mine if name.startswith("piecemill-feeder")]

    return names


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    """Sources that fail are asked again, without a pause."""
    from piecemill.sources import patience, remote

    monkeypatch.setattr(patience, "PAUSES", (0.0, 0.0))
    monkeypatch.setattr(remote, "FIRST_PAUSES", (0.0,))
