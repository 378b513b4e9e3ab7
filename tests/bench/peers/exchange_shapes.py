"""Scenario files of one batch spread over GPUs, one for each way of ours to do it."""
import pathlib
import random

LAYOUTS = {"p2p": "dual_chunk", "a2a": "dual_chunk", "all_gather": "dual_chunk", "a2a+p2p": "dual_chunk",
           "group_cast": "dual_chunk"}
# A packed batch leaves group_cast the layout that was made for it, in chunks as `cpscope compare` recommends them.
PACKED_LAYOUTS = {**LAYOUTS, "group_cast": "lpt_local"}
DISPATCH_CHUNK = 1024  # tokens, of lpt_local
DOCUMENT = 'schema = 1\ntitle = "{name}"\nquestion = "How fast, and is the transfer hidden?"\n' \
    '[attention]\nheads = {heads}\nkv_heads = {kv_heads}\nhead_dim = 128\nattn_mask_type = "{mask}"\n' \
    '[batch]\nqkv_format = "thd"\nlengths = {lengths}\n' \
    '[parallel]\ncp_size = {gpus}\ncp_comm_type = "{way}"\nlayout = "{layout}"\n{chunk}[numerics]\ndtype = "bf16"\n'


def lognormal_lengths(tokens, mu=7.8, sigma=1.06, seed=7):
    """Documents whose lengths are lognormal, the last one cut so that they are `tokens` together."""
    draw, lengths = random.Random(seed), []
    while (left := tokens - sum(lengths)) > 0:
        lengths.append(min(left, max(1, round(draw.lognormvariate(mu, sigma)))))
    return lengths


def ways_for(gpus, heads, ways):
    """Those of the ways that so many GPUs can do."""
    return [way for way in ways if (way != "a2a" or heads % gpus == 0) and (way != "a2a+p2p" or (gpus >= 4 and gpus % 2 == 0))]


def write_scenarios(folder, gpus, names, ways, heads=32):
    """{name: {way: file}} of names such as causal_016k_kv32 and packed_128k_kv08: mask and tokens, KV heads. Names of files
    sort so that the ways of a batch stand together."""
    written = {}
    for name in names:
        kind, tokens, kv_heads = parse_name(name)
        lengths = [tokens] if kind == "causal" else lognormal_lengths(tokens)
        layouts = LAYOUTS if kind == "causal" else PACKED_LAYOUTS
        for way in ways_for(gpus, heads, ways):
            file = pathlib.Path(folder) / f"{name}_{way}.toml"
            file.write_text(DOCUMENT.format(name=file.stem, heads=heads, kv_heads=kv_heads, lengths=lengths, gpus=gpus, way=way,
                                            mask="causal" if kind == "causal" else "padding_causal", layout=layouts[way],
                                            chunk=f"dispatch_chunk = {DISPATCH_CHUNK}\n" if layouts[way] == "lpt_local" else ""))
            written.setdefault(name, {})[way] = file
    return written


def parse_name(name):
    """("causal" | "packed", tokens, kv heads) of such a name; ValueError says what one looks like."""
    parts = name.split("_")
    try:
        kind, tokens, kv_heads = parts[0], 1024 * int(parts[1].removesuffix("k")), int(parts[2].removeprefix("kv"))
        if kind in ("causal", "packed") and len(parts) == 3 and tokens > 0 and kv_heads > 0:
            return kind, tokens, kv_heads
    except (IndexError, ValueError):
        pass
    raise ValueError(f"no such shape: {name}; causal_016k_kv32 is one, packed_128k_kv08 another")
