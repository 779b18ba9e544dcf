//! The only file of the swap's mount: maps bytes of the kernel's requests to pages.
//!
//! The kernel writes and reads whole pages of a swap; programs that read it as a disk (mkswap, blkid) may do otherwise.
//! Parts of pages are read, changed and written under one lock, which page-outs do not take.

use std::ops::Range;
use std::sync::Arc;

use moafs_disk::{Buf, Page};
use moafs_fuse::{
    AttrReply, Errno, FOREVER, FallocateMode, FileAttr, FileHandle, FileSystem, NodeId, ReqCtx, Result, SetAttr,
    StatFs, WriteFlags,
};
use moafs_swap::{PAGE_BYTES, PageNo, Swap, SwapError};
use moafs_vfs::api::Allocate;
use parking_lot::Mutex;

use crate::convert;
use crate::log::Log;
use crate::swap::readahead_cache::Beside;
use crate::swap::watch::Watch;

/// The largest request, in pages: 1 MiB.
pub(crate) const REQUEST_PAGES_MAX: usize = 256;

/// The store of pages.
pub(crate) trait Pages: Send + Sync + 'static {
    /// Writes pages, as [`Swap::page_out`].
    fn page_out(&self, pages: &[(PageNo, Page)]) -> Result<(), SwapError>;
    /// Reads pages, as [`Swap::page_in_with`].
    fn page_in_with(&self, page: PageNo, beside: u32, each: &mut dyn FnMut(PageNo, &[u8])) -> Result<(), SwapError>;
    /// Frees pages, as [`Swap::free`].
    fn free(&self, first: PageNo, count: u32);
}

impl Pages for Arc<Swap> {
    fn page_out(&self, pages: &[(PageNo, Page)]) -> Result<(), SwapError> {
        Swap::page_out(self, pages)
    }
    fn page_in_with(&self, page: PageNo, beside: u32, each: &mut dyn FnMut(PageNo, &[u8])) -> Result<(), SwapError> {
        Swap::page_in_with(self, page, beside, each)
    }
    fn free(&self, first: PageNo, count: u32) {
        Swap::free(self, first, count);
    }
}

/// Memory for the pages of one write.
type Batch = Vec<(PageNo, Page)>;

/// The file system of one file.
pub(crate) struct SwapFile<P: Pages> {
    pages: P,
    /// Size in bytes, whole pages.
    bytes: u64,
    beside: Beside,
    /// Unused batches, allocated beforehand: as many as there are serving threads.
    batches: Mutex<Vec<Batch>>,
    /// Held while a part of a page is changed.
    partly: Mutex<()>,
    watch: Arc<Watch>,
    log: Arc<Log>,
}

impl<P: Pages> SwapFile<P> {
    /// Creates a file of `count` pages, served by `threads` threads.
    pub(crate) fn new(pages: P, count: u32, threads: usize, watch: Arc<Watch>, log: Arc<Log>) -> SwapFile<P> {
        let batches = (0..threads).map(|_| new_batch()).collect();
        SwapFile {
            pages,
            bytes: u64::from(count) * PAGE_BYTES as u64,
            beside: Beside::new(),
            batches: Mutex::new(batches),
            partly: Mutex::new(()),
            watch,
            log,
        }
    }

    fn attr(&self) -> FileAttr {
        FileAttr {
            ino: NodeId::ROOT.0,
            size: self.bytes,
            blocks: self.bytes / 512,
            mode: libc::S_IFREG | 0o600,
            nlink: 1,
            blksize: PAGE_BYTES as u32,
            ..FileAttr::default()
        }
    }

    fn told<T>(&self, result: Result<T, SwapError>) -> Result<T> {
        result.map_err(|error| {
            self.log.failure(&format!("swap: {error}"));
            Errno::EIO
        })
    }

    /// Reads whole pages from `first` on.
    fn read_pages(&self, first: PageNo, out: &mut [u8]) -> Result<()> {
        let count = out.len() / PAGE_BYTES;
        let mut done = [false; REQUEST_PAGES_MAX];
        for index in 0..count {
            let page = PageNo(first.0 + index as u32);
            if done[index] || self.beside.take(page, &mut out[span(index)]) {
                continue;
            }
            let before = self.beside.now();
            let beside = ((count - index - 1) as u32).max(before.window);
            let read = self.pages.page_in_with(page, beside, &mut |came, bytes| {
                let wanted = came.0.checked_sub(first.0).map(|index| index as usize).filter(|index| *index < count);
                match wanted {
                    Some(index) if !done[index] => {
                        out[span(index)].copy_from_slice(bytes);
                        done[index] = true;
                    }
                    Some(_) => {}
                    None => self.beside.put(came, bytes, &before),
                }
            });
            self.told(read)?;
            if !done[index] {
                out[span(index)].fill(0);
            }
        }
        Ok(())
    }

