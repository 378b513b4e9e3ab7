"""What cpscope computes from Python is what the program prints: runs, faults, predicted times, records and their differences."""
import json
import pathlib
import pickle
import subprocess
import sys

import numpy as np
import pytest

import cpscope

ROOT = pathlib.Path(__file__).resolve().parents[2]


def without_seconds(document):
    return {key: value for key, value in document.items() if key != "seconds"}


def test_a_run_is_that_of_the_program(program, tmp_path):
    file = ROOT / "scenarios" / "thd_padding_p2p.toml"
    run = cpscope.Scenario.load(file).run(poison=True)
    theirs = program("run", file, "--poison", "--record", tmp_path / "theirs.safetensors")
    assert without_seconds({**run.document, "hints": None}) == without_seconds({**theirs, "hints": None})
    assert run and run.passed and str(run).startswith("PASS on executor cpu")
    difference = cpscope.diff(run, tmp_path / "theirs.safetensors")
    assert difference.equal, str(difference)
    assert run.record.scenario_text == file.read_text() and run.record.plan_hash == run.document["plan_hash"]


def test_a_run_holds_its_answer_and_what_its_items_wrote(small):
    run = small.run(items=True)
    exact = small.oracle()
    assert np.allclose(run.record["out"], exact["out"], atol=1e-5) and run.record["out"].dtype == np.float32
    assert small.grade({name: run.record[name] for name in ("out", "lse", "dq", "dk", "dv")})
    assert any(name.startswith("forward.compute.0.") for name in run.record)
    assert not any(name.startswith("forward.") for name in small.run().record)


def test_what_a_run_cannot_do_is_named(small):
    for keys, kind, told in (({"executor": "cuda"}, cpscope.UnavailableError, "the Python package holds no kernels of GPUs"),
                             ({"executor": "plugin:./mine.so"}, cpscope.UnavailableError, "the Python package opens no plugins"),
                             ({"executor": "tpu"}, cpscope.ScenarioError, "unknown executor: tpu"),
                             ({"budgets": {"out": -1.0}}, cpscope.InputError, "invalid budget: out=-1.0"),
                             ({"sample": -1}, cpscope.InputError, "sample must be a whole number of rows")):
        with pytest.raises(kind, match=told):
            small.run(**keys)


def test_the_own_plan_is_probed_as_by_the_program(program):
    file = ROOT / "scenarios" / "bottom_right.toml"
    assert cpscope.Scenario.load(file).probe().document == program("probe", file)


def test_faults_are_those_of_the_program(program):
    name = cpscope.fault_list()[0]["name"]
    report = cpscope.faults(name)
    assert without_seconds(report.document) == without_seconds(program("faults", name))
    assert report and report.faults[name]["caught"]
    assert cpscope.fault_list() == program("faults", "--list")["faults"]
    with pytest.raises(cpscope.InputError, match="no fault has this name: nothing; see cpscope.fault_list()"):
        cpscope.faults("nothing")


def test_predicted_times_are_those_of_the_program(program):
    file = ROOT / "scenarios" / "zigzag.toml"
    timeline = cpscope.Scenario.load(file).timeline("h200x8")
    assert timeline.document == program("timeline", file, "--cluster", "h200x8")
    assert timeline.total_us == pytest.approx(sum(timeline.document[one]["total_us"] for one in ("forward", "backward")))
    assert {"pass", "kind", "rank", "step", "start_ns", "end_ns"} <= timeline.items[0].keys()


def test_a_comparison_is_that_of_the_program(program):
    file = ROOT / "scenarios" / "one_long_many_short.toml"
    comparison = cpscope.Scenario.load(file).compare("h200x8")
    assert comparison.document == program("compare", file, "--cluster", "h200x8")
    assert comparison.best["is_best"] and comparison.best["name"] in str(comparison)
    assert "<svg" in comparison.picture().svg
    fewer = cpscope.Scenario.load(file).compare("h200x8", dispatch_chunks=[256])
    assert len(fewer.candidates) < len(comparison.candidates)


