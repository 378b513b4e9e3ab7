"""What watching attention costs on the GPUs of this host, and what it finds.

    torchrun --nproc-per-node GPUS tests/gpu/watch_overhead.py [--te] [--tokens 32768] [--fault-tokens 4096] [--steps 100] [--every 100] [--rounds 2]

Causal attention over NCCL, in bf16, forward and backward, by hand (tests/python/gathered_attention.py) or, with --te, the ring of
TransformerEngine's module: a step has nothing else, so that this is the largest share that a watch can take. Passes when results are
the same bits as unwatched (gradients that differ between two unwatched steps are named and left out), right calls pass, and a
planted mistake fails with its cause. Process 0 prints a JSON document: milliseconds of a step unwatched, with every=0 and with
every=EVERY, one after another in each round, the overhead of both in percent (medians over the rounds), and the five longest steps
of the last measurement.
"""
import argparse
import contextlib
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


class ByHand:
    """The function of tests/python, watched by calling the watch in its place."""

    faults = FAULTS

    def __init__(self, tokens, size):
        self.shape = lambda heads: (1, heads, tokens // size, HEAD_DIM)
        self.words = dict(format="bhsd", scenario=cpscope.Scenario.of(
            heads=HEADS, kv_heads=KV_HEADS, head_dim=HEAD_DIM, batch_size=1, seqlen=tokens, qkv_format="bshd", cp_size=size,
            cp_comm_type="all_gather", dkv_wire="fp32", dtype="bf16"))

    @contextlib.contextmanager
    def watched(self, fault="", **more):
        """The watch, and the function of q, k and v that it watches."""
        with cpscope.watch(attention, None, **self.words, **more) as watch:
            yield watch, lambda *inputs: watch(*inputs, fault=fault)[0]

    def plain(self, *inputs):
        return attention(*inputs)[0]


class TransformerEngine:
    """DotProductAttention with its ring, watched by its module's hooks. The planted mistakes are those of a caller: its ranks are not
    told of each other, or the module multiplies the logits by 1."""

    faults = {"no_group": "rank_alone", "scale": "scale_ignored"}

    def __init__(self, tokens, size):
        self.shape = lambda heads: (1, tokens // size, heads, HEAD_DIM)
        self.ranks, self.stream = list(range(size)), torch.cuda.Stream()
        self.module = self.made(HEAD_DIM ** -0.5, True)
        inputs = (torch.empty(self.shape(heads), dtype=torch.bfloat16, device="meta") for heads in (HEADS, KV_HEADS, KV_HEADS))
        self.words = dict(scenario=cpscope.Scenario.from_te(self.module, *inputs))

    def made(self, scale, has_group):
        import transformer_engine.pytorch as te
        module = te.DotProductAttention(HEADS, HEAD_DIM, num_gqa_groups=KV_HEADS, attention_dropout=0.0, qkv_format="bshd", attn_mask_type="causal",
                                        softmax_scale=scale).cuda()
        if has_group:
            module.set_context_parallel_group(dist.group.WORLD, self.ranks, self.stream, "p2p")
        return module

    @contextlib.contextmanager
    def watched(self, fault="", **more):
        module = self.made(1.0 if fault == "scale" else HEAD_DIM ** -0.5, fault != "no_group") if fault else self.module
        with cpscope.watch(module, None, **self.words, **more) as watch:
            yield watch, module

    def plain(self, *inputs):
        return self.module(*inputs)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--te", action="store_true", help="TransformerEngine's module")
    parser.add_argument("--tokens", type=int, default=32768, help="of the whole sequence")
    parser.add_argument("--fault-tokens", type=int, default=4096, help="where a mistake is planted: to explain one takes long")
    parser.add_argument("--steps", type=int, default=100, help="of each measurement")
    parser.add_argument("--every", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=torch.device("cuda", int(os.environ["LOCAL_RANK"])))
    rank, size = dist.get_rank(), dist.get_world_size()
    kind = TransformerEngine if options.te else ByHand
    subject = kind(options.tokens, size)
    generator = torch.Generator("cuda").manual_seed(rank)

    def drawn(subject):
        q, k, v, d_out = (torch.randn(subject.shape(heads), device="cuda", dtype=torch.bfloat16, generator=generator)
                          for heads in (HEADS, KV_HEADS, KV_HEADS, HEADS))
        return [tensor.requires_grad_() for tensor in (q, k, v)], d_out

    tensors = drawn(subject)

    def step(attend, given=None):
        leaves, d_out = given or tensors
        for leaf in leaves:
            leaf.grad = None
        out = attend(*leaves)
        out.backward(d_out.view(out.shape))
        return [out.detach(), *(leaf.grad for leaf in leaves)]

    longest = []

    def milliseconds(attend):
        ends = [torch.cuda.Event(enable_timing=True) for _ in range(options.steps + 1)]
        dist.barrier()
        torch.cuda.synchronize()
        ends[0].record()
        for end in ends[1:]:
            step(attend)
            end.record()
        ends[-1].synchronize()
        times = [begin.elapsed_time(end) for begin, end in zip(ends, ends[1:])]
        longest[:] = sorted(((time, index) for index, time in enumerate(times, 1)), reverse=True)[:5]
        return sum(times) / options.steps

    verdicts = []
    plain = [tensor.clone() for tensor in step(subject.plain)]
    steady = [torch.equal(a, b) for a, b in zip(plain, step(subject.plain))]
    with subject.watched(every=1, on_verdict=verdicts.append, timeout=300.0) as (watch, attend):
        unchanged = [torch.equal(a, b) for a, b in zip(plain, step(attend))]
        watch.wait(600)
    is_same = steady[0] and all(one or not was_steady for one, was_steady in zip(unchanged, steady))
    faults, smaller = {}, kind(options.fault_tokens, size)
    given = drawn(smaller)
    for fault, cause in smaller.faults.items():
        found = []
        with smaller.watched(fault, every=1, on_verdict=found.append, timeout=300.0) as (watch, attend):
            step(attend, given)
            watch.wait(600)
        faults[fault] = dict(status=found[0].status, causes=[one["cause"] for one in found[0].causes], expected=cause) if rank == 0 else {}

    times = {"unwatched": [], "every_0": [], "every": []}
    for _ in range(options.rounds):
        times["unwatched"].append(milliseconds(subject.plain))
        for name, every in (("every_0", 0), ("every", options.every)):
            with subject.watched(every=every, on_verdict=verdicts.append, timeout=300.0) as (watch, attend):
                times[name].append(milliseconds(attend))
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
        print(json.dumps(dict(device=torch.cuda.get_device_name(), attention=type(subject).__name__, ranks=size, tokens=options.tokens,
                              every=options.every, steps=options.steps, milliseconds=times, overhead_percent=overhead,
                              same_bits=bool(same.item()), differ_unwatched=[name for name, one in zip(("out", "dq", "dk", "dv"), steady) if not one],
                              longest_steps=[dict(step=index, milliseconds=time) for time, index in longest], right=right,
                              faults=faults, last=str(verdicts[-1]).splitlines()[:2]), indent=1), flush=True)
    dist.destroy_process_group()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
