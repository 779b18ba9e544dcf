//! Pass 2, below the inode: the tree of nodes, and the addresses in them.

use moafs_disk::Page;
use moafs_vfs::types::FileKind;

use super::checker::Checker;
use super::issue::BlockOwner;
use super::segments::Claim;
use super::{CheckError, Issue};
use crate::format::checkpoint::Checkpoint;
use crate::format::inode::{self, CachedExtent, Layout};
use crate::format::node::{self, ADDRS_PER_NODE, Footer, NIDS_PER_NODE, XATTR_OFFSET};
use crate::format::{BlkAddr, Log, Nid};

/// Facts that a walk through an inode's nodes collects.
pub(super) struct Walk {
    pub(super) ino: Nid,
    pub(super) directory: bool,
    /// Blocks that count for `i_blocks`: the inode, its nodes, its data, reservations without an
    /// address.
    pub(super) blocks: u64,
    /// Its last file block.
    pub(super) last: Option<u64>,
    /// The extent that it claims to have.
    pub(super) extent: Option<CachedExtent>,
    /// Addresses of that extent that are as it says, and whether one is not.
    pub(super) extent_blocks: u64,
    pub(super) extent_wrong: bool,
}

impl Walk {
    pub(super) fn new(ino: Nid, directory: bool, extent: Option<CachedExtent>) -> Walk {
        Walk { ino, directory, blocks: 1, last: None, extent, extent_blocks: 0, extent_wrong: false }
    }

    fn compare_with_extent(&mut self, lbn: u64, block: BlkAddr) {
        let Some(CachedExtent { lbn: first, addr, blocks }) = self.extent else { return };
        let Some(index) = lbn.checked_sub(first.into()).filter(|index| *index < u64::from(blocks)) else { return };
        self.extent_blocks += 1;
        self.extent_wrong |= u64::from(block.0) != u64::from(addr.0) + index;
    }
}

/// A node that holds addresses.
#[derive(Clone, Copy)]
struct Leaf {
    nid: Nid,
    version: u8,
    /// The file block of its first address.
    first: u64,
}

/// The identity that a node must have.
#[derive(Clone, Copy)]
pub(super) enum Expected {
    /// The node of the inode itself.
    Inode,
    /// The node at this offset of a file, which is a directory or not.
    Child { offset: u32, directory: bool },
    /// Any node of its inode.
    Lost,
}

impl Expected {
    fn offset(self) -> Option<u32> {
        match self {
            Expected::Inode => Some(0),
            Expected::Child { offset, .. } => Some(offset),
            Expected::Lost => None,
        }
    }

    /// Returns the log that the node belongs to; an inode tells by itself whether it is a
    /// directory.
    fn log(self, node: &[u8]) -> Option<Log> {
        match self {
            Expected::Inode => Some(node::log_of(0, inode::kind(node)? == FileKind::Directory)),
            Expected::Child { offset, directory } => Some(node::log_of(offset, directory)),
            Expected::Lost => None,
        }
    }
}

/// True if a node says that it was written after a checkpoint that did not exist yet. Only the lower half counts: the
/// upper one may be a checksum.
fn is_from_future(version: u64, checkpoint: &Checkpoint) -> bool {
    checkpoint.version <= u64::from(u32::MAX) && version as u32 > checkpoint.version as u32
}

