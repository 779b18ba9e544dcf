//! CW-FFS: co-writing against FFS, on aged volumes of several utilizations.
//!
//! Every case starts from the same aged image at its utilization, on a machine of its own. The
//! clock runs from the first call to the end of a final sync; making directories (and, where the
//! paper reads, mounting afresh) comes before.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use moafs_vfs::Options;
use moafs_vfs::types::Ino;
use moafs_workload::{Append, Postmark, Sizes};

use super::notes;
use super::rows::{self, Subject};
use crate::error::{LabError, Result};
use crate::experiment::{Experiment, Lab};
use crate::layout::{Pieces, VolumeLayout};
use crate::machine::{Machine, Setup, Totals};
use crate::outcome::{Chart, ChartForm, LayoutMap, Outcome, Row, Scatter};
use crate::parameters::Parameters;
use crate::system::System;
use crate::workload::build::Build;
use crate::workload::create::{Create, Order};
use crate::workload::postmark::{self, Tally};
use crate::workload::read_all::ReadAll;
use crate::write_cache::WriteCache;

/// The smallest cache that a scaled machine has, in bytes: a few requests of the largest size.
const CACHE_BYTES_MIN: u64 = 2 << 20;
/// Metadata were written this often, in seconds: OpenBSD's soft updates.
const COMMIT_S: u64 = 30;
/// Block size of the paper's volume in bytes.
const BLOCK_BYTES: u64 = 16 << 10;
/// Directories of Fig. 11 to 14.
const DIRECTORIES: u64 = 50;
/// Files in each directory.
const FILES_EACH: u64 = 100;
/// Utilizations of Fig. 11 to 14.
const UTILIZATIONS: &[u8] = &[0, 10, 30, 50, 70, 90];
/// Utilizations of Fig. 17.
const POSTMARK_UTILIZATIONS: &[u8] = &[0, 30, 50, 70];
/// The utilization of which layout maps and head positions are shown.
const SHOWN_UTILIZATION: u8 = 30;
/// Commands shown in a picture of head positions.
const SCATTER_POINTS: usize = 3000;
/// Cells in a row (a group) of a layout map.
const MAP_COLUMNS: usize = 128;
/// Bytes of a large file.
const LARGE_BYTES: u64 = 100_000_000;
/// Divisor of the free space that large files take.
const LARGE_SHARE: u64 = 4;
/// Most bytes in large files: more do not make their bandwidth more certain.
const LARGE_ALL_BYTES_MAX: u64 = 1_000_000_000;

/// The experiments, in the paper's order.
pub(crate) const ALL: [Experiment; 7] = [
    Experiment {
        id: "cw-seq-write",
        title: "Creating small files directory by directory",
        figure: "Fig. 11",
        paper: "50 directories, 100 files of one 16 KB block each, created and written directory by directory. Write \
                bandwidth of CW-FFS against FFS: +1 % at 0 %, +13 % at 30 %, +8 % at 50 %, 1 to 13 % in all; the gain \
                shrinks at 70 and 90 %.",
        run: |experiment, lab| run(&SEQ_WRITE, experiment, lab),
    },
    Experiment {
        id: "cw-random-write",
        title: "Creating small files in random directories",
        figure: "Fig. 12",
        paper: "50 directories; a random one each time, create a file there and write it, repeatedly. Write bandwidth of \
                CW-FFS against FFS: about +60 % at 0 to 10 %, +22 % at 30 %, +10 % at 50 %, about +5 % at 70 to 90 %.",
        run: |experiment, lab| run(&RANDOM_WRITE, experiment, lab),
    },
    Experiment {
        id: "cw-seq-read",
        title: "Reading all files of each directory, after they were made in random order",
        figure: "Fig. 13",
        paper: "After the random write, all files of each directory are read in order. Read bandwidth: about equal.",
        run: |experiment, lab| run(&SEQ_READ, experiment, lab),
    },
    Experiment {
        id: "cw-large-write",
        title: "Creating large files",
        figure: "Fig. 14",
        paper: "50 directories, 4 files of 100 MB each, created and written directory by directory. Write bandwidth: about \
                equal.",
        run: |experiment, lab| run(&LARGE_WRITE, experiment, lab),
    },
    Experiment {
        id: "cw-build",
        title: "Building a kernel",
        figure: "Fig. 15",
        paper: "1,064 sources, most below 64 KB, are compiled; 17.64 MB of object files are written, directory by directory. \
                Elapsed time about 5 % shorter with CW-FFS.",
        run: |experiment, lab| run(&BUILD, experiment, lab),
    },
    Experiment {
        id: "cw-postmark",
        title: "Postmark with file sizes of a real server (R-FSL)",
        figure: "Fig. 17, Table 3",
        paper: "25,000 files in 200 directories, 50,000 transactions, sizes from a real server. Elapsed time of both phases 6 \
                to 27 % shorter with CW-FFS, most (27 %) at 30 %, less at 50 and 70 %. Table 3 gives operations per second \
                in the transaction phase.",
        run: |experiment, lab| run(&POSTMARK_R_FSL, experiment, lab),
    },
    Experiment {
        id: "cw-postmark-fsl",
        title: "Postmark with 512 B to 10 KB (FSL)",
        figure: "Table 2",
        paper: "20,000 files in 200 directories, 200,000 transactions, 512 B to 10 KB. The paper lists this configuration \
                and measures R-FSL only.",
        run: |experiment, lab| run(&POSTMARK_FSL, experiment, lab),
    },
];

