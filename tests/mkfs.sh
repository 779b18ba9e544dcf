#!/bin/sh
# The kernel's ext4 driver and e2fsck as judges of ext2, ext3 and ext4: volumes that moafs mkfs makes, what a mount writes to them,
# and the journals that the kernel and moafs leave to each other.
# usage: mkfs.sh [ext2|ext3|ext4|f2fs [MKFS-OPTION...]]
. "$(dirname "$0")/common"
maker=${1:-ext4}
[ $# = 0 ] || shift
case $maker in
f2fs) say "nothing to do for F2FS"; exit 0 ;;
esac
have python3 || skip "python3 is not installed"
have e2fsck || skip "e2fsck is not installed"
kernel=$work/kernel
mkdir "$kernel"

run() {
    python3 "$here/mkfs.py" "$@" || fail "$case: $1"
}

# by_kernel IMAGE [OPTIONS]: mounts at $kernel.
by_kernel() {
    mount -o "loop,noatime${2:+,$2}" "$1" "$kernel" || fail "$case: the kernel does not mount it"
}

# The loop device goes a moment after the mount. While it is there, moafs refuses the image.
off_kernel() {
    umount "$kernel"
    for _ in $(seq 100); do
        [ -n "$(losetup -j "$1")" ] || return 0
        sleep 0.05
    done
    fail "$case: the loop device stays"
}

silent() {
    e2fsck -fn "$1" >"$work/e2fsck.log" 2>&1 || { cat "$work/e2fsck.log"; fail "$case: e2fsck -fn after $2"; }
    ! grep -q "count wrong" "$work/e2fsck.log" || { cat "$work/e2fsck.log"; fail "$case: e2fsck -fn after $2"; }
}

same() {
    diff "$work/$1" "$work/$2" >"$work/diff" || { head -20 "$work/diff"; fail "$case: $1 and $2 differ"; }
}

# Made by moafs, written by the kernel, changed by moafs: each sees what the other did, and the change is what it is on the kernel's.
volume() {
    case="$*"
    rm -f "$img"
    "$MOAFS" mkfs -q -F "$@" "$img" 96M
    silent "$img" mkfs
    # The kernel has few modes of fallocate for files without extents; moafs writes to files with extents through a journal only.
    modes=punch ro=
    case $(dumpe2fs -h "$img" 2>/dev/null | grep '^Filesystem features:') in
    *has_journal*extent*) modes=all ;;
    *extent*) ro=,ro ;;
    esac
    by_kernel "$img"
    run fill "$kernel" 7
    run tree "$kernel" >"$work/by-kernel"
    off_kernel "$img"
    silent "$img" "the kernel's work"
    cp --sparse=always "$img" "$work/copy.img"

    mount_it "noatime$ro"
    run tree "$mnt" >"$work/by-moafs"
    same by-kernel by-moafs
    [ -z "$ro" ] || { umount_it; return 0; }
    run change "$mnt" 7 "$modes"
    run tree "$mnt" times place >"$work/changed-by-moafs"
    umount_it
    mount_it noatime,ro
    run tree "$mnt" >"$work/by-moafs"
    umount_it
    silent "$img" "work through moafs"
    by_kernel "$img" ro
    # Bytes of the superblock that moafs keeps to itself have no meaning for the kernel: it shows those that have one.
    ! grep " $kernel " /proc/mounts | grep -E "res[ug]id=" || fail "$case: the kernel takes moafs's mark for an owner of reserved blocks"
    run tree "$kernel" >"$work/by-kernel"
    off_kernel "$img"
    same by-moafs by-kernel

    by_kernel "$work/copy.img"
    run change "$kernel" 7 "$modes"
    run tree "$kernel" times place >"$work/changed-by-kernel"
    off_kernel "$work/copy.img"
    same changed-by-moafs changed-by-kernel
}

# Takes the times out of the lines in FILE of files that the kernel's lines show as changed after SINCE: the kernel ends
# truncations that the cut interrupted, and gives these files its own time.
without_times_of_truncation() { # SINCE KERNEL FILE
    awk -v since="$1" '
        NR == FNR { if (match($0, /mtime=[0-9]+/) && substr($0, RSTART + 6, RLENGTH - 6) + 0 >= since + 0) late[$1]; next }
        $1 in late { gsub(/[mc]time=[0-9]+ /, "") }
        { print }' "$2" "$3" >"$3.kept"
    mv "$3.kept" "$3"
}

