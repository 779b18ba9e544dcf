use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use moafs_disk::{Buf, Disk, Done, MemDisk, Page, Request, SECTOR, SharedDisk, Ticket};
use moafs_runtime::{Rt, Virtual};
use moafs_vfs::swap_space::{Group, LastAccess, SwapSpace, Where};
use moafs_vfs::types::{BlockAddr, BlockRun};
use moafs_vfs::{Error, Result};
use parking_lot::Mutex;

use crate::map::SlotNo;
use crate::{Home, PAGE_BYTES, PageNo, Placement, Swap, SwapError, SwapOptions};

/// Blocks at the front of each group that are never free.
const FIXED: u32 = 3;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Use {
    Free,
    Fixed,
    File,
    Taken,
}

/// A volume that is a list of blocks.
pub(super) struct Room {
    groups: u32,
    group_blocks: u32,
    state: Mutex<Blocks>,
}

struct Blocks {
    uses: Vec<Use>,
    reserved: u64,
    pressed: VecDeque<Group>,
}

impl Blocks {
    fn count(&self, what: Use) -> u64 {
        self.uses.iter().filter(|one| **one == what).count() as u64
    }

    fn run_at(&self, start: usize, limit: usize) -> usize {
        self.uses[start..limit].iter().take_while(|one| **one == Use::Free).count()
    }

    fn take(&mut self, blocks: Range<usize>) -> Option<BlockRun> {
        let (start, len) = (BlockAddr(blocks.start as u64), blocks.len() as u32);
        self.uses[blocks].fill(Use::Taken);
        Some(BlockRun { start, len })
    }
}

impl Room {
    pub(super) fn new(groups: u32, group_blocks: u32) -> Arc<Room> {
        let fixed = |block: u32| if block % group_blocks < FIXED { Use::Fixed } else { Use::Free };
        let uses = (0..groups * group_blocks).map(fixed).collect();
        let state = Mutex::new(Blocks { uses, reserved: 0, pressed: VecDeque::new() });
        Arc::new(Room { groups, group_blocks, state })
    }

    fn range(&self, group: Group) -> Range<usize> {
        let start = (group.0 * self.group_blocks) as usize;
        start..start + self.group_blocks as usize
    }

    /// Returns a block of a group.
    pub(super) fn block(&self, group: u32, index: u32) -> BlockAddr {
        BlockAddr(u64::from(group * self.group_blocks + index))
    }

    /// Writes files of up to `count` blocks in a group, without blocks promised to other users. Returns how many blocks
    /// were taken.
    pub(super) fn write_files(&self, group: u32, count: u32) -> u32 {
        let range = self.range(Group(group));
        let mut state = self.state.lock();
        let unpromised = state.count(Use::Free) + state.count(Use::Taken) - state.reserved;
        let mut left = u64::from(count).min(unpromised);
        let wanted = left;
        for block in range.clone() {
            if left > 0 && state.uses[block] == Use::Free {
                state.uses[block] = Use::File;
                left -= 1;
            }
        }
        if left > 0 && state.uses[range].contains(&Use::Taken) {
            state.pressed.push_back(Group(group));
        }
        (wanted - left) as u32
    }

    /// Deletes the files of a group.
    pub(super) fn delete_files(&self, group: u32) {
        let range = self.range(Group(group));
        let mut state = self.state.lock();
        state.uses[range].iter_mut().filter(|one| **one == Use::File).for_each(|one| *one = Use::Free);
    }

    /// Writes a file to every other block: the free space left is in pieces of one block.
    pub(super) fn shred(&self) {
        let mut state = self.state.lock();
        state.uses.iter_mut().step_by(2).filter(|one| **one == Use::Free).for_each(|one| *one = Use::File);
    }

    pub(super) fn press(&self, group: u32) {
        self.state.lock().pressed.push_back(Group(group));
    }

    pub(super) fn taken(&self) -> u64 {
        self.state.lock().count(Use::Taken)
    }

    pub(super) fn taken_in(&self, group: u32) -> u64 {
        let range = self.range(Group(group));
        self.state.lock().uses[range].iter().filter(|one| **one == Use::Taken).count() as u64
    }

