#!/usr/bin/env python3
"""Our kernels and PyTorch's on the same shapes, in turns, on one GPU. Started by tests/bench/run.

Shape by shape: every peer is asked once and its answer judged, while our program makes its inputs; then all are timed
in turns. --out gets ratios.json (every sample), ratios.svg and ratios.txt, anew after each shape.
"""
import argparse
import fnmatch
import gc
import pathlib
import sys
import time

import figures
import report
from shapes import Shape
from turns import TurnError, Turns

ROOT = pathlib.Path(__file__).resolve().parents[3]
PEERS = ("cudnn", "flash2", "varlen", "flex")
PACKED_PEERS = ("fa3", "fa3_det", "fa4", "fa4_det", "flex_flash")  # tests/gpu/run pack_peers
GEMM_SIZE = 8192


def options_of(words):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=pathlib.Path, default=[ROOT / "tests/bench/speed"])
    parser.add_argument("--program", required=True, type=pathlib.Path, help="cpscope, built with CUDA")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="folder of the results")
    parser.add_argument("--shapes", default="*", help="only these, as patterns with commas: packed_*,d128_*")
    parser.add_argument("--peers", default=",".join(PEERS),
                        help=f"only these (default {','.join(PEERS)}; after tests/gpu/run pack_peers also {','.join(PACKED_PEERS)})")
    parser.add_argument("--flex-everywhere", action="store_true",
                        help="FlexAttention on dense shapes too; each costs a compilation")
    parser.add_argument("--turns", type=int, default=3, help="of each system and shape")
    parser.add_argument("--repeats", type=int, default=5, help="in a turn")
    parser.add_argument("--seconds", type=float, default=0, help="no shape is begun later; 0: no limit")
    options = parser.parse_args(words)
    options.peers = [peer for peer in options.peers.split(",") if peer]
    unknown = [peer for peer in options.peers if peer not in PEERS + PACKED_PEERS]
    if unknown:
        parser.error(f"no such peer: {unknown[0]}; known are {', '.join(PEERS + PACKED_PEERS)}")
    return options


def chosen_files(paths, patterns):
    files = [file for path in paths for file in (sorted(path.glob("*.toml")) if path.is_dir() else [path])]
    return [file for file in files if any(fnmatch.fnmatch(file.stem, one) for one in patterns.split(","))]


class Race:
    """All systems of one shape, one turn after another."""

    def __init__(self, shape, ours, options, watch):
        self.shape, self.ours, self.options, self.watch = shape, ours, options, watch
        self.systems = {"cpscope": {}}
        self.calls = {}  # peer: (call, out)
        self.samples = {}  # system: {pass: [turn][repeat]}
        self.running = []  # who takes turns, in order; the order moves on by one each turn
        self.gemm_tflops = []

    def prepare(self):
        """Asks every peer once; those that answer right stand in self.calls."""
        import peers
        problem = peers.Problem(self.shape)
        for peer in self.options.peers:
            self.systems[peer] = {}
            if peer == "flex" and not (self.options.flex_everywhere or self.shape.is_packed):
                self.systems[peer]["reason"] = "not asked for dense shapes (--flex-everywhere)"
                continue
            began = time.monotonic()
            try:
                call, self.systems[peer]["errors"] = peers.ask(peer, problem)
            except peers.PeerError as error:
                self.systems[peer]["reason"] = str(error)
                continue
            if call.note:
                self.systems[peer]["note"] = call.note
            self.systems[peer]["prepare_seconds"] = round(time.monotonic() - began, 2)
            self.calls[peer] = call

    def our_turn(self):
        row = self.ours.turn(self.shape.path)
        if row["pairs"] != self.shape.pairs:
            raise TurnError(f"the program counts {row['pairs']:.0f} visible pairs, the peers {self.shape.pairs}")
        if not min(row[f"{name}_kernel_ms"] for name in figures.PASSES) > 0:
            raise TurnError("the executor has no clock, or a pass was not asked for")
        mine = self.samples.setdefault("cpscope", {name: [] for name in figures.PASSES})
        given = self.systems["cpscope"]
        given.setdefault("pass_samples_ms", {name: [] for name in figures.PASSES})
        for name in figures.PASSES:
            mine[name].append([row[f"{name}_kernel_ms"]])
            given["pass_samples_ms"][name].append(row[f"{name}_samples_ms"])
        given["kernels"] = {name: sorted({step["kernels"] for step in row["steps"][name]}) for name in figures.PASSES}

    def peer_turn(self, peer):
        import torch
        call = self.calls[peer]
        keeps_graph = peer in ("flex", "flex_flash")  # without gradients it would be compiled anew
        with torch.set_grad_enabled(keeps_graph):
            forward = self.watch.time(call.forward, self.options.repeats)
        out = call.forward()
        backward = self.watch.time(lambda: call.backward(out), self.options.repeats)
        theirs = self.samples.setdefault(peer, {name: [] for name in figures.PASSES})
        theirs["forward"].append(forward)
        theirs["backward"].append(backward)

    def gemm_turn(self):
        import torch
        if not hasattr(self.watch, "factors"):
            self.watch.factors = [torch.randn((GEMM_SIZE, GEMM_SIZE), device="cuda", dtype=torch.bfloat16) for _ in "ab"]
        times = self.watch.time(lambda: torch.mm(*self.watch.factors), self.options.repeats)
        self.gemm_tflops.append(2e-9 * GEMM_SIZE ** 3 / figures.turn_times([times])[0])

    def take_turn(self, number):
        first = number % max(1, len(self.running))
        for system in self.running[first:] + self.running[:first]:
            try:
                if system == "gemm":
                    self.gemm_turn()
                elif system == "cpscope":
                    self.our_turn()
                else:
                    self.peer_turn(system)
            except Exception as error:  # out of memory, or a program that ended: the others go on
                self.drop(system, error)

    def drop(self, system, error):
        self.systems.setdefault(system, {})["reason"] = figures.one_line(error)
        self.running.remove(system)
        self.calls.pop(system, None)
        self.samples.pop(system, None)

    def row(self):
        for system, passes in self.samples.items():
            for name, turns in passes.items():
                if turns:
                    self.systems[system][name] = figures.figure(turns, self.shape.flops(name))
        gemm = figures.statistics.median(self.gemm_tflops) if self.gemm_tflops else None
        return {"shape": self.shape.name, "pairs": self.shape.pairs,
                "flops": {name: self.shape.flops(name) for name in figures.PASSES}, "systems": self.systems,
                "gemm_tflops": gemm, "gemm_samples_tflops": self.gemm_tflops}


