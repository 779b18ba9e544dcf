//! U-LFS: recycling against cleaning, on F2FS volumes without a clean segment.
//!
//! IO-TEST: a volume is filled to a share of all blocks of its main area and worn until no clean segment is left (the
//! same image for every system), mounted on a machine of its own, all its files are opened, and then 131,072 files of
//! 32 KiB are overwritten. The clock runs from the first write to the end of a final sync. Experiments that look at the
//! same case share one run.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use moafs_disk::Kind;
use moafs_disk::probe::trace::TraceVerb;
use moafs_f2fs::clean::{Cleaner, Headroom};
use moafs_f2fs::engine::Counters;
use moafs_f2fs::place::DeviceCost;
use moafs_vfs::Options;
use moafs_workload::Pattern;

use super::rows::{self, Subject};
use crate::bounds;
use crate::error::{LabError, Result};
use crate::experiment::{Experiment, Lab};
use crate::log_system::{LogMount, LogSystem};
use crate::log_volume::LogShape;
use crate::machine::{Machine, Setup, Totals};
use crate::outcome::{Chart, ChartForm, Outcome, Row, Scatter};
use crate::workload::overwrite::{FILE_BLOCKS, FILE_BYTES, Schedule};
use crate::write_cache::WriteCache;

const GB: f64 = 1e9;
const BLOCK_BYTES: f64 = 4096.0;
const HDD: &str = "hds721616pla380";
const UTILIZATIONS: &[u8] = &[10, 20, 30, 40, 50, 60, 70, 80, 90];
/// Utilization of Fig. 2 and Table 3, in percent.
const FULLEST: &[u8] = &[90];
const SYSTEMS: [LogSystem; 10] = [
    LogSystem::Cleaning(Cleaner::Greedy),
    LogSystem::Cleaning(Cleaner::CostBenefit),
    LogSystem::Cleaning(Cleaner::HolePlugging),
    LogSystem::Cleaning(Cleaner::Adaptive),
    LogSystem::Wolf,
    LogSystem::SepBit,
    LogSystem::Recycling,
    LogSystem::Auto,
    LogSystem::Oracle,
    LogSystem::Foreseen,
];
/// The paper's machine has 4 GB of memory: all nodes stay in it.
const CACHE_BYTES: usize = 2 << 30;
/// The smallest buffer of a scaled machine, in bytes.
const BUFFER_BYTES_MIN: u64 = 256 << 10;
/// F2FS writes a checkpoint this often, in seconds.
const CHECKPOINT_S: u64 = 60;
/// An Opteron of 2.1 GHz beside the 1 GHz machine of the processor times, in percent.
const CPU_PERCENT: u64 = 40;
/// Bytes placed by one recycling in the paper's sense: a buffer.
const RECYCLING_BYTES: f64 = (4_u64 << 20) as f64;
/// The first bound of the histogram of latencies, in nanoseconds, and how many there are: each is twice the one before.
const HISTOGRAM_FIRST_NS: u64 = 500_000;
const HISTOGRAM_BINS: u32 = 15;
/// Points of a latency picture at most, by system: the slowest writes are always among them.
const SCATTER_POINTS: usize = 2000;

