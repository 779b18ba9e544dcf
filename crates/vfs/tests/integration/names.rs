//! Names and attributes: one rule of POSIX per test.

use std::sync::atomic::Ordering;

use crate::common::*;
use moafs_runtime::Timestamp;
use moafs_vfs::api::{Allocate, AtimePolicy, Checks, Credentials, NewFile, Options, RenameMode, SetAttr, SetTime};
use moafs_vfs::types::{Cookie, FileKind, Ino, Name, SetMode};

const ROOT_USER: fn() -> Credentials = Credentials::root;

fn user(uid: u32) -> Credentials {
    Credentials { uid, gid: uid, groups: Default::default(), checks: Checks::Needed }
}

fn find(v: &Volume, dir: Ino, n: &str) -> i32 {
    errno(v.vfs.lookup(&ROOT_USER(), dir, name(n)))
}

fn rename(v: &Volume, from: (Ino, &str), to: (Ino, &str), mode: RenameMode) -> i32 {
    errno(v.vfs.rename(&ROOT_USER(), (from.0, name(from.1)), (to.0, name(to.1)), mode))
}

fn nlink(v: &Volume, ino: Ino) -> u32 {
    v.vfs.stat(ino).unwrap().attr.nlink
}

fn perm(v: &Volume, ino: Ino) -> u32 {
    v.vfs.stat(ino).unwrap().attr.perm
}

fn chmod(v: &Volume, ino: Ino, perm: u32) {
    v.vfs.set_attr(&ROOT_USER(), ino, &SetAttr { perm: Some(perm), ..SetAttr::default() }).unwrap();
}

fn chown(v: &Volume, ino: Ino, uid: u32) {
    v.vfs.set_attr(&ROOT_USER(), ino, &SetAttr { uid: Some(uid), gid: Some(uid), ..SetAttr::default() }).unwrap();
}

#[test]
fn a_name_leads_to_its_inode_until_it_is_removed() {
    let v = Volume::live(64);
    assert_eq!(find(&v, ROOT, "a"), libc::ENOENT);
    let a = v.create(ROOT, "a");
    assert_eq!(v.vfs.lookup(&ROOT_USER(), ROOT, name("a")).unwrap().ino, a);
    assert_eq!(errno(v.vfs.create(&ROOT_USER(), ROOT, name("a"), &regular(0o600))), libc::EEXIST);
    v.vfs.unlink(&ROOT_USER(), ROOT, name("a")).unwrap();
    assert_eq!(errno(v.vfs.unlink(&ROOT_USER(), ROOT, name("a"))), libc::ENOENT);
    assert_eq!(errno(v.vfs.lookup(&ROOT_USER(), a, name("b"))), libc::ENOTDIR);
    v.vfs.close().unwrap();
}

#[test]
fn dot_and_dot_dot_are_found_and_not_made() {
    let v = Volume::live(64);
    let d = v.mkdir(ROOT, "d");
    assert_eq!(v.vfs.lookup(&ROOT_USER(), d, name(".")).unwrap().ino, d);
    assert_eq!(v.vfs.lookup(&ROOT_USER(), d, name("..")).unwrap().ino, ROOT);
    assert_eq!(errno(v.vfs.create(&ROOT_USER(), d, name("."), &directory(0o700))), libc::EEXIST);
    assert_eq!(errno(v.vfs.rmdir(&ROOT_USER(), d, name("."))), libc::EINVAL);
    assert_eq!(errno(v.vfs.rmdir(&ROOT_USER(), d, name(".."))), libc::ENOTEMPTY);
    assert_eq!(rename(&v, (ROOT, "d"), (d, ".."), RenameMode::Replace), libc::EINVAL);
    v.vfs.close().unwrap();
}

#[test]
fn directories_count_their_subdirectories() {
    let v = Volume::live(64);
    let d = v.mkdir(ROOT, "d");
    let e = v.mkdir(d, "e");
    assert_eq!((nlink(&v, ROOT), nlink(&v, d), nlink(&v, e)), (3, 3, 2));
    assert_eq!(errno(v.vfs.rmdir(&ROOT_USER(), ROOT, name("d"))), libc::ENOTEMPTY);
    assert_eq!(errno(v.vfs.unlink(&ROOT_USER(), ROOT, name("d"))), libc::EISDIR);
    assert_eq!(rename(&v, (d, "e"), (ROOT, "e"), RenameMode::Replace), 0);
    assert_eq!((nlink(&v, ROOT), nlink(&v, d)), (4, 2));
    assert_eq!(v.vfs.lookup(&ROOT_USER(), e, name("..")).unwrap().ino, ROOT);
    v.vfs.rmdir(&ROOT_USER(), ROOT, name("d")).unwrap();
    assert_eq!(nlink(&v, ROOT), 3);
    assert_eq!(errno(v.vfs.create(&ROOT_USER(), d, name("x"), &regular(0o600))), libc::ENOENT, "it is gone");
    v.vfs.close().unwrap();
}

