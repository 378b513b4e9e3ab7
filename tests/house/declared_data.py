"""Does every file of the tree that a test opens stand in its property REQUIRED_FILES? Runs the tests under strace.

    declared_data.py BUILD_FOLDER [PART_OF_A_PROGRAMS_NAME]

A program is run once with all its cases; other tests one by one. Exit codes: 0 yes, 1 no, 77 strace is not here.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import run  # noqa: E402

OPENED = re.compile(r'\bopen(?:at)?\((?:AT_FDCWD|\d+)?,? ?"([^"]+)", ([A-Z_|]+).*\) = \d')


def opened_by(command, environment):
    """The files of the tree that a command and its children read; a program's cases may fail under strace."""
    with tempfile.NamedTemporaryFile() as trace:
        subprocess.run(["strace", "-f", "--seccomp-bpf", "-qq", "-e", "trace=open,openat", "-s", "4096", "-o", trace.name, *command],
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, **environment}, check=False)
        lines = Path(trace.name).read_text(errors="replace").splitlines()
    files = set()
    for line in lines:
        match = OPENED.search(line)
        if not match or "O_WRONLY" in match.group(2) or "O_DIRECTORY" in match.group(2):
            continue
        path = Path(os.path.abspath(match.group(1)))  # of another folder's relative paths none is a file here
        if path.is_file() and path.is_relative_to(run.ROOT) and not path.relative_to(run.ROOT).parts[0].startswith(("build", "out", ".git")):
            files.add(path)
    return files


def main():
    folder, part = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""
    if not shutil.which("strace"):
        print("requires strace: it is not installed")
        return 77
    commands = {}  # the command of a program, or of a test that is none: its declared files and environment
    for case in run.list_cases(folder):
        data = case.properties.get("REQUIRED_FILES")
        if not data or "long" in case.labels or part not in case.program:
            continue
        is_program = Path(case.command[0]).name.endswith("_tests")
        command = tuple(case.command[:1] if is_program else case.command)
        environment = dict(word.split("=", 1) for word in case.properties.get("ENVIRONMENT", []))
        commands[command] = ({Path(os.path.abspath(file)) for file in (*data, *command) if file.startswith("/")}, environment, case.program)
    findings = set()
    for command, (declared, environment, program) in commands.items():
        for file in opened_by(command, environment):
            if not any(file == known or known in file.parents for known in declared):
                findings.add(f"{program} reads {file.relative_to(run.ROOT)}, which its DATA does not name")
    print("\n".join(sorted(findings)))
    print(f"{len(commands)} commands")
    return 1 if findings or not commands else 0


if __name__ == "__main__":
    sys.exit(main())
