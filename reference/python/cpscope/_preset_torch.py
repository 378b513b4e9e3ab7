"""Presets of PyTorch's context parallelism and of torchtitan, and what a BlockMask says."""
from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Mapping

import numpy as np

from . import order
from ._arrays import Array, integers, on_host
from ._preset import UNSET, Held, Preset

if TYPE_CHECKING:
    from .scenario import Scenario

# Rows of a mask that are evaluated at a time, and the longest mask that is.
_ROWS, _LONGEST = 512, 1 << 15
_LONGEST_SLICES = 1 << 14  # of a matrix that is cut into slices

Rows = Callable[[int, int], Array]


def head_and_tail(seqlen: int, ranks: int) -> Array:
    """PyTorch's default order: [seqlen] tokens by rank, which has chunks r and 2 * ranks - 1 - r."""
    chunks = np.arange(seqlen).reshape(2 * ranks, -1)
    return np.concatenate([chunks[chunk] for rank in range(ranks) for chunk in (rank, 2 * ranks - 1 - rank)])


class MaskSummary:
    """What [tokens, tokens] bool says: documents, and one rule for all of them or slices. rows(begin, end) gives whole rows."""

    def __init__(self, tokens: int, rows: Rows):
        self.first = np.full(tokens, tokens)  # the first visible key of a row
        self.last = np.full(tokens, -1)       # the last one
        count = np.zeros(tokens, np.int64)
        for begin in range(0, tokens, _ROWS):
            seen = rows(begin, min(begin + _ROWS, tokens))
            some = seen.any(1)
            part = slice(begin, begin + len(seen))
            self.first[part] = np.where(some, seen.argmax(1), tokens)
            self.last[part] = np.where(some, tokens - 1 - seen[:, ::-1].argmax(1), -1)
            count[part] = seen.sum(1)
        self._is_one_run = (count == self.last - self.first + 1) | (count == 0)
        self._rows = rows
        # A document begins where no earlier row sees a later key, and no later row an earlier one.
        highest, lowest = np.maximum.accumulate(self.last), np.minimum.accumulate(self.first[::-1])[::-1]
        begins = [0, *(np.flatnonzero((highest[:-1] <= np.arange(tokens - 1)) & (lowest[1:] > np.arange(tokens - 1))) + 1).tolist()]
        self.lengths: list[int] = np.diff([*begins, tokens]).tolist()
        #: (is it causal, [left, right]), if one rule describes every document
        self.rule = self._find_rule(begins, tokens)

    def _find_rule(self, begins: list[int], tokens: int) -> tuple[bool, list[int]] | None:
        if not self._is_one_run.all() or (self.last < 0).any():
            return None
        begin = np.repeat(begins, self.lengths)
        end = begin + np.repeat(self.lengths, self.lengths)
        row = np.arange(tokens)
        left, right = int((row - self.first).max()), int((self.last - row).max())
        if left < 0 or right < 0:
            return None
        if not ((self.first == np.maximum(begin, row - left)).all() and (self.last == np.minimum(end - 1, row + right)).all()):
            return None
        longest = max(self.lengths)
        return right == 0, [-1 if left >= longest - 1 else left, -1 if right >= longest - 1 and right > 0 else right]

    def slices(self, of: Callable[..., Scenario]) -> list[list[Any]]:
        """The mask as slices of one sequence."""
        tokens = len(self.first)
        matrix = np.concatenate([self._rows(begin, min(begin + _ROWS, tokens)) for begin in range(0, tokens, _ROWS)])
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "mask.npy"
            np.save(file, matrix)
            read = of(heads=1, head_dim=1, lengths=[tokens], cp_size=1, attn_mask_type="slices", mask={"file": str(file)})
        return [list(one) for one in read.settings["slices"]]


def _say_rules(p: Preset, summaries: list[MaskSummary], of: Callable[..., Scenario], source: str) -> list[int]:
    """Sets the mask of the rows of a batch; their documents' lengths."""
    rules = {(rule[0], tuple(rule[1])) if (rule := summary.rule) else None for summary in summaries}
    lengths = [length for summary in summaries for length in summary.lengths]
    if len(rules) == 1 and None not in rules:
        causal, window = summaries[0].rule or (False, [-1, -1])
        p.say_mask(causal, len(lengths) > len(summaries), source)
        p.say_window(window, source)
        return lengths
    tokens = len(summaries[0].first)
    if tokens > _LONGEST_SLICES:
        raise p.error(f"{source} is neither causal, full nor a window in its documents, and too long to be cut into slices: {tokens} tokens",
                      f"at most {_LONGEST_SLICES}, or give attn_mask_type= and lengths=")
    p.say("attn_mask_type", "slices", source)
    p.say("slices", [[*(bound + row * tokens for bound in one[:4]), one[4]] for row, summary in enumerate(summaries) for one in summary.slices(of)], source)
    return [tokens] * len(summaries)