/// The metric by which an experiment's tables compare the systems.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Headline {
    /// Bandwidth: more is better; the comparison is called `gain`.
    Bandwidth,
    /// Elapsed time: less is better; the comparison is called `change`.
    Elapsed,
}

impl Headline {
    /// Returns the metric, and the name of its comparison.
    fn metrics(self) -> (&'static str, &'static str) {
        match self {
            Headline::Bandwidth => ("bandwidth", "gain"),
            Headline::Elapsed => ("elapsed", "change"),
        }
    }
}

/// An experiment of this paper.
struct Plan {
    utilizations: &'static [u8],
    headline: Headline,
    /// The paper's numbers for co-writing against FFS, in percent, by utilization in percent.
    paper: &'static [(u8, f64)],
    /// Function that does the work on a machine.
    work: fn(&mut Machine<System>, &Lab<'_>) -> Result<Work>,
    /// True if the report shows layout maps and head positions of one case.
    shown: bool,
    /// Choices of ours for details that the paper leaves open.
    settled: &'static [&'static str],
}

/// The result of a workload.
struct Work {
    /// Bytes that count for the bandwidth.
    bytes: u64,
    /// Counters of the time while the clock ran.
    totals: Totals,
    /// Operations of each kind per second: Table 3.
    rates: Vec<(&'static str, f64)>,
}

const CREATE_SETTLED: &str = "The clock runs from the first create to the end of a sync; the directories were made and synced \
                              before. Bandwidth is file data over that time.";

const SEQ_WRITE: Plan = Plan {
    utilizations: UTILIZATIONS,
    headline: Headline::Bandwidth,
    paper: &[(0, 1.0), (30, 13.0), (50, 8.0)],
    work: |machine, lab| create(machine, lab, Order::Sequential),
    shown: false,
    settled: &[CREATE_SETTLED],
};

const RANDOM_WRITE: Plan = Plan {
    utilizations: UTILIZATIONS,
    headline: Headline::Bandwidth,
    paper: &[(0, 60.0), (10, 60.0), (30, 22.0), (50, 10.0), (70, 5.0), (90, 5.0)],
    work: |machine, lab| create(machine, lab, random_order(lab)),
    shown: true,
    settled: &[
        CREATE_SETTLED,
        "File size and count are not given; as in Fig. 11: 5,000 files of one block. Each file's directory is drawn, all \
         equally likely.",
    ],
};

const SEQ_READ: Plan = Plan {
    utilizations: UTILIZATIONS,
    headline: Headline::Bandwidth,
    paper: &[(0, 0.0), (10, 0.0), (30, 0.0), (50, 0.0), (70, 0.0), (90, 0.0)],
    work: read_after_random_write,
    shown: false,
    settled: &[
        "The volume is mounted afresh after the write, so that nothing is cached. Directories are read one after the other, \
         files in the order in which the directory lists them (that of their creation).",
        "`cowrite` reads with co-reading, which the paper does not have: a miss of a small file brings its neighbours in one \
         request, where that costs less than reading file by file. `--set coread=0` turns it off.",
    ],
};

const LARGE_WRITE: Plan = Plan {
    utilizations: UTILIZATIONS,
    headline: Headline::Bandwidth,
    paper: &[(0, 0.0), (10, 0.0), (30, 0.0), (50, 0.0), (70, 0.0), (90, 0.0)],
    work: large,
    shown: false,
    settled: &[
        "200 files of 100 MB are 20 GB, on a volume of 4 GB. We keep the size of the files, one in each directory, and make \
         as many as fill a quarter of the free space, ten at most.",
    ],
};

const BUILD: Plan = Plan {
    utilizations: UTILIZATIONS,
    headline: Headline::Elapsed,
    paper: &[(30, -5.0)],
    work: build,
    shown: false,
    settled: &[
        "Not given: utilization, number of directories, time to compile. We take every utilization and hold the paper's 5 % \
         against 30 %; 40 directories; and `compile_ms` of processor time for each source, the same for all systems.",
        "Sources have R-FSL sizes, cut off at 64 KB; an object's size is in proportion to its source's, 17.64 MB in all. \
         \"About 10 %\" for a real application (introduction) is against about 5 % (section 5.3): we take the measured one.",
    ],
};

const POSTMARK_SETTLED: &str = "\"25,000 files per directory\" (section 5.4) is read as 25,000 in all (Table 2). \"5 to 35 %\" \
                                (abstract) fits the operation rates of Table 3, 6 to 27 % the elapsed time: we show both. \
                                Utilization is before the run.";

const POSTMARK_R_FSL: Plan = Plan {
    utilizations: POSTMARK_UTILIZATIONS,
    headline: Headline::Elapsed,
    paper: &[(30, -27.0)],
    work: |machine, lab| {
        postmark(
            machine,
            &Postmark {
                files: lab.scaled(25_000, 50),
                directories: lab.scaled(200, 4),
                sizes: Sizes::R_FSL,
                transactions: lab.scaled(50_000, 100),
                bias_read: 5,
                bias_create: 5,
                append: Append::Block(BLOCK_BYTES),
                seed: lab.options.seed,
            },
        )
    },
    shown: false,
    settled: &[
        POSTMARK_SETTLED,
        "Sizes: the web server's column of Tanenbaum, Herder, Bos 2006, the only one with the paper's 79 % at 8 KB; \
         log-linear between its points, cut off at 1 MB. An append adds a block of 16 KB.",
    ],
};

const POSTMARK_FSL: Plan = Plan {
    utilizations: POSTMARK_UTILIZATIONS,
    headline: Headline::Elapsed,
    paper: &[],
    work: |machine, lab| {
        postmark(
            machine,
            &Postmark {
                files: lab.scaled(20_000, 50),
                directories: lab.scaled(200, 4),
                sizes: Sizes::FSL,
                transactions: lab.scaled(200_000, 100),
                bias_read: 5,
                bias_create: 5,
                append: Append::UpToMax,
                seed: lab.options.seed,
            },
        )
    },
    shown: false,
    settled: &[POSTMARK_SETTLED, "Appends are the original's: a drawn length that keeps the file within 10 KB."],
};

/// Table 3: operations per second at 0, 30, 50, 70 %: FFS, CW-FFS.
const TABLE_3: [(&str, [f64; 4], [f64; 4]); 4] = [
    ("write", [9.0, 12.0, 14.0, 13.0], [12.0, 15.0, 15.0, 15.0]),
    ("read", [9.0, 11.0, 13.0, 13.0], [12.0, 15.0, 15.0, 14.0]),
    ("append", [9.0, 12.0, 14.0, 13.0], [12.0, 15.0, 15.0, 14.0]),
    ("delete", [9.0, 11.0, 13.0, 13.0], [12.0, 15.0, 15.0, 14.0]),
];

// -- the work

fn random_order(lab: &Lab<'_>) -> Order {
    Order::Random { seed: lab.options.seed }
}

fn create_spec(lab: &Lab<'_>, order: Order) -> Create {
    let directories = lab.scaled(DIRECTORIES, 4);
    Create { directories, files: directories * FILES_EACH, file_bytes: BLOCK_BYTES, order }
}

fn create(machine: &mut Machine<System>, lab: &Lab<'_>, order: Order) -> Result<Work> {
    let spec = create_spec(lab, order);
    measure_create(machine, &spec)
}

fn measure_create(machine: &mut Machine<System>, spec: &Create) -> Result<Work> {
    let dirs = spec.prepare(machine.client())?;
    let ((), totals) = machine.measure(|machine| spec.run(machine.client(), &dirs))?;
    Ok(Work { bytes: spec.files * spec.file_bytes, totals, rates: Vec::new() })
}

fn read_after_random_write(machine: &mut Machine<System>, lab: &Lab<'_>) -> Result<Work> {
    let spec = create_spec(lab, random_order(lab));
    measure_create(machine, &spec)?;
    machine.remount()?;
    let names: Vec<String> = (0..spec.directories).map(|number| format!("d{number:04}")).collect();
    let (read, totals) = machine.measure(|machine| ReadAll::run(machine.client(), &names))?;
    Ok(Work { bytes: read.bytes, totals, rates: Vec::new() })
}

fn large(machine: &mut Machine<System>, lab: &Lab<'_>) -> Result<Work> {
    let space = machine.client().vfs().stat_fs();
    let free_bytes = space.free * u64::from(space.block_size);
    let file_bytes = lab.scaled(LARGE_BYTES, 64 * BLOCK_BYTES);
    let all_bytes = (free_bytes / LARGE_SHARE).min(lab.scaled(LARGE_ALL_BYTES_MAX, 0));
    let files = (all_bytes / file_bytes).max(1);
    measure_create(machine, &Create { directories: files, files, file_bytes, order: Order::Sequential })
}

fn build(machine: &mut Machine<System>, lab: &Lab<'_>) -> Result<Work> {
    let spec = Build {
        sources: lab.scaled(1064, 40),
        directories: lab.scaled(40, 4),
        source_sizes: Sizes::Real { bytes_max: 64 << 10 },
        object_bytes: lab.scaled(17_640_000, 660_000),
        compile_ns: lab.options.parameters.compile_ms * 1_000_000,
        seed: lab.options.seed,
    };
    let tree = spec.prepare(machine.client())?;
    machine.remount()?;
    let (bytes, totals) = machine.measure(|machine| spec.run(machine.client(), &tree))?;
    Ok(Work { bytes, totals, rates: Vec::new() })
}

fn postmark(machine: &mut Machine<System>, spec: &Postmark) -> Result<Work> {
    let (tally, totals) = machine.measure(|machine| postmark::run(spec, machine.client()))?;
    Ok(Work { bytes: tally.written_bytes + tally.read_bytes, totals, rates: rates(&tally) })
}

fn rates(tally: &Tally) -> Vec<(&'static str, f64)> {
    let per_second = |count: u64| count as f64 * 1e9 / tally.transactions_ns.max(1) as f64;
    vec![
        ("write", per_second(tally.creates)),
        ("read", per_second(tally.reads)),
        ("append", per_second(tally.appends)),
        ("delete", per_second(tally.deletes)),
    ]
}

// -- cases

/// A case: one system on one drive at one utilization.
struct Case {
    drive: String,
    utilization: u8,
    system: System,
    shown: bool,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {} at {} %", self.system, self.drive, self.utilization)
    }
}

