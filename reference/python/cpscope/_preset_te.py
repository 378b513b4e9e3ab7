"""Presets of TransformerEngine and Megatron: dual chunks, steps of a ring merged in the tensors' own format."""
from __future__ import annotations

import math
from typing import Any, Mapping, Sequence

import numpy as np

from ._arrays import integers
from ._preset import Held, Preset, name_of
from .order import boundaries_of

#: Arguments of DotProductAttention's call, in its order.
TE_CALL = ("query_layer", "key_layer", "value_layer", "attention_mask", "qkv_format", "cu_seqlens_q", "cu_seqlens_kv", "cu_seqlens_q_padded",
           "cu_seqlens_kv_padded", "max_seqlen_q", "max_seqlen_kv", "attn_mask_type", "window_size", "bottom_right_diagonal", "softcap",
           "checkpoint_core_attention", "core_attention_bias_type", "core_attention_bias", "alibi_slopes", "fast_zero_fill", "inference_params",
           "pad_between_seqs", "fp8_output", "bf16_backward", "num_splits", "score_mod", "score_mod_bprop", "score_mod_tensors", "score_mod_bprop_tensors",
           "qkv_layer", "kv_layer", "qkv_interleave_dim", "thd_attention_policies", "thd_attention_policy_dispatch")

#: Arguments of set_context_parallel_group.
TE_GROUP = ("cp_group", "cp_global_ranks", "cp_stream", "cp_comm_type", "load_balancing_strategy")

_BOUNDS = ("cu_seqlens_q", "cu_seqlens_q_padded", "cu_seqlens_kv", "cu_seqlens_kv_padded")


def _say_communication(p: Preset, communication: str, sizes: list[int], source: str, type_source: str) -> None:
    """Sets cp_size, cp_comm_type and what follows from them. sizes: of the groups, [a2a, p2p] for a2a+p2p."""
    if communication not in ("p2p", "a2a", "all_gather", "a2a+p2p"):
        raise p.error(f"{type_source} is unknown: {communication}", "p2p, a2a, all_gather or a2a+p2p")
    p.say("cp_size", math.prod(sizes), source)
    if communication == "a2a+p2p":
        if len(sizes) != 2 and not p.has("a2a_size"):
            raise p.error(f"a2a+p2p needs two groups, a2a's and p2p's: {source} has {len(sizes)}", "[a2a group, p2p group], or their sizes")
        if len(sizes) == 2 and 1 in sizes:  # as TransformerEngine does
            communication = "p2p" if sizes[0] == 1 else "a2a"
            type_source = f"the sizes of {source}, {sizes[0]} and {sizes[1]}"
        elif len(sizes) == 2:
            p.say("a2a_size", sizes[0], f"{source}[0]")
    p.say("cp_comm_type", communication, type_source)
    if "p2p" in p.value("cp_comm_type"):
        p.say("accumulate", "dtype", "TransformerEngine, which merges the steps of a ring in the dtype of its tensors")
    if p.value("cp_comm_type") == "p2p":
        p.say("dkv_hops", "home", "TransformerEngine, whose ring of dK and dV ends at their owner's own step")


def _say_packed(p: Preset, bounds: Mapping[str, Any], place: str, local_rows: int | None, rows_name: str) -> None:
    """Sets the boundaries of a packed batch, as all ranks together have it."""
    p.say("qkv_format", "thd", f"{place}qkv_format")
    for name, value in bounds.items():
        twin = bounds.get(name.replace("_kv", "_q")) if "_kv" in name else None
        if value is not None and (twin is None or not np.array_equal(integers(value, name), integers(twin, name))):
            p.say(name, value, f"{place}{name}")
    p.say("pad_between_seqs", False, f"{place}cu_seqlens: the slots are those of the run")
    for side in ("q", "kv"):
        ends = [bounds.get(name) for name in (f"cu_seqlens_{side}_padded", f"cu_seqlens_{side}", "cu_seqlens_padded", "cu_seqlens")]
        end = next((int(integers(one, "cu_seqlens")[-1]) for one in ends if one is not None), None)
        if side == "q" and local_rows is not None and end is not None and local_rows * p.value("cp_size") != end:
            raise p.error(f"{rows_name} has {local_rows} rows on each of {p.value('cp_size')} ranks, the boundaries end at {end}",
                          "boundaries count the tokens and slots of all ranks; rows behind the last slot are not supported")


def _say_mask(p: Preset, mask: str, source: str, is_packed: bool) -> None:
    mask = {"causal_padding": "padding_causal"}.get(mask.replace(",", "_"), mask.replace(",", "_"))
    p.reject("attn_mask_type", mask == "arbitrary" and mask, "the mask is a tensor", "write it as slices= or mask=")
    if is_packed and "padding" not in mask:
        mask = {"causal": "padding_causal", "no_mask": "padding", "causal_bottom_right": "padding_causal_bottom_right"}.get(mask, mask)
    if not is_packed and "padding" in mask:
        raise p.error(f"attn_mask_type = {mask} of a batch that is not packed", "TransformerEngine runs padding masks with context parallelism "
                      "in thd only")
    p.say("attn_mask_type", mask, source)


