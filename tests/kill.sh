#!/bin/sh
# SIGKILL of the daemon in the middle of work: the volume mounts again at once, everything fsynced is
# there with its bytes, and fsck finds nothing that a power cut of ours may not leave.
# usage: kill.sh [ext2|ext3|ext4|f2fs|mke2fs|mkfs.f2fs] [ROUNDS]
. "$(dirname "$0")/common"
choose "$@"
rounds=${2:-20}
make 256M

# Writes numbered files, fsyncs some, and notes each fsync that returned.
writer() {
    i=0
    while :; do
        i=$((i + 1))
        dir=$mnt/round$1/d$((i % 7))
        mkdir -p "$dir" || return 0
        seq "$i" $((i + i % 900)) >"$work/data" || return 0
        cp "$work/data" "$dir/f$i" 2>/dev/null || return 0
        case $((i % 3)) in
        0) sync "$dir/f$i" 2>/dev/null && echo "$dir/f$i $(cksum <"$work/data")" >>"$work/promised" || return 0 ;;
        1) mv "$dir/f$i" "$dir/g$i" 2>/dev/null || return 0 ;;
        2) [ $((i % 5)) = 0 ] && rm -f "$dir/f$i" 2>/dev/null || true ;;
        esac
    done
}

: >"$work/promised"
for round in $(seq "$rounds"); do
    mount_it commit=0.3,dirty_age=0.3
    pid=$(daemon_pid)
    [ -n "$pid" ] || fail "the daemon's pid is not in .moafs/stats"
    writer "$round" 2>/dev/null &
    writer_pid=$!
    sleep "0.$((3 + round % 7))"
    kill -KILL "$pid"
    wait "$writer_pid" || true
    umount -l "$mnt" 2>/dev/null || "$MOAFS" umount "$mnt" || true
    wait_for_release || fail "round $round: the image was not released"
    judge_crashed "round $round"
    mount_it
    while read -r file sum size; do
        [ "$(cksum <"$file")" = "$sum $size" ] || fail "round $round: $file was fsynced and is not as it was"
    done <"$work/promised"
    [ "$round" -gt 3 ] && rm -rf "$mnt/round$((round - 3))" && grep -v "/round$((round - 3))/" "$work/promised" >"$work/p" &&
        mv "$work/p" "$work/promised"
    umount_it
done

# A daemon that is told to end writes everything, also when its mount is not where it was made: only a copy of it is left.
copy=$work/copy
mkdir "$copy"
mount_it commit=3600,dirty_age=3600
pid=$(daemon_pid)
mount --bind "$mnt" "$copy"
umount "$mnt"
mkdir "$copy/made"
echo told >"$copy/told"
kill -TERM "$pid"
for _ in $(seq 100); do
    ! grep -q "told to end" "$copy/.moafs/stats" || break
    sleep 0.1
done
# What it says comes first.
sleep 2
kill -KILL "$pid"
umount -l "$copy"
wait_for_release || fail "the image was not released"
mount_it
[ -d "$mnt/made" ] && [ "$(cat "$mnt/told")" = told ] || fail "what was made before SIGTERM is gone"
rm -r "$mnt/made" "$mnt/told"
umount_it
judge
say "$maker: $rounds rounds, $(wc -l <"$work/promised") files checked in the last"
