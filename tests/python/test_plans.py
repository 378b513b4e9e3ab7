"""Scenarios, layouts, plans and imported orders are those of the program."""
import json
import os
import pathlib
import pickle
import subprocess
import sys

import numpy as np
import pytest

import cpscope

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOME = ["thd_padding_p2p", "thd_padding_a2a", "thd_padding_hierarchical", "striped", "imported_order", "cross_attention",
        "packed_group_cast"]


def test_shipped_scenarios_are_those_of_the_tree():
    assert cpscope.shipped() == sorted(file.stem for file in (ROOT / "scenarios").glob("*.toml"))


def test_every_shipped_scenario_has_a_layout():
    for name in cpscope.shipped():
        layout = cpscope.Scenario.load(name).layout()
        if layout.q_heads is not None:  # ranks own heads of all queries
            assert all(np.array_equal(index, np.arange(layout.tokens)) for index in layout.q_index), name
            continue
        assert sorted(np.concatenate(layout.q_index)) == list(range(layout.tokens)), name


def test_local_keys_and_decode_steps_are_those_of_the_program(program):
    file = "scenarios/decode_drafts.toml"
    layout = cpscope.Scenario.load("decode_drafts").layout()
    told = program("layout", file, "--local-keys", "--decode-steps", 3)
    for columns, rows in ((layout.local_keys(), told["local_keys"]), (layout.decode_steps(3), told["decode_steps"])):
        assert set(columns) == set(rows[0]) and list(columns)[-1] == "keys"
        for name, column in columns.items():
            assert column.dtype == np.int64 and column.tolist() == [row[name] for row in rows], name
    for steps in (0, 1.5, 1 << 23):
        with pytest.raises(cpscope.InputError, match="steps must be a whole number"):
            layout.decode_steps(steps)
    with pytest.raises(cpscope.RefusedError, match="stripe"):
        cpscope.Scenario.load("zigzag").layout().decode_steps(1)
    empty = cpscope.Scenario.of(lengths=[0, 0], heads=1, head_dim=8, cp_size=2, layout="striped").layout()
    assert empty.local_keys()["keys"].shape == (0, 2)


def test_a_step_of_vllm_is_imported(tmp_path):
    # Two ranks, blocks of 4 slots, interleave 2: requests of 5 cached and 2 new tokens, and of 3 new.
    step = dict(query_start_loc=np.array([0, 2, 5], np.int32), block_table=np.array([[6, 0], [9, 0]], np.int32), block_size=4, seq_lens=[7, 3])
    order = cpscope.from_vllm([[27, -1, 36, 37, -1], [-1, 26, -1, -1, 36]], **step, dcp_local_seq_lens=[[4, 2], [3, 1]])
    assert order.differences == [] and order.interleaves == [(2, 2)]
    assert [rank.tolist() for rank in order.ranks] == [[0, 2, 3], [1, 4]]
    assert [rank.tolist() for rank in order.kv_ranks] == [[0, 1, 4, 5, 7, 8], [2, 3, 6, 9]]
    assert (order.lengths, order.kv_lengths) == ([2, 3], [7, 3])
    order.save(tmp_path / "order.json")
    scenario = cpscope.Scenario.of(lengths=order.lengths, kv_lengths=order.kv_lengths, heads=2, head_dim=8, cp_size=2, cp_comm_type="gather_q",
                                   attn_mask_type="causal_bottom_right", backward=False, layout="indices", indices_file=str(tmp_path / "order.json"))
    assert scenario.run()
    # Block tables alone, and the interleave that the engine was started with.
    alone = cpscope.from_vllm(**step, cp_kv_cache_interleave_size=2, cp_size=2)
    assert [rank.tolist() for rank in alone.kv_ranks] == [[0, 1, 4, 5, 7, 8], [2, 3, 6, 9]]
    wrong = cpscope.from_vllm([[27, -1, 36, 37, -1], [-1, 22, -1, -1, 36]], **step)
    assert wrong.differences == ["position 6 of request 0 is in slot 22 of rank 1, in block 5, which is not in the request's block table (1 of 5 new keys)"]
    with pytest.raises(cpscope.InputError, match="position 5 of request 0 is in no rank's cache"):
        cpscope.from_vllm([[-1, -1, 36, 37, -1], [-1, 26, -1, -1, 36]], **step)
    with pytest.raises(cpscope.InputError, match="block_size must be a whole number: 4.5"):
        cpscope.from_vllm([[0]], block_size=4.5)
    with pytest.raises(cpscope.InputError, match=r"slot_mapping\[0\] holds a number that is too large: 9223372036854775808"):
        cpscope.from_vllm([np.array([2**63], np.uint64), [0]], [0, 1], block_size=16)


