//! Nodes: their footers, their arrays of addresses or node ids, and the way from a file block to its node.
//!
//! A file's blocks hang on a tree of nodes: the inode itself, two direct nodes, two indirect nodes with direct ones
//! below them, and one double indirect node. A node's *offset* numbers the tree in depth-first order whether or not
//! the nodes exist, so that a footer alone tells which blocks of the file its node is about (sections 6 and 6.1).

use std::ops::Range;

use smallvec::{SmallVec, smallvec};

use super::{BlkAddr, Damage, Log, Nid, Structure, put_u32, put_u64, u32_at, u64_at};

/// Data addresses in a direct node.
pub const ADDRS_PER_NODE: usize = 1018;
/// Node ids in an indirect node.
pub const NIDS_PER_NODE: usize = 1018;
/// Offset of a node's footer, and the end of its contents.
pub const FOOTER_OFFSET: usize = 4072;
/// The offset that marks an inode's attribute node.
pub const XATTR_OFFSET: u32 = 0x1FFF_FFFF;

const COLD: u32 = 1;
const FSYNC: u32 = 2;
const DENTRY: u32 = 4;
const OFFSET_SHIFT: u32 = 3;

/// Offsets of the footer's fields in the node's block (section 6).
mod at {
    pub(super) const NID: usize = 4072;
    pub(super) const INO: usize = 4076;
    pub(super) const FLAG: usize = 4080;
    pub(super) const CP_VERSION: usize = 4084;
    pub(super) const NEXT: usize = 4092;
}

/// The identity of a node, in its last 24 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Footer {
    /// The id of the node that carries the footer.
    pub nid: Nid,
    /// The inode it belongs to; the inode's own node names itself.
    pub ino: Nid,
    /// The node does not belong to a directory.
    pub cold: bool,
    /// Written by an fsync: roll-forward recovery uses it.
    pub fsync: bool,
    /// Roll-forward recovery must also restore the inode's name.
    pub dentry: bool,
    /// The node's offset in the file: see the module's head.
    pub offset: u32,
    /// Version of the checkpoint it was written after (with that checkpoint's CRC in the upper half where it says so),
    /// or [`NO_CHAIN`](Self::NO_CHAIN).
    pub cp_version: u64,
    /// The block that the same log continues with.
    pub next: BlkAddr,
}

impl Footer {
    /// The version of no checkpoint: roll-forward recovery does not follow a chain through this node.
    pub const NO_CHAIN: u64 = 0;

    /// Reads the footer of a node block; nothing is checked.
    pub fn decode(block: &[u8]) -> Footer {
        let flag = u32_at(block, at::FLAG);
        Footer {
            nid: Nid(u32_at(block, at::NID)),
            ino: Nid(u32_at(block, at::INO)),
            cold: flag & COLD != 0,
            fsync: flag & FSYNC != 0,
            dentry: flag & DENTRY != 0,
            offset: flag >> OFFSET_SHIFT,
            cp_version: u64_at(block, at::CP_VERSION),
            next: BlkAddr(u32_at(block, at::NEXT)),
        }
    }

    /// Reads the footer of what should be node `nid` of inode `ino`.
    ///
    /// # Errors
    /// If it is another node, or another inode's.
    pub fn decode_of(block: &[u8], nid: Nid, ino: Nid) -> Result<Footer, Damage> {
        let footer = Footer::decode(block);
        let structure = if nid == ino { Structure::Inode(nid) } else { Structure::Node(nid) };
        if footer.nid != nid {
            return Err(structure.damage(None, format!("its footer says it is node {}", footer.nid)));
        }
        if footer.ino != ino {
            return Err(
                structure.damage(None, format!("its footer says it belongs to inode {}, not {ino}", footer.ino))
            );
        }
        Ok(footer)
    }

    /// Writes the footer; the rest of the block is left alone.
    pub fn encode_into(&self, block: &mut [u8]) {
        let bit = |set: bool, bit: u32| if set { bit } else { 0 };
        let marks = bit(self.cold, COLD) | bit(self.fsync, FSYNC) | bit(self.dentry, DENTRY);
        put_u32(block, at::NID, self.nid.0);
        put_u32(block, at::INO, self.ino.0);
        put_u32(block, at::FLAG, marks | self.offset << OFFSET_SHIFT);
        put_u64(block, at::CP_VERSION, self.cp_version);
        put_u32(block, at::NEXT, self.next.0);
    }

