#!/usr/bin/env bash
# Builds the default sandbox image, once for each content of this folder:
#   toolhost/sandbox:<content hash>  and  toolhost/sandbox:latest
# On a base image where one can be had, otherwise from the distribution's packages,
# with the machine's own apt sources. `build.sh --tag` only prints the exact tag.
#
#   TOOLHOST_SANDBOX_BASE  base image to build on (default debian:bookworm-slim)
#   TOOLHOST_PULL=1        the base image may be pulled
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
repository=toolhost/sandbox
# What goes into the image; the seccomp profile and the helper scripts do not.
inputs=(Dockerfile build.sh dpkg.cfg finish.sh packages.txt python-packages.txt wheels.txt
    node-packages.json node-packages.lock.json)

say() { printf 'sandbox-image: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

content_hash() {
    (cd "$here" && sha256sum "${inputs[@]}" && printf '%s\n' "${TOOLHOST_SANDBOX_BASE:-}") |
        sha256sum | cut -c1-12
}

image_exists() { docker image inspect "$1" >/dev/null 2>&1; }

# Prints the base image to build on, or nothing.
find_base() {
    local base=${TOOLHOST_SANDBOX_BASE:-debian:bookworm-slim}
    if image_exists "$base"; then
        printf '%s' "$base"
    elif [[ ${TOOLHOST_PULL:-} == 1 ]] && docker pull --quiet "$base" >/dev/null; then
        printf '%s' "$base"
    elif [[ -n ${TOOLHOST_SANDBOX_BASE:-} ]]; then
        die "there is no image $base here; TOOLHOST_PULL=1 allows pulling it"
    fi
}

# Copies into a folder what finish.sh needs, with the way in which this machine
# reaches its Python package index; finish.sh removes it all from the image.
collect_build_inputs() {
    mkdir -p "$1"
    cp "${inputs[@]/#/$here/}" "$1/"
    cat /etc/pip.conf "$HOME/.config/pip/pip.conf" 2>/dev/null > "$1/pip.conf" || true
    cp "${PIP_CERT:-/etc/ssl/certs/ca-certificates.crt}" "$1/ca.crt" 2>/dev/null || rm -f "$1/ca.crt"
}

build_on_base() {
    say "building $tag on $1"
    local arguments=(--build-arg "BASE=$1") name
    for name in http_proxy https_proxy no_proxy PIP_INDEX_URL; do
        [[ -z ${!name:-} ]] || arguments+=(--build-arg "$name")
    done
    collect_build_inputs "$scratch/context"
    # The classic builder: the buildx plugin is not everywhere. The host's network,
    # because an engine may run without a bridge.
    DOCKER_BUILDKIT=0 docker build --quiet --rm --network host "${arguments[@]}" \
        --tag "$tag" "$scratch/context" >/dev/null
}

# The machine's apt sources for its own release, without third parties: one-line
# and deb822 style, kept apart because one file cannot hold both.
collect_sources() {
    local codename=$1
    cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list 2>/dev/null |
        grep -E "^deb .*[[:space:]]$codename(-updates|-security)?[[:space:]]" \
            > "$scratch/one-line" || true
    local file
    for file in /etc/apt/sources.list.d/*.sources; do
        [[ -e $file ]] || continue
        grep -v '^#' "$file"
        echo
    done | awk -v RS='' -v ORS='\n\n' -v suites="Suites:[^\n]*[ \t]$codename(-updates|-security)?[ \t\n]" \
        '$0 ~ suites && $0 !~ /Enabled: *no/' > "$scratch/deb822"
}

# What the machine has told apt about proxies, certificates and clocks.
collect_apt_options() {
    apt-config dump --no-empty --format '%f "%v";%n' Acquire |
        grep -E '^Acquire::(https?::|Check-|Max-ValidTime|Retries|ForceIPv)' || true
}

# Runs finish.sh inside the new root, then takes this machine's settings out of it.
write_customise_hook() {
    cat > "$1" <<'HOOK'
#!/bin/sh
set -eu
root=$1
cp -r "$TOOLHOST_BUILD_INPUTS" "$root/tmp/build"
HOME=/root TMPDIR=/tmp PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    chroot "$root" sh /tmp/build/finish.sh
rm -f "$root/etc/apt/sources.list" "$root"/etc/apt/sources.list.d/* \
    "$root/etc/apt/apt.conf.d/99mmdebstrap" "$root/etc/resolv.conf" "$root/etc/hostname"
HOOK
    chmod +x "$1"
}

build_from_packages() {
    command -v mmdebstrap >/dev/null || die "mmdebstrap is missing: run make setup"
    local codename packages
    codename=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
    collect_sources "$codename"
    collect_apt_options > "$scratch/apt-options"
    collect_build_inputs "$scratch/inputs"
    write_customise_hook "$scratch/customise"
    packages=$(sed 's/#.*//' "$here/packages.txt" | xargs | tr ' ' ',')

    local sources=()
    [[ -s $scratch/one-line ]] && sources+=("$scratch/one-line")
    [[ -s $scratch/deb822 ]] && sources+=("$scratch/deb822")
    (( ${#sources[@]} )) || die "no apt source for $codename is configured on this machine"

    local changes=() line
    while IFS= read -r line; do
        changes+=(--change "$line")
    done < <(grep -E '^(ENV|WORKDIR|LABEL|CMD) ' "$here/Dockerfile")

    local as_root=()
    (( EUID == 0 )) || as_root=(sudo --preserve-env)
    say "building $tag from $codename packages (no base image here; a few minutes)"
    # Tagged only when all of it went well: a broken pipe must not leave an image.
    local id
    id=$(TOOLHOST_BUILD_INPUTS=$scratch/inputs "${as_root[@]}" mmdebstrap --quiet --variant=minbase --format=tar \
        --dpkgopt="$here/dpkg.cfg" --dpkgopt=force-unsafe-io \
        --aptopt="$scratch/apt-options" --include="$packages" \
        --customize-hook="$scratch/customise" \
        "$codename" - "${sources[@]}" |
        docker import "${changes[@]}" --message "Toolhost sandbox from $codename packages" -)
    docker tag "$id" "$tag"
}

tag=$repository:$(content_hash)
if [[ ${1:-} == --tag ]]; then
    printf '%s\n' "$tag"
    exit
fi

if image_exists "$tag"; then
    docker tag "$tag" "$repository:latest"
    exit
fi

# One builder at a time, over all checkouts; whoever waited finds the image made.
exec 9>"${TMPDIR:-/tmp}/toolhost-sandbox-image-$UID.lock"
flock 9
if ! image_exists "$tag"; then
    docker version >/dev/null 2>&1 || die "no Docker engine answers: run make setup"
    began=$SECONDS
    scratch=$(mktemp -d)
    trap 'rm -rf "$scratch"' EXIT
    base=$(find_base)
    if [[ -n $base ]]; then build_on_base "$base"; else build_from_packages; fi
    size=$(docker image inspect --format '{{.Size}}' "$tag")
    say "built $tag in $((SECONDS - began)) s, $((size / 1000000)) MB"
fi
docker tag "$tag" "$repository:latest"
