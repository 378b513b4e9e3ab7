"""PyTorch's ring: torch.distributed.tensor.experimental, with the CPU's flash attention as its block function."""
from typing import Any, Iterator

import torch
import torch.distributed as dist
import torch.distributed.tensor.experimental._context_parallel._attention as peer
from torch.distributed.device_mesh import init_device_mesh

import cpscope
from case import Answer, Case, Prepare, Tensors, graded, leaves, like, with_gradients
from page import told

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


class Ring(torch.autograd.Function):
    """scaled_dot_product_attention within context_parallel(), whose dispatch knows GPUs only."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> Any:
        out, lse, *_ = peer._templated_ring_attention(dist.group.WORLD, 2, block_forward, q, k, v, is_causal=is_causal)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.is_causal = is_causal
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    def backward(ctx: Any, d_out: Tensor, _: Any) -> Any:
        gradients = peer._templated_ring_attention_backward(dist.group.WORLD, 2, block_backward, d_out, "grad_out", *ctx.saved_tensors, ctx.is_causal)
        return (*gradients[:3], None)


def ring(ranks: int, rotate: str = "allgather", balanced: bool = True, causal: bool = True, batch: int = 1, dtype: str = "bf16") -> Prepare:
    seqlen = 192 if ranks == 3 else 256

    def prepare(_: int) -> tuple[cpscope.Scenario, Answer]:
        peer.set_rotate_method(rotate)
        peer._cp_options.enable_load_balance = balanced
        q, k, v = like(dtype, *((batch, heads, seqlen // ranks, 64) for heads in (8, 2, 2)))

        def answer(tensors: Tensors) -> dict[str, Any]:
            leaf = leaves(tensors, lambda x: x.unflatten(0, (batch, -1)).transpose(1, 2))
            out, lse = Ring.apply(leaf["q"], leaf["k"], leaf["v"], causal)
            return with_gradients(leaf, out, lse=lse)
        return cpscope.Scenario.from_torch_cp(init_device_mesh("cpu", (ranks,)), query=q, key=k, value=v, is_causal=causal), answer
    return prepare


def page_names(_: int) -> dict[str, Any]:
    peer._cp_options.enable_load_balance = True
    return dict(mesh=init_device_mesh("cpu", (4,)), attention=lambda q, k, v, is_causal: Ring.apply(q, k, v, is_causal)[0])


def cases() -> Iterator[Case]:
    shapes = like("bf16", (1, 8, 64, 64), (1, 2, 64, 64), (1, 2, 64, 64))
    yield Case("the page's lines, ring", 4, told("PyTorch: scaled_dot_product_attention", shapes, page_names))
    for ranks in (2, 4):
        for rotate in ("allgather", "alltoall"):
            for balanced in (True, False):
                yield Case(f"ring, {rotate}, {'head and tail' if balanced else 'contiguous'}, causal, bf16", ranks, graded(ring(ranks, rotate, balanced)))
    yield Case("ring, causal, fp32", 3, graded(ring(3, dtype="fp32")))
    yield Case("ring, alltoall, causal, fp32", 4, graded(ring(4, "alltoall", dtype="fp32")))
    yield Case("ring, causal, fp16, batch 2", 2, graded(ring(2, batch=2, dtype="fp16")))
    yield Case("ring, full, contiguous, bf16", 4, graded(ring(4, balanced=False, causal=False)))
