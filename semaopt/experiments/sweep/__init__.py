"""Sweeps: run identities, the store, workers, tuning and studies."""