def race(file, ours, options, watch):
    """The row of one file. Whatever goes wrong is a reason in it."""
    import torch
    try:
        one = Race(Shape(file), ours, options, watch)
    except (ValueError, KeyError) as error:
        return {"shape": file.stem, "systems": {"cpscope": {"reason": str(error)}}}
    try:
        one.prepare()
    except Exception as error:  # out of memory, most likely: ours is measured alone
        one.systems["peers"] = {"reason": figures.one_line(error)}
    one.running = ["cpscope", *one.calls, "gemm"]
    try:
        ours.ready()
    except TurnError as error:
        one.drop("cpscope", error)
    for number in range(options.turns):
        one.take_turn(number)
    row = one.row()
    del one
    gc.collect()
    torch.cuda.empty_cache()
    return row


def main():
    options = options_of(sys.argv[1:])
    began = time.monotonic()
    files = chosen_files(options.paths, options.shapes)
    if not files:
        sys.exit(f"no shape is called {options.shapes}")
    options.out.mkdir(parents=True, exist_ok=True)
    goals = figures.read_goals(ROOT / "tests/bench/goals.toml")
    # Our program makes its first inputs while PyTorch is loaded.
    ours = Turns(options.program, files, "cuda", options.repeats, options.out / "cpscope.log")
    ours.start()
    import peers
    document = report.heading("one GPU, kernels alone", ROOT)
    watch = peers.Stopwatch()
    rows = document["shapes"] = []
    for file in map(pathlib.Path, ours.files):
        if options.seconds and time.monotonic() - began > options.seconds:
            rows.append({"shape": file.stem, "systems": {"cpscope": {"reason": "time is up (--seconds)"}}})
            continue
        shape_began = time.monotonic()
        row = race(file, ours, options, watch)
        ours.next()
        figures.judge(row, goals, document["device"])
        row["seconds"] = round(time.monotonic() - shape_began, 1)
        rows.append(row)
        document["seconds"] = round(time.monotonic() - began, 1)
        report.write(document, options.out, options.peers)
        print("\n".join(figures.table([row], options.peers)[1:]), f"({row['seconds']} s)", flush=True)
    ours.stop()
    document["seconds"] = round(time.monotonic() - began, 1)
    print(report.write(document, options.out, options.peers), flush=True)
    return 0 if all("forward" in row["systems"]["cpscope"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
