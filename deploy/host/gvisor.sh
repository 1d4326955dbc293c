#!/usr/bin/env bash
# Installs gVisor and registers it with the Docker engine of this machine as the runtime
# `runsc`, for the tests that run sandboxes on it. Idempotent, and silent when there is
# nothing to do. The engine is told to read its settings again; nothing of it restarts.
#
# Exits with 3, and says why, where gVisor cannot be had: those tests are then left out.
set -euo pipefail
settings=/etc/docker/daemon.json

say() { printf 'gvisor: %s\n' "$*" >&2; }
without() {
    say "****************************************************************"
    say "$*"
    say "The tests of sandboxes on gVisor are LEFT OUT."
    say "****************************************************************"
    exit 3
}
as_root() { if (( EUID == 0 )); then "$@"; else sudo "$@"; fi; }

is_registered() { docker info --format '{{json .Runtimes}}' 2>/dev/null | grep -q '"runsc"'; }

install_runsc() {
    command -v runsc >/dev/null && return
    command -v apt-get >/dev/null || without "runsc is not installed, and there is no apt-get to install it with"
    say "installing the Debian package runsc"
    local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300)
    as_root "${apt[@]}" install -y --no-install-recommends runsc >/dev/null 2>&1 ||
        { as_root "${apt[@]}" update && as_root "${apt[@]}" install -y --no-install-recommends runsc; } >/dev/null 2>&1 ||
        without "the Debian package runsc cannot be installed"
}

register() {
    local arguments='["--network=none"]' text='{}' merged pid
    # Releases before systrap choose KVM or ptrace; the second works everywhere.
    [[ $(runsc --version) != *' 0.0~'* ]] || arguments='["--network=none", "--platform=ptrace"]'
    [[ ! -s $settings ]] || text=$(as_root cat "$settings")
    merged=$(jq --arg path "$(command -v runsc)" --argjson arguments "$arguments" \
        '.runtimes.runsc = {path: $path, runtimeArgs: $arguments}' <<< "$text") ||
        without "$settings is not JSON"
    say "registering runsc in $settings"
    as_root mkdir -p "${settings%/*}"
    as_root tee "$settings" <<< "$merged" >/dev/null
    pid=$(pgrep -x dockerd | head -n 1) || without "the engine does not run on this machine"
    as_root kill -HUP "$pid"
    local waited
    for (( waited = 0; waited < 100; waited++ )); do
        is_registered && return
        sleep 0.1
    done
    without "the engine did not take $settings up"
}

is_registered && exit 0
[[ -z ${DOCKER_HOST:-} ]] || without "the engine at DOCKER_HOST has no runtime runsc"
(( EUID == 0 )) || command -v sudo >/dev/null || without "registering runsc needs root, and there is no sudo here"
install_runsc
register
