#!/usr/bin/env python3
"""Work on a directory for mkfs.sh, and what a directory holds.

usage: mkfs.py fill DIR SEED         makes files of all kinds
       mkfs.py change DIR SEED MODES renames, removes, truncates, punches and appends what `fill` made; MODES of fallocate(2): all, or
                                     punch, which is what the kernel has for files without extents
       mkfs.py load DIR SEED         both without an end, until the file system is gone
       mkfs.py shutdown DIR          ends the kernel's ext4 as a power cut does: its journal is left to be replayed
       mkfs.py tree DIR [FIELD...]   prints a line for each file; with fields left out: times, place (inode, blocks)
"""

import ctypes
import errno
import fcntl
import hashlib
import os
import random
import stat
import struct
import sys

from disconnected import DISCONNECTED

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE = 1, 2, 16
EXT4_IOC_SHUTDOWN, NO_LOG_FLUSH = 0x8004587D, 2


def fallocate(path, mode, offset, length):
    """Calls fallocate(2). Files without extents have none of its modes."""
    with open(path, "r+b") as file:
        if LIBC.fallocate(file.fileno(), mode, offset, length) != 0:
            code = ctypes.get_errno()
            if code not in (errno.EOPNOTSUPP, errno.ENOSPC):
                raise OSError(code, os.strerror(code), path)


