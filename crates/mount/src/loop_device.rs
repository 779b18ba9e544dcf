//! Loop devices: block devices whose contents are an image file.

use std::fs::{File, OpenOptions};
use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::same_file::is_same_file;

/// Bytes of the sectors that the kernel counts partitions in.
const SECTOR: u64 = 512;

const LOOP_GET_STATUS64: libc::c_ulong = 0x4c05;
const LOOP_CONFIGURE: libc::c_ulong = 0x4c0a;
const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4c82;

const BLKROSET: libc::c_ulong = 0x125d;

const LO_FLAGS_READ_ONLY: u32 = 1;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
const LO_FLAGS_DIRECT_IO: u32 = 16;

/// Attempts to attach a free device: another process may take it between the question and the attachment.
const ATTEMPTS_MAX: usize = 16;

/// `struct loop_info64` of `<linux/loop.h>`.
#[repr(C)]
#[derive(Clone, Copy)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config` of `<linux/loop.h>`.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

const _: () = assert!(size_of::<LoopConfig>() == 304);

/// Settings of a loop device.
#[derive(Debug, Clone, Copy, Default)]
pub struct LoopOptions {
    /// Refuse writes.
    pub read_only: bool,
    /// Bypass the page cache of the file's file system, if it can do so.
    pub direct_io: bool,
    /// Sector size of the device in bytes; 0 is the usual 512.
    pub block_bytes: u32,
}

/// An attached loop device. It detaches itself at its last close: this value and a mount keep it open.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
    _open: File,
}

impl LoopDevice {
    /// Attaches a free loop device to `image`.
    ///
    /// # Errors
    /// Without root, without loop devices, or when the image cannot be opened.
    pub fn attach(image: &Path, read_only: bool) -> io::Result<LoopDevice> {
        let backing = OpenOptions::new().read(true).write(!read_only).open(image)?;
        LoopDevice::attach_open(&backing, image, &LoopOptions { read_only, ..LoopOptions::default() })
    }

    /// Attaches a free loop device to an open file with the path `image`, with settings.
    ///
    /// # Errors
    /// As [`LoopDevice::attach`].
    pub fn attach_open(backing: &File, image: &Path, options: &LoopOptions) -> io::Result<LoopDevice> {
        let read_only = options.read_only;
        let control = OpenOptions::new().read(true).write(true).open("/dev/loop-control")?;
        for _ in 0..ATTEMPTS_MAX {
            let number = ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE, 0)?;
            let path = PathBuf::from(format!("/dev/loop{number}"));
            let device = OpenOptions::new().read(true).write(!read_only).open(&path)?;
            match configure(&device, backing, image, options) {
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
                configured => return configured.map(|()| LoopDevice { path, _open: device }),
            }
        }
        Err(io::Error::from_raw_os_error(libc::EBUSY))
    }

    /// Returns the device's path, `/dev/loopN`.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn configure(device: &File, backing: &File, image: &Path, options: &LoopOptions) -> io::Result<()> {
    let mut file_name = [0; 64];
    let name = image.as_os_str().as_encoded_bytes();
    // The last byte stays zero. The kernel keeps the whole path elsewhere; this one is only displayed.
    let shown = name.len().min(file_name.len() - 1);
    file_name[..shown].copy_from_slice(&name[..shown]);
    let flag = |wanted: bool, flag: u32| if wanted { flag } else { 0 };
    let info = LoopInfo {
        device: 0,
        inode: 0,
        rdevice: 0,
        offset: 0,
        size_limit: 0,
        number: 0,
        encrypt_type: 0,
        encrypt_key_size: 0,
        flags: LO_FLAGS_AUTOCLEAR
            | flag(options.read_only, LO_FLAGS_READ_ONLY)
            | flag(options.direct_io, LO_FLAGS_DIRECT_IO),
        file_name,
        crypt_name: [0; 64],
        encrypt_key: [0; 32],
        init: [0; 2],
    };
    let fd = u32::try_from(backing.as_raw_fd()).expect("an open file's descriptor is not negative");
    let config = LoopConfig { fd, block_size: options.block_bytes, info, reserved: [0; 8] };
    ioctl(device.as_raw_fd(), LOOP_CONFIGURE, std::ptr::from_ref(&config) as usize)?;
    // `blockdev --setro` outlasts the image that it was meant for.
    if options.read_only { Ok(()) } else { set_read_only(device, false) }
}

/// Has the kernel refuse writes to a block device, or take them.
fn set_read_only(device: &File, read_only: bool) -> io::Result<()> {
    let value = libc::c_int::from(read_only);
    ioctl(device.as_raw_fd(), BLKROSET, std::ptr::from_ref(&value) as usize).map(drop)
}

