"""What tests/run.py says of a folder of tests: counted, unchanged, skipped, failed.

    run_test.py [CASE]
"""

import contextlib
import io
import os
import sys
import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import run  # noqa: E402

TESTS = """
cmake_policy(VERSION 3.25)
add_test(sim.Good.Passes "sh" "{folder}/good")
add_test("sim.Good.ReadsNobodyKnowsWhat/7  # GetParam() = 4-byte object <...>" "sh" "{folder}/good")
add_test(gpu.Device.Computes "sh" "-c" "echo 'a.cpp:1: Skipped'; echo 'requires gpu: no CUDA device'; exit 77")
add_test(gui.Bad.Fails "sh" "-c" "echo the reason; exit 1")
add_test(program.Bad.Crashes "sh" "-c" "echo before; kill -SEGV $$")
add_test(gui.Slow.RunsForLong "true")
set_tests_properties(sim.Good.Passes PROPERTIES REQUIRED_FILES "{folder}/data")
set_tests_properties(gpu.Device.Computes PROPERTIES SKIP_RETURN_CODE 77)
set_tests_properties(gui.Slow.RunsForLong PROPERTIES LABELS long)
"""


class TestCommand(unittest.TestCase):
    def setUp(self):
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.folder = Path(place.name)
        (self.folder / "data").mkdir()
        (self.folder / "data" / "a.toml").write_text("1")
        (self.folder / "good").write_text("true\n")
        (self.folder / "CTestTestfile.cmake").write_text(TESTS.format(folder=self.folder))
        for name in ("CI", "CPSCOPE_REQUIRE"):
            before = os.environ.pop(name, None)
            if before is not None:
                self.addCleanup(os.environ.__setitem__, name, before)

    def run_all(self, rooms=("sim", "kernels"), **options):
        """A run and its summary line."""
        one = run.Run(SimpleNamespace(rooms=rooms, all=options.get("all", False)))
        with contextlib.redirect_stderr(io.StringIO()) as said, contextlib.redirect_stdout(io.StringIO()) as summary:
            one.test(self.folder, without=("long",))
            code = one.sum_up()
        return one, summary.getvalue().strip(), said.getvalue(), code

    def testCountsWhatPassedAndSaysWhyTheRestDidNotRun(self):
        _, summary, said, code = self.run_all()
        self.assertEqual(summary, "2 passed, 0 failed, 1 skipped")
        self.assertIn("skipped: gpu.Device.Computes: requires gpu: no CUDA device", said)
        self.assertEqual(code, 0)

    def testRunsOnlyWhatCanHaveChanged(self):
        self.run_all()
        one, summary, _, _ = self.run_all()
        self.assertEqual(summary, "2 passed (1 of them unchanged since they last did), 0 failed, 1 skipped")
        self.assertNotIn("sim.Good.Passes", [time[2] for time in one.times])

    def testRunsAgainWhatReadsOtherBytes(self):
        for change in ("data/a.toml", "data/new.toml", "good"):
            self.run_all()
            (self.folder / change).write_text("true # changed\n")
            self.assertEqual(self.run_all()[1], "2 passed, 0 failed, 1 skipped", change)

    def testRunsEverythingWhenAskedTo(self):
        self.run_all()
        self.assertEqual(self.run_all(all=True)[1], "2 passed, 0 failed, 1 skipped")

    def testForgetsAPassOfWhatFailsNow(self):
        self.run_all()
        (self.folder / "good").write_text("false\n")
        self.assertEqual(self.run_all()[1], "0 passed, 2 failed, 1 skipped")
        (self.folder / "good").write_text("true\n")
        self.assertEqual(self.run_all()[1], "2 passed, 0 failed, 1 skipped")

    def testShowsTheEndOfWhatAFailureSaid(self):
        _, summary, said, code = self.run_all(rooms=("gui",))
        self.assertEqual(summary, "0 passed, 1 failed, 0 skipped")
        self.assertIn("failed: gui.Bad.Fails: Failed\n  | the reason", said)
        self.assertEqual(code, 1)

    def testNamesACrash(self):
        said = self.run_all(rooms=("program",))[2]
        self.assertRegex(said, r"failed: program.Bad.Crashes: .*SegFault\n  \| before")

    def testTakesASkipForAFailureWhereItsReasonIsRequired(self):
        os.environ["CPSCOPE_REQUIRE"] = "display,gpu"
        self.addCleanup(os.environ.pop, "CPSCOPE_REQUIRE")
        _, summary, said, code = self.run_all()
        self.assertEqual(summary, "2 passed, 1 failed, 0 skipped")
        self.assertIn("failed: gpu.Device.Computes: requires gpu", said)
        self.assertEqual(code, 1)

    def testFailsAFolderWithoutTests(self):
        (self.folder / "CTestTestfile.cmake").write_text("")
        self.assertEqual(self.run_all(rooms=())[3], 1)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1] + [f"TestCommand.{case}" for case in sys.argv[1:]], verbosity=2)
