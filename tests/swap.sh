#!/bin/sh
# The kernel swaps to a mounted volume: a program inside a small memory cgroup, files written beside it, everything checked.
# usage: swap.sh [ext2|ext3|ext4|f2fs|mke2fs|mkfs.f2fs] [short|broken|pages N|minutes N|sor]
#   short        112 MiB of patterns within 64 MiB, then what `broken` does (default)
#   broken       the device fails while pages are out: the program gets SIGBUS, the mount answers, the volume is whole
#   pages N      until N pages were swapped out and in, contents checked
#   minutes N    pressure and files for so long
#   sor          Scimark2's SOR beside postmark, the device's requests recorded: swap areas against the start of the disk
# MEMORY_LOAD is the program (default: examples/memory_load beside the binary). Nothing but that program gets near the limit: no
# other process of the machine is pushed out by this test.
. "$(dirname "$0")/common"
choose "$@"
what=${2:-short}
count=${3:-}
load=${MEMORY_LOAD:-$(dirname "$MOAFS")/examples/memory_load}
[ -x "$load" ] || skip "no program at $load (cargo build -p moafs-swap --example memory_load)"
have losetup || skip "losetup is not installed"
[ -e /dev/loop-control ] || skip "there are no loop devices"
[ -e /proc/swaps ] || skip "this kernel cannot swap"

# -- the memory cgroup, of either version

group=
v1=/sys/fs/cgroup/memory
v2=/sys/fs/cgroup
group_name=moafs-swap-test.$$

limit_group() {
    if [ -e "$v1/memory.limit_in_bytes" ]; then
        group=$v1/$group_name
        mkdir "$group" || skip "no memory cgroup can be made"
        echo "$1" >"$group/memory.limit_in_bytes"
        # The system's may be 0.
        echo 60 >"$group/memory.swappiness"
    elif grep -qw memory "$v2/cgroup.controllers" 2>/dev/null; then
        echo +memory >"$v2/cgroup.subtree_control" 2>/dev/null || true
        group=$v2/$group_name
        mkdir "$group" || skip "no memory cgroup can be made"
        [ -e "$group/memory.max" ] || skip "the memory controller is not ours to use"
        echo "$1" >"$group/memory.max"
    else
        skip "there is no memory cgroup"
    fi
}

# Runs a command inside it.
limited() {
    timeout "$patience" sh -c 'echo $$ >"$0/cgroup.procs"; exec "$@"' "$group" "$@"
}

# How many programs the kernel has ended in it for want of memory.
oom_kills() {
    cat "$group/memory.oom_control" "$group/memory.events" 2>/dev/null | sed -n 's/^oom_kill //p'
}

# A cgroup of version 1 can run out of memory with swap free and most of its pages clean in the swap cache: the kernel finds none
# to give up. About one run in ten on a plain loop file does, on a busy machine. Such a run shows nothing, and there is another.
oom_runs=0
killed_for_memory() {
    [ "$(oom_kills)" != "$1" ] || return 1
    oom_runs=$((oom_runs + 1))
    [ $oom_runs -le 4 ] || fail "the kernel ended the program for want of memory in $oom_runs runs"
    [ "$(counter pages_in)" -gt 0 ] || fail "no page came in before the kernel ended the program for want of memory"
    say "the kernel ended the program for want of memory, with swap free: once more"
}

# -- undoing: programs first (they free what is out), then the swap, then the mount

pids=
daemon=
undo() {
    for pid in $pids $(cat "$group/cgroup.procs" 2>/dev/null); do kill -KILL "$pid" 2>/dev/null; done
    if mountpoint -q "$mnt" && ! timeout 120 "$MOAFS" swap off "$mnt" >/dev/null 2>&1; then
        # Either it was off, or something is stuck: requests of a dead daemon fail, and then swapoff goes on.
        for device in $(grep -ls "^$mnt/.moafs/swapfile" /sys/block/loop*/loop/backing_file | cut -d/ -f4); do
            kill -KILL "$daemon" 2>/dev/null
            timeout 120 swapoff "/dev/$device"
        done
    fi
    [ -z "$group" ] || rmdir "$group" 2>/dev/null || { sleep 1; rmdir "$group" 2>/dev/null; }
}

