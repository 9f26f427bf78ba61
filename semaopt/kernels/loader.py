"""Find and load the compiled step, or explain why it is not available.

The library links to neither torch nor Python. It receives the entry point of the OpenMP runtime that torch has loaded
(a second runtime would start a second pool of threads) and, if this version of torch has it, the DLPack function that
returns the address of a tensor.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from semaopt.kernels.layout import PLAIN

#: Version of the interface, also in step.h: a library built from other sources is not used.
INTERFACE = 12
HERE = Path(__file__).parent
LIBRARY = HERE / ("_step.dll" if sys.platform == "win32" else "_step.so")
#: Written by setup.py if compiling failed, with the reason.
FAILURE = HERE / "_step.failed"
#: Environment variable; 1 disables the compiled step.
SWITCH = "SEMAOPT_NO_C"

ISAS = ("portable", "avx2", "avx512")


@dataclass(frozen=True)
class Availability:
    """Whether the compiled step is available (its truth value), and a description or the reason why not."""

    ok: bool
    reason: str

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        return self.reason


class Library:
    """The functions of the compiled step, with its threads and its access to tensors set up."""

    def __init__(self, path: Path) -> None:
        c, python = ctypes.CDLL(str(path)), ctypes.PyDLL(str(path))  # PyDLL holds the GIL during a call
        c.semaopt_interface.restype = ctypes.c_int
        if c.semaopt_interface() != INTERFACE:
            raise OSError(f"{path.name} was built from other sources; install semaopt again to rebuild it")
        pointer, integer, obj = ctypes.c_void_p, ctypes.c_int64, ctypes.py_object
        self.new_table = _typed(c.semaopt_table, pointer)
        self.free_table = _typed(c.semaopt_free_table, None, pointer)
        self.fill = _typed(c.semaopt_fill, integer, pointer, integer, pointer, pointer, pointer)
        self.step = _typed(
            python.semaopt_step, integer, pointer, integer, obj, obj, obj, obj, obj, ctypes.c_char_p, ctypes.c_int
        )
        self.stream = _typed(
            c.semaopt_stream, None, pointer, pointer, pointer, integer, pointer, integer, integer, ctypes.c_int
        )
        self.auc = _typed(
            c.semaopt_auc, ctypes.c_int, pointer, pointer, pointer, integer, ctypes.c_int, ctypes.c_int, pointer
        )
        self.auc_columns = _typed(
            c.semaopt_auc_columns,
            ctypes.c_int,
            *[pointer] * 3,
            *[integer] * 2,
            *[ctypes.c_int] * 2,
            *[ctypes.c_double] * 2,
            *[pointer] * 2,
        )
        self.ranking = _typed(
            c.semaopt_ranking, ctypes.c_int, *[pointer] * 6, integer, integer, *[ctypes.c_int] * 4, pointer
        )
        self.gains = _typed(
            c.semaopt_gains, ctypes.c_int, *[pointer] * 9, integer, integer, ctypes.c_int, ctypes.c_int, pointer
        )
        self.contrast = _typed(
            c.semaopt_contrast, ctypes.c_int, *[pointer] * 4, integer, integer, *[ctypes.c_int] * 3, pointer
        )
        self.threads = _typed(c.semaopt_threads, ctypes.c_int, ctypes.c_int)
        self._use_isa = _typed(c.semaopt_use_isa, ctypes.c_int, ctypes.c_int)
        self.isa = next(name for name in reversed(ISAS) if self.use_isa(name))
        self.runtime = _use_threads(c)
        self.reads_tensors = _use_python(c)

    def use_isa(self, name: str) -> bool:
        """Switch to one of ``ISAS``; return False, and change nothing, if this machine does not have it."""
        ok = bool(self._use_isa(ISAS.index(name)))
        if ok:
            self.isa = name
        return ok


def _typed(function: Any, result: Any, *arguments: Any) -> Any:
    function.restype, function.argtypes = result, arguments
    return function


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def _use_threads(c: ctypes.CDLL) -> str:
    """Pass GOMP_parallel of torch's OpenMP runtime to the library; return the name of the runtime, or ""."""
    if sys.platform == "win32":
        return ""  # Intel's runtime has no GOMP_parallel there
    home = Path(torch.__file__).parent / "lib"
    bundled = [p for pattern in ("libgomp*", "libiomp5*", "libomp*") for p in sorted(home.glob(pattern))]
    for path in (*bundled, None):
        try:
            # RTLD_NOLOAD finds only libraries that are loaded already; None searches the global symbols.
            mode = ctypes.DEFAULT_MODE if path is None else os.RTLD_NOW | os.RTLD_NOLOAD
            parallel = ctypes.CDLL(None if path is None else str(path), mode=mode).GOMP_parallel
        except (OSError, AttributeError):
            continue
        _typed(c.semaopt_use_threads, None, ctypes.c_void_p)(_address(parallel))
        return "OpenMP" if path is None else path.name
    return ""


