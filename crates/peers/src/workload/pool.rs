//! Files that come and go: Postmark, and the aging of a volume.

use std::path::PathBuf;

use moafs_workload::{Aging, AgingStep, Append, File, Postmark, Sizes, Step};

use super::environment::{BLOCK_BYTES, COPY_BYTES, Environment, list, whole_blocks};
use crate::error::Result;

/// Directories, files and transactions of Postmark: the paper's.
const POSTMARK_DIRECTORIES: u64 = 200;
const POSTMARK_FILES: u64 = 25_000;
const POSTMARK_TRANSACTIONS: u64 = 50_000;
/// Aging. The small directories are what is read afterwards.
const AGED_DIRECTORIES: u64 = 50;
const AGED_FILES: u64 = 3_000;
const AGED_SIZES: Sizes = Sizes::RealUpTo { bytes_max: 256 << 10 };
const AGED_TURNOVER: u64 = 4;
const AGED_SYNCS: u64 = 100;

/// A program that works on files of a pool.
struct User<'a> {
    env: &'a Environment<'a>,
    prefix: &'static str,
    buffer: Vec<u8>,
}

impl<'a> User<'a> {
    /// Makes the directories.
    fn new(env: &'a Environment<'a>, prefix: &'static str, directories: u64) -> Result<User<'a>> {
        for directory in 0..directories {
            env.make_dir(&env.path(&format!("{prefix}-{directory:03}")))?;
        }
        Ok(User { env, prefix, buffer: vec![0; COPY_BYTES] })
    }

    fn path(&self, file: File) -> PathBuf {
        self.env.path(&format!("{}-{:03}/{:06}", self.prefix, file.dir, file.number))
    }

    fn carry_out(&mut self, step: Step) -> Result<()> {
        match step {
            Step::Create(file) => self.env.write_new(&self.path(file), file.number, file.bytes).map(drop),
            Step::Read(file) => self.env.read(&self.path(file), &mut self.buffer).map(drop),
            Step::Append { file, bytes } => self.env.append(&self.path(file), file.number, bytes),
            Step::Delete(file) => self.env.remove(&self.path(file)),
        }
    }
}

/// Runs Postmark with these sizes. Returns the bytes of the files that are left: what was read may have been cached,
/// and the files deleted may never have been written.
pub(super) fn postmark(env: &Environment<'_>, sizes: Sizes) -> Result<u64> {
    let directories = env.directories(POSTMARK_DIRECTORIES);
    let postmark = Postmark {
        files: env.count(POSTMARK_FILES),
        directories,
        sizes,
        transactions: env.count(POSTMARK_TRANSACTIONS),
        bias_read: 5,
        bias_create: 5,
        append: Append::Block(BLOCK_BYTES),
        seed: env.seed_of(5),
    };
    let mut user = User::new(env, "postmark", directories)?;
    let mut run = postmark.start();
    run.fill().try_for_each(|step| user.carry_out(step))?;
    run.transactions().flatten().try_for_each(|step| user.carry_out(step))?;
    Ok(run.pool().files().iter().map(|file| whole_blocks(file.bytes)).sum())
}

/// Ages the volume, with syncs on the way.
pub(super) fn age(env: &Environment<'_>) -> Result<()> {
    let directories = env.directories(AGED_DIRECTORIES);
    let aging = Aging {
        files: env.count(AGED_FILES),
        directories,
        sizes: AGED_SIZES,
        append_bytes: BLOCK_BYTES,
        turnover: AGED_TURNOVER,
        syncs: AGED_SYNCS,
        seed: env.seed_of(6),
    };
    let mut user = User::new(env, "aged", directories)?;
    aging.start().try_for_each(|step| match step {
        AgingStep::Step(step) => user.carry_out(step),
        AgingStep::Sync => env.sync(),
    })
}

/// Reads the aged files, directory by directory, in the order of names.
pub(super) fn read_aged(env: &Environment<'_>) -> Result<u64> {
    let mut buffer = vec![0; COPY_BYTES];
    let mut bytes = 0;
    let mut directories = list(env.root)?;
    directories.retain(|(path, _)| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("aged-")));
    directories.sort();
    for (directory, _) in directories {
        let mut files = list(&directory)?;
        files.sort();
        for (path, _) in files {
            bytes += whole_blocks(env.read(&path, &mut buffer)?);
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{bytes_below, on_the_host};
    use super::*;

    #[test]
    fn what_postmark_leaves_is_what_it_says() {
        on_the_host(|env| {
            let left = postmark(env, Sizes::FSL).unwrap();
            assert_eq!(bytes_below(env.root), left);
        });
    }

    #[test]
    fn the_same_seed_makes_the_same_files() {
        let mut bytes = Vec::new();
        for _ in 0..2 {
            on_the_host(|env| {
                age(env).unwrap();
                bytes.push(read_aged(env).unwrap());
            });
        }
        assert_eq!(bytes[0], bytes[1]);
    }
}
