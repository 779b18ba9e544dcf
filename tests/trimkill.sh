#!/bin/sh
# fstrim on a volume that is nearly full, beside writers, and while the daemon is killed: every file that was fsynced
# keeps its bytes, and the checkers find nothing.
# usage: trimkill.sh [ext2|ext3|ext4|f2fs|mke2fs|mkfs.f2fs] [ROUNDS]
. "$(dirname "$0")/common"
choose "$@"
rounds=${2:-3}
have fstrim || skip "fstrim is not installed (util-linux)"
have python3 || skip "python3 is not installed"
make 128M

# Makes and removes files until there is a file STOP, or until the daemon is gone. Notes each file whose fsync has
# returned, and each that it is about to remove.
cat >"$work/writer.py" <<'PYTHON'
import errno, os, random, sys, zlib
directory, log, stop = sys.argv[1:]
notes = open(log, 'a', buffering=1)

def remove():
    name = files.pop(random.randrange(len(files)))
    notes.write(f'{directory}/{name} gone\n')
    os.unlink(f'{directory}/{name}')

try:
    os.makedirs(directory, exist_ok=True)
    files = os.listdir(directory)
    number = max((int(name) for name in files), default=0)
    while not os.path.exists(stop):
        number += 1
        path = f'{directory}/{number}'
        content = os.urandom(random.randrange(1, 1500000))
        fd = None
        try:
            fd = os.open(path, os.O_CREAT | os.O_WRONLY)
            files.append(str(number))
            left = memoryview(content)
            while left:
                left = left[os.write(fd, left):]
            os.fsync(fd)
            notes.write(f'{path} {zlib.crc32(content)}\n')
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            for _ in range(min(5, len(files))):
                remove()
        finally:
            if fd is not None:
                os.close(fd)
except OSError as error:
    if error.errno not in (errno.ENOTCONN, errno.ECONNABORTED, errno.ECANCELED):
        raise
PYTHON

cat >"$work/compare.py" <<'PYTHON'
import sys, zlib
count = 0
for log in sys.argv[1:]:
    for path, note in dict(line.split() for line in open(log)).items():
        if note != 'gone':
            count += 1
            with open(path, 'rb') as file:
                assert zlib.crc32(file.read()) == int(note), f'{path} was fsynced and is not as it was'
assert count > 5, f'only {count} files'
PYTHON

# Starts two writers, and fstrim in a loop.
begin() {
    rm -f "$work/stop"
    python3 "$work/writer.py" "$mnt/a" "$work/a.notes" "$work/stop" &
    first=$!
    python3 "$work/writer.py" "$mnt/b" "$work/b.notes" "$work/stop" &
    second=$!
    (
        trims=0
        while [ ! -e "$work/stop" ] && fstrim "$mnt" 2>>"$work/fstrim.log"; do trims=$((trims + 1)); done
        echo "$trims" >"$work/trims"
        [ -e "$work/stop" ]
    ) &
    trimmer=$!
}

mount_it
# The writers have 24 MB between them: soon there is no room.
avail=$(df -k --output=avail "$mnt" | tail -1)
head -c "$(((avail - 24000) * 1024))" /dev/urandom >"$mnt/ballast"
sync "$mnt/ballast"
ballast=$(cksum <"$mnt/ballast")
begin
sleep 4
touch "$work/stop"
wait $first || fail "a writer"
wait $second || fail "a writer"
wait $trimmer || { cat "$work/fstrim.log"; fail "fstrim beside writers"; }
[ "$(cat "$work/trims")" -gt 3 ] || fail "only $(cat "$work/trims") trims"
umount_it
judge
mount_it
python3 "$work/compare.py" "$work"/?.notes || fail "beside writers"

for round in $(seq "$rounds"); do
    pid=$(daemon_pid)
    [ -n "$pid" ] || fail "the daemon's pid is not in .moafs/stats"
    begin
    sleep "0.$((5 + round % 5))"
    kill -KILL "$pid"
    touch "$work/stop"
    wait $first || fail "round $round: a writer"
    wait $second || fail "round $round: a writer"
    wait $trimmer || true
    umount -l "$mnt" 2>/dev/null || "$MOAFS" umount "$mnt" || true
    wait_for_release || fail "round $round: the image was not released"
    judge_crashed "round $round"
    mount_it
    python3 "$work/compare.py" "$work"/?.notes || fail "round $round"
done
[ "$(cksum <"$mnt/ballast")" = "$ballast" ] || fail "a file that no program has touched has changed"
umount_it
judge
say "$maker: $rounds rounds passed"
