//! Several clients at once on one volume, preempted at every lock, over power cuts, device errors and many mounts; all
//! of it follows from one seed.
//!
//! Each seed draws a [`Plan`]: geometry, scheduler, latencies, cache, fill level, clients, faults. A seed runs a few
//! *cycles*: mount, clients at work beside the syncer and recovery, then a clean unmount or a power cut. Each client
//! has a directory of its own, where the plain model says what every answer must be and what a cut may leave
//! ([`crate::history`]), and works in directories that all clients share ([`shared`]). In the end all clients remove
//! everything.
//!
//! Judged after a cut: the reference checker (for a share of the seeds) and our own, that the volume mounts for
//! writing, promises, contents, foreign bytes; after a clean unmount: no finding at all, the exact tree, link counts;
//! in the end: all space is free again. While clients work: every answer, and that the volume does not turn read-only.

pub mod device;
pub mod shared;
pub mod turnover;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use moafs_disk::SharedDisk;
use moafs_disk::mem::MemDisk;
use moafs_disk::probe::crash::{CrashRecorder, Mode};
use moafs_disk::probe::fault::{EVERYWHERE, Fault, Harm, Rule, Victims, When};
use moafs_runtime::preempt::{Config, Counts, Strategy};
use moafs_runtime::{Preemptive, Rt, Task, sleep_until};
use moafs_vfs::api::NewFile;
use moafs_vfs::types::{FileKind, Ino, Name};
use moafs_vfs::{Credentials, Format, Options, Vfs};
use parking_lot::Mutex;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use self::device::Device;
use self::shared::{Excuses, Shared};
use self::turnover::Turnover;
use crate::crash::promise_of;
use crate::drive::{Driver, Mount, Tolerance};
use crate::family::{self, Family};
use crate::history::{History, Step};
use crate::image::Geometry;
use crate::judges::Class;
use crate::model::{Model, NodeId};
use crate::ops::{Generator, Limits, Op};
use crate::runs::Runs;
use crate::tree::{self, LOST_AND_FOUND, Tree};
use crate::volume::{self, Mounter, writable};

type Said<T> = Result<T, String>;

/// One run; its text form replays it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Case {
    /// The seed that everything is drawn from.
    pub seed: u64,
    /// Number of clients, if not the drawn one.
    pub clients: Option<usize>,
    /// Operations per client and cycle, if not the drawn number.
    pub ops: Option<usize>,
    /// Number of cycles, if not the drawn one.
    pub cycles: Option<usize>,
}

impl Case {
    /// Returns the case of a seed as it is drawn.
    pub fn of(seed: u64) -> Case {
        Case { seed, clients: None, ops: None, cycles: None }
    }

    /// Parses the text form: `SEED[:clients=N][:ops=N][:cycles=N]`.
    ///
    /// # Errors
    /// The part that is wrong.
    pub fn parse(text: &str) -> Said<Case> {
        let number = |text: &str| text.parse::<u64>().map_err(|error| format!("{text}: {error}"));
        let mut parts = text.split(':');
        let mut case = Case::of(number(parts.next().unwrap_or_default())?);
        for part in parts {
            let (key, value) = part.split_once('=').ok_or_else(|| format!("{part}: want KEY=NUMBER"))?;
            let value = Some(number(value)? as usize);
            match key {
                "clients" => case.clients = value,
                "ops" => case.ops = value,
                "cycles" => case.cycles = value,
                _ => return Err(format!("no key {key}")),
            }
        }
        Ok(case)
    }

    /// Returns smaller cases to try when this one fails, the smallest first.
    pub fn smaller(&self, plan: &Plan) -> Vec<Case> {
        let mut smaller = Vec::new();
        for cycles in 1..plan.cycles {
            smaller.push(Case { cycles: Some(cycles), ..*self });
        }
        for clients in 1..plan.clients {
            smaller.push(Case { clients: Some(clients), ..*self });
        }
        for ops in [plan.ops / 4, plan.ops / 2, plan.ops * 3 / 4] {
            if ops > 0 && ops < plan.ops {
                smaller.push(Case { ops: Some(ops), ..*self });
            }
        }
        smaller
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.seed)?;
        for (key, value) in [("clients", self.clients), ("ops", self.ops), ("cycles", self.cycles)] {
            if let Some(value) = value {
                write!(f, ":{key}={value}")?;
            }
        }
        Ok(())
    }
}

