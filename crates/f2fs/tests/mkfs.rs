//! Volumes made here against mkfs.f2fs and fsck.f2fs.

use std::collections::BTreeSet;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use moafs_disk::SECTOR;
use moafs_disk::mem::MemDisk;
use moafs_disk::probe::crash::{CrashRecorder, Mode};
use moafs_disk::probe::fault::{EVERYWHERE, Fault, Harm, Rule, Victims, When};
use moafs_f2fs::format::checkpoint::{CpFlags, Pack};
use moafs_f2fs::format::superblock::{Features, Geometry, Superblock, Support};
use moafs_f2fs::format::{BLOCK, Log, Nid, SEGMENT_BLOCKS, Structure, nat};
use moafs_f2fs::mkfs::{FEATURES, MkfsOptions, mkfs};
use moafs_runtime::{Live, Timestamp};
use tempfile::NamedTempFile;

const MIB: u64 = 1 << 20;
const UUID: [u8; 16] = [0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef, 0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef];
const UUID_TEXT: &str = "01234567-89ab-cdef-0123-456789abcdef";

fn options() -> MkfsOptions {
    MkfsOptions::new(UUID, Timestamp::new(1_700_000_000, 0))
}

/// True if the tool can be run; says so on the error output if not.
fn have(tool: &str) -> bool {
    let found = Command::new(tool).arg("-V").stdin(Stdio::null()).output().is_ok();
    if !found {
        eprintln!("SKIPPED: {tool} is not installed (package f2fs-tools)");
    }
    found
}

/// Makes an image with mkfs.f2fs and `arguments`; `None` if it refused.
fn reference(bytes: u64, arguments: &[&str]) -> Option<NamedTempFile> {
    let image = NamedTempFile::new().expect("a temporary file");
    image.as_file().set_len(bytes).expect("a sparse file");
    let fixed = ["-q", "-f", "-r", "-t", "0", "-U", UUID_TEXT, "-T", "1700000000"];
    let output = Command::new("mkfs.f2fs").args(fixed).args(arguments).arg(image.path()).output().expect("mkfs.f2fs");
    output.status.success().then_some(image)
}

/// Fails unless fsck.f2fs finds nothing, not even a problem that it would repair silently.
fn assert_clean(image: &Path, what: &str) {
    let mut child = Command::new("fsck.f2fs")
        .arg("--dry-run")
        .arg(image)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("fsck.f2fs starts");
    // The tool may end without having asked anything.
    child.stdin.take().expect("a pipe").write_all(b"n\nn\nn\n").ok();
    let output = child.wait_with_output().expect("fsck.f2fs ends");
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert_eq!(output.status.code(), Some(0), "{what}: {text}");
    for word in ["[FIX]", "[ASSERT]", "[Fail]", "hash_code"] {
        assert!(!text.contains(word), "{what}: {text}");
    }
}

/// Makes a volume in memory.
fn made(bytes: u64, wish: &MkfsOptions) -> MemDisk {
    let disk = MemDisk::new(bytes / SECTOR as u64);
    mkfs(&disk, wish).unwrap_or_else(|error| panic!("{bytes} bytes, {wish:?}: {error}"));
    disk
}

fn assert_disk_clean(disk: &MemDisk, what: &str) {
    if have("fsck.f2fs") {
        let image = NamedTempFile::new().expect("a temporary file");
        disk.write_to(image.path()).expect("the image is saved");
        assert_clean(image.path(), what);
    }
}

/// Decodes superblock and newest pack, which `read(byte, into)` reads.
fn decode(read: impl Fn(u64, &mut [u8])) -> (Superblock, Pack) {
    let mut block = [0; BLOCK];
    read(0, &mut block);
    let superblock = Superblock::decode(&block, 0).expect("a superblock");
    let mut segment = vec![0; SEGMENT_BLOCKS * BLOCK];
    let geometry = superblock.geometry();
    read(u64::from(geometry.pack_at(0).0) * BLOCK as u64, &mut segment);
    let pack = Pack::decode(&segment, &geometry, 0).expect("a checkpoint pack");
    (superblock, pack)
}

fn decode_disk(disk: &MemDisk) -> (Superblock, Pack) {
    decode(|at, into| disk.peek(at, into))
}

