//! Simulated weeks on one volume: many mounts, every fill level, clients that make, change, move and delete trees, in
//! virtual time; all of it follows from one seed.
//!
//! A seed draws a [`Plan`]: size from 20 MiB to 4 GiB, geometry, policies, clients, days. On each day the volume is
//! filled to a new level, several clients work beside the background tasks, and the day ends with a clean unmount or
//! with a kill that keeps everything the device completed. Power cuts and device errors are [`crate::simulate`]'s part.
//!
//! Judged after every day: the family's checker finds nothing, and the reference checker neither (for a share of the
//! seeds); everything fsynced is there after a kill, and everything at all after a clean unmount; free blocks and
//! inodes are what the tree leaves, to the block, and the next mount counts the same; every log has a place to write.
//! While clients work: only a volume without the space refuses with ENOSPC, deleting never fails, the volume never
//! turns read-only. In the end everything is deleted, and all space is back.

pub mod calls;
pub mod client;
pub mod device;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use moafs_disk::SharedDisk;
use moafs_disk::mem::MemDisk;
use moafs_runtime::virt::Virtual;
use moafs_runtime::{Rt, Task, sleep_until};
use moafs_vfs::types::{FileKind, Ino};
use moafs_vfs::{Format, Options, Vfs};
use parking_lot::Mutex;
use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use self::calls::Calls;
use self::client::{Client, Habits, Own, STEPS};
use self::device::SlowDisk;
use crate::family::{self, Family};
use crate::image::{Geometry, Maker};
use crate::judges::Class;
use crate::tree::{self, LOST_AND_FOUND};
use crate::volume::{self, Mounter, writable};

type Said<T> = Result<T, String>;

/// The volume, the clients' habits and the days that a seed draws.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The volume.
    pub geometry: Geometry,
    /// The number of the engine's policy.
    pub policy: u64,
    /// Clients at work at the same time.
    pub clients: usize,
    /// Number of days; each is a mount.
    pub days: u64,
    /// Steps of each client on each day.
    pub steps: u64,
    /// Percent of the days that end with a kill.
    pub kill_percent: u32,
    /// Bytes that filling may write on one day.
    pub fill_bytes_max: u64,
    /// True if the reference checker judges as well.
    pub checker: bool,
    /// Bytes of cached data.
    pub cache_bytes: usize,
    /// See [`Options::dirty_age`].
    pub dirty_age: Duration,
}

/// The reference checker judges one of this many seeds.
const CHECKER_ONE_IN: u32 = 4;
/// Sizes of volumes, in MiB.
const MIB: [u64; 2] = [20, 4096];
/// Largest volume that a reference tool makes, in MiB: it is read back from a file.
const THEIR_MIB_MAX: u64 = 128;
/// Fill levels of the volume at the start of the clients' work, in percent of the space of an empty one.
const LEVELS: [u64; 14] = [5, 20, 40, 60, 75, 85, 90, 93, 95, 97, 98, 99, 99, 100];

impl Plan {
    /// Draws a plan.
    pub fn draw<F: Family>(seed: u64) -> Plan {
        let mut rng = Pcg64Mcg::seed_from_u64(seed ^ 0xA6E_A6E);
        let pick = |rng: &mut Pcg64Mcg, of: &[u64]| of[rng.random_range(0..of.len())];
        let mut geometry =
            family::geometry::<F>(F::AGED[rng.random_range(0..F::AGED.len())]).expect("a known geometry");
        let high = if geometry.maker == Maker::Ours { MIB[1] } else { THEIR_MIB_MAX };
        let low = MIB[0].max(geometry.kib >> 10);
        let doublings = (high.max(low) as f64 / low as f64).log2();
        // Small volumes are drawn more often: they are full soon.
        let mib = (low as f64 * (doublings * rng.random_range(0.0..1.0_f64).powf(1.5)).exp2()) as u64;
        // Sections of two segments: mkfs.f2fs refuses many sizes that are no whole number of them.
        let mib = mib.next_multiple_of(4);
        geometry.kib = mib << 10;
        let whole = rng.random_ratio(1, 12);
        Plan {
            geometry,
            policy: rng.random_range(0..F::POLICIES),
            clients: rng.random_range(1..=4),
            days: rng.random_range(2..=if mib > 512 { 5 } else { 12 }),
            steps: pick(&mut rng, &[30, 80, 150, 300]),
            kill_percent: pick(&mut rng, &[0, 30, 60]) as u32,
            fill_bytes_max: if whole { 4 << 30 } else { 96 << 20 },
            checker: rng.random_ratio(1, CHECKER_ONE_IN),
            cache_bytes: pick(&mut rng, &[2 << 20, 4 << 20, 16 << 20]) as usize,
            dirty_age: Duration::from_millis(pick(&mut rng, &[100, 3_000, 30_000])),
        }
    }

