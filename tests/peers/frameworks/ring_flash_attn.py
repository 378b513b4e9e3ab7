"""ring-flash-attention: its rings over FlashAttention's block functions."""
from itertools import accumulate
from typing import Any, Iterator

import torch

import cpscope
import stand_ins
from case import Case, Tensors, graded, leaves, probed, watched, with_gradients

PACKAGE = "ring-flash-attn"

stand_ins.install_flash_attn()
# Its adapter for Hugging Face is imported with it and fails with transformers 5; nothing here uses it.
stand_ins.module("transformers")
stand_ins.module("transformers.modeling_flash_attention_utils", is_flash_attn_greater_or_equal_2_10=None)
import ring_flash_attn as peer  # noqa: E402

DENSE = {"ring": peer.ring_flash_attn_func, "zigzag": peer.zigzag_ring_flash_attn_func, "stripe": peer.stripe_flash_attn_func}
PACKED = {"ring": peer.ring_flash_attn_varlen_func, "zigzag": peer.zigzag_ring_flash_attn_varlen_func}


def dense(kind: str, ranks: int, heads: int = 8, kv_heads: int = 2, batch: int = 1, window: tuple[int, int] = (-1, -1), causal: bool = True,
          seqlen: int = 256, dtype: str = "bf16") -> tuple[cpscope.Scenario, Any]:
    scenario = cpscope.Scenario.of(
        heads=heads, kv_heads=kv_heads, head_dim=64, batch_size=batch, seqlen=seqlen, qkv_format="bshd", window_size=list(window),
        attn_mask_type="causal" if causal else "no_mask", cp_size=ranks, dtype=dtype, dkv_hops="ring")
    cu_seqlens = [seqlen * i for i in range(batch + 1)]
    scenario = scenario.with_order(cpscope.from_ring_flash_attention(kind, cp_size=ranks, cu_seqlens=cu_seqlens))

    def answer(rank: int, tensors: Tensors) -> dict[str, Any]:
        leaf = leaves(tensors, lambda x: x.unflatten(0, (batch, -1)))
        out, lse, _ = DENSE[kind](leaf["q"], leaf["k"], leaf["v"], causal=causal, window_size=window, return_attn_probs=True)
        return with_gradients(leaf, out, lse=lse)
    return scenario, answer


def packed(kind: str, ranks: int, lengths: list[int], dtype: str = "bf16") -> tuple[cpscope.Scenario, Any]:
    cu_seqlens = [0, *accumulate(lengths)]
    scenario = cpscope.Scenario.of(heads=8, kv_heads=2, head_dim=64, cu_seqlens=cu_seqlens, cp_size=ranks, dtype=dtype, dkv_hops="ring",
                                   attn_mask_type="padding_causal")
    scenario = scenario.with_order(cpscope.from_ring_flash_attention(kind, cp_size=ranks, cu_seqlens=cu_seqlens))
    local = torch.tensor(cu_seqlens, dtype=torch.int32) // ranks

    def answer(rank: int, tensors: Tensors) -> dict[str, Any]:
        leaf = leaves(tensors, lambda x: x)
        out = PACKED[kind](leaf["q"], leaf["k"], leaf["v"], local, max(lengths) // ranks, causal=True)
        return with_gradients(leaf, out)
    return scenario, answer


def llama3(ranks: int, lengths: list[int], causal: bool = True, window: tuple[int, int] = (-1, -1)) -> tuple[cpscope.Scenario, Any]:
    cu_seqlens = [0, *accumulate(lengths)]
    scenario = cpscope.Scenario.of(heads=8, kv_heads=2, head_dim=64, cu_seqlens=cu_seqlens, cp_size=ranks, dtype="bf16",
                                   cp_comm_type="all_gather", attn_mask_type="padding_causal" if causal else "padding", window_size=list(window),
                                   pad_between_seqs=False, layout="contiguous")
    scenario = scenario.with_order(cpscope.from_ring_flash_attention("llama3", cp_size=ranks, cu_seqlens=cu_seqlens))

    def answer(rank: int, tensors: Tensors) -> dict[str, Any]:
        leaf = leaves(tensors, lambda x: x)
        cu_q, cu_k, max_q, max_k, keys = peer.llama3_flash_attn_prepare_cu_seqlens(torch.tensor(cu_seqlens, dtype=torch.int32), causal, rank, ranks)
        out = peer.llama3_flash_attn_varlen_func(leaf["q"], leaf["k"], leaf["v"], cu_q, cu_k, max_q, max_k, heads_k_stride=1, local_k_slice=keys,
                                                 causal=causal, window_size=window)
        return with_gradients(leaf, out)
    return scenario, answer


def watched_zigzag(called: str, ranks: int) -> Any:
    """Tokens in zigzag order, given to one of its functions under cpscope.watch."""
    scenario, _ = dense("zigzag", ranks)
    return watched(scenario, DENSE[called], lambda rank, attend, leaf: attend(leaf["q"], leaf["k"], leaf["v"], causal=True, return_attn_probs=True)[0],
                   lambda x: x[None])


def cases() -> Iterator[Case]:
    for kind in ("ring", "zigzag", "stripe"):
        yield Case(f"{kind}, causal, bf16, GQA", 4, graded(*dense(kind, 4)))
    yield Case("zigzag, causal, fp16, MQA, batch 2", 2, graded(*dense("zigzag", 2, kv_heads=1, batch=2, dtype="fp16")))
    yield Case("ring, full, bf16", 4, graded(*dense("ring", 4, causal=False)))
    yield Case("zigzag, causal, bf16, probe", 4, probed(*dense("zigzag", 4)))
    yield Case("stripe, causal, bf16, probe", 4, probed(*dense("stripe", 4)))
    yield Case("ring, causal, fp16", 4, graded(*dense("ring", 4, dtype="fp16")), "FAIL dq", "dq is rounded to bf16: `dq.to(torch.bfloat16)`")
    yield Case("ring, causal, fp32", 4, graded(*dense("ring", 4, dtype="fp32")), "FAIL dq or FAIL dq dk dv",
               "`.to(torch.float32)` is the buffer itself, which later steps overwrite; whether before dk and dv are sent is chance")
    yield Case("ring, window 31 left", 4, graded(*dense("ring", 4, window=(31, 0))), "FAIL out lse dq dk dv",
               "each step applies the window as if its keys were the query's own; its README says: not supported")
    lengths = [64, 128, 24, 40]
    for kind in ("ring", "zigzag"):
        yield Case(f"{kind} varlen, 4 documents, bf16", 4, graded(*packed(kind, 4, lengths)))
    yield Case("ring varlen, 4 documents, fp16", 4, graded(*packed("ring", 4, lengths, "fp16")), "FAIL dq", "as ring, fp16")
    lengths = [61, 123, 29, 43]
    yield Case("llama3 varlen, causal", 4, graded(*llama3(4, lengths)))
    yield Case("llama3 varlen, causal, window 17 left", 4, graded(*llama3(4, lengths, window=(17, 0))))
    yield Case("llama3 varlen, full", 4, graded(*llama3(4, lengths, causal=False)))
    yield Case("llama3 varlen, full, window 17 left, 5 right", 4, graded(*llama3(4, lengths, False, (17, 5))), "FAIL out dq dk dv",
               "each rank attends over its documents' keys from their begin; a window needs the queries' positions")
    yield Case("zigzag, causal, under cpscope.watch", 4, watched_zigzag("zigzag", 4))
    yield Case("ring on tokens in zigzag order, under cpscope.watch", 4, watched_zigzag("ring", 4), "FAIL other_layout",
               "planted; the verdict names the cause")
