"""Object stores behave as a folder does, also when requests are throttled, cut or answered into the void."""

import os
import pickle
import subprocess
import sys
import threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import closing, suppress
from multiprocessing import get_context
from types import SimpleNamespace

import pytest

from piecemill import cancelling, objects
from piecemill.cancelling import threads
from piecemill.errors import PlanError, StoreError
from piecemill.executors import open_executor
from piecemill.files import LocalPlace
from piecemill.objects import ObjectPlace, is_object_url
from stores import proxied

MEBIBYTE = 1 << 20


@pytest.fixture(params=["s3", "memory"])
def place(request, tmp_path):
    if request.param == "memory":
        return ObjectPlace(f"memory://bucket/{tmp_path.name}")
    return request.getfixturevalue("s3").place()


@pytest.fixture
def faulty(s3):
    """A place whose requests go through a proxy, and the faults of that proxy."""
    with proxied(s3) as (port, faults):
        yield ObjectPlace(f"s3://{s3.bucket()}/run", s3.options(port)), faults


def file_of(place, content: bytes, name: str = "file"):
    path = place.scratch() / name
    path.write_bytes(content)
    return path


def test_an_object_is_written_read_listed_and_deleted(place):
    with pytest.raises(FileNotFoundError, match=r"plan\.json"):
        place.read("plan.json")
    place.write("plan.json", b"one")
    place.write("plan.json", b"three")
    place.write("entries/000001-0000.json", b"")
    place.write("entries/deeper/x", b"12")
    assert place.read("plan.json") == b"three"
    assert place.sizes() == {"plan.json": 5}
    assert place.sizes("entries") == {"000001-0000.json": 0}
    assert place.sizes("nothing") == {}
    assert place.exists("plan.json")
    for _ in range(2):
        place.delete("plan.json")
    assert not place.exists("plan.json")
    assert place.local() is None


def test_a_range_of_an_object_is_that_of_a_file(place, tmp_path):
    folder = LocalPlace(tmp_path)
    for one in (place, folder):
        one.write("x", b"0123456789")
        with pytest.raises(FileNotFoundError):
            one.read("y", 3, 3)
    for start, stop in [(0, None), (0, 10), (3, 7), (3, None), (4, 4), (8, 20), (10, 12), (15, None), (0, 0)]:
        assert place.read("x", start, stop) == folder.read("x", start, stop)


def test_create_keeps_what_is_there(place):
    assert place.create("lock", b"first")
    assert not place.create("lock", b"second")
    assert not place.create("lock", b"first")  # the same content from somebody else is not this call's own
    assert place.read("lock") == b"first"


def test_of_many_that_create_one_object_one_succeeds(place):
    with ThreadPoolExecutor(8) as pool:
        created = list(pool.map(lambda number: place.create("lock", b"%d" % number), range(16)))
    assert created.count(True) == 1
    assert place.read("lock") == b"%d" % created.index(True)


@pytest.mark.parametrize("size", [0, 1000, 8 * MEBIBYTE, 8 * MEBIBYTE + 1, 20 * MEBIBYTE + 17])
def test_a_file_is_published_whole_and_fetched_again(place, size, tmp_path):
    content = os.urandom(size)
    path = file_of(place, content)
    place.publish(path, "train/x.npy")
    assert not path.exists()
    assert place.sizes("train") == {"x.npy": size}
    (tmp_path / "x").write_bytes(b"old" * 10_000_000 if size == 1000 else b"")
    place.fetch("train/x.npy", tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == content


def test_more_than_one_page_of_names_is_listed(s3):
    place = s3.place()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: place.write(f"entries/{number:06}.json", b"{}"), range(1005)))
    assert place.sizes("entries") == {f"{number:06}.json": 2 for number in range(1005)}


def test_names_keep_their_characters(place):
    place.write("tokenizer/a b%20é+.json", b"x")
    assert place.sizes("tokenizer") == {"a b%20é+.json": 1}
    assert place.read("tokenizer/a b%20é+.json") == b"x"


def test_a_bucket_may_be_the_folder_and_a_slash_at_the_end_changes_nothing(s3):
    bucket = s3.bucket()
    place = ObjectPlace(f"s3://{bucket}", s3.options())
    place.write("a/b", b"x")
    assert place.sizes("a") == {"b": 1}
    assert ObjectPlace(f"s3://{bucket}/a/", s3.options()).url == f"s3://{bucket}/a"
    assert ObjectPlace(f"s3://{bucket}/a/", s3.options()).read("b") == b"x"


