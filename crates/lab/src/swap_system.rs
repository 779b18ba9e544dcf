//! The places for pages that are compared, by name.

use std::fmt;

use moafs_swap::Placement;

/// Where pages go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SwapSystem {
    /// To a swap partition before the file system: the paper's baseline.
    Partition,
    /// Into the file system's lowest free blocks, wherever the head is: what a mount does without areas.
    Start,
    /// Into swap areas next to the disk head; the partition takes what finds no area.
    Areas,
}

impl SwapSystem {
    /// All of them.
    pub const ALL: [SwapSystem; 3] = [SwapSystem::Partition, SwapSystem::Start, SwapSystem::Areas];

    /// The paper's two.
    pub const DEFAULT: [SwapSystem; 2] = [SwapSystem::Partition, SwapSystem::Areas];

    /// Its name in tables and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            SwapSystem::Partition => "partition",
            SwapSystem::Start => "start",
            SwapSystem::Areas => "saf",
        }
    }

    /// What the swap is told.
    pub fn placement(self) -> Placement {
        match self {
            SwapSystem::Partition | SwapSystem::Start => Placement::Traditional,
            SwapSystem::Areas => Placement::Areas,
        }
    }

    /// Whether the swap partition is used.
    pub fn has_partition(self) -> bool {
        self != SwapSystem::Start
    }

    /// Whether blocks of the file system are.
    pub fn has_volume(self) -> bool {
        self != SwapSystem::Partition
    }
}

impl fmt::Display for SwapSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
