"""Attention of one block in plain torch, rounded where FlashAttention 2 rounds: P and dS to the inputs' dtype before
they are multiplied, sums in fp32, results to the inputs' dtype."""
import torch

Tensor = torch.Tensor


def wide(tensor: Tensor) -> Tensor:
    """In fp32, fp64 as it is."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def visible(num_queries: int, num_keys: int, causal: bool, left: int, right: int) -> Tensor:
    """[num_queries, num_keys]: who sees whom; the diagonal ends at the bottom right. -1: no bound."""
    position = torch.arange(num_queries)[:, None] + num_keys - num_queries
    key = torch.arange(num_keys)[None]
    mask = torch.ones(num_queries, num_keys, dtype=torch.bool)
    right = 0 if causal else right
    if right >= 0:
        mask &= key <= position + right
    if left >= 0:
        mask &= key >= position - left
    return mask


def _per_query_head(tensor: Tensor, heads: int) -> Tensor:
    """[tokens, KV heads, dim] to [heads, tokens, dim] in fp32."""
    return wide(tensor).transpose(0, 1).repeat_interleave(heads // tensor.shape[1], 0)


def _logits(q: Tensor, k: Tensor, scale: float, softcap: float) -> tuple[Tensor, Tensor | None]:
    logits = wide(q).transpose(0, 1) @ _per_query_head(k, q.shape[1]).transpose(1, 2) * scale
    if not softcap:
        return logits, None
    squashed = torch.tanh(logits / softcap)
    return softcap * squashed, squashed


def forward(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool, left: int = -1, right: int = -1,
            softcap: float = 0.0) -> tuple[Tensor, Tensor]:
    """q [tokens, heads, dim], k and v [keys, KV heads, dim]: out as q, lse [heads, tokens] in fp32. A query that sees no
    key has out 0 and lse +inf, as in FlashAttention 2."""
    mask = visible(q.shape[0], k.shape[0], causal, left, right)
    logits, _ = _logits(q, k, scale, softcap)
    logits = logits.masked_fill(~mask, -torch.inf)
    lse = logits.logsumexp(-1)
    is_blind = lse == -torch.inf
    weights = torch.exp(logits - lse.masked_fill(is_blind, 0.0)[..., None])
    out = wide(weights.to(q.dtype)) @ _per_query_head(v, q.shape[1])
    return out.transpose(0, 1).to(q.dtype), lse.masked_fill(is_blind, torch.inf)


def backward(d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, scale: float, causal: bool, left: int = -1,
             right: int = -1, softcap: float = 0.0) -> tuple[Tensor, Tensor, Tensor]:
    """dq, dk, dv of that, from out and lse of the whole row."""
    heads, groups = q.shape[1], q.shape[1] // k.shape[1]
    mask = visible(q.shape[0], k.shape[0], causal, left, right)
    logits, squashed = _logits(q, k, scale, softcap)
    weights = torch.exp(logits - lse.to(logits.dtype)[..., None]).masked_fill(~mask, 0.0)
    queries, gradient = wide(q).transpose(0, 1), wide(d_out).transpose(0, 1)
    delta = (gradient * wide(out).transpose(0, 1)).sum(-1, keepdim=True)
    d_logits = weights * (gradient @ _per_query_head(v, heads).transpose(1, 2) - delta)
    if squashed is not None:
        d_logits = d_logits * (1 - squashed * squashed)
    d_logits, weights = wide(d_logits.to(q.dtype)), wide(weights.to(q.dtype))

    def per_kv_head(tensor: Tensor) -> Tensor:
        return tensor.unflatten(0, (-1, groups)).sum(1).transpose(0, 1).to(q.dtype)

    dq = (d_logits @ _per_query_head(k, heads) * scale).transpose(0, 1).to(q.dtype)
    return dq, per_kv_head(d_logits.transpose(1, 2) @ queries * scale), per_kv_head(weights.transpose(1, 2) @ gradient)
