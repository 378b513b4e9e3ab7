"""TransformerEngine: context_parallel.py of the package, unchanged, over FlashAttention 2 and 3."""
from itertools import accumulate
from typing import Any, Iterator

import torch
import torch.distributed as dist

import cpscope
import stand_ins
from case import Answer, Case, Prepare, Tensors, Verdict, graded, leaves, like, probed, with_gradients
from cpscope._preset_te import TE_CALL, TE_GROUP
from frameworks import te_kernels
from page import told
from processes import hierarchy

PACKAGE = "transformer_engine"

peer = te_kernels.load()
DotProductAttention = te_kernels.attention_module(peer)
HEADS, KV_HEADS = 8, 4


def prepared(ranks: int, communication: str = "p2p", seqlen: int = 256, lengths: list[int] | None = None, slots: list[int] | None = None,
             mask: str = "causal", window: tuple[int, int] | None = None, fa3: bool = False, strategy: str = "DUAL_CHUNK_SWAP",
             **keys: Any) -> Prepare:
    """The module, its call and the scenario of both: bshd, or packed (thd) where lengths are given."""
    cu_seqlens = torch.tensor([0, *accumulate(lengths or [seqlen])], dtype=torch.int32)
    padded = torch.tensor([0, *accumulate(slots or lengths or [seqlen])], dtype=torch.int32)
    is_padded = bool(slots) and slots != lengths

    def prepare(rank: int) -> tuple[cpscope.Scenario, Answer]:
        attention = DotProductAttention(HEADS, 32, KV_HEADS, qkv_format="bshd", attn_mask_type=mask, window_size=window)
        attention.use_flash_attn_3 = fa3
        group = hierarchy(rank, ranks, 2) if communication == "a2a+p2p" else dist.group.WORLD
        attention.set_context_parallel_group(group, list(range(ranks)), stand_ins.Stream(), communication,
                                             getattr(peer.CPLoadBalancingStrategy, strategy))
        call: dict[str, Any] = {}
        if lengths:
            call = dict(qkv_format="thd", cu_seqlens_q=cu_seqlens, cu_seqlens_kv=cu_seqlens)
            call.update(dict(cu_seqlens_q_padded=padded, cu_seqlens_kv_padded=padded, pad_between_seqs=True) if is_padded else {})
        rows = [(int(padded[-1]) // ranks, heads, 32) for heads in (HEADS, KV_HEADS, KV_HEADS)]

        def answer(tensors: Tensors) -> dict[str, Any]:
            leaf = leaves(tensors, (lambda x: x) if lengths else (lambda x: x[None]))
            return with_gradients(leaf, attention(leaf["q"], leaf["k"], leaf["v"], **call))
        of_q_k_v = like("bf16", *(rows if lengths else [(1, *shape) for shape in rows]))
        return cpscope.Scenario.from_te(attention, *of_q_k_v, **call, **keys), answer
    return prepare


def page_names(_: int) -> dict[str, Any]:
    return dict(attention=DotProductAttention(HEADS, 32, KV_HEADS), cp_group=dist.group.WORLD, cp_stream=stand_ins.Stream(),
                cu_seqlens=torch.tensor([0, 64, 192, 264], dtype=torch.int32))


def signatures(_: int) -> Verdict:
    """Are the arguments that from_te knows those of the package?"""
    theirs = te_kernels.arguments("forward"), te_kernels.arguments("set_context_parallel_group")
    return Verdict("same" if theirs == (TE_CALL, TE_GROUP) else "differs", text=str(theirs))


def cases() -> Iterator[Case]:
    packed: dict[str, Any] = dict(lengths=[64, 128, 72], mask="padding_causal")
    padded: dict[str, Any] = dict(lengths=[61, 123, 70], slots=[64, 128, 72], mask="padding_causal", fa3=True)
    yield Case("arguments of the call and of set_context_parallel_group", 1, signatures, "same")
    yield Case("the page's lines", 4, told("TransformerEngine", like("bf16", (66, 8, 32), (66, 4, 32), (66, 4, 32)), page_names, (66, 256)))
    for ranks in (2, 4):
        yield Case("p2p, bshd, causal", ranks, graded(prepared(ranks)))
    for ranks in (4, 8, 16):
        yield Case("p2p, bshd, causal, 32 tokens a rank", ranks, graded(prepared(ranks, seqlen=32 * ranks)))
    for ranks in (8, 16):
        yield Case("p2p, bshd, full, 32 tokens a rank", ranks, graded(prepared(ranks, seqlen=32 * ranks, mask="no_mask")))
    yield Case("p2p, bshd, full, accumulate = fp32", 16, graded(prepared(16, seqlen=512, mask="no_mask", accumulate="fp32")), "FAIL out dq",
               "it merges steps in bf16; the hint names accumulate = dtype", "merge_in_dtype")
    yield Case("p2p, bshd, causal, 512 tokens, probe", 4, probed(prepared(4, seqlen=512)))
    yield Case("p2p, thd, 3 documents", 4, graded(prepared(4, **packed)))
    yield Case("p2p, thd, padding between, FA3", 4, graded(prepared(4, **padded), ignore_padding=True))
    yield Case("a2a, bshd, causal", 4, graded(prepared(4, "a2a")))
    yield Case("a2a, bshd, window 31 left", 4, graded(prepared(4, "a2a", window=(31, 0))))
    yield Case("a2a, thd, 3 documents", 4, graded(prepared(4, "a2a", **packed)))
    yield Case("all_gather, bshd, causal", 4, graded(prepared(4, "all_gather")))
    yield Case("all_gather, bshd, window 31 left", 4, graded(prepared(4, "all_gather", window=(31, 0))))
    yield Case("all_gather, bshd, full, window 31 left, 17 right", 4, graded(prepared(4, "all_gather", window=(31, 17), mask="no_mask")))
    yield Case("all_gather, thd, padding between, FA3", 4, graded(prepared(4, "all_gather", **padded), ignore_padding=True))
    yield Case("all_gather, thd, NO_LOAD_BALANCE", 4, graded(prepared(4, "all_gather", strategy="NO_LOAD_BALANCE", **packed)))
    yield Case("a2a+p2p, bshd, causal", 4, graded(prepared(4, "a2a+p2p")))
