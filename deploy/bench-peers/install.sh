#!/usr/bin/env bash
# Installs what `make bench` compares Toolhost with, each below target/bench-peers with
# everything that it needs, pinned here. Idempotent: what is there in this version stays.
# The bench starts and stops them itself, and leaves out what is not there.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
peers=$here/../../target/bench-peers
python=/usr/bin/python3

say() { printf 'bench-peers: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }
as_root() { if (( EUID == 0 )); then "$@"; else sudo "$@"; fi; }

install_missing() {
    local packages=()
    command -v node >/dev/null || packages+=(nodejs)
    command -v npm >/dev/null || packages+=(npm)
    "$python" -c 'import ensurepip' 2>/dev/null || packages+=(python3-venv)
    (( ${#packages[@]} )) || return 0
    command -v apt-get >/dev/null || die "please install what these Debian packages hold: ${packages[*]}"
    say "installing these Debian packages: ${packages[*]}"
    local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300)
    { as_root "${apt[@]}" update && as_root "${apt[@]}" install -y --no-install-recommends "${packages[@]}"; } >/dev/null
}

# Arguments: name, the files that say what is in it, and the command that puts it there.
# A folder without a mark is one that was left half made.
peer() {
    local folder=$peers/$1 pins
    pins=$(cat "${@:2:$#-2}" | sha256sum)
    if [[ -e $folder/.made && $(< "$folder/.made") == "$pins" ]]; then return 0; fi
    say "installing $1"
    rm -rf "$folder"
    mkdir -p "$folder"
    "${@: -1}" "$folder" "$1" >"$peers/$1.log" 2>&1 || { tail -n 20 "$peers/$1.log" >&2; die "$1 could not be installed"; }
    printf '%s\n' "$pins" > "$folder/.made"
}

python_packages() {
    "$python" -m venv "$1"
    "$1/bin/pip" install --no-input --requirement "$here/$2.txt"
}

node_packages() {
    cp "$here/node-packages.json" "$1/package.json"
    cp "$here/node-packages.lock.json" "$1/package-lock.json"
    npm --prefix "$1" ci --no-audit --no-fund --ignore-scripts
}

install_missing
mkdir -p "$peers"
for name in swe-rex jupyter llm-sandbox; do
    peer "$name" "$here/$name.txt" python_packages
done
peer node "$here/node-packages.json" "$here/node-packages.lock.json" node_packages
say "everything is in $(cd "$peers" && pwd)"
