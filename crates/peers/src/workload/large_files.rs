//! Large files: appends to several in turn, and writes at random places of one.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use moafs_workload::Pattern;

use super::place::{BLOCK_BYTES, Place};
use crate::contents::BYTES_MAX;
use crate::error::{PeersError, Result};

/// Files that grow at the same time, and the pieces by which each does.
const APPENDED_FILES: usize = 20;
const APPENDED_PIECES: u64 = 250;
const APPENDED_BYTES: u64 = 64 << 10;
/// The file that is written at random places, in pieces of the size at which it is made, and the writes.
const REWRITTEN_PIECES: u64 = 64;
const REWRITES: u64 = 4096;

/// Makes the files and lets them grow in turn.
pub(super) fn append(place: &Place<'_>) -> Result<u64> {
    let paths: Vec<PathBuf> = (0..APPENDED_FILES).map(|number| place.path(&format!("log-{number:02}"))).collect();
    let mut files: Vec<File> = paths.iter().map(|path| place.create_new(path)).collect::<Result<_>>()?;
    let pieces = place.count(APPENDED_PIECES);
    for piece in 0..pieces {
        place.interrupt.check()?;
        for (file, path) in files.iter_mut().zip(&paths) {
            let written = file.write_all(place.contents.of(piece, APPENDED_BYTES));
            written.map_err(PeersError::host("appending to", path))?;
        }
    }
    Ok(APPENDED_FILES as u64 * pieces * APPENDED_BYTES)
}

fn rewritten(place: &Place<'_>) -> PathBuf {
    place.path("image")
}

/// Makes the file that is rewritten.
pub(super) fn prepare_rewrite(place: &Place<'_>) -> Result<()> {
    let path = rewritten(place);
    let mut file = place.create_new(&path)?;
    (0..place.count(REWRITTEN_PIECES)).try_for_each(|piece| {
        place.interrupt.check()?;
        file.write_all(place.contents.of(piece, BYTES_MAX)).map_err(PeersError::host("writing", &path))
    })
}

/// Overwrites single blocks of the file, all equally likely, then syncs it once.
pub(super) fn rewrite(place: &Place<'_>) -> Result<u64> {
    let path = rewritten(place);
    let file = OpenOptions::new().write(true).open(&path).map_err(PeersError::host("opening", &path))?;
    let blocks = (place.count(REWRITTEN_PIECES) * BYTES_MAX / BLOCK_BYTES) as usize;
    let mut drawing = Pattern::Uniform.drawing(blocks, place.seed_of(8));
    let mut written = BTreeSet::new();
    for number in 0..place.count(REWRITES) {
        place.interrupt.check()?;
        let block = drawing.next();
        let data = place.contents.of(number, BLOCK_BYTES);
        file.write_all_at(data, block as u64 * BLOCK_BYTES).map_err(PeersError::host("writing", &path))?;
        written.insert(block);
    }
    file.sync_all().map_err(PeersError::host("syncing", &path))?;
    Ok(written.len() as u64 * BLOCK_BYTES)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{bytes_below, on_the_host};
    use super::*;

    #[test]
    fn files_grow_by_what_is_appended_and_a_rewritten_one_keeps_its_size() {
        on_the_host(|place| {
            let appended = append(place).unwrap();
            assert_eq!(bytes_below(place.root), appended);
            prepare_rewrite(place).unwrap();
            assert!((1..=place.count(REWRITES) * BLOCK_BYTES).contains(&rewrite(place).unwrap()));
            assert_eq!(bytes_below(place.root), appended + place.count(REWRITTEN_PIECES) * BYTES_MAX);
        });
    }
}
