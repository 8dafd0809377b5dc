"""Records of `encode.py` to tables and bars.

Of each question and library the last record counts, in its faster form. Bars compare figures of one session only, and
take medians; a library that gives other ids has no time in the tables, but bars that name it use its time and say so.
"""

from collections.abc import Callable, Iterable, Sequence

import tables as writer
from measure import median_and_spread
from tables import OURS, Bar, bar, ratio

GIGATOKEN, CANDIDATE, HF, TIKTOKEN = "gigatoken", "tokenizers-1.0rc", "tokenizers", "tiktoken"
CORPORA = ["python-127mb", "english-40mb", "english-4mb", "multilingual-30mb", "cjk-8mb", "base64-20mb"]
VOCABULARIES = ["gpt2", "cl100k", "o200k", "qwen3.5", "deepseek-v3", "mistral-v1", "bert"]
Key = tuple[str, str, str, int]  # question, vocabulary, corpus, threads
Group = dict[str, dict]  # record of each library


def latest(records: Iterable[dict]) -> dict[Key, Group]:
    """Of each question the last record of every library, in its faster form."""
    chosen = [line for line in records if line["chosen"]]
    groups = writer.grouped(chosen, "question", "vocabulary", "corpus", "threads")
    return {key: {line["tool"]: line for line in group} for key, group in groups.items()}


def clock(question: str, threads: int) -> str:
    """One thread is judged by its processor time, which other work on the machine disturbs less; more by wall time.

    So is one thread beside more of them.
    """
    return "cpu_seconds" if threads == 1 and question != "scaling" else "seconds"


def figures(record: dict | None, name: str) -> list[float]:
    """Of each run: MB/s of a pass (see `encode_peers.py`), or microseconds of a string."""
    runs = [run for run in record["runs"] if run["outcome"] == "ok"] if record else []
    if name in ("first", "cold", "warm"):
        seconds = clock(record["question"], record["threads"]) if record else ""
        return [record["text_bytes"] / run[name][seconds] / 1e6 for run in runs if run.get(name)]
    return [run[f"{name}_microseconds"] for run in runs]


def speed(record: dict | None, name: str = "cold") -> float | None:
    """The median, of a library with other ids too; None if there is no time."""
    found = figures(record, name)
    return median_and_spread(found)[0] if found else None


def growth(record: dict) -> float:
    """Bytes beyond text, tokenizer and ids: the highest run, since a limit is a limit."""
    return max((run.get("first", run["cold"])["growth_bytes"] for run in record["runs"] if run.get("cold")), default=0)


def rounded(value: float) -> str:
    return f"{value:,.0f}" if value >= 99.5 else f"{value:.1f}"


# Tables


def tables(records: Sequence[dict]) -> Iterable[str]:
    groups = latest(records)
    for name in VOCABULARIES:
        for threads in sorted({key[3] for key in groups if key[:2] == ("bulk", name)}):
            yield bulk_table("bulk", name, threads, groups)
    for name in sorted({key[1] for key in groups if key[0] == "regex"}):
        yield bulk_table("regex", name, 1, groups)
    short = {key[1]: group for key, group in groups.items() if key[0] == "short"}
    title = "One string of 50 characters: microseconds of encode (lowest-highest) / decode"
    yield table(title, {name: short[name] for name in VOCABULARIES if name in short}, short_cell)
    many = {key[3]: group for key, group in groups.items() if key[0] == "scaling"}
    alone = many[min(many)] if many else {}

    def cell(record: dict | None) -> str:
        times = ratio(speed(record), speed(alone.get(record["tool"]))) if record and not record["reason"] else None
        return bulk_cell(record) + (f", {times:.1f}x" if times else "")

    title = "A gigabyte with cl100k, cold: MB/s (lowest-highest), x one thread"
    yield table(title, {f"{count} threads": many[count] for count in sorted(many)}, cell)


def table(title: str, found: dict[str, Group], cell: Callable[[dict | None], str], more: str = "") -> str:
    """A row for each library, ours first, and a column for each group; `more` is the header of a last one, memory."""
    names = sorted({name: None for group in found.values() for name in group}, key=lambda name: name != OURS)
    records = [record for group in found.values() for record in group.values()]
    if not records:
        return ""
    rows = []
    for tool in names:
        mine = [group.get(tool) for group in found.values()]
        cells = [cell(record) for record in mine]
        if len(set(cells)) == 1:  # a reason that is the same everywhere stands in the first column alone
            cells[1:] = [""] * (len(cells) - 1)
        if more:
            most = max(growth(record) for record in mine if record)
            cells.append(f"{most / 1e6:,.0f}" if most else "")
        version = next(record["version"] for record in mine if record)
        rows.append([f"{f'**{tool}**' if tool == OURS else tool.removesuffix('-1.0rc')} {version}", *cells])
    last, loads = max(records, key=lambda record: record["session"]), [record["load"] for record in records]
    about = f"{writer.machine(last)}; {last['session'][:10]}, commit {last['commit']}"
    shown = writer.grid(["library", *found, *([more] if more else [])], rows)
    return writer.section(title, f"{about}; load {min(loads):.1f}-{max(loads):.1f}", shown, level=3)


