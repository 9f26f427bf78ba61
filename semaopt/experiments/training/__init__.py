"""Training runs: objectives, optimizers, metrics and the epoch loop."""
