"""Presets: what they infer from the objects that users of a framework hold. Objects here have the attributes of the frameworks' own;
tests/peers holds the presets to the real packages."""
import pathlib
import pickle
import re
import sys
import types

import numpy as np
import pytest

import cpscope
from cpscope._preset import Preset
from cpscope._preset_torch import MaskSummary, _say_rules, head_and_tail

PAGE = pathlib.Path(__file__).resolve().parents[2] / "reference/python/frameworks.md"
Scenario, Object = cpscope.Scenario, types.SimpleNamespace


class Local:
    """A rank's tensor: a shape and a dtype."""

    def __init__(self, *shape, dtype=np.float32):
        self.shape, self.dtype, self.grad = shape, np.dtype(dtype), None

    def backward(self, gradient):
        pass


class Group:
    def __init__(self, ranks):
        self.ranks = ranks

    def size(self):
        return self.ranks


def heads_of(tokens, heads=8, kv_heads=2, head_dim=16, axes="t"):
    shapes = {"t": lambda h: (tokens, h, head_dim), "bs": lambda h: (*tokens, h, head_dim), "bhs": lambda h: (tokens[0], h, tokens[1], head_dim)}
    return [Local(*shapes[axes](h)) for h in (heads, kv_heads, kv_heads)]


def te_module(**others):
    return Object(**{**dict(
        qkv_format="sbhd", attn_mask_type="causal", window_size=(-1, 0), softcap=0.0, tp_size=1, num_attention_heads=8, num_gqa_groups_per_partition=2,
        hidden_size_per_attention_head_k=16, hidden_size_per_attention_head_v=16, cp_group=Group(4), cp_comm_type="p2p",
        load_balancing_strategy=Object(name="DUAL_CHUNK_SWAP"), softmax_scale=0.25, attention_dropout=0.0, softmax_type="vanilla", training=True), **others})


def megatron_config(**others):
    return Object(**{**dict(
        num_attention_heads=8, num_query_groups=2, kv_channels=16, hidden_size=128, tensor_model_parallel_size=1, context_parallel_size=4,
        cp_comm_type=None, hierarchical_context_parallel_sizes=None, hybrid_context_parallel=False, softmax_scale=None, softmax_type="vanilla",
        window_size=None, window_attn_skip_freq=None, attention_dropout=0.0, bf16=True, fp16=False, params_dtype=np.dtype("float32"),
        multi_latent_attention=False, experimental_attention_variant=None, transformer_impl="transformer_engine"), **others})


def packed_seq_params(**others):
    bounds, padded = np.array([[0, 21, 40, 61]]), np.array([[0, 24, 48, 72]])
    return Object(**{**dict(qkv_format="thd", cu_seqlens_q=bounds, cu_seqlens_kv=bounds, cu_seqlens_q_padded=padded, cu_seqlens_kv_padded=padded,
                            max_seqlen_q=24, max_seqlen_kv=24, local_cp_size=None, cp_group=None), **others})


class Ranges(list):
    """MagiAttention's AttnRanges: each has a start and an end."""

    def __init__(self, pairs):
        super().__init__(Object(start=begin, end=end) for begin, end in pairs)


def magi_key(**others):
    """As magi_attn_flex_key makes it, with the ranges of the padding that it adds."""
    algorithm = Object(type=Object(value=others.pop("algorithm", "min_heap")))
    return Object(**{**dict(
        q_ranges=Ranges([(0, 40), (40, 100), (100, 112)]), k_ranges=Ranges([(0, 40), (0, 100), (0, 0)]),
        attn_mask_type=(Object(value="full"), Object(value="causal"), Object(value="full")), total_seqlen_q=112, total_seqlen_k=112, num_heads_q=8,
        num_heads_kv=2, head_dim=16, pad_size=12, chunk_size=7, cp_group=Group(4), dist_attn_config=Object(dispatch_config=Object(alg=algorithm)),
        uneven_shard=False, is_qo_comm_enable=False, precision=None), **others})


class FlexAttention:
    class Config:
        pass


class VarlenAttention:
    class Config:
        pass


def titan_config(parallelism=None, training=None, attention=None):
    return Object(
        parallelism=Object(**{**dict(context_parallel_degree=4, tensor_parallel_degree=1, context_parallel_load_balancer="headtail",
                                     context_parallel_ptrr_mask_key=None), **(parallelism or {})}),
        training=Object(**{**dict(num_tokens_per_microbatch_per_dp_rank=128, dtype="float32", mixed_precision_param="float32"), **(training or {})}),
        model_spec=Object(model=Object(first_attention=Object(**{**dict(n_heads=8, n_kv_heads=2, head_dim=16, dim=128,
                                                                        inner_attention=FlexAttention.Config()), **(attention or {})}))))


def usp_module(ulysses=2, ring=2, kind="zigzag_ring_flash_attn_func"):
    def ring_attn_fn():
        pass
    ring_attn_fn.__name__ = kind
    return Object(ulysses_pg=Group(ulysses), ring_pg=Group(ring), ring_attn_fn=ring_attn_fn, attn_processor=None)


def alst_module(**others):
    return Object(**{**dict(process_group=Group(4), attn_head_count=8, global_kv_head_count=2, attn_head_size=16, batch_size=2, global_seq_length=128,
                            local_seq_length=32, seq_length_is_variable=False), **others})


# The page.

