//! Transfers between memory and the host, aligned or not.

use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use moafs_runtime::Rt;
use moafs_runtime::lock::Mutex;
use rustix::fs::FallocateFlags;
use rustix::io::{Errno, ReadWriteFlags};
use smallvec::SmallVec;

use super::ring::{Flight, Rings, SEGMENTS_MAX, Transfer};
use crate::{Buf, Limits, Op, Page, ReadPart, Request};

/// Bytes in one write where zeroes have to be written out.
const ZEROES_BYTES: usize = 256 << 10;

/// An open file or device with its alignment and size.
pub(super) struct Handle {
    fd: OwnedFd,
    is_device: bool,
    direct: bool,
    io_align: usize,
    /// Length in bytes when opened. It stays constant: images are not expected to grow while open.
    bytes: u64,
    /// Held by read-modify-write of parts of alignment units: two of them may write different sectors of one unit.
    /// Writes of whole units do not need it: another write to the same unit would overlap them, which is a bug in the
    /// caller. `None` where every sector is aligned.
    unit: Option<Mutex<()>>,
    rings: Arc<Rings>,
}

/// A batch whose transfers are at the device.
pub(super) struct Started {
    /// Dropped first: then the kernel no longer uses the memory of the batch.
    flight: Flight,
    batch: Vec<Request>,
}

impl Started {
    /// Waits until the batch has ended; returns each request and whether it is done.
    pub(super) fn finish(self) -> impl Iterator<Item = (Request, bool)> {
        let done = self.flight.land();
        self.batch.into_iter().zip(done)
    }
}

impl Handle {
    pub(super) fn new(fd: OwnedFd, rt: &Rt, is_device: bool, direct: bool, io_align: usize, bytes: u64) -> Handle {
        let unit = (direct && io_align > crate::SECTOR).then(|| Mutex::new(Rt::clone(rt), ()));
        Handle { fd, is_device, direct, io_align, bytes, unit, rings: Arc::default() }
    }

    pub(super) fn is_direct(&self) -> bool {
        self.direct
    }

    /// Starts the transfers of a batch, all of them at the device at once. Buffered transfers and single ones gain
    /// nothing from it: `Err` returns such a batch.
    pub(super) fn start(&self, mut batch: Vec<Request>, limits: &Limits) -> Result<Started, Vec<Request>> {
        if !self.direct || batch.len() < 2 {
            return Err(batch);
        }
        let eligible = |request: &Request| limits.check(request).is_ok() && self.fits_request(request);
        let chosen = batch.iter_mut().enumerate().filter(|(_, request)| eligible(request));
        let transfers = chosen.filter_map(|(i, request)| Transfer::of_request(i, request)).collect();
        // SAFETY: `Started` owns the batch and drops the flight before it; the descriptor is dropped after all batches,
        // see `FileDisk`.
        match unsafe { Flight::start(&self.rings, self.fd.as_fd(), transfers, batch.len()) } {
            Some(flight) => Ok(Started { flight, batch }),
            None => Err(batch),
        }
    }

