"""Presets of ring-flash-attention, USP (yunchang), DeepSpeed and MagiAttention."""
from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING, Any, Callable, Mapping, Sequence

import numpy as np

from . import order
from ._arrays import integers
from ._errors import RefusedError
from ._preset import Held, Preset, bind, name_of

if TYPE_CHECKING:
    from .scenario import Scenario

_FLASH = ("dropout_p", "softmax_scale", "causal", "window_size")
_RING_TAIL = (*_FLASH, "alibi_slopes", "deterministic", "return_attn_probs", "group")
#: Arguments of the call of USP's modules, in their order.
USP_CALL = ("query", "key", "value", *_FLASH, "softcap", "alibi_slopes", "deterministic", "return_attn_probs")


def _say_ring(p: Preset, whose: str) -> None:
    """Sets how rings over FlashAttention's blocks round: partial results, dK and dV in fp32, P hops."""
    p.say("accumulate", "fp32", f"{whose}, which merges steps in fp32")
    if p.value("cp_comm_type") == "p2p":
        p.say("dkv_wire", "fp32", f"{whose}, whose dK and dV travel in fp32")
        p.say("dkv_hops", "ring", f"{whose}, whose dK and dV go once around the ring")


def ring_flash_attention(p: Preset, function: Any, positional: Sequence[Any], call: dict[str, Any]) -> None:
    """`call`: keywords of the call, and further keys of a scenario."""
    name = str(getattr(function, "__name__", function))
    parts = re.fullmatch(r"(ring|zigzag_ring|stripe|llama3)_flash_attn(_varlen)?(_qkvpacked|_kvpacked)?_func", name)
    if parts is None:
        raise p.error(f"no function of ring_flash_attn: {name}", "zigzag_ring_flash_attn_varlen_func, for example, or its name")
    kind, is_packed, joined = {"zigzag_ring": "zigzag"}.get(parts[1], parts[1]), bool(parts[2]), parts[3] or ""
    tensors = {"": ("q", "k", "v"), "_kvpacked": ("q", "kv"), "_qkvpacked": ("qkv",)}[joined]
    middle = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k", "heads_k_stride", "local_k_slice") if kind == "llama3" else (
        ("cu_seqlens", "max_seqlen") if is_packed else ())
    arguments = bind(p, (*tensors, *middle, *_RING_TAIL), positional, call)
    of_all_ranks = call.pop("cu_seqlens", None) if kind == "llama3" else None
    p.found.update(Preset(p.name, call).found)

    p.say("cp_size", None if p.has("cp_size") else p.size_of_group(arguments.get("group"), "group"), "group")
    ranks = int(p.value("cp_size"))
    axes, packed_axes = ("thd", "t{}hd") if is_packed else ("bshd", "bs{}hd")
    q, k, v = (arguments.get(tensor) for tensor in ("q", "k", "v"))
    if joined:
        extents = _say_joined(p, arguments, tensors[-1], packed_axes.format("2" if joined == "_kvpacked" else "3"), axes)
    else:
        extents = p.say_tensors({"q": q, "k": k, "v": v}, axes)
    p.say("cp_comm_type", "all_gather" if kind == "llama3" else "p2p", name)
    p.say_flash(arguments, is_packed)
    if kind == "zigzag" and "causal" not in str(p.value("attn_mask_type")):
        raise p.error(f"{name} is causal only, and causal is {arguments.get('causal', False)}", "causal=True")
    if kind != "llama3":
        _say_ring(p, "ring-flash-attention")
    if not is_packed:
        p.format = "bshd"
        if extents is not None:
            p.say_batch("bshd", extents, tensors[0])
        if not p.has("seqlen"):
            raise p.error("nothing says the sequences' length", f"give {tensors[0]}, or batch_size= and seqlen= of all ranks")
        rows, seqlen = int(p.found["batch_size"].value) if p.has("batch_size") else 1, int(p.value("seqlen"))
        p.say_order(order.from_ring_flash_attention(kind, cp_size=ranks, cu_seqlens=[seqlen * i for i in range(rows + 1)]), name)
        return
    if kind == "llama3":
        if of_all_ranks is None:
            raise p.error("cu_seqlens_q and cu_seqlens_k are one rank's", "give cu_seqlens= too, as llama3_flash_attn_prepare_cu_seqlens had it")
        whole, source = integers(of_all_ranks, "cu_seqlens"), "cu_seqlens"
    else:
        if arguments.get("cu_seqlens") is None:
            raise p.error("nothing says cu_seqlens", "the argument of the call, each rank's part of every sequence")
        whole, source = integers(arguments["cu_seqlens"], "cu_seqlens") * ranks, f"cu_seqlens of one rank, times {ranks} ranks"
    if extents is not None and len(whole) and extents["t"] * ranks != whole[-1]:
        raise p.error(f"{tensors[0]} has {extents['t']} rows on each of {ranks} ranks, {source} ends at {whole[-1]}",
                      "pad every sequence first; rows behind the last one are not supported")
    p.say("cu_seqlens", whole, source)
    p.say("pad_between_seqs", False, f"{source}: the slots are those of the run")
    p.say_order(order.from_ring_flash_attention(kind, cp_size=ranks, cu_seqlens=whole), name)