def names_of_page():
    """By heading: the names that the page's lines take as given."""
    tokens = heads_of(32)
    q, k, v = tokens
    rows = heads_of((2, 32), axes="bs")
    wide = heads_of((2, 32), axes="bhs")

    def packed(tensors):
        return dict(zip("qkv", tensors))
    class Callable(Object):
        def __call__(self, *_, **__):
            return self.answer
    te = Callable(**vars(te_module()), set_context_parallel_group=lambda *_: None, answer=Local(1))
    one = Callable(answer=Local(1))
    return {
        "TransformerEngine": dict(packed(tokens), attention=te, cp_group=4, cp_stream=None, cu_seqlens=[0, 40, 128]),
        "Megatron-core": dict(packed(tokens), core_attention=one, config=megatron_config(), cp_group=4,
                              packed_seq_params=packed_seq_params(**{name: np.array([[0, 40, 128]]) for name in (
                                  "cu_seqlens_q", "cu_seqlens_kv", "cu_seqlens_q_padded", "cu_seqlens_kv_padded")})),
        "PyTorch: scaled_dot_product_attention": dict(packed(wide), attention=one, mesh=Object(size=lambda: 4, ndim=1, get_group=lambda: None)),
        "torchtitan": dict(packed(tokens), config=titan_config(), positions=np.r_[0:50, 0:78], inner_attention=one, attention_masks=None,
                           cp_mesh=Object(get_group=lambda: None)),
        "MagiAttention": dict(packed(heads_of(28)), key=magi_key(), calc_attn=lambda *_: (Local(1), None)),
        "DeepSpeed: Ulysses": dict(packed(heads_of((2, 32), kv_heads=4, axes="bs")), attention=Callable(spg=Group(4), answer=Local(1))),
        "DeepSpeed: ALST": dict(packed(wide), attention=Callable(**vars(alst_module()), answer=(Local(1), None)), layer=Object(is_causal=True),
                                local_position_ids=None),
        "USP (yunchang)": dict(packed(rows), rank=0, yunchang=Object(set_seq_parallel_pg=lambda *_: None, LongContextAttention=lambda ring_impl_type:
                                                                     Callable(**vars(usp_module()), answer=Local(1)))),
        "ring-flash-attention": dict(packed(rows), ring_flash_attn=Object(zigzag_ring_flash_attn_func=named("zigzag_ring_flash_attn_func"))),
    }


def named(name):
    def function(*_, **__):
        return Local(1)
    function.__name__ = name
    return function


