#!/usr/bin/env python3
"""How long a bystander waits while one user makes long calls: p50, p99 and most of statvfs and listxattr, in milliseconds.

    bystander.py DIR [SECONDS] [USERS]     as root, on a mounted volume with a few GB of room
"""
import ctypes, multiprocessing, os, sys, time

directory, seconds, users = sys.argv[1], float((sys.argv[2:] or ['5'])[0]), int((sys.argv[3:] or ['8'])[0])
LARGE = 200 << 20
libc = ctypes.CDLL(None, use_errno=True)
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]


def allocate(path):
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(fd, 0, LARGE)
    os.ftruncate(fd, 0)


def punch(path):
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(fd, 0, LARGE // 4)
    libc.fallocate(fd, 3, 0, LARGE // 4)
    os.ftruncate(fd, 0)


def copy(path):
    source, target = (os.open(path + end, os.O_RDWR | os.O_CREAT) for end in ('', '.copy'))
    if os.fstat(source).st_size == 0:
        os.write(source, b'x' * (16 << 20))
    os.copy_file_range(source, target, 16 << 20, 0, 0)
    os.ftruncate(target, 0)


def write_fsync(path):
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    os.pwrite(fd, b'y' * (1 << 20), 0)
    os.fsync(fd)


def small_files(path):
    os.makedirs(path, exist_ok=True)
    for number in range(100):
        with open(f'{path}/{number}', 'w') as file:
            file.write('z' * 3000)
    for number in range(100):
        os.unlink(f'{path}/{number}')


def work(act, path, until):
    while time.time() < until:
        try:
            fds = len(os.listdir('/proc/self/fd'))
            act(path)
        except OSError as error:
            print(f'{act.__name__}: {error}', file=sys.stderr)
            return
        finally:
            os.closerange(3, fds + 8)


for act in (allocate, punch, copy, write_fsync, small_files):
    until = time.time() + seconds
    args = [(act, f'{directory}/{act.__name__}{user}', until) for user in range(users)]
    workers = [multiprocessing.Process(target=work, args=arg) for arg in args]
    for worker in workers:
        worker.start()
    took = []
    while time.time() < until:
        for call in (lambda: os.statvfs(directory), lambda: os.listxattr(directory)):
            begin = time.monotonic()
            call()
            took.append((time.monotonic() - begin) * 1000)
        time.sleep(0.005)
    for worker in workers:
        worker.join()
    took.sort()
    print(f'{act.__name__:12} {took[len(took) // 2]:8.2f} {took[len(took) * 99 // 100]:8.2f} {took[-1]:8.2f}  of {len(took)}', flush=True)
