"""The paper's experiments, from the command line; needs the extra ``[experiments]``."""