fn ioctl(fd: RawFd, command: libc::c_ulong, argument: usize) -> io::Result<i32> {
    // SAFETY: the commands above take nothing, or a pointer to a `LoopConfig` or a number that the kernel only
    // reads, or to a `LoopInfo` that it fills; all of them live in the caller's frame.
    let result = unsafe { libc::ioctl(fd, command as _, argument) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Returns the path of the image behind a loop device.
pub fn backing_file(device: &Path) -> Option<PathBuf> {
    let name = device.file_name()?.to_str()?.strip_prefix("loop")?;
    let number: u32 = name.parse().ok()?;
    let path = std::fs::read_to_string(format!("/sys/block/loop{number}/loop/backing_file")).ok()?;
    Some(PathBuf::from(path.trim_end_matches('\n')))
}

/// Returns true if a loop device detaches at its last close.
pub fn detaches_itself(device: &Path) -> bool {
    let Some(name) = device.file_name() else { return false };
    let path = Path::new("/sys/block").join(name).join("loop/autoclear");
    std::fs::read_to_string(path).is_ok_and(|text| text.trim() == "1")
}

/// Returns a loop device that `image` is attached to, by this name or another one.
pub fn attached_to(image: &Path) -> Option<PathBuf> {
    all_attached_to(image).next()
}

fn all_attached_to(image: &Path) -> impl Iterator<Item = PathBuf> + '_ {
    let devices = std::fs::read_dir("/sys/block").into_iter().flatten().flatten();
    devices.map(|entry| Path::new("/dev").join(entry.file_name())).filter(move |device| is_backed_by(device, image))
}

fn is_backed_by(device: &Path, image: &Path) -> bool {
    let Some(backing) = backing_file(device) else { return false };
    if backing.exists() { is_same_file(&backing, image) } else { has_inode_of(device, image) }
}

/// Returns true if a loop device has this file behind it. For one that was attached under a name that is gone.
fn has_inode_of(device: &Path, image: &Path) -> bool {
    let (Ok(device), Ok(image)) = (File::open(device), image.metadata()) else { return false };
    let mut info = MaybeUninit::<LoopInfo>::zeroed();
    if ioctl(device.as_raw_fd(), LOOP_GET_STATUS64, info.as_mut_ptr() as usize).is_err() {
        return false;
    }
    // SAFETY: it consists of numbers, for which zeros are values as well.
    let info = unsafe { info.assume_init() };
    (info.device, info.inode) == (image.dev(), image.ino())
}

/// The part of an image that a device shows.
struct Shown {
    /// The whole loop device.
    device: PathBuf,
    image: PathBuf,
    /// In bytes.
    part: Range<u64>,
}

impl Shown {
    /// Returns what a loop device, or a partition on one, shows; `None` for other devices.
    fn by(device: &Path) -> Option<Shown> {
        let device = device.canonicalize().ok()?;
        let name = device.file_name()?.to_str()?.strip_prefix("loop")?;
        let (number, partition) = name.split_once('p').map_or((name, None), |(number, _)| (number, Some(name)));
        let whole = PathBuf::from(format!("/dev/loop{number}"));
        let image = backing_file(&whole)?;
        let sectors = |at: &str| -> Option<u64> {
            std::fs::read_to_string(Path::new("/sys/class/block").join(at)).ok()?.trim().parse().ok()
        };
        let bytes_before = sectors(&format!("loop{number}/loop/offset"))?;
        let start = partition.map_or(Some(0), |name| sectors(&format!("loop{name}/start")))? * SECTOR;
        let len = sectors(&format!("loop{name}/size"))? * SECTOR;
        let start = bytes_before.saturating_add(start);
        Some(Shown { device: whole, image, part: start..start.saturating_add(len) })
    }

    fn overlaps(&self, other: &Shown) -> bool {
        self.part.start < other.part.end && other.part.start < self.part.end
    }

    /// Returns another loop device in use that shows a part of the same.
    fn rival(&self) -> Option<PathBuf> {
        let is_rival = |device: &PathBuf| {
            *device != self.device
                && Shown::by(device).is_some_and(|other| self.overlaps(&other))
                && OpenOptions::new()
                    .read(true)
                    .custom_flags(libc::O_EXCL)
                    .open(device)
                    .is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY))
        };
        all_attached_to(&self.image).find(is_rival)
    }
}

/// Returns the image behind a loop device if something else uses it, and that in words: a program that has locked the
/// image, or another loop device that is in use.
pub fn other_use(device: &Path) -> Option<(PathBuf, String)> {
    let shown = Shown::by(device)?;
    let is_locked = File::open(&shown.image).is_ok_and(|image| {
        rustix::fs::flock(image, FlockOperation::NonBlockingLockShared).is_err_and(|error| error == Errno::WOULDBLOCK)
    });
    if is_locked {
        let words = format!("its image {} is in use", shown.image.display());
        return Some((shown.image, words));
    }
    let rival = shown.rival()?;
    Some((shown.image, format!("{}, which shows the same image, is in use", rival.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a device attached to `image`; `None`, and says so, where there are no loop devices.
    fn attached(image: &Path) -> Option<LoopDevice> {
        let device = LoopDevice::attach(image, false);
        device.inspect_err(|error| eprintln!("SKIPPED: no loop devices here ({error})")).ok()
    }

    fn is_detached(image: &Path) -> bool {
        (0..100).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(10));
            attached_to(image).is_none()
        })
    }

    #[test]
    fn an_image_is_attached_and_found_and_goes_with_the_last_user() {
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(1 << 20).unwrap();
        let path = image.path().canonicalize().unwrap();
        let Some(device) = attached(&path) else { return };
        assert_eq!(backing_file(device.path()).as_deref(), Some(path.as_path()));
        assert_eq!(attached_to(&path).as_deref(), Some(device.path()));
        drop(device);
        assert!(is_detached(&path), "the loop device is still attached");
    }

    #[test]
    fn a_device_that_was_set_read_only_for_another_image_takes_writes() {
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(1 << 20).unwrap();
        let path = image.path().canonicalize().unwrap();
        let Some(first) = attached(&path) else { return };
        let number = first.path().to_owned();
        set_read_only(&first._open, true).unwrap();
        drop(first);
        assert!(is_detached(&path), "the loop device is still attached");
        // Another process may have taken the device meanwhile: then this shows nothing.
        let second = LoopDevice::attach(&path, false).unwrap();
        let name = second.path().file_name().unwrap();
        let read_only = std::fs::read_to_string(Path::new("/sys/block").join(name).join("ro")).unwrap();
        assert_eq!(read_only.trim(), "0", "{} after {}", second.path().display(), number.display());
    }
}
