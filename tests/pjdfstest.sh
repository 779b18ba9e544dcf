#!/bin/sh
# The POSIX rules as pjdfstest (https://github.com/saidsay-so/pjdfstest) sees them. Every case passes
# but those in pjdfstest.expected, each with its reason; a case listed there that passes is reported.
# usage: pjdfstest.sh [ext2|ext3|ext4|f2fs|mke2fs|mkfs.f2fs [MKFS-OPTION...]]
. "$(dirname "$0")/common"
PJDFSTEST=${PJDFSTEST:-$(command -v pjdfstest || true)}
[ -n "$PJDFSTEST" ] || skip "pjdfstest is not installed (cargo install pjdfstest)"

choose "$@"
[ $# = 0 ] || shift
make 256M "$@"
mount_it
chmod 755 "$work"
mkdir -m 777 "$mnt/t"
cp "$here/pjdfstest.toml" "$work/config.toml"
: >"$mnt/times"
grep -v '^#' "$here/pjdfstest.expected" | awk 'NF {print $1}' >"$work/expected"
# Inodes of 128 bytes keep whole seconds, in 32 bits: one has to pass before another time is seen.
if [ "$(stat -c %.9Z "$mnt/times" | cut -d. -f2)" = 000000000 ]; then
    sed -i 's/^naptime = .*/naptime = 1.1/' "$work/config.toml"
    printf '%s\n' utimensat::subsecond utimensat::y2038 >>"$work/expected"
fi
rm "$mnt/times"
sort -u -o "$work/expected" "$work/expected"
"$PJDFSTEST" -c "$work/config.toml" -p "$mnt/t" >"$work/log" 2>&1 || true
tail -1 "$work/log"
grep -E '^[a-z_0-9:]+ +.*FAILED' "$work/log" | awk '{print $1}' | sort -u >"$work/failed" || true
grep -qE 'passed|test result|[0-9]+ (ok|PASSED)' "$work/log" || { tail -20 "$work/log"; fail "pjdfstest did not run"; }
comm -13 "$work/failed" "$work/expected" | sed "s/^/$name: passes though expected to fail: /"
unexpected=$(comm -23 "$work/failed" "$work/expected")
umount_it
judge
if [ -n "$unexpected" ]; then
    for case in $unexpected; do grep -A3 "^$case " "$work/log" | head -6; done
    fail "cases that are not in pjdfstest.expected: $(echo "$unexpected" | wc -l)"
fi
say "$maker: $(wc -l <"$work/failed") failures, all expected"