@pytest.mark.parametrize("owner", ["heads", "heads_replicated"])
def test_ranks_that_own_heads_get_their_heads_of_all_queries(owner):
    scenario = cpscope.Scenario.of(lengths=[3, 1], kv_lengths=[40, 9], heads=7, kv_heads=1, head_dim=8, attn_mask_type="causal_bottom_right",
                                cp_size=3, cp_comm_type="gather_q", layout="striped", q_owner=owner, backward=False, dtype="fp32")
    layout = scenario.layout()
    assert layout.q_heads == [(0, 2), (2, 4), (4, 7)]
    q = scenario.inputs()["q"]
    parts = layout.cut(q)
    assert [part.shape for part in parts] == [(4, 2, 8), (4, 2, 8), (4, 3, 8)]
    assert np.array_equal(layout.join(parts), q)
    of_rank = scenario.inputs(rank=2)["q"]
    assert np.array_equal(of_rank, q if owner == "heads_replicated" else parts[2])
    with pytest.raises(cpscope.Error, match="ranks own heads, and the tensor has no such"):
        layout.cut(q[:, :5])
    with pytest.raises(cpscope.Error, match="the parts have other heads than the ranks"):
        layout.join(parts[::-1])
    # Each rank's own tensors are graded, and gathered over heads nothing has to be.
    answer = scenario.oracle()
    ranks = [scenario.inputs(rank) | {name: layout.cut(answer[name])[rank] for name in ("out", "lse")} for rank in range(3)]
    assert scenario.grade(ranks)
    ranks[1]["lse"] = ranks[1]["lse"][:, :1]
    with pytest.raises(cpscope.InputError, match=r'"lse.rank1" has a shape that fits nothing: \[4, 1\].*rank 1 owns heads \[2, 4\)'):
        scenario.grade(ranks)


@pytest.mark.parametrize("name", SOME)
def test_layouts_are_those_of_the_program(program, name):
    theirs = program("layout", ROOT / "scenarios" / f"{name}.toml", "--full")
    layout = cpscope.Scenario.load(name).layout()
    assert layout.to_dict(full=True) == theirs
    for rank in theirs["ranks"]:
        r = rank["rank"]
        for side in ("q", "kv"):
            for what in ("index", "sequence", "position"):
                mine = getattr(layout, f"{side}_{what}")[r]
                assert mine.dtype == np.int64 and mine.tolist() == rank[f"{side}_{what}"]
            assert getattr(layout, f"{side}_valid")[r].tolist() == [s >= 0 for s in rank[f"{side}_sequence"]]


def test_tokens_of_left_padded_slots_are_at_their_end():
    keys = dict(heads=2, head_dim=8, cp_size=2, lengths=[3, 8], slots=[8, 8], layout="contiguous", dtype="fp64")
    left, right = (cpscope.Scenario.of(**keys, pad_side=side) for side in ("left", "right"))
    assert left.settings["pad_side"] == "left" and cpscope.Scenario(left.to_toml()) == left != right
    layout = left.layout()
    first = layout.sequences[0]
    assert (first.q_begin, first.q_valid_begin, first.q_valid, first.kv_valid_begin) == (0, 5, 3, 5)
    assert layout.q_position[0].tolist() == [-1] * 5 + [0, 1, 2]
    assert layout.q_valid[0].tolist() == [False] * 5 + [True] * 3
    # The same inputs and answers token by token.
    for made in (lambda scenario: scenario.inputs(), lambda scenario: scenario.oracle()):
        a, b = made(left), made(right)
        for name in ("q", "v", "out", "lse", "dk"):
            if name in a:
                assert np.array_equal(a[name][5:8], b[name][:3]) and np.array_equal(a[name][8:], b[name][8:]), name
    with pytest.raises(cpscope.ScenarioError, match='padding_side = "left": use pad_side = "left"'):
        cpscope.Scenario.of(**keys, padding_side="left")


@pytest.mark.parametrize("name", SOME[:4])
def test_plans_are_those_of_the_program(program, name):
    file = ROOT / "scenarios" / f"{name}.toml"
    plan = cpscope.Scenario.load(name).plan()
    assert plan.to_dict() == program("plan", file)
    assert plan.summary == program("plan", file, "--summary")
    assert plan.hash == plan.summary["plan_hash"]
    assert len(plan.text(10).splitlines()) == 11


def test_a_plan_says_what_transformer_engine_passes(program):
    assert cpscope.Scenario.load("thd_padding_p2p").plan().te() == program("plan", "scenarios/thd_padding_p2p.toml", "--te")
    with pytest.raises(cpscope.RefusedError, match="striped"):
        cpscope.Scenario.load("striped").plan().te()


def test_a_scenario_of_keys_is_that_of_a_text():
    text = """schema = 1
[attention]
heads = 4
head_dim = 8
window_size = [3, 0]
[batch]
lengths = [5, 9]
slots = [8, 12]
[parallel]
cp_size = 2
"""
    keys = cpscope.Scenario.of(heads=4, head_dim=8, window_size=(3, 0), cp_size=np.int64(2),
                               cu_seqlens=np.array([0, 5, 14], np.int32), cu_seqlens_padded=[0, 8, 20])
    assert cpscope.Scenario(text).to_toml() == keys.to_toml()
    assert cpscope.Scenario(keys.text).plan().hash == keys.plan().hash


