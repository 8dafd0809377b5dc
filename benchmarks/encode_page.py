"""What the page says of `encode.py`: columns of its tables, and its bars. Start with `page` and `bars`.

Of each question and library the last record counts, in its faster form. Bars compare figures of one session only, and
take medians; a library that gives other ids has no time in the tables, but bars that name it use its time and say so.
"""

import tables
from corpus import RECORDED
from measure import median_and_spread
from tables import OURS, Bar, bar, ratio

GIGATOKEN, CANDIDATE, HF, TIKTOKEN = "gigatoken", "tokenizers-1.0rc", "tokenizers", "tiktoken"
CORPORA = ["python-127mb", "english-40mb", "english-4mb", "multilingual-30mb", "cjk-8mb", "base64-20mb"]
STRINGS = "strings of 50 characters"
VOCABULARIES = ["gpt2", "cl100k", "o200k", "qwen3.5", "deepseek-v3", "mistral-v1", "bert"]


def latest(records):
    """By question, vocabulary, corpus and threads the last record of every library, in its faster form."""
    groups = tables.grouped([line for line in records if line["chosen"]], "question", "vocabulary", "corpus", "threads")
    return {key: {line["tool"]: line for line in group} for key, group in groups.items()}


def clock(question, threads):
    """One thread is judged by its processor time, which other work on the machine disturbs less; more by wall time.

    So is one thread beside more of them.
    """
    return "cpu_seconds" if threads == 1 and question != "scaling" else "seconds"


def figures(record, name):
    """Of each run: MB/s of a pass (see `encode_peers.py`), or microseconds of a string."""
    runs = [run for run in record["runs"] if run["outcome"] == "ok"] if record else []
    if name in ("first", "cold", "warm"):
        seconds = clock(record["question"], record["threads"]) if record else ""
        return [record["text_bytes"] / run[name][seconds] / 1e6 for run in runs if run.get(name)]
    return [run[f"{name}_microseconds"] for run in runs]


def speed(record, name="cold"):
    """The median, of a library with other ids too; None if there is no time."""
    found = figures(record, name)
    return median_and_spread(found)[0] if found else None


def growth(record):
    """Bytes beyond text, tokenizer and ids: the highest run, since a limit is a limit."""
    return max((run.get("first", run["cold"])["growth_bytes"] for run in record["runs"] if run.get("cold")), default=0)


def rounded(value):
    return f"{value:,.0f}" if value >= 99.5 else f"{value:.1f}"


# Tables


def page(records):
    groups = latest(records)
    passes = "MB/s in a new process / cold (lowest-highest) / warm"
    for kind, names in (("bulk", VOCABULARIES), ("regex", sorted({key[1] for key in groups if key[0] == "regex"}))):
        for name in names:
            for threads in sorted({key[3] for key in groups if key[:2] == (kind, name)}):
                found = {one: groups.get((kind, name, one, threads)) for one in dict.fromkeys([*CORPORA, *RECORDED])}
                title = f"{name}, {threads} thread{'s' * (threads > 1)}: {passes}"
                yield table(title, found, bulk_cell, "MB beyond text, tokenizer and ids")
    short = {name: groups.get(("short", name, STRINGS, 1)) for name in VOCABULARIES}
    yield table("One string of 50 characters: microseconds of encode (lowest-highest) / decode", short, short_cell)
    many = {key[3]: group for key, group in sorted(groups.items()) if key[0] == "scaling"}
    alone = many[min(many)] if many else {}

    def cell(record):
        times = ratio(speed(record), speed(alone.get(record["tool"]))) if record and not record["reason"] else None
        return bulk_cell(record) + (f", {times:.1f}x" if times else "")

    title = "A gigabyte with cl100k, cold: MB/s (lowest-highest), x one thread"
    yield table(title, {f"{count} threads": group for count, group in many.items()}, cell)


