//! Inodes in memory, the table that finds them, and the holds that keep their numbers.
//!
//! Invariants:
//! 1. At most one [`Inode`] per number is alive in the table; a reader that finds one being loaded
//!    waits for it instead of loading a second copy.
//! 2. An inode number is not given back to the format while its *holds* are above zero.
//!    Holds are counted by number: a decoded inode may be evicted while its number is held.
//! 3. An inode leaves the table only when no other reference to it exists, it has no dirty page, and the format
//!    has been told its attributes. The commit point that its durability still depends on is remembered.

use moafs_runtime::leaf::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use hashbrown::HashMap;
use moafs_disk::Epoch;
use moafs_runtime::leaf::Mutex;
use moafs_runtime::{Event, Rt};

use crate::acl::Acl;
use crate::error::{Error, Result};
use crate::format::{CommitPoint, Format};
use crate::pages::Pages;
use crate::read_ahead::ReadAhead;
use crate::types::{Attr, FileKind, Ino};
use crate::write_error::WriteError;

/// Shards of the table, each with its own mutex.
const SHARDS: usize = 16;

/// Looks at candidates for eviction that each decoded inode earns. Two are enough where no inode is in use.
const LOOKS_PER_INODE: usize = 16;

/// Holds that a shard has room for, however few there are.
const HOLDS_MIN: usize = 64;

/// The number of entries of removed inodes that a clock may always hold.
const EMPTY_SEATS_MIN: usize = 64;

/// Memory a decoded inode is charged with, in bytes, measured with 30,000 small files: the struct, its node, its place
/// in the table, and the root of its page map.
pub(crate) const INODE_BYTES: usize = 2560;

/// The part of an inode's attributes that the format has not been told yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Unput {
    /// The format knows all attributes.
    Nothing,
    /// Time stamps changed; fdatasync need not tell them.
    Times,
    /// The size or the mode changed with a write.
    Attributes,
}

/// The remembered state of an ACL, so that look-ups and creates do not ask the format each time.
#[derive(Debug, Clone)]
pub(crate) enum AclCache {
    /// The format has not been asked.
    Unknown,
    /// The format's answer; `None` if there is no ACL.
    Known(Option<Arc<Acl>>),
}

/// The sectors of a file (`st_blocks`) as the front knows them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KnownSectors {
    /// The front keeps none: it has not been told, or the file was changed by a call after which it asks anew.
    None,
    /// The front was told these last, and may keep them for as long as it likes.
    Told(u64),
    /// The front keeps some that are wrong by now. It has been given notice.
    Outdated,
}

impl KnownSectors {
    /// Notes how many sectors there are now. Returns true if the front keeps another number and has had no notice yet.
    pub(crate) fn note(&mut self, sectors: u64) -> bool {
        let is_outdated = matches!(*self, KnownSectors::Told(told) if told != sectors);
        if is_outdated {
            *self = KnownSectors::Outdated;
        }
        is_outdated
    }
}

/// The part of an inode behind a leaf mutex.
pub(crate) struct State {
    pub(crate) attr: Attr,
    /// The size that the format was last told.
    pub(crate) disk_size: u64,
    /// True if blocks may lie beyond the end of the file: left by a power cut, by another driver, or by a truncation
    /// that failed. They are unmapped before the file grows.
    pub(crate) may_overhang: bool,
    pub(crate) unput: Unput,
    /// The number of changes of `attr`.
    pub(crate) changes: u64,
    /// True if it is on the list of inodes whose attributes the format does not know.
    pub(crate) unput_listed: bool,
    /// The commit point of the newest op that changed this inode or its names.
    pub(crate) seal: CommitPoint,
    /// The epoch in which its last data write completed.
    pub(crate) epoch: Epoch,
    /// A failed write of its data.
    pub(crate) error: Option<WriteError>,
    /// The directory it was last looked up, created or renamed in; of directories the parent.
    pub(crate) home: Ino,
    pub(crate) access_acl: AclCache,
    pub(crate) default_acl: AclCache,
    pub(crate) read_ahead: ReadAhead,
    /// Of regular files only.
    pub(crate) known_sectors: KnownSectors,
    /// True if it was made without a name (O_TMPFILE): a first name may be given though it has none.
    pub(crate) nameless: bool,
    /// True once it was given back to the format: callers that still have it see a stale handle.
    pub(crate) freed: bool,
}