/// The experiments, in the paper's order.
pub(crate) const ALL: [Experiment; 7] = [
    Experiment {
        id: "lfs-uniform-hdd",
        title: "Overwriting 32 KB files, all equally often, on a hard disk",
        figure: "Fig. 1b",
        paper: "131,072 writes of 32 KB files on a volume without clean segments, elapsed time by utilization. At 90 % \
                recycling is about 3 times faster than WOLF; the cleaners rise steeply from 70 %, recycling little.",
        run: |experiment, lab| elapsed(&[(Pattern::Uniform, HDD)], Some(3.0), experiment, lab),
    },
    Experiment {
        id: "lfs-hotcold-hdd",
        title: "Overwriting 32 KB files, a tenth of them nine times in ten, on a hard disk",
        figure: "Fig. 1d",
        paper: "As lfs-uniform-hdd, but 10 % of the files get 90 % of the writes. At 90 % recycling is 1.9 times faster than \
                WOLF; both cleaners do better than under uniform writes.",
        run: |experiment, lab| elapsed(&[(Pattern::HotCold, HDD)], Some(1.9), experiment, lab),
    },
    Experiment {
        id: "lfs-uniform-ssd",
        title: "Overwriting 32 KB files, all equally often, on a solid state disk",
        figure: "Fig. 1a",
        paper: "131,072 writes of 32 KB files on a volume without clean segments, elapsed time by utilization. At 90 % \
                recycling is 2 times faster than WOLF.",
        run: |experiment, lab| elapsed(&[(Pattern::Uniform, SSD)], Some(2.0), experiment, lab),
    },
    Experiment {
        id: "lfs-hotcold-ssd",
        title: "Overwriting 32 KB files, a tenth of them nine times in ten, on a solid state disk",
        figure: "Fig. 1c",
        paper: "As lfs-uniform-ssd, but 10 % of the files get 90 % of the writes. At 90 % recycling is 1.6 times faster than \
                WOLF.",
        run: |experiment, lab| elapsed(&[(Pattern::HotCold, SSD)], Some(1.6), experiment, lab),
    },
    Experiment {
        id: "lfs-zipf",
        title: "Overwriting 32 KB files by Zipf's law, on both drives",
        figure: "Wang et al. (2022)",
        paper: "The file of rank r gets a share of the writes in proportion to 1/r, as in the analysis of SepBIT. The paper \
                measures volumes of cloud block storage; IO-TEST's files and drives are ours.",
        run: |experiment, lab| elapsed(&[(Pattern::Zipf, HDD), (Pattern::Zipf, SSD)], None, experiment, lab),
    },
    Experiment {
        id: "lfs-latency",
        title: "Response time of each 32 KB write, 90 % full",
        figure: "Fig. 2",
        paper: "Worst case: cost-benefit about 12 s, WOLF 6 s, recycling 0.6 s. Mean: 4,441, 2,446 and 1,010 microseconds. \
                Device and pattern are not given.",
        run: latency,
    },
    Experiment {
        id: "lfs-traffic",
        title: "What is read and written, 90 % full",
        figure: "Table 3",
        paper: "Cleanings / recyclings, GB read, GB written: cost-benefit 1458 / 0, 20.30, 27.00; WOLF 1380 / 0, 17.13, \
                23.17; recycling 0 / 1112, 1.22, 5.27. Device and pattern are not given.",
        run: traffic,
    },
];
const SSD: &str = "samsung-slc-64";

/// A case: one system on one drive at one utilization under one pattern.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct IoCase {
    drive: String,
    pattern: Pattern,
    utilization: u8,
    /// Commands at the drive at once, if that is one of the conditions.
    queue_depth: Option<u32>,
    system: LogSystem,
}

impl fmt::Display for IoCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} on {} at {} %", self.system, self.pattern.name(), self.drive, self.utilization)?;
        self.queue_depth.map_or(Ok(()), |depth| write!(f, ", queue depth {depth}"))
    }
}

/// The result of a case.
pub(crate) enum IoTest {
    Done(Box<Done>),
    /// The case stopped: the volume cannot be so full.
    Stopped(String),
}

/// The measurements of a case.
pub(crate) struct Done {
    totals: Totals,
    counters: Counters,
    latencies: Latencies,
    /// Share of all blocks of the main area that were valid, in percent.
    utilization: f64,
    least: Least,
}

/// The least time and the fewest copies of a case, whatever its system.
struct Least {
    /// Time to write the data of users and the node blocks of their files once, in sequence.
    seconds: f64,
    /// Bytes of data written for each byte of users by the best cleaner that knows how often files are written, not
    /// when; `None` where there is no such form.
    amplification: Option<f64>,
}

impl Least {
    fn of(schedule: &Schedule, pattern: Pattern, room: &Headroom, cost: &DeviceCost) -> Least {
        let blocks = schedule.writes() * FILE_BLOCKS + schedule.files_written();
        let files = schedule.files() as f64;
        // Every file has a node block, which takes room from data.
        let share = files * FILE_BLOCKS as f64 / (room.main_blocks as f64 - files);
        let section_files = room.section_blocks / FILE_BLOCKS as u32;
        let amplification = match pattern {
            Pattern::Uniform => Some(bounds::uniform(share, section_files)),
            Pattern::HotCold => Some(bounds::apart(share, HOT_AND_COLD, section_files)),
            Pattern::Zipf => None,
        };
        Least { seconds: blocks as f64 * cost.write.block_ns as f64 / 1e9, amplification }
    }
}

