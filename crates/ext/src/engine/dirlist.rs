//! Listing a directory while it changes: a name that is there all the time is listed once.
//!
//! Where names keep their places, a position is a byte of the directory. In an indexed directory that is kept up to
//! date names move, when a leaf is cut or packed; but never out of the order of their hashes. So the list goes by
//! hash there, leaf by leaf, as the index has them. A directory whose only block was being listed when it got an index
//! remembers the places that its names had.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::Ordering;

use moafs_vfs::Result;
use moafs_vfs::format::DirSink;
use moafs_vfs::types::{Cookie, Dentry, Ino, Name};

use super::dir::{IndexReader, count_name_blocks};
use super::incore::Incore;
use super::names::{FormerPlaces, Index, is_dot};
use super::volume::Ext;
use crate::format::dir::{self as codec, DirEntry, Entries};
use crate::format::fnv::hash_of;
use crate::format::htree::edit::{self, Way};
use crate::format::htree::{Hasher, Version};
use crate::format::inode::InodeFlags;
use crate::health::damaged;

/// Names that are listed together.
struct Part {
    /// Bytes that hold the names.
    bytes: Vec<u8>,
    names: Vec<Listed>,
    /// The position behind them all, unless the directory ends there.
    next: Option<Cookie>,
}

/// A name of a part.
struct Listed {
    name: Range<usize>,
    dentry: Dentry,
    at: Cookie,
    /// The position behind it.
    behind: Cookie,
}

/// Positions in the order of hashes: above all bytes of a directory, and below 2⁶³, as file positions must be.
mod by_hash {
    use super::*;

    const FIRST: u64 = 1 << 62;
    const TIE_BITS: u32 = 20;
    /// Names that share a hash and a tie are told apart by their order, which is stable unless one of them comes or
    /// goes.
    const TWIN_BITS: u32 = 11;

    /// The position of `..`, behind `.`.
    pub(super) const DOT_DOT: Cookie = Cookie(FIRST - 1);

    /// Returns the position of the first name whose hash is `hash`.
    pub(super) fn at(hash: u32) -> Cookie {
        Cookie(FIRST | u64::from(hash >> 1) << (TIE_BITS + TWIN_BITS))
    }

    /// Returns the hash of the names at a position.
    pub(super) fn hash(at: Cookie) -> u32 {
        (((at.0 ^ FIRST) >> (TIE_BITS + TWIN_BITS)) << 1) as u32
    }

    /// Returns the position of the first name like `name` among those of its hash, which is taken for one of `hashes`
    /// if the name lies in a leaf where it does not belong.
    pub(super) fn of(name: &[u8], hasher: &Hasher, hashes: &Range<u64>) -> Cookie {
        let hash = hasher.hash(name);
        let major = u64::from(hash.major).clamp(hashes.start, hashes.end - 1) as u32;
        let tie = if hasher.version == Version::Legacy { hash_of(name) } else { hash.minor };
        Cookie(at(major).0 | u64::from(tie >> (u32::BITS - TIE_BITS)) << TWIN_BITS)
    }

    /// Returns the position of the name that has `twins` before it at the position `first`.
    pub(super) fn twin(first: Cookie, twins: u64) -> Cookie {
        Cookie(first.0 + twins.min((1 << TWIN_BITS) - 1))
    }
}

impl Ext {
    /// Lists entries from a position on.
    pub(super) fn list_names(&self, dir: &Incore, from: Cookie, to: &mut DirSink<'_>) -> Result<()> {
        let mut next = Some(from);
        while let Some(from) = next {
            // Nothing is locked while `to` runs: it may look names up in this very directory.
            let part = self.health.watch(self.part_from(dir, from))?;
            for listed in part.names.iter().filter(|listed| listed.at >= from) {
                let Some(name) = Name::new(&part.bytes[listed.name.clone()]) else { continue };
                if !to(name, listed.dentry, listed.behind) {
                    return Ok(());
                }
            }
            next = part.next;
        }
        Ok(())
    }