    pub(super) fn reserved(&self) -> u64 {
        self.state.lock().reserved
    }

    fn all_taken(&self, blocks: Range<u64>) -> bool {
        self.state.lock().uses[blocks.start as usize..blocks.end as usize].iter().all(|one| *one == Use::Taken)
    }
}

impl SwapSpace for Room {
    fn groups(&self) -> u32 {
        self.groups
    }

    fn group_of(&self, block: BlockAddr) -> Option<Group> {
        let group = u32::try_from(block.0 / u64::from(self.group_blocks)).ok()?;
        (group < self.groups).then_some(Group(group))
    }

    fn group_blocks(&self, _group: Group) -> u32 {
        self.group_blocks - FIXED
    }

    fn reserve(&self, blocks: u64) -> Result<()> {
        let mut state = self.state.lock();
        if state.count(Use::Free) + state.count(Use::Taken) < state.reserved + blocks {
            return Err(Error::Posix(28));
        }
        state.reserved += blocks;
        Ok(())
    }

    fn release(&self, blocks: u64) {
        let mut state = self.state.lock();
        state.reserved -= blocks;
        assert!(state.count(Use::Taken) <= state.reserved, "released before it was given back");
    }

    fn take(&self, at: Where, len: u32, granule: u32) -> Result<Option<BlockRun>> {
        let mut state = self.state.lock();
        let promised = (state.reserved - state.count(Use::Taken)) as usize;
        let (len, granule) = (len as usize, granule as usize);
        match at {
            Where::EndOf(group) => {
                let range = self.range(group);
                let fits = |start: &usize| promised >= len && state.run_at(*start, range.end) >= len;
                let start = (range.start..range.end.saturating_sub(len) + 1).rev().find(fits);
                Ok(start.and_then(|start| state.take(start..start + len)))
            }
            Where::From(from) => {
                let len = len.min(promised) / granule * granule;
                // A run lies within one group.
                let run = |start: usize| {
                    let end = (start / self.group_blocks as usize + 1) * self.group_blocks as usize;
                    state.run_at(start, end.min(start + len)) / granule * granule
                };
                let start = (from.0 as usize..state.uses.len()).find(|start| len > 0 && run(*start) > 0);
                let found = start.map(|start| start..start + run(start));
                Ok(found.and_then(|run| state.take(run)))
            }
        }
    }

    fn give(&self, run: BlockRun) {
        let mut state = self.state.lock();
        for block in run.start.0..run.end().0 {
            let one = &mut state.uses[block as usize];
            assert_eq!(*one, Use::Taken, "block {block} was not taken");
            *one = Use::Free;
        }
    }

    fn next_contended_group(&self) -> Option<Group> {
        self.state.lock().pressed.pop_front()
    }
}

/// A disk whose requests stay under way until they are waited for. It checks that no request touches sectors of another
/// one under way, and that swap stays in its blocks.
pub(super) struct Late {
    inner: MemDisk,
    rt: Rt,
    /// The volume on the disk, and sectors in a block.
    room: Option<(Arc<Room>, u64)>,
    flying: Mutex<Flying>,
}

#[derive(Default)]
struct Flying {
    next: u64,
    batches: BTreeMap<u64, Vec<Request>>,
    requests: u64,
}

fn sectors(request: &Request) -> Range<u64> {
    request.at.0..request.at.0 + request.bytes() / SECTOR as u64
}

impl Late {
    pub(super) fn new(sectors: u64, rt: Rt, room: Option<(Arc<Room>, u64)>) -> Late {
        Late { inner: MemDisk::new(sectors), rt, room, flying: Mutex::default() }
    }

    fn watch(&self, flying: &Flying, request: &Request) {
        let here = sectors(request);
        if let Some((room, block)) = &self.room {
            let blocks = here.start / block..here.end.div_ceil(*block);
            assert!(room.all_taken(blocks.clone()), "{} of blocks {blocks:?}, not all of them ours", request.op.name());
        }
        for other in flying.batches.values().flatten() {
            let there = sectors(other);
            let overlap = here.start < there.end && there.start < here.end;
            assert!(!overlap || !request.is_write() && !other.is_write(), "{request:?} beside {other:?}");
        }
    }
}

