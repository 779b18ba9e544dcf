#!/bin/sh
# Mounts of a user who is not root, through fusermount3: used by that user only, unmounted by moafs, by fusermount3 and by a signal, and
# with auto_unmount taken away when the daemon is killed.
# usage: user.sh [ext2|ext3|ext4|f2fs|mke2fs|mkfs.f2fs]

. "$(dirname "$0")/fuse-for-users"
. "$(dirname "$0")/common"
choose "$@"
needs_user_mounts

is_mounted() {
    awk -v at="$mnt" '$5 == at { found = 1 } END { exit !found }' /proc/self/mountinfo
}

wait_until_gone() {
    for _ in $(seq 200); do
        is_mounted || { wait_for_release && return 0; }
        sleep 0.05
    done
    fail "$1: still mounted"
}

make 64M
chmod 755 "$work"
cp "$MOAFS" "$work/moafs"
chown 65534:65534 "$img" "$mnt"
case $maker in
ext2 | f2fs)
    # What a user makes is the user's: the volume's root directory, and what is made on it without mounting.
    as_user "$work/moafs" mkfs -q -F -t "$maker" "$img" || fail "mkfs by a user"
    as_user "$work/moafs" mkdir "$img:/made" || fail "mkdir by a user"
    as_user "$work/moafs" cp /etc/hostname "$img:/made/file" || fail "cp by a user"
    for path in / /made /made/file; do
        "$MOAFS" stat "$img:$path" | grep -q "uid 65534 gid 65534" || fail "$path is not the user's"
    done
    as_user "$work/moafs" mkfs -q -F -t "$maker" --root-owner 7:8 "$img"
    "$MOAFS" stat "$img:/" | grep -q "uid 7 gid 8" || fail "--root-owner"
    as_user "$work/moafs" mkfs -q -F -t "$maker" "$img"
    ;;
*)
    # The other makers give the root directory to root.
    mount_it
    chmod 777 "$mnt"
    umount_it
    ;;
esac

user_mounts() {
    as_user "$work/moafs" mount ${1:+-o "$1"} "$img" "$mnt" 2>"$work/said" || fail "mount ${1:-}: $(cat "$work/said")"
    is_mounted || fail "mount ${1:-}: not mounted"
}

user_mounts
as_user sh -c "echo kept >'$mnt/file'" || fail "writing"
! ls "$mnt" >"$work/said" 2>&1 || fail "another user, root, sees the mount of a user without allow_other"
! "$MOAFS" ls "$img:/" >"$work/said" 2>&1 || fail "root lists what only its user may see"
grep -q "only the user who mounted it" "$work/said" || fail "root is told: $(cat "$work/said")"
as_user "$work/moafs" info "$img" | grep -q "mounted on $mnt" || fail "info by the user who mounted"
as_user "$work/moafs" df "$img" | grep -q volume.img || fail "df by the user who mounted"
awk -v at="$mnt" '$2 == at { print $4 }' /proc/mounts | grep -q 'nosuid.*nodev' || fail "not nosuid and nodev"
as_user "$work/moafs" umount "$mnt" || fail "moafs umount"
wait_until_gone "moafs umount"
judge

user_mounts
[ "$(as_user cat "$mnt/file")" = kept ] || fail "reading"
as_user fusermount3 -u "$mnt" || fail "fusermount3 -u"
wait_until_gone "fusermount3 -u"

user_mounts
pid=$(as_user cat "$mnt/.moafs/stats" | sed -n 's/.*"pid": *\([0-9]*\).*/\1/p' | head -1)
kill "$pid"
wait_until_gone "SIGTERM"
judge

for transport in dev uring; do
    user_mounts "auto_unmount,transport=$transport"
    as_user sh -c "echo $transport >'$mnt/more'; sync '$mnt/more'"
    pid=$(as_user cat "$mnt/.moafs/stats" | sed -n 's/.*"pid": *\([0-9]*\).*/\1/p' | head -1)
    kill -KILL "$pid"
    wait_until_gone "SIGKILL with auto_unmount, $transport"
    user_mounts auto_unmount
    [ "$(as_user cat "$mnt/more")" = "$transport" ] || fail "what was synced before SIGKILL"
    as_user "$work/moafs" umount "$mnt"
    wait_until_gone "moafs umount with auto_unmount"
    judge
done
say "$maker: passed"