fn decode_image(image: &NamedTempFile) -> (Superblock, Pack) {
    decode(|at, into| image.as_file().read_exact_at(into, at).expect("the image is large enough"))
}

/// Compares all numbers of two volumes but their versions.
fn assert_same_shape(ours: &(Superblock, Pack), theirs: &(Superblock, Pack), what: &str) {
    assert_eq!(ours.0.geometry(), theirs.0.geometry(), "{what}");
    let (ours, theirs) = (&ours.1, &theirs.1);
    let (a, b) = (&ours.checkpoint, &theirs.checkpoint);
    assert_eq!(a.user_blocks, b.user_blocks, "{what}");
    assert_eq!(a.valid_blocks, b.valid_blocks, "{what}");
    assert_eq!(
        (a.reserved_segments, a.overprovision_segments, a.free_segments),
        (b.reserved_segments, b.overprovision_segments, b.free_segments),
        "{what}"
    );
    assert_eq!(a.current, b.current, "{what}");
    assert_eq!(
        (a.valid_nodes, a.valid_inodes, a.next_free_nid),
        (b.valid_nodes, b.valid_inodes, b.next_free_nid),
        "{what}"
    );
    let hints = CpFlags::NAT_BITS | CpFlags::TRIMMED;
    assert_eq!(a.flags - hints, b.flags - hints, "{what}");
    assert_eq!((&a.sit_bitmap, &a.nat_bitmap), (&b.sit_bitmap, &b.nat_bitmap), "{what}");
    assert_eq!((a.pack_blocks, a.start_sum), (b.pack_blocks, b.start_sum), "{what}");
    assert_eq!(ours.sit_journal.len(), theirs.sit_journal.len(), "{what}");
    assert!(ours.sit_journal.iter().all(|(segno, entry)| theirs.sit_journal.contains(&(*segno, *entry))), "{what}");
    assert_eq!(ours.summaries, theirs.summaries, "{what}");
}

/// Returns sizes, with the options for mkfs.f2fs and for ours.
fn grid() -> Vec<(u64, Vec<String>, MkfsOptions)> {
    let mut grid = Vec::new();
    let mut add = |mib: &[u64], arguments: &str, wish: MkfsOptions| {
        let arguments: Vec<String> = arguments.split_whitespace().map(str::to_owned).collect();
        grid.extend(mib.iter().map(|mib| (mib * MIB, arguments.clone(), wish.clone())));
    };
    let all_sizes = [52, 53, 55, 64, 99, 100, 127, 256, 511, 512, 520, 540, 600, 1000, 1024, 2048, 3333, 4096, 8192];
    add(&all_sizes, "", options());
    add(&[64, 500, 4096], "-i", MkfsOptions { large_nat_bitmap: true, ..options() });
    for percent in [1.0, 5.5, 20.0, 60.0] {
        let wish = MkfsOptions { overprovision_percent: Some(percent), ..options() };
        add(&[1024, 4096], &format!("-o {percent}"), wish);
    }
    for (segs_per_sec, secs_per_zone) in [(2, 1), (1, 2), (2, 2), (4, 1), (3, 2), (1, 7), (16, 1), (8, 3)] {
        let wish = MkfsOptions { segs_per_sec, secs_per_zone, ..options() };
        // Whole zones: mkfs.f2fs miscounts volumes with a rest.
        let zone = u64::from(segs_per_sec * secs_per_zone) * 2;
        let sizes = [400u64, 1024, 3000, 8192].map(|mib| mib / zone * zone);
        add(&sizes, &format!("-s {segs_per_sec} -z {secs_per_zone}"), wish);
    }
    let names = "-O extra_attr,inode_checksum,inode_crtime,flexible_inline_xattr,sb_checksum,lost_found";
    add(&[64, 512, 2048], names, MkfsOptions { features: FEATURES, ..options() });
    let wish = MkfsOptions { features: FEATURES, segs_per_sec: 2, secs_per_zone: 2, ..options() };
    add(&[512], &format!("{names} -s 2 -z 2"), wish);
    grid
}

