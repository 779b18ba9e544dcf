//! Roll-forward: changes that were fsynced after the last checkpoint are found in a chain of nodes
//! and done again (`docs/formats/f2fs.md`, section 13).
//!
//! Everything happens in memory, and one checkpoint at the end makes it durable; a power cut before that
//! finds the same chain again. So blocks of the chain, and those behind the heads of the logs, are not
//! written to meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use moafs_disk::{Buf, Cause, Kind, Tag};
use moafs_vfs::format::{Admission, Progress};
use moafs_vfs::full_host::wait_for_host;
use moafs_vfs::types::{FileKind, Name};
use moafs_vfs::{Error, Result};

use super::convert::{copy_of, damaged};
use super::incore::Incore;
use super::mount::NO_PLACE;
use super::space::Origin;
use super::volume::F2fs;
use crate::format::chain::{self, Facts};
use crate::format::checkpoint::{Checkpoint, CpFlags};
use crate::format::inode::{self, Inline, Inode, Layout};
use crate::format::nat::NatEntry;
use crate::format::node::{self, ADDRS_PER_NODE, Footer, XATTR_OFFSET};
use crate::format::superblock::Features;
use crate::format::xattr::NODE_BYTES;
use crate::format::{BlkAddr, Log, Nid, Structure};

const NO_ROLL_FORWARD: &str = "what was fsynced after the last checkpoint cannot be brought back";

/// The ways that are left if the roll-forward is impossible.
const NO_WAY_FORWARD: &str = "mount it with -o ro to save what the last checkpoint shows, or give up what came after it with \
     -o disable_roll_forward";

/// The properties of an inode that never change: no chain tells other ones than the checkpoint has.
type Shape = (FileKind, Layout);

/// One node of the chain.
struct Link {
    at: BlkAddr,
    footer: Footer,
    /// The properties of the inode, if the node is one.
    shape: Option<Shape>,
}

/// The facts that the chain holds about one inode.
#[derive(Default, Clone, Copy)]
struct Marked {
    /// The last of its nodes that counts, by its place in the chain.
    last: usize,
    /// The last inode block that says where the new file's name belongs.
    named: Option<usize>,
}

impl F2fs {
    /// Does again what was fsynced after the last checkpoint.
    ///
    /// # Errors
    /// [`Error::Refused`] if it cannot be done, with the ways that are left. Nothing has been written then.
    pub(super) fn roll_forward(&self) -> Result<()> {
        self.replay_chain().map_err(|error| match error {
            Error::Disk { .. } => error,
            Error::Damaged { structure, problem, .. } => {
                Error::Refused(format!("{NO_ROLL_FORWARD}: {structure}: {problem}; {NO_WAY_FORWARD}"))
            }
            error => Error::Refused(format!("{NO_ROLL_FORWARD}: {error}; {NO_WAY_FORWARD}")),
        })
    }

    /// Gives up what was fsynced after the last checkpoint, with a new one. Returns the number of files concerned.
    pub(super) fn drop_chain(&self) -> Result<usize> {
        let files = self.files_in_chain()?;
        if files > 0 {
            // Nodes that are fsynced from now on must not lead to those that are given up.
            self.changed();
            wait_for_host(&self.rt, || self.checkpoint(false))?;
        }
        Ok(files)
    }

    /// Returns the number of files that were fsynced after the last checkpoint.
    pub(super) fn files_in_chain(&self) -> Result<usize> {
        let last = self.writer.lock().last.clone();
        Ok(marked(&self.read_chain(&last)?).len())
    }

