//! Memory of blocks: chunks of 2 MiB cut into slots of equal size.
//!
//! A block cache needs memory of one size, aligned to that size. A general allocator adds a header, which breaks the
//! alignment and can double the memory needed. Here a slot costs its own size, the lowest free slot of the lowest chunk
//! that has one is used first (slots taken one after the other are often adjacent), and chunks that become empty are
//! returned to the kernel. Slots are never handed to the compiler as uninitialised: the kernel zeroes a chunk, and
//! earlier users of a slot only write initialised bytes to it, so every byte has a value at any time.
//!
//! The first slot of a chunk holds its [`Header`]: the free slots, and for each slot the number of its users
//! ([`Page`](super::Page)). A chunk is aligned to its size, so a slot leads to its header without a search.

use std::alloc::{Layout, handle_alloc_error};
use std::cell::UnsafeCell;
use std::collections::BTreeSet;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;

use parking_lot::Mutex;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Bytes of a chunk, and its alignment: the size of a huge page on most machines.
const CHUNK: usize = 2 << 20;

/// Sizes of slots: powers of two from 2^10 (the smallest block) to 2^16 (the largest).
const SHIFT_MIN: u32 = 10;
const CLASSES: usize = 7;

/// Words of a bitmap with one bit for each slot, for the smallest slot size.
const FREE_WORDS: usize = (CHUNK >> SHIFT_MIN) / 64;

/// Empty chunks that a size class keeps: a large file that is removed and written again finds memory that the kernel
/// need not zero again.
const EMPTY_KEPT: usize = 8;

/// The smallest page size of a machine in bytes. Slots below it cannot be returned to the kernel
/// one by one.
const PAGE_MIN: usize = 4096;

static SLABS: [Mutex<Slab>; CLASSES] = [const { Mutex::new(Slab::new()) }; CLASSES];

/// Returns true if buffers of this length come from the slabs.
pub(super) fn holds(len: usize) -> bool {
    class(len).is_some()
}

/// Returns a slot of exactly `len` bytes, a length that the slabs hold, aligned to its size up to a page, with
/// arbitrary bytes in it. Aborts when the kernel has no memory, as all Rust allocation does.
pub(super) fn take(len: usize) -> NonNull<u8> {
    let class = class(len).expect("a length that has slots");
    let slot = SLABS[class].lock().take(len);
    slot.unwrap_or_else(|| handle_alloc_error(Layout::from_size_align(CHUNK, CHUNK).expect("a chunk's layout")))
}

/// Gives a slot back.
///
/// # Safety
/// `slot` came from [`take`] with the same `len`, and the caller was its last user.
pub(super) unsafe fn give(slot: NonNull<u8>, len: usize) {
    let class = class(len).expect("a length that has slots");
    // SAFETY: as this function requires.
    unsafe { SLABS[class].lock().give(slot, len) };
}

/// Returns the count of users of a slot; it lives as long as the slot is not given back.
///
/// # Safety
/// `slot` came from [`take`] with the same `len` and was not given back.
pub(super) unsafe fn users(slot: NonNull<u8>, len: usize) -> NonNull<AtomicU32> {
    let (chunk, number) = Chunk::of(slot, len);
    // SAFETY: the slot is in use, so its chunk is mapped and has a header.
    NonNull::from(unsafe { &chunk.header().users[number] })
}

/// Returns the memory of free slots to the kernel.
pub(super) fn trim() {
    for (class, slab) in SLABS.iter().enumerate() {
        slab.lock().trim(1 << (SHIFT_MIN as usize + class));
    }
}

fn class(len: usize) -> Option<usize> {
    let class = len.checked_ilog2()?.checked_sub(SHIFT_MIN)? as usize;
    (len.is_power_of_two() && class < CLASSES).then_some(class)
}

/// Returns the number of slots in a chunk that can be handed out: all but the header's.
fn slots(len: usize) -> usize {
    CHUNK / len - 1
}

/// All chunks of one size of slots.
struct Slab {
    /// Chunks with a free slot.
    roomy: BTreeSet<Chunk>,
    /// The number of chunks in `roomy` without a used slot.
    empty: usize,
    chunks: usize,
}

/// The contents of a chunk's first slot.
struct Header {
    users: Box<[AtomicU32]>,
    /// Guarded by the slab's lock.
    free: UnsafeCell<Free>,
}

const _: () = assert!(size_of::<Header>() <= 1 << SHIFT_MIN, "a header fits the smallest slot");

/// A bitmap of the free slots.
struct Free {
    count: usize,
    /// Every word before this index is zero.
    first_word: usize,
    words: [u64; FREE_WORDS],
}