def test_a_comparison_counts_reshards_and_finds_the_crossover_of_the_program(program):
    file = ROOT / "scenarios" / "zigzag.toml"
    scenario = cpscope.Scenario.load(file)
    found = scenario.compare("h200x8", reshards=2, crossover=True)
    assert found.document == program("compare", file, "--cluster", "h200x8", "--reshards", 2, "--crossover")
    assert found.crossover["keys"] == 256 and found.crossover["text"] in str(found)
    assert any(one["reshard_us"] > 0 for one in found.candidates if one["status"] == "predicted")
    assert scenario.compare("h200x8").crossover is None
    for wrong in (-1, 65, 1.5):
        with pytest.raises(cpscope.InputError, match="reshards must be a whole number from 0 to 64"):
            scenario.compare("h200x8", reshards=wrong)


def test_a_forecast_is_that_of_the_program(program, tmp_path):
    file = ROOT / "scenarios" / "drawn_window.toml"
    scenario = cpscope.Scenario.load(file)
    forecast = scenario.forecast("h200_ib", windows=np.int64(5), replicas=4, seed=9)
    assert forecast.document == program("forecast", file, "--cluster", "h200_ib", "--windows", 5, "--replicas", 4, "--seed", 9)
    assert [one["seed"] for one in forecast.windows] == [9, 10, 11, 12, 13]
    assert [one["replicas"] for one in forecast.replicas] == [1, 2, 4]
    assert len(forecast.csv().splitlines()) == 6 and str(forecast).startswith("5 windows of ")
    several = scenario.forecast("h200_ib", windows=3, microbatches=2)
    assert several.document == program("forecast", file, "--cluster", "h200_ib", "--windows", 3, "--microbatches", 2)
    for wrong, text in ((dict(windows=0), "windows must be a whole number from 1"), (dict(replicas=1.5), "replicas must be"),
                        (dict(microbatches=1 << 20), "microbatches must be"), (dict(seed=-1), "seed must be")):
        with pytest.raises(cpscope.InputError, match=text):
            scenario.forecast("h200_ib", **wrong)
    with pytest.raises(cpscope.RefusedError, match="seed|generator"):
        cpscope.Scenario.load("zigzag").forecast("h200x8")
    ways = scenario.forecast_ways("h200_ib", windows=2, replicas=4, published=True)
    assert ways.document == program("forecast", file, "--cluster", "h200_ib", "--windows", 2, "--replicas", 4, "--published")
    assert [one["generator"] for one in ways.distributions] == ["prolong", "wlb", "byted", "wiki", "magi"]
    assert "| way | prolong |" in ways.markdown() and "Take " in str(ways)
    own = scenario.forecast_ways("h200_ib", windows=2).distributions
    assert len(own) == 1 and any(way["cp_sizes"] == "fixed" for way in own[0]["ways"])
    with pytest.raises(cpscope.InputError, match="windows must be"):
        scenario.forecast_ways("h200_ib", windows=0)
    with pytest.raises(cpscope.Error, match="forecast plans the split by itself"):
        (tmp_path / "plan.json").write_text(cpscope.Scenario.load("zigzag").plan()._core.whole())
        cpscope.Scenario.load(tmp_path / "plan.json").forecast("h200x8")


def test_a_search_gives_the_scenario_of_its_best_way(program, tmp_path):
    file = ROOT / "scenarios" / "one_long_many_short.toml"
    scenario = cpscope.Scenario.load(file)
    found = scenario.compare("h200x8", search=1000, tries=300, seed=3)
    asked = ("--search", "--seconds", 1000, "--tries", 300, "--seed", 3)
    assert found.document == program("compare", file, "--cluster", "h200x8", *asked)
    assert found.best["total_us"] <= scenario.compare("h200x8").best["total_us"] + 1
    assert found.scenario().timeline("h200x8").total_us == pytest.approx(found.best["total_us"], rel=1e-12)
    # An order that was searched, where the best way has none.
    one = next(one for one in found.candidates if one["layout"] == "indices")
    tight = scenario.compare("h200x8", memory=one["memory_bytes"] / 2**30, search=1000, tries=300, seed=3)
    assert tight.best["memory_bytes"] <= one["memory_bytes"]
    assert tight.scenario().timeline("h200x8").total_us == pytest.approx(tight.best["total_us"], rel=1e-12)
    with pytest.raises(cpscope.RefusedError, match="no candidate"):
        scenario.compare("h200x8", memory=0).scenario()
    for wrong in (dict(search=-1), dict(tries=5), dict(seed=2), dict(search=1, tries=0), dict(memory=-1), dict(search=1, seed=-1)):
        with pytest.raises(cpscope.InputError):
            scenario.compare("h200x8", **wrong)


