//! SAF: swap areas next to the disk head against a swap partition.
//!
//! A case is one system under one mix of programs that start together. All systems have the same
//! machine, the same volume, and the same programs; they differ in the place of the pages. The
//! paper's volume writes in place; ours beside it is a log.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use moafs_disk::Kind;
use moafs_disk::probe::trace::TraceVerb;
use moafs_f2fs::OpenOptions;
use moafs_swap::PAGE_BYTES;
use moafs_vfs::Options;
use moafs_vfs::api::AtimePolicy;
use moafs_workload::{Append, Postmark, Sizes};

use super::rows::{self, Subject};
use crate::cpu::Cpu;
use crate::error::Result;
use crate::experiment::{Experiment, Lab};
use crate::log_system::LogMount;
use crate::machine::{self, drive};
use crate::memory::Limits;
use crate::outcome::{Chart, ChartForm, Outcome, Row, Scatter};
use crate::paging::ground::TestFileSystem;
use crate::paging::head::Strokes;
use crate::paging::{self, Measured, PagingSetup, Program, drive as volume};
use crate::program::compile::Compile;
use crate::program::lu::Lu;
use crate::program::ns2::Ns2;
use crate::program::sor::Sor;
use crate::swap_system::SwapSystem;
use crate::system::System;
use crate::write_cache::WriteCache;

/// Name of the paper's drive.
const DISK: &str = "st3160812as";
const CARD: &str = "sd16-mid";
/// Processor times in percent of the 1 GHz machine's: those of one of 3 GHz.
const CPU_PERCENT: u64 = 33;
/// FreeBSD's buffer cache of such a machine has 3,900 buffers; writers wait when a quarter of them
/// is dirty, of 16 KiB each.
const DIRTY_BYTES: f64 = (16_u64 << 20) as f64;
const DIRTY_BYTES_MIN: f64 = (1_u64 << 20) as f64;
/// Strokes over more than this share of the drive are long, in percent.
const LONG_PERCENT: u64 = 10;
const MIB: f64 = (1 << 20) as f64;

/// The experiments, in the paper's order, then ours.
pub(crate) const ALL: [Experiment; 10] = [
    Experiment {
        id: "saf-head",
        title: "Where the head goes when a file program and two that page run together",
        figure: "Fig. 1, Fig. 5",
        paper: "Postmark and SOR 5600×5600. With the swap partition the head goes back and forth between the partition at the \
                disk's start and the files all the time; with SAF the long strokes are gone. Fig. 1 shows 10,000 accesses from the \
                500,000th on, Fig. 5 shows 1,000.",
        run: |experiment, lab| run(experiment, lab, &HEAD),
    },
    Experiment {
        id: "saf-postmark-sor",
        title: "Postmark beside two SOR",
        figure: "Fig. 6a",
        paper: "Postmark and two SOR 5600×5600, from the common start until all have ended: SAF takes 31 % less.",
        run: |experiment, lab| run(experiment, lab, &POSTMARK_SOR),
    },
    Experiment {
        id: "saf-postmark-lu",
        title: "Postmark beside two LU",
        figure: "Fig. 6b",
        paper: "Postmark and two LU 6300×6300: SAF takes 25 % less.",
        run: |experiment, lab| run(experiment, lab, &POSTMARK_LU),
    },
    Experiment {
        id: "saf-compile-sor",
        title: "A kernel compile beside two SOR",
        figure: "Fig. 6c",
        paper: "A kernel compile and two SOR 5600×5600: SAF takes 42 % less.",
        run: |experiment, lab| run(experiment, lab, &COMPILE_SOR),
    },
    Experiment {
        id: "saf-all",
        title: "Five programs at once",
        figure: "Fig. 6d",
        paper: "Postmark, kernel compile, LU, SOR 7000×7000 and NS2: SAF takes 14 % less; there are fewer long strokes to remove.",
        run: |experiment, lab| run(experiment, lab, &FIVE),
    },
    Experiment {
        id: "saf-area",
        title: "How large a swap area should be",
        figure: "ours",
        paper: "32 MB is the best by experiment: larger ones starve the file system, smaller ones are made too often. No numbers.",
        run: |experiment, lab| run(experiment, lab, &AREA),
    },
    Experiment {
        id: "saf-only-files",
        title: "Files alone",
        figure: "ours",
        paper: "Not measured. Without pages that leave, swap areas must cost nothing.",
        run: |experiment, lab| run(experiment, lab, &ONLY_FILES),
    },
    Experiment {
        id: "saf-only-memory",
        title: "Memory pressure alone",
        figure: "ours",
        paper: "Not measured. Without file accesses, pages go to the partition under both systems.",
        run: |experiment, lab| run(experiment, lab, &ONLY_MEMORY),
    },
    Experiment {
        id: "saf-log-hdd",
        title: "Postmark beside two SOR where files go to a log, on a hard disk",
        figure: "ours",
        paper: "Not measured. The paper's file system writes in place; a log is where its files are written, so pages go there.",
        run: |experiment, lab| run(experiment, lab, &LOG_DISK),
    },
    Experiment {
        id: "saf-log-sd",
        title: "Postmark beside two SOR where files go to a log, on an SD card",
        figure: "ours",
        paper: "Not measured. A card has no head, but writes in few of its units at a time.",
        run: |experiment, lab| run(experiment, lab, &LOG_CARD),
    },
];

