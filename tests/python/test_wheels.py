"""What can be known of wheels without making them, which takes minutes: their names, what they must not need, and which of their two
builds a processor runs. That they install elsewhere is the long test Wheels.InstallOnOtherSystems."""
import importlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tomllib

import pytest

import cpscope
from cpscope import _processor

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "reference" / "python"))
import wheels  # noqa: E402

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
NEEDS = """Version needs section '.gnu.version_r' contains 2 entries:
 Addr: 0x0000000000000a38  Offset: 0x00000a38  Link: 7 (.dynstr)
  000000: Version: 1  File: libm.so.6  Cnt: 1
  0x0010:   Name: GLIBC_2.9  Flags: none  Version: 4
  0x0020: Version: 1  File: libc.so.6  Cnt: 2
  0x0030:   Name: GLIBC_2.29  Flags: none  Version: 3
  0x0040:   Name: GLIBC_2.3.4  Flags: none  Version: 2
"""


def launch(*words):
    return subprocess.run([ROOT / "cpscope", "wheel", *words], capture_output=True, text=True, env={**os.environ, "CPSCOPE_SKIP_PACKAGES": "1"})


def test_the_launcher_explains_and_rejects():
    done = launch("--help")
    assert done.returncode == 0 and "glibc 2.28" in done.stdout and "Example: ./cpscope wheel" in done.stdout, done
    assert launch("--machine", "riscv64").returncode == 2
    done = launch("--out", str(ROOT / "README.md"), "--json")
    assert done.returncode == 2 and "--out is a file" in json.loads(done.stdout)["error"]["message"], done


def test_symbol_versions_are_compared_as_numbers():
    assert wheels.glibc_versions(NEEDS) == {(2, 9), (2, 29), (2, 3, 4)}
    assert max(wheels.glibc_versions(NEEDS)) == (2, 29) > wheels.GLIBC > (2, 9)
    defined = "Version definition section '.gnu.version_d' contains 1 entry:\n  0x001c: Rev: 1  Name: GLIBC_2.99\n"
    assert wheels.glibc_versions(defined) == set(), "what a file defines is not what it needs"


def test_symbol_versions_of_a_program_are_those_of_another_tool():
    program = pathlib.Path(os.environ["CPSCOPE_PROGRAM"])
    table = subprocess.run(["objdump", "-T", program], capture_output=True, text=True, check=True).stdout
    words = {word.strip("()").removeprefix("GLIBC_") for line in table.splitlines() if "*UND*" in line for word in line.split() if "GLIBC_2" in word}
    assert words and wheels.newest_glibc(program) == max(tuple(map(int, word.split("."))) for word in words)


@pytest.mark.parametrize("size, files, broken", [
    (1, {"cpscope/_core.abi3.so": ((2, 28), ["PyInit__core"])}, []),
    (1, {"cpscope/_core.abi3.so": ((2, 29), ["PyInit__core"])}, ["needs glibc 2.29, newer than 2.28"]),
    (1, {"cpscope/_core.abi3.so": ((2, 28), ["PyInit__core", "_ZSt4cout"])}, ["exports PyInit__core, _ZSt4cout"]),
    (1, {"cpscope/_core.abi3.so": ((2, 28), [])}, ["exports nothing"]),
    (16 << 20, {"cpscope/bin/cpscope": ((2, 28), [])}, ["16777216 bytes, more than 15728640"]),
    (1, {}, ["has no machine code"])])
def test_a_wheel_that_breaks_a_promise_is_rejected(size, files, broken):
    found = wheels.broken_promises("a.whl", size, files)
    assert len(found) == len(broken) and all(part in one for part, one in zip(broken, found)), found


def test_the_module_shows_one_name_alone():
    assert wheels.exported_names(pathlib.Path(cpscope._core.__file__)) == ["PyInit__core"]


def test_names_and_metadata_say_what_the_wheels_hold():
    assert [python.tag for python in wheels.PYTHONS] == ["cp310-cp310", "cp311-cp311", "cp312-abi3"]
    assert PROJECT["project"]["requires-python"] == ">= " + wheels.PYTHONS[0].version
    assert wheels.module_name(wheels.PYTHONS[1], "aarch64") == "_core.cpython-311-aarch64-linux-gnu.so"
    assert "\nTag: cp312-abi3-linux_x86_64\n" in wheels.wheel_text("cp312-abi3", "x86_64")
    module, _, function = PROJECT["project"]["scripts"]["cpscope"].partition(":")
    assert callable(getattr(importlib.import_module(module), function))


