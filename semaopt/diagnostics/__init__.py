"""Measuring outside of the step: bounds of s, tracking error, stationarity, and what they mean in words."""

from semaopt.diagnostics.gap import duality_gap as duality_gap
from semaopt.diagnostics.measure import Record as Record
from semaopt.diagnostics.monitor import Monitor as Monitor
