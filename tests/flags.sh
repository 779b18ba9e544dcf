#!/bin/sh
# Immutable and append-only files, set-group-id under ACLs, and other rules that the kernel leaves to the file system: the
# kernel's own ext4 on a loop device is the judge.
# usage: flags.sh [ext2|ext3|ext4|f2fs|mke2fs|mkfs.f2fs]
. "$(dirname "$0")/common"
choose "$@"
have python3 || skip "python3 is not installed"
have chattr || skip "chattr is not installed"
have mkfs.ext4 || skip "mkfs.ext4 is not installed"
make 64M
judge_dir=$work/judge
mkdir "$judge_dir"
truncate -s 32M "$work/judge.img"
mkfs.ext4 -q -F "$work/judge.img" >"$work/mkfs.log" 2>&1 || skip "mkfs.ext4 failed"
mount -o loop "$work/judge.img" "$judge_dir" 2>"$work/judge.log" || skip "no ext4 to compare with: $(cat "$work/judge.log")"
chmod 755 "$work"

# Prints one line for each thing that is tried: its error number.
cat >"$work/tries.py" <<'PYTHON'
import ctypes, errno, fcntl, mmap, os, struct, subprocess, sys
os.chdir(sys.argv[1])
checks_opens = sys.argv[2] == 'opens'
libc = ctypes.CDLL(None, use_errno=True)

def tell(what, act):
    try:
        act()
        print(what, 'ok')
    except OSError as error:
        print(what, errno.errorcode[error.errno])

def opened(path, flags, act=lambda fd: None):
    fd = os.open(path, flags)
    try:
        act(fd)
    finally:
        os.close(fd)

def fallocate(fd, mode, offset, length):
    libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
    if libc.fallocate(fd, mode, offset, length) != 0:
        raise OSError(ctypes.get_errno(), 'fallocate')

def shared(fd):
    page = mmap.mmap(fd, 5)
    page[0:5] = b'hello'
    page.flush()

def chattr(flag, path):
    subprocess.run(['chattr', flag, path], check=True)

def rename(old, new, flags):
    libc.renameat2.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
    if libc.renameat2(-100, old.encode(), -100, new.encode(), flags) != 0:
        raise OSError(ctypes.get_errno(), 'renameat2')

def on_file(kind, path):
    opens = [('wronly', os.O_WRONLY), ('rdwr', os.O_RDWR), ('append', os.O_WRONLY | os.O_APPEND),
             ('trunc', os.O_WRONLY | os.O_TRUNC), ('append trunc', os.O_WRONLY | os.O_APPEND | os.O_TRUNC), ('rdonly', os.O_RDONLY)]
    for name, flags in opens:
        if checks_opens or 'trunc' in name or name == 'rdonly':
            tell(f'{kind} open {name}', lambda: opened(path, flags))
    tell(f'{kind} write', lambda: opened(path, os.O_WRONLY, lambda fd: os.pwrite(fd, b'x', 0)))
    tell(f'{kind} append', lambda: opened(path, os.O_WRONLY | os.O_APPEND, lambda fd: os.write(fd, b'x')))
    tell(f'{kind} truncate', lambda: os.truncate(path, 10))
    tell(f'{kind} extend', lambda: os.truncate(path, 100000))
    if checks_opens:
        tell(f'{kind} map', lambda: opened(path, os.O_RDWR, shared))
    # An fd that may append may allocate; opened in another way, the open is refused.
    for name, mode in (('fallocate', 0), ('keep', 1), ('punch', 3), ('zero', 16), ('zero keep', 17)):
        for offset, length in ((0, 4096), (20000, 13000), (2 ** 20, 2 ** 61)):
            for how in [os.O_APPEND, 0] if checks_opens or mode not in (0, 1) else [os.O_APPEND]:
                tell(f'{kind} {name} {offset} {how}', lambda: opened(path, os.O_WRONLY | how, lambda fd: fallocate(fd, mode, offset, length)))
    tell(f'{kind} copy into', lambda: opened(path, os.O_WRONLY, lambda fd: opened('other', os.O_RDONLY, lambda source: os.copy_file_range(source, fd, 100, 0, 0))))
    attributes(kind, path)
    tell(f'{kind} link', lambda: os.link(path, 'linked'))
    tell(f'{kind} rename', lambda: os.rename(path, 'renamed'))
    tell(f'{kind} replace', lambda: os.rename('victim', path))
    tell(f'{kind} exchange', lambda: rename(path, 'other', 2))
    tell(f'{kind} whiteout', lambda: rename(path, 'renamed', 4))
    tell(f'{kind} unlink', lambda: os.unlink(path))

