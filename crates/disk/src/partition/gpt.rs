//! GUID partition tables.

use super::table::{Partition, PartitionTable, PartitionType, fits, read as read_bytes};
use crate::{Disk, DiskError, Lba, SECTOR};

/// Sector sizes of disks that have such tables: the tables count in them.
const SECTOR_BYTES: [u64; 2] = [512, 4096];
const SIGNATURE: &[u8; 8] = b"EFI PART";
/// Bytes of a header that are defined.
const HEADER_BYTES: usize = 92;
/// Most entries that a table may have: eight times the usual number.
const ENTRIES_MAX: u32 = 1024;
/// Sizes of an entry.
const ENTRY_BYTES: std::ops::RangeInclusive<u32> = 128..=4096;

/// The array of entries that a header leads to.
struct Header {
    entries_at: Lba,
    entries: u32,
    entry_bytes: usize,
    entries_sum: u32,
}

/// Reads the table, by its copy if the first one is damaged; `None` if the disk has neither.
pub(super) fn read(disk: &dyn Disk) -> Result<Option<PartitionTable>, DiskError> {
    for sector_bytes in SECTOR_BYTES {
        let last = (disk.limits().sectors * SECTOR as u64 / sector_bytes).saturating_sub(1);
        for at in [1, last] {
            if let Some(partitions) = read_at(disk, sector_bytes, at)? {
                return Ok(Some(PartitionTable { is_copy: at != 1, partitions }));
            }
        }
    }
    Ok(None)
}

/// Reads the table whose header is in a sector; `None` if there is no whole one.
fn read_at(disk: &dyn Disk, sector_bytes: u64, at: u64) -> Result<Option<Vec<Partition>>, DiskError> {
    let lba = |sector: u64| Some(Lba(sector.checked_mul(sector_bytes)? / SECTOR as u64));
    let Some(bytes) = lba(at).map(|at| read_bytes(disk, at, sector_bytes as usize)).transpose()?.flatten() else {
        return Ok(None);
    };
    let Some(header) = decode_header(&bytes, at, lba) else { return Ok(None) };
    let covered = header.entries as usize * header.entry_bytes;
    let Some(bytes) = read_bytes(disk, header.entries_at, covered)? else { return Ok(None) };
    let entries = &bytes[..covered];
    if crc32fast::hash(entries) != header.entries_sum {
        return Ok(None);
    }
    let used = (1..).zip(entries.chunks_exact(header.entry_bytes)).filter(|(_, entry)| entry[..16] != [0; 16]);
    Ok(Some(used.map(|(number, entry)| decode_entry(disk, number, entry, sector_bytes)).collect()))
}

/// Decodes a header that is in sector `at`; `None` if it is none or damaged.
fn decode_header(bytes: &[u8], at: u64, lba: impl Fn(u64) -> Option<Lba>) -> Option<Header> {
    let header_bytes = u32_at(bytes, 12) as usize;
    if &bytes[..8] != SIGNATURE || !(HEADER_BYTES..=bytes.len()).contains(&header_bytes) {
        return None;
    }
    let mut covered = bytes[..header_bytes].to_vec();
    covered[16..20].fill(0);
    let header = Header {
        entries_at: lba(u64_at(bytes, 72))?,
        entries: u32_at(bytes, 80),
        entry_bytes: u32_at(bytes, 84) as usize,
        entries_sum: u32_at(bytes, 88),
    };
    let is_right = crc32fast::hash(&covered) == u32_at(bytes, 16) && u64_at(bytes, 24) == at;
    let is_bounded = header.entries <= ENTRIES_MAX && ENTRY_BYTES.contains(&(header.entry_bytes as u32));
    (is_right && is_bounded).then_some(header)
}

fn decode_entry(disk: &dyn Disk, number: u32, entry: &[u8], sector_bytes: u64) -> Partition {
    let (first, last) = (u64_at(entry, 32), u64_at(entry, 40));
    let scale = sector_bytes / SECTOR as u64;
    let count = last.checked_sub(first).map_or(0, |len| len.saturating_add(1));
    let (start, sectors) = (first.saturating_mul(scale), count.saturating_mul(scale));
    let units: Vec<u16> = entry[56..128].chunks_exact(2).map(|unit| u16::from_le_bytes([unit[0], unit[1]])).collect();
    let end = units.iter().position(|unit| *unit == 0).unwrap_or(units.len());
    Partition {
        number,
        first: Lba(start),
        sectors,
        kind: PartitionType::Guid(guid_at(entry, 0)),
        guid: Some(guid_at(entry, 16)),
        name: String::from_utf16_lossy(&units[..end]),
        fits: fits(disk, start, sectors),
    }
}

fn guid_at(bytes: &[u8], at: usize) -> [u8; 16] {
    std::array::from_fn(|index| bytes[at + index])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(std::array::from_fn(|index| bytes[at + index]))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|index| bytes[at + index]))
}