def _say_fp8(p: Preset, recipe: Any) -> None:
    """The recipe of fp8_autocast, if attention is computed in it (fp8_dpa)."""
    recipes = {"DelayedScaling": "delayed", "Float8CurrentScaling": "current", "MXFP8BlockScaling": "mxfp8"}
    source = "attention.fp8_meta[recipe]"
    kind = next((kind.__name__ for kind in type(recipe).__mro__ if kind.__name__ in recipes), None)
    if kind is None:
        raise p.error(f"{source} is not supported: {type(recipe).__name__}", ", ".join(recipes))
    p.say("dtype", "fp8", f"{source}.fp8_dpa")
    if p.value("dtype") != "fp8":
        return
    p.say("recipe", recipes[kind], f"{source}, a {kind}")
    format = name_of(getattr(recipe, "fp8_format", "HYBRID"))
    if kind != "MXFP8BlockScaling":
        if format not in ("HYBRID", "E4M3"):
            raise p.error(f"{source}.fp8_format is not supported: {format}", "HYBRID or E4M3")
        p.say("format", format.lower(), f"{source}.fp8_format = {format}")
    p.say("accumulate", "fp32", "TransformerEngine, which merges the steps of a ring in fp32 under FP8")


def te(p: Preset, attention: Any, call: dict[str, Any], group: Mapping[str, Any]) -> None:
    """`call` and `group`: arguments that were given, by their names in TE_CALL and TE_GROUP."""
    module = Held(p, attention, "attention")
    p.hints = {"cp_size": "give cp_group=, or call set_context_parallel_group first", "dtype": "give query_layer, or dtype=",
               "lengths": "give query_layer, or batch_size= and seqlen= of all ranks"}

    def given(name: str, default: Any = None) -> tuple[Any, str]:
        """An argument, of the call or else of the module."""
        if group.get(name) is not None:
            return group[name], name
        return (call[name], name) if call.get(name) is not None else (module.get(name, default), f"attention.{name}")

    no_such = "cpscope does not have it"
    for name, reason in (("core_attention_bias", "attention bias"), ("alibi_slopes", "ALiBi"), ("inference_params", "a cache of keys"),
                         ("score_mod", "a function of the logits"), ("thd_attention_policies", "a mask for each sequence"),
                         ("qkv_layer", "packed q, k, v: give query_layer, key_layer, value_layer"), ("kv_layer", "packed k, v")):
        p.reject(name, (call[name] is not None) or None if name in call else None, f"{reason}; {no_such}")
    bias = call.get("core_attention_bias_type", "no_bias")
    p.reject("core_attention_bias_type", bias if bias not in (None, "no_bias") else None, no_such)
    if module.get("training", True):
        p.reject_dropout("attention.attention_dropout", module.get("attention_dropout", 0.0))
    recipe = module.get("fp8_meta", {}).get("recipe") if module.get("fp8", False) else None
    if getattr(recipe, "fp8_dpa", False):
        _say_fp8(p, recipe)

    cp_group, group_source = given("cp_group")
    sizes: list[int] = []
    if cp_group is not None and (not isinstance(cp_group, (list, tuple)) or cp_group):
        groups = cp_group if isinstance(cp_group, (list, tuple)) else [cp_group]
        sizes = [p.size_of_group(one, f"{group_source}[{i}]" if len(groups) > 1 else group_source) for i, one in enumerate(groups)]
    communication, type_source = given("cp_comm_type", "p2p")
    _say_communication(p, str(communication), sizes or [int(p.value("cp_size"))], group_source, type_source)
    strategy, strategy_source = given("load_balancing_strategy", "DUAL_CHUNK_SWAP")
    layouts = {"DUAL_CHUNK_SWAP": "dual_chunk", "NO_LOAD_BALANCE": "contiguous"}
    if name_of(strategy) not in layouts:
        raise p.error(f"{strategy_source} is unknown: {name_of(strategy)}", " or ".join(layouts))
    p.say("layout", layouts[name_of(strategy)], f"{strategy_source} = {name_of(strategy)}")

    format, format_source = given("qkv_format", "sbhd")
    axes = {"thd": "thd", "bshd": "bshd", "sbhd": "sbhd"}.get(str(format))
    if axes is None:
        raise p.error(f"{format_source} is unknown: {format}", "thd, bshd or sbhd")
    extents = p.say_tensors({name: call.get(name) for name in TE_CALL[:3]}, axes)
    tp_size = module.number("tp_size", 1)
    if not p.has("heads"):
        p.say_heads(module.number("num_attention_heads") // tp_size, module.number("num_gqa_groups_per_partition"),
                    module.number("hidden_size_per_attention_head_k"), module.number("hidden_size_per_attention_head_v"),
                    "attention" + (f", of {tp_size} tensor-parallel ranks" if tp_size > 1 else ""))
    if format == "thd":
        if call.get("cu_seqlens_q") is None and not p.has("lengths", "generator"):
            raise p.error("thd needs cu_seqlens_q", "the boundaries of the batch, of all ranks together")
        _say_packed(p, {name: call.get(name) for name in _BOUNDS}, "", None if extents is None else extents["t"], "query_layer")
    elif extents is not None:
        p.say_batch(str(format), extents, "query_layer")
    else:
        p.say("qkv_format", format, format_source)
        if call.get("max_seqlen_q") is not None:
            p.say("seqlen", int(call["max_seqlen_q"]) * p.value("cp_size"), f"max_seqlen_q, {p.value('cp_size')} ranks")
    p.format = None if format == "thd" else str(format)

    mask, mask_source = given("attn_mask_type", "causal")
    _say_mask(p, str(mask), mask_source, format == "thd")
    p.say_window(*given("window_size"))
    softcap, softcap_source = given("softcap", 0.0)
    p.say("softcap", softcap or None, softcap_source)
    p.say("softmax_scale", module.get("softmax_scale", None), "attention.softmax_scale")
    p.say("softmax_type", str(module.get("softmax_type", "vanilla")).replace("-", "_"), "attention.softmax_type")


