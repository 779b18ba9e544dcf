//! Postmark (Katcher 1997), with the paper's parameters.
//!
//! The original's parameters are fields; its random choices, all drawn from one generator in this order:
//!
//! * phase 1, for each file: its size. Files are made directory by directory (the paper's words;
//!   the original also draws the directory);
//! * phase 2, for each transaction: a number below ten: read if it is below the read bias, else
//!   append; a file among all that exist, equally likely; for an append with drawn length, that
//!   length; again a number below ten: create if it is below the create bias, else delete; for a
//!   create: the directory, then the size; for a delete: a file among all that exist.
//!
//! Differences to the original: the two halves of a transaction are always both done, as its
//! default biases do; files are read and written with a buffer of 64 KB (the original's buffered
//! mode used the C library's). If no file is left, the transactions end, as the original's do.

use moafs_runtime::Time;
use moafs_vfs::Format;
use moafs_vfs::types::Ino;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::create::make_dirs;
use super::{Client, Sizes};
use crate::error::Result;

/// Value of a bias that stands for all transactions.
const BIAS_WHOLE: u32 = 10;

/// The length of an append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Append {
    /// A block of this many bytes (the paper: "append adds a block").
    Block(u64),
    /// A drawn length as in the original, so that the file stays within the largest size; nothing
    /// if it is that large.
    UpToMax,
}

/// Parameters, by the original's names where it has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Postmark {
    /// `set number`: files made in phase 1.
    pub files: u64,
    /// `set subdirectories`: directories that files are made in.
    pub directories: u64,
    /// `set size`: the distribution of files' sizes.
    pub sizes: Sizes,
    /// `set transactions`: number of transactions in phase 2.
    pub transactions: u64,
    /// `set bias read`: tenths of the transactions that read; the others append.
    pub bias_read: u32,
    /// `set bias create`: tenths of the transactions that create; the others delete.
    pub bias_create: u32,
    /// Length of an append.
    pub append: Append,
    /// `set seed`: seed of all random choices.
    pub seed: u64,
}

/// The work done, and the time it took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Nanoseconds of phase 1, to the last `write()`.
    pub create_ns: u64,
    /// Nanoseconds of phase 2, the final sync included.
    pub transactions_ns: u64,
    /// Transactions that were done.
    pub transactions: u64,
    /// Number of files read in phase 2.
    pub reads: u64,
    /// Number of appends in phase 2.
    pub appends: u64,
    /// Files made in phase 2.
    pub creates: u64,
    /// Number of files deleted.
    pub deletes: u64,
    /// Bytes that were read.
    pub read_bytes: u64,
    /// Bytes written in both phases.
    pub written_bytes: u64,
}

/// A file that exists.
#[derive(Debug, Clone, Copy)]
struct File {
    dir: usize,
    number: u64,
    bytes: u64,
}

impl File {
    fn name(self) -> String {
        self.number.to_string()
    }
}

struct Run<'a, F: Format> {
    spec: &'a Postmark,
    client: &'a Client<F>,
    dirs: Vec<Ino>,
    files: Vec<File>,
    next_number: u64,
    rng: Pcg64Mcg,
    tally: Tally,
}

impl Postmark {
    /// Name of the workload in messages.
    pub const NAME: &str = "postmark";

    /// Runs both phases.
    ///
    /// # Errors
    /// Fails if the volume is full: Postmark stops there.
    pub fn run(&self, client: &Client<impl Format>) -> Result<Tally> {
        client.finish(Self::NAME, self.both_phases(client))
    }

    fn both_phases(&self, client: &Client<impl Format>) -> Result<Tally> {
        let start = client.now();
        let mut run = Run {
            spec: self,
            client,
            dirs: make_dirs(client, self.directories)?,
            files: Vec::with_capacity(self.files as usize),
            next_number: 0,
            rng: Pcg64Mcg::seed_from_u64(self.seed),
            tally: Tally::default(),
        };
        run.create_all()?;
        let created = client.now();
        run.transact_all()?;
        client.sync()?;
        run.tally.create_ns = ns_between(start, created);
        run.tally.transactions_ns = ns_between(created, client.now());
        Ok(run.tally)
    }
}

impl<F: Format> Run<'_, F> {
    fn create_all(&mut self) -> Result<()> {
        for number in 0..self.spec.files {
            self.create((number * self.spec.directories / self.spec.files) as usize)?;
        }
        Ok(())
    }

    fn transact_all(&mut self) -> Result<()> {
        for _ in 0..self.spec.transactions {
            if self.files.is_empty() {
                break;
            }
            self.read_or_append()?;
            self.create_or_delete()?;
            self.tally.transactions += 1;
        }
        Ok(())
    }

    fn read_or_append(&mut self) -> Result<()> {
        let reads = self.rng.random_range(0..BIAS_WHOLE) < self.spec.bias_read;
        let at = self.rng.random_range(0..self.files.len());
        if reads { self.read(at) } else { self.append(at) }
    }

    fn create_or_delete(&mut self) -> Result<()> {
        if self.rng.random_range(0..BIAS_WHOLE) < self.spec.bias_create {
            let dir = self.rng.random_range(0..self.dirs.len());
            self.tally.creates += 1;
            return self.create(dir);
        }
        let at = self.rng.random_range(0..self.files.len());
        self.delete(at)
    }

    fn create(&mut self, dir: usize) -> Result<()> {
        let file = File { dir, number: self.next_number, bytes: self.spec.sizes.draw(&mut self.rng) };
        self.next_number += 1;
        self.client.make_file(self.dirs[dir], &file.name(), file.bytes)?;
        self.tally.written_bytes += file.bytes;
        self.files.push(file);
        Ok(())
    }

    fn read(&mut self, at: usize) -> Result<()> {
        let file = self.files[at];
        let ino = self.client.open(self.dirs[file.dir], &file.name())?;
        let read = self.client.read_all(ino);
        self.client.close(ino);
        self.tally.read_bytes += read?;
        self.tally.reads += 1;
        Ok(())
    }

    fn append(&mut self, at: usize) -> Result<()> {
        let file = self.files[at];
        let more = match self.spec.append {
            Append::Block(bytes) => bytes,
            Append::UpToMax => match self.spec.sizes.bytes_max().saturating_sub(file.bytes) {
                0 => 0,
                room => self.rng.random_range(1..=room),
            },
        };
        let ino = self.client.open(self.dirs[file.dir], &file.name())?;
        let written = self.client.write(ino, file.bytes, more);
        self.client.close(ino);
        written?;
        self.files[at].bytes += more;
        self.tally.written_bytes += more;
        self.tally.appends += 1;
        Ok(())
    }

    fn delete(&mut self, at: usize) -> Result<()> {
        let file = self.files.swap_remove(at);
        self.client.unlink(self.dirs[file.dir], &file.name())?;
        self.tally.deletes += 1;
        Ok(())
    }
}

fn ns_between(from: Time, to: Time) -> u64 {
    to.0.saturating_sub(from.0)
}