#[test]
fn numbers_agree_with_mkfs_f2fs() {
    if !have("mkfs.f2fs") {
        return;
    }
    for (bytes, arguments, wish) in grid() {
        let what = format!("{} MiB {arguments:?}", bytes / MIB);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let disk = MemDisk::new(bytes / SECTOR as u64);
        let ours = mkfs(&disk, &wish);
        let Some(image) = reference(bytes, &arguments) else {
            assert!(ours.is_err(), "{what}: only mkfs.f2fs refuses");
            continue;
        };
        let report = ours.unwrap_or_else(|error| panic!("{what}: {error}"));
        let (ours, theirs) = (decode_disk(&disk), decode_image(&image));
        assert_same_shape(&ours, &theirs, &what);
        assert_eq!(report.user_blocks, theirs.1.checkpoint.user_blocks, "{what}");
        assert_eq!(ours.0.features, theirs.0.features, "{what}");
        assert_eq!(ours.0.cold_extensions, theirs.0.cold_extensions, "{what}");
        assert_eq!(ours.0.hot_extensions, theirs.0.hot_extensions, "{what}");
    }
}

/// Sizes whose tables need the checkpoint's payload: only the numbers, since files of terabytes take mkfs.f2fs long.
#[test]
fn numbers_of_large_volumes_agree_with_mkfs_f2fs() {
    if !have("mkfs.f2fs") {
        return;
    }
    for (gib, argument) in [(300, "-i"), (1000, "-q"), (3500, "-q")] {
        let wish = MkfsOptions { large_nat_bitmap: argument == "-i", ..options() };
        let disk = made(gib << 30, &wish);
        let Some(image) = reference(gib << 30, &[argument]) else {
            eprintln!("SKIPPED: mkfs.f2fs does not make {gib} GiB here");
            continue;
        };
        assert_same_shape(&decode_disk(&disk), &decode_image(&image), &format!("{gib} GiB {argument}"));
    }
}

#[test]
fn fsck_f2fs_finds_nothing() {
    for (bytes, arguments, wish) in grid() {
        let disk = MemDisk::new(bytes / SECTOR as u64);
        if mkfs(&disk, &wish).is_ok() {
            assert_disk_clean(&disk, &format!("{} MiB {arguments:?}", bytes / MIB));
        }
    }
}

#[test]
fn fsck_f2fs_finds_nothing_on_volumes_that_are_no_whole_number_of_zones() {
    for (segs_per_sec, secs_per_zone) in [(3, 2), (5, 1), (1, 6), (7, 3)] {
        for mib in [1025, 4099, 8192] {
            let wish = MkfsOptions { segs_per_sec, secs_per_zone, ..options() };
            let disk = made(mib * MIB + 512 * 3, &wish);
            assert_disk_clean(&disk, &format!("{mib} MiB, {segs_per_sec} x {secs_per_zone}"));
        }
    }
}

#[test]
fn fsck_f2fs_finds_nothing_with_any_features_and_names() {
    let features = [
        Features::SB_CHECKSUM,
        Features::LOST_FOUND,
        Features::EXTRA_ATTR,
        Features::EXTRA_ATTR | Features::INODE_CHECKSUM,
        Features::EXTRA_ATTR | Features::INODE_CRTIME | Features::LOST_FOUND,
        Features::EXTRA_ATTR | Features::FLEXIBLE_INLINE_XATTR,
        FEATURES,
    ];
    for features in features {
        for large_nat_bitmap in [false, true] {
            let label = "Vögel 🐦".to_owned();
            let hot_extensions = vec!["sqlite".to_owned()];
            let wish = MkfsOptions { features, large_nat_bitmap, label, hot_extensions, ..options() };
            let disk = made(200 * MIB, &wish);
            let (superblock, _) = decode_disk(&disk);
            assert_eq!((&superblock.label, &superblock.hot_extensions), (&wish.label, &wish.hot_extensions));
            assert_eq!((superblock.uuid, superblock.features), (UUID, features));
            assert_eq!(superblock.support(true), Support::ReadWrite);
            assert_disk_clean(&disk, &format!("{features:?}"));
        }
    }
}

#[test]
fn an_old_volume_leaves_nothing_that_counts() {
    let disk = MemDisk::new(64 * MIB / SECTOR as u64);
    let junk: Vec<u8> = (0..64 * MIB).map(|at| ((at * 31) >> 3) as u8).collect();
    disk.poke(0, &junk);
    mkfs(&disk, &MkfsOptions { features: FEATURES, ..options() }).expect("a volume");
    assert_disk_clean(&disk, "over junk");
    let (superblock, pack) = decode_disk(&disk);
    let mut warm = [0xFF; BLOCK];
    let log = pack.checkpoint.current[Log::WarmNode as usize];
    let at = superblock.geometry().block_of(log.segno, log.offset.into());
    disk.peek(u64::from(at.0) * BLOCK as u64, &mut warm);
    assert_eq!(warm, [0; BLOCK]);
}