def test_a_plan_document_is_a_scenario(small, tmp_path, program):
    file = tmp_path / "plan.json"
    file.write_text(small.plan()._core.whole())
    loaded = cpscope.Scenario.load(file)
    assert loaded == small and loaded.plan().hash == small.plan().hash
    assert loaded.run().passed and loaded.layout().q_index[0].tolist() == small.layout().q_index[0].tolist()
    assert loaded.probe().passed
    again = pickle.loads(pickle.dumps(loaded))
    assert again.plan().hash == small.plan().hash and again.run().passed
    with pytest.raises(cpscope.Error, match="a plan document is one that is made"):
        loaded.compare("h200x8")
    with pytest.raises(cpscope.Error, match="has an order of its own"):
        loaded.with_order([[0], [1]])
    file.write_text(file.read_text().replace('"visible_pairs":', '"visible":', 1))
    with pytest.raises(cpscope.Error, match="plan.json"):
        cpscope.Scenario.load(file)


def test_clusters_are_named(small):
    assert "h200x8" in cpscope.clusters() and "h200_ib" in cpscope.clusters()
    with pytest.raises(cpscope.Error, match="nowhere"):
        small.timeline("nowhere")
    with pytest.raises(cpscope.Error, match="no stack|stack"):
        small.compare("h200x8", stack="nothing")
    with pytest.raises(cpscope.InputError, match="dispatch_chunks must be whole numbers above 0: 0"):
        small.compare("h200x8", dispatch_chunks=[0])


def test_a_record_holds_what_was_written(small, tmp_path):
    torch = pytest.importorskip("torch", reason="requires torch")
    tensors = {"out": torch.arange(12).reshape(3, 2, 2).to(torch.bfloat16), "lse": np.arange(6, dtype=np.float32).reshape(3, 2),
               "dq": np.float64([[[1 / 3]]]), "dk": np.float16([[[0.1]]])}
    cpscope.write_record(tmp_path / "a.safetensors", tensors, scenario=small, executor="mine")
    record = cpscope.read_record(tmp_path / "a.safetensors")
    assert {name: record.stored_type(name) for name in record} == {"out": "bf16", "lse": "fp32", "dq": "fp64", "dk": "fp16"}
    assert np.array_equal(record["out"], tensors["out"].float().numpy()) and record["out"].dtype == np.float32
    assert record["dq"][0, 0, 0] == 1 / 3 and record["dk"].dtype == np.float16 and record["dk"][0, 0, 0] == np.float16(0.1)
    assert (record.scenario_text, record.executor) == (small.text, "mine")
    with pytest.raises(KeyError):
        record["nothing"]
    with pytest.raises(cpscope.InputError, match="a record needs tensors by name"):
        cpscope.write_record(tmp_path / "b.safetensors", {})
    with pytest.raises(cpscope.InputError, match="lse was given without a tensor"):
        cpscope.write_record(tmp_path / "b.safetensors", {"lse": None})
    for name in ("", "__metadata__", "\ud800"):
        with pytest.raises(cpscope.InputError, match="name"):
            cpscope.write_record(tmp_path / "b.safetensors", {name: np.zeros(3)})
    with pytest.raises(cpscope.InputError, match="could not be written"):
        cpscope.write_record(tmp_path / "nowhere" / "b.safetensors", {"out": np.zeros(3)})
    assert not (tmp_path / "b.safetensors").exists()


