"""Encoding on a GPU: exactness and speed, beside gigatoken and our own encoder on all cores, on a machine with one.

    python benchmarks/encode_gpu.py --pack                                # here: makes carry/
    python3 benchmarks/encode_gpu.py --carried carry --out OUT            # there: writes a record to OUT
    python benchmarks/encode_gpu.py --take OUT                            # here: keeps the record, rewrites the page

Ids are compared before any time is shown: all corpora with our own encoder, a sample with the home library. Every time
is the median of three passes. `first` is a pass with an empty word table; the text is in pinned memory, as are the ids.
"""

import base64
import contextlib
import gzip
import hashlib
import json
import multiprocessing
import shutil
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "python"), str(HERE.parent / "tests")]

from carry import CARRY, SITE, RemoteBenchmark, check_size, install, new_folder, pack_text  # noqa: E402
from corpus import repeated  # noqa: E402
from encode_peers import Gigatoken  # noqa: E402
from encode_vocabularies import VOCABULARIES  # noqa: E402
from protocol import SHARED  # noqa: E402
from session import header, read  # noqa: E402
from tables import PAGE, bar, grid  # noqa: E402
from worker import cut, texts  # noqa: E402

VOCABS = ("gpt2", "cl100k", "o200k", "qwen3.5", "deepseek-v3")
TIMED = ("gpt2", "cl100k", "o200k")
TEXT = {"english": "english-40mb", "multilingual": "multilingual-30mb"}
GIGABYTE = 1_000_000_000
REPEATS = 3


# Corpora: all documents one after another, and where each ends


def flat(documents):
    return np.frombuffer(b"".join(documents), np.uint8), np.cumsum([len(one) for one in documents]).astype(np.int64)


def corpora(carried):
    from adversarial import adversarial

    rng = np.random.default_rng(5)
    english, multilingual = (list(texts(carried / f"{name}.jsonl.xz")) for name in TEXT)
    return {
        "python": flat(installed_python(404_000_000)),
        "english": flat([text.encode() for text in english]),
        "multilingual": flat([text.encode() for text in repeated(multilingual, 90_000_000)]),
        "base64": flat([base64.b64encode(rng.bytes(int(rng.integers(1, 30_000)))) for _ in range(1000)]),
        "adversarial": flat(adversarial(6_000_000)),
    }


def installed_python(size):
    """Distinct Python files of this machine."""
    found = {}
    for folder in [*map(Path, sys.path), Path("/usr/lib/python3"), Path("/usr/lib/python3.12")]:
        for file in sorted(folder.rglob("*.py*")) if folder.is_absolute() and folder.is_dir() else []:
            if file.suffix in (".py", ".pyi") and file.is_file() and size > 0:
                data = file.read_bytes()
                with contextlib.suppress(UnicodeDecodeError):
                    size -= len(data) if data not in found and data.decode() else 0
                    found[data] = None
    return list(found)