#: Functions of Python's stable ABI that the library calls, in the order of struct Python in step.h.
_FUNCTIONS = ("PyList_GetItem", "PyDict_GetItem", "PyErr_Clear", "PyEval_SaveThread", "PyEval_RestoreThread")


class _Python(ctypes.Structure):
    """Struct Python of step.h."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in (*_FUNCTIONS, "read")),
        ("type_at", ctypes.c_ssize_t),
        ("plain", ctypes.c_void_p * 2),
    ]


class _Exchange(ctypes.Structure):
    """DLPackExchangeAPI of DLPack 1.x; ``read`` is its dltensor_from_py_object_no_sync."""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        *((name, ctypes.c_void_p) for name in ("previous", "allocate", "managed_from", "managed_to", "read", "stream")),
    ]


def _use_python(c: ctypes.CDLL) -> bool:
    """Pass the functions of Python and torch to the library; return whether torch has the DLPack function."""
    api = ctypes.pythonapi
    read = None
    capsule = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if capsule is not None:
        get_pointer = _typed(api.PyCapsule_GetPointer, ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
        exchange = _Exchange.from_address(get_pointer(capsule, b"dlpack_exchange_api"))
        read = exchange.read if exchange.major == 1 else None
    functions = (_address(getattr(api, name)) for name in _FUNCTIONS)
    type_at = object.__basicsize__ - ctypes.sizeof(ctypes.c_void_p)  # the last field of PyObject
    plain = (ctypes.c_void_p * 2)(*map(id, PLAIN))
    _typed(c.semaopt_use_python, None, _Python)(_Python(*functions, read, type_at, plain))
    return read is not None


@functools.cache
def _load() -> tuple[Library | None, Availability]:
    if os.environ.get(SWITCH, "0") not in ("", "0"):
        return None, Availability(False, f"switched off by {SWITCH}={os.environ[SWITCH]}")
    if not LIBRARY.exists():
        reason = FAILURE.read_text().strip() if FAILURE.exists() else "this copy of semaopt was never built"
        remedy = "install a C compiler (gcc, clang or MSVC), then install semaopt again"
        return None, Availability(False, f"the C step is not compiled: {reason}; {remedy}")
    try:
        library = Library(LIBRARY)
    except OSError as error:
        return None, Availability(False, f"the C step cannot be loaded on {sys.platform}: {error}")
    threads = f"threads of {library.runtime}" if library.runtime else "one thread: torch's OpenMP was not found"
    return library, Availability(True, f"C step, {library.isa}, {threads}")


def library() -> Library | None:
    """Return the compiled step, or None; :func:`available` says why."""
    return _load()[0]


def available() -> Availability:
    """Return whether the compiled step is available, with a description or the reason why not.

    >>> isinstance(bool(semaopt.kernels.available()), bool)
    True
    """
    return _load()[1]
