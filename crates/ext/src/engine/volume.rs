//! [`Ext`]: the parts of a mounted volume, and its blocks of metadata.

use std::collections::BTreeMap;
use std::sync::Arc;

use moafs_disk::{Kind, SharedDisk};
use moafs_runtime::leaf::Mutex;
use moafs_runtime::leaf::atomic::AtomicU64;
use moafs_runtime::{Rt, lock};
use moafs_vfs::Result;
use moafs_vfs::format::{Admission, Shape};

use super::incore::{Incore, Registry, window};
use super::recover::Recovery;
use crate::alloc::Alloc;
use crate::format::renaming::Marks;
use crate::format::{BlockNo, Descriptor, Geometry, GroupNo, InodeNo, Superblock, dir as codec};
use crate::health::Health;
use crate::meta::{Block, Level, Meta};
use crate::place::windows::Windows;
use crate::place::{Directories, Policy, ffs};

/// Bytes that one read from a group's zone for directories and first indirect blocks brings.
const ZONE_READ_BYTES: u32 = 64 << 10;

/// A mounted volume of the ext family.
pub struct Ext {
    pub(super) disk: SharedDisk,
    pub(super) rt: Rt,
    pub(super) health: Arc<Health>,
    pub(super) geo: Geometry,
    pub(super) form: codec::Form,
    pub(super) shape: Shape,
    pub(super) superblock: Mutex<Superblock>,
    pub(super) meta: Arc<Meta>,
    pub(super) alloc: Arc<Alloc>,
    /// The inodes of the journal and of the orphan file. The journal of a volume that got it while it was mounted is a
    /// file with a name.
    pub(super) own_files: Vec<InodeNo>,
    pub(super) registry: Arc<Registry>,
    /// In-core inodes that must not be forgotten before a level is on disk: later changes of their names wait for it.
    pub(super) held: Mutex<BTreeMap<(Level, u32), Arc<Incore>>>,
    /// `i_extra_isize` of new inodes.
    pub(super) extra_isize: u16,
    pub(super) table_read_blocks: u64,
    pub(super) transfer_blocks: u32,
    pub(super) policy: Policy,
    /// The rule for the groups of new directories.
    pub(super) directories: Directories,
    pub(super) windows: Windows,
    /// Held while a reference to a shared attribute block is given up: the last one frees the block.
    pub(super) shared_xattrs: Mutex<()>,
    /// The level at which the names added so far are on disk: full fsyncs of files wait for it.
    /// `entries_level` counts removed names as well: fsyncs of directories wait for it.
    pub(super) names_level: AtomicU64,
    pub(super) entries_level: AtomicU64,
    /// The level at which the pointers set so far in indirect blocks are on disk.
    pub(super) maps_level: AtomicU64,
    /// The newest epoch in which file data completed.
    pub(super) data_epoch: AtomicU64,
    /// True if the volume is read through its journal.
    pub(super) replayed: bool,
    /// True if small writes that an fsync waits for go through the log.
    pub(super) logs_small_writes: bool,
    /// The orphan list of a volume with a journal; its head on the disk is the last element.
    pub(super) orphans: lock::Mutex<Vec<Arc<Incore>>>,
    /// The marks of names in inodes that are being renamed.
    pub(super) marks: Marks,
    /// The recovery of a volume that was left by a crash of moafs; active while leaks are not
    /// returned yet.
    pub(super) recovery: Recovery,
}

impl Ext {
    /// Returns the volume's geometry.
    pub fn geometry(&self) -> &Geometry {
        &self.geo
    }

    /// Returns the descriptor of a group, with the numbers of free and used things as they are now.
    pub fn group(&self, group: GroupNo) -> Descriptor {
        let counts = self.alloc.counts(group);
        Descriptor {
            free_blocks: counts.free_blocks,
            free_inodes: counts.free_inodes,
            used_dirs: counts.directories,
            ..*self.alloc.descriptor(group)
        }
    }

    /// Allocates one block for metadata in or near a group, paid for by `admission`.
    pub(super) fn meta_block(&self, group: GroupNo, admission: &mut Admission) -> Result<(u64, Level)> {
        let block = self.allocate(|draft| ffs::meta_block(draft, group))?;
        // Not before: the allocation may wait, and meanwhile the block would be promised to another caller.
        admission.spend(1);
        Ok(block)
    }

    /// Returns a block of metadata. If it lies in its group's zone, the blocks around it there are
    /// read with it.
    pub(super) fn zone_block(&self, no: u64, kind: Kind) -> Result<Arc<Block>> {
        self.zone_run(no, kind, 1)
    }

    /// Returns the first of `blocks` contiguous blocks of metadata, read in the same way.
    pub(super) fn zone_run(&self, no: u64, kind: Kind, blocks: u64) -> Result<Arc<Block>> {
        let group = self.geo.group_of_block(BlockNo(no)).unwrap_or_default();
        let zone = self.alloc.zone(group);
        let piece = u64::from((ZONE_READ_BYTES / self.geo.block_size).max(1));
        let near = if zone.contains(&no) { window(&zone, no, piece) } else { no..no + 1 };
        self.meta.get_near(no, kind, near.start..near.end.max(no + blocks))
    }
}
