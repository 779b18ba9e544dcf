//! [`ModelDisk`]: a modelled drive on a runtime's clock, with contents.
//!
//! The drive's state is computed lazily: every access brings it up to the present. `submit` never lets time pass;
//! `wait` lets it pass until the batch is done. Invariants:
//!
//! 1. The drive begins a command only when the clock has got there: later submissions can still be chosen before it.
//! 2. A request changes or reads the contents at the instant it completes, and carries that instant's epoch.
//! 3. No lock is held while time passes.

use std::collections::{BTreeMap, VecDeque};

use moafs_runtime::leaf::Mutex;
use moafs_runtime::{Rt, Time, sleep_until};

use super::flash::FlashCounters;
use super::hdd::Background;
use super::queue::{DriveQueue, Finished};
use super::service::{Command, Service, Totals, Verb};
use super::spec::{DriveSpec, SpecError};
use crate::epoch::Flusher;
use crate::{Disk, DiskError, Done, Epoch, Limits, MemDisk, Op, Request, SECTOR, Tag, Ticket};

/// Memory pieces in one request: the scatter list length of hosts of the time.
const SEGMENTS_MAX: usize = 256;

/// The part of the contents that a modelled disk keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contents {
    /// The contents of all sectors.
    All,
    /// The contents of all sectors but those of file data and paged-out memory (requests of a kind that
    /// [`is_contents`](crate::Kind::is_contents)), which read as zeros: for experiments with more data than memory.
    Metadata,
}

/// One command that the drive served.
#[derive(Debug, Clone, Copy)]
pub struct Served {
    /// The time it was given to the drive.
    pub arrived: Time,
    /// The command, as given to the drive.
    pub command: Command,
    /// Owner and reason of the request; `None` for flushes.
    pub tag: Option<Tag>,
    /// The time it took, by component.
    pub service: Service,
}

/// A modelled drive with contents.
pub struct ModelDisk {
    rt: Rt,
    limits: Limits,
    contents: Contents,
    store: MemDisk,
    flusher: Flusher,
    state: Mutex<State>,
}

struct State {
    drive: DriveQueue<Job>,
    /// Commands at the drive's mechanism, chips or bus, with their results already computed. Keyed by end time and
    /// order of beginning.
    serving: BTreeMap<(Time, u64), Finished<Job>>,
    /// Number of commands begun.
    begun: u64,
    /// The latest end time of the commands begun.
    busy_until: Time,
    batches: BTreeMap<u64, Batch>,
    batch_next: u64,
    totals: Totals,
    log: VecDeque<Served>,
    /// The largest number of listed commands; 0 while listing is off.
    log_max: usize,
}

/// The request that a command belongs to.
struct Job {
    batch: u64,
    /// Index in the batch.
    index: usize,
    /// `None` for a flush.
    request: Option<Request>,
}

/// The requests of one `submit`.
struct Batch {
    done: Vec<Option<Done>>,
    open: usize,
}

impl ModelDisk {
    /// Makes a drive as specified that holds `store`, from its first sector on; the disk is as large as the store. It
    /// uses the clock of `rt` and waits in it.
    ///
    /// # Errors
    /// If the store is larger than the drive, or the specification is not sound.
    pub fn new(rt: Rt, spec: &DriveSpec, store: MemDisk, contents: Contents) -> Result<ModelDisk, SpecError> {
        let sectors = store.limits().sectors;
        if sectors > spec.sectors() {
            let problem = format!("the contents have {sectors} sectors");
            return Err(SpecError::Value { parameter: "sectors".into(), value: spec.sectors().to_string(), problem });
        }
        let limits = Limits {
            sectors,
            io_align: SECTOR,
            transfer_bytes_max: spec.transfer_sectors_max() as usize * SECTOR,
            segments_max: SEGMENTS_MAX,
            volatile_cache: spec.has_volatile_cache(),
            fua: true,
            discard: spec.has_trim(),
            read_only: false,
        };
        let state = State {
            drive: DriveQueue::new(spec)?,
            serving: BTreeMap::new(),
            begun: 0,
            busy_until: Time(0),
            batches: BTreeMap::new(),
            batch_next: 0,
            totals: Totals::default(),
            log: VecDeque::new(),
            log_max: 0,
        };
        let flusher = Flusher::new(rt.clone());
        Ok(ModelDisk { rt, limits, contents, store, flusher, state: Mutex::new(state) })
    }

