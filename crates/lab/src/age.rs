//! Aging: making a volume as old as wanted. Deterministic: the same aging gives the same bytes.
//!
//! After Smith and Seltzer (1997), who replayed ten months of a file server's operations until the layout score stayed
//! at 0.8. We have no trace, so we make and delete files of a file server's sizes in many directories:
//!
//! 1. fill the volume to [`FULL_PERCENT`] of its blocks, each file in a directory drawn at random;
//! 2. in rounds, delete files drawn at random down to [`LOW_PERCENT`] and fill up again, until the
//!    layout score has come down to what is wanted;
//! 3. delete files drawn at random down to the wanted utilization; while the score is off, of
//!    several drawn the one whose going brings it nearest to what is wanted. At 0 % everything
//!    goes, directories too: such a disk has no layout score, but its tables were used.
//!
//! Everything is placed by `ffs`, which spreads the directories over the groups as that aging wants
//! it, and all systems start from one image. No time passes: the disk is memory without file data
//! ([`Contentless`]).

use std::collections::BTreeMap;
use std::sync::Arc;

use moafs_disk::{MemDisk, SharedDisk};
use moafs_ext::Ext;
use moafs_vfs::Options;
use moafs_vfs::layout::Score;
use moafs_vfs::types::Ino;
use moafs_workload::Sizes;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use crate::contentless::Contentless;
use crate::error::{LabError, Result};
use crate::layout::VolumeLayout;
use crate::machine::without_time;
use crate::system::System;
use crate::volume::VolumeShape;
use crate::workload::Client;

/// Utilization to which the volume is filled again and again, in percent.
pub const FULL_PERCENT: u64 = 98;
/// Utilization to which it falls in between.
pub const LOW_PERCENT: u64 = 84;
/// Most rounds of deleting and filling. A score that is not reached by then will not be reached.
const ROUNDS_MAX: u32 = 200;
/// Directories made in each block group.
const DIRECTORIES_PER_GROUP: u64 = 10;
/// Memory for the cache while aging, in bytes: large enough for all metadata.
const CACHE_BYTES: usize = 128 << 20;
/// Share of it that may be dirty, in percent: little, so that a file is placed soon after it was made.
const DIRTY_PERCENT: u8 = 5;
/// Largest request while aging, in bytes: the paper's.
const TRANSFER_BYTES: usize = 128 << 10;
/// Largest difference between the score reached and the score wanted.
pub const SCORE_TOLERANCE: f64 = 0.02;
/// Deleting steers towards the wanted score when it is this far away. Always steering would leave few, large files.
const SCORE_STEER: f64 = 0.004;
/// Files drawn while steering, of which the one goes that brings the score nearest.
const STEER_CANDIDATES: usize = 8;
/// Files deleted between two looks at how full the volume is.
const DELETE_BATCH: usize = 64;

/// The wanted age of a volume.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Aging {
    /// Shape of the volume.
    pub shape: VolumeShape,
    /// Share of its usable blocks that are in use at the end, in percent: 0 to 90.
    pub utilization: u8,
    /// Layout score of its files: above 0, at most 1.
    pub score: f64,
    /// Seed of all random choices.
    pub seed: u64,
}

/// An aged volume, and numbers about it.
pub struct Aged {
    /// The volume's metadata. File data read as zeros.
    pub image: MemDisk,
    /// Share of blocks in use, in percent.
    pub utilization: f64,
    /// Layout score; `None` without files of two blocks.
    pub score: Option<f64>,
    /// Number of files on the volume.
    pub files: u64,
}

/// A volume that has been filled and churned until its score is as wanted. Volumes of different
/// utilizations are cut from it.
pub struct FragmentedVolume {
    image: MemDisk,
    directories: u64,
    files: Vec<File>,
    /// Rounds of deleting and filling that were needed.
    pub rounds: u32,
}

/// A file that exists.
#[derive(Debug, Clone, Copy)]
struct File {
    dir: u64,
    number: u64,
    ino: Ino,
}

impl File {
    fn name(self) -> String {
        format!("a{}", self.number)
    }
}

impl Aging {
    /// Checks the wanted utilization and score.
    ///
    /// # Errors
    /// [`LabError::Value`] if a value is out of its range.
    pub fn check(&self) -> Result<()> {
        if u64::from(self.utilization) > 90 {
            return Err(value("utilization", self.utilization, format!("0 to {} percent", 90)));
        }
        if !(self.score > 0.0 && self.score <= 1.0) {
            return Err(value("score", self.score, "above 0, at most 1 (1: not aged)"));
        }
        Ok(())
    }

    /// Ages a volume.
    ///
    /// # Errors
    /// Fails if the wanted utilization or score is out of its range, or is not reached.
    pub fn run(&self) -> Result<Aged> {
        self.check()?;
        self.worn()?.cut(self)
    }

