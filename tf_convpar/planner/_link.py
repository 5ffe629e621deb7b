"""A link between two devices, with its measured rate and latency."""

from __future__ import annotations

import dataclasses

from tf_convpar.files import Checked
from tf_convpar.files import Name
from tf_convpar.files import Quantity
from tf_convpar.files import Rate


@dataclasses.dataclass(frozen=True)
class Link(Checked):
    """One direction of the link between two devices.

    ```python
    Link("/device:CPU:0", "/device:CPU:1", bytes_per_s=1.25e9, latency_s=1e-4)
    ```

    Attributes:
        source: Name of the device that sends.
        target: Name of the device that receives.
        bytes_per_s: Rate of a large tensor, in bytes per second.
        latency_s: Seconds that a small tensor takes, one way.
    """

    source: Name
    target: Name
    bytes_per_s: Rate
    latency_s: Quantity
