#!/usr/bin/python3
"""Performs the same system calls on two mounts, and prints every answer that differs.

    differential.py REFERENCE SUBJECT [--only TEXT] [--seed N] [--verbose]

Both are directories of mounted file systems, usually the kernel's ext4 and moafs. Each case runs in a new directory of
each, in a process of its own, and notes what each call returned: its result or its error, what stat(2) shows, contents,
which times changed. A note that starts with a label of `EXPECTED` may differ. Ends with 1 if anything else does.
"""

import argparse
import ctypes
import errno
import fcntl
import json
import mmap
import os
import random
import resource
import select
import signal
import socket
import stat
import struct
import subprocess
import sys
import time

LIBC = ctypes.CDLL(None, use_errno=True)
AT_FDCWD, AT_EMPTY_PATH, AT_SYMLINK_FOLLOW, AT_SYMLINK_NOFOLLOW = -100, 0x1000, 0x400, 0x100
NOREPLACE, EXCHANGE, WHITEOUT = 1, 2, 4
KEEP_SIZE, PUNCH, COLLAPSE, ZERO, INSERT, UNSHARE = 1, 2, 8, 16, 32, 64
NOBODY = 65534
CASES = []


def case(function):
    CASES.append(function)
    return function


# -- calls that Python does not have


def checked(result):
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def raw(path):
    return path if isinstance(path, bytes) else os.fsencode(path)


def renameat2(old, new, flags):
    return checked(LIBC.renameat2(AT_FDCWD, raw(old), AT_FDCWD, raw(new), flags))


def linkat(descriptor, old, new, flags):
    return checked(LIBC.linkat(descriptor, raw(old), AT_FDCWD, raw(new), flags))


def fallocate(descriptor, mode, offset, length):
    return checked(LIBC.fallocate(descriptor, mode, ctypes.c_long(offset), ctypes.c_long(length)))


def utimensat(path, atime, mtime, flags=0):
    """Times are pairs of seconds and nanoseconds."""
    times = (ctypes.c_long * 4)(*atime, *mtime)
    return checked(LIBC.utimensat(AT_FDCWD, raw(path), times, flags))


def ioctl(descriptor, request, size=0, fill=b""):
    buffer = bytearray(fill.ljust(size, b"\0"))
    fcntl.ioctl(descriptor, request, buffer)
    return bytes(buffer)


def statx(path, flags=0, mask=0xFFF):
    buffer = ctypes.create_string_buffer(256)
    checked(LIBC.statx(AT_FDCWD, raw(path), flags, mask, buffer))
    return buffer.raw


# -- what a case notes


class Notes:
    """Collects labelled results of calls."""

    def __init__(self):
        self.lines = []

    def note(self, label, value):
        self.lines.append((label, repr(value)))

    def do(self, label, function, *arguments, **named):
        """Calls, and notes the result or the name of the error. Returns the result, or None."""
        try:
            result = function(*arguments, **named)
        except OSError as error:
            self.note(label, errno.errorcode.get(error.errno, error.errno))
            return None
        except (OverflowError, ValueError) as error:
            self.note(label, type(error).__name__)
            return None
        self.note(label, plain(result))
        return result

    def open(self, label, path, flags, mode=0o644):
        """Opens, and notes whether that works, not the number."""
        try:
            descriptor = os.open(path, flags, mode)
        except OSError as error:
            self.note(label, errno.errorcode[error.errno])
            return None
        self.note(label, "open")
        return descriptor

    def tried(self, label, path, flags, mode=0o644):
        descriptor = self.open(label, path, flags, mode)
        if descriptor is not None:
            os.close(descriptor)


def plain(result):
    return None if isinstance(result, os.stat_result) else result


def shown(path, follow=False):
    """What stat(2) shows and two file systems have in common."""
    try:
        found = os.stat(path, follow_symlinks=follow)
    except OSError as error:
        return errno.errorcode[error.errno]
    size = 0 if stat.S_ISDIR(found.st_mode) else found.st_size
    return (oct(found.st_mode), found.st_nlink, found.st_uid, found.st_gid, size, found.st_rdev)


def times(path):
    """Times of a path or a descriptor; None if there is no such file."""
    try:
        found = os.stat(path) if isinstance(path, int) else os.lstat(path)
    except OSError:
        return None
    return found.st_atime_ns, found.st_mtime_ns, found.st_ctime_ns


def changed(paths, function, *arguments):
    """Calls, and tells for each path which of its times the call changed."""
    before = [times(path) for path in paths]
    time.sleep(0.03)
    try:
        result = function(*arguments)
        result = result if isinstance(result, (int, str, bytes)) else None
    except OSError as error:
        result = errno.errorcode[error.errno]
    told = [result]
    for path, old in zip(paths, before):
        new = times(path)
        if old is None or new is None:
            told.append("no" if new is None else "new")
        else:
            told.append("".join(name for name, a, b in zip("amc", old, new) if a != b))
    return told


def tree(top="."):
    """Everything below a directory, with kinds, modes, link counts, sizes, contents and attributes."""
    lines = []
    for directory, names, files in os.walk(os.fsencode(top)):
        names.sort()
        for name in sorted(names + files):
            path = os.path.join(directory, name)
            extra = b""
            found = os.lstat(path)
            if stat.S_ISREG(found.st_mode):
                with open(path, "rb") as file:
                    extra = hash_of(file.read())
            elif stat.S_ISLNK(found.st_mode):
                extra = os.readlink(path)
            attributes = sorted(
                (key, os.getxattr(path, key, follow_symlinks=False)) for key in os.listxattr(path, follow_symlinks=False)
            )
            lines.append((path, shown(path), extra, attributes))
    return lines


def hash_of(data):
    import hashlib

    return len(data), hashlib.md5(data).hexdigest()


def as_user(notes, label, function, uid=NOBODY, gid=NOBODY, groups=()):
    """Runs `function(notes)` in a child with other credentials."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        inner = Notes()
        try:
            os.setgroups(list(groups))
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)
            function(inner)
        except Exception as error:
            inner.note("exception", f"{type(error).__name__}: {error}")
        with os.fdopen(writer, "w") as pipe:
            json.dump(inner.lines, pipe)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    for inner, value in json.loads(text or '[["died", ""]]'):
        notes.lines.append((f"{label}: {inner}", value))


def in_child(function):
    """Runs `function` in a child; returns its exit status or the name of the signal that ended it."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(function() or 0)
        except OSError as error:
            os._exit(error.errno)
        except BaseException:
            os._exit(255)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    return os.WEXITSTATUS(status)


def put(path, data=b"", mode=0o644):
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    os.write(descriptor, data)
    os.close(descriptor)
    os.chmod(path, mode)


def got(path):
    with open(path, "rb") as file:
        return file.read()


# -- names and errors

LONG = "n" * 255


def fixture(top):
    """One of each kind of thing that a path can name."""
    back = os.getcwd()
    os.mkdir(top)
    os.chdir(top)
    put("file", b"contents")
    put("other", b"other contents")
    os.link("file", "hard")
    os.mkdir("empty")
    os.mkdir("full")
    put("full/x", b"x")
    os.mkdir("full/sub")
    os.symlink("file", "to-file")
    os.symlink("full", "to-dir")
    os.symlink("nowhere", "dangling")
    os.symlink("loop", "loop")
    os.mkfifo("fifo")
    os.mknod("null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    os.mknod("block", 0o600 | stat.S_IFBLK, os.makedev(7, 200))
    with socket.socket(socket.AF_UNIX) as end:
        end.bind("socket")
    put(LONG, b"long")
    os.chdir(back)


KINDS = [
    "file", "hard", "empty", "full", "full/x", "full/sub", "to-file", "to-dir", "dangling", "loop", "fifo", "null", "socket",
    "missing", "missing/x", "file/x", "file/", "empty/", "full/.", "full/..", ".", "..", "", "to-file/", "to-dir/", "to-dir/.",
    "dangling/", "loop/x", LONG, LONG + "n", "full/" + LONG, "full/" + LONG + "n", "x" * 255 + "/y", "a/" * 2040, "./" * 2047 + "file",
    "null/", "fifo/x", "missing/", ".//file", "full//x", "full/../file", "\n \t\x7f", "\udcff\udcfe",
]  # fmt: skip

OPENS = {
    "r": os.O_RDONLY, "w": os.O_WRONLY, "rw": os.O_RDWR, "creat": os.O_CREAT | os.O_WRONLY, "excl": os.O_CREAT | os.O_EXCL | os.O_RDWR,
    "trunc": os.O_WRONLY | os.O_TRUNC, "rtrunc": os.O_RDONLY | os.O_TRUNC, "dir": os.O_DIRECTORY, "dirw": os.O_DIRECTORY | os.O_WRONLY,
    "nofollow": os.O_NOFOLLOW, "path": os.O_PATH, "path-nofollow": os.O_PATH | os.O_NOFOLLOW, "path-dir": os.O_PATH | os.O_DIRECTORY,
    "tmp": os.O_TMPFILE | os.O_RDWR, "tmp-r": os.O_TMPFILE, "creat-dir": os.O_CREAT | os.O_DIRECTORY,
    "creat-nofollow": os.O_CREAT | os.O_NOFOLLOW | os.O_WRONLY, "append": os.O_APPEND | os.O_WRONLY,
    "direct": os.O_DIRECT, "noatime": os.O_NOATIME, "sync": os.O_SYNC | os.O_WRONLY, "acc3": 3,
}  # fmt: skip


def operations():
    """Calls with one path."""
    times_now = (0, (1 << 30) - 1)
    table = {
        f"open-{name}": (lambda path, flags=flags: os.close(os.open(path, flags | os.O_NONBLOCK, 0o640)))
        for name, flags in OPENS.items()
    }
    table.update(
        {
            "mkdir": lambda path: os.mkdir(path, 0o750),
            "rmdir": os.rmdir,
            "unlink": os.unlink,
            "remove-dir-flag": lambda path: checked(LIBC.unlinkat(AT_FDCWD, raw(path), 0x200)),
            "mkfifo": os.mkfifo,
            "mknod-reg": lambda path: os.mknod(path, 0o600 | stat.S_IFREG),
            "mknod-chr": lambda path: os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 5)),
            "mknod-sock": lambda path: os.mknod(path, 0o600 | stat.S_IFSOCK),
            "mknod-dir": lambda path: os.mknod(path, 0o600 | stat.S_IFDIR),
            "mknod-lnk": lambda path: os.mknod(path, 0o600 | stat.S_IFLNK),
            "symlink": lambda path: os.symlink("target", path),
            "symlink-empty": lambda path: os.symlink("", path),
            "symlink-long": lambda path: os.symlink("t" * 4095, path),
            "symlink-too-long": lambda path: os.symlink("t" * 4096, path),
            "link-to": lambda path: os.link("other", path),
            "link-from": lambda path: os.link(path, "linked", follow_symlinks=False),
            "link-from-follow": lambda path: linkat(AT_FDCWD, path, "linked", AT_SYMLINK_FOLLOW),
            "rename-to": lambda path: os.rename("other", path),
            "rename-dir-to": lambda path: os.rename("empty", path),
            "rename-from": lambda path: os.rename(path, "renamed"),
            "rename-self": lambda path: os.rename(path, path),
            "rename-into": lambda path: os.rename(path, path + "/inside"),
            "truncate": lambda path: os.truncate(path, 3),
            "truncate-negative": lambda path: os.truncate(path, -1),
            "chmod": lambda path: os.chmod(path, 0o604),
            "chown": lambda path: os.chown(path, 5, 6),
            "lchown": lambda path: os.lchown(path, 5, 6),
            "chown-none": lambda path: os.chown(path, -1, -1),
            "utimens": lambda path: utimensat(path, (5, 6), (7, 8)),
            "lutimens": lambda path: utimensat(path, (5, 6), (7, 8), AT_SYMLINK_NOFOLLOW),
            "utimens-omit": lambda path: utimensat(path, (0, (1 << 30) - 2), (0, (1 << 30) - 2)),
            "utimens-now": lambda path: utimensat(path, times_now, times_now),
            "utimens-wrong": lambda path: utimensat(path, (0, 1000000000), (0, 0)),
            "readlink": os.readlink,
            "stat": lambda path: shown(path, True),
            "lstat": lambda path: shown(path),
            "access": lambda path: checked(LIBC.access(raw(path), 7)),
            "statfs": lambda path: os.statvfs(path).f_namemax,
            "chdir": lambda path: (os.chdir(path), os.chdir(TOP))[0],
            "listdir": lambda path: sorted(os.listdir(path)),
            "getxattr": lambda path: os.getxattr(path, "user.x"),
            "lgetxattr": lambda path: os.getxattr(path, "user.x", follow_symlinks=False),
            "setxattr": lambda path: os.setxattr(path, "user.x", b"y"),
            "lsetxattr": lambda path: os.setxattr(path, "user.x", b"y", follow_symlinks=False),
            "lsetxattr-trusted": lambda path: os.setxattr(path, "trusted.x", b"y", follow_symlinks=False),
            "lsetxattr-security": lambda path: os.setxattr(path, "security.x", b"y", follow_symlinks=False),
            "removexattr": lambda path: os.removexattr(path, "user.x"),
            "listxattr": lambda path: os.listxattr(path),
            "llistxattr": lambda path: os.listxattr(path, follow_symlinks=False),
            "handle": lambda path: handle(path),
            "statx": lambda path: statx(path)[28:32],
            "inotify": lambda path: watched(path),
            "chroot": lambda path: in_child(lambda: os.chroot(path)),
            "exec": lambda path: in_child(lambda: os.execv(path, ["x"])),
            "truncate-huge": lambda path: os.truncate(path, (1 << 63) - 1),
        }
    )
    return table


