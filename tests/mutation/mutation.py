#!/usr/bin/env python3
"""Do the tests notice when the code is wrong? Draws mutants, builds them all at once, says which survive.

    tests/mutation/mutation.py                          320 mutants over all areas, table and out/mutation.{md,json}
    tests/mutation/mutation.py --area mask --count 80   one area
    tests/mutation/mutation.py --list                   the mutants of a draw; builds nothing
    tests/mutation/mutation.py --one 17                 mutant 17 of that draw: its diff, and what runs it

Exit codes: 0 enough mutants of planner, plan_check, mask and merge were noticed (--least), 1 too few or an entry of the list of
equivalent mutants is out of date, 2 bad usage, 77 this machine cannot.
"""

import argparse
import datetime
import json
import os
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.dont_write_bytecode = True

import mutant_runs as runs  # noqa: E402
import mutants as model  # noqa: E402
from mutated_tree import AREAS, TARGETS, MutatedTree, area_of, say  # noqa: E402

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
HELD_AREAS = ("planner", "plan_check", "mask", "merge")
SURVIVES = ("survived", "not reached")


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=320)
    parser.add_argument("--area", action="append", choices=list(AREAS), help="only this area; may be given several times")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--one", type=int, metavar="K")
    parser.add_argument("--survivors", type=Path, metavar="JSON", help="only those that survived in this earlier report")
    parser.add_argument("--slowest", type=float, metavar="SECONDS", default=float("inf"),
                        help="leave out test cases that take longer; the score can only become lower")
    parser.add_argument("--least", type=float, default=90, help="per cent of the held areas that must be noticed")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--work", type=Path, default=ROOT / "build-mutants")
    parser.add_argument("--out", type=Path, default=ROOT / "out")
    options = parser.parse_args()
    if options.count < 1 or options.jobs < 1:
        parser.error("--count and --jobs begin at 1")
    options.areas = list(dict.fromkeys(options.area or AREAS))
    return options


def read_equivalent(path):
    """{key of a mutant: why nobody can tell it from the original}."""
    import tomllib  # Python 3.11
    entries = tomllib.loads(path.read_text()).get("equivalent", [])
    listed = {}
    for entry in entries:
        lacking = [name for name in ("file", "line", "original", "mutated", "why") if not isinstance(entry.get(name), str)]
        if lacking or not entry["why"].strip():
            raise ValueError(f"an entry of {path.name} lacks {', '.join(lacking) or 'a reason'}: {entry}")
        place = str(entry.get("place", 1))  # which of several that read the same
        listed[(entry["file"], entry["line"], entry["original"], entry["mutated"], place)] = entry["why"]
    return listed


def find_stale(listed, found):
    """Entries that name no mutant any more."""
    keys = {mutant.listed_key() for mutants in found.values() for mutant in mutants}
    return [key for key in listed if key not in keys]


def judge_all(drawn, cases, jobs):
    verdicts, done = {}, 0
    start = time.monotonic()
    with ThreadPoolExecutor(jobs) as pool:
        for mutant, verdict in zip(drawn, pool.map(lambda m: runs.judge(m.number, cases), drawn)):
            verdicts[mutant.number] = verdict
            done += 1
            if verdict.status in SURVIVES:
                say(f"{verdict.status}, {verdict.cases} cases come by: {mutant.number} {model.diff(mutant)}")
            if done % 20 == 0:
                say(f"{done} of {len(drawn)} mutants, {time.monotonic() - start:.0f} s")
    return verdicts


def tabulate(drawn, verdicts, listed):
    """Rows {area, drawn, equivalent, killed, timeout, survived, not_reached, score}, the last one their sum."""
    rows = []
    for area in [*AREAS, "all"]:
        chosen = [m for m in drawn if area in ("all", area_of(m.path))]
        if not chosen:
            continue
        is_equal = [m for m in chosen if m.listed_key() in listed and verdicts[m.number].status in SURVIVES]
        counts = {status: sum(verdicts[m.number].status == status for m in chosen if m not in is_equal)
                  for status in ("killed", "timeout", "survived", "not reached")}
        judged = len(chosen) - len(is_equal)
        rows.append({"area": area, "drawn": len(chosen), "equivalent": len(is_equal), **counts,
                     "score": 100 * (counts["killed"] + counts["timeout"]) / judged if judged else 100.0})
    return rows


def describe(mutant, verdict):
    return {"number": mutant.number, "area": area_of(mutant.path), "file": mutant.path, "line_number": mutant.line_number,
            "line": mutant.line, "kind": mutant.kind, "original": model.squeeze(mutant.original),
            "mutated": model.squeeze(mutant.mutated), "place": mutant.place, "status": verdict.status, "by": verdict.by,
            "command": verdict.command, "cases": verdict.cases}


