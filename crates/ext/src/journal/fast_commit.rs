//! Replay of fast commits: what the kernel has changed since the last transaction, file by file.
//!
//! The commits say of names, inodes and ranges of file blocks what has become of them; directories, trees, bitmaps and
//! counts are worked out here. All of it happens in memory ([`Scratch`]), on what the transactions before leave, with
//! each record checked against the volume. The result is the set of blocks that are to change. A volume that is read
//! shows them; on one that is written they become a transaction of the log, with the number that the commits belong to:
//! from then on the commits are older than the log, and a power cut finds the one or the other.
//!
//! A file that has lost its last name goes on the orphan list, and so is deleted by the mount or the check that
//! follows.
//!
//! Not replayed, and refused by name: commits of files without extents, and such as change attributes.
//!
//! | file | content |
//! |---|---|
//! | `scratch` | the volume in memory: blocks, inodes, space |
//! | `map` | extent trees |
//! | `files` | inodes and their blocks |
//! | `names` | directories |

mod files;
mod map;
mod names;
mod scratch;

use std::collections::BTreeMap;

use moafs_disk::{Buf, DiskExt, Kind, Page, SharedDisk, Tag};
use moafs_vfs::{Error, Result};

use self::files::Files;
use self::names::Names;
use self::scratch::Scratch;
use super::file::Journal;
use crate::format::fast_commit::{Reader, Record};
use crate::format::{BlockNo, Geometry, Superblock, Support};
use crate::head::read_superblock;
use crate::health::damaged;

/// Blocks that fast commits change, with their contents.
pub(super) type Changed = BTreeMap<BlockNo, Page>;

impl Journal {
    /// Returns the blocks that the fast commits change which go on from the transactions before `sequence`. `disk`
    /// shows the volume as those leave it.
    ///
    /// # Errors
    /// Damage of the commits, or of what they change; [`Error::Refused`] for what is not replayed.
    pub(super) fn replay_fast_commits(&self, disk: &SharedDisk, sequence: u32) -> Result<Changed> {
        let sb = read_superblock(disk)?;
        if sb.support(true) != Support::ReadWrite {
            return Err(files::unsupported("on a volume with features that are only read"));
        }
        let records = self.fast_commits(sequence)?;
        let changed = apply(disk, &sb, &self.geo, self, &records)?;
        Ok(changed.into_iter().map(|(block, bytes)| (block, Buf::copy_of(&bytes).freeze())).collect())
    }

    /// Reads the records of the fast commits.
    fn fast_commits(&self, sequence: u32) -> Result<Vec<Record>> {
        let mut reader = Reader::new(sequence);
        let Some(first) = self.superblock.fast_commits() else { return Ok(Vec::new()) };
        for at in first..self.superblock.blocks {
            let (block, _) = self.locate_checked(at)?;
            let read = self.disk.read(self.lba(block), self.geo.block_bytes(), Tag::volume(Kind::Journal));
            let bytes = read.map_err(|source| Error::disk(format!("reading block {at} of the journal"), source))?;
            if !reader.block(&bytes, at).map_err(damaged)? {
                break;
            }
        }
        Ok(reader.finish())
    }
}

fn apply(
    disk: &SharedDisk,
    sb: &Superblock,
    geo: &Geometry,
    journal: &Journal,
    records: &[Record],
) -> Result<BTreeMap<BlockNo, Vec<u8>>> {
    let promised = records.iter().filter_map(|record| match record {
        Record::AddRange { extent, .. } => Some(extent.start.0..extent.start.0 + u64::from(extent.len)),
        _ => None,
    });
    let scratch = Scratch::new(disk, geo, journal.blocks().to_vec(), promised.collect())?;
    let (mut files, mut names) = (Files::new(scratch, sb)?, Names::new(sb));
    for record in records {
        match record {
            Record::AddRange { ino, extent } => files.add_range(*ino, *extent)?,
            Record::DelRange { ino, lbn, len } => files.del_range(*ino, *lbn, *len)?,
            Record::Name { name, is_new } => names.link(&mut files, name, *is_new)?,
            Record::Unlink(name) => names.unlink(&mut files, name)?,
            Record::Inode { ino, slot } => files.set_inode(*ino, slot)?,
        }
    }
    let head = files.finish()?;
    files.set_orphans(head)?;
    files.scratch.finish()
}
