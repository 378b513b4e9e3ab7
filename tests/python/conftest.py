"""What the tests of the Python package share. CPSCOPE_PROGRAM names the program to compare with."""
import json
import os
import pathlib
import subprocess

import numpy as np
import pytest

import cpscope

ROOT = pathlib.Path(__file__).resolve().parents[2]


def pytest_terminal_summary(terminalreporter, exitstatus):
    """A file that is skipped whole leaves no test, which pytest calls an error: the reason is told as a test's would be."""
    skipped = terminalreporter.stats.get("skipped", [])
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and skipped:
        terminalreporter.write_line(str(skipped[0].longrepr[2]).removeprefix("Skipped: "))


def pytest_sessionfinish(session, exitstatus):
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        session.exitstatus = 77  # of a skipped test, for CTest


@pytest.fixture(scope="session")
def program():
    """Runs the program cpscope and reads the JSON that it prints."""
    path = os.environ.get("CPSCOPE_PROGRAM")
    if not path:
        pytest.skip("requires program: CPSCOPE_PROGRAM names none")

    def run(*arguments):
        done = subprocess.run([path, *map(str, arguments), "--json"], capture_output=True, text=True, cwd=ROOT)
        assert done.stdout, done.stderr
        return json.loads(done.stdout)
    return run


def plain_attention(scenario, q, k, v, d_out=None, is_visible=lambda i, j, length: j <= i):
    """Softmax attention from its definition, sequence by sequence and head by head, in packed order. Padding and rows
    that see nothing: out 0, lse -inf, gradients 0."""
    layout = scenario.layout()
    heads, kv_heads = q.shape[1], k.shape[1]
    out = np.zeros((len(q), heads, v.shape[2]))
    lse = np.full((len(q), heads), -np.inf)
    dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    for s in layout.sequences:
        rows, keys = slice(s.q_valid_begin, s.q_valid_begin + s.q_valid), slice(s.kv_valid_begin, s.kv_valid_begin + s.kv_valid)
        visible = np.array([[is_visible(i, j, s) for j in range(s.kv_valid)] for i in range(s.q_valid)],
                           bool).reshape(s.q_valid, s.kv_valid)
        for h in range(heads):
            g = h // (heads // kv_heads)
            logits = np.where(visible, scenario.softmax_scale * q[rows, h] @ k[keys, g].T, -np.inf)
            top = logits.max(1, initial=-np.inf)
            seen = top > -np.inf
            top = np.where(seen, top, 0)
            weights = np.exp(logits - top[:, None])
            total = weights.sum(1)
            weights /= np.where(seen, total, 1)[:, None]
            lse[rows, h] = np.where(seen, top + np.log(np.where(seen, total, 1)), -np.inf)
            out[rows, h] = weights @ v[keys, g]
            if d_out is None:
                continue
            d_weights = d_out[rows, h] @ v[keys, g].T
            d_logits = weights * (d_weights - (weights * d_weights).sum(1)[:, None]) * scenario.softmax_scale
            dq[rows, h] = d_logits @ k[keys, g]
            dk[keys, g] += d_logits.T @ q[rows, h]
            dv[keys, g] += weights.T @ d_out[rows, h]
    answer = {"out": out, "lse": lse}
    return answer if d_out is None else {**answer, "dq": dq, "dk": dk, "dv": dv}


@pytest.fixture
def attention():
    return plain_attention


@pytest.fixture
def small():
    """Three padded sequences, one of them empty, on a ring of two; grouped heads."""
    return cpscope.Scenario.of(heads=4, kv_heads=2, head_dim=8, attn_mask_type="padding_causal", lengths=[13, 0, 6],
                               cp_size=2, dtype="fp32", backward=True)
