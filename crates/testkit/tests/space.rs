//! Space on real formats: random writes into a sparse file, as virtual machines and databases make them, fill the
//! volume before they are refused, and accepted writes can be read.

use std::collections::BTreeSet;
use std::sync::Arc;

use moafs_disk::mem::MemDisk;
use moafs_testkit::family::{self, Ext, Ext4, F2fs, Family};
use moafs_testkit::image::Geometry;
use moafs_testkit::judges::missing;
use moafs_testkit::tests_of;
use moafs_testkit::volume::Mounter;
use moafs_vfs::api::{NewFile, SetAttr};
use moafs_vfs::types::{FileKind, Ino, Name};
use moafs_vfs::{Credentials, Format, Vfs};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

tests_of!([ext: Ext, ext4: Ext4, f2fs: F2fs] [random_writes_into_a_sparse_file_fill_the_volume]);

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
