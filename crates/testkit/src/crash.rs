//! Crash enumeration: a workload runs over the crash recorder; then power fails at places and in ways that a seed
//! draws, and each state is judged.
//!
//! For each state: the reference checker reports nothing, or only faults that its table allows; after a repair of a
//! copy, it reports nothing more and every promise is kept; the volume mounts at once; everything promised is there and
//! no file shows another's bytes ([`crate::history`]); the volume can be used, and after that all of it still holds.
//! Some states are cut again while they are mounted and used.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use moafs_disk::SharedDisk;
use moafs_disk::mem::MemDisk;
use moafs_disk::probe::crash::{CrashRecorder, Mode};
use moafs_runtime::Live;
use moafs_vfs::api::NewFile;
use moafs_vfs::types::{FileKind, Ino, Name};
use moafs_vfs::{Credentials, Format, Vfs};
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use crate::drive::{Driver, Tolerance};
use crate::family::{self, Family, scratch_image};
use crate::history::{Expectation, History, Promise, Step};
use crate::image::Geometry;
use crate::judges::{Class, Verdict};
use crate::model::{Model, Node};
use crate::ops::Op;
use crate::stamp;
use crate::tree;
use crate::volume::{Mounter, OnDisk};
use crate::workloads::{self, Workload};

/// A workload on a geometry.
#[derive(Clone, Copy)]
pub struct Scene {
    /// The workload.
    pub workload: Workload,
    /// The geometry of its volume.
    pub geometry: Geometry,
    /// Seed of random workloads.
    pub seed: u64,
}

/// One crash state; its text form replays it.
#[derive(Clone, Copy)]
pub struct CrashCase {
    /// The workload and its volume.
    pub scene: Scene,
    /// Entries of the device's log before the cut.
    pub cut: usize,
    /// Choice of the uncertain writes that survive.
    pub mode: Mode,
    /// Seed of that choice.
    pub seed: u64,
    /// True to cut again during recovery and use.
    pub again: bool,
}

const MODES: [(&str, Mode); 4] =
    [("all", Mode::All), ("none", Mode::None), ("subset", Mode::Subset), ("torn", Mode::Torn)];

impl fmt::Display for CrashCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Scene { workload, geometry, seed } = self.scene;
        let mode = MODES.iter().find(|(_, mode)| *mode == self.mode).map_or("", |(name, _)| name);
        let again = if self.again { "again" } else { "once" };
        write!(f, "{}:{}:{seed}:{}:{mode}:{}:{again}", workload.name, geometry.name, self.cut, self.seed)
    }
}

impl CrashCase {
    /// Parses the text form.
    ///
    /// # Errors
    /// The part that is wrong.
    pub fn parse<F: Family>(text: &str) -> Result<CrashCase, String> {
        let parts: Vec<&str> = text.split(':').collect();
        let [workload, geometry, scene_seed, cut, mode, seed, again] = parts[..] else {
            return Err(format!("{text}: want WORKLOAD:GEOMETRY:SEED:CUT:MODE:SEED:again|once"));
        };
        let number = |text: &str| text.parse::<u64>().map_err(|error| format!("{text}: {error}"));
        let workload = workloads::by_name(workload).ok_or_else(|| format!("no workload {workload}"))?;
        let geometry = family::geometry::<F>(geometry).ok_or_else(|| format!("no geometry {geometry}"))?;
        let mode = MODES.iter().find(|(name, _)| *name == mode).ok_or_else(|| format!("no mode {mode}"))?.1;
        let scene = Scene { workload, geometry, seed: number(scene_seed)? };
        Ok(CrashCase { scene, cut: number(cut)? as usize, mode, seed: number(seed)?, again: again == "again" })
    }
}

/// Counts of states judged, with the results.
#[derive(Debug, Default, Clone)]
pub struct Summary {
    /// States judged.
    pub states: u64,
    /// Judged states that a second cut made.
    pub second_cuts: u64,
    /// States by the class of the checker's verdict.
    pub classes: BTreeMap<&'static str, u64>,
    /// States whose volume the checker found spotless after use and a clean unmount.
    pub spotless_after_use: u64,
    /// Failures: the case that replays each, and the reason.
    pub failures: Vec<(String, String)>,
}

