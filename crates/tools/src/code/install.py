# Installs what `packages` names for the session's user, with uv and without a network. Its request is on descriptor 3.
# What cannot be installed leaves the workspace as it was: all that this needs for itself is in /tmp.
# What the image's wheels do not come to may come with those of the tenant's cache, whose names the request has. It asks for them in a file,
# and is started again when there are copies in its folder.
# Exit codes: 0 installed or there already, 10 not to be found, 11 cannot be installed together, 12 does not build, 13 no uv,
# 14 asks for wheels, 15 a wheel of the cache is damaged, 16 no room.
import sys

sys.path[:] = [place for place in sys.path if place]
sys.dont_write_bytecode = True
import fcntl, glob, json, os, re, shutil, site, subprocess, tempfile, time
from importlib import metadata

with os.fdopen(3, "rb") as file:
    request = json.load(file)
target = site.getusersitepackages()
sys.path.insert(0, target)


def canonical(name):
    """The one form of a project's name (PEP 503): names are compared in no other."""
    return re.sub("[-_.]+", "-", name).lower()


def holds(requirement, extras=()):
    """Whether a requirement is one here. With a marker that cannot be evaluated it is: what that means is for uv to say."""
    if requirement.marker is None:
        return True
    try:
        return any(requirement.marker.evaluate({"extra": extra}) for extra in extras or [""])
    # Markers are anybody's words: what evaluating one can raise is as long as the library.
    except Exception:
        return True


def is_there(text):
    try:
        from packaging.requirements import Requirement
    except ImportError:
        return False
    requirement = Requirement(text)
    if not holds(requirement):
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
before = set(os.listdir(target)) if os.path.isdir(target) else set()


def take_out():
    """What uv has put there before the disk was full: without its modules a package would count as installed."""
    for name in set(os.listdir(target)) - before:
        place = os.path.join(target, name)
        if os.path.isdir(place) and not os.path.islink(place):
            shutil.rmtree(place, ignore_errors=True)
        else:
            os.unlink(place)


def put_back():
    for remove, places in ((os.unlink, leftovers), (os.rmdir, made)):
        for place in places:
            try:
                remove(place)
            except OSError:
                pass


# What the image has need not be found again; what is named here is looked for all the same.
named = {canonical(package) for package in request["names"]}
present = sorted({canonical(found.metadata["Name"]) for found in metadata.distributions() if found.metadata["Name"]})
copies, cache, turn = request.get("copies"), request.get("cache"), request.get("turn", 0)
shelf = None
# Calls that were cut off leave their copies; none lasts that long.
for left in glob.glob("/tmp/.toolhost-wheels-*"):
    try:
        if os.lstat(left).st_mtime < time.time() - 3600:
            shutil.rmtree(left, ignore_errors=True)
    except OSError:
        pass  # The call that it belonged to has just ended.
if cache:
    try:
        exec(compile(sys.argv[1], "<shelf>", "exec"))
        shelf = Shelf(request["wheels"], copies, cache, set(present) - named)
    except ImportError:
        # An image of the tenant's own, with uv and without the library that reads requirements.
        pass


def give_up(code, said):
    put_back()
    print(said.rstrip("\n"), file=sys.stderr)
    sys.exit(code)


def fitting(asks, room):
    """Those of them that there is room for."""
    fit = []
    for name, size in asks:
        if size <= room:
            fit.append((name, size))
            room -= size
    return fit


def ask(older=False):
    """Ends this run when there are wheels to get."""
    if not shelf:
        return
    try:
        asks = shelf.asks(wanted, older)
    except Damaged as error:
        give_up(15, f"a wheel of the cache is damaged: {error}")
    # What is in them needs room as well, before it is in its place.
    free = shutil.disk_usage("/tmp").free
    if older:
        # They are tried because uv has failed: where they do not fit, its reason is the one to tell.
        asks = fitting(asks, free // 2)
    asks = asks[:request["most"]]
    if not asks:
        return
    needed = sum(size for _, size in asks)
    if 2 * needed > free:
        give_up(16, f"{len(asks)} wheels have {needed} bytes, and unpacked more; /tmp has {free} bytes left")
    put_back()
    os.makedirs(copies, 0o700, exist_ok=True)
    with open(os.path.join(copies, f"asked-{turn}"), "w") as file:
        json.dump([name for name, _ in asks], file)
    sys.exit(14)


if turn:
    ask()
with tempfile.TemporaryDirectory(prefix=".toolhost-packages-", dir="/tmp") as folder:
    excludes = os.path.join(folder, "present")
    with open(excludes, "w") as file:
        file.write("\n".join(name for name in present if name not in named))
    command = [
        "uv", "pip", "install", "--quiet", "--no-config", "--no-index", "--color", "never", "--no-progress", "--link-mode", "copy",
        "--cache-dir", os.path.join(folder, "cache"), "--python", sys.executable, "--find-links", request["wheels"],
        *(["--find-links", copies] if turn else []), "--excludes", excludes, "--target", target, "--",
    ]
    try:
        done = subprocess.run(command + wanted, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace")
    except FileNotFoundError:
        put_back()
        sys.exit(13)
if done.returncode == 0:
    sys.exit(0)
said = " ".join(done.stderr.split())
if "Failed to install" in said:
    take_out()
if any(text in said for text in ("No space left on device", "os error 28")):
    give_up(16, done.stderr)
if turn and any(text in said for text in ("Failed to extract", "invalid package format", "Failed to read from zip", "does not match filename")):
    give_up(15, done.stderr)
ask()
ask(older=True)
if "Failed to build" in said or "build backend" in said or "Failed to download and build" in said:
    give_up(12, done.stderr)
missing = (
    "was not found in the provided package locations", "no version of", "not found in the package registry", "no versions of",
    " is available and ", " are available and ",
)
give_up(10 if any(text in said for text in missing) else 11, done.stderr)
