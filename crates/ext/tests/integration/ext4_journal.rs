//! Journals that debugfs writes, replayed in memory and compared with what e2fsck makes of them; then damaged ones.
//! Skipped without debugfs and e2fsck.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;

use moafs_disk::mem::MemDisk;
use moafs_disk::{DiskExt, Kind, Lba, SharedDisk, Tag};
use moafs_ext::check::{CheckOptions, Mode, Outcome, check_volume};
use moafs_ext::format::{Geometry, Superblock};
use moafs_ext::journal::{self, Journal, Replay};
use moafs_ext::{Ext, OpenOptions};
use moafs_runtime::{Live, Timestamp};
use moafs_vfs::Error;

const BLOCK: usize = 1024;
/// A free block of the volumes made here, far from the journal.
const HOME: u64 = 30_000;

fn have(tool: &str) -> bool {
    let found = Command::new(tool).arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok();
    if !found {
        eprintln!("SKIPPED: {tool} is not installed (package e2fsprogs)");
    }
    found
}

fn run(tool: &str, arguments: &[&str], allowed: &[i32]) {
    let output = Command::new(tool).args(arguments).stdin(Stdio::null()).output().expect("the tool starts");
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    let code = output.status.code().unwrap_or(-1);
    assert!(allowed.contains(&code), "{tool} {arguments:?} exits with {code}: {text}");
}

struct Volume {
    directory: tempfile::TempDir,
    image: PathBuf,
}

impl Volume {
    /// Makes a volume, and lets debugfs write a log with `open` as the options of its journal: four transactions, with
    /// blocks written twice, a block that begins with the journal's magic number, and revoked blocks.
    fn make(options: &str, open: &str) -> Volume {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let image = path("image");
        let mut arguments = vec!["-F", "-q", "-b", "1024"];
        arguments.extend(options.split(' '));
        arguments.extend([image.to_str().unwrap(), "48M"]);
        run("mke2fs", &arguments, &[0]);
        let fill = |byte: u8| vec![byte; BLOCK];
        let mut escaped = fill(0xE5);
        escaped[..4].copy_from_slice(&0xC03B_3998u32.to_be_bytes());
        fs::write(path("one"), [fill(1), fill(2), escaped, fill(4)].concat()).unwrap();
        fs::write(path("two"), [fill(0x11), fill(0x12)].concat()).unwrap();
        fs::write(path("three"), fill(0x21)).unwrap();
        let file = |name: &str| path(name).to_str().unwrap().to_owned();
        let h = HOME;
        let script = [
            format!("jo {open}"),
            format!("jw -b {},{},{},{} {}", h, h + 1, h + 2, h + 3, file("one")),
            format!("jw -r {},{}", h + 1, h + 50),
            format!("jw -b {},{} {}", h + 3, h + 4, file("two")),
            format!("jw -b {} {}", h + 3, file("three")),
            "jc".to_owned(),
        ];
        fs::write(path("script"), script.join("\n")).unwrap();
        run("debugfs", &["-w", "-f", &file("script"), image.to_str().unwrap()], &[0]);
        Volume { image, directory }
    }

    fn disk(&self) -> Arc<MemDisk> {
        Arc::new(MemDisk::from_bytes(&fs::read(&self.image).unwrap()))
    }

    /// Returns the bytes of a copy whose journal e2fsck has replayed.
    fn replayed_by_e2fsck(&self) -> Vec<u8> {
        let copy = self.directory.path().join("copy");
        fs::copy(&self.image, &copy).unwrap();
        run("e2fsck", &["-fy", "-E", "journal_only", copy.to_str().unwrap()], &[0, 1]);
        fs::read(copy).unwrap()
    }
}

/// The volume's superblock, geometry and journal.
fn journal(disk: &Arc<MemDisk>) -> (Superblock, Geometry, Journal) {
    let shared: SharedDisk = disk.clone();
    let mut raw = [0; 1024];
    disk.peek(1024, &mut raw);
    let superblock = Superblock::parse(&raw).unwrap();
    let geometry = Geometry::of(&superblock, u64::MAX).unwrap();
    let journal = Journal::open(&shared, &superblock, &geometry).unwrap().expect("the volume has a journal");
    (superblock, geometry, journal)
}

fn scan(disk: &Arc<MemDisk>) -> Result<Replay, Error> {
    journal(disk).2.scan()
}

