//! Blocks that are claimed more than once, and their claims.

use std::collections::BTreeMap;

use super::issue::Holder;
use crate::format::{BlockNo, Geometry, InodeNo, bitmap};

/// Claims that are kept in memory; a volume with more is not repaired.
const CLAIMS_MAX: usize = 1 << 20;

/// Indirect blocks that are walked again for another claimant.
const VISITS_MAX: u64 = 1 << 20;

/// Results of pass 1 about blocks with more than one claim.
#[derive(Default)]
pub(super) struct Sharing {
    /// A bit for each such block; absent until there is one.
    pub(super) map: Option<Vec<u8>>,
    /// Number of indirect blocks that may still be walked for a second claimant: the walk must end
    /// on any volume.
    pub(super) visits_left: u64,
    pub(super) claims: Option<Claims>,
}

impl Sharing {
    pub(super) fn new(geo: &Geometry) -> Sharing {
        Sharing { visits_left: visits_max(geo), ..Sharing::default() }
    }

    pub(super) fn note(&mut self, block: BlockNo, geo: &Geometry) {
        let bytes = geo.blocks.div_ceil(8) as usize;
        bitmap::set(self.map.get_or_insert_with(|| vec![0; bytes]), block.0 as u32);
    }

    /// Returns true if the block has more than one claim, as far as pass 1 has seen.
    pub(super) fn has(&self, block: BlockNo) -> bool {
        let map = self.map.as_ref().or_else(|| self.claims.as_ref().map(|claims| &claims.shared));
        map.is_some_and(|map| bitmap::test(map, block.0 as u32))
    }
}

pub(super) fn visits_max(geo: &Geometry) -> u64 {
    geo.blocks.min(VISITS_MAX)
}

/// The degree to which a block's contents fit a claim; the smallest rank keeps the block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    /// Bitmaps, inode tables, superblocks, descriptors; the list of blocks of the resize inode.
    Metadata,
    /// The contents look like a block of the claimed type.
    Confirmed,
    /// File data: any contents will do.
    Data,
    /// The contents do not look like an indirect block.
    Refuted,
}

/// A claim on a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Claim {
    pub(super) rank: Rank,
    /// The claimant's inode number; 0 for metadata.
    pub(super) inode: u32,
    pub(super) level: u8,
    pub(super) lbn: u64,
}

/// The claims of an inode that do not keep their blocks, and that the contents do not refute.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Loss {
    /// Claims on blocks of the file itself.
    pub(super) data: u64,
    /// Claims on indirect blocks, or nodes of the extent tree.
    pub(super) nodes: u64,
}

/// The claims on all blocks that have more than one.
pub(super) struct Claims {
    /// Blocks with more than one claim, a bit each.
    pub(super) shared: Vec<u8>,
    /// The claim that keeps the block, by block.
    pub(super) keepers: BTreeMap<u32, Claim>,
    /// The other claims, in the order of inodes.
    pub(super) others: Vec<(BlockNo, Claim)>,
    /// True if there are more claims than can be kept in memory, or more indirect blocks than can
    /// be walked.
    pub(super) too_many: bool,
}

impl Claims {
    pub(super) fn is_shared(&self, block: BlockNo) -> bool {
        bitmap::test(&self.shared, block.0 as u32)
    }

    /// Notes a claim: the best one so far keeps the block.
    pub(super) fn note(&mut self, block: BlockNo, claim: Claim) {
        if !self.is_shared(block) {
            return;
        }
        if self.others.len() >= CLAIMS_MAX {
            self.too_many = true;
            return;
        }
        match self.keepers.get_mut(&(block.0 as u32)) {
            None => drop(self.keepers.insert(block.0 as u32, claim)),
            Some(keeper) if claim < *keeper => self.others.push((block, std::mem::replace(keeper, claim))),
            Some(_) => self.others.push((block, claim)),
        }
    }

    /// Returns what each inode loses that has a claim which does not keep its block. The resize inode gets no
    /// copy.
    pub(super) fn losses(&self) -> BTreeMap<u32, Loss> {
        let mut losses: BTreeMap<u32, Loss> = BTreeMap::new();
        for (_, claim) in self.others.iter().filter(|(_, claim)| claim.inode != InodeNo::RESIZE.0) {
            let loss = losses.entry(claim.inode).or_default();
            match claim.level {
                _ if claim.rank == Rank::Refuted => {}
                0 => loss.data += 1,
                _ => loss.nodes += 1,
            }
        }
        losses
    }

    pub(super) fn holder(&self, block: BlockNo) -> Holder {
        match self.keepers.get(&(block.0 as u32)) {
            Some(keeper) if keeper.rank != Rank::Metadata && keeper.inode != 0 => Holder::Inode(InodeNo(keeper.inode)),
            Some(keeper) if keeper.rank != Rank::Metadata => Holder::Attributes,
            _ => Holder::Metadata,
        }
    }

    pub(super) fn keeps(&self, block: BlockNo, claim: &Claim) -> bool {
        self.keepers.get(&(block.0 as u32)) == Some(claim)
    }
}
