#!/bin/sh
# Mounts that show other owners (uid=, gid=, umask=), by root for a user; and of a user who acts as root on the volume (fakeroot): what is
# shown, what is stored, what is refused. Over /dev/fuse and over io_uring.
# usage: identity.sh [ext2|ext3|ext4|f2fs|mke2fs|mkfs.f2fs]

. "$(dirname "$0")/fuse-for-users"
. "$(dirname "$0")/common"
choose "$@"
needs_user_mounts
user=65534
chmod 755 "$work"
cp "$MOAFS" "$work/moafs"
m=$work/moafs

# owned PATH TEXT: mode, owner and group that a caller sees.
owned() {
    got=$($as stat -c '%a %u:%g' "$mnt/$1")
    [ "$got" = "$2" ] || fail "$how: $1 is shown as $got, not $2"
}

# stored PATH TEXT: the same on the volume.
stored() {
    got=$("$m" ls -ld --json "$img:$1" | sed -n 's/.*"\(mode\|uid\|gid\)": "\{0,1\}\([0-9]*\).*/\2/p' | tr '\n' ' ')
    [ "$got" = "$2 " ] || fail "$how: $1 is stored as $got, not $2"
}

# refused WORDS COMMAND...: fails, and says so.
refused() {
    words=$1
    shift
    ! $as "$@" >"$work/said" 2>&1 || fail "$how: not refused: $*"
    grep -q "$words" "$work/said" || { cat "$work/said"; fail "$how: does not say '$words': $*"; }
}

# does SCRIPT: as the user, in the mount.
does() {
    as_user sh -c "cd '$mnt' && $1" || fail "$how: $1"
}

# A volume of root with a set-user-id program and a device.
fill() {
    make 64M
    mkdir -p "$work/tree/sub"
    echo secret >"$work/tree/secret"
    cp /bin/true "$work/tree/program"
    chmod 600 "$work/tree/secret"
    chmod 4755 "$work/tree/program"
    [ -e "$work/tree/device" ] || mknod "$work/tree/device" b 8 0
    "$m" cp -a "$work/tree/." "$img:/"
}

overridden() {
    how="uid=,gid=,umask= over $1"
    fill
    "$m" mount -o "uid=$user,gid=7,umask=027,suid,dev,transport=$1" "$img" "$mnt"
    for at in . sub secret program; do
        owned "$at" "750 $user:7"
    done
    awk -v at="$mnt" '$2 == at { print $4 }' /proc/mounts | grep -q 'nosuid.*nodev' || fail "$how: set-ids and devices are of use"
    does "cat secret && echo changed >>secret && echo new >new && chmod 600 new && mkdir dir && ln -s new link && chown $user:7 new" >/dev/null
    owned new "750 $user:7"
    refused "not permitted" as_user chown 5 "$mnt/new"
    refused "not permitted" chown 0 "$mnt/new"
    does "echo x >program && chmod 4755 new && setfattr -n user.a -v 1 secret"
    ! have setfacl || refused "not supported" as_user setfacl -m u:5:r "$mnt/new"
    echo root >"$mnt/by_root"
    umount_it
    stored /secret "0600 0 0"
    stored /program "0755 0 0"
    stored /new "0755 $user 7"
    stored /dir "0755 $user 7"
    stored /by_root "0644 $user 7"
    stored /device "0644 0 0"
    judge

    # Owners alone: permissions are those on the volume, less the set-ids.
    "$m" mount -o "uid=$user,transport=$1" "$img" "$mnt"
    owned secret "600 $user:0"
    does "chmod 640 secret && cat secret" >/dev/null
    owned secret "640 $user:0"
    umount_it
    stored /secret "0640 0 0"
}

fake_root() {
    how="fakeroot over $1"
    fill
    chown "$user:$user" "$img" "$mnt"
    as_user "$m" mount -o "fakeroot,transport=$1" "$img" "$mnt"
    as=as_user
    owned secret "600 0:0"
    does "cat secret && mkdir etc && echo x >etc/x && chown -R 0:5 etc && chmod 4711 etc/x && touch mine && rm program && mkfifo pipe" >/dev/null
    owned etc/x "4711 0:5"
    owned mine "644 $user:$user"
    does "tar --owner 3 --group 4 -cf a.tar mine && tar --same-owner -C sub -xf a.tar"
    owned sub/mine "644 3:4"
    does "fallocate -l 100000 etc/x && truncate -s 5 secret && mv secret etc/ && ln etc/secret hard && fstrim ."
    ! have setfacl || does "setfacl -m u:5:r mine && getfacl -n mine | grep -q user:5:r"
    as=
    refused "denied" ls "$mnt"
    as=as_user
    # What the kernel itself keeps for root.
    refused "not permitted" mknod "$mnt/null" c 1 3
    as=
    as_user "$m" umount "$mnt"
    wait_for_release || fail "$how: the image was not released"
    stored /etc "0755 0 5"
    stored /etc/secret "0600 0 0"
    stored /mine "0644 $user $user"
    judge

    # A mount of root: no other user gets in.
    "$m" mount -o "fakeroot,transport=$1" "$img" "$mnt"
    echo x >"$mnt/by_root"
    owned by_root "644 0:0"
    refused "denied" as_user ls "$mnt"
    "$m" mount -o remount,suid,dev "$img" "$mnt"
    awk -v at="$mnt" '$2 == at { print $4 }' /proc/mounts | grep -q 'nosuid.*nodev' || fail "$how: a remount gives set-ids and devices"
    umount_it
    judge
    refused "would be root" "$m" mount -o fakeroot,allow_other "$img" "$mnt"
    refused "as they are stored" "$m" mount -o fakeroot,uid=5 "$img" "$mnt"
    refused "octal" "$m" mount -o umask=9 "$img" "$mnt"
}

as=
for transport in dev uring; do
    overridden $transport
    fake_root $transport
    chown 0:0 "$img" "$mnt"
done
say "$maker: passed"
