#!/usr/bin/env bash
# Build the Dockerfile on a stand-in base, run the image, and check what it promises. No container engine is needed: buildah
# works by chroot, as root. Where there is no builder this says so and exits with 77, which is not a pass.
#
# Stood in for: the base image, by a Debian with Python and its headers under the base's name; the CUDA build of torch,
# by whatever build pip finds here; libcuda, by an empty library to link against. No GPU is used.
set -euo pipefail
cd "$(dirname "$0")/.."

for tool in buildah mmdebstrap; do
    if ! command -v "$tool" > /dev/null; then
        echo "SKIPPED image test: no $tool here (Debian: apt-get install buildah mmdebstrap). Nothing was checked." >&2
        exit 77
    fi
done
if [ "$(id -u)" != 0 ]; then
    echo "SKIPPED image test: building without an engine takes root. Nothing was checked." >&2
    exit 77
fi

work=$(mktemp -d "${TMPDIR:-/tmp}/tunnel-bench-image.XXXXXX")
chmod 755 "$work"
driver=overlay # whole copies of every layer, vfs, only where the kernel gives no overlay
buildah --root "$work/storage" --runroot "$work/run" --storage-driver overlay info > /dev/null 2>&1 || driver=vfs
box() { buildah --root "$work/storage" --runroot "$work/run" --storage-driver "$driver" "$@"; }
trap 'box rm --all > /dev/null 2>&1 || true; rm -rf --one-file-system "$work"' EXIT
passed=0 failed=0
check() { # check NAME COMMAND...: the command's exit code is the verdict
    if "${@:2}"; then passed=$((passed + 1)) && echo "ok      $1"; else failed=$((failed + 1)) && echo "FAILED  $1"; fi
}

base=$(sed -n 's/^ARG BASE=//p' Dockerfile)
base=${base%@*} # the stand-in has another digest
suite=${base##*-}
echo "== base: a stand-in for $base, Debian $suite with its own Python; no compiler, no C headers, as on the slim base"
# The slim base has Python's headers and no C library's: the package that brings the first would bring the second.
blank=$(box from scratch)
stand=$(box mount "$blank")
# shellcheck disable=SC2016  # $1 is mmdebstrap's to fill in
mmdebstrap --quiet --variant=apt --format=directory --dpkgopt=force-unsafe-io --include=python3,python3-pip \
    --customize-hook='chroot "$1" sh -c "cd /tmp && apt-get download -qq libpython3.11-dev"' \
    --customize-hook='dpkg-deb -x "$1"/tmp/libpython3*.deb "$1/tmp/h" && cp -r "$1/tmp/h/usr/include" "$1/usr/"' \
    --customize-hook='rm -rf "$1"/tmp/* "$1"/usr/lib/python3*/EXTERNALLY-MANAGED && ln -s python3 "$1/usr/bin/python"' \
    "$suite" "$stand"
check "the stand-in has no compiler" test ! -e "$stand/usr/bin/gcc"
check "nor the C library's headers" test ! -e "$stand/usr/include/stdio.h"
box commit --quiet --rm "$blank" "$base" > /dev/null

# What pip needs to reach its packages from here is mounted while building and must not stay in the image.
python3 - "$work/pip.conf" > "$work/mounts" << 'PYTHON'
import ast, pathlib, subprocess, sys
ask = [sys.executable, "-m", "pip", "config", "list"]
settings = {}
for line in subprocess.run(ask, capture_output=True, text=True, check=True).stdout.splitlines():
    key, _, value = line.partition("=")
    settings[key.rpartition(".")[2]] = ast.literal_eval(value)
pathlib.Path(sys.argv[1]).touch(mode=0o600)  # it may hold a password
pathlib.Path(sys.argv[1]).write_text("[global]\n" + "".join(f"{k} = {v}\n" for k, v in settings.items()))
print(f"{sys.argv[1]}:/etc/pip.conf:ro")
for word in dict.fromkeys(word for value in settings.values() for word in value.split()):
    path = pathlib.Path(word.removeprefix("file://"))
    if path.is_absolute() and path.exists():
        path = path.parent if word.startswith("file://") else path  # an index points to files beside itself
        print(f"{path}:{path}:ro")
PYTHON
mapfile -t mounts < <(sed 's/^/--volume=/' "$work/mounts")

echo "== build: the Dockerfile on the stand-in, with pip's settings of this machine mounted"
commit=0123456789abcdef0123456789abcdef01234567 # any: what counts is that the records name it
box build --quiet --isolation chroot --pull-never "${mounts[@]}" --build-arg BASE="$base" \
    --build-arg COMMIT="$commit" --tag tunnel-bench . > "$work/build.log" 2>&1 || { tail -n 40 "$work/build.log" && exit 1; }
image=$(box from --pull-never tunnel-bench)
root=$(box mount "$image")
box inspect --type image tunnel-bench > "$work/image.json"
setting() { # one setting of the image, a line for each of its values
    python3 -c 'import json, sys
value = json.load(open(sys.argv[1]))["OCIv1"]["config"][sys.argv[2]]
print(*([value] if isinstance(value, str) else value), sep="\n")' "$work/image.json" "$1"
}
user=$(setting User)
mapfile -t entry < <(setting Entrypoint)
mapfile -t words < <(setting Cmd)
inside() { box run --isolation chroot "$@"; }

echo "== run: as user $user, on the CPU"
mkdir "$work/results" "$work/closed"
chown "$user" "$work/results"
inside --volume "$work/results:/results" "$image" "${entry[@]}" run --preset smoke --arch transformer mlp --task hmm \
    > "$work/run.log" 2>&1 || cat "$work/run.log"
cat "$work/run.log"
inside "$image" "${entry[@]}" "${words[@]}" --arch mlp --task bijection --set steps=2 sequences=16 \
    > "$work/default.log" 2>&1 || cat "$work/default.log"
python3 -c 'import re
page = open("docs/extending.md").read()
print(next(code for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "@mixer(\"decay\"" in code), end="")' \
    > "$work/my_model.py" # the mixer of ten lines
inside --volume "$work/results:/results" --volume "$work/my_model.py:/home/bench/my_model.py:ro" "$image" "${entry[@]}" \
    run --preset quick --arch ./my_model.py --task hmm --set steps=20 warmup=5 > "$work/mine.log" 2>&1 || cat "$work/mine.log"
inside --volume "$work/results:/results" "$image" "${entry[@]}" board --html /results/site > "$work/board.log" 2>&1 || cat "$work/board.log"
# shellcheck disable=SC2016  # the inner shell takes buildah's own remarks away, and nothing else
inside --volume "$work/closed:/results" "$image" sh -c '"$@" 2>&1' sh "${entry[@]}" "${words[@]}" \
    > "$work/closed.log" 2> /dev/null && code=0 || code=$?

records() { find "$work/results/hmm" -name '*.json'; }
check "the user is a number and not root" test "${user%%:*}" -gt 0
check "three records lie in the mounted folder" test "$(records | wc -l)" = 3
check "one is of a file from outside, whose text is kept" cmp "$work/my_model.py" "$(find "$work/results/hmm" -name '*.arch.py')"
check "its row is marked" grep -q "decay (external" "$work/mine.log"
check "they belong to the image's user" test -z "$(find "$work/results/hmm" ! -uid "${user%%:*}")"
check "they name the commit" test "$(records | xargs grep -l "\"commit\": \"$commit\"" | wc -l)" = 3
check "the leaderboard is there" grep -q "| transformer" "$work/results/leaderboard.md"
check "the page is there, with its library" test -s "$work/results/site/index.html" -a -s "$work/results/site/assets/vega.min.js"
check "the table is printed" grep -q "hmm: preset smoke, posterior supervision, cpu" "$work/run.log"
check "without arguments and without a GPU it says so and takes the quick preset" \
    grep -q "preset quick, because there is no CUDA device in use" "$work/default.log"
