//! The file systems that programs use beside the swap: making one, and placing its files at a
//! wanted position.

use moafs_disk::{Disk, SECTOR};
use moafs_ext::Ext;
use moafs_f2fs::F2fs;
use moafs_runtime::Timestamp;
use moafs_vfs::Format;
use moafs_vfs::swap_space::{Group, SwapSpace, Where};
use moafs_vfs::types::BlockRun;

use crate::error::{LabError, Result};
use crate::log_system::LogMount;
use crate::machine::Mount;
use crate::system::System;
use crate::workload::Client;

/// Blocks of the ext2 volume: those in common use.
const BLOCK_BYTES: u32 = 4096;
/// Bytes per inode, as FreeBSD's newfs: four fragments of 2 KiB.
const BYTES_PER_INODE: u64 = 8 << 10;
const INODE_BYTES: u32 = 128;
const MADE_AT: Timestamp = Timestamp { secs: 1_000_000_000, nanos: 0 };
/// A section of the F2FS volume is one segment.
const SECTION_BLOCKS: u32 = 512;
/// Blocks that are left to the logs while they are moved: four groups.
const LEFT_BLOCKS: u64 = 4 << 15;
/// Directories that fill the rest of the logs' segments, and files in them: each has a node and a
/// block.
const TO_FILL_SEGMENTS: u64 = 600;

/// The directory that programs run in.
pub const HOME: &str = "home";

/// A file system that programs find on the drive.
pub trait TestFileSystem: Mount {
    /// Makes an empty volume of all of `volume`.
    ///
    /// # Errors
    /// Fails if it is too small.
    fn make(&self, volume: &dyn Disk) -> Result<()>;

    /// Makes [`HOME`], so that files made there next lie `position` percent into the volume.
    ///
    /// # Errors
    /// Fails if an operation on the volume fails.
    fn make_home(&self, client: &Client<Self::Format>, position: u64) -> Result<()>;

    /// Returns the segments that swap areas took; `None` where there are no segments.
    fn segments_taken(format: &Self::Format) -> Option<u64>;
}

impl TestFileSystem for System {
    fn make(&self, volume: &dyn Disk) -> Result<()> {
        let mut options = moafs_ext::mkfs::MkfsOptions::new(*b"moafs lab volume", *b"moafs lab hashes", MADE_AT);
        options.block_size = Some(BLOCK_BYTES);
        options.inode_size = INODE_BYTES;
        options.inodes = Some(volume.limits().sectors * SECTOR as u64 / BYTES_PER_INODE);
        moafs_ext::mkfs::mkfs(volume, &options)?;
        Ok(())
    }

    /// Makes [`HOME`] in the wanted group. FFS puts a directory of the first level into a group
    /// drawn at random and those below near their parent. Ours takes the emptiest group; so
    /// directories are made, and removed, until the wanted group's turn has come.
    fn make_home(&self, client: &Client<Ext>, position: u64) -> Result<()> {
        let groups = client.vfs().format().swap_space().map_or(0, |room| u64::from(room.groups()));
        let turns = 1..groups * position / 100;
        for turn in turns.clone() {
            client.make_dir(client.root(), &format!("turn{turn}"))?;
        }
        client.make_dir(client.root(), HOME)?;
        for turn in turns {
            client.remove_dir(client.root(), &format!("turn{turn}"))?;
        }
        Ok(())
    }

    fn segments_taken(_format: &Ext) -> Option<u64> {
        None
    }
}

impl TestFileSystem for LogMount {
    fn make(&self, volume: &dyn Disk) -> Result<()> {
        moafs_f2fs::mkfs::mkfs(volume, &moafs_f2fs::mkfs::MkfsOptions::new(*b"moafs lab volume", MADE_AT))?;
        Ok(())
    }

