#!/usr/bin/env python3
"""Runs the context parallelism of other frameworks, from PyPI, on processes of this machine, and holds cpscope's verdicts to
what they must be, and verdicts.md to the verdicts.

    run.py [FRAMEWORK...] [--environment FOLDER] [--verdicts FILE [--bless]] [--latest]
    run.py --pytest FILE [--environment FOLDER]     a test of the package that needs torch, in the same environment

`import cpscope` must find the package to be tested. Exit codes: 0 every verdict is the expected one, 1 one is not or
the table says something else, 77 the packages cannot be installed from here.
"""
import argparse
import fcntl
import hashlib
import importlib
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
FRAMEWORKS = ("ring_flash_attn", "usp", "torch_ring", "torch_flex", "torchtitan", "transformer_engine", "deepspeed", "megatron", "lucidrains",
              "jax_ring", "planted")
SECONDS = 1200  # for one framework

# Exact versions: an expected verdict is one of a version. Those of ALONE come without what they depend on: kernels and
# training frameworks that stand_ins.py replaces.
PACKAGES = ("torch==2.15.0", "numpy==2.4.6", "deepspeed==0.19.8", "transformers==5.24.0", "jax==0.10.2", "ring-attention-pytorch==0.5.20",
            "ring-flash-attn==0.1.8", "tyro==1.0.17")
ALONE = ("yunchang==0.6.4", "transformer-engine==2.20.2", "megatron-core==0.16.1", "ringattention==0.1.2", "torchtitan==0.3.0",
         "spmd_types==0.2.3")


def install(environments: Path, latest: bool) -> Path | None:
    """The interpreter of an environment with the packages; None where they cannot be had. It is a folder of its own for these
    packages and this minor version of Python, named by both: what else lies beside it is left alone, and only an unfinished one,
    or one of the latest versions, is made anew."""
    packages, alone = ([name.partition("==")[0] if latest else name for name in names] for names in (PACKAGES, ALONE))
    wanted = hashlib.sha256(json.dumps([packages, alone]).encode()).hexdigest()[:12]
    folder = environments / f"{sys.implementation.cache_tag}-{wanted}"
    python, mark = folder / "bin" / "python", folder / "installed"
    folder.mkdir(parents=True, exist_ok=True)
    with open(environments / f"{folder.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another call may be installing the same one
        if mark.exists() and python.exists() and not latest:
            return python
        pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        for command in ([sys.executable, "-m", "venv", "--clear", str(folder)], [*pip, *packages], [*pip, "--no-deps", *alone]):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                print(done.stdout[-2000:], done.stderr[-2000:], sep="\n")
                return None
        mark.touch()
    return python


def judge(framework: str) -> None:
    """Prints one JSON document a line for every case of the framework, in the environment."""
    module = importlib.import_module(f"frameworks.{framework}")
    version = importlib.metadata.version(module.PACKAGE)
    for case in module.cases():
        began = time.monotonic()
        verdict = case.verdict()
        is_expected = verdict.said in case.expected.split(" or ") and verdict.cause == case.cause
        print(json.dumps(dict(package=module.PACKAGE, version=version, configuration=case.configuration, ranks=case.ranks, said=verdict.said,
                              is_expected=is_expected, cause=verdict.cause, explained=verdict.explained, expected_cause=case.cause,
                              ratio=verdict.ratio, text=verdict.text, expected=case.expected, because=case.because,
                              seconds=time.monotonic() - began)), flush=True)


def run(python: Path, framework: str) -> list[dict]:
    """The rows of a framework, each printed as it comes."""
    rows = []
    with subprocess.Popen([python, __file__, "--inside", framework], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "CUDA_VISIBLE_DEVICES": ""}) as process:
        assert process.stdout and process.stderr
        for line in process.stdout:
            if not line.startswith("{"):  # what a peer prints
                continue
            row = json.loads(line)
            rows.append(row)
            mark = "as expected" if row["is_expected"] else f"WRONG, expected {row['expected']} ({row['expected_cause'] or 'no cause'})"
            cause = f" ({row['cause'] or 'no cause'})" if row["said"].startswith("FAIL") else ""
            print(f"{row['package']} {row['version']}: {row['configuration']}, {row['ranks']} ranks: {row['said']}{cause}, {mark}"
                  f" ({row['seconds']:.1f} s)", flush=True)
            if not row["is_expected"]:
                print("  | " + row["text"].replace("\n", "\n  | "), flush=True)
        errors = process.stderr.read()
    if process.returncode or not rows:
        print(errors[-4000:])
        rows.append(dict(package=framework, version="", configuration="all", ranks=0, said=f"ended with code {process.returncode}", ratio=None,
                         is_expected=False, cause="", explained=0.0, text="", expected="an end", because="", seconds=0.0))
    return rows


