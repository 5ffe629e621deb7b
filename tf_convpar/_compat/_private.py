"""Names that a library does not promise to keep."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any
from typing import NamedTuple


class Private(NamedTuple):
    """A private object of a library, by its path.

    ```python
    Private("keras.src.utils.tracking:Tracker", "copies of models").found()
    ```

    Attributes:
        path: A module, a colon, and a name in it; or a module alone.
        reason: Purpose that it is needed for.
    """

    path: str
    reason: str

    def found(self) -> Any:
        """The object that the path names.

        Raises:
            ImportError: The library has no such thing.
        """
        try:
            return pkgutil.resolve_name(self.path)
        except (ImportError, AttributeError) as error:
            library = self.path.partition(":")[0].partition(".")[0]
            raise ImportError(
                f"Expected {library} to have {self.name}, needed for "
                f"{self.reason}. Received: {library} {version(library)}, "
                f"which has none. Take an older {library}, or a newer "
                "tf_convpar."
            ) from error

    @property
    def name(self) -> str:
        """The path as it is read."""
        return self.path.replace(":", ".")


def version(library: str) -> str:
    """The version of a library that can be imported."""
    return str(getattr(importlib.import_module(library), "__version__", "?"))
