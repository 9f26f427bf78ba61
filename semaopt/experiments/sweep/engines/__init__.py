"""Engines that execute jobs: this process, worker processes, or Ray."""