def test_a_record_of_other_software_is_read(tmp_path):
    header = json.dumps({"ids": {"dtype": "I64", "shape": [2, 2], "data_offsets": [0, 32]},
                         "mask": {"dtype": "BOOL", "shape": [2], "data_offsets": [32, 34]}, "__metadata__": {"made": "elsewhere"}}).encode()
    (tmp_path / "a.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + np.arange(4, dtype=np.int64).tobytes() + b"\1\0")
    record = cpscope.read_record(tmp_path / "a.safetensors")
    assert record["ids"].tolist() == [[0, 1], [2, 3]] and record.stored_type("ids") == "int"
    assert record.skipped == {"mask": "BOOL"} and record.metadata == {"made": "elsewhere"}
    (tmp_path / "a.safetensors").write_bytes(b"\xff" * 20)
    with pytest.raises(cpscope.InputError, match="a.safetensors"):
        cpscope.read_record(tmp_path / "a.safetensors")


def test_a_difference_is_that_of_the_program(program, small, tmp_path):
    small.run().record.save(tmp_path / "a.safetensors")
    tensors = {name: small.run().record[name].copy() for name in ("out", "lse")}
    tensors["out"][3, 1, 2] += 0.5
    cpscope.write_record(tmp_path / "b.safetensors", tensors)
    difference = cpscope.diff(tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    assert difference.document == program("diff", tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    assert not difference and difference.tensors["out"]["worst"]["token"] == 3 and difference.tensors["out"]["worst"]["head"] == 1
    assert cpscope.diff(tensors, dict(tensors))
    assert cpscope.diff(small.run(), small.run(), earned=True)
    with pytest.raises(cpscope.InputError, match="the record holds no budgets|different scenarios"):
        cpscope.diff(tensors, tensors, earned=True)
    with pytest.raises(cpscope.InputError, match="exclude each other"):
        cpscope.diff(tensors, tensors, earned=True, tolerance=1.0)
    with pytest.raises(cpscope.InputError, match="a is no record: int"):
        cpscope.diff(3, tensors)


def test_items_of_a_plan_are_those_of_its_document():
    plan = cpscope.Scenario.load("zigzag").plan()
    items, document = plan.items(), plan.to_dict()
    sends = (items["kind"] == "transfer") & (items["pass"] == "forward")
    assert np.bincount(items["rank"][sends], items["bytes"][sends]).tolist() == document["bytes_sent_by_rank"]["forward"]
    computes = (items["kind"] == "compute") & (items["pass"] == "forward")
    assert items["pairs"][computes].sum() == document["visible_pairs"]
    assert len(items["step"]) == sum(len(document[one][kind]) for one in ("forward", "backward")
                                     for kind in ("computes", "transfers", "reorders", "merges", "finishes"))
    assert (items["to"][sends] == (items["rank"][sends] + 1) % 4).all() and (items["to"][computes] == -1).all()


def test_rows_are_all_that_are_wrong(small):
    answer = small.oracle()
    out, lse = answer["out"].copy(), answer["lse"].copy()
    sequence = small.layout().sequences[2]
    out[sequence.q_begin + 2, 1] += 1.0
    out[0, 0, 0] = np.nan
    lse[sequence.q_begin + 5, 3] = 0.0
    rows = small.grade({"out": out, "lse": lse}).rows()
    found = list(zip(rows["tensor"].tolist(), rows["sequence"].tolist(), rows["position"].tolist(), rows["head"].tolist()))
    assert found == [("out", 0, 0, 0), ("out", 2, 2, 1), ("lse", 2, 5, 3)]
    assert rows["error"][1] == pytest.approx(np.sqrt(8)) and np.isinf(rows["error"][0]) and (rows["budget"] < 1e-3).all()
    owner = {token: rank for rank, ids in enumerate(small.layout().q_index) for token in ids.tolist()}
    assert rows["rank"].tolist() == [owner[token] for token in rows["token"].tolist()]
    assert len(small.grade({"out": answer["out"]}).rows()["token"]) == 0
    with pytest.raises(cpscope.InputError, match="this grade holds no rows"):
        small.run().rows()


def test_rows_of_a_sample_are_those_that_were_judged():
    scenario = cpscope.Scenario.of(heads=2, head_dim=8, lengths=[300], cp_size=2, dtype="fp32", backward=False)
    out = scenario.oracle()["out"] + 1.0
    grade = scenario.grade({"out": out}, sample=40)
    rows = grade.rows()
    assert 0 < len(rows["token"]) == grade.tensors["out"]["judged_rows"] < 600
    assert np.allclose(rows["error"], np.sqrt(8))


def test_padding_that_is_not_empty_is_among_the_rows(small):
    out = small.oracle()["out"]
    padding = small.layout().sequences[0].q_valid
    out[padding, 2] = 1.0
    rows = small.grade({"out": out}).rows()
    assert rows["token"].tolist() == [padding] and rows["sequence"].tolist() == [-1] and rows["position"].tolist() == [-1]


def test_data_frames_are_made_where_pandas_is(small):
    pytest.importorskip("pandas", reason="requires pandas")
    frame = small.layout().to_pandas()
    assert list(frame.columns) == ["rank", "row", "token", "sequence", "position"] and len(frame) == small.layout().tokens
    assert frame[(frame["rank"] == 1) & (frame["row"] == 0)]["token"].item() == small.layout().q_index[1][0]
    assert set(small.plan().to_pandas()["kind"]) >= {"transfer", "compute"}
    assert len(small.compare("h200x8").to_pandas()) == len(small.compare("h200x8").candidates)
    assert small.grade({"out": small.oracle()["out"]}).to_pandas().empty


def test_without_pandas_that_is_said():
    code = ("import sys; sys.modules['pandas'] = None\nimport cpscope\n"
            "s = cpscope.Scenario.of(heads=1, head_dim=8, lengths=[8], cp_size=2)\n"
            "for make in (s.layout().to_pandas, s.plan().to_pandas, s.compare('h200x8').to_pandas):\n"
            "    try: make()\n    except cpscope.UnavailableError as error: print(error)\n")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.count("data frames need pandas, which is not installed; pip install pandas") == 3, done.stderr


def test_latent_rows_are_keys_and_values_in_one():
    latent = cpscope.Scenario.of(heads=4, kv_heads=1, head_dim_qk=12, latent_dim=8, rope_theta=100.0, lengths=[21, 30], cp_size=3, dtype="fp32")
    inputs = latent.inputs()
    assert set(inputs) == {"q", "k", "d_out"} and inputs["k"].shape[1:] == (1, 12)
    exact = latent.oracle()
    assert set(exact) == {"out", "lse", "max_logit", "dq", "dk"} and exact["out"].shape[1:] == (4, 8)
    # The rotation apart, it is attention with v copied from k, and both gradients in one.
    plain = cpscope.Scenario.of(heads=4, kv_heads=1, head_dim_qk=12, latent_dim=8, lengths=[21, 30], cp_size=3, dtype="fp32")
    copied = cpscope.Scenario.of(heads=4, kv_heads=1, head_dim_qk=12, head_dim_v=8, lengths=[21, 30], cp_size=3, dtype="fp32")
    one, two = plain.oracle(), copied.oracle({**inputs, "v": inputs["k"][..., :8]})
    assert np.allclose(one["out"], two["out"]) and np.allclose(one["dq"], two["dq"])
    assert np.allclose(one["dk"], two["dk"] + np.pad(two["dv"], [(0, 0), (0, 0), (0, 4)]))
    run = latent.run()
    assert run.passed and "v" not in run.record and "dv" not in run.record
    assert latent.grade({name: run.record[name] for name in ("q", "k", "d_out", "out", "lse", "dq", "dk")})
    assert not latent.grade({"dk": run.record["dk"] * ([0.0] * 8 + [1.0] * 4)})
    assert latent.probe()
    with pytest.raises(cpscope.InputError, match="with latent_dim a part"):
        latent.oracle({**inputs, "v": inputs["k"][..., :8]})
