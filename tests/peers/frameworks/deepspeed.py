"""DeepSpeed: Ulysses (DistributedAttention) and ALST (UlyssesSPAttentionHF)."""
import logging
import sys
from typing import Any, Iterator

import torch
import torch.distributed as dist
import torch.nn.functional

logging.disable(logging.WARNING)

import deepspeed.comm.torch  # noqa: E402
from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF  # noqa: E402
from deepspeed.sequence.layer import DistributedAttention  # noqa: E402
from deepspeed.utils import groups  # noqa: E402
from transformers.integrations.sdpa_attention import sdpa_attention_forward  # noqa: E402

import cpscope  # noqa: E402
from case import Case, Tensors, graded, leaves, with_gradients  # noqa: E402

PACKAGE = "deepspeed"
# A minute of compiling for a collective that none of these uses. deepspeed.comm.torch itself is hidden by torch.
sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # type: ignore[attr-defined]
TOKENS = 256


def contiguous(ranks: int, batch: int) -> list[list[int]]:
    """Every sequence of the batch cut into as many equal parts as ranks."""
    part = TOKENS // ranks
    return [[b * TOKENS + rank * part + i for b in range(batch) for i in range(part)] for rank in range(ranks)]


def ulysses(ranks: int, form: str = "bshd", heads: int = 8, kv_heads: int = 4, dtype: str = "fp32", batch: int = 2) -> Any:
    communication = "all_gather" if heads % ranks else "a2a"  # an order is all that is asked of it; a2a needs even heads
    scenario = cpscope.Scenario.of(heads=heads, kv_heads=kv_heads, head_dim=32, batch_size=batch, seqlen=TOKENS, qkv_format=form, cp_size=ranks,
                                   cp_comm_type=communication, dtype=dtype).with_order(contiguous(ranks, batch))
    is_batch_first = form == "bshd"

    def local_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        to, back = (((0, 2, 1, 3), (0, 2, 1, 3)) if is_batch_first else ((1, 2, 0, 3), (2, 0, 1, 3)))
        q, k, v = (tensor.permute(to) for tensor in (q, k, v))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).permute(back).contiguous()

    def shape(tensor: torch.Tensor) -> torch.Tensor:
        parts = tensor.unflatten(0, (batch, -1))
        return parts if is_batch_first else parts.transpose(0, 1)

    def answer(rank: int, tensors: Tensors) -> dict[str, Any]:
        deepspeed.comm.init_distributed(dist_backend="gloo", dist_init_required=False)
        groups._get_sequence_parallel_rank = lambda: rank  # of a mesh that only deepspeed.initialize makes
        leaf = leaves(tensors, shape)
        attend = DistributedAttention(local_attention, dist.group.WORLD, 2, 1 if is_batch_first else 0)
        out = attend(leaf["q"], leaf["k"], leaf["v"], 0 if is_batch_first else 1)
        return with_gradients(leaf, out.reshape(leaf["d_out"].shape))
    return graded(scenario, answer)


def alst(ranks: int, kv_heads: int = 2, dtype: str = "fp32", documents: list[int] | None = None) -> Any:
    batch = 1 if documents else 2
    keys: dict[str, Any] = dict(lengths=documents, attn_mask_type="padding_causal", pad_between_seqs=False) if documents else dict(
        batch_size=batch, seqlen=TOKENS, qkv_format="bshd")
    scenario = cpscope.Scenario.of(heads=8, kv_heads=kv_heads, head_dim=32, cp_size=ranks, cp_comm_type="a2a", dtype=dtype, layout="contiguous", **keys)
    if not documents:
        scenario = scenario.with_order(contiguous(ranks, batch))
    positions = torch.cat([torch.arange(length) for length in documents or [TOKENS]])

    def answer(rank: int, tensors: Tensors) -> dict[str, Any]:
        deepspeed.comm.init_distributed(dist_backend="gloo", dist_init_required=False)
        leaf = leaves(tensors, lambda x: x.unflatten(0, (batch, -1)))
        layer = torch.nn.Module()
        layer.num_key_value_groups, layer.is_causal, layer.layer_idx = 8 // kv_heads, True, 0
        attend = UlyssesSPAttentionHF(
            attn=sdpa_attention_forward, batch_size=batch, attn_head_count=8, attn_head_size=32, kv_head_count=kv_heads, num_hidden_layers=1,
            process_group=dist.group.WORLD, local_seq_length=TOKENS // ranks, global_seq_length=TOKENS)
        local = positions.chunk(ranks)[rank].expand(batch, -1).contiguous()
        out, _ = attend(layer, *(leaf[name].transpose(1, 2) for name in "qkv"), None, position_ids=local, scaling=None, dropout=0.0)
        return with_gradients(leaf, out.unflatten(2, (8, 32)))
    return graded(scenario, answer, format="bshd")


def cases() -> Iterator[Case]:
    for ranks in (2, 4):
        for form in ("bshd", "sbhd"):
            yield Case(f"Ulysses, {form}, GQA, fp32", ranks, ulysses(ranks, form))
    yield Case("Ulysses, bshd, bf16", 2, ulysses(2, dtype="bf16"))
    yield Case("Ulysses, bshd, 6 heads on 4 ranks", 4, ulysses(4, heads=6, kv_heads=6, batch=1))
    yield Case("Ulysses, bshd, 12 heads and 6 KV heads on 4 ranks", 4, ulysses(4, heads=12, kv_heads=6, batch=1))
    yield Case("ALST, GQA, fp32", 2, alst(2))
    yield Case("ALST, 2 KV heads on 4 ranks, fp32", 4, alst(4))
    yield Case("ALST, MQA, bf16", 4, alst(4, kv_heads=1, dtype="bf16"))
    yield Case("ALST, 2 documents in position_ids, sdpa", 2, alst(2, documents=[100, 156]), "FAIL out dq dk dv",
               "sdpa takes no positions: the second document sees the first", "documents_ignored")
