//! Files that come and go: Postmark, and the aging of a volume.

use std::path::PathBuf;

use moafs_workload::{Aging, AgingStep, Append, File, Postmark, Sizes, Step};

use super::place::{BLOCK_BYTES, COPY_BYTES, Place, list, whole_blocks};
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
    place: &'a Place<'a>,
    prefix: &'static str,
    buffer: Vec<u8>,
}

impl<'a> User<'a> {
    /// Makes the directories.
    fn new(place: &'a Place<'a>, prefix: &'static str, directories: u64) -> Result<User<'a>> {
        for directory in 0..directories {
            place.make_dir(&place.path(&format!("{prefix}-{directory:03}")))?;
        }
        Ok(User { place, prefix, buffer: vec![0; COPY_BYTES] })
    }

    fn path(&self, file: File) -> PathBuf {
        self.place.path(&format!("{}-{:03}/{:06}", self.prefix, file.dir, file.number))
    }

    fn carry_out(&mut self, step: Step) -> Result<()> {
        match step {
            Step::Create(file) => self.place.write_new(&self.path(file), file.number, file.bytes).map(drop),
            Step::Read(file) => self.place.read(&self.path(file), &mut self.buffer).map(drop),
            Step::Append { file, bytes } => self.place.append(&self.path(file), file.number, bytes),
            Step::Delete(file) => self.place.remove(&self.path(file)),
        }
    }
}

/// Runs Postmark with these sizes. Returns the bytes of the files that are left: what was read may have been cached,
/// and the files deleted may never have been written.
pub(super) fn postmark(place: &Place<'_>, sizes: Sizes) -> Result<u64> {
    let directories = place.directories(POSTMARK_DIRECTORIES);
    let postmark = Postmark {
        files: place.count(POSTMARK_FILES),
        directories,
        sizes,
        transactions: place.count(POSTMARK_TRANSACTIONS),
        bias_read: 5,
        bias_create: 5,
        append: Append::Block(BLOCK_BYTES),
        seed: place.seed_of(5),
    };
    let mut user = User::new(place, "postmark", directories)?;
    let mut run = postmark.start();
    run.fill().try_for_each(|step| user.carry_out(step))?;
    run.transactions().flatten().try_for_each(|step| user.carry_out(step))?;
    Ok(run.pool().files().iter().map(|file| whole_blocks(file.bytes)).sum())
}

/// Ages the volume, with syncs on the way.
pub(super) fn age(place: &Place<'_>) -> Result<()> {
    let directories = place.directories(AGED_DIRECTORIES);
    let aging = Aging {
        files: place.count(AGED_FILES),
        directories,
        sizes: AGED_SIZES,
        append_bytes: BLOCK_BYTES,
        turnover: AGED_TURNOVER,
        syncs: AGED_SYNCS,
        seed: place.seed_of(6),
    };
    let mut user = User::new(place, "aged", directories)?;
    aging.start().try_for_each(|step| match step {
        AgingStep::Step(step) => user.carry_out(step),
        AgingStep::Sync => place.sync(),
    })
}

/// Reads the aged files, directory by directory, in the order of names.
pub(super) fn read_aged(place: &Place<'_>) -> Result<u64> {
    let mut buffer = vec![0; COPY_BYTES];
    let mut bytes = 0;
    let mut directories = list(place.root)?;
    directories.retain(|(path, _)| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("aged-")));
    directories.sort();
    for (directory, _) in directories {
        let mut files = list(&directory)?;
        files.sort();
        for (path, _) in files {
            bytes += whole_blocks(place.read(&path, &mut buffer)?);
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
        on_the_host(|place| {
            let left = postmark(place, Sizes::FSL).unwrap();
            assert_eq!(bytes_below(place.root), left);
        });
    }

    #[test]
    fn the_same_seed_makes_the_same_files() {
        let mut bytes = Vec::new();
        for _ in 0..2 {
            on_the_host(|place| {
                age(place).unwrap();
                bytes.push(read_aged(place).unwrap());
            });
        }
        assert_eq!(bytes[0], bytes[1]);
    }
}
