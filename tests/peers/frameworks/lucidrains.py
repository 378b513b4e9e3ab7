"""ring-attention-pytorch (lucidrains)."""
from typing import Any, Iterator

import torch

import cpscope
from case import Case, Tensors, graded, leaves, with_gradients
from ring_attention_pytorch.ring_flash_attention import ring_flash_attn
from ring_attention_pytorch.zig_zag_attention import zig_zag_attn, zig_zag_shard

PACKAGE = "ring-attention-pytorch"
TOKENS, BATCH, HEAD_DIM = 256, 2, 32


def ring(ranks: int, heads: int = 4, kv_heads: int = 4, causal: bool = True, striped: bool = False, bucket: int = 32, softcap: float = 0.0,
         lookback: int | None = None, dtype: str = "fp32") -> Any:
    scenario = cpscope.Scenario.of(heads=heads, kv_heads=kv_heads, head_dim=HEAD_DIM, batch_size=BATCH, seqlen=TOKENS, qkv_format="bshd",
                                   cp_size=ranks, dtype=dtype, softcap=softcap, dkv_hops="ring", attn_mask_type="causal" if causal else "no_mask",
                                   window_size=[lookback, 0] if lookback else [-1, -1])
    part = TOKENS // ranks
    position = torch.arange(TOKENS)
    if striped:  # 'b (i j) d -> b (j i) d' with i = bucket
        position = position.view(bucket, -1).t().flatten()
    scenario = scenario.with_order([torch.cat([b * TOKENS + position[rank * part:(rank + 1) * part] for b in range(BATCH)]) for rank in range(ranks)])

    def answer(tensors: Tensors) -> dict[str, Any]:
        leaf = leaves(tensors, lambda x: x.unflatten(0, (BATCH, -1)))
        out = ring_flash_attn(leaf["q"], leaf["k"], leaf["v"], None, causal, bucket, True, striped, lookback, ranks, bool(softcap), softcap or 50.0)
        return with_gradients(leaf, out)
    return graded(lambda _: (scenario, answer))


def zig_zag(ranks: int, dtype: str = "fp32") -> Any:
    scenario = cpscope.Scenario.of(heads=4, head_dim=HEAD_DIM, batch_size=BATCH, seqlen=TOKENS, qkv_format="bshd", cp_size=ranks, dtype=dtype,
                                   cp_comm_type="all_gather")

    def answer(tensors: Tensors) -> dict[str, Any]:
        whole = {name: tensor.unflatten(0, (BATCH, TOKENS)).transpose(1, 2).flatten(0, 1) for name, tensor in scenario.inputs(torch=True).items()}
        parts = {name: zig_zag_shard(tensor) for name, tensor in whole.items()}
        (_, queries, keys), _ = parts["q"]
        leaf = leaves({name: part[0][0] for name, part in parts.items()}, lambda x: x.unflatten(0, (BATCH, -1)))
        out = zig_zag_attn(leaf["q"], leaf["k"], leaf["v"], attn_mask=queries[:, None] >= keys[None])
        return with_gradients(leaf, out)
    return graded(lambda _: (scenario, answer), format="bhsd")


def cases() -> Iterator[Case]:
    swapped = "its backward unpacks (received, sent) as (dk, dv): both are dk + dv of other rows"
    for ranks, keys in ((2, {}), (4, {}), (4, dict(striped=True)), (4, dict(causal=False)), (2, dict(softcap=10.0))):
        what = ", ".join([*(str(key) if value is True else f"{key}={value}" for key, value in keys.items())])
        yield Case(f"ring{', ' + what if what else ''}, fp32", ranks, ring(ranks, **keys), "FAIL dk dv", swapped, "dk_dv_added")
    yield Case("ring, 2 KV heads", 4, ring(4, kv_heads=2), "FAIL out dq dk dv", "query head h reads KV head h % kv_heads, not h // group",
               "kv_heads_interleaved")
    yield Case("ring, max_lookback_seq_len 64", 4, ring(4, lookback=64), "FAIL out dq dk dv", "its windows are whole ring passes: with 64 tokens a rank,"
               " own keys alone", "rank_alone")
    yield Case("zig zag, fp32", 2, zig_zag(2), "FAIL dk dv", "its all_gather sums no gradients: dk and dv are of the rank's own queries alone",
               "local_gradients_only")
