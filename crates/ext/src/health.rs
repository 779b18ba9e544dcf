//! Damage of this format, as vfs reports it; and the volume's health.

use moafs_vfs::Error;
pub use moafs_vfs::health::Health;
use moafs_vfs::types::BlockAddr;

use crate::format::Damage;

impl From<Damage> for Error {
    fn from(damage: Damage) -> Error {
        damaged(damage)
    }
}

/// Returns damage as the error that vfs reports.
pub fn damaged(damage: Damage) -> Error {
    Error::Damaged {
        structure: damage.structure.to_string(),
        block: damage.block.map(|block| BlockAddr(block.0)),
        problem: damage.problem,
    }
}
