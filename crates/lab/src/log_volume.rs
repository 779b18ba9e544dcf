//! F2FS volumes under test: their shape, filling them, and aging them until no clean segment is left.
//!
//! 1. Fill with files of 32 KiB, 512 in a directory, until the wanted share of *all* blocks of the main area is valid.
//! 2. Overwrite whole files, drawn as the test that follows will draw them, by appending only,
//!    until the next write would have to clean. What is held back for cleaning is free at that
//!    moment, nothing else. A volume that is nearly empty and overwritten evenly never gets there:
//!    by the time the log comes round, its oldest segments hold nothing valid any more. After
//!    [`PASSES_MAX`] times round it is as worn as it will ever be.
//!
//! All systems start from this image. No time passes: the disk is memory without file data ([`Contentless`]).

use std::sync::Arc;

use moafs_disk::{MemDisk, SECTOR, SharedDisk};
use moafs_f2fs::format::BLOCK;
use moafs_f2fs::mkfs::{MkfsOptions, MkfsReport, mkfs};
use moafs_f2fs::place::{DeviceCost, Recycling};
use moafs_f2fs::{F2fs, OpenOptions};
use moafs_runtime::Timestamp;
use moafs_vfs::Options;
use moafs_vfs::types::Ino;
use moafs_workload::Pattern;

use crate::contentless::Contentless;
use crate::error::{LabError, Result};
use crate::log_system::LogMount;
use crate::machine::without_time;
use crate::workload::Client;
use crate::workload::overwrite::FILE_BYTES;

/// Size of the paper's partition in bytes.
const PARTITION_BYTES: f64 = (4_u64 << 30) as f64;
/// The paper's segment is 4 MB: a section of two.
const SEGMENTS_PER_SECTION: u32 = 2;
/// Below this scale sections have one segment, or there would be too few of them.
const SCALE_OF_FULL_SECTIONS: f64 = 0.5;
/// Bytes of a segment.
const SEGMENT_BYTES: u64 = 2 << 20;
/// Segments of the smallest volume: the segments that the engine holds back for itself must be a
/// small part of it.
const SEGMENTS_MIN: u64 = 64;
/// Files in a directory.
pub(crate) const FILES_PER_DIRECTORY: u64 = 512;
/// Memory while aging, in bytes.
const CACHE_BYTES: usize = 2 << 30;
/// Times that the log goes round at most while aging.
const PASSES_MAX: u64 = 4;
/// Writes between two looks at how many segments are clean.
const STEP: u64 = 64;
/// The time of making: volumes with equal parameters are equal.
const MADE_AT: Timestamp = Timestamp { secs: 1_000_000_000, nanos: 0 };

/// The shape of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogShape {
    /// Size of the partition in bytes.
    pub bytes: u64,
    /// Segments in a section: what cleaning frees at once.
    pub segments_per_section: u32,
}

impl LogShape {
    /// Returns the paper's shape: 4 GiB with sections of 4 MiB; at another scale, so much less.
    pub fn paper(scale: f64) -> LogShape {
        let segments = ((PARTITION_BYTES * scale) as u64 / SEGMENT_BYTES).max(SEGMENTS_MIN);
        let segments_per_section = if scale >= SCALE_OF_FULL_SECTIONS { SEGMENTS_PER_SECTION } else { 1 };
        LogShape { bytes: segments * SEGMENT_BYTES, segments_per_section }
    }

    /// Returns the shape of a volume of about `bytes` bytes with sections of one segment.
    pub fn of_size(bytes: u64) -> LogShape {
        LogShape { bytes: (bytes / SEGMENT_BYTES).max(SEGMENTS_MIN) * SEGMENT_BYTES, segments_per_section: 1 }
    }

