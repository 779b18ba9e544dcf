//! Every state that a power cut could leave on a disk.
//!
//! The recorder notes, in one log, when each write was submitted and completed, when each flush
//! was issued and completed, and marks of the test ("this fsync has returned"). A cut lies between
//! two entries. The device then holds:
//!
//! 1. Writes that completed before a flush was issued that completed before the cut: all there.
//!    The same for writes with force unit access that completed before the cut.
//! 2. Other writes submitted before the cut: any of them, each torn at sectors in any way. A later
//!    write to the same sector hides an earlier one.
//! 3. Nothing submitted after the cut.
//!
//! A write counts as completed when its caller has waited for it: no caller can rely on it
//! earlier. Failed writes, and all writes that only a failed flush covers, stay uncertain for good.
//! Overlapping writes in flight break the contract of [`Disk`] and panic here.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use moafs_runtime::Rt;
use moafs_runtime::leaf::Mutex;
use rand::{Rng, RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;

use crate::epoch::Flusher;
use crate::{Disk, DiskError, Done, Epoch, Limits, MemDisk, Op, Page, Request, SECTOR, SharedDisk, Tag, Ticket};

/// Writes between two kept images: bounds the work of making one state; each image costs one
/// pointer per chunk.
const WRITES_PER_BASE: usize = 64;

/// The choice of uncertain writes that a state holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Every uncertain write: the power failed just after the cache was written.
    All,
    /// No uncertain write: the whole cache was lost.
    None,
    /// Some of them, each whole.
    Subset,
    /// Some of them whole, some torn at sectors.
    Torn,
}

/// A disk that records its history.
pub struct CrashRecorder {
    inner: SharedDisk,
    flusher: Flusher,
    state: Mutex<State>,
}

struct State {
    /// Entries of the log so far; a cut is a number up to this.
    entries: usize,
    /// All writes, in the order of submission.
    writes: Vec<Write>,
    /// Numbers of writes that have completed and are not yet flushed, with the epochs they
    /// completed in.
    unflushed: Vec<(usize, Epoch)>,
    marks: Vec<(usize, u64)>,
    batches: BTreeMap<u64, Batch>,
    batch_next: u64,
    /// Sectors of writes in flight: start to (end, number of the write).
    in_flight: BTreeMap<u64, (u64, usize)>,
    /// Images that hold the first n writes, for n in steps of [`WRITES_PER_BASE`].
    bases: Vec<MemDisk>,
}

struct Write {
    /// The index of the log entry of its submission.
    submitted: usize,
    /// The first cut from which on the write is durable for certain; `usize::MAX` if it is not.
    durable_from: usize,
    at: u64,
    sectors: u64,
    content: Content,
    fua: bool,
    tag: Tag,
}

#[derive(Clone)]
enum Content {
    Pages(Vec<Page>),
    Zeroes,
}

struct Batch {
    below: Ticket,
    /// For each request the number of its write; `None` for reads and refused requests.
    writes: Vec<Option<usize>>,
}

impl CrashRecorder {
    /// Makes a recorder over `inner`, whose current contents are `base`.
    pub fn new(inner: SharedDisk, base: MemDisk, rt: Rt) -> CrashRecorder {
        let state = State {
            entries: 0,
            writes: Vec::new(),
            unflushed: Vec::new(),
            marks: Vec::new(),
            batches: BTreeMap::new(),
            batch_next: 0,
            in_flight: BTreeMap::new(),
            bases: vec![base],
        };
        CrashRecorder { inner, flusher: Flusher::new(rt), state: Mutex::new(state) }
    }

    /// Makes a recorder over a memory disk, from its current contents on.
    pub fn over(disk: Arc<MemDisk>, rt: Rt) -> CrashRecorder {
        let base = disk.snapshot();
        CrashRecorder::new(disk, base, rt)
    }

    /// Adds a mark to the log, such as the return of an fsync.
    pub fn mark(&self, label: u64) {
        let mut state = self.state.lock();
        let position = state.entry();
        state.marks.push((position, label));
    }

