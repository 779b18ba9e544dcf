//! Fast commits that no kernel wrote: what they may change, and what is refused before anything is written. Skipped
//! without mke2fs and debugfs.

use std::fs;
use std::process::{Command, Stdio};
use std::sync::Arc;

use moafs_disk::SharedDisk;
use moafs_disk::mem::MemDisk;
use moafs_ext::check::{CheckOptions, Mode, check_volume};
use moafs_ext::format::{Geometry, Superblock};
use moafs_ext::journal::{self, Journal};
use moafs_ext::{Ext, OpenOptions};
use moafs_runtime::{Live, Timestamp};
use moafs_vfs::types::{Ino, Name};
use moafs_vfs::{Credentials, Error, Options, Vfs};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

const BLOCK: u64 = 1024;
/// The inodes of `/dir` and `/file`, which has the blocks from `DATA` on.
const DIR: u32 = 12;
const FILE: u32 = 13;

fn run(tool: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(tool);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    match command.status() {
        Ok(status) => {
            assert!(status.success(), "{tool} {arguments:?} fails");
            true
        }
        Err(_) => {
            eprintln!("SKIPPED: {tool} is not installed (package e2fsprogs)");
            false
        }
    }
}

/// Makes a volume with `/dir`, `/file` of four blocks, and a log of one transaction from which fast commits may go on.
fn volume() -> Option<MemDisk> {
    let directory = tempfile::tempdir().expect("a scratch directory");
    let path = |name: &str| directory.path().join(name).to_str().expect("text").to_owned();
    let (image, data, script) = (path("image"), path("data"), path("script"));
    let options = ["-F", "-q", "-t", "ext4", "-b", "1024", "-O", "fast_commit,^metadata_csum", &image, "24M"];
    fs::write(&data, vec![7; 4096]).expect("it can be written");
    // The transaction writes a free block.
    fs::write(&script, format!("mkdir dir\nwrite {data} file\njo\njw -b 20000 {data}\njc\n"))
        .expect("it can be written");
    if !run("mke2fs", &options) || !run("debugfs", &["-w", "-f", &script, &image]) {
        return None;
    }
    let disk = MemDisk::from_bytes(&fs::read(&image).expect("it can be read"));
    let (_, geo, journal) = open(&disk);
    // s_feature_incompat of the journal, which has no checksum.
    let at = geo.byte_of(journal.runs()[0].start) + 0x2B;
    let mut byte = [0];
    disk.peek(at, &mut byte);
    disk.poke(at, &[byte[0] | 0x20]);
    Some(disk)
}

fn open(disk: &MemDisk) -> (Superblock, Geometry, Journal) {
    let shared: SharedDisk = Arc::new(disk.snapshot());
    let mut raw = [0; 1024];
    disk.peek(1024, &mut raw);
    let sb = Superblock::parse(&raw).expect("a superblock");
    let geo = Geometry::of(&sb, u64::MAX).expect("a geometry");
    let journal = Journal::open(&shared, &sb, &geo).expect("a sound journal").expect("a journal");
    (sb, geo, journal)
}

