#!/usr/bin/env python3
"""A third opinion on cpscope records, in torch, that shares no code with the C++.

Reads records (safetensors, written by `cpscope run --record`), takes q, k, v, d_out, sink and bias from
them, builds slots and mask from the words of the scenario in their metadata, runs matmul and
softmax in fp64 with autograd, and compares out, lse, dq, dk, dv, max_logit, d_sink and dbias.

    torch_opinion.py --tolerance 1e-10 a.safetensors b.safetensors

A tensor passes when |seen - expected|2 <= tolerance * |expected|2, no single entry is off by more
than 10 * tolerance * max|expected|, infinities stand in the same places and nothing is NaN.
Exit: 0 all pass, 1 something differs, 2 a record cannot be read, 77 torch is not installed (skip).
Needs Python 3.11 (tomllib), numpy and torch; on Debian: apt-get install python3-torch.
"""

import argparse
import json
import math
import struct
import sys

try:
    import tomllib

    import numpy
    import torch
    torch.set_num_threads(1)  # threads that wait for one another starve other tests
except ImportError as missing:
    print(f"skipped: torch_opinion needs Python 3.11, numpy and torch: {missing}")
    sys.exit(77)


class CannotRead(Exception):
    """The record or its scenario says something that this script does not understand."""


def read_record(path):
    """Metadata and numpy fp64 tensors of a safetensors file: u64 header size, JSON, raw bytes."""
    with open(path, "rb") as file:
        (header_bytes,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(header_bytes))
        data = file.read()
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        raw = data[begin:end]
        if entry["dtype"] == "BF16":
            # bf16 is the upper half of an fp32.
            bits = numpy.frombuffer(raw, "<u2").astype("<u4") << 16
            values = bits.view("<f4")
        elif entry["dtype"] in ("F16", "F32", "F64"):
            codes = {"F16": "<f2", "F32": "<f4", "F64": "<f8"}
            values = numpy.frombuffer(raw, codes[entry["dtype"]])
        else:
            raise CannotRead(f"tensor {name} has an unknown dtype: {entry['dtype']}")
        tensors[name] = values.astype("float64").reshape(entry["shape"])
    return metadata, tensors


def fill_attention(scenario):
    """[attention] with the contract's defaults."""
    given = scenario["attention"]
    filled = {
        "attn_mask_type": "causal",
        "slices": [],
        "window_size": [-1, -1],
        "chunk_size": 0,
        "softmax_scale": 0.0,
        "softcap": 0.0,
        "softmax_type": "vanilla",
        "rope_theta": 0.0,
        "rope_q_position": "auto",
        "alibi": False,
        "bias": "none",
        "dropout": 0.0,
        "kv_heads": given["heads"],
    }
    filled.update(given)
    if "head_dim" in given:
        filled.setdefault("head_dim_qk", given["head_dim"])
        filled.setdefault("head_dim_v", given["head_dim"])
    if filled["softmax_scale"] == 0.0:
        filled["softmax_scale"] = 1.0 / math.sqrt(filled["head_dim_qk"])
    return filled


def slot_multiple(batch):
    """What slots that nobody gave are rounded up to."""
    is_given = "slots" in batch or ("lengths" in batch and "seqlen" in batch)
    return 1 if is_given else batch.get("slot_multiple", 1)


def fill_lengths(batch):
    """Valid lengths and unrounded slots of queries and keys."""
    if "generator" in batch:
        raise CannotRead("lengths come from a generator: give --layout of `cpscope layout --json`")
    is_packed = batch.get("qkv_format", "thd") == "thd"
    if "lengths" in batch:
        lengths = list(batch["lengths"])
        kv_lengths = list(batch.get("kv_lengths", lengths))
    else:
        lengths = [batch["seqlen"]] * batch["batch_size"]
        kv_lengths = list(
            batch.get("kv_lengths", [batch.get("kv_seqlen", batch["seqlen"])] * len(lengths))
        )

    multiple = slot_multiple(batch)

    def default_slots(valid, seqlen):
        if is_packed:
            return [round_up(length, multiple) for length in valid]
        longest = max(valid, default=0) if seqlen is None else seqlen
        return [round_up(longest, multiple)] * len(valid)

    slots = list(batch.get("slots", default_slots(lengths, batch.get("seqlen"))))
    if "kv_slots" in batch:
        kv_slots = list(batch["kv_slots"])
    elif kv_lengths == lengths and (is_packed or "kv_seqlen" not in batch):
        kv_slots = slots
    else:
        kv_slots = default_slots(kv_lengths, batch.get("kv_seqlen"))
    return lengths, kv_lengths, slots, kv_slots


