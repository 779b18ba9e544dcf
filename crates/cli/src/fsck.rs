//! `moafs fsck`.

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use moafs_disk::file::FileOptions;
use moafs_ext::check::{CheckOptions, Finding, Mode, Outcome, Progress, check};
use moafs_mount::source::Source;
use moafs_runtime::Live;
use serde::Serialize;

use crate::error::Result;
use crate::{output, volume};

/// Exit code of fsck(8): the check could not be done.
const OPERATIONAL_ERROR: u8 = 8;

/// The passes, for people.
const PASSES: [&str; 5] = ["inodes and blocks", "directories", "connection to the root", "link counts", "free space"];

/// Check a volume, and repair it
///
/// Without -n, -p or -y it only looks (as -n): nothing is changed that was not asked for. The volume must not be
/// mounted.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  moafs fsck -n disk.img        look, change nothing
  moafs fsck -p disk.img        repair what cannot lose anything; stop if that is not enough
  moafs fsck -y disk.img        repair everything

Exit code, as fsck(8): 0 no errors, 1 errors repaired, 4 errors left, 8 the check could not be done.")]
pub(crate) struct FsckArgs {
    /// Change nothing
    #[arg(short = 'n', conflicts_with_all = ["preen", "yes"])]
    no: bool,
    /// Repair what cannot lose anything (also -a)
    #[arg(short = 'p', short_alias = 'a', conflicts_with = "yes")]
    preen: bool,
    /// Repair everything
    #[arg(short = 'y')]
    yes: bool,
    /// Check even if the volume says that it is clean
    #[arg(short, long)]
    force: bool,
    /// Show findings as JSON
    #[arg(long)]
    json: bool,
    /// Show no progress (also -T, for fsck(8))
    #[arg(short, long, short_alias = 'T')]
    quiet: bool,
    /// Show progress even where it is not seen on a terminal (for fsck(8))
    #[arg(short = 'C', hide = true, num_args = 0..=1, require_equals = true)]
    _progress_fd: Option<Option<i32>>,
    /// Image file or block device
    image: PathBuf,
}

/// The outcome, as JSON shows it.
#[derive(Debug, Serialize)]
struct Report<'a> {
    image: &'a Path,
    exit_code: u8,
    /// Each finding in words, in the order of `outcome.findings`.
    texts: Vec<String>,
    outcome: &'a Outcome,
}

impl FsckArgs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        match self.check() {
            Ok(code) => Ok(code.into()),
            Err(error) => {
                eprintln!("moafs: {error}");
                Ok(OPERATIONAL_ERROR.into())
            }
        }
    }

    fn mode(&self) -> Mode {
        match (self.preen, self.yes) {
            (true, _) => Mode::Preen,
            (_, true) => Mode::Yes,
            _ => Mode::No,
        }
    }

    fn check(&self) -> std::result::Result<u8, Box<dyn std::error::Error>> {
        let source = Source::of(&self.image)?;
        let options = if self.mode() == Mode::No {
            FileOptions::reader()
        } else {
            drop(source.claim()?);
            FileOptions::default()
        };
        let opened = volume::open_disk(source.path(), options)?;
        let bar = self.progress_bar();
        let options = CheckOptions { mode: self.mode(), force: self.force, now: Live::new().timestamp() };
        let outcome = check(&*opened.disk, &options, &mut |progress| show(&bar, progress));
        bar.finish_and_clear();
        let outcome = outcome.map_err(|error| format!("{}: {error}", self.image.display()))?;
        let code = u8::try_from(outcome.exit_code()).unwrap_or(OPERATIONAL_ERROR);
        self.tell(&outcome, code)?;
        Ok(code)
    }

    fn progress_bar(&self) -> ProgressBar {
        if self.quiet || self.json || !io::stderr().is_terminal() {
            return ProgressBar::hidden();
        }
        let bar = ProgressBar::new(0);
        if let Ok(style) = ProgressStyle::with_template("{msg:<40} {wide_bar} {percent:>3} %") {
            bar.set_style(style);
        }
        bar
    }

    fn tell(&self, outcome: &Outcome, exit_code: u8) -> Result<()> {
        if self.json {
            let texts = outcome.findings.iter().map(|finding| finding.issue.to_string()).collect();
            return output::json(&Report { image: &self.image, exit_code, texts, outcome });
        }
        let mut text: String = outcome.findings.iter().map(line).collect();
        if outcome.more > 0 {
            text += &format!("… and {} more\n", outcome.more);
        }
        text += &format!("{}: {}\n", self.image.display(), self.verdict(outcome));
        output::print(text.as_bytes())
    }

    fn verdict(&self, outcome: &Outcome) -> String {
        let used = format!("{} inodes and {} blocks in use", outcome.inodes_used, outcome.blocks_used);
        match (outcome.skipped, outcome.errors_left, outcome.modified) {
            (true, ..) => "clean; not looked at (-f checks all the same)".to_owned(),
            (_, true, _) if self.mode() == Mode::No => {
                format!("ERRORS ({used}); `moafs fsck -y {}` repairs them", self.image.display())
            }
            (_, true, _) => format!("ERRORS LEFT ({used}); `moafs fsck -y` or e2fsck may get further"),
            (_, false, true) => format!("repaired ({used})"),
            (_, false, false) => format!("no errors ({used})"),
        }
    }
}

fn line(finding: &Finding) -> String {
    let done = if finding.repaired { " (repaired)" } else { "" };
    format!("{}{done}\n", finding.issue)
}

fn show(bar: &ProgressBar, progress: Progress) {
    let name = PASSES.get(usize::from(progress.pass).wrapping_sub(1)).unwrap_or(&"volume");
    bar.set_message(format!("sweep {}, pass {}: {name}", progress.sweep, progress.pass));
    bar.set_length(progress.total);
    bar.set_position(progress.done);
}
