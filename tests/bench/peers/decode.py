#!/usr/bin/env python3
"""The forward of decode steps, ours and that of FlashAttention-3 and FlashInfer, in turns on one GPU; a copy of the same
bytes says what memory delivers. Started by tests/bench/run decode.

Every peer is judged once: its output may differ from exact attention of two KV heads by 2 % of the largest value, with keys
and values of 8 bits by 5 %; these are drawn, and exact attention is that of their values. FlashAttention-3 then takes q of 8
bits too, as we do; FlashInfer takes q of bf16.
--out gets decode.json (every sample) and decode.txt, anew after each shape.
"""
import argparse
import fnmatch
import json
import os
import pathlib
import statistics
import sys
import tomllib

import figures
import report
from turns import TurnError, Turns

ROOT = pathlib.Path(__file__).resolve().parents[3]
PEERS = ("fa3", "flashinfer")
WORKSPACE_BYTES = 256 << 20
PAGE = 16  # keys of a page of FlashInfer's cache


def options_of(words):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True, type=pathlib.Path, help="cpscope, built with CUDA")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="folder of the results")
    parser.add_argument("--shapes", default="*", help="only these of tests/bench/decode, as patterns with commas")
    parser.add_argument("--peers", default=",".join(PEERS), help="only these")
    parser.add_argument("--turns", type=int, default=3, help="of each system and shape")
    parser.add_argument("--repeats", type=int, default=9, help="in a turn")
    return parser.parse_args(words)


class Requests:
    """A batch of requests with as many query rows and as many keys each."""

    def __init__(self, path):
        scenario = tomllib.loads(path.read_text())
        attention, batch = scenario["attention"], scenario["batch"]
        self.name = path.stem
        self.heads, self.kv_heads = attention["heads"], attention["kv_heads"]
        self.latent_dim = attention.get("latent_dim", 0)
        self.dim = attention["head_dim_qk" if self.latent_dim else "head_dim"]
        self.count = len(batch["lengths"])
        self.rows, self.keys = batch["lengths"][0], batch["kv_lengths"][0]
        if set(batch["lengths"]) != {self.rows} or set(batch["kv_lengths"]) != {self.keys}:
            raise ValueError(f"{self.name}: the peers are asked for requests of one length")
        self.is_fp8 = scenario["numerics"]["dtype"] == "fp8"
        self.kv_bytes = (1 if self.latent_dim else 2) * (1 if self.is_fp8 else 2) * self.count * self.keys * self.kv_heads * self.dim

    def draw(self):
        import torch
        generator = torch.Generator("cuda").manual_seed(1)
        def rows(count, heads):
            shape = (self.count, count, heads, self.dim)
            drawn = torch.randn(shape, generator=generator, device="cuda", dtype=torch.bfloat16)
            return drawn.to(torch.float8_e4m3fn) if self.is_fp8 else drawn
        q, k = rows(self.rows, self.heads), rows(self.keys, self.kv_heads)
        return q, k, k[..., :self.latent_dim] if self.latent_dim else rows(self.keys, self.kv_heads)

    def error(self, out, q, k, v):
        """The largest difference from exact attention of the first and the last KV head, relative to the largest value."""
        import torch
        group = self.heads // self.kv_heads
        worst, largest = 0.0, 0.0
        for request in {0, self.count - 1}:
            for head in {0, self.kv_heads - 1}:
                some = slice(head * group, (head + 1) * group)
                scores = torch.einsum("rhd,kd->hrk", q[request, :, some].double(), k[request, :, head].double())
                scores *= self.dim ** -0.5
                limit = self.keys - self.rows + torch.arange(self.rows, device="cuda")
                hidden = torch.arange(self.keys, device="cuda")[None, :] > limit[:, None]
                exact = torch.einsum("hrk,kd->rhd", scores.masked_fill(hidden, float("-inf")).softmax(-1),
                                     v[request, :, head].double())
                worst = max(worst, (out[request, :, some].double() - exact).abs().max().item())
                largest = max(largest, exact.abs().max().item())
        return worst / largest


def ask_fa3(requests, q, k, v):
    import torch
    torch.ops.load_library(os.environ["CPSCOPE_FA3"])
    scale, others = requests.dim ** -0.5, [None] * 20
    if requests.latent_dim:  # the logits of V's elements come from a second q, the others are k
        q, others[2] = [part.contiguous() for part in q.split([requests.latent_dim, requests.dim - requests.latent_dim], -1)][::-1]
        k, v = k[..., requests.latent_dim:].contiguous(), v.contiguous()

    def forward():
        # num_splits 0: its own choice; rows of several heads in a tile (pack_gqa).
        return torch.ops.flash_attn_3.fwd(q, k, v, *others, scale, requests.rows > 1, -1, -1, 0,
                                          0.0, True, None, 0, True, 0)[0]
    return forward


def ask_flashinfer(requests, q, k, v):
    import flashinfer
    import torch
    pages = requests.keys // PAGE
    indptr = torch.arange(requests.count + 1, dtype=torch.int32, device="cuda") * pages
    indices = torch.arange(requests.count * pages, dtype=torch.int32, device="cuda")
    last = torch.full((requests.count,), PAGE, dtype=torch.int32, device="cuda")
    workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
    if requests.latent_dim:
        return ask_flashinfer_latent(requests, q, k, indptr, indices, workspace)
    cache = tuple(t.view(-1, PAGE, requests.kv_heads, requests.dim) for t in (k, v))
    sizes = (requests.heads, requests.kv_heads, requests.dim, PAGE)
    kinds = {"q_data_type": torch.bfloat16, "kv_data_type": k.dtype}
    if requests.rows == 1:
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=True)
        wrapper.plan(indptr, indices, last, *sizes, **kinds)
    else:
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")
        starts = torch.arange(requests.count + 1, dtype=torch.int32, device="cuda") * requests.rows
        wrapper.plan(starts, indptr, indices, last, *sizes, causal=True, **kinds)
    flat = q.view(-1, requests.heads, requests.dim).to(torch.bfloat16)
    return lambda: wrapper.run(flat, cache).view_as(q)


