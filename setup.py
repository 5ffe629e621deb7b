"""Builds the C++ op; all else about the package is in pyproject.toml."""

import concurrent.futures
import dataclasses
import itertools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

import setuptools
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

NAME = "tf_convpar.ops._convpar_ops"
SOURCES = [
    "custom_ops/bilinear/sizes.cc",
    "custom_ops/channels/joined.cc",
    "custom_ops/channels/rows.cc",
    "custom_ops/simd/avx2.cc",
    "custom_ops/simd/avx512.cc",
    "custom_ops/simd/base.cc",
    "custom_ops/simd/kernels.cc",
    "custom_ops/ops/bilinear_ops.cc",
    "custom_ops/ops/block_ops.cc",
    "custom_ops/ops/channel_ops.cc",
    "custom_ops/ops/convolution_ops.cc",
    "custom_ops/ops/depthwise_ops.cc",
    "custom_ops/ops/function_ops.cc",
    "custom_ops/ops/normalization_ops.cc",
    "custom_ops/ops/packed_ops.cc",
    "custom_ops/ops/piece_ops.cc",
    "custom_ops/ops/pooling_ops.cc",
    "custom_ops/ops/row_ops.cc",
    "custom_ops/ops/shard_ops.cc",
    "custom_ops/ops/statistics_ops.cc",
    "custom_ops/kernels/bilinear_bytes.cc",
    "custom_ops/kernels/bilinear_convolution.cc",
    "custom_ops/kernels/bilinear_program.cc",
    "custom_ops/kernels/blocks.cc",
    "custom_ops/kernels/channels.cc",
    "custom_ops/kernels/concat_shards.cc",
    "custom_ops/kernels/convert.cc",
    "custom_ops/kernels/convolution.cc",
    "custom_ops/kernels/depthwise.cc",
    "custom_ops/kernels/device_copy.cc",
    "custom_ops/kernels/in_parallel.cc",
    "custom_ops/kernels/older_systems.cc",
    "custom_ops/kernels/normalization.cc",
    "custom_ops/kernels/packed.cc",
    "custom_ops/kernels/peers.cc",
    "custom_ops/kernels/pieces.cc",
    "custom_ops/kernels/pooling.cc",
    "custom_ops/kernels/product.cc",
    "custom_ops/kernels/release_functions.cc",
    "custom_ops/kernels/remembered.cc",
    "custom_ops/kernels/row_exchange.cc",
    "custom_ops/kernels/shard_copy.cc",
    "custom_ops/kernels/split_shards.cc",
    "custom_ops/kernels/statistics.cc",
    "custom_ops/kernels/stream.cc",
    "custom_ops/kernels/window.cc",
    "custom_ops/kernels/workspace.cc",
]

# What compiler and linker are told besides, as by `make asan`.
FLAGS = os.environ.get("TF_CONVPAR_FLAGS", "").split()

# Compilers at once, unless `build_ext --parallel` says how many. With
# TensorFlow's headers each takes some 1 GB of memory.
MOST_JOBS = 8

CUDA_SOURCES = ["custom_ops/cuda/launch.cu"]
CUDA = "TF_CONVPAR_CUDA"
ARCHITECTURES = "TF_CONVPAR_CUDA_ARCHITECTURES"
RUNTIME = "libcudart_static.a"
# One for each generation: its code runs on all cards of the generation. The
# newest is added as PTX too, which drivers compile for cards to come.
GENERATIONS = ("70", "75", "80", "90", "100", "120")


@dataclasses.dataclass(frozen=True)
class Nvcc:
    """NVIDIA's compiler, and what it compiles for."""

    path: str
    version: str
    architectures: tuple[str, ...]
    folders: tuple[str, ...]

    def __str__(self) -> str:
        names = [f"sm_{each}" for each in self.architectures]
        return (
            f"nvcc {self.version} for {', '.join(names)}, "
            f"PTX {self.architectures[-1]}"
        )

    def compile(self, source: str, target: pathlib.Path, cxx: str) -> None:
        """Compiles one source to an object file."""
        target.parent.mkdir(parents=True, exist_ok=True)
        newest = self.architectures[-1]
        command = [self.path, "--threads=0", f"-ccbin={cxx}", "-std=c++17"]
        for each in self.architectures:
            code = f"[sm_{each},compute_{each}]"
            code = code if each == newest else f"sm_{each}"
            command += ["-gencode", f"arch=compute_{each},code={code}"]
        command += ["-O3", "-I.", "-Xcompiler=-fPIC,-fvisibility=hidden"]
        command += ["-cudart=static", "-c", source, "-o", str(target)]
        print(" ".join(command))
        if subprocess.run(command, check=False).returncode != 0:
            sys.exit(
                f"{self.path} did not compile {source}. {CUDA}=0 builds "
                "without kernels for GPUs."
            )

    def link_args(self) -> list[str]:
        """The runtime is linked in: machines without a GPU have none."""
        return [
            *(f"-L{folder}" for folder in self.folders),
            f"-l:{RUNTIME}",
            f"-Wl,--exclude-libs,{RUNTIME}",
            *("-ldl", "-lrt", "-lpthread"),
        ]


