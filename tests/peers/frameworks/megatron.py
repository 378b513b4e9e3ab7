"""Megatron-core: which tokens its batches give a rank."""
import types
from typing import Any, Iterator

import torch
import torch.distributed as dist

import cpscope
import stand_ins
from case import Case, same_order
from frameworks.te_kernels import thd_get_partitioned_indices

PACKAGE = "megatron-core"

stand_ins.forbid("transformer_engine")  # it is installed without its kernels, which Megatron does not expect
from megatron.core import utils as peer  # noqa: E402

peer.tex = types.SimpleNamespace(thd_get_partitioned_indices=thd_get_partitioned_indices)
peer.is_te_min_version = lambda *_, **__: True


def batches(ranks: int) -> Any:
    scenario = cpscope.Scenario.of(heads=2, head_dim=8, batch_size=2, seqlen=64, qkv_format="sbhd", cp_size=ranks)

    def ids(rank: int) -> torch.Tensor:
        batch = dict(tokens=torch.arange(128).view(2, 64), labels=None)
        return peer.get_batch_on_this_cp_rank(batch, cp_group=dist.group.WORLD)["tokens"].flatten()
    return same_order(scenario, ids)


def packed(ranks: int) -> Any:
    cu_seqlens = torch.tensor([0, 21, 40, 61], dtype=torch.int32)
    padded = torch.tensor([0, 24, 48, 72], dtype=torch.int32)
    scenario = cpscope.Scenario.of(heads=2, head_dim=8, cu_seqlens=cu_seqlens[None], cu_seqlens_padded=padded[None], cp_size=ranks)

    def ids(rank: int) -> torch.Tensor:
        batch = dict(tokens=torch.arange(72)[None])
        cut, _ = peer.get_thd_batch_on_this_cp_rank(batch, cu_seqlens, padded, torch.tensor([24]), ranks, rank)
        return cut["tokens"].flatten()
    return same_order(scenario, ids)


def cases() -> Iterator[Case]:
    for ranks in (2, 4):
        yield Case("get_batch_on_this_cp_rank, batch 2", ranks, batches(ranks), "same")
        yield Case("get_thd_batch_on_this_cp_rank, 3 documents with padding", ranks, packed(ranks), "same")
