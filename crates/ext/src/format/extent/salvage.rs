//! Damaged nodes: which of their entries still make sense.
//!
//! [`super::Node`] refuses a node with any fault. A repair keeps what it can: [`salvage`] takes the entries that
//! ascend, stay within their parent's range and lie on the volume, and says what is wrong with the others. The tree is
//! then [built anew](super::build()) from what is kept.

use super::{Bounds, Child, DEPTH_MAX, Extent, LBN_END, MAGIC, Node, ROOT_ENTRIES, block_entries};
use crate::format::{BlockNo, Geometry, u16_at};

/// The contents of a node, as far as they make sense.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Salvaged {
    /// The extents of a leaf, ascending.
    pub extents: Vec<Extent>,
    /// The children of an interior node, ascending.
    pub children: Vec<Child>,
    /// The rules that are broken, in words; none in a sound node.
    pub problems: Vec<String>,
    /// True if the header says that these bytes are a node.
    pub is_node: bool,
}

/// Takes what makes sense of a node in a block of its own, or of a root if there are no `bounds`.
///
/// A depth that is too small for the bounds is believed: what is below a node always has less depth than the node.
pub fn salvage(bytes: &[u8], bounds: Option<Bounds>, geo: &Geometry) -> Salvaged {
    let mut found = Salvaged::default();
    let room = if bounds.is_some() { block_entries(bytes.len()) } else { ROOT_ENTRIES };
    let (magic, entries, max, depth) = (u16_at(bytes, 0), u16_at(bytes, 2), u16_at(bytes, 4), u16_at(bytes, 6));
    if magic != MAGIC {
        found.problems.push(format!("eh_magic is {magic:#06x}, should be {MAGIC:#06x}"));
        return found;
    }
    found.is_node = true;
    // Drivers take a root with room for one entry; e2fsck does not.
    let least = if bounds.is_some() { room } else { 2 };
    if !(least..=room).contains(&max) {
        found.problems.push(format!("eh_max is {max}, should be {room}"));
    }
    if entries > max.min(room) {
        found.problems.push(format!("eh_entries is {entries}, but eh_max is {max}"));
    }
    let depth_max = bounds.map_or(DEPTH_MAX, |bounds| bounds.depth);
    if depth > depth_max || bounds.is_some_and(|bounds| depth != bounds.depth) {
        found.problems.push(format!("eh_depth is {depth}, should be {depth_max}"));
    }
    if bounds.is_some() && entries == 0 {
        found.problems.push("eh_entries is 0, should be at least 1 in a node that is no root".to_owned());
    }
    if bounds.is_none() && entries == 0 && depth > 0 {
        found.problems.push(format!("eh_depth is {depth}, but eh_entries is 0"));
    }
    let end = bounds.map_or(LBN_END, |bounds| bounds.end);
    let node = Node { bytes, entries: entries.min(room).into(), depth: depth.min(depth_max), end };
    let first = bounds.map(|bounds| bounds.first);
    if let Some(first) = first.filter(|first| node.entries > 0 && node.lbn(0) != *first) {
        found.problems.push(format!("it begins at file block {}, should begin at {first}", node.lbn(0)));
    }
    found.take_entries(&node, geo);
    found
}

