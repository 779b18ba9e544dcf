//! Extent trees: the other way from a file's block number to a block of the volume.
//!
//! A node is a header and entries of twelve bytes; the root lies in the inode (`i_block`), every other node in a block
//! of its own with a checksum behind its last possible entry. Leaves hold extents, interior nodes one entry per child.
//!
//! [`Node::decode`] checks a node whole and against its parent ([`Bounds`]): after it no accessor fails. A child begins
//! exactly at the file block that its entry names, is one level lower, and ends before the next entry. So the trees
//! that pass have no cycles and no node twice, and a search reads at most [`DEPTH_MAX`] blocks.

mod build;
pub mod edit;
mod salvage;

use std::ops::Deref;

pub use build::{Built, build, node_count};
pub use salvage::{Salvaged, salvage};

use super::map::POINTERS;
use super::{BlockNo, Damage, Geometry, InodeNo, Owner, Place, Sealed, Structure, u16_at, u32_at};

/// The magic number of a node.
pub const MAGIC: u16 = 0xF30A;
/// The most levels of nodes above the leaves.
pub const DEPTH_MAX: u16 = 5;
/// Bytes of a node's header, and of an entry.
pub const HEADER_BYTES: usize = 12;
/// Bytes of an entry: an extent, or the way to a child.
pub const ENTRY_BYTES: usize = 12;
/// Bytes of the root, in the inode.
pub const ROOT_BYTES: usize = 4 * POINTERS;
/// Entries that the root has room for.
pub const ROOT_ENTRIES: u16 = ((ROOT_BYTES - HEADER_BYTES) / ENTRY_BYTES) as u16;
/// The most blocks of a written extent; an `ee_len` above it means an unwritten one of as many blocks less.
const WRITTEN_MAX: u16 = 32768;
/// Behind the last file block that an extent can map.
pub const LBN_END: u64 = u32::MAX as u64;

const _: () = assert!(ROOT_ENTRIES == 4);

/// Returns the number of entries that a node in a block has room for: its `eh_max`.
pub fn block_entries(block_bytes: usize) -> u16 {
    // No power of two leaves less than the four bytes of the checksum behind the last entry.
    ((block_bytes - HEADER_BYTES) / ENTRY_BYTES) as u16
}

/// A range of file blocks and the blocks of the volume that hold it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// The first file block.
    pub lbn: u32,
    /// Number of blocks, from 1.
    pub len: u16,
    /// The first block on the volume.
    pub start: BlockNo,
    /// True if the blocks were allocated and not written: they read as zeros.
    pub unwritten: bool,
}

impl Extent {
    /// Returns the file block behind the last one.
    pub fn end(&self) -> u64 {
        u64::from(self.lbn) + u64::from(self.len)
    }
}

/// The way to a child of an interior node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Child {
    /// The node's block.
    pub block: BlockNo,
    /// The rules that the node has to keep.
    pub bounds: Bounds,
}

/// The rules that a node has to keep for its parent's sake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// The file block at which it has to begin.
    pub first: u32,
    /// The file block before which it has to end.
    pub end: u64,
    /// Its depth: levels of nodes below it.
    pub depth: u16,
}

/// A node that was checked.
#[derive(Debug, Clone, Copy)]
pub struct Node<'a> {
    bytes: &'a [u8],
    entries: usize,
    depth: u16,
    end: u64,
}

/// The result of a search in a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Search {
    /// The extent that maps the file block.
    Mapped(Extent),
    /// A hole up to this file block, or to the end of the map.
    Hole(u64),
    /// The child whose range holds the file block.
    Down(Child),
}