/// The data of [`Pattern::HotCold`].
const HOT_AND_COLD: [bounds::Kind; 2] =
    [bounds::Kind { data: 0.1, writes: 0.9 }, bounds::Kind { data: 0.9, writes: 0.1 }];

fn run_case(lab: &Lab<'_>, case: &IoCase) -> Result<IoTest> {
    let aged = match lab.log_aged(case.utilization, case.pattern) {
        Err(LabError::Aging(text)) => return Ok(IoTest::Stopped(text)),
        aged => aged?,
    };
    let parameters = &lab.options.parameters;
    let mut setup = setup(lab, case)?;
    let writes = lab.scaled(parameters.writes, 100);
    let schedule = Schedule::new(&aged.files, case.pattern, lab.options.seed, writes);
    let foreseen = Arc::new(schedule.foreseen());
    if case.system.foresees() {
        setup.mount = setup.mount.foreseeing(Arc::clone(&foreseen) as _);
    }
    let cost = lab.device_cost(&case.drive)?;
    Machine::run(&setup, &aged.image, |machine| {
        machine.client().open_numbers(&aged.files)?;
        let least = Least::of(&schedule, case.pattern, &machine.client().vfs().format().room(), &cost);
        let before = machine.client().vfs().format().counters();
        let mut latencies = Latencies::new(machine);
        let overwrite = |machine: &mut Machine<_>| {
            schedule.run(machine.client(), |number, took_ns| {
                foreseen.written(number);
                latencies.add(machine, took_ns);
            })
        };
        let ((), totals) = machine.measure(overwrite)?;
        let counters = machine.client().vfs().format().counters().since(&before);
        Ok(IoTest::Done(Box::new(Done { totals, counters, latencies, utilization: aged.utilization, least })))
    })
}

/// The time of each write call, and the machine's work during the slowest one.
struct Latencies {
    /// Times in nanoseconds, in the order of the calls.
    ns: Vec<u64>,
    slowest_ns: u64,
    slowest: (Totals, Counters),
    before: (Totals, Counters),
}

impl Latencies {
    fn new(machine: &Machine<LogMount>) -> Latencies {
        let before = counted(machine);
        Latencies {
            ns: Vec::new(),
            slowest_ns: 0,
            slowest: (before.0.since(&before.0), before.1.since(&before.1)),
            before,
        }
    }

    fn add(&mut self, machine: &Machine<LogMount>, took_ns: u64) {
        let now = counted(machine);
        if took_ns > self.slowest_ns {
            self.slowest_ns = took_ns;
            self.slowest = (now.0.since(&self.before.0), now.1.since(&self.before.1));
        }
        self.before = now;
        self.ns.push(took_ns);
    }
}

fn counted(machine: &Machine<LogMount>) -> (Totals, Counters) {
    (machine.totals(), machine.client().vfs().format().counters())
}

/// Returns the setup of the paper's machine with this system.
fn setup<'a>(lab: &Lab<'_>, case: &'a IoCase) -> Result<Setup<'a, LogMount>> {
    let parameters = &lab.options.parameters;
    let buffers = if case.system.splits() { 2.0 } else { 1.0 };
    let buffer = (parameters.buffer_bytes as f64 * lab.options.scale.min(1.0)) as u64;
    let options = Options {
        cache_bytes: CACHE_BYTES,
        dirty_percent: 90,
        dirty_bytes_max: Some((buffer.max(BUFFER_BYTES_MIN) as f64 * buffers) as usize),
        paced: true,
        dirty_age: Duration::from_secs(parameters.age_s),
        commit_interval: Duration::from_secs(parameters.commit_s.unwrap_or(CHECKPOINT_S)),
        read_ahead_bytes: parameters.read_ahead_bytes as usize,
        transfer_bytes_max: parameters.transfer_bytes as usize,
        ..Options::default()
    };
    Ok(Setup {
        mount: case.system.mount(lab.device_cost(&case.drive)?, lab.options.seed),
        drive: &case.drive,
        write_cache: parameters.write_cache.unwrap_or(WriteCache::Flushed),
        merge: true,
        queue_depth: case.queue_depth.unwrap_or(1),
        options,
        cpu: crate::cpu::Cpu::PENTIUM_III.scaled(CPU_PERCENT * parameters.cpu_percent / 100),
    })
}

// -- experiments

/// The cases of an experiment.
struct Plan<'a> {
    on: &'a [(Pattern, &'a str)],
    utilizations: &'a [u8],
}

