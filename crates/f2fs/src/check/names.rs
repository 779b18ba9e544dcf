//! Pass 3: the entries of every directory.

use std::collections::{BTreeMap, BTreeSet};

use moafs_disk::Page;
use moafs_vfs::types::FileKind;

use super::checker::{Checker, Tell};
use super::nodes::foreign;
use super::{CheckError, Issue};
use crate::format::dentry::{self, Entry, Region};
use crate::format::inode::{self, Inline, Inode, Layout};
use crate::format::node::{self, ADDRS_PER_NODE, Footer, NIDS_PER_NODE};
use crate::format::sit::ValidMap;
use crate::format::superblock::Features;
use crate::format::{BlkAddr, Nid, Segno};

const DOTS: [&str; 2] = [".", ".."];

/// The place of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    hash: u32,
    block: BlkAddr,
    slot: u8,
}

/// A directory under check.
struct Directory {
    ino: Nid,
    /// The region of its entries if they lie inside the inode.
    inline: Option<Region>,
    /// Levels of its hash table, and by how much the first one is larger.
    depth: u32,
    dir_level: u8,
    /// The inodes that `.` and `..` name.
    dots: [Option<Nid>; 2],
    places: Vec<Place>,
    /// Blocks that have been read.
    read: BTreeMap<Segno, ValidMap>,
}

/// A set of entries: a block, or inside the inode.
struct Shelf<'b> {
    bytes: &'b [u8],
    block: BlkAddr,
    lbn: u64,
}

fn text(name: &[u8]) -> String {
    name.escape_ascii().to_string()
}