impl<'a> Node<'a> {
    /// Checks the root of an inode's tree.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn decode_root(bytes: &'a [u8; ROOT_BYTES], geo: &Geometry, place: Place) -> Result<Node<'a>, Damage> {
        let node = Self::header(bytes, ROOT_ENTRIES, true, place)?;
        node.check_entries(None, geo, place)?;
        Ok(node)
    }

    /// Checks a node in a block of its own: its header, its place in the tree, its checksum and its entries.
    ///
    /// # Errors
    /// The first rule that is broken.
    pub fn decode(
        bytes: &'a [u8],
        bounds: Bounds,
        owner: Owner,
        geo: &Geometry,
        place: Place,
    ) -> Result<Node<'a>, Damage> {
        let node = Self::view(bytes, bounds, place)?;
        geo.checksums.verify(Sealed::Extents(owner), bytes).map_err(|problem| place.damage(problem))?;
        node.check_entries(Some(bounds.first), geo, place)?;
        Ok(node)
    }

    /// Takes a node that was decoded before with the same bounds: checks only what a look into it relies on.
    ///
    /// # Errors
    /// If the header does not fit the bounds.
    pub fn view(bytes: &'a [u8], bounds: Bounds, place: Place) -> Result<Node<'a>, Damage> {
        let mut node = Self::header(bytes, block_entries(bytes.len()), false, place)?;
        if node.depth != bounds.depth {
            return Err(place.damage(format!("eh_depth is {}, should be {}", node.depth, bounds.depth)));
        }
        if node.entries == 0 {
            return Err(place.damage("eh_entries is 0, should be at least 1 in a node that is no root"));
        }
        node.end = bounds.end;
        Ok(node)
    }

    fn header(bytes: &'a [u8], room: u16, is_root: bool, place: Place) -> Result<Node<'a>, Damage> {
        let (magic, entries, max, depth) = (u16_at(bytes, 0), u16_at(bytes, 2), u16_at(bytes, 4), u16_at(bytes, 6));
        if magic != MAGIC {
            return Err(place.damage(format!("eh_magic is {magic:#06x}, should be {MAGIC:#06x}")));
        }
        // In a block the checksum lies behind the last possible entry. The root has none.
        if max > room || max == 0 || (!is_root && max != room) {
            return Err(place.damage(format!("eh_max is {max}, should be {room}")));
        }
        if entries > max {
            return Err(place.damage(format!("eh_entries is {entries}, but eh_max is {max}")));
        }
        if depth > DEPTH_MAX {
            return Err(place.damage(format!("eh_depth is {depth}, should be at most {DEPTH_MAX}")));
        }
        if depth > 0 && entries == 0 {
            return Err(place.damage(format!("eh_depth is {depth}, but eh_entries is 0")));
        }
        Ok(Node { bytes, entries: entries.into(), depth, end: LBN_END })
    }

    /// Checks that entries ascend, do not overlap, stay within the node's range, and name blocks of the volume.
    fn check_entries(&self, first: Option<u32>, geo: &Geometry, place: Place) -> Result<(), Damage> {
        if let Some(first) = first
            && self.lbn(0) != first
        {
            return Err(place.damage(format!("it begins at file block {}, should begin at {first}", self.lbn(0))));
        }
        let mut free_from = 0;
        for index in 0..self.entries {
            let lbn = u64::from(self.lbn(index));
            if lbn < free_from || (index > 0 && lbn <= u64::from(self.lbn(index - 1))) {
                return Err(place
                    .damage(format!("entry {index} begins at file block {lbn}, within or before the one before it")));
            }
            let (start, len, end) = if self.depth == 0 {
                let extent = self.extent(index);
                if extent.len == 0 {
                    return Err(place.damage(format!("ee_len of entry {index} is 0")));
                }
                free_from = extent.end();
                (extent.start.0, u64::from(extent.len), extent.end())
            } else {
                free_from = lbn + 1;
                (self.child_block(index), 1, free_from)
            };
            if end > self.end {
                return Err(
                    place.damage(format!("entry {index} ends at file block {end}, but the node at {}", self.end))
                );
            }
            if !geo.may_point_to(BlockNo(start)) || start + len > geo.blocks {
                return Err(place.damage(format!("entry {index} names {len} blocks from {start}, outside the volume")));
            }
        }
        Ok(())
    }

    /// Returns the levels of nodes below this one: 0 for leaves.
    pub fn depth(&self) -> u16 {
        self.depth
    }

    fn at(&self, index: usize) -> usize {
        HEADER_BYTES + index * ENTRY_BYTES
    }

    fn lbn(&self, index: usize) -> u32 {
        u32_at(self.bytes, self.at(index))
    }

    fn extent(&self, index: usize) -> Extent {
        let at = self.at(index);
        let stored = u16_at(self.bytes, at + 4);
        let unwritten = stored > WRITTEN_MAX;
        let start = u64::from(u32_at(self.bytes, at + 8)) | u64::from(u16_at(self.bytes, at + 6)) << 32;
        let len = if unwritten { stored - WRITTEN_MAX } else { stored };
        Extent { lbn: self.lbn(index), len, start: BlockNo(start), unwritten }
    }

    fn child_block(&self, index: usize) -> u64 {
        let at = self.at(index);
        u64::from(u32_at(self.bytes, at + 4)) | u64::from(u16_at(self.bytes, at + 8)) << 32
    }

    fn child(&self, index: usize) -> Child {
        let end = if index + 1 < self.entries { u64::from(self.lbn(index + 1)) } else { self.end };
        let bounds = Bounds { first: self.lbn(index), end, depth: self.depth.saturating_sub(1) };
        Child { block: BlockNo(self.child_block(index)), bounds }
    }

    /// Returns the index of the last entry that begins at or before a file block.
    fn covering(&self, lbn: u64) -> Option<usize> {
        let (mut low, mut high) = (0, self.entries);
        while low < high {
            let middle = (low + high) / 2;
            if u64::from(self.lbn(middle)) <= lbn { low = middle + 1 } else { high = middle }
        }
        low.checked_sub(1)
    }

    /// Looks for a file block.
    pub fn find(&self, lbn: u64) -> Search {
        let Some(index) = self.covering(lbn) else {
            return Search::Hole(if self.entries == 0 { self.end } else { self.lbn(0).into() });
        };
        if self.depth > 0 {
            return Search::Down(self.child(index));
        }
        let extent = self.extent(index);
        if lbn < extent.end() {
            return Search::Mapped(extent);
        }
        Search::Hole(if index + 1 < self.entries { self.lbn(index + 1).into() } else { self.end })
    }

    /// Returns the extents of a leaf, ascending; none of an interior node.
    pub fn extents(&self) -> impl Iterator<Item = Extent> + '_ {
        let count = if self.depth == 0 { self.entries } else { 0 };
        (0..count).map(|index| self.extent(index))
    }

    /// Returns the children of an interior node, ascending; none of a leaf.
    pub fn children(&self) -> impl Iterator<Item = Child> + '_ {
        let count = if self.depth == 0 { 0 } else { self.entries };
        (0..count).map(|index| self.child(index))
    }
}