impl Free {
    fn all(len: usize) -> Free {
        let mut words = [0; FREE_WORDS];
        (1..=slots(len)).for_each(|slot| words[slot / 64] |= 1 << (slot % 64));
        Free { count: slots(len), first_word: 0, words }
    }

    fn take_lowest(&mut self) -> Option<usize> {
        let word = (self.first_word..FREE_WORDS).find(|word| self.words[*word] != 0)?;
        let bit = self.words[word].trailing_zeros() as usize;
        self.words[word] &= self.words[word] - 1;
        self.first_word = word;
        self.count -= 1;
        Some(word * 64 + bit)
    }

    fn give(&mut self, slot: usize) {
        let word = slot / 64;
        debug_assert!(self.words[word] & 1 << (slot % 64) == 0, "a slot is given back once");
        self.words[word] |= 1 << (slot % 64);
        self.first_word = self.first_word.min(word);
        self.count += 1;
    }

    fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        (0..FREE_WORDS * 64).filter(|slot| self.words[slot / 64] & 1 << (slot % 64) != 0)
    }
}

/// The start address of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Chunk(NonNull<u8>);

// SAFETY: a chunk is a mapping of the process; nothing about it belongs to a thread.
unsafe impl Send for Chunk {}

impl Chunk {
    /// Maps a new chunk, aligned to its size, with all slots free.
    fn map(len: usize) -> Option<Chunk> {
        let start = map_chunk()?;
        let users = (0..CHUNK / len).map(|_| AtomicU32::new(0)).collect();
        let header = Header { users, free: UnsafeCell::new(Free::all(len)) };
        // SAFETY: the chunk is ours, aligned, and its first slot is large enough.
        unsafe { start.cast::<Header>().write(header) };
        Some(Chunk(start))
    }

    /// Returns the chunk of a slot, and the slot's number in it.
    fn of(slot: NonNull<u8>, len: usize) -> (Chunk, usize) {
        let within = slot.addr().get() & (CHUNK - 1);
        // SAFETY: a slot lies within its chunk, `within` bytes behind its start.
        (Chunk(unsafe { slot.sub(within) }), within / len)
    }

    /// # Safety
    /// The chunk is mapped, and stays so as long as the reference lives.
    unsafe fn header<'a>(self) -> &'a Header {
        // SAFETY: `map` has put it there; it is never borrowed exclusively.
        unsafe { self.0.cast::<Header>().as_ref() }
    }

    /// # Safety
    /// The chunk is mapped, and its slab is locked as long as the reference lives; there is no second one.
    unsafe fn free<'a>(self) -> &'a mut Free {
        // SAFETY: the slab's lock gives the caller exclusive access.
        unsafe { &mut *self.header().free.get() }
    }

    /// # Safety
    /// No slot of the chunk is in use.
    unsafe fn unmap(self) {
        // SAFETY: written by `map`, not read again.
        unsafe { self.0.cast::<Header>().drop_in_place() };
        // SAFETY: the chunk's own mapping. An address space too fragmented to cut leaves it mapped: lost, but safe.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), CHUNK) };
    }
}

impl Slab {
    const fn new() -> Slab {
        Slab { roomy: BTreeSet::new(), empty: 0, chunks: 0 }
    }

    fn take(&mut self, len: usize) -> Option<NonNull<u8>> {
        let chunk = match self.roomy.first() {
            Some(chunk) => *chunk,
            None => self.add_chunk(len)?,
        };
        // SAFETY: listed chunks are mapped, and `self` is the locked slab.
        let free = unsafe { chunk.free() };
        self.empty -= usize::from(free.count == slots(len));
        let slot = free.take_lowest()?;
        if free.count == 0 {
            self.roomy.remove(&chunk);
        }
        // SAFETY: the slot lies within the chunk's mapping.
        Some(unsafe { chunk.0.add(slot * len) })
    }

    fn add_chunk(&mut self, len: usize) -> Option<Chunk> {
        let chunk = Chunk::map(len)?;
        self.roomy.insert(chunk);
        self.empty += 1;
        self.chunks += 1;
        Some(chunk)
    }

    /// # Safety
    /// As [`give`], of this slab.
    unsafe fn give(&mut self, slot: NonNull<u8>, len: usize) {
        let (chunk, number) = Chunk::of(slot, len);
        // SAFETY: a chunk with a used slot is mapped, and `self` is the locked slab.
        let free = unsafe { chunk.free() };
        free.give(number);
        if free.count == 1 {
            self.roomy.insert(chunk);
        }
        if free.count == slots(len) {
            self.empty += 1;
            if self.empty > EMPTY_KEPT {
                self.drop_chunk(chunk);
            }
        }
    }

    /// Returns an empty chunk to the kernel.
    fn drop_chunk(&mut self, chunk: Chunk) {
        self.roomy.remove(&chunk);
        self.empty -= 1;
        self.chunks -= 1;
        // SAFETY: no slot of an empty chunk is in use, and the chunk is not listed any more.
        unsafe { chunk.unmap() };
    }

