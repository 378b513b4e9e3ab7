"""What gui/web/pack.py makes of a page, against what a browser would unpack."""
import base64
import gzip
import importlib.util
import pathlib

import pytest

PATH = pathlib.Path(__file__).resolve().parents[2] / "gui/web/pack.py"
PROGRAM = b"\0asm\1\0\0\0" + bytes(range(256)) * 40


@pytest.fixture
def pack():
    spec = importlib.util.spec_from_file_location("pack", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def page_of(program, place="{{ packed program }}"):
    address = f"data:application/octet-stream;base64,{base64.b64encode(program).decode()}"
    return f'<script id="program">{place}</script><script>var file="{address}";use(file)</script>'


def test_the_program_is_where_the_page_unpacks_it_and_nowhere_else(pack):
    page = page_of(PROGRAM)
    packed = pack.pack(page)
    letters = packed.split('<script id="program">')[1].split("</script>")[0]
    assert gzip.decompress(base64.b64decode(letters)) == PROGRAM
    assert 'var file="data:application/octet-stream;base64,";use(file)' in packed
    assert len(packed) < len(page) / 3
    assert pack.pack(page) == packed, "the same page each time"


@pytest.mark.parametrize("page", [page_of(PROGRAM, ""), page_of(PROGRAM, "{{ packed program }}" * 2), page_of(b"no wasm"), ""])
def test_a_page_without_a_program_or_a_place_for_one_is_refused(pack, page):
    with pytest.raises(ValueError, match="no program, or no place"):
        pack.pack(page)


def test_the_shell_of_the_page_has_that_place(pack):
    assert PATH.with_name("shell.html").read_text().count(pack.MARK) == 1