/// The plan that a seed draws.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The volume.
    pub geometry: Geometry,
    /// Settings of the scheduler.
    pub config: Config,
    /// Clients at work at the same time.
    pub clients: usize,
    /// Operations of each client in each cycle.
    pub ops: usize,
    /// Number of mounts.
    pub cycles: usize,
    /// Longest time of a request, in nanoseconds.
    pub latency_ns: u64,
    /// Part of the room that is taken before the clients start, in percent.
    pub fill: u64,
    /// Percent of the operations that are done in the shared directories.
    pub shared: u32,
    /// Longest pause of a client between operations, in nanoseconds.
    pub think_ns: u64,
    /// True if clients begin with files that they open and unlink.
    pub unlinked_open: bool,
    /// True if the device fails once, in a cycle before the last.
    pub faults: bool,
    /// True if the reference checker judges as well.
    pub checker: bool,
    /// Bytes of cached data.
    pub cache_bytes: usize,
    /// See [`Options::dirty_age`].
    pub dirty_age: Duration,
    /// See [`Options::commit_interval`].
    pub commit_interval: Duration,
    /// Number of the engine's policy.
    pub policy: u64,
    /// True if blocks are taken and given back as swap areas do it.
    pub areas: bool,
    /// True if free blocks hold bytes of a file that is gone.
    pub stale: bool,
    /// Percent of the changes of a file that its client fsyncs at once.
    pub fsyncs: u32,
    /// Operations on small files that come and go ([`turnover`]) before each other operation of a client.
    pub turnover: u32,
}

/// The reference checker judges one of this many seeds.
const CHECKER_ONE_IN: u32 = 8;

impl Plan {
    /// Draws a plan.
    pub fn draw<F: Family>(case: &Case) -> Plan {
        let mut rng = Pcg64Mcg::seed_from_u64(case.seed ^ 0x51D0_51D0);
        let pick = |rng: &mut Pcg64Mcg, of: &[u64]| of[rng.random_range(0..of.len())];
        let names = F::SIMULATED;
        let geometry = family::geometry::<F>(names[rng.random_range(0..names.len())]).expect("a known geometry");
        let one_in = pick(&mut rng, &[1, 3, 10, 30, 100]) as u32;
        let strategy = if rng.random_bool(0.6) {
            Strategy::RandomWalk { one_in }
        } else {
            Strategy::Priorities { one_in: 50 * one_in }
        };
        let point_ns = pick(&mut rng, &[100, 2_000, 50_000, 1_000_000]);
        let config = Config { seed: case.seed, strategy, point_ns, points_max: POINTS_MAX };
        let clients = rng.random_range(1..=4) as usize;
        let ops = rng.random_range(5..=60) as usize;
        let cycles = rng.random_range(1..=4) as usize;
        let latency_ns = pick(&mut rng, &[0, 10_000, 1_000_000, 20_000_000]);
        let fill = pick(&mut rng, &[0, 0, 0, 40, 70, 95]);
        let shared = pick(&mut rng, &[0, 30, 60, 100]) as u32;
        let think_ns = pick(&mut rng, &[0, 0, 20_000_000, 1_000_000_000, 4_000_000_000]);
        let unlinked_open = shared > 0 && rng.random_bool(0.5);
        let faults = rng.random_ratio(1, 8);
        let checker = rng.random_ratio(1, CHECKER_ONE_IN);
        let cache_bytes = pick(&mut rng, &[1 << 20, 2 << 20, 8 << 20]) as usize;
        let dirty_age = Duration::from_millis(pick(&mut rng, &[2, 50, 1_000, 30_000]));
        let commit_interval = Duration::from_millis(pick(&mut rng, &[5, 100, 5_000]));
        let policy = rng.random_range(0..F::POLICIES);
        let areas = rng.random_ratio(1, 4);
        let stale = rng.random_ratio(1, 4);
        let fsyncs = pick(&mut rng, &[0, 0, 20, 70]) as u32;
        let turnover = pick(&mut rng, &[0, 0, 0, 0, 0, 3, 8]) as u32;
        Plan {
            geometry,
            config,
            clients: case.clients.unwrap_or(clients).min(clients),
            ops: case.ops.unwrap_or(ops).min(ops),
            cycles: case.cycles.unwrap_or(cycles).min(cycles),
            latency_ns,
            fill,
            shared,
            think_ns,
            unlinked_open,
            faults,
            checker,
            cache_bytes,
            dirty_age,
            commit_interval,
            policy,
            areas,
            stale,
            fsyncs,
            turnover,
        }
    }

    fn options(&self) -> Options {
        Options {
            cache_bytes: self.cache_bytes,
            dirty_age: self.dirty_age,
            commit_interval: self.commit_interval,
            syncer: true,
            ..volume::options(false)
        }
    }
}

/// Scheduler points after which a run counts as endless.
const POINTS_MAX: u64 = 60_000_000;

/// Counts of the work that a run did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Work {
    /// Operations of clients.
    pub ops: u64,
    /// Mounts.
    pub mounts: u64,
    /// Power cuts whose state was judged.
    pub cuts: u64,
    /// Requests and flushes, submissions and completions, at the device.
    pub entries: u64,
    /// Points and switches of the scheduler.
    pub scheduler: Counts,
}