    fn replay_chain(&self) -> Result<()> {
        let last = self.writer.lock().last.clone();
        let mut chain = self.read_chain(&last)?;
        self.cut_at_other_shape(&mut chain)?;
        let marked = self.known(marked(&chain))?;
        if marked.is_empty() {
            return Ok(());
        }
        chain.iter().for_each(|link| self.space.hold(link.at));
        let mut named: Vec<(Nid, usize)> = marked.iter().filter_map(|(ino, mark)| Some((*ino, mark.named?))).collect();
        // Of files that have had the same name the last one has it.
        named.sort_by_key(|(_, at)| *at);
        // An inode follows its other nodes in the chain.
        for (ino, at) in &named {
            self.create_recovered(*ino, &self.chain_block(chain[*at].at)?)?;
        }
        for (at, link) in chain.iter().enumerate() {
            if marked.get(&link.footer.ino).is_some_and(|mark| at <= mark.last) {
                self.replay(link, &self.chain_block(link.at)?)?;
            }
        }
        // Only now it is known which blocks the chain's data lie in, behind the heads and beyond.
        if !self.space.settle_heads() {
            return Err(Error::Refused(NO_PLACE.to_owned()));
        }
        for (ino, _) in named {
            self.rename_recovered(ino)?;
        }
        self.changed();
        wait_for_host(&self.rt, || self.checkpoint(false))
    }

    /// Returns the inodes that the checkpoint has, or the chain makes: of others it tells too little.
    fn known(&self, mut marked: BTreeMap<Nid, Marked>) -> Result<BTreeMap<Nid, Marked>> {
        let told: Vec<Nid> = marked.iter().filter(|(_, mark)| mark.named.is_none()).map(|(ino, _)| *ino).collect();
        for ino in told {
            let entry = self.nat.get(ino)?;
            if entry.ino != ino || entry.addr == BlkAddr::NULL {
                marked.remove(&ino);
            }
        }
        Ok(marked)
    }

    fn chain_block(&self, at: BlkAddr) -> Result<Buf> {
        self.read_block(at, Tag::new(Kind::Node, 0, Cause::Volume))
    }

    /// Reads the nodes written to the warm log since the checkpoint, in order. The chain ends before a block that
    /// cannot be replayed: the power failed while it was written, and no fsync that wrote it has returned.
    fn read_chain(&self, last: &Checkpoint) -> Result<Vec<Link>> {
        let head = last.current[Log::WarmNode as usize];
        let mut at = self.geo.block_of(head.segno, head.offset.into());
        let expected = last.node_version();
        let only_version = last.flags.contains(CpFlags::NOCRC_RECOVERY);
        let mut chain = Vec::new();
        let mut seen = BTreeSet::new();
        while self.geo.is_main(at) && seen.insert(at) {
            let page = self.chain_block(at)?;
            let footer = Footer::decode(&page);
            let same =
                if only_version { footer.cp_version as u32 == expected as u32 } else { footer.cp_version == expected };
            // A block that the checkpoint has is no link of a chain that began after it.
            if !same || self.space.is_valid(at) {
                break;
            }
            let facts = Facts { geo: &self.geo, features: self.features, uuid: &self.uuid };
            if chain::problem(&page, self.nat.get(footer.nid)?, facts).is_some() {
                break;
            }
            let next = footer.next;
            let shape = (footer.nid == footer.ino).then(|| self.shape_in(&page, footer.ino)).flatten();
            chain.push(Link { at, footer, shape });
            at = next;
        }
        Ok(chain)
    }

    fn shape_in(&self, block: &[u8], ino: Nid) -> Option<Shape> {
        let inode = Inode::decode(block, ino, self.features).ok()?;
        Some((inode.kind, inode.layout(self.features.contains(Features::FLEXIBLE_INLINE_XATTR))))
    }

    /// Returns the properties of an inode that the checkpoint has.
    fn shape_of(&self, ino: Nid) -> Result<Option<Shape>> {
        let node = self.find_node(ino)?;
        Ok(node.and_then(|node| node.view(|block| self.shape_in(block, ino))))
    }

    /// Ends a chain before an inode of another kind or layout than the checkpoint, or the chain before, has for it. Its
    /// words would be taken for addresses that are none.
    fn cut_at_other_shape(&self, chain: &mut Vec<Link>) -> Result<()> {
        let mut known: BTreeMap<Nid, Shape> = BTreeMap::new();
        for (at, Link { footer, shape, .. }) in chain.iter().enumerate() {
            let Some(told) = *shape else { continue };
            let before = match known.get(&footer.ino) {
                Some(before) => *before,
                None => self.shape_of(footer.ino)?.unwrap_or(told),
            };
            if before != told {
                chain.truncate(at);
                break;
            }
            known.insert(footer.ino, told);
        }
        Ok(())
    }

