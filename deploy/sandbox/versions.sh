#!/usr/bin/env bash
# Prints docs/sandbox-image.md: the versions that a user of the default sandbox image
# sees, asked of the programs themselves inside the built image.
#   deploy/sandbox/versions.sh [IMAGE] > docs/sandbox-image.md
set -euo pipefail
image=${1:-toolhost/sandbox:latest}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

cat <<'TEXT'
# The default sandbox image

What a session finds when it names no image of its own. This page is printed by
`deploy/sandbox/versions.sh` from the built image; the image is built by
`make sandbox-image` from `deploy/sandbox/`.

TEXT

docker run --rm --interactive --network none --cap-drop ALL --security-opt no-new-privileges \
    --security-opt "seccomp=$here/seccomp.json" --read-only --user 2000001:2000001 --tmpfs /tmp \
    "$image" bash -s <<'INSIDE'
row() { printf '| %s | %s |\n' "$1" "$2"; }
# The first thing that looks like a version in what a program says about itself.
version() { "$@" 2>&1 | grep -oEm1 '[0-9]+(\.[0-9]+)+[a-z0-9]*' | head -n 1; }
package() { dpkg-query -W -f '${Version}' "$1" | sed -E 's/^[0-9]+://; s/[-+~].*//'; }

echo "## Programs"
echo
echo "| program | version |"
echo "|---|---|"
row "operating system" "$(. /etc/os-release && echo "$PRETTY_NAME") ($(cat /etc/debian_version))"
row bash "$(version bash --version)"
row coreutils "$(version ls --version)"
row findutils "$(version find --version)"
row grep "$(version grep --version)"
row sed "$(version sed --version)"
row gawk "$(version gawk --version)"
row git "$(version git --version)"
row curl "$(version curl --version)"
row jq "$(package jq)"
row "ripgrep (\`rg\`)" "$(version rg --version)"
row sqlite3 "$(version sqlite3 --version)"
row "tar" "$(version tar --version)"
row "zip, unzip" "$(package zip), $(package unzip)"
row "xz, zstd, bzip2" "$(version xz --version), $(version zstd --version), $(package bzip2)"
row "python3 (\`python\`)" "$(version python3 --version)"
row pip "$(version pip --version)"
row uv "$(version uv --version)"
row node "$(version node --version)"
row npm "$(version npm --version)"
row esbuild "$(version esbuild --version)"
row eslint "$(version eslint --version)"
row pytest "$(version pytest --version)"
row ruff "$(version ruff --version)"
row "poppler (\`pdftotext\`, \`pdftoppm\`)" "$(version pdftotext -v)"
row "tesseract ($(tesseract --list-langs | tail -n +2 | sort | xargs | sed 's/ /, /g'))" "$(version tesseract --version)"
echo
echo "## Python libraries"
echo
echo "| library | version |"
echo "|---|---|"
python3 - <<'PYTHON'
from importlib.metadata import version
for name in ("numpy", "pandas", "matplotlib", "Pillow", "openpyxl", "lxml",
             "beautifulsoup4", "PyYAML", "requests", "tabulate", "pypdf", "python-docx",
             "python-pptx"):
    print(f"| {name} | {version(name)} |")
PYTHON
echo
echo "## Wheels"
echo
echo "In \`/opt/toolhost/wheels\`, not installed: \`packages\` of \`python_execute\` can name them in a session without a network."
echo
echo "| wheel | version |"
echo "|---|---|"
for wheel in /opt/toolhost/wheels/*.whl; do
    IFS=- read -r name version _ < <(basename "$wheel")
    row "$name" "$version"
done
echo
echo "## Environment"
echo
echo "The root file system is read-only. \`/workspace\` is the home and the working directory and is kept with the session; \`/tmp\` is small and is not."
echo
echo "| variable | value |"
echo "|---|---|"
env | grep -vE '^(HOSTNAME|PWD|SHLVL|_)=' | sort | sed -E 's/^([^=]+)=(.*)$/| `\1` | `\2` |/'
echo
echo "## Security"
echo
echo "No program in the image carries a setuid or setgid bit ($(find / -xdev -type f -perm /6000 2>/dev/null | wc -l) found), and \`deploy/sandbox/seccomp.json\` says which system calls may be made. 32-bit programs do not run."
INSIDE