    fn options(&self) -> Options {
        Options { cache_bytes: self.cache_bytes, dirty_age: self.dirty_age, syncer: true, ..volume::options(false) }
    }
}

/// Counts of the work that a run did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Work {
    /// Days that ended.
    pub days: u64,
    /// Days that ended with a kill.
    pub kills: u64,
    /// Times that the volume was mounted.
    pub mounts: u64,
    /// Steps of clients.
    pub steps: u64,
    /// Calls that a full volume refused.
    pub refused: u64,
}

impl Work {
    /// Adds another run's counts.
    pub fn add(&mut self, other: Work) {
        self.days += other.days;
        self.kills += other.kills;
        self.mounts += other.mounts;
        self.steps += other.steps;
        self.refused += other.refused;
    }
}

/// Blocks and inodes that a tree occupies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Occupied {
    blocks: u64,
    inodes: u64,
}

/// Runs a seed. `Ok(None)` if the volume cannot be made here.
/// # Errors
/// The first fault, in words.
pub fn run<F: Family>(seed: u64) -> Said<Option<Work>> {
    let plan = Plan::draw::<F>(seed);
    let Some(disk) = F::make(&plan.geometry) else { return Ok(None) };
    let virt = Virtual::new(Some(seed));
    virt.run(|| {
        let mut run = Run::<F>::prepare(seed, plan, disk, virt.rt())?;
        for day in 0..run.plan.days {
            run.day(day).map_err(|said| format!("day {day}: {said}"))?;
        }
        run.remove_everything().map_err(|said| format!("deleting everything: {said}"))?;
        Ok(Some(run.work))
    })
}

type FormatOf<F> = <<F as Family>::Mounter as Mounter>::Format;

struct Run<F: Family> {
    plan: Plan,
    seed: u64,
    rng: Pcg64Mcg,
    rt: Rt,
    mounter: F::Mounter,
    disk: Arc<MemDisk>,
    habits: Arc<Habits>,
    clients: Vec<Arc<Member>>,
    /// Files that only fill the volume: numbers and bytes.
    base: Vec<(u64, u64)>,
    next_base: u64,
    /// Blocks and inodes that are free on a fresh volume, and (`overhead`) those that are taken without belonging to a
    /// file.
    fresh: Occupied,
    overhead: Occupied,
    work: Work,
}

/// A client between two days.
struct Member {
    home: String,
    own: Mutex<Own>,
}

/// Name of the directory of the files that only fill the volume.
const BASE: &str = "base";

impl<F: Family> Run<F> {
    /// Mounts the fresh volume, and makes the clients' directories.
    fn prepare(seed: u64, plan: Plan, disk: MemDisk, rt: Rt) -> Said<Run<F>> {
        let mut run = Run::<F> {
            rng: Pcg64Mcg::seed_from_u64(seed ^ 0xDA7),
            mounter: F::mounter(plan.policy),
            seed,
            rt,
            disk: Arc::new(disk),
            habits: Arc::new(Habits::default()),
            clients: Vec::new(),
            base: Vec::new(),
            next_base: 0,
            fresh: Occupied { blocks: 0, inodes: 0 },
            overhead: Occupied { blocks: 0, inodes: 0 },
            work: Work::default(),
            plan,
        };
        let vfs = run.mount()?;
        let (space, used) = (writable(&vfs), occupied(&vfs)?);
        run.fresh = Occupied { blocks: space.free, inodes: space.free_inodes };
        run.overhead = Occupied {
            blocks: space.blocks - space.free - used.blocks,
            inodes: space.inodes - space.free_inodes - used.inodes,
        };
        run.habits = Arc::new(run.draw_habits(&vfs));
        let calls = Calls::new(&vfs);
        calls.make(BASE, FileKind::Directory).map_err(|error| error.to_string())?;
        for number in 0..run.plan.clients {
            let home = format!("client{number}");
            calls.make(&home, FileKind::Directory).map_err(|error| error.to_string())?;
            run.clients.push(Arc::new(Member { own: Mutex::new(Own::new(&home)), home }));
        }
        vfs.close().map_err(|error| format!("first unmount: {error}"))?;
        Ok(run)
    }

