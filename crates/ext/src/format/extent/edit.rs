//! Edits of extent trees: what becomes of the nodes when a range of file blocks gets another place, or none.
//!
//! [`plan`] reads the nodes that lead to the range, and changes nothing: it returns the new contents of each node that
//! changes, which nodes come and go, and which blocks the file has no more. So everything that can fail does so before
//! anything has changed, and what is carried out is a whole tree again.
//!
//! An edit rewrites the leaf that the range begins in, the leaves that it ends in, and the nodes above them. A node
//! that is full is split: an extent behind all others goes into a node of its own, so that files written in order leave
//! full nodes behind; else both halves have room. A node without entries goes, and with it the entry that leads to it.
//! A root with one child takes the child's entries as soon as they fit.

use std::ops::Range;

use super::{
    Bounds, Child, DEPTH_MAX, ENTRY_BYTES, Extent, HEADER_BYTES, LBN_END, MAGIC, Node, ROOT_BYTES, ROOT_ENTRIES, Tree,
    WRITTEN_MAX, block_entries, place,
};
use crate::format::{BlockNo, Damage, Geometry, InodeNo, put_u16, put_u32};

/// A change of the places of a range of file blocks.
#[derive(Debug, Clone)]
pub struct Edit {
    /// The file blocks that lose their places.
    pub range: Range<u64>,
    /// The new place of exactly these file blocks; `None` makes them a hole.
    pub put: Option<Extent>,
    /// The most blocks that lose their places; those at the end of the range do so first.
    pub budget: u64,
    /// The most extents that lose blocks.
    pub extents_max: usize,
}

impl Edit {
    /// Returns the edit that maps an extent, in place of what was there.
    pub fn put(extent: Extent) -> Edit {
        let range = extent.lbn.into()..extent.end();
        Edit { range, put: Some(extent), budget: u64::MAX, extents_max: usize::MAX }
    }

    /// Returns the edit that makes a hole, of `budget` blocks of `extents_max` extents at most.
    pub fn cut(range: Range<u64>, budget: u64, extents_max: usize) -> Edit {
        Edit { range, put: None, budget, extents_max }
    }
}

/// The nodes of a tree, as an edit needs them.
pub trait Nodes {
    /// Errors of reading and allocating.
    type Error: From<Damage>;

    /// Returns the bytes of a node that was checked.
    fn read(&mut self, child: Child) -> Result<Vec<u8>, Self::Error>;

    /// Returns a free block for a new node.
    fn allocate(&mut self) -> Result<BlockNo, Self::Error>;
}

/// The result of an edit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The root.
    pub root: [u8; ROOT_BYTES],
    /// The nodes that change, and their bytes. Bytes behind the last possible entry are zeros.
    pub rewritten: Vec<(BlockNo, Vec<u8>)>,
    /// The nodes that are new.
    pub added: Vec<(BlockNo, Vec<u8>)>,
    /// The nodes that are gone.
    pub removed: Vec<BlockNo>,
    /// The parts of extents that are gone: their blocks may be mapped again by the edit, in the same place.
    pub unmapped: Vec<Extent>,
    /// True if the budget was spent: more may be left to unmap.
    pub is_spent: bool,
}

impl Plan {
    /// Returns the number of blocks that the file has more than before, its nodes among them, if the edit maps `put`.
    pub fn blocks_more(&self, put: Option<Extent>) -> i64 {
        let blocks = |extents: &[Extent]| extents.iter().map(|extent| i64::from(extent.len)).sum::<i64>();
        let nodes = self.added.len() as i64 - self.removed.len() as i64;
        blocks(put.as_slice()) - blocks(&self.unmapped) + nodes
    }
}

/// The entries of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Entries {
    Extents(Vec<Extent>),
    /// The first file block and the block of each child.
    Children(Vec<(u32, BlockNo)>),
}

impl Entries {
    fn of(node: &Node<'_>) -> Entries {
        match node.depth() {
            0 => Entries::Extents(node.extents().collect()),
            _ => Entries::Children(node.children().map(|child| (child.bounds.first, child.block)).collect()),
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Entries::Extents(extents) => extents.len(),
            Entries::Children(children) => children.len(),
        }
    }

    pub(super) fn lbn(&self, index: usize) -> Option<u32> {
        match self {
            Entries::Extents(extents) => extents.get(index).map(|extent| extent.lbn),
            Entries::Children(children) => children.get(index).map(|child| child.0),
        }
    }

