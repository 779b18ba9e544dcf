//! Tables as sfdisk(8) makes them, damaged ones, and the disk of a partition.

use std::sync::Arc;

use proptest::prelude::*;

use super::{PartitionDisk, PartitionTable, PartitionType};
use crate::{Buf, Disk, DiskError, DiskExt, Kind, Lba, MemDisk, Op, Request, SECTOR, SharedDisk, Tag};

const SECTORS: u64 = 4096;

fn tag() -> Tag {
    Tag::volume(Kind::Data)
}

fn write(disk: &MemDisk, sector: u64, bytes: &[u8]) {
    let mut whole = bytes.to_vec();
    whole.resize(bytes.len().next_multiple_of(SECTOR), 0);
    disk.write(Lba(sector), Buf::copy_of(&whole).freeze(), tag()).expect("memory can be written");
}

/// Writes a boot record with entries `(index, type, first, sectors)`.
fn write_record(disk: &MemDisk, sector: u64, entries: &[(usize, u8, u32, u32)]) {
    let mut record = [0; SECTOR];
    for &(index, kind, first, sectors) in entries {
        let entry = &mut record[446 + index * 16..][..16];
        entry[4] = kind;
        entry[8..12].copy_from_slice(&first.to_le_bytes());
        entry[12..16].copy_from_slice(&sectors.to_le_bytes());
    }
    record[510..].copy_from_slice(&[0x55, 0xAA]);
    write(disk, sector, &record);
}

/// Returns a header for sector `at` whose entries begin at `entries_at`, and have this content.
fn gpt_header(at: u64, entries_at: u64, count: u32, entry_bytes: u32, entries: &[u8]) -> Vec<u8> {
    let mut header = vec![0; 92];
    header[..8].copy_from_slice(b"EFI PART");
    header[8..12].copy_from_slice(&0x10000_u32.to_le_bytes());
    header[12..16].copy_from_slice(&92_u32.to_le_bytes());
    header[24..32].copy_from_slice(&at.to_le_bytes());
    header[72..80].copy_from_slice(&entries_at.to_le_bytes());
    header[80..84].copy_from_slice(&count.to_le_bytes());
    header[84..88].copy_from_slice(&entry_bytes.to_le_bytes());
    header[88..92].copy_from_slice(&crc32fast::hash(entries).to_le_bytes());
    let sum = crc32fast::hash(&header);
    header[16..20].copy_from_slice(&sum.to_le_bytes());
    header
}

/// Returns four entries; the second is in use, with sectors 100 to 299.
fn gpt_entries() -> Vec<u8> {
    let mut entries = vec![0; 4 * 128];
    let entry = &mut entries[128..256];
    entry[..16].fill(0xAB);
    entry[16..32].fill(0xCD);
    entry[32..40].copy_from_slice(&100_u64.to_le_bytes());
    entry[40..48].copy_from_slice(&299_u64.to_le_bytes());
    for (unit, char) in entry[56..].chunks_exact_mut(2).zip("root".encode_utf16()) {
        unit.copy_from_slice(&char.to_le_bytes());
    }
    entries
}

/// Makes a disk with both copies of a table.
fn gpt_disk() -> MemDisk {
    let (disk, entries) = (MemDisk::new(SECTORS), gpt_entries());
    write_record(&disk, 0, &[(0, 0xEE, 1, SECTORS as u32 - 1)]);
    write(&disk, 1, &gpt_header(1, 2, 4, 128, &entries));
    write(&disk, 2, &entries);
    write(&disk, SECTORS - 2, &entries);
    write(&disk, SECTORS - 1, &gpt_header(SECTORS - 1, SECTORS - 2, 4, 128, &entries));
    disk
}

fn table(disk: &MemDisk) -> PartitionTable {
    PartitionTable::read(disk).expect("memory can be read").expect("there is a table")
}

#[test]
fn a_guid_table_is_read_by_either_copy() {
    let disk = gpt_disk();
    let read = table(&disk);
    let [root] = &read.partitions[..] else { panic!("{read:?}") };
    assert_eq!((root.number, root.first, root.sectors, root.fits), (2, Lba(100), 200, true));
    assert_eq!((root.kind, root.guid, &*root.name), (PartitionType::Guid([0xAB; 16]), Some([0xCD; 16]), "root"));
    assert!(!read.is_copy);
    // The header of the first copy, then its entries.
    for damaged in [1, 2] {
        let disk = gpt_disk();
        write(&disk, damaged, &[0xFF; SECTOR]);
        let copy = table(&disk);
        assert!(copy.is_copy);
        assert_eq!(copy.partitions, read.partitions);
    }
}

#[test]
fn a_guid_table_without_a_whole_copy_has_no_partitions() {
    let disk = gpt_disk();
    write(&disk, 1, &[0xFF; SECTOR]);
    write(&disk, SECTORS - 1, &[0xFF; SECTOR]);
    assert_eq!(table(&disk).partitions, []);
}

#[test]
fn absurd_guid_tables_are_refused() {
    let entries = gpt_entries();
    for (at, count, bytes) in [(2, u32::MAX, 128), (2, 4, u32::MAX), (2, 4, 0), (u64::MAX, 4, 128), (SECTORS, 4, 128)] {
        let disk = MemDisk::new(SECTORS);
        write(&disk, 1, &gpt_header(1, at, count, bytes, &entries));
        write(&disk, 2, &entries);
        assert_eq!(PartitionTable::read(&disk).expect("memory can be read"), None, "{at} {count} {bytes}");
    }
}

