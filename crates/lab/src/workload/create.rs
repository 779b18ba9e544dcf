//! Making many files of one size: directory by directory, or each in a random directory.

use moafs_vfs::Format;
use moafs_vfs::types::Ino;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use super::Client;
use crate::error::Result;

/// The order in which files are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// One directory after the other.
    Sequential,
    /// A directory drawn for each file, all equally likely.
    Random {
        /// Seed of the choice of directories.
        seed: u64,
    },
}

/// Many files of one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Create {
    /// Directories, made below the root before the clock starts.
    pub directories: u64,
    /// Number of files in all.
    pub files: u64,
    /// Size of each file in bytes.
    pub file_bytes: u64,
    /// Order in which the files are made.
    pub order: Order,
}

impl Create {
    /// Name of the workload in messages.
    pub const NAME: &str = "the create workload";

    /// Makes the directories, and lets them reach the device.
    ///
    /// # Errors
    /// Fails if the volume is full.
    pub fn prepare(&self, client: &Client<impl Format>) -> Result<Vec<Ino>> {
        let made = make_dirs(client, self.directories).and_then(|dirs| client.sync().map(|()| dirs));
        client.finish(Self::NAME, made)
    }

    /// Makes and writes the files, then waits until everything is on the device: that belongs to the time.
    ///
    /// # Errors
    /// Fails if the volume is full.
    pub fn run(&self, client: &Client<impl Format>, dirs: &[Ino]) -> Result<()> {
        client.finish(Self::NAME, self.make(client, dirs).and_then(|()| client.sync()))
    }

    fn make(&self, client: &Client<impl Format>, dirs: &[Ino]) -> Result<()> {
        let mut rng = match self.order {
            Order::Sequential => None,
            Order::Random { seed } => Some(Pcg64Mcg::seed_from_u64(seed)),
        };
        for number in 0..self.files {
            let at = match &mut rng {
                None => number * dirs.len() as u64 / self.files,
                Some(rng) => rng.random_range(0..dirs.len() as u64),
            };
            client.make_file(dirs[at as usize], &format!("f{number:06}"), self.file_bytes)?;
        }
        Ok(())
    }
}

/// Makes `count` directories below the root, where the policy spreads them.
pub(crate) fn make_dirs(client: &Client<impl Format>, count: u64) -> Result<Vec<Ino>> {
    (0..count).map(|number| client.make_dir(client.root(), &format!("d{number:04}"))).collect()
}
