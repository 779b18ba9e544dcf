#!/usr/bin/env python3
"""How long a killed program still waits for its call: the longest time from SIGKILL to its end for each call, in milliseconds.

usage: killed.py DIR CLIENTS ROUNDS BOUND [CALL...]

As root, on a mounted volume with 2 GB of room. In each round CLIENTS processes make the same call on files of their own and are killed in the
middle of it, each at another moment. Fails if one is not gone after BOUND milliseconds.
"""
import ctypes
import mmap
import os
import random
import select
import signal
import sys
import time

PUNCH_AND_KEEP_SIZE = 3
MIB = 1 << 20
DIRTY_MIB = 96

libc = ctypes.CDLL(None, use_errno=True)
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
libc.syncfs.argtypes = [ctypes.c_int]
BYTES = os.urandom(MIB)


def opened(path):
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o600)


def written(path, mib=DIRTY_MIB):
    fd = opened(path)
    for at in range(mib):
        os.pwrite(fd, BYTES, at * MIB)
    return fd


def scattered(path):
    """A file whose map is long: single blocks with holes between them."""
    fd = opened(path)
    for number in range(8000):
        os.pwrite(fd, BYTES[:4096], number * 3 * 65536)
    os.fsync(fd)
    return fd


# Each prepares, and returns the call in the middle of which it is killed.
def fsync(path):
    fd = written(path)
    return lambda: os.fsync(fd)


def syncfs(path):
    fd = written(path)
    return lambda: libc.syncfs(fd)


def fsync_of_small_files(path):
    os.mkdir(path)
    fds = [written(f'{path}/{number}', 0) for number in range(500)]
    for fd in fds:
        os.pwrite(fd, BYTES[:20000], 0)
    return lambda: [os.fsync(fd) for fd in fds]


def truncate(path):
    fd = scattered(path)
    return lambda: os.ftruncate(fd, 0)


def unlink(path):
    os.close(scattered(path))
    return lambda: os.unlink(path)


def punch(path):
    fd = scattered(path)
    return lambda: libc.fallocate(fd, PUNCH_AND_KEEP_SIZE, 0, 8000 * 3 * 65536)


def allocate(path):
    fd = opened(path)
    return lambda: os.posix_fallocate(fd, 0, 400 * MIB)


def copy(path):
    source, target = written(path), opened(path + '.copy')
    return lambda: os.copy_file_range(source, target, DIRTY_MIB * MIB, 0, 0)


def synchronous(path):
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_SYNC, 0o600)
    return lambda: [os.pwrite(fd, BYTES * 16, at * 16 * MIB) for at in range(20)]


def write(path):
    fd = opened(path)
    return lambda: [os.pwrite(fd, BYTES * 16, at * 16 * MIB) for at in range(20)]


def msync(path):
    fd = written(path)
    pages = mmap.mmap(fd, DIRTY_MIB * MIB)
    for at in range(DIRTY_MIB):
        pages[at * MIB:(at + 1) * MIB] = BYTES
    return pages.flush


CALLS = (fsync, syncfs, fsync_of_small_files, truncate, unlink, punch, allocate, copy, synchronous, write, msync)


def client(call, path):
    """Prepares in a child. Returns its number, and the pipe that lets it begin and the one that tells of its end."""
    (begin, start), (end, over) = os.pipe(), os.pipe()
    child = os.fork()
    if child:
        os.close(begin), os.close(over)
        if os.read(end, 1) != b'r':
            sys.exit(f'{call.__name__}: a client could not prepare')
        return child, start, end
    os.close(start), os.close(end)
    try:
        work = call(path)
        os.write(over, b'r')
        os.read(begin, 1)
        work()
        os.write(over, b'd')
    finally:
        os._exit(0)


def waits(call, directory, clients, draw):
    """Returns for each client that was killed in the middle the time until it was gone, in milliseconds."""
    ready = [client(call, f'{directory}/{number}') for number in range(clients)]
    for _, start, _ in ready:
        os.write(start, b's')
    now = time.monotonic()
    plan = {child: now + draw.uniform(0.02, 0.4) for child, _, _ in ready}
    killed = {}
    alive, took = {child: os.pidfd_open(child) for child in plan}, {}
    while alive:
        now = time.monotonic()
        for child, at in plan.items():
            if child in alive and child not in killed and at <= now:
                os.kill(child, signal.SIGKILL)
                killed[child] = time.monotonic()
        for ended in select.select(list(alive.values()), [], [], 0.01)[0]:
            child = next(child for child, fd in alive.items() if fd == ended)
            took[child] = (time.monotonic() - killed.get(child, now)) * 1000
            os.close(alive.pop(child))
            os.waitpid(child, 0)
    result = [took[child] for child, _, end in ready if not os.read(end, 1)]
    for _, start, end in ready:
        os.close(start), os.close(end)
    return result


def main():
    directory, clients, rounds, bound = sys.argv[1], *map(int, sys.argv[2:5])
    draw = random.Random(1)
    slow = []
    for call in [call for call in CALLS if not sys.argv[5:] or call.__name__ in sys.argv[5:]]:
        all_waits = []
        for number in range(rounds):
            below = f'{directory}/{call.__name__}-{number}'
            os.mkdir(below)
            all_waits += waits(call, below, clients, draw)
            os.system(f'rm -rf {below}')
        longest = max(all_waits, default=0)
        print(f'  {call.__name__}: {len(all_waits)} killed in the middle, gone after at most {longest:.0f} ms', flush=True)
        if longest > bound:
            slow.append(call.__name__)
    sys.exit(f'more than {bound} ms after SIGKILL: {", ".join(slow)}' if slow else 0)


main()