    /// Writes whole pages from `first` on.
    fn write_pages(&self, first: PageNo, data: &[u8]) -> Result<()> {
        let taken = self.batches.lock().pop();
        let mut batch = taken.unwrap_or_else(new_batch);
        let count = data.len() / PAGE_BYTES;
        for ((page, bytes), (number, data)) in batch.iter_mut().zip((first.0..).zip(data.chunks_exact(PAGE_BYTES))) {
            *page = PageNo(number);
            bytes.make_mut().copy_from_slice(data);
        }
        let written = self.pages.page_out(&batch[..count]);
        self.batches.lock().push(batch);
        self.beside.changed(first, count as u32);
        self.told(written)
    }

    fn free_pages(&self, pages: Range<u32>) {
        if !pages.is_empty() {
            self.pages.free(PageNo(pages.start), pages.len() as u32);
            self.beside.changed(PageNo(pages.start), pages.len() as u32);
        }
    }

    /// Reads a page, changes a part of it, and writes it.
    fn change_part(&self, page: PageNo, change: impl FnOnce(&mut [u8])) -> Result<()> {
        let _alone = self.partly.lock();
        let mut bytes = Buf::scratch(PAGE_BYTES);
        self.read_pages(page, &mut bytes)?;
        change(&mut bytes);
        self.write_pages(page, &bytes)
    }
}

fn new_batch() -> Batch {
    // Zeroing makes the memory resident.
    (0..REQUEST_PAGES_MAX).map(|_| (PageNo(0), Buf::zeroed(PAGE_BYTES).freeze())).collect()
}

/// Returns the bytes of the page with this index in a request.
fn span(index: usize) -> Range<usize> {
    index * PAGE_BYTES..(index + 1) * PAGE_BYTES
}

/// A piece of a request: whole pages, or a part of one.
#[derive(Debug, PartialEq, Eq)]
enum RequestPart {
    /// First page and number of whole pages, at most [`REQUEST_PAGES_MAX`].
    Whole(PageNo, usize),
    /// Page and its bytes.
    Part(PageNo, Range<usize>),
}

impl RequestPart {
    /// Returns the first piece of `len` bytes, at least one, from `offset` on, all within the file.
    fn first(offset: u64, len: u64) -> RequestPart {
        let page = PageNo((offset / PAGE_BYTES as u64) as u32);
        let within = (offset % PAGE_BYTES as u64) as usize;
        let whole = usize::try_from(len / PAGE_BYTES as u64).unwrap_or(usize::MAX);
        if within == 0 && whole > 0 {
            return RequestPart::Whole(page, whole.min(REQUEST_PAGES_MAX));
        }
        let end = usize::try_from(len).unwrap_or(usize::MAX).saturating_add(within).min(PAGE_BYTES);
        RequestPart::Part(page, within..end)
    }

    fn bytes(&self) -> usize {
        match self {
            RequestPart::Whole(_, pages) => pages * PAGE_BYTES,
            RequestPart::Part(_, part) => part.len(),
        }
    }
}

impl<P: Pages> FileSystem for SwapFile<P> {
    fn getattr(&self, _: &ReqCtx, _: Option<FileHandle>) -> Result<AttrReply> {
        Ok(AttrReply { attr: self.attr(), attr_ttl: FOREVER })
    }

    /// Accepts a truncation to the size that the file has.
    fn setattr(&self, _: &ReqCtx, set: &SetAttr) -> Result<AttrReply> {
        let other = set.size.is_some_and(|size| size != self.bytes);
        if other || set.mode.is_some() || set.uid.is_some() || set.gid.is_some() {
            return Err(Errno::EPERM);
        }
        Ok(AttrReply { attr: self.attr(), attr_ttl: FOREVER })
    }

    fn read(&self, _: &ReqCtx, _: FileHandle, offset: u64, out: &mut [u8]) -> Result<usize> {
        let _watched = self.watch.begin();
        let len = self.bytes.saturating_sub(offset).min(out.len() as u64) as usize;
        let mut rest = &mut out[..len];
        let mut at = offset;
        while !rest.is_empty() {
            let piece = RequestPart::first(at, rest.len() as u64);
            let (here, after) = rest.split_at_mut(piece.bytes());
            at += here.len() as u64;
            match piece {
                RequestPart::Whole(first, _) => self.read_pages(first, here)?,
                RequestPart::Part(page, part) => {
                    let mut bytes = Buf::scratch(PAGE_BYTES);
                    self.read_pages(page, &mut bytes)?;
                    here.copy_from_slice(&bytes[part]);
                }
            }
            rest = after;
        }
        Ok(len)
    }