    /// True for the node that is the inode itself.
    pub fn is_inode(&self) -> bool {
        self.nid == self.ino
    }
}

/// Returns the log that a node belongs to: indirect nodes are cold, all others hot (directories) or warm
/// (section 9).
pub fn log_of(node_offset: u32, directory: bool) -> Log {
    if !is_direct(node_offset) && node_offset != XATTR_OFFSET {
        return Log::ColdNode;
    }
    if directory { Log::HotNode } else { Log::WarmNode }
}

/// Returns an address in a direct node; no block beyond the last slot.
pub fn addr(block: &[u8], slot: usize) -> BlkAddr {
    if slot < ADDRS_PER_NODE { BlkAddr(u32_at(block, slot * 4)) } else { BlkAddr::NULL }
}

/// Sets an address in a direct node.
///
/// # Panics
/// If there is no such slot.
pub fn set_addr(block: &mut [u8], slot: usize, address: BlkAddr) {
    assert!(slot < ADDRS_PER_NODE, "slot {slot} of a direct node");
    put_u32(block, slot * 4, address.0);
}

/// Returns a node id in an indirect node; no node beyond the last slot.
pub fn nid(block: &[u8], slot: usize) -> Nid {
    if slot < NIDS_PER_NODE { Nid(u32_at(block, slot * 4)) } else { Nid::NONE }
}

/// Sets a node id in an indirect node.
///
/// # Panics
/// If there is no such slot.
pub fn set_nid(block: &mut [u8], slot: usize, nid: Nid) {
    assert!(slot < NIDS_PER_NODE, "slot {slot} of an indirect node");
    put_u32(block, slot * 4, nid.0);
}

/// True if a direct or indirect node holds no address and no node id: truncation frees it.
pub fn is_blank(block: &[u8]) -> bool {
    filled(&block[..FOOTER_OFFSET]).next().is_none()
}

/// Returns the addresses among words of a node that are not zero, with their places. Runs of zeros cost
/// little: most nodes have one.
pub fn filled(words: &[u8]) -> impl Iterator<Item = (usize, BlkAddr)> {
    const LINE_WORDS: usize = 16;
    let lines = words.chunks(4 * LINE_WORDS).enumerate();
    let lines = lines.filter(|(_, line)| line.iter().fold(0, |all, byte| all | byte) != 0);
    let all =
        lines.flat_map(|(at, line)| (at * LINE_WORDS..).zip(line.chunks_exact(4).map(|word| BlkAddr(u32_at(word, 0)))));
    all.filter(|(_, addr)| *addr != BlkAddr::NULL)
}

/// Returns a new direct or indirect node: all zeros but its footer.
#[cfg(test)]
pub(crate) fn blank(footer: &Footer) -> Vec<u8> {
    let mut block = vec![0; super::BLOCK];
    footer.encode_into(&mut block);
    block
}

/// One node on the way from the inode to an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// The place of the node's id: for the first step, a slot in the inode (0..5), else in the
    /// indirect node of the step before.
    pub slot: u16,
    /// The node's offset in the file: see the module's head.
    pub offset: u32,
    /// It holds the address; otherwise it holds the next step's node id.
    pub leaf: bool,
}

/// The way from an inode to the address of a file block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Path {
    /// The nodes between; none if the inode itself holds the address.
    pub steps: SmallVec<[Step; 3]>,
    /// Index of the address in the last node, or in the inode's usable addresses.
    pub slot: u16,
}

/// Levels of the trees below the inode's five node ids: 1 is a direct node.
const LEVELS: [u32; 5] = [1, 1, 2, 2, 3];
/// The highest of these levels.
const LEVELS_MAX: u32 = 3;

/// Returns the number of file blocks below a node of this level.
pub(crate) const fn blocks_below(level: u32) -> u64 {
    (ADDRS_PER_NODE as u64).pow(level)
}

