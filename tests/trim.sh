#!/bin/sh
# fstrim: an image file gives the space of free blocks back, also beside writers that take it, and nothing else.
# usage: trim.sh [ext2|ext3|ext4|f2fs|mke2fs|mkfs.f2fs]
. "$(dirname "$0")/common"
choose "$@"
have fstrim || skip "fstrim is not installed (util-linux)"
make 256M
mount_it

# Kilobytes of the image that take space on the host.
taken() {
    du -k "$img" | cut -f1
}

head -c 3000000 /dev/urandom >"$mnt/kept"
kept=$(cksum <"$mnt/kept")
for number in 1 2 3 4 5; do
    head -c 20000000 /dev/urandom >"$mnt/gone$number"
done
sync
full=$(taken)
rm "$mnt"/gone*
# The kernel forgets a removed file late on a busy machine, and until then it counts as in use.
for _ in $(seq 50); do
    fstrim "$mnt" || fail "fstrim"
    [ "$(taken)" -ge $((full - 80000)) ] || break
    sleep 0.1
done
[ "$(taken)" -lt $((full - 80000)) ] || fail "the image takes $(taken) KB, $full before fstrim"
[ "$(cksum <"$mnt/kept")" = "$kept" ] || fail "a file has changed"

# Beside writers.
writer() {
    for number in $(seq 40); do
        head -c $((number * 50000)) /dev/urandom >"$mnt/writer$1.$number"
        cksum <"$mnt/writer$1.$number" >"$work/writer$1.$number"
        [ $((number % 3)) = 0 ] && rm "$mnt/writer$1.$((number - 2))" "$work/writer$1.$((number - 2))"
        [ $((number % 10)) = 0 ] && sync "$mnt/writer$1.$number"
    done
}
writer 1 &
first=$!
writer 2 &
second=$!
while kill -0 $first 2>/dev/null || kill -0 $second 2>/dev/null; do
    fstrim "$mnt" || fail "fstrim beside writers"
done
wait
fstrim -m 1M "$mnt" || fail "fstrim of long runs"

# A part: no more than its length, wherever the free runs begin and end. fstrim -v says "... (BYTES bytes) trimmed".
trimmed() {
    fstrim -v -o "$1" -l "$2" "$mnt" | sed -n 's/.*(\([0-9]*\) bytes).*/\1/p'
}
sum=0
for at in $(seq 0 25); do
    part=$(trimmed $((at * 10))M 10M)
    [ "$part" -le $((10 << 20)) ] || fail "$part bytes were trimmed of 10 MiB"
    sum=$((sum + part))
done
[ "$sum" -ge $((80 << 20)) ] || fail "$sum bytes were trimmed in parts"

! fstrim -o 1T "$mnt" 2>/dev/null || fail "a range behind the end"
! fstrim -m 1T "$mnt" 2>/dev/null || fail "a run longer than the volume"
if have setpriv; then
    chmod 755 "$work" "$mnt"
    ! setpriv --reuid 65534 --regid 65534 --clear-groups fstrim "$mnt" 2>/dev/null || fail "fstrim by a user"
fi
umount_it
judge
mount_it ro
! fstrim "$mnt" 2>/dev/null || fail "fstrim of a read-only mount"
[ "$(cksum <"$mnt/kept")" = "$kept" ] || fail "a file has changed"
for sum in "$work"/writer*; do
    [ "$(cksum <"$mnt/$(basename "$sum")")" = "$(cat "$sum")" ] || fail "$(basename "$sum") has changed"
done
umount_it
say "$maker: passed"
