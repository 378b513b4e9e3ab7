#!/usr/bin/env python3
"""The forward in FP8 (E4M3, one scale a tensor), ours and that of FlashAttention-3 and of cuDNN through TransformerEngine, in turns on one
GPU. Started by tests/bench/run fp8.

FlashAttention-3 is given codes; ours and TransformerEngine's calls begin with inputs in bf16, so that they make the codes too. Peers are
judged once: the output may differ from exact attention of the last head by 10 % of its norm. --out gets fp8.json (every sample) and fp8.txt.
"""
import argparse
import json
import os
import pathlib
import sys

import figures
import report
from shapes import Shape
from turns import TurnError, Turns

ROOT = pathlib.Path(__file__).resolve().parents[3]
PEERS = ("fa3", "te")
ROWS = 256  # of the last head that are judged, from the end


def options_of(words):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True, type=pathlib.Path, help="cpscope, built with CUDA")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="folder of the results")
    parser.add_argument("--peers", default=",".join(PEERS), help="only these")
    parser.add_argument("--turns", type=int, default=3, help="of each system and shape")
    parser.add_argument("--repeats", type=int, default=9, help="in a turn")
    return parser.parse_args(words)


def draw(shape):
    """q, k and v, bf16 [1, tokens, heads, head_dim]."""
    import torch
    generator = torch.Generator("cuda").manual_seed(1)
    return [torch.randn((1, shape.tokens, heads, shape.dim_qk), generator=generator, device="cuda", dtype=torch.bfloat16)
            for heads in (shape.heads, shape.kv_heads, shape.kv_heads)]


def error_of(shape, out, q, k, v):
    """Of the last rows of the last head, relative to their norm."""
    import torch
    some, keys, values = (tensor[0, :, -1].double() for tensor in (q, k, v))
    scores = some[-ROWS:] @ keys.T * shape.dim_qk ** -0.5
    if shape.is_causal:
        hidden = torch.ones_like(scores, dtype=torch.bool).triu(shape.tokens - ROWS + 1)
        scores.masked_fill_(hidden, float("-inf"))
    exact = scores.softmax(-1) @ values
    return ((out[0, -ROWS:, -1].double() - exact).norm() / exact.norm()).item()


def ask_fa3(shape, q, k, v):
    import torch
    torch.ops.load_library(os.environ["CPSCOPE_FA3"])
    codes, scales = [], []
    for tensor in (q, k, v):
        scale = tensor.abs().max().float() / 448
        codes.append((tensor / scale).to(torch.float8_e4m3fn))
        scales.append(scale.expand(1, tensor.shape[2]).contiguous())
    nothing = [None] * 17

    def forward():
        return torch.ops.flash_attn_3.fwd(*codes, *nothing, *scales, shape.dim_qk ** -0.5, shape.is_causal, -1, -1, 0, 0.0, True, None, 1,
                                          None, 0)[0]
    return forward


def ask_te(shape, q, k, v):
    import transformer_engine.pytorch as te
    from transformer_engine.common.recipe import DelayedScaling, Format
    attention = te.DotProductAttention(shape.heads, shape.dim_qk, num_gqa_groups=shape.kv_heads, attention_dropout=0.0, qkv_format="bshd",
                                       attn_mask_type="causal" if shape.is_causal else "no_mask").cuda()
    recipe = DelayedScaling(fp8_format=Format.HYBRID, amax_history_len=1, amax_compute_algo="most_recent", fp8_dpa=True)

    def forward():
        with te.fp8_autocast(enabled=True, fp8_recipe=recipe):
            return attention(q, k, v).view(q.shape)
    for _ in range(3):  # delayed scaling takes its scales from the call before
        forward()
    return forward


ASK = {"fa3": ask_fa3, "te": ask_te}


def measure(file, ours, options, watch):
    """The row of one shape. What a peer cannot do is a reason in it."""
    import torch
    shape = Shape(file)
    q, k, v = draw(shape)
    flops = shape.flops("forward")
    calls, row = {}, {"shape": shape.name, "systems": {}}
    for peer in options.peers.split(","):
        try:
            with torch.no_grad():
                call = ASK[peer](shape, q, k, v)
                error = error_of(shape, call(), q, k, v)
            if not error < 0.1:
                raise ValueError(f"its output differs by {error:.3g}")
            calls[peer], row["systems"][peer] = call, {"error": error}
        except Exception as error:
            row["systems"][peer] = {"reason": " ".join(str(error).split())[:300]}
    samples = {name: [] for name in ("cpscope", *calls)}
    try:
        ours.ready()
        for _ in range(options.turns):
            samples["cpscope"].append([ours.turn(file)["forward_kernel_ms"]])
            with torch.no_grad():
                for name, call in calls.items():
                    samples[name].append(watch.time(call, options.repeats))
    except TurnError as error:
        row["systems"]["cpscope"] = {"reason": str(error)}
    for name, turns in samples.items():
        if turns:
            row["systems"].setdefault(name, {}).update(figures.figure(turns, flops))
    if samples["cpscope"]:
        row["ratios"] = {name: figures.ratio(samples["cpscope"], samples[name]) for name in calls}
    return row


def table(document, peers):
    lines = [f"{document['subject']}: {document['device']}, driver {document['driver']}, torch {document['torch']}, {document['date']}",
             "TFLOP/s; then how many times as fast as each peer we are", "",
             " | ".join(["shape", "cpscope", *peers, *(f"/{peer}" for peer in peers)])]
    for row in document["shapes"]:
        systems, ratios = row["systems"], row.get("ratios", {})
        cells = [f"{systems[name]['tflops']:.0f}" if "tflops" in systems.get(name, {}) else "-" for name in ("cpscope", *peers)]
        cells += [f"{ratios[peer]['median']:.2f}" if peer in ratios else "-" for peer in peers]
        lines.append(" | ".join([row["shape"], *cells]))
        lines += [f"  {name}: {given['reason']}" for name, given in systems.items() if "reason" in given]
    return "\n".join(lines) + "\n"


def main():
    options = options_of(sys.argv[1:])
    peers = options.peers.split(",")
    options.out.mkdir(parents=True, exist_ok=True)
    ours = Turns(options.program, sorted((ROOT / "tests/bench/fp8").glob("*.toml")), "cuda", options.repeats, options.out / "cpscope.log")
    ours.start()
    from peers import Stopwatch
    document = report.heading("FP8 forward on one GPU, kernels alone", ROOT)
    watch = Stopwatch()
    document["shapes"] = []
    for file in map(pathlib.Path, ours.files):
        document["shapes"].append(measure(file, ours, options, watch))
        ours.next()
    ours.stop()
    (options.out / "fp8.json").write_text(json.dumps(document, indent=1) + "\n")
    (options.out / "fp8.txt").write_text(table(document, peers))
    print(table(document, peers), flush=True)
    return 0 if all("median_ms" in row["systems"].get("cpscope", {}) for row in document["shapes"]) else 1


if __name__ == "__main__":
    sys.exit(main())