impl Checker<'_> {
    pub(super) fn check_names(&mut self, tell: Tell<'_>) -> Result<(), CheckError> {
        let dirs: Vec<Nid> = self.dirs.keys().copied().collect();
        let total = dirs.len() as u64;
        for (done, ino) in (0..).zip(dirs) {
            tell(3, done, total);
            self.check_directory(ino)?;
        }
        tell(3, total, total);
        Ok(())
    }

    fn check_directory(&mut self, ino: Nid) -> Result<(), CheckError> {
        let block = self.nat.get(ino).addr;
        let page = self.volume.read(block)?;
        let features = self.superblock.features;
        let Ok(inode) = Inode::decode(&page, ino, features) else { return Ok(()) };
        let layout = inode.layout(features.contains(Features::FLEXIBLE_INLINE_XATTR));
        let is_inline = inode.inline.contains(Inline::DENTRY);
        let mut directory = Directory {
            ino,
            inline: is_inline.then(|| Region::inline(layout.inline_range())),
            depth: inode.current_depth,
            dir_level: inode.dir_level,
            dots: [None; 2],
            places: Vec::new(),
            read: BTreeMap::new(),
        };
        if is_inline {
            self.check_shelf(&mut directory, &Shelf { bytes: &page, block, lbn: 0 });
        } else {
            self.check_blocks(&mut directory, &page, layout)?;
        }
        self.check_dots(&directory, inode.inline.contains(Inline::DOTS));
        self.check_duplicates(directory)
    }

    /// Goes through the blocks in order, with the same care as pass 2, but in silence.
    fn check_blocks(&mut self, directory: &mut Directory, inode: &[u8], layout: Layout) -> Result<(), CheckError> {
        let own = (0..layout.addresses() as usize).map(|slot| (slot as u64, layout.addr(inode, slot)));
        self.check_leaf(directory, own.collect())?;
        for tree in node::trees(layout.addresses()) {
            let nid = inode::nid_slot(inode, tree.slot.into());
            self.check_subtree(directory, nid, tree.offset, tree.level, tree.first)?;
        }
        Ok(())
    }

    fn check_subtree(
        &mut self,
        directory: &mut Directory,
        nid: Nid,
        offset: u32,
        level: u32,
        first: u64,
    ) -> Result<(), CheckError> {
        let Some(page) = self.node_again(nid, directory.ino, offset)? else { return Ok(()) };
        if level == 1 {
            let leaf = (0..ADDRS_PER_NODE).map(|slot| (first + slot as u64, node::addr(&page, slot)));
            return self.check_leaf(directory, leaf.collect());
        }
        self.prefetch_children(&page)?;
        for slot in 0..NIDS_PER_NODE {
            let offset = offset + 1 + slot as u32 * node::nodes_in(level - 1);
            let first = first + slot as u64 * node::blocks_below(level - 1);
            self.check_subtree(directory, node::nid(&page, slot), offset, level - 1, first)?;
        }
        Ok(())
    }

    fn node_again(&mut self, nid: Nid, ino: Nid, offset: u32) -> Result<Option<Page>, CheckError> {
        let entry = self.nat.get(nid);
        if nid == Nid::NONE || entry.ino != ino || !self.geo.is_main(entry.addr) {
            return Ok(None);
        }
        let page = self.volume.read(entry.addr)?;
        Ok(foreign(&Footer::decode(&page), nid, ino, Some(offset)).is_none().then_some(page))
    }

    fn check_leaf(&mut self, directory: &mut Directory, mut leaf: Vec<(u64, BlkAddr)>) -> Result<(), CheckError> {
        // A block that is there twice is read once: pass 2 has told.
        leaf.retain(|(_, block)| match self.geo.segment_of(*block) {
            Some((segno, offset)) => {
                let read = directory.read.entry(segno).or_default();
                let again = read.get(offset);
                read.set(offset);
                !again
            }
            None => false,
        });
        self.volume.prefetch(leaf.iter().map(|(_, block)| *block))?;
        for (lbn, block) in leaf {
            let page = self.volume.read(block)?;
            self.check_shelf(directory, &Shelf { bytes: &page, block, lbn });
        }
        Ok(())
    }

    fn check_shelf(&mut self, directory: &mut Directory, shelf: &Shelf<'_>) {
        let region = directory.inline.clone().unwrap_or(Region::BLOCK);
        for entry in dentry::entries(shelf.bytes, &region) {
            match entry {
                Ok(entry) if entry.is_dot() => self.check_dot(directory, shelf.lbn, &entry),
                Ok(entry) => {
                    self.check_entry_place(directory, shelf.lbn, &entry);
                    self.check_target(directory.ino, &entry);
                    let (hash, block, slot) = (dentry::hash(entry.name), shelf.block, entry.slot as u8);
                    directory.places.push(Place { hash, block, slot });
                }
                Err(problem) => {
                    self.found(Issue::EntriesDamaged { directory: directory.ino, lbn: shelf.lbn, problem });
                }
            }
        }
    }

    fn check_dot(&mut self, directory: &mut Directory, lbn: u64, entry: &Entry<'_>) {
        let which = entry.name.len() - 1;
        let (ino, name) = (directory.ino, DOTS[which]);
        if lbn != 0 || entry.slot != dentry::DOT_SLOTS[which] {
            self.found(Issue::DotMisplaced { directory: ino, name, lbn });
            return;
        }
        directory.dots[which] = Some(entry.ino);
        if entry.hash != 0 {
            self.found(Issue::EntryHash { directory: ino, name: name.into(), stored: entry.hash, should: 0 });
        }
        if entry.kind != Some(FileKind::Directory) {
            self.found(Issue::EntryType { directory: ino, name: name.into(), inode: entry.ino });
        }
    }

    /// Checks that an entry's hash is right, and that it lies in the bucket to which the hash
    /// leads.
    fn check_entry_place(&mut self, directory: &Directory, lbn: u64, entry: &Entry<'_>) {
        let (ino, name, should) = (directory.ino, text(entry.name), dentry::hash(entry.name));
        if entry.hash != should {
            self.found(Issue::EntryHash { directory: ino, name, stored: entry.hash, should });
            return;
        }
        if directory.inline.is_some() {
            return;
        }
        let found = dentry::bucket_of(lbn, directory.dir_level).is_some_and(|(level, bucket)| {
            level < directory.depth && bucket == u64::from(should) % dentry::buckets(level, directory.dir_level)
        });
        if !found {
            self.found(Issue::EntryMisplaced { directory: ino, name, lbn });
        }
    }

    fn check_target(&mut self, directory: Nid, entry: &Entry<'_>) {
        let (name, inode) = (text(entry.name), entry.ino);
        if self.superblock.is_reserved(inode) {
            self.found(Issue::EntryReserved { directory, name, inode });
            return;
        }
        let Some(index) = self.inode_index(inode) else {
            self.found(Issue::EntryUnused { directory, name, inode });
            return;
        };
        let state = &mut self.inodes[index];
        state.names = state.names.saturating_add(1);
        let state = *state;
        if state.kind.is_some() && state.kind != entry.kind {
            self.found(Issue::EntryType { directory, name: name.clone(), inode });
        }
        match state.kind {
            Some(FileKind::Directory) => self.adopt(directory, name, inode),
            Some(_) => {
                let right = state.pino == directory && state.name_hash == dentry::hash(entry.name);
                if state.links == 1 && !state.lost_pino && !right {
                    self.found(Issue::NameStale { inode, directory, name });
                }
            }
            None => {}
        }
    }

    /// Records that a directory has its name in another one.
    fn adopt(&mut self, parent: Nid, name: String, inode: Nid) {
        let info = self.dirs.entry(inode).or_default();
        if info.parent.is_some() {
            self.found(Issue::EntryDirectoryAgain { directory: parent, name, inode });
            return;
        }
        info.parent = Some(parent);
        self.dirs.entry(parent).or_default().subdirs += 1;
    }

    fn check_dots(&mut self, directory: &Directory, may_be_missing: bool) {
        let ino = directory.ino;
        for (name, dot) in DOTS.into_iter().zip(directory.dots) {
            match dot {
                None if !may_be_missing => self.found(Issue::DotMissing { directory: ino, name }),
                Some(stored) if name == DOTS[0] && stored != ino => {
                    self.found(Issue::DotWrong { directory: ino, stored });
                }
                _ => {}
            }
        }
        self.dirs.entry(ino).or_default().dot_dot = directory.dots[1];
    }

    /// Compares names that have the same hash.
    fn check_duplicates(&mut self, directory: Directory) -> Result<(), CheckError> {
        let Directory { ino, inline, mut places, .. } = directory;
        let region = inline.unwrap_or(Region::BLOCK);
        places.sort_unstable();
        for group in places.chunk_by(|a, b| a.hash == b.hash).filter(|group| group.len() > 1) {
            let mut names = BTreeSet::new();
            for place in group {
                let page = self.volume.read(place.block)?;
                let entry = dentry::entries_from(&page, &region, place.slot.into()).next();
                if let Some(Ok(entry)) = entry
                    && !names.insert(entry.name.to_vec())
                {
                    self.found(Issue::EntryDuplicate { directory: ino, name: text(entry.name) });
                }
            }
        }
        Ok(())
    }
}
