"""ResNet-18 with a stem for small images, as the kernel `resnet` has it, on PyTorch."""

from torch import nn


def relu():
    return nn.ReLU(inplace=True)


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut, which is a 1x1 projection where the shape changes."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.relu = relu()
        self.projection = None
        if stride != 1 or inputs != outputs:
            convolution = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)
            self.projection = nn.Sequential(convolution, nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = self.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        y += x if self.projection is None else self.projection(x)
        return self.relu(y)


def resnet18(channels, width, classes):
    """The first stage has `width` channels, each later one twice as many as the one before."""
    layers = [nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), relu()]
    inputs = width
    for outputs, stride in [(width, 1), (2 * width, 2), (4 * width, 2), (8 * width, 2)]:
        layers += [Block(inputs, outputs, stride), Block(outputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))
