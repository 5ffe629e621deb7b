"""Leaves a library's GPU code for one card only, so that it packs small.

    python tools/fatbin.py LIBRARY 9.0

A library built for many cards carries the same kernels once for each of them,
in containers that `nvcc` calls fat binaries. Code that a card cannot run is
overwritten with zeros: no offset in the file changes, the driver takes what is
left, and zeros compress to nothing.
"""

from __future__ import annotations

import pathlib
import struct
import sys
from collections.abc import Iterator

# A container: magic, version, bytes of this header, bytes of all that follows.
CONTAINER = struct.Struct("<IHHQ")
MAGIC = 0xBA55ED50
# What is in it: kind, version, bytes of this header, bytes of the code, bytes
# of the code once compressed, an offset, minor and major version of the kind,
# and the card's compute capability as 10 * major + minor.
ENTRY = struct.Struct("<HHIQIIHHI")
PTX, MACHINE_CODE = 1, 2


def thin(library: bytearray, card: str) -> int:
    """Overwrites what a card of this compute capability cannot run.

    ```python
    freed = thin(library, "9.0")  # TensorFlow 2.21: 1,096 MB, 199 of them freed
    ```

    Of machine code, what was made for the card stays. PTX, which the driver
    compiles for any card as new or newer, stays where there is none of that.

    Args:
        library: The bytes of a file, changed in place.
        card: Compute capability, such as "9.0".

    Returns:
        Bytes that were overwritten.
    """
    major, minor = map(int, card.split("."))
    wanted, freed = 10 * major + minor, 0
    for entries in _containers(library):
        native = any((MACHINE_CODE, wanted) == e[:2] for e in entries)
        for kind, made_for, start, stop in entries:
            runs = made_for == wanted
            if kind == PTX:
                runs = made_for <= wanted and not native
            if not runs:
                library[start:stop] = bytes(stop - start)
                freed += stop - start
    return freed


def _containers(
    library: bytearray,
) -> Iterator[list[tuple[int, int, int, int]]]:
    """Kind, compute capability and place of each code, by container."""
    begins = CONTAINER.pack(MAGIC, 1, CONTAINER.size, 0)[:-8]
    at = library.find(begins)
    while at >= 0:
        size = CONTAINER.unpack_from(library, at)[3]
        place, end = at + CONTAINER.size, at + CONTAINER.size + size
        entries: list[tuple[int, int, int, int]] = []
        while place + ENTRY.size <= min(end, len(library)):
            kind, _, header, code, *_, made_for = ENTRY.unpack_from(
                library, place
            )
            if header < ENTRY.size or kind not in (PTX, MACHINE_CODE):
                break  # What is not known here stays, and all beside it.
            start, place = place + header, place + header + code
            entries.append((kind, made_for, start, place))
        if place == end:
            yield entries
        at = library.find(begins, at + len(begins))


if __name__ == "__main__":
    file = pathlib.Path(sys.argv[1])
    content = bytearray(file.read_bytes())
    print(f"{thin(content, sys.argv[2]):,} of {len(content):,} bytes freed")
    file.write_bytes(content)