def write_markdown(path, title, rows, survivors):
    lines = [f"# {title}", "", "| area | drawn | equivalent | killed | of these by timeout | survived | of these not reached | score |",
             "| --- | --- | --- | --- | --- | --- | --- | --- |"]
    for row in rows:
        lines.append(f"| {row['area']} | {row['drawn']} | {row['equivalent']} | {row['killed'] + row['timeout']} | {row['timeout']} | "
                     f"{row['survived'] + row['not reached']} | {row['not reached']} | {row['score']:.1f} % |")
    lines += ["", "## Survivors", ""]
    for s in survivors:
        lines += [f"- {s['number']}, {s['area']}, {s['file']}:{s['line_number']}, {s['kind']}, {s['status']}: "
                  f"`{s['original']}` becomes `{s['mutated'] or '(dropped)'}`; {s['cases']} cases come by"]
    path.write_text("\n".join(lines) + "\n")


def say_one(drawn, options, tree):
    chosen = [m for m in drawn if m.number == options.one]
    if not chosen:
        say(f"there is no mutant {options.one} in this draw of {len(drawn)}")
        return 2
    print(model.diff(chosen[0]))
    cases, _ = runs.record([tree.build / "tests" / t for t in TARGETS], options.work / "record", options.jobs)
    verdict = runs.judge(options.one, cases)
    print(f"{verdict.status}; {verdict.cases} cases come by")
    print(verdict.command or "\n".join(f"CPSCOPE_MUTANT={options.one} {c.binary} --gtest_filter={c.name}"
                                       for c in sorted(cases, key=lambda c: c.seconds) if options.one in c.reached))
    return 0


def run(options):
    listed = read_equivalent(HERE / "equivalent.toml")
    tree = MutatedTree(ROOT, options.work)
    stale = find_stale(listed, tree.all)
    for key in stale:
        say(f"equivalent.toml names a mutant that is not there: {key}")
    if options.list:
        for mutant in tree.draw(options.seed, options.count, options.areas):
            print(f"{mutant.number:4} {area_of(mutant.path):10} {model.diff(mutant)}")
        return 1 if stale else 0
    options.work.mkdir(parents=True, exist_ok=True)
    drawn = tree.make(options.seed, options.count, options.areas, options.jobs, shutil.which("ccache"))
    if options.one is not None:
        return say_one(drawn, options, tree)
    start = time.monotonic()
    cases, broken = runs.record([tree.build / "tests" / t for t in TARGETS], options.work / "record", options.jobs)
    if broken:
        say("tests that fail without any mutant:", *broken)
        return 1
    say(f"{len(cases)} cases recorded in {time.monotonic() - start:.0f} s")
    if options.slowest < float("inf"):
        slow = [case for case in cases if case.seconds > options.slowest]
        cases = [case for case in cases if case.seconds <= options.slowest]
        say(f"{len(slow)} cases left out, slower than {options.slowest} s: {sum(case.seconds for case in slow):.0f} s in all")
    chosen = drawn
    if options.survivors:
        before = {(s["file"], s["line"], s["original"], s["mutated"]) for s in json.loads(options.survivors.read_text())["mutants"]
                  if s["status"] in SURVIVES}
        chosen = [m for m in drawn if m.key() in before]
    verdicts = judge_all(chosen, cases, options.jobs)
    rows = tabulate(chosen, verdicts, listed)
    facts = [describe(m, verdicts[m.number]) for m in chosen]
    survivors = [f for f, m in zip(facts, chosen) if f["status"] in SURVIVES and m.listed_key() not in listed]
    options.out.mkdir(parents=True, exist_ok=True)
    title = f"Mutants, seed {options.seed}, {len(chosen)} drawn, {datetime.date.today()}"
    write_markdown(options.out / "mutation.md", title, rows, survivors)
    (options.out / "mutation.json").write_text(json.dumps(
        {"schema": 1, "seed": options.seed, "areas": rows, "stale": [list(key) for key in stale], "mutants": facts}, indent=1))
    print((options.out / "mutation.md").read_text())
    is_enough = all(row["score"] >= options.least for row in rows if row["area"] in HELD_AREAS)
    return 0 if is_enough and not stale else 1


def main():
    options = parse_arguments()
    if sys.version_info < (3, 11):
        print("requires python311: this Python reads no TOML")
        return 77
    lacking = [tool for tool in ("cmake", "ninja") if not shutil.which(tool)]
    if lacking and not options.list:
        print(f"requires {lacking[0]}: not found")
        return 77
    os.nice(max(0, 5 - os.nice(0)))  # people work on this machine too
    return run(options)


if __name__ == "__main__":
    sys.exit(main())
