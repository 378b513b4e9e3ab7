"""USP (yunchang): Ulysses inside, a ring outside."""
from typing import Any, Iterator

import stand_ins

PACKAGE = "yunchang"

stand_ins.install_flash_attn()

import torch  # noqa: E402
import yunchang  # noqa: E402
from yunchang.kernels import AttnType  # noqa: E402

import cpscope  # noqa: E402
from case import Case, Tensors, graded, leaves, same_order, with_gradients  # noqa: E402


def scenario_of(kind: str, ulysses: int, ring: int, kv_heads: int = 4, batch: int = 1, causal: bool = True, window: tuple[int, int] = (-1, -1),
                **keys: Any) -> cpscope.Scenario:
    communication = "p2p" if ulysses == 1 else "a2a" if ring == 1 else "a2a+p2p"
    scenario = cpscope.Scenario.of(**{"dtype": "bf16", **dict(
        heads=8, kv_heads=kv_heads, head_dim=64, batch_size=batch, seqlen=256, qkv_format="bshd", window_size=list(window),
        attn_mask_type="causal" if causal else "no_mask", cp_size=ulysses * ring, a2a_size=ulysses, cp_comm_type=communication), **keys})
    order = cpscope.from_usp(kind, cp_size=ulysses * ring, ulysses_degree=ulysses, cu_seqlens=[256 * i for i in range(batch + 1)])
    return scenario.with_order(order)


def answered(kind: str, ulysses: int, ring: int, low: bool = True, attn_type: Any = AttnType.FA, **keys: Any) -> Any:
    scenario = scenario_of(kind, ulysses, ring, **keys)
    window, softcap = keys.get("window", (-1, -1)), keys.get("softcap", 0.0)

    def answer(rank: int, tensors: Tensors) -> dict[str, Any]:
        yunchang.set_seq_parallel_pg(ulysses, ring, rank, ulysses * ring, use_ulysses_low=low)
        leaf = leaves(tensors, lambda x: x.unflatten(0, (keys.get("batch", 1), -1)))
        attend = yunchang.LongContextAttention(ring_impl_type=kind, attn_type=attn_type)
        out = attend(leaf["q"], leaf["k"], leaf["v"], causal=keys.get("causal", True), window_size=window, softcap=softcap)
        return with_gradients(leaf, out) if scenario.backward else {"out": out.detach()}
    return graded(scenario, answer)


def extracted(kind: str, ulysses: int, ring: int) -> Any:
    """USP's own EXTRACT_FUNC_DICT against from_usp."""
    scenario = scenario_of(kind, ulysses, ring, batch=2)

    def ids(rank: int) -> torch.Tensor:
        yunchang.set_seq_parallel_pg(ulysses, ring, rank, ulysses * ring)
        whole = torch.arange(512).view(2, 256, 1, 1)
        return yunchang.EXTRACT_FUNC_DICT[kind](whole, rank, world_size=ulysses * ring, rd=ring, ud=ulysses).flatten()
    return same_order(scenario, ids)


def cases() -> Iterator[Case]:
    for kind in ("basic", "zigzag", "strip"):
        for ulysses, ring in ((1, 4), (2, 2), (4, 1)):
            yield Case(f"{kind}, Ulysses {ulysses} x ring {ring}, bf16", 4, answered(kind, ulysses, ring))
        yield Case(f"{kind}, Ulysses 2 x ring 2, its extract_local", 4, extracted(kind, 2, 2), "same")
    yield Case("zigzag, Ulysses 2 x ring 2, fp16, batch 2", 4, answered("zigzag", 2, 2, batch=2, dtype="fp16"))
    yield Case("basic, Ulysses 2 x ring 2, full", 4, answered("basic", 2, 2, causal=False))
    yield Case("basic, Ulysses 2 x ring 2, softcap 20", 4, answered("basic", 2, 2, softcap=20.0))
    yield Case("basic, Ulysses 4, window 31 left", 4, answered("basic", 4, 1, window=(31, 0)))
    forward = dict(kv_heads=8, dtype="fp32", backward=False)
    yield Case("basic_pytorch's order, Ulysses 4, TORCH_MATH, forward, fp32", 4, answered("basic", 4, 1, attn_type=AttnType.TORCH_MATH, **forward))
    yield Case("basic, Ulysses 2 x ring 2, fp16", 4, answered("basic", 2, 2, dtype="fp16"), "FAIL dq",
               "ring-flash-attention's line: dq is rounded to bf16", "rounded_to_bf16")
    yield Case("basic, Ulysses 2 x ring 2, TORCH_MATH, forward, fp32", 4, answered("basic", 2, 2, attn_type=AttnType.TORCH_MATH, **forward), "FAIL out",
               "its math kernel returns 0 as lse, and the ring merges with it", "merge_without_lse")
    yield Case("basic, Ulysses 2 x ring 2, use_ulysses_low=False", 4, answered("basic", 2, 2, low=False), "FAIL out dq dk dv",
               "its basic extraction gives chunks in rank order, another one if Ulysses groups are not neighbours",
               "other_layout contiguous, ranks of an a2a group 2 apart")
    yield Case("basic, Ulysses 4, 2 KV heads", 4, answered("basic", 4, 1, kv_heads=2), "raises RuntimeError",
               "fewer KV heads than Ulysses ranks: kv_heads // ranks is 0")
