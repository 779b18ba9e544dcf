#!/usr/bin/python3
"""Several processes on a full volume, over kills of the daemon and clean unmounts.

    full.py --moafs BINARY --format ext2|ext3|ext4|f2fs --dir DIRECTORY [--seconds 60] [--seed 1] [--size MIB] [--clients 4]

Everything is made below DIRECTORY, which the caller removes. The clients fill the volume until it takes no byte, and keep it so: what
one of them removes is filled again. On it they rename, link, unlink, create, truncate and write, and promise what an fsync has made
durable. Besides the promises, which are verified after each mount as those of age.py are, this must hold on a volume without space:

    names change where the directory has room for them; names and contents can be removed, files cut
    blocks that a file has are written anew
    what a write has taken reaches the volume: no fsync ends with ENOSPC

After each clean unmount the format's own checker must find nothing. At the end everything is removed, right after a kill, and the
space must be back. Ends with 1, and says why, if any of this does not hold.
"""

import errno
import os

from age import BLOCK, Client, Volume, record, run

IN_PLACE_BLOCKS = 64
STEADY = 8


def content(name, size):
    """What a file of this name has: of any size a beginning of the same."""
    return record(name, 0, size)


class FullClient(Client):
    """One process that keeps the volume full and works on it."""

    def __init__(self, mount, number, turn, seed, known, whole, is_ext, pipe):
        super().__init__(mount, number, turn, seed, known, pipe)
        self.whole_files = whole
        self.is_ext = is_ext
        self.steady = f"{self.root}/steady"
        self.ballast = 0
        self.has_filled = False

    def must(self, what, call, *arguments):
        """Makes a call that needs no space."""
        try:
            return call(*arguments)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                self.send(kind="wrong", what=f"client {self.number}: {what} on a full volume: {error}")
            raise

    def make_durable(self, sync, descriptor):
        self.must("a sync of what was written", sync, descriptor)

    def sync(self, path):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            self.make_durable(os.fsync, descriptor)
        finally:
            os.close(descriptor)

    def write_synced(self, path, data):
        """Raises ENOSPC if the file did not get all of the data; what it got is synced nevertheless."""
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_TRUNC, 0o644)
        try:
            try:
                while data:
                    data = data[os.write(descriptor, data[: 1 << 18]) :]
            finally:
                self.make_durable(os.fsync, descriptor)
        finally:
            os.close(descriptor)

    # -- keeping the volume full

    def fill(self):
        """Writes files without a promise until the volume takes none of any size."""
        size = 1 << 20
        while size:
            self.ballast += 1
            try:
                self.write_synced(f"{self.root}/ballast-{self.turn}-{self.ballast}", b"b" * size)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                size //= 8
        self.send(kind="full")

    def drop_ballast(self):
        files = [name for name in os.listdir(self.root) if name.startswith("ballast-")]
        if files:
            self.must("unlink", os.unlink, f"{self.root}/{self.random.choice(files)}")

    # -- with promises

    def whole(self):
        name = f"whole-{self.turn}-{self.count}"
        size = self.random.choice([0, 100, 4096, 20000, 150000])
        self.write_synced(f"{self.root}/{name}", content(name, size))
        self.whole_files[name] = size
        self.send(kind="whole", name=name, size=size)

    def take_whole(self):
        """Returns a file whose promise does not hold any more, and its size."""
        name = self.random.choice(sorted(self.whole_files))
        self.send(kind="dropped", name=name)
        return name, self.whole_files.pop(name)

    def remove_whole(self):
        if len(self.whole_files) > 10:
            name, _ = self.take_whole()
            self.must("unlink", os.unlink, f"{self.root}/{name}")

    def cut_whole(self):
        if not self.whole_files:
            return
        name, size = self.take_whole()
        size = self.random.randrange(size + 1)
        self.must("truncate", os.truncate, f"{self.root}/{name}", size)
        self.sync(f"{self.root}/{name}")
        self.whole_files[name] = size
        self.send(kind="whole", name=name, size=size)

    def in_place(self):
        self.must("a write in place", super().in_place)

    def steady_name(self, number):
        """Returns the name that a steady file has, and its version."""
        names = [name for name in os.listdir(self.steady) if name.startswith(f"{number}.")]
        name = max(names)
        return f"{self.steady}/{name}", int(name.split(".")[1])

    def rename_steady(self):
        number = self.random.randrange(STEADY)
        path, version = self.steady_name(number)
        version = max(version, self.known.get(f"steady/{number}", 0)) + 1
        self.known[f"steady/{number}"] = version
        self.send(kind="trying", name=f"steady/{number}", version=version)
        new = f"{self.steady}/{number}.{version:07}"
        self.must("rename", os.rename, path, new)
        if self.random.random() < 0.4:
            self.sync(self.random.choice([new, self.steady]))
            self.send(kind="moved", name=f"steady/{number}", version=version)

    # -- without

    def link_steady(self):
        path, _ = self.steady_name(self.random.randrange(STEADY))
        other = f"{self.steady}/link{self.random.randrange(4)}"
        if os.path.exists(other):
            self.must("unlink", os.unlink, other)
        self.must("link", os.link, path, other)
        if self.random.random() < 0.3:
            self.sync(other)

    def rename_link(self):
        names = [f"{self.steady}/link{number}" for number in range(4)]
        self.must("rename", os.rename, self.random.choice(names), self.random.choice(names))

    def create_empty(self):
        path = f"{self.steady}/empty"
        if os.path.exists(path):
            self.must("unlink", os.unlink, path)
        create = lambda: os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        # On F2FS an inode takes a block, which another client may have taken since.
        self.must("create", create) if self.is_ext else create()

    def write_sparse(self):
        descriptor = os.open(f"{self.root}/sparse", os.O_CREAT | os.O_RDWR, 0o644)
        try:
            try:
                os.pwrite(descriptor, b"s" * self.random.randrange(1, 9000), self.random.randrange(6 << 20))
            finally:
                if self.random.random() < 0.5:
                    self.make_durable(os.fsync, descriptor)
        finally:
            os.close(descriptor)

    def cut_sparse(self):
        self.must("truncate", os.truncate, f"{self.root}/sparse", self.random.randrange(1 << 20))

    def directory(self):
        path = f"{self.root}/d{self.random.randrange(3)}"
        if os.path.isdir(path):
            self.must("rmdir", os.rmdir, path)
        else:
            os.mkdir(path)

    def hold_nameless(self):
        if len(self.held) < 20:
            super().hold_nameless()

    def change(self):
        if not self.has_filled:
            self.has_filled = True
            return self.fill()
        choices = (
            (30, self.rename_steady),
            (15, self.link_steady),
            (15, self.rename_link),
            (10, self.create_empty),
            (15, self.in_place),
            (8, self.whole),
            (5, self.replaced),
            (5, self.appended),
            (5, self.remove_whole),
            (5, self.cut_whole),
            (6, self.write_sparse),
            (2, self.cut_sparse),
            (6, self.directory),
            (3, lambda: os.setxattr(self.steady_name(0)[0], "user.a", b"v" * self.random.randrange(1, 1500))),
            (3, self.hold_nameless),
            (4, self.drop_nameless),
            (2, self.drop_ballast),
            (1, self.fill),
        )
        self.random.choices([change for _, change in choices], [weight for weight, _ in choices])[0]()