#[test]
fn link_counts_have_an_end() {
    let v = Volume::live(64);
    let a = v.create(ROOT, "a");
    for i in 1..50 {
        v.vfs.link(&ROOT_USER(), a, ROOT, name(&format!("l{i}"))).unwrap();
    }
    assert_eq!(errno(v.vfs.link(&ROOT_USER(), a, ROOT, name("more"))), libc::EMLINK);
    let d = v.mkdir(ROOT, "d");
    for i in 0..48 {
        v.mkdir(d, &format!("s{i}"));
    }
    assert_eq!(errno(v.vfs.create(&ROOT_USER(), d, name("more"), &directory(0o700))), libc::EMLINK);
    v.mkdir(ROOT, "e");
    assert_eq!(rename(&v, (ROOT, "e"), (d, "e"), RenameMode::Replace), libc::EMLINK);
    assert_eq!(rename(&v, (ROOT, "e"), (d, "s1"), RenameMode::Replace), 0, "one comes, one goes");
    v.vfs.close().unwrap();
}

#[test]
fn an_unlinked_inode_gets_no_new_name() {
    let v = Volume::live(64);
    let a = v.create(ROOT, "a");
    v.vfs.unlink(&ROOT_USER(), ROOT, name("a")).unwrap();
    assert_eq!(errno(v.vfs.link(&ROOT_USER(), a, ROOT, name("b"))), libc::ENOENT);
    let t = v.vfs.tmpfile(&ROOT_USER(), ROOT, &regular(0o600)).unwrap().ino;
    v.write(t, 0, b"kept");
    v.vfs.fsync(t, false).unwrap();
    v.vfs.link(&ROOT_USER(), t, ROOT, name("t")).unwrap();
    v.vfs.forget(t, 2);
    v.vfs.run_background_step();
    assert_eq!(v.read(t, 0, 10), b"kept");
    v.vfs.close().unwrap();
}

#[test]
fn names_neither_come_to_a_removed_directory_nor_leave_it_also_when_its_parent_is_gone() {
    let v = Volume::live(64);
    v.create(ROOT, "file");
    let parent = v.mkdir(ROOT, "parent");
    let removed = v.mkdir(parent, "removed");
    v.vfs.rmdir(&ROOT_USER(), parent, name("removed")).unwrap();
    v.vfs.rmdir(&ROOT_USER(), ROOT, name("parent")).unwrap();
    let refused = || {
        assert_eq!(rename(&v, (ROOT, "file"), (removed, "file"), RenameMode::Replace), libc::ENOENT);
        assert_eq!(rename(&v, (removed, "file"), (ROOT, "other"), RenameMode::Replace), libc::ENOENT);
    };
    refused();
    v.vfs.forget(parent, 1);
    v.vfs.run_background_step();
    assert_eq!(errno(v.vfs.stat(parent)), libc::ESTALE);
    refused();
    assert_eq!(find(&v, ROOT, "file"), 0);
    v.vfs.forget(removed, 1);
    v.vfs.close().unwrap();
}

#[test]
fn a_tmpfile_goes_when_nobody_holds_it() {
    let v = Volume::live(64);
    let t = v.vfs.tmpfile(&ROOT_USER(), ROOT, &regular(0o600)).unwrap().ino;
    v.write(t, 0, b"temporary");
    v.vfs.forget(t, 1);
    v.vfs.run_background_step();
    assert_eq!(v.vfs.format().inodes(), 1);
    v.vfs.close().unwrap();
}

#[test]
fn rename_replaces_what_may_be_replaced() {
    let v = Volume::live(256);
    let (f, g) = (v.create(ROOT, "f"), v.create(ROOT, "g"));
    let (d, e) = (v.mkdir(ROOT, "d"), v.mkdir(ROOT, "e"));
    v.create(e, "x");
    assert_eq!(rename(&v, (ROOT, "none"), (ROOT, "f"), RenameMode::Replace), libc::ENOENT);
    assert_eq!(rename(&v, (ROOT, "f"), (ROOT, "g"), RenameMode::NoReplace), libc::EEXIST);
    assert_eq!(rename(&v, (ROOT, "f"), (ROOT, "d"), RenameMode::Replace), libc::EISDIR);
    assert_eq!(rename(&v, (ROOT, "d"), (ROOT, "f"), RenameMode::Replace), libc::ENOTDIR);
    assert_eq!(rename(&v, (ROOT, "d"), (ROOT, "e"), RenameMode::Replace), libc::ENOTEMPTY);
    assert_eq!(rename(&v, (ROOT, "e"), (ROOT, "d"), RenameMode::Replace), 0);
    assert_eq!(rename(&v, (ROOT, "f"), (ROOT, "g"), RenameMode::Replace), 0);
    assert_eq!(v.vfs.lookup(&ROOT_USER(), ROOT, name("g")).unwrap().ino, f);
    assert_eq!((nlink(&v, g), nlink(&v, d), nlink(&v, ROOT)), (0, 0, 3));
    v.vfs.close().unwrap();
}

