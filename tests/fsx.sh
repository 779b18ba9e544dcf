#!/bin/sh
# Random reads, writes, mappings and reshaping of one file, by fsx.
# usage: fsx.sh [SEEDS] [OPERATIONS]   (the full run: 5 100000)
. "$(dirname "$0")/common"
FSX=${FSX:-$(command -v fsx || true)}
[ -n "$FSX" ] || skip "fsx is not installed (cargo install fsx)"
seeds=${1:-1}
operations=${2:-10000}

for block_size in 1024 4096 16384; do
    make ours "$block_size" 128M
    mount_it
    for seed in $(seq "$seeds"); do
        "$FSX" -q -f "$here/fsx.toml" -N "$operations" -S "$seed" -P "$work" "$mnt/file" >"$work/log" 2>&1 ||
            { tail -30 "$work/log"; fail "block size $block_size, seed $seed"; }
        rm -f "$mnt/file"
    done
    umount_it
    judge
    say "block size $block_size: $seeds seeds x $operations operations"
done
