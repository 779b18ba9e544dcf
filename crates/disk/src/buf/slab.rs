//! Memory of blocks: chunks of 2 MiB cut into slots of equal size.
//!
//! A cache of blocks lives from memory of one size, aligned to that size. General allocators add a
//! header, break the alignment, and then need twice the room. Here a slot costs its own size, the
//! lowest chunk with a free slot is used first, and a chunk that becomes empty goes back to the
//! kernel. Slots are never handed to the compiler as uninitialised: the kernel zeroes a chunk, and
//! whoever had a slot before has written to it, so every byte has a value at any time.

use std::collections::{BTreeMap, BTreeSet};
use std::ptr::NonNull;

use parking_lot::Mutex;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Bytes of a chunk, and its alignment: a huge page of most machines.
const CHUNK: usize = 2 << 20;

/// Sizes of slots: powers of two from 2^10 (the smallest block) to 2^16 (the largest).
const SHIFT_MIN: u32 = 10;
const CLASSES: usize = 7;

/// Empty chunks that a class keeps, so that one block coming and going does not map and unmap.
const EMPTY_KEPT: usize = 1;

/// Slots below the smallest page of a machine keep their memory.
const PAGE_MIN: usize = 4096;

static SLABS: [Mutex<Slab>; CLASSES] = [const { Mutex::new(Slab::new()) }; CLASSES];

/// A slot of exactly `len` bytes, aligned to its size up to a page, with arbitrary bytes in it; `None` for
/// sizes that have no slots and when the kernel has no memory.
pub(super) fn take(len: usize) -> Option<NonNull<u8>> {
    SLABS[class(len)?].lock().take(len)
}

/// Gives a slot back; false if it is not from here.
pub(super) fn give(start: NonNull<u8>, len: usize) -> bool {
    class(len).is_some_and(|class| SLABS[class].lock().give(start, len))
}

/// Gives the memory of free slots back to the kernel.
pub(super) fn trim() {
    for (class, slab) in SLABS.iter().enumerate() {
        slab.lock().trim(1 << (SHIFT_MIN as usize + class));
    }
}

fn class(len: usize) -> Option<usize> {
    let class = len.checked_ilog2()?.checked_sub(SHIFT_MIN)? as usize;
    (len.is_power_of_two() && class < CLASSES).then_some(class)
}

/// All chunks of one size of slots.
struct Slab {
    /// By address.
    chunks: BTreeMap<usize, Chunk>,
    /// Those with a free slot.
    roomy: BTreeSet<usize>,
    empty: usize,
}

struct Chunk {
    start: NonNull<u8>,
    /// Numbers of free slots, the one that was used last at the end.
    free: Vec<u16>,
}

// SAFETY: a chunk is a mapping of the process; nothing about it belongs to a thread.
unsafe impl Send for Chunk {}

impl Slab {
    const fn new() -> Slab {
        Slab { chunks: BTreeMap::new(), roomy: BTreeSet::new(), empty: 0 }
    }

    fn take(&mut self, len: usize) -> Option<NonNull<u8>> {
        if self.roomy.is_empty() {
            self.add_chunk(len)?;
        }
        let address = *self.roomy.first()?;
        let chunk = self.chunks.get_mut(&address)?;
        self.empty -= usize::from(chunk.free.len() == CHUNK / len);
        let slot = chunk.free.pop()?;
        if chunk.free.is_empty() {
            self.roomy.remove(&address);
        }
        // SAFETY: the slot lies within the chunk's mapping.
        Some(unsafe { chunk.start.add(usize::from(slot) * len) })
    }

    fn add_chunk(&mut self, len: usize) -> Option<()> {
        let start = map_chunk()?;
        let free = (0..(CHUNK / len) as u16).rev().collect();
        self.chunks.insert(start.addr().get(), Chunk { start, free });
        self.roomy.insert(start.addr().get());
        self.empty += 1;
        Some(())
    }

    fn give(&mut self, slot: NonNull<u8>, len: usize) -> bool {
        let address = slot.addr().get() & !(CHUNK - 1);
        let Some(chunk) = self.chunks.get_mut(&address) else { return false };
        chunk.free.push(((slot.addr().get() - address) / len) as u16);
        if chunk.free.len() == 1 {
            self.roomy.insert(address);
        }
        if chunk.free.len() == CHUNK / len {
            self.empty += 1;
            if self.empty > EMPTY_KEPT {
                self.drop_chunk(address);
            }
        }
        true
    }

    fn drop_chunk(&mut self, address: usize) {
        let Some(chunk) = self.chunks.remove(&address) else { return };
        self.roomy.remove(&address);
        self.empty -= 1;
        // SAFETY: the chunk's own mapping, all of whose slots are free. An address space too
        // fragmented to cut leaves the chunk mapped: lost, but safe.
        let _ = unsafe { munmap(chunk.start.as_ptr().cast(), CHUNK) };
    }

    fn trim(&mut self, len: usize) {
        if len < PAGE_MIN {
            return;
        }
        for address in self.roomy.iter() {
            let Some(chunk) = self.chunks.get(address) else { continue };
            for slot in &chunk.free {
                // SAFETY: a free slot, whole pages of the chunk's private mapping; it reads as zeros from
                // now on. Machines with pages larger than the slot refuse.
                let _ = unsafe {
                    madvise(chunk.start.add(usize::from(*slot) * len).as_ptr().cast(), len, Advice::LinuxDontNeed)
                };
            }
        }
    }
}

/// A fresh chunk, aligned to its size.
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
        // A wish: kernels without huge pages give small ones.
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
        let mut slab = Slab::new();
        let len = 4096;
        let slots: Vec<_> = (0..CHUNK / len * 2 + 1).map(|_| slab.take(len).unwrap()).collect();
        assert_eq!(slab.chunks.len(), 3);
        let mut addresses: Vec<usize> = slots.iter().map(|slot| slot.addr().get()).collect();
        addresses.sort_unstable();
        assert!(addresses.iter().all(|address| address % len == 0));
        assert!(addresses.windows(2).all(|pair| pair[0] + len <= pair[1]));
        slab.trim(len);
        for slot in slots {
            // SAFETY: the slot is ours until given back.
            unsafe { slot.write_bytes(7, len) };
            assert!(slab.give(slot, len));
        }
        assert_eq!((slab.chunks.len(), slab.empty, slab.roomy.len()), (EMPTY_KEPT, EMPTY_KEPT, EMPTY_KEPT));
        let foreign = NonNull::from(&mut [0u8; 4096]).cast();
        assert!(!slab.give(foreign, len));
    }

    #[test]
    fn the_lowest_chunk_is_used_first() {
        let mut slab = Slab::new();
        let len = 1 << 16;
        let slots: Vec<_> = (0..CHUNK / len * 2).map(|_| slab.take(len).unwrap()).collect();
        let (low, high) = (slots.iter().min().unwrap(), slots.iter().max().unwrap());
        assert!(slab.give(*high, len) && slab.give(*low, len));
        assert_eq!(slab.take(len), Some(*low));
    }
}