    fn replay(&self, link: &Link, image: &[u8]) -> Result<()> {
        let Footer { nid, ino, offset, .. } = link.footer;
        if nid == ino {
            return self.replay_inode(ino, image);
        }
        let file = self.incore(ino)?;
        if offset == XATTR_OFFSET {
            return self.replay_attributes(&file, image);
        }
        let addresses = self.layout(&file).addresses();
        let Some(first) = node::first_lbn(offset, addresses) else { return Ok(()) };
        for slot in 0..ADDRS_PER_NODE {
            self.replay_block(&file, first + slot as u64, node::addr(image, slot))?;
        }
        Ok(())
    }

    fn replay_inode(&self, ino: Nid, image: &[u8]) -> Result<()> {
        let told = Inode::decode(image, ino, self.features).map_err(damaged)?;
        if told.kind != FileKind::Regular {
            return Ok(());
        }
        let file = self.incore(ino)?;
        if told.inline.contains(Inline::DATA) {
            while self.unmap_range(&file, 0, None, u32::MAX)? == Progress::More {}
        }
        self.change(&file.node, |bytes| copy_fields(bytes, image, &told, self.features))?;
        if told.inline.contains(Inline::DATA) {
            return Ok(());
        }
        let layout = self.layout(&file);
        for slot in 0..layout.addresses() as usize {
            self.replay_block(&file, slot as u64, layout.addr(image, slot))?;
        }
        Ok(())
    }

    /// Makes an inode, unless the checkpoint has it: without blocks and other nodes.
    fn create_recovered(&self, ino: Nid, image: &[u8]) -> Result<()> {
        let NatEntry { version, addr, .. } = self.nat.get(ino)?;
        if addr != BlkAddr::NULL {
            return Ok(());
        }
        Inode::decode(image, ino, self.features).map_err(damaged)?;
        self.nat.claim(ino);
        self.nat.set(ino, NatEntry { version, ino, addr: BlkAddr::NEW });
        self.space.change_usage(|usage| usage.add_node(true));
        let footer = Footer { nid: ino, ino, offset: 0, ..Footer::decode(image) };
        let node = self.nodes.insert(&footer, Log::WarmNode, copy_of(image));
        let flexible = self.features.contains(Features::FLEXIBLE_INLINE_XATTR);
        self.change(&node, |bytes| inode::strip(bytes, flexible));
        Ok(())
    }

    fn replay_attributes(&self, file: &Incore, image: &[u8]) -> Result<()> {
        let nid = self.inode(file)?.xattr_nid;
        let node = match nid {
            Nid::NONE => {
                let node = self.new_node(Some(file.ino), XATTR_OFFSET, false, &mut Admission::none())?;
                self.count_blocks(file, 1);
                self.change_inode(file, |inode| inode.xattr_nid = node.nid)?;
                node
            }
            nid => self.node(nid, file.ino)?,
        };
        self.change(&node, |bytes| bytes[..NODE_BYTES].copy_from_slice(&image[..NODE_BYTES]));
        Ok(())
    }

    /// Points a file block at the block that the chain names.
    fn replay_block(&self, file: &Arc<Incore>, lbn: u64, told: BlkAddr) -> Result<()> {
        let _map = file.map.lock();
        let none = &mut Admission::none();
        let known = match self.existing_leaf(file, lbn)? {
            Some(leaf) => leaf.node.view(|bytes| leaf.addr(bytes, lbn)),
            None => BlkAddr::NULL,
        };
        if known == told {
            return Ok(());
        }
        if told == BlkAddr::NULL {
            let leaf = self.existing_leaf(file, lbn)?;
            return leaf.map_or(Ok(()), |leaf| self.clear(file, leaf, lbn..lbn + 1).map(drop));
        }
        if told.is_real() {
            if !self.geo.is_main(told) {
                let problem = format!("the chain says that block {lbn} of the file lies at {told}");
                return Err(damaged(Structure::Inode(file.ino).damage(None, problem)));
            }
            self.take_from_others(file, told)?;
            self.space.admit_data(told);
        }
        let leaf = self.leaf(file, lbn, none)?;
        self.point_at(file, &leaf, lbn, told, Origin::Written, none)
    }

