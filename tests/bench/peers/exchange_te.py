"""TransformerEngine's own context parallelism (cuDNN's fused kernels) as peers of `tests/bench/run exchange`, in bf16 and in FP8."""
import os

import torch
import torch.distributed as dist
from peers import TENSORS, PeerError


def rows_of_rank(lengths, ranks, rank):
    """(slots, rows): each sequence's slot, its length rounded up to a multiple of 2 * ranks; and of the rows that a rank
    has, two chunks of each slot, the packed token without padding, or -1."""
    slots, rows, first = [], [], 0
    for length in lengths:
        chunk = (length + 2 * ranks - 1) // (2 * ranks)
        slots.append(2 * ranks * chunk)
        for at in (rank, 2 * ranks - 1 - rank):
            rows += [first + i if i < length else -1 for i in range(at * chunk, (at + 1) * chunk)]
        first += length
    return slots, rows


class TransformerEngine:
    """te.DotProductAttention of one communication type; one sequence as bshd, several packed as thd with padding between them."""

    def __init__(self, problem, comm):
        import transformer_engine.pytorch as te
        p, shape = problem, problem.shape
        if comm == "a2a" and (shape.heads % p.ranks or shape.kv_heads % p.ranks):
            raise PeerError(f"{shape.heads} heads of {shape.kv_heads} KV heads do not divide among {p.ranks} GPUs")
        is_packed = len(shape.lengths) > 1
        slots, rows = rows_of_rank(shape.lengths, p.ranks, p.rank)
        self.rows = torch.tensor(rows, device=p.device)
        self.valid = self.rows >= 0
        self.q, self.k, self.v, self.d_out = (self._own(tensor, is_packed) for tensor in (p.q, p.k, p.v, p.d_out))
        self.leaves = [tensor.requires_grad_() for tensor in (self.q, self.k, self.v)]
        self.call = {}
        if is_packed:
            bounds, padded = (torch.tensor([0, *lengths], device=p.device).cumsum(0).int() for lengths in (shape.lengths, slots))
            self.call = dict(cu_seqlens_q=bounds, cu_seqlens_kv=bounds, cu_seqlens_q_padded=padded, cu_seqlens_kv_padded=padded,
                             max_seqlen_q=max(slots), max_seqlen_kv=max(slots), pad_between_seqs=slots != list(shape.lengths))
        self.attention = te.DotProductAttention(shape.heads, (shape.dim_qk, shape.dim_v), num_gqa_groups=shape.kv_heads, attention_dropout=0.0,
                                                qkv_format="thd" if is_packed else "bshd",
                                                attn_mask_type="padding_causal" if is_packed else "causal").cuda()
        self.attention.set_context_parallel_group(dist.group.WORLD, list(range(p.ranks)), torch.cuda.Stream(), comm)

    def _own(self, tensor, is_packed):
        own = tensor[self.rows.clamp(min=0)]
        own[~self.valid] = 0
        return own if is_packed else own.unsqueeze(0)

    def owned(self):
        return self.rows[self.valid]

    def within(self, work):
        return work(self._forward, self._both)

    def _forward(self):
        return self.attention(*self.leaves, **self.call)

    def _both(self):
        out = self._forward()
        return (out, *torch.autograd.grad(out, self.leaves, self.d_out.reshape(out.shape)))

    def answer(self):
        shapes = [tensor.shape for tensor in (self.d_out, *self.leaves)]
        given = [tensor.reshape(shape).flatten(0, -3) for tensor, shape in zip(self.within(lambda forward, both: both()), shapes)]
        return {name: tensor[self.valid] for name, tensor in zip(TENSORS, given)}


class TransformerEngineFp8(TransformerEngine):
    """The same with a recipe; the backward in FP8, or in bf16."""

    def __init__(self, problem, comm, scaling, is_backward_fp8):
        from te_recipes import recipe_of
        super().__init__(problem, comm)
        self.recipe, self.is_backward_fp8 = recipe_of(scaling), is_backward_fp8

    def within(self, work):
        # Read by every forward, which decides what the backward finds.
        os.environ["NVTE_FP8_DPA_BWD"] = str(int(self.is_backward_fp8))
        return super().within(work)

    def _forward(self):
        import transformer_engine.pytorch as te
        with te.fp8_autocast(enabled=True, fp8_recipe=self.recipe, fp8_group=dist.group.WORLD):
            return super()._forward()

    def answer(self):
        for _ in range(2):  # delayed scaling takes its scales from the call before
            self.within(lambda forward, both: both())
        return super().answer()


PEERS = {f"te_{comm}": comm for comm in ("p2p", "a2a", "all_gather")}
FP8_PEERS = {f"{peer}_fp8{suffix}": (comm, scaling)
             for suffix, scaling in (("", "delayed"), ("_current", "current")) for peer, comm in PEERS.items()}


def ways_to_ask(peer, problem):
    """[(how it is made, note)]; in FP8 the second one has its backward in bf16, because the ring's in FP8 loses shares of dk and dv."""
    if peer in PEERS:
        return [(lambda: TransformerEngine(problem, PEERS[peer]), "")]
    return [(lambda: TransformerEngineFp8(problem, *FP8_PEERS[peer], True), ""),
            (lambda: TransformerEngineFp8(problem, *FP8_PEERS[peer], False), "its backward in bf16 (NVTE_FP8_DPA_BWD=0)")]
