#!/usr/bin/env python3
"""Whole context-parallel passes on all GPUs of this machine, ours, PyTorch's and TransformerEngine's, in turns. Started by
tests/bench/run exchange.

One process a GPU; the first one drives our program, which uses all GPUs by itself (`--executor nccl`), while the others wait.
--out gets exchange_ratios.json, .svg and .txt, anew after each shape.
"""
import argparse
import datetime
import gc
import os
import pathlib
import sys
import tempfile
import time

import figures
import report
from exchange_shapes import LAYOUTS, obstacle, parse_name, write_scenarios
from shapes import Shape
from turns import TurnError, Turns

ROOT = pathlib.Path(__file__).resolve().parents[3]
# Peers of batches in FP8, and of the others.
FP8_PEERS = tuple(f"te_{comm}_fp8{scaling}" for scaling in ("", "_current") for comm in ("p2p", "a2a", "all_gather"))
PEERS = ("cp_allgather", "cp_alltoall", "ulysses", "te_p2p", "te_a2a", "te_all_gather", *FP8_PEERS)
SHAPES = "causal_016k_kv32,causal_032k_kv32,causal_128k_kv32,causal_016k_kv08,causal_032k_kv08,causal_128k_kv08,packed_128k_kv08"
PASSES = ("forward", "both")
LONG = 128 * 1024  # tokens


def options_of(words):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True, type=pathlib.Path, help="cpscope, built with CUDA")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="folder of the results")
    parser.add_argument("--shapes", default=SHAPES, help="mask, tokens and KV heads of 32 heads of 128; fp8_causal_032k_kv32 is one in FP8 "
                        "(default %(default)s)")
    parser.add_argument("--ways", default="p2p,a2a,all_gather,group_cast", help=f"ours; known are {', '.join(LAYOUTS)}")
    parser.add_argument("--peers", default=",".join(PEERS), help="only these; those with fp8 are run in batches of FP8, the others in the others "
                        "(default %(default)s)")
    parser.add_argument("--turns", type=int, default=2, help="of each system, for each shape and way; one from 128K tokens on, where a turn takes "
                        "many seconds")
    parser.add_argument("--repeats", type=int, default=5, help="in a turn")
    parser.add_argument("--seconds", type=float, default=0, help="no shape is begun later; 0: no limit")
    options = parser.parse_args(words)
    for name, known in (("ways", LAYOUTS), ("peers", PEERS)):
        given = [word for word in getattr(options, name).split(",") if word]
        unknown = [word for word in given if word not in known]
        if unknown:
            parser.error(f"--{name}: no {unknown[0]}; known are {', '.join(known)}")
        setattr(options, name, given)
    options.shapes = options.shapes.split(",")
    try:
        for name in options.shapes:
            parse_name(name)
    except ValueError as error:
        parser.error(str(error))
    return options


class Group:
    """The processes: what they agree on, and what waits on all of them without using a GPU."""

    def __init__(self):
        import torch
        import torch.distributed as dist
        from torch.distributed.device_mesh import init_device_mesh
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        # A peer that hangs ends the run; what was measured before it stands in the files.
        dist.init_process_group("cuda:nccl,cpu:gloo", timeout=datetime.timedelta(seconds=120))
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.mesh = init_device_mesh("cuda", (self.ranks,), mesh_dim_names=("cp",))
        # Our own turns take a while.
        self.control = dist.new_group(backend="gloo", timeout=datetime.timedelta(minutes=20))
        self.token = torch.zeros(1, device="cuda")
        self.dist, self.torch = dist, torch

    def line_up(self):
        """What is enqueued from here on begins on all GPUs together."""
        self.dist.all_reduce(self.token)

    def tell(self, value):
        """The first process's value, in all of them."""
        values = [value]
        self.dist.broadcast_object_list(values, src=0, group=self.control)
        return values[0]

    def slowest(self, times):
        """[repeat] of the slowest process."""
        tensor = self.torch.tensor(times)
        self.dist.all_reduce(tensor, op=self.dist.ReduceOp.MAX, group=self.control)
        return tensor.tolist()

    def first(self, reason):
        """The first reason that any process has; None if none has one."""
        given = [None] * self.ranks
        self.dist.all_gather_object(given, reason, group=self.control)
        return next((one for one in given if one), None)


