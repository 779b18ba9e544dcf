#!/bin/sh
# Volumes on the partitions of an image: by number, name, label and UUID, the only one without a choice, and by their bytes; what lies
# beside them stays as it is.
# usage: partitions.sh [ext2|f2fs|ext3|ext4]

. "$(dirname "$0")/common"
choose "$@"
have sfdisk || skip "sfdisk is not installed"

disk=$work/disk.img
new_disk() {
    rm -f "$disk"
    truncate -s 300M "$disk"
    sfdisk -q "$disk" >/dev/null
}

make_on() {
    "$MOAFS" mkfs -q -t "$maker" "$@" >"$work/mkfs.log" 2>&1 || { cat "$work/mkfs.log"; fail "mkfs $*"; }
}

# expect_words TEXT COMMAND...: the command fails, and says that.
expect_words() {
    words=$1
    shift
    "$@" >"$work/out" 2>&1 && fail "succeeded: $*"
    grep -qF "$words" "$work/out" || { cat "$work/out"; fail "does not say '$words': $*"; }
    ! grep -q "mkfs" "$work/out" || { cat "$work/out"; fail "suggests mkfs: $*"; }
}

# judge_part FIRST SECTORS: the judges look at a copy of the partition.
judge_part() {
    dd if="$disk" of="$img" bs=1M skip=$(($1 / 2048)) count=$(($2 / 2048)) status=none
    judge
}

# checksum of everything outside of partition 2, which has the sectors from 67584 on up to 272384.
outside() {
    { head -c $((67584 * 512)) "$disk"; tail -c +$((272384 * 512 + 1)) "$disk"; } | sha256sum
}

new_disk <<EOF
label: gpt
start=2048, size=65536, name=boot
start=67584, size=204800, name=root
start=272384, size=204800, name=home, uuid=11111111-2222-3333-4444-555555555555
EOF

expect_words "has no volume that moafs knows" "$MOAFS" ls "$disk"
grep -q "^ *2 .*root" "$work/out" || fail "partition 2 is not listed"
"$MOAFS" mkfs -q -t "$maker" "$disk" </dev/null >"$work/out" 2>&1 && fail "mkfs overwrites a partition table unasked"

before=$(outside)
make_on -L first "$disk@2"
echo one >"$work/one"
"$MOAFS" cp "$work/one" "$disk:/one"
[ "$("$MOAFS" cat "$disk@2:/one")" = one ] || fail "the only volume is not that of partition 2"
"$MOAFS" fsck -n -f "$disk" >/dev/null || fail "fsck of the only volume"

"$MOAFS" mount "$disk@root" "$mnt"
dd if=/dev/urandom of="$mnt/fill" bs=1M count=200 conv=fsync status=none 2>/dev/null || true
rm "$mnt/fill"
echo two >"$mnt/two"
expect_words "is in use" "$MOAFS" ls "$disk@3"
umount "$mnt"
flock -w 10 "$disk" true || fail "the image was not released"
[ "$(outside)" = "$before" ] || fail "bytes outside of the partition have changed"
judge_part 67584 204800

make_on -L second "$disk@3"
expect_words "has several volumes" "$MOAFS" ls "$disk"
grep -q "first" "$work/out" && grep -q "second" "$work/out" || fail "the labels are not listed"
uuid=$("$MOAFS" info --json "$disk@3" | sed -n 's/.*"uuid": "\([^"]*\)".*/\1/p' | head -1)
for choice in 3 home second "$uuid" 11111111-2222-3333-4444-555555555555; do
    "$MOAFS" info "$disk@$choice" | grep -q second || fail "@$choice is not partition 3"
done
expect_words "is no partition" "$MOAFS" ls "$disk@7"
expect_words "is no partition" "$MOAFS" ls "$disk@nothing"
[ "$("$MOAFS" cat "$disk@first:/two")" = two ] || fail "partition 2 was harmed"

"$MOAFS" mount -o "ro,offset=$((67584 * 512)),sizelimit=$((204800 * 512))" "$disk" "$mnt"
[ "$(cat "$mnt/two")" = two ] || fail "-o offset= is not partition 2"
umount "$mnt"
flock -w 10 "$disk" true || fail "the image was not released"

expect_words "is not a multiple of 512" "$MOAFS" mount -o offset=100 "$disk" "$mnt"

# The table at the start is lost: its copy at the end is as good.
dd if=/dev/zero of="$disk" bs=512 seek=1 count=33 conv=notrunc status=none
[ "$("$MOAFS" cat "$disk@first:/two")" = two ] || fail "the table's copy is not used"

# An image that was cut short.
new_disk <<EOF
label: dos
start=2048, size=204800, type=83
start=206848, size=407552, type=5
start=208896, size=204800, type=83
start=415744, size=198656, type=83
EOF
make_on "$disk@5"
[ "$("$MOAFS" ls "$disk@5:/" | wc -l)" = "$("$MOAFS" ls "$disk:/" | wc -l)" ] || fail "the logical partition is not the only volume"
dd if="$disk" bs=512 skip=208896 count=204800 of="$img" status=none
judge
truncate -s 150M "$disk"
expect_words "does not lie on the disk" "$MOAFS" ls "$disk@5"

# Blocks of a volume may be smaller than the sectors of its device.
undo() {
    [ -z "${device:-}" ] || losetup -d "$device"
}
if [ "$format" = f2fs ]; then
    say "$maker: blocks are never smaller than sectors"
elif make 64M -b 1024 && device=$(losetup -f --show -b 4096 "$img" 2>"$work/out"); then
    "$MOAFS" mount "$device" "$mnt" || fail "a volume with blocks of 1 KiB on sectors of 4 KiB"
    "$MOAFS" stat "$mnt" | grep -q "fuseblk on the device" || fail "a volume on sectors of 4 KiB is not mounted as a device"
    seq 100000 >"$mnt/numbers"
    umount "$mnt"
    "$MOAFS" mount "$device" "$mnt" || fail "a second mount on sectors of 4 KiB"
    [ "$(seq 100000 | cksum)" = "$(cksum <"$mnt/numbers")" ] || fail "contents on sectors of 4 KiB"
    umount "$mnt"
    losetup -d "$device"
    device=
    wait_for_release || fail "the image was not released"
    judge
else
    echo "*** SKIPPED: $name: no loop device with sectors of 4096 bytes here: $(cat "$work/out")"
fi
say "$maker: partitions are found and kept apart"
