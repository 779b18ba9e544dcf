//! Large reads behind a kernel's cache: straight from the device, and as correct as through our cache.

use std::sync::{Arc, Mutex, OnceLock};

use crate::common::*;
use moafs_disk::probe::fault::{EVERYWHERE, Harm, Rule, Victims, When};
use moafs_disk::{Disk, DiskError, MemDisk, ReadPart, SharedDisk, Tag};
use moafs_runtime::Live;
use moafs_vfs::Credentials;
use moafs_vfs::Vfs;
use moafs_vfs::api::{Allocate, CacheRole, Options};

const LARGE: usize = 64 << 10;

fn behind() -> Options {
    Options { role: CacheRole::Behind, ..options() }
}

/// Writes a file of `len` bytes to the device, and drops it from the cache.
fn stored(v: &Volume, len: usize) -> (moafs_vfs::types::Ino, Vec<u8>) {
    let f = v.create(ROOT, "f");
    let data = pattern(3, len);
    v.write(f, 0, &data);
    v.vfs.sync().unwrap();
    v.vfs.shrink(0);
    assert_eq!(v.vfs.counters().cached_bytes, 0);
    (f, data)
}

#[test]
fn a_large_read_leaves_the_cache_alone() {
    let v = Volume::new(4096, behind(), Live::new());
    let (f, data) = stored(&v, 5 * LARGE + 100);
    assert_eq!(v.read(f, 0, data.len() + BLOCK), data);
    let after = v.vfs.counters();
    assert_eq!(after.cached_bytes, 0);
    assert_eq!(after.bypass_blocks, data.len().div_ceil(BLOCK) as u64);
    assert_eq!(after.bypass_blocks, after.read_misses);
    // Without room in `into` for the whole last block, that block is cached.
    assert_eq!(v.read(f, 0, data.len()), data);
    assert_eq!(v.vfs.counters().cached_bytes, BLOCK as u64);
    v.vfs.close().unwrap();
}

#[test]
fn small_reads_and_reads_within_blocks_are_cached() {
    let v = Volume::new(4096, behind(), Live::new());
    let (f, data) = stored(&v, 5 * LARGE);
    assert_eq!(v.read(f, 0, LARGE / 2), data[..LARGE / 2]);
    assert_eq!(v.read(f, (LARGE + 1) as u64, 2 * LARGE), data[LARGE + 1..][..2 * LARGE]);
    assert_eq!(v.vfs.counters().bypass_blocks, 0);
    v.vfs.close().unwrap();
}

#[test]
fn without_a_cache_above_ours_is_used() {
    let v = Volume::new(4096, options(), Live::new());
    let (f, data) = stored(&v, 5 * LARGE);
    assert_eq!(v.read(f, 0, data.len()), data);
    assert_eq!((v.vfs.counters().bypass_blocks, v.vfs.counters().cached_bytes), (0, data.len() as u64));
    v.vfs.close().unwrap();
}

#[test]
fn what_is_not_written_back_yet_is_seen() {
    let v = Volume::new(4096, behind(), Live::new());
    let (f, mut data) = stored(&v, 5 * LARGE);
    v.write(f, (2 * LARGE) as u64 + 7, &[0xAB; 3000]);
    data[2 * LARGE + 7..][..3000].fill(0xAB);
    assert_eq!(v.read(f, 0, data.len()), data);
    assert!(v.vfs.counters().bypass_blocks > 0);
    v.vfs.close().unwrap();
}

#[test]
fn holes_are_zeros() {
    let v = Volume::new(4096, behind(), Live::new());
    let (f, mut data) = stored(&v, 5 * LARGE);
    v.vfs.allocate(&Credentials::root(), f, LARGE as u64, LARGE as u64, Allocate::Punch).unwrap();
    data[LARGE..2 * LARGE].fill(0);
    v.vfs.shrink(0);
    assert_eq!(v.read(f, 0, data.len()), data);
    assert!(v.vfs.counters().bypass_blocks > 0);
    v.vfs.close().unwrap();
}

#[test]
fn a_failed_read_is_reported_and_may_be_tried_again() {
    let v = Volume::new(4096, behind(), Live::new());
    let (f, data) = stored(&v, 5 * LARGE);
    v.fault.set(vec![Rule::new(Victims::Reads(EVERYWHERE), When::Nth(1), Harm::Error)]);
    let mut bytes = vec![0; data.len()];
    let failed = v.vfs.read(f, 0, &mut bytes).unwrap_err();
    assert_eq!(failed.errno(), libc::EIO);
    assert!(failed.to_string().contains(&format!("inode {}", f.0)), "{failed}");
    assert_eq!(v.read(f, 0, data.len()), data);
    v.vfs.close().unwrap();
}

/// A disk whose reads into callers' memory bring garbage, after `meanwhile` ran: as if the place that is read had been
/// given to another file.
struct Reused {
    disk: MemDisk,
    meanwhile: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Disk for Reused {
    moafs_disk::forward_to!(disk: limits, submit, wait, make_durable, epoch, durable);

    fn read_into(&self, parts: &mut [ReadPart<'_>], _tag: Tag) -> Result<(), DiskError> {
        parts.iter_mut().for_each(|part| part.into.fill(0xDD));
        if let Some(meanwhile) = self.meanwhile.get() {
            meanwhile();
        }
        Ok(())
    }
}

#[test]
fn bytes_of_a_place_that_was_given_up_meanwhile_are_not_shown() {
    let disk = Arc::new(Reused { disk: MemDisk::new(32768), meanwhile: OnceLock::new() });
    let shared: SharedDisk = Arc::clone(&disk) as _;
    let vfs: Vfs<Toy> = Vfs::new(Toy::new(Arc::clone(&shared)), shared, Live::new(), behind());
    let f = vfs.create(&Credentials::root(), ROOT, name("f"), &regular(0o644)).unwrap().ino;
    let data = pattern(3, 4 * LARGE);
    vfs.write(&Credentials::root(), f, 0, &data, false).unwrap();
    vfs.sync().unwrap();
    vfs.shrink(0);
    // Some blocks of the file are about to be placed; a reader does not ask which.
    vfs.write(&Credentials::root(), f, data.len() as u64, b"more", false).unwrap();
    let (writer, written) = (vfs.clone(), Mutex::new(false));
    let write_back = move || {
        let mut written = written.lock().unwrap();
        if !std::mem::replace(&mut *written, true) {
            writer.sync().unwrap();
        }
    };
    assert!(disk.meanwhile.set(Box::new(write_back)).is_ok());
    let first = read(&vfs, f, 0, LARGE);
    assert!(first == data[..LARGE], "the device's bytes were not to be trusted");
    assert_eq!(vfs.counters().bypass_blocks, 0);
    // No block moves any more: the bytes of this disk are taken as they are.
    assert_eq!(read(&vfs, f, (2 * LARGE) as u64, LARGE), vec![0xDD; LARGE]);
    vfs.close().unwrap();
}