TOP = "."


def handle(path):
    buffer = ctypes.create_string_buffer(struct.pack("Ii", 128, 0), 136)
    mount_id = ctypes.c_int()
    checked(LIBC.name_to_handle_at(AT_FDCWD, raw(path), buffer, ctypes.byref(mount_id), 0))
    return "handle"


def watched(path):
    descriptor = checked(LIBC.inotify_init())
    try:
        checked(LIBC.inotify_add_watch(descriptor, raw(path), 0xFFF))
        return "watched"
    finally:
        os.close(descriptor)


def every_path(notes, kinds, only=None):
    global TOP
    base = os.getcwd()
    number = 0
    for name, operation in operations().items():
        if only and name not in only:
            continue
        fixture(f"{number}")
        os.chdir(f"{number}")
        TOP = os.getcwd()
        inos = {os.lstat(name).st_ino: name for name in sorted(os.listdir("."), reverse=True)}
        for kind in kinds:
            label = f"{name} {kind if len(kind) < 60 else kind[:10] + '~%d' % len(kind)!r}"
            before = listing(inos)
            notes.do(label, operation, kind)
            after = listing(inos)
            if before != after:
                notes.note(label + " changed", sorted(set(after) ^ set(before), key=str))
                os.chdir(base)
                number += 1
                fixture(f"{number}")
                os.chdir(f"{number}")
                TOP = os.getcwd()
                inos = {os.lstat(name).st_ino: name for name in sorted(os.listdir("."), reverse=True)}
        os.chdir(base)
        number += 1


def listing(inos):
    lines = []
    for directory in (".", "full", "empty"):
        try:
            names = os.listdir(directory)
        except OSError:
            continue
        for name in names:
            path = f"{directory}/{name}"
            try:
                lines.append((path, inos.get(os.lstat(path).st_ino, "new"), *shown(path)[:5]))
            except OSError:
                lines.append((path, "hidden"))
    return lines


@case
def errors_of_calls_with_one_path(notes):
    every_path(notes, KINDS)


@case
def errors_of_calls_with_one_path_for_a_user(notes):
    os.chmod(".", 0o777)
    os.mkdir("user")
    os.chmod("user", 0o777)
    as_user(notes, "in own directory", lambda inner: (os.chdir("user"), few(inner)))
    os.mkdir("foreign")
    fixture("foreign/f")
    fixture("foreign/sticky")
    os.chmod("foreign/sticky", 0o1777)
    os.chmod("foreign/f/full", 0o700)
    as_user(notes, "foreign", lambda inner: foreign(inner, "foreign/f"))
    as_user(notes, "sticky", lambda inner: foreign(inner, "foreign/sticky"))


def few(inner):
    global fixture
    whole = fixture

    def without_devices(top):
        mknod = os.mknod
        os.mknod = lambda path, mode, device=0: put(path)
        try:
            whole(top)
        finally:
            os.mknod = mknod

    fixture = without_devices
    every_path(inner, KINDS[:24])
    fixture = whole


def foreign(inner, top):
    global TOP
    os.chdir(top)
    TOP = os.getcwd()
    for name, operation in operations().items():
        for kind in KINDS[:24]:
            inner.do(f"{name} {kind!r}", operation, kind)


@case
def renames_of_all_kinds(notes):
    kinds = [
        "file",
        "hard",
        "empty",
        "full",
        "to-file",
        "to-dir",
        "dangling",
        "fifo",
        "null",
        "missing",
        "full/sub",
        "full/x",
        ".",
        "..",
        "full/..",
        "other",
    ]
    base = os.getcwd()
    number = 0
    fixture("0")
    os.chdir("0")
    inos = {os.lstat(name).st_ino: name for name in sorted(os.listdir("."), reverse=True)}
    for flags in (0, NOREPLACE, EXCHANGE, WHITEOUT, NOREPLACE | EXCHANGE, NOREPLACE | WHITEOUT, EXCHANGE | WHITEOUT, 8):
        for old in kinds:
            for new in kinds + ["full/new", "empty/new", "file/x", "missing/x"]:
                before = listing(inos)
                notes.do(f"rename {flags} {old} {new}", renameat2, old, new, flags)
                after = listing(inos)
                if before != after:
                    notes.note(f"rename {flags} {old} {new} changed", sorted(set(after) ^ set(before), key=str))
                    number += 1
                    os.chdir(base)
                    fixture(str(number))
                    os.chdir(str(number))
                    inos = {os.lstat(name).st_ino: name for name in sorted(os.listdir("."), reverse=True)}


@case
def names_of_odd_bytes(notes):
    names = [bytes([n]) for n in range(1, 256) if n != 47 and n != 46] + [b"\xff" * 255, b"a" * 254 + b"\x01", b"...", b". "]
    for name in names:
        put(name, name)
    notes.note("names", sorted(os.listdir(b".")))
    notes.note("contents", all(got(name) == name for name in names))
    for name in names:
        os.rename(name, name[:254] + b"-")
    notes.note("renamed", sorted(os.listdir(b".")))
    for name in os.listdir(b"."):
        os.unlink(name)
    notes.note("empty", os.listdir(b"."))


@case
def symbolic_links_of_all_lengths(notes):
    for length in list(range(1, 70)) + [127, 128, 255, 256, 1000, 1023, 1024, 1025, 2047, 2048, 4000, 4094, 4095]:
        target = ("t%d/" % length * length)[:length]
        os.symlink(target, f"l{length}")
        notes.note(f"{length}", (os.readlink(f"l{length}") == target, os.lstat(f"l{length}").st_size))
    # 40 links in a row may be followed.
    put("c0", b"end")
    for n in range(1, 45):
        os.symlink(f"c{n - 1}", f"c{n}")
    for n in (39, 40, 41):
        notes.do(f"chain {n}", got, f"c{n}")


@case
def many_links(notes):
    put("file")
    for n in range(3000):
        os.link("file", f"l{n}")
    notes.note("links", os.stat("file").st_nlink)
    for n in range(0, 3000, 2):
        os.unlink(f"l{n}")
    notes.note("links", os.stat("file").st_nlink)
    for n in range(500):
        os.mkdir(f"d{n}")
    notes.note("directory", os.stat(".").st_nlink)


# -- opens


@case
def files_without_a_name(notes):
    descriptor = notes.open("tmpfile", ".", os.O_TMPFILE | os.O_RDWR, 0o640)
    os.write(descriptor, b"data")
    notes.note("links", os.fstat(descriptor).st_nlink)
    notes.do("linkat", linkat, AT_FDCWD, f"/proc/self/fd/{descriptor}", "named", AT_SYMLINK_FOLLOW)
    notes.note("named", (shown("named"), got("named")))
    notes.do("linkat again", linkat, descriptor, "", "second", AT_EMPTY_PATH)
    notes.note("links", os.fstat(descriptor).st_nlink)
    os.unlink("named")
    os.unlink("second")
    notes.note("links", os.fstat(descriptor).st_nlink)
    notes.do("linkat when removed", linkat, AT_FDCWD, f"/proc/self/fd/{descriptor}", "third", AT_SYMLINK_FOLLOW)
    notes.do("linkat when removed, empty", linkat, descriptor, "", "third", AT_EMPTY_PATH)
    excl = notes.open("tmpfile excl", ".", os.O_TMPFILE | os.O_RDWR | os.O_EXCL, 0o640)
    notes.do("linkat excl", linkat, AT_FDCWD, f"/proc/self/fd/{excl}", "excl", AT_SYMLINK_FOLLOW)
    notes.note("names", sorted(os.listdir(".")))
    notes.do("setxattr", os.setxattr, descriptor, "user.a", b"1")
    notes.do("getxattr", os.getxattr, descriptor, "user.a")
    notes.do("fchmod", os.fchmod, descriptor, 0o600)
    notes.note("mode", oct(os.fstat(descriptor).st_mode))
    os.mkdir("gone")
    inside = os.open("gone", os.O_RDONLY)
    os.rmdir("gone")
    notes.do("tmpfile in a removed directory", os.open, f"/proc/self/fd/{inside}", os.O_TMPFILE | os.O_RDWR)
    notes.do("create in a removed directory", lambda: os.open("x", os.O_CREAT | os.O_RDWR, dir_fd=inside))
    notes.do("mkdir in a removed directory", lambda: os.mkdir("x", dir_fd=inside))
    notes.do("list a removed directory", lambda: os.listdir(inside))
    notes.note("links of it", os.fstat(inside).st_nlink)
    notes.do("rename into it", lambda: os.rename("second", "x", dst_dir_fd=inside))
    notes.do("chmod it", os.fchmod, inside, 0o700)
    notes.do("xattr of it", os.setxattr, inside, "user.a", b"1")
    notes.do("sync it", os.fsync, inside)
    notes.do("dotdot of it", lambda: os.listdir(f"/proc/self/fd/{inside}/.."))


@case
def descriptors_of_paths_only(notes):
    put("file", b"data")
    os.symlink("file", "link")
    for path, flags in (("file", os.O_PATH), ("link", os.O_PATH | os.O_NOFOLLOW), (".", os.O_PATH)):
        descriptor = os.open(path, flags)
        notes.note(f"{path} stat", shown(descriptor, True))
        notes.do(f"{path} read", os.read, descriptor, 4)
        notes.do(f"{path} fchmod", os.fchmod, descriptor, 0o600)
        notes.do(f"{path} fchown", os.fchown, descriptor, 1, 1)
        notes.do(f"{path} getxattr", os.getxattr, descriptor, "user.x")
        notes.do(f"{path} mmap", mmap.mmap, descriptor, 4, prot=mmap.PROT_READ)
        notes.do(f"{path} fsync", os.fsync, descriptor)
        notes.do(f"{path} truncate", os.ftruncate, descriptor, 0)
        notes.do(f"{path} statfs", lambda: os.fstatvfs(descriptor).f_namemax)
        notes.do(f"{path} readlink", lambda: os.readlink("", dir_fd=descriptor))
        notes.do(f"{path} chownat", lambda: checked(LIBC.fchownat(descriptor, b"", 7, 8, AT_EMPTY_PATH)))
        notes.note(f"{path} after", shown(path))
        notes.tried(f"{path} reopened", f"/proc/self/fd/{descriptor}", os.O_RDONLY)
        os.close(descriptor)


@case
def appends(notes):
    put("file", b"0123456789")
    descriptor = os.open("file", os.O_RDWR | os.O_APPEND)
    notes.do("pwrite", os.pwrite, descriptor, b"AB", 0)
    notes.do("seek", os.lseek, descriptor, 0, 0)
    notes.do("write", os.write, descriptor, b"CD")
    notes.note("position", os.lseek(descriptor, 0, 1))
    notes.note("contents", got("file"))
    notes.do("pwritev2 append", os.pwritev, os.open("file", os.O_RDWR), [b"EF"], 0, os.RWF_APPEND)
    notes.note("contents", got("file"))
    notes.do("pwritev2 noappend", os.pwritev, descriptor, [b"xy"], 0, 0x20)
    notes.note("contents", got("file"))
    fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_RDWR)
    notes.do("pwrite without append", os.pwrite, descriptor, b"zz", 1)
    notes.note("contents", got("file"))
    # Several processes append at once: nothing is lost.
    put("log")

    def append():
        out = os.open("log", os.O_WRONLY | os.O_APPEND)
        for n in range(300):
            os.write(out, b"%6d %5d\n" % (os.getpid() % 1000000, n))

    children = []
    for _ in range(4):
        child = os.fork()
        if child == 0:
            append()
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    lines = got("log").splitlines()
    notes.note("lines", (len(lines), len(set(lines)), {len(line) for line in lines}))


def aligned(size, fill=b"d"):
    buffer = mmap.mmap(-1, max(size, 4096))
    buffer.write(fill * size)
    return buffer