/// The owner of a tree, as every walk over it needs it.
#[derive(Debug, Clone, Copy)]
pub struct Tree<'a> {
    /// The inode, whose numbers go into the checksums.
    pub owner: Owner,
    /// The root: the bytes of `i_block`.
    pub root: &'a [u8; ROOT_BYTES],
    /// The block that holds the inode, for messages.
    pub block: BlockNo,
}

impl Tree<'_> {
    /// Returns the place of the root, in words.
    pub fn root_place(&self) -> Place {
        Place::new(Structure::Inode(self.owner.ino), self.block)
    }

    /// Calls `each` with every extent in file order. `read` returns the bytes of a node's block.
    ///
    /// # Errors
    /// The first broken rule, and the errors of `read` and `each`.
    pub fn walk<B: Deref<Target = [u8]>, E: From<Damage>>(
        &self,
        geo: &Geometry,
        read: &mut dyn FnMut(BlockNo) -> Result<B, E>,
        each: &mut dyn FnMut(Extent) -> Result<(), E>,
    ) -> Result<(), E> {
        let root = Node::decode_root(self.root, geo, self.root_place())?;
        let mut todo: Vec<Child> = root.children().collect();
        root.extents().try_for_each(&mut *each)?;
        todo.reverse();
        // At most one node's children per level wait here.
        while let Some(child) = todo.pop() {
            let bytes = read(child.block)?;
            let node = Node::decode(&bytes, child.bounds, self.owner, geo, place(self.owner.ino, child))?;
            node.extents().try_for_each(&mut *each)?;
            let first = todo.len();
            todo.extend(node.children());
            todo[first..].reverse();
        }
        Ok(())
    }
}

/// Returns the place of a node, in words.
pub fn place(inode: InodeNo, child: Child) -> Place {
    Place::new(Structure::ExtentNode { inode, depth: child.bounds.depth }, child.block)
}

#[cfg(test)]
mod tests {
    use super::super::superblock::tests::sample;
    use super::super::{put_u16, put_u32};
    use super::*;
    use proptest::prelude::*;