def test_every_package_of_headers_is_required_by_the_project():
    text = (ROOT / "sim/base/headers.cmake").read_text()
    named = [line.split()[-1].rstrip(")") for line in text.split("# a file since")[0].splitlines()
             if line.startswith("cpscope_find_headers(") and '""' not in line.split()[-1]]
    required = {word.split()[0] for word in PROJECT["build-system"]["requires"]}
    assert len(named) == 3 and required >= set(named), (named, required)


# ---- the two builds of a wheel --------------------------------------------------------------------------------------------------

V3 = "abm avx avx2 bmi1 bmi2 f16c fma movbe xsave"


@pytest.mark.parametrize("flags, expected", [
    (f"fpu sse4_2 {V3}", True), (f"fpu {V3.replace('avx2 ', '')}", False), (f"fpu {V3.replace('avx2', 'avx512f')}", False), ("", False)])
def test_the_faster_build_needs_every_part_of_it(tmp_path, flags, expected):
    (tmp_path / "cpuinfo").write_text(f"processor\t: 0\nbugs\t\t: {V3}\nflags\t\t: {flags}\n")
    assert _processor._runs_v3(str(tmp_path / "cpuinfo")) is expected
    assert _processor._runs_v3(str(tmp_path / "none")) is False


@pytest.fixture
def installed(tmp_path):
    """A package as a wheel has it, with this build's module in both places; runs Python in it."""
    package = tmp_path / "cpscope"
    shutil.copytree(pathlib.Path(cpscope.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__", "scenarios"))
    (package / "v3").mkdir()
    shutil.copy(cpscope._core.__file__, package / "v3")
    for folder in (package, package / "v3"):
        (folder / "bin").mkdir()
        (folder / "bin/cpscope").write_text(f'#!/bin/sh\necho "{folder.name} $CPSCOPE_ROOT $*"\nexit 1\n')
        (folder / "bin/cpscope").chmod(0o755)

    def run(*words, processor=""):
        environment = {**os.environ, "PYTHONPATH": str(tmp_path), "CPSCOPE_PROCESSOR": processor}
        return subprocess.run([sys.executable, *words], capture_output=True, text=True, env=environment)
    return run


def test_the_variable_chooses_a_build(installed):
    ask = ("-c", "import cpscope; print(cpscope._core.__file__, cpscope._core.__name__, cpscope.Scenario.of(heads=1, head_dim=8, lengths=[4], cp_size=2))")
    slow = installed(*ask, processor="v2")
    assert slow.returncode == 0 and "/cpscope/_core." in slow.stdout, slow
    if _processor._runs_v3():
        for processor in ("v3", ""):
            fast = installed(*ask, processor=processor)
            assert fast.returncode == 0 and "/cpscope/v3/_core." in fast.stdout and " cpscope._core " in fast.stdout, fast
    else:
        assert "lacks AVX2" in installed(*ask, processor="v3").stderr
    wrong = installed(*ask, processor="v4")
    assert wrong.returncode != 0 and "CPSCOPE_PROCESSOR must be v2 or v3: v4" in wrong.stderr, wrong


def test_an_installation_with_one_build_rejects_the_variable(tmp_path):
    done = subprocess.run([sys.executable, "-c", "import cpscope"], capture_output=True, text=True, env={**os.environ, "CPSCOPE_PROCESSOR": "v3"})
    assert done.returncode != 0 and "this installation of cpscope has one build" in done.stderr, done


def test_the_program_of_a_wheel_gets_words_and_gives_its_exit_code(installed):
    done = installed("-m", "cpscope", "layout", "a b.toml", processor="v2")
    assert done.returncode == 1 and done.stdout.endswith("/cpscope layout a b.toml\n") and done.stdout.startswith("cpscope /"), done
    if _processor._runs_v3():
        assert installed("-m", "cpscope").stdout.startswith("v3 /")


def test_an_installation_without_the_program_says_so():
    done = subprocess.run([sys.executable, "-m", "cpscope", "layout"], capture_output=True, text=True)
    assert done.returncode == 3 and done.stdout == "" and "the program is in wheels" in done.stderr, done
