"""Clusters and models to measure, by name."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Case:
    """A model, and the cluster that trains it.

    Attributes:
        model: Name of the model, as `models.build` takes it.
        pixels: Height and width of an image.
        batch: Samples of a step, of all nodes together.
        shares: Share of a core of each node, the chief's first.
        rate: Rate of all links, as `tc` writes it; None for no limit.
        classes: Number of classes.
        warm_up: Number of steps before those that are timed.
        steps: Number of steps that are timed.
    """

    model: str
    pixels: int
    batch: int
    shares: tuple
    rate: str | None
    classes: int = 100
    warm_up: int = 3
    steps: int = 8

    @property
    def name(self):
        """Model and cluster in a line."""
        shares = "+".join(f"{share:g}" for share in self.shares)
        return (
            f"{self.model} {self.pixels} px, batch {self.batch}, nodes "
            f"{shares}, {self.rate or 'no limit'}"
        )


GIGABIT = "1gbit"
EQUAL, HALF, THREE = (1, 1), (1, 0.5), (1, 0.6, 0.4)

CASES = {
    "vgg": Case("VGG16", 112, 16, EQUAL, GIGABIT),
    "vgg-64": Case("VGG16", 112, 64, EQUAL, GIGABIT, steps=4),
    "vgg-half": Case("VGG16", 112, 64, HALF, GIGABIT, steps=4),
    "resnet": Case("ResNet50", 112, 16, EQUAL, GIGABIT),
    "resnet-64": Case("ResNet50", 112, 64, EQUAL, GIGABIT, steps=4),
    "resnet-half": Case("ResNet50", 112, 64, HALF, GIGABIT, steps=4),
    "resnet-three": Case("ResNet50", 112, 64, THREE, GIGABIT, steps=4),
    "mobilenet": Case("MobileNetV2", 112, 32, EQUAL, GIGABIT),
    "efficientnet": Case("EfficientNetB0", 112, 32, EQUAL, GIGABIT),
    "densenet": Case("DenseNet121", 112, 16, EQUAL, GIGABIT),
    "unet": Case("unet", 64, 16, EQUAL, GIGABIT, classes=2),
    "small": Case("50:500", 32, 64, EQUAL, GIGABIT, classes=10),
    "medium": Case("150:800", 32, 64, EQUAL, GIGABIT, classes=10),
    "large": Case("500:1500", 32, 64, EQUAL, GIGABIT, classes=10),
}
