//! Notice of files whose sectors are not what the front was told.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::common::*;
use moafs_runtime::virt::Virtual;
use moafs_vfs::Credentials;
use moafs_vfs::api::{Allocate, SetAttr, Unseen};
use moafs_vfs::types::{Ino, SetMode};
use parking_lot::Mutex;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// Makes a volume whose files take more blocks than can be foreseen, and the list of files of which notice was given.
fn watched() -> (Volume, Arc<Mutex<Vec<Ino>>>) {
    let v = Volume::live(4096);
    v.vfs.format().unforeseen.store(true, Ordering::Relaxed);
    let named = Arc::new(Mutex::new(Vec::new()));
    let noting = Arc::clone(&named);
    v.vfs.watch_unseen(move |unseen| match unseen {
        Unseen::Attributes(ino) => noting.lock().push(ino),
        Unseen::Name(..) => unreachable!("no call fails"),
    });
    (v, named)
}

fn sectors(v: &Volume, ino: Ino) -> u64 {
    v.vfs.stat(ino).unwrap().sectors
}

#[test]
fn a_file_that_took_more_blocks_than_was_told_is_named_once_until_the_front_has_asked() {
    let (v, named) = watched();
    let (f, small) = (v.create(ROOT, "f"), v.create(ROOT, "small"));
    v.write(f, 0, &pattern(1, 8 * BLOCK));
    v.write(small, 0, &pattern(2, BLOCK));
    assert_eq!((sectors(&v, f), sectors(&v, small)), (16, 2));
    v.vfs.sync().unwrap();
    assert_eq!(*named.lock(), [f], "the other file took what was told");
    assert!(v.vfs.has_outdated_sectors(f) && !v.vfs.has_outdated_sectors(small));
    v.vfs.sync().unwrap();
    assert_eq!(*named.lock(), [f]);
    assert_eq!(sectors(&v, f), 20);
    assert!(!v.vfs.has_outdated_sectors(f));
    // Told, then written back, again.
    v.write(f, 8 * BLOCK as u64, &pattern(3, 4 * BLOCK));
    assert_eq!(sectors(&v, f), 28);
    v.vfs.fsync(f, false).unwrap();
    assert_eq!(*named.lock(), [f, f]);
    v.vfs.close().unwrap();
}

#[test]
fn a_file_is_not_named_if_the_front_asks_anew_by_itself_or_has_forgotten_it() {
    let (v, named) = watched();
    let (written, cut, held) = (v.create(ROOT, "written"), v.create(ROOT, "cut"), v.create(ROOT, "held"));
    let forgotten = v.create(ROOT, "forgotten");
    for ino in [written, cut, held, forgotten] {
        v.write(ino, 0, &pattern(ino.0, 8 * BLOCK));
        assert_eq!(sectors(&v, ino), 16);
    }
    v.write(written, 0, &[1]);
    v.vfs.set_attr(&Credentials::root(), cut, &SetAttr { size: Some(3), ..SetAttr::default() }).unwrap();
    v.vfs.forget(forgotten, 1);
    v.vfs.sync().unwrap();
    assert_eq!(*named.lock(), [held]);
    // These change the sectors at once.
    v.vfs.allocate(&Credentials::root(), held, 0, 8 * BLOCK as u64, Allocate::Punch).unwrap();
    v.vfs.copy_range(&Credentials::root(), (written, 0), (cut, 0), 8 * BLOCK as u64).unwrap();
    v.vfs.sync().unwrap();
    assert_eq!((sectors(&v, held), sectors(&v, cut)), (0, 20));
    assert_eq!(*named.lock(), [held]);
    v.vfs.close().unwrap();
}

#[test]
fn the_front_may_keep_what_it_was_told_before_an_inode_left_memory() {
    let (v, _) = watched();
    let f = v.create(ROOT, "f");
    v.write(f, 0, &pattern(1, 8 * BLOCK));
    v.vfs.sync().unwrap();
    let later = v.after_power_cut();
    later.hold(f).unwrap();
    assert!(!later.has_outdated_sectors(f));
    later.format().unforeseen.store(true, Ordering::Relaxed);
    assert!(later.has_outdated_sectors(f));
    later.close().unwrap();
}

#[test]
fn an_answer_that_differs_from_the_one_before_names_the_file() {
    let (v, named) = watched();
    let f = v.create(ROOT, "f");
    v.write(f, 0, &pattern(1, 8 * BLOCK));
    v.vfs.sync().unwrap();
    assert_eq!(sectors(&v, f), 20);
    v.vfs.format().unforeseen.store(false, Ordering::Relaxed);
    assert_eq!(sectors(&v, f), 16);
    assert_eq!(*named.lock(), [f], "the one who asked may not be the one who keeps the answer");
    v.vfs.close().unwrap();
}

