//! The kernel's side of a swap: a loop device with a swap header on it, swapon(2), swapoff(2), /proc/swaps.
//!
//! Root only.

use std::ffi::CString;
use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::busy;
use crate::control_path;
use crate::loop_device::{self, LoopDevice, LoopOptions};

/// The kernel's list of swap devices and their use.
pub const SWAPS: &str = "/proc/swaps";

/// Flags of swapon(2) that the libc crate lacks (`<linux/swap.h>`).
const SWAP_FLAG_PREFER: libc::c_int = 0x8000;
const SWAP_FLAG_DISCARD: libc::c_int = 0x1_0000;
/// Highest priority of a swap device.
pub const PRIORITY_MAX: u16 = 0x7fff;

/// Smallest swap that the kernel accepts, in pages.
pub const PAGES_MIN: u64 = 10;

/// Returns the header of a swap area (version 1), which is its first page: boot bits, version, last page, number of bad
/// pages, UUID, label, and the signature at the page's end. Integers are in the machine's byte order.
fn header(pages: u32, page_bytes: usize, uuid: [u8; 16]) -> Vec<u8> {
    const VERSION_AT: usize = 1024;
    const LAST_PAGE_AT: usize = 1028;
    const UUID_AT: usize = 1036;
    const SIGNATURE: &[u8; 10] = b"SWAPSPACE2";
    let mut page = vec![0; page_bytes];
    #[expect(clippy::host_endian_bytes, reason = "the kernel reads it in the machine's byte order")]
    {
        page[VERSION_AT..VERSION_AT + 4].copy_from_slice(&1_u32.to_ne_bytes());
        page[LAST_PAGE_AT..LAST_PAGE_AT + 4].copy_from_slice(&(pages - 1).to_ne_bytes());
    }
    page[UUID_AT..UUID_AT + 16].copy_from_slice(&uuid);
    page[page_bytes - SIGNATURE.len()..].copy_from_slice(SIGNATURE);
    page
}

/// Returns the bytes of a page of this machine.
pub fn page_bytes() -> u64 {
    rustix::param::page_size() as u64
}

/// A step that failed.
#[derive(Debug, thiserror::Error)]
#[error("{what}: {error}")]
pub struct DeviceError {
    what: String,
    /// The error of the step.
    #[source]
    pub error: io::Error,
}

fn failed(what: impl Into<String>) -> impl FnOnce(io::Error) -> DeviceError {
    move |error| DeviceError { what: what.into(), error }
}

/// Makes the kernel swap to the file of the swap, of `bytes`, of the volume mounted at `target`: loop device, header,
/// swapon. The priority is the kernel's choice (low) if none is given. Undoes all steps if one fails. Returns the loop
/// device's path.
///
/// # Errors
/// The step that failed.
pub fn swap_on(target: &Path, bytes: u64, uuid: [u8; 16], priority: Option<u16>) -> Result<PathBuf, DeviceError> {
    let page_bytes = page_bytes();
    let pages = u32::try_from(bytes / page_bytes).unwrap_or(u32::MAX);
    // Direct I/O: a page that is written to free memory must not first get a copy in the page cache.
    let options = LoopOptions { direct_io: true, block_bytes: 4096, ..LoopOptions::default() };
    // Dropped at the end of this function: after swapon the kernel's own reference keeps it attached.
    let path = control_path::swapfile(target);
    let file = control_path::open_swapfile(target).map_err(failed(format!("opening {}", path.display())))?;
    let device =
        LoopDevice::attach_open(&file, &path, &options).map_err(failed("getting a loop device for the swap"))?;
    let path = device.path().to_owned();
    let mut opened =
        OpenOptions::new().write(true).open(&path).map_err(failed(format!("opening {}", path.display())))?;
    let written = opened.write_all(&header(pages, page_bytes as usize, uuid)).and_then(|()| opened.sync_all());
    written.map_err(failed(format!("writing the swap header to {}", path.display())))?;
    drop(opened);
    call_swapon(&path, priority).map_err(failed(format!("swapon {}", path.display())))?;
    Ok(path)
}