def test_te_order_is_its_own_formula():
    # thd_get_partitioned_indices, written out: every slot in 4 chunks, rank r has chunks r and 3 - r.
    order = cpscope.from_te([0, 7, 10], [0, 8, 12], cp_size=2)
    assert [ids.tolist() for ids in order.ranks] == [[0, 1, 6, 7, 8, 11], [2, 3, 4, 5, 9, 10]]
    assert (order.lengths, order.slots, order.same_layout) == ([7, 3], [8, 4], "dual_chunk")


def test_orders_of_frameworks_replace_a_layout(tmp_path):
    scenario = cpscope.Scenario.of(heads=2, head_dim=4, lengths=[32], cp_size=4)
    for order in (cpscope.from_usp("zigzag", cp_size=4, ulysses_degree=2, tokens=32),
                  cpscope.from_ring_flash_attention("stripe", cp_size=4, tokens=32),
                  cpscope.from_torch(rearrange=np.arange(32)[::-1].copy(), cp_size=4)):
        ordered = scenario.with_order(order)
        assert [ids.tolist() for ids in ordered.layout().q_index] == [ids.tolist() for ids in order.ranks]
        assert [ids.tolist() for ids in scenario.with_order(order.ranks).layout().q_index] == \
            [ids.tolist() for ids in order.ranks]
    order.save(tmp_path / "order.json")
    text = scenario.text.replace("cp_size = 4", 'cp_size = 4\nlayout = "indices"\nindices_file = "order.json"')
    assert cpscope.Scenario(text, folder=tmp_path).plan().hash == ordered.plan().hash


OF_ORDER = dict(heads=4, kv_heads=2, head_dim=8, attn_mask_type="causal")
HALVES = [[0, 1, 2, 3, 12, 13, 14, 15], list(range(4, 12))]


def test_an_order_tells_its_ranks_and_without_lengths_one_sequence():
    named = cpscope.Scenario.of(**OF_ORDER, lengths=[16], cp_size=2, layout="contiguous").with_order(HALVES)
    for order in (HALVES, np.array(HALVES), [np.array(ids) for ids in HALVES]):
        assert cpscope.Scenario.of(**OF_ORDER, order=order) == named
    assert cpscope.Scenario.of(**OF_ORDER, order=HALVES, layout="indices", cp_size=np.int64(2)) == named
    assert pickle.loads(pickle.dumps(cpscope.Scenario.of(**OF_ORDER, order=HALVES))) == named
    two = cpscope.Scenario.of(**OF_ORDER, order=HALVES, lengths=[9, 5], slots=[10, 6])
    assert two.settings["lengths"] == [9, 5] and [ids.tolist() for ids in two.layout().q_index] == HALVES
    assert cpscope.Scenario.of(**OF_ORDER, order=HALVES, cu_seqlens=[0, 9, 16]).settings["lengths"] == [9, 7]
    uneven = cpscope.Scenario.of(**OF_ORDER, order=[[0, 5, 1], [2], [4, 3], [], [], []])
    assert uneven.settings["lengths"] == [6] and uneven.plan()
    for pads in (True, False):
        rows = cpscope.Scenario.of(**OF_ORDER, qkv_format="bshd", batch_size=2, seqlen=3, pad_between_seqs=pads, order=[[0, 1, 2], [3, 4, 5]])
        assert [ids.tolist() for ids in rows.layout().q_index] == [[0, 1, 2], [3, 4, 5]]
    assert cpscope.mask_picture(order=HALVES)


def test_an_order_may_be_of_the_slots_alone_where_a_layout_adds_padding(tmp_path):
    order = [[0, 1, 6], [2, 3, 4, 5]]
    (tmp_path / "order.json").write_text(json.dumps({"ranks": order}))
    packed, rows = dict(lengths=[4, 3]), dict(qkv_format="bshd", batch_size=1, seqlen=7)
    for batch in (packed, rows, dict(cu_seqlens=[0, 4, 7])):
        scenario = cpscope.Scenario.of(**OF_ORDER, **batch, order=order)
        told = "batch_size = 1\nseqlen = 7\nqkv_format = \"bshd\"" if batch is rows else "lengths = [4, 3]"
        of_file = cpscope.Scenario('schema = 1\n[attention]\nheads = 4\nkv_heads = 2\nhead_dim = 8\nattn_mask_type = "causal"\n[batch]\n' + told
                                   + '\n[parallel]\ncp_size = 2\nlayout = "indices"\nindices_file = "order.json"', folder=tmp_path)
        assert scenario == of_file and scenario.plan().hash == of_file.plan().hash
        assert [ids.tolist() for ids in scenario.layout().q_index] == order
        assert pickle.loads(pickle.dumps(scenario)) == scenario
        padded = cpscope.Scenario.of(**OF_ORDER, **batch, order=[[0, 1, 6, 7], [2, 3, 4, 5]])
        assert padded.layout().q_index[0].tolist() == [0, 1, 6, 7] and padded != scenario
    of_rows = cpscope.Scenario.of(**OF_ORDER, **rows, pad_between_seqs=False, order=order)
    assert [ids.tolist() for ids in of_rows.layout().q_index] == order
    assert cpscope.Scenario.of(**OF_ORDER, order=order).run()
    cut = cpscope.Scenario.of(**OF_ORDER, **packed, cp_size=2).with_order(order)  # dual_chunk pads 4 and 3 to 4 each
    assert cut == cpscope.Scenario.of(**OF_ORDER, **packed, order=order)
    with pytest.raises(cpscope.InputError, match="7 ids for 8 slots"):
        cpscope.Scenario.of(**OF_ORDER, order=[[0, 1, 7], [2, 3, 4, 5]])