def bulk_table(question: str, name: str, threads: int, groups: dict[Key, Group]) -> str:
    """One vocabulary: a column for each corpus."""
    found = {key[2]: group for key, group in groups.items() if (key[0], key[1], key[3]) == (question, name, threads)}
    order = [corpus for corpus in CORPORA if corpus in found] + sorted(set(found) - set(CORPORA))
    title = f"{name}, {threads} thread{'s' * (threads > 1)}: MB/s in a new process / cold (lowest-highest) / warm"
    return table(title, {name: found[name] for name in order}, bulk_cell, "MB beyond text, tokenizer and ids")


def bulk_cell(record: dict | None) -> str:
    first, cold, warm = (figures(record, name) for name in ("first", "cold", "warm"))
    if record is None or record["reason"] or not cold:
        return why_not(record)
    text = "{} ({}-{})".format(*map(rounded, median_and_spread(cold)))
    text = f"{rounded(median_and_spread(first)[0])} / {text}" if first else text
    return f"{text} / {rounded(median_and_spread(warm)[0])}" if warm else text


def short_cell(record: dict | None) -> str:
    encode, decode = figures(record, "encode"), figures(record, "decode")
    if record is None or record["reason"] or not encode:
        return why_not(record)
    return f"{writer.spread(encode, digits=2)} / {median_and_spread(decode)[0]:.2f}"


def why_not(record: dict | None) -> str:
    if record is None or record["reason"] or not record["runs"]:
        return record["reason"] or "not run" if record else ""
    last = record["runs"][-1]
    return f"{last['outcome']} {last.get('message', '').strip().rpartition(chr(10))[2][:100]}".strip()


# Bars


def bars(records: Sequence[dict]) -> list[Bar]:
    """The promises of encoding, of what ran together with ours."""
    groups = {
        key: {name: one for name, one in group.items() if one["session"] == group.get(OURS, {}).get("session")}
        for key, group in latest(records).items()
    }

    def bulk(vocabulary: str, *corpora: str, threads: int = 1) -> list[Group]:
        return [groups.get(("bulk", vocabulary, corpus, threads), {}) for corpus in corpora or CORPORA]

    def asked(question: str) -> dict[Key, Group]:
        return {key: group for key, group in groups.items() if key[0] == question}

    python, english, small, multilingual, _, base64 = CORPORA
    least = {python: 1.4, english: 1.4, multilingual: 1.6, base64: 2.4, small: 3.0}
    ours = [group[OURS] for group in groups.values() if OURS in group]
    found = [
        ratio_bar(
            f"cl100k, one thread, cold, {name}: at least {times}x gigatoken", bulk("cl100k", name), GIGATOKEN, times
        )
        for name, times in least.items()
    ]
    for name in (python, english):
        promise = f"cl100k, two threads, cold, {name}: at least 2x gigatoken's own parallel call"
        found.append(ratio_bar(promise, bulk("cl100k", name, threads=2), GIGATOKEN, 2))
    scaling = {key[3]: group for key, group in asked("scaling").items()}
    many, one = (speed(scaling.get(threads, {}).get(OURS)) for threads in (16, 1))
    cold, shown = (
        "16 threads on a gigabyte, cold: at least",
        many and one and f"{rounded(many)} and {rounded(one)} MB/s",
    )
    every = [group for name in VOCABULARIES for group in bulk(name)]
    return [
        *found,
        bar(f"{cold} 10x one thread", "{}: {:.2f}x", shown, ratio(many, one), least=10),
        ratio_bar(f"{cold} 1.5x gigatoken with 16 threads", [scaling[16]] if shown else [], GIGATOKEN, 1.5),
        ratio_bar("every corpus and vocabulary, one thread, cold: at least 2x `tokenizers` 1.0", every, CANDIDATE, 2),
        ratio_bar("mistral-v1, every corpus, cold: at least 3x gigatoken", bulk("mistral-v1"), GIGATOKEN, 3),
        ratio_bar("bert, every corpus, cold: at least 5x the fastest library with the same ids", bulk("bert"), None, 5),
        regex_bar(asked("regex").values()),
        *(short_bar({key[1]: group for key, group in asked("short").items()}, name) for name in ("encode", "decode")),
        memory_bar([record for record in ours if record["question"] != "short"]),
        exactness_bar([record for record in ours if record["differing"] is not None]),
    ]