@case
def direct_io(notes):
    descriptor = notes.open("open", "file", os.O_RDWR | os.O_CREAT | os.O_DIRECT)
    buffer = aligned(1 << 20)
    for size, offset in ((4096, 0), (65536, 4096), (1 << 20, 1 << 20), (4096, 1 << 22)):
        notes.do(f"write {size} at {offset}", os.pwritev, descriptor, [memoryview(buffer)[:size]], offset)
    notes.note("size", os.fstat(descriptor).st_size)
    back = aligned(1 << 20, b" ")
    for size, offset in ((4096, 0), (65536, 4096), (8192, (1 << 22) + 4096), (8192, 1 << 22), (4096, 1 << 30)):
        notes.do(f"read {size} at {offset}", os.preadv, descriptor, [memoryview(back)[:size]], offset)
    notes.note("data", hash_of(got("file")))
    # Coherent with other descriptors.
    plain_one = os.open("file", os.O_RDWR)
    os.pwrite(plain_one, b"P" * 4096, 8192)
    os.preadv(descriptor, [memoryview(back)[:4096]], 8192)
    notes.note("direct sees buffered", bytes(back[:3]))
    os.pread(plain_one, 4096, 16384)
    buffer[:4096] = b"Q" * 4096
    os.pwritev(descriptor, [memoryview(buffer)[:4096]], 16384)
    notes.note("buffered sees direct", os.pread(plain_one, 3, 16384))
    with mmap.mmap(plain_one, 65536) as window:
        window[20480:20483] = b"MMM"
        os.preadv(descriptor, [memoryview(back)[:4096]], 20480)
        notes.note("direct sees mapped", bytes(back[:3]))
        os.pwritev(descriptor, [memoryview(buffer)[:4096]], 20480)
        notes.note("mapped sees direct", window[20480:20483])
    os.ftruncate(descriptor, 5000)
    notes.do("read over the end", os.preadv, descriptor, [memoryview(back)[:8192]], 4096)
    os.ftruncate(descriptor, 20000)
    os.preadv(descriptor, [memoryview(back)[:8192]], 4096)
    notes.note("zeros after the old end", bytes(back[903:906]))


# -- times


@case
def times_of_calls(notes):
    os.mkdir("a")
    os.mkdir("b")
    os.mkdir("b/sub")
    time.sleep(0.03)
    put("a/file", b"x" * 100)
    put("a/other", b"x" * 100)
    os.link("a/file", "b/link")
    os.symlink("file", "a/symlink")
    descriptor = os.open("a/file", os.O_RDWR)
    watch = [descriptor, "a/file", "b/link", "a", "b", "a/other", "a/symlink", "b/sub"]

    def note(label, function, *arguments):
        notes.note(label, changed(watch, function, *arguments))

    note("nothing", lambda: None)
    note("chmod", os.chmod, "a/file", 0o600)
    note("chmod the same", os.chmod, "a/file", 0o600)
    note("chown", os.chown, "a/file", 3, 3)
    note("chown -1", os.chown, "a/file", -1, -1)
    note("lchown symlink", os.lchown, "a/symlink", 4, 4)
    note("link", os.link, "a/file", "b/second")
    note("unlink", os.unlink, "b/second")
    note("write", os.pwrite, descriptor, b"y", 0)
    note("write nothing", os.pwrite, descriptor, b"", 0)
    note("write beyond", os.pwrite, descriptor, b"y", 10000)
    note("truncate", os.ftruncate, descriptor, 50)
    note("truncate to the same", os.ftruncate, descriptor, 50)
    note("path truncate to the same", os.truncate, "a/file", 50)
    note("open with truncation", lambda: os.close(os.open("a/file", os.O_RDWR | os.O_TRUNC)))
    note("open with truncation, empty", lambda: os.close(os.open("a/file", os.O_RDWR | os.O_TRUNC)))
    note("open with O_CREAT", lambda: os.close(os.open("a/file", os.O_RDWR | os.O_CREAT)))
    note("fallocate", fallocate, descriptor, 0, 0, 100000)
    note("fallocate inside", fallocate, descriptor, 0, 0, 100000)
    note("fallocate keep", fallocate, descriptor, KEEP_SIZE, 50000, 10000)
    note("punch", fallocate, descriptor, PUNCH | KEEP_SIZE, 0, 8192)
    note("zero", fallocate, descriptor, ZERO, 0, 8192)
    note("setxattr", os.setxattr, "a/file", "user.x", b"1")
    note("removexattr", os.removexattr, "a/file", "user.x")
    note("removexattr missing", os.removexattr, "a/file", "user.x")
    note("getxattr", os.setxattr, "a", "user.x", b"1")
    note("mkdir", os.mkdir, "a/new")
    note("rmdir", os.rmdir, "a/new")
    note("create", lambda: put("a/new"))
    note("rename in directory", os.rename, "a/new", "a/new2")
    note("rename across", os.rename, "a/new2", "b/new2")
    note("rename over", os.rename, "b/new2", "a/other")
    note("rename a link to itself", os.rename, "a/file", "b/link")
    note("rename directory", os.rename, "b/sub", "a/sub")
    note("rename directory back", os.rename, "a/sub", "b/sub")
    note("exchange", renameat2, "a/file", "b/sub", EXCHANGE)
    note("exchange back", renameat2, "a/file", "b/sub", EXCHANGE)
    note("symlink", os.symlink, "x", "a/l")
    note("mkfifo", os.mkfifo, "b/f")
    note("fsync", os.fsync, descriptor)
    note("utimens", utimensat, "a/file", (1, 1), (2, 2))
    note("utimens the same", utimensat, "a/file", (1, 1), (2, 2))
    note("utimens omit", utimensat, "a/file", (0, (1 << 30) - 2), (0, (1 << 30) - 2))
    note("utimens mtime only", utimensat, "a/file", (0, (1 << 30) - 2), (5, 5))
    note("read", os.pread, descriptor, 10, 0)
    note("read again", os.pread, descriptor, 10, 0)
    note("listdir", lambda: str(len(os.listdir("a"))))
    note("readlink", os.readlink, "a/symlink")
    note("failed unlink", os.unlink, "a/nothing")
    note("failed rmdir", os.rmdir, "b")
    note("failed link", os.link, "a/file", "b/link")
    with mmap.mmap(descriptor, 4096) as window:

        def store():
            window[0:3] = b"abc"
            window.flush()

        note("mapped store and msync", store)
        note("load", lambda: window[1:2])
    held = os.open("a/other", os.O_RDWR)
    notes.note("unlink of an open file", changed([held, "a"], os.unlink, "a/other"))
    notes.note("write to a nameless file", changed([held, "a"], os.write, held, b"x"))
    note("copy_file_range", lambda: os.copy_file_range(descriptor, held, 100, 0, 0))
    notes.note("copied", changed([held, descriptor], lambda: os.copy_file_range(descriptor, held, 100, 0, 0)))
    notes.note("copied nothing", changed([held, descriptor], lambda: os.copy_file_range(descriptor, held, 0, 0, 0)))
    notes.note("copied beyond", changed([held, descriptor], lambda: os.copy_file_range(descriptor, held, 100, 1 << 20, 0)))
    notes.note("ioctl flags", changed(watch, lambda: ioctl(descriptor, 0x40086602, 8, struct.pack("Q", 0x40))))
    notes.note("sticky", changed(["a"], os.chmod, "a", 0o1777))
    # Times that a call sets are the same through all names and descriptors.
    notes.note("equal", len({times(path) for path in (descriptor, "a/file", "b/link")}))


@case
def times_that_are_set(notes):
    put("file")
    os.mkdir("dir")
    os.symlink("x", "link")
    for seconds in (
        0,
        1,
        -1,
        -(1 << 31),
        (1 << 31) - 1,
        1 << 31,
        (1 << 32) - 1,
        1 << 32,
        (1 << 33) + 5,
        15032385535,
        15032385536,
        -(1 << 31) - 1,
        1 << 40,
    ):
        for nanos in (0, 1, 999999999):
            for path in ("file", "dir", "link"):
                utimensat(path, (seconds, nanos), (seconds + 1, nanos), AT_SYMLINK_NOFOLLOW)
                found = os.lstat(path)
                notes.note(f"time {seconds}.{nanos} {path}", (found.st_atime_ns, found.st_mtime_ns))


@case
def times_that_others_may_set(notes):
    put("mine", b"", 0o644)
    os.chown("mine", NOBODY, NOBODY)
    put("writable", b"", 0o666)
    put("foreign", b"", 0o644)
    now, omit = (0, (1 << 30) - 1), (0, (1 << 30) - 2)

    def user(inner):
        for path in ("mine", "writable", "foreign"):
            for name, a, m in (
                ("now", now, now),
                ("set", (1, 0), (1, 0)),
                ("omit", omit, omit),
                ("now-omit", now, omit),
                ("set-now", (1, 0), now),
            ):
                inner.do(f"{path} {name}", utimensat, path, a, m)
            inner.tried(f"{path} noatime", path, os.O_RDONLY | os.O_NOATIME)

    as_user(notes, "user", user)


@case
def access_times(notes):
    put("file", b"data" * 2000)
    os.mkdir("dir")
    put("dir/x")
    os.symlink("target", "link")

    def age(seconds_a, seconds_m):
        now = int(time.time())
        for path in ("file", "dir", "link"):
            utimensat(path, (now - seconds_a, 0), (now - seconds_m, 0), AT_SYMLINK_NOFOLLOW)

    def read(flags=0):
        descriptor = os.open("file", os.O_RDONLY | flags)
        os.read(descriptor, 10)
        os.close(descriptor)

    for name, a, m in (("newer than mtime", 10, 20), ("older than mtime", 20, 10), ("a day old", 90000, 100000)):
        age(a, m)
        notes.note(f"read, {name}", changed(["file"], read))
        age(a, m)
        notes.note(f"read with noatime, {name}", changed(["file"], read, os.O_NOATIME))
        age(a, m)
        notes.note(f"mapped, {name}", changed(["file"], lambda: mapped_read("file")))
        age(a, m)
        notes.note(f"atime list, {name}", changed(["dir"], os.listdir, "dir"))
        age(a, m)
        notes.note(f"atime readlink, {name}", changed(["link"], os.readlink, "link"))
        age(a, m)
        notes.note(f"read nothing, {name}", changed(["file"], lambda: os.pread(os.open("file", 0), 0, 0)))
        age(a, m)
        notes.note(
            f"sendfile, {name}", changed(["file"], lambda: os.sendfile(os.open("/dev/null", 1), os.open("file", 0), 0, 100))
        )


def mapped_read(path):
    descriptor = os.open(path, os.O_RDONLY)
    with mmap.mmap(descriptor, 4096, prot=mmap.PROT_READ) as window:
        window[0:1]
    os.close(descriptor)


# -- sizes and contents


@case
def sizes_and_limits(notes):
    put("file", b"x" * 5000)
    descriptor = os.open("file", os.O_RDWR)
    notes.do("negative", os.ftruncate, descriptor, -1)
    notes.do("huge", os.ftruncate, descriptor, (1 << 63) - 1)
    notes.do("pwrite negative", os.pwrite, descriptor, b"x", -1)
    notes.do("pread negative", os.pread, descriptor, 1, -1)
    notes.do("pwrite at the largest offset", os.pwrite, descriptor, b"x", (1 << 63) - 1)
    notes.do("pread at the largest offset", os.pread, descriptor, 1, (1 << 63) - 1)
    notes.do("seek negative", os.lseek, descriptor, -1, 0)
    notes.do("seek before the start", os.lseek, descriptor, -6000, 2)
    notes.do("seek far", os.lseek, descriptor, 1 << 40, 0)
    notes.do("seek data far", os.lseek, descriptor, 1 << 40, os.SEEK_DATA)
    notes.do("seek data at the end", os.lseek, descriptor, 5000, os.SEEK_DATA)
    notes.do("seek hole at the end", os.lseek, descriptor, 5000, os.SEEK_HOLE)
    notes.do("seek hole at the last byte", os.lseek, descriptor, 4999, os.SEEK_HOLE)
    notes.do("seek data negative", os.lseek, descriptor, -1, os.SEEK_DATA)
    notes.do("read only truncate", os.ftruncate, os.open("file", os.O_RDONLY), 0)
    notes.do("truncate a directory", os.truncate, ".", 0)
    notes.do("write to a directory", os.write, os.open(".", os.O_RDONLY), b"x")
    notes.do("read a directory", os.read, os.open(".", os.O_RDONLY), 10)
    notes.do("seek in a directory", os.lseek, os.open(".", os.O_RDONLY), 0, 2)
    notes.do("fallocate nothing", fallocate, descriptor, 0, 0, 0)
    notes.do("fallocate negative", fallocate, descriptor, 0, -1, 10)
    notes.do("fallocate overflow", fallocate, descriptor, 0, (1 << 63) - 10, 100)
    notes.do("fallocate read only", fallocate, os.open("file", os.O_RDONLY), 0, 0, 100)
    notes.do("fallocate a directory", fallocate, os.open(".", os.O_RDONLY), 0, 0, 100)
    os.mkfifo("fifo")
    notes.do("fallocate a fifo", fallocate, os.open("fifo", os.O_RDWR), 0, 0, 100)
    notes.do("fsync a fifo", os.fsync, os.open("fifo", os.O_RDWR))
    notes.do("fallocate punch without keep", fallocate, descriptor, PUNCH, 0, 100)
    notes.do("fallocate unknown mode", fallocate, descriptor, 0x8000, 0, 100)
    notes.do("fallocate append only", fallocate, os.open("file", os.O_WRONLY | os.O_APPEND), 0, 0, 8000)
    notes.note("size", os.fstat(descriptor).st_size)


