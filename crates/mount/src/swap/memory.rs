//! Makes a daemon that frees memory independent of free memory.
//!
//! The kernel pages out because memory is short. If the daemon then had to wait for memory, it would wait for itself.
//! Three measures prevent that:
//!
//! | danger | answer |
//! |---|---|
//! | the daemon's own pages are out | [`Locked`]: `mlockall`, everything mapped now and later, with its memory |
//! | an allocation of the daemon makes the kernel page out to it | [`become_io_flusher`]: reclaim for it starts no I/O |
//! | the daemon is killed to free memory | [`Locked`]: `oom_score_adj` of -1000 |
//!
//! Allocations during a request are small and freed soon; [`Locked`] makes the allocator keep that memory.
//!
//! Without the first measure there is no swap: the code that brings pages in must not be out itself. The others need
//! `CAP_SYS_RESOURCE`, which containers often lack; [`Locked::warnings`] then says what may happen.

use std::io;

/// Commands of prctl(2) that the libc crate lacks for some targets (`<linux/prctl.h>`, Linux 5.6).
const PR_SET_IO_FLUSHER: libc::c_int = 57;
const PR_GET_IO_FLUSHER: libc::c_int = 58;
/// Arguments as wide as the kernel reads them; unused ones must be zero.
const YES: libc::c_ulong = 1;
const NONE: libc::c_ulong = 0;

/// Preference of the kernel to kill this process for memory; the lowest value forbids it.
const OOM_SCORE_ADJ: &str = "/proc/self/oom_score_adj";
const OOM_NEVER: &str = "-1000";

/// Freed memory that the allocator keeps instead of giving it back, in bytes: more than all concurrent requests need.
const KEEP_BYTES: libc::c_int = 64 << 20;
/// Default of glibc, in bytes.
const KEEP_BYTES_DEFAULT: libc::c_int = 128 << 10;

/// Tells the kernel that this thread, and those it will start, carry out I/O that frees memory: when it runs short on
/// their behalf it takes clean pages only. Returns false if that is impossible: before Linux 5.6, or without the right
/// (`CAP_SYS_RESOURCE`).
pub fn become_io_flusher() -> bool {
    // SAFETY: takes numbers only.
    unsafe { libc::prctl(PR_SET_IO_FLUSHER, YES, NONE, NONE, NONE) == 0 }
}

/// Returns true if [`become_io_flusher`] was called in this thread or one above it.
fn is_io_flusher() -> bool {
    // SAFETY: takes numbers only.
    unsafe { libc::prctl(PR_GET_IO_FLUSHER, NONE, NONE, NONE, NONE) == 1 }
}

/// Keeps all memory of this process resident until it is dropped, and the process from being killed when memory runs
/// out.
#[derive(Debug)]
pub(crate) struct Locked {
    /// The previous score; `None` if it could not be changed.
    oom_score_adj: Option<String>,
}

impl Locked {
    /// Locks all memory of the process.
    ///
    /// `MCL_ONFAULT` would spare the memory of stacks and buffers that are never used, but those used for the first
    /// time would ask for memory when it is shortest. So all is filled at once: tens of megabytes.
    ///
    /// # Errors
    /// Without the right to lock as much (`CAP_IPC_LOCK`, or `RLIMIT_MEMLOCK`).
    pub(crate) fn lock() -> io::Result<Locked> {
        lift_limit();
        // SAFETY: takes flags only.
        if unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE) } != 0 {
            return Err(io::Error::last_os_error());
        }
        keep_freed(KEEP_BYTES);
        let before = std::fs::read_to_string(OOM_SCORE_ADJ).ok();
        let oom_score_adj = before.filter(|_| std::fs::write(OOM_SCORE_ADJ, OOM_NEVER).is_ok());
        Ok(Locked { oom_score_adj })
    }

    /// Returns a message for each protection that is missing. To be called in a thread whose children serve the swap.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if !is_io_flusher() {
            warnings.push(
                "the daemon cannot become an I/O flusher (CAP_SYS_RESOURCE and Linux 5.6 are needed): when the whole machine runs \
                 out of memory it may wait for itself; limits of memory cgroups that it is not in are safe"
                    .to_owned(),
            );
        }
        if self.oom_score_adj.is_none() {
            warnings.push("the daemon may be killed when memory runs out (CAP_SYS_RESOURCE is needed)".to_owned());
        }
        warnings
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // SAFETY: takes nothing.
        unsafe { libc::munlockall() };
        keep_freed(KEEP_BYTES_DEFAULT);
        if let Some(before) = &self.oom_score_adj {
            // Staying unkillable does no harm.
            let _ = std::fs::write(OOM_SCORE_ADJ, before.trim_end());
        }
    }
}

/// Raises the limit on locked memory, which applies to processes without `CAP_IPC_LOCK`. Failure shows when locking.
fn lift_limit() {
    let unlimited = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the kernel only reads the struct.
    unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &unlimited) };
}

/// Sets the freed bytes that the allocator keeps.
#[cfg(target_env = "gnu")]
fn keep_freed(bytes: libc::c_int) {
    // SAFETY: takes numbers only.
    unsafe { libc::mallopt(libc::M_TRIM_THRESHOLD, bytes) };
}

#[cfg(not(target_env = "gnu"))]
fn keep_freed(_: libc::c_int) {}
