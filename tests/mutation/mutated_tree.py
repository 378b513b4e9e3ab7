"""The copy of the sources with mutants in it, in an ignored build folder, and its build. The sources are never touched."""

import fnmatch
import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import mutants as model

# Area -> files. What faults/ plants is itself a set of mutants, and sim/app is the front door; neither is drawn from.
AREAS = {
    "planner": ["sim/plan/planner/*", "sim/plan/piece_table.*"],
    "plan_check": ["sim/plan/check/*check*"],
    "mask": ["sim/plan/band.*", "sim/plan/mask_bands.*", "sim/plan/visible_interval.*", "sim/scenario/slice_overlap.*",
             "reference/mask_predicate.*"],
    "merge": ["reference/partial_merger.*", "reference/online_softmax.h", "reference/round_rows.*", "reference/row_moves.*"],
    "layout": ["sim/plan/layout*", "sim/plan/token_run.*", "sim/plan/order/*", "sim/scenario/order_file.*"],
    "oracle": ["reference/dense_oracle.*", "reference/exact_attention.cpp", "reference/plain_attention.cpp",
               "reference/rotary_table.*", "reference/head_group.h", "reference/row_matrix.h"],
    "tiles": ["kernels/tiles/tile_list.*", "kernels/tiles/work_order.*", "reference/tile_attention.*"],
    "other": ["reference/plan_walk*", "reference/home_rows.*", "reference/rotate_row.h", "reference/rank_memory.h",
              "reference/kernel_walker.*", "sim/plan/plan.*", "sim/plan/plan_summary.*", "sim/plan/te/*", "sim/plan/document/*.cpp", "sim/run/*.cpp", "sim/run/*/*.cpp",
              "sim/run/dtype.h", "sim/scenario/*.cpp", "kernels/group/group_message.cpp", "kernels/group/launch_place.cpp",
              "kernels/plugin/plugin_call.cpp", "kernels/group/process_group.cpp", "kernels/device/tensor_map.cpp"],
}
# Tested through the program or the window alone, which are not built here.
LEFT_OUT = ["sim/run/*/foreign_*", "sim/run/grade/grade_hints.cpp", "sim/run/grade/case.cpp", "kernels/device/tensor_map.cpp"]
TARGETS = ["sim_tests", "fault_tests", "reference_tests", "kernels_tests"]
NUMBERS_OF_AREA = 1000
SWITCH_HEADER = "tests/mutation/mutant_switch.h"


def say(*words):
    print("mutation:", *words, file=sys.stderr, flush=True)


def area_of(path):
    for area, patterns in AREAS.items():
        if any(fnmatch.fnmatch(path, pattern) for pattern in patterns):
            return area
    return None


def is_left_out(path):
    return any(fnmatch.fnmatch(path, pattern) for pattern in LEFT_OUT)


def list_sources(root):
    done = subprocess.run(["git", "-C", root, "ls-files", "-co", "--exclude-standard"], capture_output=True, text=True)
    if done.returncode == 0:
        names = done.stdout.splitlines()
    else:
        names = [str(p.relative_to(root)) for p in Path(root).rglob("*")
                 if not str(p.relative_to(root)).startswith((".git/", "build", "out/"))]
    return sorted(name for name in names if (Path(root) / name).is_file())


def find_all(root, names):
    """Every mutant of every area: {area: [Mutant]}."""
    found = {area: [] for area in AREAS}
    for name in names:
        area = area_of(name)
        if area and name.endswith((".h", ".cpp")):
            found[area] += model.find_mutants(name, (Path(root) / name).read_text())
    return found