/// The result of a case.
enum Measured {
    Done(Box<Done>),
    /// The workload stopped because the volume was full.
    Stopped(String),
}

struct Done {
    work: Work,
    score_before: Option<f64>,
    pieces: Pieces,
    heads: Vec<(f64, f64)>,
    maps: Vec<LayoutMap>,
}

/// Returns the setup of the paper's machine with this system.
fn setup<'a>(system: System, drive: &'a str, parameters: &Parameters, scale: f64) -> Setup<'a, System> {
    let cache_bytes = (parameters.cache_bytes as f64 * scale.min(1.0)) as u64;
    let options = Options {
        cache_bytes: cache_bytes.max(CACHE_BYTES_MIN) as usize,
        dirty_percent: parameters.dirty_percent,
        dirty_age: Duration::from_secs(parameters.age_s),
        commit_interval: Duration::from_secs(parameters.commit_s.unwrap_or(COMMIT_S)),
        read_ahead_bytes: parameters.read_ahead_bytes as usize,
        co_read_bytes: if system.co_reads() { parameters.co_read_bytes as usize } else { 0 },
        transfer_bytes_max: parameters.transfer_bytes as usize,
        ..Options::default()
    };
    let (write_cache, merge) = (parameters.write_cache.unwrap_or(WriteCache::On), system.merges());
    let mount = system.with_directories(parameters.directories);
    Setup { mount, drive, write_cache, merge, queue_depth: 1, options, cpu: parameters.cpu() }
}