    /// Takes a block, which the chain gives to one file, from the file that has it so far.
    fn take_from_others(&self, file: &Incore, at: BlkAddr) -> Result<()> {
        if !self.space.is_valid(at) {
            return Ok(());
        }
        let Some(owner) = self.owner_at(at)? else { return Ok(()) };
        if owner.ino == file.ino {
            let leaf = self.existing_leaf(file, owner.lbn)?;
            return leaf.map_or(Ok(()), |leaf| self.clear(file, leaf, owner.lbn..owner.lbn + 1).map(drop));
        }
        let other = self.incore(owner.ino)?;
        let _map = other.map.lock();
        let leaf = self.existing_leaf(&other, owner.lbn)?;
        leaf.map_or(Ok(()), |leaf| self.clear(&other, leaf, owner.lbn..owner.lbn + 1).map(drop))
    }

    /// Gives a recovered new file its name; a file that has that name so far loses it. The file stays without a name if
    /// the chain says what no fsync writes: a name of another kind of inode, `.` or `..`, a parent that is no
    /// directory, the name of a directory.
    fn rename_recovered(&self, ino: Nid) -> Result<()> {
        let file = self.incore(ino)?;
        let told = self.inode(&file)?;
        let is_dot = matches!(&*told.name, b"." | b"..");
        let Some(name) = Name::new(&told.name).filter(|_| !is_dot && file.kind == FileKind::Regular) else {
            return Ok(());
        };
        let dir = match self.usable(told.pino) {
            Ok(dir) if dir.is_dir() => dir,
            Ok(_) | Err(Error::Stale(_)) => return Ok(()),
            Err(error) => return Err(error),
        };
        match self.find_name(&dir, name)? {
            Some(found) if found.ino == ino || found.kind == Some(FileKind::Directory) => return Ok(()),
            Some(found) => {
                self.remove_name(&dir, name)?;
                self.unlink_recovered(found.ino)?;
            }
            None => {}
        }
        self.insert_name(&dir, name, ino, file.kind, &mut Admission::none())
    }

    fn unlink_recovered(&self, ino: Nid) -> Result<()> {
        let file = self.incore(ino)?;
        let links = self.inode(&file)?.links.saturating_sub(1);
        self.change_inode(&file, |inode| inode.links = links)?;
        if links > 0 {
            return Ok(());
        }
        self.orphans.lock().insert(ino);
        self.reap_orphans()
    }
}

/// Returns the last mark of each inode that has one.
fn marked(chain: &[Link]) -> BTreeMap<Nid, Marked> {
    let mut marked: BTreeMap<Nid, Marked> = BTreeMap::new();
    let mut named = BTreeMap::new();
    for (at, link) in chain.iter().enumerate() {
        let footer = &link.footer;
        if footer.dentry && footer.nid == footer.ino {
            named.insert(footer.ino, at);
        }
        if footer.fsync {
            marked.entry(footer.ino).or_default().last = at;
        }
    }
    for (ino, mark) in &mut marked {
        mark.named = named.get(ino).copied().filter(|at| *at <= mark.last);
    }
    marked
}

/// Copies an inode's fields from the chain, except the places and the number of its blocks and
/// nodes.
fn copy_fields(bytes: &mut [u8], image: &[u8], told: &Inode, features: Features) -> Result<()> {
    let layout = told.layout(features.contains(Features::FLEXIBLE_INLINE_XATTR));
    let known = Inode::decode(bytes, Footer::decode(bytes).ino, features).map_err(damaged)?;
    if known.inline.contains(Inline::DATA) && !told.inline.contains(Inline::DATA) {
        bytes[layout.inline_range()].fill(0);
    }
    Inode { blocks: known.blocks, xattr_nid: known.xattr_nid, links: known.links.max(1), ..told.clone() }
        .encode_into(bytes);
    let attributes = layout.inline_xattr_range();
    bytes[attributes.clone()].copy_from_slice(&image[attributes]);
    if told.inline.contains(Inline::DATA) {
        bytes[layout.inline_range()].copy_from_slice(&image[layout.inline_range()]);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