    /// Returns an independent copy of the current contents: everything that has completed, whether or not the drive has
    /// destaged it. Other experiments can start from it; [`MemDisk::write_to`] saves it.
    pub fn snapshot(&self) -> MemDisk {
        self.settle(&mut self.state.lock());
        self.store.snapshot()
    }

    /// Returns sums over all commands that have completed by now.
    pub fn totals(&self) -> Totals {
        let mut state = self.state.lock();
        self.settle(&mut state);
        state.totals
    }

    /// Returns the drive's background work, as computed up to its last command.
    pub fn background(&self) -> Background {
        self.state.lock().drive.drive().background()
    }

    /// Returns the flash operations of the commands begun by now; `None` for a hard disk.
    pub fn flash(&self) -> Option<FlashCounters> {
        let mut state = self.state.lock();
        self.settle(&mut state);
        state.drive.drive().flash()
    }

    /// Returns true if the drive has a command now.
    pub fn busy(&self) -> bool {
        let mut state = self.state.lock();
        self.settle(&mut state);
        !state.serving.is_empty()
    }

    /// Starts listing commands as they complete; when there are more than `served_max`, the oldest are dropped.
    pub fn record(&self, served_max: usize) {
        self.state.lock().log_max = served_max;
    }

    /// Removes and returns the commands listed so far, oldest first; listing continues.
    pub fn take(&self) -> Vec<Served> {
        let mut state = self.state.lock();
        self.settle(&mut state);
        std::mem::take(&mut state.log).into()
    }

    /// Brings the drive up to the present.
    fn settle(&self, state: &mut State) {
        let now = self.rt.now();
        while let Some(at) = state.next_event().filter(|at| *at <= now) {
            match state.serving.first_entry().filter(|first| first.key().0 == at) {
                Some(first) => {
                    let served = first.remove();
                    self.complete(state, served);
                }
                None => state.begin(),
            }
        }
    }

    fn complete(&self, state: &mut State, served: Finished<Job>) {
        let Finished { id: Job { batch, index, request }, arrived, command, service } = served;
        let tag = request.as_ref().map(|request| request.tag);
        state.totals.add(&command, arrived, &service);
        state.list(Served { arrived, command, tag, service });
        let result = match request {
            Some(request) => self.apply(request),
            None => Ok(Vec::new()),
        };
        state.finish(batch, index, Done { result, epoch: self.epoch() });
    }

    fn apply(&self, request: Request) -> Result<Vec<crate::Buf>, DiskError> {
        let is_left_out = self.contents == Contents::Metadata && request.tag.kind.is_contents();
        if is_left_out && request.is_write() {
            self.store.clear(request.at, request.bytes() / SECTOR as u64);
            return Ok(Vec::new());
        }
        self.store.execute(request)
    }

    fn flush_drive(&self) -> Result<(), DiskError> {
        if self.limits.volatile_cache {
            let mut state = self.state.lock();
            let batch = state.begin_batch(1);
            let job = Job { batch: batch.0, index: 0, request: None };
            state.drive.push(job, self.rt.now(), Command::flush());
            self.settle(&mut state);
            drop(state);
            self.wait(batch);
        }
        Ok(())
    }
}

impl State {
    /// Returns the time at which the next command ends or begins.
    fn next_event(&self) -> Option<Time> {
        let ends = self.serving.first_key_value().map(|((ends, _), _)| *ends);
        ends.into_iter().chain(self.drive.begins_at()).min()
    }