@case
def the_limit_of_a_file_s_size(notes):
    put("file", b"x" * 100)

    def limited(function):
        def run():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN if quiet else signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
            return function(os.open("file", os.O_RDWR)) % 251

        return in_child(run)

    for quiet in (False, True):
        for name, function in {
            "write within": lambda f: os.pwrite(f, b"y" * 100, 8000),
            "write across": lambda f: os.pwrite(f, b"y" * 1000, 8000),
            "write at": lambda f: os.pwrite(f, b"y", 8192),
            "write beyond": lambda f: os.pwrite(f, b"y", 9000),
            "truncate to": lambda f: os.ftruncate(f, 8192) or 0,
            "truncate beyond": lambda f: os.ftruncate(f, 8193) or 0,
            "truncate path beyond": lambda f: os.truncate("file", 8193) or 0,
            "fallocate beyond": lambda f: fallocate(f, 0, 0, 10000),
            "fallocate keep beyond": lambda f: fallocate(f, KEEP_SIZE, 0, 10000),
            "copy beyond": lambda f: os.copy_file_range(f, os.open("file2", os.O_RDWR | os.O_CREAT), 100, 0, 9000),
            "direct": lambda f: os.pwritev(os.open("file", os.O_RDWR | os.O_DIRECT), [memoryview(aligned(16384))], 4096),
            "append": lambda f: os.write(os.open("file", os.O_RDWR | os.O_APPEND), b"z" * 10000),
            "sendfile": lambda f: os.sendfile(f, os.open("/dev/zero", 0), None, 20000),
        }.items():
            notes.note(f"{name} {quiet}", (limited(function), os.stat("file").st_size))
            os.truncate("file", 100)


@case
def holes(notes):
    descriptor = os.open("file", os.O_RDWR | os.O_CREAT)
    block = 65536
    for n in (1, 3, 4, 9):
        os.pwrite(descriptor, b"d" * block, n * block)
    os.ftruncate(descriptor, 20 * block)

    def seen():
        found, at = [], 0
        while True:
            try:
                start = os.lseek(descriptor, at, os.SEEK_DATA)
            except OSError:
                return found
            at = os.lseek(descriptor, start, os.SEEK_HOLE)
            found.append((start, at))

    notes.note("before sync", seen())
    os.fsync(descriptor)
    notes.note("after sync", seen())
    notes.note("blocks", os.fstat(descriptor).st_blocks // 128)
    fallocate(descriptor, PUNCH | KEEP_SIZE, 3 * block, block)
    notes.note("punched", seen())
    fallocate(descriptor, PUNCH | KEEP_SIZE, 9 * block + 100, 1000)
    notes.note("punched inside of a block", seen())
    with mmap.mmap(descriptor, 20 * block) as window:
        window[15 * block] = 1
        notes.note("mapped store", seen())
        window.flush()
    notes.note("mapped store synced", [at for at in seen() if at[0] < 15 * block])
    os.ftruncate(descriptor, 4 * block)
    notes.note("shorter", seen())
    os.ftruncate(descriptor, 1 << 32)
    notes.note("longer", seen())
    for at in (0, 1, block, block + 1, 5 * block, (1 << 32) - 1, 1 << 32):
        for whence in (os.SEEK_DATA, os.SEEK_HOLE):
            notes.do(f"seek {at} {whence}", os.lseek, descriptor, at, whence)


def sparse_reads(descriptor, size):
    return hash_of(os.pread(descriptor, size, 0))


@case
def allocation(notes):
    for mode in (0, KEEP_SIZE, PUNCH | KEEP_SIZE, ZERO, ZERO | KEEP_SIZE):
        for start, length in ((0, 10000), (100, 50), (4096, 4096), (5000, 100000), (200000, 5000), (19000, 2000)):
            put("file", bytes(range(250)) * 80)
            descriptor = os.open("file", os.O_RDWR)
            notes.do(f"mode {mode} {start}+{length}", fallocate, descriptor, mode, start, length)
            notes.note("then", (os.fstat(descriptor).st_size, sparse_reads(descriptor, 300000)))
            os.ftruncate(descriptor, 400000)
            notes.note("longer", sparse_reads(descriptor, 400000))
            os.pwrite(descriptor, b"w" * 300, 250000)
            os.fsync(descriptor)
            notes.note("written", sparse_reads(descriptor, 400000))
            os.close(descriptor)


@case
def copies_between_files(notes):
    data = bytes(range(256)) * 1000
    put("from", data)
    put("to", b"t" * 1000)
    source, target = os.open("from", os.O_RDWR), os.open("to", os.O_RDWR)
    for name, arguments in {
        "whole": (source, target, len(data), 0, 0),
        "middle": (source, target, 5000, 100, 7),
        "beyond": (source, target, 5000, len(data), 0),
        "over the end": (source, target, 5000, len(data) - 100, 10),
        "nothing": (source, target, 0, 0, 0),
        "within": (source, source, 1000, 0, 100000),
        "overlap": (source, source, 1000, 0, 500),
        "append": (source, os.open("to", os.O_WRONLY | os.O_APPEND), 10, 0, 0),
        "to read only": (source, os.open("to", os.O_RDONLY), 10, 0, 0),
        "from write only": (os.open("from", os.O_WRONLY), target, 10, 0, 0),
        "to a directory": (source, os.open(".", os.O_RDONLY), 10, 0, 0),
        "from a directory": (os.open(".", os.O_RDONLY), target, 10, 0, 0),
        "to a pipe": (source, os.pipe()[1], 10, 0, None),
        "from proc": (os.open("/proc/self/status", 0), target, 1000, None, 0),
        "past a hole": (source, target, 10, 0, 1 << 33),
    }.items():
        fd_in, fd_out, count, at_in, at_out = arguments
        result = notes.do(name, os.copy_file_range, fd_in, fd_out, count, at_in, at_out) if name != "from proc" else None
        notes.note("sizes", (os.fstat(source).st_size, os.fstat(target).st_size))
        if os.fstat(target).st_size < 1 << 30:
            notes.note("target", hash_of(got("to")) if name != "from proc" else "")
    reader, writer = os.pipe()
    os.lseek(source, 10, 0)
    notes.do("splice out", os.splice, source, writer, 1000)
    notes.do("splice in", os.splice, reader, target, 1000, offset_dst=20)
    notes.note("position", os.lseek(source, 0, 1))
    notes.note("spliced", hash_of(os.pread(target, 5000, 0)))
    notes.do("sendfile", os.sendfile, target, source, 0, 70000)
    notes.do("sendfile offset", os.sendfile, target, source, 100, 70000)
    for request, name in ((0x40049409, "FICLONE"),):
        notes.do(name, fcntl.ioctl, target, request, source)
    notes.do("FICLONERANGE", ioctl, target, 0x4020940D, 32, struct.pack("qQQQ", source, 0, 4096, 0))
    notes.do("FIDEDUPERANGE", ioctl, source, 0xC0189436, 64, struct.pack("QQHHIqQQiI", 0, 4096, 1, 0, 0, target, 0, 0, 0, 0))
    notes.do("readahead", lambda: checked(LIBC.readahead(source, 0, 100000)))
    notes.do("fadvise", os.posix_fadvise, source, 0, 0, os.POSIX_FADV_DONTNEED)
    notes.note("source", hash_of(got("from")))
    notes.do("sync_file_range", lambda: checked(LIBC.sync_file_range(target, ctypes.c_long(0), ctypes.c_long(0), 7)))
    notes.do("pwritev2 dsync", os.pwritev, target, [b"abc"], 0, os.RWF_DSYNC)
    notes.do("pwritev2 sync", os.pwritev, target, [b"abc"], 0, os.RWF_SYNC)


@case
def mappings(notes):
    put("file", b"f" * 10000)
    descriptor = os.open("file", os.O_RDWR)
    window = mmap.mmap(descriptor, 10000)
    notes.note("behind the end", window.size())
    window[9000:9003] = b"MAP"
    notes.note("read sees store", os.pread(descriptor, 3, 9000))
    os.pwrite(descriptor, b"WRITE", 100)
    notes.note("load sees write", window[100:105])
    window.flush()
    window.close()
    # The part of the last page behind the end never reaches the file.
    page = LIBC.mmap
    page.restype, page.argtypes = ctypes.c_void_p, [
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_long,
    ]
    LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    LIBC.msync.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    at = page(None, 32768, 3, 1, descriptor, 0)
    ctypes.memset(at + 10000, 0x5A, 2000)
    notes.do("msync", lambda: checked(LIBC.msync(at, 12288, 4)))
    os.ftruncate(descriptor, 12000)
    notes.note("behind the old end", os.pread(descriptor, 10, 10000))
    notes.note("sigbus", in_child(lambda: ctypes.string_at(at + 16384, 1) and 0))
    notes.note("store sigbus", in_child(lambda: ctypes.memset(at + 16384, 1, 1) and 0))
    os.ftruncate(descriptor, 4096)
    notes.note("sigbus after truncation", in_child(lambda: ctypes.string_at(at + 8192, 1) and 0))
    os.ftruncate(descriptor, 20000)
    notes.note("after growth", ctypes.string_at(at + 4090, 20))
    ctypes.memset(at + 16384, 0x41, 10)
    notes.note("stored after growth", os.pread(descriptor, 12, 16384))
    fallocate(descriptor, PUNCH | KEEP_SIZE, 16384, 3616)
    notes.note("punched", ctypes.string_at(at + 16384, 4))
    ctypes.memset(at + 16384, 0x42, 4)
    os.unlink("file")
    notes.note("nameless", os.pread(descriptor, 4, 16384))
    LIBC.munmap(at, 32768)
    notes.do("fsync", os.fsync, descriptor)
    # Rights of mappings.
    put("file", b"data")
    reading = os.open("file", os.O_RDONLY)
    notes.do("shared writable of read only", lambda: mmap.mmap(reading, 4, prot=3) and 1)
    notes.do("private writable of read only", lambda: mmap.mmap(reading, 4, flags=mmap.MAP_PRIVATE, prot=3) and 1)
    notes.do("of write only", lambda: mmap.mmap(os.open("file", os.O_WRONLY), 4, prot=2) and 1)
    notes.do("of a directory", lambda: mmap.mmap(os.open(".", os.O_RDONLY), 4096, prot=1) and 1)
    private = mmap.mmap(reading, 4, flags=mmap.MAP_PRIVATE, prot=3)
    private[0] = 65
    notes.note("private store", (got("file"), private[:]))
    notes.do("sync map", lambda: page(None, 4096, 3, 0x80003, os.open("file", os.O_RDWR), 0) is not None)


@case
def writes_from_and_to_mappings_of_the_same_file(notes):
    put("file", b"a" * 65536)
    descriptor = os.open("file", os.O_RDWR)
    window = mmap.mmap(descriptor, 65536)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    notes.do("write from own mapping", os.pwritev, descriptor, [memoryview(window)[0:8192]], 4000)
    notes.do("read into own mapping", os.preadv, descriptor, [memoryview(window)[30000:40000]], 100)
    notes.note("contents", hash_of(got("file")))
    direct = os.open("file", os.O_RDWR | os.O_DIRECT)
    notes.do("direct from own mapping", os.pwritev, direct, [memoryview(window)[0:8192]], 16384)
    notes.do("direct into own mapping", os.preadv, direct, [memoryview(window)[0:8192]], 32768)
    notes.note("contents", hash_of(got("file")))
    # Parts of a vector that cannot be read end the write there.
    notes.do(
        "bad address", lambda: checked(LIBC.pwrite(descriptor, ctypes.c_void_p(8), ctypes.c_size_t(100), ctypes.c_long(0)))
    )
    notes.note("contents", hash_of(got("file")))


@case
def sticky_ends_of_files(notes):
    """Bytes behind the end of a file are zero when it grows, however it became shorter and grows."""
    shrink = {
        "truncate": lambda f: os.ftruncate(f, 5000),
        "open": lambda f: os.close(os.open("file", os.O_RDWR | os.O_TRUNC)),
    }
    grow = {
        "truncate": lambda f: os.ftruncate(f, 30000),
        "write": lambda f: os.pwrite(f, b"e", 29999),
        "fallocate": lambda f: fallocate(f, 0, 0, 30000),
        "zero range": lambda f: fallocate(f, ZERO, 20000, 10000),
        "direct write": lambda f: os.pwritev(os.open("file", os.O_RDWR | os.O_DIRECT), [memoryview(aligned(4096))], 24576),
        "copy": lambda f: os.copy_file_range(os.open("other", 0), f, 100, 0, 29900),
    }
    put("other", b"o" * 1000)
    for first, less in shrink.items():
        for second, more in grow.items():
            for sync in (False, True):
                put("file", b"s" * 30000)
                descriptor = os.open("file", os.O_RDWR)
                window = mmap.mmap(descriptor, 30000)
                less(descriptor)
                if sync:
                    os.fsync(descriptor)
                more(descriptor)
                notes.note(f"{first} {second} {sync}", (hash_of(got("file")), hash_of(window[:])))
                window.close()
                os.close(descriptor)


# -- rights


@case
def changes_of_mode_and_owner(notes):
    groups = (100, 200)

    def look(path):
        return (oct(os.lstat(path).st_mode), os.lstat(path).st_uid, os.lstat(path).st_gid)

    os.chmod(".", 0o777)
    for mode in (0o755, 0o4755, 0o2755, 0o6777, 0o2644, 0o6644, 0o1777):
        for kind in ("file", "dir"):
            for owner, group in ((NOBODY, NOBODY), (NOBODY, 100), (NOBODY, 300), (5, 100)):

                def make(path="x"):
                    if os.path.isdir(path):
                        os.rmdir(path)
                    elif os.path.exists(path):
                        os.unlink(path)
                    put(path, b"x" * 100) if kind == "file" else os.mkdir(path)
                    os.chown(path, owner, group)
                    os.chmod(path, mode)

                calls = {
                    "chmod 6777": lambda: os.chmod("x", 0o6777),
                    "chmod 755": lambda: os.chmod("x", 0o755),
                    "chown same": lambda: os.chown("x", owner, group),
                    "chown -1": lambda: os.chown("x", -1, -1),
                    "chgrp 100": lambda: os.chown("x", -1, 100),
                    "chgrp 300": lambda: os.chown("x", -1, 300),
                    "chown 5": lambda: os.chown("x", 5, -1),
                }
                if kind == "file":
                    calls.update(
                        {
                            "write": lambda: os.pwrite(os.open("x", os.O_WRONLY), b"y", 0),
                            "truncate": lambda: os.truncate("x", 10),
                            "truncate same": lambda: os.truncate("x", 100),
                            "open trunc": lambda: os.close(os.open("x", os.O_WRONLY | os.O_TRUNC)),
                            "fallocate": lambda: fallocate(os.open("x", os.O_WRONLY), 0, 0, 5000),
                            "punch": lambda: fallocate(os.open("x", os.O_WRONLY), 3, 0, 5000),
                            "direct": lambda: os.pwritev(
                                os.open("x", os.O_WRONLY | os.O_DIRECT), [memoryview(aligned(4096))], 0
                            ),
                            "copy": lambda: os.copy_file_range(os.open("x", 0), os.open("x", os.O_WRONLY), 10, 0, 50),
                            "xattr": lambda: os.setxattr("x", "user.a", b"1"),
                            "splice": lambda: os.splice(piped(), os.open("x", os.O_WRONLY), 3),
                        }
                    )
                for name, call in calls.items():
                    label = f"{mode:o} {kind} {owner}:{group} {name}"
                    make()
                    notes.do(f"root {label}", call)
                    notes.note("then", look("x"))
                    make()
                    as_user(notes, "user", lambda inner: inner.do(label, call), groups=groups)
                    notes.note("then", look("x"))


def piped():
    reader, writer = os.pipe()
    os.write(writer, b"abc")
    return reader


@case
def new_files_in_directories_with_a_group(notes):
    os.chmod(".", 0o777)
    for mode, group in ((0o777, 100), (0o2777, 100), (0o2777, 300), (0o2777, NOBODY), (0o3777, 300)):
        os.mkdir("d")
        os.chown("d", 0, group)
        os.chmod("d", mode)
        for umask in (0, 0o22, 0o77):

            def make(inner):
                os.umask(umask)
                for wanted in (0o755, 0o2755, 0o4755, 0o2745, 0o2644):
                    inner.do("create", lambda: os.close(os.open("d/f", os.O_CREAT | os.O_EXCL | os.O_WRONLY, wanted)))
                    inner.note(f"{wanted:o}", shown("d/f"))
                    inner.do("mkdir", os.mkdir, "d/d", wanted)
                    inner.note(f"{wanted:o}", shown("d/d"))
                    inner.do("mknod", os.mkfifo, "d/p", wanted)
                    inner.note(f"{wanted:o}", shown("d/p"))
                    inner.do("symlink", os.symlink, "x", "d/l")
                    inner.note(f"{wanted:o}", shown("d/l"))
                    temporary = os.open("d", os.O_TMPFILE | os.O_RDWR, wanted)
                    found = os.fstat(temporary)
                    inner.note(f"tmpfile {wanted:o}", (oct(found.st_mode), found.st_uid, found.st_gid))
                    os.close(temporary)
                    for path in ("d/f", "d/p", "d/l"):
                        os.unlink(path)
                    os.rmdir("d/d")

            as_user(notes, f"{mode:o} {group} {umask:o} user", make, groups=(100,))
            as_user(notes, f"{mode:o} {group} {umask:o} root", make, uid=0, gid=0, groups=(100,))
        os.rmdir("d")


@case
def sticky_directories(notes):
    os.mkdir("d")
    os.chmod("d", 0o1777)
    for owner in (0, 5, NOBODY):
        put(f"d/f{owner}", b"", 0o666)
        os.chown(f"d/f{owner}", owner, owner)
        os.mkdir(f"d/d{owner}")
        os.chown(f"d/d{owner}", owner, owner)
        os.chmod(f"d/d{owner}", 0o777)
    os.mkdir("free")
    os.chmod("free", 0o777)

    def user(inner):
        put("free/own", b"own")
        for owner in (0, 5, NOBODY):
            inner.do(f"rename {owner}", os.rename, f"d/f{owner}", "free/x")
            inner.do(f"rename back {owner}", os.rename, "free/x", f"d/f{owner}")
            inner.do(f"rename over {owner}", os.rename, "free/own", f"d/f{owner}")
            put("free/own", b"own")
            inner.do(f"exchange {owner}", renameat2, "free/own", f"d/f{owner}", EXCHANGE)
            inner.do(f"link {owner}", os.link, f"d/f{owner}", "free/linked")
            inner.do(f"unlink {owner}", os.unlink, f"d/f{owner}")
            inner.do(f"rename dir {owner}", os.rename, f"d/d{owner}", "free/y")
            inner.do(f"rmdir {owner}", os.rmdir, f"d/d{owner}")
        inner.note("left", sorted(os.listdir("d")))

    as_user(notes, "user", user)


@case
def rights_of_directories_and_files(notes):
    for mode in (0, 0o1, 0o2, 0o3, 0o4, 0o5, 0o6, 0o7, 0o100, 0o700, 0o770, 0o70):
        os.mkdir(f"d{mode:o}")
        put(f"d{mode:o}/f", b"x", 0o666)
        os.mkdir(f"d{mode:o}/sub")
        os.chmod(f"d{mode:o}", mode)
        put(f"f{mode:o}", b"x", mode)
    os.chmod(".", 0o755)

    def user(inner):
        for mode in (0, 0o1, 0o2, 0o3, 0o4, 0o5, 0o6, 0o7, 0o100, 0o700, 0o770, 0o70):
            d, f = f"d{mode:o}", f"f{mode:o}"
            inner.do(f"{d} list", lambda: sorted(os.listdir(d)))
            inner.do(f"{d} stat below", shown, f"{d}/f")
            inner.do(f"{d} missing", os.stat, f"{d}/nothing")
            inner.do(f"{d} create", put, f"{d}/new")
            inner.do(f"{d} mkdir", os.mkdir, f"{d}/newdir")
            inner.do(f"{d} unlink", os.unlink, f"{d}/f")
            inner.do(f"{d} rename", os.rename, f"{d}/sub", f"{d}/sub2")
            inner.do(f"{d} chdir", lambda: in_child(lambda: os.chdir(d)))
            inner.do(f"{d} xattr", os.setxattr, d, "user.x", b"1")
            inner.do(f"{d} list xattr", os.listxattr, d)
            for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_PATH):
                inner.tried(f"{f} open {flags}", f, flags)
            inner.do(f"{f} exec", lambda: in_child(lambda: os.execv(f, ["x"])))
            inner.do(f"{f} getxattr", os.getxattr, f, "user.x")
            inner.do(f"{f} setxattr", os.setxattr, f, "user.x", b"1")
            inner.do(f"{f} truncate", os.truncate, f, 0)
            for right in (1, 2, 4, 7):
                inner.note(f"{f} access {right}", os.access(f, right))

    as_user(notes, "user", user)
    as_user(notes, "group", user, uid=NOBODY, gid=0)


