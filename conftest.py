"""Doctests may use ``torch`` and ``semaopt`` without importing them."""

import importlib.util

import pytest
import torch

import semaopt

#: Modules that need Triton when they are imported.
collect_ignore = (
    [] if importlib.util.find_spec("triton") else [f"semaopt/kernels/triton_{n}.py" for n in ("step", "auc")]
)


@pytest.fixture(autouse=True)
def _names(doctest_namespace: dict[str, object]) -> None:
    doctest_namespace.update(torch=torch, semaopt=semaopt)
