"""TransformerEngine's context_parallel.py on a machine without a GPU: its schedules and messages as they are, its kernels in
plain torch under their names."""
import __future__
import ast
import importlib.metadata
import importlib.util
import logging
import math
import os
import sys
from contextlib import nullcontext
import types
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import attention
import stand_ins
from processes import Waited

Tensor = torch.Tensor
ROOT = Path(str(importlib.metadata.distribution("transformer_engine").locate_file("transformer_engine"))) / "pytorch"


def take(file: str, *names: str, **known: Any) -> dict[str, Any]:
    """Top-level definitions of a file of TransformerEngine, without the imports of the others."""
    tree = ast.parse((ROOT / file).read_text())
    tree.body = [node for node in tree.body if getattr(node, "name", None) in names]
    scope = dict(known)
    exec(compile(tree, file, "exec"), scope)
    return {name: scope[name] for name in names}


def arguments(method: str) -> tuple[str, ...]:
    """Names of the arguments of a method of TransformerEngine's DotProductAttention."""
    return tuple(argument.arg for argument in _methods(method)[1][method].args.args[1:])


def _methods(*names: str) -> tuple[ast.Module, dict[str, Any]]:
    """The class DotProductAttention with some of its methods, and these."""
    tree = ast.parse((ROOT / "attention/dot_product_attention/dot_product_attention.py").read_text())
    tree.body = [node for node in tree.body if getattr(node, "name", None) == "DotProductAttention"]
    its_class: Any = tree.body[0]
    its_class.body = [node for node in its_class.body if getattr(node, "name", None) in names]
    return tree, {node.name: node for node in its_class.body}


class _Base(torch.nn.Module):
    """TransformerEngineBaseModule, without FP8."""

    def __init__(self, name: str | None = None):
        super().__init__()

    def set_tensor_parallel_group(self, group: Any) -> None:
        self.tp_group = group


def attention_module(peer: Any) -> Any:
    """TransformerEngine's class DotProductAttention: its constructor and set_context_parallel_group as they are. Its call selects kernels
    by the GPU; here it is that of its FlashAttention with context parallelism, into context_parallel.py (`peer`)."""
    tree, _ = _methods("__init__", "set_context_parallel_group")
    utils = take("attention/dot_product_attention/utils.py", "check_set_window_size", warnings=logging, Tuple=tuple)
    scope = dict(TransformerEngineBaseModule=_Base, torch=torch, math=math, os=os, logging=logging, nullcontext=nullcontext,
                 dpa_utils=types.SimpleNamespace(**utils), attn_log=types.SimpleNamespace(_log_level=logging.WARNING, _stream_handler=logging.NullHandler()),
                 get_distributed_world_size=dist.get_world_size, CPLoadBalancingStrategy=peer.CPLoadBalancingStrategy, AttnTypes=("self", "cross"),
                 Parameter=torch.nn.Parameter, **{name: lambda *_, **__: None for name in ("FlashAttention", "FusedAttention", "UnfusedDotProductAttention")})
    exec(compile(tree, "dot_product_attention.py", "exec", __future__.annotations.compiler_flag), scope)

    class DotProductAttention(scope["DotProductAttention"]):  # type: ignore[misc,name-defined]
        use_flash_attn_3 = False

        def forward(self, query_layer: Tensor, key_layer: Tensor, value_layer: Tensor, *, qkv_format: str | None = None,
                    cu_seqlens_q: Any = None, cu_seqlens_kv: Any = None, cu_seqlens_q_padded: Any = None, cu_seqlens_kv_padded: Any = None,
                    attn_mask_type: str | None = None, window_size: Any = None, pad_between_seqs: bool = False) -> Tensor:
            form, mask = qkv_format or self.qkv_format, attn_mask_type or self.attn_mask_type
            group = self.cp_group[0] if isinstance(self.cp_group, list) else self.cp_group
            ranks = math.prod(map(dist.get_world_size, self.cp_group)) if isinstance(self.cp_group, list) else dist.get_world_size(group)
            if form == "thd":
                cu_seqlens_q_padded = cu_seqlens_q if cu_seqlens_q_padded is None else cu_seqlens_q_padded
                cu_seqlens_kv_padded = cu_seqlens_kv if cu_seqlens_kv_padded is None else cu_seqlens_kv_padded
                longest = int(cu_seqlens_q_padded.diff().max())
            else:
                longest = query_layer.shape[0 if form == "sbhd" else 1] * ranks
                cu_seqlens_q = cu_seqlens_kv = torch.tensor([longest * i for i in range(query_layer.shape[1 if form == "sbhd" else 0] + 1)],
                                                            dtype=torch.int32)
            window = self.window_size if window_size is None else utils["check_set_window_size"](mask, window_size)
            out = peer.attn_forward_func_with_cp(
                True, query_layer, key_layer, value_layer, cu_seqlens_q, cu_seqlens_kv, longest, longest, cu_seqlens_q_padded, cu_seqlens_kv_padded,
                0.0, self.cp_group, self.cp_global_ranks, self.cp_stream, self.cp_comm_type, softmax_scale=self.softmax_scale, qkv_format=form,
                attn_mask_type=mask, window_size=window, use_flash_attn_3=self.use_flash_attn_3, pad_between_seqs=pad_between_seqs,
                load_balancing_strategy=self.load_balancing_strategy)
            return out.flatten(-2)
    return DotProductAttention