/// The cases of an experiment, and the paper's finding.
struct Plan {
    files: Files,
    drive: &'static str,
    systems: &'static [SwapSystem],
    programs: fn(&Lab<'_>) -> Vec<Program>,
    /// The paper's change of elapsed time, in percent.
    paper: Option<f64>,
    /// Sizes of swap areas beside that of the parameters, at full size.
    areas: &'static [u64],
    /// Pictures of the head's way: accesses in each.
    heads: &'static [usize],
}

/// The paper's drive and systems.
const PAPER: Plan = Plan {
    files: Files::InPlace,
    drive: DISK,
    systems: &SwapSystem::DEFAULT,
    programs: postmark_and_sor,
    paper: None,
    areas: &[],
    heads: &[],
};
const HEAD: Plan = Plan { heads: &[10_000, 1_000], ..PAPER };
const POSTMARK_SOR: Plan = Plan { paper: Some(-31.0), ..PAPER };
const POSTMARK_LU: Plan =
    Plan { programs: |lab| vec![postmark(lab), lu(lab, 1), lu(lab, 2)], paper: Some(-25.0), ..PAPER };
const COMPILE_SOR: Plan = Plan {
    programs: |lab| vec![compile(lab), sor(lab, 5600, COMPILE_SWEEPS), sor(lab, 5600, COMPILE_SWEEPS)],
    paper: Some(-42.0),
    heads: &[1_000],
    ..PAPER
};
const FIVE: Plan = Plan {
    programs: |lab| vec![postmark(lab), compile(lab), lu(lab, 1), sor(lab, 7000, FIVE_SWEEPS), ns2(lab)],
    paper: Some(-14.0),
    heads: &[1_000],
    ..PAPER
};
const AREA: Plan = Plan { areas: &[1 << 20, 4 << 20, 8 << 20, 16 << 20, 32 << 20], ..PAPER };
const ONLY_FILES: Plan = Plan { programs: |lab| vec![postmark(lab)], ..PAPER };
const ONLY_MEMORY: Plan =
    Plan { programs: |lab| vec![sor(lab, 5600, POSTMARK_SWEEPS), sor(lab, 5600, POSTMARK_SWEEPS)], ..PAPER };
const LOG_DISK: Plan = Plan { files: Files::Log, systems: &SwapSystem::ALL, ..PAPER };
const LOG_CARD: Plan = Plan { drive: CARD, ..LOG_DISK };

/// The file system that the programs use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Files {
    /// ext2, as FreeBSD mounts FFS.
    InPlace,
    /// F2FS, as Linux mounts it.
    Log,
}

