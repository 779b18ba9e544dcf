//! A metadata block in memory: the bytes that ops see, the image that the disk has, and the versions between them.

use std::collections::BTreeMap;
use std::sync::Arc;

use moafs_disk::{Buf, Kind};
use moafs_runtime::leaf::Mutex;
use moafs_runtime::leaf::atomic::{AtomicBool, AtomicU64, Ordering};
use smallvec::SmallVec;

use super::level::Level;
use crate::format::{GroupNo, InodeNo, Owner, Sealed};

/// A metadata block in memory.
pub struct Block {
    /// The block's number on the volume.
    pub no: u64,
    pub(super) kind: Kind,
    pub(super) ready: AtomicBool,
    pub(super) touched: AtomicBool,
    /// The use for which the bytes were verified; 0 for none.
    pub(super) verified: AtomicU64,
    pub(super) state: Mutex<State>,
}

/// The use of a block, for which its bytes were verified: the structure that it holds, and the inode or group that it
/// belongs to. A block that a damaged volume gives to two owners is verified for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Use(u64);

impl Use {
    const fn of(structure: u8, owner: u32) -> Use {
        Use((structure as u64) << 32 | owner as u64)
    }

    /// Returns the use as a group's block bitmap.
    pub fn block_bitmap(group: GroupNo) -> Use {
        Use::of(1, group.0)
    }

    /// Returns the use as a group's inode bitmap.
    pub fn inode_bitmap(group: GroupNo) -> Use {
        Use::of(2, group.0)
    }

    /// Returns the use as a node of an inode's extent tree.
    pub fn extents(ino: InodeNo) -> Use {
        Use::of(3, ino.0)
    }

    /// Returns the use as a block of a directory.
    pub fn directory(ino: InodeNo) -> Use {
        Use::of(4, ino.0)
    }

    /// Returns the use as an attribute block, which inodes may share.
    pub fn xattrs() -> Use {
        Use::of(5, 0)
    }
}

pub(super) struct State {
    /// The current bytes, which ops see.
    pub(super) bytes: Buf,
    /// The image last written, kept while versions are pending.
    pub(super) base: Option<Buf>,
    pub(super) records: BTreeMap<u32, Record>,
    /// The level at which changes without versions are to be written.
    pub(super) loose: Option<Level>,
    /// The level of the round in which an image was last handed to the disk: it is on disk, or in
    /// flight.
    pub(super) sent: Level,
    /// True once the block was freed: no image of it may reach the disk any more.
    pub(super) dead: bool,
    /// The structure whose checksum the block gets when it is written.
    pub(super) sealed: Option<Sealed>,
}

/// The versions of a record that are not on disk yet, oldest first, levels ascending.
pub(super) struct Record {
    pub(super) versions: SmallVec<[(Level, Box<[u8]>); 2]>,
}

impl Block {
    pub(super) fn ready(no: u64, kind: Kind, bytes: Buf) -> Arc<Block> {
        Block::new(no, kind, true, bytes)
    }

    /// Returns a block whose bytes are still to be read.
    pub(super) fn unread(no: u64, kind: Kind) -> Arc<Block> {
        Block::new(no, kind, false, Buf::zeroed(0))
    }

    fn new(no: u64, kind: Kind, is_ready: bool, bytes: Buf) -> Arc<Block> {
        let state = State {
            bytes,
            base: None,
            records: BTreeMap::new(),
            loose: None,
            sent: Level::NONE,
            dead: false,
            sealed: None,
        };
        Arc::new(Block {
            no,
            kind,
            ready: AtomicBool::new(is_ready),
            touched: AtomicBool::new(true),
            verified: AtomicU64::new(0),
            state: Mutex::new(state),
        })
    }

    /// Calls `look` with the block's current bytes, which ops see.
    pub fn view<R>(&self, look: impl FnOnce(&[u8]) -> R) -> R {
        self.touched.store(true, Ordering::Relaxed);
        look(&self.state.lock().bytes)
    }

    /// Has `verify` judge the bytes, unless they were found right for the same use before. What changes them keeps
    /// them right, so they are judged once for each time that they are read.
    ///
    /// # Errors
    /// The error of `verify`.
    pub fn verify<E>(
        &self,
        used: Use,
        verify: impl FnOnce(&[u8]) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        if self.verified.load(Ordering::Relaxed) == used.0 {
            return Ok(());
        }
        // One step: once the bytes were found right another task may change them.
        let state = self.state.lock();
        if self.verified.load(Ordering::Relaxed) != used.0 {
            verify(&state.bytes)?;
            self.verified.store(used.0, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Has `image` make the bytes of a block whose contents on the disk mean nothing: once for as long as the block
    /// stays in memory.
    pub fn supply(&self, used: Use, image: impl FnOnce(&mut [u8])) {
        let mut state = self.state.lock();
        if self.verified.load(Ordering::Relaxed) != used.0 {
            image(&mut state.bytes);
            self.verified.store(used.0, Ordering::Relaxed);
        }
    }

    /// Notes the structure that the block holds: it gets the checksum of this structure when it is written, by a volume
    /// with a journal. The op that changes a structure with a checksum that has a block for itself says this, of a new
    /// block or of one that was verified; its bytes are right from then on, though their checksum is made later. A
    /// directory block is a [`Sealed::Leaf`] here, whatever its shape will be.
    pub fn holds(&self, what: Sealed) {
        let used = match what {
            Sealed::Leaf(owner) => Use::directory(owner.ino),
            Sealed::Extents(owner) => Use::extents(owner.ino),
            Sealed::Xattrs(_) => Use::xattrs(),
            _ => Use(0),
        };
        let mut state = self.state.lock();
        state.sealed = Some(what);
        self.verified.store(used.0, Ordering::Relaxed);
    }

    /// Notes that the block holds a node of an extent tree, as [`Block::holds`] does.
    pub fn belongs_to(&self, owner: Owner) {
        self.holds(Sealed::Extents(owner));
    }

    /// Returns a level at which the newest version of a record is on disk. A version that left with
    /// the round in flight counts: it may still be lost.
    pub fn pending(&self, record: usize) -> Level {
        let state = self.state.lock();
        let newest = |r: &Record| r.versions.last().map_or(Level::NONE, |v| v.0);
        state.records.get(&(record as u32)).map_or(Level::NONE, newest).max(state.sent)
    }

    pub(super) fn is_clean(&self) -> bool {
        let state = self.state.lock();
        state.dead || (state.records.is_empty() && state.loose.is_none())
    }

    /// Returns the image that may go to the disk at `level`; `None` if no change is due.
    pub(super) fn compose(&self, level: Level) -> Option<Buf> {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        if state.dead {
            return None;
        }
        let mut due = state.loose.is_some_and(|at| at <= level);
        if due {
            state.loose = None;
        }
        if let Some(base) = &mut state.base {
            for (at, record) in &mut state.records {
                let ready = record.versions.iter().take_while(|v| v.0 <= level).count();
                if let Some((_, bytes)) = record.versions.drain(..ready).next_back() {
                    base[*at as usize..][..bytes.len()].copy_from_slice(&bytes);
                    due = true;
                }
            }
            state.records.retain(|_, record| !record.versions.is_empty());
        }
        if state.records.is_empty() {
            debug_assert!(
                state.base.as_ref().is_none_or(|base| **base == *state.bytes),
                "block {} lost a change",
                self.no
            );
            state.base = None;
        }
        if due {
            state.sent = level;
        }
        due.then(|| state.base.as_ref().unwrap_or(&state.bytes).clone())
    }
}
