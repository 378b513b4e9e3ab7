"""The program cpscope of a wheel: `cpscope ...` or `python -m cpscope ...`."""
from __future__ import annotations

import os
import sys

from ._processor import PACKAGE, build_folder


def main() -> None:
    """Becomes the program, with this process's arguments. Exit code 3: this installation has none."""
    program = build_folder() / "bin" / "cpscope"
    if not program.is_file():
        print("cpscope: this installation was built from source and has the Python package alone: the program is in wheels, or is built "
              "by ./cpscope in a clone", file=sys.stderr)
        sys.exit(3)
    os.environ.setdefault("CPSCOPE_ROOT", str(PACKAGE))
    os.execv(program, ["cpscope", *sys.argv[1:]])


if __name__ == "__main__":
    main()