def _say_latent(p: Preset, c: Held, key: Any, axes: str) -> None:
    """The absorbed form of MLA (Megatron PR 3198), which is a layer and not a setting: known by its key of one head, or by latent_dim=."""
    heads = c.number("num_attention_heads") // c.number("tensor_model_parallel_size", 1)
    if not p.has("latent_dim") and (key is None or heads < 2 or p.shape(key, "key", axes)["h"] != 1):
        return
    rank, source = c.number("kv_lora_rank"), "config.kv_lora_rank, of MLA with absorbed projections"
    p.say("latent_dim", rank, source)
    p.say("kv_heads", 1, source)
    p.say("head_dim_qk", rank + c.number("qk_pos_emb_head_dim"), source)
    p.say("head_dim_v", rank, source)


def _mla_scale(config: Held, head_dim: int) -> float:
    """Megatron's MLA multiplies the usual scale by YaRN's mscale twice."""
    factor, mscale = float(config.get("rotary_scaling_factor")), float(config.get("mscale_all_dim"))
    concentration = 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0
    return concentration * concentration / math.sqrt(head_dim)


def _of_layer(p: Preset, values: Sequence[Any], layer_number: int | None, name: str) -> Any:
    if layer_number is None:
        raise p.error(f"{name} has one entry for each layer", "say which one: layer_number=, from 1")
    if not 1 <= layer_number <= len(values):
        raise p.error(f"{name} has no entry for this layer: {layer_number}", f"1 to {len(values)}")
    return values[layer_number - 1]


def _has_window(p: Preset, config: Held, layer_number: int | None) -> bool:
    """Does this layer have config.window_size? Megatron's is_layer_window_attention."""
    skip = config.get("window_attn_skip_freq", None)
    if not config.get("window_size", None) or skip is None:
        return bool(config.get("window_size", None))
    if isinstance(skip, (list, tuple)):
        return bool(_of_layer(p, skip, layer_number, "config.window_attn_skip_freq"))
    if layer_number is None:
        raise p.error("config.window_attn_skip_freq gives a window to some layers", "say which one: layer_number=, from 1")
    return layer_number % config.number("window_attn_skip_freq") != 0