/// A case with its measurements.
type Finished = (IoCase, Arc<IoTest>);

/// Runs the cases and returns their measurements, in their order; cases that stopped leave a note.
fn measured(plan: &Plan<'_>, experiment: &Experiment, lab: &Lab<'_>) -> Result<(Outcome, Vec<Finished>)> {
    let parameters = &lab.options.parameters;
    let systems = parameters.systems(&LogSystem::all().collect::<Vec<_>>(), &SYSTEMS);
    let utilizations = parameters.utilizations.as_deref().unwrap_or(plan.utilizations);
    let depths = parameters.queue_depths.as_ref().map_or(vec![None], |all| all.iter().copied().map(Some).collect());
    let mut cases: Vec<IoCase> = Vec::new();
    for &(pattern, usual) in plan.on {
        for drive in parameters.drives(&[usual]) {
            for (&utilization, &queue_depth) in
                utilizations.iter().flat_map(|at| depths.iter().map(move |depth| (at, depth)))
            {
                let case = |system: &LogSystem| IoCase {
                    drive: drive.clone(),
                    pattern,
                    utilization,
                    queue_depth,
                    system: *system,
                };
                // With a drive given by the user, the cases of all drives run on that one: each is
                // kept once.
                cases.extend(systems.iter().map(case).filter(|case| !cases.contains(case)).collect::<Vec<_>>());
            }
        }
    }
    let done = lab.run_cases(experiment.id, &cases, |case| lab.once(case, || run_case(lab, case)))?;
    let mut outcome = lab.outcome_of(experiment);
    let shape = LogShape::paper(lab.options.scale);
    outcome.parameters.insert("volume".to_owned(), show_shape(&shape)?);
    outcome.notes = settled();
    let mut drives: Vec<&str> = cases.iter().map(|case| case.drive.as_str()).collect();
    drives.dedup();
    for drive in drives {
        outcome.parameters.insert(format!("device cost of {drive}"), show_cost(&lab.device_cost(drive)?));
    }
    for (case, test) in cases.iter().zip(&done) {
        if let IoTest::Stopped(text) = &**test {
            outcome.notes.push(format!("{case}: {text}. Its numbers are left out."));
        }
    }
    Ok((outcome, cases.into_iter().zip(done).collect()))
}

fn elapsed(on: &[(Pattern, &str)], bar: Option<f64>, experiment: &Experiment, lab: &Lab<'_>) -> Result<Outcome> {
    let (mut outcome, cases) = measured(&Plan { on, utilizations: UTILIZATIONS }, experiment, lab)?;
    for (case, done) in finished(&cases) {
        let subject = subject(case);
        outcome.rows.extend(rows::of_totals(&subject, &done.totals));
        outcome.rows.extend(traffic_rows(&subject, done, false));
        outcome.rows.push(subject.row("utilization_reached", done.utilization, "%"));
    }
    let compared = speedups(&outcome.rows, bar);
    let shares = ["elapsed", "written"].map(|metric| shares_of_oracle(&outcome.rows, metric));
    outcome.rows.extend(compared);
    outcome.rows.extend(shares.into_iter().flatten());
    let shares = shares_of_bounds(&outcome.rows, &cases);
    outcome.rows.extend(shares);
    for (metric, title) in [("elapsed", "elapsed time by utilization"), ("written", "GB written by utilization")] {
        outcome.charts.push(Chart {
            title: title.to_owned(),
            form: ChartForm::Lines,
            metric: metric.to_owned(),
            only: BTreeMap::new(),
            along: "utilization".to_owned(),
        });
    }
    Ok(outcome)
}