impl Summary {
    /// Adds another summary's counts.
    pub fn absorb(&mut self, other: Summary) {
        self.states += other.states;
        self.second_cuts += other.second_cuts;
        self.spotless_after_use += other.spotless_after_use;
        for (class, n) in other.classes {
            *self.classes.entry(class).or_default() += n;
        }
        self.failures.extend(other.failures);
    }

    fn count(&mut self, class: Class) {
        let name = match class {
            Class::Clean => "clean",
            Class::Leak => "leak",
            Class::Benign => "benign",
            Class::Fatal => "fatal",
        };
        self.states += 1;
        *self.classes.entry(name).or_default() += 1;
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} crash states ({} by a second cut):", self.states, self.second_cuts)?;
        for (class, n) in &self.classes {
            write!(f, " {n} {class}")?;
        }
        write!(f, "; {} spotless after use; {} failures", self.spotless_after_use, self.failures.len())
    }
}

/// A workload that ran, and all requests that reached the device.
pub struct Recording<F: Family> {
    mounter: F::Mounter,
    recorder: Arc<CrashRecorder>,
    history: History,
    geometry: Geometry,
    /// True if the device failed: an operation that returned an error may have taken effect later than others.
    hurt: bool,
}

impl<F: Family> Recording<F> {
    /// Runs a workload to its end and unmounts. `Ok(None)` if the volume cannot be made here.
    ///
    /// # Errors
    /// If the volume misbehaves even without a crash.
    pub fn new(scene: &Scene) -> Result<Option<Recording<F>>, String> {
        let ops = scene.workload.ops(scene.geometry.block_size, scene.seed);
        Recording::of_ops(&scene.geometry, scene.seed, &ops)
    }

    /// Runs operations and unmounts. `Ok(None)` if the volume cannot be made here.
    ///
    /// # Errors
    /// If the volume misbehaves even without a crash.
    pub fn of_ops(geometry: &Geometry, seed: u64, ops: &[Op]) -> Result<Option<Recording<F>>, String> {
        let Some(disk) = family::fresh::<F>(geometry) else { return Ok(None) };
        let mounter = F::mounter(seed);
        let recorder = Arc::new(CrashRecorder::over(Arc::new(disk), Live::new()));
        let mount = OnDisk { mounter: &mounter, disk: recorder.clone() };
        let mut driver = Driver::new(mount, Tolerance::default())?;
        let mut history = History::new(driver.model.clone());
        for op in ops {
            let start = recorder.cut_points() - 1;
            driver.step(op)?;
            let end = recorder.cut_points() - 1;
            let (after, promise) = (driver.model.clone(), promise_of(op));
            history.steps.push(Step { op: op.clone(), start, end, after, promise });
        }
        driver.verify()?;
        let start = recorder.cut_points() - 1;
        history.inos = driver.inos.iter().map(|(id, ino)| (*id, ino.0)).collect();
        driver.unmount()?;
        let end = recorder.cut_points() - 1;
        history.steps.push(Step {
            op: Op::Remount,
            start,
            end,
            after: driver.model.clone(),
            promise: Some(Promise::All),
        });
        drop(driver);
        Ok(Some(Recording { mounter, recorder, history, geometry: *geometry, hurt: false }))
    }

    /// Returns the cuts just before each flush completes, from the end of the `after`-th operation on, and the last
    /// one.
    pub fn flush_cuts(&self, after: usize) -> Vec<usize> {
        let first = self.history.steps[after - 1].end;
        let last = self.cuts() - 1;
        let completes = |cut: &usize| self.recorder.uncertain(cut + 1) < self.recorder.uncertain(*cut);
        let mut cuts: Vec<usize> = (first..last).filter(completes).collect();
        cuts.push(last);
        cuts
    }

    /// Judges one state without reference tools: it mounts and shows the promised tree, and after an unmount the
    /// checker of moafs reports nothing.
    ///
    /// # Errors
    /// The fault.
    pub fn judge_quickly(&self, cut: usize, mode: Mode, seed: u64) -> Result<(), String> {
        let state = self.recorder.state(cut, seed, mode);
        let court = Court { recording: self, cut };
        family::no_complaints::<F>(&state)?;
        let disk = Arc::new(state);
        let vfs = self.mounter.mount(disk.clone(), false).map_err(|error| format!("mount: {error}"))?;
        check(&vfs, &court.expectation())?;
        vfs.close().map_err(|error| format!("unmount: {error}"))?;
        let found = F::findings(&disk);
        if found.is_empty() { Ok(()) } else { Err(format!("our checker after an unmount: {}", found.join("; "))) }
    }

