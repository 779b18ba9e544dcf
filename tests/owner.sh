#!/bin/sh
# A volume in use is left alone by whatever name it is called: its path, links, a loop device over its image; and the words name the mount.
# usage: owner.sh [ext2|ext3|ext4|f2fs|mke2fs|mkfs.f2fs]
. "$(dirname "$0")/common"
choose "$@"
make 128M
other=$work/other
mkdir "$other"
ln -s "$img" "$work/symbolic"
ln "$img" "$work/hard"
dev= second=
undo() { for at in $dev $second; do losetup -d "$at" 2>/dev/null; done; }
attach() { losetup --find --show "$img" 2>/dev/null || skip "no loop devices"; }

# refused NAME: no command that writes takes the volume by this name, and each says where it is mounted.
refused() {
    for command in "mount $1 $other" "mount -o ro $1 $other" "fsck -y $1" "mkfs -F $1" "tune -L label $1" "cp $0 $1:/copy" "defrag $1"; do
        # Words of one variable, which have no spaces of their own.
        # shellcheck disable=SC2086
        ! within 60 "$MOAFS" $command >"$work/said" 2>&1 || fail "$maker: moafs $command, which is mounted on $mnt"
        grep -q "mounted on $mnt" "$work/said" || { cat "$work/said"; fail "$maker: moafs $command does not say where it is mounted"; }
    done
}

mount_it
echo content >"$mnt/file"
dev=$(attach)
for known_as in "$img" "$work/symbolic" "$work/hard" "$dev"; do
    refused "$known_as"
done
losetup -d "$dev"
dev=
umount_it
judge

# The same while a loop device over the image is mounted: by moafs, and by the kernel.
dev=$(attach)
second=$(attach)
case $maker in
mke2fs) type=ext2 ;;
mkfs.f2fs) type=f2fs ;;
*) type=$maker ;;
esac
drivers=moafs
! grep -qw "$type" /proc/filesystems || drivers="moafs kernel"
for driver in $drivers; do
    case $driver in
    moafs) "$MOAFS" mount "$dev" "$mnt" ;;
    kernel) mount -t "$type" "$dev" "$mnt" ;;
    esac
    for known_as in "$img" "$work/hard" "$dev" "$second"; do
        refused "$known_as"
    done
    umount "$mnt"
done
losetup -d "$dev" "$second"
dev= second=
wait_for_release || fail "the image was not released"
judge
"$MOAFS" cp "$work/hard:/file" "$work/copy"
[ "$(cat "$work/copy")" = content ] || fail "$maker: the file has changed"

say "$maker: passed, mounted by $drivers"
