//! The policies that decide where data and metadata are placed. They decide only: a policy sees the dirty files and
//! the free space through read-only views and returns a [`WritePlan`]; the engine claims the blocks that the plan has
//! chosen, carries it out and counts.
//!
//! | module | content |
//! |---|---|
//! | [`ffs`] | the Fast File System's policy: the baseline of every comparison |
//! | [`cowrite`] | co-writing: the dirty small files of a directory are written in one request |
//! | [`policy`] | the interface of policies, and what they see of files |
//! | [`inodes`] | the groups of new directories and files |
//! | [`free_space`] | the view of the free space |
//! | [`draft`] | a plan in the making, and the plan |
//! | [`windows`] | free blocks that directories keep for their next files |
//!
//! A policy is one file with an implementation of [`PlacementPolicy`], and one line in [`Policy`].

pub mod cowrite;
pub mod draft;
pub mod ffs;
pub mod free_space;
pub mod inodes;
pub mod policy;
pub mod windows;

#[cfg(test)]
mod testing;

use moafs_vfs::plan::{DirtyView, WritebackReason};
use moafs_vfs::{Result, named_enum};

pub use draft::{ChosenSpace, Draft, WritePlan};
pub use free_space::FreeSpace;
pub use policy::{Files, ParentDirectory, PlacementPolicy};

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
