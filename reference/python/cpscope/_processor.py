"""Which of a wheel's two builds this machine's processor runs: wheels for x86-64 have one for x86-64-v2 (any processor since 2009) and
one for x86-64-v3 (AVX2), in the folder v3. They give the same verdicts; the variable CPSCOPE_PROCESSOR=v2 or v3 chooses."""
from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import pathlib
import platform
import sys

PACKAGE = pathlib.Path(__file__).parent

# What x86-64-v3 adds to v2, by the kernel's names; xsave is there only where the kernel keeps the wide registers.
_V3 = frozenset("abm avx avx2 bmi1 bmi2 f16c fma movbe xsave".split())


def _runs_v3(cpuinfo: str = "/proc/cpuinfo") -> bool:
    """Whether the first processor that the kernel lists has all of x86-64-v3; False where that is not known."""
    try:
        with open(cpuinfo, encoding="ascii", errors="replace") as file:
            flags = next((line for line in file if line.startswith("flags")), "")
    except OSError:
        return False
    return _V3 <= set(flags.partition(":")[2].split())


def build_folder() -> pathlib.Path:
    """The folder with the module and the program for this processor. A CPSCOPE_PROCESSOR that is neither v2 nor v3, or that this
    installation or this processor does not have, is an ImportError."""
    wanted = os.environ.get("CPSCOPE_PROCESSOR", "")
    if wanted not in ("", "v2", "v3"):
        raise ImportError(f"CPSCOPE_PROCESSOR must be v2 or v3: {wanted}")
    fast = PACKAGE / "v3"
    if wanted and not fast.is_dir():
        raise ImportError(f"CPSCOPE_PROCESSOR={wanted}: this installation of cpscope has one build, made for {platform.machine()}")
    if wanted == "v2" or not fast.is_dir():
        return PACKAGE
    if _runs_v3():
        return fast
    if wanted:
        raise ImportError("CPSCOPE_PROCESSOR=v3: this processor lacks AVX2 or another part of x86-64-v3")
    return PACKAGE


def load_core() -> None:
    """Makes cpscope._core the module of build_folder()."""
    folder = build_folder()
    if folder == PACKAGE:
        return  # an ordinary import finds it
    name = "cpscope._core"
    finder = importlib.machinery.FileFinder(str(folder), (importlib.machinery.ExtensionFileLoader, importlib.machinery.EXTENSION_SUFFIXES))
    spec = finder.find_spec(name)
    if spec is None or spec.loader is None:
        raise ImportError(f"the module _core is missing in {folder}: install cpscope again")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    setattr(sys.modules["cpscope"], "_core", module)  # as an ordinary import does