def run_tests(python: Path, file: Path) -> int:
    """pytest of this interpreter, behind the packages of the environment."""
    spec = importlib.util.find_spec("pytest")
    if spec is None or spec.origin is None:
        print("requires pytest: it is not installed")
        return 77
    program = "import sys; sys.path.append(sys.argv.pop(1)); import pytest; sys.exit(pytest.main(sys.argv[1:]))"
    return subprocess.run([python, "-c", program, Path(spec.origin).parents[1], "-q", "-p", "no:cacheprovider", file], check=False,
                          env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "CUDA_VISIBLE_DEVICES": ""}).returncode


def table(rows: list[dict]) -> str:
    """A list of what each peer passes, then a table of everything else; numbers in parentheses are ranks. Behind a cause, the
    share of the recomputed wrong rows that it explains."""
    told: dict[tuple[str, str, str], dict[str, list[str]]] = {}
    causes: dict[tuple[str, str, str], str] = {}
    for row in rows:
        said = row["expected"] if row["is_expected"] else row["said"]
        key = (f"{row['package']} {row['version']}", said, row["because"])
        ranks = told.setdefault(key, {})
        ranks.setdefault(row["configuration"], []).append(str(row["ranks"]))
        if said.startswith("FAIL"):
            causes[key] = f"{row['cause']} ({row['explained']:.0%})" if row["cause"] else "none known"
    texts = {key: "; ".join(f"{name} ({', '.join(ranks)})" for name, ranks in configurations.items()) for key, configurations in told.items()}
    lines = [textwrap.fill(f"- {peer}: {said}: {text}.", 140, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
             for (peer, said, because), text in texts.items() if not because]
    lines += ["", "| peer | configuration (ranks) | verdict | cause named | why |", "| --- | --- | --- | --- | --- |"]
    lines += [f"| {key[0]} | {text} | {key[1]} | {causes.get(key, '')} | {key[2]} |" for key, text in texts.items() if key[2]]
    return "\n".join(lines) + "\n"


def is_told(page: Path, verdicts: str, bless: bool) -> bool:
    """Does the table in the file say so? With bless it does afterwards."""
    text = page.read_text()
    before, begin, rest = text.partition("<!-- peers:begin -->\n")
    told, end, after = rest.partition("<!-- peers:end -->")
    if bless and begin and end:
        page.write_text(before + begin + verdicts + end + after)
        return True
    return told == verdicts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("frameworks", nargs="*", choices=[*FRAMEWORKS, []], metavar="FRAMEWORK", help=f"of {', '.join(FRAMEWORKS)}; all if none")
    parser.add_argument("--environment", type=Path, default=Path("build/peers"), help="where the packages are installed, in a folder of their own for each Python and set of versions")
    parser.add_argument("--verdicts", type=Path, help="a file whose table between <!-- peers:begin --> and <!-- peers:end --> must say so")
    parser.add_argument("--bless", action="store_true", help="write the table")
    parser.add_argument("--latest", action="store_true", help="the newest versions, not those that the expected verdicts are of")
    parser.add_argument("--pytest", type=Path, help="run this test file instead")
    parser.add_argument("--inside", choices=FRAMEWORKS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        judge(options.inside)
        return 0
    python = install(options.environment.absolute(), options.latest)
    if python is None:
        print("requires network: the peers cannot be installed from here")
        return 77
    if options.pytest:
        return run_tests(python, options.pytest)
    rows = [row for framework in options.frameworks or FRAMEWORKS for row in run(python, framework)]
    wrong = sum(not row["is_expected"] for row in rows)
    print(f"{len(rows)} configurations, {wrong} verdicts are not the expected ones")
    is_true = options.verdicts is None or is_told(options.verdicts, table(rows), options.bless and not wrong)
    if not is_true:
        print(f"{options.verdicts} says something else; --bless writes:\n{table(rows)}")
    return 1 if wrong or not is_true else 0


if __name__ == "__main__":
    sys.exit(main())
