#!/bin/sh
# What one user may take from the others: time (bystander.py, over both transports), texts of the control directory, long operations
# of killed programs; and what the mount table and messages show.
# usage: limits.sh [ext2|ext3|ext4|f2fs|mke2fs|mkfs.f2fs] [SECONDS]   for each attack (2)
. "$(dirname "$0")/common"
choose "$@"
attack_seconds=${2:-2}
have setpriv || skip "setpriv is not installed"
have python3 || skip "python3 is not installed"
make 2G
mount_it
chmod 755 "$work"
chmod 777 "$mnt"

# A user who opens texts without end is stopped; root is not.
cat >"$work/opens.py" <<'PYTHON'
import errno, json, os, sys, time
os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
stats = sys.argv[1] + '/.moafs/stats'
shown = json.load(open(stats))
assert all(shown[name] is None for name in ('source', 'target', 'face', 'options')), shown
held = []
try:
    while len(held) < 2000:
        held.append(os.open(stats, os.O_RDONLY))
except OSError as error:
    assert error.errno == errno.ENFILE, error
assert len(held) < 100, len(held)
print('full', flush=True)
time.sleep(60)
PYTHON
python3 "$work/opens.py" "$mnt" >"$work/opens.out" &
opener=$!
for _ in $(seq 100); do
    grep -q full "$work/opens.out" && break
    sleep 0.1
done
grep -q full "$work/opens.out" || fail "the user was not stopped"
grep -q "$img" "$mnt/.moafs/stats" || fail "root cannot read stats, or its source is hidden"
"$MOAFS" swap status "$mnt" >"$work/swap" 2>&1 || { cat "$work/swap"; fail "moafs swap status"; }
kill -KILL "$opener"
wait "$opener" 2>/dev/null || true

# A killed program does not wait for its fallocate.
setpriv --reuid 65534 --regid 65534 --clear-groups fallocate -l 1800M "$mnt/large" &
caller=$!
sleep 0.3
before=$(date +%s%N)
kill -KILL "$caller" 2>/dev/null || true
wait "$caller" 2>/dev/null || true
took=$((($(date +%s%N) - before) / 1000000))
[ "$took" -lt 1500 ] || fail "a killed fallocate went on for $took ms"
rm -f "$mnt/large"
umount_it
judge

# A bystander is served beside users whose calls take long. On an idle machine its p99 is below 50 ms; the bound here only tells a
# machine of any speed from a call that waits for other users' calls, which take seconds.
for transport in dev uring; do
    mount_it "transport=$transport" 2>"$work/said" || { echo "*** SKIPPED: $name: $transport: $(cat "$work/said")"; continue; }
    chmod 777 "$mnt"
    say "$maker, $transport:"
    within 300 python3 "$here/bystander.py" "$mnt" "$attack_seconds" 8 500 || fail "$maker, $transport: a bystander waits too long"
    umount_it
    judge
done

# A directory that contains itself ends a defragmentation of the mount.
if [ "$format" != f2fs ] && have debugfs; then
    mount_it
    mkdir -p "$mnt/parent/child"
    umount_it
    debugfs -w -R 'link parent parent/child/again' "$img" >"$work/debugfs.log" 2>&1
    mount_it
    code=0
    timeout 60 "$MOAFS" defrag "$mnt" >"$work/said" 2>&1 || code=$?
    [ "$code" = 1 ] && grep -q "met before" "$work/said" || { cat "$work/said"; fail "defrag of a cycle ends with $code"; }
    umount_it
    debugfs -w -R 'unlink parent/child/again' "$img" >"$work/debugfs.log" 2>&1
    judge
fi

# A volume that is mounted read-only is shown so.
mount_it ro
awk -v at="$mnt" '$2 == at { print $4 }' /proc/mounts | grep -qw ro || fail "-o ro is not shown in /proc/mounts"
umount_it

