"""PyTorch's attention on the shapes of scenario files: cuDNN and FlashAttention-2 through SDPA, varlen_attn
(FlashAttention-2), and FlexAttention, with Triton's kernels and with FlashAttention-4's; with those of flash_peers.

All peers of a shape get the same random inputs, and none is timed before its outputs and gradients agree with exact
attention of some heads and sequences.
"""
import traceback

import torch
import torch.nn.functional as functional
from figures import one_line
from flash_peers import FLASH_PEERS
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

try:
    from torch.nn.attention.varlen import varlen_attn
except ImportError:
    varlen_attn = None

# |difference| / |exact| of a tensor, and of a row over the row and the usual row; bf16 needs a quarter of it.
LIMIT, ROW_LIMIT = 0.02, 0.1
TENSORS = ("out", "dq", "dk", "dv")


class PeerError(RuntimeError):
    """Why a peer gives no figure for a shape."""


class Problem:
    """Random inputs of a shape, packed [token, head, lane], and exact answers of some of it."""

    def __init__(self, shape, device="cuda", dtype=torch.bfloat16):
        self.shape, self.device = shape, torch.device(device)
        random = torch.Generator(self.device).manual_seed(1)

        def draw(heads, lanes):
            return torch.randn((shape.tokens, heads, lanes), generator=random, device=device, dtype=torch.float32).to(dtype)
        self.q, self.k = draw(shape.heads, shape.dim_qk), draw(shape.kv_heads, shape.dim_qk)
        self.v, self.d_out = draw(shape.kv_heads, shape.dim_v), draw(shape.heads, shape.dim_v)
        owned = torch.zeros(shape.tokens, dtype=torch.bool, device=device)
        for begin, length in zip(shape.begins, shape.lengths):
            owned[begin:begin + length] = True
        self.d_out[~owned] = 0  # what nobody owns has no gradient
        self._parts = None

    def leaves(self, arrange):
        """q, k, v that want gradients, and d_out, in a peer's own arrangement."""
        q, k, v = (arrange(tensor).detach().clone().requires_grad_() for tensor in (self.q, self.k, self.v))
        return (q, k, v), arrange(self.d_out).contiguous()

    @property
    def parts(self):
        """Exact answers [(rows, kv head, {out, dq, dk, dv})] of the longest, the shortest and the last sequence."""
        if self._parts is None:
            lengths = self.shape.lengths
            chosen = sorted({lengths.index(max(lengths)), lengths.index(min(lengths)), len(lengths) - 1})
            head = self.shape.kv_heads - 1
            self._parts = [(slice(begin, begin + length), head, self._exact(begin, length, head))
                           for begin, length in ((self.shape.begins[s], lengths[s]) for s in chosen)]
        return self._parts

    def query_heads(self, kv_head):
        group = self.shape.heads // self.shape.kv_heads
        return slice(kv_head * group, (kv_head + 1) * group)

    def _exact(self, begin, length, kv_head):
        rows, heads = slice(begin, begin + length), self.query_heads(kv_head)
        q, d_out = (t[rows, heads].float().transpose(0, 1) for t in (self.q, self.d_out))
        k, v = (t[rows, kv_head].float() for t in (self.k, self.v))
        spans = torch.tensor([self.shape.visible(i, length) for i in range(length)], device=self.device)
        keys, scale = torch.arange(length, device=self.device), self.shape.dim_qk ** -0.5
        out, dq = torch.zeros_like(d_out), torch.zeros_like(q)
        dk, dv = torch.zeros_like(k), torch.zeros_like(v)
        for h in range(q.shape[0]):
            for first in range(0, length, 2048):
                some = slice(first, min(first + 2048, length))
                hidden = (keys < spans[some, :1]) | (keys >= spans[some, 1:])
                logits = q[h, some] @ k.T * scale
                if self.shape.has_alibi:
                    logits -= self.shape.slopes[heads.start + h] * (keys[some, None] - keys).abs()
                weights = torch.softmax(logits.masked_fill(hidden, -torch.inf), 1).nan_to_num()
                out[h, some] = weights @ v
                d_weights = d_out[h, some] @ v.T
                d_logits = weights * (d_weights - (weights * d_weights).sum(1, keepdim=True)) * scale
                dq[h, some] = d_logits @ k
                dk += d_logits.T @ q[h, some]
                dv += weights.T @ d_out[h, some]
        return {"out": out.transpose(0, 1), "dq": dq.transpose(0, 1), "dk": dk, "dv": dv}

    def errors(self, given):
        """Largest relative error of each tensor, packed [token, head, lane]; PeerError when one is too large."""
        found = dict.fromkeys(given, 0.0)
        for rows, kv_head, exact in self.parts:
            for name in given:
                heads = kv_head if name in ("dk", "dv") else self.query_heads(kv_head)
                error, row_error = relative_errors(given[name][rows, heads], exact[name])
                found[name] = max(found[name], error)
                if not (error <= LIMIT and row_error <= ROW_LIMIT):
                    raise PeerError(f"wrong {name}: relative error {error:.2g}, of one row {row_error:.2g}")
        return found


