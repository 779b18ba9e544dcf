//! Several writers at once, each making one file by synchronous records, as IOzone does with
//! threads.

use std::sync::Arc;

use moafs_vfs::Format;
use moafs_vfs::types::Ino;
use parking_lot::Mutex;

use super::Client;
use crate::error::{LabError, Result};

/// Bytes of a record.
pub const RECORD_BYTES: u64 = 32 << 10;

/// Several writers at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Records {
    /// Number of writers, each with a file of its own below the root.
    pub writers: u64,
    /// Bytes of each file: whole records.
    pub file_bytes: u64,
}

impl Records {
    /// Returns the name of a writer's file.
    pub fn name(writer: u64) -> String {
        format!("writer{writer}")
    }

    /// Makes the files; every record is synced before its writer goes on. Returns them in the order of the writers.
    ///
    /// # Errors
    /// Fails if the volume is full, and with the first error of a writer.
    pub fn run<F: Format>(&self, client: &Client<F>) -> Result<Vec<Ino>> {
        let files: Vec<Ino> =
            (0..self.writers).map(|writer| client.create(client.root(), &Self::name(writer))).collect::<Result<_>>()?;
        let failed: Arc<Mutex<Option<LabError>>> = Arc::default();
        let spec = *self;
        let tasks: Vec<_> = files
            .iter()
            .map(|&ino| {
                let (own, failed) = (client.another(), Arc::clone(&failed));
                let work = move || {
                    if let Err(error) = spec.write(&own, ino) {
                        failed.lock().get_or_insert(error);
                    }
                };
                client.spawn("writer", Box::new(work))
            })
            .collect();
        tasks.iter().for_each(|task| client.join(task));
        let outcome = failed.lock().take().map_or(Ok(files), Err);
        client.finish("the writers", outcome)
    }

    fn write<F: Format>(&self, client: &Client<F>, ino: Ino) -> Result<()> {
        for at in 0..self.file_bytes / RECORD_BYTES {
            client.write(ino, at * RECORD_BYTES, RECORD_BYTES)?;
            client.fsync(ino)?;
        }
        Ok(())
    }
}

/// Reads an open file from its start to its end by records. Returns the number of bytes read.
///
/// # Errors
/// Fails if an operation on the volume fails.
pub fn read_by_records(client: &Client<impl Format>, ino: Ino) -> Result<u64> {
    let mut offset = 0;
    loop {
        let got = client.read_at(ino, offset, RECORD_BYTES as usize)?;
        offset += got as u64;
        if got == 0 {
            return Ok(offset);
        }
    }
}
