"""What can be chosen, and how the processes of a demo are set up."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Sequence

from tf_convpar.demo import slowed

DATASETS = ("digits", "cifar10")
# The file of the plan, in the output.
PLAN = "plan.json"

# Every process of the demo stands for one device of one core, on both sides of
# the comparison. Two threads take turns to run operations on that core. With
# one thread, what is ready to be sent would wait for a convolution to end.
ENVIRONMENT = {
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "2",
    # All processes would take the same GPU.
    "CUDA_VISIBLE_DEVICES": "-1",
}


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a demo trains, on what, and where its files go.

    Attributes:
        dataset: `"digits"` or `"cifar10"`.
        shards: Weights of the devices, the chief's first, for the star of
            paper 1; see `shards=` of `ConvParallel2D`. None for a plan.
        wire_dtype: Dtype in which feature maps travel, or None for float32; see
            `ConvParallelStrategy`.
        steps: Number of training steps of each run.
        batch_size: Number of images in a step.
        seed: Seed of the first weights and of the order of the images.
        output: The folder for pictures, timeline, plan and exported model.
        cores: Number of cores that there are for the devices.
    """

    dataset: str
    shards: Sequence[float] | None
    wire_dtype: str | None
    steps: int
    batch_size: int
    seed: int
    output: pathlib.Path
    cores: int

    @property
    def star(self) -> bool:
        """Whether it is the network of paper 1, split as the paper does."""
        return self.shards is not None

    def to_json(self) -> str:
        """The settings as text, for another process."""
        return json.dumps(
            {**dataclasses.asdict(self), "output": str(self.output)}
        )

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """The settings in a text that `to_json` wrote."""
        values = json.loads(text)
        return cls(**{**values, "output": pathlib.Path(values["output"])})


def default_shards(devices: int, cores: int) -> tuple[float, ...]:
    """Weights of the star's devices, by what each has of a core.

    ```python
    default_shards(devices=3, cores=2)  # (0.25, 1.0, 0.5)
    ```

    The chief also runs the rest of the network and all the sending, which for
    this network take it about half of its time.
    """
    chief, *workers = slowed.parts(devices, cores, star=True)
    return (chief / 2, *workers)


def parse_shards(text: str | None, default: Sequence[float]) -> list[float]:
    """Reads the text of `--shards`.

    ```python
    parse_shards("1,2,2", default=(1.0, 1.0, 1.0))  # [1, 2, 2]
    ```

    Args:
        text: Numbers with commas between them, or None.
        default: One number for each device, which is the result without a text.

    Raises:
        ValueError: There is not one number for each device.
    """
    if text is None:
        return list(default)
    try:
        shards = [_number(word) for word in text.split(",")]
    except ValueError:
        shards = []
    if len(shards) != len(default):
        raise ValueError(
            f"Expected --shards to be {len(default)} numbers with commas "
            "between them, the chief's first, such as "
            f"{','.join(f'{n:g}' for n in default)}. Received: {text!r}."
        )
    return shards


def _number(text: str) -> float:
    """Reads a number; a whole one stays an int, a count or ratio of kernels."""
    try:
        return int(text)
    except ValueError:
        return float(text)
