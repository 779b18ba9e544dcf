//! Changes of the superblock while the volume is mounted.

use moafs_disk::{Kind, SECTOR};
use moafs_vfs::Result;

use super::volume::Ext;
use crate::format::superblock::{RoCompat, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET};
use crate::format::{Sealed, Superblock};
use crate::meta::Level;

impl Ext {
    /// Changes the superblock. Returns the level at which the change is on disk.
    pub(super) fn change_superblock(&self, edit: impl FnOnce(&mut Superblock)) -> Result<Level> {
        let (no, offset) = self.superblock_at();
        let block = self.meta.get(no, Kind::Superblock)?;
        block.holds(Sealed::Superblock);
        let mut superblock = self.superblock.lock();
        edit(&mut superblock);
        let bytes = superblock.as_bytes();
        let mut level = Level::NONE;
        for at in (0..SUPERBLOCK_BYTES).step_by(SECTOR) {
            let part = &bytes[at..at + SECTOR];
            let record = offset + at..offset + at + SECTOR;
            level = level.max(self.meta.change(&block, record, Level::NONE, |bytes| bytes.copy_from_slice(part)));
        }
        Ok(level)
    }

    /// Changes the superblock and writes it, durably, beside the journal: what says whether the journal has to be
    /// replayed cannot be in it. Only while no op runs.
    pub(super) fn write_superblock(&self, edit: impl FnOnce(&mut Superblock)) -> Result<()> {
        let (no, offset) = self.superblock_at();
        let block = self.meta.get(no, Kind::Superblock)?;
        block.holds(Sealed::Superblock);
        let bytes = {
            let mut superblock = self.superblock.lock();
            edit(&mut superblock);
            *superblock.as_bytes()
        };
        let edit = |block: &mut [u8]| block[offset..offset + SUPERBLOCK_BYTES].copy_from_slice(&bytes);
        let written = self.meta.wait_for_host(|| self.meta.write_through(&block, edit));
        self.health.watch(written)
    }

    /// Returns the time in seconds, as the superblock stores it.
    pub(super) fn now_secs(&self) -> u32 {
        self.rt.timestamp().secs.clamp(0, u32::MAX.into()) as u32
    }

    /// Sets the feature for files of 2 GiB and more: the volume must have it before a file is that long.
    pub(super) fn note_large_file(&self) -> Result<Level> {
        self.note_feature(
            |superblock| superblock.ro_compat().contains(RoCompat::LARGE_FILE),
            |superblock| superblock.set_ro_compat(superblock.ro_compat() | RoCompat::LARGE_FILE),
        )
    }

    /// Adds a feature to the superblock, which becomes revision 1 for that, unless the feature is
    /// set already. Returns the level at which it is on disk: an inode that uses the feature waits
    /// for it, also if another op added it.
    pub(super) fn note_feature(
        &self,
        has: impl Fn(&Superblock) -> bool,
        add: impl FnOnce(&mut Superblock),
    ) -> Result<Level> {
        let (no, offset) = self.superblock_at();
        let block = self.meta.get(no, Kind::Superblock)?;
        let has = has(&self.superblock.lock());
        if !has {
            self.change_superblock(|superblock| {
                superblock.raise_revision();
                add(superblock);
            })?;
        }
        // Revision and features lie in the first sector.
        Ok(block.pending(offset))
    }

    /// Returns the block that holds the superblock, and the superblock's first byte in it.
    pub(super) fn superblock_at(&self) -> (u64, usize) {
        let size = u64::from(self.geo.block_size);
        (SUPERBLOCK_OFFSET / size, (SUPERBLOCK_OFFSET % size) as usize)
    }

    pub(super) fn store_totals(&self) -> Result<()> {
        let (blocks, inodes) = self.alloc.store_counts()?;
        let now = self.now_secs();
        self.change_superblock(|superblock| {
            if superblock.free_blocks() != blocks || superblock.free_inodes() != inodes as u32 {
                superblock.set_free_blocks(blocks);
                superblock.set_free_inodes(inodes as u32);
                superblock.set_wtime(now);
            }
        })
        .map(drop)
    }
}
