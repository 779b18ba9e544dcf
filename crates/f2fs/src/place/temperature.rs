//! The policies that tell hot data from cold. A policy is one file with an implementation of
//! [`Separator`], and one line in [`Temperature`].

use moafs_vfs::types::LbnRange;
use serde::Serialize;

use crate::format::{Log, Nid};
use crate::place::log_choice::{BlockFacts, data_log};
use crate::place::{kind, wolf};

moafs_vfs::named_enum! {
    /// The policy that tells hot data from cold: the values of `-o temperature=`.
    #[derive(Hash, Default, Serialize)]
    #[serde(rename_all = "lowercase")]
    pub enum Temperature ("temperature") {
        #[default]
        Kind = "kind", "By kind of file, as the superblock's lists of extensions mark it" => kind::ByKind;
        Wolf = "wolf", "By how often a block was written" => wolf::ByReferences;
    }

    /// Makes the state of the policy for one volume. `seed`: for choices among equals.
    pub fn separator(self, seed: u64) -> Box<dyn Separator>;
}

/// The heat of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Heat {
    /// Written often: it will soon be written again.
    Hot,
    /// Written seldom: it will probably stay valid for long.
    Cold,
}

impl Heat {
    /// Returns the log of data that a file's block of this heat joins.
    pub fn data_log(self) -> Log {
        data_log(BlockFacts { heat: Some(self), ..BlockFacts::default() })
    }
}

/// File blocks that are about to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileBlocks {
    /// The file's inode.
    pub ino: Nid,
    /// The blocks.
    pub range: LbnRange,
    /// The file's mark, if it has one.
    pub mark: Option<Heat>,
}

/// The state of a policy for one volume.
pub trait Separator: Send {
    /// Returns the heat of blocks that are about to be written, `None` if nothing is known of them. `now_ns`: the
    /// volume's clock.
    fn heat(&mut self, blocks: &FileBlocks, now_ns: u64) -> Option<Heat>;

    /// Notes that there was no request for a while.
    fn idle(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use moafs_vfs::types::Lbn;

    #[test]
    fn the_default_goes_by_the_mark_of_the_file() {
        let mut separator = Temperature::default().separator(1);
        for mark in [None, Some(Heat::Hot), Some(Heat::Cold)] {
            let blocks = FileBlocks { ino: Nid(4), range: LbnRange { start: Lbn(0), len: 8 }, mark };
            assert_eq!(separator.heat(&blocks, 0), mark);
        }
    }

    #[test]
    fn wolf_finds_rewritten_blocks_hot_and_others_cold() {
        let mut separator = Temperature::Wolf.separator(1);
        let blocks = |ino| FileBlocks { ino: Nid(ino), range: LbnRange { start: Lbn(0), len: 8 }, mark: None };
        let mut write = |ino, times| (0..times).map(|_| separator.heat(&blocks(ino), 0)).last().flatten();
        (10..60).for_each(|ino| assert!(write(ino, 1).is_some()));
        assert_eq!((write(4, 9), write(99, 1)), (Some(Heat::Hot), Some(Heat::Cold)));
    }
}
