//! Opening: options, the lock against a second user, alignment and size.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use moafs_runtime::Rt;
use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, SeekFrom, Statx, StatxFlags};
use rustix::io::Errno;

use super::ring::SEGMENTS_MAX;
use super::transfer::{Handle, ioctl};
use crate::error::reason;
use crate::{DiskError, Limits, SECTOR, buf};

/// Mode of new image files: read access to an image gives access to every file in it, and to its
/// lock.
const IMAGE_MODE: Mode = Mode::from_raw_mode(0o600);

/// The choice between direct I/O and the host's page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Direct {
    /// Direct I/O where the host can.
    #[default]
    Auto,
    /// Direct I/O; opening fails where the host cannot.
    Always,
    /// Through the page cache: for images on hosts where direct I/O is slow.
    Never,
}

/// The other programs that may have the image or device open (among those that take the lock).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sharing {
    /// No other program: for everything that writes, and for mounts.
    #[default]
    Exclusive,
    /// Other readers: for tools that do not write.
    Readers,
    /// Any program: the caller excludes others in another way.
    Anybody,
}

/// Options for opening an image or device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileOptions {
    /// True to refuse writes.
    pub read_only: bool,
    /// The choice between direct I/O and the host's page cache.
    pub direct: Direct,
    /// The advisory lock to take.
    pub lock: Sharing,
    /// Open block devices with `O_EXCL`: fails while the kernel has them mounted, and keeps the
    /// kernel from mounting them. Off where the kernel will claim the device for this very mount
    /// (fuseblk).
    pub claim_device: bool,
    /// The largest request in bytes: [`Limits::transfer_bytes_max`].
    pub transfer_bytes_max: usize,
}

impl Default for FileOptions {
    fn default() -> Self {
        FileOptions {
            read_only: false,
            direct: Direct::Auto,
            lock: Sharing::Exclusive,
            claim_device: true,
            transfer_bytes_max: 1 << 20,
        }
    }
}

impl FileOptions {
    /// Makes options for tools that do not write: read-only, the lock shared with other readers.
    pub fn reader() -> FileOptions {
        FileOptions { read_only: true, lock: Sharing::Readers, claim_device: false, ..FileOptions::default() }
    }
}

pub(super) fn open(path: &Path, rt: &Rt, options: &FileOptions) -> Result<(Handle, Limits), DiskError> {
    let stat = stat(path)?;
    let is_device = match FileType::from_raw_mode(u32::from(stat.stx_mode)) {
        FileType::BlockDevice => true,
        FileType::RegularFile => false,
        FileType::Directory => return Err(open_error(path, Errno::ISDIR)),
        _ => return Err(open_error(path, Errno::NOTBLK)),
    };
    let mut flags = OFlags::CLOEXEC | if options.read_only { OFlags::RDONLY } else { OFlags::RDWR };
    if is_device && options.claim_device {
        flags |= OFlags::EXCL;
    }
    let (fd, direct) = open_direct(path, flags, options.direct, &stat)?;
    // The kernel opens a write-protected device for writing as well, and refuses each write.
    if is_device && !options.read_only && ioctl::is_write_protected(fd.as_fd()).map_err(|e| open_error(path, e))? {
        return Err(open_error(path, Errno::ROFS));
    }
    finish(path, rt, options, (fd, direct), is_device, &stat)
}

pub(super) fn create(path: &Path, bytes: u64, rt: &Rt, options: &FileOptions) -> Result<(Handle, Limits), DiskError> {
    let fail = |e| open_error(path, e);
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
    let made = rustix::fs::open(path, flags, IMAGE_MODE).map_err(fail)?;
    let sized = rustix::fs::ftruncate(&made, bytes).map_err(fail);
    drop(made);
    let opened = sized.and_then(|()| open(path, rt, options));
    if opened.is_err() {
        // The incomplete image is of no use; the error that made it incomplete matters more than
        // one from here.
        let _ = std::fs::remove_file(path);
    }
    opened
}

