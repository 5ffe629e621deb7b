"""The models of the benchmark in PyTorch, shaped as those of Keras."""

import torch
import torchvision
from torch import nn

ZOO = {
    "ConvNeXtTiny": "convnext_tiny",
    "DenseNet121": "densenet121",
    "EfficientNetB0": "efficientnet_b0",
    "InceptionV3": "inception_v3",
    "MobileNetV2": "mobilenet_v2",
    "ResNet50": "resnet50",
    "VGG16": "vgg16",
}


def build(name, pixels, classes):
    """An untrained model that gives logits, channels first."""
    if name == "unet":
        return UNet(classes)
    if ":" in name:
        return two_layers(pixels, classes, *map(int, name.split(":")))
    if name not in ZOO:
        raise ValueError(
            f"Expected one of {sorted(ZOO)}, 'unet', or the kernels of two "
            f"layers such as '50:500'. Received: model={name!r}."
        )
    # Keras' InceptionV3 has no auxiliary classifier.
    options = {"aux_logits": False} if name == "InceptionV3" else {}
    make = getattr(torchvision.models, ZOO[name])
    model = make(num_classes=classes, **options)
    if name == "VGG16":
        # Keras' model has no dropout. It flattens the pixels that there are,
        # which need not be 7x7.
        side = pixels // 32
        model.avgpool = nn.Identity()
        model.classifier[0] = nn.Linear(512 * side * side, 4096)
    if name == "ResNet50":
        for block in model.modules():
            # Keras' model has the stride one convolution earlier: less work.
            if isinstance(block, torchvision.models.resnet.Bottleneck):
                block.conv1.stride = block.conv2.stride
                block.conv2.stride = (1, 1)
    if name in ("VGG16", "MobileNetV2"):
        for i, layer in enumerate(model.classifier):
            if isinstance(layer, nn.Dropout):
                model.classifier[i] = nn.Identity()
    return model


def two_layers(pixels, classes, first, second):
    side = ((pixels - 4) // 2 - 4) // 2
    return nn.Sequential(
        nn.Conv2d(3, first, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(first, second, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(second * side * side, classes),
    )


class UNet(nn.Module):
    """The U-Net of `models.unet`."""

    def __init__(self, classes, filters=(32, 64, 128)):
        super().__init__()
        sizes = [3, *filters]
        self.down = nn.ModuleList(map(_block, sizes[:-1], sizes[1:]))
        self.up = nn.ModuleList()
        self.after = nn.ModuleList()
        for n, below in zip(filters[-2::-1], filters[:0:-1], strict=True):
            self.up.append(nn.ConvTranspose2d(below, n, 2, 2))
            self.after.append(_block(2 * n, n))
        self.last = nn.Conv2d(filters[0], classes, 1)

    def forward(self, x):
        """Logits for each pixel."""
        skipped = []
        for block in self.down[:-1]:
            skipped.append(block(x))
            x = nn.functional.max_pool2d(skipped[-1], 2)
        x = self.down[-1](x)
        for up, block in zip(self.up, self.after, strict=True):
            x = block(torch.cat([up(x), skipped.pop()], 1))
        return self.last(x)


def _block(channels, n):
    layers = []
    for before in (channels, n):
        layers += [
            nn.Conv2d(before, n, 3, padding=1, bias=False),
            nn.BatchNorm2d(n),
            nn.ReLU(),
        ]
    return nn.Sequential(*layers)