    /// Makes [`HOME`] at the wanted position. Logs go through a volume from its start to its end
    /// and begin again, so those of a volume in use are anywhere. Here nearly everything but the
    /// wanted place is taken away while the logs fill their first segments.
    fn make_home(&self, client: &Client<F2fs>, position: u64) -> Result<()> {
        let failed = || LabError::volume("moving the logs");
        let blocks = client.vfs().stat_fs().available.saturating_sub(LEFT_BLOCKS);
        let room = client.vfs().swap_space(blocks).map_err(failed())?;
        let room = room.ok_or_else(|| LabError::Swap("this volume has no room to take".to_owned()))?;
        room.reserve(blocks).map_err(failed())?;
        let wanted = u64::from(room.groups()) * position / 100;
        let taken = take_all_but(&*room, wanted as u32).map_err(failed())?;
        fill_segments(client)?;
        client.make_dir(client.root(), HOME)?;
        client.sync()?;
        taken.into_iter().for_each(|run| room.give(run));
        room.release(blocks);
        Ok(())
    }

    fn segments_taken(format: &F2fs) -> Option<u64> {
        Some(format.counters().swap_segments)
    }
}

/// Takes as many blocks as are reserved, outside the group `wanted`. Those just to the right of it
/// are taken last: a log goes to the next free section to its right.
fn take_all_but(room: &dyn SwapSpace, wanted: u32) -> moafs_vfs::Result<Vec<BlockRun>> {
    let mut taken = Vec::new();
    for group in (0..wanted).rev().chain((wanted + 1..room.groups()).rev()).map(Group) {
        // Takes the group in one run; if logs lie in it, takes its free sections.
        for blocks in [room.group_blocks(group), SECTION_BLOCKS] {
            while let Some(run) = room.take(Where::EndOf(group), blocks, 1)? {
                taken.push(run);
            }
        }
    }
    Ok(taken)
}

/// Makes and removes files and directories, until every log they use has begun another segment.
fn fill_segments(client: &Client<F2fs>) -> Result<()> {
    for number in 0..TO_FILL_SEGMENTS {
        let dir = client.make_dir(client.root(), &format!("d{number}"))?;
        client.make_file(dir, "f", u64::from(BLOCK_BYTES))?;
        client.close(dir);
    }
    client.sync()?;
    for number in 0..TO_FILL_SEGMENTS {
        let dir = client.open(client.root(), &format!("d{number}"))?;
        client.unlink(dir, "f")?;
        client.remove_dir(client.root(), &format!("d{number}"))?;
        client.close(dir);
    }
    // Files without a name are freed by background steps.
    client.vfs().run_background_step();
    client.sync()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use moafs_disk::{MemDisk, SharedDisk};
    use moafs_vfs::Options;

    use super::*;
    use crate::contentless::Contentless;
    use crate::layout::VolumeLayout;
    use crate::machine::without_time;

    #[test]
    fn a_log_writes_where_it_is_wanted_and_nothing_stays_taken() {
        let mount = LogMount(moafs_f2fs::OpenOptions::default());
        for position in [0, 25, 50, 75] {
            let disk = Arc::new(Contentless::new(MemDisk::new(4 << 21)));
            mount.make(&*disk).unwrap();
            without_time(disk as SharedDisk, &mount, Options::default(), |client| {
                let free = client.vfs().stat_fs().free;
                mount.make_home(client, position)?;
                // The root directory may have grown, so fewer blocks are free.
                let less = free.saturating_sub(client.vfs().stat_fs().free);
                assert!(less <= 64, "{position} %: {less} blocks less");
                let ino = client.make_file(client.root(), "file", 64 << 10)?;
                client.sync()?;
                let start = VolumeLayout::of(client.vfs())?.files[&ino].runs[0].1.start.0;
                let percent = start * 100 / ((4 << 30) / u64::from(BLOCK_BYTES));
                assert!((position..position + 5).contains(&percent), "{position} %: {percent} %");
                Ok(())
            })
            .unwrap();
        }
    }
}