    /// Runs a workload over a device that fails. An operation that returned an error may have happened or not: both
    /// states are acceptable. The volume is then dropped as it is.
    ///
    /// # Errors
    /// If an answer is neither the model's nor the device's fault.
    pub fn run_hurt(
        mut driver: Driver<OnDisk<'_, F::Mounter>>,
        recorder: Arc<CrashRecorder>,
        scene: &Scene,
    ) -> Result<Recording<F>, String> {
        let mut history = History::new(driver.model.clone());
        for op in scene.workload.ops(scene.geometry.block_size, scene.seed) {
            let start = recorder.cut_points() - 1;
            let (mut applied, refused) = (driver.model.clone(), driver.refused);
            if !possible(&applied, &op) {
                continue;
            }
            driver.step(&op)?;
            let end = recorder.cut_points() - 1;
            let failed = driver.refused != refused;
            if failed && applied.apply(&op).is_ok() {
                history.steps.push(Step { op: op.clone(), start, end, after: applied, promise: None });
            }
            let promise = promise_of(&op).filter(|_| !failed);
            let made_nothing = failed && matches!(op, Op::Create { .. } | Op::Symlink { .. } | Op::Tmpfile { .. });
            history.steps.push(Step { op, start, end, after: driver.model.clone(), promise });
            if made_nothing {
                // From here on the workload's node numbers differ from the model's.
                break;
            }
        }
        history.inos = driver.inos.iter().map(|(id, ino)| (*id, ino.0)).collect();
        driver.abandon();
        let (mounter, geometry) = (F::mounter(scene.seed), scene.geometry);
        Ok(Recording { mounter, recorder, history, geometry, hurt: true })
    }

    /// Judges the last cut, with all, none and some of the uncertain writes.
    pub fn judge_end(&self, summary: &mut Summary) {
        let cut = self.cuts() - 1;
        let court = Court { recording: self, cut };
        for (name, mode) in MODES {
            if let Err(said) = court.judge(&self.recorder.state(cut, 1, mode), summary) {
                summary.failures.push((name.to_owned(), format!("{name}: {said}")));
                return;
            }
        }
    }

    /// Returns the number of cuts.
    pub fn cuts(&self) -> usize {
        self.recorder.cut_points()
    }

    /// Returns the device as the power cut left it.
    pub fn image(&self, case: &CrashCase) -> MemDisk {
        self.recorder.state(case.cut, case.seed, case.mode)
    }

    /// Describes the operations around a cut, for reports.
    pub fn around(&self, cut: usize) -> String {
        let done = self.history.steps.iter().filter(|step| step.end <= cut).count();
        let words = |step: &Step| format!("{:?} (log {}..{})", step.op, step.start, step.end);
        let steps = self.history.steps.iter().skip(done.saturating_sub(3)).take(5);
        let lines: Vec<String> = steps.map(|step| format!("    {}", words(step))).collect();
        format!("  cut at {cut} of {}; operations around it:\n{}", self.cuts() - 1, lines.join("\n"))
    }

    /// Judges one state.
    pub fn judge(&self, case: &CrashCase, summary: &mut Summary) {
        let state = self.image(case);
        let court = Court { recording: self, cut: case.cut };
        let fail = |summary: &mut Summary, said: String| {
            summary.failures.push((case.to_string(), format!("{said}\n{}", self.around(case.cut))));
        };
        match court.judge(&state, summary) {
            Ok(()) if case.again => {
                if let Err(said) = court.judge_second_cuts(&state, case.seed, summary) {
                    fail(summary, said);
                }
            }
            Ok(()) => {}
            Err(said) => fail(summary, said),
        }
    }
}

/// Returns false for operations on a node that was not made because of an earlier failure.
fn possible(model: &Model, op: &Op) -> bool {
    crate::drive::nodes_of(op).into_iter().all(|id| model.get(id).is_some_and(Node::alive))
}

pub(crate) fn promise_of(op: &Op) -> Option<Promise> {
    match op {
        Op::Fsync { node, data_only: false } => Some(Promise::Node(*node)),
        Op::Fsync { node, data_only: true } => Some(Promise::Data(*node)),
        Op::Sync | Op::Remount => Some(Promise::All),
        _ => None,
    }
}

