"""tests/peers/run.py installs where nothing else is lost. Its packages are a wheel that is written here: no network."""
import importlib.util
import pathlib
import subprocess
import sys
import zipfile

import pytest

RUN = pathlib.Path(__file__).resolve().parents[1] / "peers/run.py"


def wheel(folder, version):
    """A package `peer` of one module."""
    path = folder / f"peer-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("peer.py", f"version = '{version}'\n")
        archive.writestr(f"peer-{version}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: peer\nVersion: {version}\n")
        archive.writestr(f"peer-{version}.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"peer-{version}.dist-info/RECORD", "")
    return str(path)


@pytest.fixture
def peers(tmp_path, monkeypatch):
    """run.py as a module that installs one wheel."""
    spec = importlib.util.spec_from_file_location("run_peers", RUN)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "PACKAGES", (wheel(tmp_path, "1.0"),))
    monkeypatch.setattr(module, "ALONE", (wheel(tmp_path, "1.0"),))
    return module


def version(python):
    return subprocess.run([python, "-c", "import peer; print(peer.version)"], capture_output=True, text=True, check=True).stdout.strip()


def test_a_finished_environment_is_used_again_and_never_cleared(peers, tmp_path, monkeypatch):
    environments = tmp_path / "peers"
    (environments / "bin").mkdir(parents=True)  # what lies there already, such as an environment of somebody else's
    (environments / "bin/python").write_text("mine")
    python = peers.install(environments, latest=False)
    assert version(python) == "1.0"
    (python.parent / "kept").touch()

    with monkeypatch.context() as patch:  # the same minor version at another place: here, one that can make nothing
        patch.setattr(sys, "executable", "/bin/false")
        patch.setattr(sys, "version", "another build")
        assert peers.install(environments, latest=False) == python

    with monkeypatch.context() as patch:  # another minor version
        patch.setattr(sys.implementation, "cache_tag", "cpython-399")
        other = peers.install(environments, latest=False)
    assert other != python and version(other) == "1.0"

    with monkeypatch.context() as patch:  # other versions of the packages
        patch.setattr(peers, "PACKAGES", (wheel(tmp_path, "2.0"),))
        patch.setattr(peers, "ALONE", (wheel(tmp_path, "2.0"),))
        assert version(peers.install(environments, latest=False)) == "2.0"

    assert (python.parent / "kept").exists() and version(python) == "1.0"
    assert (environments / "bin/python").read_text() == "mine"


def test_an_unfinished_environment_is_made_anew(peers, tmp_path, monkeypatch, capsys):
    environments = tmp_path / "peers"
    missing = str(tmp_path / "peer-3.0-py3-none-any.whl")
    with monkeypatch.context() as patch:
        patch.setattr(peers, "ALONE", (missing,))
        assert peers.install(environments, latest=False) is None
        assert "peer-3.0" in capsys.readouterr().out
        (left,) = environments.glob("*/pyvenv.cfg")
        (left.parent / "rest").touch()
        wheel(tmp_path, "3.0")
        python = peers.install(environments, latest=False)
    assert version(python) == "3.0" and python.parents[1] == left.parent
    assert not (left.parent / "rest").exists()
