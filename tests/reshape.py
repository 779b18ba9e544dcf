#!/usr/bin/env python3
"""Random writes, and the modes of fallocate(2) that move no bytes, on a few sparse files, against a model in memory.

usage: reshape.py work DIR SEED OPERATIONS KEPT    works on files in DIR, leaves what they have to hold in KEPT
       reshape.py look DIR KEPT                    compares them again, on another mount

`fsx` knows neither zero range nor preallocation, and works on one file, whose blocks lie in few pieces. Here several
grow by turns.
Prints which operations were done, and those that the volume refused as not supported.
"""

import bisect
import collections
import ctypes
import errno
import mmap
import os
import pickle
import random
import sys

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE = 1, 2, 16
MODES = {
    "allocate": 0,
    "preallocate": KEEP_SIZE,
    "zero": ZERO_RANGE,
    "zero-keep": ZERO_RANGE | KEEP_SIZE,
    "punch": PUNCH_HOLE | KEEP_SIZE,
}
CHUNK = 4096
# Around these offsets the maps change their depth, with blocks of 1 KiB or of 4 KiB; the last is where 32 bits end.
BASES = [0, 12 << 10, 268 << 10, (4 << 20) + (48 << 10), (64 << 20) + (268 << 10), (1 << 32) - (100 << 10)]
WINDOW = 400 << 10


