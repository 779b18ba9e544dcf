//! The place where moafs has mounted an image: commands that only look do so through the mount.

use std::path::{Path, PathBuf};

use moafs_disk::file::{FileOptions, Sharing};
use moafs_mount::control::STATS_NAME;
use moafs_mount::control_path::ControlPath;
use moafs_mount::layout::{LAYOUT_NAME, LayoutCommand, LayoutJob, LayoutStatus};
use moafs_mount::mount_table;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::{CliError, Result};
use crate::partition::{self, Part};
use crate::question::Question;
use crate::stop::Stop;
use crate::{job, output, volume};

/// A volume that moafs has mounted.
#[derive(Debug)]
pub(crate) struct Mounted {
    /// The mount point.
    pub(crate) target: PathBuf,
    /// The text of `.moafs/stats`.
    stats: Value,
}

/// Returns the options to look at an image that is in use: nothing is locked.
pub(crate) fn beside() -> FileOptions {
    FileOptions { lock: Sharing::Anybody, ..FileOptions::reader() }
}

/// Returns the mount of the volume of an image, or of a partition (`IMAGE@CHOICE`), if moafs has mounted it.
///
/// A disk with several volumes is mounted under one name, so the mount is asked where its volume begins.
pub(crate) fn find(image: &Path) -> Option<Mounted> {
    let (file, _) = partition::split(image);
    let entries = mount_table::mounts_of_image(&file.canonicalize().ok()?);
    if entries.is_empty() {
        return None;
    }
    // Nothing but a partition table is read, which mounts do not change.
    let first_byte = volume::open_part(image, beside(), &Part::OnlyVolume).ok()?.first_byte;
    let of_entry = |target: PathBuf| {
        let stats: Value = serde_json::from_slice(&ControlPath::new(&target, STATS_NAME).read().ok()?).ok()?;
        (stats["first_byte"].as_u64()? == first_byte).then_some(Mounted { target, stats })
    };
    entries.into_iter().find_map(|entry| of_entry(entry.target))
}

/// Returns where moafs has mounted the volume of an image, or of a partition (`IMAGE@CHOICE`), if it has.
pub(crate) fn mount_point(image: &Path) -> Option<PathBuf> {
    find(image).map(|mounted| mounted.target)
}

impl Mounted {
    /// Returns the state of the volume in words.
    pub(crate) fn state(&self) -> String {
        format!("mounted on {}", output::path(&self.target))
    }

    /// Returns a number of free things: `free` blocks, those for root included, or `free_inodes`.
    pub(crate) fn free(&self, field: &str) -> Option<u64> {
        self.stats["space"][field].as_u64()
    }

    /// Asks the daemon about the layout, and waits for the answer.
    pub(crate) fn ask<T: DeserializeOwned>(&self, question: &Question) -> Result<T> {
        let control = ControlPath::new(&self.target, LAYOUT_NAME);
        let stop = Stop::on_signals()?;
        let token = job::token();
        let question = serde_json::to_value(question).map_err(|error| CliError::Output(error.into()))?;
        job::command(&control, &LayoutCommand::Start(LayoutJob { token, question }))?;
        let status: LayoutStatus = loop {
            let status: LayoutStatus = job::status(&control)?;
            if status.token != Some(token) {
                return Err(job::lost(&control));
            }
            if !status.running {
                break status;
            }
            if stop.is_set() {
                job::command(&control, &LayoutCommand::Stop { token })?;
                return Err(CliError::Interrupted);
            }
            std::thread::sleep(job::POLL);
        };
        job::command(&control, &LayoutCommand::Forget { token })?;
        match status.error {
            Some(error) => {
                Err(CliError::Usage(format!("looking at the layout of {}: {error}", output::path(&self.target))))
            }
            None => serde_json::from_value(status.outcome)
                .map_err(|error| CliError::host("understanding", &control.path())(error.into())),
        }
    }
}
