//! Why there is no region, or what became of a page of one.

use rustix::io::Errno;

use crate::error::SwapError;

/// What can go wrong with a region.
#[derive(Debug, thiserror::Error)]
pub enum RegionError {
    /// The kernel was built without it.
    #[error("this kernel has no userfaultfd (CONFIG_USERFAULTFD); a region needs it, and Linux 6.6 or newer")]
    NoUserfaultfd,
    /// The kernel lacks something.
    #[error("this kernel's userfaultfd does not know {missing}; a region needs Linux 6.6 or newer")]
    KernelTooOld {
        /// What it lacks.
        missing: &'static str,
    },
    /// Something forbids the system call.
    #[error(
        "userfaultfd is forbidden here, even for the program's own faults: a container's seccomp filter does that; \
         allow the system call `userfaultfd` in its profile"
    )]
    NotPermitted,
    /// Swap slots hold pages of 4 KiB.
    #[error("this machine's pages have {bytes} bytes; a region needs pages of 4096")]
    PageSize {
        /// What the machine has.
        bytes: usize,
    },
    /// One instruction may touch several pages, and all of them must be in memory at once.
    #[error("a budget of {bytes} bytes is too small: a region needs {least}")]
    Budget {
        /// What was asked for.
        bytes: u64,
        /// The least there may be.
        least: u64,
    },
    /// The swap has no pages.
    #[error("the swap has no pages: there is nothing to make a region of")]
    Empty,
    /// The host refused.
    #[error("{what}: {source}")]
    Host {
        /// What was being done.
        what: &'static str,
        /// What the host said.
        source: std::io::Error,
    },
    /// A page did not get out or in.
    #[error(transparent)]
    Swap(#[from] SwapError),
}

/// For `map_err`: the host refused `what`.
pub(super) fn host(what: &'static str) -> impl Fn(Errno) -> RegionError {
    move |errno| RegionError::Host { what, source: errno.into() }
}
