#!/bin/sh
# Privileges that a file carries: set-user-id, set-group-id and capabilities end with a foreign write, and the kernel knows it at
# once; what the kernel takes away in a user's name is not refused.
# usage: privileges.sh [ext2|ext3|ext4|f2fs|mke2fs|mkfs.f2fs]
. "$(dirname "$0")/common"
choose "$@"
have setpriv || skip "setpriv is not installed"
have python3 || skip "python3 is not installed"
make 64M
mount_it
chmod 755 "$work" "$mnt"

nobody() {
    setpriv --reuid 65534 --regid 65534 --clear-groups "$@"
}

# change HOW FILE: changes the contents as an ordinary user.
cat >"$work/change.py" <<'PYTHON'
import ctypes, mmap, os, sys
how, path = sys.argv[1:]
os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
fd = os.open(path, os.O_RDWR | (os.O_DIRECT if how == 'direct' else 0))
if how == 'write':
    os.pwrite(fd, b'x', 0)
elif how == 'direct':
    page = mmap.mmap(-1, 4096)
    page.write(b'\x7f' * 4096)
    os.pwritev(fd, [page], 0)
elif how == 'truncate':
    os.ftruncate(fd, 3000)
elif how == 'fallocate':
    os.posix_fallocate(fd, 0, 100000)
elif how == 'punch':
    fallocate = ctypes.CDLL(None, use_errno=True).fallocate
    fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
    if fallocate(fd, 3, 0, 8192) != 0:
        raise OSError(ctypes.get_errno(), 'fallocate')
elif how == 'copy':
    os.copy_file_range(fd, fd, 100, 0, 8192)
elif how == 'mmap':
    page = mmap.mmap(fd, 4096)
    page[0:5] = b'hello'
    page.flush()
PYTHON
change() {
    python3 "$work/change.py" "$@"
}

ways="write direct truncate fallocate punch copy mmap"
for how in $ways; do
    cp /usr/bin/env "$mnt/$how"
    chmod 6777 "$mnt/$how"
    # The kernel has the mode in its memory, as from an earlier run.
    [ "$(stat -c %a "$mnt/$how")" = 6777 ] || fail "chmod 6777"
    change "$how" "$mnt/$how" || fail "$how as a user"
    [ "$(stat -c %a "$mnt/$how")" = 777 ] || fail "after $how by a user the mode is $(stat -c %a "$mnt/$how")"
done

# The proof: a user replaces a set-user-id program, and runs it.
cp /usr/bin/env "$mnt/program"
chmod 4777 "$mnt/program"
nobody "$mnt/program" true || fail "running the program as it was"
nobody dd if=/usr/bin/id of="$mnt/program" conv=notrunc bs=64k status=none || fail "overwriting the program"
[ "$(nobody "$mnt/program" -u)" = 65534 ] || fail "set-user-id is in effect after a foreign write"

# Root keeps them, as everywhere.
chmod 6755 "$mnt/program"
printf x >>"$mnt/program"
[ "$(stat -c %a "$mnt/program")" = 6755 ] || fail "root's write cleared set-user-id"

if have setcap && have getcap; then
    for how in $ways; do
        cp /usr/bin/env "$mnt/cap.$how"
        chmod 777 "$mnt/cap.$how"
        setcap cap_net_admin=ep "$mnt/cap.$how" || fail "setcap"
        change "$how" "$mnt/cap.$how" || fail "$how as a user on a file with capabilities"
        [ -z "$(getcap "$mnt/cap.$how")" ] || fail "capabilities are there after $how by a user"
    done
    setcap cap_net_admin=ep "$mnt/cap.write"
    ! nobody setcap -r "$mnt/cap.write" 2>/dev/null || fail "a user took capabilities away"
    [ -n "$(getcap "$mnt/cap.write")" ] || fail "a user took capabilities away"
else
    echo "*** SKIPPED: $name: setcap is not installed"
fi

# Names in trusted. are root's.
if have setfattr; then
    setfattr -n trusted.x -v 1 "$mnt/program" || fail "root sets trusted.x"
    ! nobody getfattr -n trusted.x "$mnt/program" >/dev/null 2>&1 || fail "a user reads trusted.x"
    ! nobody setfattr -x trusted.x "$mnt/program" 2>/dev/null || fail "a user removes trusted.x"
fi

# What was cleared is on the volume.
umount_it
mount_it
for how in $ways; do
    [ "$(stat -c %a "$mnt/$how")" = 777 ] || fail "after a new mount $how has mode $(stat -c %a "$mnt/$how")"
done
umount_it
judge
say "$maker: passed"