def find_nvcc() -> Nvcc | None:
    """The compiler of kernels for GPUs, if there is one and it is wanted."""
    wanted = os.environ.get(CUDA) or "auto"
    if wanted not in ("0", "1", "auto"):
        sys.exit(f"Expected {CUDA} to be 0, 1 or auto. Received: {wanted}")
    places = [
        pathlib.Path(home, "bin", "nvcc")
        for home in (os.environ.get("CUDA_HOME"), "/usr/local/cuda")
        if home
    ]
    places.insert(-1, pathlib.Path(shutil.which("nvcc") or "/no/nvcc"))
    found = next((str(p) for p in places if p.is_file()), None)
    if found is None and wanted == "1":
        sys.exit(
            f"Expected nvcc in $CUDA_HOME/bin, $PATH or /usr/local/cuda/bin, "
            f"as {CUDA}=1. Received none"
        )
    if found is None or wanted == "0":
        return None
    # nvcc may be a script somewhere else: it says itself where its files are.
    folders = tuple(
        re.findall(
            r'-L([^"\s]+)', _said(found, "--dryrun", "-x", "cu", "-c", __file__)
        )
    )
    if not any(pathlib.Path(folder, RUNTIME).is_file() for folder in folders):
        problem = f"{found} comes without {RUNTIME} in {', '.join(folders)}"
        if wanted == "1":
            sys.exit(f"{problem}, which {CUDA}=1 needs")
        print(f"{problem}: no kernels for GPUs are built", file=sys.stderr)
        return None
    version = re.search(r"V([\d.]+)", _said(found, "--version"))
    known = re.findall(r"sm_(\w+)", _said(found, "--list-gpu-code"))
    given = re.findall(r"\w+", os.environ.get(ARCHITECTURES, ""))
    unknown = sorted(set(given) - set(known))
    if unknown:
        sys.exit(
            f"Expected {ARCHITECTURES} to be of {', '.join(known)}, what "
            f"{found} compiles for. Received: {', '.join(unknown)}"
        )
    return Nvcc(
        found,
        version[1] if version else "of unknown version",
        tuple(given or (each for each in GENERATIONS if each in known)),
        folders,
    )


def _said(*command: str) -> str:
    answer = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return answer.stdout


def side_by_side(
    compile_in_turn: Callable[..., list[str]], jobs: int
) -> Callable[..., list[str]]:
    """The `compile` of a distutils compiler, with so many compilers at once."""

    def compile_sources(
        sources: Sequence[str], *args: Any, **kwargs: Any
    ) -> list[str]:
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            objects = pool.map(
                lambda source: compile_in_turn([source], *args, **kwargs),
                sources,
            )
            return list(itertools.chain.from_iterable(objects))

    return compile_sources


class BuildOp(build_ext):
    """Compiles against the TensorFlow at hand and records which it was."""

    def get_ext_filename(self, fullname: str) -> str:
        """A plain name: the library is TensorFlow's to load, not Python's."""
        return os.path.join(*fullname.split(".")) + ".so"

    def run(self) -> None:
        """Builds, and puts the record beside every copy of the library."""
        # Needed by no other command, and slow to import.
        import tensorflow as tf

        # A newer TensorFlow does not make the sources newer, and the record
        # below must be of the library beside it.
        self.force = True
        self.nvcc = find_nvcc()
        for extension in self.extensions:
            # TensorFlow's headers as the system's: their warnings are not ours.
            extension.extra_compile_args += [
                flag.replace("-I", "-isystem", 1)
                for flag in tf.sysconfig.get_compile_flags()
            ]
            extension.extra_link_args += tf.sysconfig.get_link_flags()
        super().run()
        record = {
            "tensorflow": tf.__version__,
            "cxx11_abi": int(tf.sysconfig.CXX11_ABI_FLAG),
            "compiler": self._compiler(),
            "cuda": str(self.nvcc or "none"),
        }
        text = json.dumps(record, indent=2) + "\n"
        for library in self._libraries():
            library.with_name("_build_info.json").write_text(text)

    def build_extension(self, extension: setuptools.Extension) -> None:
        """Compiles sources side by side, and kernels for GPUs if it can."""
        jobs = self.parallel or min(os.cpu_count() or 1, MOST_JOBS)
        self.compiler.compile = side_by_side(self.compiler.compile, int(jobs))
        if self.nvcc is not None:
            for source in CUDA_SOURCES:
                target = pathlib.Path(self.build_temp, source + ".o")
                self.nvcc.compile(source, target, self._cxx())
                extension.extra_objects.append(str(target))
            extension.define_macros.append(("TF_CONVPAR_CUDA", "1"))
            extension.extra_link_args += self.nvcc.link_args()
        super().build_extension(extension)

    def _libraries(self) -> list[pathlib.Path]:
        filename = self.get_ext_filename(NAME)
        places = [pathlib.Path(self.build_lib, filename)]
        if self.inplace:
            places.append(pathlib.Path(filename))
        return [place for place in places if place.parent.is_dir()]

    def _compiler(self) -> str:
        command = self._cxx()
        return (_said(command, "--version").splitlines() or [command])[0]

    def _cxx(self) -> str:
        """The compiler's command, without those that only pass it on."""
        words: list[str] = self.compiler.compiler_so_cxx
        wrappers = ("ccache", "distcc", "sccache")
        return next(w for w in words if pathlib.Path(w).name not in wrappers)


class AnyPythonWheel(bdist_wheel):
    """The library knows nothing of Python: one wheel serves all versions."""

    def get_tag(self) -> tuple[str, str, str]:
        """The platform's own tag, for any Python."""
        return "py3", "none", super().get_tag()[2]


def extensions() -> list[setuptools.Extension]:
    """The op, unless the user wants the pure-TensorFlow twin only."""
    if os.environ.get("TF_CONVPAR_PY_OPS") == "1":
        print("TF_CONVPAR_PY_OPS=1: the C++ op is not built", file=sys.stderr)
        return []
    return [
        setuptools.Extension(
            NAME,
            SOURCES,
            include_dirs=["."],
            extra_compile_args=["-O3", "-g0", "-fvisibility=hidden", *FLAGS],
            extra_link_args=FLAGS,
            language="c++",
        )
    ]


setuptools.setup(
    ext_modules=extensions(),
    cmdclass={"build_ext": BuildOp, "bdist_wheel": AnyPythonWheel},
)
