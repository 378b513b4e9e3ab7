"""TransformerEngine's own context parallelism on the GPUs of this host, graded by the Python package.

    tests/gpu/run pack_te         on a machine with a network: the packages, in parts of 40 MB
    tests/gpu/run te              on the CUDA machine: builds them and runs this with one process per GPU

Every case is TransformerEngine's module with cuDNN's fused kernels, forward and backward; the scenario is the one that
Scenario.from_te reads from the module and its call. A scenario of FP8 is read after the calls, because the module holds its recipe then.
Passes when every case is graded, or rejected by TransformerEngine, as it is known.
Process 0 prints one line per case, and writes all of it as JSON to the first argument.
"""
import contextlib
import json
import os
import sys
from itertools import accumulate
from pathlib import Path

import torch
import torch.distributed as dist
import transformer_engine
import transformer_engine.pytorch as te
import transformer_engine_torch as tex

import cpscope

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / folder) for folder in ("peers", "bench/peers")]
from processes import hierarchy  # noqa: E402
from te_recipes import recipe_of  # noqa: E402

LENGTHS = (698, 137, 2041)
BATCH, SEQLEN = 2, 2048


def up(value, multiple):
    return (value + multiple - 1) // multiple * multiple


def boundaries(lengths):
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device="cuda")


