"""Watched training runs: their results stay what they are, and the verdicts say what is wrong."""
import copy
import json
import logging
import pathlib
import pickle
import subprocess
import sys

import pytest

import cpscope

torch = pytest.importorskip("torch", reason="requires torch: it is not installed")
if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 1):
    pytest.skip(f"requires torch2: version 2.1 or later, this is {torch.__version__}", allow_module_level=True)
functional = torch.nn.functional
from gathered_attention import FAULTS  # noqa: E402  it imports torch

FOLDER = pathlib.Path(__file__).resolve().parent
TOKENS, HEADS, KV_HEADS, HEAD_DIM, WIDTH = 48, 4, 2, 16, 24
GRADIENTS = {"dq", "dk", "dv"}


def scenario(**keys):
    return cpscope.Scenario.of(**{**dict(heads=HEADS, kv_heads=KV_HEADS, head_dim=HEAD_DIM, batch_size=1, seqlen=TOKENS, qkv_format="bshd",
                                         cp_size=1, dtype="bf16"), **keys})


@pytest.fixture(autouse=True)
def same_numbers():
    torch.manual_seed(7)


def attend(query, key, value, causal=True):
    # Repeated in fp32: PyTorch would add the gradients of the query heads of one KV head in 16 bits.
    key, value = (tensor.float().repeat_interleave(query.shape[1] // tensor.shape[1], 1).to(tensor.dtype) for tensor in (key, value))
    return functional.scaled_dot_product_attention(query, key, value, is_causal=causal)


class Attention(torch.nn.Module):
    causal = True
    function = staticmethod(attend)

    def forward(self, query_layer, key_layer, value_layer, attention_mask=None):
        return self.function(query_layer, key_layer, value_layer, self.causal)


class Block(torch.nn.Module):
    def __init__(self, dtype=torch.bfloat16):
        super().__init__()
        torch.manual_seed(5)
        self.project = torch.nn.Linear(WIDTH, (HEADS + 2 * KV_HEADS) * HEAD_DIM, dtype=dtype)
        self.join = torch.nn.Linear(HEADS * HEAD_DIM, WIDTH, dtype=dtype)
        self.attention = Attention()

    def forward(self, x):
        parts = self.project(x).view(1, -1, HEADS + 2 * KV_HEADS, HEAD_DIM).transpose(1, 2).split([HEADS, KV_HEADS, KV_HEADS], 1)
        return x + self.join(self.attention(*parts).transpose(1, 2).flatten(2))


def train(block, steps=3, forward=None, wait=lambda: None):
    """Losses and gradients of every step."""
    results = []
    for step in range(steps):
        x = torch.randn(1, TOKENS, WIDTH, generator=torch.Generator().manual_seed(step)).to(next(block.parameters()).dtype).requires_grad_()
        loss = (forward or block)(x).float().square().mean()
        loss.backward()
        wait()
        results += [loss.detach(), x.grad] + [weight.grad.clone() for weight in block.parameters()]
        block.zero_grad()
    return results


def same(left, right):
    return len(left) == len(right) and all(torch.equal(a, b) for a, b in zip(left, right))


def options(verdicts, **more):
    return {**dict(scenario=scenario(), every=1, format="bhsd", on_verdict=verdicts.append), **more}


def judged(verdicts):
    return [(verdict.status, verdict.reason, set(verdict.grade.tensors)) for verdict in verdicts]


def watch_module(block=None, steps=3, forward=None, expected=None, **more):
    """Verdicts of a watched block; its results are those of the same block unwatched."""
    block, verdicts = block or Block(), []
    plain = train(block, steps, forward)
    with cpscope.watch(block.attention, **options(verdicts, **more)) as watch:
        watched = train(block, steps, forward, lambda: watch.wait(60))
    assert same(plain, watched)
    return verdicts


RIGHT = ("pass", "", {"out", *GRADIENTS})


def test_a_watched_module_computes_the_same_bits_and_passes():
    verdicts = watch_module()
    assert judged(verdicts) == [RIGHT] * 3 and [verdict.call for verdict in verdicts] == [1, 2, 3]
    assert all(verdict.hook_seconds > 0 and verdict.kept_bytes == 2 * TOKENS * HEAD_DIM * (4 * HEADS + 4 * KV_HEADS) for verdict in verdicts)
    assert "overhead: hooks took" in str(verdicts[0]) and "attention" in str(verdicts[0]).lower()


def test_a_function_is_called_through_its_watch():
    verdicts, block = [], Block()
    plain = train(block)
    with cpscope.watch(attend, **options(verdicts, every=2)) as watch:
        block.attention.function = watch
        assert same(plain, train(block, wait=lambda: watch.wait(60)))
    assert judged(verdicts) == [RIGHT] * 2 and [verdict.call for verdict in verdicts] == [1, 3]


def test_a_function_is_replaced_by_its_name_until_the_end():
    verdicts, before = [], functional.scaled_dot_product_attention
    block = Block()
    with cpscope.watch("torch.nn.functional.scaled_dot_product_attention", **options(verdicts, scenario=scenario(kv_heads=HEADS))) as watch:
        assert functional.scaled_dot_product_attention is not before
        train(block, wait=lambda: watch.wait(60))
    assert functional.scaled_dot_product_attention is before
    assert judged(verdicts) == [RIGHT] * 3
    with pytest.raises(cpscope.InputError, match="no function of this name: torch.nn.functional.sdpa"):
        cpscope.watch("torch.nn.functional.sdpa", scenario=scenario())


def test_a_mistake_is_found_with_its_cause():
    block = Block()
    block.attention.causal = False
    verdicts = watch_module(block, steps=1)
    assert [verdict.status for verdict in verdicts] == ["fail"] and not verdicts[0]
    assert "causal_ignored" in [cause["cause"] for cause in verdicts[0].causes], str(verdicts[0])


def test_layers_take_turns():
    torch.manual_seed(1)
    blocks, verdicts = torch.nn.Sequential(Block(), Block(), Block()), []
    blocks[1].attention.causal = False
    plain = train(blocks, 7)
    layers = [block.attention for block in blocks]
    with cpscope.watch(layers, **options(verdicts, every=2)) as watch:
        assert same(plain, train(blocks, 7, wait=lambda: watch.wait(60)))
    assert [(verdict.layer, verdict.call, verdict.status) for verdict in verdicts] == [(0, 1, "pass"), (1, 3, "fail"), (2, 5, "pass"), (0, 7, "pass")]


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_repeated_forward_of_a_checkpoint_is_not_counted(reentrant):
    from torch.utils.checkpoint import checkpoint
    block = Block()
    verdicts = watch_module(block, forward=lambda x: checkpoint(block, x, use_reentrant=reentrant))
    assert judged(verdicts) == [RIGHT] * 3 and [verdict.call for verdict in verdicts] == [1, 2, 3]


def test_a_selective_checkpoint_keeps_the_operations_of_the_run_alone():
    from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
    aten, block = torch.ops.aten, Block()
    for saved in ([aten.addmm.default], [aten.addmm.default, aten.clone.default, aten._to_copy.default]):
        verdicts = watch_module(block, every=2, forward=lambda x: checkpoint(
            block, x, use_reentrant=False, context_fn=lambda: create_selective_checkpoint_contexts(saved)))
        assert judged(verdicts) == [RIGHT] * 2


def test_gradients_after_a_reentrant_checkpoint_are_those_of_the_same_microbatch():
    from torch.utils.checkpoint import checkpoint
    block, verdicts = Block(), []
    with cpscope.watch(block.attention, **options(verdicts, every=2)) as watch:
        losses = [checkpoint(block, torch.randn(1, TOKENS, WIDTH).bfloat16().requires_grad_(), use_reentrant=True).float().square().mean()
                  for _ in range(4)]
        for loss in losses:  # of call 3 the repeated forward is the third
            loss.backward()
        watch.wait(60)
    assert [verdict.call for verdict in verdicts] == [1, 3]
    assert verdicts[1].status == "pass" and set(verdicts[1].grade.tensors) == {"out", *GRADIENTS}, str(verdicts[1])


def test_a_repeated_forward_of_other_inputs_is_named():
    from torch.utils.checkpoint import checkpoint
    block, verdicts = Block(), []
    with cpscope.watch(block.attention, **options(verdicts)) as watch:
        x = torch.randn(1, TOKENS, WIDTH).bfloat16().requires_grad_()
        loss = checkpoint(block, x, use_reentrant=True).float().sum()
        block.project.bias.data += 1
        loss.backward()
        watch.wait(60)
    assert judged_reason(verdicts) == [("not judged", "rank 0: the recomputed forward had other inputs than the first")]


def judged_reason(verdicts):
    return [(verdict.status, verdict.reason) for verdict in verdicts]


def test_a_compiled_caller_is_watched():
    block = Block()
    torch._dynamo.reset()
    compiled = []

    def forward(x):
        if not compiled:
            compiled.append(torch.compile(block, backend="aot_eager"))
        return compiled[0](x)
    verdicts, plain = [], train(block)
    with cpscope.watch(block.attention, **options(verdicts)) as watch:
        assert same(plain, train(block, forward=forward, wait=lambda: watch.wait(60)))
    assert judged(verdicts) == [RIGHT] * 3

    verdicts.clear()
    with cpscope.watch(attend, **options(verdicts)) as watch:
        block.attention.function = watch
        torch._dynamo.reset()
        compiled.clear()
        assert same(plain, train(block, forward=forward, wait=lambda: watch.wait(60)))
    assert judged(verdicts) == [RIGHT] * 3


def test_autocast_is_graded_in_its_own_type():
    block = Block(dtype=torch.float32)

    def forward(x):
        with torch.autocast("cpu", torch.bfloat16):
            return block(x)
    assert judged(watch_module(block, forward=forward)) == [RIGHT] * 3

    def cast_late(x):  # q, k and v in fp32, which autocast rounds inside
        q, k, v = (torch.randn(1, heads, TOKENS, HEAD_DIM, generator=torch.Generator().manual_seed(heads)).requires_grad_()
                   for heads in (HEADS, KV_HEADS, KV_HEADS))
        with torch.autocast("cpu", torch.bfloat16):
            return x + block.attention(q, k, v).float().mean()
    verdicts = []
    with cpscope.watch(block.attention, **options(verdicts)) as watch:
        cast_late(torch.zeros(1)).sum().backward()
        watch.wait(60)
    assert judged(verdicts) == [RIGHT]


def test_forward_alone_is_judged_without_gradients():
    for context in (torch.no_grad, torch.inference_mode):
        block, verdicts = Block(), []
        block.eval()
        with cpscope.watch(block.attention, **options(verdicts, scenario=scenario(backward=False))) as watch, context():
            block(torch.randn(1, TOKENS, WIDTH).bfloat16())
            watch.wait(60)
        assert judged(verdicts) == [("pass", "", {"out"})], context
    block, verdicts = Block(), []
    with cpscope.watch(block.attention, **options(verdicts)):
        block(torch.randn(1, TOKENS, WIDTH).bfloat16())  # its backward never comes
    assert verdicts[0].status == "pass" and "no gradients of this call were seen" in verdicts[0].reason


def test_a_scenario_is_made_for_every_call():
    block, verdicts, calls = Block(), [], []

    def describe(call):
        calls.append((call.number, call.layer, call.rank, call.cp_size, sorted(call.arguments), sorted(call.tensors)))
        return scenario(seqlen=call.tensors["q"].shape[2])
    with cpscope.watch(block.attention, **options(verdicts, scenario=describe)) as watch:
        for tokens in (16, 32):
            block(torch.randn(1, tokens, WIDTH).bfloat16()).float().mean().backward()
            watch.wait(60)
    assert [verdict.status for verdict in verdicts] == ["pass"] * 2
    names = ["key_layer", "query_layer", "value_layer"]
    assert calls == [(1, 0, 0, 1, names, ["k", "out", "q", "v"]), (2, 0, 0, 1, names, ["k", "out", "q", "v"])]


def test_what_goes_wrong_is_told_and_the_run_goes_on():
    def packed(qkv):
        return attend(*qkv.unbind(2))

    def raises(call):
        raise KeyError("no such length")

    qkv = torch.randn(1, HEADS, 3, TOKENS, HEAD_DIM).bfloat16().requires_grad_()
    x = torch.randn(1, HEADS, TOKENS, HEAD_DIM).bfloat16().requires_grad_()
    mha = scenario(kv_heads=HEADS)
    cases = [(packed, (qkv,), {}, "in one packed tensor"), (attend, (x, x, x), {}, "are the same tensor"),
             (attend, (x, x * 1, x * 2), dict(scenario=raises), "KeyError: 'no such length'"),
             (attend, (x, x * 1, x * 2), dict(scenario=scenario()), 'tensor "k" has a shape that fits nothing'),
             (attend, (x, x * 1, x * 2), dict(scenario=lambda call: None), "gave a NoneType"),
             (attend, (x, x * 1, x * 2), dict(scenario=scenario(kv_heads=HEADS, cp_size=2)), "has 2 ranks, the watched group has 1"),
             (attend, (x, x * 1, x * 2), dict(memory=1000), "memory=1000 bytes are too little"),
             (attend, (x, x * 1, x * 2), dict(scenario=scenario(kv_heads=HEADS, softmax_type="learnable")), "hold no sink"),
             (lambda a, b: a * b, (x, x * 1), {}, "no q, k and v among the arguments"),
             (lambda a, b, c: None, (x, x * 1, x * 2), {}, "returned a NoneType"),
             (lambda a, b, c: (a.to(torch.float8_e4m3fn), b), (x, x * 1, x * 2), {}, "a type that is not graded")]
    for function, arguments, more, reason in cases:
        verdicts = []
        with cpscope.watch(function, **options(verdicts, **{"scenario": mha, **more})) as watch:
            result = watch(*arguments)
            if isinstance(result, torch.Tensor):
                result.float().sum().backward()
        assert [verdict.status for verdict in verdicts] == ["not judged"], reason
        assert reason in verdicts[0].reason


def test_transforms_and_tensors_without_memory_are_named():
    verdicts, x = [], torch.randn(2, 1, HEADS, TOKENS, HEAD_DIM).bfloat16()
    with cpscope.watch(attend, **options(verdicts, scenario=scenario(kv_heads=HEADS))) as watch:
        torch.func.vmap(watch)(x, x.clone(), x.clone())
        watch.wait(60)
        watch(*(torch.empty(1, HEADS, TOKENS, HEAD_DIM, device="meta") for _ in "qkv"))
    assert "torch.func" in verdicts[0].reason and verdicts[1].status == "not judged", [str(verdict) for verdict in verdicts]


def test_inputs_that_are_not_usual_arguments_are_named_by_a_function():
    def strange(bundle, scale):
        return {"answer": attend(*bundle["qkv"]) * scale}
    verdicts = []
    q, k, v = (torch.randn(1, heads, TOKENS, HEAD_DIM).bfloat16().requires_grad_() for heads in (HEADS, KV_HEADS, KV_HEADS))
    with cpscope.watch(strange, **options(verdicts, tensors=lambda call: dict(zip("qkv", call.args[0]["qkv"]), out=call.result["answer"]))) as watch:
        watch({"qkv": (q, k, v)}, scale=1.0)["answer"].float().square().sum().backward()
    assert judged(verdicts) == [RIGHT]


def test_heads_are_judged_in_turns_where_memory_is_short():
    block = Block()
    verdicts = watch_module(block, steps=3, memory=150_000, sample=8)
    assert [verdict.kv_heads for verdict in verdicts] == [(0, 1), (1, 2), (0, 1)]
    # Without lse the gradients of a few keys cannot be computed alone.
    assert all(verdict.status == "pass" and set(verdict.grade.tensors) == {"out", "dq"} for verdict in verdicts)
    assert "dk and dv were not judged" in verdicts[0].reason
    for forms in (dict(format="bshd"), dict(format="bshd", flat=True)):
        flat = forms.pop("flat", False)

        def other(q, k, v, flat=flat):
            out = attend(*(tensor.transpose(1, 2) for tensor in (q, k, v))).transpose(1, 2)
            return out.flatten(2) if flat else out
        verdicts.clear()
        with cpscope.watch(other, **options(verdicts, memory=150_000, **forms)) as watch:
            watch(*(torch.randn(1, TOKENS, heads, HEAD_DIM).bfloat16().requires_grad_() for heads in (HEADS, KV_HEADS, KV_HEADS)))
        assert verdicts[0].status == "pass" and verdicts[0].kv_heads == (0, 1), str(verdicts[0])


def test_flex_attention_is_judged_with_its_lse():
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    mask, verdicts = create_block_mask(lambda b, h, i, j: i >= j, None, None, TOKENS, TOKENS, device="cpu"), []
    q, k, v = (torch.randn(1, heads, TOKENS, HEAD_DIM).bfloat16() for heads in (HEADS, KV_HEADS, KV_HEADS))
    with cpscope.watch(flex_attention, **options(verdicts, scenario=scenario(backward=False))) as watch:  # its backward needs a GPU
        watch(q, k, v, block_mask=mask, enable_gqa=True, return_lse=True)
    assert judged(verdicts) == [("pass", "", {"out", "lse"})], str(verdicts[0])


def test_every_0_grades_nothing():
    assert watch_module(every=0) == []


def test_copies_of_a_watched_module_are_not_watched():
    block, verdicts = Block(), []
    with cpscope.watch(block.attention, **options(verdicts)) as watch:
        copies = [copy.deepcopy(block), pickle.loads(pickle.dumps(block))]
        for one in copies:
            train(one, 1)
        watch.wait(60)
        assert verdicts == []
        train(block, 1)
    assert len(verdicts) == 1
    train(block, 1)
    assert len(verdicts) == 1 and not block.attention._forward_hooks and not block.attention._forward_pre_hooks


def test_a_wrong_call_ends_the_run_if_that_is_what_was_chosen():
    block = Block()
    block.attention.causal = False
    with cpscope.watch(block.attention, **options([], every=2, on_fail="raise")) as watch:
        train(block, 2)
        with pytest.raises(cpscope.WatchError, match="(?s)FAIL: call 1 of layer 0 .Attention.*causal_ignored") as raised:
            train(block, 1)
    assert raised.value.verdict is watch.verdicts[0]
    train(block, 3)


def test_verdicts_are_logged(caplog):
    block = Block()
    with caplog.at_level(logging.INFO, "cpscope"):
        with cpscope.watch(block.attention, scenario=scenario(), every=1, format="bhsd") as watch:
            train(block, 1)
            watch.wait(60)
            block.attention.causal = False
            train(block, 1)
    assert [record.levelname for record in caplog.records] == ["INFO", "ERROR"]
    assert caplog.records[0].getMessage().startswith("PASS: call 1 of layer 0")


def test_dtensors_are_read_where_they_lie(tmp_path):
    import torch.distributed as dist
    from torch.distributed.tensor import Shard, distribute_tensor
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        mesh, verdicts = dist.device_mesh.init_device_mesh("cpu", (1,)), []
        q, k, v = (distribute_tensor(torch.randn(1, heads, TOKENS, HEAD_DIM).bfloat16(), mesh, [Shard(1)]).requires_grad_()
                   for heads in (HEADS, HEADS, HEADS))

        def sharded(q, k, v):
            from torch.distributed.tensor import DTensor
            out = attend(*(tensor.to_local() for tensor in (q, k, v)))
            return DTensor.from_local(out, mesh, [Shard(1)])
        with cpscope.watch(sharded, mesh, **options(verdicts, scenario=scenario(kv_heads=HEADS))) as watch:
            watch(q, k, v).to_local().float().square().sum().backward()
        assert judged(verdicts) == [RIGHT]
    finally:
        dist.destroy_process_group()


def test_options_that_do_not_fit_are_rejected():
    for more, complaint in [(dict(every=-1), "every must be"), (dict(keep="disk"), "keep="), (dict(timeout=0), "timeout must"),
                            (dict(scenario="causal"), "neither a Scenario"), (dict(judge=1), "judge=1")]:
        with pytest.raises(cpscope.InputError, match=complaint):
            cpscope.watch(attend, **{**dict(scenario=scenario()), **more})
    with pytest.raises(cpscope.InputError, match="nothing to watch"):
        cpscope.watch([], scenario=scenario())
    with pytest.raises(cpscope.InputError, match="neither a module nor a function"):
        cpscope.watch(3, scenario=scenario())


def test_readmes_ten_lines_watch_a_training_step(capsys):
    text = (FOLDER.parents[1] / "README.md").read_text()
    block = text.split("<!-- watch:begin -->\n```python\n")[1].split("```\n<!-- watch:end -->")[0]
    assert len(block.splitlines()) == 10

    class Packed(torch.nn.Module):
        is_causal = True

        def forward(self, query_layer, key_layer, value_layer, cu_seqlens_q=None, cu_seqlens_q_padded=None):
            rows = torch.zeros_like(query_layer)
            for slot, first, last in zip(cu_seqlens_q_padded.tolist(), cu_seqlens_q.tolist(), cu_seqlens_q[1:].tolist()):
                part = slice(slot, slot + last - first)
                rows[part] = attend(*(tensor[part].transpose(0, 1)[None] for tensor in (query_layer, key_layer, value_layer)),
                                    self.is_causal)[0].transpose(0, 1)
            return rows.flatten(1)

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = Packed()

        def forward(self, batch):
            q, k, v = (torch.randn(int(batch[1][-1]), heads, 64).bfloat16().requires_grad_() for heads in (16, 4, 4))
            return self.attention(q, k, v, cu_seqlens_q=batch[0], cu_seqlens_q_padded=batch[1]).float().square()

    batches = [(torch.tensor([0, 11, 30]), torch.tensor([0, 16, 36])), (torch.tensor([0, 40, 44]), torch.tensor([0, 40, 44]))]
    for is_causal, word in ((True, "PASS: call 1 of layer 0 (Packed)"), (False, "cause: causal_ignored")):
        model = Model()
        model.attention.is_causal = is_causal
        exec(block, {"model": model, "cp_group": None, "batches": batches})
        said = capsys.readouterr().out
        assert word in said and "call 2" not in said, said


# Two ranks. They run all cases one after another: to start them takes longest.

@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    """What each rank tells, by the name of the case: (verdicts, more)."""
    if not torch.distributed.is_available():
        pytest.skip("requires torch: this one is without torch.distributed")
    rendezvous = tmp_path_factory.mktemp("ranks") / "rendezvous"
    ranks = [subprocess.Popen([sys.executable, FOLDER / "watched_ranks.py", str(rank), "2", rendezvous],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for rank in range(2)]
    told = []
    for rank in ranks:
        said, complaints = rank.communicate(timeout=300)
        assert rank.returncode == 0 and said, complaints
        told.append(json.loads(said.splitlines()[-1]))
    return lambda case: [one.get(case) for one in told]


def test_two_ranks_are_judged_on_one_of_them(two_ranks):
    (judge, is_same), (other, other_is_same) = two_ranks("right")
    assert is_same is other_is_same is True
    for verdicts in (judge, other):
        assert [(verdict["call"], verdict["status"], verdict["reason"]) for verdict in verdicts] == [(call, "pass", "") for call in (1, 3, 5)]
    assert judge[0]["tensors"] == ["dk", "dq", "dv", "lse", "out"] and judge[0]["text"] == other[0]["text"]
    # The other rank sends its part of q, out, d_out, dq, of k, v, dk, dv in bf16, and lse, and nothing else.
    assert judge[0]["sent"] == 32 * (4 * 4 * 16 * 2 + 4 * 2 * 16 * 2 + 4 * 4)


def test_two_ranks_send_only_the_heads_that_are_judged(two_ranks):
    (judge, _), _ = two_ranks("heads")
    assert [(verdict["status"], verdict["kv_heads"]) for verdict in judge] == [("pass", heads) for heads in ([0, 1], [1, 2], [0, 1])]
    assert all(verdict["tensors"] == ["dk", "dq", "dv", "lse", "out"] and 2 * verdict["sent"] == verdict["kept"] for verdict in judge)


@pytest.mark.parametrize("fault, cause", FAULTS.items())
def test_two_ranks_with_a_mistake_fail_with_its_cause(two_ranks, fault, cause):
    (judge, _), (other, _) = two_ranks(fault)
    assert judge[0]["status"] == other[0]["status"] == "fail" and cause in judge[0]["causes"], judge[0]["text"]


def test_two_ranks_raise_before_the_same_call(two_ranks):
    (_, judge), (_, other) = two_ranks("raises")
    assert judge == other == [4, "FAIL: call 1 of attention"]


def test_a_rank_that_skips_a_call_is_named_and_holds_up_no_other(two_ranks):
    (judge, seconds), (other, _) = two_ranks("skips")
    assert [(verdict["call"], verdict["status"]) for verdict in judge] == [(1, "pass"), (3, "pass"), (5, "not judged")]
    assert judge[2]["reason"] == "rank 1 sent nothing for 3 s" and len(other) == 2
    assert seconds < 200


def test_a_rank_that_has_died_is_named(two_ranks):
    (judge, seconds), other = two_ranks("dies")
    assert other is None and [(verdict["status"], verdict["reason"]) for verdict in judge][1:] == [("not judged", "rank 1 sent nothing for 3 s")]
    assert judge[0]["status"] == "fail" and seconds < 60  # each rank attends alone


def test_ranks_that_watch_in_different_ways_are_rejected(two_ranks):
    (_, judge), (_, other) = two_ranks("differ")
    assert judge == other and "'every': 2" in judge and "'every': 3" in judge