def blocks():
    found = re.findall(r"\n## (.*?)\n.*?```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return dict(found)


def test_every_framework_of_the_page_has_at_most_ten_lines_and_every_preset_a_block():
    assert set(blocks()) == {*names_of_page(), "PyTorch: flex attention"}
    for heading, block in blocks().items():
        assert len(block.splitlines()) <= 10, heading
    text = "\n".join(blocks().values())
    presets = [name for name in dir(Scenario) if name.startswith("from_")]
    assert len(presets) == 8 and all(f"Scenario.{name}(" in text for name in presets), presets


@pytest.mark.parametrize("heading", names_of_page())
def test_the_lines_of_the_page_run(heading, monkeypatch):
    """With objects of the frameworks' attributes; the ranks' tensors are the exact answer in the order that the preset infers."""
    scope = {"d_out": None, "dist": Object(get_process_group_ranks=lambda _: []), "print": lambda *_: None, **names_of_page()[heading]}
    local = {name: scope[name].shape for name in "qkv"}
    for name in ("yunchang", "ring_flash_attn"):
        monkeypatch.setitem(sys.modules, name, scope.get(name))
    # Of a process group that is there.
    monkeypatch.setitem(sys.modules, "torch.distributed", Object(is_available=lambda: True, is_initialized=lambda: True, get_world_size=lambda: 4))

    def gather(_, **tensors):
        scenario = scope["scenario"]
        whole = {**scenario.inputs(), **scenario.oracle()}
        layout = scenario.layout()
        parts = {name: layout.cut(whole[name], kv=name in ("k", "v", "dk", "dv")) for name in tensors}
        for name, shape in local.items():
            assert parts[name][0].size == np.prod(shape), (name, parts[name][0].shape, shape)
        return [{name: part[rank] for name, part in parts.items()} for rank in range(scenario.cp_size)]
    monkeypatch.setattr(cpscope, "gather", gather)
    exec(blocks()[heading], scope)
    assert scope["grade"], scope["grade"]
    assert all(one.source for one in scope["scenario"].inferred.values())


# What is inferred.

def settings_of(scenario, *keys):
    return {key: scenario.settings.get(key) if key in scenario.settings else scenario.inferred[key].value for key in keys}


def test_te_says_where_each_key_comes_from():
    q, k, v = (Local(32, 2, h, 16, dtype=np.float16) for h in (8, 2, 2))
    scenario = Scenario.from_te(te_module(), q, k, v)
    inferred = scenario.inferred
    assert inferred["heads"] == (8, "query_layer, key_layer and value_layer") and inferred["dtype"] == ("fp16", "query_layer.dtype")
    assert inferred["accumulate"].value == "dtype" and inferred["dkv_hops"].value == "home"
    assert inferred["cp_size"] == (4, "attention.cp_group") and inferred["seqlen"] == (128, "query_layer, 4 ranks")
    for key, one in inferred.items():
        assert re.search(rf"^  {key} +{re.escape(repr(one.value))} +{re.escape(one.source)}$", repr(scenario), re.MULTILINE), key
    by_hand = Scenario.of(heads=8, kv_heads=2, head_dim=16, batch_size=2, seqlen=128, qkv_format="sbhd", cp_size=4, accumulate="dtype", dtype="fp16")
    assert scenario == by_hand and by_hand.inferred == {} and "\n" not in repr(by_hand)


def test_te_takes_the_recipe_of_fp8_attention():
    def scenario_of(name, **fields):
        recipe = type(name, (Object,), {})(**fields)
        return Scenario.from_te(te_module(fp8=True, fp8_meta={"recipe": recipe}), *(Local(32, 2, h, 16, dtype=np.float16) for h in (8, 2, 2)))

    delayed = scenario_of("DelayedScaling", fp8_dpa=True, fp8_format=Object(name="E4M3"))
    assert settings_of(delayed, "dtype", "recipe", "format", "kv_wire", "accumulate") == dict(
        dtype="fp8", recipe="delayed", format="e4m3", kv_wire="fp8", accumulate="fp32")
    assert delayed.inferred["recipe"].source == "attention.fp8_meta[recipe], a DelayedScaling"
    assert settings_of(scenario_of("Float8CurrentScaling", fp8_dpa=True, fp8_format=Object(name="HYBRID")), "recipe", "format") == dict(
        recipe="current", format="hybrid")
    assert settings_of(scenario_of("MXFP8BlockScaling", fp8_dpa=True), "recipe", "kv_wire") == dict(recipe="mxfp8", kv_wire="bf16")
    # Without fp8_dpa only the layers around attention are in 8 bits.
    assert scenario_of("DelayedScaling", fp8_dpa=False).settings["dtype"] == "fp16"


def test_te_takes_the_call_before_the_module():
    bounds, padded = [0, 21, 40], [0, 24, 48]
    q, k, v = heads_of(24)
    call = dict(qkv_format="thd", attn_mask_type="padding_causal", cu_seqlens_q=bounds, cu_seqlens_kv=bounds, cu_seqlens_q_padded=padded,
                cu_seqlens_kv_padded=padded, window_size=(7, 0), softcap=3.0)
    scenario = Scenario.from_te(te_module(cp_group=None), q, k, v, **call, cp_group=[1, 2], cp_comm_type="a2a+p2p")
    assert settings_of(scenario, "qkv_format", "attn_mask_type", "lengths", "slots", "window_size", "softcap", "cp_size", "cp_comm_type") == dict(
        qkv_format="thd", attn_mask_type="padding_causal", lengths=[21, 19], slots=[24, 24], window_size=(7, 0), softcap=3.0, cp_size=2, cp_comm_type="p2p")
    assert scenario.inferred["window_size"].source == "window_size"
    hierarchical = Scenario.from_te(te_module(), *(Local(16, 1, h, 16) for h in (8, 2, 2)), cp_group=[Group(2), Group(4)], cp_comm_type="a2a+p2p")
    assert settings_of(hierarchical, "cp_size", "a2a_size") == dict(cp_size=8, a2a_size=2)
    alone = Scenario.from_te(te_module(load_balancing_strategy=Object(name="NO_LOAD_BALANCE"), tp_size=2, cp_comm_type="all_gather"), max_seqlen_q=16,
                             batch_size=3, dtype="bf16", backward=False)
    assert settings_of(alone, "heads", "kv_heads", "layout", "lengths", "backward") == dict(heads=4, kv_heads=2, layout="contiguous", lengths=[64] * 3,
                                                                                          backward=False)


def test_megatron_reads_its_configuration_and_packed_parameters():
    scenario = Scenario.from_megatron(megatron_config(), packed_seq_params())
    assert scenario == Scenario.of(heads=8, kv_heads=2, head_dim=16, lengths=[21, 19, 21], slots=[24, 24, 24], cp_size=4, attn_mask_type="padding_causal",
                                   pad_between_seqs=False, accumulate="dtype", dtype="bf16")
    as_dict = Scenario.from_megatron(vars(megatron_config()), vars(packed_seq_params(local_cp_size=2)))
    assert as_dict.cp_size == 2 and as_dict.inferred["cp_size"].source == "packed_seq_params.local_cp_size"
    config = megatron_config(cp_comm_type=["p2p", "a2a", "a2a+p2p"], hierarchical_context_parallel_sizes=[2, 2], window_size=(7, 0), window_attn_skip_freq=2,
                             tensor_model_parallel_size=4, softmax_type="off-by-one", bf16=False, fp16=True)
    layers = [Scenario.from_megatron(config, layer_number=number, seq_length=64, micro_batch_size=2) for number in (1, 3)]
    assert [one.settings["cp_comm_type"] for one in layers] == ["p2p", "a2a+p2p"] and layers[1].inferred["a2a_size"].value == 2
    assert [one.settings["window_size"] for one in layers] == [(7, 0), (7, 0)]
    assert Scenario.from_megatron(config, layer_number=2, seq_length=64, micro_batch_size=1, cp_group=2).settings["window_size"] == (-1, -1)
    assert settings_of(layers[0], "heads", "kv_heads", "dtype", "softmax_type", "qkv_format") == dict(
        heads=2, kv_heads=1, dtype="fp16", softmax_type="off_by_one", qkv_format="sbhd")
    latent = Scenario.from_megatron(megatron_config(multi_latent_attention=True, qk_head_dim=12, qk_pos_emb_head_dim=4, v_head_dim=8,
                                                    rotary_scaling_factor=40, mscale_all_dim=1.0), seq_length=64, micro_batch_size=1)
    assert (latent.head_dim_qk, latent.head_dim_v, latent.kv_heads) == (16, 8, 8)
    assert latent.softmax_scale == pytest.approx((0.1 * np.log(40) + 1) ** 2 / 4)


def test_megatron_knows_absorbed_latent_attention_by_its_key_of_one_head():
    config = megatron_config(multi_latent_attention=True, qk_head_dim=12, qk_pos_emb_head_dim=4, v_head_dim=8, kv_lora_rank=20,
                             rotary_scaling_factor=1, mscale_all_dim=1.0)
    query, row = np.zeros((16, 2, 8, 24), np.float32), np.zeros((16, 2, 1, 24), np.float32)
    for value in (None, row[..., :20]):
        absorbed = Scenario.from_megatron(config, query=query, key=row, value=value)
        assert settings_of(absorbed, "heads", "kv_heads", "head_dim_qk", "head_dim_v", "latent_dim") == dict(
            heads=8, kv_heads=1, head_dim_qk=24, head_dim_v=20, latent_dim=20)
        assert absorbed.softmax_scale == pytest.approx(1 / 4)  # of 12 + 4 elements, as in the expanded form
    assert Scenario.from_megatron(config, seq_length=64, micro_batch_size=1, latent_dim=20).kv_heads == 1
    whole = np.zeros((16, 2, 8, 16), np.float32)
    assert Scenario.from_megatron(config, query=whole, key=whole, value=whole[..., :8]).settings["latent_dim"] == 0


def test_torch_knows_its_ring_and_its_order():
    q, k, v = heads_of((2, 32), axes="bhs")
    scenario = Scenario.from_torch_cp(Group(4), query=q, key=k, value=v, is_causal=True)
    assert settings_of(scenario, "cp_comm_type", "layout", "accumulate", "dkv_wire", "dkv_hops", "lengths") == dict(
        cp_comm_type="p2p", layout="dual_chunk", accumulate="fp32", dkv_wire="fp32", dkv_hops="ring", lengths=[128, 128])
    assert Scenario.from_torch_cp(Group(4), True, query=q, key=k, value=v) == scenario
    full = Scenario.from_torch_cp(4, query=q, key=k, value=v, load_balancer=None)
    assert settings_of(full, "attn_mask_type", "layout") == dict(attn_mask_type="no_mask", layout="contiguous")

    class Mesh:
        ndim, mesh_dim_names = 2, ("dp", "cp")

        def __getitem__(self, name):
            return Group({"cp": 4}[name])
    assert Scenario.from_torch_cp(Mesh(), query=q, key=k, value=v, is_causal=True).inferred["cp_size"] == (4, 'mesh["cp"]')
    with pytest.raises(cpscope.InputError, match="mesh has 2 dimensions"):
        Scenario.from_torch_cp(Object(ndim=2, mesh_dim_names=("dp", "tp")), query=q, key=k, value=v)

    class Balancer:
        def _generate_indices(self):
            return np.arange(128)[::-1][None]
    backwards = Scenario.from_torch_cp(4, query=q, key=k, value=v, is_causal=True, load_balancer=Balancer())
    assert backwards.layout().q_index[0].tolist() == [*range(127, 95, -1), *range(255, 223, -1)]
    assert backwards.inferred["layout"] == ("indices", "load_balancer, Balancer")


def test_titan_reads_new_and_old_configurations():
    positions = np.r_[0:50, 0:78]
    scenario = Scenario.from_titan(titan_config(), positions=positions)
    assert settings_of(scenario, "lengths", "attn_mask_type", "cp_comm_type", "layout", "dtype") == dict(
        lengths=[50, 78], attn_mask_type="padding_causal", cp_comm_type="all_gather", layout="dual_chunk_packed", dtype="fp32")
    assert np.concatenate(scenario.layout().q_index).tolist() == head_and_tail(128, 4).tolist()
    sharded = Scenario.from_titan(titan_config(dict(context_parallel_load_balancer=None, tensor_parallel_degree=2)), positions=positions)
    assert settings_of(sharded, "layout", "heads", "kv_heads") == dict(layout="contiguous", heads=4, kv_heads=1)
    old = Object(parallelism=Object(context_parallel_degree=4, tensor_parallel_degree=1), training=Object(seq_len=64, local_batch_size=2, dtype="bfloat16"))
    model = Object(n_heads=8, n_kv_heads=None, dim=128, attn_type="sdpa")
    ring = Scenario.from_titan(old, model)
    assert settings_of(ring, "heads", "kv_heads", "head_dim_qk", "lengths", "cp_comm_type", "attn_mask_type", "dtype") == dict(
        heads=8, kv_heads=8, head_dim_qk=16, lengths=[64, 64], cp_comm_type="p2p", attn_mask_type="causal", dtype="bf16")
    documents = Scenario.from_titan(old, Object(n_heads=8, dim=128, use_flex_attn=True), positions=np.r_[0:20, 0:44, 44:108])
    assert settings_of(documents, "lengths", "layout") == dict(lengths=[20, 44, 64], layout="indices"), "a row of the batch begins a document"
    assert documents.layout().q_index[0].tolist() == [*range(8), *range(56, 64), *range(64, 72), *range(120, 128)]


def least_loaded(areas, ranks):
    """MagiAttention's MinHeapDispatchAlg: chunks by area, the largest first, to the rank with the smallest sum that is not full."""
    parts, loads = [[] for _ in range(ranks)], [0] * ranks
    for chunk in sorted(range(len(areas)), key=lambda i: (areas[i], i), reverse=True):
        rank = min((rank for rank in range(ranks) if len(parts[rank]) < -(-len(areas) // ranks)), key=lambda r: (loads[r], r))
        parts[rank].append(chunk)
        loads[rank] += areas[chunk]
    return [sorted(part) for part in parts]


def test_magi_reads_slices_and_the_dispatch_from_the_key():
    scenario = Scenario.from_magi(magi_key(), query=Local(28, 8, 16))
    assert scenario.settings["slices"] == [(0, 40, 0, 40, "full"), (40, 100, 0, 100, "causal")] and scenario.settings["lengths"] == [100]
    areas = [sum(40 if row < 40 else row + 1 for row in range(chunk * 7, min(chunk * 7 + 7, 100))) for chunk in range(16)]
    partitions = least_loaded(areas, 4)
    expected = [[row for chunk in part for row in range(chunk * 7, chunk * 7 + 7)] for part in partitions]
    assert [rows.tolist() for rows in scenario.layout().q_index] == expected
    told = Scenario.from_magi(magi_key(algorithm="sorted_sequential_select"), dispatch_meta=Object(partitions=partitions), dtype="fp32")
    clamped = [np.minimum(rows, 99) for rows in expected]
    by_positions = Scenario.from_magi(magi_key(), position_ids=clamped, dtype="fp32")
    for one in (told, by_positions):
        assert [np.minimum(rows, 99).tolist() for rows in one.layout().q_index] == [rows.tolist() for rows in clamped]
    uneven = magi_key(uneven_shard=True, pad_size=0, total_seqlen_q=100, total_seqlen_k=100, precision=Object(value="bf16"))
    scenario = Scenario.from_magi(uneven)
    assert scenario.dtype == "bf16" and sorted(np.concatenate(scenario.layout().q_index).tolist()) == list(range(100))
    parts = [rows.tolist() for rows in scenario.layout().q_index]
    assert [rows.tolist() for rows in Scenario.from_magi(uneven, position_ids=parts).layout().q_index] == parts


def test_magi_takes_the_wire_of_gradients_from_the_environment(monkeypatch):
    assert Scenario.from_magi(magi_key(), dtype="bf16").inferred["dkv_wire"].value == "dtype"
    monkeypatch.setenv("MAGI_ATTENTION_BACKWARD_HIGH_PRECISION_REDUCE", "1")
    assert Scenario.from_magi(magi_key(), dtype="bf16").inferred["dkv_wire"].value == "fp32"


def test_deepspeed_cuts_every_sequence_alone():
    q, k, v = heads_of((2, 32), kv_heads=4, axes="bs")
    scenario = Scenario.from_deepspeed(Object(spg=Group(4)), q, k, v, 0, causal=True)
    assert settings_of(scenario, "cp_comm_type", "layout", "lengths", "attn_mask_type") == dict(
        cp_comm_type="a2a", layout="contiguous", lengths=[128, 128], attn_mask_type="causal")
    assert scenario.layout().q_index[1].tolist() == [*range(32, 64), *range(160, 192)]
    uneven = Scenario.from_deepspeed(Object(spg=Group(4)), *heads_of((1, 32), 6, 6, axes="bs"), 0, causal=False)
    uneven.plan()
    alst = Scenario.from_deepspeed(alst_module(), dtype="bf16")
    assert settings_of(alst, "heads", "kv_heads", "lengths", "attn_mask_type") == dict(heads=8, kv_heads=2, lengths=[128, 128], attn_mask_type="causal")
    positions = np.stack([np.r_[0:28, 0:100], np.arange(128)])
    packed = Scenario.from_deepspeed(alst_module(), *heads_of((2, 32), axes="bhs"), position_ids=positions, sliding_window=8)
    assert settings_of(packed, "lengths", "attn_mask_type", "window_size") == dict(lengths=[28, 100, 128], attn_mask_type="padding_causal", window_size=(7, 0))
    assert packed.layout().q_index[0].tolist() == [*range(32), *range(128, 160)]


def test_usp_reads_degrees_and_the_ring_function():
    q, k, v = heads_of((2, 32), axes="bs")
    scenario = Scenario.from_usp(usp_module(), q, k, v, causal=True, window_size=(-1, -1), softcap=2.0)
    assert settings_of(scenario, "cp_size", "a2a_size", "cp_comm_type", "softcap", "attn_mask_type") == dict(
        cp_size=4, a2a_size=2, cp_comm_type="a2a+p2p", softcap=2.0, attn_mask_type="causal")
    order = cpscope.from_usp("zigzag", cp_size=4, ulysses_degree=2, cu_seqlens=[0, 128, 256])
    assert [rows.tolist() for rows in scenario.layout().q_index] == [rows.tolist() for rows in order.ranks]
    ring = Scenario.from_usp(usp_module(1, 4, "stripe_flash_attn_func"), q, k, v)
    assert settings_of(ring, "cp_comm_type", "layout", "attn_mask_type", "dkv_wire", "dkv_hops") == dict(
        cp_comm_type="p2p", layout="striped", attn_mask_type="no_mask", dkv_wire="fp32", dkv_hops="ring")
    alone = Scenario.from_usp(Object(spg=Group(4)), *heads_of((1, 32), kv_heads=4, axes="bs"), causal=True)
    assert settings_of(alone, "cp_comm_type", "layout") == dict(cp_comm_type="a2a", layout="contiguous")


def test_ring_flash_attention_reads_every_function():
    rows, tokens = heads_of((2, 32), axes="bs"), heads_of(32)
    for kind, layout in (("ring", "contiguous"), ("zigzag_ring", "dual_chunk"), ("stripe", "striped")):
        scenario = Scenario.from_ring_flash_attention(named(f"{kind}_flash_attn_func"), *rows, causal=True, group=Group(4))
        assert settings_of(scenario, "layout", "lengths", "dkv_wire", "dkv_hops") == dict(layout=layout, lengths=[128, 128], dkv_wire="fp32", dkv_hops="ring")
    packed = Scenario.from_ring_flash_attention("zigzag_ring_flash_attn_varlen_func", *tokens, [0, 10, 32], 22, causal=True, group=4)
    assert settings_of(packed, "lengths", "layout", "attn_mask_type") == dict(lengths=[40, 88], layout="dual_chunk", attn_mask_type="padding_causal")
    gathered = Scenario.from_ring_flash_attention("llama3_flash_attn_varlen_func", *tokens, [0, 3], [0, 3], 3, 3, 1, slice(3), 0.0, None, True, (5, 0), group=4,
                                                  cu_seqlens=[0, 3, 128])
    assert settings_of(gathered, "cp_comm_type", "layout", "lengths", "window_size") == dict(cp_comm_type="all_gather", layout="contiguous", lengths=[3, 125],
                                                                                          window_size=(5, 0))
    joined = Scenario.from_ring_flash_attention("ring_flash_attn_kvpacked_func", rows[0], Local(2, 32, 2, 2, 16), group=4)
    assert settings_of(joined, "heads", "kv_heads", "attn_mask_type") == dict(heads=8, kv_heads=2, attn_mask_type="no_mask")
    all_in_one = Scenario.from_ring_flash_attention("stripe_flash_attn_qkvpacked_func", Local(1, 32, 3, 8, 16), causal=True, cp_size=4)
    assert settings_of(all_in_one, "heads", "kv_heads", "layout") == dict(heads=8, kv_heads=8, layout="striped")


# Masks.

def seen(rows, left=-1, right=-1, causal=False):
    length = sum(rows)
    document, i, j = np.repeat(np.arange(len(rows)), rows), np.arange(length)[:, None], np.arange(length)[None]
    mask = document[:, None] == document[None]
    mask &= (j <= i) if causal else True
    return mask & ((j >= i - left) if left >= 0 else True) & ((j <= i + right) if right >= 0 else True)


def summary_of(mask):
    return MaskSummary(len(mask), lambda begin, end: mask[begin:end])


def test_documents_and_windows_are_recognised_in_any_mask():
    dice = np.random.default_rng(5)
    for _ in range(200):
        rows = dice.integers(1, 9, dice.integers(1, 6)).tolist()
        left, right, causal = int(dice.integers(-1, 4)), int(dice.integers(-1, 4)), bool(dice.integers(2))
        mask = seen(rows, left, right, causal)
        found = summary_of(mask)
        assert found.rule is not None, (rows, left, right, causal)
        is_causal, window = found.rule
        assert (seen(found.lengths, *window, causal=is_causal) == mask).all(), (rows, left, right, causal, found.lengths, found.rule)
    assert summary_of(seen([3, 5], causal=True)).rule == (True, [-1, 0]) and summary_of(seen([3, 5], causal=True)).lengths == [3, 5]
    with_a_hole = seen([8], causal=True)
    with_a_hole[5, 2] = False
    assert summary_of(with_a_hole).rule is None
    long = seen([700, 600], causal=True)
    assert summary_of(long).lengths == [700, 600]


def test_a_mask_without_a_rule_becomes_slices():
    mask = seen([40, 24], causal=True)
    mask[:40, :7] = True
    mask[50, 45] = False
    mask[60] = False
    found = summary_of(mask)
    assert found.rule is None
    painted = np.zeros_like(mask, int)
    for q0, q1, k0, k1, kind in found.slices(Scenario.of):
        i, j = np.arange(q0, q1)[:, None], np.arange(k0, k1)[None]
        is_seen = np.ones((q1 - q0, k1 - k0), bool)
        is_seen &= (j - k1 <= i - q1) if kind in ("causal", "bi_causal") else True
        is_seen &= (j - k0 >= i - q0) if kind in ("inv_causal", "bi_causal") else True
        painted[q0:q1, k0:k1] += is_seen
    assert (painted == mask).all()
    preset = Preset("from_torch_cp", {})
    assert _say_rules(preset, [summary_of(mask), summary_of(seen([64], causal=True))], Scenario.of, "mask") == [64, 64]
    assert preset.found["slices"].value[-1] == [64, 128, 64, 128, "causal"]


def test_block_masks_are_evaluated():
    torch = pytest.importorskip("torch", reason="requires torch: it is not installed")
    create_block_mask = pytest.importorskip("torch.nn.attention.flex_attention", reason="requires torch: this one has no flex attention").create_block_mask
    document = torch.tensor([[0] * 50 + [1] * 78, [0] * 128])
    q, k, v = (torch.empty(2, h, 32, 16, device="meta") for h in (8, 2, 2))

    def of(mask_mod, batch=2):
        return Scenario.from_torch_cp(4, create_block_mask(mask_mod, batch, 1, 128, 128, "cpu", 32), query=q, key=k, value=v, load_balancer="headtail")
    scenario = of(lambda b, h, i, j: (document[b, i] == document[b, j]) & (i >= j))
    assert settings_of(scenario, "lengths", "attn_mask_type", "cp_comm_type") == dict(lengths=[50, 78, 128], attn_mask_type="padding_causal",
                                                                                    cp_comm_type="all_gather")
    window = of(lambda b, h, i, j: (i >= j) & (i - j < 9), batch=1)
    assert settings_of(window, "lengths", "attn_mask_type", "window_size") == dict(lengths=[128, 128], attn_mask_type="causal", window_size=(8, 0))
    prefix = of(lambda b, h, i, j: (i >= j) | (j < 5), batch=1)
    assert prefix.settings["slices"] == [(0, 5, 0, 5, "full"), (5, 128, 0, 128, "causal"), (128, 133, 128, 133, "full"), (133, 256, 128, 256, "causal")]
    with pytest.raises(cpscope.InputError, match="differs between heads"):
        Scenario.from_torch_cp(4, create_block_mask(lambda b, h, i, j: (i >= j) | (h == 1), 1, 2, 128, 128, "cpu", 32), query=q[:1], key=k[:1], value=v[:1])
    with pytest.raises(cpscope.InputError, match="mask is one rank's, 32 queries and 128 keys"):
        Scenario.from_torch_cp(4, create_block_mask(lambda b, h, i, j: i >= j, 1, 1, 32, 128, "cpu", 32), query=q, key=k, value=v)


# Results.

def test_what_was_inferred_survives_orders_and_pickles():
    scenario = Scenario.from_megatron(megatron_config(), packed_seq_params())
    again = pickle.loads(pickle.dumps(scenario))
    assert again == scenario and again.inferred == scenario.inferred and repr(again) == repr(scenario)
    assert scenario.with_order(scenario.layout().q_index).inferred == scenario.inferred
    scenario.inferred.clear()
    assert scenario.inferred == again.inferred


@pytest.mark.parametrize("axes", ["bhsd", "bshd", "sbhd"])
def test_documents_in_the_rows_of_a_batch_are_graded(axes):
    """Other documents in each row; the preset knows the format of its framework, here [batch, tokens, heads, head_dim]."""
    scenario = Scenario.from_titan(Object(parallelism=Object(context_parallel_degree=4), training=Object(seq_len=64, local_batch_size=2, dtype="float32")),
                                   Object(n_heads=4, n_kv_heads=2, dim=32, use_flex_attn=True), positions=np.r_[0:20, 0:44, 0:64])
    right, layout = scenario.oracle(), scenario.layout()
    places = dict(b=0, s=1, h=2, d=3)

    def part(name, rows):
        tensor = right[name][rows].reshape(2, 16, *right[name].shape[1:])
        return tensor.swapaxes(1, 2) if name == "lse" else tensor.transpose([places[axis] for axis in axes])
    names = ("out", "dq", "dk", "dv") + (("lse",) if axes == "bhsd" else ())
    ranks = [{name: part(name, rows) for name in names} for rows in layout.q_index]
    if axes != "sbhd":  # which is ambiguous, and not torchtitan's
        assert scenario.grade(ranks), scenario.grade(ranks)
    assert scenario.grade(ranks, format=axes), scenario.grade(ranks, format=axes)
    ranks[0]["out"], ranks[1]["out"] = ranks[1]["out"], ranks[0]["out"]
    assert not scenario.grade(ranks, format=axes)


# What is missing or not supported.

@pytest.mark.parametrize("call, words", [
    (lambda: Scenario.from_te(te_module(attention_dropout=0.1), *heads_of((32, 1), axes="bs")), r"attention.attention_dropout = 0.1 is not supported"),
    (lambda: Scenario.from_te(te_module(cp_group=None), *heads_of((32, 1), axes="bs")), "nothing says cp_size; give cp_group="),
    (lambda: Scenario.from_te(te_module(cp_group=-100), *heads_of((32, 1), axes="bs")), "attention.cp_group has no ranks: -100"),
    (lambda: Scenario.from_te(te_module(cp_group="world"), *heads_of((32, 1), axes="bs")), "no process group and no number of ranks: str"),
    (lambda: Scenario.from_te(te_module(), *heads_of((32, 1), axes="bs"), alibi_slopes=[1]), "alibi_slopes = True is not supported: ALiBi"),
    (lambda: Scenario.from_te(te_module(), *heads_of((32, 1), axes="bs"), core_attention_bias_type="post_scale_bias"), "post_scale_bias is not supported"),
    (lambda: Scenario.from_te(te_module(), *heads_of((32, 1), axes="bs"), attn_mask_type="arbitrary"), "arbitrary is not supported: the mask is a tensor"),
    (lambda: Scenario.from_te(te_module(), *heads_of((32, 1), axes="bs"), attn_mask_type="padding"), "padding of a batch that is not packed"),
    (lambda: Scenario.from_te(te_module(), *heads_of((32, 1), axes="bs"), head_dimm=8), "no key of a scenario: head_dimm; did you mean head_dim?"),
    (lambda: Scenario.from_te(te_module(), *heads_of(32)), r"query_layer has 3 dimensions: \[32, 8, 16\]; \[s, b, h, d\]"),
    (lambda: Scenario.from_te(te_module(), *heads_of(32), qkv_format="thd"), "thd needs cu_seqlens_q"),
    (lambda: Scenario.from_te(te_module(), *heads_of(32), qkv_format="thd", cu_seqlens_q=[0, 64]), "32 rows on each of 4 ranks, the boundaries end at 64"),
    (lambda: Scenario.from_te(te_module(), *heads_of((32, 1), axes="bs"), cp_comm_type="a2a+p2p"), "a2a\\+p2p needs two groups"),
    (lambda: Scenario.from_te(te_module(fp8=True, fp8_meta={"recipe": Object(fp8_dpa=True)}), *heads_of((32, 1), axes="bs")),
     r"attention.fp8_meta\[recipe\] is not supported: \w+; DelayedScaling"),
    (lambda: Scenario.from_te(te_module()), "nothing says dtype; give query_layer, or dtype="),
    (lambda: Scenario.from_te(te_module(), dtype="bf16"), "nothing says lengths; give query_layer"),
    (lambda: Scenario.from_te(None), "attention is no object of the framework: None"),
    (lambda: Scenario.from_te(Object(cp_group=2, qkv_format="sbhd"), dtype="bf16"), "attention has no attribute num_attention_heads"),
    (lambda: Scenario.from_te(te_module(), *heads_of((32, 1), kv_heads=3, axes="bs")), "kv_heads"),
    (lambda: Scenario.from_megatron(megatron_config(attention_dropout=0.1), packed_seq_params()), "config.attention_dropout = 0.1 is not supported"),
    (lambda: Scenario.from_megatron(megatron_config(cp_comm_type=["p2p", "a2a"]), packed_seq_params()), "say which one: layer_number="),
    (lambda: Scenario.from_megatron(megatron_config(cp_comm_type=["p2p"]), packed_seq_params(), layer_number=2), "no entry for this layer: 2; 1 to 1"),
    (lambda: Scenario.from_megatron(megatron_config(context_parallel_size=0), packed_seq_params()), "must be a whole number above 0: 0"),
    (lambda: Scenario.from_megatron(megatron_config(hybrid_context_parallel=True), packed_seq_params()), "local_cp_size, or cp_group="),
    (lambda: Scenario.from_megatron(megatron_config(transformer_impl="local"), packed_seq_params()), "local has no context parallelism"),
    (lambda: Scenario.from_megatron(megatron_config(experimental_attention_variant="dsa"), packed_seq_params()), "dsa is not supported"),
    (lambda: Scenario.from_megatron(megatron_config()), "packed_seq_params, or query, or seq_length= and micro_batch_size="),
    (lambda: Scenario.from_megatron(megatron_config(), Object(qkv_format="thd")), "has no boundaries"),
    (lambda: Scenario.from_megatron({"num_attention_heads": 8}), "config has no attribute context_parallel_size: dict"),
    (lambda: Scenario.from_torch_cp(4, query=Local(1, 8, 32, 16), attn_mask=np.ones(3)), "attn_mask = True is not supported"),
    (lambda: Scenario.from_torch_cp(4, query=Local(1, 8, 32, 16), dropout_p=0.5), "dropout_p = 0.5 is not supported"),
    (lambda: Scenario.from_torch_cp(4, query=Local(1, 8, 31, 16)), "headtail cuts 124 tokens in 8 equal chunks"),
    (lambda: Scenario.from_torch_cp(4, is_causal=True, dtype="bf16", heads=4, head_dim=8), "nothing says seqlen|nothing says lengths"),
    (lambda: Scenario.from_titan(titan_config()), "nothing says lengths; give positions"),
    (lambda: Scenario.from_titan(titan_config(attention=dict(inner_attention=VarlenAttention.Config())), positions=np.arange(128)), "no context parallelism of Varlen"),
    (lambda: Scenario.from_titan(titan_config(dict(context_parallel_load_balancer="ptrr")), positions=np.arange(128)), "ptrr orders blocks by attention_masks"),
    (lambda: Scenario.from_titan(titan_config(), positions=np.arange(32)), "positions must be those of all ranks, 128: 32"),
    (lambda: Scenario.from_titan(Object(parallelism=Object())), "config has no attribute training"),
    (lambda: Scenario.from_magi(magi_key(algorithm="topp_heap"), dtype="bf16"), "topp_heap does not say who owns which chunk; give position_ids="),
    (lambda: Scenario.from_magi(magi_key(is_qo_comm_enable=True), dtype="bf16"), "queries and keys both move"),
    (lambda: Scenario.from_magi(magi_key(total_seqlen_k=50), dtype="bf16"), "not the same tokens"),
    (lambda: Scenario.from_magi(magi_key()), "nothing says dtype; give query"),
    (lambda: Scenario.from_magi(magi_key(), dtype="bf16", dispatch_meta=Object(partitions=[[0], [1]])), "ranks|rank"),
    (lambda: Scenario.from_magi(magi_key(), dtype="bf16", dispatch_meta=Object(partitions=[range(r, r + 4) for r in (0, 4, 8, 12)] + [[0]])), "5"),
    (lambda: Scenario.from_te(te_module(), *heads_of(10), qkv_format="thd", cu_seqlens_q=[0, 19, 40]).plan(), "sequence 0 is not divisible by 8"),
    (lambda: Scenario.from_deepspeed(Object(spg=Group(4)), *heads_of((2, 32), axes="bs"), 0), "give causal=True or False"),
    (lambda: Scenario.from_deepspeed(Object(spg=Group(4)), *heads_of((2, 32), axes="bs")), "batch_dim_idx must be 0"),
    (lambda: Scenario.from_deepspeed(Object(spg=Group(4)), *heads_of((2, 32), axes="bs"), 0, causal=True, rotary_pos_emb=(1, 2)), "before the rotation"),
    (lambda: Scenario.from_deepspeed(alst_module(), *heads_of((2, 32), axes="bhs"), position_ids=np.zeros((2, 32))), "those of all ranks"),
    (lambda: Scenario.from_usp(usp_module(kind="strange"), *heads_of((2, 32), axes="bs")), "ring_attn_fn is unknown: strange; give ring_impl_type="),
    (lambda: Scenario.from_usp(Object(), *heads_of((2, 32), axes="bs")), "attention has no attribute ulysses_pg"),
    (lambda: Scenario.from_usp(usp_module(), causal=True), "nothing says seqlen; give query"),
    (lambda: Scenario.from_usp(usp_module(), *heads_of((0, 32), axes="bs")), r"query has no elements: \[0, 32, 8, 16\]"),
    (lambda: Scenario.from_usp(usp_module(), "q", "k", "v"), "query is no tensor: str"),
    (lambda: Scenario.from_ring_flash_attention("flash_attn_func"), "no function of ring_flash_attn: flash_attn_func"),
    (lambda: Scenario.from_ring_flash_attention("ring_flash_attn_func", *heads_of((2, 32), axes="bs")), "group is None, all ranks, but there is no"),
    (lambda: Scenario.from_ring_flash_attention("zigzag_ring_flash_attn_func", *heads_of((2, 32), axes="bs"), group=4), "is causal only, and causal is False"),
    (lambda: Scenario.from_ring_flash_attention("ring_flash_attn_varlen_func", *heads_of(32), [0, 128], group=4), "32 rows on each of 4 ranks"),
    (lambda: Scenario.from_ring_flash_attention("llama3_flash_attn_varlen_func", *heads_of(32), group=4), "give cu_seqlens= too"),
    (lambda: Scenario.from_ring_flash_attention("ring_flash_attn_func", *heads_of((2, 32), axes="bs"), *range(9)), "12 arguments, the call has 11"),
    (lambda: Scenario.from_ring_flash_attention("ring_flash_attn_func", *heads_of((2, 32), axes="bs"), q=1, group=4), "q is given twice"),
    (lambda: Scenario.from_ring_flash_attention("ring_flash_attn_func", *heads_of((2, 32), axes="bs"), group=4, window_size=(1, 2, 3)), "two whole numbers"),
])
def test_what_is_missing_or_not_supported_is_named(call, words):
    with pytest.raises(cpscope.Error, match=words):
        call()
