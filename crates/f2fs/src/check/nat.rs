//! The node address table under check.

use std::collections::BTreeMap;

use crate::format::nat::{self, NAT_PER_BLOCK, NatEntry};
use crate::format::superblock::Geometry;
use crate::format::{BLOCK, BlkAddr, Nid};

/// A block of the NAT that has an entry in use.
struct NatBlock {
    bytes: Box<[u8]>,
    /// Its entries that something led to.
    seen: [u64; NAT_PER_BLOCK.div_ceil(64)],
}

/// The node address table.
pub(super) struct Nat {
    blocks: BTreeMap<u32, NatBlock>,
    nid_max: u32,
}

impl Nat {
    pub(super) fn new(geo: &Geometry) -> Nat {
        Nat { blocks: BTreeMap::new(), nid_max: geo.nid_max() }
    }

    /// Returns an id's entry; a free one if there is no such id.
    pub(super) fn get(&self, nid: Nid) -> NatEntry {
        let block = self.blocks.get(&(nid.0 / NAT_PER_BLOCK as u32));
        block.map_or_else(NatEntry::default, |block| nat::entry(&block.bytes, nid.0 as usize % NAT_PER_BLOCK))
    }

    /// True if there can be a node with this id, other than the two that have none.
    pub(super) fn is_nid(&self, nid: Nid) -> bool {
        (Nid::ROOT.0..self.nid_max).contains(&nid.0)
    }

    /// Notes that something leads to a node. False if something did already.
    pub(super) fn see(&mut self, nid: Nid) -> bool {
        let Some(block) = self.blocks.get_mut(&(nid.0 / NAT_PER_BLOCK as u32)) else { return false };
        let index = nid.0 as usize % NAT_PER_BLOCK;
        let bit = 1 << (index % 64);
        let first = block.seen[index / 64] & bit == 0;
        block.seen[index / 64] |= bit;
        first
    }

    /// Numbers of the blocks that have entries in use.
    pub(super) fn blocks_used(&self) -> Vec<u32> {
        self.blocks.keys().copied().collect()
    }

    /// Returns the nodes that are in use in a block, with their entries.
    pub(super) fn used_in(&self, block: u32) -> Vec<(Nid, NatEntry)> {
        let first = block * NAT_PER_BLOCK as u32;
        let nids = (first..first + NAT_PER_BLOCK as u32).map(Nid).filter(|nid| self.is_nid(*nid));
        nids.map(|nid| (nid, self.get(nid))).filter(|(_, entry)| entry.addr != BlkAddr::NULL).collect()
    }

    pub(super) fn insert(&mut self, block: u32, bytes: &[u8]) {
        let used = |index| nat::entry(bytes, index).addr != BlkAddr::NULL;
        if bytes.iter().any(|byte| *byte != 0) && (0..NAT_PER_BLOCK).any(used) {
            self.blocks.insert(block, NatBlock { bytes: bytes.into(), seen: Default::default() });
        }
    }

    pub(super) fn set(&mut self, nid: Nid, entry: NatEntry) {
        let blank = || NatBlock { bytes: vec![0; BLOCK].into(), seen: Default::default() };
        let block = self.blocks.entry(nid.0 / NAT_PER_BLOCK as u32).or_insert_with(blank);
        nat::set_entry(&mut block.bytes, nid.0 as usize % NAT_PER_BLOCK, entry);
    }
}
