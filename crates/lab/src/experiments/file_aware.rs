//! File-aware cleaning: files scattered by several synchronous writers, before and after cleaning.
//!
//! Eight writers at once make one file each by synchronous records of 32 KiB. One file is read in
//! order, with and without read-ahead. Then the last file is deleted, so that every segment loses
//! an eighth of its blocks, segments are cleaned until none is left from which data would move, and
//! the file is read again. One run per system serves all five experiments.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use moafs_disk::probe::trace::TraceVerb;
use moafs_disk::{Kind, MemDisk};
use moafs_f2fs::F2fs;
use moafs_f2fs::clean::{Cleaner, Order};
use moafs_f2fs::place::Recycling;
use moafs_vfs::types::{BlockRun, Ino, Lbn};
use moafs_vfs::{Format, Options, Vfs};

use super::rows::{self, Subject};
use crate::error::Result;
use crate::experiment::{Experiment, Lab};
use crate::layout::VolumeLayout;
use crate::log_system::LogMount;
use crate::log_volume::LogShape;
use crate::machine::{Machine, Mount, Setup, Totals};
use crate::outcome::{Chart, ChartForm, Outcome, Row};
use crate::system::System;
use crate::volume::VolumeShape;
use crate::workload::records::{Records, read_by_records};
use crate::write_cache::WriteCache;

const WRITERS: u64 = 8;
const FILE_BYTES: f64 = (1600_u64 << 20) as f64;
const CARD: &str = "sd16-mid";
/// The partition of the card of 15.9 GB, in bytes, for files of 12.5 GiB; a small one has more room beside them.
const PARTITION_BYTES: f64 = (14_u64 << 30) as f64;
const PARTITION_MORE_BYTES: u64 = 192 << 20;
const READ_AHEAD_BYTES: usize = 128 << 10;
/// Memory: the file read is never all in it.
const CACHE_BYTES: usize = 512 << 20;
const CHECKPOINT_S: u64 = 60;
/// Sections cleaned together by the system that sorts several.
const CLEAN_BATCH: u32 = 16;
const GB: f64 = 1e9;

/// The experiments, in the paper's order.
pub(crate) const ALL: [Experiment; 5] = [
    Experiment {
        id: "fac-fragmentation",
        title: "What eight synchronous writers leave of a file",
        figure: "Fig. 7",
        paper: "8 threads create a file of 1.6 GB each by synchronous records of 32 KB. Data block groups of one file: ext4 \
                208, F2FS 51,200 (every record on its own).",
        run: |experiment, lab| run(experiment, lab, fragmentation),
    },
    Experiment {
        id: "fac-readahead",
        title: "Reading a scattered file without and with read-ahead",
        figure: "Fig. 9",
        paper: "Sequential read by records of 32 KB. Without read-ahead ext4 and F2FS are about equal; with 128 KB F2FS is \
                about 32 % below ext4.",
        run: |experiment, lab| run(experiment, lab, read_ahead),
    },
    Experiment {
        id: "fac-read",
        title: "Reading a file after cleaning",
        figure: "Fig. 10",
        paper: "With read-ahead. Ordinary cleaning +9 % over before cleaning; file-aware +32 % over before, +21 % over ordinary.",
        run: |experiment, lab| run(experiment, lab, read),
    },
    Experiment {
        id: "fac-dbg",
        title: "What cleaning leaves of a file",
        figure: "Fig. 11",
        paper: "Data block groups of one file after cleaning: ordinary -5 %, file-aware -60 %.",
        run: |experiment, lab| run(experiment, lab, groups),
    },
    Experiment {
        id: "fac-overhead",
        title: "What file-aware cleaning costs",
        figure: "Fig. 12",
        paper: "Mean time of one cleaning, from start to end: file-aware +154 microseconds, the sort.",
        run: |experiment, lab| run(experiment, lab, overhead),
    },
];

/// The systems that are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FacSystem {
    /// Writes in place: our own ext2 engine, as the paper's ext4.
    Ext,
    /// Ordinary cleaning: blocks leave as they are found.
    Found,
    /// Cleaning by file, one section at a time.
    File,
    /// Cleaning by file, [`CLEAN_BATCH`] sections at a time.
    FileBatch,
}

