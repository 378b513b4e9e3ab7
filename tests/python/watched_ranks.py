"""One rank of a small training run whose attention is watched.

    watched_ranks.py RANK SIZE RENDEZVOUS

Prints a JSON object: the verdicts of this rank in every case, and what else the case tells. In the last one rank 1 dies.
"""
import json
import os
import sys
import time

import torch
import torch.distributed as dist

import cpscope
from gathered_attention import FAULTS, attention

RANK, SIZE, RENDEZVOUS = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
HEADS, KV_HEADS, HEAD_DIM, WIDTH = 4, 2, 16, 32
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{RENDEZVOUS}", rank=RANK, world_size=SIZE)


def describe(call):
    """The length changes from step to step."""
    rows = call.tensors["q"].shape[2]
    return cpscope.Scenario.of(heads=HEADS, kv_heads=KV_HEADS, head_dim=HEAD_DIM, batch_size=1, seqlen=rows * SIZE, qkv_format="bshd",
                               cp_size=SIZE, cp_comm_type="all_gather", dkv_wire="fp32", dtype="bf16")


def train(attend, lengths, skip=()):
    """Weights after the steps; what they are is the same on any run."""
    generator = torch.Generator().manual_seed(3 + RANK)
    weights = {name: torch.randn(WIDTH, heads * HEAD_DIM, generator=torch.Generator().manual_seed(ord(name))).bfloat16().requires_grad_()
               for name, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS))}
    for step, length in enumerate(lengths):
        x = torch.randn(length // SIZE, WIDTH, generator=generator).bfloat16()
        q, k, v = (torch.mm(x, weight).view(1, length // SIZE, -1, HEAD_DIM).transpose(1, 2) for weight in weights.values())
        out, _ = (attention if step in skip else attend)(q, k, v)
        (out.float() ** 2).mean().backward()
        if isinstance(attend, cpscope.Watch):
            attend.wait(120.0)  # or a call is due while two others are graded
        for weight in weights.values():
            weight.data -= 0.01 * weight.grad
            weight.grad = None
    return weights


def told(watch):
    return [dict(status=verdict.status, call=verdict.call, reason=verdict.reason, causes=[cause["cause"] for cause in verdict.causes],
                 tensors=sorted(verdict.grade.tensors) if verdict.grade is not None else [], kv_heads=verdict.kv_heads,
                 sent=verdict.sent_bytes, kept=verdict.kept_bytes, hooks=verdict.hook_seconds, text=str(verdict)) for verdict in watch.verdicts]


def right():
    plain = train(attention, LENGTHS)
    with cpscope.watch(attention, None, **OPTIONS) as watch:
        watched = train(watch, LENGTHS)
    return watch, all(torch.equal(plain[name], watched[name]) for name in plain)


def heads():
    with cpscope.watch(attention, None, **OPTIONS, memory=400_000, sample=32) as watch:
        train(watch, [128] * 5)
    return watch, None


def with_fault(fault):
    time.sleep(0.3 * RANK)  # rank 0 comes first, and must not take rank 1's address of the watch before for this one's
    with cpscope.watch(attention, None, **OPTIONS) as watch:
        train(lambda q, k, v: watch(q, k, v, fault=fault), [128])
    return watch, None


def raises():
    watch = cpscope.watch(attention, None, **{**OPTIONS, "every": 3}, on_fail="raise")
    step = 0
    try:
        for step in range(1, 9):
            train(lambda q, k, v: watch(q, k, v, fault="no_mask" if step == 1 else ""), [64])
    except cpscope.WatchError as error:
        return watch, [step, str(error).splitlines()[0]]
    return watch, None


def skips():
    with cpscope.watch(attention, None, **OPTIONS, timeout=3.0) as watch:
        began = time.monotonic()
        # Rank 1 does not watch the last step.
        train(watch, [64] * 5, skip=(4,) if RANK == 1 else ())
        return watch, time.monotonic() - began


def differ():
    try:
        cpscope.watch(attention, None, **{**OPTIONS, "every": 2 + RANK})
    except cpscope.InputError as error:
        return None, str(error)
    return None, ""


def dies():
    # Without communication of its own, so that the rank that is left can go on.
    watch = cpscope.watch(torch.nn.functional.scaled_dot_product_attention, None, **OPTIONS, timeout=3.0)
    for step in range(3):
        if step == 1:
            watch.wait(60.0)
            if RANK == 1:
                print(json.dumps(results), flush=True)
                os._exit(0)
        watch(*(torch.randn(1, heads, 32, HEAD_DIM).bfloat16() for heads in (HEADS, KV_HEADS, KV_HEADS)), enable_gqa=True)
    began = time.monotonic()
    watch.close()
    return watch, time.monotonic() - began


OPTIONS = dict(scenario=describe, every=2, format="bhsd", on_verdict=lambda verdict: None)
LENGTHS = [64, 96, 128, 160, 64]
results = {}
for name, case in [("right", right), ("heads", heads), *((fault, lambda fault=fault: with_fault(fault)) for fault in FAULTS), ("raises", raises),
                   ("skips", skips), ("differ", differ), ("dies", dies)]:
    watched, more = case()
    results[name] = [told(watched) if watched is not None else [], more]
print(json.dumps(results), flush=True)
os._exit(0)  # the other rank is dead: nothing can be ended together
