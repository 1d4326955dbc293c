#!/usr/bin/env bash
# Prepares this machine (Debian 12) for Toolhost: installs the system packages that
# are missing, saying first which, and starts a Docker engine if none answers.
# Idempotent, and silent when there is nothing to do. It never starts an engine when
# DOCKER_HOST is set, and `make clean-host` stops only an engine that was started here.
# Arguments are further packages to install, whose programs have the same names.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
state=$root/.toolhost
pid_file=$state/dockerd.pid
log_file=$state/dockerd.log
start_timeout_s=60
further=("$@")

say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

as_root() {
    if (( EUID == 0 )); then "$@"; else sudo "$@"; fi
}

require_root_for() {
    (( EUID == 0 )) || command -v sudo >/dev/null || die "$1 needs root, and there is no sudo here"
}

has() { command -v "$1" >/dev/null || [[ -x /usr/sbin/$1 || -x /sbin/$1 ]]; }

engine_answers() {
    # The socket is asked directly where possible: a tenth of the time of the client.
    if [[ -z ${DOCKER_HOST:-} && -w /var/run/docker.sock ]] && has curl; then
        [[ $(curl -s --max-time 10 --unix-socket /var/run/docker.sock http://localhost/_ping) == OK ]]
    else
        timeout 10 docker version --format '{{.Server.Version}}' >/dev/null 2>&1
    fi
}

missing_packages() {
    local pair
    for pair in git:git curl:curl jq:jq ps:procps flock:util-linux \
        losetup:mount mkfs.ext4:e2fsprogs mmdebstrap:mmdebstrap docker:docker.io promtool:prometheus \
        pgbouncer:pgbouncer; do
        has "${pair%%:*}" || echo "${pair#*:}"
    done
    for pair in "${further[@]}"; do has "$pair" || echo "$pair"; done
    has docker-compose || docker compose version >/dev/null 2>&1 || echo docker-compose
    compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null || echo postgresql-15
    if [[ -z ${DOCKER_HOST:-} ]] && ! engine_answers; then
        has dockerd || echo docker.io
        has iptables || echo iptables
    fi
}

# Debian creates and starts a cluster of its own with the server's package. Toolhost
# keeps a private one, so the package is told not to, before it is installed.
forbid_default_cluster() {
    local folder=/etc/postgresql-common
    local main=$folder/createcluster.conf drop_in=$folder/createcluster.d/toolhost.conf
    if [[ -e $main ]] && ! grep -q '^include_dir' "$main"; then
        if ! grep -q '^create_main_cluster' "$main"; then
            printf '\n# Set by Toolhost.\ncreate_main_cluster = false\n' | as_root tee -a "$main" >/dev/null
        fi
    else
        as_root mkdir -p "$folder/createcluster.d"
        printf '# Set by Toolhost: it keeps a private cluster.\ncreate_main_cluster = false\n' |
            as_root tee "$drop_in" >/dev/null
    fi
}

install_missing() {
    local packages
    mapfile -t packages < <(missing_packages | sort -u)
    (( ${#packages[@]} )) || return 0
    require_root_for "installing ${packages[*]}"
    has apt-get || die "please install what these Debian packages hold: ${packages[*]}"
    say "installing these Debian packages: ${packages[*]}"
    [[ " ${packages[*]} " != *" postgresql-15 "* ]] || forbid_default_cluster
    local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300)
    mkdir -p "$state"
    if ! { as_root "${apt[@]}" update && as_root "${apt[@]}" install -y --no-install-recommends "${packages[@]}"; } \
        > "$state/apt.log" 2>&1; then
        tail -n 20 "$state/apt.log" >&2
        die "the installation failed (all of its output: $state/apt.log)"
    fi
}

wait_for_engine() {
    local waited
    for (( waited = 0; waited < start_timeout_s * 5; waited++ )); do
        if engine_answers; then return 0; fi
        "$@" || return 1
        sleep 0.2
    done
    return 1
}

mount_cgroups_if_none() {
    if ! grep -q '[[:space:]]cgroup2\?[[:space:]]' /proc/mounts; then
        say "mounting the control groups on /sys/fs/cgroup (the machine has none mounted)"
        as_root mount -t cgroup2 none /sys/fs/cgroup
    fi
}

is_our_engine() {
    [[ -r $pid_file ]] || return 1
    local pid
    pid=$(< "$pid_file")
    [[ $pid =~ ^[0-9]+$ && -r /proc/$pid/comm && $(< "/proc/$pid/comm") == dockerd ]]
}

# An engine that was never stopped leaves the state of its containers in /run/docker.
# Where /run outlives a boot, that state names processes of before it, and gVisor's
# clearing away ends them by their number alone: whoever has it now, the new engine too.
forget_dead_containers() {
    ! pgrep_dockerd && ! pgrep -f 'containerd-shim.* -namespace moby' >/dev/null || return 0
    as_root rm -rf --one-file-system /run/docker/runtime-* /run/docker/containerd/daemon/io.containerd.runtime.v*
}

start_engine() {
    mkdir -p "$state"
    is_our_engine || rm -f "$pid_file"
    forget_dead_containers
    mount_cgroups_if_none
    local options=(--pidfile "$pid_file")
    (( EUID == 0 )) || options+=(--group "$(id -gn)")
    # Sandboxes have no network, so an engine without a bridge will do where the
    # kernel has no netfilter.
    if ! as_root iptables -w -t nat -L -n >/dev/null 2>&1; then
        say "iptables does not work here: the engine gets no bridge network (sandboxes need none)"
        options+=(--bridge=none --iptables=false --ip6tables=false)
    fi
    say "starting a Docker engine (log: $log_file; make clean-host stops it)"
    # A session of its own and no inherited descriptors: Ctrl-C and the end of make
    # must not reach it, and it must not hold a lock or a pipe of ours open.
    as_root setsid --fork dockerd "${options[@]}" < /dev/null > "$log_file" 2>&1 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&-
    sleep 0.5
    if ! wait_for_engine pgrep_dockerd; then
        tail -n 20 "$log_file" >&2
        die "the Docker engine did not start (all of its log: $log_file)"
    fi
}

pgrep_dockerd() { pgrep -x dockerd >/dev/null; }

ensure_engine() {
    if engine_answers; then return 0; fi
    [[ -z ${DOCKER_HOST:-} ]] || die "no Docker engine answers at DOCKER_HOST=$DOCKER_HOST"
    if (( EUID != 0 )) && [[ -S /var/run/docker.sock && ! -w /var/run/docker.sock ]] &&
        sudo -n curl -s --max-time 10 --unix-socket /var/run/docker.sock http://localhost/_ping >/dev/null 2>&1; then
        die "a Docker engine runs, but $(id -un) may not use it: sudo usermod -aG docker $(id -un), then log in again"
    fi
    require_root_for "starting a Docker engine"
    if [[ -d /run/systemd/system ]]; then
        say "starting the docker service"
        as_root systemctl start docker
        wait_for_engine true || die "the docker service does not answer: journalctl -u docker"
    else
        start_engine
    fi
}

install_missing
if ! engine_answers; then
    mkdir -p "$state"
    exec 9>"$state/setup.lock"
    flock 9
    ensure_engine
fi