    const OWNER: Owner = Owner { ino: InodeNo(12), generation: 7 };
    const PLACE: Place = Place::of(Structure::Inode(InodeNo(12)));

    pub(super) fn geometry() -> Geometry {
        Geometry::of(&sample(), u64::MAX).unwrap()
    }

    pub(super) fn node(bytes: &mut [u8], depth: u16, max: u16, entries: &[[u32; 3]]) {
        put_u16(bytes, 0, MAGIC);
        put_u16(bytes, 2, entries.len() as u16);
        put_u16(bytes, 4, max);
        put_u16(bytes, 6, depth);
        for (index, [lbn, len, start]) in entries.iter().enumerate() {
            let at = HEADER_BYTES + index * ENTRY_BYTES;
            put_u32(bytes, at, *lbn);
            if depth == 0 {
                put_u16(bytes, at + 4, *len as u16);
                put_u32(bytes, at + 8, *start);
            } else {
                put_u32(bytes, at + 4, *start);
            }
        }
    }

    pub(super) fn root(depth: u16, entries: &[[u32; 3]]) -> [u8; ROOT_BYTES] {
        let mut bytes = [0; ROOT_BYTES];
        node(&mut bytes, depth, 4, entries);
        bytes
    }

    #[test]
    fn a_root_maps_written_and_unwritten_runs_and_holes() {
        let bytes = root(0, &[[2, 3, 100], [10, 32768 + 5, 200], [20, 32768, 1000]]);
        let geo = Geometry { blocks: 1 << 20, ..geometry() };
        let node = Node::decode_root(&bytes, &geo, PLACE).unwrap();
        assert_eq!(node.find(0), Search::Hole(2));
        let first = Extent { lbn: 2, len: 3, start: BlockNo(100), unwritten: false };
        assert_eq!(node.find(4), Search::Mapped(first));
        assert_eq!(node.find(5), Search::Hole(10));
        let second = Extent { lbn: 10, len: 5, start: BlockNo(200), unwritten: true };
        assert_eq!(node.find(14), Search::Mapped(second));
        assert_eq!(node.find(15), Search::Hole(20));
        assert_eq!(node.find(20 + 32768), Search::Hole(LBN_END));
        assert_eq!(node.extents().count(), 3);
        let empty = root(0, &[]);
        assert_eq!(Node::decode_root(&empty, &geometry(), PLACE).unwrap().find(5), Search::Hole(LBN_END));
    }

    #[test]
    fn broken_rules_of_a_leaf_are_named() {
        type Break = fn(&mut [u8]);
        let cases: [(Break, &str); 11] = [
            (|b| b[0] = 0, "eh_magic"),
            (|b| put_u16(b, 2, 5), "eh_entries"),
            (|b| put_u16(b, 4, 5), "eh_max"),
            (|b| put_u16(b, 4, 0), "eh_max"),
            (|b| put_u16(b, 6, 6), "eh_depth"),
            (|b| put_u16(b, 16, 0), "ee_len"),
            (|b| put_u32(b, 24, 4), "within or before"),
            (|b| put_u32(b, 24, 2), "within or before"),
            (|b| put_u32(b, 20, 0), "outside the volume"),
            (|b| put_u32(b, 20, 9999), "outside the volume"),
            (|b| put_u16(b, 18, 1), "outside the volume"),
        ];
        for (damage, word) in cases {
            let mut bytes = root(0, &[[2, 3, 100], [10, 5, 200]]);
            damage(&mut bytes);
            let error = Node::decode_root(&bytes, &geometry(), PLACE).unwrap_err();
            assert!(error.problem.contains(word), "{word}: {error}");
        }
    }