    /// Begins the drive's next command.
    fn begin(&mut self) {
        let Some(served) = self.drive.serve() else { return };
        let service = &served.service;
        self.totals.idle_ns += service.started.0.saturating_sub(self.busy_until.0);
        self.busy_until = self.busy_until.max(service.finished);
        self.serving.insert((service.finished, self.begun), served);
        self.begun += 1;
    }

    fn begin_batch(&mut self, requests: usize) -> Ticket {
        let number = self.batch_next;
        self.batch_next += 1;
        let done = (0..requests).map(|_| None).collect();
        self.batches.insert(number, Batch { done, open: requests });
        Ticket(number)
    }

    fn finish(&mut self, batch: u64, index: usize, done: Done) {
        let batch = self.batches.get_mut(&batch).expect("a batch stays until all of it is done");
        batch.done[index] = Some(done);
        batch.open -= 1;
    }

    fn list(&mut self, served: Served) {
        if self.log_max == 0 {
            return;
        }
        while self.log.len() >= self.log_max {
            self.log.pop_front();
        }
        self.log.push_back(served);
    }
}

/// Returns the drive's command for a request; `None` for a discard on a drive without trim.
fn command_of(request: &Request, limits: &Limits) -> Option<Command> {
    let verb = match &request.op {
        Op::Read { .. } => Verb::Read,
        Op::Write { fua: true, .. } => Verb::WriteFua,
        Op::Write { .. } | Op::WriteZeroes { .. } => Verb::Write,
        Op::Discard { .. } if limits.discard => Verb::Discard,
        Op::Discard { .. } => return None,
    };
    Some(Command { verb, at: request.at, sectors: request.bytes() / SECTOR as u64 })
}

impl Disk for ModelDisk {
    fn limits(&self) -> &Limits {
        &self.limits
    }

    fn submit(&self, batch: Vec<Request>) -> Ticket {
        let now = self.rt.now();
        let mut state = self.state.lock();
        self.settle(&mut state);
        let ticket = state.begin_batch(batch.len());
        for (index, request) in batch.into_iter().enumerate() {
            let refused = self.limits.check(&request).err();
            match command_of(&request, &self.limits).filter(|_| refused.is_none()) {
                Some(command) => {
                    let job = Job { batch: ticket.0, index, request: Some(request) };
                    state.drive.push(job, now, command);
                }
                None => {
                    let result = refused.map_or(Ok(Vec::new()), Err);
                    state.finish(ticket.0, index, Done { result, epoch: self.epoch() });
                }
            }
        }
        self.settle(&mut state);
        ticket
    }

    /// # Panics
    /// If the ticket is another disk's, or was redeemed before.
    fn wait(&self, ticket: Ticket) -> Vec<Done> {
        loop {
            let mut state = self.state.lock();
            self.settle(&mut state);
            let batch = state.batches.get(&ticket.0);
            let batch = batch.unwrap_or_else(|| panic!("{ticket:?} is not of this disk, or was redeemed before"));
            if batch.open == 0 {
                let batch = state.batches.remove(&ticket.0).expect("found just now");
                return batch.done.into_iter().flatten().collect();
            }
            let until = state.next_event().expect("an open batch has a command at the drive");
            drop(state);
            sleep_until(&*self.rt, until);
        }
    }

    fn make_durable(&self, upto: Epoch) -> Result<(), DiskError> {
        // Requests that have completed by now must carry the epoch that this flush ends, not the
        // next.
        self.settle(&mut self.state.lock());
        self.flusher.make_durable(upto, || self.flush_drive())
    }

    fn epoch(&self) -> Epoch {
        self.flusher.epochs().current()
    }

    fn durable(&self) -> Option<Epoch> {
        self.flusher.epochs().durable()
    }
}

