#!/usr/bin/env bash
# test.sh: builds the images of docker-compose.yml without a network, brings the stack up,
# runs a call through it, looks at what Prometheus sees, and takes everything down. What it
# made is gone afterwards, but for the base image. Grafana is left out: its image cannot be
# made from the distribution's packages.
#
#   test.sh          all of that; needs target/debug/toolhost (or TOOLHOST_BINARY), target/toolhost-agent and the
#                    sandbox image (make compose-test makes them)
#   test.sh --check  only whether the file, and what Grafana is given, is understood
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"

say() { printf 'compose-test: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

if docker compose version >/dev/null 2>&1; then
    compose=(docker compose)
elif command -v docker-compose >/dev/null; then
    compose=(docker-compose)
else
    die "there is neither the plugin \`docker compose\` nor docker-compose (Debian has a package docker-compose)"
fi

place=$(mktemp -d /tmp/toolhost-compose.XXXXXX)
name=toolhost-test-${place##*.}
name=${name,,}
installation=compose-${place##*.}
export COMPOSE_PROJECT_NAME=$name
export TOOLHOST_SECRETS=$place/secrets TOOLHOST_LINK_DIR=$place/run TOOLHOST_INSTALLATION=$installation
export TOOLHOST_TAG=$name TOOLHOST_PORT=0 PROMETHEUS_PORT=0 GRAFANA_PORT=0
export TOOLHOST_BUILD_CONTEXT=$place/image TOOLHOST_DOCKERFILE=Dockerfile.prebuilt
export TOOLHOST_END_SESSIONS_AT_EXIT=true
# The classic builder: the buildx plugin is not everywhere.
export DOCKER_BUILDKIT=0 COMPOSE_DOCKER_CLI_BUILD=0 no_proxy='*'

left_over() {
    docker ps -aq --filter "label=com.docker.compose.project=$name"
    docker volume ls -q --filter "label=com.docker.compose.project=$name"
    docker network ls -q --filter "label=com.docker.compose.project=$name"
    docker ps -aq --filter "label=io.toolhost.installation=$installation"
    docker volume ls -q --filter "label=io.toolhost.installation=$installation"
}

take_down() {
    "${compose[@]}" down --volumes --timeout 60 >/dev/null 2>&1 || true
    # The agent's volume stays with an installation; this one is over.
    docker ps -aq --filter "label=io.toolhost.installation=$installation" | xargs -r docker rm -f >/dev/null
    docker volume ls -q --filter "label=io.toolhost.installation=$installation" | xargs -r docker volume rm >/dev/null
    docker images -q --filter "reference=toolhost/*:$name" | sort -u | xargs -r docker rmi -f >/dev/null
}

finish() {
    local status=$?
    trap - EXIT
    if (( status != 0 )) && [[ ${1:-} != quiet ]]; then
        "${compose[@]}" logs --no-color --tail=40 >&2 || true
    fi
    take_down
    rm -rf "$place"
    exit "$status"
}

deploy/compose/secrets.sh "$TOOLHOST_SECRETS"
mkdir -p "$TOOLHOST_BUILD_CONTEXT" "$TOOLHOST_LINK_DIR"
if [[ ${1:-} == --check ]]; then
    trap 'rm -rf "$place"' EXIT
    "${compose[@]}" --profile dashboards config --quiet
    # Grafana runs in no test; at least what it is to read is YAML, by the one parser that is here anyway.
    for file in deploy/grafana/provisioning/*/*.yml; do
        { printf 'version: "3.7"\nservices: {nothing: {image: nothing}}\nx-file:\n'; sed 's/^/  /' "$file"; } > "$place/file.yml"
        "${compose[@]}" -f "$place/file.yml" config --quiet || die "$file is no YAML"
    done
    say "docker-compose.yml is understood by $("${compose[@]}" version --short)"
    exit 0
fi
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

BASE_IMAGE=$(deploy/compose/base.sh)
export BASE_IMAGE
cp "${TOOLHOST_BINARY:-target/debug/toolhost}" "$TOOLHOST_BUILD_CONTEXT/toolhost"
cp target/toolhost-agent "$TOOLHOST_BUILD_CONTEXT/agent"
cp deploy/toolhost/{Dockerfile.prebuilt,healthy} "$TOOLHOST_BUILD_CONTEXT/"
say "building the images on $BASE_IMAGE"
"${compose[@]}" build >/dev/null
say "starting the services"
"${compose[@]}" up -d

# until_true SECONDS WHAT COMMAND…
until_true() {
    local limit=$1 what=$2 since=$SECONDS
    shift 2
    until "$@"; do
        (( SECONDS - since < limit )) || die "$what did not come true in $limit s"
        sleep 0.5
    done
}
healthy() {
    local id
    id=$("${compose[@]}" ps -q "$1")
    [[ -n $id && $(docker inspect --format '{{.State.Health.Status}}' "$id") == healthy ]]
}
for service in postgres api worker; do
    until_true 180 "$service is healthy" healthy "$service"
done

say "running a call"
admin() { "${compose[@]}" exec -T api toolhost admin "$@"; }
tenant=$(admin tenant create acme | tr -d '\r')
key=$(admin key create --tenant "$tenant" --name demo | grep -o 'th_[A-Za-z0-9_]*' | head -n 1)
api=$("${compose[@]}" port api 8080)
answer=$(curl -sS --fail-with-body --max-time 90 "http://$api/v1/calls" -H "Authorization: Bearer $key" \
    -H 'Content-Type: application/json' \
    -d '{"tool": "bash", "arguments": {"command": "echo hello from $(whoami)"}, "wait_ms": 60000}')
[[ $(jq -r .status <<< "$answer") == succeeded && $answer == *'hello from tool'* ]] || die "the call: $answer"

say "keeping an artifact"
# More than is gathered in memory, and read by the other process.
answer=$(curl -sS --fail-with-body --max-time 90 "http://$api/v1/calls" -H "Authorization: Bearer $key" \
    -H 'Content-Type: application/json' \
    -d '{"tool": "bash", "arguments": {"command": "seq 1 1000000"}, "wait_ms": 60000}')
artifact=$(jq -er .result.truncated.artifact_id <<< "$answer") || die "no artifact: $answer"
last=$(curl -sS --fail-with-body --max-time 90 "http://$api/v1/artifacts/$artifact/content" -H "Authorization: Bearer $key" | tail -n 1)
[[ $last == 1000000 ]] || die "the artifact ends with: $last"

say "putting a wheel"
# By the API, beside and into folders that the worker has made, and read by the worker; larger than is gathered in memory.
session=$(curl -sS --fail-with-body --max-time 90 "http://$api/v1/sessions" -H "Authorization: Bearer $key" -X POST | jq -er .id)
call() {
    curl -sS --fail-with-body --max-time 90 "http://$api/v1/sessions/$session/calls" -H "Authorization: Bearer $key" \
        -H 'Content-Type: application/json' -d "$(jq -n --arg code "$1" --argjson packages "$2" \
            '{tool: "python_execute", arguments: {code: $code, packages: $packages}, wait_ms: 60000}')"
}
answer=$(call 'import os, zipfile
with zipfile.ZipFile("wheel", "w") as wheel:
    wheel.writestr("tiny.py", "answer = 42")
    wheel.writestr("tiny_data.bin", os.urandom(6_000_000))
    info = "tiny-1.0.dist-info/"
    wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
    wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    wheel.writestr(info + "RECORD", "tiny.py,,\ntiny_data.bin,,\n" + "".join(f"{info}{name},,\n" for name in ("METADATA", "WHEEL", "RECORD")))' '[]')
[[ $(jq -r .result.is_error <<< "$answer") == false ]] || die "no wheel was made: $answer"
curl -sS --fail-with-body --max-time 90 "http://$api/v1/sessions/$session/files?path=wheel" -H "Authorization: Bearer $key" -o "$place/wheel"
curl -sS --fail-with-body --max-time 90 -T "$place/wheel" "http://$api/v1/wheels/tiny-1.0-py3-none-any.whl" -H "Authorization: Bearer $key" >/dev/null \
    || die "the API keeps no wheels"
answer=$(call 'import tiny; tiny.answer' '["tiny"]')
[[ $(jq -r .result.structured.result <<< "$answer") == 42 ]] || die "the wheel is not installed: $answer"

say "asking Prometheus"
prometheus=$("${compose[@]}" port prometheus 9090)
# Both processes are scraped, and the worker has counted the call.
scraped() {
    local query=$1 least=$2
    curl -sS --max-time 10 --get "http://$prometheus/api/v1/query" --data-urlencode "query=$query" |
        jq -e --argjson least "$least" '[.data.result[].value[1] | tonumber] | add >= $least' >/dev/null
}
until_true 90 "Prometheus scrapes the API and the worker" scraped 'up{job="toolhost"}' 2

say "nothing runs with more than it needs"
for service in postgres api worker prometheus; do
    id=$("${compose[@]}" ps -q "$service")
    [[ $(docker inspect --format '{{.HostConfig.CapDrop}} {{.HostConfig.ReadonlyRootfs}}' "$id") == '[ALL] true' ]] ||
        die "$service keeps capabilities or may write to its image"
    ! docker inspect "$id" | grep -qF "$(cat "$TOOLHOST_SECRETS/postgres_password")" || die "$service shows a secret"
done

say "taking it down"
take_down
trap 'rm -rf "$place"' EXIT
left=$(left_over)
[[ -z $left ]] || die "left over: $left"
say "passed"