# -- the pieces

# swap_on [OPTION...]
swap_on() {
    daemon=$(daemon_pid)
    timeout 60 "$MOAFS" swap on "$@" "$mnt" >"$work/on.log" 2>"$work/on.err" || { cat "$work/on.err"; fail "swap on"; }
    grep -q "$mnt/.moafs/swapfile" /sys/block/loop*/loop/backing_file || fail "no loop device has the swap file"
}

swap_off() {
    timeout 300 "$MOAFS" swap off "$mnt" || fail "swap off"
    ! grep -qs "$mnt/.moafs/swapfile" /sys/block/loop*/loop/backing_file || fail "a loop device still has the swap file"
    "$MOAFS" swap status "$mnt" | grep -q '^state *off' || fail "the swap is still on"
}

counter() {
    "$MOAFS" swap status --json "$mnt" | sed -n "s/^ *\"$1\": *\([0-9]*\).*/\1/p" | head -1
}

# refused WORDS COMMAND...: it fails, and says so.
refused() {
    words=$1
    shift
    ! timeout 60 "$@" >"$work/refused.log" 2>&1 || fail "not refused: $*"
    grep -q "$words" "$work/refused.log" || { cat "$work/refused.log"; fail "refused in other words than '$words': $*"; }
}

# Files that are written, checked and removed until the file $work/stop is there.
files() {
    i=0
    while [ ! -e "$work/stop" ]; do
        i=$((i + 1))
        dir=$mnt/d$((i % 7))
        mkdir -p "$dir"
        seq "$i" $((i + 2000 + i % 9000)) >"$dir/f$i" || return 1
        [ $((i % 5)) = 0 ] && sync "$dir/f$i"
        old=$((i - 40))
        if [ "$old" -gt 0 ]; then
            [ "$(seq "$old" $((old + 2000 + old % 9000)) | cksum)" = "$(cksum <"$mnt/d$((old % 7))/f$old")" ] || return 1
            rm "$mnt/d$((old % 7))/f$old"
        fi
    done
}

# pressure OPTION...: the program and the files beside it.
pressure() {
    rm -f "$work/stop"
    files &
    files_pid=$!
    pids="$pids $files_pid"
    kills=$(oom_kills)
    until limited "$load" patterns "$@"; do
        killed_for_memory "$kills" || { "$MOAFS" swap status "$mnt"; fail "the program"; }
        kills=$(oom_kills)
    done
    : >"$work/stop"
    wait "$files_pid" || fail "files that were written meanwhile"
}

# -- what is refused, in words

refusals() {
    refused "lies in no mount of moafs" "$MOAFS" swap on "$work"
    refused "its swap is not on" "$MOAFS" swap off "$mnt"
    refused "too small" "$MOAFS" swap on --size 4K "$mnt"
    refused "has no room for a swap of" "$MOAFS" swap on --size 900G "$mnt"
    [ "$("$MOAFS" swap status "$mnt" | head -1)" = "state                    off" ] || fail "something is left of a refused swap"
}

while_on() {
    refused "on already" "$MOAFS" swap on --size 64M "$mnt"
    refused "moafs swap off $mnt" "$MOAFS" umount "$mnt"
    refused "moafs swap off $mnt" "$MOAFS" umount --lazy "$mnt"
    refused "busy" umount "$mnt"
    kill -TERM "$(daemon_pid)"
    sleep 0.5
    mountpoint -q "$mnt" || fail "SIGTERM unmounted a volume that is swapped to"
}

short() {
    patience=300
    make 2G
    mount_it ro
    refused "read-only" "$MOAFS" swap on --size 64M "$mnt"
    umount_it
    mount_it cache=32M
    refusals
    swap_on --size 256M --place areas
    while_on
    limit_group 64M
    pressure --mib 112 --rounds 2
    out=$(counter pages_out) in=$(counter pages_in) slow=$(counter slow)
    [ "${out:-0}" -gt 5000 ] && [ "${in:-0}" -gt 0 ] || fail "only $out pages went out and $in came in"
    say "$out pages out, $in in, $slow requests of more than 5 s"
    swap_off
    swap_on --size 64M --place start --priority 0
    swap_off
    umount_it
    judge
}