impl std::fmt::Debug for ModelDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ModelDisk").field("limits", &self.limits).field("contents", &self.contents).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use moafs_runtime::{Runtime, Virtual};

    use super::super::drive::Drive;
    use super::*;
    use crate::{Buf, Cause, DiskExt, Elevator, Kind, Lba, QueueOptions, SharedDisk};

    const DATA: Tag = Tag::new(Kind::Data, 7, Cause::Demand);
    const MAP: Tag = Tag::new(Kind::Map, 7, Cause::Demand);

    fn model(rt: &Arc<Virtual>, name: &str, cache: &str, contents: Contents) -> ModelDisk {
        let mut spec = DriveSpec::preset(name).unwrap();
        spec.set("cache", cache).unwrap();
        let store = MemDisk::new(spec.sectors());
        ModelDisk::new(rt.rt(), &spec, store, contents).unwrap()
    }

    fn model_as_is(rt: &Arc<Virtual>, name: &str) -> ModelDisk {
        let spec = DriveSpec::preset(name).unwrap();
        ModelDisk::new(rt.rt(), &spec, MemDisk::new(spec.sectors()), Contents::All).unwrap()
    }

    fn page(byte: u8) -> crate::Page {
        Buf::copy_of(&[byte; 4096]).freeze()
    }

    fn read_request(at: u64) -> Request {
        Request { op: Op::Read { into: vec![Buf::scratch(4096)] }, at: Lba(at), tag: DATA }
    }

    #[test]
    fn waiting_takes_the_time_of_the_model_and_submitting_none() {
        let rt = Virtual::new(None);
        rt.run(|| {
            let disk = model(&rt, "mpg3307at", "off", Contents::All);
            let ticket = disk.submit(vec![read_request(100_000), read_request(40_000_000)]);
            assert_eq!(rt.now(), Time(0));
            assert!(disk.busy());
            disk.wait(ticket);
            let mut bare = DriveSpec::preset("mpg3307at").unwrap();
            bare.set("cache", "off").unwrap();
            let mut drive = Drive::new(&bare).unwrap();
            drive.execute(Time(0), Command::read(100_000, 8));
            assert_eq!(rt.now(), drive.execute(Time(0), Command::read(40_000_000, 8)).finished);
            assert!(!disk.busy());
            let totals = disk.totals();
            assert_eq!((totals.requests, totals.seeks, totals.idle_ns), (2, 2, 0));
            assert_eq!(totals.service_ns, rt.now().0);
        });
    }

    #[test]
    fn a_device_is_busy_while_its_caller_computes() {
        let rt = Virtual::new(None);
        rt.run(|| {
            let disk = model(&rt, "st3160812as", "off", Contents::All);
            let ticket = disk.submit(vec![read_request(1000), read_request(2000)]);
            rt.compute(1_000_000_000);
            disk.wait(ticket);
            assert_eq!(rt.now(), Time(1_000_000_000));
        });
    }

    #[test]
    fn contents_come_back_and_data_can_be_left_out() {
        let rt = Virtual::new(None);
        rt.run(|| {
            for (contents, kept) in [(Contents::All, 1), (Contents::Metadata, 0)] {
                let disk = model(&rt, "mpg3307at", "on", contents);
                disk.write(Lba(64), page(9), MAP).unwrap();
                disk.write(Lba(64), page(1), DATA).unwrap();
                disk.write(Lba(128), page(2), MAP).unwrap();
                assert_eq!(disk.read(Lba(64), 4096, DATA).unwrap()[0], kept);
                assert_eq!(disk.read(Lba(128), 4096, MAP).unwrap()[4095], 2);
                assert_eq!(disk.snapshot().read(Lba(128), 512, MAP).unwrap()[0], 2);
            }
        });
    }

    #[test]
    fn what_is_merged_with_file_data_is_not_left_out_with_them() {
        let rt = Virtual::new(None);
        rt.run(|| {
            let disk = Arc::new(model(&rt, "mpg3307at", "off", Contents::Metadata));
            let elevator = Elevator::new(Arc::clone(&disk) as SharedDisk, rt.rt(), QueueOptions::one_command());
            let write = |at, tag| Request { op: Op::Write { data: vec![page(7)], fua: false }, at: Lba(at), tag };
            let done = elevator.run(vec![write(64, DATA), write(72, MAP), write(80, DATA)]);
            assert!(done.iter().all(|done| done.result.is_ok()));
            assert_eq!(disk.totals().requests, 1);
            assert_eq!(elevator.read(Lba(72), 4096, MAP).unwrap()[0], 7);
        });
    }

    #[test]
    fn a_flush_waits_for_the_media_and_makes_durable() {
        let rt = Virtual::new(None);
        rt.run(|| {
            let disk = model(&rt, "st3160812as", "on", Contents::All);
            let epoch = disk.write(Lba(200_000_000), page(1), MAP).unwrap();
            let accepted = rt.now();
            assert!(accepted < Time(400_000), "{accepted:?}");
            disk.make_durable(epoch).unwrap();
            assert!(rt.now() > Time(accepted.0 + 5_000_000));
            assert!(disk.durable() >= Some(epoch));
            assert_eq!(disk.totals().flushes, 1);
            disk.make_durable(epoch).unwrap();
            assert_eq!(disk.totals().flushes, 1);
        });
    }

    #[test]
    fn without_a_write_cache_a_flush_costs_nothing() {
        let rt = Virtual::new(None);
        rt.run(|| {
            let disk = model(&rt, "st3160812as", "off", Contents::All);
            assert!(!disk.limits().volatile_cache);
            let epoch = disk.write(Lba(0), page(1), MAP).unwrap();
            let written = rt.now();
            disk.make_durable(epoch).unwrap();
            assert_eq!((rt.now(), disk.totals().flushes), (written, 0));
        });
    }

    #[test]
    fn what_completed_before_a_flush_is_covered_by_it() {
        let rt = Virtual::new(None);
        rt.run(|| {
            let disk = model(&rt, "st3160812as", "on", Contents::All);
            let op = Op::Write { data: vec![page(1)], fua: false };
            let ticket = disk.submit(vec![Request { op, at: Lba(0), tag: MAP }]);
            rt.compute(1_000_000_000);
            disk.flush().unwrap();
            // The write was not waited for, but it had completed.
            assert!(disk.durable() >= Some(disk.wait(ticket)[0].epoch));
        });
    }

    #[test]
    fn requests_that_cannot_be_fail_alone() {
        let rt = Virtual::new(None);
        rt.run(|| {
            let disk = model(&rt, "c9m", "off", Contents::All);
            let beyond = read_request(17_930_568);
            let discard = Request { op: Op::Discard { sectors: 8 }, at: Lba(0), tag: DATA };
            let done = disk.run(vec![beyond, read_request(0), discard]);
            assert!(matches!(done[0].result, Err(DiskError::BeyondEnd { .. })));
            assert!(done[1].result.is_ok() && done[2].result.is_ok());
        });
        let spec = DriveSpec::preset("c9m").unwrap();
        assert!(ModelDisk::new(rt.rt(), &spec, MemDisk::new(1 << 30), Contents::All).is_err());
    }

    /// Submits one request per task, all at the same time; returns the addresses in the order in which the drive served
    /// them.
    fn served(options: QueueOptions, seed: Option<u64>) -> Vec<u64> {
        let rt = Virtual::new(seed);
        let disk = Arc::new(model(&rt, "mpg3307at", "off", Contents::All));
        disk.record(100);
        let elevator = Arc::new(Elevator::new(Arc::clone(&disk) as SharedDisk, rt.rt(), options));
        rt.run(|| {
            for at in [5000_u64, 9000, 1000, 7000, 7008, 2000] {
                let elevator = Arc::clone(&elevator);
                let task = move || drop(elevator.read(Lba(at), 4096, DATA).unwrap());
                rt.spawn("reader", Box::new(task));
            }
        });
        disk.take().iter().map(|served| served.command.at.0).collect()
    }

    #[test]
    fn the_elevator_with_one_command_out_is_disksort() {
        let merging = QueueOptions::one_command();
        assert_eq!(served(merging.clone(), None), [5000, 7000, 9000, 1000, 2000]);
        let plain = QueueOptions { merge: false, ..merging };
        assert_eq!(served(plain.clone(), None), [5000, 7000, 7008, 9000, 1000, 2000]);
        // The task that comes first is served first; the rest is sorted from there.
        for seed in 0..10 {
            let order = served(plain.clone(), Some(seed));
            let turn = order.windows(2).position(|pair| pair[0] > pair[1]).map_or(order.len(), |at| at + 1);
            assert!(order[..turn].is_sorted() && order[turn..].is_sorted(), "{order:?}");
            assert!(order[turn..].iter().all(|at| *at < order[0]), "{order:?}");
        }
    }

    #[test]
    fn what_waits_behind_an_awaited_request_is_served_while_its_owner_computes() {
        let rt = Virtual::new(None);
        let disk = Arc::new(model(&rt, "mpg3307at", "off", Contents::All));
        let elevator = Elevator::new(Arc::clone(&disk) as SharedDisk, rt.rt(), QueueOptions::one_command());
        rt.run(|| {
            let demand = elevator.submit(vec![read_request(40_000_000)]);
            let ahead = elevator.submit(vec![read_request(50_000_000)]);
            elevator.wait(demand);
            rt.compute(1_000_000_000);
            let computed = rt.now();
            elevator.wait(ahead);
            assert_eq!(rt.now(), computed);
        });
    }

    #[test]
    fn discards_reach_a_drive_that_has_trim() {
        let rt = Virtual::new(None);
        rt.run(|| {
            let disk = model_as_is(&rt, "sd16-slow");
            assert!(disk.limits().discard && !disk.limits().volatile_cache);
            disk.write(Lba(0), page(1), MAP).unwrap();
            let discard = Request { op: Op::Discard { sectors: 64 }, at: Lba(0), tag: DATA };
            assert!(disk.run(vec![discard]).remove(0).result.is_ok());
            assert_eq!(disk.flash().map(|flash| (flash.host_bytes, flash.trimmed_pages)), Some((4096, 2)));
            assert_eq!(disk.totals().discards, 1);
            assert_eq!(disk.read(Lba(0), 512, MAP).unwrap()[0], 0);
        });
    }

    #[test]
    fn commands_side_by_side_complete_when_each_is_done() {
        let rt = Virtual::new(None);
        rt.run(|| {
            let mut spec = DriveSpec::preset("samsung-slc-64").unwrap();
            spec.set("ncq_depth", "32").unwrap();
            spec.set("cache", "off").unwrap();
            let disk = ModelDisk::new(rt.rt(), &spec, MemDisk::new(1 << 20), Contents::All).unwrap();
            // The write begins first and takes longer than both reads, which are on other dies.
            let write = Request { op: Op::Write { data: vec![page(1)], fua: false }, at: Lba(0), tag: DATA };
            let write = disk.submit(vec![write]);
            let reads = disk.submit(vec![read_request(8), read_request(16)]);
            disk.wait(reads);
            assert_eq!(rt.now(), Time(3 * 50_000 + 25_000 + 102_400));
            assert!(disk.busy());
            disk.wait(write);
            assert_eq!(rt.now(), Time(50_000 + 302_400));
            let totals = disk.totals();
            assert!(!disk.busy() && totals.idle_ns == 0 && totals.service_ns > rt.now().0);
        });
    }

    #[test]
    fn the_record_is_bounded() {
        let rt = Virtual::new(None);
        rt.run(|| {
            let disk = model(&rt, "c9m", "off", Contents::All);
            disk.record(2);
            for at in [0, 8, 16] {
                disk.read(Lba(at), 4096, DATA).unwrap();
            }
            let served = disk.take();
            assert_eq!(served.iter().map(|s| s.command.at.0).collect::<Vec<_>>(), [8, 16]);
            assert_eq!(served[0].tag, Some(DATA));
            assert!(disk.take().is_empty());
        });
    }
}
