//! Many small files, by name.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use moafs_workload::Sizes;
use rand::RngExt;
use rand::seq::SliceRandom;

use super::place::{COPY_BYTES, Place, list, whole_blocks};
use crate::error::{PeersError, Result};

/// Directories and files.
const DIRECTORIES: u64 = 20;
const DIRECTORY_FILES: u64 = 500;
/// 87 % of R-FSL's files are at most this large.
const SIZES: Sizes = Sizes::RealUpTo { bytes_max: 16 << 10 };
/// Files of the workload that syncs each of them.
const FSYNC_FILES: u64 = 500;

/// Draws the files. Their numbers, directories and sizes are the same at each call.
fn files(place: &Place<'_>) -> Vec<(PathBuf, u64)> {
    let mut rng = place.rng(1);
    let directories = place.directories(DIRECTORIES);
    let each = (place.count(DIRECTORIES * DIRECTORY_FILES) / directories).max(1);
    let of_directory = |directory| (0..each).map(move |number| format!("create-{directory:02}/file-{number:04}"));
    let names = (0..directories).flat_map(of_directory);
    names.map(|name| (place.path(&name), SIZES.draw(&mut rng))).collect()
}

fn in_random_order(place: &Place<'_>) -> Vec<(usize, (PathBuf, u64))> {
    let mut files: Vec<_> = files(place).into_iter().enumerate().collect();
    files.shuffle(&mut place.rng(2));
    files
}

/// Makes the files, one directory after the other.
pub(super) fn create(place: &Place<'_>) -> Result<u64> {
    let mut bytes = 0;
    let mut last = None;
    for (number, (path, len)) in files(place).into_iter().enumerate() {
        let directory = path.parent().map(Path::to_owned);
        if directory != last {
            directory.iter().try_for_each(|path| place.make_dir(path))?;
            last = directory;
        }
        place.write_new(&path, number as u64, len)?;
        bytes += whole_blocks(len);
    }
    Ok(bytes)
}

/// Makes the files, each in a directory drawn for it.
pub(super) fn create_at_random(place: &Place<'_>) -> Result<u64> {
    let mut rng = place.rng(7);
    let directories = place.directories(DIRECTORIES);
    let directory = |number: u64| place.path(&format!("random-{number:02}"));
    (0..directories).try_for_each(|number| place.make_dir(&directory(number)))?;
    let mut bytes = 0;
    for number in 0..place.count(DIRECTORIES * DIRECTORY_FILES) {
        let path = directory(rng.random_range(0..directories)).join(format!("file-{number:05}"));
        let len = SIZES.draw(&mut rng);
        place.write_new(&path, number, len)?;
        bytes += whole_blocks(len);
    }
    Ok(bytes)
}

/// Writes the files anew, in random order; with `truncate` at each open.
pub(super) fn overwrite(place: &Place<'_>, truncate: bool) -> Result<u64> {
    let mut bytes = 0;
    for (number, (path, len)) in in_random_order(place) {
        place.interrupt.check()?;
        let file = OpenOptions::new().write(true).truncate(truncate).open(&path);
        let mut file = file.map_err(PeersError::host("opening", &path))?;
        file.write_all(place.contents.of(number as u64 + 1, len)).map_err(PeersError::host("writing", &path))?;
        bytes += whole_blocks(len);
    }
    Ok(bytes)
}

/// Makes files in one directory, and syncs each.
pub(super) fn create_and_fsync(place: &Place<'_>) -> Result<u64> {
    let mut rng = place.rng(3);
    let directory = place.path("fsync");
    place.make_dir(&directory)?;
    let mut bytes = 0;
    for number in 0..place.count(FSYNC_FILES) {
        let (path, len) = (directory.join(format!("message-{number:05}")), SIZES.draw(&mut rng));
        let file = place.write_new(&path, number, len)?;
        file.sync_all().map_err(PeersError::host("syncing", &path))?;
        bytes += whole_blocks(len);
    }
    Ok(bytes)
}

/// Removes the files, in the order of their names.
pub(super) fn remove(place: &Place<'_>) -> Result<()> {
    files(place).iter().try_for_each(|(path, _)| place.remove(path))
}

/// Reads the files, in the order of their names.
pub(super) fn read(place: &Place<'_>) -> Result<u64> {
    read_each(place, files(place).into_iter().map(|(path, _)| path))
}

/// Reads the files, in random order.
pub(super) fn read_at_random(place: &Place<'_>) -> Result<u64> {
    read_each(place, in_random_order(place).into_iter().map(|(_, (path, _))| path))
}

fn read_each(place: &Place<'_>, paths: impl Iterator<Item = PathBuf>) -> Result<u64> {
    let mut buffer = vec![0; COPY_BYTES];
    paths.map(|path| place.read(&path, &mut buffer).map(whole_blocks)).sum()
}

/// Asks for the attributes of everything below a directory, in the order in which directories list it.
pub(super) fn stat_all(place: &Place<'_>, directory: &Path) -> Result<()> {
    for (path, is_dir) in list(directory)? {
        place.interrupt.check()?;
        fs::symlink_metadata(&path).map_err(PeersError::host("looking at", &path))?;
        if is_dir {
            stat_all(place, &path)?;
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
        on_the_host(|place| {
            create(place).unwrap();
            overwrite(place, false).unwrap();
            for (path, len) in files(place) {
                assert_eq!(fs::metadata(path).unwrap().len(), len);
            }
        });
    }

    #[test]
    fn all_files_are_read_in_either_order_and_removed() {
        on_the_host(|place| {
            let written = create(place).unwrap();
            assert_eq!((read(place).unwrap(), read_at_random(place).unwrap()), (written, written));
            remove(place).unwrap();
            assert_eq!(files_below(place.root), 0);
        });
    }
}
