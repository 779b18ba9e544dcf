//! Errors of making a region, and of paging its pages.

use rustix::io::Errno;

use crate::error::SwapError;

/// An error of a region or one of its pages.
#[derive(Debug, thiserror::Error)]
pub enum RegionError {
    /// The kernel was built without userfaultfd.
    #[error("this kernel has no userfaultfd (CONFIG_USERFAULTFD); a region needs it, and Linux 6.6 or newer")]
    NoUserfaultfd,
    /// The kernel lacks a feature.
    #[error("this kernel's userfaultfd does not know {missing}; a region needs Linux 6.6 or newer")]
    KernelTooOld {
        /// The feature and its release.
        missing: &'static str,
    },
    /// The process may not make the system call.
    #[error(
        "userfaultfd is forbidden here, even for the program's own faults: a container's seccomp filter does that; \
         allow the system call `userfaultfd` in its profile"
    )]
    NotPermitted,
    /// The machine's pages are not 4 KiB, the size of a swap slot.
    #[error("this machine's pages have {bytes} bytes; a region needs pages of 4096")]
    PageSize {
        /// Bytes of the machine's pages.
        bytes: usize,
    },
    /// The budget is too small: one instruction may touch several pages, and all of them must be in
    /// memory at once.
    #[error("a budget of {bytes} bytes is too small: a region needs {least}")]
    Budget {
        /// The budget as given, in bytes.
        bytes: u64,
        /// The least possible budget in bytes.
        least: u64,
    },
    /// The swap has no pages.
    #[error("the swap has no pages: there is nothing to make a region of")]
    Empty,
    /// A system call of the host failed.
    #[error("{what}: {source}")]
    Host {
        /// The operation, in words.
        what: &'static str,
        /// The error that the host returned.
        source: std::io::Error,
    },
    /// A page could not be written to or read from the swap.
    #[error(transparent)]
    Swap(#[from] SwapError),
}

/// Returns a function for `map_err` that makes the error of `what`, which the host refused.
pub(super) fn host(what: &'static str) -> impl Fn(Errno) -> RegionError {
    move |errno| RegionError::Host { what, source: errno.into() }
}
