#!/bin/sh
# Runs as root inside the new image, after its packages are installed: adds what
# Debian does not package, then removes what a sandbox must not or need not hold.
set -eu
umask 022

# How the building machine reaches its package index, where it has said so.
if [ -s /tmp/build/ca.crt ]; then
    export PIP_CERT=/tmp/build/ca.crt SSL_CERT_FILE=/tmp/build/ca.crt
    export REQUESTS_CA_BUNDLE=/tmp/build/ca.crt CURL_CA_BUNDLE=/tmp/build/ca.crt
    export NODE_EXTRA_CA_CERTS=/tmp/build/ca.crt npm_config_cafile=/tmp/build/ca.crt
    unset SSL_CERT_DIR
fi
if [ -e /tmp/build/pip.conf ]; then
    sed '/^ *cert *=/d' /tmp/build/pip.conf > /tmp/build/pip.ini
    export PIP_CONFIG_FILE=/tmp/build/pip.ini
fi
unset PIP_FIND_LINKS

# Only wheels, and nothing that is not named and pinned in the list.
python3 -m pip install --quiet --no-cache-dir --root-user-action=ignore --break-system-packages \
    --only-binary :all: --no-deps -r /tmp/build/python-packages.txt
python3 -m pip check
python3 -m pip download --quiet --no-cache-dir --only-binary :all: --no-deps \
    -d /opt/toolhost/wheels -r /tmp/build/wheels.txt

# The package's own launcher would start node first; what it launches is enough.
mkdir /tmp/build/node
cp /tmp/build/node-packages.json /tmp/build/node/package.json
cp /tmp/build/node-packages.lock.json /tmp/build/node/package-lock.json
npm ci --prefix /tmp/build/node --cache /tmp/build/npm --ignore-scripts --no-audit --no-fund --loglevel error
install -m 755 /tmp/build/node/node_modules/@esbuild/*/bin/esbuild /usr/local/bin/esbuild

# Python cannot write bytecode at run time, so all of it is compiled here. Test data
# with syntax errors on purpose makes this exit 1.
python3 -m compileall -q -j 0 /usr/lib/python3 /usr/lib/python3.*/ /usr/local/lib/python3.*/ || true

git config --system init.defaultBranch main
git config --system advice.detachedHead false

# The agent is mounted at /.toolhost; the root file system is read-only by then.
mkdir -p /.toolhost /workspace

# No program changes its user here, so none may carry the right to.
find / -xdev -type f -perm /6000 -exec chmod u-s,g-s {} +

rm -rf /tmp/build /root/.cache /root/.config \
    /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/*-old \
    /var/cache/ldconfig/* /var/log/*.log /var/log/apt /var/lib/dpkg/*-old
