#!/bin/sh
# Several processes, many mounts, kills and unmounts: nothing that was synced may be lost, the checkers stay silent,
# all space comes back.
#
#   sh tests/age.sh [ext2|ext3|ext4|f2fs] [SECONDS] [FIRST-SEED]     each seed takes 30 seconds
here=$(dirname "$0")
. "$here/common"
choose "${1:-ext2}"
seconds=${2:-60}
seed=${3:-1}
have python3 || skip "python3 is not installed"
case $format in
ext2 | ext4) have e2fsck || skip "e2fsck is not installed" ;;
f2fs) have fsck.f2fs || skip "fsck.f2fs is not installed" ;;
esac

end=$(($(date +%s) + seconds))
while :; do
    # Sizes and fill levels by turns: small and large, empty and nearly full.
    case $((seed % 4)) in
    0) size=96 fill=0 ;;
    1) size=256 fill=40 ;;
    2) size=128 fill=80 ;;
    3) size=512 fill=90 ;;
    esac
    mkdir "$work/age"
    python3 "$here/age.py" --moafs "$MOAFS" --format "$maker" --dir "$work/age" --seconds 30 --seed "$seed" --size "$size" \
        --fill "$fill" ${MOAFS_OPTIONS:+--mount "$MOAFS_OPTIONS"} || fail "seed $seed on $size MiB, filled by $fill %"
    rm -rf --one-file-system "$work/age"
    seed=$((seed + 1))
    [ "$(date +%s)" -lt "$end" ] || break
done
