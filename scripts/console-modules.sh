#!/usr/bin/env bash
# Installs what the page is built from into console-ui/node_modules, once for each lock file. The lock has exact versions
# and hashes and no addresses; no script of a package runs.
#
# Exits 3 with ONE line on stderr that begins with "SKIPPED" when this machine can not have it.
set -eu

cd "$(dirname "$0")/../console-ui"
stamp=node_modules/.lmwarden-stamp
wanted=$(cat package.json package-lock.json | sha256sum)
[ "$(cat "$stamp" 2>/dev/null || true)" != "$wanted" ] || exit 0
command -v npm >/dev/null || { echo "SKIPPED console: npm is not on the PATH (Node 20 or newer)" >&2; exit 3; }
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! npm ci --ignore-scripts --no-audit --no-fund >"$log" 2>&1; then
  cat "$log" >&2
  echo "SKIPPED console: its packages could not be installed by npm" >&2
  exit 3
fi
echo "$wanted" >"$stamp"