impl State {
    /// Notes a change of the attributes that the format does not know, or that has no commit point of an ended op yet.
    pub(crate) fn note_change(&mut self, what: Unput) {
        self.changes += 1;
        self.unput = self.unput.max(what);
    }
}

/// An inode in memory.
pub(crate) struct Inode<N> {
    pub(crate) ino: Ino,
    pub(crate) kind: FileKind,
    pub(crate) node: Arc<N>,
    /// The lock of level 2: shared for look-ups and reads, exclusive for changes of names, size and contents.
    pub(crate) lock: moafs_runtime::lock::RwLock<()>,
    /// Held inside an op, so that "look at the attributes, tell the format" is one step.
    pub(crate) put: moafs_runtime::lock::Mutex<()>,
    /// A leaf lock. May be taken inside `pages`.
    pub(crate) state: Mutex<State>,
    /// A leaf lock; taken before `state`.
    pub(crate) pages: Mutex<Pages>,
    /// Signalled when a page that was in flight or being filled has come to rest.
    pub(crate) moved: Event,
    recently_used: AtomicBool,
}

impl<N> Inode<N> {
    pub(crate) fn new(rt: &Rt, ino: Ino, home: Ino, attr: Attr, node: N) -> Inode<N> {
        let state = State {
            disk_size: attr.size,
            may_overhang: false,
            unput: Unput::Nothing,
            changes: 0,
            unput_listed: false,
            seal: CommitPoint::NONE,
            epoch: Epoch(0),
            error: None,
            home,
            access_acl: AclCache::Unknown,
            default_acl: AclCache::Unknown,
            read_ahead: ReadAhead::default(),
            known_sectors: KnownSectors::None,
            nameless: false,
            freed: false,
            attr,
        };
        Inode {
            ino,
            kind: state.attr.kind,
            node: Arc::new(node),
            lock: moafs_runtime::lock::RwLock::new(Arc::clone(rt), ()),
            put: moafs_runtime::lock::Mutex::new(Arc::clone(rt), ()),
            state: Mutex::new(state),
            pages: Mutex::new(Pages::default()),
            moved: Event::new(),
            recently_used: AtomicBool::new(true),
        }
    }

    pub(crate) fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }

    pub(crate) fn attr(&self) -> Attr {
        self.state.lock().attr.clone()
    }

    pub(crate) fn size(&self) -> u64 {
        self.state.lock().attr.size
    }

    pub(crate) fn nlink(&self) -> u32 {
        self.state.lock().attr.nlink
    }

    /// Notes the commit point of an op that concerned this inode.
    pub(crate) fn will_be_durable_at(&self, seal: CommitPoint) {
        let mut state = self.state.lock();
        state.seal = state.seal.max(seal);
    }

    /// Returns an error unless the inode still exists.
    pub(crate) fn check_alive(&self) -> Result<()> {
        if self.state.lock().freed { Err(Error::Stale(self.ino)) } else { Ok(()) }
    }
}

enum Slot<N> {
    /// A task is reading it; wait for [`Table::load_ended`].
    Loading,
    /// The inode is loaded; with its seat in the clock.
    Ready(Arc<Inode<N>>, Seat),
}

/// A place in a shard's clock, never given twice.
type Seat = u64;

