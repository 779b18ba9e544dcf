//! IO-TEST: overwriting whole files of 32 KiB, drawn uniformly or mostly from a hot tenth.

use std::sync::atomic::{AtomicU64, Ordering};

use moafs_f2fs::clean::oracle::Foresight;
use moafs_f2fs::format::summary::SummaryEntry;
use moafs_vfs::Format;
use moafs_vfs::types::Ino;
use moafs_workload::Pattern;

use super::Client;
use crate::error::Result;

/// Bytes of a file, and of a write.
pub const FILE_BYTES: u64 = 32 << 10;
/// Blocks of a file.
pub const FILE_BLOCKS: u64 = FILE_BYTES / 4096;

/// The writes of a run, known before it begins.
#[derive(Debug, Clone)]
pub struct Schedule {
    files: Vec<Ino>,
    /// The file of each write, as an index.
    writes: Vec<usize>,
}

impl Schedule {
    /// Draws `writes` writes to these files.
    pub fn new(files: &[Ino], pattern: Pattern, seed: u64, writes: u64) -> Schedule {
        let mut draw = pattern.drawing(files.len(), seed);
        Schedule { files: files.to_vec(), writes: (0..writes).map(|_| draw.next()).collect() }
    }

    /// Overwrites the files and waits until everything is on the device. `after` is called with the
    /// number of each write and the time it took, in nanoseconds.
    ///
    /// # Errors
    /// Fails if an operation on the volume fails.
    pub fn run(&self, client: &Client<impl Format>, mut after: impl FnMut(usize, u64)) -> Result<()> {
        for (number, file) in self.writes.iter().enumerate() {
            let start = client.now();
            client.write(self.files[*file], 0, FILE_BYTES)?;
            after(number, (client.now() - start).as_nanos() as u64);
        }
        client.sync()
    }

    /// Returns the number of files.
    pub fn files(&self) -> u64 {
        self.files.len() as u64
    }

    /// Returns the number of writes.
    pub fn writes(&self) -> u64 {
        self.writes.len() as u64
    }

    /// Returns the number of files that are written at least once.
    pub fn files_written(&self) -> u64 {
        self.writes.iter().collect::<std::collections::BTreeSet<_>>().len() as u64
    }

    /// Returns the schedule as an oracle sees it.
    pub fn foreseen(&self) -> Foreseen {
        let mut coming = vec![u64::MAX; self.files.len()];
        let mut following = vec![u64::MAX; self.writes.len()];
        for (number, file) in self.writes.iter().enumerate().rev() {
            following[number] = std::mem::replace(&mut coming[*file], number as u64);
        }
        let inodes = self.files.iter().map(|ino| ino.0 as usize + 1).max().unwrap_or(0);
        let next: Vec<AtomicU64> = (0..inodes).map(|_| AtomicU64::new(u64::MAX)).collect();
        for (ino, number) in self.files.iter().zip(coming) {
            next[ino.0 as usize].store(number, Ordering::Relaxed);
        }
        let inode_of = self.writes.iter().map(|file| self.files[*file]).collect();
        Foreseen { next, following, inode_of, now: AtomicU64::new(0) }
    }
}

/// The next write of each file: a [`Schedule`] as an oracle sees it. Every write overwrites a whole
/// file, so a file's blocks die together. Writes that wait in memory count as done.
#[derive(Debug)]
pub struct Foreseen {
    /// Number of the next write, by inode number.
    next: Vec<AtomicU64>,
    /// Number of the next write to the same file, by write.
    following: Vec<u64>,
    inode_of: Vec<Ino>,
    now: AtomicU64,
}

impl Foreseen {
    /// Records that this write is done.
    pub fn written(&self, number: usize) {
        self.next[self.inode_of[number].0 as usize].store(self.following[number], Ordering::Relaxed);
        self.now.store(number as u64 + 1, Ordering::Relaxed);
    }
}

impl Foresight for Foreseen {
    fn blocks_before_death(&self, owner: SummaryEntry) -> u64 {
        let next = self.next.get(owner.nid.0 as usize).map_or(u64::MAX, |next| next.load(Ordering::Relaxed));
        next.saturating_sub(self.now.load(Ordering::Relaxed)).saturating_mul(FILE_BLOCKS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_oracle_sees_the_next_write_of_each_file() {
        let files = [Ino(7), Ino(4), Ino(9)];
        let schedule = Schedule { files: files.to_vec(), writes: vec![0, 1, 0] };
        let foreseen = schedule.foreseen();
        let lives = || {
            files.map(|ino| {
                let nid = moafs_f2fs::format::Nid(ino.0 as u32);
                foreseen.blocks_before_death(SummaryEntry { nid, ..SummaryEntry::default() }) / FILE_BLOCKS
            })
        };
        let never = u64::MAX / FILE_BLOCKS;
        assert_eq!(lives(), [0, 1, never]);
        foreseen.written(0);
        assert_eq!(lives(), [1, 0, never]);
        foreseen.written(1);
        foreseen.written(2);
        assert_eq!(lives(), [never; 3]);
    }
}
