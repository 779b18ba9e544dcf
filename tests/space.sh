#!/bin/sh
# Space as programs see it: what a removed file had can be used and is shown at once, a full volume takes names as soon as
# something was removed, and st_blocks is right after fsync.
# usage: space.sh [ext2|ext3|ext4|f2fs|mke2fs|mkfs.f2fs]
. "$(dirname "$0")/common"
choose "$@"
have python3 || skip "python3 is not installed"
make 256M
mount_it

cat >"$work/space.py" <<'PYTHON'
import mmap, os, sys, threading
os.chdir(sys.argv[1])

def free():
    return os.statvfs('.').f_bfree

def removed(path, write):
    """Makes a file by `write`, and removes it."""
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    try:
        write(fd)
    finally:
        os.close(fd)
        os.unlink(path)

def large(fd):
    piece = b'x' * (1 << 20)
    for number in range(80):
        os.pwrite(fd, piece, number << 20)

# Thirty times a third of the volume, beside another program that allocates and removes.
removed('first', large)
errors = []
def allocate():
    try:
        for _ in range(30):
            removed('allocated', lambda fd: os.posix_fallocate(fd, 0, 60 << 20))
    except OSError as error:
        errors.append(error)
other = threading.Thread(target=allocate)
other.start()
for number in range(30):
    removed('large', large)
other.join()
assert not errors, errors

# Removed, and at once free.
os.sync()
for number in range(5):
    before = free()
    removed('shown', lambda fd: (os.write(fd, b'y' * (20 << 20)), os.fsync(fd)))
    assert free() >= before, f'{before} blocks were free, after a removal {free()}'

# Blocks are counted right after fsync, with what leads to them.
os.mkdir('sparse')
counted = {}
for step in (1, 3, 50, 700):
    path = f'sparse/every{step}'
    fd = os.open(path, os.O_CREAT | os.O_RDWR)
    for number in range(200):
        os.pwrite(fd, b'z' * 4096, number * step * 4096)
        if number % 77 == 0:
            os.fstat(fd)
    os.fsync(fd)
    counted[path] = os.fstat(fd).st_blocks
    os.close(fd)
with open(sys.argv[2], 'w') as file:
    file.writelines(f'{blocks} {path}\n' for path, blocks in counted.items())

# A full volume.
os.mkdir('full')
size, number = 4 << 20, 0
while size:
    try:
        with open(f'full/{number}', 'wb', buffering=0) as file:
            number += 1
            left = size
            while left:
                left -= file.write(b'f' * min(left, 1 << 20))
            os.fsync(file.fileno())
    except OSError:
        size //= 8
for number in range(20):
    victim = max(os.listdir('full'), key=lambda name: os.stat(f'full/{name}').st_size)
    os.unlink(f'full/{victim}')
    os.close(os.open(f'full/new{number}', os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    os.rename(f'full/new{number}', f'full/renamed{number}')
    os.mkdir(f'full/dir{number}')
PYTHON
python3 "$work/space.py" "$mnt" "$work/counted" || fail "see above"
umount_it
judge
mount_it
while read -r blocks path; do
    now=$(stat -c %b "$mnt/$path")
    [ "$now" = "$blocks" ] || fail "st_blocks of $path was $blocks after fsync, after a new mount it is $now"
done <"$work/counted"
umount_it
say "$maker: passed"
