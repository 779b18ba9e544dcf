//! The machine of one case: everything from the program down to the drive, in virtual time.
//!
//! Program ([`Client`]) → vfs with its cache and syncer → the engine of a format, opened as the
//! system says ([`Mount`]) → elevator (merging or not; usually one command out) → drive model, which
//! keeps metadata only. The volume is the drive's first part. Everything measured is a difference
//! of two [`Totals`].

use std::sync::Arc;

use moafs_disk::epoch::Epochs;
use moafs_disk::model::hdd::Background;
use moafs_disk::model::{Contents, DriveSpec, FlashCounters, ModelDisk, Served, Totals as DriveTotals};
use moafs_disk::probe::trace::{Counters as RequestCounters, Trace};
use moafs_disk::{Disk, DiskError, Done, Elevator, Epoch, MemDisk, QueueOptions, SharedDisk, Ticket};
use moafs_runtime::{Rt, Virtual};
use moafs_vfs::counters::Counters;
use moafs_vfs::{Format, Options, Vfs};

use crate::cpu::Cpu;
use crate::error::{LabError, Result};
use crate::workload::Client;
use crate::write_cache::WriteCache;

/// The system under test: a format, and the options it is opened with.
pub trait Mount: Clone {
    /// Engine of the format under test.
    type Format: Format;

    /// Opens the volume on `disk`, with requests of at most `transfer_bytes_max`.
    ///
    /// # Errors
    /// Fails if there is no sound volume.
    fn open(&self, disk: SharedDisk, rt: Rt, transfer_bytes_max: usize) -> moafs_vfs::Result<Self::Format>;
}

/// The parts of a machine.
#[derive(Debug, Clone)]
pub struct Setup<'a, M> {
    /// The system under test.
    pub mount: M,
    /// Name or file of the drive.
    pub drive: &'a str,
    /// Use of the drive's write cache.
    pub write_cache: WriteCache,
    /// True if the queue merges adjacent requests, of different files as well.
    pub merge: bool,
    /// Commands at the drive at once: more than one if it chooses their order by itself.
    pub queue_depth: u32,
    /// Options of vfs: cache, syncer, sizes of requests.
    pub options: Options,
    /// Processor time of calls.
    pub cpu: Cpu,
}

/// A running machine: its drive, its mounted volume and its program.
pub struct Machine<M: Mount> {
    client: Client<M::Format>,
    rt: Rt,
    device: Arc<ModelDisk>,
    /// Counters of the queue's requests to the drive, by kind.
    trace: Arc<Trace>,
    queue: SharedDisk,
    mount: M,
    options: Options,
    cpu: Cpu,
    /// Sums of the counters of earlier mounts.
    earlier: Totals,
}

/// All counters, from the machine's start on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Totals {
    /// Virtual time in nanoseconds.
    pub now_ns: u64,
    /// The drive's counters of its commands.
    pub drive: DriveTotals,
    /// Background work of the drive: writing its buffer to the media, reading ahead.
    pub background: Background,
    /// Work of the flash; `None` for a hard disk.
    pub flash: Option<FlashCounters>,
    /// Requests to the drive, by operation, kind and cause.
    pub requests: RequestCounters,
    /// Processor time of the program in nanoseconds.
    pub cpu_ns: u64,
    /// Requests that carried blocks of more than one file.
    pub co_writes: u64,
    /// Files that these requests carried.
    pub co_written_files: u64,
    /// Bytes written by programs.
    pub written_bytes: u64,
    /// Bytes read by programs.
    pub read_bytes: u64,
    /// Write-back requests of vfs, before the queue.
    pub write_backs: u64,
    /// Reads that brought neighbours of a small file.
    pub co_reads: u64,
}

impl Totals {
    /// Returns the difference to `earlier`.
    pub fn since(&self, earlier: &Totals) -> Totals {
        Totals {
            now_ns: self.now_ns - earlier.now_ns,
            drive: self.drive.since(&earlier.drive),
            background: self.background.since(&earlier.background),
            flash: self.flash.map(|now| now.since(&earlier.flash.unwrap_or_default())),
            requests: self.requests.since(&earlier.requests),
            cpu_ns: self.cpu_ns - earlier.cpu_ns,
            co_writes: self.co_writes - earlier.co_writes,
            co_written_files: self.co_written_files - earlier.co_written_files,
            written_bytes: self.written_bytes - earlier.written_bytes,
            read_bytes: self.read_bytes - earlier.read_bytes,
            write_backs: self.write_backs - earlier.write_backs,
            co_reads: self.co_reads - earlier.co_reads,
        }
    }
}