    /// Draws the clients' habits on this volume: each seed switches some kinds of steps off and weighs the others.
    fn draw_habits(&mut self, vfs: &Vfs<FormatOf<F>>) -> Habits {
        let shape = vfs.shape();
        let bytes = self.fresh.blocks * u64::from(shape.block_size);
        let bytes_max = (bytes * 30 / 100).min(24 << 20) / self.plan.clients as u64;
        let mut weights = [0; STEPS];
        weights.fill_with(|| [0, 2, 4, 4, 8][self.rng.random_range(0..5)]);
        // At least one step that changes files and one that makes them durable stay on.
        (weights[0], weights[STEPS - 2]) = (weights[0].max(4), weights[STEPS - 2].max(2));
        weights[STEPS - 1] = weights[STEPS - 1].min(2);
        let xattrs = F::keeps_xattrs(&self.plan.geometry);
        Habits {
            weights,
            write_bytes_max: (bytes_max / 8).clamp(4096, 512 << 10),
            bytes_max,
            names_max: (self.fresh.inodes / (2 * self.plan.clients as u64)).min(250) as usize,
            sparse_bytes_max: (64 << 20).min(shape.file_bytes_max / 2),
            xattr_bytes_max: if xattrs { 600 } else { 0 },
            target_bytes_max: shape.symlink_bytes_max.min(1000),
        }
    }

    fn mount(&mut self) -> Said<Vfs<FormatOf<F>>> {
        self.work.mounts += 1;
        let disk: SharedDisk = Arc::new(SlowDisk::new(self.disk.clone(), Arc::clone(&self.rt), self.rng.random()));
        let vfs = self.mounter.mount_on(disk, Arc::clone(&self.rt), self.plan.options());
        vfs.map_err(|error| format!("mount: {error}"))
    }

    fn sleep(&self, time: Duration) {
        sleep_until(&*self.rt, self.rt.now() + time);
    }

    /// Mounts, fills, lets the clients work, unmounts or kills, and judges.
    fn day(&mut self, day: u64) -> Said<()> {
        let vfs = self.mount()?;
        self.fill(&vfs).map_err(|said| format!("filling: {said}"))?;
        let stop = Arc::new(AtomicBool::new(false));
        let (steps, results) = (Arc::new(AtomicU64::new(0)), Arc::new(Mutex::new(Vec::new())));
        let start = |(number, own): (usize, &Arc<Member>)| {
            let shift = Shift {
                own: Arc::clone(own),
                habits: Arc::clone(&self.habits),
                rt: Arc::clone(&self.rt),
                seed: (self.seed * 100 + day) * 10 + number as u64,
                steps_max: self.plan.steps,
                steps: Arc::clone(&steps),
                stop: Arc::clone(&stop),
            };
            let (vfs, results) = (vfs.clone(), Arc::clone(&results));
            let body = move || {
                // The client's lock is not held here, because the work waits.
                let result = shift.work(&vfs);
                results.lock().push(result);
            };
            self.rt.spawn(&format!("client {number}"), Box::new(body))
        };
        let tasks: Vec<Task> = self.clients.iter().enumerate().map(start).collect();
        let killed = self.rng.random_ratio(self.plan.kill_percent, 100);
        let left = killed.then(|| self.kill(&vfs, &tasks, &steps, &stop));
        tasks.iter().for_each(|task| task.join(&*self.rt));
        for result in results.lock().drain(..) {
            self.work.refused += result?;
        }
        self.work.days += 1;
        self.work.steps += steps.load(Ordering::Relaxed);
        if let Some(reason) = vfs.failed() {
            return Err(format!("the volume turned read-only: {reason}"));
        }
        let before = if killed { None } else { Some(self.settled(&vfs)?) };
        vfs.close().map_err(|error| format!("unmount: {error}"))?;
        match left {
            Some((disk, owns)) => self.recover(disk, owns).map_err(|said| format!("after the kill: {said}"))?,
            None => self.judge_whole()?,
        }
        self.judge(before)
    }

