//! The place where moafs has mounted an image: commands that only look do so through the mount.

use std::path::{Path, PathBuf};

use moafs_disk::file::{FileOptions, Sharing};
use moafs_mount::mount_table;
use serde_json::Value;

use crate::partition::{self, Part};
use crate::volume;

/// Returns where moafs has mounted the volume of an image, or of a partition (`IMAGE@CHOICE`), if it has.
///
/// A disk with several volumes is mounted under one name, so the mount is asked where its volume begins.
pub(crate) fn mount_point(image: &Path) -> Option<PathBuf> {
    let (file, _) = partition::split(image);
    let entries = mount_table::mounts_of_image(&file.canonicalize().ok()?);
    if entries.is_empty() {
        return None;
    }
    // Nothing but a partition table is read, which mounts do not change.
    let options = FileOptions { lock: Sharing::Anybody, ..FileOptions::reader() };
    let first_byte = volume::open_part(image, options, &Part::OnlyVolume).ok()?.first_byte;
    entries.into_iter().map(|entry| entry.target).find(|target| volume_begins(target) == Some(first_byte))
}

/// Returns the first byte of a mounted volume on its image.
fn volume_begins(target: &Path) -> Option<u64> {
    let stats: Value = serde_json::from_slice(&std::fs::read(target.join(".moafs/stats")).ok()?).ok()?;
    stats["first_byte"].as_u64()
}