def test_a_saved_scenario_loads_as_an_equal_one_with_its_order(tmp_path):
    keys = dict(attn_mask_type="causal_bottom_right", qkv_format="bshd", batch_size=1, seqlen=4, kv_seqlen=6)
    scenarios = [cpscope.Scenario.of(**OF_ORDER, lengths=[5, 2], cp_size=2), cpscope.Scenario.of(**OF_ORDER, order=HALVES),
                 cpscope.Scenario.of(**OF_ORDER, lengths=[4, 3], order=[[0, 1, 6], [2, 3, 4, 5]]),
                 cpscope.Scenario.of(**OF_ORDER, lengths=[4, 3], order=[[0, 1, 6, 7], [2, 3, 4, 5]]),
                 cpscope.Scenario.of(**(OF_ORDER | keys), order=[[0, 3], [1, 2]], kv_order=[[0, 1, 5], [4, 2, 3]])]
    for number, scenario in enumerate(scenarios):
        file = tmp_path / f"one of {number}.toml"
        scenario.save(file)
        again = cpscope.Scenario.load(file)
        assert again == scenario and [ids.tolist() for ids in again.layout().kv_index] == [ids.tolist() for ids in scenario.layout().kv_index], number
        assert file.with_suffix(".order.json").exists() == (number > 0)
        again.save(tmp_path / "copy.toml")
        assert cpscope.Scenario.load(tmp_path / "copy.toml") == scenario, number


def test_a_warning_about_a_scenario_of_an_order_is_told_once_in_the_users_line():
    with pytest.warns(UserWarning, match="^a2a_size does not apply") as told:
        cpscope.Scenario.of(**OF_ORDER, a2a_size=2, qkv_format="bshd", batch_size=2, seqlen=3, order=[[0, 1, 2], [3, 4, 5]])
    assert [one.filename for one in told] == [__file__]


def test_an_imported_order_tells_its_batch_too():
    order = cpscope.from_te([0, 7, 10], [0, 8, 12], cp_size=2)
    scenario = cpscope.Scenario.of(**OF_ORDER, order=order)
    assert scenario == cpscope.Scenario.of(**OF_ORDER, lengths=[7, 3], slots=[8, 4], cp_size=2).with_order(order)
    assert cpscope.Scenario.of(**OF_ORDER, order=order, lengths=[8, 4]).settings["lengths"] == [8, 4]


def test_keys_have_an_order_of_their_own_in_cross_attention():
    keys = {**OF_ORDER, "attn_mask_type": "no_mask", "cp_comm_type": "all_gather"}
    scenario = cpscope.Scenario.of(**keys, order=[[0, 3], [1, 2]], kv_order=HALVES)
    assert (scenario.settings["lengths"], scenario.settings["kv_lengths"]) == ([4], [16])
    assert [ids.tolist() for ids in scenario.layout().kv_index] == HALVES


@pytest.mark.parametrize("keys, text", [
    (dict(order=HALVES, cp_size=4), "order is of 2 ranks, cp_size is 4"),
    (dict(order=HALVES, layout="striped"), "order and layout say the same"),
    (dict(order=HALVES, indices_file="order.json"), "order and indices_file say the same"),
    (dict(order=3), "neither an Order nor a list for each rank"),
    (dict(order=iter([[0, 1], [2, 3]])), "neither an Order nor a list for each rank"),
    (dict(order=[]), "order has no rank"),
    (dict(order=[[0, 1, 2, 3], [4, 5, 6, 7]], lengths=[7], pad_side="left"), "the order has 8 ids for slots of 7 tokens, and pad_side left"),
    (dict(order=[[0, 1, 2], [3, 4, 8], [5, 6, 7]], lengths=[4, 4], qkv_format="bshd"), "the order has 9 ids for slots of 8 tokens"),
    (dict(order=[[0, 1], [2, 2]]), r"token 2 \(sequence 0, position 2\) appears twice.*token 3 \(sequence 0, position 3\) is lost"),
    (dict(kv_order=HALVES), "kv_order without order"),
    (dict(layout="indices", lengths=[16], cp_size=2), r"indices_file; order=\[token ids of rank 0"),
    (dict(layout="indices", lengths=[16], cp_size=2, indices=HALVES), r"no key indices; order=\[token ids of rank 0"),
    (dict(layout="indices", lengths=[4], cp_size=2, owners=[0, 1, 1, 0]), r"no key owners; order=.*np.flatnonzero\(owners == rank\)")])
