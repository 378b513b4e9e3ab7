"""The keys of a scenario: their types for checkers, and the list that the parser's reader prints."""
from __future__ import annotations

import json
from typing import Any, Mapping, Sequence, TypedDict, Union

from . import _core

#: A list, array or tensor of whole numbers.
Integers = Union[Sequence[int], Any]


class ScenarioKeys(TypedDict, total=False):
    """The keywords of `Scenario.of`; `cpscope.keys()` says what each means."""

    title: str
    question: str
    heads: int
    kv_heads: int
    head_dim: int
    head_dim_qk: int
    head_dim_v: int
    attn_mask_type: str
    slices: Sequence[Sequence[Any]]
    mask: Mapping[str, Any]
    window_size: Sequence[int]
    chunk_size: int
    softmax_scale: float
    softcap: float
    softmax_type: str
    rope_theta: float
    rope_q_position: str
    alibi: bool
    bias: str
    dropout: float
    dropout_mode: str
    latent_dim: int
    latent_nope_dim: int
    qkv_format: str
    lengths: Integers
    kv_lengths: Integers
    slots: Integers
    kv_slots: Integers
    batch_size: int
    seqlen: int
    kv_seqlen: int
    generator: Mapping[str, Any]
    pad_between_seqs: bool
    pad_side: str
    slot_multiple: int
    positions_file: str
    cp_size: int
    cp_comm_type: str
    layout: str
    a2a_size: int
    dispatch_chunk: int
    stripe: int
    indices_file: str
    dispatch: str
    backward_kv: str
    partial_wire: str
    mesh_q: int
    ring_window: int
    ring_backward: str
    combine: str
    q_owner: str
    heads_per_stage: int
    kv_replicated: int
    cp_sizes: Any  # ranks of each sequence, of every sequence (one number), or "hybrid", "flexsp", "bytescale"
    max_tokens_per_rank: int
    dtype: Any  # "bf16", or a type of torch, numpy or jax
    backward: bool
    seed: int
    dkv_wire: str
    dkv_hops: str
    accumulate: str
    inputs: str
    recipe: str
    format: str
    kv_wire: str
    # In place of lengths and slots.
    cu_seqlens: Integers
    cu_seqlens_q: Integers
    cu_seqlens_padded: Integers
    cu_seqlens_q_padded: Integers
    cu_seqlens_kv: Integers
    cu_seqlens_kv_padded: Integers
    packed_seq_params: Any
    # In place of layout: an Order, or the token ids of each rank.
    order: Any
    kv_order: Sequence[Any]
    # Sizes that follow from the boundaries and are not read.
    max_seqlen: int
    max_seqlen_q: int
    max_seqlen_kv: int
    total_tokens: int
    schema: int


def keys() -> list[dict[str, Any]]:
    """Every key of a scenario, in the order of its tables: table, key, type, default, choices and meaning."""
    listed: list[dict[str, Any]] = json.loads(_core.key_list())["keys"]
    return listed


def keys_page() -> str:
    """The same as a page in Markdown: that of scenarios/keys.md."""
    return str(_core.key_page())
