//! Writing through a journal: the cost of a commit, and deleted files, freed blocks and counts after a power cut.
//! e2fsck is the judge. Skipped without mke2fs and e2fsck.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use moafs_disk::mem::MemDisk;
use moafs_disk::probe::trace::{Record, Trace, TraceVerb};
use moafs_disk::{Disk, DiskError, Done, Epoch, Kind, SharedDisk, Ticket};
use moafs_ext::{Ext, OpenOptions};
use moafs_runtime::virt::Virtual;
use moafs_runtime::{Live, Rt, sleep_until};
use moafs_vfs::api::{NewFile, Options};
use moafs_vfs::types::{FileKind, Ino, Name};
use moafs_vfs::{Credentials, Vfs};

const ROOT: Ino = Ino(2);
const BLOCK: u64 = 1024;

/// Makes a volume with a journal of 1 MiB; `None` if mke2fs is not installed.
fn make() -> Option<Arc<MemDisk>> {
    let file = tempfile::NamedTempFile::new().expect("a scratch file");
    let path = file.path().to_str().expect("a path of text");
    let made = Command::new("mke2fs")
        .args(["-q", "-F", "-t", "ext3", "-b", "1024", "-J", "size=1", path, "16M"])
        .stdin(Stdio::null())
        .output();
    let Ok(output) = made else {
        eprintln!("SKIPPED: mke2fs is not installed (package e2fsprogs)");
        return None;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(Arc::new(MemDisk::read_from(file.path()).expect("the image can be read")))
}

fn open(disk: SharedDisk) -> Vfs<Ext> {
    open_on(disk, Live::new())
}

fn open_on(disk: SharedDisk, rt: Rt) -> Vfs<Ext> {
    let ext = Ext::open(Arc::clone(&disk), Arc::clone(&rt), OpenOptions::default()).expect("the volume opens");
    Vfs::new(ext, disk, rt, Options { syncer: false, ..Options::default() })
}

fn name(text: &str) -> &Name {
    Name::new(text.as_bytes()).expect("a legal name")
}

fn create(vfs: &Vfs<Ext>, text: &str, contents: &[u8]) -> Ino {
    let new = NewFile { kind: FileKind::Regular, perm: 0o644, umask: 0, rdev: 0, target: None };
    let ino = vfs.create(&Credentials::root(), ROOT, name(text), &new).expect("there is space").ino;
    vfs.write(&Credentials::root(), ino, 0, contents, false).expect("there is space");
    ino
}

/// Returns what `e2fsck -fn` says about a disk, empty if it finds nothing.
fn complaints(disk: &MemDisk) -> String {
    let file = tempfile::NamedTempFile::new().expect("a scratch file");
    disk.write_to(file.path()).expect("there is space");
    let output =
        Command::new("e2fsck").args(["-fn", file.path().to_str().expect("text")]).output().expect("e2fsck runs");
    if output.status.success() { String::new() } else { String::from_utf8_lossy(&output.stdout).into_owned() }
}

/// Mounts what a power cut left, unmounts it, and requires that e2fsck finds nothing.
fn recovered(disk: &MemDisk) -> Arc<MemDisk> {
    let disk = Arc::new(disk.snapshot());
    open(disk.clone()).close().expect("the disk works");
    assert_eq!(complaints(&disk), "");
    disk
}

#[test]
fn a_new_file_is_durable_after_two_flushes_and_one_stretch_of_the_log() {
    let Some(disk) = make() else { return };
    let trace = Arc::new(Trace::new(disk, Live::new()));
    let vfs = open(trace.clone());
    create(&vfs, "before", b"contents");
    vfs.sync().expect("the disk works");
    let file = create(&vfs, "file", b"contents");
    trace.record(1000);
    vfs.fsync(file, false).expect("the disk works");
    let records = trace.take();
    let is_journal = |record: &&Record| record.tag.is_some_and(|tag| tag.kind == Kind::Journal);
    let flushes: Vec<usize> = (0..records.len()).filter(|at| records[*at].verb == TraceVerb::Flush).collect();
    assert!(flushes.len() <= 2, "{records:?}");
    let (before, after) = records.split_at(flushes[0]);
    // The log has a gap where the journal's own map lies between its blocks.
    let (log, other): (Vec<&Record>, Vec<&Record>) = before.iter().partition(is_journal);
    assert_eq!(other.len(), 1, "only the contents are written in their place: {records:?}");
    assert!(log.len() <= 2, "the transaction lies in one stretch of the log: {records:?}");
    let commit: Vec<_> = after.iter().filter(|record| record.verb == TraceVerb::Write).collect();
    assert!(commit.len() == 1 && commit[0].sectors == BLOCK / 512, "{records:?}");
}

/// A disk whose requests and flushes take time.
struct Slow {
    below: Arc<MemDisk>,
    rt: Rt,
}

impl Disk for Slow {
    moafs_disk::forward_to!(below: limits, submit, epoch, durable);

    fn wait(&self, ticket: Ticket) -> Vec<Done> {
        sleep_until(&*self.rt, self.rt.now() + Duration::from_micros(100));
        self.below.wait(ticket)
    }
    fn make_durable(&self, upto: Epoch) -> Result<(), DiskError> {
        if self.below.durable().is_none_or(|durable| durable < upto) {
            sleep_until(&*self.rt, self.rt.now() + Duration::from_millis(1));
        }
        self.below.make_durable(upto)
    }
}

#[test]
fn callers_that_wait_for_a_commit_share_it() {
    const CALLERS: usize = 16;
    let Some(disk) = make() else { return };
    let virt = Virtual::new(None);
    let rt: Rt = virt.rt();
    let slow = Slow { below: disk.clone(), rt: rt.clone() };
    let trace = Arc::new(Trace::new(Arc::new(slow), rt.clone()));
    let flushes = virt.run(|| {
        let vfs = open_on(trace.clone(), rt.clone());
        let files: Vec<Ino> = (0..CALLERS).map(|number| create(&vfs, &number.to_string(), b"contents")).collect();
        trace.record(1000);
        let callers = files.into_iter().map(|file| {
            let vfs = vfs.clone();
            rt.spawn("caller", Box::new(move || vfs.fsync(file, false).expect("the disk works")))
        });
        let callers: Vec<_> = callers.collect();
        callers.into_iter().for_each(|caller| caller.join(&*rt));
        let records = trace.take();
        vfs.close().expect("the disk works");
        records.iter().filter(|record| record.verb == TraceVerb::Flush).count()
    });
    // One commit for the first caller, one for those that came meanwhile.
    assert!(flushes <= 6, "{flushes} flushes for {CALLERS} callers");
    assert_eq!(complaints(&disk), "");
}

/// Lets clients create and fsync files one after the other. Returns the number of flushes, and the time of a file.
fn fsync_by(clients: usize) -> Option<(usize, Duration)> {
    const FILES: usize = 20;
    let disk = make()?;
    let virt = Virtual::new(None);
    let rt: Rt = virt.rt();
    let slow = Slow { below: disk.clone(), rt: rt.clone() };
    let trace = Arc::new(Trace::new(Arc::new(slow), rt.clone()));
    let work = || {
        let vfs = open_on(trace.clone(), rt.clone());
        trace.record(10_000);
        let began = rt.now();
        let client = |number: usize| {
            let (vfs, rt) = (vfs.clone(), rt.clone());
            move || {
                // In the middle of the other's commit.
                sleep_until(&*rt, rt.now() + Duration::from_millis(number as u64));
                for file in 0..FILES {
                    let file = create(&vfs, &format!("{number}-{file}"), b"contents");
                    vfs.fsync(file, false).expect("the disk works");
                    sleep_until(&*rt, rt.now() + Duration::from_micros(100));
                }
            }
        };
        let spawned: Vec<_> = (0..clients).map(|number| rt.spawn("client", Box::new(client(number)))).collect();
        spawned.into_iter().for_each(|client| client.join(&*rt));
        let took = rt.now() - began;
        let records = trace.take();
        vfs.close().expect("the disk works");
        let flushes = records.iter().filter(|record| record.verb == TraceVerb::Flush).count();
        (flushes, took / FILES as u32)
    };
    Some(virt.run(work))
}

#[test]
fn clients_that_take_turns_share_commits_and_a_lone_one_does_not_wait() {
    let Some((flushes, alone)) = fsync_by(1) else { return };
    let Some((shared, together)) = fsync_by(2) else { return };
    assert!(shared <= flushes + flushes / 4, "{shared} flushes for two clients, {flushes} for one");
    assert!(together < alone * 5 / 4, "{together:?} for a file of each of two clients, {alone:?} for one alone");
}

#[test]
fn a_file_that_was_deleted_while_it_was_open_is_freed_after_a_power_cut() {
    let Some(disk) = make() else { return };
    let vfs = open(disk.clone());
    let free = vfs.stat_fs().free;
    let file = create(&vfs, "file", &vec![7; 400 << 10]);
    vfs.lookup(&Credentials::root(), ROOT, name("file")).expect("it is there");
    vfs.unlink(&Credentials::root(), ROOT, name("file")).expect("it may go");
    vfs.sync().expect("the disk works");
    assert_eq!(vfs.read(file, 0, &mut [0; 16]).expect("it is open"), 16);
    let after = open(recovered(&disk));
    assert_eq!(after.stat_fs().free, free);
}

#[test]
fn blocks_that_held_directories_are_not_overwritten_by_a_replay() {
    let Some(disk) = make() else { return };
    let vfs = open(disk.clone());
    let new = NewFile { kind: FileKind::Directory, perm: 0o755, umask: 0, rdev: 0, target: None };
    for round in 0..20 {
        let text = format!("directory {round}");
        vfs.create(&Credentials::root(), ROOT, name(&text), &new).expect("there is space");
        vfs.sync().expect("the disk works");
        vfs.rmdir(&Credentials::root(), ROOT, name(&text)).expect("it is empty");
    }
    vfs.sync().expect("the disk works");
    // Fills the volume, the freed blocks among it.
    let mut files = Vec::new();
    let contents = vec![0xD1; 64 << 10];
    while vfs.stat_fs().free > 1200 {
        files.push(create(&vfs, &format!("file {}", files.len()), &contents));
    }
    vfs.sync().expect("the disk works");
    let after = open(recovered(&disk));
    for number in 0..files.len() {
        let text = format!("file {number}");
        let ino = after.lookup(&Credentials::root(), ROOT, name(&text)).expect("it was synced").ino;
        let mut bytes = vec![0; contents.len()];
        after.read(ino, 0, &mut bytes).expect("it can be read");
        assert!(bytes == contents, "{text} has foreign bytes");
    }
}

#[test]
fn a_clean_unmount_leaves_an_empty_journal_and_right_counts() {
    let Some(disk) = make() else { return };
    let vfs = open(disk.clone());
    for number in 0..100 {
        create(&vfs, &format!("file {number}"), b"contents");
    }
    vfs.close().expect("the disk works");
    assert_eq!(complaints(&disk), "");
}