#[test]
fn partitions_beyond_the_end_of_the_disk_are_shown_as_such() {
    let disk = MemDisk::new(SECTORS);
    write_record(&disk, 0, &[(0, 0x83, 4000, 96), (1, 0x83, 4000, 97), (2, 0x83, u32::MAX, u32::MAX)]);
    let fits: Vec<bool> = table(&disk).partitions.iter().map(|partition| partition.fits).collect();
    assert_eq!(fits, [true, false, false]);
}

#[test]
fn logical_partitions_are_counted_from_five() {
    let disk = MemDisk::new(SECTORS);
    write_record(&disk, 0, &[(0, 0x83, 64, 64), (3, 0x05, 1000, 1000)]);
    write_record(&disk, 1000, &[(0, 0x83, 8, 100), (1, 0x05, 500, 200)]);
    write_record(&disk, 1500, &[(0, 0x82, 8, 50)]);
    let found: Vec<_> = table(&disk).partitions.iter().map(|found| (found.number, found.first.0)).collect();
    assert_eq!(found, [(1, 64), (4, 1000), (5, 1008), (6, 1508)]);
}

#[test]
fn a_chain_of_records_that_leads_back_ends() {
    let disk = MemDisk::new(SECTORS);
    write_record(&disk, 0, &[(0, 0x0F, 1000, 1000)]);
    write_record(&disk, 1000, &[(0, 0x83, 8, 100), (1, 0x05, 500, 200)]);
    write_record(&disk, 1500, &[(0, 0x83, 8, 50), (1, 0x05, 0, 200)]);
    assert_eq!(table(&disk).partitions.len(), 3);
}

#[test]
fn disks_without_a_table_have_none() {
    let disk = MemDisk::new(SECTORS);
    assert_eq!(PartitionTable::read(&disk).expect("memory can be read"), None);
    // The boot sector of a file system.
    let mut boot = [0x5A; SECTOR];
    boot[510..].copy_from_slice(&[0x55, 0xAA]);
    write(&disk, 0, &boot);
    assert_eq!(PartitionTable::read(&disk).expect("memory can be read"), None);
    assert_eq!(PartitionTable::read(&MemDisk::new(1)).expect("memory can be read"), None);
}

#[test]
fn no_request_leaves_a_partition() {
    let below: SharedDisk = Arc::new(MemDisk::new(100));
    let part = PartitionDisk::new(Arc::clone(&below), Lba(10), 20).expect("it lies on the disk");
    let filled = |byte: u8| Buf::copy_of(&[byte; SECTOR]).freeze();
    part.write(Lba(0), filled(1), tag()).expect("the first sector");
    part.write(Lba(19), filled(2), tag()).expect("the last sector");
    let write = |at: u64| Request { op: Op::Write { data: vec![filled(9)], fua: false }, at: Lba(at), tag: tag() };
    let done = part.run(vec![write(20), write(5), write(u64::MAX)]);
    assert!(matches!(done[0].result, Err(DiskError::BeyondEnd { sectors: 20, .. })));
    assert!(done[1].result.is_ok());
    assert!(matches!(done[2].result, Err(DiskError::BeyondEnd { .. })));
    for (at, byte) in [(9, 0), (10, 1), (15, 9), (29, 2), (30, 0)] {
        assert_eq!(below.read(Lba(at), SECTOR, tag()).expect("memory can be read")[0], byte, "sector {at}");
    }
    assert_eq!(part.limits().sectors, 20);
    assert!(PartitionDisk::new(Arc::clone(&below), Lba(90), 11).is_err());
    assert!(PartitionDisk::new(below, Lba(u64::MAX), 2).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn no_table_makes_the_reader_panic_or_find_what_is_not_on_the_disk(
        entries in proptest::collection::vec(any::<u8>(), 4096),
        (at, count, bytes) in (0..SECTORS + 8, 0..12_u32, prop_oneof![Just(128), Just(192), 0..5000_u32]),
        record in proptest::collection::vec(any::<u8>(), 64),
        chain in proptest::collection::vec((0..4096_u32, 0..4096_u32), 8),
    ) {
        let disk = MemDisk::new(SECTORS);
        write(&disk, at.min(SECTORS - 8), &entries);
        let covered = (count * bytes) as usize;
        write(&disk, 1, &gpt_header(1, at, count, bytes, &entries[..covered.min(entries.len())]));
        check_fits(&disk);
        // A boot record of any contents, and records of a chain in sectors that it may lead to.
        write(&disk, 1, &[0; SECTOR]);
        let mut boot = [0; SECTOR];
        boot[446..510].copy_from_slice(&record);
        (0..4).for_each(|index| boot[446 + index * 16] &= 0x80);
        boot[446 + 4] = 0x05;
        boot[446 + 8..446 + 12].copy_from_slice(&chain[0].0.to_le_bytes());
        boot[510..].copy_from_slice(&[0x55, 0xAA]);
        write(&disk, 0, &boot);
        for (index, (first, next)) in chain.iter().enumerate() {
            let sector = chain[0].0.wrapping_add(chain[index.saturating_sub(1)].1) % SECTORS as u32;
            write_record(&disk, u64::from(sector.max(2)), &[(0, 0x83, *first, 10), (1, 0x05, *next, 10)]);
        }
        check_fits(&disk);
    }
}

/// Checks that each partition that is said to lie on the disk does.
fn check_fits(disk: &MemDisk) {
    let read = PartitionTable::read(disk).expect("memory can be read");
    for partition in read.iter().flat_map(|table| &table.partitions).filter(|partition| partition.fits) {
        assert!(partition.sectors > 0 && partition.first.0 + partition.sectors <= SECTORS, "{partition:?}");
    }
}