def round_up(value, multiple):
    return -(-value // multiple) * multiple


def tail_multiple(parallel):
    """The multiple that the whole packed buffer is padded to, by layout; dual_chunk pads slots."""
    ranks = parallel["cp_size"]
    layout = parallel.get("layout", "dual_chunk")
    return {
        "contiguous": ranks,
        "dual_chunk_packed": 2 * ranks,
        "striped": ranks * parallel.get("stripe", 1),
        "lpt": ranks * parallel.get("dispatch_chunk", 512),
        "lpt_local": ranks * parallel.get("dispatch_chunk", 512),
    }.get(layout, 1)


def place_slots(valid, slots, scenario, tokens, what):
    """(first valid id, valid) of every sequence; checks the buffer's size against the layout's rule."""
    parallel, batch = scenario["parallel"], scenario["batch"]
    layout = parallel.get("layout", "dual_chunk")
    # bshd and sbhd: these layouts cut every row alone, but not the keys of lpt.
    cuts_rows = (batch.get("qkv_format", "thd") != "thd" and layout in ("contiguous", "dual_chunk_packed", "striped")
                 and not parallel.get("cuts_whole_buffer", False))
    cut = 2 * parallel["cp_size"] if layout == "dual_chunk" else tail_multiple(parallel) if cuts_rows else 1
    # Queries of which ranks own heads are not cut.
    has_all_rows = (what == "queries" and parallel.get("cp_comm_type") == "gather_q" and parallel.get("q_owner", "rows") != "rows")
    if has_all_rows:
        cut = 1
    slots = [round_up(slot, math.lcm(cut, slot_multiple(batch))) for slot in slots]
    # Padding stands behind the tokens of a slot, or before them.
    is_left = batch.get("pad_side", "right") == "left"
    places, begin = [], 0
    for length, slot in zip(valid, slots):
        places.append((begin + (slot - length if is_left else 0), length))
        begin += slot
    multiple = tail_multiple(parallel)
    if cuts_rows or has_all_rows or not batch.get("pad_between_seqs", True):
        multiple = 1
    # Imported orders say themselves how many ids they hold.
    is_free = parallel.get("layout") == "indices"
    if begin > tokens or (not is_free and round_up(begin, multiple) != tokens):
        raise CannotRead(
            f"the {what} of the record do not fit the layout's padding rule: "
            f"{tokens} in the record, slots of {begin} padded to {multiple}"
        )
    return places


def find_places(scenario, layout, tokens, kv_tokens):
    """Where every sequence's valid queries and keys stand in the packed padded buffers."""
    if layout is not None:
        sequences = layout["sequences"]
        return (
            [(each["q_valid_begin"], each["q_valid"]) for each in sequences],
            [(each["kv_valid_begin"], each["kv_valid"]) for each in sequences],
        )
    lengths, kv_lengths, slots, kv_slots = fill_lengths(scenario["batch"])
    kv_scenario = scenario
    is_cross = kv_lengths != lengths or kv_slots != slots
    if is_cross and scenario["parallel"].get("layout", "").startswith("lpt"):
        # KV of lpt under cross attention: contiguous equal cut.
        kv_scenario = dict(scenario, parallel=dict(scenario["parallel"], layout="contiguous", cuts_whole_buffer=True))
    return (
        place_slots(lengths, slots, scenario, tokens, "queries"),
        place_slots(kv_lengths, kv_slots, kv_scenario, kv_tokens, "keys"),
    )


def slice_mask(slices, query_ids, key_ids):
    """Union of the slices; ids count valid tokens through the batch, one after another."""
    visible = torch.zeros(query_ids.shape[0], key_ids.shape[1], dtype=torch.bool)
    if visible.numel() == 0:
        return visible
    first_query, first_key = int(query_ids[0, 0]), int(key_ids[0, 0])
    for q0, q1, k0, k1, kind in slices:
        rows = slice(max(q0 - first_query, 0), max(q1 - first_query, 0))
        columns = slice(max(k0 - first_key, 0), max(k1 - first_key, 0))
        queries, keys = query_ids[rows], key_ids[:, columns]
        # Bottom-right: last query with last key. Top-left: first query with first key.
        below = (keys - (k1 - 1)) <= (queries - (q1 - 1))
        above = (keys - k0) >= (queries - q0)
        visible[rows, columns] |= {
            "full": torch.ones_like(below),
            "causal": below,
            "inv_causal": above,
            "bi_causal": below & above,
        }[kind]
    return visible


def build_mask(attention, num_queries, num_keys, first_query, first_key):
    """[num_queries, num_keys], True where the key is visible. Three conditions, ANDed literally."""
    i = torch.arange(num_queries).unsqueeze(1)
    j = torch.arange(num_keys).unsqueeze(0)
    kind = attention["attn_mask_type"].removeprefix("padding_")
    if kind in ("no_mask", "padding"):
        visible = torch.ones(num_queries, num_keys, dtype=torch.bool)
    elif kind == "causal":
        visible = j <= i
    elif kind == "causal_bottom_right":
        visible = j <= i + (num_keys - num_queries)
    elif kind == "slices":
        visible = slice_mask(attention["slices"], i + first_query, j + first_key)
    else:
        raise CannotRead(f"unknown attn_mask_type: {attention['attn_mask_type']}")
    left, right = attention["window_size"]
    if left >= 0:
        visible = visible & (j >= i + (num_keys - num_queries) - left)
    if right >= 0:
        visible = visible & (j <= i + (num_keys - num_queries) + right)
    if attention["chunk_size"] > 0:
        chunk = attention["chunk_size"]
        visible = visible & (
            torch.div(i, chunk, rounding_mode="floor") == torch.div(j, chunk, rounding_mode="floor")
        )
    return visible


def rotate(rows, theta, first=0):
    """Rotary embedding of [positions, heads, head_dim] in non-interleaved halves; the first row is at this position."""
    lanes = rows.shape[2]
    half = lanes // 2
    lane = torch.arange(half, dtype=torch.float64)
    position = torch.arange(rows.shape[0], dtype=torch.float64) + first
    angle = torch.outer(position, theta ** (-2.0 * lane / lanes)).unsqueeze(1)
    low, high, rest = rows[..., :half], rows[..., half : 2 * half], rows[..., 2 * half :]
    turned_low = low * torch.cos(angle) - high * torch.sin(angle)
    turned_high = high * torch.cos(angle) + low * torch.sin(angle)
    return torch.cat([turned_low, turned_high, rest], dim=2)


def alibi_terms(heads, num_queries, num_keys):
    """[heads, queries, keys]: minus the slope times the distance from the key below which the query stands."""
    n = 2 ** int(math.floor(math.log2(heads)))
    slopes = [2.0 ** (-8.0 * k / n) for k in range(1, n + 1)]
    slopes += [2.0 ** (-4.0 * (2 * k - 1) / n) for k in range(1, heads - n + 1)]
    i = torch.arange(num_queries, dtype=torch.float64).unsqueeze(1) + (num_keys - num_queries)
    distance = (i - torch.arange(num_keys, dtype=torch.float64)).abs()
    return -torch.tensor(slopes, dtype=torch.float64).view(-1, 1, 1) * distance


def philox_words(seed, sequence, heads, num_queries, num_keys):
    """[heads, queries, keys] One random word of 32 bits for each pair: Philox 4x32 with 10 rounds."""
    low = numpy.uint64(0xFFFFFFFF)
    h, i, j = numpy.meshgrid(numpy.arange(heads), numpy.arange(num_queries), numpy.arange(num_keys), indexing="ij")
    c = [numpy.uint64(1) * (j // 4).astype("uint64"), i.astype("uint64"), h.astype("uint64"),
         numpy.full(h.shape, sequence, dtype="uint64")]
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(10):
        left, right = c[0] * numpy.uint64(0xD2511F53), c[2] * numpy.uint64(0xCD9E8D57)
        c = [(right >> numpy.uint64(32)) ^ c[1] ^ numpy.uint64(k0), right & low,
             (left >> numpy.uint64(32)) ^ c[3] ^ numpy.uint64(k1), left & low]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return numpy.choose(j % 4, c)


def pair_terms(scenario, attention, bias, sequence, num_queries, num_keys):
    """What is added to the logits, and the factor of the weights, [heads, queries, keys]; None: nothing."""
    heads = attention["heads"]
    added = factor = None
    if attention["alibi"]:
        added = alibi_terms(heads, num_queries, num_keys)
    if bias is not None:
        of_sequence = bias[sequence if bias.shape[0] > 1 else 0][:, :num_queries, :num_keys]
        added = of_sequence.expand(heads, -1, -1) if added is None else added + of_sequence
    if attention["dropout"] > 0.0:
        words = philox_words(scenario.get("numerics", {}).get("seed", 1), sequence, heads, num_queries, num_keys)
        kept = 1.0 - attention["dropout"]
        factor = torch.tensor((words < kept * 2.0**32) / kept)
    return added, factor


def attend(attention, q, k, v, sink, mask, added=None, factor=None):
    """out [rows, heads, head_dim_v], lse [rows, heads] and max_logit [heads] of one sequence; all
    rows see at least one key. sink: [heads], or None."""
    group = attention["heads"] // attention["kv_heads"]
    k = k.repeat_interleave(group, dim=1)
    v = v.repeat_interleave(group, dim=1)
    logits = attention["softmax_scale"] * torch.matmul(q.permute(1, 0, 2), k.permute(1, 2, 0))
    if attention["softcap"] > 0.0:
        logits = attention["softcap"] * torch.tanh(logits / attention["softcap"])
    if added is not None:
        logits = logits + added
    logits = logits.masked_fill(~mask, -math.inf)
    max_logit = logits.detach().amax(dim=(1, 2))
    if sink is not None:
        # A sink is one more column that carries no value.
        column = sink.view(-1, 1, 1).expand(-1, logits.shape[1], 1)
        logits = torch.cat([logits, column], dim=2)
    weights = torch.softmax(logits, dim=2)[:, :, : k.shape[0]]
    if factor is not None:
        weights = weights * factor
    out = torch.matmul(weights, v.permute(1, 0, 2)).permute(1, 0, 2)
    return out, torch.logsumexp(logits, dim=2).detach().permute(1, 0), max_logit


def compute_opinion(scenario, tensors, layout):
    """All output tensors of the record, by name."""
    attention = fill_attention(scenario)
    has_backward = scenario.get("numerics", {}).get("backward", True)
    tokens, kv_tokens = tensors["q"].shape[0], tensors["k"].shape[0]
    heads = attention["heads"]
    q_places, kv_places = find_places(scenario, layout, tokens, kv_tokens)
    sink = {
        "vanilla": lambda: None,
        "off_by_one": lambda: torch.zeros(heads, dtype=torch.float64),
        "learnable": lambda: torch.tensor(tensors["sink"]).requires_grad_(has_backward),
    }[attention["softmax_type"]]()
    opinion = {
        "out": numpy.zeros((tokens, heads, attention["head_dim_v"])),
        "lse": numpy.full((tokens, heads), -math.inf),
        "max_logit": numpy.full(heads, -math.inf),
    }
    if has_backward:
        opinion.update({"d" + name: numpy.zeros(tensors[name].shape) for name in "qkv"})
        if attention["softmax_type"] == "learnable":
            opinion["d_sink"] = numpy.zeros(heads)

    bias = None
    if attention["bias"] != "none":
        # Cells beyond a sequence may be NaN, and no sequence reads them.
        bias = torch.tensor(numpy.nan_to_num(tensors["bias"])).requires_grad_(has_backward)
    if bias is not None and has_backward:
        opinion["dbias"] = numpy.zeros(tensors["bias"].shape)

    first_query = first_key = 0
    for sequence, ((q_begin, num_queries), (kv_begin, num_keys)) in enumerate(zip(q_places, kv_places)):
        rows, keys = slice(q_begin, q_begin + num_queries), slice(kv_begin, kv_begin + num_keys)
        mask = build_mask(attention, num_queries, num_keys, first_query, first_key)
        first_query, first_key = first_query + num_queries, first_key + num_keys
        seeing = mask.any(dim=1)
        # A sequence whose rows all are empty keeps zeros and -inf.
        if seeing.any():
            terms = pair_terms(scenario, attention, bias, sequence, num_queries, num_keys)
            run_sequence(attention, tensors, opinion, (rows, keys), mask, sink, terms)
    if "d_sink" in opinion and sink.grad is not None:
        opinion["d_sink"] = sink.grad.numpy()
    if "dbias" in opinion and bias.grad is not None:
        opinion["dbias"] = bias.grad.numpy()
    return opinion


def run_sequence(attention, tensors, opinion, place, mask, sink, terms):
    """One sequence, forward and backward, written into `opinion`."""
    rows, keys = place
    seeing = mask.any(dim=1)
    q = torch.tensor(tensors["q"][rows]).requires_grad_("dq" in opinion)
    k = torch.tensor(tensors["k"][keys]).requires_grad_("dq" in opinion)
    v = torch.tensor(tensors["v"][keys]).requires_grad_("dq" in opinion)
    turned_q, turned_k = q, k
    if attention["rope_theta"] > 0.0:
        ends = attention["attn_mask_type"].endswith("bottom_right") if attention["rope_q_position"] == "auto" else attention["rope_q_position"] == "end"
        first = k.shape[0] - q.shape[0] if ends else 0
        turned_q, turned_k = rotate(q, attention["rope_theta"], first), rotate(k, attention["rope_theta"])
    terms = [None if term is None else term[:, seeing] for term in terms]
    out, lse, max_logit = attend(attention, turned_q[seeing], turned_k, v, sink, mask[seeing], *terms)
    opinion["out"][rows][seeing.numpy()] = out.detach().numpy()
    opinion["lse"][rows][seeing.numpy()] = lse.numpy()
    opinion["max_logit"] = numpy.maximum(opinion["max_logit"], max_logit.numpy())
    if "dq" not in opinion:
        return
    # The sink's gradient adds up over the sequences.
    out.backward(torch.tensor(tensors["d_out"][rows])[seeing])
    for name, leaf, where in (("dq", q, rows), ("dk", k, keys), ("dv", v, keys)):
        opinion[name][where] = leaf.grad.numpy()


def compare(name, seen, expected, tolerance):
    """One line, and whether the tensor passes."""
    if seen.shape != expected.shape:
        return False, f"{name}: shape {seen.shape}, expected {expected.shape}"
    if numpy.isnan(seen).any():
        return False, f"{name}: {int(numpy.isnan(seen).sum())} NaN"
    infinite = numpy.isinf(expected) | numpy.isinf(seen)
    if not numpy.array_equal(seen[infinite], expected[infinite]):
        return False, f"{name}: infinities stand elsewhere"
    difference = numpy.where(infinite, 0.0, seen) - numpy.where(infinite, 0.0, expected)
    finite = numpy.where(infinite, 0.0, expected)
    norm, top = numpy.linalg.norm(finite), numpy.abs(finite).max(initial=0.0)
    error, worst = numpy.linalg.norm(difference), numpy.abs(difference).max(initial=0.0)
    passes = error <= tolerance * (norm or 1.0) and worst <= 10.0 * tolerance * (top or 1.0)
    relative = error / norm if norm > 0.0 else error
    return passes, f"{name}: rel_l2 {relative:.3e} max_abs {worst:.3e} tolerance {tolerance:.1e}"


def judge_record(path, tolerance, layout):
    """Prints one line a tensor; True when all pass."""
    metadata, tensors = read_record(path)
    opinion = compute_opinion(tomllib.loads(metadata["scenario"]), tensors, layout)
    all_pass = True
    for name, expected in opinion.items():
        if name not in tensors:
            passes, line = False, f"{name}: not in the record"
        else:
            passes, line = compare(name, tensors[name], expected, tolerance)
        all_pass = all_pass and passes
        print(f"{'pass' if passes else 'FAIL'} {path} {line}")
    return all_pass


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("records", nargs="+", help="safetensors records of cpscope run --record")
    parser.add_argument("--tolerance", type=float, default=1e-10, help="relative; 2e-2 suits bf16")
    parser.add_argument("--layout", help="JSON of `cpscope layout --json`, instead of own slots")
    arguments = parser.parse_args()
    layout = None
    try:
        if arguments.layout:
            with open(arguments.layout, encoding="utf-8") as file:
                layout = json.load(file)
        # Every record gets its lines, also after one that fails.
        passes = [judge_record(path, arguments.tolerance, layout) for path in arguments.records]
    except (CannotRead, OSError, KeyError, ValueError, struct.error) as problem:
        print(f"cannot read: {type(problem).__name__}: {problem}", file=sys.stderr)
        return 2
    return 0 if all(passes) else 1


if __name__ == "__main__":
    sys.exit(main())
