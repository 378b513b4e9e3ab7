"""Random right schedules: rows and heads of every rank cut at random, every pair of parts computed on a random rank in a random step,
and what that rank needs sent there from a random rank that has it, before the step or during an earlier one, alone or joined."""
import numpy as np

import cpscope


def random_scenario(rng):
    ranks = int(rng.integers(1, 5))
    group = int(rng.integers(1, 4))
    kv_heads = int(rng.integers(1, 4))
    causal = rng.random() < 0.7
    keys = dict(heads=group * kv_heads, kv_heads=kv_heads, head_dim=8, cp_size=ranks, dtype="fp64", seed=int(rng.integers(1, 99)),
                lengths=[int(one) for one in rng.integers(0, 30, rng.integers(1, 5))] + [7],
                layout=str(rng.choice(["contiguous", "dual_chunk", "striped", "dual_chunk_packed"])),
                attn_mask_type="padding_causal" if causal else "padding", backward=bool(rng.random() < 0.8),
                softmax_type=str(rng.choice(["vanilla", "learnable"])), window_size=(int(rng.integers(0, 20)), -1) if rng.random() < 0.3 else (-1, -1))
    return cpscope.Scenario.of(**keys)


def cut(rng, count):
    """Rows 0 to count - 1 in up to three parts, in stretches, by stride or at random; empty parts are left out."""
    kinds = int(rng.integers(1, 4))
    way = rng.integers(0, 3)
    labels = (np.arange(count) % kinds if way == 0 else rng.integers(0, kinds, count) if way == 1 else np.sort(rng.integers(0, kinds, count)))
    return [rows for rows in (np.flatnonzero(labels == one) for one in range(kinds)) if len(rows)] if count else []


def random_schedule(rng, scenario=None):
    scenario = scenario or random_scenario(rng)
    s = cpscope.Schedule(scenario, returns=str(rng.choice(["next_step", "end"])), prunes=bool(rng.random() < 0.3))
    for make in (s.step, s.backward_step) if scenario.backward and rng.random() < 0.3 else (s.step,):
        write_pass(rng, s, [make() for _ in range(rng.integers(1, 4))])
    return s


def write_pass(rng, s, steps):
    scenario = s.scenario
    group = scenario.heads // scenario.kv_heads
    bounds = sorted({0, scenario.kv_heads, *rng.integers(0, scenario.kv_heads + 1, 1).tolist()})
    holds = {}  # (rank, block) -> first step that may use it
    for first, end in zip(bounds, bounds[1:]):
        kv = [s.kv(o, rows, heads=range(first, end)) for o in s.ranks for rows in cut(rng, s.kv(o).rows)]
        q = [s.q(o, rows, heads=range(first * group, end * group)) for o in s.ranks for rows in cut(rng, s.q(o).rows)]
        for a in q:
            # All keys of these heads at once, or part by part.
            for b in ([s.join(kv)] if kv and rng.random() < 0.3 else kv):
                rank, step = int(rng.integers(0, len(s.ranks))), int(rng.integers(0, len(steps)))
                for block in (a, b):
                    bring(rng, s, steps, holds, block, rank, step)
                # Some query heads of the part, then the others.
                middle = int(rng.integers(a.heads.start, a.heads.stop + 1))
                for heads in (range(a.heads.start, middle), range(middle, a.heads.stop)):
                    if heads:
                        steps[step].compute(rank, a, b, heads=None if len(heads) == len(a.heads) else heads)


def bring(rng, s, steps, holds, block, rank, step):
    """Sends a block to a rank so that it can be used in a step."""
    whole = block if block.rank < 0 else (s.kv if block.is_kv else s.q)(block.rank)
    if block.rank == rank or min(holds.get((rank, one), len(steps)) for one in (block, whole)) <= step:
        return
    if (rank, block) in holds or (rank, whole) in holds:  # it arrives too late, and nothing is sent twice
        raise Late
    if rng.random() < 0.2 and not any(r == rank and (one.is_kv, one.rank) == (block.is_kv, block.rank) for r, one in holds):
        block = whole
    when = int(rng.integers(0, step + 1))
    before = bool(rng.random() < 0.5) or when == 0 and step == 0
    if not before and when == step:
        before = True
    holds[rank, block] = when if before else when + 1
    if block.rank < 0:
        steps[when].gather(block, rank, before=before)
        return
    senders = [block.rank] + [r for (r, one), usable in holds.items() if one is block and usable <= when and not before and r != rank]
    steps[when].send(block, int(rng.choice(senders)), rank, before=before)


class Late(Exception):
    """A block of this draw would be needed before it arrives."""


def proved(seed):
    """A random schedule that does not need a block before it arrives; the seed is drawn from until there is one."""
    rng = np.random.default_rng(seed)
    while True:
        try:
            return random_schedule(rng)
        except Late:
            continue
