//! A region's memory: a memory file, its mapping, and the userfaultfd that watches the mapping.
//!
//! The program sees the mapping, the pager the file. So a page can be taken from the program (unmapped: every touch
//! stops at the userfaultfd) while its contents stay where the pager reads them with plain `pread`: no thread can write
//! to a page that is on its way out.

use std::io::IoSliceMut;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;

use moafs_disk::{Buf, Page};
use rustix::fs::{FallocateFlags, MemfdFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};

use super::error::RegionError;
use super::error::host;
use super::uffd::{Fault, Scope, Span, Userfaultfd};
use crate::page::{PAGE_BYTES, PageNo};

/// A run of consecutive pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PageRun {
    pub(super) first: PageNo,
    pub(super) count: u32,
}

impl PageRun {
    pub(super) fn one(page: PageNo) -> PageRun {
        PageRun { first: page, count: 1 }
    }

    pub(super) fn pages(self) -> impl Iterator<Item = PageNo> {
        (self.first.0..self.first.0 + self.count).map(PageNo)
    }

    fn bytes(self) -> usize {
        self.count as usize * PAGE_BYTES
    }

    fn offset(self) -> u64 {
        u64::from(self.first.0) * PAGE_BYTES as u64
    }

    /// Returns the fewest runs that hold these pages, each of which is listed once.
    pub(super) fn of(mut pages: Vec<PageNo>) -> Vec<PageRun> {
        pages.sort_unstable();
        let follows = |a: &PageNo, b: &PageNo| a.0 + 1 == b.0;
        pages.chunk_by(follows).map(|run| PageRun { first: run[0], count: run.len() as u32 }).collect()
    }
}

/// The program's mapping of the file.
struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: an address range that belongs to the owner of this value, in any thread.
unsafe impl Send for Mapping {}
// SAFETY: as above; a shared mapping gives out no access by itself.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(file: &OwnedFd, len: usize) -> Result<Mapping, Errno> {
        // Under mlockall(MCL_FUTURE) the kernel brings every page in at once that may be touched: none may until it is
        // unlocked.
        // SAFETY: at an address of the kernel's choice, over nothing that exists.
        let at = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, ProtFlags::empty(), MapFlags::SHARED, file, 0) }?;
        let start = NonNull::new(at.cast()).ok_or(Errno::NOMEM)?;
        let mapping = Mapping { start, len };
        // SAFETY: the range just mapped.
        unsafe { rustix::mm::munlock(at, len) }?;
        // SAFETY: as above; no other code knows the range yet.
        unsafe { rustix::mm::mprotect(at, len, MprotectFlags::READ | MprotectFlags::WRITE) }?;
        // No handler would answer a child's faults; a core file would contain all pages that are out.
        mapping.advise(mapping.span(), Advice::LinuxDontFork)?;
        mapping.advise(mapping.span(), Advice::LinuxDontDump)?;
        Ok(mapping)
    }

    fn span(&self) -> Span {
        Span { start: self.start.as_ptr() as usize, len: self.len }
    }

    fn part(&self, run: PageRun) -> Span {
        debug_assert!(run.offset() as usize + run.bytes() <= self.len, "{run:?} beyond {} bytes", self.len);
        Span { start: self.start.as_ptr() as usize + run.offset() as usize, len: run.bytes() }
    }

    fn advise(&self, span: Span, advice: Advice) -> Result<(), Errno> {
        // SAFETY: within our mapping; none of the advice used changes the contents that the program sees: the file
        // keeps them.
        unsafe { rustix::mm::madvise(span.start as *mut _, span.len, advice) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this value, and borrows of it were borrows of its owner.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "munmap: {unmapped:?}");
    }
}

/// The memory of a region. No page is present at first.
pub(super) struct Memory {
    mapping: Mapping,
    file: OwnedFd,
    pub(super) uffd: Userfaultfd,
}

impl Memory {
    pub(super) fn new(pages: u32, scope: Scope) -> Result<Memory, RegionError> {
        let uffd = Userfaultfd::open(scope)?;
        let bytes = u64::from(pages) * PAGE_BYTES as u64;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::NOEXEC_SEAL;
        let file = rustix::fs::memfd_create("moafs-region", flags).map_err(host("making a memory file"))?;
        rustix::fs::ftruncate(&file, bytes).map_err(host("sizing the memory file"))?;
        let len = usize::try_from(bytes).map_err(|_| host("mapping the memory file")(Errno::NOMEM))?;
        let mapping = Mapping::new(&file, len).map_err(host("mapping the memory file"))?;
        uffd.register(mapping.span()).map_err(host("registering the mapping"))?;
        Ok(Memory { mapping, file, uffd })
    }

    pub(super) fn start(&self) -> NonNull<u8> {
        self.mapping.start
    }

    pub(super) fn len(&self) -> usize {
        self.mapping.len
    }

    /// Returns the page of a fault.
    pub(super) fn page_of(&self, fault: Fault) -> PageNo {
        PageNo(((fault.address - self.mapping.span().start) / PAGE_BYTES) as u32)
    }

    /// Maps a page that is present, and wakes the threads that wait for it.
    pub(super) fn map(&self, page: PageNo, writable: bool) -> Result<(), Errno> {
        self.uffd.map(self.mapping.part(PageRun::one(page)), writable)
    }

    /// Allows writes to a mapped page.
    pub(super) fn allow_writes(&self, page: PageNo) -> Result<(), Errno> {
        self.uffd.allow_writes(self.mapping.part(PageRun::one(page)))
    }

    pub(super) fn wake(&self, page: PageNo) -> Result<(), Errno> {
        self.uffd.wake(self.mapping.part(PageRun::one(page)))
    }

    pub(super) fn poison(&self, page: PageNo) -> Result<(), Errno> {
        self.uffd.poison(self.mapping.part(PageRun::one(page)))
    }

    /// Unmaps pages from the program; the file keeps their contents. When this returns, no processor can write to them
    /// any more. A poisoned page loses its poison.
    pub(super) fn unmap(&self, run: PageRun) -> Result<(), Errno> {
        self.mapping.advise(self.mapping.part(run), Advice::LinuxDontNeed)
    }

    /// Reads the contents of present pages.
    pub(super) fn read(&self, run: PageRun) -> Result<Vec<(PageNo, Page)>, Errno> {
        let mut bufs: Vec<Buf> = run.pages().map(|_| Buf::scratch(PAGE_BYTES)).collect();
        let mut parts: Vec<IoSliceMut<'_>> = bufs.iter_mut().map(|buf| IoSliceMut::new(buf)).collect();
        let read = rustix::io::retry_on_intr(|| rustix::io::preadv(&self.file, &mut parts, run.offset()))?;
        // A short read means that the file is too short.
        if read != run.bytes() {
            return Err(Errno::IO);
        }
        Ok(run.pages().zip(bufs.into_iter().map(Buf::freeze)).collect())
    }

    /// Makes an absent page present with the given contents.
    pub(super) fn write(&self, page: PageNo, contents: &[u8]) -> Result<(), Errno> {
        let at = PageRun::one(page).offset();
        let written = rustix::io::retry_on_intr(|| rustix::io::pwrite(&self.file, contents, at))?;
        if written == PAGE_BYTES { Ok(()) } else { Err(Errno::NOSPC) }
    }

    /// Makes unmapped pages absent: their memory is returned to the host.
    pub(super) fn drop_contents(&self, run: PageRun) -> Result<(), Errno> {
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&self.file, hole, run.offset(), run.bytes() as u64)
    }
}
