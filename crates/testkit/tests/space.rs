//! Space on real formats: random writes into a sparse file, as virtual machines and databases make them, fill the
//! volume before they are refused, and accepted writes can be read. What a call takes that finds no room for the rest
//! comes back.

use std::collections::BTreeSet;
use std::sync::Arc;

use moafs_disk::mem::MemDisk;
use moafs_testkit::family::{self, Ext, Ext4, F2fs, Family};
use moafs_testkit::image::Geometry;
use moafs_testkit::judges::missing;
use moafs_testkit::tests_of;
use moafs_testkit::volume::Mounter;
use moafs_vfs::api::{NewFile, SetAttr};
use moafs_vfs::types::{FileKind, Ino, Name, SetMode};
use moafs_vfs::{Credentials, Format, Vfs};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

tests_of!([ext: Ext, ext4: Ext4, f2fs: F2fs] [random_writes_into_a_sparse_file_fill_the_volume, a_directory_without_room_for_its_acls_leaves_nothing]);

/// Bytes that one call writes.
const PIECE: u64 = 4096;
/// Multiple of the volume's size at which many pieces share a map block: nearly all space is for data.
const DENSE: u64 = 2;
/// Multiple of the volume's size at which map blocks are still missing when the volume is nearly full.
const SCATTERED: u64 = 256;

fn name() -> &'static Name {
    Name::new(b"image").expect("a legal name")
}

fn sparse_file<F: Format>(vfs: &Vfs<F>, size: u64) -> Ino {
    let new = NewFile { kind: FileKind::Regular, perm: 0o600, umask: 0, rdev: 0, target: None };
    let ino = vfs.create(&Credentials::root(), vfs.shape().root, name(), &new).expect("it can be made").ino;
    vfs.set_attr(&Credentials::root(), ino, &SetAttr { size: Some(size), ..SetAttr::default() })
        .expect("it can be extended");
    ino
}

/// Returns the bytes of a written piece, none of them zero.
fn piece(at: u64) -> Vec<u8> {
    vec![1 + (at % 251) as u8; PIECE as usize]
}

/// Writes pieces at random places until there is no space, and returns the places.
fn fill<F: Format>(vfs: &Vfs<F>, ino: Ino, pieces: u64, rng: &mut Pcg64Mcg) -> BTreeSet<u64> {
    let fsync_every = [0, 200, 37][rng.random_range(0..3)];
    let mut written = BTreeSet::new();
    while (written.len() as u64) < pieces {
        let at = rng.random_range(0..pieces);
        match vfs.write(&Credentials::root(), ino, at * PIECE, &piece(at), false) {
            Ok(_) => written.insert(at),
            Err(error) => {
                assert_eq!(error.errno(), libc::ENOSPC, "{error}");
                return written;
            }
        };
        if fsync_every > 0 && written.len() % fsync_every == 0 {
            vfs.fsync(ino, false).expect("what was accepted finds its place");
        }
    }
    panic!("the volume has room for everything")
}

/// Fills a volume through a file that is `times` as large as it, and empties it.
fn fill_and_empty<F: Family>(geometry: &Geometry, disk: Arc<MemDisk>, times: u64, seed: u64) {
    let (mounter, mut rng) = (F::mounter(seed), Pcg64Mcg::seed_from_u64(seed));
    let vfs = mounter.mount(disk.clone(), false).expect("it mounts");
    let (before, size) = (vfs.stat_fs(), times * geometry.bytes());
    let ino = sparse_file(&vfs, size);
    let written = fill(&vfs, ino, size / PIECE, &mut rng);
    let case = format!("{}, {times} times its size, seed {seed}: {} pieces were written", geometry.name, written.len());
    let free = vfs.format().space().free_blocks;
    assert!(free * 100 < before.blocks, "{case}, {free} blocks are free");
    if times == DENSE {
        let share = written.len() as u64 * PIECE * 100 / (before.free * u64::from(before.block_size));
        assert!(share >= 90, "{case}, {share} % of what was free");
    }
    vfs.close().unwrap_or_else(|error| panic!("{case}; unmount: {error}"));
    let vfs = mounter.mount(disk, false).expect("it mounts again");
    let mut found = vec![0; PIECE as usize];
    for at in written {
        vfs.read(ino, at * PIECE, &mut found).expect("it can be read");
        assert_eq!(found, piece(at), "{case}; piece {at}");
    }
    vfs.unlink(&Credentials::root(), vfs.shape().root, name()).expect("it can be removed");
    vfs.sync().expect("a sync");
    assert_eq!(vfs.stat_fs().free, before.free, "{case}");
    vfs.close().expect("it unmounts");
}