impl Disk for Late {
    moafs_disk::forward_to!(inner: limits, make_durable, epoch, durable);

    fn submit(&self, batch: Vec<Request>) -> Ticket {
        let mut flying = self.flying.lock();
        batch.iter().for_each(|request| self.watch(&flying, request));
        let number = flying.next;
        flying.next += 1;
        flying.requests += batch.len() as u64;
        flying.batches.insert(number, batch);
        Ticket(number)
    }

    fn wait(&self, ticket: Ticket) -> Vec<Done> {
        if self.rt.is_virtual() {
            self.rt.compute(1 + ticket.0 * 7919 % 5000);
        } else {
            std::thread::yield_now();
        }
        let mut flying = self.flying.lock();
        let batch = flying.batches.remove(&ticket.0).expect("a batch of this disk");
        self.inner.wait(self.inner.submit(batch))
    }
}

/// A volume with a swap on it.
pub(super) struct Bench {
    pub(super) room: Arc<Room>,
    pub(super) head: Arc<LastAccess>,
    pub(super) swap: Swap,
    disk: Option<Arc<Late>>,
    rt: Rt,
}

/// The parameters of a bench.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    pub(super) groups: u32,
    pub(super) group_blocks: u32,
    pub(super) block_bytes: u32,
    pub(super) pages: u32,
    pub(super) area_pages: u32,
    pub(super) partition: bool,
    pub(super) placement: Placement,
}

impl Default for Shape {
    fn default() -> Shape {
        Shape {
            groups: 8,
            group_blocks: 64,
            block_bytes: 4096,
            pages: 64,
            area_pages: 8,
            partition: false,
            placement: Placement::Areas,
        }
    }
}

impl Shape {
    pub(super) fn room(&self) -> Arc<Room> {
        Room::new(self.groups, self.group_blocks)
    }

    fn sectors(&self) -> u64 {
        u64::from(self.groups * self.group_blocks) * self.block_sectors()
    }

    fn block_sectors(&self) -> u64 {
        u64::from(self.block_bytes) / SECTOR as u64
    }

    fn options(&self) -> SwapOptions {
        let area_bytes = u64::from(self.area_pages) * PAGE_BYTES as u64;
        SwapOptions { placement: self.placement, area_bytes, neighbours: 7 }
    }

    pub(super) fn home(&self, room: &Arc<Room>, disk: SharedDisk) -> Home {
        Home { disk, block_bytes: self.block_bytes, room: room.clone(), head: Arc::default() }
    }

    pub(super) fn bench(&self) -> Bench {
        self.bench_in(Virtual::new(None).rt())
    }

    pub(super) fn bench_in(&self, rt: Rt) -> Bench {
        let room = self.room();
        let disk = Arc::new(Late::new(self.sectors(), rt.clone(), Some((room.clone(), self.block_sectors()))));
        let partition = Late::new(u64::from(self.pages) * 8, rt.clone(), None);
        let home = self.home(&room, disk.clone());
        let swap = self.open(home.clone(), self.partition.then(|| Arc::new(partition) as SharedDisk), rt.clone());
        Bench { room, head: home.head, swap: swap.expect("there is room"), disk: Some(disk), rt }
    }

    /// Makes a bench over disks that `wrap` makes of memory disks.
    pub(super) fn bench_over(&self, wrap: impl Fn(SharedDisk) -> SharedDisk) -> Bench {
        let room = self.room();
        let home = self.home(&room, wrap(Arc::new(MemDisk::new(self.sectors()))));
        let partition = self.partition.then(|| wrap(Arc::new(MemDisk::new(u64::from(self.pages) * 8))));
        let rt = Virtual::new(None).rt();
        let swap = self.open(home.clone(), partition, rt.clone()).expect("there is room");
        Bench { room, head: home.head, swap, disk: None, rt }
    }

