//! The policies that tell hot data from cold. A policy is one file with an implementation of
//! [`Separator`], and one line in [`Temperature`].

use serde::Serialize;

use crate::place::{kind, sepbit, wolf};

pub use crate::place::heat::{Bounds, FileBlocks, Heat, Separator};

moafs_vfs::named_enum! {
    /// The policy that tells hot data from cold: the values of `-o temperature=`.
    #[derive(Hash, Default, Serialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Temperature ("temperature") {
        #[default]
        Kind = "kind", "By kind of file, as the superblock's lists of extensions mark it" => kind::ByKind;
        Wolf = "wolf", "By how often a block was written" => wolf::ByReferences;
        SepBit = "sepbit", "By how long the block before lived" => sepbit::ByLifespan;
    }

    /// Makes the state of the policy for one volume. `seed`: for choices among equals.
    pub fn separator(self, seed: u64, bounds: Bounds) -> Box<dyn Separator>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Nid;
    use moafs_vfs::types::{Lbn, LbnRange};

    const BOUNDS: Bounds = Bounds { blocks: 1 << 20, bytes_max: 64 << 20 };

    #[test]
    fn the_default_goes_by_the_mark_of_the_file() {
        let mut separator = Temperature::default().separator(1, BOUNDS);
        for mark in [None, Some(Heat::Hot), Some(Heat::Cold)] {
            let blocks = FileBlocks { ino: Nid(4), range: LbnRange { start: Lbn(0), len: 8 }, mark };
            assert_eq!(separator.heat(&blocks, 0), mark);
        }
    }

    #[test]
    fn wolf_finds_rewritten_blocks_hot_and_others_cold() {
        let mut separator = Temperature::Wolf.separator(1, BOUNDS);
        let blocks = |ino| FileBlocks { ino: Nid(ino), range: LbnRange { start: Lbn(0), len: 8 }, mark: None };
        let mut write = |ino, times| (0..times).map(|_| separator.heat(&blocks(ino), 0)).last().flatten();
        (10..60).for_each(|ino| assert!(write(ino, 1).is_some()));
        assert_eq!((write(4, 9), write(99, 1)), (Some(Heat::Hot), Some(Heat::Cold)));
    }
}
