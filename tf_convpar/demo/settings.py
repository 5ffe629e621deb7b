"""What can be chosen, and how the processes of a demo are set up."""

from __future__ import annotations

import dataclasses
import json
import pathlib
from collections.abc import Sequence

DATASETS = ("digits", "cifar10")

# Every process of the demo stands for one device of one core, on both sides
# of the comparison. Two threads run operations in turn on that core: with one,
# what is ready to be sent would wait for the convolution before it.
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
        shards: Weights of the devices, the chief's first; see `shards=` of
            `ConvParallel2D`.
        wire_dtype: As of `ConvParallelStrategy`.
        steps: Training steps of each run.
        batch_size: Images per step.
        seed: Of the first weights and the order of the images.
        output: The folder for pictures and the exported model.
        cores: How many there are for the devices.
    """

    dataset: str
    shards: Sequence[float]
    wire_dtype: str | None
    steps: int
    batch_size: int
    seed: int
    output: pathlib.Path
    cores: int

    def to_json(self) -> str:
        """Text for another process."""
        return json.dumps(
            {**dataclasses.asdict(self), "output": str(self.output)}
        )

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """What `to_json` wrote."""
        values = json.loads(text)
        return cls(**{**values, "output": pathlib.Path(values["output"])})


def parse_shards(text: str | None, default: Sequence[float]) -> list[float]:
    """Reads `--shards`.

    ```python
    parse_shards("1,2,2", default=(1.0, 1.0, 1.0))  # [1, 2, 2]
    ```

    Args:
        text: Numbers with commas between them, or None.
        default: One number for each device, for want of a text.

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
    """Whole numbers stay so: for layers they are counts or ratios."""
    try:
        return int(text)
    except ValueError:
        return float(text)