@case
def user_namespaces(notes):
    os.chmod(".", 0o777)
    put("root-file", b"x", 0o644)
    script = """
        id -u; touch mine; chown 0:0 mine; echo $?; chmod 4755 mine; stat -c '%u %g %a' mine root-file;
        chown 1:1 mine 2>/dev/null; echo $?; mknod dev c 1 3 2>/dev/null; echo $?; mkfifo fifo; echo $?; chmod 600 root-file 2>/dev/null; echo $?;
        setfattr -n trusted.x -v 1 mine 2>/dev/null; echo $?; setfattr -n user.x -v 1 mine; echo $?;
        setcap cap_net_raw+ep mine 2>/dev/null; echo $?; getfattr -m - mine; ln root-file hard 2>/dev/null; echo $?; rm -f mine; echo $?
    """
    done = subprocess.run(
        ["setpriv", "--reuid", "1234", "--regid", "1234", "--clear-groups", "unshare", "-U", "-r", "sh", "-c", script],
        capture_output=True, text=True,
    )  # fmt: skip
    notes.note("unshare", (done.returncode, done.stdout, done.stderr))
    notes.note("tree", tree())


# -- attributes


@case
def extended_attributes(notes):
    put("file", b"x")
    os.mkdir("dir")
    os.symlink("file", "link")
    os.mkfifo("fifo")
    for path in ("file", "dir", "link", "fifo"):

        def do(label, function, *arguments, **named):
            notes.do(f"{path} {label}", function, path, *arguments, follow_symlinks=False, **named)

        for name in (
            "user.a",
            "trusted.a",
            "security.a",
            "system.a",
            "other.a",
            "a",
            "user.",
            "user",
            ".a",
            "",
            "user." + "n" * 250,
            "user." + "n" * 251,
            "trusted.",
            "security.",
            "system.posix_acl_access",
            "user.\udcff",
            "User.a",
            "trusted.overlay.opaque",
            "btrfs.x",
            "security.selinux",
            "security.capability",
            "security.ima",
            "security.evm",
        ):
            label = name if len(name) < 60 else f"~{len(name)}"
            do(f"get {label}", os.getxattr, name)
            do(f"set {label}", os.setxattr, name, b"value")
            do(f"get {label}", os.getxattr, name)
            do(f"remove {label}", os.removexattr, name)
            do(f"remove {label} again", os.removexattr, name)
        do("create", os.setxattr, "trusted.b", b"1", os.XATTR_CREATE)
        do("create again", os.setxattr, "trusted.b", b"2", os.XATTR_CREATE)
        do("replace", os.setxattr, "trusted.b", b"3", os.XATTR_REPLACE)
        do("replace missing", os.setxattr, "trusted.c", b"3", os.XATTR_REPLACE)
        do("both flags", os.setxattr, "trusted.b", b"4", 3)
        do("wrong flags", os.setxattr, "trusted.b", b"4", 8)
        do("empty value", os.setxattr, "trusted.e", b"")
        do("get empty", os.getxattr, "trusted.e")
        do("list", lambda path, follow_symlinks: sorted(os.listxattr(path, follow_symlinks=follow_symlinks)))
        for size in (1, 3, 4, 100, 1000, 2000, 3000, 3900):
            do(f"size {size}", os.setxattr, "trusted.s", b"s" * size)
            do(
                f"get {size}",
                lambda path, follow_symlinks: hash_of(os.getxattr(path, "trusted.s", follow_symlinks=follow_symlinks)),
            )
            do("others", os.getxattr, "trusted.b")
        do("size 65537", os.setxattr, "trusted.s", b"s" * 65537)
        do("get kept", lambda path, follow_symlinks: len(os.getxattr(path, "trusted.s", follow_symlinks=follow_symlinks)))
        buffer = ctypes.create_string_buffer(5)
        notes.do(f"{path} short buffer", lambda: checked(LIBC.lgetxattr(raw(path), b"trusted.s", buffer, 5)))
        notes.do(f"{path} short list", lambda: checked(LIBC.llistxattr(raw(path), buffer, 5)))
        notes.do(f"{path} no buffer", lambda: checked(LIBC.lgetxattr(raw(path), b"trusted.s", None, 0)))
        notes.do(f"{path} no list", lambda: checked(LIBC.llistxattr(raw(path), None, 0)))
    os.chmod(".", 0o755)
    os.chmod("file", 0o666)
    os.chown("dir", NOBODY, NOBODY)
    put("read", b"", 0o644)
    os.mkdir("sticky")
    os.chmod("sticky", 0o1777)

    def user(inner):
        for path in ("file", "dir", "link", "fifo", "read", "sticky"):
            inner.do(f"{path} list", lambda: sorted(os.listxattr(path, follow_symlinks=False)))
            for name in ("user.u", "trusted.b", "trusted.z", "security.u", "system.u"):
                inner.do(f"{path} {name} set", os.setxattr, path, name, b"1", follow_symlinks=False)
                inner.do(f"{path} {name} get", os.getxattr, path, name, follow_symlinks=False)
                inner.do(f"{path} {name} remove", os.removexattr, path, name, follow_symlinks=False)

    as_user(notes, "user", user)


