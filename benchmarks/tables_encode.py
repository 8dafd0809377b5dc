"""Records of `encode.py` to tables and bars.

Of each question and library the last record counts, in its faster form. Bars compare figures of one session only, and
take medians; a library that gives other ids has no time in the tables, but bars that name it use its time and say so.
Start with `render`.
"""

from collections.abc import Callable, Iterable, Sequence

import tables
from measure import median_and_spread
from tables import OURS, Bar, bar

GIGATOKEN, CANDIDATE, HF, TIKTOKEN = "gigatoken", "tokenizers-1.0rc", "tokenizers", "tiktoken"
CORPORA = ["python-127mb", "english-40mb", "english-4mb", "multilingual-30mb", "cjk-8mb", "base64-20mb"]
VOCABULARIES = ["gpt2", "cl100k", "o200k", "qwen3.5", "deepseek-v3", "mistral-v1", "bert"]
MEMORY_PER_THREAD = 40e6
Key = tuple[str, str, str, int]  # question, vocabulary, corpus, threads
Group = dict[str, dict]  # record of each library
Column = dict[str, Group]  # group of each column of a table


def latest(records: Iterable[dict]) -> dict[Key, Group]:
    """Of each question the last record of every library, in its faster form."""
    mine = [line for line in records if line.get("benchmark") == "encode" and line["chosen"]]
    groups = tables.grouped(mine, "question", "vocabulary", "corpus", "threads")
    return {key: {line["tool"]: line for line in group} for key, group in groups.items()}


def one_session(group: Group) -> Group:
    """Those that ran together with ours."""
    ours = group.get(OURS)
    return {name: record for name, record in group.items() if ours and record["session"] == ours["session"]}


def clock(question: str, threads: int) -> str:
    """One thread is judged by its processor time, which other work on the machine disturbs less; more by wall time.

    So is one thread beside more of them.
    """
    return "cpu_seconds" if threads == 1 and question != "scaling" else "seconds"


def figures(record: dict | None, name: str) -> list[float]:
    """Of each run: MB/s of a pass (see `encode_peers.py`), or microseconds of a string."""
    if record is None:
        return []
    runs = [run for run in record["runs"] if run["outcome"] == "ok"]
    if name in ("first", "cold", "warm"):
        seconds = clock(record["question"], record["threads"])
        return [record["text_bytes"] / run[name][seconds] / 1e6 for run in runs if run.get(name)]
    return [run[f"{name}_microseconds"] for run in runs]


def speed(record: dict | None, name: str = "cold") -> float | None:
    """The median, of a library with other ids too; None if there is no time."""
    found = figures(record, name)
    return median_and_spread(found)[0] if found else None


def growth(record: dict) -> float:
    """Bytes beyond text, tokenizer and ids: the highest run, since a limit is a limit."""
    return max((run.get("first", run["cold"])["growth_bytes"] for run in record["runs"] if run.get("cold")), default=0)


# Tables


def render(records: Sequence[dict]) -> str:
    records = [record for record in records if not record.get("quick")]
    groups = latest(records)
    parts = [tables.bars_table("Bars of encoding", bars(records))]
    for name in VOCABULARIES:
        for threads in sorted({key[3] for key in groups if key[:2] == ("bulk", name)}):
            parts.append(bulk_table("bulk", name, threads, groups))
    for name in sorted({key[1] for key in groups if key[0] == "regex"}):
        parts.append(bulk_table("regex", name, 1, groups))
    return "".join([*parts, short_table(groups), scaling_table(groups)]) + "\n"


def table(title: str, found: Column, cell: Callable[[dict | None], str], more: str = "") -> str:
    """A row for each library, ours first, and a column for each group; `more` is the header of a last one, memory."""
    names = sorted({name: None for group in found.values() for name in group}, key=lambda name: name != OURS)
    records = [record for group in found.values() for record in group.values()]
    if not records:
        return ""
    last = max(records, key=lambda record: record["session"])
    rows = []
    for tool in names:
        mine = [group.get(tool) for group in found.values()]
        cells = [cell(record) for record in mine]
        if len(set(cells)) == 1:  # a reason that is the same everywhere stands in the first column alone
            cells = cells[:1] + [""] * (len(cells) - 1)
        most = max((growth(record) for record in mine if record), default=0) if more else 0
        version = next(record["version"] for record in mine if record)
        name = f"**{tool}**" if tool == OURS else tool.removesuffix("-1.0rc")
        rows.append([f"{name} {version}", *cells, *([f"{most / 1e6:,.0f}" if most else ""] if more else [])])
    loads = [record["load"] for record in records]
    return (
        f"\n### {title}\n\n{tables.machine(last)}; {last['session'][:10]}, commit {last['commit']}; "
        f"load {min(loads):.1f}-{max(loads):.1f}\n\n"
    ) + tables.table(["library", *found, *([more] if more else [])], rows)