    /// Fills and churns a volume until its score is as wanted.
    ///
    /// # Errors
    /// Fails if the score is not reached.
    pub fn worn(&self) -> Result<FragmentedVolume> {
        let disk = Arc::new(Contentless::new(self.shape.make()?));
        let directories = u64::from(self.shape.groups) * DIRECTORIES_PER_GROUP;
        let (files, rounds) = on_volume(&disk, |client| {
            let mut ager = Ager::new(client, self.seed, Vec::new());
            ager.make_dirs(directories)?;
            let rounds = ager.wear(self.score)?;
            Ok((ager.files, rounds))
        })?;
        Ok(FragmentedVolume { image: disk.snapshot(), directories, files, rounds })
    }
}

impl FragmentedVolume {
    /// Deletes files down to a utilization.
    ///
    /// # Errors
    /// Fails if the score cannot be kept.
    pub fn cut(&self, aging: &Aging) -> Result<Aged> {
        let disk = Arc::new(Contentless::new(self.image.snapshot()));
        let (score, utilization, files) = on_volume(&disk, |client| {
            let mut ager = Ager::new(client, aging.seed.wrapping_add(1), self.files.clone());
            ager.open_dirs(self.directories)?;
            match aging.utilization {
                0 => ager.delete_everything()?,
                percent => ager.delete_to(u64::from(percent), aging.score)?,
            }
            client.sync()?;
            let score = VolumeLayout::of(client.vfs())?.score().value();
            Ok((score, ager.utilization(), ager.files.len() as u64))
        })?;
        if let Some(score) = score.filter(|score| (score - aging.score).abs() > SCORE_TOLERANCE) {
            let utilization = aging.utilization;
            let wanted = aging.score;
            let text = format!("at {utilization} % a layout score of {wanted} is not reached: it is {score:.3}");
            return Err(LabError::Aging(text));
        }
        Ok(Aged { image: disk.snapshot(), utilization, score, files })
    }
}

/// Runs `work` on a volume that is mounted for it, without time, and closes it cleanly.
fn on_volume<T>(disk: &Arc<Contentless>, work: impl FnOnce(&Client<Ext>) -> Result<T>) -> Result<T> {
    let options = Options {
        cache_bytes: CACHE_BYTES,
        dirty_percent: DIRTY_PERCENT,
        transfer_bytes_max: TRANSFER_BYTES,
        ..Options::default()
    };
    without_time(Arc::clone(disk) as SharedDisk, &System::FFS, options, work)
}

struct Ager<'a> {
    client: &'a Client<Ext>,
    rng: Pcg64Mcg,
    dirs: Vec<Ino>,
    files: Vec<File>,
    next_number: u64,
}