    /// Reads into the caller's memory; returns which parts are done.
    pub(super) fn overlap_parts(&self, parts: &mut [ReadPart<'_>]) -> Vec<bool> {
        let fits = |part: &ReadPart<'_>| self.fits(part.at.byte(), std::iter::once(&*part.into));
        let chosen = parts.iter_mut().enumerate().filter(|(_, part)| self.direct && fits(part));
        let transfers = chosen.filter_map(|(i, part)| Transfer::of_part(i, part)).collect();
        // SAFETY: the flight ends in this function, which borrows the parts exclusively until then.
        let flight = unsafe { Flight::start(&self.rings, self.fd.as_fd(), transfers, parts.len()) };
        flight.map_or_else(|| vec![false; parts.len()], Flight::land)
    }

    fn fits_request(&self, request: &Request) -> bool {
        let offset = request.at.byte();
        match &request.op {
            Op::Read { into } => self.fits(offset, into.iter().map(|b| &**b)),
            Op::Write { data, .. } => self.fits(offset, data.iter().map(|p| &**p)),
            Op::Discard { .. } | Op::WriteZeroes { .. } => false,
        }
    }

    /// Fills the buffers in order.
    pub(super) fn read(&self, offset: u64, into: &mut [Buf]) -> Result<(), Errno> {
        if self.fits(offset, into.iter().map(|b| &**b)) {
            return self.read_vectored(offset, into);
        }
        let len: usize = into.iter().map(|b| b.len()).sum();
        let (bounce, within) = self.read_around(offset, len)?;
        let mut from = &bounce[within];
        for buf in into {
            let (head, rest) = from.split_at(buf.len());
            buf.copy_from_slice(head);
            from = rest;
        }
        Ok(())
    }

    /// Fills memory that is not a [`Buf`].
    pub(super) fn read_slice(&self, offset: u64, into: &mut [u8]) -> Result<(), Errno> {
        if self.fits(offset, std::iter::once(&*into)) {
            return self.read_whole(offset, into);
        }
        let (bounce, within) = self.read_around(offset, into.len())?;
        into.copy_from_slice(&bounce[within]);
        Ok(())
    }

    fn read_whole(&self, mut offset: u64, mut into: &mut [u8]) -> Result<(), Errno> {
        while !into.is_empty() {
            let got = retry(|| rustix::io::pread(&self.fd, &mut *into, offset))?;
            if got == 0 {
                // The image is shorter than it was when opened.
                return Err(Errno::IO);
            }
            offset += got as u64;
            into = &mut into[got..];
        }
        Ok(())
    }

    /// Writes the pages in order; with `fua` they are durable afterwards.
    pub(super) fn write(&self, offset: u64, data: &[Page], fua: bool) -> Result<(), Errno> {
        let whole_units = self.is_aligned(offset, data.iter().map(|p| p.len()).sum());
        if !whole_units {
            return self.write_parts_of_units(offset, data, fua);
        }
        if self.fits(offset, data.iter().map(|p| &**p)) {
            let slices: SmallVec<[&[u8]; 32]> = data.iter().map(|p| &**p).collect();
            return self.write_vectored(offset, &slices, fua);
        }
        self.write_vectored(offset, &[&gathered(data)], fua)
    }

    /// Writes units that are covered in part by read-modify-write.
    fn write_parts_of_units(&self, offset: u64, data: &[Page], fua: bool) -> Result<(), Errno> {
        let _exclusive = self.unit.as_ref().map(Mutex::lock);
        let len = data.iter().map(|p| p.len()).sum();
        let (mut bounce, within) = self.read_around(offset, len)?;
        let start = offset - within.start as u64;
        bounce[within].copy_from_slice(&gathered(data));
        self.write_vectored(start, &[&bounce], fua)?;
        self.trim_overhang(start + bounce.len() as u64)
    }

    /// Cuts off the bytes that an aligned write added behind the end of an image of odd length.
    fn trim_overhang(&self, written_to: u64) -> Result<(), Errno> {
        if self.is_device || written_to <= self.bytes {
            return Ok(());
        }
        rustix::fs::ftruncate(&self.fd, self.bytes)
    }

    /// Reads the whole units around a range; returns the range's position in them.
    fn read_around(&self, offset: u64, len: usize) -> Result<(Buf, Range<usize>), Errno> {
        let align = self.io_align as u64;
        let start = offset - offset % align;
        let within = (offset - start) as usize;
        let mut bounce = Buf::zeroed((within + len).next_multiple_of(self.io_align));
        let mut filled = 0;
        while filled < within + len {
            let got = retry(|| rustix::io::pread(&self.fd, &mut bounce[filled..], start + filled as u64))?;
            if got == 0 {
                return Err(Errno::IO);
            }
            filled += got;
        }
        Ok((bounce, within..within + len))
    }

    fn read_vectored(&self, mut offset: u64, into: &mut [Buf]) -> Result<(), Errno> {
        for group in into.chunks_mut(SEGMENTS_MAX) {
            let mut slices: SmallVec<[IoSliceMut<'_>; 32]> = group.iter_mut().map(|b| IoSliceMut::new(b)).collect();
            let mut slices = &mut slices[..];
            IoSliceMut::advance_slices(&mut slices, 0);
            while !slices.is_empty() {
                let got = retry(|| rustix::io::preadv(&self.fd, slices, offset))?;
                if got == 0 {
                    // The image is shorter than it was when opened.
                    return Err(Errno::IO);
                }
                offset += got as u64;
                IoSliceMut::advance_slices(&mut slices, got);
            }
        }
        Ok(())
    }

    fn write_vectored(&self, mut offset: u64, data: &[&[u8]], fua: bool) -> Result<(), Errno> {
        let flags = if fua { ReadWriteFlags::DSYNC } else { ReadWriteFlags::empty() };
        for group in data.chunks(SEGMENTS_MAX) {
            let mut slices: SmallVec<[IoSlice<'_>; 32]> = group.iter().map(|b| IoSlice::new(b)).collect();
            let mut slices = &mut slices[..];
            IoSlice::advance_slices(&mut slices, 0);
            while !slices.is_empty() {
                let put = retry(|| rustix::io::pwritev2(&self.fd, slices, offset, flags))?;
                if put == 0 {
                    return Err(Errno::IO);
                }
                offset += put as u64;
                IoSlice::advance_slices(&mut slices, put);
            }
        }
        Ok(())
    }

    /// Tells the host that the contents are no longer needed. A hint: a host that cannot discard is
    /// no error.
    pub(super) fn discard(&self, offset: u64, bytes: u64) -> Result<(), Errno> {
        if bytes == 0 {
            return Ok(());
        }
        let result = if self.is_device {
            ioctl::discard(self.fd.as_fd(), offset, bytes)
        } else {
            self.fallocate(FallocateFlags::PUNCH_HOLE, offset, bytes)
        };
        match result {
            Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => Ok(()),
            other => other,
        }
    }

    /// Makes a range read as zeros, by the cheapest way the host has.
    pub(super) fn write_zeroes(&self, offset: u64, bytes: u64) -> Result<(), Errno> {
        if bytes == 0 {
            return Ok(());
        }
        match self.command_zeroes(offset, bytes) {
            Err(Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => self.write_out_zeroes(offset, bytes),
            other => other,
        }
    }

    fn command_zeroes(&self, offset: u64, bytes: u64) -> Result<(), Errno> {
        // The host reads and modifies units that are covered in part: keep this process's
        // read-modify-write away from them.
        let _exclusive = self.unit.as_ref().map(Mutex::lock);
        if self.is_device {
            ioctl::write_zeroes(self.fd.as_fd(), offset, bytes)
        } else {
            // A hole reads as zeros and costs the host nothing; ZERO_RANGE would allocate.
            self.fallocate(FallocateFlags::PUNCH_HOLE, offset, bytes)
        }
    }

    /// Writes the zeroes themselves, for hosts that have no command for it.
    pub(super) fn write_out_zeroes(&self, offset: u64, bytes: u64) -> Result<(), Errno> {
        let (mut at, end) = (offset, offset + bytes);
        let zeroes = Buf::zeroed(ZEROES_BYTES).freeze();
        while at < end {
            // Short first and last pieces keep the middle aligned.
            let to_border = ZEROES_BYTES as u64 - at % ZEROES_BYTES as u64;
            let len = to_border.min(end - at);
            let piece = match len as usize {
                ZEROES_BYTES => Page::clone(&zeroes),
                short => Buf::zeroed(short).freeze(),
            };
            self.write(at, &[piece], false)?;
            at += len;
        }
        Ok(())
    }

    pub(super) fn flush(&self) -> Result<(), Errno> {
        retry(|| rustix::fs::fdatasync(&self.fd))
    }

    fn fallocate(&self, mode: FallocateFlags, offset: u64, bytes: u64) -> Result<(), Errno> {
        retry(|| rustix::fs::fallocate(&self.fd, mode | FallocateFlags::KEEP_SIZE, offset, bytes))
    }

    fn is_aligned(&self, offset: u64, len: usize) -> bool {
        !self.direct || (offset.is_multiple_of(self.io_align as u64) && len.is_multiple_of(self.io_align))
    }

    /// Returns true if the host takes these pieces as they are.
    fn fits<'a>(&self, offset: u64, mut pieces: impl Iterator<Item = &'a [u8]>) -> bool {
        if !self.direct {
            return true;
        }
        self.is_aligned(offset, 0)
            && pieces.all(|p| p.len() % self.io_align == 0 && p.as_ptr().addr() % self.io_align == 0)
    }
}

/// Copies all pages into one aligned buffer.
fn gathered(data: &[Page]) -> Buf {
    let mut whole = Buf::scratch(data.iter().map(|p| p.len()).sum());
    let mut at = 0;
    for page in data {
        whole[at..at + page.len()].copy_from_slice(page);
        at += page.len();
    }
    whole
}

fn retry<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

/// Block device commands that have no safe wrapper.
pub(super) mod ioctl {
    use std::os::fd::{AsRawFd, BorrowedFd};

    use rustix::io::Errno;

    // Numbers of linux/fs.h, `_IO(0x12, n)`: the same on all architectures of Linux but alpha,
    // mips, parisc, powerpc and sparc, where `_IO` has its direction bits elsewhere.
    const BLKROGET: libc::Ioctl = 0x125e;
    const BLKSSZGET: libc::Ioctl = 0x1268;
    const BLKDISCARD: libc::Ioctl = 0x1277;
    const BLKZEROOUT: libc::Ioctl = 0x127f;

    /// Returns true if the device takes no writes.
    pub(in super::super) fn is_write_protected(fd: BorrowedFd<'_>) -> Result<bool, Errno> {
        Ok(int(fd, BLKROGET)? != 0)
    }

    /// Returns the device's logical block size in bytes.
    pub(in super::super) fn logical_block_bytes(fd: BorrowedFd<'_>) -> Result<u32, Errno> {
        u32::try_from(int(fd, BLKSSZGET)?).map_err(|_| Errno::INVAL)
    }

    /// Returns the number that a command stores.
    fn int(fd: BorrowedFd<'_>, command: libc::Ioctl) -> Result<libc::c_int, Errno> {
        let mut number: libc::c_int = 0;
        // SAFETY: the command stores one int at the pointer.
        checked(unsafe { libc::ioctl(fd.as_raw_fd(), command, &raw mut number) })?;
        Ok(number)
    }

    pub(super) fn discard(fd: BorrowedFd<'_>, offset: u64, bytes: u64) -> Result<(), Errno> {
        range(fd, BLKDISCARD, offset, bytes)
    }

    pub(super) fn write_zeroes(fd: BorrowedFd<'_>, offset: u64, bytes: u64) -> Result<(), Errno> {
        range(fd, BLKZEROOUT, offset, bytes)
    }

    fn range(fd: BorrowedFd<'_>, command: libc::Ioctl, offset: u64, bytes: u64) -> Result<(), Errno> {
        let range = [offset, bytes];
        // SAFETY: the command reads two u64 at the pointer.
        checked(unsafe { libc::ioctl(fd.as_raw_fd(), command, range.as_ptr()) })
    }

    fn checked(result: libc::c_int) -> Result<(), Errno> {
        if result < 0 {
            Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
        } else {
            Ok(())
        }
    }
}