    /// Makes an empty volume of this shape, with the overprovision that leaves most to users.
    ///
    /// # Errors
    /// Fails if mkfs refuses the shape.
    pub fn make(&self) -> Result<(MemDisk, MkfsReport)> {
        let disk = MemDisk::new(self.bytes / SECTOR as u64);
        let options =
            MkfsOptions { segs_per_sec: self.segments_per_section, ..MkfsOptions::new(*b"moafs lab volume", MADE_AT) };
        let report = mkfs(&disk, &options)?;
        Ok((disk, report))
    }
}

/// A volume that is full to a wanted share, without a clean segment.
pub struct LogAged {
    /// The volume's metadata. File data read as a pattern.
    pub image: MemDisk,
    /// The volume's files, in the order in which they were made.
    pub files: Vec<Ino>,
    /// Share of all blocks of the main area that are valid, in percent.
    pub utilization: f64,
    /// The report of mkfs.
    pub report: MkfsReport,
}

/// Fills and ages a volume.
///
/// # Errors
/// [`LabError::Aging`] if the volume cannot reach the utilization.
pub fn aged(shape: &LogShape, utilization: u8, pattern: Pattern, seed: u64) -> Result<LogAged> {
    let (disk, report) = shape.make()?;
    let disk = Arc::new(Contentless::new(disk));
    let options = Options { cache_bytes: CACHE_BYTES, dirty_percent: 1, ..Options::default() };
    let mount = LogMount(OpenOptions {
        recycling: Recycling::Always,
        background: false,
        discard: false,
        device: DeviceCost::HDD,
        ..OpenOptions::default()
    });
    let (files, utilization) = without_time(Arc::clone(&disk) as SharedDisk, &mount, options, |client| {
        let files = fill(client, f64::from(utilization) / 100.0)?;
        let share = share(client.vfs().format());
        wear(client, &files, pattern, seed)?;
        Ok((files, share * 100.0))
    })?;
    Ok(LogAged { image: disk.snapshot(), files, utilization, report })
}

/// Returns the share of valid blocks among all blocks of the main area.
fn share(format: &F2fs) -> f64 {
    let room = format.room();
    room.valid_blocks as f64 / room.main_blocks as f64
}

fn fill(client: &Client<F2fs>, wanted: f64) -> Result<Vec<Ino>> {
    let mut files = Vec::new();
    let mut dir = client.root();
    while share(client.vfs().format()) < wanted {
        let number = files.len() as u64;
        if number.is_multiple_of(FILES_PER_DIRECTORY) {
            dir = client.make_dir(client.root(), &format!("d{:04}", number / FILES_PER_DIRECTORY))?;
        }
        let made = client.make_file(dir, &format!("f{number:06}"), FILE_BYTES);
        files.push(made.map_err(|error| match error.is_full() {
            true => LabError::Aging(format!("{:.0} % of the main area cannot be filled", wanted * 100.0)),
            false => error,
        })?);
        // Data that are not yet written back are not counted.
        if number.is_multiple_of(STEP) {
            client.sync()?;
        }
    }
    client.sync()?;
    Ok(files)
}

/// Overwrites files until only the reserve for cleaning is clean, or the log has gone round
/// [`PASSES_MAX`] times.
fn wear(client: &Client<F2fs>, files: &[Ino], pattern: Pattern, seed: u64) -> Result<()> {
    let mut draw = pattern.drawing(files.len(), seed.wrapping_add(1));
    let writes_max = PASSES_MAX * client.vfs().format().room().main_blocks * BLOCK as u64 / FILE_BYTES;
    for _ in 0..writes_max / STEP {
        if client.vfs().format().room().spare_sections() == 0 {
            break;
        }
        for _ in 0..STEP {
            client.write(files[draw.next()], 0, FILE_BYTES)?;
        }
        client.sync()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nearly_empty_volume_is_aged_though_its_segments_free_themselves() {
        let shape = LogShape::of_size(128 << 20);
        let aged = aged(&shape, 10, Pattern::Uniform, 1).expect("aged");
        assert!((10.0..12.0).contains(&aged.utilization), "{}", aged.utilization);
    }
}