#[test]
fn two_names_of_one_inode_are_left_alone() {
    let v = Volume::live(64);
    let f = v.create(ROOT, "f");
    v.vfs.link(&ROOT_USER(), f, ROOT, name("g")).unwrap();
    assert_eq!(rename(&v, (ROOT, "f"), (ROOT, "g"), RenameMode::Replace), 0);
    assert_eq!((find(&v, ROOT, "f"), find(&v, ROOT, "g"), nlink(&v, f)), (0, 0, 2));
    v.vfs.close().unwrap();
}

#[test]
fn no_directory_moves_below_itself() {
    let v = Volume::live(64);
    let a = v.mkdir(ROOT, "a");
    let b = v.mkdir(a, "b");
    assert_eq!(rename(&v, (ROOT, "a"), (b, "x"), RenameMode::Replace), libc::EINVAL);
    assert_eq!(rename(&v, (ROOT, "a"), (a, "x"), RenameMode::Replace), libc::EINVAL);
    v.create(b, "f");
    assert_eq!(rename(&v, (b, "f"), (ROOT, "a"), RenameMode::Replace), libc::ENOTEMPTY, "it lies in there");
    v.mkdir(b, "d");
    assert_eq!(rename(&v, (b, "d"), (ROOT, "a"), RenameMode::Exchange), libc::EINVAL);
    v.vfs.close().unwrap();
}

#[test]
fn exchange_swaps_anything() {
    let v = Volume::live(64);
    let (p, q) = (v.mkdir(ROOT, "p"), v.mkdir(ROOT, "q"));
    let (f, d) = (v.create(p, "f"), v.mkdir(q, "d"));
    assert_eq!(rename(&v, (p, "f"), (q, "none"), RenameMode::Exchange), libc::ENOENT);
    assert_eq!(rename(&v, (p, "f"), (q, "d"), RenameMode::Exchange), 0);
    assert_eq!(v.vfs.lookup(&ROOT_USER(), p, name("f")).unwrap().ino, d);
    assert_eq!(v.vfs.lookup(&ROOT_USER(), q, name("d")).unwrap().ino, f);
    assert_eq!(v.vfs.lookup(&ROOT_USER(), d, name("..")).unwrap().ino, p);
    assert_eq!((nlink(&v, p), nlink(&v, q)), (3, 2));
    v.vfs.close().unwrap();
}

#[test]
fn listings_go_on_where_they_stopped() {
    let v = Volume::live(64);
    for i in 0..20 {
        v.create(ROOT, &format!("f{i}"));
    }
    let mut seen = Vec::new();
    let mut from = Cookie::START;
    loop {
        let mut taken = 0;
        v.vfs
            .list(&ROOT_USER(), ROOT, from, &mut |entry| {
                if taken == 3 {
                    return false;
                }
                taken += 1;
                from = entry.next;
                seen.push(entry.name.to_string());
                true
            })
            .unwrap();
        if taken == 0 {
            break;
        }
        let _ = v.vfs.unlink(&ROOT_USER(), ROOT, name("f1"));
    }
    assert_eq!(seen.len(), 21, "all but the one that was removed before its turn");
    v.vfs.close().unwrap();
}

#[test]
fn symbolic_links_keep_their_text() {
    let v = Volume::live(64);
    let new = |target| NewFile { kind: FileKind::Symlink, target: Some(target), ..regular(0o777) };
    let l = v.vfs.create(&ROOT_USER(), ROOT, name("l"), &new(b"to/there")).unwrap();
    assert_eq!((v.vfs.readlink(l.ino).unwrap(), l.attr.size), (b"to/there".to_vec(), 8));
    assert_eq!(errno(v.vfs.create(&ROOT_USER(), ROOT, name("m"), &new(&[b'x'; 5000]))), libc::ENAMETOOLONG);
    assert_eq!(errno(v.vfs.read(l.ino, 0, &mut [0])), libc::EINVAL);
    v.vfs.close().unwrap();
}

#[test]
fn permissions_are_checked_where_nobody_did() {
    let v = Volume::live(64);
    let d = v.mkdir(ROOT, "d");
    let f = v.create(d, "f");
    chmod(&v, d, 0o700);
    assert_eq!(errno(v.vfs.lookup(&user(5), d, name("f"))), libc::EACCES);
    assert_eq!(errno(v.vfs.create(&user(5), d, name("g"), &regular(0o644))), libc::EACCES);
    chmod(&v, d, 0o755);
    assert_eq!(errno(v.vfs.unlink(&user(5), d, name("f"))), libc::EACCES);
    assert_eq!(errno(v.vfs.access(&user(5), f, 2)), libc::EACCES);
    assert_eq!(errno(v.vfs.access(&user(5), f, 4)), 0);
    assert_eq!(errno(v.vfs.access(&ROOT_USER(), f, 1)), libc::EACCES, "not even root runs what nobody may");
    let done = Credentials { checks: Checks::Done, ..user(5) };
    assert_eq!(errno(v.vfs.lookup(&done, d, name("f"))), 0);
    v.vfs.close().unwrap();
}

#[test]
fn sticky_directories_protect_names() {
    let v = Volume::live(64);
    let d = v.mkdir(ROOT, "tmp");
    chmod(&v, d, 0o1777);
    let f = v.create(d, "f");
    chown(&v, f, 7);
    assert_eq!(errno(v.vfs.unlink(&user(8), d, name("f"))), libc::EPERM);
    assert_eq!(errno(v.vfs.unlink(&user(7), d, name("f"))), 0);
    v.vfs.close().unwrap();
}