class Asked:
    """One case: the module, the call, the scenario, and what a rank gives to be graded."""

    def __init__(self, case, rank, ranks, groups, stream):
        self.case, self.rank, self.ranks = case, rank, ranks
        self.heads, self.kv_heads = case.get("heads", 16), case.get("kv_heads", 4)
        self.dims = case.get("dims", (64, 64))
        self.format = case.get("format", "thd")
        mask = case.get("mask", "padding_causal" if self.format == "thd" else "causal")
        self.attention = te.DotProductAttention(self.heads, self.dims, num_gqa_groups=self.kv_heads, attention_dropout=0.0, qkv_format=self.format,
                                                attn_mask_type=mask, softmax_type=case.get("softmax", "vanilla"),
                                                softmax_scale=self.dims[0] ** -0.5).cuda()
        group = groups if case["comm"] == "a2a+p2p" else dist.group.WORLD
        strategy = {"load_balancing_strategy": case["strategy"]} if "strategy" in case else {}
        self.attention.set_context_parallel_group(group, list(range(ranks)), stream, case["comm"], **strategy)
        self.call = {}
        if case.get("window"):
            self.call["window_size"] = case["window"]
        if self.format == "thd":
            lengths = list(case.get("lengths", LENGTHS))
            slots = list(case.get("slots") or [up(length, 2 * ranks) for length in lengths])
            bounds, padded = boundaries(lengths), boundaries(slots)
            self.call |= dict(cu_seqlens_q=bounds, cu_seqlens_kv=bounds, cu_seqlens_q_padded=padded, cu_seqlens_kv_padded=padded,
                              max_seqlen_q=max(slots), max_seqlen_kv=max(slots))
            if case.get("pad"):
                self.call["pad_between_seqs"] = True
            rows = (sum(slots) // ranks,)
        else:
            rows = self.of_batch(SEQLEN)
        self.rows = rows
        kv_rows = self.of_batch(case["kv_seqlen"]) if "kv_seqlen" in case else rows
        self.shapes = [(*rows, self.heads, self.dims[0]), (*kv_rows, self.kv_heads, self.dims[0]), (*kv_rows, self.kv_heads, self.dims[1])]
        self.scenario = self.read()

    def of_batch(self, seqlen):
        return (BATCH, seqlen // self.ranks) if self.format == "bshd" else (seqlen // self.ranks, BATCH)

    def read(self):
        """The scenario that the module and its call are, as the module stands now."""
        return cpscope.Scenario.from_te(self.attention, *(torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in self.shapes),
                                        **self.call)

    def rows_are_theirs(self):
        """Does TransformerEngine's own function give this rank the tokens of the scenario's layout? True where it has none."""
        if self.format != "thd" or "strategy" in self.case:
            return True
        padded = self.call["cu_seqlens_q_padded"]
        theirs = tex.thd_get_partitioned_indices(padded, int(padded[-1]), self.ranks, self.rank).tolist()
        return theirs == self.scenario.layout().q_index[self.rank].tolist()

    def shaped(self, tensor):
        tensor = tensor.cuda()
        if self.format == "thd":
            return tensor
        tensor = tensor.view(BATCH, tensor.shape[0] // BATCH, *tensor.shape[1:])
        return (tensor.transpose(0, 1) if self.format == "sbhd" else tensor).contiguous()

    def answer(self):
        given = self.scenario.inputs(self.rank, torch=True)
        if "sink" in given:
            with torch.no_grad():
                self.attention.softmax_offset.copy_(given["sink"].view_as(self.attention.softmax_offset))
        q, k, v = (self.shaped(given[name]).detach().requires_grad_() for name in ("q", "k", "v"))
        d_out = self.shaped(given["d_out"])
        recipe = self.case.get("fp8")
        # Delayed scaling takes its scales from the call before.
        for _ in range(3 if recipe else 1):
            for tensor in (q, k, v):
                tensor.grad = None
            with te.fp8_autocast(enabled=True, fp8_recipe=recipe_of(recipe), fp8_group=dist.group.WORLD) if recipe else contextlib.nullcontext():
                out = self.attention(q, k, v, **self.call)
            out.backward(d_out.reshape(out.shape))
        torch.cuda.synchronize()
        if recipe:
            self.scenario = self.read()
        out = out.detach().view(*self.rows, self.heads, self.dims[1])
        return dict(q=q, k=k, v=v, d_out=d_out, out=out, dq=q.grad, dk=k.grad, dv=v.grad)


def cases(ranks):
    """With `known`: what is known of it, of TransformerEngine 2.20.2 on H100 with cuDNN 9.19; PASS if nothing is said."""
    for comm in ("p2p", "a2a", "all_gather"):
        yield dict(name="thd, padding between, causal", comm=comm, pad=True)
        yield dict(name="thd, padding between, full", comm=comm, pad=True, mask="padding")
        yield dict(name="thd, window 128 left", comm=comm, pad=True, window=(128, 0), **(dict(known="rejected") if comm == "p2p" else {}))
        yield dict(name="bshd, causal", comm=comm, format="bshd")
    yield dict(name="thd, no padding", comm="p2p", lengths=(704, 144, 2048))
    yield dict(name="thd, contiguous", comm="all_gather", lengths=(704, 144, 2048), strategy=te.CPLoadBalancingStrategy.NO_LOAD_BALANCE)
    yield dict(name="sbhd, causal, 2 KV heads", comm="p2p", format="sbhd", kv_heads=2)
    yield dict(name="bshd, window 128 left", comm="all_gather", format="bshd", window=(128, 0))
    yield dict(name="bshd, window 128 left", comm="p2p", format="bshd", window=(128, 0), known="rejected")
    yield dict(name="bshd, causal, 192/128", comm="p2p", format="bshd", heads=8, kv_heads=8, dims=(192, 128))
    for comm in ("p2p", "a2a", "all_gather"):
        yield dict(name="thd, 192/128", comm=comm, pad=True, heads=8, kv_heads=8, dims=(192, 128))
        yield dict(name="thd, causal, learnable sink", comm=comm, pad=True, softmax="learnable", known="rejected")
        yield dict(name="bshd, full, twice as many keys", comm=comm, format="bshd", mask="no_mask", kv_seqlen=2 * SEQLEN)
    yield dict(name="bshd, causal, learnable sink", comm="a2a", format="bshd", softmax="learnable")
    yield dict(name="thd, bottom right", comm="p2p", mask="padding_causal_bottom_right", pad=True, known="rejected")
    yield dict(name="thd, sequences below 2 cp_size", comm="p2p", lengths=(1, 2, 3, 5, 700), pad=True)
    yield dict(name="thd, an empty sequence", comm="p2p", lengths=(0, 5, 700), slots=(2 * ranks, up(5, 2 * ranks), up(700, 2 * ranks)), pad=True)
    if ranks >= 4:
        yield dict(name="bshd, causal", comm="a2a+p2p", format="bshd")
        yield dict(name="bshd, full", comm="a2a+p2p", format="bshd", mask="no_mask")
    for recipe in ("delayed", "current"):
        for comm in ("p2p", "a2a", "all_gather") + (("a2a+p2p",) if ranks >= 4 else ()):
            for format in ("bshd", "thd"):
                # p2p loses shares of dk and dv; the rest needs Blackwell.
                known = "rejected" if recipe == "current" or comm == "all_gather" or format == "thd" else "PASS" if comm == "a2a" else "FAIL"
                yield dict(name=f"FP8 {recipe}, {format}, causal", comm=comm, format=format, kv_heads=16, dims=(128, 128), fp8=recipe, known=known,
                           **(dict(pad=True) if format == "thd" else {}))
    yield dict(name="FP8 delayed, bshd, full", comm="a2a", format="bshd", mask="no_mask", kv_heads=16, dims=(128, 128), fp8="delayed", known="FAIL")


def errors_of(grade):
    return {name: round(tensor["rel_l2"], 5) for name, tensor in grade.tensors.items() if tensor.get("rel_l2") is not None}


def asked(case, rank, ranks, groups, stream):
    """The row of one case; only process 0's holds the verdict."""
    row = dict({key: value for key, value in case.items() if key != "strategy"}, said="rejected")
    given = None
    try:
        question = Asked(case, rank, ranks, groups, stream)
        if not question.rows_are_theirs():
            raise AssertionError("TransformerEngine gives this rank other tokens")
        given = question.answer()
    except Exception as error:  # noqa: BLE001  whatever a framework raises
        row["why"] = f"{type(error).__name__}: {str(error).strip()[:300]}"
    answered = torch.tensor([given is not None], dtype=torch.int32, device="cuda")
    dist.all_reduce(answered, dist.ReduceOp.MIN)
    if not answered.item():
        return row
    tensors = cpscope.gather(None, **given)
    if rank != 0:
        return row
    grade = question.scenario.grade(tensors, ignore_padding=True)
    row |= dict(said="PASS" if grade.passed else "FAIL", errors=errors_of(grade), why="" if grade.passed else str(grade)[:1500])
    row["causes"] = [cause["cause"] for cause in grade.causes]
    return row


def main():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=torch.device("cuda", int(os.environ["LOCAL_RANK"])))
    rank, ranks = dist.get_rank(), dist.get_world_size()
    stream, groups = torch.cuda.Stream(), hierarchy(rank, ranks, 2) if ranks >= 4 else None
    rows = []
    for case in cases(ranks):
        row = asked(case, rank, ranks, groups, stream)
        rows.append(row)
        if rank == 0:
            print(f"{row['comm']:<10} {row['name']:<34} {row['said']:<8} {row.get('errors', '')} {row.get('why', '')}", flush=True)
    unexpected = [row for row in rows if row["said"] != row.get("known", "PASS")]
    if rank == 0:
        document = dict(transformer_engine=transformer_engine.__version__, torch=torch.__version__, cudnn=torch.backends.cudnn.version(),
                        device=torch.cuda.get_device_name(), ranks=ranks, cases=rows)
        if len(sys.argv) > 1:
            with open(sys.argv[1], "w") as file:
                json.dump(document, file, indent=1)
        print(f"{len(rows)} cases, {len(unexpected)} not as known:", *(f"{row['comm']} {row['name']}: {row['said']}" for row in unexpected), sep="\n")
    dist.barrier()
    dist.destroy_process_group()
    return 1 if rank == 0 and unexpected else 0


if __name__ == "__main__":
    sys.exit(main())
