#!/bin/sh
# Real programs on a real mount: git, tar, rsync, sqlite3, cargo, and filling the volume twice.
# usage: programs.sh [ext2|ext3|ext4|f2fs|mke2fs|mkfs.f2fs [MKFS-OPTION...]]
. "$(dirname "$0")/common"
choose "$@"
[ $# = 0 ] || shift
make 512M "$@"
mount_it

checksums() {
    (cd "$1" && find . -type f -print0 | sort -z | xargs -0 cksum)
}

with_git() {
    have git || { echo "*** SKIPPED: $name: git is not installed"; return; }
    git init -q "$work/source"
    git -C "$work/source" config user.email test@example.invalid
    git -C "$work/source" config user.name test
    for i in $(seq 30); do
        mkdir -p "$work/source/d$((i % 5))"
        seq "$i" $((i * 50)) >"$work/source/d$((i % 5))/f$i"
        git -C "$work/source" add . && git -C "$work/source" commit -q -m "change $i"
    done
    git clone -q --no-hardlinks "$work/source" "$mnt/clone"
    git -C "$mnt/clone" gc -q --aggressive
    git -C "$mnt/clone" fsck --full --strict >/dev/null 2>&1 || fail "git fsck"
    git -C "$mnt/clone" status --porcelain | grep -q . && fail "git status is not clean"
    say "git: clone, gc, fsck"
}

with_tar() {
    tree=/usr/share/doc
    [ -d /usr/include ] && tree=/usr/include
    tar -C "$tree" -cf - . 2>/dev/null | tar -C "$(mkdir -p "$mnt/tar" && echo "$mnt/tar")" -xf -
    checksums "$tree" >"$work/a"
    checksums "$mnt/tar" >"$work/b"
    cmp "$work/a" "$work/b" || fail "tar round trip"
    tar -C "$mnt/tar" -cf "$work/back.tar" .
    tar -C "$mnt/tar" -df "$work/back.tar" || fail "tar finds differences"
    rm -f "$work/back.tar"
    say "tar: $(wc -l <"$work/a") files"
}

with_rsync() {
    have rsync || { echo "*** SKIPPED: $name: rsync is not installed"; return; }
    rsync -aHAX "$mnt/tar/" "$mnt/rsync/"
    rsync -aHAXn --checksum --itemize-changes "$mnt/tar/" "$mnt/rsync/" >"$work/changes"
    [ ! -s "$work/changes" ] || { head "$work/changes"; fail "rsync finds differences"; }
    rm -rf "$mnt/rsync"
    say "rsync: round trip"
}

with_sqlite() {
    have sqlite3 || { echo "*** SKIPPED: $name: sqlite3 is not installed"; return; }
    for mode in delete wal; do
        db=$mnt/$mode.db
        {
            echo "pragma journal_mode=$mode; create table t(a integer primary key, b text);"
            for i in $(seq 200); do echo "insert into t(b) values (hex(randomblob($i)));"; done
            echo "begin; delete from t where a % 3 = 0; update t set b = b || 'x'; commit; vacuum;"
        } | sqlite3 "$db" >/dev/null
        [ "$(sqlite3 "$db" 'pragma integrity_check; select count(*) from t;' | tr '\n' ' ')" = "ok 134 " ] || fail "sqlite3 in mode $mode"
    done
    say "sqlite3: both journal modes"
}

with_cargo() {
    have cargo || { echo "*** SKIPPED: $name: cargo is not installed"; return; }
    mkdir -p "$mnt/crate/src"
    printf '[package]\nname = "generated"\nversion = "0.1.0"\nedition = "2021"\n[workspace]\n' >"$mnt/crate/Cargo.toml"
    for i in $(seq 40); do
        echo "pub mod m$i;" >>"$mnt/crate/src/lib.rs"
        echo "pub fn f(x: u64) -> u64 { x.wrapping_mul($i) } #[test] fn t() { assert_eq!(f(2), 2 * $i); }" >"$mnt/crate/src/m$i.rs"
    done
    (cd "$mnt/crate" && CARGO_TARGET_DIR=$mnt/crate/target cargo test -q --offline >"$work/cargo.log" 2>&1) ||
        { tail -20 "$work/cargo.log"; fail "cargo test"; }
    (cd "$mnt/crate" && CARGO_TARGET_DIR=$mnt/crate/target cargo clean -q)
    say "cargo: built and tested"
}

# Removing needs no space, and all of it comes back.
fill_and_empty() {
    sync
    before=$(stat -f -c %f "$mnt")
    for round in 1 2; do
        mkdir "$mnt/fill"
        i=0
        while dd if=/dev/zero of="$mnt/fill/f$i" bs=1M count=8 status=none 2>/dev/null; do i=$((i + 1)); done
        while { echo small >"$mnt/fill/s$i"; } 2>/dev/null && [ $i -lt 100000 ]; do i=$((i + 1)); done
        [ "$(stat -f -c %f "$mnt")" -lt 2000 ] || fail "the volume is not full: $(stat -f -c %f "$mnt") blocks free"
        rm -rf "$mnt/fill"
        sync
        # Deleted files are reaped in the background.
        for _ in $(seq 100); do
            after=$(stat -f -c %f "$mnt")
            [ "$after" -lt $((before - 16)) ] || break
            sleep 0.1
        done
        [ "$after" -ge $((before - 16)) ] || fail "round $round: $before blocks were free, $after are after emptying"
    done
    say "filled and emptied twice"
}

with_git
with_tar
with_rsync
with_sqlite
with_cargo
checksums "$mnt" >"$work/before"
fill_and_empty
umount_it
judge
mount_it ro
checksums "$mnt" >"$work/after"
cmp -s "$work/before" "$work/after" || { diff "$work/before" "$work/after" | head; fail "files changed across a remount"; }
umount_it
say "$maker${*:+ $*}: all well"
