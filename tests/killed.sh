#!/bin/sh
# A killed program does not wait long: for syncs, truncations, copies and writes on a disk at its own pace (killed.py), and for room on a
# full host. A caller goes on soon after the host has room. What is read after an aborted call is what the daemon has.
# usage: killed.sh [ext2|ext3|ext4|f2fs|mke2fs|mkfs.f2fs] [CLIENTS]   at once for each call (3)
. "$(dirname "$0")/common"
choose "$@"
clients=${2:-3}
have python3 || skip "python3 is not installed"
# On an idle machine all are gone after a tenth of a second; on a busy one every program waits for a processor.
bound=1500

# The volume lies on a modelled disk, which takes seconds for what a second of writing leaves in memory.
make 2G
mkdir "$work/sim"
"$MOAFS" simdisk --foreground --paced --model st3160812as --size 2G --image "$img" "$work/sim" >"$work/sim.log" 2>&1 &
disk=$!
undo() { kill -TERM "$disk" 2>/dev/null; }
for _ in $(seq 100); do [ ! -e "$work/sim/disk" ] || break; sleep 0.1; done
whole=$img
img=$work/sim/disk
mount_it cache=512M
within 200 python3 "$here/killed.py" "$mnt" "$clients" 1 "$bound" || fail "$maker: a killed program waits too long"
umount_it
umount "$work/sim"
wait "$disk" || true
img=$whole
wait_for_release || fail "the image of the disk was not released"
judge

# Of a zeroing whose caller is killed a part is done, and the kernel has the whole file cached as it was: what is read is what the
# daemon has.
cat >"$work/zero.py" <<'PYTHON'
import ctypes, mmap, os, signal, sys, time
libc = ctypes.CDLL(None, use_errno=True)
STEP, STEPS, ZERO_RANGE = 1 << 20, 192, 0x10
path = sys.argv[1]
fd = os.open(path, os.O_RDWR | os.O_CREAT)
direct = os.open(path, os.O_RDONLY | os.O_DIRECT)
page = mmap.mmap(-1, 4096)

def fill():
    for step in range(STEPS):
        os.pwrite(fd, b'x' * STEP, step * STEP)
    os.fsync(fd)
    for step in range(STEPS):
        os.pread(fd, STEP, step * STEP)

def zero():
    pid = os.fork()
    if pid == 0:
        done = libc.fallocate(fd, ZERO_RANGE, ctypes.c_long(0), ctypes.c_long(STEPS * STEP))
        os._exit(0 if done == 0 else 1)
    return pid

def zeroed(read):
    return sum(read(step * STEP) == bytes(4096) for step in range(STEPS))

def from_disk(offset):
    os.preadv(direct, [page], offset)
    return page[:]

fill()
began = time.monotonic()
os.waitpid(zero(), 0)
took = time.monotonic() - began
aborted, pause = 0, took / 2
for attempt in range(20):
    fill()
    pid = zero()
    time.sleep(pause)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    # The kernel is told right after the answer.
    for _ in range(20):
        cached, disk = zeroed(lambda offset: os.pread(fd, 4096, offset)), zeroed(from_disk)
        if cached == disk:
            break
        time.sleep(0.1)
    assert cached == disk, f'{cached} MiB of zeros are read, {disk} are there'
    aborted += 0 < disk < STEPS
    pause *= {0: 1.7, STEPS: 0.5}.get(disk, 1)
    if aborted == 3:
        break
print(f'killed.sh: {aborted} zeroings were aborted, one takes {took:.2f} s')
PYTHON
rm -f "$img"
make 1G
mount_it
python3 "$work/zero.py" "$mnt/zeroed" || fail "$maker: what is read after an aborted zeroing"
umount_it
judge

cat >"$work/host.py" <<'PYTHON'
import errno, os, sys, time
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
for _ in range(60):
    os.write(fd, os.urandom(1 << 20))
print('syncs', flush=True)
while True:
    try:
        os.fsync(fd)
        break
    except OSError as error:
        # Some formats wait for room, others tell at once that there is none.
        assert error.errno == errno.ENOSPC, error
        time.sleep(0.1)
print('synced', flush=True)
PYTHON
now() { echo $(($(date +%s%N) / 1000000)); }
wait_for() { for _ in $(seq 150); do ! grep -qx "$1" "$work/out" || return 0; sleep 0.1; done; fail "no $1 on the full host"; }
# A host file system of 20 MiB, on which a program waits for room.
mkdir "$work/host"
mount -t tmpfs -o size=20m none "$work/host"
img=$work/host/volume.img
make 200M
mount_it
python3 "$work/host.py" "$mnt/large" >"$work/out" &
writer=$!
wait_for syncs
sleep 1
began=$(now)
kill -KILL "$writer"
wait "$writer" 2>/dev/null || true
took=$(($(now) - began))
[ "$took" -lt "$bound" ] || fail "$maker: a program that waits for a full host is gone $took ms after it was killed"
say "$maker: a killed program that waits for a full host is gone after $took ms"

# One that has waited for some seconds goes on when there is room: a pause that doubles would be 6 s long by now.
python3 "$work/host.py" "$mnt/large" >"$work/out" &
writer=$!
wait_for syncs
sleep 7
grep -qx synced "$work/out" && fail "60 MiB fit on a host of 20"
mount -o remount,size=300m "$work/host"
began=$(now)
wait "$writer" || fail "$maker: the program failed though the host has room again"
took=$(($(now) - began))
[ "$took" -lt 3000 ] || fail "$maker: a program goes on $took ms after the host has room"
umount_it
judge
umount "$work/host"
say "$maker: passed, a program on a full host went on after $took ms"