impl Files {
    fn name(self) -> &'static str {
        match self {
            Files::InPlace => "ext2 with blocks of 4 KiB",
            Files::Log => "F2FS",
        }
    }

    /// Returns the use of the drive's cache: FreeBSD never flushes it; a checkpoint is worth nothing without a flush.
    fn write_cache(self) -> WriteCache {
        match self {
            Files::InPlace => WriteCache::On,
            Files::Log => WriteCache::Flushed,
        }
    }

    /// Returns the interval in seconds at which metadata are written.
    fn commit_s(self) -> u64 {
        match self {
            Files::InPlace => 30,
            Files::Log => 60,
        }
    }

    fn atime(self) -> AtimePolicy {
        match self {
            Files::InPlace => AtimePolicy::Strict,
            Files::Log => AtimePolicy::Relative,
        }
    }
}

// -- programs

/// Sweeps that make SOR run about as long as the file program beside it, with the swap partition.
const POSTMARK_SWEEPS: u64 = 6;
const COMPILE_SWEEPS: u64 = 6;
const FIVE_SWEEPS: u64 = 2;
/// Columns that LU decomposes.
const LU_COLUMNS: f64 = 400.0;
const NS2_EVENTS: u64 = 40_000;

fn postmark_and_sor(lab: &Lab<'_>) -> Vec<Program> {
    vec![postmark(lab), sor(lab, 5600, POSTMARK_SWEEPS), sor(lab, 5600, POSTMARK_SWEEPS)]
}

fn postmark(lab: &Lab<'_>) -> Program {
    Program::Postmark(Postmark {
        files: lab.scaled(25_000, 100),
        directories: lab.scaled(200, 4),
        sizes: Sizes::R_FSL,
        transactions: lab.scaled(50_000, 100),
        bias_read: 5,
        bias_create: 5,
        append: Append::Block(16 << 10),
        seed: lab.options.seed,
    })
}

/// Returns the side of a matrix whose bytes go with the scale.
fn side(lab: &Lab<'_>, full: f64) -> u64 {
    (full * lab.options.scale.sqrt()).round() as u64
}

fn sor(lab: &Lab<'_>, n: u64, sweeps: u64) -> Program {
    let iterations = lab.options.parameters.sweeps.unwrap_or(sweeps);
    Program::Sor(Sor { n: side(lab, n as f64), iterations })
}

fn lu(lab: &Lab<'_>, number: u64) -> Program {
    let seed = lab.options.seed.wrapping_add(number);
    Program::Lu(Lu { n: side(lab, 6300.0), columns: side(lab, LU_COLUMNS), seed })
}

fn ns2(lab: &Lab<'_>) -> Program {
    Program::Ns2(Ns2 { nodes: lab.scaled(490, 20), events: lab.scaled(NS2_EVENTS, 200), seed: lab.options.seed })
}

fn compile_of(lab: &Lab<'_>) -> Compile {
    Compile {
        sources: lab.scaled(1_900, 40),
        directories: lab.scaled(150, 6),
        headers: lab.scaled(400, 20),
        tools_bytes: lab.scaled(6 << 20, 1 << 20),
        object_bytes: lab.scaled(40 << 20, 1 << 20),
        compile_ns: lab.options.parameters.compile_ms * 1_000_000,
        pages: lab.scaled(3_072, 64) as u32,
        seed: lab.options.seed,
    }
}

fn compile(lab: &Lab<'_>) -> Program {
    Program::Compile(compile_of(lab))
}

// -- cases

struct Case {
    drive: String,
    system: SwapSystem,
    /// Bytes of a swap area at full size.
    area_bytes: u64,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} on {}", self.system, self.drive)?;
        match self.system {
            SwapSystem::Areas => write!(f, ", areas of {} MiB", self.area_bytes >> 20),
            SwapSystem::Partition | SwapSystem::Start => Ok(()),
        }
    }
}