def megatron(p: Preset, config: Any, packed: Any, call: Mapping[str, Any], attn_mask_type: Any, layer_number: int | None,
             seq_length: int | None, micro_batch_size: int | None, cp_group: Any, training: bool) -> None:
    c = Held(p, config, "config")
    p.hints = {"dtype": "give query, or dtype=", "lengths": "give packed_seq_params, or query, or seq_length= and micro_batch_size="}
    p.reject("config.experimental_attention_variant", c.get("experimental_attention_variant", None), "cpscope does not have it")
    if training:
        p.reject_dropout("config.attention_dropout", c.get("attention_dropout", 0.0))

    params = None if packed is None else Held(p, packed, "packed_seq_params")
    dynamic = None if params is None else params.get("cp_group", None)
    local_size = None if params is None else params.get("local_cp_size", None)
    if c.get("hybrid_context_parallel", False) and cp_group is None and dynamic is None and local_size is None:
        raise p.error("config.hybrid_context_parallel: every batch has its own ranks", "give packed_seq_params with a local_cp_size, or cp_group=")
    hierarchy = c.get("hierarchical_context_parallel_sizes", None)
    if cp_group is not None:
        levels = cp_group if isinstance(cp_group, (list, tuple)) else [cp_group]
        sizes, source = [p.size_of_group(one, "cp_group") for one in levels], "cp_group"
    elif dynamic is not None:
        sizes, source = [p.size_of_group(dynamic, "packed_seq_params.cp_group")], "packed_seq_params.cp_group"
    elif local_size is not None:
        sizes, source = [p.size_of_group(local_size, "packed_seq_params.local_cp_size")], "packed_seq_params.local_cp_size"
    else:
        sizes, source = [c.number("context_parallel_size")], "config.context_parallel_size"
    communication, type_source = c.get("cp_comm_type", None) or "p2p", "config.cp_comm_type"
    if isinstance(communication, (list, tuple)):
        communication = _of_layer(p, communication, layer_number, "config.cp_comm_type")
        type_source = f"config.cp_comm_type of layer {layer_number}"
    if communication == "a2a+p2p" and len(sizes) == 1 and hierarchy:
        source = "config.hierarchical_context_parallel_sizes"
        sizes = [p.size_of_group(size, source) for size in hierarchy]
    if c.get("transformer_impl", "transformer_engine") == "local" and math.prod(sizes) > 1:
        raise p.error("config.transformer_impl = local has no context parallelism", "transformer_engine")
    _say_communication(p, {"allgather": "all_gather"}.get(str(communication), str(communication)), sizes, source, type_source)
    p.say("layout", "dual_chunk", "Megatron, which gives a rank chunks r and 2 * ranks - 1 - r of each sequence")

    is_packed = packed is not None
    axes = "thd" if is_packed else "sbhd"
    if c.get("multi_latent_attention", False):
        _say_latent(p, c, call.get("key"), axes)
    extents = p.say_tensors({name: call.get(name) for name in ("query", "key", "value")}, axes)
    tp_size = c.number("tensor_model_parallel_size", 1)
    of_tp = f", of {tp_size} tensor-parallel ranks" if tp_size > 1 else ""
    heads = c.number("num_attention_heads")
    is_mla = bool(c.get("multi_latent_attention", False))
    if is_mla:
        # The latent form has the scale of the expanded one.
        head_dim = c.number("qk_head_dim") + c.number("qk_pos_emb_head_dim")
        p.say_heads(heads // tp_size, heads // tp_size, head_dim, c.number("v_head_dim"),
                    f"config's multi_latent_attention: qk_head_dim + qk_pos_emb_head_dim, v_head_dim{of_tp}")
        p.say("softmax_scale", _mla_scale(c, head_dim), "config's multi_latent_attention: rotary_scaling_factor, mscale_all_dim")
    else:
        head_dim = int(c.get("kv_channels", None) or c.number("hidden_size") // heads)
        kv_heads = int(c.get("num_query_groups", None) or heads)
        p.say_heads(heads // tp_size, max(1, kv_heads // tp_size), head_dim, head_dim,
                    f"config.num_attention_heads, num_query_groups, kv_channels{of_tp}")
        p.say("softmax_scale", c.get("softmax_scale", None), "config.softmax_scale")
    for flag, dtype in (("bf16", "bf16"), ("fp16", "fp16")):
        if c.get(flag, False):
            p.say("dtype", dtype, f"config.{flag}")
    p.say("dtype", c.get("params_dtype", None), "config.params_dtype")

    if params is not None:
        if name_of(params.get("qkv_format", None) or "thd") != "thd":
            raise p.error(f"packed_seq_params.qkv_format is not thd: {params.get('qkv_format')}", "leave packed_seq_params out")
        bounds = {name: value for name, value in boundaries_of(packed).items() if name != "cp_size"}
        _say_packed(p, bounds, "packed_seq_params.", None if extents is None else extents["t"], "query")
    elif extents is not None:
        p.say_batch("sbhd", extents, "query")
    else:
        p.say("qkv_format", "sbhd", "Megatron, whose tensors are [positions, sequences, heads, head_dim]")
        p.say("seqlen", seq_length, "seq_length")
        p.say("batch_size", micro_batch_size, "micro_batch_size")
    p.format = None if is_packed else "sbhd"

    _say_mask(p, name_of(attn_mask_type or "causal"), "attn_mask_type" if attn_mask_type is not None else "attn_mask_type, which is causal for a decoder",
              is_packed)
    if _has_window(p, c, layer_number):
        p.say_window(c.get("window_size"), "config.window_size")
    p.say("softmax_type", str(c.get("softmax_type", "vanilla")).replace("-", "_"), "config.softmax_type")
