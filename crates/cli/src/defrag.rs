//! `moafs defrag`: moves scattered files together.

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::ExitCode;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use moafs_mount::control_path::ControlPath;
use moafs_mount::defrag::{DEFRAG_NAME, DefragCommand, DefragJob, DefragStatus};
use moafs_mount::mount_table;
use moafs_mount::size;
use moafs_vfs::Format;
use moafs_vfs::defrag::{DefragOptions, DefragReport, ReadCost, StopReason};
use serde::Serialize;

use crate::error::{CliError, INTERRUPTED, Result};
use crate::files::tree::{LastLink, Tree};
use crate::files::volume_tree::VolumeTree;
use crate::job;
use crate::output;
use crate::place::{Inside, Place};
use crate::stop::Stop;
use crate::volume::{Access, Volume, with_volume};

/// Move scattered files together again
///
/// Walks through a directory and all below it. Small files (up to 12 blocks) of a directory that
/// lie scattered move into one run, large ones into long pieces, wherever that saves requests when
/// they are read; nothing else is read or written. Works on a mount while it is used, and on an
/// image that is not mounted. No byte, size or time of a file changes; a power cut or Ctrl-C at any
/// moment loses nothing. Directories themselves stay where they are.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sudo moafs defrag /mnt/mail                   a directory of a mount
  moafs defrag --dry-run disk.img               what would be gained on the whole volume
  moafs defrag --max-bytes 1G disk.img:/home    so much and no more; the next run goes on
  moafs defrag --json disk.img | jq .after.requests

On a mount, root and the user who mounted it may run one defrag at a time.
Exit code: 0 done (also if nothing was to be gained), 1 failure, or a directory that was met before, 130 interrupted:
what was moved stays moved.")]
pub(crate) struct DefragArgs {
    /// A directory or file of a mount, or an image, or a path on it
    #[arg(value_name = "PATH|IMAGE[:PATH]")]
    what: OsString,
    /// Change nothing; report the files that would be moved, and the gain
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Move at most this much
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    max_bytes: Option<u64>,
    /// Print the outcome as JSON
    #[arg(long)]
    json: bool,
    /// Show no progress
    #[arg(short, long)]
    quiet: bool,
}

/// The outcome, as JSON shows it.
#[derive(Debug, Serialize)]
struct Report {
    what: String,
    dry_run: bool,
    #[serde(flatten)]
    healed: DefragReport,
    layout_score_before: Option<f64>,
    layout_score_after: Option<f64>,
}

impl DefragArgs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let stop = Stop::on_signals()?;
        let healed = match Place::parse(&self.what) {
            Place::Host(path) if mount_table::mount_of(&path).is_some() => self.on_mount(&path, &stop)?,
            _ => self.on_image(&Inside::parse(&self.what, None)?, &stop)?,
        };
        self.tell(healed)?;
        if healed.ending == StopReason::Stopped {
            return Ok(INTERRUPTED.into());
        }
        if healed.directories_met_before == 0 {
            return Ok(ExitCode::SUCCESS);
        }
        output::complain(&format!(
            "{}: directories were met before ({} times): they have several parents or contain themselves; check the \
             volume with `moafs fsck`",
            output::path(Path::new(&self.what)),
            healed.directories_met_before
        ));
        Ok(ExitCode::FAILURE)
    }

    fn on_image(&self, place: &Inside, stop: &Stop) -> Result<DefragReport> {
        let access = if self.dry_run { Access::Read } else { Access::Write };
        with_volume!(&place.image, access, |volume| self.heal(volume, place, stop))
    }

    fn heal<F: Format>(&self, volume: &Volume<F>, place: &Inside, stop: &Stop) -> Result<DefragReport> {
        let options = DefragOptions { max_bytes: self.max_bytes.unwrap_or(u64::MAX), dry_run: self.dry_run };
        let tree = VolumeTree::new(&volume.vfs, &place.image);
        let missing = || CliError::Usage(format!("{} does not exist", place.describe()));
        let node = tree.resolve(&place.path, LastLink::Kept)?.ok_or_else(missing)?;
        let bar = self.progress_bar();
        let done = volume.vfs.defragment(node.ino, &options, &mut |healed| {
            show(&bar, healed);
            !stop.is_set()
        });
        bar.finish_and_clear();
        done.map_err(|error| CliError::Volume { what: "defragmenting", at: place.describe(), error })
    }

    /// Starts the job in the mount's daemon, and watches its progress.
    fn on_mount(&self, path: &Path, stop: &Stop) -> Result<DefragReport> {
        let mount = mount_table::mount_of(path)
            .ok_or_else(|| CliError::Usage(format!("{} lies in no mount of moafs", output::path(path))))?;
        let control = ControlPath::new(&mount.target, DEFRAG_NAME);
        let inode = path.metadata().map_err(CliError::host("looking at", path))?.ino();
        let token = job::token();
        let job = DefragJob { token, inode, max_bytes: self.max_bytes, dry_run: self.dry_run };
        job::command(&control, &DefragCommand::Start(job))?;
        let bar = self.progress_bar();
        let mut told = false;
        let status = loop {
            let status: DefragStatus = job::status(&control)?;
            if status.token != Some(token) {
                return Err(job::lost(&control));
            }
            if !status.running {
                break status;
            }
            show(&bar, &status.outcome);
            if stop.is_set() && !std::mem::replace(&mut told, true) {
                job::command(&control, &DefragCommand::Stop { token })?;
            }
            std::thread::sleep(job::POLL);
        };
        bar.finish_and_clear();
        match status.error {
            Some(error) => Err(CliError::Usage(format!("defragmenting {}: {error}", output::path(path)))),
            None => Ok(status.outcome),
        }
    }

    fn progress_bar(&self) -> ProgressBar {
        if self.quiet || self.json || !io::stderr().is_terminal() {
            return ProgressBar::hidden();
        }
        let bar = ProgressBar::new_spinner();
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}, {elapsed} (Ctrl-C stops)") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(job::POLL);
        bar
    }

    fn tell(&self, healed: DefragReport) -> Result<()> {
        if self.json {
            return output::json(&Report {
                what: self.what.to_string_lossy().into_owned(),
                dry_run: self.dry_run,
                layout_score_before: healed.before.score.value(),
                layout_score_after: healed.after.score.value(),
                healed,
            });
        }
        output::print(text(&healed, self.dry_run).as_bytes())
    }
}

