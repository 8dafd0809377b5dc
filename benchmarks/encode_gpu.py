"""Encoding on a GPU: exactness and speed, beside gigatoken and our own encoder on all cores, on a machine with one.

    python benchmarks/encode_gpu.py --pack                                # here: makes carry/
    python3 benchmarks/encode_gpu.py --carried carry --out OUT            # there: writes OUT/encode-gpu.json
    python benchmarks/encode_gpu.py --take OUT                            # here: keeps the record, rewrites the page

Ids are compared before any time is shown: all corpora with our own encoder, a sample with the home library. Every time
is the median of three passes. `first` is a pass with an empty word table; the text is in pinned memory, as are the ids.
"""

import argparse
import base64
import datetime
import hashlib
import json
import lzma
import multiprocessing
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "python"), str(HERE.parent / "tests")]

import tables  # noqa: E402
from measure import machine  # noqa: E402
from protocol import RESULTS, append, read, write_page  # noqa: E402
from tables import PAGE, Bar, bar  # noqa: E402

VOCABS = {
    "gpt2": ("gpt2", None),
    "cl100k": ("cl100k_base.tiktoken", "cl100k"),
    "o200k": ("o200k_base.tiktoken", "o200k"),
    "qwen3.5": ("qwen3_6.tiktoken.gz", "qwen3.5"),
    "deepseek-v3": ("deepseek_v3.tokenizer.json.gz", None),
}
TIMED = ("gpt2", "cl100k", "o200k")
TEXT = {"english": "english-40mb", "multilingual": "multilingual-30mb"}
GIGABYTE = 1_000_000_000
PREPARED = 2 * GIGABYTE
REPEATS = 3


def pack(out: Path) -> None:
    """What a machine without a network needs."""
    import carry
    from carry_encode import SITES
    from corpus import corpus
    from encode_vocabularies import SHARED

    if out.exists():
        shutil.rmtree(out)
    (out / "vocabs").mkdir(parents=True)
    for file, _ in VOCABS.values():
        place = SHARED / file
        (shutil.copytree if place.is_dir() else shutil.copyfile)(place, out / "vocabs" / file)
    for name, of in TEXT.items():
        with lzma.open(out / f"{name}.jsonl.xz", "wb", preset=6) as lines:
            lines.write(corpus(of).jsonl.read_bytes())
    wheels = ["--no-deps", "--only-binary", ":all:", "--python-version", "3.12"]
    platforms = ["--platform", "manylinux2014_x86_64", "--platform", "manylinux_2_28_x86_64"]
    carry.install(out / "site", [*SITES["site"], "zstandard"], *wheels, *platforms)
    for library in (out / "site" / "zstandard").glob("*.so"):
        if library.name.startswith("_cffi"):
            library.unlink()
        else:
            subprocess.run(["strip", library], check=True)
    carry.check_size(out)


# Corpora


def flat(documents: Sequence[bytes]) -> tuple[Any, Any]:
    import numpy as np

    return np.frombuffer(b"".join(documents), np.uint8), np.cumsum([len(one) for one in documents]).astype(np.int64)


