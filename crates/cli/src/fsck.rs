//! `moafs fsck`: the part that all formats share. The checkers stand in a module for each.

mod arguments;
mod checked;
mod ext;
mod f2fs;

use std::io::{self, IsTerminal};
use std::path::Path;
use std::process::ExitCode;

use indicatif::{ProgressBar, ProgressStyle};
use moafs_disk::SharedDisk;
use moafs_disk::file::FileOptions;
use moafs_mount::source::Source;
use serde::Serialize;
use serde_json::Value;

pub(crate) use arguments::FsckArgs;
use checked::Checked;

use crate::error::{CliError, Result};
use crate::format_name::FormatName;
use crate::output;
use crate::partition;
use crate::volume;

/// Exit code of fsck(8): the check could not be done.
const OPERATIONAL_ERROR: u8 = 8;

/// The outcome, as JSON shows it.
#[derive(Debug, Serialize)]
struct Report<'a> {
    image: &'a Path,
    exit_code: u8,
    /// Each finding in words, in the order of `outcome.findings`.
    texts: Vec<&'a str>,
    outcome: &'a Value,
}

impl FsckArgs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        match self.check() {
            Ok(code) => Ok(code.into()),
            Err(error) => {
                output::complain(&error);
                Ok(OPERATIONAL_ERROR.into())
            }
        }
    }

    fn check(&self) -> std::result::Result<u8, Box<dyn std::error::Error>> {
        let source = Source::of(&partition::split(&self.image).0)?;
        let options = if self.only_looks() {
            FileOptions::reader()
        } else {
            drop(source.claim()?);
            FileOptions::default()
        };
        let disk = volume::open_disk(&self.image, options)?.disk;
        let bar = self.progress_bar();
        let failed = |error: &dyn std::error::Error| format!("{}: {error}", self.image.display());
        let format = self.format(&disk)?;
        let checked = match format {
            FormatName::Ext => ext::run(self, &disk, &bar).map_err(|error| failed(&error)),
            FormatName::F2fs => f2fs::run(&*disk, &bar).map_err(|error| failed(&error)),
        };
        bar.finish_and_clear();
        let checked = checked?;
        let code = u8::try_from(checked.exit_code).unwrap_or(OPERATIONAL_ERROR);
        self.tell(format, &checked, code)?;
        Ok(code)
    }

    /// Returns the volume's format: ext2 if `--superblock` is given, or if the superblock is lost
    /// and there is a copy.
    fn format(&self, disk: &SharedDisk) -> Result<FormatName> {
        match FormatName::on_disk(&self.image, disk) {
            _ if self.superblock.is_some() => Ok(FormatName::Ext),
            Err(CliError::SuperblockLost { .. }) => Ok(FormatName::Ext),
            found => found,
        }
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

    fn tell(&self, format: FormatName, checked: &Checked, exit_code: u8) -> Result<()> {
        if self.json {
            let texts = checked.findings.iter().map(|(text, _)| text.as_str()).collect();
            return output::json(&Report { image: &self.image, exit_code, texts, outcome: &checked.outcome });
        }
        let mut text: String = checked.findings.iter().map(|(text, note)| format!("{text}{note}\n")).collect();
        if checked.more > 0 {
            text += &format!("… and {} more\n", checked.more);
        }
        text += &format!("{}: {}\n", self.image.display(), self.verdict(format, checked));
        output::print(output::message(&text).as_bytes())
    }

    fn verdict(&self, format: FormatName, checked: &Checked) -> String {
        let used = format!("{} inodes and {} blocks in use", checked.inodes_used, checked.blocks_used);
        match (checked.skipped, checked.errors_left, checked.modified) {
            (true, ..) => "clean; not looked at (-f checks all the same)".to_owned(),
            (_, true, _) => {
                let advice = match format {
                    FormatName::Ext => ext::advice(self),
                    FormatName::F2fs => f2fs::advice(self),
                };
                let left = if self.only_looks() { "" } else { " LEFT" };
                format!("ERRORS{left} ({used}); {advice}")
            }
            (_, false, true) => format!("repaired ({used})"),
            (_, false, false) => format!("no errors ({used})"),
        }
    }
}
