//! Page-aligned memory of fixed size for requests and replies. In a ring the kernel reads and writes it.

use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// Pages from mmap(2): aligned for direct I/O, zero at first, untouched pages cost nothing.
#[derive(Debug)]
pub(crate) struct PageBuffer {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory is owned and has no thread affinity.
unsafe impl Send for PageBuffer {}

impl PageBuffer {
    /// Maps `len` bytes, rounded up to whole pages.
    pub(crate) fn new(len: usize) -> io::Result<Self> {
        let len = len.max(1).next_multiple_of(page_size());
        // SAFETY: a fresh anonymous mapping touches no existing memory.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, len })
    }

    /// Returns the start of the memory, for the kernel.
    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }
}

impl Deref for PageBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `len` mapped, initialised bytes, owned by `self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for PageBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for PageBuffer {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`; nothing borrows it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// Returns the bytes of a page of this machine.
pub(crate) fn page_size() -> usize {
    // SAFETY: sysconf has no preconditions.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(4096)
}
