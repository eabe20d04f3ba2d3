#!/bin/sh
# Installs what the tests start: redis-server, a browser, and for some of them openssl and faketime. Where it may not or
# cannot, it says in one line how to, and leaves the rest to the tests.
set -u

[ "${HEADGATE_SKIP_REDIS:-}" != 1 ] || exit 0

has() { command -v "$1" >/dev/null 2>&1; }

missing() {
  [ -n "${HEADGATE_REDIS_SERVER:-}" ] || has redis-server || has valkey-server || echo redis-server
  has openssl || echo openssl
  # On other systems it cannot step the clock of a server.
  [ "$(uname)" != Linux ] || has faketime || echo faketime
  has chromium || has chromium-browser || has google-chrome || echo chromium
}

# What Debian calls a package, as the others call it.
package() {
  case $1 in
    redis-server) echo redis ;;
    faketime) echo libfaketime ;;
    *) echo "$1" ;;
  esac
}

with_apt() {
  # Debian starts a package's service on the spot, unless this file forbids it, and then at every boot.
  policy=/usr/sbin/policy-rc.d
  if [ ! -e $policy ]; then
    trap '$root rm -f $policy' EXIT
    trap 'exit 1' HUP INT TERM
    $root sh -c "printf '#!/bin/sh\nexit 101\n' >$policy && chmod 755 $policy"
  fi
  $root apt-get -qq -o Acquire::Retries=1 -o Acquire::http::Timeout=20 update
  for name in $(missing); do
    $root DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=120 install --no-install-recommends "$name"
    [ "$name" != redis-server ] || ! has systemctl || $root systemctl disable redis-server
  done
}

with() {
  for name in $(missing); do
    "$@" "$(package "$name")" || { [ "$name" = redis-server ] && "$@" valkey; }
  done
}

install() {
  if has brew; then
    with brew install --quiet
    return
  fi
  if [ "$(id -u)" = 0 ]; then
    root=env
  elif has sudo && sudo -n true; then
    root='sudo -n env'
  else
    return
  fi
  if has apt-get; then
    with_apt
  elif has apk; then
    with $root apk add --quiet
  elif has dnf; then
    with $root dnf install --quiet --assumeyes
  fi
}

[ -n "$(missing)" ] || exit 0
install >/dev/null 2>&1
left=$(missing | tr '\n' ' ')
[ -z "$left" ] || echo "not installed: ${left}- apt-get install $left(or with brew, apk, dnf: redis openssl libfaketime chromium)" >&2
exit 0