/// The byte of the volume at which a block of the log begins.
fn byte_of(disk: &Arc<MemDisk>, at: u32) -> u64 {
    let (_, _, journal) = journal(disk);
    let run = journal.runs().iter().rev().find(|run| run.at <= at).unwrap();
    (run.start.0 + u64::from(at - run.at)) * BLOCK as u64
}

const KINDS: [(&str, &str); 8] = [
    ("-t ext3", ""),
    ("-t ext4 -O ^metadata_csum,^64bit", ""),
    ("-t ext4", ""),
    ("-t ext4", "-c -v 2"),
    ("-t ext4", "-c -v 3"),
    ("-t ext4 -O ^64bit", "-c -v 2"),
    ("-t ext4 -O ^64bit", "-c -v 3"),
    ("-t ext4 -J size=4 -O ^extent,^64bit", "-c -v 3"),
];

#[test]
fn a_replay_in_memory_is_that_of_e2fsck() {
    if !have("debugfs") || !have("e2fsck") {
        return;
    }
    for (options, open) in KINDS {
        let what = format!("{options} {open}");
        let volume = Volume::make(options, open);
        let disk = volume.disk();
        let before = disk.to_bytes();
        let (superblock, geometry, journal) = journal(&disk);
        let shared: SharedDisk = disk.clone();
        let (shown, replay) = journal::read_through(&shared, &superblock, &geometry).unwrap();
        assert_eq!(replay.transactions, 4, "{what}");
        let homes: Vec<u64> = replay.blocks.keys().map(|block| block.0 - HOME).collect();
        assert_eq!(homes, [0, 2, 3, 4], "{what}: the second block was revoked");
        let expected = volume.replayed_by_e2fsck();
        let log: Vec<u64> =
            journal.runs().iter().flat_map(|run| run.start.0..run.start.0 + u64::from(run.len)).collect();
        for block in (0..geometry.blocks).filter(|block| *block > 1 && log.binary_search(block).is_err()) {
            let bytes = shown.read(Lba(block * 2), BLOCK, Tag::volume(Kind::Data)).unwrap();
            let at = block as usize * BLOCK;
            assert!(bytes[..] == expected[at..at + BLOCK], "{what}: block {block} differs");
        }
        // Reads that begin or end inside of a block.
        let part = shown.read(Lba(HOME * 2 - 1), 3 * 512, Tag::volume(Kind::Data)).unwrap();
        assert_eq!((part[511], part[512]), (0, 1), "{what}");
        assert!(disk.to_bytes() == before, "{what}: nothing is written");
        let only_read = OpenOptions { read_only: true, ..OpenOptions::default() };
        let ext = Ext::open(shared, Live::new(), only_read).unwrap();
        let shape = moafs_vfs::Format::shape(&ext);
        assert!(disk.to_bytes() == before, "{what}: opening it for reading writes nothing");
        assert!(shape.notes[0].contains("4 transactions"), "{what}: {:?}", shape.notes);
    }
}

/// The log: block 1 describes four blocks, 6 commits; 7 revokes, 8 commits; 9 describes two blocks, 12 commits; 13
/// describes one, 15 commits. Returns what a scan says after a bit of block `at` has flipped.
fn damaged(at: u32, offset: u64) -> Result<Replay, Error> {
    let volume = Volume::make("-t ext4", "-c -v 3");
    let disk = volume.disk();
    let place = byte_of(&disk, at) + offset;
    let mut byte = [0];
    disk.peek(place, &mut byte);
    disk.poke(place, &[byte[0] ^ 1]);
    scan(&disk)
}