def bulk_table(question: str, name: str, threads: int, groups: dict[Key, Group]) -> str:
    """One vocabulary: a column for each corpus."""
    found = {key[2]: group for key, group in groups.items() if (key[0], key[1], key[3]) == (question, name, threads)}
    order = [corpus for corpus in CORPORA if corpus in found] + sorted(set(found) - set(CORPORA))
    title = f"{name}, {threads} thread{'s' * (threads > 1)}: MB/s in a new process / cold (lowest-highest) / warm"
    columns = {corpus: found[corpus] for corpus in order}
    return table(title, columns, bulk_cell, "MB beyond text, tokenizer and ids")


def bulk_cell(record: dict | None) -> str:
    if record is None:
        return ""
    first, cold, warm = (figures(record, name) for name in ("first", "cold", "warm"))
    if record["reason"] or not cold:
        return why_not(record)
    text = "{} ({}-{})".format(*map(short_number, median_and_spread(cold)))
    text = f"{short_number(median_and_spread(first)[0])} / {text}" if first else text
    return f"{text} / {short_number(median_and_spread(warm)[0])}" if warm else text


def short_table(groups: dict[Key, Group]) -> str:
    """A column for each vocabulary: microseconds of one call each."""
    found = {key[1]: group for key, group in groups.items() if key[0] == "short"}
    columns = {name: found[name] for name in VOCABULARIES if name in found}
    return table("One string of 50 characters: microseconds of encode (lowest-highest) / decode", columns, short_cell)


def short_cell(record: dict | None) -> str:
    encode, decode = figures(record, "encode"), figures(record, "decode")
    if record is None or record["reason"] or not encode:
        return why_not(record) if record else ""
    return f"{tables.spread(encode, digits=2)} / {median_and_spread(decode)[0]:.2f}"


def scaling_table(groups: dict[Key, Group]) -> str:
    """A gigabyte, cold: a column for each number of threads."""
    found = {key[3]: group for key, group in groups.items() if key[0] == "scaling"}
    alone = found[min(found)] if found else {}

    def cell(record: dict | None) -> str:
        middle, one = speed(record), speed(alone.get(record["tool"])) if record else None
        times = f", {middle / one:.1f}x" if middle and one and not record["reason"] else ""
        return bulk_cell(record) + times

    columns = {f"{count} threads": found[count] for count in sorted(found)}
    return table("A gigabyte with cl100k, cold: MB/s (lowest-highest), x one thread", columns, cell)


def why_not(record: dict) -> str:
    if record["reason"]:
        return record["reason"]
    if not record["runs"]:
        return "not run"
    last = record["runs"][-1]
    return f"{last['outcome']} {last.get('message', '').strip().rpartition(chr(10))[2][:100]}".strip()


def short_number(value: float) -> str:
    return f"{value:,.0f}" if value >= 99.5 else f"{value:.1f}"


# Bars


def bars(records: Sequence[dict]) -> list[Bar]:
    """The promises of encoding."""
    groups = {key: one_session(group) for key, group in latest(records).items()}

    def of(vocabulary: str, corpora: Iterable[str] = CORPORA, threads: int = 1) -> list[Group]:
        return [groups.get(("bulk", vocabulary, corpus, threads), {}) for corpus in corpora]

    python, english, small, multilingual, _, base64 = CORPORA
    least = {python: 1.4, english: 1.4, multilingual: 1.6, base64: 2.4, small: 3.0}
    cold = "every corpus, cold: at least"
    return [
        *(ratio_bar(f"cl100k, one thread, cold, {corpus}: at least {times}x gigatoken", of("cl100k", [corpus]),
                    GIGATOKEN, times) for corpus, times in least.items()),
        *(ratio_bar(f"cl100k, two threads, cold, {corpus}: at least 2x gigatoken's own parallel call",
                    of("cl100k", [corpus], 2), GIGATOKEN, 2) for corpus in (python, english)),
        *scaling_bars({key[3]: group for key, group in groups.items() if key[0] == "scaling"}),
        ratio_bar("every corpus and vocabulary, one thread, cold: at least 2x `tokenizers` 1.0",
                  [group for name in VOCABULARIES for group in of(name)], CANDIDATE, 2),
        ratio_bar(f"mistral-v1, {cold} 3x gigatoken", of("mistral-v1"), GIGATOKEN, 3),
        ratio_bar(f"bert, {cold} 5x the fastest library with the same ids", of("bert"), None, 5),
        regex_bar([group for key, group in groups.items() if key[0] == "regex"]),
        *(short_bar({key[1]: group for key, group in groups.items() if key[0] == "short"}, name)
          for name in ("encode", "decode")),
        memory_bar([group[OURS] for key, group in groups.items() if key[0] != "short" and OURS in group]),
        exactness_bar([group[OURS] for group in groups.values() if OURS in group]),
    ]  # fmt: skip