def attributes(kind, path):
    tell(f'{kind} chmod', lambda: os.chmod(path, 0o600))
    tell(f'{kind} chown', lambda: os.chown(path, 1, 1))
    tell(f'{kind} chown -1', lambda: os.chown(path, -1, -1))
    tell(f'{kind} touch', lambda: os.utime(path))
    tell(f'{kind} utimes', lambda: os.utime(path, (1, 1)))
    tell(f'{kind} setxattr', lambda: os.setxattr(path, 'user.x', b'1'))
    tell(f'{kind} trusted', lambda: os.setxattr(path, 'trusted.x', b'1'))
    tell(f'{kind} removexattr', lambda: os.removexattr(path, 'user.there'))
    tell(f'{kind} acl', lambda: os.setxattr(path, 'system.posix_acl_access', acl(4)))

def on_directory(kind, path):
    attributes(kind, path)
    tell(f'{kind} create', lambda: os.close(os.open(f'{path}/new', os.O_CREAT | os.O_WRONLY)))
    tell(f'{kind} mkdir', lambda: os.mkdir(f'{path}/newdir'))
    tell(f'{kind} symlink', lambda: os.symlink('x', f'{path}/newlink'))
    tell(f'{kind} link into', lambda: os.link('other', f'{path}/linked'))
    tell(f'{kind} move into', lambda: os.rename('victim', f'{path}/moved'))
    tell(f'{kind} move out', lambda: os.rename(f'{path}/child', 'child'))
    tell(f'{kind} unlink', lambda: os.unlink(f'{path}/child'))
    tell(f'{kind} rmdir', lambda: os.rmdir(f'{path}/childdir'))
    tell(f'{kind} write child', lambda: opened(f'{path}/child', os.O_WRONLY, lambda fd: os.write(fd, b'x')))
    tell(f'{kind} rename', lambda: os.rename(path, 'renamed-directory'))

def acl(bits):
    entries = [(1, 7, -1), (2, bits, 5), (4, 5, -1), (16, 7, -1), (32, 5, -1)]
    return struct.pack('<I', 2) + b''.join(struct.pack('<HHi', *entry) for entry in entries)

def fresh(kind, flag, run, make):
    path = kind.replace(' ', '-')
    make(path)
    for other in ('other', 'victim'):
        with open(other, 'w') as file:
            file.write('text' * 100)
    os.setxattr(path, 'user.there', b'1')
    chattr('+' + flag, path)
    try:
        run(kind, path)
    finally:
        tell(f'{kind} again', lambda: chattr('-' + flag, path))
    run(kind + ' cleared', path) if os.path.isfile(path) else None

def a_file(path):
    with open(path, 'wb') as file:
        file.write(b'0' * 30000)

def a_directory(path):
    os.makedirs(f'{path}/childdir')
    open(f'{path}/child', 'w').close()

fresh('immutable file', 'i', on_file, a_file)
for left in ('renamed', 'linked', 'other', 'victim'):
    os.path.exists(left) and os.unlink(left)
fresh('append-only file', 'a', on_file, a_file)
fresh('immutable directory', 'i', on_directory, a_directory)
fresh('append-only directory', 'a', on_directory, a_directory)

# A file that was open before.
a_file('before')
fd = os.open('before', os.O_RDWR)
chattr('+i', 'before')
tell('open before: write', lambda: os.pwrite(fd, b'x', 0))
tell('open before: truncate', lambda: os.ftruncate(fd, 0))
chattr('-i', 'before')

# Offsets before the beginning.
for name, whence in (('data', os.SEEK_DATA), ('hole', os.SEEK_HOLE)):
    for offset in (-1, -2 ** 63, 30000, 2 ** 62):
        tell(f'seek {name} {offset}', lambda: os.lseek(fd, offset, whence))
os.close(fd)

# Set-group-id when an ACL is set by the owner, a member of the file's group or not.
def as_user(gid, groups, act):
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups(groups); os.setresgid(gid, gid, gid); os.setresuid(1234, 1234, 1234)
            act()
            os._exit(0)
        except OSError as error:
            os._exit(error.errno)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

for member, gid, groups in (('none', 77, []), ('primary', 50, []), ('supplementary', 77, [50])):
    for mode in (0o2755, 0o2745, 0o6755):
        open('acl', 'w').close()
        os.chown('acl', 1234, 50)
        os.chmod('acl', mode)
        os.stat('acl')
        status = as_user(gid, groups, lambda: os.setxattr('acl', 'system.posix_acl_access', acl(4)))
        print(f'acl by member {member} of {mode:o}: {status} {os.stat("acl").st_mode & 0o7777:o}')
        os.unlink('acl')

# Set-group-id of what a member of a set-group-id directory's group makes there, and of what others make.
os.mkdir('group')
os.chown('group', 0, 50)
os.chmod('group', 0o2777)
for member, gid, groups in (('none', 77, []), ('primary', 50, []), ('supplementary', 77, [50])):
    os.umask(0)
    status = as_user(gid, groups, lambda: os.close(os.open('group/new', os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o2775)))
    made = os.stat('group/new')
    print(f'create by member {member}: {status} {made.st_mode & 0o7777:o} {made.st_gid}')
    os.unlink('group/new')

# The new change time after chattr shows at once. Inodes of 128 bytes keep whole seconds.
a_file('times')
first = os.stat('times').st_ctime_ns
subprocess.run(['sleep', '0.05' if first % 10 ** 9 else '1.05'])
chattr('+d', 'times')
print('ctime after chattr', os.stat('times').st_ctime_ns > first)

