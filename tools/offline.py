"""Carries Python packages to a host without a network, and installs them there.

    python tools/offline.py pack FOLDER --python 3.12 tensorflow==2.21.0
    python tools/offline.py pack FOLDER --card 9.0 ...    # a third of the bytes
    python tools/offline.py install FOLDER VENV
    python tools/offline.py link VENV

`pack` downloads wheels where there is a network, and cuts them into pieces that
any way of carrying files takes. With `--card` GPU code is kept for one card's
compute capability only, and files are compressed better, which takes minutes.
`install` checks and joins pieces, and installs them into a new virtual
environment. `link` gives that environment the CUDA libraries that TensorFlow
opens, by the names under which it opens them. All three need Python alone, as
there is nothing else on such a host.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import venv
import zipfile

import fatbin

MANIFEST = "pieces.json"
BLOCK = 1 << 20
# What TensorFlow's wheel of 2.21 opens, which was built with CUDA 12.5.
LIBRARIES = (
    "libcudart.so.12",
    "libcublas.so.12",
    "libcublasLt.so.12",
    "libcufft.so.11",
    "libcusolver.so.11",
    "libcusparse.so.12",
    "libcudnn.so.9",
)
FOLDERS = (
    "/usr/local/cuda*/lib64",
    "/usr/local/cuda*/targets/x86_64-linux/lib",
    "/usr/lib/x86_64-linux-gnu",
)


def pack(
    folder: pathlib.Path,
    python: str,
    mib: int,
    wanted: list[str],
    card: str | None = None,
    without: list[str] | None = None,
) -> None:
    """Downloads wheels, and writes them in pieces, with their checksums."""
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        sys.exit(f"Expected an empty folder. Received: {folder}")
    with tempfile.TemporaryDirectory() as kept:
        # Wheels of that Python only, for any system that old.
        platforms = [
            f"--platform=manylinux_2_{minor}_x86_64" for minor in (28, 27, 17)
        ]
        command = [
            *(sys.executable, "-m", "pip", "download", "--quiet"),
            *("--only-binary=:all:", f"--python-version={python}"),
            *(*platforms, "--platform=manylinux2014_x86_64"),
            *("--dest", kept, *wanted),
        ]
        if subprocess.run(command, check=False).returncode != 0:
            sys.exit("pip did not download the packages; see above.")
        files = {}
        for wheel in sorted(pathlib.Path(kept).iterdir()):
            if card or without:
                shrink(wheel, card, without or [])
            files[wheel.name] = cut(wheel, folder, mib << 20)
        (folder / MANIFEST).write_text(json.dumps(files, indent=1) + "\n")
    print(f"{len(files)} wheels in {folder}, pieces of up to {mib} MiB")


def shrink(wheel: pathlib.Path, card: str | None, without: list[str]) -> None:
    """Writes a wheel again, with less in it and better compressed."""
    smaller = wheel.with_suffix(".smaller")
    with (
        zipfile.ZipFile(wheel) as source,
        zipfile.ZipFile(smaller, "w", zipfile.ZIP_LZMA) as target,
    ):
        for info in source.infolist():
            if any(fnmatch.fnmatch(info.filename, p) for p in without):
                continue
            content = bytearray(source.read(info))
            if card and ".so" in pathlib.Path(info.filename).name:
                fatbin.thin(content, card)
            info.compress_type = zipfile.ZIP_LZMA
            target.writestr(info, bytes(content))
    smaller.replace(wheel)


def cut(
    file: pathlib.Path, folder: pathlib.Path, size: int
) -> dict[str, object]:
    """Writes a file in pieces of at most `size` bytes."""
    whole, pieces = hashlib.sha256(), {}
    with file.open("rb") as source:
        while block := source.read(min(BLOCK, size)):
            piece = folder / f"{file.name}.{len(pieces):03}"
            own, left = hashlib.sha256(), size
            with piece.open("wb") as target:
                while block:
                    target.write(block)
                    own.update(block)
                    whole.update(block)
                    left -= len(block)
                    block = source.read(min(BLOCK, left)) if left else b""
            pieces[piece.name] = own.hexdigest()
    return {"sha256": whole.hexdigest(), "pieces": pieces}


def joined(folder: pathlib.Path, target: pathlib.Path) -> list[str]:
    """Joins all files of a folder of pieces; their names.

    A piece that is missing or damaged is named before anything is installed.
    """
    try:
        files = json.loads((folder / MANIFEST).read_text())
    except (OSError, ValueError) as error:
        sys.exit(f"Expected {folder / MANIFEST} of `pack`. Received: {error}")
    bad = [
        name
        for each in files.values()
        for name, digest in each["pieces"].items()
        if digest_of(folder / name) != digest
    ]
    if bad:
        sys.exit(
            f"Expected pieces as `pack` wrote them. Missing or damaged: "
            f"{', '.join(bad)}. Carry them over again."
        )
    for name, each in files.items():
        with (target / name).open("wb") as whole:
            for piece in each["pieces"]:
                whole.write((folder / piece).read_bytes())
        if digest_of(target / name) != each["sha256"]:
            sys.exit(f"{name} is not what `pack` cut: is the disk full?")
    return list(files)


def digest_of(file: pathlib.Path) -> str | None:
    """The checksum of a file, None if there is none."""
    if not file.is_file():
        return None
    found = hashlib.sha256()
    with file.open("rb") as source:
        while block := source.read(BLOCK):
            found.update(block)
    return found.hexdigest()


def install(folder: pathlib.Path, target: pathlib.Path) -> None:
    """Installs all that was packed into a new virtual environment."""
    with tempfile.TemporaryDirectory(dir=target.parent) as kept:
        wheels = joined(folder, pathlib.Path(kept))
        venv.create(target, with_pip=True)
        command = [
            *(target / "bin" / "python", "-m", "pip", "install", "--quiet"),
            *("--no-index", "--no-deps"),
            *(pathlib.Path(kept, wheel) for wheel in wheels),
        ]
        if subprocess.run(command, check=False).returncode != 0:
            sys.exit(
                "pip did not install the wheels; see above. They are for the "
                "Python that `pack --python` named; this is "
                f"{sys.version_info[0]}.{sys.version_info[1]}."
            )
    print(f"{len(wheels)} packages in {target}")


def link(target: pathlib.Path, folders: list[str]) -> None:
    """Links the libraries that TensorFlow opens into the environment."""
    links = target / "lib" / "cuda"
    links.mkdir(parents=True, exist_ok=True)
    packages = f"{target}/lib/python3*/site-packages/nvidia/*/lib"
    places = [
        place
        for pattern in (packages, *folders)
        for place in sorted(pathlib.Path("/").glob(pattern.lstrip("/")))
    ]
    missing = []
    for name in LIBRARIES:
        found = library(name, places)
        if found is None:
            missing.append(name)
            continue
        link = links / name
        link.unlink(missing_ok=True)
        link.symlink_to(found)
        other = "" if found.name == name else "  (another version: may fail)"
        print(f"{name} -> {found}{other}")
    if missing:
        print(f"not found: {', '.join(missing)}. TensorFlow sees no GPU then.")
    print(f"export LD_LIBRARY_PATH={links}:$LD_LIBRARY_PATH")


def library(name: str, places: list[pathlib.Path]) -> pathlib.Path | None:
    """A library of that name; or else of the newest other version."""
    stem = name.partition(".so")[0]
    found = [path for place in places for path in place.glob(f"{stem}.so.*")]
    exact = [path for path in found if path.name == name]
    newest = sorted(
        found, key=lambda path: [int(n) for n in re.findall(r"\d+", path.name)]
    )
    return (exact or newest[-1:] or [None])[0]


def main() -> None:
    """Reads the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    packs = commands.add_parser("pack")
    packs.add_argument("folder", type=pathlib.Path)
    packs.add_argument("--python", default="3.12", help="that of the host")
    packs.add_argument("--mib", type=int, default=50, help="size of a piece")
    packs.add_argument("--card", help="compute capability, such as 9.0")
    packs.add_argument(
        "--without",
        action="append",
        default=[],
        help="files of wheels to leave out: 'tensorflow/include/*', say,\n"
        "where the op is not built on the host",
    )
    packs.add_argument("wanted", nargs="+")
    installs = commands.add_parser("install")
    installs.add_argument("folder", type=pathlib.Path)
    installs.add_argument("venv", type=pathlib.Path)
    links = commands.add_parser("link")
    links.add_argument("venv", type=pathlib.Path)
    links.add_argument("--folder", action="append", default=[])
    given = parser.parse_args()
    if given.command == "pack":
        if given.mib < 1:
            parser.error(f"Expected --mib of 1 or more. Received: {given.mib}")
        if given.card and not re.fullmatch(r"\d+\.\d", given.card):
            parser.error(f"Expected --card as 9.0. Received: {given.card}")
        pack(
            given.folder,
            given.python,
            given.mib,
            given.wanted,
            given.card,
            given.without,
        )
    elif given.command == "install":
        if given.venv.exists():
            parser.error(f"Expected a new folder. Received: {given.venv}")
        install(given.folder, given.venv.absolute())
    else:
        if not (given.venv / "bin").is_dir():
            parser.error(f"Expected an environment. Received: {given.venv}")
        link(given.venv.absolute(), [*given.folder, *FOLDERS])


if __name__ == "__main__":
    os.environ.setdefault("PIP_DISABLE_PIP_VERSION_CHECK", "1")
    main()