def kernels_ms(row, ranks):
    """{pass: time of a rank's compute items, on average}; row: of all ranks on one GPU"""
    forward, backward = row["forward_kernel_ms"] / ranks, row["backward_kernel_ms"] / ranks
    return {"forward": forward, "both": forward + backward}


def told_by_first(ask, group):
    """What ask() gives in the first process while no GPU works, as all of them are told; TurnError in all of them."""
    answer = None
    group.torch.cuda.synchronize()
    group.tell(None)
    if group.rank == 0:
        try:
            answer = ask()
        except TurnError as error:
            answer = str(error)
    answer = group.tell(answer)
    if isinstance(answer, str):
        raise TurnError(answer)
    return answer


def our_turn(ours, shape, group):
    """{pass: [repeat]} and how much was hidden."""
    def ask():
        row = ours.turn(shape.path)
        if row["pairs"] != shape.pairs:
            raise TurnError(f"the program counts {row['pairs']:.0f} visible pairs, the peers {shape.pairs}")
        forward, backward = row["forward_samples_ms"], row["backward_samples_ms"]
        return {"forward": forward, "both": [sum(pair) for pair in zip(forward, backward)], "hidden": row["hidden_fraction"],
                "kernels": sorted({step["kernels"] for name in ("forward", "backward") for step in row["steps"][name]})}
    return told_by_first(ask, group)


def kernels_turn(alone, shape, group):
    """The same plan's compute items one after another on one GPU: in a pass they may wait for what is on its way. {pass: ms}"""
    def ask():
        try:
            return kernels_ms(alone.turn(shape.path), group.ranks)
        finally:
            alone.next()
    return told_by_first(ask, group)


def peer_turn(one, watch, group, repeats):
    """{pass: [repeat]}, of the slowest GPU; TurnError in all processes when any of them raised something."""
    def work(forward, both):
        return [watch.time(call, repeats, before=group.line_up) for call in (forward, both)]
    timed, reason = None, None
    try:
        timed = one.within(work)
    except Exception as error:  # whatever a peer raises is its reason
        reason = figures.one_line(error)
    reason = group.first(reason)
    if reason:
        raise TurnError(reason)
    return {name: group.slowest(times) for name, times in zip(PASSES, timed)}


class Spread:
    """Ours in one way and all peers, one turn after another."""

    def __init__(self, name, way, shape, ranks):
        self.row = {"shape": f"{name}_{way}", "batch": name, "way": way, "pairs": shape.pairs,
                    "flops": {one: shape.flops(one) / ranks for one in PASSES}, "systems": {"cpscope": {}}}
        self.samples = {}  # system: {pass: [turn][repeat]}
        self.kernels_ms = {}  # {pass: alone}

    def add(self, system, times):
        mine = self.samples.setdefault(system, {one: [] for one in PASSES})
        for one in PASSES:
            mine[one].append(times[one])

    def drop(self, system, reason):
        self.row["systems"][system] = {"reason": reason}
        self.samples.pop(system, None)

    def finished(self):
        for system, passes in self.samples.items():
            given = self.row["systems"].setdefault(system, {})
            for one in PASSES:
                given[one] = figures.figure(passes[one], self.row["flops"][one])
        ours = self.row["systems"]["cpscope"]
        for one, alone in self.kernels_ms.items():
            if one in ours:
                ours[one]["kernels_ms"] = alone
                ours[one]["share_of_kernels"] = alone / ours[one]["median_ms"]
        return self.row


def race(name, files, ours, alone, calls, reasons, options, watch, group):
    """Rows of one batch, one for each way of ours. alone: our kernels without communication."""
    rows = []
    for way, file in files.items():
        shape = Shape(file)
        one = Spread(name, way, shape, group.ranks)
        one.row["systems"].update({peer: dict(given) for peer, given in reasons.items()})
        running = ["cpscope", *calls]
        for number in range(options.turns if sum(shape.lengths) < LONG else 1):
            for system in running if number % 2 == 0 else running[::-1]:
                try:
                    is_ours = system == "cpscope"
                    times = our_turn(ours, shape, group) if is_ours else peer_turn(calls[system][0], watch, group, options.repeats)
                except TurnError as error:
                    one.drop(system, str(error))
                    running = [other for other in running if other != system]
                    continue
                one.add(system, times)
                if is_ours:
                    one.row["systems"]["cpscope"].update(kernels=times["kernels"], hidden_fraction=times["hidden"])
        try:
            one.kernels_ms = kernels_turn(alone, shape, group)
        except TurnError as error:
            one.row["systems"]["cpscope"]["kernels_note"] = f"kernels alone: {error}"
        if group.rank == 0:
            ours.next()
        rows.append(one.finished())
    return rows


