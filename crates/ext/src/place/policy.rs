//! The interface of placement policies.

use moafs_vfs::Result;
use moafs_vfs::plan::{DirtyView, WritebackReason};
use moafs_vfs::types::{Lbn, Mapping};

use super::draft::WritePlan;
use super::free_space::FreeSpace;
use super::inodes::Directories;
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

    /// Returns the rule for the groups of new directories, unless another is asked for.
    fn directories(&self) -> Directories {
        Directories::Spread
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

/// The facts about files that policies need.
pub trait Files<N> {
    /// Returns the group of a file's inode.
    fn group(&self, file: &N) -> GroupNo;
    /// Returns the mapping of the file at `at`, at most `max` blocks.
    fn map(&self, file: &N, at: Lbn, max: u32) -> Result<Mapping>;
}