def _read_block_mask(p: Preset, mask: Any, source: str) -> list[MaskSummary]:
    """One summary for each row of the batch that a BlockMask distinguishes. Its mask_mod is evaluated for every pair."""
    held = Held(p, mask, source)
    q_tokens, kv_tokens = (int(extent) for extent in held.get("seq_lengths"))
    if q_tokens != kv_tokens:
        raise p.error(f"{source} is one rank's, {q_tokens} queries and {kv_tokens} keys, or of cross attention",
                      "give the mask of the whole batch, as it was before it was cut")
    if q_tokens > _LONGEST:
        raise p.error(f"{source} is too long to be evaluated for every pair: {q_tokens} tokens", f"at most {_LONGEST}, or give attn_mask_type= and lengths=")
    import torch  # type: ignore[import-not-found,unused-ignore]
    from torch.nn.attention.flex_attention import create_mask  # type: ignore[import-not-found,unused-ignore]
    batch, heads = (int(extent) for extent in tuple(held.get("shape"))[:2])
    mask_mod, device = held.get("mask_mod"), getattr(held.get("kv_num_blocks", None), "device", "cpu")

    def rows_of(row: int) -> Rows:
        def rows(begin: int, end: int) -> Array:
            def shifted(_: Any, h: Any, q: Any, k: Any) -> Any:
                return mask_mod(torch.tensor(row, device=device), h, q + begin, k)
            dense: Array = np.asarray(on_host(create_mask(shifted, 1, heads, end - begin, kv_tokens, device=device)))[0]
            if (dense != dense[:1]).any():
                raise p.error(f"{source} differs between heads", "cpscope has one mask for all heads")
            return np.asarray(dense[0])
        return rows
    return [MaskSummary(q_tokens, rows_of(row)) for row in range(batch)]


def _is_balanced(p: Preset) -> tuple[Any, str]:
    """What `context_parallel` and `_context_parallel_shard` have set, or PyTorch's default."""
    module = sys.modules.get("torch.distributed.tensor.experimental._context_parallel._attention")
    options = getattr(module, "_cp_options", None)
    is_on = bool(getattr(options, "enable_load_balance", True))
    return ("headtail" if is_on else None), f"PyTorch's option enable_load_balance = {is_on}"


def _say_balancer(p: Preset, balancer: Any, source: str, rows: int, seqlen: int) -> None:
    """Sets the order of a load balancer: an object with _generate_indices, its indices, "headtail" or None."""
    ranks = int(p.value("cp_size"))
    if balancer is None:
        if rows == 1 or not p.has("lengths"):
            p.say("layout", "contiguous", f"{source} = None")
        else:
            cut = np.arange(rows * seqlen).reshape(rows, ranks, -1)
            p.say_order([cut[:, rank].ravel() for rank in range(ranks)], f"{source} = None")
        return
    if isinstance(balancer, str):
        if balancer != "headtail":
            raise p.error(f"{source} is unknown: {balancer}", "headtail, None, or the load balancer itself")
        if seqlen % (2 * ranks):
            raise p.error(f"{source} = headtail cuts {seqlen} tokens in {2 * ranks} equal chunks", "a sequence that they divide")
        indices: Any = head_and_tail(seqlen, ranks)[None]
    else:
        indices = balancer._generate_indices() if hasattr(balancer, "_generate_indices") else balancer
        source = f"{source}, {type(balancer).__name__}" if hasattr(balancer, "_generate_indices") else source
        indices = np.atleast_2d(np.asarray(on_host(indices)))
    bounds = [seqlen * row for row in range(rows + 1)]
    p.say_order(order.from_torch(indices, cp_size=ranks, cu_seqlens=bounds if rows > 1 else None), source)