fn cases(plan: &Plan, lab: &Lab<'_>) -> Vec<Case> {
    let parameters = &lab.options.parameters;
    let asked = parameters.systems(&SwapSystem::ALL, plan.systems);
    let systems = || SwapSystem::ALL.into_iter().filter(|system| asked.contains(system));
    let usual = [parameters.area_bytes];
    let areas = |system| if system == SwapSystem::Areas && !plan.areas.is_empty() { plan.areas } else { &usual };
    let of_drive = |drive: String| {
        let case =
            move |(system, area_bytes): (_, &u64)| Case { drive: drive.clone(), system, area_bytes: *area_bytes };
        systems().flat_map(move |system| areas(system).iter().map(move |bytes| (system, bytes))).map(case)
    };
    parameters.drives(&[plan.drive]).into_iter().flat_map(of_drive).collect()
}

/// Returns the setup of a case's machine.
fn setup<'a, G>(lab: &Lab<'_>, files: Files, case: &'a Case, mount: G) -> PagingSetup<'a, G> {
    let parameters = &lab.options.parameters;
    let scaled = |bytes: u64, min: u64| lab.scaled(bytes, min) / PAGE_BYTES as u64 * PAGE_BYTES as u64;
    let memory_bytes = scaled(parameters.memory_bytes, 4 << 20);
    let options = Options {
        // The page daemon keeps the cache within memory, together with everything else.
        cache_bytes: memory_bytes as usize,
        dirty_percent: 90,
        dirty_bytes_max: Some((DIRTY_BYTES * lab.options.scale).max(DIRTY_BYTES_MIN) as usize),
        dirty_age: Duration::from_secs(parameters.age_s),
        commit_interval: Duration::from_secs(parameters.commit_s.unwrap_or(files.commit_s())),
        read_ahead_bytes: parameters.read_ahead_bytes as usize,
        co_read_bytes: 0,
        atime: files.atime(),
        transfer_bytes_max: parameters.transfer_bytes as usize,
        ..Options::default()
    };
    let machine = machine::Setup {
        mount,
        drive: &case.drive,
        write_cache: parameters.write_cache.unwrap_or(files.write_cache()),
        merge: true,
        queue_depth: 1,
        options,
        cpu: Cpu::PENTIUM_III.scaled(CPU_PERCENT * parameters.cpu_percent / 100),
    };
    PagingSetup {
        machine,
        system: case.system,
        area_bytes: scaled(case.area_bytes, 256 << 10),
        memory: Limits::freebsd(memory_bytes / PAGE_BYTES as u64),
    }
}

fn run(experiment: &Experiment, lab: &Lab<'_>, plan: &Plan) -> Result<Outcome> {
    match plan.files {
        Files::InPlace => run_on(experiment, lab, plan, |_| Ok(System::FFS)),
        Files::Log => run_on(experiment, lab, plan, |drive| {
            let (device, seed) = (lab.device_cost(drive)?, lab.options.seed);
            Ok(LogMount(OpenOptions { device, seed, ..OpenOptions::default() }))
        }),
    }
}