impl Salvaged {
    fn take_entries(&mut self, node: &Node<'_>, geo: &Geometry) {
        let mut free_from = 0;
        let mut kept = Vec::new();
        for index in 0..node.entries {
            let (lbn, start, len) = if node.depth == 0 {
                let extent = node.extent(index);
                (u64::from(extent.lbn), extent.start, u64::from(extent.len))
            } else {
                (u64::from(node.lbn(index)), BlockNo(node.child_block(index)), 1)
            };
            let problem = if len == 0 {
                Some(format!("ee_len of entry {index} is 0"))
            } else if lbn < free_from {
                Some(format!("entry {index} begins at file block {lbn}, within or before the one before it"))
            } else if lbn + len > node.end {
                Some(format!("entry {index} ends at file block {}, but the node at {}", lbn + len, node.end))
            } else if !geo.may_point_to(start) || start.0 + len > geo.blocks {
                Some(format!("entry {index} names {len} blocks from {start}, outside the volume"))
            } else {
                None
            };
            match problem {
                Some(problem) => self.problems.push(problem),
                None => {
                    free_from = lbn + len;
                    kept.push(index);
                }
            }
        }
        if node.depth == 0 {
            self.extents = kept.into_iter().map(|index| node.extent(index)).collect();
            return;
        }
        let ends = kept.iter().skip(1).map(|next| u64::from(node.lbn(*next))).chain([node.end]);
        let child = |(index, end): (&usize, u64)| Child {
            block: BlockNo(node.child_block(*index)),
            bounds: Bounds { first: node.lbn(*index), end, depth: node.depth - 1 },
        };
        self.children = kept.iter().zip(ends).map(child).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{geometry, node, root};
    use super::super::{ROOT_BYTES, edit};
    use super::*;
    use crate::format::{Place, Structure, put_u16};
    use proptest::prelude::*;

    const PLACE: Place = Place::of(Structure::JournalSuperblock);

    #[test]
    fn sound_entries_of_a_damaged_leaf_are_kept() {
        let geo = geometry();
        let bytes = root(0, &[[0, 2, 100], [1, 3, 200], [5, 0, 300], [9, 4, 400]]);
        let found = salvage(&bytes, None, &geo);
        assert_eq!(found.extents.iter().map(|extent| extent.lbn).collect::<Vec<_>>(), [0, 9]);
        assert_eq!(found.problems.len(), 2, "{:?}", found.problems);
        let far = root(0, &[[0, 2, u32::MAX], [3, 1, 100]]);
        assert_eq!(salvage(&far, None, &geo).extents.len(), 1);
        let none = salvage(&[0; ROOT_BYTES], None, &geo);
        assert_eq!((none.is_node, none.extents.len(), none.problems.len()), (false, 0, 1));
    }

    #[test]
    fn a_child_ends_where_the_next_kept_one_begins() {
        let found = salvage(&root(2, &[[0, 0, 100], [50, 0, 1 << 30], [90, 0, 200]]), None, &geometry());
        let ranges: Vec<_> = found.children.iter().map(|child| (child.bounds.first, child.bounds.end)).collect();
        assert_eq!(ranges, [(0, 90), (90, LBN_END)]);
        assert_eq!(found.children[0].bounds.depth, 1);
    }

    #[test]
    fn a_depth_is_believed_if_it_leads_down() {
        let mut bytes = vec![0; 1024];
        node(&mut bytes, 0, block_entries(1024), &[[7, 2, 100]]);
        let bounds = Bounds { first: 7, end: 100, depth: 1 };
        let found = salvage(&bytes, Some(bounds), &geometry());
        assert_eq!((found.extents.len(), found.problems.len()), (1, 1));
        put_u16(&mut bytes, 6, 3);
        let found = salvage(&bytes, Some(bounds), &geometry());
        assert!(found.children.iter().all(|child| child.bounds.depth == 0));
    }

    proptest! {
        #[test]
        fn a_node_without_problems_is_what_the_decoder_takes(
            mut bytes in prop::array::uniform32(any::<u8>()), tame in any::<bool>(), entries in 0u16..5, depth in 0u16..2,
        ) {
            let mut whole = [0; ROOT_BYTES];
            if tame {
                bytes[..12].fill(0);
                put_u16(&mut bytes, 0, MAGIC);
                put_u16(&mut bytes, 2, entries);
                put_u16(&mut bytes, 4, 4);
                put_u16(&mut bytes, 6, depth);
            }
            whole[..32].copy_from_slice(&bytes);
            let geo = geometry();
            let found = salvage(&whole, None, &geo);
            let decoded = Node::decode_root(&whole, &geo, PLACE);
            prop_assert_eq!(found.problems.is_empty(), decoded.is_ok(), "{:?}", found.problems);
            if let Ok(node) = decoded {
                prop_assert_eq!(&found.extents, &node.extents().collect::<Vec<_>>());
                prop_assert_eq!(&found.children, &node.children().collect::<Vec<_>>());
            }
        }

        #[test]
        fn a_tree_that_was_built_holds_its_extents(lengths in prop::collection::vec((1u16..9, 0u32..3), 0..400)) {
            let geo = Geometry { blocks: 1 << 20, ..geometry() };
            let mut extents = Vec::new();
            let (mut lbn, mut start) = (0, 1000);
            for (len, gap) in lengths {
                extents.push(Extent { lbn: lbn + gap, len, start: BlockNo(start), unwritten: gap == 1 });
                lbn += gap + u32::from(len);
                start += u64::from(len) + 1;
            }
            let mut next = 100;
            let mut take = || { next += 1; Ok::<_, ()>(BlockNo(next)) };
            let built = super::super::build(&extents, 1024, &mut take).unwrap();
            let read = |block: BlockNo| built.nodes.iter().find(|(at, _)| *at == block).unwrap().1.clone();
            let mut found = Vec::new();
            let top = salvage(&built.root, None, &geo);
            let mut todo: Vec<Child> = top.children.into_iter().rev().collect();
            found.extend(top.extents);
            prop_assert!(top.problems.is_empty());
            while let Some(child) = todo.pop() {
                let below = salvage(&read(child.block), Some(child.bounds), &geo);
                prop_assert!(below.problems.is_empty(), "{:?}", below.problems);
                found.extend(below.extents);
                todo.extend(below.children.into_iter().rev());
            }
            prop_assert_eq!(found, extents);
        }
    }

    #[test]
    fn the_empty_tree_is_that_of_a_new_file() {
        let mut take = || Err("no block is needed");
        assert_eq!(super::super::build(&[], 1024, &mut take).unwrap().root, edit::new_root(None));
    }
}
