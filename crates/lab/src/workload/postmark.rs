//! Postmark on a volume.
//!
//! Files are read and written with a buffer of 64 KB (the original's buffered mode used the C library's).

use moafs_runtime::Time;
use moafs_vfs::Format;
use moafs_vfs::types::Ino;
use moafs_workload::{File, Postmark, Step};

use super::Client;
use super::create::make_dirs;
use crate::error::Result;

/// Name of the workload in messages.
const NAME: &str = "postmark";

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

/// Runs both phases.
///
/// # Errors
/// Fails if the volume is full: Postmark stops there.
pub fn run(postmark: &Postmark, client: &Client<impl Format>) -> Result<Tally> {
    client.finish(NAME, both_phases(postmark, client))
}

fn both_phases(postmark: &Postmark, client: &Client<impl Format>) -> Result<Tally> {
    let start = client.now();
    let mut user = User { client, dirs: make_dirs(client, postmark.directories)?, tally: Tally::default() };
    let mut run = postmark.start();
    run.fill().try_for_each(|step| user.carry_out(step))?;
    let created = client.now();
    user.tally.creates = 0;
    for [first, second] in run.transactions() {
        user.carry_out(first)?;
        user.carry_out(second)?;
        user.tally.transactions += 1;
    }
    client.sync()?;
    user.tally.create_ns = ns_between(start, created);
    user.tally.transactions_ns = ns_between(created, client.now());
    Ok(user.tally)
}

/// A program that does what Postmark says.
struct User<'a, F: Format> {
    client: &'a Client<F>,
    dirs: Vec<Ino>,
    tally: Tally,
}

impl<F: Format> User<'_, F> {
    fn carry_out(&mut self, step: Step) -> Result<()> {
        match step {
            Step::Create(file) => self.create(file),
            Step::Read(file) => self.read(file),
            Step::Append { file, bytes } => self.append(file, bytes),
            Step::Delete(file) => self.delete(file),
        }
    }

    fn create(&mut self, file: File) -> Result<()> {
        self.tally.creates += 1;
        self.client.make_file(self.dirs[file.dir], &name(file), file.bytes)?;
        self.tally.written_bytes += file.bytes;
        Ok(())
    }

    fn read(&mut self, file: File) -> Result<()> {
        let ino = self.client.open(self.dirs[file.dir], &name(file))?;
        let read = self.client.read_all(ino);
        self.client.close(ino);
        self.tally.read_bytes += read?;
        self.tally.reads += 1;
        Ok(())
    }

    fn append(&mut self, file: File, bytes: u64) -> Result<()> {
        let ino = self.client.open(self.dirs[file.dir], &name(file))?;
        let written = self.client.write(ino, file.bytes, bytes);
        self.client.close(ino);
        written?;
        self.tally.written_bytes += bytes;
        self.tally.appends += 1;
        Ok(())
    }

    fn delete(&mut self, file: File) -> Result<()> {
        self.client.unlink(self.dirs[file.dir], &name(file))?;
        self.tally.deletes += 1;
        Ok(())
    }
}

fn name(file: File) -> String {
    file.number.to_string()
}

fn ns_between(from: Time, to: Time) -> u64 {
    to.0.saturating_sub(from.0)
}
