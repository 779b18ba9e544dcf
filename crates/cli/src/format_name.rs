//! The formats of volumes, told apart by their first bytes.

use std::fmt;
use std::path::Path;

use clap::ValueEnum;
use moafs_disk::{Buf, DiskExt, Kind, Lba, SECTOR, SharedDisk, Tag};
use serde::Serialize;

use crate::error::{CliError, Result};

/// Bytes at the start of a volume that tell its format: the superblock of ext2, and both of F2FS.
const HEAD_BYTES: usize = 8192;
/// Offset of the magic number of ext2: at 56 in the superblock, which is at 1024.
const EXT_MAGIC_AT: usize = 1024 + 56;
const EXT_MAGIC: [u8; 2] = 0xEF53_u16.to_le_bytes();
/// Offsets of the magic number of F2FS: at 1024 in block 0, and in its copy, block 1.
const F2FS_MAGIC_AT: [usize; 2] = [1024, 4096 + 1024];
const F2FS_MAGIC: [u8; 4] = 0xF2F5_2010_u32.to_le_bytes();

/// The formats of volumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum FormatName {
    /// Block groups, inodes near their data: ext2, ext3, ext4
    Ext,
    /// Log-structured, for flash
    F2fs,
}

impl FormatName {
    /// Returns the name that options and JSON have for it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            FormatName::Ext => "ext",
            FormatName::F2fs => "f2fs",
        }
    }

    /// Returns the format of a volume that begins with these bytes; `None` if they hold no magic
    /// number.
    pub(crate) fn of_head(head: &[u8]) -> Option<FormatName> {
        let has = |at: usize, magic: &[u8]| head.get(at..at + magic.len()) == Some(magic);
        let [first, copy] = F2FS_MAGIC_AT;
        if has(first, &F2FS_MAGIC) {
            Some(FormatName::F2fs)
        } else if has(EXT_MAGIC_AT, &EXT_MAGIC) {
            // A superblock's copy may be left over from a volume that was here before.
            Some(FormatName::Ext)
        } else if has(copy, &F2FS_MAGIC) {
            Some(FormatName::F2fs)
        } else {
            None
        }
    }

    /// Returns the format of the volume on a disk.
    pub(crate) fn on_disk(image: &Path, disk: &SharedDisk) -> Result<FormatName> {
        let head = read_head(disk)?;
        if let Some(name) = FormatName::of_head(&head) {
            return Ok(name);
        }
        let image = image.to_owned();
        Err(match (packer_of(&head), moafs_ext::check::find_copy(&**disk)) {
            (Some(program), _) => CliError::Compressed { image, program },
            (None, Some(copy)) => CliError::SuperblockLost { image, copy: copy.0 },
            (None, None) => CliError::NoVolume { image },
        })
    }
}

/// Returns the program that unpacks a compressed file with these first bytes.
fn packer_of(head: &[u8]) -> Option<&'static str> {
    const PACKERS: [(&[u8], &str); 5] = [
        (b"\x1f\x8b", "gzip"),
        (b"\xfd7zXZ\0", "xz"),
        (b"\x28\xb5\x2f\xfd", "zstd"),
        (b"BZh", "bzip2"),
        (b"\x04\x22\x4d\x18", "lz4"),
    ];
    PACKERS.iter().find(|(magic, _)| head.starts_with(magic)).map(|(_, program)| *program)
}

impl fmt::Display for FormatName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Reads the bytes at the start of a disk that tell the format of a volume there.
pub(crate) fn read_head(disk: &SharedDisk) -> Result<Buf> {
    let bytes = (disk.limits().sectors * SECTOR as u64).min(HEAD_BYTES as u64) as usize;
    Ok(disk.read(Lba(0), bytes, Tag::volume(Kind::Superblock))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(magics: &[(usize, &[u8])]) -> Vec<u8> {
        let mut head = vec![0; HEAD_BYTES];
        for (at, magic) in magics {
            head[*at..*at + magic.len()].copy_from_slice(magic);
        }
        head
    }

    #[test]
    fn volumes_are_told_apart_by_their_magic_numbers() {
        let [first, copy] = F2FS_MAGIC_AT.map(|at| (at, &F2FS_MAGIC[..]));
        let ext = (EXT_MAGIC_AT, &EXT_MAGIC[..]);
        for (magics, format) in [
            (&[][..], None),
            (&[ext], Some(FormatName::Ext)),
            (&[first, copy], Some(FormatName::F2fs)),
            (&[copy], Some(FormatName::F2fs)),
            (&[ext, copy], Some(FormatName::Ext)),
            (&[first, ext], Some(FormatName::F2fs)),
        ] {
            assert_eq!(FormatName::of_head(&head(magics)), format);
        }
        assert_eq!(FormatName::of_head(&[]), None);
    }

    #[test]
    fn compressed_files_are_known() {
        assert_eq!(packer_of(b"\x1f\x8b\x08\0"), Some("gzip"));
        assert_eq!(packer_of(b"\xfd7zXZ\0\0"), Some("xz"));
        assert_eq!(packer_of(&[0; 8]), None);
    }
}
