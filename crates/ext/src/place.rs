//! The policies that decide where data and metadata are placed. They decide only: a policy sees the dirty files and
//! the free space through read-only views and returns a [`WritePlan`]; the engine claims the blocks that the plan has
//! chosen, carries it out and counts.
//!
//! | module | content |
//! |---|---|
//! | [`ffs`] | the Fast File System's policy: the baseline of every comparison |
//! | [`cowrite_paper`] | co-writing as published: the dirty small files of a directory are written in one request |
//! | [`cowrite`] | co-writing with longer runs, windows and files that stay |
//! | [`members`] | small files that are written whole, for both |
//! | [`policy`] | the interface of policies, and what they see of files |
//! | [`inodes`] | the groups of new directories, by a rule of their own, and of files |
//! | [`free_space`] | the view of the free space |
//! | [`draft`] | a plan in the making, and the plan |
//! | [`windows`] | free blocks that directories keep for their next files |
//!
//! A policy is one file with an implementation of [`PlacementPolicy`], and one line in [`Policy`]. The rule for
//! directories ([`Directories`]) is chosen beside it.

pub mod cowrite;
pub mod cowrite_paper;
pub mod draft;
pub mod ffs;
pub mod free_space;
pub mod inodes;
mod members;
pub mod policy;
pub mod windows;

#[cfg(test)]
mod testing;

use moafs_vfs::plan::{DirtyView, WritebackReason};
use moafs_vfs::{Result, named_enum};

pub use draft::{ChosenSpace, Draft, WritePlan};
pub use free_space::FreeSpace;
pub use inodes::{Directories, ParentDirectory};
pub use policy::{Files, PlacementPolicy};

named_enum! {
    /// The policy that decides where data are placed: the values of `-o place=`.
    #[derive(PartialOrd, Ord, Hash, Default)]
    pub enum Policy ("placement policy") {
        FfsPaper = "ffs-paper", "As ffs, addresses allocated at write(): the paper's baseline" => ffs::FfsPaper;
        Ffs = "ffs", "File by file, addresses chosen when data leave the cache" => ffs::Ffs;
        CowritePaper = "cowrite-paper", "The small files of a directory together, as published" => cowrite_paper::CowritePaper;
        #[default]
        Cowrite = "cowrite", "The small files of a directory together, large files as with ffs" => cowrite::Cowrite;
    }

    /// See [`PlacementPolicy::plan`].
    pub fn plan<N>(
        self, reason: WritebackReason, dirty: &dyn DirtyView<N>, files: &dyn Files<N>, free: &dyn FreeSpace,
    ) -> Result<WritePlan>;

    /// See [`PlacementPolicy::directories`].
    pub fn directories(self) -> Directories;

    /// See [`PlacementPolicy::allocates_on_write`].
    pub fn allocates_on_write(self) -> bool;

    /// See [`PlacementPolicy::co_writes`].
    pub fn co_writes(self) -> bool;
}