/// Returns the number of offsets that a node of this level and all its descendants take.
pub(crate) const fn nodes_in(level: u32) -> u32 {
    if level == 1 { 1 } else { 1 + NIDS_PER_NODE as u32 * nodes_in(level - 1) }
}

/// One of the five trees below an inode.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tree {
    /// The slot of the inode's node id that leads to it.
    pub(crate) slot: u16,
    /// Levels of nodes; 1 is a direct node.
    pub(crate) level: u32,
    /// Offset of its first node.
    pub(crate) offset: u32,
    /// Its first file block.
    pub(crate) first: u64,
}

/// Returns the trees below an inode with this many usable addresses of its own.
pub(crate) fn trees(addresses: u32) -> impl Iterator<Item = Tree> {
    let (mut offset, mut first) = (1, u64::from(addresses));
    LEVELS.into_iter().zip(0..).map(move |(level, slot)| {
        let tree = Tree { slot, level, offset, first };
        offset += nodes_in(level);
        first += blocks_below(level);
        tree
    })
}

/// Returns the tree that a file block beyond the inode's own addresses hangs on.
fn tree_of(lbn: u64, addresses: u32) -> Option<Tree> {
    trees(addresses).find(|tree| lbn < tree.first + blocks_below(tree.level))
}

/// Returns the number of file blocks that an inode with this many usable addresses can have.
pub fn lbn_limit(addresses: u32) -> u64 {
    u64::from(addresses) + LEVELS.into_iter().map(blocks_below).sum::<u64>()
}

/// Returns the way to the address of file block `lbn` in an inode with `addresses` usable addresses of its
/// own; `None` beyond the largest file.
pub fn path(lbn: u64, addresses: u32) -> Option<Path> {
    if lbn < u64::from(addresses) {
        return Some(Path { steps: SmallVec::new(), slot: lbn as u16 });
    }
    let tree = tree_of(lbn, addresses)?;
    let mut left = lbn - tree.first;
    let mut offset = tree.offset;
    let mut steps = smallvec![Step { slot: tree.slot, offset, leaf: tree.level == 1 }];
    for level in (1..tree.level).rev() {
        let child = left / blocks_below(level);
        left %= blocks_below(level);
        offset += 1 + child as u32 * nodes_in(level);
        steps.push(Step { slot: child as u16, offset, leaf: level == 1 });
    }
    Some(Path { steps, slot: left as u16 })
}

/// Returns the first file block whose address the node with this offset holds: the inverse of [`path`].
/// `None` for nodes that hold no addresses (indirect ones, the attribute node) and offsets beyond the tree.
pub fn first_lbn(node_offset: u32, addresses: u32) -> Option<u64> {
    if node_offset == 0 {
        return Some(0);
    }
    let Tree { mut level, offset, mut first, .. } =
        trees(addresses).find(|tree| node_offset < tree.offset + nodes_in(tree.level))?;
    let mut left = node_offset - offset;
    while left > 0 {
        level -= 1;
        let child = (left - 1) / nodes_in(level);
        left = (left - 1) % nodes_in(level);
        first += u64::from(child) * blocks_below(level);
    }
    (level == 1).then_some(first)
}

/// True if a node with this offset holds addresses of data: the inode and direct nodes.
pub fn is_direct(node_offset: u32) -> bool {
    first_lbn(node_offset, 0).is_some()
}

/// Returns the file blocks below the node that step `step` of [`path`] reaches: all of them are holes if that
/// node is missing. Steps beyond the last count as the last; empty for file blocks that no inode has.
pub fn covered(lbn: u64, addresses: u32, step: usize) -> Range<u64> {
    if lbn < u64::from(addresses) {
        return 0..addresses.into();
    }
    let Some(tree) = tree_of(lbn, addresses) else {
        return lbn..lbn;
    };
    let above = u32::try_from(step).unwrap_or(LEVELS_MAX);
    let blocks = blocks_below(tree.level.saturating_sub(above).max(1));
    let start = lbn - (lbn - tree.first) % blocks;
    start..start + blocks
}

/// Returns the file blocks whose addresses the same node holds as that of `lbn`.
pub fn span(lbn: u64, addresses: u32) -> Range<u64> {
    covered(lbn, addresses, LEVELS_MAX as usize)
}