    pub(super) fn split_off(&mut self, at: usize) -> Entries {
        match self {
            Entries::Extents(extents) => Entries::Extents(extents.split_off(at)),
            Entries::Children(children) => Entries::Children(children.split_off(at)),
        }
    }

    /// Writes a node that has room for `room` entries.
    pub(super) fn encode(&self, bytes: &mut [u8], room: u16, depth: u16) {
        put_u16(bytes, 0, MAGIC);
        put_u16(bytes, 2, self.len() as u16);
        put_u16(bytes, 4, room);
        put_u16(bytes, 6, depth);
        let slots = bytes[HEADER_BYTES..].chunks_exact_mut(ENTRY_BYTES);
        match self {
            Entries::Extents(extents) => slots.zip(extents).for_each(|(slot, extent)| extent.encode(slot)),
            Entries::Children(children) => slots.zip(children).for_each(|(slot, &(lbn, block))| {
                put_u32(slot, 0, lbn);
                put_u32(slot, 4, block.0 as u32);
                put_u16(slot, 8, (block.0 >> 32) as u16);
            }),
        }
    }
}

impl Extent {
    /// Returns extents of legal lengths that together map `len` file blocks from `lbn` on to blocks from `start` on.
    pub(crate) fn cover(lbn: u64, start: u64, len: u64, unwritten: bool) -> impl Iterator<Item = Extent> {
        let len_max = usize::from(Self::len_max(unwritten));
        (0..len).step_by(len_max).map(move |at| Self::first_of(lbn + at, start + at, len - at, unwritten))
    }

    /// Returns the extent that maps the first of `len` file blocks from `lbn` on to blocks from `start` on: as many as
    /// one extent can.
    pub(crate) fn first_of(lbn: u64, start: u64, len: u64, unwritten: bool) -> Self {
        let len = len.min(Self::len_max(unwritten).into()) as u16;
        Self { lbn: lbn as u32, len, start: BlockNo(start), unwritten }
    }

    /// The most blocks of an extent in this state.
    fn len_max(unwritten: bool) -> u16 {
        if unwritten { WRITTEN_MAX - 1 } else { WRITTEN_MAX }
    }

    fn encode(&self, slot: &mut [u8]) {
        let len = if self.unwritten { WRITTEN_MAX + self.len } else { self.len };
        put_u32(slot, 0, self.lbn);
        put_u16(slot, 4, len);
        put_u16(slot, 6, (self.start.0 >> 32) as u16);
        put_u32(slot, 8, self.start.0 as u32);
    }

    /// Returns the part of the extent within a range; `None` if they do not meet.
    fn within(&self, range: &Range<u64>) -> Option<Extent> {
        let (from, to) = (range.start.max(self.lbn.into()), range.end.min(self.end()));
        let len = to.checked_sub(from).filter(|len| *len > 0)? as u16;
        let start = BlockNo(self.start.0 + (from - u64::from(self.lbn)));
        Some(Extent { lbn: from as u32, len, start, unwritten: self.unwritten })
    }

    /// Makes the extent longer by the first blocks of one that follows it, in the file as on the volume. Returns the
    /// rest.
    fn take_from(&mut self, next: Extent) -> Option<Extent> {
        let follows = self.end() == u64::from(next.lbn) && self.start.0 + u64::from(self.len) == next.start.0;
        if !follows || self.unwritten != next.unwritten {
            return Some(next);
        }
        let taken = next.len.min(Extent::len_max(self.unwritten) - self.len);
        self.len += taken;
        next.within(&(u64::from(next.lbn) + u64::from(taken)..next.end()))
    }
}

/// Plans an edit of a tree whose nodes outside of the inode have `block_bytes`.
///
/// # Errors
/// Broken rules of the nodes that are read, and the errors of `nodes`. Blocks that were allocated before are the
/// caller's to give back.
pub fn plan<N: Nodes>(
    tree: &Tree<'_>,
    geo: &Geometry,
    block_bytes: usize,
    edit: Edit,
    nodes: &mut N,
) -> Result<Plan, N::Error> {
    let root = Node::decode_root(tree.root, geo, tree.root_place())?;
    let (mut entries, mut depth) = (Entries::of(&root), root.depth());
    let mut planner = Planner {
        ino: tree.owner.ino,
        block_bytes,
        budget: edit.budget,
        edit,
        nodes,
        rewritten: Vec::new(),
        added: Vec::new(),
        removed: Vec::new(),
        unmapped: Vec::new(),
    };
    let top = Part { depth, end: LBN_END, gets_extent: planner.edit.put.is_some(), is_last: true };
    if planner.edit(&mut entries, top)? {
        if entries.len() > ROOT_ENTRIES.into() {
            if depth == DEPTH_MAX {
                return Err(tree.root_place().damage("the tree cannot grow: it has all levels already").into());
            }
            let first = entries.lbn(0).unwrap_or_default();
            let child = planner.add(depth, entries)?;
            (entries, depth) = (Entries::Children(vec![(first, child)]), depth + 1);
        }
        planner.lower(&mut entries, &mut depth)?;
    } else if planner.edit.put.is_some() {
        return Err(tree.root_place().damage("no leaf of the tree takes the extent").into());
    }
    Ok(planner.finish(&entries, depth))
}

