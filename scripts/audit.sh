#!/usr/bin/env bash
# Asks the public lists of known vulnerabilities about every locked package: pip-audit about requirements/*.txt, npm
# about the packages of the page and of the clients that tests run. pip-audit is installed once outside the clone.
#
# One line for each lock: how many packages were asked about, and how much is known of them. What could not be asked
# about is no good news: it is said on stderr in a line that begins with "SKIPPED". Exit status 1: something is known;
# 0: nothing is, of what could be asked about. No gate of CI: whether a list can be reached is no fact about a change.
set -u

cd "$(dirname "$0")/.."
python=$(command -v python3.11 || command -v python3)
found=0

skipped() { echo "SKIPPED audit: $*" >&2; }

pip_audit() {
  if [ -n "${LMWARDEN_PIP_AUDIT:-}" ]; then
    echo "$LMWARDEN_PIP_AUDIT"
    return
  fi
  local folder="${XDG_CACHE_HOME:-$HOME/.cache}/lmwarden/audit-1"
  if [ ! -x "$folder/bin/pip-audit" ]; then
    { "$python" -m venv "$folder" && "$folder/bin/python" -m pip install --quiet 'pip-audit==2.10.1'; } >&2 || return 1
  fi
  echo "$folder/bin/pip-audit"
}

# tell LOCK KIND: read a report on stdin; exit status 0: asked, nothing known; 10: something is; else: not (all) asked.
tell() {
  "$python" -c '
import json, sys

lock, kind = sys.argv[1:]
try:
    report = json.load(sys.stdin)
except ValueError:
    report = {}
if kind == "pip":
    packages = report.get("dependencies", [])
    asked = [one for one in packages if "skip_reason" not in one]
    known = [" ".join((one["name"], one["version"], bug["id"])) for one in asked for bug in one["vulns"]]
    total, count = len(packages), len(asked)
else:
    counts = report.get("metadata", {})
    total = count = counts.get("dependencies", {}).get("total", 0)
    known = [" ".join((name, one["severity"])) for name, one in report.get("vulnerabilities", {}).items()]
if count:
    print(f"{lock}: asked about {count} of {total} packages; known: {len(known)}")
for line in known:
    print(f"  {line}")
sys.exit(10 if known else 0 if total and count == total else 3)
' "$@"
}

# judge LOCK STATUS
judge() {
  case "$2" in
  0) ;;
  10) found=1 ;;
  *) skipped "$1: the list of known vulnerabilities could not be asked about all of its packages" ;;
  esac
}

if program=$(pip_audit); then
  for lock in requirements/runtime.txt requirements/dev.txt requirements/page.txt; do
    "$program" --format json --disable-pip --require-hashes --requirement "$lock" 2>/dev/null | tell "$lock" pip
    judge "$lock" "$?"
  done
else
  skipped "requirements/*.txt: pip-audit could not be installed"
fi

if command -v npm >/dev/null; then
  for folder in console-ui tests/clients/npm; do
    (cd "$folder" && npm audit --json --package-lock-only 2>/dev/null) | tell "$folder" npm
    judge "$folder" "$?"
  done
else
  skipped "console-ui, tests/clients/npm: npm is not on the PATH"
fi
exit "$found"
