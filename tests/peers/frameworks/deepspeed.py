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
from case import Answer, Case, Prepare, Tensors, graded, leaves, like, with_gradients  # noqa: E402
from page import told  # noqa: E402

PACKAGE = "deepspeed"
# A minute of compiling for a collective that none of these uses. deepspeed.comm.torch itself is hidden by torch.
sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # type: ignore[attr-defined]
TOKENS = 256


def distributed_attention(rank: int, form: str = "bshd") -> Any:
    deepspeed.comm.init_distributed(dist_backend="gloo", dist_init_required=False)
    groups._get_sequence_parallel_rank = lambda: rank  # of a mesh that only deepspeed.initialize makes

    def local_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        to, back = (((0, 2, 1, 3), (0, 2, 1, 3)) if form == "bshd" else ((1, 2, 0, 3), (2, 0, 1, 3)))
        q, k, v = (tensor.permute(to) for tensor in (q, k, v))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).permute(back).contiguous()
    return DistributedAttention(local_attention, dist.group.WORLD, 2, 1 if form == "bshd" else 0)


def ulysses(ranks: int, form: str = "bshd", heads: int = 8, kv_heads: int = 4, dtype: str = "fp32", batch: int = 2) -> Prepare:
    is_batch_first = form == "bshd"

    def shape(tensor: torch.Tensor) -> torch.Tensor:
        parts = tensor.unflatten(0, (batch, -1))
        return parts if is_batch_first else parts.transpose(0, 1)

    def prepare(rank: int) -> tuple[cpscope.Scenario, Answer]:
        attend, batch_dim = distributed_attention(rank, form), 0 if is_batch_first else 1

        def answer(tensors: Tensors) -> dict[str, Any]:
            leaf = leaves(tensors, shape)
            return with_gradients(leaf, attend(leaf["q"], leaf["k"], leaf["v"], batch_dim).reshape(leaf["d_out"].shape))
        rows = (batch, TOKENS // ranks) if is_batch_first else (TOKENS // ranks, batch)
        return cpscope.Scenario.from_deepspeed(attend, *like(dtype, *((*rows, of, 32) for of in (heads, kv_heads, kv_heads))), batch_dim, causal=True), answer
    return prepare


def layer(kv_heads: int) -> Any:
    made: Any = torch.nn.Module()
    made.num_key_value_groups, made.is_causal, made.layer_idx = 8 // kv_heads, True, 0
    return made


def alst_attention(ranks: int, kv_heads: int, batch: int) -> Any:
    deepspeed.comm.init_distributed(dist_backend="gloo", dist_init_required=False)
    return UlyssesSPAttentionHF(
        attn=sdpa_attention_forward, batch_size=batch, attn_head_count=8, attn_head_size=32, kv_head_count=kv_heads, num_hidden_layers=1,
        process_group=dist.group.WORLD, local_seq_length=TOKENS // ranks, global_seq_length=TOKENS)


def alst(ranks: int, kv_heads: int = 2, dtype: str = "fp32", documents: list[int] | None = None) -> Prepare:
    batch = 1 if documents else 2
    positions = torch.cat([torch.arange(length) for length in documents or [TOKENS]]).expand(batch, -1)

    def prepare(rank: int) -> tuple[cpscope.Scenario, Answer]:
        attend, module = alst_attention(ranks, kv_heads, batch), layer(kv_heads)

        def answer(tensors: Tensors) -> dict[str, Any]:
            leaf = leaves(tensors, lambda x: x.unflatten(0, (batch, -1)).transpose(1, 2))
            local = positions.chunk(ranks, 1)[rank].contiguous()
            out, _ = attend(module, leaf["q"], leaf["k"], leaf["v"], None, position_ids=local, scaling=None, dropout=0.0)
            leaf["d_out"] = leaf["d_out"].transpose(1, 2).flatten(2)
            return with_gradients(leaf, out)
        shapes = ((batch, heads, TOKENS // ranks, 32) for heads in (8, kv_heads, kv_heads))
        return cpscope.Scenario.from_deepspeed(attend, *like(dtype, *shapes), module=module, position_ids=positions), answer
    return prepare


def alst_names(rank: int) -> dict[str, Any]:
    return dict(attention=alst_attention(2, 2, 2), layer=layer(2), local_position_ids=torch.arange(rank * 128, rank * 128 + 128).expand(2, -1).contiguous())


def cases() -> Iterator[Case]:
    yield Case("the page's lines, Ulysses", 2, told("DeepSpeed: Ulysses", like("fp32", (2, 128, 8, 32), (2, 128, 2, 32), (2, 128, 2, 32)),
                                                    lambda rank: dict(attention=distributed_attention(rank))))
    yield Case("the page's lines, ALST", 2, told("DeepSpeed: ALST", like("fp32", (2, 8, 128, 32), (2, 2, 128, 32), (2, 2, 128, 32)), alst_names, (2, 128, 256)))
    for ranks in (2, 4):
        for form in ("bshd", "sbhd"):
            yield Case(f"Ulysses, {form}, GQA, fp32", ranks, graded(ulysses(ranks, form)))
    yield Case("Ulysses, bshd, bf16", 2, graded(ulysses(2, dtype="bf16")))
    yield Case("Ulysses, bshd, 6 heads on 4 ranks", 4, graded(ulysses(4, heads=6, kv_heads=6, batch=1)))
    yield Case("Ulysses, bshd, 12 heads and 6 KV heads on 4 ranks", 4, graded(ulysses(4, heads=12, kv_heads=6, batch=1)))
    yield Case("ALST, GQA, fp32", 2, graded(alst(2)))
    yield Case("ALST, 2 KV heads on 4 ranks, fp32", 4, graded(alst(4)))
    yield Case("ALST, MQA, bf16", 4, graded(alst(4, kv_heads=1, dtype="bf16")))
    yield Case("ALST, 2 documents in position_ids, sdpa", 2, graded(alst(2, documents=[100, 156])), "FAIL out dq dk dv",
               "sdpa takes no positions: the second document sees the first", "documents_ignored")
