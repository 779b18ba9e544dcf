//! Small files that are written whole: what co-writing gathers.

use moafs_vfs::Result;
use moafs_vfs::plan::{DirtyFile, SMALL_BLOCKS_MAX};
use moafs_vfs::types::{FileRange, Ino, Lbn, LbnRange, Mapping};
use smallvec::SmallVec;

use super::policy::Files;
use crate::format::{Geometry, GroupNo, InodeNo};

/// A dirty small file that is whole in the cache: every block is dirty or has an address.
pub(super) struct Member<N> {
    pub(super) file: DirtyFile<N>,
    /// The address of each block that has one.
    pub(super) places: SmallVec<[Option<u64>; SMALL_BLOCKS_MAX as usize]>,
}

impl<N> Member<N> {
    pub(super) fn blocks(&self) -> u32 {
        self.places.len() as u32
    }

    pub(super) fn is_dirty(&self, at: u64) -> bool {
        self.file.dirty.iter().any(|range| range.start.0 <= at && at < range.end().0)
    }

    /// Returns true if every block has an address: no block needs a new one.
    pub(super) fn is_placed(&self) -> bool {
        self.places.iter().all(Option::is_some)
    }

    /// Returns the number of blocks that have an address, which a move gives up.
    pub(super) fn placed_blocks(&self) -> u32 {
        self.places.iter().flatten().count() as u32
    }

    pub(super) fn whole(&self) -> FileRange {
        FileRange { ino: self.file.ino, range: LbnRange { start: Lbn(0), len: self.blocks() } }
    }
}

/// Returns the group of a directory.
pub(super) fn group_of(geo: &Geometry, directory: Ino) -> GroupNo {
    let number = u32::try_from(directory.0).map(InodeNo).unwrap_or(InodeNo::ROOT);
    geo.locate_inode(number).map_or(GroupNo(0), |at| at.group)
}

/// Returns the file with its addresses, if it may be written whole; else as it was given.
pub(super) fn member<N>(
    file: DirtyFile<N>,
    files: &dyn Files<N>,
) -> Result<std::result::Result<Member<N>, DirtyFile<N>>> {
    if !file.whole || file.blocks == 0 || file.blocks > SMALL_BLOCKS_MAX {
        return Ok(Err(file));
    }
    let mut places = SmallVec::new();
    while (places.len() as u64) < file.blocks {
        let at = places.len() as u64;
        let left = (file.blocks - at) as u32;
        match files.map(&file.node, Lbn(at), left)? {
            Mapping::Run(run) | Mapping::Unwritten(run) => {
                places.extend((run.start.0..run.end().0).take(left as usize).map(Some));
            }
            Mapping::Hole { len } => places.extend((0..len.clamp(1, left)).map(|_| None)),
        }
    }
    let member = Member { file, places };
    // A hole that was not written to stays one.
    let has_hole = (0..).zip(&member.places).any(|(at, place)| place.is_none() && !member.is_dirty(at));
    Ok(if has_hole { Err(member.file) } else { Ok(member) })
}
