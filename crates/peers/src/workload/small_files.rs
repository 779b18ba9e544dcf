//! Many small files, by name.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use moafs_workload::Sizes;
use rand::RngExt;
use rand::seq::SliceRandom;

use super::environment::{COPY_BYTES, Environment, list, whole_blocks};
use crate::error::{PeersError, Result};

/// Directories and files.
const DIRECTORIES: u64 = 20;
const DIRECTORY_FILES: u64 = 500;
/// 87 % of R-FSL's files are at most this large.
const SIZES: Sizes = Sizes::RealUpTo { bytes_max: 16 << 10 };
/// Files of the workload that syncs each of them.
const FSYNC_FILES: u64 = 500;

/// Draws the files. Their numbers, directories and sizes are the same at each call.
fn files(env: &Environment<'_>) -> Vec<(PathBuf, u64)> {
    let mut rng = env.rng(1);
    let directories = env.directories(DIRECTORIES);
    let each = (env.count(DIRECTORIES * DIRECTORY_FILES) / directories).max(1);
    let of_directory = |directory| (0..each).map(move |number| format!("create-{directory:02}/file-{number:04}"));
    let names = (0..directories).flat_map(of_directory);
    names.map(|name| (env.path(&name), SIZES.draw(&mut rng))).collect()
}

fn in_random_order(env: &Environment<'_>) -> Vec<(usize, (PathBuf, u64))> {
    let mut files: Vec<_> = files(env).into_iter().enumerate().collect();
    files.shuffle(&mut env.rng(2));
    files
}

/// Makes the files, one directory after the other.
pub(super) fn create(env: &Environment<'_>) -> Result<u64> {
    let mut bytes = 0;
    let mut last = None;
    for (number, (path, len)) in files(env).into_iter().enumerate() {
        let directory = path.parent().map(Path::to_owned);
        if directory != last {
            directory.iter().try_for_each(|path| env.make_dir(path))?;
            last = directory;
        }
        env.write_new(&path, number as u64, len)?;
        bytes += whole_blocks(len);
    }
    Ok(bytes)
}

/// Makes the files, each in a directory drawn for it.
pub(super) fn create_at_random(env: &Environment<'_>) -> Result<u64> {
    let mut rng = env.rng(7);
    let directories = env.directories(DIRECTORIES);
    let directory = |number: u64| env.path(&format!("random-{number:02}"));
    (0..directories).try_for_each(|number| env.make_dir(&directory(number)))?;
    let mut bytes = 0;
    for number in 0..env.count(DIRECTORIES * DIRECTORY_FILES) {
        let path = directory(rng.random_range(0..directories)).join(format!("file-{number:05}"));
        let len = SIZES.draw(&mut rng);
        env.write_new(&path, number, len)?;
        bytes += whole_blocks(len);
    }
    Ok(bytes)
}

/// Writes the files anew, in random order; with `truncate` at each open.
pub(super) fn overwrite(env: &Environment<'_>, truncate: bool) -> Result<u64> {
    let mut bytes = 0;
    for (number, (path, len)) in in_random_order(env) {
        env.interrupt.check()?;
        let file = OpenOptions::new().write(true).truncate(truncate).open(&path);
        let mut file = file.map_err(PeersError::host("opening", &path))?;
        file.write_all(env.contents.of(number as u64 + 1, len)).map_err(PeersError::host("writing", &path))?;
        bytes += whole_blocks(len);
    }
    Ok(bytes)
}

/// Makes files in one directory, and syncs each.
pub(super) fn create_and_fsync(env: &Environment<'_>) -> Result<u64> {
    let mut rng = env.rng(3);
    let directory = env.path("fsync");
    env.make_dir(&directory)?;
    let mut bytes = 0;
    for number in 0..env.count(FSYNC_FILES) {
        let (path, len) = (directory.join(format!("message-{number:05}")), SIZES.draw(&mut rng));
        let file = env.write_new(&path, number, len)?;
        file.sync_all().map_err(PeersError::host("syncing", &path))?;
        bytes += whole_blocks(len);
    }
    Ok(bytes)
}

/// Removes the files, in the order of their names.
pub(super) fn remove(env: &Environment<'_>) -> Result<()> {
    files(env).iter().try_for_each(|(path, _)| env.remove(path))
}

/// Reads the files, in the order of their names.
pub(super) fn read(env: &Environment<'_>) -> Result<u64> {
    read_each(env, files(env).into_iter().map(|(path, _)| path))
}

/// Reads the files, in random order.
pub(super) fn read_at_random(env: &Environment<'_>) -> Result<u64> {
    read_each(env, in_random_order(env).into_iter().map(|(_, (path, _))| path))
}

fn read_each(env: &Environment<'_>, paths: impl Iterator<Item = PathBuf>) -> Result<u64> {
    let mut buffer = vec![0; COPY_BYTES];
    paths.map(|path| env.read(&path, &mut buffer).map(whole_blocks)).sum()
}

/// Asks for the attributes of everything below a directory, in the order in which directories list it.
pub(super) fn stat_all(env: &Environment<'_>, directory: &Path) -> Result<()> {
    for (path, is_dir) in list(directory)? {
        env.interrupt.check()?;
        fs::symlink_metadata(&path).map_err(PeersError::host("looking at", &path))?;
        if is_dir {
            stat_all(env, &path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::testing::{files_below, on_the_host};
    use super::*;

    #[test]
    fn overwriting_in_place_keeps_sizes() {
        on_the_host(|env| {
            create(env).unwrap();
            overwrite(env, false).unwrap();
            for (path, len) in files(env) {
                assert_eq!(fs::metadata(path).unwrap().len(), len);
            }
        });
    }

    #[test]
    fn all_files_are_read_in_either_order_and_removed() {
        on_the_host(|env| {
            let written = create(env).unwrap();
            assert_eq!((read(env).unwrap(), read_at_random(env).unwrap()), (written, written));
            remove(env).unwrap();
            assert_eq!(files_below(env.root), 0);
        });
    }
}
