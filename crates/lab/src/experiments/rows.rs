//! Measured totals as rows of a table.

use std::collections::BTreeMap;

use moafs_disk::Kind;
use moafs_disk::model::FlashCounters;
use moafs_disk::probe::trace::TraceVerb;

use crate::layout::Pieces;
use crate::machine::Totals;
use crate::outcome::Row;

const GB: f64 = 1e9;
const MB: f64 = 1e6;
const NS: f64 = 1e9;
const SECTOR_BYTES: f64 = 512.0;

/// The subject of a table's numbers: a system under certain conditions.
#[derive(Debug, Clone)]
pub(super) struct Subject {
    pub(super) system: &'static str,
    pub(super) dimensions: BTreeMap<String, String>,
}

impl Subject {
    /// Returns the same subject with one more dimension.
    pub(super) fn with(&self, name: &str, value: impl ToString) -> Subject {
        let mut dimensions = self.dimensions.clone();
        dimensions.insert(name.to_owned(), value.to_string());
        Subject { system: self.system, dimensions }
    }

    /// Makes a row about the subject.
    pub(super) fn row(&self, metric: &str, value: f64, unit: &str) -> Row {
        Row {
            system: self.system.to_owned(),
            dimensions: self.dimensions.clone(),
            metric: metric.to_owned(),
            // One number, one text: no trailing digits that say nothing.
            value: (value * 1e6).round() / 1e6,
            unit: unit.to_owned(),
            ..Row::default()
        }
    }

    /// Makes a row about the subject, beside the paper's number.
    pub(super) fn row_beside(&self, metric: &str, value: f64, unit: &str, paper: Option<f64>) -> Row {
        Row { paper, ..self.row(metric, value, unit) }
    }
}

/// Makes rows of the counters of one phase.
pub(super) fn of_totals(subject: &Subject, totals: &Totals) -> Vec<Row> {
    let drive = &totals.drive;
    let background = &totals.background;
    let seconds = |ns: u64| ns as f64 / NS;
    let moved = drive.read_bytes + drive.written_bytes;
    let mut rows = vec![
        subject.row("elapsed", seconds(totals.now_ns), "s"),
        subject.row("requests", drive.requests as f64, ""),
        subject.row("request_size", ratio(moved, drive.requests) / 1024.0, "KiB"),
        subject.row("seeks", (drive.seeks + background.destage_seeks) as f64, ""),
        subject.row("seek_distance", ratio(drive.seek_sectors, drive.seeks) * SECTOR_BYTES / MB, "MB"),
        subject.row("flushes", drive.flushes as f64, ""),
        subject.row("time_seek", seconds(drive.seek_ns), "s"),
        subject.row("time_rotation", seconds(drive.rotation_ns), "s"),
        subject.row("time_transfer", seconds(drive.transfer_ns), "s"),
        subject.row("time_overhead", seconds(drive.overhead_ns + drive.bus_ns), "s"),
        subject.row("time_wait", seconds(drive.wait_ns), "s"),
        subject.row("time_queue", seconds(drive.queue_ns), "s"),
        subject.row("time_idle", seconds(drive.idle_ns), "s"),
        subject.row("time_cpu", seconds(totals.cpu_ns), "s"),
        subject.row("destages", background.destages as f64, ""),
        subject.row("time_destage", seconds(background.destage_ns), "s"),
    ];
    if let Some(flash) = &totals.flash {
        rows.push(subject.row("time_gc", seconds(drive.gc_ns), "s"));
        rows.push(subject.row("flash_pages", flash.host_pages as f64, ""));
        rows.push(subject.row("flash_pages_copied", flash.gc_pages as f64, ""));
        rows.extend(of_wear(subject, flash));
    }
    if totals.co_writes > 0 {
        rows.push(subject.row("co_writes", totals.co_writes as f64, ""));
        rows.push(subject.row("files_per_co_write", ratio(totals.co_written_files, totals.co_writes), ""));
    }
    if totals.co_reads > 0 {
        rows.push(subject.row("co_reads", totals.co_reads as f64, ""));
    }
    for verb in [TraceVerb::Read, TraceVerb::Write] {
        for kind in Kind::ALL {
            let requests = totals.requests.requests(|count| count.verb == verb && count.kind == kind);
            if requests > 0 {
                let what = format!("{verb:?} {kind:?}").to_lowercase();
                rows.push(subject.with("what", what).row("requests", requests as f64, ""));
            }
        }
    }
    rows
}

/// Makes rows of what wears flash.
pub(super) fn of_wear(subject: &Subject, flash: &FlashCounters) -> Vec<Row> {
    let programmed = (flash.host_pages + flash.gc_pages) * flash.page_bytes;
    vec![
        subject.row("flash_programmed", programmed as f64 / GB, "GB"),
        subject.row("flash_erases", flash.erases as f64, ""),
        subject.row("flash_write_amplification", flash.write_amplification(), ""),
    ]
}

/// Makes rows about the layout of the files that a workload made.
pub(super) fn of_pieces(subject: &Subject, pieces: &Pieces) -> Vec<Row> {
    let mut rows = vec![
        subject.row("runs_per_file", pieces.runs_per_file, ""),
        subject.row("runs_per_directory", pieces.runs_per_directory, ""),
    ];
    if let Some(score) = pieces.score {
        rows.push(subject.row("layout_score_new", score, ""));
    }
    rows
}

/// Returns the bandwidth in MB/s (10^6 bytes per second).
pub(super) fn bandwidth(bytes: u64, ns: u64) -> f64 {
    if ns == 0 { 0.0 } else { bytes as f64 / MB / (ns as f64 / NS) }
}

fn ratio(sum: u64, count: u64) -> f64 {
    if count == 0 { 0.0 } else { sum as f64 / count as f64 }
}
