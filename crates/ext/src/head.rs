//! The head of a volume: the superblock and the group descriptors, read from the disk and written to it as they are.

use moafs_disk::{Buf, DiskExt, Kind, Lba, Op, Request, SECTOR, SharedDisk, Tag};
use moafs_vfs::{Error, Result};

use crate::format::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET};
use crate::format::{BlockNo, Descriptor, Geometry, Sealed, Superblock, checksum};
use crate::health::damaged;

/// Reads the superblock, and verifies it.
///
/// # Errors
/// Damage and device errors.
pub(crate) fn read_superblock(disk: &SharedDisk) -> Result<Superblock> {
    let at = Lba::from_byte(SUPERBLOCK_OFFSET);
    let bytes = disk.read(at, SUPERBLOCK_BYTES, Tag::volume(Kind::Superblock));
    let bytes = bytes.map_err(|source| Error::disk("reading the superblock", source))?;
    let superblock = Superblock::parse(&bytes).map_err(damaged)?;
    superblock.verify().map_err(damaged)?;
    Ok(superblock)
}

/// Returns the geometry of a volume on a disk.
///
/// # Errors
/// Damage: fields that contradict one another, or lead beyond the end of the disk.
pub(crate) fn geometry_of(superblock: &Superblock, disk: &SharedDisk) -> Result<Geometry> {
    Geometry::of(superblock, disk.limits().sectors * SECTOR as u64).map_err(damaged)
}

/// Reads the descriptors of all groups.
///
/// # Errors
/// Damage and device errors.
pub(crate) fn read_descriptors(disk: &SharedDisk, geo: &Geometry) -> Result<Vec<Descriptor>> {
    let mut descriptors = Vec::new();
    // The blocks of the table that follow one another are read together.
    let mut table: Option<(BlockNo, Buf)> = None;
    for group in geo.all_groups() {
        let (block, offset) = geo.locate_descriptor(group);
        let within = |(first, bytes): &(BlockNo, Buf)| {
            let start = block.0.checked_sub(first.0)? as usize * geo.block_bytes() + offset;
            (start + geo.desc_size as usize <= bytes.len()).then_some(start)
        };
        let start = match table.as_ref().and_then(within) {
            Some(start) => start,
            None => {
                let blocks = if group.0 == 0 { geo.descriptor_blocks.min(geo.first_meta_bg).max(1) } else { 1 };
                let at = Lba::from_byte(geo.byte_of(block));
                let bytes = disk
                    .read(at, blocks as usize * geo.block_bytes(), Tag::volume(Kind::Descriptors))
                    .map_err(|source| Error::disk("reading the group descriptors", source))?;
                table = Some((block, bytes));
                offset
            }
        };
        let Some((_, bytes)) = &table else { continue };
        let slot = &bytes[start..start + geo.desc_size as usize];
        descriptors.push(Descriptor::decode(slot, group, geo).map_err(damaged)?);
    }
    Ok(descriptors)
}

/// Replaces the superblock on the disk, `before`, by `after`, durably, beside journal and cache.
///
/// No driver accepts a superblock whose checksum is wrong, and a power cut may tear a write between its two sectors. So
/// the second sector goes first if it changes, with the checksum that is right beside the first one as it was: its
/// fields must mean nothing, or nothing wrong, without those of the first. Then the first sector changes as
/// [`checksum::keep_superblock_sum`] describes.
///
/// # Errors
/// Device errors.
pub(crate) fn write_superblock(
    disk: &SharedDisk,
    before: &Superblock,
    after: &Superblock,
    geo: &Geometry,
) -> Result<()> {
    let mut bytes = Buf::copy_of(before.as_bytes());
    let second = SECTOR..SUPERBLOCK_BYTES;
    if after.as_bytes()[second.clone()] != bytes[second.clone()] {
        bytes[second.clone()].copy_from_slice(&after.as_bytes()[second]);
        let sealed = geo.checksums.seal(Sealed::Superblock, &mut bytes);
        debug_assert!(sealed.is_ok(), "a superblock has a place for its checksum");
        write_superblock_bytes(disk, &bytes)?;
    }
    bytes[..SECTOR].copy_from_slice(&after.as_bytes()[..SECTOR]);
    if geo.checksums.cover_all() {
        checksum::keep_superblock_sum(&mut bytes);
    }
    write_superblock_bytes(disk, &bytes)
}

fn write_superblock_bytes(disk: &SharedDisk, bytes: &[u8]) -> Result<()> {
    let write = Request {
        op: Op::Write { data: vec![Buf::copy_of(bytes).freeze()], fua: false },
        at: Lba::from_byte(SUPERBLOCK_OFFSET),
        tag: Tag::volume(Kind::Superblock),
    };
    let done = disk.run(vec![write]).remove(0);
    done.result.map_err(|source| Error::disk("writing the superblock", source))?;
    disk.make_durable(disk.epoch()).map_err(|source| Error::disk("flushing the superblock", source))
}