def test_what_an_order_lacks_is_named(keys, text):
    with pytest.raises(cpscope.Error, match=text):
        cpscope.Scenario.of(**OF_ORDER, **keys)


def test_padding_of_magi_attention_has_places_of_its_own():
    order = cpscope.from_magi([np.array([0, 1, 2, 3, 12, 13, 13, 13]), range(4, 12)], cu_seqlens=[0, 5, 14])
    assert order.ranks[0].tolist() == [0, 1, 2, 3, 12, 13, 14, 15]
    assert (order.lengths, order.slots) == ([5, 9], [5, 11])
    scenario = cpscope.Scenario.of(heads=2, head_dim=4, lengths=order.lengths, slots=order.slots, cp_size=2,
                                   layout="dual_chunk_packed")
    assert scenario.with_order(order).layout().q_index[0].tolist() == order.ranks[0].tolist()


def test_imported_orders_are_those_of_the_program(program):
    theirs = program("import", "--from", "usp", "--layout", "zigzag", "--cp-size", 4, "--ulysses-degree", 2, "--tokens", 64)
    assert cpscope.from_usp("zigzag", cp_size=4, ulysses_degree=2, tokens=64).document == theirs


def test_arrays_of_a_layout_are_made_once_and_own_nothing_but_themselves():
    layout = cpscope.Scenario.load("zigzag").layout()
    assert layout.q_index[0].ctypes.data == layout.q_index[0].ctypes.data
    kept = cpscope.Scenario.load("zigzag").layout().q_index[3]  # the layout itself is gone
    assert kept[:3].tolist() == [96, 97, 98]


def test_cut_and_join_are_each_others_reverse():
    layout = cpscope.Scenario.load("thd_padding_p2p").layout()
    tensor = np.arange(layout.tokens * 2).reshape(-1, 2)
    parts = layout.cut(tensor)
    assert parts[1].tolist() == tensor[layout.q_index[1]].tolist()
    assert (layout.join(parts) == tensor).all()
    with pytest.raises(cpscope.InputError, match="another number of rows"):
        layout.cut(tensor[1:])
    with pytest.raises(cpscope.InputError, match="other rows than the ranks"):
        layout.join(parts[:-1])


@pytest.mark.parametrize("text, kind, words", [
    ("schema = 1\n[attention]\nheads = 4\nhead_dim = 8\n[batch]\nlengths = [4]\n[parallel]\ncp_sise = 2\n",
     cpscope.ScenarioError, r'<text>:8:1: unknown key in \[parallel\]: "cp_sise"; did you mean cp_size\?'),
    ("schema = 1\n[attention\n", cpscope.ScenarioError, "<text>:2:11: "),
    ("schema = 1\n[attention]\nheads = 1\nhead_dim = 8\n[batch]\nlengths = [8]\n[parallel]\ncp_size = 2\n"
     'cp_comm_type = "a2a"\n', cpscope.RefusedError, "<text>:3:9: "),
])
def test_a_bad_text_says_where_it_is_wrong(text, kind, words):
    with pytest.raises(kind, match=words) as raised:
        cpscope.Scenario(text).plan()
    assert type(raised.value) is kind and isinstance(raised.value, ValueError)
    assert raised.value.complaints[0].where.startswith("<text>:")


@pytest.mark.parametrize("keys, kind, words", [
    ({"head": 3}, cpscope.ScenarioError, "did you mean heads"),
    ({"kv_heads": 1, "latent_dim": 4, "latent_nope_dim": 4, "dtype": "fp8", "lengths": [3]}, cpscope.RefusedError,
     "Expanding latent rows with dtype fp8 is not supported"),
    ({"cu_seqlens": [0, 5, 3]}, cpscope.InputError, "cu_seqlens must not fall: 5, then 3"),
    ({"cu_seqlens": [1, 5]}, cpscope.InputError, "must begin with 0"),
    ({"cu_seqlens": [0.0, 5.5]}, cpscope.InputError, "cu_seqlens must be whole numbers: 5.5 at 1"),
    ({"cu_seqlens": np.array([True, False])}, cpscope.InputError, "must be whole numbers: bool"),
    ({"lengths": [-3] * 64}, cpscope.ScenarioError, r"lengths\[0..63\]: 64 values are below 0, first -3"),
    ({"layout": "zigzag"}, cpscope.ScenarioError, 'layout = "zigzag": use layout = "dual_chunk"'),
    ({"lengths": [3], "cu_seqlens": [0, 3]}, cpscope.InputError, "say the same"),
    ({"lengths": [3], "title": object()}, cpscope.InputError, "no value of this type: object"),
    ({"lengths": [3], "title": 'a "b"\n', "heads": 0}, cpscope.ScenarioError, "heads"),
])
def test_bad_keys_are_named(keys, kind, words):
    with pytest.raises(kind, match=words):
        cpscope.Scenario.of(**{"heads": 2, "head_dim": 4, "cp_size": 1, **keys})