impl Work {
    /// Adds another run's counts.
    pub fn add(&mut self, other: Work) {
        self.ops += other.ops;
        self.mounts += other.mounts;
        self.cuts += other.cuts;
        self.entries += other.entries;
        self.scheduler.points += other.scheduler.points;
        self.scheduler.switches += other.scheduler.switches;
    }
}

/// The end of a cycle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    /// A clean unmount.
    Clean,
    /// The power fails at this entry of the device's log, or when all clients are done.
    Cut { entries: usize },
}

/// A client between two cycles.
struct Client {
    root: Ino,
    model: Model,
    inos: BTreeMap<NodeId, Ino>,
}

/// A client after a cycle.
struct Left {
    number: usize,
    client: Client,
    history: History,
    ops: u64,
}

/// The volume as the clients share it.
struct Volume<F: Format> {
    vfs: Vfs<F>,
    disk: SharedDisk,
}

impl<F: Format> Mount for Volume<F> {
    type Format = F;

    fn mount(&self) -> moafs_vfs::Result<Vfs<F>> {
        Ok(self.vfs.clone())
    }

    fn disk(&self) -> SharedDisk {
        self.disk.clone()
    }
}

/// Directories that all clients share.
const SHARED_DIRS: usize = 3;
/// The name of the directory above them.
const SHARED: &[u8] = b"shared";

/// Runs a case. `Ok(None)` if the volume cannot be made here.
///
/// # Errors
/// The first fault, in words.
pub fn run<F: Family>(case: &Case) -> Said<Option<Work>> {
    let plan = Plan::draw::<F>(case);
    let Some(disk) = family::fresh::<F>(&plan.geometry) else { return Ok(None) };
    let mut run = Run::<F>::prepare(case, plan, disk)?;
    for cycle in 0..run.plan.cycles {
        run.cycle(cycle).map_err(|said| format!("cycle {cycle}: {said}"))?;
    }
    run.remove_everything().map_err(|said| format!("removing everything: {said}"))?;
    run.work.scheduler = run.runtime.counts();
    Ok(Some(run.work))
}

struct Run<F: Family> {
    plan: Plan,
    seed: u64,
    rng: Pcg64Mcg,
    mounter: Arc<F::Mounter>,
    runtime: Arc<Preemptive>,
    disk: Arc<MemDisk>,
    clients: Vec<Client>,
    shared_root: Ino,
    shared_dirs: Vec<Ino>,
    limits: Limits,
    /// Blocks that were free on the fresh volume.
    free_blocks: u64,
    work: Work,
}

impl<F: Family> Run<F> {
    /// Makes the clients' directories, and fills the volume.
    fn prepare(case: &Case, plan: Plan, disk: MemDisk) -> Said<Run<F>> {
        let disk = Arc::new(disk);
        let mounter = Arc::new(F::mounter(plan.policy));
        if plan.stale {
            let vfs = mounter.mount(disk.clone(), false).map_err(|error| format!("mount before all: {error}"))?;
            leave_stale_bytes(&vfs)?;
            vfs.close().map_err(|error| format!("unmount before all: {error}"))?;
        }
        let vfs = mounter.mount(disk.clone(), false).map_err(|error| format!("first mount: {error}"))?;
        let free_blocks = writable(&vfs).free;
        let shape = vfs.shape().clone();
        let limits = limits::<F>(&plan, &vfs);
        let mut clients = Vec::new();
        for number in 0..plan.clients {
            let root = make_dir(&vfs, shape.root, format!("client{number}").as_bytes())?;
            let model = Model::new(PERM, shape.beyond_eof).with_labels(labels_of(number, 0));
            clients.push(Client { root, model, inos: BTreeMap::from([(NodeId::ROOT, root)]) });
        }
        let shared_root = make_dir(&vfs, shape.root, SHARED)?;
        let mut shared_dirs = Vec::new();
        for number in 0..SHARED_DIRS {
            shared_dirs.push(make_dir(&vfs, shared_root, format!("d{number}").as_bytes())?);
        }
        fill(&vfs, plan.fill, free_blocks)?;
        vfs.close().map_err(|error| format!("first unmount: {error}"))?;
        Ok(Run {
            runtime: Preemptive::new(plan.config),
            rng: Pcg64Mcg::seed_from_u64(case.seed ^ 0xC1C1E),
            seed: case.seed,
            plan,
            mounter,
            disk,
            clients,
            shared_root,
            shared_dirs,
            limits,
            free_blocks,
            work: Work::default(),
        })
    }