#[test]
fn sgid_directories_pass_their_group_on() {
    let v = Volume::live(64);
    let d = v.mkdir(ROOT, "d");
    chown(&v, d, 40);
    chmod(&v, d, 0o2777);
    let who = user(9);
    let f = v.vfs.create(&who, d, name("f"), &regular(0o2775)).unwrap();
    let s = v.vfs.create(&who, d, name("s"), &directory(0o755)).unwrap();
    assert_eq!((f.attr.gid, f.attr.perm), (40, 0o775), "not a member: no sgid");
    assert_eq!((s.attr.gid, s.attr.perm), (40, 0o2755));
    let member = Credentials { groups: [40].into_iter().collect(), ..user(9) };
    let m = v.vfs.create(&member, d, name("m"), &regular(0o2775)).unwrap();
    assert_eq!((m.attr.gid, m.attr.perm), (40, 0o2775), "a member by a supplementary group");
    v.vfs.close().unwrap();
}

#[test]
fn writes_and_owners_clear_suid() {
    let v = Volume::live(64);
    let f = v.create(ROOT, "f");
    chmod(&v, f, 0o6777);
    v.vfs.write(&ROOT_USER(), f, 0, b"x", false).unwrap();
    assert_eq!(perm(&v, f), 0o6777, "root keeps them");
    v.vfs.write(&user(3), f, 0, b"x", false).unwrap();
    assert_eq!(perm(&v, f), 0o777);
    chmod(&v, f, 0o6755);
    chown(&v, f, 3);
    assert_eq!(perm(&v, f), 0o755);
    v.vfs.close().unwrap();
}

#[test]
fn owners_may_and_others_may_not() {
    let v = Volume::live(64);
    let f = v.create(ROOT, "f");
    chown(&v, f, 3);
    let set = |who: &Credentials, set: SetAttr| errno(v.vfs.set_attr(who, f, &set));
    let mode = SetAttr { perm: Some(0o2755), ..SetAttr::default() };
    assert_eq!(set(&user(4), mode.clone()), libc::EPERM);
    assert_eq!(set(&user(3), mode), 0);
    assert_eq!(perm(&v, f), 0o2755);
    assert_eq!(set(&user(3), SetAttr { uid: Some(4), ..SetAttr::default() }), libc::EPERM);
    assert_eq!(set(&user(3), SetAttr { gid: Some(4), ..SetAttr::default() }), libc::EPERM);
    assert_eq!(set(&user(3), SetAttr { gid: Some(3), ..SetAttr::default() }), 0);
    let old = SetTime::To(Timestamp::new(5, 0));
    assert_eq!(set(&user(4), SetAttr { mtime: Some(old), ..SetAttr::default() }), libc::EPERM);
    assert_eq!(set(&user(4), SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() }), libc::EACCES);
    v.vfs.close().unwrap();
}

#[test]
fn flags_forbid_changes() {
    let v = Volume::live(64);
    let f = v.create(ROOT, "f");
    v.write(f, 0, b"abc");
    let flags = |flags| v.vfs.set_attr(&ROOT_USER(), f, &SetAttr { flags: Some(flags), ..SetAttr::default() }).unwrap();
    flags(0x20);
    assert_eq!(errno(v.vfs.write(&ROOT_USER(), f, 0, b"x", false)), libc::EPERM);
    assert_eq!(errno(v.vfs.write(&ROOT_USER(), f, 0, b"x", true)), 0);
    assert_eq!(errno(v.vfs.unlink(&ROOT_USER(), ROOT, name("f"))), libc::EPERM);
    flags(0x10);
    assert_eq!(errno(v.vfs.write(&ROOT_USER(), f, 0, b"x", true)), libc::EPERM);
    assert_eq!(errno(v.vfs.set_attr(&ROOT_USER(), f, &SetAttr { perm: Some(0), ..SetAttr::default() })), libc::EPERM);
    assert_eq!(errno(v.vfs.link(&ROOT_USER(), f, ROOT, name("g"))), libc::EPERM);
    flags(0);
    assert_eq!(errno(v.vfs.unlink(&ROOT_USER(), ROOT, name("f"))), 0);
    v.vfs.close().unwrap();
}

