//! Places for tests.

use std::fs;
use std::path::{Path, PathBuf};

use rand::SeedableRng;
use rand_pcg::Pcg64Mcg;

use super::environment::{Environment, list, whole_blocks};
use crate::contents::Contents;
use crate::machine::Interrupt;

/// Runs `what` on a small scale in a directory of the host.
pub(super) fn on_the_host(what: impl FnOnce(&Environment<'_>)) {
    let dir = tempfile::tempdir().unwrap();
    let contents = Contents::new(&mut Pcg64Mcg::seed_from_u64(7));
    let interrupt = Interrupt::default();
    what(&Environment { root: dir.path(), scale: 0.01, seed: 7, contents: &contents, interrupt: &interrupt });
}

fn paths_below(path: &Path) -> Vec<PathBuf> {
    let below = |(path, is_dir): (PathBuf, bool)| if is_dir { paths_below(&path) } else { vec![path] };
    list(path).unwrap().into_iter().flat_map(below).collect()
}

/// Counts the files below a directory.
pub(super) fn files_below(path: &Path) -> u64 {
    paths_below(path).len() as u64
}

/// Sums the bytes of the files below a directory, in whole blocks.
pub(super) fn bytes_below(path: &Path) -> u64 {
    paths_below(path).iter().map(|path| whole_blocks(fs::metadata(path).unwrap().len())).sum()
}
