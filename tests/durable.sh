#!/bin/sh
# What is on the disk when the daemon is killed: everything that came before syncfs, and what is older than the ages of the
# mount options; everything at once where that is asked for. On F2FS also what `disable_roll_forward` gives up.
# usage: durable.sh [ext2|ext3|ext4|f2fs|mke2fs|mkfs.f2fs]
. "$(dirname "$0")/common"
choose "$@"
have python3 || skip "python3 is not installed"
make 64M

cat >"$work/durable.py" <<'PYTHON'
import os, sys
part, top = sys.argv[1:]
os.chdir(top)

def contents(number):
    return b'%d\n' % number * (100 + number * 50)

if part == 'make':
    for number in range(40):
        os.makedirs(f'd{number % 5}/e', exist_ok=True)
        with open(f'd{number % 5}/f{number}', 'wb') as file:
            file.write(contents(number))
    for number in range(0, 40, 4):
        os.rename(f'd{number % 5}/f{number}', f'd{number % 5}/e/g{number}')
        os.link(f'd{number % 5}/e/g{number}', f'h{number}')
    for number in range(1, 40, 4):
        os.unlink(f'd{number % 5}/f{number}')
    os.setxattr('d2/f2', 'user.colour', b'green')
    os.chmod('d3/f3', 0o600)
elif part == 'look':
    found = {os.path.relpath(os.path.join(at, name), '.') for at, _, names in os.walk('.') for name in names}
    found = {name for name in found if not name.startswith('.moafs')}
    kept = {f'd{number % 5}/f{number}': number for number in range(40) if number % 4 > 1}
    kept |= {f'd{number % 5}/e/g{number}': number for number in range(0, 40, 4)}
    kept |= {f'h{number}': number for number in range(0, 40, 4)}
    assert found == set(kept), found ^ set(kept)
    for name, number in kept.items():
        with open(name, 'rb') as file:
            assert file.read() == contents(number), name
    assert os.getxattr('d2/f2', 'user.colour') == b'green'
    assert os.stat('d3/f3').st_mode & 0o777 == 0o600
PYTHON

# survives WHAT OPTIONS COMMAND...: what was made before COMMAND is there after a kill that follows it.
survives() {
    what=$1
    make 64M
    mount_it "$2"
    shift 2
    python3 "$work/durable.py" make "$mnt" || fail "$what: making files"
    "$@" || fail "$what"
    kill -KILL "$(daemon_pid)"
    umount -l "$mnt"
    wait_for_release || fail "$what: the image was not released"
    mount_it
    python3 "$work/durable.py" look "$mnt" || fail "$what: not everything is there after a kill"
    umount_it
    judge
}

kill_it() {
    kill -KILL "$(daemon_pid)"
    umount -l "$mnt"
    wait_for_release || fail "the image was not released"
}

# What was fsynced after the last checkpoint is given up where that is asked for, and for good; the volume goes on.
gives_up() {
    make 64M
    mount_it commit=3600,dirty_age=3600
    echo kept >"$mnt/kept"
    sync -f "$mnt/kept"
    for number in 1 2 3; do
        seq "$number"000 >"$mnt/lost$number"
        sync "$mnt/lost$number"
    done
    seq 5000 >"$mnt/kept"
    sync "$mnt/kept"
    kill_it
    mount_it disable_roll_forward >"$work/said" 2>&1 || { cat "$work/said"; fail "a mount with disable_roll_forward"; }
    grep -q "given up; files concerned: 4" "$work/said" || { cat "$work/said"; fail "what was given up is not told"; }
    [ "$(ls "$mnt")" = kept ] && [ "$(cat "$mnt/kept")" = kept ] || fail "not the state of the last checkpoint"
    for number in $(seq 100); do
        seq "$number" $((number * 50)) >"$mnt/new$number"
    done
    sync "$mnt/new7"
    kill_it
    mount_it
    [ "$(cksum <"$mnt/new7")" = "$(seq 7 350 | cksum)" ] || fail "what was fsynced after a mount with disable_roll_forward"
    [ ! -e "$mnt/lost1" ] && [ "$(cat "$mnt/kept")" = kept ] || fail "what was given up is there again"
    rm -rf "$mnt"/new*
    umount_it
    judge
}

# at_once WHAT OPTIONS FLAG CONTENTS: changes of names in a directory, and those of a file if CONTENTS, are on the disk when their call
# returns: with these mount options, or where the directory and the file have a flag.
at_once() {
    make 64M
    mount_it "commit=3600,dirty_age=3600$2"
    mkdir "$mnt/dir"
    echo old >"$mnt/dir/file"
    echo old >"$mnt/dir/moves"
    [ -z "$3" ] || chattr "$3" "$mnt/dir" "$mnt/dir/file" || fail "$1: chattr"
    sync -f "$mnt"
    [ -z "$4" ] || echo new >"$mnt/dir/file"
    [ -z "$4" ] || truncate -s 3 "$mnt/dir/file"
    mkdir "$mnt/dir/made"
    mv "$mnt/dir/moves" "$mnt/dir/moved"
    ln -s target "$mnt/dir/link"
    kill_it
    mount_it
    [ "$(ls "$mnt/dir" | tr '\n' ' ')" = "file link made moved " ] || { ls -l "$mnt/dir"; fail "$1: names after a kill"; }
    [ -z "$4" ] || [ "$(cat "$mnt/dir/file")" = new ] || fail "$1: contents after a kill"
    umount_it
    judge
}

at_once "-o dirsync" ,dirsync "" ""
at_once "-o sync" ,sync "" contents
at_once "chattr +D" "" +D ""
at_once "chattr +S" "" +S contents
survives syncfs commit=3600,dirty_age=3600 sync -f "$mnt/d0"
survives "the age of data and the commit interval" commit=0.5,dirty_age=0.5 sleep 4
[ "$format" != f2fs ] || gives_up
say "$maker: passed"