def test_names_and_numbers_that_are_not_there_are_named():
    with pytest.raises(cpscope.ScenarioError, match="did you mean zigzag"):
        cpscope.Scenario.load("zigzog")
    with pytest.raises(cpscope.ScenarioError, match="missing.toml"):
        cpscope.Scenario.load("folder/missing.toml")
    with pytest.raises(cpscope.InputError, match="no such rank: 4; 0 to 3"):
        cpscope.Scenario.load("zigzag").inputs(rank=4)
    with pytest.raises(cpscope.InputError, match=r"token 3 \(sequence 0, position 3\) appears twice"):
        cpscope.from_te([0, 4], indices=[[0, 3], [1, 3]])
    with pytest.raises(cpscope.InputError, match="cp_size must be a whole number above 0: 0"):
        cpscope.from_usp("zigzag", cp_size=0, tokens=4)
    with pytest.raises(cpscope.InputError, match="neither an Order nor a list for each rank: 3"):
        cpscope.Scenario.load("zigzag").with_order(3)
    with pytest.raises(cpscope.ScenarioError, match="no Unicode: surrogates"):
        cpscope.Scenario("\ud800")
    with pytest.raises(TypeError, match="not bytes"):
        cpscope.Scenario(b"schema = 1")


def test_what_needs_more_memory_than_there_is_is_not_begun():
    scenario = cpscope.Scenario.of(heads=128, head_dim=128, cp_size=8, lengths=[1 << 25])
    for work in (scenario.inputs, scenario.oracle, lambda: scenario.grade({"out": np.zeros((1, 1))}),
                 lambda: scenario.probe(lambda question: {})):
        with pytest.raises(cpscope.UnavailableError, match="GiB, this machine has"):
            work()


def test_a_scenario_survives_a_pickle():
    import copy
    import pickle
    scenario = cpscope.Scenario.load("zigzag").with_order(cpscope.from_usp("zigzag", cp_size=4, ulysses_degree=2, tokens=256))
    for again in (pickle.loads(pickle.dumps(scenario)), copy.deepcopy(scenario)):
        assert again.plan().hash == scenario.plan().hash != cpscope.Scenario.load("zigzag").plan().hash


def test_the_package_works_from_any_folder(tmp_path):
    code = "import cpscope; print(cpscope.Scenario.load('zigzag').layout().tokens)"
    path = os.pathsep.join(filter(None, [str(pathlib.Path(cpscope.__file__).parents[1]), os.environ.get("PYTHONPATH")]))
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": path})
    assert done.stdout == "256\n", done.stderr


def test_the_package_is_typed():
    folder = pathlib.Path(cpscope.__file__).parent
    assert (folder / "py.typed").exists()
    stub = (folder / "_core.pyi").read_text()
    compile(stub, "_core.pyi", "exec")
    assert "def grade(" in stub and "class Layout" in stub


def test_everything_public_says_what_it_is():
    for name in cpscope.__all__:
        thing = getattr(cpscope, name)
        if name == "__version__":
            continue
        assert thing.__doc__, name
    assert json.loads(json.dumps(cpscope.Scenario.load("zigzag").settings))["heads"] == 4


def test_bad_files_are_refused_in_the_words_of_the_program():
    program = os.environ.get("CPSCOPE_PROGRAM")
    if not program:
        pytest.skip("requires program: CPSCOPE_PROGRAM names none")
    files = sorted((ROOT / "scenarios" / "bad").glob("*.toml"))
    assert len(files) > 50
    for file in files:
        theirs = subprocess.run([program, "plan", file, "--summary"], capture_output=True, text=True)
        with pytest.raises(cpscope.ScenarioError) as raised:
            cpscope.Scenario.load(file).plan()
        assert theirs.returncode == 2 and theirs.stderr.endswith(f"{raised.value}\n"), (theirs.stderr, str(raised.value))


def test_scenarios_are_equal_when_they_ask_the_same():
    make = dict(heads=4, head_dim=16, lengths=[8, 8], cp_size=2)
    one, same = cpscope.Scenario.of(**make), cpscope.Scenario.of(title="another", **make)
    assert one == same and len({one, same}) == 1
    assert one != cpscope.Scenario.of(**{**make, "heads": 2}) and one != "a scenario"
    order = [[0, 2, 4, 6, 8, 10, 12, 14], [1, 3, 5, 7, 9, 11, 13, 15]]
    assert one != one.with_order(order) and one.with_order(order) == same.with_order(order)


