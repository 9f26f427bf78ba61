"""Engines that execute runs: local processes or Ray."""