    /// Mounts, lets the clients work, and judges the state after them.
    fn cycle(&mut self, number: usize) -> Said<()> {
        let cut_now = self.rng.random_bool(0.65);
        let entries = 1 << self.rng.random_range(2..13_u32);
        let entries = self.rng.random_range(entries / 2..=entries) as usize;
        let has_faults = self.plan.faults && number == 0;
        let rules = if has_faults { self.rules() } else { Vec::new() };
        let full_host = rules.iter().any(|rule| rule.harm == Harm::HostFull);
        let hurt = has_faults && !full_host;
        let ending = if cut_now || hurt { Ending::Cut { entries } } else { Ending::Clean };
        let rt = self.runtime.rt();
        let recorder = Arc::new(CrashRecorder::over(self.disk.clone(), Arc::clone(&rt)));
        let fault = Arc::new(Fault::new(recorder.clone(), Arc::clone(&rt), rules));
        let device = Device::new(fault, recorder.clone(), Arc::clone(&rt), self.rng.random(), self.plan.latency_ns);
        let device = Arc::new(device);
        if let Ending::Cut { entries } = ending {
            device.cut_at(entries);
        }
        let shift = Shift::<F> {
            rt,
            mounter: Arc::clone(&self.mounter),
            device,
            recorder: recorder.clone(),
            plan: self.plan.clone(),
            limits: self.limits.clone(),
            shared_dirs: self.shared_dirs.clone(),
            seed: self.seed.wrapping_mul(1_000).wrapping_add(number as u64),
            cycle: number as u32,
            ending,
            hurt,
            full_host,
            loud: std::env::var_os("MOAFS_LOUD").is_some(),
        };
        let clients = std::mem::take(&mut self.clients);
        let done = self.runtime.run(move || shift.work(clients))?;
        self.work.mounts += 1;
        self.work.ops += done.left.iter().map(|left| left.ops).sum::<u64>();
        self.work.entries += recorder.cut_points() as u64;
        if done.closed {
            self.judge_clean(&done.left)?;
            self.clients = done.left.into_iter().map(|left| left.client).collect();
            return Ok(());
        }
        self.judge_cuts(&recorder, &done.left, ending, hurt, number)
    }

    /// Returns the errors that the device makes.
    fn rules(&mut self) -> Vec<Rule> {
        let nth = self.rng.random_range(1..60_u64);
        let (victims, harm) = match self.rng.random_range(0..5) {
            0 => (Victims::Reads(EVERYWHERE), Harm::Error),
            1 => (Victims::Flushes, Harm::Error),
            2 => (Victims::Writes(EVERYWHERE), Harm::HostFull),
            3 => (Victims::Writes(EVERYWHERE), Harm::Short { sectors: 1 }),
            _ => (Victims::Writes(EVERYWHERE), Harm::Error),
        };
        let passes = self.rng.random_bool(0.5);
        let when = match harm {
            // Longer than a few attempts take.
            Harm::HostFull if passes => When::During(nth, nth * nth),
            _ if passes => When::Nth(nth),
            _ => When::From(nth),
        };
        vec![Rule::new(victims, when, harm)]
    }

    /// Judges the state that the power cut left, and sometimes an earlier one; the run goes on with the first.
    fn judge_cuts(
        &mut self,
        recorder: &CrashRecorder,
        left: &[Left],
        ending: Ending,
        hurt: bool,
        number: usize,
    ) -> Said<()> {
        let last = recorder.cut_points() - 1;
        let last = match ending {
            Ending::Cut { entries } => last.min(entries),
            Ending::Clean => last,
        };
        if self.rng.random_bool(0.5) {
            let cut = self.rng.random_range(0..=last);
            let (mode, seed) = (self.mode(), self.rng.random());
            let state = recorder.state(cut, seed, mode);
            let judged = self.judge_cut(&state, left, cut, hurt);
            judged.map_err(|said| format!("cut at {cut} of {last} ({mode:?}): {said}"))?;
        }
        let (mode, seed) = (self.mode(), self.rng.random());
        let state = recorder.state(last, seed, mode);
        let seen = self.judge_cut(&state, left, last, hurt);
        let seen = seen.map_err(|said| format!("cut at {last} ({mode:?}): {said}"))?;
        self.disk = Arc::new(state);
        let seen = if interrupted(&seen) { self.settle()? } else { seen };
        for left in left {
            let root = left.client.root;
            let labels = labels_of(left.number, number + 1);
            let (model, inos) = Model::of_tree(&seen, root.0, left.client.model.beyond_eof, labels);
            let inos = inos.into_iter().map(|(id, ino)| (id, Ino(ino))).collect();
            self.clients.push(Client { root, model, inos });
        }
        Ok(())
    }

    /// Mounts until recovery ends, and returns the tree: recovery finishes interrupted moves and exchanges, and only it
    /// knows which names stay.
    fn settle(&self) -> Said<Tree> {
        let vfs = self.mounter.mount(self.disk.clone(), false).map_err(|error| format!("mount: {error}"))?;
        vfs.close().map_err(|error| format!("unmount after recovery: {error}"))?;
        self.judge_unmounted()?;
        self.see(&self.disk)
    }

    fn mode(&mut self) -> Mode {
        [Mode::All, Mode::None, Mode::Subset, Mode::Subset, Mode::Torn, Mode::Torn][self.rng.random_range(0..6)]
    }

