"""One rank of a real run: a packed batch on two processes, whose attention plain torch computes; then README's lines.

    ring_of_two.py RANK RENDEZVOUS FIVE_LINES

Prints what the lines print, for a right answer and then for one in which rank 1 has two tokens exchanged.
"""
import sys

import numpy as np
import torch
import torch.distributed as dist

RANK, RENDEZVOUS, FIVE_LINES = int(sys.argv[1]), sys.argv[2], sys.argv[3]
HEADS, KV_HEADS, LANES = 16, 4, 64
dist.init_process_group("gloo", init_method=f"file://{RENDEZVOUS}", rank=RANK, world_size=2)

cu_seqlens = torch.tensor([0, 21, 21, 34], dtype=torch.int32)
cu_seqlens_padded = torch.tensor([0, 24, 28, 44], dtype=torch.int32)
generator = torch.Generator().manual_seed(11)
tensors = {name: torch.randn(44, heads, LANES, generator=generator).to(torch.bfloat16)
           for name, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS))}
whole = torch.zeros(44, HEADS, LANES)
for slot, first, last in zip(cu_seqlens_padded, cu_seqlens, cu_seqlens[1:]):
    rows = slice(int(slot), int(slot) + int(last - first))
    q, k, v = (tensor[rows].float().transpose(0, 1) for tensor in tensors.values())
    k, v = (tensor.repeat_interleave(HEADS // KV_HEADS, 0) for tensor in (k, v))
    hidden = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).triu(1)
    weights = (q @ k.transpose(1, 2) / LANES ** 0.5).masked_fill(hidden, -torch.inf).softmax(-1)
    whole[rows] = (weights @ v).transpose(0, 1)

# TransformerEngine's cut: every slot in four chunks, of which rank r has chunks r and 3 - r.
mine = np.concatenate([np.arange(begin + chunk * (end - begin) // 4, begin + (chunk + 1) * (end - begin) // 4)
                       for begin, end in zip(cu_seqlens_padded.tolist(), cu_seqlens_padded[1:].tolist())
                       for chunk in (RANK, 3 - RANK)])
q, k, v = (tensors[name][mine].requires_grad_() for name in "qkv")
out = whole[mine].to(torch.bfloat16).flatten(1)  # as TransformerEngine gives it: [tokens, heads * lanes]
cp_group = None
exec(FIVE_LINES)
print("-- exchanged")
if RANK == 1:
    out[[2, 3]] = out[[3, 2]]
exec(FIVE_LINES)
dist.destroy_process_group()