/// Runs a scene and judges `states` of its crash states.
pub fn enumerate<F: Family>(scene: Scene, states: usize) -> Summary {
    let mut summary = Summary::default();
    let recording = match Recording::<F>::new(&scene) {
        Ok(Some(recording)) => recording,
        Ok(None) => return summary,
        Err(said) => {
            let name = format!("{}:{}:{} (no crash)", scene.workload.name, scene.geometry.name, scene.seed);
            summary.failures.push((name, said));
            return summary;
        }
    };
    let mut rng = Pcg64Mcg::seed_from_u64(scene.seed ^ 0xC0A5);
    for number in 0..states {
        // Every part of the log gets its share.
        let share = recording.cuts() as f64 / states as f64;
        let cut = ((number as f64 + rng.random::<f64>()) * share) as usize;
        let mode = MODES[[0, 1, 2, 2, 2, 3, 3, 3][rng.random_range(0..8)]].1;
        // Of a short run, every fifth scene is cut again.
        let again = number % 10 == 9 || (states < 10 && number == 0 && scene.seed.is_multiple_of(5));
        let case = CrashCase { scene, cut, mode, seed: rng.random_range(0..1 << 32), again };
        recording.judge(&case, &mut summary);
        if summary.failures.len() >= 5 {
            break;
        }
    }
    summary
}

/// The parts needed to judge states of one cut.
struct Court<'a, F: Family> {
    recording: &'a Recording<F>,
    cut: usize,
}

type Said<T> = Result<T, String>;

impl<F: Family> Court<'_, F> {
    fn expectation(&self) -> Expectation<'_> {
        let expectation = self.recording.history.at(self.cut);
        family::names_after_a_cut::<F>(expectation, &self.recording.geometry, self.recording.hurt)
    }

    /// Judges in five steps: check, repair a copy, mount, use, check again.
    fn judge(&self, state: &MemDisk, summary: &mut Summary) -> Said<()> {
        let class = self.look_and_repair(state)?;
        family::no_complaints::<F>(state)?;
        summary.count(class);
        let disk = Arc::new(state.snapshot());
        self.mount_and_use(disk.clone())?;
        family::no_complaints::<F>(&disk).map_err(|said| format!("after use: {said}"))?;
        match family::look::<F>(&disk)? {
            Some(Verdict { class: Class::Fatal, text, .. }) => Err(format!("{} after use: {text}", F::CHECKER)),
            Some(Verdict { spotless: false, text, .. }) => {
                Err(format!("{} is not silent after use and a clean unmount: {text}", F::CHECKER))
            }
            verdict => {
                summary.spotless_after_use += u64::from(verdict.is_some());
                Ok(())
            }
        }
    }

    fn look_and_repair(&self, state: &MemDisk) -> Said<Class> {
        let file = scratch_image(state)?;
        let Some(verdict) = F::look(file.path()) else { return Ok(Class::Clean) };
        if verdict.class == Class::Fatal {
            return Err(format!("{}: {}", F::CHECKER, verdict.text));
        }
        if verdict.spotless {
            return Ok(Class::Clean);
        }
        F::preen(scratch_image(state)?.path(), &verdict)?;
        let repair = F::repair(file.path());
        if let Some(second) = F::look(file.path()).filter(|second| !second.spotless) {
            return Err(format!("{} is not content after repair: {}\nit said: {repair}", F::CHECKER, second.text));
        }
        let repaired = MemDisk::read_from(file.path()).map_err(|error| error.to_string())?;
        let mounted = self.recording.mounter.mount(Arc::new(repaired), true);
        let vfs = mounted.map_err(|error| format!("mount after repair: {error}"))?;
        let expectation = self.expectation().after_repair(u64::from(self.recording.geometry.block_size));
        check(&vfs, &expectation).map_err(|said| format!("after repair: {said}"))?;
        Ok(verdict.class)
    }

    fn mount_and_use(&self, disk: SharedDisk) -> Said<()> {
        let vfs = self.recording.mounter.mount(disk, false).map_err(|error| format!("mount: {error}"))?;
        let expectation = self.expectation();
        check(&vfs, &expectation).map_err(|said| format!("after mounting: {said}"))?;
        use_volume(&vfs).map_err(|said| format!("use: {said}"))?;
        check(&vfs, &expectation).map_err(|said| format!("after use: {said}"))?;
        vfs.close().map_err(|error| format!("unmount: {error}"))
    }

    /// Cuts the power again while the volume is mounted and used.
    fn judge_second_cuts(&self, state: &MemDisk, seed: u64, summary: &mut Summary) -> Said<()> {
        let recorder = Arc::new(CrashRecorder::over(Arc::new(state.snapshot()), Live::new()));
        self.mount_and_use(recorder.clone())?;
        let mut rng = Pcg64Mcg::seed_from_u64(seed);
        for number in 0..3 {
            let cuts = recorder.cut_points();
            // The first of them comes right after mounting, during recovery.
            let cut = if number == 0 { rng.random_range(0..cuts.min(12)) } else { rng.random_range(0..cuts) };
            let mode = MODES[rng.random_range(0..4)].1;
            let second = recorder.state(cut, seed, mode);
            summary.second_cuts += 1;
            self.judge(&second, summary).map_err(|said| format!("second cut at {cut} ({mode:?}): {said}"))?;
        }
        Ok(())
    }
}