/// Returns the file block behind those that are holes if step `step` on the way to `lbn` finds no node; the
/// largest number if no inode has such a file block.
pub fn missing_until(lbn: u64, addresses: u32, step: usize) -> u64 {
    let covered = covered(lbn, addresses, step);
    if covered.is_empty() { u64::MAX } else { covered.end }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::BLOCK;
    use super::*;

    /// Usable addresses: plain, with inline attributes, with all that there is, none.
    const ADDRESSES: [u32; 4] = [923, 873, 864, 0];
    /// Offsets of the second indirect node, and of the double indirect one, as the format numbers them.
    const SECOND_INDIRECT: u32 = 4 + 1018;
    const DOUBLE_INDIRECT: u32 = 5 + 2 * 1018;

    /// The state of a walk through a whole tree: it counts offsets and file blocks one by one.
    #[derive(Default)]
    struct Walk {
        offset: u32,
        lbn: u64,
        way: Vec<Step>,
    }

    /// Visits a node and all below it in depth-first order.
    fn walk(at: &mut Walk, slot: u16, level: u32, visit: &mut impl FnMut(&Walk)) {
        at.way.push(Step { slot, offset: at.offset, leaf: level == 1 });
        visit(at);
        at.offset += 1;
        if level == 1 {
            at.lbn += 1018;
        } else {
            (0..1018).for_each(|child| walk(at, child, level - 1, visit));
        }
        at.way.pop();
    }

    #[test]
    fn paths_and_offsets_of_the_whole_tree_agree_with_a_walk_through_it() {
        for addresses in [873, 0] {
            let mut at = Walk { offset: 1, lbn: addresses.into(), way: Vec::new() };
            let mut visit = |at: &Walk| {
                let step = at.way.len() - 1;
                for lbn in [at.lbn, at.lbn + 1017] {
                    let path = path(lbn, addresses).unwrap();
                    assert_eq!(path.steps[..=step], at.way);
                    assert_eq!(covered(lbn, addresses, step).start, at.lbn);
                    assert_eq!(u64::from(path.slot), lbn - at.lbn);
                }
                let leaf = at.way[step].leaf;
                assert_eq!(first_lbn(at.offset, addresses), leaf.then_some(at.lbn));
                assert_eq!(is_direct(at.offset), leaf);
            };
            for (slot, level) in (0..).zip([1, 1, 2, 2, 3]) {
                walk(&mut at, slot, level, &mut visit);
            }
            assert_eq!(at.lbn, lbn_limit(addresses));
            assert_eq!(path(at.lbn, addresses), None);
            assert_eq!(first_lbn(at.offset, addresses), None);
        }
    }

    #[test]
    fn offsets_are_those_of_the_format() {
        let offsets = |lbn| path(lbn, 923).unwrap().steps.iter().map(|step| step.offset).collect::<Vec<_>>();
        let (n, direct) = (1018, 923 + 2 * 1018);
        assert_eq!(path(922, 923), Some(Path { steps: SmallVec::new(), slot: 922 }));
        assert_eq!(offsets(923), [1]);
        assert_eq!(offsets(923 + n), [2]);
        assert_eq!(offsets(direct), [3, 4]);
        assert_eq!(offsets(direct + n * n), [SECOND_INDIRECT, SECOND_INDIRECT + 1]);
        let double = direct + 2 * n * n;
        assert_eq!(offsets(double), [DOUBLE_INDIRECT, DOUBLE_INDIRECT + 1, DOUBLE_INDIRECT + 2]);
        let (k, j) = (7, 11);
        let indirect = DOUBLE_INDIRECT + 1 + k * 1019;
        let lbn = double + u64::from(k) * n * n + u64::from(j) * n;
        assert_eq!(offsets(lbn), [DOUBLE_INDIRECT, indirect, indirect + 1 + j]);
        assert_eq!(lbn_limit(923), double + n * n * n);
    }

    #[test]
    fn the_inode_and_odd_offsets_have_an_answer() {
        assert_eq!(first_lbn(0, 873), Some(0));
        for offset in [3, SECOND_INDIRECT, DOUBLE_INDIRECT, DOUBLE_INDIRECT + 1, XATTR_OFFSET, u32::MAX] {
            assert_eq!(first_lbn(offset, 873), None, "{offset}");
        }
        assert_eq!(log_of(0, true), Log::HotNode);
        assert_eq!(log_of(XATTR_OFFSET, true), Log::HotNode);
        assert_eq!(log_of(1, false), Log::WarmNode);
        assert_eq!(log_of(3, true), Log::ColdNode);
        assert_eq!(log_of(DOUBLE_INDIRECT, false), Log::ColdNode);
    }

    #[test]
    fn missing_nodes_hide_what_is_below_them() {
        let (a, n) = (873, 1018);
        let double = a + 2 * n + 2 * n * n;
        let lbn = double + 3 * n * n + 5 * n + 7;
        assert_eq!(missing_until(5, 873, 0), a);
        assert_eq!(missing_until(a, 873, 0), a + n);
        assert_eq!(missing_until(lbn, 873, 0), double + n * n * n);
        assert_eq!(missing_until(lbn, 873, 1), double + 4 * n * n);
        assert_eq!(missing_until(lbn, 873, 2), double + 3 * n * n + 6 * n);
        assert_eq!(span(lbn, 873), double + 3 * n * n + 5 * n..double + 3 * n * n + 6 * n);
        assert_eq!(missing_until(lbn_limit(873), 873, 0), u64::MAX);
    }

    #[test]
    fn a_foreign_node_is_refused() {
        let footer = Footer {
            nid: Nid(7),
            ino: Nid(5),
            cold: true,
            fsync: false,
            dentry: false,
            offset: 1,
            cp_version: 9,
            next: BlkAddr(5000),
        };
        let block = blank(&footer);
        assert!(is_blank(&block));
        assert_eq!(Footer::decode_of(&block, Nid(7), Nid(5)), Ok(footer));
        let wrong = Footer::decode_of(&block, Nid(8), Nid(5)).unwrap_err().to_string();
        assert_eq!(wrong, "node 8 is damaged: its footer says it is node 7");
        let wrong = Footer::decode_of(&block, Nid(7), Nid(7)).unwrap_err().to_string();
        assert_eq!(wrong, "inode 7 is damaged: its footer says it belongs to inode 5, not 7");
    }

    proptest! {
        #[test]
        fn footers_survive_a_round_trip(
            (nid, ino, offset) in (any::<u32>(), any::<u32>(), 0..=XATTR_OFFSET),
            (cold, fsync, dentry) in any::<(bool, bool, bool)>(),
            (cp_version, next) in any::<(u64, u32)>(),
        ) {
            let (nid, ino, next) = (Nid(nid), Nid(ino), BlkAddr(next));
            let footer = Footer { nid, ino, cold, fsync, dentry, offset, cp_version, next };
            let mut block = vec![0xA5; BLOCK];
            footer.encode_into(&mut block);
            prop_assert_eq!(Footer::decode(&block), footer);
            prop_assert!(block[..FOOTER_OFFSET].iter().all(|&byte| byte == 0xA5));
        }

        #[test]
        fn every_file_block_has_one_place(lbn in 0u64..1_100_000_000, choice in 0usize..4, step in 0usize..4) {
            let addresses = ADDRESSES[choice];
            let span = span(lbn, addresses);
            match path(lbn, addresses) {
                None => prop_assert!(span.is_empty() && lbn >= lbn_limit(addresses)),
                Some(path) => {
                    let offset = path.steps.last().map_or(0, |step| step.offset);
                    prop_assert_eq!(first_lbn(offset, addresses).unwrap() + u64::from(path.slot), lbn);
                    prop_assert_eq!(span.start + u64::from(path.slot), lbn);
                    prop_assert!(covered(lbn, addresses, step).end >= span.end);
                }
            }
        }

        #[test]
        fn hostile_numbers_never_panic(lbn: u64, addresses in 0u32..=923, offset: u32, slot: usize) {
            let block = [0xFF; BLOCK];
            let _ = (path(lbn, addresses), first_lbn(offset, addresses), missing_until(lbn, addresses, slot));
            let _ = (addr(&block, slot), nid(&block, slot), log_of(offset, true));
        }
    }
}