# Failures. The pauses between attempts are 0.05 to 0.4 s here.


@pytest.mark.parametrize("fault", [503, 429, 500, "cut", "lost"])
def test_every_request_is_repeated_when_throttled_or_cut(faulty, fault, tmp_path):
    place, faults = faulty
    faults.add("PUT", "plan.json", fault, fault)
    faults.add("GET", "plan.json", fault)
    faults.add("GET", "list-type", fault)
    faults.add("HEAD", "plan.json", fault)
    faults.add("POST", "delete", fault)
    faults.add("GET", "large", fault)
    place.write("plan.json", b"content")
    assert place.read("plan.json") == b"content"
    assert place.sizes() == {"plan.json": 7}
    assert place.exists("plan.json")
    place.delete("plan.json")
    assert not place.exists("plan.json")
    place.write("large", b"x" * 100_000)
    place.fetch("large", tmp_path / "large")
    assert (tmp_path / "large").read_bytes() == b"x" * 100_000
    assert faults.planned == []


@pytest.mark.parametrize("fault", [503, 429, 500, "cut", "lost"])
def test_a_create_whose_answer_was_lost_is_a_success(faulty, fault):
    place, faults = faulty
    faults.add("PUT", "entry", fault)
    assert place.create("entry", b"mine")
    assert place.read("entry") == b"mine"
    assert [method for method, path in faults.requests if method == "PUT"] == ["PUT", "PUT"]


def test_a_create_whose_answer_was_lost_does_not_claim_the_object_of_another(faulty):
    place, faults = faulty
    faults.add("PUT", "entry", "cut")
    put = objects.ObjectPlace.write

    def overtaken(seconds):
        put(place, "entry", b"theirs")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(objects.time, "sleep", overtaken)
        assert not place.create("entry", b"mine")
    assert place.read("entry") == b"theirs"


def test_a_conflict_of_two_creates_is_tried_again():
    # S3 answers 409 while another conditional put of the same key is under way: that is not yet "it exists".
    conflict = objects._Failure.of(
        Exception("status code: 409 Conflict: <Error><Code>ConditionalRequestConflict</Code></Error>")
    )
    assert conflict.transient
    exists = objects._Failure.of(Exception("status code: 409 Conflict: <Error><Code>BlobAlreadyExists</Code></Error>"))
    assert not exists.transient


@pytest.mark.parametrize("fault", [503, "cut", "lost"])
@pytest.mark.parametrize("request_of", [("POST", "uploads"), ("PUT", "partNumber=2"), ("POST", r"uploadId=")])
def test_an_upload_in_parts_survives_a_failure_of_each_request(faulty, fault, request_of, tmp_path):
    place, faults = faulty
    content = os.urandom(17 * MEBIBYTE)
    faults.add(*request_of, fault, fault)
    place.publish(file_of(place, content), "big.npy")
    assert faults.planned == []
    place.fetch("big.npy", tmp_path / "big")
    assert (tmp_path / "big").read_bytes() == content


