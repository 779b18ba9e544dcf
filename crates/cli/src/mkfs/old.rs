//! The contents of a disk that is going to be overwritten: volumes and tables worth keeping.

use moafs_disk::partition::{PartitionTable, PartitionType};
use moafs_disk::{Disk, DiskExt, Kind, Lba, Op, Request, SECTOR, SharedDisk, Tag};

use crate::error::Result;
use crate::partition;

/// Bytes at the start of a disk that are searched.
const LOOK_BYTES: usize = 68 << 10;
/// The first bytes of the header of a GUID partition table.
const GPT_HEADER: &[u8] = b"EFI PART";
/// Sector sizes with which the table's copy may stand in the last sector of a disk.
const GPT_SECTORS: [u64; 2] = [SECTOR as u64, 4096];

/// Names what is on a disk, to be put behind "holds"; `None` if nothing is known to be lost.
pub(super) fn contents(disk: &SharedDisk) -> Result<Option<String>> {
    if let Some(volume) = partition::volume_words(disk)? {
        return Ok(Some(volume));
    }
    let head = head(disk)?;
    let of_head = known(&head);
    // A FAT volume and a table of partitions have the same last bytes in their first sector.
    let table = if of_head.is_none() || is_gpt(&head) { PartitionTable::read(&**disk)? } else { None };
    Ok(match table {
        Some(table) => Some(table_words(&table)),
        None => of_head.or_else(|| other_boot_sector(&head)).map(str::to_owned),
    })
}

fn head(disk: &SharedDisk) -> Result<Vec<u8>> {
    let bytes = (disk.limits().sectors * SECTOR as u64).min(LOOK_BYTES as u64) as usize;
    Ok(disk.read(Lba(0), bytes, Tag::volume(Kind::Superblock))?.to_vec())
}

fn is_gpt(head: &[u8]) -> bool {
    GPT_SECTORS.iter().any(|sector| head.get(*sector as usize..).is_some_and(|rest| rest.starts_with(GPT_HEADER)))
}

/// Names the kind of a volume of another driver by its first bytes.
fn known(head: &[u8]) -> Option<&'static str> {
    // Offset, bytes, name of the contents.
    const MAGICS: &[(usize, &[u8], &str)] = &[
        (0, b"XFSB", "an XFS volume"),
        (0, b"LUKS\xba\xbe", "an encrypted volume (LUKS)"),
        (0, b"hsqs", "a squashfs volume"),
        (3, b"NTFS    ", "an NTFS volume"),
        (3, b"EXFAT   ", "an exFAT volume"),
        (54, b"FAT", "a FAT volume"),
        (82, b"FAT32", "a FAT volume"),
        (512, b"LABELONE", "an LVM volume"),
        (4086, b"SWAPSPACE2", "a swap area"),
        (32769, b"CD001", "an ISO 9660 volume"),
        (65600, b"_BHRfS_M", "a Btrfs volume"),
    ];
    let known = MAGICS.iter().find(|(at, magic, _)| head.get(*at..*at + magic.len()) == Some(*magic));
    known.map(|(.., what)| *what)
}

fn other_boot_sector(head: &[u8]) -> Option<&'static str> {
    (head.get(510..512) == Some(b"\x55\xaa")).then_some("a boot sector")
}

fn table_words(table: &PartitionTable) -> String {
    let is_guid = |kind: &PartitionType| matches!(kind, PartitionType::Guid(_));
    let is_gpt = table.is_copy || table.partitions.first().is_none_or(|first| is_guid(&first.kind));
    let kind = if is_gpt { "gpt" } else { "dos" };
    match table.partitions.len() {
        1 => format!("a partition table ({kind}, 1 partition)"),
        count => format!("a partition table ({kind}, {count} partitions)"),
    }
}

/// Erases the copy of a GUID partition table at the end of the disk: with the table itself overwritten, it would bring
/// the old partitions back.
pub(super) fn erase_table_copy(disk: &dyn Disk) -> Result<()> {
    for bytes in GPT_SECTORS {
        let sectors = bytes / SECTOR as u64;
        let Some(at) = disk.limits().sectors.checked_sub(sectors).map(Lba) else { continue };
        let tag = Tag::volume(Kind::Superblock);
        if disk.read(at, SECTOR, tag)?.starts_with(GPT_HEADER) {
            for done in disk.run(vec![Request { op: Op::WriteZeroes { sectors }, at, tag }]) {
                done.result?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_of_other_drivers_are_recognised() {
        let with = |at: usize, magic: &[u8]| {
            let mut head = vec![0; LOOK_BYTES];
            head[at..at + magic.len()].copy_from_slice(magic);
            head
        };
        assert_eq!(known(&with(0, b"XFSB")), Some("an XFS volume"));
        assert_eq!(known(&with(4086, b"SWAPSPACE2")), Some("a swap area"));
        assert_eq!(known(&with(510, b"\x55\xaa")), None);
        assert_eq!(other_boot_sector(&with(510, b"\x55\xaa")), Some("a boot sector"));
        assert!(is_gpt(&with(512, GPT_HEADER)) && is_gpt(&with(4096, GPT_HEADER)));
        assert_eq!(known(&[0; 100]), None);
    }
}
