"""Scenario files of one batch spread over GPUs, one for each way of ours to do it."""
import pathlib
import random
import re

LAYOUTS = dict.fromkeys(("p2p", "a2a", "all_gather", "a2a+p2p", "group_cast", "double_ring", "mesh", "token_ring"), "dual_chunk")
TWO_LEVELS = ("a2a+p2p", "double_ring", "mesh")  # with two GPUs, or an odd number, one of the levels has one rank alone
# A packed batch leaves group_cast the layout that was made for it, in chunks as `cpscope compare` recommends them.
PACKED_LAYOUTS = {**LAYOUTS, "group_cast": "lpt_local"}
DISPATCH_CHUNK = 1024  # tokens, of lpt_local
DOCUMENT = 'schema = 1\ntitle = "{name}"\nquestion = "How fast, and is the transfer hidden?"\n' \
    '[attention]\nheads = {heads}\nkv_heads = {kv_heads}\nhead_dim = 128\nattn_mask_type = "{mask}"\n' \
    '[batch]\nqkv_format = "thd"\nlengths = {lengths}\n' \
    '[parallel]\ncp_size = {gpus}\ncp_comm_type = "{way}"\nlayout = "{layout}"\n{chunk}[numerics]\ndtype = "{dtype}"\n'


def lognormal_lengths(tokens, mu=7.8, sigma=1.06, seed=7):
    """Documents whose lengths are lognormal, the last one cut so that they are `tokens` together."""
    draw, lengths = random.Random(seed), []
    while (left := tokens - sum(lengths)) > 0:
        lengths.append(min(left, max(1, round(draw.lognormvariate(mu, sigma)))))
    return lengths


def obstacle(way, gpus, heads=32):
    """Why so many GPUs are not given a way; nothing where they are."""
    if way == "a2a" and heads % gpus:
        return f"{heads} heads do not divide among {gpus} GPUs"
    if way in TWO_LEVELS and (gpus < 4 or gpus % 2):
        return f"{way} needs an even number of GPUs, four or more: {gpus} here"
    return ""


def write_scenarios(folder, gpus, names, ways, heads=32):
    """{name: {way: file}} of names such as causal_016k_kv32, packed_128k_kv08 and fp8_causal_032k_kv32: mask and tokens, KV heads; in the
    order of the files' names."""
    written = {}
    for name in sorted(set(names), key=lambda name: name + "_"):
        kind, tokens, kv_heads, dtype = parse_name(name)
        lengths = [tokens] if kind == "causal" else lognormal_lengths(tokens)
        layouts = LAYOUTS if kind == "causal" else PACKED_LAYOUTS
        for way in sorted((way for way in set(ways) if not obstacle(way, gpus, heads)), key=lambda way: way + "."):
            file = pathlib.Path(folder) / f"{name}_{way}.toml"
            file.write_text(DOCUMENT.format(name=file.stem, heads=heads, kv_heads=kv_heads, lengths=lengths, gpus=gpus, way=way, dtype=dtype,
                                            mask="causal" if kind == "causal" else "padding_causal", layout=layouts[way],
                                            chunk=f"dispatch_chunk = {DISPATCH_CHUNK}\n" if layouts[way] == "lpt_local" else ""))
            written.setdefault(name, {})[way] = file
    return written


def parse_name(name):
    """("causal" | "packed", tokens, kv heads, "bf16" | "fp8") of such a name; ValueError says what one looks like."""
    dtype, rest = ("fp8", name.removeprefix("fp8_")) if name.startswith("fp8_") else ("bf16", name)
    match = re.fullmatch(r"(causal|packed)_0*([1-9][0-9]*)k_kv0*([1-9][0-9]*)", rest)
    if not match:
        raise ValueError(f"no such shape: {name}; causal_016k_kv32 is one, packed_128k_kv08 and fp8_causal_032k_kv32 are others")
    return match[1], 1024 * int(match[2]), int(match[3]), dtype
