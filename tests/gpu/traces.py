"""Traces of PyTorch's own context parallelism on the GPUs of this host, for `cpscope timeline --measured`.

    torchrun --nproc-per-node GPUS tests/gpu/traces.py FOLDER

Causal attention in bf16, forward and backward, of the batch of tests/records/torch_ring.toml, by PyTorch's ring. Each rank writes
FOLDER/torch_ring.rankR.json.gz: what torch.profiler saw of LAYERS repetitions, operators of tensors left out.
"""
import gzip
import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity, profile

try:
    from torch.distributed.tensor.experimental._context_parallel._attention import set_rotate_method
except ImportError:
    from torch.distributed.tensor.experimental._attention import set_rotate_method

LENGTH, HEADS, LANES, LAYERS = 32768, 16, 128, 3
#: Operators that stay: attention and communication. Everything of a GPU stays.
KEPT = ("attention", "nccl", "c10d", "record_param_comms")


def write_trace(profiler, path):
    """The profiler's trace without what no reader of it needs."""
    profiler.export_chrome_trace(str(path.with_suffix("")))
    document = json.loads(path.with_suffix("").read_text())
    path.with_suffix("").unlink()
    document["traceEvents"] = [event for event in document["traceEvents"]
                               if event.get("cat") not in ("cpu_op", "python_function", "ac2g", "fwdbwd", "Trace", "overhead")
                               or event.get("cat") == "cpu_op" and any(word in event["name"] for word in KEPT)]
    for name in ("host_name", "traceName", "deviceProperties", "hostname"):
        document.pop(name, None)
    with gzip.GzipFile(path, "wb", mtime=0) as file:
        file.write(json.dumps(document, separators=(",", ":")).encode())


def main():
    folder = Path(sys.argv[1])
    rank, ranks = int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(rank)
    mesh = init_device_mesh("cuda", (ranks,), mesh_dim_names=("cp",))
    set_rotate_method("alltoall")
    whole = [torch.randn(1, HEADS, LENGTH, LANES, device="cuda", dtype=torch.bfloat16) for _ in range(4)]
    with context_parallel(mesh, buffers=whole, buffer_seq_dims=[2] * 4):
        q, k, v, d_out = (tensor.clone() for tensor in whole)
        leaves = [tensor.requires_grad_() for tensor in (q, k, v)]

        def step():
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                functional.scaled_dot_product_attention(*leaves, is_causal=True).backward(d_out)
            torch.cuda.synchronize()

        for _ in range(3):
            step()
        dist.barrier()
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True) as profiler:
            for _ in range(LAYERS):
                step()
    write_trace(profiler, folder / f"torch_ring.rank{rank}.json.gz")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
