#!/usr/bin/env bash
# Makes (or reuses) the environment in which `./run test-claude` runs the real clients: Claude Code, Codex and
# OpenCode by npm, the OpenAI and Anthropic SDKs by pip.
#
#   scripts/clients-env.sh [DIR]
#
# DIR lies outside the clone, because it is 1 GB and outlives a checkout:
# $LMWARDEN_CLIENTS_ENV, else ${XDG_CACHE_HOME:-~/.cache}/lmwarden/clients-<stamp of the pins>.
#
# Prints DIR on stdout and exits 0 when the environment is ready: DIR/npm/node_modules and DIR/venv. Exits 3 with ONE
# line on stderr that begins with "SKIPPED" when this machine can not have it (no npm, no network, another platform,
# no space): that is a skip, never a failure of ours. The whole output of the installation is in DIR.log.
#
# Why the platform's packages and not the ones that users install: those are wrappers that choose a platform in a
# script at install time, and Claude Code's makes npm pick an old release under an old Node. The native programs need
# no Node, and so no scripts run here at all. The lock has exact versions and hashes and no addresses, so that npm
# takes them from whichever registry this machine uses.
set -u

readonly SKIP=3 FREE_KIB_NEEDED=$((3 * 1024 * 1024))
here=$(cd "$(dirname "$0")/.." && pwd)
requirements=$here/requirements/clients.txt
packages=$here/tests/clients/npm
stamp=$(cat "$0" "$requirements" "$packages/package.json" "$packages/package-lock.json" | sha256sum | cut -c1-12)
dir=${1:-${LMWARDEN_CLIENTS_ENV:-${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/lmwarden/clients-$stamp}}
log=$dir.log

skip() {
  echo "SKIPPED test-claude: $1 (details: $log)" >&2
  exit $SKIP
}

mkdir -p "$(dirname "$dir")" || { echo "SKIPPED test-claude: can not create $(dirname "$dir")" >&2; exit $SKIP; }

# Two runs at once would install into the same directory: the second waits for the first.
exec 9>"$dir.lock"
flock 9

# The stamp is written last. It names what the environment was made from, so a changed pin makes a new one.
if [ "$(cat "$dir/.stamp" 2>/dev/null)" = "$stamp" ]; then
  echo "$dir"
  exit 0
fi

: >"$log"
[ "$(uname -sm)" = "Linux x86_64" ] || skip "the clients are installed on Linux x86_64 only, this is $(uname -sm)"
grep -qw avx2 /proc/cpuinfo || skip "the clients' programs need AVX2, which this processor does not have"
command -v npm >/dev/null || skip "npm is not on the PATH"
python=$(command -v python3.11) || skip "python3.11 is not on the PATH"
[ "$(df -Pk "$(dirname "$dir")" | awk 'NR==2 {print $4}')" -ge $FREE_KIB_NEEDED ] || skip "less than 3 GiB are free at $(dirname "$dir")"
if [ -e "$dir" ] && [ ! -e "$dir/npm/package.json" ]; then
  skip "$dir exists and was not made by this script; set LMWARDEN_CLIENTS_ENV to another place"
fi

echo "test-claude: installing the clients into $dir (once; about a minute)" >&2
mkdir -p "$dir/npm" && cp "$packages/package.json" "$packages/package-lock.json" "$dir/npm/" ||
  skip "$dir can not be written"

npm ci --prefix "$dir/npm" --ignore-scripts --no-audit --no-fund >>"$log" 2>&1 ||
  skip "the clients could not be installed by npm"

{
  "$python" -m venv --clear "$dir/venv" &&
  "$dir/venv/bin/pip" install --require-hashes -r "$requirements"
} >>"$log" 2>&1 || skip "the SDKs could not be installed by pip"

# A program that does not start on this system fails here, and not in the middle of a test.
modules=$dir/npm/node_modules
for program in \
  "$modules/@anthropic-ai/claude-code-linux-x64/claude" \
  "$modules/codex-linux-x64/vendor/x86_64-unknown-linux-musl/bin/codex" \
  "$modules/opencode-linux-x64/bin/opencode"; do
  HOME=$dir/home "$program" --version >>"$log" 2>&1 </dev/null || skip "$program does not start"
done
rm -rf "$dir/home"

echo "$stamp" >"$dir/.stamp"
echo "$dir"
