//! Making an empty F2FS volume (section 2).

use moafs_disk::{Disk, DiskError};
use moafs_runtime::Timestamp;

use crate::format::superblock::{Features, Geometry};

/// What the new volume shall look like.
#[derive(Debug, Clone)]
pub struct MkfsOptions {
    /// The volume's name: at most 512 UTF-16 units.
    pub label: String,
    /// The volume's identity.
    pub uuid: [u8; 16],
    /// Any of extra_attr, inode_checksum, sb_checksum, flexible_inline_xattr, inode_crtime, lost_found.
    pub features: Features,
    /// Segments in a section.
    pub segs_per_sec: u32,
    /// Sections in a zone.
    pub secs_per_zone: u32,
    /// The share of the main area that users do not see, in percent; chosen from the size if not given.
    pub overprovision_percent: Option<f64>,
    /// The time of day that the first inodes carry.
    pub now: Timestamp,
    /// Fewer inodes, but a checkpoint with room for the largest volumes (`mkfs.f2fs -i`).
    pub large_nat_bitmap: bool,
    /// Files with these extensions go to the cold log.
    pub cold_extensions: Vec<String>,
    /// Files with these extensions go to the hot log.
    pub hot_extensions: Vec<String>,
    /// Tell the device first that its contents are no longer needed.
    pub discard: bool,
}

impl MkfsOptions {
    /// The defaults, with what cannot have one.
    pub fn new(uuid: [u8; 16], now: Timestamp) -> MkfsOptions {
        let _ = (uuid, now);
        todo!()
    }
}

/// Why no volume was made.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum MkfsError {
    /// An option has a value that no volume can have.
    #[error("{what} {value} is not possible: {rule}")]
    Option {
        /// Which option.
        what: &'static str,
        /// Its value.
        value: String,
        /// What is possible.
        rule: String,
    },
    /// The device cannot hold a volume of this shape.
    #[error("a volume of this shape does not fit {bytes} bytes: {why}")]
    Size {
        /// Bytes of the device.
        bytes: u64,
        /// What does not fit.
        why: String,
    },
    /// A request failed.
    #[error("cannot {doing}: {source}")]
    Disk {
        /// What was being done.
        doing: &'static str,
        /// How it failed.
        source: DiskError,
    },
}

/// What was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The volume's shape.
    pub geometry: Geometry,
    /// Blocks that files may use.
    pub user_blocks: u64,
    /// Segments kept free so that cleaning can always go on.
    pub reserved_segments: u32,
    /// Segments that users do not see, with the reserved ones.
    pub overprovision_segments: u32,
}

/// Makes an empty volume on `disk`. Everything on it is lost.
///
/// # Errors
/// If the options do not fit together or with the device, or if a request fails: then there is no volume, neither the
/// old nor the new one.
pub fn mkfs(disk: &dyn Disk, options: &MkfsOptions) -> Result<Report, MkfsError> {
    let _ = (disk, options);
    todo!()
}
