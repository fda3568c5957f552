#!/bin/sh
# Unpacks a pinned CUDA compiler into .toolchain/ (git-ignored): nvcc 13.0.88 and what it needs, cuobjdump, nvdisasm, and
# the libclang that bindgen loads. Needs python3 with pip, about 135 MB of download and 340 MB of disk; no root, no driver.
#
# 13.0 is deliberate: its PTX (9.0) is what a driver of the 580 series can still compile.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
target=$root/.toolchain
stamp=$target/versions
packages='
nvidia-cuda-nvcc==13.0.88
nvidia-nvvm==13.0.88
nvidia-cuda-crt==13.0.88
nvidia-cuda-runtime==13.0.96
nvidia-cuda-cccl==13.0.85
nvidia-cuda-cuobjdump==13.5.37
nvidia-cuda-nvdisasm==13.5.37
libclang==18.1.1
'

if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$(printf '%s' "$packages")" ]; then
    echo "$target/cuda is up to date"
    exit 0
fi

rm -rf "$target"
mkdir -p "$target/wheels"
# shellcheck disable=SC2086  # one word per package
python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --dest "$target/wheels" $packages
python3 - "$target" <<'PY'
import pathlib, sys, zipfile

target = pathlib.Path(sys.argv[1])
for wheel in sorted((target / "wheels").glob("*.whl")):
    zipfile.ZipFile(wheel).extractall(target / "site")
PY
ln -s site/nvidia/cu13 "$target/cuda"
ln -s site/libclang-18.1.1.data/platlib/clang/native "$target/libclang"
ln -s lib "$target/cuda/lib64"
chmod +x "$target"/cuda/bin/* "$target"/cuda/nvvm/bin/*
rm -rf "$target/wheels"
printf '%s\n' "$packages" > "$stamp"
"$target/cuda/bin/nvcc" --version | tail -2
