"""Sweeps: runs, their store and checkpoints, engines, tuning, studies, and the A/A check."""
