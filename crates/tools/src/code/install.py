# Installs what `packages` names for the session's user, with uv and without a network. Its request is on descriptor 3.
# What cannot be installed leaves the workspace as it was: all that this needs for itself is in /tmp.
# Exit codes: 0 installed or there already, 10 not to be found, 11 cannot be installed together, 12 does not build, 13 no uv.
import sys

sys.path[:] = [place for place in sys.path if place]
sys.dont_write_bytecode = True
import fcntl, json, os, site, subprocess, tempfile
from importlib import metadata

with os.fdopen(3, "rb") as file:
    request = json.load(file)
target = site.getusersitepackages()
sys.path.insert(0, target)


def is_there(text):
    try:
        from packaging.requirements import Requirement
    except ImportError:
        return False
    requirement = Requirement(text)
    if requirement.marker is not None and not requirement.marker.evaluate():
        return True
    try:
        version = metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return False
    return not requirement.extras and requirement.specifier.contains(version, prereleases=True)


wanted = [package for package in request["packages"] if not is_there(package)]
if not wanted:
    sys.exit(0)
lock = os.open("/tmp/.toolhost-packages", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
fcntl.flock(lock, fcntl.LOCK_EX)


def missing_folders(place):
    """Those on the way to a folder, and itself, that are not there yet: the deepest first."""
    missing = []
    while not os.path.lexists(place):
        missing.append(place)
        place = os.path.dirname(place)
    return missing


# uv makes the folder, and a lock in it, before it knows whether it will put something there.
own_lock = os.path.join(target, ".lock")
made = missing_folders(target)
leftovers = [] if os.path.lexists(own_lock) else [own_lock]


def put_back():
    for remove, places in ((os.unlink, leftovers), (os.rmdir, made)):
        for place in places:
            try:
                remove(place)
            except OSError:
                pass


# What the image has need not be found again; what is named here is looked for all the same.
named = {package.replace("_", "-").replace(".", "-").lower() for package in request["names"]}
present = sorted({d.metadata["Name"].replace("_", "-").replace(".", "-").lower() for d in metadata.distributions() if d.metadata["Name"]})
with tempfile.TemporaryDirectory(prefix=".toolhost-packages-", dir="/tmp") as folder:
    excludes = os.path.join(folder, "present")
    with open(excludes, "w") as file:
        file.write("\n".join(name for name in present if name not in named))
    command = [
        "uv", "pip", "install", "--quiet", "--no-config", "--no-index", "--color", "never", "--no-progress", "--link-mode", "copy",
        "--cache-dir", os.path.join(folder, "cache"), "--python", sys.executable, "--find-links", request["wheels"],
        "--excludes", excludes, "--target", target, "--",
    ]
    try:
        done = subprocess.run(command + wanted, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace")
    except FileNotFoundError:
        put_back()
        sys.exit(13)
if done.returncode == 0:
    sys.exit(0)
put_back()
print(done.stderr, file=sys.stderr, end="")
said = " ".join(done.stderr.split())
if "Failed to build" in said or "build backend" in said or "Failed to download and build" in said:
    sys.exit(12)
missing = ("was not found in the provided package locations", "no version of", "not found in the package registry", "no versions of")
sys.exit(10 if any(text in said for text in missing) else 11)
