#!/usr/bin/env python3
"""Times the peers' attention kernels on the shapes of scenario files.

    python3 reference/python/attention_peers.py tests/bench/speed [--repeats 20]

Peers: PyTorch's SDPA with cuDNN and with FlashAttention-2, and varlen_attn (FlashAttention-2) for
packed documents. Inputs are random; times are medians of CUDA events, with the L2 cache flushed in
between. TFLOP/s count visible pairs alone: forward 2 (dim_qk + dim_v), backward 2 (3 dim_qk + 2 dim_v)
a pair and head, as `cpscope bench` counts them. One line a shape and peer; --json prints one document.
A peer that cannot do a shape says so instead of a number.
"""
import argparse
import json
import pathlib
import statistics
import tomllib

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

try:
    from torch.nn.attention.varlen import varlen_attn
except ImportError:
    varlen_attn = None


def time_of(call, repeats, flush):
    """Median milliseconds of `call`."""
    for _ in range(3):
        call()
    times = []
    for _ in range(repeats):
        flush.zero_()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


class Shape:
    def __init__(self, path):
        text = tomllib.loads(path.read_text())
        attention, batch = text["attention"], text["batch"]
        self.name = path.stem
        self.heads = attention["heads"]
        self.kv_heads = attention.get("kv_heads", self.heads)
        self.dim_qk = attention.get("head_dim_qk", attention.get("head_dim"))
        self.dim_v = attention.get("head_dim_v", self.dim_qk)
        self.is_causal = "causal" in attention.get("attn_mask_type", "causal")
        self.lengths = batch["lengths"]
        # Keys to the left and right that a query sees; -1: all of them.
        self.window = tuple(attention.get("window_size", (-1, 0 if self.is_causal else -1)))

    @property
    def pairs(self):
        left, right = (side if side >= 0 else max(self.lengths) for side in self.window)
        return sum(min(n - 1, i + right) - max(0, i - left) + 1 for n in self.lengths for i in range(n)) * self.heads

    def rates(self, forward_ms, backward_ms):
        forward = 2 * (self.dim_qk + self.dim_v) * self.pairs
        backward = 2 * (3 * self.dim_qk + 2 * self.dim_v) * self.pairs
        return forward / forward_ms * 1e-9, backward / backward_ms * 1e-9


def tensors(shape, layout):
    """q, k, v, d_out: [batch, heads, length, dim] or packed [tokens, heads, dim]."""
    def make(heads, dim):
        size = ((len(shape.lengths), heads, shape.lengths[0], dim) if layout == "dense"
                else (sum(shape.lengths), heads, dim))
        return torch.randn(size, device="cuda", dtype=torch.bfloat16)
    return [make(shape.heads, shape.dim_qk).requires_grad_(), make(shape.kv_heads, shape.dim_qk).requires_grad_(),
            make(shape.kv_heads, shape.dim_v).requires_grad_(), make(shape.heads, shape.dim_v)]


def dense(shape, backend):
    q, k, v, d_out = tensors(shape, "dense")
    is_gqa = shape.heads != shape.kv_heads

    def forward():
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(q, k, v, is_causal=shape.is_causal, enable_gqa=is_gqa)
    return forward, (q, k, v), d_out


def packed(shape):
    q, k, v, d_out = tensors(shape, "packed")
    offsets = torch.tensor([0, *torch.tensor(shape.lengths).cumsum(0).tolist()], device="cuda", dtype=torch.int32)
    longest = max(shape.lengths)
    if shape.heads != shape.kv_heads:  # varlen_attn takes grouped heads only where it says so
        repeat = shape.heads // shape.kv_heads

        def forward():
            return varlen_attn(q, k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1), offsets, offsets,
                               longest, longest, window_size=shape.window)
    else:
        def forward():
            return varlen_attn(q, k, v, offsets, offsets, longest, longest, window_size=shape.window)
    return forward, (q, k, v), d_out


def measure(shape, peer, repeats, flush):
    if peer == "varlen":
        if varlen_attn is None:
            raise RuntimeError("this PyTorch has no varlen_attn")
        forward, inputs, d_out = packed(shape)
    else:
        if len(set(shape.lengths)) != 1:
            raise RuntimeError("dense kernels do not take documents of several lengths")
        if shape.window[0] >= 0:
            raise RuntimeError("dense kernels are asked without a window alone")
        forward, inputs, d_out = dense(shape, {"cudnn": SDPBackend.CUDNN_ATTENTION,
                                               "flash2": SDPBackend.FLASH_ATTENTION}[peer])
    with torch.no_grad():
        forward_ms = time_of(forward, repeats, flush)
    out = forward()
    backward_ms = time_of(lambda: torch.autograd.grad(out, inputs, d_out, retain_graph=True), repeats, flush)
    return forward_ms, backward_ms


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", type=pathlib.Path)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    files = sorted(f for path in options.paths for f in (path.glob("*.toml") if path.is_dir() else [path]))
    flush = torch.empty(256 << 20, device="cuda", dtype=torch.uint8)
    rows = []
    for file in files:
        shape = Shape(file)
        for peer in ("cudnn", "flash2", "varlen"):
            row = {"shape": shape.name, "peer": peer}
            try:
                row["forward_ms"], row["backward_ms"] = measure(shape, peer, options.repeats, flush)
                row["forward_tflops"], row["backward_tflops"] = shape.rates(row["forward_ms"], row["backward_ms"])
                line = (f"{row['forward_ms']:9.3f} ms {row['backward_ms']:9.3f} ms "
                        f"{row['forward_tflops']:7.1f} {row['backward_tflops']:7.1f} TFLOP/s")
            except (RuntimeError, TypeError, ValueError) as error:
                row["reason"] = line = str(error).splitlines()[0][:100]
            rows.append(row)
            torch.cuda.empty_cache()
            if not options.json:
                print(f"{shape.name:<32} {peer:<7} {line}", flush=True)
    if options.json:
        print(json.dumps({"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}))


if __name__ == "__main__":
    main()
