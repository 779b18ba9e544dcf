#!/usr/bin/python3
"""Ages one volume with several processes over many mounts, some ended by unmounting, some by SIGKILL of the daemon.

    age.py --moafs BINARY --format ext2|ext3|ext4|f2fs --dir DIRECTORY [--seconds 60] [--seed 1] [--size MIB] [--fill PERCENT] [--clients 4]

Everything is made below DIRECTORY, which the caller removes. Each client keeps promises of four kinds, and reports a promise
only after the call that makes it durable has returned:

    whole     a new file, written and fsynced
    replaced  a file written beside the old one, fsynced, renamed over it, directory fsynced (what editors and databases do)
    appended  a log: records appended, fdatasynced one by one
    in place  blocks of one file overwritten and fdatasynced

Between them the clients make, move, link, truncate and remove files and trees that carry no promise, hold files open that have no
name any more, and fill the volume. After each mount the promises are verified while the clients already work again. After each
clean unmount the format's own checker must find nothing. At the end everything is removed, right after a kill, and the space must
be back. Ends with 1, and says why, if any of this does not hold.
"""

import argparse
import ctypes
import errno
import fcntl
import json
import mmap
import os
import random
import signal
import subprocess
import sys
import time

from disconnected import DISCONNECTED

BLOCK = 4096
LIBC = ctypes.CDLL(None)
KEEP_SIZE_AND_PUNCH = 3
# Errors that the random changes may meet: names that are there or not, full volumes, directories that are not empty.
ORDINARY = {
    errno.ENOENT, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENOTEMPTY, errno.EINVAL, errno.ENOSPC, errno.EMLINK,
    errno.ELOOP, errno.EBUSY, errno.EXDEV, errno.ENODATA, errno.EPERM, errno.EOPNOTSUPP,
    # The kernel's own answer when a directory is looked up under a new name while another rename runs.
    errno.ESTALE,
}  # fmt: skip


