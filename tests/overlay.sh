#!/bin/sh
# overlayfs on top of us, as containers use it: upper, work and lower layers on one volume, on two mounts of a small tree.
# usage: overlay.sh [ext2|ext3|ext4|f2fs|mke2fs|mkfs.f2fs]
. "$(dirname "$0")/common"
choose "$@"
grep -qw overlay /proc/filesystems || modprobe overlay 2>/dev/null || skip "the kernel has no overlayfs"
make 128M
mount_it
over=$work/over
mkdir "$over" "$mnt/lower" "$mnt/upper" "$mnt/work"

overlay() {
    mount -t overlay overlay -o "lowerdir=$mnt/lower,upperdir=$mnt/upper,workdir=$mnt/work${1:-}" "$over" 2>"$work/overlay.log" ||
        { cat "$work/overlay.log"; fail "mount -t overlay ${1:-}"; }
}

# A small root file system as the lower layer.
lower=$mnt/lower
mkdir -p "$lower/bin" "$lower/etc/conf.d" "$lower/usr/share/doc" "$lower/var/lib/db" "$lower/home/user"
for number in 1 2 3 4 5; do
    echo "library $number" >"$lower/usr/share/doc/$number"
    echo "setting $number" >"$lower/etc/conf.d/$number"
done
echo root:x:0:0 >"$lower/etc/passwd"
cp /usr/bin/env "$lower/bin/env"
ln -s env "$lower/bin/link"
ln "$lower/etc/passwd" "$lower/var/passwd"
mkfifo "$lower/var/pipe"
seq 20000 >"$lower/var/lib/db/data"
chmod 4755 "$lower/bin/env"

dmesg -C 2>/dev/null || true
overlay
# What overlayfs did not find, it says.
if dmesg 2>/dev/null | grep -i 'overlayfs.*\(not support\|falling back\|failed\)' >"$work/complaints"; then
    cat "$work/complaints"
    fail "overlayfs misses something"
fi

# Copy up: contents, mode, times.
echo more >>"$over/var/lib/db/data"
[ "$(wc -l <"$over/var/lib/db/data")" = 20001 ] || fail "copied up, wrong contents"
[ "$(wc -l <"$lower/var/lib/db/data")" = 20000 ] || fail "the lower file changed"
chmod 700 "$over/bin/env"
[ "$(stat -c %a "$over/bin/env")" = 700 ] || fail "copied up, wrong mode"
touch -d 2001-02-03T04:05:06Z "$over/etc/passwd"
[ "$(stat -c %Y "$over/etc/passwd")" = 981173106 ] || fail "copied up, wrong times"
setfattr -n user.colour -v green "$over/etc/conf.d/1" 2>/dev/null && [ "$(getfattr --absolute-names --only-values -n user.colour "$over/etc/conf.d/1")" = green ] ||
    fail "attributes of a copied-up file"

# Removal leaves whiteouts; a name may come back; a directory that comes back is opaque.
rm "$over/etc/conf.d/2"
[ ! -e "$over/etc/conf.d/2" ] || fail "a removed file is there"
[ "$(stat -c '%F %t %T' "$mnt/upper/etc/conf.d/2")" = "character special file 0 0" ] || fail "no whiteout for a removed file"
rm "$over/etc/conf.d/3" && echo new >"$over/etc/conf.d/3"
[ "$(cat "$over/etc/conf.d/3")" = new ] || fail "a file that came back"
rm -r "$over/usr/share/doc" && mkdir "$over/usr/share/doc"
[ -z "$(ls "$over/usr/share/doc")" ] || fail "a directory that came back shows the lower one"
getfattr --absolute-names -m - -d "$mnt/upper/usr/share/doc" 2>/dev/null | grep -q opaque || fail "the directory is not opaque"

# Renames of lower files and directories.
mv "$over/etc/conf.d/4" "$over/etc/conf.d/renamed"
[ "$(cat "$over/etc/conf.d/renamed")" = "setting 4" ] && [ ! -e "$over/etc/conf.d/4" ] || fail "rename of a lower file"
mv "$over/etc/conf.d/5" "$over/etc/conf.d/1"
[ "$(cat "$over/etc/conf.d/1")" = "setting 5" ] || fail "rename of a lower file over another"
mv "$over/home" "$over/people" || fail "rename of a lower directory"
[ -d "$over/people/user" ] && [ ! -e "$over/home" ] || fail "rename of a lower directory"
mkdir "$over/upper-only" && echo x >"$over/upper-only/x" && mv "$over/upper-only" "$over/var/moved"
[ "$(cat "$over/var/moved/x")" = x ] || fail "rename of an upper directory"

# What programs do besides.
ln "$over/bin/env" "$over/bin/env2"
[ "$(stat -c %h "$over/bin/env")" = 2 ] || fail "a hard link"
echo data | dd of="$over/sparse" bs=1 seek=1000000 status=none
python3 -c '
import os, sys
fd = os.open(sys.argv[1], os.O_TMPFILE | os.O_RDWR)
os.write(fd, b"nameless")
os.link(f"/proc/self/fd/{fd}", sys.argv[1] + "/named", src_dir_fd=fd, follow_symlinks=True)
' "$over" && [ "$(cat "$over/named")" = nameless ] || fail "O_TMPFILE"
tar -C "$over" -cf "$work/tree.tar" . && mkdir "$over/copy" && tar -C "$over/copy" -xf "$work/tree.tar" || fail "tar"
rm -rf "$over/copy"
sync -f "$over/etc/passwd"
find "$over" -printf '%P %y %m %s %l\n' | sort >"$work/before"
umount "$over"

# With the options of container engines; directories are renamed by redirection.
overlay ,redirect_dir=on,metacopy=off,index=on
mv "$over/usr" "$over/usr2"
[ -d "$over/usr2/share" ] || fail "rename of a merged directory"
mv "$over/usr2" "$over/usr"
umount "$over"

# All of it is on the volume.
umount_it
judge
mount_it
overlay
find "$over" -printf '%P %y %m %s %l\n' | sort >"$work/after"
# (Moved directories keep their contents, not their size.)
diff "$work/before" "$work/after" >"$work/diff" || ! grep -v ' d ' "$work/diff" | grep -q '^[<>]' || { cat "$work/diff"; fail "after a new mount"; }
umount "$over"
umount_it
judge
say "$maker: passed"