# A volume that fails while it is mounted is shown so, when no file is open for writing any more.
mount_it
echo content >"$mnt/damaged"
umount_it
case $format in
f2fs)
    # The volume lies on a modelled disk that is a process; killed, every request of the device fails.
    mkdir "$work/sim"
    "$MOAFS" simdisk --foreground --model st3160812as --size 2G --image "$img" "$work/sim" >"$work/sim.log" 2>&1 &
    disk=$!
    undo() { kill -KILL "$disk" 2>/dev/null; }
    for _ in $(seq 100); do [ ! -e "$work/sim/disk" ] || break; sleep 0.1; done
    img=$work/sim/disk
    meet() { kill -KILL "$disk"; dd if=/dev/urandom of="$mnt/damaged" bs=1M count=10 conv=fsync 2>"$work/dd.log" || true; }
    ;;
*)
    have debugfs || skip "debugfs is not installed"
    debugfs -w -R 'set_inode_field damaged block[0] 4294967295' "$img" >"$work/debugfs.log" 2>&1
    meet() { rm -f "$mnt/damaged"; }
    ;;
esac
mount_it
meet
for _ in $(seq 50); do
    grep " $mnt " /proc/mounts | grep -q ' ro,' && break
    sleep 0.1
done
grep " $mnt " /proc/mounts | grep -q ' ro,' || { cat "$mnt/.moafs/stats"; fail "a volume that failed is not shown as ro"; }
grep -q '"failed": "' "$mnt/.moafs/stats" || fail "the reason of the failure is not in stats"
daemon=$(daemon_pid)
umount "$mnt"
for _ in $(seq 100); do kill -0 "$daemon" 2>/dev/null || break; sleep 0.1; done
! kill -0 "$daemon" 2>/dev/null || fail "the daemon of a volume that failed does not end"

# A host that is full is no failure: writing goes on when there is room.
[ "$format" != f2fs ] || umount "$work/sim"
mkdir "$work/host"
mount -t tmpfs -o size=20m none "$work/host"
img=$work/host/volume.img
make 200M
mount_it
! dd if=/dev/urandom of="$mnt/large" bs=1M count=60 conv=fsync 2>"$work/dd.log" || fail "60 MiB fit on a host of 20"
mount -o remount,size=300m "$work/host"
dd if=/dev/urandom of="$mnt/large" bs=1M count=60 conv=fsync 2>"$work/dd.log" ||
    { cat "$work/dd.log"; fail "nothing can be written though the host has room again"; }
umount_it
judge

# A change of names that the full host keeps from becoming durable is made all the same, and shown.
rm "$img"
mount -o remount,size=20m "$work/host"
make 200M
mount_it dirsync
mkdir "$mnt/dir"
echo content >"$mnt/dir/old"
ln "$mnt/dir/old" "$mnt/dir/gone"
stat "$mnt/dir/old" "$mnt/dir/gone" >"$work/stat.log"
dd if=/dev/zero of="$work/host/ballast" bs=1M 2>"$work/dd.log" || true
refused=
rm "$mnt/dir/gone" 2>"$work/full.log" || refused=1
mv "$mnt/dir/old" "$mnt/dir/new" 2>"$work/full.log" || refused=1
# Without a journal the changed blocks lie where the host has room for them already.
[ -n "$refused" ] || [ "$format" = ext2 ] || fail "changes of names became durable on a full host"
sleep 0.5
[ ! -e "$mnt/dir/gone" ] || fail "the kernel keeps a name that was removed"
[ -e "$mnt/dir/new" ] && [ ! -e "$mnt/dir/old" ] || fail "the kernel keeps the names of before a rename"
[ "$(stat -c %h "$mnt/dir/new")" = 1 ] || fail "the kernel counts a link that was removed"
[ "$(ls "$mnt/dir" | tr '\n' ' ')" = "new " ] || fail "the kernel lists $(ls "$mnt/dir")"
rm "$work/host/ballast"
umount_it
judge
umount "$work/host"
say "$maker: passed, a killed fallocate took $took ms"
