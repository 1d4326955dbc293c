#!/usr/bin/env bash
# with-image.sh COMMAND…: runs a command (compiling, mostly processor time) while the
# sandbox image is made in the background (mostly network and disk), so that a first
# `make test` pays for the longer of the two. Fails if either does.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
mkdir -p "$root/.toolhost"
log=$root/.toolhost/sandbox-image.log

# A process group of its own, so that all of a build can be ended with this script.
set -m
"$root/deploy/sandbox/build.sh" > "$log" 2>&1 < /dev/null &
image=$!
set +m
trap 'kill -TERM -- "-$image" 2>/dev/null || true' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

"$@"

if kill -0 "$image" 2>/dev/null; then
    echo "waiting for the sandbox image (log: $log)" >&2
fi
if wait "$image"; then
    cat "$log" >&2
else
    tail -n 40 "$log" >&2
    echo "the sandbox image could not be built (all of its log: $log)" >&2
    exit 1
fi
