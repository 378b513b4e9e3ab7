"""FlashAttention-3 (the library of xformers' wheel) and FlashAttention-4 (CuTe DSL) as peers of the bench, each also with
its deterministic backward. tests/gpu/peers_package packs both.

Source of the order of arguments: flash_attn_3's fwd and bwd of xformers 0.0.34.
"""
import os

import torch


def offsets_of(problem):
    """(cumulative lengths, the longest, the length of all or None) of the pieces that attend within themselves."""
    from peers import PeerError
    shape = problem.shape
    if shape.is_padded:
        raise PeerError("FlashAttention is not asked for padding between sequences")
    if shape.has_window and shape.chunk:
        raise PeerError("FlashAttention is not asked for a window within chunks")
    lengths = [length for _, length in shape.pieces]
    ends = [begin + length for begin, length in shape.pieces]
    offsets = torch.tensor([0, *ends], device=problem.device, dtype=torch.int32)
    return offsets, max(lengths), lengths[0] if len(set(lengths)) == 1 else None


def dense(length):
    """(arrange, packed) between [token, head, lane] and [piece, token, head, lane] of equal pieces; length None: packed."""
    if length is None:
        return (lambda tensor: tensor), (lambda tensor: tensor)
    return (lambda tensor: tensor.unflatten(0, (-1, length)).contiguous()), (lambda tensor: tensor.flatten(0, 1))


def flash3_calls(problem, deterministic):
    from peers import Call
    if not hasattr(torch.ops.flash_attn_3, "fwd"):
        torch.ops.load_library(os.environ["CPSCOPE_FA3"])
    shape, operators = problem.shape, torch.ops.flash_attn_3
    offsets, longest, length = offsets_of(problem)
    arrange, packed = dense(length)
    cumulative, most = (offsets, longest) if length is None else (None, None)
    left, right = shape.window
    has_window = left >= 0 or right >= 0
    causal = shape.is_causal and not has_window
    window = (left, 0 if shape.is_causal else right) if has_window else (-1, -1)
    scale = shape.dim_qk ** -0.5

    class RawCall(Call):
        """The operators themselves: they have no gradient for PyTorch to find."""

        def __init__(self):
            super().__init__(problem, arrange, None, packed)
            self.inputs = tuple(tensor.detach() for tensor in self.inputs)

        def forward(self):
            nothing = [None] * 9
            out, self.lse, *_ = operators.fwd(*self.inputs, *nothing[:4], cumulative, cumulative, *nothing[:3], most, most, *nothing,
                                              scale, causal, *window, 0, 0.0, True, None, 1, None, 0)
            return out

        def backward(self, out):
            gradients = tuple(torch.empty_like(tensor) for tensor in self.inputs)
            operators.bwd(self.d_out, *self.inputs, out, self.lse, *gradients, cumulative, cumulative, None, None, most, most, scale,
                          causal, *window, 0.0, deterministic, 0)
            return gradients
    yield RawCall()


def flash4_calls(problem, deterministic):
    from flash_attn.cute import flash_attn_func, flash_attn_varlen_func
    from peers import Call
    shape = problem.shape
    offsets, longest, length = offsets_of(problem)
    arrange, packed = dense(length)
    left, right = shape.window
    has_window = left >= 0 or right >= 0
    causal = shape.is_causal and not has_window
    window = tuple(None if side < 0 else side for side in (left, 0 if shape.is_causal and has_window else right))
    options = {"causal": causal, "window_size": window, "deterministic": deterministic}
    if length is None:
        options |= {"cu_seqlens_q": offsets, "cu_seqlens_k": offsets, "max_seqlen_q": longest, "max_seqlen_k": longest}

    def attend(q, k, v):
        answer = (flash_attn_func if length is not None else flash_attn_varlen_func)(q, k, v, **options)
        return answer[0] if isinstance(answer, tuple) else answer
    yield Call(problem, arrange, attend, packed)


FLASH_PEERS = {
    "fa3": lambda problem: flash3_calls(problem, False),
    "fa3_det": lambda problem: flash3_calls(problem, True),
    "fa4": lambda problem: flash4_calls(problem, False),
    "fa4_det": lambda problem: flash4_calls(problem, True),
}
