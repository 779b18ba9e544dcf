//! The state of a check, which its passes share.

use std::collections::BTreeMap;

use moafs_vfs::types::FileKind;

use super::issue::Issue;
use super::nat::Nat;
use super::outcome::Outcome;
use super::segment::Segment;
use super::volume::Volume;
use crate::format::checkpoint::Pack;
use crate::format::superblock::{Geometry, Superblock};
use crate::format::{Nid, Segno};

/// A callback for progress: pass, steps done, steps of the pass.
pub(super) type Tell<'a> = &'a mut dyn FnMut(u8, u64, u64);

/// The facts about an inode that pass 2 collects.
#[derive(Debug, Clone, Copy)]
pub(super) struct InodeState {
    pub(super) ino: Nid,
    /// The link count that the inode stores (`i_links`).
    pub(super) links: u32,
    /// Names that pass 3 found.
    pub(super) names: u32,
    /// The parent it carries.
    pub(super) pino: Nid,
    /// The hash of the name it carries.
    pub(super) name_hash: u32,
    /// The file's kind; `None` if its fields cannot be believed.
    pub(super) kind: Option<FileKind>,
    /// The parent and the name it carries may be wrong.
    pub(super) lost_pino: bool,
}

/// The facts about a directory that pass 3 collects.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct DirInfo {
    /// The directory with its name.
    pub(super) parent: Option<Nid>,
    /// The inode that `..` names.
    pub(super) dot_dot: Option<Nid>,
    /// Directories that have their name in it.
    pub(super) subdirs: u32,
}

/// The state of a check.
pub(super) struct Checker<'a> {
    pub(super) volume: Volume<'a>,
    /// Blocks of the summary area, kept apart so that they do not push out nodes.
    pub(super) summaries: Volume<'a>,
    pub(super) superblock: Superblock,
    pub(super) geo: Geometry,
    pub(super) pack: Pack,
    pub(super) outcome: Outcome,
    /// Segments that have a SIT entry or a block in use.
    pub(super) segments: BTreeMap<Segno, Segment>,
    pub(super) nat: Nat,
    /// All inodes, in ascending order of their ids.
    pub(super) inodes: Vec<InodeState>,
    pub(super) dirs: BTreeMap<Nid, DirInfo>,
    /// Blocks of the main area that are in use.
    pub(super) reached_blocks: u64,
    /// Blocks that are reserved for files and have no address yet.
    pub(super) promised_blocks: u64,
    /// Nodes that the NAT lists.
    pub(super) nodes_used: u64,
}

impl Checker<'_> {
    pub(super) fn found(&mut self, issue: Issue) {
        self.outcome.found(issue);
    }

    pub(super) fn inode_index(&self, ino: Nid) -> Option<usize> {
        self.inodes.binary_search_by_key(&ino, |state| state.ino).ok()
    }

    pub(super) fn finish(mut self) -> Outcome {
        self.outcome.inodes_used = self.inodes.len() as u64;
        self.outcome.blocks_used = self.reached_blocks + self.promised_blocks;
        self.outcome
    }
}
