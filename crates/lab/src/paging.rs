//! The machine of saf-…: several programs at once on one processor, one memory that pages, and one drive.
//!
//! Programs → vfs with its cache, and [`Memory`] → the engine of a format and [`Swap`] → windows of
//! the drive (swap partition, volume) → one elevator with one command out → [`HeadLog`] → drive
//! model. The systems differ in where the swap places pages, and in nothing else.
//!
//! | module | what it holds |
//! |---|---|
//! | [`drive`] | partitions, and the file system that programs find |
//! | [`ground`] | what that file system may be |
//! | [`head`] | every access, and the strokes between them |

pub mod drive;
pub mod ground;
pub mod head;

use std::sync::Arc;

use moafs_disk::model::ModelDisk;
use moafs_disk::probe::trace::Trace;
use moafs_disk::{MemDisk, SharedDisk};
use moafs_runtime::{Rt, Task, Virtual};
use moafs_swap::{Home, PAGE_BYTES, Status, Swap, SwapOptions};
use moafs_vfs::counters::Counters;
use moafs_vfs::{Format, Vfs};
use moafs_workload::Postmark;
use parking_lot::Mutex;

use crate::error::{LabError, Result};
use crate::machine::{self, Totals};
use crate::memory::{Background, Limits, Memory, Paging, Process};
use crate::processor::OneProcessor;
use crate::program::compile::Compile;
use crate::program::lu::Lu;
use crate::program::ns2::Ns2;
use crate::program::sor::Sor;
use crate::swap_system::SwapSystem;
use crate::workload::Client;
use crate::workload::postmark;
use ground::TestFileSystem;
use head::{HeadAccess, HeadLog};

/// A program that runs beside others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// Postmark, which uses files.
    Postmark(Postmark),
    /// A kernel compile, which uses files and some memory.
    Compile(Compile),
    /// SOR, which uses memory.
    Sor(Sor),
    /// LU, which uses memory.
    Lu(Lu),
    /// The network simulator, which uses memory.
    Ns2(Ns2),
}

impl Program {
    /// Returns the program's name in tables.
    pub fn name(&self) -> &'static str {
        match self {
            Program::Postmark(_) => "postmark",
            Program::Compile(_) => "compile",
            Program::Sor(_) => "sor",
            Program::Lu(_) => "lu",
            Program::Ns2(_) => "ns2",
        }
    }

    /// Returns the memory that the program needs, in pages.
    pub fn pages(&self) -> u32 {
        match self {
            Program::Postmark(_) => 0,
            Program::Compile(compile) => compile.pages,
            Program::Sor(sor) => sor.pages(),
            Program::Lu(lu) => lu.pages(),
            Program::Ns2(ns2) => ns2.pages(),
        }
    }

    fn run(&self, client: &Client<impl Format>, process: &Process) -> Result<()> {
        match self {
            Program::Postmark(spec) => postmark::run(spec, client).map(drop),
            Program::Compile(compile) => compile.run(client, process),
            Program::Sor(sor) => sor.run(process),
            Program::Lu(lu) => lu.run(process),
            Program::Ns2(ns2) => ns2.run(process),
        }
    }
}

/// The parts of a machine with several programs.
#[derive(Debug, Clone)]
pub struct PagingSetup<'a, G> {
    /// The machine but for its memory.
    pub machine: machine::Setup<'a, G>,
    /// System under test: the place that pages go to.
    pub system: SwapSystem,
    /// Size of a swap area in bytes.
    pub area_bytes: u64,
    /// Size of memory, and the parameters of paging.
    pub memory: Limits,
}

/// The measurements of a run.
#[derive(Debug, Clone)]
pub struct Measured {
    /// Counters from the common start until all programs had ended.
    pub totals: Totals,
    /// Time at which each program had ended, in nanoseconds.
    pub ended_ns: Vec<u64>,
    /// Every access to the drive.
    pub accesses: Vec<HeadAccess>,
    /// Counters of the page daemon and of faults.
    pub paging: Paging,
    /// Status of the swap after the programs had ended and given their memory back.
    pub swap: Status,
    /// The file system's counters.
    pub files: Counters,
    /// Segments that swap areas took, on a volume that has segments.
    pub segments_taken: Option<u64>,
}

/// The parts of the machine below the programs.
struct Machine<F: Format> {
    rt: Rt,
    processor: Arc<OneProcessor>,
    device: Arc<ModelDisk>,
    trace: Arc<Trace>,
    head: Arc<HeadLog>,
    vfs: Vfs<F>,
    memory: Arc<Memory>,
    background: Background,
}

