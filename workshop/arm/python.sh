#!/usr/bin/env bash
# Arm's Python and torch under qemu, on x86-64: `make arm-python`, behind `make arm` and in `make nightly`.
#
# With the kernels compiled for Arm, and without, the embedded model says in float32 what it says here, greedy and drawn
# (tokens.py); then the tests of the products. Packages without compiled parts are those of the environment that runs
# this. The torch is 2.10: later ones of PyPI's for Arm are CUDA's. Where something cannot be had, one line says so and
# all is well.
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$PWD/.cache/arm/python cross=$PWD/.cache/arm/root
mkdir -p "$work/apt/lists/partial" "$work/apt/archives/partial"
touch "$work/apt/status"

skip() {
    echo "make arm-python: skipped, $1"
    exit 0
}

if type aarch64-linux-gnu-g++ qemu-aarch64-static > /dev/null 2>&1; then # both, where command -v asks for any
    cross=
elif [ ! -x "$cross/usr/bin/qemu-aarch64-static" ]; then
    skip "the cross compiler and qemu cannot be had (make arm says why)"
fi
apt() { # of another architecture, with lists of its own
    apt-get -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Debug::NoLocking=1 -o Dir::State="$work/apt" \
        -o Dir::State::status="$work/apt/status" -o Dir::Cache="$work/apt" "$@" > "$work/log" 2>&1
}
if [ ! -e "$work/root/usr/bin/python3" ]; then
    apt update && apt install --yes --download-only --no-install-recommends python3 libgomp1 libstdc++6 ||
        skip "Python for Arm cannot be had by apt-get, see $work/log"
    for package in "$work"/apt/archives/*.deb; do dpkg --extract "$package" "$work/root"; done
fi
version=$(readlink "$work/root/usr/bin/python3")
if [ ! -d "$work/site/torch" ]; then
    platforms=(--platform=manylinux_2_28_aarch64 --platform=manylinux_2_27_aarch64 --platform=manylinux_2_17_aarch64)
    mapfile -t pinned < <(grep -E '^(numpy|tokenizers|safetensors|regex|psutil|PyYAML|hf-xet|MarkupSafe)==' constraints.txt)
    PIP_CONSTRAINT='' python -m pip install --quiet --no-deps --only-binary=:all: "${platforms[@]}" \
        --python-version "${version#python}" --target "$work/site" torch==2.10.0 "${pinned[@]}" > "$work/log" 2>&1 ||
        skip "torch and numpy for Arm cannot be had by pip, see $work/log"
fi

cat > "$work/g++" << END
#!/bin/sh
${cross:+export LD_LIBRARY_PATH=$cross/usr/lib/x86_64-linux-gnu PATH=$cross/usr/bin:\$PATH}
exec aarch64-linux-gnu-g++ ${cross:+-Wl,--sysroot=$cross -I $cross/usr/aarch64-linux-gnu/include} "\$@"
END
chmod +x "$work/g++"
here=$(python -c "import sys; print(*(path for path in sys.path if path.endswith('site-packages')), sep=':')")
root=$work/root
for_arm() {
    CXX=$work/g++ FOLOVLLM_CPU_TARGET=-mcpu=neoverse-v1 XDG_CACHE_HOME=$work/cache "$@"
}
on_arm() {
    PYTHONHOME=$root/usr PYTHONPATH=$work/site:$PWD:$here \
        QEMU_SET_ENV=LD_LIBRARY_PATH=$root/usr/lib/aarch64-linux-gnu:$root/lib/aarch64-linux-gnu \
        for_arm "$cross${cross:+/usr/bin/}qemu-aarch64-static" -cpu max -L "$root" "$root/usr/bin/$version" "$@"
}

# Compiled from here: under qemu a process that forks in several threads may hang.
for_arm python -c "import os; from folovllm.utils import cpu_kernels; cpu_kernels.compiled(os.environ['CXX'])"
for kernels in yes no; do
    export FOLOVLLM_CPU_KERNELS=$kernels
    python -m workshop.arm.tokens > "$work/here"
    on_arm -m workshop.arm.tokens > "$work/arm"
    diff "$work/here" "$work/arm"
    echo "the embedded model, FOLOVLLM_CPU_KERNELS=$kernels: $(tail -n +2 "$work/arm" | wc -w) tokens are those of x86"
done
unset FOLOVLLM_CPU_KERNELS
# Without conftest.py and plugins, some of which have compiled parts.
PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 on_arm -m pytest -q --noconftest -m "slow and not exhaustive" tests/m4/test_cpu_products.py
