#!/bin/sh
# Files of a volume in the place of its control directory: they are neither listed nor found, and no command of root follows them.
# usage: control.sh [ext2|ext3|ext4|f2fs|mke2fs|mkfs.f2fs]
. "$(dirname "$0")/common"
choose "$@"
canary=$work/canary

# What a command would need in `.moafs/stats` to go on.
canary_text() {
    echo '{"first_byte": 0, "space": {}, "pid": 1}'
}

# Every way in which the kernel learns names, then every command that opens a control file.
use() {
    ls -la "$mnt" "$mnt/.moafs" >"$work/listed"
    ! ls -a "$mnt" | grep -q moafs || fail "$1: it is listed"
    ls -l "$mnt" >/dev/null
    "$MOAFS" info "$img" >"$work/said" 2>&1 || { cat "$work/said"; fail "$1: info"; }
    "$MOAFS" map -o "$work/map.svg" "$img" >"$work/said" 2>&1 || { cat "$work/said"; fail "$1: map"; }
    "$MOAFS" defrag -q "$mnt" >"$work/said" 2>&1 || { cat "$work/said"; fail "$1: defrag"; }
    "$MOAFS" defrag -q "$mnt/dir" >"$work/said" 2>&1 || { cat "$work/said"; fail "$1: defrag of a directory"; }
    "$MOAFS" stat "$mnt" >"$work/said" 2>&1 || { cat "$work/said"; fail "$1: stat"; }
    "$MOAFS" swap status "$mnt" >"$work/said" 2>&1 || { cat "$work/said"; fail "$1: swap status"; }
    [ "$(daemon_pid)" -gt 1 ] || fail "$1: .moafs/stats is not the daemon's"
    [ "$(stat -c %F "$mnt/.moafs/layout")" = "regular file" ] || fail "$1: .moafs/layout is not the daemon's"
    [ "$(cat "$canary")" = "$(canary_text)" ] || fail "$1: a file of the host was written to"
}

# A directory whose files are links.
make 64M
canary_text >"$canary"
"$MOAFS" mkdir "$img:/.moafs" "$img:/dir"
for file in layout defrag stats swap swapfile; do
    "$MOAFS" ln -s "$canary" "$img:/.moafs/$file"
done
mount_it
use "links in a directory"
umount_it
[ "$("$MOAFS" ls "$img:/.moafs" | wc -l)" = 5 ] || fail "the volume's own files are gone"
judge

# A link to a directory of the host, which is where the control files would be.
make 64M
canary_text >"$canary"
mkdir "$work/elsewhere"
for file in layout defrag stats swap swapfile; do
    ln -s "$canary" "$work/elsewhere/$file"
done
"$MOAFS" mkdir "$img:/dir"
"$MOAFS" ln -s "$work/elsewhere" "$img:/.moafs"
mount_it
use "a link to a directory"
umount_it
judge
say "$maker: passed"
