//! The environment of a workload, and the system calls that programs make there.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::thread;

use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;

use crate::contents::Contents;
use crate::error::{PeersError, Result};
use crate::machine::Interrupt;

/// The block of mke2fs, mkfs.xfs and mkfs.btrfs (its sector), and ours, by default.
pub(super) const BLOCK_BYTES: u64 = 4096;
/// Bytes that copying programs read at once.
pub(super) const COPY_BYTES: usize = 128 << 10;

/// The environment of a workload: its volume, its scale, its seed and its data.
#[derive(Clone, Copy)]
pub(crate) struct Environment<'a> {
    /// The directory of the workload: the root of the volume, or a client's own.
    pub(crate) root: &'a Path,
    /// Scale of the workload; 1 is full size.
    pub(crate) scale: f64,
    /// Seed of all random choices.
    pub(crate) seed: u64,
    /// Bytes that files are filled with.
    pub(crate) contents: &'a Contents,
    /// The request to stop.
    pub(crate) interrupt: &'a Interrupt,
}

impl Environment<'_> {
    /// Returns the path of a name in the workload's directory.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Returns a count at this scale, at least 1.
    pub(super) fn count(&self, full: u64) -> u64 {
        ((full as f64 * self.scale).round() as u64).max(1)
    }

    /// Returns a count of directories, at least 1. It goes with the square root of the scale, and
    /// so do the files in each.
    pub(super) fn directories(&self, full: u64) -> u64 {
        ((full as f64 * self.scale.sqrt()).round() as u64).max(1)
    }

    /// Returns the seed of one of the workload's choices.
    pub(super) fn seed_of(&self, choice: u64) -> u64 {
        self.seed ^ choice.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// Returns a generator for one of the workload's choices.
    pub(super) fn rng(&self, choice: u64) -> Pcg64Mcg {
        Pcg64Mcg::seed_from_u64(self.seed_of(choice))
    }

    /// Runs the same work as two clients at once, each in a directory and with choices of its own, and returns the sum
    /// of what they return.
    ///
    /// # Errors
    /// Fails as the first client that fails.
    pub(super) fn by_two(&self, work: impl Fn(&Environment<'_>) -> Result<u64> + Sync) -> Result<u64> {
        let roots = [self.path("client-0"), self.path("client-1")];
        roots.iter().try_for_each(|root| self.make_dir(root))?;
        let run = |client: usize| {
            let seed = self.seed.wrapping_add(client as u64);
            work(&Environment { root: &roots[client], seed, ..*self })
        };
        let done = thread::scope(|scope| {
            let second = scope.spawn(|| run(1));
            let first = run(0);
            [first, second.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))]
        });
        done.into_iter().sum()
    }

    pub(super) fn make_dir(&self, path: &Path) -> Result<()> {
        self.interrupt.check()?;
        fs::create_dir(path).map_err(PeersError::host("making", path))
    }

    /// Creates a file of `len` bytes.
    pub(super) fn write_new(&self, path: &Path, number: u64, len: u64) -> Result<File> {
        let mut file = self.create_new(path)?;
        file.write_all(self.contents.of(number, len)).map_err(PeersError::host("writing", path))?;
        Ok(file)
    }

    /// Creates an empty file.
    pub(super) fn create_new(&self, path: &Path) -> Result<File> {
        self.interrupt.check()?;
        let file = OpenOptions::new().write(true).create_new(true).open(path);
        file.map_err(PeersError::host("creating", path))
    }

    /// Writes behind the end of a file.
    pub(super) fn append(&self, path: &Path, number: u64, len: u64) -> Result<()> {
        self.interrupt.check()?;
        let file = OpenOptions::new().append(true).open(path);
        let mut file = file.map_err(PeersError::host("opening", path))?;
        file.write_all(self.contents.of(number, len)).map_err(PeersError::host("appending to", path))
    }

    /// Reads a file to its end and returns its length.
    pub(super) fn read(&self, path: &Path, buffer: &mut [u8]) -> Result<u64> {
        self.interrupt.check()?;
        let mut file = File::open(path).map_err(PeersError::host("opening", path))?;
        let mut total = 0;
        loop {
            match file.read(buffer).map_err(PeersError::host("reading", path))? {
                0 => return Ok(total),
                len => total += len as u64,
            }
        }
    }

    pub(super) fn remove(&self, path: &Path) -> Result<()> {
        self.interrupt.check()?;
        fs::remove_file(path).map_err(PeersError::host("removing", path))
    }

    /// Makes everything on the volume durable.
    pub(super) fn sync(&self) -> Result<()> {
        let dir = File::open(self.root).map_err(PeersError::host("opening", self.root))?;
        rustix::fs::syncfs(&dir).map_err(PeersError::host("syncing", self.root))
    }
}

/// Lists a directory in its own order: paths, and true for each that is a directory.
pub(super) fn list(directory: &Path) -> Result<Vec<(PathBuf, bool)>> {
    let entry = |entry: std::io::Result<fs::DirEntry>| {
        let entry = entry?;
        Ok((entry.path(), entry.file_type()?.is_dir()))
    };
    let listed = fs::read_dir(directory).and_then(|entries| entries.map(entry).collect::<std::io::Result<Vec<_>>>());
    listed.map_err(PeersError::host("listing", directory))
}

/// Returns the bytes that a file of `len` bytes makes the disk move: all these file systems store
/// whole blocks by default.
pub(super) fn whole_blocks(len: u64) -> u64 {
    len.next_multiple_of(BLOCK_BYTES)
}
