"""Packs the program of a page: `pack.py PAGE` replaces the WebAssembly in it by its gzip form, a third of the size.

The page unpacks it when it is opened (instantiateWasm in shell.html).
"""
import base64
import gzip
import pathlib
import sys

PREFIX, MARK = "data:application/octet-stream;base64,", "{{ packed program }}"


def pack(page):
    """The page with the packed program in the place of MARK. ValueError: it holds no program, or no place for one."""
    before, found, rest = page.partition(PREFIX + base64.b64encode(b"\0asm").decode()[:5])
    if not found or page.count(MARK) != 1:
        raise ValueError("the page holds no program, or no place for a packed one")
    first = len(before) + len(PREFIX)
    last = page.index('"', first)
    packed = base64.b64encode(gzip.compress(base64.b64decode(page[first:last]), 9, mtime=0)).decode()
    return (page[:first] + page[last:]).replace(MARK, packed)


def main():
    path = pathlib.Path(sys.argv[1])
    part = path.with_suffix(".part")
    part.write_text(pack(path.read_text()))
    part.replace(path)


if __name__ == "__main__":
    main()