fn random_writes_into_a_sparse_file_fill_the_volume<F: Family>() {
    for geometry in F::SPARSE {
        for (seed, times) in [(0, DENSE), (1, DENSE), (2, DENSE), (3, SCATTERED), (4, SCATTERED)] {
            match family::fresh::<F>(geometry) {
                Some(disk) => fill_and_empty::<F>(geometry, Arc::new(disk), times, seed),
                None => missing(geometry.name, "the tool that makes it is not installed"),
            }
        }
    }
}

/// Returns an access control list with entries for so many users, in the form of the system call.
fn acl(users: u32) -> Vec<u8> {
    let none = u32::MAX;
    let named = (0..users).map(|uid| (2u16, uid));
    let entries = [(1, none)].into_iter().chain(named).chain([(4, none), (0x10, none), (0x20, none)]);
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(7u16.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

/// A new directory inherits its parent's list twice: for itself, and for what is made in it. A list that takes more
/// than half of the space for attributes fits the parent only.
fn a_directory_without_room_for_its_acls_leaves_nothing<F: Family>() {
    for geometry in family::geometries::<F>(F::CRASH).iter().filter(|geometry| F::keeps_xattrs(geometry)) {
        let Some(disk) = family::fresh::<F>(geometry) else {
            missing(geometry.name, "the tool that makes it is not installed");
            continue;
        };
        let disk = Arc::new(disk);
        let vfs = F::mounter(0).mount(disk.clone(), false).expect("it mounts");
        let (root, user, block) = (vfs.shape().root, Credentials::root(), vfs.shape().block_size);
        let new = |kind| NewFile { kind, perm: 0o777, umask: 0, rdev: 0, target: None };
        let dir = vfs.create(&user, root, name(), &new(FileKind::Directory)).expect("a directory").ino;
        // An entry takes eight bytes.
        let list = acl(block / 8 * 3 / 4);
        vfs.set_xattr(&user, dir, b"system.posix_acl_default", &list, SetMode::Any).expect("it has room");
        vfs.sync().expect("a sync");
        let (before, links) = (vfs.stat_fs(), vfs.stat(dir).expect("it is there").attr.nlink);
        for synced in [false, true, false] {
            let made = vfs.create(&user, dir, name(), &new(FileKind::Directory));
            assert_eq!(made.expect_err("there is no room").errno(), libc::ENOSPC, "{}", geometry.name);
            if synced {
                vfs.sync().expect("a sync");
            }
            vfs.run_background_step();
        }
        vfs.sync().expect("a sync");
        let after = vfs.stat_fs();
        assert_eq!((after.free, after.free_inodes), (before.free, before.free_inodes), "{}", geometry.name);
        assert_eq!(vfs.stat(dir).expect("it is there").attr.nlink, links, "{}", geometry.name);
        vfs.create(&user, dir, name(), &new(FileKind::Regular)).expect("a file inherits one list");
        vfs.close().expect("it unmounts");
        assert_eq!(F::findings(&disk), Vec::<String>::new(), "{}", geometry.name);
        if let Some(verdict) = family::look::<F>(&disk).expect("a scratch image") {
            assert!(verdict.spotless, "{}: {}", geometry.name, verdict.text);
        }
    }
}
