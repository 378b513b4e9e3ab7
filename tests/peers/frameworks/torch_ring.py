"""PyTorch's ring: torch.distributed.tensor.experimental, with the CPU's flash attention as its block function."""
from typing import Any, Iterator

import torch
import torch.distributed as dist
import torch.distributed.tensor.experimental._context_parallel._attention as peer
from torch.distributed.tensor.experimental._context_parallel import _load_balancer

import cpscope
from case import Case, Tensors, graded, leaves

PACKAGE = "torch"
Tensor = torch.Tensor


def block_forward(q: Tensor, k: Tensor, v: Tensor, is_causal: bool = False, scale: float | None = None, **_: Any) -> Any:
    k, v = (tensor.repeat_interleave(q.shape[1] // k.shape[1], 1) for tensor in (k, v))
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, is_causal, scale=scale)


def block_backward(grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor, is_causal: bool, **_: Any) -> Any:
    groups = query.shape[1] // key.shape[1]
    keys, values = (tensor.repeat_interleave(groups, 1) for tensor in (key, value))
    dq, dk, dv = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad_out.contiguous(), query, keys, values, out.contiguous(), logsumexp, 0.0, is_causal)
    return dq, *(tensor.unflatten(1, (-1, groups)).sum(2) for tensor in (dk, dv))


def ring(ranks: int, rotate: str = "allgather", balanced: bool = True, causal: bool = True, batch: int = 1, dtype: str = "bf16") -> Any:
    seqlen = 192 if ranks == 3 else 256
    scenario = cpscope.Scenario.of(heads=8, kv_heads=2, head_dim=64, batch_size=batch, seqlen=seqlen, qkv_format="bshd", dtype=dtype,
                                   attn_mask_type="causal" if causal else "no_mask", cp_size=ranks, layout="contiguous")
    if balanced:
        indices = _load_balancer._HeadTailLoadBalancer(seqlen, ranks, "cpu")._generate_indices()
        cu_seqlens = [seqlen * i for i in range(batch + 1)] if batch > 1 else None
        scenario = scenario.with_order(cpscope.from_torch(indices.expand(batch, -1), cp_size=ranks, cu_seqlens=cu_seqlens))

    def answer(rank: int, tensors: Tensors) -> dict[str, Any]:
        peer.set_rotate_method(rotate)
        peer._cp_options.enable_load_balance = balanced
        leaf = {name: tensor.detach() for name, tensor in leaves(tensors, lambda x: x.unflatten(0, (batch, -1)).transpose(1, 2)).items()}
        out, lse, *_ = peer._templated_ring_attention(dist.group.WORLD, 2, block_forward, leaf["q"], leaf["k"], leaf["v"], is_causal=causal)
        dq, dk, dv = peer._templated_ring_attention_backward(dist.group.WORLD, 2, block_backward, leaf["d_out"], "grad_out", leaf["q"], leaf["k"],
                                                            leaf["v"], out, lse, causal)[:3]
        return dict(**leaf, out=out, lse=lse, dq=dq, dk=dk, dv=dv)
    return graded(scenario, answer, format="bhsd")


def cases() -> Iterator[Case]:
    for ranks in (2, 4):
        for rotate in ("allgather", "alltoall"):
            for balanced in (True, False):
                yield Case(f"ring, {rotate}, {'head and tail' if balanced else 'contiguous'}, causal, bf16", ranks, ring(ranks, rotate, balanced))
    yield Case("ring, causal, fp32", 3, ring(3, dtype="fp32"))
    yield Case("ring, alltoall, causal, fp32", 4, ring(4, "alltoall", dtype="fp32"))
    yield Case("ring, causal, fp16, batch 2", 2, ring(2, batch=2, dtype="fp16"))
    yield Case("ring, full, contiguous, bf16", 4, ring(4, balanced=False, causal=False))