def judge_best(rows, goals, device, gpus):
    """Goals are judged in the row of our best way, pass by pass."""
    for row in rows:
        row["goals_of"] = [one for one in PASSES if one in row["systems"]["cpscope"] and row is max(
            (other for other in rows if one in other["systems"]["cpscope"]),
            key=lambda other: other["systems"]["cpscope"][one]["tflops"])]
        figures.judge(row, [goal for goal in goals if goal["pass"] in row["goals_of"] and gpus in goal.get("gpus", [gpus])],
                      device, PASSES)


def ask_all(shape, options, group):
    """{peer: (way to ask it, errors, note)} and {peer: what stands in its place or with it}, of peers of the batch's dtype."""
    import exchange_peers
    problem = exchange_peers.SpreadProblem(shape, group.mesh, group.control)
    calls, notes = {}, {}
    for peer in options.peers:
        if (peer in FP8_PEERS) != shape.is_fp8:
            continue
        try:
            calls[peer] = exchange_peers.ask(peer, problem)
            notes[peer] = {"errors": calls[peer][1], **({"note": calls[peer][2]} if calls[peer][2] else {})}
        except exchange_peers.PeerError as error:
            notes[peer] = {"reason": str(error)}
    return calls, notes


def left_out(names, ways, gpus):
    """A row with its reason for each way of each batch that so many GPUs are not given."""
    return [{"shape": f"{name}_{way}", "systems": {"cpscope": {"reason": why}}}
            for name in names for way in ways if (why := obstacle(way, gpus))]


def columns(rows, peers):
    """The peers that any row speaks of; a table has no column for the others."""
    return [peer for peer in peers if any(peer in row["systems"] for row in rows)]


def main():
    options = options_of(sys.argv[1:])
    began = time.monotonic()
    group = Group()
    import peers
    import torch
    if group.rank == 0:
        options.out.mkdir(parents=True, exist_ok=True)
    written = group.tell(write_scenarios(tempfile.mkdtemp(), group.ranks, options.shapes, options.ways) if group.rank == 0 else None)
    files = [file for ways in written.values() for file in ways.values()]
    ours, alone = [Turns(options.program, files, executor, repeats, options.out / f"exchange_{executor}.log", seconds=240)
                   for executor, repeats in (("nccl", options.repeats), ("cuda", 3))] if group.rank == 0 else (None, None)
    document = report.heading(f"{group.ranks} GPUs, whole passes a GPU", ROOT)
    goals = figures.read_goals(ROOT / "tests/bench/goals.toml")
    watch = peers.Stopwatch(ahead_cycles=2_000_000)
    rows = document["shapes"] = left_out(options.shapes, options.ways, group.ranks)
    for name, files in written.items():
        if group.tell(options.seconds and time.monotonic() - began > options.seconds):
            rows.append({"shape": name, "systems": {"cpscope": {"reason": "time is up (--seconds)"}}})
            continue
        calls, notes = ask_all(Shape(next(iter(files.values()))), options, group)
        of_batch = race(name, files, ours, alone, calls, notes, options, watch, group)
        judge_best(of_batch, goals, document["device"], group.ranks)
        rows += of_batch
        del calls
        gc.collect()
        torch.cuda.empty_cache()
        document["seconds"] = round(time.monotonic() - began, 1)
        if group.rank == 0:
            report.write(document, options.out, columns(rows, options.peers), "exchange_ratios", PASSES)
            print("\n".join(figures.table(of_batch, columns(of_batch, options.peers), PASSES, "kernels")[1:]),
                  f"({document['seconds']:.0f} s so far)", flush=True)
    if group.rank == 0:
        ours.stop()
        alone.stop()
        print(report.write(document, options.out, columns(rows, options.peers), "exchange_ratios", PASSES), flush=True)
    group.dist.barrier(group=group.control)
    group.dist.destroy_process_group()
    return 0 if any("forward" in row["systems"]["cpscope"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