fn finish(
    path: &Path,
    rt: &Rt,
    options: &FileOptions,
    (fd, direct): (OwnedFd, bool),
    is_device: bool,
    stat: &Statx,
) -> Result<(Handle, Limits), DiskError> {
    lock(path, &fd, options.lock)?;
    let fail = |e| open_error(path, e);
    let bytes = rustix::fs::seek(&fd, SeekFrom::End(0)).map_err(fail)?;
    let io_align = if direct { direct_align(&fd, is_device, stat).map_err(fail)? } else { SECTOR };
    let limits = Limits {
        sectors: bytes / SECTOR as u64,
        io_align,
        transfer_bytes_max: options.transfer_bytes_max.max(io_align),
        segments_max: SEGMENTS_MAX,
        volatile_cache: true,
        fua: true,
        discard: !is_device || device_discards(stat),
        read_only: options.read_only,
    };
    Ok((Handle::new(fd, rt, is_device, direct, io_align, bytes), limits))
}

fn stat(path: &Path) -> Result<Statx, DiskError> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::DIOALIGN;
    rustix::fs::statx(rustix::fs::CWD, path, AtFlags::empty(), wanted).map_err(|e| open_error(path, e))
}

/// Opens with `O_DIRECT` if wanted and possible; returns whether it did.
fn open_direct(path: &Path, flags: OFlags, direct: Direct, stat: &Statx) -> Result<(OwnedFd, bool), DiskError> {
    let open = |flags| rustix::fs::open(path, flags, Mode::empty());
    let says_no = stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0 && stat.stx_dio_offset_align == 0;
    if direct == Direct::Never || (direct == Direct::Auto && says_no) {
        return open(flags).map(|fd| (fd, false)).map_err(|e| open_error(path, e));
    }
    match open(flags | OFlags::DIRECT) {
        Ok(fd) => Ok((fd, true)),
        Err(Errno::INVAL) if direct == Direct::Auto => {
            open(flags).map(|fd| (fd, false)).map_err(|e| open_error(path, e))
        }
        Err(e) => Err(open_error(path, e)),
    }
}

/// Returns the unit of direct I/O in bytes.
fn direct_align(fd: &OwnedFd, is_device: bool, stat: &Statx) -> Result<usize, Errno> {
    let align = if is_device {
        ioctl::logical_block_bytes(fd.as_fd())?
    } else if stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0 {
        stat.stx_dio_offset_align.max(stat.stx_dio_mem_align)
    } else {
        // Hosts before Linux 6.1 do not report it: use an alignment that suits every device.
        buf::ALIGN as u32
    };
    Ok((align as usize).next_power_of_two().max(SECTOR))
}

fn lock(path: &Path, fd: &OwnedFd, sharing: Sharing) -> Result<(), DiskError> {
    let operation = match sharing {
        Sharing::Exclusive => FlockOperation::NonBlockingLockExclusive,
        Sharing::Readers => FlockOperation::NonBlockingLockShared,
        Sharing::Anybody => return Ok(()),
    };
    rustix::fs::flock(fd, operation).map_err(|e| open_error(path, e))
}

/// Returns true if the block device reports that it can discard. Partitions find this in their
/// disk's sysfs folder.
fn device_discards(stat: &Statx) -> bool {
    let base = format!("/sys/dev/block/{}:{}", stat.stx_rdev_major, stat.stx_rdev_minor);
    ["queue", "../queue"].iter().any(|queue| {
        let bytes = std::fs::read_to_string(format!("{base}/{queue}/discard_max_bytes"));
        bytes.is_ok_and(|bytes| bytes.trim() != "0")
    })
}

fn open_error(path: &Path, errno: Errno) -> DiskError {
    let path = path.display().to_string();
    match errno {
        // BUSY: O_EXCL on a device that is mounted. WOULDBLOCK: another program holds the lock.
        Errno::BUSY | Errno::WOULDBLOCK => DiskError::Busy { path },
        other => DiskError::Open { path, errno: other.raw_os_error(), reason: reason(other.raw_os_error()) },
    }
}