check "a folder that is not writable ends it with 2" test "$code" = 2
check "and with one line" grep -qx "bench: cannot write to /results: Permission denied.*" "$work/closed.log"
check "which is the only one" test "$(wc -l < "$work/closed.log")" = 1

echo "== Triton: its launcher, compiled in the image by the image's user against an empty libcuda"
check "Triton's launcher compiles" inside --env TRITON_LIBCUDA_PATH=/home/bench "$image" sh -c '
    gcc -shared -o /home/bench/libcuda.so.1 -x c /dev/null
    python -c "from triton.backends.nvidia.driver import CudaUtils; CudaUtils()" 2> /home/bench/said
    find "$TRITON_CACHE_DIR" -name "cuda_utils*.so" | grep -q . || { cat /home/bench/said; exit 1; }'

echo "== nothing of this machine stayed in the image"
left() { # what was mounted must be absent, empty or, as certificates are, the base's own
    while IFS=: read -r outer inner _; do
        if [ -d "$outer" ]; then
            [ -z "$(ls -A "$root$inner" 2> /dev/null)" ] || { echo "$inner stayed" && return 1; }
        elif [ -s "$root$inner" ]; then
            ! cmp -s "$outer" "$root$inner" || { echo "$inner stayed" && return 1; }
        fi
    done < "$work/mounts"
}
check "no pip settings, packages or certificates" left
check "no variable but the Dockerfile's" diff <(setting Env | sed 's/=.*//' | grep -vx PATH | sort) \
    <(grep -oE '^(ENV|   ) +[A-Z_]+=' Dockerfile | grep -oE '[A-Z_]+' | grep -vx ENV | sort)
check "no source but what .dockerignore lets in" test -z "$(find "$root/opt/tunnel-bench" -maxdepth 1 \
    \( -name '.*' -o -name results -o -name tests -o -name leaderboard \) ! -path "$root/opt/tunnel-bench")"

echo "Stood in for: the base $base, the CUDA build of torch, libcuda. No GPU was used, and no container engine."
echo "$passed passed, $failed failed"
test "$failed" = 0