    /// Returns the number of cuts so far: cuts are `0..cut_points()`.
    pub fn cut_points(&self) -> usize {
        self.state.lock().entries + 1
    }

    /// Returns the labels of the marks that lie before a cut, oldest first.
    pub fn marks_before(&self, cut: usize) -> Vec<u64> {
        let state = self.state.lock();
        state.marks.iter().take_while(|(position, _)| *position < cut).map(|(_, label)| *label).collect()
    }

    /// Returns the number of writes that are uncertain at a cut.
    pub fn uncertain(&self, cut: usize) -> usize {
        self.state.lock().uncertain(cut).count()
    }

    /// Returns a disk as a power cut could leave it. The same arguments give the same bytes.
    pub fn state(&self, cut: usize, seed: u64, mode: Mode) -> MemDisk {
        let mut rng = Pcg64Mcg::seed_from_u64(seed ^ (cut as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        // One chance for the whole state: nearly all, nearly none and half of the writes all occur.
        let chance = [0.1, 0.5, 0.9][rng.random_range(0..3)];
        let mut fate = Fate::Whole(true);
        let mut current = usize::MAX;
        self.state_with(cut, |write, _sector| {
            if write != current {
                current = write;
                fate = Fate::draw(mode, chance, &mut rng);
            }
            fate.keeps(&mut rng)
        })
    }

    /// Returns a disk as a power cut could leave it: `keeps(write, sector)` decides whether sector
    /// number `sector` of the `write`-th uncertain write (both from 0) has reached the medium. It
    /// is called in ascending order.
    pub fn state_with(&self, cut: usize, mut keeps: impl FnMut(usize, u64) -> bool) -> MemDisk {
        let mut state = self.state.lock();
        let certain = state.certain_prefix(cut);
        let disk = state.base(certain);
        let mut uncertain = 0;
        for write in state.writes[certain..].iter().take_while(|w| w.submitted < cut) {
            if write.durable_from <= cut {
                write.apply(&disk, 0..write.sectors);
                continue;
            }
            for run in runs(write.sectors, |sector| keeps(uncertain, sector)) {
                write.apply(&disk, run);
            }
            uncertain += 1;
        }
        disk
    }
}

/// The fate of one uncertain write at a cut.
#[derive(Clone, Copy)]
enum Fate {
    Whole(bool),
    /// Each sector is kept or lost independently.
    Torn,
}

impl Fate {
    fn draw(mode: Mode, chance: f64, rng: &mut impl Rng) -> Fate {
        match mode {
            Mode::All => Fate::Whole(true),
            Mode::None => Fate::Whole(false),
            Mode::Torn if rng.random_bool(0.5) => Fate::Torn,
            Mode::Subset | Mode::Torn => Fate::Whole(rng.random_bool(chance)),
        }
    }

    fn keeps(self, rng: &mut impl Rng) -> bool {
        match self {
            Fate::Whole(kept) => kept,
            Fate::Torn => rng.random_bool(0.5),
        }
    }
}

/// Returns the runs of sectors that are kept.
fn runs(sectors: u64, mut keeps: impl FnMut(u64) -> bool) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    for sector in (0..sectors).filter(|&sector| keeps(sector)) {
        match runs.last_mut() {
            Some(last) if last.end == sector => last.end += 1,
            _ => runs.push(sector..sector + 1),
        }
    }
    runs
}

impl Write {
    /// Applies some of the write's sectors to a disk.
    fn apply(&self, disk: &MemDisk, sectors: Range<u64>) {
        let start = self.at * SECTOR as u64;
        let bytes = (sectors.start * SECTOR as u64)..(sectors.end * SECTOR as u64);
        let Content::Pages(pages) = &self.content else {
            disk.clear(crate::Lba(self.at + sectors.start), sectors.end - sectors.start);
            return;
        };
        let mut page_start = 0;
        for page in pages {
            let page_end = page_start + page.len() as u64;
            let (from, to) = (bytes.start.max(page_start), bytes.end.min(page_end));
            if from < to {
                let piece = &page[(from - page_start) as usize..(to - page_start) as usize];
                disk.poke(start + from, piece);
            }
            page_start = page_end;
        }
    }
}

impl State {
    /// Adds an entry to the log and returns its position.
    fn entry(&mut self) -> usize {
        self.entries += 1;
        self.entries - 1
    }