#[test]
fn damage_is_told_from_the_end_of_the_log() {
    if !have("debugfs") {
        return;
    }
    let volume = Volume::make("-t ext4", "-c -v 3");
    let kinds: Vec<u8> = (1..16)
        .map(|at| {
            let mut byte = [0; 8];
            volume.disk().peek(byte_of(&volume.disk(), at), &mut byte);
            if byte[..4] == 0xC03B_3998u32.to_be_bytes() { byte[7] } else { 0 }
        })
        .collect();
    assert_eq!(kinds, [1, 0, 0, 0, 0, 2, 5, 2, 1, 0, 0, 2, 1, 0, 2], "the log is as described");
    // A wrong checksum in a transaction that was committed: nothing is replayed.
    for (at, word) in [(1, "descriptor"), (3, "copy of block"), (7, "revoke"), (14, "copy of block")] {
        let Err(error) = damaged(at, 500) else { panic!("block {at} is used") };
        let text = error.to_string();
        assert!(text.contains(word) && text.contains("of the journal"), "{at}: {text}");
    }
    for at in [6, 15] {
        assert!(damaged(at, 20).unwrap_err().to_string().contains("commit block"), "block {at} is used");
    }
    // A torn commit block counts: all it commits is durable.
    assert_eq!(damaged(15, 700).unwrap().transactions, 4);
    // Another number in a header is an older lap's.
    assert_eq!(damaged(9, 11).unwrap().transactions, 2);
    assert_eq!(damaged(15, 11).unwrap().transactions, 3);
}

#[test]
fn tags_must_not_name_the_journal_or_what_lies_outside() {
    if !have("debugfs") {
        return;
    }
    for (home, word) in [(u32::MAX, "outside"), (0, "outside"), (0x10, "")] {
        let volume = Volume::make("-t ext3", "");
        let disk = volume.disk();
        let home = if word.is_empty() { (byte_of(&disk, 100) / BLOCK as u64) as u32 } else { home };
        disk.poke(byte_of(&disk, 1) + 12, &home.to_be_bytes());
        let text = scan(&disk).unwrap_err().to_string();
        assert!(text.contains(if word.is_empty() { "journal itself" } else { word }), "{text}");
    }
}

#[test]
fn a_log_of_which_every_block_is_damaged_does_no_harm() {
    if !have("debugfs") {
        return;
    }
    for open in ["", "-c -v 3"] {
        let volume = Volume::make("-t ext4", open);
        let golden = volume.disk();
        for at in 0..16 {
            let place = byte_of(&golden, at);
            for offset in [0, 5, 8, 12, 13, 15, 16, 19, 21, 23, 27, 31, 47, 60, 85, 0xFF, 1023] {
                for value in [0, 0x7F, 0xFF] {
                    let disk = Arc::new(golden.snapshot());
                    disk.poke(place + offset, &[value]);
                    let shared: SharedDisk = disk.clone();
                    let _ = Ext::open(shared, Live::new(), OpenOptions::default());
                }
            }
        }
    }
}

#[test]
fn a_journal_on_another_device_is_refused_by_name() {
    if !have("debugfs") {
        return;
    }
    let volume = Volume::make("-t ext3", "");
    let disk = volume.disk();
    disk.poke(1024 + 0xD0, &[7; 16]);
    disk.poke(1024 + 0xE0, &[0; 4]);
    let shared: SharedDisk = disk;
    let Err(Error::Refused(text)) = Ext::open(shared, Live::new(), OpenOptions::default()) else { panic!("it opens") };
    assert!(text.contains("another device"), "{text}");
}

/// Damages after which the superblock does not lead to the journal, as commands of debugfs.
const LOST: [&str; 9] = [
    "ssv journal_inum 0",
    "ssv journal_inum 9999999",
    "ssv journal_inum 2",
    "ssv journal_inum 11",
    "clri <8>",
    "sif <8> mode 040755",
    "sif <8> links_count 0",
    "sif <8> block[0] 0",
    "sif <8> block[0] 99999999",
];

fn open_error(disk: &Arc<MemDisk>, read_only: bool) -> String {
    let shared: SharedDisk = disk.clone();
    let opened = Ext::open(shared, Live::new(), OpenOptions { read_only, ..OpenOptions::default() });
    let Err(error @ Error::Refused(_)) = opened else { panic!("it opens, or fails in another way") };
    error.to_string()
}

fn repair(disk: &Arc<MemDisk>, mode: Mode) -> (Outcome, Vec<String>) {
    let shared: SharedDisk = disk.clone();
    let now = Timestamp { secs: 1_700_000_000, nanos: 0 };
    let options = CheckOptions { mode, force: true, now, superblock: None };
    let outcome = check_volume(&shared, &options, &mut |_| {}).expect("it can be checked");
    let found = outcome.findings.iter().map(|finding| finding.issue.to_string()).collect();
    (outcome, found)
}