def _say_joined(p: Preset, arguments: Mapping[str, Any], name: str, joined_axes: str, axes: str) -> dict[str, int] | None:
    """say_tensors for q, k, v in one tensor, or k and v in one."""
    if arguments.get(name) is None:
        return None
    shape = p.shape(arguments[name], name, joined_axes)
    q = shape if name == "qkv" else p.shape(arguments.get("q"), "q", axes)
    p.say_heads(q["h"], shape["h"], q["d"], shape["d"], name if name == "qkv" else f"q and {name}")
    p.say("dtype", getattr(arguments[name], "dtype", None), f"{name}.dtype")
    return {axis: q[axis] for axis in axes}


#: The function that LongContextAttention has taken for a ring_impl_type.
_USP_RINGS = {"ring_flash_attn_func": "basic", "zigzag_ring_flash_attn_func": "zigzag", "stripe_flash_attn_func": "strip",
              "ring_pytorch_attn_func": "basic_pytorch", "ring_flashinfer_attn_func": "basic_flashinfer", "ring_npu_flash_attn_func": "basic_npu"}


def _is_ulysses_low(group: Any) -> bool | None:
    """Are the ranks of a Ulysses group neighbours? None if it does not say."""
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not isinstance(group, getattr(distributed, "ProcessGroup", ())):
        return None
    ranks = distributed.get_process_group_ranks(group)
    return len(ranks) < 2 or bool(ranks[1] == ranks[0] + 1)


