"""TransformerEngine: context_parallel.py of the package, unchanged, over FlashAttention 2 and 3."""
from itertools import accumulate
from typing import Any, Iterator

import torch
import torch.distributed as dist

import cpscope
import stand_ins
from case import Case, Tensors, graded, leaves, probed, watched, with_gradients
from frameworks import te_kernels

PACKAGE = "transformer_engine"

peer = te_kernels.load()
HEADS, KV_HEADS = 8, 4


def _groups(rank: int, ranks: int, inner: int) -> list[Any]:
    """a2a among neighbours, p2p among those in the same place of each."""
    mine = []
    for members in ([list(range(i, i + inner)) for i in range(0, ranks, inner)], [list(range(i, ranks, inner)) for i in range(inner)]):
        made = [(group, dist.new_group(group)) for group in members]
        mine.append(next(handle for group, handle in made if rank in group))
    return mine


def asked(ranks: int, communication: str = "p2p", seqlen: int = 256, lengths: list[int] | None = None, slots: list[int] | None = None,
          mask: str = "causal", window: tuple[int, int] | None = None, fa3: bool = False, strategy: str = "DUAL_CHUNK_SWAP",
          **keys: Any) -> tuple[cpscope.Scenario, Any]:
    """The scenario, and TransformerEngine's answer to it: bshd, or packed (thd) where lengths are given."""
    cu_seqlens = torch.tensor([0, *accumulate(lengths or [seqlen])], dtype=torch.int32)
    padded = torch.tensor([0, *accumulate(slots or lengths or [seqlen])], dtype=torch.int32)
    form = "thd" if lengths else "bshd"
    batch = dict(cu_seqlens=cu_seqlens, cu_seqlens_padded=padded) if lengths else dict(batch_size=1, seqlen=seqlen, qkv_format="bshd")
    scenario = cpscope.Scenario.of(heads=HEADS, kv_heads=KV_HEADS, head_dim=32, cp_size=ranks, cp_comm_type=communication, attn_mask_type=mask,
                                   window_size=list(window or (-1, -1)), **{"dtype": "bf16", "a2a_size": 2, **batch, **keys})
    longest = max(slots or lengths or [seqlen])
    is_padded = bool(slots) and slots != lengths

    def answer(rank: int, tensors: Tensors) -> dict[str, Any]:
        leaf = leaves(tensors, (lambda x: x) if lengths else (lambda x: x[None]))
        group = _groups(rank, ranks, 2) if communication == "a2a+p2p" else dist.group.WORLD
        bounds = (padded, padded) if lengths else (None, None)
        out = peer.attn_forward_func_with_cp(
            True, leaf["q"], leaf["k"], leaf["v"], cu_seqlens, cu_seqlens, longest, longest, *bounds, 0.0, group, list(range(ranks)),
            stand_ins.Stream(), communication, qkv_format=form, attn_mask_type=mask,
            window_size=window or ((-1, 0) if "causal" in mask else (-1, -1)), use_flash_attn_3=fa3, pad_between_seqs=is_padded,
            load_balancing_strategy=getattr(peer.CPLoadBalancingStrategy, strategy))
        return with_gradients(leaf, out)
    return scenario, answer


def watched_p2p(mask: str) -> Any:
    """A causal scenario, and a call of p2p with this mask under cpscope.watch."""
    scenario, _ = asked(2)
    cu_seqlens = torch.tensor([0, 256], dtype=torch.int32)

    def call(rank: int, attend: Any, leaf: Tensors) -> torch.Tensor:
        return attend(True, leaf["q"], leaf["k"], leaf["v"], cu_seqlens, cu_seqlens, 256, 256, None, None, 0.0, dist.group.WORLD, [0, 1],
                      stand_ins.Stream(), "p2p", qkv_format="bshd", attn_mask_type=mask, window_size=(-1, 0) if mask == "causal" else (-1, -1),
                      use_flash_attn_3=False, pad_between_seqs=False, load_balancing_strategy=peer.CPLoadBalancingStrategy.DUAL_CHUNK_SWAP)
    return watched(scenario, peer.attn_forward_func_with_cp, call, lambda x: x[None])


def cases() -> Iterator[Case]:
    packed = dict(lengths=[64, 128, 72], mask="padding_causal")
    padded = dict(lengths=[61, 123, 70], slots=[64, 128, 72], mask="padding_causal", fa3=True)
    merges = dict(accumulate="dtype")
    for ranks in (2, 4):
        yield Case("p2p, bshd, causal", ranks, graded(*asked(ranks)))
    for ranks in (4, 8, 16):
        yield Case("p2p, bshd, causal, accumulate = dtype", ranks, graded(*asked(ranks, seqlen=32 * ranks, **merges)))
    for ranks in (8, 16):
        yield Case("p2p, bshd, full, accumulate = dtype", ranks, graded(*asked(ranks, seqlen=32 * ranks, mask="no_mask", **merges)))
    yield Case("p2p, bshd, full, accumulate = fp32", 16, graded(*asked(16, seqlen=512, mask="no_mask")), "FAIL out dq",
               "it merges steps in bf16; the hint names accumulate = dtype")
    yield Case("p2p, bshd, causal, 512 tokens, probe", 4, probed(*asked(4, seqlen=512, **merges)))
    yield Case("p2p, thd, 3 documents", 4, graded(*asked(4, **packed)))
    yield Case("p2p, thd, padding between, FA3", 4, graded(*asked(4, **padded), ignore_padding=True))
    yield Case("a2a, bshd, causal", 4, graded(*asked(4, "a2a")))
    yield Case("a2a, bshd, window 31 left", 4, graded(*asked(4, "a2a", window=(31, 0))))
    yield Case("a2a, thd, 3 documents", 4, graded(*asked(4, "a2a", **packed)))
    yield Case("all_gather, bshd, causal", 4, graded(*asked(4, "all_gather")))
    yield Case("all_gather, bshd, window 31 left", 4, graded(*asked(4, "all_gather", window=(31, 0))))
    yield Case("all_gather, bshd, full, window 31 left, 17 right", 4, graded(*asked(4, "all_gather", window=(31, 17), mask="no_mask")))
    yield Case("all_gather, thd, padding between, FA3", 4, graded(*asked(4, "all_gather", **padded), ignore_padding=True))
    yield Case("all_gather, thd, NO_LOAD_BALANCE", 4, graded(*asked(4, "all_gather", strategy="NO_LOAD_BALANCE", layout="contiguous", **packed)))
    yield Case("a2a+p2p, bshd, causal", 4, graded(*asked(4, "a2a+p2p")))
    yield Case("p2p, bshd, causal, under cpscope.watch", 2, watched_p2p("causal"))
    yield Case("p2p, bshd, no_mask by mistake, under cpscope.watch", 2, watched_p2p("no_mask"), "FAIL causal_ignored",
               "planted; the verdict names the cause")
