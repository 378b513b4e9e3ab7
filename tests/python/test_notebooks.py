"""What a notebook shows: pictures that any viewer reads, on light and dark pages."""
import re
import xml.etree.ElementTree as xml

import numpy as np
import pytest

import cpscope

SVG = "{http://www.w3.org/2000/svg}"


def boxes(picture):
    return [box for box in xml.fromstring(picture.svg).iter(SVG + "rect")]


def cells(picture, fill):
    """(x0, x1) of the cells in a colour that begins so, by row."""
    return [(float(x0), float(x1)) for path in xml.fromstring(picture.svg).iter(SVG + "path") if path.get("fill").startswith(fill)
            for x0, x1 in re.findall(r"M([\d.]+) [\d.]+H([\d.]+)", path.get("d"))]


def words(picture):
    return " ".join(text.text or "" for text in xml.fromstring(picture.svg).iter(SVG + "text"))


@pytest.mark.parametrize("view", ["layout", "mask", "traffic", "timeline", "balance", "all"])
def test_a_plan_is_drawn_from_every_side(view):
    plan = cpscope.Scenario.load("zigzag").plan()
    picture = plan.picture(view, step=2, theme="light")
    assert xml.fromstring(picture.svg).tag == SVG + "svg"
    assert len(boxes(picture)) > 20
    assert plan.hash in picture.svg


def test_a_picture_has_the_colours_of_the_page():
    picture = cpscope.Scenario.load("zigzag").plan().picture("mask", size=(400, 300), bare=True)
    both = xml.fromstring(picture.svg)
    light, dark = [one for one in both if one.tag == SVG + "svg"]
    assert (light.get("class"), dark.get("class")) == ("light", "dark")
    assert (both.get("width"), light.get("width")) == ("400", "400")
    fills = [[box.get("fill") for box in one.iter(SVG + "rect")] for one in (light, dark)]
    assert len(fills[0]) == len(fills[1]) and fills[0] != fills[1]
    name = both.get('id')
    assert f"@media(prefers-color-scheme:dark){{#{name}>.dark{{display:inline}}#{name}>.light{{display:none}}}}" in picture.svg
    # Ids are unique on a page that shows both and another picture.
    other = cpscope.Scenario.load("thd_padding_p2p").plan().picture("mask", size=(400, 300), bare=True)
    ids = re.findall(r' id="([^"]*)"', picture.svg + other.svg)
    assert len(ids) == len(set(ids))


def test_steps_and_ranks_that_a_plan_lacks_are_named():
    plan = cpscope.Scenario.load("zigzag").plan()
    for keys, told in (({"step": 8}, "this plan has no step 8; use 0 to 7: 0 to 3 forward, 4 to 7 backward"), ({"rank": 4}, "this plan has no rank 4; use 0 to 3"),
                       ({"view": "numbers"}, "no view of a plan has this name: numbers; layout, mask, traffic, timeline, balance or all"),
                       ({"theme": "blue"}, "no theme has this name: blue; dark, light or print"),
                       ({"size": (4, 4)}, "no picture has this size: 4 x 4"), ({"view": "all", "bare": True}, "all views together have a frame"),
                       ({"cluster": "h2"}, "h2")):
        with pytest.raises(cpscope.Error) as raised:
            plan.picture(**keys)
        assert told in str(raised.value), keys


def test_steps_of_a_plan_differ_in_its_pictures():
    plan = cpscope.Scenario.load("zigzag").plan()
    steps = {plan.picture("mask", step=step, theme="light", bare=True).svg for step in range(4)}
    assert len(steps) == 4
    assert plan.picture("mask", step=1, theme="light").svg == plan.picture("mask", theme="light").svg  # the default of `render`


def test_predicted_times_are_drawn_on_a_cluster():
    plan = cpscope.Scenario.load("zigzag").plan()
    assert "Times are predicted" in words(plan.picture("timeline", cluster="h200x8", theme="light"))
    assert "Times are predicted" not in words(plan.picture("timeline", theme="light"))