struct Shard<N> {
    slots: HashMap<Ino, Slot<N>>,
    holds: HashMap<Ino, u64>,
    /// Candidates for eviction, second chance. Each decoded inode is in it once, with its seat; other entries are of
    /// those that were taken out since.
    clock: VecDeque<(Ino, Seat)>,
    seat_next: Seat,
    /// The commit points and epochs that evicted inodes still wait for.
    remembered: BTreeMap<Ino, (CommitPoint, Epoch)>,
}

impl<N> Shard<N> {
    /// Makes an inode a candidate for eviction. Entries of removed inodes leave the clock when they are half of it:
    /// amortized, inserting and removing cost no more with many inodes than with few.
    fn seat(&mut self, ino: Ino) -> Seat {
        if self.clock.len() > 2 * self.slots.len() + EMPTY_SEATS_MIN {
            let mut clock = std::mem::take(&mut self.clock);
            clock.retain(|(ino, seat)| self.seated(*ino, *seat).is_some());
            self.clock = clock;
        }
        let seat = self.seat_next;
        self.seat_next += 1;
        self.clock.push_back((ino, seat));
        seat
    }

    /// Returns the inode that has a seat, unless it was removed.
    fn seated(&self, ino: Ino, seat: Seat) -> Option<&Arc<Inode<N>>> {
        match self.slots.get(&ino) {
            Some(Slot::Ready(inode, its)) if *its == seat => Some(inode),
            _ => None,
        }
    }
}

/// The result of a look into the table.
pub(crate) enum Found<N> {
    /// The inode is in memory.
    Ready(Arc<Inode<N>>),
    /// Another task is loading it: wait.
    Loading,
    /// The caller shall load it and then call [`Table::insert_loaded`] or [`Table::load_failed`].
    LoadIt,
}

/// An inode of the format `F`, shared.
pub(crate) type Shared<F> = Arc<Inode<<F as Format>::Node>>;

/// The table of all inodes in memory.
pub(crate) struct Table<N> {
    shards: Vec<Mutex<Shard<N>>>,
    /// Signalled when a load has ended.
    pub(crate) load_ended: Event,
    decoded: AtomicUsize,
    /// Looks at candidates for eviction that were earned and not used yet.
    looks: AtomicUsize,
}

impl<N> Table<N> {
    pub(crate) fn new() -> Table<N> {
        let shard = || Shard {
            slots: HashMap::new(),
            holds: HashMap::new(),
            clock: VecDeque::new(),
            seat_next: 0,
            remembered: BTreeMap::new(),
        };
        Table {
            shards: (0..SHARDS).map(|_| Mutex::new(shard())).collect(),
            load_ended: Event::new(),
            decoded: AtomicUsize::new(0),
            looks: AtomicUsize::new(0),
        }
    }

    fn shard(&self, ino: Ino) -> &Mutex<Shard<N>> {
        &self.shards[(ino.0 % SHARDS as u64) as usize]
    }

    /// Returns the number of decoded inodes.
    pub(crate) fn decoded(&self) -> usize {
        self.decoded.load(Ordering::Relaxed)
    }

    /// Returns an inode if it is in memory.
    pub(crate) fn peek(&self, ino: Ino) -> Option<Arc<Inode<N>>> {
        match self.shard(ino).lock().slots.get(&ino) {
            Some(Slot::Ready(inode, _)) => Some(Arc::clone(inode)),
            _ => None,
        }
    }

    /// Returns an inode, or tells the caller to load it or to wait.
    pub(crate) fn find(&self, ino: Ino) -> Found<N> {
        let mut shard = self.shard(ino).lock();
        match shard.slots.get(&ino) {
            Some(Slot::Ready(inode, _)) => {
                if !inode.recently_used.load(Ordering::Relaxed) {
                    inode.recently_used.store(true, Ordering::Relaxed);
                }
                Found::Ready(Arc::clone(inode))
            }
            Some(Slot::Loading) => Found::Loading,
            None => {
                shard.slots.insert(ino, Slot::Loading);
                Found::LoadIt
            }
        }
    }