impl FacSystem {
    const ALL: [FacSystem; 4] = [FacSystem::Ext, FacSystem::Found, FacSystem::File, FacSystem::FileBatch];
    const CLEANING: [FacSystem; 3] = [FacSystem::Found, FacSystem::File, FacSystem::FileBatch];

    fn name(self) -> &'static str {
        match self {
            FacSystem::Ext => "ext",
            FacSystem::Found => "found",
            FacSystem::File => "file",
            FacSystem::FileBatch => "file-gather-16",
        }
    }

    fn mount(self, lab: &Lab<'_>, drive: &str) -> Result<LogMount> {
        Ok(LogMount(moafs_f2fs::OpenOptions {
            cleaner: Cleaner::Greedy,
            clean_order: if self == FacSystem::Found { Order::Found } else { Order::File },
            clean_batch: if self == FacSystem::FileBatch { CLEAN_BATCH } else { 1 },
            recycling: Recycling::Never,
            background: false,
            device: lab.device_cost(drive)?,
            ..moafs_f2fs::OpenOptions::default()
        }))
    }
}

impl fmt::Display for FacSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A case: one system on one drive.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FacCase {
    drive: String,
    system: FacSystem,
}

impl fmt::Display for FacCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {}", self.system, self.drive)
    }
}

/// The measurement of one reading of the file.
#[derive(Debug, Clone)]
struct Reading {
    bytes: u64,
    totals: Totals,
}

/// The work of cleaning.
#[derive(Debug, Clone)]
struct Cleaned {
    sections: u64,
    /// Calls of the cleaner: each takes up to a batch of sections.
    cleanings: u64,
    /// Share of the sections with invalid blocks that were cleaned, in percent.
    share: f64,
    moved_blocks: u64,
    totals: Totals,
    groups: u64,
    read: Reading,
}

/// The measurements of one system.
#[derive(Debug, Clone)]
pub(crate) struct Fac {
    groups: u64,
    plain: Reading,
    ahead: Reading,
    cleaned: Option<Cleaned>,
}

fn run(experiment: &Experiment, lab: &Lab<'_>, rows: fn(&Subject, FacSystem, &Fac) -> Vec<Row>) -> Result<Outcome> {
    let drives = lab.options.parameters.drives(&[CARD]);
    let of_drive = |drive: &String| FacSystem::ALL.map(|system| FacCase { drive: drive.clone(), system });
    let cases: Vec<FacCase> = drives.iter().flat_map(of_drive).collect();
    let done = lab.run_cases(experiment.id, &cases, |case| lab.once(case, || run_case(lab, case)))?;
    let mut outcome = lab.outcome_of(experiment);
    let shape = shape(lab);
    let text = format!("{:.2} GiB of F2FS (ext: as large), sections of 2 MiB", shape.bytes as f64 / f64::from(1 << 30));
    outcome.parameters.insert("volume".to_owned(), text);
    outcome.notes = settled();
    for (case, fac) in cases.iter().zip(&done) {
        let dimensions = BTreeMap::from([("drive".to_owned(), case.drive.clone())]);
        outcome.rows.extend(rows(&Subject { system: case.system.name(), dimensions }, case.system, fac));
        if let Some(cleaned) = &fac.cleaned {
            outcome.notes.push(format!(
                "{case}: {} cleanings of {} sections, {:.0} % of the sections that had invalid blocks.",
                cleaned.cleanings, cleaned.sections, cleaned.share
            ));
        }
    }
    let against = compare(&outcome.rows);
    outcome.rows.extend(against);
    let mut metrics: Vec<String> = outcome.rows.iter().map(|row| row.metric.clone()).collect();
    metrics.dedup();
    for metric in metrics.into_iter().take(1) {
        outcome.charts.push(Chart {
            title: experiment.title.to_owned(),
            form: ChartForm::Bars,
            metric,
            only: BTreeMap::new(),
            along: "when".to_owned(),
        });
    }
    Ok(outcome)
}