    fn judge_cut(&mut self, state: &MemDisk, left: &[Left], cut: usize, hurt: bool) -> Said<Tree> {
        self.work.cuts += 1;
        if self.plan.checker {
            match family::look::<F>(state)? {
                Some(verdict) if verdict.class == Class::Fatal => {
                    return Err(format!("{}: {}", F::CHECKER, verdict.text));
                }
                _ => {}
            }
        }
        family::no_complaints::<F>(state)?;
        let mut tree = self.see(&Arc::new(state.snapshot()))?;
        let lost = tree.nodes[&tree.root].entries.get(LOST_AND_FOUND).copied();
        for left in left {
            let expectation = family::names_after_a_cut::<F>(left.history.at(cut), &self.plan.geometry, hurt);
            let volume = std::mem::replace(&mut tree.root, left.client.root.0);
            let Some(root) = tree.nodes.get_mut(&left.client.root.0) else {
                return Err(format!("the directory of client {} is gone", left.number));
            };
            // An entry put there by an interrupted exchange counts as found.
            if let Some(lost) = lost {
                root.entries.insert(LOST_AND_FOUND.to_vec(), lost);
            }
            let violations = expectation.violations(&tree);
            tree.nodes.get_mut(&left.client.root.0).expect("just seen").entries.remove(LOST_AND_FOUND);
            tree.root = volume;
            if !violations.is_empty() {
                return Err(format!("client {}: {}", left.number, violations.join("\n  ")));
            }
        }
        shared::judge(&tree, self.shared_root, false)?;
        Ok(tree)
    }

    /// Mounts a disk for writing and reads the clients' directories.
    fn see(&self, disk: &Arc<MemDisk>) -> Said<Tree> {
        let vfs = self.mounter.mount(disk.clone(), false).map_err(|error| format!("mount: {error}"))?;
        vfs.check_writable().map_err(|error| format!("mounted read-only: {error}"))?;
        let tree = tree::of_parts(&vfs, |name| name != BASE)?;
        match vfs.failed() {
            Some(reason) => Err(format!("turned read-only: {reason}")),
            None => Ok(tree),
        }
    }

    /// Judges a volume after a clean unmount.
    fn judge_clean(&mut self, left: &[Left]) -> Said<()> {
        self.judge_unmounted()?;
        let mut tree = self.see(&Arc::new(self.disk.snapshot()))?;
        for left in left {
            tree.root = left.client.root.0;
            let differences = tree::differences(&left.client.model, &tree);
            if !differences.is_empty() {
                return Err(format!("after a clean unmount: client {}: {}", left.number, differences.join("\n  ")));
            }
        }
        shared::judge(&tree, self.shared_root, true).map_err(|said| format!("after a clean unmount: {said}"))
    }

    /// Checks that no checker reports anything.
    fn judge_unmounted(&self) -> Said<()> {
        if self.plan.checker {
            match family::look::<F>(&self.disk)? {
                Some(verdict) if !verdict.spotless => {
                    return Err(format!("after a clean unmount: {}: {}", F::CHECKER, verdict.text));
                }
                _ => {}
            }
        }
        let found = F::findings(&self.disk);
        if found.is_empty() { Ok(()) } else { Err(format!("after a clean unmount: our checker: {}", found.join("; "))) }
    }

    /// Lets all clients remove everything at the same time, and checks that all space is free then.
    fn remove_everything(&mut self) -> Said<()> {
        let rt = self.runtime.rt();
        let (mounter, plan, disk) = (Arc::clone(&self.mounter), self.plan.clone(), self.disk.clone());
        self.runtime.run(move || {
            let mounted = mounter.mount_on(disk, Arc::clone(&rt), plan.options());
            let vfs = mounted.map_err(|error| format!("mount: {error}"))?;
            let failure = Arc::new(Mutex::new(None));
            let shared = Arc::new(vfs.clone());
            let remover = |number: usize| {
                let (vfs, failure) = (Arc::clone(&shared), Arc::clone(&failure));
                let body = move || {
                    if let Err(said) = shared::remove_all(&vfs, vfs.shape().root, &[LOST_AND_FOUND]) {
                        failure.lock().get_or_insert(said);
                    }
                };
                rt.spawn(&format!("remover {number}"), Box::new(body))
            };
            let tasks: Vec<Task> = (0..plan.clients).map(remover).collect();
            tasks.iter().for_each(|task| task.join(&*rt));
            drop(shared);
            if let Some(said) = failure.lock().take() {
                return Err(said);
            }
            vfs.close().map_err(|error| format!("unmount: {error}"))
        })?;
        self.work.mounts += 1;
        self.judge_unmounted()?;
        let vfs = self.mounter.mount(self.disk.clone(), false).map_err(|error| format!("mount: {error}"))?;
        let free = writable(&vfs).free;
        if free + SLACK_BLOCKS < self.free_blocks {
            return Err(format!("{free} of {} blocks are free in the end", self.free_blocks));
        }
        Ok(())
    }
}

