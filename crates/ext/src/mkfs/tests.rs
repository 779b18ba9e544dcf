//! Tests of mkfs: shapes that the reference tools accept, and values that agree with theirs.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use super::features::FeatureSet;
use super::usage::Usage;
use super::*;
use crate::format::superblock::BLOCKS_PER_GROUP_MAX;
use crate::format::{BlockNo, Descriptor, Geometry, GroupNo};
use crate::judge;
use moafs_disk::mem::MemDisk;
use moafs_disk::{DiskExt, Kind, Lba, Tag};
use moafs_runtime::Timestamp;

const UUID: [u8; 16] = [0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef, 0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef];

fn options() -> MkfsOptions {
    MkfsOptions::new(UUID, UUID, Timestamp::new(1_700_000_000, 0))
}

fn disk_of(bytes: u64) -> MemDisk {
    MemDisk::new(bytes / SECTOR as u64)
}

#[test]
fn every_block_size_and_group_size_satisfies_e2fsck() {
    for log in 0..7 {
        let block_size = 1024u32 << log;
        let most = (8 * block_size).min(BLOCKS_PER_GROUP_MAX);
        for blocks_per_group in [most, (most / 3) & !7, 512] {
            let bytes = (2 * u64::from(blocks_per_group) + 300) * u64::from(block_size) + 512;
            if bytes > 2 << 30 {
                continue;
            }
            let disk = disk_of(bytes);
            let wish =
                MkfsOptions { block_size: Some(block_size), blocks_per_group: Some(blocks_per_group), ..options() };
            let report = mkfs(&disk, &wish).unwrap_or_else(|e| panic!("{block_size}/{blocks_per_group}: {e}"));
            assert!(report.free_blocks > 0);
            judge::assert_clean(&disk, &format!("{block_size} {blocks_per_group}"));
        }
    }
}

#[test]
fn inode_sizes_and_counts_satisfy_e2fsck() {
    for inode_size in [128, 256, 512, 1024] {
        for inodes in [12, 1000, 20_000] {
            let disk = disk_of(40 << 20);
            let wish =
                MkfsOptions { inode_size, inodes: Some(inodes), label: b"sixteen bytes ok".to_vec(), ..options() };
            let report = mkfs(&disk, &wish).unwrap();
            assert!(u64::from(report.geometry.inodes) >= inodes);
            judge::assert_clean(&disk, &format!("{inode_size} {inodes}"));
        }
    }
}

#[test]
fn a_useless_last_group_is_dropped() {
    let disk = disk_of((1 + 8192 + 100) << 10);
    let report = mkfs(&disk, &MkfsOptions { block_size: Some(1024), ..options() }).unwrap();
    assert_eq!((report.geometry.groups, report.geometry.blocks), (1, 8193));
    judge::assert_clean(&disk, "short last group");
}

#[test]
fn a_terabyte_costs_little_memory() {
    let disk = disk_of(1 << 40);
    let report = mkfs(&disk, &options()).unwrap();
    assert_eq!(report.geometry.groups, 8192);
    assert_eq!(report.geometry.block_size, 4096);
}

#[test]
fn a_journal_may_reach_behind_triple_indirect_blocks() {
    let disk = disk_of(300 << 20);
    let (features, journal_bytes) = (FeatureSet::EXT3, Some(140 << 20));
    let report = mkfs(&disk, &MkfsOptions { block_size: Some(1024), features, journal_bytes, ..options() }).unwrap();
    assert_eq!(report.journal_blocks, 140 << 10);
    judge::assert_clean(&disk, "a long journal");
}