    pub(super) fn open(
        &self,
        home: Home,
        partition: Option<SharedDisk>,
        rt: Rt,
    ) -> std::result::Result<Swap, SwapError> {
        Swap::open(Some(home), partition, self.pages, rt, self.options())
    }
}

impl Bench {
    /// Accesses a file block in a group.
    pub(super) fn access(&self, group: u32, index: u32) {
        self.head.note(BlockAddr(self.room.block(group, index).0 + 1));
    }

    /// Lets time pass. For benches that no task uses.
    pub(super) fn pass(&self, seconds: u64) {
        self.rt.compute(seconds * 1_000_000_000);
    }

    pub(super) fn out(&self, pages: Range<u32>, generation: u32) {
        self.swap.page_out(&leaving(pages, generation)).expect("there is room");
    }

    /// Returns the generation of a page; `None` for zeros.
    pub(super) fn generation(&self, page: u32) -> Option<u32> {
        let mut bytes = vec![0; PAGE_BYTES];
        self.swap.page_in(PageNo(page), &mut bytes).expect("it can be read");
        generation_of(page, &bytes)
    }

    /// Returns the number of requests so far.
    pub(super) fn requests(&self) -> u64 {
        self.disk.as_ref().expect("a disk that counts").flying.lock().requests
    }

    /// Returns the used slots of the areas of each group, and of the traditional swap space.
    pub(super) fn used(&self) -> (Vec<(u32, u32)>, u32) {
        let status = self.swap.status();
        (status.areas.iter().map(|area| (area.group.0, area.used)).collect(), status.traditional_used)
    }

    /// Checks everything that must hold while no request is under way.
    pub(super) fn audit(&self) {
        let status = self.swap.status();
        assert_eq!(status.reserved_blocks, self.room.reserved());
        assert_eq!(status.taken_blocks, self.room.taken());
        let state = self.swap.state.lock();
        assert_eq!(state.map.passing(), 0);
        let mut out = 0;
        for slot in (0..state.map.slots()).map(SlotNo) {
            let Some(page) = state.map.page_of(slot) else { continue };
            assert_eq!(state.map.slot_of(page), Some(slot), "{page:?} has one slot");
            assert!(!state.map.is_pinned(slot));
            out += 1;
        }
        assert_eq!(out, status.used);
        assert_eq!(out, state.map.pages_out());
        let in_areas: u32 = status.areas.iter().map(|area| area.used).sum();
        assert_eq!(in_areas + status.traditional_used, out, "slots in use are those of pages");
        let held: u32 = status.areas.iter().map(|area| area.slots).sum();
        let at_home = if state.traditional.is_partition() { 0 } else { status.traditional_slots };
        assert_eq!(u64::from((held + at_home) * state.granule), status.taken_blocks);
    }
}

/// Makes pages whose contents identify page and generation.
pub(super) fn leaving(pages: impl IntoIterator<Item = u32>, generation: u32) -> Vec<(PageNo, Page)> {
    pages.into_iter().map(|page| (PageNo(page), contents(page, generation))).collect()
}

pub(super) fn contents(page: u32, generation: u32) -> Page {
    let mut buf = Buf::zeroed(PAGE_BYTES);
    for (index, sector) in buf.chunks_mut(SECTOR).enumerate() {
        for (word, value) in sector.chunks_mut(4).zip([page + 1, generation, index as u32].into_iter().cycle()) {
            word.copy_from_slice(&value.to_le_bytes());
        }
    }
    buf.freeze()
}

/// Returns the generation in the contents of a page, which must be of one generation throughout;
/// `None` for zeros.
pub(super) fn generation_of(page: u32, bytes: &[u8]) -> Option<u32> {
    if bytes.iter().all(|byte| *byte == 0) {
        return None;
    }
    let word = |index: usize| u32::from_le_bytes(bytes[index * 4..index * 4 + 4].try_into().expect("four bytes"));
    assert_eq!(word(0), page + 1, "another page's bytes");
    let generation = word(1);
    assert!(*bytes == *contents(page, generation), "page {page}: a mixture");
    Some(generation)
}
