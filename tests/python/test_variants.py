"""Right kernels round in ways of their own, and none of them may fail: tiles, splits, orders, another exp2."""
import os
import random

import numpy as np
import pytest

import cpscope

WIDE = os.environ.get("CPSCOPE_SWEEPS") == "wide"

#: Each is one way to compute the same attention.
VARIANTS = {
    "tiles of 16": {"tile": 16}, "tiles of 128": {"tile": 128}, "tiles backwards": {"tile": 64, "backwards": True},
    "cubic exp2": {"tile": 128, "cubic": True}, "P in fp32": {"tile": 64, "wide_p": True},
    "four splits": {"splits": 4}, "seven splits": {"splits": 7}, "16-bit partial results": {"splits": 4, "narrow_parts": True},
    "16-bit running sum": {"splits": 4, "narrow_parts": True, "narrow_sum": True},
    "dk rounded a head": {"tile": 64, "rounds_heads": True},
}


def narrow(values, dtype):
    """Rounded to nearest, ties to even."""
    values = np.asarray(values, np.float32)
    if dtype == "fp16":
        return values.astype(np.float16).astype(np.float32)
    if dtype == "bf16":
        bits = values.view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)
    return values


def cubic_exp2(x):
    """FlashAttention 4's on Blackwell."""
    whole = np.floor(x)
    part = (x - whole).astype(np.float32)
    poly = 1 + part * (np.float32(0.695146143436431884765625)
                       + part * (np.float32(0.227564394474029541015625) + part * np.float32(0.077119089663028717041015625)))
    return np.ldexp(poly, whole.astype(np.int32)).astype(np.float32)


def exp(x, cubic):
    seen = np.isfinite(x)
    x = np.where(seen, np.maximum(x, -87), 0).astype(np.float32)
    return np.where(seen, cubic_exp2(x * np.float32(1.4426950408889634)) if cubic else np.exp(x), 0).astype(np.float32)


def attend(scenario, inputs, dice, tile=None, backwards=False, cubic=False, wide_p=False, splits=0, narrow_parts=False,
           narrow_sum=False, rounds_heads=False):
    def rounded(values):
        return narrow(values, scenario.dtype)

    q, k, v, d_out = (np.asarray(inputs[name], np.float32) for name in ("q", "k", "v", "d_out"))
    out, lse = np.zeros_like(d_out), np.full(d_out.shape[:2], -np.inf, np.float32)
    dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    scale, group = np.float32(scenario.softmax_scale), q.shape[1] // k.shape[1]
    for s in scenario.layout().sequences:
        rows, n = slice(s.q_begin, s.q_begin + s.q_valid), s.q_valid
        if n == 0:
            continue
        visible = np.tri(n, dtype=bool) if "causal" in scenario.settings["attn_mask_type"] else np.ones((n, n), bool)
        cuts = sorted({0, n, *(dice.randrange(n) for _ in range(splits - 1))}) if splits else [*range(0, n, tile), n]
        blocks = [slice(a, b) for a, b in zip(cuts, cuts[1:])]
        for head in range(q.shape[1]):
            kv = head // group
            logits = np.where(visible, q[rows, head] @ k[rows, kv].T * scale, -np.inf).astype(np.float32)
            parts = []
            for keys in blocks[::-1] if backwards else blocks:
                top = logits[:, keys].max(1)
                weights = exp(logits[:, keys] - np.where(np.isfinite(top), top, 0)[:, None], cubic)
                total = weights.sum(1)
                part = (weights if wide_p else rounded(weights)) @ v[rows, kv][keys] / np.where(total > 0, total, 1)[:, None]
                with np.errstate(divide="ignore"):
                    parts.append((rounded(part) if narrow_parts else part, top + np.log(total)))
            tops = np.max([part_lse for _, part_lse in parts], 0)
            row_lse = tops + np.log(sum(np.exp(part_lse - tops) for _, part_lse in parts))
            summed = np.zeros((n, v.shape[2]), np.float32)
            for part, part_lse in parts:
                summed = summed + part * np.exp(part_lse - row_lse)[:, None]
                summed = rounded(summed) if narrow_sum else summed
            out[rows, head], lse[rows, head] = rounded(summed), row_lse
            weights = np.where(visible, np.exp(logits - row_lse[:, None]), 0).astype(np.float32)
            delta = (d_out[rows, head] * out[rows, head]).sum(1)
            d_logits = weights * (d_out[rows, head] @ v[rows, kv].T - delta[:, None])
            weights = weights if wide_p else rounded(weights)
            dq[rows, head] = rounded(rounded(d_logits) @ k[rows, kv] * scale)
            shares = (rounded(d_logits).T @ q[rows, head] * scale, weights.T @ d_out[rows, head])
            if rounds_heads:
                shares = tuple(rounded(share) for share in shares)
            dk[rows, kv] += shares[0]
            dv[rows, kv] += shares[1]
    return {"out": out, "lse": lse, "dq": dq, "dk": rounded(dk), "dv": rounded(dv)}


@pytest.mark.parametrize("variant", VARIANTS)
def test_right_answers_pass_whole_and_by_a_sample(variant):
    dice = random.Random(variant)
    for _ in range(40 if WIDE else 3):
        kv_heads, longest = dice.choice([1, 2]), dice.choice([150, 150, 600 if WIDE else 300])
        scenario = cpscope.Scenario.of(
            heads=kv_heads * dice.choice([1, 2, 4]), kv_heads=kv_heads, head_dim=dice.choice([8, 16, 64, 128]),
            lengths=[dice.randint(1, longest) for _ in range(dice.randint(1, 4))], cp_size=dice.choice([1, 2, 4, 16]),
            dtype=dice.choice(["bf16", "fp16"] + ([] if "cubic" in VARIANTS[variant] else ["fp32"])),
            attn_mask_type=dice.choice(["padding", "padding_causal"]), seed=dice.randint(1, 1 << 30))
        answer = attend(scenario, scenario.inputs(), dice, **VARIANTS[variant])
        for sample in (0, 48):
            grade = scenario.grade(answer, sample=sample)
            assert grade, f"{scenario.settings}\n{grade}"


def test_a_wrong_one_fails():
    scenario = cpscope.Scenario.of(heads=2, head_dim=16, lengths=[150], cp_size=4)
    answer = attend(scenario, scenario.inputs(), random.Random(1), splits=4)
    for name in ("out", "dq", "dk", "dv"):
        wrong = {**answer, name: np.where(np.arange(152)[:, None, None] == 70, answer[name] * 1.3, answer[name])}
        assert not scenario.grade(wrong), name
