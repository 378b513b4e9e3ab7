"""torchtitan: its context parallelism of flex attention, its cut of batches and masks, its configurations."""
import types
from functools import partial
from typing import Any, Iterator

import torch
import torch.distributed.tensor.experimental._context_parallel._attention as torch_cp
import torch.nn.attention.flex_attention as flex
from torch.distributed.device_mesh import init_device_mesh
from torchtitan.config.configs import ParallelismConfig, TrainingConfig
from torchtitan.distributed.context_parallel.api import apply_cp_to_forward, cp_shard
from torchtitan.models.common.attention import FlexAttention, get_causal_mask_mod, get_document_mask_mod
from torchtitan.models.llama3 import model_registry

import cpscope
from case import Answer, Case, Prepare, Tensors, graded, leaves, like, same_order, with_gradients
from page import told

PACKAGE = "torchtitan"
TOKENS, KV_HEADS = 256, 4

# Without a compiler or a GPU.
torch_cp._compiled_create_block_mask = flex.create_block_mask
FlexAttention._compiled_flex_attn = staticmethod(flex.flex_attention)
flex._validate_device = lambda *_: None


def config(ranks: int, batch: int, balancer: str | None) -> Any:
    """The parts of the Trainer's Config that say something of attention: of llama3's debugmodel, with grouped heads."""
    spec = model_registry("debugmodel")
    spec.model.first_attention.n_kv_heads = KV_HEADS
    return types.SimpleNamespace(
        model_spec=spec, parallelism=ParallelismConfig(context_parallel_degree=ranks, context_parallel_load_balancer=balancer),
        training=TrainingConfig(local_batch_size=batch, seq_len=TOKENS, mixed_precision_param="float32"))


def positions_of(rows: list[list[int]]) -> torch.Tensor:
    return torch.stack([torch.cat([torch.arange(length) for length in lengths]) for lengths in rows])


class Model:
    """One layer's attention with context parallelism, and a batch cut for the rank."""

    def __init__(self, ranks: int, rows: list[list[int]], balancer: str | None):
        self.mesh, self.positions = init_device_mesh("cpu", (ranks,), mesh_dim_names=("cp",)), positions_of(rows)
        self.attention = FlexAttention(FlexAttention.Config())
        apply_cp_to_forward([self.attention], self.mesh)
        mask_mod = flex.and_masks(get_causal_mask_mod(), get_document_mask_mod(self.positions))
        self.mask = flex.create_block_mask(mask_mod, len(rows), None, TOKENS, TOKENS, "cpu", 32)
        tokens = torch.arange(self.positions.numel()).view(self.positions.shape)
        (self.tokens,), self.local_mask = cp_shard(self.mesh, (tokens,), self.mask, balancer)

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return self.attention(q, k, v, attention_masks=self.local_mask, enable_gqa=True)


def packed(ranks: int, rows: list[list[int]], balancer: str | None = "headtail") -> Prepare:
    def prepare(_: int) -> tuple[cpscope.Scenario, Answer]:
        model = Model(ranks, rows, balancer)

        def answer(tensors: Tensors) -> dict[str, Any]:
            leaf = leaves(tensors, lambda x: x.unflatten(0, (len(rows), -1)))
            return with_gradients(leaf, model(leaf["q"], leaf["k"], leaf["v"]))
        masks = dict(attention_masks=model.mask) if balancer == "ptrr" else {}
        return cpscope.Scenario.from_titan(config(ranks, len(rows), balancer), positions=model.positions, **masks), answer
    return prepare


def cut(ranks: int, rows: list[list[int]], balancer: str | None) -> Any:
    """cp_shard against from_titan, which reads documents in the mask here."""
    def prepare(_: int) -> tuple[cpscope.Scenario, torch.Tensor]:
        model = Model(ranks, rows, balancer)
        return cpscope.Scenario.from_titan(config(ranks, len(rows), balancer), attention_masks=model.mask), model.tokens.flatten()
    return same_order(prepare)


def page_names(_: int) -> dict[str, Any]:
    model = Model(2, [[100, 156], [256]], "headtail")
    return dict(config=config(2, 2, "headtail"), positions=model.positions, inner_attention=partial(model.attention, enable_gqa=True),
                attention_masks=model.local_mask, cp_mesh=model.mesh)


def cases() -> Iterator[Case]:
    shapes = like("fp32", (2, 128, 16, 16), (2, 128, KV_HEADS, 16), (2, 128, KV_HEADS, 16))
    yield Case("the page's lines", 2, told("torchtitan", shapes, page_names))
    documents = [[100, 156], [256]]
    for balancer in ("headtail", "ptrr", None):
        yield Case(f"flex, {balancer}, other documents in each row of a batch", 2, graded(packed(2, documents, balancer)))
        yield Case(f"cp_shard, {balancer}", 4, cut(4, documents, balancer), "same")
    yield Case("flex, headtail, 4 documents", 4, graded(packed(4, [[30, 100, 70, 56]])))
