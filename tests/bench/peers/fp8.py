#!/usr/bin/env python3
"""Attention in FP8, ours, ours in bf16, and that of FlashAttention-3 and of cuDNN through TransformerEngine, in turns on one GPU.
Started by tests/bench/run fp8.

FlashAttention-3 is given codes and has no backward; ours and TransformerEngine's calls begin with inputs in bf16, so that they make the
codes too. `given_codes` is ours without the time of that. Peers are judged once: the output may differ from exact attention of the last
head by 10 % of its norm. --out gets fp8.json (every sample) and fp8.txt.
"""
import argparse
import json
import os
import pathlib
import statistics
import sys

import figures
import report
from shapes import Shape
from turns import TurnError, Turns

ROOT = pathlib.Path(__file__).resolve().parents[3]
PEERS = ("fa3", "te")
PASSES = figures.PASSES
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
    return {"forward": forward}


def ask_te(shape, q, k, v):
    import torch
    import transformer_engine.pytorch as te
    from te_recipes import recipe_of
    attention = te.DotProductAttention(shape.heads, shape.dim_qk, num_gqa_groups=shape.kv_heads, attention_dropout=0.0, qkv_format="bshd",
                                       attn_mask_type="causal" if shape.is_causal else "no_mask").cuda()
    recipe = recipe_of("delayed")
    leaves = [tensor.detach().clone().requires_grad_() for tensor in (q, k, v)]
    d_out = torch.randn_like(q).flatten(2)

    def forward(of=(q, k, v)):
        with te.fp8_autocast(enabled=True, fp8_recipe=recipe):
            return attention(*of).view(q.shape)

    def both():
        return torch.autograd.grad(forward(leaves).view(d_out.shape), leaves, d_out)
    for _ in range(3):  # delayed scaling takes its scales from the call before
        both()
    return {"forward": forward, "both": both}


ASK = {"fa3": ask_fa3, "te": ask_te}


def time_passes(calls, watch, repeats):
    """{pass: milliseconds of each repeat}; a backward is what both passes take less the forward's median."""
    times = {name: watch.time(call, repeats) for name, call in calls.items()}
    if "both" in times:
        forward = statistics.median(times["forward"])
        times["backward"] = [ms - forward for ms in times.pop("both")]
    return times


def of_ours(row, with_casts=True):
    """{pass: milliseconds} of a row of cpscope bench; pieces are medians of its repeats."""
    return {name: [row[f"{name}_kernel_ms"] - (0 if with_casts else row[f"{name}_cast_ms"])]
            for name in PASSES if row.get(f"{name}_kernel_ms")}


def measure(file, ours, plain, options, watch):
    """The row of one shape. What a peer cannot do is a reason in it."""
    import torch
    shape = Shape(file)
    q, k, v = draw(shape)
    calls, systems = {}, {"cpscope": {}, "given_codes": {}, "bf16": {}}
    for peer in options.peers.split(","):
        try:
            call = ASK[peer](shape, q, k, v)
            with torch.no_grad():
                error = error_of(shape, call["forward"](), q, k, v)
            if not error < 0.1:
                raise ValueError(f"its output differs by {error:.3g}")
            calls[peer], systems[peer] = call, {"error": error}
        except Exception as error:
            systems[peer] = {"reason": " ".join(str(error).split())[:300]}
    samples = {}  # {system: {pass: [turn][repeat]}}

    def note(system, times):
        for name, repeats in times.items():
            samples.setdefault(system, {}).setdefault(name, []).append(repeats)
    try:
        for _ in range(options.turns):
            turn = ours.turn(file)
            note("cpscope", of_ours(turn))
            note("given_codes", of_ours(turn, with_casts=False))
            note("bf16", of_ours(plain.turn(sibling(file))))
            for peer, call in calls.items():
                note(peer, time_passes(call, watch, options.repeats))
    except TurnError as error:
        systems["cpscope"]["reason"] = str(error)
    mine, row = samples.get("cpscope", {}), {"shape": shape.name, "systems": systems, "ratios": {}}
    for system, passes in samples.items():
        for name, turns in passes.items():
            systems[system][name] = figures.figure(turns, shape.flops(name))
            if system in ("cpscope", "given_codes"):
                continue
            fair = samples["given_codes"] if system == "fa3" else mine
            if name in fair:
                row["ratios"].setdefault(name, {})[system] = figures.ratio(fair[name], turns)
    return row


def sibling(file):
    """The same shape in bf16, of tests/bench/speed."""
    return str(ROOT / "tests/bench/speed" / (pathlib.Path(file).stem.removesuffix("_mxfp8") + ".toml"))


def table(document, peers):
    others = ("bf16", *peers)
    lines = [f"{document['subject']}: {document['device']}, driver {document['driver']}, torch {document['torch']}, {document['date']}",
             "TFLOP/s; then how many times as fast as ours in bf16, and as each peer, we are", "",
             " | ".join(["shape", "pass", "cpscope", "given_codes", *others, *(f"/{name}" for name in others)])]
    for row in document["shapes"]:
        systems = row["systems"]
        for name in PASSES:
            if name in systems["cpscope"]:
                cells = [f"{systems[system][name]['tflops']:.0f}" if name in systems.get(system, {}) else "-"
                         for system in ("cpscope", "given_codes", *others)]
                given = row["ratios"].get(name, {})
                cells += [f"{given[system]['median']:.2f}" if system in given else "-" for system in others]
                lines.append(" | ".join([row["shape"], name, *cells]))
        lines += [f"  {system}: {given['reason']}" for system, given in systems.items() if "reason" in given]
    return "\n".join(lines) + "\n"


def main():
    options = options_of(sys.argv[1:])
    peers = options.peers.split(",")
    options.out.mkdir(parents=True, exist_ok=True)
    files = sorted((ROOT / "tests/bench/fp8").glob("*.toml"))
    ours = Turns(options.program, files, "cuda", options.repeats, options.out / "cpscope.log")
    ours.start()
    from peers import Stopwatch
    document = report.heading("FP8 on one GPU, kernels alone", ROOT)
    watch = Stopwatch()
    document["shapes"] = []
    for file in ours.files:
        plain = Turns(options.program, [sibling(file)], "cuda", options.repeats, options.out / "bf16.log")
        document["shapes"].append(measure(file, ours, plain, options, watch))
        plain.stop()
        ours.next()
    ours.stop()
    (options.out / "fp8.json").write_text(json.dumps(document, indent=1) + "\n")
    (options.out / "fp8.txt").write_text(table(document, peers))
    print(table(document, peers), flush=True)
    return 0 if all("forward" in row["systems"]["cpscope"] for row in document["shapes"]) else 1


if __name__ == "__main__":
    sys.exit(main())