class Model:
    """What a file has to hold: chunks that are not there are zeros."""

    def __init__(self):
        self.size = 0
        self.chunks = {}

    def read(self, offset, length):
        found = bytearray()
        end = offset + length
        while offset < end:
            within = offset % CHUNK
            step = min(CHUNK - within, end - offset)
            chunk = self.chunks.get(offset // CHUNK)
            found += chunk[within : within + step] if chunk else bytes(step)
            offset += step
        return bytes(found)

    def write(self, offset, content):
        self.size = max(self.size, offset + len(content))
        self.put(offset, content)

    def put(self, offset, content):
        at = 0
        while at < len(content):
            within = (offset + at) % CHUNK
            step = min(CHUNK - within, len(content) - at)
            chunk = self.chunks.setdefault((offset + at) // CHUNK, bytearray(CHUNK))
            chunk[within : within + step] = content[at : at + step]
            at += step

    def clear(self, offset, end):
        for number in list(self.chunks):
            first, last = max(offset, number * CHUNK), min(end, number * CHUNK + CHUNK)
            if first < last:
                self.chunks[number][first - number * CHUNK : last - number * CHUNK] = bytes(last - first)

    def resize(self, size):
        self.clear(size, 1 << 62)
        self.size = size


def compare(path, descriptor, model):
    """The whole file, but where it has holes, which the model has to know as zeros."""
    size = os.fstat(descriptor).st_size
    assert size == model.size, f"{path}: size {size}, not {model.size}"
    data = []
    at = 0
    while at < size:
        try:
            first = os.lseek(descriptor, at, os.SEEK_DATA)
        except OSError as error:
            assert error.errno == errno.ENXIO, error
            break
        at = os.lseek(descriptor, first, os.SEEK_HOLE)
        assert at > first, f"{path}: data at {first} end at {at}"
        data.append((first, at))
        check(path, model, first, os.pread(descriptor, at - first, first))
    for number, chunk in model.chunks.items():
        if any(chunk) and number * CHUNK < size:
            check(path, model, number * CHUNK, os.pread(descriptor, CHUNK, number * CHUNK))
            # No hole is smaller than a sector.
            for at in range(0, CHUNK, 512):
                if any(chunk[at : at + 512]):
                    place = number * CHUNK + at
                    last = bisect.bisect(data, (place, size)) - 1
                    inside = last >= 0 and data[last][0] <= place < data[last][1]
                    assert inside, f"{path}: sector {place // 512} has data and is told to lie in a hole"


def check(path, model, offset, found):
    wanted = model.read(offset, len(found))
    if found != wanted:
        at = next(index for index in range(len(found)) if found[index] != wanted[index])
        raise AssertionError(f"{path}: byte {offset + at} is {found[at]:#x}, not {wanted[at]:#x}")


class File:
    def __init__(self, path):
        self.path = path
        self.model = Model()
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)

    def reopen(self, draw):
        os.close(self.descriptor)
        self.descriptor = os.open(self.path, os.O_RDWR)

    def range(self, draw):
        base = draw.choice(BASES)
        offset = base + draw.choice([draw.randrange(WINDOW), draw.randrange(WINDOW // CHUNK) * CHUNK])
        length = draw.choice([draw.randrange(1, 3000), draw.randrange(1, 70000), draw.randrange(1, 17) * CHUNK])
        return offset, length

    def inside(self, draw):
        """A range that does not leave the file, or None."""
        offset, length = self.range(draw)
        if offset >= self.model.size:
            return None
        return offset, min(length, self.model.size - offset)

    def write(self, draw):
        offset, length = self.range(draw)
        content = draw.randbytes(length)
        assert os.pwrite(self.descriptor, content, offset) == length
        self.model.write(offset, content)

    def direct(self, draw):
        """Around the page cache."""
        offset, length = (number // CHUNK * CHUNK for number in self.range(draw))
        length += CHUNK
        page = mmap.mmap(-1, length)
        page[:] = content = draw.randbytes(length)
        descriptor = os.open(self.path, os.O_RDWR | os.O_DIRECT)
        try:
            assert os.pwrite(descriptor, page, offset) == length
        finally:
            os.close(descriptor)
        self.model.write(offset, content)

    def read(self, draw):
        offset, length = self.range(draw)
        found = os.pread(self.descriptor, length, offset)
        wanted = max(0, min(length, self.model.size - offset))
        assert len(found) == wanted, f"{self.path}: {len(found)} bytes at {offset}, not {wanted}"
        check(self.path, self.model, offset, found)

    def mapped(self, draw):
        """Reads and writes through a mapping."""
        place = self.inside(draw)
        if place is None:
            return
        offset, length = place
        start = offset // CHUNK * CHUNK
        with mmap.mmap(self.descriptor, offset + length - start, offset=start) as page:
            check(self.path, self.model, offset, page[offset - start :])
            if draw.random() < 0.6:
                content = draw.randbytes(length)
                page[offset - start :] = content
                self.model.write(offset, content)

    def truncate(self, draw):
        offset, _ = self.range(draw)
        os.ftruncate(self.descriptor, offset)
        self.model.resize(offset)

    def sync(self, draw):
        draw.choice([os.fsync, os.fdatasync])(self.descriptor)

    def forget(self, draw):
        """The kernel drops the pages: the next read asks the mount."""
        os.fsync(self.descriptor)
        os.posix_fadvise(self.descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def copy(self, draw):
        place = self.inside(draw)
        to, _ = self.range(draw)
        if place is None or abs(place[0] - to) < place[1]:
            return
        offset, length = place
        done = os.copy_file_range(self.descriptor, self.descriptor, length, offset, to)
        assert 0 < done <= length
        self.model.write(to, self.model.read(offset, done))

    def whole(self, draw):
        compare(self.path, self.descriptor, self.model)

    def fallocate(self, name, draw):
        mode = MODES[name]
        offset, length = self.range(draw)
        if draw.random() < 0.1:
            length *= 20
        if name == "punch" and draw.random() < 0.03:
            offset, length = 0, 1 << 33
        if LIBC.fallocate(self.descriptor, mode, offset, length) != 0:
            raise OSError(ctypes.get_errno(), name)
        if mode & (ZERO_RANGE | PUNCH_HOLE):
            self.model.clear(offset, offset + length)
        if not mode & KEEP_SIZE:
            self.model.size = max(self.model.size, offset + length)


def work(top, seed, operations, kept):
    draw = random.Random(seed)
    usual = {
        "write": 8, "read": 6, "mapped": 4, "direct": 2, "forget": 2, "truncate": 1, "sync": 1, "copy": 1,
        "reopen": 0.5, "whole": 0.3,
    }
    kinds = {name: getattr(File, name) for name in usual}
    for name in MODES:
        kinds[name] = lambda file, draw, name=name: file.fallocate(name, draw)
    names = list(kinds)
    # Each seed leaves some out and weighs the others: then the holes, or the allocated ranges, grow large.
    weights = [usual.get(name, 2) * draw.choice([0.1, 1, 1, 3]) for name in names]
    files = [File(f"{top}/{seed}.{number}") for number in range(3)]
    done, refused = collections.Counter(), collections.Counter()
    for number in range(operations):
        name = draw.choices(names, weights)[0]
        file = draw.choice(files)
        try:
            kinds[name](file, draw)
            done[name] += 1
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP or name not in MODES:
                print(f"seed {seed}, operation {number}, {name} of {file.path}: {error}", file=sys.stderr)
                raise
            refused[name] += 1
        except AssertionError:
            print(f"seed {seed}, operation {number}, {name} of {file.path}", file=sys.stderr)
            raise
    for file in files:
        compare(file.path, file.descriptor, file.model)
        os.close(file.descriptor)
        with open(f"{kept}/{os.path.basename(file.path)}", "wb") as out:
            pickle.dump((file.model.size, file.model.chunks), out)
    print("done:", *(f"{name} {count}" for name, count in sorted(done.items())))
    if refused:
        print("refused:", *sorted(refused))


def look(top, kept):
    for name in sorted(os.listdir(kept)):
        model = Model()
        with open(f"{kept}/{name}", "rb") as file:
            model.size, model.chunks = pickle.load(file)
        descriptor = os.open(f"{top}/{name}", os.O_RDONLY)
        compare(f"{top}/{name}", descriptor, model)
        os.close(descriptor)


if __name__ == "__main__":
    if sys.argv[1] == "work":
        work(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
    else:
        look(*sys.argv[2:])
