"""What watching attention costs on the GPUs of this host, and what it finds.

    torchrun --nproc-per-node GPUS tests/gpu/watch_overhead.py [--tokens 32768] [--steps 200] [--every 100] [--rounds 3]

Causal attention by hand (tests/python/gathered_attention.py) over NCCL, in bf16, forward and backward: a step has nothing
else, so that this is the largest share that a watch can take. Passes when results are the same bits as unwatched, right calls pass,
and a planted mistake fails with its cause. Process 0 prints a JSON document: milliseconds of a step unwatched, with every=0 and
with every=EVERY, one after another in each round, and the overhead of both in percent (medians over the rounds).
"""
import argparse
import json
import os
import statistics
import sys
from pathlib import Path

import torch
import torch.distributed as dist

import cpscope

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))
from gathered_attention import FAULTS, attention  # noqa: E402

HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=32768, help="of the whole sequence")
    parser.add_argument("--steps", type=int, default=200, help="of each measurement")
    parser.add_argument("--every", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=torch.device("cuda", int(os.environ["LOCAL_RANK"])))
    rank, size = dist.get_rank(), dist.get_world_size()
    scenario = cpscope.Scenario.of(heads=HEADS, kv_heads=KV_HEADS, head_dim=HEAD_DIM, batch_size=1, seqlen=options.tokens, qkv_format="bshd",
                                   cp_size=size, cp_comm_type="all_gather", dkv_wire="fp32", dtype="bf16")
    generator = torch.Generator("cuda").manual_seed(rank)
    q, k, v, d_out = (torch.randn(1, heads, options.tokens // size, HEAD_DIM, device="cuda", dtype=torch.bfloat16, generator=generator)
                      for heads in (HEADS, KV_HEADS, KV_HEADS, HEADS))
    leaves = [tensor.requires_grad_() for tensor in (q, k, v)]

    def step(attend, **more):
        for leaf in leaves:
            leaf.grad = None
        out, _ = attend(*leaves, **more)
        out.backward(d_out)
        return [out.detach(), *(leaf.grad for leaf in leaves)]

    def milliseconds(attend):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        dist.barrier()
        torch.cuda.synchronize()
        begin.record()
        for _ in range(options.steps):
            step(attend)
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / options.steps

    verdicts, words = [], dict(scenario=scenario, format="bhsd", on_verdict=verdicts.append, timeout=300.0)
    plain = [tensor.clone() for tensor in step(attention)]
    with cpscope.watch(attention, None, every=1, **words) as watch:
        is_same = all(torch.equal(a, b) for a, b in zip(plain, step(watch)))
        watch.wait(600)
    faults = {}
    for fault, cause in FAULTS.items():
        found = []
        with cpscope.watch(attention, None, every=1, **{**words, "on_verdict": found.append}) as watch:
            step(watch, fault=fault)
            watch.wait(600)
        faults[fault] = dict(status=found[0].status, causes=[one["cause"] for one in found[0].causes], expected=cause) if rank == 0 else {}

    times = {"unwatched": [], "every_0": [], "every": []}
    for _ in range(options.rounds):
        times["unwatched"].append(milliseconds(attention))
        for name, every in (("every_0", 0), ("every", options.every)):
            with cpscope.watch(attention, None, every=every, **words) as watch:
                times[name].append(milliseconds(watch))
                watch.wait(600)
    same = torch.tensor([int(is_same)], device="cuda")
    dist.all_reduce(same, op=dist.ReduceOp.MIN)
    failed = False
    if rank == 0:
        plain_time = statistics.median(times["unwatched"])
        overhead = {name: 100 * (statistics.median(times[name]) / plain_time - 1) for name in ("every_0", "every")}
        right = [verdict.status for verdict in verdicts]
        failed = not (bool(same.item()) and right and set(right) == {"pass"}
                      and all(one["status"] == "fail" and one["expected"] in one["causes"] for one in faults.values()))
        print(json.dumps(dict(device=torch.cuda.get_device_name(), ranks=size, tokens=options.tokens, every=options.every, steps=options.steps,
                              milliseconds=times, overhead_percent=overhead, same_bits=bool(same.item()), right=right, faults=faults,
                              last=str(verdicts[-1]).splitlines()[:2]), indent=1), flush=True)
    dist.destroy_process_group()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
