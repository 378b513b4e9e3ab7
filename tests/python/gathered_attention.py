"""Causal context-parallel attention by hand: every rank owns chunks r and 2 * size - 1 - r of one sequence, gathers all keys and
values, and merges one FlashAttention call for each chunk of keys. On CPUs over gloo, on GPUs over NCCL.
"""
import torch
import torch.distributed as dist

#: Mistakes that can be planted, and the causes that name them.
FAULTS = {"skipped_chunk": "partial_missing", "no_mask": "causal_ignored", "local_gradients": "local_gradients_only"}


def _for_queries(keys, heads):
    """KV heads repeated for the query heads that read them."""
    return keys.repeat_interleave(heads // keys.shape[1], 1)


def _block(q, k, v, causal):
    """out, lse [batch, heads, rows] and what backward needs, of one chunk of queries and one of keys."""
    k, v = _for_queries(k, q.shape[1]), _for_queries(v, q.shape[1])
    if q.device.type == "cpu":
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal)
        return out, lse, None
    out, lse, *rest = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, False)
    return out, lse, rest


def _block_backward(d_out, q, k, v, out, lse, causal, rest):
    k, v = _for_queries(k, q.shape[1]), _for_queries(v, q.shape[1])
    if rest is None:
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(d_out, q, k, v, out, lse, 0.0, causal)
    bounds_q, bounds_k, most_q, most_k, seed, offset, _ = rest
    return torch.ops.aten._scaled_dot_product_flash_attention_backward(d_out, q, k, v, out, lse, bounds_q, bounds_k, most_q, most_k, 0.0,
                                                                       causal, seed, offset)


class _Attention(torch.autograd.Function):
    """q, k, v: [batch, heads or KV heads, local rows, head_dim]."""

    @staticmethod
    def forward(ctx, q, k, v, group, fault):
        size, rank = dist.get_world_size(group), dist.get_rank(group)
        own = (rank, 2 * size - 1 - rank)
        packed = torch.stack([k, v]).contiguous()
        parts = [torch.empty_like(packed) for _ in range(size)]
        dist.all_gather(parts, packed, group=group)
        keys, values = {}, {}
        for r, part in enumerate(parts):
            for chunk, (key, value) in zip((r, 2 * size - 1 - r), zip(part[0].chunk(2, 2), part[1].chunk(2, 2))):
                keys[chunk], values[chunk] = key.contiguous(), value.contiguous()
        outs, lses, blocks = [], [], []
        for place, (chunk, query) in enumerate(zip(own, q.chunk(2, 2))):
            query = query.contiguous()
            total, lse = torch.zeros(query.shape, dtype=torch.float32, device=q.device), None
            for j in range(2 * size if fault == "no_mask" else chunk + 1):
                if fault == "skipped_chunk" and j == 0 and chunk > 0:
                    continue
                causal = j == chunk and fault != "no_mask"
                out, part, rest = _block(query, keys[j], values[j], causal)
                blocks.append((place, j, causal, rest))
                merged = part if lse is None else torch.logaddexp(lse, part)
                total = total * (0.0 if lse is None else torch.exp(lse - merged)[..., None]) + out * torch.exp(part - merged)[..., None]
                lse = merged
            outs.append(total.to(q.dtype))
            lses.append(lse)
        out, lse = torch.cat(outs, 2), torch.cat(lses, 2)
        ctx.save_for_backward(q, out, lse, *(keys[j] for j in sorted(keys)), *(values[j] for j in sorted(values)))
        ctx.words = (group, fault, own, blocks)
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    def backward(ctx, d_out, _):
        q, out, lse, *both = ctx.saved_tensors
        keys, values = both[:len(both) // 2], both[len(both) // 2:]
        group, fault, own, blocks = ctx.words
        dq = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
        d_keys = torch.zeros(2, len(keys), *keys[0].shape, dtype=torch.float32, device=q.device)
        halves = [[part.contiguous() for part in tensor.chunk(2, 2)] for tensor in (d_out, q, out, lse)]
        for place, j, causal, rest in blocks:
            one, query, answer, sums = (half[place] for half in halves)
            gradients = _block_backward(one, query, keys[j], values[j], answer, sums, causal, rest)
            dq.chunk(2, 2)[place].add_(gradients[0])
            for which in (0, 1):
                d_keys[which, j] += gradients[1 + which].float().unflatten(1, (keys[j].shape[1], -1)).sum(2)
        if fault != "local_gradients":
            dist.all_reduce(d_keys, group=group)
        dk, dv = (torch.cat([d_keys[which, chunk] for chunk in own], 2).to(q.dtype) for which in (0, 1))
        return dq.to(q.dtype), dk, dv, None, None


def attention(q, k, v, group=None, fault=""):
    """out as q, and lse [batch, heads, rows]. q: [batch, heads, local rows, head_dim]; k and v may have fewer heads."""
    return _Attention.apply(q, k, v, group, fault)
