"""Build the C library of semaopt/kernels. All other build settings are in pyproject.toml.

The library is plain C: it needs a C compiler, but no headers of torch or Python. Without a compiler, the installation
succeeds without the library, and ``semaopt.kernels.available()`` returns the reason.
"""

import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

HOME = Path("semaopt/kernels")  # setuptools requires paths relative to this file
SUFFIX = ".dll" if sys.platform == "win32" else ".so"  # loader.py has the same names
FLAGS = [
    *("-std=gnu11", "-O3", "-g0", "-fPIC", "-pthread", "-fvisibility=hidden"),
    "-fopenmp-simd",  # enable only "omp simd"; threads come from torch's OpenMP runtime
    *("-fno-math-errno", "-fno-trapping-math"),  # compile sqrt to one instruction
    "-ffp-contract=off",  # bitwise equal results on every instruction set
]
SOURCES = ("step", "table", "threads", "stream", "auc", "ranking", "gains", "contrast")
MSVC_FLAGS = ["/std:c11", "/O2", "/fp:precise"]  # no contraction, as above


def reason(error):
    """Return the reason for a failed build as one short line."""
    chain = [error]
    while (before := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(before)
    for cause in chain:
        if isinstance(cause, FileNotFoundError):
            return f"no C compiler: {cause.filename!r} was not found"
        if isinstance(cause, subprocess.CalledProcessError):
            return f"the C compiler {cause.cmd[0]!r} ended with status {cause.returncode}"
    return str(error).splitlines()[0][:200]


class BuildStep(build_ext):
    """Build a shared library for ctypes, or write the reason to a ``.failed`` file if the build fails."""

    def get_ext_filename(self, fullname):
        """Return a file name without a Python version, since ctypes loads the library."""
        return str(Path(*fullname.split(".")).with_suffix(SUFFIX))

    def get_export_symbols(self, ext):
        """Return the declared symbols only: there is no PyInit function."""
        return ext.export_symbols

    def build_extension(self, ext):
        """Compile the library; on failure, write the reason next to its path."""
        library = Path(self.get_ext_fullpath(ext.name))
        failure = library.with_suffix(".failed")
        failure.unlink(missing_ok=True)
        if self.compiler.compiler_type == "msvc":
            ext.extra_compile_args, ext.extra_link_args = MSVC_FLAGS, []
        try:
            super().build_extension(ext)
        except Exception as error:
            library.unlink(missing_ok=True)
            library.parent.mkdir(parents=True, exist_ok=True)
            failure.write_text(f"{reason(error)}\n")
            raise  # the extension is optional: setuptools prints a warning and continues

    def copy_extensions_to_source(self):
        """Copy the library or the failure reason into the source tree, and remove outdated copies."""
        for ext in self.extensions:
            built = Path(self.build_lib, self.get_ext_filename(ext.name))
            for path in (built, built.with_suffix(".failed")):
                here = HOME / path.name
                here.unlink(missing_ok=True)
                if path.exists():
                    self.copy_file(str(path), str(here))

    def get_outputs(self):
        """Return the files that exist: the library or the failure reason."""
        built = [Path(name) for name in super().get_outputs()]
        return [str(p) for name in built for p in (name, name.with_suffix(".failed")) if p.exists()]


class TaggedWheel(bdist_wheel):
    """Tag the wheel for any Python 3, and for one platform if it contains the library."""

    def get_tag(self):
        """Return the PEP 425 compatibility tag."""
        built = Path(self.get_finalized_command("build_ext").build_lib, HOME, f"_step{SUFFIX}").exists()
        return "py3", "none", super().get_tag()[2] if built else "any"


setup(
    ext_modules=[
        Extension(
            "semaopt.kernels._step",
            sources=[str(HOME / f"{name}.c") for name in SOURCES],
            depends=[str(HOME / f"{name}.h") for name in ("step", "arithmetic", "numbers", "compiler", "averages")],
            extra_compile_args=FLAGS,
            extra_link_args=["-pthread", "-lm"],
            optional=True,
        )
    ],
    cmdclass={"build_ext": BuildStep, "bdist_wheel": TaggedWheel},
)