def test_a_download_that_is_cut_half_way_goes_on(faulty, tmp_path):
    place, faults = faulty
    content = os.urandom(3 * MEBIBYTE)
    place.write("file", content)
    faults.add("GET", "file", "half", "half", "half")
    place.fetch("file", tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == content
    assert place.read("file") == content
    assert faults.planned == []


@pytest.fixture
def pausing(monkeypatch):
    """A pause between two attempts takes a day, so only a cancelled run ends; set when one has begun."""
    begun = threading.Event()

    def pause(_: float) -> None:
        begun.set()
        cancelling.sleep(86_400)

    monkeypatch.setattr(objects, "sleep", pause)
    return begun


@pytest.mark.parametrize("inner_threads", [False, True])
def test_a_cancelled_run_does_not_wait_out_its_retries(s3, pausing, inner_threads):
    with proxied(s3) as (port, faults):
        place = ObjectPlace(f"s3://{s3.bucket()}/run", s3.options(port))
        place.write("there", b"x")
        faults.add("GET", "plan.json", *[503] * 1000)

        def read(_: int) -> bytes:
            if not inner_threads:
                return place.read("plan.json")
            with threads(2) as pool_map:
                return next(pool_map(place.read, ["plan.json"] * 2))

        def tick(_: object) -> None:
            if pausing.is_set():
                raise KeyboardInterrupt

        results = open_executor("local", threads=2).map(read, [0, 1], on_tick=tick)
        with closing(results), pytest.raises(KeyboardInterrupt):
            next(results)


def test_threads_end_when_their_caller_is_interrupted(s3, pausing):
    with proxied(s3) as (port, faults):
        place = ObjectPlace(f"s3://{s3.bucket()}/run", s3.options(port))
        place.write("there", b"x")
        faults.add("GET", "plan.json", *[503] * 1000)
        with suppress(KeyboardInterrupt), threads(4) as pool_map:
            assert next(pool_map(place.read, ["there", "plan.json"])) == b"x"
            assert pausing.wait(600)
            raise KeyboardInterrupt


def test_patience_has_an_end_and_the_error_says_what_to_do(s3, monkeypatch):
    monkeypatch.setattr(objects, "time", SimpleNamespace(monotonic=lambda: 0.0))
    with proxied(s3) as (port, faults):
        place = ObjectPlace(f"s3://{s3.bucket()}/run", s3.options(port), patience=0)
        faults.add("PUT", "plan.json", 503, "cut", 403)
        url = place.url + "/plan.json"
        for want in (
            f"{url}: cannot write after 0 s of retries: the store answered 503 SlowDown (Reduce your request rate.). "
            "The store is throttling: use fewer workers, or run the same command again later, which resumes.",
            f"{url}: cannot write after 0 s of retries: the connection was cut. Run the same command again, which "
            "resumes; if it fails again, look for the cause in the store's logs.",
            f"{url}: cannot write: the store answered 403. Check the credentials, and that they may read, write, list "
            "and delete in this bucket.",
        ):
            with pytest.raises(StoreError) as raised:
                place.write("plan.json", b"x")
            assert str(raised.value) == want
        assert not place.exists("plan.json")


def test_a_store_without_conditional_put_is_an_error_that_names_the_option(s3):
    with proxied(s3) as (port, faults):
        bucket = s3.bucket()
        faults.add("PUT", "lock", 501)
        with pytest.raises(StoreError, match=r"501.*AWS_CONDITIONAL_PUT=disabled"):
            ObjectPlace(f"s3://{bucket}/run", s3.options(port)).create("lock", b"x")
        place = ObjectPlace(f"s3://{bucket}/run", {**s3.options(port), "conditional_put": "disabled"})
        assert place.create("lock", b"x")
        assert not place.create("lock", b"y")
        assert place.read("lock") == b"x"


def test_a_missing_bucket_is_not_a_missing_object(s3):
    place = ObjectPlace("s3://no-such-bucket/run", s3.options())
    for ask in (lambda: place.read("x"), lambda: place.write("x", b""), place.sizes, lambda: place.create("x", b"")):
        with pytest.raises(StoreError, match=r"NoSuchBucket.*Create the bucket, or correct its name: s3://no-such-b"):
            ask()


def test_a_store_that_is_not_there_is_given_up_sooner(monkeypatch):
    monkeypatch.setattr(objects, "_FIRST_CONTACT_SECONDS", 0.2)
    options = {"endpoint": "http://127.0.0.1:1", "access_key_id": "a", "secret_access_key": "b"}
    place = ObjectPlace("s3://bucket/run", {**options, "client_options": {"allow_http": True}}, patience=600)
    with pytest.raises(StoreError, match=r"no connection\. Check the endpoint \(AWS_ENDPOINT_URL\)"):
        place.read("x")
    with pytest.raises(StoreError, match="set AWS_ALLOW_HTTP=true"):
        ObjectPlace("s3://bucket/run", options).read("x")


def test_no_credentials_is_an_error_that_says_where_to_put_them(monkeypatch):
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    # The metadata service that obstore asks then is one on loopback that is not there.
    place = ObjectPlace("s3://bucket/run", {"metadata_endpoint": "http://127.0.0.1:1"})
    with pytest.raises(StoreError, match=r"no credentials were found\. Set AWS_ACCESS_KEY_ID"):
        place.read("x")


def test_credentials_and_endpoint_come_from_the_environment(s3, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{s3.port}")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    place = ObjectPlace(f"s3://{s3.bucket()}/run")
    place.write("x", b"y")
    assert place.read("x") == b"y"
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    assert ObjectPlace(place.url, s3.options()).read("x") == b"y"  # options go before the environment


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("ftp://host/run", "begins with s3://, gs://, az://, memory://"),
        ("s3:///run", "no bucket"),
        ("s3://bucket/a//b", "an empty part"),
        ("s3://bucket/a/../b", r"`\.\.`"),
        ("s3://bucket/a?b", "without \\? and #"),
    ],
)
def test_urls_that_cannot_work_are_refused(url, words):
    with pytest.raises(PlanError, match=words):
        ObjectPlace(url)


