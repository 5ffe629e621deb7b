#!/bin/sh
# Builds _convpar_ops.so with Bazel, without network where Debian's packages
# bazel-bootstrap, bazel-rules-java, bazel-rules-proto and bazel-platforms are.
#
#   custom_ops/bazel/build.sh [bazel's startup options]
#
# TF_CONVPAR_PYTHON is the Python whose TensorFlow to build against (python3).
set -eu
cd "$(dirname "$0")/../.."

debian=/usr/share/bazel
set -- "$@" build --compilation_mode=opt
if [ -d "$debian/rules" ]; then
  set -- "$@" \
    --override_repository=rules_cc="$PWD/custom_ops/bazel/rules_cc" \
    --override_repository=rules_java="$debian/rules/java" \
    --override_repository=rules_proto="$debian/rules/proto" \
    --override_repository=platforms="$debian/platforms"
fi
exec bazel "$@" \
  --repo_env=TF_CONVPAR_PYTHON="${TF_CONVPAR_PYTHON:-python3}" \
  --spawn_strategy=local --symlink_prefix=/ //:_convpar_ops.so
