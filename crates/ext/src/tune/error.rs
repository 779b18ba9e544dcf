//! The reasons for which a volume is not changed.

use moafs_vfs::Error;

use crate::mkfs::MkfsError;

/// The reason for which a volume was not changed.
#[derive(Debug, thiserror::Error)]
pub enum TuneError {
    /// The volume has to be checked or unmounted first.
    #[error("the volume {0}: run `moafs fsck` on it first")]
    NotAtRest(&'static str),
    /// The change cannot be made on this volume.
    #[error("{0}")]
    Impossible(String),
    /// No journal of this size can be placed.
    #[error("cannot add a journal: {0}")]
    Journal(#[from] MkfsError),
    /// Damage, or a device error.
    #[error(transparent)]
    Volume(#[from] Error),
}
