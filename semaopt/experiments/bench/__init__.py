"""Benchmarks of one optimizer step."""