class FullVolume(Volume):
    """The image of a volume that is kept full."""

    def __init__(self, options):
        super().__init__(options)
        self.is_full = False

    def client(self, number, turn, pipe):
        known = dict(self.tried[number])
        known.update({name: value for name, value in self.promises[number].items() if name.startswith("appended")})
        whole = {name: size for name, size in self.promises[number].items() if name.startswith("whole")}
        is_ext = self.options.format != "f2fs"
        client = FullClient(self.mount_point, number, turn, self.options.seed, known, whole, is_ext, pipe)
        client.run()

    def prepare(self):
        """Makes what the clients change on the full volume."""
        for number in range(self.options.clients):
            root = f"{self.mount_point}/client{number}"
            os.makedirs(f"{root}/steady")
            for steady in range(STEADY):
                with open(f"{root}/steady/{steady}.{0:07}", "wb") as file:
                    file.write(content(f"steady-{number}-{steady}", 3000))
                self.promises[number][f"steady/{steady}"] = 0
            with open(f"{root}/in-place", "wb") as file:
                for block in range(IN_PLACE_BLOCKS):
                    file.write(record(f"in-place-{block}", 0, BLOCK))
                    self.promises[number][f"in-place/{block}"] = 0
        os.sync()

    def turn(self, turn, killing):
        if turn == 0:
            self.prepare()
        super().turn(turn, killing)

    def note(self, number, told, killing):
        if told["kind"] == "full":
            self.is_full = True
        elif told["kind"] == "dropped":
            self.promises[number].pop(told["name"], None)
        else:
            super().note(number, told, killing)

    def verify_changing(self, promises, tried):
        super().verify_changing(promises, tried)
        for number in range(self.options.clients):
            for name, value in promises[number].items():
                if name.startswith("whole"):
                    self.verify_content(number, name, content(name, value))
                elif name.startswith("steady"):
                    self.verify_steady(number, int(name.split("/")[1]), value, tried[number].get(name, 0))

    def verify_content(self, number, name, wanted):
        found = self.read(number, name)
        if isinstance(found, OSError):
            self.report(f"client{number}/{name}: {found}")
        elif found != wanted:
            at = next((at for at, (a, b) in enumerate(zip(found, wanted)) if a != b), min(len(found), len(wanted)))
            what = f"{len(found)} bytes, and {found[at : at + 20]!r} from {at} on"
            self.report(f"client{number}/{name}: not the {len(wanted)} bytes that were synced: {what}")

    def verify_steady(self, number, steady, promised, tried):
        names = os.listdir(f"{self.mount_point}/client{number}/steady")
        versions = sorted(int(name.split(".")[1]) for name in names if name.startswith(f"{steady}."))
        if not versions or versions[0] < promised or versions[-1] > max(promised, tried):
            self.report(f"client{number}/steady/{steady}: versions {versions}, synced was {promised}, tried {tried}")
        for version in versions:
            self.verify_content(number, f"steady/{steady}.{version:07}", content(f"steady-{number}-{steady}", 3000))

    def verify_whole(self, promises, pipe):
        """Nothing: the clients cut and remove these files, so they are verified before."""

    def remove_everything(self, free):
        if not self.is_full:
            self.report("the volume was never full")
        super().remove_everything(free)


if __name__ == "__main__":
    run(FullVolume, __doc__)
