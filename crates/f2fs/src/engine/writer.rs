//! The state that the writer of checkpoints and chains keeps between them.
//!
//! What a checkpoint or a chain takes out of memory becomes [`Unfinished`] work, and stays here until the device has
//! all of it. If the host has no room, the next writer finishes it before it begins anything of its own: the same
//! bytes go to the same blocks, which nothing else is given meanwhile. So there is never more than one snapshot that
//! is not durable, and no chain that belongs to a checkpoint that is not.

use std::collections::BTreeMap;
use std::sync::Arc;

use moafs_disk::{Page, Tag};

use super::node_cache::Node;
use super::owned_cache::Owned;
use super::packed::Contents;
use crate::format::checkpoint::{Checkpoint, VersionBitmap};
use crate::format::sit::SitEntry;
use crate::format::{BlkAddr, Nid, Segno};

/// A block that is being written to the device.
pub(super) struct Leaving {
    pub(super) at: BlkAddr,
    pub(super) bytes: Bytes,
    pub(super) tag: Tag,
}

/// The bytes of a block that is being written.
pub(super) enum Bytes {
    /// The block itself.
    Block(Page),
    /// A node, which becomes a block when it is written: until then a small file's inode takes a tenth of one.
    Node(Placed),
}

/// A node that has got a place, with its contents at that moment.
pub(super) struct Placed {
    pub(super) nid: Nid,
    pub(super) ino: Nid,
    pub(super) contents: Contents,
    pub(super) at: BlkAddr,
    /// The block that the same log continues with.
    pub(super) next: BlkAddr,
}

/// The state that is needed to write checkpoints and chains; its lock admits one writer at a time.
pub(super) struct Writer {
    /// The last durable checkpoint.
    pub(super) last: Checkpoint,
    /// The number (0 or 1) of the pack that holds it.
    pub(super) pack: u32,
    /// SIT entries that are only in its journal.
    pub(super) sit_journal: BTreeMap<Segno, SitEntry>,
    pub(super) sit_versions: VersionBitmap,
    pub(super) kib_written: u64,
    /// True if the last durable checkpoint was written since the volume was opened.
    pub(super) own: bool,
    /// The checkpoint or chain that is being written, or that the host had no room for.
    pub(super) unfinished: Option<Unfinished>,
}

/// A checkpoint or a chain that has been taken, and is not on the device yet.
pub(super) struct Unfinished {
    /// Blocks that must be durable before `last` is written; none once they are.
    pub(super) first: Vec<Leaving>,
    /// Blocks that make the rest count: the last one of a pack, or the nodes of a chain with their true footers.
    pub(super) last: Vec<Leaving>,
    /// The writer's state from then on; `None` for a chain.
    pub(super) pack: Option<NewPack>,
    /// Nodes and blocks of directories that only memory has until it is finished.
    pub(super) _held: (Vec<Arc<Node>>, Vec<Arc<Owned>>),
}

/// The writer's state after a checkpoint.
pub(super) struct NewPack {
    pub(super) checkpoint: Checkpoint,
    pub(super) sit_journal: BTreeMap<Segno, SitEntry>,
    pub(super) sit_versions: VersionBitmap,
}