/// Returns true if a move or an exchange was interrupted: a directory has two names, or a temporary name is left in
/// `lost+found`.
fn interrupted(tree: &Tree) -> bool {
    let lost = tree.nodes[&tree.root].entries.get(LOST_AND_FOUND).and_then(|ino| tree.nodes.get(ino));
    if lost.is_some_and(|dir| !dir.entries.is_empty()) {
        return true;
    }
    let mut named = BTreeSet::new();
    let children = tree.nodes.values().flat_map(|seen| seen.entries.values());
    let is_dir = |ino: &&u64| tree.nodes.get(*ino).is_some_and(|seen| seen.kind == FileKind::Directory);
    children.filter(is_dir).any(|ino| !named.insert(*ino))
}

/// Blocks that the remaining directories may keep.
const SLACK_BLOCKS: u64 = 8;

/// Permissions of the directories that are made first.
const PERM: u32 = 0o755;

/// Name of the file that fills the volume.
const BASE: &[u8] = b"base";

/// Returns the first label of a client's files in a cycle: far from all others'.
fn labels_of(client: usize, cycle: usize) -> u64 {
    (client as u64 + 1) << 40 | (cycle as u64) << 32
}

fn limits<F: Family>(plan: &Plan, vfs: &Vfs<impl Format>) -> Limits {
    let (shape, space) = (vfs.shape(), writable(vfs));
    let block = u64::from(shape.block_size);
    let room = space.free * block * (100 - plan.fill) / 100;
    let parts = plan.clients as u64;
    Limits {
        block_size: block,
        file_bytes_max: (60 * block).min(400 << 10),
        total_bytes_max: room * 30 / 100 / parts,
        sparse_bytes_max: (20 << 20).min(shape.file_bytes_max / 2),
        nodes_max: (space.free_inodes / (2 * parts)).min(40) as usize,
        remounts: false,
        xattrs: F::keeps_xattrs(&plan.geometry),
        symlink_bytes_max: shape.symlink_bytes_max,
        nanos: plan.geometry.inode_size > 128,
    }
}

fn make_dir<F: Format>(vfs: &Vfs<F>, dir: Ino, name: &[u8]) -> Said<Ino> {
    let new = NewFile { kind: FileKind::Directory, perm: PERM, umask: 0, rdev: 0, target: None };
    let made = vfs.create(&Credentials::root(), dir, Name::new(name).expect("a legal name"), &new);
    let stat = made.map_err(|error| format!("mkdir: {error}"))?;
    vfs.forget(stat.ino, 1);
    Ok(stat.ino)
}

/// Fills part of the volume with one file.
fn fill<F: Format>(vfs: &Vfs<F>, percent: u64, free_blocks: u64) -> Said<()> {
    if percent == 0 {
        return Ok(());
    }
    let who = Credentials::root();
    let new = NewFile { kind: FileKind::Regular, perm: PERM, umask: 0, rdev: 0, target: None };
    let made = vfs.create(&who, vfs.shape().root, Name::new(BASE).expect("a legal name"), &new);
    let ino = made.map_err(|error| format!("create: {error}"))?.ino;
    let piece = vec![b'b'; 64 << 10];
    let bytes = free_blocks * percent / 100 * u64::from(vfs.shape().block_size);
    for at in (0..bytes).step_by(piece.len()) {
        match vfs.write(&who, ino, at, &piece, false) {
            Err(error) if error.errno() == libc::ENOSPC => break,
            written => written.map_err(|error| format!("filling: {error}"))?,
        };
    }
    vfs.forget(ino, 1);
    Ok(())
}

/// Fills all free blocks with the bytes of a file, and removes it.
fn leave_stale_bytes<F: Format>(vfs: &Vfs<F>) -> Said<()> {
    fill(vfs, 100, writable(vfs).free)?;
    let removed = vfs.unlink(&Credentials::root(), vfs.shape().root, Name::new(BASE).expect("a legal name"));
    removed.map_err(|error| format!("unlink: {error}"))
}

/// The work of one cycle, as the first task of the runtime.
struct Shift<F: Family> {
    rt: Rt,
    mounter: Arc<F::Mounter>,
    device: Arc<Device>,
    recorder: Arc<CrashRecorder>,
    plan: Plan,
    limits: Limits,
    shared_dirs: Vec<Ino>,
    seed: u64,
    cycle: u32,
    ending: Ending,
    /// True if the device fails.
    hurt: bool,
    /// True if the host is full at times, which breaks no promise.
    full_host: bool,
    /// True if operations are printed.
    loud: bool,
}

/// The state after a cycle.
struct Done {
    left: Vec<Left>,
    /// True if the volume was unmounted cleanly.
    closed: bool,
}