/// Returns the shape of the volume at the run's scale.
fn shape(lab: &Lab<'_>) -> LogShape {
    LogShape::of_size((PARTITION_BYTES * lab.options.scale) as u64 + PARTITION_MORE_BYTES)
}

fn run_case(lab: &Lab<'_>, case: &FacCase) -> Result<Fac> {
    match case.system {
        FacSystem::Ext => {
            let bytes = shape(lab).bytes;
            let image = VolumeShape::of_size(bytes, 4096)?.make()?;
            measure(lab, &setup(lab, &case.drive, System::FFS), &image, |_, _| Ok(None))
        }
        system => {
            let (image, _) = shape(lab).make()?;
            measure(lab, &setup(lab, &case.drive, system.mount(lab, &case.drive)?), &image, clean)
        }
    }
}

fn setup<'a, M>(lab: &Lab<'_>, drive: &'a str, mount: M) -> Setup<'a, M> {
    let parameters = &lab.options.parameters;
    let options = Options {
        cache_bytes: (CACHE_BYTES as f64 * lab.options.scale.clamp(0.05, 1.0)) as usize,
        commit_interval: Duration::from_secs(parameters.commit_s.unwrap_or(CHECKPOINT_S)),
        read_ahead_bytes: READ_AHEAD_BYTES,
        transfer_bytes_max: parameters.transfer_bytes as usize,
        ..Options::default()
    };
    let write_cache = parameters.write_cache.unwrap_or(WriteCache::Flushed);
    let cpu = crate::cpu::Cpu::PENTIUM_III.scaled(parameters.cpu_percent);
    Setup { mount, drive, write_cache, merge: true, queue_depth: 1, options, cpu }
}

fn measure<M: Mount>(
    lab: &Lab<'_>,
    setup: &Setup<'_, M>,
    image: &MemDisk,
    clean: impl FnOnce(&mut Machine<M>, Ino) -> Result<Option<Cleaned>>,
) -> Result<Fac> {
    let file_bytes = (FILE_BYTES * lab.options.scale) as u64 / (128 << 10) * (128 << 10);
    let records = Records { writers: WRITERS, file_bytes };
    Machine::run(setup, image, |machine| {
        let files = records.run(machine.client())?;
        machine.client().sync()?;
        let groups = groups_of(machine.client().vfs(), files[0])?;
        let plain = read_file(machine, 0)?;
        let ahead = read_file(machine, READ_AHEAD_BYTES)?;
        let cleaned = clean(machine, files[0])?;
        Ok(Fac { groups, plain, ahead, cleaned })
    })
}

/// Reads the first file, mounted afresh.
fn read_file<M: Mount>(machine: &mut Machine<M>, read_ahead_bytes: usize) -> Result<Reading> {
    machine.remount_reading_ahead(read_ahead_bytes)?;
    let ino = machine.client().open(machine.client().root(), &Records::name(0))?;
    let (bytes, totals) = machine.measure(|machine| read_by_records(machine.client(), ino))?;
    machine.client().close(ino);
    Ok(Reading { bytes, totals })
}

/// Deletes the last file, cleans, and reads the first file again.
fn clean(machine: &mut Machine<LogMount>, file: Ino) -> Result<Option<Cleaned>> {
    let root = machine.client().root();
    machine.client().unlink(root, &Records::name(WRITERS - 1))?;
    machine.client().vfs().run_background_step();
    machine.client().sync()?;
    let format = |machine: &Machine<LogMount>| machine.client().vfs().clone();
    let dirty = format(machine).format().dirty_sections();
    // Synchronous writers leave many sections of nodes nearly empty, and those are cleaned first.
    let fruitless_max = u64::from(format(machine).format().geometry().sections);
    let ((sections, cleanings), totals) = machine.measure(|machine| {
        let vfs = format(machine);
        let (mut sections, mut cleanings, mut fruitless) = (0, 0, 0);
        while sections < 2 * dirty && fruitless < fruitless_max && vfs.format().dirty_sections() > 0 {
            let before = vfs.format().counters().moved_blocks;
            let cleaned = u64::from(vfs.format().clean().map_err(crate::LabError::volume("cleaning"))?);
            if cleaned == 0 {
                break;
            }
            let moved = vfs.format().counters().moved_blocks > before;
            fruitless = if moved { 0 } else { fruitless + 1 };
            sections += if moved { cleaned } else { 0 };
            cleanings += u64::from(moved);
        }
        Ok((sections, cleanings))
    })?;
    let moved_blocks = format(machine).format().counters().moved_blocks;
    let groups = groups_of::<F2fs>(machine.client().vfs(), file)?;
    let read = read_file(machine, READ_AHEAD_BYTES)?;
    let share = sections as f64 * 100.0 / dirty.max(1) as f64;
    Ok(Some(Cleaned { sections, cleanings, share: share.min(100.0), moved_blocks, totals, groups, read }))
}