def tiled(found, size):
    data, ends = found
    times = -(-size // len(data))
    return np.tile(data, times), np.concatenate([ends + number * len(data) for number in range(times)])


# Measuring


def timed(work, before=lambda: None):
    seconds = []
    for _ in range(REPEATS):
        before()
        started = time.perf_counter()
        made = work()
        seconds.append(time.perf_counter() - started)
        del made  # freeing it is not timed
    return seconds


def median(work, before=lambda: None):
    return statistics.median(timed(work, before))


def load(name, path, **options):
    import piecemill as pm

    made = VOCABULARIES[name]
    return pm.load_tokenizer(path, **({"pretokenizer": made.split} if made.kind == "ranks" else {}), **options)


def path_of(name, carried):
    return carried / "vocabs" / Path(VOCABULARIES[name].source).name


class OnGpu:
    """One vocabulary on the GPU, and the ways to ask it."""

    def __init__(self, name, carried):
        from piecemill.tokenizers.engines.cuda import CudaEngine
        from piecemill.tokenizers.engines.piecemill import build_of

        path = path_of(name, carried)
        if path.name.endswith(".json.gz"):
            packed, path = path, carried / name / "tokenizer.json"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(gzip.decompress(packed.read_bytes()))
        self.name, self.path, self.narrow = name, path, name == "gpt2"
        self.tokenizer = load(name, path)
        self.engine = CudaEngine(build_of(self.tokenizer.model))
        self.device = self.engine._device(narrow=self.narrow)
        self.plain = {"bos": None, "eos": None, "narrow": self.narrow, "special": "plain", "threads": 0}

    def here(self, data, ends):
        return self.engine.encode_flat(data, ends, **self.plain)

    def forget(self):
        import cupy

        self.device.flush()
        cupy.cuda.runtime.deviceSynchronize()

    def processor(self, data, ends):
        return self.engine.encoder.encode_flat(data, ends, **self.plain)

    def compare(self, data, ends):
        """Documents with other ids than our own encoder gives; twice, the second time from the table."""
        (wanted, wanted_ends), wrong = self.processor(data, ends), 0
        for _ in range(2):
            ids, token_ends = self.here(data, ends)
            if not (np.array_equal(ids, wanted) and np.array_equal(token_ends, wanted_ends)):
                wrong += max(1, int((np.diff(token_ends) != np.diff(wanted_ends)).sum()))
        return wrong

    def compare_home(self, given):
        """Documents with other ids than the home library gives."""
        found = cut(*self.here(*flat(given)))
        parts = [(self.name, self.path, self.tokenizer.model.home, given[number::16]) for number in range(16)]
        with multiprocessing.get_context("spawn").Pool(16) as pool:
            wanted = pool.map(home_ids, parts, chunksize=1)
        return sum(ids.tolist() != wanted[number % 16][number // 16] for number, ids in enumerate(found))

    def stages(self, data, ends):
        """Milliseconds of every kernel and copy in one pass."""
        import torch
        from torch.profiler import ProfilerActivity, profile

        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            self.here(data, ends)
            torch.cuda.synchronize()
        rows = {row.key: row.self_device_time_total / 1e3 for row in seen.key_averages()}
        return {name: round(ms, 3) for name, ms in sorted(rows.items(), key=lambda row: -row[1]) if ms >= 0.01}


def home_ids(job):
    from piecemill.tokenizers.engines import load_engine

    name, path, home, given = job
    engine = load_engine(load(name, path).model, home, "asked")
    return [engine.encode(document.decode(), "plain").tolist() for document in given]


def with_gigatoken(name, carried, data, ends):
    sys.path.append(str(carried / "site"))
    import gigatoken

    given, path, made = Gigatoken().prepare(data, ends), str(path_of(name, carried)), []

    def fresh():
        if name == "gpt2":
            made[:] = [gigatoken.Tokenizer(path)]
        else:
            split = {"cl100k": "gpt4", "o200k": "o200k"}[name]
            made[:] = [gigatoken.Tokenizer.from_tiktoken(path, pretokenizer=split)]

    first = median(lambda: made[0].encode_batch(given, parallel=True), fresh)
    return {"first": first, "warm": median(lambda: made[0].encode_batch(given, parallel=True))}


def copies(size, out):
    """Seconds of plain copies: in alone, and in and out at the same time."""
    import cupy
    from cupy.cuda import runtime

    from piecemill.tokenizers.engines.cuda.device import pinned

    here, there = pinned(max(size, out)), cupy.empty(max(size, out), cupy.uint8)
    back, from_there = pinned(max(out, 1)), cupy.empty(max(out, 1), cupy.uint8)
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]

    def go(both):
        runtime.memcpyAsync(there.data.ptr, here.ctypes.data, size, runtime.memcpyHostToDevice, streams[0].ptr)
        if both:
            runtime.memcpyAsync(back.ctypes.data, from_there.data.ptr, out, runtime.memcpyDeviceToHost, streams[1].ptr)
        for stream in streams:
            stream.synchronize()

    go(True)
    return {"in": median(lambda: go(False)), "both": median(lambda: go(True))}


def every_way(gpu, corpus, data, ends, args):
    """One corpus with one vocabulary."""
    import cupy

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
    if corpus != "adversarial":
        row["gigatoken"] = with_gigatoken(gpu.name, args.carried, data, ends)
    if "1 GB" in corpus:
        row["copies"] = copies(len(data), tokens * (2 if gpu.narrow else 4))
        row["stages"] = gpu.stages(text, ends)
    print(f"speed   {gpu.name} {corpus}: {row}", flush=True)
    return row


def prepared(args, found):
    """`prepare` with both engines from files in memory: seconds, and by stage; the folders must be the same."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    import piecemill as pm
    from piecemill.sources import open_source

    folder = new_folder(Path("/dev/shm/piecemill-prepare"))
    jsonl, parquet, made = (folder / name for name in ("text.jsonl", "text.parquet", "out"))
    packed = [folder / f"{number}.jsonl.zst" for number in range(16)]
    once = [bytes(text) for name in ("python", "english") for text in cut(*found[name])]
    size = sum(map(len, once)) * (times := 2 * GIGABYTE // sum(map(len, once)))
    given, rows = [text.decode() for text in once] * times, []
    lines = [json.dumps({"text": text}, ensure_ascii=False).encode() + b"\n" for text in given]
    jsonl.write_bytes(b"".join(lines))
    pq.write_table(pa.table({"text": given}), parquet, row_group_size=500)
    for number, path in enumerate(packed):
        with pa.CompressedOutputStream(str(path), "zstd") as out:
            out.write(b"".join(lines[number::16]))

    def read_alone(source):
        opened = open_source(source)
        with ThreadPoolExecutor(16) as threads:
            list(threads.map(lambda task: sum(len(block) for block in opened.read(task)), opened.tasks))

    for kind, source in {"JSONL": jsonl, "Parquet": parquet, "16 JSONL, zstd": packed}.items():
        about = {"source": kind, "bytes": size}
        alone = timed(lambda source=source: read_alone(source))
        rows.append({**about, "engine": "none: reading alone", "seconds": alone})
        for engine in ("piecemill", "cuda"):
            tokenizer = load("cl100k", path_of("cl100k", args.carried), engine=engine)
            tokenizer.encode_flat(*found["english"])  # compiles the kernels
            seconds = timed(
                lambda source=source, tokenizer=tokenizer: pm.prepare(source, tokenizer, out=made, memory="16GiB"),
                lambda: shutil.rmtree(made, ignore_errors=True),
            )
            timing = json.loads((made / "timing.json").read_text())
            rows.append({**about, "engine": engine, "seconds": seconds, "timing": timing, "folder": digest(made)})
        if rows[-1]["folder"] != rows[-2]["folder"]:
            raise SystemExit(f"{kind}: the engines wrote other bytes; no time is shown")
        for row in rows[-3:]:
            seconds = statistics.median(row["seconds"])
            print(f"prepare {kind} {row['engine']}: {seconds:.2f} s {row.get('timing', '')}", flush=True)
    shutil.rmtree(folder)
    return rows


def digest(folder):
    """Of all files but the one that says how long it took."""
    every = hashlib.sha256()
    for file in sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "timing.json"):
        every.update(f"{file.relative_to(folder)} {hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return every.hexdigest()


class EncodeGpu(RemoteBenchmark):
    name, title = "encode-gpu", "Bars of encoding on a GPU"

    def flags(self, add):
        add("--pack", action="store_true", help="make the folder that travels")
        add("--carried", type=Path, default=CARRY, help="that folder (default: carry)")
        add("--prepare", action="store_true", help="measure `prepare` with both engines too")

    def pack(self, args):
        out = new_folder(args.carried)
        (out / "vocabs").mkdir()
        for name in VOCABS:
            shutil.copyfile(SHARED / "vocabs" / VOCABULARIES[name].source, path_of(name, out))
        for name, of in TEXT.items():
            pack_text([of], out / f"{name}.jsonl.xz")
        install(out / "site", [*SITE, "zstandard"], "3.12")
        for library in (out / "site" / "zstandard").glob("_cffi*.so"):
            library.unlink()
        subprocess.run(["strip", *(out / "site" / "zstandard").glob("*.so")], check=True)
        check_size(out)

    def measure(self, args):
        import cupy

        found = corpora(args.carried)
        size, rows, exact = sum(len(data) for data, _ in found.values()), [], {}
        for name in VOCABS:
            gpu = OnGpu(name, args.carried)
            wrong, home = {corpus: gpu.compare(*given) for corpus, given in found.items()}, gpu.tokenizer.model.home
            english, adversarial = (list(map(bytes, cut(*found[one]))) for one in ("english", "adversarial"))
            differ = gpu.compare_home([*english[1:401], *filter(None, adversarial[1:])][:6000])
            exact[name] = {"bytes": size, "differ": wrong, "home": home, "home_differ": differ}
            print(f"exact   {name}: {size:,} bytes, differ {wrong}, from {home} {differ}", flush=True)
            if any(wrong.values()) or differ:
                raise SystemExit("ids differ; no time is shown")
            if name not in TIMED:
                continue
            big = {f"{one}, 1 GB": tiled(found[one], GIGABYTE) for one in ("python", "english")}
            rows += [every_way(gpu, corpus, *given, args) for corpus, given in (found | big).items()]
            memory = gpu.device.device_bytes
            del gpu
            cupy.get_default_memory_pool().free_all_blocks()
        device = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
        return header("encode_gpu", commit=args.commit, device=device, cupy=cupy.__version__) | {
            **{"question": "encode_gpu", "tool": "piecemill", "device_bytes": memory, "exact": exact, "rows": rows},
            **{"prepare": prepared(args, found) if args.prepare else [], "runs": []},
        }

    def write_page(self, results):
        super().write_page(results)
        plot(self.shown(read(results))[0], PAGE.parent / "encode-gpu.svg")

    def shown(self, records):
        return [record for record in records if record.get("benchmark") == "encode_gpu"][-1:]

    def tables(self, records):
        (record,) = records
        size = sum(one["bytes"] for one in record["exact"].values()) / 1e9
        where = "{machine[device]} and {machine[processor]}, {machine[cores]} cores; {session:.10}.".format_map(record)
        compared = f"Compared first, twice: {size:.2f} GB, {len(record['exact'])} vocabularies."
        yield f"\n{where}\nGB/s of text, medians of {REPEATS}. {compared}\n\n"
        rows = [
            [row["vocabulary"], row["corpus"], f"{row['bytes'] / 1e6:,.0f}"]
            + [f"{speed(row, *way):.2f}" if way[0] in row else "" for way in WAYS.values()]
            for row in record["rows"]
        ]
        yield grid(["vocabulary", "corpus", "MB", *WAYS], rows)
        yield "\nWhere the time goes, warm; copies and kernels overlap.\n\n"
        yield stages_table([row for row in record["rows"] if "stages" in row])
        yield "\n![GB/s by corpus](encode-gpu.svg)\n"
        if record["prepare"]:
            columns = ["`prepare` from", "engine", "seconds", "MB/s", "reading", "choosing", "encoding", "writing"]
            yield "\nThe same bytes in the folder; stages are seconds summed over threads.\n\n"
            yield grid(columns, map(prepare_row, record["prepare"]))

    def bars(self, records):
        (record,) = records
        rows = record["rows"]

        def least(promise, corpus, kind, limit):
            slowest = min((speed(row, "gpu", kind) for row in rows if row["corpus"] == corpus), default=None)
            return bar(promise, "{:.2f} GB/s", slowest, least=limit)

        large = [row for row in rows if "1 GB" in row["corpus"] and "gigatoken" in row]
        times = min((row["gigatoken"]["warm"] / row["gpu"]["warm"] for row in large), default=None)
        took = {(row["source"], row["engine"]): statistics.median(row["seconds"]) for row in record["prepare"]}
        gains = [took[source, "piecemill"] / seconds for (source, engine), seconds in took.items() if engine == "cuda"]
        wrong = sum(sum(one["differ"].values()) + one["home_differ"] for one in record["exact"].values())
        gain = min(gains, default=None)
        return [
            least("1 GB of English, warm, host to host: at least 30 GB/s", "english, 1 GB", "warm", 30),
            least("1 GB of Python, warm, host to host: at least 30 GB/s", "python, 1 GB", "warm", 30),
            bar("and at least 10x gigatoken on all cores", "{:.1f}x", times, least=10),
            least("first pass over 400 MB of Python that does not repeat: at least 20 GB/s", "python", "first", 20),
            least("first pass over 90 MB of multilingual text: at least 10 GB/s", "multilingual", "first", 10),
            least("adversarial texts with words of 20 to 70 KB: at least 0.5 GB/s", "adversarial", "first", 0.5),
            bar("memory on the device at most 3 GB", "{:.2f} GB", record["device_bytes"] / 1e9, most=3),
            bar("documents with other ids than the home library's: 0", "{}", wrong, most=0),
            bar("`prepare` faster than with our own encoder on all cores", "{:.2f}x", gain, gain and gain > 1, least=1),
        ]


WAYS = {
    **{"first": ("gpu", "first"), "warm": ("gpu", "warm"), "ids stay on the GPU": ("gpu", "resident")},
    "our encoder, all cores": ("processor", "warm"),
    **{"gigatoken, first": ("gigatoken", "first"), "gigatoken, warm": ("gigatoken", "warm")},
}


def speed(row, way, kind):
    """GB/s."""
    return row["bytes"] / row[way][kind] / 1e9


def stages_table(rows):
    first = rows[0]["stages"]
    stages = sorted({name for row in rows for name in row["stages"]}, key=lambda name: (-first.get(name, 0), name))
    spent = [[name, *(f"{row['stages'].get(name, 0) / row['bytes'] * 1e9:.2f}" for row in rows)] for name in stages]
    for name, way, kind in (("**all, measured**", "gpu", "warm"), ("copies alone, both ways", "copies", "both")):
        spent.append([name, *(f"{row[way][kind] / row['bytes'] * 1e12:.2f}" for row in rows)])
    roof = [f"{row['copies']['both'] / row['gpu']['warm']:.0%}" for row in rows]
    spent.append(["share of the speed of copies alone", *roof])
    named = [f"{row['vocabulary']}, {row['corpus'].split(',')[0]}" for row in rows]
    return grid(["milliseconds for 1 GB", *named], spent)


def prepare_row(row):
    took, parts = statistics.median(row["seconds"]), row.get("timing", {}).get("stages", {})
    each = [f"{parts[part]:.1f}" if part in parts else "" for part in ("read", "select", "encode", "write")]
    return [row["source"], row["engine"], f"{took:.2f}", f"{row['bytes'] / took / 1e6:,.0f}", *each]


def plot(record, path):
    """Speed by corpus, on a logarithmic scale."""
    import matplotlib.pyplot as plt

    rows = [row for row in record["rows"] if row["vocabulary"] == "cl100k"]
    ways = {
        **{"GPU, warm": ("gpu", "warm"), "GPU, first pass": ("gpu", "first")},
        **{"Piecemill, 16 cores": ("processor", "warm"), "gigatoken, 16 cores": ("gigatoken", "warm")},
    }
    plt.rcParams["svg.hashsalt"] = "piecemill"  # the same bytes for the same figures
    figure, axes = plt.subplots(figsize=(9, 4))
    for number, (label, way) in enumerate(ways.items()):
        heights = {place + 0.2 * (number - 1.5): speed(row, *way) for place, row in enumerate(rows) if way[0] in row}
        bars_drawn = axes.bar(heights.keys(), heights.values(), 0.2, label=label)
        axes.bar_label(bars_drawn, fmt="{:.3g}", fontsize=6)
    axes.set_yscale("log")
    axes.set_ylabel("GB/s of text, cl100k")
    axes.set_xticks(range(len(rows)), [row["corpus"] for row in rows], fontsize=8)
    axes.legend(fontsize=8, ncols=4, loc="upper center", bbox_to_anchor=(0.5, 1.12), frameon=False)
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})


if __name__ == "__main__":
    EncodeGpu().main()
