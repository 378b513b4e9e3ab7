"""Pictures as SVG and tables as HTML, readable on light and dark pages."""
from __future__ import annotations

import hashlib
import html
import os
from typing import Any, Callable, Iterable, Sequence

import numpy as np

from ._arrays import Array
from ._errors import input_error

#: Words of a verdict; both have a contrast of 4 on white and on black.
_COLORS = {"pass": "#2c8a4b", "fail": "#d8433b", "blind": "#a86f00"}


class Picture:
    """A picture as SVG. Notebooks show it; it follows the page's light or dark colours where it has both."""

    def __init__(self, svg: str):
        self.svg = svg

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes an .svg file."""
        name = os.fspath(path)
        if not str(name).lower().endswith(".svg"):
            raise input_error(f"a picture is written as .svg: {name}", "`cpscope render` also writes .png")
        with open(name, "w", encoding="utf-8") as file:
            file.write(self.svg)

    def _repr_html_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        return f"<cpscope.Picture, {len(self.svg)} bytes of SVG>"


def themed(draw: Callable[[str, str], str], theme: str) -> Picture:
    """A picture of `draw(theme, id_prefix)`; theme "auto" holds a light and a dark one, of which the page shows one."""
    if theme != "auto":
        return Picture(draw(theme, "cp"))
    light = draw("light", "cpl")
    name = "cp" + hashlib.sha1(light.encode()).hexdigest()[:10]
    both = [draw(one, name + one[0]).replace("<svg ", f'<svg class="{one}" ', 1) for one in ("light", "dark")]
    show = {one: f"#{name}>.{one}{{display:inline}}#{name}>.{other}{{display:none}}"
            for one, other in (("light", "dark"), ("dark", "light"))}
    # JupyterLab has its own switch, which need not be the browser's.
    jupyter = "".join("".join(f'body[data-jp-theme-light="{is_light}"] {rule}}}' for rule in show[one][:-1].split("}"))
                      for one, is_light in (("light", "true"), ("dark", "false")))
    size = " ".join(_attribute(light, key) for key in ("width", "height", "viewBox"))
    return Picture(f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" {size} id="{name}">\n'
                   f'<style>{show["light"]}@media(prefers-color-scheme:dark){{{show["dark"]}}}{jupyter}</style>\n'
                   f'{both[0]}{both[1]}</svg>\n')


def _attribute(svg: str, key: str) -> str:
    begin = svg.index(f' {key}="') + 1
    return svg[begin:svg.index('"', begin + len(key) + 2) + 1]


def table(head: Sequence[str], rows: Iterable[Sequence[Any]], caption: str = "") -> str:
    """An HTML table; a cell that is a (text, verdict) pair is in the colour of pass, fail or blind."""
    def cell(value: Any, tag: str) -> str:
        style = "text-align:left;padding:1px 10px 1px 0;vertical-align:top"
        if isinstance(value, tuple):
            value, verdict = value
            style += f";font-weight:600;color:{_COLORS[verdict]}"
        return f'<{tag} style="{style}">{html.escape(str(value))}</{tag}>'
    lines = ["<tr>" + "".join(cell(one, "th") for one in head) + "</tr>"] if head else []
    lines += ["<tr>" + "".join(cell(one, "td") for one in row) + "</tr>" for row in rows]
    told = f'<caption style="text-align:left;caption-side:top;padding-bottom:4px">{caption}</caption>' if caption else ""
    return ('<table style="border-collapse:collapse;color:inherit;background:none;font-size:13px">'
            + told + "".join(lines) + "</table>")


def verdict_word(verdict: str) -> str:
    return f'<b style="color:{_COLORS[verdict]}">{verdict.upper()}</b>'


def pre(text: str) -> str:
    return f'<pre style="margin:4px 0;white-space:pre-wrap;color:inherit;background:none;font-size:12px">{html.escape(text)}</pre>'


class Canvas:
    """An SVG that is put together by hand; text has the colour of the page."""

    def __init__(self, width: float, height: float, title: str):
        self._head = (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
                      f'viewBox="0 0 {width:g} {height:g}" role="img" style="color:inherit;max-width:100%" '
                      'font-family="sans-serif" font-size="11">\n'
                      f"<title>{html.escape(title)}</title>\n")
        self._marks: list[str] = []

    def box(self, x: float, y: float, width: float, height: float, fill: str = "currentColor", opacity: float = 1.0) -> None:
        if width > 0 and height > 0:
            told = "" if opacity >= 1 else f' fill-opacity="{opacity:.2f}"'
            self._marks.append(f'<rect x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}" fill="{fill}"{told} '
                               'shape-rendering="crispEdges"/>')

    def frame(self, x: float, y: float, width: float, height: float) -> None:
        self._marks.append(f'<rect x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}" fill="none" '
                           'stroke="currentColor" stroke-opacity="0.4"/>')

    def text(self, x: float, y: float, text: str, anchor: str = "start", fill: str = "currentColor") -> None:
        self._marks.append(f'<text x="{x:.2f}" y="{y:.2f}" text-anchor="{anchor}" fill="{fill}">{html.escape(text)}</text>')

    def cells(self, x: float, y: float, width: float, height: float, levels: Array, fill: str) -> None:
        """A row of cells with `levels` [cells] in [0, 1]: one shape for all cells of the same of eight strengths."""
        steps = np.ceil(np.clip(levels, 0, 1) * 8).astype(int)
        edges = np.flatnonzero(np.diff(steps)) + 1
        shapes: dict[int, list[str]] = {}
        for begin, end in zip([0, *edges], [*edges, len(steps)]):
            if steps[begin]:
                x0, x1 = (round(x + width * at / len(steps), 1) for at in (begin, end))
                shapes.setdefault(int(steps[begin]), []).append(f"M{x0:g} {y:g}H{x1:g}v{height:g}H{x0:g}z")
        for step, parts in shapes.items():
            told = "" if step == 8 else f' fill-opacity="{step / 8:g}"'
            self._marks.append(f'<path d="{"".join(parts)}" fill="{fill}"{told} shape-rendering="crispEdges"/>')

    def picture(self) -> Picture:
        return Picture(self._head + "\n".join(self._marks) + "\n</svg>\n")


def rank_color(rank: int, ranks: int) -> str:
    """A colour of middle lightness, different for neighbouring ranks."""
    return f"hsl({(rank * 360 / max(ranks, 1) + (rank % 2) * 12) % 360:.0f},55%,52%)"


def layout_picture(q_index: Sequence[Array], tokens: int, slots: Sequence[tuple[int, int, int]]) -> Picture:
    """Which rank owns which token. q_index: [rank] token ids; slots: (begin, valid, slot) of each sequence."""
    ranks = len(q_index)
    groups = np.array_split(np.arange(ranks), min(ranks, 64))  # rows of the picture
    row = max(3, min(18, 260 // len(groups)))
    left, width, top = 84, 640, 34
    bins = max(1, min(tokens, 640, 16_000 // len(groups)))
    canvas = Canvas(left + width + 12, top + row * len(groups) + 22, f"which of {ranks} ranks owns which of {tokens} tokens")
    edges = np.arange(bins + 1) * tokens // bins
    sizes = np.maximum(np.diff(edges), 1)
    canvas.text(left - 6, top - 9, "sequences", "end")
    # The share of each bin that is a valid token; sequences alternate.
    shares = np.zeros((2, bins))
    for number, (begin, valid, _) in enumerate(slots):
        first, last = np.searchsorted(edges, [begin, begin + valid], "right") - 1
        for at in range(first, min(last + 1, bins)):
            shares[number % 2, at] += max(0, min(edges[at + 1], begin + valid) - max(edges[at], begin))
    for parity, fill in enumerate(("0.75", "0.45")):
        canvas.cells(left, top - 18, width, 10, shares[parity] / sizes * float(fill), "currentColor")
    for at, group in enumerate(groups):
        ids = np.concatenate([q_index[rank] for rank in group])
        count = np.bincount(np.searchsorted(edges, ids, "right") - 1, minlength=bins)
        canvas.cells(left, top + at * row, width, max(1, row - 1), count / sizes, rank_color(int(group[0]), ranks))
        if row >= 11 or at % (len(groups) // 8 or 1) == 0:
            name = f"rank {group[0]}" if len(group) == 1 else f"{group[0]} to {group[-1]}"
            canvas.text(left - 6, top + at * row + max(8, min(row - 1, 11)), name, "end")
    canvas.frame(left, top - 0.5, width, row * len(groups))
    foot = top + row * len(groups) + 15
    canvas.text(left, foot, "token 0")
    canvas.text(left + width, foot, f"{tokens}", "end")
    return canvas.picture()


def grade_picture(tensors: Sequence[dict[str, Any]], rows: dict[str, Array], tokens: dict[str, int],
                  heads: dict[str, int]) -> Picture:
    """The error of each tensor over its budget, and where the rows are that are wrong."""
    left, width, bar = 92, 640, 18
    wrong = [one for one in tensors if (rows["tensor"] == one["name"]).any()]
    tall = {one["name"]: min(96, max(14, 6 * heads[one["name"]])) for one in wrong}
    height = 22 + bar * len(tensors) + sum(tall[one["name"]] + 40 for one in wrong) + 8
    canvas = Canvas(left + width + 84, height, "errors over their budgets, and wrong rows")
    canvas.text(left, 12, "error over budget")
    canvas.text(left + width / 2, 12, "1", "middle")
    half = width / 2  # a budget: the scale ends at two of them
    for at, one in enumerate(tensors):
        line = 20 + at * bar
        if not one["judged"]:
            canvas.text(left - 6, line + 11, one["name"], "end")
            canvas.text(left + 4, line + 11, f"not judged: {one.get('why_not', '')}")
            continue
        share = one["rel_l2"] / one["budget"] if one["rel_l2"] is not None and one["budget"] else None
        color = _COLORS["pass" if one["passed"] else "fail"]
        canvas.text(left - 6, line + 11, one["name"], "end")
        canvas.box(left, line + 2, half * min(2.0, 2.0 if share is None else share), bar - 6, color)
        word = "NaN" if share is None else f"{share:.2f}" if share < 100 else f"{share:.1e}"
        canvas.text(left + half * min(2.0, 2.0 if share is None else share) + 5, line + 11, word, fill=color)
    canvas.box(left + half, 16, 1, bar * len(tensors) + 4, opacity=0.6)
    y = 22.0 + bar * len(tensors)
    for one in wrong:
        name = one["name"]
        here = rows["tensor"] == name
        bins = max(1, min(tokens[name], 640))
        lines = min(heads[name], 48)
        level = np.zeros((lines, bins))
        with np.errstate(divide="ignore", invalid="ignore"):
            excess = np.where(rows["budget"][here] > 0, rows["error"][here] / rows["budget"][here], np.inf)
        # One level for each factor of four over the budget.
        strength = np.clip(0.3 + np.log(np.clip(excess, 1, 1e3)) / np.log(4) / 5, 0, 1)
        np.maximum.at(level, (rows["head"][here] * lines // heads[name], rows["token"][here] * bins // max(1, tokens[name])), strength)
        canvas.text(left, y + 14, f"{name}: {int(here.sum())} wrong rows of {tokens[name] * heads[name]}")
        step = round(tall[name] / lines, 2)
        for head in range(lines):
            canvas.cells(left, y + 20 + head * step, width, step, level[head], _COLORS["fail"])
        canvas.frame(left, y + 20, width, tall[name])
        canvas.text(left - 6, y + 30, "head 0", "end")
        if heads[name] > 1 and tall[name] >= 24:
            canvas.text(left - 6, y + 18 + tall[name], f"{heads[name] - 1}", "end")
        canvas.text(left, y + 33 + tall[name], "token 0")
        canvas.text(left + width, y + 33 + tall[name], f"{tokens[name]}", "end")
        y += tall[name] + 40
    return canvas.picture()
