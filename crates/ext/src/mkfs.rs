//! Making an empty volume: ext2, ext3 or ext4, by the features that it shall have.
//!
//! | module | decides or does |
//! |---|---|
//! | [`features`] | the features of each member of the family and of older systems; `-O` |
//! | [`usage`] | block size and density of inodes by the kind of use; `-T` |
//! | `options`, `error` | the shape that is asked for and that of the new volume; the reasons for making none |
//! | `shape` | the superblock: sizes, counts, what features need |
//! | [`layout`] | the place of everything; pure |
//! | `write` | carrying it out |
//!
//! The old superblock is erased first and the new one comes last, so that a power cut leaves either no volume or a
//! whole one.

mod error;
pub mod features;
pub mod layout;
mod options;
pub(crate) mod shape;
#[cfg(test)]
mod tests;
pub mod usage;
pub(crate) mod write;

use moafs_disk::{Disk, SECTOR};

pub use error::MkfsError;
use layout::VolumeLayout;
pub use options::{MkfsOptions, MkfsReport};

/// Decides the layout of a new volume on a device of `device_bytes`, without writing anything.
///
/// # Errors
/// If the options do not fit together or with the device.
pub fn plan(device_bytes: u64, options: &MkfsOptions) -> Result<VolumeLayout, MkfsError> {
    layout::place(shape::decide(device_bytes, options)?, options)
}

/// Makes an empty volume on `disk`. All data on it are lost.
///
/// # Errors
/// If the options do not fit together or with the device, or if a request fails: then there is no
/// volume, neither the old nor the new one.
pub fn mkfs(disk: &dyn Disk, options: &MkfsOptions) -> Result<MkfsReport, MkfsError> {
    let layout = plan(disk.limits().sectors * SECTOR as u64, options)?;
    write::write(disk, &layout, options)?;
    Ok(layout.report())
}