def test_a_mask_is_a_way_to_write_its_slices():
    make = dict(heads=4, head_dim=16, lengths=[8], cp_size=2, attn_mask_type="slices")
    blocks = [(0, 4, 0, 4, "full"), (4, 8, 0, 8, "full")]
    named = cpscope.Scenario.of(mask={"name": "block_causal", "block": 4}, **make)
    assert named.settings["slices"] == blocks and named.settings["mask"] == {"name": "block_causal", "block": 4}
    for mask in ({"name": "top_k", "keys": 5, "count": 1, "window": (2, 0), "seed": 7}, {"name": "block_top_k", "block": 4, "blocks": 1, "seed": 7}):
        assert cpscope.Scenario.of(mask=mask, **make).settings["mask"] == mask
    assert named == cpscope.Scenario.of(slices=blocks, **make) != cpscope.Scenario.of(slices=blocks[:1], **make)
    assert cpscope.Scenario(named.to_toml()).settings == named.settings


def test_boundaries_may_have_a_batch_of_one():
    flat = cpscope.Scenario.of(heads=4, head_dim=16, cu_seqlens=np.array([0, 8, 16]), cp_size=2)
    batched = cpscope.Scenario.of(heads=4, head_dim=16, cu_seqlens=np.array([[0, 8, 16]]), cp_size=2)
    assert flat == batched
    with pytest.raises(cpscope.Error):
        cpscope.Scenario.of(heads=4, head_dim=16, cu_seqlens=np.array([[0, 8], [8, 16]]), cp_size=2)


def small(**keys):
    return cpscope.Scenario.of(**{**dict(heads=4, head_dim=16, lengths=[64], cp_size=2), **keys})


@pytest.mark.parametrize("theirs, value, hint", [
    ("num_heads", 4, "num_heads = 4: use heads = 4"),
    ("num_gqa_groups", 2, "num_gqa_groups = 2: use kv_heads = 2"),
    ("causal", True, 'causal = True: use attn_mask_type = "causal"'),
    ("sliding_window", 8, "sliding_window = 8: use window_size = [7, 0] (their window counts the token itself)"),
    ("position_ids", np.array([[0, 1, 2, 0, 1]]), "position_ids = [[0, 1, 2, 0, 1]]: use lengths = [3, 2] "
     "(a document begins where they restart)"),
    ("params_dtype", np.float16, 'params_dtype = "fp16": use dtype = "fp16"'),
    ("cp", 4, "cp = 4: use cp_size = 4")])
def test_names_of_other_frameworks_get_the_key_that_is_meant(theirs, value, hint):
    with pytest.raises(cpscope.ScenarioError) as raised:
        small(**{theirs: value})
    assert str(raised.value) == f"a scenario has no key {theirs}; {hint}"


def test_number_types_may_be_those_of_numpy_and_torch():
    assert small(dtype=np.float16).dtype == small(dtype=np.dtype("float16")).dtype == "fp16"
    assert small(accumulate=np.float32) == small(accumulate="fp32")
    with pytest.raises(cpscope.ScenarioError, match='^dtype is not one of its choices: "int8"'):
        small(dtype=np.int8)
    with pytest.raises(cpscope.ScenarioError, match='dtype = "bfloat16": use dtype = "bf16"'):
        small(dtype="bfloat16")
    torch = pytest.importorskip("torch", reason="requires torch: it is not installed")
    assert small(dtype=torch.bfloat16).dtype == "bf16"


def test_lists_may_have_a_batch_of_one_and_be_of_any_type_of_numbers():
    order = cpscope.from_te([0, 7, 10], [0, 8, 12], cp_size=2)
    for change in (lambda ids: np.array([ids]), lambda ids: np.array(ids, np.float64), lambda ids: [list(ids)]):
        lists = [change(ids) for ids in order.ranks]
        again = cpscope.from_te(change([0, 7, 10]), change([0, 8, 12]), lists)
        assert [ids.tolist() for ids in again.ranks] == [ids.tolist() for ids in order.ranks]
        assert again.notes == ["the lists are those of thd_get_partitioned_indices"]
    stacked = np.array([ids.tolist() for ids in order.ranks])[:, None, :]
    assert cpscope.from_te([0, 7, 10], [0, 8, 12], stacked).document == again.document


def test_documents_begin_where_position_ids_restart():
    positions = np.concatenate([np.arange(8), np.arange(4)])
    order = cpscope.from_te(position_ids=positions, cp_size=2)
    assert (order.lengths, order.same_layout) == ([8, 4], "dual_chunk")
    ring = cpscope.from_ring_flash_attention("zigzag", cp_size=2, position_ids=positions[None])
    assert [ids.tolist() for ids in ring.ranks] == [ids.tolist() for ids in order.ranks]
    assert cpscope.from_usp("basic", cp_size=2, position_ids=positions).lengths == [8, 4] and order.ignored == []


def test_messages_name_arguments_and_no_places_in_a_text_that_nobody_wrote():
    for keys in (dict(dtype=object()), dict(layout="zig"), dict(cp_size=0), dict(headz=4)):
        with pytest.raises(cpscope.Error) as raised:
            small(**keys)
        assert "<keys>" not in str(raised.value) and next(iter(keys)).split("_")[0] in str(raised.value), str(raised.value)
    with pytest.raises(cpscope.Error) as raised:
        small().with_order([range(32), range(33, 64)])
    assert "order:1" not in str(raised.value) and "cp_size" not in str(raised.value), str(raised.value)
    assert "token 32 (sequence 0, position 32) is lost: 63 ids for 64 slots" in str(raised.value)
    with pytest.raises(cpscope.InputError, match="cp_size=2"):
        cpscope.from_te([0, 8], [0, 8], 2)


