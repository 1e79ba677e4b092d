#!/usr/bin/env bash
# Finds (or, as root on Debian, installs) what `./run test-page` needs besides Python packages: Chromium, and the page's
# npm packages (for axe, the accessibility checker). Prints the path of the browser.
#
# Exits 3 with ONE line on stderr that begins with "SKIPPED" when this machine can not have it.
set -u

here=$(cd "$(dirname "$0")" && pwd)

browser() {
  for name in "${LMWARDEN_CHROMIUM:-}" chromium chromium-browser google-chrome google-chrome-stable; do
    if [ -n "$name" ] && command -v "$name" 2>/dev/null; then
      return
    fi
  done
  return 1
}

if ! browser >/dev/null && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "test-page: installing Chromium (once)" >&2
  { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends chromium fonts-noto-cjk; } >/dev/null 2>&1
fi
browser >/dev/null || { echo "SKIPPED test-page: there is no Chromium, and it could not be installed" >&2; exit 3; }
"$here/console-modules.sh" >&2 || exit 3
browser
