//! The two copies of the superblock: the first that is whole counts, and the other one is written anew.
//!
//! A program that changes them writes one after the other, and a power cut may leave one torn, or as it was.

use moafs_disk::{Buf, DiskExt, Kind, Lba, SECTOR, SharedDisk, Tag};
use moafs_vfs::{Error, Result};

use super::convert::damaged;
use crate::format::BLOCK;
use crate::format::superblock::{Features, SUPERBLOCK_START, Superblock};

/// Returns the first sector of a block.
pub(super) fn lba_of(block: u32) -> Lba {
    Lba(u64::from(block) * (BLOCK / SECTOR) as u64)
}

fn read_copy(disk: &SharedDisk, copy: u8) -> Result<Buf> {
    let bytes = disk.read(lba_of(copy.into()), BLOCK, Tag::volume(Kind::Superblock));
    bytes.map_err(|source| Error::disk(format!("reading superblock copy {copy}"), source))
}

/// Reads the first sound superblock.
pub(crate) fn read_superblock(disk: &SharedDisk) -> Result<Superblock> {
    let mut first = None;
    for copy in 0..2 {
        let decoded = read_copy(disk, copy).and_then(|bytes| Superblock::decode(&bytes, copy).map_err(damaged));
        match decoded {
            Ok(superblock) => return Ok(superblock),
            Err(error) => first = first.or(Some(error)),
        }
    }
    Err(first.expect("two copies were tried"))
}

/// Replaces a copy of the superblock, durably; the bytes in front of it stay. Without a checksum a torn write could
/// pass for a superblock: so the copy loses its magic first, unless the change lies in one sector.
///
/// # Errors
/// Device errors.
pub(crate) fn replace_copy(disk: &SharedDisk, copy: u8, superblock: &Superblock) -> Result<()> {
    let old = read_copy(disk, copy)?;
    let mut new = Buf::copy_of(&old);
    new[SUPERBLOCK_START..].copy_from_slice(&superblock.encode()[SUPERBLOCK_START..]);
    let sectors = old.chunks(SECTOR).zip(new.chunks(SECTOR));
    let changed = sectors.filter(|(before, after)| before != after).count();
    if changed > 1 && !superblock.features.contains(Features::SB_CHECKSUM) {
        write_copy(disk, copy, without_magic(&old))?;
        write_copy(disk, copy, without_magic(&new))?;
    }
    write_copy(disk, copy, new)
}

fn without_magic(block: &Buf) -> Buf {
    let mut bytes = Buf::copy_of(block);
    bytes[SUPERBLOCK_START..SUPERBLOCK_START + SECTOR].fill(0);
    bytes
}

fn write_copy(disk: &SharedDisk, copy: u8, block: Buf) -> Result<()> {
    let failed = |source| Error::disk(format!("writing superblock copy {copy}"), source);
    let epoch = disk.write(lba_of(copy.into()), block.freeze(), Tag::volume(Kind::Superblock)).map_err(failed)?;
    disk.make_durable(epoch).map_err(failed)
}

/// Writes the copies anew that are damaged, or differ from the superblock that counts. Returns what was done in words.
///
/// # Errors
/// Device errors of the writes. A copy that cannot be read stays.
pub(super) fn restore_copies(disk: &SharedDisk, superblock: &Superblock) -> Result<Vec<String>> {
    let counts = &superblock.encode()[SUPERBLOCK_START..];
    let mut notes = Vec::new();
    for copy in 0..2 {
        if read_copy(disk, copy).is_ok_and(|bytes| bytes[SUPERBLOCK_START..] != *counts) {
            replace_copy(disk, copy, superblock)?;
            notes.push(format!("superblock copy {copy} was not as the other one, and was written anew"));
        }
    }
    Ok(notes)
}
