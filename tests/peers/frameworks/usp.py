"""USP (yunchang): Ulysses inside, a ring outside."""
from typing import Any, Iterator

import stand_ins

PACKAGE = "yunchang"

stand_ins.install_flash_attn()

import torch  # noqa: E402
import yunchang  # noqa: E402
from yunchang.kernels import AttnType  # noqa: E402

import cpscope  # noqa: E402
from case import Answer, Case, Tensors, graded, leaves, like, same_order, with_gradients  # noqa: E402
from page import told  # noqa: E402


def module(kind: str, ulysses: int, ring: int, rank: int, low: bool = True, attn_type: Any = AttnType.FA) -> Any:
    yunchang.set_seq_parallel_pg(ulysses, ring, rank, ulysses * ring, use_ulysses_low=low)
    return yunchang.LongContextAttention(ring_impl_type=kind, attn_type=attn_type)


def shapes(ranks: int, kv_heads: int = 4, batch: int = 1) -> list[tuple[int, ...]]:
    return [(batch, 256 // ranks, heads, 64) for heads in (8, kv_heads, kv_heads)]


def answered(kind: str, ulysses: int, ring: int, low: bool = True, attn_type: Any = AttnType.FA, kv_heads: int = 4, batch: int = 1,
             dtype: str = "bf16", backward: bool = True, **call: Any) -> Any:
    def prepare(rank: int) -> tuple[cpscope.Scenario, Answer]:
        attend = module(kind, ulysses, ring, rank, low, attn_type)
        said: dict[str, Any] = {"causal": True, **call}

        def answer(tensors: Tensors) -> dict[str, Any]:
            leaf = leaves(tensors, lambda x: x.unflatten(0, (batch, -1)))
            out = attend(leaf["q"], leaf["k"], leaf["v"], **said)
            return with_gradients(leaf, out) if backward else {"out": out.detach()}
        # USP computes over the order of low groups; with others its own cut gives another one.
        of_q_k_v = like(dtype, *shapes(ulysses * ring, kv_heads, batch))
        return cpscope.Scenario.from_usp(attend, *of_q_k_v, **said, backward=backward), answer
    return graded(prepare)


def extracted(kind: str, ulysses: int, ring: int) -> Any:
    """USP's own EXTRACT_FUNC_DICT against from_usp."""
    def prepare(rank: int) -> tuple[cpscope.Scenario, torch.Tensor]:
        scenario = cpscope.Scenario.from_usp(module(kind, ulysses, ring, rank), *like("bf16", *shapes(ulysses * ring, batch=2)), causal=True)
        whole = torch.arange(512).view(2, 256, 1, 1)
        return scenario, yunchang.EXTRACT_FUNC_DICT[kind](whole, rank, world_size=ulysses * ring, rd=ring, ud=ulysses).flatten()
    return same_order(prepare)


def cases() -> Iterator[Case]:
    yield Case("the page's lines", 4, told("USP (yunchang)", like("bf16", *shapes(4)), lambda rank: dict(rank=rank)))
    for kind in ("basic", "zigzag", "strip"):
        for ulysses, ring in ((1, 4), (2, 2), (4, 1)):
            yield Case(f"{kind}, Ulysses {ulysses} x ring {ring}, bf16", 4, answered(kind, ulysses, ring))
        yield Case(f"{kind}, Ulysses 2 x ring 2, its extract_local", 4, extracted(kind, 2, 2), "same")
    yield Case("zigzag, Ulysses 2 x ring 2, fp16, batch 2", 4, answered("zigzag", 2, 2, batch=2, dtype="fp16"))
    yield Case("basic, Ulysses 2 x ring 2, full", 4, answered("basic", 2, 2, causal=False))
    yield Case("basic, Ulysses 2 x ring 2, softcap 20", 4, answered("basic", 2, 2, softcap=20.0))
    yield Case("basic, Ulysses 4, window 31 left", 4, answered("basic", 4, 1, window_size=(31, 0)))
    forward: dict[str, Any] = dict(kv_heads=8, dtype="fp32", backward=False)
    yield Case("basic_pytorch's order, Ulysses 4, TORCH_MATH, forward, fp32", 4, answered("basic", 4, 1, attn_type=AttnType.TORCH_MATH, **forward))
    yield Case("basic, Ulysses 2 x ring 2, fp16", 4, answered("basic", 2, 2, dtype="fp16"), "FAIL dq",
               "ring-flash-attention's line: dq is rounded to bf16", "rounded_to_bf16")
    yield Case("basic, Ulysses 2 x ring 2, TORCH_MATH, forward, fp32", 4, answered("basic", 2, 2, attn_type=AttnType.TORCH_MATH, **forward), "FAIL out",
               "its math kernel returns 0 as lse, and the ring merges with it", "merge_without_lse")
    yield Case("basic, Ulysses 2 x ring 2, use_ulysses_low=False", 4, answered("basic", 2, 2, low=False), "FAIL out dq dk dv",
               "its basic extraction gives chunks in rank order, another one if Ulysses groups are not neighbours",
               "other_layout contiguous, ranks of an a2a group 2 apart")
    yield Case("zigzag, Ulysses 2 x ring 2, use_ulysses_low=False", 4, answered("zigzag", 2, 2, low=False))
    yield Case("basic, Ulysses 4, 2 KV heads", 4, answered("basic", 4, 1, kv_heads=2), "raises RuntimeError",
               "fewer KV heads than Ulysses ranks: kv_heads // ranks is 0")