/// Writes the outcome as text for people.
fn text(healed: &DefragReport, dry_run: bool) -> String {
    let DefragReport { directories, files, files_skipped, files_moved, bytes_moved, before, after, ending, .. } =
        *healed;
    let (verb, now) = if dry_run { ("would be moved", "then") } else { ("moved", "now") };
    let mut text = format!("{files} files in {directories} directories\n");
    let score = |reading: ReadCost| reading.score.value().map_or("-".to_owned(), |score| format!("{score:.4}"));
    if files_moved == 0 {
        text += &format!(
            "nothing moved: layout score {}, {} pieces, {} requests to read all\n",
            score(before),
            before.pieces,
            before.requests
        );
    } else {
        text += &format!("{files_moved} files with {} {verb}\n", output::size(bytes_moved));
        text += &format!("{:<26} {:>12} {:>12}\n", "", "before", now);
        text += &format!("{:<26} {:>12} {:>12}\n", "layout score", score(before), score(after));
        text += &format!("{:<26} {:>12} {:>12}\n", "pieces", before.pieces, after.pieces);
        text += &format!("{:<26} {:>12} {:>12}\n", "requests to read all", before.requests, after.requests);
    }
    if files_skipped > 0 {
        text += &format!("{files_skipped} files were in use and left alone\n");
    }
    match ending {
        StopReason::Stopped => text += "interrupted: the rest was not looked at\n",
        StopReason::MaxBytes => text += "stopped at --max-bytes: the rest was not looked at\n",
        StopReason::Running | StopReason::Done => {}
    }
    text
}

fn show(bar: &ProgressBar, healed: &DefragReport) {
    bar.set_message(format!(
        "{} directories, {} files looked at, {} moved",
        healed.directories,
        healed.files,
        output::size(healed.bytes_moved)
    ));
}

#[cfg(test)]
mod tests {
    use super::*;
    use moafs_vfs::layout::Score;

    #[test]
    fn the_outcome_says_what_was_gained_or_that_nothing_was() {
        let reading = |adjacent, requests| ReadCost { pieces: 9, score: Score { successors: 10, adjacent }, requests };
        let mut healed =
            DefragReport { files: 9, before: reading(0, 9), after: reading(0, 9), ..DefragReport::default() };
        assert_eq!(
            text(&healed, false),
            "9 files in 0 directories\nnothing moved: layout score 0.0000, 9 pieces, 9 requests to read all\n"
        );
        (healed.files_moved, healed.bytes_moved, healed.after) = (9, 4096, reading(10, 1));
        let shown = text(&healed, true);
        assert!(shown.contains("9 files with 4.0 KiB would be moved"), "{shown}");
        assert!(shown.contains("layout score                     0.0000       1.0000"), "{shown}");
        assert!(shown.contains("requests to read all                  9            1"), "{shown}");
    }
}
