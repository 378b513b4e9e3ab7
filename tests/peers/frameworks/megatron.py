"""Megatron-core: which tokens its batches give a rank, its choice of a CP size for each sequence, and its configurations before
TransformerEngine's attention."""
import random
import types
from typing import Any, Iterator

import torch
import torch.distributed as dist

import cpscope
import stand_ins
from case import Case, Verdict, like, same_order
from frameworks import te_kernels
from page import told

PACKAGE = "megatron-core"

stand_ins.forbid("transformer_engine")  # it is installed without its kernels, which Megatron does not expect
from megatron.core import utils as peer  # noqa: E402
from megatron.core.pipeline_parallel.hybrid_cp_schedule import BalancedCPScheduler  # noqa: E402
from megatron.core.packed_seq_params import PackedSeqParams  # noqa: E402
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402

peer.tex = types.SimpleNamespace(thd_get_partitioned_indices=te_kernels.thd_get_partitioned_indices)
peer.is_te_min_version = lambda *_, **__: True
CU_SEQLENS = torch.tensor([0, 21, 40, 61], dtype=torch.int32)
PADDED = torch.tensor([0, 24, 48, 72], dtype=torch.int32)


def config(ranks: int) -> Any:
    return TransformerConfig(num_layers=1, hidden_size=256, num_attention_heads=8, num_query_groups=4, kv_channels=32, context_parallel_size=ranks,
                             attention_dropout=0.0, bf16=True)


def packed_seq_params(padded: torch.Tensor = PADDED) -> Any:
    return PackedSeqParams(qkv_format="thd", cu_seqlens_q=CU_SEQLENS[None], cu_seqlens_kv=CU_SEQLENS[None], cu_seqlens_q_padded=padded[None],
                           cu_seqlens_kv_padded=padded[None], max_seqlen_q=24, max_seqlen_kv=24)


def batches(ranks: int) -> Any:
    def prepare(_: int) -> tuple[cpscope.Scenario, torch.Tensor]:
        batch = dict(tokens=torch.arange(128).view(2, 64), labels=None)
        scenario = cpscope.Scenario.from_megatron(config(ranks), seq_length=64, micro_batch_size=2)
        return scenario, peer.get_batch_on_this_cp_rank(batch, cp_group=dist.group.WORLD)["tokens"].flatten()
    return same_order(prepare)


def packed(ranks: int) -> Any:
    def prepare(rank: int) -> tuple[cpscope.Scenario, torch.Tensor]:
        batch = dict(tokens=torch.arange(72)[None])
        cut, _ = peer.get_thd_batch_on_this_cp_rank(batch, CU_SEQLENS, PADDED, torch.tensor([24]), ranks, rank)
        return cpscope.Scenario.from_megatron(config(ranks), packed_seq_params()), cut["tokens"].flatten()
    return same_order(prepare)


def hybrid_schedules(batches: int) -> Any:
    """Drawn batches through Megatron's scheduler, and as cp_sizes = "hybrid": the same groups in the same rounds."""
    def schedule(lengths: list[int], most: int, ranks: int) -> list[list[cpscope.layout.Group]]:
        scheduler = BalancedCPScheduler(most, types.SimpleNamespace(size=lambda: ranks))
        _, sequences = scheduler.get_groups_and_subsamples(list(enumerate(lengths)), None)
        rounds = []
        for of_ranks in sequences:
            groups: list[cpscope.layout.Group] = []
            for rank, own in enumerate(of_ranks):
                if groups and list(groups[-1].sequences) == own:
                    groups[-1] = groups[-1]._replace(size=groups[-1].size + 1)
                else:
                    groups.append(cpscope.layout.Group(rank, 1, tuple(own)))
            rounds.append(groups)
        return rounds

    def judge(_: int) -> Verdict | None:
        draw = random.Random(42)
        for batch in range(batches):
            ranks, most = draw.choice([4, 8, 16, 64]), draw.choice([4096, 8192])
            lengths = [min(ranks * most, max(1, int(draw.lognormvariate(7.8, 1.06)))) for _ in range(draw.randint(ranks, 8 * ranks))]
            theirs = schedule(lengths, most, ranks)
            ours = cpscope.Scenario.of(lengths=lengths, heads=8, head_dim=64, cp_size=ranks, cp_sizes="hybrid", max_tokens_per_rank=most).layout()
            if ours.rounds != theirs:
                return Verdict("differs", text=f"batch {batch}: {lengths}, {most} tokens on {ranks} ranks: {ours.rounds}, {theirs}")
        return Verdict("same")
    return judge


def core_attention(rank: int) -> dict[str, Any]:
    """Names of the page's lines: what Megatron's TEDotProductAttention passes on."""
    its_class = te_kernels.attention_module(te_kernels.load())
    bounds = torch.tensor([0, 64, 192, 264], dtype=torch.int32)
    params = PackedSeqParams(qkv_format="thd", cu_seqlens_q=bounds, cu_seqlens_kv=bounds, max_seqlen_q=128, max_seqlen_kv=128)
    attention = its_class(8, 32, num_gqa_groups=4)
    attention.set_context_parallel_group(dist.group.WORLD, list(range(4)), stand_ins.Stream(), "p2p")

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, packed_seq_params: Any) -> torch.Tensor:
        return attention(q, k, v, qkv_format="thd", attn_mask_type="padding_causal", cu_seqlens_q=packed_seq_params.cu_seqlens_q,
                         cu_seqlens_kv=packed_seq_params.cu_seqlens_kv)
    return dict(core_attention=call, packed_seq_params=params, config=config(4), cp_group=dist.group.WORLD)


def cases() -> Iterator[Case]:
    yield Case("the page's lines, TransformerEngine", 4, told("Megatron-core", like("bf16", (66, 8, 32), (66, 4, 32), (66, 4, 32)), core_attention, (66, 256)))
    yield Case("BalancedCPScheduler, 200 drawn batches", 1, hybrid_schedules(200), "same")
    for ranks in (2, 4):
        yield Case("get_batch_on_this_cp_rank, batch 2", ranks, batches(ranks), "same")
        yield Case("get_thd_batch_on_this_cp_rank, 3 documents with padding", ranks, packed(ranks), "same")
