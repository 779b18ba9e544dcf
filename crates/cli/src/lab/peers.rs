//! `moafs lab peers`: the kernel's file systems and ours on the same modelled disk.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use indicatif::{ProgressBar, ProgressStyle};
use moafs_disk::probe::trace::Counters;
use moafs_lab::Outcome;
use moafs_lab::outcome::{Chart, ChartForm, Row};
use moafs_mount::size;
use moafs_peers::{Interrupt, Measured, Plan, SCHEDULER, System, Workload};
use moafs_simdisk::{Model, Stats};

use crate::error::{CliError, Result};
use crate::output;
use crate::simdisk::factor;

/// The range of `--scale`.
const SCALES: std::ops::RangeInclusive<f64> = 0.001..=10.0;

/// Compare file systems of the kernel with ours, on the same modelled disk
///
/// Each workload runs on a new volume of each file system, on a disk of its own (`moafs simdisk`)
/// below a loop device: tool's defaults, kernel's options, cold cache, up to the end of one sync.
/// Needs root, /dev/fuse and loop devices. vm.dirty_bytes of this machine is changed while it runs,
/// and set back. Modelled time is defined in docs/simdisk.md.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sudo moafs lab peers --scale 0.2                         all workloads on ext4, xfs, btrfs and three of moafs
  sudo moafs lab peers -w create -w delete --system ext4,moafs-ext4
  sudo moafs lab peers -w postmark --paced 20              so that timers of the kernel run, at 20 times the disk's pace
  sudo moafs lab peers --json --out results                result as JSON, also kept in results/peers.json", after_long_help = long_help())]
pub(crate) struct PeersArgs {
    /// A drive: a name, or the path of a description
    #[arg(short, long, value_name = "NAME", default_value = "st3160812as")]
    model: String,
    /// Set a parameter of the model, such as cache.write=false
    #[arg(long, value_name = "PARAMETER=VALUE")]
    set: Vec<String>,
    /// Bytes of the drive that are used, from its start
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "8G")]
    size: u64,
    /// Scale; 1 is the full size of every workload
    #[arg(short, long, value_name = "S", default_value = "1", value_parser = scale)]
    scale: f64,
    /// Workloads to run (default: all)
    #[arg(short, long, value_name = "W", value_delimiter = ',', value_parser = workloads())]
    workload: Vec<Workload>,
    /// File systems to compare
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = systems(), default_value = "ext4,xfs,btrfs,moafs-ext2,moafs-ext4,moafs-f2fs")]
    system: Vec<System>,
    /// Modelled time is wall time x FACTOR, so that the kernel's timers run
    #[arg(long, value_name = "FACTOR", num_args = 0..=1, default_missing_value = "1", value_parser = factor)]
    paced: Option<f64>,
    /// Dirty memory, the same for all: a quarter of the paper's 256 MB
    #[arg(long, value_name = "N", value_parser = size::parse, default_value = "64M")]
    dirty_bytes: u64,
    /// Memory for a workload, its file system and all their caches, as the paper's machine had; 0: no limit
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "256M")]
    memory: u64,
    /// Seed of all choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print the outcome as JSON
    #[arg(long)]
    json: bool,
    /// Keep the outcome in DIR/peers.json
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

fn long_help() -> String {
    let mut text = String::from("Workloads at scale 1:\n");
    for workload in Workload::ALL {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {:<14} {}", workload.name(), workload.describe());
    }
    text + "\nExample:\n  sudo moafs lab peers --scale 0.2"
}

fn scale(text: &str) -> Result<f64, String> {
    let scale = text.parse::<f64>().ok().filter(|scale| SCALES.contains(scale));
    scale.ok_or_else(|| format!("give a number from {} to {}", SCALES.start(), SCALES.end()))
}

