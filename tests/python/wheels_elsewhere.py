"""wheels_elsewhere.py FOLDER PROGRAM: makes the wheels of this machine, installs them on other Debian releases (in chroots that
debootstrap makes in FOLDER), and compares what they answer with this build's package (PYTHONPATH) and PROGRAM.

Exit codes: 0 as it must be, 1 not so, 77 what this needs is not here. CPSCOPE_WHEELS names a folder with wheels to test instead.
"""
import json
import math
import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FOLDER, PROGRAM = pathlib.Path(sys.argv[1]), sys.argv[2]

# By Debian release, whose glibc and Python differ: the packages to begin with, and the wheel that its pip must choose; "" for none.
RELEASES = {"bullseye": ("python3,python3-pip", ""), "bookworm": ("python3,python3-pip,python3-numpy", "cp311-cp311"),
            "trixie": ("python3,python3-pip,python3-numpy", "cp312-abi3")}
SCENARIO = "/usr/share/cpscope-scenarios/thd_padding_p2p.toml"
# Every command without a window: its words, and the exit code. In the order in which files are made.
COMMANDS = (
    (("layout", SCENARIO, "--json", "--full"), 0), (("plan", SCENARIO, "--json", "--summary"), 0), (("plan", SCENARIO, "--text"), 0),
    (("run", SCENARIO, "--json", "--record", "/srv/a.safetensors"), 0), (("run", SCENARIO, "--poison"), 0),
    (("probe", SCENARIO, "--json"), 0), (("grade", SCENARIO, "/srv/a.safetensors", "--json"), 0),
    (("diff", "/srv/a.safetensors", "/srv/a.safetensors", "--json"), 0), (("verify", SCENARIO, "--json"), 0),
    (("compare", SCENARIO, "--cluster", "h200x8", "--json"), 0), (("timeline", SCENARIO, "--cluster", "h200x8", "--json"), 0),
    (("faults",), 0), (("render", SCENARIO, "--view", "mask", "--out", "/srv/mask.svg"), 0),
    (("render", SCENARIO, "--view", "all", "--out", "/srv/all.png"), 0), (("gui", SCENARIO), 3), (("run", SCENARIO, "--executor", "cuda"), 3),
    (("layout", "/srv/none.toml"), 2))


def stop(code, *words):
    print(*words)
    sys.exit(code)


def call(*words, **options):
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, errors="replace", check=False, **options)