/// A log that the superblock does not lead to is no empty one: a mount refuses the volume, and a repair finds the
/// journal by the copy of its inode, and replays it.
#[test]
fn a_journal_that_is_lost_is_found_by_its_copy() {
    if !have("debugfs") || !have("e2fsck") {
        return;
    }
    for (options, damage) in ["-t ext3", "-t ext4"].iter().flat_map(|options| LOST.map(|damage| (options, damage))) {
        let volume = Volume::make(options, "");
        let path = volume.image.to_str().unwrap();
        let homes = HOME as usize * BLOCK..(HOME as usize + 5) * BLOCK;
        let replayed = volume.replayed_by_e2fsck()[homes.clone()].to_vec();
        run("debugfs", &["-w", "-R", damage, path], &[0]);
        let disk = volume.disk();
        for read_only in [false, true] {
            let refused = open_error(&disk, read_only);
            assert!(refused.contains("the journal cannot be used") && refused.contains("moafs fsck -y"), "{refused}");
        }
        let before = disk.to_bytes();
        let (outcome, found) = repair(&disk, Mode::No);
        assert!(outcome.transactions == 4 && found.len() == 2, "{options} {damage}: {found:?}");
        assert!(found[0].starts_with("the journal cannot be found"), "{found:?}");
        assert!(disk.to_bytes() == before, "a look changes nothing");
        for mode in [Mode::Preen, Mode::Yes] {
            let disk = volume.disk();
            let (outcome, found) = repair(&disk, mode);
            assert!(outcome.transactions == 4 && !outcome.errors_left, "{options} {damage}: {found:?}");
            assert!(
                disk.to_bytes()[homes.clone()] == replayed,
                "{options} {damage}: e2fsck replays it in the same way"
            );
            assert_eq!(repair(&disk, Mode::No).1, Vec::<String>::new());
            let repaired = volume.directory.path().join("repaired");
            disk.write_to(&repaired).unwrap();
            run("e2fsck", &["-fn", repaired.to_str().unwrap()], &[0]);
            let shared: SharedDisk = disk;
            Ext::open(shared, Live::new(), OpenOptions::default()).expect("it can be written again");
        }
    }
}

/// Without the copy the log is lost, and that is said.
#[test]
fn a_journal_that_is_lost_without_a_copy_is_given_up_on_demand_only() {
    if !have("debugfs") || !have("e2fsck") {
        return;
    }
    let volume = Volume::make("-t ext4", "");
    let path = volume.image.to_str().unwrap();
    for damage in ["ssv jnl_backup_type 0", "ssv journal_inum 0", "clri <8>"] {
        run("debugfs", &["-w", "-R", damage, path], &[0]);
    }
    let disk = volume.disk();
    let refused = open_error(&disk, false);
    assert!(refused.contains("the journal cannot be used"), "{refused}");
    let before = disk.to_bytes();
    let (outcome, found) = repair(&disk, Mode::Preen);
    assert!(outcome.errors_left && disk.to_bytes() == before, "{found:?}");
    let (outcome, found) = repair(&disk, Mode::Yes);
    assert!(!outcome.errors_left && outcome.transactions == 0, "{found:?}");
    assert!(found[0].starts_with("the journal cannot be replayed"), "{found:?}");
    let repaired = volume.directory.path().join("repaired");
    disk.write_to(&repaired).unwrap();
    run("e2fsck", &["-fn", repaired.to_str().unwrap()], &[0]);
}

#[test]
fn fast_commits_count_if_they_go_on_from_the_log() {
    if !have("debugfs") {
        return;
    }
    let volume = Volume::make("-t ext4 -O fast_commit,^metadata_csum", "");
    let disk = volume.disk();
    let (_, _, journal) = journal(&disk);
    let superblock = byte_of(&disk, 0);
    let blocks = journal.superblock().blocks;
    disk.poke(superblock + 0x2B, &[0x23]);
    disk.poke(superblock + 0x54, &64u32.to_be_bytes());
    let area = byte_of(&disk, blocks - 64 + 1);
    let sequence = journal.superblock().sequence + 4;
    let head = [&[9, 0, 8, 0, 0, 0, 0, 0][..], &sequence.to_le_bytes()].concat();
    disk.poke(area, &head);
    assert!(scan(&disk).unwrap().has_fast_commits);
    disk.poke(area + 8, &(sequence - 1).to_le_bytes());
    let replay = scan(&disk).unwrap();
    assert_eq!((replay.transactions, replay.has_fast_commits), (4, false), "an older head is not used");
}
