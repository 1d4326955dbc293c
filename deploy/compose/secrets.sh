#!/usr/bin/env bash
# Makes the secrets of docker-compose.yml, once: a password for Postgres, and toolhost.toml
# with everything that Toolhost keeps secret. Back them up: API keys are worthless without
# keys.pepper. Only the folder's owner may enter it; the containers get the files alone.
#
#   secrets.sh [FOLDER]    default .toolhost/secrets of this checkout
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
folder=${1:-${TOOLHOST_SECRETS:-$root/.toolhost/secrets}}

secret() { od -An -N32 -tx1 /dev/urandom | tr -d ' \n'; }

mkdir -p "$folder"
chmod 700 "$folder"
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
# Services that are not root read them.
chmod 444 "$folder/postgres_password" "$folder/toolhost.toml"
