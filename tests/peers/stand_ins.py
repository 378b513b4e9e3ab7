"""What peers import and a machine without a GPU does not have: modules of the same names, in plain torch."""
import contextlib
import sys
import types
from typing import Any

import torch

import attention

Tensor = torch.Tensor


def module(name: str, **names: Any) -> types.ModuleType:
    """A module that `import name` finds."""
    made = types.ModuleType(name)
    made.__dict__.update(names)
    made.__path__ = []  # type: ignore[attr-defined]
    sys.modules[name] = made
    parent, _, child = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], child, made)
    return made


def forbid(name: str) -> None:
    """Importing it is an ImportError."""
    sys.modules[name] = None  # type: ignore[assignment]


def _pairs(cu_seqlens: Tensor) -> list[slice]:
    bounds = cu_seqlens.tolist()
    return [slice(begin, end) for begin, end in zip(bounds, bounds[1:])]


def flash_attn_forward(q: Tensor, k: Tensor, v: Tensor, dropout_p: float, softmax_scale: float, causal: bool, window_size_left: int,
                       window_size_right: int, softcap: float, alibi_slopes: Any, return_softmax: bool) -> tuple[Any, ...]:
    """flash_attn 2.8's _flash_attn_forward: [batch, tokens, heads, dim], lse [batch, heads, tokens]."""
    parts = [attention.forward(*part, softmax_scale, causal, window_size_left, window_size_right, softcap) for part in zip(q, k, v)]
    return torch.stack([out for out, _ in parts]), torch.stack([lse for _, lse in parts]), None, None


def flash_attn_backward(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, softmax_lse: Tensor, dq: Tensor, dk: Tensor,
                        dv: Tensor, dropout_p: float, softmax_scale: float, causal: bool, window_size_left: int, window_size_right: int,
                        softcap: float, alibi_slopes: Any, deterministic: bool, rng_state: Any = None) -> None:
    for i, part in enumerate(zip(dout, q, k, v, out, softmax_lse)):
        dq[i], dk[i], dv[i] = attention.backward(*part, softmax_scale, causal, window_size_left, window_size_right, softcap)


def flash_attn_varlen_forward(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int,
                              max_seqlen_k: int, dropout_p: float, softmax_scale: float, causal: bool, window_size_left: int = -1,
                              window_size_right: int = -1, softcap: float = 0.0, alibi_slopes: Any = None, return_softmax: bool = False,
                              block_table: Any = None, leftpad_k: Any = None, seqused_k: Any = None,
                              zero_tensors: bool = False) -> tuple[Any, ...]:
    """Packed: [tokens, heads, dim], lse [heads, tokens]; rows of no sequence are 0."""
    out = torch.zeros(*q.shape[:2], v.shape[2], dtype=q.dtype)
    lse = torch.zeros(q.shape[1], q.shape[0])
    for queries, keys in zip(_pairs(cu_seqlens_q), _pairs(cu_seqlens_k)):
        out[queries], lse[:, queries] = attention.forward(q[queries], k[keys], v[keys], softmax_scale, causal, window_size_left,
                                                          window_size_right, softcap)
    return out, lse, None, None


def flash_attn_varlen_backward(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, softmax_lse: Tensor, dq: Tensor, dk: Tensor,
                               dv: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
                               dropout_p: float, softmax_scale: float, causal: bool, window_size_left: int, window_size_right: int,
                               softcap: float, alibi_slopes: Any, deterministic: bool, rng_state: Any = None,
                               zero_tensors: bool = False) -> None:
    if zero_tensors:  # otherwise rows of no sequence keep what the memory held
        for gradient in (dq, dk, dv):
            gradient.zero_()
    for queries, keys in zip(_pairs(cu_seqlens_q), _pairs(cu_seqlens_k)):
        dq[queries], dk[keys], dv[keys] = attention.backward(
            dout[queries], q[queries], k[keys], v[keys], out[queries], softmax_lse[:, queries], softmax_scale, causal, window_size_left,
            window_size_right, softcap)


class _FlashAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool, window: tuple[int, int], softcap: float) -> Any:
        out, lse, *_ = flash_attn_forward(q, k, v, 0.0, scale, causal, *window, softcap, None, False)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.settings = (scale, causal, *window, softcap)
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    def backward(ctx: Any, d_out: Tensor, _: Any) -> Any:
        gradients = [torch.empty_like(tensor) for tensor in ctx.saved_tensors[:3]]
        flash_attn_backward(d_out, *ctx.saved_tensors, *gradients, 0.0, *ctx.settings, None, False)
        return (*gradients, None, None, None, None)


def flash_attn_func(q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
                    window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0, alibi_slopes: Any = None, deterministic: bool = False,
                    return_attn_probs: bool = False) -> Any:
    out, lse = _FlashAttention.apply(q, k, v, softmax_scale or q.shape[-1] ** -0.5, causal, tuple(window_size), softcap)
    return (out, lse, None) if return_attn_probs else out


def _refuses(*_: Any, **__: Any) -> Any:
    raise NotImplementedError("no case needs this function of flash_attn")


def install_flash_attn() -> None:
    """`flash_attn` with the names of 2.8 that peers import."""
    public = dict(flash_attn_func=flash_attn_func, flash_attn_varlen_func=_refuses, flash_attn_qkvpacked_func=_refuses,
                  flash_attn_kvpacked_func=_refuses, flash_attn_varlen_qkvpacked_func=_refuses, flash_attn_varlen_kvpacked_func=_refuses)
    module("flash_attn", __version__="2.8.3", **public)
    module("flash_attn.flash_attn_interface", **public, _flash_attn_forward=flash_attn_forward, _flash_attn_backward=flash_attn_backward,
           _flash_attn_varlen_forward=flash_attn_varlen_forward, _flash_attn_varlen_backward=flash_attn_varlen_backward)


class Stream:
    """A CUDA stream or event: on the CPU everything has happened already."""

    def __init__(self, *_: Any, **__: Any):
        pass

    def wait_stream(self, _: Any) -> None:
        pass

    def wait_event(self, _: Any) -> None:
        pass

    def record_event(self, *_: Any) -> "Stream":
        return Stream()

    def synchronize(self) -> None:
        pass


def install_streams() -> None:
    torch.cuda.Stream = torch.cuda.Event = Stream  # type: ignore[misc,assignment]
    torch.cuda.current_stream = lambda *_: Stream()  # type: ignore[assignment]
    torch.cuda.stream = lambda *_: contextlib.nullcontext()  # type: ignore[assignment,misc]