def relative_errors(given, exact):
    """Of the whole, and of the worst row beside itself and the usual row. NaN where anything is no number."""
    difference = (given.float() - exact).norm(dim=-1)
    norms = exact.norm(dim=-1)
    whole = difference.norm() / norms.norm().clamp_min(1e-30)
    row = (difference / (norms + norms.square().mean().sqrt()).clamp_min(1e-30)).max()
    return whole.item(), row.item()


class Call:
    """One way to ask a peer: forward() gives out, backward(out) gives dq, dk, dv; packed() puts such a tensor in
    packed order again."""

    def __init__(self, problem, arrange, attend, packed):
        self.inputs, self.d_out = problem.leaves(arrange)
        self.attend, self.packed = attend, packed
        self.note = ""

    def forward(self):
        return self.attend(*self.inputs)

    def backward(self, out):
        return torch.autograd.grad(out, self.inputs, self.d_out, retain_graph=True)

    def answer(self):
        out = self.forward()
        return dict(zip(TENSORS, map(self.packed, (out, *self.backward(out)))))


def stretches(problem, length):
    """(arrange, packed) between [token, head, lane] and [stretch, head, token, lane] of equal stretches."""
    def arrange(tensor):
        return tensor.unflatten(0, (-1, length)).transpose(1, 2).contiguous()

    def packed(tensor):
        return tensor.transpose(1, 2).flatten(0, 1)
    return arrange, packed


def sdpa_calls(problem, backend):
    shape = problem.shape
    lengths = {length for _, length in shape.pieces}
    if len(lengths) != 1:
        raise PeerError("dense kernels do not take documents of several lengths")
    if shape.is_padded:
        raise PeerError("dense kernels are not asked for padding between sequences")
    if shape.has_window:
        raise PeerError("dense kernels are asked without a window alone")
    arrange, packed = stretches(problem, lengths.pop())

    def attend(q, k, v):
        with sdpa_kernel(backend):
            return functional.scaled_dot_product_attention(q, k, v, is_causal=shape.is_causal,
                                                           enable_gqa=shape.heads != shape.kv_heads)
    yield Call(problem, arrange, attend, packed)


def varlen_calls(problem):
    shape = problem.shape
    if varlen_attn is None:
        raise PeerError("this PyTorch has no varlen_attn")
    if shape.is_padded:
        raise PeerError("varlen_attn is not asked for padding between sequences")
    if shape.has_window and shape.chunk:
        raise PeerError("varlen_attn is not asked for a window within chunks")
    ends = [begin + length for begin, length in shape.pieces]
    offsets = torch.tensor([0, *ends], device=problem.device, dtype=torch.int32)
    longest = max(length for _, length in shape.pieces)
    left, right = shape.window
    window = (left, 0 if shape.is_causal else right)
    repeat = shape.heads // shape.kv_heads

    def grouped(q, k, v):
        return varlen_attn(q, k, v, offsets, offsets, longest, longest, window_size=window)

    def repeated(q, k, v):
        return grouped(q, k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1))

    def same(tensor):
        return tensor
    yield Call(problem, same, grouped, same)
    if repeat > 1:
        call = Call(problem, same, repeated, same)
        call.note = "k and v repeated for the grouped heads"
        yield call