class MutatedTree:
    def __init__(self, root, work):
        self.root, self.folder = Path(root), Path(work) / "tree"
        self.build = self.folder / "build"
        self.rejected_file = Path(work) / "does_not_compile.json"
        self.rejected = set(json.loads(self.rejected_file.read_text())) if self.rejected_file.exists() else set()
        self.names = list_sources(root)
        self.all = find_all(root, self.names)

    @staticmethod
    def identity(mutant):
        return hashlib.sha256("\0".join([*mutant.key(), mutant.kind, mutant.place]).encode()).hexdigest()[:24]

    def draw(self, seed, count, areas):
        """As many mutants of each area as there are places, those that do not compile or have no tests here left out. A mutant's number is its
        place in its area's whole order, so that neither another count nor a replacement renumbers others."""
        drawn = []
        for i, area in enumerate(areas):
            share = count // len(areas) + (i < count % len(areas))
            order = model.draw(self.all[area], seed, NUMBERS_OF_AREA - 1)
            for place, mutant in enumerate(order, 1):
                mutant.number = list(AREAS).index(area) * NUMBERS_OF_AREA + place
            drawn += [m for m in order if self.identity(m) not in self.rejected and not is_left_out(m.path)][:share]
        return drawn

    def write(self, drawn):
        """Brings the copy up to date; files whose text stays keep their time."""
        by_path = {}
        for mutant in drawn:
            by_path.setdefault(mutant.path, []).append(mutant)
        for name in self.names:
            content = (self.root / name).read_bytes()
            if name in by_path:
                content = model.render(content.decode(), by_path[name], SWITCH_HEADER).encode()
            target = self.folder / name
            if target.exists() and target.read_bytes() == content:
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            target.chmod((self.root / name).stat().st_mode & 0o777)

    def configure(self, launcher):
        if (self.build / "build.ninja").exists():
            return
        options = ["-DCMAKE_BUILD_TYPE=RelWithDebInfo", "-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O2 -g1 -DNDEBUG", "-DCPSCOPE_CUDA=OFF",
                   "-DCPSCOPE_WERROR=OFF", "-DCPSCOPE_BUILD_TESTS=ON", "-DCPSCOPE_BUILD_BENCHMARKS=OFF",
                   "-DCMAKE_CXX_FLAGS=-w"]
        if launcher:
            options.append(f"-DCMAKE_CXX_COMPILER_LAUNCHER={launcher}")
        subprocess.run(["cmake", "-S", self.folder, "-B", self.build, "-G", "Ninja", *options], check=True, stdout=sys.stderr)

    def compile(self, jobs, targets):
        """The compiler's words, or None when all is built."""
        command = ["ninja", "-C", str(self.build), "-k", "0", "-j", str(jobs), *targets]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as ninja:
            lines = []
            for line in ninja.stdout:
                lines.append(line)
                if re.match(r"\[\d+/\d+\]", line) and len(lines) % 20 == 0:
                    say(line.strip())
        return None if ninja.returncode == 0 else "".join(lines)

    def find_guilty(self, words, drawn):
        """The mutants whose text stands on a line that the compiler complains of."""
        lines = set()
        for match in re.finditer(r"(?m)^(?:In file included from |\s+from )?(\S+?):(\d+)[:,]", words):
            path = (self.build / match.group(1)).resolve()
            if path.is_relative_to(self.folder.resolve()):
                lines.add((str(path.relative_to(self.folder.resolve())), int(match.group(2))))
        guilty = []
        for mutant in drawn:
            text = (self.folder / mutant.path).read_text()
            at = text.index(f"{model.SWITCH}({mutant.number})")
            first = text.count("\n", 0, at) + 1
            last = first + mutant.mutated.count("\n") + 1
            if any(path == mutant.path and first <= line <= last for path, line in lines):
                guilty.append(mutant)
        return guilty

    def make(self, seed, count, areas, jobs, launcher, targets=None):
        """Draws, writes and builds until all compile. Returns the mutants."""
        for _ in range(20):
            drawn = self.draw(seed, count, areas)
            self.write(drawn)
            self.configure(launcher)
            words = self.compile(jobs, targets or TARGETS)
            if words is None:
                return drawn
            guilty = self.find_guilty(words, drawn)
            if not guilty:
                sys.exit(f"mutation: the mutated tree does not build, and no mutant is to blame:\n{words[-4000:]}")
            say(f"{len(guilty)} mutants do not compile; others are drawn for them")
            self.rejected |= {self.identity(m) for m in guilty}
            self.rejected_file.write_text(json.dumps(sorted(self.rejected)))
        sys.exit("mutation: after twenty rounds there are still mutants that do not compile")