def expect(done, code=0):
    if done.returncode != code:
        stop(1, f"{' '.join(done.args)} ended with code {done.returncode}, not {code}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return done.stdout


class System:
    """Another Debian release in a folder of this one."""

    def __init__(self, release, wheels):
        self.root = FOLDER / release
        packages, self.tag = RELEASES[release]
        stamp = self.root / "made"
        if not stamp.exists():
            shutil.rmtree(self.root, ignore_errors=True)
            done = call("debootstrap", "--variant=minbase", f"--include={packages}", release, self.root)
            if done.returncode != 0:
                stop(77, f"requires chroot: debootstrap cannot make {release}: {done.stdout.strip().splitlines()[-1:]}")
            stamp.touch()
        for folder in ("srv", "wheels", "usr/share/cpscope-scenarios"):
            shutil.rmtree(self.root / folder, ignore_errors=True)
        (self.root / "srv").mkdir()
        shutil.copytree(wheels, self.root / "wheels")
        shutil.copytree(ROOT / "scenarios", self.root / "usr/share/cpscope-scenarios")
        shutil.copy(HERE / "wheel_answers.py", self.root / "srv")

    def run(self, *words, with_proc=True, **variables):
        """Runs a command there, where the kernel's files about processes can be had or not."""
        environment = {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME": "/root", "LANG": "C.UTF-8", **variables}
        mount = f"mount -t proc proc {self.root}/proc && " if with_proc else ""
        return call("unshare", "--mount", "sh", "-c", f'{mount}exec chroot {self.root} "$@"', "sh", *words, env=environment)

    def install(self):
        """Has pip choose the wheel; True if there was one."""
        words = ["pip3", "install", "--no-index", "--no-deps", "--force-reinstall", "--find-links", "/wheels"]
        if "--break-system-packages" in self.run("pip3", "install", "--help").stdout:
            words.append("--break-system-packages")
        done = self.run(*words, "cpscope")
        if not self.tag:
            if done.returncode == 0 or "No matching distribution found" not in done.stderr:
                stop(1, f"{self.root.name} must find no wheel for its Python: {done.stdout}{done.stderr}")
            return False
        expect(done)
        found = self.run("python3", "-c", "import importlib.metadata as m; print(m.distribution('cpscope').read_text('WHEEL'))").stdout
        if self.tag not in found:
            stop(1, f"{self.root.name} installed another wheel than {self.tag}:\n{found}")
        return True


def difference(one, other, path=""):
    """[(largest relative difference of two numbers, where)] of two documents, whose words must be equal."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        return [found for key in one if key not in ("machine", "seconds", "version") for found in difference(one[key], other[key], f"{path}.{key}")]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [found for i, pair in enumerate(zip(one, other)) for found in difference(*pair, f"{path}[{i}]")]
    if isinstance(one, (int, float)) and isinstance(other, (int, float)) and not isinstance(one, bool) and one != other:
        return [(abs(one - other) / max(abs(one), abs(other)), f"{path}: {one} {other}")]
    return [] if one == other else [(math.inf, f"{path}: {one} {other}"[:300])]


def compare_answers(name, mine, other):
    """Fails if two folders of answers differ in more than the last bits of sums in double precision."""
    documents = [json.loads((folder / "answers.json").read_text())["answers"] for folder in (mine, other)]
    worst, where = max(difference(*documents), default=(0, "nowhere"))
    with np.load(mine / "answers.npz") as one, np.load(other / "answers.npz") as two, np.errstate(invalid="ignore"):
        if one.files != two.files:
            stop(1, f"{name}: other arrays")
        distance, array = max((float(np.nanmax(np.abs(one[key] - two[key]), initial=0, where=np.isfinite(one[key]))), key) for key in one.files)
        same = sum(np.array_equal(one[key], two[key], equal_nan=True) for key in one.files)
        if any(not np.array_equal(np.isfinite(one[key]), np.isfinite(two[key])) for key in one.files):
            stop(1, f"{name}: other rows are empty")
        inputs = [key for key in one.files if key.split(".")[1] in ("q", "k", "v", "d_out") and not np.array_equal(one[key], two[key], equal_nan=True)]
    print(f"{name}: {same} of {len(one.files)} arrays have the same bits; largest difference {distance:.1e} ({array}); of documents {worst:.1e} ({where})")
    # Grades divide by errors of 1e-16, so that last bits show in them; layouts, plans and verdicts are words and integers.
    if inputs or not distance < 1e-12 or not math.isfinite(worst):
        stop(1, f"{name}: the answers differ: inputs {inputs}")


def run_program(system):
    """Runs every command there, on both builds, and compares JSON with this build's program."""
    runs = {}
    for processor in ("v2", "v3") if "avx2" in pathlib.Path("/proc/cpuinfo").read_text() else ("v2",):
        for words, code in COMMANDS:
            done = system.run("cpscope", *words, CPSCOPE_PROCESSOR=processor)
            out = expect(done, code)
            if code == 3 and len(done.stderr.strip().splitlines()) > 2:
                stop(1, f"{' '.join(words)} says more than a sentence: {done.stderr}")
            if "--json" in words and words[0] in ("layout", "plan", "probe"):  # integers and words
                mine = call(PROGRAM, *(word.replace("/usr/share/cpscope-scenarios", str(ROOT / "scenarios")) for word in words)).stdout
                worst, where = max(difference(json.loads(mine), json.loads(out)), default=(0, ""))
                if worst > 1e-9:
                    stop(1, f"{words[0]} of {processor} differs from this build's: {where}")
        if (system.root / "srv/all.png").read_bytes()[:4] != b"\x89PNG":
            stop(1, "render made no PNG")
        runs[processor] = expect(system.run("cpscope", "run", SCENARIO, "--json", CPSCOPE_PROCESSOR=processor))
    documents = [json.loads(text) for text in runs.values()]
    worst, where = max(difference(documents[0], documents[-1]), default=(0, "nowhere"))
    print(f"{system.root.name}: {len(COMMANDS)} commands; `run` of the builds {' and '.join(runs)} differs by {worst:.1e} ({where})")
    if not math.isfinite(worst):
        stop(1, "the builds have other verdicts")


def main():
    for tool in ("debootstrap", "unshare", "chroot"):
        if not shutil.which(tool):
            stop(77, f"requires chroot: {tool} is missing")
    if os.geteuid() != 0:
        stop(77, "requires chroot: only root may make one")
    FOLDER.mkdir(parents=True, exist_ok=True)
    wheels = pathlib.Path(os.environ.get("CPSCOPE_WHEELS") or FOLDER / "wheels")
    if "CPSCOPE_WHEELS" not in os.environ:
        shutil.rmtree(wheels, ignore_errors=True)
        done = call(ROOT / "cpscope", "wheel", "--machine", os.uname().machine, "--out", wheels, env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"})
        if done.returncode != 0:
            stop(1, f"./cpscope wheel failed:\n{done.stderr[-4000:]}")
        print(done.stdout)
    mine = FOLDER / "here"
    mine.mkdir(exist_ok=True)
    expect(call(sys.executable, HERE / "wheel_answers.py", mine))
    for release in RELEASES:
        system = System(release, wheels)
        if not system.install():
            # Its Python is too old for the package, its glibc is not for the program.
            expect(system.run("python3", "-m", "zipfile", "-e", f"/wheels/{next(wheels.glob('*cp311*')).name}", "/srv/opened"))
            expect(system.run("chmod", "-R", "+x", "/srv/opened/cpscope/bin"))
            print(f"{release}: pip finds no wheel for its Python; program {expect(system.run('/srv/opened/cpscope/bin/cpscope', '--version')).strip()} runs")
            expect(system.run("/srv/opened/cpscope/bin/cpscope", "run", SCENARIO))
            continue
        for processor, variables in {"v2": {"CPSCOPE_PROCESSOR": "v2"}, "chosen": {}, "without_proc": {"with_proc": False}}.items():
            folder = system.root / "srv" / processor
            folder.mkdir()
            expect(system.run("python3", "/srv/wheel_answers.py", f"/srv/{processor}", **variables))
            module = json.loads((folder / "answers.json").read_text())["module"]
            expected = processor == "chosen" and "avx2" in pathlib.Path("/proc/cpuinfo").read_text()
            if ("/v3/" in module) != expected:
                stop(1, f"{release}, {processor}: the module is {module}")
            compare_answers(f"{release}, {processor} with here", mine, folder)
        run_program(system)
    return 0


if __name__ == "__main__":
    sys.exit(main())
