//! The places for pages that are compared, by name.

use std::fmt;

use moafs_swap::Placement;

/// The place that pages go to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SwapSystem {
    /// To a swap partition before the file system: the paper's baseline.
    Partition,
    /// Into the file system's lowest free blocks, wherever the head is: the choice of a mount
    /// without areas.
    Start,
    /// Into swap areas next to the disk head; pages without an area go to the partition.
    Areas,
}

impl SwapSystem {
    /// All systems of the comparison.
    pub const ALL: [SwapSystem; 3] = [SwapSystem::Partition, SwapSystem::Start, SwapSystem::Areas];

    /// The two systems of the paper.
    pub const DEFAULT: [SwapSystem; 2] = [SwapSystem::Partition, SwapSystem::Areas];

    /// Returns its name in tables and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            SwapSystem::Partition => "partition",
            SwapSystem::Start => "start",
            SwapSystem::Areas => "saf",
        }
    }

    /// Returns the placement option for the swap.
    pub fn placement(self) -> Placement {
        match self {
            SwapSystem::Partition | SwapSystem::Start => Placement::Traditional,
            SwapSystem::Areas => Placement::Areas,
        }
    }

    /// Returns true if the swap partition is used.
    pub fn has_partition(self) -> bool {
        self != SwapSystem::Start
    }

    /// Returns true if blocks of the file system are used.
    pub fn has_volume(self) -> bool {
        self != SwapSystem::Partition
    }
}

impl fmt::Display for SwapSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
