//! Reading every file of every directory, in the order in which the directories list them.

use moafs_vfs::Format;

use super::Client;
use crate::error::Result;

/// The counts of files and bytes that were read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReadAll {
    /// Number of files that were read.
    pub files: u64,
    /// Number of bytes that were read.
    pub bytes: u64,
}

impl ReadAll {
    /// Reads the directories with these names, one after the other. Nothing of them should be in the cache.
    ///
    /// # Errors
    /// Fails if an operation on the volume fails.
    pub fn run(client: &Client<impl Format>, names: &[String]) -> Result<ReadAll> {
        let mut read = ReadAll::default();
        for name in names {
            let dir = client.open(client.root(), name)?;
            for file in client.list(dir)? {
                let ino = client.open(dir, &file)?;
                let bytes = client.read_all(ino);
                client.close(ino);
                read.bytes += bytes?;
                read.files += 1;
            }
            client.close(dir);
        }
        Ok(read)
    }
}
