"""ring-flash-attention: its rings over FlashAttention's block functions."""
import sys
from itertools import accumulate
from typing import Any, Iterator

import torch

import cpscope
import stand_ins
from case import Answer, Case, Prepare, Tensors, graded, leaves, like, probed, with_gradients
from page import told

PACKAGE = "ring-flash-attn"

stand_ins.install_flash_attn()
# Its adapter for Hugging Face is imported with it and fails with transformers 5; nothing here uses it.
stand_ins.module("transformers")
stand_ins.module("transformers.modeling_flash_attention_utils", is_flash_attn_greater_or_equal_2_10=None)
import ring_flash_attn as peer  # noqa: E402

DENSE = {"ring": "ring_flash_attn", "zigzag": "zigzag_ring_flash_attn", "stripe": "stripe_flash_attn"}  # modules, and functions with _func
PACKED = {"ring": peer.ring_flash_attn_varlen_func, "zigzag": peer.zigzag_ring_flash_attn_varlen_func}


def ring(kind: str) -> Any:
    """The dense function as its module has it now: planting.py may have changed it."""
    return getattr(sys.modules[f"ring_flash_attn.{DENSE[kind]}"], f"{DENSE[kind]}_func")


def dense(kind: str, ranks: int, heads: int = 8, kv_heads: int = 2, batch: int = 1, window: tuple[int, int] = (-1, -1), causal: bool = True,
          seqlen: int = 256, dtype: str = "bf16") -> Prepare:
    def prepare(_: int) -> tuple[cpscope.Scenario, Answer]:
        attend, call = ring(kind), dict[str, Any](causal=causal, window_size=window)
        of_q, of_k = ((batch, seqlen // ranks, of, 64) for of in (heads, kv_heads))

        def answer(tensors: Tensors) -> dict[str, Any]:
            leaf = leaves(tensors, lambda x: x.unflatten(0, (batch, -1)))
            out, lse, _ = attend(leaf["q"], leaf["k"], leaf["v"], **call, return_attn_probs=True)
            return with_gradients(leaf, out, lse=lse)
        return cpscope.Scenario.from_ring_flash_attention(attend, *like(dtype, of_q, of_k, of_k), **call), answer
    return prepare


def packed(kind: str, ranks: int, lengths: list[int], dtype: str = "bf16") -> Prepare:
    def prepare(_: int) -> tuple[cpscope.Scenario, Answer]:
        call: dict[str, Any] = dict(cu_seqlens=torch.tensor([0, *accumulate(lengths)], dtype=torch.int32) // ranks, max_seqlen=max(lengths) // ranks,
                                    causal=True)
        of_q, of_k = ((sum(lengths) // ranks, of, 64) for of in (8, 2))

        def answer(tensors: Tensors) -> dict[str, Any]:
            leaf = leaves(tensors, lambda x: x)
            return with_gradients(leaf, PACKED[kind](leaf["q"], leaf["k"], leaf["v"], **call))
        return cpscope.Scenario.from_ring_flash_attention(PACKED[kind], *like(dtype, of_q, of_k, of_k), **call), answer
    return prepare


def llama3(ranks: int, lengths: list[int], causal: bool = True, window: tuple[int, int] = (-1, -1)) -> Prepare:
    def prepare(rank: int) -> tuple[cpscope.Scenario, Answer]:
        cu_seqlens = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
        bounds = peer.llama3_flash_attn_prepare_cu_seqlens(cu_seqlens, causal, rank, ranks)
        call: dict[str, Any] = dict(heads_k_stride=1, local_k_slice=bounds[4], causal=causal, window_size=window)
        of_q, of_k = ((sum(lengths) // ranks, of, 64) for of in (8, 2))

        def answer(tensors: Tensors) -> dict[str, Any]:
            leaf = leaves(tensors, lambda x: x)
            return with_gradients(leaf, peer.llama3_flash_attn_varlen_func(leaf["q"], leaf["k"], leaf["v"], *bounds[:4], **call))
        scenario = cpscope.Scenario.from_ring_flash_attention(peer.llama3_flash_attn_varlen_func, *like("bf16", of_q, of_k, of_k), *bounds[:4], **call,
                                                              cu_seqlens=cu_seqlens)
        return scenario, answer
    return prepare


def cases() -> Iterator[Case]:
    yield Case("the page's lines", 4, told("ring-flash-attention", like("bf16", (2, 64, 8, 64), (2, 64, 2, 64), (2, 64, 2, 64))))
    for kind in ("ring", "zigzag", "stripe"):
        yield Case(f"{kind}, causal, bf16, GQA", 4, graded(dense(kind, 4)))
    yield Case("zigzag, causal, fp16, MQA, batch 2", 2, graded(dense("zigzag", 2, kv_heads=1, batch=2, dtype="fp16")))
    yield Case("ring, full, bf16", 4, graded(dense("ring", 4, causal=False)))
    yield Case("zigzag, causal, bf16, probe", 4, probed(dense("zigzag", 4)))
    yield Case("stripe, causal, bf16, probe", 4, probed(dense("stripe", 4)))
    yield Case("ring, causal, fp16", 4, graded(dense("ring", 4, dtype="fp16")), "FAIL dq", "dq is rounded to bf16: `dq.to(torch.bfloat16)`",
               "rounded_to_bf16")
    yield Case("ring, causal, fp32", 4, graded(dense("ring", 4, dtype="fp32")), "FAIL dq or FAIL dq dk dv",
               "`.to(torch.float32)` is the buffer itself, which later steps overwrite; whether before dk and dv are sent is chance",
               "buffer_reused")
    yield Case("ring, window 31 left", 4, graded(dense("ring", 4, window=(31, 0))), "FAIL out lse dq dk dv",
               "each step applies the window as if its keys were the query's own; its README says: not supported",
               "mask_by_local_place")
    lengths = [64, 128, 24, 40]
    for kind in ("ring", "zigzag"):
        yield Case(f"{kind} varlen, 4 documents, bf16", 4, graded(packed(kind, 4, lengths)))
    yield Case("ring varlen, 4 documents, fp16", 4, graded(packed("ring", 4, lengths, "fp16")), "FAIL dq", "as ring, fp16",
               "rounded_to_bf16")
    lengths = [61, 123, 29, 43]
    yield Case("llama3 varlen, causal", 4, graded(llama3(4, lengths)))
    yield Case("llama3 varlen, causal, window 17 left", 4, graded(llama3(4, lengths, window=(17, 0))))
    yield Case("llama3 varlen, full", 4, graded(llama3(4, lengths, causal=False)))
    yield Case("llama3 varlen, full, window 17 left, 5 right", 4, graded(llama3(4, lengths, False, (17, 5))), "FAIL out dq dk dv",
               "each rank attends over its documents' keys from their begin; a window needs the queries' positions",
               "mask_by_local_place")