def table(title, found, cell, more=""):
    """A row for each library, ours first, and a column for each group; `more` is the header of a last one, memory."""
    found, rows = {header: group for header, group in found.items() if group}, []
    names = sorted({name: None for group in found.values() for name in group}, key=lambda name: name != OURS)
    records = [record for group in found.values() for record in group.values()]
    if not records:
        return ""
    for tool in names:
        mine = [group.get(tool) for group in found.values()]
        cells = [cell(record) for record in mine]
        if len(set(cells)) == 1:  # a reason that is the same everywhere stands in the first column alone
            cells[1:] = [""] * (len(cells) - 1)
        most = max(growth(record) for record in mine if record)
        version = next(record["version"] for record in mine if record)
        name = f"{f'**{tool}**' if tool == OURS else tool.removesuffix('-1.0rc')} {version}"
        rows.append([name, *cells, *([f"{most / 1e6:,.0f}" if most else ""] if more else [])])
    last, loads = max(records, key=lambda record: record["session"]), [record["load"] for record in records]
    about = (tables.MACHINE + "; {session:.10}, commit {commit}").format_map(last)
    shown = tables.grid(["library", *found, *([more] if more else [])], rows)
    return tables.section(title, f"{about}; load {min(loads):.1f}-{max(loads):.1f}", shown, level=3)


def bulk_cell(record):
    first, cold, warm = (figures(record, name) for name in ("first", "cold", "warm"))
    if record is None or record["reason"] or not cold:
        return why_not(record)
    text = "{} ({}-{})".format(*map(rounded, median_and_spread(cold)))
    text = f"{rounded(median_and_spread(first)[0])} / {text}" if first else text
    return f"{text} / {rounded(median_and_spread(warm)[0])}" if warm else text


def short_cell(record):
    encode, decode = figures(record, "encode"), figures(record, "decode")
    if record is None or record["reason"] or not encode:
        return why_not(record)
    return f"{tables.spread(encode, digits=2)} / {median_and_spread(decode)[0]:.2f}"


def why_not(record):
    if record is None or record["reason"] or not record["runs"]:
        return record["reason"] or "not run" if record else ""
    last = record["runs"][-1]
    return f"{last['outcome']} {last.get('message', '').strip().rpartition(chr(10))[2][:100]}".strip()


# Bars


def bars(records):
    """The promises of encoding, of what ran together with ours."""
    groups = {
        key: {name: one for name, one in group.items() if one["session"] == group.get(OURS, {}).get("session")}
        for key, group in latest(records).items()
    }

    def bulk(vocabulary, *corpora, threads=1):
        return [groups.get(("bulk", vocabulary, corpus, threads), {}) for corpus in corpora or CORPORA]

    python, english, small, multilingual, _, base64 = CORPORA
    least = {python: 1.4, english: 1.4, multilingual: 1.6, base64: 2.4, small: 3.0}
    own = "cl100k, two threads, cold, {}: at least 2x gigatoken's own parallel call"
    scaling = {key[3]: group for key, group in groups.items() if key[0] == "scaling"}
    many, one = (speed(scaling.get(threads, {}).get(OURS)) for threads in (16, 1))
    cold = "16 threads on a gigabyte, cold: at least"
    shown = many and one and f"{rounded(many)} and {rounded(one)} MB/s"
    every = [group for name in VOCABULARIES for group in bulk(name)]
    short = {key[1]: group for key, group in groups.items() if key[0] == "short"}
    ours = [group[OURS] for group in groups.values() if OURS in group]
    return [
        *(
            ratio_bar(
                f"cl100k, one thread, cold, {name}: at least {times}x gigatoken", bulk("cl100k", name), GIGATOKEN, times
            )
            for name, times in least.items()
        ),
        *(ratio_bar(own.format(name), bulk("cl100k", name, threads=2), GIGATOKEN, 2) for name in (python, english)),
        bar(f"{cold} 10x one thread", "{}: {:.2f}x", shown, ratio(many, one), least=10),
        ratio_bar(f"{cold} 1.5x gigatoken with 16 threads", [scaling[16]] if shown else [], GIGATOKEN, 1.5),
        ratio_bar("every corpus and vocabulary, one thread, cold: at least 2x `tokenizers` 1.0", every, CANDIDATE, 2),
        ratio_bar("mistral-v1, every corpus, cold: at least 3x gigatoken", bulk("mistral-v1"), GIGATOKEN, 3),
        ratio_bar("bert, every corpus, cold: at least 5x the fastest library with the same ids", bulk("bert"), None, 5),
        regex_bar([group for key, group in groups.items() if key[0] == "regex"]),
        *(short_bar(short, name) for name in ("encode", "decode")),
        memory_bar([record for record in ours if record["question"] != "short"]),
        exactness_bar([record for record in ours if record["differing"] is not None]),
    ]