    fn submit(&mut self, request: &Request) -> usize {
        let content = match &request.op {
            Op::Write { data, .. } => Content::Pages(data.clone()),
            _ => Content::Zeroes,
        };
        let number = self.writes.len();
        let write = Write {
            submitted: self.entry(),
            durable_from: usize::MAX,
            at: request.at.0,
            sectors: request.bytes() / SECTOR as u64,
            content,
            fua: matches!(request.op, Op::Write { fua: true, .. }),
            tag: request.tag,
        };
        self.assert_alone(&write);
        if write.sectors != 0 {
            self.in_flight.insert(write.at, (write.at + write.sectors, number));
        }
        self.writes.push(write);
        number
    }

    fn assert_alone(&self, write: &Write) {
        let end = write.at + write.sectors;
        let Some((start, &(other_end, other))) = self.in_flight.range(..end).next_back() else { return };
        assert!(
            other_end <= write.at,
            "overlapping writes in flight: sectors {}..{end} ({:?}) and {start}..{other_end} ({:?})",
            write.at,
            write.tag,
            self.writes[other].tag,
        );
    }

    fn complete(&mut self, number: usize, epoch: Epoch, succeeded: bool) {
        let position = self.entry();
        let write = &mut self.writes[number];
        if write.sectors != 0 {
            self.in_flight.remove(&write.at);
        }
        if !succeeded {
            return;
        }
        if write.fua {
            write.durable_from = position + 1;
        } else {
            self.unflushed.push((number, epoch));
        }
    }

    /// Removes and returns the writes covered by a flush that has made `current` the current epoch.
    fn take_covered(&mut self, current: Epoch) -> Vec<(usize, Epoch)> {
        let (covered, later) = self.unflushed.drain(..).partition(|&(_, epoch)| epoch < current);
        self.unflushed = later;
        covered
    }

    fn uncertain(&self, cut: usize) -> impl Iterator<Item = &Write> {
        self.writes.iter().take_while(move |w| w.submitted < cut).filter(move |w| w.durable_from > cut)
    }

    /// Returns how many writes, from the first on without a gap, are certain at a cut.
    fn certain_prefix(&self, cut: usize) -> usize {
        let certain = |w: &&Write| w.submitted < cut && w.durable_from <= cut;
        self.writes.iter().take_while(certain).count()
    }

    /// Returns an image that holds exactly the first `writes` writes.
    fn base(&mut self, writes: usize) -> MemDisk {
        while self.bases.len() * WRITES_PER_BASE <= writes {
            let next = self.bases.len() * WRITES_PER_BASE;
            let image = self.bases[self.bases.len() - 1].snapshot();
            self.writes[next - WRITES_PER_BASE..next].iter().for_each(|w| w.apply(&image, 0..w.sectors));
            self.bases.push(image);
        }
        let image = self.bases[writes / WRITES_PER_BASE].snapshot();
        let rest = writes / WRITES_PER_BASE * WRITES_PER_BASE..writes;
        self.writes[rest].iter().for_each(|w| w.apply(&image, 0..w.sectors));
        image
    }
}

impl Disk for CrashRecorder {
    fn limits(&self) -> &Limits {
        self.inner.limits()
    }

    fn submit(&self, batch: Vec<Request>) -> Ticket {
        let mut state = self.state.lock();
        let is_recorded = |r: &Request| r.is_write() && self.inner.limits().check(r).is_ok();
        let writes = batch.iter().map(|r| is_recorded(r).then(|| state.submit(r))).collect();
        drop(state);
        let below = self.inner.submit(batch);
        let mut state = self.state.lock();
        let number = state.batch_next;
        state.batch_next += 1;
        state.batches.insert(number, Batch { below, writes });
        Ticket(number)
    }