fn run(plan: &Plan, experiment: &Experiment, lab: &Lab<'_>) -> Result<Outcome> {
    let cases = cases(plan, lab);
    let measured = lab.run_cases(experiment.id, &cases, |case| measure(plan, lab, case))?;
    let mut outcome = lab.outcome_of(experiment);
    outcome.notes = plan.settled.iter().map(|text| (*text).to_owned()).collect();
    outcome.notes.extend(notes::common(&lab.options.parameters));
    let mut heads = BTreeMap::new();
    for (case, measured) in cases.iter().zip(measured) {
        match measured {
            Measured::Stopped(text) => outcome.notes.push(format!("{case}: {text}. Its numbers are left out.")),
            Measured::Done(done) => {
                outcome.rows.extend(rows_of(plan, case, &done));
                outcome.maps.extend(done.maps);
                if !done.heads.is_empty() {
                    heads.insert(case.system.name().to_owned(), done.heads);
                }
            }
        }
    }
    let compared = compare(plan, &outcome.rows);
    outcome.rows.extend(compared);
    let steps = ablation(plan, &outcome.rows);
    outcome.rows.extend(steps);
    outcome.notes.extend(notes::why(&outcome.rows));
    outcome.charts = charts(plan, lab);
    if !heads.is_empty() {
        let title = format!("where the head was, {SHOWN_UTILIZATION} % full");
        outcome.scatters.push(Scatter { title, axes: ("access".to_owned(), "sector".to_owned()), points: heads });
    }
    Ok(outcome)
}