type FormatOf<F> = <<F as Family>::Mounter as Mounter>::Format;

impl<F: Family> Shift<F> {
    fn work(self, clients: Vec<Client>) -> Said<Done> {
        let mounted = self.mounter.mount_on(self.device.clone(), Arc::clone(&self.rt), self.plan.options());
        let vfs = match mounted {
            Ok(vfs) => vfs,
            Err(_) if self.device.is_off() || self.hurt || self.full_host => {
                return Ok(Done { left: idle(clients), closed: false });
            }
            Err(error) => return Err(format!("mount: {error}")),
        };
        let (rt, results) = (Arc::clone(&self.rt), Arc::new(Mutex::new(Vec::new())));
        let shift = Arc::new(self);
        let start = |(number, client): (usize, Client)| {
            let (shift, vfs, results) = (Arc::clone(&shift), vfs.clone(), Arc::clone(&results));
            let body = move || {
                let result = shift.client(&vfs, number, client);
                if result.is_err() {
                    // The other clients need not continue.
                    shift.device.cut();
                }
                results.lock().push(result.map_err(|said| format!("client {number}: {said}")));
            };
            rt.spawn(&format!("client {number}"), Box::new(body))
        };
        let mut tasks: Vec<Task> = clients.into_iter().enumerate().map(start).collect();
        let swapped = Arc::new(Mutex::new(Ok(())));
        if shift.plan.areas {
            let (shift, vfs, swapped) = (Arc::clone(&shift), vfs.clone(), Arc::clone(&swapped));
            tasks.push(rt.spawn("swap areas", Box::new(move || *swapped.lock() = shift.swap_areas(&vfs))));
        }
        tasks.iter().for_each(|task| task.join(&*rt));
        std::mem::replace(&mut *swapped.lock(), Ok(())).map_err(|said| format!("swap areas: {said}"))?;
        let results = std::mem::take(&mut *results.lock());
        let mut left = results.into_iter().collect::<Said<Vec<Left>>>()?;
        left.sort_by_key(|left| left.number);
        shift.end(vfs, left)
    }

    /// Unmounts, or lets the power fail.
    fn end(&self, vfs: Vfs<FormatOf<F>>, left: Vec<Left>) -> Said<Done> {
        let off = self.device.is_off();
        if let Some(reason) = vfs.failed().filter(|_| !off && !self.hurt) {
            return Err(format!("the volume turned read-only: {reason}"));
        }
        if self.ending == Ending::Clean && !off && !self.hurt {
            match vfs.close() {
                Ok(()) => return Ok(Done { left, closed: true }),
                // Changes that were not written are lost, as in a power cut.
                Err(error) if self.full_host && error.errno() == libc::ENOSPC => self.device.cut(),
                Err(error) => return Err(format!("unmount: {error}")),
            }
        } else {
            self.device.cut();
            drop(vfs);
        }
        Ok(Done { left, closed: false })
    }