def mask_of(shape, device, padding_sees_padding=False):
    """FlexAttention's mask of a shape, written as its users write it. Padding is no document, or one document of its own."""
    causal, left, right, chunk = shape.is_causal, *shape.window, shape.chunk
    if len(shape.lengths) > 1 or shape.is_padded:
        if shape.has_window or chunk:
            raise PeerError("FlexAttention is not asked for windows or chunks of several sequences")
        of_query = torch.full((shape.tokens,), -1, device=device, dtype=torch.int32)
        of_key = torch.full_like(of_query, -1 if padding_sees_padding else -2)
        for number, (begin, length) in enumerate(zip(shape.begins, shape.lengths)):
            of_query[begin:begin + length] = of_key[begin:begin + length] = number
        if causal:
            return lambda b, h, i, j: (of_query[i] == of_key[j]) & (i >= j)
        return lambda b, h, i, j: of_query[i] == of_key[j]
    if chunk and left < 0 and right < 0 and causal:
        return lambda b, h, i, j: (i >= j) & (i // chunk == j // chunk)
    if left >= 0 and not chunk and causal:
        return lambda b, h, i, j: (i >= j) & (i - j <= left)
    if causal and not chunk and right < 0:
        return lambda b, h, i, j: i >= j
    if not chunk and not shape.has_window:
        return None
    raise PeerError("FlexAttention is not asked for this mask")


def alibi_of(shape, device):
    """FlexAttention's way to add ALiBi. Rows of one sequence are as far apart as in it."""
    slopes = torch.tensor(shape.slopes, device=device)
    return lambda score, b, h, i, j: score - slopes[h] * (i - j).abs()


def flash_block(shape):
    """Queries and keys of a block of the mask that FlashAttention-4's Hopper kernels take: their tiles of keys, 128, 96 above head_dim 128
    and 80 above 192, must divide it, or be made smaller for it."""
    dim = max(shape.dim_qk, shape.dim_v)
    return 128, 128 if dim <= 128 else 96 if dim <= 192 else 64


def flex_calls(problem, compiled, backend=None):
    """Backend: FLASH, FlashAttention-4's kernels; None: Triton's."""
    shape = problem.shape
    arrange, packed = stretches(problem, shape.tokens)
    attend = compiled_flex() if compiled else flex_attention
    options = {"enable_gqa": shape.heads != shape.kv_heads, **({"kernel_options": {"BACKEND": backend}} if backend else {})}
    if shape.has_alibi:
        options["score_mod"] = alibi_of(shape, problem.device)
    block = flash_block(shape) if backend == "FLASH" else (128, 128)

    def call(padding_sees_padding):
        mask = mask_of(shape, problem.device, padding_sees_padding)
        blocks = mask and create_block_mask(mask, None, None, shape.tokens, shape.tokens, device=problem.device, BLOCK_SIZE=block)
        return Call(problem, arrange, lambda q, k, v: attend(q, k, v, block_mask=blocks, **options), packed)
    yield call(False)
    if shape.is_padded:
        plainer = call(True)
        plainer.note = "padding attends to padding"
        yield plainer


_compiled = []


def compiled_flex():
    if not _compiled:
        import torch._functorch.config
        torch._functorch.config.donated_buffer = False  # the same graph goes backward many times
        torch._dynamo.config.recompile_limit = 64
        _compiled.append(torch.compile(flex_attention, dynamic=False))
    return _compiled[0]


PEERS = {
    "cudnn": lambda problem: sdpa_calls(problem, SDPBackend.CUDNN_ATTENTION),
    "flash2": lambda problem: sdpa_calls(problem, SDPBackend.FLASH_ATTENTION),
    "varlen": varlen_calls,
    "flex": lambda problem: flex_calls(problem, problem.device.type == "cuda"),
    "flex_flash": lambda problem: flex_calls(problem, True, "FLASH"),
} | FLASH_PEERS


def ask(peer, problem):
    """The peer's call that answers right, and its errors. PeerError says why there is none."""
    reason = None
    if problem.shape.has_alibi and not peer.startswith("flex"):
        raise PeerError("not asked for ALiBi")
    calls = PEERS[peer](problem)
    while True:
        try:
            call = next(calls, None)
            if call is None:
                break
            return call, problem.errors(call.answer())
        except Exception as error:  # whatever a peer raises is its reason
            traceback.print_exc()  # into the log: the reason is one line
            reason = reason or one_line(error)
    raise PeerError(reason or "no way to ask it is known")


class Stopwatch:
    """Milliseconds of calls on the GPU, by events."""

    def __init__(self, flush_bytes=256 << 20, ahead_cycles=1_000_000):
        self.flush = torch.empty(flush_bytes, device="cuda", dtype=torch.uint8)
        self.ahead_cycles = ahead_cycles

    def time(self, call, repeats, before=None):
        """[repeat]; the cache is flushed before each, and the GPU held for half a millisecond, so that the host is
        ahead of it and its own time is not counted."""
        call()
        times = []
        for _ in range(repeats):
            self.flush.zero_()
            torch.cuda._sleep(self.ahead_cycles)
            if before:
                before()
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            call()
            end.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end))
        return times
