#!/bin/sh
# Remounts, by the kernel alone and by the helper of mount(8); access times after them; mounts that meet an unmount just ending, unmounts of busy mounts; write-protected sources; what a daemon of root
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
    release_device
}

# The next user of the loop device is to find it writable.
release_device() {
    if [ -n "${device:-}" ]; then
        blockdev --setrw "$device"
        losetup -d "$device"
    fi
    device=
}

# helper OPTIONS: as mount(8) calls it.
helper() {
    "$work/mount.fuse.moafs" "$img" "$mnt" -o "$1"
}

# Reads past the caches, so that the daemon sees it, a file that was last read long ago. True if the time of access stays.
keeps_access_time() {
    "$work/read_old" "$mnt/old"
    [ "$(stat -c %X "$mnt/old")" = 1000000000 ]
}

# The daemon learns of a remount in a thread of its own.
soon() {
    for _ in $(seq 100); do
        ! "$@" || return 0
        sleep 0.1
    done
    return 1
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

# By moafs itself: what is not named stays.
mount -i -o remount,nosuid,nodev "$mnt"
"$MOAFS" mount -o remount,noexec "$img" "$mnt" || fail "moafs mount -o remount,noexec"
"$MOAFS" mount -o remount,dev "$img" "$mnt" || fail "moafs mount -o remount,dev"
for option in nosuid noexec noatime; do shown $option || fail "$option went with a remount that does not name it"; done
! shown nodev || fail "remount,dev"
mount -i -o remount,rw "$mnt"
umount_it
mount_it dirsync,lazytime
"$MOAFS" mount -o remount,noexec "$img" "$mnt" || fail "moafs mount -o remount,noexec"
for option in dirsync lazytime noexec; do shown $option || fail "$option went with a remount that does not name it"; done
umount_it
mount_it

# By the helper: of the words that mount(8) repeats from the mount table none is in the way.
ln -s "$MOAFS" "$work/mount.fuse.moafs"
helper rw,relatime,user_id=0,group_id=0,default_permissions,allow_other,blksize=4096,remount,ro || fail "the helper's remount,ro"
shown ro || fail "the helper's remount,ro is not shown"
! touch "$mnt/new" 2>/dev/null || fail "a change after the helper's remount,ro"
helper remount,rw || fail "the helper's remount,rw"
shown rw || fail "the helper's remount,rw is not shown"
exec 9>"$mnt/held"
! helper remount,ro 2>"$work/said" || fail "remount,ro while a file is open for writing"
grep -q "busy" "$work/said" || fail "no word of the open file: $(cat "$work/said")"
exec 9>&-
! helper remount,cache=64M 2>"$work/said" || fail "a remount with another cache"
grep -q "unmount the volume" "$work/said" || fail "no word of the way out: $(cat "$work/said")"

# Access times follow.
cat >"$work/read_old" <<'SCRIPT'
#!/bin/sh
touch -a -d @1000000000 "$1" 2>/dev/null
dd if="$1" of=/dev/null bs=4096 count=1 iflag=direct 2>/dev/null
SCRIPT
chmod +x "$work/read_old"
head -c 4096 /dev/zero >"$mnt/old"
helper remount,noatime || fail "remount,noatime"
soon keeps_access_time || fail "access times after remount,noatime"
helper remount,relatime || fail "remount,relatime"
soon eval '! keeps_access_time' || fail "no access times after remount,relatime"
touch -a -d @1000000000 "$mnt/old"
helper remount,ro || fail "remount,ro"
soon keeps_access_time || fail "access times after remount,ro"
umount_it
mount_it ro
! helper remount,rw 2>"$work/said" || fail "remount,rw of a volume that was opened for reading only"
grep -q "mount it again" "$work/said" || fail "no word of the way out: $(cat "$work/said")"
umount_it
mount_it

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
    # For mount(8) that is the default, and always said.
    helper rw,noatime 2>/dev/null || fail "an immutable image, by the helper"
    shown ro || fail "an immutable image is not shown as ro, by the helper"
    umount_it
    chattr -i "$img"
fi

# A write-protected device.
if device=$(losetup -f --show "$img" 2>/dev/null); then
    blockdev --setro "$device"
    "$MOAFS" mount "$device" "$mnt" >"$work/warning" 2>&1 || fail "a write-protected device: $(cat "$work/warning")"
    grep -q "source write-protected, mounted read-only" "$work/warning" || fail "no warning: $(cat "$work/warning")"
    shown ro || fail "a write-protected device is not shown as ro"
    [ "$(cat "$mnt/file")" = after ] || fail "reading a write-protected device"
    umount "$mnt"
    release_device
    wait_for_release || fail "the image was not released"
fi

# With strictatime each program that reads a file or directory leaves its time of access.
mount_it strictatime
mkdir -p "$mnt/dir"
for reader in "cat $mnt/file" "ls $mnt/dir"; do
    for time in 1000000000 1100000000; do
        touch -a -d @$time "${reader#* }"
        $reader >"$work/read"
        [ "$(stat -c %X "${reader#* }")" != $time ] || fail "$reader leaves no time of access"
    done
done
umount_it

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

# A mount that is busy for a moment only is waited for; one that stays busy is refused.
hold() {
    (cd "$mnt" && : >"$work/held" && exec sleep "$1") &
    for _ in $(seq 100); do
        [ ! -e "$work/held" ] || break
        sleep 0.01
    done
    rm "$work/held"
}
mount_it
hold 0.2
"$MOAFS" umount "$mnt" || fail "an unmount right before the mount is left"
wait
mount_it
hold 5
! "$MOAFS" umount "$mnt" 2>"$work/said" || fail "an unmount of a busy mount"
grep -q "is busy" "$work/said" || { cat "$work/said"; fail "a busy mount is not named"; }
{ kill $! && wait $!; } 2>/dev/null || true
umount_it

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
