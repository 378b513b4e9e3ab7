"""Mistakes planted in ring-flash-attention's zigzag ring, each in one or a few lines of it, and layouts mistaken for others."""
from typing import Any, Iterator, NamedTuple

import torch

import cpscope
from case import Answer, Case, Prepare, Tensors, graded
from frameworks.ring_flash_attn import PACKAGE, dense  # first: it stands in for what the peer imports
from planting import Edits, with_edits
from ring_flash_attn import utils, zigzag_ring_flash_attn as zigzag

__all__ = ["PACKAGE", "cases"]
RANKS, SEQLEN = 4, 192
ALL = "out lse dq dk dv"
LAYOUTS = {"ring": "contiguous", "zigzag": "dual_chunk", "stripe": "striped"}


class Mistake(NamedTuple):
    what: str
    how: str
    cause: str  # that must be named
    wrong: str  # tensors that fail
    edits: Edits  # a module that imports names of an edited one runs anew, too


MISTAKES = (
    Mistake("the ring turns the other way", "`send_rank` and `recv_rank` are exchanged", "ranks_exchanged", ALL, {
        utils: [("self.send_rank = (self.rank + 1)", "self.send_rank = (self.rank - 1)"),
                ("self.recv_rank = (self.rank - 1)", "self.recv_rank = (self.rank + 1)")],
        zigzag: []}),
    Mistake("partial outputs are added without lse", "`out = out + block_out`", "merge_without_lse", "out dq dk", {
        utils: [("out = out - F.sigmoid(block_lse - lse) * (out - block_out)", "out = out + block_out")],
        zigzag: []}),
    Mistake("a step too late, forward", "`step < comm.rank` for `<=`", "mask_shifted", ALL, {
        zigzag: [("elif step <= comm.rank:", "elif step < comm.rank:")]}),
    Mistake("a step too late, forward and backward", "`step < comm.rank` for `<=`, three times", "mask_shifted", ALL, {
        zigzag: [("elif step <= comm.rank:", "elif step < comm.rank:"),
                 *((f"if step <= kv_comm.rank:\n                {then}", f"if step < kv_comm.rank:\n                {then}") for then in ("k0", "dk"))]}),
    Mistake("the last forward step is dropped", "`range(comm.world_size - 1)`", "partial_missing", ALL, {
        zigzag: [("for step in range(comm.world_size):", "for step in range(comm.world_size - 1):")]}),
    Mistake("halves cut one row early, forward", "`q.shape[1] // 2 - 1`", "mask_shifted", ALL, {
        zigzag: [("block_seq_len = q.shape[1] // 2\n    q1 =", "block_seq_len = q.shape[1] // 2 - 1\n    q1 =")]}),
    Mistake("dk and dv one hop from home", "`return dq, dk, dv` for `next_dk`, `next_dv`", "ranks_exchanged", "dk dv", {
        zigzag: [("next_dk.to(q.dtype), next_dv.to(q.dtype)", "dk.to(q.dtype), dv.to(q.dtype)")]}),
    Mistake("scale 1/head_dim", "`q.shape[-1] ** (-1)`", "scale_ignored", ALL, {
        zigzag: [("q.shape[-1] ** (-0.5)", "q.shape[-1] ** (-1)")]}),
    Mistake("the first step has no mask", "`causal=False`, forward and backward", "causal_ignored", ALL, {
        zigzag: [("forward(q, k, v, causal=True)", "forward(q, k, v, causal=False)"),
                 ("out, softmax_lse, causal=True)", "out, softmax_lse, causal=False)")]}),
    Mistake("merges in bf16", "`block_out` and `block_lse` are not widened", "merge_in_dtype", ALL, {
        utils: [("    block_out = block_out.to(torch.float32)\n    block_lse = block_lse", "    block_lse = block_lse.to(torch.bfloat16)"),
                ("out = block_out.to(torch.float32)\n        lse = block_lse", "out = block_out\n        lse = block_lse.to(torch.bfloat16)")],
        zigzag: []}),
    Mistake("the other half of lse in the backward pass", "`softmax_lse.chunk(2, dim=2)[0]`", "lse_exchanged", "dq dk dv", {
        zigzag: [("softmax_lse.chunk(2, dim=2)[1]", "softmax_lse.chunk(2, dim=2)[0]")]}),
    Mistake("KV heads repeated in another order", "`k.repeat` for `repeat_interleave`", "kv_heads_interleaved", ALL, {
        zigzag: [("ZigZagRingFlashAttnFunc.apply(\n        q,\n        k,\n        v,\n", "ZigZagRingFlashAttnFunc.apply(\n        q,\n"
                  "        k.repeat(1, 1, q.shape[2] // k.shape[2], 1),\n        v.repeat(1, 1, q.shape[2] // v.shape[2], 1),\n")]}),
    Mistake("lse to base 2", "`lse * 1.4427`; the backward pass takes it for natural", "lse_base_2", "lse dq dk dv", {
        zigzag: [("lse = lse.squeeze(dim=-1).transpose(1, 2)", "lse = lse.squeeze(dim=-1).transpose(1, 2) * 1.4426950408889634")]}),
    Mistake("one row a rank is not written", "`out[:, 5] = 0`", "unwritten_rows", "out dq dk", {
        zigzag: [("    out = out.to(q.dtype)\n", "    out = out.to(q.dtype)\n    out[:, 5] = 0\n")]}),
)


def exchanged(prepare: Prepare) -> Prepare:
    """The halves of every rank the other way around, there and back."""
    def roll(tensor: torch.Tensor, axis: int) -> torch.Tensor:
        return tensor.roll(tensor.shape[axis] // 2, axis)

    def prepared(rank: int) -> tuple[cpscope.Scenario, Answer]:
        scenario, answer = prepare(rank)

        def answered(tensors: Tensors) -> dict[str, Any]:
            found = answer({name: roll(tensor, 0) for name, tensor in tensors.items()})
            return {name: roll(tensor, 2 if name == "lse" else 1) for name, tensor in found.items()}
        return scenario, answered
    return prepared


def mistaken(shards: str, ring: str) -> Prepare:
    """The scenario of one function, and the answer of another."""
    def prepare(rank: int) -> tuple[cpscope.Scenario, Answer]:
        scenario, _ = dense(shards, RANKS, seqlen=SEQLEN)(rank)
        _, answer = dense(ring, RANKS, seqlen=SEQLEN)(rank)
        return scenario, answer
    return prepare


def cases() -> Iterator[Case]:
    zigzag_ring = dense("zigzag", RANKS, seqlen=SEQLEN)
    yield Case("zigzag, nothing planted", RANKS, graded(zigzag_ring))
    for mistake in MISTAKES:
        yield Case(f"planted: {mistake.what}", RANKS, graded(with_edits(mistake.edits, zigzag_ring)), f"FAIL {mistake.wrong}", mistake.how, mistake.cause)
    yield Case("planted: each rank's halves are exchanged", RANKS, graded(exchanged(zigzag_ring)), f"FAIL {ALL}",
               "chunks 2 P - 1 - r and r are given to zigzag", "rows_exchanged")
    for shards, ring in (("ring", "zigzag"), ("ring", "stripe"), ("zigzag", "ring"), ("zigzag", "stripe"), ("stripe", "ring"), ("stripe", "zigzag")):
        yield Case(f"planted: {LAYOUTS[shards]} shards, given to {ring}", RANKS, graded(mistaken(shards, ring)), f"FAIL {ALL}",
                   f"{ring} takes them for {LAYOUTS[ring]}", f"other_layout {LAYOUTS[ring]}")
