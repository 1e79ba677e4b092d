#!/usr/bin/env bash
# Builds the console's page (console-ui/) into src/lmwarden/console/static. The result is committed, so that a clone and
# the wheel need no Node.
#
#   scripts/console-build.sh           format and type check, unit tests, build
#   scripts/console-build.sh --check   the same into a folder of its own, and compare: 1 if the committed page is not what
#                                      its source gives
#
# Exits 3 with ONE line on stderr that begins with "SKIPPED" when npm is not there or its packages can not be had.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
static=$root/src/lmwarden/console/static
check=no
case "${1:-}" in
'') ;;
--check) check=yes ;;
*)
  echo "run console: no option '$1'; --check is the only one" >&2
  exit 2
  ;;
esac

export NO_COLOR=1
"$root/scripts/console-modules.sh"
cd "$root/console-ui"
npx --no-install prettier --check --log-level warn .
npx --no-install tsc --noEmit
npx --no-install vitest run --reporter=dot

if [ "$check" = no ]; then
  CONSOLE_OUT=$static npx --no-install vite build --logLevel warn
  exit
fi
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
CONSOLE_OUT=$out/static npx --no-install vite build --logLevel warn
if diff -rq "$out/static" "$static"; then
  echo "the committed page is what its source gives"
else
  echo "run console --check: the committed page is not what console-ui/ gives; run ./run console and commit the result" >&2
  exit 1
fi
