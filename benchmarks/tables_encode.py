"""Records of `encode.py` to tables: the page between its markers, and the bars with pass or fail.

Of each question and library the last record counts, in its faster form. Bars compare figures of one session only, and
take medians; a library that gives other ids has no time in the tables, but bars that name it use its time and say so.
Start with `page`.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from measure import median_and_spread
from tables import OURS, WORDS, Bar, rewrite

GIGATOKEN, CANDIDATE, HF, TIKTOKEN = "gigatoken", "tokenizers-1.0rc", "tokenizers", "tiktoken"
CORPORA = ["python-127mb", "english-40mb", "english-4mb", "multilingual-30mb", "cjk-8mb", "base64-20mb"]
VOCABULARIES = ["gpt2", "cl100k", "o200k", "qwen3.5", "deepseek-v3", "mistral-v1", "bert"]
MEMORY_PER_THREAD = 40e6
Key = tuple[str, str, str, int]  # question, vocabulary, corpus, threads
Group = dict[str, dict]  # record of each library


def latest(records: Iterable[dict]) -> dict[Key, Group]:
    """Of each question the last record of every library, in its faster form."""
    found: dict[Key, Group] = {}
    for record in records:
        if record.get("benchmark") == "encode" and record["chosen"]:
            key = (record["question"], record["vocabulary"], record["corpus"], record["threads"])
            found.setdefault(key, {})[record["tool"]] = record
    return found


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
    """Of each run: MB/s of a pass (see `run_encode.py`), or microseconds of a string."""
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


def page(records: Sequence[dict], path: Path) -> None:
    rewrite(path, "encode", render([record for record in records if not record.get("quick")]))


def render(records: Sequence[dict]) -> str:
    parts = ["\n## Bars of encoding\n\n| bar | measured | |\n|---|---|---|\n"]
    parts += [f"| {bar.promise} | {bar.measured} | {WORDS[bar.passed]} |\n" for bar in bars(records)]
    groups = latest(records)
    for name in VOCABULARIES:
        for threads in sorted({key[3] for key in groups if key[:2] == ("bulk", name)}):
            parts.append(bulk_table(name, threads, groups))
    for name in sorted({key[1] for key in groups if key[0] == "regex"}):
        parts.append(bulk_table(name, 1, groups, question="regex"))
    parts += [short_table(groups), scaling_table(groups)]
    return "".join(parts) + "\n"


def bulk_table(name: str, threads: int, groups: dict[Key, Group], question: str = "bulk") -> str:
    """One vocabulary: a row for each library, a column for each corpus."""
    found = {key[2]: group for key, group in groups.items() if (key[0], key[1], key[3]) == (question, name, threads)}
    corpora = [corpus for corpus in CORPORA if corpus in found] + sorted(set(found) - set(CORPORA))
    words = "1 thread" if threads == 1 else f"{threads} threads"
    lines = [f"\n### {name}, {words}: MB/s in a new process / cold (lowest-highest) / warm\n"]
    lines += [where(found.values()), header(["library", *corpora, "MB beyond text, tokenizer and ids"])]
    for tool in libraries(found.values()):
        cells, most = [], 0.0
        for corpus in corpora:
            record = found[corpus].get(tool)
            cells.append(bulk_cell(record))
            most = max(most, growth(record)) if record else most
        lines.append(row([titled(tool, found.values()), *once(cells), f"{most / 1e6:,.0f}" if most else ""]))
    return "".join(lines)


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
    """Every library on every vocabulary: microseconds of one call each."""
    found = {key[1]: group for key, group in groups.items() if key[0] == "short"}
    if not found:
        return ""
    names = [name for name in VOCABULARIES if name in found]
    lines = ["\n### One string of 50 characters: microseconds of encode (lowest-highest) / decode\n"]
    lines += [where(found.values()), header(["library", *names])]
    for tool in libraries(found.values()):
        cells = []
        for name in names:
            record = found[name].get(tool)
            encode, decode = figures(record, "encode"), figures(record, "decode")
            if record is None or record["reason"] or not encode:
                cells.append(why_not(record) if record else "")
            else:
                middle, low, high = median_and_spread(encode)
                cells.append(f"{middle:.2f} ({low:.2f}-{high:.2f}) / {median_and_spread(decode)[0]:.2f}")
        lines.append(row([titled(tool, found.values()), *once(cells)]))
    return "".join(lines)


def scaling_table(groups: dict[Key, Group]) -> str:
    """A gigabyte, cold: a column for each number of threads."""
    found = {key[3]: group for key, group in groups.items() if key[0] == "scaling"}
    if not found:
        return ""
    counts = sorted(found)
    lines = ["\n### A gigabyte with cl100k, cold: MB/s (lowest-highest), x one thread\n"]
    lines += [where(found.values()), header(["library", *(f"{count} threads" for count in counts)])]
    for tool in libraries(found.values()):
        alone = speed(found[counts[0]].get(tool))
        cells = []
        for count in counts:
            record = found[count].get(tool)
            middle = speed(record)
            times = f", {middle / alone:.1f}x" if middle and alone and not record["reason"] else ""
            cells.append(bulk_cell(record) + times)
        lines.append(row([titled(tool, found.values()), *cells]))
    return "".join(lines)


def where(groups: Iterable[Group]) -> str:
    records = [record for group in groups for record in group.values()]
    last = max(records, key=lambda record: record["session"])
    machine = last["machine"]
    return (
        f"\n{machine['processor']}, {machine['cores']} cores, {machine['memory_gb']} GB; {last['session'][:10]}, "
        f"commit {last['commit']}; "
        f"load {min(r['load'] for r in records):.1f}-{max(r['load'] for r in records):.1f}\n\n"
    )


def libraries(groups: Iterable[Group]) -> list[str]:
    """All that were asked, ours first."""
    names = dict.fromkeys(name for group in groups for name in group)
    return sorted(names, key=lambda name: name != OURS)


def titled(tool: str, groups: Iterable[Group]) -> str:
    record = next(group[tool] for group in groups if tool in group)
    name = f"**{tool}**" if tool == OURS else tool.removesuffix("-1.0rc")
    return f"{name} {record['version']}"


def once(cells: list[str]) -> list[str]:
    """A reason that is the same everywhere stands in the first column alone."""
    return cells[:1] + [""] * (len(cells) - 1) if len(set(cells)) == 1 else cells


def header(cells: Sequence[str]) -> str:
    return row(cells) + "|" + "---|" * len(cells) + "\n"


def row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |\n"


def why_not(record: dict) -> str:
    if record["reason"]:
        return record["reason"]
    if not record["runs"]:
        return "not run"
    last = record["runs"][-1]
    return f"{last['outcome']} {last.get('message', '').strip().rpartition(chr(10))[2][:100]}".strip()


def short_number(value: float) -> str:
    return f"{value:,.0f}" if value >= 99.5 else f"{value:.1f}"


def bars(records: Sequence[dict]) -> list[Bar]:
    """The promises of encoding."""
    groups = {key: one_session(group) for key, group in latest(records).items()}

    def group(vocabulary: str, corpus: str, threads: int = 1, question: str = "bulk") -> Group:
        return groups.get((question, vocabulary, corpus, threads), {})

    found = []
    for corpus, least in (
        ("python-127mb", 1.4),
        ("english-40mb", 1.4),
        ("multilingual-30mb", 1.6),
        ("base64-20mb", 2.4),
        ("english-4mb", 3.0),
    ):
        promise = f"cl100k, one thread, cold, {corpus}: at least {least}x gigatoken"
        found.append(ratio_bar(promise, [group("cl100k", corpus)], GIGATOKEN, least))
    for corpus in CORPORA[:2]:
        promise = f"cl100k, two threads, cold, {corpus}: at least 2x gigatoken's own parallel call"
        found.append(ratio_bar(promise, [group("cl100k", corpus, 2)], GIGATOKEN, 2))
    found += scaling_bars(groups)
    every = [group(vocabulary, corpus) for vocabulary in VOCABULARIES for corpus in CORPORA]
    found.append(
        ratio_bar("every corpus and vocabulary, one thread, cold: at least 2x `tokenizers` 1.0", every, CANDIDATE, 2)
    )
    mistral = [group("mistral-v1", corpus) for corpus in CORPORA]
    found.append(ratio_bar("mistral-v1, every corpus, cold: at least 3x gigatoken", mistral, GIGATOKEN, 3))
    bert = [group("bert", corpus) for corpus in CORPORA]
    promise = "bert, every corpus, cold: at least 5x the fastest library with the same ids"
    found.append(ratio_bar(promise, bert, None, 5))
    found.append(regex_bar(groups))
    found += [short_bar(groups, name) for name in ("encode", "decode")]
    found += [memory_bar(groups), exactness_bar(groups)]
    return found


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
        return Bar(promise, "", None)
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


def scaling_bars(groups: dict[Key, Group]) -> list[Bar]:
    found = {key[3]: group for key, group in groups.items() if key[0] == "scaling"}
    own = "16 threads on a gigabyte, cold: at least 10x one thread"
    against = "16 threads on a gigabyte, cold: at least 1.5x gigatoken with 16 threads"
    many, one = speed(found.get(16, {}).get(OURS)), speed(found.get(1, {}).get(OURS))
    if many is None or one is None:
        return [Bar(own, "", None), Bar(against, "", None)]
    measured = f"{short_number(many)} and {short_number(one)} MB/s: {many / one:.2f}x"
    return [Bar(own, measured, many / one >= 10), ratio_bar(against, [found[16]], GIGATOKEN, 1.5)]


def regex_bar(groups: dict[Key, Group]) -> Bar:
    promise = "a regex of one's own, one thread, cold: at least 20 MB/s"
    found = [group for key, group in groups.items() if key[0] == "regex" and speed(group.get(OURS))]
    if not found or any(group[OURS]["reason"] for group in found):
        return Bar(promise, "", None)
    lowest = min(found, key=lambda group: speed(group[OURS]))
    ours = lowest[OURS]
    measured = f"{short_number(speed(ours))} MB/s ({ours['vocabulary']}, {ours['corpus']})"
    theirs = speed(lowest.get(HF))
    measured += f"; {HF} {short_number(theirs)} MB/s" if theirs else ""
    return Bar(promise, measured, speed(ours) >= 20)


def short_bar(groups: dict[Key, Group], name: str) -> Bar:
    """Against tiktoken with the same vocabulary, or with cl100k where it has no such vocabulary."""
    promise = f"one string of 50 characters, {name}, every vocabulary: no slower than tiktoken"
    found = {key[1]: group for key, group in groups.items() if key[0] == "short"}
    usual = speed(found.get("cl100k", {}).get(TIKTOKEN), name)
    measured: list[tuple[float, str]] = []
    for vocabulary, group in found.items():
        ours, peer = group.get(OURS), group.get(TIKTOKEN)
        theirs = speed(peer, name) if peer and not peer["reason"] else usual
        mine = speed(ours, name)
        if ours and not ours["reason"] and mine and theirs:
            measured.append((mine / theirs, f"{vocabulary} {mine:.2f} and {theirs:.2f} us"))
    if not measured:
        return Bar(promise, "", None)
    worst, words = max(measured)
    passed = worst <= 1 if len(measured) == len(VOCABULARIES) or worst > 1 else None
    return Bar(promise, f"slowest of {len(measured)}: {words}, {worst:.2f}x", passed)


def memory_bar(groups: dict[Key, Group]) -> Bar:
    promise = "memory beyond the caller's buffers: at most 40 MB for each thread, whatever the text"
    ours = [group[OURS] for key, group in groups.items() if key[0] != "short" and OURS in group and group[OURS]["runs"]]
    if not ours:
        return Bar(promise, "", None)
    most = max(ours, key=lambda record: growth(record) / record["threads"])
    each = growth(most) / most["threads"]
    words = f"{each / 1e6:.1f} MB ({most['vocabulary']}, {most['corpus']}, {most['threads']} threads)"
    return Bar(promise, words, each <= MEMORY_PER_THREAD)


def exactness_bar(groups: dict[Key, Group]) -> Bar:
    promise = "documents with other ids than the home library: 0"
    ours = [group[OURS] for group in groups.values() if OURS in group and group[OURS]["differing"] is not None]
    if not ours:
        return Bar(promise, "", None)
    wrong = sum(record["differing"] for record in ours)
    documents = sum(record["documents"] or 10_000 for record in ours)
    words = f"{wrong:,} of {documents:,} in {len(ours)} comparisons"
    return Bar(promise, words, not any(record["reason"] for record in ours))
