#!/bin/sh
# File handles (name_to_handle_at, open_by_handle_at), as NFS servers use them: they find their file also when the kernel has
# forgotten it, after a new mount; those of removed files are stale, also when another file has the inode number.
# usage: handles.sh [ext2|ext3|ext4|f2fs|mke2fs|mkfs.f2fs]
. "$(dirname "$0")/common"
choose "$@"
have python3 || skip "python3 is not installed"
make 128M

cat >"$work/handles.py" <<'PYTHON'
import ctypes, errno, os, pickle, time, sys
libc = ctypes.CDLL(None, use_errno=True)
step, mnt, state = sys.argv[1:]

class Handle(ctypes.Structure):
    _fields_ = [('length', ctypes.c_uint), ('kind', ctypes.c_int), ('bytes', ctypes.c_ubyte * 128)]

def handle_of(path, flags=0):
    handle, mount = Handle(length=128), ctypes.c_int()
    if libc.name_to_handle_at(-100, path.encode(), ctypes.byref(handle), ctypes.byref(mount), flags) != 0:
        raise OSError(ctypes.get_errno(), path)
    return bytes(handle)

def open_handle(saved, flags=os.O_RDONLY):
    root = os.open(mnt, os.O_RDONLY)
    handle = Handle.from_buffer_copy(saved)
    fd = libc.open_by_handle_at(root, ctypes.byref(handle), flags)
    error = ctypes.get_errno()
    os.close(root)
    return fd if fd >= 0 else -error

def put(path, text):
    with open(f'{mnt}/{path}', 'w') as file:
        file.write(text)

if step == 'make':
    os.makedirs(f'{mnt}/a/b/c')
    for number in range(50):
        put(f'a/b/c/f{number}', f'file {number}')
    put('gone', 'gone')
    put('reused', 'before')
    paths = ['a', 'a/b/c', 'gone', 'reused', ''] + [f'a/b/c/f{number}' for number in range(50)]
    saved = {path: (handle_of(f'{mnt}/{path}'), os.stat(f'{mnt}/{path}').st_ino) for path in paths}
    pickle.dump(saved, open(state, 'wb'))

saved = pickle.load(open(state, 'rb'))
if step == 'find':
    for path, (handle, inode) in saved.items():
        if path in ('gone', 'reused'):
            continue
        fd = open_handle(handle)
        assert fd >= 0, (path, os.strerror(-fd))
        assert os.fstat(fd).st_ino == inode, path
        if '/f' in path:
            assert os.read(fd, 100).decode() == 'file ' + path.split('f')[-1], path
        # Its name is found, too: the kernel asks for the parents of a directory.
        if '/f' not in path:
            assert os.readlink(f'/proc/self/fd/{fd}') == os.path.normpath(f'{mnt}/{path}'), os.readlink(f'/proc/self/fd/{fd}')
        os.close(fd)
if step == 'remove':
    os.unlink(f'{mnt}/gone')
    inode = saved['reused'][1]
    os.unlink(f'{mnt}/reused')
    # The number is free once the inode has been reaped, and that is durable.
    time.sleep(1)
    os.sync()
    # Files are made until one has the number of the one that was removed.
    for number in range(2000):
        put(f'again{number}', 'after')
        if os.stat(f'{mnt}/again{number}').st_ino == inode:
            break
    else:
        sys.exit('the inode number did not come back')
if step in ('remove', 'stale'):
    for path in ('gone', 'reused'):
        fd = open_handle(saved[path][0])
        assert fd == -errno.ESTALE, (path, fd)
    # A handle that was never given out.
    wrong = bytearray(saved['gone'][0])
    for at in range(8, 16):
        wrong[at] = 0xfe
    fd = open_handle(bytes(wrong))
    assert fd == -errno.ESTALE, fd
PYTHON
handles() {
    python3 "$work/handles.py" "$1" "$mnt" "$work/handles.state" || fail "$1"
}

mount_it
handles make
handles find
umount_it
mount_it
handles find
handles remove
umount_it
mount_it
handles stale
handles find
umount_it
mount_it ro
handles find
umount_it
judge
say "$maker: passed"