def ratio_bar(promise, asked, peer, least):
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
    different = sum(bool(theirs["differing"]) for _, _, theirs in found)
    parts = [
        f"{rounded(speed(ours))} and {rounded(speed(other))} MB/s: {lowest:.2f}x{'' if peer else ' ' + other['tool']}"
    ]
    if len(asked) > 1:
        parts[0] += f" ({ours['vocabulary']}, {ours['corpus']})"
        missing = f", {len(asked) - len(found)} not measured" if len(found) < len(asked) else ""
        parts += [f"{sum(times >= least for times, _, _ in found)} of {len(asked)} reach it{missing}"]
        parts += [f"{peer} refuses {len(refused)} more"] if refused else []
    parts += [f"{peer} gives other ids in {different} of these"] if different else []
    return Bar(promise, "; ".join(parts), lowest >= least if len(found) == len(asked) or lowest < least else None)


def fastest(group):
    others = [record for name, record in group.items() if name != OURS and not record["reason"] and speed(record)]
    return max(others, key=speed, default=None)


def regex_bar(found):
    promise = "a regex of one's own, one thread, cold: at least 20 MB/s"
    found = [group for group in found if speed(group.get(OURS))]
    if not found or any(group[OURS]["reason"] for group in found):
        return Bar(promise)
    lowest = min(found, key=lambda group: speed(group[OURS]))
    ours, theirs = lowest[OURS], speed(lowest.get(HF))
    measured = f"{rounded(speed(ours))} MB/s ({ours['vocabulary']}, {ours['corpus']})"
    return bar(promise, measured + (f"; {HF} {rounded(theirs)} MB/s" if theirs else ""), speed(ours), least=20)


def short_bar(found, name):
    """Against tiktoken with the same vocabulary, or with cl100k where it has no such vocabulary."""
    promise = f"one string of 50 characters, {name}, every vocabulary: no slower than tiktoken"
    usual, measured = speed(found.get("cl100k", {}).get(TIKTOKEN), name), []
    for vocabulary, group in found.items():
        ours, peer = group.get(OURS), group.get(TIKTOKEN)
        theirs = speed(peer, name) if peer and not peer["reason"] else usual
        if (times := ratio(speed(ours, name), theirs)) and not ours["reason"]:
            measured.append((times, f"{vocabulary} {speed(ours, name):.2f} and {theirs:.2f} us"))
    if not measured:
        return Bar(promise)
    worst, words = max(measured)
    passed = worst <= 1 if len(measured) == len(VOCABULARIES) or worst > 1 else None
    return Bar(promise, f"slowest of {len(measured)}: {words}, {worst:.2f}x", passed)


def memory_bar(ours):
    promise = "memory beyond the caller's buffers: at most 40 MB for each thread, whatever the text"
    most = max((one for one in ours if one["runs"]), key=lambda one: growth(one) / one["threads"], default=None)
    where = "({vocabulary}, {corpus}, {threads} threads)".format_map(most) if most else ""
    return bar(promise, f"{{:.1f}} MB {where}", most and growth(most) / most["threads"] / 1e6, most=40)


def exactness_bar(ours):
    promise = "documents with other ids than the home library: 0"
    wrong, documents = sum(one["differing"] for one in ours), sum(one["documents"] or 10_000 for one in ours)
    words = f"{wrong:,} of {documents:,} in {len(ours)} comparisons"
    return Bar(promise, words, not any(record["reason"] for record in ours)) if ours else Bar(promise)