start_broken_load() {
    kills=$(oom_kills)
    limited "$load" patterns --mib 112 --seconds 100 >"$work/load.log" 2>&1 &
    program=$!
    pids="$pids $program"
}

# The volume lies on a modelled disk that is a process; killed, every request of the device fails.
broken() {
    patience=120
    make 2G
    rm -f "$work/stop"
    mkdir "$work/sim"
    "$MOAFS" simdisk --foreground --model st3160812as --size 2G --image "$img" "$work/sim" >"$work/sim.log" 2>&1 &
    disk=$!
    pids="$pids $disk"
    for _ in $(seq 100); do [ ! -e "$work/sim/disk" ] || break; sleep 0.1; done
    "$MOAFS" mount -o cache=32M "$work/sim/disk" "$mnt"
    seq 100000 >"$mnt/kept"
    sync "$mnt/kept"
    swap_on --size 256M --place areas
    start_broken_load
    for _ in $(seq 300); do
        in=$(counter pages_in)
        [ "${in:-0}" -le 2000 ] || break
        sleep 0.1
        ! killed_for_memory "$kills" || start_broken_load
    done
    [ "${in:-0}" -gt 0 ] || fail "nothing came in before the device was to fail"
    kill -KILL "$disk"
    died=0
    wait "$program" || died=$?
    [ "$died" = 135 ] || { cat "$work/load.log"; fail "the program ended with $died, not with SIGBUS"; }
    timeout 20 "$MOAFS" swap status "$mnt" >"$work/status" || fail "the mount of a broken device does not answer"
    timeout 20 ls "$mnt" >/dev/null 2>&1 || [ $? != 124 ] || fail "ls hangs on a broken device"
    ! timeout 20 sh -c 'echo lost >"$1/late" && sync "$1/late"' sh "$mnt" 2>/dev/null || fail "a broken device kept what was written"
    swap_off
    umount "$mnt" || fail "a mount of a broken device does not go"
    for _ in $(seq 200); do kill -0 "$daemon" 2>/dev/null || break; sleep 0.1; done
    umount "$work/sim" || fail "the daemon of a broken device holds on to it"
    # The first mount after a crash takes back what was on its way.
    mount_it
    [ "$(seq 100000 | cksum)" = "$(cksum <"$mnt/kept")" ] || fail "a file that was synced before"
    umount_it
    judge
    say "the device failed: SIGBUS, the mount answered, the volume is whole"
}

long() {
    patience=36000
    make 8G
    mount_it cache=32M
    swap_on --size 1G --place areas
    limit_group 64M
    pressure --mib 512 "$@"
    "$MOAFS" swap status "$mnt"
    swap_off
    umount_it
    judge
}

# -- SOR beside postmark: the same work with pages in areas and at the start; the requests of each run on one modelled disk.
# Each SOR is larger than the limit: with two that nearly fit, chance decides how much is paged at all. By environment: ROUNDS, SOR_MIB, SOR_SWEEPS, FILES, TRANSACTIONS, LIMIT, VOLUME, OPTIONS (of the mount), MODEL, KEEP (a directory for traces).

model=${MODEL:-st3160812as}
sor_mib=${SOR_MIB:-72}
sor_sweeps=${SOR_SWEEPS:-6}
limit=${LIMIT:-64M}
volume=${VOLUME:-120G}
cat_script() {
    printf 'set location %s\nset number %s\nset subdirectories 100\nset size 512 10240\nset transactions %s\nset seed 42\n' \
        "$mnt/mail" "${FILES:-20000}" "${TRANSACTIONS:-20000}"
    printf 'set report terse\nrun\nquit\n'
}