/// Returns the drives to run on: both interpretations of the paper's drive, unless others are asked
/// for.
fn drives(parameters: &Parameters) -> Vec<String> {
    parameters.drives(&["mpg3307at", "mpg3307at-as-published"])
}

fn cases(plan: &Plan, lab: &Lab<'_>) -> Vec<Case> {
    let parameters = &lab.options.parameters;
    let utilizations = parameters.utilizations.as_deref().unwrap_or(plan.utilizations);
    let systems = parameters.systems(&System::ALL, &System::DEFAULT);
    let mut cases = Vec::new();
    for (at, drive) in drives(parameters).iter().enumerate() {
        for &utilization in utilizations {
            let shown = plan.shown && at == 0 && utilization == SHOWN_UTILIZATION;
            let case = |system: &System| {
                let shown = shown && !System::STEPS_ONLY.contains(system);
                Case { drive: drive.clone(), utilization, system: *system, shown }
            };
            cases.extend(systems.iter().map(case));
        }
    }
    cases
}

fn measure(plan: &Plan, lab: &Lab<'_>, case: &Case) -> Result<Measured> {
    let aged = lab.aged(case.utilization)?;
    let parameters = &lab.options.parameters;
    let setup = setup(case.system, &case.drive, parameters, lab.options.scale);
    let done = Machine::run(&setup, &aged.image, |machine| {
        let before = VolumeLayout::of(machine.client().vfs())?;
        if case.shown {
            machine.record(SCATTER_POINTS);
        }
        let work = (plan.work)(machine, lab)?;
        let heads = machine.take().iter().enumerate().map(|(at, s)| (at as f64, s.command.at.0 as f64)).collect();
        let after = VolumeLayout::of(machine.client().vfs())?;
        let there: BTreeSet<Ino> = before.files.keys().copied().collect();
        let maps = if case.shown { pictures(lab, case, &before, &after) } else { Vec::new() };
        Ok(Done { work, score_before: aged.score, pieces: after.pieces_of_new(&there), heads, maps })
    });
    match done {
        Ok(done) => Ok(Measured::Done(Box::new(done))),
        Err(error @ LabError::Full { .. }) => Ok(Measured::Stopped(error.to_string())),
        Err(error) => Err(error),
    }
}