def torch_cp(p: Preset, mesh: Any, mask: Any, tensors: Mapping[str, Any], call: Mapping[str, Any], load_balancer: Any, cu_seqlens: Any,
             of: Callable[..., Scenario]) -> None:
    """`call`: is_causal, scale, dropout_p, attn_mask, score_mod."""
    p.hints = {"dtype": "give query, or dtype=", "heads": "give query and key, or heads=", "head_dim": "give query, or head_dim=",
               "lengths": "give query, or batch_size= and seqlen= of all ranks"}
    p.reject("attn_mask", None if call.get("attn_mask") is None else True, "PyTorch's ring takes is_causal only", "flex attention takes a BlockMask")
    p.reject("score_mod", None if call.get("score_mod") is None else True, "a function of the logits; cpscope does not have it")
    p.reject_dropout("dropout_p", call.get("dropout_p"))
    names = getattr(mesh, "mesh_dim_names", None) or ()
    if getattr(mesh, "ndim", 1) > 1:
        if "cp" not in names:
            raise p.error(f"mesh has {mesh.ndim} dimensions: {list(names)}", 'give the one of context parallelism, as mesh["cp"]')
        p.say("cp_size", p.size_of_group(mesh["cp"], 'mesh["cp"]'), 'mesh["cp"]')
    p.say("cp_size", None if p.has("cp_size") else p.size_of_group(mesh, "mesh"), "mesh")
    ranks = int(p.value("cp_size"))
    extents = p.say_tensors(tensors, "bhsd")
    p.format = "bhsd"
    is_flex = mask is not None
    p.say("cp_comm_type", "all_gather" if is_flex else "p2p", "mask, a BlockMask: flex attention gathers K and V" if is_flex else
          "no mask: scaled_dot_product_attention's ring")
    if not is_flex:
        module = sys.modules.get("torch.distributed.tensor.experimental._context_parallel._attention")
        is_wide = bool(getattr(getattr(module, "_cp_options", None), "convert_to_f32", True))
        source = f"PyTorch's option convert_to_f32 = {is_wide}"
        p.say("accumulate", "fp32" if is_wide else "dtype", source)
        p.say("dkv_wire", "fp32" if is_wide else "dtype", source)
        p.say("dkv_hops", "ring", "PyTorch, whose dK and dV go once around the ring")

    summaries = _read_block_mask(p, mask, "mask") if is_flex and not p.has("attn_mask_type") else []
    rows = extents["b"] if extents else int(p.found["batch_size"].value) if p.has("batch_size") else len(summaries) or 1
    seqlen = extents["s"] * ranks if extents else int(p.found["seqlen"].value) if p.has("seqlen") else len(summaries[0].first) if summaries else 0
    if cu_seqlens is not None and not seqlen:
        seqlen = int(integers(cu_seqlens, "cu_seqlens")[-1]) // rows
    if not seqlen:
        p.value("seqlen", p.hints["lengths"])
    lengths: list[int] | None = None
    if summaries:
        if len(summaries[0].first) != seqlen:
            raise p.error(f"mask has {len(summaries[0].first)} tokens, query {seqlen} on all {ranks} ranks", "the mask of the whole batch")
        if len(summaries) not in (1, rows):
            raise p.error(f"mask has {len(summaries)} rows, query {rows}")
        lengths = _say_rules(p, summaries * (rows // len(summaries)), of, "mask")
    else:
        causal = call.get("is_causal")
        p.say_mask(bool(causal), cu_seqlens is not None, "is_causal" if causal is not None else "is_causal, whose default is False")
    if cu_seqlens is not None:
        bounds = integers(cu_seqlens, "cu_seqlens")
        if lengths is not None and p.value("attn_mask_type") != "slices" and np.diff(bounds).tolist() != lengths:
            raise p.error(f"cu_seqlens and mask have other documents: {np.diff(bounds)[:4].tolist()}, {lengths[:4]}")
        lengths = np.diff(bounds).tolist()
    p.say("softmax_scale", call.get("scale"), "scale")
    if lengths is not None and len(lengths) == rows and not p.has("lengths"):
        lengths = None  # one document in each row
    if lengths is not None:
        p.say("lengths", lengths, "cu_seqlens" if cu_seqlens is not None else "mask")
        p.say("pad_between_seqs", False, "the documents have no padding")
    elif not p.has("lengths"):
        p.say_batch("bshd", {"b": rows, "s": seqlen // ranks}, "query" if extents else "mask")
    if load_balancer is UNSET:
        load_balancer, source = _is_balanced(p)
    else:
        source = "load_balancer"
    _say_balancer(p, load_balancer, source, rows, seqlen)


def titan(p: Preset, config: Any, model: Any, positions: Any, attention_masks: Any, load_balancer: Any, of: Callable[..., Scenario]) -> None:
    p.hints = {"lengths": "give positions, [tokens] of all ranks, or attention_masks"}
    c = Held(p, config, "config")
    parallelism, training = c.sub("parallelism"), c.sub("training")
    ranks = parallelism.number("context_parallel_degree")
    p.say("cp_size", ranks, "config.parallelism.context_parallel_degree")
    m = Held(p, model, "model") if model is not None else c.sub("model_spec").sub("model")
    attention = m.sub("first_attention") if m.get("first_attention", None) is not None else m
    tp_size = parallelism.number("tensor_parallel_degree", 1)
    heads, of_tp = attention.number("n_heads"), f", of {tp_size} tensor-parallel ranks" if tp_size > 1 else ""
    kv_heads = int(attention.get("n_kv_heads", None) or heads)
    head_dim = int(attention.get("head_dim", None) or attention.number("dim") // heads)
    p.say_heads(heads // tp_size, kv_heads // tp_size, head_dim, head_dim, f"{attention.name}'s n_heads, n_kv_heads, head_dim{of_tp}")
    p.say("dtype", training.get("mixed_precision_param", None) or training.get("dtype", None), "config.training.mixed_precision_param")
    if str(p.value("dtype")) in ("bfloat16", "float32", "float16"):
        one = p.found["dtype"]
        p.found["dtype"] = one._replace(value={"bfloat16": "bf16", "float32": "fp32", "float16": "fp16"}[str(one.value)])

    inner = attention.get("inner_attention", None)
    kind = type(inner).__qualname__.partition(".")[0] if inner is not None else "FlexAttention" if m.get("use_flex_attn", False) or \
        m.get("attn_type", "") == "flex" else "ScaledDotProductAttention"
    source = f"{attention.name}.inner_attention, {kind}" if inner is not None else f"{m.name}.attn_type"
    if kind == "VarlenAttention" and not p.has("cp_comm_type"):
        raise p.error("torchtitan has no context parallelism of VarlenAttention", "FlexAttention")
    p.say("cp_comm_type", "p2p" if kind == "ScaledDotProductAttention" else "all_gather", source)
    if p.value("cp_comm_type") == "p2p":
        p.say("dkv_wire", "fp32", "PyTorch's ring, whose dK and dV travel in fp32")
        p.say("dkv_hops", "ring", "PyTorch's ring, whose dK and dV go once around the ring")

    folded = training.get("num_tokens_per_microbatch_per_dp_rank", None)
    rows = 1 if folded is not None else training.number("local_batch_size")
    seqlen = training.number("num_tokens_per_microbatch_per_dp_rank") if folded is not None else training.number("seq_len")
    tokens_source = "config.training." + ("num_tokens_per_microbatch_per_dp_rank" if folded is not None else "seq_len and local_batch_size")
    p.format = None if folded is not None else "bshd"
    masks = attention_masks
    key = parallelism.get("context_parallel_ptrr_mask_key", None)
    if isinstance(masks, Mapping):
        if key not in masks and len(masks) != 1:
            raise p.error(f"attention_masks has several masks: {', '.join(map(str, masks))}", "give the one of the layer to be checked")
        masks = masks[key] if key in masks else next(iter(masks.values()))
    if positions is not None:
        begins = np.asarray(on_host(positions)).reshape(-1)
        if len(begins) != rows * seqlen:
            raise p.error(f"positions must be those of all ranks, {rows * seqlen}: {len(begins)}", "as they are before they are cut")
        starts = np.flatnonzero((begins == 0) | (np.arange(rows * seqlen) % seqlen == 0))
        lengths = np.diff([*starts.tolist(), rows * seqlen]).tolist()
        p.say("attn_mask_type", "padding_causal" if kind != "ScaledDotProductAttention" else "causal", "torchtitan, causal in each document")
        source = "positions: a document begins where they are 0"
    elif masks is not None:
        summaries = _read_block_mask(p, masks, "attention_masks")
        if len(summaries[0].first) != seqlen:
            raise p.error(f"attention_masks has {len(summaries[0].first)} tokens, {tokens_source} {seqlen}")
        lengths = _say_rules(p, summaries * (rows // len(summaries)), of, "attention_masks")
        source = "attention_masks"
    elif kind == "ScaledDotProductAttention":
        p.say("attn_mask_type", "causal", source)
        lengths, source = [seqlen] * rows, tokens_source
    else:
        lengths = [] if not p.has("lengths") else list(p.value("lengths"))
        source = "lengths="
        if not lengths:
            p.value("lengths")
        p.say("attn_mask_type", "padding_causal", "torchtitan, causal in each document")
    if len(lengths) == rows and folded is None:
        p.say_batch("bshd", {"b": rows, "s": seqlen // ranks}, tokens_source)
    else:
        p.say("lengths", lengths, source)
        p.say("pad_between_seqs", False, f"{tokens_source}: there is no padding")
    if load_balancer is UNSET:
        load_balancer = parallelism.get("context_parallel_load_balancer", "headtail")
        source = "config.parallelism.context_parallel_load_balancer"
        if load_balancer == "ptrr":
            if masks is None:
                raise p.error(f"{source} = ptrr orders blocks by attention_masks", "give attention_masks=, or load_balancer=")
            from torch.distributed.tensor.experimental._attention import _PTRRLoadBalancer  # type: ignore[import-not-found,unused-ignore]
            load_balancer = _PTRRLoadBalancer(masks, ranks)
    else:
        source = "load_balancer"
    _say_balancer(p, load_balancer, source, rows, seqlen)
