"""What ``semaopt reproduce`` offers: the studies of each scale."""

from __future__ import annotations

from semaopt.experiments.study import Study

DIGITS = Study(
    name="digits",
    title="Digits",
    about="The network can fit every training image, so the noise of the gradient dies out as the loss falls.",
)

DIGITS_NOISY = Study(
    name="digits-noisy",
    title="Digits with label noise",
    about="Each time an image is drawn its label is, with probability 0.2, one of the ten at random. So the noise of "
    "the gradient stays, as the theorems assume. Losses are exact means over the label noise, less its entropy, the "
    "least there can be; accuracy is on the true labels.",
    noise=0.2,
)

SCALES: dict[str, tuple[Study, ...]] = {"quick": (DIGITS, DIGITS_NOISY)}
