"""PyTorch's context parallelism of flex attention: _ContextParallel(FLEX) and its block masks."""
from itertools import accumulate
from typing import Any, Iterator

import torch
import torch.distributed.tensor.experimental._context_parallel._attention as peer
import torch.nn.attention.flex_attention as flex
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental._context_parallel import _load_balancer

import cpscope
from case import Case, Tensors, graded, with_gradients

PACKAGE = "torch"

# Without a compiler or a GPU: masks eagerly, gradients on the CPU.
peer._compiled_create_block_mask = flex.create_block_mask
flex._validate_device = lambda *_: None


class Attention(torch.nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, block_mask: Any) -> Any:
        return flex.flex_attention(q, k, v, block_mask=block_mask, return_lse=True, enable_gqa=True)


def packed(ranks: int, lengths: list[int], balancer: str = "headtail", window: int = 0, causal: bool = True, prefix: int = 0,
           dtype: str = "fp32", block: int = 64) -> Any:
    tokens = sum(lengths)
    begins = [0, *accumulate(lengths)]
    document = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    begin = torch.tensor(begins)[document]

    def mask(_: Any, __: Any, query: Any, key: Any) -> Any:
        seen = document[query] == document[key]
        if causal:
            seen = seen & (query >= key)
        if window:
            seen = seen & (query - key <= window)
        if prefix:
            seen = seen | ((document[query] == document[key]) & (key - begin[key] < prefix))
        return seen

    balancers = {"headtail": lambda: _load_balancer._HeadTailLoadBalancer(tokens, ranks, "cpu"),
                 "perdocument": lambda: _load_balancer._PerDocumentHeadTailLoadBalancer([lengths], ranks, "cpu"),
                 "ptrr": lambda: _load_balancer._PTRRLoadBalancer(
                     flex.create_block_mask(mask, 1, 1, tokens, tokens, device="cpu", BLOCK_SIZE=block), ranks)}
    load_balancer = balancers[balancer]() if balancer else None
    keys: dict[str, Any] = dict(attn_mask_type="padding_causal" if causal else "padding", window_size=[window, 0] if window else [-1, -1])
    if prefix:
        slices = [[[b, b + prefix, b, b + prefix, "full"], [b + prefix, e, b, e, "causal"]] for b, e in zip(begins, begins[1:])]
        keys = dict(attn_mask_type="slices", slices=sum(slices, []))
    scenario = cpscope.Scenario.of(heads=4, kv_heads=2, head_dim=32, lengths=lengths, cp_size=ranks, dtype=dtype, cp_comm_type="all_gather",
                                   layout="contiguous", pad_between_seqs=False, **keys)
    if load_balancer is not None:
        scenario = scenario.with_order(cpscope.from_torch(load_balancer._generate_indices(), cp_size=ranks, cu_seqlens=begins))

    def answer(rank: int, tensors: Tensors) -> dict[str, Any]:
        mesh = init_device_mesh("cpu", (ranks,))
        peer._cp_options.enable_load_balance = load_balancer is not None
        attend = Attention()
        peer._ContextParallel(2, peer._ContextParallel.AttentionType.FLEX)._apply(attend, mesh)
        whole = [tensor.transpose(0, 1)[None].contiguous() for tensor in scenario.inputs(torch=True).values()]
        parts = peer._context_parallel_shard(mesh, whole, [2] * 4, load_balancer)
        leaf = dict(zip(("q", "k", "v", "d_out"), (part.detach().clone().requires_grad_() for part in parts)))
        more = [load_balancer] if load_balancer is not None else []
        block_mask = peer._create_cp_block_mask(mask, 1, 1, tokens, tokens, (block, block), mesh, *more)
        out, lse = attend(leaf["q"], leaf["k"], leaf["v"], block_mask)
        leaf["d_out"] = leaf["d_out"].detach()
        return with_gradients(leaf, out, lse=lse.detach())
    return graded(scenario, answer, format="bhsd")


def cases() -> Iterator[Case]:
    yield Case("flex, head and tail, causal, fp32", 2, packed(2, [256]))
    yield Case("flex, head and tail, 3 documents, bf16", 4, packed(4, [128, 256, 128], dtype="bf16"))
    yield Case("flex, head and tail, 3 documents of odd lengths", 2, packed(2, [37, 200, 19]))
    yield Case("flex, head and tail of each document", 2, packed(2, [128, 64, 64], "perdocument"))
    yield Case("flex, PTRR, 3 documents", 2, packed(2, [128, 192, 192], "ptrr"))
    yield Case("flex, contiguous, 3 documents", 2, packed(2, [128, 192, 192], ""))
    yield Case("flex, window 50 left", 2, packed(2, [256], window=50))
    yield Case("flex, 2 documents, full", 2, packed(2, [100, 156], causal=False))
    yield Case("flex, prefixes of 20 seen by all of a document", 2, packed(2, [100, 156], prefix=20))