/// A node, as seen from its parent.
#[derive(Debug, Clone, Copy)]
struct Part {
    depth: u16,
    /// The file block before which it ends.
    end: u64,
    /// True if the new extent goes into it, or below it.
    gets_extent: bool,
    /// True for the last node of its level.
    is_last: bool,
}

struct Planner<'a, N> {
    ino: InodeNo,
    block_bytes: usize,
    edit: Edit,
    budget: u64,
    nodes: &'a mut N,
    rewritten: Vec<(BlockNo, u16, Entries)>,
    added: Vec<(BlockNo, u16, Entries)>,
    removed: Vec<BlockNo>,
    unmapped: Vec<Extent>,
}

impl<N: Nodes> Planner<'_, N> {
    /// Carries the edit out on the entries of a node, which may be too many afterwards. Returns true if they changed.
    fn edit(&mut self, entries: &mut Entries, part: Part) -> Result<bool, N::Error> {
        match entries {
            Entries::Extents(extents) => Ok(self.edit_leaf(extents, part)),
            Entries::Children(children) => self.edit_children(children, part),
        }
    }

    fn edit_leaf(&mut self, extents: &mut Vec<Extent>, part: Part) -> bool {
        let before = self.unmapped.len();
        let range = self.affordable(extents);
        let mut kept = Vec::with_capacity(extents.len() + 2);
        for extent in &*extents {
            let Some(gone) = extent.within(&range) else {
                kept.push(*extent);
                continue;
            };
            self.budget -= u64::from(gone.len);
            self.unmapped.push(gone);
            if self.unmapped.len() >= self.edit.extents_max {
                self.budget = 0;
            }
            kept.extend(extent.within(&(0..range.start)));
            kept.extend(extent.within(&(range.end..u64::MAX)));
        }
        let put = self.edit.put.filter(|_| part.gets_extent);
        let changed = put.is_some() || self.unmapped.len() > before;
        if let Some(put) = put {
            insert(&mut kept, put);
        }
        *extents = kept;
        changed
    }

    /// Returns the end of the range as far as the budget allows to unmap it here.
    fn affordable(&self, extents: &[Extent]) -> Range<u64> {
        let Range { start, end } = self.edit.range.clone();
        let mut left = self.budget;
        let mut extents_left = self.edit.extents_max - self.unmapped.len();
        for extent in extents.iter().rev() {
            let Some(part) = extent.within(&self.edit.range) else { continue };
            if extents_left == 0 {
                return part.end()..end;
            }
            extents_left -= 1;
            if u64::from(part.len) > left {
                return part.end() - left..end;
            }
            left -= u64::from(part.len);
        }
        start..end
    }

    fn edit_children(&mut self, children: &mut Vec<(u32, BlockNo)>, part: Part) -> Result<bool, N::Error> {
        let put = self.edit.put.filter(|_| part.gets_extent);
        // The extent goes behind the last one before it; what begins behind it is in a later node, or nowhere.
        let target = put.map(|put| children.partition_point(|child| child.0 <= put.lbn).saturating_sub(1));
        let last = children.len().saturating_sub(1);
        let (mut end, mut changed) = (part.end, false);
        for index in (0..children.len()).rev() {
            let (first, block) = children[index];
            let bounds = Bounds { first, end, depth: part.depth.saturating_sub(1) };
            end = first.into();
            let gets_extent = target == Some(index);
            let is_met = u64::from(first) < self.edit.range.end && self.edit.range.start < bounds.end;
            if !gets_extent && (!is_met || self.budget == 0) {
                continue;
            }
            let below =
                Part { depth: bounds.depth, end: bounds.end, gets_extent, is_last: part.is_last && index == last };
            changed |= self.edit_child(children, index, Child { block, bounds }, below)?;
        }
        Ok(changed)
    }

    /// Carries the edit out on a child; its parent's entries then lead to what it has become.
    fn edit_child(
        &mut self,
        children: &mut Vec<(u32, BlockNo)>,
        index: usize,
        child: Child,
        part: Part,
    ) -> Result<bool, N::Error> {
        let mut entries = self.read(child)?;
        if !self.edit(&mut entries, part)? {
            return Ok(false);
        }
        let Some(first) = entries.lbn(0) else {
            self.removed.push(child.block);
            children.remove(index);
            return Ok(true);
        };
        children[index].0 = first;
        let room = usize::from(block_entries(self.block_bytes));
        if entries.len() > room {
            let appended = self.edit.put.is_some_and(|put| entries.lbn(entries.len() - 1) <= Some(put.lbn));
            let at = if part.is_last && appended { room } else { entries.len() / 2 };
            let rest = entries.split_off(at);
            let first = rest.lbn(0).unwrap_or_default();
            let block = self.add(part.depth, rest)?;
            children.insert(index + 1, (first, block));
        }
        self.rewritten.push((child.block, part.depth, entries));
        Ok(true)
    }

    fn read(&mut self, child: Child) -> Result<Entries, N::Error> {
        let bytes = self.nodes.read(child)?;
        Ok(Entries::of(&Node::view(&bytes, child.bounds, place(self.ino, child))?))
    }

    fn add(&mut self, depth: u16, entries: Entries) -> Result<BlockNo, N::Error> {
        let block = self.nodes.allocate()?;
        self.added.push((block, depth, entries));
        Ok(block)
    }

    /// Takes the entries of the root's only child into the root, as long as they fit.
    fn lower(&mut self, root: &mut Entries, depth: &mut u16) -> Result<(), N::Error> {
        while let Entries::Children(children) = &*root {
            let &[(first, block)] = &children[..] else {
                if children.is_empty() {
                    (*root, *depth) = (Entries::Extents(Vec::new()), 0);
                }
                return Ok(());
            };
            let known = self.rewritten.iter().chain(&self.added).find(|node| node.0 == block);
            let below = match known {
                Some((_, _, entries)) => entries.clone(),
                None => self.read(Child { block, bounds: Bounds { first, end: LBN_END, depth: *depth - 1 } })?,
            };
            if below.len() > ROOT_ENTRIES.into() {
                return Ok(());
            }
            self.rewritten.retain(|node| node.0 != block);
            self.removed.push(block);
            (*root, *depth) = (below, *depth - 1);
        }
        Ok(())
    }

    fn finish(self, entries: &Entries, depth: u16) -> Plan {
        let mut root = [0; ROOT_BYTES];
        entries.encode(&mut root, ROOT_ENTRIES, depth);
        let room = block_entries(self.block_bytes);
        let encode = |(block, depth, entries): (BlockNo, u16, Entries)| {
            let mut bytes = vec![0; self.block_bytes];
            entries.encode(&mut bytes, room, depth);
            (block, bytes)
        };
        Plan {
            root,
            rewritten: self.rewritten.into_iter().map(encode).collect(),
            added: self.added.into_iter().map(encode).collect(),
            removed: self.removed,
            unmapped: self.unmapped,
            is_spent: self.budget == 0,
        }
    }
}

