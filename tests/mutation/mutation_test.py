"""What the mutation score stands on: which mutants there are, how they are switched, what the list of equals allows.

    mutation_test.py COMPILER [CASE]
"""

import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

if sys.version_info < (3, 11):
    print("requires python311: this Python reads no TOML")
    sys.exit(77)

sys.dont_write_bytecode = True
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import mutants as model  # noqa: E402
import mutation  # noqa: E402
from mutant_runs import Case, Verdict, make_batches  # noqa: E402

COMPILER = "c++"

SNIPPET = """\
#include <algorithm>
#include <cstdio>
#include <stdexcept>
#include <vector>

constexpr int kLimit = 2 + 2;
struct Row { int first = 0; int last = 1; };
template <class T>
constexpr T twice(T value) { return value * 2; }
int sum_below(const std::vector<int>& values, int limit) {
  static_assert(kLimit < 100, "small");
  int sum = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] < limit && !(values[i] == 3)) sum += std::min<int>(values[i], 10) - 1;
  }
  if (limit < 0) throw std::runtime_error("limit " + std::to_string(limit + 1));
  return sum;
}
"""
DRIVER = """
int main() {
  constexpr int fixed = twice(4);
  std::printf("%d %d %d\\n", fixed, twice(4), sum_below({1, 2, 3, 4}, 4));
}
"""


def find(text=SNIPPET):
    return model.find_mutants("sim/plan/snippet.cpp", text)


def changes(kind, text=SNIPPET):
    return [(m.original, m.mutated) for m in find(text) if m.kind == kind]


class Mutants(unittest.TestCase):
    def testAreFoundWithTheOperandsThatTheirPrecedenceGives(self):
        body = "int f(int a, int b) { return a + b * 2 < a - b - 1 && a == b; }"
        self.assertIn(("a + b * 2 < a - b - 1", "a + b * 2 <= a - b - 1"), changes("bounds", body))
        self.assertIn(("b * 2", "b + 2"), changes("arithmetic", body))
        self.assertIn(("a - b - 1", "a - b + 1"), changes("arithmetic", body))
        self.assertIn(("a + b * 2 < a - b - 1 && a == b", "a + b * 2 < a - b - 1 || a == b"), changes("logical", body))

    def testTakeTemplateBracketsForNoComparison(self):
        body = "int f(std::map<int, std::vector<int>> m) { return static_cast<int>(m.size()) > 1 ? 1 : 0; }"
        self.assertEqual(changes("bounds", body),
                         [("static_cast<int>(m.size()) > 1", "static_cast<int>(m.size()) >= 1")])

    def testLeaveMessagesAndWhatOnlyTheCompilerReadsAlone(self):
        originals = {m.original for m in find()}
        self.assertNotIn("limit + 1", originals)
        self.assertNotIn("kLimit < 100", originals)
        self.assertNotIn("2 + 2", originals)
        self.assertFalse(any('"' in m.original and m.kind == "arithmetic" for m in find()))

    def testDropStatementsButNoDeclarationAndNoLastReturn(self):
        self.assertEqual([m.original for m in find() if m.kind == "statement"], ["sum += std::min<int>(values[i], 10) - 1;"])
        body = "int f(int a) { if (a > 1) return 2; g(a); h.x = 1; int b = 2; v.reserve(b); return b; }"
        self.assertEqual([m.original for m in find(body) if m.kind == "statement"], ["return 2;", "g(a);", "h.x = 1;"])

    def testAreOfEveryKind(self):
        self.assertEqual({m.kind for m in find()}, set(model.KINDS))


class Draw(unittest.TestCase):
    def testIsTheSameForTheSameSeedAndAnotherForAnother(self):
        draws = [[m.key() for m in model.draw(find(), seed, 8)] for seed in (1, 1, 2)]
        self.assertEqual(draws[0], draws[1])
        self.assertNotEqual(draws[0], draws[2])

    def testLetsKindsTakeTurnsAndNeverDrawsOneTwice(self):
        drawn = model.draw(find(), 1, 6)
        self.assertEqual([m.kind for m in drawn], list(model.KINDS))
        every = model.draw(find(), 1, 1000)
        self.assertEqual(len({(m.key(), m.place, m.kind) for m in every}), len(every))

    def testIsNotMovedByLinesThatAreAddedElsewhere(self):
        longer = "int other() {\n  return 0;\n}\n" + SNIPPET
        ordered = [[m.key() for m in sorted(find(text), key=lambda m: model.draw_order(m, 5))] for text in (SNIPPET, longer)]
        self.assertEqual(ordered[0], [key for key in ordered[1] if key[1] != "return 0;"])


