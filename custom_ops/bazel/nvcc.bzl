"""The kernels for GPUs, by the nvcc of this machine, as a repository `nvcc`.

It knows `COMMAND`, what compiles a source to an object file, without both of
their names, and `LINK`; both are empty where there is no nvcc. As setup.py does
it, for the generations of cards that are its own.
"""

_GENERATIONS = ["70", "75", "80", "90", "100", "120"]
_RUNTIME = "libcudart_static.a"

def _found(ctx):
    if ctx.os.environ.get("TF_CONVPAR_CUDA") == "0":
        return None
    places = [ctx.os.environ.get("CUDA_HOME", "/usr/local/cuda") + "/bin/nvcc"]
    places += [str(ctx.which("nvcc") or ""), "/usr/local/cuda/bin/nvcc"]
    for place in places:
        if place and ctx.path(place).exists:
            return place
    return None

def _impl(ctx):
    nvcc, command, link = _found(ctx), "", []
    if nvcc:
        known = ctx.execute([nvcc, "--list-gpu-code"]).stdout.split("\n")
        wanted = [each for each in _GENERATIONS if "sm_" + each in known]
        command = nvcc + " -std=c++17 -O3 -I. -Xcompiler=-fPIC,-fvisibility=hidden"
        for each in wanted:
            code = "sm_" + each
            if each == wanted[-1]:
                code = "[{},compute_{}]".format(code, each)
            command += " -gencode arch=compute_{},code={}".format(each, code)

        # nvcc may be a script somewhere else: it says where its files are.
        said = ctx.execute([nvcc, "--dryrun", "-x", "cu", "-c", "/dev/null"])
        for word in (said.stderr + said.stdout).split('"'):
            if word.startswith("-L"):
                link.append(word)
        link += ["-l:" + _RUNTIME, "-Wl,--exclude-libs," + _RUNTIME]
        link += ["-ldl", "-lrt", "-lpthread"]
    ctx.file("nvcc.bzl", "COMMAND = {}\nLINK = {}\n".format(repr(command), repr(link)))
    ctx.file("BUILD", "")

local_nvcc = repository_rule(
    implementation = _impl,
    environ = ["CUDA_HOME", "PATH", "TF_CONVPAR_CUDA"],
    local = True,
)