fn workloads() -> impl TypedValueParser<Value = Workload> {
    let find = |name: String| Workload::ALL.iter().copied().find(|workload| workload.name() == name);
    PossibleValuesParser::new(Workload::ALL.iter().map(|workload| workload.name()))
        .try_map(move |name| find(name).ok_or("unknown"))
}

fn systems() -> impl TypedValueParser<Value = System> {
    let find = |name: String| System::ALL.into_iter().find(|system| system.name() == name);
    PossibleValuesParser::new(System::ALL.map(System::name)).try_map(move |name| find(name).ok_or("unknown"))
}

impl PeersArgs {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let usage = |error: String| CliError::Usage(error);
        let plan = self.plan()?;
        let rate = plan.model.media_bytes_per_s().map_err(|error| usage(error.to_string()))?;
        let interrupt = Interrupt::catch().map_err(|error| usage(error.to_string()))?;
        let bar = progress_bar(plan.workloads.len() * plan.systems.len());
        let begins = |workload: Workload, system: System| {
            bar.set_message(format!("{} on {}", workload.name(), system.name()));
            bar.inc(1);
        };
        let measured = plan.run(&interrupt, begins);
        bar.finish_and_clear();
        let measured = measured.map_err(|error| usage(error.to_string()))?;
        let outcome = outcome(&plan, &measured, rate);
        if let Some(dir) = &self.out {
            keep(&outcome, dir)?;
        }
        if self.json {
            output::json(&outcome)?;
        } else {
            output::print(text(&plan, &measured, rate).as_bytes())?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn plan(&self) -> Result<Plan> {
        let model = Model::load(&self.model, &self.set).map_err(|error| CliError::Usage(error.to_string()))?;
        let mut systems = self.system.clone();
        systems.sort();
        systems.dedup();
        let mut workloads = if self.workload.is_empty() { Workload::ALL.to_vec() } else { self.workload.clone() };
        workloads.sort();
        workloads.dedup();
        Ok(Plan {
            program: std::env::current_exe().map_err(CliError::host("finding", Path::new("this program")))?,
            model,
            bytes: self.size,
            systems,
            workloads,
            scale: self.scale,
            seed: self.seed,
            pace: self.paced,
            dirty_bytes: self.dirty_bytes,
            memory_bytes: (self.memory > 0).then_some(self.memory),
        })
    }
}

fn progress_bar(len: usize) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(len as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}, {elapsed}") {
        bar.set_style(style);
    }
    bar
}

fn keep(outcome: &Outcome, dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).map_err(CliError::host("making", dir))?;
    let path = dir.join("peers.json");
    let text = serde_json::to_string_pretty(outcome).map_err(|error| CliError::Output(error.into()))?;
    fs::write(&path, text + "\n").map_err(CliError::host("writing", &path))
}