def ask_flashinfer_latent(requests, q, k, indptr, indices, workspace):
    import flashinfer
    import torch
    dim, rest = requests.latent_dim, requests.dim - requests.latent_dim
    wrapper = flashinfer.mla.BatchMLAPagedAttentionWrapper(workspace, backend="fa3")
    starts = torch.arange(requests.count + 1, dtype=torch.int32, device="cuda") * requests.rows
    lengths = torch.full((requests.count,), requests.keys, dtype=torch.int32, device="cuda")
    wrapper.plan(starts, indptr, indices, lengths, requests.heads, dim, rest, PAGE, requests.rows > 1, requests.dim ** -0.5,
                 torch.bfloat16, torch.bfloat16)
    parts = [part.contiguous().view(-1, requests.heads, part.shape[-1]) for part in q.split([dim, rest], -1)]
    cache = [part.contiguous().view(-1, PAGE, part.shape[-1]) for part in k.split([dim, rest], -1)]
    return lambda: wrapper.run(*parts, *cache).view(requests.count, requests.rows, requests.heads, dim)


ASK = {"fa3": ask_fa3, "flashinfer": ask_flashinfer}


def measure(file, ours, options, watch):
    """The row of one shape. What a peer cannot do is a reason in it."""
    import torch
    requests = Requests(file)
    q, k, v = requests.draw()
    half = k if not requests.latent_dim else k.view(-1)[:k.numel() // 2]
    half = half.view(torch.bfloat16)  # copied as numbers of 16 bits also if they are of 8
    to = torch.empty_like(half)
    calls, row = {"copy": lambda: to.copy_(half)}, {"shape": requests.name, "kv_bytes": requests.kv_bytes, "systems": {}}
    for peer in options.peers.split(","):
        try:
            call = ASK[peer](requests, q, k, v)
            error = requests.error(call(), q, k, v)
            if not error < (0.05 if requests.is_fp8 else 0.02):
                raise ValueError(f"its output differs by {error:.3g} of the largest value")
            calls[peer] = call
            row["systems"][peer] = {"error": error}
        except Exception as error:
            row["systems"][peer] = {"reason": " ".join(str(error).split())[:300]}
    samples = {name: [] for name in ("cpscope", *calls)}
    try:
        ours.ready()
        for _ in range(options.turns):
            answer = ours.turn(file)
            samples["cpscope"].append([answer["forward_kernel_ms"]])
            row["kernels"] = sorted({step["kernels"] for step in answer["steps"]["forward"]})
            for name, call in calls.items():
                samples[name].append(watch.time(call, options.repeats))
    except TurnError as error:
        row["systems"]["cpscope"] = {"reason": str(error)}
    for name, turns in samples.items():
        if not turns:
            continue
        ms = statistics.median(figures.turn_times(turns))
        moved = requests.kv_bytes  # a copy reads and writes half of them each
        row["systems"].setdefault(name, {}).update({"median_ms": ms, "tb_per_s": moved / ms * 1e-9, "samples_ms": turns})
    if samples["cpscope"]:
        row["ratios"] = {name: figures.ratio(samples["cpscope"], turns) for name, turns in samples.items()
                         if name != "cpscope" and turns}
    return row


def table(document, peers):
    lines = [f"{document['subject']}: {document['device']}, driver {document['driver']}, torch {document['torch']}, "
             f"{document['date']}", "TB/s of K and V; then how many times as fast as a copy of as many bytes and as each peer we are",
             "", " | ".join(["shape", "GB", "cpscope", "copy", "/copy", *(f"/{peer}" for peer in peers)])]
    for row in document["shapes"]:
        systems, ratios = row["systems"], row.get("ratios", {})
        rate = lambda name: f"{systems[name]['tb_per_s']:.2f}" if "tb_per_s" in systems.get(name, {}) else "-"
        cells = [row["shape"], f"{row['kv_bytes'] * 1e-9:.2f}", rate("cpscope"), rate("copy")]
        cells += [f"{ratios[name]['median']:.2f}" if name in ratios else "-" for name in ("copy", *peers)]
        lines.append(" | ".join(cells))
        lines += [f"  {name}: {given['reason']}" for name, given in systems.items() if "reason" in given]
    return "\n".join(lines) + "\n"


def main():
    options = options_of(sys.argv[1:])
    peers = options.peers.split(",")
    files = [file for file in sorted((ROOT / "tests/bench/decode").glob("*.toml"))
             if any(fnmatch.fnmatch(file.stem, pattern) for pattern in options.shapes.split(","))]
    options.out.mkdir(parents=True, exist_ok=True)
    ours = Turns(options.program, files, "cuda", options.repeats, options.out / "cpscope.log")
    ours.start()
    from peers import Stopwatch
    document = report.heading("decode steps on one GPU, kernels alone", ROOT)
    watch = Stopwatch()
    document["shapes"] = []
    for file in map(pathlib.Path, ours.files):
        document["shapes"].append(measure(file, ours, options, watch))
        ours.next()
        (options.out / "decode.json").write_text(json.dumps(document, indent=1) + "\n")
        (options.out / "decode.txt").write_text(table(document, peers))
    ours.stop()
    print(table(document, peers), flush=True)
    return 0 if all("median_ms" in row["systems"].get("cpscope", {}) for row in document["shapes"]) else 1


if __name__ == "__main__":
    sys.exit(main())