    /// # Panics
    /// If the ticket is another disk's, or was redeemed before.
    fn wait(&self, ticket: Ticket) -> Vec<Done> {
        let batch = self.state.lock().batches.remove(&ticket.0);
        let batch = batch.unwrap_or_else(|| panic!("{ticket:?} is not of this disk, or was redeemed before"));
        let mut done = self.inner.wait(batch.below);
        let mut state = self.state.lock();
        let epoch = self.epoch();
        for (done, write) in done.iter_mut().zip(batch.writes) {
            done.epoch = epoch;
            if let Some(number) = write {
                state.complete(number, epoch, done.result.is_ok());
            }
        }
        done
    }

    fn make_durable(&self, upto: Epoch) -> Result<(), DiskError> {
        self.flusher.make_durable(upto, || {
            let mut state = self.state.lock();
            state.entry();
            let covered = state.take_covered(self.epoch());
            drop(state);
            let result = self.inner.make_durable(self.inner.epoch());
            let mut state = self.state.lock();
            let position = state.entry();
            if result.is_ok() {
                covered.into_iter().for_each(|(number, _)| state.writes[number].durable_from = position + 1);
            }
            result
        })
    }

    fn epoch(&self) -> Epoch {
        self.flusher.epochs().current()
    }

    fn durable(&self) -> Option<Epoch> {
        self.flusher.epochs().durable()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use moafs_runtime::Live;

    use super::*;
    use crate::{Buf, DiskExt, Kind, Lba};

    const TAG: Tag = Tag::volume(Kind::Data);

    fn recorder() -> CrashRecorder {
        CrashRecorder::over(Arc::new(MemDisk::new(64)), Live::new())
    }

    fn write(disk: &CrashRecorder, at: u64, byte: u8, sectors: usize) {
        disk.write(Lba(at), Buf::copy_of(&vec![byte; sectors * SECTOR]).freeze(), TAG).unwrap();
    }

    /// Returns the first byte of each of the first sectors.
    fn firsts(disk: &MemDisk, sectors: usize) -> Vec<u8> {
        disk.to_bytes().chunks(SECTOR).take(sectors).map(|s| s[0]).collect()
    }

    fn last(disk: &CrashRecorder) -> usize {
        disk.cut_points() - 1
    }

    #[test]
    fn flushed_writes_are_in_every_state() {
        let disk = recorder();
        write(&disk, 0, 1, 1);
        disk.flush().unwrap();
        write(&disk, 1, 2, 1);
        let cut = last(&disk);
        assert_eq!(disk.uncertain(cut), 1);
        assert_eq!(firsts(&disk.state(cut, 0, Mode::None), 2), [1, 0]);
        assert_eq!(firsts(&disk.state(cut, 0, Mode::All), 2), [1, 2]);
    }

    #[test]
    fn a_write_is_uncertain_until_a_flush_issued_later_has_completed() {
        let disk = recorder();
        write(&disk, 0, 1, 1);
        disk.flush().unwrap();
        // Log: submitted, completed, flush issued, flush completed.
        assert_eq!(disk.cut_points(), 5);
        let certain: Vec<u8> = (0..5).map(|cut| firsts(&disk.state(cut, 0, Mode::None), 1)[0]).collect();
        assert_eq!(certain, [0, 0, 0, 0, 1]);
        let possible: Vec<u8> = (0..5).map(|cut| firsts(&disk.state(cut, 0, Mode::All), 1)[0]).collect();
        assert_eq!(possible, [0, 1, 1, 1, 1]);
    }

    #[test]
    fn a_flush_does_not_cover_what_was_not_waited_for() {
        let disk = recorder();
        let data = vec![Buf::copy_of(&[1; SECTOR]).freeze()];
        let ticket = disk.submit(vec![Request { op: Op::Write { data, fua: false }, at: Lba(0), tag: TAG }]);
        disk.flush().unwrap();
        let done = disk.wait(ticket).remove(0);
        assert!(disk.durable() < Some(done.epoch));
        assert_eq!(firsts(&disk.state(last(&disk), 0, Mode::None), 1), [0]);
        disk.make_durable(done.epoch).unwrap();
        assert_eq!(firsts(&disk.state(last(&disk), 0, Mode::None), 1), [1]);
    }

    #[test]
    fn forced_writes_are_certain_and_hide_older_ones() {
        let disk = recorder();
        write(&disk, 0, 1, 1);
        let data = vec![Buf::copy_of(&[2; SECTOR]).freeze()];
        disk.run(vec![Request { op: Op::Write { data, fua: true }, at: Lba(0), tag: TAG }]);
        for mode in [Mode::All, Mode::None, Mode::Subset, Mode::Torn] {
            assert_eq!(firsts(&disk.state(last(&disk), 3, mode), 1), [2]);
        }
    }

    #[test]
    fn sampling_reaches_every_subset_and_repeats() {
        let disk = recorder();
        (0..3).for_each(|i| write(&disk, i, 1, 1));
        let cut = last(&disk);
        let sample = |seed| firsts(&disk.state(cut, seed, Mode::Subset), 3);
        let seen: BTreeSet<_> = (0..200).map(sample).collect();
        assert_eq!(seen.len(), 8);
        assert_eq!(sample(7), sample(7));
        let torn: BTreeSet<_> = {
            let disk = recorder();
            write(&disk, 0, 1, 3);
            (0..200).map(|seed| firsts(&disk.state(last(&disk), seed, Mode::Torn), 3)).collect()
        };
        assert_eq!(torn.len(), 8);
    }

    #[test]
    fn zeroes_tear_like_writes() {
        let disk = recorder();
        write(&disk, 0, 1, 4);
        disk.flush().unwrap();
        let op = Op::WriteZeroes { sectors: 4 };
        disk.run(vec![Request { op, at: Lba(0), tag: TAG }]);
        let state = disk.state_with(last(&disk), |_, sector| sector % 2 == 0);
        assert_eq!(firsts(&state, 4), [0, 1, 0, 1]);
    }

    #[test]
    fn marks_tell_what_had_returned() {
        let disk = recorder();
        disk.mark(1);
        write(&disk, 0, 1, 1);
        disk.mark(2);
        assert_eq!(disk.marks_before(1), [1]);
        assert_eq!(disk.marks_before(last(&disk)), [1, 2]);
        assert!(disk.marks_before(0).is_empty());
    }

    #[test]
    #[should_panic(expected = "overlapping writes in flight")]
    fn overlapping_writes_in_flight_panic() {
        let disk = recorder();
        let write = |at| {
            let data = vec![Buf::zeroed(2 * SECTOR).freeze()];
            Request { op: Op::Write { data, fua: false }, at: Lba(at), tag: TAG }
        };
        disk.submit(vec![write(4), write(5)]);
    }

    #[test]
    fn long_histories_give_the_right_image_at_every_cut() {
        let disk = recorder();
        let mut images = vec![vec![0; 64]];
        let mut cuts = vec![0];
        for i in 0..300_u64 {
            write(&disk, i % 64, (i % 250) as u8 + 1, 1);
            disk.flush().unwrap();
            let mut image = images.last().unwrap().clone();
            image[i as usize % 64] = (i % 250) as u8 + 1;
            images.push(image);
            cuts.push(last(&disk));
        }
        for step in [299, 3, 64, 63, 128, 0, 300] {
            assert_eq!(firsts(&disk.state(cuts[step], 0, Mode::Subset), 64), images[step]);
        }
    }

    #[test]
    fn states_of_a_large_image_are_cheap() {
        let inner = Arc::new(MemDisk::new(1 << 17));
        inner.poke(0, &vec![1; 64 << 20]);
        let disk = CrashRecorder::over(inner, Live::new());
        (0..200).for_each(|i| write(&disk, i * 600, 2, 8));
        let start = std::time::Instant::now();
        for seed in 0..100 {
            disk.state(last(&disk), seed, Mode::Torn);
        }
        // Generous: shared machines are slow. Copying the image each time would take far longer.
        assert!(start.elapsed().as_millis() < 5_000);
    }
}