# A directory for the files in the middle of the volume, where those of a volume in use are; a new one has all at its start.
# (FFS gives each directory of the root a group of its own.)
middle() {
    mount_it place=ffs
    inodes=$(stat -f -c %c "$mnt")
    n=0
    until mkdir "$mnt/$n" && [ $(($(stat -c %i "$mnt/$n") * 100 / inodes)) -ge 45 ]; do
        n=$((n + 1))
        [ $n -lt 5000 ] || fail "no directory came to lie in the middle"
    done
    mv "$mnt/$n" "$mnt/mail"
    rmdir "$mnt"/[0-9]*
    umount_it
}

run_sor() {
    place=$1
    make "$volume" -b 4096
    middle
    "$MOAFS" mount --trace "$work/$place.trace" -o "${OPTIONS:-cache=24M}" "$img" "$mnt"
    swap_on --size 512M --place "$place"
    cat_script >"$work/script"
    limited postmark "$work/script" >"$work/$place.postmark" 2>&1 &
    postmark=$!
    pids="$pids $postmark"
    limited "$load" sor --mib "$sor_mib" --sweeps "$sor_sweeps" >"$work/$place.sor.1" &
    sor=$!
    pids="$pids $sor"
    limited "$load" sor --mib "$sor_mib" --sweeps "$sor_sweeps" >"$work/$place.sor.2" || fail "sor"
    wait "$sor" || fail "sor"
    wait "$postmark" || { cat "$work/$place.postmark"; fail "postmark"; }
    for n in 1 2; do
        [ "$(sed 's/,[^,]*$//' "$work/$place.sor.$n")" = "$(sed 's/,[^,]*$//' "$work/sor.alone")" ] ||
            { cat "$work/$place.sor.$n" "$work/sor.alone"; fail "sor came to another result"; }
    done
    "$MOAFS" swap status --json "$mnt" >"$work/$place.status"
    swap_off
    umount_it
    judge
    rm -f "$img"
    "$MOAFS" lab replay --model "$model" --json "$work/$place.trace" >"$work/$place.json"
}

# of FIELD FILE: a number of a JSON file.
of() {
    sed -n "s/^ *\"$1\": *\([0-9.]*\).*/\1/p" "$2" | head -1
}

# One line for a run: what the kernel happened to page out and in differs from run to run, so times are told per request, too.
line() {
    json=$work/$1.json
    awk -v place="$1" -v n="$(of requests "$json")" -v ms="$(of mean_service_ms "$json")" -v seek="$(of mean_seek_ms "$json")" \
        -v rotation="$(of mean_rotation_ms "$json")" -v out="$(of pages_out "$work/$1.status")" \
        -v came="$(of pages_in "$work/$1.status")" -v beside="$(of neighbours_in "$work/$1.status")" \
        'BEGIN { printf "%-6s %8.1f %9d %10.3f %10.3f %10.3f %10d %10d\n", place, n*ms/1000, n, ms, seek, rotation, out, came+beside }'
}

sor() {
    patience=7200
    have postmark || skip "postmark is not installed"
    "$load" sor --mib "$sor_mib" --sweeps "$sor_sweeps" >"$work/sor.alone"
    limit_group "$limit"
    say "$(cat "$work/sor.alone") alone; two of them and postmark within $limit, the requests on one $model:"
    printf '%-6s %8s %9s %10s %10s %10s %10s %10s\n' place busy_s requests service_ms seek_ms rotation_ms pages_out pages_in
    for round in $(seq "${ROUNDS:-3}"); do
        for place in start areas; do
            run_sor $place
            line $place
            [ -z "${KEEP:-}" ] || for kind in trace json status postmark; do cp "$work/$place.$kind" "$KEEP/$round.$place.$kind"; done
        done
    done
}

case $what in
short)
    short
    broken
    ;;
broken)
    limit_group 64M
    broken
    ;;
pages) long --swapped-pages "${count:-1000000}" ;;
minutes) long --seconds $((${count:-30} * 60)) ;;
sor) sor ;;
*) fail "short, broken, pages N, minutes N or sor" ;;
esac
say "$maker: $what, all well"
