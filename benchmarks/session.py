"""The session loop of every benchmark: flags, questions, rounds, records, and the page. Start with `Benchmark`."""

import argparse
import datetime
import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

import tables
from corpus import RECORDED
from measure import machine
from protocol import HERE, OURS, REPEATS, Entry, ask, installed_version, make_corpora, scratch
from tables import PAGE, Bar

RESULTS = HERE / "results.jsonl"


class Benchmark:
    """What is asked of whom, how a run is made and judged, and what the page shows; `main` is the command line.

    A subclass has `questions()`, each a dict that becomes part of its records, and `command(question, entry, out)`, the
    process that is measured. All else has a default. Every tool runs once, then the answers are compared, then rounds
    are repeated. Every run is appended to the results; a complete session rewrites its part of `docs/benchmarks.md`.
    """

    name = ""  # of its records, and of its markers on the page
    kinds: Sequence[str] = ()  # what `--only` chooses from
    only = ""  # its default, if that is not all of them
    peers: Sequence[str] = ()  # what `--peers` chooses from
    cap, results, repeats, tree = 600.0, RESULTS, REPEATS, False
    label, asked = "{0.tool}", "{corpus}"  # an entry, and a question, as they are shown
    must_be_default: Sequence[str] = ()  # a session with another value of one of these flags is not complete
    rewrites_page = True  # whether a complete session rewrites the page

    title = ""  # of its bars on the page
    by: Sequence[str] = ()  # the fields that make a question: each has a table
    of_each_tool = False  # whether the last record of each tool counts, of whatever session
    heading, about = "", tables.MACHINE + "; {moment}"  # of each table
    columns: tables.Columns = {}

    def flags(self, add) -> None:
        """Add the flags that only this benchmark has."""

    def questions(self) -> list[dict]:
        """What is asked; `threads` are the cores it gets (2), `repeats` overrides the number of runs."""
        raise NotImplementedError

    def entries(self, question) -> list[Entry]:
        """The tools that are asked, in which forms; one with a reason is not run."""
        return [Entry(name) for name in (OURS, *self.args.peers)]

    def set_up(self, asked: list[tuple]) -> dict[str, str] | None:
        """Make all that is not measured; may return the reason for each tool that cannot be installed."""
        make_corpora(question["corpus"] for question, _ in asked)

    def command(self, question, entry: Entry, out: Path) -> list[str]:
        raise NotImplementedError

    def check(self, question, entry: Entry, out: Path) -> None:
        """Look at what a run made, before `out` is removed."""

    def compare(self, question, entries: Sequence[Entry]) -> Sequence[Entry] | None:
        """Compare the answers of the first round; may say which entries are repeated."""

    def facts(self, question, entry: Entry) -> dict:
        """What a record says besides the question."""
        return {"input": RECORDED[question["corpus"]].sha256, "version": installed_version(entry.tool)}

    def shown(self, records: Sequence[dict]) -> list[dict]:
        """The records from which the page is made: of complete sessions. The oldest, of training, name no benchmark."""
        return [one for one in records if one.get("benchmark", "train") == self.name and one.get("complete", True)]

    def groups(self, records: Sequence[dict]) -> dict[tuple, list[dict]]:
        """Of each question the last session, or the last record of each tool; fastest first."""
        last = (lambda of: {one["tool"]: one for one in of}.values()) if self.of_each_tool else tables.last_session
        return {key: tables.fastest_first(last(of)) for key, of in tables.grouped(records, *self.by).items()}

    def tables(self, records: Sequence[dict]) -> Iterable[str]:
        for group in self.groups(records).values():
            first = tables.words(tables.of(group, OURS) or group[0])
            table = tables.table(group, self.columns)
            yield tables.section(self.heading.format_map(first), self.about.format_map(first), table)

    def bars(self, records: Sequence[dict]) -> list[Bar]:
        return []

    def render(self, records: Sequence[dict]) -> str:
        if not (mine := self.shown(records)):
            return "\nNot measured yet.\n"
        bars = tables.bars_table(self.title, self.bars(mine)) if self.title else ""
        return bars + "".join(self.tables(mine)) + "\n"

    def write_page(self, results: Path) -> None:
        tables.rewrite(PAGE, self.name, self.render(read(results)))
        print(f"the table in {PAGE} is rewritten")

    def parser(self) -> argparse.ArgumentParser:
        about = sys.modules[type(self).__module__].__doc__ or ""
        return argparse.ArgumentParser(description=about.partition("\n")[0])

    def start(self, arguments: Sequence[str] | None = None) -> None:
        """Read the flags and begin a session: when, where, of which commit, and whether the page shows it."""
        parser = self.parser()
        add = parser.add_argument
        add("--quick", action="store_true", help="small inputs, one run each, no table")
        if self.kinds:
            add("--only", help=f"questions, separated by commas, of {','.join(self.kinds)}")
        if self.peers:
            add("--peers", help="peers, separated by commas (default: all)")
        add("--repeats", type=int, help="runs of each (default: 5, fewer of slow ones)")
        add("--cap", type=float, default=self.cap, help=f"seconds after which one is stopped (default: {self.cap:.0f})")
        add("--results", type=Path, default=self.results, help=f"records are appended here ({self.results.name})")
        instead = parser.add_mutually_exclusive_group()
        instead.add_argument("--table", action="store_true", help="measure nothing, rewrite the table from the results")
        instead.add_argument("--dry-run", action="store_true", help="measure nothing, print what would be measured")
        parser.set_defaults(only=self.only or ",".join(self.kinds), peers=",".join(self.peers), setup=False)
        self.flags(add)
        self.args = args = parser.parse_args(arguments)
        decide = ("quick", "repeats", "cap", "results", *self.must_be_default)
        complete = all(getattr(args, name) == parser.get_default(name) for name in decide)
        self.session, self.kept = header(self.name, complete=complete), []
        args.only, args.peers = choose(args.only, self.kinds, "--only"), choose(args.peers, self.peers, "--peers")
        args.repeats = 1 if args.quick else args.repeats

    def main(self) -> None:
        self.start()
        if self.args.table:
            return self.write_page(self.args.results)
        asked = [(question, self.entries(question)) for question in self.questions()]
        if self.args.dry_run:
            return self.dry_run(asked)
        failed = self.set_up(asked) or {}
        if self.args.setup:
            return None
        for question, entries in asked:
            for entry in entries:
                entry.reason = entry.reason or failed.get(entry.tool, "")
            self.ask(question, entries)
        for bar in self.bars([line | {"complete": True} for line in self.kept]):
            if bar.measured:
                print(f"{tables.WORDS[bar.passed]:12} {bar.promise}: {bar.measured}")
        wrong = [
            f"{self.asked.format_map(one)}: {entry.reason}"
            for one, of in asked
            for entry in of
            if entry.ours and entry.reason
        ]
        if wrong:
            raise SystemExit("ours gives no time:\n  " + "\n  ".join(wrong))
        return self.write_page(self.args.results) if self.session["complete"] and self.rewrites_page else None

    def dry_run(self, asked: Sequence[tuple]) -> None:
        """Print a line for each question: its tools and the number of runs."""
        count = self.args.repeats
        runs = f"{count} {'run' if count == 1 else 'runs'} each" if count else "the default number of runs"
        runs = "set up, not measured" if self.args.setup else runs
        for question, entries in asked:
            tools = dict.fromkeys(self.label.format(entry) for entry in entries if not entry.reason)
            print(f"{self.asked.format_map(question)}: {', '.join(tools)}; {runs}")

    def ask(self, question: dict, entries: Sequence[Entry]) -> None:
        """Ask a question, keep every run, the slow ones too, and show it."""
        question = dict(question)
        count = question.pop("repeats", None) or self.args.repeats
        repeats = ((float("inf"), count),) if count else self.repeats
        ask(entries, lambda one: self.once(question, one), lambda: self.compare(question, entries), repeats)
        print(f"\n{self.asked.format_map(question)}")
        for entry in entries:
            about = {"tool": entry.tool, "reason": entry.reason, "agreement": entry.agreement}
            line = {**self.session, **question, **about, **entry.facts, **self.facts(question, entry)}
            line["runs"] = line.get("runs") or [asdict(run) for run in entry.runs]
            append(self.args.results, line)
            self.kept.append(line)
            print(f"  {entry.tool:24} {entry.how:8} {self.line(entry, line)}", flush=True)

    def line(self, entry: Entry, record: dict) -> str:
        """What was measured of an entry, in a line; of one that did not finish, why."""
        if not entry.finished:
            return f"{tables.why_not(record)}  {entry.runs[-1].message[-300:] if entry.runs else ''}"
        wall, cpu, peak = (cell(record, ()) for cell in (tables.WALL | tables.CPU_AND_PEAK).values())
        return f"{wall:>20} s   cpu {cpu} s   peak {peak} MB   {entry.note} {entry.agreement}"

    def once(self, question, entry: Entry) -> None:
        """One run: its process is measured, and what it made is looked at."""
        with scratch(f"{self.name}-{entry.tool}") as out:
            command, threads = self.command(question, entry, out), question.get("threads", 2)
            if entry.run(self.asked.format_map(question), command, threads=threads, cap=self.args.cap, tree=self.tree):
                self.check(question, entry, out)


def choose(names: str, allowed: Sequence[str], flag: str) -> list[str]:
    chosen = names.split(",") if names else []
    if wrong := [name for name in chosen if name not in allowed]:
        raise SystemExit(f"{flag} {names}: there is no {', '.join(wrong)}; choose from {','.join(allowed)}")
    return chosen


def header(benchmark: str, *, complete: bool = True, commit: str | None = None, **where: object) -> dict:
    """What every record begins with."""
    if commit is None:
        describe = ["git", "describe", "--always", "--dirty"]
        commit = subprocess.run(describe, cwd=HERE, capture_output=True, text=True, check=False).stdout.strip()
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    about = {"benchmark": benchmark, "session": now, "complete": complete, "commit": commit}
    return {**about, "machine": machine() | where}


def append(path: Path, line: dict) -> None:
    with path.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(line, ensure_ascii=False) + "\n")


def read(path: Path) -> list[dict]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line]