/// Runs the cases on volumes that are mounted with `mount`.
fn run_on<G: TestFileSystem>(
    experiment: &Experiment,
    lab: &Lab<'_>,
    plan: &Plan,
    mount: impl Fn(&str) -> Result<G> + Sync,
) -> Result<Outcome> {
    let cases = cases(plan, lab);
    let programs = (plan.programs)(lab);
    let compiles = programs.iter().any(|program| matches!(program, Program::Compile(_)));
    let mut images = BTreeMap::new();
    for case in &cases {
        if !images.contains_key(&case.drive) {
            let prepare = |client: &_| if compiles { compile_of(lab).prepare(client) } else { Ok(()) };
            let (spec, mount) = (drive(&case.drive)?, mount(&case.drive)?);
            let image = volume::prepared(&spec, &mount, lab.options.parameters.position, prepare)?;
            images.insert(case.drive.clone(), image);
        }
    }
    let measure = |case: &Case| {
        let setup = setup(lab, plan.files, case, mount(&case.drive)?);
        paging::run(&setup, &images[&case.drive], &programs)
    };
    let measured = lab.run_cases(experiment.id, &cases, measure)?;
    let mut outcome = lab.outcome_of(experiment);
    outcome.parameters.insert("volume".to_owned(), volume_text(plan.files));
    outcome.parameters.insert("programs".to_owned(), programs_text(&programs));
    for (case, measured) in cases.iter().zip(&measured) {
        outcome.rows.extend(rows_of(case, plan, &programs, measured, long_sectors(case)?));
    }
    let compared = compare(plan, &outcome.rows);
    outcome.rows.extend(compared);
    outcome.notes = settled(lab, plan.files);
    outcome.notes.extend(cases.iter().zip(&measured).map(|(case, measured)| why(case, measured)));
    outcome.charts = charts(plan);
    outcome.scatters = plan.heads.iter().map(|count| picture(&cases, &measured, *count)).collect();
    Ok(outcome)
}

fn long_sectors(case: &Case) -> Result<u64> {
    Ok(drive(&case.drive)?.sectors() / 100 * LONG_PERCENT)
}

// -- rows

fn subject(case: &Case, plan: &Plan) -> Subject {
    let mut dimensions = BTreeMap::from([("drive".to_owned(), case.drive.clone())]);
    if !plan.areas.is_empty() {
        let area = match case.system {
            SwapSystem::Partition | SwapSystem::Start => "none".to_owned(),
            SwapSystem::Areas => format!("{} MiB", case.area_bytes >> 20),
        };
        dimensions.insert("area".to_owned(), area);
    }
    Subject { system: case.system.name(), dimensions }
}

fn rows_of(case: &Case, plan: &Plan, programs: &[Program], measured: &Measured, long_sectors: u64) -> Vec<Row> {
    let subject = subject(case, plan);
    let mut all = rows::of_totals(&subject, &measured.totals);
    for (at, (program, ended_ns)) in programs.iter().zip(&measured.ended_ns).enumerate() {
        let name = format!("{} {}", at + 1, program.name());
        all.push(subject.with("program", name).row("ended", *ended_ns as f64 / 1e9, "s"));
    }
    let strokes = Strokes::of(&measured.accesses, long_sectors);
    let paging = &measured.paging;
    let swap = &measured.swap.counters;
    let ratio = |sum: u64, count: u64| sum as f64 / count.max(1) as f64;
    let percent = |part: u64, whole: u64| 100.0 * ratio(part, whole);
    let mut row = |metric: &str, value: f64, unit: &str| all.push(subject.row(metric, value, unit));
    row("long_strokes", strokes.long as f64, "");
    row("long_strokes_between", strokes.long_between as f64, "");
    row("stroke_distance", ratio(strokes.sectors, strokes.accesses) * 512.0 / 1e6, "MB");
    row("page_accesses", strokes.page_accesses as f64, "");
    row("seek_time", ratio(measured.totals.drive.seek_ns, measured.totals.drive.seeks) / 1e6, "ms");
    row("pages_out", swap.pages_out as f64, "");
    row("pages_per_out", ratio(swap.pages_out, swap.out_requests), "");
    row("pages_in", (swap.pages_in + swap.neighbours_in) as f64, "");
    row("pages_per_in", ratio(swap.pages_in + swap.neighbours_in, swap.in_requests), "");
    row("brought_used", percent(paging.brought, swap.neighbours_in), "%");
    row("share_in_areas", percent(swap.pages_out - swap.pages_out_traditional, swap.pages_out), "%");
    row("areas_made", swap.areas_made as f64, "");
    row("areas_made_elsewhere", swap.areas_made_elsewhere as f64, "");
    row("faults", paging.faults as f64, "");
    row("time_fault", paging.in_wait_ns as f64 / 1e9, "s");
    row("frame_waits", paging.frame_waits as f64, "");
    row("time_frame_wait", paging.frame_wait_ns as f64 / 1e9, "s");
    row("file_cache", ratio(paging.files_bytes_sum, paging.files_looks) / MIB, "MiB");
    let read = measured.files.read_hits + measured.files.read_misses;
    row("file_cache_hits", percent(measured.files.read_hits, read), "%");
    if let Some(segments) = measured.segments_taken {
        all.extend(wear(&subject, measured));
        all.push(subject.row("segments_taken", segments as f64, ""));
    }
    all
}

