//! Drops the privileges of root that a serving daemon does not need.
//!
//! Capabilities belong to threads, and new threads inherit them: call this before any thread is started. The daemon
//! keeps what a mount needs while it lives: to open its image, to mount and unmount itself and its swap file, to lock
//! memory, to change its threads' scheduling class. It gives up all others, and so do programs that it starts.

use std::io;

/// Capability numbers of `<linux/capability.h>`.
const DAC_OVERRIDE: u32 = 1;
const DAC_READ_SEARCH: u32 = 2;
const SETPCAP: u32 = 8;
const IPC_LOCK: u32 = 14;
const SYS_ADMIN: u32 = 21;
const SYS_NICE: u32 = 23;
const SYS_RESOURCE: u32 = 24;
const KEPT: [u32; 6] = [DAC_OVERRIDE, DAC_READ_SEARCH, IPC_LOCK, SYS_ADMIN, SYS_NICE, SYS_RESOURCE];
const CAPABILITY_VERSION_3: u32 = 0x2008_0522;

/// Arguments of prctl(2), as wide as the kernel reads them.
const YES: libc::c_ulong = 1;
const NONE: libc::c_ulong = 0;

#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Sets {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Drops all capabilities but the kept ones in this thread and those it will start, and keeps programs from gaining
/// any.
///
/// # Errors
/// The kernel's error; capabilities that were given up before it stay given up.
pub fn confine() -> io::Result<()> {
    let mut held = get()?;
    // The bounding set limits the capabilities of programs that are started.
    if held[0].effective & (1 << SETPCAP) != 0 {
        drop_from_bounding_set();
    }
    let kept = KEPT.iter().fold(0_u32, |mask, capability| mask | 1 << capability);
    for (sets, mask) in held.iter_mut().zip([kept, 0]) {
        *sets = Sets { effective: sets.permitted & mask, permitted: sets.permitted & mask, inheritable: 0 };
    }
    set(&held)?;
    // SAFETY: takes numbers only.
    match unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, YES, NONE, NONE, NONE) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn drop_from_bounding_set() {
    for capability in (0..64).filter(|capability| !KEPT.contains(capability)) {
        // SAFETY: takes numbers only. A capability that the kernel does not know is refused.
        unsafe { libc::prctl(libc::PR_CAPBSET_DROP, libc::c_ulong::from(capability), NONE, NONE, NONE) };
    }
}

fn get() -> io::Result<[Sets; 2]> {
    let mut header = Header { version: CAPABILITY_VERSION_3, pid: 0 };
    let mut sets = [Sets::default(); 2];
    // SAFETY: version 3 has two elements, which live in this frame.
    let result = unsafe { libc::syscall(libc::SYS_capget, &mut header, sets.as_mut_ptr()) };
    if result == 0 { Ok(sets) } else { Err(io::Error::last_os_error()) }
}

fn set(sets: &[Sets; 2]) -> io::Result<()> {
    let mut header = Header { version: CAPABILITY_VERSION_3, pid: 0 };
    // SAFETY: as above; the kernel only reads the sets.
    let result = unsafe { libc::syscall(libc::SYS_capset, &mut header, sets.as_ptr()) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