#[test]
fn append_only_files_let_holes_be_filled_and_immutable_files_nothing() {
    const KEPT: [Allocate; 3] =
        [Allocate::Punch, Allocate::Zero { keep_size: false }, Allocate::Zero { keep_size: true }];
    let v = Volume::live(64);
    let (f, holes) = (v.create(ROOT, "f"), v.create(ROOT, "holes"));
    let set = |file, set: SetAttr| v.vfs.set_attr(&ROOT_USER(), file, &set).unwrap();
    let flags = |flags| set(f, SetAttr { flags: Some(flags), ..SetAttr::default() });
    let size = |file, size| set(file, SetAttr { size: Some(size), ..SetAttr::default() });
    let allocate = |at, len, how| errno(v.vfs.allocate(&ROOT_USER(), f, at, len, how));
    let copy_hole = |at| errno(v.vfs.copy_range(&ROOT_USER(), (holes, 0), (f, at), 3 * BLOCK as u64));
    size(holes, 3 * BLOCK as u64);
    v.write(f, 0, b"abc");
    size(f, 5 * BLOCK as u64);
    flags(0x20);
    assert_eq!(KEPT.map(|how| allocate(0, 3, how)), [libc::EPERM; 3]);
    assert_eq!(copy_hole(0), libc::EPERM);
    assert_eq!(allocate(0, 4 * BLOCK as u64, Allocate::KeepSize), 0);
    assert_eq!(allocate(BLOCK as u64, 7 * BLOCK as u64, Allocate::Extend), 0);
    assert_eq!(allocate(0, 1 << 62, Allocate::Extend), libc::EFBIG);
    assert_eq!(copy_hole(8 * BLOCK as u64), 0);
    let mut kept = vec![0; 11 * BLOCK];
    kept[..3].copy_from_slice(b"abc");
    assert_eq!(v.read(f, 0, 12 * BLOCK), kept);
    flags(0x10);
    assert_eq!(KEPT.map(|how| allocate(0, 3, how)), [libc::EPERM; 3]);
    assert_eq!([Allocate::Extend, Allocate::KeepSize].map(|how| allocate(0, 3, how)), [libc::EPERM; 2]);
    assert_eq!(allocate(0, 1 << 62, Allocate::Extend), libc::EPERM);
    assert_eq!([0, 11 * BLOCK as u64].map(copy_hole), [libc::EPERM; 2]);
    assert_eq!(v.read(f, 0, 12 * BLOCK), kept);
    flags(0);
    v.vfs.close().unwrap();
}

#[test]
fn flags_that_describe_the_layout_stay() {
    let v = Volume::live(64);
    let f = v.create(ROOT, "f");
    let set =
        |who: &Credentials, flags| errno(v.vfs.set_attr(who, f, &SetAttr { flags: Some(flags), ..SetAttr::default() }));
    assert_eq!(set(&ROOT_USER(), 0x8_0000), libc::EOPNOTSUPP);
    assert_eq!(set(&user(4), 0x8_0000), libc::EPERM);
    assert_eq!(v.vfs.stat(f).unwrap().attr.flags, 0);
    assert_eq!(set(&ROOT_USER(), 0x40), 0);
    assert_eq!(v.vfs.stat(f).unwrap().attr.flags, 0x40);
    v.vfs.close().unwrap();
}

#[test]
fn new_files_take_flags_over_from_their_directory() {
    let v = Volume::live(64);
    let dir = v.mkdir(ROOT, "d");
    let append_only_and_inherited = 0x1_00e8;
    v.vfs
        .set_attr(&ROOT_USER(), dir, &SetAttr { flags: Some(append_only_and_inherited), ..SetAttr::default() })
        .unwrap();
    assert_eq!(v.vfs.stat(v.create(dir, "f")).unwrap().attr.flags, 0xc8);
    assert_eq!(v.vfs.stat(v.mkdir(dir, "sub")).unwrap().attr.flags, 0x1_00c8);
    v.vfs.close().unwrap();
}

#[test]
fn times_move_as_posix_says() {
    let virt = moafs_runtime::virt::Virtual::new(None);
    virt.run(|| {
        let v = Volume::new(64, options(), virt.rt());
        let step = || moafs_runtime::sleep_until(&*v.rt, v.rt.now() + std::time::Duration::from_secs(2));
        let times = |ino| {
            let a = v.vfs.stat(ino).unwrap().attr;
            (a.atime.secs, a.mtime.secs, a.ctime.secs)
        };
        let start = v.rt.timestamp().secs;
        let f = v.create(ROOT, "f");
        step();
        v.write(f, 0, b"x");
        assert_eq!(times(f), (start, start + 2, start + 2));
        step();
        v.read(f, 0, 1);
        assert_eq!(times(f), (start + 4, start + 2, start + 2));
        step();
        v.read(f, 0, 1);
        assert_eq!(times(f).0, start + 4, "relatime");
        v.vfs.set_atime(AtimePolicy::Strict);
        v.read(f, 0, 1);
        assert_eq!(times(f).0, start + 6, "strictatime");
        step();
        v.vfs.set_atime(AtimePolicy::Never);
        v.read(f, 0, 1);
        assert_eq!(times(f).0, start + 6, "noatime");
        chmod(&v, f, 0o600);
        assert_eq!(times(f), (start + 6, start + 2, start + 8));
        assert_eq!(times(ROOT).1, start);
        v.vfs.link(&ROOT_USER(), f, ROOT, name("g")).unwrap();
        assert_eq!(times(ROOT).1, start + 8);
        let far = SetTime::To(Timestamp::new(i64::MAX, 5));
        v.vfs.set_attr(&ROOT_USER(), f, &SetAttr { mtime: Some(far), ..SetAttr::default() }).unwrap();
        assert_eq!(times(f).1, (1 << 34) - 1, "clamped to what an inode holds");
        v.vfs.fsync(f, false).unwrap();
        assert_eq!(v.vfs.format().put_attr(f).mtime.secs, (1 << 34) - 1);
        let (first, last) = (-1 << 31, (1 << 34) - 1);
        for (secs, shown) in [
            (i64::MIN, Timestamp::new(first, 0)),
            (first - 1, Timestamp::new(first, 0)),
            (first, Timestamp::new(first, 0)),
            (first + 1, Timestamp::new(first + 1, 5)),
            (last - 1, Timestamp::new(last - 1, 5)),
            (last, Timestamp::new(last, 0)),
            (last + 1, Timestamp::new(last, 0)),
        ] {
            let mtime = Some(SetTime::To(Timestamp::new(secs, 5)));
            let stat = v.vfs.set_attr(&ROOT_USER(), f, &SetAttr { mtime, ..SetAttr::default() }).unwrap();
            assert_eq!(stat.attr.mtime, shown, "{secs} s and 5 ns");
        }
        v.vfs.close().unwrap();
    });
}