# e2fsck, the kernel and moafs each replay a copy of the image; all three see the same, and e2fsck is silent after each.
replays() {
    for judge in e2fsck kernel moafs; do
        cp --sparse=always "$img" "$work/$judge.img"
    done
    e2fsck -fy -E no_optimize_extents "$work/e2fsck.img" >"$work/e2fsck.log" 2>&1 || [ $? = 1 ] ||
        { cat "$work/e2fsck.log"; fail "$case: e2fsck -fy"; }
    replay_began=$(date +%s%N)
    by_kernel "$work/kernel.img"
    off_kernel "$work/kernel.img"
    "$MOAFS" mount -o noatime "$work/moafs.img" "$mnt" 2>"$work/mount.log"
    grep -q "journal were replayed" "$work/mount.log" || fail "$case: there was nothing to replay"
    run tree "$mnt" >"$work/seen-by-moafs"
    umount "$mnt"
    flock "$work/moafs.img" true
    for judge in e2fsck kernel moafs; do
        silent "$work/$judge.img" "the replay by $judge"
        by_kernel "$work/$judge.img" ro
        run tree "$kernel" >"$work/replayed-by-$judge"
        off_kernel "$work/$judge.img"
    done
    same seen-by-moafs replayed-by-moafs
    for judge in e2fsck moafs kernel; do
        without_times_of_truncation "$replay_began" "$work/replayed-by-kernel" "$work/replayed-by-$judge"
    done
    same replayed-by-kernel replayed-by-moafs
    same replayed-by-kernel replayed-by-e2fsck
}

# Starts `load` on a directory. It ends when its standard input does, which is after the cut.
load() {
    mkfifo "$work/hold"
    python3 "$here/mkfs.py" load "$1" "$2" <"$work/hold" &
    loader=$!
    exec 9>"$work/hold"
}

end_load() {
    exec 9>&-
    rm "$work/hold"
    wait "$loader" || fail "$case: load"
}

# SIGKILL of the daemon in the middle of work. Again if it came right after the log was emptied.
killed() {
    case="SIGKILL after $1 s, $(shift; echo "$*")"
    for attempt in 1 2 3; do
        work_and_kill "$@"
        ! has_transactions || break
        say "$case: there was nothing to replay ($attempt)"
    done
    replays
}

work_and_kill() {
    seconds=$1
    shift
    rm -f "$img"
    "$MOAFS" mkfs -q -F "$@" "$img" 96M
    mount_it noatime,commit=0.3,dirty_age=0.3
    load "$mnt" "$seconds"
    sleep "$seconds"
    kill -KILL "$(daemon_pid)"
    sleep 0.1
    end_load
    umount -l "$mnt"
    wait_for_release || fail "$case: the image was not released"
}

has_transactions() {
    "$MOAFS" mount -o ro "$img" "$mnt" 2>"$work/mount.log"
    umount "$mnt"
    flock "$img" true
    grep -q "transactions are read from the journal" "$work/mount.log"
}

# The kernel's ext4 is shut down in the middle of work, as a power cut would.
cut() {
    case="the kernel's journal after $1 s, $(shift; echo "$*")"
    seconds=$1
    shift
    rm -f "$img"
    "$MOAFS" mkfs -q -F "$@" "$img" 96M
    by_kernel "$img" commit=1
    load "$kernel" "$seconds"
    sleep "$seconds"
    run shutdown "$kernel"
    end_load
    off_kernel "$img"
    replays
}

if [ $# -gt 0 ]; then
    volume -t "$maker" "$@"
    exit 0
fi
case $maker in
ext2)
    volume -t ext2 -b 1024 -I 128
    volume -t ext2 -b 2048
    volume -t ext2 -b 4096
    ;;
ext3)
    volume -t ext3 -b 1024
    volume -t ext3 -b 4096 -I 128
    cut 2 -t ext3
    ;;
ext4)
    volume -t ext4 -b 1024
    volume -t ext4 -b 2048 -I 128
    volume -t ext4 -b 4096
    volume -t ext4 -O ^metadata_csum
    volume -t ext4 -O uninit_bg,^metadata_csum
    volume -t ext4 -O ^64bit
    volume -t ext4 -O meta_bg,^resize_inode
    volume -t ext4 -O sparse_super2
    volume -t ext4 -O orphan_file
    volume -t ext4 -O ^extent,^64bit
    volume -t ext4 -O ^has_journal
    killed 2 -t ext4
    killed 3 -t ext4 -b 1024 -O ^metadata_csum
    cut 2 -t ext4
    cut 3 -t ext4 -b 4096 -O orphan_file
    ;;
esac
say "$maker: the kernel, e2fsck and moafs agree"