def ratio_bar(promise: str, asked: Sequence[Group], peer: str | None, least: float) -> Bar:
    """Our speed over that of `peer`, or of the fastest peer with the same ids; of several questions the lowest."""
    found = []
    refused = [group for group in asked if peer in group and group[peer]["reason"] and not group[peer]["runs"]]
    asked = [group for group in asked if group not in refused]
    for group in asked:
        ours, other = group.get(OURS), group.get(peer) if peer else fastest(group)
        mine, theirs = speed(ours), speed(other)
        if ours and not ours["reason"] and mine and theirs:
            found.append((mine / theirs, mine, theirs, other, ours))
    if not found:
        return Bar(promise)
    ratio, mine, theirs, other, ours = min(found, key=lambda one: one[0])
    measured = f"{short_number(mine)} and {short_number(theirs)} MB/s: {ratio:.2f}x"
    if peer is None:
        measured += f" {other['tool']}"
    if len(asked) > 1:
        passing = sum(one[0] >= least for one in found)
        measured += f" ({ours['vocabulary']}, {ours['corpus']}); {passing} of {len(asked)} reach it"
        measured += f", {len(asked) - len(found)} not measured" if len(found) < len(asked) else ""
        measured += f"; {peer} refuses {len(refused)} more" if refused else ""
    different = sum(bool(one[3]["differing"]) for one in found)
    if different:
        measured += f"; {peer} gives other ids in {different} of these"
    return Bar(promise, measured, ratio >= least if len(found) == len(asked) or ratio < least else None)


def fastest(group: Group) -> dict | None:
    others = [record for name, record in group.items() if name != OURS and not record["reason"] and speed(record)]
    return max(others, key=speed, default=None)


def scaling_bars(found: dict[int, Group]) -> list[Bar]:
    both = [speed(found.get(threads, {}).get(OURS)) for threads in (16, 1)]
    own = bar(
        "16 threads on a gigabyte, cold: at least 10x one thread",
        both,
        lambda many, one: (f"{short_number(many)} and {short_number(one)} MB/s: {many / one:.2f}x", many / one >= 10),
    )
    against = "16 threads on a gigabyte, cold: at least 1.5x gigatoken with 16 threads"
    return [own, Bar(against) if None in both else ratio_bar(against, [found[16]], GIGATOKEN, 1.5)]


def regex_bar(found: Sequence[Group]) -> Bar:
    promise = "a regex of one's own, one thread, cold: at least 20 MB/s"
    found = [group for group in found if speed(group.get(OURS))]
    if not found or any(group[OURS]["reason"] for group in found):
        return Bar(promise)
    lowest = min(found, key=lambda group: speed(group[OURS]))
    ours, theirs = lowest[OURS], speed(lowest.get(HF))
    measured = f"{short_number(speed(ours))} MB/s ({ours['vocabulary']}, {ours['corpus']})"
    return Bar(promise, measured + (f"; {HF} {short_number(theirs)} MB/s" if theirs else ""), speed(ours) >= 20)


def short_bar(found: dict[str, Group], name: str) -> Bar:
    """Against tiktoken with the same vocabulary, or with cl100k where it has no such vocabulary."""
    promise = f"one string of 50 characters, {name}, every vocabulary: no slower than tiktoken"
    usual = speed(found.get("cl100k", {}).get(TIKTOKEN), name)
    measured: list[tuple[float, str]] = []
    for vocabulary, group in found.items():
        ours, peer = group.get(OURS), group.get(TIKTOKEN)
        theirs = speed(peer, name) if peer and not peer["reason"] else usual
        mine = speed(ours, name)
        if ours and not ours["reason"] and mine and theirs:
            measured.append((mine / theirs, f"{vocabulary} {mine:.2f} and {theirs:.2f} us"))
    if not measured:
        return Bar(promise)
    worst, words = max(measured)
    passed = worst <= 1 if len(measured) == len(VOCABULARIES) or worst > 1 else None
    return Bar(promise, f"slowest of {len(measured)}: {words}, {worst:.2f}x", passed)


def memory_bar(ours: Sequence[dict]) -> Bar:
    promise = "memory beyond the caller's buffers: at most 40 MB for each thread, whatever the text"
    most = max(filter(lambda line: line["runs"], ours), key=lambda line: growth(line) / line["threads"], default=None)
    if most is None:
        return Bar(promise)
    each = growth(most) / most["threads"]
    words = f"{each / 1e6:.1f} MB ({most['vocabulary']}, {most['corpus']}, {most['threads']} threads)"
    return Bar(promise, words, each <= MEMORY_PER_THREAD)


def exactness_bar(ours: Sequence[dict]) -> Bar:
    promise = "documents with other ids than the home library: 0"
    ours = [record for record in ours if record["differing"] is not None]
    if not ours:
        return Bar(promise)
    wrong = sum(record["differing"] for record in ours)
    documents = sum(record["documents"] or 10_000 for record in ours)
    words = f"{wrong:,} of {documents:,} in {len(ours)} comparisons"
    return Bar(promise, words, not any(record["reason"] for record in ours))
