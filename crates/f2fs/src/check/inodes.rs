//! Pass 2: every inode that the NAT lists, and its attributes.

use std::collections::BTreeSet;

use moafs_vfs::types::FileKind;

use super::checker::{Checker, DirInfo, InodeState, Tell};
use super::nodes::{Expected, Walk};
use super::{CheckError, Issue};
use crate::format::inode::{self, Advise, INLINE_XATTR_WORDS_MAX, Inline, Inode, InodeFlags, Layout};
use crate::format::nat::NatEntry;
use crate::format::node::{Footer, XATTR_OFFSET};
use crate::format::superblock::Features;
use crate::format::xattr::{self, Attribute, NODE_BYTES};
use crate::format::{BLOCK, BlkAddr, Nid, dentry, u32_at};

impl Checker<'_> {
    pub(super) fn check_inodes(&mut self, tell: Tell<'_>) -> Result<(), CheckError> {
        let blocks = self.nat.blocks_used();
        let total = 2 * blocks.len() as u64;
        for (done, block) in (0..).zip(&blocks) {
            tell(2, done, total);
            let used = self.nat.used_in(*block);
            self.nodes_used += used.len() as u64;
            let places: Vec<BlkAddr> = used.iter().map(|(_, entry)| entry.addr).collect();
            self.volume.prefetch(places.into_iter().filter(|addr| self.geo.is_main(*addr)))?;
            for (nid, entry) in used {
                self.check_entry(nid, entry);
                if entry.ino == nid {
                    self.nat.see(nid);
                    self.check_inode(nid)?;
                }
            }
        }
        for (done, block) in (blocks.len() as u64..).zip(&blocks) {
            tell(2, done, total);
            for (nid, entry) in self.nat.used_in(*block) {
                if self.nat.see(nid) {
                    self.found(Issue::NodeUnreachable { nid, inode: entry.ino });
                    self.take_node(nid, entry.ino, Expected::Lost)?;
                }
            }
        }
        tell(2, total, total);
        Ok(())
    }

    fn check_entry(&mut self, nid: Nid, entry: NatEntry) {
        if !self.geo.is_main(entry.addr) {
            self.found(Issue::NatAddress { nid, block: entry.addr });
        }
        let owner = entry.ino;
        if owner != nid && (!self.nat.is_nid(owner) || self.nat.get(owner).ino != owner) {
            self.found(Issue::NatOwner { nid, inode: owner });
        }
    }

    fn check_inode(&mut self, ino: Nid) -> Result<(), CheckError> {
        let mut state =
            InodeState { ino, links: 0, names: 0, pino: Nid::NONE, name_hash: 0, kind: None, lost_pino: false };
        if let Some(page) = self.take_node(ino, ino, Expected::Inode)? {
            match Inode::decode(&page, ino, self.superblock.features) {
                Ok(inode) => {
                    state.links = inode.links;
                    state.pino = inode.pino;
                    state.name_hash = dentry::hash(&inode.name);
                    state.kind = Some(inode.kind);
                    state.lost_pino = inode.advise.contains(Advise::LOST_PINO);
                    self.check_contents(ino, &page, &inode)?;
                }
                Err(damage) => self.found(Issue::InodeDamaged { inode: ino, problem: damage.problem }),
            }
        }
        if state.kind == Some(FileKind::Directory) {
            self.dirs.insert(ino, DirInfo::default());
        }
        self.inodes.push(state);
        Ok(())
    }

    fn check_contents(&mut self, ino: Nid, page: &[u8], inode: &Inode) -> Result<(), CheckError> {
        let features = self.superblock.features;
        if let Err(problem) = inode::verify_checksum(page, &self.superblock.uuid, features) {
            self.found(Issue::InodeChecksum { inode: ino, problem });
        }
        self.check_features(ino, inode)?;
        self.check_xattr_size(ino, inode);
        let directory = inode.kind == FileKind::Directory;
        self.check_cold(&Footer::decode(page), directory);
        let layout = inode.layout(features.contains(Features::FLEXIBLE_INLINE_XATTR));
        let mut walk = Walk::new(ino, directory, inode::cached_extent(page));
        self.check_attributes(&mut walk, page, inode, layout)?;
        let has_tree = matches!(inode.kind, FileKind::Regular | FileKind::Directory | FileKind::Symlink);
        let is_inline = inode.inline.intersects(Inline::DATA | Inline::DENTRY);
        if has_tree && !is_inline {
            self.walk(&mut walk, page, layout)?;
        } else {
            self.check_inline(ino, page, inode, layout);
        }
        self.compare(&walk, page, inode);
        Ok(())
    }

    fn check_features(&mut self, ino: Nid, inode: &Inode) -> Result<(), CheckError> {
        let uses = [
            (Features::ENCRYPT, inode.advise.contains(Advise::ENCRYPT), "encrypt"),
            (Features::VERITY, inode.advise.contains(Advise::VERITY), "verity"),
            (Features::EXTRA_ATTR, inode.extra.is_some(), "extra_attr"),
            (Features::COMPRESSION, inode.flags.contains(InodeFlags::COMPRESSED), "compression"),
            (Features::CASEFOLD, inode.flags.contains(InodeFlags::CASEFOLD), "casefold"),
        ];
        let features = self.superblock.features;
        for (_, _, feature) in uses.into_iter().filter(|(needs, is_used, _)| *is_used && !features.contains(*needs)) {
            self.found(Issue::InodeFeature { inode: ino, feature });
        }
        if features.contains(Features::ENCRYPT) && inode.advise.contains(Advise::ENCRYPT) {
            return Err(CheckError::Unsupported(format!("inode {ino} is encrypted")));
        }
        Ok(())
    }

    /// Checks that there is room for attributes in an inode that keeps some. In special files `fsck.f2fs` accepts any
    /// number.
    fn check_xattr_size(&mut self, inode: Nid, fields: &Inode) {
        let flexible = self.superblock.features.contains(Features::FLEXIBLE_INLINE_XATTR);
        let Some(extra) = fields.extra.as_ref().filter(|_| flexible) else { return };
        if !matches!(fields.kind, FileKind::Regular | FileKind::Directory | FileKind::Symlink) {
            return;
        }
        let stored = extra.inline_xattr_words;
        if fields.inline.contains(Inline::XATTR) && !(1..=INLINE_XATTR_WORDS_MAX).contains(&stored) {
            self.found(Issue::InlineXattrSize { inode, stored, most: INLINE_XATTR_WORDS_MAX });
        }
    }

    /// Checks an inode that keeps its contents inside, or has none.
    fn check_inline(&mut self, ino: Nid, page: &[u8], inode: &Inode, layout: Layout) {
        let has_nodes = (0..inode::NIDS_PER_INODE).any(|slot| inode::nid_slot(page, slot) != Nid::NONE);
        let device = matches!(inode.kind, FileKind::CharDevice | FileKind::BlockDevice);
        let is_inline = inode.inline.intersects(Inline::DATA | Inline::DENTRY);
        // A device's number takes the first two addresses.
        let addresses = if device { 2 } else { 0 }..layout.addresses() as usize;
        let has_addresses = !is_inline && addresses.into_iter().any(|slot| layout.addr(page, slot) != BlkAddr::NULL);
        if has_nodes || has_addresses {
            self.found(Issue::UnexpectedPointers { inode: ino });
        }
        if !is_inline {
            return;
        }
        let reserved = u32_at(page, layout.addr_range().start);
        if reserved != 0 {
            self.found(Issue::InlineReserved { inode: ino, stored: reserved });
        }
        let written = page[layout.inline_range()].iter().any(|byte| *byte != 0);
        if inode.inline.contains(Inline::DATA) && written && !inode.inline.contains(Inline::DATA_EXIST) {
            self.found(Issue::InlineUnmarked { inode: ino });
        }
    }

    /// Compares what an inode says of itself with what was found.
    fn compare(&mut self, walk: &Walk, page: &[u8], inode: &Inode) {
        let ino = walk.ino;
        if inode.blocks != walk.blocks {
            self.found(Issue::BlocksCount { inode: ino, stored: inode.blocks, counted: walk.blocks });
        }
        if let Some(extent) = walk.extent
            && (walk.extent_wrong || walk.extent_blocks != u64::from(extent.blocks))
        {
            let (lbn, block, blocks) = (extent.lbn, extent.addr, extent.blocks);
            self.found(Issue::Extent { inode: ino, lbn, block, blocks });
        }
        let may_not_exceed = !inode.advise.intersects(Advise::KEEP_SIZE | Advise::VERITY);
        let end = walk.last.map_or(0, |last| (last + 1) * BLOCK as u64);
        match inode.kind {
            FileKind::Directory if inode.size < end => {
                self.found(Issue::SizeTooSmall { inode: ino, stored: inode.size, least: end });
            }
            FileKind::Regular if may_not_exceed && inode.size.next_multiple_of(BLOCK as u64) < end => {
                let lbn = end / BLOCK as u64 - 1;
                self.found(Issue::BlocksBeyondEnd { inode: ino, stored: inode.size, lbn });
            }
            FileKind::Symlink => self.check_symlink(walk, page, inode),
            _ => {}
        }
    }

    fn check_symlink(&mut self, walk: &Walk, page: &[u8], inode: &Inode) {
        let is_inline = inode.inline.contains(Inline::DATA);
        let flexible = self.superblock.features.contains(Features::FLEXIBLE_INLINE_XATTR);
        let target = &page[inode.layout(flexible).inline_range()];
        let inside = usize::try_from(inode.size).ok().and_then(|len| target.get(..len));
        let problem = match inode.size {
            0 => "it is empty".to_owned(),
            size if size >= BLOCK as u64 => format!("it has {size} bytes"),
            _ if is_inline && inside.is_none_or(|target| target.contains(&0)) => "it contains a zero byte".to_owned(),
            _ if !is_inline && walk.last != Some(0) => "it is not one block".to_owned(),
            _ => return,
        };
        self.found(Issue::SymlinkInvalid { inode: walk.ino, problem });
    }

    fn check_attributes(
        &mut self,
        walk: &mut Walk,
        page: &[u8],
        inode: &Inode,
        layout: Layout,
    ) -> Result<(), CheckError> {
        let inside = if inode.inline.contains(Inline::XATTR) { &page[layout.inline_xattr_range()] } else { &[] };
        let mut stream = inside.to_vec();
        if inode.xattr_nid != Nid::NONE {
            let Some(node) = self.child(walk, inode.xattr_nid, XATTR_OFFSET)? else { return Ok(()) };
            stream.extend_from_slice(&node[..NODE_BYTES]);
        }
        let magic = stream.get(..4).map_or(0, |bytes| u32_at(bytes, 0));
        if ![0, xattr::MAGIC].contains(&magic) {
            self.found(Issue::XattrMagic { inode: walk.ino, stored: magic });
            return Ok(());
        }
        if let Err(problem) = xattr::decode(&stream).and_then(|attributes| judge_attributes(&attributes)) {
            self.found(Issue::Xattrs { inode: walk.ino, problem });
        }
        Ok(())
    }
}

/// Name spaces that have names of their own, and those whose name says all.
const NAMED: [u8; 6] = [1, 4, 5, 6, 9, 11];
const NAMELESS: [u8; 3] = [2, 3, 7];

fn judge_attributes(attributes: &[Attribute]) -> Result<(), String> {
    let mut names = BTreeSet::new();
    for attribute in attributes {
        let name = attribute.name.escape_ascii();
        let index = attribute.index;
        let spaces = if attribute.name.is_empty() { &NAMELESS[..] } else { &NAMED[..] };
        if !spaces.contains(&index) {
            return Err(format!("'{name}' cannot be in name space {index}"));
        }
        if attribute.call_value().is_none() {
            return Err(format!("the access control list in name space {index} is none"));
        }
        if !names.insert((index, &attribute.name)) {
            return Err(format!("'{name}' in name space {index} occurs twice"));
        }
    }
    Ok(())
}
