"""Builds the C++ op; all else about the package is in pyproject.toml."""

import json
import os
import pathlib
import subprocess
import sys

import setuptools
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

NAME = "tf_convpar.ops._convpar_ops"
SOURCES = [
    "custom_ops/bilinear/passes.cc",
    "custom_ops/bilinear/passes_avx2.cc",
    "custom_ops/bilinear/passes_avx512.cc",
    "custom_ops/bilinear/passes_base.cc",
    "custom_ops/bilinear/sizes.cc",
    "custom_ops/channels/rows.cc",
    "custom_ops/depthwise/forward.cc",
    "custom_ops/depthwise/kernel_gradient.cc",
    "custom_ops/pooling/max_gradient.cc",
    "custom_ops/ops/bilinear_ops.cc",
    "custom_ops/ops/channel_ops.cc",
    "custom_ops/ops/depthwise_ops.cc",
    "custom_ops/ops/function_ops.cc",
    "custom_ops/ops/pooling_ops.cc",
    "custom_ops/ops/shard_ops.cc",
    "custom_ops/kernels/bilinear_bytes.cc",
    "custom_ops/kernels/bilinear_convolution.cc",
    "custom_ops/kernels/bilinear_program.cc",
    "custom_ops/kernels/channels.cc",
    "custom_ops/kernels/concat_shards.cc",
    "custom_ops/kernels/convert.cc",
    "custom_ops/kernels/depthwise.cc",
    "custom_ops/kernels/older_systems.cc",
    "custom_ops/kernels/pooling.cc",
    "custom_ops/kernels/release_functions.cc",
    "custom_ops/kernels/shard_copy.cc",
    "custom_ops/kernels/split_shards.cc",
    "custom_ops/kernels/stream.cc",
    "custom_ops/kernels/workspace.cc",
]


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
        }
        text = json.dumps(record, indent=2) + "\n"
        for library in self._libraries():
            library.with_name("_build_info.json").write_text(text)

    def _libraries(self) -> list[pathlib.Path]:
        filename = self.get_ext_filename(NAME)
        places = [pathlib.Path(self.build_lib, filename)]
        if self.inplace:
            places.append(pathlib.Path(filename))
        return [place for place in places if place.parent.is_dir()]

    def _compiler(self) -> str:
        command = self.compiler.compiler_so_cxx[0]
        answer = subprocess.run(
            [command, "--version"], capture_output=True, text=True, check=False
        )
        return (answer.stdout.splitlines() or [command])[0]


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
            extra_compile_args=["-O3", "-g0", "-fvisibility=hidden"],
            language="c++",
        )
    ]


setuptools.setup(
    ext_modules=extensions(),
    cmdclass={"build_ext": BuildOp, "bdist_wheel": AnyPythonWheel},
)
