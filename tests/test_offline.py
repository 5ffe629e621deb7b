"""Wheels in pieces: cut, checked, joined, and installed without an index."""

import hashlib
import importlib.util
import lzma
import pathlib
import subprocess
import sys
import zipfile

import pytest

from tf_convpar import ops

ROOT = pathlib.Path(__file__).parent.parent
SCRIPT = ROOT / "tools" / "offline.py"
sys.path.insert(0, str(SCRIPT.parent))
import fatbin  # noqa: E402


@pytest.fixture(scope="module")
def offline():
    spec = importlib.util.spec_from_file_location("offline", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def wheel(folder, name="carried", size=300_000):
    """A real wheel of one module, and of bytes that do not compress."""
    file = folder / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(f"{name}.py", "ARRIVED = True\n")
        blob = b"".join(
            hashlib.sha256(str(i).encode()).digest() for i in range(size // 32)
        )
        archive.writestr(f"{name}.bin", blob)
        archive.writestr(
            f"{info}/METADATA",
            f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        )
        archive.writestr(
            f"{info}/WHEEL",
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr(f"{info}/RECORD", "")
    return file


@pytest.fixture
def packed(offline, tmp_path, monkeypatch):
    """What `pack` leaves, of a wheel that pip finds in a folder."""
    (tmp_path / "index").mkdir()
    wheel(tmp_path / "index")
    folder = tmp_path / "pieces"
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    # In pieces of 64 KiB; `pack` itself takes whole MiB.
    monkeypatch.setattr(
        offline,
        "cut",
        lambda file, into, size, cut=offline.cut: cut(file, into, 1 << 16),
    )
    offline.pack(folder, version, 1, ["carried"])
    monkeypatch.delenv("PIP_FIND_LINKS")
    return folder


def run(*arguments):
    return subprocess.run(
        [sys.executable, SCRIPT, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.slow
def test_what_was_packed_is_installed_without_an_index(packed, tmp_path):
    pieces = sorted(packed.glob("*.whl.*"))
    assert len(pieces) == 5
    assert max(piece.stat().st_size for piece in pieces) == 1 << 16
    done = run("install", packed, tmp_path / "venv")
    assert done.returncode == 0, done.stderr
    code = "import carried; print(carried.ARRIVED)"
    python = tmp_path / "venv" / "bin" / "python"
    assert subprocess.check_output([python, "-c", code], text=True) == "True\n"


def test_a_damaged_and_a_missing_piece_are_named(packed, tmp_path):
    first, second, *_ = sorted(packed.glob("*.whl.*"))
    content = bytearray(first.read_bytes())
    content[100] ^= 1
    first.write_bytes(content)
    second.unlink()
    done = run("install", packed, tmp_path / "venv")
    assert done.returncode == 1
    assert f"Missing or damaged: {first.name}, {second.name}" in done.stderr
    assert not (tmp_path / "venv").exists()
    (packed / "pieces.json").unlink()
    done = run("install", packed, tmp_path / "venv")
    assert "Expected" in done.stderr and "pieces.json" in done.stderr


def test_libraries_are_linked_by_the_names_that_are_opened(offline, tmp_path):
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    cuda = tmp_path / "cuda"
    cuda.mkdir()
    for name in ("libcublas.so.13", "libcublas.so.9", "libcufft.so.11"):
        (cuda / name).touch()
    (cuda / "libcufft.so.12").touch()
    done = run("link", tmp_path / "venv", "--folder", cuda)
    assert done.returncode == 0, done.stderr
    links = tmp_path / "venv" / "lib" / "cuda"
    assert (links / "libcublas.so.12").resolve().name == "libcublas.so.13"
    assert (links / "libcufft.so.11").resolve().name == "libcufft.so.11"
    assert "libcublas.so.13  (another version: may fail)" in done.stdout
    assert f"LD_LIBRARY_PATH={links}:" in done.stdout
    assert "libcudnn.so.9" in done.stdout.partition("not found")[2]


def test_bad_input_ends_in_a_line(packed, tmp_path):
    for arguments, told in (
        (("pack", tmp_path / "new", "--mib", "0", "x"), "--mib of 1 or more"),
        (("pack", packed, "x"), "Expected an empty folder"),
        (("install", packed, tmp_path), "Expected a new folder"),
        (("link", tmp_path / "nowhere"), "Expected an environment"),
    ):
        done = run(*arguments)
        assert done.returncode != 0
        assert told in done.stderr
        assert "Traceback" not in done.stderr


def container(*entries):
    """A fat binary: code of some kind for a card, by capability."""
    body = b"".join(
        fatbin.ENTRY.pack(kind, 0x101, 64, len(code), len(code), 0, 7, 1, card)
        + bytes(64 - fatbin.ENTRY.size)
        + code
        for kind, card, code in entries
    )
    return fatbin.CONTAINER.pack(fatbin.MAGIC, 1, 16, len(body)) + body


def test_only_what_a_card_can_run_stays():
    sass, ptx = fatbin.MACHINE_CODE, fatbin.PTX
    both = container((sass, 80, b"eighty"), (sass, 90, b"ninety"))
    either = container((sass, 90, b"NINETY"), (ptx, 90, b"ptx of it"))
    only = container((ptx, 80, b"older"), (ptx, 100, b"newer"))
    unknown = container((sass, 80, b"beside"), (7, 80, b"another kind"))
    library = bytearray(b"begin" + both + either + only + unknown + b"end")
    size = len(library)
    gone = (b"eighty", b"ptx of it", b"newer")
    assert fatbin.thin(library, "9.0") == sum(map(len, gone))
    assert len(library) == size
    for code in gone:
        assert code not in library
    for code in (b"ninety", b"NINETY", b"older", b"beside", b"another kind"):
        assert code in library


def test_the_kernels_of_the_op_for_one_card():
    """As nvcc lays them out."""
    report = ops.build_report()
    if not report.cuda.startswith("nvcc"):
        pytest.skip(f"built without kernels for GPUs: {report.cuda}")
    library = bytearray(pathlib.Path(report.library).read_bytes())
    before = len(lzma.compress(library))
    assert fatbin.thin(library, "9.0") > 1 << 20
    assert len(lzma.compress(library)) < 0.7 * before


def test_a_wheel_is_smaller_without_what_is_not_wanted(offline, tmp_path):
    """It is installed like any other."""
    file = wheel(tmp_path)
    before = file.stat().st_size
    offline.shrink(file, "9.0", ["*.bin"])
    assert file.stat().st_size < before / 10
    found = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-index"]
        + ["--no-deps", "--target", tmp_path / "there", file],
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr
    assert (tmp_path / "there" / "carried.py").read_text() == "ARRIVED = True\n"
    assert not (tmp_path / "there" / "carried.bin").exists()


def test_a_card_that_is_none_is_refused(tmp_path):
    found = run("pack", tmp_path / "new", "--card", "sm_90", "carried")
    assert found.returncode == 2
    assert "Expected --card as 9.0. Received: sm_90" in found.stderr
    assert not (tmp_path / "new").exists()