def corpora(carried: Path, python_bytes: int) -> dict[str, tuple[Any, Any]]:
    import numpy as np

    from adversarial import adversarial
    from corpus import respelled

    rng = np.random.default_rng(5)
    read = {name: carried_texts(carried / f"{name}.jsonl.xz") for name in TEXT}
    times = -(-90_000_000 // sum(len(text.encode()) for text in read["multilingual"]))
    many = [text for number in range(times) for text in respelled(read["multilingual"], number)]
    return {
        "python": flat(installed_python(python_bytes)),
        "english": flat([text.encode() for text in read["english"]]),
        "multilingual": flat([text.encode() for text in many]),
        "base64": flat([base64.b64encode(rng.bytes(int(rng.integers(1, 30_000)))) for _ in range(1000)]),
        "adversarial": flat(adversarial(6_000_000)),
    }


def carried_texts(path: Path) -> list[str]:
    with lzma.open(path) as lines:
        return [json.loads(line)["text"] for line in lines]


def installed_python(size: int) -> list[bytes]:
    """Distinct Python files of this machine."""
    found: dict[bytes, bytes] = {}
    for folder in [*map(Path, sys.path), Path("/usr/lib/python3"), Path("/usr/lib/python3.12")]:
        for file in sorted(folder.rglob("*.py*")) if folder.is_absolute() and folder.is_dir() else []:
            if file.suffix in (".py", ".pyi") and file.is_file() and size > 0:
                data = file.read_bytes()
                key = hashlib.blake2b(data, digest_size=16).digest()
                if key not in found and is_text(data):
                    found[key] = data
                    size -= len(data)
    return list(found.values())


def is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def tiled(corpus: tuple[Any, Any], size: int) -> tuple[Any, Any]:
    import numpy as np

    data, ends = corpus
    times = -(-size // len(data))
    return np.tile(data, times), np.concatenate([ends + number * len(data) for number in range(times)])


# Measuring


def median(work: Callable[[], Any], before: Callable[[], Any] = lambda: None) -> float:
    seconds = []
    for _ in range(REPEATS):
        before()
        started = time.perf_counter()
        made = work()
        seconds.append(time.perf_counter() - started)
        del made
    return statistics.median(seconds)


class OnGpu:
    """One vocabulary on the GPU, and the ways to ask it."""

    def __init__(self, name: str, carried: Path) -> None:
        import piecemill as pm
        from piecemill.tokenizers.engines.cuda import CudaEngine
        from piecemill.tokenizers.engines.piecemill import build_of

        file, split = VOCABS[name]
        path = carried / "vocabs" / file
        if path.name.endswith(".json.gz"):
            import gzip

            unpacked = carried / name / "tokenizer.json"
            unpacked.parent.mkdir(exist_ok=True)
            unpacked.write_bytes(gzip.decompress(path.read_bytes()))
            path = unpacked
        self.name, self.path, self.narrow = name, path, name == "gpt2"
        self.tokenizer = pm.load_tokenizer(path, **({"pretokenizer": split} if split else {}))
        self.build = build_of(self.tokenizer.model)
        self.engine = CudaEngine(self.build)
        self.device = self.engine._device(narrow=self.narrow)
        self.plain = {"bos": None, "eos": None, "narrow": self.narrow, "special": "plain"}

    def here(self, data: Any, ends: Any) -> Any:
        return self.engine.encode_flat(data, ends, **self.plain, threads=0)

    def forget(self) -> None:
        import cupy

        self.device.flush()
        cupy.cuda.runtime.deviceSynchronize()

    def processor(self, data: Any, ends: Any) -> Any:
        return self.engine.encoder.encode_flat(data, ends, **self.plain, threads=0)

    def compare(self, data: Any, ends: Any) -> int:
        """Documents with other ids than our own encoder gives; twice, the second time from the table."""
        import numpy as np

        wanted, wanted_ends = self.processor(data, ends)
        wrong = 0
        for _ in range(2):
            ids, token_ends = self.here(data, ends)
            if not (np.array_equal(ids, wanted) and np.array_equal(token_ends, wanted_ends)):
                wrong += max(1, int((np.diff(token_ends) != np.diff(wanted_ends)).sum()))
        return wrong

    def compare_home(self, documents: list[bytes]) -> int:
        """Documents with other ids than the home library gives."""
        import numpy as np

        data, ends = flat(documents)
        ids, token_ends = self.here(np.ascontiguousarray(data), ends)
        parts = [documents[number::16] for number in range(16)]
        jobs = [(self.name, str(self.path), self.tokenizer.model.home, part) for part in parts]
        with multiprocessing.get_context("spawn").Pool(16) as pool:
            found = pool.map(home_ids, jobs, chunksize=1)
        wanted = {number + 16 * row: one for number, rows in enumerate(found) for row, one in enumerate(rows)}
        starts = np.concatenate([np.zeros(1, np.int64), token_ends[:-1]])
        spans = enumerate(zip(starts.tolist(), token_ends.tolist(), strict=True))
        return sum(ids[start:end].tolist() != wanted[number] for number, (start, end) in spans)

    def stages(self, data: Any, ends: Any) -> dict[str, float]:
        """Milliseconds of every kernel and copy in one pass."""
        import torch
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            self.here(data, ends)
            torch.cuda.synchronize()
        rows = {row.key: row.self_device_time_total / 1e3 for row in seen.key_averages()}
        return {name: round(ms, 3) for name, ms in sorted(rows.items(), key=lambda row: -row[1]) if ms >= 0.01}


def home_ids(job: tuple[str, str, str, list[bytes]]) -> list[list[int]]:
    name, path, home, documents = job
    import piecemill as pm
    from piecemill.tokenizers.engines import load_engine

    _, split = VOCABS[name]
    engine = load_engine(pm.load_tokenizer(path, **({"pretokenizer": split} if split else {})).model, home, "asked")
    return [engine.encode(document.decode(), "plain").tolist() for document in documents]


def gigatoken_of(name: str, carried: Path) -> Callable[[], Any]:
    sys.path.append(str(carried / "site"))
    import gigatoken

    file, _ = VOCABS[name]
    if name == "gpt2":
        return lambda: gigatoken.Tokenizer(str(carried / "vocabs" / "gpt2" / "tokenizer.json"))
    split = {"cl100k": "gpt4", "o200k": "o200k"}[name]
    return lambda: gigatoken.Tokenizer.from_tiktoken(str(carried / "vocabs" / file), pretokenizer=split)


def with_gigatoken(make: Callable[[], Any], data: Any, ends: Any) -> dict[str, float]:
    import awkward
    import numpy as np

    offsets = awkward.index.Index64(np.concatenate([np.zeros(1, np.int64), ends]))
    content = awkward.contents.NumpyArray(data, parameters={"__array__": "byte"})
    texts = awkward.Array(awkward.contents.ListOffsetArray(offsets, content, parameters={"__array__": "bytestring"}))
    made: list[Any] = []

    def fresh() -> None:
        made[:] = [make()]

    first = median(lambda: made[0].encode_batch(texts, parallel=True), fresh)
    return {"first": first, "warm": median(lambda: made[0].encode_batch(texts, parallel=True))}


def copies(size: int, out: int) -> dict[str, float]:
    """Seconds of plain copies: in alone, and in and out at the same time."""
    import cupy
    from cupy.cuda import runtime

    from piecemill.tokenizers.engines.cuda.device import pinned

    here, there = pinned(max(size, out)), cupy.empty(max(size, out), cupy.uint8)
    back, from_there = pinned(max(out, 1)), cupy.empty(max(out, 1), cupy.uint8)
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]

    def go(both: bool) -> None:
        runtime.memcpyAsync(there.data.ptr, here.ctypes.data, size, runtime.memcpyHostToDevice, streams[0].ptr)
        if both:
            runtime.memcpyAsync(back.ctypes.data, from_there.data.ptr, out, runtime.memcpyDeviceToHost, streams[1].ptr)
        for stream in streams:
            stream.synchronize()

    go(True)
    return {"in": median(lambda: go(False)), "both": median(lambda: go(True))}


def timed(gpu: OnGpu, corpus: str, data: Any, ends: Any, args: argparse.Namespace) -> dict:
    """One corpus with one vocabulary, every way."""
    import cupy
    import numpy as np

    from piecemill.tokenizers.engines.cuda.device import pinned

    text = pinned(len(data))
    text[:] = data
    tokens = len(gpu.here(text, ends)[0])
    there = cupy.asarray(text)
    row = {"vocabulary": gpu.name, "corpus": corpus, "bytes": len(data), "documents": len(ends), "tokens": tokens}
    row["gpu"] = {
        "first": median(lambda: gpu.here(text, ends), gpu.forget),
        "warm": median(lambda: gpu.here(text, ends)),
        "resident": median(lambda: gpu.engine.encode_on_device(there, ends, narrow=gpu.narrow)),
    }
    row["processor"] = {"warm": median(lambda: gpu.processor(data, ends))}
    if corpus != "adversarial" and args.gigatoken:
        row["gigatoken"] = with_gigatoken(gigatoken_of(gpu.name, args.carried), np.array(data), ends)
    if "1 GB" in corpus:
        row["copies"] = copies(len(data), tokens * (2 if gpu.narrow else 4))
        row["stages"] = gpu.stages(text, ends)
    ways = {way: row[way] for way in ("gpu", "processor", "gigatoken", "copies") if way in row}
    speeds = {way: {kind: f"{len(data) / s / 1e9:.2f}" for kind, s in seen.items()} for way, seen in ways.items()}
    print(f"speed   {gpu.name} {corpus}: {speeds}", flush=True)
    return row


def measure(args: argparse.Namespace) -> dict:
    import cupy

    found = corpora(args.carried, args.python_bytes)
    rows: list[dict] = []
    exact: dict[str, dict] = {}
    for name in args.vocabs:
        gpu = OnGpu(name, args.carried)
        wrong = {corpus: gpu.compare(*texts) for corpus, texts in found.items()}
        data, ends = found["english"]
        sample = [bytes(data[a:b]) for a, b in zip(ends[:400].tolist(), ends[1:401].tolist(), strict=True)]
        data, ends = found["adversarial"]
        sample += [one for a, b in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True) if (one := bytes(data[a:b]))]
        home = gpu.compare_home(sample[:6000])
        size = sum(len(data) for data, _ in found.values())
        exact[name] = {"bytes": size, "differ": wrong, "home": gpu.tokenizer.model.home, "home_differ": home}
        print(f"exact   {name}: {size:,} bytes, differ {wrong}, from {gpu.tokenizer.model.home} {home}", flush=True)
        if any(wrong.values()) or home:
            raise SystemExit("ids differ; no time is shown")
        if name not in TIMED:
            continue
        big = {f"{one}, 1 GB": tiled(found[one], GIGABYTE) for one in ("python", "english")}
        for corpus, (data, ends) in {**found, **big}.items():
            rows.append(timed(gpu, corpus, data, ends, args))
        memory = gpu.device.device_bytes
        del gpu
        cupy.get_default_memory_pool().free_all_blocks()
    return {
        "benchmark": "encode_gpu",
        "question": "encode_gpu",
        "tool": "piecemill",
        "session": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "complete": True,
        "commit": args.commit,
        "machine": machine()
        | {"device": cupy.cuda.runtime.getDeviceProperties(0)["name"].decode(), "cupy": cupy.__version__},
        "device_bytes": memory,
        "exact": exact,
        "rows": rows,
        "prepare": prepared(args, found) if args.prepare else [],
        "runs": [],
    }