/// Inserts an extent into a hole, joined with its neighbours where they follow one another on the volume.
fn insert(extents: &mut Vec<Extent>, put: Extent) {
    let at = extents.partition_point(|extent| extent.lbn < put.lbn);
    let rest = match at.checked_sub(1) {
        Some(before) => extents[before].take_from(put),
        None => Some(put),
    };
    let Some(mut rest) = rest else {
        return join_next(extents, at - 1);
    };
    if let Some(next) = extents.get_mut(at)
        && u64::from(rest.len) + u64::from(next.len) <= u64::from(Extent::len_max(rest.unwritten))
        && rest.take_from(*next).is_none()
    {
        *next = rest;
        return;
    }
    extents.insert(at, rest);
}

/// Joins an extent with the next one if one extent can hold both.
fn join_next(extents: &mut Vec<Extent>, at: usize) {
    let Some(&next) = extents.get(at + 1) else { return };
    let mut joined = extents[at];
    if joined.take_from(next).is_none() {
        extents[at] = joined;
        extents.remove(at + 1);
    }
}

/// Returns the root of a tree of at most one extent.
pub fn new_root(extent: Option<Extent>) -> [u8; ROOT_BYTES] {
    let mut root = [0; ROOT_BYTES];
    Entries::Extents(extent.into_iter().collect()).encode(&mut root, ROOT_ENTRIES, 0);
    root
}

#[cfg(test)]
mod tests;