#[test]
fn an_attribute_that_is_set_to_what_it_is_changes_no_times() {
    let virt = moafs_runtime::virt::Virtual::new(None);
    virt.run(|| {
        let v = Volume::new(64, options(), virt.rt());
        let f = v.create(ROOT, "f");
        let no = u32::MAX;
        let list = acl(&[(1, 6, no), (2, 6, 10), (4, 0, no), (0x10, 6, no), (0x20, 0, no)]);
        let plain = acl(&[(1, 6, no), (4, 6, no), (0x20, 0, no)]);
        // True if it changed ctime.
        let set = |name: &[u8], value: &[u8], mode| {
            moafs_runtime::sleep_until(&*v.rt, v.rt.now() + std::time::Duration::from_secs(2));
            let before = v.vfs.stat(f).unwrap().attr.ctime;
            v.vfs.set_xattr(&ROOT_USER(), f, name, value, mode).unwrap();
            v.vfs.stat(f).unwrap().attr.ctime != before
        };
        assert!(set(b"user.a", b"value", SetMode::Any));
        assert!(!set(b"user.a", b"value", SetMode::Any));
        assert!(!set(b"user.a", b"value", SetMode::Replace));
        assert!(set(b"user.a", b"", SetMode::Replace));
        assert!(!set(b"user.a", b"", SetMode::Any));
        assert!(set(b"system.posix_acl_access", &list, SetMode::Any));
        assert!(!set(b"system.posix_acl_access", &list, SetMode::Any));
        assert!(set(b"system.posix_acl_access", &plain, SetMode::Any), "the list is gone, though the mode stays");
        assert!(!set(b"system.posix_acl_access", &plain, SetMode::Any));
        chmod(&v, f, 0o640);
        assert!(set(b"system.posix_acl_access", &plain, SetMode::Any), "the mode changes");
        assert_eq!(perm(&v, f), 0o660);
        v.vfs.close().unwrap();
    });
}

#[test]
fn attributes_have_name_spaces() {
    let v = Volume::live(64);
    let f = v.create(ROOT, "f");
    let l =
        v.vfs.create(&ROOT_USER(), ROOT, name("p"), &NewFile { kind: FileKind::Fifo, ..regular(0o666) }).unwrap().ino;
    let set = |who: &Credentials, ino, n: &[u8], mode| errno(v.vfs.set_xattr(who, ino, n, b"value", mode));
    assert_eq!(set(&ROOT_USER(), f, b"user.a", SetMode::Replace), libc::ENODATA);
    assert_eq!(set(&ROOT_USER(), f, b"user.a", SetMode::Create), 0);
    assert_eq!(set(&ROOT_USER(), f, b"user.a", SetMode::Create), libc::EEXIST);
    assert_eq!(set(&ROOT_USER(), l, b"user.a", SetMode::Any), libc::EPERM);
    assert_eq!(set(&user(3), f, b"trusted.a", SetMode::Any), libc::EPERM);
    assert_eq!(set(&ROOT_USER(), f, b"trusted.a", SetMode::Any), 0);
    assert_eq!(set(&ROOT_USER(), f, b"strange.a", SetMode::Any), libc::EOPNOTSUPP);
    assert_eq!(set(&ROOT_USER(), f, b"user.", SetMode::Any), libc::EINVAL);
    assert_eq!(v.vfs.list_xattr(&user(3), f).unwrap().len(), 1);
    assert_eq!(v.vfs.list_xattr(&ROOT_USER(), f).unwrap().len(), 2);
    assert_eq!(errno(v.vfs.get_xattr(&user(3), f, b"trusted.a")), libc::ENODATA);
    assert_eq!(v.vfs.get_xattr(&user(3), f, b"user.a").unwrap(), b"value");
    v.vfs.remove_xattr(&ROOT_USER(), f, b"user.a").unwrap();
    assert_eq!(errno(v.vfs.remove_xattr(&ROOT_USER(), f, b"user.a")), libc::ENODATA);
    v.vfs.close().unwrap();
}