    fn trim(&mut self, len: usize) {
        // SAFETY: listed chunks are mapped, and `self` is the locked slab.
        let is_empty = |chunk: &&Chunk| unsafe { chunk.free() }.count == slots(len);
        let empty: Vec<Chunk> = self.roomy.iter().filter(is_empty).copied().collect();
        empty.into_iter().for_each(|chunk| self.drop_chunk(chunk));
        if len < PAGE_MIN {
            return;
        }
        for chunk in &self.roomy {
            // SAFETY: as above.
            for slot in unsafe { chunk.free() }.iter() {
                // SAFETY: a free slot, whole pages of the chunk's private mapping; it reads as zeros from
                // now on. Machines with pages larger than the slot refuse.
                let _ = unsafe { madvise(chunk.0.add(slot * len).as_ptr().cast(), len, Advice::LinuxDontNeed) };
            }
        }
    }
}

/// Maps a fresh chunk, aligned to its size.
fn map_chunk() -> Option<NonNull<u8>> {
    let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: a new anonymous mapping touches no existing memory.
    let wide = unsafe { mmap_anonymous(std::ptr::null_mut(), 2 * CHUNK, prot, flags) }.ok()?;
    let head = wide.addr().next_multiple_of(CHUNK) - wide.addr();
    let start = wide.cast::<u8>().wrapping_add(head);
    // SAFETY: both ends belong to the mapping just made and lie outside of the chunk kept; the advice concerns
    // the chunk alone.
    unsafe {
        if head > 0 {
            let _ = munmap(wide, head);
        }
        if head < CHUNK {
            let _ = munmap(start.add(CHUNK).cast(), CHUNK - head);
        }
        // Best effort: kernels without huge pages give small ones.
        let _ = madvise(start.cast(), CHUNK, Advice::LinuxHugepage);
    }
    NonNull::new(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_blocks_have_slots() {
        assert_eq!(class(1 << 10), Some(0));
        assert_eq!(class(1 << 16), Some(6));
        for other in [0, 1, 512, 1025, 6000, 1 << 17] {
            assert_eq!(class(other), None, "{other}");
        }
    }

    #[test]
    fn slots_are_apart_aligned_and_come_back() {
        for len in [1 << 10, 1 << 12, 1 << 16] {
            let mut slab = Slab::new();
            let chunks = EMPTY_KEPT + 2;
            let taken: Vec<_> = (0..slots(len) * chunks).map(|_| slab.take(len).unwrap()).collect();
            assert_eq!((slab.chunks, slab.empty, slab.roomy.len()), (chunks, 0, 0));
            let mut addresses: Vec<usize> = taken.iter().map(|slot| slot.addr().get()).collect();
            addresses.sort_unstable();
            assert!(addresses.iter().all(|address| address % len == 0));
            assert!(addresses.windows(2).all(|pair| pair[0] + len <= pair[1]));
            for (i, slot) in taken.into_iter().enumerate() {
                // SAFETY: the slot belongs to this test until it is given back; whole slots are
                // written.
                unsafe {
                    slot.write_bytes(7, len);
                    slab.give(slot, len);
                }
                if i == slots(len) / 2 {
                    slab.trim(len);
                }
            }
            assert_eq!((slab.chunks, slab.empty, slab.roomy.len()), (EMPTY_KEPT, EMPTY_KEPT, EMPTY_KEPT));
            slab.trim(len);
            assert_eq!((slab.chunks, slab.empty, slab.roomy.len()), (0, 0, 0));
        }
    }

    #[test]
    fn the_lowest_is_used_first_and_neighbours_follow() {
        let mut slab = Slab::new();
        let len = 4096;
        let taken: Vec<_> = (0..slots(len)).map(|_| slab.take(len).unwrap()).collect();
        assert!(taken.windows(2).all(|pair| pair[0].addr().get() + len == pair[1].addr().get()));
        for slot in [200, 100, 101, 400] {
            // SAFETY: taken above, each once.
            unsafe { slab.give(taken[slot], len) };
        }
        for slot in [100, 101, 200, 400] {
            assert_eq!(slab.take(len), Some(taken[slot]));
        }
    }

    #[test]
    fn every_slot_has_its_own_count() {
        let slots: Vec<_> = (0..1000).map(|_| take(2048)).collect();
        // SAFETY: all of them are in use.
        let counts: BTreeSet<_> = slots.iter().map(|slot| unsafe { users(*slot, 2048) }).collect();
        assert_eq!(counts.len(), slots.len());
        // SAFETY: taken above, each given back once.
        slots.into_iter().for_each(|slot| unsafe { give(slot, 2048) });
    }
}
