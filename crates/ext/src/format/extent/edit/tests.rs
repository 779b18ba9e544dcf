use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::format::Owner;
use crate::format::superblock::tests::sample;
use proptest::prelude::*;

const OWNER: Owner = Owner { ino: InodeNo(12), generation: 7 };
/// Bytes of a node that has room for nine entries: small trees become deep.
const NODE_BYTES: usize = 128;
const NODE_ENTRIES: usize = 9;

/// A tree in memory, and what it should map: the block and the state of each file block.
struct Lab {
    geo: Geometry,
    root: [u8; ROOT_BYTES],
    nodes: BTreeMap<u64, Vec<u8>>,
    next_node: u64,
    next_data: u64,
    expected: BTreeMap<u64, (u64, bool)>,
}

/// Blocks for data begin here, those for nodes before.
const DATA: u64 = 1 << 24;

struct LabNodes<'a> {
    nodes: &'a BTreeMap<u64, Vec<u8>>,
    next: &'a mut u64,
    left: u32,
}

impl Nodes for LabNodes<'_> {
    type Error = Damage;

    fn read(&mut self, child: Child) -> Result<Vec<u8>, Damage> {
        Ok(self.nodes[&child.block.0].clone())
    }

    fn allocate(&mut self) -> Result<BlockNo, Damage> {
        let full = || crate::format::Place::of(crate::format::Structure::Inode(OWNER.ino)).damage("full");
        self.left = self.left.checked_sub(1).ok_or_else(full)?;
        *self.next += 1;
        Ok(BlockNo(*self.next))
    }
}

impl Lab {
    fn new() -> Lab {
        let geo = Geometry { blocks: 1 << 40, ..Geometry::of(&sample(), u64::MAX).unwrap() };
        let (nodes, expected) = (BTreeMap::new(), BTreeMap::new());
        Lab { geo, root: new_root(None), nodes, next_node: 1000, next_data: DATA, expected }
    }

    fn plan(&mut self, edit: Edit, room: u32) -> Result<Plan, Damage> {
        let tree = Tree { owner: OWNER, root: &self.root, block: BlockNo(5) };
        let mut nodes = LabNodes { nodes: &self.nodes, next: &mut self.next_node, left: room };
        plan(&tree, &self.geo, NODE_BYTES, edit, &mut nodes)
    }

    fn carry_out(&mut self, edit: Edit) -> Plan {
        let plan = self.plan(edit, u32::MAX).expect("a sound tree");
        self.root = plan.root;
        for (block, bytes) in &plan.rewritten {
            assert!(self.nodes.insert(block.0, bytes.clone()).is_some(), "node {} was there", block.0);
        }
        for (block, bytes) in &plan.added {
            assert!(self.nodes.insert(block.0, bytes.clone()).is_none(), "node {} is new", block.0);
        }
        for block in &plan.removed {
            assert!(self.nodes.remove(&block.0).is_some(), "node {} was there", block.0);
        }
        plan
    }

    /// Maps `len` blocks from `lbn` on, to the blocks from `skip` behind those of the last call.
    fn put(&mut self, lbn: u32, len: u16, skip: u64, unwritten: bool) {
        let start = self.next_data + skip;
        self.next_data = start + u64::from(len);
        let plan = self.carry_out(Edit::put(Extent { lbn, len, start: BlockNo(start), unwritten }));
        let range = u64::from(lbn)..u64::from(lbn) + u64::from(len);
        assert_eq!(unmapped(&plan), self.forget(range.clone(), u64::MAX));
        self.expected.extend(range.zip(start..).map(|(lbn, block)| (lbn, (block, unwritten))));
        self.check();
    }

    fn cut(&mut self, range: Range<u64>, budget: u64) -> Plan {
        let plan = self.carry_out(Edit::cut(range.clone(), budget, usize::MAX));
        let gone = self.forget(range.clone(), budget);
        assert_eq!(plan.is_spent, gone.len() as u64 == budget, "{} blocks of {budget}", gone.len());
        assert_eq!(unmapped(&plan), gone);
        self.check();
        plan
    }

    /// Takes the last `most` file blocks of a range out of what is expected.
    fn forget(&mut self, range: Range<u64>, most: u64) -> BTreeSet<(u64, u64)> {
        let within: Vec<(u64, u64)> = self.expected.range(range).map(|(lbn, at)| (*lbn, at.0)).collect();
        let gone: BTreeSet<(u64, u64)> = within.into_iter().rev().take(most as usize).collect();
        self.expected.retain(|lbn, at| !gone.contains(&(*lbn, at.0)));
        gone
    }