def test_a_warning_is_a_warning_and_told_once():
    with pytest.warns(UserWarning, match="^a2a_size does not apply") as told:
        scenario = small(a2a_size=2)
        scenario.with_order([range(32), range(32, 64)])
    assert len(told) == 1


def test_packed_seq_params_of_megatron_are_boundaries():
    class PackedSeqParams:
        qkv_format = "thd"
        cu_seqlens_q = cu_seqlens_kv = np.array([0, 7, 10], np.int32)
        cu_seqlens_q_padded = cu_seqlens_kv_padded = np.array([[0, 8, 12]], np.int32)
        max_seqlen_q = max_seqlen_kv = 8
        cp_group = None
    of_object = cpscope.Scenario.of(heads=4, head_dim=16, cp_size=2, packed_seq_params=PackedSeqParams())
    of_names = cpscope.Scenario.of(heads=4, head_dim=16, cp_size=2, cu_seqlens_q=[0, 7, 10], cu_seqlens_kv=[0, 7, 10],
                                   cu_seqlens_q_padded=[0, 8, 12], cu_seqlens_kv_padded=[0, 8, 12], max_seqlen_q=8, max_seqlen_kv=8)
    assert of_object == of_names == cpscope.Scenario.of(heads=4, head_dim=16, cp_size=2, lengths=[7, 3], slots=[8, 4])
    with pytest.raises(cpscope.InputError, match="has no boundaries"):
        cpscope.Scenario.of(heads=4, head_dim=16, cp_size=2, packed_seq_params=3)


def test_packed_seq_params_of_megatron_give_its_order():
    fields = {"qkv_format": "thd", "cu_seqlens_q": np.array([0, 7, 10]), "cu_seqlens_q_padded": np.array([[0, 8, 12]]),
              "max_seqlen_q": 8, "local_cp_size": 2, "cp_group": None}
    order = cpscope.from_megatron(fields)
    assert order.same_layout == "dual_chunk" and order.slots == [8, 4] and not order.differences
    assert order.ranks[1].tolist() == cpscope.from_te([0, 7, 10], [0, 8, 12], cp_size=2).ranks[1].tolist()
    assert cpscope.from_megatron(fields, cp_size=1).cp_size == 1
    assert cpscope.from_megatron({**fields, "max_seqlen_q": 6}).differences
    of_dict = cpscope.Scenario.of(heads=4, head_dim=16, packed_seq_params=fields)
    assert of_dict == cpscope.Scenario.of(heads=4, head_dim=16, cp_size=2, lengths=[7, 3], slots=[8, 4])
    with pytest.raises(cpscope.InputError, match="has no boundaries"):
        cpscope.from_megatron({})


def test_one_list_of_torch_stands_for_every_sequence_of_a_batch():
    row = np.array([[0, 1, 6, 7, 2, 3, 4, 5]])
    once = cpscope.from_torch(row, cp_size=2, cu_seqlens=[0, 8, 16])
    twice = cpscope.from_torch(np.repeat(row, 2, 0), cp_size=2, cu_seqlens=[0, 8, 16])
    assert [ids.tolist() for ids in once.ranks] == [ids.tolist() for ids in twice.ranks]


def test_usp_assigns_by_both_degrees_whichever_is_inside():
    low = cpscope.from_usp("zigzag", cp_size=4, ulysses_degree=2, tokens=32)
    high = cpscope.from_usp("zigzag", cp_size=4, ulysses_degree=2, tokens=32, use_ulysses_low=False)
    # Rank 1 is then ring rank 1 of Ulysses rank 0, which is rank 2 where Ulysses is inside.
    assert [ids.tolist() for ids in high.ranks] == [low.ranks[rank].tolist() for rank in (0, 2, 1, 3)]
    assert small(lengths=[32], cp_size=4, heads=8).with_order(high).layout().q_index[1].tolist() == low.ranks[2].tolist()
    same = cpscope.from_usp("basic_pytorch", cp_size=4, ulysses_degree=2, tokens=32, use_ulysses_low=False)
    assert [ids.tolist() for ids in same.ranks] == [ids.tolist() for ids in cpscope.from_usp("basic", cp_size=4, tokens=32).ranks]


def test_errors_of_tensors_with_nan_are_numbers():
    scenario = small(backward=False)
    out = scenario.oracle()["out"]
    out[3, 1, 2] = -np.nan
    grade = scenario.grade({"out": out})
    assert not grade and np.isnan(grade.tensors["out"]["rel_l2"]) and "-nan" not in str(grade)


def test_parts_by_rank_have_an_order_without_being_asked():
    scenario = small(backward=False)
    out = scenario.layout().cut(scenario.oracle()["out"])
    assert "packed order" not in str(scenario.grade([{"out": part} for part in out]))