/// Makes rows of the writes to the device, by kind of data. The flash's own work is among the
/// totals.
fn wear(subject: &Subject, measured: &Measured) -> Vec<Row> {
    let written = |is: &dyn Fn(Kind) -> bool| {
        measured.totals.requests.bytes(|count| count.verb == TraceVerb::Write && is(count.kind)) as f64 / 1e6
    };
    let pages = written(&|kind| kind == Kind::Swap);
    let data = written(&|kind| kind == Kind::Data);
    let all = written(&|_| true);
    let row = |(what, megabytes)| subject.with("what", what).row("written", megabytes, "MB");
    [("pages", pages), ("file data", data), ("metadata", all - pages - data), ("all", all)].map(row).into()
}

/// The pairs of systems that are compared.
const COMPARED: [(SwapSystem, SwapSystem); 3] = [
    (SwapSystem::Areas, SwapSystem::Partition),
    (SwapSystem::Start, SwapSystem::Partition),
    (SwapSystem::Areas, SwapSystem::Start),
];

/// Compares the elapsed time with another system's, in percent.
fn compare(plan: &Plan, rows: &[Row]) -> Vec<Row> {
    let of = |system: SwapSystem| rows.iter().filter(move |row| row.metric == "elapsed" && row.system == system.name());
    let change = |row: &Row, (system, against): (SwapSystem, SwapSystem)| {
        let same = |other: &&Row| other.dimensions.get("drive") == row.dimensions.get("drive") && other.value > 0.0;
        let percent = (row.value / of(against).find(same)?.value - 1.0) * 100.0;
        let subject = Subject { system: system.name(), dimensions: row.dimensions.clone() };
        let paper = plan.paper.filter(|_| against == SwapSystem::Partition);
        Some(subject.with("against", against).row_beside("change", percent, "%", paper))
    };
    COMPARED.iter().flat_map(|pair| of(pair.0).filter_map(|row| change(row, *pair))).collect()
}

fn charts(plan: &Plan) -> Vec<Chart> {
    let along = if plan.areas.is_empty() { "drive" } else { "area" };
    let chart = |title: &str, metric: &str, only: BTreeMap<String, String>, along: &str| Chart {
        title: title.to_owned(),
        form: ChartForm::Bars,
        metric: metric.to_owned(),
        only,
        along: along.to_owned(),
    };
    let mut charts = vec![
        chart("from the common start until all have ended", "elapsed", BTreeMap::new(), along),
        chart("when each program had ended", "ended", BTreeMap::new(), "program"),
        chart("long strokes", "long_strokes", BTreeMap::new(), along),
    ];
    if plan.files == Files::Log {
        charts.push(chart("MB written to the device", "written", BTreeMap::new(), "what"));
    }
    charts
}

/// Number of the first access in the paper's picture.
const PICTURE_FROM: usize = 500_000;

