//! The drive of saf-…: root partition, swap partition, file system, in this order, as the paper's
//! installation had them.

use std::sync::Arc;

use moafs_disk::model::DriveSpec;
use moafs_disk::{MemDisk, SharedDisk};
use moafs_vfs::Options;

use super::ground::{HOME, TestFileSystem};
use crate::contentless::Contentless;
use crate::error::{LabError, Result};
use crate::machine::without_time;
use crate::window::Window;
use crate::workload::Client;

/// The swap partition's first sector: behind a root partition of 512 MB.
pub const SWAP_START: u64 = 1_000_000;
/// Size of the swap partition in sectors: 931 MB (of 2^20 bytes).
pub const SWAP_SECTORS: u64 = 931 << 11;
/// First sector of the file system, which goes to the drive's end.
pub const VOLUME_START: u64 = SWAP_START + SWAP_SECTORS;

/// Memory for the cache while files are prepared.
const CACHE_BYTES: usize = 256 << 20;

/// Returns the partitions of the drive `disk`: (swap, volume).
pub fn partitions(disk: &SharedDisk) -> (SharedDisk, SharedDisk) {
    let window = |start, sectors| Arc::new(Window::new(Arc::clone(disk), start, sectors)) as SharedDisk;
    let sectors = disk.limits().sectors;
    (window(SWAP_START, SWAP_SECTORS), window(VOLUME_START, sectors - VOLUME_START))
}

/// Makes a drive with a new file system, whose directory [`HOME`] lies `position` percent into it,
/// and runs `prepare` on it.
///
/// # Errors
/// Fails if the drive is too small, or as `prepare` does.
pub fn prepared<G: TestFileSystem>(
    spec: &DriveSpec,
    ground: &G,
    position: u64,
    prepare: impl FnOnce(&Client<G::Format>) -> Result<()>,
) -> Result<MemDisk> {
    let sectors = spec.sectors();
    if sectors < 2 * VOLUME_START {
        return Err(LabError::Drive(format!(
            "a drive of {sectors} sectors is too small: partitions of {VOLUME_START} sectors come before its file system"
        )));
    }
    let whole = Arc::new(Contentless::new(MemDisk::new(sectors)));
    let (_, volume) = partitions(&(Arc::clone(&whole) as SharedDisk));
    ground.make(&*volume)?;
    let options = Options { cache_bytes: CACHE_BYTES, transfer_bytes_max: 128 << 10, ..Options::default() };
    without_time(volume, ground, options, |client| {
        ground.make_home(client, position)?;
        client.sync()?;
        prepare(&client.another().within(HOME)?)
    })?;
    Ok(whole.snapshot())
}