# Modes of setxattr; what an attribute is already changes no times.
def set_attribute(what, name, value, mode=0):
    first = os.stat('times').st_ctime_ns
    subprocess.run(['sleep', '0.05' if first % 10 ** 9 else '1.05'])
    tell(f'set {what}', lambda: os.setxattr('times', name, value, mode))
    print(f'ctime after set {what}', os.stat('times').st_ctime_ns > first)

both = os.XATTR_CREATE | os.XATTR_REPLACE
set_attribute('neither there', 'user.a', b'1', both)
set_attribute('first', 'user.a', b'1', os.XATTR_CREATE)
set_attribute('neither', 'user.a', b'2', both)
set_attribute('again', 'user.a', b'1')
set_attribute('again, replacing', 'user.a', b'1', os.XATTR_REPLACE)
set_attribute('to another value', 'user.a', b'2', os.XATTR_REPLACE)
set_attribute('an acl', 'system.posix_acl_access', acl(4))
set_attribute('the acl again', 'system.posix_acl_access', acl(4), both)

# Flags that new files and directories have of their directory's, of those that the format has.
GET, SET, VERSION, TOP = 0x80086601, 0x40086602, 0x80087601, 0x20000

def flags(path, new=None):
    fd = os.open(path, os.O_RDONLY)
    try:
        if new is None:
            return struct.unpack('I', fcntl.ioctl(fd, GET, bytes(4)))[0]
        fcntl.ioctl(fd, SET, struct.pack('I', new))
    finally:
        os.close(fd)

for flag in (0x1, 0x2, 0x4, 0x8, 0x40, 0x80, 0x8000, 0x10000):
    parent = f'parent-{flag:x}'
    os.mkdir(parent)
    try:
        flags(parent, flags(parent) | flag)
    except OSError:
        pass
    a_file(f'{parent}/file')
    os.mkdir(f'{parent}/directory')
    for path in (f'{parent}/file', f'{parent}/directory'):
        print('inherited', path, flags(path) & flag == flags(parent) & flag)
tell('top directory that is a file', lambda: flags('times', flags('times') | TOP))

# The number of the command says 8 bytes, but programs offer 4.
version = bytearray(b'\xff' * 8)
fd = os.open('times', os.O_RDONLY)
fcntl.ioctl(fd, VERSION, version)
os.close(fd)
print('behind the version', bytes(version[4:]))
PYTHON

compare() {
    rm -rf "$judge_dir/dir" "$mnt/dir"
    mkdir "$judge_dir/dir" "$mnt/dir"
    chmod 777 "$judge_dir/dir" "$mnt/dir"
    python3 "$work/tries.py" "$judge_dir/dir" "$1" >"$work/judge.out" 2>"$work/judge.err" || { cat "$work/judge.err"; fail "on ext4"; }
    python3 "$work/tries.py" "$mnt/dir" "$1" >"$work/ours.out" 2>"$work/ours.err" || { cat "$work/ours.err"; fail "on moafs"; }
    diff "$work/judge.out" "$work/ours.out" || fail "what ext4 says (<) and we (>), $1"
}

mount_it check_opens
compare opens
umount_it
judge
mount_it
compare writes
# Stores through a mapping that should not have been: they never reach the volume.
printf 'as it was' >"$mnt/kept"
chattr +i "$mnt/kept"
python3 - "$mnt/kept" 2>"$work/map.err" <<'PYTHON' || true
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
page = mmap.mmap(fd, 4)
page[0:4] = b'lost'
page.flush()
PYTHON
umount_it
mount_it
[ "$(cat "$mnt/kept")" = "as it was" ] || fail "a mapping changed an immutable file"
# Blocks are counted right after fsync, with their map blocks.
python3 - "$mnt/blocks" >"$work/blocks" <<'PYTHON' || fail "st_blocks"
import os, sys
fd = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)
os.write(fd, b'x' * 307200)
os.fstat(fd)
os.fsync(fd)
print(os.fstat(fd).st_blocks)
PYTHON
umount_it
mount_it
[ "$(stat -c %b "$mnt/blocks")" = "$(cat "$work/blocks")" ] || fail "st_blocks was $(cat "$work/blocks") after fsync, is $(stat -c %b "$mnt/blocks") now"
# The kernel keeps one file for one name in the control directory.
cp "$mnt/.moafs/stats" "$work/stats" || fail "cp of a control file"
[ -s "$work/stats" ] || fail "the copy of a control file is empty"
# A label that tune2fs(8) wrote to the device by itself would be gone with the next superblock: the mount refuses it.
if [ "$format" != f2fs ] && have tune2fs && have findmnt; then
    ! tune2fs -L other "$(findmnt -n -o SOURCE "$mnt")" >"$work/tune2fs" 2>&1 || fail "tune2fs sets the label of a mounted volume"
fi
umount_it
judge
say "$maker: passed, $(wc -l <"$work/judge.out") comparisons"
