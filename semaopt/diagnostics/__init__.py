"""Measure an optimizer while it runs: bounds of s, tracking error, stationarity, noise, and advice in words."""

from semaopt.diagnostics.gap import duality_gap as duality_gap
from semaopt.diagnostics.measure import Record as Record
from semaopt.diagnostics.monitor import Monitor as Monitor