/// Returns the time in seconds that the disk needs for the data alone, if nothing but transfer took
/// time; `None` if no data must move.
fn limit_s(one: &Measured, rate: f64) -> Option<f64> {
    (one.bytes > 0).then(|| one.bytes as f64 / rate)
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// Returns the speed as a multiple of ext4's on the same workload.
fn speedup(one: &Measured, all: &[Measured]) -> Option<f64> {
    let ext4 = all.iter().find(|other| other.workload == one.workload && other.system == System::Ext4)?;
    Some(ext4.synced.elapsed_ns as f64 / one.synced.elapsed_ns.max(1) as f64)
}

/// Speed that moafs must reach, as a multiple of ext4's; else it must reach a share of the disk's
/// limit.
const SPEEDUP_WANTED: f64 = 2.0;
const LIMIT_SHARE_WANTED: f64 = 0.8;

/// Returns the speed as a share of the disk's limit: 1 is the limit.
fn limit_share(one: &Measured, rate: f64) -> Option<f64> {
    Some(limit_s(one, rate)? / seconds(one.synced.elapsed_ns.max(1)))
}

/// Returns true if moafs is as fast as wanted. One-by-one fsync is reported only, and without ext4
/// there is no answer: `None`.
fn is_enough(one: &Measured, all: &[Measured], rate: f64) -> Option<bool> {
    if !one.system.is_ours() || one.workload.syncs_each_file() {
        return None;
    }
    let near_limit = limit_share(one, rate).is_some_and(|share| share >= LIMIT_SHARE_WANTED);
    speedup(one, all).map(|times| times >= SPEEDUP_WANTED || near_limit)
}

fn outcome(plan: &Plan, measured: &[Measured], rate: f64) -> Outcome {
    let rows = measured.iter().flat_map(|one| rows(one, measured, rate)).collect();
    let charts = plan.workloads.iter().map(|workload| Chart {
        title: format!("{}, times as fast as ext4", workload.name()),
        form: ChartForm::Bars,
        metric: "speedup".to_owned(),
        only: BTreeMap::from([("workload".to_owned(), workload.name().to_owned())]),
        along: "workload".to_owned(),
    });
    Outcome {
        experiment: "peers".to_owned(),
        title: "Small files on kernel file systems and on moafs, on the same modelled disk".to_owned(),
        notes: notes(plan),
        scale: plan.scale,
        seed: plan.seed,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        parameters: parameters(plan, rate),
        rows,
        charts: charts.collect(),
        ..Outcome::default()
    }
}

fn notes(plan: &Plan) -> Vec<String> {
    let mut notes = vec![
        "Modelled time from a cold cache (mounted anew) to the end of one sync; elapsed-unmounted goes on to the end of \
         unmounting, which shows what was put off."
            .to_owned(),
        "limit is the time that the file data, in whole blocks of 4 KiB, need under the head at the disk's outermost zone.".to_owned(),
        "mkfs.ext4 writes inode tables and journal at once (lazy_itable_init=0), instead of during the measurement.".to_owned(),
    ];
    if plan.pace.is_none() {
        notes.push(
            "Unpaced: the kernel's timers run in wall time, of which little passes; periodic commits are undercounted for \
             every system alike (--paced)."
                .to_owned(),
        );
    }
    notes
}

fn parameters(plan: &Plan, rate: f64) -> BTreeMap<String, String> {
    let pace = plan.pace.map_or_else(|| "unpaced".to_owned(), |factor| format!("wall time x {factor}"));
    let set = plan.model.set_parameters().join(" ");
    let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
    let pairs = [
        ("drive", plan.model.name().to_owned()),
        ("drive set", set),
        ("disk", output::size(plan.bytes)),
        ("media rate", format!("{:.1} MB/s", rate / 1e6)),
        ("memory", plan.memory_bytes.map_or_else(|| "not limited".to_owned(), output::size)),
        ("dirty memory", output::size(plan.dirty_bytes)),
        ("moafs options", plan.moafs_options()),
        ("time", pace),
        ("I/O scheduler", SCHEDULER.to_owned()),
        ("largest request", output::size(plan.model.transfer_bytes_max())),
        ("kernel", format!("Linux {kernel}")),
    ];
    let given = pairs.into_iter().filter(|(_, value)| !value.is_empty());
    given.map(|(name, value)| (name.to_owned(), value)).collect()
}

fn rows(one: &Measured, all: &[Measured], rate: f64) -> Vec<Row> {
    let row = |metric: &str, value: f64, unit: &str| Row {
        system: one.system.name().to_owned(),
        dimensions: BTreeMap::from([("workload".to_owned(), one.workload.name().to_owned())]),
        metric: metric.to_owned(),
        value,
        unit: unit.to_owned(),
        paper: None,
        interval: None,
    };
    let (synced, drive) = (&one.synced, &one.synced.drive);
    let mut rows = vec![
        row("elapsed", seconds(synced.elapsed_ns), "s"),
        row("busy", seconds(synced.busy_ns), "s"),
        row("elapsed-unmounted", seconds(one.unmounted.elapsed_ns), "s"),
        row("reads", drive.reads as f64, "1"),
        row("writes", drive.writes as f64, "1"),
        row("bytes-read", drive.read_bytes as f64, "B"),
        row("bytes-written", drive.written_bytes as f64, "B"),
        row("flushes", drive.flushes as f64, "1"),
        row("seeks", synced.seeks() as f64, "1"),
        row("data", one.bytes as f64, "B"),
    ];
    rows.extend(limit_s(one, rate).map(|limit| row("limit", limit, "s")));
    rows.extend(limit_share(one, rate).map(|share| row("limit-share", share, "1")));
    rows.extend(speedup(one, all).map(|times| row("speedup", times, "1")));
    rows.extend(one.kinds.iter().flat_map(|counters| kind_rows(one, counters)));
    rows
}

/// Makes rows of the requests of our daemon, by operation and kind of data.
fn kind_rows(one: &Measured, counters: &Counters) -> Vec<Row> {
    let of = |((verb, kind), (requests, bytes)): (KindKey, (u64, u64))| {
        let dimensions = [("workload", one.workload.name().to_owned()), ("operation", verb), ("kind", kind)];
        let dimensions: BTreeMap<String, String> =
            dimensions.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        [("kind-requests", requests, "1"), ("kind-bytes", bytes, "B")].map(|(metric, value, unit)| Row {
            system: one.system.name().to_owned(),
            dimensions: dimensions.clone(),
            metric: metric.to_owned(),
            value: value as f64,
            unit: unit.to_owned(),
            paper: None,
            interval: None,
        })
    };
    kinds(counters).into_iter().flat_map(of).collect()
}

/// Operation and kind of data.
type KindKey = (String, String);

/// Sums requests and bytes by operation and kind, over all causes.
fn kinds(counters: &Counters) -> BTreeMap<KindKey, (u64, u64)> {
    let mut sums = BTreeMap::new();
    for count in &counters.counts {
        let name = |value: serde_json::Result<serde_json::Value>| {
            value.ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
        };
        let key = (name(serde_json::to_value(count.verb)), name(serde_json::to_value(count.kind)));
        let sum: &mut (u64, u64) = sums.entry(key).or_default();
        *sum = (sum.0 + count.requests, sum.1 + count.bytes);
    }
    sums
}

/// Writes the table for people.
fn text(plan: &Plan, measured: &[Measured], rate: f64) -> String {
    let mut text = String::new();
    for (name, value) in parameters(plan, rate) {
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(text, "{name:<16} {value}");
    }
    let _ = writeln!(text, "scale            {}, seed {}\n", plan.scale, plan.seed);
    let _ = writeln!(
        text,
        "{:<14} {:<10} {:>9} {:>6} {:>6} {:>9} {:>7} {:>8} {:>7} {:>8} {:>7} {:>7} {:>7}",
        "workload",
        "system",
        "seconds",
        "x ext4",
        "limit",
        "unmounted",
        "reads",
        "MB read",
        "writes",
        "MB writ",
        "KB mean",
        "seeks",
        "flushes"
    );
    for one in measured {
        text += &line(one, measured, rate);
    }
    for one in measured {
        if let Some(counters) = &one.kinds {
            text += &kinds_text(one, counters);
        }
    }
    text += &wanted_text(measured, rate);
    text += "\nlimit: seconds that the file data alone need under the head, nothing else.\n";
    for note in notes(plan) {
        let _ = writeln!(text, "{note}");
    }
    text
}

fn line(one: &Measured, all: &[Measured], rate: f64) -> String {
    let Stats { elapsed_ns, drive, .. } = &one.synced;
    let shown = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"));
    let megabytes = |bytes: u64| bytes as f64 / 1e6;
    let mean_kb = (drive.read_bytes + drive.written_bytes) as f64 / 1e3 / drive.requests.max(1) as f64;
    format!(
        "{:<14} {:<10} {:>9.3} {:>6} {:>6} {:>9.3} {:>7} {:>8.2} {:>7} {:>8.2} {:>7.1} {:>7} {:>7}\n",
        one.workload.name(),
        one.system.name(),
        seconds(*elapsed_ns),
        shown(speedup(one, all)),
        shown(limit_s(one, rate)),
        seconds(one.unmounted.elapsed_ns),
        drive.reads,
        megabytes(drive.read_bytes),
        drive.writes,
        megabytes(drive.written_bytes),
        mean_kb,
        one.synced.seeks(),
        drive.flushes,
    )
}

/// Lists the workloads on which moafs is as fast as wanted, and those on which it is not.
fn wanted_text(measured: &[Measured], rate: f64) -> String {
    let named = |enough: bool| {
        let of_kind = measured.iter().filter(|one| is_enough(one, measured, rate) == Some(enough));
        let names: Vec<String> =
            of_kind.map(|one| format!("{} on {}", one.workload.name(), one.system.name())).collect();
        if names.is_empty() { "none".to_owned() } else { names.join(", ") }
    };
    let percent = LIMIT_SHARE_WANTED * 100.0;
    let (yes, no) = (named(true), named(false));
    format!("\n\n{SPEEDUP_WANTED} times as fast as ext4, or at {percent} % of the limit: {yes}. Not: {no}.\n")
}

fn kinds_text(one: &Measured, counters: &Counters) -> String {
    let kinds = kinds(counters);
    let part = |((verb, kind), (requests, bytes)): (&KindKey, &(u64, u64))| {
        format!("{verb} {kind} {requests} ({})", output::size(*bytes))
    };
    let parts: Vec<String> = kinds.iter().map(part).collect();
    let (workload, system) = (one.workload.name(), one.system.name());
    format!("\n{workload} on {system}: {}, flushes {}", parts.join(", "), counters.flushes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use moafs_disk::model::Totals;

    fn measured(system: System, seconds: u64, bytes: u64) -> Measured {
        let stats = Stats {
            elapsed_ns: seconds * 1_000_000_000,
            drive: Totals { requests: 2, writes: 2, written_bytes: 8192, ..Totals::default() },
            ..Stats::default()
        };
        let (synced, unmounted) = (stats.clone(), stats);
        Measured { system, workload: Workload::Create, synced, unmounted, bytes, kinds: None }
    }

    #[test]
    fn speed_is_told_in_times_of_ext4() {
        let all = [measured(System::Ext4, 9, 77_000_000), measured(System::MoafsExt2, 3, 77_000_000)];
        assert_eq!((speedup(&all[0], &all), speedup(&all[1], &all)), (Some(1.0), Some(3.0)));
        assert_eq!(speedup(&all[1], &all[1..]), None, "without ext4 there is nothing to compare with");
        assert_eq!(limit_s(&all[1], 77e6), Some(1.0));
        let line = line(&all[1], &all, 77e6);
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(words[..6], ["create", "moafs-ext2", "3.000", "3.00", "1.00", "3.000"]);
    }

    #[test]
    fn ours_is_to_be_twice_as_fast_or_near_the_limit() {
        let judged = |ext4, moafs, bytes| {
            let all = [measured(System::Ext4, ext4, bytes), measured(System::MoafsExt2, moafs, bytes)];
            assert_eq!(is_enough(&all[0], &all, 77e6), None);
            is_enough(&all[1], &all, 77e6)
        };
        assert_eq!((judged(10, 5, 0), judged(10, 6, 0)), (Some(true), Some(false)));
        assert_eq!((judged(10, 6, 6 * 77_000_000), judged(10, 6, 4 * 77_000_000)), (Some(true), Some(false)));
    }

    #[test]
    fn a_deletion_has_no_limit() {
        assert_eq!(limit_s(&measured(System::Ext4, 1, 0), 77e6), None);
    }
}
