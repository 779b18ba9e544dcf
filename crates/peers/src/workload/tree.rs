//! A tree as sources have it: directories below directories, files in all of them.

use std::fs::{self, File, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use moafs_workload::Sizes;
use rand::RngExt;

use super::environment::{COPY_BYTES, Environment, list, whole_blocks};
use crate::error::{PeersError, Result};

/// Directories and files.
const DIRECTORIES: u64 = 60;
const FILES: u64 = 3_000;
/// The modification time of the files that tar unpacks.
const TAR_TIME: Duration = Duration::from_secs(1_500_000_000);

/// Returns the tree's own directory.
pub(super) fn root(env: &Environment<'_>) -> PathBuf {
    env.path("tree")
}

/// Unpacks the tree in the order in which an archive lists it.
pub(super) fn untar(env: &Environment<'_>) -> Result<u64> {
    let mut rng = env.rng(4);
    let directories = env.directories(DIRECTORIES);
    let files = env.count(FILES);
    let mut paths: Vec<PathBuf> = vec![root(env)];
    for number in 1..directories {
        let parent = rng.random_range(0..paths.len());
        let path = paths[parent].join(format!("dir-{number:03}"));
        paths.push(path);
    }
    paths.sort();
    let (mut bytes, mut number) = (0, 0);
    for (at, directory) in (1..).zip(&paths) {
        env.make_dir(directory)?;
        while number < files * at / directories {
            let (path, len) = (directory.join(format!("file-{number:05}.c")), Sizes::R_FSL.draw(&mut rng));
            let file = env.write_new(&path, number, len)?;
            let failed = PeersError::host("setting mode and time of", &path);
            let time = SystemTime::UNIX_EPOCH + TAR_TIME;
            let set = file.set_permissions(Permissions::from_mode(0o644)).and_then(|()| file.set_modified(time));
            set.map_err(failed)?;
            (bytes, number) = (bytes + whole_blocks(len), number + 1);
        }
    }
    Ok(bytes)
}

/// Copies a tree, in the order in which directories list it.
pub(super) fn copy(env: &Environment<'_>, from: &Path, to: &Path) -> Result<u64> {
    env.make_dir(to)?;
    let mut bytes = 0;
    for (path, is_dir) in list(from)? {
        let target = to.join(path.file_name().unwrap_or_default());
        bytes += if is_dir { copy(env, &path, &target)? } else { copy_file(env, &path, &target)? };
    }
    Ok(bytes)
}

/// Copies a file with read and write: a clone would move no data.
fn copy_file(env: &Environment<'_>, from: &Path, to: &Path) -> Result<u64> {
    let mut source = File::open(from).map_err(PeersError::host("opening", from))?;
    let mut target = env.create_new(to)?;
    let mut buffer = vec![0; COPY_BYTES];
    let mut bytes = 0;
    loop {
        let len = source.read(&mut buffer).map_err(PeersError::host("reading", from))?;
        if len == 0 {
            // Each block is read once and written once.
            return Ok(2 * whole_blocks(bytes));
        }
        target.write_all(&buffer[..len]).map_err(PeersError::host("writing", to))?;
        bytes += len as u64;
    }
}

/// Removes a tree, in the order in which directories list it.
pub(super) fn delete(env: &Environment<'_>, directory: &Path) -> Result<()> {
    for (path, is_dir) in list(directory)? {
        if is_dir { delete(env, &path)? } else { env.remove(&path)? }
    }
    fs::remove_dir(directory).map_err(PeersError::host("removing", directory))
}

/// Reads a tree, in the order in which directories list it.
pub(super) fn read(env: &Environment<'_>, directory: &Path, buffer: &mut [u8]) -> Result<u64> {
    let mut bytes = 0;
    for (path, is_dir) in list(directory)? {
        bytes += if is_dir { read(env, &path, buffer)? } else { whole_blocks(env.read(&path, buffer)?) };
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{files_below, on_the_host};
    use super::*;

    #[test]
    fn a_copy_is_the_tree_and_a_deletion_leaves_nothing() {
        on_the_host(|env| {
            let written = untar(env).unwrap();
            assert_eq!(read(env, &root(env), &mut vec![0; COPY_BYTES]).unwrap(), written);
            assert_eq!(copy(env, &root(env), &env.path("copy")).unwrap(), 2 * written);
            assert_eq!(files_below(&env.path("copy")), 30);
            delete(env, &root(env)).unwrap();
            assert_eq!((files_below(env.root), root(env).exists()), (30, false));
        });
    }
}