def test_an_option_that_the_store_does_not_have_is_refused():
    with pytest.raises(StoreError, match=r"s3://bucket/run: Configuration key: 'colour' is not valid"):
        ObjectPlace("s3://bucket/run", {"colour": "red"})


def test_without_the_package_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(StoreError, match=r"pip install 'piecemill\[cloud\]'"):
        ObjectPlace("s3://bucket/run")


def test_importing_the_module_does_not_import_the_package():
    code = "import sys, piecemill.objects; assert not any(name.startswith('obstore') for name in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def read_plan(place):
    return place.read("plan.json")


def test_a_place_can_be_sent_to_another_process(s3):
    place = s3.place()
    place.write("plan.json", b"x")
    again = pickle.loads(pickle.dumps(place))
    assert (again.url, again.read("plan.json")) == (place.url, b"x")
    assert "test" not in repr(place)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        assert pool.submit(read_plan, place).result() == b"x"


def test_memory_is_shared_inside_one_process_and_refused_in_another():
    place = ObjectPlace("memory://shared/run")
    place.write("plan.json", b"x")
    assert pickle.loads(pickle.dumps(place)).read("plan.json") == b"x"
    assert ObjectPlace("memory://shared").read("run/plan.json") == b"x"
    with pytest.raises(FileNotFoundError):
        ObjectPlace("memory://another/run").read("plan.json")
    code = "import pickle, sys; pickle.loads(sys.stdin.buffer.read())"
    ended = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(place), capture_output=True, check=False)
    assert b"memory:// exists inside one process only" in ended.stderr


def test_a_forked_process_is_an_error_and_not_a_wait_for_ever():
    code = (
        "import os\n"
        "from piecemill.objects import ObjectPlace\n"
        "place = ObjectPlace('memory://bucket/run')\n"
        "place.write('x', b'y')\n"
        "if os.fork() == 0:\n"
        "    try:\n"
        "        place.read('x')\n"
        "    finally:\n"
        "        ObjectPlace('memory://bucket/other')\n"
        "os.wait()\n"
        "print(place.read('x'))\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=False)
    assert ended.stderr.count("StoreError: memory://bucket/") == 2
    assert "Start worker processes with spawn or forkserver" in ended.stderr
    assert ended.stdout == "b'y'\n"


def test_scratch_is_deleted_with_the_place(s3):
    place = s3.place()
    folder = place.scratch()
    assert folder == place.scratch()
    assert folder.is_dir()
    del place
    assert not folder.exists()


def test_the_first_error_of_the_local_disk_is_not_an_error_of_the_store(s3, tmp_path):
    place = s3.place()
    place.write("x", b"y")
    with pytest.raises(IsADirectoryError):
        place.fetch("x", tmp_path)


def test_urls_of_object_stores_are_told_from_paths():
    assert [url for url in ("s3://a/b", "GS://a", "az://a", "memory://a") if not is_object_url(url)] == []
    assert [path for path in ("a/b", "file:///a", "s3:/a", "https://a/s3://b", "s3") if is_object_url(path)] == []


def test_threads_share_a_place(s3):
    place, errors = s3.place(), []

    def work(number):
        try:
            place.publish(file_of(place, b"%d" % number, f"file-{number}"), f"train/{number}")
            assert place.read(f"train/{number}") == b"%d" % number
        except Exception as error:  # noqa: BLE001 - shown below
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(place.sizes("train")) == 8
