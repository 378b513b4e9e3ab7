"""Reports, JUnit and JSON of every verification, read as a machine reads them.

    report_test.py PROGRAM WRONG_PLUGIN WORK_FOLDER [CASE]

The plugin computes right, but for the one value that CPSCOPE_WRONG names.
"""

import html.parser
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest
import urllib.parse
import xml.etree.ElementTree as xml

PROGRAM, PLUGIN, WORK = (pathlib.Path(argument).resolve() for argument in sys.argv[1:4])
SVG = "{http://www.w3.org/2000/svg}"
SCENARIO = """schema = 1
title = "{title}"
question = "Which tile is wrong?"
[attention]
heads = 2
kv_heads = 1
head_dim = 8
attn_mask_type = "padding_causal"
[batch]
lengths = [57, 30]
[parallel]
cp_size = 4
layout = "{layout}"
cp_comm_type = "{comm}"
[numerics]
dtype = "fp32"
"""


def run(*arguments, wrong=None):
    environment = dict(os.environ, SOURCE_DATE_EPOCH="1700000000")
    environment.pop("CPSCOPE_WRONG", None)
    if wrong:
        environment["CPSCOPE_WRONG"] = wrong
    done = subprocess.run([PROGRAM, *map(str, arguments)], cwd=WORK, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode in (0, 1, 2, 3), done.stderr
    return done


def scenario(name="ring.toml", layout="dual_chunk", comm="p2p", title="A small ring"):
    path = WORK / name
    path.write_text(SCENARIO.format(title=title, layout=layout, comm=comm))
    return name


def page(path):
    """The HTML as XML: it is both."""
    return xml.fromstring((WORK / path).read_text())


def classes(tree, name):
    return [element for element in tree.iter() if name in element.get("class", "").split()]


def text_of(element):
    return re.sub(r"\s+", " ", " ".join(element.itertext()))


def named_boxes(svg):
    """What boxes of a picture say of themselves, and where they are."""
    boxes = []
    for group in svg.iter(SVG + "g"):
        if group.get("class") != "named":
            continue
        rect = group.find(SVG + "rect")
        boxes.append((group.find(SVG + "title").text, *(float(rect.get(key)) for key in ("x", "y", "width", "height"))))
    return boxes


def pictures(tree, name):
    """The two themes of one picture."""
    return [svg for figure in classes(tree, name) if figure.tag == "figure" for svg in figure.iter(SVG + "svg")]


class Balanced(html.parser.HTMLParser):
    """Fails on a tag that closes another one."""

    def __init__(self):
        super().__init__()
        self.open, self.addresses, self.tags = [], [], set()

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.addresses += [value for key, value in attributes if key in ("src", "href", "xlink:href")]
        if tag not in ("meta", "link", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, (tag, self.open[-3:])
        self.open.pop()

    def handle_startendtag(self, tag, attributes):
        self.tags.add(tag)
        self.addresses += [value for key, value in attributes if key in ("src", "href", "xlink:href")]


def neighbours(ids, begin, end):
    """Rows [begin, end) in pieces whose ids follow each other."""
    cuts = [begin] + [row for row in range(begin + 1, end) if ids[row] != ids[row - 1] + 1] + [end]
    return list(zip(cuts, cuts[1:]))


def planted_tiles(file, tensor, rank, step, row):
    """Tiles of the item at rank and step whose rows (of dk: columns) hold the row, in packed ids."""
    plan = json.loads(run("plan", file, "--json").stdout)
    layout = json.loads(run("layout", file, "--json", "--full").stdout)
    item = next(one for one in plan["backward" if tensor != "out" else "forward"]["computes"]
                if one["rank"] == rank and one["step"] == step)
    # Forward the ring has brought the KV of the rank before; backward it ends on the rank's own.
    owner = rank - step if tensor == "out" else rank + step + 1
    queries = layout["ranks"][rank]["q_index"]
    keys = layout["ranks"][owner % layout["cp_size"]]["kv_index"]
    tiles = set()
    for q0, q1, k0, k1, lo, hi in item["slices"]:
        for q_begin, q_end in neighbours(queries, q0, q1):
            for k_begin, k_end in neighbours(keys, k0, k1):
                if not (k_begin <= row < k_end if tensor == "dk" else q_begin <= row < q_end):
                    continue
                if any(lo <= (k - k0) - (q - q0) <= hi for q in range(q_begin, q_end) for k in range(k_begin, k_end)):
                    tiles.add((queries[q_begin], queries[q_end - 1] + 1, keys[k_begin], keys[k_end - 1] + 1))
    assert tiles
    return tiles


def titled_tile(title):
    ranges = re.search(r"queries (?:every \d+th of )?\[(\d+), (\d+)\) x keys (?:every \d+th of )?\[(\d+), (\d+)\)", title)
    return tuple(int(number) for number in ranges.groups())


class Report(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        shutil.rmtree(WORK, ignore_errors=True)
        WORK.mkdir(parents=True)

    def testHatchesThePlantedTileAndNoOther(self):
        for tensor, rank, step, row in [("out", 1, 0, 3), ("out", 3, 2, 9), ("dq", 2, 1, 20), ("dk", 0, 0, 2)]:
            with self.subTest(tensor=tensor, rank=rank, step=step, row=row):
                file = scenario()
                done = run("run", file, "--executor", f"plugin:{PLUGIN}", "--report", "wrong.html", "--json",
                           wrong=f"item {tensor} {rank} {step} {row}")
                self.assertEqual(done.returncode, 1, done.stderr)
                expected = planted_tiles(file, tensor, rank, step, row)
                direction = "backward" if tensor != "out" else "forward"
                first = json.loads(done.stdout)["first_wrong"]
                self.assertEqual((first["pass"], first["rank"], first["step"], first["kind"], first["tensor"]),
                                 (direction, rank, step, "compute", tensor))
                themes = pictures(page("wrong.html"), "mask")
                self.assertEqual(len(themes), 2)
                for svg in themes:
                    boxes = named_boxes(svg)
                    frame = next(box for box in boxes if box[0].startswith("pairs: "))
                    q0, q1, k0, k1 = titled_tile(frame[0])
                    wrong = [box for box in boxes if box[0].startswith("first wrong")]
                    self.assertEqual({titled_tile(box[0]) for box in wrong}, expected)
                    for title, x, y, width, height in wrong:
                        self.assertIn(f"first wrong tile: {direction} step {step}, rank {rank}, ", title)
                        tile = titled_tile(title)
                        across, down = frame[3] / (k1 - k0), frame[4] / (q1 - q0)
                        for seen, value in [(x - frame[1], (tile[2] - k0) * across), (y - frame[2], (tile[0] - q0) * down),
                                            (width, (tile[3] - tile[2]) * across), (height, (tile[1] - tile[0]) * down)]:
                            self.assertAlmostEqual(seen, value, delta=2.5)

    def testMarksTheWrongTokenInTheLayout(self):
        file = scenario()
        layout = json.loads(run("layout", file, "--json", "--full").stdout)
        for row in (3, 11):
            run("run", file, "--executor", f"plugin:{PLUGIN}", "--report", "token.html", wrong=f"item out 1 0 {row}")
            token = layout["ranks"][1]["q_index"][row]
            for svg in pictures(page("token.html"), "layout"):
                (title, x, _, _, _), = [box for box in named_boxes(svg) if box[0].startswith("first wrong")]
                self.assertEqual(title, f"first wrong token: {token} of rank 1")
                # Where the ruler says that it is.
                ticks = {int(text.text): float(text.get("x")) for text in svg.iter(SVG + "text")
                         if float(text.get("y")) < 60 and (text.text or "").isdigit()}
                wide = (ticks[60] - ticks[20]) / 40
                self.assertAlmostEqual(x, ticks[20] + (token - 20) * wide, delta=3)
        for name in ("errors", "timeline", "traffic"):
            self.assertEqual(len(pictures(page("token.html"), name)), 2, name)

    def testHatchesNothingWhereAllPasses(self):
        done = run("run", scenario(), "--report", "pass.html")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("report: pass.html", done.stdout)
        tree = page("pass.html")
        self.assertEqual([figure.get("class") for figure in tree.iter("figure")], ["mask", "layout"])
        self.assertNotIn("first wrong", (WORK / "pass.html").read_text())
        self.assertIn("no difference above budget", text_of(classes(tree, "verdict")[0]))

    def testIsOnePageThatLoadsNothing(self):
        run("run", scenario(), "--executor", f"plugin:{PLUGIN}", "--report", "wrong.html", wrong="item out 1 0 3")
        parser = Balanced()
        text = (WORK / "wrong.html").read_text()
        parser.feed(text)
        parser.close()
        self.assertEqual(parser.open, [])
        self.assertFalse(parser.tags & {"script", "link", "iframe", "object"})
        self.assertEqual([one for one in parser.addresses if not one.startswith(("#", "data:image/png;base64,"))], [])
        self.assertNotIn("@import", text)
        self.assertIn("prefers-color-scheme:dark", text)
        ids = re.findall(r'\bid="([^"]*)"', text)
        self.assertEqual(len(ids), len(set(ids)))
        for name in re.findall(r"url\(#([^)]*)\)", text):
            self.assertIn(name, ids)

    def testHoldsTheScenarioAndTheCommand(self):
        file = scenario()
        run("run", file, "--executor", f"plugin:{PLUGIN}", "--poison", "--report", "wrong.html", wrong="item out 1 0 3")
        blocks = ["".join(block.itertext()) for block in page("wrong.html").iter("code")]
        self.assertIn((WORK / file).read_text(), blocks)
        self.assertIn(f"cpscope run {file} --executor plugin:{PLUGIN} --poison", blocks)
        self.assertIn("2023-11-14", (WORK / "wrong.html").read_text())

    def testRefersToPicturesThatAreThere(self):
        done = run("run", scenario(), "--executor", f"plugin:{PLUGIN}", "--report", "a report.md", wrong="item out 1 0 3")
        self.assertEqual(done.returncode, 1)
        text = (WORK / "a report.md").read_text()
        links = re.findall(r"^!\[[^\]]*\]\(([^)]*)\)$", text, re.M)
        self.assertGreaterEqual(len(links), 5)
        files = {str(WORK / urllib.parse.unquote(link)) for link in links}
        self.assertEqual(files, {str(path) for path in (WORK / "a report_files").iterdir()})
        for file in files:
            self.assertEqual(xml.parse(file).getroot().tag, SVG + "svg")
        self.assertIn("files of the folder `a report_files`", text)
        self.assertEqual(text.count("```") % 2, 0)

    def testGivesTheSameBytesTwice(self):
        for name in ("same.html", "same.md"):
            seen = []
            for _ in range(2):
                run("run", scenario(), "--executor", f"plugin:{PLUGIN}", "--report", name, wrong="item dk 2 1 4")
                files = sorted(WORK.glob("same_files/*")) + [WORK / name]
                seen.append([(file.name, file.read_bytes()) for file in files])
            self.assertEqual(seen[0], seen[1])

    def testRefusesPathsBeforeAnythingRuns(self):
        file = scenario()
        (WORK / "folder.html").mkdir(exist_ok=True)
        (WORK / "taken_files").write_text("")
        for path in ("report.txt", "report", "absent/report.html", "folder.html", "taken.md"):
            for command in (["run", file], ["verify", file], ["probe", file], ["faults"], ["fuzz", file]):
                done = run(*command, "--report", path)
                self.assertEqual((done.returncode, done.stdout), (2, ""), (command, path))
                self.assertIn("--report: ", done.stderr)
                self.assertIn(path, done.stderr)
        self.assertEqual(run("verify", file, "--junit", "absent/x.xml").returncode, 2)
        self.assertFalse((WORK / "absent").exists())

    def testEscapesNames(self):
        name = "a <b> & 'c' | `d` $x$.toml"
        title = "<script>alert(1)</script> & *x* | [y](z)"
        scenario(name, title=title)
        for kind in ("html", "md"):
            done = run("run", name, "--executor", f"plugin:{PLUGIN}", "--report", f"escaped.{kind}", "--junit", "escaped.xml",
                       wrong="item out 1 0 3")
            self.assertEqual(done.returncode, 1, done.stderr)
        tree = page("escaped.html")
        self.assertIn(title, text_of(tree.find("body/h1")))
        self.assertEqual(list(tree.iter("script")), [])
        self.assertEqual(xml.parse(WORK / "escaped.xml").getroot().find("testcase").get("name"), name)
        markdown = (WORK / "escaped.md").read_text().replace((WORK / name).read_text(), "")
        self.assertNotIn("<script", markdown)
        self.assertNotIn("[y](z)", markdown)
        rows = [line for line in markdown.splitlines() if line.startswith("| scenario |")]
        self.assertEqual(len(re.findall(r"(?<!\\)\|", rows[0])), 3)

    def testTellsOfAFileWhoseNameIsNoText(self):
        name = scenario("no\udcff.toml")
        done = run("verify", name, "--json", "--report", "name.html", "--junit", "name.xml")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout)["rows"][0]["scenario"], "no\ufffd.toml")
        self.assertEqual(xml.parse(WORK / "name.xml").getroot().find("testcase").get("name"), "no?.toml")
        self.assertIn("no?.toml", text_of(page("name.html")))

    def testTellsTheSameInTextJsonJunitAndReport(self):
        good, odd = scenario("good.toml"), scenario("odd.toml", layout="contiguous", comm="all_gather")
        (WORK / "bad.toml").write_text("schema = 1\n[attention]\nheads = 0\n")
        done = run("verify", good, odd, "bad.toml", "--executor", f"plugin:{PLUGIN}", "--json", "--report", "many.html",
                   "--junit", "many.xml", wrong="item out 1 1 0")
        rows = json.loads(done.stdout)["rows"]
        status = {row["scenario"]: row["status"] for row in rows}
        # A schedule of one step has no step 1.
        self.assertEqual(status, {"good.toml": "fail", "odd.toml": "pass", "bad.toml": "error"})
        suite = xml.parse(WORK / "many.xml").getroot()
        self.assertEqual([suite.get(key) for key in ("tests", "failures", "errors", "skipped")], ["3", "1", "1", "0"])
        kinds = {case.get("name"): [child.tag for child in case] for case in suite}
        self.assertEqual(kinds, {"good.toml": ["failure"], "odd.toml": [], "bad.toml": ["error"]})
        tree = page("many.html")
        cells = [[text_of(cell) for cell in row.iter("td")] for row in next(tree.iter("table")).iter("tr")][1:]
        self.assertEqual({row[0]: row[2] for row in cells}, status)
        first = next(row for row in rows if row["status"] == "fail")["first_wrong"]["text"]
        self.assertIn(first, suite.find("testcase/failure").text)
        self.assertIn(first, text_of(tree))
        # A section for what is wrong, none for what passes.
        self.assertEqual(len([one for one in tree.iter("h2") if one.get("id")]), 2)
        self.assertEqual(len(pictures(tree, "mask")), 2)

    def testTellsOfNoMoreThanAReaderCanTake(self):
        folder = WORK / "crowd"
        folder.mkdir()
        for i in range(23):
            scenario(f"crowd/{i:02}.toml")
        done = run("verify", "crowd", "--executor", f"plugin:{PLUGIN}", "--json", "--report", "crowd.html", "--junit", "crowd.xml",
                   wrong="item out 1 1 0")
        self.assertEqual(done.returncode, 1)
        tree = page("crowd.html")
        self.assertEqual(len([one for one in tree.iter("h2") if one.get("id")]), 20)
        self.assertIn("3 more cases are not right; a report tells of 20", text_of(tree))
        self.assertEqual(xml.parse(WORK / "crowd.xml").getroot().get("failures"), "23")
        self.assertIn("only the first 20 failures", json.loads(done.stdout)["rows"][22]["not_located"])
        self.assertLess((WORK / "crowd.html").stat().st_size, 2_000_000)

    def testTellsOfSomebodyElsesRecord(self):
        file = scenario()
        self.assertEqual(run("run", file, "--executor", f"plugin:{PLUGIN}", "--record", "theirs.safetensors",
                             wrong="item out 1 0 3").returncode, 1)
        done = run("grade", file, "theirs.safetensors", "--json", "--report", "grade.html", "--junit", "grade.xml")
        self.assertEqual(done.returncode, 1, done.stderr)
        worst = json.loads(done.stdout)["worst_rows"][0]
        layout = json.loads(run("layout", file, "--json", "--full").stdout)
        self.assertEqual((worst["rank"], worst["token"]), (1, layout["ranks"][1]["q_index"][3]))
        tree = page("grade.html")
        self.assertEqual(len(pictures(tree, "errors")), 2)
        for name in ("mask", "layout"):
            for svg in pictures(tree, name):
                titles = [box[0] for box in named_boxes(svg) if box[0].startswith("worst")]
                self.assertEqual(titles, [f"worst row: out, token {worst['token']} of rank 1"])
        self.assertNotIn("first wrong tile", (WORK / "grade.html").read_text())
        self.assertEqual(xml.parse(WORK / "grade.xml").getroot().get("failures"), "1")
        self.assertEqual(run("grade", file, "theirs.safetensors", "--report", "grade.md").returncode, 1)

    def testTellsErrorsOfTheFormatFromThoseOfTheImplementation(self):
        scenario("fp8.toml")
        path = WORK / "fp8.toml"
        path.write_text(path.read_text().replace('"fp32"', '"fp8"'))
        done = run("run", "fp8.toml", "--report", "fp8.md")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        parted = re.findall(r"^(\w+) +(\S+) by quantised inputs alone, (\S+) apart", done.stdout, re.M)
        self.assertEqual([name for name, *_ in parted], ["out", "lse", "dq", "dk", "dv"], done.stdout)
        for name, of_format, of_implementation in parted:
            self.assertIn(f"| {name} | {of_format} | {of_implementation} |", (WORK / "fp8.md").read_text())

    def testTellsOfProbesAndOfWhatTheyCannotAsk(self):
        # This plugin has no backward.
        done = run("probe", scenario(), "--executor", f"plugin:{PLUGIN}", "--json", "--report", "probe.html", "--junit", "probe.xml",
                   wrong="backward")
        self.assertEqual(done.returncode, 0, done.stderr)
        asked = {one["probe"]: one["rows"] for one in json.loads(done.stdout)["probes"]}
        rows = {text_of(row.findall("td")[0]): text_of(row.findall("td")[1])
                for row in page("probe.html").iter("tr") if len(row.findall("td")) == 8}
        self.assertEqual(rows, {f"probe {name}": "pass" if count else "blind" for name, count in asked.items()})
        self.assertIn("blind", rows.values())
        self.assertEqual(xml.parse(WORK / "probe.xml").getroot().get("failures"), "0")

    def testShowsFaultsWhereTheyWereFound(self):
        names = ["stale_kv_in_backward", "odd_last_token_lost"]
        done = run("faults", *names, "--json", "--report", "faults.html", "--junit", "faults.xml")
        self.assertEqual(done.returncode, 0, done.stderr)
        faults = {fault["name"]: fault for fault in json.loads(done.stdout)["faults"]}
        self.assertEqual(sorted(faults), sorted(names))
        tree = page("faults.html")
        self.assertEqual([text_of(one) for one in tree.iter("h2") if one.get("id")], [one["name"] for one in faults.values()])
        masks = pictures(tree, "mask")
        self.assertEqual(len(masks), 2)
        for svg, fault in zip(masks, faults.values()):
            titles = [box[0] for box in named_boxes(svg) if box[0].startswith("first wrong")]
            where = fault["where"]
            self.assertTrue(titles)
            for title in titles:
                self.assertIn(f"{where['pass']} step {where['step']}, rank {where['rank']}, compute {where['item']}", title)
        self.assertEqual(xml.parse(WORK / "faults.xml").getroot().get("tests"), "2")
        self.assertEqual(run("faults", "no_such_fault").returncode, 2)

    def testShowsEveryFaultInOnePage(self):
        names = [fault["name"] for fault in json.loads(run("faults", "--list", "--json").stdout)["faults"]]
        # In a wide sweep all: the page then leaves some out.
        asked = [] if os.environ.get("CPSCOPE_SWEEPS") == "wide" else names[::5]
        self.assertEqual(run("faults", *asked, "--report", "all.html").returncode, 0)
        figures = len(list(page("all.html").iter("figure")))
        # The page has an end: what would lengthen it beyond 2 MB is left out, and counted.
        left_out = re.search(r"(\d+) pictures are left out", (WORK / "all.html").read_text(encoding="utf-8"))
        all_faults = len(asked or names)
        self.assertEqual(figures + (int(left_out.group(1)) if left_out else 0), all_faults)
        self.assertGreater(figures, 0.6 * all_faults)
        self.assertLess((WORK / "all.html").stat().st_size, 2_000_000)

    def testTellsWhatFuzzingFound(self):
        done = run("fuzz", "--count", "3", "--seconds", "0", "--json", "--report", "fuzz.html", "--junit", "fuzz.xml")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f"{json.loads(done.stdout)['drawn']} draws of seed 1", text_of(page("fuzz.html")))
        suite = xml.parse(WORK / "fuzz.xml").getroot()
        self.assertEqual((suite.get("tests"), suite.get("failures")), ("1", "0"))
        file = scenario()
        done = run("fuzz", file, "--executor", f"plugin:{PLUGIN}", "--json", "--report", "fuzz.html", "--junit", "fuzz.xml",
                   wrong="item out 1 0 3")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertEqual(xml.parse(WORK / "fuzz.xml").getroot().get("failures"), "1")
        titles = {titled_tile(box[0]) for svg in pictures(page("fuzz.html"), "mask") for box in named_boxes(svg)
                  if box[0].startswith("first wrong")}
        self.assertEqual(titles, planted_tiles(file, "out", 1, 0, 3))

    def testStaysSmallWhateverThePlan(self):
        name = scenario("long.toml")
        text = (WORK / name).read_text().replace("lengths = [57, 30]", "lengths = [90001, 31007]").replace("cp_size = 4", "cp_size = 64")
        (WORK / name).write_text(text)
        done = run("verify", name, "--max-flops", "1e6", "--report", "long.html")
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertEqual(len(list(page("long.html").iter("figure"))), 2)
        self.assertLess((WORK / "long.html").stat().st_size, 2_000_000)


if __name__ == "__main__":
    WORK = WORK / (sys.argv[4] if len(sys.argv) > 4 else "all")
    unittest.main(argv=[sys.argv[0]] + [f"Report.{case}" for case in sys.argv[4:]], verbosity=2)
