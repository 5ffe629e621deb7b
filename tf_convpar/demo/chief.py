"""The program that the demo runs as its cluster's chief.

It is run as `python -m tf_convpar.demo.chief SETTINGS`, with SETTINGS as JSON.
It prints events for the process that started it: lines that begin with `EVENT`,
followed by JSON. Anything else in its output is TensorFlow's.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
import sys
from collections.abc import Callable
from collections.abc import Iterator
from typing import Any

EVENT = "@demo "
REPORT = "report.json"


def tell(**event: Any) -> None:
    """Prints an event with these fields."""
    print(EVENT + json.dumps(event), flush=True)


@contextlib.contextmanager
def progress(name: str, total: int) -> Iterator[Callable[[], None]]:
    """Announces a part of the work; yields a function that counts a piece."""
    tell(part=name, total=total)
    yield lambda: tell(advance=1)


@contextlib.contextmanager
def _errors_told() -> Iterator[None]:
    """Prints errors in the user's choices as events, without a traceback."""
    try:
        yield
    except (ValueError, OSError, RuntimeError) as error:
        tell(error=getattr(error, "strerror", None) or str(error))
        sys.exit(1)


def main(text: str) -> None:
    """Runs the demo; writes its report beside its pictures."""
    # Imported late: the constants of this module are needed without TensorFlow.
    from tf_convpar import ConvParallelStrategy
    from tf_convpar.demo import data
    from tf_convpar.demo import networks
    from tf_convpar.demo import run
    from tf_convpar.demo.settings import Settings

    settings = Settings.from_json(text)
    with _errors_told():
        if settings.shards is not None:
            networks.check_shards(settings.shards)
        settings.output.mkdir(parents=True, exist_ok=True)
        # Before any variable is made: joining a cluster ends the life of all.
        strategy = ConvParallelStrategy(wire_dtype=settings.wire_dtype)
        images = data.load(settings.dataset)
    tell(advance=1)
    tell(joined=True)
    report = run.run(settings, images, strategy, progress)
    target = pathlib.Path(settings.output, REPORT)
    target.write_text(json.dumps(report.to_dict(), indent=2), encoding="utf-8")
    tell(done=True)


if __name__ == "__main__":
    main(sys.argv[1])
