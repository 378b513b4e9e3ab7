"""Medians, ratios and goals of what was measured, and how they are shown. Needs nothing but Python."""
import fnmatch
import pathlib
import statistics
import tomllib

PASSES = ("forward", "backward")


def one_line(error):
    """What an exception says, on one line that is not long."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 160 else text[:157] + "..."


def turn_times(turns):
    """Milliseconds of each turn: the median of its repeats."""
    return [statistics.median(repeats) for repeats in turns]


def figure(turns, flops):
    """What stands in the JSON of one system and pass; turns: [turn][repeat] milliseconds."""
    ms = statistics.median(turn_times(turns))
    return {"median_ms": ms, "tflops": flops / ms * 1e-9, "samples_ms": turns}


def ratio(ours, theirs):
    """How many times as fast ours is: the median over turns of what each turn says, and its extremes.

    Turns of the two stood side by side, so that a slow moment of the machine slows both.
    """
    each = [their_ms / our_ms for our_ms, their_ms in zip(turn_times(ours), turn_times(theirs))]
    return {"median": statistics.median(each), "low": min(each), "high": max(each)}


def read_goals(path):
    return tomllib.loads(pathlib.Path(path).read_text())["goal"]


def goals_of(goals, shape, name, device):
    """Goals that speak of a shape and a pass on a device."""
    return [goal for goal in goals if name == goal["pass"] and goal.get("device", "") in device
            and any(fnmatch.fnmatch(shape, pattern) for pattern in goal["shapes"])]


def best_of(ratios, peers):
    """The peer that we are least ahead of."""
    known = [peer for peer in peers if peer in ratios]
    return min(known, key=lambda peer: ratios[peer]["median"]) if known else None


def judge(row, goals, device, passes=PASSES):
    """Adds ratios, the best peer and goals to the row of one shape, {system: {pass: figure} or reason}."""
    systems = row["systems"]
    ours = systems["cpscope"]
    row["ratios"], row["best"], row["goals"] = {}, {}, []
    for name in passes:
        if name not in ours:
            continue
        ratios = {peer: ratio(ours[name]["samples_ms"], given[name]["samples_ms"])
                  for peer, given in systems.items() if peer != "cpscope" and name in given}
        row["ratios"][name] = ratios
        best = best_of(ratios, ratios)
        if best:
            row["best"][name] = {"peer": best, **ratios[best]}
        for goal in goals_of(goals, row["shape"], name, device):
            row["goals"].append({"pass": name, **reach(goal, ours[name], ratios, row)})
    return row


def reach(goal, ours, ratios, row):
    """What was seen of a goal, and whether it is reached; None where its peer gave no figure."""
    of = goal["of"]
    if of == "tflops":
        seen = ours["tflops"]
    elif of == "gemm":
        seen = ours["tflops"] / row["gemm_tflops"] if row.get("gemm_tflops") else None
    elif of == "kernels":
        seen = ours.get("share_of_kernels")
    else:
        best = best_of(ratios, of.split("|"))
        seen = ratios[best]["median"] if best else None
    return {"of": of, "at_least": goal["at_least"], "seen": seen,
            "is_reached": None if seen is None else seen >= goal["at_least"]}


def rate_text(given, name):
    return f"{given[name]['tflops']:.0f}" if name in given else "-"


def ratio_text(ratios, peer):
    return f"{ratios[peer]['median']:.2f}" if peer in ratios else "-"


def goal_text(goals):
    marks = {True: "ok", False: "BELOW", None: "not seen"}
    texts = []
    for goal in goals:
        seen = "" if goal["seen"] is None else f"{goal['seen']:.2f} "
        texts.append(f"{marks[goal['is_reached']]} {seen}of {goal['at_least']} {goal['of']}")
    return "; ".join(texts)


def share_text(row, name):
    """Our rate as a share of what bounds it: a matrix product, or our own kernels without communication."""
    ours = row["systems"]["cpscope"].get(name, {})
    if "share_of_kernels" in ours:
        return f"{ours['share_of_kernels']:.2f}"
    return f"{ours['tflops'] / row['gemm_tflops']:.2f}" if ours and row.get("gemm_tflops") else "-"


def table(rows, peers, passes=PASSES, bound="gemm"):
    """Lines of one table: TFLOP/s of each system, then ours over each peer and over its bound, then goals."""
    lines = [["shape", "pass", "cpscope", *peers, "/best", *("/" + peer for peer in peers), "/" + bound, "goals"]]
    for row in rows:
        ours = row["systems"]["cpscope"]
        for name in passes:
            ratios = row.get("ratios", {}).get(name, {})
            best = row.get("best", {}).get(name)
            goals = [goal for goal in row.get("goals", []) if goal["pass"] == name]
            lines.append([row["shape"], name, rate_text(ours, name),
                          *(rate_text(row["systems"].get(peer, {}), name) for peer in peers),
                          f"{best['median']:.2f}" if best else "-", *(ratio_text(ratios, peer) for peer in peers),
                          share_text(row, name), goal_text(goals)])
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    text = []
    for line in lines:
        cells = [cell.ljust(width) if column in (0, 1) else cell.rjust(width)
                 for column, (cell, width) in enumerate(zip(line[:-1], widths))]
        text.append("  ".join([*cells, line[-1]]).rstrip())
    return text


def best_ways(rows, passes):
    """One line for each batch and pass of an exchange: our best way beside the best peer."""
    lines = []
    for batch in dict.fromkeys(row["batch"] for row in rows if "batch" in row):
        for name in passes:
            known = [row for row in rows if row.get("batch") == batch and name in row["systems"]["cpscope"]]
            if not known:
                continue
            row = max(known, key=lambda one: one["systems"]["cpscope"][name]["tflops"])
            ours, best = row["systems"]["cpscope"][name], row["best"].get(name)
            share = f", {ours['share_of_kernels']:.2f} of its kernels alone" if "share_of_kernels" in ours else ""
            beside = f", {best['median']:.2f} times as fast as {best['peer']}" if best else ""
            lines.append(f"{batch}, {name}: {row['way']} {ours['tflops']:.0f} TFLOP/s a GPU{share}{beside}")
    return lines


def reasons(rows):
    """One line for every system that gave no figure, or that was asked in another way than plainly."""
    lines = []
    for row in rows:
        for system, given in row["systems"].items():
            whose = row["shape"] if system == "cpscope" else row.get("batch", row["shape"])
            lines += [f"{whose}, {system}: {given[word]}" for word in ("reason", "note", "kernels_note") if word in given]
    return list(dict.fromkeys(lines))
