"""Scenarios from what the users of a framework hold: its modules, its configurations, the arguments of its calls."""
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Mapping, Sequence

from . import _preset_rings, _preset_te, _preset_torch
from ._preset import UNSET, Inferred, Preset, bind

if TYPE_CHECKING:
    from .scenario import Scenario


class Presets:
    """Class methods of `Scenario`. None imports a framework: objects are read by the names of their attributes.

    `keys` of every method: further keys of `Scenario.of`, and those that replace what the method infers (backward=False,
    dtype="fp16", cp_size=4, ...). A process group may be given as the number of its ranks. Tensors are one rank's, of any
    library; they only tell shapes and dtype. `inferred` and repr() of the result say what was inferred, and from which argument.
    InputError names what is missing or not supported.
    """

    _inferred: dict[str, Inferred] = {}
    _format: str | None = None

    @property
    def inferred(self) -> dict[str, Inferred]:
        """By key: the value that a preset has set, and the argument from which it follows. Empty without a preset."""
        return dict(self._inferred)

    def inferred_text(self) -> str:
        """The same as lines: key, value, source."""
        def short(value: Any) -> str:
            text = repr(value)
            return text if len(text) <= 40 else f"{text[:36]} ..."
        table = [(key, short(one.value), one.source) for key, one in self._inferred.items()]
        widths = [max(len(row[column]) for row in table) for column in (0, 1)] if table else [0, 0]
        return "\n".join(f"  {key:{widths[0]}}  {value:{widths[1]}}  {source}" for key, value, source in table)

    @classmethod
    def from_te(cls, attention: Any, *call: Any, **keys: Any) -> Scenario:
        """TransformerEngine: its DotProductAttention, then the arguments of its call (query_layer, key_layer, value_layer,
        cu_seqlens_q, ...) and, unless the module has them, of set_context_parallel_group (cp_group, cp_comm_type, ...). cp_group for
        a2a+p2p: [a2a group, p2p group]. Without query_layer: seqlen=, batch_size= of all ranks (not thd), dtype=."""
        preset = Preset("from_te", {})
        arguments = bind(preset, _preset_te.TE_CALL, call, keys)
        group = bind(preset, _preset_te.TE_GROUP, (), keys)
        preset = Preset("from_te", keys)
        _preset_te.te(preset, attention, arguments, group)
        return preset.build(_of(cls))

    @classmethod
    def from_megatron(cls, config: Any, packed_seq_params: Any = None, *, attn_mask_type: Any = None, layer_number: int | None = None,
                      seq_length: int | None = None, micro_batch_size: int | None = None, query: Any = None, key: Any = None, value: Any = None,
                      cp_group: Any = None, training: bool = True, **keys: Any) -> Scenario:
        """Megatron-core: a TransformerConfig (MLATransformerConfig), and PackedSeqParams or vars() of it for a packed batch; otherwise
        seq_length and micro_batch_size, or query [positions, sequences, heads, head_dim].

        attn_mask_type: AttnMaskType or its name, causal if None. layer_number, from 1: needed where layers differ. training=False: the
        layer is in eval mode, without dropout. Tensors are those that core attention gets: after the rotary embedding.
        """
        preset = Preset("from_megatron", keys)
        _preset_te.megatron(preset, config, packed_seq_params, dict(query=query, key=key, value=value), attn_mask_type, layer_number, seq_length,
                            micro_batch_size, cp_group, training)
        return preset.build(_of(cls))

    @classmethod
    def from_torch_cp(cls, mesh: Any, mask: Any = None, *, query: Any = None, key: Any = None, value: Any = None, is_causal: bool | None = None,
                      scale: float | None = None, dropout_p: float = 0.0, attn_mask: Any = None, score_mod: Any = None, load_balancer: Any = UNSET,
                      cu_seqlens: Any = None, enable_gqa: bool = True, **keys: Any) -> Scenario:
        """PyTorch: the DeviceMesh of context parallelism and, for flex attention, the BlockMask of the whole batch, before it is cut;
        without one (or with a bool, is_causal) scaled_dot_product_attention's ring. query, key, value: [batch, heads, tokens, head_dim] of one rank.

        load_balancer: as given to _context_parallel_shard; if it is left out, PyTorch's options say whether "headtail" is on.
        The mask is evaluated for every pair: at most 32768 tokens. cu_seqlens: boundaries of documents, all rows one after another.
        """
        if isinstance(mask, bool):
            mask, is_causal = None, mask
        preset = Preset("from_torch_cp", keys)
        call = dict(is_causal=is_causal, scale=scale, dropout_p=dropout_p, attn_mask=attn_mask, score_mod=score_mod)
        _preset_torch.torch_cp(preset, mesh, mask, dict(query=query, key=key, value=value), call, load_balancer, cu_seqlens, _of(cls))
        return preset.build(_of(cls))

    @classmethod
    def from_titan(cls, config: Any, model: Any = None, *, positions: Any = None, attention_masks: Any = None, load_balancer: Any = UNSET,
                   **keys: Any) -> Scenario:
        """torchtitan: the Trainer's Config (parallelism, training, model_spec) or an older JobConfig with `model`, the model's config or
        arguments. positions: [tokens] before they are cut, 0 where a document begins; or attention_masks, a BlockMask."""
        preset = Preset("from_titan", keys)
        _preset_torch.titan(preset, config, model, positions, attention_masks, load_balancer, _of(cls))
        return preset.build(_of(cls))

    @classmethod
    def from_magi(cls, key: Any, *, position_ids: Sequence[Any] | None = None, dispatch_meta: Any = None, query: Any = None, value: Any = None,
                  sink: Any = None, softmax_scale: float | None = None, softcap: float = 0.0, **keys: Any) -> Scenario:
        """MagiAttention: the key of magi_attn_flex_key or magi_attn_varlen_key, and the other arguments of calc_attn. query says the
        dtype, value its head_dim if that is another.

        The order follows from the key where chunks are dispatched by MinHeapDispatchAlg, the default. Otherwise position_ids: what
        get_position_ids(key) returns, a list for each rank; or dispatch_meta, the manager's dispatch_meta_q.
        """
        preset = Preset("from_magi", keys)
        _preset_rings.magi(preset, key, position_ids, dispatch_meta, query, value, sink, softmax_scale, softcap)
        return preset.build(_of(cls))

    @classmethod
    def from_deepspeed(cls, attention: Any, query: Any = None, key: Any = None, value: Any = None, batch_dim_idx: int | None = None, *,
                       causal: bool | None = None, module: Any = None, rotary_pos_emb: Any = None, position_ids: Any = None,
                       attention_mask: Any = None, scaling: float | None = None, dropout: float = 0.0, sliding_window: int | None = None,
                       softcap: float | None = None, **keys: Any) -> Scenario:
        """DeepSpeed: DistributedAttention and the arguments of its call (causal says what its local attention does), or
        UlyssesSPAttentionHF of ALST with its arguments; position_ids of all ranks, [batch, tokens]."""
        preset = Preset("from_deepspeed", keys)
        call: Mapping[str, Any] = dict(causal=causal, module=module, rotary_pos_emb=rotary_pos_emb, position_ids=position_ids, attention_mask=attention_mask,
                                       scaling=scaling, dropout=dropout, sliding_window=sliding_window, softcap=softcap)
        _preset_rings.deepspeed(preset, attention, dict(query=query, key=key, value=value), batch_dim_idx, call)
        return _preset_rings.with_uneven_heads(preset, lambda: preset.build(_of(cls)))

    @classmethod
    def from_usp(cls, attention: Any, *call: Any, ulysses_degree: int | None = None, ring_degree: int | None = None,
                 ring_impl_type: str | None = None, use_ulysses_low: bool | None = None, **keys: Any) -> Scenario:
        """USP (yunchang): LongContextAttention or UlyssesAttention, then the arguments of its call. Degrees, ring_impl_type and
        use_ulysses_low are read from the module and its groups unless they are given."""
        preset = Preset("from_usp", {})
        arguments = bind(preset, _preset_rings.USP_CALL, call, keys)
        preset = Preset("from_usp", keys)
        _preset_rings.usp(preset, attention, arguments, ulysses_degree, ring_degree, ring_impl_type, use_ulysses_low)
        return preset.build(_of(cls))

    @classmethod
    def from_ring_flash_attention(cls, function: Any, *call: Any, **keys: Any) -> Scenario:
        """ring-flash-attention: one of its functions or its name, then the arguments of its call. For llama3 also cu_seqlens=, those of
        all ranks. group None: all ranks."""
        preset = Preset("from_ring_flash_attention", {})
        _preset_rings.ring_flash_attention(preset, function, call, keys)
        return preset.build(_of(cls))


def _of(cls: Any) -> Any:
    """Scenario.of."""
    return cls.of