    fn part_from(&self, dir: &Incore, from: Cookie) -> Result<Part> {
        let guard = self.index(dir)?;
        let index = guard.as_ref().expect("index() builds it");
        let is_kept = self.meta.has_journal() && dir.state.lock().inode.flags.contains(InodeFlags::INDEX);
        if !is_kept {
            // The index that a position by hash came from was given up.
            let from = if from >= by_hash::DOT_DOT { Cookie::START } else { from };
            return self.part_by_place(dir, index, from);
        }
        if from > by_hash::DOT_DOT {
            return self.part_by_hash(dir, index, from);
        }
        let is_place = from != Cookie::START && from != by_hash::DOT_DOT;
        if let Some(former) = index.former.as_ref().filter(|_| is_place) {
            return self.part_of_former(dir, index, former);
        }
        if self.is_index_whole(dir, index) {
            return self.dots(dir, index);
        }
        self.part_by_place(dir, index, if is_place { from } else { Cookie::START })
    }

    /// Returns the names of the block in which a byte of the directory lies.
    fn part_by_place(&self, dir: &Incore, index: &Index, from: Cookie) -> Result<Part> {
        index.is_listed.store(true, Ordering::Relaxed);
        let size = index.inline.as_ref().map_or(self.geo.block_bytes(), Vec::len) as u64;
        let count = count_name_blocks(&index.blocks, index.inline.as_deref()) as u64;
        let lbn = from.0 / size;
        if lbn >= count {
            return Ok(Part { bytes: Vec::new(), names: Vec::new(), next: None });
        }
        let bytes = match &index.inline {
            Some(image) => image.clone(),
            None => self.names_block(dir, &index.blocks, lbn as usize)?,
        };
        let entries = Entries::check(&bytes, self.form, self.names_place(dir, &index.blocks, lbn as usize));
        let listed = |entry: DirEntry<'_>| {
            let at = Cookie(lbn * size + entry.offset as u64);
            // The end of the entry's own bytes: stays inside or at the border of any record this one is merged into.
            let behind = Cookie(at.0 + codec::record_bytes(entry.name.len()) as u64);
            Listed { name: name_of(&entry), dentry: dentry_of(&entry), at, behind }
        };
        let names = entries.map_err(damaged)?.used().map(listed).collect();
        let next = (lbn + 1 < count).then_some(Cookie((lbn + 1) * size));
        Ok(Part { bytes, names, next })
    }

    /// Returns the names of the leaf in which a position by hash lies, and of those that go on with its last hash.
    fn part_by_hash(&self, dir: &Incore, index: &Index, from: Cookie) -> Result<Part> {
        let superblock = self.superblock.lock().clone();
        let mut reader = IndexReader { ext: self, dir, blocks: index.blocks() };
        let mut way = edit::way_to_hash(&mut reader, by_hash::hash(from), &superblock)?;
        let first = u64::from(way.first_hash());
        let (mut leaves, mut met) = (vec![way.leaf], BTreeSet::from([way.leaf]));
        while way.next_hash().is_some_and(|hash| hash & 1 == 1) && way.advance(&mut reader)?.is_some() {
            if !met.insert(way.leaf) || leaves.len() >= index.blocks.len() {
                let place = self.dir_place(dir, 0, index.blocks[0]);
                return Err(damaged(place.damage(format!("the index leads to leaf {} again", way.leaf))));
            }
            leaves.push(way.leaf);
        }
        let end = way.next_hash();
        if end.is_some_and(|end| end <= by_hash::hash(from)) {
            let place = self.dir_place(dir, 0, index.blocks[0]);
            return Err(damaged(place.damage("the index leads from a hash to one that is not behind it")));
        }
        let hashes = first & !1..end.map_or(1 << 32, u64::from);
        let mut part = Part { bytes: Vec::new(), names: Vec::new(), next: end.map(by_hash::at) };
        for leaf in leaves {
            self.add_leaf(dir, index, (leaf as usize, &way, &hashes), &mut part)?;
        }
        part.tell_twins_apart();
        Ok(part)
    }

    fn add_leaf(
        &self,
        dir: &Incore,
        index: &Index,
        (leaf, way, hashes): (usize, &Way, &Range<u64>),
        part: &mut Part,
    ) -> Result<()> {
        if leaf >= index.blocks.len() {
            let place = self.dir_place(dir, 0, index.blocks[0]);
            return Err(damaged(place.damage(format!("the index names block {leaf} behind the directory's end"))));
        }
        let bytes = self.names_block(dir, &index.blocks, leaf)?;
        let entries = Entries::check(&bytes, self.form, self.names_place(dir, &index.blocks, leaf)).map_err(damaged)?;
        for entry in entries.used().filter(|entry| !is_dot(entry.name)) {
            let name = name_of(&entry);
            let name = part.bytes.len() + name.start..part.bytes.len() + name.end;
            let at = by_hash::of(entry.name, &way.hasher, hashes);
            part.names.push(Listed { name, dentry: dentry_of(&entry), at, behind: at });
        }
        part.bytes.extend(bytes);
        Ok(())
    }

    /// Returns `.` and `..`, with which a list by hash begins.
    fn dots(&self, dir: &Incore, index: &Index) -> Result<Part> {
        let mut part = Part { bytes: b"..".to_vec(), names: Vec::new(), next: Some(by_hash::at(0)) };
        for (len, at, behind) in [(1, Cookie::START, by_hash::DOT_DOT), (2, by_hash::DOT_DOT, by_hash::at(0))] {
            part.add_found(self, dir, index, (0..len, at, behind))?;
        }
        Ok(part)
    }

    /// Returns those names that a directory had before its index and still has, where they were then.
    fn part_of_former(&self, dir: &Incore, index: &Index, former: &FormerPlaces) -> Result<Part> {
        let mut part = Part { bytes: Vec::new(), names: Vec::new(), next: None };
        for (at, name) in former {
            let range = part.bytes.len()..part.bytes.len() + name.len();
            part.bytes.extend_from_slice(name);
            let behind = Cookie(at.0 + codec::record_bytes(name.len()) as u64);
            part.add_found(self, dir, index, (range, *at, behind))?;
        }
        Ok(part)
    }

    /// Returns true if the index leads to each block of the directory: then a list by hash misses no name.
    fn is_index_whole(&self, dir: &Incore, index: &Index) -> bool {
        let superblock = self.superblock.lock().clone();
        let mut reader = IndexReader { ext: self, dir, blocks: index.blocks() };
        let Ok(mut way) = edit::way_to_hash(&mut reader, 0, &superblock) else { return false };
        let mut blocks = way.steps.len() + 1;
        while blocks <= index.blocks.len() {
            match way.advance(&mut reader) {
                Ok(Some(nodes)) => blocks += nodes + 1,
                Ok(None) => return blocks == index.blocks.len(),
                Err(_) => return false,
            }
        }
        false
    }
}

