"""Bars of TFLOP/s as one SVG, without any library. Light and dark as the reader's system is."""
from xml.sax.saxutils import escape

COLOURS = ("#d1495b", "#30638e", "#7ba4c9", "#e0a030", "#5b8e55", "#8a6fae", "#999999")
BAR, GAP, LEFT, WIDTH, TOP = 13, 10, 210, 430, 80


def text(x, y, words, anchor="start", size=12, extra=""):
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}"{extra}>{escape(str(words))}</text>'


def lanes(row, systems, passes):
    """Systems of a row that have a bar in any pass."""
    return [system for system in systems if any(name in row["systems"].get(system, {}) for name in passes)]


def panel(left, rows, systems, passes, name, scale):
    """Bars of one pass, each row at the height that all passes share."""
    parts = [text(left, TOP - 10, f"{name}, TFLOP/s", size=13, extra=' font-weight="bold"')]
    y = TOP
    for row in rows:
        for system in lanes(row, systems, passes):
            given = row["systems"][system]
            if name in given:
                rate = given[name]["tflops"]
                colour = COLOURS[systems.index(system) % len(COLOURS)]
                parts.append(f'<rect x="{left}" y="{y}" width="{rate * scale:.1f}" height="{BAR - 2}" fill="{colour}">'
                             f"<title>{escape(row['shape'])}, {escape(system)}: {rate:.1f} TFLOP/s</title></rect>")
                parts.append(text(left + rate * scale + 4, y + BAR - 3, f"{rate:.0f}", size=10))
            y += BAR
        y += GAP
    return parts


def chart(rows, systems, title, passes=("forward", "backward")):
    """The whole picture; rows as figures.judge leaves them, systems in the order of their bars."""
    rows = [row for row in rows if lanes(row, systems, passes)]
    rates = [given[name]["tflops"] for row in rows for given in row["systems"].values() for name in passes if name in given]
    scale = (WIDTH - 50) / max(rates, default=1)
    heights = [len(lanes(row, systems, passes)) * BAR for row in rows]
    height, width = TOP + sum(heights) + len(rows) * GAP + 10, LEFT + len(passes) * WIDTH
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
             'font-family="sans-serif">',
             "<style>text{fill:#222}.back{fill:#fff}@media(prefers-color-scheme:dark){text{fill:#ddd}.back{fill:#181a1f}}"
             "</style>", f'<rect class="back" width="{width}" height="{height}"/>', text(8, 20, title, size=14)]
    for number, system in enumerate(systems):
        x = 8 + number * 110
        parts.append(f'<rect x="{x}" y="32" width="11" height="11" fill="{COLOURS[number % len(COLOURS)]}"/>')
        parts.append(text(x + 15, 42, system))
    y = TOP
    for row, tall in zip(rows, heights):
        parts.append(text(LEFT - 8, y + tall / 2 + 3, row["shape"], anchor="end", size=11))
        y += tall + GAP
    for number, name in enumerate(passes):
        parts += panel(LEFT + number * WIDTH, rows, systems, passes, name, scale)
    return "\n".join([*parts, "</svg>", ""])
