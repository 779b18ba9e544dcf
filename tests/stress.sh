#!/bin/sh
# stress-ng's stressors of file systems, two processes each, which verify what they read; then the checkers.
# usage: stress.sh [ext2|ext3|ext4|f2fs|mke2fs|mkfs.f2fs] SECONDS   for each stressor; without them it is left out
# (./test has no time for it)
# Left out is file-ioctl: FIOQSIZE asks the kernel, which knows no block count of a FUSE file that was just written.
. "$(dirname "$0")/common"
choose "$@"
seconds=${2:-}
[ -n "$seconds" ] || skip "it runs by hand: stress.sh $maker 2"
have stress-ng || skip "stress-ng is not installed"
stressors="access chattr chdir chmod chown copy-file dentry dir dirdeep dirmany fallocate fiemap filename flock getdent hdd
    inode-flags io iomix lease link locka lockf lockofd mknod mmap open readahead rename revio seek sendfile symlink
    sync-file utime xattr"

make 4G
mount_it
for stressor in $stressors; do
    stress-ng --"$stressor" 2 --temp-path "$mnt" --timeout "$seconds" --verify >"$work/log" 2>&1 ||
        { cat "$work/log"; fail "$maker: $stressor"; }
    ! grep -qE "fail:|error:" "$work/log" || { cat "$work/log"; fail "$maker: $stressor"; }
done
left=$(ls -A "$mnt" | grep -vE '^(lost\+found|\.moafs)$' || true)
[ -z "$left" ] || fail "$maker: files are left: $left"
umount_it
judge
say "$maker: $(echo $stressors | wc -w) stressors, $seconds s each"
