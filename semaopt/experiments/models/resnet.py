"""Residual networks for images of 32x32 pixels.

He et al., Deep Residual Learning for Image Recognition, 2016, https://arxiv.org/abs/1512.03385. They have batch norm,
whose running means are buffers, so they cannot be vectorized with ``torch.func.vmap``.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import pad, relu

from semaopt.experiments.data.task import Task
from semaopt.experiments.models.errors import wrong_inputs
from semaopt.experiments.models.mlp import Scores


def _conv(before: int, after: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(before, after, size, stride, padding=size // 2, bias=False)


class Basic(nn.Module):
    """Two 3x3 convolutions. The shortcut is option A of the paper: subsampled pixels, zero-padded channels."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.stride, self.extra = stride, width - before
        self.conv1, self.norm1 = _conv(before, width, 3, stride), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = _conv(width, width, 3), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, before, h, w) to (n, width, h / stride, w / stride)."""
        y = self.norm2(self.conv2(relu(self.norm1(self.conv1(x)))))
        if self.stride > 1 or self.extra:
            x = pad(
                x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.extra // 2, self.extra - self.extra // 2)
            )
        return relu(x + y)


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions, the last four times as wide. The shortcut is option B: a 1x1 convolution.

    The first convolution has the stride, as in the paper and in Keras; in torchvision it is the second.
    """

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        after = 4 * width
        self.body = nn.Sequential(
            *(_conv(before, width, 1, stride), nn.BatchNorm2d(width), nn.ReLU()),
            *(_conv(width, width, 3), nn.BatchNorm2d(width), nn.ReLU()),
            *(_conv(width, after, 1), nn.BatchNorm2d(after)),
        )
        same = stride == 1 and before == after
        self.shortcut = nn.Identity() if same else nn.Sequential(_conv(before, after, 1, stride), nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, before, h, w) to (n, 4 width, h / stride, w / stride)."""
        return relu(self.shortcut(x) + self.body(x))


def _stages(
    block: type[Basic] | type[Bottleneck], before: int, widths: tuple[int, ...], depths: tuple[int, ...]
) -> nn.Sequential:
    """Return the blocks of all stages; each stage but the first halves the image."""
    grow = 4 if block is Bottleneck else 1
    blocks = []
    for stage, (width, depth) in enumerate(zip(widths, depths, strict=True)):
        for k in range(depth):
            blocks.append(block(before, width, 2 if stage > 0 and k == 0 else 1))
            before = grow * width
    return nn.Sequential(*blocks)


def _network(task: Task, stem: nn.Sequential, stages: nn.Sequential, features: int) -> nn.Module:
    """Add the mean over the pixels and a linear layer; initialize convolutions by He et al. for ReLU."""
    head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(features, task.outputs))
    network = Scores(nn.Sequential(stem, stages, *head), task.outputs)
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return network


def _channels(task: Task, model: str) -> int:
    if task.kind != "images":
        raise wrong_inputs(model, "images", task)
    return task.shape[0]


def _cifar(task: Task, model: str, depth: int) -> nn.Module:
    stem = nn.Sequential(_conv(_channels(task, model), 16, 3), nn.BatchNorm2d(16), nn.ReLU())
    return _network(task, stem, _stages(Basic, 16, (16, 32, 64), (depth,) * 3), 64)


def resnet8(task: Task) -> nn.Module:
    """Return the paper's CIFAR network with one block in each of three stages of 16, 32 and 64 channels."""
    return _cifar(task, "resnet8", 1)


def resnet20(task: Task) -> nn.Module:
    """Return the paper's CIFAR network with three blocks in each stage, 0.27M parameters."""
    return _cifar(task, "resnet20", 3)


def resnet50(task: Task) -> nn.Module:
    """Return the ImageNet network for smaller images, 23.5M parameters and a linear layer.

    It equals Keras's network without the biases of convolutions, which the following batch norm cancels.
    """
    stem = nn.Sequential(
        nn.Conv2d(_channels(task, "resnet50"), 64, 7, 2, padding=3, bias=False),
        *(nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)),
    )
    return _network(task, stem, _stages(Bottleneck, 64, (64, 128, 256, 512), (3, 4, 6, 3)), 2048)