    fn extents(&self) -> Vec<Extent> {
        let tree = Tree { owner: OWNER, root: &self.root, block: BlockNo(5) };
        let (mut extents, mut seen) = (Vec::new(), BTreeSet::new());
        let mut read = |block: BlockNo| {
            assert!(seen.insert(block.0), "node {} is in the tree twice", block.0);
            Ok::<_, Damage>(self.nodes[&block.0].clone())
        };
        let mut each = |extent| {
            extents.push(extent);
            Ok(())
        };
        tree.walk(&self.geo, &mut read, &mut each).expect("a sound tree");
        assert_eq!(seen.len(), self.nodes.len(), "nodes that nothing leads to");
        extents
    }

    fn depth(&self) -> u16 {
        let place = crate::format::Place::of(crate::format::Structure::Inode(OWNER.ino));
        Node::decode_root(&self.root, &self.geo, place).unwrap().depth()
    }

    fn check(&self) {
        let blocks = |extent: &Extent| {
            let Extent { lbn, len, start, unwritten } = *extent;
            (0..u64::from(len)).map(move |at| (u64::from(lbn) + at, (start.0 + at, unwritten)))
        };
        let mapped: BTreeMap<u64, (u64, bool)> = self.extents().iter().flat_map(blocks).collect();
        assert!(mapped == self.expected, "the tree maps other blocks");
        assert_eq!(self.expected.is_empty(), self.root == new_root(None));
    }
}

fn unmapped(plan: &Plan) -> BTreeSet<(u64, u64)> {
    let blocks = |e: &Extent| (u64::from(e.lbn)..e.end()).zip(e.start.0..);
    plan.unmapped.iter().flat_map(blocks).collect()
}

#[test]
fn an_extent_grows_to_its_longest_and_no_further() {
    let mut lab = Lab::new();
    (0..5).for_each(|i| lab.put(i * 10_000, 10_000, 0, false));
    let lens = |lab: &Lab| lab.extents().iter().map(|extent| extent.len).collect::<Vec<_>>();
    assert_eq!(lens(&lab), [32_768, 17_232]);
    (5..9).for_each(|i| lab.put(i * 10_000, 10_000, 0, true));
    assert_eq!(lens(&lab), [32_768, 17_232, 32_767, 7_233]);
}

#[test]
fn neighbours_join_where_they_follow_one_another_in_the_same_state() {
    let mut lab = Lab::new();
    lab.put(0, 10, 0, false);
    lab.put(20, 10, 10, false);
    lab.next_data -= 20;
    lab.put(10, 10, 0, false);
    assert_eq!(lab.extents().len(), 1, "the hole between two is filled");
    lab.put(30, 5, 100, true);
    lab.put(35, 5, 0, false);
    assert_eq!(lab.extents().len(), 3, "unwritten blocks stay apart");
    let [_, second, _] = lab.extents()[..] else { panic!() };
    let plan = lab.carry_out(Edit::put(Extent { unwritten: false, ..second }));
    assert_eq!(plan.unmapped, [second], "the same blocks, in another state");
    assert_eq!(lab.extents().len(), 2);
}

#[test]
fn a_file_written_in_order_has_full_nodes() {
    let mut lab = Lab::new();
    for i in 0..1000 {
        lab.put(i, 1, 1, false);
    }
    let leaves = 1000_usize.div_ceil(NODE_ENTRIES);
    let (second, third) = (leaves.div_ceil(NODE_ENTRIES), leaves.div_ceil(NODE_ENTRIES).div_ceil(NODE_ENTRIES));
    assert_eq!((lab.nodes.len(), lab.depth()), (leaves + second + third, 3));
}

#[test]
fn a_file_written_backwards_or_in_any_order_has_half_full_nodes() {
    let steps: [fn(u32) -> u32; 2] = [|i| 999 - i, |i| i * 387 % 1000];
    for step in steps {
        let mut lab = Lab::new();
        (0..1000).for_each(|i| lab.put(2 * step(i), 1, 1, false));
        let leaves = 1000_usize.div_ceil(NODE_ENTRIES / 2);
        assert!(lab.nodes.len() <= leaves * 4 / 3 + 2, "{} nodes", lab.nodes.len());
    }
}

