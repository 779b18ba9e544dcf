//! `moafs lab replay`: a trace on a modelled drive.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use moafs_disk::model::{DriveKind, DriveSpec, FlashCounters, Policy, spec};
use moafs_lab::replay::{Summary, replay};
use moafs_lab::trace::{Event, Format, Reader};

use crate::error::{CliError, Result};
use crate::output;

/// Replay a trace of disk requests on a modelled drive, in virtual time
///
/// Requests arrive at their time in the trace, whether or not those before are done. The trace is text of blkparse, CSV
/// (`time_s,op,sector,sectors` with op R, W or F for flush), or our own (one JSON object per line).
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = long_help())]
pub(crate) struct ReplayArgs {
    /// A built-in drive or a drive file; `list` shows the built-in ones
    #[arg(short, long, value_name = "NAME")]
    model: String,
    /// Change a parameter of the drive
    #[arg(long, value_name = "PARAMETER=VALUE")]
    set: Vec<String>,
    /// The order in which waiting requests go to the drive
    #[arg(long, value_name = "ORDER", value_enum, default_value = "fcfs")]
    queue: Order,
    /// The trace's format; without, its first line tells
    #[arg(long, value_enum)]
    format: Option<TraceFormat>,
    /// Events of a blktrace that are requests: Q, asked of the block layer; D, sent to the device
    #[arg(long, value_enum, default_value = "Q", ignore_case = true)]
    event: BlkEvent,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
    /// The trace; `-` is the standard input
    trace: Option<PathBuf>,
    /// Instead of replaying, print the drive's parameters as a drive file, to start one's own from
    #[arg(long, conflicts_with = "trace")]
    show: bool,
}

const EXAMPLES: &str = "\
Examples:
  moafs lab replay --model st3160812as trace.csv
  moafs lab replay --model mpg3307at --set cache=off --queue clook --json trace.csv
  blkparse -i sda | moafs lab replay --model hds721616pla380 --set ncq_depth=32 -
  moafs lab replay --model list                         the built-in drives
  moafs lab replay --model mpg3307at --show > my.toml   a drive file of one's own";

