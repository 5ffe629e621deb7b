"""The networks of the comparison in PyTorch.

Those of torchvision and timm where they are what Keras' are.
"""

import timm
import torchvision
from torch import nn

# Not VGG16, which pools to 7x7 pixels there, nor ResNet50, whose strides are in
# the second convolution of a block.
ZOO = {
    "ConvNeXtTiny": torchvision.models.convnext_tiny,
    "DenseNet121": torchvision.models.densenet121,
    "EfficientNetB0": torchvision.models.efficientnet_b0,
    "InceptionV3": lambda: torchvision.models.inception_v3(
        aux_logits=False, init_weights=False
    ),
    "MobileNetV2": torchvision.models.mobilenet_v2,
    "Xception": lambda: timm.create_model("legacy_xception"),
}


def build(name):
    if name in ZOO:
        return ZOO[name]()
    if name == "VGG16":
        return vgg16()
    if name == "ResNet50":
        return ResNet50()
    first, second = map(int, name.split(":"))
    return nn.Sequential(
        nn.Conv2d(3, first, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(first, second, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(second * 25, 10),
    )


def vgg16():
    layers, channels = [], 3
    for count, filters in ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512)):
        for _ in range(count):
            layers += [nn.Conv2d(channels, filters, 3, padding=1), nn.ReLU()]
            channels = filters
        layers.append(nn.MaxPool2d(2))
    layers += [nn.Flatten(), nn.Linear(512 * 9, 4096), nn.ReLU()]
    layers += [nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1000)]
    return nn.Sequential(*layers)


def convolution(channels, filters, window, stride=1):
    return nn.Sequential(
        nn.Conv2d(channels, filters, window, stride, padding=window // 2),
        nn.BatchNorm2d(filters),
    )


class Block(nn.Module):
    """A block of keras.applications: its first convolution has the stride."""

    def __init__(self, channels, filters, stride=1, shortcut=False):
        super().__init__()
        self.shortcut = (
            convolution(channels, 4 * filters, 1, stride)
            if shortcut
            else nn.Identity()
        )
        self.body = nn.Sequential(
            convolution(channels, filters, 1, stride),
            nn.ReLU(),
            convolution(filters, filters, 3),
            nn.ReLU(),
            convolution(filters, 4 * filters, 1),
        )

    def forward(self, x):
        """The activated sum of the shortcut and the body."""
        return (self.shortcut(x) + self.body(x)).relu()


class ResNet50(nn.Sequential):
    """`keras.applications.ResNet50`."""

    def __init__(self):
        layers = [convolution(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
        channels = 64
        for count, filters, stride in (
            (3, 64, 1),
            (4, 128, 2),
            (6, 256, 2),
            (3, 512, 2),
        ):
            for i in range(count):
                layers.append(
                    Block(channels, filters, stride if i == 0 else 1, i == 0)
                )
                channels = 4 * filters
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        super().__init__(*layers, nn.Linear(2048, 1000))