/// Counts the data block groups of a file: runs that are adjacent on the disk and in the file.
fn groups_of<F: Format>(vfs: &Vfs<F>, file: Ino) -> Result<u64> {
    let layout = VolumeLayout::of(vfs)?;
    Ok(layout.files.get(&file).map_or(0, |file| groups_in(&file.runs)))
}

fn groups_in(runs: &[(Lbn, BlockRun)]) -> u64 {
    let apart = |pair: &[(Lbn, BlockRun)]| {
        let ((at, run), (next_at, next)) = (&pair[0], &pair[1]);
        at.0 + u64::from(run.len) != next_at.0 || run.end() != next.start
    };
    runs.windows(2).filter(|pair| apart(pair)).count() as u64 + u64::from(!runs.is_empty())
}

// -- rows

fn bandwidth(reading: &Reading) -> f64 {
    rows::bandwidth(reading.bytes, reading.totals.now_ns)
}

fn requests(reading: &Reading) -> f64 {
    reading.totals.requests.requests(|count| count.verb == TraceVerb::Read && count.kind == Kind::Data) as f64
}

fn fragmentation(subject: &Subject, system: FacSystem, fac: &Fac) -> Vec<Row> {
    let paper = if system == FacSystem::Ext { 208.0 } else { 51_200.0 };
    match system {
        FacSystem::Ext | FacSystem::Found => {
            vec![subject.with("when", "written").row_beside("groups", fac.groups as f64, "", Some(paper))]
        }
        FacSystem::File | FacSystem::FileBatch => Vec::new(),
    }
}

fn read_ahead(subject: &Subject, system: FacSystem, fac: &Fac) -> Vec<Row> {
    if !matches!(system, FacSystem::Ext | FacSystem::Found) {
        return Vec::new();
    }
    [("without read-ahead", &fac.plain), ("with 128 KiB", &fac.ahead)]
        .into_iter()
        .flat_map(|(when, reading)| {
            let subject = subject.with("when", when);
            [subject.row("bandwidth", bandwidth(reading), "MB/s"), subject.row("requests", requests(reading), "")]
        })
        .collect()
}

fn read(subject: &Subject, system: FacSystem, fac: &Fac) -> Vec<Row> {
    let Some(cleaned) = &fac.cleaned else { return Vec::new() };
    let paper = match system {
        FacSystem::Found => Some(9.0),
        FacSystem::File => Some(32.0),
        FacSystem::Ext | FacSystem::FileBatch => None,
    };
    let (before, after) = (bandwidth(&fac.ahead), bandwidth(&cleaned.read));
    vec![
        subject.with("when", "before cleaning").row("bandwidth", before, "MB/s"),
        subject.with("when", "after cleaning").row("bandwidth", after, "MB/s"),
        subject.with("when", "before cleaning").row("requests", requests(&fac.ahead), ""),
        subject.with("when", "after cleaning").row("requests", requests(&cleaned.read), ""),
        subject.with("against", "before cleaning").row_beside("gain", (after / before - 1.0) * 100.0, "%", paper),
    ]
}