def ratio_bar(promise: str, asked: Sequence[Group], peer: str | None, least: float) -> Bar:
    """Our speed over that of `peer`, or of the fastest peer with the same ids; of several questions the lowest."""
    refused = [group for group in asked if peer in group and group[peer]["reason"] and not group[peer]["runs"]]
    asked, found = [group for group in asked if group not in refused], []
    for group in asked:
        ours, other = group.get(OURS), group.get(peer) if peer else fastest(group)
        times = ratio(speed(ours), speed(other))
        if times and not ours["reason"]:
            found.append((times, ours, other))
    if not found:
        return Bar(promise)
    lowest, ours, other = min(found, key=lambda one: one[0])
    measured = f"{rounded(speed(ours))} and {rounded(speed(other))} MB/s: {lowest:.2f}x"
    measured += f" {other['tool']}" if peer is None else ""
    if len(asked) > 1:
        passing = sum(times >= least for times, _, _ in found)
        measured += f" ({ours['vocabulary']}, {ours['corpus']}); {passing} of {len(asked)} reach it"
        measured += f", {len(asked) - len(found)} not measured" if len(found) < len(asked) else ""
        measured += f"; {peer} refuses {len(refused)} more" if refused else ""
    different = sum(bool(theirs["differing"]) for _, _, theirs in found)
    measured += f"; {peer} gives other ids in {different} of these" if different else ""
    return Bar(promise, measured, lowest >= least if len(found) == len(asked) or lowest < least else None)


def fastest(group: Group) -> dict | None:
    others = [record for name, record in group.items() if name != OURS and not record["reason"] and speed(record)]
    return max(others, key=speed, default=None)


def regex_bar(found: Iterable[Group]) -> Bar:
    promise = "a regex of one's own, one thread, cold: at least 20 MB/s"
    found = [group for group in found if speed(group.get(OURS))]
    if not found or any(group[OURS]["reason"] for group in found):
        return Bar(promise)
    lowest = min(found, key=lambda group: speed(group[OURS]))
    ours, theirs = lowest[OURS], speed(lowest.get(HF))
    measured = f"{rounded(speed(ours))} MB/s ({ours['vocabulary']}, {ours['corpus']})"
    return bar(promise, measured + (f"; {HF} {rounded(theirs)} MB/s" if theirs else ""), speed(ours), least=20)


def short_bar(found: dict[str, Group], name: str) -> Bar:
    """Against tiktoken with the same vocabulary, or with cl100k where it has no such vocabulary."""
    promise = f"one string of 50 characters, {name}, every vocabulary: no slower than tiktoken"
    usual = speed(found.get("cl100k", {}).get(TIKTOKEN), name)
    measured: list[tuple[float, str]] = []
    for vocabulary, group in found.items():
        ours, peer = group.get(OURS), group.get(TIKTOKEN)
        theirs = speed(peer, name) if peer and not peer["reason"] else usual
        times = ratio(speed(ours, name), theirs)
        if times and not ours["reason"]:
            measured.append((times, f"{vocabulary} {speed(ours, name):.2f} and {theirs:.2f} us"))
    if not measured:
        return Bar(promise)
    worst, words = max(measured)
    passed = worst <= 1 if len(measured) == len(VOCABULARIES) or worst > 1 else None
    return Bar(promise, f"slowest of {len(measured)}: {words}, {worst:.2f}x", passed)


def memory_bar(ours: Sequence[dict]) -> Bar:
    promise = "memory beyond the caller's buffers: at most 40 MB for each thread, whatever the text"
    most = max((one for one in ours if one["runs"]), key=lambda one: growth(one) / one["threads"], default=None)
    where = f"({most['vocabulary']}, {most['corpus']}, {most['threads']} threads)" if most else ""
    return bar(promise, f"{{:.1f}} MB {where}", most and growth(most) / most["threads"] / 1e6, most=40)


def exactness_bar(ours: Sequence[dict]) -> Bar:
    promise = "documents with other ids than the home library: 0"
    wrong, documents = sum(one["differing"] for one in ours), sum(one["documents"] or 10_000 for one in ours)
    words = f"{wrong:,} of {documents:,} in {len(ours)} comparisons"
    return Bar(promise, words, not any(record["reason"] for record in ours)) if ours else Bar(promise)