def prepared(args: argparse.Namespace, found: dict[str, tuple[Any, Any]]) -> list[dict]:
    """`prepare` with both engines from files in memory: seconds, and by stage; the folders must be the same."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    import piecemill as pm
    from piecemill.sources import open_source

    file, split = VOCABS["cl100k"]
    folder = Path("/dev/shm/piecemill-prepare")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    texts = []
    for name in ("python", "english"):
        data, ends = found[name]
        starts = [0, *ends[:-1].tolist()]
        texts += [bytes(data[a:b]).decode() for a, b in zip(starts, ends.tolist(), strict=True)]
    texts *= PREPARED // sum(len(found[name][0]) for name in ("python", "english"))
    size, rows = sum(len(text.encode()) for text in texts), []
    lines = [json.dumps({"text": text}, ensure_ascii=False).encode() + b"\n" for text in texts]
    (folder / "text.jsonl").write_bytes(b"".join(lines))
    pq.write_table(pa.table({"text": texts}), folder / "text.parquet", row_group_size=500)
    packed = [folder / f"{number}.jsonl.zst" for number in range(16)]

    def pack_lines(number: int) -> None:
        with pa.CompressedOutputStream(str(packed[number]), "zstd") as out:
            out.write(b"".join(lines[number::16]))

    with ThreadPoolExecutor(16) as threads:
        list(threads.map(pack_lines, range(16)))
    sources = {"JSONL": folder / "text.jsonl", "Parquet": folder / "text.parquet", "16 JSONL, zstd": packed}
    for kind, source in sources.items():
        alone = []
        for _ in range(REPEATS):
            started = time.perf_counter()
            opened = open_source(source)
            with ThreadPoolExecutor(16) as threads:
                list(threads.map(lambda task, of=opened: sum(len(block) for block in of.read(task)), opened.tasks))
            alone.append(time.perf_counter() - started)
        rows.append({"source": kind, "engine": "none: reading alone", "bytes": size, "seconds": alone})
        print(f"prepare {kind} reading alone: {statistics.median(alone):.2f} s", flush=True)
        for engine in ("piecemill", "cuda"):
            tokenizer = pm.load_tokenizer(args.carried / "vocabs" / file, pretokenizer=split, engine=engine)
            tokenizer.encode_flat(*found["english"])  # compiles the kernels
            seconds, made = [], folder / "out"
            for _ in range(REPEATS):
                shutil.rmtree(made, ignore_errors=True)
                started = time.perf_counter()
                pm.prepare(source, tokenizer, out=made, memory="16GiB")
                seconds.append(time.perf_counter() - started)
            timing = json.loads((made / "timing.json").read_text())
            rows.append({"source": kind, "engine": engine, "bytes": size, "seconds": seconds, "timing": timing,
                         "folder": digest(made)})  # fmt: skip
            print(f"prepare {kind} {engine}: {statistics.median(seconds):.2f} s {timing}", flush=True)
        if rows[-1]["folder"] != rows[-2]["folder"]:
            raise SystemExit(f"{kind}: the engines wrote other bytes; no time is shown")
    shutil.rmtree(folder)
    return rows


def digest(folder: Path) -> str:
    """Of all files but the one that says how long it took."""
    every = hashlib.sha256()
    for file in sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "timing.json"):
        every.update(f"{file.relative_to(folder)} {hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return every.hexdigest()


# Tables


def render(records: Sequence[dict]) -> str:
    mine = [record for record in records if record.get("benchmark") == "encode_gpu"]
    if not mine:
        return "\nNot measured yet.\n"
    record = mine[-1]
    rows = {(row["vocabulary"], row["corpus"]): row for row in record["rows"]}
    parts = [tables.bars_table("Bars of encoding on a GPU", bars(record, rows))]
    about = record["machine"]
    size = sum(one["bytes"] for one in record["exact"].values()) / 1e9
    parts.append(
        f"\n{about['device']} and {about['processor']}, {about['cores']} cores; {record['session'][:10]}.\n"
        f"GB/s of text, medians of {REPEATS}. "
        f"Compared first, twice: {size:.2f} GB, {len(record['exact'])} vocabularies.\n\n"
    )
    header = ["vocabulary", "corpus", "MB", "first", "warm", "ids stay on the GPU", "our encoder, all cores"]
    header += ["gigatoken, first", "gigatoken, warm"]
    lines = []
    for (name, corpus), row in rows.items():
        speed = lambda way, kind, row=row: (  # noqa: E731
            f"{row['bytes'] / row[way][kind] / 1e9:.2f}" if kind in row.get(way, {}) else ""
        )
        lines.append([name, corpus, f"{row['bytes'] / 1e6:,.0f}", speed("gpu", "first"), speed("gpu", "warm"),
                      speed("gpu", "resident"), speed("processor", "warm"), speed("gigatoken", "first"),
                      speed("gigatoken", "warm")])  # fmt: skip
    parts.append(tables.table(header, lines))
    staged = [row for row in record["rows"] if "stages" in row]
    if staged:
        every = {name for row in staged for name in row["stages"]}
        names = sorted(every, key=lambda name: (-staged[0]["stages"].get(name, 0), name))
        header = ["milliseconds for 1 GB", *(f"{row['vocabulary']}, {row['corpus'].split(',')[0]}" for row in staged)]
        lines = [
            [name, *(f"{row['stages'].get(name, 0) / row['bytes'] * 1e9:.2f}" for row in staged)] for name in names
        ]
        lines.append(["**all, measured**", *(f"{row['gpu']['warm'] / row['bytes'] * 1e12:.2f}" for row in staged)])
        both = [f"{row['copies']['both'] / row['bytes'] * 1e12:.2f}" for row in staged]
        lines.append(["copies alone, both ways", *both])
        of_roof = [f"{row['copies']['both'] / row['gpu']['warm']:.0%}" for row in staged]
        lines.append(["share of the speed of copies alone", *of_roof])
        parts.append("\nWhere the time goes, warm; copies and kernels overlap.\n\n" + tables.table(header, lines))
    parts.append("\n![GB/s by corpus](encode-gpu.svg)\n")
    if record.get("prepare"):
        header = ["`prepare` from", "engine", "seconds", "MB/s", "reading", "choosing", "encoding", "writing"]
        lines = []
        for row in record["prepare"]:
            took, stages = statistics.median(row["seconds"]), row.get("timing", {}).get("stages", {})
            each = [
                f"{stages[stage]:.1f}" if stage in stages else "" for stage in ("read", "select", "encode", "write")
            ]
            lines.append([row["source"], row["engine"], f"{took:.2f}", f"{row['bytes'] / took / 1e6:,.0f}", *each])
        parts.append("\nThe same bytes in the folder; stages are seconds summed over threads.\n\n")
        parts.append(tables.table(header, lines))
    return "".join(parts) + "\n"


def plot(record: dict, path: Path) -> None:
    """Speed by corpus, on a logarithmic scale."""
    import matplotlib.pyplot as plt

    rows = [row for row in record["rows"] if row["vocabulary"] == "cl100k"]
    ways = [
        ("GPU, warm", "gpu", "warm"),
        ("GPU, first pass", "gpu", "first"),
        ("Piecemill, 16 cores", "processor", "warm"),
        ("gigatoken, 16 cores", "gigatoken", "warm"),
    ]
    plt.rcParams["svg.hashsalt"] = "piecemill"  # the same bytes for the same figures
    figure, axes = plt.subplots(figsize=(9, 4))
    for number, (label, way, kind) in enumerate(ways):
        there = [(place, row) for place, row in enumerate(rows) if way in row]
        heights = [row["bytes"] / row[way][kind] / 1e9 for _, row in there]
        bars_drawn = axes.bar([place + 0.2 * (number - 1.5) for place, _ in there], heights, 0.2, label=label)
        axes.bar_label(bars_drawn, [f"{height:.3g}" for height in heights], fontsize=6)
    axes.set_yscale("log")
    axes.set_ylabel("GB/s of text, cl100k")
    axes.set_xticks(range(len(rows)), [row["corpus"] for row in rows], fontsize=8)
    axes.legend(fontsize=8, ncols=4, loc="upper center", bbox_to_anchor=(0.5, 1.12), frameon=False)
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})


def bars(record: dict, rows: dict[tuple[str, str], dict]) -> list[Bar]:
    def speed(corpus: str, kind: str) -> list[float]:
        return [row["bytes"] / row["gpu"][kind] / 1e9 for (_, one), row in rows.items() if one == corpus]

    def least(promise: str, corpus: str, kind: str, limit: float) -> Bar:
        found = speed(corpus, kind)
        return bar(promise, [min(found) if found else None], lambda slowest: (f"{slowest:.2f} GB/s", slowest >= limit))

    ratios = [
        row["gigatoken"]["warm"] / row["gpu"]["warm"]
        for row in rows.values()
        if "1 GB" in row["corpus"] and "gigatoken" in row
    ]
    took = {(row["source"], row["engine"]): statistics.median(row["seconds"]) for row in record["prepare"]}
    gains = [took[source, "piecemill"] / seconds for (source, engine), seconds in took.items() if engine == "cuda"]
    memory = record["device_bytes"] / 1e9
    wrong = sum(sum(one["differ"].values()) + one["home_differ"] for one in record["exact"].values())
    return [
        least("1 GB of English, warm, host to host: at least 30 GB/s", "english, 1 GB", "warm", 30),
        least("1 GB of Python, warm, host to host: at least 30 GB/s", "python, 1 GB", "warm", 30),
        bar("and at least 10x gigatoken on all cores", [min(ratios) if ratios else None],
            lambda ratio: (f"{ratio:.1f}x", ratio >= 10)),
        least("first pass over 400 MB of Python that does not repeat: at least 20 GB/s", "python", "first", 20),
        least("first pass over 90 MB of multilingual text: at least 10 GB/s", "multilingual", "first", 10),
        least("adversarial texts with words of 20 to 70 KB: at least 0.5 GB/s", "adversarial", "first", 0.5),
        Bar("memory on the device at most 3 GB", f"{memory:.2f} GB", memory <= 3),
        Bar("documents with other ids than the home library's: 0", str(wrong), wrong == 0),
        bar("`prepare` faster than with our own encoder on all cores", [min(gains) if gains else None],
            lambda gain: (f"{gain:.2f}x", gain > 1)),
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pack", action="store_true", help="make the folder that travels")
    parser.add_argument("--carried", type=Path, default=HERE.parent / "carry", help="that folder (default: carry)")
    parser.add_argument("--vocabs", type=lambda text: text.split(","), default=list(VOCABS), help="default: all")
    parser.add_argument("--python-bytes", type=int, default=404_000_000, help="of Python (default: 404 million)")
    parser.add_argument("--no-gigatoken", dest="gigatoken", action="store_false", help="leave the peer out")
    parser.add_argument("--prepare", action="store_true", help="measure `prepare` with both engines too")
    parser.add_argument("--out", type=Path, help="folder for the record")
    parser.add_argument("--commit", default="", help="what is being measured, where there is no git")
    parser.add_argument("--take", type=Path, help="keep the record of this folder and rewrite the page")
    parser.add_argument("--table", action="store_true", help="rewrite the page")
    args = parser.parse_args()
    if args.pack:
        pack(args.carried)
    elif args.take or args.table:
        if args.take:
            append(RESULTS, json.loads((args.take / "encode-gpu.json").read_text(encoding="utf-8")))
        write_page("encode-gpu", render, RESULTS)
        plot(
            [record for record in read(RESULTS) if record.get("benchmark") == "encode_gpu"][-1],
            PAGE.parent / "encode-gpu.svg",
        )
    else:
        if args.out is None:
            parser.error("name --out, or --pack, --take or --table")
        record = measure(args)
        args.out.mkdir(parents=True, exist_ok=True)
        (args.out / "encode-gpu.json").write_text(json.dumps(record) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
