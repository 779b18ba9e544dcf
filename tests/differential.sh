#!/bin/sh
# The same calls on a mount of moafs and on the kernel's ext4: results, errors, attributes, times and contents have to be the same.
# usage: differential.sh [ext2|ext3|ext4|f2fs|mke2fs|mkfs.f2fs] [OPTION-OF-differential.py...]
. "$(dirname "$0")/common"
choose "$@"
[ $# = 0 ] || shift
have python3 || skip "python3 is not installed"
have mkfs.ext4 || skip "mkfs.ext4 is not installed"
for tool in setpriv unshare setfattr getfattr setcap; do
    have $tool || skip "$tool is not installed"
done
make 1G
kernel_dir=$work/kernel
mkdir "$kernel_dir"
truncate -s 1G "$work/kernel.img"
mkfs.ext4 -q -F "$work/kernel.img" >"$work/mkfs.log" 2>&1 || skip "mkfs.ext4 failed"
mount -o loop "$work/kernel.img" "$kernel_dir" 2>"$work/kernel.log" || skip "no ext4 to compare with: $(cat "$work/kernel.log")"
chmod 755 "$work"
mount_it

mkdir "$kernel_dir/cases" "$mnt/cases"
python3 "$here/differential.py" "$@" "$kernel_dir/cases" "$mnt/cases" >"$work/report" 2>&1 || { cat "$work/report"; fail "$maker: calls differ"; }
umount_it
judge
say "$maker: $(awk '{ all += $2 } END { print all }' "$work/report") answers are those of ext4"