#[test]
fn a_truncated_tree_comes_back_into_the_inode() {
    let mut lab = Lab::new();
    (0..500).for_each(|i| lab.put(2 * i, 1, 1, false));
    while lab.extents().len() > 4 {
        assert!(lab.depth() > 0);
        let end = lab.extents().len() as u64 * 2;
        lab.cut(end.saturating_sub(14)..u64::MAX, 6);
    }
    assert_eq!((lab.depth(), lab.nodes.len()), (0, 0));
    lab.cut(0..u64::MAX, u64::MAX);
}

#[test]
fn a_budget_is_spent_from_the_end() {
    let mut lab = Lab::new();
    lab.put(0, 100, 0, false);
    lab.put(200, 100, 5, false);
    assert!(lab.cut(50..u64::MAX, 120).is_spent);
    assert_eq!(lab.extents().iter().map(|e| (e.lbn, e.len)).collect::<Vec<_>>(), [(0, 80)]);
    assert!(!lab.cut(50..u64::MAX, 120).is_spent);
    assert_eq!(lab.extents().iter().map(|e| (e.lbn, e.len)).collect::<Vec<_>>(), [(0, 50)]);
}

#[test]
fn a_cut_ends_after_so_many_extents() {
    let mut lab = Lab::new();
    (0..200).for_each(|i| lab.put(4 * i, 3, 1, false));
    let mut cuts = 0;
    loop {
        let plan = lab.carry_out(Edit::cut(5..LBN_END, u64::MAX, 16));
        let blocks = plan.unmapped.iter().map(|extent| u64::from(extent.len)).sum();
        assert_eq!(unmapped(&plan), lab.forget(5..LBN_END, blocks));
        lab.check();
        assert_eq!((plan.unmapped.len(), plan.is_spent), if cuts < 12 { (16, true) } else { (7, false) });
        if !plan.is_spent {
            break;
        }
        cuts += 1;
    }
    assert_eq!(lab.extents().iter().map(|e| (e.lbn, e.len)).collect::<Vec<_>>(), [(0, 3), (4, 1)]);
}

#[test]
fn an_edit_that_finds_no_block_changes_nothing() {
    let mut lab = Lab::new();
    (0..4).for_each(|i| lab.put(4 * i, 3, 1, false));
    let middle = Edit::cut(5..6, u64::MAX, usize::MAX);
    assert!(lab.plan(middle.clone(), 0).is_err(), "five extents need a node");
    lab.check();
    assert_eq!(lab.plan(middle, 1).unwrap().added.len(), 1);
    assert!(lab.plan(Edit::cut(5..7, u64::MAX, usize::MAX), 0).is_ok(), "four do not");
}

#[test]
fn the_highest_file_block_can_be_mapped() {
    let mut lab = Lab::new();
    let last = (LBN_END - 1) as u32;
    (0..6).for_each(|i| lab.put(last - 3 * i, 1, 1, false));
    lab.put(last - 9, 10, 0, false);
    assert_eq!(lab.extents().iter().map(|e| e.end()).max(), Some(LBN_END));
}

#[derive(Debug, Clone)]
enum Step {
    Put { lbn: u32, len: u16, skip: u64, unwritten: bool },
    Cut { from: u64, len: u64, budget: u64 },
}

fn step(blocks: u32) -> impl Strategy<Value = Step> {
    let put = (0..blocks, prop_oneof![3 => 1..4u16, 1 => 4..60u16], 0..3u64, prop::bool::weighted(0.3));
    let put = put.prop_map(|(lbn, len, skip, unwritten)| Step::Put { lbn, len, skip, unwritten });
    let len = prop_oneof![4 => 1..8u64, 2 => 8..200u64, 1 => Just(u64::MAX / 2)];
    let budget = prop_oneof![1..20u64, Just(u64::MAX)];
    let cut = (0..u64::from(blocks), len, budget).prop_map(|(from, len, budget)| Step::Cut { from, len, budget });
    prop_oneof![5 => put, 1 => cut]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn any_edits_leave_a_sound_tree_that_maps_what_a_plain_map_does(
        steps in prop_oneof![
            prop::collection::vec(step(60), 1..60),
            prop::collection::vec(step(2000), 1..400),
        ],
    ) {
        let mut lab = Lab::new();
        for step in steps {
            match step {
                Step::Put { lbn, len, skip, unwritten } => lab.put(lbn, len, skip, unwritten),
                Step::Cut { from, len, budget } => drop(lab.cut(from..from.saturating_add(len), budget)),
            }
        }
    }
}