    fn write(&self, _: &ReqCtx, _: FileHandle, offset: u64, data: &[u8], _: WriteFlags) -> Result<usize> {
        let _watched = self.watch.begin();
        let len = self.bytes.saturating_sub(offset).min(data.len() as u64) as usize;
        if len == 0 && !data.is_empty() {
            return Err(Errno::ENOSPC);
        }
        let mut rest = &data[..len];
        let mut at = offset;
        while !rest.is_empty() {
            let piece = RequestPart::first(at, rest.len() as u64);
            let (here, after) = rest.split_at(piece.bytes());
            at += here.len() as u64;
            match piece {
                RequestPart::Whole(first, _) => self.write_pages(first, here)?,
                RequestPart::Part(page, part) => self.change_part(page, |bytes| bytes[part].copy_from_slice(here))?,
            }
            rest = after;
        }
        Ok(len)
    }

    /// Frees pages that a discard or a write of zeroes of the loop device covers.
    fn fallocate(&self, _: &ReqCtx, _: FileHandle, offset: u64, len: u64, mode: FallocateMode) -> Result<()> {
        let _watched = self.watch.begin();
        let end = offset.saturating_add(len);
        match convert::allocate(mode)? {
            // Room for every page is reserved already.
            Allocate::Extend | Allocate::KeepSize if end <= self.bytes => return Ok(()),
            Allocate::Extend | Allocate::KeepSize => return Err(Errno::EPERM),
            Allocate::Punch | Allocate::Zero { .. } => {}
        }
        let (mut at, end) = (offset, end.min(self.bytes));
        while at < end {
            let pages = at / PAGE_BYTES as u64..end / PAGE_BYTES as u64;
            if at.is_multiple_of(PAGE_BYTES as u64) && !pages.is_empty() {
                self.free_pages(pages.start as u32..pages.end as u32);
                at = pages.end * PAGE_BYTES as u64;
                continue;
            }
            let piece = RequestPart::first(at, end - at);
            at += piece.bytes() as u64;
            if let RequestPart::Part(page, part) = piece {
                self.change_part(page, |bytes| bytes[part].fill(0))?;
            }
        }
        Ok(())
    }

    /// Does nothing: paged-out memory need not survive the daemon.
    fn fsync(&self, _: &ReqCtx, _: FileHandle, _: bool) -> Result<()> {
        Ok(())
    }