    /// Puts a loaded inode into the table, unless its number was given to a new one meanwhile; returns the one that is
    /// there.
    pub(crate) fn insert_loaded(&self, inode: Arc<Inode<N>>) -> Arc<Inode<N>> {
        let mut shard = self.shard(inode.ino).lock();
        match shard.slots.get(&inode.ino) {
            Some(Slot::Ready(newer, _)) => Arc::clone(newer),
            _ => self.insert_into(&mut shard, inode),
        }
    }

    /// Puts a new inode into the table. It replaces the one that had its number before.
    pub(crate) fn insert(&self, inode: Arc<Inode<N>>) -> Arc<Inode<N>> {
        self.insert_into(&mut self.shard(inode.ino).lock(), inode)
    }

    fn insert_into(&self, shard: &mut Shard<N>, inode: Arc<Inode<N>>) -> Arc<Inode<N>> {
        if let Some((seal, epoch)) = shard.remembered.remove(&inode.ino) {
            let mut state = inode.state.lock();
            state.seal = state.seal.max(seal);
            state.epoch = state.epoch.max(epoch);
        }
        let before = match shard.slots.get(&inode.ino) {
            Some(Slot::Ready(_, seat)) => Some(*seat),
            _ => None,
        };
        let seat = before.unwrap_or_else(|| shard.seat(inode.ino));
        shard.slots.insert(inode.ino, Slot::Ready(Arc::clone(&inode), seat));
        if before.is_none() {
            self.decoded.fetch_add(1, Ordering::Relaxed);
            self.looks.fetch_add(LOOKS_PER_INODE, Ordering::Relaxed);
        }
        inode
    }

    /// Ends a load that failed.
    pub(crate) fn load_failed(&self, ino: Ino) {
        let mut shard = self.shard(ino).lock();
        if matches!(shard.slots.get(&ino), Some(Slot::Loading)) {
            shard.slots.remove(&ino);
        }
    }

    /// Takes one hold on a number.
    pub(crate) fn hold(&self, ino: Ino) {
        *self.shard(ino).lock().holds.entry(ino).or_insert(0) += 1;
    }

    /// Gives back holds; true if none is left.
    pub(crate) fn release(&self, ino: Ino, holds: u64) -> bool {
        let mut shard = self.shard(ino).lock();
        let Some(count) = shard.holds.get_mut(&ino) else { return true };
        *count = count.saturating_sub(holds);
        if *count > 0 {
            return false;
        }
        shard.holds.remove(&ino);
        // A kernel that forgets a million inodes gives back their memory.
        if shard.holds.capacity() > HOLDS_MIN && shard.holds.len() < shard.holds.capacity() / 8 {
            let room = (2 * shard.holds.len()).max(HOLDS_MIN / 2);
            shard.holds.shrink_to(room);
        }
        true
    }

    /// Returns true if the number is held.
    pub(crate) fn is_held(&self, ino: Ino) -> bool {
        self.shard(ino).lock().holds.contains_key(&ino)
    }

    /// Marks an inode as freed unless its number is held; true if this call has marked it. An inode is freed once: its
    /// number may belong to another file afterwards.
    pub(crate) fn condemn(&self, inode: &Inode<N>) -> bool {
        let shard = self.shard(inode.ino).lock();
        if shard.holds.contains_key(&inode.ino) {
            return false;
        }
        !std::mem::replace(&mut inode.state.lock().freed, true)
    }