fn check<F: Format>(vfs: &Vfs<F>, expectation: &Expectation<'_>) -> Said<()> {
    let tree = tree::of_vfs(vfs)?;
    let violations = expectation.violations(&tree);
    if violations.is_empty() { Ok(()) } else { Err(violations.join("\n  ")) }
}

/// Rounds of background work that are enough to free the leaks of a small volume.
const TEND_ROUNDS: usize = 40;

/// Works on the volume: new files over all free space (so that blocks wrongly counted as free are overwritten), a
/// directory, renames, removals, background work; then removes everything that it made.
fn use_volume<F: Format>(vfs: &Vfs<F>) -> Said<()> {
    let who = Credentials::root();
    let root = vfs.shape().root;
    let words = |what: &str| {
        let what = what.to_owned();
        move |error: moafs_vfs::Error| format!("{what}: {error}")
    };
    // Removes the files of an earlier use that was cut off.
    for i in 0..6 {
        for name in [format!("use.{i}"), format!("use.{i}.moved")] {
            let name = Name::new(name.as_bytes()).expect("a legal name");
            match vfs.unlink(&who, root, name) {
                Err(error) if error.errno() != libc::ENOENT => return Err(words("unlink of a leftover")(error)),
                _ => {}
            }
        }
    }
    let mut files: Vec<(String, Ino, Vec<u8>)> = Vec::new();
    let block = vfs.shape().block_size as usize;
    for i in 0..6u64 {
        let name = format!("use.{i}");
        let new = NewFile { kind: FileKind::Regular, perm: 0o600, umask: 0, rdev: 0, target: None };
        let stat =
            vfs.create(&who, root, Name::new(name.as_bytes()).expect("a legal name"), &new).map_err(words("create"))?;
        let data = stamp::bytes(u64::MAX - i, 0, if i == 0 { 60 * block } else { 3 * block + 100 }, 0);
        vfs.write(&who, stat.ino, 0, &data, false).map_err(words("write"))?;
        files.push((name, stat.ino, data));
    }
    vfs.sync().map_err(words("sync"))?;
    for _ in 0..TEND_ROUNDS {
        vfs.run_background_step();
    }
    for (name, ino, data) in &files {
        let mut back = vec![0; data.len() + 1];
        let n = vfs.read(*ino, 0, &mut back).map_err(words("read"))?;
        if back[..n] != data[..] {
            return Err(format!("{name} does not read as written"));
        }
        let moved = format!("{name}.moved");
        let (from, to) = (Name::new(name.as_bytes()), Name::new(moved.as_bytes()));
        let (from, to) = (from.expect("a legal name"), to.expect("a legal name"));
        vfs.rename(&who, (root, from), (root, to), moafs_vfs::api::RenameMode::Replace).map_err(words("rename"))?;
        vfs.unlink(&who, root, to).map_err(words("unlink"))?;
        vfs.forget(*ino, 1);
    }
    vfs.sync().map_err(words("sync"))?;
    match vfs.failed() {
        Some(reason) => Err(format!("the volume turned read-only: {reason}")),
        None => Ok(()),
    }
}
