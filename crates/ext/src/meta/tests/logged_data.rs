//! Contents of files in the log.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;
use crate::data_disk::DataDisk;
use crate::meta::transaction::data_blocks_max;

/// A volume with a journal, and the disk through which the contents of its files go.
struct Logging {
    disk: Arc<MemDisk>,
    meta: Arc<Meta>,
    data: SharedDisk,
}

impl Logging {
    fn new() -> Option<Logging> {
        let disk = Arc::new(journaled()?);
        let shared: SharedDisk = disk.clone();
        let meta = Arc::new(meta_with_log(shared.clone()));
        let data = Arc::new(DataDisk::new(shared, Arc::clone(&meta), BLOCK));
        Some(Logging { data, meta, disk })
    }

    /// Writes blocks from `start` on, each filled with its byte.
    fn write(&self, start: u64, bytes: &[u8], cause: Cause) {
        let data = bytes.iter().map(|byte| Buf::copy_of(&[*byte; BLOCK]).freeze()).collect();
        let at = Lba(start * (BLOCK / SECTOR) as u64);
        let request = Request { op: Op::Write { data, fua: false }, at, tag: Tag::new(Kind::Data, 12, cause) };
        self.data.run(vec![request]).remove(0).result.expect("memory can be written");
    }

    /// Returns the first bytes of blocks as their files show them, by both ways to read.
    fn read(&self, start: u64, count: usize) -> Vec<u8> {
        let at = Lba(start * (BLOCK / SECTOR) as u64);
        let tag = Tag::new(Kind::Data, 12, Cause::Demand);
        let read = self.data.read(at, count * BLOCK, tag).expect("memory can be read");
        let mut into = vec![0; count * BLOCK];
        self.data.read_into(&mut [ReadPart { at, into: &mut into }], tag).expect("memory can be read");
        assert_eq!(&*read, &into[..]);
        into.chunks(BLOCK).map(|block| block[BLOCK - 1]).collect()
    }

    /// Returns the first bytes of blocks in their places.
    fn at_home<const N: usize>(&self, start: u64) -> [u8; N] {
        std::array::from_fn(|at| on_disk(&self.disk, start + at as u64))
    }

    /// Returns the blocks that a replay would write.
    fn replayed(&self) -> Vec<u64> {
        let shared: SharedDisk = self.disk.clone();
        let replay = journal_of(&shared).scan().expect("the log is right");
        replay.blocks.keys().map(|no| no.0).collect()
    }
}

#[test]
fn small_writes_of_an_fsync_are_in_the_log_first_and_at_home_later() {
    let Some(volume) = Logging::new() else { return };
    volume.write(3000, &[1, 2], Cause::Fsync);
    assert!(volume.meta.is_pending(volume.meta.data_level()) && !volume.meta.is_clean());
    assert_eq!((volume.read(2999, 4), volume.at_home(3000)), (vec![0, 1, 2, 0], [0, 0]));
    sweep(&volume.meta);
    assert!(!volume.meta.is_pending(volume.meta.data_level()) && volume.meta.is_clean());
    assert_eq!((volume.replayed(), volume.at_home(3000)), (vec![3000, 3001], [0, 0]));
    volume.meta.settle_log().expect("memory can be written");
    assert_eq!((volume.replayed(), volume.at_home(3000)), (vec![], [1, 2]));
    assert_eq!(volume.read(3000, 2), [1, 2]);
}

#[test]
fn long_writes_and_those_that_nothing_waits_for_go_to_their_places() {
    let Some(volume) = Logging::new() else { return };
    volume.write(3000, &[1], Cause::Age);
    volume.write(3100, &[2; 17], Cause::Fsync);
    assert_eq!((volume.at_home(3000), volume.at_home(3116)), ([1], [2]));
    assert!(volume.meta.is_clean());
}

#[test]
fn later_contents_of_a_block_in_the_log_go_through_the_log_too() {
    let Some(volume) = Logging::new() else { return };
    volume.write(3001, &[1], Cause::Fsync);
    sweep(&volume.meta);
    volume.write(3000, &[5, 6, 7, 8], Cause::Age);
    assert_eq!((volume.at_home(3000), volume.read(3000, 4)), ([5, 0, 7, 8], vec![5, 6, 7, 8]));
    volume.meta.settle_log().expect("memory can be written");
    assert_eq!((volume.at_home(3000), volume.read(3000, 4)), ([5, 1, 7, 8], vec![5, 6, 7, 8]), "6 is not committed");
    sweep(&volume.meta);
    assert_eq!(volume.replayed(), [3001]);
    volume.meta.settle_log().expect("memory can be written");
    volume.write(3001, &[9], Cause::Age);
    assert_eq!(volume.at_home(3000), [5, 9, 7, 8]);
}

#[test]
fn a_copy_in_the_log_is_revoked_when_its_block_is_freed() {
    let Some(volume) = Logging::new() else { return };
    volume.write(3000, &[1, 2], Cause::Fsync);
    assert!(!volume.meta.forget_data(3001..3002), "the log has no copy yet");
    sweep(&volume.meta);
    assert!(volume.meta.forget_data(2990..3001));
    assert!(volume.meta.free_after(Level::NONE, Freed::Data { start: 2990, len: 11 }));
    assert_eq!(volume.replayed(), [3000], "until the free is durable a power cut brings the file back");
    sweep(&volume.meta);
    volume.write(3000, &[3], Cause::Age);
    assert_eq!((volume.replayed(), volume.at_home(3000)), (vec![], [3]));
    volume.meta.settle_log().expect("memory can be written");
    assert_eq!(volume.at_home(3000), [3, 0]);
}

#[test]
fn what_the_log_has_no_room_for_goes_to_its_place() {
    let Some(volume) = Logging::new() else { return };
    let blocks = data_blocks_max(journal_of(&(volume.disk.clone() as SharedDisk)).superblock().blocks, BLOCK) as u64;
    for block in 0..blocks + 40 {
        volume.write(2000 + block, &[1], Cause::Fsync);
    }
    let (logged, direct) = (on_disk(&volume.disk, 2000), on_disk(&volume.disk, 2000 + blocks + 39));
    assert_eq!((logged, direct), (0, 1));
    sweep(&volume.meta);
    assert_eq!(volume.read(2000, blocks as usize + 40), vec![1; blocks as usize + 40]);
    assert_eq!(on_disk(&volume.disk, 2000), 1, "a crowded log is emptied");
}

#[test]
fn a_block_of_metadata_that_was_made_and_freed_leaves_no_revoke_to_the_contents_that_follow() {
    let Some(volume) = Logging::new() else { return };
    log_change(&volume.meta, 3000, 1);
    sweep(&volume.meta);
    {
        let _op = volume.meta.enter(1);
        let (_, _) = volume.meta.fresh(3000, Kind::Directory, Buf::zeroed(BLOCK));
        volume.meta.forget(3000);
    }
    volume.write(3000, &[7], Cause::Fsync);
    sweep(&volume.meta);
    assert_eq!(volume.replayed(), [3000], "an fsync was answered");
}

#[test]
#[cfg(debug_assertions)]
fn contents_never_go_to_the_place_of_a_block_that_a_replay_writes() {
    let Some(volume) = Logging::new() else { return };
    log_change(&volume.meta, 3000, 1);
    sweep(&volume.meta);
    let written = catch_unwind(AssertUnwindSafe(|| volume.write(3000, &[7], Cause::Age)));
    assert!(written.is_err(), "the block was not revoked");
    volume.write(3001, &[7], Cause::Age);
}
