"""The installed TensorFlow wheel as a repository with one library, `tensorflow`."""

_ASK = """
import tensorflow as tf
print(tf.sysconfig.get_include())
print(tf.sysconfig.get_lib())
print([f for f in tf.sysconfig.get_compile_flags() if not f.startswith("-I")])
print([f[3:] for f in tf.sysconfig.get_link_flags() if f.startswith("-l:")][0])
"""

_BUILD = """
cc_library(
    name = "tensorflow",
    srcs = ["lib/{library}"],
    hdrs = glob(["include/**"]),
    includes = ["include"],
    visibility = ["//visibility:public"],
)
"""

def _impl(ctx):
    name = ctx.os.environ.get("TF_CONVPAR_PYTHON", "python3")
    python = name if "/" in name else ctx.which(name)
    answer = ctx.execute([python, "-c", _ASK]) if python else None
    if not answer or answer.return_code != 0:
        fail("Expected TF_CONVPAR_PYTHON to be a Python with TensorFlow. " +
             "Received {}: {}".format(name, answer and answer.stderr))
    include, lib, flags, library = answer.stdout.strip().split("\n")[-4:]
    ctx.symlink(include, "include")
    ctx.symlink(lib + "/" + library, "lib/" + library)
    ctx.file("flags.bzl", "COMPILE_FLAGS = " + flags + "\n")
    ctx.file("BUILD", _BUILD.format(library = library))

installed_tensorflow = repository_rule(
    implementation = _impl,
    environ = ["TF_CONVPAR_PYTHON"],
    local = True,
)
