//! Loop devices: block devices whose contents are an image file.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::path::{Path, PathBuf};

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
        LoopDevice::attach_with(image, &LoopOptions { read_only, ..LoopOptions::default() })
    }

    /// Attaches a free loop device to `image`, with settings.
    ///
    /// # Errors
    /// As [`LoopDevice::attach`].
    pub fn attach_with(image: &Path, options: &LoopOptions) -> io::Result<LoopDevice> {
        let read_only = options.read_only;
        let backing = OpenOptions::new().read(true).write(!read_only).open(image)?;
        let control = OpenOptions::new().read(true).write(true).open("/dev/loop-control")?;
        for _ in 0..ATTEMPTS_MAX {
            let number = ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE, 0)?;
            let path = PathBuf::from(format!("/dev/loop{number}"));
            let device = OpenOptions::new().read(true).write(!read_only).open(&path)?;
            match configure(&device, &backing, image, options) {
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
    // reads and that lives in the caller's frame.
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

/// Returns the loop device that `image` (an absolute path) is attached to.
pub fn attached_to(image: &Path) -> Option<PathBuf> {
    let devices = std::fs::read_dir("/sys/block").ok()?.flatten();
    let mut paths = devices.map(|entry| Path::new("/dev").join(entry.file_name()));
    paths.find(|device| backing_file(device).as_deref() == Some(image))
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
