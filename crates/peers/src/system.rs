//! The file systems that are compared.

use std::path::Path;
use std::process::Command;

use crate::error::Result;
use crate::machine;

/// A file system of the comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum System {
    /// The kernel's ext4, made by mkfs.ext4.
    Ext4,
    /// The kernel's XFS, made by mkfs.xfs.
    Xfs,
    /// The kernel's Btrfs, made by mkfs.btrfs.
    Btrfs,
    /// moafs on an ext2 volume.
    MoafsExt2,
    /// moafs on an ext4 volume.
    MoafsExt4,
    /// moafs on an F2FS volume.
    MoafsF2fs,
}

impl System {
    /// All file systems of the comparison.
    pub const ALL: [System; 6] =
        [System::Ext4, System::Xfs, System::Btrfs, System::MoafsExt2, System::MoafsExt4, System::MoafsF2fs];

    /// Returns the name used in results.
    pub fn name(self) -> &'static str {
        match self {
            System::Ext4 => "ext4",
            System::Xfs => "xfs",
            System::Btrfs => "btrfs",
            System::MoafsExt2 => "moafs-ext2",
            System::MoafsExt4 => "moafs-ext4",
            System::MoafsF2fs => "moafs-f2fs",
        }
    }

    /// Returns true if the volume is served by moafs.
    pub fn is_ours(self) -> bool {
        self.maker().is_none()
    }

    /// Returns the program that makes the file system's volumes; `None` if it is `moafs` itself.
    pub(crate) fn maker(self) -> Option<&'static str> {
        match self {
            System::Ext4 => Some("mkfs.ext4"),
            System::Xfs => Some("mkfs.xfs"),
            System::Btrfs => Some("mkfs.btrfs"),
            System::MoafsExt2 | System::MoafsExt4 | System::MoafsF2fs => None,
        }
    }

    /// Makes a volume with the tool's defaults. ext4 does at once what it would otherwise do in the
    /// background during its first minutes: the measurement is of a volume at work, not of one
    /// being finished.
    pub(crate) fn make(self, program: &Path, device: &Path) -> Result<()> {
        let mut command = self.maker().map_or_else(|| Command::new(program), Command::new);
        let arguments: &[&str] = match self {
            System::Ext4 => &["-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"],
            System::Xfs | System::Btrfs => &["-q", "-f"],
            System::MoafsExt2 => &["mkfs", "-q", "-F", "-t", "ext2"],
            System::MoafsExt4 => &["mkfs", "-q", "-F", "-t", "ext4", "-E", "lazy_itable_init=0"],
            System::MoafsF2fs => &["mkfs", "-q", "-F", "-t", "f2fs"],
        };
        machine::run(command.args(arguments).arg(device)).map(drop)
    }
}