/// Returns the examples, and every parameter that `--set` takes.
fn long_help() -> String {
    let all = || DriveKind::ALL.into_iter().flat_map(spec::parameters);
    let width = all().map(|p| p.name.len()).max().unwrap_or(0);
    let mut text =
        format!("{EXAMPLES}\n\nParameters (--set):\n  {:width$}  all switches of cache.*: on, off\n", spec::CACHE);
    for kind in DriveKind::ALL {
        let _ = writeln!(text, "of a drive of kind {}:", kind.name());
        for parameter in spec::parameters(kind) {
            let _ = writeln!(text, "  {:width$}  {}", parameter.name, parameter.meaning);
        }
    }
    text.push_str("\nDrives:\n");
    text.push_str(&drives());
    text
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Order {
    /// First come, first served
    Fcfs,
    /// Ascending from the end of the last request, then from the lowest (BSD's disksort)
    Clook,
    /// Shortest positioning time first
    Sptf,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum TraceFormat {
    /// One JSON object per line
    Moafs,
    /// Text of blkparse
    Blktrace,
    /// time_s,op,sector,sectors
    Csv,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum BlkEvent {
    /// Requests to the block layer
    #[value(name = "Q")]
    Queued,
    /// Issued to the device
    #[value(name = "D")]
    Issued,
}

impl ReplayArgs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        if self.model == "list" {
            output::print(drives().as_bytes())?;
            return Ok(ExitCode::SUCCESS);
        }
        let drive = self.drive()?;
        if self.show {
            output::print(drive.to_toml().as_bytes())?;
            return Ok(ExitCode::SUCCESS);
        }
        let Some(trace) = self.trace.as_deref() else {
            return Err(CliError::Usage("no trace is given: name a file, or - for the standard input".into()));
        };
        let summary = self.replay(&drive, trace)?;
        match self.json {
            true => output::json(&summary)?,
            false => output::print(table(&drive, &summary).as_bytes())?,
        }
        Ok(ExitCode::SUCCESS)
    }

    fn drive(&self) -> Result<DriveSpec> {
        let usage = |error: spec::SpecError| CliError::Usage(error.to_string());
        let mut drive = DriveSpec::load(&self.model).map_err(usage)?;
        for setting in &self.set {
            let Some((parameter, value)) = setting.split_once('=') else {
                return Err(CliError::Usage(format!("--set {setting}: write PARAMETER=VALUE")));
            };
            drive.set(parameter.trim(), value.trim()).map_err(usage)?;
        }
        Ok(drive)
    }

    fn replay(&self, drive: &DriveSpec, trace: &Path) -> Result<Summary> {
        let input: Box<dyn BufRead> = if trace.as_os_str() == "-" {
            Box::new(io::stdin().lock())
        } else {
            Box::new(BufReader::new(File::open(trace).map_err(CliError::host("opening the trace", trace))?))
        };
        let format = self.format.map(|format| match format {
            TraceFormat::Moafs => Format::Moafs,
            TraceFormat::Blktrace => Format::Blktrace,
            TraceFormat::Csv => Format::Csv,
        });
        let event = match self.event {
            BlkEvent::Queued => Event::Queued,
            BlkEvent::Issued => Event::Issued,
        };
        let policy = match self.queue {
            Order::Fcfs => Policy::Fcfs,
            Order::Clook => Policy::Clook,
            Order::Sptf => Policy::Sptf,
        };
        let reader = Reader::new(input, &trace.display().to_string(), format, event);
        replay(drive, policy, reader).map_err(|error| CliError::Usage(error.to_string()))
    }
}

/// Lists the built-in drives, one a line.
fn drives() -> String {
    let width = spec::names().map(str::len).max().unwrap_or(0);
    let line = |name| {
        let description = DriveSpec::preset(name).map(|drive| drive.description().to_owned()).unwrap_or_default();
        format!("  {name:width$}  {description}\n")
    };
    spec::names().map(line).collect()
}

fn table(drive: &DriveSpec, summary: &Summary) -> String {
    let mut text = format!("{}\n", drive.description());
    let mut row = |name: &str, value: String| {
        let _ = writeln!(text, "  {name:<22}{value:>16}");
    };
    let (reads, writes, flushes) = (summary.reads, summary.writes, summary.flushes);
    row("total", format!("{:.3} ms", summary.total_ms));
    row("requests", summary.requests.to_string());
    row("  reads", reads.to_string());
    row("  writes", writes.to_string());
    row("flushes", flushes.to_string());
    row("idle", format!("{:.3} ms", summary.idle_ms));
    row("per request", "mean".to_owned());
    let (on_disk, on_flash) = (summary.flash.is_none(), summary.flash.is_some());
    for (name, ms, has) in [
        ("response", summary.mean_response_ms, true),
        ("  queue", summary.mean_queue_ms, true),
        ("  service", summary.mean_service_ms, true),
        ("    overhead", summary.mean_overhead_ms, true),
        ("    waiting for buffer", summary.mean_wait_ms, true),
        ("    garbage collection", summary.mean_gc_ms, on_flash),
        ("    seek", summary.mean_seek_ms, on_disk),
        ("    rotation", summary.mean_rotation_ms, on_disk),
        ("    transfer", summary.mean_transfer_ms, true),
        ("    bus", summary.mean_bus_ms, true),
    ] {
        if has {
            row(name, format!("{ms:.4} ms"));
        }
    }
    row("stddev of service", format!("{:.4} ms", summary.stddev_service_ms));
    row("longest response", format!("{:.3} ms", summary.max_response_ms));
    row("from the buffer", summary.cached.to_string());
    match &summary.flash {
        None => {
            row("seeks", summary.seeks.to_string());
            row("sectors per seek", format!("{:.0}", summary.mean_seek_sectors));
        }
        Some(flash) => flash_rows(flash, row),
    }
    text
}

fn flash_rows(flash: &FlashCounters, mut row: impl FnMut(&str, String)) {
    row("write amplification", format!("{:.3}", flash.write_amplification()));
    for (name, count) in [
        ("pages programmed", flash.host_pages),
        ("pages copied", flash.gc_pages),
        ("blocks erased", flash.erases),
        ("blocks cleaned", flash.cleaned_blocks),
        ("switch merges", flash.switch_merges),
        ("partial merges", flash.partial_merges),
        ("full merges", flash.full_merges),
        ("unit switches", flash.unit_switches),
    ] {
        row(name, count.to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_lists_every_parameter_and_drive() {
        let help = long_help();
        let mut all = DriveKind::ALL.into_iter().flat_map(spec::parameters);
        assert!(all.all(|parameter| help.contains(parameter.name)));
        assert!(spec::names().all(|name| help.contains(name)));
    }

    #[test]
    fn a_printed_drive_can_be_loaded() {
        for name in spec::names() {
            let drive = DriveSpec::preset(name).unwrap();
            assert_eq!(DriveSpec::parse(&drive.to_toml(), name).unwrap(), drive);
        }
    }
}
