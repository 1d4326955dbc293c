#!/usr/bin/env bash
# Takes back what Toolhost left on this machine: sandboxes and their volumes, the
# private Postgres cluster if it still runs, and the Docker engine if setup.sh of this
# checkout started it. An engine that somebody else started is left running, and so is
# everything in it that does not carry Toolhost's label.
#
#   clean.sh           all of that
#   clean.sh engine    only the engine that this checkout started
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
state=$root/.toolhost
label=io.toolhost.installation
stop_timeout_s=30

say() { printf 'clean-host: %s\n' "$*" >&2; }

as_root() { if (( EUID == 0 )); then "$@"; else sudo "$@"; fi; }

# is_running PID NAME: the pid was recorded some time ago and may be another's now.
# One that has ended and waits to be reaped has no command line any more.
is_running() {
    [[ $1 =~ ^[0-9]+$ && -r /proc/$1/comm && $(< "/proc/$1/comm") == "$2" ]] &&
        [[ -n $(tr -d '\0' < "/proc/$1/cmdline") ]]
}

# stop PID NAME SIGNAL
stop() {
    local waited
    as_root kill "-$3" "$1"
    for (( waited = 0; waited < stop_timeout_s * 10; waited++ )); do
        is_running "$1" "$2" || return 0
        sleep 0.1
    done
    say "$2 (pid $1) did not stop within $stop_timeout_s s"
    return 1
}

remove_sandboxes() {
    timeout 10 docker version >/dev/null 2>&1 || return 0
    local containers volumes
    mapfile -t containers < <(docker ps -aq --filter "label=$label")
    if (( ${#containers[@]} )); then
        say "removing ${#containers[@]} containers"
        docker rm -f "${containers[@]}" >/dev/null
    fi
    mapfile -t volumes < <(docker volume ls -q --filter "label=$label")
    if (( ${#volumes[@]} )); then
        say "removing ${#volumes[@]} volumes"
        docker volume rm -f "${volumes[@]}" >/dev/null
    fi
}

stop_postgres() {
    local pid_file pid
    while IFS= read -r pid_file; do
        pid=$(as_root head -n 1 "$pid_file")
        is_running "$pid" postgres || continue
        say "stopping the Postgres cluster in ${pid_file%/postmaster.pid}"
        stop "$pid" postgres INT
    done < <(as_root find -L "$state" -maxdepth 4 -name postmaster.pid 2>/dev/null)
}

detach_loop_devices() {
    has_losetup || return 0
    local device file
    while read -r device file; do
        [[ $file == "$state"/* ]] || continue
        say "detaching $device ($file)"
        as_root losetup -d "$device"
    done < <(PATH=$PATH:/sbin:/usr/sbin losetup -l -n -O NAME,BACK-FILE)
}

has_losetup() { PATH=$PATH:/sbin:/usr/sbin command -v losetup >/dev/null; }

stop_our_engine() {
    local pid_file=$state/dockerd.pid pid
    [[ -e $pid_file ]] || return 0
    pid=$(< "$pid_file")
    # Our engine is the one that was told to record itself in this very file.
    if is_running "$pid" dockerd && tr '\0' '\n' < "/proc/$pid/cmdline" | grep -Fxq "$pid_file"; then
        say "stopping the Docker engine that was started here (pid $pid)"
        stop "$pid" dockerd TERM
    fi
    as_root rm -f "$pid_file"
}

if [[ ${1:-all} == all ]]; then
    remove_sandboxes
    stop_postgres
    detach_loop_devices
fi
stop_our_engine