impl<'a> Ager<'a> {
    fn new(client: &'a Client<Ext>, seed: u64, files: Vec<File>) -> Ager<'a> {
        Ager { client, rng: Pcg64Mcg::seed_from_u64(seed), dirs: Vec::new(), files, next_number: 0 }
    }

    fn dir_name(number: u64) -> String {
        format!("age{number:04}")
    }

    fn make_dirs(&mut self, count: u64) -> Result<()> {
        for number in 0..count {
            self.dirs.push(self.client.make_dir(self.client.root(), &Self::dir_name(number))?);
        }
        Ok(())
    }

    fn open_dirs(&mut self, count: u64) -> Result<()> {
        for number in 0..count {
            self.dirs.push(self.client.open(self.client.root(), &Self::dir_name(number))?);
        }
        Ok(())
    }

    fn used_blocks(&self) -> (u64, u64) {
        let space = self.client.vfs().stat_fs();
        (space.blocks - space.free, space.blocks)
    }

    /// Returns the usable blocks in use, in percent.
    fn utilization(&self) -> f64 {
        let (used, all) = self.used_blocks();
        used as f64 * 100.0 / all as f64
    }

    fn is_above(&self, percent: u64) -> bool {
        let (used, all) = self.used_blocks();
        used * 100 > all * percent
    }

    /// Churns until the score is at most `wanted`. Returns the rounds it took.
    fn wear(&mut self, wanted: f64) -> Result<u32> {
        self.fill()?;
        for round in 0..ROUNDS_MAX {
            self.client.sync()?;
            let score = VolumeLayout::of(self.client.vfs())?.score().value();
            if score.is_none_or(|score| score <= wanted) {
                return Ok(round);
            }
            while self.is_above(LOW_PERCENT) {
                (0..DELETE_BATCH).try_for_each(|_| self.delete_any())?;
                self.reap();
            }
            self.client.sync()?;
            self.fill()?;
        }
        let text =
            format!("a layout score of {wanted} is not reached in {ROUNDS_MAX} rounds: a small volume of small blocks");
        Err(LabError::Aging(format!("{text} does not get so scattered (make it larger, or ask for a higher score)")))
    }

    fn fill(&mut self) -> Result<()> {
        while !self.is_above(FULL_PERCENT) {
            let dir = self.rng.random_range(0..self.dirs.len() as u64);
            let file = File { dir, number: self.next_number, ino: self.client.root() };
            self.next_number += 1;
            let bytes = Sizes::R_FSL.draw(&mut self.rng);
            let ino = self.client.make_file(self.dirs[dir as usize], &file.name(), bytes)?;
            self.files.push(File { ino, ..file });
        }
        Ok(())
    }

    fn delete_any(&mut self) -> Result<()> {
        let at = self.rng.random_range(0..self.files.len());
        self.delete(at)
    }

    fn delete(&mut self, at: usize) -> Result<()> {
        let file = self.files.swap_remove(at);
        self.client.unlink(self.dirs[file.dir as usize], &file.name())
    }

    /// Deletes files until the volume is at most `percent` full, steering the score towards `wanted`.
    fn delete_to(&mut self, percent: u64, wanted: f64) -> Result<()> {
        let layout = VolumeLayout::of(self.client.vfs())?;
        let scores: BTreeMap<Ino, Score> =
            layout.files.iter().map(|(ino, file)| (*ino, Score::of(&file.runs))).collect();
        let mut all = layout.score();
        let off = |score: Score| score.value().map_or(0.0, |score| (score - wanted).abs());
        while self.is_above(percent) && self.files.len() > DELETE_BATCH {
            for _ in 0..DELETE_BATCH {
                let rest = |at: usize| without(all, scores.get(&self.files[at].ino).copied().unwrap_or_default());
                let candidates = if off(all) > SCORE_STEER { STEER_CANDIDATES } else { 1 };
                let drawn: Vec<usize> = (0..candidates).map(|_| self.rng.random_range(0..self.files.len())).collect();
                let nearest = |one: &usize, two: &usize| off(rest(*one)).total_cmp(&off(rest(*two)));
                let gone = drawn.into_iter().min_by(nearest).unwrap_or(0);
                all = rest(gone);
                self.delete(gone)?;
            }
            self.reap();
        }
        Ok(())
    }

    /// Runs a background step, which frees the blocks of unlinked files.
    fn reap(&self) {
        self.client.vfs().run_background_step();
    }

    fn delete_everything(&mut self) -> Result<()> {
        while let Some(last) = self.files.len().checked_sub(1) {
            self.delete(last)?;
            if last.is_multiple_of(DELETE_BATCH) {
                self.reap();
            }
        }
        for number in 0..self.dirs.len() as u64 {
            self.client.close(self.dirs[number as usize]);
            self.client.remove_dir(self.client.root(), &Self::dir_name(number))?;
        }
        self.reap();
        Ok(())
    }
}

fn without(all: Score, one: Score) -> Score {
    Score { successors: all.successors - one.successors, adjacent: all.adjacent - one.adjacent }
}

fn value(name: &str, value: impl ToString, rule: impl Into<String>) -> LabError {
    LabError::Value { name: name.to_owned(), value: value.to_string(), rule: rule.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small(utilization: u8) -> Aging {
        let shape = VolumeShape { groups: 2, blocks_per_group: 8192, block_bytes: 4096 };
        // So few blocks do not get more scattered: nearly every file finds free blocks in one run.
        Aging { shape, utilization, score: 0.9, seed: 3 }
    }

    #[test]
    fn aging_reaches_what_was_asked_for() {
        // Large enough that a tenth of it holds many files of many blocks.
        let of = |utilization| Aging { shape: VolumeShape::paper(0.12), score: 0.8, ..small(utilization) };
        let worn = of(0).worn().unwrap();
        for utilization in [10, 30, 50, 70, 90] {
            let aged = worn.cut(&of(utilization)).unwrap();
            assert!((aged.utilization - f64::from(utilization)).abs() < 2.5, "{} of {utilization}", aged.utilization);
            assert!((aged.score.unwrap() - 0.8).abs() <= SCORE_TOLERANCE, "{:?} at {utilization}", aged.score);
        }
    }

    #[test]
    fn at_zero_nothing_is_left() {
        let aged = small(0).run().unwrap();
        assert_eq!((aged.files, aged.score), (0, None));
        assert!(aged.utilization < 0.5, "{}", aged.utilization);
    }

    #[test]
    fn the_same_aging_gives_the_same_bytes() {
        let (one, two) = (small(50).run().unwrap(), small(50).run().unwrap());
        assert!(one.image.to_bytes() == two.image.to_bytes());
        let other = Aging { seed: 4, ..small(50) }.run().unwrap();
        assert!(one.image.to_bytes() != other.image.to_bytes());
    }

    #[test]
    fn an_aged_image_is_sound() {
        for utilization in [0, 50, 90] {
            let file = tempfile::NamedTempFile::new().unwrap();
            small(utilization).run().unwrap().image.write_to(file.path()).unwrap();
            let checked = std::process::Command::new("e2fsck").arg("-fn").arg(file.path()).output();
            let Ok(checked) = checked else {
                eprintln!("SKIPPED: e2fsck is not installed");
                return;
            };
            let text = String::from_utf8_lossy(&checked.stdout);
            assert!(checked.status.success(), "{utilization} %: {text}");
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for (utilization, score) in [(95, 0.8), (30, 0.0), (30, 1.1), (30, f64::NAN)] {
            assert!(Aging { score, ..small(utilization) }.run().is_err(), "{utilization} {score}");
        }
    }
}