@case
def many_attributes(notes):
    put("file")
    for n in range(40):
        notes.do(f"set {n}", os.setxattr, "file", f"user.name{n}", b"v" * n)
    notes.note("list", sorted(os.listxattr("file")))
    for n in range(0, 40, 3):
        os.removexattr("file", f"user.name{n}")
    for n in range(1, 40, 3):
        os.setxattr("file", f"user.name{n}", b"w" * (39 - n))
    notes.note("all", [(name, os.getxattr("file", name)) for name in sorted(os.listxattr("file"))])


def acl(*entries):
    """Encodes system.posix_acl_*: (tag, permissions, id)."""
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


NO_ID = 0xFFFFFFFF


@case
def access_control_lists(notes):
    put("file", b"x", 0o640)
    os.mkdir("dir", 0o750)
    base = [(1, 7, NO_ID), (4, 5, NO_ID), (32, 0, NO_ID)]
    extended = [(1, 7, NO_ID), (2, 6, NOBODY), (4, 5, NO_ID), (8, 4, 100), (16, 6, NO_ID), (32, 1, NO_ID)]
    lists = {
        "base": base,
        "extended": extended,
        "no mask": extended[:4] + extended[5:],
        "no owner": extended[1:],
        "no other": extended[:-1],
        "wrong order": list(reversed(extended)),
        "twice": extended[:2] + extended[1:],
        "wrong tag": [(3, 7, NO_ID)] + base,
        "wrong perm": [(1, 15, NO_ID)] + base[1:],
        "empty": [],
        "many": [(1, 7, NO_ID)] + [(2, 6, 1000 + n) for n in range(50)] + [(4, 5, NO_ID), (16, 7, NO_ID), (32, 1, NO_ID)],
        "mask only": [(1, 7, NO_ID), (4, 5, NO_ID), (16, 4, NO_ID), (32, 0, NO_ID)],
    }
    for kind in ("access", "default"):
        for path in ("file", "dir"):
            for name, entries in lists.items():
                attribute = f"system.posix_acl_{kind}"
                notes.do(f"{kind} {path} {name}", os.setxattr, path, attribute, acl(*entries))
                notes.note("mode", oct(os.stat(path).st_mode))
                notes.do("get", os.getxattr, path, attribute)
                notes.do("list", lambda: sorted(os.listxattr(path)))
            notes.do(f"{kind} {path} version", os.setxattr, path, attribute, b"\1\0\0\0" + acl(*base)[4:])
            notes.do(f"{kind} {path} short", os.setxattr, path, attribute, acl(*base)[:-3])
            notes.do(f"{kind} {path} remove", os.removexattr, path, attribute)
            notes.do(f"{kind} {path} remove again", os.removexattr, path, attribute)
    os.symlink("file", "link")
    notes.do("of a link", lambda: os.setxattr("link", "system.posix_acl_access", acl(*base), follow_symlinks=False))
    # chmod changes the mask, and the mask limits.
    os.setxattr("file", "system.posix_acl_access", acl(*extended))
    for mode in (0o777, 0o700, 0o2755, 0o604):
        os.chmod("file", mode)
        notes.note(f"chmod {mode:o}", (oct(os.stat("file").st_mode), os.getxattr("file", "system.posix_acl_access")))
    # Inheritance.
    for name in ("extended", "many", "base", "mask only"):
        os.setxattr("dir", "system.posix_acl_default", acl(*lists[name]))
        for umask in (0, 0o27, 0o77):
            os.umask(umask)
            put2 = os.open("dir/f", os.O_CREAT | os.O_WRONLY, 0o666)
            os.close(put2)
            os.mkdir("dir/d", 0o777)
            os.mkfifo("dir/p", 0o660)
            os.symlink("x", "dir/l")
            temporary = os.open("dir", os.O_TMPFILE | os.O_RDWR, 0o664)
            linkat(AT_FDCWD, f"/proc/self/fd/{temporary}", "dir/t", AT_SYMLINK_FOLLOW)
            os.close(temporary)
            for path in ("dir/f", "dir/d", "dir/p", "dir/l", "dir/t"):
                notes.note(
                    f"inherit {name} {umask:o} {path}",
                    (
                        shown(path)[0],
                        sorted(
                            (key, os.getxattr(path, key, follow_symlinks=False))
                            for key in os.listxattr(path, follow_symlinks=False)
                        ),
                    ),
                )
            for path in ("dir/f", "dir/p", "dir/l", "dir/t"):
                os.unlink(path)
            os.rmdir("dir/d")
        os.umask(0o22)
    # What the lists allow.
    os.chmod(".", 0o755)
    put("by-user", b"x", 0o600)
    os.setxattr(
        "by-user",
        "system.posix_acl_access",
        acl((1, 6, NO_ID), (2, 4, NOBODY), (4, 0, NO_ID), (8, 6, 100), (16, 6, NO_ID), (32, 0, NO_ID)),
    )
    put("by-group", b"x", 0o600)
    os.setxattr(
        "by-group",
        "system.posix_acl_access",
        acl((1, 6, NO_ID), (4, 0, NO_ID), (8, 6, 100), (8, 4, 200), (16, 4, NO_ID), (32, 7, NO_ID)),
    )

    def user(inner):
        for path in ("by-user", "by-group"):
            inner.tried(f"{path} r", path, os.O_RDONLY)
            inner.tried(f"{path} w", path, os.O_WRONLY)
            inner.do(f"{path} set", os.setxattr, path, "system.posix_acl_access", acl(*base))
            inner.do(f"{path} get", os.getxattr, path, "system.posix_acl_access")
            inner.do(f"{path} remove", os.removexattr, path, "system.posix_acl_access")

    for uid, gid, groups in (
        (NOBODY, NOBODY, ()),
        (NOBODY, NOBODY, (100,)),
        (7, 7, (100,)),
        (7, 7, (200,)),
        (7, 7, ()),
        (7, 200, (100,)),
    ):
        as_user(notes, f"{uid} {gid} {groups}", user, uid, gid, groups)
    # An owner outside of the group loses set-group-id by setting a list.
    for group in (100, 300):
        put("sgid", b"", 0o755)
        os.chown("sgid", NOBODY, group)
        os.chmod("sgid", 0o2755)
        as_user(
            notes,
            f"sgid {group}",
            lambda inner: inner.do(
                "set", os.setxattr, "sgid", "system.posix_acl_access", acl((1, 7, NO_ID), (4, 7, NO_ID), (32, 5, NO_ID))
            ),
            groups=(100,),
        )
        notes.note("mode", oct(os.stat("sgid").st_mode))


@case
def capabilities(notes):
    value = struct.pack("<IIIII", 0x02000001, 1 << 13, 0, 0, 0)
    os.chmod(".", 0o777)
    calls = {
        "write": lambda: os.pwrite(os.open("f", os.O_WRONLY), b"y", 0),
        "truncate": lambda: os.truncate("f", 0),
        "chown": lambda: os.chown("f", 0, 0),
        "chmod": lambda: os.chmod("f", 0o755),
        "link": lambda: os.link("f", "g"),
        "utimens": lambda: utimensat("f", (1, 1), (1, 1)),
        "fallocate": lambda: fallocate(os.open("f", os.O_WRONLY), 0, 0, 100),
        "rename": lambda: (os.rename("f", "h"), os.rename("h", "f"))[0],
    }
    for name, call in calls.items():
        for who in (0, NOBODY):
            put("f", b"x", 0o777)
            os.setxattr("f", "security.capability", value)
            as_user(notes, f"{name} {who}", lambda inner: inner.do("call", call), uid=who, gid=who)
            notes.do("kept", os.getxattr, "f", "security.capability")
            notes.note("mode", shown("f")[0])
            os.unlink("f")
            if os.path.exists("g"):
                os.unlink("g")


# -- flags


@case
def inode_flags(notes):
    GET, SET, FSGET, FSSET, VERSION, SETVERSION = 0x80086601, 0x40086602, 0x801C581F, 0x401C5820, 0x80087601, 0x40087602
    put("file", b"data")
    os.mkdir("dir")
    put("dir/x", b"x")
    for path in ("file", "dir"):
        descriptor = os.open(path, os.O_RDONLY)
        for flag in (0x8, 0x40, 0x80, 0x10, 0x20, 0x30, 0x10000, 0x4000, 0x800000, 0x2, 0x1, 0x1000, 0x40000000):
            notes.do(f"flag {path} set {flag:x}", ioctl, descriptor, SET, 8, struct.pack("Q", flag))
            notes.do(
                f"flag {path} get {flag:x}",
                lambda: hex(struct.unpack("I", ioctl(descriptor, GET, 8)[:4])[0] & ~0x80000 & ~0x10000000),
            )
            if flag in (0x10, 0x20, 0x30):
                guarded(notes, path, flag)
            try:
                ioctl(descriptor, SET, 8, struct.pack("Q", 0))
            except OSError:
                pass
        notes.do(f"{path} fsxattr", lambda: struct.unpack("IIIII", ioctl(descriptor, FSGET, 28)[:20])[0] & ~0x80000000)
        notes.do(f"{path} fsxattr set", lambda: ioctl(descriptor, FSSET, 28, struct.pack("I", 0x40)) and 1)
        notes.do(f"{path} fsxattr back", lambda: struct.unpack("I", ioctl(descriptor, FSGET, 28)[:4])[0] & ~0x80000000)
        notes.do(f"{path} fsxattr unset", lambda: ioctl(descriptor, FSSET, 28, struct.pack("I", 0)) and 1)
        notes.do(f"{path} version", lambda: len(ioctl(descriptor, VERSION, 8)))
        notes.do(f"{path} FIGETBSZ", lambda: struct.unpack("I", ioctl(descriptor, 2, 4))[0])
        notes.do(f"{path} FIONREAD", lambda: struct.unpack("I", ioctl(descriptor, 0x541B, 4))[0])
        notes.do(f"{path} FIOQSIZE", lambda: ioctl(descriptor, 0x5460, 8) and 1)
        notes.do(f"{path} FIBMAP", lambda: ioctl(descriptor, 1, 4, struct.pack("I", 0)) and 1)
        notes.do(f"{path} unknown", ioctl, descriptor, 0x12345678, 8)
        notes.do(f"{path} TCGETS", ioctl, descriptor, 0x5401, 64)
        notes.do(f"{path} label", lambda: ioctl(descriptor, 0x81009431, 256) and 1)
        os.close(descriptor)
    os.chmod("file", 0o666)

    def user(inner):
        descriptor = os.open("file", os.O_RDWR)
        for flag in (0x10, 0x20, 0x40, 0x80):
            inner.do(f"set {flag:x}", ioctl, descriptor, SET, 8, struct.pack("Q", flag))
        inner.do("get", lambda: len(ioctl(descriptor, GET, 8)))

    as_user(notes, "user", user)
    os.chown("file", NOBODY, NOBODY)
    as_user(notes, "owner", user)
    # Inherited by new files.
    os.mkdir("parent")
    descriptor = os.open("parent", os.O_RDONLY)
    ioctl(descriptor, SET, 8, struct.pack("Q", 0x40 | 0x80 | 0x8))
    put("parent/new")
    os.mkdir("parent/sub")
    for path in ("parent/new", "parent/sub"):
        inner = os.open(path, os.O_RDONLY)
        notes.do(f"inherited {path}", lambda: hex(struct.unpack("I", ioctl(inner, GET, 8)[:4])[0] & 0xC8))


def guarded(notes, path, flag):
    """What an immutable or append-only file or directory refuses."""
    inside = path + "/new" if path == "dir" else "none"
    for name, call in {
        "chmod": lambda: os.chmod(path, 0o700),
        "chown": lambda: os.chown(path, 1, 1),
        "utimens": lambda: utimensat(path, (1, 1), (1, 1)),
        "utimens now": lambda: utimensat(path, (0, (1 << 30) - 1), (0, (1 << 30) - 1)),
        "setxattr": lambda: os.setxattr(path, "user.x", b"1"),
        "link": lambda: os.link(path, "linked"),
        "rename": lambda: os.rename(path, "renamed"),
        "unlink": lambda: os.unlink(path),
        "rename over": lambda: (put("temp"), os.rename("temp", path))[1],
        "create in": lambda: put(inside),
        "unlink in": lambda: os.unlink(path + "/x"),
        "rename in": lambda: os.rename(path + "/x", path + "/y"),
        "mkdir in": lambda: os.mkdir(path + "/sub"),
        "rmdir in": lambda: os.rmdir(path + "/sub"),
        "acl": lambda: os.setxattr(path, "system.posix_acl_access", acl((1, 7, NO_ID), (4, 5, NO_ID), (32, 0, NO_ID))),
        "truncate": lambda: os.truncate(path, 1),
        "append": lambda: os.close(os.open(path, os.O_WRONLY | os.O_APPEND)),
    }.items():
        notes.do(f"guarded {flag:x} {path} {name}", call)


# -- directories


