"""Doctests may use ``torch`` and ``semaopt`` without importing them."""

import pytest
import torch

import semaopt


@pytest.fixture(autouse=True)
def _names(doctest_namespace: dict[str, object]) -> None:
    doctest_namespace.update(torch=torch, semaopt=semaopt)
