#!/bin/sh
# Random reads, writes, mappings and reshaping: of one file, by fsx; of several that grow by turns, by reshape.py, which
# knows zero range and preallocation besides. What reshape.py leaves is compared again on a new mount, and on one of the
# kernel's ext4.
# usage: fsx.sh [ext2|ext3|ext4|f2fs|mke2fs|mkfs.f2fs] [SEEDS] [OPERATIONS]   (the full run: ext2 5 100000)
. "$(dirname "$0")/common"
FSX=${FSX:-$(command -v fsx || true)}
[ -n "$FSX" ] || skip "fsx is not installed (cargo install fsx)"
choose "$@"
seeds=${2:-1}
operations=${3:-10000}

# exercise [MKFS-OPTION...]
exercise() {
    make 256M "$@"
    mount_it
    rm -rf "$work/kept"
    mkdir "$work/kept"
    for seed in $(seq "$seeds"); do
        "$FSX" -q -f "$here/fsx.toml" -N "$operations" -S "$seed" -P "$work" "$mnt/file" >"$work/log" 2>&1 ||
            { tail -30 "$work/log"; fail "$maker${*:+ $*}, seed $seed, $operations operations"; }
        rm -f "$mnt/file"
        reshape "$@"
    done
    umount_it
    judge
    if [ -n "$(ls "$work/kept")" ]; then
        mount_it ro
        python3 "$here/reshape.py" look "$mnt" "$work/kept" || fail "$maker${*:+ $*}: files changed across a remount"
        umount_it
        look_by_kernel "$@"
    fi
    say "$maker${*:+ $*}: $seeds seeds x $operations operations"
}

reshape() {
    have python3 || { echo "*** SKIPPED: $name: python3 is not installed"; return; }
    python3 "$here/reshape.py" work "$mnt" "$seed" $((operations / 5)) "$work/kept" >"$work/reshaped" ||
        fail "$maker${*:+ $*}: reshape.py, seed $seed, $((operations / 5)) operations"
    # Only extents can say of a block beyond the end that it holds nothing yet.
    refusable=preallocate
    ! has_extents || refusable=
    refused=$(sed -n 's/^refused: //p' "$work/reshaped")
    [ -z "$refused" ] || [ "$refused" = "$refusable" ] || fail "$maker${*:+ $*}: refused were $refused"
}

has_extents() {
    [ "$format" = ext4 ] && dumpe2fs -h "$img" 2>/dev/null | grep -q '^Filesystem features:.* extent'
}

look_by_kernel() {
    [ "$format" != f2fs ] || return 0
    mount -t ext4 -o loop,ro "$img" "$mnt" 2>"$work/log" ||
        { echo "*** SKIPPED: $name: on a mount of the kernel's ext4: $(cat "$work/log")"; return; }
    python3 "$here/reshape.py" look "$mnt" "$work/kept" || fail "$maker${*:+ $*}: the kernel sees other bytes"
    umount "$mnt"
    for _ in $(seq 100); do
        [ -n "$(losetup -j "$img")" ] || return 0
        sleep 0.05
    done
    fail "the loop device stays"
}

case $maker in
ext3 | ext4)
    exercise -b 1024
    exercise -b 4096
    # With map blocks as ext2 has them, and with a journal.
    [ "$maker" = ext3 ] || exercise -O ^extent,^64bit
    ;;
ext2 | mke2fs)
    exercise -b 1024
    exercise -b 4096
    exercise -b 16384
    ;;
*)
    exercise
    exercise -O extra_attr,inode_checksum,flexible_inline_xattr
    ;;
esac
