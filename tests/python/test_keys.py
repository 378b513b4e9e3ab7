"""The list of keys, its page, the checked keywords and the parser agree."""
import pathlib
import typing

import pytest

import cpscope

ROOT = pathlib.Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.filterwarnings("ignore:.* is unused")

#: A scenario in which each table is read.
BASE = {"heads": 4, "head_dim": 8, "lengths": [16], "cp_size": 2}


def listed(table):
    return {one["key"]: one for one in cpscope.keys() if one["table"] == table}


def test_the_page_is_what_the_parser_says(program):
    assert (ROOT / "scenarios" / "keys.md").read_text() == cpscope.keys_page()
    assert cpscope.keys() == program("keys")["keys"]


def test_every_key_has_a_type_a_default_and_a_meaning():
    assert len(cpscope.keys()) > 60
    for key in cpscope.keys():
        assert key["type"] and key["default"] and key["meaning"], key


def test_every_key_of_the_list_is_a_keyword_that_types_know():
    tables = ("", "attention", "batch", "parallel", "numerics", "fp8")
    own = [one["key"] for one in cpscope.keys() if one["table"] in tables]
    known = typing.get_type_hints(cpscope.ScenarioKeys)
    assert set(own) <= set(known)
    others = {name for name in known if name not in own}
    assert all(name.startswith(("cu_seqlens", "max_seqlen", "packed_seq_params", "total_tokens", "order", "kv_order")) for name in others), others


@pytest.mark.parametrize("table", ["attention", "batch", "parallel", "numerics", "fp8"])
def test_choices_are_all_that_the_parser_takes(table):
    for key in listed(table).values():
        if not key["choices"]:
            continue
        with pytest.raises(cpscope.ScenarioError) as raised:
            cpscope.Scenario.of(**{**BASE, key["key"]: "nothing"})
        for choice in key["choices"]:
            assert choice in str(raised.value), key
        for choice in key["choices"]:
            try:
                cpscope.Scenario.of(**{**BASE, key["key"]: choice})
            except cpscope.ScenarioError as error:  # another key that this choice needs, but never the choice itself
                assert "is not one of its choices" not in str(error), (key, choice)


def literal(text):
    return {"true": True, "false": False}.get(text) if text in ("true", "false") else eval(text, {}, {})


def test_defaults_are_those_of_the_parser():
    plain = cpscope.Scenario.of(**BASE)
    tried = 0
    for key in cpscope.keys():
        if key["table"] not in ("attention", "batch", "parallel", "numerics"):
            continue
        try:
            value = literal(key["default"])
        except (SyntaxError, NameError):
            continue  # in words: "heads", "required", "lengths, padded"
        if value is None or key["key"] == "slices":
            continue
        tried += 1
        assert cpscope.Scenario.of(**{**BASE, key["key"]: value}) == plain, key
    assert tried > 20


def test_types_are_those_of_the_parser():
    wrong = {"integer": "a word", "number": "a word", "true or false": 3, "string": 3, "list": "a word"}
    for key in cpscope.keys():
        kind = next((one for one in wrong if key["type"].startswith(one)), None)
        if kind is None or key["table"] not in ("attention", "batch", "parallel", "numerics") or key["key"] == "dtype":
            continue
        with pytest.raises(cpscope.ScenarioError, match=f"(?m)^{key['key']}(\\[0\\])? (must be|values|is not one of)"):
            cpscope.Scenario.of(**{**BASE, key["key"]: wrong[kind]})