/// Returns both patterns on both devices: Fig. 2 and Table 3 do not say which they are of.
fn everywhere() -> [(Pattern, &'static str); 4] {
    [(Pattern::Uniform, HDD), (Pattern::HotCold, HDD), (Pattern::Uniform, SSD), (Pattern::HotCold, SSD)]
}

fn latency(experiment: &Experiment, lab: &Lab<'_>) -> Result<Outcome> {
    let (mut outcome, cases) = measured(&Plan { on: &everywhere(), utilizations: FULLEST }, experiment, lab)?;
    let mut pictures: BTreeMap<String, BTreeMap<String, Vec<(f64, f64)>>> = BTreeMap::new();
    for (case, done) in finished(&cases) {
        outcome.rows.extend(latency_rows(&subject(case), done));
        outcome.rows.extend(done.totals.flash.iter().flat_map(|flash| rows::of_wear(&subject(case), flash)));
        let title = format!("response time of each write, {}, {}", case.pattern.name(), case.drive);
        let points = slowest_and_some(&done.latencies.ns);
        pictures.entry(title).or_default().insert(case.system.name().to_owned(), points);
    }
    let axes = || ("write".to_owned(), "response time, ms".to_owned());
    outcome.charts.push(Chart {
        title: "writes by response time: below so many milliseconds".to_owned(),
        form: ChartForm::Bars,
        metric: "writes".to_owned(),
        only: BTreeMap::from([("pattern".to_owned(), Pattern::Uniform.name().to_owned())]),
        along: "below_ms".to_owned(),
    });
    let worst = worst_ratios(&outcome.rows);
    outcome.rows.extend(worst);
    outcome.scatters = pictures.into_iter().map(|(title, points)| Scatter { title, axes: axes(), points }).collect();
    outcome.notes.push(
        "The means of Fig. 2 sum to 582, 321 and 132 s, WOLF to recycling 2.4 times, which is none of Fig. 1's ratios."
            .to_owned(),
    );
    Ok(outcome)
}

fn traffic(experiment: &Experiment, lab: &Lab<'_>) -> Result<Outcome> {
    let (mut outcome, cases) = measured(&Plan { on: &everywhere(), utilizations: FULLEST }, experiment, lab)?;
    for (case, done) in finished(&cases) {
        outcome.rows.extend(traffic_rows(&subject(case), done, true));
        outcome.rows.extend(done.totals.flash.iter().flat_map(|flash| rows::of_wear(&subject(case), flash)));
    }
    let shares = shares_of_oracle(&outcome.rows, "written");
    outcome.rows.extend(shares);
    outcome.notes.push(
        "One recycling of the paper is a buffer of 4 MB placed (4.0 GB / 4 MB = 1,024), not a target: `recyclings` counts \
         those, `targets` the segments that were filled. One cleaning of the paper reads 14 MB; ours is a section of 4 MB."
            .to_owned(),
    );
    Ok(outcome)
}

fn finished(cases: &[(IoCase, Arc<IoTest>)]) -> impl Iterator<Item = (&IoCase, &Done)> {
    cases.iter().filter_map(|(case, test)| match &**test {
        IoTest::Done(done) => Some((case, &**done)),
        IoTest::Stopped(_) => None,
    })
}

// -- rows

fn subject(case: &IoCase) -> Subject {
    let mut dimensions = BTreeMap::from([
        ("drive".to_owned(), case.drive.clone()),
        ("pattern".to_owned(), case.pattern.name().to_owned()),
        ("utilization".to_owned(), case.utilization.to_string()),
    ]);
    dimensions.extend(case.queue_depth.map(|depth| ("queue_depth".to_owned(), depth.to_string())));
    Subject { system: case.system.name(), dimensions }
}

/// Makes rows of the traffic over the device's interface, and of the work of cleaning and
/// recycling.
fn traffic_rows(subject: &Subject, done: &Done, beside_paper: bool) -> Vec<Row> {
    let Done { totals, counters, .. } = done;
    let gb = |verb: TraceVerb, data: bool| {
        let is = |count: &moafs_disk::probe::trace::Count| count.verb == verb && (count.kind == Kind::Data) == data;
        totals.requests.bytes(is) as f64 / GB
    };
    let paper = |column: usize| {
        let row = TABLE_3.iter().find(|(system, _)| beside_paper && *system == subject.system);
        row.map(|(_, numbers)| numbers[column])
    };
    let recycled_bytes = counters.logs.blocks_recycled as f64 * 4096.0;
    let cleanings = (counters.foreground_cleanings + counters.background_cleanings) as f64;
    let written = gb(TraceVerb::Write, true) + gb(TraceVerb::Write, false);
    vec![
        subject.row_beside("cleanings", cleanings, "", paper(0)),
        subject.row_beside("recyclings", (recycled_bytes / RECYCLING_BYTES).floor(), "", paper(1)),
        subject.row("targets", counters.logs.segments_recycled as f64, ""),
        subject.row("runs_recycled", counters.logs.runs_recycled as f64, ""),
        subject.row("segments_opened", counters.logs.segments_opened as f64, ""),
        subject.row_beside("read", gb(TraceVerb::Read, true) + gb(TraceVerb::Read, false), "GB", paper(2)),
        subject.row_beside("written", written, "GB", paper(3)),
        subject.row("data_read", gb(TraceVerb::Read, true), "GB"),
        subject.row("data_written", gb(TraceVerb::Write, true), "GB"),
        subject.row("metadata_read", gb(TraceVerb::Read, false), "GB"),
        subject.row("metadata_written", gb(TraceVerb::Write, false), "GB"),
        subject.row("checkpoints", counters.checkpoints as f64, ""),
        subject.row("nodes_written", counters.node_blocks as f64, ""),
        subject.row("blocks_moved", counters.moved_blocks as f64, ""),
        subject.row("write_amplification", written * GB / totals.written_bytes.max(1) as f64, ""),
    ]
}

/// The numbers of Table 3: cleanings, recyclings, GB read, GB written.
const TABLE_3: [(&str, [f64; 4]); 3] = [
    ("cost-benefit", [1458.0, 0.0, 20.30, 27.00]),
    ("wolf", [1380.0, 0.0, 17.13, 23.17]),
    ("recycling", [0.0, 1112.0, 1.22, 5.27]),
];

/// The numbers of Fig. 2: mean in microseconds, worst in milliseconds.
const FIG_2: [(&str, f64, f64); 3] =
    [("cost-benefit", 4441.0, 12_000.0), ("wolf", 2446.0, 6000.0), ("recycling", 1010.0, 600.0)];

fn latency_rows(subject: &Subject, done: &Done) -> Vec<Row> {
    let mut sorted = done.latencies.ns.clone();
    sorted.sort_unstable();
    let paper = FIG_2.iter().find(|(system, ..)| *system == subject.system);
    let mean = sorted.iter().sum::<u64>() as f64 / sorted.len().max(1) as f64;
    let at = |share: f64| sorted.get((sorted.len() as f64 * share) as usize).copied().unwrap_or(0) as f64 / 1e6;
    let worst = sorted.last().copied().unwrap_or(0) as f64 / 1e6;
    let mut rows = vec![
        subject.row_beside("latency_mean", mean / 1e3, "us", paper.map(|(_, mean, _)| *mean)),
        subject.row_beside("latency_worst", worst, "ms", paper.map(|(_, _, worst)| *worst)),
        subject.row("latency_median", at(0.5), "ms"),
        subject.row("latency_p90", at(0.9), "ms"),
        subject.row("latency_p99", at(0.99), "ms"),
        subject.row("latency_p999", at(0.999), "ms"),
    ];
    rows.extend(histogram(subject, &sorted));
    rows.extend(slowest_rows(subject, done));
    rows
}

/// Computes recycling's worst response time as a share of each cleaner's.
fn worst_ratios(rows: &[Row]) -> Vec<Row> {
    let worst = |row: &&Row| row.metric == "latency_worst";
    let mut ratios = Vec::new();
    for row in rows.iter().filter(worst).filter(|row| row.system == LogSystem::Recycling.name()) {
        let subject = Subject { system: LogSystem::Recycling.name(), dimensions: row.dimensions.clone() };
        let others = rows.iter().filter(worst).filter(|other| other.dimensions == row.dimensions);
        for other in others.filter(|other| other.system != row.system) {
            // The paper: 0.6 s of 6 s.
            let paper = (other.system == LogSystem::Wolf.name()).then_some(10.0);
            let against = subject.with("against", &other.system);
            ratios.push(against.row_beside("worst_share", 100.0 * row.value / other.value, "%", paper));
        }
    }
    ratios
}

/// Makes a histogram of the writes' times: the bounds double.
fn histogram(subject: &Subject, sorted_ns: &[u64]) -> Vec<Row> {
    let bounds = (0..HISTOGRAM_BINS).map(|bin| HISTOGRAM_FIRST_NS << bin).chain([u64::MAX]);
    let mut below = 0;
    let bin = |bound_ns: u64| {
        let upto = sorted_ns.partition_point(|ns| *ns < bound_ns);
        let count = upto - std::mem::replace(&mut below, upto);
        let ms = if bound_ns == u64::MAX { "more".to_owned() } else { format!("{:06.1}", bound_ns as f64 / 1e6) };
        subject.with("below_ms", ms).row("writes", count as f64, "")
    };
    bounds.map(bin).collect()
}

/// Makes rows of the machine's work while the slowest write waited.
fn slowest_rows(subject: &Subject, done: &Done) -> Vec<Row> {
    let (totals, counters) = &done.latencies.slowest;
    let mut rows = vec![
        subject.row("slowest_flushes", totals.drive.flushes as f64, ""),
        subject.row("slowest_checkpoints", counters.checkpoints as f64, ""),
        subject.row("slowest_cleanings", counters.foreground_cleanings as f64, ""),
    ];
    for verb in [TraceVerb::Read, TraceVerb::Write] {
        for kind in Kind::ALL {
            let is = |count: &moafs_disk::probe::trace::Count| count.verb == verb && count.kind == kind;
            let requests = totals.requests.requests(is);
            if requests > 0 {
                let subject = subject.with("what", format!("{verb:?} {kind:?}").to_lowercase());
                rows.push(subject.row("slowest_requests", requests as f64, ""));
                rows.push(subject.row("slowest_bytes", totals.requests.bytes(is) as f64 / 1e6, "MB"));
            }
        }
    }
    rows
}

/// Returns the points of a picture in their order: the slowest writes, and one in so many of the
/// others.
fn slowest_and_some(latencies_ns: &[u64]) -> Vec<(f64, f64)> {
    let mut by_time: Vec<usize> = (0..latencies_ns.len()).collect();
    by_time.sort_by_key(|at| std::cmp::Reverse(latencies_ns[*at]));
    by_time.truncate(SCATTER_POINTS / 2);
    by_time.extend((0..latencies_ns.len()).step_by((2 * latencies_ns.len() / SCATTER_POINTS).max(1)));
    by_time.sort_unstable();
    by_time.dedup();
    by_time.into_iter().map(|at| (at as f64, latencies_ns[at] as f64 / 1e6)).collect()
}

/// Computes the oracle's number as a share of each system's: 100 % is as good as knowing the
/// future, more is better than any cleaner.
fn shares_of_oracle(rows: &[Row], metric: &'static str) -> Vec<Row> {
    let of_metric = |row: &&Row| row.metric == metric;
    let oracle_of = |row: &Row| {
        let same = |other: &&Row| other.system == LogSystem::Oracle.name() && other.dimensions == row.dimensions;
        rows.iter().filter(of_metric).find(same).map(|oracle| oracle.value)
    };
    let share = |row: &Row| {
        let system = LogSystem::all().find(|system| system.name() == row.system)?;
        let subject = Subject { system: system.name(), dimensions: row.dimensions.clone() }.with("of", metric);
        Some(subject.row("share_of_oracle", 100.0 * oracle_of(row)? / row.value, "%"))
    };
    let rows = rows
        .iter()
        .filter(of_metric)
        .filter(|row| ![LogSystem::Oracle.name(), LogSystem::Foreseen.name()].contains(&&*row.system));
    rows.filter_map(share).collect()
}

/// Computes each bound as a share of each system's number: 100 % is as good as the bound. A system that cleans cannot
/// be better than the closed form without knowing the future; one that does not clean can.
fn shares_of_bounds(rows: &[Row], cases: &[Finished]) -> Vec<Row> {
    let value = |subject: &Subject, metric: &str| {
        let is =
            |row: &&Row| row.system == subject.system && row.metric == metric && row.dimensions == subject.dimensions;
        rows.iter().find(is).map(|row| row.value)
    };
    let mut shares = Vec::new();
    for (case, done) in finished(cases) {
        let subject = subject(case);
        let fk = Subject { system: LogSystem::Foreseen.name(), ..subject.clone() };
        let moved = done.counters.moved_blocks as f64 * BLOCK_BYTES / GB;
        let of_users = value(&subject, "data_written").map(|written| written - moved);
        let bounds = [
            ("floor", "elapsed", Some(done.least.seconds)),
            ("closed-form", "data_written", done.least.amplification.zip(of_users).map(|(times, gb)| times * gb)),
            ("fk", "elapsed", value(&fk, "elapsed")),
            ("fk", "data_written", value(&fk, "data_written")),
        ];
        for (bound, of, least) in bounds {
            if let Some((least, found)) = least.zip(value(&subject, of)).filter(|_| bound != case.system.name()) {
                let subject = subject.with("bound", bound).with("of", of);
                shares.push(subject.row("share_of_bound", 100.0 * least / found, "%"));
            }
        }
    }
    shares
}

/// Computes the speed of recycling as a multiple of each cleaner's, and that of `auto` as a
/// multiple of the best other's.
fn speedups(rows: &[Row], bar: Option<f64>) -> Vec<Row> {
    let elapsed = |row: &&Row| row.metric == "elapsed";
    let mut compared = Vec::new();
    for row in rows.iter().filter(elapsed) {
        let others = rows.iter().filter(elapsed).filter(|other| other.dimensions == row.dimensions);
        let others = others.filter(|other| other.system != row.system);
        let name = LogSystem::all().map(LogSystem::name).find(|name| *name == row.system);
        let Some(system) = name.filter(|_| row.value > 0.0) else { continue };
        let subject = Subject { system, dimensions: row.dimensions.clone() };
        if system == LogSystem::Recycling.name() {
            let fullest = row.dimensions["utilization"] == "90";
            for other in others.clone().filter(|other| !["auto", "oracle", "fk"].contains(&other.system.as_str())) {
                let paper = bar.filter(|_| fullest && other.system == "wolf");
                let against = subject.with("against", &other.system);
                compared.push(against.row_beside("speedup", other.value / row.value, "", paper));
            }
        }
        if system == LogSystem::Auto.name()
            && let Some(best) = others
                .filter(|other| !["oracle", "fk"].contains(&other.system.as_str()))
                .min_by(|a, b| a.value.total_cmp(&b.value))
        {
            let against = subject.with("against", "the best of the others");
            compared.push(against.row("speedup", best.value / row.value, ""));
        }
    }
    compared
}

// -- words

fn settled() -> Vec<String> {
    [
        "Utilization is valid blocks (data and nodes) over all blocks of the main area: what F2FS hides as overprovision counts \
         as free.",
        "The paper's segment of 4 MB is a section of two F2FS segments: cleaning frees sections, recycling fills segments. Its \
         log has one inode among many in a block; in F2FS every file has a node block of its own, so that each overwritten \
         file of 32 KB costs a ninth block with the next checkpoint.",
        "The segment buffers are the limit of dirty data: 4 MB, 8 MB where hot and cold are apart (`buffer`). Writers are \
         slowed to the pace of write-back from an eighth of it on, under every system. Checkpoints: every 60 s (`commit`), \
         when cleaning has freed sections, and in the background when they make more holes than there are. The drive's cache \
         is flushed by checkpoints.",
        "Bounds (`share_of_bound`): `floor` is the time to write the users' data and a node block for each file in sequence; \
         `closed-form` is what the best cleaner writes that knows how often files are written, not when, each kind of \
         data in segments of its own with the best split of the spare space; `fk` is `oracle` with written and moved \
         blocks placed by their time of death, over the three logs for data.",
        "`oracle` is a cleaner that knows when each block will be overwritten: what dies soon is left to die. It copies as \
         the others do, so a system that does not clean can be better than it.",
        "Not given: which files are hot. Ours: every tenth in the order of their making.",
        "`wolf` cleans by cost-benefit; `recycling` is WOLF's hot and cold with holes instead of cleaning; `auto` chooses \
         between holes and cleaning by what the model of the device charges, measured on the model before the run. `sepbit` \
         tells hot from cold by the lifespans of the blocks before, over three logs instead of six, and cleans by \
         cost-benefit.",
    ]
    .map(str::to_owned)
    .to_vec()
}

fn show_shape(shape: &LogShape) -> Result<String> {
    let (_, report) = shape.make()?;
    let geometry = &report.geometry;
    Ok(format!(
        "{:.2} GiB of F2FS, {} segments of 2 MiB in sections of {}; {} segments overprovision, {} of them reserved by mkfs",
        shape.bytes as f64 / f64::from(1 << 30),
        geometry.segments,
        geometry.segs_per_sec,
        report.overprovision_segments,
        report.reserved_segments,
    ))
}

fn show_cost(cost: &moafs_f2fs::place::DeviceCost) -> String {
    let way = |charge: &moafs_f2fs::place::Charge| {
        let us = |ns: u64| ns as f64 / 1e3;
        format!(
            "{:.1} us a block, {:.1} us a request, {:.1} us a block passed over, {:.1} us elsewhere",
            us(charge.block_ns),
            us(charge.request_ns),
            us(charge.gap_ns),
            us(charge.seek_ns)
        )
    };
    format!("reading {}; writing {}", way(&cost.read), way(&cost.write))
}

/// A write has the length that the module's description states.
const _: () = assert!(FILE_BYTES == 32 << 10);