impl Part {
    /// Adds a name whose bytes are there already, if the directory has it.
    fn add_found(
        &mut self,
        ext: &Ext,
        dir: &Incore,
        index: &Index,
        (name, at, behind): (Range<usize>, Cookie, Cookie),
    ) -> Result<()> {
        if let Some(found) = ext.find_slot(dir, index, &self.bytes[name.clone()])? {
            let dentry = Dentry { ino: Ino(found.ino.0.into()), kind: found.kind };
            self.names.push(Listed { name, dentry, at, behind });
        }
        Ok(())
    }

    /// Orders the names by their positions, and gives those that share one positions of their own.
    fn tell_twins_apart(&mut self) {
        let Part { bytes, names, .. } = self;
        names.sort_by(|a, b| (a.at, &bytes[a.name.clone()]).cmp(&(b.at, &bytes[b.name.clone()])));
        let mut before: Option<(Cookie, u64)> = None;
        for listed in names {
            let twins = before.filter(|(at, _)| *at == listed.at).map_or(0, |(_, twins)| twins + 1);
            before = Some((listed.at, twins));
            listed.at = by_hash::twin(listed.at, twins);
            listed.behind = Cookie(listed.at.0 + 1);
        }
    }
}

/// Returns the bytes of an entry's name in its block.
fn name_of(entry: &DirEntry<'_>) -> Range<usize> {
    let start = entry.offset + codec::HEADER_BYTES;
    start..start + entry.name.len()
}

fn dentry_of(entry: &DirEntry<'_>) -> Dentry {
    Dentry { ino: Ino(entry.inode.0.into()), kind: entry.kind() }
}