    /// Waits until a moment in the middle of the work, and returns the device's contents and the clients' trees of that
    /// moment.
    fn kill(
        &mut self,
        vfs: &Vfs<FormatOf<F>>,
        tasks: &[Task],
        steps: &AtomicU64,
        stop: &AtomicBool,
    ) -> (MemDisk, Vec<Own>) {
        self.work.kills += 1;
        let target = self.rng.random_range(0..=self.plan.steps * self.plan.clients as u64);
        while steps.load(Ordering::Relaxed) < target && !tasks.iter().all(Task::is_finished) {
            let pause = Duration::from_micros(self.rng.random_range(10..2_000));
            self.sleep(pause);
        }
        let left = (self.disk.snapshot(), self.clients.iter().map(|client| client.own.lock().clone()).collect());
        Calls::new(vfs).say(format_args!("kill"));
        stop.store(true, Ordering::Relaxed);
        left
    }

    /// Mounts the volume after a kill: every promise is kept, and the clients continue with the files they find.
    fn recover(&mut self, disk: MemDisk, owns: Vec<Own>) -> Said<()> {
        family::no_complaints::<F>(&disk)?;
        if self.plan.checker {
            let verdict = family::look::<F>(&disk)?;
            if let Some(verdict) = verdict.filter(|verdict| verdict.class == Class::Fatal) {
                return Err(format!("{}: {}", F::CHECKER, verdict.text));
            }
        }
        self.disk = Arc::new(disk);
        // Until recovery has ended, a name of an interrupted move may exist twice, and a file of an interrupted
        // exchange may have a temporary name. The clients continue with the names that recovery leaves.
        for recovered in [false, true] {
            let vfs = self.mount()?;
            let seen = seen(&vfs)?;
            for (client, own) in self.clients.iter().zip(&owns) {
                *client.own.lock() = own.after_kill(&seen, &client.home, recovered)?;
            }
            vfs.close().map_err(|error| format!("unmount: {error}"))?;
        }
        Ok(())
    }

    /// Checks after a clean unmount that every file is as its client left it.
    fn judge_whole(&mut self) -> Said<()> {
        let vfs = self.mount()?;
        let seen = seen(&vfs)?;
        for client in &self.clients {
            client.own.lock().same(&seen, &client.home)?;
        }
        vfs.close().map_err(|error| format!("unmount: {error}"))
    }

    /// Judges a volume that was unmounted cleanly; `before` is the free space counted before that.
    fn judge(&mut self, before: Option<Occupied>) -> Said<()> {
        self.judge_unmounted()?;
        let vfs = self.mount()?;
        let now = free(&vfs);
        if let Some(before) = before.filter(|before| *before != now) {
            return Err(format!("before the unmount {before:?} were free, after it {now:?}"));
        }
        self.account(&vfs)?;
        self.probe(&vfs).map_err(|said| format!("no place to write: {said}"))?;
        self.settled(&vfs)?;
        self.account(&vfs).map_err(|said| format!("after writing to every log: {said}"))?;
        vfs.close().map_err(|error| format!("unmount: {error}"))
    }

    fn judge_unmounted(&self) -> Said<()> {
        let findings = F::findings(&self.disk);
        if !findings.is_empty() {
            return Err(format!("our checker: {}", findings.join("; ")));
        }
        if !self.plan.checker {
            return Ok(());
        }
        match family::look::<F>(&self.disk)? {
            Some(verdict) if !verdict.spotless => Err(format!("{}: {}", F::CHECKER, verdict.text)),
            _ => Ok(()),
        }
    }

    /// Waits until no background work is left, and returns the free space.
    fn settled(&self, vfs: &Vfs<FormatOf<F>>) -> Said<Occupied> {
        for _ in 0..2 {
            vfs.sync().map_err(|error| format!("sync: {error}"))?;
            self.sleep(SETTLING);
        }
        vfs.sync().map_err(|error| format!("sync: {error}"))?;
        Ok(free(vfs))
    }