impl<M: Mount> Setup<'_, M> {
    /// Makes the drive over a copy of `image`, and the disk that stands for it.
    pub(crate) fn device(&self, rt: &Rt, image: &MemDisk) -> Result<(Arc<ModelDisk>, SharedDisk)> {
        let mut spec = drive(self.drive)?;
        if self.queue_depth > 1 {
            let set = spec.set("ncq_depth", &self.queue_depth.to_string());
            set.map_err(|error| LabError::Drive(error.to_string()))?;
        }
        if self.write_cache == WriteCache::Off {
            spec.write_through();
        }
        let device = ModelDisk::new(Arc::clone(rt), &spec, image.snapshot(), Contents::Metadata);
        let device = Arc::new(device.map_err(|error| LabError::Drive(error.to_string()))?);
        let disk: SharedDisk = match self.write_cache {
            WriteCache::On => Arc::new(Unflushed::new(Arc::clone(&device))),
            WriteCache::Flushed | WriteCache::Off => Arc::clone(&device) as SharedDisk,
        };
        Ok((device, disk))
    }

    /// Makes the queue above `below`.
    pub(crate) fn queue(&self, below: SharedDisk, rt: &Rt) -> SharedDisk {
        let queue = QueueOptions {
            merge: self.merge,
            depth: self.queue_depth as usize,
            transfer_bytes_max: self.options.transfer_bytes_max,
            ..QueueOptions::one_command()
        };
        Arc::new(Elevator::new(below, Arc::clone(rt), queue))
    }
}

impl Totals {
    /// Collects the counters of the clock, the drive, its trace, the processor and the file system.
    pub(crate) fn of(now_ns: u64, device: &ModelDisk, trace: &Trace, cpu_ns: u64, vfs: &Counters) -> Totals {
        Totals {
            now_ns,
            drive: device.totals(),
            background: device.background(),
            flash: device.flash(),
            requests: trace.counters(),
            cpu_ns,
            co_writes: vfs.co_writes,
            co_written_files: vfs.co_written_files,
            written_bytes: vfs.write_bytes,
            read_bytes: vfs.read_bytes,
            write_backs: vfs.write_back_requests,
            co_reads: vfs.co_reads,
        }
    }
}

impl<M: Mount> Machine<M> {
    /// Builds a machine over a copy of `image`, runs `work` on it, and unmounts.
    ///
    /// # Errors
    /// Fails as `work` does, or if the drive or the volume cannot be opened.
    pub fn run<T>(setup: &Setup<'_, M>, image: &MemDisk, work: impl FnOnce(&mut Machine<M>) -> Result<T>) -> Result<T> {
        let runtime = Virtual::new(None);
        runtime.run(|| {
            let mut machine = Machine::new(setup, runtime.rt(), image)?;
            let outcome = work(&mut machine);
            let closed = machine.client.vfs().clone().close().map_err(LabError::volume("unmounting"));
            outcome.and_then(|outcome| closed.map(|()| outcome))
        })
    }

    fn new(setup: &Setup<'_, M>, rt: Rt, image: &MemDisk) -> Result<Machine<M>> {
        let (device, below) = setup.device(&rt, image)?;
        let trace = Arc::new(Trace::new(below, Arc::clone(&rt)));
        let queue = setup.queue(Arc::clone(&trace) as SharedDisk, &rt);
        let (mount, options, cpu) = (setup.mount.clone(), setup.options.clone(), setup.cpu);
        let client = client(&queue, &rt, &mount, &options, cpu)?;
        Ok(Machine { client, rt, device, trace, queue, mount, options, cpu, earlier: Totals::default() })
    }

    /// Returns the program of the machine.
    pub fn client(&self) -> &Client<M::Format> {
        &self.client
    }

    /// Unmounts and mounts again, so that nothing is cached.
    ///
    /// # Errors
    /// Fails if an operation on the volume fails.
    pub fn remount(&mut self) -> Result<()> {
        self.client.vfs().clone().close().map_err(LabError::volume("unmounting"))?;
        self.earlier = self.totals();
        self.client = client(&self.queue, &self.rt, &self.mount, &self.options, self.cpu)?;
        Ok(())
    }

    /// Mounts again as [`Machine::remount`] does, with another read-ahead from now on.
    ///
    /// # Errors
    /// Fails if an operation on the volume fails.
    pub fn remount_reading_ahead(&mut self, read_ahead_bytes: usize) -> Result<()> {
        self.options.read_ahead_bytes = read_ahead_bytes;
        self.remount()
    }

