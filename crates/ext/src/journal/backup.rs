//! Finding a journal that the superblock does not lead to any more: its number, or its inode, is damaged. The
//! superblock keeps a copy of what the inode leads to (`s_jnl_blocks`).

use std::collections::BTreeMap;
use std::sync::Arc;

use moafs_disk::{Buf, Kind, Lba, Op, Page, Request, SharedDisk, Tag};
use moafs_vfs::{Error, Result};

use super::file::Journal;
use super::overlay::Replayed;
use crate::format::inode::InodeFlags;
use crate::format::superblock::{Compat, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET};
use crate::format::{BlockNo, Geometry, Inode, InodeNo, Sealed, Superblock};
use crate::own_file::{OwnFile, raw_inode, read_block};
use crate::write::write_durably;

/// The magic number at the start of the root of an extent tree.
const TREE_MAGIC: u32 = 0xF30A;

/// A journal that was found again, and the blocks that lead to it.
pub(crate) struct Found {
    pub(crate) journal: Journal,
    pub(crate) superblock: Superblock,
    blocks: BTreeMap<BlockNo, Page>,
}

/// Finds the journal of a volume at its reserved inode, or where the copy of that inode leads to; `None` if there is
/// none, or it is on another device.
///
/// # Errors
/// Device errors.
pub(crate) fn find(disk: &SharedDisk, sb: &Superblock, geo: &Geometry) -> Result<Option<Found>> {
    if !sb.compat().contains(Compat::HAS_JOURNAL) || sb.has_external_journal() {
        return Ok(None);
    }
    let mut superblock = sb.clone();
    superblock.set_journal_inum(InodeNo::JOURNAL.0);
    let mut blocks = BTreeMap::new();
    let journal = match unless_damaged(Journal::open(disk, &superblock, geo))?.flatten() {
        Some(journal) => journal,
        None => match unless_damaged(by_copy(disk, sb, geo))?.flatten() {
            Some((journal, table, page)) => {
                blocks.insert(table, page);
                journal
            }
            None => return Ok(None),
        },
    };
    if sb.journal_inum() != InodeNo::JOURNAL.0 {
        let (block, page) = superblock_page(disk, sb, &superblock, geo)?;
        blocks.insert(block, page);
    }
    Ok(Some(Found { journal, superblock, blocks }))
}

/// Opens the journal through the copy of its inode. Returns it with the block of the inode table that has the inode.
fn by_copy(disk: &SharedDisk, sb: &Superblock, geo: &Geometry) -> Result<Option<(Journal, BlockNo, Page)>> {
    let Some((block, size)) = sb.journal_backup() else { return Ok(None) };
    let ino = InodeNo::JOURNAL;
    let (table, at) = raw_inode(disk, geo, ino)?;
    let mut page = read_block(disk, geo, table, Kind::Inodes)?;
    let slot = &mut page[at..at + geo.inode_size as usize];
    let stored = Inode::parse(slot, geo);
    let has_tree = block[0] & 0xFFFF == TREE_MAGIC;
    let flags = if has_tree { InodeFlags::EXTENTS } else { InodeFlags::empty() };
    let mut inode = Inode {
        mode: 0o100_600,
        links: 1,
        size,
        block,
        flags,
        generation: stored.generation,
        atime: stored.atime,
        mtime: stored.mtime,
        ctime: stored.ctime,
        extra_isize: stored.extra_isize,
        ..Inode::default()
    };
    let file = OwnFile::of(disk, geo, ino, &inode, table)?;
    let owned: u64 = file.blocks().iter().map(|range| range.end - range.start).sum();
    inode.blocks = owned * u64::from(geo.sectors_per_block());
    let journal = Journal::of(disk, geo, file)?;
    slot.fill(0);
    inode.encode_into(slot, geo);
    let sealed = geo.checksums.seal(Sealed::Inode(ino), slot);
    debug_assert!(sealed.is_ok(), "every inode has a place for its checksum");
    Ok(Some((journal, table, page.freeze())))
}

/// Returns the block of the superblock with another one. A checksum that is wrong stays wrong.
fn superblock_page(
    disk: &SharedDisk,
    before: &Superblock,
    after: &Superblock,
    geo: &Geometry,
) -> Result<(BlockNo, Page)> {
    let block_size = u64::from(geo.block_size);
    let (block, at) = (BlockNo(SUPERBLOCK_OFFSET / block_size), (SUPERBLOCK_OFFSET % block_size) as usize);
    let mut page = read_block(disk, geo, block, Kind::Superblock)?;
    let mut bytes = Buf::copy_of(after.as_bytes());
    if before.verify().is_ok() {
        let sealed = geo.checksums.seal(Sealed::Superblock, &mut bytes);
        debug_assert!(sealed.is_ok(), "a superblock has a place for its checksum");
    }
    page[at..at + SUPERBLOCK_BYTES].copy_from_slice(&bytes);
    Ok((block, page.freeze()))
}

/// Returns `None` for what cannot be used.
fn unless_damaged<T>(found: Result<T>) -> Result<Option<T>> {
    match found {
        Err(error @ Error::Disk { .. }) => Err(error),
        found => Ok(found.ok()),
    }
}

impl Found {
    /// Returns a disk that shows the volume with its journal found again.
    pub(crate) fn shown(&self, disk: &SharedDisk, geo: &Geometry) -> SharedDisk {
        Arc::new(Replayed::changed(Arc::clone(disk), geo, self.blocks.clone()))
    }

    /// Makes the superblock lead to the journal again, durably. A power cut between the writes leaves a journal that is
    /// found in the same way.
    ///
    /// # Errors
    /// Device errors.
    pub(crate) fn write(&self, disk: &SharedDisk, geo: &Geometry) -> Result<()> {
        let write = |(block, page): (&BlockNo, &Page)| Request {
            op: Op::Write { data: vec![page.clone()], fua: false },
            at: Lba::from_byte(geo.byte_of(*block)),
            tag: Tag::volume(Kind::Inodes),
        };
        write_durably(disk, self.blocks.iter().map(write).collect(), "flushing the journal's inode")
    }
}
