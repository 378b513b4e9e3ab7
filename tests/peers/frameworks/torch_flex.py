"""PyTorch's context parallelism of flex attention: _ContextParallel(FLEX) and its block masks."""
from itertools import accumulate
from typing import Any, Iterator

import torch
import torch.distributed.tensor.experimental._context_parallel._attention as peer
import torch.nn.attention.flex_attention as flex
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental._context_parallel import _load_balancer

import cpscope
from case import Answer, Case, Prepare, Tensors, graded, like, with_gradients
from page import told

PACKAGE = "torch"

# Without a compiler or a GPU: masks eagerly, gradients on the CPU.
peer._compiled_create_block_mask = flex.create_block_mask
flex._validate_device = lambda *_: None


class Attention(torch.nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, block_mask: Any) -> Any:
        return flex.flex_attention(q, k, v, block_mask=block_mask, return_lse=True, enable_gqa=True)


def attention(ranks: int) -> tuple[Any, Any]:
    """A module that gathers keys and values, and its mesh."""
    mesh, attend = init_device_mesh("cpu", (ranks,)), Attention()
    peer._ContextParallel(2, peer._ContextParallel.AttentionType.FLEX)._apply(attend, mesh)
    return attend, mesh


def mask_of(rows: list[list[int]], window: int = 0, causal: bool = True, prefix: int = 0) -> Any:
    """mask_mod of documents with these lengths, in each row of the batch."""
    document = torch.stack([torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths)) for lengths in rows])
    begin = torch.stack([torch.repeat_interleave(torch.tensor([0, *accumulate(lengths)][:-1]), torch.tensor(lengths)) for lengths in rows])

    def mask(b: Any, _: Any, query: Any, key: Any) -> Any:
        same = document[b, query] == document[b, key]
        seen = same & (query >= key) if causal else same
        seen = seen & (query - key <= window) if window else seen
        return seen | (same & (key - begin[b, key] < prefix)) if prefix else seen
    return mask


def packed(ranks: int, lengths: list[int] | list[list[int]], balancer: str = "headtail", dtype: str = "fp32", block: int = 64, **keys: Any) -> Prepare:
    rows: Any = [lengths] if isinstance(lengths[0], int) else lengths
    tokens, batch, mask = sum(rows[0]), len(rows), mask_of(rows, **keys)
    balancers = {"headtail": lambda: _load_balancer._HeadTailLoadBalancer(tokens, ranks, "cpu"),
                 "perdocument": lambda: _load_balancer._PerDocumentHeadTailLoadBalancer(rows, ranks, "cpu"),
                 "ptrr": lambda: _load_balancer._PTRRLoadBalancer(flex.create_block_mask(mask, 1, 1, tokens, tokens, "cpu", block), ranks)}
    load_balancer = balancers[balancer]() if balancer else None

    def prepare(_: int) -> tuple[cpscope.Scenario, Answer]:
        attend, mesh = attention(ranks)
        peer._cp_options.enable_load_balance = load_balancer is not None
        local_mask = peer._create_cp_block_mask(mask, batch, 1, tokens, tokens, (block, block), mesh, *([load_balancer] if load_balancer else []))
        whole = flex.create_block_mask(mask, batch, 1, tokens, tokens, "cpu", block)
        q, k, v = like(dtype, *((batch, heads, tokens // ranks, 32) for heads in (4, 2, 2)))

        def answer(tensors: Tensors) -> dict[str, Any]:
            # The rank's rows of the whole tensors, as the peer cuts them, are those of the scenario.
            wide = [tensor.unflatten(0, (batch, -1)).transpose(1, 2).contiguous() for tensor in scenario.inputs(torch=True).values()]
            parts = peer._context_parallel_shard(mesh, wide, [2] * 4, load_balancer)
            leaf = dict(zip(("q", "k", "v", "d_out"), (part.detach().clone().requires_grad_() for part in parts)))
            out, lse = attend(leaf["q"], leaf["k"], leaf["v"], local_mask)
            leaf["d_out"] = leaf["d_out"].detach()
            return with_gradients(leaf, out, lse=lse.detach())
        scenario = cpscope.Scenario.from_torch_cp(mesh, whole, query=q, key=k, value=v, load_balancer=load_balancer)
        return scenario, answer
    return prepare


def page_names(_: int) -> dict[str, Any]:
    attend, mesh = attention(2)
    block_mask = flex.create_block_mask(mask_of([[100, 156], [64, 192]]), 2, 1, 256, 256, "cpu", 64)
    load_balancer = _load_balancer._HeadTailLoadBalancer(256, 2, "cpu")
    local_mask = peer._create_cp_block_mask(block_mask.mask_mod, 2, 1, 256, 256, (64, 64), mesh, load_balancer)
    return dict(mesh=mesh, block_mask=block_mask, load_balancer=load_balancer, local_mask=local_mask, attention=lambda *call: attend(*call)[0])


def cases() -> Iterator[Case]:
    shapes = like("fp32", (2, 4, 128, 32), (2, 2, 128, 32), (2, 2, 128, 32))
    yield Case("the page's lines, flex, batch 2", 2, told("PyTorch: flex attention", shapes, page_names))
    yield Case("flex, head and tail, causal, fp32", 2, graded(packed(2, [256])))
    yield Case("flex, head and tail, 3 documents, bf16", 4, graded(packed(4, [128, 256, 128], dtype="bf16")))
    yield Case("flex, head and tail, 3 documents of odd lengths", 2, graded(packed(2, [37, 200, 19])))
    yield Case("flex, head and tail, other documents in each row of a batch", 2, graded(packed(2, [[37, 200, 19], [128, 128], [256]])))
    yield Case("flex, head and tail of each document", 2, graded(packed(2, [128, 64, 64], "perdocument")))
    yield Case("flex, head and tail of each document, batch 2", 2, graded(packed(2, [[128, 64, 64], [64, 192]], "perdocument")))
    yield Case("flex, PTRR, 3 documents", 2, graded(packed(2, [128, 192, 192], "ptrr")))
    yield Case("flex, contiguous, 3 documents", 2, graded(packed(2, [128, 192, 192], "")))
    yield Case("flex, contiguous, batch 2", 2, graded(packed(2, [[100, 156], [256]], "")))
    yield Case("flex, window 50 left", 2, graded(packed(2, [256], window=50)))
    yield Case("flex, 2 documents, full", 2, graded(packed(2, [100, 156], causal=False)))
    yield Case("flex, prefixes of 20 seen by all of a document", 2, graded(packed(2, [100, 156], prefix=20)))