class Switch(unittest.TestCase):
    def build(self, folder):
        drawn = find()
        for number, mutant in enumerate(drawn, 1):
            mutant.number = number
        text = model.render(SNIPPET + DRIVER, drawn, HERE / "mutant_switch.h")
        (folder / "snippet.cpp").write_text(text)
        subprocess.run([COMPILER, "-std=c++20", "-w", "-o", folder / "snippet", folder / "snippet.cpp"], check=True)
        return drawn

    def testChoosesOneMutantAtRunTimeAndLeavesConstantsAlone(self):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            drawn = self.build(folder)
            outputs = {}
            for mutant in [None, *drawn]:
                extra = {} if mutant is None else {"CPSCOPE_MUTANT": str(mutant.number)}
                try:
                    done = subprocess.run([folder / "snippet"], capture_output=True, text=True, env={**os.environ, **extra}, timeout=5)
                    outputs[mutant and (mutant.original, mutant.mutated)] = done.stdout.strip()
                except subprocess.TimeoutExpired:
                    outputs[mutant and (mutant.original, mutant.mutated)] = "endless"
            self.assertEqual(outputs[None], "8 8 1")
            self.assertEqual(outputs[("value * 2", "value + 2")], "8 6 1")
            self.assertEqual(outputs[("values[i] == 3", "values[i] != 3")], "8 8 2")
            self.assertEqual(outputs[("sum += std::min<int>(values[i], 10) - 1;", "")], "8 8 0")

    def testTellsWhichMutantsWereComeBy(self):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            drawn = self.build(folder)
            reached = folder / "reached"
            reached.write_bytes(bytes(8192))
            subprocess.run([folder / "snippet"], env={**os.environ, "CPSCOPE_MUTANT_REACHED": str(reached)}, check=True,
                           stdout=subprocess.DEVNULL)
            seen = {m.original for m in drawn if reached.read_bytes()[m.number]}
            self.assertIn("values[i] == 3", seen)
            self.assertEqual(reached.read_bytes()[0], 0)


class EquivalentList(unittest.TestCase):
    def listed(self, **changed):
        entry = {"file": "sim/plan/snippet.cpp", "line": "if (limit < 0) throw std::runtime_error(\\\"limit \\\" + std::to_string(limit + 1));",
                 "original": "limit < 0", "mutated": "limit <= 0", "why": "a test", **changed}
        with tempfile.TemporaryDirectory() as name:
            path = Path(name) / "equivalent.toml"
            path.write_text("[[equivalent]]\n" + "".join(f'{key} = "{value}"\n' for key, value in entry.items()))
            return mutation.read_equivalent(path)

    def testMatchesByContent(self):
        self.assertEqual(mutation.find_stale(self.listed(), {"planner": find("\n\n" + SNIPPET)}), [])

    def testIsComplainedOfWhereAnEntryMatchesNothing(self):
        for changed in ({"original": "limit < 1"}, {"mutated": "limit > 0"}, {"file": "sim/plan/other.cpp"}, {"line": "if (limit < 0) return 0;"}):
            self.assertEqual(len(mutation.find_stale(self.listed(**changed), {"planner": find()})), 1, changed)

    def testMeansOneOfSeveralThatReadTheSame(self):
        text = "int f(int a) {\n  if (a < 1)\n    a += 1;\n  if (a < 2)\n    a += 1;\n  return a;\n}\n"
        drops = [m for m in find(text) if m.kind == "statement"]
        self.assertEqual([m.place for m in drops], ["1", "2"])
        listed = self.listed(line="a += 1;", original="a += 1;", mutated="", place="2")
        self.assertEqual([m.listed_key() in listed for m in drops], [False, True])

    def testNeedsAReason(self):
        with self.assertRaisesRegex(ValueError, "lacks a reason"):
            self.listed(why=" ")

    def testNamesOnlyMutantsOfTheTreeAsItIs(self):
        root = HERE.parent.parent
        listed = mutation.read_equivalent(HERE / "equivalent.toml")
        files = {key[0] for key in listed}
        found = {"all": [m for name in files if (root / name).exists() for m in model.find_mutants(name, (root / name).read_text())]}
        self.assertEqual(mutation.find_stale(listed, found), [])


class Score(unittest.TestCase):
    def testCountsTimeoutsAsKilledAndLeavesListedSurvivorsOut(self):
        drawn = model.draw(find(), 1, 5)
        for number, mutant in enumerate(drawn, 1):
            mutant.number, mutant.path = number, "sim/plan/band.cpp"
        words = ["killed", "timeout", "survived", "not reached", "survived"]
        verdicts = {number: Verdict(word) for number, word in enumerate(words, 1)}
        row = mutation.tabulate(drawn, verdicts, {drawn[4].listed_key(): "equal"})[0]
        self.assertEqual((row["area"], row["drawn"], row["equivalent"], row["score"]), ("mask", 5, 1, 50.0))

    def testRunsCheapCasesFirst(self):
        cases = [Case("a", "Slow.One", 9.0, frozenset()), Case("b", "Quick.One", 0.01, frozenset()),
                 Case("a", "Quick.Two", 0.02, frozenset())]
        self.assertEqual([[case.name for case in batch] for _, _, batch in make_batches(cases)],
                         [["Quick.One"], ["Quick.Two"], ["Slow.One"]])


if __name__ == "__main__":
    if len(sys.argv) > 1 and not sys.argv[1].startswith("test"):
        COMPILER = sys.argv.pop(1)
    if len(sys.argv) > 1 and re.fullmatch(r"test\w+", sys.argv[1]):
        sys.argv[1:] = ["-k", sys.argv[1]]
    unittest.main()