def _parts(cu_seqlens: Tensor) -> list[tuple[int, int]]:
    bounds = cu_seqlens.tolist()
    return list(zip(bounds, bounds[1:]))


def _half(cu_seqlens: Tensor, which: int) -> Tensor:
    """Rows of the first (0) or second (1) half of every sequence of a rank."""
    return torch.cat([torch.arange(b + (e - b) // 2 * which, b + (e - b) // 2 * (which + 1)) for b, e in _parts(cu_seqlens)])


def _order_of_ranks(cu_seqlens: Tensor, size: int) -> Tensor:
    """Tokens by rank: chunks r and 2 * size - 1 - r of every sequence."""
    tokens = []
    for rank in range(size):
        tokens += thd_get_partitioned_indices(cu_seqlens, 0, size, rank).tolist()
    return torch.tensor(tokens)


def thd_get_partitioned_indices(cu_seqlens: Tensor, total: int, size: int, rank: int) -> Tensor:
    chunks = []
    for begin, end in _parts(cu_seqlens):
        length = (end - begin) // (2 * size)
        chunks += [torch.arange(begin + chunk * length, begin + (chunk + 1) * length) for chunk in (rank, 2 * size - 1 - rank)]
    return torch.cat(chunks).to(torch.int32)


def thd_read_half_tensor(tensor: Tensor, cu_seqlens: Tensor, half: int) -> Tensor:
    return tensor.index_select(tensor.dim() - 3, _half(cu_seqlens, half))


def thd_second_half_lse_correction(lse: Tensor, lse_step: Tensor, cu_seqlens: Tensor, packed: bool) -> None:
    rows = _half(cu_seqlens, 1)
    lse[:, rows] = torch.logaddexp(lse[:, rows], lse_step[:, :len(rows)])


def thd_read_second_half_lse(lse: Tensor, cu_seqlens: Tensor, packed: bool, length: int) -> Tensor:
    return lse[:, _half(cu_seqlens, 1)].contiguous()


def thd_out_correction(out: Tensor, step: Tensor, old_lse: Tensor, new_lse: Tensor, lse_step: Tensor, cu_seqlens: Tensor, only_second: bool,
                       packed: bool) -> None:
    rows = _half(cu_seqlens, 1) if only_second else torch.arange(out.shape[0])
    lse = new_lse[:, rows]
    old, new = (torch.exp(part - lse).nan_to_num(0, 0, 0).t()[..., None] for part in (old_lse[:, rows], lse_step[:, :len(rows)]))
    out[rows] = (out[rows].float() * old + step[:len(rows)].view(len(rows), *out.shape[1:]).float() * new).to(out.dtype)


def thd_grad_correction(gradient: Tensor, step: Tensor, cu_seqlens: Tensor, first: str, second: str) -> None:
    step = step.view(-1, *gradient.shape[-2:])
    for half, how in enumerate((first, second)):
        if how == "none":
            continue
        rows = _half(cu_seqlens, half)
        part = step[rows] if "none" not in (first, second) else step[:len(rows)]
        gradient[rows] = (gradient[rows].float() + part.float()).to(gradient.dtype) if how == "add" else part.to(gradient.dtype)


def thd_sequence_order_to_cp_rank_order(tensor: Tensor, cu_seqlens: Tensor, size: int, total: int) -> Tensor:
    return tensor[_order_of_ranks(cu_seqlens, size)]


def thd_cp_rank_order_to_sequence_order(tensor: Tensor, cu_seqlens: Tensor, size: int, total: int) -> Tensor:
    ordered = torch.empty_like(tensor)
    ordered[_order_of_ranks(cu_seqlens, size)] = tensor
    return ordered


def thd_copy_valid_tokens_from_per_split_to_rank_local(out: Tensor, step: Tensor, cu_padded: Tensor, cu_seqlens: Tensor) -> None:
    for begin, length in zip(cu_padded.tolist(), (cu_seqlens[1:] - cu_seqlens[:-1]).tolist()):
        out[begin:begin + length] = step[begin:begin + length]


def _rows_of(i: int, cu_seqlens: Tensor, used: Tensor | None) -> slice:
    begin = int(cu_seqlens[i])
    return slice(begin, int(cu_seqlens[i + 1]) if used is None else begin + int(used[i]))


def flash_attn_3_forward(q: Tensor, k: Tensor, v: Tensor, k_new: Any, v_new: Any, qv: Any, out: Any, cu_q: Any, cu_k: Any, cu_k_new: Any,
                         used_q: Any, used_k: Any, max_q: Any, max_k: Any, *_: Any, softmax_scale: float, causal: bool = False,
                         window_size_left: int = -1, window_size_right: int = -1, **__: Any) -> Any:
    """FlashAttention 3's: sequences may use fewer rows than they have, and rows that nobody sees have lse -inf."""
    if cu_q is None:
        return stand_ins.flash_attn_forward(q, k, v, 0.0, softmax_scale, causal, window_size_left, window_size_right, 0.0, None, False)
    out = torch.zeros(*q.shape[:-1], v.shape[-1], dtype=q.dtype)
    lse = torch.full((q.shape[1], q.shape[0]), -torch.inf)
    for i in range(len(cu_q) - 1):
        queries, keys = _rows_of(i, cu_q, used_q), _rows_of(i, cu_k, used_k)
        if queries.start < queries.stop:
            out[queries], part = attention.forward(q[queries], k[keys], v[keys], softmax_scale, causal, window_size_left, window_size_right)
            lse[:, queries] = torch.where(part == torch.inf, -part, part)
    return out, lse, None, None


def flash_attn_3_backward(d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, cu_q: Any, cu_k: Any, used_q: Any, used_k: Any,
                          max_q: Any, max_k: Any, dq: Tensor, dk: Tensor, dv: Tensor, softmax_scale: float, is_causal: bool = False,
                          window_size_left: int = -1, window_size_right: int = -1, **_: Any) -> None:
    if cu_q is None:
        stand_ins.flash_attn_backward(d_out, q, k, v, out, lse, dq, dk, dv, 0.0, softmax_scale, is_causal, window_size_left, window_size_right, 0.0,
                                      None, False)
        return
    for i in range(len(cu_q) - 1):
        queries, keys = _rows_of(i, cu_q, used_q), _rows_of(i, cu_k, used_k)
        if queries.start < queries.stop and keys.start < keys.stop:
            dq[queries], dk[keys], dv[keys] = attention.backward(
                d_out[queries], q[queries], k[keys], v[keys], out[queries], lse[:, queries], softmax_scale, is_causal, window_size_left,
                window_size_right)


def _gather(tensor: Tensor, group: Any) -> tuple[Tensor, None]:
    whole = torch.empty(tensor.shape[0] * dist.get_world_size(group), *tensor.shape[1:], dtype=tensor.dtype)
    dist.all_gather_into_tensor(whole, tensor.contiguous(), group=group)
    return whole, None


def _scatter(tensor: Tensor, group: Any) -> tuple[Tensor, None]:
    part = torch.empty(tensor.shape[0] // dist.get_world_size(group), *tensor.shape[1:], dtype=tensor.dtype)
    dist.reduce_scatter_tensor(part, tensor.contiguous(), group=group)
    return part, None


class _Quantized:
    pass


def load() -> types.ModuleType:
    """context_parallel.py of the installed transformer_engine."""
    stand_ins.install_streams()
    kernels = {name: function for name, function in globals().items() if name.startswith("thd_")}
    stand_ins.module("transformer_engine_torch", **kernels)
    for name in ("", ".pytorch", ".pytorch.cpp_extensions", ".pytorch.tensor", ".pytorch.tensor.storage", ".pytorch.attention",
                 ".pytorch.attention.dot_product_attention"):
        stand_ins.module("transformer_engine" + name)
    here = "transformer_engine.pytorch."
    stand_ins.module(here + "utils", get_cudnn_version=lambda: (9, 20, 0), nvtx_range_pop=lambda *_: None, nvtx_range_push=lambda *_: None,
                     get_device_compute_capability=lambda: (9, 0))
    stand_ins.module(here + "cpp_extensions.fused_attn", fused_attn_fwd=None, fused_attn_bwd=None,
                     FusedAttnBackend={"F16_arbitrary_seqlen": 1, "FP8": 2})
    stand_ins.module(here + "quantization", FP8GlobalStateManager=types.SimpleNamespace(get_fp8_recipe=lambda: None))
    stand_ins.module(here + "tensor.float8_tensor", Float8Tensor=_Quantized)
    stand_ins.module(here + "tensor.storage.float8_tensor_storage", Float8TensorStorage=_Quantized)
    stand_ins.module(here + "quantized_tensor", QuantizedTensorStorage=_Quantized, prepare_for_saving=lambda *tensors: (list(tensors), None),
                     restore_from_func_ctx=lambda ctx: ctx.saved_tensors)
    stand_ins.module(here + "jit", jit_fuser=lambda function: function)
    stand_ins.module(here + "graph", is_graph_capturing=lambda: False)
    import enum
    stand_ins.module(here + "constants", dist_group_type=dist.ProcessGroup, **take("constants.py", "CPLoadBalancingStrategy", enum=enum))
    stand_ins.module(here + "distributed", get_distributed_world_size=dist.get_world_size, get_distributed_rank=dist.get_rank,
                     gather_along_first_dim=_gather, reduce_scatter_along_first_dim=_scatter)
    versions = {f"v2_{version}_plus": True for version in ("3", "4", "4_1", "5_7", "6_0", "7_0")}
    its_own = take("attention/dot_product_attention/utils.py", "get_thd_padding_mask", "get_full_cu_seqlens", torch=torch, _cu_seqlens_cache={},
                   is_in_onnx_export_mode=lambda: False)
    stand_ins.module(here + "attention.dot_product_attention.utils", FlashAttentionUtils=types.SimpleNamespace(**versions),
                     combine_and_quantize=None, combine_and_dequantize=None, print_quantizers=lambda *_: None, mxfp8_quantize_fast_path=None,
                     get_attention_quantizers=lambda *_: (None,) * 6, **its_own)
    stand_ins.module(here + "attention.dot_product_attention.backends", _flash_attn_fwd=stand_ins.flash_attn_forward,
                     _flash_attn_bwd=stand_ins.flash_attn_backward, _flash_attn_varlen_fwd=stand_ins.flash_attn_varlen_forward,
                     _flash_attn_varlen_bwd=stand_ins.flash_attn_varlen_backward, _flash_attn_fwd_v3=flash_attn_3_forward,
                     _flash_attn_bwd_v3=flash_attn_3_backward)
    name = here + "attention.dot_product_attention.context_parallel"
    spec = importlib.util.spec_from_file_location(name, ROOT / "attention/dot_product_attention/context_parallel.py")
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[name] = loaded
    spec.loader.exec_module(loaded)
    communicate = loaded.flash_attn_p2p_communicate
    loaded.flash_attn_p2p_communicate = lambda *words: [work if isinstance(work, Waited) else Waited(work) for work in communicate(*words)]
    return loaded