class Directory:
    """opendir(3) and its relatives."""

    def __init__(self, path):
        for name in ("opendir", "readdir64"):
            getattr(LIBC, name).restype = ctypes.c_void_p
        for name in ("readdir64", "telldir", "rewinddir", "closedir"):
            getattr(LIBC, name).argtypes = [ctypes.c_void_p]
        LIBC.telldir.restype = ctypes.c_long
        LIBC.seekdir.argtypes = [ctypes.c_void_p, ctypes.c_long]
        self.stream = LIBC.opendir(raw(path))
        assert self.stream

    def read(self):
        entry = LIBC.readdir64(self.stream)
        return None if not entry else ctypes.string_at(entry + 19)

    def rest(self):
        return list(iter(self.read, None))

    def tell(self):
        return LIBC.telldir(self.stream)

    def seek(self, place):
        LIBC.seekdir(self.stream, place)

    def rewind(self):
        LIBC.rewinddir(self.stream)

    def close(self):
        LIBC.closedir(self.stream)


@case
def places_in_directories(notes):
    for count in (0, 1, 10, 100, 1000):
        name = f"d{count}"
        os.mkdir(name)
        for n in range(count):
            put(f"{name}/file-{n}")
        directory = Directory(name)
        places, names = [], []
        while True:
            places.append(directory.tell())
            entry = directory.read()
            if entry is None:
                break
            names.append(entry)
        notes.note("all", sorted(names))
        notes.note("places differ", len(set(places)) == len(places))
        right = True
        for n in random.Random(count).sample(range(len(names)), min(len(names), 50)):
            directory.seek(places[n])
            right &= directory.read() == names[n]
        notes.note("seeking works", right)
        directory.seek(places[len(places) // 2])
        notes.note("rest", directory.rest() == names[len(places) // 2 :])
        directory.rewind()
        notes.note("rewound", directory.rest() == names)
        # Entries that are removed or made while a stream is read: all others show once.
        directory.rewind()
        shown_first = [directory.read() for _ in range(len(names) // 2)]
        for n in range(0, count, 2):
            os.unlink(f"{name}/file-{n}")
        for n in range(count):
            put(f"{name}/later-{n}")
        rest = directory.rest()
        kept = [b"file-%d" % n for n in range(1, count, 2)]
        notes.note("kept ones show once", all((shown_first + rest).count(entry) == 1 for entry in kept))
        notes.note("none shows twice", len(set(shown_first + rest)) == len(shown_first + rest))
        directory.rewind()
        notes.note("new ones after rewinding", sorted(directory.rest()))
        # Removing all while listing.
        directory.rewind()
        while (entry := directory.read()) is not None:
            if entry not in (b".", b".."):
                os.unlink(name.encode() + b"/" + entry)
        notes.note("removed while listing", os.listdir(name))
        directory.close()
        notes.do("rmdir", os.rmdir, name)


@case
def renames_while_a_directory_is_listed(notes):
    os.mkdir("d")
    for n in range(500):
        put(f"d/{n:04}")
    directory = Directory("d")
    seen = 0
    while (entry := directory.read()) is not None and seen < 5000:
        seen += 1
        if entry not in (b".", b"..") and not entry.startswith(b"renamed"):
            os.rename(b"d/" + entry, b"d/renamed" + entry)
    notes.note("ends", seen < 5000)
    notes.note("names", sorted(os.listdir("d")))


@case
def a_large_directory(notes):
    for n in range(8000):
        os.close(os.open(f"{'long-name' * 10}-{n}", os.O_CREAT | os.O_WRONLY))
    names = os.listdir(".")
    notes.note("count", (len(names), len(set(names))))
    for n in range(0, 8000, 3):
        os.unlink(f"{'long-name' * 10}-{n}")
    for n in range(0, 8000, 5):
        os.close(os.open(f"new-{n}", os.O_CREAT | os.O_WRONLY))
    notes.note("names", hash_of("\n".join(sorted(os.listdir("."))).encode()))
    for name in os.listdir("."):
        os.unlink(name)
    notes.note("empty", os.listdir("."))


@case
def getdents_into_small_buffers(notes):
    for n in range(50):
        put("n" * (n * 5 + 1))
    descriptor = os.open(".", os.O_RDONLY)
    for size in (1, 10, 24, 32, 280, 300, 1000):
        os.lseek(descriptor, 0, 0)
        buffer, count, result = ctypes.create_string_buffer(size), 0, None
        for _ in range(200):
            got = LIBC.syscall(217, descriptor, buffer, size)
            if got <= 0:
                result = got if got == 0 else errno.errorcode[ctypes.get_errno()]
                break
            at = 0
            while at < got:
                at += struct.unpack_from("H", buffer.raw, at + 16)[0]
                count += 1
        notes.note(f"size {size}", (count, result))


# -- locks


@case
def locks(notes):
    put("file", b"x" * 100)
    one, two = os.open("file", os.O_RDWR), os.open("file", os.O_RDWR)

    def other(function):
        return in_child(lambda: (function(os.open("file", os.O_RDWR)), 0)[1])

    notes.do("flock", fcntl.flock, one, fcntl.LOCK_EX | fcntl.LOCK_NB)
    notes.do("flock again", fcntl.flock, two, fcntl.LOCK_EX | fcntl.LOCK_NB)
    notes.note("flock by another", other(lambda f: fcntl.flock(f, fcntl.LOCK_SH | fcntl.LOCK_NB)))
    fcntl.flock(one, fcntl.LOCK_UN)
    notes.do("lockf", fcntl.lockf, one, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 20)
    notes.note("lockf by another", other(lambda f: fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 5, 25)))
    notes.note("lockf beside", other(lambda f: fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 5, 30)))
    os.close(two)
    notes.note("closing another descriptor frees", other(lambda f: fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB)))
    lock = struct.pack("hhqqi", fcntl.F_WRLCK, 0, 0, 0, 0)
    notes.do("OFD", lambda: bool(fcntl.fcntl(one, 37, lock)))
    two = os.open("file", os.O_RDWR)
    notes.do("OFD twice", lambda: bool(fcntl.fcntl(two, 37, lock)))
    notes.do("lease busy", fcntl.fcntl, one, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    os.close(two)
    os.close(one)
    one = os.open("file", os.O_RDWR)
    notes.do("lease write", fcntl.fcntl, one, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    notes.do("get lease", fcntl.fcntl, one, fcntl.F_GETLEASE)
    os.close(one)
    one = os.open("file", os.O_RDONLY)
    notes.do("lease read", fcntl.fcntl, one, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    notes.do("dnotify", fcntl.fcntl, os.open(".", os.O_RDONLY), 1026, 4)
    os.close(one)
    # A lease is broken by an opener.
    broken = []
    signal.signal(signal.SIGIO, lambda *_: broken.append(1) or fcntl.fcntl(one, fcntl.F_SETLEASE, fcntl.F_UNLCK))
    one = os.open("file", os.O_RDONLY)
    try:
        fcntl.fcntl(one, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError:
        pass
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGIO, signal.SIG_IGN)
        os.open("file", os.O_WRONLY)
        os._exit(0)
    os.waitpid(child, 0)
    notes.note("lease broken", len(broken))


@case
def events(notes):
    """What inotify tells."""
    os.mkdir("d")
    watch = checked(LIBC.inotify_init1(os.O_NONBLOCK))
    checked(LIBC.inotify_add_watch(watch, b"d", 0xFFF))
    put("d/f", b"x")
    os.rename("d/f", "d/g")
    os.chmod("d/g", 0o600)
    os.truncate("d/g", 0)
    os.setxattr("d/g", "user.a", b"1")
    os.link("d/g", "d/h")
    os.unlink("d/g")
    os.mkdir("d/s")
    got("d/h")
    os.rmdir("d/s")
    os.rename("d/h", "h")
    fallocate(os.open("h", os.O_RDWR), 0, 0, 100)
    told = []
    while True:
        try:
            data = os.read(watch, 65536)
        except BlockingIOError:
            break
        at = 0
        while at < len(data):
            _, mask, _, length = struct.unpack_from("iIII", data, at)
            told.append((hex(mask), data[at + 16 : at + 16 + length].rstrip(b"\0")))
            at += 16 + length
    notes.note("events", told)


# -- special files


@case
def special_files(notes):
    os.mkfifo("fifo", 0o600)
    child = os.fork()
    if child == 0:
        put2 = os.open("fifo", os.O_WRONLY)
        os.write(put2, b"through the pipe")
        os._exit(0)
    notes.note("fifo", got("fifo"))
    os.waitpid(child, 0)
    notes.do("fifo nonblock write", os.open, "fifo", os.O_WRONLY | os.O_NONBLOCK)
    server = socket.socket(socket.AF_UNIX)
    server.bind("socket")
    server.listen()
    client = socket.socket(socket.AF_UNIX)
    notes.do("connect", client.connect, "socket")
    notes.do("bind again", socket.socket(socket.AF_UNIX).bind, "socket")
    os.rename("socket", "moved")
    notes.do("connect moved", socket.socket(socket.AF_UNIX).connect, "moved")
    notes.do("open a socket", os.open, "moved", os.O_RDWR)
    for kind in (stat.S_IFCHR, stat.S_IFBLK):
        for major, minor in ((0, 0), (1, 3), (255, 255), (256, 0), (1, 256), (4095, 1048575), (300, 70000)):
            name = f"n{kind}-{major}-{minor}"
            notes.do(name, os.mknod, name, kind | 0o640, os.makedev(major, minor))
            notes.note(name, shown(name))
    notes.note(
        "null",
        (os.write(os.open(f"n{stat.S_IFCHR}-1-3", os.O_RDWR), b"abc"), os.read(os.open(f"n{stat.S_IFCHR}-1-3", os.O_RDWR), 3)),
    )
    notes.do("no such device", os.open, f"n{stat.S_IFCHR}-4095-1048575", os.O_RDONLY)
    notes.note("links", shown(f"n{stat.S_IFCHR}-1-3"))
    os.chmod("fifo", 0o644)
    os.link("fifo", "fifo2")
    notes.note("fifo", shown("fifo2"))


# -- space


@case
def space_is_counted(notes):
    before = os.statvfs(".")
    descriptor = os.open("big", os.O_CREAT | os.O_RDWR)
    for n in range(16):
        os.pwrite(descriptor, b"s" * (1 << 20), n << 20)
    during = os.statvfs(".")
    used = (before.f_bfree - during.f_bfree) * before.f_frsize >> 20
    notes.note("space used, not synced", 15 <= used <= 24)
    os.fsync(descriptor)
    during = os.statvfs(".")
    used = (before.f_bfree - during.f_bfree) * before.f_frsize >> 20
    notes.note("space used", 15 <= used <= 18)
    notes.note("blocks", 32768 <= os.fstat(descriptor).st_blocks < 33500)
    notes.note("files", before.f_ffree - during.f_ffree)
    os.unlink("big")
    notes.note("held", os.statvfs(".").f_bfree < before.f_bfree - 1000)
    os.close(descriptor)
    end = time.time() + 5
    while os.statvfs(".").f_bfree < before.f_bfree - 8 and time.time() < end:
        time.sleep(0.01)
    after = os.statvfs(".")
    notes.note("back", (before.f_bfree - after.f_bfree <= 8, before.f_ffree - after.f_ffree))
    notes.note("root only", after.f_bavail <= after.f_bfree)
    found = os.statvfs(".")
    notes.note("shape", (found.f_namemax, found.f_bsize == found.f_frsize))


# -- asynchronous I/O


class Aio:
    """libaio's calls."""

    SETUP, DESTROY, GETEVENTS, SUBMIT = 206, 207, 208, 209

    def __init__(self, depth=64):
        self.context = ctypes.c_ulong()
        checked(LIBC.syscall(self.SETUP, depth, ctypes.byref(self.context)))
        self.kept = []

    def submit(self, descriptor, opcode, address, size, offset):
        block = ctypes.create_string_buffer(
            struct.pack("QIIHhIQQqQII", 0, 0, 0, opcode, 0, descriptor, address, size, offset, 0, 0, 0), 64
        )
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(block))
        self.kept.append((block, pointers))
        return checked(LIBC.syscall(self.SUBMIT, self.context, ctypes.c_long(1), pointers))

    def wait(self, count):
        events = ctypes.create_string_buffer(32 * count)
        found = checked(LIBC.syscall(self.GETEVENTS, self.context, ctypes.c_long(count), ctypes.c_long(count), events, None))
        return [struct.unpack_from("QQqq", events.raw, 32 * n)[2] for n in range(found)]


@case
def asynchronous_io(notes):
    for flags in (0, os.O_DIRECT):
        descriptor = os.open("file", os.O_RDWR | os.O_CREAT | os.O_TRUNC | flags)
        aio = Aio()
        buffer = aligned(1 << 20, b"q")
        address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        for n in range(32):
            aio.submit(descriptor, 1, address + n * 4096, 4096, n * 8192)
        notes.note("writes", sorted(aio.wait(32)))
        notes.note("size", os.fstat(descriptor).st_size)
        # Growing from several requests at once, then reads across the end.
        for n in range(32):
            aio.submit(descriptor, 0, address + n * 4096, 4096, n * 16384)
        notes.note("reads", sorted(aio.wait(32)))
        aio.submit(descriptor, 3, 0, 0, 0)
        notes.note("fdsync", aio.wait(1))
        notes.note("contents", hash_of(got("file")))
        notes.do("bad address", lambda: aio.submit(descriptor, 1, 8, 4096, 0) and aio.wait(1))
        notes.do("negative offset", lambda: aio.submit(descriptor, 1, address, 4096, -4096) and aio.wait(1))
        notes.do("read only", lambda: aio.submit(os.open("file", os.O_RDONLY), 1, address, 4096, 0) and aio.wait(1))
        os.close(descriptor)


@case
def asynchronous_appends_beside_truncation(notes):
    descriptor = os.open("file", os.O_RDWR | os.O_CREAT | os.O_DIRECT)
    buffer = aligned(1 << 20, b"q")
    address = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
    aio = Aio(256)
    wrong = 0
    for turn in range(30):
        for n in range(16):
            aio.submit(descriptor, 1, address, 65536, n * 65536)
        os.ftruncate(descriptor, 40000 + turn * 4096)
        aio.wait(16)
        data = got("file")
        wrong += bool(data.strip(b"q\0"))
        os.ftruncate(descriptor, 0)
    notes.note("wrong", wrong)


# -- random calls on a few files


@case
def random_calls(notes):
    random_calls_of(notes, SEED, 3000)


SEED = 1


def random_calls_of(notes, seed, count):
    """Calls on a few names and descriptors; after each the files concerned are looked at."""
    draw = random.Random(seed)
    for name in "abcd":
        os.mkdir(name)
    descriptors = {}
    maps = {}

    def path(depth=None):
        names = [draw.choice("abcd")]
        while draw.random() < 0.35:
            names.append(draw.choice("xyz"))
        names.append(draw.choice(["f0", "f1", "f2", "f3", "x", "y", "z"]))
        return "/".join(names)

    def descriptor():
        return draw.choice(list(descriptors.values())) if descriptors else None

    def opened():
        flags = draw.choice(
            [
                os.O_RDWR,
                os.O_RDWR | os.O_CREAT,
                os.O_RDWR | os.O_CREAT,
                os.O_RDWR | os.O_CREAT | os.O_EXCL,
                os.O_RDWR | os.O_TRUNC | os.O_CREAT,
                os.O_RDWR | os.O_APPEND,
                os.O_RDONLY,
                os.O_WRONLY,
            ]
        )
        number = draw.randrange(8)
        where = path()
        fd = os.open(where, flags, draw.choice([0o600, 0o666, 0o755]))
        if number in descriptors:
            closed(number)
        descriptors[number] = fd
        return where, flags

    def closed(number=None):
        number = draw.randrange(8) if number is None else number
        if number in maps:
            maps.pop(number).close()
        if number in descriptors:
            os.close(descriptors.pop(number))

    def offset():
        return draw.choice(
            [
                0,
                draw.randrange(100),
                draw.randrange(20000),
                draw.randrange(200000),
                4096 * draw.randrange(60),
                4096 * draw.randrange(60) - 1 if draw.random() < 0.5 else 5000,
            ]
        )

    def length():
        return draw.choice([0, 1, draw.randrange(100), draw.randrange(5000), 4096, 8192, draw.randrange(60000)])

    def mapped():
        number = draw.choice(list(descriptors)) if descriptors else 0
        if number not in descriptors:
            return None
        fd = descriptors[number]
        size = os.fstat(fd).st_size
        if not size or fcntl.fcntl(fd, fcntl.F_GETFL) & 3 != os.O_RDWR:
            return None
        window = mmap.mmap(fd, size)
        at = draw.randrange(size)
        data = draw.randbytes(min(draw.randrange(1, 5000), size - at))
        window[at : at + len(data)] = data
        if draw.random() < 0.3:
            window.flush()
        found = hash_of(window[:])
        window.close()
        return found

    def seeks():
        fd, at, whence = descriptor(), offset(), draw.choice([os.SEEK_SET, os.SEEK_CUR, os.SEEK_END])
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            return None
        return os.lseek(fd, at, whence)

    def pread():
        fd, at, size = descriptor(), offset(), length()
        return hash_of(os.pread(fd, size, at))

    def pwrite():
        fd, at, size = descriptor(), offset(), length()
        return os.pwrite(fd, draw.randbytes(size), at)

    def copied():
        one, two = descriptor(), descriptor()
        return os.copy_file_range(one, two, length(), offset(), offset())

    def directly():
        fd = os.open(path(), os.O_RDWR | os.O_DIRECT)
        try:
            size, at = 4096 * draw.randrange(1, 8), 4096 * draw.randrange(50)
            if draw.random() < 0.5:
                return os.pwritev(fd, [memoryview(aligned(size, bytes([draw.randrange(65, 90)])))[:size]], at)
            buffer = aligned(size, b" ")
            found = os.preadv(fd, [memoryview(buffer)[:size]], at)
            return hash_of(buffer[:found])
        finally:
            os.close(fd)

    choices = [
        (14, "open", opened), (5, "close", closed), (16, "pwrite", pwrite), (10, "pread", pread),
        (4, "write", lambda: os.write(descriptor(), draw.randbytes(length()))), (4, "read", lambda: hash_of(os.read(descriptor(), length()))),
        (4, "seek", seeks), (6, "ftruncate", lambda: os.ftruncate(descriptor(), offset())), (3, "truncate", lambda: os.truncate(path(), offset())),
        (6, "unlink", lambda: os.unlink(path())), (6, "mkdir", lambda: os.mkdir(path())), (4, "rmdir", lambda: os.rmdir(path())),
        (10, "rename", lambda: os.rename(path(), path())), (3, "exchange", lambda: renameat2(path(), path(), EXCHANGE)),
        (3, "noreplace", lambda: renameat2(path(), path(), NOREPLACE)), (6, "link", lambda: os.link(path(), path(), follow_symlinks=False)),
        (3, "symlink", lambda: os.symlink(draw.choice(["f0", "../a", "x" * 100]), path())),
        (3, "chmod", lambda: os.chmod(path(), draw.randrange(0o1000))), (2, "chown", lambda: os.chown(path(), draw.randrange(9), draw.randrange(9))),
        (3, "setxattr", lambda: os.setxattr(path(), draw.choice(["user.a", "user.b"]), draw.randbytes(draw.randrange(300)))),
        (2, "removexattr", lambda: os.removexattr(path(), draw.choice(["user.a", "user.b"]))),
        (3, "fallocate", lambda: fallocate(descriptor(), draw.choice([0, PUNCH | KEEP_SIZE, ZERO, ZERO | KEEP_SIZE]), offset(), length())),
        (6, "map", mapped), (4, "copy", copied), (4, "direct", directly), (2, "fsync", lambda: os.fsync(descriptor())),
        (1, "sync", lambda: os.fdatasync(descriptor())), (2, "tmpfile", lambda: tmpfile()), (2, "utimens", lambda: utimensat(path(), (draw.randrange(1 << 31), 0), (5, 5), AT_SYMLINK_NOFOLLOW)),
        (3, "list", lambda: sorted(os.listdir(os.path.dirname(path())))), (2, "dontneed", lambda: os.posix_fadvise(descriptor(), 0, 0, 4)),
    ]  # fmt: skip

    def tmpfile():
        fd = os.open(draw.choice("abcd"), os.O_TMPFILE | os.O_RDWR)
        os.write(fd, draw.randbytes(100))
        try:
            return linkat(AT_FDCWD, f"/proc/self/fd/{fd}", path(), AT_SYMLINK_FOLLOW)
        finally:
            os.close(fd)

    total = sum(weight for weight, _, _ in choices)
    for number in range(count):
        at = draw.random() * total
        for weight, name, call in choices:
            at -= weight
            if at < 0:
                break
        state = draw.getstate()
        try:
            notes.do(f"{number} {name}", call)
        except TypeError:
            notes.note(f"{number} {name}", "no descriptor")
        # The same number of draws whatever happened.
        draw.setstate(state)
        draw.seed(f"{seed}/{number}")
        if descriptors:
            which = sorted(descriptors)[number % len(descriptors)]
            notes.note(f"{number} shows", shown(descriptors[which], True))
        if number % 50 == 49:
            notes.note(f"{number} tree", tree())


# -- running


# Notes that may differ: the start of "case: label". Each is explained in docs/mount.md or docs/limits.md, or is no promise.
EXPECTED = [
    # ext4 asks for its encryption key first.
    "files_without_a_name: tmpfile in a removed directory",
    # The kernel serves from its cache what it has, and access times are the daemon's.
    "access_times: ",
    "times_of_calls: copy_file_range",
    # Files mapped by extents have no such flags.
    "times_of_calls: ioctl flags",
    # Formats keep other ranges and precisions of times at the ends of ext4's.
    "times_that_are_set: time -2147483648.",
    "times_that_are_set: time -2147483649.",
    "times_that_are_set: time 15032385535.",
    "times_that_are_set: time 15032385536.",
    "times_that_are_set: time 1099511627776.",
    # Directories have other sizes.
    "sizes_and_limits: seek in a directory",
    # There are no blocks beyond the end of a file.
    "the_limit_of_a_file_s_size: fallocate keep beyond",
    "allocation: mode 1 ",
    # The daemon does not see a store before it is written back.
    "holes: mapped store",
    # ext4 lets CREATE win over REPLACE.
    "extended_attributes: file both flags",
    "extended_attributes: dir both flags",
    "extended_attributes: link both flags",
    "extended_attributes: fifo both flags",
    # A chown of nothing by a stranger: no effect instead of EPERM.
    "changes_of_mode_and_owner: user: 4755 file 5:100 chown -1",
    "changes_of_mode_and_owner: user: 2755 file 5:100 chown -1",
    "changes_of_mode_and_owner: user: 6777 file 5:100 chown -1",
    "changes_of_mode_and_owner: user: 6644 file 5:100 chown -1",
    # An immutable file may be opened, and refuses the first change.
    "inode_flags: guarded 10 file append",
    "inode_flags: guarded 30 file append",
    # The kernel looks at the kind before it asks for the flags.
    "inode_flags: guarded 10 dir unlink",
    "inode_flags: guarded 20 dir unlink",
    "inode_flags: guarded 30 dir unlink",
    "inode_flags: guarded 10 dir rename over",
    "inode_flags: guarded 20 dir rename over",
    "inode_flags: guarded 30 dir rename over",
    # Which flags can be stored differs.
    "inode_flags: flag file ",
    "inode_flags: flag dir ",
    # Entries from FUSE are cut at the kernel's own buffer.
    "getdents_into_small_buffers: ",
    # Node numbers and blocks limit the files of F2FS together.
    "space_is_counted: files",
]


def run(function, directory, limit):
    """Runs a case in a new directory below `directory`; returns its notes."""
    place = f"{directory}/{function.__name__}"
    os.mkdir(place)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        notes = Notes()
        try:
            os.umask(0o22)
            os.chdir(place)
            function(notes)
        except BaseException as error:
            import traceback

            notes.note("exception", "".join(traceback.format_exception(error)).replace(place, "PLACE"))
        with os.fdopen(writer, "w") as pipe:
            json.dump(notes.lines, pipe)
        os._exit(0)
    os.close(writer)
    text, end = b"", time.monotonic() + limit
    while True:
        ready, _, _ = select.select([reader], [], [], max(0, end - time.monotonic()))
        data = os.read(reader, 1 << 20) if ready else b""
        if not data:
            break
        text += data
    os.close(reader)
    if time.monotonic() >= end:
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return json.loads(text.replace(place.encode(), b"PLACE")) if text else [["ended", f"no answer in {limit} s"]]


def compare(name, reference, subject, verbose):
    """Prints differences that are not expected; returns their number."""
    different = 0
    for (label, want), (also, have) in zip(reference, subject):
        if label != also:
            print(f"{name}: reference notes {label!r} where subject notes {also!r}")
            return different + 1
        if label.endswith("exception"):
            print(f"{name}: {label} {want}")
            return different + 1
        if want == have or f"{name}: {label}".startswith(tuple(EXPECTED)):
            continue
        different += 1
        if different <= 40 or verbose:
            print(f"{name}: {label}\n    reference {cut(want, have)}\n    subject   {cut(have, want)}")
    if len(reference) != len(subject):
        print(f"{name}: {len(reference)} notes of the reference, {len(subject)} of the subject")
        different += 1
    return different


def cut(text, other):
    """The part of a long text around the first difference."""
    at = next((n for n, (a, b) in enumerate(zip(text, other)) if a != b), min(len(text), len(other)))
    start = max(0, at - 100)
    return ("..." if start else "") + text[start : start + 500]


def main():
    global SEED
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reference")
    parser.add_argument("subject")
    parser.add_argument("--only", default="")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--limit", type=float, default=120, help="seconds for each case")
    options = parser.parse_args()
    SEED = options.seed
    different = 0
    for function in CASES:
        if options.only not in function.__name__:
            continue
        began = time.monotonic()
        found = [run(function, directory, options.limit) for directory in (options.reference, options.subject)]
        count = compare(function.__name__, *found, options.verbose)
        different += count
        print(f"{function.__name__}: {len(found[0])} notes, {count} differ, {time.monotonic() - began:.1f} s", flush=True)
    sys.exit(bool(different))


if __name__ == "__main__":
    main()