def usp(p: Preset, attention: Any, call: Mapping[str, Any], ulysses_degree: int | None, ring_degree: int | None, ring_impl_type: str | None,
        use_ulysses_low: bool | None) -> None:
    p.hints = {"dtype": "give query, or dtype=", "lengths": "give query, or batch_size= and seqlen= of all ranks",
               "heads": "give query and key, or heads="}
    module = Held(p, attention, "attention")
    p.reject("attention.attn_processor", module.get("attn_processor", None) is not None, "sparse attention; cpscope does not have it")
    is_ulysses = module.get("spg", None) is not None  # UlyssesAttention, which has no ring
    group_name = "spg" if is_ulysses else "ulysses_pg"

    def degree(given: int | None, name: str, attribute: str) -> tuple[int, str]:
        if given is not None:
            return p.size_of_group(given, name), name
        return p.size_of_group(module.get(attribute, hint=f"give {name}="), f"attention.{attribute}"), f"attention.{attribute}"
    ulysses, ulysses_source = degree(ulysses_degree, "ulysses_degree", group_name)
    ring, ring_source = (1, "UlyssesAttention") if is_ulysses else degree(ring_degree, "ring_degree", "ring_pg")
    p.say("cp_size", ulysses * ring, f"{ulysses_source} and {ring_source}")
    p.say("cp_comm_type", "p2p" if ulysses == 1 else "a2a" if ring == 1 else "a2a+p2p", f"{ulysses} {ulysses_source}, {ring} {ring_source}")
    if p.value("cp_comm_type") == "a2a+p2p":
        p.say("a2a_size", ulysses, ulysses_source)
    if ring > 1:
        _say_ring(p, "USP's ring")

    extents = p.say_tensors({name: call.get(name) for name in ("query", "key", "value")}, "bshd")
    p.say_flash(call, False)
    p.format = "bshd"
    if extents is not None:
        p.say_batch("bshd", extents, "query")
    if is_ulysses:
        kind, kind_source = "basic", "UlyssesAttention"
    elif ring_impl_type is not None:
        kind, kind_source = str(ring_impl_type), "ring_impl_type"
    else:
        function = module.get("ring_attn_fn", hint="give ring_impl_type=")
        kind, kind_source = _USP_RINGS.get(getattr(function, "__name__", ""), ""), "attention.ring_attn_fn"
        if not kind:
            raise p.error(f"attention.ring_attn_fn is unknown: {getattr(function, '__name__', function)}", "give ring_impl_type=")
    if use_ulysses_low is None:
        found = _is_ulysses_low(module.get(group_name, None))
        use_ulysses_low = True if found is None else found
    rows = int(p.found["batch_size"].value) if p.has("batch_size") else 1
    seqlen = int(p.value("seqlen", "give query, or batch_size= and seqlen= of all ranks"))
    made = order.from_usp(kind, cp_size=ulysses * ring, ulysses_degree=ulysses, cu_seqlens=[seqlen * i for i in range(rows + 1)],
                          use_ulysses_low=use_ulysses_low)
    p.say_order(made, f"{kind_source} = {kind}" + ("" if use_ulysses_low else ", the ring among neighbours"))