    fn statfs(&self, _: &ReqCtx) -> Result<StatFs> {
        let size = PAGE_BYTES as u32;
        Ok(StatFs {
            bsize: size,
            frsize: size,
            namelen: 255,
            blocks: self.bytes / PAGE_BYTES as u64,
            ..StatFs::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// A store in memory; pages of one write are returned together at a read.
    #[derive(Default)]
    struct Fake {
        out: Mutex<BTreeMap<u32, (u64, Vec<u8>)>>,
        requests: Mutex<u64>,
    }

    impl Pages for Arc<Fake> {
        fn page_out(&self, pages: &[(PageNo, Page)]) -> Result<(), SwapError> {
            let mut requests = self.requests.lock();
            *requests += 1;
            for (page, bytes) in pages {
                self.out.lock().insert(page.0, (*requests, bytes.to_vec()));
            }
            Ok(())
        }
        fn page_in_with(&self, page: PageNo, n: u32, each: &mut dyn FnMut(PageNo, &[u8])) -> Result<(), SwapError> {
            let out = self.out.lock();
            let Some((request, bytes)) = out.get(&page.0) else { return Ok(()) };
            each(page, bytes);
            for (other, (left, bytes)) in out.range(page.0 + 1..).take(n as usize) {
                if left == request {
                    each(PageNo(*other), bytes);
                }
            }
            Ok(())
        }
        fn free(&self, first: PageNo, count: u32) {
            self.out.lock().retain(|page, _| !(first.0..first.0 + count).contains(page));
        }
    }

    const COUNT: u32 = 24;
    const SIZE: usize = COUNT as usize * PAGE_BYTES;

    fn file() -> (SwapFile<Arc<Fake>>, Arc<Fake>) {
        let fake = Arc::new(Fake::default());
        let log = Arc::new(Log::new("test"));
        (SwapFile::new(Arc::clone(&fake), COUNT, 1, Arc::new(Watch::new()), log), fake)
    }

    const CTX: ReqCtx = ReqCtx { unique: 1, node: NodeId::ROOT, uid: 0, gid: 0, pid: 1 };
    const FH: FileHandle = FileHandle(0);

    fn read(file: &SwapFile<Arc<Fake>>, offset: u64, len: usize) -> Vec<u8> {
        let mut out = vec![0xEE; len];
        let len = file.read(&CTX, FH, offset, &mut out).unwrap();
        out.truncate(len);
        out
    }

    fn write(file: &SwapFile<Arc<Fake>>, offset: u64, data: &[u8]) -> Result<usize> {
        file.write(&CTX, FH, offset, data, WriteFlags::empty())
    }

    #[derive(Debug, Clone)]
    enum Step {
        Write(usize, usize, u8),
        Read(usize, usize),
        Punch(usize, usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let range = || {
            let free = (0..SIZE + 5000, 0..40_000_usize);
            let aligned = (0..COUNT as usize + 2, 0..9_usize).prop_map(|(at, len)| (at * PAGE_BYTES, len * PAGE_BYTES));
            prop_oneof![free, aligned]
        };
        let step = prop_oneof![
            (range(), any::<u8>()).prop_map(|((at, len), byte)| Step::Write(at, len, byte)),
            range().prop_map(|(at, len)| Step::Read(at, len)),
            range().prop_map(|(at, len)| Step::Punch(at, len.max(1))),
        ];
        proptest::collection::vec(step, 1..40)
    }

    proptest! {
        #[test]
        fn it_is_a_file_of_fixed_size(steps in steps()) {
            let (file, _) = file();
            let mut model = vec![0_u8; SIZE];
            for step in steps {
                match step {
                    Step::Write(at, len, byte) => {
                        let data: Vec<u8> = (0..len).map(|i| byte.wrapping_add(i as u8)).collect();
                        let fits = len.min(SIZE.saturating_sub(at));
                        let expected = if fits == 0 && len > 0 { Err(Errno::ENOSPC) } else { Ok(fits) };
                        prop_assert_eq!(write(&file, at as u64, &data), expected);
                        if fits > 0 {
                            model[at..at + fits].copy_from_slice(&data[..fits]);
                        }
                    }
                    Step::Read(at, len) => {
                        let (from, to) = (at.min(SIZE), (at + len).min(SIZE));
                        prop_assert!(read(&file, at as u64, len) == model[from..to]);
                    }
                    Step::Punch(at, len) => {
                        let mode = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
                        prop_assert_eq!(file.fallocate(&CTX, FH, at as u64, len as u64, mode), Ok(()));
                        model[at.min(SIZE)..(at + len).min(SIZE)].fill(0);
                    }
                }
            }
            prop_assert!(read(&file, 0, SIZE + 1) == model);
        }
    }

    #[test]
    fn pages_of_a_write_leave_together_and_come_in_with_the_first() {
        let (file, fake) = file();
        let data: Vec<u8> = (0..8 * PAGE_BYTES).map(|i| (i / PAGE_BYTES) as u8 + 1).collect();
        write(&file, 0, &data).unwrap();
        assert_eq!((*fake.requests.lock(), fake.out.lock().len()), (1, 8));
        assert_eq!(read(&file, 0, PAGE_BYTES), vec![1; PAGE_BYTES]);
        // The other pages are cached already: they are found although the store loses them here.
        fake.out.lock().clear();
        assert_eq!(read(&file, PAGE_BYTES as u64, PAGE_BYTES), vec![2; PAGE_BYTES]);
        // A cached page that is written is read as written.
        write(&file, 2 * PAGE_BYTES as u64, &[9; PAGE_BYTES]).unwrap();
        assert_eq!(read(&file, 2 * PAGE_BYTES as u64, PAGE_BYTES), vec![9; PAGE_BYTES]);
    }

    #[test]
    fn whole_pages_that_are_punched_are_freed() {
        let (file, fake) = file();
        write(&file, 0, &vec![1; 4 * PAGE_BYTES]).unwrap();
        let mode = FallocateMode::PUNCH_HOLE | FallocateMode::KEEP_SIZE;
        file.fallocate(&CTX, FH, 100, 3 * PAGE_BYTES as u64, mode).unwrap();
        let out: Vec<u32> = fake.out.lock().keys().copied().collect();
        assert_eq!(out, [0, 3]);
        assert_eq!(file.fallocate(&CTX, FH, 0, u64::from(u32::MAX), FallocateMode::empty()), Err(Errno::EPERM));
        assert_eq!(file.fallocate(&CTX, FH, 0, 1, FallocateMode::COLLAPSE_RANGE), Err(Errno::EOPNOTSUPP));
    }
}