    /// Fails unless the volume counts as free exactly the space that the tree leaves.
    fn account(&self, vfs: &Vfs<FormatOf<F>>) -> Said<()> {
        let (space, used) = (writable(vfs), occupied(vfs)?);
        let blocks = space.blocks - self.overhead.blocks - used.blocks;
        if space.free != blocks {
            return Err(format!("{} blocks are free, the tree leaves {blocks}", space.free));
        }
        let inodes = (space.inodes - self.overhead.inodes).saturating_sub(used.inodes);
        if F::COUNTS_INODES && space.free_inodes != inodes {
            return Err(format!("{} inodes are free, the tree leaves {inodes}", space.free_inodes));
        }
        Ok(())
    }

    /// Fills or empties the volume to a new level.
    fn fill(&mut self, vfs: &Vfs<FormatOf<F>>) -> Said<()> {
        let level = LEVELS[self.rng.random_range(0..LEVELS.len())];
        let block = u64::from(vfs.shape().block_size);
        let target = self.fresh.blocks * (100 - level) / 100;
        let calls = Calls::new(vfs);
        let mut bytes_left = self.plan.fill_bytes_max;
        loop {
            let free = writable(vfs).free;
            if free < target {
                if self.base.is_empty() {
                    break;
                }
                self.remove_base(&calls)?;
                continue;
            }
            let missing = ((free - target) * block).min(bytes_left);
            if missing < block || writable(vfs).free_inodes < INODES_KEPT {
                break;
            }
            let bytes = self.piece(missing, block).min(vfs.shape().file_bytes_max / 2);
            bytes_left -= bytes;
            if !self.add_base(&calls, bytes)? {
                break;
            }
        }
        vfs.sync().map_err(|error| format!("sync: {error}"))
    }

    /// Returns the size of a file that fills the volume: small ones while there are few.
    fn piece(&mut self, missing: u64, block: u64) -> u64 {
        if self.base.len() > BASE_FILES {
            return missing.min(missing / 4 + (1 << 20));
        }
        let bits = self.rng.random_range(0..=(missing / block).max(1).ilog2());
        (block << bits).min(missing)
    }

