"""Schedules that a caller writes: the examples, what is proved of them, and errors in the author's words."""
import importlib.util
import json
import pathlib
import re
import time

import numpy as np
import pytest

import cpscope
import random_schedules

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "reference" / "python" / "examples"
PAGE = EXAMPLES.parent / "schedules.md"


def example(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def small(**keys):
    return cpscope.Scenario.of(**{**dict(heads=8, kv_heads=4, head_dim=16, lengths=[75, 0, 53], cp_size=4, attn_mask_type="padding_causal"), **keys})


def ring_of(s, steps=None):
    for i in range(len(s.ranks) if steps is None else steps):
        with s.step() as step:
            for r in s.ranks:
                step.compute(r, s.q(r), s.kv(r - i))
                if i + 1 < len(s.ranks):
                    step.send(s.kv(r - i), r, (r + 1) % len(s.ranks))
    return s


# The examples: more arguments, keys of the scenario, the built-in schedule, and what is not equal to its plan. "same": the plan is the
# built-in one, in its buffers and its order too.
EXPECTED = {
    "ring": ((), dict(layout="contiguous", dkv_hops="ring"), "p2p", []),
    "zigzag_ring": ((), dict(dkv_hops="ring"), "p2p", []),
    "ulysses": ((), {}, "a2a", None),
    "all_gather": ((), {}, "all_gather", [("forward", "reorder"), ("backward", "merge"), ("backward", "reorder")]),
    "pass_q": ((), dict(cp_comm_type="pass_q"), "pass_q", "same"),
    "mesh": ((2,), dict(cp_comm_type="mesh", cp_size=8, mesh_q=2), "mesh", "same"),
    "double_ring": ((2,), {}, None, None),
    "cast_behind_own_keys": ((), dict(layout="lpt_local", dispatch_chunk=16), None, None),
}


def test_every_example_is_tested():
    assert {file.stem for file in EXAMPLES.glob("*.py")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_an_example_has_at_most_40_lines(name):
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) <= 40


@pytest.mark.parametrize("dtype", ["bf16", "fp64"])
@pytest.mark.parametrize("name", EXPECTED)
def test_an_example_is_proved_and_passes(name, dtype):
    arguments, keys, _, _ = EXPECTED[name]
    s = example(name)(small(**keys, dtype=dtype), *arguments)
    proved = s.prove()
    assert "computed exactly once" in proved["coverage"] and set(proved) >= {"movement", "partials", "gradients", "bytes"}
    ran = s.run(poison=True)
    assert ran.passed, str(ran)
    assert ran.record.plan_hash == s.plan().hash
    assert {"out", "lse", "dq", "dk", "dv"} <= set(ran.record)


@pytest.mark.parametrize("name", [one for one in EXPECTED if EXPECTED[one][2]])
def test_an_example_is_the_built_in_schedule(name):
    arguments, keys, built_in, unlike = EXPECTED[name]
    s = example(name)(small(**keys), *arguments)
    found = s.compare_with(built_in)
    if unlike == "same":
        assert found and found.is_same_plan and s.plan().hash == cpscope.Scenario.of(**s_keys(keys)).plan().hash
        return
    assert not found.is_same_plan
    if unlike is not None:
        assert [key for key in found.counts if not found.equal(*key)] == unlike, str(found)


def s_keys(keys):
    return {**dict(heads=8, kv_heads=4, head_dim=16, lengths=[75, 0, 53], cp_size=4, attn_mask_type="padding_causal"), **keys}


def test_our_own_example_is_faster_than_every_built_in_way():
    """On the cluster, stack and lengths that its text names."""
    lengths = dict(generator=dict(name="prolong", tokens=262144, min=1, max=131072, seed=7))
    scenario = cpscope.Scenario.of(heads=32, kv_heads=8, head_dim=128, attn_mask_type="padding_causal", cp_size=16, layout="lpt_local",
                                   dispatch_chunk=1024, **lengths)
    best = scenario.compare("h200_ib").candidates[0]
    own = example("cast_behind_own_keys")(scenario)
    assert own.timeline("h200_ib").total_us < 0.98 * best["total_us"], best["name"]
    # It sends what group_cast sends, so the gain is what travels behind the own keys.
    group_cast = own.compare_with("group_cast")
    assert plan_bytes(own.plan(), "forward") == plan_bytes(scenario_of(scenario, "group_cast").plan(), "forward"), str(group_cast)


def scenario_of(scenario, comm_type):
    return cpscope.Scenario(re.sub(r"\[parallel\]\n", f'[parallel]\ncp_comm_type = "{comm_type}"\n', scenario.to_toml()))


def test_ulysses_sends_what_the_built_in_one_sends():
    """Queries, keys and their gradients are equal byte by byte; results carry their lse, 4 bytes a row and head, because the owner of
    the rows finishes them, and the built-in one computes all pairs of a rank at once."""
    scenario = small()
    mine, theirs = example("ulysses")(scenario).plan(), cpscope.Scenario.of(**s_keys({"cp_comm_type": "a2a"})).plan()
    sent = [plan_bytes(plan, "forward") for plan in (mine, theirs)]
    rows = scenario.layout().tokens * 3 // 4  # those that travel
    assert sent[0] - sent[1] == rows * 8 * 4
    work = [pairs_of_ranks(plan, "forward") for plan in (mine, theirs)]
    assert np.array_equal(*work)


def plan_bytes(plan, pass_):
    items = plan.items()
    chosen = (items["pass"] == pass_) & (items["kind"] == "transfer")
    return int(items["bytes"][chosen].sum())


def pairs_of_ranks(plan, pass_):
    items = plan.items()
    chosen = (items["pass"] == pass_) & (items["kind"] == "compute")
    return np.bincount(items["rank"][chosen], items["pairs"][chosen])


@pytest.mark.parametrize("keys", [dict(window_size=(20, -1)), dict(attn_mask_type="no_mask", qkv_format="bshd", lengths=[32, 32]),
                                  dict(layout="striped"), dict(kv_lengths=[40, 30, 90], attn_mask_type="padding_causal_bottom_right"),
                                  dict(softmax_type="learnable"), dict(layout="lpt", dispatch_chunk=8), dict(backward=False),
                                  dict(accumulate="dtype", dkv_wire="fp32"), dict(partial_wire="fp32", cp_comm_type="mesh")],
                         ids=lambda keys: " ".join(map(str, keys.values())))
@pytest.mark.parametrize("name", ["ring", "ulysses", "all_gather", "pass_q"])
def test_a_schedule_knows_no_mask_and_no_layout(name, keys):
    s = example(name)(small(**keys))
    assert s.run().passed, str(s.run())


def test_heads_of_a_rank_may_be_uneven():
    s = example("ulysses")(small(heads=6, kv_heads=2, cp_size=4, softmax_type="learnable"))
    assert s.run().passed
    s = example("ulysses")(small(heads=2, kv_heads=1, cp_size=4))  # ranks without heads only hold rows
    assert s.run().passed


def test_heads_may_be_computed_apart_where_nothing_moves():
    s = cpscope.Schedule(small(cp_size=1, softmax_type="learnable"))
    for heads in (slice(0, 3), 3, range(4, 8)):
        with s.step() as step:
            step.compute(0, s.q(0), s.kv(0), heads=heads)
    assert s.run().passed


def test_every_way_to_name_rows_names_the_same_block():
    s = cpscope.Schedule(small())
    index = s.layout.q_index[1]
    rows = np.arange(len(index)) % 3 == 0
    block = s.q(1, rows)
    assert block is s.q(1, np.flatnonzero(rows)) is s.q(1, slice(0, None, 3)) is s.q(1, range(0, len(index), 3)) is s.q(1, tokens=np.sort(index[rows]))
    assert s.q(1) is s.q(1, range(len(index))) is s.q(-3) and s.q(1, heads=slice(0, 2)) is s.q(1, heads=[0, 1]) and s.kv(1) is not s.q(1)
    chunks = [s.q(1, chunk=one) for one in (0, 1)]
    assert sum(one.rows for one in chunks) == len(index) and list(s.kv_heads(range(2, 5))) == [1, 2]


def test_parts_of_rows_are_sent_and_computed_apart():
    rng = np.random.default_rng(5)
    s = cpscope.Schedule(small(cp_size=3, lengths=[47, 22]))
    with s.step() as step:
        for r in s.ranks:
            step.compute(r, s.q(r), s.kv(r))
            for o in s.ranks:
                if o == r:
                    continue
                kind = rng.integers(0, 3, len(s.layout.kv_index[o]))  # rows in no order
                for one in range(3):
                    part = s.kv(o, kind == one)
                    step.send(part, o, r, before=True)
                    step.compute(r, s.q(r, slice(0, None, 2)), part)
                    step.compute(r, s.q(r, slice(1, None, 2)), part)
    assert s.run().passed


def test_joined_blocks_meet_in_one_compute():
    scenario = small(layout="striped")
    s = cpscope.Schedule(scenario)
    with s.step() as step:
        for r in s.ranks:
            step.compute(r, s.q(r), s.kv(r))
            others = s.join(s.kv(o) for o in s.ranks if o != r)
            step.gather(others, r)
    with s.step() as step:
        for r in s.ranks:
            step.compute(r, s.q(r), s.join(s.kv(o) for o in s.ranks if o != r))
    assert s.run().passed
    items = s.plan().items()
    assert ((items["kind"] == "compute") & (items["pass"] == "forward")).sum() == 8
    assert plan_bytes(s.plan(), "forward") == plan_bytes(example("all_gather")(scenario).plan(), "forward")


def test_gradients_may_travel_with_the_keys():
    for keys in (dict(accumulate="dtype"), dict(dkv_wire="fp32", layout="contiguous"), dict(cp_size=2), dict(cp_size=1),
                 dict(kv_lengths=[3, 40, 90], attn_mask_type="padding_causal_bottom_right"), dict(lengths=[1, 5], layout="contiguous")):
        s = ring_of(cpscope.Schedule(small(**keys, dkv_hops="ring"), gradients="with_keys"))
        assert s.run(poison=True).passed, keys
        assert plan_bytes(s.plan(), "backward") == plan_bytes(s.scenario.plan(), "backward"), keys
    # The keys of two ranks stop half way; those of rank 3 are not sent.
    s = cpscope.Schedule(small(layout="contiguous", lengths=[64]), gradients="with_keys")
    for i in range(4):
        step = s.step()
        for owner in s.ranks:
            r = owner + i
            if r < 4:
                step.compute(r, s.q(r), s.kv(owner))
                if r < 3:
                    step.send(s.kv(owner), r, r + 1)
    assert s.run(poison=True).passed


def test_gradients_that_cannot_travel_are_named():
    def branches(s):
        step = s.step()
        step.send(s.kv(0), 0, 1)
        step.send(s.kv(0), 0, 2)
        s.step()
    assert ("the gradient of the keys of rank 0 cannot travel with them: rank 0 sends them to a second rank in step 1"
            in told(branches, gradients="with_keys"))
    assert "cannot travel with them: step 1 waits for them" in told(
        lambda s: s.step().send(s.kv(0), 0, 1, before=True), gradients="with_keys")
    assert "cannot travel with them: step 1 sends a part" in told(
        lambda s: s.step().send(s.kv(0, [0]), 0, 1), gradients="with_keys")
    def late(s):
        s.step().send(s.kv(0), 0, 1)
        s.step().compute(0, s.q(0), s.kv(0))
    assert "rank 0 computes with them in step 2, and has sent them on in step 1" in told(late, gradients="with_keys")
    with pytest.raises(cpscope.InputError, match="prunes leaves some out"):
        cpscope.Schedule(small(), gradients="with_keys", prunes=True)


def test_a_backward_may_have_its_own_steps():
    s = ring_of(cpscope.Schedule(small()))
    with s.backward_step() as step:
        for r in s.ranks:
            for o in s.ranks:
                if o != r:
                    step.send(s.q(o), o, r, before=True)
                step.compute(r, s.q(o), s.kv(r))
    assert s.run().passed
    assert len(set(s.plan().items()["step"][s.plan().items()["pass"] == "backward"])) == 1
    with pytest.raises(cpscope.ScheduleError, match="the scenario has no backward"):
        cpscope.Schedule(small(backward=False)).backward_step()


# Errors.

def line_of(mark):
    return next(number for number, line in enumerate(pathlib.Path(__file__).read_text().splitlines(), 1) if mark in line and "line_of" not in line)


def told(write, scenario=None, **options):
    """What a schedule is told, without the name of this file."""
    with pytest.raises(cpscope.ScheduleError) as caught:
        s = cpscope.Schedule(scenario or small(), **options)
        write(s)
        s.prove()
    assert len(caught.value.complaints) == 1 and isinstance(caught.value, ValueError)
    assert re.match(r"test_schedules\.py:\d+: ", str(caught.value)), caught.value
    return str(caught.value).removeprefix("test_schedules.py:")


def test_a_step_that_computes_with_what_is_not_there_is_named():
    def write(s):
        with s.step() as step:
            step.compute(0, s.q(0), s.kv(0))
        with s.step() as step:
            step.send(s.kv(3), 3, 1)
            step.compute(1, s.q(1), s.kv(3))  # too early
    assert told(write).startswith(f"{line_of('# too early')}: step 2: rank 1 computes with the keys of rank 3, which it does not hold then; ")


def test_a_send_of_what_is_not_there_is_named():
    def write(s):
        with s.step() as step:
            step.send(s.q(0), 0, 1, before=True)
            step.send(s.q(0), 1, 2, before=True)  # not there yet
    assert told(write).startswith(f"{line_of('# not there yet')}: step 1: rank 1 sends the queries of rank 0, which it does not hold then")


def test_a_block_that_arrives_twice_is_named():
    def write(s):
        for _ in range(2):
            with s.step() as step:
                step.send(s.q(0), 0, 1)
    assert "step 2: rank 1 receives the queries of rank 0, which it holds already" in told(write)


WRONG = {
    "there is no rank 4; 0 to 3": lambda s: s.step().send(s.q(0), 0, 4),
    "step 1: there is no rank -1; 0 to 3": lambda s: s.step().compute(-1, s.q(0), s.kv(0)),
    "there is no rank -5; 0 to 3, or -1 for the last one": lambda s: s.q(-5),
    "there is no rank 'a'": lambda s: s.q("a"),
    "there is no rank [0]": lambda s: s.q([0]),
    "there is no rank True": lambda s: s.q(True),
    "step 1: rank 2 sends the queries of rank 2 to itself": lambda s: s.step().send(s.q(2), 2, 2),
    "step 1: send takes blocks, not a list": lambda s: s.step().send([s.q(0)], 0, 1),
    "step 1: compute takes blocks, not a int": lambda s: s.step().compute(0, 3, s.kv(0)),
    "step 1: compute takes queries, then keys: the keys of rank 0, the queries of rank 0": lambda s: s.step().compute(0, s.kv(0), s.q(0)),
    "is a block of another schedule": lambda s: s.step().compute(0, cpscope.Schedule(small()).q(0), s.kv(0)),
    "query heads must be consecutive numbers from 0 to 7: [0, 2]": lambda s: s.q(0, heads=[0, 2]),
    "KV heads must be consecutive numbers from 0 to 3: range(2, 6): there is no number 4": lambda s: s.kv(0, heads=range(2, 6)),
    "KV heads must be consecutive numbers from 0 to 3: slice(2, 2, None)": lambda s: s.kv(0, heads=slice(2, 2)),
    "rows of the queries of rank 0, of which there are 34, must ascend: [3, 1]: 1 comes after 3": lambda s: s.q(0, [3, 1]),
    "[3, 3]: 3 comes after 3": lambda s: s.q(0, [3, 3]),
    "there is no number 34": lambda s: s.q(0, [33, 34]),
    "[0.5]: whole numbers are required": lambda s: s.q(0, [0.5]),
    "{1: 2}: whole numbers are required": lambda s: s.q(0, {1: 2}),
    "a slice that falls": lambda s: s.q(0, slice(None, None, -1)),
    "a mask of 3 rows, 34 are there": lambda s: s.q(0, [True, False, True]),
    "a block holds no queries": lambda s: s.q(0, []),
    "rank 0 does not own the queries of token 20": lambda s: s.q(0, tokens=[0, 20]),
    "rows, tokens and chunk each name rows of the keys of rank 0; give one of them": lambda s: s.kv(0, [0], chunk=0),
    "chunk=2 of layout dual_chunk": lambda s: s.q(0, chunk=2),
    "nothing is joined": lambda s: s.join([]),
    "the keys of rank 0 and the queries of rank 1 are not joined": lambda s: s.join([s.kv(0), s.q(1)]),
    "step 1: the joined keys of 2 blocks come from several ranks": lambda s: s.step().send(s.join([s.kv(0), s.kv(1)]), 0, 2),
    "step 1: the keys of rank 0 have one owner": lambda s: s.step().gather(s.kv(0), 2),
    "step 1: rank 1 gathers its own queries": lambda s: s.step().gather(s.join([s.q(0), s.q(1)]), 1),
    "step 1: rank 0 computes with the joined keys of 2 blocks, which it does not hold then":
        lambda s: s.step().compute(0, s.q(0), s.join([s.kv(0), s.kv(1)])),
    "step 1: rank 0 computes heads 4..7 of": lambda s: s.step().compute(0, s.q(0), s.kv(0, heads=0), heads=slice(4, 8)),
    "no query head of the one reads a KV head of the other": lambda s: s.step().compute(0, s.q(0, heads=0), s.kv(0, heads=3)),
}


@pytest.mark.parametrize("said", WRONG)
def test_what_is_wrong_is_said_with_its_line(said):
    assert said in told(WRONG[said])


def test_options_that_do_not_exist_are_named():
    with pytest.raises(cpscope.InputError, match="results return at another time: 'later'"):
        cpscope.Schedule(small(), returns="later")
    with pytest.raises(cpscope.InputError, match="not for a dict"):
        cpscope.Schedule({})
    with pytest.raises(cpscope.InputError, match="no communication type has this name: rings"):
        ring_of(cpscope.Schedule(small())).compare_with("rings")


def test_a_missing_pair_is_named_in_tokens():
    scenario = small(lengths=[128], layout="contiguous")
    assert told(lambda s: ring_of(s, 3), scenario).endswith(
        ": tokens 96..127 of sequence 0 (of rank 3) never meet keys 0..31 (of rank 0), which padding_causal lets them see; "
        "compute them on a rank that holds both")
    def forgets_heads(s):
        for i in s.ranks:
            with s.step() as step:
                for r in s.ranks:
                    step.compute(r, s.q(r), s.kv(r - i), heads=range(3 if i == 1 and r == 2 else 8))
                    if i < 3:
                        step.send(s.kv(r - i), r, (r + 1) % 4)
    assert ": tokens 64..95 of sequence 0 (of rank 2) never meet keys 32..63 (of rank 1) with heads 3..7, which" in told(forgets_heads, scenario)
    assert ": tokens 0..31 of sequence 0 (of rank 0) never meet keys 0..31 (of rank 0), which" in told(lambda s: None, scenario)


def test_a_doubled_pair_is_named_with_both_lines():
    def write(s):
        ring_of(s)
        with s.step() as step:
            step.compute(2, s.q(2, slice(8, 20)), s.kv(0, [3, 4, 5]), heads=range(2, 6))  # once more
    said = told(write, small(lengths=[128], layout="contiguous"))
    assert said.startswith(f"{line_of('# once more')}: step 5: rank 2 computes tokens 72..83 of sequence 0 (of rank 2) with keys 3..5 (of rank 0) "
                           "with heads 2..5 a second time; test_schedules.py:"), said
    assert said.endswith(": step 3: rank 2 computes them too")


def test_a_backward_of_its_own_is_proved_too():
    def write(s):
        ring_of(s)
        with s.backward_step() as step:
            for r in s.ranks:
                step.compute(r, s.q(r), s.kv(r))
    assert ": backward, tokens 32..63 of sequence 0 (of rank 1) never meet keys 0..31" in told(write, small(lengths=[128], layout="contiguous"))


def test_empty_steps_are_allowed_and_changes_are_proved_anew():
    s = cpscope.Schedule(small())
    s.step()
    ring_of(s)
    s.step()
    first = s.plan()
    assert s.plan() is first and s.run().passed
    s.step().compute(0, s.q(0), s.kv(0))
    with pytest.raises(cpscope.ScheduleError, match="a second time"):
        s.prove()
    again = cpscope.Schedule(s.scenario)
    again.step()
    ring_of(again)
    again.step()
    assert first.hash == again.plan().hash


def test_a_rank_without_rows_takes_part():
    scenario = small(heads=4, lengths=[8], slots=[8], layout="contiguous").with_order([[0, 1, 2, 3, 4], [5, 6, 7], [], []])
    s = example("all_gather")(scenario)
    assert s.q(2).rows == 0 and s.run().passed
    assert example("pass_q")(scenario).run().passed
    assert example("ulysses")(scenario).run().passed


def test_sends_of_what_nobody_sees_are_left_out():
    scenario = small(layout="contiguous")
    all_sends, pruned = (ring_like(cpscope.Schedule(scenario, prunes=prunes)).plan() for prunes in (False, True))
    assert plan_bytes(pruned, "forward") < plan_bytes(all_sends, "forward")


def ring_like(s):
    """Every rank gets the keys of all others from their owners."""
    with s.step() as step:
        for r in s.ranks:
            for o in s.ranks:
                if o != r:
                    step.send(s.kv(o), o, r, before=True)
                step.compute(r, s.q(r), s.kv(o))
    return s


def test_many_ranks_take_seconds():
    begin = time.process_time()
    s = ring_of(cpscope.Schedule(cpscope.Scenario.of(heads=1, head_dim=8, lengths=[256 * 64], cp_size=256, layout="contiguous")))
    assert s.plan().summary["steps"] == 256
    assert time.process_time() - begin < 10


def test_random_schedules_are_proved_and_pass():
    for seed in range(40):
        s = random_schedules.proved(seed)
        ran = s.run(poison=True)
        assert ran.passed, f"seed {seed}\n{s.scenario.to_toml()}\n{ran}"


def test_sums_of_different_sizes_share_a_buffer():
    """Of a short sum the rows behind it are never read."""
    s = cpscope.Schedule(small(lengths=[64], cp_size=2, layout="contiguous", heads=4))
    steps = [s.step() for _ in range(4)]
    long, short, rest = s.q(1, range(10)), s.q(1, range(10, 14)), s.q(1, range(14, 32))
    for r in s.ranks:
        steps[0].compute(r, s.q(r), s.kv(r))
    steps[0].send(s.kv(0), 0, 1, before=True)
    steps[0].compute(1, rest, s.kv(0))
    for block, step, cut in ((long, 0, 2), (short, 2, 1)):
        steps[step].send(block, 1, 0)
        for heads in (range(cut), range(cut, 4)):
            steps[step + 1].compute(0, block, s.kv(0), heads=heads)
    assert s.run(poison=True).passed


def test_a_random_schedule_without_one_compute_is_not_proved():
    """Whichever compute is left out, if it had something to do."""
    rng = np.random.default_rng(3)
    caught = 0
    for seed in range(40):
        s = random_schedules.proved(seed)
        if not s.scenario.backward or s._backward:
            continue
        pairs = int(s.plan().summary["visible_pairs"])
        numbers = np.array(s._forward.numbers).reshape(-1, 7)
        chosen = int(rng.choice(np.flatnonzero(numbers[:, 1] == 1)))
        del s._forward.numbers[7 * chosen:7 * chosen + 7]
        del s._forward.lines[chosen]
        s._plan = None
        try:
            left = int(s.plan().summary["visible_pairs"])
            assert left == pairs, f"seed {seed}: {left} of {pairs} pairs are left"
        except cpscope.ScheduleError as error:
            assert "never meet keys" in str(error), f"seed {seed}: {error}"
            caught += 1
    assert caught > 5, caught


def test_a_schedule_is_shown_predicted_and_written():
    s = ring_of(cpscope.Schedule(small()))
    assert "<svg" in s.show("balance", theme="light").svg and "<svg" in s._repr_html_()
    assert s.timeline("h200x8").total_us > 0
    assert repr(s) == "<cpscope.Schedule of 4 steps on 4 ranks, 28 sends and computes>"
    assert repr(s.kv(1, heads=2)) == "<cpscope.Block: the keys of rank 1, KV head 2>"
    assert not s.compare_with("a2a") and "only here: forward" in repr(s.compare_with("a2a"))
    assert s.compare_with(s) and s.compare_with(s.plan()).is_same_plan


def test_the_program_proves_and_runs_what_is_written(program, tmp_path):
    s = ring_of(cpscope.Schedule(small(), gradients="with_keys"))
    (tmp_path / "plan.json").write_text(s.to_json())
    assert program("check", tmp_path / "plan.json")["plan_hash"] == s.plan().hash
    assert program("run", tmp_path / "plan.json")["passed"]
    document = json.loads(s.to_json())
    document["forward"]["merges"].pop()
    (tmp_path / "wrong.json").write_text(json.dumps(document))
    assert "error" in program("check", tmp_path / "wrong.json") or not program("check", tmp_path / "wrong.json")["passed"]


def test_the_page_runs():
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    names = {}
    for block in blocks:
        exec(compile(block, "ring.py", "exec"), names)
    assert names["s"].run().passed
    assert len(blocks[0].splitlines()) <= 30
