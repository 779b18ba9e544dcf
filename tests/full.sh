#!/bin/sh
# A full volume under several processes, kills and unmounts: names change where directories have room, what was synced stays,
# what a write has taken reaches the volume, the checkers are silent, all space comes back.
#
#   sh tests/full.sh [ext2|ext3|ext4|f2fs] [SECONDS] [FIRST-SEED]     each seed takes 15 seconds and what its last turn needs
here=$(dirname "$0")
. "$here/common"
choose "${1:-ext2}"
seconds=${2:-20}
seed=${3:-1}
have python3 || skip "python3 is not installed"
case $format in
ext2 | ext4) have e2fsck || skip "e2fsck is not installed" ;;
f2fs) have fsck.f2fs || skip "fsck.f2fs is not installed" ;;
esac

end=$(($(date +%s) + seconds))
while :; do
    case $((seed % 3)) in
    0) size=128 ;;
    1) size=64 ;;
    2) size=96 ;;
    esac
    mkdir "$work/full"
    python3 "$here/full.py" --moafs "$MOAFS" --format "$maker" --dir "$work/full" --seconds 12 --seed "$seed" --size "$size" \
        ${MOAFS_OPTIONS:+--mount "$MOAFS_OPTIONS"} || fail "seed $seed on $size MiB"
    rm -rf --one-file-system "$work/full"
    seed=$((seed + 1))
    [ "$(date +%s)" -lt "$end" ] || break
done