fn record(tag: u16, value: &[u8]) -> Vec<u8> {
    [&tag.to_le_bytes()[..], &(value.len() as u16).to_le_bytes(), value].concat()
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn add(ino: u32, lbn: u32, len: u16, start: u32) -> Vec<u8> {
    record(1, &[words(&[ino, lbn]), len.to_le_bytes().to_vec(), vec![0, 0], words(&[start])].concat())
}

fn del(ino: u32, lbn: u32, len: u32) -> Vec<u8> {
    record(2, &words(&[ino, lbn, len]))
}

fn name(tag: u16, parent: u32, ino: u32, name: &[u8]) -> Vec<u8> {
    record(tag, &[&words(&[parent, ino]), name].concat())
}

/// The record of an inode with an empty extent tree.
fn inode(ino: u32, mode: u16, links: u16, size: u32, generation: u32) -> Vec<u8> {
    let mut slot = vec![0; 160];
    slot[0..2].copy_from_slice(&mode.to_le_bytes());
    slot[4..8].copy_from_slice(&size.to_le_bytes());
    slot[0x1A..0x1C].copy_from_slice(&links.to_le_bytes());
    slot[0x20..0x24].copy_from_slice(&0x80000_u32.to_le_bytes());
    slot[0x64..0x68].copy_from_slice(&generation.to_le_bytes());
    slot[0x80] = 32;
    record(6, &[words(&[ino]), slot].concat())
}

/// Writes a fast commit of these records behind the log. Records do not cross blocks.
fn commit(disk: &MemDisk, records: &[Vec<u8>]) {
    let (_, geo, journal) = open(disk);
    let sequence = journal.scan().expect("a sound log").next_sequence - 1;
    let first = journal.superblock().fast_commits().expect("an area");
    let mut sum = 0;
    let mut blocks = vec![record(9, &words(&[0, sequence]))];
    for record in records {
        let last = blocks.last_mut().expect("one block");
        if last.len() + record.len() + 16 > BLOCK as usize {
            let pad = BLOCK as usize - last.len() - 4;
            last.extend(self::record(7, &vec![0; pad]));
            blocks.push(Vec::new());
        }
        blocks.last_mut().expect("one block").extend(record);
    }
    let last = blocks.len() - 1;
    let length = (BLOCK as usize - blocks[last].len() - 4) as u16;
    blocks[last].extend([8_u16.to_le_bytes(), length.to_le_bytes()].concat());
    blocks[last].extend(sequence.to_le_bytes());
    for block in &blocks {
        // From zero, and without a final inversion.
        sum = !crc32c::crc32c_append(!sum, block);
    }
    blocks[last].extend(sum.to_le_bytes());
    for (block, at) in blocks.iter_mut().zip(first..) {
        block.resize(BLOCK as usize, 0);
        let run = journal.runs().iter().rfind(|run| run.at <= at).expect("no hole");
        disk.poke(geo.byte_of(run.start) + u64::from(at - run.at) * BLOCK, block);
    }
}

/// Replays the journal of a copy, and has it checked. Returns the copy.
fn replay(disk: &MemDisk) -> Result<Arc<MemDisk>, Error> {
    let copy = Arc::new(disk.snapshot());
    let shared: SharedDisk = copy.clone();
    let (sb, geo, _) = open(disk);
    let before = copy.to_bytes();
    if let Err(error) = journal::recover(&shared, &sb, &geo, true) {
        assert!(copy.to_bytes() == before, "{error}: nothing is written");
        return Err(error);
    }
    Ok(copy)
}

/// Mounts and unmounts a volume: what is deleted goes.
fn use_once(disk: &Arc<MemDisk>) -> Vfs<Ext> {
    let rt = Live::new();
    let ext = Ext::open(disk.clone(), rt.clone(), OpenOptions::default()).expect("it can be mounted");
    Vfs::new(ext, disk.clone(), rt, Options::default())
}

fn findings(disk: &Arc<MemDisk>) -> Vec<String> {
    let now = Timestamp::new(1_800_000_000, 0);
    let options = CheckOptions { mode: Mode::No, force: true, superblock: None, now };
    let shared: SharedDisk = disk.clone();
    let outcome = check_volume(&shared, &options, &mut |_| {}).expect("it can be checked");
    outcome.findings.iter().map(|finding| format!("{:?}", finding.issue)).collect()
}

#[test]
fn records_change_what_they_name() {
    let Some(disk) = volume() else { return };
    let new = 20;
    commit(
        &disk,
        &[
            inode(new, 0o100_600, 1, 2000, 5),
            add(new, 0, 2, 21_000),
            name(3, DIR, new, b"new"),
            name(5, 2, FILE, b"file"),
            inode(21, 0o040_755, 2, 1024, 6),
            name(3, DIR, 21, b"sub"),
            name(4, 21, new, b"again"),
            inode(new, 0o100_600, 2, 2000, 5),
        ],
    );
    let copy = replay(&disk).expect("all is in order");
    use_once(&copy).close().expect("it can be unmounted");
    assert_eq!(findings(&copy), Vec::<String>::new());
    // Shown without being written, it is the same.
    let (who, vfs) = (Credentials::root(), use_once(&Arc::new(disk.snapshot())));
    let find = |dir: Ino, name: &[u8]| vfs.lookup(&who, dir, Name::new(name).expect("legal")).map(|found| found.ino);
    let dir = find(Ino(2), b"dir").expect("it is there");
    assert_eq!(find(dir, b"new").expect("it is there"), Ino(new.into()));
    let sub = find(dir, b"sub").expect("it is there");
    assert_eq!(find(sub, b"again").expect("it is there"), Ino(new.into()));
    assert!(find(Ino(2), b"file").is_err(), "its name is gone");
    vfs.close().expect("it can be unmounted");
}

#[test]
fn records_are_held_against_the_volume_first() {
    let Some(disk) = volume() else { return };
    let (_, geo, journal) = open(&disk);
    let own = journal.runs()[0].start.0 as u32;
    let cases: [(&str, Vec<Vec<u8>>); 11] = [
        ("no file may own", vec![add(FILE, 0, 4, 1)]),
        ("no file may own", vec![add(FILE, 0, 4, own + 7)]),
        ("no file may own", vec![add(FILE, 0, 4, geo.blocks as u32 - 1)]),
        ("no file may own", vec![add(FILE, u32::MAX - 1, 4, 21_000)]),
        ("no user's", vec![inode(8, 0o100_600, 1, 0, 5)]),
        ("no user's", vec![add(9_999_999, 0, 4, 21_000)]),
        ("illegal name", vec![name(4, 2, FILE, b"a/b")]),
        ("illegal name", vec![name(4, 2, FILE, b"..")]),
        ("another file has", vec![inode(FILE, 0o100_600, 1, 0, 77)]),
        ("second name", vec![name(4, 2, DIR, b"dir2")]),
        (
            "as well",
            vec![
                inode(20, 0o100_600, 1, 0, 5),
                add(20, 0, 2, 21_000),
                inode(21, 0o100_600, 1, 0, 5),
                add(21, 0, 2, 21_001),
            ],
        ),
    ];
    for (word, records) in cases {
        let disk = disk.snapshot();
        // A change that is in order does not come through either.
        commit(&disk, &[vec![name(4, DIR, FILE, b"ok")], records].concat());
        let Err(error) = replay(&disk) else { panic!("{word}: it is replayed") };
        assert!(error.to_string().contains(word), "{word}: {error}");
    }
}

/// Any record, mostly with numbers that mean something.
fn any_record() -> impl Strategy<Value = Vec<u8>> {
    let ino = || prop_oneof![4 => 11u32..24, 1 => Just(2), 1 => any::<u32>()];
    let block = || prop_oneof![4 => 20_990u32..21_010, 1 => 0u32..25_000, 1 => any::<u32>()];
    let lbn = || prop_oneof![6 => 0u32..12, 1 => any::<u32>()];
    let text = || prop_oneof![3 => "[abc]", 1 => "[a-z./]{1,200}"];
    let mode = prop_oneof![Just(0o100_644u16), Just(0o040_755), Just(0o120_777), Just(0o010_644), any::<u16>()];
    prop_oneof![
        (ino(), lbn(), prop_oneof![1u16..9, any::<u16>()], block())
            .prop_map(|(ino, lbn, len, at)| add(ino, lbn, len, at)),
        (ino(), lbn(), lbn()).prop_map(|(ino, lbn, len)| del(ino, lbn, len)),
        (3u16..6, ino(), ino(), text()).prop_map(|(tag, dir, ino, text)| name(tag, dir, ino, text.as_bytes())),
        (ino(), mode, 0u16..3, 0u32..9000, 0u32..3)
            .prop_map(|(ino, mode, links, size, generation)| inode(ino, mode, links, size, generation)),
    ]
}

#[test]
fn any_records_leave_a_volume_that_can_be_used() {
    let Some(disk) = volume() else { return };
    let mut runner = TestRunner::new(Config { cases: 64, ..Config::default() });
    let records = prop::collection::vec(any_record(), 1..30);
    let outcome = runner.run(&records, |records| {
        let disk = disk.snapshot();
        commit(&disk, &records);
        if let Ok(copy) = replay(&disk) {
            // Names may be missing or lead to files of another kind; that is for the checker.
            let shared: SharedDisk = copy.clone();
            let now = Timestamp::new(1_800_000_000, 0);
            let options = CheckOptions { mode: Mode::Yes, force: true, superblock: None, now };
            check_volume(&shared, &options, &mut |_| {}).expect("it can be repaired");
            prop_assert_eq!(findings(&copy), Vec::<String>::new());
        }
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
}