/// Draws the positions of the head, from the paper's first access on where there are as many, else
/// from the middle of the run.
fn picture(cases: &[Case], measured: &[Measured], count: usize) -> Scatter {
    let shortest = measured.iter().map(|measured| measured.accesses.len()).min().unwrap_or_default();
    let from = if shortest >= PICTURE_FROM + count { PICTURE_FROM } else { shortest.saturating_sub(count) / 2 };
    let points = |measured: &Measured| {
        let accesses = measured.accesses.iter().enumerate().skip(from).take(count);
        accesses.map(|(at, access)| (at as f64, access.at as f64)).collect()
    };
    let panels = cases.iter().zip(measured).map(|(case, measured)| (case.system.name().to_owned(), points(measured)));
    Scatter {
        title: format!("{count} accesses from number {from}"),
        axes: ("access".to_owned(), "sector".to_owned()),
        points: panels.collect(),
    }
}

// -- words

fn volume_text(files: Files) -> String {
    let (start, files) = (volume::SWAP_START, files.name());
    format!("root partition to sector {start}, swap partition of 931 MiB, then {files} to the drive's end, new")
}

fn programs_text(programs: &[Program]) -> String {
    let text = |program: &Program| match program {
        Program::Postmark(p) => format!("postmark ({} files, {} transactions)", p.files, p.transactions),
        Program::Compile(c) => format!("compile ({} sources, {} directories)", c.sources, c.directories),
        Program::Sor(s) => format!("sor ({0}×{0}, {1} sweeps)", s.n, s.iterations),
        Program::Lu(l) => format!("lu ({0}×{0}, {1} columns)", l.n, l.columns),
        Program::Ns2(n) => format!("ns2 ({} nodes, {} events)", n.nodes, n.events),
    };
    programs.iter().map(text).collect::<Vec<_>>().join(", ")
}

fn settled(lab: &Lab<'_>, files: Files) -> Vec<String> {
    let position = lab.options.parameters.position;
    let machine = "Memory: of 512 MB the kernel keeps 48; the rest is shared by processes and the file cache under one clock. Pages \
                   leave 16 at a time and come with their neighbours under all systems. One processor, turns of 1 ms. The volume \
                   is new";
    let programs = "NS2 and the kernel compile are stand-ins; LU makes its matrix and decomposes the first columns of it; the number \
                    of sweeps of SOR makes it run about as long as the file program under `partition`, and is the same under `saf`.";
    match files {
        Files::InPlace => vec![
            format!(
                "{machine}; the programs' directory lies at {position} % of it (FFS draws the group of such a directory; the middle \
                 is the mean)."
            ),
            format!(
                "File blocks are 4 KiB (the paper: 16 KB with fragments of 2 KB, which ext2 does not have). Postmark has R-FSL's \
                 sizes. {programs}"
            ),
        ],
        Files::Log => vec![
            format!(
                "{machine}; the heads of its logs stand at {position} % of it (logs go through a volume from its start to its end; the \
                 middle is the mean). Checkpoints flush the drive's buffer."
            ),
            "`start` pages into the volume's lowest free blocks, as a mount without a partition and without areas. SOR makes the sweeps \
             that it makes on ext2, on both devices."
                .to_owned(),
        ],
    }
}

/// Writes one sentence from the counters.
fn why(case: &Case, measured: &Measured) -> String {
    let long = long_sectors(case).unwrap_or(u64::MAX);
    let strokes = Strokes::of(&measured.accesses, long);
    let seconds = |ns: u64| ns as f64 / 1e9;
    let totals = &measured.totals;
    format!(
        "{case}: {:.0} s for {} accesses ({} of pages), {} strokes over more than {LONG_PERCENT} % of the drive; seek {:.0} s, rotation \
         {:.0} s, transfer {:.0} s, processor {:.0} s, idle {:.0} s; programs waited {:.0} s for pages and {:.0} s for frames.",
        seconds(totals.now_ns),
        strokes.accesses,
        strokes.page_accesses,
        strokes.long,
        seconds(totals.drive.seek_ns),
        seconds(totals.drive.rotation_ns),
        seconds(totals.drive.transfer_ns),
        seconds(totals.cpu_ns),
        seconds(totals.drive.idle_ns),
        seconds(measured.paging.in_wait_ns),
        seconds(measured.paging.frame_wait_ns),
    )
}