#[test]
fn a_terabyte_costs_little_memory() {
    let disk = made(1 << 40, &options());
    assert!(disk.resident_bytes() < 4 << 20, "{}", disk.resident_bytes());
}

#[test]
fn impossible_wishes_are_named() {
    let disk = MemDisk::new(64 * MIB / SECTOR as u64);
    let cases = [
        (MkfsOptions { features: Features::QUOTA_INO, ..options() }, "quota_ino"),
        (MkfsOptions { features: Features::INODE_CHECKSUM, ..options() }, "extra_attr"),
        (MkfsOptions { segs_per_sec: 0, ..options() }, "section"),
        (MkfsOptions { secs_per_zone: 0, ..options() }, "zone"),
        (MkfsOptions { segs_per_sec: u32::MAX, secs_per_zone: u32::MAX, ..options() }, "zone"),
        (MkfsOptions { segs_per_sec: 10, ..options() }, "there is room for"),
        (MkfsOptions { overprovision_percent: Some(0.0), ..options() }, "overprovision"),
        (MkfsOptions { overprovision_percent: Some(100.0), ..options() }, "overprovision"),
        (MkfsOptions { overprovision_percent: Some(f64::NAN), ..options() }, "overprovision"),
        (MkfsOptions { overprovision_percent: Some(0.01), ..options() }, "cleaning"),
        (MkfsOptions { label: "x".repeat(513), ..options() }, "label"),
        (MkfsOptions { cold_extensions: vec!["12345678".to_owned()], ..options() }, "extension"),
        (MkfsOptions { cold_extensions: vec!["x".to_owned(); 61], ..options() }, "extensions"),
    ];
    for (wish, word) in cases {
        let error = mkfs(&disk, &wish).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
    for bytes in [0, 512, 4096, MIB, 2 * MIB, 10 * MIB, 37 * MIB, 50 * MIB, 17 << 40] {
        mkfs(&MemDisk::new(bytes / SECTOR as u64), &options()).unwrap_err();
    }
}

/// Returns the superblock that a mount would find.
fn superblock_of(disk: &MemDisk) -> Option<Superblock> {
    (0..2u8).find_map(|copy| {
        let mut block = [0; BLOCK];
        disk.peek(u64::from(copy) * BLOCK as u64, &mut block);
        Superblock::decode(&block, copy).ok()
    })
}

#[test]
fn a_power_cut_leaves_no_volume_or_a_whole_one() {
    let old = MkfsOptions { label: "old".to_owned(), features: Features::SB_CHECKSUM, ..options() };
    let new = MkfsOptions { label: "new".to_owned(), features: FEATURES, uuid: [7; 16], ..options() };
    let recorder = CrashRecorder::over(Arc::new(made(64 * MIB, &old)), Live::new());
    mkfs(&recorder, &new).expect("a volume");
    let mut seen = BTreeSet::new();
    for cut in 0..recorder.cut_points() {
        let torn = (0..10).map(|seed| (seed, Mode::Torn));
        for (seed, mode) in torn.chain([(0, Mode::All), (0, Mode::None), (0, Mode::Subset)]) {
            let disk = recorder.state(cut, seed, mode);
            let found = superblock_of(&disk).map(|superblock| superblock.label);
            if found.is_some() {
                assert_disk_clean(&disk, &format!("cut {cut}, {mode:?}: {found:?}"));
            }
            seen.insert(found.unwrap_or_default());
        }
    }
    assert_eq!(seen, ["", "new", "old"].map(str::to_owned).into());
}

#[test]
fn a_failed_request_is_told_and_leaves_no_half_volume() {
    for nth in 1..12 {
        let disk = Arc::new(made(64 * MIB, &options()));
        let rule = Rule::new(Victims::Writes(EVERYWHERE), When::Nth(nth), Harm::Error);
        let fault = Fault::new(disk.clone(), Live::new(), vec![rule]);
        let made = mkfs(&fault, &MkfsOptions { label: "new".to_owned(), ..options() });
        if fault.hits() == 0 {
            made.expect("nothing went wrong");
            continue;
        }
        assert!(made.unwrap_err().to_string().contains("cannot"));
        if superblock_of(&disk).is_some_and(|superblock| superblock.label == "new") {
            assert_disk_clean(&disk, &format!("request {nth} failed"));
        }
    }
}

#[test]
fn superblocks_of_mkfs_f2fs_come_back_byte_for_byte() {
    if !have("mkfs.f2fs") {
        return;
    }
    for arguments in [&["-l", "a label"][..], &["-O", "extra_attr,sb_checksum"], &["-g", "android"], &["-i", "-s", "2"]]
    {
        let image = reference(128 * MIB, arguments).expect("mkfs.f2fs works");
        for copy in 0..2 {
            let mut block = [0; BLOCK];
            image.as_file().read_exact_at(&mut block, u64::from(copy) * BLOCK as u64).expect("a block");
            let superblock = Superblock::decode(&block, copy).expect("a superblock");
            assert_eq!(superblock.encode()[..], block[..], "{arguments:?}");
        }
    }
}

#[test]
fn packs_of_mkfs_f2fs_come_back() {
    if !have("mkfs.f2fs") {
        return;
    }
    for arguments in [&[][..], &["-O", "extra_attr,lost_found"], &["-g", "android"], &["-i"], &["-a", "1"]] {
        let image = reference(128 * MIB, arguments).expect("mkfs.f2fs works");
        let (superblock, pack) = decode_image(&image);
        let mut again = pack.clone();
        let geometry = superblock.geometry();
        let blocks = again.encode(&geometry);
        assert_eq!(Pack::decode(&blocks, &geometry, 0).as_ref(), Ok(&again));
        // Of all bytes, only the flags and the checksums of the checkpoint block and its copy may differ.
        let mut old = vec![0; blocks.len()];
        let at = u64::from(geometry.pack_at(0).0) * BLOCK as u64;
        image.as_file().read_exact_at(&mut old, at).expect("a pack");
        let differs = |at: &usize| old[*at] != blocks[*at];
        let different: Vec<usize> = (0..blocks.len()).filter(differs).map(|at| at % BLOCK).collect();
        let allowed = |at: &usize| (132..136).contains(at) || (192..196).contains(at) || *at >= BLOCK - 4;
        assert!(different.iter().all(allowed), "{arguments:?}: bytes {different:?}");
        again.checkpoint.flags = pack.checkpoint.flags;
        again.checkpoint.crc = pack.checkpoint.crc;
        assert_eq!(again, pack);
    }
}

#[test]
fn volumes_made_for_reading_only_are_understood() {
    if !have("mkfs.f2fs") {
        return;
    }
    let image = reference(64 * MIB, &["-O", "ro,extra_attr"]).expect("mkfs.f2fs works");
    let (superblock, _) = decode_image(&image);
    assert!(matches!(superblock.support(true), Support::ReadOnly(reasons) if reasons.len() == 1));
}

#[test]
fn volumes_of_several_devices_are_refused_by_name() {
    if !have("mkfs.f2fs") {
        return;
    }
    let second = NamedTempFile::new().expect("a temporary file");
    second.as_file().set_len(64 * MIB).expect("a sparse file");
    let path = second.path().to_str().expect("a plain path");
    let Some(image) = reference(64 * MIB, &["-c", path]) else {
        eprintln!("SKIPPED: mkfs.f2fs does not make volumes of several files here");
        return;
    };
    let mut block = [0; BLOCK];
    image.as_file().read_exact_at(&mut block, 0).expect("a block");
    let superblock = Superblock::decode(&block, 0).expect("a superblock");
    assert!(matches!(superblock.support(false), Support::Refuse(reasons) if reasons[0].contains("several devices")));
}

#[test]
fn golden_numbers_come_out() {
    if !have("mkfs.f2fs") {
        return;
    }
    let golden: serde_json::Value = serde_json::from_str(include_str!("golden/f2fs-golden.json")).expect("JSON");
    for image in golden["images"].as_array().expect("a list of images") {
        let command = image["command"].as_str().expect("a command");
        let tail = command.split_once("-T 1700000000").expect("the fixed arguments").1;
        let arguments: Vec<&str> = tail.split_whitespace().filter(|word| *word != "IMAGE").collect();
        let size = image["size"].as_str().expect("a size");
        let (number, unit) = size.split_at(size.len() - 1);
        let bytes = number.parse::<u64>().expect("a number") << if unit == "G" { 30 } else { 20 };
        let made = reference(bytes, &arguments).expect("mkfs.f2fs works");
        let (superblock, pack) = decode_image(&made);
        assert_golden_superblock(&superblock, &image["superblock"]);
        assert_golden_checkpoint(&pack, &image["checkpoint1"]);
        let journal = image["nat_journal"].as_object().expect("a journal");
        let mut block = [0; BLOCK];
        let nat = u64::from(superblock.geometry().nat_at(0, false).0) * BLOCK as u64;
        made.as_file().read_exact_at(&mut block, nat).expect("a NAT block");
        assert_eq!(pack.nat_journal.len(), journal.len());
        for (nid, entry) in &pack.nat_journal {
            assert_eq!(journal[&nid.to_string()], serde_json::json!([entry.version, entry.ino, entry.addr]));
        }
        // The nodes that every volume has are in the table as well.
        for nid in ["1", "2", "3"] {
            let entry = nat::entry(&block, nid.parse().expect("a number"));
            assert_eq!(image["nat_block0_entries"][nid], serde_json::json!([entry.version, entry.ino, entry.addr]));
        }
        assert_golden_sit(&pack, &image["sit_journal"]);
    }
}

fn assert_golden_superblock(superblock: &Superblock, golden: &serde_json::Value) {
    let Geometry {
        block_count,
        segment_count,
        segs_per_sec,
        secs_per_zone,
        segments,
        sections,
        segment0,
        cp,
        sit,
        nat,
        ssa,
        main,
        sit_segments,
        nat_segments,
        ssa_segments,
        cp_payload,
    } = superblock.geometry();
    let numbers = [
        ("segment_count", segment_count),
        ("segs_per_sec", segs_per_sec),
        ("secs_per_zone", secs_per_zone),
        ("seg_main", segments),
        ("section_count", sections),
        ("segment0", segment0),
        ("cp", cp),
        ("sit", sit),
        ("nat", nat),
        ("ssa", ssa),
        ("main", main),
        ("seg_sit", sit_segments),
        ("seg_nat", nat_segments),
        ("seg_ssa", ssa_segments),
        ("cp_payload", cp_payload),
        ("ext_count", superblock.cold_extensions.len() as u32),
        ("hot_ext", superblock.hot_extensions.len() as u32),
    ];
    for (name, found) in numbers {
        assert_eq!(golden[name], found, "{name}");
    }
    assert_eq!(golden["block_count"], block_count);
    assert_eq!(golden["qf_ino"], serde_json::json!(superblock.qf_ino));
    assert_eq!(golden["feature"], format!("{:#x}", superblock.features.bits()));
    assert_eq!(golden["label"], superblock.label);
}

fn assert_golden_checkpoint(pack: &Pack, golden: &serde_json::Value) {
    let checkpoint = &pack.checkpoint;
    assert_eq!(golden["ver"], format!("{:#x}", checkpoint.version));
    assert_eq!(golden["flags"], format!("{:#x}", checkpoint.flags.bits()));
    let numbers = [
        ("user_blocks", checkpoint.user_blocks),
        ("valid_blocks", checkpoint.valid_blocks),
        ("rsvd", checkpoint.reserved_segments.into()),
        ("ovp", checkpoint.overprovision_segments.into()),
        ("free", checkpoint.free_segments.into()),
        ("total", checkpoint.pack_blocks.into()),
        ("start_sum", checkpoint.start_sum.into()),
        ("valid_node", checkpoint.valid_nodes.into()),
        ("valid_inode", checkpoint.valid_inodes.into()),
        ("next_nid", checkpoint.next_free_nid.into()),
        ("sitbm", checkpoint.sit_bitmap.len() as u64 / 8),
        ("natbm", checkpoint.nat_bitmap.len() as u64 / 8),
        ("elapsed", checkpoint.elapsed),
    ];
    for (name, found) in numbers {
        assert_eq!(golden[name], found, "{name}");
    }
    let of = |logs: &[Log], number: fn(&moafs_f2fs::format::checkpoint::CurrentSegment) -> u32| {
        serde_json::json!(logs.iter().map(|log| number(&checkpoint.current[*log as usize])).collect::<Vec<_>>())
    };
    let (data, node) = Log::ALL.split_at(3);
    assert_eq!(golden["dseg"], of(data, |at| at.segno.0));
    assert_eq!(golden["nseg"], of(node, |at| at.segno.0));
    assert_eq!(golden["doff"], of(data, |at| at.offset.into()));
    assert_eq!(golden["noff"], of(node, |at| at.offset.into()));
    assert_eq!(golden["alloc"], of(&Log::ALL, |at| at.recycling.into()));
}

fn assert_golden_sit(pack: &Pack, golden: &serde_json::Value) {
    assert_eq!(pack.sit_journal.len(), golden.as_object().expect("a journal").len());
    for (segno, entry) in &pack.sit_journal {
        let word = (entry.log as u16) << 10 | entry.map.count();
        let first = (0..32).fold(0u32, |word, bit| word << 1 | u32::from(entry.map.get(bit)));
        assert_eq!(golden[segno.to_string()], serde_json::json!([format!("{word:#x}"), format!("{first:08x}..")]));
    }
}

#[test]
fn damaged_superblocks_are_named() {
    let disk = made(64 * MIB, &MkfsOptions { features: Features::SB_CHECKSUM, ..options() });
    let mut good = [0; BLOCK];
    disk.peek(0, &mut good);
    let mut block = good;
    block[1024 + 200] ^= 1;
    let damage = Superblock::decode(&block, 1).unwrap_err();
    assert_eq!(damage.structure, Structure::Superblock(1));
    assert!(damage.problem.contains("checksum"), "{damage}");
    let disk = made(64 * MIB, &options());
    disk.peek(0, &mut good);
    // Offset of a field, a value it must not have, a word of the complaint.
    let cases = [
        (0, 0, "magic"),
        (8, 13, "sector"),
        (12, 4, "sectors"),
        (16, 13, "block size"),
        (20, 8, "segment"),
        (24, 0, "empty"),
        (24, u32::MAX, "main area"),
        (28, u32::MAX, "zones"),
        (44, 23, "main area"),
        (48, 9, "main area"),
        (48, 9 << 20, "segments"),
        (52, 3, "checkpoint segments"),
        (56, 3, "two sets"),
        (60, 4, "summary area starts"),
        (64, 0, "summary area"),
        (72, 513, "checkpoint area"),
        (92, u32::MAX, "main area"),
        (96, 4, "root"),
        (1148, 65, "extensions"),
        (1664, 504, "checkpoint"),
    ];
    for (at, value, word) in cases {
        let mut block = good;
        block[1024 + at..1024 + at + 4].copy_from_slice(&u32::to_le_bytes(value));
        let damage = Superblock::decode(&block, 0).expect_err(word);
        assert!(damage.problem.contains(word), "{at}: {damage}");
    }
    assert!(Superblock::decode(&good[1..], 0).is_err());
}

#[test]
fn features_decide_what_is_possible() {
    let (mut superblock, _) = decode_disk(&made(64 * MIB, &options()));
    assert_eq!(superblock.support(true), Support::ReadWrite);
    assert_eq!(superblock.support(false), Support::ReadOnly(Vec::new()));
    superblock.features = Features::ENCRYPT | Features::ATOMIC_WRITE | Features::EXTRA_ATTR | Features::PROJECT_QUOTA;
    assert_eq!(superblock.support(true), Support::ReadWrite);
    superblock.features |= Features::from_bits_retain(0x8000_0000) | Features::COMPRESSION | Features::QUOTA_INO;
    let Support::ReadOnly(reasons) = superblock.support(true) else { panic!("written with unknown features") };
    for (reason, name) in reasons.iter().zip(["quota_ino", "compression", "0x80000000"]) {
        assert!(reason.contains(name), "{reason}");
    }
    assert_eq!(reasons.len(), 3);
    superblock.features |= Features::PACKED_SSA;
    assert!(matches!(superblock.support(false), Support::Refuse(reasons) if reasons[0].contains("packed_ssa")));
    superblock.qf_ino = [4, 5, 0];
    let reserved = [0, 1, 2, 3, 4, 5, 6].map(|nid| superblock.is_reserved(Nid(nid)));
    assert_eq!(reserved, [true, true, true, true, true, true, false]);
}