    #[test]
    fn a_child_has_to_be_what_its_parent_says() {
        let geo = geometry();
        let top = root(1, &[[0, 0, 50], [100, 0, 51]]);
        let parent = Node::decode_root(&top, &geo, PLACE).unwrap();
        let Search::Down(child) = parent.find(99) else { panic!() };
        let bounds = Bounds { first: 0, end: 100, depth: 0 };
        assert_eq!(child, Child { block: BlockNo(50), bounds });
        let Search::Down(last) = parent.find(1 << 20) else { panic!() };
        assert_eq!((last.block, last.bounds.end), (BlockNo(51), LBN_END));
        let mut block = vec![0; 1024];
        node(&mut block, 0, 84, &[[0, 10, 300], [90, 10, 400]]);
        Node::decode(&block, bounds, OWNER, &geo, PLACE).unwrap();
        for (bounds, word) in [
            (Bounds { first: 1, ..bounds }, "begin"),
            (Bounds { end: 99, ..bounds }, "ends at"),
            (Bounds { depth: 1, ..bounds }, "eh_depth"),
        ] {
            let error = Node::decode(&block, bounds, OWNER, &geo, PLACE).unwrap_err();
            assert!(error.problem.contains(word), "{error}");
        }
        put_u16(&mut block, 4, 83);
        assert!(Node::decode(&block, bounds, OWNER, &geo, PLACE).unwrap_err().problem.contains("eh_max"));
        node(&mut block, 0, 84, &[]);
        assert!(Node::decode(&block, bounds, OWNER, &geo, PLACE).unwrap_err().problem.contains("eh_entries"));
    }

    #[test]
    fn a_walk_visits_all_leaves_in_order_and_ends_on_a_loop() {
        let geo = geometry();
        let top = root(1, &[[0, 0, 50], [100, 0, 51]]);
        let tree = Tree { owner: OWNER, root: &top, block: BlockNo(5) };
        let leaf = |first: u32, start: u32| {
            let mut block = vec![0; 1024];
            node(&mut block, 0, 84, &[[first, 10, start]]);
            block
        };
        let mut nodes = Vec::new();
        let mut read = |block: BlockNo| {
            nodes.push(block.0);
            Ok::<_, Damage>(if block.0 == 50 { leaf(0, 300) } else { leaf(100, 400) })
        };
        let mut seen = Vec::new();
        let mut each = |extent: Extent| {
            seen.push((extent.lbn, extent.start.0));
            Ok(())
        };
        tree.walk(&geo, &mut read, &mut each).unwrap();
        assert_eq!((seen, nodes), (vec![(0, 300), (100, 400)], vec![50, 51]));
        // A node that names itself has the wrong depth one level further down.
        let mut itself = vec![0; 1024];
        node(&mut itself, 1, 84, &[[0, 0, 50]]);
        let top = root(2, &[[0, 0, 50]]);
        let tree = Tree { owner: OWNER, root: &top, block: BlockNo(5) };
        let error = tree.walk(&geo, &mut |_| Ok::<_, Damage>(itself.clone()), &mut |_| Ok(()));
        assert!(error.unwrap_err().problem.contains("eh_depth"));
    }

    #[test]
    fn a_wrong_checksum_is_named_before_the_entries() {
        let mut geo = geometry();
        geo.checksums = super::super::Checksums::All { seed: 5 };
        let mut block = vec![0; 1024];
        node(&mut block, 0, 84, &[[0, 10, 300]]);
        let bounds = Bounds { first: 0, end: 100, depth: 0 };
        assert!(Node::decode(&block, bounds, OWNER, &geo, PLACE).unwrap_err().problem.contains("checksum"));
        geo.checksums.seal(Sealed::Extents(OWNER), &mut block).unwrap();
        Node::decode(&block, bounds, OWNER, &geo, PLACE).unwrap();
    }

    proptest! {
        #[test]
        fn hostile_nodes_never_panic(
            mut bytes in prop::collection::vec(prop_oneof![Just(0u8), any::<u8>()], 1024),
            entries in 0u16..90, depth in 0u16..7, lbn in any::<u32>(), magic in any::<bool>(),
        ) {
            if magic {
                put_u16(&mut bytes, 0, MAGIC);
                put_u16(&mut bytes, 4, 84);
                put_u16(&mut bytes, 2, entries);
                put_u16(&mut bytes, 6, depth);
            }
            let bounds = Bounds { first: u32_at(&bytes, 12), end: LBN_END, depth };
            let geo = geometry();
            let _ = Node::decode(&bytes, bounds, OWNER, &geo, PLACE);
            if let Ok(node) = Node::view(&bytes, bounds, PLACE) {
                node.find(lbn.into());
                node.children().count();
                node.extents().count();
            }
            let mut root = [0; ROOT_BYTES];
            root.copy_from_slice(&bytes[..ROOT_BYTES]);
            let _ = Node::decode_root(&root, &geo, PLACE);
        }
    }
}
