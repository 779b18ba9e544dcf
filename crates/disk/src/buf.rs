//! Aligned memory for direct I/O, block-sized pieces of it from slabs of their own.

mod slab;

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

/// Alignment of every buffer in bytes: enough for direct I/O on any device with sectors up to it.
pub const ALIGN: usize = 4096;

/// A frozen piece of memory: shared between the cache, the queue and the device while a write is
/// under way. Changing the cached block meanwhile makes a new one.
pub type Page = Arc<Buf>;

/// Owned, aligned memory.
pub struct Buf {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a `Buf` owns its memory alone; sharing gives out `&[u8]` only.
unsafe impl Send for Buf {}
// SAFETY: as above: `&Buf` allows reading only.
unsafe impl Sync for Buf {}

impl Buf {
    /// `len` zero bytes. Aborts when memory is exhausted, as all Rust allocation does.
    pub fn zeroed(len: usize) -> Buf {
        match slab::take(len) {
            Some(start) => {
                // SAFETY: a slot of `len` bytes that is ours alone.
                unsafe { start.write_bytes(0, len) };
                Buf { start, len }
            }
            None => Buf::allocated(len),
        }
    }

    /// `len` bytes of any value: for whoever writes all of them before anybody looks, such as the device that a
    /// read asks. Costs less than zeroes.
    pub fn scratch(len: usize) -> Buf {
        slab::take(len).map_or_else(|| Buf::allocated(len), |start| Buf { start, len })
    }

    /// A copy of `bytes`.
    pub fn copy_of(bytes: &[u8]) -> Buf {
        let mut buf = Buf::scratch(bytes.len());
        buf.copy_from_slice(bytes);
        buf
    }

    /// Freezes the buffer for sharing.
    pub fn freeze(self) -> Page {
        Arc::new(self)
    }

    /// Zero bytes from the general allocator: sizes that blocks do not have.
    fn allocated(len: usize) -> Buf {
        if len == 0 {
            return Buf { start: NonNull::dangling(), len };
        }
        let layout = Self::layout(len);
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        Buf { start, len }
    }

    fn layout(len: usize) -> Layout {
        // Small blocks need no more than their own alignment: direct I/O asks for the sector's.
        let align = len.next_power_of_two().clamp(512, ALIGN);
        Layout::from_size_align(len, align).expect("a buffer length fits in memory")
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        if self.len != 0 && !slab::give(self.start, self.len) {
            // SAFETY: not a slot, so from `allocated`, with this very layout.
            unsafe { dealloc(self.start.as_ptr(), Self::layout(self.len)) }
        }
    }
}

/// Gives memory that no buffer uses any more back to the kernel, as far as it is known here.
pub fn trim() {
    slab::trim();
}

impl Deref for Buf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `start` points to `len` initialised bytes that we own.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Buf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes us the only one.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Clone for Buf {
    fn clone(&self) -> Buf {
        Buf::copy_of(self)
    }
}

impl std::fmt::Debug for Buf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buf({} bytes)", self.len)
    }
}