#[test]
fn an_extended_attribute_that_changes_the_sectors_names_the_file() {
    let (v, named) = watched();
    let (who, key) = (Credentials::root(), b"user.key");
    let f = v.create(ROOT, "f");
    v.write(f, 0, &pattern(1, 8 * BLOCK));
    v.vfs.sync().unwrap();
    for (unforeseen, told) in [(false, 20), (true, 16)] {
        assert_eq!(sectors(&v, f), told);
        // The format's count changes here as it would by the attribute.
        v.vfs.format().unforeseen.store(unforeseen, Ordering::Relaxed);
        match v.vfs.get_xattr(&who, f, key) {
            Ok(_) => v.vfs.remove_xattr(&who, f, key).unwrap(),
            Err(_) => v.vfs.set_xattr(&who, f, key, b"value", SetMode::Any).unwrap(),
        }
        assert!(v.vfs.has_outdated_sectors(f));
        assert_eq!(named.lock().drain(..).collect::<Vec<_>>(), [f]);
    }
    v.vfs.close().unwrap();
}

#[test]
fn a_call_that_fails_does_not_make_the_front_ask() {
    let (v, named) = watched();
    let f = v.create(ROOT, "f");
    v.write(f, 0, &pattern(1, 8 * BLOCK));
    assert_eq!(sectors(&v, f), 16);
    let all = 8192 * BLOCK as u64;
    v.vfs.allocate(&Credentials::root(), f, 0, all, Allocate::Extend).unwrap_err();
    v.vfs.sync().unwrap();
    assert_eq!(*named.lock(), [f]);
    v.vfs.close().unwrap();
}

/// The sectors that a kernel keeps of a file: it takes no answer to a question that it asked before it dropped what it
/// had.
#[derive(Default)]
struct Kept {
    sectors: Option<u64>,
    dropped: u64,
}

impl Kept {
    fn drop_sectors(&mut self) {
        self.sectors = None;
        self.dropped += 1;
    }
}

#[test]
fn no_order_of_questions_and_write_backs_leaves_the_front_with_wrong_sectors() {
    let (mut kept_some, mut notices) = (0, 0);
    for seed in 0..60 {
        let virt = Virtual::new(Some(seed));
        let rt = virt.rt();
        let (kept, noticed) = virt.run(move || {
            let v = Arc::new(Volume::new(4096, options(), Arc::clone(&rt)));
            v.vfs.format().unforeseen.store(true, Ordering::Relaxed);
            *v.vfs.format().dawdles.lock() = Some(Arc::clone(&rt));
            let f = v.create(ROOT, "f");
            let kept = Arc::new(Mutex::new(Kept::default()));
            let noticed = Arc::new(Mutex::new(0));
            let (keeping, noting) = (Arc::clone(&kept), Arc::clone(&noticed));
            v.vfs.watch_unseen(move |_| {
                keeping.lock().drop_sectors();
                *noting.lock() += 1;
            });
            let spawn = |number: u64| {
                let (v, kept) = (Arc::clone(&v), Arc::clone(&kept));
                let mut rng = Pcg64Mcg::seed_from_u64(seed * 7 + number);
                let act = move || {
                    for _ in 0..20 {
                        let pause = Duration::from_micros(rng.random_range(0..3000));
                        moafs_runtime::sleep_until(&*v.rt, v.rt.now() + pause);
                        match rng.random_range(0..6) {
                            0 => {
                                let at = rng.random_range(0..100) * BLOCK as u64;
                                v.write(f, at, &pattern(at, 5 * BLOCK));
                                kept.lock().drop_sectors();
                            }
                            1 => v.vfs.fsync(f, false).unwrap(),
                            2 => v.vfs.sync().unwrap(),
                            _ => {
                                let dropped = kept.lock().dropped;
                                let told = sectors(&v, f);
                                let mut kept = kept.lock();
                                if kept.dropped == dropped {
                                    // Any other answer now is older.
                                    kept.drop_sectors();
                                    kept.sectors = Some(told);
                                }
                            }
                        }
                    }
                };
                rt.spawn("client", Box::new(act))
            };
            let clients: Vec<_> = (0..4).map(spawn).collect();
            clients.iter().for_each(|client| client.join(&*rt));
            v.vfs.sync().unwrap();
            let kept = kept.lock().sectors;
            let there = sectors(&v, f);
            assert!(kept.is_none_or(|kept| kept == there), "seed {seed}: {kept:?} sectors are kept of {there}");
            let noticed = *noticed.lock();
            drop(clients);
            Arc::into_inner(v).expect("the clients have ended").vfs.close().unwrap();
            (kept.is_some(), noticed)
        });
        kept_some += u32::from(kept);
        notices += noticed;
    }
    assert!(kept_some > 10 && notices > 100, "{kept_some} seeds kept any, {notices} notices: the test tests nothing");
}