    /// Removes an inode from the table, unless its number already belongs to another.
    pub(crate) fn remove(&self, inode: &Arc<Inode<N>>) {
        let mut shard = self.shard(inode.ino).lock();
        let same = matches!(shard.slots.get(&inode.ino), Some(Slot::Ready(there, _)) if Arc::ptr_eq(there, inode));
        if same {
            shard.slots.remove(&inode.ino);
            self.decoded.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Evicts up to `count` unused inodes, as far as the looks reach that were earned by decoding others:
    /// where most must stay, every call would otherwise search all of them in vain.
    pub(crate) fn evict(&self, count: usize) {
        let earned = self.looks.swap(0, Ordering::Relaxed).min(2 * self.decoded());
        let used = self.evict_looking(count, earned / SHARDS);
        self.looks.fetch_add(earned.saturating_sub(used), Ordering::Relaxed);
    }

    /// Evicts up to `count` unused inodes, however long they have to be looked for.
    pub(crate) fn evict_thoroughly(&self, count: usize) {
        self.evict_looking(count, usize::MAX);
    }

    /// Evicts up to `count` unused inodes, with at most `looks` looks at candidates of each shard; returns the looks
    /// it took.
    fn evict_looking(&self, count: usize, looks: usize) -> usize {
        let count = count.div_ceil(SHARDS);
        self.shards.iter().map(|shard| self.evict_from(&mut shard.lock(), count, looks)).sum()
    }

    fn evict_from(&self, shard: &mut Shard<N>, mut count: usize, looks: usize) -> usize {
        // Inodes that were used lately get their second chance by the first look.
        let looks = looks.min(2 * shard.clock.len());
        for look in 0..looks {
            if count == 0 {
                return look;
            }
            let Some((ino, seat)) = shard.clock.pop_front() else { return look };
            let Some(inode) = shard.seated(ino, seat) else { continue };
            match leftover(inode) {
                None => shard.clock.push_back((ino, seat)),
                Some(durability) => {
                    if durability.0 > CommitPoint::NONE {
                        shard.remembered.insert(ino, durability);
                    }
                    shard.slots.remove(&ino);
                    self.decoded.fetch_sub(1, Ordering::Relaxed);
                    count -= 1;
                }
            }
        }
        looks
    }

    /// Returns the commit points that evicted inodes wait for now, to be passed to [`Self::committed`] after a commit.
    pub(crate) fn remembered(&self) -> Vec<(Ino, CommitPoint)> {
        let of =
            |shard: &Mutex<Shard<N>>| shard.lock().remembered.iter().map(|(i, (s, _))| (*i, *s)).collect::<Vec<_>>();
        self.shards.iter().flat_map(of).collect()
    }

    /// Forgets these: a commit that began after [`Self::remembered`] returned them has made them durable.
    pub(crate) fn committed(&self, durable: &[(Ino, CommitPoint)]) {
        for (ino, seal) in durable {
            let mut shard = self.shard(*ino).lock();
            if shard.remembered.get(ino).is_some_and(|(s, _)| s <= seal) {
                shard.remembered.remove(ino);
            }
        }
    }
}

/// Returns `None` while an inode must stay; otherwise the progress that its durability still depends on.
fn leftover<N>(inode: &Arc<Inode<N>>) -> Option<(CommitPoint, Epoch)> {
    if Arc::strong_count(inode) > 1 || inode.recently_used.swap(false, Ordering::Relaxed) {
        return None;
    }
    if !inode.pages.lock().is_empty() {
        return None;
    }
    let state = inode.state.lock();
    let settled =
        state.unput == Unput::Nothing && state.error.as_ref().is_none_or(WriteError::was_told) && state.attr.nlink > 0;
    settled.then_some((state.seal, state.epoch))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::write_error::Process;

    fn inode(ino: Ino) -> Arc<Inode<()>> {
        let attr = Attr {
            kind: FileKind::Regular,
            perm: 0o644,
            uid: 0,
            gid: 0,
            nlink: 1,
            size: 0,
            atime: Default::default(),
            mtime: Default::default(),
            ctime: Default::default(),
            crtime: None,
            rdev: 0,
            generation: 0,
            flags: 0,
        };
        let rt: Rt = moafs_runtime::Live::new();
        Arc::new(Inode::new(&rt, ino, Ino(2), attr, ()))
    }

    #[test]
    fn what_was_loaded_under_a_number_gives_way_to_what_was_made_meanwhile() {
        let table: Table<()> = Table::new();
        assert!(matches!(table.find(Ino(9)), Found::LoadIt));
        assert!(matches!(table.find(Ino(9)), Found::Loading));
        let made = table.insert(inode(Ino(9)));
        assert!(Arc::ptr_eq(&table.insert_loaded(inode(Ino(9))), &made));
        table.load_failed(Ino(9));
        assert!(table.peek(Ino(9)).is_some_and(|there| Arc::ptr_eq(&there, &made)));
        assert_eq!(table.decoded(), 1);
    }

    #[test]
    fn an_inode_is_freed_once_and_not_while_its_number_is_held() {
        let table: Table<()> = Table::new();
        let inode = table.insert(inode(Ino(16)));
        table.hold(Ino(16));
        assert!(!table.condemn(&inode));
        assert!(table.release(Ino(16), 1));
        assert!(table.condemn(&inode));
        assert!(!table.condemn(&inode), "its number may be another's by now");
    }

    #[test]
    fn a_failed_write_keeps_its_inode_in_memory_until_a_process_was_told() {
        let table: Table<()> = Table::new();
        let inode = table.insert(inode(Ino(16)));
        WriteError::latch(&mut inode.state.lock().error, &Error::Posix(libc::EIO), moafs_runtime::Time(10));
        drop(inode);
        (0..3).for_each(|_| table.evict_thoroughly(SHARDS));
        let inode = table.peek(Ino(16)).expect("no process was told");
        let told =
            inode.state.lock().error.as_mut().and_then(|error| error.tell(Process::SELF, moafs_runtime::Time(11)));
        assert!(told.is_some());
        drop(inode);
        (0..3).for_each(|_| table.evict_thoroughly(SHARDS));
        assert_eq!(table.decoded(), 0);
    }

    #[test]
    fn the_room_of_holds_goes_with_them() {
        let table: Table<()> = Table::new();
        (0..100_000).for_each(|i| table.hold(Ino(i)));
        assert!((0..99_000).all(|i| table.release(Ino(i), 1)));
        assert!((99_000..100_000).all(|i| table.is_held(Ino(i))));
        let room: usize = table.shards.iter().map(|shard| shard.lock().holds.capacity()).sum();
        assert!(room < 10_000, "room for {room} holds");
    }

    #[test]
    fn what_comes_and_goes_leaves_no_trace_and_a_number_used_again_is_one_candidate() {
        let table: Table<()> = Table::new();
        for _ in 0..1000 {
            let inode = table.insert(inode(Ino(16)));
            table.remove(&inode);
        }
        let last = table.insert(inode(Ino(16)));
        let shard = table.shard(Ino(16)).lock();
        assert!(shard.clock.len() <= EMPTY_SEATS_MIN + 2, "{}", shard.clock.len());
        assert_eq!(shard.clock.iter().filter(|(ino, seat)| shard.seated(*ino, *seat).is_some()).count(), 1);
        drop((shard, last));
        table.evict_thoroughly(SHARDS);
        table.evict_thoroughly(SHARDS);
        assert_eq!(table.decoded(), 0);
    }

    #[test]
    fn an_eviction_finds_what_is_unused_and_looks_no_further_than_was_earned() {
        let table: Table<()> = Table::new();
        let all: Vec<_> = (0..640).map(|i| table.insert(inode(Ino(i)))).collect();
        let used: Vec<_> = all.iter().filter(|i| i.ino.0 / SHARDS as u64 % 2 == 1).map(Arc::clone).collect();
        drop(all);
        table.evict(usize::MAX);
        assert_eq!(table.decoded(), 320);
        assert!(used.iter().all(|inode| table.peek(inode.ino).is_some()));
        for _ in 0..100 {
            table.evict(usize::MAX);
        }
        drop(used);
        table.evict(usize::MAX);
        assert_eq!(table.decoded(), 320, "the looks are used up");
        table.evict_thoroughly(100);
        assert_eq!(table.decoded(), 208, "seven from each shard");
    }
}
