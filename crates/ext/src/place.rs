//! The policies that decide where data and metadata are placed. They decide only: a policy sees the dirty files and
//! the free space through read-only views and returns a [`WritePlan`]; the engine claims the blocks that the plan has
//! chosen, carries it out and counts.
//!
//! | module | content |
//! |---|---|
//! | [`ffs`] | the Fast File System's policy: the baseline of every comparison |
//! | [`cowrite`] | co-writing: the dirty small files of a directory are written in one request |
//! | [`free_space`] | the view of the free space |
//! | [`draft`] | a plan in the making, and the plan |
//! | [`windows`] | free blocks that directories keep for their next files |
//!
//! A policy is one file with an implementation of [`PlacementPolicy`], and one line in [`Policy`].

pub mod cowrite;
pub mod draft;
pub mod ffs;
pub mod free_space;
pub mod windows;

#[cfg(test)]
mod testing;

use moafs_vfs::plan::{DirtyView, WritebackReason};
use moafs_vfs::types::{Lbn, Mapping};
use moafs_vfs::{Result, named_enum};

pub use draft::{ChosenSpace, Draft, WritePlan};
pub use free_space::FreeSpace;

use crate::format::GroupNo;

named_enum! {
    /// The policy that decides where data are placed: the values of `-o place=`.
    #[derive(PartialOrd, Ord, Hash, Default)]
    pub enum Policy ("placement policy") {
        FfsPaper = "ffs-paper", "As ffs, addresses allocated at write(): the paper's baseline" => ffs::FfsPaper;
        Ffs = "ffs", "File by file, addresses chosen when data leave the cache" => ffs::Ffs;
        #[default]
        Cowrite = "cowrite", "The small files of a directory together, large files as with ffs" => cowrite::Cowrite;
    }

    /// See [`PlacementPolicy::plan`].
    pub fn plan<N>(
        self, reason: WritebackReason, dirty: &dyn DirtyView<N>, files: &dyn Files<N>, free: &dyn FreeSpace,
    ) -> Result<WritePlan>;

    /// See [`PlacementPolicy::group_of_directory`].
    pub fn group_of_directory(self, parent: ParentDirectory, free: &dyn FreeSpace) -> GroupNo;

    /// See [`PlacementPolicy::allocates_on_write`].
    pub fn allocates_on_write(self) -> bool;

    /// See [`PlacementPolicy::co_writes`].
    pub fn co_writes(self) -> bool;
}

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
        ffs::directory_group(free, parent.group, spread)
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