def record(tag, sequence, size=512):
    """One self-describing record: who wrote it, and as which one."""
    head = f"{tag}#{sequence};".encode()
    return (head * (size // len(head) + 1))[:size]


class Client:
    """One process that works on the mounted volume until the mount goes or it is told to stop."""

    def __init__(self, mount, number, turn, seed, known, pipe):
        self.root = f"{mount}/client{number}"
        self.shared = [f"{mount}/shared{n}" for n in range(4)]
        self.number, self.turn, self.pipe = number, turn, pipe
        self.random = random.Random(f"{seed}/{turn}/{number}")
        self.known = known
        self.count = 0
        self.held = []

    def send(self, **what):
        os.write(self.pipe, (json.dumps(what) + "\n").encode())

    # -- promises

    def whole(self):
        name = f"whole-{self.turn}-{self.count}"
        size = self.random.choice([0, 100, 4096, 20000, 150000])
        self.write_synced(f"{self.root}/{name}", record(name, size, size))
        self.send(kind="whole", name=name, size=size)

    def replaced(self):
        name = f"replaced-{self.random.randrange(3)}"
        version = self.known.get(name, 0) + 1
        self.known[name] = version
        self.send(kind="trying", name=name, version=version)
        self.write_synced(f"{self.root}/{name}.new", record(name, version, 3000 + version % 7 * 2000))
        os.rename(f"{self.root}/{name}.new", f"{self.root}/{name}")
        self.sync_directory(self.root)
        self.send(kind="replaced", name=name, version=version)

    def appended(self):
        name = f"appended-{self.random.randrange(2)}"
        descriptor = os.open(f"{self.root}/{name}", os.O_CREAT | os.O_RDWR, 0o644)
        try:
            at = self.known.get(name, 0)
            for _ in range(self.random.randrange(1, 6)):
                # A record that a kill cut short is written again.
                if os.pwrite(descriptor, record(name, at, 700), at * 700) != 700:
                    break
                self.make_durable(os.fdatasync, descriptor)
                at += 1
                self.known[name] = at
                self.send(kind="appended", name=name, records=at)
        finally:
            os.close(descriptor)

    def in_place(self):
        name, block = "in-place", self.random.randrange(64)
        version = self.known.get(f"{name}/{block}", 0) + 1
        self.known[f"{name}/{block}"] = version
        self.send(kind="trying", name=f"{name}/{block}", version=version)
        descriptor = os.open(f"{self.root}/{name}", os.O_CREAT | os.O_RDWR, 0o644)
        try:
            data = record(f"{name}-{block}", version, BLOCK)
            if self.random.random() < 0.3 and os.fstat(descriptor).st_size >= 64 * BLOCK:
                with mmap.mmap(descriptor, 64 * BLOCK) as window:
                    window[block * BLOCK : (block + 1) * BLOCK] = data
                    window.flush()
            elif os.pwrite(descriptor, data, block * BLOCK) != BLOCK:
                return
            self.make_durable(os.fdatasync, descriptor)
            self.send(kind="in place", name=f"{name}/{block}", version=version)
        finally:
            os.close(descriptor)

    def write_synced(self, path, data):
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_TRUNC, 0o644)
        try:
            while data:
                data = data[os.write(descriptor, data) :]
            self.make_durable(os.fsync, descriptor)
        finally:
            os.close(descriptor)

    def sync_directory(self, path):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            self.make_durable(os.fsync, descriptor)
        finally:
            os.close(descriptor)

    def make_durable(self, sync, descriptor):
        sync(descriptor)

    def is_connected(self, descriptor):
        """False once the daemon is gone: the kernel then reads what it has cached."""
        try:
            os.fstatvfs(descriptor)
        except OSError as error:
            return error.errno not in DISCONNECTED
        return True

    # -- changes without a promise, in directories that all clients share

    def file(self):
        return f"{self.random.choice(self.shared)}/f{self.random.randrange(40)}"

    def tree(self):
        path = f"{self.random.choice(self.shared)}/d{self.random.randrange(6)}"
        return path if self.random.random() < 0.7 else f"{path}/d{self.random.randrange(6)}"

    def write_file(self):
        with open(self.file(), "wb") as file:
            file.write(b"q" * self.random.randrange(14000))

    def patch_file(self):
        descriptor = os.open(self.file(), os.O_RDWR)
        try:
            os.pwrite(descriptor, b"z" * 5000, self.random.randrange(6 << 20))
            if self.random.random() < 0.5:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def reserve_and_punch(self):
        descriptor = os.open(self.file(), os.O_RDWR)
        try:
            os.posix_fallocate(descriptor, 0, self.random.randrange(1, 1 << 20))
            LIBC.fallocate(descriptor, KEEP_SIZE_AND_PUNCH, ctypes.c_long(4096), ctypes.c_long(65536))
        finally:
            os.close(descriptor)

    def hold_nameless(self):
        """Keeps a file open after its name is gone; its bytes must stay its own."""
        tag = f"held-{self.number}-{self.count}"
        path, data = f"{self.root}/{tag}", record(tag, 0, 20000)
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
        written = 0
        try:
            written = os.pwrite(descriptor, data, 0)
            if self.random.random() < 0.5:
                self.make_durable(os.fsync, descriptor)
        finally:
            os.unlink(path)
            self.held.append((descriptor, data[:written]))

    def drop_nameless(self):
        if not self.held:
            return
        descriptor, data = self.held.pop(self.random.randrange(len(self.held)))
        found = os.pread(descriptor, len(data), 0)
        short = len(found) < len(data) and self.is_connected(descriptor)
        os.close(descriptor)
        if short or found != data[: len(found)]:
            self.send(kind="wrong", what=f"a nameless file of {len(data)} bytes reads {len(found)}: {found[:40]!r}")

    def change(self):
        pick = self.random.random
        choices = (
            (30, self.write_file),
            (10, lambda: os.unlink(self.file())),
            (12, lambda: os.rename(self.file(), self.file())),
            (10, lambda: os.mkdir(self.tree())),
            (8, lambda: os.rmdir(self.tree())),
            (12, lambda: os.rename(self.tree(), self.tree())),
            (6, lambda: os.link(self.file(), self.file())),
            (5, lambda: os.truncate(self.file(), self.random.randrange(90000))),
            (5, self.patch_file),
            (3, lambda: os.symlink("t" * self.random.randrange(1, 300), f"{self.tree()}/l{self.random.randrange(9)}")),
            (3, lambda: os.unlink(f"{self.tree()}/l{self.random.randrange(9)}")),
            (3, lambda: os.setxattr(self.file(), "user.a", b"v" * self.random.randrange(1, 1500))),
            (3, self.hold_nameless),
            (3, self.drop_nameless),
            (1, self.reserve_and_punch),
            (2, lambda: os.chmod(self.file(), 0o600 + self.random.randrange(64))),
        )
        at = pick() * sum(weight for weight, _ in choices)
        for weight, change in choices:
            at -= weight
            if at < 0:
                return change()

    def run(self):
        promises = (self.whole, self.replaced, self.appended, self.in_place)
        while True:
            self.count += 1
            try:
                if self.random.random() < 0.25:
                    self.random.choice(promises)()
                else:
                    self.change()
            except OSError as error:
                if error.errno in DISCONNECTED:
                    return
                if error.errno not in ORDINARY:
                    # A killed daemon shows as EIO to requests that were under way; the parent knows whether it was killed.
                    self.send(kind="error", errno=error.errno, what=str(error))
                    return


class Volume:
    """The image, its mounts, and what was promised of it."""

    def __init__(self, options):
        self.options = options
        self.image = f"{options.dir}/volume.img"
        self.mount_point = f"{options.dir}/mnt"
        self.random = random.Random(f"{options.seed}")
        self.promises = [dict() for _ in range(options.clients)]
        self.tried = [dict() for _ in range(options.clients)]
        self.wrong = []
        os.makedirs(self.mount_point, exist_ok=True)

    def command(self, *words):
        return subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True)

    def make(self):
        with open(self.image, "wb") as image:
            image.truncate(self.options.size << 20)
        made = self.command(self.options.moafs, "mkfs", "-q", "-F", "-t", self.options.format, self.image)
        if made.returncode:
            sys.exit(f"mkfs: {made.stdout}")

    def mount(self):
        words = [self.options.moafs, "mount"] + (["-o", self.options.mount] if self.options.mount else [])
        mounted = self.command(*words, self.image, self.mount_point)
        if mounted.returncode:
            self.report(f"the mount was refused: {mounted.stdout.strip()}")
        return mounted.returncode == 0

    def statistics(self):
        with open(f"{self.mount_point}/.moafs/stats") as stats:
            return json.load(stats)

    def report(self, what):
        print(f"WRONG: {what}", flush=True)
        self.wrong.append(what)

    def unmount(self):
        failed = self.statistics().get("failed")
        if failed:
            self.report(f"the volume turned read-only: {failed}")
        ended = self.command(self.options.moafs, "umount", self.mount_point)
        if ended.returncode:
            self.report(f"umount: {ended.stdout.strip()}")
        self.check()

    def kill(self):
        """Ends the daemon at once. The mount point is freed, and the image's lock waited for."""
        failed = self.statistics().get("failed")
        if failed:
            self.report(f"the volume turned read-only: {failed}")
        os.kill(self.statistics()["pid"], signal.SIGKILL)
        self.command("umount", "-l", self.mount_point)
        with open(self.image, "r+b") as image:
            for _ in range(100):
                try:
                    fcntl.flock(image, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return
                except OSError:
                    time.sleep(0.05)
        self.report("the killed daemon's lock stayed")

    def check(self):
        f2fs = self.options.format == "f2fs"
        checked = self.command(*(["fsck.f2fs", "--dry-run", self.image] if f2fs else ["e2fsck", "-fn", self.image]))
        marks = ("[ASSERT]", "[Fail]", "[FIX]") if f2fs else ("count wrong",)
        if checked.returncode or any(mark in checked.stdout for mark in marks):
            lines = [line for line in checked.stdout.split("\n") if line and not line.startswith(("Info", "Pass", "e2fsck"))]
            self.report(f"the checker ended with {checked.returncode}: " + "\n    ".join(lines[:15]))

    def client(self, number, turn, pipe):
        known = dict(self.tried[number])
        known.update({name: value for name, value in self.promises[number].items() if name.startswith("appended")})
        Client(self.mount_point, number, turn, self.options.seed, known, pipe).run()

    def fork(self, work):
        """Starts a process that runs `work(pipe)`; returns its number and the pipe's other end."""
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            try:
                work(writer)
            except Exception as error:
                os.write(writer, (json.dumps({"kind": "wrong", "what": f"{type(error).__name__}: {error}"}) + "\n").encode())
            os._exit(0)
        os.close(writer)
        return child, reader

    def turn(self, turn, killing):
        for directory in [f"client{n}" for n in range(self.options.clients)] + [f"shared{n}" for n in range(4)]:
            os.makedirs(f"{self.mount_point}/{directory}", exist_ok=True)
        promises = [dict(promise) for promise in self.promises]
        tried = [dict(versions) for versions in self.tried]
        # Verified first what the clients go on to change; the rest while they already work.
        self.verify_changing(promises, tried)
        children = [self.fork(lambda pipe, n=n: self.client(n, turn, pipe)) for n in range(self.options.clients)]
        verifier = self.fork(lambda pipe: self.verify_whole(promises, pipe))
        if turn == 0 and self.options.fill:
            self.fill()
        self.listen(children + [verifier], 1 + 3 * self.random.random(), killing)

    def listen(self, children, seconds, killing):
        """Collects the reports of the clients for a while, ends the daemon or the clients, and collects the rest."""
        import selectors

        selector = selectors.DefaultSelector()
        for number, (_, reader) in enumerate(children):
            os.set_blocking(reader, False)
            selector.register(reader, selectors.EVENT_READ, number)
        texts = [b"" for _ in children]
        verifier = len(children) - 1
        end, killed, deadline = time.monotonic() + seconds, False, time.monotonic() + seconds + 120
        while selector.get_map():
            for key, _ in selector.select(timeout=0.05):
                read = os.read(key.fd, 1 << 16)
                texts[key.data] += read
                if not read:
                    selector.unregister(key.fd)
                    os.close(key.fd)
            verifying = any(key.data == verifier for key in selector.get_map().values())
            if not killed and time.monotonic() >= end and not verifying:
                killed = True
                if killing:
                    self.kill()
                for child, _ in children[:verifier]:
                    os.kill(child, signal.SIGKILL)
            if time.monotonic() > deadline:
                self.report("a client or the verifier hangs")
                break
        for child, _ in children:
            if time.monotonic() > deadline:
                os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        for number, text in enumerate(texts):
            for line in text.split(b"\n")[:-1]:
                self.note(number, json.loads(line), killing)

    def note(self, number, told, killing):
        kind = told["kind"]
        if kind == "wrong":
            self.report(told["what"])
        elif kind == "error":
            if not (killing and told["errno"] == errno.EIO):
                self.report(f"client {number}: {told['what']}")
        elif kind == "trying":
            self.tried[number][told["name"]] = told["version"]
        elif kind == "appended":
            self.promises[number][told["name"]] = told["records"]
        elif kind == "whole":
            self.promises[number][told["name"]] = told["size"]
        else:
            self.promises[number][told["name"]] = told["version"]

    def fill(self):
        os.makedirs(f"{self.mount_point}/fill", exist_ok=True)
        state = os.statvfs(self.mount_point)
        files = state.f_blocks * state.f_frsize * self.options.fill // 100 // 16384
        try:
            for number in range(files):
                with open(f"{self.mount_point}/fill/{number}", "wb") as file:
                    file.write(b"f" * 16000)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                self.report(f"filling: {error}")

    # -- what was promised

    def read(self, number, name):
        try:
            with open(f"{self.mount_point}/client{number}/{name}", "rb") as file:
                return file.read()
        except OSError as error:
            return error

    def verify_changing(self, promises, tried):
        for number in range(self.options.clients):
            for name, value in promises[number].items():
                if name.startswith("replaced"):
                    self.verify_replaced(number, name, value, tried[number].get(name, value))
                elif name.startswith("appended"):
                    found = self.read(number, name)
                    wanted = b"".join(record(name, n, 700) for n in range(value))
                    if isinstance(found, OSError) or found[: len(wanted)] != wanted:
                        self.report(f"client{number}/{name}: not the {value} records that were synced ({self.say(found)})")
            self.verify_in_place(number, promises[number], tried[number])

    def verify_replaced(self, number, name, promised, tried):
        found = self.read(number, name)
        versions = range(promised, tried + 1)
        if isinstance(found, OSError) or not any(found == record(name, v, 3000 + v % 7 * 2000) for v in versions):
            self.report(f"client{number}/{name}: none of the versions {promised}..{tried} ({self.say(found)})")

    def verify_in_place(self, number, promised, tried):
        blocks = {name: value for name, value in promised.items() if name.startswith("in-place/")}
        if not blocks:
            return
        found = self.read(number, "in-place")
        if isinstance(found, OSError):
            self.report(f"client{number}/in-place: {found}")
            return
        for name, value in blocks.items():
            block = int(name.split("/")[1])
            bytes_found = found[block * BLOCK : (block + 1) * BLOCK]
            versions = range(value, tried.get(name, value) + 1)
            if not self.is_of(bytes_found, [record(f"in-place-{block}", v, BLOCK) for v in versions]):
                self.report(f"client{number}/{name}: none of the versions {list(versions)} ({self.say(bytes_found)})")

    def is_of(self, found, versions):
        """True if each sector is that of one of the versions: a kill may come while a block is being written."""
        sectors = range(0, BLOCK, 512)
        return len(found) == BLOCK and all(any(found[at : at + 512] == v[at : at + 512] for v in versions) for at in sectors)

    def verify_whole(self, promises, pipe):
        for number in range(self.options.clients):
            for name, size in promises[number].items():
                if not name.startswith("whole"):
                    continue
                found = self.read(number, name)
                if isinstance(found, OSError) or found != record(name, size, size):
                    what = f"client{number}/{name}: not the {size} bytes that were synced ({self.say(found)})"
                    os.write(pipe, (json.dumps({"kind": "wrong", "what": what}) + "\n").encode())

    def say(self, found):
        return str(found) if isinstance(found, OSError) else f"{len(found)} bytes, {found[:30]!r}"

    def forget_some(self):
        """Removes half of the whole files, so that a volume does not only grow."""
        for number, promises in enumerate(self.promises):
            for name in [name for name in promises if name.startswith("whole")][::2]:
                try:
                    os.unlink(f"{self.mount_point}/client{number}/{name}")
                except OSError as error:
                    self.report(f"removing client{number}/{name}: {error}")
                del promises[name]

    def age(self):
        self.make()
        free = None
        end, turn = time.monotonic() + self.options.seconds, 0
        while time.monotonic() < end and not self.wrong:
            if not self.mount():
                return
            if free is None:
                free = os.statvfs(self.mount_point).f_bfree
            if turn % 3 == 2:
                self.forget_some()
            killing = self.random.random() < 0.6
            self.turn(turn, killing)
            if not killing:
                self.unmount()
            turn += 1
            say = f"turn {turn}: {'killed' if killing else 'unmounted'}, {sum(map(len, self.promises))} promises"
            print(f"{self.options.format} seed {self.options.seed}: {say}", flush=True)
        if not self.wrong:
            self.remove_everything(free)

    def remove_everything(self, free):
        """Right after a kill, while recovery may be running: deleting always works, and all space comes back."""
        if not self.mount():
            return
        self.turn(-1, killing=True)
        if not self.mount():
            return
        for entry in sorted(os.listdir(self.mount_point)):
            if entry != "lost+found":
                removed = self.command("rm", "-rf", f"{self.mount_point}/{entry}")
                if removed.returncode:
                    self.report(f"rm -rf {entry}: {removed.stdout.strip()[:300]}")
        self.unmount()
        if not self.mount():
            return
        now = os.statvfs(self.mount_point).f_bfree
        # Directories that have grown keep a few blocks.
        if now < free - 64:
            self.report(f"{free} blocks were free on the empty volume, {now} are after removing everything")
        left = [entry for entry in os.listdir(self.mount_point) if entry != "lost+found"]
        if left:
            self.report(f"left after removing everything: {left}")
        self.unmount()


def run(kind, description):
    """Ages a volume of this kind as the command line says."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moafs", required=True)
    parser.add_argument("--format", required=True, choices=["ext2", "ext3", "ext4", "f2fs"])
    parser.add_argument("--dir", required=True)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--size", type=int, default=256, help="MiB")
    parser.add_argument("--fill", type=int, default=0, help="percent of the volume filled with files that stay")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--mount", default="", help="mount options")
    volume = kind(parser.parse_args())
    try:
        volume.age()
    finally:
        if os.path.ismount(volume.mount_point):
            subprocess.run(["umount", "-l", volume.mount_point])
    print(f"{volume.options.format} seed {volume.options.seed}: {'FAILED' if volume.wrong else 'ok'}")
    sys.exit(bool(volume.wrong))


if __name__ == "__main__":
    run(Volume, __doc__)