def content(rng, length):
    """Bytes that say where they belong, and whose runs differ."""
    return rng.randbytes(min(length, 4096)).ljust(64, b"x") * (length // 64 + 1)


def write(path, rng, length, offset=0):
    """Writes `length` bytes at an offset."""
    with open(path, "r+b" if os.path.exists(path) else "wb") as file:
        file.seek(offset)
        file.write(content(rng, length)[:length])


def acl(rng):
    """An access ACL with a named user and a mask."""
    entries = [(1, 6, 0xFFFFFFFF), (2, 4, 1000 + rng.randrange(50)), (4, 4, 0xFFFFFFFF), (16, 6, 0xFFFFFFFF), (32, 4, 0xFFFFFFFF)]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def fill(top, seed):
    """Makes directories, files, links and attributes of all shapes."""
    rng = random.Random(seed)
    for directory in ["sizes", "many", "long", "links", "special", "sparse", "reserved", "attributes", "deep"]:
        os.makedirs(os.path.join(top, directory), exist_ok=True)
    at = lambda *parts: os.path.join(top, *parts)
    sizes = [0, 1, 59, 60, 61, 156, 1023, 1024, 1025, 4096, 12288, 12289, 49152, 60000, 300000, 1 << 20, 3 << 20]
    for index, size in enumerate(sizes):
        write(at("sizes", f"f{index}"), rng, size)
        os.chown(at("sizes", f"f{index}"), rng.choice([0, 1000, 70000, 4000000000]), rng.randrange(100000))
        os.chmod(at("sizes", f"f{index}"), rng.choice([0o600, 0o4755, 0o2711, 0o1644, 0]))
        os.utime(at("sizes", f"f{index}"), ns=(rng.randrange(1 << 60), rng.randrange(1 << 61)))
    for index in range(1500):
        write(at("many", f"name-{index}-{rng.randrange(1 << 30)}"), rng, rng.choice([0, 0, 0, 100, 2000]))
    for index in range(150):
        open(at("long", f"{index:04}" + "n" * rng.randrange(1, 250)), "w").close()
    for index in range(300):
        os.mkdir(at("links", f"d{index}"))
    write(at("links", "target"), rng, 5000)
    for index in range(60):
        os.link(at("links", "target"), at("links", f"hard{index}"))
        os.symlink("s" * rng.choice([1, 59, 60, 61, 500, 1000]), at("links", f"soft{index}"))
    os.mkfifo(at("special", "fifo"))
    os.mknod(at("special", "old"), stat.S_IFBLK | 0o640, os.makedev(7, 9))
    os.mknod(at("special", "new"), stat.S_IFCHR | 0o640, os.makedev(300, 70000))
    for index in range(4):
        for piece in range(400):
            write(at("sparse", f"f{index}"), rng, 1024, (piece * (index + 2) + 3) * 4096)
    write(at("sparse", "far"), rng, 10, 3 << 32)
    for index, mode in enumerate([0, KEEP_SIZE, KEEP_SIZE, PUNCH_HOLE | KEEP_SIZE, ZERO_RANGE, ZERO_RANGE | KEEP_SIZE]):
        path = at("reserved", f"f{index}")
        write(path, rng, 200000)
        fallocate(path, mode, rng.randrange(300000), 1 + rng.randrange(1 << 20))
        write(path, rng, 3000, 150000 + index * 9000)
    for index in range(40):
        path = at("attributes", f"f{index}")
        write(path, rng, 10)
        os.setxattr(path, "user.small", rng.randbytes(rng.randrange(40)))
        if index % 3 == 0:
            os.setxattr(path, "user.large", rng.randbytes(300 + 4 * index))
        if index % 3 == 1:
            os.setxattr(path, "user.shared", b"same value " * 20)
        if index % 2 == 0:
            os.setxattr(path, "trusted.hidden", b"")
            os.setxattr(path, "system.posix_acl_access", acl(rng))
    os.setxattr(at("attributes"), "system.posix_acl_default", acl(rng))
    path = at("deep")
    for index in range(30):
        path = os.path.join(path, f"level{index}")
        os.mkdir(path)
        write(os.path.join(path, "file"), rng, rng.randrange(20000))


def change(top, seed, modes):
    """Changes what `fill` made."""
    rng = random.Random(seed + 1)
    at = lambda *parts: os.path.join(top, *parts)
    names = sorted(os.listdir(at("many")))
    for name in names:
        what = rng.randrange(4)
        if what == 0:
            os.unlink(at("many", name))
        elif what == 1:
            os.rename(at("many", name), at("long", f"moved-{name}"))
        elif what == 2:
            write(at("many", name), rng, 700, os.path.getsize(at("many", name)))
    for index in range(700):
        write(at("many", f"later-{index}"), rng, rng.choice([0, 10, 5000]))
    for directory in ["sizes", "sparse", "reserved"]:
        for name in sorted(os.listdir(at(directory))):
            path = at(directory, name)
            size = os.path.getsize(path)
            for _ in range(3):
                what, offset = rng.randrange(6), rng.randrange(min(size, 1 << 22) + 1)
                if what == 0:
                    os.truncate(path, offset)
                elif what == 1:
                    fallocate(path, PUNCH_HOLE | KEEP_SIZE, offset, 1 + rng.randrange(200000))
                elif what == 2 and modes == "all":
                    fallocate(path, ZERO_RANGE, offset, 1 + rng.randrange(200000))
                elif what == 3 and modes == "all":
                    fallocate(path, KEEP_SIZE, offset, 1 + rng.randrange(500000))
                elif what == 4:
                    write(path, rng, rng.randrange(50000), offset)
                else:
                    write(path, rng, rng.randrange(50000), os.path.getsize(path))
    for index in range(0, 300, 2):
        os.rmdir(at("links", f"d{index}"))
    for index in range(0, 60, 3):
        os.unlink(at("links", f"hard{index}"))
        os.unlink(at("links", f"soft{index}"))
    for name in sorted(os.listdir(at("attributes"))):
        path = at("attributes", name)
        what = rng.randrange(4)
        if what == 0:
            os.removexattr(path, "user.small")
        elif what == 1:
            os.setxattr(path, "user.small", rng.randbytes(400))
        elif what == 2:
            os.setxattr(path, "user.shared", b"same value " * 20)
        else:
            os.chmod(path, 0o640)
    os.rename(at("deep", "level0", "level1"), at("links", "subtree"))
    os.rename(at("sizes"), at("deep", "sizes"))
    os.rename(at("links", "target"), at("special", "fifo"))


def load(top, seed):
    """Fills and changes directories, with some files that are open and removed, until a call fails as it does when the file
    system is gone."""
    held = []
    round_number = 0
    try:
        while True:
            directory = os.path.join(top, f"load{round_number}")
            os.mkdir(directory)
            fill(directory, seed + round_number)
            held.append(open(os.path.join(directory, "held"), "w+b"))
            held[-1].write(bytes(300000))
            held[-1].flush()
            os.unlink(held[-1].name)
            change(directory, seed + round_number, "all")
            if round_number % 2:
                os.sync()
            if round_number >= 2:
                os.system(f"rm -rf '{top}/load{round_number - 2}' 2>/dev/null")
            round_number += 1
    except OSError as error:
        if error.errno not in DISCONNECTED | {errno.EIO, errno.EROFS, errno.ENOSPC, errno.ENOENT}:
            raise
        # The kernel removes held files with the program: that is not what a power cut does, so it must not come before the cut.
        sys.stdin.read()


def shutdown(top):
    """Ends the kernel's ext4 at once, without writing what its journal has not."""
    handle = os.open(top, os.O_RDONLY)
    fcntl.ioctl(handle, EXT4_IOC_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
    os.close(handle)


def described(path, left_out):
    """Everything about a file that programs can see."""
    info = os.lstat(path)
    kind = stat.S_IFMT(info.st_mode)
    words = [f"{info.st_mode:o}", f"{info.st_uid}:{info.st_gid}", f"links={info.st_nlink}"]
    if kind in (stat.S_IFBLK, stat.S_IFCHR):
        words.append(f"rdev={info.st_rdev:x}")
    if kind != stat.S_IFDIR or "place" not in left_out:
        words.append(f"size={info.st_size}")
    if "place" not in left_out:
        words.append(f"ino={info.st_ino} blocks={info.st_blocks}")
    if "times" not in left_out:
        words.append(f"mtime={info.st_mtime_ns} ctime={info.st_ctime_ns} atime={info.st_atime_ns}")
    for name in sorted(os.listxattr(path, follow_symlinks=False)):
        words.append(f"{name}={os.getxattr(path, name, follow_symlinks=False).hex()}")
    if kind == stat.S_IFLNK:
        words.append("-> " + os.readlink(path))
    elif kind == stat.S_IFREG:
        digest = hashlib.sha256()
        with open(path, "rb") as file:
            # A file with a far end is mostly a hole.
            end = 0
            while end < info.st_size:
                try:
                    begin = os.lseek(file.fileno(), end, os.SEEK_DATA)
                except OSError:
                    break
                end = min(os.lseek(file.fileno(), begin, os.SEEK_HOLE), info.st_size)
                # In whole pieces: what is allocated and zero is the same as a hole, wherever blocks begin.
                for offset in range(begin - begin % 4096, end, 4096):
                    piece = os.pread(file.fileno(), 4096, offset)
                    if piece.strip(b"\0"):
                        digest.update(struct.pack("<Q", offset) + piece)
                end += -end % 4096
        words.append(digest.hexdigest())
    return " ".join(words)


def tree(top, left_out):
    """Prints what a directory holds. First it is written: blocks count when they are allocated, and the kernel's SEEK_DATA passes over
    what waits for that in files without extents."""
    handle = os.open(top, os.O_RDONLY)
    LIBC.syncfs(handle)
    os.close(handle)
    for directory, directories, files in os.walk(top):
        directories.sort()
        if directory == top and "lost+found" in directories:
            directories.remove("lost+found")
        for name in [""] + sorted(files + [name for name in directories if os.path.islink(os.path.join(directory, name))]):
            path = os.path.join(directory, name) if name else directory
            print(os.path.relpath(path, top), described(path, left_out))


def main():
    """Runs what the command line names."""
    what, top, *rest = sys.argv[1:]
    if what == "tree":
        tree(top, rest)
    elif what == "shutdown":
        shutdown(top)
    else:
        {"fill": fill, "change": change, "load": load}[what](top, int(rest[0]), *rest[1:])


main()
