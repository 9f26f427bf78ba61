"""Benchmarks: the time of one optimizer step."""