def test_a_layout_shows_each_rank_at_its_tokens():
    layout = cpscope.Scenario.of(heads=1, head_dim=8, lengths=[64], cp_size=2, layout="contiguous").layout()
    assert cells(layout.picture(), "hsl") == [(84, 404), (404, 724)]
    assert "rank 0" in words(layout.picture()) and "64" in words(layout.picture())


@pytest.mark.filterwarnings("error")
def test_batches_without_a_token_are_shown():
    empty = cpscope.Scenario.of(heads=1, head_dim=8, lengths=[0, 0], cp_size=2)
    assert "rank 1" in words(empty.layout().picture())
    assert "<svg" in empty._repr_html_() and "<svg" in empty.plan()._repr_html_() and "<svg" in empty.run()._repr_html_()


def test_a_layout_of_many_ranks_stays_small():
    layout = cpscope.Scenario.of(heads=1, head_dim=8, lengths=[1 << 16], cp_size=512, layout="striped").layout()
    assert len(layout.picture().svg) < 300_000
    assert "rank" not in words(layout.picture()) and "0 to 7" in words(layout.picture())


def test_a_mask_is_drawn_from_keywords_alone():
    causal = cpscope.mask_picture(lengths=[64], theme="light")
    window = cpscope.mask_picture(lengths=[64], window_size=(8, 0), theme="light")
    assert causal.svg != window.svg
    scenario = cpscope.Scenario.of(heads=1, head_dim=8, lengths=[64], cp_size=1, backward=False)
    assert cpscope.mask_picture(scenario, theme="light").svg == causal.svg
    with pytest.raises(cpscope.InputError, match="a scenario has its mask: lengths"):
        cpscope.mask_picture(scenario, lengths=[3])


def test_a_grade_shows_where_the_wrong_rows_are(small):
    answer = small.oracle()
    out = answer["out"].copy()
    out[20:24, 3] += 1  # head 3 of tokens 20 to 23
    grade = small.grade({"out": out, "lse": answer["lse"]})
    assert f"out: 4 wrong rows of {len(out) * 4}" in words(grade.show())
    assert cells(grade.show(), "#d8433b") == [pytest.approx((92 + 640 * 20 / len(out), 92 + 640 * 24 / len(out)), abs=0.1)]
    html = grade._repr_html_()
    assert "FAIL" in html and "<svg" in html and "within its budget" in html
    right = small.grade({"out": answer["out"]})
    assert "wrong rows" not in words(right.show()) and "PASS" in right._repr_html_()
    nan = small.grade({"out": np.full_like(out, np.nan)})
    assert "NaN" in words(nan.show())


def test_notebooks_show_every_result(small):
    for shown in (small, small.layout(), small.plan(), small.compare("h200x8"), small.timeline("h200x8"), small.run()):
        html = shown._repr_html_()
        assert html.startswith("<") and len(html) > 200, shown
        assert "color:black" not in html and "background:white" not in html
    refused = cpscope.Scenario.of(heads=2, head_dim=8, lengths=[8], cp_size=4, cp_comm_type="a2a")
    assert "a2a requires heads" in refused._repr_html_()
    named = cpscope.Scenario.of(title="<script>", heads=2, head_dim=8, lengths=[8], cp_size=2)
    assert "<script>" not in named._repr_html_() and "&lt;script&gt;" in named._repr_html_()
    assert "A batch of this size" in cpscope.Scenario.of(heads=1, head_dim=8, lengths=[1 << 20], cp_size=2)._repr_html_()


def test_a_picture_is_saved_as_svg(tmp_path):
    picture = cpscope.Scenario.load("zigzag").layout().picture()
    picture.save(tmp_path / "layout.svg")
    assert (tmp_path / "layout.svg").read_text() == picture.svg == picture._repr_html_()
    with pytest.raises(cpscope.InputError, match="a picture is written as .svg"):
        picture.save(tmp_path / "layout.png")
