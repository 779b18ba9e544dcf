#!/bin/sh
# st_blocks at any time: right after fsync, soon after data were written back for another reason, though the kernel keeps
# what it was told before, and the same on a new mount.
# usage: blocks.sh [ext2|ext3|ext4|f2fs|mke2fs|mkfs.f2fs] [MKFS-OPTION...]
. "$(dirname "$0")/common"
choose "$@"
[ $# = 0 ] || shift
have python3 || skip "python3 is not installed"
make 256M "$@"
# Old data are written back after a second, without any call.
mount_it dirty_age=1

cat >"$work/blocks.py" <<'PYTHON'
import os, subprocess, sys, time
os.chdir(sys.argv[1])

def scattered(fd, step):
    """Writes 60 pieces with holes between them, and asks."""
    for number in range(60):
        os.pwrite(fd, b'z' * 4096, number * step * 4096)
        if number % 7 == 0:
            os.fstat(fd)

def allocated(fd, step):
    """Writes into blocks that were allocated before."""
    os.posix_fallocate(fd, 0, 4096 * 60 * step)
    scattered(fd, step)

def growing(fd, step):
    """Writes and asks by turns, in one piece; the step counts for nothing."""
    for number in range(300):
        os.write(fd, b'y' * 1024)
        os.fstat(fd)

def make(name, write, step):
    with open(name, 'wb', buffering=0) as file:
        write(file.fileno(), step)
    # From now on the kernel knows a number.
    os.stat(name)

def only_blocks(name):
    """Asks for nothing but the blocks: the kernel drops other attributes more often."""
    return int(subprocess.run(['stat', '-c', '%b', name], check=True, capture_output=True).stdout)

shapes = [(write, step) for write in (scattered, allocated, growing) for step in (2, 5, 90)]
told = {}
for reason in ('fsync', 'fdatasync', 'sync', 'age'):
    os.mkdir(reason)
    names = [f'{reason}/{write.__name__}{step}' for write, step in shapes]
    for name, (write, step) in zip(names, shapes):
        make(name, write, step)
        if reason.startswith('f'):
            fd = os.open(name, os.O_RDWR)
            getattr(os, reason)(fd)
            told[name] = os.stat(name).st_blocks
            os.close(fd)
    if reason == 'sync':
        os.sync()
    if reason == 'age':
        time.sleep(4)
    for name in names:
        blocks = os.stat(name).st_blocks
        assert told.setdefault(name, blocks) == blocks, f'{name}: {told[name]} after {reason}, then {blocks}'

# An attribute that has no room in the inode.
for name in ('attribute', 'removed'):
    make(name, growing, 1)
    os.sync()
    only_blocks(name)
    os.setxattr(name, 'user.large', b'v' * 900)
    if name == 'removed':
        only_blocks(name)
        os.removexattr(name, 'user.large')
    told[name] = only_blocks(name)
with open(sys.argv[2], 'w') as file:
    file.writelines(f'{blocks} {name}\n' for name, blocks in told.items())
PYTHON
python3 "$work/blocks.py" "$mnt" "$work/told" || fail "see above"
umount_it
judge
mount_it
wrong=0
while read -r blocks path; do
    now=$(stat -c %b "$mnt/$path")
    [ "$now" = "$blocks" ] || { say "st_blocks of $path was $blocks, after a new mount it is $now"; wrong=$((wrong + 1)); }
done <"$work/told"
umount_it
[ "$wrong" = 0 ] || fail "$wrong of $(wc -l <"$work/told") files"
say "$maker${*:+ $*}: passed, $(wc -l <"$work/told") files"
