//! The drive of saf-…: root partition, swap partition, file system, in this order, as the paper's installation had them.

use std::sync::Arc;

use moafs_disk::model::DriveSpec;
use moafs_disk::{MemDisk, SECTOR, SharedDisk};
use moafs_ext::mkfs::{MkfsOptions, mkfs};
use moafs_runtime::{Timestamp, Virtual};
use moafs_vfs::{Options, Vfs};

use crate::contentless::Contentless;
use crate::cpu::Cpu;
use crate::error::{LabError, Result};
use crate::machine::Mount;
use crate::system::System;
use crate::window::Window;
use crate::workload::Client;

/// Where the swap partition begins: behind a root partition of 512 MB.
pub const SWAP_START: u64 = 1_000_000;
/// The swap partition: 931 MB (of 2^20 bytes).
pub const SWAP_SECTORS: u64 = 931 << 11;
/// Where the file system begins. It goes to the drive's end.
pub const VOLUME_START: u64 = SWAP_START + SWAP_SECTORS;
/// The directory that programs run in.
pub const HOME: &str = "home";

/// Blocks of the volume: those of ext2 in common use.
const BLOCK_BYTES: u32 = 4096;
/// An inode for so many bytes, as FreeBSD's newfs: four fragments of 2 KiB.
const BYTES_PER_INODE: u64 = 8 << 10;
const INODE_BYTES: u32 = 128;
const MADE_AT: Timestamp = Timestamp { secs: 1_000_000_000, nanos: 0 };
/// Memory for the cache while files are prepared.
const CACHE_BYTES: usize = 256 << 20;

/// Partitions of the drive `disk`: (swap, volume).
pub fn partitions(disk: &SharedDisk) -> (SharedDisk, SharedDisk) {
    let window = |start, sectors| Arc::new(Window::new(Arc::clone(disk), start, sectors)) as SharedDisk;
    let sectors = disk.limits().sectors;
    (window(SWAP_START, SWAP_SECTORS), window(VOLUME_START, sectors - VOLUME_START))
}

/// A drive with a new file system, whose directory [`HOME`] lies `position` percent into it, and what `prepare` made there.
///
/// FFS puts a directory of the first level into a group drawn at random and those below near their parent. Ours takes the emptiest
/// group; so directories are made, and removed, until the wanted group's turn has come.
///
/// # Errors
/// If the drive is too small; as `prepare` fails.
pub fn prepared(
    spec: &DriveSpec,
    position: u64,
    prepare: impl FnOnce(&Client<moafs_ext::Ext>) -> Result<()>,
) -> Result<MemDisk> {
    let sectors = spec.sectors();
    if sectors < 2 * VOLUME_START {
        return Err(LabError::Drive(format!(
            "a drive of {sectors} sectors is too small: partitions of {VOLUME_START} sectors come before its file system"
        )));
    }
    let whole = Arc::new(Contentless::new(MemDisk::new(sectors)));
    let (_, volume) = partitions(&(Arc::clone(&whole) as SharedDisk));
    let mut options = MkfsOptions::new(*b"moafs lab volume", *b"moafs lab hashes", MADE_AT);
    options.block_size = Some(BLOCK_BYTES);
    options.inode_size = INODE_BYTES;
    options.inodes = Some(volume.limits().sectors * SECTOR as u64 / BYTES_PER_INODE);
    let groups = mkfs(&*volume, &options)?.geometry.groups;
    let runtime = Virtual::new(None);
    runtime.run(|| {
        let format = System::Ffs.open(Arc::clone(&volume), runtime.rt(), 128 << 10);
        let format = format.map_err(LabError::volume("mounting"))?;
        let options = Options { syncer: false, cache_bytes: CACHE_BYTES, ..Options::default() };
        let vfs = Vfs::new(format, volume, runtime.rt(), options);
        let client = Client::new(vfs.clone(), runtime.rt(), Cpu::PENTIUM_III.scaled(0));
        let outcome = make_home(client, u64::from(groups) * position / 100).and_then(|client| prepare(&client));
        vfs.close().map_err(LabError::volume("unmounting"))?;
        outcome
    })?;
    Ok(whole.snapshot())
}

fn make_home(client: Client<moafs_ext::Ext>, group: u64) -> Result<Client<moafs_ext::Ext>> {
    for turn in 1..group {
        client.make_dir(client.root(), &format!("turn{turn}"))?;
    }
    client.make_dir(client.root(), HOME)?;
    for turn in 1..group {
        client.remove_dir(client.root(), &format!("turn{turn}"))?;
    }
    client.sync()?;
    client.within(HOME)
}
