#!/usr/bin/env bash
# The CPU kernels on 64-bit Arm, without an Arm machine: `make arm`.
#
#   Linux   compiled by Debian's cross compiler for a CPU with bfloat16 and 8-bit products and for one without; check.cpp,
#           linked with them, compares each kernel with a reference under qemu
#   macOS   compiled and linked for the M1 and the M2 by Zig's Clang: that it does, and no more
#
# What is missing is unpacked into .cache/arm, by apt-get and pip. Where it cannot be had, one line says so and all is well.
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$PWD/.cache/arm root=$PWD/.cache/arm/root csrc=folovllm/csrc
flags=(-std=c++20 -fPIC -fno-math-errno)
mkdir -p "$work"

skip() {
    echo "make arm: skipped, $1"
    exit 0
}

fetch() { # the cross compiler and the emulator, without installing them
    type apt-get dpkg > "$work/log" 2>&1 && [ "$(uname -m)" = x86_64 ] || return 1
    mkdir -p "$work/debs/partial"
    apt-get install --yes --download-only --no-install-recommends -o Debug::NoLocking=1 \
        -o Dir::Cache::archives="$work/debs" g++-aarch64-linux-gnu qemu-user-static > "$work/log" 2>&1 || return 1
    for package in "$work"/debs/*.deb; do dpkg --extract "$package" "$root"; done
}

if type aarch64-linux-gnu-g++ qemu-aarch64-static > /dev/null 2>&1; then # both, where command -v asks for any
    root=
elif [ ! -x "$root/usr/bin/qemu-aarch64-static" ]; then
    fetch || skip "g++-aarch64-linux-gnu and qemu-user-static cannot be had (apt-get install them)"
fi
python -c "import ziglang" 2> /dev/null || [ -d "$work/zig/ziglang" ] ||
    python -m pip install --quiet --target "$work/zig" ziglang > "$work/log" 2>&1 || skip "the wheel ziglang cannot be had"
export PYTHONPATH="$work/zig${PYTHONPATH:+:$PYTHONPATH}"

cross() {
    if [ -z "$root" ]; then
        aarch64-linux-gnu-g++ "$@"
    else
        LD_LIBRARY_PATH=$root/usr/lib/x86_64-linux-gnu PATH=$root/usr/bin:$PATH \
            "$root/usr/bin/aarch64-linux-gnu-g++" -I "$root/usr/aarch64-linux-gnu/include" "$@"
    fi
}
mac() { python -m ziglang c++ -target aarch64-macos -Wno-vla-cxx-extension "$@"; }

build() { # build NAME COMMAND...: objects, two at a time
    local name=$1 source
    shift
    rm -rf "${work:?}/$name"
    mkdir "$work/$name"
    for source in "$csrc"/*.cpp; do
        while [ "$(jobs -rp | wc -l)" -ge 2 ]; do wait -n; done
        "$@" "${flags[@]}" -c "$source" -o "$work/$name/$(basename "$source" .cpp).o" &
    done
    while [ -n "$(jobs -rp)" ]; do wait -n; done
}

check() { # check CPU EMULATED
    local program=$work/check-$1
    cross -O1 "${flags[@]}" -mcpu="$1" -static -I "$csrc" workshop/arm/check.cpp "$work/$1"/*.o -o "$program"
    "$root${root:+/usr/bin/}qemu-aarch64-static" -cpu "$2" "$program" > "$program.log" || {
        cat "$program.log"
        return 1
    }
    echo "$1, emulated: $(head -n 1 "$program.log"); $(tail -n 1 "$program.log")"
}

for cpu in neoverse-v1 cortex-a72; do build $cpu cross -O2 -mcpu=$cpu; done
check neoverse-v1 max &
first=$!
check cortex-a72 cortex-a72
wait $first
for cpu in apple_m1 apple_m2; do
    build $cpu mac -O1 -mcpu=$cpu
    mac -shared "$work/$cpu"/*.o -o "$work/kernels-$cpu.dylib"
    echo "$cpu: compiled and linked for macOS"
done
