#!/bin/sh
# Random reads, writes, mappings and reshaping of one file, by fsx.
# usage: fsx.sh [ext2|f2fs|mke2fs|mkfs.f2fs] [SEEDS] [OPERATIONS]   (the full run: ext2 5 100000)
. "$(dirname "$0")/common"
FSX=${FSX:-$(command -v fsx || true)}
[ -n "$FSX" ] || skip "fsx is not installed (cargo install fsx)"
choose "$@"
seeds=${2:-1}
operations=${3:-10000}

# exercise [MKFS-OPTION...]
exercise() {
    make 128M "$@"
    mount_it
    for seed in $(seq "$seeds"); do
        "$FSX" -q -f "$here/fsx.toml" -N "$operations" -S "$seed" -P "$work" "$mnt/file" >"$work/log" 2>&1 ||
            { tail -30 "$work/log"; fail "$maker${*:+ $*}, seed $seed, $operations operations"; }
        rm -f "$mnt/file"
    done
    umount_it
    judge
    say "$maker${*:+ $*}: $seeds seeds x $operations operations"
}

case $format in
ext2)
    exercise -b 1024
    exercise -b 4096
    exercise -b 16384
    ;;
f2fs)
    exercise
    exercise -O extra_attr,inode_checksum,flexible_inline_xattr
    ;;
esac
