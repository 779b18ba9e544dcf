#!/bin/sh
# Remounts, which the kernel makes by itself; mounts that meet an unmount just ending; write-protected sources; what a daemon of root
# gives up; names that could control a terminal.
# usage: remount.sh [ext2|ext3|ext4|f2fs|mke2fs|mkfs.f2fs]
. "$(dirname "$0")/common"
choose "$@"
make 64M

shown() {
    awk -v at="$mnt" '$2 == at { print $4 }' /proc/mounts | tr , '\n' | grep -qx "$1"
}

undo() {
    chattr -i "$img" 2>/dev/null
}

mount_it
echo before >"$mnt/file"
mount -i -o remount,ro "$mnt" || fail "remount,ro"
shown ro || fail "remount,ro is not shown"
! touch "$mnt/new" 2>/dev/null || fail "a change after remount,ro"
[ "$(cat "$mnt/file")" = before ] || fail "reading after remount,ro"
mount -i -o remount,rw "$mnt" || fail "remount,rw"
shown rw || fail "remount,rw is not shown"
echo after >"$mnt/file" || fail "a change after remount,rw"
mount -i -o remount,noatime "$mnt" || fail "remount,noatime"
shown noatime || fail "remount,noatime is not shown"

# Only what serving needs.
status=/proc/$(daemon_pid)/status
grep -q '^NoNewPrivs:.1' "$status" || fail "the daemon may gain privileges"
effective=$((0x$(awk '$1 == "CapEff:" { print $2 }' "$status")))
[ $((effective & ~0x1a04006)) = 0 ] || fail "the daemon has capabilities $(printf %x $effective)"
for task in /proc/"$(daemon_pid)"/task/*/status; do
    [ "$(awk '$1 == "CapEff:" { print $2 }' "$task")" = "$(awk '$1 == "CapEff:" { print $2 }' "$status")" ] || fail "$task has others"
done

# An unmount that ends while the next mount begins.
for round in 1 2 3 4 5; do
    head -c 2000000 /dev/zero >"$mnt/data$round"
    umount -l "$mnt"
    mount_it no_sandbox || fail "round $round: a mount that met an unmount"
done
grep -q '^NoNewPrivs:.0' "/proc/$(daemon_pid)/status" || fail "no_sandbox is not heeded"
umount_it

# A write-protected image.
if chattr +i "$img" 2>/dev/null; then
    mount_it >"$work/warning" 2>&1 || fail "an immutable image: $(cat "$work/warning")"
    grep -q "source write-protected, mounted read-only" "$work/warning" || fail "no warning: $(cat "$work/warning")"
    shown ro || fail "an immutable image is not shown as ro"
    [ "$(cat "$mnt/file")" = after ] || fail "reading an immutable image"
    umount_it
    ! "$MOAFS" mount -o rw "$img" "$mnt" 2>/dev/null || fail "rw was asked for"
    chattr -i "$img"
fi

# With auto_unmount a mount goes when its daemon is killed; the mount of a user, where users may mount.
if have fusermount3 && have setpriv; then
    user() {
        setpriv --reuid 65534 --regid 65534 --clear-groups "$@"
    }
    theirs=$work/theirs
    mkdir "$theirs"
    cp "$MOAFS" "$work/moafs"
    chmod 755 "$work" "$work/moafs"
    if user test -w /dev/fuse; then
        chown 65534:65534 "$theirs" "$img"
    else
        echo "*** SKIPPED: $name: the mount of a user (/dev/fuse is root's); root's instead"
        user() {
            "$@"
        }
    fi
    user "$work/moafs" mount -o auto_unmount "$img" "$theirs" || fail "-o auto_unmount"
    kill -KILL "$(user sed -n 's/.*"pid": *\([0-9]*\).*/\1/p' "$theirs/.moafs/stats" | head -1)"
    for _ in $(seq 100); do
        grep -q " $theirs " /proc/self/mounts || break
        sleep 0.1
    done
    ! grep -q " $theirs " /proc/self/mounts || fail "a mount with auto_unmount is there though its daemon was killed"
    wait_for_release || fail "the image was not released"
    mount_it
    umount_it
fi

# No name reaches the terminal raw.
odd=$(printf 'a\033[2Jb\nc')
"$MOAFS" ls "$img:/$odd" >"$work/said" 2>&1 && fail "a name that is not there"
! "$MOAFS" cp "$img:/$odd" "$work/$odd" >>"$work/said" 2>&1 || fail "a copy of nothing"
! "$MOAFS" fsck -n "$work/$odd" >>"$work/said" 2>&1 || fail "a check of nothing"
! "$MOAFS" mount "$work/$odd" "$mnt" >>"$work/said" 2>&1 || fail "a mount of nothing"
! "$MOAFS" umount "$work/$odd" >>"$work/said" 2>&1 || fail "an unmount of nothing"
! LC_ALL=C grep -q "$(printf '\033')" "$work/said" || { cat -v "$work/said"; fail "a message with a control character"; }
judge
say "$maker: passed"