/// Makes the kernel read back all pages on the device and stop swapping to it. May take long.
///
/// # Errors
/// ENOMEM if the pages do not fit into memory. Others as swapoff(2).
pub fn swap_off(device: &Path) -> Result<(), DeviceError> {
    let path = c_path(device);
    // SAFETY: a NUL-terminated string that outlives the call.
    let code = unsafe { libc::swapoff(path.as_ptr()) };
    if code == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    Err(failed(format!("swapoff {}", device.display()))(error))
}

fn call_swapon(device: &Path, priority: Option<u16>) -> io::Result<()> {
    let preferred = priority.map_or(0, |priority| SWAP_FLAG_PREFER | libc::c_int::from(priority.min(PRIORITY_MAX)));
    let path = c_path(device);
    // SAFETY: a NUL-terminated string that outlives the call.
    match unsafe { libc::swapon(path.as_ptr(), SWAP_FLAG_DISCARD | preferred) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn c_path(path: &Path) -> CString {
    // The path of a device found by its number contains no NUL.
    CString::new(path.as_os_str().as_bytes()).unwrap_or_default()
}

/// A line of /proc/swaps.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Active {
    /// The device.
    pub device: PathBuf,
    /// Size without the header, in bytes.
    pub bytes: u64,
    /// Bytes in use.
    pub used: u64,
    /// Devices of higher priority are used first.
    pub priority: i32,
}

/// Returns all swap devices; `None` if this kernel cannot swap.
///
/// # Errors
/// Fails if the list cannot be read.
pub fn active() -> Result<Option<Vec<Active>>, DeviceError> {
    match std::fs::read_to_string(SWAPS) {
        Ok(text) => Ok(Some(text.lines().skip(1).filter_map(parse_active).collect())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(format!("reading {SWAPS}"))(error)),
    }
}

/// Parses a line such as `/dev/loop1  partition  262140  0  -2`.
fn parse_active(line: &str) -> Option<Active> {
    let mut fields = line.split_ascii_whitespace();
    let device = PathBuf::from(fields.next()?);
    let kib = |field: &str| field.parse::<u64>().ok()?.checked_mul(1024);
    let (_kind, bytes, used) = (fields.next()?, kib(fields.next()?)?, kib(fields.next()?)?);
    Some(Active { device, bytes, used, priority: fields.next()?.parse().ok()? })
}

/// Returns the swap device whose file is `file`, if the kernel swaps to it, and the loop device, if there is one.
///
/// # Errors
/// Fails if /proc/swaps cannot be read.
pub fn device_of(file: &Path) -> Result<(Option<Active>, Option<PathBuf>), DeviceError> {
    let Some(device) = loop_device::attached_to(file) else { return Ok((None, None)) };
    let active = active()?.unwrap_or_default().into_iter().find(|active| active.device == device);
    Ok((active, Some(device)))
}

/// Waits until no loop device is attached to `file`. Returns false if one still is.
pub fn wait_for_detach(file: &Path) -> bool {
    busy::wait(|_| busy::ENDING_GRACE, || (), || loop_device::attached_to(file).map_or(Ok(()), Err)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_proc_swaps_are_read() {
        let line = "/dev/loop1                              partition\t262140\t\t512\t\t-2";
        let expected = Active { device: "/dev/loop1".into(), bytes: 262_140 * 1024, used: 512 * 1024, priority: -2 };
        assert_eq!(parse_active(line), Some(expected));
        for broken in ["", "/dev/loop1", "/dev/loop1 partition x 0 -2", "/dev/loop1 partition 1 0"] {
            assert_eq!(parse_active(broken), None, "{broken}");
        }
    }

    #[test]
    fn the_header_is_what_blkid_looks_for() {
        let page = header(256, 4096, [7; 16]);
        assert_eq!((page.len(), &page[4086..]), (4096, &b"SWAPSPACE2"[..]));
        assert_eq!((page[1024], page[1028], page[1036]), (1, 255, 7));
    }
}
