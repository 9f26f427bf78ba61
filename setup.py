"""Builds the C step of semaopt/kernels. Everything else is in pyproject.toml.

The library is plain C: it needs a C compiler and neither torch nor Python's headers. Without a compiler the install
goes on without it, and ``semaopt.kernels.available()`` says why.
"""

import subprocess
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

HOME = Path("semaopt/kernels")  # setuptools wants paths relative to this file
FLAGS = [
    *("-std=gnu11", "-O3", "-g0", "-fPIC", "-pthread", "-fvisibility=hidden"),
    "-fopenmp-simd",  # the vectorising pragma alone; the threads are torch's
    *("-fno-math-errno", "-fno-trapping-math"),  # sqrt is one instruction
    "-ffp-contract=off",  # the same bits on every instruction set
]


def reason(error):
    """The compiler's failure in one short line."""
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
    """A shared library that is no Python module, and a note in its place if it cannot be built."""

    def get_ext_filename(self, fullname):
        """No Python version in the name: ctypes loads it."""
        return str(Path(*fullname.split(".")).with_suffix(".so"))

    def get_export_symbols(self, ext):
        """No PyInit function."""
        return ext.export_symbols

    def build_extension(self, ext):
        """Compile; on failure leave the reason beside the place of the library."""
        library = Path(self.get_ext_fullpath(ext.name))
        failure = library.with_suffix(".failed")
        failure.unlink(missing_ok=True)
        try:
            super().build_extension(ext)
        except Exception as error:
            library.unlink(missing_ok=True)
            library.parent.mkdir(parents=True, exist_ok=True)
            failure.write_text(f"{reason(error)}\n")
            raise  # the extension is optional: setuptools prints a warning and goes on

    def copy_extensions_to_source(self):
        """An editable install has the library, or the reason, in the source tree, and never an old one."""
        for ext in self.extensions:
            built = Path(self.build_lib, self.get_ext_filename(ext.name))
            for path in (built, built.with_suffix(".failed")):
                here = HOME / path.name
                here.unlink(missing_ok=True)
                if path.exists():
                    self.copy_file(str(path), str(here))

    def get_outputs(self):
        """What is there: the library or the reason."""
        built = [Path(name) for name in super().get_outputs()]
        return [str(p) for name in built for p in (name, name.with_suffix(".failed")) if p.exists()]


class TaggedWheel(bdist_wheel):
    """One wheel for every Python 3; for one platform if the library is inside."""

    def get_tag(self):
        """As in PEP 425."""
        built = Path(self.get_finalized_command("build_ext").build_lib, HOME, "_step.so").exists()
        return "py3", "none", super().get_tag()[2] if built else "any"


setup(
    ext_modules=[
        Extension(
            "semaopt.kernels._step",
            sources=[str(HOME / name) for name in ("step.c", "table.c", "threads.c", "stream.c", "auc.c")],
            depends=[str(HOME / name) for name in ("step.h", "arithmetic.h", "numbers.h")],
            extra_compile_args=FLAGS,
            extra_link_args=["-pthread", "-lm"],
            optional=True,
        )
    ],
    cmdclass={"build_ext": BuildStep, "bdist_wheel": TaggedWheel},
)