#[test]
fn impossible_wishes_are_named() {
    let disk = disk_of(8 << 20);
    let cases = [
        (MkfsOptions { block_size: Some(3000), ..options() }, "block size"),
        (MkfsOptions { inode_size: 100, ..options() }, "inode size"),
        (MkfsOptions { blocks_per_group: Some(100), ..options() }, "blocks per group"),
        (MkfsOptions { inodes: Some(1 << 30), ..options() }, "number of inodes"),
        (MkfsOptions { blocks: Some(1 << 30), ..options() }, "size in blocks"),
        (MkfsOptions { reserved_percent: 51.0, ..options() }, "reserved percentage"),
        (MkfsOptions { blocks: Some(20), ..options() }, "too few"),
        (MkfsOptions { blocks: Some(0), ..options() }, "too few"),
        (MkfsOptions { label: vec![b'x'; 17], ..options() }, "label"),
    ];
    for (wish, word) in cases {
        let error = mkfs(&disk, &wish).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
    for bytes in [0, 512, 1024, 4096, 16_384] {
        mkfs(&disk_of(bytes), &options()).unwrap_err();
    }
}

/// The result of `mke2fs` with the same options: superblock fields and groups.
#[test]
fn values_agree_with_mke2fs() {
    let cases = [
        (64u64 << 20, MkfsOptions { block_size: Some(1024), inode_size: 128, inodes: Some(4096), ..options() }),
        (300 << 20, MkfsOptions { block_size: Some(4096), blocks_per_group: Some(8192), ..options() }),
        (1 << 30, MkfsOptions { block_size: Some(16384), blocks_per_group: Some(4096), ..options() }),
    ];
    // Blocks, reserved, free blocks, free inodes, inodes per group; then some groups' first
    // bitmap, free blocks and inodes.
    let golden = [
        ((65536, 3276, 64984, 4085, 512), vec![(0, 3, 8111, 501), (2, 16385, 8126, 512), (7, 57347, 8123, 512)]),
        ((76800, 3840, 71963, 76789, 7680), vec![(0, 2, 7703, 7669), (9, 73730, 2588, 7680)]),
        ((65536, 3276, 64465, 65525, 4096), vec![(0, 2, 4025, 4085), (1, 4098, 4028, 4096)]),
    ];
    for ((bytes, wish), (totals, groups)) in cases.into_iter().zip(golden) {
        let disk = disk_of(bytes);
        let report = mkfs(&disk, &wish).unwrap();
        let geo = &report.geometry;
        let found = (geo.blocks, report.reserved_blocks, report.free_blocks, report.free_inodes, geo.inodes_per_group);
        assert_eq!(found, totals);
        for (group, block_bitmap, free_blocks, free_inodes) in groups {
            let (block, offset) = geo.locate_descriptor(GroupNo(group));
            let bytes =
                disk.read(Lba::from_byte(geo.byte_of(block)), geo.block_bytes(), Tag::volume(Kind::Descriptors));
            let descriptor = Descriptor::parse(&bytes.unwrap()[offset..], geo);
            let found = (descriptor.block_bitmap.0, descriptor.free_blocks, descriptor.free_inodes);
            assert_eq!(found, (block_bitmap, free_blocks, free_inodes), "group {group}");
        }
    }
}

/// A volume that both programs make.
#[derive(Debug, Clone, Copy)]
struct Case {
    family: &'static str,
    bytes: u64,
    block_size: Option<u32>,
    inode_size: u32,
    /// Changes of the features, as `-O` takes them.
    features: &'static str,
    usage: Option<&'static str>,
    inodes: Option<u64>,
    blocks_per_group: Option<u32>,
    groups_per_flex: Option<u32>,
    journal_mib: Option<u64>,
}

const fn case(family: &'static str, bytes: u64) -> Case {
    Case {
        family,
        bytes,
        block_size: None,
        inode_size: 256,
        features: "",
        usage: None,
        inodes: None,
        blocks_per_group: None,
        groups_per_flex: None,
        journal_mib: None,
    }
}

impl Case {
    fn features(&self) -> FeatureSet {
        let mut set = match self.family {
            "ext2" => FeatureSet::EXT2,
            "ext3" => FeatureSet::EXT3,
            _ => FeatureSet::EXT4,
        };
        set.apply(self.features).unwrap();
        set
    }

    /// Returns the options for this program.
    fn options(&self) -> MkfsOptions {
        MkfsOptions {
            features: self.features(),
            usage: self.usage.map(|name| Usage::named(name).unwrap()),
            block_size: self.block_size,
            inode_size: self.inode_size,
            inodes: self.inodes,
            blocks_per_group: self.blocks_per_group,
            groups_per_flex: self.groups_per_flex.unwrap_or(16),
            journal_bytes: self.journal_mib.map(|mib| mib << 20),
            ..options()
        }
    }

    /// Returns the words for `mke2fs`.
    fn words(&self) -> Vec<String> {
        let given = |option: &str, value: Option<String>| value.map(|value| [option.to_owned(), value]);
        let words = [
            given("-t", Some(self.family.to_owned())),
            given("-b", self.block_size.map(|size| size.to_string())),
            given("-I", Some(self.inode_size.to_string())),
            given("-O", Some(self.features.to_owned()).filter(|list| !list.is_empty())),
            given("-T", self.usage.map(str::to_owned)),
            given("-N", self.inodes.map(|count| count.to_string())),
            given("-g", self.blocks_per_group.map(|blocks| blocks.to_string())),
            given("-G", self.groups_per_flex.map(|groups| groups.to_string())),
            given("-J", self.journal_mib.map(|mib| format!("size={mib}"))),
        ];
        words.into_iter().flatten().flatten().collect()
    }

    /// Makes the volume with `mke2fs`.
    fn make_theirs(&self, image: &Path) {
        // The same identity, and no clock.
        let identity = "01234567-89ab-cdef-0123-456789abcdef";
        let extended = format!("hash_seed={identity},nodiscard,lazy_itable_init=0");
        let output = Command::new("mke2fs")
            .args(["-q", "-F", "-U", identity, "-E", &extended])
            .args(self.words())
            .arg(image)
            .arg(format!("{}k", self.bytes >> 10))
            .env("E2FSPROGS_FAKE_TIME", "1700000000")
            .output()
            .unwrap();
        assert!(output.status.success(), "{self:?}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Returns the lines of `dumpe2fs` that differ between our volume and that of `mke2fs`. Of large volumes, which it
    /// takes a minute for, it shows the superblock only, and the descriptors are compared as bytes.
    fn differences(&self) -> Vec<String> {
        let is_large = self.bytes >= 100 << 30;
        let directory = tempfile::tempdir_in(if is_large { "/dev/shm" } else { "/tmp" }).unwrap();
        let [ours, theirs] = ["ours", "theirs"].map(|name| directory.path().join(name));
        let disk = disk_of(self.bytes);
        let report = mkfs(&disk, &self.options()).unwrap_or_else(|error| panic!("{self:?}: {error}"));
        disk.write_to(&ours).unwrap();
        self.make_theirs(&theirs);
        let arguments: &[&str] = if is_large { &["-h"] } else { &[] };
        let [our_lines, their_lines] = [&ours, &theirs].map(|image| dump(image, arguments));
        if our_lines.len() != their_lines.len() {
            return vec![format!("{} lines, {} of mke2fs", our_lines.len(), their_lines.len())];
        }
        let pairs = our_lines.iter().zip(&their_lines).filter(|(a, b)| a != b);
        let mut differences: Vec<String> = pairs.map(|(a, b)| format!("{a} | {b}")).collect();
        if is_large && descriptors(&ours, &report.geometry) != descriptors(&theirs, &report.geometry) {
            differences.push("group descriptors".to_owned());
        }
        differences
    }
}

/// Returns the bytes of the descriptor table. Flags are left out where they mean nothing, for want of checksums:
/// `mke2fs` sets INODE_ZEROED all the same.
fn descriptors(image: &Path, geo: &Geometry) -> Vec<u8> {
    let mut table = vec![0; geo.descriptor_blocks as usize * geo.block_bytes()];
    let start = geo.byte_of(BlockNo(geo.superblock_block() + 1));
    std::fs::File::open(image).unwrap().read_exact_at(&mut table, start).unwrap();
    if !geo.checksums.allow_lazy_groups() {
        table.chunks_exact_mut(geo.desc_size as usize).for_each(|slot| slot[0x12..0x14].fill(0));
    }
    table
}

/// Returns what `dumpe2fs` shows of an image, but for two lines: `mke2fs` counts what it writes, and this count goes
/// into the superblock's checksum.
fn dump(image: &Path, arguments: &[&str]) -> Vec<String> {
    let verdict = judge::run("dumpe2fs", arguments, image);
    assert_eq!(verdict.code, Some(0), "{}", verdict.text);
    let differs = |line: &&str| line.starts_with("Lifetime writes:") || line.starts_with("Checksum:");
    verdict.text.lines().filter(|line| !differs(line)).map(str::to_owned).collect()
}

/// Fails unless `dumpe2fs` shows the same of our volumes and those of `mke2fs`.
fn assert_same(cases: impl IntoIterator<Item = Case>) {
    if !judge::have("mke2fs") || !judge::have("dumpe2fs") {
        return;
    }
    let mut failed = String::new();
    for case in cases {
        let differences = case.differences();
        if !differences.is_empty() {
            failed += &format!("{case:?}\n    {}\n", differences[..differences.len().min(12)].join("\n    "));
        }
    }
    assert!(failed.is_empty(), "{failed}");
}

#[test]
fn layouts_are_those_of_mke2fs() {
    let sizes = [1 << 20, 2 << 20, 8 << 20, 64 << 20, 300 << 20, 1 << 30, 10 << 30];
    assert_same(["ext2", "ext3", "ext4"].into_iter().flat_map(|family| sizes.map(|bytes| case(family, bytes))));
}

#[test]
fn layouts_of_large_volumes_are_those_of_mke2fs() {
    // Most file systems of a host have no files of 16 TiB.
    if !Path::new("/dev/shm").is_dir() {
        eprintln!("SKIPPED: there is no /dev/shm for large images");
        return;
    }
    let sizes = [100 << 30, 1 << 40, 4 << 40];
    assert_same(["ext3", "ext4"].into_iter().flat_map(|family| sizes.map(|bytes| case(family, bytes))));
    assert_same([case("ext4", 16 << 40)]);
}

#[test]
fn layouts_with_a_short_last_group_are_those_of_mke2fs() {
    let cut = [8193 + 20, 8193 + 900, 8193 + 1200, 17 * 8192 + 1 + 3000, 33 * 8192 + 1 + 5000];
    assert_same(["ext3", "ext4"].into_iter().flat_map(|family| cut.map(|blocks| case(family, blocks << 10))));
}

#[test]
fn layouts_with_other_features_are_those_of_mke2fs() {
    let ext4 = |features| Case { features, ..case("ext4", 200 << 20) };
    assert_same([
        ext4("^resize_inode"),
        ext4("^resize_inode,meta_bg"),
        ext4("^flex_bg"),
        ext4("^64bit"),
        ext4("^64bit,^extent"),
        ext4("^metadata_csum"),
        ext4("^metadata_csum,uninit_bg"),
        ext4("^metadata_csum,uninit_bg,^64bit,^flex_bg"),
        ext4("^has_journal"),
        ext4("^resize_inode,^sparse_super"),
        ext4("sparse_super2"),
        ext4("orphan_file"),
        ext4("orphan_file,metadata_csum_seed"),
        ext4("large_dir,^huge_file,^dir_nlink,stable_inodes"),
        Case { features: "extent,flex_bg", ..case("ext3", 200 << 20) },
        Case { features: "^resize_inode,meta_bg", ..case("ext4", 5 << 30) },
        Case { features: "sparse_super2,orphan_file", ..case("ext4", 5 << 30) },
    ]);
}

// Not compared: numbers of inodes (-N) that are no multiple of 8 for each group. mke2fs makes up to seven fewer in each
// group than were asked for, we make more.
#[test]
fn layouts_with_other_numbers_are_those_of_mke2fs() {
    let ext4 = case("ext4", 140 << 20);
    assert_same([
        Case { inodes: Some(40_000), ..ext4 },
        Case { blocks_per_group: Some(1024), inodes: Some(119_840), ..ext4 },
        Case { blocks_per_group: Some(2048), inodes: Some(143_360), ..ext4 },
        Case { inode_size: 128, ..ext4 },
        Case { inode_size: 1024, block_size: Some(1024), ..ext4 },
        Case { block_size: Some(2048), ..ext4 },
        Case { block_size: Some(4096), inode_size: 512, ..ext4 },
        Case { block_size: Some(16_384), ..ext4 },
        Case { block_size: Some(65_536), ..ext4 },
        Case { blocks_per_group: Some(2048), ..ext4 },
        Case { blocks_per_group: Some(4096), features: "^flex_bg", ..ext4 },
        Case { groups_per_flex: Some(4), ..ext4 },
        Case { groups_per_flex: Some(64), ..ext4 },
        Case { journal_mib: Some(1), ..ext4 },
        Case { journal_mib: Some(40), ..ext4 },
        Case { journal_mib: Some(30), ..case("ext3", 140 << 20) },
        // Behind triple indirect blocks.
        Case { journal_mib: Some(80), block_size: Some(1024), ..case("ext3", 200 << 20) },
        Case { usage: Some("largefile"), ..ext4 },
        Case { usage: Some("largefile4"), ..case("ext4", 1 << 30) },
        Case { usage: Some("news"), ..ext4 },
        Case { usage: Some("small"), ..case("ext4", 1 << 30) },
        Case { usage: Some("floppy"), ..ext4 },
        Case { usage: Some("big"), ..ext4 },
        Case { usage: Some("huge"), ..ext4 },
        Case { usage: Some("default"), ..ext4 },
    ]);
}