    /// Returns all counters so far.
    pub fn totals(&self) -> Totals {
        let vfs = self.client.vfs().counters();
        let now = Totals::of(self.rt.now().0, &self.device, &self.trace, self.client.cpu_ns(), &vfs);
        let earlier = &self.earlier;
        Totals {
            cpu_ns: earlier.cpu_ns + now.cpu_ns,
            co_writes: earlier.co_writes + now.co_writes,
            co_written_files: earlier.co_written_files + now.co_written_files,
            written_bytes: earlier.written_bytes + now.written_bytes,
            read_bytes: earlier.read_bytes + now.read_bytes,
            write_backs: earlier.write_backs + now.write_backs,
            co_reads: earlier.co_reads + now.co_reads,
            ..now
        }
    }

    /// Runs `work` and returns the difference of the counters before and after.
    ///
    /// # Errors
    /// Fails as `work` does.
    pub fn measure<T>(&mut self, work: impl FnOnce(&mut Machine<M>) -> Result<T>) -> Result<(T, Totals)> {
        let before = self.totals();
        let outcome = work(self)?;
        Ok((outcome, self.totals().since(&before)))
    }

    /// Begins to list what the drive serves, the newest `served_max` commands.
    pub fn record(&self, served_max: usize) {
        self.device.record(served_max);
    }

    /// Returns the listed commands.
    pub fn take(&self) -> Vec<Served> {
        self.device.take()
    }
}

/// Loads the drive with this name, or from this file.
///
/// # Errors
/// Fails if there is none; the error lists the drives that exist.
pub fn drive(name: &str) -> Result<DriveSpec> {
    DriveSpec::load(name).map_err(|error| LabError::Drive(error.to_string()))
}

/// Mounts the volume on `disk`.
pub(crate) fn mounted<M: Mount>(disk: &SharedDisk, rt: &Rt, mount: &M, options: &Options) -> Result<Vfs<M::Format>> {
    let format = mount.open(Arc::clone(disk), Arc::clone(rt), options.transfer_bytes_max);
    let format = format.map_err(LabError::volume("mounting"))?;
    Ok(Vfs::new(format, Arc::clone(disk), Arc::clone(rt), options.clone()))
}

fn client<M: Mount>(disk: &SharedDisk, rt: &Rt, mount: &M, options: &Options, cpu: Cpu) -> Result<Client<M::Format>> {
    Ok(Client::new(mounted(disk, rt, mount, options)?, Arc::clone(rt), cpu))
}

/// Runs `work` on a volume in memory that is mounted for it, where nothing takes time, and closes it cleanly.
///
/// # Errors
/// Fails as `work` does, or if there is no sound volume.
pub fn without_time<M: Mount, T>(
    disk: SharedDisk,
    mount: &M,
    options: Options,
    work: impl FnOnce(&Client<M::Format>) -> Result<T>,
) -> Result<T> {
    let runtime = Virtual::new(None);
    runtime.run(|| {
        let options = Options { syncer: false, ..options };
        let client = client(&disk, &runtime.rt(), mount, &options, Cpu::PENTIUM_III.scaled(0))?;
        let outcome = work(&client);
        let closed = client.vfs().clone().close().map_err(LabError::volume("unmounting"));
        outcome.and_then(|outcome| closed.map(|()| outcome))
    })
}

/// A drive with a write cache under a system that never flushes it: a flush is done at once and
/// never sent to the drive. The data that such a system may lose in a power cut are not the subject
/// here.
struct Unflushed {
    inner: Arc<ModelDisk>,
    epochs: Epochs,
}

impl Unflushed {
    fn new(inner: Arc<ModelDisk>) -> Unflushed {
        Unflushed { inner, epochs: Epochs::default() }
    }
}

impl Disk for Unflushed {
    moafs_disk::forward_to!(inner: limits, submit, read_into);

    fn wait(&self, ticket: Ticket) -> Vec<Done> {
        let done = self.inner.wait(ticket).into_iter();
        done.map(|done| Done { epoch: self.epochs.current(), ..done }).collect()
    }

    fn make_durable(&self, upto: Epoch) -> Result<(), DiskError> {
        self.epochs.flush_at_once(upto);
        Ok(())
    }

    fn epoch(&self) -> Epoch {
        self.epochs.current()
    }

    fn durable(&self) -> Option<Epoch> {
        self.epochs.durable()
    }
}