def deepspeed(p: Preset, attention: Any, tensors: Mapping[str, Any], batch_dim_idx: int | None, call: Mapping[str, Any]) -> None:
    """`call`: causal, module, rotary_pos_emb, position_ids, attention_mask, scaling, dropout, sliding_window, softcap."""
    held = Held(p, attention, "attention")
    is_alst = held.get("attn_head_count", None) is not None  # UlyssesSPAttentionHF
    group = "process_group" if is_alst else "spg"
    p.say("cp_size", None if p.has("cp_size") else p.size_of_group(held.get(group), f"attention.{group}"), f"attention.{group}")
    ranks = int(p.value("cp_size"))
    p.reject("rotary_pos_emb", None if call.get("rotary_pos_emb") is None else True, "q and k would be those before the rotation",
             "rotate them before the call")
    p.reject("attention_mask", None if call.get("attention_mask") is None else True, "a mask as a tensor", "write it as slices= or mask=")
    p.reject_dropout("dropout", call.get("dropout"))
    if not is_alst and tensors.get("query") is not None and batch_dim_idx not in (0, 1):
        raise p.error(f"batch_dim_idx must be 0 (bshd) or 1 (sbhd): {batch_dim_idx}", "as in the call")
    axes = "bhsd" if is_alst else "sbhd" if batch_dim_idx == 1 else "bshd"
    extents = p.say_tensors(tensors, axes)
    p.hints = {"dtype": "give query, or dtype=", "heads": "give query and key, or heads=", "lengths": "give query, or batch_size= and seqlen= of all ranks"}
    if is_alst:
        head_dim = held.number("attn_head_size")
        p.say_heads(held.number("attn_head_count"), held.number("global_kv_head_count"), head_dim, head_dim,
                    "attention.attn_head_count, global_kv_head_count, attn_head_size")
        if extents is None and not held.get("seq_length_is_variable", False):
            extents = {"b": held.number("batch_size"), "s": held.number("global_seq_length") // ranks}
    rows = extents["b"] if extents is not None else 1
    starts = None if call.get("position_ids") is None or extents is None else _documents(p, call["position_ids"], extents["s"] * ranks, rows)
    is_packed = starts is not None and len(starts) > rows + 1
    causal, source = call.get("causal"), "causal"
    if causal is None and call.get("module") is not None:
        causal, source = Held(p, call["module"], "module").get("is_causal", True), "module.is_causal"
    if causal is None and is_alst:
        causal, source = True, "UlyssesSPAttentionHF, whose layers are causal"
    if causal is None and not p.has("attn_mask_type"):
        raise p.error("only attention.local_attn knows the mask", "give causal=True or False, or attn_mask_type=")
    p.say_mask(bool(causal), is_packed, source)
    window = call.get("sliding_window")
    p.say_window(None if window is None else [int(window) - 1, 0], "sliding_window, which counts the query's own key")
    p.say("softmax_scale", call.get("scaling"), "scaling")
    p.say("softcap", call.get("softcap") or None, "softcap")
    if is_packed and extents is not None and starts is not None:
        seqlen = extents["s"] * ranks
        p.say("lengths", np.diff(starts).tolist(), "position_ids: a document begins where they do not continue by 1")
        p.say("pad_between_seqs", False, "position_ids: there is no padding")
        cut = np.arange(rows * seqlen).reshape(rows, ranks, -1)
        p.say_order([cut[:, rank].ravel() for rank in range(ranks)], "DeepSpeed, which cuts every row of the batch in equal parts")
    else:
        if extents is not None:
            p.say_batch("sbhd" if axes == "sbhd" else "bshd", extents, "query" if tensors.get("query") is not None else "attention")
        p.say("layout", "contiguous", "DeepSpeed, which cuts every sequence in equal parts")
    p.format = None if is_alst else axes  # q is bhsd there, out is bsh
    p.say("cp_comm_type", "a2a", "DeepSpeed")


def with_uneven_heads(p: Preset, build: Callable[[], Scenario]) -> Scenario:
    """The scenario; where cpscope has no a2a for these heads, with all_gather, whose token order is the same."""
    try:
        scenario = build()
        scenario.layout()
        return scenario
    except RefusedError as error:
        if p.found["cp_comm_type"].source != "DeepSpeed":
            raise
        reason = error.complaints[0].what
        p.found["cp_comm_type"] = p.found["cp_comm_type"]._replace(value="all_gather", source=f"DeepSpeed's a2a, of the same token order; {reason}")
        return build()


def _documents(p: Preset, position_ids: Any, seqlen: int, rows: int) -> list[int]:
    """Begins of the documents of all rows, one row after another, and the end."""
    from ._arrays import on_host
    positions = np.asarray(on_host(position_ids))
    positions = positions.reshape(1, -1) if positions.ndim == 1 else positions
    if positions.shape != (rows, seqlen):
        raise p.error(f"position_ids must be those of all ranks, {[rows, seqlen]}: {list(positions.shape)}",
                      "concatenate the ranks' parts along the positions")
    begins = np.ones(positions.shape, bool)
    begins[:, 1:] = positions[:, 1:] != positions[:, :-1] + 1
    return [*np.flatnonzero(begins.ravel()).tolist(), rows * seqlen]


_MAGI_TYPES = ("full", "causal", "inv_causal", "bi_causal")


def magi(p: Preset, key: Any, position_ids: Sequence[Any] | None, dispatch_meta: Any, query: Any, value: Any, sink: Any,
         softmax_scale: float | None, softcap: float) -> None:
    k = Held(p, key, "key")
    p.hints = {"dtype": "give query, or dtype="}
    tokens, pad = k.number("total_seqlen_q"), int(k.get("pad_size"))
    if tokens != k.number("total_seqlen_k"):
        raise p.error(f"queries and keys are not the same tokens: total_seqlen_q {tokens}, total_seqlen_k {k.get('total_seqlen_k')}",
                      "cross attention of MagiAttention is not supported")
    p.say("cp_size", None if p.has("cp_size") else p.size_of_group(k.get("cp_group"), "key.cp_group"), "key.cp_group")
    ranks = int(p.value("cp_size"))
    precision = getattr(k.get("precision", None), "value", k.get("precision", None))
    p.say("dtype", precision, "key.precision")
    head_dim = k.number("head_dim")
    v_dim = head_dim if value is None else p.shape(value, "value", "thd")["d"]
    p.say_heads(k.number("num_heads_q"), k.number("num_heads_kv"), head_dim, v_dim, "key.num_heads_q, num_heads_kv, head_dim")
    p.say("dtype", getattr(query, "dtype", None), "query.dtype")
    p.say("attn_mask_type", "slices", "key.q_ranges, k_ranges, attn_mask_type")
    types = [str(getattr(one, "value", one)).lower() for one in k.get("attn_mask_type")]
    slices: list[tuple[int, int, int, int, str]] = [(int(q.start), int(q.end), int(r.start), int(r.end), kind)
                                                    for q, r, kind in zip(k.get("q_ranges"), k.get("k_ranges"), types)]
    if unknown := sorted(set(types) - set(_MAGI_TYPES)):
        raise p.error(f"key.attn_mask_type is unknown: {unknown[0]}", ", ".join(_MAGI_TYPES))
    p.say("slices", [one for one in slices if one[0] < one[1] and one[2] < one[3]], "key.q_ranges, k_ranges, attn_mask_type")
    p.say("lengths", [tokens - pad], "key.total_seqlen_q - key.pad_size")
    if k.get("is_qo_comm_enable", False) and not p.has("cp_comm_type"):
        raise p.error("key.is_qo_comm_enable: queries and keys both move, and cpscope has no such schedule",
                      'cp_comm_type="group_cast" grades its answer in its order')
    p.say("cp_comm_type", "group_cast", "MagiAttention")
    p.say("accumulate", "fp32", "MagiAttention, whose kernels add up in fp32")
    name = "MAGI_ATTENTION_BACKWARD_HIGH_PRECISION_REDUCE"
    p.say("dkv_wire", "fp32" if os.environ.get(name, "0") == "1" else "dtype", f"the environment's {name}")
    if sink is not None:
        p.say("softmax_type", "learnable", "sink")
    p.say("softmax_scale", softmax_scale, "softmax_scale")
    p.say("softcap", softcap or None, "softcap")
    _say_dispatch(p, k, position_ids, dispatch_meta, tokens, ranks)


def _say_dispatch(p: Preset, k: Held, position_ids: Sequence[Any] | None, dispatch_meta: Any, tokens: int, ranks: int) -> None:
    chunk, is_uneven = k.number("chunk_size"), bool(k.get("uneven_shard", False))
    p.say("pad_between_seqs", not is_uneven, "key.uneven_shard")
    if p.has("layout"):
        return
    if position_ids is not None or dispatch_meta is not None:
        if not is_uneven:
            p.say("slots", [tokens], "key.total_seqlen_q")
        if position_ids is not None:
            made: Any = order.from_magi(list(position_ids))
            p.say_order(made, "position_ids")
            return
        partitions = Held(p, dispatch_meta, "dispatch_meta").get("partitions")
        p.say_order([np.concatenate([np.arange(c * chunk, min((c + 1) * chunk, tokens)) for c in part]) for part in partitions],
                    "dispatch_meta.partitions, key.chunk_size")
        return
    algorithm = k.sub("dist_attn_config").sub("dispatch_config").get("alg")
    kind = str(getattr(getattr(algorithm, "type", None), "value", name_of(getattr(algorithm, "type", type(algorithm).__name__))))
    if kind == "min_heap":
        p.say("layout", "lpt", "key.dist_attn_config.dispatch_config.alg = min_heap")
        p.say("dispatch_chunk", chunk, "key.chunk_size")
    elif kind == "sequential_select" and (tokens // chunk) % ranks == 0 and not is_uneven:
        p.say("layout", "contiguous", "key.dist_attn_config.dispatch_config.alg = sequential_select")
    else:
        raise p.error(f"key.dist_attn_config.dispatch_config.alg = {kind} does not say who owns which chunk",
                      "give position_ids=, what get_position_ids(key) returns on each rank, or dispatch_meta=, the manager's dispatch_meta_q")
