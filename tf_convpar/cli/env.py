"""`convpar env`."""

import importlib.metadata
import os
import platform
import sys

import click

from tf_convpar import __version__
from tf_convpar import machines
from tf_convpar.cli._shared import as_json
from tf_convpar.cli._shared import print_json
from tf_convpar.cli._shared import without_chatter
from tf_convpar.units import GIB

_PACKAGES = ("tensorflow", "keras", "numpy", "grpcio", "protobuf")
# Not all names with "TF_": Terraform keeps its access tokens in TF_TOKEN_...
_TF_WORDS = (
    "CONVPAR CPP CUDNN DETERMINISTIC DISABLE EAGER ENABLE FORCE GPU GRPC "
    "INTER INTRA NUM ONEDNN USE XLA"
)
_PREFIXES = (
    *(f"TF_{word}_" for word in _TF_WORDS.split()),
    *("KERAS_", "CUDA_", "NVIDIA_", "XLA_", "OMP_"),
)
_PROXIES = ("http_proxy", "https_proxy", "grpc_proxy", "no_proxy")


@click.command(name="env")
@as_json
def command(as_json: bool) -> None:
    """Describe this installation: text to paste into an issue.

    \b
      convpar env

    TF_CONFIG is summed up, without its addresses.
    """  # noqa: D301 (click keeps the lines after a backspace as they are)
    with without_chatter():
        facts = _facts()
    if as_json:
        print_json(facts)
        return
    width = max(map(len, facts)) + 1
    for name, value in facts.items():
        click.echo(f"{name + ':':<{width}} {value}")


def _facts() -> dict[str, str]:
    import psutil

    facts = {"tf_convpar": __version__}
    facts |= {name: _version(name) for name in _PACKAGES}
    facts["python"] = f"{platform.python_version()}, {sys.implementation.name}"
    facts["os"] = platform.platform()
    facts["cpu"] = (
        f"{machines.processor()}, {psutil.cpu_count(logical=False)} cores, "
        f"{psutil.cpu_count()} threads, {len(machines.usable_cores())} usable"
    )
    facts["memory"] = f"{psutil.virtual_memory().total / GIB:.1f} GiB"
    try:
        import tensorflow as tf
    except Exception as error:  # Such a report is for just that.
        facts["tensorflow import"] = f"failed: {error}"
    else:
        build = tf.sysconfig.get_build_info()
        facts["cuda build"] = (
            f"CUDA {build.get('cuda_version')}, "
            f"cuDNN {build.get('cudnn_version')}"
            if build.get("is_cuda_build")
            else "no"
        )
        gpus = tf.config.list_physical_devices("GPU")
        facts["gpus"] = ", ".join(map(_gpu_model, gpus)) or "none"
        facts |= _ops()
    facts["TF_CONFIG"] = _tf_config()
    for name, value in sorted(os.environ.items()):
        if name.startswith(_PREFIXES) and name != "TF_CONFIG":
            facts[name] = value
        elif name.lower() in _PROXIES:
            facts[name] = "set"
    return facts


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        if package == "tensorflow":
            return "not found under this name (tensorflow-cpu, or a build?)"
        return "not installed"


def _gpu_model(gpu: object) -> str:
    import tensorflow as tf

    details = tf.config.experimental.get_device_details(gpu)
    major, minor = details.get("compute_capability", ("?", "?"))
    return f"{details.get('device_name', 'GPU')} (compute {major}.{minor})"


def _ops() -> dict[str, str]:
    try:
        from tf_convpar import ops

        report = ops.build_report()
    except Exception as error:
        return {"compiled ops": f"failed: {error}"}
    return {
        "compiled ops": report.verdict,
        "kernels for gpus": report.cuda or "unknown",
    }


def _tf_config() -> str:
    from tf_convpar.cluster import spec

    try:
        cluster = spec.resolve()
    except ValueError:
        return "set, but not a cluster (`convpar worker` says why)"
    if cluster is None:
        return "unset"
    sizes = [f"{len(at)} {job}" for job, at in cluster.spec.items()]
    text = f"{' + '.join(sizes)}; this is {cluster.task.name}"
    return f"unset; a step of Slurm: {text}" if cluster.one_program else text