#[test]
fn only_owners_set_lists_and_attributes_of_sticky_directories_unless_the_kernel_lets_others() {
    let v = Volume::live(64);
    let sticky = v.mkdir(ROOT, "sticky");
    chmod(&v, sticky, 0o1777);
    let list = acl(&[(1, 7, 0), (2, 4, 9), (4, 7, 0), (16, 7, 0), (32, 7, 0)]);
    let set = |who: &Credentials, name: &[u8], value: &[u8]| {
        errno(
            v.vfs
                .set_xattr(who, sticky, name, value, SetMode::Any)
                .and_then(|()| v.vfs.remove_xattr(who, sticky, name)),
        )
    };
    let fowner = Credentials { checks: Checks::Done, ..user(5) };
    for (name, value) in [(&b"user.a"[..], &b"value"[..]), (b"system.posix_acl_default", &list)] {
        assert_eq!(set(&user(5), name, value), libc::EPERM, "it is another's");
        assert_eq!(set(&ROOT_USER(), name, value), 0);
        assert_eq!(set(&fowner, name, value), 0, "the kernel has let it pass (CAP_FOWNER)");
    }
}

fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(perm.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

#[test]
fn acls_and_modes_mirror_each_other() {
    let v = Volume::live(64);
    let f = v.create(ROOT, "f");
    chmod(&v, f, 0o600);
    let no = u32::MAX;
    let list = acl(&[(1, 6, no), (2, 6, 10), (4, 0, no), (0x10, 6, no), (0x20, 0, no)]);
    v.vfs.set_xattr(&ROOT_USER(), f, b"system.posix_acl_access", &list, SetMode::Any).unwrap();
    assert_eq!(perm(&v, f), 0o660);
    assert_eq!(errno(v.vfs.access(&user(10), f, 6)), 0);
    assert_eq!(errno(v.vfs.access(&user(11), f, 4)), libc::EACCES);
    chmod(&v, f, 0o640);
    assert_eq!(errno(v.vfs.access(&user(10), f, 2)), libc::EACCES, "the mask follows chmod");
    let plain = acl(&[(1, 7, no), (4, 5, no), (0x20, 1, no)]);
    v.vfs.set_xattr(&ROOT_USER(), f, b"system.posix_acl_access", &plain, SetMode::Any).unwrap();
    assert_eq!(perm(&v, f), 0o751);
    assert_eq!(errno(v.vfs.get_xattr(&ROOT_USER(), f, b"system.posix_acl_access")), libc::ENODATA);
    assert_eq!(
        errno(v.vfs.set_xattr(&ROOT_USER(), f, b"system.posix_acl_access", b"junk", SetMode::Any)),
        libc::EINVAL
    );
    v.vfs.close().unwrap();
}

#[test]
fn default_acls_are_inherited_instead_of_the_umask() {
    let v = Volume::live(64);
    let d = v.mkdir(ROOT, "d");
    let no = u32::MAX;
    let list = acl(&[(1, 7, no), (2, 7, 10), (4, 5, no), (0x10, 7, no), (0x20, 0, no)]);
    v.vfs.set_xattr(&ROOT_USER(), d, b"system.posix_acl_default", &list, SetMode::Any).unwrap();
    let new = NewFile { umask: 0o077, ..regular(0o666) };
    let f = v.vfs.create(&ROOT_USER(), d, name("f"), &new).unwrap();
    assert_eq!(f.attr.perm, 0o660);
    assert_eq!(errno(v.vfs.access(&user(10), f.ino, 6)), 0);
    let s = v.vfs.create(&ROOT_USER(), d, name("s"), &directory(0o777)).unwrap().ino;
    assert_eq!(v.vfs.get_xattr(&ROOT_USER(), s, b"system.posix_acl_default").unwrap(), list);
    let e = v.vfs.create(&ROOT_USER(), ROOT, name("e"), &new).unwrap();
    assert_eq!(e.attr.perm, 0o600);
    v.vfs.close().unwrap();
}

/// Counts inodes and the links of the root, and finds out whether a name is there, of a volume and of what a power cut
/// would leave of it.
fn trace(v: &Volume, n: &str) -> (usize, u32, i32, usize) {
    v.vfs.run_background_step();
    v.vfs.sync().unwrap();
    (
        v.vfs.format().inodes(),
        v.vfs.format().put_attr(ROOT).nlink,
        find(v, ROOT, n),
        v.after_power_cut().format().inodes(),
    )
}

#[test]
fn an_inode_that_finds_no_room_for_its_name_is_taken_back() {
    let v = Volume::live(64);
    v.create(ROOT, "f");
    let before = trace(&v, "new");
    let make = |kind| {
        let target = (kind == FileKind::Symlink).then_some(&b"target"[..]);
        let new = NewFile { kind, target, ..regular(0o700) };
        errno(v.vfs.create(&ROOT_USER(), ROOT, name("new"), &new))
    };
    for kind in [FileKind::Regular, FileKind::Directory, FileKind::Symlink, FileKind::Fifo] {
        v.vfs.format().cramped.store(true, Ordering::Relaxed);
        assert_eq!(make(kind), libc::ENOSPC);
        assert_eq!(rename(&v, (ROOT, "f"), (ROOT, "new"), RenameMode::Whiteout), libc::ENOSPC);
        assert_eq!(trace(&v, "new"), before, "{kind:?}");
    }
    v.vfs.format().cramped.store(false, Ordering::Relaxed);
    assert_eq!(make(FileKind::Directory), 0);
    assert_eq!((find(&v, ROOT, "f"), nlink(&v, ROOT)), (0, before.1 + 1));
    v.vfs.close().unwrap();
}

#[test]
fn an_inode_that_finds_no_room_for_its_acls_is_taken_back() {
    let v = Volume::live(64);
    let d = v.mkdir(ROOT, "d");
    v.create(d, "f");
    let no = u32::MAX;
    let list = acl(&[(1, 7, no), (2, 7, 10), (4, 5, no), (0x10, 7, no), (0x20, 0, no)]);
    v.vfs.set_xattr(&ROOT_USER(), d, b"system.posix_acl_default", &list, SetMode::Any).unwrap();
    let before = trace(&v, "new");
    v.vfs.format().cramped.store(true, Ordering::Relaxed);
    assert_eq!(errno(v.vfs.create(&ROOT_USER(), d, name("new"), &directory(0o777))), libc::ENOSPC);
    assert_eq!(errno(v.vfs.tmpfile(&ROOT_USER(), d, &regular(0o666))), libc::ENOSPC);
    assert_eq!(rename(&v, (d, "f"), (ROOT, "new"), RenameMode::Whiteout), libc::ENOSPC);
    assert_eq!(trace(&v, "new"), before);
    assert_eq!((find(&v, d, "f"), find(&v, d, "new"), nlink(&v, d)), (0, libc::ENOENT, 2));
    v.vfs.close().unwrap();
}

#[test]
fn a_link_that_finds_no_room_for_its_name_is_not_counted() {
    let v = Volume::live(64);
    let f = v.create(ROOT, "f");
    let t = v.vfs.tmpfile(&ROOT_USER(), ROOT, &regular(0o600)).unwrap().ino;
    v.vfs.format().cramped.store(true, Ordering::Relaxed);
    for (ino, links) in [(f, 1), (t, 0)] {
        let before = v.vfs.stat(ino).unwrap().attr;
        assert_eq!(errno(v.vfs.link(&ROOT_USER(), ino, ROOT, name("new"))), libc::ENOSPC);
        let after = v.vfs.stat(ino).unwrap().attr;
        assert_eq!((after.nlink, after.ctime), (links, before.ctime));
        v.vfs.sync().unwrap();
        assert_eq!(v.vfs.format().put_attr(ino).nlink, links);
    }
    v.vfs.format().cramped.store(false, Ordering::Relaxed);
    v.vfs.link(&ROOT_USER(), t, ROOT, name("new")).unwrap();
    assert_eq!((nlink(&v, t), find(&v, ROOT, "new")), (1, 0));
    v.vfs.close().unwrap();
}

#[test]
fn numbers_are_reused_only_when_nobody_holds_them() {
    let v = Volume::live(64);
    let a = v.create(ROOT, "a");
    v.vfs.unlink(&ROOT_USER(), ROOT, name("a")).unwrap();
    v.vfs.run_background_step();
    let b = v.create(ROOT, "b");
    assert_ne!(a, b);
    v.vfs.forget(a, 1);
    v.vfs.run_background_step();
    assert_eq!(v.create(ROOT, "c"), a);
    v.vfs.close().unwrap();
}

#[test]
fn decoded_inodes_are_evicted_and_come_back() {
    let v = Volume::new(4096, Options { cache_bytes: 256 << 10, ..options() }, moafs_runtime::Live::new());
    let inos: Vec<Ino> = (0..1000)
        .map(|i| {
            let f = v.create(ROOT, &format!("f{i}"));
            v.vfs.set_attr(&ROOT_USER(), f, &SetAttr { uid: Some(i), ..SetAttr::default() }).unwrap();
            f
        })
        .collect();
    assert!(v.vfs.counters().inodes_now < 400, "{} inodes", v.vfs.counters().inodes_now);
    for (i, ino) in inos.iter().enumerate() {
        assert_eq!(v.vfs.stat(*ino).unwrap().attr.uid, i as u32);
    }
    v.vfs.close().unwrap();
}

#[test]
fn a_read_only_volume_refuses_changes() {
    let v = Volume::new(64, Options { read_only: true, ..options() }, moafs_runtime::Live::new());
    assert_eq!(errno(v.vfs.create(&ROOT_USER(), ROOT, Name::new(b"x").unwrap(), &regular(0o644))), libc::EROFS);
    assert_eq!(errno(v.vfs.access(&ROOT_USER(), ROOT, 2)), libc::EROFS);
    v.vfs.sync().unwrap();
    v.vfs.close().unwrap();
}

#[test]
fn a_closed_volume_answers_with_an_error() {
    let v = Volume::live(64);
    let other = v.vfs.clone();
    v.vfs.close().unwrap();
    assert!(other.stat(ROOT).is_err());
    other.close().unwrap();
}
