#!/bin/sh
# Installs what the tests of the PostgreSQL store start: postgresql, and pgbouncer. Where it may not or cannot, it says in
# one line how to, and leaves the rest to the tests.
set -u

[ "${HEADGATE_SKIP_POSTGRES:-}" != 1 ] || exit 0

has() { command -v "$1" >/dev/null 2>&1; }

has_server() {
  [ -n "${HEADGATE_POSTGRES:-}" ] || has initdb || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1
}

missing() {
  has_server || echo postgresql
  has pgbouncer || [ -x /usr/sbin/pgbouncer ] || echo pgbouncer
}

with_apt() {
  # Debian makes a cluster and starts its service on the spot, unless these forbid it, and then at every boot.
  policy=/usr/sbin/policy-rc.d
  if [ ! -e $policy ]; then
    trap '$root rm -f $policy' EXIT
    trap 'exit 1' HUP INT TERM
    $root sh -c "printf '#!/bin/sh\nexit 101\n' >$policy && chmod 755 $policy"
  fi
  $root apt-get -qq -o Acquire::Retries=1 -o Acquire::http::Timeout=20 update
  for name in $(missing); do
    $root DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=120 install --no-install-recommends "$name"
    ! has systemctl || $root systemctl disable "$name"
  done
}

install() {
  if has brew; then
    for name in $(missing); do brew install --quiet "$name"; done
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
    for name in $(missing); do $root apk add --quiet "$name"; done
  elif has dnf; then
    for name in $(missing); do
      [ "$name" != postgresql ] || name=postgresql-server
      $root dnf install --quiet --assumeyes "$name"
    done
  fi
}

[ -n "$(missing)" ] || exit 0
install >/dev/null 2>&1
left=$(missing | tr '\n' ' ')
[ -z "$left" ] || echo "not installed: ${left}- apt-get install $left(or with brew, apk; with dnf: postgresql-server pgbouncer)" >&2
exit 0
