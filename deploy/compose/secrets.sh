#!/usr/bin/env bash
# Makes the secrets of docker-compose.yml, each once: passwords for Postgres and for the user
# admin of Grafana, and toolhost.toml with everything that Toolhost keeps secret. Back them up: API keys are worthless without
# keys.pepper. Only the folder's owner may enter it; the containers get the files alone.
#
#   secrets.sh [FOLDER]    default .toolhost/secrets of this checkout
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
folder=${1:-${TOOLHOST_SECRETS:-$root/.toolhost/secrets}}

secret() { od -An -N32 -tx1 /dev/urandom | tr -d ' \n'; }

mkdir -p "$folder"
chmod 700 "$folder"
# Services that are not root read the files.
if [[ ! -e $folder/grafana_password ]]; then
    secret > "$folder/grafana_password"
    chmod 444 "$folder/grafana_password"
fi
if [[ -e $folder/toolhost.toml ]]; then
    echo "secrets: $folder has them already" >&2
    exit 0
fi
password=$(secret)
printf '%s' "$password" > "$folder/postgres_password"
cat > "$folder/toolhost.toml" <<EOF
[database]
url = "postgres://toolhost:$password@postgres/toolhost"

[keys]
pepper = "$(secret)"

[stream_url]
signing_key = "$(secret)"

[audit]
signing_key = "$(secret)"

[internal]
key = "$(secret)"
EOF
chmod 444 "$folder/postgres_password" "$folder/toolhost.toml"
