"""PyTorch's ways to spread one attention over GPUs: context_parallel with either rotation, and Ulysses by hand; and
TransformerEngine's.

Each process calls these alike, so that all take the same path; reasons are agreed upon.
"""
import traceback

import torch
import torch.distributed as dist
import torch.nn.functional as functional
from torch.distributed.tensor.experimental import context_parallel
from torch.nn.attention import SDPBackend, sdpa_kernel

import exchange_te
from figures import one_line
from peers import LIMIT, ROW_LIMIT, TENSORS, PeerError, relative_errors, varlen_attn

try:
    from torch.distributed.tensor.experimental._context_parallel._attention import set_rotate_method
except ImportError:
    from torch.distributed.tensor.experimental._attention import set_rotate_method

# The same of FP8: TransformerEngine's gradients are off by 11 %, where it loses shares of them by more than 50 %.
FP8_LIMIT, FP8_ROW_LIMIT = 0.2, 0.4
# In FP8 the first rows of a sequence are not judged: dP and delta of a row with few keys are nearly equal, and delta is made of an out in
# 8 bits. Alone, row 0, whose dq is 0, is off by four times the length of a usual row.
FP8_FIRST_ROW = 1024


class SpreadProblem:
    """Random inputs of the whole batch, [token, head, lane], the same in every process, and exact answers of some rows."""

    def __init__(self, shape, mesh, control, device="cuda", dtype=torch.bfloat16):
        self.shape, self.mesh, self.control = shape, mesh, control
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.limits = (FP8_LIMIT, FP8_ROW_LIMIT) if shape.is_fp8 else (LIMIT, ROW_LIMIT)
        # Peers pack without padding.
        ends = torch.tensor(shape.lengths).cumsum(0).tolist()
        self.offsets = [0, *ends]
        self.tokens, self.device = ends[-1], torch.device(device)
        random = torch.Generator(self.device).manual_seed(1)

        def draw(heads, lanes):
            return torch.randn((self.tokens, heads, lanes), generator=random, device=device, dtype=dtype)
        self.q, self.k = draw(shape.heads, shape.dim_qk), draw(shape.kv_heads, shape.dim_qk)
        self.v, self.d_out = draw(shape.kv_heads, shape.dim_v), draw(shape.heads, shape.dim_v)

    def exact(self, rows):
        """out and dq of some rows, dk and dv as these rows alone would make them; [row or token, head, lane], fp32."""
        begins = torch.tensor(self.offsets, device=self.device)
        first = begins[torch.searchsorted(begins, rows, right=True) - 1]
        tokens = torch.arange(self.tokens, device=self.device)
        hidden = (tokens < first[:, None]) | (tokens > rows[:, None])
        group, scale = self.shape.heads // self.shape.kv_heads, self.shape.dim_qk ** -0.5
        out, dq, dk, dv = [], [], [], []
        for g in range(self.shape.kv_heads):
            heads = slice(g * group, (g + 1) * group)
            q, d_out = (t[rows, heads].float().transpose(0, 1) for t in (self.q, self.d_out))
            k, v = self.k[:, g].float(), self.v[:, g].float()
            weights = torch.softmax((q @ k.T * scale).masked_fill(hidden, -torch.inf), -1)
            d_weights = d_out @ v.T
            d_logits = weights * (d_weights - (weights * d_weights).sum(-1, keepdim=True)) * scale
            out.append(weights @ v)
            dq.append(d_logits @ k)
            dk.append(torch.einsum("hrt,hrd->td", d_logits, q))
            dv.append(torch.einsum("hrt,hrd->td", weights, d_out))
        joined = {"out": torch.cat(out).transpose(0, 1), "dq": torch.cat(dq).transpose(0, 1)}
        return {**joined, "dk": torch.stack(dk, 1), "dv": torch.stack(dv, 1)}

    def errors(self, owned, given):
        """Of a process's own tokens `owned` (ascending or not), tensors [own token, head, lane]."""
        judged = torch.arange(len(owned), device=self.device)
        if self.shape.is_fp8:
            judged = judged[owned >= min(FP8_FIRST_ROW, self.tokens // 8)]
        some = judged[torch.linspace(0, len(judged) - 1, 12, device=self.device).long()]
        found = self._compare({name: given[name][some] for name in ("out", "dq")}, self.exact(owned[some]))
        # Nobody but the last queries sees the last keys.
        last = torch.arange(max(self.offsets[-2], self.tokens - 48), self.tokens, device=self.device)
        here = torch.isin(owned, last)
        if here.any():
            exact = self.exact(last)
            found |= self._compare({name: given[name][here] for name in ("dk", "dv")},
                                   {name: exact[name][owned[here]] for name in ("dk", "dv")})
        return found

    def _compare(self, given, exact):
        found, (limit, row_limit) = {}, self.limits
        for name in given:
            found[name], row = relative_errors(given[name], exact[name])
            if not (found[name] <= limit and row <= row_limit):
                raise PeerError(f"wrong {name}: relative error {found[name]:.2g}, of one row {row:.2g}")
        return found

    def agree(self, errors, reason):
        """(largest error of each tensor over all processes, the first reason that any of them has or None)."""
        given = [None] * self.ranks
        dist.all_gather_object(given, (errors or {}, reason), group=self.control)
        names = [name for name in TENSORS if any(name in one for one, _ in given)]
        worst = {name: max(one.get(name, 0.0) for one, _ in given) for name in names}
        return worst, next((one for _, one in given if one), None)


class ContextParallel:
    """torch.distributed.tensor.experimental.context_parallel, causal, load-balanced."""

    def __init__(self, problem, rotation, backend, repeats_heads):
        if len(problem.shape.lengths) > 1:
            raise PeerError("context_parallel's ring takes one sequence alone")
        self.problem, self.rotation, self.backend = problem, rotation, backend
        self.repeat = problem.shape.heads // problem.shape.kv_heads if repeats_heads else 1
        self.is_gqa = problem.shape.heads != problem.shape.kv_heads and not repeats_heads

    def owned(self):
        p = self.problem
        chunks = torch.arange(p.tokens, device=p.device).chunk(2 * p.ranks)
        return torch.cat([chunks[p.rank], chunks[2 * p.ranks - 1 - p.rank]])

    def within(self, work):
        """work(forward, both) inside of the parallel region. It must be left in the ordinary way even when something was
        raised: it has no cleanup of its own, and would stay in PyTorch's attention."""
        p = self.problem
        set_rotate_method(self.rotation)
        whole = [t.transpose(0, 1).unsqueeze(0).contiguous() for t in (p.q, p.k, p.v, p.d_out)]
        result, raised = None, None
        with context_parallel(p.mesh, buffers=whole, buffer_seq_dims=[2] * 4, no_restore_buffers=set(whole)):
            try:
                q, k, v, d_out = (t.clone() for t in whole)
                leaves = [t.requires_grad_() for t in (q, k, v)]
                with sdpa_kernel(self.backend):
                    result = work(lambda: self._forward(*leaves), lambda: self._both(leaves, d_out))
            except Exception as error:
                raised = error
        if raised is not None:
            raise raised
        return result

    def _forward(self, q, k, v):
        if self.repeat > 1:
            k, v = k.repeat_interleave(self.repeat, 1), v.repeat_interleave(self.repeat, 1)
        # By its module: context_parallel replaces the name there.
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.is_gqa)

    def _both(self, leaves, d_out):
        out = self._forward(*leaves)
        return (out, *torch.autograd.grad(out, leaves, d_out))

    def answer(self):
        given = self.within(lambda forward, both: both())
        return {name: tensor[0].transpose(0, 1) for name, tensor in zip(TENSORS, given)}


class ToHeads(torch.autograd.Function):
    """q, k, v of a process's tokens and all heads -> all tokens and the process's heads, in one all-to-all."""

    @staticmethod
    def forward(ctx, ranks, *tensors):
        ctx.ranks, ctx.heads = ranks, [t.shape[1] // ranks for t in tensors]
        tokens, lanes = tensors[0].shape[0], tensors[0].shape[2]
        sent = tensors[0].new_empty(ranks, tokens, sum(ctx.heads), lanes)
        for part, tensor in zip(sent.split(ctx.heads, 2), tensors):
            part.copy_(tensor.unflatten(1, (ranks, -1)).transpose(0, 1))
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        return received.flatten(0, 1).split(ctx.heads, 1)

    @staticmethod
    def backward(ctx, *gradients):
        tokens = gradients[0].shape[0] // ctx.ranks
        sent = gradients[0].new_empty(ctx.ranks, tokens, sum(ctx.heads), gradients[0].shape[2])
        for part, gradient in zip(sent.split(ctx.heads, 2), gradients):
            part.copy_(gradient.unflatten(0, (ctx.ranks, tokens)))
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        return None, *(part.transpose(0, 1).flatten(1, 2) for part in received.split(ctx.heads, 2))


class ToTokens(torch.autograd.Function):
    """Outputs of all tokens and a process's heads -> its tokens and all heads."""

    @staticmethod
    def forward(ctx, ranks, out):
        ctx.ranks = ranks
        sent = out.contiguous()
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        return received.unflatten(0, (ranks, -1)).transpose(0, 1).flatten(1, 2)

    @staticmethod
    def backward(ctx, gradient):
        sent = gradient.unflatten(1, (ctx.ranks, -1)).transpose(0, 1).contiguous()
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        return None, received.flatten(0, 1)


class Ulysses:
    """All-to-all by hand around SDPA, or around varlen_attn where documents are packed; contiguous tokens."""

    def __init__(self, problem, backend):
        p, shape = problem, problem.shape
        for heads in (shape.heads, shape.kv_heads):
            if heads % p.ranks:
                raise PeerError(f"{heads} heads do not divide among {p.ranks} GPUs")
        if p.tokens % p.ranks:
            raise PeerError(f"{p.tokens} tokens do not divide among {p.ranks} GPUs")
        self.problem, self.backend, self.is_packed = problem, backend, len(shape.lengths) > 1
        own = slice(p.rank * p.tokens // p.ranks, (p.rank + 1) * p.tokens // p.ranks)
        self.leaves = [t[own].clone().requires_grad_() for t in (p.q, p.k, p.v)]
        self.d_out = p.d_out[own].clone()
        self.offsets = torch.tensor(p.offsets, device=p.device, dtype=torch.int32)

    def owned(self):
        p = self.problem
        return torch.arange(p.tokens, device=p.device).chunk(p.ranks)[p.rank]

    def within(self, work):
        with sdpa_kernel(self.backend):
            return work(self._forward, self._both)

    def _forward(self):
        shape = self.problem.shape
        q, k, v = ToHeads.apply(self.problem.ranks, *self.leaves)
        if self.is_packed:
            longest = max(shape.lengths)
            out = varlen_attn(q, k, v, self.offsets, self.offsets, longest, longest, window_size=(-1, 0))
        else:
            q, k, v = (t.transpose(0, 1).unsqueeze(0) for t in (q, k, v))
            out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=shape.heads != shape.kv_heads)
            out = out[0].transpose(0, 1)
        return ToTokens.apply(self.problem.ranks, out)

    def _both(self):
        out = self._forward()
        return (out, *torch.autograd.grad(out, self.leaves, self.d_out))

    def answer(self):
        return dict(zip(TENSORS, self.within(lambda forward, both: both())))


BACKENDS = (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION)
PEERS = {
    "cp_allgather": lambda problem, backend, repeats: ContextParallel(problem, "allgather", backend, repeats),
    "cp_alltoall": lambda problem, backend, repeats: ContextParallel(problem, "alltoall", backend, repeats),
    "ulysses": lambda problem, backend, repeats: Ulysses(problem, backend),
}


def ways_to_ask(peer, problem, backends):
    """[(how it is made, note)], the plainest first: with cuDNN's kernel, k and v repeated if they must be, then with
    FlashAttention-2's. TransformerEngine chooses for itself."""
    if peer not in PEERS:
        return exchange_te.ways_to_ask(peer, problem)
    is_grouped = problem.shape.heads != problem.shape.kv_heads and peer != "ulysses"
    ways = []
    for backend in backends:
        for repeats in (False, True) if is_grouped else (False,):
            notes = [backend.name.lower().removesuffix("_attention")] if backend is not backends[0] else []
            notes += ["k and v repeated for the grouped heads"] if repeats else []
            ways.append((lambda backend=backend, repeats=repeats: PEERS[peer](problem, backend, repeats), ", ".join(notes)))
    return ways


def ask(peer, problem, backends=BACKENDS):
    """(way to ask it, errors, note) of the first way that answers right. PeerError says why there is none. Every process
    must ask."""
    first_reason = None
    for make, note in ways_to_ask(peer, problem, backends):
        one, errors, reason = None, None, None
        try:
            one = make()
            errors = problem.errors(one.owned(), one.answer())
        except Exception as error:  # whatever a peer raises is its reason
            traceback.print_exc()  # into the log: the reason is one line
            reason = one_line(error)
        errors, reason = problem.agree(errors, reason)
        if reason is None:
            return one, errors, f"{note}; plainly: {first_reason}" if note else ""
        first_reason = first_reason or reason
        del one
    raise PeerError(first_reason)