/// Draws the layout before (once, it is the same for all systems) and after the workload.
fn pictures(lab: &Lab<'_>, case: &Case, before: &VolumeLayout, after: &VolumeLayout) -> Vec<LayoutMap> {
    let shape = lab.shape();
    let picture = |layout: &VolumeLayout, title: String| {
        layout.map(title, shape.blocks(), shape.blocks_per_group.into(), MAP_COLUMNS)
    };
    let mut maps = Vec::new();
    if lab.options.parameters.systems(&System::ALL, &System::DEFAULT).first() == Some(&case.system) {
        maps.push(picture(before, format!("{} % full, before", case.utilization)));
    }
    maps.push(picture(after, format!("{}, {} % full, after", case.system, case.utilization)));
    maps
}

// -- tables

fn subject(case: &Case) -> Subject {
    let dimensions = BTreeMap::from([
        ("drive".to_owned(), case.drive.clone()),
        ("utilization".to_owned(), case.utilization.to_string()),
    ]);
    Subject { system: case.system.name(), dimensions }
}

fn rows_of(plan: &Plan, case: &Case, done: &Done) -> Vec<Row> {
    let subject = subject(case);
    let mut rows = Vec::new();
    if plan.headline == Headline::Bandwidth {
        rows.push(subject.row("bandwidth", rows::bandwidth(done.work.bytes, done.work.totals.now_ns), "MB/s"));
    }
    rows.extend(rows::of_totals(&subject, &done.work.totals));
    rows.extend(done.score_before.map(|score| subject.row("layout_score_before", score, "")));
    rows.extend(rows::of_pieces(&subject, &done.pieces));
    for (operation, rate) in &done.work.rates {
        let paper = table_3(plan, case, operation);
        rows.push(subject.with("operation", operation).row_beside("rate", *rate, "1/s", paper));
    }
    rows
}

/// Returns the paper's rate of an operation, for the systems it measured.
fn table_3(plan: &Plan, case: &Case, operation: &str) -> Option<f64> {
    let at = POSTMARK_UTILIZATIONS.iter().position(|utilization| *utilization == case.utilization)?;
    let (_, ffs, co_writing) = TABLE_3.iter().find(|(name, ..)| *name == operation)?;
    match case.system {
        _ if plan.paper.is_empty() => None,
        System::FFS_PAPER => Some(ffs[at]),
        System::COWRITE_PAPER => Some(co_writing[at]),
        _ => None,
    }
}

