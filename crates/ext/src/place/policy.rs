//! The interface of placement policies.

use moafs_vfs::Result;
use moafs_vfs::plan::{DirtyView, WritebackReason};
use moafs_vfs::types::{Lbn, Mapping};

use super::draft::WritePlan;
use super::free_space::FreeSpace;
use super::inodes;
use crate::format::GroupNo;

/// A way of placing data. Its functions depend on their arguments alone and change nothing.
pub trait PlacementPolicy {
    /// Decides which dirty blocks are written together, and where.
    ///
    /// # Errors
    /// ENOSPC without enough free space; damage and device errors from the maps of files and the bitmaps.
    fn plan<N>(
        &self,
        reason: WritebackReason,
        dirty: &dyn DirtyView<N>,
        files: &dyn Files<N>,
        free: &dyn FreeSpace,
    ) -> Result<WritePlan>;

    /// Returns the group for a new directory. Directories of a top directory, and as a rule those of the root, are
    /// spread over the groups; the others stay near their parents.
    fn group_of_directory(&self, parent: ParentDirectory, free: &dyn FreeSpace) -> GroupNo {
        let spread = parent.is_top || (parent.is_root && self.spreads_root_directories());
        inodes::directory_group(free, parent.group, spread)
    }

    /// Returns true if the directories of the root are spread over the groups.
    fn spreads_root_directories(&self) -> bool {
        true
    }

    /// Returns true if blocks get their addresses at `write()`; else they get them when they leave the cache.
    fn allocates_on_write(&self) -> bool {
        false
    }

    /// Returns true if different files are written in one request, so that reading one may bring its neighbours.
    fn co_writes(&self) -> bool {
        false
    }
}

/// The directory in which a new one is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParentDirectory {
    /// The group of its inode.
    pub group: GroupNo,
    /// True if it is the root.
    pub is_root: bool,
    /// True if it is marked as a top directory, whose directories have little to do with one another.
    pub is_top: bool,
}

/// The facts about files that policies need.
pub trait Files<N> {
    /// Returns the group of a file's inode.
    fn group(&self, file: &N) -> GroupNo;
    /// Returns the mapping of the file at `at`, at most `max` blocks.
    fn map(&self, file: &N, at: Lbn, max: u32) -> Result<Mapping>;
}
