#!/usr/bin/env bash
# base.sh: a base image with all that the services of docker-compose.yml need of the
# distribution, made from this machine's own apt sources, for where no image can be
# pulled. Prints its name. Made once for each content of this file.
set -euo pipefail
packages=ca-certificates,libgcc-s1,postgresql,prometheus
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
image=toolhost/base:$(sha256sum "$here/base.sh" | cut -c1-12)

if ! docker image inspect "$image" >/dev/null 2>&1; then
    echo "base: making $image from the distribution's packages (a minute or two)" >&2
    codename=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    mapfile -t sources < <(ls /etc/apt/sources.list /etc/apt/sources.list.d/*.list \
        /etc/apt/sources.list.d/*.sources 2>/dev/null)
    as_root=()
    (( EUID == 0 )) || as_root=(sudo)
    "${as_root[@]}" mmdebstrap --quiet --variant=minbase --include="$packages" \
        --aptopt='APT::Install-Recommends "false"' \
        --essential-hook='mkdir -p "$1/etc/postgresql-common" && echo "create_main_cluster = false" > "$1/etc/postgresql-common/createcluster.conf"' \
        "$codename" "$scratch/root.tar" "${sources[@]}" >&2
    docker import "$scratch/root.tar" "$image" >/dev/null
fi
printf '%s\n' "$image"