/// Compares each system that co-writes and places directories as the others do with each baseline, in percent. The
/// paper's numbers stand beside the comparison of its own two systems.
fn compare(plan: &Plan, rows: &[Row]) -> Vec<Row> {
    let (metric, name) = plan.headline.metrics();
    let system_of = |row: &Row| System::ALL.into_iter().find(|system| system.name() == row.system);
    let mut compared = Vec::new();
    for row in rows.iter().filter(|row| row.metric == metric) {
        let is_compared = |system: &System| system.co_writes() && system.has_common_directories();
        let Some(system) = system_of(row).filter(is_compared) else { continue };
        for baseline in [System::FFS_PAPER, System::FFS] {
            let Some(percent) = percent_over(rows, row, baseline) else { continue };
            let utilization = &row.dimensions["utilization"];
            let paper = plan.paper.iter().find(|(at, _)| at.to_string() == *utilization).map(|(_, percent)| *percent);
            let paper = paper.filter(|_| (system, baseline) == (System::COWRITE_PAPER, System::FFS_PAPER));
            let subject =
                Subject { system: system.name(), dimensions: row.dimensions.clone() }.with("against", baseline);
            compared.push(subject.row_beside(name, percent, "%", paper));
        }
    }
    compared
}

/// Returns what each step from the paper's baseline to what a mount does gives by itself, in percent.
fn ablation(plan: &Plan, rows: &[Row]) -> Vec<Row> {
    let (metric, name) = plan.headline.metrics();
    let mut steps = Vec::new();
    for step in System::ABLATION {
        let is_reached = |row: &&Row| row.metric == metric && row.system == step.to.name();
        for row in rows.iter().filter(is_reached) {
            let Some(percent) = percent_over(rows, row, step.from) else { continue };
            let subject = Subject { system: step.to.name(), dimensions: row.dimensions.clone() };
            let subject = subject.with("against", step.from).with("step", step.adds);
            steps.push(subject.row(&format!("{name}_of_step"), percent, "%"));
        }
    }
    steps
}

/// Returns by how many percent a measured value differs from that of another system under the same conditions.
fn percent_over(rows: &[Row], row: &Row, baseline: System) -> Option<f64> {
    let same = |other: &&Row| {
        other.metric == row.metric && other.system == baseline.name() && other.dimensions == row.dimensions
    };
    let other = rows.iter().find(same).filter(|other| other.value > 0.0)?;
    Some((row.value / other.value - 1.0) * 100.0)
}

fn charts(plan: &Plan, lab: &Lab<'_>) -> Vec<Chart> {
    let (metric, compared, what) = match plan.headline {
        Headline::Bandwidth => ("bandwidth", "gain", "bandwidth by utilization"),
        Headline::Elapsed => ("elapsed", "change", "elapsed time by utilization"),
    };
    let chart = |drive: &str, title: String, form, metric: &str, more: &[(&str, &str)]| {
        let mut only = BTreeMap::from([("drive".to_owned(), drive.to_owned())]);
        only.extend(more.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        Chart { title, form, metric: metric.to_owned(), only, along: "utilization".to_owned() }
    };
    let of_drive = |drive: &String| {
        let mut charts = vec![chart(drive, format!("{what}, {drive}"), ChartForm::Bars, metric, &[])];
        for baseline in [System::FFS_PAPER, System::FFS] {
            let title = format!("{compared} against {baseline}, {drive}");
            charts.push(chart(drive, title, ChartForm::Lines, compared, &[("against", baseline.name())]));
        }
        charts
    };
    drives(&lab.options.parameters).iter().flat_map(of_drive).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::{RunOptions, Silent};

    #[test]
    fn a_machine_measures_what_it_did() {
        let parameters = Parameters { utilizations: Some(vec![0]), ..Parameters::default() };
        let lab = Lab::new(RunOptions { scale: 0.02, seed: 1, jobs: 1, parameters }, &Silent).unwrap();
        let aged = lab.aged(0).unwrap();
        let setup = setup(System::FFS, "mpg3307at", &lab.options.parameters, 0.02);
        let work = Machine::run(&setup, &aged.image, |machine| create(machine, &lab, Order::Sequential)).unwrap();
        assert_eq!(work.bytes, 4 * 100 * BLOCK_BYTES);
        assert!(work.totals.drive.written_bytes >= work.bytes);
        assert!(work.totals.now_ns > 0);
    }
}