    /// Runs one client.
    fn client(&self, vfs: &Vfs<FormatOf<F>>, number: usize, client: Client) -> Said<Left> {
        let seed = self.seed.wrapping_mul(100).wrapping_add(number as u64);
        let mut rng = Pcg64Mcg::seed_from_u64(seed);
        let mut generator = Generator::new(seed, self.limits.clone());
        let broken = self.hurt;
        // A full host looks like a full volume, and swap areas fill it.
        let full = self.plan.fill >= 40 || self.plan.areas || broken || self.full_host;
        let labels = self.cycle << 20 | (number as u32) << 14;
        let (dirs, xattrs) = (self.shared_dirs.clone(), self.limits.xattrs);
        let mut shared = Shared::new(dirs, labels, Pcg64Mcg::seed_from_u64(seed ^ 0x5A), SHARED_SECTORS, xattrs);
        let Client { root, model, inos } = client;
        let mut history = History::new(model.clone());
        let volume = Volume { vfs: vfs.clone(), disk: self.device.clone() };
        let mut driver = Driver::below(volume, vfs.clone(), model, inos, Tolerance { full, broken });
        let mut ops = 0;
        let excuses = Excuses { full, broken };
        if self.plan.unlinked_open {
            let opened = shared.open_and_unlink(vfs, excuses);
            if !self.device.is_off() {
                opened?;
            }
        }
        let mut fsync = None;
        let mut turnover = Turnover::new(seed, self.cycle, self.limits.block_size);
        'work: for _ in 0..self.plan.ops {
            // An fsync of what has just changed comes first.
            let turned = if fsync.is_none() { self.plan.turnover } else { 0 };
            for _ in 0..turned {
                if self.device.is_off() || vfs.failed().is_some() {
                    break 'work;
                }
                ops += 1;
                let op = turnover.next(&driver.model);
                if !self.step(number, &mut driver, &mut history, op)? {
                    break 'work;
                }
            }
            if self.device.is_off() || vfs.failed().is_some() {
                break;
            }
            ops += 1;
            if self.plan.think_ns > 0 && rng.random_ratio(1, 4) {
                self.think(&mut rng);
            }
            if rng.random_range(0..100) < self.plan.shared {
                let stepped = shared.step(vfs, excuses);
                if !self.device.is_off() {
                    stepped?;
                }
                continue;
            }
            let op = fsync.take().unwrap_or_else(|| generator.next(&driver.model));
            if matches!(op, Op::BackgroundStep) {
                // The syncer does background work.
                continue;
            }
            if let (Some(node), true) = (changed_file(&op), rng.random_range(0..100) < self.plan.fsyncs) {
                fsync = Some(Op::Fsync { node, data_only: rng.random_bool(0.3) });
            }
            if !self.step(number, &mut driver, &mut history, op)? {
                break;
            }
        }
        self.think(&mut rng);
        let read = shared.read_all(vfs, excuses);
        if !self.device.is_off() {
            read?;
        }
        shared.release_all(vfs);
        driver.release_all();
        history.inos = driver.inos.iter().map(|(id, ino)| (*id, ino.0)).collect();
        let inos = driver.inos.clone();
        let model = driver.abandon();
        Ok(Left { number, client: Client { root, model, inos }, history, ops })
    }

    /// Takes blocks as swap areas do, writes and reads them, and gives them back.
    fn swap_areas(&self, vfs: &Vfs<FormatOf<F>>) -> Said<()> {
        let Some(room) = vfs.format().swap_space() else { return Ok(()) };
        let mut rng = Pcg64Mcg::seed_from_u64(self.seed ^ 0x5A_F2);
        let mut runs = Runs::new(room, self.device.clone(), vfs.shape().block_size as usize);
        let excused = || self.device.is_off() || self.hurt || self.full_host;
        for _ in 0..self.plan.ops {
            if self.device.is_off() || vfs.failed().is_some() {
                break;
            }
            let ns = rng.random_range(0..=self.plan.latency_ns + SWAP_PAUSE_NS);
            sleep_until(&*self.rt, self.rt.now() + Duration::from_nanos(ns));
            match runs.step(vfs, &mut rng) {
                Err(_) if excused() => return Ok(()),
                stepped => stepped?,
            }
        }
        runs.give_all().or_else(|said| if excused() { Ok(()) } else { Err(said) })
    }

    /// Pauses, so that background work runs.
    fn think(&self, rng: &mut Pcg64Mcg) {
        let ns = rng.random_range(0..=self.plan.think_ns);
        sleep_until(&*self.rt, self.rt.now() + Duration::from_nanos(ns));
    }

    /// Does one operation and records it. Returns false if the client cannot continue.
    fn step(
        &self,
        number: usize,
        driver: &mut Driver<Volume<FormatOf<F>>>,
        history: &mut History,
        op: Op,
    ) -> Said<bool> {
        let start = self.recorder.cut_points() - 1;
        if self.loud {
            println!("{number}: {op:?} at {start}");
        }
        let mut applied = driver.model.clone();
        let possible = applied.apply(&op).is_ok();
        let refused = driver.refused;
        let result = driver.step(&op);
        let end = self.recorder.cut_points() - 1;
        let off = self.device.is_off();
        if off || (self.hurt && result.is_err()) {
            // The operation may have happened.
            if possible {
                let end = if off { usize::MAX } else { end };
                history.steps.push(Step { op, start, end, after: applied, promise: None });
            }
            return Ok(false);
        }
        result?;
        let failed = driver.refused != refused;
        if self.loud && failed {
            println!("{number}: refused");
        }
        if failed && possible {
            history.steps.push(Step { op: op.clone(), start, end, after: applied, promise: None });
        }
        let promise = promise_of(&op).filter(|_| !failed);
        history.steps.push(Step { op, start, end, after: driver.model.clone(), promise });
        Ok(true)
    }
}

/// Longest pause of swap areas in nanoseconds, beside the device's latency.
const SWAP_PAUSE_NS: u64 = 100_000;

/// Largest shared file, in sectors.
const SHARED_SECTORS: u64 = 64;

/// Returns the file whose bytes or attributes an operation changes.
fn changed_file(op: &Op) -> Option<NodeId> {
    match op {
        Op::Write { node, .. } | Op::Truncate { node, .. } | Op::SetPerm { node, .. } | Op::SetOwner { node, .. } => {
            Some(*node)
        }
        _ => None,
    }
}

/// Returns clients that did nothing.
fn idle(clients: Vec<Client>) -> Vec<Left> {
    let idle = |(number, client): (usize, Client)| {
        let mut history = History::new(client.model.clone());
        history.inos = client.inos.iter().map(|(id, ino)| (*id, ino.0)).collect();
        Left { number, client, history, ops: 0 }
    };
    clients.into_iter().enumerate().map(idle).collect()
}