fn groups(subject: &Subject, system: FacSystem, fac: &Fac) -> Vec<Row> {
    let Some(cleaned) = &fac.cleaned else { return Vec::new() };
    let paper = match system {
        FacSystem::Found => Some(-5.0),
        FacSystem::File => Some(-60.0),
        FacSystem::Ext | FacSystem::FileBatch => None,
    };
    let change = (cleaned.groups as f64 / fac.groups.max(1) as f64 - 1.0) * 100.0;
    vec![
        subject.with("when", "before cleaning").row("groups", fac.groups as f64, ""),
        subject.with("when", "after cleaning").row("groups", cleaned.groups as f64, ""),
        subject.with("against", "before cleaning").row_beside("change", change, "%", paper),
        subject.row("share_cleaned", cleaned.share, "%"),
    ]
}

fn overhead(subject: &Subject, _system: FacSystem, fac: &Fac) -> Vec<Row> {
    let Some(cleaned) = &fac.cleaned else { return Vec::new() };
    let bytes = |verb: TraceVerb, data: bool| {
        cleaned.totals.requests.bytes(|count| count.verb == verb && (count.kind == Kind::Data) == data) as f64 / GB
    };
    let sections = cleaned.sections.max(1) as f64;
    vec![
        subject.row("time_per_section", cleaned.totals.now_ns as f64 / 1e3 / sections, "us"),
        subject.row("sections", cleaned.sections as f64, ""),
        subject.row("blocks_moved", cleaned.moved_blocks as f64, ""),
        subject.row("data_read", bytes(TraceVerb::Read, true), "GB"),
        subject.row("data_written", bytes(TraceVerb::Write, true), "GB"),
        subject.row("metadata_written", bytes(TraceVerb::Write, false), "GB"),
    ]
}

/// Compares file-aware with ordinary cleaning.
fn compare(rows: &[Row]) -> Vec<Row> {
    let after = |row: &&Row| {
        row.metric == "bandwidth" && row.dimensions.get("when").is_some_and(|when| when == "after cleaning")
    };
    let mut compared = Vec::new();
    for row in rows.iter().filter(after) {
        let Some(system) = FacSystem::CLEANING.into_iter().find(|system| system.name() == row.system) else { continue };
        let ordinary = |other: &&Row| {
            other.system == FacSystem::Found.name() && other.dimensions["drive"] == row.dimensions["drive"]
        };
        let Some(other) = rows.iter().filter(after).find(ordinary).filter(|_| system != FacSystem::Found) else {
            continue;
        };
        let dimensions = BTreeMap::from([("drive".to_owned(), row.dimensions["drive"].clone())]);
        let subject = Subject { system: system.name(), dimensions }.with("against", "ordinary cleaning");
        let paper = (system == FacSystem::File).then_some(21.0);
        compared.push(subject.row_beside("gain", (row.value / other.value - 1.0) * 100.0, "%", paper));
    }
    compared
}

fn settled() -> Vec<String> {
    [
        "ext4 is the kernel's and cannot run inside the lab: `ext` is our own ext2 engine, as the file system that writes in \
         place. Its blocks are placed when they leave the cache, so synchronous records of eight writers alternate there as well.",
        "How cleaning was set off and how much was cleaned is not given. Ours: the last of the eight files is deleted, then \
         sections (one segment of 2 MiB) are cleaned, the emptiest first, until no data would move.",
        "A data block group is a run of blocks adjacent on the disk and in the file.",
        "`file-gather-16` sorts 16 sections together, which the paper does not have.",
        "Times are the device's: a sort in memory takes none in the lab. What the paper's 154 microseconds are made of, some \
         thousand comparisons, is therefore not in `time_per_section`; a difference there comes from where blocks went.",
    ]
    .map(str::to_owned)
    .to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use moafs_vfs::types::BlockAddr;

    #[test]
    fn groups_are_adjacent_on_the_disk_and_in_the_file() {
        let run = |lbn, start, len| (Lbn(lbn), BlockRun { start: BlockAddr(start), len });
        assert_eq!(groups_in(&[]), 0);
        // The paper's Fig. 8: eight blocks of which four are adjacent.
        let paper = [run(0, 10, 4), run(4, 20, 1), run(5, 30, 1), run(6, 40, 1), run(7, 50, 1)];
        assert_eq!(groups_in(&paper), 5);
        assert_eq!(groups_in(&[run(0, 10, 4), run(4, 14, 2), run(8, 16, 1)]), 2);
    }
}