    /// Adds a file that fills the volume. Returns false if the volume is full.
    fn add_base(&mut self, calls: &Calls<'_, FormatOf<F>>, bytes: u64) -> Said<bool> {
        static ZEROS: [u8; 256 << 10] = [0; 256 << 10];
        self.next_base += 1;
        let path = format!("{BASE}/{}", self.next_base);
        if calls.with_space(0, || calls.make(&path, FileKind::Regular))?.is_none() {
            return Ok(false);
        }
        self.base.push((self.next_base, bytes));
        for at in (0..bytes).step_by(ZEROS.len()) {
            let piece = &ZEROS[..(bytes - at).min(ZEROS.len() as u64) as usize];
            if calls.with_space(piece.len() as u64, || calls.write(&path, at, piece))?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn remove_base(&mut self, calls: &Calls<'_, FormatOf<F>>) -> Said<()> {
        let at = self.rng.random_range(0..self.base.len());
        let (number, _) = self.base.swap_remove(at);
        calls.unlink(&format!("{BASE}/{number}")).map_err(|error| format!("unlink: {error}"))
    }

    /// Writes one file of each kind right after space was freed.
    fn probe(&mut self, vfs: &Vfs<FormatOf<F>>) -> Said<()> {
        let calls = Calls::new(vfs);
        while (writable(vfs).free < PROBE_BLOCKS || writable(vfs).free_inodes < INODES_KEPT) && !self.base.is_empty() {
            self.remove_base(&calls)?;
        }
        if writable(vfs).free < PROBE_BLOCKS || writable(vfs).free_inodes < INODES_KEPT {
            return Ok(());
        }
        let far = (12 << 20).min(vfs.shape().file_bytes_max / 2);
        let write = |path: &str, at: u64| {
            calls.make(path, FileKind::Regular)?;
            calls.write(path, at, &[b'p'; 4096])?;
            calls.fsync(path)
        };
        let all = || {
            calls.make("probe", FileKind::Directory)?;
            write("probe/warm", 0)?;
            write("probe/cold.mp3", 0)?;
            write("probe/hot.db", 0)?;
            write("probe/far", far)?;
            calls.symlink("probe/link", &[b't'; 200])?;
            for name in ["warm", "cold.mp3", "hot.db", "far", "link"] {
                calls.unlink(&format!("probe/{name}"))?;
            }
            calls.rmdir("probe")
        };
        all().map_err(|error: moafs_vfs::Error| error.to_string())
    }

    /// Deletes everything, and checks that all space is free again.
    fn remove_everything(&mut self) -> Said<()> {
        let vfs = self.mount()?;
        let calls = Calls::new(&vfs);
        calls.clear(vfs.shape().root, &[LOST_AND_FOUND]).map_err(|error| error.to_string())?;
        self.settled(&vfs)?;
        self.account(&vfs)?;
        let now = free(&vfs);
        // The root and lost+found may have grown.
        if now.blocks + SLACK_BLOCKS < self.fresh.blocks || now.inodes != self.fresh.inodes && F::COUNTS_INODES {
            return Err(format!("{now:?} are free, {:?} were", self.fresh));
        }
        vfs.close().map_err(|error| format!("unmount: {error}"))?;
        self.judge_unmounted()
    }
}

/// Virtual time after which requested background work is done.
const SETTLING: Duration = Duration::from_secs(8);
/// Blocks that a probe needs to write to every log.
const PROBE_BLOCKS: u64 = 64;
/// Inodes that filling leaves free.
const INODES_KEPT: u64 = 16;
/// Number of files that fill the volume before only large ones are made.
const BASE_FILES: usize = 800;
/// Blocks that the remaining directories may keep.
const SLACK_BLOCKS: u64 = 16;

/// Reads the tree of a volume, without the files that only fill it.
fn seen<F: Format>(vfs: &Vfs<F>) -> Said<tree::Tree> {
    tree::of_parts(vfs, |name| name != BASE.as_bytes() && name != LOST_AND_FOUND)
}

fn free<F: Format>(vfs: &Vfs<F>) -> Occupied {
    let space = writable(vfs);
    Occupied { blocks: space.free, inodes: space.free_inodes }
}

/// Returns the blocks and inodes of the whole tree.
fn occupied<F: Format>(vfs: &Vfs<F>) -> Said<Occupied> {
    let calls = Calls::new(vfs);
    let sectors_per_block = u64::from(vfs.shape().block_size / 512);
    let mut sum = Occupied { blocks: 0, inodes: 0 };
    let (mut todo, mut met) = (vec![vfs.shape().root], BTreeSet::new());
    while let Some(ino) = todo.pop() {
        if !met.insert(ino) {
            continue;
        }
        let words = |error: moafs_vfs::Error| format!("inode {}: {error}", ino.0);
        let stat = vfs.stat(ino).map_err(words)?;
        sum.blocks += stat.sectors / sectors_per_block + u64::from(vfs.shape().inodes_take_blocks);
        sum.inodes += 1;
        if stat.attr.kind == FileKind::Directory {
            let below: Vec<Ino> = calls.list(ino).map_err(words)?.into_iter().map(|(_, ino)| ino).collect();
            todo.extend(below);
        }
    }
    Ok(sum)
}

/// A client's work on one day, as a task of the runtime.
struct Shift {
    own: Arc<Member>,
    habits: Arc<Habits>,
    rt: Rt,
    seed: u64,
    steps_max: u64,
    steps: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
}

impl Shift {
    /// Works, and returns the number of calls that a full volume refused.
    fn work<F: Format>(&self, vfs: &Vfs<F>) -> Said<u64> {
        let mut client = Client {
            calls: Calls::new(vfs),
            home: &self.own.home,
            own: &self.own.own,
            habits: &self.habits,
            rng: Pcg64Mcg::seed_from_u64(self.seed),
            orphans: Vec::new(),
        };
        let mut done = Ok(());
        for number in 0..self.steps_max {
            if self.stop.load(Ordering::Relaxed) || done.is_err() {
                break;
            }
            done = client.step().map_err(|said| format!("{}, step {number}: {said}", self.own.home));
            self.steps.fetch_add(1, Ordering::Relaxed);
            let pause = if client.rng.random_ratio(1, 60) { PAUSE_US } else { 300 };
            let pause = Duration::from_micros(client.rng.random_range(1..pause));
            sleep_until(&*self.rt, self.rt.now() + pause);
        }
        client.orphans.drain(..).for_each(|ino| vfs.forget(ino, 1));
        done.map(|()| client.calls.refused.load(Ordering::Relaxed))
    }
}

/// Longest pause of a client, in microseconds: background work runs meanwhile.
const PAUSE_US: u64 = 40_000_000;