impl Checker<'_> {
    /// Reads a node at the address that the NAT has, and claims its block. `None` if it is not that node:
    /// its footer, or what the NAT says, makes that impossible.
    pub(super) fn take_node(&mut self, nid: Nid, ino: Nid, expected: Expected) -> Result<Option<Page>, CheckError> {
        let block = self.nat.get(nid).addr;
        if !self.geo.is_main(block) {
            return Ok(None);
        }
        let page = self.volume.read(block)?;
        let footer = Footer::decode(&page);
        if let Some(problem) = foreign(&footer, nid, ino, expected.offset()) {
            self.found(Issue::NodeFooter { nid, block, problem });
            return Ok(None);
        }
        let owner = BlockOwner { nid, version: 0, offset: 0 };
        let claim = Claim { inode: ino, owner, is_node: true, log: expected.log(&page) };
        let claimed = self.claim(block, &claim)?;
        self.check_footer(&footer);
        Ok(claimed.then_some(page))
    }

    /// Checks the footer's fields that `fsck.f2fs` does not check: checkpoint version and next
    /// block.
    fn check_footer(&mut self, footer: &Footer) {
        let (nid, checkpoint) = (footer.nid, self.pack.checkpoint.version);
        if is_from_future(footer.cp_version, &self.pack.checkpoint) {
            self.found(Issue::NodeVersion { nid, stored: footer.cp_version, checkpoint });
        }
        if footer.next != BlkAddr::NULL && !self.geo.is_main(footer.next) {
            self.found(Issue::NodeNext { nid, next: footer.next });
        }
    }

    /// Checks that nodes are cold, except those of directories. mkfs.f2fs makes quota files that
    /// are not.
    pub(super) fn check_cold(&mut self, footer: &Footer, directory: bool) {
        let is_quota = footer.ino != Nid::ROOT && self.superblock.is_reserved(footer.ino);
        if footer.cold == directory && !is_quota {
            self.found(Issue::NodeCold { nid: footer.nid, stored: footer.cold });
        }
    }

    /// Reads and claims a node that the inode or an indirect node names; `None` if it cannot be
    /// followed.
    pub(super) fn child(&mut self, walk: &mut Walk, nid: Nid, offset: u32) -> Result<Option<Page>, CheckError> {
        let entry = self.nat.get(nid);
        let problem = if !self.nat.is_nid(nid) {
            "there is no such node".to_owned()
        } else if entry.addr == BlkAddr::NULL {
            "that is free".to_owned()
        } else if entry.ino != walk.ino {
            format!("that belongs to inode {}", entry.ino)
        } else if !self.nat.see(nid) {
            "that was named before".to_owned()
        } else {
            let page = self.take_node(nid, walk.ino, Expected::Child { offset, directory: walk.directory })?;
            if let Some(page) = &page {
                walk.blocks += 1;
                self.check_cold(&Footer::decode(page), walk.directory);
            }
            return Ok(page);
        };
        self.found(Issue::NodePointer { inode: walk.ino, nid, offset, problem });
        Ok(None)
    }

    /// Walks through all that an inode's addresses and node ids lead to.
    pub(super) fn walk(&mut self, walk: &mut Walk, inode: &[u8], layout: Layout) -> Result<(), CheckError> {
        let leaf = Leaf { nid: walk.ino, version: self.nat.get(walk.ino).version, first: 0 };
        for slot in 0..layout.addresses() as usize {
            self.data(walk, leaf, slot, layout.addr(inode, slot))?;
        }
        for tree in node::trees(layout.addresses()) {
            let nid = inode::nid_slot(inode, tree.slot.into());
            self.subtree(walk, nid, tree.offset, tree.level, tree.first)?;
        }
        Ok(())
    }

    fn subtree(&mut self, walk: &mut Walk, nid: Nid, offset: u32, level: u32, first: u64) -> Result<(), CheckError> {
        if nid == Nid::NONE {
            return Ok(());
        }
        let Some(page) = self.child(walk, nid, offset)? else { return Ok(()) };
        if level == 1 {
            let leaf = Leaf { nid, version: self.nat.get(nid).version, first };
            return (0..ADDRS_PER_NODE).try_for_each(|slot| self.data(walk, leaf, slot, node::addr(&page, slot)));
        }
        self.prefetch_children(&page)?;
        for slot in 0..NIDS_PER_NODE {
            let offset = offset + 1 + slot as u32 * node::nodes_in(level - 1);
            let first = first + slot as u64 * node::blocks_below(level - 1);
            self.subtree(walk, node::nid(&page, slot), offset, level - 1, first)?;
        }
        Ok(())
    }

    /// Brings the nodes that an indirect node names.
    pub(super) fn prefetch_children(&mut self, indirect: &[u8]) -> Result<(), CheckError> {
        let children = (0..NIDS_PER_NODE).map(|slot| node::nid(indirect, slot)).filter(|nid| *nid != Nid::NONE);
        let places: Vec<BlkAddr> = children.map(|nid| self.nat.get(nid).addr).collect();
        self.volume.prefetch(places.into_iter().filter(|addr| self.geo.is_main(*addr)))
    }

    fn data(&mut self, walk: &mut Walk, leaf: Leaf, slot: usize, block: BlkAddr) -> Result<(), CheckError> {
        if block == BlkAddr::NULL {
            return Ok(());
        }
        let lbn = leaf.first + slot as u64;
        walk.blocks += 1;
        walk.last = Some(lbn);
        walk.compare_with_extent(lbn, block);
        if block == BlkAddr::NEW {
            self.promised_blocks += 1;
            return Ok(());
        }
        if !self.geo.is_main(block) {
            self.found(Issue::IllegalBlock { inode: walk.ino, lbn, block });
            return Ok(());
        }
        let owner = BlockOwner { nid: leaf.nid, version: leaf.version, offset: slot as u16 };
        let log = walk.directory.then_some(Log::HotData);
        self.claim(block, &Claim { inode: walk.ino, owner, is_node: false, log }).map(drop)
    }
}

/// Returns the reason why a block cannot be this node; `None` if it can.
pub(super) fn foreign(footer: &Footer, nid: Nid, ino: Nid, offset: Option<u32>) -> Option<String> {
    if footer.nid != nid || footer.ino != ino {
        return Some(format!("its footer says it is node {} of inode {}, not of {ino}", footer.nid, footer.ino));
    }
    let expected = offset.filter(|offset| *offset != footer.offset)?;
    let name = |offset: u32| match offset {
        XATTR_OFFSET => "the attribute node".to_owned(),
        offset => format!("node {offset}"),
    };
    Some(format!("its footer says it is {} of its inode, not {}", name(footer.offset), name(expected)))
}
