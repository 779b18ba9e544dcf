//! Aligned memory for direct I/O; block-sized buffers come from their own slabs.

mod slab;

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering, fence};

/// Alignment of every buffer in bytes: enough for direct I/O on any device with sectors up to it.
pub const ALIGN: usize = 4096;

/// Owned, aligned memory. Its alignment is its length rounded up to a power of two, from 512 to
/// [`ALIGN`] bytes.
pub struct Buf {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: a `Buf` owns its memory alone; sharing gives out `&[u8]` only.
unsafe impl Send for Buf {}
// SAFETY: as above: `&Buf` allows reading only.
unsafe impl Sync for Buf {}

impl Buf {
    /// Makes a buffer of `len` zero bytes. Aborts when memory is exhausted, as all Rust allocation
    /// does.
    pub fn zeroed(len: usize) -> Buf {
        let mut buf = Buf::scratch(len);
        if slab::holds(len) {
            buf.fill(0);
        }
        buf
    }

    /// Makes a buffer of `len` bytes of arbitrary value: for callers that write every byte before any is read, such as
    /// a read request, whose device fills the buffer. Cheaper than zeroing.
    pub fn scratch(len: usize) -> Buf {
        if slab::holds(len) {
            return Buf { start: slab::take(len), len };
        }
        Buf::allocated(len)
    }

    /// Makes a buffer with a copy of `bytes`.
    pub fn copy_of(bytes: &[u8]) -> Buf {
        let mut buf = Buf::scratch(bytes.len());
        buf.copy_from_slice(bytes);
        buf
    }

    /// Makes the buffer immutable, so that it can be shared.
    pub fn freeze(self) -> Page {
        Page::from(self)
    }

    /// Makes a zeroed buffer from the general allocator: for lengths that no slab holds.
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
        if slab::holds(self.len) {
            // SAFETY: buffers of this length are slots, and this one is ours alone.
            unsafe { slab::give(self.start, self.len) };
        } else if self.len != 0 {
            // SAFETY: not a slot, so from `allocated`, with this very layout.
            unsafe { dealloc(self.start.as_ptr(), Self::layout(self.len)) }
        }
    }
}

/// A frozen piece of memory: shared between the cache, the queue and the device while a write is under way. Changing
/// the cached block meanwhile makes a new one.
///
/// An `Arc<Buf>` in effect, without an allocation of its own: a block's users are counted beside its slot. Blocks come
/// and go in different threads by the hundred thousand, and in the general allocator they would contend for a lock.
pub struct Page {
    start: NonNull<u8>,
    len: usize,
    users: NonNull<AtomicU32>,
}

// SAFETY: only the last user changes the bytes, all others read them; users are counted atomically.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

/// The number of users beyond which the count might overflow: a leak of pages, which must not become a use after free.
const USERS_MAX: u32 = u32::MAX / 2;

impl Page {
    fn users(&self) -> &AtomicU32 {
        // SAFETY: the count lives as long as the page's memory, of which we are a user.
        unsafe { self.users.as_ref() }
    }

    /// Returns the bytes for writing; `None` if the page has other users.
    pub fn get_mut(&mut self) -> Option<&mut [u8]> {
        // Acquire: everything that former users did before they dropped the page has happened.
        if self.users().load(Ordering::Acquire) != 1 {
            return None;
        }
        // SAFETY: we are the only user and borrowed exclusively, so none can come.
        Some(unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) })
    }

    /// Returns the bytes for writing; a page with other users is replaced by a copy first.
    pub fn make_mut(&mut self) -> &mut [u8] {
        if self.get_mut().is_none() {
            *self = Buf::copy_of(self).freeze();
        }
        self.get_mut().expect("a copy that nobody knows")
    }
}

impl From<Buf> for Page {
    fn from(buf: Buf) -> Page {
        let buf = std::mem::ManuallyDrop::new(buf);
        let (start, len) = (buf.start, buf.len);
        let users = if slab::holds(len) {
            // SAFETY: a slot that is ours.
            let users = unsafe { slab::users(start, len) };
            // SAFETY: counts live as long as their slots.
            unsafe { users.as_ref() }.store(1, Ordering::Relaxed);
            users
        } else {
            NonNull::from(Box::leak(Box::new(AtomicU32::new(1))))
        };
        Page { start, len, users }
    }
}

impl Clone for Page {
    fn clone(&self) -> Page {
        // Relaxed: the caller already holds a reference to the page.
        let before = self.users().fetch_add(1, Ordering::Relaxed);
        assert!(before < USERS_MAX, "a page has {before} users");
        Page { ..*self }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        if self.users().fetch_sub(1, Ordering::Release) != 1 {
            return;
        }
        // Everything that other users did with the page happens before its memory is used again.
        fence(Ordering::Acquire);
        if !slab::holds(self.len) {
            // SAFETY: made by `From<Buf>` for this page, whose last user we are.
            drop(unsafe { Box::from_raw(self.users.as_ptr()) });
        }
        drop(Buf { start: self.start, len: self.len });
    }
}

impl Deref for Page {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `start` points to `len` initialised bytes that do not change while there is more than one user, and
        // that a sole user changes through `&mut self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl std::fmt::Debug for Page {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Page({} bytes)", self.len)
    }
}

/// Returns memory that no buffer uses to the kernel: the free slots of the slabs.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_shared_until_it_is_changed() {
        for len in [512, 4096, 5000] {
            let mut page = Buf::copy_of(&vec![7; len]).freeze();
            assert_eq!(page.get_mut().map(|bytes| bytes.len()), Some(len));
            let other = page.clone();
            assert!(page.get_mut().is_none());
            page.make_mut()[0] = 9;
            assert_eq!((page[0], other[0], page[1], other.len()), (9, 7, 7, len));
            drop(other);
            let before = page.as_ptr();
            page.make_mut()[1] = 8;
            assert_eq!((page.as_ptr(), page[1]), (before, 8));
        }
    }

    #[test]
    fn pages_that_threads_share_are_given_back_once() {
        let pages: Vec<Page> = (0..64).map(|i| Buf::copy_of(&[i; 2048]).freeze()).collect();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let mine = pages.clone();
                scope.spawn(move || {
                    for (i, page) in mine.into_iter().enumerate() {
                        let again = page.clone();
                        drop(page);
                        assert!(again.iter().all(|&byte| usize::from(byte) == i));
                    }
                });
            }
        });
        let mut pages = pages;
        assert!(pages.iter_mut().all(|page| page.get_mut().is_some()));
        let starts: std::collections::BTreeSet<_> = pages.iter().map(|page| page.as_ptr()).collect();
        assert_eq!(starts.len(), 64);
    }

    #[test]
    fn zeroed_memory_is_zero_also_when_it_was_used_before() {
        for len in [1024, 4096, 3000] {
            drop(Buf::copy_of(&vec![5; len]));
            assert!(Buf::zeroed(len).iter().all(|&byte| byte == 0));
        }
    }
}
