"""PyTorch's own context parallelism on the GPUs of this host, graded by the Python package.

    torchrun --nproc-per-node GPUS tests/gpu/context_parallel.py

Causal attention in bf16, forward and backward, in both ways that PyTorch moves keys and values. Passes when each is
graded right; and wrong once two ranks' results have changed places, or when attention was called by a name that was
imported before: PyTorch replaces the function in its module, so that such a call stays on one rank, without a word.
Process 0 prints the grades.
"""
import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import cpscope

try:
    from torch.distributed.tensor.experimental._context_parallel._attention import set_rotate_method
except ImportError:
    from torch.distributed.tensor.experimental._attention import set_rotate_method

LENGTH, HEADS, LANES = 4096, 16, 64


def attend(mesh, scenario, attention):
    """Every rank's tensors, [1, head, local token, lane]; `attention` is called inside the parallel region."""
    whole = [scenario.inputs(torch=True)[name].view(1, LENGTH, HEADS, LANES).transpose(1, 2).contiguous().cuda()
             for name in ("q", "k", "v", "d_out")]
    with context_parallel(mesh, buffers=whole, buffer_seq_dims=[2] * 4):
        q, k, v, d_out = (tensor.clone() for tensor in whole)
        for tensor in (q, k, v):
            tensor.requires_grad_()
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            out = attention(q, k, v, is_causal=True)
            out.backward(d_out)
        return cpscope.gather(None, q=q, k=k, v=v, out=out, d_out=d_out, dq=q.grad, dk=k.grad, dv=v.grad)


def main():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    ranks = int(os.environ["WORLD_SIZE"])
    mesh = init_device_mesh("cuda", (ranks,), mesh_dim_names=("cp",))
    scenario = cpscope.Scenario.of(heads=HEADS, head_dim=LANES, batch_size=1, seqlen=LENGTH, qkv_format="bshd",
                                   cp_size=ranks)
    failures = 0
    for method in ("allgather", "alltoall"):
        set_rotate_method(method)
        tensors = attend(mesh, scenario, lambda *a, **k: functional.scaled_dot_product_attention(*a, **k))
        local = attend(mesh, scenario, scaled_dot_product_attention)
        if dist.get_rank() != 0:
            continue
        right, alone = (scenario.grade(given, format="bhsd") for given in (tensors, local))
        tensors[0]["out"], tensors[1]["out"] = tensors[1]["out"], tensors[0]["out"]
        wrong = scenario.grade(tensors, format="bhsd")
        print(f"torch {torch.__version__}, {ranks} x {torch.cuda.get_device_name()}, {method}\n{right}\n"
              f"ranks 0 and 1 exchanged: {'PASS' if wrong else 'FAIL'}, {wrong.hints}\n"
              f"called by an imported name: {'PASS' if alone else 'FAIL'}", flush=True)
        failures += (not right) + bool(wrong) + bool(alone)
    dist.barrier()
    dist.destroy_process_group()
    return failures


if __name__ == "__main__":
    sys.exit(main())
