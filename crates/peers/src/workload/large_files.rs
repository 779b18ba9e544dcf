//! Large files: appends to several in turn, and writes at random places of one.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use moafs_workload::Pattern;

use super::environment::{BLOCK_BYTES, Environment};
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
pub(super) fn append(env: &Environment<'_>) -> Result<u64> {
    let paths: Vec<PathBuf> = (0..APPENDED_FILES).map(|number| env.path(&format!("log-{number:02}"))).collect();
    let mut files: Vec<File> = paths.iter().map(|path| env.create_new(path)).collect::<Result<_>>()?;
    let pieces = env.count(APPENDED_PIECES);
    for piece in 0..pieces {
        env.interrupt.check()?;
        for (file, path) in files.iter_mut().zip(&paths) {
            let written = file.write_all(env.contents.of(piece, APPENDED_BYTES));
            written.map_err(PeersError::host("appending to", path))?;
        }
    }
    Ok(APPENDED_FILES as u64 * pieces * APPENDED_BYTES)
}

fn rewritten(env: &Environment<'_>) -> PathBuf {
    env.path("image")
}

/// Makes the file that is rewritten.
pub(super) fn prepare_rewrite(env: &Environment<'_>) -> Result<()> {
    let path = rewritten(env);
    let mut file = env.create_new(&path)?;
    (0..env.count(REWRITTEN_PIECES)).try_for_each(|piece| {
        env.interrupt.check()?;
        file.write_all(env.contents.of(piece, BYTES_MAX)).map_err(PeersError::host("writing", &path))
    })
}

/// Overwrites single blocks of the file, all equally likely, then syncs it once.
pub(super) fn rewrite(env: &Environment<'_>) -> Result<u64> {
    let path = rewritten(env);
    let file = OpenOptions::new().write(true).open(&path).map_err(PeersError::host("opening", &path))?;
    let blocks = (env.count(REWRITTEN_PIECES) * BYTES_MAX / BLOCK_BYTES) as usize;
    let mut drawing = Pattern::Uniform.drawing(blocks, env.seed_of(8));
    let mut written = BTreeSet::new();
    for number in 0..env.count(REWRITES) {
        env.interrupt.check()?;
        let block = drawing.next();
        let data = env.contents.of(number, BLOCK_BYTES);
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
        on_the_host(|env| {
            let appended = append(env).unwrap();
            assert_eq!(bytes_below(env.root), appended);
            prepare_rewrite(env).unwrap();
            assert!((1..=env.count(REWRITES) * BLOCK_BYTES).contains(&rewrite(env).unwrap()));
            assert_eq!(bytes_below(env.root), appended + env.count(REWRITTEN_PIECES) * BYTES_MAX);
        });
    }
}