/// Runs `programs` from a common start over a copy of `image` until all have ended.
///
/// # Errors
/// Fails with the first error of a program in the order given, or if the drive or the volume cannot be opened.
pub fn run<G: TestFileSystem>(setup: &PagingSetup<'_, G>, image: &MemDisk, programs: &[Program]) -> Result<Measured> {
    let runtime = Virtual::new(None);
    runtime.run(|| {
        let machine = Machine::new(setup, runtime.rt(), image)?;
        let measured = machine.measure(setup, programs);
        let stopped = machine.memory.stop(&machine.background).map_err(|error| LabError::Swap(error.to_string()));
        drop(machine.memory);
        let closed = machine.vfs.close().map_err(LabError::volume("unmounting"));
        measured.and_then(|measured| stopped.and(closed).map(|()| measured))
    })
}

impl<F: Format> Machine<F> {
    fn new<G: TestFileSystem<Format = F>>(setup: &PagingSetup<'_, G>, time: Rt, image: &MemDisk) -> Result<Machine<F>> {
        let of = &setup.machine;
        let (device, below) = of.device(&time, image)?;
        let processor = OneProcessor::new(time);
        let rt = Arc::clone(&processor) as Rt;
        let head = Arc::new(HeadLog::new(below));
        let trace = Arc::new(Trace::new(Arc::clone(&head) as SharedDisk, Rt::clone(&rt)));
        let (partition, volume) = drive::partitions(&of.queue(Arc::clone(&trace) as SharedDisk, &rt));
        let vfs = machine::mounted(&volume, &rt, &of.mount, &of.options)?;
        let swap = swap(setup, &vfs, volume, partition, &rt)?;
        let pages = swap.pages();
        let (memory, background) = Memory::new(Rt::clone(&rt), setup.memory, pages, swap, Arc::new(vfs.clone()));
        Ok(Machine { rt, processor, device, trace, head, vfs, memory, background })
    }

    fn measure<G: TestFileSystem<Format = F>>(
        &self,
        setup: &PagingSetup<'_, G>,
        programs: &[Program],
    ) -> Result<Measured> {
        let before = self.totals();
        self.head.take();
        type Ended = Option<(u64, Result<()>)>;
        let ended: Arc<Mutex<Vec<Ended>>> = Arc::new(Mutex::new(programs.iter().map(|_| None).collect()));
        let spawn = |(at, program): (usize, &Program)| {
            let (program, ended, rt) = (*program, Arc::clone(&ended), Rt::clone(&self.rt));
            let (vfs, memory, cpu) = (self.vfs.clone(), Arc::clone(&self.memory), setup.machine.cpu);
            let work = move || {
                let client = Client::new(vfs, Rt::clone(&rt), cpu).sharing(&memory).within(ground::HOME);
                let process = Process::new(&memory, program.pages());
                let result = client.and_then(|client| program.run(&client, &process));
                process.settle();
                drop(process);
                ended.lock()[at] = Some((rt.now().0, result));
            };
            self.rt.spawn(program.name(), Box::new(work))
        };
        let tasks: Vec<Task> = programs.iter().enumerate().map(spawn).collect();
        tasks.iter().for_each(|task| task.join(&*self.rt));
        let totals = self.totals().since(&before);
        let mut ended_ns = Vec::new();
        for ended in ended.lock().iter_mut() {
            let (at, result) = ended.take().expect("a task that was joined has ended");
            result?;
            ended_ns.push(at - before.now_ns);
        }
        Ok(Measured {
            totals,
            ended_ns,
            accesses: self.head.take(),
            paging: self.memory.paging(),
            swap: self.memory.swap().status(),
            files: self.vfs.counters(),
            segments_taken: G::segments_taken(self.vfs.format()),
        })
    }

    fn totals(&self) -> Totals {
        let (now_ns, cpu_ns) = (self.rt.now().0, self.processor.used_ns());
        Totals::of(now_ns, &self.device, &self.trace, cpu_ns, &self.vfs.counters())
    }
}

/// Makes the swap of a system: as large as the partition, also where pages go to the file system.
fn swap<F: Format, G>(
    setup: &PagingSetup<'_, G>,
    vfs: &Vfs<F>,
    volume: SharedDisk,
    partition: SharedDisk,
    rt: &Rt,
) -> Result<Swap> {
    let failed = |error: moafs_swap::SwapError| LabError::Swap(error.to_string());
    let pages = (partition.limits().sectors * moafs_disk::SECTOR as u64 / PAGE_BYTES as u64) as u32;
    let no_room = || LabError::Swap("this file system has no room for pages".to_owned());
    let home = || Home::of(vfs, volume).ok_or_else(no_room);
    let home = setup.system.has_volume().then(home).transpose()?;
    let partition = setup.system.has_partition().then_some(partition);
    let (placement, area_bytes) = (setup.system.placement(), setup.area_bytes);
    let options = SwapOptions { placement, area_bytes, ..SwapOptions::default() };
    Swap::open(home, partition, pages, Rt::clone(rt), options).map_err(failed)
}
