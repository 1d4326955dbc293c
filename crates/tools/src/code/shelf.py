# Says which wheels of the tenant's cache an installation needs: where its requirements lead, by the wheels that are at hand. Of each project
# the newest wheel that fits is asked for, and older ones only when what is at hand cannot be installed.
# It is run within the installer, whose `canonical` and `holds` it uses.
import glob, json, os, zipfile
from email.parser import HeaderParser
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.tags import sys_tags
from packaging.utils import parse_wheel_filename

METADATA_BYTES = 1 << 20
OLDER = 3


class Damaged(Exception):
    pass


class Shelf:
    def __init__(self, image, folder, cache, present):
        self.image, self.folder, self.present = image, folder, present
        self.ranks = {tag: rank for rank, tag in enumerate(sys_tags())}
        self.cache = {}
        for file, size in cache:
            self.put(self.cache, file, size)
        self.asked = set()
        for path in glob.glob(os.path.join(folder, "asked-*")):
            with open(path) as asked:
                self.asked.update(json.load(asked))

    def put(self, place, path, size):
        """Puts a wheel that fits this interpreter beside those of its project: the best first."""
        try:
            name, version, build, tags = parse_wheel_filename(os.path.basename(path))
        except ValueError:
            return
        ranks = [self.ranks[tag] for tag in tags if tag in self.ranks]
        if ranks:
            wheels = place.setdefault(name, [])
            wheels.append((version, -min(ranks), build, path, size))
            wheels.sort(reverse=True)

    def asks(self, wanted, older=False):
        """Names and sizes of wheels to get: those without which nothing at hand satisfies, or older ones of all that is needed."""
        hand = {}
        for place in (self.image, self.folder):
            for path in glob.glob(os.path.join(place, "*.whl")):
                self.put(hand, path, 0)
        asks = []
        for name, specifier in self.needed(wanted, hand).items():
            fits = lambda wheel: specifier.contains(wheel[0], prereleases=True)
            left = [wheel for wheel in self.cache.get(name, ()) if wheel[3] not in self.asked and fits(wheel)]
            if older:
                asks += left[:OLDER]
            elif not any(fits(wheel) for wheel in hand.get(name, ())):
                asks += left[:1]
        return [(file, size) for _, _, _, file, size in asks]

    def needed(self, wanted, hand):
        """Projects where the requirements lead, as far as that can be seen, with what is asked of their versions."""
        needed, seen = {}, set()
        ways = [way for way in map(Requirement, wanted) if holds(way)]
        while ways:
            way = ways.pop()
            name, extras = canonical(way.name), frozenset(way.extras)
            needed[name] = needed.get(name, SpecifierSet()) & way.specifier
            fitting = [wheel for wheel in hand.get(name, ()) if needed[name].contains(wheel[0], prereleases=True)]
            if not fitting or (fitting[0][3], extras) in seen:
                continue
            seen.add((fitting[0][3], extras))
            for next_one in self.requires(fitting[0][3]):
                if holds(next_one, extras) and canonical(next_one.name) not in self.present:
                    ways.append(next_one)
        return needed

    def requires(self, path):
        try:
            with zipfile.ZipFile(path) as wheel:
                inside = [name for name in wheel.namelist() if name.count("/") == 1 and name.endswith(".dist-info/METADATA")]
                with wheel.open(inside[0]) as file:
                    text = file.read(METADATA_BYTES).decode("utf-8", "replace")
        # A wheel is anybody's bytes: what reading one can raise is as long as the library.
        except Exception as error:
            if os.path.dirname(path) == self.image:
                return []
            raise Damaged(f"{os.path.basename(path)}: {error!r}") from error
        found = []
        for line in HeaderParser().parsestr(text).get_all("Requires-Dist") or []:
            try:
                found.append(Requirement(line))
            except InvalidRequirement:
                pass
        return found
